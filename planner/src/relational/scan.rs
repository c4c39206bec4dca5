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
    aggregate::{AggregateCall, Group, GroupTable},
    array::values_to_array,
    expr::{EvalContext, Expr},
    operation::{Operation, OperationKind, Predicate, Read, ReadOutput, Top},
    position::KeyRange,
};
use datafusion::{
    catalog::{Session, TableProvider},
    common::{Result as DataFusionResult, internal_err, tree_node::TreeNodeRecursion},
    datasource::TableType,
    execution::{
        SendableRecordBatchStream, TaskContext,
        memory_pool::{MemoryConsumer, MemoryReservation},
    },
    logical_expr::Expr as DataFusionExpr,
    physical_expr::EquivalenceProperties,
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
        execution_plan::{Boundedness, EmissionType},
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};

use super::{SystemView, execute::ScanFailed, function::external};
use crate::{bind::ranges, display::Printer, expression::literal};

/// Groups in a batch.
const GROUP_ROWS: usize = 8192;

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
    /// The parts of a read's answer. Nothing is asked before the stream is polled; dropping it cancels the read.
    fn read(&self, request: ReadRequest) -> BoxStream<'static, Result<Answer, Failure>>;

    /// The rows of one of the statement's system views, of the types of its columns: all its mentions show the same.
    fn system(&self, view: SystemView) -> &[Vec<Value>];

    /// Whether nobody waits for the statement any more: what computes without coming to an end of its own asks now and then.
    fn is_over(&self) -> bool;
}

/// A part of a read's answer.
#[derive(Debug)]
pub enum Answer {
    /// Rows.
    Rows(RecordBatch),
    /// Groups with partial states, to be merged with those of the other parts.
    Groups(Vec<Group>),
}

/// What is read of a table's rows.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// Their columns.
    Columns,
    /// Groups of them: keys and aggregates.
    Groups(Vec<Expr>, Vec<AggregateCall>),
}

/// A table with the conjuncts that concern it.
#[derive(Debug)]
pub(crate) struct ScannedTable {
    pub(crate) table: Arc<TableSchema>,
    pub(crate) predicate: Predicate,
    pub(crate) wanted: Wanted,
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
        let schema = Arc::new(Schema::new(fields));
        ScannedTable { table, predicate, wanted: Wanted::Columns, context, reader, schema }
    }

    /// Groups of its rows instead, whose columns have these names and types.
    pub(crate) fn grouped(
        self,
        keys: Vec<Expr>,
        calls: Vec<AggregateCall>,
        columns: &[(String, Type)],
    ) -> ScannedTable {
        let fields: Vec<Field> =
            columns.iter().map(|(name, ty)| Field::new(name, ty.arrow(), true)).collect();
        ScannedTable { wanted: Wanted::Groups(keys, calls), schema: Arc::new(Schema::new(fields)), ..self }
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
        let output = match &self.wanted {
            Wanted::Columns => {
                let mut projection: Vec<Expr> =
                    columns.iter().map(|c| Expr::column(*c, self.table.columns[*c].ty.clone())).collect();
                if projection.is_empty() {
                    // Only the number of rows matters.
                    projection.push(literal(Value::Bool(true), Type::Bool));
                }
                let top = limit.map(|limit| Top { keys: Vec::new(), limit: limit as u64 });
                ReadOutput::Rows { projection, top }
            }
            Wanted::Groups(keys, calls) => {
                ReadOutput::Groups { group_by: keys.clone(), aggregates: calls.clone(), top: None }
            }
        };
        let read = Read { predicate: self.predicate.clone(), output };
        let ranges = ranges(&self.table, &self.predicate);
        let operation = Operation {
            table: self.table.id,
            context: EvalContext::clone(&self.context),
            kind: OperationKind::Read(read),
        };
        let body = Body::Data(Data::new(operation));
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
            columns,
            limit: if matches!(self.wanted, Wanted::Columns) { limit } else { None },
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
    /// Which columns of groups are wanted.
    columns: Vec<usize>,
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
            && let Ok(operation) = data.operation.open()
            && let OperationKind::Read(read) = &operation.kind
        {
            let names: Vec<String> = self.table.columns.iter().map(|c| c.name.clone()).collect();
            let printer = Printer { names: &names, context: &operation.context };
            if let ReadOutput::Groups { group_by, .. } = &read.output {
                write!(f, ", grouped by [{}]", printer.list(group_by))?;
            }
            if !read.predicate.is_empty() {
                let conjuncts: Vec<String> = read.predicate.iter().map(|c| printer.expr(c)).collect();
                write!(f, ", where {}", conjuncts.join(" AND "))?;
            }
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
        context: Arc<TaskContext>,
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
        if let Body::Data(data) = &self.request.body
            && let OperationKind::Read(Read {
                output: ReadOutput::Groups { group_by, aggregates, .. }, ..
            }) = &data.operation.open().map_err(external)?.kind
        {
            let groups = GroupTable::for_read(group_by, aggregates);
            let mut types: Vec<Type> = group_by.iter().map(Expr::ty).collect();
            for call in aggregates {
                types.push(call.result_type().map_err(external)?);
            }
            let reservation = MemoryConsumer::new("groups").register(context.memory_pool());
            let gathering =
                Gathering { parts, groups, types, columns: self.columns.clone(), schema, reservation };
            let rows = futures::stream::once(gathering.finish()).try_flatten();
            return Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows)));
        }
        let rows = parts.map(move |part| {
            let batch = match part.map_err(|failure| ScanFailed(failure).into_datafusion())? {
                Answer::Rows(batch) => batch,
                Answer::Groups(_) => return internal_err!("groups came where rows were asked for"),
            };
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let columns = batch.columns()[..schema.fields().len()].to_vec();
            Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows)))
    }
}

/// Groups of which the parts still arrive.
struct Gathering {
    parts: BoxStream<'static, Result<Answer, Failure>>,
    groups: GroupTable,
    /// Types of keys and results.
    types: Vec<Type>,
    columns: Vec<usize>,
    schema: SchemaRef,
    reservation: MemoryReservation,
}

impl Gathering {
    /// Merges the parts; gives the groups as rows.
    async fn finish(
        mut self,
    ) -> DataFusionResult<impl futures::Stream<Item = DataFusionResult<RecordBatch>>> {
        while let Some(part) = self.parts.next().await {
            match part.map_err(|failure| ScanFailed(failure).into_datafusion())? {
                Answer::Groups(groups) => self.groups.merge(groups).map_err(external)?,
                Answer::Rows(_) => return internal_err!("rows came where groups were asked for"),
            }
            self.reservation.try_resize(self.groups.heap_size())?;
        }
        let Gathering { parts: _, groups, types, columns, schema, reservation } = self;
        let rows: Vec<Vec<Value>> = groups
            .finish()
            .map_err(external)?
            .into_iter()
            .map(|(mut key, results)| {
                key.extend(results);
                key
            })
            .collect();
        let batches = (0..rows.len()).step_by(GROUP_ROWS).collect::<Vec<_>>();
        Ok(futures::stream::iter(batches).map(move |first| {
            // The groups are held for as long as there are some to come.
            let _ = &reservation;
            let rows = &rows[first..rows.len().min(first + GROUP_ROWS)];
            let arrays = columns.iter().map(|column| {
                let values: Vec<Value> = rows.iter().map(|row| row[*column].clone()).collect();
                values_to_array(&values, &types[*column]).map_err(external)
            });
            let arrays = arrays.collect::<DataFusionResult<Vec<_>>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
            Ok(RecordBatch::try_new_with_options(schema.clone(), arrays, &options)?)
        }))
    }
}
