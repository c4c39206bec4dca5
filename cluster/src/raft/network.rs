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
    network::{RPCOption, stream_append_sequential},
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

impl Calls {
    /// An answer has come. Whoever asked may have given up.
    fn answered(&self, call: u64, answer: What) {
        if let Some((_, answers)) = self.waiting.lock().get(&call) {
            let _ = answers.send(answer);
        }
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
            // It says nothing of entries that this router has not confirmed, so it may overtake those on their way.
            What::Heartbeat(request) => {
                let last = request.prev_log_id;
                reply.spawn(async move {
                    let answer = raft.append_entries(request).await;
                    What::Appended(text(answer.map(|answer| answer.into_stream_result(last, last))))
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
            answer => self.calls.answered(call, answer),
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
        Connection { id: self.id, network: self.network.clone(), target, heartbeats: false }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Node) -> Connection {
        Connection { heartbeats: true, ..self.new_client(target, node).await }
    }
}

/// A connection to another router.
pub(super) struct Connection {
    id: ProcessId,
    network: Network,
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
                let what = if rpc.entries.is_empty() { What::Heartbeat(rpc) } else { What::Append(rpc) };
                match answer(&option, self.ask(what)).await? {
                    What::Appended(result) => result.map(AppendEntriesResponse::from).map_err(failed),
                    other => Err(unexpected(&other)),
                }
            }
        }
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
    use futures::FutureExt;
    use openraft::EntryPayload;

    use super::*;
    use crate::{
        network::{Envelope, Route},
        raft::{Entry, LeaderId, LogId},
    };

    const LEADER: ProcessId = ProcessId::router(1);
    const FOLLOWER: ProcessId = ProcessId::router(2);

    fn connection(network: &Network, heartbeats: bool) -> Connection {
        Connection { id: LEADER, network: network.clone(), target: 2, heartbeats }
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
        let answers: Vec<Appended> = append_elsewhere(connection.call(true), requests).collect().await;
        assert!(matches!(answers[..], [Err(RPCError::Unreachable(_))]), "{answers:?}");
    }

    /// The log goes the data lane, the news of a commit in between and the end of the call too, so that they stay behind it.
    #[tokio::test]
    async fn heartbeats_do_not_queue_behind_entries() {
        let network = Network::new();
        let (_route, mut control, mut data) = route(&network);
        let mut replicates = connection(&network, false);
        let requests = futures::stream::iter((0..1_000).map(|index| request(index / 2, index % 2)));
        let option = RPCOption::new(std::time::Duration::from_secs(1));
        let appended = replicates.stream_append(requests, option.clone()).await;
        let mut appended = appended.expect("a stream");
        assert!(appended.next().now_or_never().is_none(), "nobody answers");

        let mut beats = connection(&network, true);
        let heartbeat = Box::pin(futures::stream::once(async { request(500, 0) }));
        let answers = beats.stream_append(heartbeat, option).await;
        let mut answers = answers.expect("a stream");
        assert!(answers.next().now_or_never().is_none(), "nobody answers");
        let beat = match &packets(&mut control)[..] {
            [beat @ Packet { what, .. }] if matches!(**what, What::Heartbeat(_)) => beat.clone(),
            other => panic!("{other:?}"),
        };
        network.routers.calls.answered(beat.call, What::Appended(Ok(Ok(Some(log_id(500))))));
        assert!(matches!(answers.next().await, Some(Ok(Ok(Some(id)))) if id == log_id(500)));
        assert!(answers.next().await.is_none());

        let sent = packets(&mut data);
        assert!(!sent.is_empty() && sent.iter().all(|packet| matches!(*packet.what, What::Append(_))));
        drop((appended, answers));
        tokio::task::yield_now().await;
        assert!(
            matches!(&packets(&mut data)[..], [Packet { what, .. }] if matches!(**what, What::EndOfAppends))
        );
        assert!(packets(&mut control).is_empty(), "the heartbeat has no end");
    }
}
