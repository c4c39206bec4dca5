//! Values and types of generated tables.

use std::cmp::Ordering;

/// An SQLSTATE.
pub type State = &'static str;

/// Numeric value out of range.
pub const OUT_OF_RANGE: State = "22003";
/// Division by zero.
pub const DIVISION_BY_ZERO: State = "22012";
/// String data, right truncation.
pub const TOO_LONG: State = "22001";
/// Not-null violation.
pub const NOT_NULL: State = "23502";
/// Unique violation.
pub const DUPLICATE_KEY: State = "23505";
/// Cardinality violation: `ON CONFLICT DO UPDATE` met one of its own rows.
pub const TWICE: State = "21000";

/// Types of generated columns and expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `smallint`
    Int2,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `text`
    Text,
    /// `varchar(6)`
    Varchar,
    /// `boolean`
    Bool,
    /// `numeric(8,2)` as a column, any scale as an expression
    Numeric,
    /// `date`
    Date,
}

/// Length of generated `varchar` columns.
pub const VARCHAR_LENGTH: usize = 6;
/// Scale of generated `numeric` columns.
pub const SCALE: u32 = 2;
/// A `numeric(8,2)` lies below 10^6; this is that bound in hundredths.
const NUMERIC_BOUND: i128 = 100_000_000;

impl Type {
    /// The column's type in `CREATE TABLE`.
    pub fn declaration(self) -> &'static str {
        match self {
            Type::Int2 => "smallint",
            Type::Int4 => "integer",
            Type::Int8 => "bigint",
            Type::Text => "text",
            Type::Varchar => "varchar(6)",
            Type::Bool => "boolean",
            Type::Numeric => "numeric(8,2)",
            Type::Date => "date",
        }
    }

    /// Whether the type is a whole number.
    pub fn is_integer(self) -> bool {
        matches!(self, Type::Int2 | Type::Int4 | Type::Int8)
    }

    /// Whether the type is a string.
    pub fn is_string(self) -> bool {
        matches!(self, Type::Text | Type::Varchar)
    }
}

/// A number `unscaled / 10^scale`.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    /// The digits.
    pub unscaled: i128,
    /// Digits after the point.
    pub scale: u32,
}

impl Decimal {
    /// The same number with another scale, rounding half away from zero.
    pub fn rescaled(self, scale: u32) -> Decimal {
        if scale >= self.scale {
            return Decimal { unscaled: self.unscaled * 10i128.pow(scale - self.scale), scale };
        }
        let divisor = 10i128.pow(self.scale - scale);
        let half = divisor / 2 * self.unscaled.signum();
        Decimal { unscaled: (self.unscaled + half) / divisor, scale }
    }

    /// Both numbers' digits at their larger scale.
    pub fn aligned(self, other: Decimal) -> (i128, i128, u32) {
        let scale = self.scale.max(other.scale);
        (self.rescaled(scale).unscaled, other.rescaled(scale).unscaled, scale)
    }
}

/// A value.
#[derive(Clone, Debug)]
pub enum Datum {
    /// NULL
    Null,
    /// Any whole number.
    Int(i64),
    /// A string.
    Text(String),
    /// A truth value.
    Bool(bool),
    /// An exact number.
    Numeric(Decimal),
    /// Days since 1970-01-01.
    Date(i64),
}

impl Datum {
    /// Whether it is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Datum::Null)
    }

    /// The order of two values of comparable types; `None` when one is NULL.
    pub fn compare(&self, other: &Datum) -> Option<Ordering> {
        Some(match (self, other) {
            (Datum::Null, _) | (_, Datum::Null) => return None,
            (Datum::Int(a), Datum::Int(b)) | (Datum::Date(a), Datum::Date(b)) => a.cmp(b),
            (Datum::Text(a), Datum::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Datum::Bool(a), Datum::Bool(b)) => a.cmp(b),
            (a, b) => match (a.decimal(), b.decimal()) {
                (Some(a), Some(b)) => {
                    let (a, b, _) = a.aligned(b);
                    a.cmp(&b)
                }
                _ => panic!("generated a comparison of {a:?} with {b:?}"),
            },
        })
    }

    /// The order of `ORDER BY … ASC`, NULL last; a total order.
    pub fn sort_order(&self, other: &Datum) -> Ordering {
        self.compare(other).unwrap_or_else(|| self.is_null().cmp(&other.is_null()))
    }

    /// The number, of a number.
    pub fn decimal(&self) -> Option<Decimal> {
        match self {
            Datum::Int(value) => Some(Decimal { unscaled: (*value).into(), scale: 0 }),
            Datum::Numeric(value) => Some(*value),
            _ => None,
        }
    }

    /// The text that the server prints; `None` for NULL.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Datum::Null => return None,
            Datum::Int(value) => value.to_string(),
            Datum::Text(value) => value.clone(),
            Datum::Bool(value) => if *value { "t" } else { "f" }.to_owned(),
            Datum::Numeric(Decimal { unscaled, scale: 0 }) => unscaled.to_string(),
            Datum::Numeric(Decimal { unscaled, scale }) => {
                let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = *scale as usize + 1);
                let (whole, fraction) = digits.split_at(digits.len() - *scale as usize);
                format!("{}{whole}.{fraction}", if *unscaled < 0 { "-" } else { "" })
            }
            Datum::Date(days) => date_text(*days),
        })
    }

    /// The value as an SQL literal.
    pub fn literal(&self) -> String {
        match (self, self.text()) {
            (_, None) => "NULL".to_owned(),
            (Datum::Int(_) | Datum::Numeric(_), Some(text)) if text.starts_with('-') => format!("({text})"),
            (Datum::Int(_) | Datum::Numeric(_), Some(text)) => text,
            (Datum::Bool(value), _) => value.to_string(),
            (_, Some(text)) => format!("'{}'", text.replace('\'', "''")),
        }
    }

    /// The value stored into a column of type `ty`.
    ///
    /// # Errors
    /// The SQLSTATE when it does not fit.
    pub fn assigned(self, ty: Type) -> Result<Datum, State> {
        let range = |value: i128, low: i64, high: i64| match i64::try_from(value) {
            Ok(value) if (low..=high).contains(&value) => Ok(Datum::Int(value)),
            _ => Err(OUT_OF_RANGE),
        };
        match (ty, self) {
            (_, Datum::Null) => Ok(Datum::Null),
            (Type::Int2 | Type::Int4 | Type::Int8, value @ (Datum::Int(_) | Datum::Numeric(_))) => {
                let whole = value.decimal().expect("matched a number").rescaled(0).unscaled;
                match ty {
                    Type::Int2 => range(whole, i16::MIN.into(), i16::MAX.into()),
                    Type::Int4 => range(whole, i32::MIN.into(), i32::MAX.into()),
                    _ => range(whole, i64::MIN, i64::MAX),
                }
            }
            (Type::Numeric, value @ (Datum::Int(_) | Datum::Numeric(_))) => {
                let value = value.decimal().expect("matched a number").rescaled(SCALE);
                match value.unscaled.abs() < NUMERIC_BOUND {
                    true => Ok(Datum::Numeric(value)),
                    false => Err(OUT_OF_RANGE),
                }
            }
            (Type::Varchar, Datum::Text(text)) => {
                let end = text.char_indices().nth(VARCHAR_LENGTH).map_or(text.len(), |(at, _)| at);
                match text[end..].chars().all(|c| c == ' ') {
                    true => Ok(Datum::Text(text[..end].to_owned())),
                    false => Err(TOO_LONG),
                }
            }
            (Type::Text, value @ Datum::Text(_)) => Ok(value),
            (Type::Bool, value @ Datum::Bool(_)) => Ok(value),
            (Type::Date, value @ Datum::Date(_)) => Ok(value),
            (ty, value) => panic!("generated an assignment of {value:?} to {ty:?}"),
        }
    }
}

/// `YYYY-MM-DD` of a day (Howard Hinnant's civil_from_days).
fn date_text(days: i64) -> String {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
