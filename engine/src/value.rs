//! One SQL value, with PostgreSQL's order and equality.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

pub use crate::interval::Interval;
use crate::{numeric::Numeric, types::Type};

/// A SQL value. Its type is known from where it stands; `Null` belongs to every type.
///
/// Equality, order and hash are those of grouping and sorting: NULL equals NULL and sorts last, NaN equals NaN and is
/// the greatest number, `-0` equals `0`, `1.0` equals `1.00`, strings compare by bytes. Trailing blanks count; values of
/// `char(n)` with different lengths are compared by [`compare_as`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Value {
    /// NULL of any type.
    Null,
    /// `boolean`
    Bool(bool),
    /// `smallint`
    Int2(i16),
    /// `integer`
    Int4(i32),
    /// `bigint`
    Int8(i64),
    /// `real`
    Float4(f32),
    /// `double precision`
    Float8(f64),
    /// `numeric`
    Numeric(Numeric),
    /// `text`, `varchar`, `char(n)` (padded)
    Text(Arc<str>),
    /// `bytea`
    Bytea(Arc<[u8]>),
    /// `date`: days since 1970-01-01; `i32::MAX` and `i32::MIN` are infinity and -infinity
    Date(i32),
    /// `time`: microseconds since midnight
    Time(i64),
    /// `timestamp`: microseconds since 1970-01-01 00:00:00; `i64::MAX` and `i64::MIN` are infinity and -infinity
    Timestamp(i64),
    /// `timestamptz`: microseconds since 1970-01-01 00:00:00 UTC; infinities as for `Timestamp`
    TimestampTz(i64),
    /// `interval`
    Interval(Interval),
    /// `uuid`
    Uuid([u8; 16]),
}

impl Value {
    /// Whether this is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// A text value.
    pub fn text(s: impl Into<Arc<str>>) -> Value {
        Value::Text(s.into())
    }

    /// The boolean, `None` for NULL (and for what is no boolean).
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A whole number of any width.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int2(value) => Some(i64::from(*value)),
            Value::Int4(value) => Some(i64::from(*value)),
            Value::Int8(value) => Some(*value),
            _ => None,
        }
    }

    /// The string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(value) => Some(value),
            _ => None,
        }
    }

    /// Bytes that the value holds outside itself, roughly.
    pub fn heap_size(&self) -> usize {
        match self {
            Value::Text(text) => text.len() + 16,
            Value::Bytea(bytes) => bytes.len() + 16,
            Value::Numeric(number) => number.heap_size(),
            _ => 0,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Value::Bool(_) => 0,
            Value::Int2(_) => 1,
            Value::Int4(_) => 2,
            Value::Int8(_) => 3,
            Value::Float4(_) => 4,
            Value::Float8(_) => 5,
            Value::Numeric(_) => 6,
            Value::Text(_) => 7,
            Value::Bytea(_) => 8,
            Value::Date(_) => 9,
            Value::Time(_) => 10,
            Value::Timestamp(_) => 11,
            Value::TimestampTz(_) => 12,
            Value::Interval(_) => 13,
            Value::Uuid(_) => 14,
            Value::Null => u8::MAX,
        }
    }
}

/// Orders doubles as PostgreSQL does: NaN is equal to itself and the greatest, `-0` equals `0`.
pub fn compare_f64(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Orders two values of one type as PostgreSQL sorts them, NULL last. Values of different types (which a typed
/// expression never compares) are ordered by type, so that the order is total.
pub fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int2(a), Value::Int2(b)) => a.cmp(b),
        (Value::Int4(a), Value::Int4(b)) | (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::Int8(a), Value::Int8(b))
        | (Value::Time(a), Value::Time(b))
        | (Value::Timestamp(a), Value::Timestamp(b))
        | (Value::TimestampTz(a), Value::TimestampTz(b)) => a.cmp(b),
        (Value::Float4(a), Value::Float4(b)) => compare_f64(f64::from(*a), f64::from(*b)),
        (Value::Float8(a), Value::Float8(b)) => compare_f64(*a, *b),
        (Value::Numeric(a), Value::Numeric(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Bytea(a), Value::Bytea(b)) => a.cmp(b),
        (Value::Interval(a), Value::Interval(b)) => a.span().cmp(&b.span()),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        _ => a.rank().cmp(&b.rank()),
    }
}

/// As [`compare`], for values of this type: trailing blanks of `char(n)` are not significant.
pub fn compare_as(a: &Value, b: &Value, ty: &Type) -> Ordering {
    match (ty, a, b) {
        (Type::Char(_), Value::Text(a), Value::Text(b)) => {
            a.trim_end_matches(' ').as_bytes().cmp(b.trim_end_matches(' ').as_bytes())
        }
        _ => compare(a, b),
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        compare(self, other).is_eq()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> Ordering {
        compare(self, other)
    }
}

/// Bits that are equal exactly for equal doubles.
pub(crate) fn canonical_bits(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else if value == 0.0 {
        0
    } else {
        value.to_bits()
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.rank());
        match self {
            Value::Null => {}
            Value::Bool(value) => value.hash(state),
            Value::Int2(value) => value.hash(state),
            Value::Int4(value) | Value::Date(value) => value.hash(state),
            Value::Int8(value) | Value::Time(value) | Value::Timestamp(value) | Value::TimestampTz(value) => {
                value.hash(state)
            }
            Value::Float4(value) => canonical_bits(f64::from(*value)).hash(state),
            Value::Float8(value) => canonical_bits(*value).hash(state),
            Value::Numeric(value) => value.hash(state),
            Value::Text(value) => value.hash(state),
            Value::Bytea(value) => value.hash(state),
            Value::Interval(value) => value.span().hash(state),
            Value::Uuid(value) => value.hash(state),
        }
    }
}
