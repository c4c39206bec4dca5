//! Storage processes that migrate, on one thread and driven by a list of choices: links lose and damage what they
//! carry, processes crash, restart from their checkpoints and are suspected, the ring changes all the while. Rows are
//! histories of values, and what nobody is supposed to need any more is really forgotten.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use carousel_engine::position::Position;
use proptest::prelude::*;

use super::*;
use crate::{
    config::{Change, Config, Configuration, Instruction, Membership},
    message::Incarnation,
    router::testing::configuration,
};

const POSITIONS: u64 = 48;
const ROWS_IN_CHUNK: usize = 3;
const TABLE: TableId = TableId(1);

type Rows = BTreeMap<Position, Vec<(Ts, Option<u64>)>>;

#[derive(Clone, Debug)]
enum Entry {
    Write(Position, u64),
    Configuration(Configuration),
}

/// A message of the m-seq with the configs before and behind it.
#[derive(Clone, Debug)]
struct Ordered {
    entry: Entry,
    before: Arc<Config>,
    behind: Arc<Config>,
}

#[derive(Clone, Debug)]
enum Wire {
    Ask(PartId, u64, std::ops::Range<u32>),
    Chunk(PartId, u64, Chunk),
    Refuse(PartId, u64),
}

/// A part whose rows are given to the shards: its chunks and content hashes.
type Installation = (PartId, u32, Vec<(TableId, u128)>);

struct Process {
    id: ProcessId,
    migrations: Migrations,
    /// Messages up to here have been delivered …
    heard: u64,
    /// … and up to here have had their turn.
    at: u64,
    rows: Rows,
    /// Rows and position of the last checkpoint.
    checkpoint: (u64, Rows),
    wants_checkpoint: bool,
    kept: BTreeMap<PartId, Vec<Chunk>>,
    /// Installations that the shards have not reported.
    installing: VecDeque<Installation>,
    running: bool,
    failed: Option<String>,
    /// Keyspace messages at which this life cannot read.
    forgotten: Ts,
}

struct World {
    log: Vec<Ordered>,
    config: Arc<Config>,
    processes: BTreeMap<ProcessId, Process>,
    links: BTreeMap<(ProcessId, ProcessId), VecDeque<Wire>>,
    /// What was written last to each position.
    written: BTreeMap<Position, u64>,
    now_ms: u64,
    installed: usize,
    /// Chunks were damaged, senders have forgotten what they had to send, or others were given up: a receiver may have failed.
    may_fail: bool,
}

fn limits() -> Limits {
    Limits { window: 4, patience_ms: 10, questions: 2, damaged: 2 }
}

fn hash(rows: &[(Position, u64)]) -> u128 {
    rows.iter().map(|(position, value)| u128::from(position * 1_000_003 + value * 7 + 1).pow(3)).sum()
}

/// The value that a read at `ts` sees.
fn visible(history: &[(Ts, Option<u64>)], ts: Ts) -> Option<u64> {
    history.iter().rev().find(|(from, _)| *from <= ts).and_then(|(_, value)| *value)
}

fn read_at(rows: &Rows, range: KeyRange, ts: Ts) -> Vec<(Position, u64)> {
    let in_range = rows.range(range.first..=range.last);
    in_range.filter_map(|(position, history)| Some((*position, visible(history, ts)?))).collect()
}

impl World {
    fn new(size: u32, standbys: u32, replication: u32) -> World {
        let ring = (1..=size).map(|n| (u64::from(n) * 6, ProcessId::storage(n)));
        let config = Arc::new(Config::new(ring, replication).expect("a ring"));
        let process = |n| {
            let id = ProcessId::storage(n);
            let process = Process {
                id,
                migrations: Migrations::new(id, Ts::ZERO, Vec::new(), 0, limits()),
                heard: 0,
                at: 0,
                rows: Rows::new(),
                checkpoint: (0, Rows::new()),
                wants_checkpoint: false,
                kept: BTreeMap::new(),
                installing: VecDeque::new(),
                running: true,
                failed: None,
                forgotten: Ts::ZERO,
            };
            (id, process)
        };
        let mut world = World {
            log: Vec::new(),
            config,
            processes: (1..=size + standbys).map(process).collect(),
            links: BTreeMap::new(),
            written: BTreeMap::new(),
            now_ms: 0,
            installed: 0,
            may_fail: false,
        };
        for n in size + 1..=size + standbys {
            let process = ProcessId::storage(n);
            let joins = Membership::Join { process, incarnation: 1, address: None };
            world.order(Entry::Configuration(Configuration::Membership(joins)));
        }
        world
    }

    fn order(&mut self, entry: Entry) {
        let ts = Ts(self.log.len() as u64 + 1);
        let before = self.config.clone();
        if let Entry::Configuration(configuration_) = &entry {
            let message = configuration(ProcessId::client(1), 1, ts.0, configuration_.clone());
            if let Ok(Some(config)) = before.apply(&message, ts) {
                self.config = Arc::new(config);
            }
        }
        self.log.push(Ordered { entry, before, behind: self.config.clone() });
    }

    fn live_holders(&self, position: Position) -> Vec<ProcessId> {
        let holders = self.config.holders(self.config.range_of(position));
        holders.into_iter().filter(|holder| !self.config.is_suspected(*holder)).collect()
    }

    fn write(&mut self, position: Position) {
        // Without a live holder a write has no effect.
        if !self.live_holders(position).is_empty() {
            let value = self.log.len() as u64;
            self.written.insert(position, value);
            self.order(Entry::Write(position, value));
        }
    }

    fn change(&mut self, kind: u8, a: u64, b: u64) {
        let ring: Vec<ProcessId> = self.config.storage_processes().collect();
        let standbys: Vec<ProcessId> = self.config.standbys().collect();
        let process = ring[a as usize % ring.len()];
        let standby = standbys.get(b as usize % standbys.len().max(1)).copied();
        let identifier = b % POSITIONS;
        let change = match (kind % 4, standby) {
            (0, Some(process)) => Change::Expand { process, identifier },
            (1, _) => Change::Contract { process },
            (2, Some(by)) => Change::Replace { process, by },
            _ => Change::Rebalance { process, identifier },
        };
        if let Ok(keyspace) = self.config.plan(change) {
            self.order(Entry::Configuration(Configuration::Keyspace(keyspace)));
        }
    }

    /// Who has failed for good is given up with what it alone has.
    fn suspect(&mut self, process: ProcessId) {
        let has_failed = self.processes[&process].failed.is_some();
        // What is given up may be what others were to receive.
        self.may_fail |= has_failed;
        let incarnation = if has_failed { Incarnation::MAX } else { 1 };
        let suspicion = Membership::Suspect { process, incarnation };
        self.order(Entry::Configuration(Configuration::Membership(suspicion)));
    }

    /// Delivers the next message of the m-seq.
    fn hear(&mut self, id: ProcessId) -> bool {
        let ids: Vec<ProcessId> = self.processes.keys().copied().collect();
        let process = self.processes.get_mut(&id).expect("a process");
        let Some(ordered) = self.log.get(process.heard as usize).filter(|_| process.running) else {
            return false;
        };
        process.heard += 1;
        let ts = Ts(process.heard);
        match &ordered.entry {
            Entry::Configuration(Configuration::Membership(Membership::Suspect {
                process: suspected,
                ..
            })) => {
                // Others may fail with it, standbys among them.
                let fails = |process: &ProcessId| {
                    ordered.behind.is_suspected(*process)
                        && (process == suspected || !ordered.before.is_suspected(*process))
                };
                let failing: Vec<ProcessId> = ids.into_iter().filter(fails).collect();
                process.running = !failing.contains(&id);
                for process in failing {
                    self.handle(id, Event::Suspected { process, ts });
                }
            }
            Entry::Configuration(Configuration::Received { keyspace, process }) => {
                let (keyspace, process) = (*keyspace, *process);
                self.handle(id, Event::Received { keyspace, process });
            }
            _ => {}
        }
        true
    }

    /// Takes the next delivered message, if nothing holds the process back.
    fn take(&mut self, id: ProcessId) -> bool {
        let process = self.processes.get_mut(&id).expect("a process");
        if !process.running || process.at == process.heard || process.migrations.is_waiting() {
            return false;
        }
        let ordered = self.log[process.at as usize].clone();
        process.at += 1;
        let ts = Ts(process.at);
        let Ordered { entry, before, .. } = ordered;
        let event = match entry {
            Entry::Write(position, value) => {
                let holders = before.holders(before.range_of(position));
                if holders.contains(&id) && !before.is_suspected(id) {
                    process.rows.entry(position).or_default().push((ts, Some(value)));
                }
                None
            }
            Entry::Configuration(Configuration::Keyspace(keyspace)) => {
                let transfers = (keyspace.version == before.version()).then(|| before.transfers(&keyspace));
                let transfers = transfers.and_then(Result::ok);
                let deletes = keyspace.instructions.iter().filter_map(|instruction| match instruction {
                    Instruction::Delete { process, ranges } if *process == id => Some(ranges.clone()),
                    _ => None,
                });
                if transfers.is_some() {
                    for range in deletes.flatten() {
                        for (_, history) in process.rows.range_mut(range.first..=range.last) {
                            // A read at the keyspace message sees what was there before it.
                            history.push((Ts(ts.0 + 1), None));
                        }
                    }
                }
                transfers.map(|transfers| Event::Keyspace { ts, transfers })
            }
            Entry::Configuration(Configuration::Membership(_) | Configuration::Received { .. }) => None,
        };
        if let Some(event) = event {
            self.handle(id, event);
        }
        let process = self.processes.get_mut(&id).expect("a process");
        // Old versions go as soon as nobody needs them.
        let horizon = process.migrations.oldest_served().unwrap_or(Ts(process.at)).min(Ts(process.at));
        for history in process.rows.values_mut() {
            let seen = history.iter().rposition(|(from, _)| *from <= horizon).unwrap_or(0);
            history.drain(..seen);
        }
        process.forgotten = process.forgotten.max(horizon);
        true
    }

    fn handle(&mut self, id: ProcessId, event: Event) {
        let process = self.processes.get_mut(&id).expect("a process");
        if !process.running {
            return;
        }
        for effect in process.migrations.handle(event) {
            match effect {
                Effect::Ask { to, part, attempt, chunks } => {
                    self.links.entry((id, to)).or_default().push_back(Wire::Ask(part, attempt, chunks));
                }
                Effect::Refuse { to, part, attempt } => {
                    self.links.entry((id, to)).or_default().push_back(Wire::Refuse(part, attempt));
                }
                Effect::Serve { to, part, attempt, chunks } => {
                    assert!(process.forgotten <= part.keyspace, "{id} has forgotten what it must send");
                    let rows = read_at(&process.rows, part.range, part.keyspace);
                    let count = rows.len().div_ceil(ROWS_IN_CHUNK).max(1) as u32;
                    for number in chunks.start..chunks.end.min(count) {
                        let own = rows.chunks(ROWS_IN_CHUNK).nth(number as usize).unwrap_or_default();
                        let bytes = Bytes::from(postcard::to_stdvec(own).expect("serialises"));
                        let checksum = crc32fast::hash(&bytes);
                        let last = (number + 1 == count).then(|| vec![(TABLE, hash(&rows))]);
                        let chunk = Chunk { number, table: Some(TABLE), rows: bytes, checksum, last };
                        self.links.entry((id, to)).or_default().push_back(Wire::Chunk(part, attempt, chunk));
                    }
                }
                Effect::Keep { part, chunk } => process.kept.entry(part).or_default().push(chunk),
                Effect::Discard(part) => {
                    process.kept.remove(&part);
                }
                Effect::Install { part, chunks, hashes } => {
                    process.installing.push_back((part, chunks, hashes))
                }
                Effect::Complete { .. } => process.wants_checkpoint = true,
                Effect::Announce { keyspace } => {
                    let received = Configuration::Received { keyspace, process: id };
                    let ts = Ts(self.log.len() as u64 + 1);
                    let message = configuration(ProcessId::client(1), 1, ts.0, received.clone());
                    let before = self.config.clone();
                    if let Ok(Some(config)) = before.apply(&message, ts) {
                        self.config = Arc::new(config);
                    }
                    let (entry, behind) = (Entry::Configuration(received), self.config.clone());
                    self.log.push(Ordered { entry, before, behind });
                }
                Effect::Release { keyspace } => {
                    assert!(process.migrations.oldest_served() != Some(keyspace));
                }
                Effect::Fail(reason) => {
                    // To one that is suspected nobody sends anything, whether it has heard of it or not.
                    let is_over = self.config.is_suspected(id);
                    assert!(self.may_fail || is_over, "{id} has failed: {reason}");
                    process.failed = Some(reason);
                }
            }
        }
        if process.failed.is_some() {
            process.running = false;
        }
    }

    /// The shards of a process have installed a part.
    fn install(&mut self, id: ProcessId) -> Result<bool, TestCaseError> {
        let process = self.processes.get_mut(&id).expect("a process");
        let Some((part, chunks, hashes)) = process.installing.pop_front().filter(|_| process.running) else {
            return Ok(false);
        };
        let kept = process.kept.remove(&part).unwrap_or_default();
        prop_assert_eq!(kept.len(), chunks as usize, "every chunk once");
        let rows: Vec<(Position, u64)> = kept
            .iter()
            .flat_map(|chunk| postcard::from_bytes::<Vec<(Position, u64)>>(&chunk.rows).expect("undamaged"))
            .collect();
        prop_assert_eq!(&hashes, &vec![(TABLE, hash(&rows))]);
        for (position, value) in rows {
            process.rows.entry(position).or_default().push((part.keyspace, Some(value)));
        }
        self.installed += 1;
        self.handle(id, Event::Installed { part, outcome: Ok(()) });
        Ok(true)
    }

    fn checkpoint(&mut self, id: ProcessId) -> bool {
        let process = self.processes.get_mut(&id).expect("a process");
        if !process.running || process.migrations.is_waiting() {
            return false;
        }
        let rows = process.rows.iter().filter_map(|(position, history)| {
            let value = history.last()?.1?;
            Some((*position, vec![(Ts(process.at), Some(value))]))
        });
        process.checkpoint = (process.at, rows.collect());
        process.wants_checkpoint = false;
        let ts = Ts(process.at + 1);
        self.handle(id, Event::Durable(ts));
        true
    }

    fn restart(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).expect("a process");
        if self.config.is_suspected(id) || process.failed.is_some() {
            return;
        }
        self.may_fail = true;
        let (at, rows) = process.checkpoint.clone();
        process.heard = at;
        process.at = at;
        process.rows = rows;
        process.kept.clear();
        process.installing.clear();
        process.wants_checkpoint = false;
        process.forgotten = Ts(at);
        process.running = true;
        let config = at.checked_sub(1).map(|last| self.log[last as usize].behind.clone());
        let migrations = config.iter().flat_map(|config| config.migrations());
        let unannounced = migrations.filter(|(_, migration)| migration.has_for(id));
        let unannounced = unannounced.map(|(keyspace, _)| *keyspace).collect();
        let attempts = process.migrations.attempts();
        process.migrations = Migrations::new(id, Ts(at), unannounced, attempts, limits());
        for ((from, to), link) in &mut self.links {
            if *from == id || *to == id {
                link.clear();
            }
        }
    }

    fn deliver(&mut self, from: ProcessId, to: ProcessId, damage: bool) -> bool {
        let Some(wire) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        let event = match wire {
            Wire::Ask(part, attempt, chunks) => Event::Asked { from, part, attempt, chunks },
            Wire::Chunk(part, attempt, mut chunk) => {
                if damage && !chunk.rows.is_empty() {
                    let mut rows = chunk.rows.to_vec();
                    rows[0] ^= 0x10;
                    chunk.rows = rows.into();
                    self.may_fail = true;
                }
                Event::Chunk { from, part, attempt, chunk }
            }
            Wire::Refuse(part, attempt) => Event::Refused { from, part, attempt, anew: false },
        };
        self.handle(to, event);
        true
    }

    fn tick(&mut self) {
        self.now_ms += 4;
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            self.handle(id, Event::Tick(self.now_ms));
        }
    }

    fn step(&mut self, (kind, a, b): (u8, u64, u64)) -> Result<(), TestCaseError> {
        let ids: Vec<ProcessId> = self.processes.keys().copied().collect();
        let id = ids[a as usize % ids.len()];
        let links: Vec<(ProcessId, ProcessId)> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(link, _)| *link).collect();
        let link = links.get(b as usize % links.len().max(1)).copied();
        match (kind, link) {
            (0..=19, _) => self.write(b % POSITIONS),
            (20..=49, _) => {
                for i in 0..b % 6 {
                    let _ = if b >> i & 8 == 0 { self.take(id) } else { self.hear(id) };
                }
            }
            (50..=79, Some((from, to))) => {
                self.deliver(from, to, false);
            }
            (80..=81, Some((from, to))) => {
                self.deliver(from, to, true);
            }
            (82, Some((from, to))) => {
                self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front);
            }
            (83..=88, _) => {
                self.install(id)?;
            }
            (89..=91, _) => {
                self.checkpoint(id);
            }
            (92, _) => self.restart(id),
            (93..=94, _) => self.change(b as u8, a, b / 4),
            (95, _) if b % 3 == 0 => {
                let others =
                    self.config.storage_processes().filter(|p| !self.config.is_suspected(*p)).count();
                if others > 1 && self.config.storage_processes().any(|p| p == id) {
                    self.suspect(id);
                }
            }
            _ => self.tick(),
        }
        Ok(())
    }

    /// Without further faults, everything that can be received is.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            if !self.processes[&id].running {
                self.restart(id);
            }
        }
        for round in 0.. {
            let states = || {
                let state = |process: &Process| {
                    let Process { id, heard, at, running, ref failed, ref migrations, .. } = *process;
                    format!("{id} heard {heard}, at {at}, {running}, {failed:?}, {migrations:?}")
                };
                self.processes.values().map(state).collect::<Vec<_>>().join("\n")
            };
            prop_assert!(round < 3_000, "{:?}\n{}", self.config.migrations(), states());
            let mut busy = false;
            for id in self.processes.keys().copied().collect::<Vec<_>>() {
                while self.hear(id) | self.take(id) {
                    busy = true;
                }
                while self.install(id)? {
                    busy = true;
                }
                if self.processes[&id].wants_checkpoint {
                    busy |= self.checkpoint(id);
                }
                if self.processes[&id].failed.is_some() && !self.config.is_suspected(id) {
                    busy = true;
                    self.suspect(id);
                }
            }
            for (from, to) in self.links.keys().copied().collect::<Vec<_>>() {
                while self.deliver(from, to, false) {
                    busy = true;
                }
            }
            // The config does not wait for receivers that have left the ring since; those who send to them do.
            let serves = |process: &Process| process.running && process.migrations.oldest_served().is_some();
            let is_over = self.config.migrations().is_empty() && !self.processes.values().any(serves);
            if !busy && is_over {
                return Ok(());
            }
            self.tick();
        }
        Ok(())
    }

    /// Every live holder of a position has what was written to it last.
    fn check(&self) -> Result<(), TestCaseError> {
        for position in 0..POSITIONS {
            for holder in self.live_holders(position) {
                let process = &self.processes[&holder];
                prop_assert!(process.running, "{} has ended: {:?}", holder, process.failed);
                let value = process.rows.get(&position).and_then(|history| history.last()?.1);
                prop_assert_eq!(value, self.written.get(&position).copied(), "{} at {}", holder, position);
            }
        }
        for process in self.processes.values().filter(|process| process.running) {
            let held = self.config.held(process.id);
            let stray = process.rows.iter().find(|(position, history)| {
                let visible = history.last().is_some_and(|(_, value)| value.is_some());
                visible && !held.iter().any(|range| range.contains(**position))
            });
            prop_assert!(stray.is_none(), "{} has {:?}", process.id, stray);
            prop_assert_eq!(process.migrations.oldest_served(), None, "{} keeps versions", process.id);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn rows_arrive_whatever_happens(
        size in 2u32..6,
        replication in 1u32..4,
        steps in proptest::collection::vec((0u8..100, any::<u64>(), any::<u64>()), 0..600),
    ) {
        let mut world = World::new(size, 3, replication);
        for step in steps {
            world.step(step)?;
        }
        world.settle()?;
        world.check()?;
    }
}

/// A receiver and what it does, for single promises.
fn receiver(senders: &[u32]) -> (Migrations, PartId, Vec<Effect>) {
    let id = ProcessId::storage(9);
    let mut migrations = Migrations::new(id, Ts::ZERO, Vec::new(), 0, limits());
    let part = PartId { keyspace: Ts(7), range: KeyRange::new(20, 39) };
    let senders = senders.iter().map(|n| ProcessId::storage(*n)).collect();
    let transfers = vec![Transfer { to: id, range: part.range, senders, lost: Vec::new() }];
    let effects = migrations.handle(Event::Keyspace { ts: Ts(7), transfers });
    (migrations, part, effects)
}

fn chunk(number: u32, last: bool) -> Chunk {
    let rows = Bytes::from(vec![number as u8; 8]);
    let checksum = crc32fast::hash(&rows);
    Chunk { number, table: Some(TABLE), rows, checksum, last: last.then(Vec::new) }
}

const S1: ProcessId = ProcessId::storage(1);
const S2: ProcessId = ProcessId::storage(2);

fn ask(to: ProcessId, part: PartId, attempt: u64) -> Effect {
    Effect::Ask { to, part, attempt, chunks: 0..4 }
}

#[test]
fn a_failed_copy_begins_anew_at_another_holder_and_fails_when_none_remains() {
    let (mut migrations, part, effects) = receiver(&[1, 2]);
    assert_eq!(effects, vec![ask(S1, part, 1)]);
    assert!(migrations.is_waiting());
    let effects = migrations.handle(Event::Chunk { from: S1, part, attempt: 1, chunk: chunk(0, false) });
    assert_eq!(effects, vec![Effect::Keep { part, chunk: chunk(0, false) }]);
    let effects = migrations.handle(Event::Suspected { process: S1, ts: Ts(9) });
    assert_eq!(effects, vec![Effect::Discard(part), ask(S2, part, 2)]);
    // What the first one still sends does not count.
    let late = Event::Chunk { from: S1, part, attempt: 1, chunk: chunk(0, true) };
    assert_eq!(migrations.handle(late), vec![]);
    let effects = migrations.handle(Event::Refused { from: S2, part, attempt: 2, anew: false });
    assert!(matches!(&effects[..], [Effect::Fail(reason)] if reason.contains("no holder remains")));
}

#[test]
fn a_sender_that_has_forgotten_how_far_it_was_begins_anew() {
    let (mut migrations, part, _) = receiver(&[1, 2]);
    migrations.handle(Event::Chunk { from: S1, part, attempt: 1, chunk: chunk(0, false) });
    let refused = |from, attempt| Event::Refused { from, part, attempt, anew: true };
    assert_eq!(migrations.handle(refused(S1, 1)), vec![Effect::Discard(part), ask(S1, part, 2)]);
    assert_eq!(migrations.handle(refused(S2, 2)), vec![], "it was not asked");
    assert_eq!(migrations.handle(refused(S1, 1)), vec![], "it was asked again since");
    // It may cut the rows differently now: what was on its way does not belong to that.
    let chunk = |attempt| Event::Chunk { from: S1, part, attempt, chunk: chunk(0, false) };
    assert_eq!(migrations.handle(chunk(1)), vec![]);
    assert_eq!(migrations.handle(chunk(2)).len(), 1);
}

#[test]
fn a_damaged_chunk_lets_the_copy_begin_anew_and_then_from_another_holder() {
    let (mut migrations, part, _) = receiver(&[1, 2]);
    let mut damaged = chunk(0, false);
    damaged.checksum ^= 1;
    let mut chunk =
        |from, attempt| migrations.handle(Event::Chunk { from, part, attempt, chunk: damaged.clone() });
    assert_eq!(chunk(S1, 1), vec![ask(S1, part, 2)]);
    assert_eq!(chunk(S1, 2), vec![ask(S2, part, 3)]);
    assert_eq!(chunk(S2, 3), vec![ask(S2, part, 4)], "each may send one");
}

#[test]
fn a_holder_that_says_that_rows_follow_is_not_given_up() {
    let (mut migrations, part, _) = receiver(&[1, 2]);
    for tick in 1..10 {
        assert_eq!(migrations.handle(Event::Tick(10 * tick)), vec![ask(S1, part, 1)]);
        migrations.handle(Event::Follows { from: S1, part, attempt: 1 });
    }
    // The other one was not asked, and an answer to an earlier question says nothing.
    migrations.handle(Event::Follows { from: S2, part, attempt: 1 });
    let asked = (10..13).flat_map(|tick| migrations.handle(Event::Tick(10 * tick))).collect::<Vec<_>>();
    assert_eq!(asked, [ask(S1, part, 1), ask(S1, part, 1), ask(S2, part, 2)]);
}

#[test]
fn what_nobody_has_any_more_is_there_without_rows() {
    let id = ProcessId::storage(9);
    let part = |first| PartId { keyspace: Ts(7), range: KeyRange::new(first, first + 9) };
    let transfer = |first, senders: &[ProcessId]| Transfer {
        to: id,
        range: part(first).range,
        senders: senders.to_vec(),
        lost: Vec::new(),
    };
    let chunk = |number| Chunk {
        number,
        table: None,
        rows: Bytes::new(),
        checksum: crc32fast::hash(&[]),
        last: (number == 1).then(Vec::new),
    };
    // The loss is heard of before or after the message has its turn; and before the sender has been asked, or in the middle.
    for (early, begun) in [(true, false), (false, false), (false, true)] {
        let mut migrations = Migrations::new(id, Ts::ZERO, Vec::new(), 0, limits());
        let lost = |migrations: &mut Migrations| {
            let effects = migrations.handle(Event::Lost(vec![part(20)]));
            assert_eq!(migrations.handle(Event::Suspected { process: S1, ts: Ts(9) }), vec![]);
            effects
        };
        if early {
            assert_eq!(lost(&mut migrations), vec![]);
        }
        // The third one's rows had been lost before.
        let transfers = vec![transfer(20, &[S1]), transfer(40, &[S2]), transfer(60, &[])];
        migrations.handle(Event::Keyspace { ts: Ts(7), transfers });
        if begun {
            let effects =
                migrations.handle(Event::Chunk { from: S1, part: part(20), attempt: 1, chunk: chunk(0) });
            assert!(matches!(&effects[..], [Effect::Keep { .. }, ..]), "{effects:?}");
        }
        if !early {
            let discards = if begun { vec![Effect::Discard(part(20))] } else { Vec::new() };
            assert_eq!(lost(&mut migrations), discards);
        }
        assert!(migrations.is_waiting(), "for what the other one sends");
        for number in 0..2 {
            let attempt = if early { 1 } else { 2 };
            migrations.handle(Event::Chunk { from: S2, part: part(40), attempt, chunk: chunk(number) });
        }
        let installed = Event::Installed { part: part(40), outcome: Ok(()) };
        assert_eq!(migrations.handle(installed), vec![Effect::Complete { keyspace: Ts(7) }]);
        assert!(!migrations.is_waiting());
    }
    let mut migrations = Migrations::new(id, Ts::ZERO, Vec::new(), 0, limits());
    let transfers = vec![transfer(20, &[])];
    let effects = migrations.handle(Event::Keyspace { ts: Ts(7), transfers });
    assert_eq!(effects, vec![Effect::Complete { keyspace: Ts(7) }]);
    assert_eq!(migrations.handle(Event::Durable(Ts(8))), vec![Effect::Announce { keyspace: Ts(7) }]);
}

#[test]
fn what_is_on_its_own_disk_is_asked_for_once() {
    let id = ProcessId::storage(9);
    let mut migrations = Migrations::new(id, Ts::ZERO, Vec::new(), 0, limits());
    let part = PartId { keyspace: Ts(7), range: KeyRange::new(20, 39) };
    migrations.resume_receiving([part]);
    let transfers = vec![Transfer { to: id, range: part.range, senders: vec![S1, S2], lost: Vec::new() }];
    assert_eq!(migrations.handle(Event::Keyspace { ts: Ts(7), transfers }), vec![ask(id, part, 1)]);
    for tick in 1..10 {
        assert_eq!(migrations.handle(Event::Tick(100 * tick)), vec![]);
    }
}

#[test]
fn wrong_rows_are_the_fault_of_who_has_sent_them() {
    for others in [vec![2], vec![]] {
        let senders = [vec![1], others.clone()].concat();
        let (mut migrations, part, _) = receiver(&senders);
        migrations.handle(Event::Chunk { from: S1, part, attempt: 1, chunk: chunk(0, true) });
        migrations.handle(Event::Suspected { process: S1, ts: Ts(9) });
        let effects = migrations.handle(Event::Installed { part, outcome: Err("is wrong".into()) });
        match others.is_empty() {
            false => assert_eq!(effects, vec![Effect::Discard(part), ask(S2, part, 2)]),
            true => assert!(matches!(&effects[..], [Effect::Fail(_)]), "{effects:?}"),
        }
    }
}

#[test]
fn what_is_received_is_announced_when_a_checkpoint_behind_it_is_durable_until_that_is_ordered() {
    let (mut migrations, part, _) = receiver(&[1]);
    let effects = migrations.handle(Event::Chunk { from: S1, part, attempt: 1, chunk: chunk(0, true) });
    assert_eq!(effects[1..], [Effect::Install { part, chunks: 1, hashes: Vec::new() }]);
    assert!(migrations.is_waiting());
    let effects = migrations.handle(Event::Installed { part, outcome: Ok(()) });
    assert_eq!(effects, vec![Effect::Complete { keyspace: Ts(7) }]);
    assert!(!migrations.is_waiting());
    assert_eq!(migrations.handle(Event::Durable(Ts(7))), vec![], "that was before the keyspace message");
    let announce = vec![Effect::Announce { keyspace: Ts(7) }];
    assert_eq!(migrations.handle(Event::Durable(Ts(8))), announce);
    assert_eq!(migrations.handle(Event::Tick(50)), announce, "it may have been lost");
    let id = ProcessId::storage(9);
    assert_eq!(migrations.handle(Event::Received { keyspace: Ts(7), process: id }), vec![]);
    assert_eq!(migrations.handle(Event::Tick(100)), vec![]);
}

#[test]
fn a_sender_keeps_versions_until_its_receivers_are_durable_and_answers_those_who_are_ahead() {
    let receivers = [ProcessId::storage(8), ProcessId::storage(9)];
    let range = KeyRange::new(20, 39);
    let transfers: Vec<Transfer> = receivers
        .iter()
        .map(|to| Transfer { to: *to, range, senders: vec![S2, S1], lost: Vec::new() })
        .collect();
    let mut migrations = Migrations::new(S1, Ts(3), Vec::new(), 0, limits());
    let part = PartId { keyspace: Ts(7), range };
    let ask = |part| Event::Asked { from: receivers[0], part, attempt: 5, chunks: 0..4 };
    let refuse = |part| Effect::Refuse { to: receivers[0], part, attempt: 5 };
    assert_eq!(migrations.handle(ask(part)), vec![], "it waits for the keyspace message");
    let before = PartId { keyspace: Ts(2), range };
    assert_eq!(migrations.handle(ask(before)), vec![refuse(before)]);
    let effects = migrations.handle(Event::Keyspace { ts: Ts(7), transfers });
    assert_eq!(effects, vec![Effect::Serve { to: receivers[0], part, attempt: 5, chunks: 0..4 }]);
    assert_eq!(migrations.oldest_served(), Some(Ts(7)));
    assert_eq!(migrations.handle(Event::Received { keyspace: Ts(7), process: receivers[0] }), vec![]);
    assert_eq!(migrations.handle(ask(part)), vec![refuse(part)]);
    let effects = migrations.handle(Event::Suspected { process: receivers[1], ts: Ts(9) });
    assert_eq!(effects, vec![Effect::Release { keyspace: Ts(7) }]);
    assert_eq!(migrations.oldest_served(), None);
}

#[test]
fn who_has_received_a_later_part_is_sent_no_earlier_one() {
    let (range, to) = (KeyRange::new(20, 39), ProcessId::storage(9));
    let mut migrations = Migrations::new(S1, Ts(3), Vec::new(), 0, limits());
    let mut keyspace = |ts| {
        let transfers = vec![Transfer { to, range, senders: vec![S1], lost: Vec::new() }];
        migrations.handle(Event::Keyspace { ts, transfers });
    };
    keyspace(Ts(7));
    keyspace(Ts(9));
    // It has begun behind the first one.
    let release = |keyspace| Effect::Release { keyspace: Ts(keyspace) };
    let effects = migrations.handle(Event::Received { keyspace: Ts(9), process: to });
    assert_eq!(effects, vec![release(7), release(9)]);
    assert_eq!(migrations.handle(Event::Received { keyspace: Ts(13), process: to }), vec![]);
    let transfers = vec![Transfer { to, range, senders: vec![S1], lost: Vec::new() }];
    migrations.handle(Event::Keyspace { ts: Ts(11), transfers });
    assert_eq!(migrations.oldest_served(), None, "it has received a later one already");
}

#[test]
fn migrations_happen_in_the_simulation() {
    let mut world = World::new(4, 3, 2);
    for position in 0..POSITIONS {
        world.write(position);
    }
    world.change(0, 0, 20);
    world.change(2, 1, 5);
    world.change(1, 2, 0);
    world.settle().expect("settles");
    world.check().expect("whole");
    assert!(world.installed >= 3, "{} parts", world.installed);
    let moved: BTreeSet<ProcessId> = world.config.storage_processes().collect();
    assert!(moved.iter().any(|process| process.number > 4), "{moved:?}");
}
