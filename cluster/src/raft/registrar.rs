//! Changes who the routers are, by openraft's membership: a task beside every router that acts while that one leads.
//! What to do is decided by [`crate::routers::change`]; here is what it takes to see how things stand, and to do it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use carousel_engine::SqlError;
use openraft::{ChangeMembers, Instant as _, RaftMetrics, ServerState, async_runtime::WatchReceiver};
use tokio::{sync::mpsc, task::AbortHandle, time::Instant};

use super::{Node, RouterRaft, TypeConfig, marks::Marks, number};
use crate::{
    message::{Incarnation, ProcessId},
    routers::change::{Decision, RefusedChange, RouterChange, Standing, Step, decide, upkeep},
    wire::Wire,
};

/// Requests that wait to be looked at; more are lost, and sent again.
const REQUESTS: usize = 64;
/// How often it looks how things stand.
const TICK: Duration = Duration::from_millis(50);
/// Whoever asks sends a request again more often than this; one that is not is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// Who has answered within this time is live.
const LIVE: Duration = Duration::from_secs(1);
/// Who lacks no more entries than this is near the end of the log.
const NEAR: u64 = 256;
/// How long a step of the consensus is waited for. It may end later all the same, and is then seen in the log.
const STEP: Duration = Duration::from_secs(5);
/// How long another router may take to lead after it was asked to.
const HANDING_OVER: Duration = Duration::from_secs(1);

/// How long the other routers may take to answer, or to catch up, before a request is refused because they do not: of some a
/// new leader has not heard yet, and some are slow.
const PATIENCE: Duration = Duration::from_secs(5);

/// What somebody wants of the routers.
#[derive(Clone, Debug)]
pub(crate) struct RouterRequest {
    /// Who.
    pub(crate) from: ProcessId,
    /// The asker's incarnation.
    pub(crate) incarnation: Incarnation,
    /// The asker's number for it.
    pub(crate) request: u64,
    /// What is to become of them.
    pub(crate) change: RouterChange,
}

/// A request, until it has not been heard for long.
struct Asked {
    request: RouterRequest,
    /// When it was heard first.
    asked: Instant,
    /// When it was heard last.
    heard: Instant,
    /// What came of it. It is not looked at again: what it asked for may have been undone since.
    outcome: Option<Result<u32, SqlError>>,
    /// Whether that was said since it was heard last.
    answered: bool,
}

/// A running registrar. Dropping it ends it.
pub(crate) struct Registrar {
    requests: mpsc::Sender<RouterRequest>,
    task: AbortHandle,
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The other routers that have nearly all of the log, as the leader knows.
pub(super) fn near(metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<u64> {
    let last = metrics.last_log_index.unwrap_or(0);
    let matched = metrics.replication.iter().flatten();
    let near = matched.filter(|(_, matched)| matched.is_some_and(|id| id.index + NEAR >= last));
    near.map(|(id, _)| *id).collect()
}

impl Registrar {
    pub(super) fn start(
        id: u64,
        raft: RouterRaft,
        marks: Arc<Marks>,
        first: BTreeMap<ProcessId, String>,
        answer: impl Fn(ProcessId, Wire) + Send + Sync + 'static,
    ) -> Registrar {
        let (requests, received) = mpsc::channel(REQUESTS);
        let work = Work { id, raft, marks, first, pending: BTreeMap::new(), answer };
        Registrar { requests, task: tokio::spawn(work.run(received)).abort_handle() }
    }

    /// Takes a request, if there is room; whoever asks sends it again.
    pub(crate) fn ask(&self, request: RouterRequest) {
        let _ = self.requests.try_send(request);
    }
}

struct Work<A> {
    id: u64,
    raft: RouterRaft,
    marks: Arc<Marks>,
    first: BTreeMap<ProcessId, String>,
    /// By who asks, the asker's incarnation and number.
    pending: BTreeMap<(ProcessId, Incarnation, u64), Asked>,
    answer: A,
}

impl<A: Fn(ProcessId, Wire) + Send + Sync + 'static> Work<A> {
    async fn run(mut self, mut requests: mpsc::Receiver<RouterRequest>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => {
                        let key = (request.from, request.incarnation, request.request);
                        let heard = Instant::now();
                        let begin = || Asked { request, asked: heard, heard, outcome: None, answered: false };
                        let asked = self.pending.entry(key).or_insert_with(begin);
                        (asked.heard, asked.answered) = (heard, false);
                    }
                    None => return,
                },
                _ = ticks.tick() => {}
            }
            let Some(standing) = self.standing() else {
                // Whoever leads is asked again.
                self.pending.clear();
                continue;
            };
            self.pending.retain(|_, asked| asked.heard.elapsed() < FORGOTTEN);
            if let Some(step) = self.look(&standing) {
                self.take(step).await;
            }
        }
    }

    /// Answers what can be answered, and chooses the next step.
    fn look(&mut self, standing: &Standing) -> Option<Step> {
        let mut next = upkeep(standing);
        let mut removed = BTreeSet::new();
        for asked in self.pending.values_mut().filter(|asked| asked.outcome.is_none()) {
            match decide(&asked.request.change, standing) {
                Decision::Done(number) => asked.outcome = Some(Ok(number)),
                Decision::Refused(RefusedChange::NoQuorum { .. } | RefusedChange::Behind { .. })
                    if asked.asked.elapsed() < PATIENCE => {}
                Decision::Refused(refused) => asked.outcome = Some(Err(refused.into())),
                Decision::Step(step) => {
                    if let Step::Remove(number) | Step::Forget(number) = step {
                        removed.insert(number);
                    }
                    next = next.or(Some(step));
                }
                Decision::Wait => {}
            }
        }
        for asked in self.pending.values_mut() {
            // Whoever still waits for a router that is removed would have it added again, under another number.
            if let RouterChange::Add { address, .. } = &asked.request.change
                && asked.outcome.is_none()
                && let Some(entry) = standing.routers.entries().iter().find(|entry| entry.address == *address)
                && removed.contains(&entry.number)
            {
                let refused = RefusedChange::removed(ProcessId::router(entry.number));
                asked.outcome = Some(Err(refused.into()));
            }
            if let Some(outcome) = asked.outcome.clone()
                && !std::mem::replace(&mut asked.answered, true)
            {
                let RouterRequest { from, incarnation, request, .. } = asked.request;
                // Whoever hears that it is so also sees it: the news itself may still be on its way.
                (self.answer)(from, Wire::Routers(self.marks.routers().0));
                (self.answer)(from, Wire::RoutersChanged { incarnation, request, outcome });
            }
        }
        next
    }

    /// How things stand; nothing when this router does not lead.
    fn standing(&self) -> Option<Standing> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader || metrics.current_leader != Some(self.id) {
            return None;
        }
        let (routers, learned) = self.marks.routers();
        let unfinished = match &learned.membership().get_joint_config()[..] {
            [_, .., last] => Some(last.iter().map(|id| number(*id)).collect()),
            _ => None,
        };
        Some(Standing {
            routers: routers.resolved(&self.first),
            leader: number(self.id),
            unfinished,
            changing: learned.log_id() != metrics.membership_config.log_id(),
            live: self.live(&metrics),
            near: near(&metrics).into_iter().chain([self.id]).map(number).collect(),
        })
    }

    fn live(&self, metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<u32> {
        let heard = metrics.heartbeat.iter().flatten();
        let live = heard.filter(|(_, heard)| heard.as_ref().is_some_and(|heard| heard.elapsed() < LIVE));
        live.map(|(id, _)| number(*id)).chain([number(self.id)]).collect()
    }

    /// Takes a step. What does not succeed is tried again, as long as it is wanted.
    async fn take(&self, step: Step) {
        let router = ProcessId::router(number(self.id));
        tracing::info!(%router, ?step, "the routers change");
        let one = |router: u32| BTreeSet::from([u64::from(router)]);
        let membership = self.marks.routers().1;
        let nodes = || membership.nodes().map(|(id, node)| (*id, node.clone()));
        let changes = match step.clone() {
            Step::Found => {
                // It fits into an `i64`.
                let cluster = Some(rand::random::<u64>() >> 1);
                ChangeMembers::SetNodes(nodes().map(|(id, node)| (id, Node { cluster, ..node })).collect())
            }
            Step::Teach(router, address) => {
                let cluster = nodes().find_map(|(_, node)| node.cluster);
                ChangeMembers::AddNodes([(u64::from(router), Node { address, cluster })].into())
            }
            Step::Vote(router) => ChangeMembers::AddVoterIds(one(router)),
            Step::Remove(router) => ChangeMembers::RemoveVoters(one(router)),
            Step::Forget(router) => ChangeMembers::RemoveNodes(one(router)),
            Step::Finish(voters) => {
                ChangeMembers::ReplaceAllVoters(voters.into_iter().map(u64::from).collect())
            }
            Step::HandOver(router) => return self.hand_over(u64::from(router)).await,
        };
        match tokio::time::timeout(STEP, self.raft.change_membership(changes, false)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::info!(%router, ?step, %error, "the routers do not change yet"),
            Err(_) => tracing::warn!(%router, ?step, "the routers have not agreed on their change yet"),
        }
    }

    async fn hand_over(&self, to: u64) {
        let mut metrics = self.raft.metrics();
        if self.raft.trigger().transfer_leader(to).await.is_err() {
            return;
        }
        let handed_over = async {
            while metrics.borrow_watched().state == ServerState::Leader && metrics.changed().await.is_ok() {}
        };
        let _ = tokio::time::timeout(HANDING_OVER, handed_over).await;
    }
}
