//! One SQL value.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::numeric::Numeric;

/// A SQL value. Its type is known from where it stands; `Null` belongs to every type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// `date`: days since 1970-01-01
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

/// PostgreSQL's interval: its three parts are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// Months (years are 12).
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
    pub microseconds: i64,
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
}
