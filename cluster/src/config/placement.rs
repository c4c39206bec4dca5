//! The ring: which storage process stands at which identifier, and what follows from it (paper, section 6.2).
//!
//! Storage processes are indexed in the order of their identifiers. *Partition* `i` is the primary partition of the
//! process at index `i`; it is one primary range, or two when it wraps around position 0. Its holders are the
//! processes at `i, i + 1, …`: as many as the replication factor says, or all when there are fewer. Everything that
//! routing needs is found by binary search or by arithmetic on indices, so its cost grows with what a message touches
//! and not with the ring.
//!
//! A holder answers for a partition only reads at or after the `Ts` since which it holds all of it (DESIGN, decision
//! 15). Where a change joins partitions, the later `Ts` of the parts counts.

use carousel_engine::{
    Ts,
    position::{KeyRange, Position},
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::ConfigError;
use crate::message::{Incarnation, ProcessId};

/// A storage process at its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) identifier: Position,
    pub(super) process: ProcessId,
    /// The last incarnation that is known to have joined; 0 for a process of the first config.
    pub(super) incarnation: Incarnation,
    /// Whether that incarnation is suspected: its rows are lost here.
    pub(super) suspected: bool,
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(super) struct Placement {
    replication: u32,
    /// In the order of their identifiers.
    nodes: Vec<Node>,
    /// For each partition and each of its holders, in order: since when it holds the partition.
    since: Vec<Ts>,
    /// Derived: primary ranges in ascending order, with their partitions.
    primary: Vec<(KeyRange, usize)>,
    /// Derived: processes in the order of their ids, with their indices.
    indices: Vec<(ProcessId, usize)>,
}

/// Primary ranges or parts of them, with their partitions. Most messages touch one.
pub(super) type Touched = SmallVec<[(KeyRange, usize); 1]>;

/// A piece of the ring that lies in one partition before a change and in one after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) range: KeyRange,
    pub(super) old: usize,
    pub(super) new: usize,
}

impl Placement {
    /// A ring whose processes hold their partitions from the beginning.
    pub(super) fn new(mut nodes: Vec<Node>, replication: u32) -> Result<Placement, ConfigError> {
        nodes.sort_unstable_by_key(|node| node.identifier);
        let held = nodes.len() * (replication as usize).min(nodes.len());
        Placement::build(nodes, replication, vec![Ts::ZERO; held])
    }

    fn build(nodes: Vec<Node>, replication: u32, since: Vec<Ts>) -> Result<Placement, ConfigError> {
        if nodes.is_empty() {
            return Err(ConfigError::Empty);
        }
        if replication == 0 {
            return Err(ConfigError::Replication { factor: 0, processes: nodes.len() });
        }
        let mut indices: Vec<_> = nodes.iter().enumerate().map(|(i, node)| (node.process, i)).collect();
        indices.sort_unstable();
        let ascending = nodes.windows(2).all(|pair| pair[0].identifier < pair[1].identifier);
        if !ascending || indices.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(ConfigError::Duplicate);
        }
        let mut primary = Vec::with_capacity(nodes.len() + 1);
        if nodes[0].identifier > 0 {
            primary.push((KeyRange::new(0, nodes[0].identifier - 1), nodes.len() - 1));
        }
        for (index, node) in nodes.iter().enumerate() {
            let last = nodes.get(index + 1).map_or(Position::MAX, |next| next.identifier - 1);
            primary.push((KeyRange::new(node.identifier, last), index));
        }
        Ok(Placement { replication, nodes, since, primary, indices })
    }

    /// Replication factor `f`.
    pub(super) fn replication(&self) -> u32 {
        self.replication
    }

    /// How many holders a partition has.
    pub(super) fn reach(&self) -> usize {
        (self.replication as usize).min(self.nodes.len())
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn primary(&self) -> &[(KeyRange, usize)] {
        &self.primary
    }

    pub(super) fn node(&self, process: ProcessId) -> Option<&Node> {
        self.index(process).map(|index| &self.nodes[index])
    }

    pub(super) fn index(&self, process: ProcessId) -> Option<usize> {
        let found = self.indices.binary_search_by_key(&process, |(process, _)| *process);
        found.ok().map(|i| self.indices[i].1)
    }

    /// The holder of a partition that is `replica` steps behind its primary.
    pub(super) fn holder(&self, partition: usize, replica: usize) -> &Node {
        &self.nodes[(partition + replica) % self.nodes.len()]
    }

    /// The holders of a partition, its primary first.
    pub(super) fn holders(&self, partition: usize) -> impl Iterator<Item = &Node> {
        (0..self.reach()).map(move |replica| self.holder(partition, replica))
    }

    /// Which replica of a partition the process at an index is, if it holds it.
    pub(super) fn replica(&self, partition: usize, index: usize) -> Option<usize> {
        let replica = (index + self.nodes.len() - partition) % self.nodes.len();
        (replica < self.reach()).then_some(replica)
    }

    /// Since when a holder holds all of a partition.
    pub(super) fn since(&self, partition: usize, replica: usize) -> Ts {
        self.since[partition * self.reach() + replica]
    }

    /// The primary range that contains a position, as an index into [`Placement::primary`].
    pub(super) fn primary_at(&self, position: Position) -> usize {
        self.primary.partition_point(|(range, _)| range.first <= position) - 1
    }

    /// The primary ranges of a partition.
    pub(super) fn ranges(&self, partition: usize) -> impl Iterator<Item = KeyRange> {
        let wraps = self.primary.len() - self.nodes.len();
        let main = self.primary[partition + wraps].0;
        let wrapped = (wraps > 0 && partition == self.nodes.len() - 1).then(|| self.primary[0].0);
        wrapped.into_iter().chain([main])
    }

    /// The primary ranges that a process holds, ascending.
    pub(super) fn held(&self, process: ProcessId) -> Vec<KeyRange> {
        let Some(index) = self.index(process) else { return Vec::new() };
        let size = self.nodes.len();
        let partitions = (0..self.reach()).map(|back| (index + size - back) % size);
        let mut held: Vec<KeyRange> = partitions.flat_map(|partition| self.ranges(partition)).collect();
        held.sort_unstable();
        held
    }

    /// The primary ranges that overlap any of `ranges`, ascending, with their partitions.
    pub(super) fn touched(&self, ranges: &[KeyRange]) -> Touched {
        let mut touched = Touched::new();
        for range in ranges {
            let from = self.primary_at(range.first);
            let overlapping = self.primary[from..].iter().take_while(|(primary, _)| primary.overlaps(range));
            touched.extend(overlapping.copied());
        }
        if ranges.len() > 1 {
            touched.sort_unstable();
            touched.dedup();
        }
        touched
    }

    /// The pieces into which the partitions of this ring and of another one cut each other, ascending.
    pub(super) fn pieces<'a>(&'a self, new: &'a Placement) -> impl Iterator<Item = Piece> + 'a {
        let (mut i, mut j) = (0, 0);
        std::iter::from_fn(move || {
            let ((a, old), (b, new)) = (*self.primary.get(i)?, *new.primary.get(j)?);
            let range = KeyRange::new(a.first.max(b.first), a.last.min(b.last));
            i += usize::from(a.last == range.last);
            j += usize::from(b.last == range.last);
            Some(Piece { range, old, new })
        })
    }

    /// Whether a process has held a partition in the life in which it stands on another ring.
    pub(super) fn held_by(&self, partition: usize, node: &Node) -> Option<usize> {
        let index = self.index(node.process)?;
        (self.nodes[index].incarnation == node.incarnation).then_some(())?;
        self.replica(partition, index)
    }

    /// The ring with other processes or identifiers from `ts` on, since when a process holds what is new to it.
    pub(super) fn changed(&self, mut nodes: Vec<Node>, ts: Ts) -> Result<Placement, ConfigError> {
        nodes.sort_unstable_by_key(|node| node.identifier);
        let reach = (self.replication as usize).min(nodes.len());
        let since = vec![Ts::ZERO; nodes.len() * reach];
        let mut new = Placement::build(nodes, self.replication, since)?;
        for piece in self.pieces(&new).collect::<Vec<_>>() {
            for replica in 0..reach {
                let node = new.holder(piece.new, replica);
                let held = self.held_by(piece.old, node);
                let since = held.map_or(ts, |replica| self.since(piece.old, replica));
                let known = &mut new.since[piece.new * reach + replica];
                *known = (*known).max(since);
            }
        }
        Ok(new)
    }

    /// A process holds what it holds of a range as new.
    pub(super) fn begin_anew(&mut self, process: ProcessId, range: KeyRange, ts: Ts) {
        let Some(index) = self.index(process) else { return };
        for (_, partition) in self.touched(&[range]) {
            if let Some(replica) = self.replica(partition, index) {
                let since = partition * self.reach() + replica;
                self.since[since] = ts;
            }
        }
    }

    /// Suspects the process at an index.
    pub(super) fn suspect(&mut self, index: usize) {
        self.nodes[index].suspected = true;
    }

    /// Whether a partition has a live holder.
    pub(super) fn is_live(&self, partition: usize) -> bool {
        self.holders(partition).any(|node| !node.suspected)
    }

    /// A primary range without a live holder of which some part has one in the placement before.
    pub(super) fn orphan_of(&self, before: &Placement) -> Option<KeyRange> {
        let had_holder =
            |range| before.touched(&[range]).iter().any(|(_, partition)| before.is_live(*partition));
        let mut dead = self.primary().iter().filter(|(_, partition)| !self.is_live(*partition));
        dead.find(|(range, _)| had_holder(*range)).map(|(range, _)| *range)
    }

    /// Records a later incarnation of the process at an index.
    pub(super) fn restart(&mut self, index: usize, incarnation: Incarnation) {
        self.nodes[index].incarnation = incarnation;
    }
}

/// What of a placement is written down.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    replication: u32,
    nodes: Vec<Node>,
    since: Vec<Ts>,
}

impl From<Placement> for Stored {
    fn from(placement: Placement) -> Stored {
        Stored { replication: placement.replication, nodes: placement.nodes, since: placement.since }
    }
}

impl TryFrom<Stored> for Placement {
    type Error = ConfigError;

    fn try_from(stored: Stored) -> Result<Placement, ConfigError> {
        let held = stored.nodes.len() * (stored.replication as usize).min(stored.nodes.len());
        if stored.since.len() != held {
            return Err(ConfigError::Duplicate);
        }
        Placement::build(stored.nodes, stored.replication, stored.since)
    }
}
