//! States of the m-seq at some positions of the Raft log, from which it can be read again.
//!
//! Whether a message of a Raft entry has a `Ts`, and which, depends on what was learned before, so reading from the
//! middle of the log needs the state there. Marks are denser where the log is short: when there are too many, every
//! second one is dropped and the distance doubles; when few are left of a log that has been cut, they come closer again. The log
//! can only be cut at marks, and entries behind the cut may be larger than those that made the distance.

use std::{collections::VecDeque, sync::Arc};

use carousel_engine::Ts;
use parking_lot::Mutex;

use super::{LogId, StoredMembership};
use crate::{router::mseq::MSeq, routers::Routers};

const MOST: usize = 256;

/// The state after an entry of the log.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) log_id: Option<LogId>,
    pub(super) membership: StoredMembership,
    pub(super) mseq: MSeq,
}

impl Mark {
    fn next(&self) -> u64 {
        self.log_id.map_or(0, |id| id.index + 1)
    }
}

struct Inner {
    /// The first is the snapshot (or the beginning); ascending.
    marks: VecDeque<Mark>,
    /// Entries between two marks.
    distance: u64,
    /// The state after the last entry that was applied.
    now: Mark,
    /// The mark that the next snapshot is to be made of.
    planned: Option<Mark>,
    /// How many snapshots were received. What the log had before one need not have been agreed on.
    received: u64,
}

/// See the module's head.
pub(super) struct Marks(Mutex<Inner>);

impl Marks {
    /// Begins at a snapshot, or at the beginning of all.
    pub(super) fn new(first: Mark) -> Self {
        let marks = VecDeque::from([first.clone()]);
        Marks(Mutex::new(Inner { marks, distance: 1, now: first, planned: None, received: 0 }))
    }

    /// Begins again at a snapshot that was received.
    pub(super) fn reset(&self, first: Mark) {
        let mut inner = self.0.lock();
        inner.marks = VecDeque::from([first.clone()]);
        inner.distance = 1;
        inner.now = first;
        inner.planned = None;
        inner.received += 1;
    }

    /// How often it has begun again.
    pub(super) fn received(&self) -> u64 {
        self.0.lock().received
    }

    /// The state after another entry.
    pub(super) fn advance(&self, now: Mark) {
        let mut inner = self.0.lock();
        let last = inner.marks.back().map_or(0, Mark::next);
        if now.next() >= last + inner.distance {
            inner.marks.push_back(now.clone());
        }
        if inner.marks.len() > MOST {
            let mut number = 0;
            inner.marks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            inner.distance *= 2;
        }
        inner.now = now;
    }

    /// `Ts` of the first mark: streams can begin there or later.
    pub(super) fn first(&self) -> Ts {
        self.0.lock().marks[0].mseq.ts()
    }

    /// Index of the first entry that is kept: streams do not need those before it.
    pub(super) fn begins(&self) -> u64 {
        self.0.lock().marks[0].next()
    }

    /// The state at the first mark.
    pub(super) fn first_state(&self) -> MSeq {
        self.0.lock().marks[0].mseq.clone()
    }

    /// Index after the last entry that was applied.
    pub(super) fn applied(&self) -> u64 {
        self.0.lock().now.next()
    }

    /// Who the routers are, and by which membership of the log.
    pub(super) fn routers(&self) -> (Arc<Routers>, StoredMembership) {
        let inner = self.0.lock();
        (inner.now.mseq.routers().clone(), inner.now.membership.clone())
    }

    /// The last mark at or before a `Ts`: the next index of the log and the state there, and [`Marks::received`].
    pub(super) fn before(&self, ts: Ts) -> Option<(u64, MSeq, u64)> {
        let inner = self.0.lock();
        let mark = inner.marks.iter().rev().find(|mark| mark.mseq.ts() <= ts)?;
        Some((mark.next(), mark.mseq.clone(), inner.received))
    }

    /// Plans a snapshot of the last mark at or before `ts`; false when there is none behind the first.
    pub(super) fn plan_snapshot(&self, ts: Ts) -> bool {
        let mut inner = self.0.lock();
        let planned = inner.marks.iter().skip(1).rev().find(|mark| mark.mseq.ts() <= ts).cloned();
        let found = planned.is_some();
        inner.planned = planned.or(inner.planned.take());
        found
    }

    /// The mark to make a snapshot of, and [`Marks::received`].
    pub(super) fn planned(&self) -> (Mark, u64) {
        let inner = self.0.lock();
        (inner.planned.clone().unwrap_or_else(|| inner.marks[0].clone()), inner.received)
    }

    /// A snapshot is on disk: the log before it may go, hence the marks before it must. One that was planned before another was
    /// received says nothing of the log that there is now.
    pub(super) fn snapshot_made(&self, snapshot: &Mark, planned: u64) {
        let mut inner = self.0.lock();
        if inner.received != planned {
            return;
        }
        while inner.marks.len() > 1 && inner.marks[0].next() < snapshot.next() {
            inner.marks.pop_front();
        }
        if inner.marks[0].next() > snapshot.next() {
            inner.marks.push_front(snapshot.clone());
        }
        // As if what is left were all that there has been.
        let left = inner.now.next().saturating_sub(inner.marks[0].next());
        inner.distance = inner.distance.min((left / MOST as u64).next_power_of_two());
        if inner.planned.as_ref().is_some_and(|planned| planned.next() <= snapshot.next()) {
            inner.planned = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, raft::LeaderId};

    fn mark(index: u64) -> Mark {
        let leader_id = LeaderId { term: 1, node_id: 1 };
        let mseq = MSeq::new(Config::evenly(1, 1).expect("a ring"));
        Mark { log_id: Some(LogId { leader_id, index }), membership: StoredMembership::default(), mseq }
    }

    #[test]
    fn what_comes_behind_a_long_log_can_be_cut_as_finely_as_if_there_had_been_none() {
        let marks = Marks::new(mark(0));
        (1..=100_000).for_each(|index| marks.advance(mark(index)));
        let cut = |most: u64| {
            assert!(marks.plan_snapshot(Ts::ZERO), "there is a mark behind the first");
            let (planned, received) = marks.planned();
            marks.snapshot_made(&planned, received);
            assert!(marks.applied() - marks.begins() < most, "{} entries", marks.applied() - marks.begins());
        };
        cut(1_000);
        (100_001..=100_020).for_each(|index| marks.advance(mark(index)));
        cut(1);
        // What is left keeps its marks.
        (100_021..=110_000).for_each(|index| marks.advance(mark(index)));
        let some = marks.0.lock().marks[100].clone();
        let behind = || marks.0.lock().marks.iter().filter(|mark| mark.next() <= 110_001).count();
        marks.snapshot_made(&some, 0);
        let before = behind();
        (110_001..=110_100).for_each(|index| marks.advance(mark(index)));
        assert!(behind() >= before && before > 50, "{} of {before}", behind());
    }

    #[test]
    fn a_snapshot_that_is_made_when_another_was_received_is_none_of_the_log() {
        let marks = Marks::new(mark(0));
        (1..=10).for_each(|index| marks.advance(mark(index)));
        assert!(marks.plan_snapshot(Ts::ZERO));
        let (planned, received) = marks.planned();
        marks.reset(mark(1_000));
        marks.snapshot_made(&planned, received);
        assert_eq!(marks.begins(), 1_001);
    }
}
