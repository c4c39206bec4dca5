//! What the shard must know about expressions before it evaluates them: which columns they read, and whether they
//! can fail.

use crate::{expr::Expr, types::Type, value::Value};

/// Calls `f` for each direct operand.
fn for_each_operand<'a>(expr: &'a Expr, f: &mut dyn FnMut(&'a Expr)) {
    match expr {
        Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } => {}
        Expr::Call { args, .. } | Expr::And(args) | Expr::Or(args) | Expr::Coalesce { args, .. } => {
            args.iter().for_each(f)
        }
        Expr::Cast { expr, .. }
        | Expr::Not(expr)
        | Expr::IsNull { expr, .. }
        | Expr::IsTruth { expr, .. } => f(expr),
        Expr::Compare { left, right, .. } | Expr::IsDistinct { left, right, .. } => {
            f(left);
            f(right);
        }
        Expr::InList { expr, list, .. } => {
            f(expr);
            list.iter().for_each(f);
        }
        Expr::Like { expr, pattern, .. } => {
            f(expr);
            f(pattern);
        }
        Expr::Case { branches, otherwise, .. } => {
            for (condition, result) in branches {
                f(condition);
                f(result);
            }
            if let Some(otherwise) = otherwise {
                f(otherwise);
            }
        }
    }
}

fn for_each_operand_mut(expr: &mut Expr, f: &mut dyn FnMut(&mut Expr)) {
    match expr {
        Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } => {}
        Expr::Call { args, .. } | Expr::And(args) | Expr::Or(args) | Expr::Coalesce { args, .. } => {
            args.iter_mut().for_each(f)
        }
        Expr::Cast { expr, .. }
        | Expr::Not(expr)
        | Expr::IsNull { expr, .. }
        | Expr::IsTruth { expr, .. } => f(expr),
        Expr::Compare { left, right, .. } | Expr::IsDistinct { left, right, .. } => {
            f(left);
            f(right);
        }
        Expr::InList { expr, list, .. } => {
            f(expr);
            list.iter_mut().for_each(f);
        }
        Expr::Like { expr, pattern, .. } => {
            f(expr);
            f(pattern);
        }
        Expr::Case { branches, otherwise, .. } => {
            for (condition, result) in branches {
                f(condition);
                f(result);
            }
            if let Some(otherwise) = otherwise {
                f(otherwise);
            }
        }
    }
}

/// Adds the indices of the columns that the expression reads.
pub(crate) fn collect_columns(expr: &Expr, columns: &mut Vec<usize>) {
    if let Expr::Column { index, .. } = expr {
        if !columns.contains(index) {
            columns.push(*index);
        }
    } else {
        for_each_operand(expr, &mut |operand| collect_columns(operand, columns));
    }
}

/// Replaces the index of every column reference.
pub(crate) fn map_columns(expr: &mut Expr, map: &dyn Fn(usize) -> usize) {
    if let Expr::Column { index, .. } = expr {
        *index = map(*index);
    } else {
        for_each_operand_mut(expr, &mut |operand| map_columns(operand, map));
    }
}

/// The one column that an infallible expression reads, if it is one.
pub(crate) fn single_column(expr: &Expr) -> Option<usize> {
    let mut columns = Vec::new();
    collect_columns(expr, &mut columns);
    match (columns.as_slice(), infallible(expr)) {
        ([column], true) => Some(*column),
        _ => None,
    }
}

/// The expression over a row that consists of its single column.
pub(crate) fn with_only_column(expr: &Expr) -> Expr {
    let mut expr = expr.clone();
    map_columns(&mut expr, &|_| 0);
    expr
}

/// Whether evaluation cannot fail, whatever the row. May say no too often.
pub(crate) fn infallible(expr: &Expr) -> bool {
    let node = match expr {
        Expr::Literal { .. }
        | Expr::Column { .. }
        | Expr::Compare { .. }
        | Expr::And(_)
        | Expr::Or(_)
        | Expr::Not(_)
        | Expr::IsNull { .. }
        | Expr::IsTruth { .. }
        | Expr::IsDistinct { .. }
        | Expr::InList { .. }
        | Expr::Case { .. }
        | Expr::Coalesce { .. } => true,
        // A pattern may end with its escape character (22025).
        Expr::Like { pattern, escape, .. } => match pattern.as_ref() {
            Expr::Literal { value: Value::Text(pattern), .. } => {
                escape.is_none_or(|escape| !pattern.contains(escape))
            }
            Expr::Literal { value: Value::Null, .. } => true,
            _ => escape.is_none(),
        },
        Expr::Cast { expr, to, .. } => widens(&expr.ty(), to),
        Expr::Call { .. } | Expr::Parameter { .. } => false,
    };
    let mut all = node;
    for_each_operand(expr, &mut |operand| all = all && infallible(operand));
    all
}

/// Whether every value of `from` has a value of `to`.
fn widens(from: &Type, to: &Type) -> bool {
    match (from, to) {
        (Type::Int2, Type::Int4 | Type::Int8 | Type::Float4 | Type::Float8 | Type::Numeric(None))
        | (Type::Int4, Type::Int8 | Type::Float4 | Type::Float8 | Type::Numeric(None))
        | (Type::Int8, Type::Float4 | Type::Float8 | Type::Numeric(None))
        | (Type::Float4, Type::Float8)
        | (Type::Numeric(_), Type::Numeric(None)) => true,
        (from, Type::Text | Type::Varchar(None)) => from.is_string(),
        (from, to) => from == to,
    }
}
