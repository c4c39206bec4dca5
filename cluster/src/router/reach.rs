//! Which router the others can reach. A router that is dialled where it is not (it has moved, or has another host's certificate)
//! may reach the other routers all the same, as it dials them: it could lead, and everybody else would wait for it. So routers
//! tell the leader how many of the cluster's other processes they reach, and one that reaches fewer lets another lead.

use std::collections::BTreeMap;

use crate::message::ProcessId;

/// What a router has said that has not said anything since for so long counts no more.
const HEARD_MS: u64 = 4_000;
/// How long another router reaches more before it is to lead: processes that have just started reach one before the other.
const PATIENCE_MS: u64 = 3_000;

/// What one leader has heard.
#[derive(Debug, Default)]
pub(super) struct Reached {
    /// How many storage processes and clients a router reaches, and when it said so.
    heard: BTreeMap<ProcessId, (u32, u64)>,
    /// Since when another router reaches more.
    more_since_ms: Option<u64>,
}

impl Reached {
    /// A router says how many it reaches.
    pub(super) fn hear(&mut self, router: ProcessId, members: u32, now_ms: u64) {
        self.heard.insert(router, (members, now_ms));
    }

    /// This router does not lead (any more).
    pub(super) fn follows(&mut self) {
        self.more_since_ms = None;
    }

    /// The router that is to lead in place of this one, which reaches so many, and how many that one reaches.
    pub(super) fn look(&mut self, own: u32, now_ms: u64) -> Option<(ProcessId, u32)> {
        self.heard.retain(|_, (_, at_ms)| now_ms.saturating_sub(*at_ms) < HEARD_MS);
        let most = self.heard.iter().map(|(router, (members, _))| (*router, *members));
        let Some(most) = most.max_by_key(|(_, members)| *members).filter(|(_, members)| *members > own)
        else {
            self.more_since_ms = None;
            return None;
        };
        let since_ms = *self.more_since_ms.get_or_insert(now_ms);
        (now_ms.saturating_sub(since_ms) >= PATIENCE_MS).then(|| {
            // If nothing comes of it, not at once again.
            self.more_since_ms = None;
            most
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reaches_most_for_some_time_is_to_lead() {
        let [r1, r3] = [1, 3].map(ProcessId::router);
        let mut reached = Reached::default();
        assert_eq!(reached.look(0, 0), None, "nobody reaches anybody");
        let mut at = |now_ms: u64, heard: [Option<u32>; 2], own: u32| {
            for (router, members) in [r1, r3].into_iter().zip(heard) {
                if let Some(members) = members {
                    reached.hear(router, members, now_ms);
                }
            }
            reached.look(own, now_ms)
        };
        assert_eq!(at(1_000, [Some(4), Some(5)], 0), None, "they may have just started");
        assert_eq!(at(3_999, [Some(4), Some(5)], 0), None);
        assert_eq!(at(4_000, [None; 2], 0), Some((r3, 5)));
        assert_eq!(at(4_001, [None; 2], 0), None, "it has been asked");
        assert_eq!(at(6_900, [None, Some(5)], 5), None, "as many as the others");
        assert_eq!(at(7_100, [Some(9), None], 5), None, "the time before does not count");
        assert_eq!(at(11_200, [None; 2], 0), None, "nobody has been heard for long");
        assert_eq!(at(11_300, [Some(1), None], 0), None);
        assert_eq!(at(14_300, [Some(1), None], 0), Some((r1, 1)));
    }
}
