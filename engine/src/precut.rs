//! Cutting segments before a change of the key ranges, so that little is left to be cut at the change itself, which
//! everything waits for ([`crate::recut`]; paper, section 6.4).
//!
//! ```text
//!   begin ─────────────▶ gather ────────▶ catch up ─────▶ divide ──▶ next segment …      recut: which piece has a segment
//!   which rows are       a column         rows written    at once
//!   of which part        at a time        meanwhile
//! ```
//!
//! Rows stay in their piece, and nobody can tell: the two halves of a segment are visited one after the other as if they
//! had always been two. What they will have is put together beside the segment between visits, as it is in a
//! [`compaction`](crate::compaction), which the parts do not need any more then; only when it is there the segment is
//! divided, while nobody is on a revolution, so that nobody misses a row. When that does not happen by itself, whoever comes waits
//! for one revolution. Keys follow later. Rows that are inserted meanwhile, and those of tables that somebody reads more slowly
//! than they are scanned, are left to the change.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    bits::{Picked, Ranks},
    column::{GOOD_PART, SegmentColumn},
    encoding::{Encoder, Encoding, Number, Spec},
    operation::Effect,
    position::{KeyRange, Position, cut},
    schema::{TableId, TableSchema},
    segment::Segment,
    shard::{MOST_VISITED, Shard},
    table::Table,
};

/// Visits in which it may happen that nobody is on a revolution; then whoever comes has to wait.
const PATIENCE: usize = MOST_VISITED;

/// So many of the places where segments have been cut last are those where they may be cut again.
const REMEMBERED: usize = 16;

/// What is still to be cut.
#[derive(Debug)]
pub(crate) struct Precut {
    /// Where, ascending.
    at: Vec<Position>,
    segments: VecDeque<(TableId, u32)>,
    /// What the first of them is to be divided into.
    cutting: Option<Cutting>,
    /// It is the first segment's turn when nobody is on a revolution, and has been for so many visits.
    due: Option<usize>,
}

/// The parts of a segment, while they are put together.
#[derive(Debug)]
pub(crate) struct Cutting {
    /// Of the range of its piece, in order.
    parts: Vec<KeyRange>,
    /// The rows of each, as far as they are known.
    pub(crate) rows: Vec<Vec<u32>>,
    ranks: Vec<Ranks>,
    /// Whether all rows were known at some time: a few may have been added since.
    is_found: bool,
    /// Their columns, as far as they have been gathered: some lack rows that have been added since.
    columns: Vec<Vec<SegmentColumn>>,
    /// How many these are: one of each part, then the next one of each.
    gathered: usize,
    /// Somebody else has the next one.
    elsewhere: Option<Number>,
    /// Logical size of the columns in bytes.
    size: usize,
}

impl Precut {
    /// Whether something is cut when nobody is on a revolution.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether nobody begins a revolution before that.
    pub(crate) fn holds_up(&self) -> bool {
        self.due.is_some_and(|visits| visits > PATIENCE)
    }
}

impl Cutting {
    pub(crate) fn new(parts: &[KeyRange]) -> Cutting {
        Cutting {
            parts: parts.to_vec(),
            rows: vec![Vec::new(); parts.len()],
            ranks: parts.iter().map(|_| Ranks::default()).collect(),
            is_found: false,
            columns: parts.iter().map(|_| Vec::new()).collect(),
            gathered: 0,
            elsewhere: None,
            size: 0,
        }
    }

    /// Whether these are its parts.
    pub(crate) fn is_in(&self, parts: &[KeyRange]) -> bool {
        self.parts == parts
    }

    /// Notes of which part the next rows are that it does not know: so many of them. Returns whether it knows all.
    pub(crate) fn find_rows(&mut self, segment: &Segment, schema: &TableSchema, most: usize) -> bool {
        let known: usize = self.rows.iter().map(Vec::len).sum();
        let until = segment.rows.min(known.saturating_add(most));
        let added: Vec<u32> = (known as u32..until as u32).collect();
        if added.is_empty() {
            return true;
        }
        self.ranks.iter_mut().for_each(|ranks| *ranks = Ranks::default());
        for (row, position) in added.iter().zip(segment.positions(schema, &added)) {
            let part = self.parts.partition_point(|part| part.last < position);
            self.rows[part].push(*row);
        }
        until == segment.rows
    }

    /// The parts that have rows.
    pub(crate) fn filled(&self) -> Vec<usize> {
        (0..self.parts.len()).filter(|part| !self.rows[*part].is_empty()).collect()
    }

    /// Gathers the next columns of parts, as they will be for good: until so many cells have been gathered, or one is left to
    /// somebody else. Returns whether one was left.
    fn gather(
        &mut self,
        (slot, segment): (u32, &mut Segment),
        schema: &Arc<TableSchema>,
        cells: usize,
        encoder: &mut Encoder,
    ) -> bool {
        let mut room = cells;
        while room > 0 && self.elsewhere.is_none() {
            let (index, part) = self.next();
            let Some(column) = segment.columns.get_mut(index) else { return room < cells };
            let rows = &self.rows[part];
            if rows.is_empty() {
                self.add(SegmentColumn::new(&schema.columns[index].ty));
                room -= 1;
                continue;
            }
            let spec =
                Spec { schema: schema.clone(), slots: vec![slot], index, part: GOOD_PART, is_part: true };
            let keep = Picked::new(rows, &self.ranks[part]);
            self.elsewhere = encoder.leave(&spec, &[(&*column, keep)], cells);
            if self.elsewhere.is_none() {
                let (column, took) = spec.encode(column, &keep);
                self.add(column);
                room = room.saturating_sub(took + 1);
            }
        }
        true
    }

    /// Which column is to be gathered next, and of which part.
    fn next(&self) -> (usize, usize) {
        (self.gathered / self.parts.len(), self.gathered % self.parts.len())
    }

    fn add(&mut self, column: SegmentColumn) {
        let (_, part) = self.next();
        self.size += column.size();
        self.columns[part].push(column);
        self.gathered += 1;
    }

    /// The columns of each part, with all rows that it knows: what has not been gathered is what takes least time, and has
    /// its domain in common with the segment's. Returns also whether everything has been gathered.
    pub(crate) fn finish(
        &mut self,
        segment: &Segment,
        schema: &TableSchema,
    ) -> (Vec<Vec<SegmentColumn>>, bool) {
        let all_gathered = self.gathered == self.parts.len() * segment.columns.len();
        for ((rows, ranks), columns) in self.rows.iter().zip(&self.ranks).zip(&mut self.columns) {
            for (part, whole) in columns.iter_mut().zip(&segment.columns) {
                part.append_rows_of(whole, &rows[part.rows()..]);
            }
            let picked = Picked::new(rows, ranks);
            for index in columns.len()..segment.columns.len() {
                columns.push(segment.columns[index].divided(&schema.columns[index].ty, &picked));
            }
        }
        (std::mem::take(&mut self.columns), all_gathered)
    }
}

impl Shard {
    /// Begins to cut segments where key ranges are about to be cut. The shard says [`Effect::Precut`] when it has.
    pub fn precut(&mut self, mut at: Vec<Position>) {
        self.forget_joining();
        at.extend(self.precut.take().map_or(Vec::new(), |before| before.at));
        at.sort_unstable();
        at.dedup();
        self.precut_at.retain(|before| !at.contains(before));
        self.precut_at.extend(&at);
        let forgotten = self.precut_at.len().saturating_sub(REMEMBERED.max(at.len()));
        self.precut_at.drain(..forgotten);
        let slots = |table: &Table| {
            let id = table.schema.id;
            (0..table.segments.len() as u32).map(move |slot| (id, slot))
        };
        let segments = self.tables.values().flat_map(|table| slots(table)).collect();
        self.precut = Some(Precut { at, segments, cutting: None, due: None });
    }

    /// Does some of it, if there is something to do and time for it.
    pub(crate) fn precut_some(&mut self, effects: &mut Vec<Effect>) {
        let waits = self.precut_waits();
        let Some(mut precut) = self.precut.take() else { return };
        if let Some(visits) = &mut precut.due {
            *visits += 1;
            let nobody_rides = self.rotation.is_empty() && self.filling.is_none();
            if nobody_rides && let Some((id, slot)) = precut.segments.pop_front() {
                precut.due = None;
                self.install_all();
                self.cut_in_place(id, slot, &precut.at, precut.cutting.take());
            }
        } else if !waits && self.take_time() && !self.install_more() {
            while let Some((id, slot)) = precut.segments.front().copied()
                && !self.spans_parts(id, slot, &precut.at)
            {
                precut.segments.pop_front();
                precut.cutting = None;
            }
            let Some((id, slot)) = precut.segments.front().copied() else {
                return effects.push(Effect::Precut);
            };
            // Rows move once before their keys have followed.
            let moving = |it: &&mut Box<Table>| it.is_compacting() || !it.keys.can_move(slot);
            match self.tables.get_mut(&id).filter(moving) {
                Some(table) if table.is_compacting() => {
                    table.collect_garbage(self.horizon, &mut self.riders);
                }
                // Once in a revolution.
                Some(table) => {
                    table.follow_some(table.options.compact_cells);
                }
                None => precut.due = self.put_together(id, slot, &mut precut).then_some(0),
            }
        }
        self.precut = Some(precut);
    }

    /// Finds the rows of the parts of a segment, or gathers some of their columns. Returns whether it can be cut.
    fn put_together(&mut self, table: TableId, slot: u32, precut: &mut Precut) -> bool {
        let Some(table) = self.tables.get_mut(&table) else { return false };
        let segment = &mut table.segments[slot as usize];
        let parts = cut(self.pieces[segment.range].range, &precut.at);
        let cutting = match &mut precut.cutting {
            Some(cutting) if cutting.is_in(&parts) => cutting,
            cutting => cutting.insert(Cutting::new(&parts)),
        };
        if !cutting.is_found {
            cutting.is_found = cutting.find_rows(segment, &table.schema, table.options.keys_together.max(1));
            // Nothing has to be gathered where all rows stay together.
            return cutting.is_found && cutting.filled().len() < 2;
        }
        let cells = table.options.compact_cells.max(1);
        let is_left = cutting.gather((slot, segment), &table.schema, cells, &mut table.encoder);
        table.measure(slot);
        !is_left
    }

    /// Takes a column back that somebody else has encoded, if it is for a segment that is being cut.
    pub(crate) fn take_cut(&mut self, encoding: Encoding) -> Option<Encoding> {
        if let Some(Precut { segments, cutting: Some(cutting), .. }) = &mut self.precut
            && segments.front().is_some_and(|(table, _)| *table == encoding.table())
            && cutting.elsewhere == Some(encoding.number())
        {
            cutting.elsewhere = None;
            cutting.add(encoding.into_column());
            return None;
        }
        Some(encoding)
    }

    /// Whether somebody else has a column without which nothing more is cut.
    pub(crate) fn precut_waits(&self) -> bool {
        self.precut.as_ref().is_some_and(|precut| {
            let cutting = precut.cutting.as_ref().is_some_and(|cutting| cutting.elsewhere.is_some());
            let table = precut.segments.front().and_then(|(table, _)| self.tables.get(table));
            !precut.is_due() && (cutting || table.is_some_and(|table| table.waits_for_a_column()))
        })
    }

    /// Segments are not as they were when parts of one were put together.
    pub(crate) fn forget_cutting(&mut self) {
        if let Some(precut) = &mut self.precut {
            (precut.cutting, precut.due) = (None, None);
        }
    }

    /// Logical size in bytes of what has been put together.
    pub(crate) fn cutting_size(&self) -> usize {
        self.precut.as_ref().and_then(|precut| precut.cutting.as_ref()).map_or(0, |cutting| cutting.size)
    }

    /// Whether a segment of a piece that is held may have rows of several parts, and can be cut now.
    fn spans_parts(&self, table: TableId, slot: u32, at: &[Position]) -> bool {
        let Some(table) = self.tables.get(&table).filter(|table| table.paused.is_empty()) else {
            return false;
        };
        let segment = &table.segments[slot as usize];
        let Some(piece) = self.pieces.get(segment.range).filter(|piece| piece.is_held()) else {
            return false;
        };
        segment.rows > 0 && cut(segment.within.unwrap_or(piece.range), at).len() > 1
    }

    fn cut_in_place(&mut self, table: TableId, slot: u32, at: &[Position], cutting: Option<Cutting>) {
        if !self.spans_parts(table, slot, at) {
            return;
        }
        let Some(table) = self.tables.get_mut(&table) else { return };
        let piece = table.segments[slot as usize].range;
        let parts = cut(self.pieces[piece].range, at);
        if let Some(addresses) = table.divide(slot, &parts, &vec![piece; parts.len()], cutting) {
            if table.tails[piece] == Some(slot) {
                table.tails[piece] = None;
            }
            table.readdress([(slot, addresses)].into(), &mut self.riders);
        }
    }
}
