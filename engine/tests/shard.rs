//! Shards against an oracle: random schemas, rows, operations, decisions, segment boundaries, shards, key ranges and
//! garbage collections; every answer and every content hash must be the one that a naive evaluator gets by applying
//! the operations one after the other, in the order of their `Ts`, to a list of rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    Shard, SqlError, TableId, TableSchema, Ts, Type, Value,
    array::{arrow_cell_to_value, values_to_array},
    expr::{CastKind, CompareOp, EvalContext, Expr},
    numeric::Numeric,
    operation::{
        Decision, Delete, Effect, Insert, InsertRows, OnConflict, Operation, OperationKind, OrderedOperation,
        Read, ReadOutput, RowBatch, Top, Update,
    },
    position::KeyRange,
    schema::{Column, Partitioning, ROW_ID},
    shard::{Options, Progress},
    text::format_value,
    value::compare_as,
};

/// A small deterministic generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn ty(&mut self) -> Type {
        self.pick(&[
            Type::Bool,
            Type::Int2,
            Type::Int4,
            Type::Int8,
            Type::Float8,
            Type::Numeric(Some((10, 2))),
            Type::Numeric(Some((30, 3))),
            Type::Numeric(None),
            Type::Text,
            Type::Text,
            Type::Varchar(Some(8)),
            Type::Char(4),
            Type::Date,
            Type::Timestamp,
            Type::Uuid,
            Type::Bytea,
        ])
        .clone()
    }

    fn value(&mut self, ty: &Type) -> Value {
        let n = self.below(7) as i64 - 2;
        match ty {
            Type::Bool => Value::Bool(n > 0),
            Type::Int2 => Value::Int2(n as i16),
            Type::Int4 => Value::Int4((n * if self.one_in(10) { 100_000 } else { 1 }) as i32),
            Type::Int8 => Value::Int8(n * if self.one_in(10) { i64::MAX / 4 } else { 1 }),
            Type::Float8 => {
                Value::Float8(*self.pick(&[0.0, -0.0, 1.5, -1.5, f64::NAN, f64::INFINITY, 1e300, 0.1]))
            }
            Type::Numeric(Some((30, _))) => Value::Numeric(Numeric::new(i128::from(n) * 10i128.pow(25), 3)),
            Type::Numeric(Some((_, scale))) => Value::Numeric(Numeric::new(n * 50, u32::from(*scale))),
            Type::Numeric(None) => Value::Numeric(Numeric::new(n * 100, self.below(4) as u32)),
            Type::Char(_) => Value::text(*self.pick(&["a   ", "b   ", "    ", "ab  ", "abcd", "é   "])),
            Type::Date => Value::Date(n as i32 * 365),
            Type::Timestamp => Value::Timestamp(n * 60_000_000),
            Type::Uuid => Value::Uuid([n as u8; 16]),
            Type::Bytea => Value::Bytea(vec![n as u8; self.below(3)].into()),
            _ => Value::text(*self.pick(&["", "a", "ab", "abc", "b", "ba", "é", "a\u{1}", "a "])),
        }
    }

    fn nullable(&mut self, ty: &Type) -> Value {
        if self.one_in(5) { Value::Null } else { self.value(ty) }
    }
}

type Row = Vec<Value>;

fn context() -> EvalContext {
    EvalContext::default()
}

/// The oracle's own evaluator of the expressions that the test generates; an error is its SQLSTATE.
fn evaluate(expr: &Expr, row: &[Value]) -> Result<Value, String> {
    let truth = |value: Option<bool>| value.map_or(Value::Null, Value::Bool);
    let as_truth = |value: Value| match value {
        Value::Bool(value) => Some(value),
        _ => None,
    };
    Ok(match expr {
        Expr::Literal { value, .. } => value.clone(),
        Expr::Column { index, .. } => row[*index].clone(),
        Expr::Compare { op, left, right } => {
            let (a, b) = (evaluate(left, row)?, evaluate(right, row)?);
            if a.is_null() || b.is_null() {
                Value::Null
            } else {
                Value::Bool(op.holds(compare_as(&a, &b, &left.ty())))
            }
        }
        Expr::Or(operands) => {
            let mut result = Some(false);
            for operand in operands {
                match as_truth(evaluate(operand, row)?) {
                    Some(true) => return Ok(Value::Bool(true)),
                    Some(false) => {}
                    None => result = None,
                }
            }
            truth(result)
        }
        Expr::Not(operand) => truth(as_truth(evaluate(operand, row)?).map(|value| !value)),
        Expr::IsNull { expr, negated } => Value::Bool(evaluate(expr, row)?.is_null() != *negated),
        Expr::InList { expr, list, .. } => {
            let value = evaluate(expr, row)?;
            let mut result = if value.is_null() { None } else { Some(false) };
            for member in list {
                let member = evaluate(member, row)?;
                if member.is_null() {
                    result = None;
                } else if !value.is_null() && compare_as(&value, &member, &expr.ty()).is_eq() {
                    return Ok(Value::Bool(true));
                }
            }
            truth(result)
        }
        Expr::Like { expr, pattern, .. } => match (evaluate(expr, row)?, evaluate(pattern, row)?) {
            (Value::Text(text), Value::Text(pattern)) => {
                Value::Bool(text.starts_with(pattern.trim_end_matches('%')))
            }
            _ => Value::Null,
        },
        Expr::Cast { expr, to: Type::Int2, .. } => match evaluate(expr, row)? {
            Value::Int4(value) => Value::Int2(i16::try_from(value).map_err(|_| "22003".to_owned())?),
            other => other,
        },
        other => panic!("the oracle does not know {other:?}"),
    })
}

fn qualifies(predicate: &[Expr], row: &[Value]) -> Result<bool, String> {
    for conjunct in predicate {
        if evaluate(conjunct, row)? != Value::Bool(true) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn show(values: &[Value], types: &[Type]) -> String {
    let cells: Vec<String> = values
        .iter()
        .zip(types)
        .map(|(value, ty)| if value.is_null() { "∅".into() } else { format_value(value, ty, &context()) })
        .collect();
    cells.join("|")
}

fn types_of(exprs: &[Expr]) -> Vec<Type> {
    exprs.iter().map(Expr::ty).collect()
}

/// What an operation answers for one range: a count and rows, or SQLSTATEs of which one is reported.
#[derive(Clone, Debug, Default)]
struct Answer {
    count: u64,
    rows: Vec<String>,
    errors: BTreeSet<String>,
}

/// What an operation would do: the answer for each range and the table afterwards.
struct Prediction {
    answers: Vec<Answer>,
    after: Vec<Row>,
}

struct World {
    schema: Arc<TableSchema>,
    ranges: Vec<KeyRange>,
}

impl World {
    fn range_of(&self, row: &[Value]) -> usize {
        let key: Vec<Value> =
            self.schema.partitioning.columns().iter().map(|column| row[*column].clone()).collect();
        let position = self.schema.partitioning.position(&key);
        self.ranges.iter().position(|range| range.contains(position)).expect("the ranges cover the ring")
    }

    fn same_key(&self, a: &[Value], b: &[Value]) -> bool {
        self.schema
            .primary_key
            .iter()
            .all(|column| compare_as(&a[*column], &b[*column], &self.schema.columns[*column].ty).is_eq())
    }

    fn check_not_null(&self, row: &[Value]) -> Result<(), String> {
        let broken =
            self.schema.columns.iter().zip(row).any(|(column, value)| column.not_null && value.is_null());
        if broken { Err("23502".into()) } else { Ok(()) }
    }

    fn returned(&self, returning: &Option<Vec<Expr>>, row: &[Value]) -> Result<Option<String>, String> {
        let Some(exprs) = returning else { return Ok(None) };
        let values: Result<Vec<Value>, String> = exprs.iter().map(|expr| evaluate(expr, row)).collect();
        Ok(Some(show(&values?, &types_of(exprs))))
    }

    /// Applies an operation to the rows it sees, range by range.
    fn predict(&self, kind: &OperationKind, rows: &[Row], wanted: &[bool]) -> Prediction {
        let mut answers = vec![Answer::default(); self.ranges.len()];
        let mut after = Vec::new();
        for row in rows {
            let range = self.range_of(row);
            let answer = &mut answers[range];
            let result =
                if wanted[range] { self.predict_row(kind, row, answer) } else { Ok(Some(row.clone())) };
            match result {
                Ok(kept) => after.extend(kept),
                Err(code) => {
                    answer.errors.insert(code);
                    after.push(row.clone());
                }
            }
        }
        if let OperationKind::Insert(insert) = kind {
            self.predict_insert(insert, &mut after, &mut answers);
        }
        Prediction { answers, after }
    }

    fn predict_row(
        &self,
        kind: &OperationKind,
        row: &Row,
        answer: &mut Answer,
    ) -> Result<Option<Row>, String> {
        match kind {
            OperationKind::Read(read) => {
                if qualifies(&read.predicate, row)? {
                    answer.count += 1;
                    if let ReadOutput::Rows { projection, .. } = &read.output {
                        answer.rows.extend(self.returned(&Some(projection.clone()), row)?);
                    }
                }
                Ok(Some(row.clone()))
            }
            OperationKind::Delete(delete) => {
                if !qualifies(&delete.predicate, row)? {
                    return Ok(Some(row.clone()));
                }
                answer.rows.extend(self.returned(&delete.returning, row)?);
                answer.count += 1;
                Ok(None)
            }
            OperationKind::Truncate => Ok(None),
            OperationKind::Update(update) => {
                if !qualifies(&update.predicate, row)? {
                    return Ok(Some(row.clone()));
                }
                let mut new = row.clone();
                for (target, expr) in &update.assignments {
                    new[*target] = evaluate(expr, row)?;
                }
                self.check_not_null(&new)?;
                answer.rows.extend(self.returned(&update.returning, &new)?);
                answer.count += 1;
                Ok(Some(new))
            }
            _ => Ok(Some(row.clone())),
        }
    }

    fn predict_insert(&self, insert: &Insert, after: &mut Vec<Row>, answers: &mut [Answer]) {
        let InsertRows::Inline(batch) = &insert.rows else { return };
        let mut touched: Vec<Row> = Vec::new();
        for index in 0..batch.rows.num_rows() {
            let new = row_of(&self.schema, &batch.rows, index);
            let range = self.range_of(&new);
            let ordinal = batch.ordinals[index];
            let answer = &mut answers[range];
            let existing = match self.schema.primary_key.is_empty() {
                true => None,
                false => after.iter().position(|row| self.same_key(row, &new)),
            };
            let mut outcome = || -> Result<(), String> {
                let stored = match (existing, &insert.on_conflict) {
                    (None, _) => {
                        after.push(new.clone());
                        new.clone()
                    }
                    (Some(_), OnConflict::Fail) => return Err("23505".into()),
                    (Some(_), OnConflict::Nothing) => return Ok(()),
                    (Some(at), OnConflict::Update { assignments, predicate }) => {
                        if touched.iter().any(|row| self.same_key(row, &new)) {
                            return Err("21000".into());
                        }
                        let mut input = after[at].clone();
                        input.extend(new.iter().cloned());
                        if !qualifies(predicate, &input)? {
                            return Ok(());
                        }
                        let mut updated = after[at].clone();
                        for (target, expr) in assignments {
                            updated[*target] = evaluate(expr, &input)?;
                        }
                        self.check_not_null(&updated)?;
                        after[at] = updated.clone();
                        updated
                    }
                };
                touched.push(stored.clone());
                answer.count += 1;
                if let Some(text) = self.returned(&insert.returning, &stored)? {
                    answer.rows.push(format!("{ordinal}|{text}"));
                }
                Ok(())
            };
            if let Err(code) = outcome() {
                answer.errors.insert(code);
            }
        }
    }
}

fn row_of(schema: &TableSchema, batch: &RecordBatch, row: usize) -> Row {
    schema
        .columns
        .iter()
        .zip(batch.columns())
        .map(|(column, array)| arrow_cell_to_value(array.as_ref(), row, &column.ty))
        .collect()
}

fn batch_of(schema: &TableSchema, rows: &[Row]) -> RecordBatch {
    let arrays = schema
        .columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let values: Vec<Value> = rows.iter().map(|row| row[index].clone()).collect();
            values_to_array(&values, &column.ty).expect("generated values fit their type")
        })
        .collect();
    RecordBatch::try_new(schema.arrow(), arrays).expect("columns of one length")
}

fn column(name: &str, ty: Type, not_null: bool) -> Column {
    Column { name: name.into(), ty, not_null, default: None }
}

fn random_schema(random: &mut Random, id: u64) -> TableSchema {
    let mut columns = vec![column("k", random.ty(), true), column("l", random.ty(), true)];
    for index in 0..2 + random.below(4) {
        let ty = random.ty();
        columns.push(column(&format!("c{index}"), ty, random.one_in(4)));
    }
    columns.push(column("i", Type::Int4, false));
    columns.push(column("s", Type::Int2, false));
    let mut primary_key = match random.below(4) {
        0 => vec![],
        1 => vec![1, 0],
        _ => vec![0],
    };
    if primary_key.is_empty() {
        columns.push(column(ROW_ID, Type::Int8, true));
    }
    let partitioned = if primary_key.is_empty() {
        vec![if random.one_in(2) { columns.len() - 1 } else { 2 }]
    } else if random.one_in(3) {
        vec![primary_key[0]]
    } else {
        primary_key.clone()
    };
    let partitioning = if random.one_in(3) && partitioned.len() == 1 {
        let ty = &columns[partitioned[0]].ty;
        let mut splits: Vec<Value> = (0..random.below(3)).map(|_| random.value(ty)).collect();
        splits.sort_by(|a, b| compare_as(a, b, ty));
        splits.dedup_by(|a, b| compare_as(a, b, ty).is_eq());
        Partitioning::Range { column: partitioned[0], splits }
    } else {
        Partitioning::Hash { columns: partitioned }
    };
    primary_key.dedup();
    TableSchema {
        id: TableId(id),
        version: Ts(id),
        name: "t".into(),
        columns,
        primary_key,
        primary_key_name: "t_pkey".into(),
        partitioning,
    }
}

struct Generator<'a> {
    random: &'a mut Random,
    schema: &'a TableSchema,
    next_row_id: i64,
}

impl Generator<'_> {
    fn row(&mut self) -> Row {
        let mut row: Row = Vec::new();
        for column in &self.schema.columns {
            row.push(if column.name == ROW_ID {
                self.next_row_id += 1;
                Value::Int8(self.next_row_id)
            } else if column.not_null {
                self.random.value(&column.ty)
            } else {
                self.random.nullable(&column.ty)
            });
        }
        row
    }

    /// Rows with different keys.
    fn distinct_rows(&mut self, world: &World, count: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for _ in 0..count {
            let row = self.row();
            if self.schema.primary_key.is_empty() || !rows.iter().any(|other| world.same_key(other, &row)) {
                rows.push(row);
            }
        }
        rows
    }

    fn column_expr(&self, index: usize) -> Expr {
        Expr::column(index, self.schema.columns[index].ty.clone())
    }

    fn visible(&mut self) -> usize {
        self.random.below(self.schema.visible_columns().len())
    }

    fn conjunct(&mut self) -> Expr {
        let index = self.visible();
        let ty = self.schema.columns[index].ty.clone();
        let column = self.column_expr(index);
        let literal = |generator: &mut Self| Expr::literal(generator.random.nullable(&ty), ty.clone());
        match self.random.below(12) {
            0 => Expr::IsNull { expr: Box::new(column), negated: self.random.one_in(2) },
            1 => {
                let list = (0..1 + self.random.below(4)).map(|_| literal(self)).collect();
                Expr::InList { expr: Box::new(column), list, negated: false }
            }
            2 => Expr::Or(vec![self.conjunct(), self.conjunct()]),
            3 => Expr::Not(Box::new(self.conjunct())),
            4 if ty == Type::Text => Expr::Like {
                expr: Box::new(column),
                pattern: Box::new(Expr::literal(
                    Value::text(*self.random.pick(&["a%", "%", "ab%"])),
                    Type::Text,
                )),
                escape: Some('\\'),
                case_insensitive: false,
                negated: false,
            },
            5 if ty == Type::Bool => column,
            6 => {
                // Two columns of one type.
                let others: Vec<usize> =
                    (0..self.schema.columns.len()).filter(|i| self.schema.columns[*i].ty == ty).collect();
                let other = *self.random.pick(&others);
                Expr::Compare {
                    op: CompareOp::Le,
                    left: Box::new(column),
                    right: Box::new(self.column_expr(other)),
                }
            }
            7 if self.random.one_in(2) => {
                // May fail.
                let narrowed = self.narrowed(0);
                Expr::Compare {
                    op: CompareOp::Gt,
                    left: Box::new(narrowed),
                    right: Box::new(Expr::literal(Value::Int2(0), Type::Int2)),
                }
            }
            _ => {
                let op = *self.random.pick(&[
                    CompareOp::Eq,
                    CompareOp::Eq,
                    CompareOp::Ne,
                    CompareOp::Lt,
                    CompareOp::Le,
                    CompareOp::Gt,
                    CompareOp::Ge,
                ]);
                let (left, right) = (Box::new(column), Box::new(literal(self)));
                match self.random.one_in(4) {
                    true => Expr::Compare { op, left: right, right: left },
                    false => Expr::Compare { op, left, right },
                }
            }
        }
    }

    /// `i::smallint`, which fails for large numbers.
    fn narrowed(&self, offset: usize) -> Expr {
        let index = self.schema.column("i").expect("every schema has it");
        Expr::Cast {
            expr: Box::new(Expr::column(offset + index, Type::Int4)),
            to: Type::Int2,
            kind: CastKind::Explicit,
        }
    }

    fn key_equality(&mut self) -> Vec<Expr> {
        let key = self.schema.primary_key.clone();
        key.into_iter()
            .map(|index| {
                let ty = self.schema.columns[index].ty.clone();
                let column = Box::new(self.column_expr(index));
                if self.random.one_in(3) {
                    let list = (0..3).map(|_| Expr::literal(self.random.nullable(&ty), ty.clone())).collect();
                    Expr::InList { expr: column, list, negated: false }
                } else {
                    let right = Box::new(Expr::literal(self.random.value(&ty), ty));
                    Expr::Compare { op: CompareOp::Eq, left: column, right }
                }
            })
            .collect()
    }

    fn predicate(&mut self) -> Vec<Expr> {
        let mut predicate: Vec<Expr> = (0..self.random.below(4)).map(|_| self.conjunct()).collect();
        if self.random.one_in(3) {
            let at = self.random.below(predicate.len() + 1);
            let key = self.key_equality();
            predicate.splice(at..at, key);
        }
        predicate
    }

    fn exprs(&mut self) -> Vec<Expr> {
        let mut exprs: Vec<Expr> = (0..1 + self.random.below(3))
            .map(|_| {
                let index = self.visible();
                self.column_expr(index)
            })
            .collect();
        if self.random.one_in(6) {
            exprs.push(self.narrowed(0));
        }
        exprs
    }

    fn returning(&mut self) -> Option<Vec<Expr>> {
        self.random.one_in(2).then(|| self.exprs())
    }

    /// Assignments to columns that may be assigned. With `excluded`, values may come from the row to be inserted.
    fn assignments(&mut self, excluded: bool) -> Vec<(usize, Expr)> {
        let width = self.schema.columns.len();
        let free: Vec<usize> = (0..self.schema.visible_columns().len())
            .filter(|index| {
                !self.schema.primary_key.contains(index)
                    && !self.schema.partitioning.columns().contains(index)
            })
            .collect();
        let mut targets: Vec<usize> =
            (0..1 + self.random.below(2)).map(|_| *self.random.pick(&free)).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
            .into_iter()
            .map(|target| {
                let ty = self.schema.columns[target].ty.clone();
                if ty == Type::Int2 && self.random.one_in(3) {
                    let offset = if excluded && self.random.one_in(2) { width } else { 0 };
                    return (target, self.narrowed(offset));
                }
                let same: Vec<usize> = (0..width).filter(|i| self.schema.columns[*i].ty == ty).collect();
                let expr = match self.random.below(4) {
                    0 => {
                        let source = *self.random.pick(&same);
                        self.column_expr(source)
                    }
                    1 if excluded => Expr::column(width + *self.random.pick(&same), ty),
                    _ if self.random.one_in(8) => Expr::literal(Value::Null, ty),
                    _ => Expr::literal(self.random.value(&ty), ty),
                };
                (target, expr)
            })
            .collect()
    }

    fn operation(&mut self, world: &World) -> OperationKind {
        match self.random.below(16) {
            0..=4 => OperationKind::Insert(self.insert(world)),
            5..=7 => OperationKind::Update(Update {
                predicate: self.predicate(),
                assignments: self.assignments(false),
                returning: self.returning(),
            }),
            8..=9 => {
                OperationKind::Delete(Delete { predicate: self.predicate(), returning: self.returning() })
            }
            10 if self.random.one_in(4) => OperationKind::Truncate,
            11 => OperationKind::Read(Read { predicate: self.predicate(), output: ReadOutput::ContentHash }),
            _ => {
                let projection = self.exprs();
                let top = self.random.one_in(6).then(|| Top { keys: vec![], limit: self.random.next() % 4 });
                OperationKind::Read(Read {
                    predicate: self.predicate(),
                    output: ReadOutput::Rows { projection, top },
                })
            }
        }
    }

    fn insert(&mut self, world: &World) -> Insert {
        let count = if self.random.one_in(4) { 12 } else { 1 + self.random.below(3) };
        let rows: Vec<Row> = (0..count).map(|_| self.row()).collect();
        let positions = rows
            .iter()
            .map(|row| {
                let columns = world.schema.partitioning.columns();
                let key: Vec<Value> = columns.iter().map(|column| row[*column].clone()).collect();
                world.schema.partitioning.position(&key)
            })
            .collect();
        let rows = batch_of(self.schema, &rows);
        let ordinals = (0..rows.num_rows() as u64).collect();
        let on_conflict = match self.random.below(3) {
            0 => OnConflict::Fail,
            1 => OnConflict::Nothing,
            _ => OnConflict::Update { assignments: self.assignments(true), predicate: self.predicate() },
        };
        Insert {
            rows: InsertRows::Inline(RowBatch { rows, positions, ordinals }),
            on_conflict,
            returning: self.returning(),
        }
    }
}

/// One ordered operation with what it must answer.
struct Step {
    ordered: OrderedOperation,
    answers: Vec<Answer>,
    wanted: Vec<bool>,
    /// For undecided writes: how they end.
    decision: Decision,
    hash: Option<Vec<u128>>,
}

/// What came out of one shard for one operation.
#[derive(Default)]
struct Collected {
    rows: BTreeMap<KeyRange, Vec<String>>,
    hashes: BTreeMap<KeyRange, u128>,
    outcomes: Option<Vec<(KeyRange, Result<u64, SqlError>)>>,
}

fn full_hash(world: &World, rows: &[Row]) -> Vec<u128> {
    let mut shard = Shard::new(0, 1, world.ranges.clone(), Options::default());
    shard.restore_table(world.schema.clone());
    shard.restore(world.schema.id, &batch_of(&world.schema, rows), Ts::ZERO).expect("rows in the layout");
    let operation = Operation {
        table: world.schema.id,
        context: context(),
        kind: OperationKind::Read(Read { predicate: vec![], output: ReadOutput::ContentHash }),
    };
    shard.submit(OrderedOperation {
        ts: Ts(1),
        read_ts: Ts(1),
        operation: Arc::new(operation),
        ranges: world.ranges.clone(),
        undecided: false,
    });
    let mut effects = Vec::new();
    while shard.step(&mut effects) == Progress::Busy {}
    let mut hashes = vec![0; world.ranges.len()];
    for effect in effects {
        if let Effect::ContentHash { range, hash, .. } = effect {
            hashes[world.ranges.iter().position(|r| *r == range).expect("a range of the world")] = hash;
        }
    }
    hashes
}

fn may_fail_across_shards(kind: &OperationKind) -> bool {
    !matches!(kind, OperationKind::Truncate)
}

fn run(seed: u64) {
    let random = &mut Random(seed);
    let schema = random_schema(random, 1);
    let shard_count = 1 + random.below(3) as u32;
    let mut cuts: Vec<u64> = (0..random.below(3)).map(|_| random.next()).collect();
    cuts.sort_unstable();
    let mut ranges = Vec::new();
    let mut first = 0;
    for cut in cuts {
        ranges.push(KeyRange::new(first, cut));
        first = cut + 1;
    }
    ranges.push(KeyRange::new(first, u64::MAX));
    let world = World { schema: Arc::new(schema), ranges };

    // The history, and what the oracle says about it.
    let mut state = Vec::new();
    let initial = {
        let mut generator = Generator { random, schema: &world.schema, next_row_id: 0 };
        let count = generator.random.below(30);
        generator.distinct_rows(&world, count)
    };
    state.extend(initial.iter().cloned());
    let mut history: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
    let mut steps: Vec<Step> = Vec::new();
    let mut next_row_id = 1000;
    let mut ts = 10;
    for _ in 0..10 + random.below(50) {
        ts += 1 + random.next() % 2;
        let mut generator = Generator { random, schema: &world.schema, next_row_id };
        let kind = generator.operation(&world);
        next_row_id = generator.next_row_id;
        history.insert(ts, state.clone());
        let is_write = kind.is_write();
        let wanted: Vec<bool> = world.ranges.iter().map(|_| is_write || !random.one_in(3)).collect();
        let mut read_ts = ts;
        if !is_write && random.one_in(3) {
            read_ts = *random.pick(&history.keys().copied().collect::<Vec<_>>());
        }
        let prediction = world.predict(&kind, &history[&read_ts], &wanted);
        let fails = prediction.answers.iter().any(|answer| !answer.errors.is_empty());
        let undecided = is_write && ((shard_count > 1 && may_fail_across_shards(&kind)) || random.one_in(3));
        let decision =
            if fails || (undecided && random.one_in(4)) { Decision::Abort } else { Decision::Commit };
        let hash = match &kind {
            OperationKind::Read(Read { predicate, output: ReadOutput::ContentHash }) if !fails => {
                let selected: Vec<Row> = history[&read_ts]
                    .iter()
                    .filter(|row| qualifies(predicate, row) == Ok(true))
                    .cloned()
                    .collect();
                Some(full_hash(&world, &selected))
            }
            _ => None,
        };
        if is_write && decision == Decision::Commit {
            state = prediction.after;
        }
        let ranges = world
            .ranges
            .iter()
            .zip(&wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|(range, _)| *range)
            .collect();
        let operation = Arc::new(Operation { table: world.schema.id, context: context(), kind });
        steps.push(Step {
            ordered: OrderedOperation { ts: Ts(ts), read_ts: Ts(read_ts), operation, ranges, undecided },
            answers: prediction.answers,
            wanted,
            decision,
            hash,
        });
    }
    let last_ts = ts + 1;

    // The shards, each at its own pace.
    let options = Options { segment_rows: 2 + random.below(40) };
    let mut shards: Vec<Shard> =
        (0..shard_count).map(|index| Shard::new(index, shard_count, world.ranges.clone(), options)).collect();
    let initial = batch_of(&world.schema, &initial);
    for shard in &mut shards {
        shard.restore_table(world.schema.clone());
        shard.restore(world.schema.id, &initial, Ts(random.next() % 5)).expect("rows in the layout");
    }
    let mut submitted = vec![0; shards.len()];
    let mut told: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); shards.len()];
    let mut collected: Vec<BTreeMap<u64, Collected>> = shards.iter().map(|_| BTreeMap::new()).collect();
    loop {
        let index = random.below(shards.len());
        let shard = &mut shards[index];
        let mut effects = Vec::new();
        match random.below(8) {
            0..=2 => {
                for _ in 0..1 + random.below(10) {
                    if submitted[index] < steps.len() {
                        shard.submit(steps[submitted[index]].ordered.clone());
                        submitted[index] += 1;
                    }
                }
            }
            3..=5 => {
                for _ in 0..1 + random.below(3) {
                    shard.step(&mut effects);
                }
            }
            6 => {
                for step in &steps {
                    let ts = step.ordered.ts;
                    if !step.ordered.undecided || told[index].contains(&ts.0) {
                        continue;
                    }
                    // The decision is known when all shards have voted; elsewhere it may be known at any time.
                    let all_voted = collected
                        .iter()
                        .all(|c| c.get(&ts.0).is_some_and(|collected| collected.outcomes.is_some()));
                    if (all_voted && random.one_in(2)) || random.one_in(60) {
                        told[index].insert(ts.0);
                        shard.decide(ts, step.decision, &mut effects);
                    }
                }
            }
            _ => {
                let pinned = steps[submitted[index]..].iter().map(|step| step.ordered.read_ts.0).min();
                let horizon = pinned.unwrap_or(last_ts).min(random.next() % (last_ts + 1));
                for _ in 0..random.below(4) {
                    shard.collect_garbage(Ts(horizon));
                }
            }
        }
        collect(&steps, &mut collected[index], effects);
        let all_told = steps
            .iter()
            .all(|step| !step.ordered.undecided || told.iter().all(|told| told.contains(&step.ordered.ts.0)));
        if all_told && submitted.iter().all(|n| *n == steps.len()) && shards.iter().all(Shard::is_idle) {
            break;
        }
    }
    if std::env::var("SEED").is_ok() {
        for (index, step) in steps.iter().enumerate() {
            let kind = format!("{:?}", step.ordered.operation.kind);
            eprintln!(
                "{index} {} reads {} undecided {} {:?} {:?}\n   {}",
                step.ordered.ts,
                step.ordered.read_ts,
                step.ordered.undecided,
                step.decision,
                step.answers,
                &kind.chars().take(if kind.starts_with("Insert") { 300 } else { 900 }).collect::<String>()
            );
            for shard in &collected {
                eprintln!("      {:?}", shard.get(&step.ordered.ts.0).map(|c| (&c.outcomes, &c.rows)));
            }
        }
    }
    for (index, step) in steps.iter().enumerate() {
        check(seed, index, step, &world, &collected);
    }

    // What is left.
    let expected = full_hash(&world, &state);
    let mut found = vec![0u128; world.ranges.len()];
    for shard in &mut shards {
        shard.collect_garbage(Ts(last_ts));
        let operation = Operation {
            table: world.schema.id,
            context: context(),
            kind: OperationKind::Read(Read { predicate: vec![], output: ReadOutput::ContentHash }),
        };
        shard.submit(OrderedOperation {
            ts: Ts(last_ts),
            read_ts: Ts(last_ts),
            operation: Arc::new(operation),
            ranges: world.ranges.clone(),
            undecided: false,
        });
        let mut effects = Vec::new();
        while shard.step(&mut effects) == Progress::Busy {}
        for effect in effects {
            if let Effect::ContentHash { range, hash, .. } = effect {
                let at = world.ranges.iter().position(|r| *r == range).expect("a range of the world");
                found[at] = found[at].wrapping_add(hash);
            }
        }
    }
    assert_eq!(found, expected, "seed {seed}: final content");
    let rows: usize = shards.iter().map(|shard| shard.rows(world.schema.id)).sum();
    assert_eq!(rows, state.len(), "seed {seed}: final rows");
}

fn collect(steps: &[Step], collected: &mut BTreeMap<u64, Collected>, effects: Vec<Effect>) {
    for effect in effects {
        match effect {
            Effect::Rows { ts, range, batch } => {
                let step =
                    steps.iter().find(|step| step.ordered.ts == ts).expect("an operation of the history");
                let mut types = match &step.ordered.operation.kind {
                    OperationKind::Read(Read { output: ReadOutput::Rows { projection, .. }, .. }) => {
                        types_of(projection)
                    }
                    OperationKind::Insert(insert) => {
                        let mut types = types_of(insert.returning.as_deref().unwrap_or(&[]));
                        types.insert(0, Type::Int8);
                        types
                    }
                    OperationKind::Update(update) => types_of(update.returning.as_deref().unwrap_or(&[])),
                    OperationKind::Delete(delete) => types_of(delete.returning.as_deref().unwrap_or(&[])),
                    other => panic!("no rows come from {other:?}"),
                };
                let rows = collected.entry(ts.0).or_default().rows.entry(range).or_default();
                for row in 0..batch.num_rows() {
                    let values: Vec<Value> = batch
                        .columns()
                        .iter()
                        .zip(&mut types)
                        .map(|(array, ty)| arrow_cell_to_value(array.as_ref(), row, ty))
                        .collect();
                    rows.push(show(&values, &types));
                }
            }
            Effect::ContentHash { ts, range, hash } => {
                collected.entry(ts.0).or_default().hashes.insert(range, hash);
            }
            Effect::Groups { .. } => {}
            Effect::Executed { ts, outcomes } => {
                let entry = collected.entry(ts.0).or_default();
                assert!(entry.outcomes.is_none(), "an operation is executed once");
                entry.outcomes = Some(outcomes);
            }
        }
    }
}

fn check(seed: u64, index: usize, step: &Step, world: &World, shards: &[BTreeMap<u64, Collected>]) {
    let ts = step.ordered.ts;
    let kind = &step.ordered.operation.kind;
    let what = || format!("seed {seed}, operation {index} at {ts}: {kind:?} over {:?}", world.schema);
    let fails_somewhere = step.answers.iter().any(|answer| !answer.errors.is_empty());
    let aborted = step.ordered.undecided && step.decision == Decision::Abort;
    for (place, range) in world.ranges.iter().enumerate().filter(|(place, _)| step.wanted[*place]) {
        let mut count = 0;
        let mut rows = Vec::new();
        let mut errors = BTreeSet::new();
        let mut hash = 0u128;
        for shard in shards {
            let collected = shard.get(&ts.0).unwrap_or_else(|| panic!("no answer: {}", what()));
            let outcomes = collected.outcomes.as_ref().unwrap_or_else(|| panic!("not executed: {}", what()));
            let (_, outcome) = outcomes.iter().find(|(r, _)| r == range).expect("an outcome for each range");
            match outcome {
                Ok(n) => count += n,
                Err(error) => {
                    errors.insert(error.code.as_str().to_owned());
                }
            }
            rows.extend(collected.rows.get(range).into_iter().flatten().cloned());
            hash = hash.wrapping_add(collected.hashes.get(range).copied().unwrap_or(0));
        }
        let answer = &step.answers[place];
        let may_fail_with = match !step.ordered.undecided {
            // The shard fails as a whole.
            true => step.answers.iter().flat_map(|answer| answer.errors.clone()).collect(),
            false => answer.errors.clone(),
        };
        assert!(errors.is_subset(&may_fail_with), "errors {errors:?}: {}", what());
        if let OperationKind::Read(Read { output: ReadOutput::Rows { top: Some(top), .. }, .. }) = kind {
            // Any rows may be left out beyond the limit, and with them their errors.
            if may_fail_with.is_empty() {
                let total: usize = step.answers.iter().map(|answer| answer.rows.len()).sum();
                let mut rest = answer.rows.clone();
                for row in &rows {
                    let at = rest.iter().position(|other| other == row);
                    rest.swap_remove(at.unwrap_or_else(|| panic!("row {row}: {}", what())));
                }
                let enough = rest.is_empty() || total as u64 >= top.limit;
                assert!(enough, "rows are missing: {}", what());
            }
            continue;
        }
        // An early abort may come before the vote.
        if !aborted {
            assert_eq!(errors.is_empty(), may_fail_with.is_empty(), "errors {errors:?}: {}", what());
        }
        if aborted || fails_somewhere {
            continue;
        }
        if !matches!(kind, OperationKind::Truncate) {
            assert_eq!(count, answer.count, "count in {range}: {}", what());
        }
        let mut expected = answer.rows.clone();
        expected.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, expected, "rows in {range}: {}", what());
        if let Some(hashes) = &step.hash {
            assert_eq!(hash, hashes[place], "hash of {range}: {}", what());
        }
    }
}

#[test]
fn shards_answer_as_the_oracle_does() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400);
    let from: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds {
        run(seed);
    }
}
