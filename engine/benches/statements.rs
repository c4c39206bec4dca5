//! Statements that ride past a shard: groups, the first rows of an order, arithmetic, updates, and the admission of many
//! reads together.
//!
//! `cargo bench -p carousel-engine -p carousel-cluster --bench statements`

use std::{hint::black_box, sync::Arc};

use arrow::array::{ArrayRef, Decimal128Array, Int32Array, RecordBatch, StringArray};
use carousel_engine::{
    Shard, TableId, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::{CompareOp, EvalContext, Expr, Function},
    numeric::Numeric,
    operation::{Effect, Operation, OperationKind, OrderedOperation, Read, ReadOutput, SortKey, Top, Update},
    position::KeyRange,
    schema::{Column, Partitioning},
    shard::{Options, Progress},
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const ROWS: i32 = 1 << 16;

const COLUMNS: [(&str, Type); 4] =
    [("id", Type::Int4), ("place", Type::Text), ("class", Type::Int4), ("fare", FARE)];

const FARE: Type = Type::Numeric(Some((10, 2)));

fn column(name: &str) -> Expr {
    let index = COLUMNS.iter().position(|(other, _)| *other == name).expect("a column");
    Expr::column(index, COLUMNS[index].1.clone())
}

struct Scan {
    shard: Shard,
    ts: u64,
}

impl Scan {
    /// One segment: 1,000 places, 4 classes.
    fn new() -> Scan {
        let schema = TableSchema {
            id: TableId(1),
            version: Ts(1),
            name: "t".to_owned(),
            columns: COLUMNS
                .map(|(name, ty)| Column { name: name.to_owned(), ty, not_null: true, default: None })
                .to_vec(),
            primary_key: vec![0],
            primary_key_name: "t_pkey".to_owned(),
            partitioning: Partitioning::Hash { columns: vec![0] },
        };
        let mix = |row: i32| (row.wrapping_mul(0x9e37_79b1_u32 as i32) as u32 >> 8) as i32;
        let places = (0..ROWS).map(|row| format!("place {}", mix(row) % 1000));
        let fares = Decimal128Array::from_iter_values((0..ROWS).map(|row| i128::from(mix(row) % 100_000)));
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from_iter_values(0..ROWS)),
            Arc::new(StringArray::from_iter_values(places)),
            Arc::new(Int32Array::from_iter_values((0..ROWS).map(|row| mix(row) % 7 % 4))),
            Arc::new(fares.with_data_type(FARE.arrow())),
        ];
        let rows = RecordBatch::try_new(schema.arrow(), arrays).expect("columns of one length");
        let mut shard = Shard::new(0, 1, vec![KeyRange::FULL], Options::default());
        shard.restore_table(Arc::new(schema));
        shard.restore(TableId(1), &rows, Ts::ZERO).expect("rows in the layout");
        let mut scan = Scan { shard, ts: 10 };
        scan.collect();
        scan
    }

    fn collect(&mut self) {
        while self.shard.collect_garbage(Ts(self.ts + 1)) == Progress::Busy {}
    }

    fn submit(&mut self, operation: &Arc<Operation>) {
        self.ts += 1;
        self.shard.submit(OrderedOperation::new(Ts(self.ts), operation.clone(), vec![KeyRange::FULL]));
    }

    fn finish(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.shard.step(&mut effects) == Progress::Busy {}
        effects
    }
}

fn operation(kind: OperationKind) -> Arc<Operation> {
    Arc::new(Operation { table: TableId(1), context: EvalContext::default(), kind })
}

fn read(predicate: Vec<Expr>, output: ReadOutput) -> Arc<Operation> {
    operation(OperationKind::Read(Read { predicate, output }))
}

fn groups(group_by: &[&str], argument: Expr) -> Arc<Operation> {
    let group_by = group_by.iter().map(|name| column(name)).collect();
    let aggregates = vec![
        AggregateCall::new(AggregateFunction::Count, None),
        AggregateCall::new(AggregateFunction::Sum, Some(argument)),
    ];
    read(Vec::new(), ReadOutput::Groups { group_by, aggregates, top: None })
}

fn fare_times(unscaled: i64, scale: u32) -> Expr {
    let factor = Expr::literal(Value::Numeric(Numeric::new(unscaled, scale)), Type::Numeric(None));
    Expr::Call { function: Function::Multiply, args: vec![column("fare"), factor], ty: Type::Numeric(None) }
}

fn many_rows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a statement alone");
    group.throughput(Throughput::Elements(ROWS as u64));
    let top = Top { keys: vec![SortKey { column: 0, descending: true, nulls_first: false }], limit: 10 };
    let first = ReadOutput::Rows { projection: vec![column("fare"), column("id")], top: Some(top) };
    let all = ReadOutput::Rows { projection: vec![column("id"), column("place"), column("fare")], top: None };
    let statements = [
        ("groups by 4 numbers", groups(&["class"], column("fare"))),
        ("groups by 1,000 strings", groups(&["place"], column("fare"))),
        ("groups by both", groups(&["place", "class"], column("fare"))),
        ("groups by as many values as rows", groups(&["id"], column("fare"))),
        ("sum of products", groups(&[], fare_times(3, 1))),
        ("first 10 of an order", read(Vec::new(), first)),
        ("all rows", read(Vec::new(), all)),
    ];
    for (name, statement) in statements {
        let mut scan = Scan::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                scan.submit(black_box(&statement));
                scan.finish()
            })
        });
    }
    let update = Update {
        predicate: Vec::new(),
        assignments: vec![(2, Expr::literal(Value::Int4(1), Type::Int4))],
        returning: None,
    };
    let update = operation(OperationKind::Update(update));
    let mut scan = Scan::new();
    group.bench_function("update of all rows, and their collection", |bencher| {
        bencher.iter(|| {
            scan.submit(black_box(&update));
            let effects = scan.finish();
            scan.collect();
            effects
        })
    });
    group.finish();
}

fn admission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reads of a place and some fares, to their end");
    for riding in [1, 64, 1024] {
        let reads: Vec<Arc<Operation>> = (0..riding)
            .map(|number| {
                let compare = |op, name: &str, value: Value, ty: Type| Expr::Compare {
                    op,
                    left: Box::new(column(name)),
                    right: Box::new(Expr::literal(value, ty)),
                };
                let fare = Value::Numeric(Numeric::new(number * 50, 2));
                let predicate = vec![
                    compare(
                        CompareOp::Eq,
                        "place",
                        Value::text(format!("place {}", number % 1000)),
                        Type::Text,
                    ),
                    compare(CompareOp::Gt, "fare", fare, Type::Numeric(None)),
                ];
                read(predicate, ReadOutput::Rows { projection: vec![column("id")], top: None })
            })
            .collect();
        let mut scan = Scan::new();
        group.throughput(Throughput::Elements(riding as u64));
        group.bench_function(BenchmarkId::new("riding", riding), |bencher| {
            bencher.iter(|| {
                reads.iter().for_each(|read| scan.submit(read));
                scan.finish()
            })
        });
    }
    group.finish();
}

criterion_group!(statements, many_rows, admission);
criterion_main!(statements);
