//! Long strings above the scan.
//!
//! The strings of an Arrow array lie in one buffer of less than 2 GB, and nobody wants to hold that much of them for one
//! batch. But a join gives the strings of a row once for each row that it meets, and a sort brings wide rows together. So joins
//! and sorts see views, which say where a string lies: rows share it. Above them, and where expressions make strings, as many
//! rows become arrays at once as take [`BATCH_BYTES`], or one row.

use std::{fmt, ops::Range, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, AsArray},
    compute::{cast, concat},
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use carousel_engine::expr::vector::string_bytes;
use datafusion::{
    common::{Result as DataFusionResult, ScalarValue, internal_err, tree_node::TreeNodeRecursion},
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::ColumnarValue,
    physical_expr::{EquivalenceProperties, ScalarFunctionExpr, expressions::Column},
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties,
        execution_plan::replace_children_if_necessary,
        joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, utils::JoinFilter},
        projection::ProjectionExec,
        sorts::sort::SortExec,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{TryStreamExt, stream};

use super::function::EngineFunction;

/// Bytes of strings in a batch of more than one row.
const BATCH_BYTES: usize = 4 << 20;

/// A node that gives the same rows, but no batch of more strings than it should have; `None` when it needs no change.
pub(super) fn in_small_batches(
    node: &Arc<dyn ExecutionPlan>,
) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        let exprs = projection.expr().iter().map(|projected| projected.expr.clone());
        let exprs: Vec<Arc<dyn PhysicalExpr>> = exprs.collect();
        let fields = node.schema();
        let mut made =
            exprs.iter().zip(fields.fields()).filter(|(_, field)| as_view(field.data_type()).is_some());
        return Ok(match made.any(|(expr, _)| expr.downcast_ref::<Column>().is_none()) {
            true => Some(Arc::new(Parts::new(projection.input().clone(), node, How::Projected(exprs)))),
            false => None,
        });
    }
    let Some(viewed) = over_views(node)? else { return Ok(None) };
    Ok(Some(Arc::new(Parts::new(viewed, node, How::Copied))))
}

/// A join or a sort whose inputs' strings are views; `None` for others, and when there are no strings.
fn over_views(node: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
    let children = || -> Vec<Arc<dyn ExecutionPlan>> { node.children().into_iter().map(viewed).collect() };
    if node.children().iter().all(|child| view_schema(&child.schema()).is_none()) {
        return Ok(None);
    }
    let filter = |filter: Option<&JoinFilter>| -> Option<Option<JoinFilter>> {
        match filter {
            None => Some(None),
            Some(filter) => over_viewed_columns(filter).map(Some),
        }
    };
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let Some(filter) = filter(join.filter()) else { return Ok(None) };
        let join = join.builder().with_new_children(children())?.with_filter(filter);
        return join.recompute_properties().build_exec().map(Some);
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let Some(filter) = filter(join.filter()) else { return Ok(None) };
        let [left, right] = <[_; 2]>::try_from(children()).expect("a join has two inputs");
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let join = NestedLoopJoinExec::try_new(left, right, filter, join.join_type(), projection)?;
        return Ok(Some(Arc::new(join)));
    }
    if node.downcast_ref::<CrossJoinExec>().is_some() {
        let [left, right] = <[_; 2]>::try_from(children()).expect("a join has two inputs");
        return Ok(Some(Arc::new(CrossJoinExec::new(left, right))));
    }
    match node.downcast_ref::<SortExec>() {
        // The first rows are copied out of their batches; views would keep whole batches for each of them.
        Some(sort) if sort.fetch().is_none() => {
            replace_children_if_necessary(node.clone(), children()).map(Some)
        }
        _ => Ok(None),
    }
}

/// The same condition over columns whose strings are views. The engine's functions take them as they are; `None` when something
/// else looks at a string.
fn over_viewed_columns(filter: &JoinFilter) -> Option<JoinFilter> {
    fn takes_views(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
        if let Some(column) = expr.downcast_ref::<Column>() {
            return as_view(schema.field(column.index()).data_type()).is_none();
        }
        engine_function(expr).is_some() || expr.children().into_iter().all(|child| takes_views(child, schema))
    }
    let schema = filter.schema();
    if !takes_views(filter.expression(), schema) {
        return None;
    }
    let viewed = view_schema(schema).unwrap_or_else(|| schema.clone());
    Some(JoinFilter::new(filter.expression().clone(), filter.column_indices().to_vec(), viewed))
}

/// The function and its arguments, if an expression is a call of one of the engine's with nothing but columns.
fn engine_function(expr: &Arc<dyn PhysicalExpr>) -> Option<(&EngineFunction, &[Arc<dyn PhysicalExpr>])> {
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    let function = (call.fun().inner().as_ref() as &dyn std::any::Any).downcast_ref::<EngineFunction>()?;
    let is_column = |argument: &Arc<dyn PhysicalExpr>| argument.downcast_ref::<Column>().is_some();
    call.args().iter().all(is_column).then(|| (function, call.args()))
}

/// The type of views of strings.
fn as_view(ty: &DataType) -> Option<DataType> {
    match ty {
        DataType::Utf8 => Some(DataType::Utf8View),
        DataType::Binary => Some(DataType::BinaryView),
        _ => None,
    }
}

/// The schema with views in the place of strings; `None` without strings.
fn view_schema(schema: &SchemaRef) -> Option<SchemaRef> {
    if schema.fields().iter().all(|field| as_view(field.data_type()).is_none()) {
        return None;
    }
    let fields = schema.fields().iter().map(|field| match as_view(field.data_type()) {
        Some(view) => Field::clone(field).with_data_type(view),
        None => Field::clone(field),
    });
    Some(Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())))
}

fn viewed(input: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let Some(schema) = view_schema(&input.schema()) else { return input.clone() };
    let properties = PlanProperties::new(
        EquivalenceProperties::new(schema),
        input.output_partitioning().clone(),
        input.pipeline_behavior(),
        input.boundedness(),
    );
    Arc::new(Parts { input: input.clone(), how: How::Viewed, properties: Arc::new(properties) })
}

/// A string column's views, which begin with the lengths; of nothing else.
fn views(column: &ArrayRef) -> Option<&[u128]> {
    match column.data_type() {
        DataType::Utf8View => Some(column.as_string_view().views()),
        DataType::BinaryView => Some(column.as_binary_view().views()),
        _ => None,
    }
}

/// The first of the rows, as many as have strings of [`BATCH_BYTES`] together, or one.
fn first_part(columns: &[ArrayRef], rows: Range<usize>) -> Range<usize> {
    let columns: Vec<&[u128]> = columns.iter().filter_map(views).collect();
    let mut bytes = 0;
    let is_full = |row: &usize| {
        bytes += columns.iter().map(|views| views[*row] as u32 as usize).sum::<usize>();
        bytes > BATCH_BYTES
    };
    let end = rows.clone().find(is_full).unwrap_or(rows.end);
    rows.start..end.max(rows.end.min(rows.start + 1))
}

/// Rows of a column, as strings when they are views of some.
fn copied(column: &ArrayRef, rows: Range<usize>) -> DataFusionResult<ArrayRef> {
    let column = column.slice(rows.start, rows.len());
    Ok(match column.data_type() {
        DataType::Utf8View => cast(&column, &DataType::Utf8)?,
        DataType::BinaryView => cast(&column, &DataType::Binary)?,
        _ => column,
    })
}

/// What is computed of columns that may be views, for as many rows at once as become strings together.
pub(super) fn over_strings(
    columns: &[ArrayRef],
    rows: usize,
    compute: &dyn Fn(Vec<ArrayRef>, usize) -> DataFusionResult<ArrayRef>,
) -> DataFusionResult<ArrayRef> {
    if columns.iter().all(|column| views(column).is_none()) {
        return compute(columns.to_vec(), rows);
    }
    let (mut parts, mut start) = (Vec::new(), 0);
    while parts.is_empty() || start < rows {
        let part = first_part(columns, start..rows);
        start = part.end;
        let columns = columns.iter().map(|column| copied(column, part.clone()));
        parts.push(compute(columns.collect::<DataFusionResult<_>>()?, part.len())?);
    }
    match parts.as_slice() {
        [part] => Ok(part.clone()),
        parts => Ok(concat(&parts.iter().map(|part| part.as_ref()).collect::<Vec<_>>())?),
    }
}

/// The values of expressions; `None` when their strings are too many for one batch, which those of one row never are.
fn projected(
    exprs: &[Arc<dyn PhysicalExpr>],
    schema: &SchemaRef,
    batch: &RecordBatch,
) -> DataFusionResult<Option<(RecordBatch, usize)>> {
    let rows = batch.num_rows();
    let (mut columns, mut bytes) = (Vec::with_capacity(exprs.len()), 0);
    for expr in exprs {
        let value = match engine_function(expr) {
            Some((function, arguments)) => {
                let arguments = arguments.iter().map(|argument| argument.evaluate(batch)?.into_array(rows));
                match function.evaluate_part(arguments.collect::<DataFusionResult<_>>()?, rows)? {
                    Some(array) => ColumnarValue::Array(array),
                    None => return Ok(None),
                }
            }
            None => expr.evaluate(batch)?,
        };
        bytes += match &value {
            ColumnarValue::Scalar(ScalarValue::Utf8(Some(text))) => text.len().saturating_mul(rows),
            ColumnarValue::Scalar(ScalarValue::Binary(Some(bytes))) => bytes.len().saturating_mul(rows),
            ColumnarValue::Scalar(_) => 0,
            ColumnarValue::Array(array) => string_bytes(array),
        };
        if bytes > BATCH_BYTES && rows > 1 {
            return Ok(None);
        }
        columns.push(value.into_array(rows)?);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(Some((RecordBatch::try_new_with_options(schema.clone(), columns, &options)?, bytes)))
}

/// What is made of the rows of an input.
#[derive(Clone, Debug)]
enum How {
    /// Strings become views, without being copied.
    Viewed,
    /// Views become strings.
    Copied,
    /// Expressions over them.
    Projected(Vec<Arc<dyn PhysicalExpr>>),
}

impl How {
    /// What is made of the first rows of a batch that is not empty, and of how many; `most` is how many there should be, and then
    /// how many next time.
    fn first_part(
        &self,
        batch: &RecordBatch,
        rows: Range<usize>,
        schema: &SchemaRef,
        most: &mut usize,
    ) -> DataFusionResult<(RecordBatch, usize)> {
        let part = match self {
            How::Viewed => rows,
            How::Copied => first_part(batch.columns(), rows),
            How::Projected(exprs) => {
                let mut count = rows.len().min(*most);
                loop {
                    match projected(exprs, schema, &batch.slice(rows.start, count))? {
                        Some((projected, bytes)) => {
                            *most = (count.saturating_mul(BATCH_BYTES) / bytes.max(1)).max(1);
                            return Ok((projected, count));
                        }
                        None => count = (count / 2).max(1),
                    }
                }
            }
        };
        let columns = batch.columns().iter().map(|column| match (self, as_view(column.data_type())) {
            (How::Viewed, Some(view)) => Ok(cast(column, &view)?),
            _ => copied(column, part.clone()),
        });
        let columns = columns.collect::<DataFusionResult<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(part.len()));
        Ok((RecordBatch::try_new_with_options(schema.clone(), columns, &options)?, part.len()))
    }
}

/// Gives what is made of its input, in batches of their own.
#[derive(Debug)]
struct Parts {
    input: Arc<dyn ExecutionPlan>,
    how: How,
    properties: Arc<PlanProperties>,
}

impl Parts {
    /// In the place of another node.
    fn new(input: Arc<dyn ExecutionPlan>, other: &Arc<dyn ExecutionPlan>, how: How) -> Parts {
        Parts { input, how, properties: other.properties().clone() }
    }
}

impl DisplayAs for Parts {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Parts {
    fn name(&self) -> &str {
        "Parts"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => {
                Ok(Arc::new(Parts { input, how: self.how.clone(), properties: self.properties.clone() }))
            }
            _ => internal_err!("it has one child"),
        }
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        let (schema, how) = (self.schema(), self.how.clone());
        let state = (self.input.execute(partition, context)?, None, usize::MAX);
        let made = schema.clone();
        let parts = stream::try_unfold(state, move |(mut input, mut pending, mut most)| {
            let (how, schema) = (how.clone(), made.clone());
            async move {
                let (batch, done): (RecordBatch, usize) = loop {
                    match pending.take() {
                        Some((batch, done)) => break (batch, done),
                        None => match input.try_next().await? {
                            Some(batch) if batch.num_rows() > 0 => pending = Some((batch, 0)),
                            Some(_) => {}
                            None => return Ok(None),
                        },
                    }
                };
                let rows = done..batch.num_rows();
                let (part, count) = how.first_part(&batch, rows.clone(), &schema, &mut most)?;
                if count < rows.len() {
                    pending = Some((batch, done + count));
                }
                Ok(Some((part, (input, pending, most))))
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, parts)))
    }
}
