//! What is known of a table's rows without looking at them, and how many of them an operation may find.

use serde::{Deserialize, Serialize};

use crate::{
    batch_size::{BATCH_BYTES, VALUE_BYTES},
    expr::{CompareOp, Expr, Function, walk},
    operation::{OperationKind, Predicate, ReadOutput},
    schema::TableId,
    types::Type,
    value::Value,
};

/// What a row takes besides its values: its version, and its entry in the index of keys.
pub const ROW_BYTES: u64 = 64;

/// What a value takes that is returned.
const RETURNED_BYTES: u64 = 32;

/// How long a string counts that an expression makes as long as a row says.
const UNKNOWN_LENGTH: u64 = 4096;

/// The share of the rows that meet a condition of which no more is known, as in PostgreSQL.
const UNKNOWN: f64 = 1.0 / 3.0;

/// Numbers about a table's rows in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// Which table.
    pub table: TableId,
    /// Rows that have not ended.
    pub rows: u64,
    /// Versions of rows, all that are held.
    pub versions: u64,
    /// What these take, with their keys.
    pub bytes: u64,
    /// By column: how many values it has at least.
    pub distinct: Vec<u64>,
}

impl TableStatistics {
    /// Takes in what is known of other rows of the table.
    pub fn add(&mut self, other: &TableStatistics) {
        self.rows += other.rows;
        self.versions += other.versions;
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

    /// What an operation may add to memory: new versions of the rows that an UPDATE may find, what an UPDATE or a DELETE
    /// may return, and the long strings that conditions and what is read make of a row. INSERTs add nothing that statistics
    /// tell of.
    pub fn expected_bytes(&self, kind: &OperationKind) -> u64 {
        let row_bytes = self.bytes / self.versions.max(1);
        self.kept_bytes(kind, row_bytes).saturating_add(passing_bytes(kind, row_bytes))
    }

    /// Of [`TableStatistics::expected_bytes`], what stays until the write is forgotten or its answer has been taken.
    fn kept_bytes(&self, kind: &OperationKind, row_bytes: u64) -> u64 {
        let returned = |returning: &Option<Vec<Expr>>| {
            let returning = returning.as_deref().unwrap_or_default();
            let columns = returning.iter().filter(|expr| matches!(expr, Expr::Column { .. })).count() as u64;
            (columns * RETURNED_BYTES).saturating_add(computed_bytes(returning, row_bytes))
        };
        match kind {
            OperationKind::Update(update) => {
                let size = |(_, expr): &(usize, Expr)| match expr {
                    // It counts as part of the row.
                    Expr::Column { .. } => 0,
                    expr => size_of_value(expr, row_bytes),
                };
                let assigned = update.assignments.iter().map(size).fold(0, u64::saturating_add);
                let version = assigned.saturating_add(row_bytes + ROW_BYTES);
                let row = version.saturating_add(returned(&update.returning));
                self.expected_rows(&update.predicate).saturating_mul(row)
            }
            OperationKind::Delete(delete) if delete.returning.is_some() => {
                self.expected_rows(&delete.predicate).saturating_mul(returned(&delete.returning))
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

/// What the strings may take, about, that are made of one row on the way to a condition or to what is read, if they are longer
/// than a batch: such a row is evaluated by itself.
fn passing_bytes(kind: &OperationKind, row_bytes: u64) -> u64 {
    let mut bytes = 0_u64;
    let mut add = |exprs: &mut dyn Iterator<Item = &Expr>| {
        for expr in exprs {
            walk(expr, &mut |part| {
                // Others are about as long as what they are made of.
                if let Expr::Call { function, .. } = part
                    && matches!(
                        function,
                        Function::Repeat
                            | Function::PadLeft
                            | Function::PadRight
                            | Function::Replace
                            | Function::RegexReplace
                    )
                {
                    let size = size_of_value(part, row_bytes);
                    bytes = bytes.saturating_add(if size > BATCH_BYTES as u64 { size } else { 0 });
                }
            });
        }
    };
    match kind {
        OperationKind::Read(read) => {
            add(&mut read.predicate.iter());
            match &read.output {
                ReadOutput::Rows { projection, .. } => add(&mut projection.iter()),
                ReadOutput::Groups { group_by, aggregates, .. } => {
                    add(&mut group_by.iter());
                    for call in aggregates {
                        add(&mut call.argument.iter().chain(&call.filter).chain(&call.further));
                    }
                }
                ReadOutput::ContentHash => {}
            }
        }
        OperationKind::Update(update) => add(&mut update.predicate.iter()),
        OperationKind::Delete(delete) => add(&mut delete.predicate.iter()),
        _ => {}
    }
    bytes
}

/// What the values may take, about, that are computed for each row that is returned; `row_bytes` is what a row takes on average.
pub fn computed_bytes(returning: &[Expr], row_bytes: u64) -> u64 {
    let computed = returning.iter().filter(|expr| !matches!(expr, Expr::Column { .. }));
    let sizes = computed.map(|expr| size_of_value(expr, row_bytes).max(RETURNED_BYTES));
    sizes.fold(0, u64::saturating_add)
}

/// What the value of an expression may take at most, about; a string column counts as long as a row is on average.
fn size_of_value(expr: &Expr, row_bytes: u64) -> u64 {
    /// A number or a time as text.
    const SHORT: u64 = 64;
    let size_of = |expr: &Expr| match is_string(&expr.ty()) {
        true => size_of_value(expr, row_bytes),
        false => SHORT,
    };
    let number = |expr: Option<&Expr>| match expr {
        Some(Expr::Literal { value, .. }) => value.as_i64().map_or(0, |number| number.max(0) as u64),
        _ => UNKNOWN_LENGTH,
    };
    if !is_string(&expr.ty()) {
        return 0;
    }
    let bytes = match expr {
        Expr::Literal { value, .. } => value.heap_size() as u64,
        Expr::Column { .. } => row_bytes,
        // Type character without a length is 0.
        Expr::Cast { expr, to: Type::Varchar(Some(length)) | Type::Char(length @ 1..), .. } => {
            size_of(expr).min(4 * u64::from(*length))
        }
        Expr::Cast { expr, .. } if expr.ty() == Type::Bytea => 2 * size_of(expr),
        Expr::Cast { expr, .. } => size_of(expr),
        Expr::Case { branches, otherwise, .. } => {
            let results = branches.iter().map(|(_, result)| result).chain(otherwise.as_deref());
            results.map(size_of).max().unwrap_or(0)
        }
        Expr::Coalesce { args, .. } => args.iter().map(size_of).max().unwrap_or(0),
        Expr::Call { function, args, .. } => {
            let first = args.first().map_or(0, size_of);
            let all = args.iter().map(size_of).fold(0, u64::saturating_add);
            match function {
                Function::Repeat => first.saturating_mul(number(args.get(1))),
                Function::PadLeft | Function::PadRight => number(args.get(1)).saturating_mul(4),
                Function::ConcatSeparated => all.saturating_add(first.saturating_mul(args.len() as u64)),
                Function::Encode
                | Function::QuoteLiteral
                | Function::QuoteNullable
                | Function::QuoteIdentifier => all.saturating_mul(2),
                // As often as a string can be found in another.
                Function::Replace => {
                    let found = if let Some(Expr::Literal { value: Value::Text(from), .. }) = args.get(1) {
                        from.len()
                    } else {
                        1
                    };
                    let with = args.get(2).map_or(0, size_of);
                    first.saturating_add((first / found.max(1) as u64).saturating_mul(with))
                }
                Function::RegexReplace => {
                    first.saturating_mul(args.get(2).map_or(0, size_of).saturating_add(1))
                }
                _ => all,
            }
        }
        _ => UNKNOWN_LENGTH,
    };
    // A longer one is an error.
    bytes.min(VALUE_BYTES as u64)
}

fn is_string(ty: &Type) -> bool {
    matches!(ty, Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Bytea)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        aggregate::{AggregateCall, AggregateFunction},
        expr::CastKind,
        operation::{Delete, Read, Update},
        types::Type,
    };

    fn statistics() -> TableStatistics {
        let distinct = vec![10_000, 100, 2];
        TableStatistics { table: TableId(1), rows: 10_000, versions: 10_000, bytes: 1_000_000, distinct }
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
        // Versions that somebody still reads are not written again.
        let read = TableStatistics { versions: 50_000, bytes: 5_000_000, ..statistics() };
        let all = update(vec![], None);
        assert_eq!(read.expected_bytes(&all), statistics().expected_bytes(&all));
    }

    #[test]
    fn computed_strings_count_as_long_as_they_may_be() {
        let text = || Expr::column(1, Type::Text);
        let constant = |text: &str| Expr::literal(Value::text(text), Type::Text);
        let int = |number| Expr::literal(Value::Int4(number), Type::Int4);
        let call = |function, args| Expr::Call { function, args, ty: Type::Text };
        let cast = |expr, to| Expr::Cast { expr: Box::new(expr), to, kind: CastKind::Assignment };
        let repeat = |times| call(Function::Repeat, vec![text(), times]);
        let size = |expr: Expr| {
            let update = Update { predicate: vec![equal(0)], assignments: vec![(1, expr)], returning: None };
            statistics().expected_bytes(&OperationKind::Update(update)) - 164
        };
        // A row has 100 bytes on average, a constant 16 besides its own.
        assert_eq!(size(text()), 0);
        assert_eq!(size(number()), 0);
        assert_eq!(size(repeat(int(20_000))), 2_000_000);
        assert_eq!(size(repeat(int(-1))), 0);
        assert_eq!(size(repeat(int(i32::MAX))), VALUE_BYTES as u64);
        assert_eq!(size(repeat(*column(0))), 100 * UNKNOWN_LENGTH);
        assert_eq!(size(cast(repeat(int(20_000)), Type::Varchar(Some(30)))), 120);
        assert_eq!(size(call(Function::PadLeft, vec![text(), int(1000), constant("x")])), 4000);
        assert_eq!(size(call(Function::Concat, vec![text(), constant("1234")])), 120);
        assert_eq!(size(call(Function::Concat, vec![text(), cast(*column(0), Type::Text)])), 164);
        let replace = call(Function::Replace, vec![text(), constant("ab"), constant("1234")]);
        assert_eq!(size(replace), 100 + 50 * 20);
        assert_eq!(size(call(Function::Upper, vec![text()])), 100);
        let branches = vec![(equal(0), constant("1234"))];
        let case = Expr::Case { branches, otherwise: Some(Box::new(repeat(int(3)))), ty: Type::Text };
        assert_eq!(size(case), 300);
        // Only what is too long for a batch counts where it is not kept.
        let condition = |expr| Expr::IsNull { expr: Box::new(expr), negated: false };
        let pad = |length| call(Function::PadLeft, vec![text(), int(length)]);
        let is_null = |expr| Delete { predicate: vec![equal(0), condition(expr)], returning: None };
        let passing = |expr| statistics().expected_bytes(&OperationKind::Delete(is_null(expr)));
        assert_eq!(passing(pad(1_000_000)), 0);
        assert_eq!(passing(pad(100_000_000)), 400_000_000);
        let both = call(Function::Concat, vec![pad(i32::MAX), pad(100_000_000)]);
        assert_eq!(passing(both), VALUE_BYTES as u64 + 400_000_000);
        let maximum = AggregateCall::new(AggregateFunction::Max, Some(pad(100_000_000)));
        let output = ReadOutput::Groups { group_by: vec![text()], aggregates: vec![maximum], top: None };
        let read = OperationKind::Read(Read { predicate: vec![condition(pad(100_000_000))], output });
        assert_eq!(statistics().expected_bytes(&read), 800_000_000);
        let update = |returning| {
            let assignments = vec![(0, number())];
            OperationKind::Update(Update { predicate: vec![equal(0)], assignments, returning })
        };
        assert_eq!(statistics().expected_bytes(&update(Some(vec![text(), repeat(int(5))]))), 164 + 32 + 500);
    }
}
