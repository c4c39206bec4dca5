//! Conjuncts in the form that the engine can index: a column compared with a constant of the column's own type.
//!
//! PostgreSQL's operators compare an `int2` column with an `int4` constant as they are; here the constant is brought to
//! the column's type instead of the column to the constant's, which changes nothing but what the predicate index sees.
//! A constant that the column's type cannot hold lies between two of its values or outside of its range, and the
//! comparison becomes one with the nearest value, or one that is decided for every value.

use carousel_engine::{
    Type, Value,
    expr::{CompareOp, Expr},
};

use crate::{expression::literal, rewrite::conjuncts};

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// Rewrites a conjunct to equivalent conjuncts; only where it is true matters, not whether it is false or NULL.
pub(crate) fn fit(conjunct: Expr) -> Vec<Expr> {
    match conjunct {
        Expr::Not(operand) => negate(*operand),
        Expr::Compare { op, left, right } => vec![fit_comparison(op, *left, *right)],
        Expr::InList { expr, list, negated } => vec![fit_list(*expr, list, negated)],
        Expr::Column { ty: Type::Bool, .. } => vec![equals(conjunct, true)],
        other => vec![other],
    }
}

fn equals(column: Expr, truth: bool) -> Expr {
    let right = Box::new(literal(Value::Bool(truth), Type::Bool));
    Expr::Compare { op: CompareOp::Eq, left: Box::new(column), right }
}

/// A negated conjunct without its NOT, where an equivalent form is indexable.
fn negate(operand: Expr) -> Vec<Expr> {
    match operand {
        Expr::Not(inner) => conjuncts(*inner).into_iter().flat_map(fit).collect(),
        Expr::Or(operands) => operands.into_iter().flat_map(negate).collect(),
        Expr::Compare { op, left, right } => fit(Expr::Compare { op: op.negated(), left, right }),
        Expr::InList { expr, list, negated } => fit(Expr::InList { expr, list, negated: !negated }),
        Expr::IsNull { expr, negated } => vec![Expr::IsNull { expr, negated: !negated }],
        Expr::Like { expr, pattern, escape, case_insensitive, negated } => {
            vec![Expr::Like { expr, pattern, escape, case_insensitive, negated: !negated }]
        }
        Expr::Column { ty: Type::Bool, .. } => vec![equals(operand, false)],
        other => vec![Expr::Not(Box::new(other))],
    }
}

fn never() -> Expr {
    literal(Value::Bool(false), Type::Bool)
}

fn fit_comparison(op: CompareOp, left: Expr, right: Expr) -> Expr {
    let (op, left, right) = match (&left, &right) {
        (Expr::Literal { .. }, Expr::Literal { .. }) => (op, left, right),
        (Expr::Literal { .. }, _) => (op.swapped(), right, left),
        _ => (op, left, right),
    };
    if let Expr::Literal { value: Value::Null, .. } = right {
        return never();
    }
    if let (Some((index, ty)), Expr::Literal { value, .. }) = (cast_column(&left), &right) {
        let column = || Box::new(Expr::column(index, ty.clone()));
        return match bring(op, value, ty) {
            None => Expr::Compare { op, left: Box::new(left), right: Box::new(right) },
            Some(Fitted::Never) => never(),
            Some(Fitted::NotNull) => Expr::IsNull { expr: column(), negated: true },
            Some(Fitted::Compare(op, value)) => {
                Expr::Compare { op, left: column(), right: Box::new(literal(value, ty.clone())) }
            }
        };
    }
    Expr::Compare { op, left: Box::new(left), right: Box::new(right) }
}

fn fit_list(expr: Expr, list: Vec<Expr>, negated: bool) -> Expr {
    let has_null = list.iter().any(|e| matches!(e, Expr::Literal { value: Value::Null, .. }));
    if negated && has_null {
        return never();
    }
    // Nothing equals NULL.
    let list: Vec<Expr> =
        list.into_iter().filter(|e| !matches!(e, Expr::Literal { value: Value::Null, .. })).collect();
    if list.is_empty() {
        return never();
    }
    let Some((index, ty)) = cast_column(&expr) else {
        return Expr::InList { expr: Box::new(expr), list, negated };
    };
    let mut members = Vec::with_capacity(list.len());
    for member in &list {
        let Expr::Literal { value, .. } = member else {
            return Expr::InList { expr: Box::new(expr), list, negated };
        };
        if value.is_null() {
            continue;
        }
        match bring(CompareOp::Eq, value, ty) {
            None => return Expr::InList { expr: Box::new(expr), list, negated },
            Some(Fitted::Compare(_, value)) => members.push(literal(value, ty.clone())),
            Some(_) => {}
        }
    }
    let column = Box::new(Expr::column(index, ty.clone()));
    match (members.is_empty(), negated) {
        (true, false) => never(),
        (true, true) => Expr::IsNull { expr: column, negated: true },
        _ => Expr::InList { expr: column, list: members, negated },
    }
}

/// A column under a cast that keeps all of its values apart and in order.
fn cast_column(expr: &Expr) -> Option<(usize, &Type)> {
    let Expr::Cast { expr, to, kind: _ } = expr else { return None };
    let Expr::Column { index, ty } = expr.as_ref() else { return None };
    let exact = matches!(
        (ty, to),
        (Type::Int2, Type::Int4 | Type::Int8 | Type::Numeric(None) | Type::Float8)
            | (Type::Int4, Type::Int8 | Type::Numeric(None) | Type::Float8)
            | (Type::Int8, Type::Numeric(None))
            | (Type::Float4, Type::Float8)
            | (Type::Date, Type::Timestamp)
    );
    exact.then_some((*index, ty))
}

/// What a comparison with a constant becomes.
enum Fitted {
    /// Not true of any value.
    Never,
    /// True of every value but NULL.
    NotNull,
    /// A comparison with a value of the column's type.
    Compare(CompareOp, Value),
}

/// A constant seen from a type with fewer values.
enum Place {
    /// Below every value of the type.
    Below,
    /// Above every value of the type.
    Above,
    /// One of its values.
    At(Value),
    /// Greater than this value and less than the next.
    Behind(Value),
}

fn bring(op: CompareOp, value: &Value, ty: &Type) -> Option<Fitted> {
    use CompareOp::*;
    Some(match place(value, ty)? {
        Place::At(value) => Fitted::Compare(op, value),
        Place::Below => match op {
            Gt | Ge | Ne => Fitted::NotNull,
            Eq | Lt | Le => Fitted::Never,
        },
        Place::Above => match op {
            Lt | Le | Ne => Fitted::NotNull,
            Eq | Gt | Ge => Fitted::Never,
        },
        Place::Behind(value) => match op {
            Eq => Fitted::Never,
            Ne => Fitted::NotNull,
            Lt | Le => Fitted::Compare(Le, value),
            Gt | Ge => Fitted::Compare(Gt, value),
        },
    })
}

fn place(value: &Value, ty: &Type) -> Option<Place> {
    match (ty, value) {
        (Type::Int2 | Type::Int4 | Type::Int8, Value::Int2(_) | Value::Int4(_) | Value::Int8(_)) => {
            Some(integer(i128::from(value.as_i64()?), true, ty))
        }
        (Type::Int2 | Type::Int4 | Type::Int8, Value::Numeric(number)) => {
            if number.is_nan() {
                return Some(Place::Above);
            }
            let floor = number.floor().ok()?;
            let whole = floor.to_integer("bigint").ok().flatten()?;
            let exact = Value::Numeric(floor) == *value;
            Some(integer(whole, exact, ty))
        }
        (Type::Int2 | Type::Int4, Value::Float8(number)) => {
            if number.is_nan() || *number > 1e18 {
                return Some(Place::Above);
            }
            if *number < -1e18 {
                return Some(Place::Below);
            }
            Some(integer(number.floor() as i128, number.fract() == 0.0, ty))
        }
        (Type::Float4, Value::Float8(number)) => {
            let narrow = *number as f32;
            let exact = f64::from(narrow) == *number || number.is_nan();
            // What lies between two reals stays as it is: the next real below is not worth the trouble.
            exact.then_some(Place::At(Value::Float4(narrow)))
        }
        (Type::Date, Value::Timestamp(micros)) if *micros != i64::MAX && *micros != i64::MIN => {
            let days = i32::try_from(micros.div_euclid(MICROS_PER_DAY)).ok()?;
            let value = Value::Date(days);
            Some(if micros.rem_euclid(MICROS_PER_DAY) == 0 { Place::At(value) } else { Place::Behind(value) })
        }
        _ => None,
    }
}

/// Where `whole` (or, when not `exact`, something above it and below the next whole number) is.
fn integer(whole: i128, exact: bool, ty: &Type) -> Place {
    let (least, greatest) = match ty {
        Type::Int2 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        Type::Int4 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    if whole < least {
        return Place::Below;
    }
    if whole > greatest || (whole == greatest && !exact) {
        return Place::Above;
    }
    let value = match ty {
        Type::Int2 => Value::Int2(whole as i16),
        Type::Int4 => Value::Int4(whole as i32),
        _ => Value::Int8(whole as i64),
    };
    if exact { Place::At(value) } else { Place::Behind(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carousel_engine::{
        expr::{CastKind, EvalContext, qualifies},
        numeric::Numeric,
    };

    /// Every fitted comparison is true of the same values as the comparison as written.
    #[test]
    fn fitted_comparisons_mean_the_same() {
        let column_values: Vec<Value> = [Value::Null]
            .into_iter()
            .chain([i16::MIN, -2, -1, 0, 1, 2, 3, i16::MAX].map(Value::Int2))
            .collect();
        let constants: Vec<(Value, Type)> =
            ["-40000", "-32768", "-1.5", "-1", "0", "0.5", "2", "2.000", "32767", "32767.5", "99999"]
                .iter()
                .flat_map(|text| {
                    let number = Numeric::parse(text).expect("a number");
                    let float: f64 = text.parse().expect("a number");
                    let whole = text.parse::<i32>().ok().map(|n| (Value::Int4(n), Type::Int4));
                    [
                        Some((Value::Numeric(number), Type::Numeric(None))),
                        Some((Value::Float8(float), Type::Float8)),
                        whole,
                    ]
                })
                .flatten()
                .chain([(Value::Float8(f64::NAN), Type::Float8), (Value::Null, Type::Int4)])
                .collect();
        let context = EvalContext::default();
        for (constant, ty) in &constants {
            for op in
                [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge]
            {
                let cast = Expr::Cast {
                    expr: Box::new(Expr::column(0, Type::Int2)),
                    to: ty.clone(),
                    kind: CastKind::Implicit,
                };
                let written = Expr::Compare {
                    op,
                    left: Box::new(cast.clone()),
                    right: Box::new(literal(constant.clone(), ty.clone())),
                };
                let list = Expr::InList {
                    expr: Box::new(cast),
                    list: vec![literal(constant.clone(), ty.clone())],
                    negated: op == CompareOp::Ne,
                };
                for expr in [written.clone(), Expr::Not(Box::new(written)), list] {
                    let fitted = fit(expr.clone());
                    for value in &column_values {
                        let row = vec![value.clone()];
                        let before = qualifies(std::slice::from_ref(&expr), &row, &context);
                        let after = qualifies(&fitted, &row, &context);
                        assert_eq!(before, after, "{expr:?} became {fitted:?} at {value:?}");
                    }
                }
            }
        }
    }
}
