//! Messages: what is ordered, and what identifies it.

use std::{collections::BTreeSet, sync::Arc};

use carousel_engine::{Few, TableId, TableSchema, Ts, operation::PayloadId, position::KeyRange};
use postcard::experimental::serialized_size;
use serde::{Deserialize, Serialize};

use crate::{config::Configuration, parcel::Parcel};

/// The kinds of process (paper, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProcessKind {
    /// Orders messages and routes them.
    Router,
    /// Holds partitions and executes operations.
    Storage,
    /// Submits reads and writes; a front end has one.
    Client,
    /// Watches the storage processes; submits configuration and checkpoint messages.
    Super,
}

impl ProcessKind {
    /// Whether processes of this kind become part of the system when they subscribe.
    pub fn joins_by_subscribing(self) -> bool {
        matches!(self, ProcessKind::Client | ProcessKind::Super)
    }
}

/// A process, printed as `r1`, `s2`, `c1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Kind.
    pub kind: ProcessKind,
    /// Number among its kind, counted from 1.
    pub number: u32,
}

impl ProcessId {
    /// Router `number`.
    pub const fn router(number: u32) -> Self {
        ProcessId { kind: ProcessKind::Router, number }
    }

    /// Storage process `number`.
    pub const fn storage(number: u32) -> Self {
        ProcessId { kind: ProcessKind::Storage, number }
    }

    /// Client process `number`.
    pub const fn client(number: u32) -> Self {
        ProcessId { kind: ProcessKind::Client, number }
    }

    /// Super process `number`.
    pub const fn super_process(number: u32) -> Self {
        ProcessId { kind: ProcessKind::Super, number }
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            ProcessKind::Router => 'r',
            ProcessKind::Storage => 's',
            ProcessKind::Client => 'c',
            ProcessKind::Super => 'u',
        };
        write!(f, "{kind}{}", self.number)
    }
}

impl std::fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// One life of a process; greater than that of all its earlier lives.
pub type Incarnation = u64;

/// A message's identity. Sequence numbers of one incarnation of a submitter count 1, 2, 3, … without a gap, which is
/// what FIFO order and duplicate suppression rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageId {
    /// Who submitted it.
    pub submitter: ProcessId,
    /// The submitter's incarnation.
    pub incarnation: Incarnation,
    /// The submitter's count.
    pub sequence: u64,
}

/// Sequence numbers from here on are those of snapshot reads, which have no place in the m-seq: they are counted apart,
/// may have gaps, and are never sent twice under one number.
const FIRST_UNORDERED: u64 = 1 << 63;

impl MessageId {
    /// The identity of a submitter's snapshot read, counted from 0.
    pub fn unordered(submitter: ProcessId, incarnation: Incarnation, count: u64) -> MessageId {
        MessageId { submitter, incarnation, sequence: FIRST_UNORDERED + count }
    }

    /// Whether the message has a place in the m-seq, or will have one.
    pub fn is_ordered(&self) -> bool {
        self.sequence < FIRST_UNORDERED
    }
}

/// How a read is ordered among the writes (paper, section 6.7; DESIGN, decision 14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadIsolation {
    /// It has its own place in the m-seq: it sees all that its submitter has done before, and nothing that it does
    /// later.
    #[default]
    Sequential,
    /// The lead router gives it the `Ts` of the last message in the m-seq and sends it along the streams: it sees one
    /// state of all data, never an older one than an earlier answer to the same client process. No consensus is needed.
    Snapshot,
    /// It goes straight to the storage processes, past the routers, and sees of every primary range what is there: never
    /// less than an earlier answer to the same client process has shown, but perhaps parts of writes that are being
    /// executed on several ranges.
    Basic,
}

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Identity.
    pub id: MessageId,
    /// The tables it names with the versions it was planned against (DESIGN, decision 11).
    pub tables: Few<(TableId, Ts)>,
    /// The keys it reads or writes: sorted, disjoint.
    pub ranges: Few<KeyRange>,
    /// What it asks.
    pub body: Body,
}

impl Message {
    /// Whether it is a read that has no `Ts` of its own choice.
    pub fn is_read(&self) -> bool {
        matches!(&self.body, Body::Data(data) if !data.operation.is_write() && data.read_ts.is_none())
    }

    /// About how much memory it takes, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let body = match &self.body {
            Body::Data(data) => data.operation.weight(),
            // Defaults and comments may be long. What cannot be serialised is ordered nowhere.
            Body::Ddl(ddl) => 512 + serialized_size(ddl).unwrap_or_default(),
            _ => 512,
        };
        256 + body + 16 * self.ranges.len()
    }
}

/// The most key ranges of a message: beside its operation they travel in the routers' log, and with each delivery.
pub(crate) const MOST_RANGES: usize = (60 << 20) / size_of::<KeyRange>();

/// What a message asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Body {
    /// A read or a write of one table's rows.
    Data(Data),
    /// A change of the catalog: delivered to every storage and client process.
    Ddl(Ddl),
    /// Holds the versions that a read at this message's own `Ts` sees: delivered to every storage process.
    Pin {
        /// How long without renewal, in milliseconds. A pin for 0 ms holds nothing. It tells a client that submits it
        /// all that was ordered before, and is delivered to that client, too, so that its frontier comes along.
        lease_ms: u32,
    },
    /// Every storage process makes a durable checkpoint of the rows visible at this `Ts` and compares content hashes.
    Checkpoint,
    /// A change of the config: delivered to everybody who follows it.
    Configuration(Configuration),
}

/// A read or a write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Data {
    /// The operation.
    pub operation: Parcel,
    /// For a read under a pin: the pin's `Ts`.
    pub read_ts: Option<Ts>,
    /// Which replica of every range answers a read (paper, section 6.3).
    pub replica_offset: u32,
    /// Storage processes that answer a read only where nobody else can: its client cannot reach them.
    pub avoided: Few<ProcessId>,
    /// Whether a write can fail while it runs, so that its ranges must vote (DESIGN, decision 5).
    pub fallible: bool,
    /// The staged payload that an INSERT names, see [`StagedPayload`].
    pub staged: Option<Box<StagedPayload>>,
}

impl Data {
    /// An operation at its own `Ts`, with nothing said about who answers it, and that cannot fail.
    pub fn new(operation: impl Into<Parcel>) -> Data {
        Data {
            operation: operation.into(),
            read_ts: None,
            replica_offset: 0,
            avoided: Few::default(),
            fallible: false,
            staged: None,
        }
    }
}

/// A payload that was sent to its destinations before the message (DESIGN, decision 12).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StagedPayload {
    /// Identity.
    pub id: PayloadId,
    /// The config version its parts were placed by; if another is in force at the message's `Ts`, the message has no
    /// effect.
    pub config_version: u64,
    /// If the message's `Ts` is later, it has no effect.
    pub latest: Ts,
    /// The parts: which rows, who holds them, and their CRC-32.
    pub parts: Vec<StagedPart>,
}

impl StagedPayload {
    /// Whoever holds a part of it.
    pub fn holders(&self) -> BTreeSet<ProcessId> {
        self.parts.iter().flat_map(|part| part.holders.iter().copied()).collect()
    }
}

/// The rows of a payload that fall into one key range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedPart {
    /// The range.
    pub range: KeyRange,
    /// The processes that hold fsynced copies.
    pub holders: Vec<ProcessId>,
    /// Chunks, in order: CRC-32 of each.
    pub checksums: Vec<u32>,
}

/// A change of the catalog. Whether it succeeds is a function of the m-seq.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ddl {
    /// CREATE TABLE.
    CreateTable {
        /// The definition; `id` and `version` are set from the message's `Ts`.
        schema: Arc<TableSchema>,
        /// `IF NOT EXISTS`
        if_not_exists: bool,
    },
    /// DROP TABLE.
    DropTables {
        /// Names, dropped all or none.
        names: Vec<String>,
        /// `IF EXISTS`
        if_exists: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_change_of_the_catalog_weighs_what_it_takes() {
        let drop = |name: &str| Message {
            id: MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: 1 },
            tables: Few::default(),
            ranges: Few::default(),
            body: Body::Ddl(Ddl::DropTables { names: vec![name.to_owned()], if_exists: true }),
        };
        assert!(drop("t").weight() < 2_000);
        assert!(drop(&"t".repeat(1 << 20)).weight() > 1 << 20);
    }
}
