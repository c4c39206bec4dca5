//! Canonical byte forms of keys: equal values give equal bytes, whatever their Arrow layout. Each form says at its
//! start where it ends, so that keys of several columns that differ have different forms, too.

use arrow::{
    array::{Array, AsArray},
    datatypes::{
        Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
        Time64MicrosecondType, TimestampMicrosecondType,
    },
};
use bigdecimal::BigDecimal;

use crate::{
    array::DECIMAL_NAN,
    column::{Physical, SegmentColumn, decimal, int_to_float, physical},
    numeric::Numeric,
    types::Type,
    value::Value,
};

/// Room for the canonical form of most keys.
pub(crate) const KEY_BYTES: usize = 32;

const NULL: u8 = 0;
const INTEGER: u8 = 1;
const FLOAT: u8 = 2;
const NUMERIC: u8 = 3;
const BYTES: u8 = 4;
const LARGE_NUMERIC: u8 = 5;
const NOT_A_NUMBER: u8 = 6;
const INTERVAL: u8 = 7;

/// Whether trailing blanks of strings count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blanks {
    /// Trailing blanks are left out of every string, so that `char(n)` values meet whatever their padding. Different
    /// strings may then have the same form: good for placement, not for identity.
    Trimmed,
    /// Exact for `text` and `varchar`; `char(n)` is still trimmed.
    ByType,
}

fn write_integer(out: &mut Vec<u8>, value: i64) {
    out.push(INTEGER);
    out.extend_from_slice(&value.to_le_bytes());
}

fn write_float(out: &mut Vec<u8>, value: f64) {
    let canonical = if value.is_nan() {
        f64::NAN
    } else if value == 0.0 {
        0.0
    } else {
        value
    };
    out.push(FLOAT);
    out.extend_from_slice(&canonical.to_bits().to_le_bytes());
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(BYTES);
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn write_text(out: &mut Vec<u8>, text: &str, trimmed: bool) {
    write_bytes(out, if trimmed { text.trim_end_matches(' ') } else { text }.as_bytes());
}

/// A stored decimal, of which one stands for NaN.
fn write_stored_numeric(out: &mut Vec<u8>, unscaled: i128, scale: i64) {
    match unscaled {
        DECIMAL_NAN => out.push(NOT_A_NUMBER),
        unscaled => write_small_numeric(out, unscaled, scale),
    }
}

fn write_small_numeric(out: &mut Vec<u8>, mut unscaled: i128, mut scale: i64) {
    if unscaled == 0 {
        scale = 0;
    } else {
        while unscaled % 10 == 0 {
            unscaled /= 10;
            scale -= 1;
        }
    }
    out.push(NUMERIC);
    out.extend_from_slice(&unscaled.to_le_bytes());
    out.extend_from_slice(&scale.to_le_bytes());
}

fn write_decimal(out: &mut Vec<u8>, number: &BigDecimal) {
    let (unscaled, scale) = number.normalized().into_bigint_and_exponent();
    match i128::try_from(&unscaled) {
        // These digits are the stored decimal that stands for NaN.
        Ok(small) if small != DECIMAL_NAN => write_small_numeric(out, small, scale),
        _ => {
            out.push(LARGE_NUMERIC);
            out.extend_from_slice(&scale.to_le_bytes());
            let digits = unscaled.to_signed_bytes_le();
            write_bytes(out, &digits);
        }
    }
}

/// Whether values of a type that are equal are the same whatever they are asked. Others may differ in a sign, their zeros or
/// their blanks.
pub(crate) fn is_exact(ty: &Type) -> bool {
    !matches!(ty, Type::Float4 | Type::Float8 | Type::Numeric(_) | Type::Char(_))
}

/// Appends the canonical form of a value.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(NULL),
        Value::Bool(v) => write_integer(out, i64::from(*v)),
        Value::Int2(v) => write_integer(out, i64::from(*v)),
        Value::Int4(v) | Value::Date(v) => write_integer(out, i64::from(*v)),
        Value::Int8(v) | Value::Time(v) | Value::Timestamp(v) | Value::TimestampTz(v) => {
            write_integer(out, *v)
        }
        Value::Float4(v) => write_float(out, f64::from(*v)),
        Value::Float8(v) => write_float(out, *v),
        Value::Numeric(Numeric::NaN) => out.push(NOT_A_NUMBER),
        Value::Numeric(Numeric::Finite(number)) => write_decimal(out, number),
        Value::Text(text) => write_text(out, text, true),
        Value::Bytea(bytes) => write_bytes(out, bytes),
        Value::Uuid(bytes) => write_bytes(out, bytes),
        Value::Interval(interval) => {
            out.push(INTERVAL);
            out.extend_from_slice(&interval.months.to_le_bytes());
            out.extend_from_slice(&interval.days.to_le_bytes());
            out.extend_from_slice(&interval.microseconds.to_le_bytes());
        }
    }
}

/// Appends the canonical form of one cell of an array that holds values of `ty`.
pub(crate) fn write_cell(out: &mut Vec<u8>, array: &dyn Array, row: usize, ty: &Type, blanks: Blanks) {
    if array.is_null(row) {
        out.push(NULL);
        return;
    }
    match ty {
        Type::Bool => write_integer(out, i64::from(array.as_boolean().value(row))),
        Type::Int2 => write_integer(out, i64::from(array.as_primitive::<Int16Type>().value(row))),
        Type::Int4 => write_integer(out, i64::from(array.as_primitive::<Int32Type>().value(row))),
        Type::Int8 => write_integer(out, array.as_primitive::<Int64Type>().value(row)),
        Type::Float4 => write_float(out, f64::from(array.as_primitive::<Float32Type>().value(row))),
        Type::Float8 => write_float(out, array.as_primitive::<Float64Type>().value(row)),
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            write_stored_numeric(out, array.as_primitive::<Decimal128Type>().value(row), i64::from(*scale));
        }
        Type::Numeric(_) => write_numeric_text(out, array.as_string::<i32>().value(row)),
        Type::Text | Type::Varchar(_) => {
            write_text(out, array.as_string::<i32>().value(row), blanks == Blanks::Trimmed)
        }
        Type::Char(_) => write_text(out, array.as_string::<i32>().value(row), true),
        Type::Date => write_integer(out, i64::from(array.as_primitive::<Date32Type>().value(row))),
        Type::Time => write_integer(out, array.as_primitive::<Time64MicrosecondType>().value(row)),
        Type::Timestamp | Type::TimestampTz => {
            write_integer(out, array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        Type::Uuid => write_bytes(out, array.as_fixed_size_binary().value(row)),
        Type::Bytea => write_bytes(out, array.as_binary::<i32>().value(row)),
        // No column has this type.
        Type::Interval => out.push(INTERVAL),
    }
}

/// Appends the canonical form of a numeric held as text.
pub(crate) fn write_numeric_text(out: &mut Vec<u8>, text: &str) {
    match text.parse::<BigDecimal>() {
        Ok(number) => write_decimal(out, &number),
        Err(_) => out.push(NOT_A_NUMBER),
    }
}

/// A string's bytes as the order-preserving prefix of a ring position.
pub(crate) fn prefix_bits(bytes: &[u8]) -> u64 {
    let mut prefix = [0; 8];
    let length = bytes.len().min(8);
    prefix[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(prefix)
}

/// Maps a double onto the ring's order: NaN above everything, `-0` with `0`.
pub(crate) fn float_bits(value: f64) -> u64 {
    if value.is_nan() {
        return u64::MAX;
    }
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// As [`write_value`], exact for a column of this type.
pub(crate) fn write_value_as(out: &mut Vec<u8>, value: &Value, ty: &Type) {
    match (ty, value) {
        (Type::Text | Type::Varchar(_), Value::Text(text)) => write_text(out, text, false),
        _ => write_value(out, value),
    }
}

/// As [`write_cell`], from a stored cell.
pub(crate) fn write_stored(out: &mut Vec<u8>, column: &SegmentColumn, row: usize, ty: &Type, blanks: Blanks) {
    if column.is_null(row) {
        out.push(NULL);
        return;
    }
    match (physical(ty), ty) {
        (Physical::Int, Type::Float4 | Type::Float8) => write_float(out, int_to_float(column.int(row))),
        (Physical::Int, Type::Numeric(Some((_, scale)))) => {
            write_stored_numeric(out, decimal(Some(column.int(row)), || 0), i64::from(*scale))
        }
        (Physical::Int, _) => write_integer(out, column.int(row)),
        (Physical::Wide, Type::Numeric(Some((_, scale)))) => {
            write_stored_numeric(out, decimal(None, || column.wide(row)), i64::from(*scale))
        }
        (Physical::Wide, _) => {}
        (Physical::Bytes, Type::Numeric(_)) => {
            write_numeric_text(out, std::str::from_utf8(column.bytes(row)).unwrap_or("NaN"))
        }
        (Physical::Bytes, Type::Text | Type::Varchar(_)) if blanks == Blanks::Trimmed => {
            let bytes = column.bytes(row);
            let blank = bytes.iter().rev().take_while(|byte| **byte == b' ').count();
            write_bytes(out, &bytes[..bytes.len() - blank]);
        }
        (Physical::Bytes, _) => write_bytes(out, column.bytes(row)),
    }
}

#[cfg(test)]
mod tests {
    use bigdecimal::num_bigint::BigInt;

    use super::*;

    #[test]
    fn the_bytes_of_one_column_do_not_pass_for_those_of_the_next() {
        // As the last digits of another number it makes that one large.
        let unscaled = (1_i128 << 126) + 1;
        // All that lies between the first byte string's tag and the small number's.
        let between: Vec<u8> =
            [&0_u64.to_le_bytes()[..], &[LARGE_NUMERIC], &0_i64.to_le_bytes(), &[BYTES]].concat();
        let digits =
            [&(between.len() as u64).to_le_bytes()[..], &[NUMERIC], &unscaled.to_le_bytes()].concat();
        let scale = digits.len() as i64;
        let keys = [
            (between, BigDecimal::new(BigInt::from(unscaled), scale)),
            (Vec::new(), BigDecimal::new(BigInt::from_signed_bytes_le(&digits), 0)),
        ];
        let [one, other] = keys.map(|(bytes, number)| {
            let mut out = Vec::new();
            write_value(&mut out, &Value::Bytea(bytes.into()));
            write_value(&mut out, &Value::Numeric(Numeric::Finite(number)));
            out
        });
        assert_ne!(one, other);
    }
}
