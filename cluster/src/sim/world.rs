//! The scheduler: virtual time, what is due when, which processes live, and who gets what.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    fmt::Write as _,
    sync::Arc,
};

use carousel_engine::{Ts, operation::PayloadId, position::KeyRange};

use super::{
    Options, Report,
    clients::ClientHost,
    consensus,
    network::{Arrival, Arrived, Network},
    random::Random,
    replay::Replay,
    routers::{RouterDisk, RouterHost},
    statement::Statement,
    stores::{StorageDisk, StorageHost},
    supers,
};
use crate::{
    config::Config,
    message::{MessageId, ProcessId, ProcessKind},
    router, storage,
    super_process::{CheckpointPolicy, Checkpoints, Heartbeat},
    wire::Wire,
};

/// Processes look at the clock this often.
const TICK_US: u64 = 100_000;
/// So often does the consensus.
const CONSENSUS_TICK_US: u64 = 25_000;
/// When something has waited for so long because the way is blocked, the session breaks.
const BREAK_US: u64 = 2_000_000;
/// Faults happen for so long; statements are submitted at most twice as long.
const TURMOIL_US: u64 = 8_000_000;
/// How long what is under way when the faults end may take: a disk that has failed again and again is tried once in 40 s.
const DRAIN_US: u64 = 100_000_000;
/// Lines of the trace that a failure shows.
const LINES: usize = 400_000;

/// Something that happens at its time.
#[derive(Debug)]
pub(super) enum Item {
    Arrive(Arrival),
    /// Something that was said before is said again, out of turn.
    Stray {
        from: ProcessId,
        to: ProcessId,
        wire: Wire,
    },
    Consensus {
        from: u32,
        to: u32,
        message: consensus::Message,
    },
    Unreachable {
        process: ProcessId,
        peer: ProcessId,
    },
    /// What two processes said to one another while they could not meet is lost.
    Lost {
        process: ProcessId,
        peer: ProcessId,
    },
    Tick(ProcessId),
    ConsensusTick(ProcessId),
    Router {
        to: ProcessId,
        input: router::core::Input,
    },
    RouterDisk(ProcessId),
    Scan {
        storage: ProcessId,
        shard: usize,
    },
    Storage {
        to: ProcessId,
        input: storage::node::Input,
    },
    CheckpointWritten(ProcessId),
    Payloads(ProcessId),
    Submit(ProcessId),
    Fault,
    ChangeRouters,
    EndOf(super::faults::Disturbance),
    Restart(ProcessId),
    /// Two processes of which one has just started have a session.
    Meet(ProcessId, ProcessId),
    /// A client that was suspected is given up.
    Replaced(ProcessId),
    /// Somebody changes the ring.
    Reshape,
    Look,
}

impl Item {
    /// The process that it happens to.
    fn owner(&self) -> Option<ProcessId> {
        match self {
            Item::Arrive(arrival) => Some(arrival.to),
            Item::Consensus { to, .. } => Some(ProcessId::router(*to)),
            Item::Stray { to, .. } | Item::Router { to, .. } | Item::Storage { to, .. } => Some(*to),
            Item::Unreachable { process, .. }
            | Item::Lost { process, .. }
            | Item::Tick(process)
            | Item::ConsensusTick(process)
            | Item::RouterDisk(process)
            | Item::CheckpointWritten(process)
            | Item::Payloads(process)
            | Item::Submit(process)
            | Item::Scan { storage: process, .. } => Some(*process),
            Item::Fault | Item::EndOf(_) | Item::Restart(_) | Item::Replaced(_) => None,
            Item::ChangeRouters | Item::Reshape | Item::Look | Item::Meet(..) => None,
        }
    }
}

/// A process's lives.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Which.
    pub(super) number: u64,
    /// What its incarnation lacks to that: it has lost its directory, and counts from the beginning or from what others have
    /// heard of.
    pub(super) forgotten: u64,
    /// The number of its directory: so many have been lost.
    pub(super) directory: u64,
    pub(super) up: bool,
    /// All its lives have been suspected: it does not come back.
    pub(super) gone: bool,
    pub(super) paused_until_us: u64,
    pub(super) started_us: u64,
    /// When answers of storage processes may have been lost on their way to it, or it missed configs that tell who owes
    /// them.
    pub(super) lost_us: Option<u64>,
    /// How far its clock is ahead.
    pub(super) ahead_us: u64,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Statements are submitted, faults happen.
    Turmoil,
    /// No faults any more: what is under way comes to its end.
    Drain,
    /// The last checkpoint is made.
    Checkpoint,
    /// Done.
    Over,
}

/// The whole cluster.
pub(super) struct World {
    pub(super) options: Options,
    pub(super) random: Random,
    pub(super) now_us: u64,
    pub(super) phase: Phase,
    /// What is due, with the life of the process it is about.
    due: BTreeMap<(u64, u64), (u64, Item)>,
    /// The last number of something due at its time, and of something that a pause has postponed: that comes first.
    sequence: u64,
    postponed: u64,
    pub(super) network: Network,
    pub(super) lives: BTreeMap<ProcessId, Life>,
    pub(super) config: Arc<Config>,
    /// How many there were at the beginning.
    pub(super) first_routers: u32,
    pub(super) routers: BTreeMap<ProcessId, RouterHost>,
    pub(super) router_disks: BTreeMap<ProcessId, RouterDisk>,
    pub(super) storage: BTreeMap<ProcessId, StorageHost>,
    pub(super) storage_disks: BTreeMap<ProcessId, StorageDisk>,
    pub(super) clients: BTreeMap<ProcessId, ClientHost>,
    pub(super) statements: Vec<Statement>,
    /// Undecided writes that storage processes have committed in their present lives.
    pub(super) committed: BTreeMap<Ts, BTreeSet<ProcessId>>,
    /// Those that some storage process has aborted.
    pub(super) aborted: BTreeSet<Ts>,
    /// Those that have no effect as somebody has voted against them who would not do so now.
    pub(super) voted_down: BTreeSet<Ts>,
    pub(super) replay: Replay,
    /// How far the m-seq had grown with the entries of each term of the consensus.
    pub(super) agreed: BTreeMap<u64, Ts>,
    /// How long the turmoil has lasted.
    turmoil_us: u64,
    /// Operations that have not been submitted.
    pub(super) operations: usize,
    pub(super) faults: usize,
    /// Processes are given up with what they alone have.
    pub(super) reckless: bool,
    /// When the members change at the latest.
    reconfigure_us: u64,
    /// Basic reads that have come to storage processes whose suspicion had been ordered. Nobody may have a lease then.
    pub(super) late_reads: HashSet<(ProcessId, MessageId)>,
    /// What has turned out to be wrong where nothing can be returned.
    pub(super) wrong: Option<String>,
    checkpoints: Checkpoints,
    /// The last checkpoint before the one that ends the run.
    last_checkpoint: Option<Ts>,
    /// Draws what is staged, where INSERTs are.
    pub(super) staging: Option<Random>,
    /// Parts of staged rows of which a file has been damaged or lost somewhere.
    pub(super) damaged: BTreeSet<(PayloadId, KeyRange)>,
    /// Messages are said again, out of turn.
    pub(super) strays: bool,
    /// Disks take so much longer.
    pub(super) disk_us: u64,
    /// Whose disk takes no checkpoints.
    pub(super) full_disk: Option<ProcessId>,
    pub(super) report: Report,
    pub(super) hash: xxhash_rust::xxh3::Xxh3,
    lines: VecDeque<String>,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> World {
        let mut random = Random::new(seed);
        let routers = if random.one_in(6) { 1 } else { 3 };
        let storage = random.within(2..5) as u32;
        let replication = if random.one_in(4) { 1 } else { 2 };
        let config = Arc::new(Config::evenly(storage, replication).expect("a ring"));
        let mut world = World {
            operations: options.operations,
            faults: options.faults,
            options,
            now_us: 0,
            turmoil_us: 0,
            phase: Phase::Turmoil,
            due: BTreeMap::new(),
            sequence: 1 << 63,
            postponed: 0,
            network: Network::default(),
            lives: BTreeMap::new(),
            replay: Replay::new(config.clone()),
            agreed: BTreeMap::new(),
            config,
            first_routers: routers,
            routers: BTreeMap::new(),
            router_disks: BTreeMap::new(),
            storage: BTreeMap::new(),
            storage_disks: BTreeMap::new(),
            clients: BTreeMap::new(),
            statements: Vec::new(),
            committed: BTreeMap::new(),
            aborted: BTreeSet::new(),
            voted_down: BTreeSet::new(),
            reckless: random.one_in(16),
            reconfigure_us: random.within(1_000_000..6_000_000),
            late_reads: HashSet::new(),
            wrong: None,
            checkpoints: Checkpoints::new(CheckpointPolicy { bytes: u64::MAX, interval_ms: 2_000 }, 0),
            last_checkpoint: None,
            staging: None,
            damaged: BTreeSet::new(),
            strays: false,
            disk_us: 0,
            full_disk: None,
            report: Report::default(),
            hash: xxhash_rust::xxh3::Xxh3::new(),
            lines: VecDeque::new(),
            random,
        };
        let routers = (1..=routers).map(ProcessId::router);
        let processes = routers.chain((1..=storage).map(ProcessId::storage));
        for process in processes.chain((1..=2).map(ProcessId::client)) {
            world.lives.insert(process, Life::default());
        }
        // Of another sequence, so that nothing else is drawn otherwise.
        if options.super_processes && Random::new(seed.rotate_left(32)).one_in(2) {
            let supers = (1..=world.first_routers).map(ProcessId::super_process);
            world.lives.extend(supers.map(|process| (process, Life::default())));
        }
        let mut random = Random::new(seed.rotate_left(16));
        world.staging = (options.staging && random.one_in(2)).then_some(random);
        for process in world.processes() {
            world.start(process);
        }
        for _ in 0..world.faults {
            let at_us = world.random.within(200_000..7_000_000);
            world.at(at_us, 0, Item::Fault);
        }
        let standbys = if options.reshapes > 0 { world.random.below(3) as u32 } else { 0 };
        for number in 1..=standbys {
            let standby = ProcessId::storage(storage + number);
            world.lives.insert(standby, Life::default());
            let at_us = world.random.within(100_000..4_000_000);
            world.at(at_us, 0, Item::Restart(standby));
        }
        let reshapes = if options.reshapes > 0 { world.random.below(options.reshapes as u64 + 1) } else { 0 };
        for _ in 0..reshapes {
            let at_us = world.random.within(500_000..7_000_000);
            world.at(at_us, 0, Item::Reshape);
        }
        // Of another sequence, so that nothing else is drawn otherwise.
        let mut random = Random::new(!seed);
        if options.router_changes > 0 && random.one_in(3) {
            for _ in 0..random.within(1..options.router_changes as u64 + 1) {
                world.at(random.within(300_000..7_000_000), 0, Item::ChangeRouters);
            }
        }
        world.at(100_000, 0, Item::Look);
        world
    }

    pub(super) fn processes(&self) -> Vec<ProcessId> {
        self.lives.keys().copied().collect()
    }

    /// Processes of a kind.
    pub(super) fn of_kind(&self, kind: ProcessKind) -> Vec<ProcessId> {
        self.lives.keys().copied().filter(|process| process.kind == kind).collect()
    }

    pub(super) fn is_up(&self, process: ProcessId) -> bool {
        self.lives.get(&process).is_some_and(|life| life.up)
    }

    pub(super) fn incarnation(&self, process: ProcessId) -> u64 {
        let life = &self.lives[&process];
        life.number - life.forgotten
    }

    /// The directory of a process that is down is lost, in which its lives are counted.
    pub(super) fn forget_lives(&mut self, process: ProcessId) {
        self.note([7, 1], || format!("{process} loses its directory"));
        if let Some(life) = self.lives.get_mut(&process) {
            life.forgotten = life.number;
            life.directory += 1;
        }
    }

    /// A process that is down counts its next life on from one of which it has been told.
    pub(super) fn count_on(&mut self, process: ProcessId, newest: u64) {
        if let Some(life) = self.lives.get_mut(&process) {
            life.forgotten = life.number - newest;
        }
    }

    /// What a process's own clock says, in milliseconds since its start.
    pub(super) fn clock_ms(&self, process: ProcessId) -> u64 {
        let life = &self.lives[&process];
        (self.now_us - life.started_us + life.ahead_us) / 1_000
    }

    fn at(&mut self, at_us: u64, life: u64, item: Item) {
        self.sequence += 1;
        self.due.insert((at_us, self.sequence), (life, item));
    }

    /// Something happens to a process that pauses: when it goes on, in the same order and before anything else.
    fn postpone(&mut self, until_us: u64, life: u64, item: Item) {
        self.postponed += 1;
        self.due.insert((until_us, self.postponed), (life, item));
    }

    /// All pauses end.
    pub(super) fn end_pauses(&mut self) {
        self.lives.values_mut().for_each(|life| life.paused_until_us = 0);
        let (now_us, first) = (self.now_us, 1 << 63);
        let postponed: Vec<_> = self.due.extract_if(.., |(_, number), _| *number < first).collect();
        postponed.into_iter().for_each(|(_, (life, item))| self.postpone(now_us, life, item));
    }

    /// Something is due at a time, if the process it is about still lives this life.
    pub(super) fn schedule_at(&mut self, at_us: u64, item: Item) {
        let life = item.owner().map_or(0, |owner| self.lives[&owner].number);
        self.at(at_us.max(self.now_us), life, item);
    }

    /// Something is due after a while.
    pub(super) fn schedule(&mut self, delay_us: u64, item: Item) {
        self.schedule_at(self.now_us + delay_us, item);
    }

    /// How long a message takes: mostly about a millisecond, sometimes much longer.
    pub(super) fn delay_us(&mut self) -> u64 {
        match self.random.one_in(40) {
            true => self.random.within(2_000..60_000),
            false => self.random.within(50..2_000),
        }
    }

    /// Notes an event for the trace; the numbers tell runs apart.
    pub(super) fn note(&mut self, numbers: [u64; 2], line: impl FnOnce() -> String) {
        self.hash.update(&self.now_us.to_le_bytes());
        numbers.iter().for_each(|number| self.hash.update(&number.to_le_bytes()));
        if self.options.trace {
            let mut text = format!("{:>12.3} ", self.now_us as f64 / 1_000.0);
            let _ = write!(text, "{}", line());
            self.hash.update(text.as_bytes());
            if self.lines.len() == LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(text);
        }
    }

    /// The last lines of the trace.
    pub(super) fn lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines).into()
    }

    /// Sends from one process to another.
    pub(super) fn send(&mut self, from: ProcessId, to: ProcessId, wire: Wire) {
        assert!(wire.is_for(from.kind, to.kind), "{from} says to {to}: {wire:?}");
        let delay_us = self.delay_us();
        if !self.is_up(to) || self.network.are_apart(from, to) {
            let wait_us = if self.is_up(to) || !self.network.is_blocked(from, to) { 0 } else { BREAK_US };
            // Who has much to do hears of it last.
            let late_us = if self.random.one_in(8) { self.random.below(100_000) } else { 0 };
            let after_us = delay_us + wait_us + late_us;
            return self.schedule(after_us, Item::Unreachable { process: from, peer: to });
        }
        if self.strays && is_suppressed_twice(&wire) && self.random.one_in(8) {
            let later_us = self.random.within(1_000..500_000);
            self.schedule(later_us, Item::Stray { from, to, wire: wire.clone() });
        }
        let (at_us, arrival) = self.network.send(from, to, wire, self.now_us, delay_us);
        self.schedule_at(at_us, Item::Arrive(arrival));
    }

    /// What is under way is lost with the process that ends; the sender hears of it.
    pub(super) fn reset(&mut self, from: ProcessId, to: ProcessId) {
        if self.network.reset(from, to) && self.is_up(from) {
            let delay_us = self.delay_us();
            self.schedule(delay_us, Item::Unreachable { process: from, peer: to });
        }
    }

    /// A process begins its next life.
    pub(super) fn start(&mut self, process: ProcessId) {
        let now_us = self.now_us;
        if process.kind == ProcessKind::Router && self.is_removed(process) {
            // Others tell it.
            self.lives.entry(process).or_default().gone = true;
        }
        if process.kind == ProcessKind::Super && !self.is_up(supers::beside(process)) {
            return;
        }
        let Some(life) = self.lives.get_mut(&process).filter(|life| !life.up && !life.gone) else { return };
        let Life { number: ended, forgotten, directory, .. } = *life;
        let number = ended + 1;
        *life = Life { number, forgotten, directory, up: true, started_us: now_us, ..Life::default() };
        self.note([1, number], || format!("{process} starts life {number}"));
        self.come_slowly(process);
        let jitter_us = self.random.below(TICK_US);
        self.schedule(jitter_us, Item::Tick(process));
        match process.kind {
            ProcessKind::Router => {
                self.schedule(jitter_us % CONSENSUS_TICK_US, Item::ConsensusTick(process));
                self.start_router(process);
                self.start(ProcessId::super_process(process.number));
            }
            ProcessKind::Storage => self.start_storage(process),
            ProcessKind::Client | ProcessKind::Super => self.start_client(process),
        }
    }

    /// A process that has started may meet others later than these can be expected to talk to it.
    fn come_slowly(&mut self, process: ProcessId) {
        for other in self.processes() {
            if other != process && self.is_up(other) && self.random.one_in(4) {
                let slowest_us = if self.random.one_in(8) { 2_500_000 } else { 200_000 };
                let after_us = self.random.within(1_000..slowest_us);
                self.network.separate(process, other);
                self.schedule(after_us, Item::Meet(process, other));
            }
        }
    }

    /// A process ends, without a word.
    pub(super) fn crash(&mut self, process: ProcessId) {
        let Some(life) = self.lives.get_mut(&process).filter(|life| life.up) else { return };
        life.up = false;
        // What it has still to do is not done.
        life.number += 1;
        self.note([2, 0], || format!("{process} crashes"));
        match process.kind {
            ProcessKind::Router => {
                self.crash_router(process);
                self.crash(ProcessId::super_process(process.number));
            }
            ProcessKind::Storage => self.crash_storage(process),
            ProcessKind::Client | ProcessKind::Super => drop(self.clients.remove(&process)),
        }
        for other in self.processes() {
            self.reset(process, other);
            self.reset(other, process);
        }
        self.network.forget(process);
    }

    /// Two living processes have not reached one another for too long.
    fn break_session(&mut self, a: ProcessId, b: ProcessId) {
        self.note([16, 0], || format!("the session of {a} and {b} breaks"));
        self.network.break_session(a, b);
        for (process, peer) in [(a, b), (b, a)] {
            let delay_us = self.delay_us();
            self.schedule(delay_us, Item::Unreachable { process, peer });
        }
    }

    /// Goes on until all is done.
    pub(super) fn run(&mut self) -> Result<(), String> {
        while self.phase != Phase::Over {
            let Some(((at_us, _), (life, item))) = self.due.pop_first() else {
                return Err("nothing is due any more".into());
            };
            self.now_us = at_us;
            self.report.events += 1;
            if let Some(owner) = item.owner() {
                let Some(known) = self.lives.get(&owner) else { continue };
                if known.number != life || !known.up {
                    continue;
                }
                if known.paused_until_us > at_us {
                    let until_us = known.paused_until_us;
                    self.postpone(until_us, life, item);
                    continue;
                }
            }
            self.happen(item)?;
            if let Some(wrong) = self.wrong.take() {
                return Err(wrong);
            }
            if self.phase != Phase::Turmoil && self.now_us > self.turmoil_us + DRAIN_US {
                return Err(self.unfinished());
            }
        }
        self.report.trace_hash = self.hash.digest();
        self.report.reconfigurations = self.replay.reconfigurations();
        self.report.losses = self.replay.losses();
        self.report.virtual_us = self.now_us;
        Ok(())
    }

    fn happen(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Arrive(arrival) => match self.network.arrive(arrival) {
                Arrived::Wire(wire) => self.receive(arrival.from, arrival.to, wire),
                Arrived::Blocked(since_us) => {
                    if self.now_us >= since_us + BREAK_US {
                        self.break_session(arrival.from, arrival.to);
                    } else {
                        self.schedule(20_000, Item::Arrive(arrival));
                    }
                    Ok(())
                }
                Arrived::Lost => Ok(()),
            },
            Item::Lost { process, peer } => {
                let asks = matches!(process.kind, ProcessKind::Client | ProcessKind::Super);
                if asks && peer.kind == ProcessKind::Storage {
                    let now_us = self.now_us;
                    self.lives.entry(process).or_default().lost_us = Some(now_us);
                }
                self.receive(peer, process, Wire::Lost)
            }
            Item::Stray { from, to, wire } => self.receive(from, to, wire),
            Item::Consensus { from, to, message } => self.receive_consensus(from, to, message),
            Item::Unreachable { process, peer } => {
                self.note([4, 0], || format!("{process} cannot reach {peer}"));
                if self.is_removed(peer) {
                    self.ask_around(process);
                }
                match process.kind {
                    ProcessKind::Router => Ok(()),
                    ProcessKind::Storage => {
                        self.storage_input(process, storage::node::Input::Unreachable(peer))
                    }
                    ProcessKind::Client | ProcessKind::Super => {
                        self.client_event(process, crate::client::core::Event::Unreachable(peer))
                    }
                }
            }
            Item::Tick(process) => {
                self.schedule(TICK_US, Item::Tick(process));
                let now_ms = self.clock_ms(process);
                match process.kind {
                    ProcessKind::Router => self.router_input(process, router::core::Input::Tick(now_ms)),
                    ProcessKind::Storage => self.storage_input(process, storage::node::Input::Tick(now_ms)),
                    ProcessKind::Client | ProcessKind::Super => self.client_tick(process, now_ms),
                }
            }
            Item::ConsensusTick(process) => {
                self.schedule(CONSENSUS_TICK_US, Item::ConsensusTick(process));
                self.tick_consensus(process)
            }
            Item::Router { to, input } => self.router_input(to, input),
            Item::RouterDisk(process) => self.router_wrote(process),
            Item::Scan { storage, shard } => self.scan(storage, shard),
            Item::Storage { to, input } => self.storage_input(to, input),
            Item::CheckpointWritten(process) => self.checkpoint_written(process),
            Item::Payloads(process) => self.obey_payloads(process),
            Item::Submit(process) => self.submit(process),
            Item::Fault => self.fault(),
            Item::ChangeRouters => self.change_routers_somehow(),
            Item::Replaced(client) => {
                self.replace(client);
                Ok(())
            }
            Item::Meet(a, b) => {
                self.meet(Some((a, b)));
                Ok(())
            }
            Item::EndOf(disturbance) => {
                self.end(&disturbance);
                Ok(())
            }
            Item::Restart(process) => {
                self.start(process);
                Ok(())
            }
            Item::Reshape => self.reshape(),
            Item::Look => {
                self.schedule(100_000, Item::Look);
                self.look()
            }
        }
    }

    /// Whether a storage process is suspected, and no router's clock has jumped: leases last as long as clocks go on.
    fn is_without_lease(&self, process: ProcessId) -> bool {
        let jumped =
            |(process, life): (&ProcessId, &Life)| process.kind == ProcessKind::Router && life.ahead_us > 0;
        self.replay.is_fenced(process, self.incarnation(process)) && !self.lives.iter().any(jumped)
    }

    fn receive(&mut self, from: ProcessId, to: ProcessId, wire: Wire) -> Result<(), String> {
        let (sender, receiver) = (u64::from(from.number), u64::from(to.number));
        self.note([sender << 8 | receiver, wire.lane() as u64], || {
            format!("{from} -> {to} {}", brief(&wire))
        });
        match to.kind {
            ProcessKind::Router => self.router_input(to, router::core::Input::Received { from, wire }),
            ProcessKind::Storage => {
                if let Wire::AskVotes(missing) = &wire {
                    self.check_votes(from, to, missing)?;
                }
                if let Wire::BasicRead { reads, .. } = &wire
                    && self.is_without_lease(to)
                {
                    self.late_reads.extend(reads.iter().map(|(read, _)| (to, read.id)));
                }
                self.storage_input(to, storage::node::Input::Received { from, wire })
            }
            ProcessKind::Client | ProcessKind::Super => {
                if matches!(wire, Wire::SubscribeRefused { .. }) {
                    self.lives.entry(to).or_default().lost_us = Some(self.now_us);
                }
                self.client_received(to, from, wire)
            }
        }
    }

    /// Whether the run can go on to its next phase.
    fn look(&mut self) -> Result<(), String> {
        if self.phase == Phase::Turmoil
            && self.now_us >= self.reconfigure_us
            && self.replay.reconfigurations() == 0
        {
            self.reconfigure_us += 1_000_000;
            self.reconfigure()?;
        }
        let before = self.last_checkpoint;
        let too_few = self.report.faults < (self.options.faults * 5 / 8) as u64;
        match self.phase {
            Phase::Turmoil if self.now_us > TURMOIL_US && too_few && self.now_us < 2 * TURMOIL_US => {
                self.fault()?;
            }
            Phase::Turmoil
                if self.now_us > TURMOIL_US && (self.operations == 0 || self.now_us > 2 * TURMOIL_US) =>
            {
                self.note([5, 0], || "the faults end".into());
                self.phase = Phase::Drain;
                self.turmoil_us = self.now_us;
                self.heal();
            }
            Phase::Drain if self.has_nobody() && !self.has_supers() => self.suspect_nobody()?,
            Phase::Drain if self.has_supers() && (self.has_nobody() || self.to_heal().is_some()) => {}
            Phase::Drain
                if self.operations == 0
                    && self.clients.values().all(ClientHost::is_idle)
                    && self.replay.config().migrations().is_empty() =>
            {
                self.last_checkpoint = self.report.last_checkpoint;
                let ordered = self.submit_last_checkpoint();
                self.phase = if ordered { Phase::Checkpoint } else { Phase::Drain };
            }
            Phase::Drain if !self.has_supers() && self.clients.values().all(ClientHost::is_idle) => {
                self.checkpoint_if_due();
            }
            Phase::Checkpoint if self.is_checkpointed() => {
                self.phase = Phase::Over;
            }
            // Whoever asked for the checkpoint has been suspected meanwhile.
            Phase::Checkpoint
                if self.report.last_checkpoint == before
                    && self.clients.values().all(ClientHost::is_idle) =>
            {
                self.phase = Phase::Drain;
            }
            _ => {}
        }
        Ok(())
    }

    /// What a super process does: whoever could not write what it has received waits for the next checkpoint.
    fn checkpoint_if_due(&mut self) {
        let now_ms = self.now_us / 1_000;
        let heard: Vec<Heartbeat> = self.storage.values().map(StorageHost::heartbeat).collect();
        if self.checkpoints.is_due(now_ms, &heard, true) {
            self.checkpoints.ordered(now_ms, true);
            self.submit_last_checkpoint();
        }
    }

    fn unfinished(&self) -> String {
        let mut text = String::from("after the faults had ended, not everything came to its end:");
        for (client, host) in &self.clients {
            let _ = write!(text, " {client}: {};", host.unfinished());
        }
        for (storage, host) in &self.storage {
            let _ = write!(text, " {storage}: {:?};", host.progress());
        }
        let migrations = self.replay.config().migrations();
        let _ = write!(text, " the m-seq ends at {}, {:?}; ", self.replay.ts(), self.report.last_checkpoint);
        let _ = write!(text, "migrations: {migrations:?}; ");
        if self.has_supers() {
            let _ = write!(text, "to heal: {:?}; ", self.to_heal());
        }
        text.push_str("undecided:");
        for (storage, host) in &self.storage {
            let _ = write!(text, " {storage}: {:?}", host.missing_votes().collect::<Vec<_>>());
            let _ = write!(text, "{}", if host.payloads.keeps_any() { ", keeps staged rows" } else { "" });
        }
        text
    }
}

/// Whether the receiver says that a second copy, out of turn, does no harm.
fn is_suppressed_twice(wire: &Wire) -> bool {
    matches!(
        wire,
        Wire::Route(_)
            | Wire::Votes { .. }
            | Wire::AskVotes(_)
            | Wire::NoVotes { .. }
            | Wire::Durable { .. }
            | Wire::Confirm(_)
            | Wire::Ordered { .. }
            | Wire::Resend { .. }
            | Wire::NotLeader { .. }
            | Wire::Hello
            | Wire::AskAnswers(_)
            | Wire::Memory { .. }
            | Wire::Loading(_)
            | Wire::Statistics(_)
            | Wire::Restarted { .. }
            | Wire::ReadsLost(_)
            | Wire::AskRows { .. }
            | Wire::RowsFollow { .. }
            | Wire::Stage(_)
            | Wire::Staged { .. }
            | Wire::FetchChunk { .. }
            | Wire::StagedRows { .. }
            | Wire::Rows { .. }
    ) || matches!(wire, Wire::Deliver { deliveries, .. }
        if deliveries.iter().all(|delivery| delivery.message.id.is_ordered()))
}

/// A message in a line.
fn brief(wire: &Wire) -> String {
    match wire {
        Wire::Route(messages) => {
            let ids: Vec<String> = messages.iter().map(|message| short(&message.id)).collect();
            format!("route {}", ids.join(" "))
        }
        Wire::Read { messages, seen } => {
            let ids: Vec<String> = messages.iter().map(|message| short(&message.id)).collect();
            format!("read {} seen={seen}", ids.join(" "))
        }
        Wire::Deliver { after, deliveries, frontier, .. } => {
            let list: Vec<String> = deliveries
                .iter()
                .map(|delivery| format!("{}:{}", delivery.ts, short(&delivery.message.id)))
                .collect();
            format!("deliver after={after} [{}] frontier={frontier}", list.join(" "))
        }
        Wire::Answers(answers) => {
            let list: Vec<String> = answers
                .iter()
                .map(|answer| {
                    let part = match &answer.part {
                        crate::wire::AnswerPart::Rows { batch, .. } => format!("{} rows", batch.num_rows()),
                        crate::wire::AnswerPart::Fetched { batch, .. } => {
                            format!("{} fetched rows", batch.num_rows())
                        }
                        crate::wire::AnswerPart::Kept(_) => "kept".into(),
                        crate::wire::AnswerPart::Returned(_) => "returned".into(),
                        crate::wire::AnswerPart::Groups(_) => "groups".into(),
                        crate::wire::AnswerPart::Done { outcomes, .. } => {
                            let outcomes: Vec<String> = outcomes
                                .iter()
                                .map(|(_, outcome)| match outcome {
                                    Ok(rows) => rows.to_string(),
                                    Err(error) => error.code.as_str().to_string(),
                                })
                                .collect();
                            format!("done {}", outcomes.join(","))
                        }
                        crate::wire::AnswerPart::Stale => "stale".into(),
                        crate::wire::AnswerPart::TooOld => "too old".into(),
                    };
                    format!("{}@{} {part}", short(&answer.id), answer.ts)
                })
                .collect();
            format!("answers {}", list.join("; "))
        }
        Wire::Votes { votes, .. } => {
            let votes: Vec<String> = votes
                .iter()
                .map(|vote| format!("{} {:x}={:?}", vote.ts, vote.range.first >> 60, vote.vote))
                .collect();
            format!("votes {}", votes.join(", "))
        }
        Wire::State { ts, leadership, catalog, .. } => {
            format!("state ts={ts} leadership={leadership:x} catalog={}", catalog.is_some())
        }
        Wire::Confirm(marks) => {
            format!("confirm {}/{}/{}", marks.delivered, marks.executed, marks.durable)
        }
        Wire::Durable { ts, reply, .. } => format!("durable ts={ts} reply={reply}"),
        other => format!("{other:?}"),
    }
}

fn short(id: &crate::message::MessageId) -> String {
    match id.is_ordered() {
        true => format!("{}.{}.{}", id.submitter, id.incarnation, id.sequence),
        false => format!("{}.{}.r{}", id.submitter, id.incarnation, id.sequence & !(1 << 63)),
    }
}
