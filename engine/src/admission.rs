//! What acts when it is admitted: inserts, and operations that name the keys of their rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};

use crate::{
    batch_size::in_parts,
    error::{Result, SqlError, SqlState},
    operation::{Effect, Insert, InsertRows, OnConflict, OperationKind, RowBatch},
    preparation::Work,
    primary_key::Address,
    rider::{Change, Rider, duplicate_key},
    shard::{Shard, check_layout},
    table::{RowKeys, Table},
};

/// One row of a batch as arrays.
fn single_row(arrays: &[ArrayRef], row: u32) -> Vec<ArrayRef> {
    arrays.iter().map(|array| array.slice(row as usize, 1)).collect()
}

/// Some rows of a batch, without holding on to the others.
fn rows_of(batch: &RowBatch, rows: &[u32]) -> Result<RowBatch> {
    let indices = UInt32Array::from(rows.to_vec());
    let too_large = |error| SqlError::internal(format!("rows that cannot be picked from a batch: {error}"));
    Ok(RowBatch {
        rows: arrow::compute::take_record_batch(&batch.rows, &indices).map_err(too_large)?,
        positions: rows.iter().map(|row| batch.positions[*row as usize]).collect(),
        ordinals: rows.iter().map(|row| batch.ordinals[*row as usize]).collect(),
    })
}

fn take(array: &ArrayRef, rows: &[u32]) -> ArrayRef {
    if rows.len() == array.len() {
        return array.clone();
    }
    let indices = UInt32Array::from(rows.to_vec());
    arrow::compute::take(array.as_ref(), &indices, None).unwrap_or_else(|_| array.slice(0, rows.len()))
}

impl Shard {
    /// Lets an operation act on the rows with these keys.
    pub(crate) fn visit_keys(
        &mut self,
        table: &mut Table,
        rider: &mut Rider,
        keys: &[Vec<u8>],
        effects: &mut Vec<Effect>,
    ) {
        for key in keys {
            if rider.is_satisfied() {
                return;
            }
            let Some(found) = table.find(key) else { continue };
            let range = table.segments[found.slot as usize].range;
            if !rider.acts_on(range) {
                continue;
            }
            // From the newest version, which those writes may have made, to older ones.
            let mut version = match self.fast_forward(table, found, rider.ts, effects) {
                true => table.find(key),
                false => Some(found),
            };
            while let Some(at) = version {
                let segment = &table.segments[at.slot as usize];
                if let Some(root) = segment.waits_for(at.row, rider.sees) {
                    table.defer(rider, Address { slot: at.slot, row: root }, None);
                    break;
                }
                if table.sees(rider, at.slot, at.row) {
                    table.visit_version(rider, at.slot, at.row, effects);
                    break;
                }
                version = segment.previous.get(&at.row).copied();
            }
        }
    }

    /// Inserts the rows of an INSERT that travel with it, or makes it wait for those that were staged.
    pub(crate) fn begin_insert(&mut self, table: &mut Table, rider: &mut Rider, effects: &mut Vec<Effect>) {
        let operation = rider.operation.clone();
        let OperationKind::Insert(insert) = &operation.kind else { return };
        match &insert.rows {
            InsertRows::Inline(batch) => self.insert(table, rider, batch, effects),
            InsertRows::Staged(_) => rider.filling = true,
        }
    }

    /// Inserts those of some rows that belong to this shard.
    pub(crate) fn insert(
        &mut self,
        table: &mut Table,
        rider: &mut Rider,
        batch: &RowBatch,
        effects: &mut Vec<Effect>,
    ) {
        let operation = rider.operation.clone();
        let OperationKind::Insert(insert) = &operation.kind else { return };
        if let Err(error) = check_batch(table, batch) {
            return rider.fail_everywhere(&error);
        }
        let keys = RowKeys::new(&table.schema, batch.rows.columns(), batch.rows.num_rows());
        for (range, own) in self.own_rows(&batch.positions, &keys, rider) {
            if let Err(error) = self.insert_into(table, rider, insert, batch, &keys, range, own, effects) {
                table.fail(rider, range, error);
                if !rider.awaits_decision {
                    return;
                }
            }
        }
    }

    /// Inserts rows of one range: first those whose keys are new, all at once; then the others one by one.
    #[allow(clippy::too_many_arguments)]
    fn insert_into(
        &mut self,
        table: &mut Table,
        rider: &mut Rider,
        insert: &Insert,
        batch: &RowBatch,
        keys: &RowKeys,
        range: usize,
        own: Vec<u32>,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        let (mut fresh, mut known): (Vec<u32>, Vec<u32>) = (own, Vec::new());
        if table.has_keys() {
            (fresh, known) = fresh.into_iter().partition(|row| table.find(keys.get(*row as usize)).is_none());
            // A key that the statement itself repeats is known the second time.
            let mut seen: hashbrown::HashSet<&[u8]> = hashbrown::HashSet::with_capacity(fresh.len());
            let mut repeated = Vec::new();
            fresh.retain(|row| {
                let is_new = seen.insert(keys.get(*row as usize));
                if !is_new {
                    repeated.push(*row);
                }
                is_new
            });
            known.extend(repeated);
            known.sort_unstable();
        }
        let addresses = table.append(range, batch.rows.columns(), &fresh, rider.ts);
        if table.has_keys() {
            for (row, address) in fresh.iter().zip(&addresses) {
                table.keys.insert(Table::hash(keys.get(*row as usize)), *address);
            }
        }
        for address in &addresses {
            table.record(rider, Change { slot: address.slot, old: None, new: Some(address.row) });
        }
        count(rider, range, fresh.len() as u64);
        self.return_rows(rider, range, batch, &fresh, effects)?;
        let mut waiting = Vec::new();
        for row in known {
            if let Some(found) = table.find(keys.get(row as usize)) {
                self.fast_forward(table, found, rider.ts, effects);
            }
            let waits = self
                .insert_row(table, rider, insert, batch, row, range, None, effects)
                .map_err(|error| error.about_row(batch.ordinals[row as usize]))?;
            waiting.extend(waits.map(|root| (row, root)));
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let rows: Vec<u32> = waiting.iter().map(|(row, _)| *row).collect();
        let rows = Arc::new(rows_of(batch, &rows)?);
        for ((_, root), place) in waiting.into_iter().zip(0..) {
            rider.deferred_rows.push((rows.clone(), place));
            table.defer(rider, root, Some(rider.deferred_rows.len() as u32 - 1));
        }
        Ok(())
    }

    /// Emits RETURNING for inserted rows.
    fn return_rows(
        &self,
        rider: &Rider,
        range: usize,
        batch: &RowBatch,
        rows: &[u32],
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        let Work::Insert { returning: Some(returning), .. } = &rider.work else { return Ok(()) };
        if rows.is_empty() {
            return Ok(());
        }
        in_parts(0..rows.len(), &mut |part| {
            let rows = &rows[part];
            let ordinals: Vec<u64> = rows.iter().map(|row| batch.ordinals[*row as usize]).collect();
            let fetch = |column: usize| Ok(take(batch.rows.column(column), rows));
            let batch = returning.batch(rows.len(), Some(&ordinals), &fetch, rider.context())?;
            effects.push(Effect::Rows { ts: rider.ts, range: rider.range_of(range), batch });
            Ok(())
        })
    }

    /// Inserts one of the rows that had to wait; returns the row that it must wait for now, if any.
    pub(crate) fn insert_deferred(
        &mut self,
        table: &mut Table,
        rider: &mut Rider,
        deferred: u32,
        root: Address,
        effects: &mut Vec<Effect>,
    ) -> Option<Address> {
        let operation = rider.operation.clone();
        let OperationKind::Insert(insert) = &operation.kind else { return None };
        let (batch, row) = rider.deferred_rows.get(deferred as usize)?.clone();
        let range = table.segments[root.slot as usize].range;
        if !rider.acts_on(range) {
            return None;
        }
        match self.insert_row(table, rider, insert, &batch, row, range, Some(root), effects) {
            Ok(waits) => waits,
            Err(error) => {
                table.fail(rider, range, error.about_row(batch.ordinals[row as usize]));
                None
            }
        }
    }

    /// Inserts one row, or does what is to be done about its conflict. Returns the row it must wait for, if any. After
    /// a wait, it goes behind the versions of the row that it waited for, where those who wait behind it find it.
    #[allow(clippy::too_many_arguments)]
    fn insert_row(
        &self,
        table: &mut Table,
        rider: &mut Rider,
        insert: &Insert,
        batch: &RowBatch,
        row: u32,
        range: usize,
        waited: Option<Address>,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Address>> {
        let arrays = batch.rows.columns();
        let key_row = single_row(arrays, row);
        let keys = RowKeys::new(&table.schema, &key_row, 1);
        let found = table.find(keys.get(0));
        if let Some(found) = found {
            let segment = &table.segments[found.slot as usize];
            if let Some(root) = segment.waits_for(found.row, rider.ts) {
                return Ok(Some(Address { slot: found.slot, row: root }));
            }
            let (begin, end) =
                (segment.versions.begin(found.row as usize), segment.versions.end(found.row as usize));
            if end > rider.ts.0 {
                let own = begin == rider.ts.0;
                self.resolve_conflict(table, rider, insert, batch, row, found, own, effects)?;
                return Ok(None);
            }
        }
        let address = match waited {
            Some(waited) => {
                let last = table.segments[waited.slot as usize].newest(waited.row);
                let new = table.append_to(waited.slot, &key_row, &[0], rider.ts);
                table.segments[waited.slot as usize].next.insert(last, new);
                Address { slot: waited.slot, row: new }
            }
            None => table.append(range, &key_row, &[0], rider.ts)[0],
        };
        let hash = Table::hash(keys.get(0));
        match found {
            Some(found) => {
                table.keys.replace(hash, found, address);
                table.segments[address.slot as usize].set_previous(address.slot, address.row, found);
            }
            None => table.keys.insert(hash, address),
        }
        table.record(rider, Change { slot: address.slot, old: None, new: Some(address.row) });
        count(rider, range, 1);
        self.return_rows(rider, range, batch, &[row], effects)?;
        Ok(None)
    }

    #[allow(clippy::too_many_arguments)]
    fn resolve_conflict(
        &self,
        table: &mut Table,
        rider: &mut Rider,
        insert: &Insert,
        batch: &RowBatch,
        row: u32,
        found: Address,
        own: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        let operation = rider.operation.clone();
        let context = &operation.context;
        match &insert.on_conflict {
            OnConflict::Fail => Err(duplicate_key(&table.schema, batch.rows.columns(), row as usize, context)),
            OnConflict::Nothing => Ok(()),
            OnConflict::Update { .. } if own => Err(SqlError::new(
                SqlState::CARDINALITY_VIOLATION,
                "ON CONFLICT DO UPDATE command cannot affect row a second time",
            )
            .with_hint(
                "Ensure that no rows proposed for insertion within the same command have duplicate constrained \
                 values.",
            )),
            OnConflict::Update { .. } => {
                let width = table.schema.columns.len();
                let range = table.segments[found.slot as usize].range;
                let fetch = |column: usize| {
                    if column < width {
                        let definition = &table.schema.columns[column];
                        table.segments[found.slot as usize].columns[column].gather(&definition.ty, &[found.row])
                    } else {
                        Ok(batch.rows.column(column - width).slice(row as usize, 1))
                    }
                };
                let Work::Insert { conflict: Some(conflict), returning } = &rider.work else { return Ok(()) };
                if let Some(filter) = &conflict.filter
                    && filter.select(1, &fetch, context)?.is_empty()
                {
                    return Ok(());
                }
                let assigned = conflict.values.evaluate(1, &fetch, context)?;
                let arrays: Vec<ArrayRef> = (0..width)
                    .map(|column| match conflict.targets.iter().rposition(|target| *target == column) {
                        Some(index) => Ok(assigned[index].clone()),
                        None => fetch(column),
                    })
                    .collect::<Result<_>>()?;
                table.check_new_rows(&conflict.targets, &arrays, context)?;
                if let Some(returning) = returning {
                    let ordinals = [batch.ordinals[row as usize]];
                    let fetch = |column: usize| Ok(arrays[column].clone());
                    let rows = returning.batch(1, Some(&ordinals), &fetch, context)?;
                    effects.push(Effect::Rows { ts: rider.ts, range: rider.range_of(range), batch: rows });
                }
                table.replace(rider, found.slot, &[found.row], &arrays);
                count(rider, range, 1);
                Ok(())
            }
        }
    }
}

fn count(rider: &mut Rider, range: usize, rows: u64) {
    if let Some(place) = rider.place_of_range[range]
        && let Ok(count) = &mut rider.ranges[place].outcome
    {
        *count += rows;
    }
}

fn check_batch(table: &Table, batch: &RowBatch) -> Result<()> {
    check_layout(&table.schema, &batch.rows)?;
    let rows = batch.rows.num_rows();
    if batch.positions.len() != rows || batch.ordinals.len() != rows {
        return Err(SqlError::internal("a row batch needs a position and an ordinal for each row"));
    }
    Ok(())
}
