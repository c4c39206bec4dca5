//! The rows of an encoded column by their codes: which rows have a value is read off instead of being looked for.

use super::{Codes, EncodedColumn};
use crate::{
    ahead::{fetch, fetch_at},
    bits::Bits,
};

/// The rows of the codes of a column. It says nothing about rows that were added after it was made, which are few:
/// codes are never changed, only added.
#[derive(Debug)]
pub(crate) struct RowsByCode {
    /// The rows that are not NULL in the order of their codes, those of one code ascending.
    rows: Vec<u16>,
    /// Where the rows of each bucket start, and where the last one's end. The codes of a bucket have the same upper
    /// bits.
    starts: Vec<u32>,
    /// The bits of a code that its bucket does not tell.
    shift: u32,
    /// The rows below are covered, NULLs included. A multiple of 64.
    covered: usize,
    /// The visit at which it was used last, as [`used_at`](RowsByCode::used_at) was told.
    used: u64,
}

impl RowsByCode {
    /// Rows that can be covered: their numbers have 16 bits.
    const MOST_ROWS: usize = 1 << 16;
    /// Buckets are so few that where they start takes less memory than the rows.
    const BUCKETS: u32 = 1 << 13;
    /// Rows up to which the code of each is looked at.
    const COUNTED: usize = 32;

    /// Of the first rows of a column that has so many.
    fn new(column: &EncodedColumn, rows: usize) -> RowsByCode {
        let covered = rows.min(RowsByCode::MOST_ROWS) & !63;
        match &column.codes {
            Codes::U8(codes) => RowsByCode::of_codes(column, &codes[..covered]),
            Codes::U16(codes) => RowsByCode::of_codes(column, &codes[..covered]),
            Codes::U32(codes) => RowsByCode::of_codes(column, &codes[..covered]),
            Codes::U64(codes) => RowsByCode::of_codes(column, &codes[..covered]),
            codes => {
                let codes: Vec<u8> = (0..covered).map(|row| codes.get(row) as u8).collect();
                RowsByCode::of_codes(column, &codes)
            }
        }
    }

    fn of_codes<T: Copy + Into<u64>>(column: &EncodedColumn, codes: &[T]) -> RowsByCode {
        let bits = u64::BITS - column.max_code.leading_zeros();
        let shift = bits.saturating_sub(RowsByCode::BUCKETS.ilog2());
        let bucket = |row: usize| (codes[row].into() >> shift) as usize;
        let nulls = column.nulls.as_ref().map_or(&[][..], Bits::words);
        let is_null = |row: usize| nulls.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 == 1);
        let present = || (0..codes.len()).filter(|row| !is_null(*row));
        let mut starts = vec![0u32; (column.max_code >> shift) as usize + 2];
        present().for_each(|row| starts[bucket(row) + 1] += 1);
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let mut next = starts.clone();
        let mut rows = vec![0u16; starts.last().copied().unwrap_or(0) as usize];
        present().for_each(|row| {
            let place = &mut next[bucket(row)];
            rows[*place as usize] = row as u16;
            *place += 1;
        });
        if shift > 0 {
            for ends in starts.windows(2) {
                rows[ends[0] as usize..ends[1] as usize]
                    .sort_unstable_by_key(|row| (codes[usize::from(*row)].into(), *row));
            }
        }
        RowsByCode { rows, starts, shift, covered: codes.len(), used: 0 }
    }

    /// The covered rows with codes from `low` to `high`.
    #[inline]
    pub(crate) fn rows(&self, codes: &Codes, low: u64, high: u64) -> &[u16] {
        let rows = self.bucket_rows(low, high);
        if self.shift == 0 {
            return rows;
        }
        let code = |row: &u16| codes.get(usize::from(*row));
        if rows.len() <= RowsByCode::COUNTED {
            // No search, in which each step waits for the memory of the one before.
            let (mut below, mut inside) = (0, 0);
            for row in rows {
                let code = code(row);
                below += usize::from(code < low);
                inside += usize::from(low <= code && code <= high);
            }
            return &rows[below..below + inside];
        }
        let rows = &rows[rows.partition_point(|row| code(row) < low)..];
        &rows[..rows.partition_point(|row| code(row) <= high)]
    }

    /// The covered rows of the buckets that codes from `low` to `high` fall into.
    #[inline]
    fn bucket_rows(&self, low: u64, high: u64) -> &[u16] {
        let buckets = self.starts.len() - 1;
        let first = (low >> self.shift).min(buckets as u64) as usize;
        let after = ((high >> self.shift).saturating_add(1)).clamp(first as u64, buckets as u64) as usize;
        &self.rows[self.starts[first] as usize..self.starts[after] as usize]
    }

    /// Begins to fetch what tells where the rows of a code are.
    #[inline]
    pub(crate) fn fetch_start(&self, low: u64) {
        fetch_at(&self.starts, (low >> self.shift) as usize);
    }

    /// Begins to fetch the first rows of codes from `low` to `high`.
    #[inline]
    pub(crate) fn fetch_rows(&self, low: u64, high: u64) {
        fetch(self.bucket_rows(low, high).as_ptr());
    }

    /// Begins to fetch the codes that tell which rows of a bucket are those of one code.
    #[inline]
    pub(crate) fn fetch_codes(&self, codes: &Codes, low: u64, high: u64) {
        if self.shift > 0 {
            let rows = self.bucket_rows(low, high).iter().take(RowsByCode::COUNTED);
            rows.for_each(|row| codes.fetch(usize::from(*row)));
        }
    }

    /// The rows from here on are not covered.
    #[inline]
    pub(crate) fn covered(&self) -> usize {
        self.covered
    }

    /// Logical size in bytes.
    pub(super) fn size(&self) -> usize {
        self.rows.len() * 2 + self.starts.len() * 4
    }
}

impl EncodedColumn {
    /// Holds the column's rows by code, if most of them can be.
    pub(crate) fn order_rows(&mut self, rows: usize, visit: u64) {
        if rows <= RowsByCode::MOST_ROWS * 3 / 2 {
            self.by_code.held = Some(RowsByCode { used: visit, ..RowsByCode::new(self, rows) });
        }
    }
}

/// Whether the rows of a column are held by code.
#[derive(Debug, Default)]
pub(crate) struct ByCode {
    /// Passes over the column's rows that it would have saved.
    missed: f32,
    held: Option<RowsByCode>,
}

impl ByCode {
    /// Visits of the segment without use after which it is given up.
    const UNUSED: u64 = 1 << 14;

    #[inline]
    pub(crate) fn get(&self) -> Option<&RowsByCode> {
        self.held.as_ref()
    }

    /// Notes that rows were looked for in as much time as so many passes take. Returns whether that makes `worth` of
    /// them.
    pub(crate) fn miss(&mut self, passes: f32, worth: usize) -> bool {
        self.missed += passes;
        self.missed >= worth as f32 && self.held.is_none()
    }

    /// What is known of a column when its rows have got new numbers: nothing but that it was asked for.
    pub(super) fn anew(&self) -> ByCode {
        ByCode { missed: self.missed, held: None }
    }

    /// Gives it up if nobody has used it for a long time; returns whether it was so.
    pub(crate) fn retire(&mut self, visit: u64) -> bool {
        let unused = self.held.as_ref().is_some_and(|held| visit >= held.used + ByCode::UNUSED);
        if unused {
            *self = ByCode::default();
        }
        unused
    }

    pub(crate) fn size(&self) -> usize {
        self.held.as_ref().map_or(0, RowsByCode::size)
    }

    /// Notes that it was used at a visit.
    pub(crate) fn used_at(&mut self, visit: u64) {
        if let Some(held) = &mut self.held {
            held.used = visit;
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;
    use crate::{
        column::{SegmentColumn, Take},
        types::Type,
    };

    /// A column of whole numbers, some of them NULL.
    fn encoded(rows: usize, value: impl Fn(i64) -> Option<i64>) -> EncodedColumn {
        let values: Int64Array = (0..rows as i64).map(value).collect();
        let mut column = SegmentColumn::new(&Type::Int8);
        column.delta.append(&values, &Type::Int8, Take::All(rows));
        column.encode(&Type::Int8, &(0..rows as u32).collect::<Vec<u32>>());
        column.base.expect("it has been encoded")
    }

    #[test]
    fn rows_of_codes_are_those_that_have_them() {
        let scattered = |row: i64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
        let columns = [
            encoded(1000, |row| (row % 7 != 3).then_some(row % 5)),
            encoded(1030, |row| (row % 7 != 3).then_some(scattered(row) >> 40)),
            encoded(1024, |row| (row % 7 != 3).then_some(scattered(row))),
            encoded(40_000, |row| Some(scattered(row) >> 48)),
        ];
        for column in columns {
            let rows = 1000;
            let by_code = RowsByCode::new(&column, rows);
            assert_eq!(by_code.covered(), 960);
            let codes: Vec<u64> = (0..rows).map(|row| column.codes.get(row)).collect();
            for low in codes.iter().copied().step_by(37).chain([0, column.max_code, column.max_code + 1]) {
                for high in [low, low + 1, low + (column.max_code - low.min(column.max_code)) / 2, u64::MAX] {
                    let mut found: Vec<usize> =
                        by_code.rows(&column.codes, low, high).iter().map(|row| usize::from(*row)).collect();
                    if low == high {
                        assert!(found.is_sorted());
                    }
                    found.sort_unstable();
                    let inside = |row: &usize| !column.is_null(*row) && (low..=high).contains(&codes[*row]);
                    let expected: Vec<usize> = (0..by_code.covered()).filter(inside).collect();
                    assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn what_nobody_uses_is_given_up() {
        let mut column = encoded(1000, Some);
        assert!(!column.by_code.miss(15.5, 16));
        assert!(column.by_code.miss(0.5, 16));
        column.order_rows(1000, 5);
        assert!(!column.by_code.miss(1.0, 16) && column.by_code.size() > 0);
        column.by_code.used_at(9);
        assert!(!column.by_code.retire(8 + ByCode::UNUSED) && column.by_code.retire(9 + ByCode::UNUSED));
        assert!(column.by_code.get().is_none());
    }
}
