//! From the algebra to a DataFusion plan.

use std::sync::Arc;

use arrow::{datatypes::DataType, record_batch::RecordBatch};
use carousel_engine::{
    SqlError, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    array::values_to_array,
    error::Result,
    expr::{CompareOp, EvalContext, Expr, columns, remap_columns},
    operation::SortKey,
};
use datafusion::{
    catalog::TableProvider,
    common::{Column, JoinType, NullEquality, ScalarValue, TableReference},
    datasource::{MemTable, provider_as_source},
    error::DataFusionError,
    functions_window::{cume_dist, lead_lag, nth_value, ntile, rank, row_number},
    logical_expr::{
        AggregateUDF, Cast, Expr as Native, LogicalPlan, LogicalPlanBuilder, ScalarUDF, Union, Window,
        WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition, WindowUDF,
        expr::{AggregateFunction as NativeAggregate, Sort, WindowFunction as NativeWindow},
    },
};

use super::{
    aggregate::EngineAggregate,
    function::{EngineFunction, Work, has_native_equality, has_native_order, key_type, narrowed},
    node::{Call, Field, JoinKind, Kind, Node},
    scan::{Reader, ScannedTable},
    series::series_table,
    shared::SharedTable,
    window::{Bound, Frame, OrderKey, Units, WindowCall, WindowFunction},
};
use crate::{display::Printer, expression::literal};

/// Makes a plan of a bound tree.
pub(crate) fn lower(
    node: &Node,
    context: &Arc<EvalContext>,
    reader: &Arc<dyn Reader>,
) -> Result<LogicalPlan> {
    let mut lowering = Lowering { context, reader, count: 0, shared: Vec::new() };
    let Lowered { plan, columns } = lowering.node(node)?;
    let outputs = columns.into_iter().zip(&node.fields).map(|(column, field)| {
        let name = lowering.name(&field.name);
        Native::Column(column).alias(name)
    });
    let outputs: Vec<Native> = outputs.collect();
    if outputs.is_empty() {
        return Ok(plan);
    }
    LogicalPlanBuilder::from(plan).project(outputs).and_then(LogicalPlanBuilder::build).map_err(failed)
}

/// An error of DataFusion while the plan is made.
fn failed(error: DataFusionError) -> SqlError {
    super::execute::sql_error(&error)
}

struct Lowering<'l> {
    context: &'l Arc<EvalContext>,
    reader: &'l Arc<dyn Reader>,
    /// Names given so far.
    count: usize,
    /// What is computed once.
    shared: Vec<(Arc<Node>, Arc<SharedTable>)>,
}

/// A plan, and which of its columns are those of the node.
struct Lowered {
    plan: LogicalPlan,
    columns: Vec<Column>,
}

fn build(builder: Result<LogicalPlanBuilder, DataFusionError>) -> Result<LogicalPlan> {
    builder.and_then(LogicalPlanBuilder::build).map_err(failed)
}

fn unqualified(name: String) -> Column {
    Column::new(None::<TableReference>, name)
}

/// A value as DataFusion knows it.
fn scalar(value: &Value, ty: &Type) -> Result<ScalarValue> {
    let array = values_to_array(std::slice::from_ref(value), ty)?;
    ScalarValue::try_from_array(&array, 0).map_err(failed)
}

fn as_count(expr: &Option<Expr>) -> Option<usize> {
    match expr {
        Some(Expr::Literal { value, .. }) => value.as_i64().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    }
}

fn is_never(conjunct: &Expr) -> bool {
    matches!(conjunct, Expr::Literal { value: Value::Bool(false) | Value::Null, .. })
}

impl Lowering<'_> {
    /// A name that no other column has.
    fn name(&mut self, base: &str) -> String {
        self.count += 1;
        format!("{base}#{}", self.count)
    }

    fn node(&mut self, node: &Node) -> Result<Lowered> {
        stacker::maybe_grow(256 << 10, 4 << 20, || self.node_inner(node))
    }

    fn node_inner(&mut self, node: &Node) -> Result<Lowered> {
        match &node.kind {
            Kind::Scan { table, predicate } => {
                let name = TableReference::bare(self.name(&table.name));
                let provider = ScannedTable::new(
                    table.clone(),
                    predicate.clone(),
                    self.context.clone(),
                    self.reader.clone(),
                );
                let source = provider_as_source(Arc::new(provider));
                let plan = build(LogicalPlanBuilder::scan(name.clone(), source, None))?;
                let columns = node.fields.iter().zip(table.visible_columns());
                let columns = columns.map(|(_, c)| Column::new(Some(name.clone()), &c.name)).collect();
                Ok(Lowered { plan, columns })
            }
            Kind::Groups { table, predicate, keys, calls } => {
                let name = TableReference::bare(self.name(&table.name));
                let names = node.fields.iter().map(|f| (self.name(&f.name), f.ty.clone()));
                let names: Vec<(String, Type)> = names.collect();
                let provider = ScannedTable::new(
                    table.clone(),
                    predicate.clone(),
                    self.context.clone(),
                    self.reader.clone(),
                )
                .grouped(keys.clone(), calls.clone(), &names);
                let source = provider_as_source(Arc::new(provider));
                let plan = build(LogicalPlanBuilder::scan(name.clone(), source, None))?;
                let columns = names.into_iter().map(|(n, _)| Column::new(Some(name.clone()), n)).collect();
                Ok(Lowered { plan, columns })
            }
            Kind::Rows(_) => Err(SqlError::internal("rows that were not bound")),
            Kind::Batch(batch) if node.fields.is_empty() => {
                let plan = build(Ok(LogicalPlanBuilder::empty(batch.num_rows() == 1)))?;
                Ok(Lowered { plan, columns: Vec::new() })
            }
            Kind::Batch(batch) => self.rows(batch, "values", &node.fields),
            Kind::System(view) => {
                let batch = view.batch(self.reader.system(*view))?;
                self.rows(&batch, view.name(), &node.fields)
            }
            Kind::Series(bounds) => {
                let names: Vec<String> = node.fields.iter().map(|field| self.name(&field.name)).collect();
                let table = series_table(bounds, names.clone(), self.context)?;
                self.table("series", table, names)
            }
            Kind::Shared(input) => self.shared(input),
            Kind::Filter { input, predicate } => {
                let Lowered { plan, columns } = self.node(input)?;
                let condition = self.condition(predicate, &columns, &input.fields)?;
                let plan = build(LogicalPlanBuilder::from(plan).filter(condition))?;
                Ok(Lowered { plan, columns })
            }
            Kind::Project { input, exprs } => self.project(input, exprs, &node.fields),
            Kind::Join { kind, left, right, condition } => self.join(*kind, left, right, condition),
            Kind::Aggregate { input, keys, calls } => {
                let below = self.node(input)?;
                self.aggregate(below, &input.fields, keys, calls)
            }
            Kind::Distinct { input } => {
                let below = self.node(input)?;
                let keys: Vec<Expr> = (0..input.width()).map(|c| input.column(c)).collect();
                self.aggregate(below, &input.fields, &keys, &[])
            }
            Kind::Window { input, calls } => self.window(input, calls),
            Kind::Union { inputs } => self.union(inputs, &node.fields),
            Kind::Sort { input, keys, limit, offset } => self.sort(input, keys, limit, offset),
        }
    }

    /// One of the places of what is computed once.
    fn shared(&mut self, input: &Arc<Node>) -> Result<Lowered> {
        let known = self.shared.iter().find(|(node, _)| Arc::ptr_eq(node, input));
        let table = match known.map(|(_, table)| table.clone()) {
            Some(table) => table,
            None => {
                let below = self.node(input)?;
                let mut natives: Vec<Native> = below.columns.into_iter().map(Native::Column).collect();
                let mut names: Vec<String> = input.fields.iter().map(|f| self.name(&f.name)).collect();
                if natives.is_empty() {
                    // Only the number of rows matters.
                    natives.push(Native::Literal(ScalarValue::Boolean(Some(true)), None));
                    names.push(self.name("row"));
                }
                let plan = self.named(below.plan, natives, names)?.plan;
                let table = Arc::new(SharedTable::new(self.shared.len() + 1, plan, input.is_deep()));
                self.shared.push((input.clone(), table.clone()));
                table
            }
        };
        let name = TableReference::bare(self.name("shared"));
        let schema = table.schema();
        let columns = schema.fields().iter().take(input.width());
        let columns = columns.map(|field| Column::new(Some(name.clone()), field.name())).collect();
        let plan = build(LogicalPlanBuilder::scan(name, provider_as_source(table.clone()), None))?;
        Ok(Lowered { plan, columns })
    }

    /// Rows that are known.
    fn rows(&mut self, batch: &RecordBatch, name: &str, fields: &[Field]) -> Result<Lowered> {
        let names: Vec<String> = fields.iter().map(|field| self.name(&field.name)).collect();
        let named = names.iter().zip(fields);
        let fields: Vec<arrow::datatypes::Field> =
            named.map(|(n, f)| arrow::datatypes::Field::new(n, f.ty.arrow(), true)).collect();
        let schema = Arc::new(arrow::datatypes::Schema::new(fields));
        let batch = RecordBatch::try_new(schema.clone(), batch.columns().to_vec())
            .map_err(|e| SqlError::internal(format!("rows that are known: {e}")))?;
        let table = MemTable::try_new(schema, vec![vec![batch]]).map_err(failed)?;
        self.table(name, Arc::new(table), names)
    }

    /// A table with these columns.
    fn table(&mut self, name: &str, table: Arc<dyn TableProvider>, columns: Vec<String>) -> Result<Lowered> {
        let name = TableReference::bare(self.name(name));
        let plan = build(LogicalPlanBuilder::scan(name.clone(), provider_as_source(table), None))?;
        let columns = columns.into_iter().map(|column| Column::new(Some(name.clone()), column)).collect();
        Ok(Lowered { plan, columns })
    }

    /// An expression over columns with these names and types.
    fn expr(&self, expr: &Expr, columns: &[Column], fields: &[Field]) -> Result<Native> {
        match expr {
            Expr::Column { index, .. } => self.column(*index, columns),
            Expr::Literal { value, ty } => Ok(Native::Literal(scalar(value, ty)?, None)),
            _ => {
                let (used, exprs) = narrowed(std::slice::from_ref(expr));
                let text = self.text(std::slice::from_ref(expr), fields);
                let work = exprs.into_iter().next().map(Work::Expr);
                let work = work.ok_or_else(|| SqlError::internal("an expression was lost"))?;
                self.call(text, work, &used, columns, fields)
            }
        }
    }

    /// Whether every conjunct is true.
    fn condition(&self, predicate: &[Expr], columns: &[Column], fields: &[Field]) -> Result<Native> {
        if predicate.iter().any(is_never) {
            return Ok(Native::Literal(ScalarValue::Boolean(Some(false)), None));
        }
        let (used, exprs) = narrowed(predicate);
        let text = self.text(predicate, fields);
        self.call(text, Work::Predicate(exprs), &used, columns, fields)
    }

    fn text(&self, exprs: &[Expr], fields: &[Field]) -> String {
        let names: Vec<String> = fields.iter().map(|f| f.name.clone()).collect();
        let printer = Printer { names: &names, context: self.context };
        exprs.iter().map(|e| printer.expr(e)).collect::<Vec<_>>().join(" AND ")
    }

    fn call(
        &self,
        name: String,
        work: Work,
        used: &[usize],
        columns: &[Column],
        fields: &[Field],
    ) -> Result<Native> {
        let mut types = Vec::with_capacity(used.len());
        let mut arguments = Vec::with_capacity(used.len());
        for index in used {
            arguments.push(self.column(*index, columns)?);
            types.push(fields[*index].ty.clone());
        }
        let function = EngineFunction::new(name, work, types, self.context, self.reader);
        Ok(ScalarUDF::from(function).call(arguments))
    }

    fn column(&self, index: usize, columns: &[Column]) -> Result<Native> {
        let column = columns.get(index).cloned();
        column.map(Native::Column).ok_or_else(|| SqlError::internal(format!("no column {index}")))
    }

    /// The key of a native expression, unless the values themselves will do.
    fn key_of(&self, native: Native, ty: &Type, is_native: bool, nullable: bool) -> Native {
        if is_native && !nullable {
            return native;
        }
        let work = if nullable { Work::NullableKey } else { Work::Key };
        let function =
            EngineFunction::new("key".to_owned(), work, vec![ty.clone()], self.context, self.reader);
        ScalarUDF::from(function).call(vec![native])
    }

    fn project(&mut self, input: &Node, exprs: &[Expr], fields: &[Field]) -> Result<Lowered> {
        let below = self.node(input)?;
        // Columns alone are only other names.
        if exprs.iter().all(|e| matches!(e, Expr::Column { .. })) {
            let columns = exprs.iter().filter_map(|e| match e {
                Expr::Column { index, .. } => below.columns.get(*index).cloned(),
                _ => None,
            });
            let columns: Vec<Column> = columns.collect();
            if columns.len() == exprs.len() {
                return Ok(Lowered { plan: below.plan, columns });
            }
        }
        let natives = exprs.iter().map(|e| self.expr(e, &below.columns, &input.fields));
        let natives = natives.collect::<Result<Vec<Native>>>()?;
        let names: Vec<String> = fields.iter().map(|f| self.name(&f.name)).collect();
        self.named(below.plan, natives, names)
    }

    /// A projection with these names.
    fn named(&self, plan: LogicalPlan, natives: Vec<Native>, names: Vec<String>) -> Result<Lowered> {
        let columns = names.iter().cloned().map(unqualified).collect();
        let outputs: Vec<Native> = natives.into_iter().zip(names).map(|(e, n)| e.alias(n)).collect();
        let plan = build(LogicalPlanBuilder::from(plan).project(outputs))?;
        Ok(Lowered { plan, columns })
    }

    /// An input of an inner join, where those keys are computed that are of several columns. DataFusion takes neighbouring inner
    /// joins for one and orders their inputs anew; a key that is of several of those it would forget.
    fn with_keys(
        &mut self,
        input: Lowered,
        fields: &[Field],
        keys: &[Expr],
    ) -> Result<(Lowered, Vec<Option<Column>>)> {
        let is_made = |key: &&Expr| columns(key).len() > 1;
        if !keys.iter().any(|key| is_made(&key)) {
            return Ok((input, vec![None; keys.len()]));
        }
        let mut natives: Vec<Native> = input.columns.iter().cloned().map(Native::Column).collect();
        let mut names: Vec<String> = fields.iter().map(|field| self.name(&field.name)).collect();
        for key in keys.iter().filter(is_made) {
            natives.push(self.expr(key, &input.columns, fields)?);
            names.push(self.name("key"));
        }
        let mut lowered = self.named(input.plan, natives, names)?;
        let mut made = lowered.columns.split_off(fields.len()).into_iter();
        let places = keys.iter().map(|key| if is_made(&key) { made.next() } else { None });
        let places = places.collect();
        Ok((lowered, places))
    }

    fn join(&mut self, kind: JoinKind, left: &Node, right: &Node, condition: &[Expr]) -> Result<Lowered> {
        let l = self.node(left)?;
        let r = self.node(right)?;
        let r = match kind {
            // DataFusion qualifies the mark like the columns of the right side, if these have one qualifier. It takes columns away
            // later, which must not change that.
            JoinKind::Mark => {
                let natives = r.columns.iter().cloned().map(Native::Column).collect();
                let names = right.fields.iter().map(|field| self.name(&field.name)).collect();
                self.named(r.plan, natives, names)?
            }
            _ => r,
        };
        let width = left.width();
        let (mut pairs, mut rest) = (Vec::new(), Vec::new());
        for conjunct in condition {
            match equality(conjunct, width) {
                Some(pair) => pairs.push(pair),
                None => rest.push(conjunct.clone()),
            }
        }
        let ((l, made_left), (r, made_right)) = match kind {
            JoinKind::Inner => {
                let mine: Vec<Expr> = pairs.iter().map(|(mine, _, _)| mine.clone()).collect();
                let of_right = |expr: &Expr| remap_columns(expr.clone(), &|column| column - width);
                let theirs: Vec<Expr> = pairs.iter().map(|(_, theirs, _)| of_right(theirs)).collect();
                (self.with_keys(l, &left.fields, &mine)?, self.with_keys(r, &right.fields, &theirs)?)
            }
            _ => ((l, vec![None; pairs.len()]), (r, vec![None; pairs.len()])),
        };
        let all: Vec<Column> = l.columns.iter().chain(&r.columns).cloned().collect();
        let fields: Vec<Field> = left.fields.iter().chain(&right.fields).cloned().collect();
        // DataFusion lets NULL equal NULL in all keys of a join or in none, and takes neighbouring inner joins for one.
        let all_nullable =
            kind != JoinKind::Inner && !pairs.is_empty() && pairs.iter().all(|(_, _, nullable)| *nullable);
        let (mut left_keys, mut right_keys) = (Vec::new(), Vec::new());
        for ((mine, theirs, nullable), made) in pairs.into_iter().zip(made_left.into_iter().zip(made_right)) {
            let (mine_type, theirs_type) = (mine.ty(), theirs.ty());
            let is_native = has_native_equality(&mine_type) && mine_type.arrow() == theirs_type.arrow();
            let nullable = nullable && !all_nullable;
            let key = |made: Option<Column>, expr: &Expr| match made {
                Some(column) => Ok(Native::Column(column)),
                None => self.expr(expr, &all, &fields),
            };
            let (mine, theirs) = (key(made.0, &mine)?, key(made.1, &theirs)?);
            left_keys.push(self.key_of(mine, &mine_type, is_native, nullable));
            right_keys.push(self.key_of(theirs, &theirs_type, is_native, nullable));
        }
        let filter = if rest.is_empty() { None } else { Some(self.condition(&rest, &all, &fields)?) };
        let join_type = match kind {
            JoinKind::Inner => JoinType::Inner,
            JoinKind::Left => JoinType::Left,
            JoinKind::Right => JoinType::Right,
            JoinKind::Full => JoinType::Full,
            JoinKind::Semi => JoinType::LeftSemi,
            JoinKind::Anti => JoinType::LeftAnti,
            JoinKind::Mark => JoinType::LeftMark,
        };
        // The left input is the one that is held: better the one with a row for each key.
        let keys_of = |side: bool| -> Vec<usize> {
            let column = |e: &Expr| match e {
                Expr::Column { index, .. } => Some(*index),
                _ => None,
            };
            let pairs = condition.iter().filter_map(|c| equality(c, width));
            pairs
                .filter_map(
                    |(mine, theirs, _)| {
                        if side { column(&mine) } else { column(&theirs).map(|c| c - width) }
                    },
                )
                .collect()
        };
        let swapped = match kind {
            JoinKind::Inner => Some(JoinType::Inner),
            JoinKind::Left => Some(JoinType::Right),
            JoinKind::Right => Some(JoinType::Left),
            JoinKind::Full => Some(JoinType::Full),
            _ => None,
        };
        if let Some(swapped) = swapped
            && is_unique(right, &keys_of(false))
            && !is_unique(left, &keys_of(true))
        {
            let builder = LogicalPlanBuilder::from(r.plan);
            let mut plan =
                build(builder.join_with_expr_keys(l.plan, swapped, (right_keys, left_keys), filter))?;
            if all_nullable && let LogicalPlan::Join(join) = &mut plan {
                join.null_equality = NullEquality::NullEqualsNull;
            }
            return Ok(Lowered { plan, columns: all });
        }
        let builder = LogicalPlanBuilder::from(l.plan);
        if left_keys.is_empty() && filter.is_none() && kind == JoinKind::Inner {
            let plan = build(builder.cross_join(r.plan))?;
            return Ok(Lowered { plan, columns: all });
        }
        // A join that nothing decides about.
        let filter = match filter {
            None if left_keys.is_empty() => Some(Native::Literal(ScalarValue::Boolean(Some(true)), None)),
            filter => filter,
        };
        let mut plan =
            build(builder.join_with_expr_keys(r.plan, join_type, (left_keys, right_keys), filter))?;
        if all_nullable && let LogicalPlan::Join(join) = &mut plan {
            join.null_equality = NullEquality::NullEqualsNull;
        }
        match kind {
            JoinKind::Semi | JoinKind::Anti => Ok(Lowered { plan, columns: l.columns }),
            JoinKind::Mark => {
                let mark = plan.schema().fields().len() - 1;
                let mark = Column::from(plan.schema().qualified_field(mark));
                let natives: Vec<Native> =
                    l.columns.iter().cloned().chain([mark]).map(Native::Column).collect();
                let names: Vec<String> = left
                    .fields
                    .iter()
                    .map(|f| f.name.as_str())
                    .chain(["mark"])
                    .map(|n| self.name(n))
                    .collect();
                self.named(plan, natives, names)
            }
            _ => Ok(Lowered { plan, columns: all }),
        }
    }

    fn aggregate(
        &mut self,
        below: Lowered,
        fields: &[Field],
        keys: &[Expr],
        calls: &[Call],
    ) -> Result<Lowered> {
        let Lowered { plan, columns: inputs } = below;
        // Everything is computed below, so that the aggregation sees only columns.
        let (mut natives, mut names) = (Vec::new(), Vec::new());
        let mut group = Vec::new();
        // For each output column: a key, or the place of a result.
        enum Output {
            Key(Column),
            Result(usize),
        }
        let mut outputs = Vec::new();
        let mut wanted: Vec<(Call, Vec<Native>)> = Vec::new();
        let mut compute = |native: Native, name: String| {
            names.push(name.clone());
            natives.push(native);
            unqualified(name)
        };
        for key in keys {
            let ty = key.ty();
            let native = self.expr(key, &inputs, fields)?;
            if has_native_equality(&ty) {
                let column = compute(native, self.name("group"));
                group.push(Native::Column(column.clone()));
                outputs.push(Output::Key(column));
                continue;
            }
            // Equal values may differ in how they are written: the group shows one of them.
            let value = compute(native.clone(), self.name("group"));
            let column = compute(self.key_of(native, &ty, false, false), self.name("key"));
            group.push(Native::Column(column));
            let least = AggregateCall::new(AggregateFunction::Min, Some(Expr::column(0, ty)));
            wanted.push((Call::Aggregate(least), vec![Native::Column(value)]));
            outputs.push(Output::Result(wanted.len() - 1));
        }
        for call in calls {
            let call = without_filter(call);
            let mut arguments = Vec::new();
            for argument in call.arguments() {
                let native = self.expr(argument, &inputs, fields)?;
                arguments.push(Native::Column(compute(native, self.name("argument"))));
            }
            if arguments.is_empty() {
                arguments.push(Native::Literal(ScalarValue::Boolean(Some(true)), None));
            }
            wanted.push((call, arguments));
            outputs.push(Output::Result(wanted.len() - 1));
        }
        if group.is_empty() && wanted.is_empty() {
            let count = Call::Aggregate(AggregateCall::new(AggregateFunction::Count, None));
            wanted.push((count, vec![Native::Literal(ScalarValue::Boolean(Some(true)), None)]));
        }
        // Of no column at all the rows still count.
        let plan = if natives.is_empty() { plan } else { self.named(plan, natives, names)?.plan };
        let mut results = Vec::new();
        let mut aggregates = Vec::new();
        for (call, arguments) in wanted {
            let base = match &call {
                Call::Aggregate(call) => call.function.name(),
                Call::Single(_) => "single",
            };
            let function =
                Arc::new(AggregateUDF::from(EngineAggregate::new(base.to_owned(), call, self.reader)?));
            let name = self.name(base);
            results.push(unqualified(name.clone()));
            let aggregate = NativeAggregate::new_udf(function, arguments, false, None, Vec::new(), None);
            aggregates.push(Native::AggregateFunction(aggregate).alias(name));
        }
        let is_whole = group.is_empty();
        let mut plan = LogicalPlanBuilder::from(plan).aggregate(group, aggregates);
        if is_whole {
            // It is one row anyhow, but nothing is pushed below a limit: a condition that names no column of it would be taken
            // there, where the row is made of none.
            plan = plan.and_then(|plan| plan.limit(0, Some(1)));
        }
        let plan = build(plan)?;
        let columns = outputs.into_iter().map(|output| match output {
            Output::Key(column) => column,
            Output::Result(place) => results[place].clone(),
        });
        Ok(Lowered { plan, columns: columns.collect() })
    }

    fn window(&mut self, input: &Node, calls: &[WindowCall]) -> Result<Lowered> {
        let Lowered { mut plan, columns: mut all } = self.node(input)?;
        let inputs = all.clone();
        // Arguments and keys are computed first.
        let mut natives: Vec<Native> = inputs.iter().cloned().map(Native::Column).collect();
        let mut names: Vec<String> = input.fields.iter().map(|f| self.name(&f.name)).collect();
        let mut prepared = Vec::new();
        for call in calls {
            let mut compute = |lowering: &mut Self, expr: &Expr, order: bool, key: bool| -> Result<Native> {
                let ty = expr.ty();
                let native = lowering.expr(expr, &inputs, &input.fields)?;
                let is_native = if order { has_native_order(&ty) } else { has_native_equality(&ty) };
                let native = if key { lowering.key_of(native, &ty, is_native, false) } else { native };
                let name = lowering.name("window");
                natives.push(native);
                names.push(name.clone());
                Ok(Native::Column(unqualified(name)))
            };
            let mut partition = Vec::new();
            for expr in &call.partition {
                // Constants do not part rows.
                if !columns(expr).is_empty() {
                    partition.push(compute(self, expr, false, true)?);
                }
            }
            let mut order = Vec::new();
            for OrderKey { expr, descending, nulls_first } in &call.order {
                let expr = compute(self, expr, true, true)?;
                order.push(Sort { expr, asc: !descending, nulls_first: *nulls_first });
            }
            let (definition, arguments) = self.window_function(&call.function, &mut compute)?;
            let peers_of = call.order.first().map(|key| key_type(&key.expr.ty()));
            let frame = frame(&call.frame, peers_of.as_ref())?;
            prepared.push((definition, arguments, partition, order, frame));
        }
        let lowered = self.named(plan, natives, names)?;
        plan = lowered.plan;
        all = lowered.columns[..inputs.len()].to_vec();
        for (call, (definition, arguments, partition_by, order_by, window_frame)) in
            calls.iter().zip(prepared)
        {
            let mut function = NativeWindow::new(definition, arguments);
            function.params.partition_by = partition_by;
            function.params.order_by = order_by;
            function.params.window_frame = window_frame;
            let function = Native::WindowFunction(Box::new(function));
            let window = Window::try_new(vec![function], Arc::new(plan)).map_err(failed)?;
            plan = LogicalPlan::Window(window);
            // The result is renamed, and brought to its type.
            let schema = plan.schema().clone();
            let last = schema.fields().len() - 1;
            let mut outputs: Vec<Native> =
                (0..last).map(|c| Native::Column(Column::from(schema.qualified_field(c)))).collect();
            let result = Native::Column(Column::from(schema.qualified_field(last)));
            let result = if *schema.field(last).data_type() == call.ty.arrow() {
                result
            } else {
                Native::Cast(Cast::new(Box::new(result), call.ty.arrow()))
            };
            let name = self.name(call.function.name());
            outputs.push(result.alias(&name));
            plan = build(LogicalPlanBuilder::from(plan).project(outputs))?;
            all.push(unqualified(name));
        }
        Ok(Lowered { plan, columns: all })
    }

    fn window_function(
        &mut self,
        function: &WindowFunction,
        compute: &mut dyn FnMut(&mut Self, &Expr, bool, bool) -> Result<Native>,
    ) -> Result<(WindowFunctionDefinition, Vec<Native>)> {
        let ranking = |udwf: Arc<WindowUDF>| WindowFunctionDefinition::WindowUDF(udwf);
        let constant = |expr: &Expr, what: &str| match expr {
            Expr::Literal { value, .. } => Ok(value.as_i64()),
            _ => Err(SqlError::unsupported(format!("{what} that is not constant"))),
        };
        let number = |n: i64| Native::Literal(ScalarValue::Int64(Some(n)), None);
        Ok(match function {
            WindowFunction::Aggregate(call) => {
                let Call::Aggregate(call) = without_filter(&Call::Aggregate(call.clone())) else {
                    return Err(SqlError::internal("an aggregate became another"));
                };
                let argument = match &call.argument {
                    None => Native::Literal(ScalarValue::Boolean(Some(true)), None),
                    Some(argument) => compute(self, argument, false, false)?,
                };
                let aggregate = EngineAggregate::new(
                    call.function.name().to_owned(),
                    Call::Aggregate(call),
                    self.reader,
                )?;
                let aggregate = Arc::new(AggregateUDF::from(aggregate));
                (WindowFunctionDefinition::AggregateUDF(aggregate), vec![argument])
            }
            WindowFunction::RowNumber => (ranking(row_number::row_number_udwf()), Vec::new()),
            WindowFunction::Rank => (ranking(rank::rank_udwf()), Vec::new()),
            WindowFunction::DenseRank => (ranking(rank::dense_rank_udwf()), Vec::new()),
            WindowFunction::PercentRank => (ranking(rank::percent_rank_udwf()), Vec::new()),
            WindowFunction::CumeDist => (ranking(cume_dist::cume_dist_udwf()), Vec::new()),
            WindowFunction::Ntile(buckets) => {
                let buckets = constant(buckets, "an argument of ntile")?;
                match buckets {
                    Some(n) if n > 0 => (ranking(ntile::ntile_udwf()), vec![number(n)]),
                    Some(_) => {
                        return Err(SqlError::new(
                            carousel_engine::SqlState(*b"22014"),
                            "argument of ntile must be greater than zero",
                        ));
                    }
                    None => return Err(SqlError::unsupported("ntile of NULL")),
                }
            }
            WindowFunction::Neighbour { ahead, value, offset, default } => {
                let ty = value.ty();
                let udwf = if *ahead { lead_lag::lead_udwf() } else { lead_lag::lag_udwf() };
                let away = match offset {
                    None => 1,
                    Some(offset) => constant(offset, "an offset of lag or lead")?
                        .ok_or_else(|| SqlError::unsupported("an offset of lag or lead that is NULL"))?,
                };
                let mut arguments = vec![compute(self, value, false, false)?, number(away)];
                match default {
                    None => {}
                    Some(Expr::Literal { value, .. }) => {
                        arguments.push(Native::Literal(scalar(value, &ty)?, None));
                    }
                    Some(_) => {
                        return Err(SqlError::unsupported("a default of lag or lead that is not constant"));
                    }
                }
                (ranking(udwf), arguments)
            }
            WindowFunction::FirstValue(value) => {
                (ranking(nth_value::first_value_udwf()), vec![compute(self, value, false, false)?])
            }
            WindowFunction::LastValue(value) => {
                (ranking(nth_value::last_value_udwf()), vec![compute(self, value, false, false)?])
            }
            WindowFunction::NthValue(value, place) => {
                let place = match constant(place, "a place of nth_value")? {
                    Some(n) if n > 0 => n,
                    Some(_) => {
                        return Err(SqlError::new(
                            carousel_engine::SqlState(*b"22016"),
                            "argument of nth_value must be greater than zero",
                        ));
                    }
                    None => return Err(SqlError::unsupported("nth_value of NULL")),
                };
                let value = compute(self, value, false, false)?;
                (ranking(nth_value::nth_value_udwf()), vec![value, number(place)])
            }
        })
    }

    fn union(&mut self, inputs: &[Node], fields: &[Field]) -> Result<Lowered> {
        let names: Vec<String> = fields.iter().map(|f| self.name(&f.name)).collect();
        let mut plans = Vec::with_capacity(inputs.len());
        for input in inputs {
            let below = self.node(input)?;
            let natives = below.columns.into_iter().map(Native::Column).collect();
            plans.push(Arc::new(self.named(below.plan, natives, names.clone())?.plan));
        }
        let union = Union::try_new_with_loose_types(plans).map_err(failed)?;
        Ok(Lowered { plan: LogicalPlan::Union(union), columns: names.into_iter().map(unqualified).collect() })
    }

    fn sort(
        &mut self,
        input: &Node,
        keys: &[SortKey],
        limit: &Option<Expr>,
        offset: &Option<Expr>,
    ) -> Result<Lowered> {
        let Lowered { plan, columns } = self.node(input)?;
        let (limit, offset) = (as_count(limit), as_count(offset).unwrap_or(0));
        let mut builder = LogicalPlanBuilder::from(plan);
        if !keys.is_empty() {
            let mut sorts = Vec::with_capacity(keys.len());
            for SortKey { column, descending, nulls_first } in keys {
                let ty = &input.fields[*column].ty;
                let native = self.column(*column, &columns)?;
                let expr = self.key_of(native, ty, has_native_order(ty), false);
                sorts.push(Sort { expr, asc: !descending, nulls_first: *nulls_first });
            }
            let fetch = limit.map(|limit| limit.saturating_add(offset));
            builder = builder.sort_with_limit(sorts, fetch).map_err(failed)?;
        }
        if limit.is_some() || offset > 0 {
            builder = builder.limit(offset, limit).map_err(failed)?;
        }
        Ok(Lowered { plan: build(Ok(builder))?, columns })
    }
}

/// Whether no two rows of a tree agree in these columns.
pub(super) fn is_unique(node: &Node, on: &[usize]) -> bool {
    match &node.kind {
        Kind::Scan { table, .. } => {
            !table.primary_key.is_empty() && table.primary_key.iter().all(|column| on.contains(column))
        }
        Kind::Groups { keys, .. } | Kind::Aggregate { keys, .. } => (0..keys.len()).all(|c| on.contains(&c)),
        Kind::Distinct { input } => (0..input.width()).all(|c| on.contains(&c)),
        Kind::Filter { input, .. } | Kind::Sort { input, .. } => is_unique(input, on),
        Kind::Shared(input) => is_unique(input, on),
        Kind::Project { input, exprs } => {
            let below = on.iter().filter_map(|column| match exprs.get(*column) {
                Some(Expr::Column { index, .. }) => Some(*index),
                _ => None,
            });
            is_unique(input, &below.collect::<Vec<_>>())
        }
        Kind::Join { kind: JoinKind::Semi | JoinKind::Anti | JoinKind::Mark, left, .. } => {
            is_unique(left, on)
        }
        _ => false,
    }
}

/// The sides of a conjunct that says that an expression of the left input equals one of the right input, left first;
/// and whether NULL equals NULL.
fn equality(conjunct: &Expr, left_width: usize) -> Option<(Expr, Expr, bool)> {
    let (l, r, nullable) = match conjunct {
        Expr::Compare { op: CompareOp::Eq, left, right } => (left, right, false),
        Expr::IsDistinct { left, right, negated: true } => (left, right, true),
        _ => return None,
    };
    let of_left = |e: &Expr| {
        let used = columns(e);
        !used.is_empty() && used.iter().all(|c| *c < left_width)
    };
    let of_right = |e: &Expr| {
        let used = columns(e);
        !used.is_empty() && used.iter().all(|c| *c >= left_width)
    };
    // Keys of different kinds of types never meet.
    if key_type(&l.ty().without_modifiers()) != key_type(&r.ty().without_modifiers()) {
        return None;
    }
    if of_left(l) && of_right(r) {
        return Some((l.as_ref().clone(), r.as_ref().clone(), nullable));
    }
    (of_left(r) && of_right(l)).then(|| (r.as_ref().clone(), l.as_ref().clone(), nullable))
}

/// An aggregate without FILTER: the argument is NULL, which no aggregate counts, where the filter is not true.
fn without_filter(call: &Call) -> Call {
    let Call::Aggregate(call) = call else { return call.clone() };
    let Some(filter) = &call.filter else { return Call::Aggregate(call.clone()) };
    let filtered = |value: Expr| {
        let ty = value.ty();
        Expr::Case { branches: vec![(filter.clone(), value)], otherwise: None, ty }
    };
    let value = call.argument.clone().unwrap_or_else(|| literal(Value::Bool(true), Type::Bool));
    let further = call.further.iter().cloned().map(filtered).collect();
    let argument = Some(filtered(value));
    Call::Aggregate(AggregateCall { argument, filter: None, further, ..call.clone() })
}

/// A frame over rows whose first key of the order, if there is one, has this Arrow type.
fn frame(frame: &Frame, order: Option<&DataType>) -> Result<WindowFrame> {
    let units = match frame.units {
        // Without offsets both count peers, and DataFusion has no ranges of bytes or of times.
        Units::Range
            if matches!(
                order,
                Some(DataType::Binary | DataType::FixedSizeBinary(_) | DataType::Time64(_))
            ) =>
        {
            return self::frame(&Frame { units: Units::Groups, ..frame.clone() }, order);
        }
        Units::Rows => WindowFrameUnits::Rows,
        Units::Range => WindowFrameUnits::Range,
        Units::Groups => WindowFrameUnits::Groups,
    };
    // Without an order all rows are peers.
    if order.is_none() && frame.units == Units::Range {
        return Ok(WindowFrame::new_bounds(
            WindowFrameUnits::Rows,
            WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
            WindowFrameBound::Following(ScalarValue::UInt64(None)),
        ));
    }
    let unbounded = || match frame.units {
        Units::Range => ScalarValue::Null,
        _ => ScalarValue::UInt64(None),
    };
    let bound = |bound: &Bound, which: &str| -> Result<WindowFrameBound> {
        let count = |expr: &Expr| match expr {
            Expr::Literal { value: Value::Null, .. } => Err(SqlError::new(
                carousel_engine::SqlState(*b"22004"),
                format!("frame {which} offset must not be null"),
            )),
            Expr::Literal { value, .. } => match value.as_i64().map(u64::try_from) {
                Some(Ok(count)) => Ok(ScalarValue::UInt64(Some(count))),
                _ => Err(SqlError::new(
                    carousel_engine::SqlState(*b"22013"),
                    format!("frame {which} offset must not be negative"),
                )),
            },
            _ => Err(SqlError::unsupported("an offset of a frame that is not constant")),
        };
        Ok(match bound {
            Bound::UnboundedPreceding => WindowFrameBound::Preceding(unbounded()),
            Bound::UnboundedFollowing => WindowFrameBound::Following(unbounded()),
            Bound::CurrentRow => WindowFrameBound::CurrentRow,
            Bound::Preceding(expr) => WindowFrameBound::Preceding(count(expr)?),
            Bound::Following(expr) => WindowFrameBound::Following(count(expr)?),
        })
    };
    let (start, end) = (bound(&frame.start, "starting")?, bound(&frame.end, "ending")?);
    // DataFusion refuses a frame that ends before it begins, and takes one that begins behind all rows.
    let is_empty = match (&start, &end) {
        (WindowFrameBound::Preceding(from), WindowFrameBound::Preceding(to)) => {
            matches!((from, to), (ScalarValue::UInt64(Some(from)), ScalarValue::UInt64(Some(to))) if from < to)
        }
        (WindowFrameBound::Following(from), WindowFrameBound::Following(to)) => {
            matches!((from, to), (ScalarValue::UInt64(Some(from)), ScalarValue::UInt64(Some(to))) if from > to)
        }
        _ => false,
    };
    if is_empty {
        let behind_all = WindowFrameBound::Following(ScalarValue::UInt64(Some(1 << 62)));
        return Ok(WindowFrame::new_bounds(units, behind_all, WindowFrameBound::Following(unbounded())));
    }
    Ok(WindowFrame::new_bounds(units, start, end))
}
