//! Leases under which storage processes answer basic reads (paper, section 6.7; DESIGN, decisions 14 and 16).
//!
//! Basic reads pass no router, so a storage process that is suspected and cannot hear of it would answer from the past
//! for ever. Hence it answers only under a lease, which it asks the lead router for again and again and which it counts
//! from the moment it asked, by its own clock. The lead router orders the suspicion of a storage process only when every
//! lease that the process can have, or who fails with it, also from an earlier leader, has run out. An earlier leader that
//! has been cut off need not know that it is one: it grants leases only as long as a quorum follows it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    message::{Message, MessageId, ProcessId},
    planted::{Bug, planted},
};

/// How long a lease lasts, in milliseconds from the request for it.
pub const LEASE_MS: u64 = 500;
/// How long a leader may have been deposed without knowing it when it grants a lease, and what clocks may differ in their
/// pace meanwhile, in milliseconds.
const MARGIN_MS: u64 = 500;
/// A leader that no quorum is known to have followed for so long grants no lease: there may be another one.
pub(super) const DEPOSED_MS: u64 = 400;

/// What one leader knows of leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Of the present time; there are no leases before it is known.
    now_ms: Option<u64>,
    /// When this leader began to lead: what was granted before, others have granted.
    since_ms: u64,
    granted_ms: BTreeMap<ProcessId, u64>,
    /// Messages that begin with a suspicion whose time has not come: when it comes, who sent them.
    held: VecDeque<(u64, ProcessId, Vec<Arc<Message>>)>,
    /// Suspicions whose time has come and that are not known to be ordered yet.
    passed: Vec<Arc<Message>>,
}

impl Leases {
    /// For a leader that begins now.
    pub(super) fn new(now_ms: Option<u64>) -> Leases {
        Leases { now_ms, since_ms: now_ms.unwrap_or(0), ..Leases::default() }
    }

    /// Whether a process can have a lease now, when a quorum followed this leader at `led_ms` for the last time that is known.
    /// One that is about to be suspected, or fails with who is, gets none, until the suspicion is ordered and the config has
    /// the say.
    pub(super) fn grant(
        &mut self,
        to: ProcessId,
        now_ms: u64,
        led_ms: Option<u64>,
        is_ordered: impl Fn(MessageId) -> bool,
        fails_with: impl Fn(&Message) -> bool,
    ) -> bool {
        let leads = led_ms.is_some_and(|led_ms| now_ms < led_ms + DEPOSED_MS);
        if self.now_ms.is_none() || !(leads || planted(Bug::LeaseOfTheDeposed)) {
            return false;
        }
        self.passed.retain(|suspicion| !is_ordered(suspicion.id));
        let held = self.held.iter().filter_map(|(_, _, messages)| messages.first());
        let doomed = held.chain(&self.passed).any(|suspicion| fails_with(suspicion));
        if !doomed {
            self.granted_ms.insert(to, now_ms);
        }
        !doomed
    }

    /// A suspicion is on its way into the m-seq.
    pub(super) fn pass(&mut self, suspicion: Arc<Message>) {
        self.passed.push(suspicion);
    }

    /// When none of these can have a lease any more, if that is still to come.
    pub(super) fn ends_ms(&self, processes: &[ProcessId]) -> Option<u64> {
        let now_ms = self.now_ms?;
        let granted = processes.iter().filter_map(|process| self.granted_ms.get(process));
        let granted_ms = granted.copied().fold(self.since_ms, u64::max);
        Some(granted_ms + LEASE_MS + MARGIN_MS).filter(|ends_ms| *ends_ms > now_ms)
    }

    /// Gives messages back, unless others of their submitter are held: then they are held behind those.
    pub(super) fn behind_held(
        &mut self,
        from: ProcessId,
        messages: Vec<Arc<Message>>,
    ) -> Option<Vec<Arc<Message>>> {
        match self.held.iter_mut().find(|(_, submitter, _)| *submitter == from) {
            Some((_, _, held)) => {
                let known: Vec<_> = held.iter().map(|message| message.id).collect();
                held.extend(messages.into_iter().filter(|message| !known.contains(&message.id)));
                None
            }
            None => Some(messages),
        }
    }

    /// Bytes of what is held, roughly.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.iter().flat_map(|(_, _, messages)| messages).map(|message| message.weight()).sum()
    }

    /// Keeps messages until a time.
    pub(super) fn hold(&mut self, until_ms: u64, from: ProcessId, messages: Vec<Arc<Message>>) {
        self.held.push_back((until_ms, from, messages));
    }

    /// Time passes: the messages whose time has come.
    pub(super) fn tick(&mut self, now_ms: u64) -> Vec<(ProcessId, Vec<Arc<Message>>)> {
        if self.now_ms.is_none() {
            self.since_ms = now_ms;
        }
        self.now_ms = Some(now_ms);
        let (due, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(until_ms, _, _)| *until_ms <= now_ms);
        self.held = held;
        let due: VecDeque<_> = due;
        due.into_iter().map(|(_, from, messages)| (from, messages)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Configuration, Membership},
        router::testing,
    };

    #[test]
    fn who_fails_with_the_suspected_has_no_lease_either() {
        let [s1, s2, s3] = [1, 2, 3].map(ProcessId::storage);
        let mut leases = Leases::new(Some(1_000));
        let no = |_: &Message| false;
        assert!(leases.grant(s2, 5_000, Some(5_000), |_| false, no));
        assert!(leases.tick(5_100).is_empty());
        assert_eq!(leases.ends_ms(&[s1]), None);
        assert_eq!(leases.ends_ms(&[s1, s2]), Some(6_000));

        let membership = Membership::Suspect { process: s1, incarnation: 1 };
        let suspicion = Arc::new(testing::configuration(
            ProcessId::client(1),
            1,
            1,
            Configuration::Membership(membership),
        ));
        let fails = |process: ProcessId| {
            move |message: &Message| {
                message.suspected_storage() == Some((s1, 1)) && (process == s1 || process == s2)
            }
        };
        leases.hold(6_000, ProcessId::client(1), vec![suspicion.clone()]);
        for (process, granted) in [(s1, false), (s2, false), (s3, true)] {
            assert_eq!(leases.grant(process, 5_200, Some(5_200), |_| false, fails(process)), granted);
        }
        assert_eq!(leases.tick(6_000).len(), 1);
        leases.pass(suspicion);
        assert!(
            !leases.grant(s2, 6_000, Some(6_000), |_| false, fails(s2)),
            "the config does not know it yet"
        );
        assert!(leases.grant(s2, 6_000, Some(6_000), |_| true, fails(s2)), "the config has the say");
    }
}
