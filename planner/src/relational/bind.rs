//! Parameters and session values put into a relational statement.

use std::sync::Arc;

use carousel_engine::{Type, Value, error::Result, expr::Expr};

use super::{
    RelationalPlan,
    execute::Relational,
    node::{Kind, Node},
    push_down::push_down,
};
use crate::{
    bind::{Binder, rows_batch},
    expression::literal,
    parse::with_stack,
    settings::{IdSource, Settings},
};

/// Binds a relational statement.
pub(crate) fn bind_relational(
    plan: &RelationalPlan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Relational> {
    let mut binder = Binder::new(parameters, settings, ids, &plan.session_values);
    let node = with_stack(plan.node.is_deep(), || {
        let mut node = plan.node.clone();
        bind_node(&mut node, &mut binder)?;
        push_down(node, Vec::new())
    })?;
    Ok(Relational { node, context: Arc::new(settings.eval_context()) })
}

fn bind_node(node: &mut Node, binder: &mut Binder<'_>) -> Result<()> {
    for input in node.inputs_mut() {
        bind_node(input, binder)?;
    }
    match &mut node.kind {
        Kind::Scan { predicate, .. } | Kind::Filter { predicate, .. } => {
            *predicate = binder.predicate(predicate)?;
        }
        Kind::Join { condition, .. } => *condition = binder.predicate(condition)?,
        Kind::Rows(rows) => {
            let types: Vec<Type> = node.fields.iter().map(|f| f.ty.clone()).collect();
            node.kind = Kind::Batch(rows_batch(binder, rows, &types)?);
        }
        Kind::Sort { limit, offset, .. } => {
            let number = |count: Option<u64>| {
                let count = count.map(|c| i64::try_from(c).unwrap_or(i64::MAX));
                count.map(|c| literal(Value::Int8(c), Type::Int8))
            };
            let bound: Option<Expr> = number(binder.count(limit.as_ref(), "LIMIT", b"2201W")?);
            *limit = bound;
            let bound: Option<Expr> = number(binder.count(offset.as_ref(), "OFFSET", b"2201X")?);
            *offset = bound;
        }
        _ => {
            for expr in node.exprs_mut() {
                *expr = binder.expr(expr)?;
            }
        }
    }
    Ok(())
}
