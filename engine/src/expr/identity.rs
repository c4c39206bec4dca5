//! Whether expressions are the same: not only equal, but of the same value whatever they are evaluated on.

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3;

use super::{EvalContext, Expr, children, walk};
use crate::{numeric::Numeric, types::Type, value::Value};

/// Whether two expressions have the same value on every row, each in its own context. Constants that only compare as
/// equal, such as `1.0` and `1.00`, do not make the same expression.
pub(crate) fn are_same(a: &Expr, a_context: &EvalContext, b: &Expr, b_context: &EvalContext) -> bool {
    a == b && have_same_constants(a, b) && depends(a).is_equal(a_context, b_context)
}

/// As [`are_same`], for lists.
pub(crate) fn are_all_same(a: &[Expr], a_context: &EvalContext, b: &[Expr], b_context: &EvalContext) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_same(a, a_context, b, b_context))
}

/// A hash that is the same for expressions that are.
pub(crate) fn hash_of(exprs: &[Expr]) -> u64 {
    let mut hasher = Xxh3::new();
    for expr in exprs {
        walk(expr, &mut |part| {
            std::mem::discriminant(part).hash(&mut hasher);
            match part {
                Expr::Literal { value, .. } => value.hash(&mut hasher),
                Expr::Column { index, .. } => index.hash(&mut hasher),
                Expr::Call { function, .. } => function.hash(&mut hasher),
                Expr::Compare { op, .. } => op.hash(&mut hasher),
                _ => {}
            }
        });
    }
    hasher.finish()
}

/// Of two equal expressions.
fn have_same_constants(a: &Expr, b: &Expr) -> bool {
    match (a, b) {
        (Expr::Literal { value: a, .. }, Expr::Literal { value: b, .. }) => is_same_value(a, b),
        _ => children(a).into_iter().zip(children(b)).all(|(a, b)| have_same_constants(a, b)),
    }
}

/// Of two equal values.
fn is_same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float4(a), Value::Float4(b)) => a.to_bits() == b.to_bits(),
        (Value::Float8(a), Value::Float8(b)) => a.to_bits() == b.to_bits(),
        (Value::Numeric(Numeric::Finite(a)), Value::Numeric(Numeric::Finite(b))) => {
            a.fractional_digit_count() == b.fractional_digit_count()
        }
        (Value::Interval(a), Value::Interval(b)) => {
            (a.months, a.days, a.microseconds) == (b.months, b.days, b.microseconds)
        }
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

/// What an expression depends on besides its row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depends {
    Nothing,
    TimeZone,
    Everything,
}

impl Depends {
    fn is_equal(self, a: &EvalContext, b: &EvalContext) -> bool {
        match self {
            Depends::Nothing => true,
            Depends::TimeZone => a.time_zone == b.time_zone,
            Depends::Everything => a == b,
        }
    }
}

/// Only what turns moments of time into something else or back depends on the context; and when it reads them from text,
/// such as `'today'`, on all of it.
fn depends(expr: &Expr) -> Depends {
    let is_moment = |ty: &Type| {
        matches!(ty, Type::Date | Type::Time | Type::Timestamp | Type::TimestampTz | Type::Interval)
    };
    let mut most = Depends::Nothing;
    walk(expr, &mut |part| {
        if !matches!(part, Expr::Call { .. } | Expr::Cast { .. }) {
            return;
        }
        let operands: Vec<Type> = children(part).into_iter().map(Expr::ty).collect();
        let makes = is_moment(&part.ty());
        if makes && operands.iter().any(Type::is_string) {
            most = Depends::Everything;
        } else if makes || operands.iter().any(is_moment) {
            most = most.max(Depends::TimeZone);
        }
    });
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::CastKind;

    fn number(unscaled: i64, scale: u32) -> Expr {
        Expr::literal(Value::Numeric(Numeric::new(unscaled, scale)), Type::Numeric(None))
    }

    #[test]
    fn equal_constants_of_different_forms_are_not_the_same() {
        let context = EvalContext::default();
        let same = |a: &Expr, b: &Expr| are_same(a, &context, b, &context);
        assert_eq!(number(10, 1), number(100, 2));
        assert!(!same(&number(10, 1), &number(100, 2)));
        assert!(same(&number(10, 1), &number(10, 1)));
        let zero = |value| Expr::Not(Box::new(Expr::literal(Value::Float8(value), Type::Float8)));
        assert!(!same(&zero(0.0), &zero(-0.0)));
        assert!(same(&zero(f64::NAN), &zero(f64::NAN)));
        assert_eq!(hash_of(&[zero(0.5)]), hash_of(&[zero(0.5)]));
    }

    #[test]
    fn the_context_counts_where_it_is_asked() {
        let here = EvalContext { now: 1, ..EvalContext::default() };
        let later = EvalContext { now: 2, ..EvalContext::default() };
        let elsewhere = EvalContext { time_zone: "Asia/Tokyo".into(), ..here.clone() };
        let cast = |from: Type, to: Type| Expr::Cast {
            expr: Box::new(Expr::column(0, from)),
            to,
            kind: CastKind::Explicit,
        };
        let number = cast(Type::Int4, Type::Int8);
        assert!(are_same(&number, &here, &number, &later) && are_same(&number, &here, &number, &elsewhere));
        let shown = cast(Type::TimestampTz, Type::Text);
        assert!(are_same(&shown, &here, &shown, &later) && !are_same(&shown, &here, &shown, &elsewhere));
        let read = cast(Type::Text, Type::Date);
        assert!(!are_same(&read, &here, &read, &later) && are_same(&read, &here, &read, &here));
    }
}
