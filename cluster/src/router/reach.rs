//! Which router the others can reach. A router that is dialled where it is not (it has moved, or has another host's certificate)
//! may reach the other routers all the same, as it dials them: it could lead, and everybody else would wait for it. So routers
//! tell the leader how many of the cluster's other processes they reach, and one that reaches fewer lets another lead.

use std::collections::BTreeMap;

use crate::message::ProcessId;

/// What a router has said that has not said anything since for so long counts no more. Less than the patience: whoever ends and
/// takes others with it, which only the leader has noticed, must not be asked to lead.
const HEARD_MS: u64 = 2_500;
/// How long another router reaches more before it is to lead: processes that have just started reach one before the other.
const PATIENCE_MS: u64 = 3_000;
/// For how long nobody is asked after somebody has been.
const PAUSE_MS: u64 = 10_000;

/// How many of the cluster's other processes a router reaches: storage processes, then clients, for a storage process that the
/// leader does not reach is suspected.
pub(super) type Members = (u32, u32);

/// What one leader has heard.
#[derive(Debug, Default)]
pub(super) struct Reached {
    /// How many processes a router reaches, and when it said so.
    heard: BTreeMap<ProcessId, (Members, u64)>,
    /// Since when another router reaches more.
    more_since_ms: Option<u64>,
    /// Before that nobody is asked.
    paused_until_ms: u64,
}

impl Reached {
    /// A router says how many it reaches.
    pub(super) fn hear(&mut self, router: ProcessId, members: Members, now_ms: u64) {
        self.heard.insert(router, (members, now_ms));
    }

    /// This router does not lead (any more).
    pub(super) fn follows(&mut self) {
        self.more_since_ms = None;
    }

    /// The router that is to lead in place of this one, which reaches so many, and how many that one reaches; of those that can.
    pub(super) fn look(
        &mut self,
        own: Members,
        now_ms: u64,
        can_lead: impl Fn(ProcessId) -> bool,
    ) -> Option<(ProcessId, Members)> {
        self.heard.retain(|_, (_, at_ms)| now_ms.saturating_sub(*at_ms) < HEARD_MS);
        let able = self.heard.iter().filter(|(router, _)| can_lead(**router));
        let most = able.map(|(router, (members, _))| (*router, *members)).max_by_key(|(_, members)| *members);
        let Some(most) = most.filter(|(_, members)| *members > own) else {
            self.more_since_ms = None;
            return None;
        };
        let since_ms = *self.more_since_ms.get_or_insert(now_ms);
        (now_ms.saturating_sub(since_ms) >= PATIENCE_MS && now_ms >= self.paused_until_ms).then(|| {
            self.paused_until_ms = now_ms + PAUSE_MS;
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
        assert_eq!(reached.look((0, 0), 0, |_| true), None, "nobody reaches anybody");
        let mut at = |now_ms: u64, heard: [Option<Members>; 2], own: Members| {
            for (router, members) in [r1, r3].into_iter().zip(heard) {
                if let Some(members) = members {
                    reached.hear(router, members, now_ms);
                }
            }
            reached.look(own, now_ms, |_| true)
        };
        let all = |now_ms: u64| (now_ms, [Some((2, 2)), Some((3, 0))], (0, 0));
        let mut pass = |(now_ms, heard, own)| at(now_ms, heard, own);
        assert_eq!(pass(all(1_000)), None, "they may have just started");
        assert_eq!(pass(all(3_000)), None);
        assert_eq!(pass(all(4_000)), Some((r3, (3, 0))), "storage processes count more");
        for now_ms in (5_000..14_000).step_by(1_000) {
            assert_eq!(pass(all(now_ms)), None, "it has been asked");
        }
        assert_eq!(pass(all(14_000)), Some((r3, (3, 0))));
        for now_ms in (20_000..30_000).step_by(1_000) {
            assert_eq!(pass((now_ms, [None, Some((3, 1))], (3, 1))), None, "as many as the others");
        }
        for now_ms in (30_000..36_000).step_by(1_000) {
            let heard = Some((9, 9)).filter(|_| now_ms == 30_000);
            assert_eq!(pass((now_ms, [heard, None], (5, 5))), None, "it has ended");
        }
    }

    #[test]
    fn who_cannot_lead_is_not_asked() {
        let [r1, r3] = [1, 3].map(ProcessId::router);
        let mut reached = Reached::default();
        let mut asked = None;
        for now_ms in (0..5_000).step_by(1_000) {
            reached.hear(r1, (1, 1), now_ms);
            reached.hear(r3, (9, 9), now_ms);
            asked = asked.or(reached.look((0, 0), now_ms, |router| router != r3));
        }
        assert_eq!(asked, Some((r1, (1, 1))));
    }
}
