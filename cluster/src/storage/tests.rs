//! Golden traces of votes, pins, staged rows and cancellations: what storage processes say and do, one line each.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array},
    record_batch::RecordBatch,
};
use bytes::Bytes;
use carousel_engine::{
    SqlError, SqlState, TableSchema, Ts,
    expr::EvalContext,
    operation::{
        Effect as ShardEffect, Insert, InsertRows, OnConflict, Operation, OperationKind, PayloadId, Read,
        ReadOutput, RowBatch, Update,
    },
    position::KeyRange,
    schema::{Column, Partitioning, TableId},
    statistics::TableStatistics,
    types::Type,
};

use super::{
    basic::BasicRead,
    checkpointer::CheckpointOutcome,
    core::{BETWEEN, ChunkWanted, Core, CoreOptions, Effect, Event, Recovered, global, local},
    node::{Input, Life, Node, Output},
    payloads::{PayloadCommand, PayloadEvent},
};
use crate::{
    catalog::Catalog,
    config::{Change, Config, Configuration, Membership},
    message::{Body, Data, Ddl, Incarnation, Message, MessageId, ProcessId, StagedPart, StagedPayload},
    router::{LEASE_MS, testing},
    wire::{AnswerPart, Choice, Delivery, MissingVotes, StageChunk, Vote, Wire},
};

/// A table of one column, its key.
pub(crate) fn schema() -> TableSchema {
    TableSchema {
        id: TableId(0),
        version: Ts::ZERO,
        name: "t".into(),
        columns: vec![Column { name: "k".into(), ty: Type::Int8, not_null: true, default: None }],
        primary_key: vec![0],
        primary_key_name: "t_pkey".into(),
        partitioning: Partitioning::Hash { columns: vec![0] },
    }
}

/// Storage processes whose shards do as the test says.
struct Scene {
    config: Arc<Config>,
    shards: usize,
    cores: BTreeMap<u32, Core>,
    /// Between storage processes, not yet arrived.
    wires: Vec<(ProcessId, ProcessId, Wire)>,
    trace: String,
}

impl Scene {
    fn new(processes: u32) -> Scene {
        Scene::of(processes, 1, 1)
    }

    fn of(processes: u32, replication_factor: u32, shards: usize) -> Scene {
        let config = Arc::new(Config::evenly(processes, replication_factor).expect("a ring"));
        let (cores, wires, trace) = (BTreeMap::new(), Vec::new(), String::new());
        let mut scene = Scene { config, shards, cores, wires, trace };
        for number in 1..=processes {
            scene.start(number, Recovered::default());
            scene.deliver(
                number,
                1,
                Body::Ddl(Ddl::CreateTable { schema: Arc::new(schema()), if_not_exists: false }),
            );
        }
        for number in 1..=processes {
            scene.handle(number, Event::Tick(1));
            scene.cores.get_mut(&number).expect("it runs").end_catching_up();
        }
        scene.trace.clear();
        scene
    }

    /// Two processes that have committed a write.
    fn behind_a_write() -> Scene {
        let mut scene = Scene::new(2);
        scene.arrive();
        for number in 1..=2 {
            scene.write(number, 2);
            scene.executed(number, 2, Ok(1));
        }
        scene.arrive();
        scene
    }

    fn start(&mut self, number: u32, recovered: Recovered) {
        let id = ProcessId::storage(number);
        let options = CoreOptions {
            id,
            incarnation: 1,
            address: None,
            config: self.config.clone(),
            shards: self.shards,
            running: 16,
            between: BETWEEN,
        };
        let core = Core::new(options, recovered);
        self.wires.extend(core.greetings().into_iter().map(|(to, wire)| (id, to, wire)));
        self.cores.insert(number, core);
    }

    fn range(&self, number: u32) -> KeyRange {
        self.config.held(ProcessId::storage(number))[0]
    }

    fn name(&self, range: KeyRange) -> String {
        let index =
            self.config.primary_ranges().position(|primary| primary == range).expect("a primary range");
        char::from(b'a' + index as u8).to_string()
    }

    /// Votes that somebody lacks, by write and range.
    fn missing(&self, missing: &MissingVotes) -> String {
        let ranges =
            |ranges: &[KeyRange]| -> Vec<String> { ranges.iter().map(|range| self.name(*range)).collect() };
        let writes =
            missing.votes.iter().map(|(ts, missing)| format!("ts={ts} {}", ranges(missing).join(" ")));
        writes.collect::<Vec<_>>().join(", ")
    }

    fn handle(&mut self, number: u32, event: Event) {
        let me = ProcessId::storage(number);
        let effects = self.cores.get_mut(&number).expect("it runs").handle(event);
        for effect in effects {
            let line = match effect {
                Effect::Submit { operation, .. } => {
                    let undecided = if operation.undecided { " undecided" } else { "" };
                    format!("{me} submits ts={}{undecided}", global(operation.ts))
                }
                Effect::Decide { ts, decision, .. } => {
                    format!("{me} decides ts={} {decision:?}", global(ts))
                }
                Effect::Send(to, wire) => {
                    let line = match &wire {
                        Wire::Votes { votes, .. } => {
                            let votes: Vec<String> = votes
                                .iter()
                                .map(|v| format!("ts={} {}={:?}", v.ts, self.name(v.range), v.vote))
                                .collect();
                            format!("{me} -> {to} votes {}", votes.join(", "))
                        }
                        Wire::AskVotes(missing) => {
                            format!("{me} -> {to} asks for votes {}", self.missing(missing))
                        }
                        Wire::NoVotes { missing, .. } => {
                            format!("{me} -> {to} has no votes {}", self.missing(missing))
                        }
                        Wire::Durable { ts, .. } => format!("{me} -> {to} durable ts={ts}"),
                        Wire::ReadsMissed => format!("{me} -> {to} reads missed"),
                        Wire::Gone { id, ranges } => {
                            let ranges: Vec<String> = ranges.iter().map(|range| self.name(*range)).collect();
                            format!("{me} -> {to} has lost {} of {}", ranges.join(", "), id.sequence)
                        }
                        Wire::HasPrecut { request } => format!("{me} -> {to} has cut for {request}"),
                        Wire::ReadsLost(reads) => format!("{me} -> {to} lost {}", reads.len()),
                        other => panic!("{other:?}"),
                    };
                    self.wires.push((me, to, wire));
                    line
                }
                Effect::Answer(to, answer) => {
                    let part = match answer.part {
                        AnswerPart::Done { outcomes, .. } => {
                            let outcomes: Vec<String> = outcomes
                                .into_iter()
                                .map(|(range, outcome)| match outcome {
                                    Ok(rows) => format!("{}={rows}", self.name(range)),
                                    Err(error) => format!("{}={}", self.name(range), error.code.as_str()),
                                })
                                .collect();
                            format!("done {}", outcomes.join(", "))
                        }
                        AnswerPart::Rows { range, batch } => {
                            format!("{} rows of {}", batch.num_rows(), self.name(range))
                        }
                        AnswerPart::Fetched { range, batch } => {
                            format!("{} of the rows of {}", batch.num_rows(), self.name(range))
                        }
                        AnswerPart::Kept(ranges) => {
                            let ranges: Vec<String> = ranges.iter().map(|range| self.name(*range)).collect();
                            format!("keeps {}", ranges.join(", "))
                        }
                        AnswerPart::Returned(range) => format!("that was {}", self.name(range)),
                        other => format!("{other:?}"),
                    };
                    format!("{me} -> {to} ts={} {part}", answer.ts)
                }
                Effect::Allow { ts, batches, .. } => format!("{me} allows ts={} {batches}", global(ts)),
                Effect::Cancel { ts, .. } => format!("{me} cancels ts={}", global(ts)),
                Effect::EndCheckpoint(checkpoint) => {
                    let Recovered { ts, ballots, .. } = *checkpoint;
                    format!("{me} completes checkpoint ts={ts} with {} ballots", ballots.len())
                }
                // Each life of a client, once.
                Effect::Outlived { .. } => continue,
                other => format!("{me} {other:?}"),
            };
            writeln!(self.trace, "{line}").expect("a string takes everything");
        }
    }

    fn deliver(&mut self, number: u32, ts: u64, body: Body) {
        self.deliver_naming(number, ts, Vec::new(), body);
    }

    /// Delivers a message that was planned against these tables.
    fn deliver_naming(&mut self, number: u32, ts: u64, tables: Vec<(TableId, Ts)>, body: Body) {
        let ranges = match &body {
            Body::Data(_) => vec![KeyRange::FULL],
            _ => Vec::new(),
        };
        self.deliver_to(number, ts, tables, ranges, body);
    }

    fn deliver_to(
        &mut self,
        number: u32,
        ts: u64,
        tables: Vec<(TableId, Ts)>,
        ranges: Vec<KeyRange>,
        body: Body,
    ) {
        let id = MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: ts };
        let message = Arc::new(Message { id, tables: tables.into(), ranges: ranges.into(), body });
        let ranges = vec![self.range(number)];
        let delivery =
            Delivery { ts: Ts(ts), message, ranges: ranges.into(), config_version: self.config.version() };
        self.handle(number, Event::Delivered { deliveries: vec![delivery], frontier: Ts(ts) });
    }

    /// A write that touches all ranges and can fail.
    fn write(&mut self, number: u32, ts: u64) {
        self.deliver(number, ts, fallible_update());
    }

    fn read(&mut self, number: u32, ts: u64, read_ts: Option<Ts>) {
        let output = ReadOutput::Rows { projection: Vec::new(), top: None };
        let kind = OperationKind::Read(Read { predicate: Vec::new(), output });
        let operation = Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind });
        let data = Data { read_ts, ..Data::new(operation) };
        self.deliver(number, ts, Body::Data(data));
    }

    /// An INSERT of staged rows into the first table that was created.
    fn staged_insert(&mut self, number: u32, ts: u64) {
        let id = PayloadId { process: 1, incarnation: 1, sequence: 1 };
        let holders = vec![ProcessId::storage(number)];
        let part = StagedPart { range: self.range(number), holders, checksums: vec![0] };
        let config_version = self.config.version();
        let staged = StagedPayload { id, config_version, latest: Ts(100), parts: vec![part] };
        self.deliver_naming(number, ts, vec![(TableId(1), Ts(1))], staged_insert(staged, true));
    }

    /// The only chunk of the payload of the INSERT at `ts` has been read: one row.
    fn loaded(&mut self, number: u32, ts: u64) {
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![7]));
        let rows = RecordBatch::try_new(schema().arrow(), vec![keys]).expect("the column fits");
        let rows = RowBatch { rows, positions: vec![self.range(number).first], ordinals: vec![0] };
        self.handle(number, Event::Loaded { ts: Ts(ts), chunk: 0, rows });
    }

    fn horizon(&self, number: u32) -> u64 {
        global(self.cores[&number].horizon()).0
    }

    /// The process's only shard has executed an operation.
    fn executed(&mut self, number: u32, ts: u64, outcome: Result<u64, SqlState>) {
        self.executed_by(0, number, ts, outcome);
    }

    fn executed_by(&mut self, shard: usize, number: u32, ts: u64, outcome: Result<u64, SqlState>) {
        let outcome = outcome.map_err(|code| SqlError::new(code, "it fails"));
        let outcomes = vec![(self.range(number), outcome)];
        let effects = vec![ShardEffect::Executed { ts: local(Ts(ts)), outcomes: outcomes.into() }];
        self.handle(number, Event::Shard { shard, effects });
    }

    /// A process has read the rows of the first table for a checkpoint, and written them.
    fn end_checkpoint(&mut self, number: u32, ts: u64) {
        let read = |count| Ts(local(Ts(ts)).0 + count);
        let executed = |ts| ShardEffect::Executed { ts, outcomes: Default::default() };
        let effects = vec![executed(read(1)), executed(read(2))];
        self.handle(number, Event::Shard { shard: 0, effects });
        self.handle(number, Event::CheckpointDone { ts: Ts(ts) });
    }

    /// All wires between storage processes arrive.
    fn arrive(&mut self) {
        while !self.wires.is_empty() {
            for (from, to, wire) in std::mem::take(&mut self.wires) {
                let event = match wire {
                    Wire::Votes { incarnation, votes } => Event::Votes { from, incarnation, votes },
                    Wire::AskVotes(missing) => Event::AskVotes { from, missing },
                    Wire::NoVotes { incarnation, missing } => Event::NoVotes { from, incarnation, missing },
                    Wire::Durable { ts, hashes, reply } => Event::PeerDurable { from, ts, hashes, reply },
                    other => panic!("{other:?}"),
                };
                if self.cores.contains_key(&to.number) {
                    self.handle(to.number, event);
                }
            }
        }
    }

    fn check(&mut self, expected: &str) {
        let expected: String = expected.trim().lines().map(|line| format!("{}\n", line.trim())).collect();
        assert_eq!(std::mem::take(&mut self.trace), expected);
    }
}

#[test]
fn a_write_commits_when_all_ranges_vote_for_it() {
    let mut scene = Scene::new(2);
    scene.arrive();
    scene.trace.clear();
    scene.write(1, 2);
    scene.write(2, 2);
    scene.executed(1, 2, Ok(3));
    scene.check(
        "s1 submits ts=2 undecided
         s2 submits ts=2 undecided
         s1 -> s2 votes ts=2 a=Commit",
    );
    // The vote arrives before the shards there are done.
    scene.arrive();
    scene.check("");
    scene.executed(2, 2, Ok(4));
    scene.check(
        "s2 -> s1 votes ts=2 b=Commit
         s2 decides ts=2 Commit
         s2 -> c1 ts=2 done b=4",
    );
    scene.arrive();
    scene.check(
        "s1 decides ts=2 Commit
         s1 -> c1 ts=2 done a=3",
    );
}

/// Others come to the same end by themselves, also with another number of shards.
#[test]
fn a_write_in_one_range_is_decided_by_all_shards_here() {
    let mut scene = Scene::of(2, 2, 2);
    scene.arrive();
    let range = scene.range(1);
    for (ts, second) in [(2, Ok(2)), (3, Err(SqlState::DIVISION_BY_ZERO))] {
        scene.trace.clear();
        scene.deliver_to(1, ts, Vec::new(), vec![range], fallible_update());
        scene.executed_by(1, 1, ts, second);
        scene.check(&format!("s1 submits ts={ts} undecided\ns1 submits ts={ts} undecided"));
        scene.executed_by(0, 1, ts, Ok(1));
        let (decision, outcome) = if ts == 2 { ("Commit", "3") } else { ("Abort", "22012") };
        let decides = format!("s1 decides ts={ts} {decision}");
        scene.check(&format!("{decides}\n{decides}\ns1 -> c1 ts={ts} done a={outcome}"));
        assert!(!scene.cores[&1].keeps_votes(Ts(ts)) && !scene.cores[&1].needs_votes(Ts(ts)));
    }
}

/// Others have executed it, and go on.
#[test]
fn a_write_that_fails_here_only_stops_the_process_before_it_votes() {
    let mut scene = Scene::new(3);
    scene.arrive();
    scene.trace.clear();
    scene.write(1, 2);
    scene.trace.clear();
    scene.executed(1, 2, Err(SqlState::INTERNAL));
    assert!(scene.trace.contains("failed here only"), "{}", scene.trace);
    assert_eq!(scene.trace.lines().count(), 1, "{}", scene.trace);
}

#[test]
fn a_read_that_fails_here_only_is_answered_so() {
    let mut scene = Scene::new(1);
    scene.read(1, 2, None);
    scene.trace.clear();
    scene.executed(1, 2, Err(SqlState::INTERNAL));
    scene.check("s1 -> c1 ts=2 done a=XX000");
}

#[test]
fn a_write_aborts_everywhere_when_one_range_fails() {
    let mut scene = Scene::new(3);
    scene.arrive();
    scene.trace.clear();
    for number in 1..=3 {
        scene.write(number, 2);
    }
    scene.trace.clear();
    scene.executed(1, 2, Ok(3));
    scene.executed(2, 2, Err(SqlState::DIVISION_BY_ZERO));
    scene.check(
        "s1 -> s2 votes ts=2 a=Commit
         s1 -> s3 votes ts=2 a=Commit
         s2 -> s1 votes ts=2 b=Abort
         s2 -> s3 votes ts=2 b=Abort
         s2 decides ts=2 Abort
         s2 -> c1 ts=2 done b=22012",
    );
    // s1 need not wait for s3.
    scene.arrive();
    scene.check(
        "s1 decides ts=2 Abort
         s1 -> c1 ts=2 done a=0",
    );
    scene.executed(3, 2, Ok(1));
    scene.check(
        "s3 -> s1 votes ts=2 c=Commit
         s3 -> s2 votes ts=2 c=Commit
         s3 decides ts=2 Abort
         s3 -> c1 ts=2 done c=0",
    );
    scene.arrive();
    scene.check("");
}

#[test]
fn a_restarted_replica_asks_for_votes_and_never_for_a_new_computation() {
    let mut scene = Scene::behind_a_write();
    // s2 is durable past the write, s1 is not, so s2 keeps its votes, also in the checkpoint.
    scene.deliver(2, 3, Body::Checkpoint);
    scene.trace.clear();
    scene.end_checkpoint(2, 3);
    scene.check(
        "s2 completes checkpoint ts=3 with 1 ballots
         s2 -> s1 durable ts=3",
    );
    // s1 loses everything and replays; what it says to s2 while s2 is away is lost.
    scene.start(1, Recovered::default());
    scene.wires.clear();
    scene.deliver(1, 1, Body::Ddl(Ddl::CreateTable { schema: Arc::new(schema()), if_not_exists: false }));
    scene.write(1, 2);
    scene.executed(1, 2, Ok(1));
    scene.wires.clear();
    scene.check(
        "s1 submits ts=1
         s1 submits ts=2 undecided
         s1 -> s2 asks for votes ts=2 b
         s1 -> s2 votes ts=2 a=Commit",
    );
    // It asks again, until it is answered.
    scene.handle(1, Event::Tick(1000));
    scene.arrive();
    scene.check(
        "s1 -> s2 asks for votes ts=2 b
         s2 -> s1 votes ts=2 b=Commit
         s1 decides ts=2 Commit
         s1 -> c1 ts=2 done a=1",
    );
}

#[test]
fn votes_are_asked_for_at_once_while_routers_learn_again_what_was_ordered() {
    let mut scene = Scene::behind_a_write();
    scene.start(1, Recovered::default());
    scene.wires.clear();
    scene.deliver(1, 1, Body::Ddl(Ddl::CreateTable { schema: Arc::new(schema()), if_not_exists: false }));
    // All that the routers know of has been executed: they have restarted, too.
    scene.handle(1, Event::Tick(100));
    scene.trace.clear();
    scene.write(1, 2);
    scene.check(
        "s1 submits ts=2 undecided
         s1 -> s2 asks for votes ts=2 b",
    );
    scene.arrive();
    scene.executed(1, 2, Ok(1));
    scene.arrive();
    // Others that have run all the while vote by themselves.
    scene.handle(1, Event::Tick(4000));
    scene.handle(1, Event::Tick(8000));
    scene.trace.clear();
    scene.write(1, 3);
    scene.check("s1 submits ts=3 undecided");
}

#[test]
fn votes_are_kept_until_every_holder_is_durable_past_the_write() {
    let mut scene = Scene::behind_a_write();
    scene.deliver(2, 3, Body::Checkpoint);
    scene.end_checkpoint(2, 3);
    let missing = MissingVotes { heard: Ts::ZERO, question: 1, votes: vec![(Ts(2), vec![scene.range(2)])] };
    let ask = || Event::AskVotes { from: ProcessId::storage(1), missing: missing.clone() };
    scene.trace.clear();
    scene.handle(2, ask());
    scene.check("s2 -> s1 votes ts=2 b=Commit");
    let hashes = Vec::new();
    scene.handle(2, Event::PeerDurable { from: ProcessId::storage(1), ts: Ts(2), hashes, reply: false });
    scene.handle(2, ask());
    scene.check("");
}

/// Who has left the ring makes no more checkpoints, and what the others say may be lost.
#[test]
fn those_whom_votes_are_kept_for_are_asked_how_far_they_are_durable() {
    let mut scene = Scene::behind_a_write();
    scene.deliver(2, 3, Body::Checkpoint);
    scene.end_checkpoint(2, 3);
    scene.wires.clear();
    scene.trace.clear();
    scene.handle(2, Event::Tick(4_000));
    scene.check("");
    scene.handle(2, Event::Tick(6_000));
    scene.check("s2 -> s1 durable ts=3");
    assert!(matches!(scene.wires[..], [(_, _, Wire::Durable { reply: true, .. })]));
    let (from, ts, hashes) = (ProcessId::storage(1), Ts(3), Vec::new());
    scene.handle(2, Event::PeerDurable { from, ts, hashes, reply: false });
    scene.handle(2, Event::Tick(12_000));
    scene.check("");
}

#[test]
fn replicas_that_differ_at_a_checkpoint_stop() {
    let config = Arc::new(Config::evenly(2, 2).expect("a ring"));
    let range = config.held(ProcessId::storage(1))[0];
    let options = CoreOptions {
        id: ProcessId::storage(1),
        incarnation: 1,
        address: None,
        config,
        shards: 1,
        running: 16,
        between: BETWEEN,
    };
    let hashes = |hash: u128| vec![(TableId(1), range, hash)];
    let recovered = Recovered { ts: Ts(9), hashes: hashes(7), ..Recovered::default() };
    let mut core = Core::new(options, recovered);
    let peer = |ts, hash| Event::PeerDurable {
        from: ProcessId::storage(2),
        ts: Ts(ts),
        hashes: hashes(hash),
        reply: false,
    };
    assert!(core.handle(peer(8, 1)).is_empty(), "another checkpoint");
    assert!(core.handle(peer(9, 7)).is_empty(), "the same rows");
    assert!(matches!(core.handle(peer(9, 8))[..], [Effect::Stop(_)]), "other rows");
}

#[test]
fn rows_are_not_compared_with_those_of_a_process_that_has_been_given_up() {
    let s1 = ProcessId::storage(1);
    // s2 is about to end a checkpoint, at which s1 has had other rows; `body` is what it hears before it does.
    let stops_behind = |body: Option<Body>| {
        let mut scene = Scene::new(2);
        scene.arrive();
        scene.deliver(2, 2, Body::Checkpoint);
        let (ts, range) = (Ts(local(Ts(2)).0 + 1), scene.range(2));
        let effects = vec![
            ShardEffect::ContentHash { ts, range, hash: 1 },
            ShardEffect::Executed { ts, outcomes: Default::default() },
        ];
        scene.handle(2, Event::Shard { shard: 0, effects });
        let hashes = vec![(TableId(1), range, 2)];
        scene.handle(2, Event::PeerDurable { from: s1, ts: Ts(2), hashes, reply: false });
        if let Some(body) = body {
            scene.deliver(2, 3, body);
        }
        scene.trace.clear();
        scene.handle(2, Event::CheckpointDone { ts: Ts(2) });
        scene.trace.contains("differs from the replica")
    };
    assert!(stops_behind(None), "both are alive");
    // Whoever is left may have aborted what s1 had committed, as votes are lost with it.
    assert!(!stops_behind(Some(give_up(s1))));
}

fn suspect(process: ProcessId) -> Body {
    Body::Configuration(Configuration::Membership(Membership::Suspect { process, incarnation: 9 }))
}

/// With what it alone has.
fn give_up(process: ProcessId) -> Body {
    let incarnation = Incarnation::MAX;
    Body::Configuration(Configuration::Membership(Membership::Suspect { process, incarnation }))
}

#[test]
fn a_write_has_no_effect_anywhere_when_a_range_has_no_live_holder() {
    let mut scene = Scene::new(3);
    scene.arrive();
    scene.trace.clear();
    for number in [1, 2] {
        scene.deliver(number, 2, give_up(ProcessId::storage(3)));
        scene.write(number, 3);
    }
    scene.check(
        "s1 -> c1 ts=3 done a=57P03
         s2 -> c1 ts=3 done b=57P03",
    );
}

/// Three processes, of which the first two have executed a write; the third has, too, but who else has its vote has to be
/// said.
fn two_of_three() -> Scene {
    let mut scene = Scene::new(3);
    scene.arrive();
    for number in [1, 2] {
        scene.write(number, 2);
        scene.executed(number, 2, Ok(1));
    }
    scene.arrive();
    scene.cores.remove(&3);
    scene
}

/// The third process has the only copy of its range, so it has not been suspected, but is given up. Somebody else joins.
fn loss_of_the_third() -> [(u64, Body); 2] {
    let join = Membership::Join { process: ProcessId::storage(4), incarnation: 10, address: None };
    [(4, give_up(ProcessId::storage(3))), (5, Body::Configuration(Configuration::Membership(join)))]
}

fn lose_the_third(scene: &mut Scene) {
    for number in [1, 2] {
        loss_of_the_third().into_iter().for_each(|(ts, body)| scene.deliver(number, ts, body));
    }
}

fn vote_of_the_third(scene: &Scene) -> Event {
    let vote = Vote { ts: Ts(2), range: scene.range(3), vote: Choice::Commit };
    Event::Votes { from: ProcessId::storage(3), incarnation: 1, votes: vec![vote] }
}

#[test]
fn a_write_is_aborted_when_a_vote_is_lost_with_all_who_knew_it() {
    let mut scene = two_of_three();
    for number in [1, 2] {
        scene.deliver(number, 3, suspect(ProcessId::storage(3)));
    }
    scene.trace.clear();
    scene.handle(1, Event::Tick(1));
    scene.check(
        "s1 -> s2 asks for votes ts=2 c
         s1 -> s3 asks for votes ts=2 c",
    );
    scene.arrive();
    assert!(!scene.trace.contains("decides"), "s3 has not lost its data: {}", scene.trace);
    lose_the_third(&mut scene);
    scene.wires.clear();
    let range = scene.range(3);
    // Who has joined knows nothing.
    let nothing = |incarnation| {
        let votes = vec![(Ts(2), vec![range])];
        let missing = MissingVotes { heard: Ts(5), question: u64::MAX, votes };
        Event::NoVotes { from: ProcessId::storage(4), incarnation, missing }
    };
    // In the second round it is in another life: the first one may have told somebody meanwhile.
    let everybody = "s1 -> s2 asks for votes ts=2 c
         s1 -> s4 asks for votes ts=2 c
         s2 -> s1 has no votes ts=2 c";
    scene.trace.clear();
    scene.handle(1, Event::Tick(2));
    scene.arrive();
    scene.check(&format!(
        "s1 -> s2 asks for votes ts=2 c
         s1 -> s2 asks for votes ts=2 c
         s2 -> s1 has no votes ts=2 c
         s2 -> s1 has no votes ts=2 c
         {everybody}"
    ));
    for incarnation in [10, 11] {
        scene.trace.clear();
        scene.handle(1, nothing(incarnation));
        scene.arrive();
        scene.check(&format!(
            "s1 -> s2 asks for votes ts=2 c
             s2 -> s1 has no votes ts=2 c
             {everybody}"
        ));
    }
    scene.trace.clear();
    scene.handle(1, nothing(11));
    scene.arrive();
    scene.check(&format!(
        "s1 VoteLost {{ ts: Ts(2), range: {range:?} }}
         s1 -> s2 votes ts=2 c=Lost
         s1 -> s4 votes ts=2 c=Lost
         s1 decides ts=2 Abort
         s1 -> c1 ts=2 done a=08007
         s2 decides ts=2 Abort
         s2 -> c1 ts=2 done b=08007",
    ));
    let late = vote_of_the_third(&scene);
    scene.trace.clear();
    scene.handle(2, late);
    scene.check("");
}

#[test]
fn a_vote_that_one_of_those_who_are_left_has_heard_is_not_lost() {
    let mut scene = two_of_three();
    let vote = vote_of_the_third(&scene);
    scene.handle(2, vote);
    lose_the_third(&mut scene);
    // What comes so late s1 does not believe: s2 might have said already that it knows nothing.
    let late = vote_of_the_third(&scene);
    scene.trace.clear();
    scene.handle(1, late);
    scene.check("");
    scene.handle(1, Event::Tick(1));
    scene.arrive();
    scene.check(
        "s1 -> s2 asks for votes ts=2 c
         s2 -> s1 votes ts=2 c=Commit
         s1 decides ts=2 Commit
         s1 -> c1 ts=2 done a=1",
    );
}

#[test]
fn who_has_not_heard_of_a_failure_does_not_say_that_a_vote_is_nowhere() {
    let mut scene = two_of_three();
    let range = scene.range(3);
    let ask = |heard| Event::AskVotes {
        from: ProcessId::storage(1),
        missing: MissingVotes { heard: Ts(heard), question: 1, votes: vec![(Ts(2), vec![range])] },
    };
    scene.trace.clear();
    scene.handle(2, ask(4));
    scene.check("");
    scene.handle(2, ask(0));
    scene.check("s2 -> s1 has no votes ts=2 c");
    // Nor who has not had the write.
    scene.trace.clear();
    let missing = MissingVotes { heard: Ts::ZERO, question: 1, votes: vec![(Ts(9), vec![range])] };
    scene.handle(2, Event::AskVotes { from: ProcessId::storage(1), missing });
    scene.check("");
}

/// While too much waits for rows on their way, nothing is delivered; and the rows may wait for that very vote.
#[test]
fn who_takes_no_deliveries_knows_by_its_next_subscription_that_a_vote_is_nowhere() {
    let mut scene = two_of_three();
    let range = scene.range(3);
    let missing = MissingVotes { heard: Ts(5), question: 1, votes: vec![(Ts(2), vec![range])] };
    let ask = || Event::AskVotes { from: ProcessId::storage(1), missing: missing.clone() };
    let mut config = scene.config.as_ref().clone();
    for (ts, body) in loss_of_the_third() {
        let id = MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: ts };
        let message = Message { id, tables: Vec::new().into(), ranges: Vec::new().into(), body };
        config = config.apply(&message, Ts(ts)).expect("it is possible").expect("it changes something");
    }
    scene.trace.clear();
    scene.handle(2, ask());
    scene.check("");
    let config = Arc::new(config);
    let present = || Event::Present(Ts(5), config.clone());
    scene.handle(2, present());
    scene.handle(2, ask());
    scene.check("s2 -> s1 has no votes ts=2 c");
    // So it takes none any more of whom nobody waits for, and the same is so when the messages come.
    let late = vote_of_the_third(&scene);
    scene.trace.clear();
    scene.handle(2, late);
    loss_of_the_third().into_iter().for_each(|(ts, body)| scene.deliver(2, ts, body));
    assert!(!scene.trace.contains("decides"), "{}", scene.trace);
    scene.trace.clear();
    scene.handle(2, ask());
    scene.check("s2 -> s1 has no votes ts=2 c");
    // Who asks need not have taken more.
    scene.handle(1, present());
    let nothing = || {
        let missing = MissingVotes { heard: Ts(5), question: u64::MAX, votes: vec![(Ts(2), vec![range])] };
        Event::NoVotes { from: ProcessId::storage(4), incarnation: 10, missing }
    };
    scene.trace.clear();
    for now_ms in 1..=4 {
        scene.handle(1, Event::Tick(now_ms));
        scene.arrive();
        scene.handle(1, nothing());
        scene.arrive();
    }
    assert!(scene.trace.contains("s1 decides ts=2 Abort"), "{}", scene.trace);
    assert!(scene.trace.contains("s2 decides ts=2 Abort"), "{}", scene.trace);
}

#[test]
fn votes_are_not_kept_for_who_will_not_replay_them() {
    let mut scene = Scene::new(2);
    scene.arrive();
    scene.write(1, 2);
    scene.write(2, 2);
    scene.executed(1, 2, Ok(3));
    scene.executed(2, 2, Ok(4));
    scene.arrive();
    scene.deliver(1, 3, Body::Checkpoint);
    scene.trace.clear();
    let missing = MissingVotes { heard: Ts(5), question: 1, votes: vec![(Ts(2), vec![scene.range(1)])] };
    let ask = || Event::AskVotes { from: ProcessId::storage(2), missing: missing.clone() };
    let read = |scene: &mut Scene, time: u64| {
        let effects = vec![ShardEffect::Executed { ts: Ts(time), outcomes: Default::default() }];
        scene.handle(1, Event::Shard { shard: 0, effects });
    };
    // The checkpoint's two reads of the table.
    let first = (local(Ts(3)).0..).take(64);
    for time in first {
        if scene.cores[&1].is_checkpointing() {
            read(&mut scene, time);
        }
    }
    scene.handle(1, Event::CheckpointDone { ts: Ts(3) });
    scene.trace.clear();
    scene.handle(1, ask());
    scene.check("s1 -> s2 votes ts=2 a=Commit");
    scene.deliver(1, 4, suspect(ProcessId::storage(2)));
    scene.handle(1, ask());
    // It has the only copy of its range, so nobody gives it up.
    scene.check("s1 -> s2 votes ts=2 a=Commit");
    scene.deliver(1, 5, give_up(ProcessId::storage(2)));
    scene.trace.clear();
    scene.handle(1, ask());
    scene.check("");
}

/// A process that knows two routers, and has followed the m-seq up to 9.
fn node() -> Node {
    node_of(ProcessId::storage(1), Config::evenly(1, 1).expect("a ring"))
}

fn node_of(id: ProcessId, config: Config) -> Node {
    let (config, routers) = (Arc::new(config), vec![ProcessId::router(1), ProcessId::router(2)]);
    let options =
        CoreOptions { id, incarnation: 1, address: None, config, shards: 1, running: 16, between: BETWEEN };
    let core = Core::new(options, Recovered { ts: Ts(9), ..Recovered::default() });
    let mut node = Node::new(Life { id, incarnation: 1, directory: 1 }, None, 1, routers, core, false);
    node.begin();
    node
}

#[test]
fn who_listens_elsewhere_than_an_earlier_life_says_so() {
    let (id, router) = (ProcessId::storage(2), ProcessId::router(1));
    let address = Some("old:7201".to_owned());
    let join = Configuration::Membership(Membership::Join { process: id, incarnation: 1, address });
    let joined = Config::evenly(1, 1).expect("a ring").apply(&testing::configuration(id, 1, 1, join), Ts(1));
    let joined = Arc::new(joined.expect("possible").expect("it changes the config"));
    for address in ["old:7201", "new:7201"] {
        let options = CoreOptions {
            id,
            incarnation: 2,
            address: Some(address.to_owned()),
            config: joined.clone(),
            shards: 1,
            running: 16,
            between: BETWEEN,
        };
        let core = Core::new(options, Recovered { ts: Ts(9), ..Recovered::default() });
        let mut node =
            Node::new(Life { id, incarnation: 2, directory: 1 }, None, 1, vec![router], core, false);
        node.begin();
        let state = Wire::State {
            incarnation: 2,
            ts: Ts(9),
            config: joined.clone(),
            clients: Arc::default(),
            catalog: None,
            present: Some((Ts(10), joined.clone())),
            leadership: 1,
        };
        let mut outputs = node.handle(Input::Received { from: router, wire: state }, 0);
        outputs.extend(node.handle(Input::Tick(10), 0));
        let mut sent = outputs.iter().filter_map(|output| match output {
            Output::Send(_, Wire::Route(messages)) => Some(messages),
            _ => None,
        });
        let moved = sent.by_ref().flatten().find_map(|message| joined.apply(message, Ts(11)).ok().flatten());
        let listens = moved.as_ref().map(|config| config.addresses()[&id].as_str());
        assert_eq!(listens, Some(address).filter(|address| *address == "new:7201"));
    }
}

#[test]
fn reads_that_a_router_sent_before_this_process_left_it_may_be_lost() {
    let mut node = node();
    let client = ProcessId::client(1);
    node.handle(Input::Received { from: client, wire: Wire::Hello }, 0);
    node.handle(Input::Unreachable(ProcessId::router(1)), 0);
    let outputs = node.handle(Input::Received { from: ProcessId::router(1), wire: Wire::Lost }, 0);
    assert!(matches!(outputs[..], [Output::Send(to, Wire::ReadsMissed)] if to == client), "{outputs:?}");
    // So may those of a client that this process did not know then.
    let other = ProcessId::client(2);
    let outputs = node.handle(Input::Received { from: other, wire: Wire::Hello }, 0);
    assert!(matches!(outputs[..], [Output::Send(to, Wire::ReadsMissed), ..] if to == other), "{outputs:?}");
    let outputs = node.handle(Input::Received { from: other, wire: Wire::Hello }, 0);
    assert!(
        !outputs.iter().any(|output| matches!(output, Output::Send(_, Wire::ReadsMissed))),
        "{outputs:?}"
    );
}

#[test]
fn a_client_is_told_of_the_tables_before_it_knows_that_it_may_write_and_again_when_that_may_be_lost() {
    let mut node = node();
    let rows = TableStatistics { table: TableId(1), rows: 9, versions: 9, bytes: 900, distinct: vec![9] };
    node.count(vec![rows]);
    let client = ProcessId::client(1);
    let mut says = |wire| -> Vec<bool> {
        let outputs = node.handle(Input::Received { from: client, wire }, 0);
        let of_tables = |output: &Output| match output {
            Output::Send(to, Wire::Statistics(_)) if *to == client => Some(true),
            Output::Send(to, Wire::Memory { .. }) if *to == client => Some(false),
            _ => None,
        };
        outputs.iter().filter_map(of_tables).collect()
    };
    assert_eq!(says(Wire::Hello), [true, false]);
    assert_eq!(says(Wire::Hello), [false]);
    says(Wire::Lost);
    assert_eq!(says(Wire::Hello), [true, false]);
}

#[test]
fn a_process_says_when_it_has_not_executed_what_it_received_a_while_ago() {
    let (router, client) = (ProcessId::router(1), ProcessId::client(1));
    let mut node = node();
    let tick = |node: &mut Node, now_ms: u64| -> Option<bool> {
        let lags = |output: &Output| match output {
            Output::Send(to, Wire::Memory { lags, .. }) if *to == client => Some(*lags),
            _ => None,
        };
        node.clock(now_ms);
        node.handle(Input::Tick(now_ms), 0).iter().find_map(lags)
    };
    let outputs = node.handle(Input::Received { from: client, wire: Wire::Hello }, 0);
    let says_so = |output: &Output| matches!(output, Output::Send(_, Wire::Memory { lags: true, .. }));
    assert!(outputs.iter().any(says_so), "it does not know where the m-seq ends: {outputs:?}");
    let config = node.config().clone();
    // The m-seq ends further on.
    let present = Some((Ts(10), config.clone()));
    let (incarnation, clients, catalog, leadership) = (1, Arc::default(), None, 1);
    let state = Wire::State { incarnation, ts: Ts(9), config, clients, catalog, present, leadership };
    node.handle(Input::Received { from: router, wire: state }, 0);
    assert_eq!(tick(&mut node, 0), None, "a restarted process is still behind");
    let deliver = |node: &mut Node, after: u64| {
        let wire =
            Wire::Deliver { incarnation, after: Ts(after), deliveries: vec![], frontier: Ts(after + 1) };
        node.handle(Input::Received { from: router, wire }, 0);
    };
    deliver(&mut node, 9);
    assert_eq!(tick(&mut node, 100), Some(false));
    deliver(&mut node, 10);
    assert_eq!(tick(&mut node, 900), None);
    let message = Arc::new(testing::truncate_table(client, 1, 2));
    let delivery = Delivery { ts: Ts(12), message, ranges: [KeyRange::FULL].into(), config_version: 0 };
    let wire = Wire::Deliver { incarnation, after: Ts(11), deliveries: vec![delivery], frontier: Ts(12) };
    node.handle(Input::Received { from: router, wire }, 0);
    assert_eq!(tick(&mut node, 1_000), None);
    deliver(&mut node, 12);
    assert_eq!(tick(&mut node, 1_900), None);
    assert_eq!(tick(&mut node, 2_000), Some(true));
}

/// Who has the votes that it waits for may have been given up, which is said behind all that waits.
#[test]
fn a_process_that_is_full_for_long_takes_what_fits_into_memory() {
    let router = ProcessId::router(1);
    let mut node = node();
    let config = node.config().clone();
    let (incarnation, clients, catalog, leadership) = (1, Arc::default(), None, 1);
    let present = Some((Ts(9), config.clone()));
    let state = Wire::State { incarnation, ts: Ts(9), config, clients, catalog, present, leadership };
    node.handle(Input::Received { from: router, wire: state }, 0);
    let deliver = |node: &mut Node, count: u64| {
        let after = node.frontier();
        let delivery = |sequence: u64| {
            let ts = Ts(after.0 + sequence);
            let message = Arc::new(testing::truncate_table(ProcessId::client(1), 1, ts.0));
            Delivery { ts, message, ranges: [KeyRange::FULL].into(), config_version: 0 }
        };
        let (deliveries, frontier) = ((1..=count).map(delivery).collect(), Ts(after.0 + count));
        let wire = Wire::Deliver { incarnation, after, deliveries, frontier };
        node.handle(Input::Received { from: router, wire }, 0);
        assert!(node.stopped().is_none());
        node.frontier().0 - after.0
    };
    node.handle(Input::Tick(100), 0);
    assert_eq!(deliver(&mut node, 5_000), 5_000);
    assert!(node.is_full(), "nothing that runs comes to an end");
    node.handle(Input::Tick(200), 0);
    assert!(node.is_full());
    node.handle(Input::Tick(5_199), 0);
    assert!(node.is_full());
    node.handle(Input::Tick(5_200), 0);
    assert!(!node.is_full());
    assert_eq!(deliver(&mut node, 70_000), 70_000);
    assert!(!node.is_full());
    assert_eq!(deliver(&mut node, 1), 0, "there is a limit");
}

#[test]
fn who_has_been_removed_stops() {
    let mut node = node_of(ProcessId::storage(2), Config::evenly(2, 2).expect("a ring"));
    let router = ProcessId::router(1);
    let refused = || {
        let wire = Wire::SubscribeRefused { incarnation: 1, purged: Ts(11), removed: false };
        Input::Received { from: router, wire }
    };
    let (incarnation, clients, catalog, leadership) = (1, Arc::default(), None, 1);
    let config = Config::evenly(1, 1).expect("a ring").into();
    let state = Wire::State { incarnation, ts: Ts(9), config, clients, catalog, present: None, leadership };
    node.handle(Input::Received { from: router, wire: state }, 0);
    node.handle(refused(), 0);
    assert!(node.stopped().is_some_and(|reason| reason.contains("removed")), "{:?}", node.stopped());
    assert!(!node.is_outdated(), "it does not join again by itself");
}

#[test]
fn who_is_asked_for_answers_tells_which_will_not_come() {
    let mut node = node();
    let (client, router) = (ProcessId::client(1), ProcessId::router(1));
    let message = Arc::new(testing::truncate_table(client, 1, 2));
    let here = message.id;
    let elsewhere = MessageId { sequence: 1, ..here };
    let ask = |node: &mut Node| {
        let wire = Wire::AskAnswers(vec![(elsewhere, Ts(10)), (here, Ts(10))]);
        node.handle(Input::Received { from: client, wire }, 0)
    };
    let hear = |node: &mut Node, wire| node.handle(Input::Received { from: router, wire }, 0);
    assert!(ask(&mut node).is_empty(), "it has not heard of everything before");
    let config = Arc::new(Config::evenly(1, 1).expect("a ring"));
    let present = Some((Ts(9), config.clone()));
    let clients = Arc::default();
    hear(
        &mut node,
        Wire::State { incarnation: 1, ts: Ts(9), config, clients, catalog: None, present, leadership: 1 },
    );
    let delivery = Delivery { ts: Ts(10), message, ranges: [KeyRange::FULL].into(), config_version: 1 };
    let (after, deliveries, frontier) = (Ts(9), vec![delivery], Ts(10));
    hear(&mut node, Wire::Deliver { incarnation: 1, after, deliveries, frontier });
    let outputs = ask(&mut node);
    assert!(
        matches!(&outputs[..], [Output::Send(to, Wire::NoAnswers(messages))]
            if *to == client && *messages == [elsewhere]),
        "{outputs:?}"
    );
}

/// It has not connected to this life before its first answer is due.
#[test]
fn a_client_that_comes_back_late_hears_of_the_new_life_before_any_answer() {
    let mut node = node();
    let (client, stranger, router) = (ProcessId::client(1), ProcessId::client(2), ProcessId::router(1));
    let config = Arc::new(Config::evenly(1, 1).expect("a ring"));
    let (clients, present) = ([(client, None)].into(), Some((Ts(9), config.clone())));
    let (incarnation, ts, catalog, leadership) = (1, Ts(9), None, 1);
    let state = Wire::State { incarnation, ts, config, clients, catalog, present, leadership };
    let restarted = |outputs: &[Output]| {
        let told =
            |output: &Output| matches!(output, Output::Send(to, Wire::Restarted { .. }) if *to == client);
        outputs.iter().position(told)
    };
    assert!(restarted(&node.handle(Input::Received { from: router, wire: state }, 0)).is_some());
    let ask = |node: &mut Node, from| {
        let id = MessageId { submitter: from, incarnation: 1, sequence: 1 };
        node.handle(Input::Received { from, wire: Wire::AskAnswers(vec![(id, Ts(9))]) }, 0)
    };
    assert_eq!(restarted(&ask(&mut node, client)), None, "once is enough");
    node.handle(Input::Unreachable(client), 0);
    let outputs = ask(&mut node, client);
    let answers = outputs.iter().position(|output| matches!(output, Output::Send(_, Wire::NoAnswers(_))));
    assert!(restarted(&outputs).is_some_and(|told| Some(told) < answers), "{outputs:?}");
    node.handle(Input::Unreachable(stranger), 0);
    let outputs = ask(&mut node, stranger);
    assert!(matches!(&outputs[..], [Output::Send(_, Wire::NoAnswers(_))]), "{outputs:?}");
}

/// What is ordered then may concern an earlier life, which was given a place.
#[test]
fn who_has_to_join_hears_nothing_until_it_begins_anew() {
    let mut node = node();
    let (id, router) = (ProcessId::storage(1), ProcessId::router(1));
    let first = Config::evenly(2, 2).expect("a ring");
    let suspicion = Membership::Suspect { process: id, incarnation: 0 };
    let message = testing::configuration(ProcessId::client(1), 1, 10, Configuration::Membership(suspicion));
    let config = Arc::new(first.apply(&message, Ts(10)).expect("possible").expect("it changes the config"));
    let state = |ts, catalog: Option<Catalog>| Wire::State {
        incarnation: 1,
        ts,
        config: Arc::new(first.clone()),
        clients: Arc::default(),
        catalog: catalog.map(Arc::new),
        present: Some((Ts(10), config.clone())),
        leadership: 1,
    };
    let deliver = || Wire::Deliver { incarnation: 1, after: Ts(9), deliveries: Vec::new(), frontier: Ts(12) };
    let hear = |node: &mut Node, wire| node.handle(Input::Received { from: router, wire }, 0);
    let joins =
        |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::Send(_, Wire::Route(_))));
    assert!(joins(&hear(&mut node, state(Ts(9), None))), "the other one has all that it has");
    for wire in [deliver(), state(Ts(9), None), deliver()] {
        hear(&mut node, wire);
        assert_eq!(node.frontier(), Ts(9));
    }
    let outputs = hear(&mut node, Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(13) });
    let anew = |output: &Output| matches!(output, Output::Send(_, Wire::Subscribe { after: None, .. }));
    assert!(outputs.iter().any(anew), "{outputs:?}");
    hear(&mut node, state(Ts(13), Some(Catalog::default())));
    assert_eq!(node.frontier(), Ts(13));
}

#[test]
fn a_chunk_that_comes_again_does_not_wait_for_the_disk_twice() {
    let mut node = node();
    let client = ProcessId::client(1);
    let chunk = || StageChunk {
        payload: PayloadId { process: 1, incarnation: 1, sequence: 1 },
        range: KeyRange::FULL,
        chunk: 0,
        rows: Bytes::from_static(b"rows"),
        checksum: 7,
        latest: Ts(100),
    };
    let staged = |node: &mut Node| {
        let outputs = node.handle(Input::Received { from: client, wire: Wire::Stage(chunk()) }, 0);
        outputs.iter().any(|output| matches!(output, Output::Payload(PayloadCommand::Stage(..))))
    };
    assert!(staged(&mut node));
    assert!(!staged(&mut node));
    let StageChunk { payload, range, chunk: number, .. } = chunk();
    let receipt = Wire::Staged { payload, range, chunk: number, outcome: Ok(()) };
    let outputs = node.handle(Input::Payload(PayloadEvent::Send(client, receipt)), 0);
    assert!(matches!(&outputs[..], [Output::Send(to, Wire::Staged { .. })] if *to == client), "{outputs:?}");
    assert!(staged(&mut node), "the receipt may have been lost");
}

fn fallible_update() -> Body {
    let kind =
        OperationKind::Update(Update { predicate: Vec::new(), assignments: Vec::new(), returning: None });
    let operation = Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind });
    Body::Data(Data { fallible: true, ..Data::new(operation) })
}

/// An INSERT of staged rows into the first table that was created.
fn staged_insert(staged: StagedPayload, fallible: bool) -> Body {
    let rows = InsertRows::Staged(staged.id);
    let kind = OperationKind::Insert(Insert { rows, on_conflict: OnConflict::Fail, returning: None });
    let operation = Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind });
    Body::Data(Data { fallible, staged: Some(Box::new(staged)), ..Data::new(operation) })
}

/// A process that lacks the rows of the INSERT at 11. Of the other two who hold them the first is suspected. Also what it wants.
fn who_lacks_rows() -> (Node, ChunkWanted) {
    let [id, s2, s3] = [1, 2, 3].map(ProcessId::storage);
    let router = ProcessId::router(1);
    let first = Arc::new(Config::evenly(3, 3).expect("a ring"));
    let options = CoreOptions {
        id,
        incarnation: 1,
        address: None,
        config: first.clone(),
        shards: 1,
        running: 16,
        between: BETWEEN,
    };
    let core = Core::new(options, Recovered { ts: Ts(9), ..Recovered::default() });
    let mut node = Node::new(Life { id, incarnation: 1, directory: 1 }, None, 1, vec![router], core, false);
    node.begin();
    let suspicion = Membership::Suspect { process: s2, incarnation: 0 };
    let message = testing::configuration(ProcessId::client(1), 1, 10, Configuration::Membership(suspicion));
    let present = Arc::new(first.apply(&message, Ts(10)).expect("possible").expect("it changes the config"));
    let (ts, clients, catalog, leadership) = (Ts(9), Arc::default(), None, 1);
    let (config, incarnation) = (first, 1);
    let state = Wire::State {
        incarnation,
        ts,
        config,
        clients,
        catalog,
        present: Some((Ts(10), present)),
        leadership,
    };
    node.handle(Input::Received { from: router, wire: state }, 0);
    let delivery = Delivery { ts: Ts(10), message: Arc::new(message), ranges: [].into(), config_version: 0 };
    let wire = Wire::Deliver { incarnation, after: Ts(9), deliveries: vec![delivery], frontier: Ts(10) };
    node.handle(Input::Received { from: router, wire }, 0);

    let payload = PayloadId { process: 1, incarnation: 1, sequence: 1 };
    let (range, holders) = (KeyRange::FULL, vec![id, s2, s3]);
    let parts = vec![StagedPart { range, holders, checksums: vec![0] }];
    let staged = StagedPayload { id: payload, config_version: 0, latest: Ts(100), parts };
    let message = Message {
        id: MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: 11 },
        tables: Default::default(),
        ranges: [KeyRange::FULL].into(),
        body: staged_insert(staged.clone(), false),
    };
    let ranges = Config::evenly(3, 3).expect("a ring").held(id).into();
    let delivery = Delivery { ts: Ts(11), message: Arc::new(message), ranges, config_version: 0 };
    let wire = Wire::Deliver { incarnation, after: Ts(10), deliveries: vec![delivery], frontier: Ts(11) };
    node.handle(Input::Received { from: router, wire }, 0);
    let payload = Arc::new(staged);
    (node, ChunkWanted { ts: Ts(11), payload, chunk: 0, part: 0, number: 0 })
}

/// Whom a process asks for staged rows.
fn asked(outputs: &[Output]) -> Vec<ProcessId> {
    let fetch = |output: &Output| match output {
        Output::Send(to, Wire::FetchChunk { chunk: 0, .. }) => Some(*to),
        _ => None,
    };
    outputs.iter().filter_map(fetch).collect()
}

/// Who is suspected has given up what it had, so that nobody is left.
#[test]
fn staged_rows_are_fetched_from_those_who_are_not_suspected() {
    let [s2, s3] = [2, 3].map(ProcessId::storage);
    let (mut node, wanted) = who_lacks_rows();
    let (payload, range) = (wanted.payload.id, KeyRange::FULL);
    // An INSERT that has ended needs none.
    let outputs =
        node.handle(Input::Payload(PayloadEvent::Missing(ChunkWanted { ts: Ts(9), ..wanted.clone() })), 0);
    assert_eq!(asked(&outputs), []);
    let outputs = node.handle(Input::Payload(PayloadEvent::Missing(wanted)), 0);
    assert_eq!(asked(&outputs), [s2]);
    // It may take a while: the others are not asked for the same at once.
    assert_eq!(asked(&node.handle(Input::Tick(900), 0)), []);
    assert_eq!(asked(&node.handle(Input::Tick(1_000), 0)), [s3]);
    assert_eq!(asked(&node.handle(Input::Tick(2_900), 0)), []);
    for now_ms in (2_910..3_900).step_by(10) {
        node.handle(Input::Unreachable(s3), 0);
        assert_eq!(asked(&node.handle(Input::Tick(now_ms), 0)), [s3]);
    }
    // When it is back, it is asked as soon as if it had not been away.
    assert_eq!(asked(&node.handle(Input::Tick(4_880), 0)), []);
    assert_eq!(asked(&node.handle(Input::Tick(4_900), 0)), [s3]);
    assert_eq!(node.stopped(), None);
    let wire = Wire::StagedRows { payload, range, chunk: 0, rows: None };
    node.handle(Input::Received { from: s3, wire }, 0);
    assert!(node.stopped().is_some_and(|reason| reason.contains("undamaged")), "{:?}", node.stopped());
}

#[test]
fn rows_that_cannot_be_read_are_read_again_unless_others_have_them() {
    let [s2, s3] = [2, 3].map(ProcessId::storage);
    let (mut node, wanted) = who_lacks_rows();
    let (payload, range) = (wanted.payload.id, KeyRange::FULL);
    let cannot = |wanted| Input::Payload(PayloadEvent::Unreadable(wanted, "input/output error".into()));
    assert_eq!(asked(&node.handle(cannot(None), 0)), [], "another process wants them");
    assert_eq!(asked(&node.handle(cannot(Some(wanted.clone())), 0)), [s2]);
    assert_eq!(asked(&node.handle(Input::Tick(1_000), 0)), [s3]);
    let reads = |outputs: Vec<Output>| {
        let load = |output: &&Output| matches!(output, Output::Payload(PayloadCommand::Load(_)));
        outputs.iter().filter(load).count()
    };
    // What comes is damaged, but not what is here.
    let wire = Wire::StagedRows { payload, range, chunk: 0, rows: Some(Bytes::from_static(b"damaged")) };
    assert_eq!(reads(node.handle(Input::Received { from: s3, wire }, 0)), 0);
    assert_eq!(reads(node.handle(Input::Payload(PayloadEvent::Missing(wanted.clone())), 0)), 1);
    for now_ms in [3_000, 7_000] {
        assert_eq!(reads(node.handle(cannot(Some(wanted.clone())), 0)), 0, "not at once");
        assert_eq!(reads(node.handle(Input::Tick(now_ms - 1), 0)), 0);
        assert_eq!(reads(node.handle(Input::Tick(now_ms), 0)), 1);
    }
    assert_eq!(node.stopped(), None);
    node.handle(Input::Payload(PayloadEvent::Missing(wanted)), 0);
    assert!(node.stopped().is_some(), "it is not there after all");
}

#[test]
fn another_checkpoint_is_due_after_one_that_has_failed() {
    let mut node = node();
    assert_eq!(node.progress().logged, 0);
    node.handle(Input::Checkpoint(CheckpointOutcome::Ended(Ts(9), Err("no space left on device".into()))), 0);
    assert!(node.progress().logged > 0);
}

#[test]
fn a_refusal_that_comes_late_does_not_stop_a_replica() {
    let mut node = node();
    // What it answers was asked before another router delivered up to 9.
    let refused = |purged| {
        let wire = Wire::SubscribeRefused { incarnation: 1, purged: Ts(purged), removed: false };
        Input::Received { from: ProcessId::router(2), wire }
    };
    node.handle(refused(7), 0);
    assert_eq!(node.stopped(), None);
    node.handle(refused(10), 0);
    assert!(node.stopped().is_some_and(|reason| reason.contains("must be copied")));
}

/// An older leader that nobody follows any more does not know who has joined since, and says so each time.
#[test]
fn who_is_refused_again_and_again_asks_another_router() {
    let mut node = node();
    let mut asked = vec![ProcessId::router(1)];
    for now_ms in 0..1_000 {
        let Some(router) = asked.last().copied().filter(|router| *router == ProcessId::router(1)) else {
            break;
        };
        let wire = Wire::SubscribeRefused { incarnation: 1, purged: Ts(7), removed: false };
        let refused = node.handle(Input::Received { from: router, wire }, now_ms);
        let outputs = refused.into_iter().chain(node.handle(Input::Tick(now_ms), now_ms));
        asked.extend(outputs.filter_map(|output| match output {
            Output::Send(router, Wire::Subscribe { .. }) => Some(router),
            _ => None,
        }));
    }
    assert_eq!(asked, [1, 2].map(ProcessId::router));
}

/// Its connection was lost before the message came by which it is removed.
#[test]
fn a_standby_that_has_missed_its_removal_stops() {
    let (id, router) = (ProcessId::storage(2), ProcessId::router(1));
    let join = Configuration::Membership(Membership::Join { process: id, incarnation: 1, address: None });
    let config = Config::evenly(1, 1).expect("a ring").apply(&testing::configuration(id, 1, 1, join), Ts(1));
    for announced in [true, false] {
        let mut node = node_of(id, config.clone().expect("possible").expect("it changes the config"));
        if announced {
            let (config, clients) = (node.config().clone(), Arc::default());
            let present = Some((Ts(1), config.clone()));
            let (incarnation, ts, catalog, leadership) = (1, Ts(1), None, 1);
            let state = Wire::State { incarnation, ts, config, clients, catalog, present, leadership };
            node.handle(Input::Received { from: router, wire: state }, 0);
        }
        let wire = Wire::SubscribeRefused { incarnation: 1, purged: Ts(10), removed: true };
        node.handle(Input::Received { from: router, wire }, 0);
        // One that was started since joins again.
        assert_eq!(node.stopped().is_some_and(|reason| reason.contains("removed")), announced);
    }
}

/// What it has missed may have given it a place, which it had lost again before it had received anything.
#[test]
fn a_standby_that_is_refused_says_that_it_begins_without_data() {
    let (id, router) = (ProcessId::storage(2), ProcessId::router(1));
    let join = Configuration::Membership(Membership::Join { process: id, incarnation: 1, address: None });
    let message = testing::configuration(id, 1, 1, join);
    let config = Config::evenly(1, 1).expect("a ring").apply(&message, Ts(1));
    let mut node = node_of(id, config.expect("possible").expect("it changes the config"));
    let joins = |output: &Output| {
        matches!(output, Output::Send(_, Wire::Route(messages)) if messages.iter().any(|message| {
            matches!(&message.body, Body::Configuration(Configuration::Membership(Membership::Join { .. })))
        }))
    };
    let subscribes = |output: &Output| matches!(output, Output::Send(_, Wire::Subscribe { .. }));
    let begins = |output: &Output| matches!(output, Output::Send(_, Wire::Subscribe { after: None, .. }));
    let refused = |from| {
        let wire = Wire::SubscribeRefused { incarnation: 1, purged: Ts(10), removed: false };
        Input::Received { from, wire }
    };
    let late = |node: &mut Node, from| {
        let outputs = node.handle(refused(from), 0);
        assert!(outputs.is_empty() && node.stopped().is_none(), "a refusal that comes late: {outputs:?}");
    };
    let outputs = node.handle(refused(router), 0);
    assert!(outputs.iter().any(joins) && !outputs.iter().any(subscribes), "{outputs:?}");
    late(&mut node, router);
    let wire = Wire::Ordered { incarnation: 1, sequence: 1, ts: Ts(11) };
    let outputs = node.handle(Input::Received { from: router, wire }, 0);
    assert!(outputs.iter().any(begins), "{outputs:?}");
    late(&mut node, ProcessId::router(2));
    // What has been ordered since it joined may have removed it.
    node.handle(refused(router), 0);
    assert!(node.stopped().is_some() && node.is_outdated(), "it joins again by itself");
}

#[test]
fn who_turns_to_another_router_says_there_that_it_joins() {
    let id = ProcessId::storage(2);
    let options = CoreOptions {
        id,
        incarnation: 1,
        address: None,
        config: Arc::new(Config::evenly(1, 1).expect("a ring")),
        shards: 1,
        running: 16,
        between: BETWEEN,
    };
    let core = Core::new(options, Recovered::default());
    let routers: Vec<ProcessId> = [1, 2, 3].map(ProcessId::router).into();
    let mut node = Node::new(Life { id, incarnation: 1, directory: 1 }, None, 1, routers.clone(), core, true);
    let told = |outputs: &[Output]| -> Vec<ProcessId> {
        let joins = |output: &Output| match output {
            Output::Send(to, Wire::Route(_)) => Some(*to),
            _ => None,
        };
        outputs.iter().filter_map(joins).collect()
    };
    node.begin();
    // The first one is down for good, the second one says nothing.
    let mut led = Vec::new();
    for now_ms in (0..10_000).step_by(100) {
        led.extend(told(&node.handle(Input::Tick(now_ms), 0)));
        led.extend(told(&node.handle(Input::Unreachable(routers[0]), 0)));
    }
    assert!(routers[1..].iter().all(|router| led.iter().filter(|to| *to == router).count() >= 5), "{led:?}");
}

#[test]
fn a_process_of_which_a_later_life_has_been_heard_of_begins_anew() {
    let mut node = node();
    let outlived = |incarnation| {
        let wire = Wire::Outlived { incarnation, newest: 5, goes_on: false };
        Input::Received { from: ProcessId::router(1), wire }
    };
    // It answers what an earlier life had said.
    node.handle(outlived(0), 0);
    assert_eq!((node.stopped(), node.outlived()), (None, None));
    node.handle(outlived(1), 0);
    assert!(node.stopped().is_some_and(|reason| reason.contains("is not the one that life 5 had")));
    assert!(
        node.is_outdated() && node.outlived() == Some(6),
        "another number than that of the next life in the right one"
    );
    // Unless it was that one that had lost its directory.
    let mut found = self::node();
    let wire = Wire::Outlived { incarnation: 1, newest: 5, goes_on: true };
    found.handle(Input::Received { from: ProcessId::router(1), wire }, 0);
    assert!(found.stopped().is_some() && found.begins_anew() && !found.is_outdated());
    assert_eq!(found.outlived(), Some(5));
}

#[test]
fn a_process_that_waits_for_votes_hears_that_it_is_given_up() {
    let mut scene = Scene::new(2);
    // More than run at a time: what is ordered behind them is not processed.
    for ts in 2..=19 {
        scene.write(1, ts);
    }
    scene.trace.clear();
    scene.deliver(1, 20, give_up(ProcessId::storage(1)));
    scene.check(r#"s1 Stop("s1 has been given up, and its rows with it; whoever takes its place needs another number")"#);
}

#[test]
fn a_process_that_is_given_up_stops() {
    let mut scene = Scene::new(2);
    scene.trace.clear();
    scene.deliver(1, 2, give_up(ProcessId::storage(1)));
    scene.check(r#"s1 Stop("s1 has been given up, and its rows with it; whoever takes its place needs another number")"#);
    // Its next life hears of it when it subscribes.
    let config = scene.config.clone();
    let id = MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: 1 };
    let message = Message {
        id,
        tables: Default::default(),
        ranges: Default::default(),
        body: give_up(ProcessId::storage(1)),
    };
    let config = config.apply(&message, Ts(2)).expect("possible").expect("it changes the config");
    scene.start(1, Recovered { ts: Ts(2), ..Recovered::default() });
    let config = Arc::new(config);
    scene.handle(1, Event::Config { config: config.clone(), present: (Ts(1), config) });
    scene.check(r#"s1 Stop("s1 has been given up, and its rows with it; whoever takes its place needs another number")"#);
}

/// It does not come back by itself, as it would if that earlier life were suspected now.
#[test]
fn a_removed_process_stops_although_an_earlier_life_was_suspected() {
    let mut scene = Scene::new(2);
    let s2 = ProcessId::storage(2);
    let mut config = Config::evenly(2, 2).expect("a ring");
    let apply = |config: &mut Config, ts, body| {
        let Body::Configuration(configuration) = body else { panic!("{body:?}") };
        let message = testing::configuration(ProcessId::client(1), 1, ts, configuration);
        *config = config.apply(&message, Ts(ts)).expect("possible").expect("it changes the config");
    };
    apply(&mut config, 2, suspect(s2));
    let contract = config.plan(Change::Contract { process: s2 }).expect("possible");
    apply(&mut config, 3, Body::Configuration(Configuration::Keyspace(contract)));
    let join = Membership::Join { process: s2, incarnation: 10, address: None };
    apply(&mut config, 4, Body::Configuration(Configuration::Membership(join)));
    let config = Arc::new(config);
    let options = CoreOptions {
        id: s2,
        incarnation: 10,
        address: None,
        config: config.clone(),
        shards: 1,
        running: 16,
        between: BETWEEN,
    };
    let recovered = Recovered { ts: Ts(4), config: Some(config), ..Recovered::default() };
    scene.cores.insert(2, Core::new(options, recovered));
    scene.trace.clear();
    scene.deliver(2, 5, Body::Configuration(Configuration::Membership(Membership::Part { process: s2 })));
    scene.check(r#"s2 Stop("s2 has been removed; started again, it joins without data")"#);
}

fn create() -> Body {
    Body::Ddl(Ddl::CreateTable { schema: Arc::new(schema()), if_not_exists: false })
}

#[test]
fn a_pause_of_this_process_takes_no_pins() {
    let mut scene = Scene::new(1);
    scene.handle(1, Event::Tick(1));
    scene.deliver(1, 2, Body::Pin { lease_ms: 30_000 });
    scene.write(1, 3);
    scene.executed(1, 3, Ok(1));
    // The renewals of an hour are still to be heard.
    scene.handle(1, Event::Tick(3_600_000));
    assert_eq!(scene.horizon(1), 2);
    scene.handle(1, Event::RenewPin(Ts(2)));
    for seconds in 3_601..=3_630 {
        scene.handle(1, Event::Tick(1_000 * seconds));
        assert_eq!(scene.horizon(1), 2);
    }
    scene.handle(1, Event::Tick(3_631_000));
    assert_eq!(scene.horizon(1), 4);
}

fn drop_table() -> Body {
    Body::Ddl(Ddl::DropTables { names: vec!["t".into()], if_exists: false })
}

#[test]
fn a_pin_holds_versions_until_its_lease_has_run_out() {
    let mut scene = Scene::new(1);
    scene.deliver(1, 2, Body::Pin { lease_ms: 100 });
    for ts in 3..=5 {
        scene.write(1, ts);
        scene.executed(1, ts, Ok(1));
    }
    assert_eq!(scene.horizon(1), 2);
    // Renewed in time, it lives for another lease.
    scene.handle(1, Event::Tick(100));
    scene.handle(1, Event::RenewPin(Ts(2)));
    scene.handle(1, Event::Tick(200));
    assert_eq!(scene.horizon(1), 2);
    scene.trace.clear();
    scene.read(1, 6, Some(Ts(2)));
    // A read that has begun goes on when the lease runs out, and keeps what it reads.
    scene.handle(1, Event::Tick(201));
    assert_eq!(scene.horizon(1), 2);
    scene.executed(1, 6, Ok(1));
    assert_eq!(scene.horizon(1), 7);
    scene.read(1, 7, Some(Ts(2)));
    scene.check(
        "s1 submits ts=6
         s1 -> c1 ts=6 done a=1
         s1 -> c1 ts=7 TooOld",
    );
    // What is gone does not come back.
    scene.handle(1, Event::RenewPin(Ts(2)));
    assert_eq!(scene.horizon(1), 8);
    scene.read(1, 8, Some(Ts(2)));
    scene.check("s1 -> c1 ts=8 TooOld");
}

#[test]
fn a_released_pin_leaves_the_others() {
    let mut scene = Scene::new(1);
    for ts in 2..=3 {
        scene.deliver(1, ts, Body::Pin { lease_ms: 100 });
    }
    scene.write(1, 4);
    scene.executed(1, 4, Ok(1));
    scene.handle(1, Event::ReleasePin(Ts(2)));
    assert_eq!(scene.horizon(1), 3);
    scene.trace.clear();
    scene.read(1, 5, Some(Ts(2)));
    scene.read(1, 6, Some(Ts(3)));
    scene.check(
        "s1 -> c1 ts=5 TooOld
         s1 submits ts=6",
    );
}

#[test]
fn a_pin_that_was_released_before_it_came_holds_nothing() {
    let mut scene = Scene::new(1);
    scene.handle(1, Event::ReleasePin(Ts(2)));
    scene.handle(1, Event::ReleasePin(Ts(4)));
    for ts in 2..=3 {
        scene.deliver(1, ts, Body::Pin { lease_ms: 100 });
    }
    scene.write(1, 5);
    scene.executed(1, 5, Ok(1));
    assert_eq!(scene.horizon(1), 3, "the one that was not released");
    scene.handle(1, Event::ReleasePin(Ts(3)));
    assert_eq!(scene.horizon(1), 6);
}

#[test]
fn staged_rows_for_a_table_that_was_dropped_or_made_again_have_no_effect() {
    for again in [false, true] {
        let mut scene = Scene::new(1);
        scene.deliver(1, 2, drop_table());
        scene.deliver(1, 3, if again { create() } else { Body::Pin { lease_ms: 100 } });
        scene.trace.clear();
        scene.staged_insert(1, 4);
        scene.check(
            "s1 Keep(PayloadId { process: 1, incarnation: 1, sequence: 1 })
             s1 -> c1 ts=4 Stale",
        );
        // Nobody needs the rows once the checkpoints have passed the message.
        scene.deliver(1, 5, Body::Checkpoint);
        if again {
            for read in 1..=2 {
                let ts = Ts(local(Ts(5)).0 + read);
                let effects = vec![ShardEffect::Executed { ts, outcomes: Default::default() }];
                scene.handle(1, Event::Shard { shard: 0, effects });
            }
        }
        scene.trace.clear();
        scene.handle(1, Event::CheckpointDone { ts: Ts(5) });
        scene.check("s1 Forget(PayloadId { process: 1, incarnation: 1, sequence: 1 })");
    }
}

/// What the checkpoint has of them is not delivered again.
#[test]
fn staged_rows_are_forgotten_after_a_restart_too() {
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    let mut scene = Scene::new(2);
    let id = PayloadId { process: 1, incarnation: 1, sequence: 1 };
    let part = StagedPart { range: scene.range(1), holders: vec![s1, s2], checksums: vec![0] };
    let config_version = scene.config.version();
    let staged = StagedPayload { id, config_version, latest: Ts(100), parts: vec![part] };
    // Its table was dropped.
    scene.deliver(1, 2, drop_table());
    scene.deliver_naming(1, 3, vec![(TableId(1), Ts(1))], staged_insert(staged, true));
    let message = Message {
        id: MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: 4 },
        tables: Default::default(),
        ranges: Default::default(),
        body: Body::Checkpoint,
    };
    let delivery = Delivery {
        ts: Ts(4),
        message: Arc::new(message),
        ranges: vec![scene.range(1)].into(),
        config_version,
    };
    let event = Event::Delivered { deliveries: vec![delivery], frontier: Ts(4) };
    let effects = scene.cores.get_mut(&1).expect("it runs").handle(event);
    let ended = effects.into_iter().find_map(|effect| match effect {
        Effect::EndCheckpoint(checkpoint) => Some(*checkpoint),
        _ => None,
    });
    scene.start(1, ended.expect("there is nothing to read"));
    scene.trace.clear();
    scene.handle(1, Event::Tick(0));
    scene.check("s1 Keep(PayloadId { process: 1, incarnation: 1, sequence: 1 })");
    scene.handle(1, Event::PeerDurable { from: s2, ts: Ts(4), hashes: Vec::new(), reply: false });
    scene.check("s1 Forget(PayloadId { process: 1, incarnation: 1, sequence: 1 })");
}

/// Of those who hold them some may have left the ring by then: they would never say that they do not need them.
#[test]
fn staged_rows_that_were_ordered_too_late_are_forgotten_at_once() {
    let mut scene = Scene::new(2);
    scene.staged_insert(1, 101);
    scene.check(
        "s1 Forget(PayloadId { process: 1, incarnation: 1, sequence: 1 })
         s1 -> c1 ts=101 Stale",
    );
    // Not those that have been inserted before: a replay needs them.
    let mut scene = Scene::new(2);
    scene.staged_insert(1, 99);
    scene.trace.clear();
    scene.staged_insert(1, 101);
    scene.check("s1 -> c1 ts=101 Stale");
}

#[test]
fn staged_rows_that_were_ordered_before_their_table_is_dropped_are_inserted_first() {
    let mut scene = Scene::new(1);
    scene.staged_insert(1, 2);
    scene.trace.clear();
    // The shards keep the order, although the rows come later.
    scene.deliver(1, 3, drop_table());
    scene.check("s1 submits ts=3");
    scene.loaded(1, 2);
    assert!(std::mem::take(&mut scene.trace).starts_with("s1 Supply"));
    scene.executed(1, 2, Ok(1));
    scene.check("s1 -> c1 ts=2 done a=1");
}

#[test]
fn staged_rows_are_counted_until_a_checkpoint_is_ordered() {
    let mut scene = Scene::new(1);
    scene.staged_insert(1, 2);
    assert_eq!(scene.cores[&1].staged(), 0);
    scene.loaded(1, 2);
    assert_eq!(scene.cores[&1].staged(), 24, "a number, its place on the ring and in the statement");
    scene.loaded(1, 2);
    assert_eq!(scene.cores[&1].staged(), 24, "the same chunk once more");
    scene.executed(1, 2, Ok(1));
    scene.deliver(1, 3, Body::Checkpoint);
    assert_eq!(scene.cores[&1].staged(), 0);
}

#[test]
fn staged_rows_that_a_checkpoint_will_have_are_not_counted_behind_it() {
    let mut scene = Scene::new(1);
    scene.staged_insert(1, 2);
    scene.deliver(1, 3, Body::Checkpoint);
    scene.loaded(1, 2);
    assert_eq!(scene.cores[&1].staged(), 0);
}

/// Between two messages it tells only so many operations apart, and must not wait for others to write something.
#[test]
fn many_reads_that_are_not_ordered_move_the_m_seq_on() {
    let mut scene = Scene::new(2);
    let c1 = ProcessId::client(1);
    scene.handle(1, Event::Leased(0));
    scene.check("");
    let mut number = 0;
    for message in 2..=3 {
        let mut moves = Vec::new();
        for count in 1..=3 * BETWEEN {
            number += 1;
            let id = MessageId::unordered(c1, 1, number);
            let read = BasicRead {
                message: Arc::new(Message { id, ..testing::read(c1, 1, 1, 0) }),
                ranges: [scene.range(1)].into(),
                config_version: scene.config.version(),
                seen: Ts(1),
            };
            let core = scene.cores.get_mut(&1).expect("it runs");
            for effect in core.handle(Event::BasicRead { read, now_ms: 0 }) {
                match effect {
                    Effect::MoveOn => moves.push(count),
                    Effect::Submit { operation, .. } => {
                        let outcomes = Default::default();
                        let effects = vec![ShardEffect::Executed { ts: operation.ts, outcomes }];
                        core.handle(Event::Shard { shard: 0, effects });
                    }
                    other => panic!("it reads: {other:?}"),
                }
            }
        }
        assert_eq!(moves, [BETWEEN], "once is enough, and the reads go on");
        scene.deliver(1, message, Body::Pin { lease_ms: 0 });
        assert_eq!(std::mem::take(&mut scene.trace).trim_end(), format!("s1 -> c1 ts={message} done"));
    }
}

#[test]
fn a_checkpoint_waits_for_local_times() {
    let mut scene = Scene::new(2);
    let second = Arc::new(TableSchema { id: TableId(0), name: "u".into(), ..schema() });
    scene.deliver(1, 2, Body::Ddl(Ddl::CreateTable { schema: second, if_not_exists: false }));
    scene.deliver(1, 3, Body::Checkpoint);
    scene.trace.clear();
    let read = |scene: &mut Scene, time: u64| {
        let effects = vec![ShardEffect::Executed { ts: Ts(time), outcomes: Default::default() }];
        scene.handle(1, Event::Shard { shard: 0, effects });
    };
    let first = local(Ts(3)).0 + 1;
    scene.cores.get_mut(&1).expect("it runs").use_up_times();
    read(&mut scene, first);
    scene.check("");
    scene.deliver(1, 4, Body::Pin { lease_ms: 0 });
    assert_eq!(std::mem::take(&mut scene.trace), "s1 -> c1 ts=4 done \ns1 submits ts=4\n");
    read(&mut scene, local(Ts(4)).0 + 1);
    scene.check("s1 completes checkpoint ts=3 with 0 ballots");
}

#[test]
fn basic_reads_are_answered_under_a_lease_and_never_from_before_what_was_seen() {
    let mut scene = Scene::new(2);
    let c1 = ProcessId::client(1);
    let basic = |scene: &mut Scene, count: u64, seen: u64, now_ms: u64| {
        let output = ReadOutput::Rows { projection: Vec::new(), top: None };
        let kind = OperationKind::Read(Read { predicate: Vec::new(), output });
        let operation = Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind });
        let data = Data::new(operation);
        let id = MessageId::unordered(c1, 1, count);
        let message = Message {
            id,
            tables: Default::default(),
            ranges: [KeyRange::FULL].into(),
            body: Body::Data(data),
        };
        let (ranges, config_version) = (vec![scene.range(1)], scene.config.version());
        let read =
            BasicRead { message: Arc::new(message), ranges: ranges.into(), config_version, seen: Ts(seen) };
        scene.handle(1, Event::BasicRead { read, now_ms });
    };
    basic(&mut scene, 1, 1, 100);
    scene.check("s1 -> c1 lost 1");
    scene.handle(1, Event::Leased(100));
    basic(&mut scene, 2, 1, 100 + LEASE_MS - 1);
    scene.check("s1 submits ts=1");
    basic(&mut scene, 3, 1, 100 + LEASE_MS);
    scene.check("s1 -> c1 lost 1");
    // Its client has seen more: it waits, behind what comes then.
    basic(&mut scene, 4, 2, 200);
    scene.check("");
    scene.write(1, 2);
    scene.check(
        "s1 submits ts=2 undecided
         s1 submits ts=2",
    );
    // The client knows another config.
    let mut version = scene.config.version();
    version += 1;
    let read = testing::read(c1, 1, 1, 0);
    let id = MessageId::unordered(c1, 1, 5);
    let read = BasicRead {
        message: Arc::new(Message { id, ..read }),
        ranges: [scene.range(1)].into(),
        config_version: version,
        seen: Ts(1),
    };
    scene.handle(1, Event::BasicRead { read, now_ms: 200 });
    scene.check("s1 -> c1 lost 1");
    // The client still knows parts of what is one range here.
    let whole = scene.range(1);
    let middle = whole.first + (whole.last - whole.first) / 2;
    let parts = [KeyRange::new(whole.first, middle), KeyRange::new(middle + 1, whole.last)];
    let id = MessageId::unordered(c1, 1, 6);
    let read = BasicRead {
        message: Arc::new(Message { id, ..testing::read(c1, 1, 1, 0) }),
        ranges: parts.into(),
        config_version: scene.config.version(),
        seen: Ts(1),
    };
    let event = Event::BasicRead { read, now_ms: 200 };
    let effects = scene.cores.get_mut(&1).expect("it runs").handle(event);
    let named = effects.into_iter().find_map(|effect| match effect {
        Effect::Submit { operation, .. } => Some(operation.ranges.to_vec()),
        _ => None,
    });
    assert_eq!(named, Some(vec![whole]));
    // This life began before a write of which others may have been told.
    let config = scene.config.clone();
    scene.handle(1, Event::Config { config: config.clone(), present: (Ts(3), config) });
    scene.trace.clear();
    basic(&mut scene, 7, 1, 200);
    scene.check("s1 -> c1 lost 1");
    scene.write(1, 3);
    scene.trace.clear();
    basic(&mut scene, 8, 1, 200);
    scene.check("s1 submits ts=3");
}

#[test]
fn who_wants_segments_cut_is_told_when_they_are() {
    let mut scene = Scene::new(1);
    for number in 1..=2 {
        let from = ProcessId::client(number);
        scene.handle(1, Event::Precut { from, request: 7, at: vec![100] });
    }
    scene.trace.clear();
    scene.handle(1, Event::Shard { shard: 0, effects: vec![ShardEffect::Precut] });
    scene.check(
        "s1 -> c1 has cut for 7
         s1 -> c2 has cut for 7",
    );
    scene.handle(1, Event::Shard { shard: 0, effects: vec![ShardEffect::Precut] });
    scene.check("");
}

#[test]
fn a_cancelled_read_answers_nothing_and_keeps_nothing() {
    let mut scene = Scene::new(1);
    let cancel =
        |sequence| Event::Cancel(MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence });
    scene.read(1, 2, None);
    scene.read(1, 3, None);
    scene.trace.clear();
    // In the middle of its scan.
    let rows = |ts| {
        let batch = RecordBatch::new_empty(schema().arrow());
        vec![ShardEffect::Rows { ts: local(Ts(ts)), range: KeyRange::FULL, batch }]
    };
    scene.handle(1, cancel(2));
    scene.handle(1, Event::Shard { shard: 0, effects: rows(2) });
    scene.executed(1, 2, Ok(1));
    assert_eq!(scene.horizon(1), 3, "the other one reads on");
    scene.check("s1 cancels ts=2");
    scene.executed(1, 3, Ok(1));
    assert_eq!(scene.horizon(1), 4);
    scene.check("s1 -> c1 ts=3 done a=1");
    // Before it is delivered: it is not even begun. A write takes effect all the same.
    scene.handle(1, cancel(4));
    scene.handle(1, cancel(5));
    scene.read(1, 4, None);
    scene.write(1, 5);
    scene.executed(1, 5, Ok(1));
    scene.check("s1 submits ts=5");
    assert_eq!(scene.horizon(1), 6);
}

/// A reader that has not taken what was sent holds up neither the operations behind its read nor a checkpoint, and its
/// read goes on when it has, or ends when it is gone.
#[test]
fn a_slow_reader_holds_up_nobody_else() {
    let mut scene = Scene::new(1);
    let id = |sequence| MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence };
    let batch = |ts| ShardEffect::Rows {
        ts: local(Ts(ts)),
        range: KeyRange::FULL,
        batch: RecordBatch::new_empty(schema().arrow()),
    };
    // As many reads as may run, each with as many batches on their way as may be.
    for ts in 2..18 {
        scene.read(1, ts, None);
        let effects = (0..8).map(|_| batch(ts)).collect();
        scene.handle(1, Event::Shard { shard: 0, effects });
    }
    scene.trace.clear();
    scene.write(1, 18);
    scene.executed(1, 18, Ok(1));
    scene.deliver(1, 19, Body::Checkpoint);
    assert!(scene.trace.contains("s1 submits ts=18\n"), "{}", scene.trace);
    assert!(scene.trace.contains("s1 submits ts=19"), "{}", scene.trace);
    assert_eq!(scene.horizon(1), 2, "what they see is kept");

    scene.trace.clear();
    scene.handle(1, Event::Took { id: id(2), batches: 3 });
    scene.check("s1 allows ts=2 3");
    scene.executed(1, 2, Ok(1));
    scene.handle(1, Event::Took { id: id(2), batches: 5 });
    scene.check("s1 -> c1 ts=2 done a=1");
    assert_eq!(scene.horizon(1), 3);

    scene.handle(1, Event::ClientGone(ProcessId::client(1)));
    let cancelled: String = (3..18).map(|ts| format!("s1 cancels ts={ts}\n")).collect();
    // Should it be there after all, in another life, it asks again.
    scene.check(&format!("{cancelled}s1 -> c1 reads missed"));
    scene.handle(1, Event::ClientGone(ProcessId::client(1)));
    scene.check("");
}

/// A client that has started again does not know the reads of its earlier life.
#[test]
fn reads_of_an_earlier_life_are_cancelled() {
    let mut scene = Scene::new(1);
    scene.read(1, 2, None);
    scene.trace.clear();
    let id = MessageId { submitter: ProcessId::client(1), incarnation: 2, sequence: 1 };
    let operation = Arc::new(Operation {
        table: TableId(1),
        context: EvalContext::default(),
        kind: OperationKind::Read(Read { predicate: Vec::new(), output: ReadOutput::ContentHash }),
    });
    let data = Data::new(operation);
    let message = Arc::new(Message {
        id,
        tables: Default::default(),
        ranges: [KeyRange::FULL].into(),
        body: Body::Data(data),
    });
    let ranges = vec![scene.range(1)];
    let delivery =
        Delivery { ts: Ts(3), message, ranges: ranges.into(), config_version: scene.config.version() };
    scene.handle(1, Event::Delivered { deliveries: vec![delivery], frontier: Ts(3) });
    scene.check("s1 cancels ts=2\ns1 submits ts=3");
}

/// Rows of RETURNING, where they are many: they wait for the writer, and are sent as it takes them.
#[test]
fn many_rows_of_a_write_are_sent_when_they_are_fetched() {
    let mut scene = Scene::new(1);
    let core = scene.cores.remove(&1).expect("it runs");
    scene.cores.insert(1, core.with_returned_at_once(100));
    let id = |sequence| MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence };
    let range = scene.range(1);
    let write = |scene: &mut Scene, ts, batches, rows: i64| {
        scene.write(1, ts);
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let batch = RecordBatch::try_new(schema().arrow(), vec![column]).expect("the column fits");
        let rows = ShardEffect::Rows { ts: local(Ts(ts)), range, batch };
        scene.handle(1, Event::Shard { shard: 0, effects: vec![rows; batches] });
        scene.executed(1, ts, Ok(7));
    };
    let fetch = |sequence| Event::Fetch { id: id(sequence), ranges: vec![range] };
    let lines = |line: &str, count| format!("{line}\n").repeat(count);
    scene.trace.clear();
    write(&mut scene, 2, 1, 10);
    scene.check(
        "s1 submits ts=2
         s1 -> c1 ts=2 10 rows of a
         s1 -> c1 ts=2 done a=7",
    );
    write(&mut scene, 3, 11, 10);
    scene.check(
        "s1 submits ts=3
         s1 -> c1 ts=3 keeps a
         s1 -> c1 ts=3 done a=7",
    );
    assert_eq!(scene.horizon(1), 4, "it keeps no versions");
    let kept = scene.cores[&1].returned_bytes();
    assert!(kept >= 11 * 80, "{kept}");
    scene.handle(1, fetch(3));
    scene.check(&lines("s1 -> c1 ts=3 10 of the rows of a", 8));
    assert_eq!(scene.cores[&1].returned_bytes(), kept * 3 / 11);
    scene.handle(1, Event::Took { id: id(3), batches: 2 });
    scene.check(&lines("s1 -> c1 ts=3 10 of the rows of a", 2));
    scene.handle(1, Event::Took { id: id(3), batches: 4 });
    scene.check("s1 -> c1 ts=3 10 of the rows of a\ns1 -> c1 ts=3 that was a");
    scene.handle(1, Event::Took { id: id(3), batches: 5 });
    scene.handle(1, fetch(3));
    scene.check("s1 -> c1 has lost a of 3");

    for ts in 4..6 {
        write(&mut scene, ts, 11, 10);
    }
    assert_eq!(scene.cores[&1].returned_bytes(), 2 * kept);
    scene.handle(1, Event::Cancel(id(4)));
    assert_eq!(scene.cores[&1].returned_bytes(), kept);
    scene.trace.clear();
    scene.handle(1, Event::ClientGone(ProcessId::client(1)));
    scene.check("s1 -> c1 has lost a of 5");
    assert_eq!(scene.cores[&1].returned_bytes(), 0);
    scene.handle(1, fetch(5));
    scene.check("s1 -> c1 has lost a of 5");
    // What had been sent may have been lost, so it cannot be gone on with.
    write(&mut scene, 6, 11, 10);
    scene.handle(1, fetch(6));
    scene.trace.clear();
    scene.handle(1, fetch(6));
    scene.check("s1 -> c1 has lost a of 6");
    assert_eq!(scene.cores[&1].returned_bytes(), 0);
}
