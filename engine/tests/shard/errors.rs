//! What errors say.

use std::sync::Arc;

use carousel_engine::{
    Shard, SqlError, TableId, TableSchema, Ts, Type, Value,
    expr::{CompareOp, EvalContext, Expr},
    operation::{
        Effect, Insert, InsertRows, OnConflict, Operation, OperationKind, OrderedOperation, PayloadId,
        RowBatch, Update,
    },
    position::KeyRange,
    schema::{Column, Partitioning},
    shard::{Options, Progress},
};

use crate::oracle::{Row, batch_of};

struct Table {
    schema: Arc<TableSchema>,
    shard: Shard,
    ts: u64,
}

impl Table {
    fn new() -> Table {
        let column = |name: &str, ty, not_null| Column { name: name.into(), ty, not_null, default: None };
        let schema = Arc::new(TableSchema {
            id: TableId(1),
            version: Ts(1),
            name: "t".into(),
            columns: vec![
                column("a", Type::Int4, true),
                column("b", Type::Text, true),
                column("c", Type::Int4, true),
                column("d", Type::Text, false),
            ],
            primary_key: vec![0, 1],
            primary_key_name: "t_pkey".into(),
            partitioning: Partitioning::Hash { columns: vec![0] },
        });
        let mut shard = Shard::new(0, 1, vec![KeyRange::FULL], Options::default());
        shard.restore_table(schema.clone());
        Table { schema, shard, ts: 1 }
    }

    fn execute(&mut self, kind: OperationKind) -> Result<u64, SqlError> {
        self.ts += 1;
        let operation = Operation { table: self.schema.id, context: EvalContext::default(), kind };
        self.shard.submit(OrderedOperation::new(Ts(self.ts), Arc::new(operation), vec![KeyRange::FULL]));
        let mut effects = Vec::new();
        while self.shard.step(&mut effects) == Progress::Busy {}
        match effects.pop() {
            Some(Effect::Executed { outcomes, .. }) => outcomes[0].1.clone(),
            other => panic!("not executed: {other:?}"),
        }
    }

    fn batch(&self, rows: &[Row]) -> RowBatch {
        let rows = batch_of(&self.schema, rows);
        let positions = self.schema.partitioning.positions(&self.schema.columns, &rows);
        let ordinals = (0..rows.num_rows() as u64).collect();
        RowBatch { rows, positions, ordinals }
    }

    fn insert(&mut self, rows: &[Row], on_conflict: OnConflict) -> Result<u64, SqlError> {
        let rows = InsertRows::Inline(self.batch(rows));
        self.execute(OperationKind::Insert(Insert { rows, on_conflict, returning: None }))
    }
}

/// Its other rows never come, as nobody needs them.
#[test]
fn what_follows_staged_rows_that_fail_goes_on() {
    let mut table = Table::new();
    table.insert(&[row(1, "x", 1)], OnConflict::Fail).expect("the first");
    let submit = |table: &mut Table, ts: Ts, kind: OperationKind| {
        let operation = Operation { table: table.schema.id, context: EvalContext::default(), kind };
        table.shard.submit(OrderedOperation::new(ts, Arc::new(operation), vec![KeyRange::FULL]));
    };
    let rows = InsertRows::Staged(PayloadId { process: 1, incarnation: 1, sequence: 1 });
    let insert = Insert { rows, on_conflict: OnConflict::Fail, returning: None };
    submit(&mut table, Ts(5), OperationKind::Insert(insert));
    submit(&mut table, Ts(6), OperationKind::Truncate);
    let mut effects = Vec::new();
    while table.shard.step(&mut effects) == Progress::Busy {}
    assert!(effects.is_empty(), "{effects:?}");
    let rows = Arc::new(table.batch(&[row(1, "x", 2)]));
    table.shard.supply(Ts(5), rows, false, &mut effects);
    while table.shard.step(&mut effects) == Progress::Busy {}
    let executed = effects.iter().filter_map(|effect| match effect {
        Effect::Executed { ts, .. } => Some(*ts),
        _ => None,
    });
    assert_eq!(executed.collect::<Vec<_>>(), [Ts(5), Ts(6)]);
}

fn row(a: i32, b: &str, c: i32) -> Row {
    vec![Value::Int4(a), Value::text(b), Value::Int4(c), Value::text("x".repeat(70))]
}

#[test]
fn a_duplicate_key_is_named_and_leaves_nothing() {
    let mut table = Table::new();
    assert_eq!(table.insert(&[row(1, "x", 1), row(2, "y", 2)], OnConflict::Fail), Ok(2));
    let error = table.insert(&[row(3, "z", 3), row(1, "x", 4)], OnConflict::Fail).expect_err("a duplicate");
    assert_eq!(error.code.as_str(), "23505");
    assert_eq!(error.message, "duplicate key value violates unique constraint \"t_pkey\"");
    assert_eq!(error.detail.as_deref(), Some("Key (a, b)=(1, x) already exists."));
    assert_eq!((error.table.as_deref(), error.constraint.as_deref()), (Some("t"), Some("t_pkey")));
    assert_eq!(table.shard.rows(TableId(1)), 2);
    let error = table.insert(&[row(3, "z", 3), row(3, "z", 4)], OnConflict::Fail).expect_err("a duplicate");
    assert_eq!(error.detail.as_deref(), Some("Key (a, b)=(3, z) already exists."));
}

#[test]
fn a_row_is_not_updated_twice_on_conflict() {
    let mut table = Table::new();
    let update = || OnConflict::Update {
        assignments: vec![(2, Expr::literal(Value::Int4(9), Type::Int4))],
        predicate: vec![],
    };
    let error = table.insert(&[row(1, "x", 1), row(1, "x", 2)], update()).expect_err("the second time");
    assert_eq!(error.code.as_str(), "21000");
    assert_eq!(error.message, "ON CONFLICT DO UPDATE command cannot affect row a second time");
    assert_eq!(table.shard.rows(TableId(1)), 0);
    assert_eq!(table.insert(&[row(1, "x", 1), row(1, "x", 2)], OnConflict::Nothing), Ok(1));
}

#[test]
fn a_null_shows_the_failing_row_cut() {
    let mut table = Table::new();
    assert_eq!(table.insert(&[row(1, "x", 1)], OnConflict::Fail), Ok(1));
    let update = Update {
        predicate: vec![],
        assignments: vec![(2, Expr::literal(Value::Null, Type::Int4))],
        returning: None,
    };
    let error = table.execute(OperationKind::Update(update)).expect_err("a null");
    assert_eq!(error.code.as_str(), "23502");
    assert_eq!(error.message, "null value in column \"c\" of relation \"t\" violates not-null constraint");
    let cut = "x".repeat(64);
    assert_eq!(error.detail, Some(format!("Failing row contains (1, x, null, {cut}...).")));
}

#[test]
fn assigning_a_key_is_refused_by_name() {
    let mut table = Table::new();
    let update = Update {
        predicate: vec![],
        assignments: vec![(1, Expr::literal(Value::text("y"), Type::Text))],
        returning: None,
    };
    let error = table.execute(OperationKind::Update(update)).expect_err("a key column");
    assert_eq!(error.code.as_str(), "0A000");
    assert!(error.message.contains("\"b\""));
}

/// Every replica refuses it, none of them stops.
#[test]
fn what_does_not_fit_the_table_has_no_effect_anywhere() {
    let mut table = Table::new();
    table.insert(&[row(1, "x", 1)], OnConflict::Fail).expect("a row");
    let wide = Expr::literal(Value::Int8(1), Type::Int8);
    let compared = Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::column(0, Type::Int4)),
        right: Box::new(wide.clone()),
    };
    let narrow = Expr::literal(Value::Int4(1), Type::Int4);
    for (predicate, value) in [(vec![compared], narrow), (vec![], wide)] {
        let update = Update { predicate, assignments: vec![(2, value)], returning: None };
        let error = table.execute(OperationKind::Update(update)).expect_err("it does not fit");
        assert_eq!((error.code.as_str(), error.is_deterministic()), ("XX000", true), "{error}");
    }
}
