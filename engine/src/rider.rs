//! An operation on its way through a shard.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, Int64Array},
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
};

use crate::{
    batch_size::RESULT_BYTES,
    error::{Result, SqlError},
    expr::{
        EvalContext, Expr, Input, can_fail, columns, remap_columns,
        vector::{evaluate_part, string_bytes},
    },
    found::{FoundRows, Wanted},
    kernel::{self, Groups},
    operation::{OnConflict, Operation, OperationKind, OrderedOperation, ReadOutput, RowBatch, Ts},
    position::KeyRange,
    predicate_index::{SplitPredicate, split},
    schema::{TableId, TableSchema},
};

/// Expressions over some columns of a row, renumbered so that only those columns need be fetched.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    /// As they were given.
    source: Vec<Expr>,
    columns: Vec<usize>,
    exprs: Vec<Expr>,
    schema: SchemaRef,
}

/// Fetches a column; [`SqlError::batch_full`] when the rows are too many for an array of it.
pub(crate) type Fetch<'a> = &'a dyn Fn(usize) -> Result<ArrayRef>;

/// A batch of these columns; their types make its schema.
pub(crate) fn batch_of(columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let fields: Vec<Field> =
        columns.iter().map(|column| Field::new("", column.data_type().clone(), true)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|error| SqlError::internal(error.to_string()))
}

fn check(exprs: &[Expr], input: Input<'_>) -> Result<()> {
    exprs.iter().try_for_each(|expr| input.check(expr))
}

/// The projections that reads have asked for last: statements that are prepared once are asked often.
#[derive(Debug, Default)]
pub(crate) struct Projections {
    recent: VecDeque<Arc<Projection>>,
}

impl Projections {
    const KEPT: usize = 16;

    fn get(&mut self, exprs: &[Expr], input: Input<'_>) -> Result<Arc<Projection>> {
        // Constants that compare as equal may still look different.
        if !exprs.iter().all(|expr| matches!(expr, Expr::Column { .. })) {
            return Ok(Arc::new(Projection::new(exprs, input)?));
        }
        if let Some(found) = self.recent.iter().find(|recent| recent.source == exprs) {
            return Ok(found.clone());
        }
        let mut projection = Projection::new(exprs, input)?;
        projection.source = exprs.to_vec();
        let projection = Arc::new(projection);
        self.recent.truncate(Projections::KEPT - 1);
        self.recent.push_front(projection.clone());
        Ok(projection)
    }
}

impl Projection {
    /// Of expressions over `input`.
    pub(crate) fn new(exprs: &[Expr], input: Input<'_>) -> Result<Projection> {
        check(exprs, input)?;
        let needed: BTreeSet<usize> = exprs.iter().flat_map(columns).collect();
        let columns: Vec<usize> = needed.into_iter().collect();
        let place = |index: usize| columns.binary_search(&index).unwrap_or(0);
        let exprs: Vec<Expr> = exprs.iter().map(|expr| remap_columns(expr.clone(), &place)).collect();
        let fields: Vec<Field> = exprs
            .iter()
            .enumerate()
            .map(|(index, expr)| Field::new(format!("column{}", index + 1), expr.ty().arrow(), true))
            .collect();
        Ok(Projection { source: Vec::new(), columns, exprs, schema: Arc::new(Schema::new(fields)) })
    }

    /// With the row's ordinal in front.
    fn with_ordinal(mut self) -> Projection {
        let mut fields = vec![Arc::new(Field::new("ordinal", DataType::Int64, false))];
        fields.extend(self.schema.fields().iter().cloned());
        self.schema = Arc::new(Schema::new(fields));
        self
    }

    /// The table's columns that the input columns are.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The table's column that an input column is.
    pub(crate) fn source_of(&self, input: usize) -> Option<usize> {
        self.columns.get(input).copied()
    }

    /// The table's columns that the expressions are, if they are nothing but columns.
    pub(crate) fn table_columns(&self) -> Option<impl Iterator<Item = usize>> {
        let column = |expr: &Expr| match expr {
            Expr::Column { index, .. } => self.source_of(*index),
            _ => None,
        };
        let all = self.exprs.iter().all(|expr| column(expr).is_some());
        all.then(move || self.exprs.iter().filter_map(column))
    }

    /// The fetched columns as a batch.
    pub(crate) fn input(&self, rows: usize, fetch: Fetch<'_>) -> Result<RecordBatch> {
        batch_of(self.columns.iter().map(|column| fetch(*column)).collect::<Result<_>>()?, rows)
    }

    /// The expressions' values; [`SqlError::batch_full`] when they are of several rows and too large for arrays.
    pub(crate) fn evaluate(
        &self,
        rows: usize,
        fetch: Fetch<'_>,
        context: &EvalContext,
    ) -> Result<Vec<ArrayRef>> {
        if let Some(columns) = self.table_columns() {
            return columns.map(fetch).collect();
        }
        let input = self.input(rows, fetch)?;
        self.exprs
            .iter()
            .map(|expr| match expr {
                Expr::Column { index, .. } => Ok(input.column(*index).clone()),
                _ => evaluate_part(expr, &input, context),
            })
            .collect()
    }

    /// The expressions' values as a batch for whoever submitted the operation; [`SqlError::batch_full`] when they are of
    /// several rows and too large for one.
    pub(crate) fn batch(
        &self,
        rows: usize,
        ordinals: Option<&[u64]>,
        fetch: Fetch<'_>,
        context: &EvalContext,
    ) -> Result<RecordBatch> {
        let mut columns = self.evaluate(rows, fetch, context)?;
        if rows > 1 && columns.iter().map(string_bytes).sum::<usize>() > RESULT_BYTES {
            return Err(SqlError::batch_full());
        }
        if let Some(ordinals) = ordinals {
            let ordinals: Int64Array = ordinals.iter().map(|ordinal| *ordinal as i64).collect();
            columns.insert(0, Arc::new(ordinals));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| SqlError::internal(error.to_string()))
    }
}

/// A conjunction over some columns of a row.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    projection: Projection,
}

impl Filter {
    fn new(predicate: &[Expr], input: Input<'_>) -> Result<Option<Filter>> {
        if predicate.is_empty() {
            return Ok(None);
        }
        input.check_conditions(predicate)?;
        Ok(Some(Filter { projection: Projection::new(predicate, input)? }))
    }

    /// Indices of the rows for which it is true.
    pub(crate) fn select(&self, rows: usize, fetch: Fetch<'_>, context: &EvalContext) -> Result<Vec<u32>> {
        kernel::filter(&self.projection.exprs, &self.projection.input(rows, fetch)?, context)
    }
}

/// What `ON CONFLICT DO UPDATE` does.
#[derive(Debug)]
pub(crate) struct ConflictUpdate {
    pub(crate) targets: Vec<usize>,
    pub(crate) values: Projection,
    pub(crate) filter: Option<Filter>,
}

/// What to do with qualifying rows.
#[derive(Debug)]
pub(crate) enum Work {
    Rows {
        projection: Arc<Projection>,
        wanted: Wanted,
        found: FoundRows,
        /// How many more batches may be sent now, if not all.
        credit: Option<i64>,
        /// They are sent as blocks of this shard.
        blocks: Option<(u32, u32)>,
    },
    Groups {
        /// Shared with reads that have added up the same.
        groups: Arc<Groups>,
        input: Projection,
    },
    Hash {
        /// Rows whose hashes have not been added.
        found: FoundRows,
    },
    Insert {
        conflict: Option<ConflictUpdate>,
        returning: Option<Projection>,
    },
    Update {
        targets: Vec<usize>,
        values: Projection,
        returning: Option<Projection>,
    },
    Delete {
        returning: Option<Projection>,
        counted: bool,
    },
}

impl Work {
    /// Rows that a read has found and still needs where they are.
    pub(crate) fn found(&mut self) -> Option<&mut FoundRows> {
        match self {
            Work::Rows { found, .. } | Work::Hash { found } => Some(found),
            _ => None,
        }
    }
}

/// One key range of an operation.
#[derive(Debug)]
pub(crate) struct RiderRange {
    pub(crate) range: KeyRange,
    pub(crate) outcome: Result<u64>,
    pub(crate) hash: u128,
}

/// One row's change by a write that may have to be taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) slot: u32,
    pub(crate) old: Option<u32>,
    pub(crate) new: Option<u32>,
}

/// An operation on its way.
#[derive(Debug)]
pub(crate) struct Rider {
    pub(crate) ts: Ts,
    /// The prefix it sees: its own `Ts` if it writes.
    pub(crate) sees: Ts,
    pub(crate) is_write: bool,
    pub(crate) table: TableId,
    pub(crate) operation: Arc<Operation>,
    pub(crate) ranges: Vec<RiderRange>,
    /// By index of the shard's pieces.
    pub(crate) place_of_range: Vec<Option<usize>>,
    pub(crate) split: SplitPredicate,
    pub(crate) residual: Option<Filter>,
    pub(crate) work: Work,
    /// Whether somebody else decides whether its effects count.
    pub(crate) awaits_decision: bool,
    /// Whether its effects may have to be taken back, so that others must wait for them.
    pub(crate) tentative: bool,
    pub(crate) changes: Vec<Change>,
    /// Whether it is on its revolution.
    pub(crate) rides: bool,
    /// Whether others go first.
    pub(crate) is_bulk: bool,
    /// Whether rows to insert are still to be supplied.
    pub(crate) filling: bool,
    /// Rows to insert that have to wait for others, each a batch of its own.
    pub(crate) deferred_rows: Vec<RowBatch>,
    /// Rows that it waits for.
    pub(crate) waiting: usize,
    /// What its groups took when they were weighed last.
    pub(crate) groups_size: usize,
    pub(crate) executed: bool,
}

fn projection(exprs: &Option<Vec<Expr>>, row: Input<'_>) -> Result<Option<Projection>> {
    exprs.as_ref().map(|exprs| Projection::new(exprs, row)).transpose()
}

fn check_targets(assignments: &[(usize, Expr)], schema: &TableSchema) -> Result<()> {
    for (target, _) in assignments {
        let Some(column) = schema.columns.get(*target) else {
            return Err(SqlError::internal("an assignment to a column that the table does not have"));
        };
        if schema.primary_key.contains(target) || schema.partitioning.columns().contains(target) {
            return Err(SqlError::unsupported(format!(
                "updating column \"{}\" of the primary or partitioning key",
                column.name
            )));
        }
    }
    Ok(())
}

fn assigned_values(assignments: &[(usize, Expr)], input: Input<'_>) -> Result<Projection> {
    let exprs: Vec<Expr> = assignments.iter().map(|(_, expr)| expr.clone()).collect();
    Projection::new(&exprs, input)
}

impl Rider {
    /// Prepares an operation for this table. `place_of_range` says which of the operation's ranges each of the
    /// shard's ranges is.
    pub(crate) fn new(
        ordered: &OrderedOperation,
        schema: &TableSchema,
        projections: &mut Projections,
        place_of_range: Vec<Option<usize>>,
    ) -> Result<Rider> {
        let operation = ordered.operation.clone();
        let row = Input::row(&schema.columns);
        let mut predicate: &[Expr] = &[];
        let work = match &operation.kind {
            OperationKind::Read(read) => {
                predicate = &read.predicate;
                match &read.output {
                    ReadOutput::Rows { projection, top } => Work::Rows {
                        wanted: Wanted::new(top.as_ref(), projection, row)?,
                        projection: projections.get(projection, row)?,
                        found: FoundRows::default(),
                        credit: ordered.window.map(i64::from),
                        blocks: None,
                    },
                    ReadOutput::Groups { group_by, aggregates, top } => {
                        let mut exprs = group_by.clone();
                        for call in aggregates {
                            call.result_type()?;
                            row.check_conditions(call.filter.as_slice())?;
                            exprs.extend(call.argument.clone());
                            exprs.extend(call.filter.clone());
                            exprs.extend(call.further.iter().cloned());
                        }
                        let input = Projection::new(&exprs, row)?;
                        let place = |index: usize| input.columns.binary_search(&index).unwrap_or(0);
                        let remap = |expr: &Expr| remap_columns(expr.clone(), &place);
                        let group_by = group_by.iter().map(remap).collect();
                        let mut aggregates = aggregates.clone();
                        for call in &mut aggregates {
                            call.argument = call.argument.as_ref().map(remap);
                            call.filter = call.filter.as_ref().map(remap);
                            call.further = call.further.iter().map(remap).collect();
                        }
                        let groups = Groups::new(group_by, aggregates, top.as_ref(), &operation.context)?;
                        Work::Groups { groups: Arc::new(groups), input }
                    }
                    ReadOutput::ContentHash => Work::Hash { found: FoundRows::default() },
                }
            }
            OperationKind::Insert(insert) => {
                let conflict = match &insert.on_conflict {
                    OnConflict::Update { assignments, predicate } => {
                        check_targets(assignments, schema)?;
                        let both = Input::two_rows(&schema.columns);
                        Some(ConflictUpdate {
                            targets: assignments.iter().map(|(target, _)| *target).collect(),
                            values: assigned_values(assignments, both)?,
                            filter: Filter::new(predicate, both)?,
                        })
                    }
                    OnConflict::Fail | OnConflict::Nothing => None,
                };
                let returning = projection(&insert.returning, row)?.map(Projection::with_ordinal);
                Work::Insert { conflict, returning }
            }
            OperationKind::Update(update) => {
                check_targets(&update.assignments, schema)?;
                predicate = &update.predicate;
                Work::Update {
                    targets: update.assignments.iter().map(|(target, _)| *target).collect(),
                    values: assigned_values(&update.assignments, row)?,
                    returning: projection(&update.returning, row)?,
                }
            }
            OperationKind::Delete(delete) => {
                predicate = &delete.predicate;
                Work::Delete { returning: projection(&delete.returning, row)?, counted: true }
            }
            OperationKind::Truncate => Work::Delete { returning: None, counted: false },
            OperationKind::CreateTable(_) | OperationKind::DropTable => {
                return Err(SqlError::internal("a definition does not ride the scan"));
            }
        };
        // Checked as a whole, so that the index may rely on it.
        row.check_conditions(predicate)?;
        let split = split(predicate, &schema.columns);
        let residual = Filter::new(&split.residual, row)?;
        let is_write = operation.kind.is_write();
        Ok(Rider {
            ts: ordered.ts,
            sees: if is_write { ordered.ts } else { ordered.read_ts },
            is_write,
            table: operation.table,
            ranges: ordered
                .ranges
                .iter()
                .map(|range| RiderRange { range: *range, outcome: Ok(0), hash: 0 })
                .collect(),
            place_of_range,
            split,
            residual,
            work,
            awaits_decision: ordered.undecided && is_write,
            tentative: is_write && (ordered.undecided || may_fail(&operation.kind, schema)),
            operation,
            changes: Vec::new(),
            rides: false,
            is_bulk: ordered.bulk && !ordered.operation.kind.is_write(),
            filling: false,
            deferred_rows: Vec::new(),
            waiting: 0,
            groups_size: 0,
            executed: false,
        })
    }

    pub(crate) fn context(&self) -> &EvalContext {
        &self.operation.context
    }

    /// Whether the operation acts on this one of the shard's ranges, and has not failed there.
    pub(crate) fn acts_on(&self, range: usize) -> bool {
        self.place_of_range
            .get(range)
            .copied()
            .flatten()
            .is_some_and(|place| self.ranges[place].outcome.is_ok())
    }

    /// The range, of those that the operation names, that a piece which it acts on belongs to.
    pub(crate) fn range_of(&self, piece: usize) -> KeyRange {
        let place = self.place_of_range[piece].expect("it acts on the piece");
        self.ranges[place].range
    }

    pub(crate) fn fail(&mut self, place: usize, error: SqlError) {
        let outcome = &mut self.ranges[place].outcome;
        if outcome.is_ok() {
            *outcome = Err(error);
        }
    }

    pub(crate) fn fail_everywhere(&mut self, error: &SqlError) {
        for range in &mut self.ranges {
            if range.outcome.is_ok() {
                range.outcome = Err(error.clone());
            }
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.ranges.iter().any(|range| range.outcome.is_err())
    }

    /// Whether nothing that it could still meet matters: it has failed everywhere, or alone decides and has failed,
    /// or has as many rows as it wants.
    pub(crate) fn is_satisfied(&self) -> bool {
        match &self.work {
            Work::Rows { wanted, .. } if wanted.is_nothing() => true,
            Work::Groups { groups, .. } if groups.has_enough() => true,
            _ if self.awaits_decision => self.ranges.iter().all(|range| range.outcome.is_err()),
            _ => self.has_failed(),
        }
    }

    /// Whether it has found a batch of rows that it may not send yet.
    pub(crate) fn is_blocked(&self, batch_rows: usize) -> bool {
        let Work::Rows { wanted, found, credit: Some(credit), blocks, .. } = &self.work else { return false };
        let enough = if blocks.is_some() { 1 } else { batch_rows.max(1) };
        *credit <= 0 && wanted.are_sent_when_found() && found.len() >= enough && !self.has_failed()
    }

    /// What it finds is sent as blocks of this shard.
    pub(crate) fn send_blocks(&mut self, shard: (u32, u32)) {
        if let Work::Rows { blocks, .. } = &mut self.work {
            *blocks = Some(shard);
        }
    }

    pub(crate) fn outcomes(&self) -> Vec<(KeyRange, Result<u64>)> {
        self.ranges.iter().map(|range| (range.range, range.outcome.clone())).collect()
    }
}

/// Whether the write can fail while it runs, whatever the rows.
fn may_fail(kind: &OperationKind, schema: &TableSchema) -> bool {
    let all_fine = |exprs: &[Expr]| !exprs.iter().any(can_fail);
    let returning_fine = |returning: &Option<Vec<Expr>>| returning.as_deref().is_none_or(all_fine);
    match kind {
        OperationKind::Update(update) => {
            let assigned_fine = |(target, expr): &(usize, Expr)| {
                !can_fail(expr) && (!schema.columns[*target].not_null || never_null(expr, schema))
            };
            !(all_fine(&update.predicate)
                && update.assignments.iter().all(assigned_fine)
                && returning_fine(&update.returning))
        }
        OperationKind::Delete(delete) => !(all_fine(&delete.predicate) && returning_fine(&delete.returning)),
        OperationKind::Insert(_) => true,
        _ => false,
    }
}

fn never_null(expr: &Expr, schema: &TableSchema) -> bool {
    match expr {
        Expr::Literal { value, .. } => !value.is_null(),
        Expr::Column { index, .. } => schema.columns.get(*index).is_some_and(|column| column.not_null),
        Expr::Cast { expr, .. } => never_null(expr, schema),
        _ => false,
    }
}

/// The error for a NULL in a NOT NULL column, if the rows have one. `arrays` are whole rows.
pub(crate) fn check_not_null(
    schema: &TableSchema,
    targets: &[usize],
    arrays: &[ArrayRef],
    context: &EvalContext,
) -> Result<()> {
    for target in targets {
        let column = &schema.columns[*target];
        let array = &arrays[*target];
        if !column.not_null || array.null_count() == 0 {
            continue;
        }
        let row = (0..array.len()).find(|row| array.is_null(*row)).unwrap_or(0);
        let values: Vec<String> = schema
            .visible_columns()
            .iter()
            .zip(arrays)
            .map(|(column, array)| kernel::text_of(array, row, &column.ty, context).unwrap_or("null".into()))
            .map(|text| match text.char_indices().nth(64) {
                // PostgreSQL shows no more of a value.
                Some((end, _)) => format!("{}...", &text[..end]),
                None => text,
            })
            .collect();
        let mut error = SqlError::new(
            crate::SqlState::NOT_NULL_VIOLATION,
            format!(
                "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                column.name, schema.name
            ),
        )
        .with_detail(format!("Failing row contains ({}).", values.join(", ")));
        error.table = Some(schema.name.clone());
        error.column = Some(column.name.clone());
        return Err(error);
    }
    Ok(())
}

/// The error for a key that exists; `arrays` are whole rows.
pub(crate) fn duplicate_key(
    schema: &TableSchema,
    arrays: &[ArrayRef],
    row: usize,
    context: &EvalContext,
) -> SqlError {
    let names: Vec<&str> =
        schema.primary_key.iter().map(|index| schema.columns[*index].name.as_str()).collect();
    let values: Vec<String> = schema
        .primary_key
        .iter()
        .map(|index| {
            let ty = &schema.columns[*index].ty;
            kernel::text_of(&arrays[*index], row, ty, context).unwrap_or("null".into())
        })
        .collect();
    let mut error = SqlError::new(
        crate::SqlState::UNIQUE_VIOLATION,
        format!("duplicate key value violates unique constraint \"{}\"", schema.primary_key_name),
    )
    .with_detail(format!("Key ({})=({}) already exists.", names.join(", "), values.join(", ")));
    error.table = Some(schema.name.clone());
    error.constraint = Some(schema.primary_key_name.clone());
    error
}
