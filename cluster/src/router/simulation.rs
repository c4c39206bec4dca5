//! Routers, submitters and storage processes on one thread, driven by a list of choices: every message can be late,
//! every process can crash, leaders come and go at any moment. Whatever the choices, once the faults end every message
//! is in the m-seq once, in its submitter's order, and every storage process has received exactly its share of it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use carousel_engine::{Ts, position::KeyRange};
use proptest::prelude::*;

use super::{
    core::{Core, Effect, Input, Limits, delivery},
    mseq::{Batch, Learned, MSeq, Routed},
    testing,
};
use crate::{
    config::Config,
    message::{Incarnation, Message, MessageId, ProcessId, ProcessKind},
    wire::Wire,
};

const ROUTERS: usize = 3;

struct Router {
    core: Core,
    mseq: MSeq,
    learned: usize,
    proposed: Option<(u64, Batch)>,
    /// Answers of the shell that are still under way.
    reports: VecDeque<Input>,
}

struct Submitter {
    submitted: u64,
    window: VecDeque<Arc<Message>>,
    router: usize,
}

struct Storage {
    incarnation: Incarnation,
    after: Ts,
    received: Vec<(Ts, MessageId)>,
    router: usize,
}

struct Simulation {
    config: Config,
    log: Vec<Batch>,
    leader: usize,
    leaderships: u64,
    routers: Vec<Router>,
    submitters: BTreeMap<ProcessId, Submitter>,
    storage: BTreeMap<ProcessId, Storage>,
    channels: BTreeMap<(ProcessId, ProcessId), VecDeque<Wire>>,
}

fn router_id(number: usize) -> ProcessId {
    ProcessId::router(number as u32 + 1)
}

fn limits() -> Limits {
    // Small, so that proposals and deliveries are split and old messages come from the log.
    Limits { proposal_messages: 3, deliver_messages: 2, window_bytes: 4_000, waiting: 4, ..Limits::default() }
}

impl Simulation {
    fn new() -> Self {
        let config = Config::evenly(3, 2).expect("a valid ring");
        let submitter = |n| {
            let router = n as usize % ROUTERS;
            (ProcessId::client(n), Submitter { submitted: 0, window: VecDeque::new(), router })
        };
        let storage = |n| {
            let router = n as usize % ROUTERS;
            (ProcessId::storage(n), Storage { incarnation: 1, after: Ts::ZERO, received: Vec::new(), router })
        };
        let mut simulation = Simulation {
            routers: (0..ROUTERS).map(|number| Self::router(number, &config)).collect(),
            config,
            log: Vec::new(),
            leader: 0,
            leaderships: 0,
            submitters: (1..=2).map(submitter).collect(),
            storage: (1..=3).map(storage).collect(),
            channels: BTreeMap::new(),
        };
        simulation.lead(0);
        simulation
    }

    fn router(number: usize, config: &Config) -> Router {
        let mseq = MSeq::new(config.clone());
        let core = Core::new(router_id(number), mseq.clone(), limits());
        Router { core, mseq, learned: 0, proposed: None, reports: VecDeque::new() }
    }

    fn push(&mut self, from: ProcessId, to: ProcessId, wire: Wire) {
        self.channels.entry((from, to)).or_default().push_back(wire);
    }

    fn input(&mut self, number: usize, input: Input) {
        let id = router_id(number);
        for effect in self.routers[number].core.handle(input) {
            match effect {
                Effect::Propose { proposal, batch } => {
                    self.routers[number].proposed = Some((proposal, batch))
                }
                Effect::Send { to, wire } => self.push(id, to, wire),
                Effect::Stream { to, stream, wires } => {
                    wires.into_iter().for_each(|wire| self.push(id, to, wire));
                    self.routers[number].reports.push_back(Input::Sent { to, stream });
                }
                Effect::Read { to, stream, after } => {
                    let routed = Self::order(&self.config, &self.log[..self.routers[number].learned]);
                    let through = Ts(routed.len() as u64);
                    let behind = routed.iter().filter(|routed| routed.ts > after);
                    let deliveries = behind.filter_map(|routed| delivery(routed, to)).collect();
                    self.routers[number].reports.push_back(Input::Read { to, stream, deliveries, through });
                }
                Effect::Close { .. }
                | Effect::Truncate(_)
                | Effect::ChangeRouters { .. }
                | Effect::Look { .. } => {}
            }
        }
    }

    /// The m-seq that a log means.
    fn order(config: &Config, log: &[Batch]) -> Vec<Routed> {
        let mut mseq = MSeq::new(config.clone());
        let learned = log.iter().flat_map(|batch| mseq.learn(batch)).collect::<Vec<_>>();
        let messages = learned.into_iter().filter_map(|learned| match learned {
            Learned::Message(routed) => Some(routed),
            _ => None,
        });
        messages.collect()
    }

    fn learn(&mut self, number: usize, up_to: usize) {
        while self.routers[number].learned < up_to.min(self.log.len()) {
            let router = &mut self.routers[number];
            let learned = router.mseq.learn(&self.log[router.learned]);
            router.learned += 1;
            let mseq = router.mseq.clone();
            self.input(number, Input::Learned { mseq, learned });
        }
    }

    /// The consensus agrees on what its leader has proposed, and the leader learns it.
    fn agree(&mut self) {
        let leader = self.leader;
        if let Some((proposal, batch)) = self.routers[leader].proposed.take() {
            self.log.push(batch);
            self.learn(leader, usize::MAX);
            self.input(leader, Input::Proposed { proposal, accepted: true });
        }
    }

    /// Another router is elected. The old leader's proposal may survive, unknown to it; it believes to lead until it
    /// is told.
    fn elect(&mut self, number: usize, survives: bool) {
        if number == self.leader {
            return;
        }
        let proposed = self.routers[self.leader].proposed.take();
        if let Some((_, batch)) = proposed.filter(|_| survives) {
            self.log.push(batch);
        }
        self.leader = number;
        // It may believe to lead from an earlier term.
        self.routers[number].proposed = None;
        self.input(number, Input::Follower(None));
        self.learn(number, usize::MAX);
        self.lead(number);
    }

    fn lead(&mut self, number: usize) {
        self.leaderships += 1;
        self.input(number, Input::Leader(self.leaderships));
    }

    fn tell(&mut self, number: usize) {
        if number != self.leader {
            self.routers[number].proposed = None;
            self.input(number, Input::Follower(Some(router_id(self.leader))));
        }
    }

    fn crash_router(&mut self, number: usize) {
        if number == self.leader {
            self.elect((number + 1) % ROUTERS, true);
        }
        self.routers[number] = Self::router(number, &self.config);
        let id = router_id(number);
        self.channels.retain(|(from, to), _| *from != id && *to != id);
    }

    fn crash_storage(&mut self, id: ProcessId) {
        self.channels.retain(|(from, to), _| *from != id && *to != id);
        let storage = self.storage.get_mut(&id).expect("it exists");
        storage.incarnation += 1;
        // It comes back from a checkpoint.
        storage.after = Ts(storage.after.0 / 2);
        let after = storage.after;
        storage.received.retain(|(ts, _)| *ts <= after);
        self.subscribe(id, self.leader);
    }

    fn submit(&mut self, id: ProcessId, choice: usize) {
        let submitter = self.submitters.get_mut(&id).expect("it exists");
        submitter.submitted += 1;
        let sequence = submitter.submitted;
        let message = match choice % 3 {
            0 => testing::read(id, 1, sequence, choice as u32),
            1 => testing::truncate_table(id, 1, sequence),
            _ => testing::write(id, 1, sequence, KeyRange::point((choice as u64) << 54)),
        };
        let message = Arc::new(message);
        submitter.window.push_back(message.clone());
        let router = router_id(submitter.router);
        self.push(id, router, Wire::Route(vec![message]));
    }

    /// A submitter sends its window again, to another router.
    fn resend(&mut self, id: ProcessId, router: usize) {
        let submitter = self.submitters.get_mut(&id).expect("it exists");
        submitter.router = router;
        let window: Vec<_> = submitter.window.iter().cloned().collect();
        if !window.is_empty() {
            self.push(id, router_id(router), Wire::Route(window));
        }
    }

    fn subscribe(&mut self, id: ProcessId, router: usize) {
        let storage = self.storage.get_mut(&id).expect("it exists");
        storage.router = router;
        let (incarnation, after) = (storage.incarnation, Some(storage.after));
        let wire = Wire::Subscribe { incarnation, directory: 1, after };
        self.push(id, router_id(router), wire);
    }

    fn receive(&mut self, from: ProcessId, to: ProcessId, wire: Wire) {
        match to.kind {
            ProcessKind::Router => self.input(to.number as usize - 1, Input::Received { from, wire }),
            ProcessKind::Client => {
                let submitter = self.submitters.get_mut(&to).expect("it exists");
                match wire {
                    Wire::Ordered { sequence, .. } => submitter.window.retain(|m| m.id.sequence > sequence),
                    Wire::Resend { expected, .. } => {
                        // A router that no longer leads, but does not know, may ask for what was acknowledged.
                        if submitter.window.front().is_some_and(|message| message.id.sequence > expected) {
                            return;
                        }
                        self.resend(to, from.number as usize - 1);
                    }
                    Wire::NotLeader { leader: Some(leader) } => self.resend(to, leader.number as usize - 1),
                    Wire::NotLeader { leader: None } => {}
                    other => panic!("{to} got {other:?}"),
                }
            }
            _ => {
                let storage = self.storage.get_mut(&to).expect("it exists");
                match wire {
                    Wire::State { ts, incarnation, .. } => {
                        assert!(
                            incarnation != storage.incarnation || ts <= storage.after,
                            "a stream begins at {ts}"
                        );
                    }
                    Wire::Deliver { incarnation, deliveries, frontier, .. }
                        if incarnation == storage.incarnation =>
                    {
                        for delivery in deliveries {
                            if delivery.ts > storage.after {
                                storage.after = delivery.ts;
                                storage.received.push((delivery.ts, delivery.message.id));
                            }
                        }
                        storage.after = storage.after.max(frontier);
                    }
                    Wire::Deliver { .. } => {}
                    // To a subscription of an earlier life that came late.
                    Wire::Outlived { incarnation, .. } if incarnation < storage.incarnation => {}
                    Wire::NotLeader { leader } => {
                        let router = leader.map_or(storage.router, |leader| leader.number as usize - 1);
                        self.subscribe(to, router);
                    }
                    other => panic!("{to} got {other:?}"),
                }
            }
        }
    }

    fn deliver(&mut self, choice: usize) -> bool {
        let ready: Vec<_> =
            self.channels.iter().filter(|(_, queue)| !queue.is_empty()).map(|(k, _)| *k).collect();
        let Some((from, to)) = ready.get(choice % ready.len().max(1)).copied() else { return false };
        if let Some(wire) = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
            self.receive(from, to, wire);
        }
        true
    }

    fn report(&mut self, number: usize) -> bool {
        let report = self.routers[number].reports.pop_front();
        let found = report.is_some();
        report.into_iter().for_each(|report| self.input(number, report));
        found
    }

    fn step(&mut self, action: u8, choice: usize) {
        let client = ProcessId::client(choice as u32 % 2 + 1);
        let storage = ProcessId::storage(choice as u32 % 3 + 1);
        let router = choice % ROUTERS;
        match action {
            0..20 => self.submit(client, choice),
            20..70 => drop(self.deliver(choice)),
            70..80 => self.agree(),
            80..88 => self.learn(router, self.routers[router].learned + 1),
            88..94 => drop(self.report(router)),
            94 => self.elect(router, choice.is_multiple_of(2)),
            95 => self.tell(router),
            96 => self.resend(client, choice / 2 % ROUTERS),
            97 => self.subscribe(storage, choice / 3 % ROUTERS),
            98 => self.crash_router(router),
            _ => self.crash_storage(storage),
        }
    }

    /// Ends the faults: what is under way arrives, everybody finds the leader, until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..200 {
            (0..ROUTERS).for_each(|number| self.tell(number));
            let clients: Vec<_> = self.submitters.keys().copied().collect();
            clients.into_iter().for_each(|id| self.resend(id, self.leader));
            let storage: Vec<_> = self.storage.keys().copied().collect();
            storage.into_iter().for_each(|id| self.subscribe(id, self.leader));
            let mut busy = true;
            while busy {
                self.agree();
                (0..ROUTERS).for_each(|number| self.learn(number, usize::MAX));
                let reported = (0..ROUTERS).fold(false, |any, number| self.report(number) | any);
                busy = self.deliver(0) | reported;
            }
            let end = Ts(Self::order(&self.config, &self.log).len() as u64);
            if self.submitters.values().all(|submitter| submitter.window.is_empty())
                && self.storage.values().all(|storage| storage.after == end)
            {
                return;
            }
        }
        panic!("the cluster does not come to rest");
    }

    fn check(&self) {
        let order = Self::order(&self.config, &self.log);
        for (id, submitter) in &self.submitters {
            let own = order.iter().filter(|routed| routed.message.id.submitter == *id);
            let sequences: Vec<_> = own.map(|routed| routed.message.id.sequence).collect();
            assert_eq!(sequences, (1..=submitter.submitted).collect::<Vec<_>>(), "messages of {id}");
        }
        for (id, storage) in &self.storage {
            let share = order.iter().filter(|routed| delivery(routed, *id).is_some());
            let share: Vec<_> = share.map(|routed| (routed.ts, routed.message.id)).collect();
            assert_eq!(storage.received, share, "deliveries to {id}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn total_order_without_loss(steps in proptest::collection::vec((0u8..100, any::<u16>()), 0..400)) {
        let mut simulation = Simulation::new();
        for (action, choice) in steps {
            simulation.step(action, choice.into());
        }
        simulation.settle();
        simulation.check();
    }
}
