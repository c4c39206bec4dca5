//! Values of parameters as they come from a client.

use std::sync::Arc;

use carousel_engine::{
    SqlError, SqlState, Type, Value, datetime, error::Result, expr::EvalContext, numeric::Numeric, text,
    value::Interval,
};

use super::{
    Format,
    frontend::utf8,
    rows::{EPOCH_DAYS, EPOCH_MICROS},
};

/// Reads the value of a parameter.
///
/// # Errors
/// 22P02, 22003, 22007 or 22008 for text that is no value of the type, 22P03 for bytes that are none, 08P01 when they are too
/// few, 22021 for text that is not UTF-8 or holds a zero byte.
pub fn decode(bytes: &[u8], format: Format, ty: &Type, context: &EvalContext) -> Result<Value> {
    match format {
        Format::Text => text::parse_value(string(bytes)?, ty, context),
        Format::Binary => binary(bytes, ty),
    }
}

fn string(bytes: &[u8]) -> Result<&str> {
    if bytes.contains(&0) {
        return Err(SqlError::new(
            SqlState::BAD_ENCODING,
            "invalid byte sequence for encoding \"UTF8\": 0x00",
        ));
    }
    utf8(bytes)
}

/// The bytes end before the value does.
pub(super) fn too_few() -> SqlError {
    SqlError::new(SqlState::PROTOCOL_VIOLATION, "insufficient data left in message")
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| match bytes.len() < N {
        true => too_few(),
        false => SqlError::new(SqlState::INVALID_BINARY, "incorrect binary data format in bind parameter"),
    })
}

fn binary(bytes: &[u8], ty: &Type) -> Result<Value> {
    Ok(match ty {
        Type::Bool => Value::Bool(fixed::<1>(bytes)?[0] != 0),
        Type::Int2 => Value::Int2(i16::from_be_bytes(fixed(bytes)?)),
        Type::Int4 => Value::Int4(i32::from_be_bytes(fixed(bytes)?)),
        Type::Int8 => Value::Int8(i64::from_be_bytes(fixed(bytes)?)),
        Type::Float4 => Value::Float4(f32::from_be_bytes(fixed(bytes)?)),
        Type::Float8 => Value::Float8(f64::from_be_bytes(fixed(bytes)?)),
        Type::Numeric(_) => Value::Numeric(Numeric::parse(&super::numeric::decode(bytes)?)?),
        Type::Text | Type::Varchar(_) | Type::Char(_) => Value::text(string(bytes)?),
        Type::Date => Value::Date(match i32::from_be_bytes(fixed(bytes)?) {
            infinite @ (i32::MIN | i32::MAX) => infinite,
            days => datetime::checked_date(i64::from(days) + i64::from(EPOCH_DAYS))?,
        }),
        Type::Time => {
            let micros = i64::from_be_bytes(fixed(bytes)?);
            if !(0..=86_400_000_000).contains(&micros) {
                return Err(SqlError::new(SqlState::DATETIME_OVERFLOW, "time out of range"));
            }
            Value::Time(micros)
        }
        Type::Timestamp => Value::Timestamp(timestamp(bytes)?),
        Type::TimestampTz => Value::TimestampTz(timestamp(bytes)?),
        Type::Interval => {
            let bytes: [u8; 16] = fixed(bytes)?;
            let (time, rest) = bytes.split_at(8);
            let (days, months) = rest.split_at(4);
            Value::Interval(Interval {
                microseconds: i64::from_be_bytes(fixed(time)?),
                days: i32::from_be_bytes(fixed(days)?),
                months: i32::from_be_bytes(fixed(months)?),
            })
        }
        Type::Uuid => Value::Uuid(fixed(bytes)?),
        Type::Bytea => Value::Bytea(Arc::from(bytes)),
    })
}

fn timestamp(bytes: &[u8]) -> Result<i64> {
    match i64::from_be_bytes(fixed(bytes)?) {
        infinite @ (i64::MIN | i64::MAX) => Ok(infinite),
        micros => datetime::checked_timestamp(i128::from(micros) + i128::from(EPOCH_MICROS)),
    }
}
