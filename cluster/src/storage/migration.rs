//! Partial live migration as a pure state machine (paper, sections 6.4 to 6.6; DESIGN, decision 15): what a storage
//! process does about the instructions of keyspace messages. Events in, effects out.
//!
//! A keyspace message at `Ts` M cuts what has to move into *parts*, each one key range that one process receives. A
//! part's content is what a read at M sees in the range, so every process that held the range before M can send it,
//! in *chunks* that are numbered and checksummed.
//!
//! ```text
//!   m-seq      … w  w  M  w  w  w  w  w  R …            R: e has received what M instructed, durably
//!
//!   sender b      ──────┬───────────────┬──────         executes everything as it comes; keeps the versions that a
//!                       │ chunks        │               read at M sees until every receiver is durable
//!   receiver e    ──────┴───(waits)─┬───┴──────         takes what comes behind M only when its parts are installed
//!                                install
//! ```
//!
//! The receiver holds back everything behind M, which keeps the updates that arrive meanwhile in order; the routers
//! send reads elsewhere as long as it is busy. If a sender is suspected, says that it cannot send or sends damaged
//! chunks, the part is asked for from another holder, from the beginning. Only when none remains has the receiver
//! failed; unless the last one has been given up with what it alone had: then the part is there without rows. A sender may be behind the receiver; a question about a keyspace message that is still to come waits for it.
//! Links may be slow: a sender that is asked again for what is on its way says only that it follows.
//!
//! When all parts are installed, they have to be durable: by themselves, until a checkpoint of M or behind it has them. Then
//! the receiver announces so by a message ([`crate::config::Configuration::Received`]), again and again until that message is
//! ordered. Suspicions, too, come from the m-seq, so everybody agrees on who still has to send and who need not keep old
//! versions any more. A receiver that restarts before it has such a checkpoint comes to M again, and has the parts from its
//! own disk: nobody else need have them then.
//!
//! Where this departs from the paper: there the failure of a sender is the failure of its receivers (section 6.5),
//! and a process that sends is stopped meanwhile; versions make both unnecessary. A delete takes effect at M for
//! everything behind M, while the versions before it stay for the sake of other receivers.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use carousel_engine::{
    TableId, Ts, block,
    position::{KeyRange, covers},
};
use serde::{Deserialize, Serialize};

use crate::{config::Transfer, message::ProcessId};

/// A key range that a process receives because of a keyspace message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartId {
    /// `Ts` of the keyspace message: the part's rows are those that a read at this `Ts` sees.
    pub keyspace: Ts,
    /// The range.
    pub range: KeyRange,
}

/// A chunk of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Counted from 0.
    pub number: u32,
    /// The table whose rows it has; none for the votes about writes of the range, which come last: the others may still ask
    /// for them, and those who held the range may be gone then.
    pub table: Option<TableId>,
    /// The rows or votes, serialised.
    #[serde(with = "crate::wire::form::bytes")]
    pub rows: Bytes,
    /// CRC-32 of `rows`.
    pub checksum: u32,
    /// For the last chunk: the content hash of each table in the range at the keyspace message's `Ts`.
    pub last: Option<Vec<(TableId, u128)>>,
}

/// Patience and limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Chunks that may be on their way from one sender.
    pub window: u32,
    /// How long to wait for a chunk before it is asked for again.
    pub patience_ms: u64,
    /// After how many fruitless questions another holder is asked.
    pub questions: u32,
    /// How many damaged chunks disqualify a sender.
    pub damaged: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { window: 4, patience_ms: 2_000, questions: 5, damaged: 3 }
    }
}

/// What happens to the process.
#[derive(Clone, Debug)]
pub enum Event {
    /// A keyspace message that takes effect has its turn: everything before it has been given to the shards.
    Keyspace {
        /// Its `Ts`.
        ts: Ts,
        /// What every process receives.
        transfers: Vec<Transfer>,
    },
    /// A receiver asks for chunks.
    Asked {
        /// Who.
        from: ProcessId,
        /// Of which part.
        part: PartId,
        /// See [`Effect::Ask`].
        attempt: u64,
        /// Which.
        chunks: std::ops::Range<u32>,
    },
    /// A chunk has come.
    Chunk {
        /// From whom.
        from: ProcessId,
        /// Of which part.
        part: PartId,
        /// Of which attempt.
        attempt: u64,
        /// The chunk.
        chunk: Chunk,
    },
    /// A process says that what it was asked for is on its way, or will be.
    Follows {
        /// Who.
        from: ProcessId,
        /// Which part.
        part: PartId,
        /// Of which attempt.
        attempt: u64,
    },
    /// A process cannot send a part.
    Refused {
        /// Who.
        from: ProcessId,
        /// Which part.
        part: PartId,
        /// Of which attempt.
        attempt: u64,
        /// It can send it from the beginning: it has forgotten how far it was.
        anew: bool,
    },
    /// The shards have the rows of a part, or they are not what the sender said.
    Installed {
        /// Which part.
        part: PartId,
        /// Whether the content hashes agree.
        outcome: Result<(), String>,
    },
    /// What a read at this `Ts` sees is durable: in a checkpoint, or in one before it and what has been received since.
    Durable(Ts),
    /// An ordered message says that a process has durably received what a keyspace message instructed. To be told as
    /// soon as it is delivered, like suspicions: a process that waits for its parts must not wait for its turn.
    Received {
        /// `Ts` of the keyspace message.
        keyspace: Ts,
        /// The receiver.
        process: ProcessId,
    },
    /// An ordered message has given up who alone could send these parts, which are not there. To be told before its suspicion.
    Lost(Vec<PartId>),
    /// An ordered message has declared another process as failed.
    Suspected {
        /// The process.
        process: ProcessId,
        /// `Ts` of that message.
        ts: Ts,
    },
    /// Time passes: milliseconds since some beginning.
    Tick(u64),
}

/// What the process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask a holder for chunks of a part. What has been asked for and not come is asked for again, which tells whether the
    /// holder is there.
    Ask {
        /// The holder.
        to: ProcessId,
        /// The part.
        part: PartId,
        /// Which attempt at receiving the part this is: greater than those before, also of earlier lives. A new one begins with
        /// the first chunk, and chunks of others, which may be cut differently, do not belong to it.
        attempt: u64,
        /// Which chunks.
        chunks: std::ops::Range<u32>,
    },
    /// Send chunks of a part, as soon as they have been read from the shards.
    Serve {
        /// The receiver.
        to: ProcessId,
        /// The part.
        part: PartId,
        /// Of which attempt.
        attempt: u64,
        /// Which chunks; there may be fewer.
        chunks: std::ops::Range<u32>,
    },
    /// Tell a receiver that this process cannot send a part.
    Refuse {
        /// The receiver.
        to: ProcessId,
        /// The part.
        part: PartId,
        /// Of which attempt.
        attempt: u64,
    },
    /// Keep a chunk that has come.
    Keep {
        /// Of which part.
        part: PartId,
        /// The chunk.
        chunk: Chunk,
    },
    /// Forget the chunks of a part: it begins anew, from another sender.
    Discard(PartId),
    /// Give the rows of a part's chunks to the shards and compare content hashes.
    Install {
        /// The part.
        part: PartId,
        /// How many chunks it has.
        chunks: u32,
        /// What the sender's content hashes are.
        hashes: Vec<(TableId, u128)>,
    },
    /// Everything that a keyspace message instructed has been received: make it durable.
    Complete {
        /// `Ts` of the keyspace message.
        keyspace: Ts,
    },
    /// Submit the message that says that what a keyspace message instructed has been received, durably.
    Announce {
        /// `Ts` of the keyspace message.
        keyspace: Ts,
    },
    /// What a read at a keyspace message's `Ts` sees is not needed by any receiver any more.
    Release {
        /// `Ts` of the keyspace message.
        keyspace: Ts,
    },
    /// No holder of a part remains: this process has failed.
    Fail(String),
}

/// A part that is to be received.
#[derive(Clone, Debug)]
struct Incoming {
    /// Holders that may still be asked, the present one first.
    senders: Vec<ProcessId>,
    /// See [`Effect::Ask`].
    attempt: u64,
    /// Who has sent all of it.
    source: Option<ProcessId>,
    /// The next chunk.
    next: u32,
    /// Chunks before this have been asked for.
    asked: u32,
    /// Fruitless questions to the present sender.
    questions: u32,
    damaged: u32,
    /// When there was progress last.
    progress_ms: u64,
    /// Rows that have come, and those that the sender has found and will send: of each table and shard of it.
    rows: u64,
    follow: BTreeMap<(TableId, u32), u64>,
    /// All of them together. The numbers are somebody else's word.
    follow_in_all: u128,
    state: State,
}

/// How much has come of a part that a process is to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// Whether all of it has come, or is on the process's own disk.
    pub whole: bool,
    /// Chunks that have come.
    pub chunks: u32,
    /// Rows in them.
    pub rows: u64,
    /// More rows that are known to come: those of a table are known from its first chunk on.
    pub follow: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Receiving,
    Installing,
    Installed,
}

/// A keyspace message whose instructions let this process receive something.
#[derive(Clone, Debug)]
struct Receiving {
    parts: BTreeMap<KeyRange, Incoming>,
}

impl Receiving {
    fn is_installed(&self) -> bool {
        self.parts.values().all(|part| part.state == State::Installed)
    }
}

/// A keyspace message some of whose parts this process could send.
#[derive(Clone, Debug)]
struct Serving {
    /// Receivers that are not durable, with their parts.
    receivers: BTreeMap<ProcessId, Vec<KeyRange>>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Migrations {
    id: ProcessId,
    limits: Limits,
    /// Keyspace messages up to here have had their turn, or were executed by an earlier life.
    reached: Ts,
    receiving: BTreeMap<Ts, Receiving>,
    serving: BTreeMap<Ts, Serving>,
    /// Of keyspace messages that are still to come: those who have received everything.
    received_early: BTreeSet<(Ts, ProcessId)>,
    /// Parts that an earlier life has received, and has on its disk.
    kept: BTreeSet<PartId>,
    /// Parts of keyspace messages that are still to come that nobody can send any more.
    lost: BTreeSet<PartId>,
    /// When a process was suspected last.
    suspected: BTreeMap<ProcessId, Ts>,
    /// Questions about keyspace messages that are still to come.
    early: BTreeMap<(PartId, ProcessId), (u64, std::ops::Range<u32>)>,
    /// The last attempt at receiving a part.
    attempts: u64,
    /// What has been received durably, but whose announcement is not known to be ordered.
    announcing: Vec<Ts>,
    now_ms: u64,
    announced_ms: u64,
    effects: Vec<Effect>,
}

impl Migrations {
    /// The state after everything up to `recovered` is known to be durable here. `unannounced` are the keyspace
    /// messages up to there whose parts the config still takes for incomplete at this process. Attempts at receiving parts are
    /// counted on from `attempts`.
    pub fn new(
        id: ProcessId,
        recovered: Ts,
        unannounced: Vec<Ts>,
        attempts: u64,
        limits: Limits,
    ) -> Migrations {
        Migrations {
            id,
            limits,
            reached: recovered,
            receiving: BTreeMap::new(),
            serving: BTreeMap::new(),
            received_early: BTreeSet::new(),
            kept: BTreeSet::new(),
            lost: BTreeSet::new(),
            suspected: BTreeMap::new(),
            early: BTreeMap::new(),
            attempts,
            announcing: unannounced,
            now_ms: 0,
            announced_ms: 0,
            effects: Vec::new(),
        }
    }

    /// Goes on serving what an earlier life has kept in its checkpoint: receivers and their parts.
    pub fn resume_serving(&mut self, parts: impl IntoIterator<Item = (ProcessId, PartId)>) {
        for (to, part) in parts {
            let serving = self.serving.entry(part.keyspace);
            let serving = serving.or_insert_with(|| Serving { receivers: BTreeMap::new() });
            serving.receivers.entry(to).or_default().push(part.range);
        }
    }

    /// Has these parts from here, as an earlier life has received them: it is its own sender.
    pub fn resume_receiving(&mut self, kept: impl IntoIterator<Item = PartId>) {
        self.kept.extend(kept);
    }

    /// Whether an earlier life has received what a keyspace message moves here.
    pub fn has_kept(&self, keyspace: Ts) -> bool {
        self.kept.iter().any(|part| part.keyspace == keyspace)
    }

    /// The parts that others may still ask for, with those who may.
    pub fn served(&self) -> impl Iterator<Item = (ProcessId, PartId)> {
        self.serving.iter().flat_map(|(keyspace, serving)| {
            let parts = |(to, ranges): (&ProcessId, &Vec<KeyRange>)| {
                let (to, keyspace) = (*to, *keyspace);
                let part = move |range: KeyRange| (to, PartId { keyspace, range });
                ranges.iter().copied().map(part).collect::<Vec<_>>()
            };
            serving.receivers.iter().flat_map(parts).collect::<Vec<_>>()
        })
    }

    /// Whether what is behind the last keyspace message must wait until its parts are installed.
    pub fn is_waiting(&self) -> bool {
        self.oldest_receiving().is_some()
    }

    /// The last attempt at receiving a part.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    /// Whether a chunk has been asked for and has not been taken.
    pub fn awaits(&mut self, from: ProcessId, part: PartId, attempt: u64, number: u32) -> bool {
        let asked = |incoming: &mut Incoming| (incoming.next..incoming.asked).contains(&number);
        self.incoming_from(from, part, attempt).is_some_and(asked)
    }

    /// A process is about to send what it was asked for, or that has come and waits for what is before it to be taken.
    pub fn hear_from(&mut self, from: ProcessId, part: PartId, attempt: u64) {
        let now_ms = self.now_ms;
        if let Some(incoming) = self.incoming_from(from, part, attempt) {
            (incoming.questions, incoming.progress_ms) = (0, now_ms);
        }
    }

    /// The oldest keyspace message at whose `Ts` rows may still have to be read for other processes: their versions
    /// must be kept.
    pub fn oldest_served(&self) -> Option<Ts> {
        self.serving.keys().next().copied()
    }

    /// The oldest keyspace message whose parts are not all installed: what is received is told apart from what was there
    /// by its `Ts`.
    pub fn oldest_receiving(&self) -> Option<Ts> {
        let receiving = self.receiving.iter().find(|(_, receiving)| !receiving.is_installed());
        receiving.map(|(keyspace, _)| *keyspace)
    }

    /// Parts that are to be received, and not known to be durable together: their keyspace message, range, and how much of them
    /// has come.
    pub fn progress(&self) -> impl Iterator<Item = (PartId, Arrived)> {
        self.receiving.iter().flat_map(|(keyspace, receiving)| {
            receiving.parts.iter().map(|(range, part)| {
                let follow = u64::try_from(part.follow_in_all).unwrap_or(u64::MAX);
                let whole = part.state != State::Receiving || part.senders.first() == Some(&self.id);
                let arrived = Arrived { whole, chunks: part.next, rows: part.rows, follow };
                (PartId { keyspace: *keyspace, range: *range }, arrived)
            })
        })
    }

    /// Those of them that are not installed.
    fn open_parts(&self) -> Vec<PartId> {
        let parts = self.receiving.iter().flat_map(|(keyspace, receiving)| {
            let open = receiving.parts.iter().filter(|(_, part)| part.state != State::Installed);
            open.map(|(range, _)| PartId { keyspace: *keyspace, range: *range })
        });
        parts.collect()
    }

    /// Takes an event and returns what is to be done, in order.
    ///
    /// # Panics
    /// When a keyspace message has its turn although parts of an earlier one are missing, or a second time.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Keyspace { ts, transfers } => self.keyspace(ts, transfers),
            Event::Asked { from, part, attempt, chunks } => self.asked(from, part, attempt, chunks),
            Event::Chunk { from, part, attempt, chunk } => self.chunk(from, part, attempt, chunk),
            Event::Follows { from, part, attempt } => self.hear_from(from, part, attempt),
            Event::Refused { from, part, attempt, anew } => {
                if self.incoming_from(from, part, attempt).is_some() {
                    match anew {
                        true => self.begin_anew(part, "begins anew"),
                        false => self.exclude(part, from, "cannot send it"),
                    }
                }
            }
            Event::Installed { part, outcome } => self.installed(part, outcome),
            Event::Durable(ts) => self.durable(ts),
            Event::Received { keyspace, process } => self.received(keyspace, process),
            Event::Lost(parts) => parts.into_iter().for_each(|part| self.lose(part)),
            Event::Suspected { process, ts } => self.suspect(process, ts),
            Event::Tick(now_ms) => self.tick(now_ms),
        }
        std::mem::take(&mut self.effects)
    }

    /// Whether a process has been suspected behind a message.
    fn is_suspected_behind(&self, process: ProcessId, ts: Ts) -> bool {
        self.suspected.get(&process).is_some_and(|when| *when > ts)
    }

    fn keyspace(&mut self, ts: Ts, transfers: Vec<Transfer>) {
        assert!(ts > self.reached, "the keyspace message at {ts} has its turn after {}", self.reached);
        assert!(!self.is_waiting(), "the keyspace message at {ts} overtakes parts of an earlier one");
        self.reached = ts;
        let mut receivers: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        let mut parts = BTreeMap::new();
        for mut transfer in transfers {
            let part = PartId { keyspace: ts, range: transfer.range };
            let is_given_up = transfer.to == self.id && self.lost.remove(&part);
            let is_lost = is_given_up || transfer.senders.is_empty();
            // They have failed since, though it is not yet the turn of the message that says so.
            transfer.senders.retain(|sender| !self.is_suspected_behind(*sender, ts));
            let has_received =
                |(keyspace, process): &(Ts, ProcessId)| *keyspace >= ts && *process == transfer.to;
            let ended =
                self.is_suspected_behind(transfer.to, ts) || self.received_early.iter().any(has_received);
            if transfer.senders.contains(&self.id) && !ended {
                receivers.entry(transfer.to).or_default().push(transfer.range);
            }
            if transfer.to == self.id {
                if self.kept.contains(&part) {
                    transfer.senders = vec![self.id];
                }
                let incoming = Incoming {
                    senders: transfer.senders,
                    attempt: 0,
                    source: None,
                    next: 0,
                    asked: 0,
                    questions: 0,
                    damaged: 0,
                    progress_ms: self.now_ms,
                    rows: 0,
                    follow: BTreeMap::new(),
                    follow_in_all: 0,
                    state: if is_lost { State::Installed } else { State::Receiving },
                };
                parts.insert(transfer.range, incoming);
            }
        }
        if !receivers.is_empty() {
            self.serving.insert(ts, Serving { receivers });
        }
        let ranges: Vec<KeyRange> = parts.keys().copied().collect();
        if !parts.is_empty() {
            self.receiving.insert(ts, Receiving { parts });
            self.complete(ts);
        }
        self.received_early.retain(|(keyspace, _)| *keyspace > ts);
        for range in ranges {
            self.begin_anew(PartId { keyspace: ts, range }, "is suspected");
        }
        // Those who were ahead.
        let early = std::mem::take(&mut self.early);
        for ((part, from), (attempt, chunks)) in early {
            self.asked(from, part, attempt, chunks);
        }
    }

    /// The part, if it is still being received.
    fn incoming(&mut self, part: PartId) -> Option<&mut Incoming> {
        let incoming = self.receiving.get_mut(&part.keyspace)?.parts.get_mut(&part.range)?;
        (incoming.state == State::Receiving).then_some(incoming)
    }

    /// The part, if it is being received from this process, by this attempt.
    fn incoming_from(&mut self, from: ProcessId, part: PartId, attempt: u64) -> Option<&mut Incoming> {
        let incoming = self.incoming(part)?;
        (incoming.senders.first() == Some(&from) && incoming.attempt == attempt).then_some(incoming)
    }

    /// Asks for what is missing of the window.
    fn ask(&mut self, part: PartId) {
        let window = self.limits.window;
        let Some(incoming) = self.incoming(part) else { return };
        let Some(to) = incoming.senders.first().copied() else { return };
        let until = incoming.next.saturating_add(window);
        if incoming.asked < until {
            let (attempt, chunks) = (incoming.attempt, incoming.asked..until);
            incoming.asked = until;
            self.effects.push(Effect::Ask { to, part, attempt, chunks });
        }
    }

    fn asked(&mut self, from: ProcessId, part: PartId, attempt: u64, chunks: std::ops::Range<u32>) {
        let serving = self.serving.get(&part.keyspace).and_then(|serving| serving.receivers.get(&from));
        if serving.is_some_and(|ranges| ranges.contains(&part.range)) {
            self.effects.push(Effect::Serve { to: from, part, attempt, chunks });
        } else if part.keyspace > self.reached {
            self.early.insert((part, from), (attempt, chunks));
        } else {
            self.effects.push(Effect::Refuse { to: from, part, attempt });
        }
    }

    fn chunk(&mut self, from: ProcessId, part: PartId, attempt: u64, chunk: Chunk) {
        let (now_ms, limits) = (self.now_ms, self.limits);
        // What was asked of others, or earlier, still comes.
        let Some(incoming) = self.incoming_from(from, part, attempt) else { return };
        // It comes twice, or behind a lost one.
        if incoming.next != chunk.number {
            return;
        }
        if crc32fast::hash(&chunk.rows) != chunk.checksum {
            incoming.damaged += 1;
            if incoming.damaged >= limits.damaged {
                return self.exclude(part, from, "sends damaged chunks");
            }
            return self.begin_anew(part, "sends damaged chunks");
        }
        incoming.next += 1;
        incoming.questions = 0;
        incoming.progress_ms = now_ms;
        if let Some(table) = chunk.table
            && let Some(extent) = block::extent(&chunk.rows)
        {
            incoming.rows = incoming.rows.saturating_add(extent.rows);
            let before = incoming.follow.insert((table, extent.shard), extent.follow).unwrap_or(0);
            incoming.follow_in_all += u128::from(extent.follow);
            incoming.follow_in_all -= u128::from(before);
        }
        let chunks = incoming.next;
        let last = chunk.last.clone();
        if last.is_some() {
            incoming.state = State::Installing;
            incoming.source = Some(from);
        }
        self.effects.push(Effect::Keep { part, chunk });
        match last {
            Some(hashes) => self.effects.push(Effect::Install { part, chunks, hashes }),
            None => {
                let half = limits.window / 2;
                if self.incoming(part).is_some_and(|incoming| incoming.asked <= incoming.next + half) {
                    self.ask(part);
                }
            }
        }
    }

    /// Asks the first holder that is left, from the beginning.
    fn begin_anew(&mut self, part: PartId, reason: &str) {
        let (now_ms, attempt) = (self.now_ms, self.attempts + 1);
        let Some(incoming) = self.incoming(part) else { return };
        let had = incoming.next > 0;
        incoming.attempt = attempt;
        incoming.next = 0;
        incoming.asked = 0;
        incoming.questions = 0;
        incoming.progress_ms = now_ms;
        incoming.rows = 0;
        incoming.follow.clear();
        incoming.follow_in_all = 0;
        if incoming.senders.is_empty() {
            let PartId { keyspace, range } = part;
            let reason = format!(
                "no holder remains of range {range} that the keyspace message at {keyspace} moves here: the last one {reason}"
            );
            return self.effects.push(Effect::Fail(reason));
        }
        self.attempts = attempt;
        if had {
            self.effects.push(Effect::Discard(part));
        }
        self.ask(part);
    }

    /// A part is there without rows.
    fn lose(&mut self, part: PartId) {
        if part.keyspace > self.reached {
            self.lost.insert(part);
        }
        let incoming = |receiving: &mut Receiving| {
            let incoming = receiving.parts.get_mut(&part.range)?;
            (incoming.state, incoming.source) = (State::Installed, None);
            Some(incoming.next > 0)
        };
        let receiving = self.receiving.get_mut(&part.keyspace).filter(|receiving| !receiving.is_installed());
        if let Some(had) = receiving.and_then(incoming) {
            self.effects.extend(had.then_some(Effect::Discard(part)));
            self.complete(part.keyspace);
        }
    }

    /// Whether what a keyspace message moves here in a range is there, or is on its own disk: operations on it are executed, or
    /// have been by an earlier life.
    pub fn is_there(&self, keyspace: Ts, range: KeyRange) -> bool {
        let covers = |part: &PartId| part.keyspace == keyspace && covers(&[part.range], &[range]);
        let receiving = self.receiving.get(&keyspace);
        self.kept.iter().any(covers)
            || keyspace <= self.reached && receiving.is_none_or(Receiving::is_installed)
    }

    /// A holder is not asked for a part any more.
    fn exclude(&mut self, part: PartId, sender: ProcessId, reason: &str) {
        let Some(incoming) = self.incoming(part) else { return };
        let was_asked = incoming.senders.first() == Some(&sender);
        incoming.senders.retain(|other| *other != sender);
        if was_asked {
            incoming.damaged = 0;
            self.begin_anew(part, reason);
        }
    }

    fn installed(&mut self, part: PartId, outcome: Result<(), String>) {
        let Some(receiving) = self.receiving.get_mut(&part.keyspace) else { return };
        let Some(incoming) = receiving.parts.get_mut(&part.range) else { return };
        if incoming.state != State::Installing {
            return;
        }
        match outcome {
            Ok(()) => {
                incoming.state = State::Installed;
                self.complete(part.keyspace);
            }
            Err(reason) => {
                incoming.state = State::Receiving;
                let source = incoming.source.take();
                incoming.senders.retain(|sender| Some(*sender) != source);
                self.begin_anew(part, &reason);
            }
        }
    }

    /// Tells when all parts of a keyspace message are there.
    fn complete(&mut self, keyspace: Ts) {
        if self.receiving.get(&keyspace).is_some_and(Receiving::is_installed) {
            self.effects.push(Effect::Complete { keyspace });
        }
    }

    fn durable(&mut self, ts: Ts) {
        let complete = self.receiving.range(..ts).filter(|(_, receiving)| receiving.is_installed());
        for keyspace in complete.map(|(keyspace, _)| *keyspace).collect::<Vec<_>>() {
            self.receiving.remove(&keyspace);
            self.announcing.push(keyspace);
            self.effects.push(Effect::Announce { keyspace });
        }
    }

    fn received(&mut self, keyspace: Ts, process: ProcessId) {
        if process == self.id {
            self.announcing.retain(|announced| *announced > keyspace);
        }
        if keyspace > self.reached {
            self.received_early.insert((keyspace, process));
        }
        self.end_serving(process, |ts| ts <= keyspace);
    }

    fn suspect(&mut self, process: ProcessId, ts: Ts) {
        self.suspected.insert(process, ts);
        self.early.retain(|(_, from), _| *from != process);
        self.end_serving(process, |_| true);
        if process == self.id {
            // What it has on its own disk is there all the same.
            return;
        }
        for part in self.open_parts() {
            self.exclude(part, process, "is suspected");
        }
        // If the rows that are being installed turn out to be wrong, it is not asked either.
        for part in self.receiving.values_mut().flat_map(|receiving| receiving.parts.values_mut()) {
            part.senders.retain(|sender| *sender != process);
        }
    }

    /// A receiver needs nothing any more.
    fn end_serving(&mut self, receiver: ProcessId, ended: impl Fn(Ts) -> bool) {
        let effects = &mut self.effects;
        self.serving.retain(|keyspace, serving| {
            if ended(*keyspace)
                && serving.receivers.remove(&receiver).is_some()
                && serving.receivers.is_empty()
            {
                effects.push(Effect::Release { keyspace: *keyspace });
            }
            !serving.receivers.is_empty()
        });
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let (limits, own) = (self.limits, self.id);
        for part in self.open_parts() {
            let Some(incoming) = self.incoming(part) else { continue };
            // What this process has on its own disk comes for sure.
            if now_ms < incoming.progress_ms + limits.patience_ms || incoming.senders.first() == Some(&own) {
                continue;
            }
            incoming.progress_ms = now_ms;
            incoming.questions += 1;
            if incoming.questions > limits.questions && incoming.senders.len() > 1 {
                // It may be back later.
                incoming.senders.rotate_left(1);
                incoming.damaged = 0;
                self.begin_anew(part, "does not answer");
            } else {
                incoming.asked = incoming.next;
                self.ask(part);
            }
        }
        if !self.announcing.is_empty() && now_ms >= self.announced_ms + limits.patience_ms {
            self.announced_ms = now_ms;
            let again = self.announcing.iter().map(|keyspace| Effect::Announce { keyspace: *keyspace });
            self.effects.extend(again);
        }
    }
}

#[cfg(test)]
#[path = "migration_tests.rs"]
mod tests;
