//! The naive evaluator: a list of rows, and one operation after the other.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    TableSchema, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    array::{arrow_cell_to_value, values_to_array},
    expr::{EvalContext, Expr, Function},
    numeric::Numeric,
    operation::{Insert, InsertRows, OnConflict, OperationKind, ReadOutput, SortKey},
    position::KeyRange,
    text::format_value,
    value::compare_as,
};

pub type Row = Vec<Value>;

pub fn context() -> EvalContext {
    EvalContext::default()
}

/// The oracle's own evaluator of the expressions that the test generates; an error is its SQLSTATE.
pub fn evaluate(expr: &Expr, row: &[Value]) -> Result<Value, String> {
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
        Expr::And(operands) => {
            let mut result = Some(true);
            for operand in operands {
                match as_truth(evaluate(operand, row)?) {
                    Some(false) => return Ok(Value::Bool(false)),
                    Some(true) => {}
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
        Expr::Call { function, args, .. } => match (evaluate(&args[0], row)?, evaluate(&args[1], row)?) {
            (Value::Numeric(a), Value::Numeric(b)) => {
                let result = match function {
                    Function::Add => a.add(&b),
                    Function::Subtract => a.subtract(&b),
                    Function::Multiply => a.multiply(&b),
                    other => panic!("the oracle does not know {other:?}"),
                };
                Value::Numeric(result.expect("a number in range"))
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

pub fn qualifies(predicate: &[Expr], row: &[Value]) -> Result<bool, String> {
    for conjunct in predicate {
        if evaluate(conjunct, row)? != Value::Bool(true) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub fn show(values: &[Value], types: &[Type]) -> String {
    let cells: Vec<String> = values
        .iter()
        .zip(types)
        .map(|(value, ty)| if value.is_null() { "∅".into() } else { format_value(value, ty, &context()) })
        .collect();
    cells.join("|")
}

pub fn types_of(exprs: &[Expr]) -> Vec<Type> {
    exprs.iter().map(Expr::ty).collect()
}

/// What an operation answers for one range: a count and rows, or SQLSTATEs of which one is reported.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub count: u64,
    pub rows: Vec<String>,
    /// The rows of a read, as values.
    pub values: Vec<Row>,
    /// For grouping reads: the rows to group.
    pub qualifying: Vec<Row>,
    pub errors: BTreeSet<String>,
}

/// What an operation would do: the answer for each range and the table afterwards.
pub struct Prediction {
    pub answers: Vec<Answer>,
    pub after: Vec<Row>,
}

pub struct World {
    pub schema: Arc<TableSchema>,
    pub ranges: Vec<KeyRange>,
}

impl World {
    pub fn range_of(&self, row: &[Value]) -> usize {
        let key: Vec<Value> =
            self.schema.partitioning.columns().iter().map(|column| row[*column].clone()).collect();
        let position = self.schema.partitioning.position(&key);
        self.ranges.iter().position(|range| range.contains(position)).expect("the ranges cover the ring")
    }

    pub fn same_key(&self, a: &[Value], b: &[Value]) -> bool {
        self.schema
            .primary_key
            .iter()
            .all(|column| compare_as(&a[*column], &b[*column], &self.schema.columns[*column].ty).is_eq())
    }

    pub fn check_not_null(&self, row: &[Value]) -> Result<(), String> {
        let broken =
            self.schema.columns.iter().zip(row).any(|(column, value)| column.not_null && value.is_null());
        if broken { Err("23502".into()) } else { Ok(()) }
    }

    pub fn returned(&self, returning: &Option<Vec<Expr>>, row: &[Value]) -> Result<Option<String>, String> {
        let Some(exprs) = returning else { return Ok(None) };
        let values: Result<Vec<Value>, String> = exprs.iter().map(|expr| evaluate(expr, row)).collect();
        Ok(Some(show(&values?, &types_of(exprs))))
    }

    /// Applies an operation to the rows it sees, range by range.
    pub fn predict(&self, kind: &OperationKind, rows: &[Row], wanted: &[bool]) -> Prediction {
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

    pub fn predict_row(
        &self,
        kind: &OperationKind,
        row: &Row,
        answer: &mut Answer,
    ) -> Result<Option<Row>, String> {
        match kind {
            OperationKind::Read(read) => {
                if qualifies(&read.predicate, row)? {
                    answer.count += 1;
                    match &read.output {
                        ReadOutput::Rows { projection, .. } => {
                            answer.rows.extend(self.returned(&Some(projection.clone()), row)?);
                            let values: Result<Row, String> =
                                projection.iter().map(|expr| evaluate(expr, row)).collect();
                            answer.values.push(values?);
                        }
                        ReadOutput::Groups { .. } => answer.qualifying.push(row.clone()),
                        ReadOutput::ContentHash => {}
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

    pub fn predict_insert(&self, insert: &Insert, after: &mut Vec<Row>, answers: &mut [Answer]) {
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

pub fn row_of(schema: &TableSchema, batch: &RecordBatch, row: usize) -> Row {
    schema
        .columns
        .iter()
        .zip(batch.columns())
        .map(|(column, array)| arrow_cell_to_value(array.as_ref(), row, &column.ty))
        .collect()
}

pub fn batch_of(schema: &TableSchema, rows: &[Row]) -> RecordBatch {
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

/// The groups of these rows, as text: keys and the aggregates; sums are over integers and numerics.
pub fn groups(output: &ReadOutput, rows: &[Row]) -> Vec<String> {
    let ReadOutput::Groups { group_by, aggregates, .. } = output else { return Vec::new() };
    let types = types_of(group_by);
    let mut groups: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    if group_by.is_empty() {
        groups.entry(String::new()).or_default();
    }
    for row in rows {
        let key: Vec<Value> = group_by.iter().map(|expr| evaluate(expr, row).expect("a column")).collect();
        groups.entry(show(&key, &types)).or_default().push(row);
    }
    let line = |(key, rows): (String, Vec<&Row>)| {
        let results = aggregates.iter().map(|call| format!("|{}", aggregate(call, &rows)));
        format!("{key}|{}", results.collect::<String>().trim_start_matches('|'))
    };
    groups.into_iter().map(line).collect()
}

fn aggregate(call: &AggregateCall, rows: &[&Row]) -> String {
    let passes = |row: &Row| qualifies(call.filter.as_slice(), row) == Ok(true);
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| passes(row)).collect();
    let Some(argument) = &call.argument else { return rows.len().to_string() };
    let ty = argument.ty();
    let values = rows.iter().map(|row| evaluate(argument, row).expect("a column"));
    let mut values: Vec<Value> = values.filter(|value| !value.is_null()).collect();
    values.sort_by(|a, b| compare_as(a, b, &ty));
    if call.distinct {
        values.dedup_by(|a, b| compare_as(a, b, &ty).is_eq());
    }
    let number = |value: &Value| match value {
        Value::Int2(number) => Numeric::new(i64::from(*number), 0),
        Value::Int4(number) => Numeric::new(i64::from(*number), 0),
        Value::Int8(number) => Numeric::new(*number, 0),
        Value::Numeric(number) => number.clone(),
        other => panic!("the oracle adds no {other:?}"),
    };
    let sum = || {
        let add = |sum: Numeric, value: &Value| sum.add(&number(value)).expect("a sum in range");
        values.iter().fold(Numeric::zero(), add)
    };
    let result = match call.function {
        AggregateFunction::Count => Value::Int8(values.len() as i64),
        _ if values.is_empty() => Value::Null,
        AggregateFunction::Sum => match call.result_type() {
            Ok(Type::Int8) => Value::Int8(sum().to_i128_at_scale(0).expect("a whole number") as i64),
            _ => Value::Numeric(sum()),
        },
        AggregateFunction::Avg => {
            let count = Numeric::new(values.len() as i64, 0);
            Value::Numeric(sum().divide(&count).expect("a number of values"))
        }
        AggregateFunction::Min => values[0].clone(),
        AggregateFunction::Max => values[values.len() - 1].clone(),
        other => panic!("the oracle does not know {other:?}"),
    };
    show(&[result], &[call.result_type().expect("an aggregate that exists")])
}

/// Compares two rows of an answer by the keys of an order.
pub fn compare_rows(a: &[Value], b: &[Value], keys: &[SortKey], types: &[Type]) -> Ordering {
    for key in keys {
        let (a, b) = (&a[key.column], &b[key.column]);
        let ordering = match (a.is_null(), b.is_null()) {
            (true, true) => Ordering::Equal,
            (a_is_null, b_is_null) if a_is_null || b_is_null => {
                if a_is_null == key.nulls_first {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            _ if key.descending => compare_as(b, a, &types[key.column]),
            _ => compare_as(a, b, &types[key.column]),
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}
