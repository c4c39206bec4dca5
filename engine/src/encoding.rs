//! Encoding columns of a segment that is compacted, cut before a change of the key ranges, or full, and of several that become one:
//! what takes longest of each, and for which nobody needs the shard (`compaction`, `precut`, `Table::append`, `joining`).
//!
//! ```text
//!   rows that stay ── copied, with the domain in common ──> Encoding ── encoded ──> a column beside the segment
//!                     (by the shard)                        (by anybody)
//! ```
//!
//! The segment goes on to be read and written meanwhile: what it gets is brought in later, as it is where the shard encodes. A
//! column that comes back when what it was for has been given up is dropped. The copies are not counted among the shard's memory:
//! a table has one or two at a time, each a column of a segment or of what becomes one.

use std::sync::{Arc, mpsc};

use crate::{
    bits::{Picked, Ranks},
    column::{CELLS_OF_ENCODED, SegmentColumn},
    schema::{TableId, TableSchema},
};

/// How a column of a segment is encoded.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) schema: Arc<TableSchema>,
    /// Of this segment, or those that become one,
    pub(crate) slots: Vec<u32>,
    /// this column.
    pub(crate) index: usize,
    /// Strings that nobody has go where they are more than this part of the column.
    pub(crate) part: usize,
    /// Whether the segment is a part of another, and has dictionaries in common with it.
    pub(crate) is_part: bool,
}

impl Spec {
    /// Encodes only these rows of the column. Returns also what it took, in cells that are gathered in that time.
    pub(crate) fn encode(&self, column: &mut SegmentColumn, keep: &Picked) -> (SegmentColumn, usize) {
        column.compacted(&self.schema.columns[self.index].ty, keep, self.part, self.is_part)
    }

    /// Makes one of the column in several segments.
    pub(crate) fn join(&self, parts: &mut [SegmentColumn]) -> SegmentColumn {
        SegmentColumn::joined(&self.schema.columns[self.index].ty, parts)
    }
}

/// Rows of a column that are being encoded.
#[derive(Debug)]
pub struct Encoding {
    number: Number,
    spec: Spec,
    /// Those of each segment that they are from: of one, or of several that become one. Then what has become of them.
    columns: Vec<SegmentColumn>,
}

/// Tells columns of a table apart that have been left to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(u64);

impl Encoding {
    /// Does the work.
    pub fn encode(&mut self) {
        let encoded = match &mut self.columns[..] {
            [column] => {
                let all: Vec<u32> = (0..column.rows() as u32).collect();
                self.spec.encode(column, &Picked::new(&all, &Ranks::default())).0
            }
            parts => self.spec.join(parts),
        };
        self.columns = vec![encoded];
    }

    /// The table of the column.
    pub(crate) fn table(&self) -> TableId {
        self.spec.schema.id
    }

    /// The segments that it was copied from.
    pub(crate) fn slots(&self) -> &[u32] {
        &self.spec.slots
    }

    /// Which of the table's it is.
    pub(crate) fn number(&self) -> Number {
        self.number
    }

    /// The column, when it has been encoded.
    pub(crate) fn into_column(mut self) -> SegmentColumn {
        self.columns.pop().expect("there is a column")
    }
}

/// Who encodes the columns of a table.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// Somebody else, if it is not the shard.
    other: Option<mpsc::Sender<Box<Encoding>>>,
    /// Columns that have been left to somebody else, and how many of them have not come back.
    left: u64,
    elsewhere: usize,
}

impl Encoder {
    pub(crate) fn new(other: Option<mpsc::Sender<Box<Encoding>>>) -> Encoder {
        Encoder { other, left: 0, elsewhere: 0 }
    }

    /// A column has come back.
    pub(crate) fn take_back(&mut self) {
        self.elsewhere = self.elsewhere.saturating_sub(1);
    }

    /// Leaves it to somebody else to encode these rows of a column in one segment or several, if there is anybody, who is not far
    /// behind, and it may take longer than the shard should work at a time: so many cells that are gathered.
    pub(crate) fn leave(
        &mut self,
        spec: &Spec,
        parts: &[(&SegmentColumn, Picked)],
        cells: usize,
    ) -> Option<Number> {
        /// Columns at a time: some may be of no use any more.
        const MOST: usize = 2;
        let rows: usize = parts.iter().map(|(_, rows)| rows.rows.len()).sum();
        let is_much = rows * CELLS_OF_ENCODED > cells && self.elsewhere < MOST;
        let other = self.other.as_ref().filter(|_| is_much)?;
        let number = Number(self.left);
        let ty = &spec.schema.columns[spec.index].ty;
        let columns = parts.iter().map(|(column, rows)| column.divided(ty, rows)).collect();
        other.send(Box::new(Encoding { number, spec: spec.clone(), columns })).ok()?;
        self.left += 1;
        self.elsewhere += 1;
        Some(number)
    }
}
