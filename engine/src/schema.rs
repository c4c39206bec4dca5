//! Tables as the engine sees them.

use serde::{Deserialize, Serialize};

use crate::{operation::Ts, types::Type, value::Value};

/// A table's identity: the `Ts` of the message that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableId(pub u64);

/// Name of the hidden column that identifies rows of a table without a primary key.
pub const ROW_ID: &str = "carousel row id";

/// A table's definition at one version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSchema {
    /// Identity.
    pub id: TableId,
    /// `Ts` of the message that last changed the definition.
    pub version: Ts,
    /// Name, as PostgreSQL folds it.
    pub name: String,
    /// Columns that SQL sees, in order; a table without a primary key has the hidden column [`ROW_ID`] (bigint, not
    /// null) behind them.
    pub columns: Vec<Column>,
    /// Indices of the primary key's columns, in the key's order; empty when there is none.
    pub primary_key: Vec<usize>,
    /// Name of the primary key constraint, `<table>_pkey` unless given.
    pub primary_key_name: String,
    /// How rows are placed on the ring.
    pub partitioning: Partitioning,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Name, as PostgreSQL folds it.
    pub name: String,
    /// Type with modifiers.
    pub ty: Type,
    /// NOT NULL, also of primary key columns.
    pub not_null: bool,
    /// SQL text of the DEFAULT expression; the planner resolves it before a message is submitted.
    pub default: Option<String>,
}

/// How a table maps a row's partitioning key to a ring position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Partitioning {
    /// By a hash over the key's columns.
    Hash {
        /// Indices of the partitioning columns.
        columns: Vec<usize>,
    },
    /// By an order-preserving mapping of one column.
    Range {
        /// Index of the partitioning column.
        column: usize,
        /// Ascending split points: a key `k` with `i` split points `<= k` is mapped to the `i`-th of
        /// `splits.len() + 1` equal shares of the ring. Empty: the key's own order-preserving bits are its position.
        splits: Vec<Value>,
    },
}

impl Partitioning {
    /// Indices of the partitioning columns.
    pub fn columns(&self) -> &[usize] {
        match self {
            Partitioning::Hash { columns } => columns,
            Partitioning::Range { column, .. } => std::slice::from_ref(column),
        }
    }
}

impl TableSchema {
    /// The columns that SQL sees: all but the hidden row identifier.
    pub fn visible_columns(&self) -> &[Column] {
        match self.columns.last() {
            Some(last) if last.name == ROW_ID => &self.columns[..self.columns.len() - 1],
            _ => &self.columns,
        }
    }

    /// Index of the hidden row identifier, if the table has one.
    pub fn row_id(&self) -> Option<usize> {
        (self.columns.last()?.name == ROW_ID).then(|| self.columns.len() - 1)
    }

    /// Index of the column with this name among those that SQL sees.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.visible_columns().iter().position(|c| c.name == name)
    }

    /// The Arrow schema of a batch of whole rows, hidden column included.
    pub fn arrow(&self) -> arrow::datatypes::SchemaRef {
        use arrow::datatypes::{Field, Schema};
        let fields: Vec<Field> =
            self.columns.iter().map(|c| Field::new(&c.name, c.ty.arrow(), !c.not_null)).collect();
        std::sync::Arc::new(Schema::new(fields))
    }
}
