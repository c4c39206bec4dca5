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
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    Few, SqlError, SqlState, TableId, Ts,
    array::size_of_cells,
    operation::{
        Decision, Effect as ShardEffect, InsertRows, Operation, OperationKind, OrderedOperation, PayloadId,
        Read, ReadOutput,
    },
    position::{KeyRange, covers},
};
use hashbrown::{HashMap, HashSet};
use postcard::experimental::serialized_size;
use smallvec::SmallVec;

mod checkpoints;
mod interface;
mod late;
mod moving;
mod pending;
mod precut;
mod readers;
mod returning;
mod serving;
mod supplies;
mod votes;

pub use self::interface::{ChunkWanted, ContentHash, CoreOptions, Effect, Event, Recovered};
pub(crate) use self::moving::{given_up, removed};
use self::{
    checkpoints::{Keeping, OnTheirWay, Writing},
    late::{Late, in_time, late},
    moving::Moving,
    pending::Pending,
    precut::Precut,
    returning::{AT_ONCE, Kept},
    supplies::{Supplying, chunks_in, staged_in_time, staged_insert},
    votes::Nowhere,
};
use super::{
    ballot::{Ballot, Ballots},
    basic::BasicReads,
    migration,
    scan::ShardCommand,
};
use crate::{
    catalog::Catalog,
    config::Config,
    message::{Body, Data, Ddl, Incarnation, Message, MessageId, ProcessId, ProcessKind},
    planted::{Bug, planted},
    wire::{Answer, AnswerPart, Choice, Delivery, Vote, Watermarks, Wire},
};

/// Batches of the answer of a read that a shard may send before its reader has taken some.
const READ_WINDOW: u32 = 8;
/// Batches of rows of a checkpoint that a shard gathers before it looks at others' operations again.
const CHECKPOINT_WINDOW: u32 = 1;
/// Cancellations that are remembered until their message is delivered.
const REMEMBERED_CANCELLATIONS: usize = 4096;
/// A process that has restarted does not believe before that it has executed all that was ordered meanwhile. When the routers
/// have restarted as well they learn it again little by little, and all that they know of may have been executed early.
const SEEMS_DONE_MS: u64 = 5_000;
/// Messages behind which a process may be that has caught up with the others.
const ON_ITS_WAY: u64 = 1_000;
/// Who has not run for so long was suspended, or the machine was.
const PAUSE_MS: u64 = 5_000;

/// What is known of an operation in one range: rows, or the error and the shard that it comes from.
type Known = Result<u64, (usize, SqlError)>;

/// An operation that shards work on.
#[derive(Debug)]
struct Running {
    /// Kept so that it is freed by the thread that made it: what another one frees costs both of them more.
    _operation: Arc<Operation>,
    /// Who waits for the answer; none when it was cancelled or nobody is answered.
    answer: Option<MessageId>,
    read_ts: Ts,
    is_write: bool,
    undecided: bool,
    /// Its ranges vote about how it ends.
    has_ballot: bool,
    /// Shards that have not executed it.
    executing: SmallVec<[usize; 4]>,
    /// Outcomes of the primary ranges it acts on here, ascending, with the shard that failed.
    outcomes: SmallVec<[(KeyRange, Known); 1]>,
    /// Rows of a write, held back until its end.
    rows: Vec<(KeyRange, RecordBatch)>,
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
    /// The primary ranges that are held here.
    held: Vec<KeyRange>,
    /// The local time of the last operation.
    submitted: Ts,
    /// The last message behind which an empty one was asked for.
    moved_on: Ts,
    catalog: Arc<Catalog>,
    /// Deliveries that have not been given to the shards.
    pending: Pending,
    /// Everything up to here has been received.
    frontier: Ts,
    /// Everything up to here has been given to the shards.
    delivered: Ts,
    durable: Ts,
    /// The part of that which others may count on, see [`Core::tell_durable`].
    told_durable: Ts,
    /// By their local times.
    running: BTreeMap<Ts, Box<Running>>,
    /// Bytes of the rows that writes among them will return, and of what is kept.
    returned_bytes: u64,
    /// More of them than so many bytes are kept.
    returned_at_once: u64,
    /// What writers have not asked for yet, or not taken.
    kept: BTreeMap<MessageId, Kept>,
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
    /// The last message of each submitter that has come since this life began.
    received: BTreeMap<ProcessId, MessageId>,
    cancelled: HashSet<MessageId>,
    ballots: Ballots,
    /// Votes that are missing, as far as others have said that they do not have them.
    nowhere: BTreeMap<(Ts, KeyRange), Nowhere>,
    /// How often votes were asked for.
    questions_asked: u64,
    /// Others may have heard votes from this life.
    has_told_votes: bool,
    pins: BTreeMap<Ts, PinLease>,
    /// Pins that were released before they were delivered here.
    released: BTreeSet<Ts>,
    /// Checkpoints that wait for the execution of what was ordered before them, and the one being written.
    requested: VecDeque<Writing>,
    writing: Option<Writing>,
    /// What is received, or is not durable yet, oldest first.
    keeping: VecDeque<Keeping>,
    /// Rows of checkpoints that the disk has not taken.
    on_their_way: VecDeque<OnTheirWay>,
    moving: Moving,
    precut: Precut,
    late: Late,
    /// Dropped tables whose rows a checkpoint still needs.
    drops: Vec<TableId>,
    /// Something of its own waits for local times.
    out_of_times: bool,
    hashes: Vec<ContentHash>,
    /// Content hashes of the checkpoint that is not durable yet.
    hashes_at: (Ts, Vec<ContentHash>),
    /// Durable watermarks of other storage processes, with their content hashes.
    peers: BTreeMap<ProcessId, (Ts, Vec<ContentHash>)>,
    /// When others were asked last how far they are durable.
    asked_durable_ms: u64,
    /// Payloads by the message that names them.
    payloads: BTreeMap<Ts, (PayloadId, Vec<ProcessId>)>,
    logged: u64,
    /// Bytes of the staged rows that have been loaded for INSERTs behind `checkpoint_ordered`.
    staged: u64,
    /// Where the last checkpoint message was: rows of INSERTs before it, however late they are loaded, are in that checkpoint.
    checkpoint_ordered: Ts,
    /// From a restart until all that was ordered meanwhile has been executed: the others have voted long ago.
    catching_up: bool,
    /// Since when it has been executing what has just been ordered.
    seemed_done_ms: Option<u64>,
    /// Where this life began.
    recovered: Ts,
    /// Writes whose votes are to be asked for.
    questions: Vec<Ts>,
    basic: BasicReads,
    now_ms: u64,
    effects: Vec<Effect>,
}

/// Bits of local time below a message's `Ts`.
const LOCAL_BITS: u32 = 18;
/// Local times between two messages that are kept for the process's own operations.
const OWN_OPERATIONS: u64 = 1 << 12;
/// A good value for [`CoreOptions::between`]: while the empty message is on its way, there are times for three times as many.
pub(crate) const BETWEEN: u64 = 1 << 14;

/// The time of a shard at a message: later than everything between it and the message before.
///
/// # Panics
/// When the m-seq has more than 2^46 messages.
pub fn local(ts: Ts) -> Ts {
    assert!(ts.0 < 1 << (64 - LOCAL_BITS), "the m-seq is exhausted");
    Ts(ts.0 << LOCAL_BITS)
}

/// The last of a shard's times before the next message.
fn end(ts: Ts) -> Ts {
    Ts(local(Ts(ts.0 + 1)).0 - 1)
}

/// The message at or before a shard's time.
pub(crate) fn global(local: Ts) -> Ts {
    Ts(local.0 >> LOCAL_BITS)
}

impl Core {
    /// The process after it has recovered a checkpoint (or nothing), to be subscribed after [`Recovered::ts`].
    pub fn new(mut options: CoreOptions, mut recovered: Recovered) -> Core {
        if planted(Bug::CheckpointTooFar) && recovered.ts > Ts::ZERO {
            recovered.ts = Ts(recovered.ts.0 + 1);
        }
        if let Some(config) = &recovered.config {
            options.config = config.clone();
        }
        let moving = Moving::new(&options, &recovered);
        let held = moving.held_in(&options.config, options.id);
        let told_durable = moving.counts_until(recovered.ts, options.id);
        let drops = recovered.dropped().into_iter().map(|table| table.id).collect();
        let mut ballots = Ballots::restore(recovered.ballots);
        let mut kept = recovered.kept.into_iter().map(|kept| kept.ballots);
        let differ = kept.try_for_each(|votes| ballots.receive(options.id, votes)).err();
        let kept_payloads: Vec<Effect> =
            recovered.payloads.iter().map(|(_, id, _)| Effect::Keep(*id)).collect();
        Core {
            hashes: if held.is_empty() { Vec::new() } else { recovered.hashes },
            moving,
            precut: Precut::default(),
            options,
            held,
            submitted: local(recovered.ts),
            moved_on: Ts::ZERO,
            catalog: recovered.catalog,
            pending: Pending::default(),
            frontier: recovered.ts,
            delivered: recovered.ts,
            durable: recovered.ts,
            told_durable,
            running: BTreeMap::new(),
            returned_bytes: 0,
            returned_at_once: AT_ONCE,
            kept: BTreeMap::new(),
            supplying: BTreeMap::new(),
            writes: BTreeSet::new(),
            stalled: BTreeSet::new(),
            lives: HashMap::new(),
            received: BTreeMap::new(),
            passed: recovered.passed.into_iter().map(|id| (id.submitter, id)).collect(),
            by_message: HashMap::new(),
            cancelled: HashSet::new(),
            ballots,
            nowhere: BTreeMap::new(),
            questions_asked: 0,
            has_told_votes: false,
            pins: BTreeMap::new(),
            released: BTreeSet::new(),
            requested: VecDeque::new(),
            writing: None,
            keeping: VecDeque::new(),
            on_their_way: VecDeque::new(),
            late: Late::default(),
            drops,
            out_of_times: false,
            hashes_at: (recovered.ts, Vec::new()),
            peers: BTreeMap::new(),
            asked_durable_ms: 0,
            payloads: recovered.payloads.into_iter().map(|(ts, id, holders)| (ts, (id, holders))).collect(),
            logged: 0,
            staged: 0,
            checkpoint_ordered: recovered.ts,
            catching_up: true,
            seemed_done_ms: None,
            recovered: recovered.ts,
            questions: Vec::new(),
            basic: BasicReads::default(),
            now_ms: 0,
            effects: kept_payloads.into_iter().chain(differ.map(Effect::Stop)).collect(),
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

    /// Of messages that are no reads, with the `Ts` at or before which each was ordered, those that will not be answered here,
    /// or have been in full.
    pub(crate) fn not_answered(&self, asked: Vec<(MessageId, Ts)>) -> Vec<MessageId> {
        let may_be_pending =
            |(id, by): &(MessageId, Ts)| self.frontier >= *by && !self.by_message.contains_key(id);
        let mut ended: BTreeSet<MessageId> =
            asked.into_iter().filter(may_be_pending).map(|(id, _)| id).collect();
        if !ended.is_empty() {
            for delivery in self.pending.iter() {
                ended.remove(&delivery.message.id);
            }
        }
        ended.into_iter().collect()
    }

    /// Deliveries that wait for their turn.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// About how many bytes their messages have.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending.bytes()
    }

    /// Approximate bytes of the messages that were given to the shards since the last checkpoint message.
    pub fn logged(&self) -> u64 {
        self.logged
    }

    /// Bytes of the staged rows that were given to the shards for INSERTs since the last checkpoint message.
    pub fn staged(&self) -> u64 {
        self.staged
    }

    /// Bytes of the rows that writes under way will return.
    pub fn returned_bytes(&self) -> u64 {
        self.returned_bytes
    }

    /// How far the process is.
    pub fn watermarks(&self, memory: u64) -> Watermarks {
        Watermarks {
            delivered: self.delivered,
            executed: self.executed(),
            durable: self.told_durable,
            memory,
        }
    }

    /// The oldest local time that may still be read: versions that ended before it can be collected.
    pub fn horizon(&self) -> Ts {
        let next = Ts(self.delivered.0 + 1);
        if planted(Bug::VersionCollectedTooEarly) {
            return local(next);
        }
        let running = self.running.values().map(|running| running.read_ts);
        let checkpoints = self.unread_checkpoints().map(Writing::oldest_needed);
        let needed = checkpoints.chain(self.pins.keys().next().copied()).chain(self.moving.oldest_needed());
        let oldest = running.chain(needed).fold(next, Ts::min);
        local(oldest)
    }

    /// Whether a checkpoint waits or is being written.
    pub fn is_checkpointing(&self) -> bool {
        !self.requested.is_empty() || self.writing.is_some()
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
            Event::Votes { from, incarnation, votes } => self.hear_votes(from, incarnation, votes),
            Event::AskVotes { from, missing } => self.tell_votes(from, missing),
            Event::NoVotes { from, incarnation, missing } => self.hear_no_votes(from, incarnation, missing),
            Event::PeerDurable { from, ts, hashes, reply } => self.peer_durable(from, ts, hashes, reply),
            Event::CheckpointTook => self.checkpoint_took(),
            Event::CheckpointDone { ts } => self.checkpoint_done(ts),
            Event::CheckpointFailed { ts } => self.checkpoint_failed(ts),
            Event::PartsEnded { keyspace, are_durable } => self.parts_ended(keyspace, are_durable),
            // What had been ordered before this life began may have been acknowledged.
            Event::BasicRead { read, .. } if self.frontier < self.moving.present.0 => {
                self.lose(read.message.id);
            }
            Event::BasicRead { read, now_ms } => match self.basic.take(read, self.frontier, now_ms) {
                Ok(delivery) => self.pending.extend(delivery),
                Err(id) => self.lose(id),
            },
            Event::Leased(asked_ms) => self.basic.leased(asked_ms),
            Event::Config { config, present } => {
                self.learn(config.clone(), present);
                self.follow(config);
            }
            Event::Present(ts, config) => self.know_present(ts, config),
            Event::Begin { ts, config, catalog, present } => self.begin(ts, config, catalog, present),
            Event::Moving(event) => self.migrate(event),
            Event::SentRowsLost(process) => self.lose_sent_rows(process),
            Event::RenewPin(ts) => {
                if let Some(pin) = self.pins.get_mut(&ts) {
                    pin.deadline_ms = self.now_ms + pin.lease_ms;
                }
            }
            Event::ReleasePin(ts) => {
                // It comes from the client itself, and may be here before the pin.
                if self.pins.remove(&ts).is_none() && ts > self.delivered {
                    self.released.insert(ts);
                }
            }
            Event::Precut { from, request, at } => self.precut(from, request, &at),
            Event::Cancel(id) => self.cancel(id),
            Event::Took { id, batches } => self.took_batches(id, batches),
            Event::Fetch { id, ranges } => self.fetch(id, ranges),
            Event::ClientGone(client) => {
                // Its next life may have begun already: what that has asked must not be waited for in vain.
                let is_gone = |id: MessageId| id.submitter == client;
                self.drop_kept_of(is_gone);
                if self.cancel_reads(is_gone) {
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

    /// Not all of a submitter's messages come here, but those that do come once and in its order.
    fn comes_once(&mut self, id: MessageId) {
        let before = self.received.insert(id.submitter, id);
        let MessageId { submitter: client, incarnation, .. } = id;
        if client.kind == ProcessKind::Client && before.is_none_or(|before| before.incarnation < incarnation)
        {
            self.drop_kept_of(|id| id.submitter == client && id.incarnation < incarnation);
            self.effects.push(Effect::Outlived { client, incarnation });
        }
        let place = |id: MessageId| (id.incarnation, id.sequence);
        assert!(before.is_none_or(|before| place(before) < place(id)), "{id:?} behind {before:?}");
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
            // Behind the suspicion of an earlier life, what comes is for another one.
            if delivery.ts <= received || self.is_cut_off() {
                continue;
            }
            self.comes_once(delivery.message.id);
            self.hear(&delivery);
            match staged_insert(&delivery) {
                Some(staged) if staged_in_time(&delivery, staged) => {
                    self.effects.push(Effect::Keep(staged.id));
                    let holders = staged.holders().into_iter().collect();
                    self.payloads.insert(delivery.ts, (staged.id, holders));
                }
                // Nobody inserts it, now or in a replay, unless it was ordered in time before; and of its holders some may
                // have left, who never tell that they are past it.
                Some(staged) if self.payloads.values().all(|(kept, _)| *kept != staged.id) => {
                    self.effects.push(Effect::Forget(staged.id));
                }
                Some(_) | None => {}
            }
            self.pending.push_back(delivery);
        }
        if frontier > self.frontier {
            self.frontier = frontier;
            self.pending.extend(self.basic.reached(frontier));
        }
    }

    /// A snapshot or basic read cannot be answered.
    pub(super) fn lose(&mut self, id: MessageId) {
        self.effects.push(Effect::Send(id.submitter, Wire::ReadsLost(vec![id])));
    }

    /// Gives pending deliveries to the shards, as far as possible, and goes on with checkpoints.
    fn advance(&mut self) {
        self.submit_late();
        while self.may_go_on()
            && let Some(delivery) = self.pending.pop_front()
        {
            self.delivered = delivery.ts;
            self.process(delivery);
        }
        if self.pending.is_empty() && !self.moving.is_changing() {
            self.delivered = self.frontier;
        }
        if !self.released.is_empty() {
            self.released = self.released.split_off(&Ts(self.delivered.0 + 1));
        }
        self.read_on();
        self.write_checkpoint();
        if !self.drops.is_empty() && !self.is_reading_checkpoint() && self.moving.oldest_needed().is_none() {
            while self.own_local(1).is_some()
                && let Some(table) = self.drops.pop()
            {
                let time = self.next_local();
                self.define(time, table, OperationKind::DropTable, self.held.clone());
            }
        }
    }

    /// Goes on with reads that have waited for local times.
    fn read_on(&mut self) {
        if !self.out_of_times || !self.has_times() {
            return;
        }
        self.out_of_times = false;
        let sessions: Vec<_> = self.moving.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.produce(session));
        self.read_next_table();
    }

    /// Whether there are local times for long reads of the process's own. Without, it goes on when the next message has been
    /// delivered.
    fn has_times(&mut self) -> bool {
        let has_times = self.own_local(OWN_OPERATIONS).is_some();
        self.out_of_times |= !has_times;
        has_times
    }

    /// A local time for an operation of the process's own, after everything that has been submitted.
    fn next_local(&mut self) -> Ts {
        self.own_local(1).expect("too many operations between two messages")
    }

    /// The local time of the last of so many operations of the process's own, if there are as many times before the next message.
    fn own_local(&self, operations: u64) -> Option<Ts> {
        let last = Ts(self.submitted.0.max(local(self.delivered).0) + operations);
        let is_free = global(last) == self.delivered.max(global(self.submitted)) && in_time(last) == last;
        is_free.then_some(last)
    }

    /// Takes so many local times that none are left for long reads of its own.
    #[cfg(test)]
    pub(crate) fn use_up_times(&mut self) {
        self.submitted = Ts(late(local(self.delivered)).0 - OWN_OPERATIONS);
    }

    /// Whether a read can have a local time of its own.
    fn has_local(&self) -> bool {
        let last = Ts(self.submitted.0.max(local(self.delivered).0) + OWN_OPERATIONS);
        global(last) == self.delivered && in_time(last) == last
    }

    /// Makes a table, or drops one.
    fn define(&mut self, time: Ts, table: TableId, kind: OperationKind, ranges: Vec<KeyRange>) {
        let operation = Arc::new(Operation { table, context: Default::default(), kind });
        self.submit(OrderedOperation::new(time, operation, ranges));
    }

    /// Reads all rows of a table's ranges as blocks, of which each shard has so many on their way.
    fn read_blocks(
        &mut self,
        time: Ts,
        read_ts: Ts,
        table: TableId,
        ranges: Vec<KeyRange>,
        window: u32,
        hashed: bool,
    ) {
        let output = match hashed {
            true => ReadOutput::ContentHash,
            false => ReadOutput::Rows { projection: Vec::new(), top: None },
        };
        let kind = OperationKind::Read(Read { predicate: Vec::new(), output });
        let operation = Arc::new(Operation { table, context: Default::default(), kind });
        self.submit(OrderedOperation {
            read_ts,
            window: Some(window),
            blocks: true,
            bulk: true,
            ..OrderedOperation::new(time, operation, ranges)
        });
    }

    fn take_time(&mut self, time: Ts) {
        assert!(time > self.submitted, "operations are submitted in the order of their time");
        self.submitted = time;
        let since_message = time.0.saturating_sub(local(self.delivered).0);
        if since_message >= self.options.between && self.moved_on < self.delivered {
            self.moved_on = self.delivered;
            self.effects.push(Effect::MoveOn);
        }
    }

    fn tell_shards(&mut self, command: impl Fn() -> ShardCommand) {
        let shards = 0..self.options.shards;
        self.effects.extend(shards.map(|shard| Effect::Shard { shard, command: command() }));
    }

    fn submit(&mut self, operation: OrderedOperation) {
        self.take_time(operation.ts);
        self.submit_at_its_time(operation);
    }

    fn submit_at_its_time(&mut self, operation: OrderedOperation) {
        for shard in 0..self.options.shards {
            self.effects.push(Effect::Submit { shard, operation: operation.clone() });
        }
    }

    fn process(&mut self, delivery: Delivery) {
        let ts = delivery.ts;
        let message = delivery.message.clone();
        // Who holds nothing is told of no checkpoint.
        (self.logged, self.staged) = match self.held.is_empty() {
            true => (0, 0),
            false => (self.logged + weight(&message.body), self.staged),
        };
        if message.id.is_ordered() {
            self.passed.insert(message.id.submitter, message.id);
        }
        match &message.body {
            Body::Data(data) => self.process_data(&delivery, data),
            Body::Ddl(ddl) => self.process_ddl(ts, ddl),
            Body::Pin { lease_ms } => {
                let lease_ms = u64::from(*lease_ms);
                // Without a lease it is empty: all that it does is to take a place.
                if lease_ms > 0 && !self.released.contains(&ts) {
                    self.pins.insert(ts, PinLease { lease_ms, deadline_ms: self.now_ms + lease_ms });
                }
                // Others than clients do not wait for answers.
                if message.id.submitter.kind == ProcessKind::Client {
                    self.answer(message.id, ts, AnswerPart::Done { outcomes: Few::default(), more: false });
                }
            }
            Body::Checkpoint => {
                if self.moving.lacks_rows() {
                    // It makes one of its own when everything is there and durable.
                    self.moving.has_missed_a_checkpoint = true;
                } else {
                    self.request_checkpoint(ts, true);
                }
                (self.logged, self.staged, self.checkpoint_ordered) = (0, 0, ts);
                self.answer(message.id, ts, AnswerPart::Done { outcomes: Few::default(), more: false });
            }
            Body::Configuration(configuration) => self.configure(&message, configuration, ts),
        }
    }

    fn process_ddl(&mut self, ts: Ts, ddl: &Ddl) {
        // A failure is the outcome of the message: the client finds it in its own catalog.
        let Ok(effect) = Arc::make_mut(&mut self.catalog).apply(ts, ddl) else { return };
        for schema in effect.created {
            let time = if self.submitted < local(ts) { local(ts) } else { self.next_local() };
            let held = self.held.clone();
            self.define(time, schema.id, OperationKind::CreateTable(schema), held);
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
        let mut here = Cow::Borrowed(delivery);
        if !is_ordered {
            // It was sent here because of the config that its client knows.
            let ranges = self.options.config.overlapping(&delivery.ranges);
            let routed = delivery.config_version == self.options.config.version()
                && covers(&self.held, &delivery.ranges)
                && covers(&delivery.ranges, &ranges);
            if !(routed && self.has_local()) {
                return self.lose(message.id);
            }
            // What that has as parts may be joined here by now.
            if *delivery.ranges != *ranges {
                here.to_mut().ranges = ranges.into();
            }
        }
        let delivery = &*here;
        let read_ts = data.read_ts.unwrap_or(ts);
        let in_time = staged_insert(delivery).is_none_or(|staged| staged_in_time(delivery, staged));
        if !in_time || !self.catalog.is_current(&message.tables) {
            return self.answer(message.id, ts, AnswerPart::Stale);
        }
        if read_ts != ts && !self.pins.contains_key(&read_ts) {
            return self.answer(message.id, ts, AnswerPart::TooOld);
        }
        if let Some((lost, left)) = self.moving.split_lost(ts, &delivery.ranges, is_write) {
            let more = !left.is_empty();
            self.answer(message.id, ts, AnswerPart::Done { outcomes: rows_lost(&lost, is_write), more });
            if !more {
                // Others may ask here for the votes of the other ranges.
                self.open_ballot(ts, message, data);
                return;
            }
            here.to_mut().ranges = left;
        }
        let delivery = &*here;
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
                return self.answer(message.id, ts, AnswerPart::Done { outcomes, more: false });
            }
        }
        if delivery.ranges.is_empty() {
            return self.answer(message.id, ts, AnswerPart::Done { outcomes: Few::default(), more: false });
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
        let undecided = self.open_ballot(ts, message, data);
        if undecided && self.catching_up {
            self.questions.push(ts);
        }
        let time = if is_ordered { local(ts) } else { self.next_local() };
        self.take_time(time);
        let (present, late_ones) = self.late.split(&delivery.ranges, is_write);
        if !cancelled {
            self.by_message.insert(message.id, time);
        }
        for (time, ranges, waits) in [(time, present, false), (late(time), late_ones, true)] {
            if ranges.is_empty() {
                continue;
            }
            let running = Running {
                _operation: operation.clone(),
                answer: (!cancelled).then_some(message.id),
                read_ts,
                is_write,
                undecided,
                has_ballot: self.ballots.get(ts).is_some(),
                executing: (0..self.options.shards).collect(),
                outcomes: ranges.iter().map(|range| (*range, Ok(0))).collect(),
                rows: Vec::new(),
                returned_bytes: 0,
                unread: VecDeque::new(),
            };
            debug_assert!(running.outcomes.is_sorted_by_key(|(range, _)| *range), "ranges ascend");
            if is_write {
                self.writes.insert(time);
            }
            self.running.insert(time, Box::new(running));
            let operation = OrderedOperation {
                // What is read at the present time sees all messages up to it.
                read_ts: if read_ts == ts { time } else { local(read_ts) },
                undecided: undecided && !planted(Bug::ReadBeforeDecision),
                window: (!is_write).then_some(READ_WINDOW),
                ..OrderedOperation::new(time, operation.clone(), ranges)
            };
            match waits {
                true => self.late.push(operation, delivery.message.weight()),
                false => self.submit_at_its_time(operation),
            }
        }
        if let Some(staged) = data.staged.as_deref().filter(|_| !chunks.is_empty()) {
            let payload = Arc::new(staged.clone());
            let taken = vec![0; self.options.shards];
            let supplying =
                Supplying { ts, payload, chunks, asked: 0, supplied: 0, early: BTreeMap::new(), taken };
            self.supplying.insert(time, supplying);
            self.ask_chunks(time);
        }
    }

    /// Whether what becomes of an operation is not known before all ranges have executed it, and of each all shards. If there are
    /// several ranges, opens their ballot; with one, each of its holders comes to the same end by itself.
    fn open_ballot(&mut self, ts: Ts, message: &Message, data: &Data) -> bool {
        let may_fail = data.operation.is_write() && data.fallible;
        let affected = if may_fail { self.options.config.overlapping(&message.ranges) } else { Vec::new() };
        let undecided = affected.len() > 1 || !affected.is_empty() && self.options.shards > 1;
        if affected.len() > 1 {
            let holders: BTreeSet<ProcessId> =
                affected.iter().flat_map(|range| self.options.config.holders(*range)).collect();
            let others = holders.into_iter().filter(|holder| *holder != self.options.id).collect();
            self.ballots.open(ts, affected, others);
        }
        undecided
    }

    fn shard_effect(&mut self, shard: usize, effect: ShardEffect) {
        let Some(effect) = self.checkpoint_effect(shard, effect) else { return };
        let Some(effect) = self.moving_effect(shard, effect) else { return };
        match effect {
            ShardEffect::Rows { ts: time, range, batch } => {
                let ts = global(time);
                let Some(running) = self.running.get_mut(&time) else { return };
                let bytes = if running.is_write { size_of_cells(&batch) } else { 0 };
                match running.answer {
                    Some(_) if running.is_write => {
                        running.returned_bytes += bytes;
                        self.returned_bytes += bytes;
                        running.rows.push((range, batch));
                    }
                    Some(id) => {
                        running.unread.push_back(shard);
                        self.answer(id, ts, AnswerPart::Rows { range, batch });
                        self.note_stalled(time);
                    }
                    None => {}
                }
            }
            ShardEffect::Groups { ts: time, groups } => {
                if let Some(id) = self.running.get(&time).and_then(|running| running.answer) {
                    self.answer(id, global(time), AnswerPart::Groups(groups));
                }
            }
            // Changes of the catalog are not among the running operations: they cannot fail.
            ShardEffect::Executed { ts: time, outcomes } => self.executed_by(shard, time, outcomes),
            ShardEffect::Took { ts: time } => self.took(shard, time),
            ShardEffect::Precut => self.has_precut(shard),
            // Only what the process reads for itself has these.
            ShardEffect::ContentHash { .. } | ShardEffect::Block { .. } => {}
        }
    }

    fn executed_by(&mut self, shard: usize, time: Ts, outcomes: Few<(KeyRange, Result<u64, SqlError>)>) {
        let ts = global(time);
        let Some(running) = self.running.get_mut(&time) else { return };
        let place = running.executing.iter().position(|executing| *executing == shard);
        running.executing.swap_remove(place.unwrap_or_else(|| panic!("shard {shard} executed {ts} twice")));
        for (range, outcome) in outcomes {
            let place = running.outcomes.binary_search_by_key(&range, |(range, _)| *range);
            let place = place.unwrap_or_else(|place| {
                running.outcomes.insert(place, (range, Ok(0)));
                place
            });
            let (_, known) = &mut running.outcomes[place];
            match (outcome, &mut *known) {
                (Ok(rows), Ok(sum)) => *sum += rows,
                (Ok(_), Err(_)) => {}
                (Err(error), known) => {
                    // That of a read concerns nobody but its reader. A write must not be voted about: others have executed it.
                    if running.is_write && !error.is_deterministic() {
                        let reason = format!("the operation at {ts} failed here only: {error}");
                        return self.effects.push(Effect::Stop(reason));
                    }
                    // Shards finish in any order; the error that counts is that of the first one.
                    if known.as_ref().err().is_none_or(|(first, _)| shard < *first) {
                        *known = Err((shard, error));
                    }
                }
            }
        }
        if !running.executing.is_empty() {
            // Those that are left may all wait for the reader.
            return self.note_stalled(time);
        }
        self.stalled.remove(&time);
        if !running.undecided {
            return self.end(time, None);
        }
        if !running.has_ballot {
            let failed = running.outcomes.iter().any(|(_, outcome)| outcome.is_err());
            return self.end(time, Some(if failed { Decision::Abort } else { Decision::Commit }));
        }
        let votes: Vec<Vote> = self
            .outcomes(time)
            .into_iter()
            .map(|(range, outcome)| Vote {
                ts,
                range,
                vote: if outcome.is_ok() { Choice::Commit } else { Choice::Abort },
            })
            .collect();
        let holders = self.ballots.get(ts).map(|ballot| ballot.holders().to_vec()).unwrap_or_default();
        for holder in holders {
            self.send_votes(holder, votes.clone());
        }
        for vote in votes {
            self.cast(&vote);
        }
        self.decide(ts);
    }

    /// The times of the parts of an operation that have not ended.
    fn parts(&self, time: Ts) -> impl Iterator<Item = Ts> {
        let parts = [in_time(time), late(time)];
        parts.into_iter().filter(|part| self.running.contains_key(part))
    }

    /// Outcomes by primary range.
    fn outcomes(&self, time: Ts) -> Few<(KeyRange, Result<u64, SqlError>)> {
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
        // One that others have aborted may not have had all its rows.
        self.supplying.remove(&time);
        self.late.end(time);
        self.forget_nowhere(ts);
        let is_lost = decision.is_some() && self.ballots.get(ts).is_some_and(Ballot::is_lost);
        if let Some(decision) = decision {
            for shard in 0..self.options.shards {
                self.effects.push(Effect::Decide { shard, ts: time, decision });
            }
        }
        let failed =
            decision == Some(Decision::Abort) || outcomes.iter().any(|(_, outcome)| outcome.is_err());
        if running.is_write && failed {
            // Nothing was changed anywhere. The ranges that did not fail say so; the error is that of one that did.
            for (_, outcome) in outcomes.iter_mut() {
                match outcome {
                    Ok(_) if is_lost => *outcome = Err(vote_lost()),
                    Ok(rows) => *rows = 0,
                    Err(_) => {}
                }
            }
        }
        if let Some(id) = running.answer {
            let more = self.parts(time).next().is_some();
            if !more {
                self.by_message.remove(&id);
            }
            if !failed {
                self.return_rows(id, ts, running.rows, running.returned_bytes);
            }
            self.answer(id, ts, AnswerPart::Done { outcomes, more });
        }
    }

    fn fail(&mut self, delivery: &Delivery, error: SqlError) {
        let outcomes = delivery.ranges.iter().map(|range| (*range, Err(error.clone()))).collect();
        self.answer(delivery.message.id, delivery.ts, AnswerPart::Done { outcomes, more: false });
    }

    fn answer(&mut self, id: MessageId, ts: Ts, part: AnswerPart) {
        self.effects.push(Effect::Answer(id.submitter, Answer { id, ts, part }));
    }

    fn tick(&mut self, now_ms: u64) {
        let paused_ms = now_ms.saturating_sub(self.now_ms);
        self.now_ms = now_ms;
        if paused_ms >= PAUSE_MS {
            // What renews them has come meanwhile, or has not run either.
            self.pins.values_mut().for_each(|pin| pin.deadline_ms += paused_ms);
        }
        self.pins.retain(|_, pin| pin.deadline_ms >= now_ms);
        // Votes can be lost when either side restarts.
        let waiting = self.running.iter().filter(|(_, r)| r.undecided && r.executing.is_empty());
        let waiting: Vec<Ts> = waiting.map(|(time, _)| global(*time)).collect();
        waiting.iter().for_each(|ts| self.end_lost_vote(*ts));
        self.ask_votes(waiting);
        self.note_what_has_come();
        self.migrate(migration::Event::Tick(now_ms));
        self.leave();
        self.make_up_by_itself();
        self.ask_durable();
        if self.catching_up && self.frontier > self.recovered {
            // Under load something is always on its way.
            self.seemed_done_ms = match self.frontier.0.saturating_sub(self.executed().0) <= ON_ITS_WAY {
                true => self.seemed_done_ms.or(Some(now_ms)),
                false => None,
            };
            self.catching_up = self.seemed_done_ms.is_none_or(|since| now_ms < since + SEEMS_DONE_MS);
        }
    }

    /// It has been running for long, as far as votes are concerned.
    #[cfg(test)]
    pub(crate) fn end_catching_up(&mut self) {
        self.catching_up = false;
    }

    fn executed(&self) -> Ts {
        // A read changes nothing, and may have to wait for its reader.
        let executed = match self.writes.first() {
            Some(oldest) => Ts(global(*oldest).0 - 1),
            None => self.delivered,
        };
        self.moving.migrations.oldest_receiving().map_or(executed, |keyspace| keyspace.min(executed))
    }

    fn peers_of_ring(&self) -> impl Iterator<Item = ProcessId> {
        self.options.config.storage_processes().filter(|process| *process != self.options.id)
    }

    fn durable_wire(&self, reply: bool) -> Wire {
        let are_theirs = self.told_durable == self.durable;
        let hashes = if are_theirs { self.hashes.clone() } else { Vec::new() };
        Wire::Durable { ts: self.told_durable, hashes, reply }
    }
}

/// What the client hears of a write of which a vote is lost: others may have committed it before they failed.
fn vote_lost() -> SqlError {
    SqlError::new(
        SqlState::OUTCOME_UNKNOWN,
        "it is not known whether the statement took effect: all storage processes that held some of its rows have failed",
    )
}

/// What the client hears of an operation on ranges whose rows are lost. Of a write others may have known how it ends.
fn rows_lost(ranges: &Few<KeyRange>, is_write: bool) -> Few<(KeyRange, Result<u64, SqlError>)> {
    let error = || match is_write {
        true => vote_lost(),
        false => SqlError::new(
            SqlState::UNAVAILABLE,
            "all storage processes that held some of its rows have failed",
        ),
    };
    ranges.iter().map(|range| (*range, Err(error()))).collect()
}

/// Approximate bytes of a message in the log and in a replay.
fn weight(body: &Body) -> u64 {
    match body {
        Body::Data(data) => {
            512 + data.operation.weight() as u64 + if data.staged.is_some() { 4096 } else { 0 }
        }
        Body::Ddl(ddl) => 1024 + serialized_size(ddl).unwrap_or_default() as u64,
        Body::Pin { .. } | Body::Checkpoint | Body::Configuration(_) => 0,
    }
}

/// The primary ranges that a process holds, if it is not suspected.
pub(crate) fn held_by(config: &Config, process: ProcessId) -> Vec<KeyRange> {
    if config.is_suspected(process) { Vec::new() } else { config.held(process) }
}

fn runs_until(writes: &BTreeSet<Ts>, ts: Ts) -> bool {
    writes.range(..=end(ts)).next().is_some()
}
