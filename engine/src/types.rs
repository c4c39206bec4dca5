//! SQL types and how their values are laid out in Arrow.

use arrow::datatypes::{DataType, TimeUnit};
use serde::{Deserialize, Serialize};

/// A SQL type with its modifiers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Type {
    /// `boolean`
    Bool,
    /// `smallint`
    Int2,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `real`
    Float4,
    /// `double precision`
    Float8,
    /// `numeric` or `numeric(precision, scale)`
    Numeric(Option<(u16, u16)>),
    /// `text`
    Text,
    /// `varchar` or `varchar(n)`, `n` in characters
    Varchar(Option<u32>),
    /// `char(n)`: blank-padded, trailing blanks not significant; 0 in expressions where no length is known
    Char(u32),
    /// `date`: days since 1970-01-01
    Date,
    /// `time without time zone`: microseconds since midnight
    Time,
    /// `timestamp without time zone`: microseconds since 1970-01-01 00:00:00
    Timestamp,
    /// `timestamp with time zone`: microseconds since 1970-01-01 00:00:00 UTC
    TimestampTz,
    /// `interval`: only inside expressions, never a column
    Interval,
    /// `uuid`
    Uuid,
    /// `bytea`
    Bytea,
}

impl Type {
    /// The Arrow type of a column or result of this type.
    ///
    /// `numeric(p, s)` with `p <= 38` is `Decimal128(p, s)`; any other numeric is `Utf8` holding PostgreSQL's text of
    /// the number. `interval` is `Interval(MonthDayNano)`; `char(n)` holds the padded text.
    pub fn arrow(&self) -> DataType {
        match self {
            Type::Bool => DataType::Boolean,
            Type::Int2 => DataType::Int16,
            Type::Int4 => DataType::Int32,
            Type::Int8 => DataType::Int64,
            Type::Float4 => DataType::Float32,
            Type::Float8 => DataType::Float64,
            Type::Numeric(Some((p, s))) if *p <= 38 => DataType::Decimal128(*p as u8, *s as i8),
            Type::Numeric(_) | Type::Text | Type::Varchar(_) | Type::Char(_) => DataType::Utf8,
            Type::Date => DataType::Date32,
            Type::Time => DataType::Time64(TimeUnit::Microsecond),
            Type::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Type::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Type::Interval => DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano),
            Type::Uuid => DataType::FixedSizeBinary(16),
            Type::Bytea => DataType::Binary,
        }
    }

    /// The same type without its modifiers: `numeric(5, 2)` gives `numeric`.
    pub fn without_modifiers(&self) -> Type {
        match self {
            Type::Numeric(_) => Type::Numeric(None),
            Type::Varchar(_) => Type::Varchar(None),
            Type::Char(_) => Type::Char(0),
            other => other.clone(),
        }
    }

    /// Whether the type holds character strings.
    pub fn is_string(&self) -> bool {
        matches!(self, Type::Text | Type::Varchar(_) | Type::Char(_))
    }

    /// Whether the type is one of the numbers.
    pub fn is_number(&self) -> bool {
        matches!(self, Type::Int2 | Type::Int4 | Type::Int8 | Type::Float4 | Type::Float8 | Type::Numeric(_))
    }

    /// Whether the type is a whole number.
    pub fn is_integer(&self) -> bool {
        matches!(self, Type::Int2 | Type::Int4 | Type::Int8)
    }
}

/// The name PostgreSQL prints, as `format_type` gives it: `character varying(3)`.
impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Type::Bool => f.write_str("boolean"),
            Type::Int2 => f.write_str("smallint"),
            Type::Int4 => f.write_str("integer"),
            Type::Int8 => f.write_str("bigint"),
            Type::Float4 => f.write_str("real"),
            Type::Float8 => f.write_str("double precision"),
            Type::Numeric(None) => f.write_str("numeric"),
            Type::Numeric(Some((p, s))) => write!(f, "numeric({p},{s})"),
            Type::Text => f.write_str("text"),
            Type::Varchar(None) => f.write_str("character varying"),
            Type::Varchar(Some(n)) => write!(f, "character varying({n})"),
            Type::Char(0) => f.write_str("bpchar"),
            Type::Char(n) => write!(f, "character({n})"),
            Type::Date => f.write_str("date"),
            Type::Time => f.write_str("time without time zone"),
            Type::Timestamp => f.write_str("timestamp without time zone"),
            Type::TimestampTz => f.write_str("timestamp with time zone"),
            Type::Interval => f.write_str("interval"),
            Type::Uuid => f.write_str("uuid"),
            Type::Bytea => f.write_str("bytea"),
        }
    }
}
