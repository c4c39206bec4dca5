//! The storage process as a pure state machine: deliveries, effects of shards, votes and ticks in; operations for
//! shards, decisions, votes and answers out (Crescando/RB paper, sections 5.4 and 6; DESIGN, decisions 3 to 6 and 11
//! to 13).
//!
//! ```text
//!                deliver          submit             executed            decide
//!   lead router ---------> core ----------> shards ------------> core -----------> shards
//!                          |  ^                                  |  ^
//!                   load   v  | rows                       votes v  | votes
//!                      payload store                   other storage processes
//! ```
//!
//! Deliveries are taken in `Ts` order; one that waits for its payload holds up those behind it, one that waits for votes
//! does not. Three watermarks: *delivered* (given to the shards), *executed* (executed and decided) and *durable*
//! (contained in a checkpoint).
//!
//! Shards count in a time of their own, [`local`]: a message's `Ts` with room for operations that the process adds
//! between two messages (the reads of a checkpoint, the second table of a DROP).
//!
//! Departures from the paper: it knows neither votes nor pins nor checkpoints; there, a delivered write cannot fail.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    SqlError, SqlState, TableId, TableSchema, Ts,
    array::size_of_cells,
    expr::Expr,
    operation::{
        Decision, Effect as ShardEffect, InsertRows, Operation, OperationKind, OrderedOperation, PayloadId,
        Read, ReadOutput, RowBatch,
    },
    position::KeyRange,
};

mod readers;

use super::{
    ballot::{Ballot, Ballots},
    basic::{BasicRead, BasicReads},
};
use crate::{
    catalog::Catalog,
    config::Config,
    message::{Body, Data, Ddl, Incarnation, MessageId, ProcessId, StagedPayload},
    planted::{Bug, planted},
    wire::{Answer, AnswerPart, Delivery, Vote, Watermarks, Wire},
};

/// Batches of the answer of a read that a shard may send before its reader has taken some.
const READ_WINDOW: u32 = 8;
/// Cancellations that are remembered until their message is delivered.
const REMEMBERED_CANCELLATIONS: usize = 4096;

/// Content hash of the rows of a table in a primary range, see [`Wire::Durable`].
pub type ContentHash = (TableId, KeyRange, u128);

/// What the process is.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Identity.
    pub id: ProcessId,
    /// Placement.
    pub config: Arc<Config>,
    /// Number of shards; the rows of every held primary range are divided among them.
    pub shards: usize,
    /// Operations that may run at a time; further ones wait.
    pub running: usize,
}

/// What a checkpoint says of the process, apart from its rows.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The checkpoint's `Ts`.
    pub ts: Ts,
    /// The catalog at that `Ts`.
    pub catalog: Catalog,
    /// Votes that others may still ask for.
    pub ballots: Vec<(Ts, Ballot)>,
    /// The last message of each submitter that has been executed.
    pub passed: Vec<MessageId>,
    /// Content hashes at that `Ts`.
    pub hashes: Vec<ContentHash>,
}

/// What happens to the process.
#[derive(Debug)]
pub enum Event {
    /// Deliveries in `Ts` order; everything up to the frontier has been delivered.
    Delivered {
        /// In `Ts` order.
        deliveries: Vec<Delivery>,
        /// Everything for this process up to here is contained in them or in earlier ones.
        frontier: Ts,
    },
    /// What a shard did.
    Shard {
        /// Which.
        shard: usize,
        /// Its effects.
        effects: Vec<ShardEffect>,
    },
    /// A chunk that [`Effect::Load`] asked for.
    Loaded {
        /// The message that names its payload.
        ts: Ts,
        /// Which.
        chunk: usize,
        /// Its rows, or why the process cannot go on without them.
        rows: Result<RowBatch, String>,
    },
    /// From another storage process.
    Votes(Vec<Vote>),
    /// From another storage process.
    AskVotes {
        /// Who asks.
        from: ProcessId,
        /// About which writes.
        writes: Vec<Ts>,
    },
    /// Another storage process has a durable checkpoint.
    PeerDurable {
        /// Who.
        from: ProcessId,
        /// Its `Ts`.
        ts: Ts,
        /// Content hashes of its ranges at that `Ts`.
        hashes: Vec<ContentHash>,
        /// It wants to know about ours.
        reply: bool,
    },
    /// The checkpoint that [`Effect::EndCheckpoint`] completed is durable.
    CheckpointDone {
        /// Its `Ts`.
        ts: Ts,
    },
    /// The checkpoint could not be written.
    CheckpointFailed {
        /// Its `Ts`.
        ts: Ts,
    },
    /// The config behind everything that has been received: told by the router when this life subscribes first.
    Config(Arc<Config>),
    /// Straight from a client.
    BasicRead {
        /// The read.
        read: BasicRead,
        /// The present time: with ticks alone, a pause of this process would go unnoticed.
        now_ms: u64,
    },
    /// The lead router has granted the lease that was asked for at this time, in milliseconds.
    Leased(u64),
    /// From a client.
    RenewPin(Ts),
    /// From a client.
    ReleasePin(Ts),
    /// From a client.
    Cancel(MessageId),
    /// From a client: a reader has taken batches of the answer of a read.
    Took {
        /// The read.
        id: MessageId,
        /// How many.
        batches: u32,
    },
    /// A client process is not there any more.
    ClientGone(ProcessId),
    /// Time passes: milliseconds since some beginning.
    Tick(u64),
}

/// What the process does.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Give an operation to a shard.
    Submit {
        /// Which.
        shard: usize,
        /// The operation.
        operation: OrderedOperation,
    },
    /// Tell a shard how an undecided write ended.
    Decide {
        /// Which.
        shard: usize,
        /// The write.
        ts: Ts,
        /// Its end.
        decision: Decision,
    },
    /// Give a shard the next rows of a staged payload.
    Supply {
        /// Which.
        shard: usize,
        /// The write.
        ts: Ts,
        /// The rows.
        rows: Arc<RowBatch>,
        /// Whether there are no more.
        last: bool,
    },
    /// Let a shard send more batches of the answer of a read.
    Allow {
        /// Which.
        shard: usize,
        /// The read.
        ts: Ts,
        /// How many.
        batches: u32,
    },
    /// A shard need not go on with a read.
    Cancel {
        /// Which.
        shard: usize,
        /// The read.
        ts: Ts,
    },
    /// A message that names this payload has been delivered: it does not expire any more.
    Keep(PayloadId),
    /// Get a chunk of a staged payload.
    Load(ChunkWanted),
    /// No replica needs this payload any more.
    Forget(PayloadId),
    /// Send to another storage process.
    Send(ProcessId, Wire),
    /// Send to a client.
    Answer(ProcessId, Answer),
    /// Begin to write a checkpoint: everything before its `Ts` has been executed and decided.
    BeginCheckpoint {
        /// Its `Ts`: rows visible to a read with this `Ts` belong to it.
        ts: Ts,
        /// The catalog at that `Ts`.
        catalog: Arc<Catalog>,
        /// Votes to keep with it.
        ballots: Vec<(Ts, Ballot)>,
        /// The last message of each submitter that belongs to it.
        passed: Vec<MessageId>,
    },
    /// Rows of the checkpoint that has begun.
    CheckpointRows {
        /// Of this table.
        table: Arc<TableSchema>,
        /// In this primary range.
        range: KeyRange,
        /// In the table's Arrow schema.
        batch: RecordBatch,
    },
    /// The checkpoint has all its rows.
    EndCheckpoint {
        /// Its `Ts`.
        ts: Ts,
        /// Content hashes at that `Ts`.
        hashes: Vec<ContentHash>,
    },
    /// This process cannot go on without diverging from its peers.
    Stop(String),
}

/// A chunk of a staged payload.
#[derive(Clone, Debug)]
pub struct ChunkWanted {
    /// The message that names the payload.
    pub ts: Ts,
    /// The payload.
    pub payload: Arc<StagedPayload>,
    /// Which chunk of all that lie in ranges held here: its part and its number there.
    pub chunk: usize,
    /// The part.
    pub part: usize,
    /// The chunk's number in the part.
    pub number: usize,
}

/// A staged payload that the shards are supplied with, chunk by chunk.
#[derive(Debug)]
struct Supplying {
    ts: Ts,
    payload: Arc<StagedPayload>,
    /// The chunks in the ranges held here: the part's index, and the number in the part.
    chunks: Vec<(usize, usize)>,
    /// How many have been asked for, and given to the shards.
    asked: usize,
    supplied: usize,
    /// Those that came before their turn.
    early: BTreeMap<usize, RowBatch>,
    /// How many each shard does not need any more.
    taken: Vec<usize>,
}

/// An operation that shards work on.
#[derive(Debug)]
struct Running {
    /// Who waits for the answer; none when it was cancelled or nobody is answered.
    answer: Option<MessageId>,
    read_ts: Ts,
    is_write: bool,
    undecided: bool,
    /// Shards that have not executed it.
    executing: BTreeSet<usize>,
    /// Outcomes of the primary ranges it acts on here, with the shard that failed.
    outcomes: BTreeMap<KeyRange, Result<u64, (usize, SqlError)>>,
    /// Rows of a write, held back until its end.
    rows: Vec<AnswerPart>,
    /// What they take.
    returned_bytes: u64,
    /// The shards that the batches came from which the reader of a read has not taken yet, in the order in which they
    /// were sent.
    unread: VecDeque<usize>,
}

#[derive(Debug)]
struct PinLease {
    lease_ms: u64,
    deadline_ms: u64,
}

/// The state of a storage process.
#[derive(Debug)]
pub struct Core {
    options: CoreOptions,
    /// The config behind everything that has been received.
    received: Arc<Config>,
    /// The primary ranges that are held here.
    held: Vec<KeyRange>,
    /// The local time of the last operation.
    submitted: Ts,
    catalog: Arc<Catalog>,
    /// Deliveries that have not been given to the shards.
    pending: VecDeque<Delivery>,
    /// Everything up to here has been received.
    frontier: Ts,
    /// Everything up to here has been given to the shards.
    delivered: Ts,
    durable: Ts,
    /// By their local times.
    running: BTreeMap<Ts, Running>,
    /// Bytes of the rows that writes among them will return.
    returned_bytes: u64,
    /// By the local times of their operations.
    supplying: BTreeMap<Ts, Supplying>,
    /// The writes among them.
    writes: BTreeSet<Ts>,
    /// The reads among them that wait for their readers.
    stalled: BTreeSet<Ts>,
    by_message: HashMap<MessageId, Ts>,
    /// The incarnations of submitters.
    lives: HashMap<ProcessId, Incarnation>,
    /// The last message of each submitter that was given to the shards.
    passed: BTreeMap<ProcessId, MessageId>,
    cancelled: HashSet<MessageId>,
    ballots: Ballots,
    pins: BTreeMap<Ts, PinLease>,
    /// Checkpoints that wait for the execution of what was ordered before them, and the one being written.
    requested: Option<(Ts, Arc<Catalog>, Vec<MessageId>)>,
    writing: Option<Writing>,
    /// Dropped tables whose rows a checkpoint still needs.
    drops: Vec<TableId>,
    hashes: Vec<ContentHash>,
    /// Content hashes of the checkpoint that is not durable yet.
    hashes_at: (Ts, Vec<ContentHash>),
    /// Durable watermarks of other storage processes, with their content hashes.
    peers: BTreeMap<ProcessId, (Ts, Vec<ContentHash>)>,
    /// Payloads by the message that names them.
    payloads: BTreeMap<Ts, (PayloadId, Vec<ProcessId>)>,
    logged: u64,
    /// From a restart until all that was ordered meanwhile has been executed: the others have voted long ago.
    catching_up: bool,
    /// Where this life began.
    recovered: Ts,
    /// Writes whose votes are to be asked for.
    questions: Vec<Ts>,
    basic: BasicReads,
    now_ms: u64,
    effects: Vec<Effect>,
}

/// A read of a checkpoint.
#[derive(Debug)]
struct CheckpointRead {
    table: Arc<TableSchema>,
    executing: BTreeSet<usize>,
}

/// The checkpoint that is being written.
#[derive(Debug)]
struct Writing {
    ts: Ts,
    /// Tables that have not been read.
    tables: VecDeque<Arc<TableSchema>>,
    /// Reads of the present table, by their local time.
    reads: BTreeMap<Ts, CheckpointRead>,
    hashes: BTreeMap<(TableId, KeyRange), u128>,
    /// All rows have been read; the files are not durable yet.
    complete: bool,
}

/// Bits of local time below a message's `Ts`.
const LOCAL_BITS: u32 = 16;
/// Chunks of a payload that are loaded while the shards work on those before them.
const CHUNKS_AHEAD: usize = 2;
/// Local times between two messages that are kept for the process's own operations.
const OWN_OPERATIONS: u64 = 1 << 12;

/// The time of a shard at a message: later than everything between it and the message before.
///
/// # Panics
/// When the m-seq has more than 2^48 messages.
pub fn local(ts: Ts) -> Ts {
    assert!(ts.0 < 1 << (64 - LOCAL_BITS), "the m-seq is exhausted");
    Ts(ts.0 << LOCAL_BITS)
}

/// The message at or before a shard's time.
fn global(local: Ts) -> Ts {
    Ts(local.0 >> LOCAL_BITS)
}

impl Core {
    /// The process after it has recovered a checkpoint (or nothing), to be subscribed after [`Recovered::ts`].
    pub fn new(options: CoreOptions, mut recovered: Recovered) -> Core {
        if planted(Bug::CheckpointTooFar) && recovered.ts > Ts::ZERO {
            recovered.ts = Ts(recovered.ts.0 + 1);
        }
        let held = options.config.held(options.id);
        Core {
            received: options.config.clone(),
            options,
            held,
            submitted: local(recovered.ts),
            catalog: Arc::new(recovered.catalog),
            pending: VecDeque::new(),
            frontier: recovered.ts,
            delivered: recovered.ts,
            durable: recovered.ts,
            running: BTreeMap::new(),
            returned_bytes: 0,
            supplying: BTreeMap::new(),
            writes: BTreeSet::new(),
            stalled: BTreeSet::new(),
            lives: HashMap::new(),
            passed: recovered.passed.into_iter().map(|id| (id.submitter, id)).collect(),
            by_message: HashMap::new(),
            cancelled: HashSet::new(),
            ballots: Ballots::restore(recovered.ballots),
            pins: BTreeMap::new(),
            requested: None,
            writing: None,
            drops: Vec::new(),
            hashes: recovered.hashes,
            hashes_at: (recovered.ts, Vec::new()),
            peers: BTreeMap::new(),
            payloads: BTreeMap::new(),
            logged: 0,
            catching_up: true,
            recovered: recovered.ts,
            questions: Vec::new(),
            basic: BasicReads::default(),
            now_ms: 0,
            effects: Vec::new(),
        }
    }

    /// The primary ranges that are held here.
    pub fn held(&self) -> &[KeyRange] {
        &self.held
    }

    /// What to say to other storage processes after a start: how far this one is durable, and the question how far
    /// they are.
    pub fn greetings(&self) -> Vec<(ProcessId, Wire)> {
        self.peers_of_ring().map(|peer| (peer, self.durable_wire(true))).collect()
    }

    /// Everything up to here has been received: a new subscription begins after it.
    pub fn frontier(&self) -> Ts {
        self.frontier
    }

    /// The last message of a submitter that was executed where this life began, or later.
    pub(crate) fn passed(&self, submitter: ProcessId) -> Option<MessageId> {
        self.passed.get(&submitter).copied()
    }

    /// Deliveries that wait for their turn.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Approximate bytes of the messages that were given to the shards since the last checkpoint message.
    pub fn logged(&self) -> u64 {
        self.logged
    }

    /// Bytes of the rows that writes under way will return.
    pub fn returned_bytes(&self) -> u64 {
        self.returned_bytes
    }

    /// How far the process is.
    pub fn watermarks(&self, memory: u64) -> Watermarks {
        Watermarks { delivered: self.delivered, executed: self.executed(), durable: self.durable, memory }
    }

    /// The oldest local time that may still be read: versions that ended before it can be collected.
    pub fn horizon(&self) -> Ts {
        let next = Ts(self.delivered.0 + 1);
        if planted(Bug::VersionCollectedTooEarly) {
            return local(next);
        }
        let running = self.running.values().map(|running| running.read_ts);
        let writing = self.writing.as_ref().filter(|writing| !writing.complete).map(|writing| writing.ts);
        let checkpoints = writing.into_iter().chain(self.requested.as_ref().map(|(ts, ..)| *ts));
        let oldest = running.chain(checkpoints).chain(self.pins.keys().next().copied()).fold(next, Ts::min);
        local(oldest)
    }

    /// Whether a checkpoint waits or is being written.
    pub fn is_checkpointing(&self) -> bool {
        self.writing.is_some() || self.requested.is_some()
    }

    /// Takes an event and returns what is to be done, in order.
    ///
    /// # Panics
    /// When deliveries do not arrive in `Ts` order, or a shard reports what it was not asked for.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Delivered { deliveries, frontier } => self.receive(deliveries, frontier),
            Event::Shard { shard, effects } => {
                for effect in effects {
                    self.shard_effect(shard, effect);
                }
            }
            Event::Loaded { ts, chunk, rows } => self.loaded(ts, chunk, rows),
            Event::Votes(votes) => {
                for vote in votes {
                    // What is not kept any more has been decided and is durable here.
                    if vote.ts > self.delivered || self.ballots.get(vote.ts).is_some() {
                        self.cast(&vote);
                    }
                }
            }
            Event::AskVotes { from, writes } => {
                let votes: Vec<Vote> = writes.into_iter().flat_map(|ts| self.ballots.votes(ts)).collect();
                if !votes.is_empty() {
                    self.effects.push(Effect::Send(from, Wire::Votes(votes)));
                }
            }
            Event::PeerDurable { from, ts, hashes, reply } => self.peer_durable(from, ts, hashes, reply),
            Event::CheckpointDone { ts } => self.checkpoint_done(ts),
            Event::CheckpointFailed { ts } => {
                self.writing.take_if(|writing| writing.ts == ts);
            }
            Event::Config(config) => {
                self.received = config.clone();
                self.stop_if_suspected();
                self.follow(config);
            }
            Event::BasicRead { read, now_ms } => match self.basic.take(read, self.frontier, now_ms) {
                Ok(delivery) => self.pending.extend(delivery),
                Err(id) => self.lose(id),
            },
            Event::Leased(asked_ms) => self.basic.leased(asked_ms),
            Event::RenewPin(ts) => {
                if let Some(pin) = self.pins.get_mut(&ts) {
                    pin.deadline_ms = self.now_ms + pin.lease_ms;
                }
            }
            Event::ReleasePin(ts) => {
                self.pins.remove(&ts);
            }
            Event::Cancel(id) => self.cancel(id),
            Event::Took { id, batches } => self.took_batches(id, batches),
            Event::ClientGone(client) => {
                // Its next life may have begun already: what that has asked must not be waited for in vain.
                if self.cancel_reads(|id| id.submitter == client) {
                    self.effects.push(Effect::Send(client, Wire::ReadsMissed));
                }
            }
            Event::Tick(now_ms) => self.tick(now_ms),
        }
        self.advance();
        let questions = std::mem::take(&mut self.questions);
        self.ask_votes(questions);
        std::mem::take(&mut self.effects)
    }

    fn receive(&mut self, deliveries: Vec<Delivery>, frontier: Ts) {
        let mut last = Ts::ZERO;
        let received = self.frontier;
        for delivery in deliveries {
            let is_ordered = delivery.message.id.is_ordered();
            let in_order = if is_ordered { delivery.ts > last } else { delivery.ts >= last };
            assert!(in_order, "delivery {} after {last}", delivery.ts);
            assert!(delivery.ts <= frontier, "delivery {} beyond the frontier {frontier}", delivery.ts);
            last = delivery.ts;
            if !is_ordered {
                if delivery.ts < received {
                    // The rows of that time may be gone.
                    self.lose(delivery.message.id);
                } else {
                    self.pending.push_back(delivery);
                }
                continue;
            }
            if delivery.ts <= received {
                continue;
            }
            self.look_ahead(&delivery);
            if let Some(staged) = staged_insert(&delivery) {
                self.effects.push(Effect::Keep(staged.id));
                let holders: BTreeSet<ProcessId> =
                    staged.parts.iter().flat_map(|part| part.holders.iter().copied()).collect();
                self.payloads.insert(delivery.ts, (staged.id, holders.into_iter().collect()));
            }
            self.pending.push_back(delivery);
        }
        if frontier > self.frontier {
            self.frontier = frontier;
            self.pending.extend(self.basic.reached(frontier));
        }
    }

    /// A suspected process may wait for votes that nobody keeps for it, and so never come to the message that says so.
    fn look_ahead(&mut self, delivery: &Delivery) {
        if let Body::Configuration(_) = &delivery.message.body
            && let Ok(Some(config)) = self.received.apply(&delivery.message, delivery.ts)
        {
            self.received = Arc::new(config);
            self.stop_if_suspected();
        }
    }

    /// Nothing ordered behind its suspicion is delivered here, so what this process has is no replica of anything.
    fn stop_if_suspected(&mut self) {
        if self.received.is_suspected(self.options.id) {
            self.effects.push(Effect::Stop("it is suspected of having failed".into()));
        }
    }

    /// A snapshot or basic read cannot be answered.
    fn lose(&mut self, id: MessageId) {
        self.effects.push(Effect::Send(id.submitter, Wire::ReadsLost(vec![id])));
    }

    fn loaded(&mut self, ts: Ts, chunk: usize, rows: Result<RowBatch, String>) {
        let time = local(ts);
        let rows = match rows {
            Ok(rows) => rows,
            Err(reason) => return self.effects.push(Effect::Stop(reason)),
        };
        let Some(supplying) = self.supplying.get_mut(&time) else { return };
        supplying.early.insert(chunk, rows);
        while let Some(rows) = supplying.early.remove(&supplying.supplied) {
            supplying.supplied += 1;
            let (rows, last) = (Arc::new(rows), supplying.supplied == supplying.chunks.len());
            for shard in 0..self.options.shards {
                let rows = rows.clone();
                self.effects.push(Effect::Supply { shard, ts: time, rows, last });
            }
        }
    }

    /// A shard does not need a chunk any more.
    fn took(&mut self, shard: usize, time: Ts) {
        let Some(supplying) = self.supplying.get_mut(&time) else { return };
        supplying.taken[shard] += 1;
        if supplying.taken.iter().all(|taken| *taken == supplying.chunks.len()) {
            self.supplying.remove(&time);
        } else {
            self.ask_chunks(time);
        }
    }

    /// Asks for the next chunks of a payload: few, so that they take little memory.
    fn ask_chunks(&mut self, time: Ts) {
        let Some(supplying) = self.supplying.get_mut(&time) else { return };
        let taken = supplying.taken.iter().copied().min().unwrap_or(0);
        while supplying.asked < supplying.chunks.len().min(taken + CHUNKS_AHEAD) {
            let (part, number) = supplying.chunks[supplying.asked];
            self.effects.push(Effect::Load(ChunkWanted {
                ts: supplying.ts,
                payload: supplying.payload.clone(),
                chunk: supplying.asked,
                part,
                number,
            }));
            supplying.asked += 1;
        }
    }

    /// Gives pending deliveries to the shards, as far as possible, and begins a checkpoint whose time has come.
    fn advance(&mut self) {
        // A read that waits for its reader does no work.
        while self.running.len() - self.stalled.len() < self.options.running
            && let Some(delivery) = self.pending.pop_front()
        {
            self.delivered = delivery.ts;
            self.process(delivery);
        }
        if self.pending.is_empty() {
            self.delivered = self.frontier;
        }
        if self.writing.is_none()
            && let Some((ts, catalog, passed)) =
                self.requested.take_if(|(ts, ..)| !runs_before(&self.writes, *ts))
        {
            let tables = catalog.tables().cloned().collect();
            let reads = BTreeMap::new();
            self.writing = Some(Writing { ts, tables, reads, hashes: BTreeMap::new(), complete: false });
            let ballots = self.ballots.up_to(ts);
            self.effects.push(Effect::BeginCheckpoint { ts, catalog, ballots, passed });
            self.read_next_table();
        }
        if !self.drops.is_empty() && !self.is_reading_checkpoint() {
            for table in std::mem::take(&mut self.drops) {
                let time = self.next_local();
                self.submit_to_all(time, time, table, OperationKind::DropTable);
            }
        }
    }

    /// Whether some checkpoint needs rows that are no longer in the catalog.
    fn is_reading_checkpoint(&self) -> bool {
        self.requested.is_some() || self.writing.as_ref().is_some_and(|writing| !writing.complete)
    }

    /// A local time for an operation of the process's own, after everything that has been submitted.
    fn next_local(&mut self) -> Ts {
        let time = Ts(self.submitted.0.max(local(self.delivered).0) + 1);
        assert_eq!(
            global(time),
            self.delivered.max(global(self.submitted)),
            "too many operations between two messages"
        );
        time
    }

    /// Whether a read can have a local time of its own.
    fn has_local(&self) -> bool {
        let last = self.submitted.0.max(local(self.delivered).0);
        global(Ts(last + OWN_OPERATIONS)) == self.delivered
    }

    fn submit_to_all(&mut self, time: Ts, read_ts: Ts, table: TableId, kind: OperationKind) {
        let operation = Arc::new(Operation { table, context: Default::default(), kind });
        self.submit(OrderedOperation {
            ts: time,
            read_ts,
            operation,
            ranges: self.held.clone(),
            undecided: false,
            window: None,
        });
    }

    fn submit(&mut self, operation: OrderedOperation) {
        assert!(operation.ts > self.submitted, "operations are submitted in the order of their time");
        self.submitted = operation.ts;
        for shard in 0..self.options.shards {
            self.effects.push(Effect::Submit { shard, operation: operation.clone() });
        }
    }

    /// Reads rows and content hashes of the next table of a checkpoint; without one, its files can be completed.
    fn read_next_table(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        let ts = writing.ts;
        let Some(table) = writing.tables.pop_front() else {
            writing.complete = true;
            let hashes: Vec<ContentHash> = std::mem::take(&mut writing.hashes)
                .into_iter()
                .map(|((table, range), hash)| (table, range, hash))
                .collect();
            self.hashes_at = (ts, hashes.clone());
            self.effects.push(Effect::EndCheckpoint { ts, hashes });
            return;
        };
        let column = |(index, column): (usize, &carousel_engine::schema::Column)| {
            Expr::column(index, column.ty.clone())
        };
        let projection = table.columns.iter().enumerate().map(column).collect();
        for output in [ReadOutput::Rows { projection, top: None }, ReadOutput::ContentHash] {
            let time = self.next_local();
            let executing = (0..self.options.shards).collect();
            if let Some(writing) = &mut self.writing {
                writing.reads.insert(time, CheckpointRead { table: table.clone(), executing });
            }
            let read = OperationKind::Read(Read { predicate: Vec::new(), output });
            self.submit_to_all(time, local(ts), table.id, read);
        }
    }

    /// Takes the effect of a checkpoint's read; gives back any other.
    fn checkpoint_effect(&mut self, shard: usize, effect: ShardEffect) -> Option<ShardEffect> {
        let Some(writing) = &mut self.writing else { return Some(effect) };
        match effect {
            ShardEffect::Rows { ts, range, batch } if writing.reads.contains_key(&ts) => {
                let table = writing.reads[&ts].table.clone();
                match RecordBatch::try_new(table.arrow(), batch.columns().to_vec()) {
                    Ok(batch) => self.effects.push(Effect::CheckpointRows { table, range, batch }),
                    Err(e) => self
                        .effects
                        .push(Effect::Stop(format!("table {} has other columns: {e}", table.name))),
                }
            }
            ShardEffect::ContentHash { ts, range, hash } => {
                if let Some(read) = writing.reads.get(&ts) {
                    let sum = writing.hashes.entry((read.table.id, range)).or_default();
                    *sum = sum.wrapping_add(hash);
                }
            }
            ShardEffect::Executed { ts, outcomes } if writing.reads.contains_key(&ts) => {
                if let Some(error) = outcomes.into_iter().find_map(|(_, outcome)| outcome.err()) {
                    self.effects.push(Effect::Stop(format!("a checkpoint cannot read a table: {error}")));
                    return None;
                }
                let done = writing.reads.get_mut(&ts).is_some_and(|read| {
                    read.executing.remove(&shard);
                    read.executing.is_empty()
                });
                if done {
                    writing.reads.remove(&ts);
                }
                if writing.reads.is_empty() {
                    self.read_next_table();
                }
            }
            other => return Some(other),
        }
        None
    }

    fn process(&mut self, delivery: Delivery) {
        let ts = delivery.ts;
        let message = delivery.message.clone();
        self.logged += weight(&message.body);
        if message.id.is_ordered() {
            self.passed.insert(message.id.submitter, message.id);
        }
        match &message.body {
            Body::Data(data) => self.process_data(&delivery, data),
            Body::Ddl(ddl) => self.process_ddl(ts, ddl),
            Body::Pin { lease_ms } => {
                let lease_ms = u64::from(*lease_ms);
                self.pins.insert(ts, PinLease { lease_ms, deadline_ms: self.now_ms + lease_ms });
                self.answer(message.id, ts, AnswerPart::Done { outcomes: Vec::new() });
            }
            Body::Checkpoint => {
                // A newer checkpoint makes one that has not begun unnecessary.
                self.requested = Some((ts, self.catalog.clone(), self.passed.values().copied().collect()));
                self.logged = 0;
                self.answer(message.id, ts, AnswerPart::Done { outcomes: Vec::new() });
            }
            Body::Configuration(_) => {
                // An error is the outcome of the message: its submitter finds the same one.
                if let Ok(Some(config)) = self.options.config.apply(&message, ts) {
                    self.follow(Arc::new(config));
                    self.forget();
                }
            }
        }
    }

    /// Another config is in force.
    fn follow(&mut self, config: Arc<Config>) {
        let id = self.options.id;
        if config.is_suspected(id) {
            // It has stopped.
            return;
        }
        if config.held(id) != self.held {
            // Client processes refuse to submit keyspace messages.
            let reason = "the ring has changed, and moving rows is not supported yet";
            return self.effects.push(Effect::Stop(reason.into()));
        }
        self.options.config = config;
    }

    fn process_ddl(&mut self, ts: Ts, ddl: &Ddl) {
        // A failure is the outcome of the message: the client finds it in its own catalog.
        let Ok(effect) = Arc::make_mut(&mut self.catalog).apply(ts, ddl) else { return };
        for schema in effect.created {
            let time = if self.submitted < local(ts) { local(ts) } else { self.next_local() };
            self.submit_to_all(time, time, schema.id, OperationKind::CreateTable(schema));
        }
        // Nothing can name the table any more, except a checkpoint of an earlier `Ts`.
        self.drops.extend(effect.dropped);
    }

    fn process_data(&mut self, delivery: &Delivery, data: &Data) {
        let (ts, message) = (delivery.ts, &delivery.message);
        self.note_life(message.id);
        let is_write = data.operation.is_write();
        let operation = match data.operation.open() {
            Ok(operation) => operation.clone(),
            Err(error) => return self.fail(delivery, error),
        };
        let is_ordered = message.id.is_ordered();
        // A basic read was sent here because of the config that its client knows.
        let routed = delivery.config_version == self.options.config.version()
            && delivery.ranges.iter().all(|range| self.held.contains(range));
        if !(is_ordered || routed && self.has_local()) {
            return self.lose(message.id);
        }
        let read_ts = data.read_ts.unwrap_or(ts);
        let in_time = staged_insert(delivery).is_none_or(|staged| staged_in_time(delivery, staged));
        if !in_time || !self.catalog.is_current(&message.tables) {
            return self.answer(message.id, ts, AnswerPart::Stale);
        }
        if read_ts != ts && !self.pins.contains_key(&read_ts) {
            let error = SqlError::new(SqlState::SERIALIZATION_FAILURE, "snapshot too old")
                .with_detail("The rows that the statement began to read are not kept any more.")
                .with_hint("Run the statement again.");
            return self.fail(delivery, error);
        }
        let mut chunks = Vec::new();
        if let OperationKind::Insert(insert) = &operation.kind
            && let InsertRows::Staged(id) = insert.rows
        {
            let Some(staged) = data.staged.as_ref().filter(|staged| staged.id == id) else {
                return self.fail(delivery, SqlError::internal("an INSERT does not describe its payload"));
            };
            chunks = chunks_in(staged, &delivery.ranges);
            if chunks.is_empty() {
                // No row of the payload lies in the ranges that are held here.
                let outcomes = delivery.ranges.iter().map(|range| (*range, Ok(0))).collect();
                return self.answer(message.id, ts, AnswerPart::Done { outcomes });
            }
        }
        if delivery.ranges.is_empty() {
            return self.answer(message.id, ts, AnswerPart::Done { outcomes: Vec::new() });
        }
        let cancelled = self.cancelled.remove(&message.id);
        if cancelled && !is_write {
            return;
        }
        if is_write && let Some(range) = self.options.config.without_holder(&message.ranges) {
            // It has no effect anywhere (DESIGN, decision 4).
            let message = format!("no live storage process holds key range {range}");
            return self.fail(delivery, SqlError::new(SqlState::UNAVAILABLE, message));
        }
        let affected = self.options.config.overlapping(&message.ranges);
        let undecided = is_write && data.fallible && (affected.len() > 1 || self.options.shards > 1);
        if undecided {
            let holders: BTreeSet<ProcessId> =
                affected.iter().flat_map(|range| self.options.config.holders(*range)).collect();
            let others = holders.into_iter().filter(|holder| *holder != self.options.id).collect();
            self.ballots.open(ts, affected, others);
            if self.catching_up {
                self.questions.push(ts);
            }
        }
        let time = if is_ordered { local(ts) } else { self.next_local() };
        let running = Running {
            answer: (!cancelled).then_some(message.id),
            read_ts,
            is_write,
            undecided,
            executing: (0..self.options.shards).collect(),
            outcomes: delivery.ranges.iter().map(|range| (*range, Ok(0))).collect(),
            rows: Vec::new(),
            returned_bytes: 0,
            unread: VecDeque::new(),
        };
        if is_write {
            self.writes.insert(time);
        }
        if !cancelled {
            self.by_message.insert(message.id, time);
        }
        self.running.insert(time, running);
        let ranges = delivery.ranges.clone();
        // What is read at the present time sees all messages up to it.
        let read_ts = if read_ts == ts { time } else { local(read_ts) };
        let undecided = undecided && !planted(Bug::ReadBeforeDecision);
        let window = (!is_write).then_some(READ_WINDOW);
        self.submit(OrderedOperation { ts: time, read_ts, operation, ranges, undecided, window });
        if let Some(staged) = data.staged.as_ref().filter(|_| !chunks.is_empty()) {
            let payload = Arc::new(staged.clone());
            let taken = vec![0; self.options.shards];
            let supplying =
                Supplying { ts, payload, chunks, asked: 0, supplied: 0, early: BTreeMap::new(), taken };
            self.supplying.insert(time, supplying);
            self.ask_chunks(time);
        }
    }

    fn shard_effect(&mut self, shard: usize, effect: ShardEffect) {
        let Some(effect) = self.checkpoint_effect(shard, effect) else { return };
        match effect {
            ShardEffect::Rows { ts: time, range, batch } => {
                let ts = global(time);
                let Some(running) = self.running.get_mut(&time) else { return };
                let bytes = if running.is_write { size_of_cells(&batch) } else { 0 };
                let part = AnswerPart::Rows { range, batch };
                match running.answer {
                    Some(_) if running.is_write => {
                        running.returned_bytes += bytes;
                        self.returned_bytes += bytes;
                        running.rows.push(part);
                    }
                    Some(id) => {
                        running.unread.push_back(shard);
                        self.answer(id, ts, part);
                        self.note_stalled(time);
                    }
                    None => {}
                }
            }
            ShardEffect::Groups { ts: time, groups } => {
                if let Some(Running { answer: Some(id), .. }) = self.running.get(&time) {
                    self.answer(*id, global(time), AnswerPart::Groups(groups));
                }
            }
            // Changes of the catalog are not among the running operations: they cannot fail.
            ShardEffect::Executed { ts: time, outcomes } => self.executed_by(shard, time, outcomes),
            ShardEffect::Took { ts: time } => self.took(shard, time),
            ShardEffect::ContentHash { .. } => {}
        }
    }

    fn executed_by(&mut self, shard: usize, time: Ts, outcomes: Vec<(KeyRange, Result<u64, SqlError>)>) {
        let ts = global(time);
        self.stalled.remove(&time);
        let Some(running) = self.running.get_mut(&time) else { return };
        assert!(running.executing.remove(&shard), "shard {shard} executed {ts} twice");
        for (range, outcome) in outcomes {
            let known = running.outcomes.entry(range).or_insert(Ok(0));
            match (outcome, &mut *known) {
                (Ok(rows), Ok(sum)) => *sum += rows,
                (Ok(_), Err(_)) => {}
                (Err(error), known) => {
                    // A read that finds no room concerns nobody but its reader.
                    let is_refused = !running.is_write && error.code == SqlState::OUT_OF_MEMORY;
                    if !error.is_deterministic() && !is_refused {
                        self.effects
                            .push(Effect::Stop(format!("the operation at {ts} failed here only: {error}")));
                    }
                    // Shards finish in any order; the error that counts is that of the first one.
                    if known.as_ref().err().is_none_or(|(first, _)| shard < *first) {
                        *known = Err((shard, error));
                    }
                }
            }
        }
        if !running.executing.is_empty() {
            return;
        }
        if !running.undecided {
            return self.end(time, None);
        }
        let votes: Vec<Vote> = self
            .outcomes(time)
            .into_iter()
            .map(|(range, outcome)| Vote {
                ts,
                range,
                vote: if outcome.is_ok() { Decision::Commit } else { Decision::Abort },
            })
            .collect();
        let holders = self.ballots.get(ts).map(|ballot| ballot.holders().to_vec()).unwrap_or_default();
        for holder in holders {
            self.effects.push(Effect::Send(holder, Wire::Votes(votes.clone())));
        }
        for vote in votes {
            self.cast(&vote);
        }
        self.decide(ts);
    }

    fn cast(&mut self, vote: &Vote) {
        match self.ballots.cast(vote) {
            Ok(()) => self.decide(vote.ts),
            Err(reason) => self.effects.push(Effect::Stop(reason)),
        }
    }

    /// Ends an undecided write that has been executed here, if its votes allow.
    fn decide(&mut self, ts: Ts) {
        let time = local(ts);
        let executed = self.running.get(&time).is_some_and(|r| r.undecided && r.executing.is_empty());
        if executed && let Some(decision) = self.ballots.get(ts).and_then(Ballot::decision) {
            self.end(time, Some(decision));
        }
    }

    /// Whether votes about a write are kept here.
    pub(crate) fn keeps_votes(&self, ts: Ts) -> bool {
        self.ballots.get(ts).is_some()
    }

    /// Whether a write has been begun here that others must vote about before it is decided.
    pub(crate) fn needs_votes(&self, ts: Ts) -> bool {
        let is_undecided = self.running.get(&local(ts)).is_some_and(|running| running.undecided);
        let ballot = self.ballots.get(ts).filter(|ballot| is_undecided && ballot.decision().is_none());
        ballot.is_some_and(|ballot| ballot.missing().any(|range| !self.held.contains(&range)))
    }

    /// The ranges whose votes are missing about writes that have been executed here.
    pub(crate) fn missing_votes(&self) -> impl Iterator<Item = KeyRange> {
        let waiting = self.running.iter().filter(|(_, running)| running.undecided);
        waiting.filter_map(|(time, _)| self.ballots.get(global(*time))).flat_map(Ballot::missing)
    }

    /// Outcomes by primary range.
    fn outcomes(&self, time: Ts) -> Vec<(KeyRange, Result<u64, SqlError>)> {
        let outcomes = self.running.get(&time).into_iter().flat_map(|running| &running.outcomes);
        outcomes.map(|(range, outcome)| (*range, outcome.clone().map_err(|(_, error)| error))).collect()
    }

    /// Everything about an operation is known: the shards hear the decision, the client is answered.
    fn end(&mut self, time: Ts, decision: Option<Decision>) {
        let ts = global(time);
        let mut outcomes = self.outcomes(time);
        let Some(running) = self.running.remove(&time) else { return };
        self.returned_bytes -= running.returned_bytes;
        self.writes.remove(&time);
        if let Some(decision) = decision {
            for shard in 0..self.options.shards {
                self.effects.push(Effect::Decide { shard, ts: time, decision });
            }
        }
        let failed =
            decision == Some(Decision::Abort) || outcomes.iter().any(|(_, outcome)| outcome.is_err());
        if running.is_write && failed {
            // Nothing was changed anywhere. The ranges that did not fail say so; the error is that of one that did.
            for (_, outcome) in &mut outcomes {
                if let Ok(rows) = outcome {
                    *rows = 0;
                }
            }
        }
        if let Some(id) = running.answer {
            self.by_message.remove(&id);
            if !failed {
                for rows in running.rows {
                    self.answer(id, ts, rows);
                }
            }
            self.answer(id, ts, AnswerPart::Done { outcomes });
        }
    }

    fn fail(&mut self, delivery: &Delivery, error: SqlError) {
        let outcomes = delivery.ranges.iter().map(|range| (*range, Err(error.clone()))).collect();
        self.answer(delivery.message.id, delivery.ts, AnswerPart::Done { outcomes });
    }

    fn answer(&mut self, id: MessageId, ts: Ts, part: AnswerPart) {
        self.effects.push(Effect::Answer(id.submitter, Answer { id, ts, part }));
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.pins.retain(|_, pin| pin.deadline_ms >= now_ms);
        // Votes can be lost when either side restarts.
        let waiting = self.running.iter().filter(|(_, r)| r.undecided && r.executing.is_empty());
        let waiting = waiting.map(|(time, _)| global(*time)).collect();
        self.ask_votes(waiting);
        if self.executed() == self.frontier && self.frontier > self.recovered {
            self.catching_up = false;
        }
    }

    /// Asks for the votes that are missing about some writes.
    fn ask_votes(&mut self, writes: Vec<Ts>) {
        let mut questions: BTreeMap<ProcessId, Vec<Ts>> = BTreeMap::new();
        for ts in writes {
            let Some(ballot) = self.ballots.get(ts).filter(|ballot| ballot.decision().is_none()) else {
                continue;
            };
            let asked: BTreeSet<ProcessId> =
                ballot.missing().flat_map(|range| self.options.config.holders(range)).collect();
            for process in asked.into_iter().filter(|process| *process != self.options.id) {
                questions.entry(process).or_default().push(ts);
            }
        }
        for (process, writes) in questions {
            self.effects.push(Effect::Send(process, Wire::AskVotes(writes)));
        }
    }

    fn executed(&self) -> Ts {
        // A read changes nothing, and may have to wait for its reader.
        match self.writes.first() {
            Some(oldest) => global(Ts(oldest.0 - 1)),
            None => self.delivered,
        }
    }

    fn checkpoint_done(&mut self, ts: Ts) {
        let written = self.writing.take().filter(|writing| writing.complete).map(|writing| writing.ts);
        assert_eq!(written, Some(ts), "checkpoint {ts} was not being written");
        self.durable = ts;
        self.hashes = std::mem::take(&mut self.hashes_at.1);
        for peer in self.peers_of_ring().collect::<Vec<_>>() {
            self.effects.push(Effect::Send(peer, self.durable_wire(false)));
        }
        let peers: Vec<ProcessId> = self.peers.keys().copied().collect();
        for peer in peers {
            self.compare(peer);
        }
        self.forget();
    }

    fn peer_durable(&mut self, from: ProcessId, ts: Ts, hashes: Vec<ContentHash>, reply: bool) {
        self.peers.insert(from, (ts, hashes));
        if reply {
            self.effects.push(Effect::Send(from, self.durable_wire(false)));
        }
        self.compare(from);
        self.forget();
    }

    /// Replicas at the same checkpoint must hold the same rows.
    fn compare(&mut self, peer: ProcessId) {
        let Some((ts, hashes)) = self.peers.get(&peer) else { return };
        if *ts != self.durable {
            return;
        }
        let theirs: HashMap<(TableId, KeyRange), u128> =
            hashes.iter().map(|(table, range, hash)| ((*table, *range), *hash)).collect();
        for (table, range, hash) in &self.hashes {
            if theirs.get(&(*table, *range)).is_some_and(|other| other != hash) {
                self.effects.push(Effect::Stop(format!(
                    "table {} differs from the replica at {peer} in range {range} at checkpoint {ts}",
                    table.0
                )));
                return;
            }
        }
    }

    /// Forgets votes and payloads that nobody will replay.
    fn forget(&mut self) {
        let (peers, config) = (&self.peers, &self.options.config);
        // A suspected process replays nothing.
        let durable = |process: ProcessId| match config.is_suspected(process) {
            true => Ts::INFINITY,
            false => peers.get(&process).map_or(Ts::ZERO, |(ts, _)| *ts),
        };
        self.ballots.forget(self.durable, durable);
        let own = self.options.id;
        let passed: Vec<Ts> = self
            .payloads
            .range(..=self.durable)
            .filter(|(ts, (_, holders))| {
                holders.iter().all(|holder| *holder == own || durable(*holder) >= **ts)
            })
            .map(|(ts, _)| *ts)
            .collect();
        for ts in passed {
            if let Some((payload, _)) = self.payloads.remove(&ts) {
                self.effects.push(Effect::Forget(payload));
            }
        }
    }

    fn peers_of_ring(&self) -> impl Iterator<Item = ProcessId> {
        self.options.config.storage_processes().filter(|process| *process != self.options.id)
    }

    fn durable_wire(&self, reply: bool) -> Wire {
        Wire::Durable { ts: self.durable, hashes: self.hashes.clone(), reply }
    }
}

/// Approximate bytes of a message in the log and in a replay.
fn weight(body: &Body) -> u64 {
    match body {
        Body::Data(data) => {
            512 + data.operation.weight() as u64 + if data.staged.is_some() { 4096 } else { 0 }
        }
        Body::Ddl(_) => 1024,
        Body::Pin { .. } | Body::Checkpoint | Body::Configuration(_) => 0,
    }
}

fn runs_before(writes: &BTreeSet<Ts>, ts: Ts) -> bool {
    writes.range(..local(ts)).next().is_some()
}

/// The chunks of a payload that lie in these ranges, by part and number.
fn chunks_in(staged: &StagedPayload, ranges: &[KeyRange]) -> Vec<(usize, usize)> {
    let held = staged.parts.iter().enumerate().filter(|(_, part)| ranges.contains(&part.range));
    held.flat_map(|(index, part)| (0..part.checksums.len()).map(move |number| (index, number))).collect()
}

/// The staged payload of a delivery that is an INSERT of one.
fn staged_insert(delivery: &Delivery) -> Option<&StagedPayload> {
    match &delivery.message.body {
        Body::Data(data) => data.staged.as_ref().filter(|_| match data.operation.open() {
            Ok(operation) => matches!(&operation.kind, OperationKind::Insert(insert)
                if matches!(insert.rows, InsertRows::Staged(_))),
            Err(_) => false,
        }),
        _ => None,
    }
}

/// Whether a staged payload lies where it is needed and the message came in time.
fn staged_in_time(delivery: &Delivery, staged: &StagedPayload) -> bool {
    staged.config_version == delivery.config_version && delivery.ts <= staged.latest
}
