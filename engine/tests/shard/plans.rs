//! How a read's rows are found does not change which they are.

use std::sync::Arc;

use carousel_engine::{
    Shard, TableId, TableSchema, Ts, Type, Value,
    expr::{CompareOp, EvalContext, Expr},
    operation::{Effect, Operation, OperationKind, OrderedOperation, Read, ReadOutput},
    position::KeyRange,
    schema::Partitioning,
    shard::{Options, Progress},
};

use crate::{
    generate::column,
    oracle::{Row, batch_of},
};

/// Rows that a read finds.
fn count(shard: &mut Shard, ts: u64, predicate: Vec<Expr>) -> u64 {
    let read = Read { predicate, output: ReadOutput::Rows { projection: Vec::new(), top: None } };
    let kind = OperationKind::Read(read);
    shard.submit(OrderedOperation::new(
        Ts(ts),
        Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind }),
        vec![KeyRange::FULL],
    ));
    let mut effects = Vec::new();
    while shard.step(&mut effects) == Progress::Busy {}
    match effects.pop() {
        Some(Effect::Executed { outcomes, .. }) => outcomes[0].1.clone().expect("a count"),
        other => panic!("not executed: {other:?}"),
    }
}

/// A list is too long for the index, its rows are so few that no other conjunct is asked how many it has, and the
/// segment before has had another answer for that one.
#[test]
fn conjuncts_that_nobody_asked_about_a_segment_are_asked_before_they_are_left_out() {
    let schema = Arc::new(TableSchema {
        id: TableId(1),
        version: Ts(1),
        name: "t".into(),
        columns: vec![column("a", Type::Int4, true), column("b", Type::Text, true)],
        primary_key: Vec::new(),
        primary_key_name: String::new(),
        partitioning: Partitioning::Hash { columns: vec![0] },
    });
    let options = Options { segment_rows: 256, selective_share: 1, ..Options::default() };
    let mut shard = Shard::new(0, 1, vec![KeyRange::FULL], options);
    shard.restore_table(schema.clone());
    let text = |a: i32| match a {
        ..256 => "x",
        _ if a % 4 == 0 => "y",
        _ => "z",
    };
    let rows: Vec<Row> = (0..520).map(|a| vec![Value::Int4(a), Value::text(text(a))]).collect();
    shard.restore(schema.id, &batch_of(&schema, &rows), Ts::ZERO).expect("rows in the layout");
    let literal = |value: Value, ty: Type| Expr::literal(value, ty);
    let list = (0..30).map(|index| literal(Value::Int4(300 + index * 2), Type::Int4)).collect();
    let listed = Expr::InList { expr: Box::new(Expr::column(0, Type::Int4)), list, negated: false };
    let equal = Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::column(1, Type::Text)),
        right: Box::new(literal(Value::text("y"), Type::Text)),
    };
    assert_eq!(count(&mut shard, 2, vec![listed.clone()]), 30);
    assert_eq!(count(&mut shard, 3, vec![listed, equal]), 15);
}
