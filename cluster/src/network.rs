//! The network between processes.
//!
//! [`Network`] is a registry of mailboxes: one for each process that has joined, and one for each process elsewhere
//! that the [`crate::transport`] has a session with; senders do not see the difference. Channels are quasi-reliable and FIFO
//! as the paper assumes (section 5.2): what is sent to a process that stays up arrives, in order, for each sender and
//! lane. What is sent to a process that is not there is [`Unreachable`] at once; what lies in the mailbox of a process
//! that leaves is lost, as in a crash.
//!
//! # Two lanes
//! Each mailbox has a control lane and a data lane ([`Wire::lane`]) and the receiver always takes from the control lane
//! first, so that votes, confirmations and acknowledgements never queue behind data (DESIGN, decision 17). Order is
//! kept within a lane only: a `NotLeader` may overtake the `Deliver`s that were sent before it.
//!
//! # The rule that keeps bounded queues free of deadlock
//! Both lanes are bounded. Two processes that wait for room in each other's mailbox would wait for ever, hence:
//!
//! 1. **A task that receives from an endpoint never awaits a `send`.** It uses [`Sender::try_send`] and keeps what did
//!    not fit, or it hands the message to a task of its own that may wait (one for each destination, so that a slow
//!    destination delays only what goes to itself).
//! 2. What is kept or handed over is bounded by the protocol: by a subscription's window for deliveries, by the
//!    operations in progress for answers and votes; cumulative messages (`Confirm`, `Ordered`) replace one another.
//!
//! So every mailbox is drained whatever happens elsewhere, and every awaited `send` comes to an end.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use hashbrown::HashMap;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::{
    config::Config,
    founder::Founding,
    message::{Incarnation, ProcessId, ProcessKind},
    planted::{Bug, planted},
    raft,
    routers::Routers,
    wire::Wire,
};

/// Messages that fit into the control lane of a mailbox.
const CONTROL_CAPACITY: usize = 16 * 1024;
/// Messages that fit into the data lane of a mailbox. Deliveries and answers travel in batches, so this is few.
const DATA_CAPACITY: usize = 64;

/// Which queue of a mailbox a message goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Small messages on which others wait.
    Control,
    /// All that carries rows or operations.
    Data,
}

impl Wire {
    /// The lane it travels on.
    pub fn lane(&self) -> Lane {
        match self {
            Wire::Confirm(_)
            | Wire::Ordered { .. }
            | Wire::Resend { .. }
            | Wire::NotLeader { .. }
            | Wire::Room { .. }
            | Wire::Reached { .. }
            | Wire::Routers(_)
            | Wire::ChangeRouters { .. }
            | Wire::RoutersChanged { .. }
            | Wire::Look { .. }
            | Wire::Looked { .. }
            | Wire::SubscribeRefused { .. }
            | Wire::GivenUp { .. }
            | Wire::JoinRefused { .. }
            | Wire::Outlived { .. }
            | Wire::LogLost { .. }
            | Wire::Votes { .. }
            | Wire::AskVotes(_)
            | Wire::NoVotes { .. }
            | Wire::Staged { .. }
            | Wire::Durable { .. }
            | Wire::Hello
            | Wire::AskAnswers(_)
            | Wire::AskLease { .. }
            | Wire::Lease { .. }
            // Nothing of a session comes before it, and whoever takes no data now may be waiting for what has been lost.
            | Wire::Lost
            // A process whose data lane is held up by rows that it lacks must be able to get them.
            | Wire::FetchChunk { .. }
            | Wire::StagedRows { .. }
            | Wire::AskRows { .. }
            | Wire::RowsFollow { .. }
            | Wire::RowsRefused { .. }
            | Wire::Memory { .. }
            | Wire::Loading(_)
            | Wire::Statistics(_)
            | Wire::RenewPin(_)
            | Wire::ReleasePin(_)
            | Wire::Precut { .. }
            | Wire::HasPrecut { .. }
            | Wire::Cancel(_)
            | Wire::Fetch { .. }
            | Wire::Took { .. } => Lane::Control,
            Wire::Consensus(packet) => packet.lane(),
            // Subscribe and Leave stay behind the routes sent before them; State, Restarted, NoAnswers and Gone must neither
            // overtake nor be overtaken by the deliveries and answers around them.
            Wire::Route(_)
            | Wire::Read { .. }
            | Wire::BasicRead { .. }
            | Wire::ReadsLost(_)
            | Wire::Subscribe { .. }
            | Wire::Leave { .. }
            | Wire::State { .. }
            | Wire::Deliver { .. }
            | Wire::Answers(_)
            | Wire::NoAnswers(_)
            | Wire::Gone { .. }
            | Wire::Restarted { .. }
            | Wire::ReadsMissed
            | Wire::Stage(_)
            | Wire::Abandon(_)
            | Wire::Rows { .. } => Lane::Data,
        }
    }
}

/// Whether `from` says to `to` what it has not asked for since it lives: a storage process answers what routers bring, to
/// clients that it may not have met. Then something may be lost before the two meet for the first time.
pub(crate) fn answers_unasked(from: ProcessId, to: ProcessId) -> bool {
    from.kind == ProcessKind::Storage
        && matches!(to.kind, ProcessKind::Client | ProcessKind::Super)
        && !planted(Bug::FirstMeetingUntold)
}

/// The process is not there (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {0} is unreachable")]
pub struct Unreachable(pub ProcessId);

/// Why [`Sender::try_send`] did not send.
#[derive(Debug, thiserror::Error)]
pub enum TrySendError {
    /// The process is not there (any more).
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Its mailbox is full at the moment; the message comes back.
    #[error("the mailbox of {0} is full")]
    Full(ProcessId, Box<Wire>),
}

/// A message and who sent it.
pub type Envelope = (ProcessId, Wire);

#[derive(Clone)]
struct Mailbox {
    /// Tells one life of a process from the next.
    life: u64,
    control: mpsc::Sender<Envelope>,
    data: mpsc::Sender<Envelope>,
}

impl Mailbox {
    fn lane(&self, lane: Lane) -> &mpsc::Sender<Envelope> {
        match lane {
            Lane::Control => &self.control,
            Lane::Data => &self.data,
        }
    }

    fn try_send(&self, from: ProcessId, to: ProcessId, wire: Wire) -> Result<(), TrySendError> {
        self.lane(wire.lane()).try_send((from, wire)).map_err(|error| match error {
            mpsc::error::TrySendError::Full((_, wire)) => TrySendError::Full(to, Box::new(wire)),
            mpsc::error::TrySendError::Closed(_) => TrySendError::Unreachable(Unreachable(to)),
        })
    }
}

#[derive(Default)]
struct Registry {
    lives: u64,
    mailboxes: HashMap<ProcessId, Mailbox>,
    /// On the way from a process here to one elsewhere.
    remote: HashMap<(ProcessId, ProcessId), Mailbox>,
}

impl Registry {
    fn mailbox(&mut self) -> (Mailbox, mpsc::Receiver<Envelope>, mpsc::Receiver<Envelope>) {
        let (control_in, control) = mpsc::channel(CONTROL_CAPACITY);
        let (data_in, data) = mpsc::channel(DATA_CAPACITY);
        self.lives += 1;
        (Mailbox { life: self.lives, control: control_in, data: data_in }, control, data)
    }
}

/// The processes that can reach one another. Cheap to clone; all clones are the same network.
#[derive(Clone, Default)]
pub struct Network {
    registry: Arc<RwLock<Registry>>,
    /// How routers reach one another for consensus.
    pub(crate) routers: raft::Registry,
    /// Where further storage processes can be asked for.
    founder: Arc<RwLock<Option<Founding>>>,
    /// Where the processes listen that the cluster's description names.
    described: Arc<RwLock<BTreeMap<ProcessId, String>>>,
    /// The newest config that a process here has heard of: where others listen.
    config: Arc<watch::Sender<Option<Arc<Config>>>>,
    /// The newest list of routers that a process here has heard of.
    known: Arc<watch::Sender<Arc<Routers>>>,
    /// Routers elsewhere that lack what they had confirmed, with the first index in the log that shows it.
    disowned: Arc<watch::Sender<BTreeMap<ProcessId, u64>>>,
    /// The bytes that the rows of all storage processes may take together, if all are here and there is a limit.
    memory_limit: Arc<OnceLock<u64>>,
    /// Processes here that load what they had, and have not joined yet.
    starting: Arc<RwLock<BTreeMap<ProcessId, Loading>>>,
}

/// How far a process is that loads what it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Its life.
    pub incarnation: Incarnation,
    /// Grows with what it has loaded.
    pub progress: u64,
}

/// A process here loads what it had, until this is dropped.
pub(crate) struct Starting {
    id: ProcessId,
    network: Network,
}

impl Starting {
    /// It has come further.
    pub(crate) fn goes_on(&self) {
        if let Some(loading) = self.network.starting.write().get_mut(&self.id) {
            loading.progress += 1;
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.network.starting.write().remove(&self.id);
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// A network without processes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A process here has heard of a config.
    pub(crate) fn learn(&self, config: &Arc<Config>) {
        self.config.send_if_modified(|known| {
            let is_new = known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, config));
            if is_new {
                *known = Some(config.clone());
            }
            is_new
        });
    }

    /// The configs that processes here hear of.
    pub(crate) fn configs(&self) -> watch::Receiver<Option<Arc<Config>>> {
        self.config.subscribe()
    }

    pub(crate) fn set_founder(&self, founder: Founding) {
        *self.founder.write() = Some(founder);
    }

    /// Where a new storage process can be asked for, if anywhere.
    pub(crate) fn founder(&self) -> Option<Founding> {
        self.founder.read().clone()
    }

    /// The process other than a router that listens at an address, as far as is known here.
    pub(crate) fn listens_at(&self, address: &str) -> Option<ProcessId> {
        let config = self.config.borrow().clone();
        let joined = config.iter().flat_map(|config| config.addresses());
        // Whoever the description names may have left since.
        let may_be = |process: &ProcessId| {
            process.kind != ProcessKind::Storage
                || config.as_ref().is_none_or(|config| config.contains(*process))
        };
        let described = self.described.read();
        let mut all = joined.chain(described.iter().filter(|(process, _)| may_be(process)));
        let other = all.find(|(process, at)| process.kind != ProcessKind::Router && *at == address);
        other.map(|(process, _)| *process)
    }

    /// Where the processes listen that the cluster's description names.
    pub(crate) fn set_described(&self, addresses: BTreeMap<ProcessId, String>) {
        *self.described.write() = addresses;
    }

    /// All storage processes are here, and their rows may take so many bytes together.
    pub(crate) fn set_memory_limit(&self, limit: u64) {
        let _ = self.memory_limit.set(limit);
    }

    /// The bytes that the rows of all storage processes may take together, if there is such a limit.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit.get().copied()
    }

    /// A router elsewhere lacks an entry of the log that it had confirmed.
    pub(crate) fn disown(&self, router: ProcessId, index: u64) {
        self.disowned.send_if_modified(|disowned| disowned.insert(router, index) != Some(index));
    }

    /// Tells when there are such routers.
    pub(crate) fn disowned(&self) -> watch::Receiver<BTreeMap<ProcessId, u64>> {
        self.disowned.subscribe()
    }

    /// The routers of which that has come to light since this was asked last.
    pub(crate) fn take_disowned(&self) -> BTreeMap<ProcessId, u64> {
        let mut taken = BTreeMap::new();
        self.disowned.send_if_modified(|disowned| {
            taken = std::mem::take(disowned);
            false
        });
        taken
    }

    /// A process here has heard who the routers are.
    pub(crate) fn learn_routers(&self, routers: &Arc<Routers>) {
        self.known.send_if_modified(|known| {
            let is_news = known.is_empty() || known.edition().yields_to(routers.edition());
            if is_news {
                *known = routers.clone();
            }
            is_news
        });
    }

    /// Who the routers are, as far as any process here knows; empty before anything is known.
    pub(crate) fn known_routers(&self) -> watch::Receiver<Arc<Routers>> {
        self.known.subscribe()
    }

    /// The same list, with the addresses of the first routers, which only the cluster's description has.
    pub(crate) fn known_routers_with_addresses(&self) -> Routers {
        let known = self.known.borrow().clone();
        known.resolved(&self.described.read())
    }

    /// Joins as `id`. An older endpoint of the same id is replaced: its `recv` ends and its senders fail.
    pub fn join(&self, id: ProcessId) -> Endpoint {
        let mut registry = self.registry.write();
        let (mailbox, control, data) = registry.mailbox();
        let life = mailbox.life;
        registry.mailboxes.insert(id, mailbox);
        Endpoint {
            sender: Sender { id, life, network: self.clone() },
            control: Some(control),
            data: Some(data),
        }
    }

    /// Removes `id`, as a crash would: its endpoint's `recv` ends after what has already arrived, and nothing that it
    /// still tries to send gets out.
    pub fn leave(&self, id: ProcessId) {
        self.registry.write().mailboxes.remove(&id);
        if id.kind == ProcessKind::Router {
            self.routers.remove(u64::from(id.number));
        }
    }

    /// Whether `id` has joined.
    pub fn contains(&self, id: ProcessId) -> bool {
        self.registry.read().mailboxes.contains_key(&id)
    }

    /// A life of `id` begins to load what the process had. It will join when it is through; who watches it hears until then
    /// how far it is.
    pub(crate) fn starts(&self, id: ProcessId, incarnation: Incarnation) -> Starting {
        self.starting.write().insert(id, Loading { incarnation, progress: 0 });
        Starting { id, network: self.clone() }
    }

    /// How far `id` is, if it is still loading.
    pub(crate) fn loading(&self, id: ProcessId) -> Option<Loading> {
        self.starting.read().get(&id).copied()
    }

    /// Whether what `from` sends to `to` has a way there.
    pub(crate) fn reaches(&self, from: ProcessId, to: ProcessId) -> bool {
        let registry = self.registry.read();
        registry.mailboxes.contains_key(&to) || registry.remote.contains_key(&(from, to))
    }

    /// Whether processes elsewhere can be reached.
    pub(crate) fn goes_elsewhere(&self) -> bool {
        !self.registry.read().remote.is_empty()
    }

    fn leave_life(&self, id: ProcessId, life: u64) {
        let mut registry = self.registry.write();
        if registry.mailboxes.get(&id).is_some_and(|mailbox| mailbox.life == life) {
            registry.mailboxes.remove(&id);
        }
    }

    fn mailbox(&self, from: ProcessId, life: u64, to: ProcessId) -> Result<Mailbox, Unreachable> {
        let registry = self.registry.read();
        // A process that was replaced or removed must not speak for its successor.
        if registry.mailboxes.get(&from).is_none_or(|mailbox| mailbox.life != life) {
            return Err(Unreachable(to));
        }
        let mailbox = registry.mailboxes.get(&to).or_else(|| registry.remote.get(&(from, to)));
        mailbox.cloned().ok_or(Unreachable(to))
    }

    /// Makes a process elsewhere reachable for one that is here, until the route is dropped or replaced. With
    /// [`Network::deliver`] all that a transport needs; public so that the benchmark can put another in its place.
    pub fn open_route(&self, from: ProcessId, to: ProcessId) -> Route {
        let mut registry = self.registry.write();
        let (mailbox, control, data) = registry.mailbox();
        let life = mailbox.life;
        if registry.remote.insert((from, to), mailbox).is_some() {
            self.lose_calls(from, to);
        }
        Route { from, to, life, network: self.clone(), control: Some(control), data: Some(data) }
    }

    fn close_route(&self, from: ProcessId, to: ProcessId, life: u64) {
        let mut registry = self.registry.write();
        if registry.remote.get(&(from, to)).is_some_and(|mailbox| mailbox.life == life) {
            registry.remote.remove(&(from, to));
            self.lose_calls(from, to);
        }
    }

    /// What one router has asked another by a route that is no more is not answered. Who uses the next route finds it behind this.
    fn lose_calls(&self, from: ProcessId, to: ProcessId) {
        if from.kind == ProcessKind::Router {
            self.routers.lost(to);
        }
    }

    /// Hands on what came from a process elsewhere, waiting for room. Safe to cancel.
    ///
    /// # Errors
    /// When the process that it is for is not there (any more).
    pub async fn deliver(&self, from: ProcessId, to: ProcessId, wire: Wire) -> Result<(), Unreachable> {
        if let Wire::Consensus(packet) = wire {
            return self.routers.received(self, from, to, packet).await;
        }
        let mailbox = self.registry.read().mailboxes.get(&to).cloned().ok_or(Unreachable(to))?;
        mailbox.lane(wire.lane()).send((from, wire)).await.map_err(|_| Unreachable(to))
    }

    /// Sends to a process elsewhere, waiting for room, in the name of one here that need not have joined yet.
    pub(crate) async fn send_elsewhere(
        &self,
        from: ProcessId,
        to: ProcessId,
        wire: Wire,
    ) -> Result<(), Unreachable> {
        let mailbox = self.elsewhere(from, to)?;
        mailbox.lane(wire.lane()).send((from, wire)).await.map_err(|_| Unreachable(to))
    }

    /// Like [`Network::send_elsewhere`], if there is room.
    pub(crate) fn try_send_elsewhere(
        &self,
        from: ProcessId,
        to: ProcessId,
        wire: Wire,
    ) -> Result<(), TrySendError> {
        self.elsewhere(from, to)?.try_send(from, to, wire)
    }

    fn elsewhere(&self, from: ProcessId, to: ProcessId) -> Result<Mailbox, Unreachable> {
        self.registry.read().remote.get(&(from, to)).cloned().ok_or(Unreachable(to))
    }
}

/// What is sent from a process here to one elsewhere. Nothing can be sent there any more when it is dropped.
pub struct Route {
    from: ProcessId,
    to: ProcessId,
    life: u64,
    network: Network,
    control: Option<mpsc::Receiver<Envelope>>,
    data: Option<mpsc::Receiver<Envelope>>,
}

impl Route {
    /// What is to be sent on a lane; to be taken once.
    pub fn take(&mut self, lane: Lane) -> Option<mpsc::Receiver<Envelope>> {
        match lane {
            Lane::Control => self.control.take(),
            Lane::Data => self.data.take(),
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        self.network.close_route(self.from, self.to, self.life);
    }
}

/// Sends in the name of one life of a process. Cheap to clone.
#[derive(Clone)]
pub struct Sender {
    id: ProcessId,
    life: u64,
    network: Network,
}

impl Sender {
    /// In whose name.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Sends, waiting for room. Not to be awaited by a task that receives from an endpoint, see the module's head.
    pub async fn send(&self, to: ProcessId, wire: Wire) -> Result<(), Unreachable> {
        let mailbox = self.network.mailbox(self.id, self.life, to)?;
        mailbox.lane(wire.lane()).send((self.id, wire)).await.map_err(|_| Unreachable(to))
    }

    /// Whether something can be sent to a process now.
    pub(crate) fn reaches(&self, to: ProcessId) -> bool {
        self.network.reaches(self.id, to)
    }

    /// Sends if there is room.
    pub fn try_send(&self, to: ProcessId, wire: Wire) -> Result<(), TrySendError> {
        self.network.mailbox(self.id, self.life, to)?.try_send(self.id, to, wire)
    }
}

/// One life of a process on the network. Leaves when dropped.
pub struct Endpoint {
    sender: Sender,
    control: Option<mpsc::Receiver<Envelope>>,
    data: Option<mpsc::Receiver<Envelope>>,
}

impl Endpoint {
    /// Whose endpoint.
    pub fn id(&self) -> ProcessId {
        self.sender.id
    }

    /// A sender in the name of this endpoint.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// The next message of the control lane; `None` when this endpoint was replaced or removed. For a process that
    /// cannot take more data at the moment. Safe to cancel.
    pub async fn recv_control(&mut self) -> Option<(ProcessId, Wire)> {
        self.control.as_mut()?.recv().await
    }

    /// The next message and who sent it; `None` when this endpoint was replaced or removed. Safe to cancel.
    pub async fn recv(&mut self) -> Option<(ProcessId, Wire)> {
        loop {
            let (lane, received) = match (&mut self.control, &mut self.data) {
                (Some(control), Some(data)) => tokio::select! {
                    biased;
                    received = control.recv() => (Lane::Control, received),
                    received = data.recv() => (Lane::Data, received),
                },
                (Some(control), None) => (Lane::Control, control.recv().await),
                (None, Some(data)) => (Lane::Data, data.recv().await),
                (None, None) => return None,
            };
            match (lane, received) {
                (_, Some(envelope)) => return Some(envelope),
                (Lane::Control, None) => self.control = None,
                (Lane::Data, None) => self.data = None,
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.sender.network.leave_life(self.sender.id, self.sender.life);
    }
}

#[cfg(test)]
mod tests {
    use carousel_engine::Ts;

    use super::*;

    const R1: ProcessId = ProcessId::router(1);
    const S1: ProcessId = ProcessId::storage(1);

    fn confirm(n: u64) -> Wire {
        Wire::RenewPin(Ts(n))
    }

    fn data(n: u64) -> Wire {
        Wire::Restarted { incarnation: n, passed: None }
    }

    #[tokio::test]
    async fn control_overtakes_data_and_each_lane_is_fifo() {
        let network = Network::new();
        let mut router = network.join(R1);
        let storage = network.join(S1).sender();
        assert!(
            matches!(storage.try_send(R1, data(1)), Err(TrySendError::Unreachable(_))),
            "its endpoint is gone"
        );

        let storage = network.join(S1);
        for n in 0..10 {
            storage.sender().send(R1, data(n)).await.expect("r1 is there");
            storage.sender().send(R1, confirm(n)).await.expect("r1 is there");
        }
        let mut received = Vec::new();
        for _ in 0..20 {
            received.push(match router.recv().await {
                Some((S1, Wire::RenewPin(ts))) => ("control", ts.0),
                Some((S1, Wire::Restarted { incarnation: n, .. })) => ("data", n),
                other => panic!("{other:?}"),
            });
        }
        let expected: Vec<_> = (0..10).map(|n| ("control", n)).chain((0..10).map(|n| ("data", n))).collect();
        assert_eq!(received, expected);
    }

    #[tokio::test]
    async fn a_full_data_lane_does_not_hold_up_control() {
        let network = Network::new();
        let mut router = network.join(R1);
        let storage = network.join(S1);
        let mut sent = 0;
        while storage.sender().try_send(R1, data(sent)).is_ok() {
            sent += 1;
        }
        assert!(matches!(storage.sender().try_send(R1, data(sent)), Err(TrySendError::Full(R1, _))));
        storage.sender().try_send(R1, confirm(1)).expect("the control lane has room");
        assert!(matches!(router.recv().await, Some((S1, Wire::RenewPin(_)))));
        // A waiting sender gets its turn once there is room.
        let waiting = tokio::spawn({
            let sender = storage.sender();
            async move { sender.send(R1, data(sent)).await }
        });
        for n in 0..=sent {
            assert!(
                matches!(router.recv().await, Some((S1, Wire::Restarted { incarnation: m, .. })) if m == n)
            );
        }
        waiting.await.expect("no panic").expect("sent");
    }

    #[tokio::test]
    async fn a_new_life_replaces_the_old_one() {
        let network = Network::new();
        let storage = network.join(S1);
        let mut old = network.join(R1);
        storage.sender().send(R1, confirm(1)).await.expect("r1 is there");
        let mut new = network.join(R1);
        storage.sender().send(R1, confirm(2)).await.expect("r1 is there");
        assert!(matches!(old.recv().await, Some((S1, Wire::RenewPin(Ts(1))))));
        assert!(old.recv().await.is_none());
        assert!(old.sender().try_send(S1, confirm(3)).is_err(), "the old life is silent");
        drop(old);
        assert!(network.contains(R1), "the end of the old life does not remove the new one");
        assert!(matches!(new.recv().await, Some((S1, Wire::RenewPin(Ts(2))))));
        network.leave(R1);
        assert!(new.recv().await.is_none());
        assert_eq!(storage.sender().send(R1, confirm(4)).await, Err(Unreachable(R1)));
    }
}
