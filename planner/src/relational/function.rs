//! The engine's expressions as DataFusion sees them: functions that it cannot look into.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, BooleanArray, Decimal128Array, StringArray,
        UInt64Array,
    },
    datatypes::{DataType, Field, Float32Type, Float64Type, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
    row::{RowConverter, SortField},
};
use carousel_engine::{
    SqlError, SqlState, Type, Value,
    array::arrow_cell_to_value,
    error::Result,
    expr::{EvalContext, Expr, columns, remap_columns, vector},
    numeric::Numeric,
};
use datafusion::{
    common::{Result as DataFusionResult, exec_err},
    error::DataFusionError,
    logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility},
};

use super::{scan::Reader, strings::over_strings};

/// An error of the engine on its way through DataFusion.
pub(crate) fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// What a function computes from its arguments' columns.
#[derive(Debug)]
pub(crate) enum Work {
    /// An expression over them.
    Expr(Expr),
    /// Whether every conjunct over them is true; never NULL.
    Predicate(Vec<Expr>),
    /// The key of the only one: native equality and order of keys are PostgreSQL's of values; NULL has none.
    Key,
    /// As `Key`, but NULL has a key, too. Only for equality.
    NullableKey,
}

/// A function.
#[derive(Debug)]
struct Inner {
    name: String,
    work: Work,
    inputs: Vec<Type>,
    schema: SchemaRef,
    output: DataType,
    context: Arc<EvalContext>,
    /// Of the statement that it is part of.
    reader: Arc<dyn Reader>,
    signature: Signature,
}

/// A function; each is equal only to itself.
#[derive(Clone, Debug)]
pub(crate) struct EngineFunction(Arc<Inner>);

impl PartialEq for EngineFunction {
    fn eq(&self, other: &EngineFunction) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EngineFunction {}

impl Hash for EngineFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl EngineFunction {
    /// A function of columns of these types. `name` is for EXPLAIN.
    pub(crate) fn new(
        name: String,
        work: Work,
        inputs: Vec<Type>,
        context: &Arc<EvalContext>,
        reader: &Arc<dyn Reader>,
    ) -> EngineFunction {
        let fields: Vec<Field> = inputs.iter().map(|ty| Field::new("", ty.arrow(), true)).collect();
        let output = match &work {
            Work::Expr(expr) => expr.ty().arrow(),
            Work::Predicate(_) => DataType::Boolean,
            Work::Key => inputs.first().map_or(DataType::Null, key_type),
            Work::NullableKey => DataType::Binary,
        };
        let signature = match inputs.len() {
            // Not constant to DataFusion, which would compute it where its errors are not wanted yet.
            0 => Signature::nullary(Volatility::Volatile),
            arguments => Signature::any(arguments, Volatility::Immutable),
        };
        let schema = Arc::new(Schema::new(fields));
        EngineFunction(Arc::new(Inner {
            name,
            work,
            inputs,
            schema,
            output,
            context: context.clone(),
            reader: reader.clone(),
            signature,
        }))
    }

    /// The values for as many rows as the arguments have; `None` when their strings are too many for one batch, which those of
    /// one row never are.
    pub(super) fn evaluate_part(
        &self,
        arrays: Vec<ArrayRef>,
        rows: usize,
    ) -> DataFusionResult<Option<ArrayRef>> {
        let inner = &*self.0;
        check_wanted(&*inner.reader).map_err(external)?;
        let computed = match &inner.work {
            Work::Expr(expr) => {
                self.batch(arrays, rows).and_then(|batch| vector::evaluate_part(expr, &batch, &inner.context))
            }
            _ => self.compute(arrays, rows),
        };
        match computed {
            Err(error) if error.is_batch_full() => Ok(None),
            computed => computed.map(Some).map_err(external),
        }
    }

    fn compute(&self, arrays: Vec<ArrayRef>, rows: usize) -> Result<ArrayRef> {
        let inner = &self.0;
        let first = || {
            let array = arrays.first().zip(inner.inputs.first());
            array.ok_or_else(|| SqlError::internal("a key of nothing"))
        };
        match &inner.work {
            Work::Key => first().and_then(|(array, ty)| key(array, ty)),
            Work::NullableKey => first().and_then(|(array, ty)| nullable_key(array, ty)),
            Work::Expr(expr) => vector::evaluate(expr, &self.batch(arrays, rows)?, &inner.context),
            Work::Predicate(predicate) => {
                let selected = vector::filter(predicate, &self.batch(arrays, rows)?, &inner.context)?;
                Ok(Arc::new(BooleanArray::new(selected, None)))
            }
        }
    }

    fn batch(&self, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.0.schema.clone(), arrays, &options)
            .map_err(|e| SqlError::internal(format!("arguments of an expression: {e}")))
    }
}

impl ScalarUDFImpl for EngineFunction {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn display_name(&self, _args: &[datafusion::logical_expr::Expr]) -> DataFusionResult<String> {
        Ok(self.0.name.clone())
    }

    fn schema_name(&self, _args: &[datafusion::logical_expr::Expr]) -> DataFusionResult<String> {
        // DataFusion tells expressions apart by this name.
        Ok(format!("{}@{:p}", self.0.name, Arc::as_ptr(&self.0)))
    }

    fn signature(&self) -> &Signature {
        &self.0.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> DataFusionResult<DataType> {
        let fields = self.0.schema.fields();
        if arguments.len() != fields.len() || fields.iter().zip(arguments).any(|(f, a)| f.data_type() != a) {
            return exec_err!("{} was given {arguments:?}", self.0.name);
        }
        Ok(self.0.output.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        // A join that finds no rows goes on to its end without letting others run; but it asks here whether rows are some.
        check_wanted(&*self.0.reader).map_err(external)?;
        let rows = args.number_rows;
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let rows = arrays.first().map_or(rows, |array| array.len());
        let compute = |arrays, rows| self.compute(arrays, rows).map_err(external);
        over_strings(&arrays, rows, &compute).map(ColumnarValue::Array)
    }
}

/// Ends a computation that nobody waits for any more, by an error that nobody hears of.
pub(super) fn check_wanted(reader: &dyn Reader) -> Result<()> {
    match reader.is_over() {
        true => Err(SqlError::new(SqlState::QUERY_CANCELED, "the statement is over")),
        false => Ok(()),
    }
}

/// The columns of expressions in order, and the expressions over only them.
pub(crate) fn narrowed(exprs: &[Expr]) -> (Vec<usize>, Vec<Expr>) {
    let mut used: Vec<usize> = exprs.iter().flat_map(columns).collect();
    used.sort_unstable();
    used.dedup();
    let narrow = |expr: &Expr| {
        remap_columns(expr.clone(), &|column| used.binary_search(&column).unwrap_or(usize::MAX))
    };
    let exprs = exprs.iter().map(narrow).collect();
    (used, exprs)
}

/// Whether Arrow's equality of values of a type is PostgreSQL's.
pub(crate) fn has_native_equality(ty: &Type) -> bool {
    has_native_order(ty) || matches!(ty, Type::Numeric(Some((precision, _))) if *precision <= 38)
}

/// Whether Arrow's order of values of a type is PostgreSQL's, and so its equality.
pub(crate) fn has_native_order(ty: &Type) -> bool {
    match ty {
        Type::Bool
        | Type::Int2
        | Type::Int4
        | Type::Int8
        | Type::Text
        | Type::Varchar(_)
        | Type::Date
        | Type::Time
        | Type::Timestamp
        | Type::TimestampTz
        | Type::Uuid
        | Type::Bytea => true,
        // NaN and the sign of zero; scales; trailing blanks; months and days.
        Type::Float4 | Type::Float8 | Type::Numeric(_) | Type::Char(_) | Type::Interval => false,
    }
}

/// The Arrow type of the keys of a type.
pub(crate) fn key_type(ty: &Type) -> DataType {
    match ty {
        Type::Float4 | Type::Float8 => DataType::UInt64,
        Type::Numeric(_) => DataType::Binary,
        Type::Interval => DataType::Decimal128(38, 0),
        other => other.arrow(),
    }
}

/// Maps a double onto unsigned integers in PostgreSQL's order: NaN above everything, `-0` with `0`.
fn float_key(value: f64) -> u64 {
    if value.is_nan() {
        return u64::MAX;
    }
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// Appends bytes whose order is that of numbers, equal for equal ones: sign, exponent and digits.
fn write_numeric_key(out: &mut Vec<u8>, number: &Numeric) {
    const NEGATIVE: u8 = 1;
    const ZERO: u8 = 2;
    const POSITIVE: u8 = 3;
    const NOT_A_NUMBER: u8 = 4;
    let Numeric::Finite(number) = number else {
        out.push(NOT_A_NUMBER);
        return;
    };
    let (digits, scale) = number.normalized().into_bigint_and_exponent();
    let text = digits.to_string();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.as_str()),
    };
    if digits == "0" {
        out.push(ZERO);
        return;
    }
    out.push(if negative { NEGATIVE } else { POSITIVE });
    let start = out.len();
    // Digits before the point.
    let exponent = digits.len() as i64 - scale;
    out.extend_from_slice(&((exponent as u64) ^ (1 << 63)).to_be_bytes());
    out.extend_from_slice(digits.as_bytes());
    out.push(0);
    if negative {
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// The keys of a column.
fn key(array: &ArrayRef, ty: &Type) -> Result<ArrayRef> {
    let rows = 0..array.len();
    Ok(match ty {
        Type::Float4 => {
            let floats = array.as_primitive::<Float32Type>();
            Arc::new(UInt64Array::from_iter(floats.iter().map(|v| v.map(|v| float_key(f64::from(v))))))
        }
        Type::Float8 => {
            let floats = array.as_primitive::<Float64Type>();
            Arc::new(UInt64Array::from_iter(floats.iter().map(|v| v.map(float_key))))
        }
        Type::Char(_) => {
            let texts = array.as_string::<i32>();
            Arc::new(StringArray::from_iter(texts.iter().map(|v| v.map(|v| v.trim_end_matches(' ')))))
        }
        Type::Numeric(_) => {
            let mut keys = BinaryBuilder::with_capacity(array.len(), array.len() * 16);
            let mut bytes = Vec::new();
            for row in rows {
                match arrow_cell_to_value(array, row, ty) {
                    Value::Numeric(number) => {
                        bytes.clear();
                        write_numeric_key(&mut bytes, &number);
                        keys.append_value(&bytes);
                    }
                    _ => keys.append_null(),
                }
            }
            Arc::new(keys.finish())
        }
        Type::Interval => {
            let spans = rows.map(|row| match arrow_cell_to_value(array, row, ty) {
                Value::Interval(interval) => Some(interval.span()),
                _ => None,
            });
            let spans = Decimal128Array::from_iter(spans).with_precision_and_scale(38, 0);
            Arc::new(spans.map_err(|e| SqlError::internal(e.to_string()))?)
        }
        _ => array.clone(),
    })
}

/// Keys in which NULL is a value.
fn nullable_key(array: &ArrayRef, ty: &Type) -> Result<ArrayRef> {
    let keys = key(array, ty)?;
    let failed = |e: arrow::error::ArrowError| SqlError::internal(format!("a key of {ty}: {e}"));
    let converter = RowConverter::new(vec![SortField::new(keys.data_type().clone())]).map_err(failed)?;
    let rows = converter.convert_columns(&[keys]).map_err(failed)?;
    let bytes: BinaryArray = rows.try_into_binary().map_err(failed)?;
    Ok(Arc::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::compute::SortOptions;
    use carousel_engine::{array::values_to_array, interval::Interval, value::compare_as};

    fn numbers(texts: &[&str]) -> Vec<Value> {
        texts.iter().map(|t| Value::Numeric(Numeric::parse(t).expect("a number"))).collect()
    }

    /// Keys compare as the values that they stand for, and a key is NULL exactly for NULL.
    #[test]
    fn keys_compare_as_values() {
        let doubles =
            [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.5, -1.5, 1e-300, -2.0];
        let numerics = [
            "0",
            "0.00",
            "1",
            "1.0",
            "-1",
            "-1.00",
            "10",
            "100",
            "99.99",
            "-99.99",
            "-100",
            "0.001",
            "-0.001",
            "0.0011",
            "NaN",
            "123456789012345678901234567890123456789012345",
            "1.5",
            "1.49",
            "-1.49",
            "-1.5",
        ];
        let texts = ["", " ", "a", "a  ", "ab", "b", "A"].map(Value::text);
        let interval = |months, days, microseconds| Value::Interval(Interval { months, days, microseconds });
        let cases: Vec<(Type, Vec<Value>)> = vec![
            (Type::Float8, doubles.map(Value::Float8).into()),
            (Type::Float4, doubles.map(|d| Value::Float4(d as f32)).into()),
            (Type::Numeric(None), numbers(&numerics)),
            (Type::Numeric(Some((10, 3))), numbers(&["0.000", "1.000", "-1.000", "NaN", "12.345", "-0.001"])),
            (Type::Char(3), texts.to_vec()),
            (
                Type::Interval,
                vec![
                    interval(1, 0, 0),
                    interval(0, 30, 0),
                    interval(-1, 0, 0),
                    interval(0, 0, 1),
                    interval(0, 29, 5),
                ],
            ),
        ];
        for (ty, mut values) in cases {
            values.push(Value::Null);
            let array = values_to_array(&values, &ty).expect("an array");
            let keys = key(&array, &ty).expect("keys");
            assert_eq!(*keys.data_type(), key_type(&ty));
            let nullable = nullable_key(&array, &ty).expect("keys");
            let compare =
                arrow::array::make_comparator(&keys, &keys, SortOptions::default()).expect("comparable");
            let nullable = nullable.as_binary::<i32>();
            for a in 0..values.len() {
                assert_eq!(keys.is_null(a), values[a].is_null());
                for b in 0..values.len() {
                    let wanted = compare_as(&values[a], &values[b], &ty);
                    if !values[a].is_null() && !values[b].is_null() {
                        assert_eq!(compare(a, b), wanted, "{ty}: {:?} and {:?}", values[a], values[b]);
                    }
                    assert_eq!(nullable.value(a) == nullable.value(b), wanted.is_eq(), "{ty}");
                }
            }
        }
    }
}
