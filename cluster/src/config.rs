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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::router::testing::{read_ranges, write};

    const CLIENT: ProcessId = ProcessId::client(1);

    /// A ring with irregular identifiers, some suspected processes, and ranges to read or write.
    fn scenario() -> impl Strategy<Value = (Config, Vec<KeyRange>, u32)> {
        let ring = proptest::collection::btree_set(any::<u64>(), 1..8);
        (
            ring,
            any::<bool>(),
            1u32..5,
            any::<u8>(),
            proptest::collection::btree_set(any::<u64>(), 1..9),
            0u32..20,
        )
            .prop_map(|(mut ring, zero, replication, suspected, bounds, offset)| {
                if zero {
                    ring.insert(0);
                }
                let replication = replication.min(ring.len() as u32);
                let ring = ring.into_iter().zip(1..).map(|(id, number)| (id, ProcessId::storage(number)));
                let mut config = Config::new(ring, replication).expect("a valid ring");
                let failed =
                    config.storage_processes().enumerate().filter(|(i, _)| suspected >> i & 0b101 == 0b101);
                config.suspected = failed.map(|(_, process)| process).collect();
                let bounds: Vec<u64> = bounds.into_iter().collect();
                let ranges =
                    bounds.chunks(2).map(|c| KeyRange::new(c[0], *c.last().expect("not empty"))).collect();
                (config, ranges, offset)
            })
    }

    fn live_holders(config: &Config, range: KeyRange) -> BTreeSet<ProcessId> {
        config.holders(range).into_iter().filter(|p| !config.is_suspected(*p)).collect()
    }

    fn touched(config: &Config, ranges: &[KeyRange]) -> Vec<KeyRange> {
        config.primary_ranges().filter(|primary| ranges.iter().any(|range| primary.overlaps(range))).collect()
    }

    proptest! {
        #[test]
        fn primary_ranges_tile_the_ring((config, _, _) in scenario()) {
            let ranges: Vec<_> = config.primary_ranges().collect();
            prop_assert_eq!(ranges[0].first, 0);
            prop_assert_eq!(ranges[ranges.len() - 1].last, u64::MAX);
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].last + 1, pair[1].first);
            }
            for range in ranges {
                let holders = config.holders(range);
                prop_assert_eq!(holders.len(), config.replication() as usize);
                prop_assert_eq!(config.range_of(range.last), range);
                for process in config.storage_processes() {
                    prop_assert_eq!(holders.contains(&process), config.held(process).contains(&range));
                }
            }
        }

        #[test]
        fn writes_go_to_all_holders((config, ranges, _) in scenario()) {
            let mut message = write(CLIENT, 1, 1, KeyRange::FULL);
            message.ranges = ranges.clone();
            let mut expected: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
            for range in touched(&config, &ranges) {
                for process in live_holders(&config, range) {
                    expected.entry(process).or_default().push(range);
                }
            }
            prop_assert_eq!(config.destset(&message), expected.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn reads_go_to_a_smallest_cover((config, ranges, offset) in scenario()) {
            let destinations = config.destset(&read_ranges(CLIENT, 1, 1, ranges.clone(), offset));
            let wanted: Vec<_> = touched(&config, &ranges).into_iter()
                .filter(|range| !live_holders(&config, *range).is_empty()).collect();
            let mut answered: Vec<_> = destinations.iter().flat_map(|(_, ranges)| ranges.clone()).collect();
            answered.sort();
            prop_assert_eq!(&answered, &wanted);
            for (process, ranges) in &destinations {
                prop_assert!(ranges.iter().all(|range| live_holders(&config, *range).contains(process)));
            }
            let processes: Vec<_> = config.storage_processes().collect();
            let smallest = (0u32..1 << processes.len()).filter(|set| {
                wanted.iter().all(|range| {
                    let holders = live_holders(&config, *range);
                    processes.iter().enumerate().any(|(i, p)| set >> i & 1 == 1 && holders.contains(p))
                })
            }).map(u32::count_ones).min();
            prop_assert_eq!(Some(destinations.len() as u32), smallest);
        }
    }

    #[test]
    fn replica_offsets_spread_reads() {
        let config = Config::evenly(6, 3).expect("a valid ring");
        let point = KeyRange::point(42);
        let holders = config.holders(config.range_of(42));
        for (offset, holder) in (0..3).zip(&holders) {
            let destinations = config.destset(&read_ranges(CLIENT, 1, 1, vec![point], offset));
            assert_eq!(destinations, vec![(*holder, vec![config.range_of(42)])]);
        }
        let mut load: BTreeMap<ProcessId, u32> = BTreeMap::new();
        for offset in 0..60 {
            for (process, ranges) in config.destset(&read_ranges(CLIENT, 1, 1, vec![KeyRange::FULL], offset))
            {
                assert_eq!(ranges.len(), 3, "two processes answer for three ranges each");
                *load.entry(process).or_default() += 1;
            }
        }
        assert!(load.len() == 6 && load.values().all(|reads| *reads == 20), "{load:?}");
    }

    #[test]
    fn a_ring_must_make_sense() {
        assert_eq!(Config::evenly(0, 1), Err(ConfigError::Empty));
        assert_eq!(Config::evenly(2, 3), Err(ConfigError::Replication { factor: 3, processes: 2 }));
        let twice = [(0, ProcessId::storage(1)), (5, ProcessId::storage(1))];
        assert_eq!(Config::new(twice, 1), Err(ConfigError::Duplicate));
    }

    #[test]
    fn clients_come_and_go() {
        let config = Config::evenly(2, 1).expect("a valid ring");
        let joined = config.with_client(CLIENT).expect("it was not there");
        assert!(joined.contains(CLIENT) && joined.with_client(CLIENT).is_none());
        assert_eq!(joined.version(), config.version());
        assert_eq!(joined.without_client(CLIENT), Some(config));
    }
}
