//! Cells as Arrow arrays.

use std::{ops::Range, sync::Arc};

use arrow::{
    array::{ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray},
    buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer},
    datatypes::{
        ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
        Int64Type, Time64MicrosecondType, TimestampMicrosecondType,
    },
};

use super::{EncodedColumn, Physical, SegmentColumn, int_to_float, physical};
use crate::{
    array::DECIMAL_NAN,
    batch_size::BATCH_BYTES,
    error::{Result, SqlError},
    types::Type,
};

/// Where the physical values of an array come from.
pub(super) trait Cells {
    fn rows(&self) -> usize;
    fn nulls(&self) -> Option<NullBuffer>;
    fn ints(&self, f: impl FnMut(i64));
    fn wides(&self, f: impl FnMut(i128));
    fn bytes(&self, f: impl FnMut(&[u8]));
}

/// Rows of several columns of one type, one after the other.
struct Runs<'a> {
    runs: &'a [(&'a SegmentColumn, &'a [u32])],
    rows: usize,
    /// The encoded columns, if that is where all rows are, and close together.
    dense: Option<Vec<(&'a EncodedColumn, &'a [u32])>>,
}

/// The encoded column, if all of these rows are in it, and many of them lie close together.
fn dense<'a>((column, rows): &(&'a SegmentColumn, &'a [u32])) -> Option<(&'a EncodedColumn, &'a [u32])> {
    /// So many rows, and one in so many.
    const MANY: usize = 32;
    const APART: usize = 16;
    let (base, first, last) = (column.base.as_ref()?, *rows.first()?, *rows.last()?);
    let are_close = rows.len() >= MANY && last.saturating_sub(first) as usize <= rows.len() * APART;
    let encoded = column.base_rows as u32;
    (are_close && rows.iter().all(|row| *row < encoded)).then_some((base, *rows))
}

/// The cells of rows of several segments' columns as one Arrow array; [`SqlError::batch_full`] when they are several and too
/// large for one.
pub(crate) fn gather_runs(ty: &Type, runs: &[(&SegmentColumn, &[u32])]) -> Result<ArrayRef> {
    let rows = runs.iter().map(|(_, rows)| rows.len()).sum();
    build(ty, &Runs { runs, rows, dense: runs.iter().map(dense).collect() })
}

impl<'a> Runs<'a> {
    /// Calls `f` with each cell. Rows that were found here and there lie apart from one another: their codes, and what
    /// the codes stand for, are fetched before it is their turn.
    fn for_each(&self, mut f: impl FnMut(&'a SegmentColumn, usize)) {
        /// Cells between one step and the next.
        const APART: usize = 8;
        let cells = || {
            self.runs.iter().flat_map(|(column, rows)| rows.iter().map(move |row| (*column, *row as usize)))
        };
        if self.rows < APART {
            return cells().for_each(|(column, row)| f(column, row));
        }
        let cells: Vec<(&SegmentColumn, usize)> = cells().collect();
        for at in 0..cells.len() + 3 * APART {
            if let Some((column, row)) = cells.get(at) {
                column.fetch_code(*row);
            }
            let behind = |steps: usize| cells.get(at.checked_sub(steps * APART)?);
            if let Some((column, row)) = behind(1) {
                column.fetch_value(*row);
            }
            if let Some((column, row)) = behind(2) {
                column.fetch_bytes(*row);
            }
            if let Some((column, row)) = behind(3) {
                f(column, *row);
            }
        }
    }
}

impl Cells for Runs<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn nulls(&self) -> Option<NullBuffer> {
        if !self.runs.iter().any(|(column, _)| column.has_nulls()) {
            return None;
        }
        let mut valid = Vec::with_capacity(self.rows);
        match &self.dense {
            Some(dense) => dense.iter().for_each(|(base, rows)| {
                valid.extend(rows.iter().map(|row| !base.is_null(*row as usize)));
            }),
            None => self.for_each(|column, row| valid.push(!column.is_null(row))),
        }
        valid.contains(&false).then(|| NullBuffer::from(valid))
    }

    fn ints(&self, mut f: impl FnMut(i64)) {
        match &self.dense {
            Some(dense) => dense.iter().for_each(|(base, rows)| base.for_ints(rows, &mut f)),
            None => self.for_each(|column, row| f(column.int(row))),
        }
    }

    fn wides(&self, mut f: impl FnMut(i128)) {
        self.for_each(|column, row| f(column.wide(row)));
    }

    fn bytes(&self, mut f: impl FnMut(&[u8])) {
        match &self.dense {
            Some(dense) => dense.iter().for_each(|(base, rows)| base.for_bytes(rows, &mut f)),
            None => self.for_each(|column, row| f(column.bytes(row))),
        }
    }
}

/// Entries of a dictionary, by code.
pub(super) struct Entries<'a> {
    pub(super) column: &'a EncodedColumn,
    pub(super) codes: Range<u64>,
}

impl Cells for Entries<'_> {
    fn rows(&self) -> usize {
        (self.codes.end - self.codes.start) as usize
    }

    fn nulls(&self) -> Option<NullBuffer> {
        None
    }

    fn ints(&self, mut f: impl FnMut(i64)) {
        self.codes.clone().for_each(|code| f(self.column.int_of(code)));
    }

    fn wides(&self, mut f: impl FnMut(i128)) {
        self.codes.clone().for_each(|code| f(self.column.wide_of(code)));
    }

    fn bytes(&self, mut f: impl FnMut(&[u8])) {
        self.codes.clone().for_each(|code| f(self.column.bytes_of(code)));
    }
}

/// Builds an Arrow array of a SQL type from physical values; [`SqlError::batch_full`] when it would be too large.
pub(super) fn build(ty: &Type, cells: &impl Cells) -> Result<ArrayRef> {
    let (rows, nulls) = (cells.rows(), cells.nulls());
    macro_rules! primitive {
        ($arrow:ty, $map:expr) => {
            Arc::new(ints::<$arrow>(cells, nulls, $map))
        };
    }
    Ok(match ty {
        Type::Bool => {
            let mut values = Vec::with_capacity(rows);
            cells.ints(|value| values.push(value != 0));
            Arc::new(BooleanArray::new(values.into(), nulls))
        }
        Type::Int2 => primitive!(Int16Type, |v| v as i16),
        Type::Int4 => primitive!(Int32Type, |v| v as i32),
        Type::Int8 => primitive!(Int64Type, |v| v),
        Type::Float4 => primitive!(Float32Type, |v| int_to_float(v) as f32),
        Type::Float8 => primitive!(Float64Type, int_to_float),
        Type::Date => primitive!(Date32Type, |v| v as i32),
        Type::Time => primitive!(Time64MicrosecondType, |v| v),
        Type::Timestamp => primitive!(TimestampMicrosecondType, |v| v),
        Type::TimestampTz => {
            Arc::new(ints::<TimestampMicrosecondType>(cells, nulls, |v| v).with_timezone("UTC"))
        }
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            let mut values = Vec::with_capacity(rows);
            match physical(ty) {
                Physical::Int => cells.ints(|value| values.push(decimal(Some(value), || 0))),
                _ => cells.wides(|value| values.push(decimal(None, || value))),
            }
            let array = PrimitiveArray::<Decimal128Type>::new(values.into(), nulls);
            Arc::new(
                array.with_data_type(arrow::datatypes::DataType::Decimal128(*precision as u8, *scale as i8)),
            )
        }
        Type::Uuid => {
            let mut values = Vec::with_capacity(rows * 16);
            cells.bytes(|value| values.extend_from_slice(if value.len() == 16 { value } else { &[0; 16] }));
            Arc::new(FixedSizeBinaryArray::new(16, Buffer::from_vec(values), nulls))
        }
        Type::Bytea | Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Numeric(_) | Type::Interval => {
            let mut offsets = Vec::with_capacity(rows + 1);
            let mut values: Vec<u8> = Vec::with_capacity(rows * 8);
            offsets.push(0i32);
            let length = if let Type::Char(length) = ty { *length as usize } else { 0 };
            let most = if rows > 1 { BATCH_BYTES } else { i32::MAX as usize };
            let mut is_full = false;
            cells.bytes(|value| {
                let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(offsets.len() - 1));
                // The code of NULL may be that of a string.
                is_full |= valid && values.len() + value.len() > most;
                if is_full {
                    return;
                }
                if valid {
                    values.extend_from_slice(value);
                    if length > 0 {
                        let characters = value.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
                        values.resize(values.len() + length.saturating_sub(characters), b' ');
                    }
                }
                offsets.push(values.len() as i32);
            });
            if is_full || values.len() > most {
                return Err(SqlError::batch_full());
            }
            let offsets = OffsetBuffer::new(offsets.into());
            if *ty == Type::Bytea {
                Arc::new(BinaryArray::new(offsets, Buffer::from_vec(values), nulls))
            } else {
                // SAFETY: only whole cells of string arrays are ever stored in string columns, some of them without
                // trailing blanks.
                Arc::new(unsafe { StringArray::new_unchecked(offsets, Buffer::from_vec(values), nulls) })
            }
        }
    })
}

/// The Arrow form of a stored decimal. NaN is stored as the greatest number, which it is.
pub(crate) fn decimal(int: Option<i64>, wide: impl FnOnce() -> i128) -> i128 {
    match int {
        Some(i64::MAX) => DECIMAL_NAN,
        Some(value) => i128::from(value),
        None => match wide() {
            i128::MAX => DECIMAL_NAN,
            value => value,
        },
    }
}

fn ints<T: ArrowPrimitiveType>(
    cells: &impl Cells,
    nulls: Option<NullBuffer>,
    map: impl Fn(i64) -> T::Native,
) -> PrimitiveArray<T> {
    let mut values = Vec::with_capacity(cells.rows());
    cells.ints(|value| values.push(map(value)));
    PrimitiveArray::new(ScalarBuffer::from(values), nulls)
}
