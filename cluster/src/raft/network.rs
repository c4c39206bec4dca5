//! Raft's calls between routers: straight to the other's handle when it is in the same operating system process, else
//! as [`Packet`]s over the network.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{Node, RouterRaft, Snapshot, SnapshotMeta, TypeConfig, Vote};
use crate::{
    message::{ProcessId, ProcessKind},
    network::{Lane, Network},
    wire::Wire,
};

/// Appends that wait for a router; beyond it their connection waits.
const APPENDS: usize = 16;

/// A call, or the answer to one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packet {
    /// The caller's number for it; all appends of a stream have the same.
    call: u64,
    what: Box<What>,
}

impl Packet {
    /// Elections and answers are not held up by entries.
    pub(crate) fn lane(&self) -> Lane {
        match &*self.what {
            What::Append(_) | What::EndOfAppends | What::Install(..) => Lane::Data,
            What::Vote(_)
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
}

type Request = AppendEntriesRequest<TypeConfig>;

/// Streams of appends from routers elsewhere: one for each call, whatever other calls come in between. A leader's
/// heartbeats are calls of their own beside the one that replicates its log, whose requests must stay in order.
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

/// Calls to routers elsewhere that have not been answered, and streams of appends from there.
struct Calls {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, (ProcessId, mpsc::UnboundedSender<What>)>>,
    appends: Streams,
}

impl Default for Calls {
    fn default() -> Self {
        // An answer to a call of an earlier life must not be taken for one to a call of this.
        let next = AtomicU64::new(rand::random());
        Calls { next, waiting: Mutex::default(), appends: Streams::default() }
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
        self.calls.waiting.lock().retain(|_, (to, _)| *to != router);
        self.calls.appends.lost(router);
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
            answer => {
                if let Some((_, answers)) = self.calls.waiting.lock().get(&call) {
                    // Whoever asked may have given up.
                    let _ = answers.send(answer);
                }
            }
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

/// A call that waits for answers until it is dropped.
struct Call {
    number: u64,
    calls: Arc<Calls>,
    network: Network,
    from: ProcessId,
    to: ProcessId,
    answers: mpsc::UnboundedReceiver<What>,
    /// It appends: the other side keeps a stream for it.
    appends: bool,
}

impl Call {
    async fn send(&self, what: What) -> Result<(), crate::network::Unreachable> {
        send(&self.network, self.from, self.to, self.number, what).await
    }

    async fn answer(&mut self) -> Result<What, RPCError<TypeConfig>> {
        self.answers.recv().await.ok_or_else(|| failed("the connection was lost"))
    }
}

async fn send(
    network: &Network,
    from: ProcessId,
    to: ProcessId,
    call: u64,
    what: What,
) -> Result<(), crate::network::Unreachable> {
    network.send_elsewhere(from, to, Wire::Consensus(Packet { call, what: Box::new(what) })).await
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.waiting.lock().remove(&self.number);
        if let (true, Ok(runtime)) = (self.appends, tokio::runtime::Handle::try_current()) {
            let (network, from, to, number) = (self.network.clone(), self.from, self.to, self.number);
            runtime.spawn(async move {
                // Who cannot be reached forgets the stream by itself.
                let _ = send(&network, from, to, number, What::EndOfAppends).await;
            });
        }
    }
}

/// Makes connections to other routers.
pub(super) struct Factory {
    id: ProcessId,
    network: Network,
}

impl Factory {
    pub(super) fn new(id: ProcessId, network: Network) -> Self {
        Factory { id, network }
    }
}

impl RaftNetworkFactory<TypeConfig> for Factory {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &Node) -> Connection {
        Connection { id: self.id, network: self.network.clone(), target }
    }
}

/// A connection to another router.
pub(super) struct Connection {
    id: ProcessId,
    network: Network,
    target: u64,
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

    /// Begins a call to a router elsewhere, which may append.
    fn call(&self, appends: bool) -> Call {
        let calls = self.network.routers.calls.clone();
        let number = calls.next.fetch_add(1, Ordering::Relaxed);
        let to = ProcessId::router(u32::try_from(self.target).unwrap_or(u32::MAX));
        let (sender, answers) = mpsc::unbounded_channel();
        calls.waiting.lock().insert(number, (to, sender));
        Call { number, calls, network: self.network.clone(), from: self.id, to, answers, appends }
    }

    async fn ask(&self, what: What) -> Result<What, RPCError<TypeConfig>> {
        let mut call = self.call(matches!(what, What::Append(_)));
        call.send(what).await.map_err(unreachable)?;
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
    match tokio::time::timeout(option.hard_ttl(), call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(failed(elapsed)),
    }
}

type Appended = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Sends the requests and gives out the answers as they come, one for each.
fn append_elsewhere<S>(call: Call, mut input: S) -> impl Stream<Item = Appended>
where
    S: Stream<Item = Request> + OptionalSend + Unpin + 'static,
{
    let (network, from, to, number) = (call.network.clone(), call.from, call.to, call.number);
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let sending = Box::pin(async move {
        while let Some(request) = input.next().await {
            counted.fetch_add(1, Ordering::Relaxed);
            send(&network, from, to, number, What::Append(request)).await.map_err(unreachable)?;
        }
        Ok(())
    });
    futures::stream::unfold(Some((call, Some(sending), 0)), move |state| {
        let asked = asked.clone();
        async move {
            // Nothing follows an error.
            let (mut call, mut sending, answered) = state?;
            loop {
                if sending.is_none() && answered == asked.load(Ordering::Relaxed) {
                    return None;
                }
                let sent = async {
                    match &mut sending {
                        Some(sending) => sending.await,
                        None => std::future::pending().await,
                    }
                };
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
                };
                let rest = result.is_ok().then_some((call, sending, answered + 1));
                return Some((result, rest));
            }
        }
    })
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.here() {
            Some(raft) => answer(&option, async { raft.append_entries(rpc).await.map_err(failed) }).await,
            None => {
                let asked = answer(&option, self.ask(What::Append(rpc))).await?;
                match asked {
                    What::Appended(result) => result.map(AppendEntriesResponse::from).map_err(failed),
                    other => Err(unexpected(&other)),
                }
            }
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Appended>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let answers: BoxStream<'s, _> = match self.here() {
                Some(raft) => Box::pin(raft.stream_append(input).map(|answer| answer.map_err(failed))),
                None => Box::pin(append_elsewhere(self.call(true), input)),
            };
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
    use super::*;

    /// A heartbeat between two requests of a stream must not begin another stream for the second, which could overtake the
    /// first: the follower would refuse what follows an entry that it has already.
    #[test]
    fn a_stream_of_appends_goes_on_beside_heartbeats() {
        let (leader, follower) = (ProcessId::router(1), ProcessId::router(2));
        let streams = Streams::default();
        let (_, stream) = streams.of(leader, follower, 1);
        let mut stream = stream.expect("a new call");
        assert!(streams.of(leader, follower, 2).1.is_some(), "a heartbeat");
        let (requests, again) = streams.of(leader, follower, 1);
        assert!(again.is_none(), "the same stream");
        drop(requests);
        streams.end(leader, follower, 2);
        streams.lost(follower);
        assert!(matches!(stream.try_recv(), Err(mpsc::error::TryRecvError::Empty)));
        streams.lost(leader);
        assert!(matches!(stream.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
        streams.of(leader, follower, 3);
        streams.end(leader, follower, 3);
        assert!(streams.0.lock().is_empty());
    }

    #[tokio::test]
    async fn nothing_follows_the_news_that_a_router_is_not_there() {
        let connection = Connection { id: ProcessId::router(1), network: Network::new(), target: 2 };
        let request = AppendEntriesRequest {
            vote: Vote::new(1, 1),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        };
        let requests = futures::stream::iter([request.clone(), request]);
        let answers: Vec<Appended> = append_elsewhere(connection.call(true), requests).collect().await;
        assert!(matches!(answers[..], [Err(RPCError::Unreachable(_))]), "{answers:?}");
    }
}
