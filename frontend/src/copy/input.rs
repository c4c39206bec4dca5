//! Reading rows as COPY FROM does: fields go straight into Arrow builders.

use std::sync::Arc;

use arrow::array::ArrayRef;
use carousel_engine::{SqlError, SqlState, array::ColumnBuilder, error::Result, expr::EvalContext};
use carousel_planner::copy::{BadRow, CopyFormat, CopyHeader, CopyIn};

use super::split::Splitter;

/// Rows of a batch at most.
const BATCH_ROWS: usize = 16 << 10;
/// Bytes of data in a batch at most, one row more or less.
const BATCH_BYTES: usize = 8 << 20;
/// How much of a bad line or value an error shows.
const SHOWN_BYTES: usize = 100;

/// Makes batches of columns of COPY data.
pub struct CopyReader {
    copy: Arc<CopyIn>,
    context: EvalContext,
    splitter: Splitter,
    /// By the data's columns: name, NOT NULL, FORCE_NOT_NULL, FORCE_NULL.
    columns: Vec<Column>,
    builders: Vec<ColumnBuilder>,
    awaits_header: bool,
    /// Line of each row of the batch being built.
    lines: Vec<u64>,
    line_of_row: LineOfRow,
    bytes: usize,
    /// The batch's first row, and its first one that has NULL in a NOT NULL column: the ones an error can be about.
    remembered: Vec<(usize, String)>,
    has_null_violation: bool,
}

struct Column {
    name: String,
    not_null: bool,
    force_not_null: bool,
    force_null: bool,
}

/// Columns in the data's order, and where their rows came from.
pub struct ParsedBatch {
    /// One array for each of the data's columns.
    pub columns: Vec<ArrayRef>,
    table: String,
    lines: Vec<u64>,
    remembered: Vec<(usize, String)>,
}

impl ParsedBatch {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.lines.len()
    }

    /// The error of a row that cannot be stored, with the line it came from.
    pub fn locate(&self, bad: BadRow) -> SqlError {
        let Some(line) = self.lines.get(bad.row) else { return bad.error };
        let text = self.remembered.iter().find(|(row, _)| *row == bad.row).map(|(_, text)| text.as_str());
        bad.error.with_context(row_context(&self.table, *line, text))
    }
}

impl CopyReader {
    /// A reader for one COPY; a row longer than `longest_row` bytes is refused.
    pub fn new(copy: Arc<CopyIn>, context: EvalContext, longest_row: usize) -> CopyReader {
        let described = |(place, index): (usize, &usize)| {
            let column = &copy.table.columns[*index];
            Column {
                name: column.name.clone(),
                not_null: column.not_null,
                force_not_null: copy.options.force_not_null.contains(place),
                force_null: copy.options.force_null.contains(place),
            }
        };
        CopyReader {
            splitter: Splitter::new(&copy.options, longest_row),
            columns: copy.columns.iter().enumerate().map(described).collect(),
            builders: copy.columns.iter().map(|i| ColumnBuilder::new(&copy.table.columns[*i].ty)).collect(),
            awaits_header: copy.options.header != CopyHeader::None,
            lines: Vec::new(),
            line_of_row: LineOfRow::default(),
            bytes: 0,
            remembered: Vec::new(),
            has_null_violation: false,
            copy,
            context,
        }
    }

    /// Takes more data.
    pub fn feed(&mut self, data: &[u8]) {
        self.bytes += data.len();
        self.splitter.feed(data);
    }

    /// No more data will come: what is left becomes the last batch.
    pub fn end_input(&mut self) {
        self.splitter.end_input();
    }

    /// The next full batch, or `None` when more data is needed.
    ///
    /// # Errors
    /// Those of PostgreSQL about a line or a value, with the CONTEXT that names it.
    pub fn full_batch(&mut self) -> Result<Option<ParsedBatch>> {
        while self.next_row()? {
            if self.lines.len() >= BATCH_ROWS {
                return Ok(self.take_batch());
            }
        }
        if self.bytes >= BATCH_BYTES { Ok(self.take_batch()) } else { Ok(None) }
    }

    /// Adds to an error that was found when the rows were inserted which line it is about.
    pub fn locate(&self, error: SqlError) -> SqlError {
        match error.ordinal.and_then(|row| self.line_of_row.get(row)) {
            Some(line) => error.with_context(row_context(&self.copy.table.name, line, None)),
            None => error,
        }
    }

    /// The rows that no batch has had yet.
    pub fn take_batch(&mut self) -> Option<ParsedBatch> {
        self.bytes = 0;
        self.has_null_violation = false;
        if self.lines.is_empty() {
            return None;
        }
        Some(ParsedBatch {
            columns: self.builders.iter_mut().map(ColumnBuilder::finish).collect(),
            table: self.copy.table.name.clone(),
            lines: std::mem::take(&mut self.lines),
            remembered: std::mem::take(&mut self.remembered),
        })
    }

    fn next_row(&mut self) -> Result<bool> {
        loop {
            let found = self.splitter.next_row().map_err(|e| self.in_row(e))?;
            if !found {
                return Ok(false);
            }
            if !std::mem::take(&mut self.awaits_header) {
                break;
            }
            if self.copy.options.header == CopyHeader::Match {
                self.match_header().map_err(|e| self.in_row(e))?;
            }
        }
        self.append_row()?;
        Ok(true)
    }

    fn append_row(&mut self) -> Result<()> {
        let count = self.splitter.field_count();
        if count > self.columns.len() {
            let error = SqlError::new(SqlState::BAD_COPY, "extra data after last expected column");
            return Err(self.in_row(error));
        }
        let csv = self.copy.options.format == CopyFormat::Csv;
        let mut null_violation = false;
        for (place, (column, builder)) in self.columns.iter().zip(&mut self.builders).enumerate() {
            if place >= count {
                let message = format!("missing data for column \"{}\"", column.name);
                return Err(self.in_row(SqlError::new(SqlState::BAD_COPY, message)));
            }
            let field = self.splitter.field(place);
            let null = if csv {
                field.is_null_string && if field.quoted { column.force_null } else { !column.force_not_null }
            } else {
                field.is_null_string
            };
            if null {
                builder.append_null();
                null_violation |= column.not_null;
            } else if let Err(error) = builder.append_text(field.text, &self.context) {
                let context = format!(
                    "COPY {}, line {}, column {}: \"{}\"",
                    self.copy.table.name,
                    self.splitter.line(),
                    column.name,
                    shortened(field.text)
                );
                return Err(error.with_context(context));
            }
        }
        if self.lines.is_empty() || (null_violation && !self.has_null_violation) {
            self.has_null_violation |= null_violation;
            self.remembered.push((self.lines.len(), self.splitter.row_text().unwrap_or_default()));
        }
        self.lines.push(self.splitter.line());
        self.line_of_row.push(self.splitter.line());
        Ok(())
    }

    fn match_header(&self) -> Result<()> {
        let count = self.splitter.field_count();
        if count != self.columns.len() {
            return Err(SqlError::new(
                SqlState::BAD_COPY,
                format!(
                    "wrong number of fields in header line: field count is {count}, expected {}",
                    self.columns.len()
                ),
            ));
        }
        for (place, column) in self.columns.iter().enumerate() {
            let field = self.splitter.field(place);
            let got = if field.is_null_string && !field.quoted {
                format!("null value (\"{}\")", field.text)
            } else if field.text == column.name {
                continue;
            } else {
                format!("\"{}\"", field.text)
            };
            return Err(SqlError::new(
                SqlState::BAD_COPY,
                format!(
                    "column name mismatch in header line field {}: got {got}, expected \"{}\"",
                    place + 1,
                    column.name
                ),
            ));
        }
        Ok(())
    }

    /// The error with the current line as its CONTEXT.
    fn in_row(&self, error: SqlError) -> SqlError {
        let text = self.splitter.row_text();
        error.with_context(row_context(&self.copy.table.name, self.splitter.line(), text.as_deref()))
    }
}

/// So many rows of a COPY that are not on the line behind the row before them are remembered: 16 MiB.
const MOST_JUMPS: usize = 1 << 20;

/// The line of every row of a COPY. Most rows are on the line behind the row before them, and take no memory.
#[derive(Default)]
struct LineOfRow {
    /// Those whose lines are known: all, or those before the first one that there was no room for.
    rows: u64,
    /// The rows that are not, and their lines.
    jumps: Vec<(u64, u64)>,
    is_full: bool,
}

impl LineOfRow {
    fn push(&mut self, line: u64) {
        let row = self.rows;
        if self.jumps.last().is_none_or(|(jump, at)| at + (row - jump) != line) {
            self.is_full |= self.jumps.len() == MOST_JUMPS;
            if !self.is_full {
                self.jumps.push((row, line));
            }
        }
        self.rows += u64::from(!self.is_full);
    }

    fn get(&self, row: u64) -> Option<u64> {
        let behind = self.jumps.partition_point(|(jump, _)| *jump <= row);
        let (jump, at) = self.jumps.get(behind.checked_sub(1)?)?;
        (row < self.rows).then(|| at + (row - jump))
    }
}

fn row_context(table: &str, line: u64, text: Option<&str>) -> String {
    match text {
        Some(text) => format!("COPY {table}, line {line}: \"{}\"", shortened(text)),
        None => format!("COPY {table}, line {line}"),
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= SHOWN_BYTES {
        return text.to_owned();
    }
    let end = (0..=SHOWN_BYTES).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_on_several_lines_take_no_more_memory_than_there_is_for_their_lines() {
        let mut line_of_row = LineOfRow::default();
        (0..2 * MOST_JUMPS as u64).for_each(|row| line_of_row.push(2 * row));
        assert_eq!(line_of_row.jumps.len(), MOST_JUMPS);
        let last = MOST_JUMPS as u64 - 1;
        assert_eq!([last, last + 1].map(|row| line_of_row.get(row)), [Some(2 * last), None]);
    }

    proptest! {
        #[test]
        fn every_row_has_its_line(steps in prop::collection::vec(1_u64..4, 0..200)) {
            let lines: Vec<u64> = steps
                .iter()
                .scan(0, |line, step| {
                    *line += step;
                    Some(*line)
                })
                .collect();
            let mut line_of_row = LineOfRow::default();
            lines.iter().for_each(|line| line_of_row.push(*line));
            for (row, line) in lines.iter().enumerate() {
                prop_assert_eq!(line_of_row.get(row as u64), Some(*line));
            }
            prop_assert_eq!(line_of_row.get(lines.len() as u64), None);
        }
    }
}
