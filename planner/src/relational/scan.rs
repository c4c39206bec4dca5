//! Tables as DataFusion sees them: each scan is a Rubberband read.

use std::{fmt, sync::Arc};

use arrow::{
    datatypes::{Field, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use async_trait::async_trait;
use carousel_cluster::{
    client::Failure,
    message::{Body, Data},
};
use carousel_engine::{
    TableId, TableSchema, Ts, Type, Value,
    expr::{EvalContext, Expr},
    operation::{Operation, OperationKind, Predicate, Read, ReadOutput, Top},
    position::KeyRange,
};
use datafusion::{
    catalog::{Session, TableProvider},
    common::{Result as DataFusionResult, internal_err, tree_node::TreeNodeRecursion},
    datasource::TableType,
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::Expr as DataFusionExpr,
    physical_expr::EquivalenceProperties,
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
        execution_plan::{Boundedness, EmissionType},
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, stream::BoxStream};

use super::execute::ScanFailed;
use crate::{bind::ranges, display::Printer, expression::literal};

/// A read of one table: a message without its identity.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The table with the version that the statement was planned against.
    pub tables: Vec<(TableId, Ts)>,
    /// The keys that it reads: sorted, disjoint, not empty.
    pub ranges: Vec<KeyRange>,
    /// The body; `read_ts` and `replica_offset` are for the reader to set.
    pub body: Body,
}

/// Reads tables for a relational statement, all of them as of the same `Ts`.
pub trait Reader: fmt::Debug + Send + Sync {
    /// The rows of a read. Nothing is asked before the stream is polled; dropping it cancels the read.
    fn read(&self, request: ReadRequest) -> BoxStream<'static, Result<RecordBatch, Failure>>;
}

/// A table with the conjuncts that concern it.
#[derive(Debug)]
pub(crate) struct ScannedTable {
    pub(crate) table: Arc<TableSchema>,
    pub(crate) predicate: Predicate,
    pub(crate) context: Arc<EvalContext>,
    pub(crate) reader: Arc<dyn Reader>,
    pub(crate) schema: SchemaRef,
}

impl ScannedTable {
    pub(crate) fn new(
        table: Arc<TableSchema>,
        predicate: Predicate,
        context: Arc<EvalContext>,
        reader: Arc<dyn Reader>,
    ) -> ScannedTable {
        let columns = table.visible_columns().iter();
        let fields: Vec<Field> = columns.map(|c| Field::new(&c.name, c.ty.arrow(), true)).collect();
        ScannedTable { table, predicate, context, reader, schema: Arc::new(Schema::new(fields)) }
    }
}

#[async_trait]
impl TableProvider for ScannedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[DataFusionExpr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let columns = projection.unwrap_or(&all).clone();
        let schema = Arc::new(self.schema.project(&columns)?);
        let mut output: Vec<Expr> =
            columns.iter().map(|c| Expr::column(*c, self.table.columns[*c].ty.clone())).collect();
        if output.is_empty() {
            // Only the number of rows matters.
            output.push(literal(Value::Bool(true), Type::Bool));
        }
        let top = limit.map(|limit| Top { keys: Vec::new(), limit: limit as u64 });
        let read =
            Read { predicate: self.predicate.clone(), output: ReadOutput::Rows { projection: output, top } };
        let ranges = ranges(&self.table, &self.predicate);
        let operation = Operation {
            table: self.table.id,
            context: EvalContext::clone(&self.context),
            kind: OperationKind::Read(read),
        };
        let body = Body::Data(Data {
            operation: Arc::new(operation),
            read_ts: None,
            replica_offset: 0,
            fallible: false,
            staged: None,
        });
        let request = ReadRequest { tables: vec![(self.table.id, self.table.version)], ranges, body };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(Arc::new(RubberbandRead {
            table: self.table.clone(),
            request,
            limit,
            schema,
            reader: self.reader.clone(),
            properties: Arc::new(properties),
        }))
    }
}

/// The scan of a table.
#[derive(Debug)]
pub(crate) struct RubberbandRead {
    pub(crate) table: Arc<TableSchema>,
    pub(crate) request: ReadRequest,
    limit: Option<usize>,
    schema: SchemaRef,
    reader: Arc<dyn Reader>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for RubberbandRead {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "RubberbandRead: {} [{}]", self.table.name, names.join(", "))?;
        if let Body::Data(data) = &self.request.body
            && let OperationKind::Read(read) = &data.operation.kind
            && !read.predicate.is_empty()
        {
            let names: Vec<String> = self.table.columns.iter().map(|c| c.name.clone()).collect();
            let printer = Printer { names: &names, context: &data.operation.context };
            let conjuncts: Vec<String> = read.predicate.iter().map(|c| printer.expr(c)).collect();
            write!(f, ", where {}", conjuncts.join(" AND "))?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {limit}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for RubberbandRead {
    fn name(&self) -> &str {
        "RubberbandRead"
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
        _context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("a scan has one partition, not {partition}");
        }
        let schema = self.schema.clone();
        // A predicate that is never true asks nobody.
        let parts = if self.request.ranges.is_empty() {
            futures::stream::empty().boxed()
        } else {
            self.reader.read(self.request.clone())
        };
        let rows = parts.map(move |part| {
            let batch = part.map_err(|failure| ScanFailed(failure).into_datafusion())?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let columns = batch.columns()[..schema.fields().len()].to_vec();
            Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows)))
    }
}
