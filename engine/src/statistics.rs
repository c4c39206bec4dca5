//! What is known of a table's rows without looking at them, and how many of them an operation may find.

use serde::{Deserialize, Serialize};

use crate::{
    expr::{CompareOp, Expr},
    operation::{OperationKind, Predicate},
    schema::TableId,
    value::Value,
};

/// What a row takes besides its values: its version, and its entry in the index of keys.
pub const ROW_BYTES: u64 = 64;

/// What a value takes that is returned.
const RETURNED_BYTES: u64 = 32;

/// The share of the rows that meet a condition of which no more is known, as in PostgreSQL.
const UNKNOWN: f64 = 1.0 / 3.0;

/// Numbers about a table's rows in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// Which table.
    pub table: TableId,
    /// Versions of rows, all that are held.
    pub rows: u64,
    /// What they take, with their versions and keys.
    pub bytes: u64,
    /// By column: how many values it has at least.
    pub distinct: Vec<u64>,
}

impl TableStatistics {
    /// Takes in what is known of other rows of the table.
    pub fn add(&mut self, other: &TableStatistics) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.distinct.resize(self.distinct.len().max(other.distinct.len()), 0);
        for (distinct, more) in self.distinct.iter_mut().zip(&other.distinct) {
            *distinct = (*distinct).max(*more);
        }
    }

    /// How many rows may meet a predicate: at least one. Conditions count as independent of one another, and the values of
    /// a column as equally frequent.
    pub fn expected_rows(&self, predicate: &Predicate) -> u64 {
        let share: f64 = predicate.iter().map(|conjunct| self.share(conjunct)).product();
        ((self.rows as f64 * share).ceil() as u64).max(1)
    }

    /// What an operation may add to memory: new versions of the rows that an UPDATE may find, and what an UPDATE or a
    /// DELETE may return. Other kinds add nothing that statistics tell of.
    pub fn expected_bytes(&self, kind: &OperationKind) -> u64 {
        let returned = |returning: &Option<Vec<Expr>>| {
            returning.as_ref().map_or(0, |exprs| exprs.len() as u64 * RETURNED_BYTES)
        };
        match kind {
            OperationKind::Update(update) => {
                let assigned: u64 = update.assignments.iter().map(|(_, expr)| size_of_constant(expr)).sum();
                let version = self.bytes / self.rows.max(1) + assigned + ROW_BYTES;
                self.expected_rows(&update.predicate) * (version + returned(&update.returning))
            }
            OperationKind::Delete(delete) if delete.returning.is_some() => {
                self.expected_rows(&delete.predicate) * returned(&delete.returning)
            }
            _ => 0,
        }
    }

    /// The share of the rows that meet a condition.
    fn share(&self, condition: &Expr) -> f64 {
        let one_of = |expr: &Expr| match expr {
            Expr::Column { index, .. } => {
                self.distinct.get(*index).map(|distinct| 1.0 / (*distinct).max(1) as f64)
            }
            _ => None,
        };
        match condition {
            Expr::Literal { value: Value::Bool(true), .. } => 1.0,
            Expr::Literal { .. } => 0.0,
            Expr::And(operands) => operands.iter().map(|operand| self.share(operand)).product(),
            Expr::Or(operands) => operands.iter().map(|operand| self.share(operand)).sum::<f64>().min(1.0),
            Expr::Not(_) | Expr::IsNull { negated: true, .. } => 1.0,
            Expr::Compare { op: CompareOp::Ne, .. } => 1.0,
            Expr::Compare { op: CompareOp::Eq, left, right } => match (left.as_ref(), right.as_ref()) {
                (column, Expr::Literal { .. }) | (Expr::Literal { .. }, column) => {
                    one_of(column).unwrap_or(UNKNOWN)
                }
                _ => UNKNOWN,
            },
            Expr::InList { expr, list, negated: false } => {
                one_of(expr).map_or(UNKNOWN, |one| (one * list.len() as f64).min(1.0))
            }
            Expr::InList { .. } => 1.0,
            _ => UNKNOWN,
        }
    }
}

fn size_of_constant(expr: &Expr) -> u64 {
    match expr {
        Expr::Literal { value, .. } => value.heap_size() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{operation::Update, types::Type};

    fn statistics() -> TableStatistics {
        TableStatistics { table: TableId(1), rows: 10_000, bytes: 1_000_000, distinct: vec![10_000, 100, 2] }
    }

    fn column(index: usize) -> Box<Expr> {
        Box::new(Expr::column(index, Type::Int4))
    }

    fn number() -> Expr {
        Expr::literal(Value::Int4(1), Type::Int4)
    }

    fn equal(index: usize) -> Expr {
        Expr::Compare { op: CompareOp::Eq, left: column(index), right: Box::new(number()) }
    }

    #[test]
    fn rows_are_expected_by_the_values_of_their_columns() {
        let expected = |predicate: &[Expr]| statistics().expected_rows(&predicate.to_vec());
        assert_eq!(expected(&[]), 10_000);
        assert_eq!(expected(&[equal(0)]), 1);
        assert_eq!(expected(&[equal(1)]), 100);
        assert_eq!(expected(&[equal(1), equal(2)]), 50);
        assert_eq!(expected(&[Expr::Or(vec![equal(1), equal(2)])]), 5_100);
        let list = Expr::InList { expr: column(1), list: vec![number(); 5], negated: false };
        assert_eq!(expected(&[list]), 500);
        let above = Expr::Compare { op: CompareOp::Gt, left: column(0), right: Box::new(number()) };
        assert_eq!(expected(&[above]), 3_334);
        assert_eq!(expected(&[equal(7)]), 3_334);
    }

    #[test]
    fn an_update_of_everything_takes_another_version_of_everything() {
        let update = |predicate: Vec<Expr>, returning| {
            let assignments = vec![(1, Expr::literal(Value::text("x".repeat(84)), Type::Text))];
            OperationKind::Update(Update { predicate, assignments, returning })
        };
        assert_eq!(statistics().expected_bytes(&update(vec![], None)), 10_000 * (100 + 100 + 64));
        assert_eq!(statistics().expected_bytes(&update(vec![equal(0)], None)), 264);
        let returning = Some(vec![number(), number()]);
        assert_eq!(statistics().expected_bytes(&update(vec![equal(0)], returning)), 264 + 64);
    }
}
