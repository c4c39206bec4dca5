//! PostgreSQL's identities of types: OID, size and modifier, as drivers expect them.

use carousel_engine::Type;

/// The OID of `text`.
pub const TEXT_OID: u32 = 25;

/// A type's OID in `pg_type`.
pub fn oid(ty: &Type) -> u32 {
    match ty {
        Type::Bool => 16,
        Type::Bytea => 17,
        Type::Int8 => 20,
        Type::Int2 => 21,
        Type::Int4 => 23,
        Type::Text => TEXT_OID,
        Type::Float4 => 700,
        Type::Float8 => 701,
        Type::Char(_) => 1042,
        Type::Varchar(_) => 1043,
        Type::Date => 1082,
        Type::Time => 1083,
        Type::Timestamp => 1114,
        Type::TimestampTz => 1184,
        Type::Interval => 1186,
        Type::Numeric(_) => 1700,
        Type::Uuid => 2950,
    }
}

/// The type with this OID, if Carousel has it. `unknown`, `name` and `"char"` are given as text.
pub fn from_oid(oid: u32) -> Option<Type> {
    Some(match oid {
        16 => Type::Bool,
        17 => Type::Bytea,
        20 => Type::Int8,
        21 => Type::Int2,
        23 => Type::Int4,
        18 | 19 | TEXT_OID => Type::Text,
        26 => Type::Int8,
        700 => Type::Float4,
        701 => Type::Float8,
        // Of no length: blanks at its end are kept and count for nothing.
        1042 => Type::Char(0),
        1043 => Type::Varchar(None),
        1082 => Type::Date,
        1083 => Type::Time,
        1114 => Type::Timestamp,
        1184 => Type::TimestampTz,
        1186 => Type::Interval,
        1700 => Type::Numeric(None),
        2950 => Type::Uuid,
        _ => return None,
    })
}

/// A type's size in bytes as `pg_type.typlen` gives it; -1 for varying sizes.
pub fn size(ty: &Type) -> i16 {
    match ty {
        Type::Bool => 1,
        Type::Int2 => 2,
        Type::Int4 | Type::Float4 | Type::Date => 4,
        Type::Int8 | Type::Float8 | Type::Time | Type::Timestamp | Type::TimestampTz => 8,
        Type::Interval | Type::Uuid => 16,
        Type::Numeric(_) | Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Bytea => -1,
    }
}

/// A type's modifier as `pg_attribute.atttypmod` gives it; -1 for none.
pub fn modifier(ty: &Type) -> i32 {
    match ty {
        Type::Char(0) => -1,
        Type::Varchar(Some(n)) | Type::Char(n) => i32::try_from(*n).map_or(-1, |n| n.saturating_add(4)),
        Type::Numeric(Some((precision, scale))) => ((i32::from(*precision) << 16) | i32::from(*scale)) + 4,
        _ => -1,
    }
}
