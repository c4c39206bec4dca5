//! The content hash of a range (DESIGN, decision 3): an order-independent sum over the visible rows of a strong hash
//! of each. It says nothing about versions, codes or layout, so replicas of a range can be compared at any ordered
//! `Ts`.

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::{
    bits::for_bits,
    column::{Codes, EncodedColumn, Physical, SegmentColumn, physical},
    schema::Column,
};

/// The sums of the hashes of the cells of some rows of a segment, as far as its columns have been added. Values are taken as
/// they are stored: `1.0` and `1.00` differ.
///
/// The hash of a row is that of the sum of its cells' hashes, each of which says which column it is in: so the segment is
/// walked column by column, and a value that many rows have is hashed once.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// Columns that have been added.
    columns: usize,
    /// What each row has besides.
    of_all: u128,
    of_row: Vec<u128>,
    /// The rows, if they do not ascend where they come from.
    sorted: Option<Vec<u32>>,
}

impl Sums {
    pub(crate) fn new(rows: &[u32]) -> Sums {
        let sorted = (!rows.is_sorted()).then(|| {
            let mut sorted = rows.to_vec();
            sorted.sort_unstable();
            sorted
        });
        Sums { columns: 0, of_all: 0, of_row: vec![0; rows.len()], sorted }
    }

    /// How many columns have been added.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the next column, which has these rows and no others.
    pub(crate) fn add_all(&mut self, column: &EncodedColumn, definition: &Column) {
        self.next(definition).add_all(self, column);
        self.columns += 1;
    }

    fn next(&self, definition: &Column) -> Cells {
        Cells { physical: physical(&definition.ty), seed: self.columns as u64 }
    }

    /// Adds the next column; the rows are the same each time.
    pub(crate) fn add(&mut self, column: &SegmentColumn, definition: &Column, rows: &[u32]) {
        let sorted = self.sorted.take();
        let ascending = sorted.as_deref().unwrap_or(rows);
        self.next(definition).add(self, column, ascending);
        self.sorted = sorted;
        self.columns += 1;
    }

    /// The sum of the rows' hashes.
    pub(crate) fn finish(&self) -> u128 {
        let hash = |cells: &u128| xxh3_128(&cells.wrapping_add(self.of_all).to_le_bytes());
        self.of_row.iter().fold(0, |sum, cells| sum.wrapping_add(hash(cells)))
    }
}

/// The cells of a column.
struct Cells {
    physical: Physical,
    /// Says which column it is.
    seed: u64,
}

impl Cells {
    fn null(&self) -> u128 {
        xxh3_128_with_seed(&[], !self.seed)
    }

    fn int(&self, value: i64) -> u128 {
        xxh3_128_with_seed(&value.to_le_bytes(), self.seed)
    }

    fn wide(&self, value: i128) -> u128 {
        xxh3_128_with_seed(&value.to_le_bytes(), self.seed)
    }

    fn bytes(&self, value: &[u8]) -> u128 {
        xxh3_128_with_seed(value, self.seed)
    }

    fn code(&self, base: &EncodedColumn, code: u64) -> u128 {
        match self.physical {
            Physical::Int => self.int(base.int_of(code)),
            Physical::Wide => self.wide(base.wide_of(code)),
            Physical::Bytes => self.bytes(base.bytes_of(code)),
        }
    }

    /// Adds the hash of the cell of each row; the rows ascend.
    fn add(&self, sums: &mut Sums, column: &SegmentColumn, rows: &[u32]) {
        let encoded = rows.partition_point(|row| (*row as usize) < column.base_rows);
        let (encoded, plain) = rows.split_at(encoded);
        if let Some(base) = &column.base
            && encoded.len() == column.base_rows
            && plain.is_empty()
        {
            return self.add_all(sums, base);
        }
        let (sums, later) = sums.of_row.split_at_mut(encoded.len());
        for (sum, row) in later.iter_mut().zip(plain) {
            let row = *row as usize;
            *sum = sum.wrapping_add(match self.physical {
                _ if column.is_null(row) => self.null(),
                Physical::Int => self.int(column.int(row)),
                Physical::Wide => self.wide(column.wide(row)),
                Physical::Bytes => self.bytes(column.bytes(row)),
            });
        }
        for (sum, row) in sums.iter_mut().zip(encoded) {
            let Some(base) = &column.base else { return };
            let row = *row as usize;
            let cell = if base.is_null(row) { self.null() } else { self.code(base, base.codes.get(row)) };
            *sum = sum.wrapping_add(cell);
        }
    }

    /// Adds the hashes of all cells of a column, one after the other, and what most rows have once for all of them.
    fn add_all(&self, sums: &mut Sums, base: &EncodedColumn) {
        let rows = sums.of_row.len();
        let add = |sum: &mut u128, hash: u128| *sum = sum.wrapping_add(hash);
        let mut left = sums.of_row.iter_mut();
        let mut next = |hash: u128| left.next().into_iter().for_each(|sum| add(sum, hash));
        // The hash of what each code stands for, where that costs less than to hash what each row has: a table that does
        // not fit into the cache costs more than to hash a number.
        let rows_of_code = if self.physical == Physical::Bytes { 1 } else { 16 };
        match &base.codes {
            _ if base.all_null => return add(&mut sums.of_all, self.null()),
            Codes::Constant => add(&mut sums.of_all, self.code(base, 0)),
            Codes::Bit(bits) => {
                let most = self.code(base, 0);
                let others = self.code(base, 1).wrapping_sub(most);
                add(&mut sums.of_all, most);
                for_bits(bits.words(), |row| add(&mut sums.of_row[row as usize], others));
            }
            codes if codes.largest() < rows as u64 / rows_of_code => {
                let of_code: Vec<u128> = (0..=codes.largest()).map(|code| self.code(base, code)).collect();
                codes.for_each(rows, |code| next(of_code[code as usize]));
            }
            codes => match self.physical {
                Physical::Int => codes.for_each(rows, |code| next(self.int(base.int_of(code)))),
                Physical::Wide => codes.for_each(rows, |code| next(self.wide(base.wide_of(code)))),
                Physical::Bytes => codes.for_each(rows, |code| next(self.bytes(base.bytes_of(code)))),
            },
        }
        if let Some(nulls) = &base.nulls {
            // A NULL has a code like any other cell: what that stands for was added in its place.
            let null = self.null();
            for_bits(nulls.words(), |row| {
                let added = self.code(base, base.codes.get(row as usize));
                add(&mut sums.of_row[row as usize], null.wrapping_sub(added));
            });
        }
    }
}
