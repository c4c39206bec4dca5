//! What runs above the scan, in the session's process: merging groups, HAVING, DISTINCT, ORDER BY, LIMIT, projection.

use std::{collections::HashSet, sync::Arc};

use arrow::{
    array::{ArrayRef, UInt32Array},
    compute::{concat_batches, take},
    datatypes::{Field, Schema, SchemaRef},
    error::ArrowError,
    record_batch::{RecordBatch, RecordBatchOptions},
};
use carousel_engine::{
    SqlError, Type, Value,
    aggregate::{AggregateCall, Group, GroupTable},
    array::{arrow_cell_to_value, values_to_array},
    error::Result,
    expr::{EvalContext, Expr, eval, qualifies},
    operation::{Predicate, SortKey},
    order::sorted,
    value::compare_as,
};

use crate::{
    budget::{MemoryBudget, Reservation},
    plan::OutputColumn,
};

/// Rows that are kept for an order with a limit before those beyond the limit are dropped.
const COMPACT_ROWS: usize = 16_384;
/// While rows are sorted there are the batches as they came, all of them as one, and that one in order.
const SORT_COPIES: usize = 3;
/// What a row that was seen takes besides its values.
const SEEN_BYTES: usize = 48;

/// What runs above the scan, before parameters are known.
#[derive(Clone, Debug)]
pub struct AbovePlan {
    /// Types of the input: the scan's projection, or grouping keys and then results of aggregates.
    pub(crate) input: Vec<Type>,
    /// When groups come in: how many keys they have, and their aggregates.
    pub(crate) groups: Option<(usize, Vec<AggregateCall>)>,
    /// HAVING, over the input.
    pub(crate) filter: Predicate,
    /// Output columns over the input; those behind `output` only serve the order.
    pub(crate) columns: Vec<Expr>,
    /// Names and types of the visible output columns.
    pub(crate) output: Vec<(String, Type)>,
    /// DISTINCT over the visible output columns.
    pub(crate) distinct: bool,
    /// DISTINCT ON: of rows that are equal in these of `columns` only the first in order remains.
    pub(crate) distinct_on: Vec<usize>,
    /// ORDER BY over `columns`.
    pub(crate) sort: Vec<SortKey>,
    /// LIMIT
    pub(crate) limit: Option<Expr>,
    /// OFFSET
    pub(crate) offset: Option<Expr>,
    /// The first input column is an ordinal that gives the order and is not put out.
    pub(crate) ordinal: bool,
}

impl AbovePlan {
    /// For an answer without rows.
    pub(crate) fn nothing() -> AbovePlan {
        AbovePlan::returning(&[], false)
    }

    /// For the rows of RETURNING.
    pub(crate) fn returning(columns: &[OutputColumn], ordinal: bool) -> AbovePlan {
        let mut input: Vec<Type> = columns.iter().map(|c| c.ty.clone()).collect();
        let mut sort = Vec::new();
        if ordinal {
            input.insert(0, Type::Int8);
            sort.push(SortKey { column: 0, descending: false, nulls_first: false });
        }
        AbovePlan {
            columns: input.iter().enumerate().map(|(i, ty)| Expr::column(i, ty.clone())).collect(),
            input,
            groups: None,
            filter: Vec::new(),
            output: columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect(),
            distinct: false,
            distinct_on: Vec::new(),
            sort,
            limit: None,
            offset: None,
            ordinal,
        }
    }

    /// The order over the grouping keys, if the first groups in that order are all that is needed of the groups: there
    /// are no aggregates, for which a group must be whole, and nothing leaves groups out or makes several the same.
    pub(crate) fn group_keys(&self) -> Option<Vec<SortKey>> {
        let (keys, aggregates) = self.groups.as_ref()?;
        let plain = aggregates.is_empty() && self.filter.is_empty() && self.distinct_on.is_empty();
        if !plain || self.distinct || *keys == 0 {
            return None;
        }
        let over_key = |key: &SortKey| match self.columns.get(key.column)? {
            Expr::Column { index, .. } if index < keys => Some(SortKey { column: *index, ..key.clone() }),
            _ => None,
        };
        self.sort.iter().map(over_key).collect()
    }

    /// Whether the outputs are the inputs as they are.
    fn is_identity(&self) -> bool {
        self.filter.is_empty()
            && self.columns.len() == self.input.len()
            && self
                .columns
                .iter()
                .enumerate()
                .all(|(i, e)| matches!(e, Expr::Column { index, .. } if *index == i))
    }
}

/// What runs above the scan, with what follows from it for every execution.
#[derive(Debug)]
pub struct Pipeline {
    plan: AbovePlan,
    /// Of the batches that come out, and of those before they are put in order.
    schema: SchemaRef,
    wide: SchemaRef,
    /// The outputs are the inputs as they are.
    identity: bool,
}

impl Pipeline {
    pub(crate) fn new(plan: AbovePlan) -> Arc<Pipeline> {
        let types: Vec<Type> = plan.columns.iter().map(Expr::ty).collect();
        Arc::new(Pipeline {
            schema: schema_of(plan.output.iter().map(|(name, ty)| (name.as_str(), ty))),
            wide: schema_of(types.iter().map(|ty| ("", ty))),
            identity: plan.is_identity(),
            plan,
        })
    }

    pub(crate) fn plan(&self) -> &AbovePlan {
        &self.plan
    }

    /// The same with expressions that values have been put into by `bind`; columns stay what they are.
    pub(crate) fn bind(
        self: &Arc<Pipeline>,
        mut bind: impl FnMut(&[Expr]) -> Result<Vec<Expr>>,
    ) -> Result<Arc<Pipeline>> {
        let is_column = |expr: &Expr| matches!(expr, Expr::Column { .. });
        if self.plan.filter.is_empty() && self.plan.columns.iter().all(is_column) {
            return Ok(self.clone());
        }
        let mut plan = self.plan.clone();
        plan.filter = bind(&plan.filter)?;
        plan.columns = bind(&plan.columns)?;
        Ok(Pipeline::new(plan))
    }
}

/// What runs above the scan. Parts of the answer go in as they arrive, rows of the result come out as early as they are
/// known. For a write it passes RETURNING rows through, in the statement's order.
pub struct Above {
    pipeline: Arc<Pipeline>,
    context: EvalContext,
    limit: Option<u64>,
    offset: u64,
    groups: Option<GroupTable>,
    seen: HashSet<Vec<Value>>,
    buffered: Vec<RecordBatch>,
    buffered_rows: usize,
    /// What the groups, the rows to be sorted, and the rows that were seen take of it.
    group_memory: Reservation,
    sort_memory: Reservation,
    seen_memory: Reservation,
    /// Rows that have passed OFFSET's gate, and those that were let out.
    skipped: u64,
    emitted: u64,
}

impl std::fmt::Debug for Above {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Above")
            .field("plan", &self.pipeline.plan)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// What the pipeline has to say after it was given something.
#[derive(Debug)]
pub struct Progress {
    /// Rows of the result.
    pub output: Option<RecordBatch>,
    /// Nothing that is still to come can change the result: stop asking.
    pub done: bool,
}

fn arrow_error(error: ArrowError) -> SqlError {
    SqlError::internal(format!("above the scan: {error}"))
}

fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(arrow_error)
}

fn schema_of<'a>(columns: impl Iterator<Item = (&'a str, &'a Type)>) -> SchemaRef {
    let fields: Vec<Field> = columns.map(|(name, ty)| Field::new(name, ty.arrow(), true)).collect();
    Arc::new(Schema::new(fields))
}

impl Above {
    /// For a bound plan: its expressions have no parameters any more.
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        limit: Option<u64>,
        offset: u64,
        context: EvalContext,
        memory: &MemoryBudget,
    ) -> Above {
        let groups = Above::group_table(&pipeline.plan);
        Above {
            pipeline,
            context,
            limit,
            offset,
            groups,
            seen: HashSet::new(),
            buffered: Vec::new(),
            buffered_rows: 0,
            group_memory: memory.reservation(),
            sort_memory: memory.reservation(),
            seen_memory: memory.reservation(),
            skipped: 0,
            emitted: 0,
        }
    }

    /// For an answer without rows.
    pub(crate) fn nothing() -> Above {
        Above::new(
            Pipeline::new(AbovePlan::nothing()),
            None,
            0,
            EvalContext::default(),
            &MemoryBudget::default(),
        )
    }

    fn group_table(plan: &AbovePlan) -> Option<GroupTable> {
        let (keys, aggregates) = plan.groups.as_ref()?;
        Some(GroupTable::new(plan.input[..*keys].to_vec(), aggregates.clone()))
    }

    /// Arrow schema of the batches that come out: the output columns' names and Arrow types.
    pub fn schema(&self) -> SchemaRef {
        self.pipeline.schema.clone()
    }

    /// Whether rows may come out before [`Above::finish`].
    pub fn is_streaming(&self) -> bool {
        self.groups.is_none() && self.pipeline.plan.sort.is_empty()
    }

    /// Whether groups are expected rather than rows.
    pub fn takes_groups(&self) -> bool {
        self.groups.is_some()
    }

    pub(crate) fn plan(&self) -> &AbovePlan {
        &self.pipeline.plan
    }

    pub(crate) fn limit_and_offset(&self) -> (Option<u64>, u64) {
        (self.limit, self.offset)
    }

    /// Takes rows of an answer.
    pub fn rows(&mut self, batch: RecordBatch) -> Result<Progress> {
        if self.groups.is_some() {
            return Err(SqlError::internal("rows came where groups were asked for"));
        }
        if self.is_full() {
            return Ok(Progress { output: None, done: true });
        }
        let rows = batch.num_rows();
        if batch.num_columns() != self.pipeline.plan.input.len() {
            return Err(SqlError::internal(format!(
                "{} columns came where {} were asked for",
                batch.num_columns(),
                self.pipeline.plan.input.len()
            )));
        }
        let batch = if self.pipeline.identity {
            batch
        } else {
            let types = self.pipeline.plan.input.clone();
            let inputs = (0..rows).map(|row| {
                let cell = |(column, ty): (&ArrayRef, &Type)| arrow_cell_to_value(column, row, ty);
                batch.columns().iter().zip(&types).map(cell).collect()
            });
            self.compute(inputs.collect())?
        };
        self.take(batch)
    }

    /// Takes groups of an answer.
    pub fn groups(&mut self, groups: Vec<Group>) -> Result<()> {
        match &mut self.groups {
            Some(table) => {
                // What comes in is at most what is added; when that is too much, what is really held counts.
                let incoming: usize = groups.iter().map(Group::heap_size).sum();
                let grown = self.group_memory.grow(incoming);
                table.merge(groups)?;
                grown.or_else(|_| self.group_memory.resize(table.heap_size()))
            }
            None => Err(SqlError::internal("groups came where rows were asked for")),
        }
    }

    /// Everything has arrived: the rest of the result, and what it takes of the memory that all share. That is counted as long
    /// as the rows are kept.
    pub fn finish(mut self) -> Result<(Vec<RecordBatch>, Reservation)> {
        let mut output = Vec::new();
        if let Some(table) = self.groups.take() {
            let rows = table.finish()?.into_iter().map(|(mut key, results)| {
                key.extend(results);
                key
            });
            let batch = self.compute(rows.collect())?;
            output.extend(self.take(batch)?.output);
        }
        if !self.buffered.is_empty() {
            let batch = self.sort_buffered()?;
            let batch = self.first_of_equals(batch)?;
            output.extend(self.pass(batch)?);
        }
        let Above { pipeline, group_memory, seen_memory, sort_memory: mut held, .. } = self;
        drop((group_memory, seen_memory));
        if !pipeline.plan.ordinal {
            held.resize(output.iter().map(RecordBatch::get_array_memory_size).sum())?;
        }
        Ok((output, held))
    }

    /// HAVING and the output columns over input rows.
    fn compute(&self, rows: Vec<Vec<Value>>) -> Result<RecordBatch> {
        let mut columns: Vec<Vec<Value>> =
            vec![Vec::with_capacity(rows.len()); self.pipeline.plan.columns.len()];
        let mut kept = 0;
        for row in &rows {
            if !qualifies(&self.pipeline.plan.filter, row, &self.context)? {
                continue;
            }
            kept += 1;
            for (column, expr) in columns.iter_mut().zip(&self.pipeline.plan.columns) {
                column.push(eval(expr, row, &self.context)?);
            }
        }
        let arrays = columns
            .iter()
            .zip(&self.pipeline.plan.columns)
            .map(|(values, e)| values_to_array(values, &e.ty()));
        batch_of(&self.pipeline.wide, arrays.collect::<Result<Vec<_>>>()?, kept)
    }

    /// DISTINCT, ORDER BY and LIMIT over output rows.
    fn take(&mut self, batch: RecordBatch) -> Result<Progress> {
        let batch = if self.pipeline.plan.distinct { self.remove_duplicates(batch)? } else { batch };
        if self.pipeline.plan.sort.is_empty() {
            let output = self.pass(batch)?;
            return Ok(Progress { output, done: self.is_full() });
        }
        self.buffered_rows += batch.num_rows();
        // An INSERT has taken effect when its rows come: no error may say otherwise.
        if !self.pipeline.plan.ordinal {
            self.sort_memory.grow(SORT_COPIES * batch.get_array_memory_size())?;
        }
        self.buffered.push(batch);
        if let Some(limit) = self.limit
            && self.pipeline.plan.distinct_on.is_empty()
        {
            let wanted = usize::try_from(limit.saturating_add(self.offset)).unwrap_or(usize::MAX);
            if self.buffered_rows > wanted.saturating_mul(4).max(COMPACT_ROWS) {
                let sorted = self.sort_buffered()?;
                let kept: Vec<u32> = (0..wanted.min(sorted.num_rows()) as u32).collect();
                // A copy, which does not keep what it was cut from.
                let kept = select(&sorted, kept)?;
                self.sort_memory.resize(SORT_COPIES * kept.get_array_memory_size())?;
                self.buffered_rows = kept.num_rows();
                self.buffered = vec![kept];
            }
        }
        Ok(Progress { output: None, done: self.limit == Some(0) })
    }

    fn remove_duplicates(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        let mut kept = Vec::new();
        for row in 0..batch.num_rows() {
            let values = self.pipeline.plan.output.iter().zip(batch.columns()).map(|((_, ty), column)| {
                match (arrow_cell_to_value(column, row, ty), ty) {
                    // Trailing blanks of char(n) do not tell values apart.
                    (Value::Text(text), Type::Char(_)) => Value::text(text.trim_end_matches(' ')),
                    (value, _) => value,
                }
            });
            let values: Vec<Value> = values.collect();
            let bytes: usize = values.iter().map(|value| value.heap_size() + size_of::<Value>()).sum();
            if self.seen.insert(values) {
                self.seen_memory.grow(bytes + SEEN_BYTES)?;
                kept.push(row as u32);
            }
        }
        select(&batch, kept)
    }

    /// DISTINCT ON over sorted rows.
    fn first_of_equals(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.pipeline.plan.distinct_on.is_empty() {
            return Ok(batch);
        }
        let columns = self
            .pipeline
            .plan
            .distinct_on
            .iter()
            .map(|c| (batch.column(*c), self.pipeline.plan.columns[*c].ty()));
        let columns: Vec<(&ArrayRef, Type)> = columns.collect();
        let equal = |a: usize, b: usize| {
            let same = |(column, ty): &(&ArrayRef, Type)| {
                compare_as(&arrow_cell_to_value(*column, a, ty), &arrow_cell_to_value(*column, b, ty), ty)
                    .is_eq()
            };
            columns.iter().all(same)
        };
        let first = (0..batch.num_rows()).filter(|row| *row == 0 || !equal(row - 1, *row));
        select(&batch, first.map(|row| row as u32).collect())
    }

    fn sort_buffered(&mut self) -> Result<RecordBatch> {
        let all = concat_batches(&self.pipeline.wide, &self.buffered).map_err(arrow_error)?;
        self.buffered.clear();
        let types: Vec<Type> = self.pipeline.plan.columns.iter().map(Expr::ty).collect();
        let order = sorted(all.columns(), &types, &self.pipeline.plan.sort);
        select(&all, order)
    }

    /// OFFSET and LIMIT, and the visible columns of what remains.
    fn pass(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>> {
        let rows = batch.num_rows() as u64;
        let skip = rows.min(self.offset - self.skipped);
        self.skipped += skip;
        let left = self.limit.map_or(u64::MAX, |limit| limit - self.emitted);
        let kept = (rows - skip).min(left);
        self.emitted += kept;
        if kept == 0 {
            return Ok(None);
        }
        let batch = if kept == rows { batch } else { batch.slice(skip as usize, kept as usize) };
        let first = usize::from(self.pipeline.plan.ordinal);
        let visible = batch.columns()[first..first + self.pipeline.plan.output.len()].to_vec();
        batch_of(&self.pipeline.schema, visible, kept as usize).map(Some)
    }

    /// Whether LIMIT has been reached.
    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.emitted >= limit)
    }
}

fn select(batch: &RecordBatch, rows: Vec<u32>) -> Result<RecordBatch> {
    let count = rows.len();
    let rows = UInt32Array::from(rows);
    let columns = batch.columns().iter().map(|c| take(c, &rows, None).map_err(arrow_error));
    batch_of(&batch.schema(), columns.collect::<Result<Vec<_>>>()?, count)
}
