//! What is the same for several operations is done once, and what nobody has asked for not at all.

use std::sync::Arc;

use arrow::{array::AsArray, datatypes::Int32Type};
use carousel_engine::{
    Shard, SqlError, TableId, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, Group, GroupTable},
    expr::{CompareOp, EvalContext, Expr},
    operation::{Effect, Operation, OperationKind, OrderedOperation, Read, ReadOutput, Update},
    position::KeyRange,
    schema::{Column, Partitioning},
    shard::{Options, Progress},
};

use crate::oracle::{Row, batch_of};

const ROWS: i32 = 1000;
const SEGMENTS: u64 = 10;

pub struct Scan {
    pub schema: Arc<TableSchema>,
    pub shard: Shard,
    ts: u64,
    pub effects: Vec<Effect>,
}

impl Scan {
    /// A thousand rows in ten segments.
    fn new() -> Scan {
        let segment_rows = ROWS as usize / SEGMENTS as usize;
        Scan::with(ROWS, Options { segment_rows, ..Options::default() })
    }

    /// Rows `(k, k % 10, k % 7)`.
    pub fn with(rows: i32, options: Options) -> Scan {
        let row = |k: i32| vec![Value::Int4(k), Value::Int4(k % 10), Value::Int4(k % 7)];
        let columns = [("k", Type::Int4), ("a", Type::Int4), ("b", Type::Int4)];
        Scan::of(&columns, (0..rows).map(row).collect(), options)
    }

    /// These rows, whose first column is the key, and the only one without NULLs.
    pub fn of(columns: &[(&str, Type)], rows: Vec<Row>, options: Options) -> Scan {
        let column = |(name, ty): &(&str, Type)| Column {
            name: (*name).into(),
            ty: ty.clone(),
            not_null: *name == columns[0].0,
            default: None,
        };
        let schema = Arc::new(TableSchema {
            id: TableId(1),
            version: Ts(1),
            name: "t".into(),
            columns: columns.iter().map(column).collect(),
            primary_key: vec![0],
            primary_key_name: "t_pkey".into(),
            partitioning: Partitioning::Hash { columns: vec![0] },
        });
        let mut shard = Shard::new(0, 1, vec![KeyRange::FULL], options);
        shard.restore_table(schema.clone());
        shard.restore(schema.id, &batch_of(&schema, &rows), Ts::ZERO).expect("rows in the layout");
        while shard.collect_garbage(Ts(1)) == Progress::Busy {}
        Scan { schema, shard, ts: 10, effects: Vec::new() }
    }

    pub fn submit(&mut self, kind: OperationKind) -> Ts {
        self.submit_with(kind, None)
    }

    pub fn submit_with(&mut self, kind: OperationKind, window: Option<u32>) -> Ts {
        self.submit_as(kind, |ordered| ordered.window = window)
    }

    pub fn submit_as(&mut self, kind: OperationKind, change: impl FnOnce(&mut OrderedOperation)) -> Ts {
        let ts = self.next_ts();
        // Every statement has its own clock; nothing here asks for it.
        let context = EvalContext { now: self.ts as i64, ..EvalContext::default() };
        let operation = Arc::new(Operation { table: self.schema.id, context, kind });
        let mut ordered = OrderedOperation::new(ts, operation, self.shard.ranges().to_vec());
        change(&mut ordered);
        self.shard.submit(ordered);
        ts
    }

    pub fn next_ts(&mut self) -> Ts {
        self.ts += 1;
        Ts(self.ts)
    }

    pub fn run(&mut self) {
        while self.shard.step(&mut self.effects) == Progress::Busy {}
    }

    /// Clears away what nobody sees who comes later.
    pub fn collect(&mut self) {
        while self.shard.collect_garbage(Ts(self.ts + 1)) == Progress::Busy {}
    }

    pub fn outcome_of(&self, ts: Ts) -> Result<u64, SqlError> {
        let outcome = self.effects.iter().find_map(|effect| match effect {
            Effect::Executed { ts: of, outcomes } if *of == ts => Some(outcomes[0].1.clone()),
            _ => None,
        });
        outcome.expect("it has been executed")
    }

    pub fn groups_of(&self, ts: Ts) -> Vec<Group> {
        self.parts_of_groups(ts).into_iter().flatten().cloned().collect()
    }

    pub fn parts_of_groups(&self, ts: Ts) -> Vec<&[Group]> {
        let part = |effect| match effect {
            &Effect::Groups { ts: of, ref groups } if of == ts => Some(&groups[..]),
            _ => None,
        };
        let parts: Vec<_> = self.effects.iter().filter_map(part).collect();
        assert!(!parts.is_empty(), "it has groups");
        parts
    }
}

pub fn column(index: usize) -> Expr {
    Expr::column(index, Type::Int4)
}

fn compare(op: CompareOp, left: Expr, right: Expr) -> Expr {
    Expr::Compare { op, left: Box::new(left), right: Box::new(right) }
}

pub fn compare_equal(index: usize, constant: i32) -> Expr {
    compare(CompareOp::Eq, column(index), number(constant))
}

pub fn number(number: i32) -> Expr {
    Expr::literal(Value::Int4(number), Type::Int4)
}

/// `SELECT b, count(*), sum(k) … GROUP BY b`, over `a < below`.
fn aggregates(below: i32) -> (OperationKind, GroupTable) {
    let calls = vec![
        AggregateCall::new(AggregateFunction::Count, None),
        AggregateCall::new(AggregateFunction::Sum, Some(column(0))),
    ];
    let table = GroupTable::for_read(&[column(2)], &calls);
    let output = ReadOutput::Groups { group_by: vec![column(2)], aggregates: calls, top: None };
    let predicate = vec![compare(CompareOp::Lt, column(1), number(below))];
    (OperationKind::Read(Read { predicate, output }), table)
}

/// The results of such a read, in the order of the groups.
fn results(mut table: GroupTable, groups: Vec<Group>) -> Vec<(Row, Row)> {
    table.merge(groups).expect("groups of the read");
    let mut results = table.finish().expect("sums in range");
    results.sort();
    results
}

fn expected(below: i32) -> Vec<(Row, Row)> {
    let group = |b: i32| {
        let keys = || (0..ROWS).filter(move |k| k % 7 == b && k % 10 < below);
        let sum = keys().map(i64::from).sum();
        (vec![Value::Int4(b)], vec![Value::Int8(keys().count() as i64), Value::Int8(sum)])
    };
    (0..7).map(group).collect()
}

#[test]
fn identical_aggregates_are_computed_once() {
    let mut scan = Scan::new();
    let (kind, table) = aggregates(5);
    let reads: Vec<Ts> = (0..1000).map(|_| scan.submit(kind.clone())).collect();
    scan.run();
    assert_eq!(scan.shard.searches(), SEGMENTS);
    for ts in reads {
        assert_eq!(results(table.clone(), scan.groups_of(ts)), expected(5));
        assert_eq!(scan.outcome_of(ts), Ok(500));
    }
}

#[test]
fn identical_aggregates_that_join_anywhere_are_computed_once_a_visit() {
    let mut scan = Scan::new();
    let (kind, table) = aggregates(5);
    let mut reads = Vec::new();
    for _ in 0..SEGMENTS + 3 {
        for _ in 0..20 {
            reads.push(scan.submit(kind.clone()));
        }
        scan.shard.step(&mut scan.effects);
    }
    scan.run();
    assert_eq!(scan.shard.searches(), scan.shard.visits());
    for ts in reads {
        assert_eq!(results(table.clone(), scan.groups_of(ts)), expected(5));
    }
}

#[test]
fn aggregates_of_one_predicate_look_for_its_rows_once() {
    let mut scan = Scan::new();
    let reads: Vec<(Ts, AggregateFunction)> =
        [AggregateFunction::Min, AggregateFunction::Max, AggregateFunction::Count, AggregateFunction::BitXor]
            .into_iter()
            .map(|function| {
                let output = ReadOutput::Groups {
                    group_by: vec![],
                    aggregates: vec![AggregateCall::new(function, Some(column(0)))],
                    top: None,
                };
                // The index does not understand it.
                let predicate = vec![compare(CompareOp::Lt, column(1), column(2))];
                (scan.submit(OperationKind::Read(Read { predicate, output })), function)
            })
            .collect();
    scan.run();
    assert_eq!(scan.shard.searches(), SEGMENTS);
    let keys = || (0..ROWS).filter(|k| k % 10 < k % 7);
    for (ts, function) in reads {
        let value = scan.groups_of(ts)[0].states[0].finish().expect("a result");
        let wanted = match function {
            AggregateFunction::Min => Value::Int4(keys().min().expect("rows")),
            AggregateFunction::Max => Value::Int4(keys().max().expect("rows")),
            AggregateFunction::Count => Value::Int8(keys().count() as i64),
            _ => Value::Int4(keys().fold(0, |xor, k| xor ^ k)),
        };
        assert_eq!(value, wanted);
    }
}

#[test]
fn a_write_between_two_identical_aggregates_parts_them() {
    let mut scan = Scan::new();
    let (kind, table) = aggregates(10);
    let before: Vec<Ts> = (0..3).map(|_| scan.submit(kind.clone())).collect();
    scan.submit(OperationKind::Update(Update {
        predicate: vec![compare_equal(1, 3)],
        assignments: vec![(2, number(0))],
        returning: None,
    }));
    let after: Vec<Ts> = (0..3).map(|_| scan.submit(kind.clone())).collect();
    scan.run();
    // The write looks as well.
    assert_eq!(scan.shard.searches(), 3 * SEGMENTS);
    for ts in before {
        assert_eq!(results(table.clone(), scan.groups_of(ts)), expected(10));
    }
    let moved = (0..ROWS).filter(|k| k % 10 == 3 && k % 7 != 0).count() as i64;
    let Value::Int8(were) = expected(10)[0].1[0] else { panic!("a count") };
    for ts in after {
        assert_eq!(results(table.clone(), scan.groups_of(ts))[0].1[0], Value::Int8(were + moved));
    }
}

/// Versions that a read has yet to see are kept for as long as it rides, or waits for its reader, whatever may be
/// collected otherwise. (A checkpoint is such a read.)
#[test]
fn what_a_read_needs_is_not_collected() {
    let mut scan = Scan::with(ROWS, Options { segment_rows: 100, batch_rows: 10, ..Options::default() });
    let output = ReadOutput::Rows { projection: vec![column(0), column(2)], top: None };
    let read = scan.submit_with(OperationKind::Read(Read { predicate: vec![], output }), Some(1));
    scan.run();
    let before = scan.shard.memory();
    for value in [100, 200] {
        let update = Update { predicate: vec![], assignments: vec![(2, number(value))], returning: None };
        scan.submit(OperationKind::Update(update));
        scan.run();
        while scan.shard.collect_garbage(Ts(u64::MAX)) == Progress::Busy {}
    }
    assert!(scan.shard.memory() > before);
    scan.shard.allow(read, 1000, &mut scan.effects);
    scan.run();
    let mut values = Vec::new();
    for effect in &scan.effects {
        if let Effect::Rows { ts, batch, .. } = effect
            && *ts == read
        {
            let column = |index: usize| batch.column(index).as_primitive::<Int32Type>();
            values.extend(column(0).values().iter().copied().zip(column(1).values().iter().copied()));
        }
    }
    values.sort_unstable();
    assert!(values.iter().copied().eq((0..ROWS).map(|k| (k, k % 7))));
    while scan.shard.collect_garbage(Ts(u64::MAX)) == Progress::Busy {}
    assert!(scan.shard.memory() <= before + before / 4, "{} after {before}", scan.shard.memory());
    assert_eq!(scan.shard.statistics()[0].rows, ROWS as u64);
}

#[test]
fn an_idle_shard_visits_nothing() {
    let mut scan = Scan::new();
    let (kind, _) = aggregates(5);
    scan.submit(kind);
    scan.run();
    let visits = scan.shard.visits();
    assert_eq!(visits, SEGMENTS, "one revolution");
    for _ in 0..100 {
        assert_eq!(scan.shard.step(&mut scan.effects), Progress::Idle);
    }
    assert_eq!(scan.shard.visits(), visits);
}

/// Strings that are new to a column are not all encoded at once, when other columns of their rows are.
#[test]
fn rows_that_only_some_columns_have_encoded_are_found_once() {
    const KINDS: i32 = 50;
    let row = |k: i32| vec![Value::Int4(k), Value::text(format!("string {k}")), Value::Int4(k % KINDS)];
    let columns = [("k", Type::Int4), ("s", Type::Text), ("n", Type::Int4)];
    let options = Options { selective_share: 1, ..Options::default() };
    let mut scan = Scan::of(&columns, (0..40 * KINDS).map(row).collect(), options);
    let later: Vec<Row> = (40 * KINDS..49 * KINDS).map(row).collect();
    scan.shard
        .restore(scan.schema.id, &batch_of(&scan.schema, &later), Ts::ZERO)
        .expect("rows in the layout");
    let read = |predicate: Vec<Expr>| {
        let output = ReadOutput::Rows { projection: vec![column(0)], top: None };
        OperationKind::Read(Read { predicate, output })
    };
    let is_not_first = Expr::Compare {
        op: CompareOp::Gt,
        left: Box::new(Expr::column(1, Type::Text)),
        right: Box::new(Expr::literal(Value::text("string 0"), Type::Text)),
    };
    for _ in 0..2 {
        let ask = |kind: i32| {
            let both = vec![compare_equal(2, kind), is_not_first.clone()];
            [
                (scan.submit(read(vec![compare_equal(2, kind)])), 49),
                (scan.submit(read(both)), 49 - u64::from(kind == 0)),
            ]
        };
        let asked: Vec<(Ts, u64)> = (0..KINDS).flat_map(ask).collect();
        scan.run();
        for (ts, rows) in asked {
            assert_eq!(scan.outcome_of(ts), Ok(rows));
        }
    }
}
