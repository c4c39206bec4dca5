//! Read isolation as golden scenarios (paper, section 6.7; DESIGN, decision 14): for each level the anomaly that it
//! allows, and those that it forbids. The state machines are the real ones; what is between them waits until the
//! scenario says that it goes on.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    sync::Arc,
};

use carousel_engine::shard::{Options as ShardOptions, Progress, Shard};

use super::{
    statement::{Change, Conflict, Filter, Statement, schema},
    stores::rows_of,
};
use crate::{
    client::{self, Part, Request},
    config::Config,
    message::{Body, Ddl, MessageId, ProcessId, ProcessKind, ReadIsolation},
    router::{
        core::{Core as Router, Effect as RouterEffect, Input as RouterInput, Limits},
        mseq::{Batch, MSeq},
    },
    storage::{
        core::{Core as StorageCore, CoreOptions, Recovered},
        node::{Input, Life, Node, Output},
        scan::Scan,
    },
    wire::{AnswerPart, Wire},
};

const R1: ProcessId = ProcessId::router(1);
const R2: ProcessId = ProcessId::router(2);
const S1: ProcessId = ProcessId::storage(1);
const S2: ProcessId = ProcessId::storage(2);
const C1: ProcessId = ProcessId::client(1);
const C2: ProcessId = ProcessId::client(2);
/// A row of the first and one of the second half of the ring.
const ROWS: [i64; 2] = [1, 20];

/// Two routers, two storage processes and two clients with a table `t` of two rows.
struct Scene {
    config: Arc<Config>,
    log: Vec<Batch>,
    routers: BTreeMap<ProcessId, (Router, MSeq, usize)>,
    /// Routers that learn nothing at the moment.
    cut: BTreeSet<ProcessId>,
    storage: BTreeMap<ProcessId, (Node, Scan)>,
    clients: BTreeMap<ProcessId, client::core::Core>,
    way: VecDeque<(ProcessId, ProcessId, Wire)>,
    /// What is sent there waits.
    held: BTreeSet<(ProcessId, ProcessId)>,
    rows: BTreeMap<u64, Vec<(i64, i32)>>,
    submissions: u64,
    now_ms: u64,
    trace: String,
}

fn name(id: MessageId) -> String {
    match id.is_ordered() {
        true => format!("{}#{}", id.submitter, id.sequence),
        false => format!("{}read#{}", id.submitter, id.sequence - (1 << 63)),
    }
}

/// What a scenario is about, as text.
fn show(wire: &Wire) -> Option<String> {
    let names = |ids: Vec<MessageId>| ids.into_iter().map(name).collect::<Vec<_>>().join(" ");
    match wire {
        Wire::Route(messages) => {
            Some(format!("route {}", names(messages.iter().map(|message| message.id).collect())))
        }
        Wire::Read { messages, seen } => {
            let ids = messages.iter().map(|message| message.id).collect();
            Some(format!("read {} seen={seen}", names(ids)))
        }
        Wire::BasicRead { reads, seen, .. } => {
            let ids = reads.iter().map(|(message, _)| message.id).collect();
            Some(format!("basic read {} seen={seen}", names(ids)))
        }
        Wire::ReadsLost(ids) => Some(format!("lost {}", names(ids.clone()))),
        Wire::Deliver { deliveries, .. } if !deliveries.is_empty() => {
            let list: Vec<String> = deliveries
                .iter()
                .map(|delivery| format!("{}={}", delivery.ts, name(delivery.message.id)))
                .collect();
            Some(format!("deliver {}", list.join(" ")))
        }
        Wire::Answers(answers) => {
            let list: Vec<String> = answers
                .iter()
                .filter_map(|answer| match &answer.part {
                    AnswerPart::Rows { batch, .. } => Some(format!("{:?}", rows_of(batch))),
                    AnswerPart::Done { .. } => Some(format!("done {} at {}", name(answer.id), answer.ts)),
                    _ => None,
                })
                .collect();
            Some(format!("answer {}", list.join(", ")))
        }
        _ => None,
    }
}

impl Scene {
    /// A scene in which the table is there and `r1` leads.
    fn new(replication: u32) -> Scene {
        let config = Arc::new(Config::evenly(2, replication).expect("a ring"));
        let mseq = MSeq::new(config.as_ref().clone());
        let router = |id| (id, (Router::new(id, mseq.clone(), Limits::default()), mseq.clone(), 0));
        let mut scene = Scene {
            routers: [R1, R2].into_iter().map(router).collect(),
            config,
            log: Vec::new(),
            cut: BTreeSet::new(),
            storage: BTreeMap::new(),
            clients: BTreeMap::new(),
            way: VecDeque::new(),
            held: BTreeSet::new(),
            rows: BTreeMap::new(),
            submissions: 0,
            now_ms: 0,
            trace: String::new(),
        };
        scene.router(R1, RouterInput::Leader(1));
        scene.router(R2, RouterInput::Follower(Some(R1)));
        for id in [S1, S2] {
            let options = CoreOptions {
                id,
                incarnation: 1,
                address: None,
                config: scene.config.clone(),
                shards: 1,
                running: 64,
                between: 1 << 14,
            };
            let core = StorageCore::new(options, Recovered::default());
            let mut node =
                Node::new(Life { id, incarnation: 1, directory: 1 }, None, 1, vec![R1, R2], core, false);
            let outputs = node.begin();
            let shard = Shard::new(0, 1, scene.config.held(id), ShardOptions::default());
            scene.storage.insert(id, (node, Scan::new(shard)));
            scene.outputs(id, outputs);
        }
        for id in [C1, C2] {
            let (routers, config) = (vec![R1, R2], scene.config.clone());
            let options = client::core::CoreOptions { id, incarnation: 1, directory: 1, routers, config };
            scene.clients.insert(id, client::core::Core::new(options));
            scene.client_effects(id);
        }
        scene.go_on();
        scene.pass();
        let schema = Arc::new(schema("t", true));
        let create = Body::Ddl(Ddl::CreateTable { schema, if_not_exists: false });
        scene.submit(
            C1,
            Request { tables: Default::default(), ranges: Default::default(), body: create },
            ReadIsolation::Sequential,
        );
        scene.go_on();
        let rows = ROWS.map(|key| (key, 0)).to_vec();
        scene.ask(C1, Statement::Insert { rows, conflict: Conflict::Nothing }, ReadIsolation::Sequential);
        scene.go_on();
        scene.trace.clear();
        scene
    }

    fn note(&mut self, text: &str) {
        writeln!(self.trace, "-- {text}").expect("text");
    }

    fn send(&mut self, from: ProcessId, to: ProcessId, wire: Wire) {
        self.way.push_back((from, to, wire));
    }

    /// A tenth of a second passes for everybody.
    fn pass(&mut self) {
        self.now_ms += 100;
        let now_ms = self.now_ms;
        [R1, R2].into_iter().for_each(|id| self.router(id, RouterInput::Tick(now_ms)));
        [S1, S2].into_iter().for_each(|id| self.node(id, Input::Tick(now_ms)));
        [C1, C2].into_iter().for_each(|id| self.client(id, client::core::Event::Tick(now_ms)));
        self.go_on();
    }

    /// Everything happens that nothing holds up.
    fn go_on(&mut self) {
        while let Some(index) = self.way.iter().position(|(from, to, _)| !self.held.contains(&(*from, *to))) {
            let Some((from, to, wire)) = self.way.remove(index) else { return };
            if let Some(text) = show(&wire) {
                writeln!(self.trace, "{from} -> {to} {text}").expect("text");
            }
            match to.kind {
                ProcessKind::Router => {
                    let now_ms = self.now_ms;
                    let led_ms = if self.cut.contains(&to) { None } else { Some(now_ms) };
                    let input = match wire {
                        Wire::AskLease { incarnation, asked_ms } => {
                            RouterInput::AskLease { from, incarnation, asked_ms, now_ms, led_ms }
                        }
                        wire => RouterInput::Received { from, wire },
                    };
                    self.router(to, input);
                }
                ProcessKind::Storage => self.node(to, Input::Received { from, wire }),
                ProcessKind::Client | ProcessKind::Super => {
                    self.client(to, client::core::Event::Received { from, wire });
                }
            }
        }
    }

    fn hold(&mut self, from: ProcessId, to: ProcessId) {
        self.note(&format!("what {from} sends to {to} is slow"));
        self.held.insert((from, to));
    }

    fn release(&mut self, from: ProcessId, to: ProcessId) {
        self.note(&format!("what {from} has sent to {to} arrives"));
        self.held.remove(&(from, to));
        self.go_on();
    }

    fn router(&mut self, id: ProcessId, input: RouterInput) {
        let Some((core, ..)) = self.routers.get_mut(&id) else { return };
        for effect in core.handle(input) {
            match effect {
                RouterEffect::Send { to, wire } => self.send(id, to, wire),
                RouterEffect::Stream { to, stream, wires } => {
                    wires.into_iter().for_each(|wire| self.send(id, to, wire));
                    self.router(id, RouterInput::Sent { to, stream });
                }
                // Nobody agrees to what a deposed leader proposes.
                RouterEffect::Propose { .. } if self.cut.contains(&id) => {}
                RouterEffect::Propose { proposal, batch } => {
                    self.log.push(batch);
                    self.learn();
                    self.router(id, RouterInput::Proposed { proposal, accepted: true });
                }
                RouterEffect::Read { .. }
                | RouterEffect::Close { .. }
                | RouterEffect::Truncate(_)
                | RouterEffect::ChangeRouters { .. }
                | RouterEffect::Look { .. } => {}
            }
        }
    }

    /// The routers learn what has been agreed on.
    fn learn(&mut self) {
        for id in [R1, R2] {
            while let Some((_, mseq, learned)) = self.routers.get_mut(&id)
                && !self.cut.contains(&id)
                && let Some(batch) = self.log.get(*learned)
            {
                *learned += 1;
                let learned = mseq.learn(batch);
                let mseq = mseq.clone();
                self.router(id, RouterInput::Learned { mseq, learned });
            }
        }
    }

    /// `r2` leads, and `r1` does not know it.
    fn depose(&mut self) {
        self.note("r2 is elected, and r1 does not know it yet");
        self.cut.insert(R1);
        self.router(R2, RouterInput::Leader(2));
    }

    fn node(&mut self, id: ProcessId, input: Input) {
        let Some((node, scan)) = self.storage.get_mut(&id) else { return };
        node.clock(self.now_ms);
        let outputs = node.handle(input, scan.memory());
        self.outputs(id, outputs);
    }

    fn outputs(&mut self, id: ProcessId, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send(to, wire) => self.send(id, to, wire),
                Output::Shard(_, command) => {
                    let Some((_, scan)) = self.storage.get_mut(&id) else { return };
                    let mut effects = Vec::new();
                    scan.tell(command, &mut effects);
                    while scan.step(&mut effects) == Progress::Busy {}
                    if !effects.is_empty() {
                        self.node(id, Input::Shard((0, effects)));
                    }
                }
                Output::Payload(_) | Output::Checkpoint(_) | Output::VoteLost(..) => {}
            }
        }
    }

    fn client(&mut self, id: ProcessId, event: client::core::Event) {
        if let Some(core) = self.clients.get_mut(&id) {
            core.handle(event);
        }
        self.client_effects(id);
    }

    fn client_effects(&mut self, id: ProcessId) {
        use client::core::Effect;
        let Some(core) = self.clients.get_mut(&id) else { return };
        for effect in core.take_effects() {
            match effect {
                Effect::Send(to, wire) => self.send(id, to, wire),
                Effect::Rows(submission, _, batch) => {
                    self.rows.entry(submission).or_default().extend(rows_of(&batch));
                }
                Effect::Part(submission, Ok(Part::Done { ts, rows })) => {
                    let line = match self.rows.remove(&submission) {
                        Some(mut rows) => {
                            rows.sort_unstable();
                            format!("{id} sees {rows:?} at {ts}")
                        }
                        None => format!("{id} has changed {rows} rows at {ts}"),
                    };
                    writeln!(self.trace, "=> {line}").expect("text");
                }
                Effect::Part(_, Ok(_))
                | Effect::Release(_)
                | Effect::ViewChanged
                | Effect::RoutersAnswered(..) => {}
                Effect::Part(_, Err(failure)) => {
                    writeln!(self.trace, "=> {id} fails: {failure:?}").expect("text");
                }
                Effect::CountOn(_) => {}
                Effect::Stop(error) => panic!("{id} stops: {error}"),
            }
        }
    }

    fn submit(&mut self, id: ProcessId, request: Request, isolation: ReadIsolation) {
        self.submissions += 1;
        let submission = self.submissions;
        self.client(id, client::core::Event::Submit { submission, request, isolation });
    }

    fn ask(&mut self, id: ProcessId, statement: Statement, isolation: ReadIsolation) {
        let table = self.clients[&id].view().catalog.table("t").cloned().expect("the table");
        let body = statement.body(0, &table, None);
        let request = Request {
            tables: [(table.id, table.version)].into(),
            ranges: statement.ranges(&table).into(),
            body,
        };
        self.submit(id, request, isolation);
    }

    /// A client sets `n` in both rows.
    fn write(&mut self, id: ProcessId, n: i32) {
        self.note(&format!("{id} sets both rows to {n}"));
        let (filter, change) = (Filter::All, Change::Set(n));
        self.ask(id, Statement::Update { filter, change, returning: false }, ReadIsolation::Sequential);
        self.go_on();
    }

    /// A client reads both rows.
    fn read(&mut self, id: ProcessId, isolation: ReadIsolation) {
        self.note(&format!("{id} reads both rows, {}", format!("{isolation:?}").to_lowercase()));
        self.ask(id, Statement::Rows(Filter::All), isolation);
        self.go_on();
    }
}

/// Each process holds one row.
#[test]
fn a_sequential_read_sees_all_writes_before_it_and_none_behind_it() {
    let mut scene = Scene::new(1);
    scene.hold(R1, S2);
    scene.write(C1, 1);
    scene.note("forbidden: half of the write. The read waits for what was ordered before it");
    scene.read(C2, ReadIsolation::Sequential);
    scene.write(C1, 2);
    scene.release(R1, S2);
    scene.note("allowed: two reads see two states, for each has its own place in the order");
    scene.read(C2, ReadIsolation::Sequential);
    insta::assert_snapshot!(scene.trace);
}

/// Both processes hold both rows.
#[test]
fn a_snapshot_read_may_be_old_but_is_consistent_and_never_goes_back() {
    let mut scene = Scene::new(2);
    scene.note("s1 and c1 go on with the new leader, s2 and c2 have not heard of it");
    scene.depose();
    for process in [S1, C1] {
        scene.send(R1, process, Wire::NotLeader { leader: Some(R2) });
    }
    scene.go_on();
    scene.write(C1, 1);
    scene.note("allowed: the state before a write that has been acknowledged to another client");
    scene.read(C2, ReadIsolation::Snapshot);
    scene.read(C2, ReadIsolation::Snapshot);
    scene.note("forbidden: the state before what the client has seen, here by a basic read");
    scene.read(C2, ReadIsolation::Basic);
    scene.read(C2, ReadIsolation::Basic);
    scene.read(C2, ReadIsolation::Snapshot);
    scene.note("c2 turns to the new leader");
    (0..7).for_each(|_| scene.pass());
    insta::assert_snapshot!(scene.trace);
}

/// Each process holds one row.
#[test]
fn a_basic_read_may_see_half_of_a_write() {
    let mut scene = Scene::new(1);
    scene.hold(R1, S2);
    scene.write(C1, 1);
    scene.note("allowed: half of a write that is not acknowledged yet");
    scene.read(C2, ReadIsolation::Basic);
    scene.release(R1, S2);
    scene.read(C2, ReadIsolation::Basic);
    insta::assert_snapshot!(scene.trace);
}

/// Each process holds one row.
#[test]
fn a_snapshot_read_never_sees_half_of_a_write() {
    let mut scene = Scene::new(1);
    scene.read(C2, ReadIsolation::Snapshot);
    scene.hold(R1, S2);
    scene.write(C1, 1);
    scene.note("forbidden: half of a write. The answer waits for the process that has not executed it");
    scene.read(C2, ReadIsolation::Snapshot);
    scene.release(R1, S2);
    insta::assert_snapshot!(scene.trace);
}

/// Both processes hold both rows.
#[test]
fn a_basic_read_never_goes_back() {
    let mut scene = Scene::new(2);
    scene.read(C2, ReadIsolation::Basic);
    scene.hold(R1, S2);
    scene.write(C1, 1);
    scene.note("allowed: the state before a write that has been acknowledged to another client");
    scene.read(C2, ReadIsolation::Basic);
    scene.note("forbidden: the state before its own write. A process that lags waits until it has it");
    scene.read(C1, ReadIsolation::Basic);
    scene.read(C1, ReadIsolation::Basic);
    scene.release(R1, S2);
    insta::assert_snapshot!(scene.trace);
}
