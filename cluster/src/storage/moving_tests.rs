//! Expansions, through the cores of storage processes and their shards: what they say to one another (a golden trace),
//! and what is where in the end.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    fmt::Write as _,
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, Int64Array},
    record_batch::RecordBatch,
};
use bytes::Bytes;
use carousel_engine::{
    Shard, TableId, TableSchema, Ts, Value,
    expr::EvalContext,
    install::Rows,
    operation::{Insert, InsertRows, OnConflict, Operation, OperationKind, Read, ReadOutput, RowBatch},
    position::{KeyRange, Position},
    shard::{Options, Progress},
};

use super::{
    core::{BETWEEN, Core, CoreOptions, Effect, Event, Recovered, local},
    migration,
    scan::Scan,
    tests::schema,
};
use crate::{
    config::{Change, Config, Configuration, Instruction, Membership},
    message::{Body, Data, Ddl, Incarnation, Message, MessageId, ProcessId},
    router::{
        core::delivery,
        mseq::{Batch, Beginning, Command, Learned, MSeq, Routed},
    },
    wire::{AnswerPart, MissingVotes, Wire},
};

const CLIENT: ProcessId = ProcessId::client(1);

struct Process {
    core: Core,
    scan: Scan,
}

/// A checkpoint with its rows.
#[derive(Default)]
struct Checkpoint {
    recovered: Recovered,
    rows: Vec<Written>,
}

/// A block of rows of a range, perhaps as of an earlier `Ts`.
type Written = (TableId, Option<Ts>, KeyRange, Bytes);

struct World {
    first: Arc<Config>,
    mseq: MSeq,
    processes: BTreeMap<ProcessId, Process>,
    wires: VecDeque<(ProcessId, ProcessId, Wire)>,
    announced: VecDeque<(ProcessId, Configuration)>,
    sequences: BTreeMap<ProcessId, u64>,
    /// Incarnations behind the first.
    lives: BTreeMap<ProcessId, Incarnation>,
    log: Vec<Routed>,
    /// Rows by answered range, of the last message.
    answers: BTreeMap<KeyRange, Vec<u64>>,
    checkpoints: BTreeMap<ProcessId, Checkpoint>,
    /// What they have received.
    received: BTreeMap<(ProcessId, Ts), Checkpoint>,
    /// Rows of checkpoints that are being written.
    unfinished: BTreeMap<(ProcessId, Ts), Vec<Written>>,
    /// What is sent to it and what it sends is lost.
    cut: Option<ProcessId>,
    /// It cannot write checkpoints.
    full: Option<ProcessId>,
    /// Whether INSERTs are said to be able to fail: then they wait for votes.
    fallible: bool,
    /// Ranges for which operations end without effect, when rows may be lost.
    failed: Option<BTreeSet<KeyRange>>,
    /// Who has answered which messages for its ranges.
    done: BTreeSet<(ProcessId, MessageId)>,
    trace: String,
}

impl World {
    fn new(size: u32, replication: u32) -> World {
        let first = Arc::new(Config::evenly(size, replication).expect("a ring"));
        let mut world = World {
            mseq: MSeq::new(Config::clone(&first)),
            first,
            processes: BTreeMap::new(),
            wires: VecDeque::new(),
            announced: VecDeque::new(),
            sequences: BTreeMap::new(),
            lives: BTreeMap::new(),
            log: Vec::new(),
            answers: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            received: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            cut: None,
            full: None,
            fallible: false,
            failed: None,
            done: BTreeSet::new(),
            trace: String::new(),
        };
        for number in 1..=size {
            let id = ProcessId::storage(number);
            let held = world.first.held(id);
            world.start(id, held, Checkpoint::default());
        }
        world
    }

    /// Storage processes with 300 rows.
    fn with_rows(size: u32, replication: u32) -> World {
        let mut world = World::new(size, replication);
        let create = Ddl::CreateTable { schema: Arc::new(schema()), if_not_exists: false };
        world.order(CLIENT, Body::Ddl(create), Vec::new());
        world.insert(0..300);
        world.settle();
        world
    }

    fn start(&mut self, id: ProcessId, held: Vec<KeyRange>, checkpoint: Checkpoint) {
        let options = CoreOptions {
            id,
            incarnation: self.life(id),
            address: None,
            config: self.first.clone(),
            shards: 1,
            running: 16,
            between: BETWEEN,
        };
        let Checkpoint { mut recovered, rows } = checkpoint;
        let behind = self.received.iter().filter(|((of, ts), _)| *of == id && *ts > recovered.ts);
        recovered.kept = behind.map(|(_, parts)| parts.recovered.as_kept()).collect();
        let mut shard = Shard::new(0, 1, held, Options::default());
        recovered.prepare(&mut shard);
        for (table, until, range, block) in rows {
            let begin = if until.is_some() { Ts::ZERO } else { local(recovered.ts) };
            let rows = Rows { table, range, until: until.map(local), begin, block };
            shard.install(rows).expect("what it has written");
        }
        self.processes.insert(id, Process { core: Core::new(options, recovered), scan: Scan::new(shard) });
    }

    fn life(&self, id: ProcessId) -> Incarnation {
        self.lives.get(&id).copied().unwrap_or(1)
    }

    /// A process that has ended starts again with what it has been from the beginning, and hears all that was ordered.
    fn replay(&mut self, id: ProcessId) {
        *self.lives.entry(id).or_insert(1) += 1;
        self.sequences.remove(&id);
        self.start(id, self.first.held(id), Checkpoint::default());
        let present = (self.mseq.ts(), self.mseq.config().clone());
        self.handle(id, Event::Config { config: self.first.clone(), present });
        let deliveries = self.log.iter().filter_map(|routed| delivery(routed, id)).collect();
        self.handle(id, Event::Delivered { deliveries, frontier: self.mseq.ts() });
    }

    /// A process crashes and is suspected, unless something would be lost with it.
    fn lose(&mut self, process: ProcessId) {
        self.processes.remove(&process);
        let suspicion = Membership::Suspect { process, incarnation: self.life(process) };
        self.order(CLIENT, Body::Configuration(Configuration::Membership(suspicion)), Vec::new());
    }

    /// A process crashes and goes on from its last checkpoint.
    fn restart(&mut self, id: ProcessId) {
        let checkpoint = self.checkpoints.remove(&id).expect("it has made one");
        let ts = checkpoint.recovered.ts;
        self.start(id, checkpoint.recovered.parts(), checkpoint);
        let behind = self.log.iter().filter(|routed| routed.ts > ts);
        let deliveries = behind.filter_map(|routed| delivery(routed, id)).collect();
        self.handle(id, Event::Delivered { deliveries, frontier: self.mseq.ts() });
    }

    /// A process without data joins and begins with what the routers have.
    fn join(&mut self, number: u32) {
        let process = ProcessId::storage(number);
        let join = Membership::Join { process, incarnation: self.life(process), address: None };
        self.order(CLIENT, Body::Configuration(Configuration::Membership(join)), Vec::new());
        self.begin(process, Vec::new());
    }

    /// A process starts without data, and begins where the routers say.
    fn begin(&mut self, process: ProcessId, held: Vec<KeyRange>) {
        self.start(process, held, Checkpoint::default());
        self.go_on(process);
    }

    /// A process that has joined goes on where the routers say.
    fn go_on(&mut self, process: ProcessId) {
        let Beginning { ts, catalog, .. } = self.mseq.begins(process);
        let config = self.mseq.config_behind(ts).clone();
        let present = (self.mseq.ts(), self.mseq.config().clone());
        self.handle(process, Event::Begin { ts, config, catalog, present });
        let behind = self.log.iter().filter(|routed| routed.ts > ts);
        let deliveries = behind.filter_map(|routed| delivery(routed, process)).collect();
        self.handle(process, Event::Delivered { deliveries, frontier: self.mseq.ts() });
    }

    /// The middle of what a process holds.
    fn middle(&self, number: u32) -> Position {
        let held = self.mseq.config().held(ProcessId::storage(number))[0];
        held.first / 2 + held.last / 2
    }

    fn change(&mut self, change: Change) -> Ts {
        let keyspace = self.mseq.config().plan(change).expect("possible");
        for instruction in &keyspace.instructions {
            writeln!(self.trace, "instruction {instruction:?}").expect("text");
        }
        let ts = self.order(CLIENT, Body::Configuration(Configuration::Keyspace(keyspace)), Vec::new());
        writeln!(self.trace, "ts={ts} {change}").expect("text");
        ts
    }

    fn order(&mut self, submitter: ProcessId, body: Body, ranges: Vec<KeyRange>) -> Ts {
        let sequence = self.sequences.entry(submitter).or_default();
        *sequence += 1;
        let sequence = *sequence;
        let id = MessageId { submitter, incarnation: self.life(submitter), sequence };
        let message = Arc::new(Message { id, tables: Default::default(), ranges: ranges.into(), body });
        let Learned::Message(routed) = self.mseq.learn(&Batch(vec![Command::Message(message)])).remove(0)
        else {
            panic!("it is new");
        };
        self.answers.clear();
        for process in self.processes.keys().copied().collect::<Vec<_>>() {
            let deliveries = delivery(&routed, process).into_iter().collect();
            self.handle(process, Event::Delivered { deliveries, frontier: routed.ts });
        }
        let ts = routed.ts;
        self.log.push(routed);
        ts
    }

    fn handle(&mut self, id: ProcessId, event: Event) {
        let process = self.processes.get_mut(&id).expect("it runs");
        let mut shard_effects = Vec::new();
        let (mut taken, mut done, mut later) = (0, Vec::new(), Vec::new());
        let effects = process.core.handle(event);
        let open = process.core.receiving().filter(|(_, arrived)| !arrived.whole);
        if let Some(keyspace) = open.map(|(part, _)| part.keyspace).min() {
            assert!(process.core.horizon() <= local(keyspace), "its pieces could be joined with others");
        }
        for effect in effects {
            match effect {
                Effect::Submit { operation, .. } => {
                    process.scan.tell(super::scan::ShardCommand::Submit(operation), &mut shard_effects);
                }
                Effect::Decide { ts, decision, .. } => {
                    process.scan.tell(super::scan::ShardCommand::Decide(ts, decision), &mut shard_effects);
                }
                Effect::Allow { ts, batches, .. } => {
                    process.scan.tell(super::scan::ShardCommand::Allow(ts, batches), &mut shard_effects);
                }
                Effect::Shard { command, .. } => process.scan.tell(command, &mut shard_effects),
                Effect::Send(to, wire) => {
                    let line = match &wire {
                        Wire::AskRows { part, chunks, .. } => {
                            Some(format!("{id} -> {to} asks for chunks {chunks:?} of {}", part.range))
                        }
                        Wire::Rows { part, chunk, .. } => {
                            let last = if chunk.last.is_some() { ", the last" } else { "" };
                            Some(format!("{id} -> {to} chunk {}{last} of {}", chunk.number, part.range))
                        }
                        Wire::RowsFollow { part, .. } => {
                            Some(format!("{id} -> {to} says that rows of {} follow", part.range))
                        }
                        Wire::RowsRefused { part, .. } => {
                            Some(format!("{id} -> {to} refuses {}", part.range))
                        }
                        _ => None,
                    };
                    if let Some(line) = line {
                        writeln!(self.trace, "{line}").expect("text");
                    }
                    self.wires.push_back((id, to, wire));
                }
                Effect::Answer(_, answer) => match answer.part {
                    AnswerPart::Done { outcomes, .. } => {
                        self.done.insert((id, answer.id));
                        for (range, outcome) in outcomes {
                            match (outcome, &mut self.failed) {
                                (Ok(rows), _) => self.answers.entry(range).or_default().push(rows),
                                (Err(_), Some(failed)) => drop(failed.insert(range)),
                                (Err(error), None) => panic!("{id}: {error}"),
                            }
                        }
                    }
                    AnswerPart::Rows { .. } => {}
                    other => panic!("{other:?}"),
                },
                Effect::EndCheckpoint(recovered) => {
                    let ts = recovered.ts;
                    let rows = self.unfinished.remove(&(id, ts)).unwrap_or_default();
                    if self.full == Some(id) {
                        writeln!(self.trace, "{id} cannot make a checkpoint").expect("text");
                        later.push(Event::CheckpointFailed { ts });
                        continue;
                    }
                    writeln!(self.trace, "{id} makes checkpoint ts={ts}").expect("text");
                    self.checkpoints.insert(id, Checkpoint { recovered: *recovered, rows });
                    done.push(ts);
                }
                Effect::EndParts(parts) => {
                    let keyspace = parts.ts;
                    writeln!(self.trace, "{id} keeps what ts={keyspace} moves to it").expect("text");
                    let rows = self.unfinished.remove(&(id, keyspace)).unwrap_or_default();
                    self.received.insert((id, keyspace), Checkpoint { recovered: *parts, rows });
                    later.push(Event::PartsEnded { keyspace, are_durable: true });
                }
                Effect::LoadRows { part, attempt, chunks } => {
                    let Checkpoint { recovered, rows } = &self.received[&(id, part.keyspace)];
                    let rows = rows.iter().filter(|(_, _, range, _)| *range == part.range);
                    let blocks =
                        rows.map(|(table, _, _, block)| Ok::<_, Infallible>((*table, block.clone())));
                    let all = recovered.chunks(part.range, blocks).map(|Ok(chunk)| chunk);
                    later.extend(
                        all.filter(|chunk| chunks.contains(&chunk.number))
                            .map(|chunk| migration::Event::Chunk { from: id, part, attempt, chunk })
                            .map(Event::Moving),
                    );
                }
                Effect::Join => {
                    self.announced.push_back((id, Configuration::Membership(process.core.membership())));
                }
                Effect::Received { keyspace } => {
                    let configuration = Configuration::Received { keyspace, process: id };
                    writeln!(self.trace, "{id} announces {configuration:?}").expect("text");
                    self.announced.push_back((id, configuration));
                }
                Effect::Stop(reason) => panic!("{id} stops: {reason}"),
                Effect::CheckpointRows { ts, table, until, range, block } => {
                    self.unfinished.entry((id, ts)).or_default().push((table, until, range, block));
                    taken += 1;
                }
                Effect::ForgetRows { ts, range: None } => {
                    self.unfinished.remove(&(id, ts));
                }
                Effect::ForgetRows { ts, range: Some(range) } => {
                    if let Some(rows) = self.unfinished.get_mut(&(id, ts)) {
                        rows.retain(|(_, until, of, _)| until.is_some() || *of != range);
                    }
                }
                _ => {}
            }
        }
        if !shard_effects.is_empty() {
            self.handle(id, Event::Shard { shard: 0, effects: shard_effects });
        }
        for _ in 0..taken {
            self.handle(id, Event::CheckpointTook);
        }
        for ts in done {
            self.handle(id, Event::CheckpointDone { ts });
        }
        for event in later {
            self.handle(id, event);
        }
    }

    /// Lets everything happen that can.
    fn settle(&mut self) {
        loop {
            self.settle_unordered();
            let Some((from, configuration)) = self.announced.pop_front() else { return };
            self.order(from, Body::Configuration(configuration), Vec::new());
        }
    }

    /// Lets everything happen that can while no router orders anything.
    fn settle_unordered(&mut self) {
        loop {
            let mut busy = false;
            for id in self.processes.keys().copied().collect::<Vec<_>>() {
                busy |= self.scan(id);
            }
            if let Some((from, to, wire)) = self.wires.pop_front() {
                busy = true;
                self.deliver(from, to, wire);
            }
            if !busy {
                return;
            }
        }
    }

    /// Lets these seconds pass for a process, and everything happen that can in each.
    fn wait(&mut self, id: ProcessId, seconds: std::ops::Range<u64>) {
        for second in seconds {
            self.handle(id, Event::Tick(second * 1_000));
            self.settle();
        }
    }

    /// Lets the shard of a process do what it has to do now; whether that was something.
    fn scan(&mut self, id: ProcessId) -> bool {
        let mut effects = Vec::new();
        let scan = &mut self.processes.get_mut(&id).expect("it runs").scan;
        while scan.step(&mut effects) == Progress::Busy {}
        let busy = !effects.is_empty();
        if busy {
            self.handle(id, Event::Shard { shard: 0, effects });
        }
        busy
    }

    fn deliver(&mut self, from: ProcessId, to: ProcessId, wire: Wire) {
        if [from, to].map(Some).contains(&self.cut) || !self.processes.contains_key(&to) {
            return;
        }
        let event = match wire {
            Wire::AskRows { part, attempt, chunks } => {
                Event::Moving(migration::Event::Asked { from, part, attempt, chunks })
            }
            Wire::Rows { part, attempt, chunk } => {
                Event::Moving(migration::Event::Chunk { from, part, attempt, chunk })
            }
            Wire::RowsFollow { part, attempt } => {
                Event::Moving(migration::Event::Follows { from, part, attempt })
            }
            Wire::RowsRefused { part, attempt, anew } => {
                Event::Moving(migration::Event::Refused { from, part, attempt, anew })
            }
            Wire::Votes { incarnation, votes } => Event::Votes { from, incarnation, votes },
            Wire::AskVotes(missing) => Event::AskVotes { from, missing },
            Wire::NoVotes { incarnation, missing } => Event::NoVotes { from, incarnation, missing },
            Wire::Durable { ts, hashes, reply } => Event::PeerDurable { from, ts, hashes, reply },
            other => panic!("{other:?}"),
        };
        self.handle(to, event);
    }

    fn table(&self) -> Arc<TableSchema> {
        self.mseq.catalog().table("t").expect("it was created").clone()
    }

    fn data(&self, kind: OperationKind, replica_offset: u32) -> Body {
        let fallible = self.fallible && matches!(kind, OperationKind::Insert(_));
        let operation = Arc::new(Operation { table: self.table().id, context: EvalContext::default(), kind });
        Body::Data(Data { replica_offset, fallible, ..Data::new(operation) })
    }

    fn insert(&mut self, keys: std::ops::Range<i64>) {
        let schema = self.table();
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
        let rows = RecordBatch::try_new(schema.arrow(), vec![array]).expect("the column fits");
        let positions = schema.partitioning.positions(&schema.columns, &rows);
        let ordinals = (0..positions.len() as u64).collect();
        let rows = InsertRows::Inline(RowBatch { rows, positions, ordinals });
        let insert = Insert { rows, on_conflict: OnConflict::Fail, returning: None };
        let body = self.data(OperationKind::Insert(insert), 0);
        self.order(CLIENT, body, vec![KeyRange::FULL]);
    }

    /// How many of the rows with these keys lie in a range.
    fn rows_in(&self, keys: std::ops::Range<i64>, range: KeyRange) -> u64 {
        let partitioning = self.table().partitioning.clone();
        let position = |key: i64| partitioning.position(&[Value::Int8(key)]);
        keys.filter(|key| range.contains(position(*key))).count() as u64
    }

    /// How many rows the processes that a read is sent to find.
    fn count(&mut self, replica_offset: u32) -> u64 {
        let output = ReadOutput::Rows { projection: Vec::new(), top: None };
        let body = self.data(OperationKind::Read(Read { predicate: Vec::new(), output }), replica_offset);
        self.order(CLIENT, body, vec![KeyRange::FULL]);
        self.settle();
        self.answers.values().map(|replicas| replicas[0]).sum()
    }

    /// Nothing is being copied any more, and every replica has so many rows.
    fn check_rows(&mut self, rows: u64) {
        assert!(self.mseq.config().migrations().is_empty(), "{}", self.trace);
        for offset in 0..6 {
            assert_eq!(self.count(offset), rows, "with replica offset {offset}");
        }
    }

    /// A replica with other contents than the others stops.
    fn compare_replicas(&mut self) {
        self.order(CLIENT, Body::Checkpoint, Vec::new());
        self.settle();
    }
}

#[test]
fn an_expansion_moves_rows_while_messages_go_on() {
    let mut world = World::with_rows(4, 3);
    assert_eq!(world.count(0), 300);
    world.join(5);
    world.settle();
    world.trace.clear();
    world.change(Change::Expand { process: ProcessId::storage(5), identifier: (1 << 62) + (1 << 61) });
    // Ordered behind the message before anything has moved.
    world.insert(300..400);
    world.settle();
    world.check_rows(400);
    world.compare_replicas();
    assert!(world.processes.values().all(|process| process.core.moving_bytes() == 0));
    insta::assert_snapshot!(world.trace);
}

#[test]
fn parts_of_many_tables_are_compared_a_few_tables_at_a_time() {
    let mut world = World::with_rows(2, 1);
    for number in 0..50 {
        let schema =
            TableSchema { name: format!("t{number}"), primary_key_name: format!("p{number}"), ..schema() };
        let create = Ddl::CreateTable { schema: Arc::new(schema), if_not_exists: false };
        world.order(CLIENT, Body::Ddl(create), Vec::new());
    }
    world.join(3);
    world.settle();
    let identifier = world.middle(1);
    world.change(Change::Expand { process: ProcessId::storage(3), identifier });
    world.settle();
    assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
    world.check_rows(300);
}

#[test]
fn who_sends_waits_for_local_times() {
    let mut world = World::with_rows(2, 1);
    world.join(3);
    world.settle();
    let receiver = ProcessId::storage(3);
    let identifier = world.middle(1);
    world.change(Change::Expand { process: receiver, identifier });
    for process in world.processes.values_mut() {
        process.core.use_up_times();
    }
    world.settle();
    assert!(world.processes[&receiver].core.is_receiving(), "{}", world.trace);
    world.order(CLIENT, Body::Pin { lease_ms: 0 }, Vec::new());
    world.settle();
    assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
    world.check_rows(300);
}

/// Links may be slow: what is on its way would be held up by a second one.
#[test]
fn rows_are_sent_again_only_when_they_may_have_been_lost() {
    let mut world = World::with_rows(2, 1);
    world.join(3);
    world.settle();
    let receiver = ProcessId::storage(3);
    world.cut = Some(receiver);
    let identifier = world.middle(1);
    world.change(Change::Expand { process: receiver, identifier });
    world.settle();
    let sender = world.mseq.config().migrations().values().flat_map(|migration| &migration.transfers);
    let sender = sender.map(|transfer| transfer.senders[0]).next().expect("rows move");
    let (part, _) = world.processes[&receiver].core.receiving().next().expect("they have not come");
    // What is sent when it asks.
    let asked = |world: &mut World, attempt, chunks| -> Vec<&str> {
        world.trace.clear();
        let asked = migration::Event::Asked { from: receiver, part, attempt, chunks };
        world.handle(sender, Event::Moving(asked));
        world.settle();
        let sent = |line: &str| match line {
            _ if line.contains("follow") => Some("follows"),
            _ if line.contains("refuses") => Some("refused"),
            _ if line.contains("last of") => Some("last"),
            _ => line.contains("chunk").then_some("chunk"),
        };
        let from_sender = format!("{sender} ->");
        world.trace.lines().filter(|line| line.starts_with(&from_sender)).filter_map(sent).collect()
    };
    let begun = 1 << 33;
    assert_eq!(world.processes[&sender].core.moving_bytes(), 0);
    let all = asked(&mut world, begun, 0..4);
    assert!(all.len() > 1 && all.last() == Some(&"last"), "{all:?}");
    assert!(world.processes[&sender].core.moving_bytes() > 0, "they may be asked for again");
    assert_eq!(asked(&mut world, begun, 0..4), ["follows"]);
    world.handle(sender, Event::SentRowsLost(ProcessId::storage(2)));
    assert_eq!(asked(&mut world, begun, 0..4), ["follows"]);
    world.handle(sender, Event::SentRowsLost(receiver));
    assert_eq!(asked(&mut world, begun, 1..5), [&["follows"], &all[1..]].concat());
    assert_eq!(asked(&mut world, begun, 0..4), [&["follows"], &all[..1]].concat());
    // An earlier question comes late, and what is asked anew is all that there is.
    assert!(asked(&mut world, begun - 1, 0..4).is_empty());
    assert_eq!(asked(&mut world, begun + 1, 0..4), all);
    assert_eq!(asked(&mut world, begun + 2, 2..6), ["refused"]);
}

/// Who has received begins with the checkpoint it had, comes to the keyspace message and has the rest on its own disk, though
/// nobody else need have it any more.
#[test]
fn who_has_received_goes_on_behind_the_keyspace_message() {
    for expands in [false, true] {
        let mut world = World::with_rows(4, 2);
        world.join(5);
        world.compare_replicas();
        let identifier = world.middle(2);
        let keyspace = world.change(match expands {
            true => Change::Expand { process: ProcessId::storage(5), identifier },
            false => Change::Rebalance { process: ProcessId::storage(2), identifier },
        });
        let receivers: BTreeSet<ProcessId> = {
            let migrations = world.mseq.config().migrations();
            let copies = migrations.values().flat_map(|migration| &migration.copies);
            let to = |copy: &Instruction| match copy {
                Instruction::Copy { to, .. } => Some(*to),
                _ => None,
            };
            copies.filter_map(to).collect()
        };
        world.insert(300..400);
        world.settle();
        assert!(!receivers.is_empty() && world.unfinished.is_empty());
        for receiver in receivers {
            assert!(world.checkpoints[&receiver].recovered.ts < keyspace, "{}", world.trace);
            assert!(world.received.contains_key(&(receiver, keyspace)), "{}", world.trace);
            world.trace.clear();
            world.restart(receiver);
            world.settle();
            assert!(!world.trace.contains("asks for chunks"), "{}", world.trace);
        }
        world.check_rows(400);
        world.compare_replicas();
    }
}

/// A life without data takes the place of one that has not been heard to have received anything, and executes again what
/// that one has.
#[test]
fn nobody_counts_on_what_has_been_received_before_that_is_ordered() {
    let mut world = World::with_rows(2, 2);
    world.fallible = true;
    let [other, receiver] = [1, 3].map(ProcessId::storage);
    world.join(3);
    world.settle();
    let identifier = world.middle(2);
    let keyspace = world.change(Change::Expand { process: receiver, identifier });
    world.insert(300..400);
    let write = world.mseq.ts();
    world.settle_unordered();
    world.order(CLIENT, Body::Checkpoint, Vec::new());
    world.settle_unordered();
    assert!(world.checkpoints[&receiver].recovered.ts > write, "{}", world.trace);
    let durable = |world: &World| world.processes[&receiver].core.watermarks(0).durable;
    let keeps_votes = |world: &World| world.processes[&other].core.keeps_votes(write);
    assert!(durable(&world) < keyspace && keeps_votes(&world), "{}", world.trace);

    // It loses its directory, and what it has announced.
    world.announced.clear();
    world.sequences.remove(&receiver);
    world.lives.insert(receiver, 2);
    world.received.clear();
    world.join(3);
    world.settle();
    world.check_rows(400);
    world.compare_replicas();
    assert!(durable(&world) > write && !keeps_votes(&world), "{}", world.trace);
}

/// What one keyspace message moves is durable, and announced, though what the next one moves does not come.
#[test]
fn what_has_been_received_does_not_wait_for_what_is_received_next() {
    let mut world = World::with_rows(4, 1);
    let receiver = ProcessId::storage(5);
    world.join(5);
    world.settle();
    world.trace.clear();
    let identifier = world.middle(2);
    let first = world.change(Change::Expand { process: receiver, identifier });
    // Everybody is asked for a checkpoint meanwhile, which the receiver makes up for.
    let missed = world.order(CLIENT, Body::Checkpoint, Vec::new());
    let received = format!("s5 announces Received {{ keyspace: Ts({first})");
    // The next one is there before the first is durable.
    let identifier = world.middle(3);
    let second = world.change(Change::Rebalance { process: ProcessId::storage(3), identifier });
    world.cut = Some(ProcessId::storage(3));
    world.settle();
    assert!(world.trace.contains(&received), "{}", world.trace);
    assert!(!world.trace.contains(&format!("Ts({second})")), "{}", world.trace);
    world.cut = None;
    world.wait(receiver, 1..20);
    assert!(
        world.trace.contains(&format!("s5 announces Received {{ keyspace: Ts({second})")),
        "{}",
        world.trace
    );
    assert!(world.unfinished.is_empty());
    assert!(world.checkpoints[&receiver].recovered.ts > missed, "{}", world.trace);
    world.check_rows(300);
    world.restart(receiver);
    world.settle();
    world.check_rows(300);
}

#[test]
fn a_sender_that_restarts_still_has_what_it_is_to_send_of_a_dropped_table() {
    let mut world = World::with_rows(2, 1);
    world.join(3);
    world.settle();
    let (sender, receiver) = (ProcessId::storage(1), ProcessId::storage(3));
    let sent = world.mseq.config().held(sender)[0];
    world.change(Change::Expand { process: receiver, identifier: sent.first / 2 + sent.last / 2 });
    let drop = Ddl::DropTables { names: vec!["t".into()], if_exists: false };
    world.order(CLIENT, Body::Ddl(drop), Vec::new());
    world.order(CLIENT, Body::Checkpoint, Vec::new());
    while world.scan(sender) {}
    world.restart(sender);
    world.trace.clear();
    world.settle();
    assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
    // The rows, and the end.
    assert!(
        world.trace.contains(" chunk 0 of ") && world.trace.contains(" chunk 1, the last"),
        "{}",
        world.trace
    );
}

/// What it holds has gone on since, and what the receiver is to have is what it was.
#[test]
fn who_holds_what_it_sends_still_sends_it_after_a_restart() {
    let mut world = World::with_rows(3, 2);
    world.join(4);
    world.settle();
    let senders = [1, 2, 3].map(ProcessId::storage);
    world.change(Change::Expand { process: ProcessId::storage(4), identifier: (1 << 62) + (1 << 61) });
    world.insert(300..400);
    world.order(CLIENT, Body::Checkpoint, Vec::new());
    for sender in senders {
        while world.scan(sender) {}
    }
    let is_held = |(to, part): &(ProcessId, migration::PartId)| {
        *to == ProcessId::storage(4) && world.mseq.config().holders(part.range).len() > 1
    };
    let checkpoints = senders.map(|sender| &world.checkpoints[&sender].recovered);
    assert!(checkpoints.iter().any(|recovered| recovered.served.iter().any(is_held)));
    senders.into_iter().for_each(|sender| world.restart(sender));
    world.settle();
    world.check_rows(400);
    world.compare_replicas();
}

/// By a change s4 is to receive from those who hold everything, but cannot be reached; another takes its place, and the config
/// forgets what it was to receive before it has it. Returns s4 and when it was replaced.
fn with_one_that_has_left(change: Change) -> (World, ProcessId, Ts) {
    let mut world = World::with_rows(3, 2);
    let [left, standby] = [4, 5].map(ProcessId::storage);
    (4..=5).for_each(|number| world.join(number));
    world.settle();
    world.cut = Some(left);
    world.change(change);
    let replaced = world.change(Change::Replace { process: left, by: standby });
    world.wait(standby, 1..100);
    assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
    (world, left, replaced)
}

/// Takes a part of the second of three ranges.
fn expansion(number: u32) -> Change {
    Change::Expand { process: ProcessId::storage(number), identifier: (1 << 62) + (1 << 61) }
}

#[test]
fn who_sends_to_one_that_has_left_ends_when_that_has_received() {
    let (mut world, left, replaced) = with_one_that_has_left(expansion(4));
    world.cut = None;
    world.wait(left, 100..200);
    for (id, process) in &world.processes {
        assert!(process.core.horizon() > local(replaced), "{id} keeps old versions: {}", world.trace);
    }
    world.check_rows(300);
}

#[test]
fn who_has_left_and_cannot_write_a_checkpoint_tries_less_and_less_often() {
    let mut world = World::with_rows(3, 2);
    let [process, by] = [3, 4].map(ProcessId::storage);
    world.join(4);
    world.settle();
    world.full = Some(process);
    world.change(Change::Replace { process, by });
    world.wait(by, 1..100);
    for tick in 1..3_000 {
        world.handle(process, Event::Tick(tick * 100));
        world.settle();
    }
    let tries = world.trace.matches("s3 cannot make a checkpoint\n").count();
    assert!((5..15).contains(&tries), "{tries}");
    world.full = None;
    let before = world.trace.len();
    world.wait(process, 300..400);
    assert_eq!(world.trace[before..].matches("s3 makes checkpoint").count(), 1, "{}", &world.trace[before..]);
}

#[test]
fn who_sends_to_a_standby_that_joins_once_more_ends() {
    let (mut world, left, replaced) = with_one_that_has_left(expansion(4));
    let serves = |world: &World| {
        let others = world.processes.iter().filter(|(id, _)| **id != left);
        others.filter(|(_, process)| process.core.horizon() <= local(replaced)).count()
    };
    assert!(serves(&world) > 0, "{}", world.trace);
    // It has been without the log for so long that it can only begin anew.
    let incarnation = world.mseq.config().incarnation(left).expect("it is a standby");
    let join = Membership::Join { process: left, incarnation, address: None };
    world.order(left, Body::Configuration(Configuration::Membership(join)), Vec::new());
    world.settle();
    assert_eq!(serves(&world), 0, "{}", world.trace);
    world.check_rows(300);
}

#[test]
fn who_sends_to_a_standby_that_is_removed_ends() {
    let (mut world, left, replaced) = with_one_that_has_left(expansion(4));
    let serves =
        |world: &World, id: &ProcessId| *id != left && world.processes[id].core.horizon() <= local(replaced);
    let senders: Vec<ProcessId> = world.processes.keys().filter(|id| serves(&world, id)).copied().collect();
    assert!(!senders.is_empty(), "{}", world.trace);
    world.processes.remove(&left);
    let part = Membership::Part { process: left };
    world.order(CLIENT, Body::Configuration(Configuration::Membership(part)), Vec::new());
    world.settle();
    for sender in &senders {
        assert!(!serves(&world, sender), "{sender} keeps old versions: {}", world.trace);
    }
    world.check_rows(300);
}

/// The log is not kept for that one any more.
#[test]
fn who_is_placed_again_while_it_sends_to_one_that_has_left_begins_with_a_checkpoint() {
    let [process, by] = [3, 4].map(ProcessId::storage);
    let (mut world, left, _) = with_one_that_has_left(Change::Replace { process, by });
    assert!(!world.processes[&process].core.is_blank(), "it would send: {}", world.trace);
    let placed = world.change(expansion(3));
    world.wait(process, 100..200);
    let begins = format!("{process} makes checkpoint ts={}\n", Ts(placed.0 - 1));
    assert!(world.trace.contains(&begins), "{}", world.trace);
    world.cut = None;
    world.wait(left, 200..300);
    world.check_rows(300);
}

/// Two of the three that stay receive what the fourth had.
#[test]
fn who_receives_goes_on_with_what_it_has() {
    let mut world = World::with_rows(4, 2);
    world.change(Change::Contract { process: ProcessId::storage(3) });
    let receivers = [2, 4].map(ProcessId::storage);
    for id in receivers {
        while world.scan(id) {}
        assert!(world.processes[&id].core.is_receiving(), "{}", world.trace);
    }
    // Nothing has moved, and no message travels.
    let whole: Vec<KeyRange> = world.mseq.config().overlapping(&[KeyRange::FULL]);
    world.insert(300..400);
    let everywhere = |world: &mut World| {
        for id in world.processes.keys().copied().collect::<Vec<_>>() {
            while world.scan(id) {}
        }
    };
    everywhere(&mut world);
    let answered: Vec<KeyRange> = world.answers.keys().copied().collect();
    assert_eq!(answered, whole, "somebody has each range and has answered for it");
    let answers: Vec<usize> = world.answers.values().map(Vec::len).collect();
    assert_eq!(answers, [2, 1, 1, 2], "who receives a part has not");
    let count = |world: &mut World, offset| {
        let output = ReadOutput::Rows { projection: Vec::new(), top: None };
        let body = world.data(OperationKind::Read(Read { predicate: Vec::new(), output }), offset);
        world.order(CLIENT, body, vec![KeyRange::FULL]);
        everywhere(world);
        world.answers.values().map(|replicas| replicas[0]).sum::<u64>()
    };
    for offset in 0..4 {
        assert_eq!(count(&mut world, offset), 400, "reads see what was written meanwhile");
    }
    world.settle();
    world.check_rows(400);
    world.compare_replicas();
}

/// What it held before, it has to receive no less than what it holds now.
#[test]
fn who_is_moved_and_loses_its_data_begins_with_nothing() {
    let mut world = World::with_rows(6, 2);
    let moved = ProcessId::storage(1);
    for number in [5, 3] {
        world.settle();
        let there = world.mseq.config().held(ProcessId::storage(number))[0];
        world.change(Change::Rebalance { process: moved, identifier: there.first / 2 + there.last / 2 });
    }
    assert!(world.mseq.config().has_received_nothing(moved), "{}", world.trace);
    let founded = world.first.held(moved);
    world.begin(moved, founded);
    world.settle();
    world.check_rows(300);
}

/// Nobody reads there any more, and its place, which it may get back, has other versions then.
#[test]
fn who_leaves_keeps_nothing_for_those_who_have_pinned_something() {
    let mut world = World::with_rows(3, 2);
    let [left, standby] = [2, 4].map(ProcessId::storage);
    world.join(4);
    world.settle();
    let pinned = world.order(CLIENT, Body::Pin { lease_ms: 1_000_000 }, Vec::new());
    world.settle();
    let horizon = |world: &World, process| super::core::global(world.processes[&process].core.horizon());
    assert!(horizon(&world, left) <= pinned);
    world.change(Change::Replace { process: left, by: standby });
    world.settle();
    assert!(horizon(&world, left) > pinned, "{}", world.trace);
    assert!(horizon(&world, ProcessId::storage(1)) <= pinned);
    world.check_rows(300);
}

/// A write that it has begun can still be decided, and nobody else may be left who answers for its range.
#[test]
fn who_has_left_and_comes_back_ends_what_it_had_begun() {
    let mut world = World::with_rows(3, 2);
    let [first, left, standby] = [1, 2, 4].map(ProcessId::storage);
    world.join(4);
    world.settle();
    (world.cut, world.fallible) = (Some(left), true);
    world.insert(300..400);
    let insert = world.log.last().expect("it was ordered").message.id;
    world.settle();
    assert!(world.done.contains(&(first, insert)), "the others have decided");
    world.change(Change::Replace { process: left, by: standby });
    world.wait(standby, 1..100);
    assert!(world.mseq.config().migrations().is_empty(), "another holder has sent: {}", world.trace);
    world.change(Change::Replace { process: first, by: left });
    world.settle();
    assert!(!world.done.contains(&(left, insert)), "it waits for a vote");
    world.cut = None;
    world.wait(left, 100..200);
    assert!(world.done.contains(&(left, insert)), "{}", world.trace);
    world.check_rows(400);
}

/// That it is still receiving a part is no reason to lose what nobody else has.
#[test]
fn who_alone_has_something_comes_back_with_it() {
    let mut world = World::with_rows(4, 2);
    let [failed, receiver, left] = [1, 2, 3].map(ProcessId::storage);
    (world.cut, world.fallible) = (Some(receiver), true);
    world.change(Change::Contract { process: left });
    world.insert(300..400);
    world.settle();
    assert!(world.processes[&receiver].core.is_receiving(), "{}", world.trace);
    world.lose(failed);
    world.lose(receiver);
    assert!(!world.mseq.config().is_suspected(receiver), "it alone has what it held with {failed}");
    world.cut = None;
    world.replay(receiver);
    world.settle();
    assert!(!world.processes[&receiver].core.is_receiving(), "{}", world.trace);
    world.check_rows(400);
}

/// Nobody sends to it any more, and what it has received so far is of no use.
#[test]
fn who_hears_while_it_receives_that_an_earlier_life_is_suspected_begins_anew() {
    let mut world = World::with_rows(4, 2);
    let [process, left] = [2, 3].map(ProcessId::storage);
    world.processes.remove(&process);
    world.change(Change::Contract { process: left });
    world.insert(300..400);
    world.replay(process);
    world.scan(process);
    assert!(world.processes[&process].core.is_receiving(), "{}", world.trace);
    let suspicion = Membership::Suspect { process, incarnation: 1 };
    world.order(CLIENT, Body::Configuration(Configuration::Membership(suspicion)), Vec::new());
    assert!(world.mseq.config().is_suspected(process));
    world.settle();
    assert!(world.mseq.config().standbys().any(|standby| standby == process), "{}", world.trace);
    assert!(
        !world.processes[&process].core.is_receiving() && !world.processes[&process].core.is_checkpointing()
    );
    world.go_on(process);
    world.change(Change::Replace { process, by: process });
    world.settle();
    world.check_rows(400);
    world.compare_replicas();
}

/// What it was to receive first it does not hold any more, and who sent it does not have it any more.
#[test]
fn who_loses_its_data_begins_with_what_it_still_is_to_receive() {
    let mut world = World::with_rows(4, 1);
    world.join(5);
    world.settle();
    let moved = ProcessId::storage(5);
    world.cut = Some(moved);
    let identifier = world.middle(1);
    let expanded = world.change(Change::Expand { process: moved, identifier });
    let identifier = world.middle(3);
    let rebalanced = world.change(Change::Rebalance { process: moved, identifier });
    assert_eq!(world.mseq.config().migrations().keys().next(), Some(&expanded));
    assert!(world.mseq.config().has_received_nothing(moved), "s1 gets back what it sends");
    assert_eq!(world.mseq.begins(moved).ts, Ts(expanded.0 - 1));
    // As if it had.
    let received = Configuration::Received { keyspace: rebalanced, process: ProcessId::storage(1) };
    world.order(CLIENT, Body::Configuration(received), Vec::new());
    assert!(world.mseq.config().has_received_nothing(moved));
    assert_eq!(world.mseq.begins(moved).ts, Ts(rebalanced.0 - 1));
}

/// It is a standby again, but what it was to receive it has to send back.
#[test]
fn who_has_left_and_loses_its_data_sends_on_what_it_receives_then() {
    // Or is without the log for so long, in the same life, that it can only begin anew.
    for later in [1, 0] {
        let mut world = World::with_rows(3, 1);
        world.join(4);
        world.settle();
        let moved = ProcessId::storage(4);
        world.cut = Some(moved);
        let expanded = world.change(Change::Expand { process: moved, identifier: world.middle(1) });
        world.insert(300..400);
        world.change(Change::Contract { process: moved });
        world.insert(400..500);
        world.settle();
        world.processes.remove(&moved);
        *world.lives.entry(moved).or_insert(1) += later;
        world.cut = None;
        world.join(4);
        assert_eq!(world.mseq.begins(moved).ts, Ts(expanded.0 - 1));
        world.wait(ProcessId::storage(1), 1..100);
        assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
        world.check_rows(500);
    }
}

#[test]
fn who_receives_rows_receives_the_votes_about_them() {
    let mut world = World::with_rows(2, 1);
    world.fallible = true;
    world.insert(300..400);
    let insert = world.log.last().expect("it was ordered").ts;
    world.settle();
    world.join(3);
    world.settle();
    let [left, receiver] = [2, 3].map(ProcessId::storage);
    world.change(Change::Replace { process: left, by: receiver });
    world.settle();
    assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
    // s1 may replay it when s2 is not there any more.
    let missing =
        MissingVotes { heard: Ts::ZERO, question: 1, votes: vec![(insert, world.first.held(left))] };
    let asked = Event::AskVotes { from: ProcessId::storage(1), missing };
    let effects = world.processes.get_mut(&receiver).expect("it runs").core.handle(asked);
    let held = world.first.held(left)[0];
    let knows = |effect: &Effect| matches!(effect, Effect::Send(_, Wire::Votes { votes, .. }) if votes.iter().any(|vote| vote.range == held));
    assert!(matches!(&effects[..], [effect] if knows(effect)), "{effects:?}");
}

/// Nobody else can send it. What is ordered meanwhile waits for it, and ends with it.
#[test]
fn who_waits_for_rows_that_are_given_up_begins_without_them() {
    for (fallible, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::with_rows(2, 1);
        let [gone, left, receiver] = [1, 2, 3].map(ProcessId::storage);
        world.join(3);
        world.settle();
        (world.cut, world.fallible) = (Some(receiver), fallible);
        let identifier = world.middle(1);
        world.change(Change::Expand { process: receiver, identifier });
        let moved = world.mseq.config().held(receiver);
        world.insert(300..400);
        world.count(0);
        world.settle();
        assert!(world.processes[&receiver].core.is_receiving(), "{}", world.trace);
        world.cut = None;
        world.failed = Some(BTreeSet::new());
        world.processes.remove(&gone);
        if restarts {
            world.processes.remove(&receiver);
        }
        let suspicion = Membership::Suspect { process: gone, incarnation: Incarnation::MAX };
        let ts = world.order(CLIENT, Body::Configuration(Configuration::Membership(suspicion)), Vec::new());
        if restarts {
            world.restart(receiver);
        }
        world.settle();
        for second in 1..10 {
            world.wait(left, second..second + 1);
            world.wait(receiver, second..second + 1);
        }
        let config = world.mseq.config().clone();
        let elsewhere = world.first.held(left)[0];
        let without_effect: Vec<KeyRange> = if fallible { vec![moved[0], elsewhere] } else { moved.clone() };
        assert!(world.failed.take().expect("something has failed").into_iter().eq(without_effect));
        assert!(config.migrations().is_empty() && !world.processes[&receiver].core.is_receiving());
        assert_eq!(
            config.held_since(receiver, identifier),
            Some(ts),
            "it does not say what was there before"
        );
        // What nobody holds any more is another matter.
        let change = Change::Contract { process: gone };
        let keyspace = config.plan_with_loss(change).expect("possible");
        assert_eq!(keyspace.losses().map(|(process, _)| process).collect::<Vec<_>>(), [left]);
        world.order(CLIENT, Body::Configuration(Configuration::Keyspace(keyspace)), Vec::new());
        world.settle();
        let rows = world.count(0);
        let expected = world.rows_in(0..if fallible { 300 } else { 400 }, elsewhere);
        world.check_rows(expected);
        assert_eq!(rows, expected, "a write that not all have executed has no effect anywhere");
        world.insert(400..500);
        world.settle();
        world.check_rows(expected + 100);
        world.compare_replicas();
        world.restart(receiver);
        world.settle();
        world.check_rows(expected + 100);
    }
}

/// It may have so much waiting that it takes nothing more until it has received.
#[test]
fn a_loss_is_known_from_the_present_config_before_its_message_comes() {
    let mut world = World::with_rows(2, 1);
    let [gone, left, receiver] = [1, 2, 3].map(ProcessId::storage);
    world.join(3);
    world.settle();
    world.cut = Some(receiver);
    let identifier = world.middle(1);
    world.change(Change::Expand { process: receiver, identifier });
    let moved = world.mseq.config().held(receiver);
    world.insert(300..400);
    world.settle();
    world.cut = None;
    world.failed = Some(BTreeSet::new());
    world.processes.remove(&gone);
    let process = world.processes.remove(&receiver).expect("it runs");
    let suspicion = Membership::Suspect { process: gone, incarnation: Incarnation::MAX };
    world.order(CLIENT, Body::Configuration(Configuration::Membership(suspicion)), Vec::new());
    world.processes.insert(receiver, process);
    assert!(world.processes[&receiver].core.is_receiving(), "{}", world.trace);
    for _ in 0..2 {
        let present = Event::Present(world.mseq.ts(), world.mseq.config().clone());
        world.handle(receiver, present);
        world.settle_unordered();
        assert!(!world.processes[&receiver].core.is_receiving(), "{}", world.trace);
    }
    assert!(world.failed.take().expect("something has failed").into_iter().eq(moved));
    let routed = world.log.last().expect("it was ordered");
    let (deliveries, frontier) = (delivery(routed, receiver).into_iter().collect(), routed.ts);
    world.handle(receiver, Event::Delivered { deliveries, frontier });
    world.settle();
    assert!(world.mseq.config().migrations().is_empty(), "{}", world.trace);
    let change = Change::Contract { process: gone };
    let keyspace = world.mseq.config().plan_with_loss(change).expect("possible");
    world.order(CLIENT, Body::Configuration(Configuration::Keyspace(keyspace)), Vec::new());
    world.settle();
    let rows = world.rows_in(0..400, world.first.held(left)[0]);
    world.check_rows(rows);
    world.insert(400..500);
    world.settle();
    world.check_rows(rows + 100);
    world.compare_replicas();
}
