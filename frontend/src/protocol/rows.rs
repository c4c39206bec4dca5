//! Rows on the wire: Arrow columns straight into the output buffer.
//!
//! The type of every column is looked up once for a batch; what is left for each cell is a copy.

use arrow::{
    array::{Array, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray},
    datatypes::{
        Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
        IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
    },
    record_batch::RecordBatch,
};
use bytes::{BufMut, BytesMut};
use carousel_engine::{
    SqlError, SqlState, Type, Value,
    array::DECIMAL_NAN,
    datetime,
    error::Result,
    numeric,
    text::{self, TextWriter},
    value::Interval,
};

use super::Format;

/// Days from 1970-01-01 to 2000-01-01, where PostgreSQL's binary dates begin.
pub const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
pub const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;

/// One column of a batch, ready to be written cell by cell.
pub struct Column<'a> {
    array: &'a dyn Array,
    cells: Cells<'a>,
    writer: TextWriter,
}

enum Cells<'a> {
    Bool(&'a BooleanArray),
    Int2(&'a PrimitiveArray<Int16Type>),
    Int4(&'a PrimitiveArray<Int32Type>),
    Int8(&'a PrimitiveArray<Int64Type>),
    Float4(&'a PrimitiveArray<Float32Type>),
    Float8(&'a PrimitiveArray<Float64Type>),
    Decimal(&'a PrimitiveArray<Decimal128Type>, u32),
    NumericText(&'a StringArray),
    Text(&'a StringArray),
    Date(&'a PrimitiveArray<Date32Type>),
    Time(&'a PrimitiveArray<Time64MicrosecondType>),
    Timestamp(&'a PrimitiveArray<TimestampMicrosecondType>),
    TimestampTz(&'a PrimitiveArray<TimestampMicrosecondType>),
    Interval(&'a PrimitiveArray<IntervalMonthDayNanoType>),
    Uuid(&'a FixedSizeBinaryArray),
    Bytea(&'a BinaryArray),
}

impl<'a> Column<'a> {
    /// A column of this SQL type; `writer` knows the time zone that timestamptz is shown in.
    ///
    /// # Errors
    /// XX000 when the array's type is not that of [`Type::arrow`].
    pub fn new(array: &'a dyn Array, ty: &Type, writer: TextWriter) -> Result<Column<'a>> {
        let cells = match ty {
            Type::Bool => array.as_boolean_opt().map(Cells::Bool),
            Type::Int2 => array.as_primitive_opt().map(Cells::Int2),
            Type::Int4 => array.as_primitive_opt().map(Cells::Int4),
            Type::Int8 => array.as_primitive_opt().map(Cells::Int8),
            Type::Float4 => array.as_primitive_opt().map(Cells::Float4),
            Type::Float8 => array.as_primitive_opt().map(Cells::Float8),
            Type::Numeric(_) => match array.as_primitive_opt::<Decimal128Type>() {
                Some(decimals) => Some(Cells::Decimal(decimals, decimals.scale().max(0) as u32)),
                None => array.as_string_opt().map(Cells::NumericText),
            },
            Type::Text | Type::Varchar(_) | Type::Char(_) => array.as_string_opt().map(Cells::Text),
            Type::Date => array.as_primitive_opt().map(Cells::Date),
            Type::Time => array.as_primitive_opt().map(Cells::Time),
            Type::Timestamp => array.as_primitive_opt().map(Cells::Timestamp),
            Type::TimestampTz => array.as_primitive_opt().map(Cells::TimestampTz),
            Type::Interval => array.as_primitive_opt().map(Cells::Interval),
            Type::Uuid => {
                array.as_fixed_size_binary_opt().filter(|a| a.value_length() == 16).map(Cells::Uuid)
            }
            Type::Bytea => array.as_binary_opt().map(Cells::Bytea),
        };
        let cells = cells.ok_or_else(|| {
            SqlError::internal(format!("a column of type {ty} came as Arrow {}", array.data_type()))
        })?;
        Ok(Column { array, cells, writer })
    }

    /// Whether the cell is NULL.
    pub fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row)
    }

    /// The text of a cell that is not NULL; `scratch` is used where the text has to be made.
    pub fn text<'s>(&'s self, row: usize, scratch: &'s mut String) -> &'s str {
        scratch.clear();
        match &self.cells {
            Cells::Bool(a) => return if a.value(row) { "t" } else { "f" },
            Cells::Text(a) | Cells::NumericText(a) => return a.value(row),
            Cells::Int2(a) => write_integer(scratch, i64::from(a.value(row))),
            Cells::Int4(a) => write_integer(scratch, i64::from(a.value(row))),
            Cells::Int8(a) => write_integer(scratch, a.value(row)),
            Cells::Float4(a) => text::write_f32(scratch, a.value(row)),
            Cells::Float8(a) => text::write_f64(scratch, a.value(row)),
            Cells::Decimal(a, scale) => match a.value(row) {
                DECIMAL_NAN => scratch.push_str("NaN"),
                unscaled => numeric::write_scaled(scratch, unscaled, *scale),
            },
            Cells::Date(a) => datetime::write_date(scratch, a.value(row)),
            Cells::Time(a) => datetime::write_time(scratch, a.value(row)),
            Cells::Timestamp(a) => datetime::write_timestamp(scratch, a.value(row)),
            Cells::TimestampTz(a) => datetime::write_timestamptz(scratch, a.value(row), self.writer.zone()),
            Cells::Interval(a) => {
                let v = a.value(row);
                let interval =
                    Interval { months: v.months, days: v.days, microseconds: v.nanoseconds / 1000 };
                self.writer.write(scratch, &Value::Interval(interval));
            }
            Cells::Uuid(a) => write_uuid(scratch, a.value(row)),
            Cells::Bytea(a) => {
                scratch.push_str("\\x");
                a.value(row).iter().for_each(|byte| push_hex(scratch, *byte));
            }
        }
        scratch
    }

    /// Appends the binary form of a cell that is not NULL.
    fn binary(&self, row: usize, scratch: &mut String, out: &mut BytesMut) {
        match &self.cells {
            Cells::Bool(a) => out.put_u8(u8::from(a.value(row))),
            Cells::Int2(a) => out.put_i16(a.value(row)),
            Cells::Int4(a) => out.put_i32(a.value(row)),
            Cells::Int8(a) => out.put_i64(a.value(row)),
            Cells::Float4(a) => out.put_f32(a.value(row)),
            Cells::Float8(a) => out.put_f64(a.value(row)),
            Cells::Decimal(..) | Cells::NumericText(_) => {
                super::numeric::encode(self.text(row, scratch), out)
            }
            Cells::Text(a) => out.put_slice(a.value(row).as_bytes()),
            Cells::Date(a) => out.put_i32(match a.value(row) {
                infinite @ (i32::MIN | i32::MAX) => infinite,
                days => days - EPOCH_DAYS,
            }),
            Cells::Time(a) => out.put_i64(a.value(row)),
            Cells::Timestamp(a) | Cells::TimestampTz(a) => out.put_i64(match a.value(row) {
                infinite @ (i64::MIN | i64::MAX) => infinite,
                micros => micros.wrapping_sub(EPOCH_MICROS),
            }),
            Cells::Interval(a) => {
                let v = a.value(row);
                out.put_i64(v.nanoseconds / 1000);
                out.put_i32(v.days);
                out.put_i32(v.months);
            }
            Cells::Uuid(a) => out.put_slice(a.value(row)),
            Cells::Bytea(a) => out.put_slice(a.value(row)),
        }
    }
}

/// Makes DataRow messages of batches.
pub struct RowEncoder {
    columns: Vec<(Type, Format)>,
    writer: TextWriter,
    scratch: String,
}

impl RowEncoder {
    /// An encoder for rows of these types in these formats.
    pub fn new(types: impl IntoIterator<Item = Type>, formats: &[Format], writer: TextWriter) -> RowEncoder {
        let formats = formats.iter().copied().chain(std::iter::repeat(Format::Text));
        RowEncoder { columns: types.into_iter().zip(formats).collect(), writer, scratch: String::new() }
    }

    /// Appends a DataRow message for each row of `batch` from `first` on, until `out` holds at least `enough` bytes or
    /// `most` rows are written; gives the number of rows written.
    ///
    /// # Errors
    /// XX000 when the batch has other columns than the encoder, 54000 for a row longer than a message can be.
    pub fn encode(
        &mut self,
        batch: &RecordBatch,
        first: usize,
        most: usize,
        enough: usize,
        out: &mut BytesMut,
    ) -> Result<usize> {
        if batch.num_columns() != self.columns.len() {
            return Err(SqlError::internal(format!(
                "a result of {} columns came with {}",
                self.columns.len(),
                batch.num_columns()
            )));
        }
        let columns = batch
            .columns()
            .iter()
            .zip(&self.columns)
            .map(|(array, (ty, format))| Ok((Column::new(array.as_ref(), ty, self.writer)?, *format)))
            .collect::<Result<Vec<_>>>()?;
        let last = batch.num_rows().min(first.saturating_add(most));
        for row in first..last {
            if out.len() >= enough {
                return Ok(row - first);
            }
            let start = out.len();
            out.put_u8(b'D');
            out.put_u32(0);
            out.put_u16(columns.len() as u16);
            for (column, format) in &columns {
                if column.is_null(row) {
                    out.put_i32(-1);
                    continue;
                }
                let at = out.len();
                out.put_u32(0);
                match format {
                    Format::Text => out.put_slice(column.text(row, &mut self.scratch).as_bytes()),
                    Format::Binary => column.binary(row, &mut self.scratch, out),
                }
                let length = (out.len() - at - 4) as u32;
                out[at..at + 4].copy_from_slice(&length.to_be_bytes());
            }
            let length = out.len() - start - 1;
            if length > i32::MAX as usize {
                out.truncate(start);
                return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "row is too long to be sent"));
            }
            out[start + 1..start + 5].copy_from_slice(&(length as u32).to_be_bytes());
        }
        Ok(last - first)
    }
}

fn write_integer(out: &mut String, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push('-');
    }
    out.extend(digits[at..].iter().map(|d| char::from(*d)));
}

fn push_hex(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn write_uuid(out: &mut String, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        push_hex(out, *byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn integers_are_written_as_the_standard_library_does(value: i64) {
            let mut text = String::new();
            write_integer(&mut text, value);
            proptest::prop_assert_eq!(text, value.to_string());
        }
    }
}
