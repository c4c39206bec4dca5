//! Routers: they order messages and route them to their destinations (paper, section 5.5).
//!
//! [`mseq`] is what routers agree on, [`core`] the bookkeeping of one of them; this module is the shell that connects
//! them to the network, the consensus and the clock.

pub mod core;
mod leases;
pub mod mseq;
#[cfg(test)]
mod processes;
mod reach;
mod room;
#[cfg(test)]
mod simulation;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trace;
#[cfg(test)]
mod under_turmoil;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

pub use self::leases::LEASE_MS;
use self::{
    core::{Core, Effect, Input, Limits, StreamId},
    reach::Reached,
    room::Disk,
    stream::{StreamHandle, StreamReport},
};
pub use crate::raft::{ConsensusError, DEFAULT_HEARTBEAT, Timing};
use crate::{
    clock::Clock,
    config::Config,
    message::ProcessId,
    metering::{RouterMeter, StepMeter},
    network::{Endpoint, Lane, Network, Sender, TrySendError},
    raft::{Consensus, Event, ProposeError, Registrar, RouterRequest},
    routers::removed,
    wal::Durability,
    wire::Wire,
};

/// Events of the consensus that wait for the router; beyond it the consensus waits.
const EVENTS: usize = 16;
/// How often time passes for the core.
const TICK: Duration = Duration::from_millis(50);

/// How to run a router.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which router.
    pub id: ProcessId,
    /// The first routers of the system.
    pub members: BTreeSet<ProcessId>,
    /// Where they listen, as far as that matters.
    pub addresses: BTreeMap<ProcessId, String>,
    /// Whether it does not begin a log with them: it was added later, or they have changed since. It gets the others'.
    pub added: bool,
    /// The first config; a router that has a log goes on with the config found there.
    pub config: Config,
    /// Where the m-seq is kept.
    pub durability: Durability,
    /// Elections.
    pub timing: Timing,
    /// Memory and batches.
    pub limits: Limits,
    /// While less is free on the disk of the log, it has no room: when too few routers have some, clients refuse writes.
    pub reserve_bytes: u64,
}

/// What part of that a log keeps for itself beside it, for when somebody else fills the disk faster than clients hear of it.
const BALLASTS_IN_RESERVE: u64 = 4;

/// What routers want to be free on the disk of their log, unless they are told otherwise: enough for what is ordered until
/// a checkpoint lets go of the log.
pub const RESERVE_BYTES: u64 = 256 << 20;

impl Options {
    /// A router that is alone, with usual timing and limits.
    pub fn single(config: Config, durability: Durability) -> Self {
        let id = ProcessId::router(1);
        Self::member(id, [id].into(), config, durability)
    }

    /// One of several routers, with usual timing and limits.
    pub fn member(
        id: ProcessId,
        members: BTreeSet<ProcessId>,
        config: Config,
        durability: Durability,
    ) -> Self {
        Options {
            id,
            members,
            addresses: BTreeMap::new(),
            added: false,
            config,
            durability,
            timing: Timing::default(),
            limits: Limits::default(),
            reserve_bytes: RESERVE_BYTES,
        }
    }
}

/// Why a router could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not among its own members.
    #[error("{0} is not among the routers")]
    NotAMember(ProcessId),
    /// Its log or its consensus.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
}

/// What a router is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It follows; the leader, if one is known.
    Following(Option<ProcessId>),
    /// It orders and routes.
    Leading,
    /// It was stopped or killed.
    Stopped,
    /// It has stopped because it is no router of the system any more.
    Removed,
    /// It has stopped because of an error, such as a full disk. What it acknowledged is in its log.
    Failed(Arc<str>),
}

enum Stop {
    Gracefully(oneshot::Sender<()>),
    Killed(oneshot::Sender<()>),
}

/// A running router. Cheap to clone.
#[derive(Clone)]
pub struct RouterHandle {
    id: ProcessId,
    stop: mpsc::Sender<Stop>,
    state: watch::Receiver<State>,
    followed: Followed,
}

/// Knows whether a router is followed.
#[derive(Clone)]
pub struct Followed(Arc<dyn Fn() -> Option<Instant> + Send + Sync>);

impl Followed {
    /// Whether the router leads, as far as it knows, and a quorum has followed it a moment ago: nobody else leads.
    pub fn is_followed(&self) -> bool {
        (self.0)().is_some_and(|at| at.elapsed() < Duration::from_millis(leases::DEPOSED_MS))
    }
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Followed").field(&self.is_followed()).finish()
    }
}

impl RouterHandle {
    /// Which router.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Who knows whether it is followed.
    pub fn followed(&self) -> Followed {
        self.followed.clone()
    }

    /// Waits until it does something that `wanted` accepts, or has ended.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&State) -> bool) -> State {
        let mut state = self.state.clone();
        let ended = |state: &State| matches!(state, State::Stopped | State::Removed | State::Failed(_));
        match state.wait_for(|state| wanted(state) || ended(state)).await {
            Ok(state) => state.clone(),
            Err(_) => self.state(),
        }
    }

    /// Stops the router: tells its subscribers, finishes writing its log, frees its directory.
    pub async fn stop(&self) {
        self.end(Stop::Gracefully).await;
    }

    /// Ends the router as a crash would: nothing more is sent or written. Returns when its directory is free.
    pub async fn kill(&self) {
        self.end(Stop::Killed).await;
    }

    async fn end(&self, how: impl FnOnce(oneshot::Sender<()>) -> Stop) {
        let (done, ended) = oneshot::channel();
        // Either fails when the router has ended already, or somebody else ends it.
        if self.stop.send(how(done)).await.is_ok() {
            let _ = ended.await;
        }
        self.stop.closed().await;
    }
}

/// A router process.
pub struct Router {
    core: Core,
    endpoint: Endpoint,
    sender: Sender,
    consensus: Consensus,
    streams: HashMap<ProcessId, StreamHandle>,
    reports: mpsc::UnboundedSender<Report>,
    /// What offers a batch to the consensus.
    proposing: Option<AbortHandle>,
    /// The term in which it leads.
    led: Option<u64>,
    state: watch::Sender<State>,
    registrar: Registrar,
    meter: RouterMeter,
    disk: Option<Disk>,
}

/// What the router's own tasks report. The channel is unbounded, but there is at most one report under way for each
/// stream and one for the proposal.
enum Report {
    Proposed(u64, Result<(), ProposeError>),
    Stream(ProcessId, StreamId, StreamReport),
}

/// How a router's work ended.
enum End {
    Stopped(Stop),
    Failed(String),
    Replaced,
    Removed,
}

impl Router {
    /// Starts a router, or restarts it from its directory. It answers messages when this returns; when it is alone it
    /// leads shortly after.
    pub async fn start(options: Options, network: &Network) -> Result<RouterHandle, Error> {
        let Options { id, members, addresses, added, config, mut durability, timing, limits, reserve_bytes } =
            options;
        let disk = match &mut durability {
            Durability::Disk { directory, limits } => {
                limits.ballast_bytes = reserve_bytes / BALLASTS_IN_RESERVE;
                Some(Disk { directory: directory.clone(), reserve_bytes })
            }
            Durability::Memory => None,
        };
        if !added && !members.contains(&id) {
            return Err(Error::NotAMember(id));
        }
        let first = if added { BTreeSet::new() } else { members };
        let (event_sender, events) = mpsc::channel(EVENTS);
        let consensus =
            Consensus::start(id, &first, config, durability, &timing, network, event_sender).await?;
        // Only now that the directory is known to be free: joining replaces another life of this router.
        let endpoint = network.join(id);
        let core = Core::new(id, consensus.first().clone(), limits);
        let (reports, reported) = mpsc::unbounded_channel();
        let (state_sender, watched) = watch::channel(State::Following(None));
        let (stop, stops) = mpsc::channel(1);
        let sender = endpoint.sender();
        let streams = HashMap::new();
        let meter = RouterMeter::new(id);
        let answering = sender.clone();
        let answer = move |to, wire| {
            if let Err(error) = answering.try_send(to, wire) {
                // Whoever asks asks again.
                tracing::debug!(%error, "not sent");
            }
        };
        let followed = Followed(Arc::new(consensus.followed()));
        let registrar = consensus.registrar(addresses, answer);
        let state = state_sender;
        let router = Router {
            core,
            endpoint,
            sender,
            consensus,
            streams,
            reports,
            proposing: None,
            led: None,
            state,
            registrar,
            meter,
            disk,
        };
        let panicked = router.state.clone();
        let running = tokio::spawn(router.run(network.clone(), events, reported, stops));
        tokio::spawn(async move {
            if running.await.is_err() {
                panicked.send_replace(State::Failed("it has panicked".into()));
            }
        });
        Ok(RouterHandle { id, stop, state: watched, followed })
    }

    async fn run(
        mut self,
        network: Network,
        mut events: mpsc::Receiver<Event>,
        mut reported: mpsc::UnboundedReceiver<Report>,
        mut stops: mpsc::Receiver<Stop>,
    ) {
        let id = self.sender.id();
        // A router that leads alone leads again in the same term after a restart, and one that has been cut off may.
        let life = RandomState::new().build_hasher().finish();
        let mut leaderships = 0;
        let mut clock = Clock::begin();
        // The term in which the core leads.
        let mut begins = None;
        network.learn_routers(self.consensus.first().routers());
        self.meter.knows(self.consensus.first());
        let mut known = network.known_routers();
        known.mark_changed();
        let steps = StepMeter::new(id);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(Duration::from_millis(room::LOOK_MS));
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reached = Reached::default();
        let mut looking: Option<JoinHandle<Result<bool, String>>> = None;
        let end = loop {
            let full = self.core.is_full();
            let input = tokio::select! {
                biased;
                stop = stops.recv() => break match stop {
                    Some(stop) => End::Stopped(stop),
                    None => End::Stopped(Stop::Gracefully(oneshot::channel().0)),
                },
                // Time passes, however much is received: suspicions wait for it.
                _ = ticks.tick() => Input::Tick(clock.now_ms()),
                _ = looks.tick() => {
                    self.look_around(&network, &mut reached, clock.now_ms());
                    if let Some(disk) = self.disk.clone().filter(|_| looking.is_none()) {
                        looking = Some(tokio::task::spawn_blocking(move || disk.has_room()));
                    }
                    continue;
                }
                // A file system elsewhere may take long to answer, or for ever.
                Some(looked) = async { Some(looking.as_mut()?.await) } => {
                    looking = None;
                    match looked {
                        Ok(Ok(has_room)) => Input::Room(has_room),
                        Ok(Err(reason)) => break End::Failed(reason),
                        Err(_) => continue,
                    }
                }
                event = events.recv() => match event {
                    Some(Event::Learned { mseq, learned }) => {
                        self.meter.learned(&mseq, &learned);
                        network.learn_routers(mseq.routers());
                        Input::Learned { mseq, learned }
                    }
                    Some(Event::Installed(mseq)) => {
                        self.meter.knows(&mseq);
                        network.learn_routers(mseq.routers());
                        Input::Installed(mseq)
                    }
                    Some(Event::Leader(term)) => {
                        #[cfg(test)]
                        under_turmoil::leads(id, term);
                        begins = Some(term);
                        self.meter.leads();
                        self.state.send_replace(State::Leading);
                        leaderships += 1;
                        Input::Leader(life.wrapping_add(leaderships))
                    }
                    Some(Event::Follower(leader)) => {
                        self.led = None;
                        self.meter.follows();
                        self.state.send_replace(State::Following(leader));
                        Input::Follower(leader)
                    }
                    Some(Event::Failed(reason)) => break End::Failed(reason),
                    None => break End::Failed("the consensus has stopped".into()),
                },
                report = reported.recv() => match self.report(report) {
                    Ok(Some(input)) => input,
                    Ok(None) => continue,
                    Err(reason) => break End::Failed(reason),
                },
                _ = known.changed() => match known.borrow_and_update().is_removed(id) {
                    true => break End::Removed,
                    false => continue,
                },
                received = receive(&mut self.endpoint, full) => match received {
                    Some((_, Wire::Routers(routers))) => {
                        network.learn_routers(&routers);
                        continue;
                    }
                    Some((from, Wire::Reached { storage, clients })) => {
                        reached.hear(from, (storage, clients), clock.now_ms());
                        continue;
                    }
                    Some((from, Wire::AskLease { incarnation, asked_ms })) => Input::AskLease {
                        from,
                        incarnation,
                        asked_ms,
                        now_ms: clock.now_ms(),
                        led_ms: self.led.and_then(|term| self.consensus.led_at(term)).and_then(|at| clock.ms(at)),
                    },
                    Some((from, wire)) => Input::Received { from, wire },
                    None => break End::Replaced,
                },
            };
            let done = steps.begin();
            #[cfg(test)]
            under_turmoil::heard(id, &input);
            if let Input::Leader(_) | Input::Follower(_) = input {
                // What was offered before is forgotten, and must not be offered again: a suspicion in it would be ordered past the
                // leases that are granted from now on.
                self.proposing.take().inspect(AbortHandle::abort);
            }
            if let Input::Leader(_) = input {
                // Leases of an earlier leader end when time has passed from now on, and not from the last tick: this thread may
                // have stood still.
                self.execute(Input::Tick(clock.now_ms()));
                self.led = begins;
            }
            self.execute(input);
            done();
        };
        self.meter.follows();
        self.meter.streams(0);
        let (abandon, done, state) = match end {
            End::Stopped(Stop::Gracefully(done)) => {
                self.execute(Input::Follower(None));
                (false, Some(done), State::Stopped)
            }
            End::Stopped(Stop::Killed(done)) => (true, Some(done), State::Stopped),
            End::Replaced => (true, None, State::Stopped),
            End::Removed => {
                tracing::warn!(router = %id, "{}", removed(id));
                self.execute(Input::Follower(None));
                (false, None, State::Removed)
            }
            End::Failed(reason) => {
                tracing::error!(router = %id, %reason, "the router stops");
                (true, None, State::Failed(reason.into()))
            }
        };
        let Router { endpoint, consensus, streams, registrar, state: state_sender, .. } = self;
        // Leaves the network, unless a new life of this router has already joined it.
        drop(endpoint);
        drop(network);
        drop((streams, registrar));
        // The consensus may be waiting for room.
        drop(events);
        consensus.stop(abandon).await;
        state_sender.send_replace(state);
        if let Some(done) = done {
            let _ = done.send(());
        }
    }

    /// Tells the leader how many of the others this router reaches, or lets another lead that reaches more.
    fn look_around(&self, network: &Network, reached: &mut Reached, now_ms: u64) {
        let id = self.sender.id();
        let config = self.core.config();
        let reach = |member: &ProcessId| network.reaches(id, *member);
        let storage = config.live_storage().chain(config.standbys()).filter(reach).count() as u32;
        let clients = config.clients().filter(reach).count() as u32;
        match *self.state.borrow() {
            State::Leading => {
                let can_lead = |other| network.reaches(id, other) && self.consensus.can_lead(other);
                if let Some((other, members)) = reached.look((storage, clients), now_ms, can_lead) {
                    tracing::warn!(
                        router = %id,
                        "{other} is asked to lead: it reaches {} storage processes and {} clients, this router {storage} and \
                         {clients}; do they know its address?",
                        members.0,
                        members.1
                    );
                    self.consensus.hand_over_to(other);
                }
            }
            State::Following(Some(leader)) => {
                reached.follows();
                // The next one is as good.
                let _ = self.sender.try_send(leader, Wire::Reached { storage, clients });
            }
            _ => reached.follows(),
        }
    }

    fn report(&mut self, report: Option<Report>) -> Result<Option<Input>, String> {
        Ok(match report {
            Some(Report::Proposed(proposal, outcome)) => match outcome {
                Ok(()) => Some(Input::Proposed { proposal, accepted: true }),
                Err(ProposeError::NotLeader) => Some(Input::Proposed { proposal, accepted: false }),
                // The consensus itself reports why.
                Err(ProposeError::Stopped(reason)) => {
                    tracing::debug!(router = %self.sender.id(), %reason, "a proposal failed");
                    None
                }
            },
            Some(Report::Stream(to, stream, report)) => Some(match report {
                StreamReport::Sent => Input::Sent { to, stream },
                StreamReport::Unreachable => Input::Unreachable { to, stream },
                StreamReport::Read { deliveries, through } => Input::Read { to, stream, deliveries, through },
                StreamReport::Purged(purged) => Input::Purged { to, stream, purged },
                StreamReport::Failed(reason) => return Err(reason),
            }),
            // This router holds a sender itself.
            None => None,
        })
    }

    fn execute(&mut self, input: Input) {
        for effect in self.core.handle(input) {
            match effect {
                Effect::Propose { proposal, batch } => {
                    let (proposed, reports) =
                        (self.consensus.propose(self.led.unwrap_or(0), batch), self.reports.clone());
                    let proposing = tokio::spawn(async move {
                        let outcome = proposed.await;
                        // Nobody listens when the router is stopping.
                        let _ = reports.send(Report::Proposed(proposal, outcome));
                    });
                    self.proposing = Some(proposing.abort_handle());
                }
                Effect::Send { to, wire } => match self.sender.try_send(to, wire) {
                    Ok(()) => {}
                    Err(TrySendError::Unreachable(error)) => tracing::debug!(%error, "not sent"),
                    // Reads that are lost: nobody asks for them again. There are no more of these than reads under way.
                    Err(TrySendError::Full(to, wire)) if wire.lane() == Lane::Data => {
                        let sender = self.sender.clone();
                        // Whoever has ended waits for no answer.
                        tokio::spawn(async move { sender.send(to, *wire).await });
                    }
                    // By the network's rule every process drains its control lane; this one does not any more. It
                    // asks again if it lives.
                    Err(error @ TrySendError::Full(..)) => tracing::warn!(%error, "not sent"),
                },
                Effect::Stream { to, stream, wires } => self.stream(to, stream).send(wires),
                Effect::Read { to, stream, after } => self.stream(to, stream).read(after),
                Effect::Close { to, stream } => {
                    if self.streams.get(&to).is_some_and(|handle| handle.id() == stream) {
                        self.streams.remove(&to);
                        self.meter.streams(self.streams.len());
                    }
                }
                Effect::Truncate(ts) => self.consensus.truncate(ts),
                Effect::ChangeRouters { from, incarnation, request, change } => {
                    self.registrar.ask(RouterRequest { from, incarnation, request, change });
                }
                Effect::Look { from, incarnation, request, process } => {
                    let reaches = self.sender.reaches(process);
                    // Whoever does not get it asks again.
                    let _ = self.sender.try_send(from, Wire::Looked { incarnation, request, reaches });
                }
            }
        }
    }

    fn stream(&mut self, to: ProcessId, id: StreamId) -> &StreamHandle {
        let known = self.streams.get(&to).is_some_and(|handle| handle.id() == id);
        if !known {
            let reports = self.reports.clone();
            let report = move |report| drop(reports.send(Report::Stream(to, id, report)));
            let handle = StreamHandle::start(id, to, self.sender.clone(), self.consensus.reader(), report);
            self.streams.insert(to, handle);
            self.meter.streams(self.streams.len());
        }
        &self.streams[&to]
    }
}

/// The next message; while the core is full, data stays in the mailbox and holds up its senders.
async fn receive(endpoint: &mut Endpoint, full: bool) -> Option<(ProcessId, Wire)> {
    if full { endpoint.recv_control().await } else { endpoint.recv().await }
}
