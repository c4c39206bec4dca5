//! Agreement on the order of batches: the only module that knows openraft (0.10 alpha, whose API changes between
//! releases).
//!
//! To the router it is an atomic broadcast: [`Consensus::propose`] a [`Batch`], and every router's
//! [`MSeq`] learns the same batches in the same order, reported as [`Event::Learned`]. The log store writes through to
//! the router's [`crate::wal`] and reports flushed entries asynchronously; the state machine is the `MSeq`, kept with
//! [`marks::Marks`] at some earlier positions. A snapshot is the `MSeq` at the last mark before the truncation point,
//! not at the end: so the log that is kept reaches from the snapshot on, a restart replays it, and streams can be
//! served from any `Ts` behind it.

mod log_store;
mod marks;
mod network;
mod registrar;
mod state_machine;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use carousel_engine::Ts;
use openraft::{
    Config, Instant as _, Raft, ServerState, SnapshotPolicy,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, ForwardReason, RaftError},
    impls::ProgressResponder,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    config::Config as RingConfig,
    message::ProcessId,
    metering::LogMeter,
    network::Network,
    planted::{Bug, planted},
    router::mseq::{Batch, Learned, MSeq},
    routers::{RouterEntry, Routers},
    wal::{Durability, WalError},
    wire::Wire,
};
use log_store::LogStore;
pub use network::Packet;
pub(crate) use network::Registry;
pub(crate) use registrar::{Registrar, RouterRequest};
use state_machine::{StateMachine, Stored};

openraft::declare_raft_types!(
    /// openraft's types for routers.
    pub(crate) TypeConfig:
        D = Arc<Batch>,
        R = (),
        NodeId = u64,
        Node = Node,
        AsyncRuntime = openraft::TokioRuntime,
);

type Entry = <TypeConfig as openraft::RaftTypeConfig>::Entry;
type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
type LogId = openraft::LogId<LeaderId>;
type Vote = openraft::Vote<LeaderId>;
type Membership = openraft::Membership<u64, Node>;
type StoredMembership = openraft::StoredMembership<LeaderId, u64, Node>;
type SnapshotMeta = openraft::SnapshotMeta<LeaderId, u64, Node>;
type Snapshot = openraft::Snapshot<LeaderId, u64, Node, bytes::Bytes>;
type Metrics = openraft::RaftMetrics<TypeConfig>;
type RouterRaft = Raft<TypeConfig, StateMachine>;

/// What the log says of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Node {
    /// Where it listens (host:port). Of the first routers that is in the description, which every process may have in
    /// its own words.
    address: String,
    /// The number of the cluster, which all of them have as soon as it has been drawn.
    cluster: Option<u64>,
}

/// The list of routers after a membership at an index of the log.
fn changed(before: &Routers, index: u64, membership: &Membership) -> Routers {
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    let entries = membership.nodes().map(|(id, node)| RouterEntry {
        number: number(*id),
        address: node.address.clone(),
        votes: voters.contains(id),
    });
    let cluster = membership.nodes().find_map(|(_, node)| node.cluster);
    before.changed(index + 1, cluster, entries.collect())
}

/// The router of a number of openraft's.
fn number(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

/// What the router hears of the consensus.
#[derive(Debug)]
pub(crate) enum Event {
    /// The m-seq has grown (or commands were learned that leave it as it is).
    Learned {
        /// The m-seq now.
        mseq: MSeq,
        /// What came of the commands.
        learned: Vec<Learned>,
    },
    /// The m-seq was replaced by a later one, because this router had fallen behind the others' logs.
    Installed(MSeq),
    /// This router leads in this term, and has learned all that earlier leaders agreed on.
    Leader(u64),
    /// This router does not lead (any more); who does, if known.
    Follower(Option<ProcessId>),
    /// The consensus has stopped because of an error.
    Failed(String),
}

/// Why a proposal failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProposeError {
    /// Not the leader; whether the batch will be learned is unknown.
    #[error("not the leader")]
    NotLeader,
    /// The consensus has stopped.
    #[error("{0}")]
    Stopped(String),
}

/// Why a consensus could not start.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusError {
    /// The log.
    #[error("the router's log: {0}")]
    Log(#[from] WalError),
    /// The router's state on disk does not decode.
    #[error("the router's state on disk: {0}")]
    State(String),
    /// openraft refused.
    #[error("consensus: {0}")]
    Raft(String),
}

/// Timing of elections, in milliseconds.
#[derive(Clone, Debug)]
pub struct Timing {
    /// How often a leader shows that it lives.
    pub heartbeat_ms: u64,
    /// A follower that hears nothing for a random time in this range stands for election.
    pub election_ms: std::ops::Range<u64>,
}

/// How often a leader shows that it lives, unless it is told otherwise.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_millis(50);

impl Timing {
    /// How often a leader may show that it lives. With less, it would not know often enough that it is followed to grant
    /// leases (`router::leases`).
    pub const HEARTBEATS: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(150);

    /// With a heartbeat so often. Only one that is answered before the next tells the leader that it is followed: what is
    /// shorter than a round trip between two routers leaves them without a leader.
    pub fn with_heartbeat(heartbeat: Duration) -> Timing {
        let heartbeat_ms = heartbeat.as_millis() as u64;
        Timing { heartbeat_ms, election_ms: 3 * heartbeat_ms..6 * heartbeat_ms }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing::with_heartbeat(DEFAULT_HEARTBEAT)
    }
}

/// One router's share in the consensus.
pub(crate) struct Consensus {
    id: u64,
    life: u64,
    raft: RouterRaft,
    log: LogStore,
    stored: Stored,
    marks: Arc<marks::Marks>,
    first: MSeq,
    registry: Registry,
    followed: Arc<network::Followed>,
    watcher: tokio::task::JoinHandle<()>,
}

impl Consensus {
    /// Starts or restarts. `members` is the first membership; a router that has a log goes on from there, and one that is
    /// not among them begins none, but gets that of the others.
    pub(crate) async fn start(
        id: ProcessId,
        members: &BTreeSet<ProcessId>,
        config: RingConfig,
        durability: Durability,
        timing: &Timing,
        network: &Network,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, ConsensusError> {
        let registry = network.routers.clone();
        let (process, id) = (id, u64::from(id.number));
        let directory = match &durability {
            Durability::Disk { directory, .. } => Some(directory.clone()),
            Durability::Memory => None,
        };
        let mut log = LogStore::open(durability, LogMeter::new(process)).await?;
        let machine = StateMachine::open(directory, log.wal(), MSeq::new(config), events.clone())?;
        let failed = |error: io::Error| ConsensusError::State(error.to_string());
        log.check(machine.applied())?;
        if let Some(snapshot) = machine.applied() {
            log.begin_behind(snapshot).await.map_err(failed)?;
        }
        let (marks, stored) = (machine.marks(), machine.stored());
        let first = marks.first_state();
        let followed = Arc::default();
        let factory = network::Factory::new(process, network.clone(), marks.clone(), Arc::clone(&followed));
        let raft_config = Config {
            cluster_name: "carousel routers".into(),
            heartbeat_interval: timing.heartbeat_ms,
            election_timeout_min: timing.election_ms.start,
            election_timeout_max: timing.election_ms.end,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            install_snapshot_timeout: 2_000,
            enable_pre_vote: Some(true),
            // A leader that was killed may have lost the end of its log, which others have: in the same term it would give
            // other batches the same places.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        let raft_config = raft_config.validate().map_err(|error| ConsensusError::Raft(error.to_string()))?;
        let raft = Raft::new(id, Arc::new(raft_config), factory, log.clone(), machine)
            .await
            .map_err(|error| ConsensusError::Raft(error.to_string()))?;
        let life = registry.insert(id, raft.clone());
        let nodes: BTreeMap<u64, Node> =
            members.iter().map(|member| (u64::from(member.number), Node::default())).collect();
        match raft.is_initialized().await {
            // Nobody to wait for.
            Ok(true) if is_alone(&raft, id).await => {
                let elected = raft.trigger().elect(false).await;
                elected.map_err(|error| ConsensusError::Raft(error.to_string()))?;
            }
            Ok(true) => {}
            Ok(false) if !nodes.contains_key(&id) => {
                tracing::info!(router = %process, "it has no log, and waits for the other routers to send theirs");
            }
            // Every member may do this with the same membership: the entries are equal.
            Ok(false) => {
                if let Err(error) = raft.initialize(nodes).await
                    && !matches!(error, RaftError::APIError(_))
                {
                    return Err(ConsensusError::Raft(error.to_string()));
                }
            }
            Err(error) => return Err(ConsensusError::Raft(error.to_string())),
        }
        let watcher = tokio::spawn(watch_leadership(id, raft.clone(), log.clone(), events));
        Ok(Consensus { id, life, raft, log, stored, marks, first, registry, followed, watcher })
    }

    /// The m-seq at the beginning of the log; what is behind it comes as events.
    pub(crate) fn first(&self) -> &MSeq {
        &self.first
    }

    /// Proposes a batch as the leader in a term, and in no later one, and waits until this router has learned it, and before that
    /// until its log has room.
    pub(crate) fn propose(
        &self,
        term: u64,
        batch: Batch,
    ) -> impl Future<Output = Result<(), ProposeError>> + Send + use<> {
        let (raft, log) = (self.raft.clone(), self.log.clone());
        let leader = LeaderId { term, node_id: self.id };
        async move {
            wait_for_room(&raft, &log).await?;
            propose(&raft, leader, batch).await
        }
    }

    /// As the leader in the present term.
    #[cfg(test)]
    pub(crate) fn propose_now(
        &self,
        batch: Batch,
    ) -> impl Future<Output = Result<(), ProposeError>> + Send + use<> {
        let term = self.raft.metrics().borrow_watched().current_term;
        self.propose(term, batch)
    }

    /// When a quorum is known to have followed this router for the last time in a term, if it still leads in that: until then
    /// no later one had begun. It may lead again in another term, before whoever asks has heard what was between.
    pub(crate) fn led_at(&self, term: u64) -> Option<Instant> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state == ServerState::Leader && metrics.current_term == term;
        let voters = metrics.membership_config.membership().get_joint_config();
        leads.then(|| self.followed.by_quorums(self.id, term, voters))?
    }

    /// Tells when a quorum is known to have followed this router for the last time, if it leads.
    pub(crate) fn followed(&self) -> impl Fn() -> Option<Instant> + Send + Sync + use<> {
        let metrics = self.raft.metrics();
        move || followed_at(&metrics.borrow_watched())
    }

    /// Whether another router could lead in place of this one: it votes, and has nearly all of the log.
    pub(crate) fn can_lead(&self, router: ProcessId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = u64::from(router.number);
        metrics.membership_config.voter_ids().any(|voter| voter == id)
            && registrar::near(&metrics).contains(&id)
    }

    /// Asks another router to lead, if this one does.
    pub(crate) fn hand_over_to(&self, router: ProcessId) {
        let raft = self.raft.clone();
        tokio::spawn(async move {
            if let Err(error) = raft.trigger().transfer_leader(u64::from(router.number)).await {
                tracing::debug!(%error, "not handed over");
            }
        });
    }

    /// Lets go of the log up to `ts`, or somewhat less. Happens in the background.
    pub(crate) fn truncate(&self, ts: Ts) {
        if !self.marks.plan_snapshot(ts) {
            return;
        }
        let raft = self.raft.clone();
        tokio::spawn(async move {
            if let Err(error) = raft.trigger().snapshot().await {
                tracing::debug!(%error, "no snapshot");
            }
        });
    }

    /// Reads the m-seq behind the snapshot.
    pub(crate) fn reader(&self) -> MSeqReader {
        MSeqReader { log: self.log.clone(), marks: self.marks.clone() }
    }

    /// Starts to change who the routers are, when this router leads and is asked to. `first` has the addresses of the
    /// first routers; what comes of a request goes to `answer`.
    pub(crate) fn registrar(
        &self,
        first: BTreeMap<ProcessId, String>,
        answer: impl Fn(ProcessId, Wire) + Send + Sync + 'static,
    ) -> Registrar {
        Registrar::start(self.id, self.raft.clone(), self.marks.clone(), first, answer)
    }

    /// Stops. With `abandon`, what was not yet written to the log never will be, as in a crash.
    pub(crate) async fn stop(self, abandon: bool) {
        self.registry.remove_life(self.id, self.life);
        if abandon {
            self.log.abandon();
        }
        self.watcher.abort();
        if self.raft.shutdown().await.is_err() {
            tracing::warn!("the consensus did not shut down in order");
        }
        // A snapshot may still be being made.
        self.stored.close().await;
        self.log.close().await;
    }
}

/// A leader whose quorum has not answered yet or for a while, or that hands over, takes nothing; a batch is offered again
/// after this time and then twice as long each time, as long as it leads.
const OFFERED_AGAIN: Duration = Duration::from_millis(2);
/// A batch is offered again at least this often, and what lasts so long is worth a line.
const OFFERED_AT_LEAST: Duration = Duration::from_millis(64);
/// A leader that no quorum has followed for so long orders nothing. Others elect another long before; and where there are no
/// others, but much to do, it had better not begin anew each time that it hears late.
const ISOLATED: Duration = Duration::from_secs(3);
/// A leader whose disk does not keep up for this long lets another router lead.
const KEEPS_UP: Duration = Duration::from_secs(5);

/// Whether it is the only one that votes, as far as its log tells.
async fn is_alone(raft: &RouterRaft, id: u64) -> bool {
    let alone = raft.with_raft_state(move |state| state.membership_state.effective().voter_ids().eq([id]));
    alone.await.unwrap_or(false)
}

/// Waits until the log has room. What the others have on disk is agreed on, whether this router's disk has taken it or not:
/// without this, it would wait for the disk in memory, more and more. As the others' disks do keep up, one of them leads
/// better, and if the disk hangs, nothing would be ordered any more.
async fn wait_for_room(raft: &RouterRaft, log: &LogStore) -> Result<(), ProposeError> {
    if timeout(KEEPS_UP, log.room()).await.is_ok() {
        return Ok(());
    }
    tracing::warn!("the disk of the lead router's log does not keep up");
    if hand_over(raft).await {
        return Err(ProposeError::NotLeader);
    }
    log.room().await;
    Ok(())
}

/// Asks the voter that has most of the log to lead. From then on this router proposes nothing and sends no heartbeats, so
/// that another one leads soon even if that one cannot. False if there is none.
async fn hand_over(raft: &RouterRaft) -> bool {
    let metrics = raft.metrics().borrow_watched().clone();
    let others = metrics.membership_config.voter_ids().filter(|voter| *voter != metrics.id);
    let matched = |voter: &u64| metrics.replication.as_ref().and_then(|matched| matched.get(voter)?.as_ref());
    match others.max_by_key(matched) {
        Some(to) => raft.trigger().transfer_leader(to).await.is_ok(),
        None => false,
    }
}

async fn propose(raft: &RouterRaft, leader: LeaderId, batch: Batch) -> Result<(), ProposeError> {
    let batch = Arc::new(batch);
    let mut pause = OFFERED_AGAIN;
    let mut told = false;
    loop {
        let (responder, completed) = ProgressResponder::complete_only();
        let request = raft.write(batch.clone()).with_leader(leader).responder(responder);
        let outcome = match request.await {
            Ok(()) => completed.await.map_err(|_| "the consensus has stopped".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(Ok(_)) => return Ok(()),
            // Nothing has been appended, and it may lead on: to take it for a follower would be to wait for a leader that
            // nobody elects, as long as it is heard.
            Ok(Err(ClientWriteError::ForwardToLeader(forward)))
                if forward.reason != ForwardReason::NotLeader && leads_in(raft, leader.term) =>
            {
                // Without a quorum it may be long.
                if pause >= OFFERED_AT_LEAST && !std::mem::replace(&mut told, true) {
                    tracing::warn!(reason = ?forward.reason, "the lead router cannot order at the moment");
                }
                tokio::time::sleep(pause).await;
                pause = OFFERED_AT_LEAST.min(2 * pause);
            }
            Ok(Err(ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_))) => {
                return Err(ProposeError::NotLeader);
            }
            Ok(Err(error)) => return Err(ProposeError::Stopped(error.to_string())),
            Err(reason) => return Err(ProposeError::Stopped(reason)),
        }
    }
}

fn leads_in(raft: &RouterRaft, term: u64) -> bool {
    let metrics = raft.metrics();
    let now = metrics.borrow_watched();
    now.state == ServerState::Leader && now.current_term == term
}

/// When a quorum is known to have followed this router for the last time, if it leads.
fn followed_at(metrics: &Metrics) -> Option<Instant> {
    if metrics.state != ServerState::Leader {
        return None;
    }
    let now = Instant::now();
    match metrics.membership_config.voter_ids().eq([metrics.id]) {
        true => Some(now),
        false => now.checked_sub(metrics.last_quorum_acked?.elapsed()),
    }
}

/// Reports who leads. This router is reported as leader only after a batch of its own term was learned: by then it has
/// learned everything that was acknowledged under earlier leaders. One that no quorum follows any more is reported as none,
/// until one does again: openraft lets it lead on, but who asks it would wait for what others may order. So is one whose disk
/// hangs, and another is asked to lead: what others have on disk is agreed on, but this one cuts no log and casts no vote.
async fn watch_leadership(id: u64, raft: RouterRaft, log: LogStore, events: mpsc::Sender<Event>) {
    let mut metrics = raft.metrics();
    let mut reported: Option<Option<u64>> = None;
    let mut led = None;
    // The term in which it has handed over: whoever is asked again and again is kept from being elected.
    let mut handed_over = None;
    loop {
        let (running, mut leads, term, leader) = {
            let now = metrics.borrow_and_update();
            let is_followed = |at: Instant| at.elapsed() < ISOLATED || planted(Bug::LeaseOfTheDeposed);
            let leads = followed_at(&now).is_some_and(is_followed);
            if !leads && led == Some(now.current_term) && now.state == ServerState::Leader {
                tracing::warn!(
                    "the lead router has no answer to its heartbeats from a quorum within {} ms each (--heartbeat-ms)",
                    raft.config().heartbeat_interval
                );
            }
            (now.running_state.clone(), leads, now.current_term, now.current_leader)
        };
        if let Err(error) = running {
            let _ = events.send(Event::Failed(error.to_string())).await;
            return;
        }
        if leads && handed_over != Some(term) && log.stands_still() > KEEPS_UP && hand_over(&raft).await {
            tracing::warn!("the disk of the lead router's log hangs");
            handed_over = Some(term);
        }
        leads &= handed_over != Some(term);
        if !leads || led.is_some_and(|led| led != term) {
            let leader = leader.filter(|leader| *leader != id);
            if reported != Some(leader) {
                reported = Some(leader);
                let leader = leader.map(|leader| ProcessId::router(number(leader)));
                if events.send(Event::Follower(leader)).await.is_err() {
                    return;
                }
            }
            led = None;
        }
        if leads && led != Some(term) {
            // A failure means that another term has begun, which the metrics will show.
            if planted(Bug::LeaderBeforeItsLog)
                || propose(&raft, LeaderId { term, node_id: id }, Batch::default()).await.is_ok()
            {
                led = Some(term);
                reported = None;
                if events.send(Event::Leader(term)).await.is_err() {
                    return;
                }
            } else if metrics.changed().await.is_err() {
                return;
            }
            continue;
        }
        let changed = match leads {
            true => timeout(ISOLATED / 4, metrics.changed()).await.unwrap_or(Ok(())),
            false => metrics.changed().await,
        };
        if changed.is_err() {
            let running = metrics.borrow_watched().running_state.clone();
            let reason = running.err().map_or("the consensus has stopped".into(), |error| error.to_string());
            let _ = events.send(Event::Failed(reason)).await;
            return;
        }
    }
}

/// Why the m-seq could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It no longer reaches back that far.
    #[error("the log begins after {0}")]
    Purged(Ts),
    /// The log.
    #[error("{0}")]
    Log(#[from] std::io::Error),
}

/// Reads the m-seq again, from any `Ts` that the log still reaches.
#[derive(Clone)]
pub(crate) struct MSeqReader {
    log: LogStore,
    marks: Arc<marks::Marks>,
}

/// Where a reader stands.
#[derive(Debug)]
pub(crate) struct Cursor {
    next: u64,
    mseq: MSeq,
    /// The snapshots that had been received when it began.
    received: u64,
}

impl Cursor {
    /// Everything up to here has been read.
    pub(crate) fn ts(&self) -> Ts {
        self.mseq.ts()
    }
}

impl MSeqReader {
    /// A cursor at or before `after`.
    pub(crate) fn seek(&self, after: Ts) -> Result<Cursor, ReadError> {
        let (next, mseq, received) =
            self.marks.before(after).ok_or_else(|| ReadError::Purged(self.marks.first()))?;
        Ok(Cursor { next, mseq, received })
    }

    /// Whether everything that was learned has been read.
    pub(crate) fn is_at_end(&self, cursor: &Cursor) -> bool {
        cursor.next >= self.marks.applied()
    }

    /// Reads on from the cursor: about `bytes` of the log, no further than what was learned. Empty at its end,
    /// and where nothing is learned.
    pub(crate) async fn read(&self, cursor: &mut Cursor, bytes: u64) -> Result<Vec<Learned>, ReadError> {
        let mut learned = Vec::new();
        let end = self.marks.applied();
        if cursor.next >= end {
            return Ok(learned);
        }
        let entries = self.log.read(cursor.next..end, bytes).await?;
        let is_next = entries.first().is_some_and(|entry| entry.log_id.index == cursor.next);
        // Behind a snapshot that was received meanwhile, this log may still have what nobody has agreed on.
        if !is_next || self.marks.received() != cursor.received {
            return Err(ReadError::Purged(self.marks.first()));
        }
        for entry in entries {
            cursor.next = entry.log_id.index + 1;
            if let openraft::EntryPayload::Normal(batch) = &entry.payload {
                learned.extend(cursor.mseq.learn(batch));
            }
        }
        Ok(learned)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::{
        router::{mseq::Command, testing::large_write},
        wal::simulated::Used,
    };

    const BATCH: usize = 4 << 20;

    fn batch(sequence: u64) -> Batch {
        Batch(vec![Command::Message(Arc::new(large_write(ProcessId::client(1), sequence, BATCH)))])
    }

    /// Who a router says leads: itself, or another.
    type Leads = watch::Receiver<Option<ProcessId>>;

    /// A router whose events are heard.
    async fn start(id: ProcessId, directory: &std::path::Path, network: &Network) -> (Consensus, Leads) {
        let members = (1..=3).map(ProcessId::router).collect();
        let directory = directory.join(id.to_string());
        let durability = Durability::Disk { directory, limits: Default::default() };
        let (config, timing) = (RingConfig::evenly(1, 1).expect("a ring"), Timing::default());
        let (events, mut heard) = mpsc::channel(16);
        let router = Consensus::start(id, &members, config, durability, &timing, network, events);
        let router = router.await.expect("starts");
        let (leads, leader) = watch::channel(None);
        tokio::spawn(async move {
            while let Some(event) = heard.recv().await {
                match event {
                    Event::Leader(_) => drop(leads.send_replace(Some(id))),
                    Event::Follower(leader) => drop(leads.send_replace(leader)),
                    Event::Failed(reason) => panic!("{reason}"),
                    Event::Learned { .. } | Event::Installed(_) => {}
                }
            }
        });
        (router, leader)
    }

    /// Three routers: who leads, that one, and the others.
    async fn start_three(
        directory: &std::path::Path,
        network: &Network,
    ) -> (ProcessId, (Consensus, Leads), Vec<(Consensus, Leads)>) {
        let mut routers = Vec::new();
        for id in (1..=3).map(ProcessId::router) {
            routers.push(start(id, directory, network).await);
        }
        // Each hears of the leader; that one begins to lead when it has learned what was before.
        let mut hears = routers[0].1.clone();
        let first = hears.wait_for(Option::is_some).await.expect("it runs").expect("a leader");
        let mut leader = routers.swap_remove((first.number - 1) as usize);
        leader.1.wait_for(|leads| *leads == Some(first)).await.expect("it runs");
        (first, leader, routers)
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_disk_hangs_takes_little_more_and_hands_over() {
        let _simulated = Used::new();
        let directory = tempfile::tempdir().expect("a directory");
        let network = Network::new();
        let (first, (leader, mut hears), mut routers) = start_three(directory.path(), &network).await;

        leader.log.hang(true);
        let mut taken = 0;
        let refused = loop {
            match leader.propose_now(batch(taken)).await {
                Ok(()) => taken += 1,
                Err(error) => break error,
            }
            assert!(leader.log.pending_bytes() < log_store::PENDING_BYTES + 2 * BATCH);
        };
        assert!(matches!(refused, ProposeError::NotLeader), "{refused}");
        assert!(leader.log.pending_bytes() > log_store::PENDING_BYTES, "it took what there was room for");
        let is_another = |leads: &Option<ProcessId>| leads.is_some_and(|leads| leads != first);
        let (other, hears_other) = &mut routers[0];
        let second = hears_other.wait_for(is_another).await.expect("it runs").expect("a leader");
        leader.log.hang(false);
        hears.wait_for(|leads| *leads == Some(second)).await.expect("it runs");
        leader.log.room().await;
        assert!(leader.log.pending_bytes() <= log_store::PENDING_BYTES);
        let other = if second.number == number(other.id) { &*other } else { &routers[1].0 };
        other.propose_now(batch(taken)).await.expect("it leads, and its disk keeps up");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_disk_hangs_hands_over_also_when_there_is_little_to_do() {
        let _simulated = Used::new();
        let directory = tempfile::tempdir().expect("a directory");
        let network = Network::new();
        let (first, (leader, mut hears), mut routers) = start_three(directory.path(), &network).await;

        leader.log.hang(true);
        leader.propose_now(batch(0)).await.expect("the others have it on disk");
        hears.wait_for(|leads| *leads != Some(first)).await.expect("it runs");
        let is_another = |leads: &Option<ProcessId>| leads.is_some_and(|leads| leads != first);
        let second = routers[0].1.wait_for(is_another).await.expect("it runs").expect("a leader");
        let other = routers.iter().find(|(other, _)| number(other.id) == second.number);
        other
            .expect("it is one of them")
            .0
            .propose_now(batch(1))
            .await
            .expect("it leads, and its disk keeps up");
        leader.log.hang(false);
        hears.wait_for(|leads| *leads == Some(second)).await.expect("it runs");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_nobody_follows_is_none_until_somebody_does() {
        let _simulated = Used::new();
        let directory = tempfile::tempdir().expect("a directory");
        let network = Network::new();
        let (_, (leader, mut hears), routers) = start_three(directory.path(), &network).await;
        let others: Vec<ProcessId> =
            routers.iter().map(|(other, _)| ProcessId::router(number(other.id))).collect();
        for (other, _) in routers {
            other.stop(false).await;
        }
        let followed = leader.followed();
        hears.wait_for(Option::is_none).await.expect("it runs");
        assert!(followed().is_some_and(|at| at.elapsed() >= ISOLATED));
        let _other = start(others[0], directory.path(), &network).await;
        hears.wait_for(Option::is_some).await.expect("it runs");
        assert!(followed().is_none_or(|at| at.elapsed() < ISOLATED));
        drop(leader);
    }
}
