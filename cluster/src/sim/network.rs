//! Sessions over connections: for each pair of processes and lane, what is sent arrives in order after some delay, as
//! long as both live. While the way is blocked, or the connection is being made again, it waits; what is under way to or
//! from a process that ends is lost. When something has waited for too long the session breaks, in both directions, and
//! when the two meet again, both hear of it ([`crate::transport`]). It may take a while until a process that has started meets
//! the others. Nothing is ever repeated by the network itself.

use std::collections::{BTreeMap, VecDeque};

use crate::{message::ProcessId, network::Lane, wire::Wire};

#[derive(Debug, Default)]
struct Direction {
    queue: VecDeque<Wire>,
    last_us: u64,
}

/// One direction between two processes.
#[derive(Debug, Default)]
struct Connection {
    /// Tells what was sent before a break from what was sent after it.
    epoch: u64,
    lanes: [Direction; 2],
    blocked_since_us: Option<u64>,
    /// What is sent takes so much longer.
    slow_us: u64,
}

/// What is under way between processes.
#[derive(Debug, Default)]
pub(super) struct Network {
    connections: BTreeMap<(ProcessId, ProcessId), Connection>,
    /// Pairs of living processes that have no session, the smaller one first, and whether they have had one.
    apart: BTreeMap<(ProcessId, ProcessId), bool>,
}

fn pair(a: ProcessId, b: ProcessId) -> (ProcessId, ProcessId) {
    (a.min(b), a.max(b))
}

fn index(lane: Lane) -> usize {
    match lane {
        Lane::Control => 0,
        Lane::Data => 1,
    }
}

/// What arrives when: the key of a message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) from: ProcessId,
    pub(super) to: ProcessId,
    lane: usize,
    epoch: u64,
}

/// What happens to an arrival.
pub(super) enum Arrived {
    Wire(Wire),
    /// The way has been blocked since then.
    Blocked(u64),
    /// The connection has broken meanwhile.
    Lost,
}

impl Network {
    /// Sends; returns when it arrives at the earliest, and what to ask for then.
    pub(super) fn send(
        &mut self,
        from: ProcessId,
        to: ProcessId,
        wire: Wire,
        now_us: u64,
        delay_us: u64,
    ) -> (u64, Arrival) {
        let connection = self.connections.entry((from, to)).or_default();
        let lane = index(wire.lane());
        let direction = &mut connection.lanes[lane];
        direction.queue.push_back(wire);
        direction.last_us = (direction.last_us + 1).max(now_us + delay_us + connection.slow_us);
        (direction.last_us, Arrival { from, to, lane, epoch: connection.epoch })
    }

    /// The next message of the arrival's lane.
    pub(super) fn arrive(&mut self, arrival: Arrival) -> Arrived {
        let Some(connection) = self.connections.get_mut(&(arrival.from, arrival.to)) else {
            return Arrived::Lost;
        };
        if connection.epoch != arrival.epoch {
            return Arrived::Lost;
        }
        if let Some(since_us) = connection.blocked_since_us {
            return Arrived::Blocked(since_us);
        }
        connection.lanes[arrival.lane].queue.pop_front().map_or(Arrived::Lost, Arrived::Wire)
    }

    /// One of the two processes has ended; true when something under way is lost.
    pub(super) fn reset(&mut self, from: ProcessId, to: ProcessId) -> bool {
        let Some(connection) = self.connections.get_mut(&(from, to)) else { return false };
        connection.epoch += 1;
        let lost = connection.lanes.iter().any(|direction| !direction.queue.is_empty());
        connection.lanes.iter_mut().for_each(|direction| direction.queue.clear());
        lost
    }

    /// A living process ends: whoever meets its next life meets it for the first time.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.apart.retain(|(a, b), _| *a != process && *b != process);
    }

    /// Two living processes have not met yet.
    pub(super) fn separate(&mut self, a: ProcessId, b: ProcessId) {
        self.apart.insert(pair(a, b), false);
    }

    /// The session of two living processes breaks: what is under way is lost.
    pub(super) fn break_session(&mut self, a: ProcessId, b: ProcessId) {
        self.reset(a, b);
        self.reset(b, a);
        self.apart.insert(pair(a, b), true);
    }

    /// Whether two living processes have no session.
    pub(super) fn are_apart(&self, a: ProcessId, b: ProcessId) -> bool {
        self.apart.contains_key(&pair(a, b))
    }

    /// The pairs, or only this one, that meet now that nothing is between them, and whether they meet again.
    pub(super) fn meet(
        &mut self,
        only: Option<(ProcessId, ProcessId)>,
    ) -> Vec<((ProcessId, ProcessId), bool)> {
        let only = only.map(|(a, b)| pair(a, b));
        let mut apart = std::mem::take(&mut self.apart);
        let may_meet = |(a, b): (ProcessId, ProcessId)| {
            only.is_none_or(|only| only == (a, b)) && !self.is_blocked(a, b) && !self.is_blocked(b, a)
        };
        let together = apart.extract_if(.., |pair, _| may_meet(*pair)).collect();
        self.apart = apart;
        together
    }

    /// Blocks one direction.
    pub(super) fn block(&mut self, from: ProcessId, to: ProcessId, now_us: u64) {
        self.connections.entry((from, to)).or_default().blocked_since_us.get_or_insert(now_us);
    }

    /// Lets a direction go on.
    pub(super) fn unblock(&mut self, from: ProcessId, to: ProcessId) {
        self.connections.entry((from, to)).or_default().blocked_since_us = None;
    }

    /// Whether a direction is blocked.
    pub(super) fn is_blocked(&self, from: ProcessId, to: ProcessId) -> bool {
        self.connections.get(&(from, to)).is_some_and(|connection| connection.blocked_since_us.is_some())
    }

    /// Makes one direction slow.
    pub(super) fn slow(&mut self, from: ProcessId, to: ProcessId, slow_us: u64) {
        self.connections.entry((from, to)).or_default().slow_us = slow_us;
    }

    /// Ends all disturbances.
    pub(super) fn heal(&mut self) {
        for connection in self.connections.values_mut() {
            connection.blocked_since_us = None;
            connection.slow_us = 0;
        }
    }
}
