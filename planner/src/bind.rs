//! From a plan to what is executed: parameters, session values, defaults, constants, key ranges.

use arrow::record_batch::RecordBatch;
use carousel_cluster::message::Body;
use carousel_engine::{SqlError, TableId, Ts, Type, Value, error::Result, position::KeyRange};

use crate::{
    above::Above,
    plan::Plan,
    settings::{IdSource, Settings},
};

/// What is left to do for a bound plan.
#[derive(Debug)]
pub enum Execution {
    /// Ask the storage processes and pour what comes back through `above`.
    Request(Box<Request>),
    /// Nothing is to be asked: these are the result's rows.
    Rows(Vec<RecordBatch>),
}

/// A message without its identity, and what to do with the answer.
#[derive(Debug)]
pub struct Request {
    /// The tables it names with the versions it was planned against.
    pub tables: Vec<(TableId, Ts)>,
    /// The keys it reads or writes: sorted, disjoint. When empty, no row can qualify: no message is needed, the answer
    /// is no rows, no groups and the count 0.
    pub ranges: Vec<KeyRange>,
    /// The body; `read_ts` and `replica_offset` are for the session to set, rows that are too large to travel in a
    /// message are for it to stage.
    pub body: Body,
    /// What runs above the scan.
    pub above: Above,
}

/// A parameter of EXECUTE, not yet evaluated.
#[derive(Clone, Debug)]
pub struct Argument {
    pub(crate) source: std::sync::Arc<crate::parse::Source>,
    pub(crate) expression: std::sync::Arc<sqlparser::ast::Expr>,
}

/// Binds a plan that is marked *bind*.
///
/// `parameters` are of the types that [`crate::Planned::parameter_types`] gives. Errors are those that PostgreSQL would
/// find in constants and in rows to insert (22xxx, 23502); they are found before anything is submitted.
pub fn bind(
    plan: &Plan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Execution> {
    let _ = (parameters, settings, ids);
    Err(SqlError::unsupported(plan.tag(0)))
}

/// Evaluates the parameters of EXECUTE, cast to the types of the prepared statement's parameters.
pub fn evaluate_arguments(
    arguments: &[Argument],
    types: &[Type],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Vec<Value>> {
    let _ = (types, settings, ids, arguments.iter().map(|a| (&a.source, &a.expression)).count());
    Err(SqlError::unsupported("EXECUTE"))
}
