//! What gives the same rows whenever it is computed at one `Ts`, and what must be computed once because it does not.
//!
//! A part of a statement may be needed in several places: a common table expression, the tree that a correlated subquery
//! is joined to, the rows of several groupings. Such a part is copied, so that each place reads only what it needs. Which
//! rows are the first ones by an order that leaves ties open, however, depends on how they arrive, and so do the last
//! digits of a float sum: what depends on that becomes [`Kind::Shared`], and all places see the same rows.

use std::sync::Arc;

use carousel_engine::{
    SqlError, Type,
    aggregate::{AggregateCall, AggregateFunction},
    error::Result,
    expr::Expr,
};

use super::{
    lower::is_unique,
    node::{Call, Kind, Node, has_outer_columns},
    window::{Bound, Units, WindowCall, WindowFunction},
};

/// Prepares a tree to be needed in several places: what is not the same at each time is computed once.
///
/// # Errors
/// 0A000 when that depends on the columns of a query around, for whose rows it is computed differently.
pub(crate) fn share(node: &mut Node) -> Result<()> {
    if is_repeatable(node) {
        return Ok(());
    }
    // Better what is left of the rows than all of them.
    let mut bottom = &*node;
    while let Kind::Filter { input, .. } | Kind::Project { input, .. } = &bottom.kind {
        bottom = input;
    }
    if !repeats(bottom) && !has_outer_columns(node) {
        let fields = node.fields.clone();
        let whole = std::mem::replace(node, Node::one_row());
        *node = Node { kind: Kind::Shared(Arc::new(whole)), fields };
        return Ok(());
    }
    // Equal values that are written differently, or the last digits of a sum, are no reason to refuse it.
    let makes_groups =
        matches!(node.kind, Kind::Aggregate { .. } | Kind::Distinct { .. } | Kind::Groups { .. });
    if !repeats(node) && !makes_groups {
        return Err(SqlError::unsupported(
            "a correlated query whose rows are needed several times and depend on the order in which rows are read",
        ));
    }
    node.inputs_mut().into_iter().try_for_each(share)
}

fn is_repeatable(node: &Node) -> bool {
    match &node.kind {
        Kind::Shared(_) => true,
        _ => repeats(node) && node.inputs().into_iter().all(is_repeatable),
    }
}

/// Whether an operator makes the same of the same rows, in whichever order they come.
fn repeats(node: &Node) -> bool {
    match &node.kind {
        Kind::Sort { input, keys, limit, offset } => {
            let columns: Vec<usize> = keys.iter().map(|key| key.column).collect();
            (limit.is_none() && offset.is_none()) || is_unique(input, &columns)
        }
        Kind::Window { input, calls } => calls.iter().all(|call| window_repeats(input, call)),
        Kind::Aggregate { keys, calls, .. } => {
            keys.iter().all(|key| is_written_one_way(&key.ty())) && calls.iter().all(call_repeats)
        }
        Kind::Distinct { input } => input.fields.iter().all(|field| is_written_one_way(&field.ty)),
        Kind::Groups { keys, calls, .. } => {
            keys.iter().all(|key| is_written_one_way(&key.ty())) && calls.iter().all(aggregate_repeats)
        }
        Kind::Scan { .. }
        | Kind::Rows(_)
        | Kind::Batch(_)
        | Kind::System(_)
        | Kind::Series(_)
        | Kind::Shared(_)
        | Kind::Filter { .. }
        | Kind::Project { .. }
        | Kind::Join { .. }
        | Kind::Union { .. } => true,
    }
}

/// Whether equal values look the same, too: of those that do not, a group shows the one that it happens to have.
fn is_written_one_way(ty: &Type) -> bool {
    !matches!(ty, Type::Numeric(None) | Type::Float4 | Type::Float8 | Type::Interval)
}

fn call_repeats(call: &Call) -> bool {
    match call {
        Call::Single(_) => true,
        Call::Aggregate(call) => aggregate_repeats(call),
    }
}

fn aggregate_repeats(call: &AggregateCall) -> bool {
    let Some(argument) = &call.argument else { return true };
    // Which of equal values is left has an effect.
    if call.distinct && !is_written_one_way(&argument.ty()) && call.function != AggregateFunction::Count {
        return false;
    }
    match call.function {
        AggregateFunction::Count
        | AggregateFunction::BoolAnd
        | AggregateFunction::BoolOr
        | AggregateFunction::BitAnd
        | AggregateFunction::BitOr
        | AggregateFunction::BitXor => true,
        AggregateFunction::Min | AggregateFunction::Max => is_written_one_way(&argument.ty()),
        AggregateFunction::Sum | AggregateFunction::Avg | AggregateFunction::Spread(_) => {
            !matches!(argument.ty(), Type::Float4 | Type::Float8)
        }
        AggregateFunction::StringAgg => false,
    }
}

fn window_repeats(input: &Node, call: &WindowCall) -> bool {
    let by = call.partition.iter().chain(call.order.iter().map(|key| &key.expr));
    let columns: Vec<usize> = by
        .filter_map(|expr| match expr {
            Expr::Column { index, .. } => Some(*index),
            _ => None,
        })
        .collect();
    // Rows that tie are either one and the same or cannot be told apart.
    let mut all = input.fields.iter().enumerate();
    if is_unique(input, &columns) || all.all(|(c, f)| columns.contains(&c) && is_written_one_way(&f.ty)) {
        return true;
    }
    match &call.function {
        WindowFunction::Rank
        | WindowFunction::DenseRank
        | WindowFunction::PercentRank
        | WindowFunction::CumeDist => true,
        WindowFunction::Aggregate(aggregate) => {
            let whole =
                call.frame.start == Bound::UnboundedPreceding && call.frame.end == Bound::UnboundedFollowing;
            aggregate_repeats(aggregate) && (whole || call.frame.units != Units::Rows)
        }
        WindowFunction::RowNumber
        | WindowFunction::Ntile(_)
        | WindowFunction::Neighbour { .. }
        | WindowFunction::FirstValue(_)
        | WindowFunction::LastValue(_)
        | WindowFunction::NthValue(..) => false,
    }
}
