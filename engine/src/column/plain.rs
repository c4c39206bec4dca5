//! Columns as rows come: values in full.

use arrow::{
    array::{Array, AsArray},
    datatypes::{
        Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
        Time64MicrosecondType, TimestampMicrosecondType,
    },
};
use serde::{Deserialize, Serialize};

use super::{Offsets, Physical, float_to_int, physical};
use crate::{array::DECIMAL_NAN, bits::Bits, block::numbers, types::Type};

/// A column that rows are appended to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PlainColumn {
    pub(super) nulls: Option<Bits>,
    pub(super) len: usize,
    pub(super) data: PlainData,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum PlainData {
    Int(#[serde(with = "numbers")] Vec<i64>),
    Wide(#[serde(with = "numbers")] Vec<i128>),
    Bytes {
        offsets: Offsets,
        #[serde(with = "numbers")]
        bytes: Vec<u8>,
    },
}

/// A cell in its physical domain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    Null,
    Int(i64),
    Wide(i128),
    Bytes(&'a [u8]),
}

/// Which rows of a batch to take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Take<'a> {
    /// All of them.
    All(usize),
    /// Those with these indices.
    Rows(&'a [u32]),
}

impl Take<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Take::All(rows) => *rows,
            Take::Rows(rows) => rows.len(),
        }
    }

    #[inline]
    fn for_each(&self, mut f: impl FnMut(usize)) {
        match self {
            Take::All(rows) => (0..*rows).for_each(f),
            Take::Rows(rows) => rows.iter().for_each(|row| f(*row as usize)),
        }
    }
}

impl PlainColumn {
    pub(crate) fn new(ty: &Type) -> PlainColumn {
        let data = match physical(ty) {
            Physical::Int => PlainData::Int(Vec::new()),
            Physical::Wide => PlainData::Wide(Vec::new()),
            Physical::Bytes => PlainData::Bytes { offsets: Offsets::new(), bytes: Vec::new() },
        };
        PlainColumn { nulls: None, len: 0, data }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn data(&self) -> &PlainData {
        &self.data
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.get(row))
    }

    pub(crate) fn nulls(&self) -> Option<&Bits> {
        self.nulls.as_ref()
    }

    pub(crate) fn int(&self, row: usize) -> i64 {
        match &self.data {
            PlainData::Int(values) => values[row],
            _ => 0,
        }
    }

    pub(crate) fn wide(&self, row: usize) -> i128 {
        match &self.data {
            PlainData::Wide(values) => values[row],
            _ => 0,
        }
    }

    pub(crate) fn bytes(&self, row: usize) -> &[u8] {
        match &self.data {
            PlainData::Bytes { offsets, bytes } => offsets.of(row, bytes),
            _ => &[],
        }
    }

    /// Whether it is a column of this type without NULLs.
    pub(super) fn is_of(&self, ty: &Type) -> bool {
        self.nulls.is_none()
            && match (&self.data, physical(ty)) {
                (PlainData::Int(values), Physical::Int) => values.len() == self.len,
                (PlainData::Wide(values), Physical::Wide) => values.len() == self.len,
                (PlainData::Bytes { offsets, bytes }, Physical::Bytes) => {
                    offsets.strings() == self.len && are_values(ty, offsets, bytes)
                }
                _ => false,
            }
    }

    /// Some of its rows.
    pub(super) fn some(&self, rows: impl Iterator<Item = usize>, ty: &Type) -> PlainColumn {
        let mut some = PlainColumn::new(ty);
        rows.for_each(|row| some.push(self.cell(row)));
        some
    }

    /// Counts another cell in, as one that is not NULL.
    fn grow(&mut self) {
        self.len += 1;
        if let Some(nulls) = &mut self.nulls {
            nulls.resize(self.len);
        }
    }

    pub(crate) fn cell(&self, row: usize) -> Cell<'_> {
        match &self.data {
            _ if self.is_null(row) => Cell::Null,
            PlainData::Int(values) => Cell::Int(values[row]),
            PlainData::Wide(values) => Cell::Wide(values[row]),
            PlainData::Bytes { offsets, bytes } => Cell::Bytes(offsets.of(row, bytes)),
        }
    }

    /// Appends a cell of a column of such values.
    pub(super) fn push(&mut self, cell: Cell) {
        self.grow();
        match (&mut self.data, cell) {
            (PlainData::Int(values), Cell::Int(value)) => values.push(value),
            (PlainData::Wide(values), Cell::Wide(value)) => values.push(value),
            (PlainData::Bytes { offsets, bytes }, Cell::Bytes(value)) => {
                bytes.extend_from_slice(value);
                offsets.push(bytes.len());
            }
            (data, Cell::Null) => {
                match data {
                    PlainData::Int(values) => values.push(0),
                    PlainData::Wide(values) => values.push(0),
                    PlainData::Bytes { offsets, bytes } => offsets.push(bytes.len()),
                }
                self.nulls.get_or_insert_with(|| Bits::zeros(self.len)).set(self.len - 1);
            }
            _ => unreachable!("a column has cells of its own domain"),
        }
    }

    /// Appends one of its own cells once more, which is not NULL.
    pub(super) fn repeat(&mut self, row: usize) {
        self.grow();
        match &mut self.data {
            PlainData::Int(values) => values.push(values[row]),
            PlainData::Wide(values) => values.push(values[row]),
            PlainData::Bytes { offsets, bytes } => {
                bytes.extend_from_within(offsets.range(row));
                offsets.push(bytes.len());
            }
        }
    }

    /// Where the value of another column's cell is.
    pub(super) fn position(&self, other: &PlainColumn, row: usize) -> Option<usize> {
        match (&self.data, &other.data) {
            (PlainData::Int(values), PlainData::Int(others)) => values.iter().position(|v| *v == others[row]),
            (PlainData::Wide(values), PlainData::Wide(others)) => {
                values.iter().position(|v| *v == others[row])
            }
            _ => (0..self.len).find(|place| self.bytes(*place) == other.bytes(row)),
        }
    }

    /// Bytes of its strings.
    pub(super) fn bytes_held(&self) -> usize {
        match &self.data {
            PlainData::Bytes { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Logical size in bytes.
    pub(crate) fn size(&self) -> usize {
        let data = match &self.data {
            PlainData::Int(values) => values.len() * 8,
            PlainData::Wide(values) => values.len() * 16,
            PlainData::Bytes { offsets, bytes } => offsets.size() + bytes.len(),
        };
        data + self.nulls.as_ref().map_or(0, Bits::size)
    }

    /// Appends cells of an array of this column's Arrow type.
    pub(crate) fn append(&mut self, array: &dyn Array, ty: &Type, take: Take) {
        let before = self.len;
        self.len += take.len();
        if array.null_count() > 0 {
            let nulls = self.nulls.get_or_insert_with(|| Bits::zeros(before));
            nulls.resize(self.len);
            let mut at = before;
            take.for_each(|row| {
                if array.is_null(row) {
                    nulls.set(at);
                }
                at += 1;
            });
        } else if let Some(nulls) = &mut self.nulls {
            nulls.resize(self.len);
        }
        match &mut self.data {
            PlainData::Int(values) => append_ints(values, array, ty, take),
            PlainData::Wide(values) => {
                let array = array.as_primitive::<Decimal128Type>();
                take.for_each(|row| {
                    let value = array.value(row);
                    values.push(if value == DECIMAL_NAN { i128::MAX } else { value });
                });
            }
            PlainData::Bytes { offsets, bytes } => {
                let mut push = |value: &[u8]| {
                    bytes.extend_from_slice(value);
                    offsets.push(bytes.len());
                };
                // The slot of a NULL may hold anything: it is stored empty.
                let empty = |row: usize| array.null_count() > 0 && array.is_null(row);
                match ty {
                    Type::Uuid => {
                        let array = array.as_fixed_size_binary();
                        take.for_each(|row| push(if empty(row) { &[] } else { array.value(row) }));
                    }
                    Type::Bytea => {
                        let array = array.as_binary::<i32>();
                        take.for_each(|row| push(if empty(row) { &[] } else { array.value(row) }));
                    }
                    Type::Char(_) => {
                        let array = array.as_string::<i32>();
                        take.for_each(|row| {
                            let text = if empty(row) { "" } else { array.value(row) };
                            push(text.trim_end_matches(' ').as_bytes());
                        });
                    }
                    _ => {
                        let array = array.as_string::<i32>();
                        take.for_each(|row| push(if empty(row) { &[] } else { array.value(row).as_bytes() }));
                    }
                }
            }
        }
    }
}

/// Whether byte strings of a type are what they must be: one after the other, and valid as the type wants it.
pub(super) fn are_values(ty: &Type, offsets: &Offsets, bytes: &[u8]) -> bool {
    offsets.are_in(bytes.len())
        && match ty {
            Type::Uuid => (0..offsets.strings()).all(|string| offsets.of(string, bytes).len() == 16),
            Type::Bytea => true,
            _ => std::str::from_utf8(bytes)
                .is_ok_and(|text| offsets.iter().all(|offset| text.is_char_boundary(offset))),
        }
}

fn append_ints(values: &mut Vec<i64>, array: &dyn Array, ty: &Type, take: Take) {
    values.reserve(take.len());
    macro_rules! primitive {
        ($arrow:ty, $map:expr) => {{
            let array = array.as_primitive::<$arrow>().values();
            take.for_each(|row| values.push($map(array[row])));
        }};
    }
    match ty {
        Type::Bool => {
            let array = array.as_boolean();
            take.for_each(|row| values.push(i64::from(array.value(row))));
        }
        Type::Int2 => primitive!(Int16Type, i64::from),
        Type::Int4 => primitive!(Int32Type, i64::from),
        Type::Int8 => primitive!(Int64Type, |v| v),
        Type::Float4 => primitive!(Float32Type, |v| float_to_int(f64::from(v))),
        Type::Float8 => primitive!(Float64Type, float_to_int),
        Type::Date => primitive!(Date32Type, i64::from),
        Type::Time => primitive!(Time64MicrosecondType, |v| v),
        Type::Timestamp | Type::TimestampTz => primitive!(TimestampMicrosecondType, |v| v),
        Type::Numeric(_) => {
            primitive!(Decimal128Type, |v| if v == DECIMAL_NAN { i64::MAX } else { v as i64 })
        }
        Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Uuid | Type::Bytea | Type::Interval => {
            unreachable!("physical() maps no such type to integers that a column may have")
        }
    }
}
