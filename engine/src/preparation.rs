//! What the shards of a process have to know of an operation, made by the first that admits it.

use std::sync::{Arc, OnceLock};

use crate::{
    error::{Result, SqlError},
    expr::{Expr, Input, can_fail, remap_columns},
    found::{FoundRows, Hashes, Wanted},
    kernel::Groups,
    key::{KEY_BYTES, is_exact, write_value_as},
    operation::{OnConflict, Operation, OperationKind, ReadOutput},
    pack::Blocks,
    position::constants_of,
    predicate_index::{ColumnTest, SplitPredicate, split},
    projection::{Filter, Projection, Projections},
    riders::bit,
    schema::TableSchema,
};

/// The most keys that are looked up one by one.
const POINTS: usize = 256;

/// What is known of an operation at its place in the order, if a shard has prepared it. Clones share it: they are one
/// operation for the shards of one process, which have the same tables then.
#[derive(Clone, Debug, Default)]
pub struct Preparation(Arc<OnceLock<Result<Arc<Prepared>>>>);

impl Preparation {
    /// Prepares the operation for the table of this schema, unless that has been done.
    pub(crate) fn of(
        &self,
        operation: &Operation,
        schema: &TableSchema,
        projections: &mut Projections,
    ) -> Result<Arc<Prepared>> {
        let mut prepare = || Prepared::new(operation, schema, projections).map(Arc::new);
        // What does not fit has no effect at any replica.
        self.0.get_or_init(|| prepare().map_err(SqlError::everywhere)).clone()
    }
}

/// An operation on a table, checked and taken apart.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What the predicate index understands of the predicate. All must hold; none of them can fail, so their order is
    /// free.
    pub(crate) tests: Vec<Arc<ColumnTest>>,
    /// The columns that they are about, as [`bit`]s.
    pub(crate) tested: u64,
    /// The columns in which a row that the write leaves may differ from an earlier row with the same key, as [`bit`]s.
    pub(crate) assigned: u64,
    /// The other conjuncts, evaluated afterwards.
    pub(crate) residual: Vec<Expr>,
    pub(crate) filter: Option<Filter>,
    /// The canonical keys that the predicate fixes, if it does: only their rows are looked at.
    pub(crate) keys: Option<Vec<Vec<u8>>>,
    /// What every shard begins with.
    pub(crate) work: Work,
    /// Whether the write can fail while it runs.
    pub(crate) may_fail: bool,
}

/// What `ON CONFLICT DO UPDATE` does.
#[derive(Debug)]
pub(crate) struct ConflictUpdate {
    pub(crate) targets: Vec<usize>,
    pub(crate) values: Projection,
    pub(crate) filter: Option<Filter>,
}

/// What to do with qualifying rows.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Rows {
        projection: Arc<Projection>,
        wanted: Wanted,
        found: FoundRows,
        /// How many more batches may be sent now, if not all.
        credit: Option<i64>,
    },
    /// Rows that are sent as blocks.
    Blocks(Blocks),
    Groups {
        /// Shared with reads that have added up the same.
        groups: Arc<Groups>,
        input: Arc<Projection>,
    },
    Hash(Hashes),
    Insert {
        conflict: Option<Arc<ConflictUpdate>>,
        returning: Option<Arc<Projection>>,
    },
    Update {
        targets: Arc<[usize]>,
        values: Arc<Projection>,
        returning: Option<Arc<Projection>>,
    },
    Delete {
        returning: Option<Arc<Projection>>,
        counted: bool,
    },
}

impl Work {
    /// Rows that a read has found and still needs where they are.
    pub(crate) fn found(&mut self) -> Option<&mut FoundRows> {
        match self {
            Work::Rows { found, .. } => Some(found),
            Work::Hash(hashes) => Some(hashes.found_anew()),
            Work::Blocks(blocks) => Some(blocks.found_anew()),
            _ => None,
        }
    }
}

impl Prepared {
    fn new(operation: &Operation, schema: &TableSchema, projections: &mut Projections) -> Result<Prepared> {
        let predicate = predicate_of(&operation.kind);
        let row = Input::row(&schema.columns);
        // Checked as a whole, so that the index may rely on it.
        row.check_conditions(predicate)?;
        let work = work_of(operation, schema, projections)?;
        let SplitPredicate { tests, residual } = split(predicate, &schema.columns);
        Ok(Prepared {
            tested: tests.iter().fold(0, |bits, test| bits | bit(test.column)),
            keys: keys_of(predicate, &tests, schema),
            assigned: assigned(&operation.kind, schema),
            filter: Filter::new(&residual, row)?,
            tests,
            residual,
            work,
            may_fail: may_fail(&operation.kind, schema),
        })
    }
}

fn predicate_of(kind: &OperationKind) -> &[Expr] {
    match kind {
        OperationKind::Read(read) => &read.predicate,
        OperationKind::Update(update) => &update.predicate,
        OperationKind::Delete(delete) => &delete.predicate,
        _ => &[],
    }
}

/// What an operation begins with at every shard.
fn work_of(operation: &Operation, schema: &TableSchema, projections: &mut Projections) -> Result<Work> {
    let row = Input::row(&schema.columns);
    Ok(match &operation.kind {
        OperationKind::Read(read) => match &read.output {
            ReadOutput::Rows { projection, top } => Work::Rows {
                wanted: Wanted::new(top.as_ref(), projection, row)?,
                projection: projections.get(projection, row)?,
                found: FoundRows::default(),
                credit: None,
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
                let place = |index: usize| input.columns().binary_search(&index).unwrap_or(0);
                let remap = |expr: &Expr| remap_columns(expr.clone(), &place);
                let group_by = group_by.iter().map(remap).collect();
                let mut aggregates = aggregates.clone();
                for call in &mut aggregates {
                    call.argument = call.argument.as_ref().map(remap);
                    call.filter = call.filter.as_ref().map(remap);
                    call.further = call.further.iter().map(remap).collect();
                }
                let groups = Groups::new(group_by, aggregates, top.as_ref(), &operation.context)?;
                Work::Groups { groups: Arc::new(groups), input: Arc::new(input) }
            }
            ReadOutput::ContentHash => Work::Hash(Hashes::default()),
        },
        OperationKind::Insert(insert) => {
            let conflict = match &insert.on_conflict {
                OnConflict::Update { assignments, predicate } => {
                    check_targets(assignments, schema)?;
                    let both = Input::two_rows(&schema.columns);
                    Some(Arc::new(ConflictUpdate {
                        targets: assignments.iter().map(|(target, _)| *target).collect(),
                        values: assigned_values(assignments, both)?,
                        filter: Filter::new(predicate, both)?,
                    }))
                }
                OnConflict::Fail | OnConflict::Nothing => None,
            };
            let returning = projection(&insert.returning, row)?.map(Projection::with_ordinal);
            Work::Insert { conflict, returning: returning.map(Arc::new) }
        }
        OperationKind::Update(update) => {
            check_targets(&update.assignments, schema)?;
            Work::Update {
                targets: update.assignments.iter().map(|(target, _)| *target).collect(),
                values: Arc::new(assigned_values(&update.assignments, row)?),
                returning: projection(&update.returning, row)?.map(Arc::new),
            }
        }
        OperationKind::Delete(delete) => {
            Work::Delete { returning: projection(&delete.returning, row)?.map(Arc::new), counted: true }
        }
        OperationKind::Truncate => Work::Delete { returning: None, counted: false },
        OperationKind::CreateTable(_) | OperationKind::DropTable => {
            return Err(SqlError::internal("a definition does not ride the scan"));
        }
    })
}

/// The canonical keys that a predicate with these tests fixes by `=` and `IN`, when it does.
fn keys_of(predicate: &[Expr], tests: &[Arc<ColumnTest>], schema: &TableSchema) -> Option<Vec<Vec<u8>>> {
    let is_tested = |column: &usize| tests.iter().any(|test| test.column == *column);
    if schema.primary_key.is_empty() || !schema.primary_key.iter().all(is_tested) {
        return None;
    }
    // Only what is evaluated before anything that may fail on other rows.
    let free = predicate.iter().position(can_fail).map_or(predicate, |first| &predicate[..first]);
    let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
    for index in &schema.primary_key {
        let values = constants_of(*index, free)?;
        if keys.len() * values.len() > POINTS {
            return None;
        }
        let ty = &schema.columns[*index].ty;
        keys = keys
            .iter()
            .flat_map(|key| {
                values.iter().map(move |value| {
                    let mut longer = Vec::with_capacity(key.len() + KEY_BYTES);
                    longer.extend_from_slice(key);
                    write_value_as(&mut longer, value, ty);
                    longer
                })
            })
            .collect();
    }
    keys.sort_unstable();
    keys.dedup();
    Some(keys)
}

/// The columns in which rows that a write leaves may differ from earlier ones with the same keys, as [`bit`]s.
fn assigned(kind: &OperationKind, schema: &TableSchema) -> u64 {
    let is_fixed =
        |column: &usize| schema.primary_key.contains(column) && is_exact(&schema.columns[*column].ty);
    let columns: Vec<usize> = match kind {
        OperationKind::Update(update) => update.assignments.iter().map(|(target, _)| *target).collect(),
        OperationKind::Insert(_) => (0..schema.columns.len()).filter(|column| !is_fixed(column)).collect(),
        _ => Vec::new(),
    };
    columns.into_iter().fold(0, |bits, column| bits | bit(column))
}

fn projection(exprs: &Option<Vec<Expr>>, row: Input<'_>) -> Result<Option<Projection>> {
    exprs.as_ref().map(|exprs| Projection::new(exprs, row)).transpose()
}

fn check_targets(assignments: &[(usize, Expr)], schema: &TableSchema) -> Result<()> {
    for (target, value) in assignments {
        let Some(column) = schema.columns.get(*target) else {
            return Err(SqlError::internal("an assignment to a column that the table does not have"));
        };
        if value.ty().arrow() != column.ty.arrow() {
            let (name, to, from) = (&column.name, &column.ty, value.ty());
            let message = format!("an assignment of {from} to column \"{name}\" of type {to}");
            return Err(SqlError::internal(message));
        }
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
    Projection::new(assignments.iter().map(|(_, expr)| expr), input)
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
