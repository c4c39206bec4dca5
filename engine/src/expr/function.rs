//! The catalogue of scalar functions and operators.

use serde::{Deserialize, Serialize};

/// A scalar function or operator with one chosen signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Function {
    /// `||` of two strings
    Concat,
}
