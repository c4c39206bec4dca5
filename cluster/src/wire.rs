//! What processes say to one another. Between operating system processes it travels in postcard's form, with record
//! batches as Arrow IPC streams; inside one process it travels as it is.

pub(crate) mod form;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use carousel_engine::{
    Few, SqlError, TableId, Ts,
    aggregate::Group,
    operation::PayloadId,
    position::{KeyRange, Position},
    statistics::TableStatistics,
};
use serde::{Deserialize, Serialize};

// For the benchmark that has gRPC in the transport's place.
pub use self::form::append;
use crate::{
    catalog::Catalog,
    config::Config,
    message::{Incarnation, Message, MessageId, ProcessId, ProcessKind},
    network::Loading,
    raft::Packet,
    routers::{Routers, change::RouterChange},
    storage::{
        disk::DiskState,
        migration::{Arrived, Chunk, PartId},
    },
};

/// A message with its place in the order and this destination's share of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delivery {
    /// Position in the m-seq. For a snapshot read, that of the last message whose effects it sees.
    pub ts: Ts,
    /// The message.
    pub message: Arc<Message>,
    /// The key ranges this destination acts on: for a read those it answers for, for a write all that it holds; each
    /// lies inside one of its primary ranges. Empty for a client process.
    pub ranges: Few<KeyRange>,
    /// The config version in force at `ts`.
    pub config_version: u64,
}

/// A message with the ranges that one destination acts on.
pub type Routed = (Arc<Message>, Few<KeyRange>);

/// What goes from one process to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Wire {
    /// Application process to router: please order these, in this order.
    Route(Vec<Arc<Message>>),
    /// Client to router: snapshot reads, to be sent along the streams with the `Ts` of the newest message.
    Read {
        /// The reads.
        messages: Vec<Arc<Message>>,
        /// The client has seen this much: a router that has not does not lead.
        seen: Ts,
    },
    /// Client to storage process: basic reads, with the ranges that it shall answer for.
    BasicRead {
        /// The reads.
        reads: Vec<Routed>,
        /// The config version by which the client chose the ranges; under another one the reads are lost.
        config_version: u64,
        /// The client has seen this much, and wants to see no less.
        seen: Ts,
    },
    /// Storage process to router: may I answer basic reads?
    AskLease {
        /// Which life of it asks.
        incarnation: Incarnation,
        /// When it asks, in milliseconds of its own clock.
        asked_ms: u64,
    },
    /// Router to storage process: yes, for [`LEASE_MS`](crate::router::LEASE_MS) from when you asked.
    Lease {
        /// Who is you.
        incarnation: Incarnation,
        /// When that was.
        asked_ms: u64,
    },
    /// Router or storage process to client: these snapshot or basic reads will not be answered, or not in full.
    ReadsLost(Vec<MessageId>),
    /// Application process to router: send me what I am a destination of, after `after`.
    Subscribe {
        /// The subscriber's incarnation.
        incarnation: Incarnation,
        /// Drawn for the directory in which the subscriber's lives are counted; by a client, which keeps nothing there, for each.
        directory: u64,
        /// Everything up to here has been delivered. `None` for a process that has nothing to go on from and needs
        /// nothing of what was ordered before (a new client or standby, a client that was refused): the stream begins
        /// with the present catalog.
        after: Option<Ts>,
    },
    /// Storage process to router: how far it is. Cumulative.
    Confirm(Watermarks),
    /// Application process to router: I leave the system for good; a client is no longer a destination.
    Leave {
        /// The incarnation that leaves.
        incarnation: Incarnation,
    },
    /// Router to application process, first on the stream of every subscription: where the stream begins.
    State {
        /// The subscriber's incarnation.
        incarnation: Incarnation,
        /// The stream continues after this: the subscription's `after`, or without one the `Ts` of `catalog`.
        ts: Ts,
        /// The config that routes what comes after `ts`.
        config: Arc<Config>,
        /// The client processes that are part of the system now, at the end of the m-seq: whoever may wait for an answer
        /// of the subscriber's earlier life. For a subscription without `after` with the last message of each up to `ts`.
        clients: Arc<[(ProcessId, Option<MessageId>)]>,
        /// The catalog as of `ts`, for a subscription without `after`. Others follow theirs by the deliveries.
        catalog: Option<Arc<Catalog>>,
        /// For storage processes: the end of the m-seq and the config there. Whoever goes on from an old checkpoint would
        /// take what is long over for the present.
        present: Option<(Ts, Arc<Config>)>,
        /// The leadership that the stream belongs to, unlike any other's. Snapshot reads that were sent under another
        /// may be lost.
        leadership: u64,
    },
    /// Router to application process: the log no longer reaches back to the subscription's `after`. The same question
    /// would get the same answer: a client begins anew, a storage process must be copied from another.
    SubscribeRefused {
        /// The subscriber's incarnation.
        incarnation: Incarnation,
        /// Streams can begin here or later.
        purged: Ts,
        /// A storage process is not part of the system, and has not been suspected since it joined: it has been removed, if it
        /// has been one.
        removed: bool,
    },
    /// Router to storage process: its message by which it was to join without data had no effect.
    JoinRefused {
        /// The subscriber's incarnation.
        incarnation: Incarnation,
        /// Why.
        reason: String,
    },
    /// Router to storage process: no life of it can be part of the system any more.
    GivenUp {
        /// The subscriber's incarnation.
        incarnation: Incarnation,
    },
    /// Router to application process: it has another directory than a life that has been heard of, and has to begin anew as a
    /// life behind that one; a storage process without data, as the copies are lost.
    Outlived {
        /// The incarnation that said something.
        incarnation: Incarnation,
        /// The newest one that has been heard of.
        newest: Incarnation,
        /// It is the other directory whose lives have come to nothing: a storage process goes on with what it has.
        goes_on: bool,
    },
    /// Router to application process: the m-seq ends at `last`, before what the subscriber has. It is the leader that
    /// says so, after it has proved that it leads: the routers have lost messages that had been acknowledged.
    LogLost {
        /// The subscriber's incarnation.
        incarnation: Incarnation,
        /// The end of the m-seq.
        last: Ts,
    },
    /// Router to application process: deliveries in `Ts` order; everything for this process up to `frontier` has now
    /// been sent. A stream without news still sends its frontier.
    Deliver {
        /// The subscriber's incarnation: deliveries for an earlier life are to be ignored, the stream of this one
        /// begins elsewhere.
        incarnation: Incarnation,
        /// It continues what has been sent up to here. A receiver that has less has been overtaken by the last words of
        /// an earlier subscription, and ignores it.
        after: Ts,
        /// In `Ts` order; a snapshot read behind the message whose `Ts` it has.
        deliveries: Vec<Delivery>,
        /// All that there is for this process up to here has been sent.
        frontier: Ts,
    },
    /// Router to submitter: the messages with sequence numbers up to `sequence` are in the m-seq.
    Ordered {
        /// The submitter's incarnation.
        incarnation: Incarnation,
        /// Cumulative.
        sequence: u64,
        /// `Ts` of the message with that sequence number.
        ts: Ts,
    },
    /// Router to submitter: a message before `expected` was lost; send again from there. If that was acknowledged
    /// already, the router no longer leads and does not know it yet: ask another one.
    Resend {
        /// The submitter's incarnation.
        incarnation: Incarnation,
        /// First sequence number that is not in the m-seq.
        expected: u64,
    },
    /// Router to the lead router: whether the disk of its log has room. Lead router to client: whether enough of them have, for
    /// anything that changes something; it says so when that changes, and again and again while they have not.
    Room {
        /// Whether.
        has_room: bool,
    },
    /// Router to the lead router: how many of the cluster's other processes it reaches.
    Reached {
        /// So many storage processes.
        storage: u32,
        /// So many clients.
        clients: u32,
    },
    /// Router to application process: not the leader (any more), or so it appears to the router.
    NotLeader {
        /// Who is, if known.
        leader: Option<ProcessId>,
    },
    /// Storage process to storage process: votes about undecided writes (DESIGN, decision 5).
    Votes {
        /// The sender's incarnation.
        incarnation: Incarnation,
        /// The votes.
        votes: Vec<Vote>,
    },
    /// Storage process to storage process: please repeat what you know of these votes.
    AskVotes(MissingVotes),
    /// The answer of who knows of the same configuration messages, has none of these votes and will not cast them.
    NoVotes {
        /// The sender's incarnation.
        incarnation: Incarnation,
        /// The votes.
        missing: MissingVotes,
    },
    /// Storage process to client: parts of answers.
    Answers(Vec<Answer>),
    /// Storage process to client: a new incarnation has taken over; what it had not answered must be asked again.
    Restarted {
        /// The incarnation.
        incarnation: Incarnation,
        /// The client's last message that had been executed where this life goes on: it executes those behind it, and
        /// answers none before.
        passed: Option<MessageId>,
    },
    /// Client to storage process: are these writes, pins and checkpoints, ordered at or before a `Ts`, still going to be
    /// answered?
    AskAnswers(Vec<(MessageId, Ts)>),
    /// Storage process to client, behind all that it has answered: there are no more answers to these from here.
    NoAnswers(Vec<MessageId>),
    /// Client to storage process: a chunk of a payload, to be fsynced.
    Stage(StageChunk),
    /// Storage process to client: the chunk is on disk, or why not.
    Staged {
        /// The payload.
        payload: PayloadId,
        /// The part.
        range: KeyRange,
        /// The chunk's number in the part.
        chunk: u32,
        /// Outcome.
        outcome: Result<(), SqlError>,
    },
    /// To a storage process: please send your copy of a chunk. Other storage processes ask so for what they lack, and the client
    /// for what it stages again.
    FetchChunk {
        /// The payload.
        payload: PayloadId,
        /// The part.
        range: KeyRange,
        /// The chunk's number in the part.
        chunk: u32,
    },
    /// The answer to `FetchChunk`.
    StagedRows {
        /// The payload.
        payload: PayloadId,
        /// The part.
        range: KeyRange,
        /// The chunk's number in the part.
        chunk: u32,
        /// The chunk's rows, or `None` when there is no such chunk.
        #[serde(with = "form::some_bytes")]
        rows: Option<Bytes>,
    },
    /// Storage process to storage process: please send these chunks of the rows that a keyspace message moves.
    AskRows {
        /// Which part of them.
        part: PartId,
        /// The receiver's attempt at receiving it ([`crate::storage::migration::Effect::Ask`]).
        attempt: u64,
        /// Which chunks.
        chunks: std::ops::Range<u32>,
    },
    /// The answer to `AskRows`: a chunk.
    Rows {
        /// The part.
        part: PartId,
        /// The attempt for which it is sent.
        attempt: u64,
        /// The chunk.
        chunk: Chunk,
    },
    /// The answer to `AskRows` about chunks that have been asked for before: they are on their way, or will be.
    RowsFollow {
        /// The part.
        part: PartId,
        /// The attempt.
        attempt: u64,
    },
    /// The answer to `AskRows` of a process that cannot send the part, or not from there on.
    RowsRefused {
        /// The part.
        part: PartId,
        /// The attempt.
        attempt: u64,
        /// It can send the part from the beginning.
        anew: bool,
    },
    /// Storage process to storage process: how far the sender is durable, with the content hashes of the tables in
    /// its primary ranges at that `Ts`, to be compared by replicas that have the same checkpoint.
    Durable {
        /// Its durable watermark.
        ts: Ts,
        /// Content hashes at `ts`; none when its checkpoint is a later one.
        hashes: Vec<(TableId, KeyRange, u128)>,
        /// The sender asks for the receiver's.
        reply: bool,
    },
    /// Client or super process to storage process: are you there, and how much memory do you use?
    Hello,
    /// The answer to `Hello`, a heartbeat; also sent to clients when what they show of it has changed.
    Memory {
        /// The life of the storage process that tells it.
        incarnation: Incarnation,
        /// Bytes that its rows take.
        used: u64,
        /// The most they may take.
        limit: Option<u64>,
        /// Configuration messages up to here have had their turn.
        reached: Ts,
        /// What it has executed up to here survives its end.
        durable: Ts,
        /// Bytes of messages since its last checkpoint.
        logged: u64,
        /// Bytes of staged rows since its last checkpoint.
        staged: u64,
        /// Whether it is writing a checkpoint, other than of rows that are still to be received.
        checkpointing: bool,
        /// Parts that are being received because of keyspace messages, with how much has come of each.
        receiving: Vec<(PartId, Arrived)>,
        /// It has not executed what was delivered a while ago: whoever reads had better ask others.
        lags: bool,
        /// Whether its disk takes checkpoints.
        disk: DiskState,
        /// Storage processes that it has no session with, and that are not suspected.
        unreached: Vec<ProcessId>,
    },
    /// Of a storage process to a super or client process, instead of a heartbeat, as long as it loads what it had.
    Loading(Loading),
    /// Storage process to client: what is known of the tables' rows, when that has changed.
    Statistics(Vec<TableStatistics>),
    /// Client to storage process: this payload will not be ordered.
    Abandon(PayloadId),
    /// Client to storage process: the pin at this `Ts` lives on.
    RenewPin(Ts),
    /// Client to storage process: the pin at this `Ts` is not needed any more.
    ReleasePin(Ts),
    /// Client to storage process: please cut segments at these positions of the ring; a change that does so is about to be
    /// ordered.
    Precut {
        /// The asker's number for it.
        request: u64,
        /// Where.
        at: Vec<Position>,
    },
    /// The answer to `Precut`: that has been done.
    HasPrecut {
        /// The asker's number for it.
        request: u64,
    },
    /// Client to storage process: nobody waits for the answer of this message any more.
    Cancel(MessageId),
    /// Client to storage process: so many more batches of the rows that answer this read have been taken by its reader,
    /// and as many more may come.
    Took {
        /// The read.
        id: MessageId,
        /// Not counting those of earlier messages.
        batches: u32,
    },
    /// Client to storage process: the rows of these ranges that were kept, see [`AnswerPart::Kept`].
    Fetch {
        /// The write.
        id: MessageId,
        /// Ranges that it has named so.
        ranges: Vec<KeyRange>,
    },
    /// Storage process to client: what was kept of these ranges, see [`AnswerPart::Kept`], is not there any more, or not all
    /// of it.
    Gone {
        /// The write.
        id: MessageId,
        /// The ranges.
        ranges: Vec<KeyRange>,
    },
    /// The transport's word to both sides when two processes that stayed up could not reach one another for too long, and to a
    /// client that meets a life of a storage process for the first time: what was under way between them may be lost.
    Lost,
    /// Storage process to client: snapshot reads may have been lost on their way from the router, or reads were cancelled as
    /// this client seemed to have ended.
    ReadsMissed,
    /// Router to router, between operating system processes: what the consensus has to say.
    Consensus(Packet),
    /// Router to everybody: who the routers are now.
    Routers(Arc<Routers>),
    /// Client or super process to router: other routers, please. Sent again until it is answered.
    ChangeRouters {
        /// The asker's incarnation.
        incarnation: Incarnation,
        /// The asker's number for it.
        request: u64,
        /// What is to become of them.
        change: RouterChange,
    },
    /// Client or super process to router: can this process be reached? Sent again until it is answered.
    Look {
        /// The asker's incarnation.
        incarnation: Incarnation,
        /// The asker's number for it.
        request: u64,
        /// Which process.
        process: ProcessId,
    },
    /// The lead router's answer to `Look`.
    Looked {
        /// The asker's incarnation.
        incarnation: Incarnation,
        /// The asker's number for it.
        request: u64,
        /// Whether the router reaches the process.
        reaches: bool,
    },
    /// The answer to `ChangeRouters`.
    RoutersChanged {
        /// The asker's incarnation.
        incarnation: Incarnation,
        /// The asker's number for it.
        request: u64,
        /// It is so: the router's number. Or why it cannot be.
        outcome: Result<u32, SqlError>,
    },
}

impl Wire {
    /// Whether processes of one kind say this to those of another. Whoever can prove to be one of a kind must not speak as one
    /// of another.
    pub(crate) fn is_for(&self, from: ProcessKind, to: ProcessKind) -> bool {
        use ProcessKind::{Client, Router, Storage, Super};
        let asks = matches!(from, Client | Super);
        let asked = matches!(to, Client | Super);
        match self {
            Wire::Route(_) | Wire::Subscribe { .. } | Wire::Leave { .. } => from != Router && to == Router,
            Wire::Read { .. } | Wire::ChangeRouters { .. } | Wire::Look { .. } => asks && to == Router,
            Wire::Confirm(_) | Wire::AskLease { .. } => from == Storage && to == Router,
            Wire::Consensus(_) | Wire::Reached { .. } => from == Router && to == Router,
            Wire::Room { .. } => from == Router && to != Storage,
            Wire::Routers(_) => from == Router,
            Wire::Lease { .. } | Wire::GivenUp { .. } | Wire::JoinRefused { .. } => {
                from == Router && to == Storage
            }
            Wire::RoutersChanged { .. } | Wire::Looked { .. } => from == Router && asked,
            Wire::State { .. }
            | Wire::SubscribeRefused { .. }
            | Wire::Outlived { .. }
            | Wire::LogLost { .. }
            | Wire::Deliver { .. }
            | Wire::Ordered { .. }
            | Wire::Resend { .. }
            | Wire::NotLeader { .. } => from == Router && to != Router,
            Wire::ReadsLost(_) => matches!(from, Router | Storage) && asked,
            Wire::Votes { .. }
            | Wire::AskVotes(_)
            | Wire::NoVotes { .. }
            | Wire::AskRows { .. }
            | Wire::Rows { .. }
            | Wire::RowsFollow { .. }
            | Wire::RowsRefused { .. }
            | Wire::Durable { .. } => from == Storage && to == Storage,
            Wire::FetchChunk { .. } => (asks || from == Storage) && to == Storage,
            Wire::StagedRows { .. } => from == Storage && (asked || to == Storage),
            Wire::Answers(_)
            | Wire::Restarted { .. }
            | Wire::NoAnswers(_)
            | Wire::Gone { .. }
            | Wire::Staged { .. }
            | Wire::Memory { .. }
            | Wire::Statistics(_)
            | Wire::HasPrecut { .. }
            | Wire::ReadsMissed => from == Storage && asked,
            Wire::BasicRead { .. }
            | Wire::AskAnswers(_)
            | Wire::Stage(_)
            | Wire::Hello
            | Wire::Abandon(_)
            | Wire::RenewPin(_)
            | Wire::ReleasePin(_)
            | Wire::Precut { .. }
            | Wire::Cancel(_)
            | Wire::Fetch { .. }
            | Wire::Took { .. } => asks && to == Storage,
            // Nobody says it: the transport does.
            Wire::Lost | Wire::Loading(_) => false,
        }
    }
}

/// Three watermarks of a storage process (DESIGN, decision 13), and its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermarks {
    /// Received up to here.
    pub delivered: Ts,
    /// Executed and decided up to here.
    pub executed: Ts,
    /// Contained in a durable checkpoint up to here, as far as others may count on it: only this cuts the log.
    pub durable: Ts,
    /// Bytes its rows take.
    pub memory: u64,
}

/// A range's vote about an undecided write. Any replica's vote is the range's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// The write.
    pub ts: Ts,
    /// The primary range that votes.
    pub range: KeyRange,
    /// What it says.
    pub vote: Choice,
}

/// What a vote says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// The write does not fail in this range.
    Commit,
    /// It does.
    Abort,
    /// All who could know have failed: those who are left abort the write, and nobody knows whether others had committed it.
    Lost,
}

/// Votes that a process lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingVotes {
    /// `Ts` of the last configuration message that it knows of.
    pub heard: Ts,
    /// Number of the question at the one who asks.
    pub question: u64,
    /// Writes, and the primary ranges whose votes about them are missing.
    pub votes: Vec<(Ts, Vec<KeyRange>)>,
}

/// A part of the answer to a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The message.
    pub id: MessageId,
    /// Its place in the order.
    pub ts: Ts,
    /// The part.
    pub part: AnswerPart,
}

/// The parts of an answer. Those of one message from one process arrive in order, `Done` or `Stale` last, but for rows that
/// are fetched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AnswerPart {
    /// Rows of a read or of RETURNING.
    Rows {
        /// The range they are in.
        range: KeyRange,
        /// The rows.
        #[serde(with = "form::batch")]
        batch: RecordBatch,
    },
    /// The rows that RETURNING gives in these ranges are many: they are kept until they are fetched or the message is
    /// cancelled. `Done` says how many they are.
    Kept(Few<KeyRange>),
    /// Rows that were fetched.
    Fetched {
        /// The range they are in.
        range: KeyRange,
        /// The rows.
        #[serde(with = "form::batch")]
        batch: RecordBatch,
    },
    /// All rows of a range that was fetched have been sent.
    Returned(KeyRange),
    /// Groups of a read, for all ranges that the process answers for together.
    Groups(Vec<Group>),
    /// Executed and decided.
    Done {
        /// For each range the number of rows, or how it failed.
        outcomes: Few<(KeyRange, Result<u64, SqlError>)>,
        /// Whether the process answers for further ranges as soon as their rows are there.
        more: bool,
    },
    /// The message was planned against another catalog or config: it has no effect.
    Stale,
    /// The process does not keep the prefix that the read sees; others that hold its ranges may.
    TooOld,
}

/// A chunk of a staged payload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StageChunk {
    /// The payload.
    pub payload: PayloadId,
    /// The part.
    pub range: KeyRange,
    /// Number in the part, counted from 0.
    pub chunk: u32,
    /// Serialised [`carousel_engine::operation::RowBatch`].
    #[serde(with = "form::bytes")]
    pub rows: Bytes,
    /// CRC-32 of `rows`.
    pub checksum: u32,
    /// The payload is not ordered later than this; when the m-seq has passed it, it can be removed.
    pub latest: Ts,
}
