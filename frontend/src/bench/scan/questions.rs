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

use super::rows::{Conditions, Rows};
use crate::ticket::{COLUMNS, KEY, TABLE};

/// Most rows that the answer of a selective SELECT has.
pub const MOST_ROWS: usize = 100;

/// The table.
pub const TABLE_ID: TableId = TableId(1);

/// What SELECTs ask for; the key comes first, so that answers can be told apart.
const SELECT_LIST: [usize; 8] = [0, 1, 2, 24, 25, 11, 12, 13];

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

/// Sets of columns that questions are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Every column outside the key that all systems compare alike.
    All,
    /// Strings.
    Strings,
    /// Numbers, dates and times.
    Numbers,
    /// Columns of at most a thousand values.
    FewValues,
    /// Columns of more than a thousand values.
    ManyValues,
}

impl Mix {
    /// Every set.
    pub const EACH: [Mix; 5] = [Mix::All, Mix::Strings, Mix::Numbers, Mix::FewValues, Mix::ManyValues];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Mix::All => "all columns",
            Mix::Strings => "strings",
            Mix::Numbers => "numbers and dates",
            Mix::FewValues => "at most 1,000 values",
            Mix::ManyValues => "over 1,000 values",
        }
    }

    fn has(self, column: usize, rows: &Rows) -> bool {
        let (name, ty, _) = &COLUMNS[column];
        if KEY.contains(name) || matches!(ty, Type::Float4 | Type::Float8 | Type::Bytea | Type::Uuid) {
            return false;
        }
        match self {
            Mix::All => true,
            Mix::Strings => ty.is_string(),
            Mix::Numbers => !ty.is_string() && *ty != Type::Bool,
            Mix::FewValues => rows.distinct(column) <= 1000,
            Mix::ManyValues => rows.distinct(column) > 1000,
        }
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

/// Selective SELECTs with 2 to 5 equalities over columns of the mix, three in five with a range over one more, every
/// constant from the rows; each finds from 1 to [`MOST_ROWS`] rows.
pub fn selects(rows: &Rows, mix: Mix, count: usize, seed: u64) -> Vec<Question> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let columns: Vec<usize> = (0..COLUMNS.len()).filter(|column| mix.has(*column, rows)).collect();
    let mut questions = Vec::with_capacity(count);
    while questions.len() < count {
        let row = random.random_range(0..rows.len());
        let wanted = random.random_range(2..=5);
        let mut conditions = Conditions::default();
        while conditions.equal.len() < wanted {
            let column = columns[random.random_range(0..columns.len())];
            if let Some(id) = rows.id(column, row)
                && conditions.equal.iter().all(|(other, _)| *other != column)
            {
                conditions.equal.push((column, id));
            }
        }
        if random.random_range(0..10) < 6 {
            let column = columns[random.random_range(0..columns.len())];
            let other = random.random_range(0..rows.len());
            if let (Some(a), Some(b)) = (rows.id(column, row), rows.id(column, other))
                && conditions.equal.iter().all(|(other, _)| *other != column)
            {
                conditions.between.push((column, a.min(b), a.max(b)));
            }
        }
        // Not every draw is selective: nearly everybody has no pet.
        let Some(found) = rows.select(&conditions, MOST_ROWS) else { continue };
        let projection = SELECT_LIST.iter().map(|column| column_expr(*column)).collect();
        let read = Read {
            predicate: predicate(rows, &conditions),
            output: ReadOutput::Rows { projection, top: None },
        };
        questions.push(Question { operation: operation_of(OperationKind::Read(read)), rows: found });
    }
    questions
}

/// `count(*)` and `sum(fare)` over about a tenth of the rows: a range of departure dates.
pub fn aggregates(rows: &Rows, count: usize, seed: u64) -> Vec<Question> {
    const DATE_OUT: usize = 13;
    const FARE: usize = 20;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let days = rows.distinct(DATE_OUT) as u32;
    (0..count)
        .map(|index| {
            let first = random.random_range(0..days - days / 10);
            let conditions =
                Conditions { equal: Vec::new(), between: vec![(DATE_OUT, first, first + days / 10)] };
            let call = AggregateCall::new;
            let aggregates = match index % 2 {
                0 => vec![call(AggregateFunction::Count, None)],
                _ => vec![call(AggregateFunction::Sum, Some(column_expr(FARE)))],
            };
            let read = Read {
                predicate: predicate(rows, &conditions),
                output: ReadOutput::Groups { group_by: Vec::new(), aggregates },
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
        output: ReadOutput::Groups { group_by: Vec::new(), aggregates: vec![call] },
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
