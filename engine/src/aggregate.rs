//! Aggregates computed where the data is: partial states that merge in any order to the same result.

use serde::{Deserialize, Serialize};

use crate::{expr::Expr, types::Type, value::Value};

/// Aggregate functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AggregateFunction {
    /// `count(*)` without argument, `count(x)` with one.
    Count,
    /// `sum`
    Sum,
    /// `avg`
    Avg,
    /// `min`
    Min,
    /// `max`
    Max,
    /// `bool_and`, `every`
    BoolAnd,
    /// `bool_or`
    BoolOr,
}

/// One aggregate of a read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AggregateCall {
    /// Which.
    pub function: AggregateFunction,
    /// Argument over the table's columns; none for `count(*)`.
    pub argument: Option<Expr>,
    /// `DISTINCT`
    pub distinct: bool,
    /// `FILTER (WHERE …)` over the table's columns.
    pub filter: Option<Expr>,
}

/// A group with partial states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Values of the grouping expressions.
    pub key: Vec<Value>,
    /// One state for each aggregate.
    pub states: Vec<AggregateState>,
}

/// The partial state of one aggregate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AggregateState {
    count: u64,
}

/// The result type of an aggregate over an argument type, or `None` when PostgreSQL has no such aggregate.
pub fn result_type(function: AggregateFunction, _argument: Option<&Type>) -> Option<Type> {
    match function {
        AggregateFunction::Count => Some(Type::Int8),
        _ => None,
    }
}
