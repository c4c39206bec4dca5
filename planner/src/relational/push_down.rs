//! Moves conjuncts as close to the tables as they may go, so that a read asks for no row that cannot matter.

use carousel_engine::{
    Type, Value,
    aggregate::AggregateCall,
    error::Result,
    expr::{Expr, columns, remap_columns},
};

use super::{
    node::{Call, Field, JoinKind, Kind, Node},
    subquery::{asks_for_only_row, substitute},
};
use crate::{expression::literal, fit::fit};

/// The tree with only the rows of which the conjuncts are true.
pub(crate) fn push_down(node: Node, conjuncts: Vec<Expr>) -> Result<Node> {
    let Node { kind, fields } = node;
    Ok(match kind {
        Kind::Filter { input, predicate } => {
            push_down(*input, predicate.into_iter().chain(conjuncts).collect())?
        }
        Kind::Project { input, exprs } => {
            let below = conjuncts.iter().map(|c| substitute(c, &exprs)).collect::<Result<Vec<_>>>()?;
            let input = Box::new(push_down(*input, below)?);
            Node { kind: Kind::Project { input, exprs }, fields }
        }
        Kind::Join { kind, left, right, condition } => push_join(kind, *left, *right, condition, conjuncts)?,
        Kind::Aggregate { input, keys, calls } => {
            // Of keys alone: it decides about whole groups.
            let (of_keys, above): (Vec<Expr>, Vec<Expr>) = conjuncts.into_iter().partition(|c| {
                !keys.is_empty() && columns(c).iter().all(|c| *c < keys.len()) && !columns(c).is_empty()
            });
            let below = of_keys.iter().map(|c| substitute(c, &keys)).collect::<Result<Vec<_>>>()?;
            let input = push_down(*input, below)?;
            group_there(input, keys, calls, fields)?.filter(above)
        }
        Kind::Distinct { input } => {
            let input = push_down(*input, conjuncts)?;
            let keys: Vec<Expr> = (0..input.width()).map(|c| input.column(c)).collect();
            let grouped = group_there(input, keys, Vec::new(), fields)?;
            match grouped.kind {
                Kind::Aggregate { input, .. } => {
                    Node { kind: Kind::Distinct { input }, fields: grouped.fields }
                }
                kind => Node { kind, fields: grouped.fields },
            }
        }
        Kind::Union { inputs } => {
            let inputs = inputs.into_iter().map(|i| push_down(i, conjuncts.clone()));
            Node { kind: Kind::Union { inputs: inputs.collect::<Result<Vec<_>>>()? }, fields }
        }
        Kind::Window { input, calls } => {
            let input = Box::new(push_down(*input, Vec::new())?);
            Node { kind: Kind::Window { input, calls }, fields }.filter(conjuncts)
        }
        Kind::Sort { input, keys, limit, offset } => {
            let whole = limit.is_none() && offset.is_none();
            let (below, above) = if whole { (conjuncts, Vec::new()) } else { (Vec::new(), conjuncts) };
            let input = Box::new(push_down(*input, below)?);
            Node { kind: Kind::Sort { input, keys, limit, offset }, fields }.filter(above)
        }
        Kind::Scan { table, mut predicate } => {
            for conjunct in conjuncts.into_iter().flat_map(fit) {
                match conjunct {
                    Expr::Literal { value: Value::Bool(true), .. } => {}
                    Expr::Literal { .. } => {
                        predicate = vec![literal(Value::Bool(false), Type::Bool)];
                        break;
                    }
                    other => predicate.push(other),
                }
            }
            Node { kind: Kind::Scan { table, predicate }, fields }
        }
        kind @ (Kind::Groups { .. }
        | Kind::Rows(_)
        | Kind::Batch(_)
        | Kind::System(_)
        | Kind::Series(_)
        | Kind::Shared(_)) => Node { kind, fields }.filter(conjuncts),
    })
}

/// Groups the rows of a tree; where they are, when they are those of one table.
fn group_there(input: Node, keys: Vec<Expr>, calls: Vec<Call>, fields: Vec<Field>) -> Result<Node> {
    let mut exprs: Option<Vec<Expr>> = None;
    let mut bottom = &input;
    while let Kind::Project { input, exprs: more } = &bottom.kind {
        exprs = Some(match exprs {
            None => more.clone(),
            Some(exprs) => exprs.iter().map(|e| substitute(e, more)).collect::<Result<Vec<_>>>()?,
        });
        bottom = input;
    }
    let over = |expr: &Expr| exprs.as_ref().map_or_else(|| Ok(expr.clone()), |exprs| substitute(expr, exprs));
    let aggregates: Option<Vec<AggregateCall>> = calls
        .iter()
        .map(|call| match call {
            Call::Aggregate(call) => Some(call.clone()),
            Call::Single(_) => None,
        })
        .collect();
    let (Kind::Scan { table, predicate }, Some(mut aggregates)) = (&bottom.kind, aggregates) else {
        return Ok(Node { kind: Kind::Aggregate { input: Box::new(input), keys, calls }, fields });
    };
    if keys.is_empty() && aggregates.is_empty() {
        return Ok(Node { kind: Kind::Aggregate { input: Box::new(input), keys, calls }, fields });
    }
    let keys = keys.iter().map(over).collect::<Result<Vec<_>>>()?;
    for call in &mut aggregates {
        call.argument = call.argument.as_ref().map(over).transpose()?;
        call.filter = call.filter.as_ref().map(over).transpose()?;
        call.further = call.further.iter().map(over).collect::<Result<Vec<_>>>()?;
    }
    let (table, predicate) = (table.clone(), predicate.clone());
    Ok(Node { kind: Kind::Groups { table, predicate, keys, calls: aggregates }, fields })
}

/// On which side of a join the columns of an expression are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Neither,
    Left,
    Right,
    Both,
}

fn side(expr: &Expr, left_width: usize) -> Side {
    let used = columns(expr);
    let left = used.iter().any(|c| *c < left_width);
    let right = used.iter().any(|c| *c >= left_width);
    match (left, right) {
        (false, false) => Side::Neither,
        (true, false) => Side::Left,
        (false, true) => Side::Right,
        (true, true) => Side::Both,
    }
}

fn push_join(
    kind: JoinKind,
    left: Node,
    right: Node,
    condition: Vec<Expr>,
    conjuncts: Vec<Expr>,
) -> Result<Node> {
    let width = left.width();
    let of_right = |expr: Expr| remap_columns(expr, &|column| column - width);
    let (mut to_left, mut to_right, mut on, mut above) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // What is said of the result.
    for conjunct in conjuncts {
        match (kind, side(&conjunct, width)) {
            (JoinKind::Inner, Side::Left | Side::Neither) => to_left.push(conjunct),
            (JoinKind::Inner, Side::Right) => to_right.push(of_right(conjunct)),
            // As a key of the join it would be computed for a row that meets no other.
            (JoinKind::Inner, Side::Both) if !asks_for_only_row(&conjunct) => on.push(conjunct),
            (JoinKind::Left | JoinKind::Semi | JoinKind::Anti | JoinKind::Mark, Side::Left) => {
                to_left.push(conjunct);
            }
            (JoinKind::Right, Side::Right) => to_right.push(of_right(conjunct)),
            _ => above.push(conjunct),
        }
    }
    // What decides who is whose partner.
    for conjunct in condition {
        match (kind, side(&conjunct, width)) {
            (JoinKind::Inner | JoinKind::Semi | JoinKind::Right, Side::Left) => to_left.push(conjunct),
            (
                JoinKind::Inner | JoinKind::Left | JoinKind::Semi | JoinKind::Anti | JoinKind::Mark,
                Side::Right,
            ) => to_right.push(of_right(conjunct)),
            _ => on.push(conjunct),
        }
    }
    let left = push_down(left, to_left)?;
    let right = push_down(right, to_right)?;
    Ok(left.join(kind, right, on).filter(above))
}
