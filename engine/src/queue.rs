//! Operations that wait for the decision about one row.

use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

use crate::operation::Ts;

/// What an operation still has to do with a row that waits for a decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deferred {
    /// Look at the row, as the scan would have done.
    pub(crate) visit: bool,
    /// Insert these rows of the operation's batch, in this order.
    pub(crate) inserts: VecDeque<u32>,
    /// Whether the operation writes.
    pub(crate) writes: bool,
    /// The columns in which the row that it leaves may differ from the row that it waits for, as [`bit`](crate::riders::bit)s.
    pub(crate) assigned: u64,
}

impl Deferred {
    /// What is to be done with the row that it waits for now, too.
    fn join(&mut self, other: Deferred) {
        self.visit |= other.visit;
        self.writes |= other.writes;
        self.assigned |= other.assigned;
        self.inserts.extend(other.inserts);
    }
}

/// Who wait for a row for the same reason: when one of them has to wait again, all behind it come to the same row and wait there.
/// To ask each of them after each decision would take a time that grows with the square of how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// They look at the row.
    Visits,
    /// They have rows to insert with its key (which no write changes).
    Inserts,
}

const LANES: [Lane; 2] = [Lane::Visits, Lane::Inserts];

/// Operations in line: first the prefix that one sees, which is that before itself unless it reads an older one; then its own
/// `Ts`. Whoever is behind sees no less. (A read may go before a write that it does not see.)
pub(crate) type Place = (Ts, Ts);

/// Operations that wait for one row, in their lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    lanes: [BTreeMap<Place, Deferred>; LANES.len()],
    /// What those assign who have waited here.
    assigned: u64,
}

impl Queue {
    /// Makes an operation wait. Returns whether it did not wait here yet.
    pub(crate) fn push(&mut self, lane: Lane, place: Place, deferred: Deferred) -> bool {
        self.assigned |= deferred.assigned;
        match self.lanes[lane as usize].entry(place) {
            Entry::Vacant(free) => {
                free.insert(deferred);
                true
            }
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().join(deferred);
                false
            }
        }
    }

    /// The next operation, whatever its lane.
    pub(crate) fn pop(&mut self) -> Option<(Lane, Place, Deferred)> {
        let first = |lane: Lane| self.lanes[lane as usize].first_key_value().map(|(place, _)| (*place, lane));
        let (_, lane) = LANES.into_iter().filter_map(first).min_by_key(|(place, _)| *place)?;
        self.lanes[lane as usize].pop_first().map(|(place, deferred)| (lane, place, deferred))
    }

    /// Takes over everybody in a lane of another queue. Returns the `Ts` of those that have been waiting here, too.
    pub(crate) fn take_over(&mut self, lane: Lane, other: &mut Queue) -> Vec<Ts> {
        self.assigned |= other.assigned;
        let (here, there) = (&mut self.lanes[lane as usize], &mut other.lanes[lane as usize]);
        if here.len() < there.len() {
            std::mem::swap(here, there);
        }
        let waiting = std::mem::take(there).into_iter();
        waiting
            .filter_map(|(place, deferred)| (!self.push(lane, place, deferred)).then_some(place.1))
            .collect()
    }

    /// Whether a write waits that is before this time.
    pub(crate) fn has_write_before(&self, ts: Ts) -> bool {
        self.lanes.iter().any(|lane| lane.range(..(ts, Ts::ZERO)).any(|(_, deferred)| deferred.writes))
    }
}

/// The queues of a segment, by the oldest version that is in doubt.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_root: BTreeMap<u32, Queue>,
    /// What those assign who wait, or have waited since nobody did.
    assigned: u64,
}

impl Queues {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_root.is_empty()
    }

    pub(crate) fn contains(&self, root: u32) -> bool {
        self.by_root.contains_key(&root)
    }

    /// Whether those who wait may change what a row has in one of these columns.
    pub(crate) fn may_change(&self, columns: u64) -> bool {
        self.assigned & columns != 0
    }

    /// The rows of which somebody who waits before this time may change what they have in one of these columns.
    pub(crate) fn changing(&self, columns: u64, before: Ts) -> impl Iterator<Item = u32> {
        let queues = self.by_root.iter().take(if self.may_change(columns) { usize::MAX } else { 0 });
        queues
            .filter(move |(_, queue)| queue.assigned & columns != 0 && queue.has_write_before(before))
            .map(|(root, _)| *root)
    }

    /// Makes an operation wait for a row. Returns whether it did not wait there yet.
    pub(crate) fn push(&mut self, root: u32, lane: Lane, place: Place, deferred: Deferred) -> bool {
        self.assigned |= deferred.assigned;
        self.by_root.entry(root).or_default().push(lane, place, deferred)
    }

    /// Makes everybody in a lane of another queue wait for a row, too, see [`Queue::take_over`].
    pub(crate) fn take_over(&mut self, root: u32, lane: Lane, other: &mut Queue) -> Vec<Ts> {
        self.assigned |= other.assigned;
        self.by_root.entry(root).or_default().take_over(lane, other)
    }

    /// Takes out those who wait for a row.
    pub(crate) fn remove(&mut self, root: u32) -> Option<Queue> {
        let removed = self.by_root.remove(&root);
        if self.is_empty() {
            self.assigned = 0;
        }
        removed
    }

    /// Adds those who wait for a row that nobody waits for here.
    pub(crate) fn insert(&mut self, root: u32, queue: Queue) {
        self.assigned |= queue.assigned;
        self.by_root.insert(root, queue);
    }

    /// All queues, with the rows.
    pub(crate) fn into_all(self) -> impl Iterator<Item = (u32, Queue)> {
        self.by_root.into_iter()
    }
}
