//! An operation on its way through a shard.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};

use crate::{
    error::{Result, SqlError},
    expr::EvalContext,
    few::Few,
    given_up::{GivenUp, Interest},
    kernel,
    operation::{Operation, OrderedOperation, RowBatch, Ts},
    pack::Blocks,
    position::KeyRange,
    preparation::{Prepared, Work},
    schema::{TableId, TableSchema},
};

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
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) work: Work,
    /// Whether somebody else decides whether its effects count.
    pub(crate) awaits_decision: bool,
    /// Whether its effects may have to be taken back, so that others must wait for them.
    pub(crate) tentative: bool,
    pub(crate) changes: Vec<Change>,
    /// Whether it is on its revolution.
    pub(crate) rides: bool,
    /// Whether no user waits for it.
    pub(crate) is_bulk: bool,
    /// Whether rows to insert are still to be supplied.
    pub(crate) filling: bool,
    /// Rows to insert that have to wait for others: those of one batch in one of their own, and the place there.
    pub(crate) deferred_rows: Vec<(Arc<RowBatch>, u32)>,
    /// Rows that it waits for.
    pub(crate) waiting: usize,
    /// What its groups took when they were weighed last.
    pub(crate) groups_size: usize,
    pub(crate) executed: bool,
    /// Asked between parts of what can take long.
    pub(crate) interest: Interest,
}

impl Rider {
    /// An operation that has been prepared. `place_of_range` says which of its ranges each of the shard's ranges is.
    pub(crate) fn new(
        ordered: &OrderedOperation,
        prepared: Arc<Prepared>,
        place_of_range: Vec<Option<usize>>,
        given_up: &GivenUp,
    ) -> Rider {
        let operation = ordered.operation.clone();
        let is_write = operation.kind.is_write();
        let mut work = prepared.work.clone();
        if let Work::Rows { credit, .. } = &mut work {
            *credit = ordered.window.map(i64::from);
        }
        Rider {
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
            work,
            awaits_decision: ordered.undecided && is_write,
            tentative: is_write && (ordered.undecided || prepared.may_fail),
            operation,
            prepared,
            changes: Vec::new(),
            rides: false,
            is_bulk: ordered.bulk && !is_write,
            filling: false,
            deferred_rows: Vec::new(),
            waiting: 0,
            groups_size: 0,
            executed: false,
            interest: Interest::of((!is_write).then_some(ordered.ts), given_up),
        }
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
        let error = if self.is_write && !self.tentative { error.unexpected() } else { error };
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
        let Work::Rows { wanted, found, credit: Some(credit), .. } = &self.work else { return false };
        *credit <= 0 && wanted.are_sent_when_found() && found.len() >= batch_rows.max(1) && !self.has_failed()
    }

    /// What it finds is sent as blocks of this shard, at first so many of them.
    pub(crate) fn send_blocks(&mut self, shard: (u32, u32), window: Option<u32>) {
        let hashed = matches!(self.work, Work::Hash(_));
        if let Work::Rows { .. } | Work::Hash(_) = self.work {
            self.work = Work::Blocks(Blocks::new(shard, window.map(i64::from), hashed));
        }
    }

    pub(crate) fn outcomes(&self) -> Few<(KeyRange, Result<u64>)> {
        self.ranges.iter().map(|range| (range.range, range.outcome.clone())).collect()
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
