//! What waits for rows that are being received, while what is ordered behind it goes on with the rows that are there.
//!
//! ```text
//!                 ranges that are there        ranges that are being received
//!   keyspace  ──▶ shards change their ranges   parts are asked for
//!   write     ──▶ executed, answered           ┐
//!   read      ──▶ executed, answered           │ wait
//!   write     ──▶ executed, answered           ┘
//!                                              all parts are there ──▶ executed, answered, in their order
//! ```
//!
//! A write is executed in two parts, each with a time of its own; the ranges of each answer and vote for themselves. A read
//! of a range that is not there waits as a whole. Where a part of a primary range is received, operations name the parts
//! ([`Config::overlapping`](crate::config::Config::overlapping)). What changes the tables or the key ranges, and INSERTs of
//! staged rows, wait for their turn with everything behind them.

use std::collections::VecDeque;

use carousel_engine::{Few, Ts, operation::OrderedOperation, position::KeyRange};

use super::{AnswerPart, Core, global, local, rows_lost, supplies::staged_insert};
use crate::{config::Configuration, message::Body, wire::Delivery};

/// Operations that may wait, and about how many bytes their messages may have.
const WAITING: usize = 1 << 14;
const WAITING_BYTES: usize = 256 << 20;
/// The bit that tells the time of what has waited from that of what has not.
const LATE: u64 = 1 << 16;
/// The bit of times after those of what has waited and belongs to the same message.
const AFTER: u64 = 1 << 17;

/// The time of the part of an operation that has to wait, if `time` is that of the one that has not.
pub(super) fn late(time: Ts) -> Ts {
    Ts(time.0 | LATE)
}

/// The time of the part of an operation that need not wait.
pub(super) fn in_time(time: Ts) -> Ts {
    Ts(time.0 & !LATE)
}

/// Operations that wait for ranges.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Ranges that are not there, or on which something has waited that has not been given to the shards.
    ranges: Vec<KeyRange>,
    /// In the order of their times.
    waiting: VecDeque<OrderedOperation>,
    /// Of the messages of all that have waited since there was none.
    bytes: usize,
    /// Those that wait, and those that have waited and have not ended.
    open: usize,
}

impl Late {
    /// Whether what is ordered now may have to wait.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// From here on operations wait for these ranges.
    pub(super) fn begin(&mut self, ranges: Vec<KeyRange>) {
        assert!(self.waiting.is_empty(), "something waits for an earlier change");
        self.ranges = ranges;
    }

    fn is_late(&self, range: &KeyRange) -> bool {
        self.ranges.iter().any(|late| late.overlaps(range))
    }

    /// What of an operation goes on and what waits.
    pub(super) fn split(&self, ranges: &Few<KeyRange>, is_write: bool) -> (Few<KeyRange>, Few<KeyRange>) {
        if self.ranges.is_empty() {
            return (ranges.clone(), Few::default());
        }
        if !is_write && ranges.iter().any(|range| self.is_late(range)) {
            return (Few::default(), ranges.clone());
        }
        ranges.iter().copied().partition(|range| !self.is_late(range))
    }

    /// An operation waits for its ranges; its message has about so many bytes.
    pub(super) fn push(&mut self, operation: OrderedOperation, bytes: usize) {
        self.bytes += bytes;
        self.waiting.push_back(OrderedOperation { late: true, ..operation });
        self.open += 1;
    }

    /// An operation has ended.
    pub(super) fn end(&mut self, time: Ts) {
        if late(time) == time {
            self.open -= 1;
        }
    }

    /// The times of those that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Ts> {
        self.waiting.iter().map(|operation| operation.ts)
    }

    /// Nobody wants the answer of an operation any more; whether it was still waiting.
    pub(super) fn cancel(&mut self, time: Ts) -> bool {
        let waiting = self.waiting.binary_search_by_key(&time, |operation| operation.ts);
        let cancelled = waiting.ok().and_then(|index| self.waiting.remove(index));
        self.open -= usize::from(cancelled.is_some());
        cancelled.is_some()
    }

    /// An operation waits for these ranges only.
    fn wait_for(&mut self, time: Ts, ranges: Few<KeyRange>) {
        if let Ok(index) = self.waiting.binary_search_by_key(&time, |operation| operation.ts) {
            self.waiting[index].ranges = ranges;
        }
    }

    fn may_be_overtaken_by(&self, delivery: &Delivery) -> bool {
        let may = match &delivery.message.body {
            Body::Data(_) => staged_insert(delivery).is_none(),
            Body::Pin { .. } | Body::Checkpoint => true,
            Body::Configuration(Configuration::Keyspace(_)) | Body::Ddl(_) => false,
            Body::Configuration(_) => true,
        };
        may && self.waiting.len() < WAITING && self.bytes < WAITING_BYTES
    }
}

impl Core {
    /// Whether the next delivery can be given to the shards.
    pub(super) fn may_go_on(&self) -> bool {
        // A read that waits for its reader does no work. What has waited counts by itself: others wait for its votes.
        let others = self.running.len().saturating_sub(self.stalled.len() + self.late.open);
        others < self.options.running
            && !self.gives_up_its_data()
            && !self.moving.is_changing()
            && (self.late.is_empty()
                || self.pending.front().is_some_and(|next| {
                    self.late.may_be_overtaken_by(next) && !self.takes_rows_away(next.ts)
                }))
    }

    /// What waits for rows that are lost ends without them; how others have executed it nobody knows here.
    pub(super) fn lose_late(&mut self) {
        for time in self.late.waiting().collect::<Vec<_>>() {
            let ts = global(time);
            let Some(running) = self.running.get_mut(&time) else { continue };
            let ranges: Few<KeyRange> = running.outcomes.iter().map(|(range, _)| *range).collect();
            let (is_write, answer) = (running.is_write, running.answer);
            let Some((lost, left)) = self.moving.split_lost(ts, &ranges, is_write) else { continue };
            running.outcomes.retain(|(range, _)| left.contains(range));
            if left.is_empty() {
                self.late.cancel(time);
                self.running.remove(&time);
                self.writes.remove(&time);
            } else {
                self.late.wait_for(time, left);
            }
            let more = self.parts(time).next().is_some();
            if !more {
                self.forget_nowhere(ts);
            }
            if let Some(id) = answer {
                if !more {
                    self.by_message.remove(&id);
                }
                self.answer(id, ts, AnswerPart::Done { outcomes: rows_lost(&lost, is_write), more });
            }
        }
    }

    /// Gives what has waited to the shards when everything is there.
    pub(super) fn submit_late(&mut self) {
        if self.late.is_empty() || self.moving.is_waiting() || self.gives_up_its_data() {
            return;
        }
        let stalled = self.stalled.iter().filter(|time| late(**time) == **time).count();
        while self.late.open - self.late.waiting.len() - stalled < self.options.running
            && let Some(operation) = self.late.waiting.pop_front()
        {
            let after = Ts(local(global(operation.ts)).0 | AFTER);
            self.submitted = self.submitted.max(after);
            self.submit_at_its_time(operation);
        }
        if self.late.waiting.is_empty() {
            self.late.ranges.clear();
            self.late.bytes = 0;
            self.late_is_submitted();
        }
    }
}
