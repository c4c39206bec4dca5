//! The index over the predicates of the operations that share a scan (Crescando/RB paper, section 3.1; DESIGN,
//! decision 7).
//!
//! A conjunct that compares one column with constants becomes a [`Test`]: intervals of physical values. The tests of
//! all riders of a table are held once each ([`shared`]). At a segment they are translated to its codes as far as
//! somebody needs them ([`code_test`]), and the riders' rows are found together ([`probe`]).

mod code_test;
mod constants;
#[cfg(test)]
mod order_test;
mod plain;
mod probe;
mod shared;
mod side_by_side;

use std::sync::Arc;

use constants::{comparison, intersect, unite};
pub(crate) use plain::{retain_rows, row_holds};
pub(crate) use probe::{Found, Plan, Prober, Scene, plain_rows};
pub(crate) use shared::{SharedTests, TestId};

use crate::{
    column::{Physical, physical},
    expr::{CompareOp, Expr, can_fail},
    kernel,
    schema::Column,
    types::Type,
    value::Value,
};

/// Bytes at or above the first and below the second.
type BytesInterval = (Vec<u8>, Option<Vec<u8>>);

/// A condition on one column. NULL does not meet it unless it says so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// Closed intervals, ascending.
    Ints(Vec<(i64, i64)>),
    /// Closed intervals, ascending.
    Wides(Vec<(i128, i128)>),
    /// Ascending.
    Bytes(Vec<BytesInterval>),
    /// An expression over this column alone that cannot fail; evaluated on dictionaries.
    Expression(Expr),
    /// `IS NULL`
    Null,
    /// `IS NOT NULL`
    NotNull,
}

/// A test with its column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColumnTest {
    pub(crate) column: usize,
    pub(crate) test: Test,
}

/// A predicate split into what the index understands and the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct SplitPredicate {
    /// All must hold. None of them can fail, so their order is free.
    pub(crate) tests: Vec<Arc<ColumnTest>>,
    /// Evaluated afterwards, from the left.
    pub(crate) residual: Vec<Expr>,
}

impl SplitPredicate {
    /// Adds a test; two that bound one column become one.
    fn add(&mut self, new: ColumnTest) {
        let bounded = self.tests.iter_mut().filter(|test| test.column == new.column);
        for test in bounded {
            if let Some(both) = intersect(&test.test, &new.test) {
                *test = Arc::new(ColumnTest { column: new.column, test: both });
                return;
            }
        }
        self.tests.push(Arc::new(new));
    }
}

/// Splits a predicate. Behind the first conjunct that may fail everything is left where it is, because conjuncts are
/// evaluated from the left.
pub(crate) fn split(predicate: &[Expr], columns: &[Column]) -> SplitPredicate {
    let mut split = SplitPredicate::default();
    for (conjunct, test) in tested(predicate, columns) {
        match test {
            Some(test) => split.add(test),
            None => split.residual.push(conjunct.clone()),
        }
    }
    split
}

/// The conjuncts by which the predicate index finds rows, and those that are checked on the rows found.
pub fn indexable(predicate: &[Expr], columns: &[Column]) -> (Vec<Expr>, Vec<Expr>) {
    let (mut indexable, mut residual) = (Vec::new(), Vec::new());
    for (conjunct, test) in tested(predicate, columns) {
        if test.is_some() { &mut indexable } else { &mut residual }.push(conjunct.clone());
    }
    (indexable, residual)
}

/// The conjuncts of a predicate, with the tests of the index that they are; none comes behind one that can fail.
fn tested<'a>(
    predicate: &'a [Expr],
    columns: &'a [Column],
) -> impl Iterator<Item = (&'a Expr, Option<ColumnTest>)> {
    let mut flat = Vec::new();
    for conjunct in predicate {
        flatten(conjunct, &mut flat);
    }
    let mut free = true;
    flat.into_iter().map(move |conjunct| {
        free &= !can_fail(conjunct);
        (conjunct, free.then(|| test_of(conjunct, columns)).flatten())
    })
}

fn flatten<'a>(conjunct: &'a Expr, flat: &mut Vec<&'a Expr>) {
    match conjunct {
        Expr::And(operands) if !can_fail(conjunct) => {
            operands.iter().for_each(|operand| flatten(operand, flat))
        }
        _ => flat.push(conjunct),
    }
}

fn column_index(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Column { index, .. } => Some(*index),
        _ => None,
    }
}

fn test_of(conjunct: &Expr, columns: &[Column]) -> Option<ColumnTest> {
    interval_test(conjunct, columns).or_else(|| {
        let (column, expr) = kernel::over_single_column(conjunct)?;
        (physical(&columns.get(column)?.ty) == Physical::Bytes)
            .then_some(ColumnTest { column, test: Test::Expression(expr) })
    })
}

fn interval_test(conjunct: &Expr, columns: &[Column]) -> Option<ColumnTest> {
    let boolean = |expr: &Expr, truth: bool| {
        let column = column_index(expr)?;
        (columns.get(column)?.ty == Type::Bool).then(|| {
            let value = i64::from(truth);
            ColumnTest { column, test: Test::Ints(vec![(value, value)]) }
        })
    };
    match conjunct {
        Expr::Column { .. } => boolean(conjunct, true),
        Expr::Not(operand) => boolean(operand, false),
        Expr::IsTruth { expr, truth: Some(truth), negated: false } => boolean(expr, *truth),
        Expr::IsNull { expr, negated } => {
            let column = column_index(expr)?;
            Some(ColumnTest { column, test: if *negated { Test::NotNull } else { Test::Null } })
        }
        Expr::Compare { op, left, right } => {
            let (column, op, value) = match (left.as_ref(), right.as_ref()) {
                (Expr::Column { index, .. }, Expr::Literal { value, .. }) => (*index, *op, value),
                (Expr::Literal { value, .. }, Expr::Column { index, .. }) => (*index, op.swapped(), value),
                _ => return None,
            };
            Some(ColumnTest { column, test: comparison(&columns.get(column)?.ty, op, value)? })
        }
        Expr::InList { expr, list, negated: false } => {
            let column = column_index(expr)?;
            let ty = &columns.get(column)?.ty;
            let tests = list.iter().map(|member| match member {
                Expr::Literal { value, .. } => comparison(ty, CompareOp::Eq, value),
                _ => None,
            });
            Some(ColumnTest { column, test: unite(ty, tests)? })
        }
        Expr::Or(operands) => {
            let mut operands = operands.iter().map(|operand| interval_test(operand, columns));
            let ColumnTest { column, test } = operands.next()??;
            let tests =
                operands.map(|other| other.filter(|other| other.column == column).map(|other| other.test));
            let test = unite(&columns.get(column)?.ty, std::iter::once(Some(test)).chain(tests))?;
            Some(ColumnTest { column, test })
        }
        Expr::Like { expr, pattern, escape, case_insensitive: false, negated: false } => {
            let column = column_index(expr)?;
            if !matches!(columns.get(column)?.ty, Type::Text | Type::Varchar(_)) {
                return None;
            }
            let Expr::Literal { value: Value::Text(pattern), .. } = pattern.as_ref() else { return None };
            let prefix = pattern.strip_suffix('%')?;
            let plain = |c: char| c != '%' && c != '_' && Some(c) != *escape;
            prefix.chars().all(plain).then(|| ColumnTest {
                column,
                test: Test::Bytes(vec![(prefix.as_bytes().to_vec(), successor(prefix.as_bytes()))]),
            })
        }
        _ => None,
    }
}

/// The least byte string above every string with this prefix.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut above = prefix[..=keep].to_vec();
    above[keep] += 1;
    Some(above)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;

    /// Whoever scans waits for this: each member is looked at a few times, not once for each other member.
    #[test]
    fn lists_may_have_many_members() {
        const MEMBERS: i32 = 50_000;
        let column = |name: &str, ty| Column { name: name.into(), ty, not_null: false, default: None };
        let columns = [column("a", Type::Int4), column("b", Type::Text)];
        let text = |k: i32| Value::text(format!("{k:05}"));
        let members = (0..MEMBERS).rev().chain([7]).map(|k| Expr::literal(text(k), Type::Text));
        let list = Expr::InList {
            expr: Box::new(Expr::column(1, Type::Text)),
            list: members.collect(),
            negated: false,
        };
        let between = |k: i32| {
            let compare = |op, k| Expr::Compare {
                op,
                left: Box::new(Expr::column(0, Type::Int4)),
                right: Box::new(Expr::literal(Value::Int4(k), Type::Int4)),
            };
            if k % 1000 == 0 { compare(CompareOp::Lt, 0) } else { compare(CompareOp::Eq, 2 * k) }
        };
        let either = Expr::Or((0..MEMBERS).rev().map(between).collect());
        let split = split(&[list, either], &columns);
        assert!(split.residual.is_empty());
        let Test::Bytes(strings) = &split.tests[0].test else { panic!("{:?}", split.tests[0]) };
        assert_eq!(strings.len(), MEMBERS as usize);
        assert!(strings.is_sorted());
        let Test::Ints(numbers) = &split.tests[1].test else { panic!("{:?}", split.tests[1]) };
        assert_eq!(numbers.len(), 1 + MEMBERS as usize - MEMBERS as usize / 1000);
        assert_eq!((numbers[0], numbers[1]), ((i64::MIN, -1), (2, 2)));
    }

    /// So that they are asked of a dictionary's values, not of each row.
    #[test]
    fn constant_regular_expressions_are_tests_of_a_column() {
        let columns = [Column { name: "a".into(), ty: Type::Text, not_null: false, default: None }];
        let is_test = |pattern: Expr| {
            let args = vec![Expr::column(0, Type::Text), pattern];
            let call = Expr::Call { function: Function::RegexMatchInsensitive, args, ty: Type::Bool };
            let split = split(&[call], &columns);
            assert_eq!(split.tests.len() + split.residual.len(), 1);
            matches!(split.tests.first().map(|test| &test.test), Some(Test::Expression(_)))
        };
        let constant = |pattern: &str| Expr::literal(Value::text(pattern), Type::Text);
        assert!(is_test(constant("^a.*(b|c)$")));
        assert!(!is_test(constant("(")));
        assert!(!is_test(Expr::column(0, Type::Text)));
    }

    #[test]
    fn bounds_of_one_column_become_one_test() {
        let ints = |intervals: &[(i64, i64)]| Test::Ints(intervals.to_vec());
        let meet = |a: &[(i64, i64)], b: &[(i64, i64)]| intersect(&ints(a), &ints(b)).unwrap();
        assert_eq!(meet(&[(1, 9)], &[(5, 12)]), ints(&[(5, 9)]));
        assert_eq!(
            meet(&[(1, 3), (5, 9), (20, 30)], &[(2, 6), (9, 25)]),
            ints(&[(2, 3), (5, 6), (9, 9), (20, 25)])
        );
        assert_eq!(meet(&[(1, 3)], &[(4, 5)]), ints(&[]));
        let bytes = |low: &str, high: Option<&str>| {
            (low.as_bytes().to_vec(), high.map(|high| high.as_bytes().to_vec()))
        };
        let meet = |a, b| intersect(&Test::Bytes(vec![a]), &Test::Bytes(vec![b])).unwrap();
        assert_eq!(meet(bytes("b", None), bytes("", Some("c"))), Test::Bytes(vec![bytes("b", Some("c"))]));
        assert_eq!(meet(bytes("b", None), bytes("c", None)), Test::Bytes(vec![bytes("c", None)]));
        assert_eq!(meet(bytes("b", Some("c")), bytes("c", None)), Test::Bytes(Vec::new()));
    }
}
