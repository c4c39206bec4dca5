//! Running a relational statement: physical planning, bounded memory, rows and errors.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arrow::{error::ArrowError, record_batch::RecordBatch};
use carousel_cluster::client::Failure;
use carousel_engine::{SqlError, SqlState, TableSchema, Value, error::Result, expr::EvalContext};
use datafusion::{
    error::DataFusionError,
    execution::{
        SendableRecordBatchStream, SessionState, SessionStateBuilder,
        disk_manager::{DiskManagerBuilder, DiskManagerMode},
        memory_pool::{GreedyMemoryPool, MemoryPool},
        runtime_env::RuntimeEnvBuilder,
    },
    physical_plan::{ExecutionPlan, displayable, execute_stream},
    prelude::SessionConfig,
};
use futures::{StreamExt, executor::block_on, stream::BoxStream};
use tokio::task::unconstrained;

use crate::{budget::MemoryBudget, parse::with_stack};

use super::{
    SystemView,
    endable::endable,
    fence,
    lower::lower,
    node::{Kind, Node},
    scan::{Answer, ReadRequest, Reader, RubberbandRead},
    shared::SharedScan,
};

/// Rows in a batch.
pub(super) const BATCH_ROWS: usize = 8192;

/// How a scan failed, on its way through DataFusion.
#[derive(Debug, thiserror::Error)]
#[error("a scan failed: {0:?}")]
pub(crate) struct ScanFailed(pub(crate) Failure);

impl ScanFailed {
    pub(crate) fn into_datafusion(self) -> DataFusionError {
        DataFusionError::External(Box::new(self))
    }
}

/// What relational statements of all sessions share: the memory for joins, sorts and groups.
#[derive(Debug)]
pub struct Runtime {
    state: SessionState,
    memory: MemoryBudget,
}

impl Runtime {
    /// All statements together may take `memory_bytes` for what they hold: 53200 beyond it.
    ///
    /// # Errors
    /// XX000 when DataFusion cannot be set up.
    pub fn new(memory_bytes: usize) -> Result<Runtime> {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory_bytes));
        let memory = MemoryBudget::of(pool.clone());
        let environment = RuntimeEnvBuilder::new()
            .with_memory_pool(pool)
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
            .build_arc()
            .map_err(|e| sql_error(&e))?;
        // Statements run beside each other; each by itself is one thread's work.
        let config = SessionConfig::new().with_target_partitions(1).with_batch_size(BATCH_ROWS);
        // Branches of a UNION are not sorted each by itself: of the order, DataFusion forgets what is constant in each of them, and
        // the first rows of all are then told by the rest.
        let config = config.with_repartition_sorts(false);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(environment)
            .with_physical_optimizer_rules(fence::rules())
            .build();
        Ok(Runtime { state, memory })
    }

    /// The memory, for statements about one table to draw from, too.
    pub fn memory(&self) -> &MemoryBudget {
        &self.memory
    }
}

/// A bound relational statement.
#[derive(Debug)]
pub struct Relational {
    pub(crate) node: Node,
    pub(crate) context: Arc<EvalContext>,
}

impl Relational {
    /// How many reads it takes. They must all be as of the same `Ts`.
    pub fn reads(&self) -> usize {
        fn count(node: &Node, shared: &mut BTreeSet<*const Node>) -> usize {
            if let Kind::Shared(input) = &node.kind
                && !shared.insert(Arc::as_ptr(input))
            {
                return 0;
            }
            let own = usize::from(matches!(node.kind, Kind::Scan { .. } | Kind::Groups { .. }));
            own + node.inputs().into_iter().map(|input| count(input, shared)).sum::<usize>()
        }
        count(&self.node, &mut BTreeSet::new())
    }

    /// The system views that it shows, each once.
    pub fn system_views(&self) -> BTreeSet<SystemView> {
        fn collect(node: &Node, views: &mut BTreeSet<SystemView>) {
            if let Kind::System(view) = node.kind {
                views.insert(view);
            }
            node.inputs().into_iter().for_each(|input| collect(input, views));
        }
        let mut views = BTreeSet::new();
        collect(&self.node, &mut views);
        views
    }

    fn physical(&self, runtime: &Runtime, reader: Arc<dyn Reader>) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = lower(&self.node, &self.context, &reader)?;
        // Planning waits for nothing: tables are known and nothing is read. It must not be asked to let others run, either: as long
        // as this thread stands still here, nobody would wake it.
        let planning = unconstrained(runtime.state.create_physical_plan(&plan));
        block_on(planning).map_err(|e| sql_error(&e))
    }

    /// Starts it: nothing is read before the rows are asked for.
    ///
    /// # Errors
    /// What is only found out when parameters are known.
    pub fn start(&self, runtime: &Runtime, reader: Arc<dyn Reader>) -> Result<RowStream> {
        // A UNION of many branches is as deep as it is long.
        with_stack(self.node.is_deep(), || {
            let plan = endable(self.physical(runtime, reader)?).map_err(|e| sql_error(&e))?;
            let rows = execute_stream(plan, runtime.state.task_ctx()).map_err(|e| sql_error(&e))?;
            Ok(RowStream { rows, has_columns: !self.node.fields.is_empty() })
        })
    }
}

/// The rows of a relational statement. Dropping it cancels the reads.
pub struct RowStream {
    rows: SendableRecordBatchStream,
    /// A plan of rows without columns has some in spite of that.
    has_columns: bool,
}

impl std::fmt::Debug for RowStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowStream").finish_non_exhaustive()
    }
}

impl RowStream {
    /// The next rows; `None` after the last.
    ///
    /// # Errors
    /// How a scan, or what runs above it, failed.
    pub async fn next(&mut self) -> Option<Result<RecordBatch, Failure>> {
        let batch = self.rows.next().await?;
        let batch = batch.and_then(|batch| match self.has_columns {
            true => Ok(batch),
            false => Ok(batch.project(&[])?),
        });
        Some(batch.map_err(|error| match scan_failure(&error) {
            Some(failure) => failure,
            None => Failure::Sql(sql_error(&error)),
        }))
    }
}

/// The error of a scan within an error of DataFusion.
fn scan_failure(error: &DataFusionError) -> Option<Failure> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(ScanFailed(failure)) = error.downcast_ref::<ScanFailed>() {
            return Some(failure.clone());
        }
        next = error.source();
    }
    None
}

/// The error of the engine within an error of DataFusion, or what DataFusion's own error means to a client.
pub(crate) fn sql_error(error: &DataFusionError) -> SqlError {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<SqlError>() {
            return error.clone();
        }
        next = error.source();
    }
    match error.find_root() {
        DataFusionError::ResourcesExhausted(detail) => {
            SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail(detail.clone()).with_hint(
                "The statement joins, sorts or groups more rows than fit; make it select fewer of them.",
            )
        }
        DataFusionError::ArrowError(error, _) if matches!(**error, ArrowError::OffsetOverflowError(_)) => {
            SqlError::new(SqlState::LIMIT_EXCEEDED, "a column of one batch is longer than 2 GB")
        }
        DataFusionError::NotImplemented(what) => SqlError::unsupported(what),
        other => SqlError::internal(format!("above the scan: {other}")),
    }
}

/// A reader for plans that are only looked at.
#[derive(Debug)]
struct NoReader;

impl Reader for NoReader {
    fn is_over(&self) -> bool {
        false
    }

    fn read(&self, _request: ReadRequest) -> BoxStream<'static, Result<Answer, Failure>> {
        futures::stream::once(async { Err(Failure::Sql(SqlError::internal("EXPLAIN reads nothing"))) })
            .boxed()
    }

    fn system(&self, _view: SystemView) -> &[Vec<Value>] {
        &[]
    }
}

/// The reads of a plan and their tables.
type Reads = Vec<(Arc<TableSchema>, ReadRequest)>;

/// What EXPLAIN shows: the physical plan, one line an element, and the reads in it.
pub(crate) fn explain_relational(relational: &Relational) -> Result<(Vec<String>, Reads)> {
    let runtime = Runtime::new(0)?;
    let is_deep = relational.node.is_deep();
    let plan = with_stack(is_deep, || relational.physical(&runtime, Arc::new(NoReader)))?;
    let mut found = Found::default();
    found.collect(&plan);
    let mut lines = Vec::new();
    let show = |lines: &mut Vec<String>, plan: &Arc<dyn ExecutionPlan>, indent: &str| {
        let text = displayable(plan.as_ref()).indent(false).to_string();
        lines.extend(text.lines().map(|line| format!("{indent}{line}")));
    };
    show(&mut lines, &plan, "");
    for (number, plan) in &found.shared {
        lines.push(format!("Rows {number}, computed once:"));
        show(&mut lines, plan, "  ");
    }
    Ok((lines, found.reads))
}

/// What is found in a plan that is shown.
#[derive(Default)]
struct Found {
    reads: Reads,
    /// What is computed once, by number.
    shared: BTreeMap<usize, Arc<dyn ExecutionPlan>>,
}

impl Found {
    fn collect(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        let node = plan.as_ref() as &dyn std::any::Any;
        if let Some(read) = node.downcast_ref::<RubberbandRead>() {
            self.reads.push((read.table.clone(), read.request.clone()));
        }
        if let Some(SharedScan { rows, .. }) = node.downcast_ref::<SharedScan>()
            && let Some(plan) = rows.plan()
            && self.shared.insert(rows.number, plan.clone()).is_none()
        {
            self.collect(plan);
        }
        for child in plan.children() {
            self.collect(child);
        }
    }
}
