//! Leases under which storage processes answer basic reads (paper, section 6.7; DESIGN, decisions 14 and 16).
//!
//! Basic reads pass no router, so a storage process that is suspected and cannot hear of it would answer from the past
//! for ever. Hence it answers only under a lease, which it asks the lead router for again and again and which it counts
//! from the moment it asked, by its own clock. The lead router orders the suspicion of a storage process only when every
//! lease that the process can have, also from an earlier leader, has run out. An earlier leader that has been cut off need not
//! know that it is one: it grants leases only as long as a quorum follows it.

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
    /// Suspicions whose time has come and that are not known to be ordered yet, and of whom.
    passed: Vec<(ProcessId, MessageId)>,
}

impl Leases {
    /// For a leader that begins now.
    pub(super) fn new(now_ms: Option<u64>) -> Leases {
        Leases { now_ms, since_ms: now_ms.unwrap_or(0), ..Leases::default() }
    }

    /// Whether a process can have a lease now, when a quorum followed this leader at `led_ms` for the last time that is known.
    /// One that is about to be suspected gets none, until its suspicion is ordered and the config has the say.
    pub(super) fn grant(
        &mut self,
        to: ProcessId,
        now_ms: u64,
        led_ms: Option<u64>,
        is_ordered: impl Fn(MessageId) -> bool,
    ) -> bool {
        let leads = led_ms.is_some_and(|led_ms| now_ms < led_ms + DEPOSED_MS);
        if self.now_ms.is_none() || !(leads || planted(Bug::LeaseOfTheDeposed)) {
            return false;
        }
        self.passed.retain(|(_, suspicion)| !is_ordered(*suspicion));
        let is_held = self.held.iter().any(|(_, _, messages)| {
            messages.first().is_some_and(|message| message.suspected_storage() == Some(to))
        });
        let has_passed = self.passed.iter().any(|(process, _)| *process == to);
        let doomed = is_held || has_passed;
        if !doomed {
            self.granted_ms.insert(to, now_ms);
        }
        !doomed
    }

    /// A suspicion is on its way into the m-seq.
    pub(super) fn pass(&mut self, process: ProcessId, suspicion: MessageId) {
        self.passed.push((process, suspicion));
    }

    /// When the process can have no lease any more, if that is still to come.
    pub(super) fn ends_ms(&self, process: ProcessId) -> Option<u64> {
        let now_ms = self.now_ms?;
        let granted_ms = self.granted_ms.get(&process).copied().unwrap_or(0).max(self.since_ms);
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
