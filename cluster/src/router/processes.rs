//! Small application processes for tests: implementations of Algorithm 1 that submit, or follow the m-seq.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use carousel_engine::Ts;
use tokio::{sync::watch, time::Instant};

use crate::{
    message::{Message, MessageId, ProcessId},
    network::{Endpoint, Network},
    router::testing::truncate_table,
    wire::{Watermarks, Wire},
};

/// How long a process waits for an answer before it asks another router.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long it waits before that one when the router is not there.
const PAUSE: Duration = Duration::from_millis(1);
/// How often a process that follows asks for a lease, at most.
const ASKS: Duration = Duration::from_millis(10);
/// A process that confirms says that it is durable up to so many messages before the last.
const CONFIRMED_BEHIND: u64 = 20;

/// Follows the leader from router to router.
struct RouterChoice {
    members: Vec<ProcessId>,
    current: usize,
}

impl RouterChoice {
    fn new(members: &BTreeSet<ProcessId>) -> Self {
        RouterChoice { members: members.iter().copied().collect(), current: 0 }
    }

    fn current(&self) -> ProcessId {
        self.members[self.current]
    }

    fn next(&mut self, hint: Option<ProcessId>) {
        let hinted = hint.and_then(|hint| self.members.iter().position(|member| *member == hint));
        self.current = hinted.unwrap_or((self.current + 1) % self.members.len());
    }
}

/// Submits messages in order.
pub(super) struct Submitter {
    endpoint: Endpoint,
    router: RouterChoice,
    /// Not known to be ordered.
    window: VecDeque<Arc<Message>>,
    /// How many of them the current router has been sent.
    sent: usize,
}

impl Submitter {
    pub(super) fn new(network: &Network, members: &BTreeSet<ProcessId>, id: ProcessId) -> Self {
        let (endpoint, router) = (network.join(id), RouterChoice::new(members));
        Submitter { endpoint, router, window: VecDeque::new(), sent: 0 }
    }

    fn turn_to(&mut self, hint: Option<ProcessId>) {
        self.router.next(hint);
        self.sent = 0;
    }

    /// Returns when all messages are in the m-seq. `ordered` hears what the routers say is, and with which `Ts`.
    pub(super) async fn submit(&mut self, messages: Vec<Message>, mut ordered: impl FnMut(MessageId, Ts)) {
        let id = self.endpoint.id();
        let sender = self.endpoint.sender();
        self.window.extend(messages.into_iter().map(Arc::new));
        while !self.window.is_empty() {
            // A few at a time, so that elections fall into the middle.
            if self.sent < self.window.len() && self.sent < 40 {
                let more = (self.sent + 5).min(self.window.len());
                let batch = self.window.range(self.sent..more).cloned().collect();
                match sender.send(self.router.current(), Wire::Route(batch)).await {
                    Ok(()) => self.sent = more,
                    Err(_) => {
                        self.turn_to(None);
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                continue;
            }
            match tokio::time::timeout(PATIENCE, self.endpoint.recv()).await {
                Ok(Some((_, Wire::Ordered { incarnation, sequence, ts }))) => {
                    ordered(MessageId { submitter: id, incarnation, sequence }, ts);
                    while self.window.front().is_some_and(|message| message.id.sequence <= sequence) {
                        self.window.pop_front();
                        self.sent = self.sent.saturating_sub(1);
                    }
                }
                Ok(Some((from, Wire::NotLeader { leader }))) if from == self.router.current() => {
                    self.turn_to(leader);
                }
                Ok(Some((from, Wire::Lost))) if from == self.router.current() => self.sent = 0,
                Ok(Some((_, Wire::Resend { expected, .. }))) => {
                    let first = self.window.front();
                    match first.and_then(|message| expected.checked_sub(message.id.sequence)) {
                        Some(index) => self.sent = self.sent.min(index as usize),
                        // It asks for what was acknowledged: it does not lead any more and does not know.
                        None => self.router.next(None),
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => panic!("{id} was replaced"),
                Err(_) => self.turn_to(None),
            }
        }
    }
}

/// Submits messages in order and waits until all are in the m-seq.
pub(super) async fn submit(
    network: Network,
    members: BTreeSet<ProcessId>,
    id: ProcessId,
    messages: Vec<Message>,
) {
    Submitter::new(&network, &members, id).submit(messages, |_, _| ()).await;
}

/// What a process was delivered.
pub(super) type Received = Vec<(Ts, MessageId)>;

/// Subscribes after `after` and follows until the frontier reaches `until`. An error says from where the routers' logs can
/// be followed.
pub(super) async fn follow(
    network: Network,
    members: BTreeSet<ProcessId>,
    id: ProcessId,
    after: Ts,
    until: watch::Receiver<Option<Ts>>,
) -> Result<Received, Ts> {
    follow_and_confirm(network, members, id, after, until, false, |_, _| ()).await
}

/// Like [`follow`], and may `confirm` meanwhile that much of what was received is durable. It asks for leases, too: `leased`
/// hears who has granted one, and when in the simulation it was asked for.
pub(super) async fn follow_and_confirm(
    network: Network,
    members: BTreeSet<ProcessId>,
    id: ProcessId,
    after: Ts,
    mut until: watch::Receiver<Option<Ts>>,
    confirm: bool,
    mut leased: impl FnMut(ProcessId, Duration),
) -> Result<Received, Ts> {
    let incarnation = 1;
    let mut endpoint = network.join(id);
    let sender = endpoint.sender();
    let mut router = RouterChoice::new(&members);
    let mut received = Received::new();
    let mut last = after;
    let mut subscribed = false;
    let mut asked: Option<Instant> = None;
    loop {
        if until.borrow_and_update().is_some_and(|until| last >= until) {
            return Ok(received);
        }
        if !subscribed {
            let subscribe = Wire::Subscribe { incarnation, directory: 1, after: Some(last) };
            if sender.send(router.current(), subscribe).await.is_err() {
                router.next(None);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            subscribed = true;
        }
        if asked.is_none_or(|asked| asked.elapsed() >= ASKS) {
            asked = Some(Instant::now());
            let asked_ms = turmoil::sim_elapsed().unwrap_or_default().as_millis() as u64;
            // There will be another time.
            let _ = sender.try_send(router.current(), Wire::AskLease { incarnation: 1, asked_ms });
        }
        let wire = tokio::select! {
            wire = tokio::time::timeout(PATIENCE, endpoint.recv()) => wire,
            _ = until.changed() => continue,
        };
        match wire {
            Ok(Some((_, Wire::State { ts, .. }))) => assert!(ts <= last, "the stream begins at {ts}"),
            Ok(Some((_, Wire::Deliver { incarnation: 1, after: begins, deliveries, frontier })))
                if begins <= last =>
            {
                for delivery in deliveries {
                    assert!(delivery.ts <= frontier, "{id} gets {} beyond {frontier}", delivery.ts);
                    let (ts, message) = (delivery.ts, delivery.message.id);
                    if ts > last {
                        assert!(received.last().is_none_or(|(before, _)| *before < ts), "{ts} out of order");
                        received.push((ts, message));
                    } else if ts > after {
                        // Of an earlier subscription, which has been overtaken.
                        assert!(
                            received.binary_search(&(ts, message)).is_ok(),
                            "{message:?} at {ts} was another before"
                        );
                    }
                }
                last = last.max(frontier);
                if confirm {
                    let durable = Ts(last.0.saturating_sub(CONFIRMED_BEHIND));
                    let confirm = Wire::Confirm(Watermarks { durable, ..Watermarks::default() });
                    // Whoever is not told now is told with the next delivery.
                    let _ = sender.try_send(router.current(), confirm);
                }
            }
            Ok(Some((from, Wire::Lease { asked_ms, .. }))) => leased(from, Duration::from_millis(asked_ms)),
            Ok(Some((from, Wire::NotLeader { leader }))) if from == router.current() => {
                router.next(leader);
                subscribed = false;
            }
            Ok(Some((from, Wire::Lost))) if from == router.current() => subscribed = false,
            Ok(Some((_, Wire::SubscribeRefused { purged, .. }))) if purged > last => return Err(purged),
            // It answers a subscription that has been overtaken by what another router delivered.
            Ok(Some((from, Wire::SubscribeRefused { .. }))) if from == router.current() => subscribed = false,
            Ok(Some((_, Wire::LogLost { last: end, .. }))) => {
                panic!("{id} has {last}, the m-seq ends at {end}")
            }
            Ok(Some(_)) => {}
            Ok(None) => panic!("{id} was replaced"),
            Err(_) => {
                router.next(None);
                subscribed = false;
            }
        }
    }
}

/// Writes of the whole ring.
pub(super) fn writes(client: ProcessId, count: u64) -> Vec<Message> {
    (1..=count).map(|sequence| truncate_table(client, 1, sequence)).collect()
}
