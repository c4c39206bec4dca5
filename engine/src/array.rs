//! Between values and Arrow arrays.

use std::sync::Arc;

use arrow::{
    array::{
        Array, ArrayBuilder as _, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Date32Array,
        Date32Builder, Decimal128Builder, FixedSizeBinaryBuilder, Float32Array, Float32Builder, Float64Array,
        Float64Builder, GenericByteArray, Int16Array, Int16Builder, Int32Array, Int32Builder, Int64Array,
        Int64Builder, IntervalMonthDayNanoBuilder, StringBuilder, Time64MicrosecondBuilder,
        TimestampMicrosecondBuilder,
    },
    datatypes::{
        ByteArrayType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
        Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, Time64MicrosecondType,
        TimestampMicrosecondType,
    },
    record_batch::RecordBatch,
};

use crate::{
    batch_size::{BATCH_BYTES, check_value},
    datetime,
    error::{Result, SqlError, SqlState},
    expr::{EvalContext, Row},
    interval::Interval,
    numeric::{self, Numeric},
    text::{self, TextWriter},
    types::Type,
    value::Value,
};

/// As many rows of one value, if it is a number or a date: without what a builder takes, for operations on single rows.
pub(crate) fn repeated(value: &Value, ty: &Type, rows: usize) -> Option<ArrayRef> {
    Some(match (value, ty) {
        (Value::Int2(value), Type::Int2) => Arc::new(Int16Array::from_value(*value, rows)),
        (Value::Int4(value), Type::Int4) => Arc::new(Int32Array::from_value(*value, rows)),
        (Value::Int8(value), Type::Int8) => Arc::new(Int64Array::from_value(*value, rows)),
        (Value::Float4(value), Type::Float4) => Arc::new(Float32Array::from_value(*value, rows)),
        (Value::Float8(value), Type::Float8) => Arc::new(Float64Array::from_value(*value, rows)),
        (Value::Date(value), Type::Date) => Arc::new(Date32Array::from_value(*value, rows)),
        _ => return None,
    })
}

/// Bytes that the cells of a batch take: of a slice, those of its own rows only, though it keeps the whole alive.
pub fn size_of_cells(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|array| size_of_array(array) as u64).sum()
}

fn size_of_array(array: &ArrayRef) -> usize {
    let rows = array.len();
    let nulls = if array.null_count() > 0 { rows.div_ceil(8) } else { 0 };
    let values = match array.data_type() {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8 => size_of_strings(array.as_string::<i32>()),
        DataType::Binary => size_of_strings(array.as_binary::<i32>()),
        DataType::FixedSizeBinary(width) => rows * *width as usize,
        other => match other.primitive_width() {
            Some(width) => rows * width,
            // Slower, with allocations.
            None => return array.to_data().get_slice_memory_size().unwrap_or(0),
        },
    };
    values + nulls
}

fn size_of_strings<T: ByteArrayType<Offset = i32>>(array: &GenericByteArray<T>) -> usize {
    let offsets = array.value_offsets();
    let first_and_last = offsets.first().zip(offsets.last());
    size_of_val(offsets) + first_and_last.map_or(0, |(first, last)| (last - first) as usize)
}

/// The value of one cell of an array in `ty`'s Arrow form.
///
/// # Panics
/// When the array has another form, or no such row.
pub fn arrow_cell_to_value(array: &dyn Array, row: usize, ty: &Type) -> Value {
    if array.is_null(row) {
        return Value::Null;
    }
    match ty {
        Type::Bool => Value::Bool(array.as_boolean().value(row)),
        Type::Int2 => Value::Int2(array.as_primitive::<Int16Type>().value(row)),
        Type::Int4 => Value::Int4(array.as_primitive::<Int32Type>().value(row)),
        Type::Int8 => Value::Int8(array.as_primitive::<Int64Type>().value(row)),
        Type::Float4 => Value::Float4(array.as_primitive::<Float32Type>().value(row)),
        Type::Float8 => Value::Float8(array.as_primitive::<Float64Type>().value(row)),
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            let unscaled = array.as_primitive::<Decimal128Type>().value(row);
            Value::Numeric(decimal_cell(unscaled, (*scale).into()))
        }
        Type::Numeric(_) => {
            // What is stored was written by this crate; anything else reads as NaN rather than as a wrong number.
            Value::Numeric(Numeric::parse(array.as_string::<i32>().value(row)).unwrap_or(Numeric::NaN))
        }
        Type::Text | Type::Varchar(_) | Type::Char(_) => Value::text(array.as_string::<i32>().value(row)),
        Type::Date => Value::Date(array.as_primitive::<Date32Type>().value(row)),
        Type::Time => Value::Time(array.as_primitive::<Time64MicrosecondType>().value(row)),
        Type::Timestamp => Value::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row)),
        Type::TimestampTz => Value::TimestampTz(array.as_primitive::<TimestampMicrosecondType>().value(row)),
        Type::Interval => {
            let parts = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            Value::Interval(Interval {
                months: parts.months,
                days: parts.days,
                microseconds: parts.nanoseconds / 1000,
            })
        }
        Type::Uuid => {
            let mut bytes = [0u8; 16];
            bytes.copy_from_slice(array.as_fixed_size_binary().value(row));
            Value::Uuid(bytes)
        }
        Type::Bytea => Value::Bytea(array.as_binary::<i32>().value(row).into()),
    }
}

/// The unscaled value that stands for NaN in a `Decimal128` column: no number of at most 38 digits has it.
pub const DECIMAL_NAN: i128 = i128::MIN;

/// The numeric of a `Decimal128` cell.
pub fn decimal_cell(unscaled: i128, scale: u32) -> Numeric {
    if unscaled == DECIMAL_NAN { Numeric::NaN } else { Numeric::new(unscaled, scale) }
}

/// Appends the text of one cell, as the type's output function gives it, without making a [`Value`]; nothing for NULL.
///
/// # Panics
/// As [`arrow_cell_to_value`].
pub fn write_arrow_cell(out: &mut String, array: &dyn Array, row: usize, ty: &Type, writer: &TextWriter) {
    if array.is_null(row) {
        return;
    }
    match ty {
        Type::Bool => out.push(if array.as_boolean().value(row) { 't' } else { 'f' }),
        Type::Int2 => text::write_i64(out, array.as_primitive::<Int16Type>().value(row).into()),
        Type::Int4 => text::write_i64(out, array.as_primitive::<Int32Type>().value(row).into()),
        Type::Int8 => text::write_i64(out, array.as_primitive::<Int64Type>().value(row)),
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            match array.as_primitive::<Decimal128Type>().value(row) {
                DECIMAL_NAN => out.push_str("NaN"),
                unscaled => numeric::write_scaled(out, unscaled, (*scale).into()),
            }
        }
        Type::Numeric(_) | Type::Text | Type::Varchar(_) | Type::Char(_) => {
            out.push_str(array.as_string::<i32>().value(row))
        }
        Type::Uuid => text::write_uuid(out, array.as_fixed_size_binary().value(row)),
        Type::Bytea => text::write_bytea(out, array.as_binary::<i32>().value(row)),
        _ => writer.write(out, &arrow_cell_to_value(array, row, ty)),
    }
}

/// An array of values in `ty`'s Arrow form. XX000 when a value is not of the type, 22003 when it does not fit.
pub fn values_to_array(values: &[Value], ty: &Type) -> Result<ArrayRef> {
    let mut builder = ColumnBuilder::with_capacity(ty, values.len());
    for value in values {
        builder.append(value)?;
    }
    Ok(builder.finish())
}

/// An array that repeats one value.
pub fn repeat_value(value: &Value, ty: &Type, rows: usize) -> Result<ArrayRef> {
    let mut builder = ColumnBuilder::with_capacity(ty, rows);
    for _ in 0..rows {
        builder.append(value)?;
    }
    Ok(builder.finish())
}

/// One row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow<'a> {
    batch: &'a RecordBatch,
    row: usize,
}

impl<'a> BatchRow<'a> {
    /// Row `row` of `batch`.
    pub fn new(batch: &'a RecordBatch, row: usize) -> Self {
        BatchRow { batch, row }
    }
}

impl Row for BatchRow<'_> {
    fn value(&self, index: usize, ty: &Type) -> Value {
        arrow_cell_to_value(self.batch.column(index), self.row, ty)
    }
}

enum Builder {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Decimal(Decimal128Builder),
    Text(StringBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder),
    Interval(IntervalMonthDayNanoBuilder),
    Uuid(FixedSizeBinaryBuilder),
    Bytea(BinaryBuilder),
}

/// Builds a column of one type from values or from text.
pub struct ColumnBuilder {
    ty: Type,
    builder: Builder,
    scratch: String,
    room: Room,
}

/// How many bytes of strings an array takes.
#[derive(Clone, Copy)]
enum Room {
    /// As many as Arrow's offsets can count.
    Most,
    /// As many as a batch should have, or one string.
    Batch,
}

impl Room {
    /// Whether another string fits behind `rows` strings of `held` bytes.
    fn check(self, rows: usize, held: usize, more: usize) -> Result<()> {
        check_value(more)?;
        match self {
            Room::Batch if rows > 0 && held + more > BATCH_BYTES => Err(SqlError::batch_full()),
            Room::Most if held + more > i32::MAX as usize => {
                Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "a column of one batch is longer than 2 GB"))
            }
            _ => Ok(()),
        }
    }

    fn append_text(self, builder: &mut StringBuilder, text: &str) -> Result<()> {
        self.check(builder.len(), builder.values_slice().len(), text.len())?;
        builder.append_value(text);
        Ok(())
    }

    fn append_bytes(self, builder: &mut BinaryBuilder, bytes: &[u8]) -> Result<()> {
        self.check(builder.len(), builder.values_slice().len(), bytes.len())?;
        builder.append_value(bytes);
        Ok(())
    }
}

/// A decimal of at most 38 digits at exactly `scale`, rounded from its plain text form; `None` for anything unusual.
fn fast_decimal(text: &str, precision: u16, scale: u16) -> Option<i128> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || digits.len() > 37 {
        return None;
    }
    let (mut value, mut fraction, mut seen_point, mut any) = (0i128, 0u32, false, false);
    let mut round_up = false;
    for &byte in digits {
        match byte {
            b'0'..=b'9' => {
                any = true;
                if seen_point {
                    fraction += 1;
                    if fraction > u32::from(scale) {
                        if fraction == u32::from(scale) + 1 {
                            round_up = byte >= b'5';
                        }
                        continue;
                    }
                }
                value = value * 10 + i128::from(byte - b'0');
            }
            b'.' if !seen_point => seen_point = true,
            _ => return None,
        }
    }
    if !any {
        return None;
    }
    let missing = u32::from(scale).saturating_sub(fraction);
    let value = value.checked_mul(numeric::power_of_ten(missing)?)? + i128::from(round_up);
    if value >= numeric::power_of_ten(precision.into())? {
        return None;
    }
    Some(if negative { -value } else { value })
}

impl ColumnBuilder {
    /// An empty column.
    pub fn new(ty: &Type) -> ColumnBuilder {
        ColumnBuilder::with_capacity(ty, 0)
    }

    /// An empty column with room for `rows` rows.
    pub fn with_capacity(ty: &Type, rows: usize) -> ColumnBuilder {
        let builder = match ty {
            Type::Bool => Builder::Bool(BooleanBuilder::with_capacity(rows)),
            Type::Int2 => Builder::Int2(Int16Builder::with_capacity(rows)),
            Type::Int4 => Builder::Int4(Int32Builder::with_capacity(rows)),
            Type::Int8 => Builder::Int8(Int64Builder::with_capacity(rows)),
            Type::Float4 => Builder::Float4(Float32Builder::with_capacity(rows)),
            Type::Float8 => Builder::Float8(Float64Builder::with_capacity(rows)),
            Type::Numeric(Some((precision, _))) if *precision <= 38 => {
                Builder::Decimal(Decimal128Builder::with_capacity(rows).with_data_type(ty.arrow()))
            }
            Type::Numeric(_) | Type::Text | Type::Varchar(_) | Type::Char(_) => {
                Builder::Text(StringBuilder::with_capacity(rows, rows * 8))
            }
            Type::Date => Builder::Date(Date32Builder::with_capacity(rows)),
            Type::Time => Builder::Time(Time64MicrosecondBuilder::with_capacity(rows)),
            Type::Timestamp | Type::TimestampTz => Builder::Timestamp(
                TimestampMicrosecondBuilder::with_capacity(rows).with_data_type(ty.arrow()),
            ),
            Type::Interval => Builder::Interval(IntervalMonthDayNanoBuilder::with_capacity(rows)),
            Type::Uuid => Builder::Uuid(FixedSizeBinaryBuilder::with_capacity(rows, 16)),
            Type::Bytea => Builder::Bytea(BinaryBuilder::with_capacity(rows, rows * 8)),
        };
        ColumnBuilder { ty: ty.clone(), builder, scratch: String::new(), room: Room::Most }
    }

    /// An empty column that takes no more rows when it is as large as a batch should be.
    pub(crate) fn of_batch(ty: &Type, rows: usize) -> ColumnBuilder {
        ColumnBuilder { room: Room::Batch, ..ColumnBuilder::with_capacity(ty, rows) }
    }

    /// The column's type.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// Number of rows so far.
    pub fn len(&self) -> usize {
        match &self.builder {
            Builder::Bool(b) => b.len(),
            Builder::Int2(b) => b.len(),
            Builder::Int4(b) => b.len(),
            Builder::Int8(b) => b.len(),
            Builder::Float4(b) => b.len(),
            Builder::Float8(b) => b.len(),
            Builder::Decimal(b) => b.len(),
            Builder::Text(b) => b.len(),
            Builder::Date(b) => b.len(),
            Builder::Time(b) => b.len(),
            Builder::Timestamp(b) => b.len(),
            Builder::Interval(b) => b.len(),
            Builder::Uuid(b) => b.len(),
            Builder::Bytea(b) => b.len(),
        }
    }

    /// Whether there is no row yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends NULL.
    pub fn append_null(&mut self) {
        match &mut self.builder {
            Builder::Bool(b) => b.append_null(),
            Builder::Int2(b) => b.append_null(),
            Builder::Int4(b) => b.append_null(),
            Builder::Int8(b) => b.append_null(),
            Builder::Float4(b) => b.append_null(),
            Builder::Float8(b) => b.append_null(),
            Builder::Decimal(b) => b.append_null(),
            Builder::Text(b) => b.append_null(),
            Builder::Date(b) => b.append_null(),
            Builder::Time(b) => b.append_null(),
            Builder::Timestamp(b) => b.append_null(),
            Builder::Interval(b) => b.append_null(),
            Builder::Uuid(b) => b.append_null(),
            Builder::Bytea(b) => b.append_null(),
        }
    }

    /// Appends a value of the column's type. Modifiers are those of the value's last cast: only the limits of the Arrow
    /// form are checked here.
    pub fn append(&mut self, value: &Value) -> Result<()> {
        match (&mut self.builder, value) {
            (_, Value::Null) => self.append_null(),
            (Builder::Bool(b), Value::Bool(v)) => b.append_value(*v),
            (Builder::Int2(b), Value::Int2(v)) => b.append_value(*v),
            (Builder::Int4(b), Value::Int4(v)) => b.append_value(*v),
            (Builder::Int8(b), Value::Int8(v)) => b.append_value(*v),
            (Builder::Float4(b), Value::Float4(v)) => b.append_value(*v),
            (Builder::Float8(b), Value::Float8(v)) => b.append_value(*v),
            (Builder::Decimal(b), Value::Numeric(v)) => {
                let Type::Numeric(Some((precision, scale))) = self.ty else {
                    return Err(SqlError::internal("a decimal column without precision"));
                };
                b.append_value(decimal_of(v, precision, scale)?)
            }
            (Builder::Text(b), Value::Numeric(v)) => {
                self.scratch.clear();
                v.write(&mut self.scratch);
                self.room.append_text(b, &self.scratch)?;
            }
            (Builder::Text(b), Value::Text(v)) => self.room.append_text(b, v)?,
            (Builder::Date(b), Value::Date(v)) => b.append_value(*v),
            (Builder::Time(b), Value::Time(v)) => b.append_value(*v),
            (Builder::Timestamp(b), Value::Timestamp(v) | Value::TimestampTz(v)) => b.append_value(*v),
            (Builder::Interval(b), Value::Interval(v)) => b.append_value(interval_cell(v)?),
            (Builder::Uuid(b), Value::Uuid(v)) => b.append_value(v).map_err(internal)?,
            (Builder::Bytea(b), Value::Bytea(v)) => self.room.append_bytes(b, v)?,
            _ => {
                return Err(SqlError::internal(format!("a value that is no {} in such a column", self.ty)));
            }
        }
        Ok(())
    }

    /// Appends a value in its text form, as the type's input function reads it and as a column of the type stores it.
    pub fn append_text(&mut self, input: &str, context: &EvalContext) -> Result<()> {
        match (&mut self.builder, &self.ty) {
            (Builder::Bool(b), _) => match input {
                "t" => b.append_value(true),
                "f" => b.append_value(false),
                _ => b.append_value(text::parse_bool(input)?),
            },
            (Builder::Int2(b), ty) => {
                b.append_value(text::parse_integer(input, ty, i16::MIN.into(), i16::MAX.into())? as i16)
            }
            (Builder::Int4(b), ty) => {
                b.append_value(text::parse_integer(input, ty, i32::MIN.into(), i32::MAX.into())? as i32)
            }
            (Builder::Int8(b), ty) => b.append_value(text::parse_integer(input, ty, i64::MIN, i64::MAX)?),
            (Builder::Float4(b), _) => b.append_value(text::parse_f32(input)?),
            (Builder::Float8(b), _) => b.append_value(text::parse_f64(input)?),
            (Builder::Decimal(b), Type::Numeric(Some((precision, scale)))) => {
                match fast_decimal(input, *precision, *scale) {
                    Some(unscaled) => b.append_value(unscaled),
                    None => b.append_value(decimal_of(&Numeric::parse(input)?, *precision, *scale)?),
                }
            }
            (Builder::Text(b), Type::Text | Type::Varchar(None)) => self.room.append_text(b, input)?,
            (Builder::Text(b), ty @ (Type::Varchar(_) | Type::Char(_))) => {
                let (kept, blanks) = text::fit_string(input, ty, false)?;
                if blanks == 0 {
                    self.room.append_text(b, kept)?;
                } else {
                    self.scratch.clear();
                    self.scratch.push_str(kept);
                    self.scratch.extend(std::iter::repeat_n(' ', blanks));
                    self.room.append_text(b, &self.scratch)?;
                }
            }
            (Builder::Date(b), _) => b.append_value(datetime::parse_date(input, context)?),
            (Builder::Time(b), _) => b.append_value(datetime::parse_time(input, context)?),
            (Builder::Timestamp(b), Type::TimestampTz) => {
                b.append_value(datetime::parse_timestamptz(input, context)?)
            }
            (Builder::Timestamp(b), _) => b.append_value(datetime::parse_timestamp(input, context)?),
            (Builder::Uuid(b), _) => b.append_value(text::parse_uuid(input)?).map_err(internal)?,
            (Builder::Bytea(b), _) => self.room.append_bytes(b, &text::parse_bytea(input)?)?,
            (_, ty) => {
                let value = text::parse_value(input, ty, context)?;
                self.append(&value)?;
            }
        }
        Ok(())
    }

    /// The column; the builder is empty afterwards.
    pub fn finish(&mut self) -> ArrayRef {
        match &mut self.builder {
            Builder::Bool(b) => Arc::new(b.finish()),
            Builder::Int2(b) => Arc::new(b.finish()),
            Builder::Int4(b) => Arc::new(b.finish()),
            Builder::Int8(b) => Arc::new(b.finish()),
            Builder::Float4(b) => Arc::new(b.finish()),
            Builder::Float8(b) => Arc::new(b.finish()),
            Builder::Decimal(b) => Arc::new(b.finish()),
            Builder::Text(b) => Arc::new(b.finish()),
            Builder::Date(b) => Arc::new(b.finish()),
            Builder::Time(b) => Arc::new(b.finish()),
            Builder::Timestamp(b) => Arc::new(b.finish()),
            Builder::Interval(b) => Arc::new(b.finish()),
            Builder::Uuid(b) => Arc::new(b.finish()),
            Builder::Bytea(b) => Arc::new(b.finish()),
        }
    }
}

fn internal(error: arrow::error::ArrowError) -> SqlError {
    SqlError::internal(error.to_string())
}

fn decimal_of(number: &Numeric, precision: u16, scale: u16) -> Result<i128> {
    if number.is_nan() {
        return Ok(DECIMAL_NAN);
    }
    let fitted = number.fits(precision, scale)?;
    fitted.to_i128_at_scale(scale.into()).ok_or_else(|| numeric::field_overflow(precision, scale))
}

fn interval_cell(interval: &Interval) -> Result<IntervalMonthDayNano> {
    // Nanoseconds reach 292 years.
    let nanoseconds = interval.microseconds.checked_mul(1000).ok_or_else(crate::interval::out_of_range)?;
    Ok(IntervalMonthDayNano::new(interval.months, interval.days, nanoseconds))
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, BooleanArray, Decimal128Array, Int16Array, StringArray};

    use super::*;

    #[test]
    fn cells_are_as_large_as_arrow_says() {
        let every_third = |row: usize| (!row.is_multiple_of(3)).then_some(row);
        let rows = || (0..100).map(every_third);
        let arrays: [ArrayRef; 6] = [
            Arc::new(Int16Array::from_iter_values(0..100)),
            Arc::new(Decimal128Array::from_iter(rows().map(|row| row.map(|row| row as i128)))),
            Arc::new(BooleanArray::from_iter(rows().map(|row| row.map(|row| row % 2 == 0)))),
            Arc::new(StringArray::from_iter(rows().map(|row| row.map(|row| "x".repeat(row))))),
            Arc::new(BinaryArray::from_iter_values((0..100).map(|row| vec![0; row]))),
            values_to_array(&vec![Value::Uuid([1; 16]); 100], &Type::Uuid).expect("all fit"),
        ];
        for (array, first) in arrays.iter().flat_map(|array| [(array, 0), (array, 41)]) {
            let slice = array.slice(first, 30);
            let wanted = slice.to_data().get_slice_memory_size().expect("a size");
            assert_eq!(size_of_array(&slice), wanted, "{} from {first}", array.data_type());
        }
    }

    #[test]
    fn strings_have_limits_alone_and_together() {
        let code = |room: Room, rows, held, more| room.check(rows, held, more).map_err(|error| error.code);
        let (large, too_large) = (1 << 29, 1 << 30);
        assert_eq!(code(Room::Batch, 0, 0, large), Ok(()));
        assert_eq!(code(Room::Batch, 0, 0, too_large), Err(SqlState::LIMIT_EXCEEDED));
        assert_eq!(code(Room::Most, 9, 9, too_large), Err(SqlState::LIMIT_EXCEEDED));
        assert_eq!(code(Room::Batch, 1, 9, large), Err(SqlState::BATCH_FULL));
        assert_eq!(code(Room::Batch, 1, 9, 100), Ok(()));
        assert_eq!(code(Room::Most, 3, 3 * large, large - 1), Ok(()));
        assert_eq!(code(Room::Most, 3, 3 * large, large), Err(SqlState::LIMIT_EXCEEDED));
    }
}
