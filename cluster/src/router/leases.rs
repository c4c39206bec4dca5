//! Leases under which storage processes answer basic reads (paper, section 6.7; DESIGN, decisions 14 and 16).
//!
//! Basic reads pass no router, so a storage process that is suspected and cannot hear of it would answer from the past
//! for ever. Hence it answers only under a lease, which it asks the lead router for again and again and which it counts
//! from the moment it asked, by its own clock. The lead router orders the suspicion of a storage process only when every
//! lease that the process can have, or who fails with it, also from an earlier leader, has run out; and so it orders that a
//! later life of a process joins without data, which is the end of the earlier ones wherever they run. An earlier leader that
//! has been cut off need not know that it is one: it grants leases only as long as a quorum follows it.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use crate::{
    message::{Incarnation, Message, MessageId, ProcessId},
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
    /// When each life of a process had its last one.
    granted_ms: BTreeMap<(ProcessId, Incarnation), u64>,
    /// Messages of which the first ends lives and its time has not come: when it comes, who sent them.
    held: VecDeque<(u64, ProcessId, Vec<Arc<Message>>)>,
    /// Those that may change the config and are not known to be ordered yet, also of such whose time has come.
    passed: Vec<Arc<Message>>,
}

/// Lives of a storage process that end: up to this one.
pub(super) type Ending = (ProcessId, Incarnation);

impl Leases {
    /// For a leader that begins now.
    pub(super) fn new(now_ms: Option<u64>) -> Leases {
        Leases { now_ms, since_ms: now_ms.unwrap_or(0), ..Leases::default() }
    }

    /// Whether a life of a process can have a lease now, when a quorum followed this leader at `led_ms` for the last time that is
    /// known. One that is about to be suspected, or fails with who is, gets none, until the suspicion is ordered and the config
    /// has the say; nor does one of which a later life is about to join.
    pub(super) fn grant(
        &mut self,
        to: ProcessId,
        life: Incarnation,
        now_ms: u64,
        led_ms: Option<u64>,
        ends: impl Fn(&Message) -> Vec<Ending>,
    ) -> bool {
        let leads = led_ms.is_some_and(|led_ms| now_ms < led_ms + DEPOSED_MS);
        if self.now_ms.is_none() || !(leads || planted(Bug::LeaseOfTheDeposed)) {
            return false;
        }
        let held = self.held.iter().filter_map(|(_, _, messages)| messages.first());
        let mut ending = held.chain(&self.passed).flat_map(|end| ends(end));
        let doomed = ending.any(|(process, last)| process == to && life <= last);
        if !doomed {
            self.granted_ms.insert((to, life), now_ms);
        }
        !doomed
    }

    /// What may change the config is on its way into the m-seq.
    pub(super) fn pass(&mut self, message: Arc<Message>) {
        self.passed.push(message);
    }

    /// What has come of a message is known.
    pub(super) fn settle(&mut self, id: MessageId) {
        self.passed.retain(|message| message.id != id);
    }

    /// Whether the config at the end of all that is on its way is not known yet.
    pub(super) fn awaits_config(&self) -> bool {
        !self.passed.is_empty()
    }

    /// When none of these can have a lease any more, if that is still to come.
    pub(super) fn ends_ms(&self, ending: &[Ending]) -> Option<u64> {
        let now_ms = self.now_ms?;
        let granted = ending
            .iter()
            .flat_map(|(process, last)| self.granted_ms.range((*process, 0)..=(*process, *last)));
        let granted_ms = granted.map(|(_, granted_ms)| *granted_ms).fold(self.since_ms, u64::max);
        (!ending.is_empty()).then_some(granted_ms + LEASE_MS + MARGIN_MS).filter(|ends_ms| *ends_ms > now_ms)
    }

    /// Gives messages back, unless others of their submitter are held: then they are held behind those.
    pub(super) fn behind_held(
        &mut self,
        from: ProcessId,
        messages: Vec<Arc<Message>>,
    ) -> Option<Vec<Arc<Message>>> {
        let life = |messages: &[Arc<Message>]| messages.first().map(|first| first.id.incarnation);
        match self.held.iter_mut().find(|(_, submitter, _)| *submitter == from) {
            // What an earlier life has said is not listened to any more.
            Some((_, _, held)) if life(held) < life(&messages) => {
                self.held.retain(|(_, submitter, _)| *submitter != from);
                Some(messages)
            }
            Some((_, _, held)) => {
                let known: HashSet<_> = held.iter().map(|message| message.id).collect();
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

    /// Time passes.
    pub(super) fn tick(&mut self, now_ms: u64) {
        if self.now_ms.is_none() {
            self.since_ms = now_ms;
        }
        self.now_ms = Some(now_ms);
        self.granted_ms.retain(|_, granted_ms| *granted_ms + LEASE_MS + MARGIN_MS > now_ms);
    }

    /// The held messages whose time has come.
    pub(super) fn due(&mut self) -> impl Iterator<Item = (ProcessId, Vec<Arc<Message>>)> + use<> {
        let now_ms = self.now_ms.unwrap_or(0);
        let (due, held): (VecDeque<_>, _) =
            std::mem::take(&mut self.held).into_iter().partition(|(until_ms, _, _)| *until_ms <= now_ms);
        self.held = held;
        due.into_iter().map(|(_, from, messages)| (from, messages))
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
        let no = |_: &Message| Vec::new();
        assert!(leases.grant(s2, 1, 5_000, Some(5_000), no));
        leases.tick(5_100);
        assert_eq!(leases.due().count(), 0);
        assert_eq!(leases.ends_ms(&[(s1, 9)]), None);
        assert_eq!(leases.ends_ms(&[(s1, 9), (s2, 9)]), Some(6_000));

        let membership = Membership::Suspect { process: s1, incarnation: 1 };
        let suspicion = Arc::new(testing::configuration(
            ProcessId::client(1),
            1,
            1,
            Configuration::Membership(membership),
        ));
        let ends = |_: &Message| vec![(s1, Incarnation::MAX), (s2, Incarnation::MAX)];
        leases.hold(6_000, ProcessId::client(1), vec![suspicion.clone()]);
        for (process, granted) in [(s1, false), (s2, false), (s3, true)] {
            assert_eq!(leases.grant(process, 1, 5_200, Some(5_200), ends), granted);
        }
        leases.tick(6_000);
        assert_eq!(leases.due().count(), 1);
        leases.pass(suspicion.clone());
        assert!(leases.awaits_config());
        assert!(!leases.grant(s2, 1, 6_000, Some(6_000), ends), "the config does not know it yet");
        leases.settle(suspicion.id);
        assert!(!leases.awaits_config());
        assert!(leases.grant(s2, 1, 6_000, Some(6_000), ends), "the config has the say");
    }

    #[test]
    fn what_a_later_life_says_is_not_held_behind_what_an_earlier_one_has_said() {
        let from = ProcessId::client(1);
        let message = |incarnation, sequence| {
            let membership = Membership::Suspect { process: ProcessId::storage(1), incarnation: 1 };
            let configuration = Configuration::Membership(membership);
            Arc::new(testing::configuration(from, incarnation, sequence, configuration))
        };
        let mut leases = Leases::new(Some(1_000));
        leases.hold(2_000, from, vec![message(1, 1)]);
        assert_eq!(leases.behind_held(from, vec![message(1, 1), message(1, 2)]).map(|held| held.len()), None);
        assert_eq!(leases.behind_held(from, vec![message(2, 1)]).map(|said| said.len()), Some(1));
        leases.tick(3_000);
        assert_eq!(leases.due().count(), 0);
    }

    #[test]
    fn who_joins_waits_for_leases_of_its_earlier_lives_only() {
        let s1 = ProcessId::storage(1);
        let mut leases = Leases::new(Some(1_000));
        let no = |_: &Message| Vec::new();
        leases.tick(5_000);
        assert!(leases.grant(s1, 1, 5_000, Some(5_000), no));
        assert!(leases.grant(s1, 3, 5_700, Some(5_700), no));
        assert_eq!(leases.ends_ms(&[(s1, 2)]), Some(6_000));
        assert_eq!(leases.ends_ms(&[(s1, 3)]), Some(6_700));
        assert_eq!(leases.ends_ms(&[]), None);
        let membership = Membership::Join { process: s1, incarnation: 3, address: None };
        let join = Arc::new(testing::configuration(s1, 3, 1, Configuration::Membership(membership)));
        let ends = |_: &Message| vec![(s1, 2)];
        leases.hold(6_000, s1, vec![join]);
        assert!(!leases.grant(s1, 2, 5_800, Some(5_800), ends));
        assert!(leases.grant(s1, 3, 5_800, Some(5_800), ends));
        leases.tick(7_000);
        assert_eq!(leases.granted_ms, BTreeMap::new(), "what has run out is forgotten");
    }
}
