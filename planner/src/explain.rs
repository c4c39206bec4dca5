//! EXPLAIN: the message, its destination set, and what runs above the scan.

use carousel_cluster::message::ProcessId;
use carousel_engine::{SqlError, Value, error::Result, position::KeyRange};

use crate::{
    plan::Plan,
    settings::{IdSource, Settings},
};

/// Describes the bound plan, one line an element, for the column `QUERY PLAN`.
///
/// `destinations` gives the destination set of a message over some key ranges; the flag says whether it writes.
pub fn explain(
    plan: &Plan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
    destinations: &dyn Fn(&[KeyRange], bool) -> Vec<ProcessId>,
) -> Result<Vec<String>> {
    let _ = (parameters, settings, ids, destinations);
    Err(SqlError::unsupported(format!("EXPLAIN {}", plan.tag(0))))
}
