//! What the simulated clients ask, in a form of its own: a statement is compiled into a message for the cluster, and
//! evaluated naively by [`super::replay`]. A statement travels in `EvalContext::now`, by number, so that whoever sees
//! the message knows which it is; no expression here depends on the time.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int32Array, Int64Array},
    record_batch::RecordBatch,
};
use carousel_engine::{
    TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::{CompareOp, EvalContext, Expr, Function},
    operation::{
        Delete, Insert, InsertRows, OnConflict, Operation, OperationKind, Read, ReadOutput, RowBatch, Update,
    },
    position::{KeyRange, normalise},
    schema::{Column, Partitioning, TableId},
};

use super::random::Random;
use crate::message::{Body, Data, Message, StagedPayload};

/// Keys are below this, so that statements meet.
pub(super) const KEYS: i64 = 24;

/// Which rows.
#[derive(Clone, Debug)]
pub(super) enum Filter {
    All,
    Key(i64),
    /// One or the other, which may lie in ranges of different processes.
    Keys([i64; 2]),
    /// `n` greater than.
    Above(i32),
}

/// What becomes of `n`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Cannot fail.
    Set(i32),
    /// May overflow.
    Add(i32),
    /// 1000 divided by `n` less this; divides by zero now and then.
    DivideBy(i32),
}

/// What an INSERT does about a key that exists.
#[derive(Clone, Copy, Debug)]
pub(super) enum Conflict {
    Fail,
    Nothing,
    /// The sum of the old and the new `n`, if it does not overflow.
    Add,
}

/// A statement on the rows `(k, n)` of a table.
#[derive(Clone, Debug)]
pub(super) enum Statement {
    Insert {
        rows: Vec<(i64, i32)>,
        conflict: Conflict,
    },
    Update {
        filter: Filter,
        change: Change,
        returning: bool,
    },
    Delete {
        filter: Filter,
    },
    Truncate,
    Rows(Filter),
    /// `count(*)` and `sum(n)`.
    Total(Filter),
}

/// A table of `k bigint primary key, n integer`.
pub(super) fn schema(name: &str, by_range: bool) -> TableSchema {
    let column = |name: &str, ty, not_null| Column { name: name.into(), ty, not_null, default: None };
    let splits = [6, 12, 18].map(Value::Int8).to_vec();
    TableSchema {
        id: TableId(0),
        version: Ts::ZERO,
        name: name.into(),
        columns: vec![column("k", Type::Int8, true), column("n", Type::Int4, false)],
        primary_key: vec![0],
        primary_key_name: format!("{name}_pkey"),
        partitioning: match by_range {
            true => Partitioning::Range { column: 0, splits },
            false => Partitioning::Hash { columns: vec![0] },
        },
    }
}

fn int4(value: i32) -> Expr {
    Expr::literal(Value::Int4(value), Type::Int4)
}

/// Both columns.
pub(super) fn both() -> Vec<Expr> {
    vec![Expr::column(0, Type::Int8), n()]
}

fn n() -> Expr {
    Expr::column(1, Type::Int4)
}

fn call(function: Function, left: Expr, right: Expr) -> Expr {
    Expr::Call { function, args: vec![left, right], ty: Type::Int4 }
}

fn compare(op: CompareOp, left: Expr, right: Expr) -> Expr {
    Expr::Compare { op, left: Box::new(left), right: Box::new(right) }
}

impl Filter {
    fn random(random: &mut Random) -> Filter {
        let key = |random: &mut Random| random.below(KEYS as u64) as i64;
        match random.below(5) {
            0 => Filter::All,
            1 => Filter::Above(random.below(60) as i32),
            2 => Filter::Keys([key(random), key(random)]),
            _ => Filter::Key(key(random)),
        }
    }

    fn predicate(&self) -> Vec<Expr> {
        let column = Expr::column(0, Type::Int8);
        let literal = |key: &i64| Expr::literal(Value::Int8(*key), Type::Int8);
        match self {
            Filter::All => Vec::new(),
            Filter::Key(key) => vec![compare(CompareOp::Eq, column, literal(key))],
            Filter::Keys(keys) => {
                let list = keys.iter().map(literal).collect();
                vec![Expr::InList { expr: Box::new(column), list, negated: false }]
            }
            Filter::Above(bound) => vec![compare(CompareOp::Gt, n(), int4(*bound))],
        }
    }

    fn ranges(&self, schema: &TableSchema) -> Vec<KeyRange> {
        match self {
            Filter::Key(key) => vec![KeyRange::point(position(schema, *key))],
            Filter::Keys(keys) => normalise(keys.map(|key| KeyRange::point(position(schema, key))).to_vec()),
            Filter::All | Filter::Above(_) => vec![KeyRange::FULL],
        }
    }

    /// Whether a row qualifies.
    pub(super) fn holds(&self, key: i64, n: i32) -> bool {
        match self {
            Filter::All => true,
            Filter::Key(wanted) => key == *wanted,
            Filter::Keys(wanted) => wanted.contains(&key),
            Filter::Above(bound) => n > *bound,
        }
    }
}

fn position(schema: &TableSchema, key: i64) -> u64 {
    schema.partitioning.position(&[Value::Int8(key)])
}

/// Rows with their positions.
pub(super) fn batch(schema: &TableSchema, rows: &[(i64, i32)]) -> RowBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|(key, _)| *key)));
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(rows.iter().map(|(_, n)| *n)));
    RowBatch {
        rows: RecordBatch::try_new(schema.arrow(), vec![keys, numbers]).expect("columns fit the schema"),
        positions: rows.iter().map(|(key, _)| position(schema, *key)).collect(),
        ordinals: (0..rows.len() as u64).collect(),
    }
}

impl Statement {
    /// A statement like any other.
    pub(super) fn random(random: &mut Random) -> Statement {
        let key = |random: &mut Random| random.below(KEYS as u64) as i64;
        let n = |random: &mut Random| match random.one_in(20) {
            true => i32::MAX - random.below(5) as i32,
            false => random.below(60) as i32,
        };
        match random.below(100) {
            0..30 => {
                let mut rows: Vec<(i64, i32)> =
                    (0..1 + random.below(4)).map(|_| (key(random), n(random))).collect();
                rows.sort_unstable();
                rows.dedup_by_key(|(key, _)| *key);
                let conflict = [Conflict::Fail, Conflict::Nothing, Conflict::Add];
                Statement::Insert { rows, conflict: conflict[random.below(3) as usize] }
            }
            30..52 => {
                let change = match random.below(3) {
                    0 => Change::Set(n(random)),
                    1 => Change::Add(1 + random.below(3) as i32),
                    _ => Change::DivideBy(random.below(60) as i32),
                };
                Statement::Update { filter: Filter::random(random), change, returning: random.one_in(2) }
            }
            52..60 => {
                let filter = match Filter::random(random) {
                    Filter::All => Filter::Above(50),
                    other => other,
                };
                Statement::Delete { filter }
            }
            60 => Statement::Truncate,
            _ => Statement::read(random),
        }
    }

    /// A read like any other.
    pub(super) fn read(random: &mut Random) -> Statement {
        match random.one_in(3) {
            true => Statement::Total(Filter::random(random)),
            false => Statement::Rows(Filter::random(random)),
        }
    }

    /// Whether it only reads.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Statement::Rows(_) | Statement::Total(_))
    }

    /// The key ranges it touches.
    pub(super) fn ranges(&self, schema: &TableSchema) -> Vec<KeyRange> {
        match self {
            Statement::Insert { rows, .. } => {
                normalise(rows.iter().map(|(key, _)| KeyRange::point(position(schema, *key))).collect())
            }
            Statement::Update { filter, .. }
            | Statement::Delete { filter }
            | Statement::Rows(filter)
            | Statement::Total(filter) => filter.ranges(schema),
            Statement::Truncate => vec![KeyRange::FULL],
        }
    }

    /// The message's body for a table as the client knows it.
    pub(super) fn body(&self, number: usize, schema: &TableSchema, read_ts: Option<Ts>) -> Body {
        let (kind, fallible) = match self {
            Statement::Insert { rows, conflict } => {
                let (on_conflict, fallible) = match conflict {
                    Conflict::Fail => (OnConflict::Fail, true),
                    Conflict::Nothing => (OnConflict::Nothing, false),
                    Conflict::Add => {
                        let sum = call(Function::Add, n(), Expr::column(3, Type::Int4));
                        let assignments = vec![(1, sum)];
                        (OnConflict::Update { assignments, predicate: Vec::new() }, true)
                    }
                };
                let rows = InsertRows::Inline(batch(schema, rows));
                (OperationKind::Insert(Insert { rows, on_conflict, returning: None }), fallible)
            }
            Statement::Update { filter, change, returning } => {
                let (value, fallible) = match change {
                    Change::Set(value) => (int4(*value), false),
                    Change::Add(value) => (call(Function::Add, n(), int4(*value)), true),
                    Change::DivideBy(value) => {
                        let divisor = call(Function::Subtract, n(), int4(*value));
                        (call(Function::Divide, int4(1000), divisor), true)
                    }
                };
                let (predicate, assignments) = (filter.predicate(), vec![(1, value)]);
                let update = Update { predicate, assignments, returning: returning.then(both) };
                (OperationKind::Update(update), fallible)
            }
            Statement::Delete { filter } => {
                (OperationKind::Delete(Delete { predicate: filter.predicate(), returning: None }), false)
            }
            Statement::Truncate => (OperationKind::Truncate, false),
            Statement::Rows(filter) => {
                let output = ReadOutput::Rows { projection: both(), top: None };
                (OperationKind::Read(Read { predicate: filter.predicate(), output }), false)
            }
            Statement::Total(filter) => {
                let count = AggregateCall::new(AggregateFunction::Count, None);
                let sum = AggregateCall::new(AggregateFunction::Sum, Some(n()));
                let output =
                    ReadOutput::Groups { group_by: Vec::new(), aggregates: vec![count, sum], top: None };
                (OperationKind::Read(Read { predicate: filter.predicate(), output }), false)
            }
        };
        let context = EvalContext { time_zone: "UTC".into(), now: number as i64 };
        let operation = Arc::new(Operation { table: schema.id, context, kind });
        Body::Data(Data { read_ts, fallible, ..Data::new(operation) })
    }
}

impl Statement {
    /// As [`Statement::body`], for an INSERT whose rows have been staged.
    pub(super) fn staged_body(&self, number: usize, schema: &TableSchema, payload: &StagedPayload) -> Body {
        let Body::Data(data) = self.body(number, schema, None) else { unreachable!("a statement on rows") };
        let mut operation = Operation::clone(data.operation.open().expect("an operation of this process"));
        if let OperationKind::Insert(insert) = &mut operation.kind {
            insert.rows = InsertRows::Staged(payload.id);
        }
        Body::Data(Data {
            operation: Arc::new(operation).into(),
            staged: Some(Box::new(payload.clone())),
            ..data
        })
    }
}

/// The number of a message's statement.
pub(super) fn number_of(message: &Message) -> Option<usize> {
    match &message.body {
        Body::Data(data) => usize::try_from(data.operation.open().ok()?.context.now).ok(),
        _ => None,
    }
}
