//! What is asked of the engine: unpredictable selective SELECTs, aggregates, and updates of single rows.

use std::sync::Arc;

use carousel_engine::{
    TableId, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::{CompareOp, EvalContext, Expr},
    operation::{Operation, OperationKind, Read, ReadOutput, Update},
    schema::{Column, Partitioning},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    bench::{
        draw::{self, FARE, Mix, SELECT_LIST, Select},
        rows::{Conditions, Rows},
    },
    ticket::{COLUMNS, KEY, TABLE},
};

/// The table.
pub const TABLE_ID: TableId = TableId(1);

/// An operation with the rows that it finds.
#[derive(Clone, Debug)]
pub struct Question {
    /// The operation.
    pub operation: Arc<Operation>,
    /// The rows that qualify.
    pub rows: Vec<u32>,
}

/// The table's definition.
pub fn schema() -> TableSchema {
    TableSchema {
        id: TABLE_ID,
        version: Ts(1),
        name: TABLE.to_owned(),
        columns: COLUMNS
            .iter()
            .map(|(name, ty, not_null)| Column {
                name: (*name).to_owned(),
                ty: ty.clone(),
                not_null: *not_null,
                default: None,
            })
            .collect(),
        primary_key: (0..KEY.len()).collect(),
        primary_key_name: format!("{TABLE}_pkey"),
        partitioning: Partitioning::Hash { columns: vec![0] },
    }
}

fn literal(rows: &Rows, column: usize, id: u32) -> Box<Expr> {
    Box::new(Expr::literal(rows.value(column, id), COLUMNS[column].1.clone()))
}

fn compare(op: CompareOp, column: usize, right: Box<Expr>) -> Expr {
    Expr::Compare { op, left: Box::new(column_expr(column)), right }
}

fn column_expr(column: usize) -> Expr {
    Expr::column(column, COLUMNS[column].1.clone())
}

fn predicate(rows: &Rows, conditions: &Conditions) -> Vec<Expr> {
    let equal = conditions
        .equal
        .iter()
        .map(|(column, id)| compare(CompareOp::Eq, *column, literal(rows, *column, *id)));
    let between = conditions.between.iter().flat_map(|(column, low, high)| {
        [
            compare(CompareOp::Ge, *column, literal(rows, *column, *low)),
            compare(CompareOp::Le, *column, literal(rows, *column, *high)),
        ]
    });
    equal.chain(between).collect()
}

/// An operation on the table.
pub fn operation_of(kind: OperationKind) -> Arc<Operation> {
    Arc::new(Operation { table: TABLE_ID, context: EvalContext::default(), kind })
}

/// The selective SELECTs of [`draw::selects`] as operations.
pub fn selects(rows: &Rows, mix: Mix, count: usize, seed: u64, most: usize) -> Vec<Question> {
    draw::selects(rows, mix, count, seed, most)
        .into_iter()
        .map(|Select { conditions, rows: found }| {
            let projection = SELECT_LIST.iter().map(|column| column_expr(*column)).collect();
            let read = Read {
                predicate: predicate(rows, &conditions),
                output: ReadOutput::Rows { projection, top: None },
            };
            Question { operation: operation_of(OperationKind::Read(read)), rows: found }
        })
        .collect()
}

/// `count(*)` and `sum(fare)` over about a tenth of the rows, see [`draw::tenths`].
pub fn aggregates(rows: &Rows, count: usize, seed: u64) -> Vec<Question> {
    draw::tenths(rows, count, seed)
        .into_iter()
        .map(|conditions| {
            let aggregates = vec![
                AggregateCall::new(AggregateFunction::Count, None),
                AggregateCall::new(AggregateFunction::Sum, Some(column_expr(FARE))),
            ];
            let read = Read {
                predicate: predicate(rows, &conditions),
                output: ReadOutput::Groups { group_by: Vec::new(), aggregates, top: None },
            };
            Question { operation: operation_of(OperationKind::Read(read)), rows: Vec::new() }
        })
        .collect()
}

/// An aggregate over one column, and no predicate.
pub fn aggregate_of(function: AggregateFunction, column: Option<&str>) -> Arc<Operation> {
    let column = column.and_then(|column| COLUMNS.iter().position(|(name, _, _)| *name == column));
    let call = AggregateCall::new(function, column.map(column_expr));
    operation_of(OperationKind::Read(Read {
        predicate: Vec::new(),
        output: ReadOutput::Groups { group_by: Vec::new(), aggregates: vec![call], top: None },
    }))
}

/// Updates of single rows, found by a ticket's number and its coupon, which are unique though not the key: the seat of a ticket becomes another row's.
pub fn updates(rows: &Rows, count: usize, seed: u64) -> Vec<Question> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| update(rows, random.random_range(0..rows.len()), random.random_range(0..rows.len())))
        .collect()
}

/// Gives a row the seat of another.
pub fn update(rows: &Rows, row: usize, other: usize) -> Question {
    const SEGMENT: usize = 2;
    const TICKET_NUMBER: usize = 3;
    const SEAT: usize = 32;
    let number = Box::new(Expr::literal(rows.cell(TICKET_NUMBER, row), Type::Int8));
    let segment = Box::new(Expr::literal(rows.cell(SEGMENT, row), Type::Int2));
    let seat: Value = rows.cell(SEAT, other);
    let update = Update {
        predicate: vec![
            compare(CompareOp::Eq, TICKET_NUMBER, number),
            compare(CompareOp::Eq, SEGMENT, segment),
        ],
        assignments: vec![(SEAT, Expr::literal(seat, COLUMNS[SEAT].1.clone()))],
        returning: None,
    };
    Question { operation: operation_of(OperationKind::Update(update)), rows: vec![row as u32] }
}
