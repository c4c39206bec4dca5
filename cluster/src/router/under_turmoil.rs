//! Routers as they are deployed, with openraft, their logs and the transport, on the simulated network and in the
//! simulated time of [`turmoil`]: the other half of [`crate::sim`], which has models of the consensus and of connections.
//!
//! ```text
//!   c1 c2 --Route--> [ r1 r2 r3: core, consensus, log on disk ] --Deliver--> s1 s2 s3
//!
//!   each on a host of its own with its own network, sessions and frames, over turmoil's TCP
//! ```
//!
//! Clients submit and storage processes follow while links are partitioned in both directions or in one, held and
//! released, slow or losing what is under way, which ends connections, and while routers crash, one by one or all at
//! once, the leader more often than others. A crash loses what the log was asked to write and has not written
//! (`crate::wal::simulated`). Checked as it happens: all routers learn the same message at the same `Ts`, each once and
//! those of a submitter in its order; what a client hears to be ordered is, and whoever begins to lead has learned what
//! earlier leaders have ordered. When the faults have ended, within a bounded time: everything submitted is ordered and
//! learned by every router, and every storage process has received all that is for it, in order and without a gap. A
//! router that leads no more soon grants no leases. Then
//! all routers lose their power and start again; what they have on their disks is still the same m-seq.
//!
//! turmoil's TCP sends nothing again: what a link loses stalls its connection until the transport gives that up. Across a
//! partition connections are refused at once; on held links, and to hosts that are down, attempts to connect hang.
//!
//! The faults, the delays of links and disks, and what is submitted follow from the seed. openraft's election timeouts,
//! the numbers of sessions and which of several ready branches a `tokio::select!` takes do not: a seed that has failed
//! may have to be run some times until it fails again.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::pending,
    ops::{Range, RangeInclusive},
    rc::Rc,
    sync::Mutex,
};

use carousel_engine::{Ts, position::KeyRange};
use turmoil::Sim;

use super::{
    processes::{Received, Submitter, follow_and_confirm},
    testing::{read, truncate_table, write},
    *,
};
use crate::{
    message::{Incarnation, Message, MessageId},
    planted::{Bug, plant},
    router::mseq::Learned,
    sim::{Random, each_seed},
    transport::{Transport, TransportOptions},
    wal,
};

const ROUTERS: u32 = 3;
const STORAGE: u32 = 3;
const CLIENTS: u32 = 2;
const PORT: u16 = 7_000;
/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(15);
/// How finely time is simulated.
const TICK_OF_SIMULATION: Duration = Duration::from_millis(2);
/// How long leaders may grant leases after another one has begun to lead, which waits for those.
const GRANTED: Duration = Duration::from_millis(500);
/// How long a message takes at most on a link without a fault.
const LATENCY: Duration = Duration::from_millis(20);
/// … and on a slow one.
const SLOW: Duration = Duration::from_millis(400);
/// … and between processes that are far from one another.
const FAR: Duration = Duration::from_millis(60);
/// How long it may take without faults until everything is as it should be: some times as long as the transport waits
/// before it gives up a session.
const HEALED: Duration = Duration::from_secs(15);

/// What has happened.
#[derive(Clone, Debug, Default)]
struct Report {
    seeds: u64,
    messages: u64,
    /// Times that a router began to lead.
    leaders: u64,
    /// Times that a router took over another's state, as the log before it had been cut.
    snapshots: u64,
    partitions: u64,
    one_way: u64,
    held: u64,
    lossy: u64,
    slow: u64,
    crashes: u64,
    /// Those of a router that led.
    crashes_of_leaders: u64,
    /// Those of all routers at once.
    blackouts: u64,
    simulated: Duration,
}

impl Report {
    fn add(&mut self, other: &Report) {
        self.seeds += other.seeds;
        self.messages += other.messages;
        self.leaders += other.leaders;
        self.snapshots += other.snapshots;
        self.partitions += other.partitions;
        self.one_way += other.one_way;
        self.held += other.held;
        self.lossy += other.lossy;
        self.slow += other.slow;
        self.crashes += other.crashes;
        self.crashes_of_leaders += other.crashes_of_leaders;
        self.blackouts += other.blackouts;
        self.simulated += other.simulated;
    }
}

/// How a router began to lead.
struct Leadership {
    router: ProcessId,
    at: Duration,
    /// How far messages were ordered.
    ordered: Ts,
}

/// The m-seq, as the routers of the simulation on this thread have learned it, and the first thing that was wrong.
#[derive(Default)]
struct History {
    /// The message of each `Ts`, from 1 on, and its destinations.
    messages: Vec<(MessageId, Vec<ProcessId>)>,
    /// The last sequence number of each submitter.
    last: BTreeMap<ProcessId, u64>,
    /// How far each router has come in its present life.
    reached: BTreeMap<ProcessId, Ts>,
    /// Messages up to here are ordered, as clients have heard.
    ordered: Ts,
    /// By term.
    leaderships: BTreeMap<u64, Leadership>,
    snapshots: u64,
    wrong: Option<String>,
}

thread_local! {
    static HISTORY: RefCell<Option<History>> = const { RefCell::new(None) };
}

/// Calls `f` if there is a simulation on this thread.
fn with_history<T>(f: impl FnOnce(&mut History) -> T) -> Option<T> {
    HISTORY.with_borrow_mut(|history| history.as_mut().map(f))
}

/// A router has heard something of the consensus.
pub(super) fn heard(router: ProcessId, input: &Input) {
    with_history(|history| match input {
        Input::Learned { mseq, learned } => {
            for learned in learned {
                if let Learned::Message(routed) = learned {
                    let destinations = routed.destinations.iter().map(|(to, _)| *to).collect();
                    history.learn(router, routed.ts, (routed.message.id, destinations));
                }
            }
            history.reached.insert(router, mseq.ts());
        }
        Input::Installed(mseq) => {
            history.snapshots += 1;
            history.reached.insert(router, mseq.ts());
            if mseq.ts() > history.end() {
                history.fail(format!("{router} takes over a state at {} that nobody has learned", mseq.ts()));
            }
        }
        _ => {}
    });
}

/// A router begins to lead in a term.
pub(super) fn leads(router: ProcessId, term: u64) {
    with_history(|history| {
        // It may be late: what later leaders have ordered it need not have.
        let later = history.leaderships.range(term + 1..).map(|(_, later)| later.ordered).min();
        let ordered = later.unwrap_or(history.ordered);
        let reached = history.reached.get(&router).copied().unwrap_or(Ts::ZERO);
        if reached < ordered {
            history.fail(format!("{router} leads at {reached}, but messages up to {ordered} were ordered"));
        }
        let at = turmoil::sim_elapsed().unwrap_or_default();
        // It may lead again in the same term.
        let ordered = history.ordered;
        history.leaderships.entry(term).or_insert(Leadership { router, at, ordered });
    });
}

impl History {
    fn fail(&mut self, reason: String) {
        self.wrong.get_or_insert(reason);
    }

    fn end(&self) -> Ts {
        Ts(self.messages.len() as u64)
    }

    fn at(&self, ts: Ts) -> Option<&(MessageId, Vec<ProcessId>)> {
        self.messages.get((ts.0 as usize).checked_sub(1)?)
    }

    fn learn(&mut self, router: ProcessId, ts: Ts, message: (MessageId, Vec<ProcessId>)) {
        match self.at(ts) {
            Some(known) if *known == message => {}
            Some(known) => {
                let reason = format!("{router} learns {message:?} at {ts}, where others have {known:?}");
                self.fail(reason);
            }
            None => {
                let id = message.0;
                let last = self.last.insert(id.submitter, id.sequence).unwrap_or(0);
                if id.sequence != last + 1 {
                    self.fail(format!("{router} learns {id:?} behind {last}"));
                }
                if ts.0 != self.end().0 + 1 {
                    self.fail(format!("{router} learns {ts} behind {}", self.end()));
                }
                self.messages.push(message);
            }
        }
    }

    /// A router has granted a lease that was asked for at `asked`: later leaders wait for it, if it is not too late.
    fn leased(&mut self, router: ProcessId, asked: Duration) {
        let led =
            self.leaderships.iter().filter(|(_, led)| led.router == router).map(|(term, _)| *term).max();
        let later = led.and_then(|term| self.leaderships.range(term + 1..).map(|(_, later)| later.at).min());
        if let Some(later) = later.filter(|later| asked > *later + GRANTED) {
            self.fail(format!("{router} grants a lease at {asked:?}, but another router led at {later:?}"));
        }
    }

    /// What a process receives of what is behind `after`.
    fn share(&self, process: ProcessId, after: Ts) -> Received {
        let all = (1..).map(Ts).zip(&self.messages);
        let own = all.filter(|(ts, (_, to))| *ts > after && to.contains(&process));
        own.map(|(ts, (id, _))| (ts, *id)).collect()
    }
}

/// What the hosts and the driver share.
struct Shared {
    seed: u64,
    directory: tempfile::TempDir,
    routers: BTreeSet<ProcessId>,
    config: Config,
    timing: Timing,
    /// Whether storage processes confirm, so that the log is cut.
    confirm: bool,
    starts: RefCell<BTreeMap<ProcessId, Incarnation>>,
    handles: RefCell<BTreeMap<ProcessId, RouterHandle>>,
    /// Clients submit no more.
    enough: Cell<bool>,
    until: watch::Sender<Option<Ts>>,
    /// Storage processes begin again.
    again: watch::Sender<bool>,
    /// Clients and storage processes that have done what they were to do.
    done: Cell<u32>,
}

impl Shared {
    async fn connect(&self, id: ProcessId) -> Result<(Network, Transport), Box<dyn std::error::Error>> {
        let incarnation = {
            let mut starts = self.starts.borrow_mut();
            let start = starts.entry(id).or_insert(0);
            *start += 1;
            *start
        };
        let address = |router: &ProcessId| (*router, format!("{router}:{PORT}"));
        let options = TransportOptions {
            cluster: "turmoil".into(),
            shape: "three routers".into(),
            description: String::new(),
            members: self.routers.iter().map(address).collect(),
            locals: [id].into(),
            listen: self.routers.contains(&id).then_some(([0, 0, 0, 0], PORT).into()),
            incarnation,
            directory: 1,
            heard: None,
            tls: None,
            unnamed_certificates: true,
        };
        let network = Network::new();
        let transport = Transport::start(options, &network).await?;
        Ok((network, transport))
    }
}

/// A router's host.
async fn router(id: ProcessId, shared: Rc<Shared>) -> turmoil::Result {
    with_history(|history| history.reached.insert(id, Ts::ZERO));
    let (network, transport) = shared.connect(id).await?;
    transport.ask_for_routers().await?;
    let directory = shared.directory.path().join(id.to_string());
    // Small, so that batches are split, old messages are read from the log, and the log's files come and go.
    let durability =
        Durability::Disk { directory, limits: wal::Limits { segment_bytes: 10_000, ..Default::default() } };
    let options = Options {
        limits: Limits { deliver_messages: 7, window_bytes: 40_000, ..Limits::default() },
        timing: shared.timing.clone(),
        ..Options::member(id, shared.routers.clone(), shared.config.clone(), durability)
    };
    let router = Router::start(options, &network).await?;
    shared.handles.borrow_mut().insert(id, router.clone());
    router.stop.closed().await;
    Err(format!("{id} has stopped: {:?}", router.state()).into())
}

/// A client's host.
async fn client(id: ProcessId, shared: Rc<Shared>) -> turmoil::Result {
    let mut random = Random::new(shared.seed.wrapping_add(u64::from(id.number) << 32));
    let (network, _transport) = shared.connect(id).await?;
    let mut submitter = Submitter::new(&network, &shared.routers, id);
    let mut sequence = 0;
    let mut message = |random: &mut Random| -> Message {
        sequence += 1;
        match random.below(4) {
            0 => truncate_table(id, 1, sequence),
            1 => read(id, 1, sequence, random.below(3) as u32),
            _ => {
                let (one, other) = (random.bits(), random.bits());
                write(id, 1, sequence, KeyRange::new(one.min(other), one.max(other)))
            }
        }
    };
    while !shared.enough.get() {
        let messages = (0..random.within(1..10)).map(|_| message(&mut random)).collect();
        let ordered = |id: MessageId, ts: Ts| {
            with_history(|history| {
                history.ordered = history.ordered.max(ts);
                if history.at(ts).is_none_or(|(found, _)| *found != id) {
                    let reason = format!("{id:?} is said to be at {ts}, where is {:?}", history.at(ts));
                    history.fail(reason);
                }
            });
        };
        submitter.submit(messages, ordered).await;
        tokio::time::sleep(Duration::from_millis(random.below(40))).await;
    }
    shared.done.set(shared.done.get() + 1);
    pending().await
}

/// A storage process's host.
async fn storage(id: ProcessId, shared: Rc<Shared>) -> turmoil::Result {
    let (network, _transport) = shared.connect(id).await?;
    let follow = |after, confirm| {
        let (network, routers) = (network.clone(), shared.routers.clone());
        let leased = |router, asked| {
            with_history(|history| history.leased(router, asked));
        };
        follow_and_confirm(network, routers, id, after, shared.until.subscribe(), confirm, leased)
    };
    let check = |after, received: Received| {
        let expected = with_history(|history| history.share(id, after)).unwrap_or_default();
        let differs = |place: &usize| received.get(*place) != expected.get(*place);
        match (0..received.len().max(expected.len())).find(differs) {
            None => {
                shared.done.set(shared.done.get() + 1);
                Ok(())
            }
            Some(place) => {
                let (found, due) = (received.get(place), expected.get(place));
                Err(format!("{id}, which follows from {after}, has received {found:?} where {due:?} was due"))
            }
        }
    };
    match follow(Ts::ZERO, shared.confirm).await {
        Ok(received) => check(Ts::ZERO, received)?,
        Err(purged) => return Err(format!("{id} misses what was cut off, up to {purged}").into()),
    }
    shared.again.subscribe().wait_for(|again| *again).await?;
    let mut after = Ts::ZERO;
    let received = loop {
        match follow(after, false).await {
            Ok(received) => break received,
            Err(purged) => after = purged,
        }
    };
    check(after, received)?;
    pending().await
}

/// A fault that has an end.
struct Fault {
    until: Duration,
    links: Vec<(ProcessId, ProcessId)>,
    /// Routers that have crashed.
    down: Vec<ProcessId>,
}

/// A simulation.
struct Driver {
    sim: Sim<'static>,
    shared: Rc<Shared>,
    random: Random,
    hosts: Vec<ProcessId>,
    faults: Vec<Fault>,
    report: Report,
}

impl Driver {
    fn new(seed: u64) -> Driver {
        Driver::with(seed, TICK_OF_SIMULATION..=LATENCY, Timing::default())
    }

    /// With links on which a message takes so long.
    fn with(seed: u64, latency: RangeInclusive<Duration>, timing: Timing) -> Driver {
        HISTORY.set(Some(History::default()));
        wal::simulated::seed(seed);
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(TICK_OF_SIMULATION)
            .enable_random_order()
            .simulation_duration(Duration::from_secs(3_600))
            .min_message_latency(*latency.start())
            .max_message_latency(*latency.end())
            // Connections that were begun while their host was away arrive all at once.
            .tcp_capacity(1_024)
            .build();
        let mut random = Random::new(seed);
        // What a crash takes away is simulated: nothing is gained by a real disk.
        let memory = std::path::Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let shared = Rc::new(Shared {
            seed,
            directory: directory.expect("a directory"),
            routers: (1..=ROUTERS).map(ProcessId::router).collect(),
            config: Config::evenly(STORAGE, 2).expect("a valid ring"),
            timing,
            confirm: random.one_in(2),
            starts: RefCell::default(),
            handles: RefCell::default(),
            enough: Cell::default(),
            until: watch::channel(None).0,
            again: watch::channel(false).0,
            done: Cell::default(),
        });
        let mut hosts = Vec::new();
        for id in shared.routers.clone() {
            hosts.push(id);
            let shared = shared.clone();
            sim.host(id.to_string(), move || router(id, shared.clone()));
        }
        for id in (1..=STORAGE).map(ProcessId::storage) {
            hosts.push(id);
            let shared = shared.clone();
            sim.host(id.to_string(), move || storage(id, shared.clone()));
        }
        for id in (1..=CLIENTS).map(ProcessId::client) {
            hosts.push(id);
            let shared = shared.clone();
            sim.host(id.to_string(), move || client(id, shared.clone()));
        }
        Driver { sim, shared, random, hosts, faults: Vec::new(), report: Report::default() }
    }

    fn run(mut self) -> Result<Report, String> {
        while self.sim.elapsed() < FAULTS {
            if self.faults.len() < 2 {
                self.begin_fault();
            }
            let pause = Duration::from_millis(self.random.within(50..1_500));
            let until = self.sim.elapsed() + pause;
            while self.sim.elapsed() < until {
                self.step()?;
            }
        }
        self.end_faults(|_| true);
        self.shared.enough.set(true);
        self.wait("the clients' messages are not ordered", |driver| driver.shared.done.get() == CLIENTS)?;
        let end = with_history(|history| history.end()).unwrap_or(Ts::ZERO);
        self.shared.done.set(0);
        self.shared.until.send_replace(Some(end));
        let followed = |driver: &Driver| driver.shared.done.get() == STORAGE && driver.all_have_learned();
        self.wait("not everybody has received all", followed)?;

        self.shared.done.set(0);
        let routers: Vec<ProcessId> = self.shared.routers.iter().copied().collect();
        routers.iter().for_each(|router| self.crash(*router, true));
        routers.iter().for_each(|router| self.sim.bounce(router.to_string()));
        self.shared.again.send_replace(true);
        self.wait("what was ordered is not there after a restart", followed)?;

        let (leaders, snapshots) =
            with_history(|history| (history.leaderships.len() as u64, history.snapshots)).unwrap_or_default();
        let simulated = self.sim.elapsed();
        Ok(Report { seeds: 1, messages: end.0, leaders, snapshots, simulated, ..self.report })
    }

    /// Lets a little time pass.
    fn step(&mut self) -> Result<(), String> {
        self.sim.step().map_err(|error| error.to_string())?;
        if let Some(wrong) = with_history(|history| history.wrong.take()).flatten() {
            return Err(wrong);
        }
        let now = self.sim.elapsed();
        self.end_faults(|fault| fault.until <= now);
        Ok(())
    }

    fn wait(&mut self, otherwise: &str, is_so: impl Fn(&Driver) -> bool) -> Result<(), String> {
        let until = self.sim.elapsed() + HEALED;
        while !is_so(self) {
            if self.sim.elapsed() >= until {
                let states: Vec<_> =
                    self.shared.handles.borrow().iter().map(|(id, router)| (*id, router.state())).collect();
                return Err(format!("{otherwise} {} s after the last fault: {states:?}", HEALED.as_secs()));
            }
            self.step()?;
        }
        Ok(())
    }

    fn all_have_learned(&self) -> bool {
        with_history(|history| history.reached.values().all(|reached| *reached == history.end()))
            == Some(true)
    }

    fn is_running(&mut self, router: ProcessId) -> bool {
        self.sim.is_host_running(router.to_string())
    }

    /// A router; the leader more often than others.
    fn some_router(&mut self) -> ProcessId {
        let leads =
            |(id, router): (&ProcessId, &RouterHandle)| (router.state() == State::Leading).then_some(*id);
        let leader = self.shared.handles.borrow().iter().find_map(leads);
        let any = ProcessId::router(1 + self.random.below(u64::from(ROUTERS)) as u32);
        leader.filter(|_| !self.random.one_in(3)).unwrap_or(any)
    }

    /// The links between a host and all others.
    fn links_of(&self, host: ProcessId) -> Vec<(ProcessId, ProcessId)> {
        self.hosts.iter().filter(|other| **other != host).map(|other| (host, *other)).collect()
    }

    /// The links of a router: one of them, or all.
    fn some_links(&mut self) -> Vec<(ProcessId, ProcessId)> {
        let router = self.some_router();
        let links = self.links_of(router);
        if self.random.one_in(2) { links } else { self.random.pick(&links).into_iter().collect() }
    }

    fn begin_fault(&mut self) {
        let mut links = Vec::new();
        let mut down = Vec::new();
        match self.random.below(10) {
            0 | 1 => {
                self.report.partitions += 1;
                let half = self.random.bits();
                let side = |index: usize| half >> index & 1;
                for (index, host) in self.hosts.iter().enumerate() {
                    let others = self.hosts.iter().enumerate().skip(index + 1);
                    let cut = others.filter(|(other, _)| side(*other) != side(index));
                    links.extend(cut.map(|(_, other)| (*host, *other)));
                }
                links.iter().for_each(|(a, b)| self.sim.partition(a.to_string(), b.to_string()));
            }
            2 => {
                self.report.one_way += 1;
                links = self.some_links();
                let away = self.random.one_in(2);
                for (a, b) in &links {
                    let (from, to) = if away { (a, b) } else { (b, a) };
                    self.sim.partition_oneway(from.to_string(), to.to_string());
                }
            }
            3 => {
                self.report.held += 1;
                links = self.some_links();
                links.iter().for_each(|(a, b)| self.sim.hold(a.to_string(), b.to_string()));
            }
            4 => {
                self.report.lossy += 1;
                links = self.some_links();
                for (a, b) in &links {
                    self.sim.set_link_fail_rate(a.to_string(), b.to_string(), 0.05);
                }
            }
            5 => {
                self.report.slow += 1;
                links = self.some_links();
                for (a, b) in &links {
                    self.sim.set_link_max_message_latency(a.to_string(), b.to_string(), SLOW);
                }
            }
            6 => {
                self.report.blackouts += 1;
                let silent = self.random.one_in(2);
                for router in self.shared.routers.clone() {
                    self.crash(router, silent);
                    down.push(router);
                }
            }
            _ => {
                let (router, silent) = (self.some_router(), self.random.one_in(2));
                self.crash(router, silent);
                down.push(router);
            }
        }
        let until = self.sim.elapsed() + Duration::from_millis(self.random.within(10..1_500));
        self.faults.push(Fault { until, links, down });
    }

    /// Ends a router's host: `silent` as when it loses its power, otherwise its connections are ended.
    fn crash(&mut self, router: ProcessId, silent: bool) {
        if !self.is_running(router) {
            return;
        }
        self.report.crashes += 1;
        let handle = self.shared.handles.borrow_mut().remove(&router);
        self.report.crashes_of_leaders +=
            u64::from(handle.is_some_and(|router| router.state() == State::Leading));
        let links = self.links_of(router);
        if silent {
            links.iter().for_each(|(a, b)| self.sim.partition(a.to_string(), b.to_string()));
        }
        self.sim.crash(router.to_string());
        if silent {
            links.iter().for_each(|(a, b)| self.sim.repair(a.to_string(), b.to_string()));
        }
    }

    fn end_faults(&mut self, ends: impl Fn(&Fault) -> bool) {
        for Fault { links, down, .. } in self.faults.extract_if(.., |fault| ends(fault)).collect::<Vec<_>>() {
            for (a, b) in links {
                let (a, b) = (a.to_string(), b.to_string());
                self.sim.set_link_fail_rate(a.clone(), b.clone(), 0.0);
                self.sim.set_link_max_message_latency(a.clone(), b.clone(), LATENCY);
                self.sim.release(a, b);
            }
            for router in down {
                if !self.is_running(router) {
                    self.sim.bounce(router.to_string());
                }
            }
        }
    }
}

fn run(seed: u64) -> Result<Report, String> {
    let outcome = Driver::new(seed).run();
    HISTORY.set(None);
    outcome.map_err(|reason| format!("seed {seed}: {reason}"))
}

/// Runs the seeds on all cores.
fn run_seeds(seeds: Range<u64>) -> (Report, Vec<String>) {
    let ended = Mutex::new((Report::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    each_seed(seeds, threads, |seed| {
        let outcome = run(seed);
        let mut ended = ended.lock().expect("no panic");
        match outcome {
            Ok(report) => ended.0.add(&report),
            Err(failure) => ended.1.push(failure),
        }
    });
    ended.into_inner().expect("no panic")
}

/// `TURMOIL_SEED=13 TURMOIL_SEEDS=100 cargo test -p carousel-cluster --lib under_turmoil::seeds -- --nocapture`
#[test]
fn seeds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = (number("TURMOIL_SEED").unwrap_or(0), number("TURMOIL_SEEDS").unwrap_or(16));
    let (report, failures) = run_seeds(first..first + count);
    eprintln!("{report:?}");
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    assert!(failures.is_empty(), "{} of {count} seeds fail", failures.len());
    // Of every ten seeds, far fewer than there are.
    let least = |times: u64| count / 10 * times;
    let Report { leaders, crashes_of_leaders, blackouts, snapshots, messages, .. } = report;
    assert!(leaders >= least(40) && crashes_of_leaders >= least(20) && blackouts >= least(5), "{report:?}");
    let Report { partitions, one_way, held, lossy, slow, .. } = report;
    assert!([partitions, one_way, held, lossy, slow].iter().all(|times| *times >= least(5)), "{report:?}");
    assert!(messages >= least(3_000) && snapshots >= least(1), "{report:?}");
}

/// Whether there is a leader when for ten seconds messages have taken as long as between continents. Nobody submits any:
/// appends, too, show that a leader is followed.
fn far_routers_have_a_leader(heartbeat_ms: u64) -> bool {
    let timing = Timing::with_heartbeat(Duration::from_millis(heartbeat_ms));
    let mut driver = Driver::with(0, FAR..=FAR, timing);
    driver.shared.enough.set(true);
    while driver.sim.elapsed() < Duration::from_secs(10) {
        driver.step().expect("nothing is wrong");
    }
    HISTORY.set(None);
    driver.shared.handles.borrow().values().any(|router| router.state() == State::Leading)
}

#[test]
fn far_routers_have_a_leader_when_its_heartbeats_take_as_long() {
    let default_ms = Timing::default().heartbeat_ms;
    assert_eq!((far_routers_have_a_leader(default_ms), far_routers_have_a_leader(150)), (false, true));
}

/// What a planted bug shows, within so many seeds.
fn caught(bug: Bug, seeds: u64) -> Option<String> {
    plant(Some(bug));
    // That not everything came to its end in time says little of why.
    let says_what = |reason: &String| !reason.contains("after the last fault");
    let found = (0..seeds).find_map(|seed| run(seed).err().filter(says_what));
    plant(None);
    found
}

#[test]
fn planted_bugs_are_caught() {
    let mut escaped = Vec::new();
    for bug in [
        Bug::LostFsync,
        Bug::LeaderBeforeItsLog,
        Bug::DuplicateSuppressionLost,
        Bug::FrontierAhead,
        Bug::ReorderedWindow,
        Bug::SkippedConfirmation,
        Bug::LeaseOfTheDeposed,
    ] {
        match caught(bug, 40) {
            Some(reason) => eprintln!("{bug:?}: {}", reason.chars().take(200).collect::<String>()),
            None => escaped.push(bug),
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}
