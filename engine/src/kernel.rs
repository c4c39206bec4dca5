//! What the storage side needs of values and expressions, in one place.

use arrow::{
    array::{Array, ArrayRef},
    record_batch::RecordBatch,
};

use crate::{
    aggregate::{AggregateCall, Group},
    array::{BatchRow, arrow_cell_to_value, values_to_array},
    error::{Result, SqlError},
    expr::{EvalContext, Expr, Row},
    text::format_value,
    types::Type,
    value::{Value, compare_as},
};

/// The text of a cell, `None` for NULL.
pub(crate) fn text_of(array: &ArrayRef, row: usize, ty: &Type, context: &EvalContext) -> Option<String> {
    let value = arrow_cell_to_value(array, row, ty);
    (!value.is_null()).then(|| format_value(&value, ty, context))
}

/// The value of an expression for each row of a batch.
pub(crate) fn evaluate(expr: &Expr, batch: &RecordBatch, context: &EvalContext) -> Result<ArrayRef> {
    let values: Result<Vec<Value>> =
        (0..batch.num_rows()).map(|row| value_of(expr, &BatchRow::new(batch, row), context)).collect();
    values_to_array(&values?, &expr.ty())
}

/// Indices of the rows for which every conjunct is true, evaluated from the left.
pub(crate) fn filter(predicate: &[Expr], batch: &RecordBatch, context: &EvalContext) -> Result<Vec<u32>> {
    let mut selected = Vec::new();
    'rows: for row in 0..batch.num_rows() {
        for conjunct in predicate {
            if value_of(conjunct, &BatchRow::new(batch, row), context)?.as_bool() != Some(true) {
                continue 'rows;
            }
        }
        selected.push(row as u32);
    }
    Ok(selected)
}

/// As [`filter`], with one expression over a single column.
pub(crate) fn filter_array(
    expr: &Expr,
    array: &ArrayRef,
    _ty: &Type,
    context: &EvalContext,
) -> Result<Vec<u32>> {
    let batch = crate::rider::batch_of(vec![array.clone()], array.len())?;
    filter(std::slice::from_ref(expr), &batch, context)
}

#[expect(clippy::only_used_in_recursion)]
fn value_of(expr: &Expr, row: &dyn Row, context: &EvalContext) -> Result<Value> {
    let truth = |value: Option<bool>| value.map_or(Value::Null, Value::Bool);
    Ok(match expr {
        Expr::Literal { value, .. } => value.clone(),
        Expr::Column { index, ty } => row.value(*index, ty),
        Expr::Compare { op, left, right } => {
            let (a, b) = (value_of(left, row, context)?, value_of(right, row, context)?);
            match a.is_null() || b.is_null() {
                true => Value::Null,
                false => Value::Bool(op.holds(compare_as(&a, &b, &left.ty()))),
            }
        }
        Expr::And(operands) | Expr::Or(operands) => {
            let decisive = matches!(expr, Expr::Or(_));
            let mut unknown = false;
            for operand in operands {
                match value_of(operand, row, context)?.as_bool() {
                    Some(value) if value == decisive => return Ok(Value::Bool(decisive)),
                    Some(_) => {}
                    None => unknown = true,
                }
            }
            truth((!unknown).then_some(!decisive))
        }
        Expr::Not(operand) => truth(value_of(operand, row, context)?.as_bool().map(|value| !value)),
        Expr::IsNull { expr, negated } => Value::Bool(value_of(expr, row, context)?.is_null() != *negated),
        Expr::InList { expr, list, negated } => {
            let value = value_of(expr, row, context)?;
            let mut unknown = value.is_null();
            for member in list {
                let member = value_of(member, row, context)?;
                if member.is_null() {
                    unknown = true;
                } else if !value.is_null() && compare_as(&value, &member, &expr.ty()).is_eq() {
                    return Ok(Value::Bool(!negated));
                }
            }
            truth((!unknown).then_some(*negated))
        }
        other => return Err(SqlError::unsupported(format!("the expression {other:?}"))),
    })
}

/// Groups with partial states, filled batch by batch.
#[derive(Debug)]
pub(crate) struct Groups {}

impl Groups {
    /// Grouping expressions and aggregates over the columns of the batches to come.
    pub(crate) fn new(_: Vec<Expr>, _: Vec<AggregateCall>, _: &EvalContext) -> Result<Groups> {
        Err(SqlError::unsupported("an aggregate"))
    }

    /// Adds the rows of a batch.
    pub(crate) fn update(&mut self, _: &RecordBatch) -> Result<()> {
        Ok(())
    }

    /// The groups.
    pub(crate) fn finish(&mut self) -> Result<Vec<Group>> {
        Ok(Vec::new())
    }
}
