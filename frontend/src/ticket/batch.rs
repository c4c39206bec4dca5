//! Rows as Arrow batches, in the layout that the engine uses for the table's types.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, FixedSizeBinaryBuilder,
        Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder, RecordBatch, StringBuilder,
        Time64MicrosecondBuilder, TimestampMicrosecondBuilder,
    },
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use carousel_engine::Type;

use super::{COLUMNS, FieldVisitor, Ticket};

/// The Arrow schema of [`record_batch`].
pub fn arrow_schema() -> SchemaRef {
    Arc::new(Schema::new(
        COLUMNS
            .iter()
            .map(|(name, ty, not_null)| Field::new(*name, ty.arrow(), !not_null))
            .collect::<Vec<_>>(),
    ))
}

/// Rows as one batch.
pub fn record_batch(tickets: &[Ticket]) -> RecordBatch {
    let mut builders = Builders {
        columns: COLUMNS.iter().map(|column| Builder::new(&column.1, tickets.len())).collect(),
        next: 0,
    };
    for ticket in tickets {
        builders.next = 0;
        ticket.visit(&mut builders);
    }
    let arrays = builders.columns.into_iter().map(Builder::finish).collect();
    RecordBatch::try_new(arrow_schema(), arrays).expect("every row has a field for every column")
}

enum Builder {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Numeric(Decimal128Builder),
    Text(StringBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder),
    Uuid(FixedSizeBinaryBuilder),
    Bytea(BinaryBuilder),
}

impl Builder {
    fn new(ty: &Type, rows: usize) -> Builder {
        match ty.arrow() {
            DataType::Boolean => Builder::Bool(BooleanBuilder::with_capacity(rows)),
            DataType::Int16 => Builder::Int2(Int16Builder::with_capacity(rows)),
            DataType::Int32 => Builder::Int4(Int32Builder::with_capacity(rows)),
            DataType::Int64 => Builder::Int8(Int64Builder::with_capacity(rows)),
            DataType::Float32 => Builder::Float4(Float32Builder::with_capacity(rows)),
            DataType::Float64 => Builder::Float8(Float64Builder::with_capacity(rows)),
            decimal @ DataType::Decimal128(..) => {
                Builder::Numeric(Decimal128Builder::with_capacity(rows).with_data_type(decimal))
            }
            DataType::Utf8 => Builder::Text(StringBuilder::with_capacity(rows, rows * 8)),
            DataType::Date32 => Builder::Date(Date32Builder::with_capacity(rows)),
            DataType::Time64(_) => Builder::Time(Time64MicrosecondBuilder::with_capacity(rows)),
            timestamp @ DataType::Timestamp(..) => {
                Builder::Timestamp(TimestampMicrosecondBuilder::with_capacity(rows).with_data_type(timestamp))
            }
            DataType::FixedSizeBinary(width) => {
                Builder::Uuid(FixedSizeBinaryBuilder::with_capacity(rows, width))
            }
            DataType::Binary => Builder::Bytea(BinaryBuilder::new()),
            other => unreachable!("no column of the table is laid out as {other}"),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Builder::Bool(mut builder) => Arc::new(builder.finish()),
            Builder::Int2(mut builder) => Arc::new(builder.finish()),
            Builder::Int4(mut builder) => Arc::new(builder.finish()),
            Builder::Int8(mut builder) => Arc::new(builder.finish()),
            Builder::Float4(mut builder) => Arc::new(builder.finish()),
            Builder::Float8(mut builder) => Arc::new(builder.finish()),
            Builder::Numeric(mut builder) => Arc::new(builder.finish()),
            Builder::Text(mut builder) => Arc::new(builder.finish()),
            Builder::Date(mut builder) => Arc::new(builder.finish()),
            Builder::Time(mut builder) => Arc::new(builder.finish()),
            Builder::Timestamp(mut builder) => Arc::new(builder.finish()),
            Builder::Uuid(mut builder) => Arc::new(builder.finish()),
            Builder::Bytea(mut builder) => Arc::new(builder.finish()),
        }
    }
}

/// The builders of all columns and which of them the next field goes to.
struct Builders {
    columns: Vec<Builder>,
    next: usize,
}

/// Appends to the builder of the next column, which must be of the given kind: `visit` and `COLUMNS` agree.
macro_rules! append {
    ($self:ident, $kind:ident, $builder:ident => $append:expr) => {{
        let column = $self.next;
        $self.next += 1;
        match &mut $self.columns[column] {
            Builder::$kind($builder) => $append,
            _ => unreachable!("column {} is not {}", COLUMNS[column].0, stringify!($kind)),
        }
    }};
}

impl FieldVisitor for Builders {
    fn boolean(&mut self, value: bool) {
        append!(self, Bool, b => b.append_value(value));
    }

    fn int2(&mut self, value: Option<i16>) {
        append!(self, Int2, b => b.append_option(value));
    }

    fn int4(&mut self, value: i32) {
        append!(self, Int4, b => b.append_value(value));
    }

    fn int8(&mut self, value: i64) {
        append!(self, Int8, b => b.append_value(value));
    }

    fn real_tenths(&mut self, tenths: i32) {
        append!(self, Float4, b => b.append_value(tenths as f32 / 10.0));
    }

    fn double_tenths(&mut self, tenths: i64) {
        append!(self, Float8, b => b.append_value(tenths as f64 / 10.0));
    }

    fn cents(&mut self, cents: i64) {
        append!(self, Numeric, b => b.append_value(i128::from(cents)));
    }

    fn text(&mut self, value: Option<&str>) {
        append!(self, Text, b => b.append_option(value));
    }

    fn date(&mut self, days: Option<i32>) {
        append!(self, Date, b => b.append_option(days));
    }

    fn time(&mut self, seconds: i32) {
        append!(self, Time, b => b.append_value(i64::from(seconds) * 1_000_000));
    }

    fn timestamp(&mut self, seconds: i64) {
        append!(self, Timestamp, b => b.append_value(seconds * 1_000_000));
    }

    fn timestamptz(&mut self, seconds: i64) {
        append!(self, Timestamp, b => b.append_value(seconds * 1_000_000));
    }

    fn uuid(&mut self, value: &[u8; 16]) {
        append!(self, Uuid, b => b.append_value(value).expect("a uuid has 16 bytes"));
    }

    fn bytea(&mut self, value: Option<&[u8]>) {
        append!(self, Bytea, b => b.append_option(value));
    }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{Array, AsArray, StringArray},
        compute::cast,
    };

    use super::*;
    use crate::ticket::{block, write_csv};

    /// A csv column read back with Arrow's own parsers.
    fn parse(fields: &[Option<&str>], to: &DataType) -> ArrayRef {
        let hex = |text: &str| -> Vec<u8> {
            let digits: String = text.trim_start_matches("\\x").replace('-', "");
            (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
        };
        match to {
            DataType::Binary => {
                let mut builder = BinaryBuilder::new();
                fields.iter().for_each(|field| builder.append_option(field.map(hex)));
                Arc::new(builder.finish())
            }
            DataType::FixedSizeBinary(16) => {
                let mut builder = FixedSizeBinaryBuilder::new(16);
                fields.iter().for_each(|field| builder.append_value(hex(field.unwrap())).unwrap());
                Arc::new(builder.finish())
            }
            _ => cast(&StringArray::from(fields.to_vec()), to).unwrap(),
        }
    }

    #[test]
    fn csv_and_arrow_say_the_same() {
        let tickets = block(9, 1);
        let batch = record_batch(&tickets);
        let mut csv = Vec::new();
        write_csv(&tickets, &mut csv);
        let csv = String::from_utf8(csv).unwrap();
        let rows: Vec<Vec<Option<&str>>> = csv
            .lines()
            .map(|line| line.split(',').map(|field| (!field.is_empty()).then_some(field)).collect())
            .collect();
        assert_eq!(rows.len(), batch.num_rows());
        for (index, (name, ty, not_null)) in COLUMNS.iter().enumerate() {
            let fields: Vec<Option<&str>> = rows.iter().map(|row| row[index]).collect();
            let parsed = parse(&fields, &ty.arrow());
            assert_eq!(&parsed, batch.column(index), "{name}");
            assert_eq!(parsed.null_count() > 0, !not_null, "nulls of {name}");
        }
    }

    #[test]
    fn strings_fit_their_types() {
        let batch = record_batch(&block(3, 0));
        for (index, (name, ty, _)) in COLUMNS.iter().enumerate() {
            let (least, most) = match ty {
                Type::Char(n) => (*n as usize, *n as usize),
                Type::Varchar(Some(n)) => (1, *n as usize),
                _ => continue,
            };
            for value in batch.column(index).as_string::<i32>().iter().flatten() {
                assert!((least..=most).contains(&value.chars().count()), "{name} holds {value:?}");
            }
        }
    }
}
