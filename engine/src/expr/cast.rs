//! Casts between types.

use super::{CastKind, EvalContext};
use crate::{
    datetime::{self, MICROS_PER_DAY, Zone},
    error::{Result, SqlError, SqlState},
    interval::Interval,
    numeric::Numeric,
    text,
    types::Type,
    value::Value,
};

/// Where a cast may be used, from the freest to the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CastContext {
    /// Anywhere, without being asked for.
    Implicit,
    /// On storing into a column, and when asked for.
    Assignment,
    /// Only when asked for.
    Explicit,
}

/// The least explicit context in which PostgreSQL casts `from` to `to`; `None` when it never does.
pub fn cast_allowed(from: &Type, to: &Type) -> Option<CastContext> {
    use CastContext::*;
    use Type::*;
    Some(match (from, to) {
        _ if from.without_modifiers() == to.without_modifiers() => Implicit,
        (Int2, Int4 | Int8 | Numeric(_) | Float4 | Float8)
        | (Int4, Int8 | Numeric(_) | Float4 | Float8)
        | (Int8, Numeric(_) | Float4 | Float8)
        | (Numeric(_), Float4 | Float8)
        | (Float4, Float8) => Implicit,
        _ if from.is_number() && to.is_number() => Assignment,
        (Int4, Bool) | (Bool, Int4) => Explicit,
        (Text | Varchar(_) | Char(_), Text | Varchar(_) | Char(_)) => Implicit,
        (Date, Timestamp | TimestampTz) | (Timestamp, TimestampTz) | (Time, Interval) => Implicit,
        (Timestamp, Date | Time) | (TimestampTz, Date | Time | Timestamp) | (Interval, Time) => Assignment,
        (_, Text | Varchar(_) | Char(_)) => Assignment,
        (Text | Varchar(_) | Char(_), _) => Explicit,
        _ => return None,
    })
}

fn integer_out_of_range(ty: &Type) -> SqlError {
    SqlError::new(SqlState::OUT_OF_RANGE, format!("{ty} out of range"))
}

fn integer(value: i128, ty: &Type) -> Result<Value> {
    let fitted = match ty {
        Type::Int2 => i16::try_from(value).ok().map(Value::Int2),
        Type::Int4 => i32::try_from(value).ok().map(Value::Int4),
        _ => i64::try_from(value).ok().map(Value::Int8),
    };
    fitted.ok_or_else(|| integer_out_of_range(ty))
}

fn integer_of_float(value: f64, ty: &Type) -> Result<Value> {
    let rounded = value.round_ties_even();
    // Beyond 64 bits the conversion to i128 would still be exact; NaN and infinities are out of every range.
    if !(-1e19..=1e19).contains(&rounded) {
        return Err(integer_out_of_range(ty));
    }
    integer(rounded as i128, ty)
}

fn numeric(value: Numeric, modifiers: Option<(u16, u16)>) -> Result<Value> {
    Ok(Value::Numeric(match modifiers {
        Some((precision, scale)) => value.fits(precision, scale)?,
        None => value,
    }))
}

/// A double as a real; 22003 when it is too large or too small.
pub(crate) fn narrow(value: f64) -> Result<f32> {
    let narrowed = value as f32;
    if narrowed.is_infinite() && value.is_finite() {
        return Err(SqlError::new(SqlState::OUT_OF_RANGE, "value out of range: overflow"));
    }
    if narrowed == 0.0 && value != 0.0 {
        return Err(SqlError::new(SqlState::OUT_OF_RANGE, "value out of range: underflow"));
    }
    Ok(narrowed)
}

fn string(source: &str, from: &Type, to: &Type, kind: CastKind) -> Result<Value> {
    // Blanks that pad a char(n) are no part of the text it becomes.
    let source = match (from, to) {
        (Type::Char(_), Type::Text | Type::Varchar(_)) => source.trim_end_matches(' '),
        _ => source,
    };
    let (kept, blanks) = text::fit_string(source, to, kind == CastKind::Explicit)?;
    if blanks == 0 {
        return Ok(Value::text(kept));
    }
    let mut padded = String::with_capacity(kept.len() + blanks);
    padded.push_str(kept);
    padded.extend(std::iter::repeat_n(' ', blanks));
    Ok(Value::text(padded))
}

/// Casts a value of type `from` to `to`. NULL stays NULL. The planner has checked with [`cast_allowed`] that the cast
/// exists; 42846 otherwise.
pub fn cast(value: Value, from: &Type, to: &Type, kind: CastKind, context: &EvalContext) -> Result<Value> {
    let zone = || Zone::parse(&context.time_zone);
    Ok(match (value, to) {
        (Value::Null, _) => Value::Null,
        (Value::Text(source), Type::Text | Type::Varchar(_) | Type::Char(_)) => {
            let unchanged = matches!(to, Type::Text | Type::Varchar(None)) && !matches!(from, Type::Char(_));
            if unchanged { Value::Text(source) } else { string(&source, from, to, kind)? }
        }
        (Value::Text(source), _) => {
            let parsed = text::parse_value(&source, &to.without_modifiers(), context)?;
            match (parsed, to) {
                (Value::Numeric(number), Type::Numeric(modifiers)) => numeric(number, *modifiers)?,
                (parsed, _) => parsed,
            }
        }
        (Value::Bool(value), Type::Text | Type::Varchar(_) | Type::Char(_)) => {
            string(if value { "true" } else { "false" }, from, to, kind)?
        }
        (value, Type::Text | Type::Varchar(_) | Type::Char(_)) => {
            let mut out = String::new();
            text::write_value(&mut out, &value, context);
            string(&out, from, to, kind)?
        }
        (Value::Bool(value), Type::Bool) => Value::Bool(value),
        (Value::Bool(value), Type::Int4) => Value::Int4(value.into()),
        (Value::Int4(value), Type::Bool) => Value::Bool(value != 0),
        (value @ (Value::Int2(_) | Value::Int4(_) | Value::Int8(_)), _) => {
            let number = value.as_i64().unwrap_or_default();
            match to {
                Type::Int2 | Type::Int4 | Type::Int8 => integer(number.into(), to)?,
                Type::Float4 => Value::Float4(number as f32),
                Type::Float8 => Value::Float8(number as f64),
                Type::Numeric(modifiers) => numeric(Numeric::from(number), *modifiers)?,
                _ => return Err(impossible(from, to)),
            }
        }
        (Value::Float4(value), _) => match to {
            Type::Int2 | Type::Int4 | Type::Int8 => integer_of_float(value.into(), to)?,
            Type::Float4 => Value::Float4(value),
            Type::Float8 => Value::Float8(value.into()),
            Type::Numeric(modifiers) => numeric(Numeric::from_f32(value)?, *modifiers)?,
            _ => return Err(impossible(from, to)),
        },
        (Value::Float8(value), _) => match to {
            Type::Int2 | Type::Int4 | Type::Int8 => integer_of_float(value, to)?,
            Type::Float4 => Value::Float4(narrow(value)?),
            Type::Float8 => Value::Float8(value),
            Type::Numeric(modifiers) => numeric(Numeric::from_f64(value)?, *modifiers)?,
            _ => return Err(impossible(from, to)),
        },
        (Value::Numeric(value), _) => match to {
            Type::Int2 | Type::Int4 | Type::Int8 => {
                let rounded = value.to_integer(&to.to_string())?.ok_or_else(|| integer_out_of_range(to))?;
                integer(rounded, to)?
            }
            Type::Float4 => {
                // Through its text, as PostgreSQL does: one rounding, not two.
                if value.is_nan() {
                    Value::Float4(f32::NAN)
                } else {
                    Value::Float4(text::parse_f32(&value.to_string())?)
                }
            }
            Type::Float8 => Value::Float8(value.to_f64()?),
            Type::Numeric(modifiers) => numeric(value, *modifiers)?,
            _ => return Err(impossible(from, to)),
        },
        (Value::Date(days), Type::Date) => Value::Date(days),
        (Value::Date(days), Type::Timestamp) => Value::Timestamp(datetime::date_to_timestamp(days)?),
        (Value::Date(days), Type::TimestampTz) => {
            Value::TimestampTz(zone()?.to_utc(datetime::date_to_timestamp(days)?)?)
        }
        (Value::Time(micros), Type::Time) => Value::Time(micros),
        (Value::Time(microseconds), Type::Interval) => {
            Value::Interval(Interval { microseconds, ..Interval::default() })
        }
        (Value::Timestamp(micros), Type::Timestamp) => Value::Timestamp(micros),
        (Value::Timestamp(micros), Type::TimestampTz) => Value::TimestampTz(zone()?.to_utc(micros)?),
        (Value::Timestamp(micros), Type::Date) => Value::Date(datetime::timestamp_to_date(micros)),
        (Value::Timestamp(micros), Type::Time) => time_of(micros),
        (Value::TimestampTz(micros), Type::TimestampTz) => Value::TimestampTz(micros),
        (Value::TimestampTz(micros), Type::Timestamp) => Value::Timestamp(zone()?.to_local(micros)?),
        (Value::TimestampTz(micros), Type::Date) => {
            Value::Date(datetime::timestamp_to_date(zone()?.to_local(micros)?))
        }
        (Value::TimestampTz(micros), Type::Time) => time_of(zone()?.to_local(micros)?),
        (Value::Interval(interval), Type::Interval) => Value::Interval(interval),
        (Value::Interval(interval), Type::Time) => {
            Value::Time(interval.microseconds.rem_euclid(MICROS_PER_DAY))
        }
        (Value::Uuid(bytes), Type::Uuid) => Value::Uuid(bytes),
        (Value::Bytea(bytes), Type::Bytea) => Value::Bytea(bytes),
        _ => return Err(impossible(from, to)),
    })
}

/// An infinite timestamp has no time of day.
fn time_of(micros: i64) -> Value {
    if datetime::is_finite(micros) { Value::Time(micros.rem_euclid(MICROS_PER_DAY)) } else { Value::Null }
}

fn impossible(from: &Type, to: &Type) -> SqlError {
    SqlError::new(SqlState::CANNOT_COERCE, format!("cannot cast type {from} to {to}"))
}

/// Whether a cast may fail for some value.
pub(super) fn cast_can_fail(from: &Type, to: &Type, kind: CastKind) -> bool {
    match (from, to) {
        (
            Type::Timestamp | Type::TimestampTz | Type::Date,
            Type::Timestamp | Type::TimestampTz | Type::Date,
        ) => from != to,
        _ if from == to => false,
        // It takes twice the room.
        (Type::Bytea, Type::Text | Type::Varchar(None) | Type::Char(0)) => true,
        (_, Type::Text | Type::Varchar(None) | Type::Char(0)) => false,
        (_, Type::Varchar(Some(_)) | Type::Char(_)) => kind != CastKind::Explicit,
        (Type::Int2, Type::Int4 | Type::Int8)
        | (Type::Int4, Type::Int8)
        | (Type::Int2 | Type::Int4 | Type::Int8, Type::Float4 | Type::Float8 | Type::Numeric(None))
        | (Type::Numeric(_), Type::Numeric(None))
        | (Type::Float4, Type::Float8)
        | (Type::Bool, Type::Int4)
        | (Type::Int4, Type::Bool)
        | (Type::Time, Type::Interval)
        | (Type::Interval, Type::Time) => false,
        _ => true,
    }
}
