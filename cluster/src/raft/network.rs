//! Raft's calls between routers: straight to the other's handle when it is in the same operating system process, else
//! as [`Packet`]s over the network.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{Node, RouterRaft, Snapshot, SnapshotMeta, TypeConfig, Vote, marks::Marks};
use crate::{
    message::{ProcessId, ProcessKind},
    network::{Lane, Network, TrySendError},
    wire::Wire,
};

/// Appends that wait for a router; beyond it their connection waits.
const APPENDS: usize = 16;
/// A follower that owes answers and has confirmed nothing for this long is given up until openraft asks it again; meanwhile
/// the log can be cut. Heartbeats count, and those of earlier calls: they are confirmed when all that the follower has
/// taken is on its disk, also while an entry is still on its way there. So a disk that hangs is noticed, and a slow link is
/// not taken for one, however long it takes to send an entry.
const SILENCE: Duration = Duration::from_secs(10);
/// A follower that has confirmed nothing behind the snapshot for this long, in one stream, gets the snapshot instead: openraft
/// keeps the log as long as it is being sent, so that one slow router would fill the disk of the leader.
const LAG: Duration = Duration::from_secs(10);

/// A call, or the answer to one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packet {
    /// The caller's number for it; all appends of a stream have the same.
    call: u64,
    what: Box<What>,
}

impl Packet {
    /// Elections, heartbeats and answers are not held up by entries. All requests of a call take the same lane, so that
    /// none overtakes another.
    pub(crate) fn lane(&self) -> Lane {
        match &*self.what {
            What::Append(_) | What::EndOfAppends | What::Install(..) => Lane::Data,
            What::Heartbeat(_)
            | What::Vote(_)
            | What::PreVote(_)
            | What::Voted(_)
            | What::Appended(_)
            | What::Installed(_)
            | What::HandOver(_)
            | What::HandedOver(_) => Lane::Control,
        }
    }
}

type Answer<T> = Result<T, String>;

#[derive(Clone, Debug, Serialize, Deserialize)]
enum What {
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Voted(Answer<VoteResponse<TypeConfig>>),
    Append(Request),
    Appended(Answer<StreamAppendResult<TypeConfig>>),
    Install(Vote, SnapshotMeta, Vec<u8>),
    Installed(Answer<SnapshotResponse<TypeConfig>>),
    /// The leader wants the receiver to lead.
    HandOver(TransferLeaderRequest<TypeConfig>),
    HandedOver(Answer<TransferLeaderResponse<TypeConfig>>),
    /// No append of the call follows.
    EndOfAppends,
    /// An append without entries, the only one of its call.
    Heartbeat(Request),
}

type Request = AppendEntriesRequest<TypeConfig>;

/// Streams of appends from routers elsewhere: one for each call, whatever other calls come in between. A new call may begin
/// before the end of the last one is known, and the requests of each must stay in order.
#[derive(Default)]
struct Streams(Mutex<HashMap<(ProcessId, ProcessId, u64), mpsc::Sender<Request>>>);

impl Streams {
    /// Where the requests of a call by `from` to `to` go; and, when it is new, where they come out.
    fn of(
        &self,
        from: ProcessId,
        to: ProcessId,
        call: u64,
    ) -> (mpsc::Sender<Request>, Option<mpsc::Receiver<Request>>) {
        let mut received = None;
        let mut streams = self.0.lock();
        let requests = streams.entry((from, to, call)).or_insert_with(|| {
            let (requests, new) = mpsc::channel(APPENDS);
            received = Some(new);
            requests
        });
        (requests.clone(), received)
    }

    /// A call has ended.
    fn end(&self, from: ProcessId, to: ProcessId, call: u64) {
        self.0.lock().remove(&(from, to, call));
    }

    /// The calls of a router that cannot be reached any more have ended.
    fn lost(&self, router: ProcessId) {
        self.0.lock().retain(|(from, ..), _| *from != router);
    }
}

#[derive(Default)]
struct Routers {
    lives: u64,
    reachable: HashMap<u64, (u64, RouterRaft)>,
}

/// A call that has not been answered for the last time.
struct Waiting {
    to: ProcessId,
    answers: mpsc::UnboundedSender<What>,
    /// The leadership in which it appends.
    vote: Option<Vote>,
}

/// What a router has confirmed to this one.
#[derive(Clone, Copy, Default)]
struct Kept {
    /// The newest entry, in which leadership of this router: it could lose that only for another leader, whose vote it would
    /// tell.
    confirmed: Option<(Vote, u64)>,
    /// The newest entry that is known to be committed.
    committed: Option<u64>,
}

/// Calls to routers elsewhere that have not been answered, and streams of appends from there.
struct Calls {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    appends: Streams,
    /// When routers elsewhere have last answered an append, of whatever call.
    confirmed: Mutex<HashMap<ProcessId, Instant>>,
    /// What routers elsewhere have confirmed and can never lack again.
    kept: Mutex<HashMap<ProcessId, Kept>>,
    /// The newest leadership of this router that has appended, and behind the newest index that is known to be committed, as far
    /// as others have been told so.
    leads: Mutex<(Option<Vote>, u64)>,
    /// Calls that appended, are over and could not tell so for want of room. The next one tells it before it appends, so
    /// they are no more than there were at once.
    over: Mutex<HashMap<(ProcessId, ProcessId), Vec<u64>>>,
}

impl Default for Calls {
    fn default() -> Self {
        // An answer to a call of an earlier life must not be taken for one to a call of this.
        let next = AtomicU64::new(rand::random());
        Calls {
            next,
            waiting: Mutex::default(),
            appends: Streams::default(),
            confirmed: Mutex::default(),
            kept: Mutex::default(),
            leads: Mutex::default(),
            over: Mutex::default(),
        }
    }
}

impl Calls {
    /// An answer has come. Whoever asked may have given up.
    fn answered(&self, from: ProcessId, call: u64, answer: What) {
        if let What::Appended(_) = answer {
            self.confirmed.lock().insert(from, Instant::now());
        }
        if let What::Appended(Ok(Ok(Some(confirmed)))) = &answer {
            self.keep(from, call, confirmed.index);
        }
        if let Some(Waiting { answers, .. }) = self.waiting.lock().get(&call) {
            let _ = answers.send(answer);
        }
    }

    /// Waits until a router owes answers and has confirmed nothing for [`SILENCE`] of a call that has begun at `begun`.
    async fn silence(&self, of: ProcessId, begun: Instant, owes: impl Fn() -> bool) {
        let confirmed = || self.confirmed.lock().get(&of).copied().unwrap_or(begun);
        let mut since = begun;
        loop {
            since = since.max(confirmed());
            sleep_until(since + SILENCE).await;
            if confirmed() <= since {
                if owes() {
                    return;
                }
                since = Instant::now();
            }
        }
    }

    /// A call appends.
    fn tell(&self, call: u64, what: &What) {
        if let What::Append(request) | What::Heartbeat(request) = what {
            let committed = request.leader_commit.map_or(0, |committed| committed.index + 1);
            let mut leads = self.leads.lock();
            let newest = leads.0.filter(|known| *known > request.vote).unwrap_or(request.vote);
            *leads = (Some(newest), leads.1.max(committed));
            drop(leads);
            if let Some(waiting) = self.waiting.lock().get_mut(&call) {
                waiting.vote = Some(request.vote);
            }
        }
    }

    /// The leadership in which a call appends that still waits for answers.
    fn vote(&self, call: u64) -> Option<Vote> {
        self.waiting.lock().get(&call)?.vote
    }

    /// A router has confirmed an entry. In an earlier leadership, or of a call that is over, which may be of one, that was an
    /// entry that may have been replaced since: the one that has been committed there is another.
    fn keep(&self, router: ProcessId, call: u64, index: u64) {
        let Some(vote) = self.vote(call) else { return };
        let (leads, committed) = *self.leads.lock();
        if leads != Some(vote) {
            return;
        }
        let mut kept = self.kept.lock();
        let kept = kept.entry(router).or_default();
        kept.committed = kept.committed.max(committed.checked_sub(1).map(|last| last.min(index)));
        let before = kept.confirmed.filter(|(of, _)| *of == vote).map_or(index, |(_, before)| before);
        kept.confirmed = Some((vote, before.max(index)));
    }

    /// Which entry a router lacks that it has confirmed, if that is what it says: its log is an older copy of the one that it
    /// had. What comes of a call that is over may be from before it had that.
    fn reverted(&self, from: ProcessId, call: u64, answer: &What) -> Option<u64> {
        let What::Appended(Ok(Err(StreamAppendError::Conflict(lacked)))) = answer else { return None };
        let vote = self.vote(call)?;
        let Kept { confirmed, committed } = self.kept.lock().get(&from).copied()?;
        let confirmed = confirmed.filter(|(of, _)| *of == vote).map(|(_, index)| index);
        (Some(lacked.index) <= confirmed.max(committed)).then_some(lacked.index)
    }

    /// The calls to a router that cannot be reached any more, and those that came from there, have ended.
    fn lost(&self, router: ProcessId) {
        self.waiting.lock().retain(|_, waiting| waiting.to != router);
        self.over.lock().retain(|(_, to), _| *to != router);
        self.confirmed.lock().remove(&router);
        self.appends.lost(router);
    }
}

/// The routers that can be reached.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    routers: Arc<RwLock<Routers>>,
    calls: Arc<Calls>,
}

impl Registry {
    /// Makes a router reachable; returns the number of this life of it.
    pub(super) fn insert(&self, id: u64, raft: RouterRaft) -> u64 {
        let mut routers = self.routers.write();
        routers.lives += 1;
        let life = routers.lives;
        routers.reachable.insert(id, (life, raft));
        life
    }

    /// Makes a router unreachable.
    pub(crate) fn remove(&self, id: u64) {
        self.routers.write().reachable.remove(&id);
    }

    /// Makes a life of a router unreachable.
    pub(super) fn remove_life(&self, id: u64, life: u64) {
        let mut routers = self.routers.write();
        if routers.reachable.get(&id).is_some_and(|(found, _)| *found == life) {
            routers.reachable.remove(&id);
        }
    }

    fn get(&self, id: u64) -> Option<RouterRaft> {
        self.routers.read().reachable.get(&id).map(|(_, raft)| raft.clone())
    }

    /// A router elsewhere cannot be reached any more: what it was asked will not be answered.
    pub(crate) fn lost(&self, router: ProcessId) {
        self.calls.lost(router);
    }

    /// A packet has come from a router elsewhere. Waits for room for appends; safe to cancel.
    pub(crate) async fn received(
        &self,
        network: &Network,
        from: ProcessId,
        to: ProcessId,
        packet: Packet,
    ) -> Result<(), crate::network::Unreachable> {
        let Packet { call, what } = packet;
        if from.kind != ProcessKind::Router {
            tracing::warn!(%from, %to, "a process that is no router takes part in no consensus");
            return Ok(());
        }
        let Some(raft) = self.get(u64::from(to.number)) else { return Err(crate::network::Unreachable(to)) };
        let reply = Reply { network: network.clone(), from: to, to: from, call };
        match *what {
            What::Append(request) => {
                let (requests, new) = self.calls.appends.of(from, to, call);
                if let Some(requested) = new {
                    answer_appends(raft, requested, reply);
                }
                // The stream may have ended with an error, which is its last answer.
                let _ = requests.send(request).await;
            }
            What::EndOfAppends => self.calls.appends.end(from, to, call),
            // It says nothing of entries that this router has not confirmed, so it may overtake those on their way.
            What::Heartbeat(request) => {
                let last = request.prev_log_id;
                tokio::spawn(async move {
                    // After that long the other side has no use for it.
                    if let Ok(answer) = timeout(SILENCE, raft.append_entries(request)).await {
                        let answer = answer.map(|answer| answer.into_stream_result(last, last));
                        reply.send(What::Appended(text(answer))).await;
                    }
                });
            }
            What::Vote(request) => reply.spawn(async move { What::Voted(text(raft.vote(request).await)) }),
            What::PreVote(request) => {
                reply.spawn(async move { What::Voted(text(raft.pre_vote(request).await)) });
            }
            What::Install(vote, meta, state) => reply.spawn(async move {
                let snapshot = Snapshot { meta, snapshot: state.into() };
                What::Installed(text(raft.install_full_snapshot(vote, snapshot).await))
            }),
            What::HandOver(request) => {
                reply.spawn(async move { What::HandedOver(text(raft.handle_transfer_leader(request).await)) })
            }
            answer => match self.calls.reverted(from, call, &answer) {
                // openraft takes for granted that this does not happen.
                Some(index) => network.disown(from, index),
                None => self.calls.answered(from, call, answer),
            },
        }
        Ok(())
    }
}

/// Gives a stream of requests to a router, and its answers to whoever has sent them.
fn answer_appends(raft: RouterRaft, requested: mpsc::Receiver<Request>, reply: Reply) {
    let requested = futures::stream::unfold(requested, |mut requested| async {
        requested.recv().await.map(|request| (request, requested))
    });
    tokio::spawn(async move {
        let mut results = Box::pin(raft.stream_append(requested));
        while let Some(result) = results.next().await {
            reply.send(What::Appended(text(result))).await;
        }
    });
}

fn text<T, E: std::fmt::Display>(result: Result<T, E>) -> Answer<T> {
    result.map_err(|error| error.to_string())
}

/// The way back to a caller.
struct Reply {
    network: Network,
    from: ProcessId,
    to: ProcessId,
    call: u64,
}

impl Reply {
    async fn send(&self, what: What) {
        let packet = Packet { call: self.call, what: Box::new(what) };
        // A caller that cannot be reached knows that it will get no answer.
        let _ = self.network.send_elsewhere(self.from, self.to, Wire::Consensus(packet)).await;
    }

    fn spawn(self, answer: impl Future<Output = What> + Send + 'static) {
        tokio::spawn(async move { self.send(answer.await).await });
    }
}

/// How a call sends.
#[derive(Clone)]
struct Way {
    number: u64,
    network: Network,
    from: ProcessId,
    to: ProcessId,
    /// Appends that it was given: so many answers are due.
    appends: Arc<AtomicU64>,
    /// It has begun to send them: the other side keeps a stream for them.
    streams: Arc<AtomicBool>,
}

impl Way {
    fn packet(call: u64, what: What) -> Wire {
        Wire::Consensus(Packet { call, what: Box::new(what) })
    }

    fn calls(&self) -> &Calls {
        &self.network.routers.calls
    }

    fn appends(&self) -> u64 {
        self.appends.load(Ordering::Relaxed)
    }

    async fn send(&self, what: What) -> Result<(), RPCError<TypeConfig>> {
        if let What::Append(_) = what {
            self.appends.fetch_add(1, Ordering::Relaxed);
            if !self.streams.load(Ordering::Relaxed) {
                self.tell_what_is_over().await?;
                self.streams.store(true, Ordering::Relaxed);
            }
        }
        self.send_for(self.number, what).await
    }

    async fn send_for(&self, call: u64, what: What) -> Result<(), RPCError<TypeConfig>> {
        self.calls().tell(call, &what);
        let sent = self.network.send_elsewhere(self.from, self.to, Way::packet(call, what)).await;
        sent.map_err(unreachable)
    }

    async fn tell_what_is_over(&self) -> Result<(), RPCError<TypeConfig>> {
        let ends = (self.from, self.to);
        let next = || self.calls().over.lock().get(&ends).and_then(|over| over.last().copied());
        while let Some(over) = next() {
            self.send_for(over, What::EndOfAppends).await?;
            if let Some(numbers) = self.calls().over.lock().get_mut(&ends) {
                numbers.retain(|number| *number != over);
            }
        }
        Ok(())
    }

    /// The call is over. Nobody waits until the other side can be told so.
    fn end(&self) {
        if !self.streams.load(Ordering::Relaxed) {
            return;
        }
        let (from, to) = (self.from, self.to);
        let end = Way::packet(self.number, What::EndOfAppends);
        // Who cannot be reached forgets the stream by itself.
        if let Err(TrySendError::Full(..)) = self.network.try_send_elsewhere(from, to, end) {
            self.calls().over.lock().entry((from, to)).or_default().push(self.number);
        }
    }
}

/// A call that waits for answers until it is dropped.
struct Call {
    way: Way,
    begun: Instant,
    answers: mpsc::UnboundedReceiver<What>,
}

impl Call {
    async fn answer(&mut self) -> Result<What, RPCError<TypeConfig>> {
        self.answers.recv().await.ok_or_else(|| failed("the connection was lost"))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.way.calls().waiting.lock().remove(&self.way.number);
        self.way.end();
    }
}

/// When the last heartbeat was sent that a router is known to have taken, and in which term. What openraft knows of that itself
/// counts an append as taken with an earlier one that reaches as far, whenever it was sent.
#[derive(Default)]
pub(super) struct Followed(Mutex<HashMap<u64, (u64, Instant)>>);

impl Followed {
    fn hear(&self, of: u64, term: u64, sent: Instant) {
        let mut followed = self.0.lock();
        let last = followed.entry(of).or_insert((term, sent));
        *last = (*last).max((term, sent));
    }

    /// Until when more than half of the voters of each of the memberships that count are known to have followed their leader in
    /// a term, itself included.
    pub(super) fn by_quorums(&self, leader: u64, term: u64, voters: &[BTreeSet<u64>]) -> Option<Instant> {
        let now = Instant::now();
        let followed = self.0.lock();
        let followed = |voter: &u64| match *voter == leader {
            true => Some(now),
            false => followed.get(voter).filter(|(in_term, _)| *in_term == term).map(|(_, sent)| *sent),
        };
        let by_quorum = |voters: &BTreeSet<u64>| {
            let mut times: Vec<Option<Instant>> = voters.iter().map(followed).collect();
            times.sort_unstable_by_key(|time| std::cmp::Reverse(*time));
            times.get(voters.len() / 2).copied().flatten()
        };
        voters.iter().map(by_quorum).min().flatten()
    }
}

/// Makes connections to other routers.
pub(super) struct Factory {
    id: ProcessId,
    network: Network,
    marks: Arc<Marks>,
    followed: Arc<Followed>,
}

impl Factory {
    pub(super) fn new(id: ProcessId, network: Network, marks: Arc<Marks>, followed: Arc<Followed>) -> Self {
        Factory { id, network, marks, followed }
    }
}

impl RaftNetworkFactory<TypeConfig> for Factory {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &Node) -> Connection {
        let (network, marks, followed) = (self.network.clone(), self.marks.clone(), self.followed.clone());
        Connection { id: self.id, network, marks, followed, target, heartbeats: false }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Node) -> Connection {
        Connection { heartbeats: true, ..self.new_client(target, node).await }
    }
}

/// A connection to another router.
pub(super) struct Connection {
    id: ProcessId,
    network: Network,
    /// Where the log begins that others need.
    marks: Arc<Marks>,
    followed: Arc<Followed>,
    target: u64,
    /// Only for heartbeats, each a call of its own.
    heartbeats: bool,
}

/// The other router did not answer, or answered that it is stopping.
fn failed(error: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(error))
}

fn unreachable(error: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(error))
}

/// Another kind of answer than was asked for.
fn unexpected(what: &What) -> RPCError<TypeConfig> {
    failed(format!("an answer to another question: {what:?}"))
}

impl Connection {
    fn here(&self) -> Option<RouterRaft> {
        self.network.routers.get(self.target)
    }

    /// Begins a call to a router elsewhere.
    fn call(&self) -> Call {
        let calls = &self.network.routers.calls;
        let number = calls.next.fetch_add(1, Ordering::Relaxed);
        let to = ProcessId::router(u32::try_from(self.target).unwrap_or(u32::MAX));
        let (sender, answers) = mpsc::unbounded_channel();
        calls.waiting.lock().insert(number, Waiting { to, answers: sender, vote: None });
        let network = self.network.clone();
        let (appends, streams) = (Arc::default(), Arc::default());
        let way = Way { number, network, from: self.id, to, appends, streams };
        Call { way, begun: Instant::now(), answers }
    }

    async fn ask(&self, what: What) -> Result<What, RPCError<TypeConfig>> {
        let mut call = self.call();
        call.way.send(what).await?;
        call.answer().await
    }

    async fn ask_vote(&self, what: What) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.ask(what).await? {
            What::Voted(answer) => answer.map_err(failed),
            other => Err(unexpected(&other)),
        }
    }
}

/// Waits for an answer as long as openraft allows.
async fn answer<T>(
    option: &RPCOption,
    call: impl Future<Output = Result<T, RPCError<TypeConfig>>>,
) -> Result<T, RPCError<TypeConfig>> {
    match timeout(option.hard_ttl(), call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(failed(elapsed)),
    }
}

type Appended = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Leaves out what says no more than that entries of this stream are committed, which openraft would say behind each of them: the
/// next entry says that, and a heartbeat at the latest. Nobody waits for it, as only the leader delivers messages.
fn without_mere_commits<S: Stream<Item = Request>>(input: S) -> impl Stream<Item = Request> {
    let mut has_entries = false;
    input.filter(move |request| {
        has_entries |= !request.entries.is_empty();
        std::future::ready(!has_entries || !request.entries.is_empty())
    })
}

/// Sends the requests and gives out the answers as they come, one for each.
fn append_elsewhere<S>(call: Call, mut input: S) -> impl Stream<Item = Appended>
where
    S: Stream<Item = Request> + OptionalSend + Unpin + 'static,
{
    let way = call.way.clone();
    let sending = Box::pin(async move {
        while let Some(request) = input.next().await {
            way.send(What::Append(request)).await?;
        }
        Ok(())
    });
    futures::stream::unfold(Some((call, Some(sending), 0)), |state| async {
        // Nothing follows an error.
        let (mut call, mut sending, answered) = state?;
        let way = call.way.clone();
        loop {
            if sending.is_none() && answered == way.appends() {
                return None;
            }
            let sent = async {
                match &mut sending {
                    Some(sending) => sending.await,
                    None => std::future::pending().await,
                }
            };
            let silence = way.calls().silence(way.to, call.begun, || answered < way.appends());
            let result = tokio::select! {
                biased;
                answer = call.answer() => match answer {
                    Ok(What::Appended(result)) => result.map_err(failed),
                    Ok(other) => Err(unexpected(&other)),
                    Err(error) => Err(error),
                },
                outcome = sent => match outcome {
                    Ok(()) => {
                        sending = None;
                        continue;
                    }
                    Err(error) => Err(error),
                },
                () = silence => Err(unreachable("it does not answer")),
            };
            let rest = result.is_ok().then_some((call, sending, answered + 1));
            return Some((result, rest));
        }
    })
}

/// Gives out the answers of a follower, unless it lags for [`LAG`] behind the index at which the log is to begin.
fn unless_it_lags(
    answers: impl Stream<Item = Appended> + Unpin,
    begins: impl Fn() -> u64,
) -> impl Stream<Item = Appended> {
    futures::stream::unfold(Some((answers, begins, None)), |state| async {
        let (mut answers, begins, mut lags) = state?;
        let answer = answers.next().await?;
        if let Ok(Ok(confirmed)) = &answer {
            let next = confirmed.map_or(0, |confirmed| confirmed.index + 1);
            lags = if next < begins() { lags.or(Some(Instant::now())) } else { None };
        }
        if lags.is_some_and(|since| since.elapsed() >= LAG) {
            return Some((Err(failed("it lags behind the snapshot")), None));
        }
        Some((answer, Some((answers, begins, lags))))
    })
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (term, sent) = (rpc.vote.leader_id.term, Instant::now());
        let appended = match self.here() {
            Some(raft) => answer(&option, async { raft.append_entries(rpc).await.map_err(failed) }).await,
            None => {
                let what = if rpc.entries.is_empty() { What::Heartbeat(rpc) } else { What::Append(rpc) };
                match answer(&option, self.ask(what)).await? {
                    What::Appended(result) => result.map(AppendEntriesResponse::from).map_err(failed),
                    other => Err(unexpected(&other)),
                }
            }
        }?;
        if !matches!(appended, AppendEntriesResponse::HigherVote(_)) {
            self.followed.hear(self.target, term, sent);
        }
        Ok(appended)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Appended>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        if self.heartbeats {
            return stream_append_sequential(self, input, option);
        }
        let input = without_mere_commits(input);
        Box::pin(async move {
            let answers: BoxStream<'s, _> = match self.here() {
                Some(raft) => Box::pin(raft.stream_append(input).map(|answer| answer.map_err(failed))),
                None => Box::pin(append_elsewhere(self.call(), input)),
            };
            let marks = self.marks.clone();
            let answers: BoxStream<'s, _> = Box::pin(unless_it_lags(answers, move || marks.begins()));
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.here() {
            Some(raft) => answer(&option, async { raft.vote(rpc).await.map_err(failed) }).await,
            None => answer(&option, self.ask_vote(What::Vote(rpc))).await,
        }
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.here() {
            Some(raft) => answer(&option, async { raft.pre_vote(rpc).await.map_err(failed) }).await,
            None => answer(&option, self.ask_vote(What::PreVote(rpc))).await,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let asked = async {
            match self.here() {
                Some(raft) => raft.handle_transfer_leader(request).await.map_err(failed),
                None => match self.ask(What::HandOver(request)).await? {
                    What::HandedOver(answer) => answer.map_err(failed),
                    other => Err(unexpected(&other)),
                },
            }
        };
        answer(&option, asked).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let failed = |error: String| StreamingError::Network(NetworkError::from_string(error));
        let here = self.here();
        let installed = async {
            match here {
                Some(raft) => text(raft.install_full_snapshot(vote, snapshot).await),
                None => {
                    let Snapshot { meta, snapshot } = snapshot;
                    match self.ask(What::Install(vote, meta, snapshot.to_vec())).await {
                        Ok(What::Installed(answer)) => answer,
                        Ok(other) => Err(unexpected(&other).to_string()),
                        Err(error) => Err(error.to_string()),
                    }
                }
            }
        };
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = installed => answer.map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use openraft::EntryPayload;

    use super::*;
    use crate::{
        config::Config,
        network::{Envelope, Route},
        raft::{Entry, LeaderId, LogId, StoredMembership, marks::Mark},
        router::mseq::MSeq,
    };

    const LEADER: ProcessId = ProcessId::router(1);
    const FOLLOWER: ProcessId = ProcessId::router(2);

    fn connection(network: &Network, heartbeats: bool) -> Connection {
        let mseq = MSeq::new(Config::evenly(1, 1).expect("a ring"));
        let first = Mark { log_id: None, membership: StoredMembership::default(), mseq };
        let marks = Arc::new(Marks::new(first));
        let followed = Arc::default();
        Connection { id: LEADER, network: network.clone(), marks, followed, target: 2, heartbeats }
    }

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index }
    }

    /// An append behind an index.
    fn request(prev: u64, entries: u64) -> Request {
        let entry = |index| Entry { log_id: log_id(index), payload: EntryPayload::Blank };
        AppendEntriesRequest {
            vote: Vote::new(1, 1),
            prev_log_id: Some(log_id(prev)),
            entries: (prev + 1..=prev + entries).map(entry).collect(),
            leader_commit: None,
        }
    }

    #[test]
    fn who_lacks_what_it_has_confirmed_is_found_out() {
        let calls = Calls::default();
        let begin = |call, term, committed: Option<u64>| {
            let answers = mpsc::unbounded_channel().0;
            calls.waiting.lock().insert(call, Waiting { to: FOLLOWER, answers, vote: None });
            let request =
                Request { vote: Vote::new(term, 1), leader_commit: committed.map(log_id), ..request(0, 1) };
            calls.tell(call, &What::Append(request));
        };
        let appended = |result| What::Appended(Ok(result));
        let confirm = |call, index| calls.answered(FOLLOWER, call, appended(Ok(Some(log_id(index)))));
        let lacks = |call, index| {
            let conflict = StreamAppendError::Conflict(log_id(index));
            calls.reverted(FOLLOWER, call, &appended(Err(conflict)))
        };
        begin(1, 1, None);
        assert_eq!(lacks(1, 0), None, "it has confirmed nothing");
        confirm(1, 7);
        // It has not heard that this is committed.
        assert_eq!((lacks(1, 8), lacks(1, 7), lacks(1, 3)), (None, Some(7), Some(3)));
        // Another leadership may have taken that back, but nothing that was committed.
        begin(2, 2, Some(4));
        assert_eq!(lacks(2, 7), None);
        confirm(2, 5);
        assert_eq!((lacks(2, 6), lacks(2, 5)), (None, Some(5)));
        begin(3, 3, Some(4));
        assert_eq!((lacks(3, 5), lacks(3, 4)), (None, Some(4)));
        // What a call that is over says may be from before.
        calls.waiting.lock().remove(&2);
        assert_eq!(lacks(2, 5), None);
        // So may what it confirms, or a call of an earlier leadership, though something is committed there by now.
        begin(3, 3, Some(20));
        confirm(2, 12);
        confirm(1, 12);
        assert_eq!((lacks(3, 12), lacks(3, 5), lacks(3, 4)), (None, None, Some(4)));
        confirm(3, 12);
        assert_eq!((lacks(3, 13), lacks(3, 12)), (None, Some(12)));
        assert_eq!(calls.reverted(LEADER, 3, &appended(Err(StreamAppendError::Conflict(log_id(1))))), None);
    }

    /// A way to the follower, whose lanes somebody else empties.
    fn route(network: &Network) -> (Route, mpsc::Receiver<Envelope>, mpsc::Receiver<Envelope>) {
        let mut route = network.open_route(LEADER, FOLLOWER);
        let lanes = (route.take(Lane::Control), route.take(Lane::Data));
        (route, lanes.0.expect("not taken"), lanes.1.expect("not taken"))
    }

    /// What has been sent on a lane.
    fn packets(lane: &mut mpsc::Receiver<Envelope>) -> Vec<Packet> {
        let packet = |(_, wire)| match wire {
            Wire::Consensus(packet) => packet,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| lane.try_recv().ok()).map(packet).collect()
    }

    /// The second request of a stream must not begin another stream because a call has come in between: it could overtake the
    /// first, and the follower would refuse what follows an entry that it does not have.
    #[test]
    fn what_says_only_that_entries_are_committed_is_not_sent_behind_them() {
        let sent = |requests: &[(u64, u64)]| {
            let requests: Vec<Request> =
                requests.iter().map(|(prev, entries)| request(*prev, *entries)).collect();
            let sent = without_mere_commits(futures::stream::iter(requests)).map(|request| {
                (request.prev_log_id.map_or(0, |last| last.index), request.entries.len() as u64)
            });
            sent.collect::<Vec<_>>().now_or_never().expect("it does not wait")
        };
        assert_eq!(sent(&[(1, 2), (3, 0), (3, 1), (4, 0), (4, 0)]), [(1, 2), (3, 1)]);
        // A stream that has none has to find out what the other side has.
        assert_eq!(sent(&[(3, 0)]), [(3, 0)]);
        assert_eq!(sent(&[(3, 0), (3, 0), (3, 1), (4, 0)]), [(3, 0), (3, 0), (3, 1)]);
    }

    #[test]
    fn a_stream_of_appends_goes_on_beside_other_calls() {
        let streams = Streams::default();
        let (_, stream) = streams.of(LEADER, FOLLOWER, 1);
        let mut stream = stream.expect("a new call");
        assert!(streams.of(LEADER, FOLLOWER, 2).1.is_some(), "another call");
        let (requests, again) = streams.of(LEADER, FOLLOWER, 1);
        assert!(again.is_none(), "the same stream");
        drop(requests);
        streams.end(LEADER, FOLLOWER, 2);
        streams.lost(FOLLOWER);
        assert!(matches!(stream.try_recv(), Err(mpsc::error::TryRecvError::Empty)));
        streams.lost(LEADER);
        assert!(matches!(stream.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
        streams.of(LEADER, FOLLOWER, 3);
        streams.end(LEADER, FOLLOWER, 3);
        assert!(streams.0.lock().is_empty());
    }

    #[tokio::test]
    async fn nothing_follows_the_news_that_a_router_is_not_there() {
        let connection = connection(&Network::new(), false);
        let requests = futures::stream::iter([request(0, 0), request(0, 0)]);
        let answers: Vec<Appended> = append_elsewhere(connection.call(), requests).collect().await;
        assert!(matches!(answers[..], [Err(RPCError::Unreachable(_))]), "{answers:?}");
    }

    /// The log goes the data lane, the news of a commit in between and the end of the call too, so that they stay behind it.
    #[tokio::test(start_paused = true)]
    async fn heartbeats_do_not_queue_behind_entries() {
        let network = Network::new();
        let (_route, mut control, mut data) = route(&network);
        let mut replicates = connection(&network, false);
        let requests = futures::stream::iter((0..1_000).map(|index| request(index / 2, index % 2)));
        let option = RPCOption::new(Duration::from_secs(1));
        let appended = replicates.stream_append(requests, option.clone()).await;
        let mut appended = appended.expect("a stream");
        assert!(appended.next().now_or_never().is_none(), "nobody answers");

        let mut beats = connection(&network, true);
        let known = beats.followed.clone();
        let heartbeat = Box::pin(futures::stream::once(async { request(500, 0) }));
        let answers = beats.stream_append(heartbeat, option).await;
        let mut answers = answers.expect("a stream");
        assert!(answers.next().now_or_never().is_none(), "nobody answers");
        let beat = match &packets(&mut control)[..] {
            [beat @ Packet { what, .. }] if matches!(**what, What::Heartbeat(_)) => beat.clone(),
            other => panic!("{other:?}"),
        };
        network.routers.calls.answered(FOLLOWER, beat.call, What::Appended(Ok(Ok(Some(log_id(500))))));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(answers.next().await, Some(Ok(Ok(Some(id)))) if id == log_id(500)));
        assert!(answers.next().await.is_none());
        let followed = known.by_quorums(1, 1, &[[1, 2, 3].into()]).expect("two of three");
        assert_eq!(followed.elapsed(), Duration::from_secs(1), "when it was asked, not when it has answered");

        let sent = packets(&mut data);
        assert!(!sent.is_empty() && sent.iter().all(|packet| matches!(*packet.what, What::Append(_))));
        drop((appended, answers));
        assert!(
            matches!(&packets(&mut data)[..], [Packet { what, .. }] if matches!(**what, What::EndOfAppends))
        );
        assert!(packets(&mut control).is_empty(), "the heartbeat has no end");
    }

    #[tokio::test(start_paused = true)]
    async fn who_leads_was_followed_by_more_than_half_of_all_that_count() {
        let followed = Followed::default();
        let three = || BTreeSet::from([1, 2, 3]);
        let at = |voters: &[BTreeSet<u64>], term| {
            let at = followed.by_quorums(1, term, voters);
            at.map(|at| at.elapsed().as_millis())
        };
        assert_eq!(at(&[[1].into()], 7), Some(0));
        assert_eq!(at(&[three()], 7), None);
        followed.hear(2, 7, Instant::now());
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!((at(&[three()], 7), at(&[three()], 8)), (Some(100), None));
        followed.hear(3, 7, Instant::now());
        tokio::time::advance(Duration::from_millis(10)).await;
        let five = BTreeSet::from([1, 2, 3, 4, 5]);
        assert_eq!((at(&[three()], 7), at(std::slice::from_ref(&five), 7)), (Some(10), Some(110)));
        assert_eq!(at(&[three(), [1, 4, 5].into()], 7), None, "both memberships count");
        // What an earlier answer to a later question tells is not taken back.
        followed.hear(3, 7, Instant::now() - Duration::from_millis(50));
        assert_eq!(at(&[three()], 7), Some(10));
        followed.hear(3, 8, Instant::now());
        assert_eq!(at(&[three()], 7), Some(110), "that is another leadership");
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_confirms_nothing_is_given_up() {
        let network = Network::new();
        let (_route, _control, mut data) = route(&network);
        let (ask, requests) = mpsc::unbounded_channel();
        let requests = Box::pin(futures::stream::unfold(requests, |mut requests| async {
            requests.recv().await.map(|request| (request, requests))
        }));
        let mut answers = Box::pin(append_elsewhere(connection(&network, false).call(), requests));
        let calls = &network.routers.calls;
        let confirm = |call| calls.answered(FOLLOWER, call, What::Appended(Ok(Ok(None))));
        let nearly = SILENCE - Duration::from_millis(1);
        assert!(timeout(3 * SILENCE, answers.next()).await.is_err(), "it owes nothing");

        ask.send(request(0, 1)).expect("it is sent");
        assert!(answers.next().now_or_never().is_none());
        let call = match &packets(&mut data)[..] {
            [Packet { call, .. }] => *call,
            other => panic!("{other:?}"),
        };
        for _ in 0..5 {
            // A heartbeat, or an append of an earlier call.
            confirm(call.wrapping_sub(1));
            assert!(timeout(nearly, answers.next()).await.is_err(), "it takes its time");
        }
        confirm(call);
        assert!(matches!(answers.next().await, Some(Ok(Ok(None)))));
        ask.send(request(1, 1)).expect("it is sent");
        let asked = Instant::now();
        assert!(matches!(answers.next().await, Some(Err(RPCError::Unreachable(_)))));
        assert!(asked.elapsed() >= nearly && asked.elapsed() <= SILENCE + Duration::from_millis(1));
        assert!(answers.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_lags_behind_the_snapshot_is_sent_that() {
        let begins = AtomicU64::new(0);
        let (confirm, answers) = mpsc::unbounded_channel();
        let answers = Box::pin(futures::stream::unfold(answers, |mut answers| async {
            answers.recv().await.map(|answer| (answer, answers))
        }));
        let mut passed = Box::pin(unless_it_lags(answers, || begins.load(Ordering::Relaxed)));
        let mut index = 0;
        let mut step = async |seconds| {
            index += 1;
            confirm.send(Ok(Ok(Some(log_id(index))))).expect("it is read");
            let answer = passed.next().await;
            tokio::time::advance(Duration::from_secs(seconds)).await;
            answer
        };
        for _ in 0..5 {
            assert!(matches!(step(100).await, Some(Ok(_))), "nothing is in the way");
        }
        // 6 to 8 lag, 9 does not.
        begins.store(10, Ordering::Relaxed);
        for _ in 6..10 {
            assert!(matches!(step(4).await, Some(Ok(_))), "not for long");
        }
        begins.store(100, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(matches!(step(4).await, Some(Ok(_))), "not for long");
        }
        assert!(matches!(step(0).await, Some(Err(RPCError::Network(_)))));
        assert!(passed.next().await.is_none());
    }

    /// A follower whose data lane is full is asked in vain for as long as that lasts, and given up each time.
    #[tokio::test(start_paused = true)]
    async fn calls_that_end_while_a_lane_is_full_leave_little_behind() {
        let network = Network::new();
        let (_route, _control, mut data) = route(&network);
        let many = || futures::stream::iter((0..1_000).map(|index| request(index, 1)));
        let mut begun = BTreeSet::new();
        for _ in 0..100 {
            let answers = append_elsewhere(connection(&network, false).call(), many());
            let answers: Vec<Appended> = answers.collect().await;
            assert!(matches!(answers[..], [Err(RPCError::Unreachable(_))]), "{answers:?}");
        }
        let calls = &network.routers.calls;
        assert_eq!(calls.over.lock().values().map(Vec::len).collect::<Vec<_>>(), [1]);
        assert!(calls.waiting.lock().is_empty());
        begun.extend(packets(&mut data).iter().map(|packet| packet.call));

        let mut answers = Box::pin(append_elsewhere(connection(&network, false).call(), many()));
        assert!(answers.next().now_or_never().is_none(), "nobody answers");
        let sent = packets(&mut data);
        assert!(matches!(*sent[0].what, What::EndOfAppends) && begun == [sent[0].call].into());
        assert!(sent[1..].iter().all(|packet| matches!(*packet.what, What::Append(_))));
        assert!(calls.over.lock().values().all(Vec::is_empty));
        assert!(!begun.contains(&sent[1].call));
        network.routers.lost(FOLLOWER);
        assert!(calls.over.lock().is_empty());
    }
}
