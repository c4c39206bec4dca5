//! What the storage side needs of values and expressions, in one place.

use arrow::{
    array::{Array, ArrayRef},
    record_batch::RecordBatch,
};

use crate::{
    aggregate::{AggregateCall, AggregateFunction, AggregateState, Group, GroupTable},
    array::arrow_cell_to_value,
    error::{Result, SqlError},
    expr::{EvalContext, Expr, can_fail, columns, remap_columns, vector},
    grouping::{CodeGroups, SegmentRows},
    operation::Top,
    text::format_value,
    types::Type,
};

/// The text of a cell, `None` for NULL.
pub(crate) fn text_of(array: &ArrayRef, row: usize, ty: &Type, context: &EvalContext) -> Option<String> {
    let value = arrow_cell_to_value(array, row, ty);
    (!value.is_null()).then(|| format_value(&value, ty, context))
}

/// Indices of the rows for which every conjunct is true, evaluated from the left.
pub(crate) fn filter(predicate: &[Expr], batch: &RecordBatch, context: &EvalContext) -> Result<Vec<u32>> {
    Ok(vector::filter(predicate, batch, context)?.set_indices().map(|row| row as u32).collect())
}

/// As [`filter`], with one expression over a single column.
pub(crate) fn filter_array(expr: &Expr, array: &ArrayRef, context: &EvalContext) -> Result<Vec<u32>> {
    let batch = crate::projection::batch_of(vec![array.clone()], array.len())?;
    filter(std::slice::from_ref(expr), &batch, context)
}

/// The one column that an expression reads which cannot fail, and the expression over that column alone.
pub(crate) fn over_single_column(expr: &Expr) -> Option<(usize, Expr)> {
    let columns = columns(expr);
    match (columns.len(), columns.first()) {
        (1, Some(column)) if !can_fail(expr) => Some((*column, remap_columns(expr.clone(), &|_| 0))),
        _ => None,
    }
}

/// Groups, and their bytes, up to which it costs less to copy what has been added up than to add another segment to it.
const COPIED_GROUPS: usize = 1024;
const COPIED_BYTES: usize = 1 << 20;

/// Bytes of strings after which groups are measured, however few rows they come from.
const FED_BYTES: usize = 1 << 20;

/// Drops the groups beyond the limit, when they are more than `slack` more.
fn keep_first(table: &mut GroupTable, top: Option<&Top>, slack: usize) {
    if let Some(top) = top {
        let limit = usize::try_from(top.limit).unwrap_or(usize::MAX);
        if table.len() > limit.saturating_add(slack) {
            table.keep_first(&top.keys, limit);
        }
    }
}

/// Groups with partial states, filled batch by batch.
#[derive(Clone)]
pub(crate) struct Groups {
    table: GroupTable,
    group_by: Vec<Expr>,
    context: EvalContext,
    /// When all that is asked for is the number of rows: that number.
    counted: Option<u64>,
    /// When all that is asked for is counts and sums of columns: of which, `None` for rows.
    sums: Option<Vec<Option<usize>>>,
    /// The first groups of which order are wanted.
    top: Option<Top>,
    /// Rows and groups that were added, and how many it were when `bytes` was measured.
    added: usize,
    measured: usize,
    bytes: usize,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").field("groups", &self.table.len()).finish_non_exhaustive()
    }
}

impl Groups {
    /// Grouping expressions and aggregates over the columns of the batches to come.
    pub(crate) fn new(
        group_by: Vec<Expr>,
        calls: Vec<AggregateCall>,
        top: Option<&Top>,
        context: &EvalContext,
    ) -> Result<Groups> {
        if let Some(top) = top
            && (!calls.is_empty() || top.keys.iter().any(|key| key.column >= group_by.len()))
        {
            return Err(SqlError::internal(
                "a limit of groups with aggregates, or by no grouping expression",
            ));
        }
        let counts = |call: &AggregateCall| {
            call.function == AggregateFunction::Count
                && call.argument.is_none()
                && call.filter.is_none()
                && !call.distinct
        };
        let counted = (group_by.is_empty() && calls.iter().all(counts)).then_some(0);
        let sum_of = |call: &AggregateCall| match &call.argument {
            _ if call.filter.is_some() || call.distinct => None,
            _ if !matches!(
                call.function,
                AggregateFunction::Count | AggregateFunction::Sum | AggregateFunction::Avg
            ) =>
            {
                None
            }
            None => Some(None),
            Some(Expr::Column { index, ty: Type::Int2 | Type::Int4 | Type::Int8 }) => Some(Some(*index)),
            Some(Expr::Column { index, ty: Type::Numeric(Some((precision, _))) }) if *precision <= 18 => {
                Some(Some(*index))
            }
            _ => None,
        };
        let mut table = GroupTable::for_read(&group_by, &calls);
        let takes_sums =
            table.only_states().is_some_and(|states| states.iter().all(AggregateState::takes_sums));
        let sums = calls.iter().map(sum_of).collect::<Option<Vec<_>>>().filter(|_| takes_sums);
        Ok(Groups {
            table,
            group_by,
            context: context.clone(),
            counted,
            sums,
            top: top.cloned(),
            added: 0,
            measured: 0,
            bytes: 0,
        })
    }

    /// Whether there are as many groups as are wanted, and any will do.
    pub(crate) fn has_enough(&self) -> bool {
        let has = |top: &Top| top.keys.is_empty() && self.table.len() as u64 >= top.limit;
        self.top.as_ref().is_some_and(has)
    }

    /// Whether only the number of rows matters.
    pub(crate) fn counts_only(&self) -> bool {
        self.counted.is_some()
    }

    /// Adds rows to a count of rows.
    pub(crate) fn count(&mut self, rows: u64) {
        if let Some(counted) = &mut self.counted {
            *counted += rows;
        }
    }

    /// The columns, if only counts and sums of columns are asked for; for each aggregate one, `None` for rows.
    pub(crate) fn sums(&self) -> Option<&[Option<usize>]> {
        self.sums.as_deref()
    }

    /// Adds to one aggregate what it needs to know of rows.
    pub(crate) fn add_sum(&mut self, aggregate: usize, values: u64, total: i128, scale: u32) -> Result<()> {
        match self.table.only_states().and_then(|states| states.get_mut(aggregate)) {
            Some(state) => state.update_sum(values, total, scale),
            None => Err(SqlError::internal("a sum in groups")),
        }
    }

    /// Adds rows of a segment, of which there will be `all`: by their codes, if they are encoded;
    /// [`SqlError::batch_full`] when nothing has been done because they are too many for batches. `make_room` is asked whether the
    /// groups may take so many bytes.
    pub(crate) fn add(
        &mut self,
        rows: &SegmentRows,
        all: usize,
        by_code: &mut Option<CodeGroups>,
        make_room: &dyn Fn(usize) -> Result<()>,
    ) -> Result<()> {
        if let Some(counted) = &mut self.counted {
            *counted += rows.rows.len() as u64;
        } else if !self.add_by_code(rows, all, by_code)? {
            let (bytes, top) = (&mut self.bytes, &self.top);
            self.table.update_weighed(&rows.batch()?, &self.group_by, &self.context, &mut |table| {
                if table.fed() < FED_BYTES.max(*bytes / 4) {
                    return Ok(());
                }
                keep_first(table, top.as_ref(), 0);
                *bytes = table.heap_size();
                make_room(*bytes)
            })?;
        }
        self.grown(rows.rows.len());
        make_room(self.bytes)
    }

    fn add_by_code(
        &mut self,
        rows: &SegmentRows,
        all: usize,
        by_code: &mut Option<CodeGroups>,
    ) -> Result<bool> {
        let Some(mut known) = by_code.take() else { return Ok(false) };
        match known.add(&mut self.table, rows, all, &self.group_by, &self.context) {
            // Groups that are taken away leave their numbers to others.
            Ok(true) => *by_code = Some(if self.top.is_some() { CodeGroups::default() } else { known }),
            Ok(false) => return Ok(false),
            Err(error) => {
                known.finish(&mut self.table, rows)?;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Adds what is left of rows of a segment when all of them have been added.
    pub(crate) fn finish(&mut self, rows: &SegmentRows, by_code: Option<CodeGroups>) -> Result<()> {
        by_code.map_or(Ok(()), |known| known.finish(&mut self.table, rows))
    }

    /// After rows or groups have been added.
    fn grown(&mut self, by: usize) {
        // So many more that dropping them takes a small part of the time.
        let slack = self.table_limit().max(1024);
        keep_first(&mut self.table, self.top.as_ref(), slack);
        self.added += by;
        let is_due = self.added - self.measured >= 1024.max(self.measured / 4)
            || self.table.fed() >= FED_BYTES.max(self.bytes / 4);
        if self.counted.is_none() && is_due {
            self.measured = self.added;
            self.bytes = self.table.heap_size();
        }
    }

    /// What the groups take, about: measured from time to time.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether they are so few that it costs less to copy them than to add another segment to them.
    pub(crate) fn are_few(&self) -> bool {
        self.len() <= COPIED_GROUPS && self.bytes + self.table.fed() <= COPIED_BYTES
    }

    /// Adds groups of the same aggregates over other rows.
    pub(crate) fn merge(&mut self, other: &Groups) -> Result<()> {
        match (&mut self.counted, other.counted) {
            (Some(counted), Some(more)) => *counted += more,
            _ => self.table.merge(other.table.groups().iter().cloned())?,
        }
        self.table.note_fed(other.bytes + other.table.fed());
        self.grown(other.added);
        Ok(())
    }

    /// The same without any groups, to which nothing can be added.
    pub(crate) fn without_groups(&self) -> Groups {
        Groups {
            table: GroupTable::new(Vec::new(), Vec::new()),
            group_by: Vec::new(),
            context: self.context.clone(),
            counted: None,
            sums: None,
            top: None,
            added: 0,
            measured: 0,
            bytes: 0,
        }
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    fn table_limit(&self) -> usize {
        self.top.as_ref().map_or(0, |top| usize::try_from(top.limit).unwrap_or(usize::MAX))
    }

    /// The groups; none are left.
    pub(crate) fn take(&mut self) -> Vec<Group> {
        keep_first(&mut self.table, self.top.as_ref(), 0);
        let table = std::mem::replace(&mut self.table, GroupTable::new(Vec::new(), Vec::new()));
        let mut groups = table.into_groups();
        if let (Some(counted), Some(group)) = (self.counted, groups.first_mut()) {
            group.states.iter_mut().for_each(|state| state.update_count(counted));
        }
        groups
    }
}
