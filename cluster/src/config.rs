//! Rubberband's Config module: who holds what, and where a message goes (paper, sections 6.2 and 6.3, Algorithm 3).
//!
//! Storage processes stand on a ring at their identifiers. The keys from one identifier up to the next are the
//! *primary range* of the process at the former, and its `f - 1` successors hold replicas (successor replication):
//!
//! ```text
//!   identifier    0         1/4        1/2        3/4
//!   process       s1        s2         s3         s4
//!   range         |--- a ---|--- b ---|--- c ---|--- d ---|     f = 2
//!   holders          s1 s2     s2 s3     s3 s4     s4 s1
//! ```
//!
//! A write goes to every holder of every primary range that it overlaps, a read to a smallest possible set of
//! processes that together hold all of them (ROWA). All functions are pure: routers that learned the same m-seq
//! compute the same destinations.
//!
//! Where this departs from Algorithm 3: destinations come with the primary ranges they act on, because replication,
//! voting and counting are by primary range (DESIGN, decision 3); and a process is named as suspected, rather than
//! forgotten, so that a range without a live replica can be recognised.

use std::collections::{BTreeMap, BTreeSet};

use carousel_engine::{
    Ts,
    position::{KeyRange, Position},
};
use serde::{Deserialize, Serialize};

use crate::message::{Body, Message, ProcessId, ProcessKind};

/// One version of the routing state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    version: u64,
    replication: u32,
    /// Storage processes in the order of their identifiers.
    ring: Vec<(Position, ProcessId)>,
    clients: BTreeSet<ProcessId>,
    supers: BTreeSet<ProcessId>,
    suspected: BTreeSet<ProcessId>,
    /// Derived from the ring: primary ranges in ascending order with the index in `ring` of their primary.
    primary: Vec<(KeyRange, usize)>,
}

/// What is wrong with a description of a ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There must be a storage process.
    #[error("a ring needs at least one storage process")]
    Empty,
    /// The replication factor must lie between 1 and the number of storage processes.
    #[error("replication factor {factor} with {processes} storage processes")]
    Replication {
        /// What was asked.
        factor: u32,
        /// Storage processes on the ring.
        processes: usize,
    },
    /// Two processes at one identifier, or one process at two.
    #[error("identifiers and processes on the ring must be distinct")]
    Duplicate,
}

impl Config {
    /// The first config: `processes` storage processes `s1`, `s2`, … at evenly spaced identifiers beginning with 0.
    pub fn evenly(processes: u32, replication: u32) -> Result<Self, ConfigError> {
        let ring = (0..processes).map(|i| {
            let identifier = (u128::from(i) << 64) / u128::from(processes);
            (identifier as Position, ProcessId::storage(i + 1))
        });
        Self::new(ring, replication)
    }

    /// The first config, with the given identifiers.
    pub fn new(
        ring: impl IntoIterator<Item = (Position, ProcessId)>,
        replication: u32,
    ) -> Result<Self, ConfigError> {
        let mut ring: Vec<_> = ring.into_iter().collect();
        ring.sort_unstable();
        if ring.is_empty() {
            return Err(ConfigError::Empty);
        }
        let processes: BTreeSet<_> = ring.iter().map(|(_, process)| process).collect();
        if processes.len() != ring.len() || ring.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(ConfigError::Duplicate);
        }
        if replication == 0 || replication as usize > ring.len() {
            return Err(ConfigError::Replication { factor: replication, processes: ring.len() });
        }
        let primary = primary_ranges(&ring);
        Ok(Config {
            version: 1,
            replication,
            ring,
            clients: BTreeSet::new(),
            supers: BTreeSet::new(),
            suspected: BTreeSet::new(),
            primary,
        })
    }

    /// Counts changes of the placement or of the suspected processes. Clients come and go without a new version, for
    /// nothing that was planned depends on them.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replication factor `f`.
    pub fn replication(&self) -> u32 {
        self.replication
    }

    /// Storage processes in the order of their identifiers.
    pub fn storage_processes(&self) -> impl ExactSizeIterator<Item = ProcessId> {
        self.ring.iter().map(|(_, process)| *process)
    }

    /// Client processes.
    pub fn clients(&self) -> impl ExactSizeIterator<Item = ProcessId> {
        self.clients.iter().copied()
    }

    /// Whether the process is part of the system.
    pub fn contains(&self, process: ProcessId) -> bool {
        match process.kind {
            ProcessKind::Storage => self.ring.iter().any(|(_, p)| *p == process),
            ProcessKind::Client => self.clients.contains(&process),
            ProcessKind::Super => self.supers.contains(&process),
            ProcessKind::Router => false,
        }
    }

    /// Whether the process is suspected of having failed.
    pub fn is_suspected(&self, process: ProcessId) -> bool {
        self.suspected.contains(&process)
    }

    /// The primary ranges, ascending; together the whole ring.
    pub fn primary_ranges(&self) -> impl ExactSizeIterator<Item = KeyRange> {
        self.primary.iter().map(|(range, _)| *range)
    }

    /// The primary range that contains a position.
    pub fn range_of(&self, position: Position) -> KeyRange {
        let after = self.primary.partition_point(|(range, _)| range.first <= position);
        self.primary[after - 1].0
    }

    /// The processes that hold a primary range, its primary first; empty when it is no primary range.
    pub fn holders(&self, range: KeyRange) -> Vec<ProcessId> {
        match self.primary.binary_search_by_key(&range, |(range, _)| *range) {
            Ok(i) => self.replicas(self.primary[i].1).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// The primary ranges that a process holds, ascending.
    pub fn held(&self, process: ProcessId) -> Vec<KeyRange> {
        let holds = |index: usize| self.replicas(index).any(|p| p == process);
        self.primary.iter().filter(|(_, index)| holds(*index)).map(|(range, _)| *range).collect()
    }

    /// The config after a message, if the message changes it. No message of the present set does: keyspace and
    /// membership messages of storage processes will.
    pub fn apply(&self, message: &Message, _ts: Ts) -> Option<Config> {
        match message.body {
            Body::Data(_) | Body::Ddl(_) | Body::Pin { .. } | Body::Checkpoint => None,
        }
    }

    /// The config with a client process joined, if it was not part of the system.
    pub fn with_client(&self, client: ProcessId) -> Option<Config> {
        assert_eq!(client.kind, ProcessKind::Client, "{client} joins as a client");
        (!self.clients.contains(&client)).then(|| {
            let mut config = self.clone();
            config.clients.insert(client);
            config
        })
    }

    /// The config with a client process parted, if it was part of the system.
    pub fn without_client(&self, client: ProcessId) -> Option<Config> {
        self.clients.contains(&client).then(|| {
            let mut config = self.clone();
            config.clients.remove(&client);
            config
        })
    }

    /// The processes that a message declares as failed. No message of the present set does.
    pub fn suspects(&self, message: &Message) -> Vec<ProcessId> {
        match message.body {
            Body::Data(_) | Body::Ddl(_) | Body::Pin { .. } | Body::Checkpoint => Vec::new(),
        }
    }

    /// The destination set: each process with the primary ranges it acts on (none for a client), in the order of
    /// their ids. A suspected process is not a destination; a range all of whose holders are suspected has none.
    pub fn destset(&self, message: &Message) -> Vec<(ProcessId, Vec<KeyRange>)> {
        if self.is_suspected(message.id.submitter) {
            return Vec::new();
        }
        let mut destinations: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        let write_all = |destinations: &mut BTreeMap<ProcessId, Vec<KeyRange>>,
                         touched: &[(KeyRange, usize)]| {
            for (range, index) in touched {
                for process in self.replicas(*index).filter(|p| !self.is_suspected(*p)) {
                    destinations.entry(process).or_default().push(*range);
                }
            }
        };
        match &message.body {
            Body::Data(data) => {
                let touched = self.touched(&message.ranges);
                if data.operation.kind.is_write() {
                    write_all(&mut destinations, &touched);
                } else {
                    self.read_one(data.replica_offset, &touched, &mut destinations);
                }
            }
            Body::Pin { .. } | Body::Checkpoint => write_all(&mut destinations, &self.primary),
            Body::Ddl(_) => {
                write_all(&mut destinations, &self.primary);
                let followers = self.clients.iter().chain(&self.supers);
                destinations.extend(followers.filter(|p| !self.is_suspected(**p)).map(|p| (*p, Vec::new())));
            }
        }
        destinations.into_iter().collect()
    }

    /// The process at `index` of the ring and its successors.
    fn replicas(&self, index: usize) -> impl Iterator<Item = ProcessId> {
        (0..self.replication as usize).map(move |offset| self.ring[(index + offset) % self.ring.len()].1)
    }

    /// The primary ranges that overlap any of `ranges`.
    fn touched(&self, ranges: &[KeyRange]) -> Vec<(KeyRange, usize)> {
        let mut touched = Vec::new();
        for range in ranges {
            let from = self.primary.partition_point(|(primary, _)| primary.last < range.first);
            let overlapping = self.primary[from..].iter().take_while(|(primary, _)| primary.overlaps(range));
            touched.extend(overlapping.copied());
        }
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Adds a smallest set of processes that together hold `touched`, each range answered by one of them.
    ///
    /// On the circle of primary partitions, the process at ring index `i` holds the arc of the `f` partitions that
    /// end at `i`. Covering the touched partitions with the fewest arcs is greedy once it is known where some arc
    /// begins: from the first partition not yet covered, take the arc that reaches farthest. Some arc covers the
    /// partition chosen as anchor, and begins at one of the `f` partitions up to it, so those beginnings are tried.
    /// The replica offset picks the anchor, and at every step the preferred arc among those that keep the number
    /// minimal; so a point read with offset `o` goes to replica `o mod f`, and large reads spread evenly.
    fn read_one(
        &self,
        offset: u32,
        touched: &[(KeyRange, usize)],
        destinations: &mut BTreeMap<ProcessId, Vec<KeyRange>>,
    ) {
        let size = self.ring.len();
        let reach = self.replication as usize;
        let mut partitions: Vec<usize> = touched.iter().map(|(_, index)| *index).collect();
        partitions.sort_unstable();
        partitions.dedup();
        // A partition without a live replica cannot be answered.
        partitions.retain(|index| self.replicas(*index).any(|p| !self.is_suspected(p)));
        let Some(anchor) = partitions.get(offset as usize % partitions.len().max(1)).copied() else { return };
        let start =
            partitions.iter().position(|p| *p == anchor).expect("the anchor is one of the partitions");

        let mut best: Option<Vec<(usize, usize)>> = None;
        for back in 0..partitions.len().min(reach) {
            let first = partitions[(start + partitions.len() - back) % partitions.len()];
            if (anchor + size - first) % size >= reach {
                break;
            }
            // Partitions by their distance from where the first arc begins.
            let mut distances: Vec<usize> = partitions.iter().map(|p| (p + size - first) % size).collect();
            distances.sort_unstable();
            let arcs = self.cover(offset as usize, first, &distances);
            if best.as_ref().is_none_or(|best| arcs.len() < best.len()) {
                best = Some(arcs);
            }
        }
        let mut answering: BTreeMap<usize, ProcessId> = BTreeMap::new();
        for (partition, arc) in best.into_iter().flatten() {
            // The arc covers from `partition` up to its own process.
            let covered = (arc + size - partition) % size;
            for p in partitions.iter().filter(|p| (**p + size - partition) % size <= covered) {
                answering.entry(*p).or_insert(self.ring[arc].1);
            }
        }
        for (range, index) in touched {
            if let Some(process) = answering.get(index) {
                destinations.entry(*process).or_default().push(*range);
            }
        }
    }

    /// Covers the partitions at the given ascending distances from `first`; returns for each arc the first partition
    /// that it covers and the ring index of its process.
    fn cover(&self, offset: usize, first: usize, distances: &[usize]) -> Vec<(usize, usize)> {
        let size = self.ring.len();
        let reach = self.replication as usize;
        let live = |distance: usize, replica: usize| {
            !self.is_suspected(self.ring[(first + distance + replica) % size].1)
        };
        let after = |i: usize, replica: usize| {
            let last = distances[i] + replica;
            i + distances[i..].partition_point(|d| *d <= last)
        };
        // How many arcs the partitions from the i-th on need.
        let mut needed = vec![0; distances.len() + 1];
        for i in (0..distances.len()).rev() {
            let farthest = (0..reach).rev().find(|replica| live(distances[i], *replica));
            needed[i] = 1 + needed[after(i, farthest.expect("every partition here has a live replica"))];
        }
        let mut arcs = Vec::new();
        let mut i = 0;
        while i < distances.len() {
            let replica = (0..reach)
                .map(|r| (offset + r) % reach)
                .find(|r| live(distances[i], *r) && 1 + needed[after(i, *r)] == needed[i])
                .expect("the farthest arc keeps the number minimal");
            let partition = (first + distances[i]) % size;
            arcs.push((partition, (partition + replica) % size));
            i = after(i, replica);
        }
        arcs
    }
}

/// Primary ranges of a ring, ascending. The partition that wraps around position 0 becomes two ranges.
fn primary_ranges(ring: &[(Position, ProcessId)]) -> Vec<(KeyRange, usize)> {
    let mut ranges = Vec::with_capacity(ring.len() + 1);
    if ring[0].0 > 0 {
        ranges.push((KeyRange::new(0, ring[0].0 - 1), ring.len() - 1));
    }
    for (index, (identifier, _)) in ring.iter().enumerate() {
        let last = ring.get(index + 1).map_or(Position::MAX, |(next, _)| next - 1);
        ranges.push((KeyRange::new(*identifier, last), index));
    }
    ranges
}
