//! Evaluation over batches.
//!
//! Every result and every error is the reference evaluator's. Columns are computed as a whole where nothing can fail or
//! nothing does; as soon as anything fails, the reference evaluates the batch row by row and decides what the outcome
//! is, so operands that PostgreSQL does not evaluate for a row cannot fail for it.

use std::{borrow::Cow, collections::HashSet, ops::Range, sync::Arc};

use arrow::{
    array::{
        Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, BooleanBufferBuilder, PrimitiveArray,
        StringArray,
    },
    buffer::{BooleanBuffer, NullBuffer},
    compute,
    datatypes::{
        DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
        Schema, Time64MicrosecondType, TimestampMicrosecondType,
    },
    record_batch::{RecordBatch, RecordBatchOptions},
};

use super::{
    CompareOp, EvalContext, Expr, Function, call, can_fail, cast, columns,
    decimal::{self, Decimals, Side},
    eval,
    pattern::LikePattern,
    qualifies, remap_columns,
};
use crate::{
    array::{BatchRow, ColumnBuilder, DECIMAL_NAN, arrow_cell_to_value},
    batch_size::{BATCH_BYTES, in_parts},
    error::{Result, SqlError, SqlState},
    given_up::check_entered,
    types::Type,
    value::{Value, compare_as, compare_f64},
};

/// A column, or one value for all rows.
enum Datum {
    Array(ArrayRef),
    Scalar(Value),
    /// Of a numeric without a precision, whose Arrow form is text.
    Decimals(Decimals),
}

impl Datum {
    fn into_array(self, ty: &Type, rows: usize) -> Result<ArrayRef> {
        match self {
            Datum::Array(array) => Ok(array),
            Datum::Scalar(value) => {
                let mut builder = ColumnBuilder::of_batch(ty, rows);
                (0..rows).try_for_each(|_| builder.append(&value))?;
                Ok(builder.finish())
            }
            Datum::Decimals(decimals) => decimals.into_texts(rows),
        }
    }

    /// As one side of arithmetic with exact numbers, if it can be one.
    fn side(&self) -> Option<Side> {
        match self {
            Datum::Array(array) => Decimals::of_array(array).map(Side::Column),
            Datum::Scalar(value) => Side::constant(value),
            Datum::Decimals(decimals) => Some(Side::Column(decimals.clone())),
        }
    }

    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Datum::Array(array) => array.nulls(),
            Datum::Scalar(_) => None,
            Datum::Decimals(decimals) => decimals.nulls(),
        }
    }

    fn value(&self, row: usize, ty: &Type) -> Value {
        match self {
            Datum::Array(array) => arrow_cell_to_value(array, row, ty),
            Datum::Scalar(value) => value.clone(),
            Datum::Decimals(decimals) => decimals.value(row),
        }
    }

    fn boolean(array: BooleanArray) -> Datum {
        Datum::Array(Arc::new(array))
    }
}

/// Evaluates an expression for every row of a batch. The result is in the Arrow form of the expression's type. 54000 when
/// it is longer than Arrow's offsets can count.
pub fn evaluate(expr: &Expr, batch: &RecordBatch, context: &EvalContext) -> Result<ArrayRef> {
    let mut parts = Vec::new();
    in_parts(0..batch.num_rows(), &mut |part| {
        parts.push(evaluate_part(expr, &part_of(batch, part), context)?);
        Ok(())
    })?;
    concatenate(parts)
}

/// As [`evaluate`], for an array that is no larger than a batch should be: an error that [`SqlError::is_batch_full`] when it
/// would be, and is of more than one row. What it is made of may be as large as it likes.
pub fn evaluate_part(expr: &Expr, batch: &RecordBatch, context: &EvalContext) -> Result<ArrayRef> {
    evaluate_as(expr, batch, context, &|datum| datum.into_array(&expr.ty(), batch.num_rows()))
}

/// As [`evaluate_part`]; numbers of a numeric without a precision may be decimals instead of text.
pub(crate) fn evaluate_numbers(expr: &Expr, batch: &RecordBatch, context: &EvalContext) -> Result<ArrayRef> {
    evaluate_as(expr, batch, context, &|datum| match datum {
        Datum::Decimals(decimals) => {
            decimals.into_decimals().or_else(|decimals| decimals.into_texts(batch.num_rows()))
        }
        datum => datum.into_array(&expr.ty(), batch.num_rows()),
    })
}

fn evaluate_as(
    expr: &Expr,
    batch: &RecordBatch,
    context: &EvalContext,
    to_array: &dyn Fn(Datum) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    check_entered()?;
    let rows = batch.num_rows();
    let attempt = compute_datum(expr, batch, context).and_then(to_array);
    let attempt = attempt.or_else(|error| match error.is_batch_full() {
        true => Err(error),
        false => row_by_row(expr, batch, context),
    });
    match attempt {
        Err(error) if error.is_batch_full() && rows > 1 => {
            let half = rows / 2;
            let first = evaluate_part(expr, &batch.slice(0, half), context)?;
            let second = evaluate_part(expr, &batch.slice(half, rows - half), context)?;
            match string_bytes(&first) + string_bytes(&second) <= BATCH_BYTES {
                true => concatenate(vec![first, second]),
                false => Err(error),
            }
        }
        attempt => attempt,
    }
}

pub(crate) fn part_of(batch: &RecordBatch, rows: Range<usize>) -> Cow<'_, RecordBatch> {
    match rows.len() == batch.num_rows() {
        true => Cow::Borrowed(batch),
        false => Cow::Owned(batch.slice(rows.start, rows.len())),
    }
}

/// Bytes of an array's strings, if it has strings.
pub fn string_bytes(array: &ArrayRef) -> usize {
    let span = |offsets: &[i32]| (offsets[offsets.len() - 1] - offsets[0]) as usize;
    match array.data_type() {
        DataType::Utf8 => span(array.as_string::<i32>().value_offsets()),
        DataType::Binary => span(array.as_binary::<i32>().value_offsets()),
        _ => 0,
    }
}

fn concatenate(mut parts: Vec<ArrayRef>) -> Result<ArrayRef> {
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    if parts.iter().map(string_bytes).sum::<usize>() > i32::MAX as usize {
        return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "a column of one batch is longer than 2 GB"));
    }
    let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
    compute::concat(&parts).map_err(arrow_error)
}

/// The rows of a batch that qualify: every conjunct is true of them.
pub fn filter(predicate: &[Expr], batch: &RecordBatch, context: &EvalContext) -> Result<BooleanBuffer> {
    let mut selected = BooleanBufferBuilder::new(batch.num_rows());
    in_parts(0..batch.num_rows(), &mut |part| {
        selected.append_buffer(&filter_part(predicate, &part_of(batch, part), context)?);
        Ok(())
    })?;
    Ok(selected.finish())
}

fn filter_part(predicate: &[Expr], batch: &RecordBatch, context: &EvalContext) -> Result<BooleanBuffer> {
    match try_filter(predicate, batch, context) {
        Err(error) if !error.is_batch_full() || batch.num_rows() == 1 => {}
        attempt => return attempt,
    }
    let mut selected = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        check_entered()?;
        selected.push(qualifies(predicate, &BatchRow::new(batch, row), context)?);
    }
    Ok(BooleanBuffer::from(selected))
}

fn try_filter(predicate: &[Expr], batch: &RecordBatch, context: &EvalContext) -> Result<BooleanBuffer> {
    let rows = batch.num_rows();
    let mut selected = BooleanBuffer::new_set(rows);
    let mut count = rows;
    for conjunct in predicate {
        if count == 0 {
            break;
        }
        if count < rows && (count < rows / 8 || can_fail(conjunct)) {
            // Only the rows that are left, and only the columns that are needed.
            let (narrowed, conjunct) = narrow_batch(conjunct, batch, &selected)?;
            let result = compute_datum(&conjunct, &narrowed, context)?.into_array(&Type::Bool, count)?;
            let result = result.as_boolean();
            let kept: Vec<bool> = (0..count).map(|i| result.is_valid(i) && result.value(i)).collect();
            let mut still = vec![false; rows];
            for (row, keep) in selected.set_indices().zip(kept) {
                still[row] = keep;
            }
            selected = BooleanBuffer::from(still);
        } else {
            let result = compute_datum(conjunct, batch, context)?.into_array(&Type::Bool, rows)?;
            let result = result.as_boolean();
            selected = &selected & result.values();
            if let Some(nulls) = result.nulls() {
                selected = &selected & nulls.inner();
            }
        }
        count = selected.count_set_bits();
    }
    Ok(selected)
}

fn arrow_error(error: arrow::error::ArrowError) -> SqlError {
    SqlError::internal(error.to_string())
}

fn narrow_batch(expr: &Expr, batch: &RecordBatch, selected: &BooleanBuffer) -> Result<(RecordBatch, Expr)> {
    let needed: Vec<usize> = columns(expr).into_iter().collect();
    let mask = BooleanArray::new(selected.clone(), None);
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    for index in &needed {
        fields.push(batch.schema().field(*index).clone());
        arrays.push(compute::filter(batch.column(*index), &mask).map_err(arrow_error)?);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(selected.count_set_bits()));
    let narrowed = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
        .map_err(arrow_error)?;
    let renumbered = remap_columns(expr.clone(), &|index| {
        needed.binary_search(&index).expect("every column of the expression is needed")
    });
    Ok((narrowed, renumbered))
}

/// The reference, row by row.
fn row_by_row(expr: &Expr, batch: &RecordBatch, context: &EvalContext) -> Result<ArrayRef> {
    let mut builder = ColumnBuilder::of_batch(&expr.ty(), batch.num_rows());
    for row in 0..batch.num_rows() {
        check_entered()?;
        builder.append(&eval(expr, &BatchRow::new(batch, row), context)?)?;
    }
    Ok(builder.finish())
}

fn compute_datum(expr: &Expr, batch: &RecordBatch, context: &EvalContext) -> Result<Datum> {
    let rows = batch.num_rows();
    match expr {
        Expr::Literal { value, .. } => Ok(Datum::Scalar(value.clone())),
        Expr::Column { index, .. } => Ok(Datum::Array(batch.column(*index).clone())),
        Expr::Compare { op, left, right } => {
            let (left_type, right_type) = (left.ty(), right.ty());
            let a = compute_datum(left, batch, context)?;
            let b = compute_datum(right, batch, context)?;
            compare(*op, &a, &left_type, &b, &right_type, rows)
        }
        Expr::And(operands) => connect(operands, false, batch, context),
        Expr::Or(operands) => connect(operands, true, batch, context),
        Expr::Not(inner) => Ok(match compute_datum(inner, batch, context)? {
            Datum::Array(array) => Datum::boolean(compute::not(array.as_boolean()).map_err(arrow_error)?),
            Datum::Scalar(value) => Datum::Scalar(value.as_bool().map_or(Value::Null, |v| Value::Bool(!v))),
            Datum::Decimals(_) => return Err(SqlError::internal("a number that is no condition")),
        }),
        Expr::IsNull { expr, negated } => Ok(match compute_datum(expr, batch, context)? {
            Datum::Scalar(value) => Datum::Scalar(Value::Bool(value.is_null() != *negated)),
            datum => {
                let nulls =
                    datum.nulls().map_or_else(|| BooleanBuffer::new_unset(rows), |nulls| !nulls.inner());
                Datum::boolean(BooleanArray::new(if *negated { !&nulls } else { nulls }, None))
            }
        }),
        Expr::IsTruth { expr, truth, negated } => {
            let array = compute_datum(expr, batch, context)?.into_array(&Type::Bool, rows)?;
            let array = array.as_boolean();
            let holds = |row: usize| {
                let value = array.is_valid(row).then(|| array.value(row));
                (value == *truth) != *negated
            };
            Ok(Datum::boolean(BooleanArray::new(BooleanBuffer::collect_bool(rows, holds), None)))
        }
        Expr::Like { expr: text, pattern, escape, case_insensitive, negated } => {
            let (Datum::Array(text), Datum::Scalar(Value::Text(pattern))) =
                (compute_datum(text, batch, context)?, compute_datum(pattern, batch, context)?)
            else {
                return row_by_row(expr, batch, context).map(Datum::Array);
            };
            let pattern = LikePattern::new(&pattern, *escape, *case_insensitive);
            let text = text.as_string::<i32>();
            let mut failure = None;
            let values = BooleanBuffer::collect_bool(rows, |row| {
                if text.is_null(row) {
                    return false;
                }
                match pattern.matches(text.value(row)) {
                    Ok(matched) => matched != *negated,
                    Err(error) => {
                        failure = Some(error);
                        false
                    }
                }
            });
            match failure {
                Some(error) => Err(error),
                None => Ok(Datum::boolean(BooleanArray::new(values, text.nulls().cloned()))),
            }
        }
        Expr::InList { expr: operand, list, negated } => {
            match literal_set(operand, list, *negated, batch, context)? {
                Some(datum) => Ok(datum),
                None => row_by_row(expr, batch, context).map(Datum::Array),
            }
        }
        Expr::Call { function: Function::OnlyRow, args, .. } if args.len() == 2 => {
            let counts = compute_datum(&args[1], batch, context)?.into_array(&Type::Int8, rows)?;
            match counts.as_primitive::<Int64Type>().iter().flatten().any(|count| count > 1) {
                true => Err(call::more_than_one_row()),
                false => compute_datum(&args[0], batch, context),
            }
        }
        Expr::Call { function, args, ty } => {
            let datums: Vec<Datum> =
                args.iter().map(|arg| compute_datum(arg, batch, context)).collect::<Result<_>>()?;
            if let Some(array) = arithmetic(*function, &datums, ty, rows)? {
                return Ok(Datum::Array(array));
            }
            if let (Type::Numeric(None), [a, b]) = (ty, datums.as_slice())
                && matches!(function, Function::Add | Function::Subtract | Function::Multiply)
                && let (Some(a), Some(b)) = (a.side(), b.side())
                && let Some(result) = decimal::arithmetic(*function, a, b)
            {
                return Ok(Datum::Decimals(result));
            }
            let types: Vec<Type> = args.iter().map(Expr::ty).collect();
            let first_type = || types.first().cloned().unwrap_or(Type::Text);
            if datums.iter().all(|datum| matches!(datum, Datum::Scalar(_))) {
                let values: Vec<Value> = datums.iter().map(|datum| datum.value(0, &Type::Text)).collect();
                return Ok(Datum::Scalar(call::call(*function, &values, first_type, context)?));
            }
            let mut builder = ColumnBuilder::of_batch(ty, rows);
            let mut values = Vec::with_capacity(datums.len());
            for row in 0..rows {
                check_entered()?;
                values.clear();
                values.extend(datums.iter().zip(&types).map(|(datum, ty)| datum.value(row, ty)));
                builder.append(&call::call(*function, &values, first_type, context)?)?;
            }
            Ok(Datum::Array(builder.finish()))
        }
        Expr::Cast { expr: inner, to, kind } => {
            let from = inner.ty();
            match compute_datum(inner, batch, context)? {
                Datum::Scalar(value) => {
                    let cast = || cast::cast(value, &from, to, *kind, context);
                    Ok(Datum::Scalar(call::contained(to, cast)?))
                }
                datum => {
                    if let Some(cast) = plain_cast(&datum, &from, to) {
                        return Ok(cast);
                    }
                    let mut builder = ColumnBuilder::of_batch(to, rows);
                    for row in 0..rows {
                        check_entered()?;
                        let value = datum.value(row, &from);
                        let cast = || cast::cast(value, &from, to, *kind, context);
                        builder.append(&call::contained(to, cast)?)?;
                    }
                    Ok(Datum::Array(builder.finish()))
                }
            }
        }
        _ => row_by_row(expr, batch, context).map(Datum::Array),
    }
}

fn connect(operands: &[Expr], decisive: bool, batch: &RecordBatch, context: &EvalContext) -> Result<Datum> {
    let rows = batch.num_rows();
    let mut result: Option<BooleanArray> = None;
    for operand in operands {
        let next = compute_datum(operand, batch, context)?.into_array(&Type::Bool, rows)?;
        let next = next.as_boolean();
        result = Some(match result {
            None => next.clone(),
            Some(before) if decisive => compute::or_kleene(&before, next).map_err(arrow_error)?,
            Some(before) => compute::and_kleene(&before, next).map_err(arrow_error)?,
        });
    }
    Ok(result.map_or(Datum::Scalar(Value::Bool(!decisive)), Datum::boolean))
}

/// Casts between integers, floats and strings that only widen, and those to exact numbers where none fails.
fn plain_cast(datum: &Datum, from: &Type, to: &Type) -> Option<Datum> {
    if let Type::Numeric(modifiers) = to
        && (from != to || modifiers.is_none())
        && (from.is_integer() || matches!(from, Type::Numeric(_)))
        && let Some(Side::Column(decimals)) = datum.side()
    {
        return match modifiers {
            None => Some(Datum::Decimals(decimals)),
            Some((precision, scale)) => decimals.fit(*precision, *scale).map(Datum::Array),
        };
    }
    let Datum::Array(array) = datum else { return None };
    let same = || Some(Datum::Array(array.clone()));
    match (from, to) {
        _ if from == to => same(),
        (Type::Text | Type::Varchar(_), Type::Text | Type::Varchar(None))
        | (Type::Char(_), Type::Char(0)) => same(),
        (Type::Int2, Type::Int4 | Type::Int8)
        | (Type::Int4, Type::Int8)
        | (Type::Int2 | Type::Int4, Type::Float8) => compute::cast(array, &to.arrow()).ok().map(Datum::Array),
        _ => None,
    }
}

fn nulls_of(a: &Datum, b: &Datum) -> Option<NullBuffer> {
    NullBuffer::union(a.nulls(), b.nulls())
}

fn compare(op: CompareOp, a: &Datum, a_type: &Type, b: &Datum, b_type: &Type, rows: usize) -> Result<Datum> {
    match (a, b) {
        (Datum::Scalar(a), Datum::Scalar(b)) => {
            if a.is_null() || b.is_null() {
                return Ok(Datum::Scalar(Value::Null));
            }
            return Ok(Datum::Scalar(Value::Bool(op.holds(compare_as(a, b, a_type)))));
        }
        (Datum::Scalar(Value::Null), _) | (_, Datum::Scalar(Value::Null)) => {
            return Ok(Datum::Scalar(Value::Null));
        }
        (Datum::Scalar(_), _) => return compare(op.swapped(), b, b_type, a, a_type, rows),
        _ => {}
    }
    if let (Type::Numeric(_), Type::Numeric(_)) = (a_type, b_type)
        && let (Some(a), Some(b)) = (a.side(), b.side())
        && let Some(result) = decimal::compare(op, a, b)
    {
        return Ok(Datum::boolean(result));
    }
    let nulls = nulls_of(a, b);
    let finish = |values: BooleanBuffer| Ok(Datum::boolean(BooleanArray::new(values, nulls.clone())));
    let row_by_row = || {
        finish(BooleanBuffer::collect_bool(rows, |row| {
            let (left, right) = (a.value(row, a_type), b.value(row, b_type));
            !left.is_null() && !right.is_null() && op.holds(compare_as(&left, &right, a_type))
        }))
    };
    let Datum::Array(left) = a else { return row_by_row() };
    macro_rules! ordered {
        ($arrow:ty, $variant:pat => $value:expr) => {{
            let left = left.as_primitive::<$arrow>().values();
            match b {
                Datum::Scalar($variant) => {
                    let right = $value;
                    return finish(loops(op, rows, |row| left[row], |_| right));
                }
                Datum::Array(right) if a_type.arrow() == b_type.arrow() => {
                    let right = right.as_primitive::<$arrow>().values();
                    return finish(loops(op, rows, |row| left[row], |row| right[row]));
                }
                _ => {}
            }
        }};
    }
    match a_type {
        Type::Int2 => ordered!(Int16Type, Value::Int2(v) => *v),
        Type::Int4 => ordered!(Int32Type, Value::Int4(v) => *v),
        Type::Int8 => ordered!(Int64Type, Value::Int8(v) => *v),
        Type::Date => ordered!(Date32Type, Value::Date(v) => *v),
        Type::Time => ordered!(Time64MicrosecondType, Value::Time(v) => *v),
        Type::Timestamp => ordered!(TimestampMicrosecondType, Value::Timestamp(v) => *v),
        Type::TimestampTz => ordered!(TimestampMicrosecondType, Value::TimestampTz(v) => *v),
        Type::Float4 | Type::Float8 => {
            let at = |datum: &Datum, ty: &Type| -> Box<dyn Fn(usize) -> f64> {
                match (datum, ty) {
                    (Datum::Scalar(Value::Float4(value)), _) => {
                        let value = f64::from(*value);
                        Box::new(move |_| value)
                    }
                    (Datum::Scalar(Value::Float8(value)), _) => {
                        let value = *value;
                        Box::new(move |_| value)
                    }
                    (Datum::Array(array), Type::Float4) => {
                        let values = array.as_primitive::<Float32Type>().values().clone();
                        Box::new(move |row| f64::from(values[row]))
                    }
                    (Datum::Array(array), _) => {
                        let values = array.as_primitive::<Float64Type>().values().clone();
                        Box::new(move |row| values[row])
                    }
                    _ => Box::new(|_| f64::NAN),
                }
            };
            let (left, right) = (at(a, a_type), at(b, b_type));
            return finish(BooleanBuffer::collect_bool(rows, |row| {
                op.holds(compare_f64(left(row), right(row)))
            }));
        }
        Type::Text | Type::Varchar(_) => {
            let left = left.as_string::<i32>();
            match b {
                Datum::Scalar(Value::Text(right)) => {
                    return finish(string_loops(op, left, right));
                }
                Datum::Array(right) => {
                    let right = right.as_string::<i32>();
                    return finish(loops(
                        op,
                        rows,
                        |row| left.value(row).as_bytes(),
                        |row| right.value(row).as_bytes(),
                    ));
                }
                _ => {}
            }
        }
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            // NaN is stored as the smallest number, but is the greatest.
            let rank = |unscaled: i128| if unscaled == DECIMAL_NAN { i128::MAX } else { unscaled };
            let left = left.as_primitive::<Decimal128Type>().values();
            match b {
                Datum::Scalar(Value::Numeric(right)) => {
                    if let Some(right) = right.to_i128_at_scale((*scale).into()) {
                        return finish(loops(op, rows, |row| rank(left[row]), |_| right));
                    }
                }
                Datum::Array(right) if matches!(b_type, Type::Numeric(Some((p, s))) if *p <= 38 && s == scale) =>
                {
                    let right = right.as_primitive::<Decimal128Type>().values();
                    return finish(loops(op, rows, |row| rank(left[row]), |row| rank(right[row])));
                }
                _ => {}
            }
        }
        _ => {}
    }
    row_by_row()
}

/// One tight loop for each operator.
pub(super) fn loops<T: Ord>(
    op: CompareOp,
    rows: usize,
    left: impl Fn(usize) -> T,
    right: impl Fn(usize) -> T,
) -> BooleanBuffer {
    match op {
        CompareOp::Eq => BooleanBuffer::collect_bool(rows, |row| left(row) == right(row)),
        CompareOp::Ne => BooleanBuffer::collect_bool(rows, |row| left(row) != right(row)),
        CompareOp::Lt => BooleanBuffer::collect_bool(rows, |row| left(row) < right(row)),
        CompareOp::Le => BooleanBuffer::collect_bool(rows, |row| left(row) <= right(row)),
        CompareOp::Gt => BooleanBuffer::collect_bool(rows, |row| left(row) > right(row)),
        CompareOp::Ge => BooleanBuffer::collect_bool(rows, |row| left(row) >= right(row)),
    }
}

fn string_loops(op: CompareOp, left: &StringArray, right: &str) -> BooleanBuffer {
    loops(op, left.len(), |row| left.value(row).as_bytes(), |_| right.as_bytes())
}

/// Membership in a list of literals; `None` for other lists or types.
fn literal_set(
    operand: &Expr,
    list: &[Expr],
    negated: bool,
    batch: &RecordBatch,
    context: &EvalContext,
) -> Result<Option<Datum>> {
    let mut has_null = false;
    let mut members = Vec::with_capacity(list.len());
    for member in list {
        match member {
            Expr::Literal { value: Value::Null, .. } => has_null = true,
            Expr::Literal { value, .. } => members.push(value),
            _ => return Ok(None),
        }
    }
    let Datum::Array(array) = compute_datum(operand, batch, context)? else { return Ok(None) };
    let rows = batch.num_rows();
    let found = match operand.ty() {
        Type::Text | Type::Varchar(_) => {
            let set: HashSet<&str> = members.iter().filter_map(|value| value.as_str()).collect();
            let array = array.as_string::<i32>();
            BooleanBuffer::collect_bool(rows, |row| set.contains(array.value(row)))
        }
        ty @ (Type::Int2 | Type::Int4 | Type::Int8) => {
            let set: HashSet<i64> = members.iter().filter_map(|value| value.as_i64()).collect();
            match ty {
                Type::Int2 => {
                    let values = array.as_primitive::<Int16Type>().values();
                    BooleanBuffer::collect_bool(rows, |row| set.contains(&i64::from(values[row])))
                }
                Type::Int4 => {
                    let values = array.as_primitive::<Int32Type>().values();
                    BooleanBuffer::collect_bool(rows, |row| set.contains(&i64::from(values[row])))
                }
                _ => {
                    let values = array.as_primitive::<Int64Type>().values();
                    BooleanBuffer::collect_bool(rows, |row| set.contains(&values[row]))
                }
            }
        }
        ty => {
            // Blanks at the end of char(n) count for nothing.
            let member = |value: Value| match (&ty, value) {
                (Type::Char(_), Value::Text(text)) => Value::text(text.trim_end_matches(' ')),
                (_, value) => value,
            };
            let set: HashSet<Value> = members.into_iter().cloned().map(member).collect();
            let is_member = |row| set.contains(&member(arrow_cell_to_value(&array, row, &ty)));
            BooleanBuffer::collect_bool(rows, |row| array.is_valid(row) && is_member(row))
        }
    };
    // A NULL member makes unknown what is not found. An empty list never occurs in SQL.
    let mut nulls = array.nulls().cloned();
    if has_null {
        nulls = NullBuffer::union(nulls.as_ref(), Some(&NullBuffer::new(found.clone())));
    }
    let values = if negated { !&found } else { found };
    Ok(Some(Datum::boolean(BooleanArray::new(values, nulls))))
}

/// Checked arithmetic of integers and doubles; `None` for everything else. An error is only a hint: the reference says
/// what really happens.
fn arithmetic(function: Function, args: &[Datum], ty: &Type, rows: usize) -> Result<Option<ArrayRef>> {
    let [a, b] = args else { return Ok(None) };
    if !matches!(a, Datum::Array(_)) && !matches!(b, Datum::Array(_)) {
        return Ok(None);
    }
    if let (Datum::Scalar(Value::Null), _) | (_, Datum::Scalar(Value::Null)) = (a, b) {
        return Ok(None);
    }
    macro_rules! integers {
        ($arrow:ty, $variant:ident) => {{
            let scalar = |datum: &Datum| match datum {
                Datum::Scalar(Value::$variant(value)) => Some(*value),
                _ => None,
            };
            match function {
                Function::Add => checked::<$arrow>(a, b, scalar(a), scalar(b), rows, |x, y| x.checked_add(y)),
                Function::Subtract => {
                    checked::<$arrow>(a, b, scalar(a), scalar(b), rows, |x, y| x.checked_sub(y))
                }
                Function::Multiply => {
                    checked::<$arrow>(a, b, scalar(a), scalar(b), rows, |x, y| x.checked_mul(y))
                }
                Function::Divide => {
                    checked::<$arrow>(a, b, scalar(a), scalar(b), rows, |x, y| x.checked_div(y))
                }
                Function::Modulo => checked::<$arrow>(a, b, scalar(a), scalar(b), rows, |x, y| {
                    (y != 0).then(|| x.wrapping_rem(y))
                }),
                _ => Ok(None),
            }
        }};
    }
    match ty {
        Type::Int2 => integers!(Int16Type, Int2),
        Type::Int4 => integers!(Int32Type, Int4),
        Type::Int8 => integers!(Int64Type, Int8),
        Type::Float8 => {
            let scalar = |datum: &Datum| match datum {
                Datum::Scalar(Value::Float8(value)) => Some(*value),
                _ => None,
            };
            // Results that need a closer look (infinite, or zero by underflow) are left to the reference.
            let plain = |result: f64| (result.is_finite() && result != 0.0).then_some(result);
            match function {
                Function::Add => checked::<Float64Type>(a, b, scalar(a), scalar(b), rows, |x, y| {
                    Some(x + y).filter(|sum| sum.is_finite())
                }),
                Function::Subtract => checked::<Float64Type>(a, b, scalar(a), scalar(b), rows, |x, y| {
                    Some(x - y).filter(|difference| difference.is_finite())
                }),
                Function::Multiply => checked::<Float64Type>(a, b, scalar(a), scalar(b), rows, |x, y| {
                    if (x == 0.0 && y.is_finite()) || (y == 0.0 && x.is_finite()) {
                        Some(x * y)
                    } else {
                        plain(x * y)
                    }
                }),
                Function::Divide => checked::<Float64Type>(a, b, scalar(a), scalar(b), rows, |x, y| {
                    if x == 0.0 && y != 0.0 && y.is_finite() { Some(x / y) } else { plain(x / y) }
                }),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// Applies an operation to all rows without NULL; `Ok(None)` when the operands are of other types or the operation
/// declines, so that the reference looks at it.
fn checked<T: ArrowPrimitiveType>(
    a: &Datum,
    b: &Datum,
    a_scalar: Option<T::Native>,
    b_scalar: Option<T::Native>,
    rows: usize,
    apply: impl Fn(T::Native, T::Native) -> Option<T::Native>,
) -> Result<Option<ArrayRef>> {
    let side = |datum: &Datum, scalar: Option<T::Native>| match datum {
        Datum::Array(array) if *array.data_type() == T::DATA_TYPE => {
            Some((Some(array.as_primitive::<T>().values().clone()), None))
        }
        Datum::Scalar(_) if scalar.is_some() => Some((None, scalar)),
        _ => None,
    };
    let (Some((left, left_scalar)), Some((right, right_scalar))) = (side(a, a_scalar), side(b, b_scalar))
    else {
        return Ok(None);
    };
    let at = |values: &Option<arrow::buffer::ScalarBuffer<T::Native>>,
              scalar: Option<T::Native>,
              row: usize| match values {
        Some(values) => values[row],
        None => scalar.unwrap_or_default(),
    };
    let nulls = nulls_of(a, b);
    let mut out = Vec::with_capacity(rows);
    for row in 0..rows {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            out.push(T::Native::default());
            continue;
        }
        match apply(at(&left, left_scalar, row), at(&right, right_scalar, row)) {
            Some(result) => out.push(result),
            None => return Ok(None),
        }
    }
    Ok(Some(Arc::new(PrimitiveArray::<T>::new(out.into(), nulls))))
}
