//! COPY: its options, and rows for COPY FROM.

use std::sync::Arc;

use arrow::array::ArrayRef;
use carousel_engine::{SqlError, TableSchema, error::Result, expr::Expr, operation::RowBatch};

use crate::{
    bind::Request,
    plan::{QueryPlan, SessionValue},
    settings::{IdSource, Settings},
};

/// COPY … FROM STDIN.
#[derive(Clone, Debug)]
pub struct CopyIn {
    /// The table.
    pub table: Arc<TableSchema>,
    /// Indices of the columns that the data has, in the data's order.
    pub columns: Vec<usize>,
    /// How the data is written.
    pub options: CopyOptions,
    /// Defaults of the other visible columns, of the column's type.
    pub(crate) defaults: Vec<(usize, Expr)>,
    /// Session values that the defaults refer to.
    pub(crate) session_values: Vec<SessionValue>,
}

/// COPY … TO STDOUT.
#[derive(Clone, Debug)]
pub struct CopyOut {
    /// What to write; its output columns are those of the planned statement.
    pub query: QueryPlan,
    /// How to write it.
    pub options: CopyOptions,
}

/// The formats of COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    /// text
    Text,
    /// csv
    Csv,
}

/// Whether there is a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyHeader {
    /// No header line.
    None,
    /// Written; skipped when read.
    Present,
    /// Must name the columns when read.
    Match,
}

/// The columns that an option of COPY is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyColumns {
    /// Every column (`*`).
    All,
    /// Those with these places in the data, counted from 0.
    Some(Vec<usize>),
}

impl CopyColumns {
    /// Whether the column at this place is meant.
    pub fn contains(&self, place: usize) -> bool {
        match self {
            CopyColumns::All => true,
            CopyColumns::Some(places) => places.contains(&place),
        }
    }
}

/// Options of COPY, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// FORMAT
    pub format: CopyFormat,
    /// DELIMITER
    pub delimiter: u8,
    /// NULL
    pub null: String,
    /// HEADER
    pub header: CopyHeader,
    /// QUOTE (csv)
    pub quote: u8,
    /// ESCAPE (csv)
    pub escape: u8,
    /// FORCE_QUOTE (csv, TO)
    pub force_quote: CopyColumns,
    /// FORCE_NOT_NULL (csv, FROM)
    pub force_not_null: CopyColumns,
    /// FORCE_NULL (csv, FROM)
    pub force_null: CopyColumns,
}

/// A row of a COPY that cannot be stored.
#[derive(Clone, Debug)]
pub struct BadRow {
    /// Which row of the batch, counted from 0.
    pub row: usize,
    /// Why.
    pub error: SqlError,
}

impl CopyIn {
    /// Completes parsed columns to rows that can be inserted: adds defaults and hidden row identifiers, checks NOT NULL
    /// and computes ring positions.
    ///
    /// `columns` are in the data's order, of the Arrow types of the table's columns, with lengths and ranges already
    /// checked. `first_ordinal` is the number of rows of the statement before this batch.
    pub fn rows(
        &self,
        columns: Vec<ArrayRef>,
        first_ordinal: u64,
        settings: &Settings,
        ids: &mut dyn IdSource,
    ) -> Result<RowBatch, BadRow> {
        let _ = (columns, first_ordinal, settings, ids, &self.defaults, &self.session_values);
        Err(BadRow { row: 0, error: SqlError::unsupported("COPY FROM") })
    }

    /// The request that inserts rows: all or none of them.
    pub fn request(&self, rows: RowBatch) -> Result<Request> {
        let _ = rows;
        Err(SqlError::unsupported("COPY FROM"))
    }
}
