//! Columns of a segment: a plain form that grows, and an encoded form that is small and fast to compare.
//!
//! Both map SQL values onto three physical domains, each ordered as SQL orders the values:
//! - [`Physical::Int`]: everything that fits in 64 bits (booleans, integers, dates and times, decimals of up to 18
//!   digits, and floating point numbers by an order-preserving mapping of their bits);
//! - [`Physical::Wide`]: decimals of more digits;
//! - [`Physical::Bytes`]: strings (`char(n)` without its trailing blanks, which mean nothing to its order), uuid, bytea,
//!   and numeric without a declared precision (as text, whose byte order means nothing).
//!
//! An encoded column is a vector of narrow codes (one bit to 64 bits wide; constant columns have none) and a
//! domain that maps codes to values monotonically: `base + scale * code` for whole numbers, a sorted dictionary
//! otherwise. So a comparison with a constant becomes a comparison of codes, and the domain's ends are the zone map.

mod arrays;
mod by_code;
mod code_table;
mod codes;
mod encode;
mod encoded;
mod frequency;
mod joined;
mod offsets;
mod plain;
mod sum;

use arrow::array::ArrayRef;

pub(crate) use arrays::{decimal, gather_runs};
use by_code::ByCode;
pub(crate) use by_code::RowsByCode;
pub(crate) use codes::{Codes, with_room};
pub(crate) use encoded::{Domain, EncodedColumn};
use frequency::Frequency;
use offsets::Offsets;
pub(crate) use plain::{Cell, PlainColumn, PlainData, Take};

use crate::{
    ahead::fetch,
    bits::{Bits, Picked, Ranks},
    error::Result,
    types::Type,
};

/// The physical domain of a SQL type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Physical {
    Int,
    Wide,
    Bytes,
}

/// The physical domain of a column of this type.
pub(crate) fn physical(ty: &Type) -> Physical {
    match ty {
        Type::Numeric(Some((precision, _))) if *precision <= 18 => Physical::Int,
        Type::Numeric(Some((precision, _))) if *precision <= 38 => Physical::Wide,
        Type::Numeric(_) | Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Uuid | Type::Bytea => {
            Physical::Bytes
        }
        _ => Physical::Int,
    }
}

/// Maps a double to an integer in the same order; every NaN becomes one, above everything.
pub(crate) fn float_to_int(value: f64) -> i64 {
    let bits = if value.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { value.to_bits() } as i64;
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

pub(crate) fn int_to_float(value: i64) -> f64 {
    f64::from_bits((if value < 0 { value ^ i64::MAX } else { value }) as u64)
}

/// What part of a column or a segment has to be strings that nobody sees any more so that they are cleared away for their
/// bytes' sake.
pub(crate) const GOOD_PART: usize = 8;

/// Cells that are gathered in the time in which one is encoded.
pub(crate) const CELLS_OF_ENCODED: usize = 32;

/// A column of a segment: the encoded part, then the plain part.
#[derive(Debug)]
pub(crate) struct SegmentColumn {
    pub(crate) base: Option<EncodedColumn>,
    pub(crate) base_rows: usize,
    pub(crate) delta: PlainColumn,
}

impl SegmentColumn {
    pub(crate) fn new(ty: &Type) -> SegmentColumn {
        SegmentColumn { base: None, base_rows: 0, delta: PlainColumn::new(ty) }
    }

    pub(crate) fn size(&self) -> usize {
        self.base.as_ref().map_or(0, EncodedColumn::size) + self.delta.size()
    }

    fn whole_size(&self) -> usize {
        self.base.as_ref().map_or(0, EncodedColumn::whole_size) + self.delta.size()
    }

    #[inline]
    pub(crate) fn is_null(&self, row: usize) -> bool {
        match &self.base {
            Some(base) if row < self.base_rows => base.is_null(row),
            _ => self.delta.is_null(row - self.base_rows),
        }
    }

    /// Bytes of a cell that is a string, whatever it shares with others.
    pub(crate) fn string_bytes(&self, row: usize) -> usize {
        match self.delta.data() {
            PlainData::Bytes { .. } if !self.is_null(row) => self.bytes(row).len(),
            _ => 0,
        }
    }

    /// Bytes of all cells besides strings and entries of the dictionary, about: their codes.
    pub(crate) fn bytes_besides(&self) -> usize {
        let of_base = |base: &EncodedColumn| base.codes.size() + base.nulls.as_ref().map_or(0, Bits::size);
        self.base.as_ref().map_or(0, of_base) + self.delta.len * self.entry_bytes()
    }

    /// Bytes of the entries of its dictionary that so many of its rows have at most, besides strings.
    pub(crate) fn entries_bytes(&self, rows: usize) -> usize {
        let entries = self.base.as_ref().and_then(EncodedColumn::dictionary_len).unwrap_or(0);
        entries.min(rows) * self.entry_bytes()
    }

    fn entry_bytes(&self) -> usize {
        match self.delta.data() {
            PlainData::Int(_) => 8,
            PlainData::Wide(_) => 16,
            PlainData::Bytes { .. } => 4,
        }
    }

    /// Bytes of its strings.
    pub(crate) fn bytes_held(&self) -> usize {
        self.base.as_ref().map_or(0, EncodedColumn::bytes_held) + self.delta.bytes_held()
    }

    /// Bytes of the strings that these rows have; what is encoded is there once.
    pub(crate) fn bytes_used(&self, rows: &[u32]) -> usize {
        let PlainData::Bytes { .. } = self.delta.data() else { return 0 };
        let of_base = |rows: &[u32]| self.base.as_ref().map_or(0, |base| base.bytes_used(rows));
        if self.delta.len == 0 {
            return of_base(rows);
        }
        let (encoded, plain): (Vec<u32>, Vec<u32>) =
            rows.iter().partition(|row| (**row as usize) < self.base_rows);
        of_base(&encoded) + plain.iter().map(|row| self.bytes(*row as usize).len()).sum::<usize>()
    }

    /// Bytes of strings that none of these rows has.
    pub(crate) fn unused_bytes(&self, rows: &[u32]) -> usize {
        self.bytes_held().saturating_sub(self.bytes_used(rows))
    }

    /// Whether a row may be NULL.
    pub(crate) fn has_nulls(&self) -> bool {
        self.delta.nulls.is_some()
            || self.base.as_ref().is_some_and(|base| base.all_null || base.nulls.is_some())
    }

    #[inline]
    pub(crate) fn int(&self, row: usize) -> i64 {
        match &self.base {
            Some(base) if row < self.base_rows => base.int_of(base.codes.get(row)),
            _ => self.delta.int(row - self.base_rows),
        }
    }

    #[inline]
    pub(crate) fn wide(&self, row: usize) -> i128 {
        match &self.base {
            Some(base) if row < self.base_rows => base.wide_of(base.codes.get(row)),
            _ => self.delta.wide(row - self.base_rows),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self, row: usize) -> &[u8] {
        match &self.base {
            Some(base) if row < self.base_rows => base.bytes_of(base.codes.get(row)),
            _ => self.delta.bytes(row - self.base_rows),
        }
    }

    pub(crate) fn cell(&self, row: usize) -> Cell<'_> {
        match &self.base {
            Some(base) if row < self.base_rows => base.cell(row),
            _ => self.delta.cell(row - self.base_rows),
        }
    }

    /// Begins to fetch the code of a cell into the cache.
    #[inline]
    pub(crate) fn fetch_code(&self, row: usize) {
        if let Some(base) = &self.base {
            base.fetch_code(row);
        }
    }

    /// Begins to fetch where the value of a cell is, whose code has been fetched.
    #[inline]
    pub(crate) fn fetch_value(&self, row: usize) {
        if let Some(base) = &self.base
            && row < self.base_rows
        {
            base.fetch_value(base.codes.get(row));
        }
    }

    /// Begins to fetch the bytes of a cell whose code, and where they are, have been fetched.
    #[inline]
    pub(crate) fn fetch_bytes(&self, row: usize) {
        if let Some(base) = &self.base
            && let Domain::Bytes { .. } = *base.domain
            && row < self.base_rows
        {
            fetch(base.bytes_of(base.codes.get(row)).as_ptr());
        }
    }

    /// The cells of these rows as an Arrow array; [`SqlError::batch_full`](crate::SqlError::batch_full) when they are
    /// several and too large for one.
    pub(crate) fn gather(&self, ty: &Type, rows: &[u32]) -> Result<ArrayRef> {
        gather_runs(ty, &[(self, rows)])
    }

    /// Appends the cells of some of its rows once more. Where every row has a code, so have the new ones.
    pub(crate) fn repeat(&mut self, rows: &[u32]) {
        match &mut self.base {
            Some(base) if self.delta.len() == 0 => {
                base.repeat(rows, self.base_rows);
                self.base_rows += rows.len();
            }
            _ => rows.iter().for_each(|row| self.repeat_plainly(*row as usize)),
        }
    }

    fn repeat_plainly(&mut self, row: usize) {
        match row.checked_sub(self.base_rows) {
            Some(place) if !self.delta.is_null(place) => self.delta.repeat(place),
            _ => self.delta.push(match &self.base {
                Some(base) if row < self.base_rows => base.cell(row),
                _ => Cell::Null,
            }),
        }
    }

    /// Gives the plain rows codes, behind the others; the domain stays as it is, if that is reasonable. Returns whether it was
    /// not, and all rows have been encoded anew.
    pub(crate) fn absorb(&mut self, ty: &Type) -> bool {
        self.absorb_known(ty);
        let are_left = self.delta.len > 0;
        if are_left {
            let all: Vec<u32> = (0..self.rows() as u32).collect();
            self.encode(ty, &all);
        }
        are_left
    }

    /// As [`absorb`](SegmentColumn::absorb), as far as the domain stays as it is.
    pub(crate) fn absorb_known(&mut self, ty: &Type) {
        /// Values beyond the domain with which a column is encoded again: at least so many, as each test of it is asked about each
        /// of them, and more in one with so many rows, as to encode it takes longer.
        const EXTRA: usize = 256;
        const ROWS_OF_EXTRA: usize = 128;
        // A domain of no rows is none.
        let Some(base) = self.base.as_mut().filter(|_| self.base_rows > 0 && self.delta.len > 0) else {
            return;
        };
        let most = EXTRA.max(self.base_rows / ROWS_OF_EXTRA);
        let mut done = 0;
        while done < self.delta.len && base.extra.len < most {
            let code = match self.delta.is_null(done) {
                true => None,
                false if base.all_null => break,
                false => Some(base.code_for(&self.delta, done)),
            };
            base.push(code, self.base_rows);
            self.base_rows += 1;
            done += 1;
        }
        if done > 0 {
            self.delta = self.delta.some(done..self.delta.len, ty);
        }
    }

    /// Some of its rows, which ascend, as they are: what is encoded has its domain in common with this column until it is
    /// [`compacted`](SegmentColumn::compacted).
    pub(crate) fn divided(&self, ty: &Type, picked: &Picked) -> SegmentColumn {
        let rows = picked.rows;
        let encoded = rows.partition_point(|row| (*row as usize) < self.base_rows);
        let (encoded, plain) = rows.split_at(encoded);
        let base = self.base.as_ref().filter(|_| !encoded.is_empty());
        let divide = |base: &EncodedColumn| match plain {
            [] => base.divided(picked, self.base_rows),
            _ => base.divided(&Picked::new(encoded, &Ranks::default()), self.base_rows),
        };
        SegmentColumn {
            base: base.map(divide),
            base_rows: encoded.len(),
            delta: self.delta.some(plain.iter().map(|row| *row as usize - self.base_rows), ty),
        }
    }

    /// Only these rows, all of them encoded. Strings that none of them has go when they are more than this part of the
    /// column, or when it `is_part` of another. Returns also what it took, in cells that are gathered in that time.
    pub(crate) fn compacted(
        &mut self,
        ty: &Type,
        keep: &Picked,
        part: usize,
        is_part: bool,
    ) -> (SegmentColumn, usize) {
        let rows = keep.rows;
        let mut took = 0;
        let mut absorb = |column: &mut SegmentColumn| {
            let encoded = if column.absorb(ty) { column.rows() } else { 0 };
            took = rows.len() + encoded * CELLS_OF_ENCODED;
        };
        let gathered = |base| SegmentColumn::of(base, rows.len(), ty);
        let grown_little = self.has_grown_little();
        if grown_little && is_part {
            absorb(self);
            if let Some(base) = &self.base {
                return (gathered(base.extract(ty, keep)), took);
            }
        } else if grown_little && self.unused_bytes(rows) * part <= self.whole_size() {
            absorb(self);
            // Most of the domain is still in use.
            if let Some(base) = self.base.as_ref().filter(|it| !it.all_null && rows.len() * 2 >= it.made_of) {
                return (gathered(base.keep(keep)), took);
            }
        }
        (self.encoded_anew(ty, rows), took + rows.len() * CELLS_OF_ENCODED)
    }

    /// Whether few of its rows have no codes.
    pub(crate) fn has_grown_little(&self) -> bool {
        self.delta.len * 4 <= self.base_rows
    }

    /// Appends some rows of another column of its type.
    pub(crate) fn append_rows_of(&mut self, other: &SegmentColumn, rows: &[u32]) {
        rows.iter().for_each(|row| self.delta.push(other.cell(*row as usize)));
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.base_rows + self.delta.len
    }

    /// Some of its rows as a column of their own, all of them encoded.
    pub(crate) fn extract(&self, ty: &Type, picked: &Picked) -> EncodedColumn {
        self.base_of(picked).map_or_else(|| self.encoded(ty, picked.rows), |base| base.extract(ty, picked))
    }

    /// As [`extract`](SegmentColumn::extract), for a column that travels.
    pub(crate) fn part(&self, ty: &Type, picked: &Picked) -> EncodedColumn {
        self.base_of(picked).map_or_else(|| self.encoded(ty, picked.rows), |base| base.part(ty, picked))
    }

    /// The encoded part, if all of these rows are in it.
    fn base_of(&self, picked: &Picked) -> Option<&EncodedColumn> {
        self.base.as_ref().filter(|_| picked.end() <= self.base_rows)
    }

    /// A column that is encoded.
    pub(crate) fn of(base: EncodedColumn, rows: usize, ty: &Type) -> SegmentColumn {
        SegmentColumn { base: Some(base), base_rows: rows, delta: PlainColumn::new(ty) }
    }

    /// Keeps only these rows, encoded from scratch.
    pub(crate) fn encode(&mut self, ty: &Type, keep: &[u32]) {
        *self = self.encoded_anew(ty, keep);
    }

    fn encoded_anew(&self, ty: &Type, keep: &[u32]) -> SegmentColumn {
        let mut base = self.encoded(ty, keep);
        base.by_code = self.base.as_ref().map_or_else(ByCode::default, |base| base.by_code.anew());
        SegmentColumn::of(base, keep.len(), ty)
    }

    /// These rows, encoded from scratch.
    fn encoded(&self, ty: &Type, keep: &[u32]) -> EncodedColumn {
        EncodedColumn::encode(ty, keep.len(), |row| (self, keep[row] as usize))
    }
}
