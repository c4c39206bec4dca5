//! What happens to a storage process, and what it does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use carousel_engine::{
    Shard, TableId, TableSchema, Ts,
    operation::{Decision, Effect as ShardEffect, OrderedOperation, PayloadId, RowBatch},
    position::{KeyRange, Position},
};

use super::local;
use crate::{
    catalog::Catalog,
    config::Config,
    message::{Incarnation, MessageId, ProcessId, StagedPayload},
    storage::{
        ballot::Ballot,
        basic::BasicRead,
        migration::{self, Chunk, PartId},
        scan::ShardCommand,
    },
    wire::{Answer, Delivery, MissingVotes, Vote, Wire},
};

/// Content hash of the rows of a table in a primary range, see [`Wire::Durable`].
pub type ContentHash = (TableId, KeyRange, u128);

/// What the process is.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Identity.
    pub id: ProcessId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Where it listens, when nobody knows.
    pub address: Option<String>,
    /// The first config; what has been recovered may know a later one.
    pub config: Arc<Config>,
    /// Number of shards; the rows of every held primary range are divided among them.
    pub shards: usize,
    /// Operations that may run at a time; further ones wait.
    pub running: usize,
    /// Operations between two messages after which the process has an empty one ordered, see [`Effect::MoveOn`].
    pub between: u64,
}

/// What a checkpoint says of the process, apart from its rows.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The checkpoint's `Ts`.
    pub ts: Ts,
    /// The catalog at that `Ts`.
    pub catalog: Arc<Catalog>,
    /// Votes that others may still ask for.
    pub ballots: Vec<(Ts, Ballot)>,
    /// Staged rows that others may still ask for: the messages that insert them, and who was to have them.
    pub payloads: Vec<(Ts, PayloadId, Vec<ProcessId>)>,
    /// The last message of each submitter that has been executed.
    pub passed: Vec<MessageId>,
    /// Content hashes at that `Ts`.
    pub hashes: Vec<ContentHash>,
    /// The config that the messages behind it are routed by; none when nothing has been recovered.
    pub config: Option<Arc<Config>>,
    /// The ranges whose rows it has: none of those of an earlier life, when this one has begun without data.
    pub held: Vec<KeyRange>,
    /// Parts that others may still ask for, with those who may. What of them is held has gone on since.
    pub served: Vec<(ProcessId, PartId)>,
    /// The catalogs at the keyspace messages of those parts: the checkpoint also has what they are to send of tables that
    /// have been dropped since.
    pub catalogs: BTreeMap<Ts, Arc<Catalog>>,
    /// What is there besides of keyspace messages behind it.
    pub kept: Vec<Kept>,
}

/// What a keyspace message has moved here and is on disk beside a checkpoint ([`Effect::EndParts`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    parts: Vec<PartId>,
    /// The votes that have come with them: others may ask for these before the parts have their turn.
    pub(super) ballots: Vec<(Ts, Ballot)>,
}

impl Recovered {
    /// What of it, recovered from parts, becomes [`Recovered::kept`] of the checkpoint before them.
    pub(crate) fn as_kept(&self) -> Kept {
        let part = |range: &KeyRange| PartId { keyspace: self.ts, range: *range };
        Kept { parts: self.held.iter().map(part).collect(), ballots: self.ballots.clone() }
    }

    /// The parts that are there besides.
    pub(super) fn kept_parts(&self) -> impl Iterator<Item = PartId> {
        self.kept.iter().flat_map(|kept| kept.parts.iter().copied())
    }

    /// Tables of which it has rows though they have been dropped.
    pub fn dropped(&self) -> Vec<Arc<TableSchema>> {
        let tables = self.catalogs.values().flat_map(|catalog| catalog.tables());
        let dropped = tables.filter(|table| self.catalog.table_by_id(table.id).is_none());
        let dropped: BTreeMap<TableId, &Arc<TableSchema>> = dropped.map(|table| (table.id, table)).collect();
        dropped.into_values().cloned().collect()
    }

    /// The key ranges of its shards: what is held, cut where the config still has copies under way.
    pub fn parts(&self) -> Vec<KeyRange> {
        self.config.as_ref().map_or_else(|| self.held.clone(), |config| config.parts(&self.held))
    }

    /// The chunks of a part that has been received, as another process would send them: its rows, of one table after the other,
    /// and the votes, with the content hashes.
    pub fn chunks<E, I: Iterator<Item = Result<(TableId, Bytes), E>>>(
        &self,
        range: KeyRange,
        blocks: I,
    ) -> impl Iterator<Item = Result<Chunk, E>> + use<E, I> {
        let hashes = self.hashes.iter().filter(|(_, of, _)| *of == range);
        let last: Vec<(TableId, u128)> = hashes.map(|(table, _, hash)| (*table, *hash)).collect();
        // Nothing in it can fail to be serialised.
        let votes: Bytes = postcard::to_stdvec(&self.ballots).unwrap_or_default().into();
        let rows = blocks.map(|block| block.map(|(table, rows)| (Some(table), rows, None)));
        (0..).zip(rows.chain([Ok((None, votes, Some(last)))])).map(|(number, found)| {
            let (table, rows, last) = found?;
            let checksum = crc32fast::hash(&rows);
            Ok(Chunk { number, table, rows, checksum, last })
        })
    }

    /// Makes a shard ready for the rows.
    pub fn prepare(&self, shard: &mut Shard) {
        let tables = self.catalog.tables().cloned().chain(self.dropped());
        tables.for_each(|table| shard.restore_table(table));
        let parts: BTreeSet<PartId> = self.served.iter().map(|(_, part)| *part).collect();
        parts.iter().for_each(|part| shard.restore_piece(part.range, local(part.keyspace)));
    }
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
        /// Its rows.
        rows: RowBatch,
    },
    /// From another storage process.
    Votes {
        /// Whose.
        from: ProcessId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The votes that it knows.
        votes: Vec<Vote>,
    },
    /// From another storage process.
    AskVotes {
        /// Who asks.
        from: ProcessId,
        /// For which votes.
        missing: MissingVotes,
    },
    /// From another storage process.
    NoVotes {
        /// Who does not have them.
        from: ProcessId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Which votes.
        missing: MissingVotes,
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
    /// The rows of an [`Effect::CheckpointRows`] are not kept in memory any more.
    CheckpointTook,
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
    /// What [`Effect::EndParts`] completed is durable, or could not be written.
    PartsEnded {
        /// The keyspace message.
        keyspace: Ts,
        /// Whether it is durable.
        are_durable: bool,
    },
    /// The config behind everything that has been received: told by the router when this life subscribes first.
    Config {
        /// It.
        config: Arc<Config>,
        /// The end of the m-seq then, and the config there.
        present: (Ts, Arc<Config>),
    },
    /// Another subscription of this life has begun: the end of the m-seq, and the config there.
    Present(Ts, Arc<Config>),
    /// Straight from a client.
    BasicRead {
        /// The read.
        read: BasicRead,
        /// The present time: with ticks alone, a pause of this process would go unnoticed.
        now_ms: u64,
    },
    /// The lead router has granted the lease that was asked for at this time, in milliseconds.
    Leased(u64),
    /// This life has joined as a standby: it goes on from here, whatever it has recovered.
    Begin {
        /// The stream begins behind this.
        ts: Ts,
        /// The config that routes what comes.
        config: Arc<Config>,
        /// The catalog as of `ts`.
        catalog: Arc<Catalog>,
        /// As in [`Event::Config`].
        present: (Ts, Arc<Config>),
    },
    /// About rows that move, from another storage process.
    Moving(migration::Event),
    /// Rows that were on their way to another storage process may have been lost.
    SentRowsLost(ProcessId),
    /// From a client.
    RenewPin(Ts),
    /// From a client.
    ReleasePin(Ts),
    /// From a client: segments are to be cut before a change of the ring.
    Precut {
        /// Whose.
        from: ProcessId,
        /// Its number for it.
        request: u64,
        /// Where.
        at: Vec<Position>,
    },
    /// From a client.
    Cancel(MessageId),
    /// From a client: a reader has taken batches of the answer of a read.
    Took {
        /// The read.
        id: MessageId,
        /// How many.
        batches: u32,
    },
    /// From a client: what has been kept of these ranges, see [`crate::wire::AnswerPart::Kept`].
    Fetch {
        /// The write.
        id: MessageId,
        /// The ranges.
        ranges: Vec<KeyRange>,
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
    /// No message of an earlier life of this client process will be ordered any more.
    Outlived {
        /// The client process.
        client: ProcessId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// Send to another storage process.
    Send(ProcessId, Wire),
    /// Send to a client.
    Answer(ProcessId, Answer),
    /// Rows of the checkpoint of this `Ts`: what a read just behind it sees, and rows as of earlier ones that others may still
    /// ask for. Or rows that a keyspace message moves here. The answer is [`Event::CheckpointTook`].
    CheckpointRows {
        /// The checkpoint or keyspace message.
        ts: Ts,
        /// Of this table.
        table: TableId,
        /// For what others are to receive: as of when.
        until: Option<Ts>,
        /// In this range.
        range: KeyRange,
        /// As segments hold them, for [`carousel_engine::Shard::install`].
        block: Bytes,
    },
    /// Rows of a checkpoint, or of what is received, are of no use.
    ForgetRows {
        /// The checkpoint or keyspace message.
        ts: Ts,
        /// Those in this range, as of the checkpoint's `Ts`; all of them where there is none.
        range: Option<KeyRange>,
    },
    /// A checkpoint has all its rows, and everything up to its `Ts` has been executed and decided: to be written with what
    /// else belongs to it.
    EndCheckpoint(Box<Recovered>),
    /// All rows that a keyspace message, whose `Ts` this has, moves here have come: to be written with the ranges of the parts
    /// (as what is held), the votes that have come with them, and their content hashes. It stays until there is a checkpoint
    /// of that `Ts` or behind it. The answer is [`Event::PartsEnded`].
    EndParts(Box<Recovered>),
    /// Read chunks of a part that an earlier life has received. They come as from another process.
    LoadRows {
        /// The part.
        part: PartId,
        /// See [`migration::Effect::Ask`](crate::storage::migration::Effect::Ask).
        attempt: u64,
        /// Which chunks; there may be fewer.
        chunks: std::ops::Range<u32>,
    },
    /// Something else for a shard.
    Shard {
        /// Which.
        shard: usize,
        /// What.
        command: ShardCommand,
    },
    /// Say to all that this life has no data, see [`crate::config::Membership::Join`].
    Join,
    /// Say to all that what it was to receive is there, see [`crate::config::Configuration::Received`].
    Received {
        /// What has moved it here.
        keyspace: Ts,
    },
    /// Have an empty message ordered: before it, there are only so many local times for reads that are not ordered.
    MoveOn,
    /// All who could know the vote of a range about a write have failed: the write has no effect in the other ranges.
    VoteLost {
        /// The write.
        ts: Ts,
        /// The range.
        range: KeyRange,
    },
    /// What the process has is of no use any more, and its next life begins without: others may still hear from this one what
    /// it would forget.
    Outdated(String),
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
