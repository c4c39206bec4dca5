//! `generate_series` in FROM: numbers and timestamps at equal distances, made as they are asked for.

use std::sync::Arc;

use arrow::{
    array::ArrayRef,
    datatypes::{Field as ArrowField, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use carousel_engine::{
    SqlError, SqlState, Type, Value,
    array::values_to_array,
    error::Result,
    expr::{ArgType, EvalContext, Expr, Function, columns, eval, eval_const},
    numeric::Numeric,
    value::compare_as,
};
use datafusion::{
    catalog::{TableProvider, streaming::StreamingTable},
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{stream::RecordBatchStreamAdapter, streaming::PartitionStream},
};
use futures::stream;
use sqlparser::ast;

use super::{
    from::Input,
    function::external,
    node::{Field, Kind, Node},
};
use crate::{
    expression::{Clause, Resolver, Term, literal},
    names::{Relation, Scope, ScopeColumn, at, fold, parts},
    parse::position_of,
    select::{Planner, unsupported},
};

/// The function's name.
const NAME: &str = "generate_series";
/// Rows of a batch.
const BATCH: usize = 8192;

/// A call of a function in FROM.
pub(crate) struct FunctionCall<'a> {
    pub(crate) name: &'a ast::ObjectName,
    pub(crate) arguments: &'a [ast::FunctionArg],
    pub(crate) with_ordinality: bool,
    pub(crate) alias: Option<&'a ast::TableAlias>,
}

impl Planner<'_> {
    /// The rows of a function in FROM.
    pub(crate) fn function_in_from(
        &mut self,
        call: &FunctionCall<'_>,
        around: Option<Arc<Scope>>,
    ) -> Result<Input> {
        let FunctionCall { name, arguments, with_ordinality, alias } = *call;
        let position = position_of(ast::Spanned::span(name));
        let known = match parts(name)?.as_slice() {
            [name] => name == NAME,
            [schema, name] => schema == "pg_catalog" && name == NAME,
            _ => false,
        };
        if !known {
            return Err(at(SqlError::unsupported("a function in FROM other than generate_series"), position));
        }
        // What stands before it can be referred to without LATERAL.
        let scope = Scope { outer: around, ..Scope::empty() };
        let bounds = self.resolve(&scope, Clause::FromFunction, |r| r.series(arguments, position))?;
        // Also a subquery stands there as a column.
        if bounds.iter().any(|bound| !columns(bound).is_empty()) {
            let what = "a function in FROM whose arguments refer to columns or have subqueries";
            return Err(at(SqlError::unsupported(what), position));
        }
        let ty = bounds[0].ty();
        let column = alias.map_or_else(|| NAME.to_owned(), |alias| fold(&alias.name));
        let mut fields = vec![Field::new(column, ty)];
        if with_ordinality {
            fields.push(Field::new("ordinality", Type::Int8));
        }
        let columns = fields.iter().enumerate();
        let columns = columns.map(|(index, field)| ScopeColumn {
            name: field.name.clone(),
            index,
            ty: field.ty.clone(),
            origin: None,
        });
        let mut relation =
            Relation { name: NAME.into(), is_table_name: false, table: None, columns: columns.collect() };
        if let Some(alias) = alias {
            relation = relation.renamed(alias)?;
        }
        Ok((Node { kind: Kind::Series(bounds), fields }, Scope::of(vec![relation])))
    }
}

impl Resolver<'_> {
    /// The first and the last value of a series and its step, of the types that PostgreSQL would choose.
    fn series(&mut self, arguments: &[ast::FunctionArg], position: Option<u32>) -> Result<Vec<Expr>> {
        let mut terms = Vec::with_capacity(3);
        for argument in arguments {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => terms.push(self.term(expr)?),
                _ => return unsupported("this form of argument"),
            }
        }
        let types: Vec<ArgType> = terms.iter().map(Term::arg_type).collect();
        let (ty, step) = series_type(&types).map_err(|error| at(error, position))?;
        if terms.len() == 2 {
            terms.push(Term::known(literal(Value::Int4(1), Type::Int4), None));
        }
        let types = [&ty, &ty, &step];
        terms.into_iter().zip(types).map(|(term, ty)| self.convert(term, ty)).collect()
    }
}

/// The type of a series and that of its step. Errors: 42883, and 42725 when several would do.
fn series_type(arguments: &[ArgType]) -> Result<(Type, Type)> {
    let known: Vec<&Type> = arguments
        .iter()
        .filter_map(|argument| match argument {
            ArgType::Known(ty) => Some(ty),
            ArgType::Unknown => None,
        })
        .collect();
    let has = |wanted: &dyn Fn(&Type) -> bool| known.iter().any(|ty| wanted(ty));
    let is_number = |ty: &Type| matches!(ty, Type::Int2 | Type::Int4 | Type::Int8 | Type::Numeric(_));
    let is_time = |ty: &Type| matches!(ty, Type::Date | Type::Timestamp | Type::TimestampTz);
    let error = |code, what: &str, hint: &str| {
        let types: Vec<String> = arguments.iter().map(ArgType::to_string).collect();
        SqlError::new(code, format!("function {NAME}({}) {what}", types.join(", ")))
            .with_hint(format!("{hint} You might need to add explicit type casts."))
    };
    let step_fits = || match arguments.get(2) {
        Some(ArgType::Known(ty)) => matches!(ty, Type::Interval | Type::Time),
        step => step.is_some(),
    };
    let bounds_fit = || {
        arguments[..2].iter().all(|bound| match bound {
            ArgType::Known(ty) => is_time(ty),
            ArgType::Unknown => true,
        })
    };
    let numbers = matches!(arguments.len(), 2 | 3) && known.iter().all(|ty| is_number(ty));
    if numbers && has(&|ty| matches!(ty, Type::Numeric(_))) {
        Ok((Type::Numeric(None), Type::Numeric(None)))
    } else if numbers && has(&|ty| *ty == Type::Int8) {
        Ok((Type::Int8, Type::Int8))
    } else if numbers && has(&|ty| *ty == Type::Int4) {
        Ok((Type::Int4, Type::Int4))
    } else if numbers {
        let hint = "Could not choose a best candidate function.";
        Err(error(SqlState(*b"42725"), "is not unique", hint))
    } else if arguments.len() == 3 && step_fits() && bounds_fit() {
        let is_local = has(&|ty| *ty == Type::Timestamp) && !has(&|ty| *ty == Type::TimestampTz);
        Ok((if is_local { Type::Timestamp } else { Type::TimestampTz }, Type::Interval))
    } else {
        let hint = "No function matches the given name and argument types.";
        Err(error(SqlState::UNDEFINED_FUNCTION, "does not exist", hint))
    }
}

/// A series whose bounds are known.
#[derive(Debug)]
struct Series {
    /// The next value, and how many came before it; `None` behind the last one.
    next: Option<(Value, i64)>,
    last: Value,
    step: Value,
    is_descending: bool,
    ty: Type,
    context: Arc<EvalContext>,
}

impl Series {
    /// By its bounds, which refer to no columns. Errors: theirs, and 22023 for a step of nothing or a bound that is no number.
    fn new(bounds: &[Expr], context: &Arc<EvalContext>) -> Result<Series> {
        let [first, last, step] = bounds else {
            return Err(SqlError::internal("a series without its three bounds"));
        };
        let (ty, step_ty) = (first.ty(), step.ty());
        let values = [first, last, step].map(|bound| eval_const(bound, context));
        let [first, last, step] = values;
        let (first, last, step) = (first?, last?, step?);
        let mut series =
            Series { next: None, last, step, is_descending: false, ty, context: context.clone() };
        if first.is_null() || series.last.is_null() || series.step.is_null() {
            return Ok(series);
        }
        let refused = |message: String| Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
        for (what, value) in
            [("start value", &first), ("stop value", &series.last), ("step size", &series.step)]
        {
            if matches!(value, Value::Numeric(Numeric::NaN)) {
                return refused(format!("{what} cannot be NaN"));
            }
        }
        let zero = match step_ty {
            Type::Int4 => Value::Int4(0),
            Type::Int8 => Value::Int8(0),
            Type::Interval => Value::Interval(Default::default()),
            _ => Value::Numeric(Numeric::parse("0")?),
        };
        match compare_as(&series.step, &zero, &step_ty) {
            std::cmp::Ordering::Equal => return refused("step size cannot equal zero".to_owned()),
            ordering => series.is_descending = ordering.is_lt(),
        }
        series.next = Some((first, 0));
        Ok(series)
    }

    /// The value behind one; `None` when its type has none.
    fn after(&self, value: &Value) -> Result<Option<Value>> {
        Ok(match (value, &self.step) {
            (Value::Int4(value), Value::Int4(step)) => value.checked_add(*step).map(Value::Int4),
            (Value::Int8(value), Value::Int8(step)) => value.checked_add(*step).map(Value::Int8),
            (value, step) => {
                let step_ty =
                    if matches!(step, Value::Interval(_)) { Type::Interval } else { self.ty.clone() };
                let args = vec![Expr::column(0, self.ty.clone()), Expr::column(1, step_ty)];
                let sum = Expr::Call { function: Function::Add, args, ty: self.ty.clone() };
                Some(eval(&sum, &[value.clone(), step.clone()][..], &self.context)?)
            }
        })
    }

    /// The next rows: values, and their numbers from 1 on. None behind the last one.
    fn batch(&mut self, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        let (mut values, mut numbers) = (Vec::new(), Vec::new());
        while values.len() < BATCH
            && let Some((value, before)) = self.next.take()
        {
            let order = compare_as(&value, &self.last, &self.ty);
            if if self.is_descending { order.is_lt() } else { order.is_gt() } {
                break;
            }
            self.next = self.after(&value)?.map(|next| (next, before + 1));
            values.push(value);
            numbers.push(Value::Int8(before + 1));
        }
        if values.is_empty() {
            return Ok(None);
        }
        let mut columns: Vec<ArrayRef> = vec![values_to_array(&values, &self.ty)?];
        if schema.fields().len() > 1 {
            columns.push(values_to_array(&numbers, &Type::Int8)?);
        }
        let batch = RecordBatch::try_new(schema.clone(), columns);
        batch.map(Some).map_err(|e| SqlError::internal(format!("{NAME}: {e}")))
    }
}

/// The table of a series, with columns of these names.
pub(crate) fn series_table(
    bounds: &[Expr],
    names: Vec<String>,
    context: &Arc<EvalContext>,
) -> Result<Arc<dyn TableProvider>> {
    let types = bounds.first().map(|first| first.ty().arrow()).into_iter().chain([Type::Int8.arrow()]);
    let fields = names.into_iter().zip(types).map(|(name, ty)| ArrowField::new(name, ty, true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let rows = SeriesRows { bounds: bounds.to_vec(), context: context.clone(), schema: schema.clone() };
    let table = StreamingTable::try_new(schema, vec![Arc::new(rows)]);
    Ok(Arc::new(table.map_err(|e| super::execute::sql_error(&e))?))
}

/// The rows of a series. That it cannot be made is found out when they are asked for.
#[derive(Debug)]
struct SeriesRows {
    bounds: Vec<Expr>,
    context: Arc<EvalContext>,
    schema: SchemaRef,
}

impl PartitionStream for SeriesRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = self.schema.clone();
        let (bounds, context) = (self.bounds.clone(), self.context.clone());
        let rows = stream::try_unfold(None, move |series| {
            let (schema, bounds, context) = (schema.clone(), bounds.clone(), context.clone());
            async move {
                // It has nothing to wait for: whoever asks must let others run, and may be ended then.
                tokio::task::yield_now().await;
                let mut series = match series {
                    Some(series) => series,
                    None => Series::new(&bounds, &context).map_err(external)?,
                };
                let batch = series.batch(&schema).map_err(external)?;
                Ok(batch.map(|batch| (batch, Some(series))))
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows))
    }
}
