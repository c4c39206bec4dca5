//! Rows that are computed once and needed in several places.
//!
//! Each place is a leaf of the plan. Whichever is polled first has the rows computed, by a task of their own, which ends with
//! the last place: none waits for one that nobody polls any more. The rows are kept, within the memory of the statements,
//! until the last place has ended.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use arrow::{
    datatypes::{Field, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider},
    common::{
        Result as DataFusionResult, internal_err, runtime::SpawnedTask, tree_node::TreeNodeRecursion,
        utils::memory::RecordBatchMemoryCounter,
    },
    datasource::TableType,
    error::DataFusionError,
    execution::{
        SendableRecordBatchStream, TaskContext,
        memory_pool::{MemoryConsumer, MemoryReservation},
    },
    logical_expr::{Expr as DataFusionExpr, LogicalPlan},
    physical_expr::EquivalenceProperties,
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
        execute_stream,
        execution_plan::{Boundedness, EmissionType},
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{
    FutureExt, StreamExt, TryFutureExt, TryStreamExt,
    future::{BoxFuture, Shared},
    stream,
};

use super::endable::endable;
use crate::parse::with_stack;

/// The rows, once they are all there.
type Filling = Shared<BoxFuture<'static, Result<Arc<Kept>, Arc<DataFusionError>>>>;

/// Rows that are held.
#[derive(Debug)]
struct Kept {
    batches: Vec<RecordBatch>,
    _memory: MemoryReservation,
}

/// What its places share.
#[derive(Debug)]
pub(crate) struct SharedRows {
    /// Which of the statement's shared rows they are, from 1 on.
    pub(crate) number: usize,
    is_deep: bool,
    plan: OnceLock<Arc<dyn ExecutionPlan>>,
    filling: OnceLock<Filling>,
}

impl SharedRows {
    /// What computes them.
    pub(crate) fn plan(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.plan.get()
    }
}

/// Shared rows as a table.
#[derive(Debug)]
pub(crate) struct SharedTable {
    schema: SchemaRef,
    plan: LogicalPlan,
    rows: Arc<SharedRows>,
}

impl SharedTable {
    /// The rows of a plan whose columns have names of their own.
    pub(crate) fn new(number: usize, plan: LogicalPlan, is_deep: bool) -> SharedTable {
        let fields = plan.schema().fields().iter();
        let fields: Vec<Field> =
            fields.map(|field| Field::new(field.name(), field.data_type().clone(), true)).collect();
        let rows = SharedRows { number, is_deep, plan: OnceLock::new(), filling: OnceLock::new() };
        SharedTable { schema: Arc::new(Schema::new(fields)), plan, rows: Arc::new(rows) }
    }
}

#[async_trait]
impl TableProvider for SharedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[DataFusionExpr],
        _limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        if self.rows.plan.get().is_none() {
            let plan = state.create_physical_plan(&self.plan).await?;
            // Places that are planned beside each other all take the first plan.
            self.rows.plan.get_or_init(|| plan);
        }
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let columns = projection.unwrap_or(&all).clone();
        let schema = Arc::new(self.schema.project(&columns)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let rows = self.rows.clone();
        Ok(Arc::new(SharedScan { rows, columns, schema, properties: Arc::new(properties) }))
    }
}

/// A place that reads shared rows. What computes them is none of its inputs: nothing that is done to a plan may make it
/// another one in one of the places.
#[derive(Debug)]
pub(crate) struct SharedScan {
    pub(crate) rows: Arc<SharedRows>,
    columns: Vec<usize>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for SharedScan {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "SharedRows: {} [{}]", self.rows.number, names.join(", "))
    }
}

impl ExecutionPlan for SharedScan {
    fn name(&self) -> &str {
        "SharedRows"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
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
        let Some(plan) = self.rows.plan().filter(|_| partition == 0) else {
            return internal_err!("shared rows without a plan, or a partition {partition} of them");
        };
        let is_deep = self.rows.is_deep;
        let filling = self
            .rows
            .filling
            .get_or_init(|| fill_apart(plan.clone(), is_deep, context).map_err(Arc::new).boxed().shared())
            .clone();
        let (schema, columns) = (self.schema.clone(), self.columns.clone());
        let rows = filling.map_err(|error| DataFusionError::from(&error)).map_ok(move |kept| {
            stream::iter(0..kept.batches.len()).map(move |index| {
                let batch = &kept.batches[index];
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let columns = columns.iter().map(|column| batch.column(*column).clone()).collect();
                Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
            })
        });
        let rows = stream::once(rows).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows)))
    }
}

/// Has a task compute the rows, which ends when nobody waits for it.
async fn fill_apart(
    plan: Arc<dyn ExecutionPlan>,
    is_deep: bool,
    context: Arc<TaskContext>,
) -> DataFusionResult<Arc<Kept>> {
    let task = SpawnedTask::spawn(fill(plan, is_deep, context));
    task.join_unwind().await.map_err(|error| DataFusionError::External(Box::new(error)))?
}

/// Computes the rows.
async fn fill(
    plan: Arc<dyn ExecutionPlan>,
    is_deep: bool,
    context: Arc<TaskContext>,
) -> DataFusionResult<Arc<Kept>> {
    let memory = MemoryConsumer::new("shared rows").register(context.memory_pool());
    let mut rows = with_stack(is_deep, || execute_stream(endable(plan)?, context))?;
    let mut batches = Vec::new();
    // Batches may be parts of the same arrays.
    let mut counter = RecordBatchMemoryCounter::new();
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        memory.try_grow(counter.count_batch(&batch))?;
        batches.push(batch);
    }
    Ok(Arc::new(Kept { batches, _memory: memory }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::{ArrayRef, Int64Array};
    use datafusion::{
        datasource::{MemTable, provider_as_source},
        execution::{memory_pool::GreedyMemoryPool, runtime_env::RuntimeEnvBuilder},
        logical_expr::LogicalPlanBuilder,
        prelude::SessionContext,
    };

    use super::*;

    const ROWS: usize = 4096;

    /// Two places of the same rows, which come in batches of one row each, all parts of one array.
    async fn two_places(context: &SessionContext) -> [Arc<dyn ExecutionPlan>; 2] {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let batch = RecordBatch::try_from_iter([("a", numbers)]).expect("the column fits");
        let batches = (0..ROWS).map(|row| batch.slice(row, 1)).collect();
        let table = MemTable::try_new(batch.schema(), vec![batches]).expect("a table");
        let plan = LogicalPlanBuilder::scan("t", provider_as_source(Arc::new(table)), None)
            .and_then(LogicalPlanBuilder::build)
            .expect("a plan");
        let shared = SharedTable::new(1, plan, false);
        let state = context.state();
        let place = || shared.scan(&state, None, &[], None);
        [place().await.expect("a place"), place().await.expect("another")]
    }

    fn with_memory(bytes: usize) -> SessionContext {
        let pool = Arc::new(GreedyMemoryPool::new(bytes));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().expect("a runtime");
        SessionContext::new_with_config_rt(Default::default(), runtime)
    }

    async fn count(mut rows: SendableRecordBatchStream) -> DataFusionResult<usize> {
        let mut count = 0;
        while let Some(batch) = rows.next().await {
            count += batch?.num_rows();
        }
        Ok(count)
    }

    #[tokio::test]
    async fn rows_take_what_they_are_until_their_last_place_has_ended() {
        let context = with_memory(ROWS * 8 * 2);
        let pool = context.runtime_env().memory_pool.clone();
        let [one, other] = two_places(&context).await;
        let [one, other] =
            [one, other].map(|place| place.execute(0, context.task_ctx()).expect("it is executed"));
        assert_eq!(count(one).await.expect("there is room"), ROWS);
        assert!((ROWS * 8..ROWS * 16).contains(&pool.reserved()), "{}", pool.reserved());
        assert_eq!(count(other).await.expect("there is room"), ROWS);
        assert_eq!(pool.reserved(), 0);
    }

    #[tokio::test]
    async fn rows_beyond_the_memory_are_refused_in_each_place() {
        let context = with_memory(ROWS * 4);
        for place in two_places(&context).await {
            let rows = place.execute(0, context.task_ctx()).expect("it is executed");
            let error = count(rows).await.expect_err("they take more");
            assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
        }
        assert_eq!(context.runtime_env().memory_pool.reserved(), 0);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_place_that_is_polled_no_more() {
        let context = with_memory(ROWS * 16);
        let [one, other] = two_places(&context).await;
        let mut left = one.execute(0, context.task_ctx()).expect("it is executed");
        // It has begun the rows, and is left.
        assert!(left.next().now_or_never().is_none());
        let rows = count(other.execute(0, context.task_ctx()).expect("it is executed"));
        let rows = tokio::time::timeout(Duration::from_secs(60), rows).await.expect("they come");
        assert_eq!(rows.expect("there is room"), ROWS);
    }
}
