//! The reference evaluator: one row at a time, exactly PostgreSQL's order of evaluation.

use super::{
    CompareOp, EvalContext, Expr, Function, Row, call, cast,
    pattern::{LikePattern, with_regex},
};
use crate::{
    error::{Result, SqlError, SqlState},
    types::Type,
    value::{Value, compare_as},
};

/// How deep expressions may be nested; evaluation takes stack in proportion.
pub const MAX_DEPTH: usize = 500;

/// 54001 when an expression is nested deeper than [`MAX_DEPTH`]. What builds or decodes expressions checks them before
/// they are evaluated.
pub fn check_depth(expr: &Expr) -> Result<()> {
    fn within(expr: &Expr, left: usize) -> bool {
        left > 0 && super::children(expr).into_iter().all(|child| within(child, left - 1))
    }
    if within(expr, MAX_DEPTH) {
        return Ok(());
    }
    Err(SqlError::new(SqlState::TOO_COMPLEX, "stack depth limit exceeded")
        .with_hint(format!("Expressions may be nested up to {MAX_DEPTH} levels deep.")))
}

/// Evaluates an expression over one row.
pub fn eval(expr: &Expr, row: &(impl Row + ?Sized), context: &EvalContext) -> Result<Value> {
    match expr {
        Expr::Literal { value, .. } => Ok(value.clone()),
        Expr::Column { index, ty } => Ok(row.value(*index, ty)),
        Expr::Parameter { index, .. } => {
            Err(SqlError::new(SqlState::UNDEFINED_PARAMETER, format!("no value found for parameter {index}")))
        }
        Expr::Call { function, args, .. } => {
            let mut values = Vec::with_capacity(args.len());
            for arg in args {
                values.push(eval(arg, row, context)?);
            }
            call::call(*function, &values, || args.first().map_or(Type::Text, Expr::ty), context)
        }
        Expr::Cast { expr, to, kind } => {
            let value = eval(expr, row, context)?;
            if value.is_null() {
                return Ok(value);
            }
            let from = expr.ty();
            call::contained(to, || cast::cast(value, &from, to, *kind, context))
        }
        Expr::Compare { op, left, right } => {
            let a = eval(left, row, context)?;
            let b = eval(right, row, context)?;
            Ok(compare_values(*op, &a, &b, left))
        }
        Expr::And(operands) => connect(operands, false, row, context),
        Expr::Or(operands) => connect(operands, true, row, context),
        Expr::Not(expr) => Ok(match eval(expr, row, context)?.as_bool() {
            Some(value) => Value::Bool(!value),
            None => Value::Null,
        }),
        Expr::IsNull { expr, negated } => Ok(Value::Bool(eval(expr, row, context)?.is_null() != *negated)),
        Expr::IsTruth { expr, truth, negated } => {
            let value = eval(expr, row, context)?.as_bool();
            Ok(Value::Bool((value == *truth) != *negated))
        }
        Expr::IsDistinct { left, right, negated } => {
            let a = eval(left, row, context)?;
            let b = eval(right, row, context)?;
            Ok(Value::Bool(compare_as(&a, &b, &left.ty()).is_ne() != *negated))
        }
        Expr::InList { expr, list, negated } => in_list(expr, list, *negated, row, context),
        Expr::Like { expr, pattern, escape, case_insensitive, negated } => {
            let text = eval(expr, row, context)?;
            let pattern = eval(pattern, row, context)?;
            let (Some(text), Some(pattern)) = (text.as_str(), pattern.as_str()) else {
                return Ok(Value::Null);
            };
            let matched = LikePattern::new(pattern, *escape, *case_insensitive).matches(text)?;
            Ok(Value::Bool(matched != *negated))
        }
        Expr::Case { branches, otherwise, .. } => {
            for (condition, result) in branches {
                if eval(condition, row, context)?.as_bool() == Some(true) {
                    return eval(result, row, context);
                }
            }
            otherwise.as_ref().map_or(Ok(Value::Null), |result| eval(result, row, context))
        }
        Expr::Coalesce { args, .. } => {
            for arg in args {
                let value = eval(arg, row, context)?;
                if !value.is_null() {
                    return Ok(value);
                }
            }
            Ok(Value::Null)
        }
    }
}

fn compare_values(op: CompareOp, a: &Value, b: &Value, left: &Expr) -> Value {
    if a.is_null() || b.is_null() {
        return Value::Null;
    }
    // Only strings need their type.
    let ordering =
        if matches!(a, Value::Text(_)) { compare_as(a, b, &left.ty()) } else { crate::value::compare(a, b) };
    Value::Bool(op.holds(ordering))
}

fn connect(
    operands: &[Expr],
    decisive: bool,
    row: &(impl Row + ?Sized),
    context: &EvalContext,
) -> Result<Value> {
    let mut unknown = false;
    for operand in operands {
        match eval(operand, row, context)?.as_bool() {
            Some(value) if value == decisive => return Ok(Value::Bool(decisive)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { Value::Null } else { Value::Bool(!decisive) })
}

fn in_list(
    expr: &Expr,
    list: &[Expr],
    negated: bool,
    row: &(impl Row + ?Sized),
    context: &EvalContext,
) -> Result<Value> {
    let value = eval(expr, row, context)?;
    let ty = expr.ty();
    let mut unknown = false;
    for member in list {
        let member = eval(member, row, context)?;
        if value.is_null() || member.is_null() {
            unknown = true;
        } else if compare_as(&value, &member, &ty).is_eq() {
            return Ok(Value::Bool(!negated));
        }
    }
    Ok(if unknown { Value::Null } else { Value::Bool(negated) })
}

/// Evaluates an expression without columns.
pub fn eval_const(expr: &Expr, context: &EvalContext) -> Result<Value> {
    match super::columns(expr).first() {
        Some(index) => Err(SqlError::internal(format!("column {index} in a constant expression"))),
        None => eval(expr, &[] as &[Value], context),
    }
}

/// Whether a row for which the conjuncts evaluate so qualifies: every one of them is true. Evaluated from the left; what
/// follows a conjunct that is not true is not evaluated.
pub fn qualifies(predicate: &[Expr], row: &(impl Row + ?Sized), context: &EvalContext) -> Result<bool> {
    for conjunct in predicate {
        if eval(conjunct, row, context)?.as_bool() != Some(true) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether evaluation may fail for some row. Conservative: `true` when it cannot be excluded.
pub fn can_fail(expr: &Expr) -> bool {
    let itself = match expr {
        Expr::Column { .. } | Expr::Literal { .. } => return false,
        Expr::Compare { left, right, .. } => return can_fail(left) || can_fail(right),
        Expr::Parameter { .. } => true,
        Expr::Call { function, args, .. } => !function.is_total() && !matches_valid_regex(*function, args),
        Expr::Cast { expr, to, kind } => cast::cast_can_fail(&expr.ty(), to, *kind),
        Expr::Like { pattern, escape, case_insensitive, .. } => match pattern.as_ref() {
            Expr::Literal { value: Value::Text(pattern), .. } => {
                LikePattern::new(pattern, *escape, *case_insensitive).can_fail()
            }
            Expr::Literal { value: Value::Null, .. } => false,
            _ => true,
        },
        _ => false,
    };
    itself || super::children(expr).into_iter().any(can_fail)
}

/// Whether a call matches a constant regular expression that is one.
fn matches_valid_regex(function: Function, args: &[Expr]) -> bool {
    let case_insensitive = match function {
        Function::RegexMatch | Function::RegexNotMatch => false,
        Function::RegexMatchInsensitive | Function::RegexNotMatchInsensitive => true,
        _ => return false,
    };
    match args {
        [_, Expr::Literal { value: Value::Text(pattern), .. }] => {
            with_regex(pattern, case_insensitive, |_| ()).is_ok()
        }
        [_, Expr::Literal { value: Value::Null, .. }] => true,
        _ => false,
    }
}

/// Folds what does not depend on the row, as PostgreSQL does when it plans: an error in a constant part that may be
/// reached is the statement's error; parts behind a deciding constant operand are dropped unevaluated.
pub fn fold(expr: &Expr, context: &EvalContext) -> Result<Expr> {
    let folded = match expr {
        Expr::And(operands) => return fold_connective(operands, false, context),
        Expr::Or(operands) => return fold_connective(operands, true, context),
        Expr::Case { branches, otherwise, ty } => {
            let mut kept = Vec::new();
            let mut last = None;
            for (condition, result) in branches {
                let condition = fold(condition, context)?;
                match &condition {
                    Expr::Literal { value: Value::Bool(true), .. } => {
                        last = Some(fold(result, context)?);
                        break;
                    }
                    Expr::Literal { .. } => continue,
                    _ => {
                        let result = fold(result, context)?;
                        kept.push((condition, result));
                    }
                }
            }
            let otherwise = match (last, otherwise) {
                (Some(last), _) => Some(last),
                (None, Some(otherwise)) => Some(fold(otherwise, context)?),
                (None, None) => None,
            };
            if kept.is_empty() {
                let null = || Expr::Literal { value: Value::Null, ty: ty.clone() };
                return Ok(of_type(otherwise.unwrap_or_else(null), ty));
            }
            return Ok(Expr::Case { branches: kept, otherwise: otherwise.map(Box::new), ty: ty.clone() });
        }
        Expr::Coalesce { args, ty } => {
            let mut kept = Vec::new();
            for arg in args {
                let arg = fold(arg, context)?;
                match &arg {
                    Expr::Literal { value: Value::Null, .. } => continue,
                    Expr::Literal { .. } => {
                        kept.push(arg);
                        break;
                    }
                    _ => kept.push(arg),
                }
            }
            return Ok(match kept.len() {
                0 => Expr::Literal { value: Value::Null, ty: ty.clone() },
                1 if matches!(kept[0], Expr::Literal { .. }) => of_type(kept.remove(0), ty),
                _ => Expr::Coalesce { args: kept, ty: ty.clone() },
            });
        }
        other => super::map_children(other.clone(), &mut |child| fold(&child, context))?,
    };
    let constant = super::children(&folded).into_iter().all(|child| matches!(child, Expr::Literal { .. }));
    match folded {
        Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } => Ok(folded),
        folded if constant => {
            let value = eval(&folded, &[] as &[Value], context)?;
            Ok(Expr::Literal { value, ty: folded.ty() })
        }
        folded => Ok(folded),
    }
}

/// What is left of an expression of this type. Its own may have other modifiers, and `numeric(4, 1)` is laid out in another way
/// than `numeric`.
fn of_type(expr: Expr, ty: &Type) -> Expr {
    match expr {
        Expr::Literal { value, .. } => Expr::Literal { value, ty: ty.clone() },
        expr if expr.ty() == *ty => expr,
        expr => Expr::Coalesce { args: vec![expr], ty: ty.clone() },
    }
}

fn fold_connective(operands: &[Expr], decisive: bool, context: &EvalContext) -> Result<Expr> {
    let boolean = |value| Expr::Literal { value, ty: Type::Bool };
    let mut kept = Vec::new();
    let mut unknown = false;
    for operand in operands {
        let operand = fold(operand, context)?;
        match operand {
            Expr::Literal { value: Value::Bool(value), .. } if value == decisive => {
                return Ok(boolean(Value::Bool(decisive)));
            }
            Expr::Literal { value: Value::Bool(_), .. } => {}
            Expr::Literal { .. } => unknown = true,
            other => kept.push(other),
        }
    }
    if unknown {
        kept.push(boolean(Value::Null));
    }
    Ok(match kept.len() {
        0 => boolean(Value::Bool(!decisive)),
        1 => kept.remove(0),
        _ if decisive => Expr::Or(kept),
        _ => Expr::And(kept),
    })
}
