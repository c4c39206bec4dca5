//! Rows that a read has found: kept where they are until they are sent, all of them or the first of an order.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use arrow::array::ArrayRef;

use crate::{
    bits::Bits,
    column::{Physical, SegmentColumn, gather_runs, physical},
    content_hash::Sums,
    error::{Result, SqlError},
    expr::{EvalContext, Expr, Input},
    given_up::check_entered,
    operation::{Effect, SortKey, Top},
    order,
    pack::Blocks,
    preparation::Work,
    primary_key::Address,
    projection::Projection,
    rider::Rider,
    table::Table,
    types::Type,
};

/// Rows that a read has found and that have not been sent yet. They stay where they are: the read itself keeps their
/// versions from being collected.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundRows {
    /// Runs of rows of one segment: its slot, and the rows. Each has memory of its own: a read may find all rows of a table, and
    /// whoever scans would have to wait for a list of all of them to be moved as it grows.
    runs: Vec<(u32, Vec<u32>)>,
    /// Rows of segments that have not been listed: a bit for each row that is there. Only reads that look at them later have such.
    masks: Vec<(u32, Bits)>,
    /// Rows of all of these, each of which has some.
    len: usize,
}

fn listed(mask: &Bits) -> Vec<u32> {
    let mut rows = Vec::with_capacity(mask.count());
    rows.extend(mask.iter());
    rows
}

impl FoundRows {
    pub(crate) fn push(&mut self, slot: u32, rows: &[u32]) {
        if rows.is_empty() {
            return;
        }
        self.len += rows.len();
        match self.runs.last_mut() {
            Some((last, before)) if *last == slot => before.extend_from_slice(rows),
            _ => self.runs.push((slot, rows.to_vec())),
        }
    }

    /// As [`push`](FoundRows::push), of rows that are not to be listed yet: that would take far longer than to find all rows of a
    /// segment, and whoever rides along would wait for it.
    fn push_mask(&mut self, slot: u32, mask: Bits) {
        let rows = mask.count();
        if rows > 0 {
            self.len += rows;
            self.masks.push((slot, mask));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lists the rows of a segment, if none are listed.
    pub(crate) fn list_some(&mut self) {
        if self.runs.is_empty()
            && let Some((slot, mask)) = self.masks.pop()
        {
            self.runs.push((slot, listed(&mask)));
        }
    }

    /// The rows of each segment that are listed; some segments may come more than once.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, &[u32])> {
        self.runs.iter().map(|(slot, rows)| (*slot, &rows[..]))
    }

    /// The last of these.
    pub(crate) fn last_run(&self) -> Option<(u32, &[u32])> {
        self.runs.last().map(|(slot, rows)| (*slot, &rows[..]))
    }

    /// All rows.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> {
        let listed = self.runs().flat_map(|(slot, rows)| rows.iter().map(move |row| (slot, *row)));
        let others = self.masks.iter().flat_map(|(slot, mask)| mask.iter().map(|row| (*slot, row)));
        listed.chain(others).map(|(slot, row)| Address { slot, row })
    }

    /// Forgets the rows of segments.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(u32) -> bool) {
        let listed = self.runs.extract_if(.., |(slot, _)| is_gone(*slot)).map(|(_, rows)| rows.len());
        let others = self.masks.extract_if(.., |(slot, _)| is_gone(*slot)).map(|(_, mask)| mask.count());
        self.len -= listed.chain(others).sum::<usize>();
    }

    /// Forgets so many of the last ones, which are in one run.
    pub(crate) fn drop_last(&mut self, rows: usize) {
        let Some((_, last)) = self.runs.last_mut() else { return };
        last.truncate(last.len() - rows);
        if last.is_empty() {
            self.runs.pop();
        }
        self.len -= rows;
    }

    /// Gives the rows of a segment new numbers.
    pub(crate) fn renumber(&mut self, slot: u32, renumbered: &[u32]) {
        let masks = self.masks.extract_if(.., |(other, _)| *other == slot);
        self.runs.extend(masks.map(|(slot, mask)| (slot, listed(&mask))));
        let of_slot = self.runs.iter_mut().filter(|(other, _)| *other == slot);
        of_slot.flat_map(|(_, rows)| rows).for_each(|row| *row = renumbered[*row as usize]);
    }

    /// Keeps only the rows at these places, which ascend.
    fn keep(&mut self, places: &[u32]) {
        let mut kept = FoundRows::default();
        let (mut start, mut places) = (0, places.iter().map(|place| *place as usize).peekable());
        for (slot, rows) in self.runs() {
            while let Some(place) = places.next_if(|place| *place < start + rows.len()) {
                kept.push(slot, &[rows[place - start]]);
            }
            start += rows.len();
        }
        *self = kept;
    }

    /// In two parts, if they are more than one row.
    fn halves(self) -> Vec<FoundRows> {
        let half = self.len().div_ceil(2).max(1);
        self.parts(half)
    }

    /// In parts of at most so many rows.
    fn parts(self, most: usize) -> Vec<FoundRows> {
        debug_assert!(self.masks.is_empty(), "whoever sends rows has listed them");
        if self.len() <= most {
            return vec![self];
        }
        let (mut parts, mut part) = (Vec::new(), FoundRows::default());
        for (slot, mut rows) in self.runs() {
            while !rows.is_empty() {
                let (now, later) = rows.split_at((most - part.len()).min(rows.len()));
                part.push(slot, now);
                rows = later;
                if part.len() == most {
                    parts.push(std::mem::take(&mut part));
                }
            }
        }
        parts.push(part);
        parts
    }
}

/// Rows that a read has found, and whose hashes it asks for. That, too, is done when all of them have been found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hashes {
    /// Those that have not been hashed.
    pub(crate) found: FoundRows,
    /// Of the last run.
    hashing: Option<Sums>,
}

impl Hashes {
    /// The rows, to be put elsewhere or forgotten: those that are being hashed are begun anew.
    pub(crate) fn found_anew(&mut self) -> &mut FoundRows {
        self.hashing = None;
        &mut self.found
    }
}

/// Which of the qualifying rows a read wants.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    All,
    /// As many more, any of them.
    Any(u64),
    First(Box<First>),
}

/// The first rows of an order.
#[derive(Clone, Debug)]
pub(crate) struct First {
    /// The keys' values.
    input: Arc<Projection>,
    types: Vec<Type>,
    /// Over the keys' values.
    keys: Vec<SortKey>,
    limit: usize,
    /// The table's column that the first key is, if its values are whole numbers inside.
    leading: Option<usize>,
    /// As many rows as wanted have no later value there: rows that do are not looked at.
    bound: Option<i64>,
}

impl Wanted {
    /// The most rows that are kept back for an order: whoever wants more gets all.
    const MOST: u64 = 1 << 16;

    /// `projection` is what `top` is over, itself over `row`.
    pub(crate) fn new(top: Option<&Top>, projection: &[Expr], row: Input<'_>) -> Result<Wanted> {
        let Some(top) = top else { return Ok(Wanted::All) };
        if top.keys.is_empty() || top.limit == 0 {
            return Ok(Wanted::Any(top.limit));
        }
        if top.limit > Wanted::MOST {
            return Ok(Wanted::All);
        }
        let of_key = |key: &SortKey| {
            let missing = || SqlError::internal("an order by a column that the read does not return");
            projection.get(key.column).cloned().ok_or_else(missing)
        };
        let exprs = top.keys.iter().map(of_key).collect::<Result<Vec<Expr>>>()?;
        let renumbered = top.keys.iter().enumerate().map(|(column, key)| SortKey { column, ..key.clone() });
        let leading = match exprs.first() {
            Some(Expr::Column { index, ty }) if physical(ty) == Physical::Int => {
                // Zeros of different signs are equal, but not inside.
                Some(*index).filter(|_| !matches!(ty, Type::Float4 | Type::Float8))
            }
            _ => None,
        };
        Ok(Wanted::First(Box::new(First {
            input: Arc::new(Projection::new(&exprs, row)?),
            types: exprs.iter().map(Expr::ty).collect(),
            keys: renumbered.collect(),
            limit: top.limit as usize,
            leading,
            bound: None,
        })))
    }

    /// Rather than at the end.
    pub(crate) fn are_sent_when_found(&self) -> bool {
        !matches!(self, Wanted::First(_))
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Wanted::Any(0))
    }
}

impl First {
    /// Rows from which those beyond the limit are dropped: so many that it takes a small part of the time.
    fn many(&self, batch_rows: usize) -> usize {
        self.limit + self.limit.max(2 * batch_rows)
    }
}

/// A cell of a column whose values are whole numbers inside.
fn int_cell(column: &SegmentColumn, row: u32) -> Option<i64> {
    (!column.is_null(row as usize)).then(|| column.int(row as usize))
}

/// The last of some cells in the order of a key, if it is not NULL.
fn bound_of(key: &SortKey, cells: impl Iterator<Item = Option<i64>>) -> Option<i64> {
    let mut bound = None;
    for cell in cells {
        bound = match (cell, bound) {
            (None, bound) if key.nulls_first => bound,
            (None, _) => return None,
            (Some(value), Some(bound)) if key.descending => Some(value.min(bound)),
            (Some(value), Some(bound)) => Some(value.max(bound)),
            (cell, None) => cell,
        };
    }
    bound
}

/// Whether a cell is not behind the bound in the order of a key. Further keys may put one that is equal before others.
fn is_hopeful(key: &SortKey, bound: i64, cell: Option<i64>) -> bool {
    match cell {
        None => key.nulls_first,
        Some(value) if key.descending => value >= bound,
        Some(value) => value <= bound,
    }
}

impl Table {
    /// Keeps rows of a segment, those that it sees, for a read that does nothing with them yet. Returns false for any other.
    pub(crate) fn keep_mask(&self, rider: &mut Rider, slot: u32, mask: &mut Bits) -> bool {
        let segment = &self.segments[slot as usize];
        let Some(place) = rider.place_of_range[segment.range] else { return false };
        let (Work::Hash(Hashes { found, .. }) | Work::Blocks(Blocks { found, .. })) = &mut rider.work else {
            return false;
        };
        let Ok(count) = &mut rider.ranges[place].outcome else { return false };
        if rider.prepared.filter.is_some() {
            return false;
        }
        let mut mask = std::mem::replace(mask, Bits::zeros(0));
        segment.versions.retain_visible(&mut mask, rider.sees, false);
        *count += mask.count() as u64;
        found.push_mask(slot, mask);
        true
    }

    /// Puts rows to those that a read has found; a reader of many gets them as they are found.
    pub(crate) fn find_rows(
        &self,
        rider: &mut Rider,
        slot: u32,
        mut rows: &[u32],
        effects: &mut Vec<Effect>,
    ) -> Result<u64> {
        let (context, batch_rows) = (&rider.operation.context, self.options.batch_rows.max(1));
        let mut all = rows.len() as u64;
        if let Work::Rows { wanted, found, .. } = &mut rider.work {
            match wanted {
                Wanted::All => {}
                Wanted::Any(limit) => {
                    let most = usize::try_from(*limit).unwrap_or(usize::MAX).min(rows.len());
                    rows = &rows[..most];
                    all = most as u64;
                    *limit -= most as u64;
                }
                Wanted::First(first) => {
                    let many = first.many(batch_rows);
                    let mut are_compared = true;
                    while are_compared && !rows.is_empty() {
                        let (now, later) = rows.split_at(many.min(rows.len()));
                        found.push(slot, &self.hopeful(first, slot, now));
                        rows = later;
                        // If at least some are dropped, that is worth its while.
                        are_compared = found.len() < many
                            || self.keep_first(first, found, context)?
                            || found.len() <= many / 2;
                    }
                    if are_compared {
                        return Ok(all);
                    }
                    // Whoever is sent rows puts them in order anyway.
                    *wanted = Wanted::All;
                }
            }
        }
        for rows in rows.chunks(batch_rows) {
            let Work::Rows { found, credit, .. } = &mut rider.work else { break };
            found.push(slot, rows);
            if found.len() >= batch_rows && credit.is_none_or(|credit| credit > 0) {
                self.send(rider, false, effects)?;
            }
        }
        Ok(all)
    }

    /// The cells of a column in some rows; [`SqlError::batch_full`] when they are several and too large for one array.
    pub(crate) fn cells<'a>(
        &self,
        column: usize,
        runs: impl Iterator<Item = (u32, &'a [u32])>,
    ) -> Result<ArrayRef> {
        let cells: Vec<(&SegmentColumn, &[u32])> =
            runs.map(|(slot, rows)| (&self.segments[slot as usize].columns[column], rows)).collect();
        gather_runs(&self.schema.columns[column].ty, &cells)
    }

    /// The rows that may be among the first of an order.
    fn hopeful<'a>(&self, first: &First, slot: u32, rows: &'a [u32]) -> Cow<'a, [u32]> {
        let (Some(leading), Some(bound)) = (first.leading, first.bound) else { return rows.into() };
        let (column, key) = (&self.segments[slot as usize].columns[leading], &first.keys[0]);
        rows.iter().copied().filter(|row| is_hopeful(key, bound, int_cell(column, *row))).collect()
    }

    /// The last value of the first key in rows of which no more are wanted, if it is not NULL.
    fn bound(&self, first: &First, found: &FoundRows) -> Option<i64> {
        let leading = first.leading?;
        let cells = found.runs().flat_map(|(slot, rows)| {
            let column = &self.segments[slot as usize].columns[leading];
            rows.iter().map(|row| int_cell(column, *row))
        });
        bound_of(&first.keys[0], cells)
    }

    /// Drops the rows beyond the limit. Returns false when more rows stay, as their keys are too long to be looked at together.
    fn keep_first(&self, first: &mut First, found: &mut FoundRows, context: &EvalContext) -> Result<bool> {
        if found.len() <= first.limit {
            return Ok(true);
        }
        let fetch = |column: usize| self.cells(column, found.runs());
        let values = match first.input.evaluate(found.len(), &fetch, context) {
            Err(error) if error.is_batch_full() => {
                // The first of each half first.
                let before = found.len();
                for mut half in std::mem::take(found).halves() {
                    self.keep_first(first, &mut half, context)?;
                    half.runs().for_each(|(slot, rows)| found.push(slot, rows));
                }
                return if found.len() < before { self.keep_first(first, found, context) } else { Ok(false) };
            }
            values => values?,
        };
        let mut kept = order::first(&values, &first.types, &first.keys, first.limit);
        kept.sort_unstable();
        found.keep(&kept);
        first.bound = self.bound(first, found);
        Ok(true)
    }

    /// Sends full batches of what a read has found, or with `all` everything, as far as it may; the rows of each key
    /// range in batches of their own. Returns whether nothing is left.
    fn send(&self, rider: &mut Rider, all: bool, effects: &mut Vec<Effect>) -> Result<bool> {
        let batch_rows = self.options.batch_rows.max(1);
        let Work::Rows { projection, found, credit, .. } = &mut rider.work else { return Ok(true) };
        let (projection, mut credit) = (projection.clone(), *credit);
        let mut rest = FoundRows::default();
        let parts = std::mem::take(found).parts(batch_rows);
        let is_whole = |part: &FoundRows| part.len() >= batch_rows || all;
        let mut parts: VecDeque<(bool, FoundRows)> =
            parts.into_iter().map(|part| (is_whole(&part), part)).collect();
        while let Some((is_whole, part)) = parts.pop_front() {
            let waits = credit.is_some_and(|credit| credit <= 0) || rest.len() > 0;
            if waits || !is_whole {
                part.runs().for_each(|(slot, rows)| rest.push(slot, rows));
                continue;
            }
            check_entered()?;
            match self.send_part(rider, &projection, &part, effects) {
                Ok(sent) => credit = credit.map(|credit| credit - sent),
                Err(error) if error.is_batch_full() => {
                    part.halves().into_iter().rev().for_each(|half| parts.push_front((true, half)));
                }
                Err(error) => return Err(error),
            }
        }
        let is_done = rest.len() == 0;
        if let Work::Rows { found, credit: left, .. } = &mut rider.work {
            (*found, *left) = (rest, credit);
        }
        Ok(is_done)
    }

    /// Returns how many batches it was; [`SqlError::batch_full`] when nothing has been sent because a batch would be too
    /// large.
    fn send_part(
        &self,
        rider: &Rider,
        projection: &Projection,
        part: &FoundRows,
        effects: &mut Vec<Effect>,
    ) -> Result<i64> {
        let place_of = |slot: u32| rider.place_of_range[self.segments[slot as usize].range];
        let mut places: Vec<usize> = part.runs().filter_map(|(slot, _)| place_of(slot)).collect();
        places.sort_unstable();
        places.dedup();
        let mut batches = Vec::with_capacity(places.len());
        for place in &places {
            let runs = || part.runs().filter(|(slot, _)| place_of(*slot) == Some(*place));
            let rows = runs().map(|(_, rows)| rows.len()).sum();
            let batch =
                projection.batch(rows, None, &|column| self.cells(column, runs()), rider.context())?;
            batches.push(Effect::Rows { ts: rider.ts, range: rider.ranges[*place].range, batch });
        }
        effects.extend(batches);
        Ok(places.len() as i64)
    }

    /// Adds the hashes of some of the cells that a read has found. Returns whether nothing is left.
    pub(crate) fn hash_found(&self, rider: &mut Rider) -> bool {
        let Work::Hash(hashes) = &mut rider.work else { return true };
        let (places, ranges) = (&rider.place_of_range, &mut rider.ranges);
        self.hash_some(hashes, |piece, sum| {
            if let Some(place) = places[piece] {
                ranges[place].hash = ranges[place].hash.wrapping_add(sum);
            }
        })
    }

    /// Adds the hashes of some cells of rows, when all of a run have been hashed. Returns whether nothing is left.
    pub(crate) fn hash_some(&self, hashes: &mut Hashes, mut add: impl FnMut(usize, u128)) -> bool {
        let Hashes { found, hashing } = hashes;
        let mut left = self.options.cells_hashed_together();
        while left > 0 {
            found.list_some();
            let Some((slot, rows)) = found.last_run() else { break };
            let segment = &self.segments[slot as usize];
            let mut sums = hashing.take().unwrap_or_else(|| Sums::new(rows));
            let added = sums.add(&segment.columns, &self.schema.columns, rows, left);
            left = left.saturating_sub(added);
            if sums.columns() < segment.columns.len() {
                *hashing = Some(sums);
                return false;
            }
            add(segment.range, sums.finish());
            let rows = rows.len();
            found.drop_last(rows);
        }
        found.len() == 0
    }

    /// Lets a read send more batches of what it has found.
    pub(crate) fn allow(&self, rider: &mut Rider, batches: u32, effects: &mut Vec<Effect>) {
        let _entered = rider.interest.enter();
        if let Work::Blocks(blocks) = &mut rider.work {
            blocks.allow(batches);
        }
        if let Work::Rows { wanted, credit: Some(credit), .. } = &mut rider.work {
            *credit += i64::from(batches);
            if wanted.are_sent_when_found()
                && !rider.has_failed()
                && let Err(error) = self.send(rider, false, effects)
            {
                rider.fail_everywhere(&error);
            }
        }
    }

    /// Sends what a read has found and not sent yet, at the end of its revolution. Returns whether nothing is left.
    pub(crate) fn send_found(&self, rider: &mut Rider, effects: &mut Vec<Effect>) -> bool {
        if rider.has_failed() {
            return true;
        }
        let _entered = rider.interest.enter();
        let context = &rider.operation.context;
        let kept = match &mut rider.work {
            Work::Rows { wanted, found, .. } => match wanted {
                // It is not tried again each time that the reader takes some.
                Wanted::First(first) => self.keep_first(first, found, context).map(|kept| {
                    if !kept {
                        *wanted = Wanted::All;
                    }
                }),
                Wanted::All | Wanted::Any(_) => Ok(()),
            },
            _ => Ok(()),
        };
        match kept.and_then(|()| self.send(rider, true, effects)) {
            Ok(is_done) => is_done,
            Err(error) => {
                rider.fail_everywhere(&error);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;

    use super::*;

    /// Rows that are not listed are the same rows, whatever happens to them before they are.
    #[test]
    fn rows_are_listed_late() {
        let mask = |rows: &[u32]| {
            let mut mask = Bits::zeros(9);
            rows.iter().for_each(|row| mask.set(*row as usize));
            mask
        };
        let mut found = FoundRows::default();
        found.push_mask(0, mask(&[0, 3, 8]));
        found.push_mask(1, mask(&[1, 2]));
        found.push_mask(2, mask(&[]));
        found.push_mask(3, mask(&[5, 7]));
        assert_eq!((found.len(), found.runs().count()), (7, 0));
        found.forget(|slot| slot == 1);
        let renumbered: Vec<u32> = (0..9).map(|row| row / 2 + 10).collect();
        found.renumber(0, &renumbered);
        found.renumber(2, &renumbered);
        let mut addresses: Vec<(u32, u32)> = found.addresses().map(|at| (at.slot, at.row)).collect();
        addresses.sort_unstable();
        assert_eq!(addresses, [(0, 10), (0, 11), (0, 14), (3, 5), (3, 7)]);
        let mut taken = Vec::new();
        while found.len() > 0 {
            found.list_some();
            let (slot, rows) = found.last_run().expect("some are listed");
            taken.push((slot, *rows.last().expect("a run has rows")));
            found.drop_last(1);
        }
        assert_eq!(taken, [(0, 14), (0, 11), (0, 10), (3, 7), (3, 5)]);
        found.list_some();
        assert_eq!(found.last_run(), None);
    }

    /// Of all cells of some few values in all orders: the bound is the last one, and what is not behind it has hope.
    #[test]
    fn the_bound_is_the_last_cell_and_what_is_behind_it_has_no_hope() {
        let cells = [None, Some(-1), Some(0), Some(7)];
        for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let key = SortKey { column: 0, descending, nulls_first };
            let sorted = |cells: &[Option<i64>]| {
                let array: ArrayRef = Arc::new(Int64Array::from(cells.to_vec()));
                order::sorted(&[array], &[Type::Int8], std::slice::from_ref(&key))
            };
            for number in 0..cells.len().pow(3) {
                let kept: Vec<Option<i64>> =
                    (0..3).map(|at| cells[number / cells.len().pow(at) % cells.len()]).collect();
                let last = kept[sorted(&kept)[2] as usize];
                let bound = bound_of(&key, kept.iter().copied());
                assert_eq!(bound, last, "{kept:?} {key:?}");
                for cell in cells {
                    let Some(bound) = bound else { continue };
                    // Those that compare equal stay in the order in which they are.
                    let is_behind = sorted(&[cell, last]) == [1, 0];
                    assert_eq!(is_hopeful(&key, bound, cell), !is_behind, "{cell:?} {bound} {key:?}");
                }
            }
        }
        assert_eq!(
            bound_of(&SortKey { column: 0, descending: false, nulls_first: true }, [].into_iter()),
            None
        );
    }
}
