//! The rows of the table `ticket`, with an index over the values of every column: an evaluator that shares nothing
//! with the engine, and fast enough to draw thousands of questions.

use std::collections::HashMap;

use arrow::{
    array::{Array, RecordBatch},
    row::{RowConverter, SortField},
    util::display::{ArrayFormatter, FormatOptions},
};
use carousel_engine::{Value, array::arrow_cell_to_value};

use crate::ticket::{BLOCK_ROWS, COLUMNS, block_of, blocks, record_batch};

/// The value of a NULL cell has no number.
const NULL: u32 = u32::MAX;

/// One column: its values are numbered in SQL's order.
struct Column {
    /// The number of each row's value.
    ids: Vec<u32>,
    /// Where each value's rows start in `rows`, and where the last one's end.
    starts: Vec<u32>,
    /// Rows by value.
    rows: Vec<u32>,
}

/// All rows of a table.
pub struct Rows {
    /// As they are loaded.
    pub batches: Vec<RecordBatch>,
    columns: Vec<Column>,
}

/// Equalities and ranges over columns; a range includes both ends.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// Column and the number of its value.
    pub equal: Vec<(usize, u32)>,
    /// Column, and the numbers of the least and the greatest value.
    pub between: Vec<(usize, u32, u32)>,
}

impl Rows {
    /// Makes and numbers the rows.
    pub fn new(seed: u64, rows: u64) -> Rows {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut batches: Vec<(u64, RecordBatch)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..cores)
                .map(|worker| {
                    scope.spawn(move || {
                        (worker as u64..blocks(rows))
                            .step_by(cores)
                            .map(|number| (number, record_batch(&block_of(seed, number, rows))))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("rows can be made")).collect()
        });
        batches.sort_by_key(|(number, _)| *number);
        let batches: Vec<RecordBatch> = batches.into_iter().map(|(_, batch)| batch).collect();
        let mut columns: Vec<(usize, Column)> = std::thread::scope(|scope| {
            let batches = &batches;
            let workers: Vec<_> = (0..cores)
                .map(|worker| {
                    let mine = (worker..COLUMNS.len()).step_by(cores);
                    scope.spawn(move || {
                        mine.map(|column| (column, Column::new(batches, column))).collect::<Vec<_>>()
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("columns can be numbered")).collect()
        });
        columns.sort_by_key(|(number, _)| *number);
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        Rows { batches, columns }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.columns[0].ids.len()
    }

    /// The number of a row's value, unless it is NULL.
    pub fn id(&self, column: usize, row: usize) -> Option<u32> {
        Some(self.columns[column].ids[row]).filter(|id| *id != NULL)
    }

    /// How many different values a column has.
    pub fn distinct(&self, column: usize) -> usize {
        self.columns[column].starts.len() - 1
    }

    /// A value by its number.
    pub fn value(&self, column: usize, id: u32) -> Value {
        self.cell(column, self.row_with(column, id))
    }

    /// Some row that has a value.
    pub fn row_with(&self, column: usize, id: u32) -> usize {
        let column = &self.columns[column];
        column.rows[column.starts[id as usize] as usize] as usize
    }

    /// A row's value.
    pub fn cell(&self, column: usize, row: usize) -> Value {
        let array = self.batches[row / BLOCK_ROWS].column(column);
        arrow_cell_to_value(array.as_ref(), row % BLOCK_ROWS, &COLUMNS[column].1)
    }

    /// A row's value as text that every system reads and writes alike; empty for NULL.
    pub fn text(&self, column: usize, row: usize) -> String {
        let options = FormatOptions::new()
            .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
            .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"));
        let array = self.batches[row / BLOCK_ROWS].column(column);
        let formatter =
            ArrayFormatter::try_new(array, &options).expect("every type of the table can be printed");
        formatter.value(row % BLOCK_ROWS).to_string()
    }

    /// The rows that meet all conditions, or `None` when they are more than `most`.
    ///
    /// # Panics
    /// When there is no equality.
    pub fn select(&self, conditions: &Conditions, most: usize) -> Option<Vec<u32>> {
        let rows_of = |(column, id): &(usize, u32)| {
            let column = &self.columns[*column];
            &column.rows[column.starts[*id as usize] as usize..column.starts[*id as usize + 1] as usize]
        };
        let rarest = conditions.equal.iter().map(rows_of).min_by_key(|rows| rows.len()).expect("an equality");
        let mut found = Vec::new();
        for row in rarest {
            let id = |column: usize| self.columns[column].ids[*row as usize];
            let qualifies = conditions.equal.iter().all(|(column, wanted)| id(*column) == *wanted)
                && conditions.between.iter().all(|(column, low, high)| {
                    let id = id(*column);
                    id != NULL && *low <= id && id <= *high
                });
            if qualifies {
                if found.len() == most {
                    return None;
                }
                found.push(*row);
            }
        }
        Some(found)
    }
}

impl Column {
    fn new(batches: &[RecordBatch], column: usize) -> Column {
        let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let field = SortField::new(COLUMNS[column].1.arrow());
        let converter = RowConverter::new(vec![field]).expect("every type of the table can be ordered");
        let converted: Vec<_> = batches
            .iter()
            .map(|batch| {
                converter.convert_columns(&[batch.column(column).clone()]).expect("a column of its type")
            })
            .collect();
        // Numbered as they come first, then in order.
        let mut numbers: HashMap<&[u8], u32> = HashMap::new();
        let mut ids = Vec::with_capacity(total);
        for (batch, rows) in batches.iter().zip(&converted) {
            let array = batch.column(column);
            for row in 0..batch.num_rows() {
                ids.push(if array.is_null(row) {
                    NULL
                } else {
                    let next = numbers.len() as u32;
                    *numbers.entry(rows.row(row).data()).or_insert(next)
                });
            }
        }
        let mut values: Vec<(&[u8], u32)> = numbers.into_iter().collect();
        values.sort_unstable();
        let mut places = vec![0; values.len()];
        for (place, (_, number)) in values.iter().enumerate() {
            places[*number as usize] = place as u32;
        }
        ids.iter_mut().filter(|id| **id != NULL).for_each(|id| *id = places[*id as usize]);
        let mut starts = vec![0u32; values.len() + 1];
        ids.iter().filter(|id| **id != NULL).for_each(|id| starts[*id as usize + 1] += 1);
        for place in 1..starts.len() {
            starts[place] += starts[place - 1];
        }
        let mut next = starts.clone();
        let mut rows = vec![0; starts[values.len()] as usize];
        for (row, id) in ids.iter().enumerate().filter(|(_, id)| **id != NULL) {
            rows[next[*id as usize] as usize] = row as u32;
            next[*id as usize] += 1;
        }
        Column { ids, starts, rows }
    }
}
