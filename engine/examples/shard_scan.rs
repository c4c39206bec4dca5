//! Loads rows of 47 columns, many of them rare flags, into one shard and asks selective questions, alone and 64 at a
//! time, and the same aggregates, once and a thousand times: `cargo run --release -p carousel-engine --example shard_scan -- [rows]`.

use std::{sync::Arc, time::Instant};

use arrow::{
    array::{ArrayRef, BooleanArray, Int32Array, StringArray},
    record_batch::RecordBatch,
};
use carousel_engine::{
    Shard, TableId, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::{CompareOp, EvalContext, Expr},
    operation::{
        Effect, Insert, InsertRows, OnConflict, Operation, OperationKind, OrderedOperation, Read, ReadOutput,
        RowBatch,
    },
    position::KeyRange,
    schema::{Column, Partitioning},
    shard::{Options, Progress},
};

const BATCH: usize = 10_000;
const FLAGS: usize = 30;

fn schema() -> TableSchema {
    let column = |name: String, ty, not_null| Column { name, ty, not_null, default: None };
    let mut columns = vec![column("id".into(), Type::Int4, true), column("locator".into(), Type::Text, true)];
    columns.extend((0..10).map(|i| column(format!("text{i}"), Type::Text, true)));
    columns.extend((0..5).map(|i| column(format!("number{i}"), Type::Int4, true)));
    columns.extend((0..FLAGS).map(|i| column(format!("flag{i}"), Type::Bool, true)));
    TableSchema {
        id: TableId(1),
        version: Ts(1),
        name: "ticket".into(),
        columns,
        primary_key: vec![0],
        primary_key_name: "ticket_pkey".into(),
        partitioning: Partitioning::Hash { columns: vec![0] },
    }
}

fn scatter(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 29)
}

fn batch(schema: &TableSchema, first: usize, rows: usize) -> RecordBatch {
    let numbers = || first..first + rows;
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(numbers().map(|row| row as i32).collect::<Int32Array>()),
        Arc::new(StringArray::from_iter_values(
            numbers().map(|row| format!("{:06X}", scatter(row as u64 / 3) & 0xff_ffff)),
        )),
    ];
    for text in 0..10u64 {
        let distinct = [12, 150, 300, 400, 900, 2000, 6000, 20_000, 7, 26][text as usize];
        columns.push(Arc::new(StringArray::from_iter_values(
            numbers().map(|row| format!("value {}", scatter(row as u64 * 31 + text) % distinct)),
        )));
    }
    for number in 0..5u64 {
        let distinct = [10, 365, 1000, 90_000, 250][number as usize];
        columns.push(Arc::new(
            numbers()
                .map(|row| (scatter(row as u64 * 37 + number) % distinct) as i32)
                .collect::<Int32Array>(),
        ));
    }
    for flag in 0..FLAGS as u64 {
        let flags: Vec<bool> =
            numbers().map(|row| scatter(row as u64 * 41 + flag).is_multiple_of(40 + flag)).collect();
        columns.push(Arc::new(BooleanArray::from(flags)));
    }
    RecordBatch::try_new(schema.arrow(), columns).expect("columns of the schema")
}

fn ordered(ts: u64, kind: OperationKind) -> OrderedOperation {
    OrderedOperation::new(
        Ts(ts),
        Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind }),
        vec![KeyRange::FULL],
    )
}

fn question(schema: &TableSchema, seed: u64) -> OperationKind {
    let equals = |column: usize, value: Value| Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::column(column, schema.columns[column].ty.clone())),
        right: Box::new(Expr::literal(value, schema.columns[column].ty.clone())),
    };
    let projection = (0..8).map(|column| Expr::column(column, schema.columns[column].ty.clone())).collect();
    OperationKind::Read(Read {
        predicate: vec![
            equals(17, Value::Bool(true)),
            equals(4, Value::text(format!("value {}", seed % 300))),
            equals(13, Value::Int4((seed * 7 % 365) as i32)),
        ],
        output: ReadOutput::Rows { projection, top: None },
    })
}

/// `SELECT text0, count(*), avg(number2) … WHERE text9 < 'value 2' GROUP BY text0`
fn aggregates(schema: &TableSchema) -> OperationKind {
    let column = |index: usize| Expr::column(index, schema.columns[index].ty.clone());
    let predicate = vec![Expr::Compare {
        op: CompareOp::Lt,
        left: Box::new(column(11)),
        right: Box::new(Expr::literal(Value::text("value 2"), Type::Text)),
    }];
    let aggregates = vec![
        AggregateCall::new(AggregateFunction::Count, None),
        AggregateCall::new(AggregateFunction::Avg, Some(column(14))),
    ];
    let output = ReadOutput::Groups { group_by: vec![column(2)], aggregates, top: None };
    OperationKind::Read(Read { predicate, output })
}

fn run(shard: &mut Shard) -> usize {
    let mut effects = Vec::new();
    while shard.step(&mut effects) == Progress::Busy {}
    effects
        .iter()
        .map(|effect| match effect {
            Effect::Rows { batch, .. } => batch.num_rows(),
            _ => 0,
        })
        .sum()
}

fn main() {
    let rows = std::env::args().nth(1).and_then(|rows| rows.parse().ok()).unwrap_or(1_000_000usize);
    let schema = schema();
    let mut shard = Shard::new(0, 1, vec![KeyRange::FULL], Options::default());
    shard.restore_table(Arc::new(schema.clone()));
    let mut ts = 1;
    let mut loading = std::time::Duration::ZERO;
    for first in (0..rows).step_by(BATCH) {
        let batch = batch(&schema, first, BATCH.min(rows - first));
        let positions = schema.partitioning.positions(&schema.columns, &batch);
        let ordinals = (0..batch.num_rows() as u64).collect();
        ts += 1;
        let rows = InsertRows::Inline(RowBatch { rows: batch, positions, ordinals });
        let insert = Insert { rows, on_conflict: OnConflict::Fail, returning: None };
        let start = Instant::now();
        shard.submit(ordered(ts, OperationKind::Insert(insert)));
        run(&mut shard);
        loading += start.elapsed();
    }
    let start = Instant::now();
    while shard.collect_garbage(Ts(ts)) == Progress::Busy {}
    eprintln!(
        "{rows} rows: loaded at {:.0} rows/s, collected in {:?}, {:.1} bytes/row",
        rows as f64 / loading.as_secs_f64(),
        start.elapsed(),
        shard.memory() as f64 / rows as f64
    );
    for riders in [1, 64] {
        let mut times = Vec::new();
        let mut found = 0;
        for round in 0..30 {
            for rider in 0..riders {
                ts += 1;
                shard.submit(ordered(ts, question(&schema, round * 64 + rider)));
            }
            let start = Instant::now();
            found += run(&mut shard);
            times.push(start.elapsed());
        }
        times.sort_unstable();
        eprintln!("{riders} riders: median revolution {:?} ({found} rows found)", times[times.len() / 2]);
    }
    for riders in [1, 1000] {
        let mut times = Vec::new();
        for _ in 0..10 {
            for _ in 0..riders {
                ts += 1;
                shard.submit(ordered(ts, aggregates(&schema)));
            }
            let start = Instant::now();
            run(&mut shard);
            times.push(start.elapsed());
        }
        times.sort_unstable();
        eprintln!("{riders} identical aggregates: median revolution {:?}", times[times.len() / 2]);
    }
}
