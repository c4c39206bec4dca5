//! PostgreSQL's exact numeric: a decimal number with a display scale, or NaN.

use bigdecimal::BigDecimal;
use serde::{Deserialize, Serialize};

/// An exact decimal number with its display scale (the `BigDecimal`'s own scale, never negative), or NaN.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub enum Numeric {
    /// A finite number.
    Finite(BigDecimal),
    /// Not a number: equal to itself, greater than every number.
    NaN,
}
