//! What a storage process says to others and tells its threads, as a pure state machine around [`Core`]: the
//! subscription at a router, confirmations, chunks of payloads that are fetched from peers, and what clients are told.
//!
//! ```text
//!   network, threads, timer --Input--> Node --Output--> network, threads
//!                                      |  ^
//!                                Event v  | Effect
//!                                      Core
//! ```
//!
//! The shell (`super::process`) and the simulator ([`crate::sim`]) drive it; neither has any logic of its own.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use carousel_engine::{SqlError, Ts, position::KeyRange, statistics::TableStatistics};

use super::{
    basic::BasicRead,
    checkpointer::{CheckpointCommand, CheckpointOutcome},
    core::{ChunkWanted, Core, Effect, Event, given_up, removed},
    disk::{DISK_PATIENCE_MS, Disk},
    migration::{Arrived, PartId},
    payloads::{PayloadCommand, PayloadEvent, is_given_up},
    process::Progress,
    scan::{ShardCommand, ShardEffects},
    submitter::Submitter,
};
use crate::{
    catalog::Catalog,
    config::{Config, Configuration, Membership},
    link::{RouterLink, log_lost},
    message::{Body, Incarnation, MessageId, ProcessId, ProcessKind},
    patience::Patience,
    payload::{ChunkKey, is_of_disk},
    routers::Routers,
    storage::migration,
    wire::{Answer, AnswerPart, Delivery, StageChunk, Watermarks, Wire},
};

/// Deliveries that may wait for their turn before no more are taken.
const PENDING: usize = 4096;
/// Or when their messages have about so many bytes.
const PENDING_BYTES: usize = 64 << 20;
/// The same while rows are received that all of them wait for, or votes. What comes then is not taken, and asked for again later,
/// for the rows come the same way.
const PENDING_WHILE_RECEIVING: usize = 1 << 16;
/// Or when their messages have about so many bytes.
const BYTES_WHILE_RECEIVING: usize = 256 << 20;

/// What happens to the process.
#[derive(Debug)]
pub(crate) enum Input {
    /// Another process has sent something.
    Received { from: ProcessId, wire: Wire },
    /// A shard has done something.
    Shard(ShardEffects),
    /// The payload store has done something.
    Payload(PayloadEvent),
    /// Some rows of a checkpoint are on disk, or all of it is, or cannot be.
    Checkpoint(CheckpointOutcome),
    /// What was sent there last has not arrived.
    Unreachable(ProcessId),
    /// Who the routers are.
    Routers(Arc<Routers>),
    /// Time passes: milliseconds since the process has started.
    Tick(u64),
    /// It cannot go on, for a reason outside.
    Stop(String),
}

/// What is to be done, in order.
#[derive(Debug)]
pub(crate) enum Output {
    Send(ProcessId, Wire),
    Shard(usize, ShardCommand),
    Payload(PayloadCommand),
    Checkpoint(CheckpointCommand),
    /// See [`Effect::VoteLost`].
    VoteLost(Ts, KeyRange),
}

/// A process lags when it has not executed what it received so long ago. Reads avoid it then, as they would wait so long there.
const LAG_MS: u64 = 1_000;

/// Rows that writes will return, or that are on their way to others or from them, count in pieces of so many bytes: a few are not
/// worth a report to every client.
const PIECE: u64 = 1 << 16;

/// A life of a storage process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) id: ProcessId,
    /// Counted in its directory.
    pub(crate) incarnation: Incarnation,
    /// Which one, see [`Wire::Subscribe`].
    pub(crate) directory: u64,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Node {
    id: ProcessId,
    incarnation: Incarnation,
    directory: u64,
    memory_limit: Option<u64>,
    shards: usize,
    core: Core,
    link: RouterLink,
    submitter: Submitter,
    /// It has no place in the system yet, or has lost it: it joins and hears nothing else, and then its stream begins anew.
    joining: bool,
    /// The stream begins with the present catalog and config.
    begins: bool,
    /// Chunks that are being fetched.
    fetching: BTreeMap<ChunkKey, Fetching>,
    /// Chunks that are being staged, and by whom.
    staging: BTreeSet<(ProcessId, ChunkKey)>,
    /// Bytes that the rows take.
    memory: u64,
    now_ms: u64,
    horizon: Ts,
    confirmed: Watermarks,
    /// What is being received, and since when nothing of it has come.
    receiving: (Patience, Vec<(PartId, Arrived)>),
    /// Clients with what they have been told.
    clients: BTreeMap<ProcessId, Option<Told>>,
    /// Until when what has been received up to where is to be executed, as far as it has not been.
    due: VecDeque<(u64, Ts)>,
    /// What is known of the tables, and who has been told.
    statistics: Vec<TableStatistics>,
    knowing: BTreeSet<ProcessId>,
    /// Clients have been told of this life.
    announced: bool,
    /// Those of earlier lives, with what they need not wait for any more, and whether they may not have heard: nothing sent to
    /// one that is there gets lost, but a client comes back only when it has noticed that the earlier life has ended.
    earlier: BTreeMap<ProcessId, (Option<MessageId>, bool)>,
    failed_checkpoints: u64,
    disk: Disk,
    /// What was given to the shards last, and since when no more has been of the much that waits.
    processed: (Ts, u64),
    /// The router that has been sent what this process submits.
    submits_to: ProcessId,
    /// Deliveries have not been taken, because rows are being received, or votes are missing.
    skipped: bool,
    /// What a router had sent has been lost once.
    missed: bool,
    /// Storage processes that it has no session with, and that are not suspected.
    unreached: Vec<ProcessId>,
    /// The routers' log no longer has what follows what has been recovered.
    outdated: bool,
    /// Others wait for what an earlier life had: users have to say that it is given up.
    may_not_join: bool,
    /// The routers have lost what it has: where their log ends.
    ahead_of: Option<Ts>,
    /// See [`Node::outlived`].
    outlived: Option<Incarnation>,
    stopped: Option<String>,
    outputs: Vec<Output>,
}

/// What clients are told when it has changed.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// Bytes that the rows take.
    used: u64,
    lags: bool,
    reached: Ts,
    durable: Ts,
    /// With whether all of it has come.
    receiving: Vec<(PartId, bool)>,
    unreached: Vec<ProcessId>,
}

#[derive(Debug)]
struct Fetching {
    wanted: ChunkWanted,
    /// Holders that have not said that they lack it; the first has been asked. This process is the last of them when its own
    /// copy could not be read.
    candidates: Vec<ProcessId>,
    patience: Patience,
    /// What one of them has sent is being stored.
    adopting: bool,
}

/// How long nothing may come of what is received, before the present config is asked for: all that is not taken comes with it.
const RECEIVING_PATIENCE_MS: std::ops::RangeInclusive<u64> = 5_000..=80_000;
/// How long nothing may be given to the shards of much that waits. Those who have the votes that are missing may have been given
/// up: what says so comes behind all that.
const STUCK_MS: u64 = 5_000;
/// How long a holder of a chunk is waited for at first, and at most.
const FETCH_PATIENCE_MS: std::ops::RangeInclusive<u64> = 1_000..=60_000;

impl Node {
    /// A life of a process that begins with what `core` has recovered; `shards` threads work for it. One that
    /// `joins` is new to the system, or has nothing of what an earlier life had.
    pub(crate) fn new(
        Life { id, incarnation, directory }: Life,
        memory_limit: Option<u64>,
        shards: usize,
        routers: Vec<ProcessId>,
        core: Core,
        joins: bool,
    ) -> Node {
        let link = RouterLink::new(routers);
        Node {
            id,
            incarnation,
            directory,
            memory_limit,
            shards,
            core,
            submits_to: link.router(),
            link,
            submitter: Submitter::new(id, incarnation),
            joining: joins,
            begins: joins,
            processed: (Ts::ZERO, 0),
            skipped: false,
            missed: false,
            unreached: Vec::new(),
            outdated: false,
            may_not_join: false,
            ahead_of: None,
            outlived: None,
            fetching: BTreeMap::new(),
            staging: BTreeSet::new(),
            memory: 0,
            now_ms: 0,
            horizon: Ts::ZERO,
            confirmed: Watermarks::default(),
            receiving: (Patience::new(RECEIVING_PATIENCE_MS, 0), Vec::new()),
            clients: BTreeMap::new(),
            due: VecDeque::new(),
            statistics: Vec::new(),
            knowing: BTreeSet::new(),
            announced: false,
            earlier: BTreeMap::new(),
            failed_checkpoints: 0,
            disk: Disk::new(DISK_PATIENCE_MS),
            stopped: None,
            outputs: Vec::new(),
        }
    }

    /// The same with another patience, in milliseconds, with its disk.
    pub(crate) fn with_disk_patience(self, patience_ms: u64) -> Node {
        Node { disk: Disk::new(patience_ms), ..self }
    }

    /// What to do first.
    pub(crate) fn begin(&mut self) -> Vec<Output> {
        for (to, wire) in self.core.greetings() {
            self.send(to, wire);
        }
        if self.joining {
            self.join();
        }
        self.subscribe();
        std::mem::take(&mut self.outputs)
    }

    /// What the clock says. Ticks tell it too, but after a pause of this process other inputs may come before them.
    pub(crate) fn clock(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Which other storage processes cannot be reached now.
    pub(crate) fn note_reach(&mut self, reaches: impl Fn(ProcessId) -> bool) {
        let (config, own) = (self.core.config(), self.id);
        let talks_to = |process: &ProcessId| *process != own && !config.is_suspected(*process);
        let all: BTreeSet<ProcessId> = config.storage_processes().chain(config.standbys()).collect();
        self.unreached = all.into_iter().filter(talks_to).filter(|process| !reaches(*process)).collect();
    }

    /// What is known of the tables now.
    pub(crate) fn count(&mut self, statistics: Vec<TableStatistics>) {
        if statistics != self.statistics {
            self.statistics = statistics;
            self.knowing.clear();
        }
    }

    /// Takes an input, while the rows take `memory` bytes, and returns what is to be done.
    pub(crate) fn handle(&mut self, input: Input, memory: u64) -> Vec<Output> {
        let besides = self.core.returned_bytes() + self.core.moving_bytes();
        self.memory = memory + besides / PIECE * PIECE;
        match input {
            Input::Received { from, wire } => self.received(from, wire),
            Input::Shard((shard, effects)) => self.event(Event::Shard { shard, effects }),
            Input::Payload(event) => self.payload_event(event),
            Input::Checkpoint(CheckpointOutcome::Took) => {
                self.disk.took();
                self.event(Event::CheckpointTook);
            }
            Input::Checkpoint(CheckpointOutcome::GoesOn) => self.disk.goes_on(),
            Input::Checkpoint(CheckpointOutcome::Ended(ts, outcome)) => self.checkpoint_ended(ts, outcome),
            Input::Checkpoint(CheckpointOutcome::PartsEnded(keyspace, outcome)) => {
                self.parts_ended(keyspace, outcome);
            }
            Input::Checkpoint(CheckpointOutcome::Loaded { part, attempt, chunks }) => {
                self.disk.took();
                match chunks {
                    Ok(chunks) => chunks.into_iter().for_each(|chunk| {
                        let from = self.id;
                        self.event(Event::Moving(migration::Event::Chunk { from, part, attempt, chunk }));
                    }),
                    Err(reason) => self.stopped = Some(reason),
                }
            }
            Input::Unreachable(process) => self.unreachable(process),
            Input::Routers(routers) => self.link.learn(&routers),
            Input::Tick(now_ms) => self.tick(now_ms),
            Input::Stop(reason) => self.stopped = Some(reason),
        }
        self.subscribe();
        self.follow_up();
        std::mem::take(&mut self.outputs)
    }

    /// Why it has stopped itself.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Whether so many deliveries wait for their turn that no more should be taken.
    pub(crate) fn is_full(&self) -> bool {
        !self.holds_back() && self.is_behind()
    }

    fn is_behind(&self) -> bool {
        self.core.pending() > PENDING || self.core.pending_bytes() > PENDING_BYTES
    }

    /// Whether what is delivered waits for others: then more of it is taken, as long as there is room.
    fn holds_back(&self) -> bool {
        self.core.is_receiving() || self.now_ms >= self.processed.1 + STUCK_MS
    }

    /// Why it must not go on in another life either, if the routers have lost what it has: it would forget that, as they did.
    /// Also where their log ends.
    pub(crate) fn ahead(&self) -> Option<(&str, Ts)> {
        Some((self.stopped.as_deref()?, self.ahead_of?))
    }

    /// Whether what it has recovered is of no use any more: the next life has to begin without.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// It goes on in another life, mostly without what it had. One whose disk fails would only get everything again that it cannot
    /// keep, and one that may not join is refused again: somebody has to see to that.
    pub(crate) fn begins_anew(&self) -> bool {
        (self.outdated || self.outlived.is_some()) && !self.disk.fails() && !self.may_not_join
    }

    /// The last life that others have heard of, or this one, if it has lost its directory: the next one has to be behind it.
    pub(crate) fn outlived(&self) -> Option<Incarnation> {
        self.outlived
    }

    /// The config behind everything that has been received.
    pub(crate) fn config(&self) -> &Arc<Config> {
        self.core.config()
    }

    /// Deliveries that wait for their turn.
    pub(crate) fn pending(&self) -> usize {
        self.core.pending()
    }

    /// Everything up to here has been received.
    pub(crate) fn frontier(&self) -> Ts {
        self.core.frontier()
    }

    /// The state machine inside, to look at.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> Progress {
        Progress {
            watermarks: self.core.watermarks(self.memory),
            subscribed: self.is_subscribed(),
            checkpointing: self.core.is_checkpointing(),
            logged: self.core.logged(),
            staged: self.core.staged(),
            failed_checkpoints: self.failed_checkpoints,
            receiving: self.core.receiving().collect(),
            // One that begins anew goes on.
            stopped: self.stopped.clone().filter(|_| !self.begins_anew()),
            refused: self.may_not_join,
        }
    }

    fn is_subscribed(&self) -> bool {
        self.link.is_open(self.link.router())
    }

    fn send(&mut self, to: ProcessId, wire: Wire) {
        if let Wire::Answers(_) | Wire::NoAnswers(_) = wire {
            self.tell_restarted(to);
        }
        self.outputs.push(Output::Send(to, wire));
    }

    /// Tells a client of this life, if it knew an earlier one and may not have heard.
    fn tell_restarted(&mut self, client: ProcessId) {
        let Some((passed, is_untold)) = self.earlier.get_mut(&client) else { return };
        if std::mem::take(is_untold) {
            let restarted = Wire::Restarted { incarnation: self.incarnation, passed: *passed };
            self.outputs.push(Output::Send(client, restarted));
        }
    }

    fn subscribe(&mut self) {
        let router = self.link.router();
        if std::mem::replace(&mut self.submits_to, router) != router {
            // It need not have heard what another one has been sent. Later would be too late where that is not there: what is sent
            // again as time passes could meet it each time.
            self.submitter.resend_all();
        }
        let messages = self.submitter.unsent();
        if !messages.is_empty() {
            self.send(router, Wire::Route(messages));
        }
        if self.joining {
            return;
        }
        if self.link.must_subscribe() {
            let after = (!self.begins).then(|| self.core.frontier());
            let subscribe =
                Wire::Subscribe { incarnation: self.incarnation, directory: self.directory, after };
            self.confirmed = Watermarks::default();
            self.send(self.link.router(), subscribe);
        }
    }

    /// While nothing comes of what is received, and nothing more is taken meanwhile, the message may be ordered by which it is
    /// lost: the router is asked for the present config.
    fn ask_whether_to_wait(&mut self) {
        let receiving: Vec<(PartId, Arrived)> = self.core.receiving().collect();
        if !self.skipped || receiving != self.receiving.1 {
            self.receiving = (Patience::new(RECEIVING_PATIENCE_MS, self.now_ms), receiving);
        } else if self.receiving.0.ends(self.now_ms) {
            self.link.ask_again(self.link.router());
        }
    }

    /// What follows from progress.
    fn follow_up(&mut self) {
        // What cuts the log is told at once, everything else as time passes: a word for each delivery would cost the lead
        // router more than the delivery.
        if self.core.watermarks(self.memory).durable != self.confirmed.durable {
            self.confirm();
        }
        // What it executes while a copy is under way is not all that waits for that.
        let is_little =
            self.core.pending() < PENDING && self.core.pending_bytes() < BYTES_WHILE_RECEIVING / 2;
        if self.skipped && is_little {
            self.skipped = false;
            self.link.ask_again(self.link.router());
        }
    }

    /// Tells the shards which versions are garbage.
    fn tell_horizon(&mut self) {
        let horizon = self.core.horizon();
        if horizon > self.horizon {
            self.horizon = horizon;
            let shards = (0..self.shards).map(|shard| Output::Shard(shard, ShardCommand::Horizon(horizon)));
            self.outputs.extend(shards);
        }
    }

    /// Tells the router how far this process is, if there is news.
    fn confirm(&mut self) {
        let watermarks = self.core.watermarks(self.memory);
        if self.is_subscribed() && watermarks != self.confirmed {
            self.confirmed = watermarks;
            self.send(self.link.router(), Wire::Confirm(watermarks));
        }
    }

    fn received(&mut self, from: ProcessId, wire: Wire) {
        if let ProcessKind::Client | ProcessKind::Super = from.kind
            && !self.clients.contains_key(&from)
        {
            self.clients.insert(from, None);
            if self.missed {
                // What it asked before it was known here may have been lost then.
                self.send(from, Wire::ReadsMissed);
            }
        }
        match wire {
            Wire::State { incarnation, ts, config, clients, catalog, present, .. }
                if incarnation == self.incarnation && !self.joining =>
            {
                let present = present.unwrap_or_else(|| (ts, config.clone()));
                self.subscribed(from, ts, config, &clients, catalog, present);
            }
            Wire::Ordered { incarnation, sequence, .. } if incarnation == self.incarnation => {
                self.ordered(sequence);
            }
            Wire::Resend { incarnation, expected }
                if incarnation == self.incarnation && from == self.link.router() =>
            {
                let knows_as_much = self.submitter.resend(expected);
                if !knows_as_much {
                    self.link.not_leader(from, None);
                }
            }
            Wire::AskRows { part, attempt, chunks } => {
                self.event(Event::Moving(migration::Event::Asked { from, part, attempt, chunks }));
            }
            Wire::Rows { part, attempt, chunk } => {
                self.event(Event::Moving(migration::Event::Chunk { from, part, attempt, chunk }));
            }
            Wire::RowsFollow { part, attempt } => {
                self.event(Event::Moving(migration::Event::Follows { from, part, attempt }));
            }
            Wire::RowsRefused { part, attempt, anew } => {
                self.event(Event::Moving(migration::Event::Refused { from, part, attempt, anew }));
            }
            Wire::LogLost { incarnation, last } if incarnation == self.incarnation => {
                self.ahead_of = Some(last);
                self.stopped = Some(log_lost(last, self.core.frontier()));
            }
            Wire::SubscribeRefused { incarnation, purged, removed } if incarnation == self.incarnation => {
                self.refused(from, purged, removed);
            }
            Wire::JoinRefused { incarnation, reason } if incarnation == self.incarnation && self.begins => {
                // What somebody puts into its directory now may be what it lacks.
                self.may_not_join = true;
                self.stopped = Some(reason);
            }
            Wire::GivenUp { incarnation } if incarnation == self.incarnation => {
                self.stopped = Some(given_up(self.id));
            }
            Wire::Outlived { incarnation, newest, goes_on } if incarnation == self.incarnation => {
                self.outdated = !goes_on;
                // The next life in the right directory has another number than the next one in this, and is seen to be older.
                self.outlived = Some(newest.max(incarnation).saturating_add(u64::from(!goes_on)));
                self.stopped = Some(match goes_on {
                    true => {
                        format!("life {newest} had not the directory of {}; it goes on behind that", self.id)
                    }
                    false => format!(
                        "the directory of {} is not the one that life {newest} had, so its copies are not there; it asks to join without data",
                        self.id
                    ),
                });
            }
            Wire::Deliver { incarnation, after, deliveries, frontier }
                if incarnation == self.incarnation
                    && self.link.is_open(from)
                    && after <= self.core.frontier() =>
            {
                self.link.heard(from);
                let is_much = self.core.pending() > PENDING_WHILE_RECEIVING
                    || self.core.pending_bytes() > BYTES_WHILE_RECEIVING;
                if self.holds_back() && is_much {
                    self.skipped = true;
                    return self.lose_reads(&deliveries);
                }
                self.event(Event::Delivered { deliveries, frontier });
            }
            // Of an earlier subscription, or behind what was not taken. What was ordered will come again; snapshot reads will
            // not.
            Wire::Deliver { deliveries, .. } => {
                if self.skipped {
                    self.link.heard(from);
                }
                self.lose_reads(&deliveries);
            }
            Wire::NotLeader { leader } => {
                self.link.not_leader(from, leader);
                self.submitter.resend_later();
            }
            Wire::Routers(routers) => self.link.learn(&routers),
            Wire::Lost if from.kind == ProcessKind::Router => {
                self.link.ask_again(from);
                self.submitter.resend_all();
                // What is ordered comes again; reads do not, also when this process has turned to another router meanwhile.
                self.missed = true;
                let clients: Vec<ProcessId> = self.clients.keys().copied().collect();
                clients.into_iter().for_each(|client| self.send(client, Wire::ReadsMissed));
            }
            // What it was sent is lost, and what it has said that it takes.
            Wire::Lost if from.kind != ProcessKind::Storage => {
                self.knowing.remove(&from);
                self.event(Event::ClientGone(from));
            }
            Wire::Votes { incarnation, votes } => self.event(Event::Votes { from, incarnation, votes }),
            Wire::AskVotes(missing) => self.event(Event::AskVotes { from, missing }),
            Wire::NoVotes { incarnation, missing } => {
                self.event(Event::NoVotes { from, incarnation, missing });
            }
            Wire::Durable { ts, hashes, reply } => self.event(Event::PeerDurable { from, ts, hashes, reply }),
            Wire::RenewPin(ts) => self.event(Event::RenewPin(ts)),
            Wire::ReleasePin(ts) => self.event(Event::ReleasePin(ts)),
            Wire::Precut { request, at } => self.event(Event::Precut { from, request, at }),
            Wire::Cancel(id) => self.event(Event::Cancel(id)),
            Wire::Took { id, batches } => self.event(Event::Took { id, batches }),
            Wire::Fetch { id, ranges } if id.submitter == from => self.event(Event::Fetch { id, ranges }),
            Wire::Hello => {
                // Whoever has heard of this process may write: what that takes is known by statistics.
                self.tell_statistics(from);
                self.tell_memory(from);
            }
            Wire::AskAnswers(mut messages) => {
                messages.retain(|(id, _)| id.submitter == from);
                let ended = self.core.not_answered(messages);
                if !ended.is_empty() {
                    self.send(from, Wire::NoAnswers(ended));
                }
            }
            Wire::BasicRead { reads, config_version, seen } => {
                for (message, ranges) in reads {
                    // An answer goes to the submitter, who has not asked.
                    if message.id.submitter == from {
                        let read = BasicRead { message, ranges, config_version, seen };
                        self.event(Event::BasicRead { read, now_ms: self.now_ms });
                    }
                }
            }
            // An earlier life asked by another clock.
            Wire::Lease { incarnation, asked_ms }
                if from == self.link.router() && incarnation == self.incarnation =>
            {
                self.event(Event::Leased(asked_ms));
            }
            Wire::Stage(chunk) => {
                let StageChunk { payload, range, chunk: number, .. } = chunk;
                // It comes again when the receipt takes long. While the disk hangs, one is enough to wait in memory.
                if self.staging.insert((from, (payload, range, number))) {
                    self.tell_payloads(PayloadCommand::Stage(from, chunk));
                }
            }
            Wire::Abandon(payload) => self.tell_payloads(PayloadCommand::Abandon(payload)),
            Wire::FetchChunk { payload, range, chunk } => {
                self.tell_payloads(PayloadCommand::Fetch { from, chunk: (payload, range, chunk) });
            }
            Wire::StagedRows { payload, range, chunk, rows } => {
                self.fetched(from, (payload, range, chunk), rows);
            }
            Wire::Lost if from.kind == ProcessKind::Storage => self.lose_sent(from),
            // Everything else is for another kind of process or for an earlier life of this one.
            _ => {}
        }
    }

    /// Snapshot reads among deliveries that are not taken: they do not come again.
    fn lose_reads(&mut self, deliveries: &[Delivery]) {
        let mut lost: BTreeMap<ProcessId, Vec<MessageId>> = BTreeMap::new();
        for read in deliveries.iter().filter(|delivery| !delivery.message.id.is_ordered()) {
            let id = read.message.id;
            lost.entry(id.submitter).or_default().push(id);
        }
        lost.into_iter().for_each(|(submitter, reads)| self.send(submitter, Wire::ReadsLost(reads)));
    }

    /// Says that this life begins without data. What is ordered before that is not for it: it may be given the place of an
    /// earlier one.
    fn join(&mut self) {
        self.joining = true;
        self.link.ask_again(self.link.router());
        self.submitter.submit(Configuration::Membership(self.core.membership()));
    }

    /// A router's log no longer has everything up to `purged`, or this process is no part of the system there.
    fn refused(&mut self, router: ProcessId, purged: Ts, is_removed: bool) {
        if self.begins && self.link.awaits(router) {
            // A later life may have a place, and this one never: it must not wait for one.
            self.outdated = true;
            self.stopped = Some("it has been suspected or removed since it joined, or could not join".into());
        } else if self.joining || self.begins {
            // It answers what was asked before: who begins anew needs nothing of the log.
        } else if self.announced && !self.core.config().contains(self.id) {
            self.stopped = Some(removed(self.id));
        } else if purged <= self.core.frontier() {
            // It answers a subscription that has been overtaken by what another router delivered; or it does not know yet what that one
            // has ordered, and believes that it leads.
            self.link.not_leader(router, None);
        } else if self.announced && is_removed {
            // By a message that has not come here.
            self.stopped = Some(removed(self.id));
        } else if self.core.is_blank() {
            // What a standby has missed may have given it a place, which it has lost before it had received anything: others
            // would send to it for ever, did they not hear that this life begins without data.
            self.join();
        } else {
            self.outdated = true;
            self.stopped = Some(format!(
                "the routers' log begins at {purged}, this replica ends at {}; it must be copied from another: started \
                 again, it joins without data",
                self.core.frontier()
            ));
        }
    }

    /// Messages of its own have been ordered. One that has joined begins with what the routers have now.
    fn ordered(&mut self, sequence: u64) {
        let joined = self.submitter.ordered(sequence).into_iter().any(|message| {
            matches!(&message.body, Body::Configuration(Configuration::Membership(Membership::Join { .. })))
        });
        if joined {
            self.joining = false;
            self.begins = true;
            self.link.ask_again(self.link.router());
        }
    }

    fn subscribed(
        &mut self,
        router: ProcessId,
        ts: Ts,
        config: Arc<Config>,
        clients: &[(ProcessId, Option<MessageId>)],
        catalog: Option<Arc<Catalog>>,
        present: (Ts, Arc<Config>),
    ) {
        if self.begins != catalog.is_some() || !self.link.accepted(router) {
            return;
        }
        let is_first = !std::mem::replace(&mut self.announced, true);
        if is_first {
            // What had been ordered before is behind already.
            self.due.push_back((self.now_ms, present.0));
            // Whoever waits for an answer of an earlier life must ask again, before this one answers. A client whose messages
            // have been ordered is among them.
            for (client, passed) in clients {
                let passed = if catalog.is_some() { *passed } else { self.core.passed(*client) };
                self.earlier.insert(*client, (passed, true));
                self.tell_restarted(*client);
                self.clients.entry(*client).or_insert(None);
            }
            // Others look for it where an earlier life has listened.
            let moved = self.core.moved(&present.1);
            moved.into_iter().for_each(|moved| self.submitter.submit(Configuration::Membership(moved)));
        }
        if let Some(catalog) = catalog {
            self.begins = false;
            // What an earlier life was to execute.
            self.fetching.clear();
            self.event(Event::Begin { ts, config, catalog, present });
        } else if is_first {
            self.event(Event::Config { config, present });
        } else {
            self.event(Event::Present(present.0, present.1));
        }
    }

    fn event(&mut self, event: Event) {
        let effects = self.core.handle(event);
        let mut answers: Vec<(ProcessId, Vec<Answer>)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Submit { shard, operation } => {
                    self.outputs.push(Output::Shard(shard, ShardCommand::Submit(operation)));
                }
                Effect::Decide { shard, ts, decision } => {
                    self.outputs.push(Output::Shard(shard, ShardCommand::Decide(ts, decision)));
                }
                Effect::Supply { shard, ts, rows, last } => {
                    self.outputs.push(Output::Shard(shard, ShardCommand::Supply(ts, rows, last)));
                }
                Effect::Allow { shard, ts, batches } => {
                    self.outputs.push(Output::Shard(shard, ShardCommand::Allow(ts, batches)));
                }
                Effect::Cancel { shard, ts } => {
                    self.outputs.push(Output::Shard(shard, ShardCommand::Cancel(ts)));
                }
                Effect::Keep(payload) => self.tell_payloads(PayloadCommand::Keep(payload)),
                Effect::Load(wanted) => self.tell_payloads(PayloadCommand::Load(wanted)),
                Effect::Forget(payload) => self.tell_payloads(PayloadCommand::Remove(payload)),
                Effect::Outlived { client, incarnation } => {
                    self.tell_payloads(PayloadCommand::Outlived(client.number, incarnation));
                }
                Effect::Send(to, wire) => self.send(to, wire),
                Effect::Answer(to, answer) => match answers.iter_mut().find(|(client, _)| *client == to) {
                    Some((_, answers)) => answers.push(answer),
                    None => answers.push((to, vec![answer])),
                },
                Effect::CheckpointRows { ts, table, until, range, block } => {
                    self.tell_checkpoints(CheckpointCommand::Rows { ts, table, until, range, block });
                }
                Effect::ForgetRows { ts, range } => {
                    self.tell_checkpoints(CheckpointCommand::Forget { ts, range });
                }
                Effect::EndParts(parts) => self.tell_checkpoints(CheckpointCommand::EndParts(parts)),
                Effect::LoadRows { part, attempt, chunks } => {
                    self.tell_checkpoints(CheckpointCommand::Load { part, attempt, chunks });
                }
                Effect::Shard { shard, command } => self.outputs.push(Output::Shard(shard, command)),
                Effect::Join => self.join(),
                Effect::MoveOn => self.submitter.move_on(),
                Effect::Received { keyspace } => {
                    self.submitter.submit(Configuration::Received { keyspace, process: self.id });
                }
                Effect::EndCheckpoint(checkpoint) => {
                    self.tell_checkpoints(CheckpointCommand::End(checkpoint));
                }
                Effect::VoteLost { ts, range } => self.outputs.push(Output::VoteLost(ts, range)),
                Effect::Outdated(reason) => (self.outdated, self.stopped) = (true, Some(reason)),
                // What it would say behind that is not to be trusted.
                Effect::Stop(reason) => {
                    self.stopped = Some(reason);
                    break;
                }
            }
        }
        // What diverged must not answer.
        if self.stopped.is_none() {
            for (to, answers) in answers {
                let mut together = Vec::new();
                for answer in answers {
                    // Groups that were put into parts stay apart.
                    if matches!(answer.part, AnswerPart::Groups(_)) && !together.is_empty() {
                        self.send(to, Wire::Answers(std::mem::take(&mut together)));
                    }
                    together.push(answer);
                }
                self.send(to, Wire::Answers(together));
            }
        }
    }

    fn tell_payloads(&mut self, command: PayloadCommand) {
        use PayloadCommand::{Adopt, Fetch, Load, Stage};
        if let Stage(..) | Load(_) | Fetch { .. } | Adopt { .. } = command {
            self.disk.gave_rows();
        }
        self.outputs.push(Output::Payload(command));
    }

    fn tell_checkpoints(&mut self, command: CheckpointCommand) {
        use CheckpointCommand::{End, EndParts, Load, Rows};
        if let Rows { .. } | End(_) | EndParts(_) | Load { .. } = command {
            self.disk.gave();
        }
        self.outputs.push(Output::Checkpoint(command));
    }

    fn payload_event(&mut self, event: PayloadEvent) {
        // Each tells what has come of one command.
        match &event {
            PayloadEvent::Send(_, Wire::Staged { outcome: Err(error), .. }) if is_given_up(error) => {
                self.disk.took_back_rows();
            }
            _ => self.disk.took_rows(),
        }
        match event {
            PayloadEvent::Send(to, mut wire) => {
                if let Wire::Staged { payload, range, chunk, outcome } = &mut wire {
                    self.staging.remove(&(to, (*payload, *range, *chunk)));
                    // Others are damaged on their way, or given up.
                    let on_disk = |error: &&mut SqlError| is_of_disk(error);
                    if let Some(error) = outcome.as_mut().err().filter(on_disk) {
                        if self.disk.refused() {
                            tracing::error!(process = %self.id, "{}", error.message);
                        }
                        error.detail = Some(format!("It is the disk of storage process {}.", self.id));
                    }
                }
                self.send(to, wire);
            }
            PayloadEvent::Loaded { ts, chunk, rows } => {
                self.fetching
                    .retain(|_, fetching| (fetching.wanted.ts, fetching.wanted.chunk) != (ts, chunk));
                self.event(Event::Loaded { ts, chunk, rows });
            }
            PayloadEvent::Missing(wanted) => self.lacks(wanted, false),
            PayloadEvent::Unreadable(wanted, error) => {
                tracing::error!(process = %self.id, %error, "a staged chunk cannot be read");
                wanted.into_iter().for_each(|wanted| self.lacks(wanted, true));
            }
        }
    }

    /// A chunk is not here; or it may be, but cannot be read now.
    fn lacks(&mut self, wanted: ChunkWanted, is_unreadable: bool) {
        // Its INSERT may have ended, and all may have forgotten it.
        if !self.core.supplies(wanted.ts) {
            return;
        }
        let payload = wanted.payload.clone();
        let part = &payload.parts[wanted.part];
        let key = (payload.id, part.range, wanted.number as u32);
        let (id, ts, now_ms) = (self.id, wanted.ts, self.now_ms);
        tracing::warn!(process = %id, %ts, "a staged chunk is missing or damaged and is fetched from a peer");
        let fetching = self.fetching.entry(key).or_insert_with(|| {
            let others = part.holders.iter().copied().filter(|holder| *holder != id);
            let candidates = others.chain([id]).collect();
            let patience = Patience::new(FETCH_PATIENCE_MS, now_ms);
            Fetching { wanted, candidates, patience, adopting: false }
        });
        // What a peer has sent may be damaged, whatever became of its own.
        let is_of_peer = std::mem::replace(&mut fetching.adopting, false);
        if is_unreadable && fetching.candidates.first() == Some(&id) {
            // A moment ago it could not be read either.
            return;
        }
        if !is_unreadable && !is_of_peer {
            fetching.candidates.retain(|holder| *holder != id);
        }
        self.ask_holder(key);
    }

    fn fetched(&mut self, from: ProcessId, key: ChunkKey, rows: Option<Bytes>) {
        self.fetching.retain(|_, fetching| self.core.supplies(fetching.wanted.ts));
        let Some(fetching) = self.fetching.get_mut(&key).filter(|fetching| !fetching.adopting) else {
            return;
        };
        // Whoever lacks it, or turns out to have sent it damaged, is not asked again.
        fetching.candidates.retain(|holder| *holder != from);
        match rows {
            Some(rows) => {
                fetching.adopting = true;
                let command = PayloadCommand::Adopt { wanted: fetching.wanted.clone(), rows };
                self.tell_payloads(command);
            }
            None => self.ask_holder(key),
        }
    }

    /// Asks the next holder of a chunk.
    fn ask_holder(&mut self, key: ChunkKey) {
        let Some(fetching) = self.fetching.get_mut(&key) else { return };
        fetching.patience.renew(self.now_ms);
        let (payload, range, chunk) = key;
        match fetching.candidates.first().copied() {
            Some(holder) if holder == self.id => {
                let command = PayloadCommand::Load(fetching.wanted.clone());
                self.tell_payloads(command);
            }
            Some(holder) => self.send(holder, Wire::FetchChunk { payload, range, chunk }),
            None => {
                let ts = fetching.wanted.ts;
                let reason = format!("no holder has an undamaged copy of the payload of the INSERT at {ts}");
                self.stopped = Some(reason);
            }
        }
    }

    /// Who was asked for a chunk and has not answered may not be there: another one is.
    fn ask_other_holders(&mut self) {
        let now_ms = self.now_ms;
        self.fetching.retain(|_, fetching| self.core.supplies(fetching.wanted.ts));
        let mut asked = Vec::new();
        for (key, fetching) in self.fetching.iter_mut().filter(|(_, fetching)| !fetching.adopting) {
            if !fetching.patience.ends(now_ms) {
                continue;
            }
            // Who is suspected has given its copy up.
            let asked_last = fetching.candidates.first().copied();
            fetching.candidates.retain(|holder| !self.core.config().is_suspected(*holder));
            if asked_last.is_some() && fetching.candidates.first() == asked_last.as_ref() {
                fetching.candidates.rotate_left(1);
            }
            asked.push(*key);
        }
        asked.into_iter().for_each(|key| self.ask_holder(key));
    }

    /// What was sent to another storage process, or comes from it, may have been lost.
    fn lose_sent(&mut self, process: ProcessId) {
        self.event(Event::SentRowsLost(process));
        let of_process = |fetching: &&mut Fetching| fetching.candidates.first() == Some(&process);
        self.fetching.values_mut().filter(of_process).for_each(|fetching| fetching.patience.end());
    }

    fn checkpoint_ended(&mut self, ts: Ts, outcome: Result<(), String>) {
        self.disk.ended(outcome.is_ok());
        match outcome {
            Ok(()) => self.event(Event::CheckpointDone { ts }),
            Err(reason) => {
                self.failed_checkpoints += 1;
                tracing::error!(process = %self.id, %ts, "cannot write a checkpoint: {reason}");
                self.event(Event::CheckpointFailed { ts });
            }
        }
    }

    fn parts_ended(&mut self, keyspace: Ts, outcome: Result<(), String>) {
        let are_durable = outcome.is_ok();
        self.disk.ended(are_durable);
        if let Err(reason) = outcome {
            self.failed_checkpoints += 1;
            tracing::error!(process = %self.id, %keyspace, "cannot write what has been received: {reason}");
        }
        self.event(Event::PartsEnded { keyspace, are_durable });
    }

    fn unreachable(&mut self, process: ProcessId) {
        match process.kind {
            ProcessKind::Router => self.link.unreachable(process),
            // Votes are asked for again. A client that is gone needs nothing.
            ProcessKind::Storage => self.lose_sent(process),
            ProcessKind::Client | ProcessKind::Super => {
                self.clients.remove(&process);
                self.knowing.remove(&process);
                if let Some((_, is_untold)) = self.earlier.get_mut(&process) {
                    *is_untold = true;
                }
                self.event(Event::ClientGone(process));
            }
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.link.tick(now_ms, !self.is_full());
        self.now_ms = now_ms;
        let processed = self.core.watermarks(0).delivered;
        if processed != self.processed.0 || !self.is_behind() {
            self.processed = (processed, now_ms);
        }
        self.disk.tick(now_ms);
        self.submitter.tick(now_ms);
        self.event(Event::Tick(now_ms));
        if self.link.is_open(self.link.router()) {
            self.send(self.link.router(), Wire::AskLease { incarnation: self.incarnation, asked_ms: now_ms });
        }
        self.confirm();
        self.tell_horizon();
        self.ask_other_holders();
        let delivered = self.core.watermarks(0).delivered;
        self.tell_payloads(PayloadCommand::Expire(delivered));
        self.look_behind();
        self.ask_whether_to_wait();
        let now = Some(self.to_tell());
        let mut behind: BTreeSet<ProcessId> =
            self.clients.iter().filter(|(_, told)| **told != now).map(|(client, _)| *client).collect();
        // Whoever keeps a read waiting is asked whether it is there at all.
        behind.extend(self.core.stalled_clients());
        for client in behind {
            self.tell_memory(client);
        }
        for client in self.clients.keys().copied().collect::<Vec<_>>() {
            self.tell_statistics(client);
        }
    }

    /// Notes what has been received until now, and forgets what of it has been executed.
    fn look_behind(&mut self) {
        let executed = self.core.watermarks(0).executed;
        while self.due.front().is_some_and(|(_, ts)| *ts <= executed) {
            self.due.pop_front();
        }
        let frontier = self.core.frontier();
        if frontier > executed && self.due.back().is_none_or(|(_, ts)| *ts < frontier) {
            self.due.push_back((self.now_ms + LAG_MS, frontier));
        }
    }

    /// Whether what was received a while ago has not been executed, or this life does not know yet what it is behind.
    fn lags(&self) -> bool {
        !self.announced || self.due.front().is_some_and(|(due_ms, _)| *due_ms <= self.now_ms)
    }

    /// Tells a client what is known of the tables, if that is news.
    fn tell_statistics(&mut self, client: ProcessId) {
        if client.kind == ProcessKind::Client && self.knowing.insert(client) && !self.statistics.is_empty() {
            self.send(client, Wire::Statistics(self.statistics.clone()));
        }
    }

    fn to_tell(&self) -> Told {
        let Watermarks { durable, .. } = self.core.watermarks(0);
        let receiving = self.core.receiving().map(|(part, arrived)| (part, arrived.whole)).collect();
        let (used, lags, reached) = (self.memory, self.lags(), self.core.reached());
        Told { used, lags, reached, durable, receiving, unreached: self.unreached.clone() }
    }

    fn tell_memory(&mut self, client: ProcessId) {
        let told = self.to_tell();
        let memory = Wire::Memory {
            incarnation: self.incarnation,
            used: told.used,
            limit: self.memory_limit,
            reached: told.reached,
            durable: told.durable,
            logged: self.core.logged(),
            staged: self.core.staged(),
            checkpointing: self.core.is_checkpointing(),
            receiving: self.core.receiving().collect(),
            lags: told.lags,
            disk: self.disk.state(),
            unreached: told.unreached.clone(),
        };
        self.clients.insert(client, Some(told));
        self.send(client, memory);
    }
}
