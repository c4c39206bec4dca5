//! Long strings above the scan.
//!
//! The strings of an Arrow array lie in one buffer of less than 2 GB, and nobody wants to hold that much of them for one
//! batch. But a join gives the strings of a row once for each row that it meets. So joins see views, which say where a string
//! lies: rows share it. Above them, and where expressions make strings or conditions choose rows, as many rows become a batch
//! as have strings of [`BATCH_BYTES`], or one row.

use std::{fmt, ops::Range, sync::Arc};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, GenericByteArray, GenericByteBuilder, GenericByteViewArray,
        as_boolean_array,
    },
    buffer::{Buffer, NullBuffer, OffsetBuffer},
    compute::{BatchCoalescer, concat, filter_record_batch},
    datatypes::{
        BinaryType, BinaryViewType, ByteArrayType, ByteViewType, DataType, Field, Schema, SchemaRef,
        StringViewType, Utf8Type,
    },
    record_batch::{RecordBatch, RecordBatchOptions},
};
use bytes::Bytes;
use carousel_engine::expr::vector::string_bytes;
use datafusion::{
    common::{Result as DataFusionResult, ScalarValue, internal_err, tree_node::TreeNodeRecursion},
    execution::{
        SendableRecordBatchStream, TaskContext,
        memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation},
    },
    logical_expr::ColumnarValue,
    physical_expr::{
        EquivalenceProperties, ScalarFunctionExpr, expressions::Column, projection::ProjectionRef,
    },
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties,
        filter::FilterExec,
        joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, utils::JoinFilter},
        projection::ProjectionExec,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::{execute::BATCH_ROWS, function::EngineFunction};

/// Bytes of strings in a batch of more than one row.
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// Rows that a join gathers, at least: batches cost something themselves.
const LEAST_ROWS: usize = 16;
/// Bytes of a string that lies in its view.
const INLINE_BYTES: u32 = 12;

/// A node that gives the same rows, but no batch of more strings than it should have; `None` when it needs no change.
pub(super) fn in_small_batches(
    node: &Arc<dyn ExecutionPlan>,
) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        // The batches that a filter gathers have no more rows than others, but may have any number of bytes.
        return Ok(view_schema(&node.schema()).map(|_| {
            let (predicate, projection) = (filter.predicate().clone(), filter.projection().clone());
            let how = How::Filtered { predicate, projection, limit: node.fetch() };
            Arc::new(Parts::new(filter.input().clone(), node, how)) as Arc<dyn ExecutionPlan>
        }));
    }
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

/// A join whose inputs' strings are views; `None` for others, and when there are no strings.
fn over_views(node: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
    let [left, right] = node.children()[..] else { return Ok(None) };
    if view_schema(&left.schema()).is_none() && view_schema(&right.schema()).is_none() {
        return Ok(None);
    }
    let filter = |filter: Option<&JoinFilter>| -> Option<Option<JoinFilter>> {
        match filter {
            None => Some(None),
            Some(filter) => over_viewed_columns(filter).map(Some),
        }
    };
    // The left input is held, and counted, by the join itself. Of the right one it keeps what it has not given yet.
    let (left, right) = (viewed(left, false), viewed(right, true));
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let Some(filter) = filter(join.filter()) else { return Ok(None) };
        let join = join.builder().with_new_children(vec![left, right])?.with_filter(filter);
        return join.recompute_properties().build_exec().map(Some);
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let Some(filter) = filter(join.filter()) else { return Ok(None) };
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let join = NestedLoopJoinExec::try_new(left, right, filter, join.join_type(), projection)?;
        return Ok(Some(Arc::new(join)));
    }
    let is_cross = node.downcast_ref::<CrossJoinExec>().is_some();
    Ok(is_cross.then(|| Arc::new(CrossJoinExec::new(left, right)) as Arc<dyn ExecutionPlan>))
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

/// The rows of an input, with views; in the same order, which a join asks for when it is executed.
fn viewed(input: &Arc<dyn ExecutionPlan>, counted: bool) -> Arc<dyn ExecutionPlan> {
    let schema = view_schema(&input.schema()).unwrap_or_else(|| input.schema());
    let properties = PlanProperties::new(
        EquivalenceProperties::new_with_orderings(schema, input.output_ordering().cloned()),
        input.output_partitioning().clone(),
        input.pipeline_behavior(),
        input.boundedness(),
    );
    let how = How::Viewed { counted };
    Arc::new(Parts { input: input.clone(), how, properties: Arc::new(properties), begun: Begun::default() })
}

/// Begins a join over views. Until it gives them it gathers rows by number, and may hold or copy all of their strings: they are to be
/// as few as the first rows of its inputs let expect to fit into a batch.
async fn begin(
    join: Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> DataFusionResult<SendableRecordBatchStream> {
    let inputs: Vec<&Parts> =
        join.children().into_iter().filter_map(|it| it.downcast_ref::<Parts>()).collect();
    let mut bytes = 0;
    // Several tasks execute the branches of a UNION.
    if inputs.iter().all(|input| input.properties.output_partitioning().partition_count() == 1) {
        for input in inputs {
            match input.begin(&context).await? {
                Some(more) => bytes += more,
                // When there is nothing on the left, a join may not look at the right.
                None => break,
            }
        }
    }
    let rows = (BATCH_BYTES / bytes.max(1)).max(LEAST_ROWS);
    if rows >= context.session_config().batch_size() {
        return join.execute(partition, context);
    }
    // It holds what concerns functions that are looked up by name, too: there are none.
    let config = context.session_config().clone().with_batch_size(rows);
    let few = TaskContext::default().with_session_config(config).with_runtime(context.runtime_env());
    join.execute(partition, Arc::new(few))
}

/// Bytes that are counted as long as somebody has a view of them.
struct Counted {
    bytes: Buffer,
    _memory: MemoryReservation,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A column with views in the place of strings, whose bytes are counted by a pool if there is one.
fn viewed_column(column: &ArrayRef, pool: Option<&Arc<dyn MemoryPool>>) -> DataFusionResult<ArrayRef> {
    fn views_of<B: ByteArrayType<Offset = i32>, V: ByteViewType<Native = B::Native>>(
        strings: &GenericByteArray<B>,
        pool: Option<&Arc<dyn MemoryPool>>,
    ) -> DataFusionResult<ArrayRef>
    where
        for<'a> GenericByteViewArray<V>: From<&'a GenericByteArray<B>>,
    {
        let (views, mut buffers, nulls) =
            GenericByteViewArray::<V>::from(&without_others(strings)).into_parts();
        if views.iter().all(|view| length(*view) <= INLINE_BYTES) {
            buffers = Vec::new().into();
        }
        if let Some(pool) = pool {
            let counted = buffers.iter().map(|bytes| {
                let memory = MemoryConsumer::new("rows of a join").register(pool);
                memory.try_grow(bytes.len())?;
                Ok(Buffer::from(Bytes::from_owner(Counted { bytes: bytes.clone(), _memory: memory })))
            });
            buffers = counted.collect::<DataFusionResult<Vec<Buffer>>>()?.into();
        }
        // SAFETY: they are the views of an array, of the same bytes.
        Ok(Arc::new(unsafe { GenericByteViewArray::<V>::new_unchecked(views, buffers, nulls) }))
    }
    match column.data_type() {
        DataType::Utf8 => views_of::<Utf8Type, StringViewType>(column.as_string(), pool),
        DataType::Binary => views_of::<BinaryType, BinaryViewType>(column.as_binary(), pool),
        _ => Ok(column.clone()),
    }
}

/// The same strings without those of other rows, if there are many: who holds a view holds all bytes that are there.
fn without_others<B: ByteArrayType<Offset = i32>>(strings: &GenericByteArray<B>) -> GenericByteArray<B> {
    let (first, last) = (strings.value_offsets()[0], strings.value_offsets()[strings.len()]);
    let used = (last - first) as usize;
    if used >= strings.values().len() / 2 {
        return strings.clone();
    }
    let offsets: Vec<i32> = strings.value_offsets().iter().map(|offset| offset - first).collect();
    let bytes = Buffer::from(&strings.value_data()[first as usize..last as usize]);
    // SAFETY: they ascend as before, and cut the same bytes into the same strings.
    unsafe {
        let offsets = OffsetBuffer::new_unchecked(offsets.into());
        GenericByteArray::new_unchecked(offsets, bytes, strings.nulls().cloned())
    }
}

/// The length of the string that a view shows.
fn length(view: u128) -> u32 {
    view as u32
}

/// The lengths of a column's strings that are shown by views. Those of NULL may be any.
struct Lengths<'c> {
    views: &'c [u128],
    nulls: Option<&'c NullBuffer>,
}

impl Lengths<'_> {
    /// Of views only.
    fn of(column: &ArrayRef) -> Option<Lengths<'_>> {
        let views = match column.data_type() {
            DataType::Utf8View => column.as_string_view().views(),
            DataType::BinaryView => column.as_binary_view().views(),
            _ => return None,
        };
        Some(Lengths { views, nulls: column.nulls() })
    }

    fn at(&self, row: usize) -> usize {
        match self.nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            true => length(self.views[row]) as usize,
            false => 0,
        }
    }
}

/// The first of the rows, as many as have strings of [`BATCH_BYTES`] together, or one.
fn first_part(columns: &[ArrayRef], rows: Range<usize>) -> Range<usize> {
    let columns: Vec<Lengths<'_>> = columns.iter().filter_map(Lengths::of).collect();
    let mut bytes = 0;
    let is_full = |row: &usize| {
        bytes += columns.iter().map(|lengths| lengths.at(*row)).sum::<usize>();
        bytes > BATCH_BYTES
    };
    let end = rows.clone().find(is_full).unwrap_or(rows.end);
    rows.start..end.max(rows.end.min(rows.start + 1))
}

/// Rows of a column, as strings when they are views of some.
fn copied(column: &ArrayRef, rows: Range<usize>) -> ArrayRef {
    fn strings_of<V: ByteViewType, B: ByteArrayType<Offset = i32, Native = V::Native>>(
        views: &GenericByteViewArray<V>,
        bytes: usize,
    ) -> ArrayRef {
        let mut strings = GenericByteBuilder::<B>::with_capacity(views.len(), bytes);
        views.iter().for_each(|string| strings.append_option(string));
        Arc::new(strings.finish())
    }
    let part = column.slice(rows.start, rows.len());
    let bytes = || Lengths::of(column).map_or(0, |lengths| rows.map(|row| lengths.at(row)).sum());
    match column.data_type() {
        DataType::Utf8View => strings_of::<StringViewType, Utf8Type>(part.as_string_view(), bytes()),
        DataType::BinaryView => strings_of::<BinaryViewType, BinaryType>(part.as_binary_view(), bytes()),
        _ => part,
    }
}

/// What is computed of columns that may be views, for as many rows at once as become strings together.
pub(super) fn over_strings(
    columns: &[ArrayRef],
    rows: usize,
    compute: &dyn Fn(Vec<ArrayRef>, usize) -> DataFusionResult<ArrayRef>,
) -> DataFusionResult<ArrayRef> {
    if columns.iter().all(|column| Lengths::of(column).is_none()) {
        return compute(columns.to_vec(), rows);
    }
    let (mut parts, mut start) = (Vec::new(), 0);
    while parts.is_empty() || start < rows {
        let part = first_part(columns, start..rows);
        start = part.end;
        let columns = columns.iter().map(|column| copied(column, part.clone()));
        parts.push(compute(columns.collect(), part.len())?);
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
    let mut values: Vec<Option<ArrayRef>> = vec![None; exprs.len()];
    let mut bytes = 0;
    // What is there anyhow comes first: it may be too much already.
    for (expr, place) in exprs.iter().zip(&mut values).filter(|(expr, _)| engine_function(expr).is_none()) {
        let value = expr.evaluate(batch)?;
        bytes += match &value {
            ColumnarValue::Scalar(ScalarValue::Utf8(Some(text))) => text.len().saturating_mul(rows),
            ColumnarValue::Scalar(ScalarValue::Binary(Some(bytes))) => bytes.len().saturating_mul(rows),
            ColumnarValue::Scalar(_) => 0,
            ColumnarValue::Array(array) => string_bytes(array),
        };
        if bytes > BATCH_BYTES && rows > 1 {
            return Ok(None);
        }
        *place = Some(value.into_array(rows)?);
    }
    for (expr, place) in exprs.iter().zip(&mut values) {
        let Some((function, arguments)) = engine_function(expr) else { continue };
        let arguments = arguments.iter().map(|argument| argument.evaluate(batch)?.into_array(rows));
        let Some(array) = function.evaluate_part(arguments.collect::<DataFusionResult<_>>()?, rows)? else {
            return Ok(None);
        };
        bytes += string_bytes(&array);
        if bytes > BATCH_BYTES && rows > 1 {
            return Ok(None);
        }
        *place = Some(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let columns = values.into_iter().flatten().collect();
    Ok(Some((RecordBatch::try_new_with_options(schema.clone(), columns, &options)?, bytes)))
}

/// What is made of the rows of an input.
#[derive(Clone, Debug)]
enum How {
    /// Strings become views, without being copied.
    Viewed {
        /// Whether their bytes are counted as long as somebody has the views.
        counted: bool,
    },
    /// Views become strings.
    Copied,
    /// Expressions over them.
    Projected(Vec<Arc<dyn PhysicalExpr>>),
    /// Those that meet a condition.
    Filtered { predicate: Arc<dyn PhysicalExpr>, projection: Option<ProjectionRef>, limit: Option<usize> },
}

/// Makes batches of other ones.
struct Making {
    how: How,
    schema: SchemaRef,
    pool: Arc<dyn MemoryPool>,
    input: SendableRecordBatchStream,
    /// A batch of which this row and those behind it are still to come.
    pending: Option<(RecordBatch, usize)>,
    /// Rows for which expressions are likely to make strings that fit.
    likely: usize,
    /// Rows that were chosen.
    gathered: BatchCoalescer,
    /// Bytes of their strings that may be in a batch that is not complete.
    bytes: usize,
    /// How many are still wanted.
    wanted: usize,
}

impl Making {
    async fn next(mut self) -> DataFusionResult<Option<(RecordBatch, Making)>> {
        loop {
            if let Some(batch) = self.gathered.next_completed_batch() {
                return Ok(Some((batch, self)));
            }
            if let Some((batch, done)) = self.pending.take() {
                let part = match self.how.clone() {
                    How::Viewed { counted } => self.view(&batch, counted)?,
                    How::Copied => self.copy(batch, done)?,
                    How::Projected(exprs) => self.project(batch, done, &exprs)?,
                    How::Filtered { predicate, projection, .. } => {
                        self.choose(batch, &predicate, projection.as_deref())?;
                        continue;
                    }
                };
                return Ok(Some((part, self)));
            }
            if self.wanted > 0
                && let Some(batch) = self.input.try_next().await?
            {
                self.pending = (batch.num_rows() > 0).then_some((batch, 0));
            } else if self.gathered.is_empty() {
                return Ok(None);
            } else {
                self.wanted = 0;
                self.gathered.finish_buffered_batch()?;
            }
        }
    }

    fn batch(&self, columns: Vec<ArrayRef>, rows: usize) -> DataFusionResult<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    fn view(&self, batch: &RecordBatch, counted: bool) -> DataFusionResult<RecordBatch> {
        let pool = counted.then_some(&self.pool);
        let columns = batch.columns().iter().map(|column| viewed_column(column, pool));
        self.batch(columns.collect::<DataFusionResult<_>>()?, batch.num_rows())
    }

    fn copy(&mut self, batch: RecordBatch, done: usize) -> DataFusionResult<RecordBatch> {
        let part = first_part(batch.columns(), done..batch.num_rows());
        let columns = batch.columns().iter().map(|column| copied(column, part.clone())).collect();
        let copied = self.batch(columns, part.len())?;
        self.pending = (part.end < batch.num_rows()).then_some((batch, part.end));
        Ok(copied)
    }

    fn project(
        &mut self,
        batch: RecordBatch,
        done: usize,
        exprs: &[Arc<dyn PhysicalExpr>],
    ) -> DataFusionResult<RecordBatch> {
        let mut count = (batch.num_rows() - done).min(self.likely);
        loop {
            if let Some((projected, bytes)) = projected(exprs, &self.schema, &batch.slice(done, count))? {
                // With a margin, as rows differ.
                self.likely = (count.saturating_mul(BATCH_BYTES / 4 * 3) / bytes.max(1)).max(1);
                let end = done + count;
                self.pending = (end < batch.num_rows()).then_some((batch, end));
                return Ok(projected);
            }
            count = (count / 2).max(1);
        }
    }

    fn choose(
        &mut self,
        batch: RecordBatch,
        predicate: &Arc<dyn PhysicalExpr>,
        projection: Option<&[usize]>,
    ) -> DataFusionResult<()> {
        let chosen = predicate.evaluate(&batch)?.into_array(batch.num_rows())?;
        let batch = match projection {
            Some(columns) => batch.project(columns)?,
            None => batch,
        };
        let batch = filter_record_batch(&batch, as_boolean_array(&chosen))?;
        let batch = batch.slice(0, batch.num_rows().min(self.wanted));
        self.wanted -= batch.num_rows();
        let bytes: usize = batch.columns().iter().map(string_bytes).sum();
        if self.bytes + bytes > BATCH_BYTES {
            self.gathered.finish_buffered_batch()?;
            self.bytes = 0;
        }
        self.gathered.push_batch(batch)?;
        self.bytes = if self.gathered.has_completed_batch() { bytes } else { self.bytes + bytes };
        Ok(())
    }
}

/// Gives what is made of its input, in batches of their own.
#[derive(Debug)]
struct Parts {
    input: Arc<dyn ExecutionPlan>,
    how: How,
    properties: Arc<PlanProperties>,
    begun: Begun,
}

/// The first batch and those behind it, if somebody has asked for them already; and memory for what is held so.
#[derive(Default)]
struct Begun(Mutex<Option<(Option<RecordBatch>, SendableRecordBatchStream, MemoryReservation)>>);

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Begun")
    }
}

impl Parts {
    /// In the place of another node.
    fn new(input: Arc<dyn ExecutionPlan>, other: &Arc<dyn ExecutionPlan>, how: How) -> Parts {
        Parts { input, how, properties: other.properties().clone(), begun: Begun::default() }
    }

    /// Asks for the first batch: whoever executes this node will find it. Bytes of the strings of one of its rows, about; `None` when
    /// there are no rows.
    async fn begin(&self, context: &Arc<TaskContext>) -> DataFusionResult<Option<usize>> {
        let mut rows = self.execute(0, context.clone())?;
        let first = rows.try_next().await?;
        let bytes = first.as_ref().map_or(0, |first| {
            let columns = first.columns().iter().filter_map(Lengths::of);
            columns.map(|lengths| (0..first.num_rows()).map(|row| lengths.at(row)).sum::<usize>()).sum()
        });
        let memory = MemoryConsumer::new("first rows of a join").register(context.memory_pool());
        memory.try_grow(bytes)?;
        let of_row = first.as_ref().map(|first| bytes / first.num_rows().max(1));
        *self.begun.0.lock() = Some((first, rows, memory));
        Ok(of_row)
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
                let (how, properties) = (self.how.clone(), self.properties.clone());
                Ok(Arc::new(Parts { input, how, properties, begun: Begun::default() }))
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
        let schema = self.schema();
        if let Some((first, behind, _)) = self.begun.0.lock().take() {
            let rows = stream::iter(first.map(Ok)).chain(behind);
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)));
        }
        let input = match &self.how {
            How::Copied => {
                let rows = stream::once(begin(self.input.clone(), partition, context.clone())).try_flatten();
                Box::pin(RecordBatchStreamAdapter::new(self.input.schema(), rows))
            }
            _ => self.input.execute(partition, context.clone())?,
        };
        let limit = match &self.how {
            How::Filtered { limit, .. } => *limit,
            _ => None,
        };
        let making = Making {
            how: self.how.clone(),
            schema: schema.clone(),
            pool: context.memory_pool().clone(),
            input,
            pending: None,
            likely: usize::MAX,
            gathered: BatchCoalescer::new(schema.clone(), BATCH_ROWS)
                .with_biggest_coalesce_batch_size(Some(BATCH_ROWS / 2)),
            bytes: 0,
            wanted: limit.unwrap_or(usize::MAX),
        };
        let parts = stream::try_unfold(making, Making::next);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, parts)))
    }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{StringArray, UInt32Array},
        compute::take,
    };
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    fn strings(column: &ArrayRef) -> Vec<Option<String>> {
        copied(column, 0..column.len()).as_string::<i32>().iter().map(|s| s.map(str::to_owned)).collect()
    }

    #[test]
    fn strings_count_as_long_as_somebody_has_views_of_them() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100_000));
        let wide: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(50_000), "y".to_owned()]));
        let viewed = viewed_column(&wide, Some(&pool)).expect("there is room");
        let part = viewed.slice(1, 1);
        assert_eq!(pool.reserved(), 50_001);
        let other =
            viewed_column(&wide.slice(0, 1), Some(&pool)).expect_err("there is no room for as many again");
        assert!(matches!(other, datafusion::error::DataFusionError::ResourcesExhausted(_)), "{other}");
        drop(viewed);
        assert_eq!(strings(&part), [Some("y".to_owned())]);
        assert_eq!(pool.reserved(), 50_001);
        drop(part);
        assert_eq!(pool.reserved(), 0);
        // Those of other rows do not, nor short ones, which lie in their views.
        let little = viewed_column(&wide.slice(1, 1), Some(&pool)).expect("there is room");
        assert_eq!((strings(&little), pool.reserved()), (vec![Some("y".to_owned())], 0));
        let few =
            Arc::new(StringArray::from(vec!["x".repeat(20), "y".repeat(13), "z".repeat(1000)])) as ArrayRef;
        let views = viewed_column(&few.slice(1, 1), Some(&pool)).expect("there is room");
        assert_eq!((strings(&views), pool.reserved()), (vec![Some("y".repeat(13))], 13));
    }

    /// Where a join finds nothing, the view may be that of any string.
    #[test]
    fn null_has_no_length() {
        let wide: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(BATCH_BYTES), "y".to_owned()]));
        let viewed = viewed_column(&wide, None).expect("nothing is counted");
        let picks: Vec<Option<u32>> = (0..100).map(|row| (row == 50).then_some(1)).collect();
        let taken = take(&viewed, &UInt32Array::from(picks), None).expect("they are there");
        assert_eq!(first_part(std::slice::from_ref(&taken), 0..100), 0..100);
        let copied = copied(&taken, 0..100);
        assert_eq!((string_bytes(&copied), copied.null_count()), (1, 99));
        assert_eq!(copied.as_string::<i32>().value(50), "y");
        let all = [viewed];
        assert_eq!(
            (first_part(&all, 0..2), first_part(&all, 1..2), first_part(&all, 2..2)),
            (0..1, 1..2, 2..2)
        );
    }
}
