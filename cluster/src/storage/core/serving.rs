//! Sending rows to those who receive them: one session for each receiver and part, which reads the tables one after the
//! other, all shards at a time. The reads see the prefix before the keyspace message, and their shards send as much as
//! the receiver's window allows ([`carousel_engine::Shard::allow`]), so a session takes little memory. The last chunks are
//! kept, in case they get lost. A chunk is a block of rows as the engine holds them. Behind the rows come the votes that are
//! known here about writes of the part.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
};

use bytes::Bytes;
use carousel_engine::{TableId, TableSchema, Ts, operation::Effect as ShardEffect};

use super::{Arc, Core, Effect, ProcessId, Wire, local, votes};
use crate::{
    planted::{Bug, planted},
    storage::{
        ballot::Ballot,
        migration::{Chunk, PartId},
    },
};

/// Blocks of rows that a shard may have on their way to a receiver. Each is a chunk.
const SHARD_WINDOW: u32 = 1;
/// Chunks that are kept after they have been sent: more than a receiver's window.
const KEPT: usize = 5;
/// Writes in a chunk of votes.
const BALLOTS: usize = 1024;

/// What is being sent to one receiver.
#[derive(Debug)]
pub(in crate::storage) struct Session {
    /// Tables that have not been read.
    tables: VecDeque<Arc<TableSchema>>,
    reading: Option<Reading>,
    hashes: Vec<(TableId, u128)>,
    /// Votes that have not been sent, when all rows have been read: only then all writes of the part are decided.
    ballots: Option<VecDeque<(Ts, Ballot)>>,
    /// The receiver's attempt at receiving the part.
    attempt: u64,
    /// The number of the next chunk, and the last ones before it.
    next: u32,
    sent: VecDeque<Sent>,
    /// Chunks before this have been asked for.
    wanted: u32,
    /// The last chunk has been sent.
    done: bool,
}

/// A chunk that has been sent.
#[derive(Debug)]
struct Sent {
    chunk: Chunk,
    /// It may have been lost on its way. Otherwise it has come or will come, however slow the link is: a second one would make
    /// it slower.
    is_lost: bool,
}

/// The table that is being read.
#[derive(Debug)]
struct Reading {
    table: Arc<TableSchema>,
    /// Local time of the read.
    time: Ts,
    /// The content hash, as far as it is known.
    hash: u128,
    /// Rows that have not been sent, with their shard.
    ready: VecDeque<(usize, Bytes)>,
    /// Shards that have not ended their reads.
    reading: BTreeSet<usize>,
}

type Key = (ProcessId, PartId);

impl Core {
    /// A receiver asks for chunks of a part.
    pub(super) fn serve(&mut self, to: ProcessId, part: PartId, attempt: u64, chunks: Range<u32>) {
        let key = (to, part);
        let has_begun = match self.moving.sessions.get(&key) {
            // It has asked before it began anew.
            Some(session) if attempt < session.attempt => return,
            Some(session) => {
                let first = session.next - session.sent.len() as u32;
                attempt == session.attempt && chunks.start >= first
            }
            None => false,
        };
        if !has_begun {
            self.close_session(key);
            let refused = |anew| Effect::Send(to, Wire::RowsRefused { part, attempt, anew });
            if chunks.start > 0 {
                return self.effects.push(refused(true));
            }
            let Some(catalog) = self.moving.catalogs.get(&part.keyspace) else {
                return self.effects.push(refused(false));
            };
            let session = Session {
                tables: catalog.tables().cloned().collect(),
                reading: None,
                hashes: Vec::new(),
                ballots: None,
                attempt,
                next: 0,
                sent: VecDeque::new(),
                wanted: 0,
                done: false,
            };
            self.moving.sessions.insert(key, session);
        }
        let Some(session) = self.moving.sessions.get_mut(&key) else { return };
        if chunks.start < session.wanted {
            self.effects.push(Effect::Send(to, Wire::RowsFollow { part, attempt }));
        }
        session.wanted = session.wanted.max(chunks.end);
        let is_wanted = |sent: &&mut Sent| sent.is_lost && chunks.contains(&sent.chunk.number);
        for sent in session.sent.iter_mut().filter(is_wanted) {
            sent.is_lost = false;
            self.effects.push(Effect::Send(to, Wire::Rows { part, attempt, chunk: sent.chunk.clone() }));
        }
        self.produce(key);
    }

    /// What was on its way to a process may have been lost.
    pub(super) fn lose_sent_rows(&mut self, to: ProcessId) {
        let sessions = self.moving.sessions.iter_mut().filter(|((receiver, _), _)| *receiver == to);
        sessions.flat_map(|(_, session)| &mut session.sent).for_each(|sent| sent.is_lost = true);
    }

    /// Sends the chunks of a session that are wanted, as far as their rows have come.
    pub(super) fn produce(&mut self, key: Key) {
        loop {
            let has_times = self.has_times();
            let Some(session) = self.moving.sessions.get_mut(&key) else { return };
            if session.done || session.next >= session.wanted {
                return;
            }
            let Some(reading) = &mut session.reading else {
                if !has_times {
                    return;
                }
                match session.tables.pop_front() {
                    Some(table) => self.read(key, table),
                    None => {
                        let (own, (_, PartId { keyspace, range })) = (self.options.id, key);
                        let known = || {
                            let durable = votes::durable(&self.peers, &self.options.config);
                            self.ballots.of_range(own, range, keyspace, durable).into()
                        };
                        let ballots = session.ballots.get_or_insert_with(known);
                        self.has_told_votes |= !ballots.is_empty();
                        let next: Vec<_> = ballots.drain(..ballots.len().min(BALLOTS)).collect();
                        session.done = ballots.is_empty();
                        let last = session.done.then(|| std::mem::take(&mut session.hashes));
                        // Nothing in it can fail to be serialised.
                        let votes = postcard::to_stdvec(&next).unwrap_or_default();
                        self.chunk(key, None, votes.into(), last);
                    }
                }
                continue;
            };
            if let Some((shard, rows)) = reading.ready.pop_front() {
                let (table, ts) = (reading.table.id, reading.time);
                self.effects.push(Effect::Allow { shard, ts, batches: 1 });
                self.chunk(key, Some(table), rows, None);
                continue;
            }
            if !reading.reading.is_empty() {
                return;
            }
            let time = reading.time;
            session.hashes.push((reading.table.id, reading.hash));
            session.reading = None;
            self.moving.reads.remove(&time);
        }
    }

    /// Begins to read a table for a session.
    fn read(&mut self, key: Key, table: Arc<TableSchema>) {
        let (_, part) = key;
        let time = self.next_local();
        let read_ts = if planted(Bug::CopyOfThePresent) { time } else { local(part.keyspace) };
        self.read_blocks(time, read_ts, table.id, vec![part.range], SHARD_WINDOW, true);
        self.moving.reads.insert(time, key);
        let reading = Reading {
            table,
            time,
            hash: 0,
            ready: VecDeque::new(),
            reading: (0..self.options.shards).collect(),
        };
        if let Some(session) = self.moving.sessions.get_mut(&key) {
            session.reading = Some(reading);
        }
    }

    /// Sends the next chunk of a session.
    fn chunk(&mut self, key: Key, table: Option<TableId>, rows: Bytes, last: Option<Vec<(TableId, u128)>>) {
        let Some(session) = self.moving.sessions.get_mut(&key) else { return };
        let checksum = crc32fast::hash(&rows);
        let chunk = Chunk { number: session.next, table, rows, checksum, last };
        session.next += 1;
        let attempt = session.attempt;
        // What comes behind a lost one is not taken.
        let is_lost = session.sent.back().is_some_and(|last| last.is_lost);
        session.sent.push_back(Sent { chunk: chunk.clone(), is_lost });
        if session.sent.len() > KEPT {
            session.sent.pop_front();
        }
        let (to, part) = key;
        self.effects.push(Effect::Send(to, Wire::Rows { part, attempt, chunk }));
    }

    /// Takes the effect of a session's read; gives back any other.
    pub(super) fn serving_effect(&mut self, shard: usize, effect: ShardEffect) -> Option<ShardEffect> {
        let (ShardEffect::Block { ts, .. }
        | ShardEffect::ContentHash { ts, .. }
        | ShardEffect::Executed { ts, .. }) = &effect
        else {
            return Some(effect);
        };
        let ts = *ts;
        let Some(key) = self.moving.reads.get(&ts).copied() else { return Some(effect) };
        let session = self.moving.sessions.get_mut(&key)?;
        let attempt = session.attempt;
        let reading = session.reading.as_mut()?;
        match effect {
            ShardEffect::Block { block, .. } => reading.ready.push_back((shard, block)),
            ShardEffect::ContentHash { hash, .. } => reading.hash = reading.hash.wrapping_add(hash),
            ShardEffect::Executed { outcomes, .. } => {
                if let Some(error) = outcomes.into_iter().find_map(|(_, outcome)| outcome.err()) {
                    // The receiver asks another holder.
                    tracing::warn!(range = %key.1.range, %error, "rows cannot be read for their receiver");
                    self.close_session(key);
                    let refused = Wire::RowsRefused { part: key.1, attempt, anew: false };
                    self.effects.push(Effect::Send(key.0, refused));
                    return None;
                }
                reading.reading.remove(&shard);
            }
            _ => {}
        }
        self.produce(key);
        None
    }

    /// Bytes of the chunks that are kept for their receivers, or have come and wait for their turn.
    pub(crate) fn moving_bytes(&self) -> u64 {
        let of_session = |session: &Session| {
            let ready = session.reading.iter().flat_map(|reading| &reading.ready).map(|(_, rows)| rows.len());
            session.sent.iter().map(|sent| sent.chunk.rows.len()).chain(ready).sum::<usize>()
        };
        let kept: usize = self.moving.sessions.values().map(of_session).sum();
        (kept + self.moving.waiting_bytes()) as u64
    }

    /// Ends what is being sent to a receiver.
    pub(super) fn close_session(&mut self, key: Key) {
        if let Some(Session { reading: Some(reading), .. }) = self.moving.sessions.remove(&key) {
            let ts = reading.time;
            self.moving.reads.remove(&ts);
            let shards = 0..self.options.shards;
            self.effects.extend(shards.map(|shard| Effect::Cancel { shard, ts }));
        }
    }
}
