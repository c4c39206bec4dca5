//! Walks over typed expressions.

use carousel_engine::{error::Result, expr::Expr};

/// Rebuilds an expression from the top: where `replace` gives an expression, that is taken and not looked into.
pub(crate) fn rewrite(expr: &Expr, replace: &mut dyn FnMut(&Expr) -> Result<Option<Expr>>) -> Result<Expr> {
    if let Some(replaced) = replace(expr)? {
        return Ok(replaced);
    }
    let mut one = |e: &Expr| rewrite(e, replace).map(Box::new);
    Ok(match expr {
        Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } => expr.clone(),
        Expr::Call { function, args, ty } => {
            Expr::Call { function: *function, args: all(args, replace)?, ty: ty.clone() }
        }
        Expr::Cast { expr, to, kind } => Expr::Cast { expr: one(expr)?, to: to.clone(), kind: *kind },
        Expr::Compare { op, left, right } => Expr::Compare { op: *op, left: one(left)?, right: one(right)? },
        Expr::And(operands) => Expr::And(all(operands, replace)?),
        Expr::Or(operands) => Expr::Or(all(operands, replace)?),
        Expr::Not(operand) => Expr::Not(one(operand)?),
        Expr::IsNull { expr, negated } => Expr::IsNull { expr: one(expr)?, negated: *negated },
        Expr::IsTruth { expr, truth, negated } => {
            Expr::IsTruth { expr: one(expr)?, truth: *truth, negated: *negated }
        }
        Expr::IsDistinct { left, right, negated } => {
            Expr::IsDistinct { left: one(left)?, right: one(right)?, negated: *negated }
        }
        Expr::InList { expr, list, negated } => {
            let expr = one(expr)?;
            Expr::InList { expr, list: all(list, replace)?, negated: *negated }
        }
        Expr::Like { expr, pattern, escape, case_insensitive, negated } => Expr::Like {
            expr: one(expr)?,
            pattern: one(pattern)?,
            escape: *escape,
            case_insensitive: *case_insensitive,
            negated: *negated,
        },
        Expr::Case { branches, otherwise, ty } => {
            let mut rebuilt = Vec::with_capacity(branches.len());
            for (condition, result) in branches {
                rebuilt.push((rewrite(condition, replace)?, rewrite(result, replace)?));
            }
            let otherwise = otherwise.as_deref().map(|e| rewrite(e, replace).map(Box::new)).transpose()?;
            Expr::Case { branches: rebuilt, otherwise, ty: ty.clone() }
        }
        Expr::Coalesce { args, ty } => Expr::Coalesce { args: all(args, replace)?, ty: ty.clone() },
    })
}

fn all(exprs: &[Expr], replace: &mut dyn FnMut(&Expr) -> Result<Option<Expr>>) -> Result<Vec<Expr>> {
    exprs.iter().map(|e| rewrite(e, replace)).collect()
}

/// How deep an expression nests, as far as it matters: counting stops at `limit`.
pub(crate) fn depth(expr: &Expr, limit: usize) -> usize {
    if limit == 0 {
        return 0;
    }
    let one = |e: &Expr| depth(e, limit - 1);
    let all = |exprs: &[Expr]| exprs.iter().map(one).max().unwrap_or(0);
    1 + match expr {
        Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } => 0,
        Expr::Call { args, .. } | Expr::Coalesce { args, .. } | Expr::And(args) | Expr::Or(args) => all(args),
        Expr::Cast { expr, .. }
        | Expr::Not(expr)
        | Expr::IsNull { expr, .. }
        | Expr::IsTruth { expr, .. } => one(expr),
        Expr::Compare { left, right, .. } | Expr::IsDistinct { left, right, .. } => one(left).max(one(right)),
        Expr::InList { expr, list, .. } => one(expr).max(all(list)),
        Expr::Like { expr, pattern, .. } => one(expr).max(one(pattern)),
        Expr::Case { branches, otherwise, .. } => {
            let branches = branches.iter().map(|(condition, result)| one(condition).max(one(result)));
            branches.max().unwrap_or(0).max(otherwise.as_deref().map_or(0, one))
        }
    }
}

/// Splits a condition at its top-level ANDs, in the order in which it was written.
pub(crate) fn conjuncts(condition: Expr) -> Vec<Expr> {
    match condition {
        Expr::And(operands) => operands.into_iter().flat_map(conjuncts).collect(),
        other => vec![other],
    }
}
