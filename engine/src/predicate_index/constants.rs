//! Which physical values a comparison with a constant allows.

use bigdecimal::{BigDecimal, RoundingMode};

use super::{BytesInterval, Test};
use crate::{
    column::{Physical, float_to_int, physical},
    expr::CompareOp,
    numeric::Numeric,
    types::Type,
    value::Value,
};

/// What no value meets.
pub(super) fn empty(ty: &Type) -> Test {
    match physical(ty) {
        Physical::Int => Test::Ints(Vec::new()),
        Physical::Wide => Test::Wides(Vec::new()),
        Physical::Bytes => Test::Bytes(Vec::new()),
    }
}

/// What meets one of these tests of a column of this type; `None` if they are not all of intervals.
pub(super) fn unite(ty: &Type, tests: impl IntoIterator<Item = Option<Test>>) -> Option<Test> {
    fn merge<K: Ord + Copy>(intervals: &mut Vec<(K, K)>) {
        intervals.sort_unstable();
        intervals.dedup_by(|next, last| {
            let meet = next.0 <= last.1;
            if meet {
                last.1 = last.1.max(next.1);
            }
            meet
        });
    }
    let mut union = empty(ty);
    // All of them are collected before they are sorted: lists may have thousands of members.
    for test in tests {
        match (&mut union, test?) {
            (Test::Ints(all), Test::Ints(more)) => all.extend(more),
            (Test::Wides(all), Test::Wides(more)) => all.extend(more),
            (Test::Bytes(all), Test::Bytes(more)) => all.extend(more),
            _ => return None,
        }
    }
    match &mut union {
        Test::Ints(all) => merge(all),
        Test::Wides(all) => merge(all),
        Test::Bytes(all) => {
            all.sort_unstable();
            all.dedup_by(|next, last| {
                let meet = last.1.as_ref().is_none_or(|end| next.0 <= *end);
                if meet {
                    last.1 = match (last.1.take(), next.1.take()) {
                        (Some(x), Some(y)) => Some(x.max(y)),
                        _ => None,
                    };
                }
                meet
            });
        }
        _ => return None,
    }
    Some(union)
}

/// What meets both of two tests.
pub(super) fn intersect(a: &Test, b: &Test) -> Option<Test> {
    /// Intervals that lie in both of two ascending lists; `meet` intersects two of them, `ends_first` compares ends.
    fn both<I>(
        a: &[I],
        b: &[I],
        meet: impl Fn(&I, &I) -> Option<I>,
        ends_first: impl Fn(&I, &I) -> bool,
    ) -> Vec<I> {
        let (mut a, mut b) = (a, b);
        let mut common = Vec::new();
        while let ([x, rest_of_a @ ..], [y, rest_of_b @ ..]) = (a, b) {
            common.extend(meet(x, y));
            if ends_first(x, y) { a = rest_of_a } else { b = rest_of_b }
        }
        common
    }
    fn numbers<K: Ord + Copy>(a: &[(K, K)], b: &[(K, K)]) -> Vec<(K, K)> {
        let meet = |x: &(K, K), y: &(K, K)| {
            let (low, high) = (x.0.max(y.0), x.1.min(y.1));
            (low <= high).then_some((low, high))
        };
        both(a, b, meet, |x, y| x.1 < y.1)
    }
    match (a, b) {
        (Test::Ints(a), Test::Ints(b)) => Some(Test::Ints(numbers(a, b))),
        (Test::Wides(a), Test::Wides(b)) => Some(Test::Wides(numbers(a, b))),
        (Test::Bytes(a), Test::Bytes(b)) => {
            // No end is above every end.
            let below = |x: &Option<Vec<u8>>, y: &Option<Vec<u8>>| match (x, y) {
                (Some(x), Some(y)) => x < y,
                (end, None) => end.is_some(),
                (None, Some(_)) => false,
            };
            let meet = |x: &BytesInterval, y: &BytesInterval| {
                let low = (&x.0).max(&y.0);
                let high = if below(&x.1, &y.1) { &x.1 } else { &y.1 };
                high.as_ref().is_none_or(|high| low < high).then(|| (low.clone(), high.clone()))
            };
            Some(Test::Bytes(both(a, b, meet, |x, y| below(&x.1, &y.1))))
        }
        _ => None,
    }
}

/// The values that `column op constant` allows, or `None` when order or equality of the physical values do not tell.
pub(super) fn comparison(ty: &Type, op: CompareOp, constant: &Value) -> Option<Test> {
    if constant.is_null() {
        return Some(empty(ty));
    }
    match physical(ty) {
        Physical::Int => {
            let intervals = number_intervals(op, equal_zone(ty, constant)?);
            let clamp = |(low, high): (i128, i128)| {
                (low <= i128::from(i64::MAX) && high >= i128::from(i64::MIN) && low <= high)
                    .then(|| (low.max(i128::from(i64::MIN)) as i64, high.min(i128::from(i64::MAX)) as i64))
            };
            Some(Test::Ints(intervals.into_iter().filter_map(clamp).collect()))
        }
        Physical::Wide => {
            let mut intervals = number_intervals(op, equal_zone(ty, constant)?);
            intervals.retain(|(low, high)| low <= high);
            Some(Test::Wides(intervals))
        }
        Physical::Bytes => bytes_comparison(ty, op, constant),
    }
}

/// The physical numbers that equal the constant; empty, but in the right place, when none does.
fn equal_zone(ty: &Type, constant: &Value) -> Option<(i128, i128)> {
    let point = |value: i64| (i128::from(value), i128::from(value));
    Some(match (ty, constant) {
        (Type::Bool, Value::Bool(v)) => point(i64::from(*v)),
        (Type::Int2, Value::Int2(v)) => point(i64::from(*v)),
        (Type::Int4, Value::Int4(v)) | (Type::Date, Value::Date(v)) => point(i64::from(*v)),
        (Type::Int8, Value::Int8(v))
        | (Type::Time, Value::Time(v))
        | (Type::Timestamp, Value::Timestamp(v))
        | (Type::TimestampTz, Value::TimestampTz(v)) => point(*v),
        (Type::Float4, Value::Float4(v)) => float_zone(f64::from(*v)),
        (Type::Float8, Value::Float8(v)) => float_zone(*v),
        (Type::Numeric(Some((_, scale))), Value::Numeric(Numeric::Finite(v))) => {
            let below = v.with_scale_round(i64::from(*scale), RoundingMode::Floor);
            let exact = below == *v;
            let below = unscaled(&below, i64::from(*scale))?;
            // NaN is stored as the greatest number: it is above constants that are greater than any value can be.
            let most = match physical(ty) {
                Physical::Int => i128::from(i64::MAX) - 1,
                Physical::Wide | Physical::Bytes => i128::MAX,
            };
            if exact && below <= most { (below, below) } else { (below.min(most) + 1, below.min(most)) }
        }
        _ => return None,
    })
}

fn unscaled(value: &BigDecimal, scale: i64) -> Option<i128> {
    let (digits, _) = value.with_scale(scale).into_bigint_and_exponent();
    // Far from the ends, so that neighbours can be named.
    i128::try_from(digits).ok().filter(|v| v.unsigned_abs() < 1 << 126)
}

/// `-0` and `0` are equal but stored apart.
fn float_zone(value: f64) -> (i128, i128) {
    if value == 0.0 {
        (i128::from(float_to_int(-0.0)), i128::from(float_to_int(0.0)))
    } else {
        let point = i128::from(float_to_int(value));
        (point, point)
    }
}

fn number_intervals(op: CompareOp, (low, high): (i128, i128)) -> Vec<(i128, i128)> {
    match op {
        CompareOp::Eq => vec![(low, high)],
        CompareOp::Ne => vec![(i128::MIN, low - 1), (high + 1, i128::MAX)],
        CompareOp::Lt => vec![(i128::MIN, low - 1)],
        CompareOp::Le => vec![(i128::MIN, high)],
        CompareOp::Gt => vec![(high + 1, i128::MAX)],
        CompareOp::Ge => vec![(low, i128::MAX)],
    }
}

fn bytes_comparison(ty: &Type, op: CompareOp, constant: &Value) -> Option<Test> {
    let bytes = match (ty, constant) {
        (Type::Text | Type::Varchar(_), Value::Text(text)) => text.as_bytes().to_vec(),
        // Stored without the blanks that do not count.
        (Type::Char(_), Value::Text(text)) => text.trim_end_matches(' ').as_bytes().to_vec(),
        (Type::Bytea, Value::Bytea(bytes)) => bytes.to_vec(),
        (Type::Uuid, Value::Uuid(bytes)) => bytes.to_vec(),
        _ => return None,
    };
    let mut after = bytes.clone();
    after.push(0);
    Some(Test::Bytes(match op {
        CompareOp::Eq => vec![(bytes, Some(after))],
        CompareOp::Ne => vec![(Vec::new(), Some(bytes)), (after, None)],
        CompareOp::Lt => vec![(Vec::new(), Some(bytes))],
        CompareOp::Le => vec![(Vec::new(), Some(after))],
        CompareOp::Gt => vec![(after, None)],
        CompareOp::Ge => vec![(bytes, None)],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_that_is_no_number_is_above_every_constant() {
        let ty = Type::Numeric(Some((18, 17)));
        let stored = |number: &Numeric| number.to_i128_at_scale(17).map_or(i64::MAX, |v| v as i64);
        let number = |text: &str| Numeric::parse(text).expect("a number");
        for constant in ["-100", "-9.5", "0", "9.99999999999999999", "93", "100", "1e40"].map(number) {
            for value in ["NaN", "9.99999999999999999", "0", "-9.5"].map(number) {
                for op in
                    [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge]
                {
                    let order = value.cmp(&constant);
                    let wanted = match op {
                        CompareOp::Eq => order.is_eq(),
                        CompareOp::Ne => order.is_ne(),
                        CompareOp::Lt => order.is_lt(),
                        CompareOp::Le => order.is_le(),
                        CompareOp::Gt => order.is_gt(),
                        CompareOp::Ge => order.is_ge(),
                    };
                    // What the order of what is stored does not tell is evaluated.
                    let Some(test) = comparison(&ty, op, &Value::Numeric(constant.clone())) else { continue };
                    let Test::Ints(intervals) = test else { panic!("{test:?}") };
                    let value_of = stored(&value);
                    let found = intervals.iter().any(|(low, high)| (*low..=*high).contains(&value_of));
                    assert_eq!(found, wanted, "{value} {op:?} {constant}");
                }
            }
        }
    }
}
