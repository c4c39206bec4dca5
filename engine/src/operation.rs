//! Operations as they arrive from the m-seq, and what comes back.

use std::sync::Arc;

use arrow::{datatypes::Schema, record_batch::RecordBatch};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    aggregate::{AggregateCall, Group},
    array::size_of_cells,
    error::SqlError,
    expr::{EvalContext, Expr},
    few::Few,
    position::{KeyRange, Position},
    preparation::Preparation,
    schema::{TableId, TableSchema},
};

/// A message's position in the m-seq; 0 is before every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ts(pub u64);

impl Ts {
    /// Before every message.
    pub const ZERO: Ts = Ts(0);
    /// After every message: the end of a version that nobody has superseded.
    pub const INFINITY: Ts = Ts(u64::MAX);
}

impl std::fmt::Display for Ts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a message asks of the storage processes it is delivered to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// The table.
    pub table: TableId,
    /// What its expressions may depend on besides the rows.
    pub context: EvalContext,
    /// What to do.
    pub kind: OperationKind,
}

/// The kinds of operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum OperationKind {
    /// Read rows or groups.
    Read(Read),
    /// Insert rows.
    Insert(Insert),
    /// Update rows.
    Update(Update),
    /// Delete rows.
    Delete(Delete),
    /// Delete every row; answers with the count 0, as PostgreSQL does.
    Truncate,
    /// Make room for a table.
    CreateTable(Arc<TableSchema>),
    /// Forget a table and its rows.
    DropTable,
}

impl OperationKind {
    /// Whether the operation may change rows.
    pub fn is_write(&self) -> bool {
        !matches!(self, OperationKind::Read(_))
    }
}

/// A conjunction: a row qualifies when every conjunct is true of it. Conjuncts refer to the table's columns. Evaluated
/// from the left; what follows a conjunct that is not true is not evaluated.
pub type Predicate = Vec<Expr>;

/// Read rows or groups of one table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Read {
    /// Which rows.
    pub predicate: Predicate,
    /// What of them.
    pub output: ReadOutput,
}

/// What a read returns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ReadOutput {
    /// One output row for each qualifying row.
    Rows {
        /// Output columns over the table's columns.
        projection: Vec<Expr>,
        /// When set, rows that cannot be among the first `limit` in the order of `keys` may be left out.
        top: Option<Top>,
    },
    /// One group for each distinct value of `group_by` (one in all when it is empty, even without any row), with
    /// partial states of the aggregates.
    Groups {
        /// Grouping expressions over the table's columns.
        group_by: Vec<Expr>,
        /// Aggregates; their arguments are over the table's columns.
        aggregates: Vec<AggregateCall>,
        /// When set, groups that cannot be among the first `limit` in the order of `keys`, which are over the grouping
        /// expressions, may be left out. Only without aggregates: a group that another shard keeps must be whole.
        top: Option<Top>,
    },
    /// One content hash for each range, over the qualifying rows: an order-independent sum over a strong hash of each
    /// row (DESIGN, decision 3).
    ContentHash,
}

/// Permission to leave out rows beyond the first few.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// Order, over the output columns or the grouping expressions; empty for any order.
    pub keys: Vec<SortKey>,
    /// How many rows are wanted (LIMIT plus OFFSET).
    pub limit: u64,
}

/// One key of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SortKey {
    /// Index of the output column.
    pub column: usize,
    /// `DESC`
    pub descending: bool,
    /// `NULLS FIRST`
    pub nulls_first: bool,
}

/// Insert rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Insert {
    /// The rows.
    pub rows: InsertRows,
    /// What to do about a row whose primary key exists.
    pub on_conflict: OnConflict,
    /// RETURNING over the columns of the stored row. The batches that come back have one more column in front: the
    /// row's ordinal in the statement (`Int64`), so that the answer can be put in the statement's order.
    pub returning: Option<Vec<Expr>>,
}

/// Rows to insert: whole rows in the table's Arrow schema (hidden column included), with lengths, ranges and NOT NULL
/// already checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum InsertRows {
    /// Rows that travel in the message.
    Inline(RowBatch),
    /// Rows that were staged to the storage processes beforehand (DESIGN, decision 12).
    Staged(PayloadId),
}

/// Identity of a staged payload: unique for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PayloadId {
    /// Who staged it.
    pub process: u64,
    /// The stager's incarnation.
    pub incarnation: u64,
    /// The stager's own count.
    pub sequence: u64,
}

/// Whole rows with their ring positions and their ordinals in the statement.
#[derive(Clone, Debug)]
pub struct RowBatch {
    /// The rows, in the table's Arrow schema.
    pub rows: RecordBatch,
    /// Ring position of each row.
    pub positions: Vec<Position>,
    /// Place of each row in the statement that inserts it, counted from 0.
    pub ordinals: Vec<u64>,
}

impl RowBatch {
    /// No rows, of whatever table: to say that nothing comes any more.
    pub fn empty() -> RowBatch {
        let rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
        RowBatch { rows, positions: Vec::new(), ordinals: Vec::new() }
    }

    /// Bytes of its cells, and of what comes with each row.
    pub fn size(&self) -> u64 {
        size_of_cells(&self.rows) + 16 * self.positions.len() as u64
    }
}

/// What an INSERT does about a row whose primary key exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum OnConflict {
    /// 23505.
    Fail,
    /// `DO NOTHING`: leave that row out; it is neither counted nor returned.
    Nothing,
    /// `DO UPDATE`: update the existing row. A second row of the same statement that meets a row which this statement
    /// inserted or updated is an error (21000), as in PostgreSQL.
    Update {
        /// New values by column; expressions over the existing row's columns followed by those of the row that was to
        /// be inserted (`EXCLUDED`).
        assignments: Vec<(usize, Expr)>,
        /// `WHERE`, over the same columns: rows for which it is not true stay as they are and are not counted.
        predicate: Predicate,
    },
}

/// Update rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Update {
    /// Which rows.
    pub predicate: Predicate,
    /// New values by column; expressions over the old row, already cast to the column's type. NOT NULL is checked on
    /// the result (23502). No partitioning or primary key column is assigned.
    pub assignments: Vec<(usize, Expr)>,
    /// RETURNING, over the new row.
    pub returning: Option<Vec<Expr>>,
}

/// Delete rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delete {
    /// Which rows.
    pub predicate: Predicate,
    /// RETURNING, over the old row.
    pub returning: Option<Vec<Expr>>,
}

/// An operation with its place in the order, as a shard receives it.
#[derive(Clone, Debug)]
pub struct OrderedOperation {
    /// Its position in the m-seq. Strictly increasing over the operations submitted to a shard, except `late` ones, and over
    /// those.
    pub ts: Ts,
    /// The prefix a read sees: versions that begin before `read_ts` and do not end before it. Equal to `ts` except
    /// for reads under a pin.
    pub read_ts: Ts,
    /// What to do. Staged rows are given to the shard piece by piece, by [`crate::Shard::supply`].
    pub operation: Arc<Operation>,
    /// The key ranges to act on: disjoint, each one of the shard's ranges. (For a read those that this process
    /// answers for, for a write all that it holds.)
    pub ranges: Few<KeyRange>,
    /// Whether the effects stay undecided until `decide` (DESIGN, decision 5). Otherwise the operation cannot fail,
    /// or this shard alone decides: a failure undoes the operation's effects here.
    pub undecided: bool,
    /// Of a read of rows: the batches of its answer, or the blocks, that come out before [`crate::Shard::allow`] asks for
    /// more; `None` for all of them.
    pub window: Option<u32>,
    /// Of a read of rows: they come as [`Effect::Block`], with all columns of the table whatever the projection is. Of a
    /// read of content hashes: so do its rows, besides.
    pub blocks: bool,
    /// Of a read that no user waits for: where there is nothing in its ranges, it makes no revolution.
    pub bulk: bool,
    /// Whether operations with a later `Ts` have been submitted before it. None of them has read what it writes, or
    /// written there.
    pub late: bool,
    /// Shared by the shards of a process: what one of them has found out about the operation spares the others the work.
    pub preparation: Preparation,
}

impl OrderedOperation {
    /// An operation that sees everything before it and is answered as a whole.
    pub fn new(ts: Ts, operation: Arc<Operation>, ranges: impl Into<Few<KeyRange>>) -> OrderedOperation {
        OrderedOperation {
            ts,
            read_ts: ts,
            operation,
            ranges: ranges.into(),
            undecided: false,
            window: None,
            blocks: false,
            bulk: false,
            late: false,
            preparation: Preparation::default(),
        }
    }
}

/// What comes out of a shard.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Result rows of a read, or RETURNING rows of a write. Rows of an undecided write come before its `Executed`
    /// and count only once it is committed.
    Rows {
        /// The operation.
        ts: Ts,
        /// The range the rows are in.
        range: KeyRange,
        /// Output columns.
        batch: RecordBatch,
    },
    /// Rows of a read that asked for blocks, for [`crate::Shard::install`]; each is below about 20 MB.
    Block {
        /// The operation.
        ts: Ts,
        /// The range the rows are in.
        range: KeyRange,
        /// The rows, as segments hold them.
        block: Bytes,
    },
    /// Groups of a read, all ranges of the operation together; at most one for each operation.
    Groups {
        /// The operation.
        ts: Ts,
        /// Distinct groups with partial states.
        groups: Vec<Group>,
    },
    /// What [`crate::Shard::precut`] has asked for has been done.
    Precut,
    /// The content hash of one range; sums over the shards of a process wrap.
    ContentHash {
        /// The operation.
        ts: Ts,
        /// The range.
        range: KeyRange,
        /// Wrapping sum over the rows.
        hash: u128,
    },
    /// A piece of staged rows is not needed any more: the next can be supplied.
    Took {
        /// The operation.
        ts: Ts,
    },
    /// The operation has been executed here; the last effect of an operation, except that an undecided one is
    /// followed by its decision.
    Executed {
        /// The operation.
        ts: Ts,
        /// For each range: how many rows were read, inserted, updated or deleted; or how the operation fails there.
        outcomes: Few<(KeyRange, Result<u64, SqlError>)>,
    },
}

/// How an undecided write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Every affected range voted that it does not fail.
    Commit,
    /// Some range failed: the write has no effect anywhere.
    Abort,
}

impl Serialize for RowBatch {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ipc = crate::ipc::encode(std::slice::from_ref(&self.rows)).map_err(serde::ser::Error::custom)?;
        (ipc, &self.positions, &self.ordinals).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RowBatch {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (ipc, positions, ordinals) = <(Vec<u8>, Vec<Position>, Vec<u64>)>::deserialize(deserializer)?;
        let mut batches = crate::ipc::decode(&ipc).map_err(serde::de::Error::custom)?;
        match (batches.pop(), batches.is_empty()) {
            (Some(rows), true) if rows.num_rows() == positions.len() && rows.num_rows() == ordinals.len() => {
                Ok(RowBatch { rows, positions, ordinals })
            }
            _ => Err(serde::de::Error::custom(
                "a row batch must be one Arrow batch with a position for each row",
            )),
        }
    }
}
