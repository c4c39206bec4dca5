//! Walking and rewriting expressions.

use std::collections::BTreeSet;

use super::Expr;
use crate::{
    error::{Result, SqlError, SqlState},
    value::Value,
};

/// The direct operands of an expression, in the order of evaluation.
pub fn children(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } => Vec::new(),
        Expr::Call { args, .. } | Expr::Coalesce { args, .. } | Expr::And(args) | Expr::Or(args) => {
            args.iter().collect()
        }
        Expr::Cast { expr, .. }
        | Expr::Not(expr)
        | Expr::IsNull { expr, .. }
        | Expr::IsTruth { expr, .. } => vec![expr],
        Expr::Compare { left, right, .. } | Expr::IsDistinct { left, right, .. } => vec![left, right],
        Expr::InList { expr, list, .. } => std::iter::once(expr.as_ref()).chain(list).collect(),
        Expr::Like { expr, pattern, .. } => vec![expr, pattern],
        Expr::Case { branches, otherwise, .. } => branches
            .iter()
            .flat_map(|(condition, result)| [condition, result])
            .chain(otherwise.as_deref())
            .collect(),
    }
}

/// Calls `visit` on an expression and on everything within it, parents first.
pub fn walk<'a>(expr: &'a Expr, visit: &mut impl FnMut(&'a Expr)) {
    visit(expr);
    for child in children(expr) {
        walk(child, visit);
    }
}

/// Indices of the columns that an expression reads.
pub fn columns(expr: &Expr) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    walk(expr, &mut |part| {
        if let Expr::Column { index, .. } = part {
            found.insert(*index);
        }
    });
    found
}

/// The expression with `map` applied to its direct operands.
pub fn map_children(expr: Expr, map: &mut dyn FnMut(Expr) -> Result<Expr>) -> Result<Expr> {
    fn all(args: Vec<Expr>, map: &mut dyn FnMut(Expr) -> Result<Expr>) -> Result<Vec<Expr>> {
        args.into_iter().map(map).collect()
    }
    #[allow(clippy::boxed_local)] // the operand comes out of its box
    fn boxed(expr: Box<Expr>, map: &mut dyn FnMut(Expr) -> Result<Expr>) -> Result<Box<Expr>> {
        Ok(Box::new(map(*expr)?))
    }
    Ok(match expr {
        leaf @ (Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. }) => leaf,
        Expr::Call { function, args, ty } => Expr::Call { function, args: all(args, map)?, ty },
        Expr::Coalesce { args, ty } => Expr::Coalesce { args: all(args, map)?, ty },
        Expr::And(args) => Expr::And(all(args, map)?),
        Expr::Or(args) => Expr::Or(all(args, map)?),
        Expr::Cast { expr, to, kind } => Expr::Cast { expr: boxed(expr, map)?, to, kind },
        Expr::Not(expr) => Expr::Not(boxed(expr, map)?),
        Expr::IsNull { expr, negated } => Expr::IsNull { expr: boxed(expr, map)?, negated },
        Expr::IsTruth { expr, truth, negated } => Expr::IsTruth { expr: boxed(expr, map)?, truth, negated },
        Expr::Compare { op, left, right } => {
            Expr::Compare { op, left: boxed(left, map)?, right: boxed(right, map)? }
        }
        Expr::IsDistinct { left, right, negated } => {
            Expr::IsDistinct { left: boxed(left, map)?, right: boxed(right, map)?, negated }
        }
        Expr::InList { expr, list, negated } => {
            Expr::InList { expr: boxed(expr, map)?, list: all(list, map)?, negated }
        }
        Expr::Like { expr, pattern, escape, case_insensitive, negated } => Expr::Like {
            expr: boxed(expr, map)?,
            pattern: boxed(pattern, map)?,
            escape,
            case_insensitive,
            negated,
        },
        Expr::Case { branches, otherwise, ty } => Expr::Case {
            branches: branches
                .into_iter()
                .map(|(condition, result)| Ok((map(condition)?, map(result)?)))
                .collect::<Result<_>>()?,
            otherwise: otherwise.map(|otherwise| boxed(otherwise, map)).transpose()?,
            ty,
        },
    })
}

/// The expression with `map` applied to every part, operands first.
pub fn transform(expr: Expr, map: &mut dyn FnMut(Expr) -> Result<Expr>) -> Result<Expr> {
    let inner = map_children(expr, &mut |child| transform(child, map))?;
    map(inner)
}

/// The expression with its columns renumbered.
pub fn remap_columns(expr: Expr, renumber: &impl Fn(usize) -> usize) -> Expr {
    let mapped = transform(expr, &mut |part| {
        Ok(match part {
            Expr::Column { index, ty } => Expr::Column { index: renumber(index), ty },
            other => other,
        })
    });
    mapped.expect("renumbering does not fail")
}

/// The expression with every column number increased by `by`.
pub fn shift_columns(expr: Expr, by: usize) -> Expr {
    remap_columns(expr, &|index| index + by)
}

/// The expression with its parameters replaced by literals: `$1` by the first value, and so on. Values already have the
/// parameters' types. 42P02 when there is none for a parameter.
pub fn bind_parameters(expr: Expr, values: &[Value]) -> Result<Expr> {
    transform(expr, &mut |part| match part {
        Expr::Parameter { index, ty } => match index.checked_sub(1).and_then(|i| values.get(i)) {
            Some(value) => Ok(Expr::Literal { value: value.clone(), ty }),
            None => {
                Err(SqlError::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${index}")))
            }
        },
        other => Ok(other),
    })
}
