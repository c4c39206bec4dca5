//! What a process that listens says of connections that it does not take: who cannot be let in tries again for ever.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use tokio::time::Instant;

/// An equal line is said once in so long.
const AGAIN: Duration = Duration::from_secs(60);
/// So many lines are remembered, the newest.
const MOST: usize = 256;
/// So many of one host in that time; those behind them count as equal.
const MOST_OF_HOST: usize = 32;
/// Most characters of a text that another process may have made up.
const LONGEST: usize = 500;

/// The lines that have been said lately.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By the host that connected and why that was in vain: when it was said, and how often it could have been since.
    said: BTreeMap<(IpAddr, String), (Instant, u64)>,
}

impl Refusals {
    /// The line to be said of a connection from there, unless it has just been said.
    pub(super) fn line(&mut self, peer: IpAddr, reason: &str, now: Instant) -> Option<String> {
        let mut key = (peer, plain(reason));
        let of_peer = self.said.range((peer, String::new())..).take_while(|((host, _), _)| *host == peer);
        if !self.said.contains_key(&key)
            && of_peer.filter(|(_, (said, _))| now < *said + AGAIN).count() >= MOST_OF_HOST
        {
            key.1 = "for further reasons, which are too many to say".to_owned();
        }
        if let Some((said, left_out)) = self.said.get_mut(&key)
            && now < *said + AGAIN
        {
            *left_out += 1;
            return None;
        }
        let line = format!("a connection was refused: {}", key.1);
        let left_out = self.said.insert(key, (now, 0)).map_or(0, |(_, left_out)| left_out);
        if self.said.len() > MOST {
            let oldest = self.said.iter().min_by_key(|(_, (said, _))| *said);
            oldest.map(|(key, _)| key.clone()).and_then(|key| self.said.remove(&key));
        }
        Some(match left_out {
            0 => line,
            _ => format!("{line} ({left_out} more times since this was last said)"),
        })
    }

    /// Why connections were refused, and how often that was not said.
    #[cfg(test)]
    pub(super) fn reasons(&self) -> Vec<(String, u64)> {
        self.said.iter().map(|((_, reason), (_, left_out))| (reason.clone(), *left_out)).collect()
    }
}

/// A text that another process may have made up, fit for a line of the log.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (count, char) in text.chars().enumerate() {
        match char {
            _ if count == LONGEST => return plain + "…",
            '\'' | '"' | '\\' => plain.push(char),
            _ => plain.extend(char.escape_debug()),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn equal_lines_are_said_once_in_a_minute() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let first = refusals.line(HERE, "it is not\nwanted", begun);
        assert_eq!(first.as_deref(), Some(r"a connection was refused: it is not\nwanted"));
        for second in 1..10 {
            assert_eq!(refusals.line(HERE, "it is not\nwanted", begun + Duration::from_secs(second)), None);
        }
        assert!(refusals.line(HERE, "for another reason", begun).is_some());
        assert!(refusals.line(IpAddr::V4(Ipv4Addr::BROADCAST), "it is not\nwanted", begun).is_some());
        let again = refusals.line(HERE, "it is not\nwanted", begun + AGAIN);
        let more = r"a connection was refused: it is not\nwanted (9 more times since this was last said)";
        assert_eq!(again.as_deref(), Some(more));
        assert_eq!(refusals.line(HERE, "it is not\nwanted", begun + AGAIN), None);
    }

    #[test]
    fn the_oldest_lines_are_forgotten() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let host = |n: usize| IpAddr::V4(Ipv4Addr::from_bits(n as u32 / 8));
        for n in 0..2 * MOST {
            let now = begun + Duration::from_millis(n as u64);
            assert!(refusals.line(host(n), &format!("reason {n}"), now).is_some());
        }
        assert_eq!(refusals.said.len(), MOST);
        let now = begun + Duration::from_secs(1);
        assert!(refusals.line(host(2 * MOST - 1), &format!("reason {}", 2 * MOST - 1), now).is_none());
        assert!(refusals.line(host(0), "reason 0", now).is_some());
    }

    #[test]
    fn who_makes_reasons_up_is_not_heard_of_without_end() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let said = (0..1000).filter_map(|n| refusals.line(HERE, &format!("reason {n}"), begun)).count();
        assert_eq!(said, MOST_OF_HOST + 1);
        assert!(refusals.line(IpAddr::V4(Ipv4Addr::BROADCAST), "a reason", begun).is_some(), "another host");
        let later = begun + AGAIN;
        assert!(refusals.line(HERE, "reason 1001", later).is_some_and(|line| line.ends_with("reason 1001")));
        for n in 2000..3000 {
            refusals.line(HERE, &format!("reason {n}"), later);
        }
        let again = refusals.line(HERE, "another", later + AGAIN / 2);
        assert_eq!(again, None);
    }

    #[test]
    fn texts_of_others_are_short_and_on_one_line() {
        let text = plain("it's \u{1b}[31m\"red\"\u{202e}\r\n C:\\zoë");
        assert_eq!(text, "it's \\u{1b}[31m\"red\"\\u{202e}\\r\\n C:\\zoë");
        assert_eq!(plain(&text), text);
        let long = plain(&"é".repeat(10 * LONGEST));
        assert_eq!(long, "é".repeat(LONGEST) + "…");
    }
}
