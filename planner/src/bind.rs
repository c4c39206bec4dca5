//! From a plan to what is executed: parameters, session values, defaults, constants, key ranges.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, Int64Array},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use carousel_cluster::message::{Body, Data};
use carousel_engine::{
    SqlError, SqlState, TableId, TableSchema, Ts, Type, Value,
    aggregate::GroupTable,
    array::{BatchRow, ColumnBuilder, arrow_cell_to_value, values_to_array},
    error::Result,
    expr::{EvalContext, Expr, Function, can_fail, eval, eval_const, fold, qualifies, transform},
    operation::{
        Delete, Insert, InsertRows, OnConflict, Operation, OperationKind, Predicate, Read, ReadOutput,
        RowBatch, Top, Update,
    },
    position::{KeyRange, normalise, ranges_of_predicate},
    text::format_value,
};

use crate::{
    above::{Above, AbovePlan, Pipeline},
    copy::BadRow,
    expression::{Clause, Resolver, Shared, is_volatile, literal},
    fit::fit,
    names::Scope,
    parse::with_stack,
    plan::{
        DeletePlan, InsertPlan, InsertSelectPlan, Plan, QueryPlan, SESSION_VALUES, SessionValue, Source,
        UpdatePlan,
    },
    relational::{Relational, bind_relational},
    rewrite::{conjuncts, depth},
    settings::{IdSource, Settings},
};

/// Rows at more positions than this are sent to the range between the first and the last of them.
const MAX_POINTS: usize = 256;

/// What is left to do for a bound plan.
#[derive(Debug)]
pub enum Execution {
    /// Ask the storage processes and pour what comes back through `above`.
    Request(Box<Request>),
    /// Nothing is to be asked: these are the result's rows.
    Rows(Vec<RecordBatch>),
    /// Reads of several tables and what runs above them.
    Relational(Box<Relational>),
}

/// A message without its identity, and what to do with the answer.
#[derive(Debug)]
pub struct Request {
    /// The tables it names with the versions it was planned against.
    pub tables: Vec<(TableId, Ts)>,
    /// The keys it reads or writes: sorted, disjoint. When empty, no row can qualify: no message is needed, the answer
    /// is no rows, no groups and the count 0. (DDL is for every process, whatever its ranges.)
    pub ranges: Vec<KeyRange>,
    /// The body; `read_ts` and `replica_offset` are for the session to set, rows that are too large to travel in a
    /// message are for it to stage.
    pub body: Body,
    /// What runs above the scan.
    pub above: Above,
}

/// A parameter of EXECUTE, not yet evaluated.
#[derive(Clone, Debug)]
pub struct Argument {
    pub(crate) source: Arc<crate::parse::Source>,
    pub(crate) expression: Arc<crate::parse::Tree<sqlparser::ast::Expr>>,
}

/// Binds a plan that is marked *bind* ([`Plan::is_bindable`]).
///
/// `parameters` are of the types that [`crate::Planned::parameter_types`] gives. Errors are those that PostgreSQL would
/// find in constants and in rows to insert (22xxx, 23502); they are found before anything is submitted.
pub fn bind(
    plan: &Plan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Execution> {
    match plan {
        Plan::Query(query) => bind_query(query, parameters, settings, ids),
        Plan::Relational(plan) => {
            let bound = bind_relational(plan, parameters, settings, ids)?;
            Ok(Execution::Relational(Box::new(bound)))
        }
        Plan::CopyOut(copy) => bind(&copy.query, parameters, settings, ids),
        Plan::Insert(insert) => bind_insert(insert, parameters, settings, ids).map(request),
        Plan::Update(update) => bind_update(update, parameters, settings, ids).map(request),
        Plan::Delete(delete) => bind_delete(delete, parameters, settings, ids).map(request),
        Plan::Truncate(table) => {
            let above = Above::nothing();
            let context = settings.eval_context();
            Ok(request(write_request(
                table,
                vec![KeyRange::FULL],
                OperationKind::Truncate,
                false,
                above,
                context,
            )))
        }
        Plan::Ddl(ddl) => Ok(request(Request {
            tables: Default::default(),
            ranges: vec![KeyRange::FULL],
            body: Body::Ddl(ddl.ddl.clone()),
            above: Above::nothing(),
        })),
        other => Err(SqlError::internal(format!("{} is not for the storage processes", other.tag(0)))),
    }
}

fn request(request: Request) -> Execution {
    Execution::Request(Box::new(request))
}

/// Evaluates the parameters of EXECUTE, cast to the types of the prepared statement's parameters.
///
/// There must be as many as types. Error: 42804 when one cannot be stored as its parameter's type.
pub fn evaluate_arguments(
    arguments: &[Argument],
    types: &[Type],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Vec<Value>> {
    let scope = Scope::empty();
    let mut values = Vec::with_capacity(arguments.len());
    for (index, (argument, ty)) in arguments.iter().zip(types).enumerate() {
        let evaluate = || {
            let (mut shared, mut aggregates) = (Shared::default(), Vec::new());
            let (source, clause) = (&argument.source, Clause::Execute);
            let mut resolver = Resolver::new(source, &scope, settings, &mut shared, &mut aggregates, clause);
            let term = resolver.term(argument.expression.root())?;
            let from = term.arg_type();
            let expr = resolver.assign(term, ty, "").map_err(|error| match error.code {
                SqlState::DATATYPE_MISMATCH => error.with_message(format!(
                    "parameter ${} of type {} cannot be coerced to the expected type {}",
                    index + 1,
                    from,
                    crate::types::plain_name(ty)
                )),
                _ => error,
            })?;
            Binder::new(&[], settings, ids, &shared.session_values).constant(&expr)
        };
        values.push(with_stack(argument.expression.is_deep(), evaluate)?);
    }
    Ok(values)
}

/// Expressions that nest deeper than this are worked on with a stack of their own.
const DEEP: usize = 30;

fn is_deep(expr: &Expr) -> bool {
    depth(expr, DEEP + 1) > DEEP
}

/// Puts values into expressions.
pub(crate) struct Binder<'a> {
    parameters: &'a [Value],
    settings: &'a Settings,
    context: EvalContext,
    ids: &'a mut dyn IdSource,
    session_values: &'a [SessionValue],
    /// The random values so far, where each is drawn once for the statement.
    drawn: Option<BTreeMap<usize, Value>>,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(
        parameters: &'a [Value],
        settings: &'a Settings,
        ids: &'a mut dyn IdSource,
        session_values: &'a [SessionValue],
    ) -> Binder<'a> {
        Binder { parameters, settings, context: settings.eval_context(), ids, session_values, drawn: None }
    }

    /// Draws the random value of each place in the text once, however many copies of the place there are.
    pub(crate) fn drawing_once(self) -> Binder<'a> {
        Binder { drawn: Some(BTreeMap::new()), ..self }
    }

    fn session_value_at(&mut self, place: usize) -> Result<Option<Value>> {
        if let Some(drawn) = self.drawn.as_ref().and_then(|drawn| drawn.get(&place)) {
            return Ok(Some(drawn.clone()));
        }
        let values = self.session_values;
        let Some(value) = values.get(place) else { return Ok(None) };
        let result = self.session_value(value)?;
        if let (Some(drawn), true) = (&mut self.drawn, value.is_volatile()) {
            drawn.insert(place, result.clone());
        }
        Ok(Some(result))
    }

    /// Whether the expression is to be evaluated anew for each row.
    pub(crate) fn is_volatile(&self, expr: &Expr) -> bool {
        is_volatile(expr, self.session_values)
    }

    fn session_value(&mut self, value: &SessionValue) -> Result<Value> {
        Ok(match value {
            SessionValue::User => Value::text(&self.settings.user[..]),
            SessionValue::Database => Value::text(&self.settings.database[..]),
            SessionValue::TransactionTimestamp => Value::TimestampTz(self.settings.transaction_timestamp),
            SessionValue::StatementTimestamp | SessionValue::ClockTimestamp => {
                Value::TimestampTz(self.settings.statement_timestamp)
            }
            SessionValue::BackendPid => Value::Int4(self.settings.backend_pid),
            SessionValue::Setting { name, missing_ok } => match self.settings.variables.get(name) {
                Some(setting) => Value::text(setting.as_str()),
                None if *missing_ok => Value::Null,
                None => {
                    return Err(SqlError::new(
                        SqlState::UNDEFINED_OBJECT,
                        format!("unrecognized configuration parameter \"{name}\""),
                    ));
                }
            },
            SessionValue::RandomUuid => Value::Uuid(self.ids.uuid()),
            SessionValue::Random => Value::Float8(self.ids.random()),
        })
    }

    fn substitute(&mut self, expr: &Expr) -> Result<Expr> {
        transform(expr.clone(), &mut |part| match part {
            Expr::Parameter { index, ty } => {
                let value = if index >= SESSION_VALUES {
                    self.session_value_at(index - SESSION_VALUES)?
                } else {
                    self.parameters.get(index - 1).cloned()
                };
                match value {
                    Some(value) => Ok(literal(value, ty)),
                    None => Err(SqlError::new(
                        SqlState::UNDEFINED_PARAMETER,
                        format!("there is no parameter ${index}"),
                    )),
                }
            }
            other => Ok(other),
        })
    }

    /// The expression without parameters, its constant parts folded.
    pub(crate) fn expr(&mut self, expr: &Expr) -> Result<Expr> {
        match expr {
            Expr::Column { .. } => Ok(expr.clone()),
            _ => with_stack(is_deep(expr), || fold(&self.substitute(expr)?, &self.context)),
        }
    }

    fn exprs(&mut self, exprs: &[Expr]) -> Result<Vec<Expr>> {
        exprs.iter().map(|e| self.expr(e)).collect()
    }

    /// The value of an expression without columns.
    pub(crate) fn constant(&mut self, expr: &Expr) -> Result<Value> {
        match expr {
            Expr::Literal { value, .. } => Ok(value.clone()),
            _ => with_stack(is_deep(expr), || eval_const(&self.substitute(expr)?, &self.context)),
        }
    }

    fn returning(&mut self, returning: Option<&[Expr]>) -> Result<Option<Vec<Expr>>> {
        returning.map(|exprs| self.exprs(exprs)).transpose()
    }

    fn on_conflict(&mut self, on_conflict: &OnConflict) -> Result<OnConflict> {
        let OnConflict::Update { assignments, predicate } = on_conflict else {
            return Ok(on_conflict.clone());
        };
        let assignments = assignments.iter().map(|(c, e)| Ok((*c, self.expr(e)?)));
        let assignments = assignments.collect::<Result<Vec<_>>>()?;
        Ok(OnConflict::Update { assignments, predicate: self.exprs(predicate)? })
    }

    /// The conjuncts in the form that can be indexed; one that is constant and true is left out, one that is constant
    /// and not true stands alone.
    pub(crate) fn predicate(&mut self, predicate: &[Expr]) -> Result<Predicate> {
        let mut bound = Vec::with_capacity(predicate.len());
        for conjunct in predicate {
            for conjunct in conjuncts(self.expr(conjunct)?).into_iter().flat_map(fit) {
                match conjunct {
                    Expr::Literal { value: Value::Bool(true), .. } => {}
                    Expr::Literal { .. } => return Ok(vec![literal(Value::Bool(false), Type::Bool)]),
                    other => bound.push(other),
                }
            }
        }
        Ok(bound)
    }

    /// LIMIT or OFFSET, which the function checks.
    pub(crate) fn count(&mut self, expr: Option<&Expr>, function: Function) -> Result<Option<u64>> {
        let Some(expr) = expr else { return Ok(None) };
        Ok(self.constant(&checked_count(function, expr.clone()))?.as_i64().map(i64::unsigned_abs))
    }

    fn above(&mut self, pipeline: &Arc<Pipeline>) -> Result<Above> {
        let plan = pipeline.plan();
        let limit = self.count(plan.limit.as_ref(), Function::LimitCount)?;
        let offset = self.count(plan.offset.as_ref(), Function::OffsetCount)?.unwrap_or(0);
        let pipeline = pipeline.bind(|exprs| self.exprs(exprs))?;
        Ok(Above::new(pipeline, limit, offset, self.context.clone(), &self.settings.memory))
    }
}

/// LIMIT or OFFSET: an error if it is negative.
pub(crate) fn checked_count(function: Function, count: Expr) -> Expr {
    Expr::Call { function, args: vec![count], ty: Type::Int8 }
}

/// The key ranges of a predicate: none when it is never true.
pub(crate) fn ranges(table: &TableSchema, predicate: &[Expr]) -> Vec<KeyRange> {
    match predicate {
        [Expr::Literal { value: Value::Bool(false), .. }] => Vec::new(),
        _ => ranges_of_predicate(&table.partitioning, predicate),
    }
}

fn bind_query(
    query: &QueryPlan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Execution> {
    let mut binder = Binder::new(parameters, settings, ids, &query.session_values);
    let mut above = binder.above(&query.above)?;
    let context = settings.eval_context();
    let (table, predicate, output) = match &query.source {
        Source::Table { table, predicate, output } => (table, predicate, output),
        Source::Rows { rows, predicate, group_by } => {
            let predicate = binder.predicate(predicate)?;
            let qualifies = qualifies(&predicate, &[] as &[Value], &context)?;
            match group_by {
                Some(group_by) => {
                    let group_by = binder.exprs(group_by)?;
                    let calls = binder.aggregates(above.plan())?;
                    let mut table = GroupTable::for_read(&group_by, &calls);
                    if qualifies {
                        table.update(&one_row()?, &group_by, &context)?;
                    }
                    above.groups(table.into_groups())?;
                }
                None if qualifies => {
                    let batch = rows_batch(&mut binder, rows, &above.plan().input)?;
                    let mut output = Vec::new();
                    output.extend(above.rows(batch)?.output);
                    output.extend(above.finish()?.0);
                    return Ok(Execution::Rows(output));
                }
                None => {}
            }
            return Ok(Execution::Rows(above.finish()?.0));
        }
    };
    let predicate = binder.predicate(predicate)?;
    let output = match output {
        ReadOutput::Rows { projection, top: _ } => {
            let projection = binder.exprs(projection)?;
            let top = match above.limit_and_offset() {
                (Some(limit), offset) if !above.plan().distinct && above.plan().distinct_on.is_empty() => {
                    Some(Top { keys: above.plan().sort.clone(), limit: limit.saturating_add(offset) })
                }
                _ => None,
            };
            ReadOutput::Rows { projection, top }
        }
        ReadOutput::Groups { group_by, aggregates: _, top: _ } => {
            let group_by = binder.exprs(group_by)?;
            let aggregates = binder.aggregates(above.plan())?;
            let top = above.plan().group_keys().and_then(|keys| match above.limit_and_offset() {
                (Some(limit), offset) => Some(Top { keys, limit: limit.saturating_add(offset) }),
                (None, _) => None,
            });
            ReadOutput::Groups { group_by, aggregates, top }
        }
        ReadOutput::ContentHash => ReadOutput::ContentHash,
    };
    let ranges = ranges(table, &predicate);
    let kind = OperationKind::Read(Read { predicate, output });
    Ok(request(write_request(table, ranges, kind, false, above, context)))
}

impl Binder<'_> {
    /// The aggregates with their arguments and filters bound.
    fn aggregates(&mut self, plan: &AbovePlan) -> Result<Vec<carousel_engine::aggregate::AggregateCall>> {
        let mut calls = plan.groups.as_ref().map(|(_, calls)| calls.clone()).unwrap_or_default();
        for call in &mut calls {
            call.argument = call.argument.as_ref().map(|e| self.expr(e)).transpose()?;
            call.filter = call.filter.as_ref().map(|e| self.expr(e)).transpose()?;
            call.further = call.further.iter().map(|e| self.expr(e)).collect::<Result<_>>()?;
        }
        Ok(calls)
    }
}

/// One row without columns.
fn one_row() -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(Arc::new(arrow::datatypes::Schema::empty()), Vec::new(), &options)
        .map_err(|e| SqlError::internal(e.to_string()))
}

pub(crate) fn rows_batch(binder: &mut Binder<'_>, rows: &[Vec<Expr>], types: &[Type]) -> Result<RecordBatch> {
    let mut columns: Vec<Vec<Value>> = vec![Vec::with_capacity(rows.len()); types.len()];
    for row in rows {
        for (column, expr) in columns.iter_mut().zip(row) {
            column.push(binder.constant(expr)?);
        }
    }
    let arrays =
        columns.iter().zip(types).map(|(c, ty)| values_to_array(c, ty)).collect::<Result<Vec<ArrayRef>>>()?;
    let fields: Vec<_> = types.iter().map(|ty| arrow::datatypes::Field::new("", ty.arrow(), true)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::new(arrow::datatypes::Schema::new(fields)), arrays, &options)
        .map_err(|e| SqlError::internal(e.to_string()))
}

/// A request for one operation on one table.
fn write_request(
    table: &TableSchema,
    ranges: Vec<KeyRange>,
    kind: OperationKind,
    fallible: bool,
    above: Above,
    context: EvalContext,
) -> Request {
    let operation = Arc::new(Operation { table: table.id, context, kind });
    Request {
        tables: vec![(table.id, table.version)],
        ranges,
        body: Body::Data(Data { fallible, ..Data::new(operation) }),
        above,
    }
}

/// A request that inserts rows.
pub(crate) fn insert_request(
    table: &TableSchema,
    rows: RowBatch,
    on_conflict: OnConflict,
    returning: Option<Vec<Expr>>,
    above: Above,
    context: EvalContext,
) -> Request {
    let mut positions = rows.positions.clone();
    positions.sort_unstable();
    positions.dedup();
    let ranges = match (positions.first(), positions.last()) {
        (Some(first), Some(last)) if positions.len() > MAX_POINTS => vec![KeyRange::new(*first, *last)],
        _ => normalise(positions.into_iter().map(KeyRange::point).collect()),
    };
    let has_key = !table.primary_key.is_empty();
    let fallible =
        (has_key && !matches!(on_conflict, OnConflict::Nothing)) || returning.iter().flatten().any(can_fail);
    let kind = OperationKind::Insert(Insert { rows: InsertRows::Inline(rows), on_conflict, returning });
    write_request(table, ranges, kind, fallible, above, context)
}

fn bind_insert(
    insert: &InsertPlan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Request> {
    let InsertPlan { table, rows, on_conflict, returning, above, session_values } = insert;
    let context = settings.eval_context();
    let visible = table.visible_columns();
    let mut columns: Vec<Vec<Value>> = vec![Vec::with_capacity(rows.len()); visible.len()];
    let mut binder = Binder::new(parameters, settings, ids, session_values);
    for row in rows {
        let values = row.iter().map(|e| binder.constant(e)).collect::<Result<Vec<Value>>>()?;
        if let Some(column) = (0..visible.len()).find(|c| visible[*c].not_null && values[*c].is_null()) {
            return Err(not_null_violation(table, column, &values, &context));
        }
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let (returning, on_conflict) =
        (binder.returning(returning.as_deref())?, binder.on_conflict(on_conflict)?);
    let above = binder.above(above)?;
    let arrays = columns
        .iter()
        .zip(visible)
        .map(|(values, c)| values_to_array(values, &c.ty))
        .collect::<Result<_>>()?;
    let rows = complete_rows(table, arrays, rows.len(), 0, &context, ids).map_err(|bad| bad.error)?;
    Ok(insert_request(table, rows, on_conflict, returning, above, context))
}

/// The write of INSERT … SELECT, for the rows that its query gave.
///
/// Errors are those of rows to insert (22xxx, 23502).
pub fn bind_insert_select(
    plan: &InsertSelectPlan,
    selected: &[RecordBatch],
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Execution> {
    let InsertPlan { table, rows, on_conflict, returning, above, session_values } = &plan.insert;
    let [row] = rows.as_slice() else { return Err(SqlError::internal("a row that is no pattern")) };
    let context = settings.eval_context();
    let visible = table.visible_columns();
    let mut binder = Binder::new(parameters, settings, ids, session_values);
    let count: usize = selected.iter().map(RecordBatch::num_rows).sum();
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(visible.len());
    for (expr, column) in row.iter().zip(visible) {
        let fixed = if binder.is_volatile(expr) { None } else { Some(binder.expr(expr)?) };
        let mut builder = ColumnBuilder::with_capacity(&column.ty, count);
        for batch in selected {
            for place in 0..batch.num_rows() {
                let value = match &fixed {
                    Some(expr) => eval(expr, &BatchRow::new(batch, place), &context)?,
                    None => binder.constant(expr)?,
                };
                builder.append(&value)?;
            }
        }
        arrays.push(builder.finish());
    }
    let (returning, on_conflict) =
        (binder.returning(returning.as_deref())?, binder.on_conflict(on_conflict)?);
    let above = binder.above(above)?;
    let rows = complete_rows(table, arrays, count, 0, &context, ids).map_err(|bad| bad.error)?;
    Ok(request(insert_request(table, rows, on_conflict, returning, above, context)))
}

/// Whole rows from the visible columns: NOT NULL checked, with hidden identifiers, positions and ordinals.
pub(crate) fn complete_rows(
    table: &TableSchema,
    mut arrays: Vec<ArrayRef>,
    row_count: usize,
    first_ordinal: u64,
    context: &EvalContext,
    ids: &mut dyn IdSource,
) -> Result<RowBatch, BadRow> {
    let visible = table.visible_columns();
    let mut first_null: Option<(usize, usize)> = None;
    for (column, array) in arrays.iter().enumerate() {
        if visible[column].not_null && array.null_count() > 0 {
            let row = (0..array.len()).find(|row| array.is_null(*row)).unwrap_or(0);
            if first_null.is_none_or(|(before, _)| row < before) {
                first_null = Some((row, column));
            }
        }
    }
    if let Some((row, column)) = first_null {
        let values: Vec<Value> =
            arrays.iter().zip(visible).map(|(array, c)| arrow_cell_to_value(array, row, &c.ty)).collect();
        return Err(BadRow { row, error: not_null_violation(table, column, &values, context) });
    }
    if table.row_id().is_some() {
        arrays.push(Arc::new(Int64Array::from_iter_values((0..row_count).map(|_| ids.row_id()))));
    }
    let rows = RecordBatch::try_new(table.arrow(), arrays)
        .map_err(|e| BadRow { row: 0, error: SqlError::internal(format!("rows of {}: {e}", table.name)) })?;
    let positions = table.partitioning.positions(&table.columns, &rows);
    let ordinals = (first_ordinal..first_ordinal + row_count as u64).collect();
    Ok(RowBatch { rows, positions, ordinals })
}

/// 23502 with the failing row.
fn not_null_violation(
    table: &TableSchema,
    column: usize,
    values: &[Value],
    context: &EvalContext,
) -> SqlError {
    /// PostgreSQL cuts values to this many bytes.
    const MAX_SHOWN: usize = 64;
    let shown = values.iter().zip(table.visible_columns()).map(|(value, column)| match value {
        Value::Null => "null".to_owned(),
        value => {
            let mut text = format_value(value, &column.ty, context);
            if text.len() > MAX_SHOWN {
                let mut end = MAX_SHOWN;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                text.truncate(end);
                text.push_str("...");
            }
            text
        }
    });
    let shown: Vec<String> = shown.collect();
    let name = &table.columns[column].name;
    let mut error = SqlError::new(
        SqlState::NOT_NULL_VIOLATION,
        format!(
            "null value in column \"{name}\" of relation \"{}\" violates not-null constraint",
            table.name
        ),
    )
    .with_detail(format!("Failing row contains ({}).", shown.join(", ")));
    error.table = Some(table.name.clone());
    error.column = Some(name.clone());
    error
}

fn bind_update(
    update: &UpdatePlan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Request> {
    let UpdatePlan { table, predicate, assignments, returning, above, session_values } = update;
    let mut binder = Binder::new(parameters, settings, ids, session_values);
    let predicate = binder.predicate(predicate)?;
    let assignments = assignments.iter().map(|(column, expr)| Ok((*column, binder.expr(expr)?)));
    let assignments = assignments.collect::<Result<Vec<(usize, Expr)>>>()?;
    let returning = returning.as_ref().map(|r| binder.exprs(r)).transpose()?;
    let above = binder.above(above)?;
    let fallible = predicate.iter().any(can_fail)
        || assignments.iter().any(|(column, expr)| {
            can_fail(expr) || (table.columns[*column].not_null && is_nullable(expr, table))
        })
        || returning.iter().flatten().any(can_fail);
    let ranges = ranges(table, &predicate);
    let kind = OperationKind::Update(Update { predicate, assignments, returning });
    Ok(write_request(table, ranges, kind, fallible, above, settings.eval_context()))
}

fn bind_delete(
    delete: &DeletePlan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Request> {
    let DeletePlan { table, predicate, returning, above, session_values } = delete;
    let mut binder = Binder::new(parameters, settings, ids, session_values);
    let predicate = binder.predicate(predicate)?;
    let returning = returning.as_ref().map(|r| binder.exprs(r)).transpose()?;
    let above = binder.above(above)?;
    let fallible = predicate.iter().chain(returning.iter().flatten()).any(can_fail);
    let ranges = ranges(table, &predicate);
    let kind = OperationKind::Delete(Delete { predicate, returning });
    Ok(write_request(table, ranges, kind, fallible, above, settings.eval_context()))
}

/// Whether an expression may be NULL for some row of the table.
fn is_nullable(expr: &Expr, table: &TableSchema) -> bool {
    let nullable = |e: &Expr| is_nullable(e, table);
    match expr {
        Expr::Literal { value, .. } => value.is_null(),
        Expr::Column { index, .. } => !table.columns.get(*index).is_some_and(|c| c.not_null),
        Expr::Cast { expr, to, .. } => *to == Type::Time || nullable(expr),
        Expr::Compare { left, right, .. } => nullable(left) || nullable(right),
        Expr::IsNull { .. } | Expr::IsTruth { .. } | Expr::IsDistinct { .. } => false,
        Expr::Not(operand) => nullable(operand),
        Expr::And(operands) | Expr::Or(operands) => operands.iter().any(nullable),
        Expr::Coalesce { args, .. } => args.iter().all(nullable),
        Expr::Case { branches, otherwise, .. } => {
            branches.iter().any(|(_, result)| nullable(result)) || otherwise.as_deref().is_none_or(nullable)
        }
        Expr::Call { function, args, .. } => {
            let total = matches!(
                function,
                Function::Add
                    | Function::Subtract
                    | Function::Multiply
                    | Function::Divide
                    | Function::Modulo
                    | Function::Negate
                    | Function::Concat
                    | Function::Lower
                    | Function::Upper
                    | Function::Abs
            );
            !total || args.iter().any(nullable)
        }
        Expr::InList { .. } | Expr::Like { .. } | Expr::Parameter { .. } => true,
    }
}
