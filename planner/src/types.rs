//! Type names as SQL writes them.

use carousel_engine::{SqlError, SqlState, Type, error::Result};
use sqlparser::ast::{CharacterLength, DataType, ExactNumberInfo, Spanned, TimezoneInfo};

use crate::{
    names::{at, parts},
    parse::position_of,
};

/// The longest `char(n)` and `varchar(n)`.
const MAX_LENGTH: u64 = 10_485_760;

/// The type that a type name means. Errors: 42704, 22023 for modifiers, 0A000 for types that Carousel does not have.
pub(crate) fn resolve(name: &DataType) -> Result<Type> {
    let unsupported = || Err(SqlError::unsupported(format!("type {}", name.to_string().to_lowercase())));
    Ok(match name {
        DataType::Bool | DataType::Boolean => Type::Bool,
        DataType::SmallInt(None) | DataType::Int2(None) => Type::Int2,
        DataType::Int(None) | DataType::Integer(None) | DataType::Int4(None) => Type::Int4,
        DataType::BigInt(None) | DataType::Int8(None) => Type::Int8,
        DataType::Real | DataType::Float4 => Type::Float4,
        DataType::DoublePrecision | DataType::Float8 => Type::Float8,
        DataType::Float(info) => match info {
            ExactNumberInfo::None => Type::Float8,
            ExactNumberInfo::Precision(0) => {
                return Err(parameter("precision for type float must be at least 1 bit"));
            }
            ExactNumberInfo::Precision(1..=24) => Type::Float4,
            ExactNumberInfo::Precision(25..=53) => Type::Float8,
            ExactNumberInfo::Precision(_) => {
                return Err(parameter("precision for type float must be less than 54 bits"));
            }
            ExactNumberInfo::PrecisionAndScale(..) => return unsupported(),
        },
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => {
            Type::Numeric(numeric(info)?)
        }
        DataType::Text => Type::Text,
        DataType::Character(length) | DataType::Char(length) => {
            Type::Char(length_of("char", length.as_ref())?.unwrap_or(1))
        }
        DataType::CharacterVarying(length) | DataType::CharVarying(length) | DataType::Varchar(length) => {
            Type::Varchar(length_of("varchar", length.as_ref())?)
        }
        DataType::Date => Type::Date,
        DataType::Time(None | Some(6), TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => Type::Time,
        DataType::Timestamp(None | Some(6), TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            Type::Timestamp
        }
        DataType::Timestamp(None | Some(6), TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => {
            Type::TimestampTz
        }
        DataType::Time(..) | DataType::Timestamp(..) => return unsupported(),
        DataType::Interval { fields: None, precision: None } => Type::Interval,
        DataType::Interval { .. } => return unsupported(),
        DataType::Uuid => Type::Uuid,
        DataType::Bytea => Type::Bytea,
        DataType::Custom(object, modifiers) => {
            let names = parts(object)?;
            let known = match names.as_slice() {
                [name] => Some(name.as_str()),
                [schema, name] if schema == "pg_catalog" => Some(name.as_str()),
                _ => None,
            };
            match known.and_then(|known| internal(known, modifiers)) {
                Some(ty) => ty,
                None if known.is_some_and(is_postgres_type) => return unsupported(),
                None => {
                    return Err(at(
                        SqlError::new(
                            SqlState::UNDEFINED_OBJECT,
                            format!("type \"{}\" does not exist", names.join(".")),
                        ),
                        position_of(object.span()),
                    ));
                }
            }
        }
        // What sqlparser reads as a type of some other database is an unknown name to PostgreSQL.
        DataType::TinyInt(_)
        | DataType::MediumInt(_)
        | DataType::Datetime(_)
        | DataType::Blob(_)
        | DataType::Clob(_)
        | DataType::String(_)
        | DataType::Nvarchar(_)
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Unsigned
        | DataType::Double(_)
        | DataType::Binary(_)
        | DataType::Varbinary(_) => {
            return Err(SqlError::new(
                SqlState::UNDEFINED_OBJECT,
                format!("type \"{}\" does not exist", name.to_string().to_lowercase()),
            ));
        }
        _ => return unsupported(),
    })
}

/// Types by the names of PostgreSQL's catalog.
fn internal(name: &str, modifiers: &[String]) -> Option<Type> {
    let length = match modifiers {
        [] => None,
        [length] => Some(length.parse::<u32>().ok().filter(|n| (1..=MAX_LENGTH as u32).contains(n))?),
        _ => return None,
    };
    match (name, length) {
        // Without a length it is of any, other than `char`, which the grammar knows; and the type that PostgreSQL's catalog
        // calls "char" is another one.
        ("bpchar", length) => Some(Type::Char(length.unwrap_or(0))),
        ("varchar", length) => Some(Type::Varchar(length)),
        ("bool" | "boolean", None) => Some(Type::Bool),
        ("int2" | "smallint", None) => Some(Type::Int2),
        ("int4" | "int" | "integer", None) => Some(Type::Int4),
        ("int8" | "bigint", None) => Some(Type::Int8),
        ("float4" | "real", None) => Some(Type::Float4),
        ("float8", None) => Some(Type::Float8),
        ("numeric" | "decimal", None) => Some(Type::Numeric(None)),
        ("text", None) => Some(Type::Text),
        ("date", None) => Some(Type::Date),
        ("time", None) => Some(Type::Time),
        ("timestamp", None) => Some(Type::Timestamp),
        ("timestamptz", None) => Some(Type::TimestampTz),
        ("interval", None) => Some(Type::Interval),
        ("uuid", None) => Some(Type::Uuid),
        ("bytea", None) => Some(Type::Bytea),
        _ => None,
    }
}

/// Types that PostgreSQL has and Carousel has not.
fn is_postgres_type(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "serial",
        "serial2",
        "serial4",
        "serial8",
        "smallserial",
        "bigserial",
        "char",
        "json",
        "jsonb",
        "xml",
        "money",
        "name",
        "oid",
        "regclass",
        "regtype",
        "regproc",
        "regnamespace",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "bit",
        "varbit",
        "point",
        "line",
        "lseg",
        "box",
        "path",
        "polygon",
        "circle",
        "tsvector",
        "tsquery",
        "int4range",
        "int8range",
        "numrange",
        "tsrange",
        "tstzrange",
        "daterange",
        "timetz",
        "hstore",
        "citext",
        "pg_lsn",
        "txid_snapshot",
        "record",
        "anyarray",
        "anyelement",
        "void",
        "refcursor",
        "xid",
        "cid",
        "tid",
        "bpchar",
        "varchar",
        "numeric",
        "decimal",
        "time",
        "timestamp",
        "timestamptz",
        "interval",
    ];
    NAMES.contains(&name)
}

/// The type of a name that can be called like a function. (Those that are key words of the grammar cannot.)
pub(crate) fn by_internal_name(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "int2" => Type::Int2,
        "int4" => Type::Int4,
        "int8" => Type::Int8,
        "float4" => Type::Float4,
        "float8" => Type::Float8,
        "text" => Type::Text,
        "bpchar" => Type::Char(0),
        "date" => Type::Date,
        "timestamptz" => Type::TimestampTz,
        "uuid" => Type::Uuid,
        "bytea" => Type::Bytea,
        _ => return None,
    })
}

/// The name in PostgreSQL's catalog, which is what a cast without a better name is called: `int4`.
pub(crate) fn internal_name(ty: &Type) -> &'static str {
    match ty {
        Type::Bool => "bool",
        Type::Int2 => "int2",
        Type::Int4 => "int4",
        Type::Int8 => "int8",
        Type::Float4 => "float4",
        Type::Float8 => "float8",
        Type::Numeric(_) => "numeric",
        Type::Text => "text",
        Type::Varchar(_) => "varchar",
        Type::Char(_) => "bpchar",
        Type::Date => "date",
        Type::Time => "time",
        Type::Timestamp => "timestamp",
        Type::TimestampTz => "timestamptz",
        Type::Interval => "interval",
        Type::Uuid => "uuid",
        Type::Bytea => "bytea",
    }
}

/// A type's name without its modifiers, as PostgreSQL's errors print it.
pub(crate) fn plain_name(ty: &Type) -> String {
    match ty {
        Type::Char(_) => "character".into(),
        other => other.without_modifiers().to_string(),
    }
}

fn parameter(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn numeric(info: &ExactNumberInfo) -> Result<Option<(u16, u16)>> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => return Ok(None),
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    if !(1..=1000).contains(&precision) {
        return Err(parameter(format!("NUMERIC precision {precision} must be between 1 and 1000")));
    }
    if !(-1000..=1000).contains(&scale) {
        return Err(parameter(format!("NUMERIC scale {scale} must be between -1000 and 1000")));
    }
    match u16::try_from(scale) {
        Ok(scale) if u64::from(scale) <= precision => Ok(Some((precision as u16, scale))),
        Ok(_) => Err(SqlError::unsupported("a numeric scale greater than the precision")),
        Err(_) => Err(SqlError::unsupported("a negative numeric scale")),
    }
}

fn length_of(type_name: &str, length: Option<&CharacterLength>) -> Result<Option<u32>> {
    match length {
        None => Ok(None),
        Some(CharacterLength::IntegerLength { length, unit: None }) => match length {
            0 => Err(parameter(format!("length for type {type_name} must be at least 1"))),
            1..=MAX_LENGTH => Ok(Some(*length as u32)),
            _ => Err(parameter(format!("length for type {type_name} cannot exceed {MAX_LENGTH}"))),
        },
        Some(_) => Err(SqlError::unsupported("a character length in other units")),
    }
}
