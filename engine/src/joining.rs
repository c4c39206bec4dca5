//! Making one of several small segments, a piece at a time, between the visits of segments (paper, section 4.3).
//!
//! ```text
//!   begin ─────────────▶ gather ────────▶ catch up ─────▶ join ───────▶ release       keys follow
//!   which segments       a column         rows written    at once       a column
//!                        at a time        meanwhile                     at a time
//! ```
//!
//! What is asked of a table is looked for in each of its segments anew: many small ones make a revolution longer than few large
//! ones of the same rows. Those are small that have been cut again and again, and the blocks that are made of them. What becomes
//! of them is put together beside them, as it is in a [`compaction`](crate::compaction), from which it differs in that rows change
//! their segment: so they do it while nobody is on a revolution of the table, lest somebody misses one or meets it twice. When that
//! does not happen by itself, whoever comes waits for one revolution. Keys follow later.
//!
//! Segments become one that are neighbours on the ring, so that as few as possible have to be cut again, on one side of where they
//! have been cut lately, and none of them is more than two thirds of the whole: so a row moves no more often than a logarithm of a
//! segment's rows. All of this waits while rows are received or sent, or are to be cut, and while a table has readers that are
//! slower than the scan.

use std::ops::Range;

use crate::{
    bits::{Picked, Ranks},
    column::SegmentColumn,
    encoding::{Encoding, Number, Spec},
    pieces::Piece,
    position::{KeyRange, Position},
    preparation::Work,
    primary_key::Address,
    recut::NO_PIECE,
    riders::Riders,
    segment::Segment,
    shard::{MOST_VISITED, Progress, Shard},
    table::{SEGMENT_BYTES, Table},
    versions::Versions,
};

/// Segments are small that have no more than one in so many of the rows that a full one may have. Forty segments of 65,000 rows are
/// scanned in the time of ten of 260,000; eighty of 32,000 take a third more, or nearly twice as long for a single read.
const SMALL: usize = 6;

/// Rows that are added to the columns together, at least, and when nobody rides.
const CAUGHT_UP: usize = 64;
const FEW: usize = 1024;

/// Cells of a column that are gathered in the time in which one that was added is dealt with.
const CELLS: usize = 16;

/// Visits in which it may happen that nobody is on a revolution; then whoever comes has to wait.
const PATIENCE: usize = 4 * MOST_VISITED;

/// How often it may wait for those who are slower than the scan.
const TRIES: usize = 16;

/// When what has been put together was of no use, so many questions pass before it is tried again.
const REST: usize = 256;

/// Segments of a piece that become one.
#[derive(Debug)]
pub(crate) struct Joining {
    /// Nothing when they have become one, or are not to any more.
    sources: Vec<Source>,
    /// Their columns as one, as far as they have been put together; then what is of no use any more.
    columns: Vec<SegmentColumn>,
    /// Somebody else has the next one.
    elsewhere: Option<Number>,
    /// Rows that have been added to them since, as far as they have been brought in, in this order: of which source, and which.
    later: Vec<(usize, Range<usize>)>,
    /// For how many visits it has been their turn, and how often it was in vain.
    visits: usize,
    tries: usize,
    /// Logical size of the columns in bytes.
    pub(crate) size: usize,
}

#[derive(Debug)]
struct Source {
    slot: u32,
    /// All rows when it began,
    rows: Vec<u32>,
    ranks: Ranks,
    /// and how many there are in the columns when all of these are there.
    known: usize,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Something has been done.
    Busy,
    /// It waits for somebody else.
    Waits,
    /// Nothing is left but to put it in their place.
    Due,
}

impl Joining {
    fn new(slots: &[u32], segments: &[Segment]) -> Joining {
        let source = |slot: &u32| {
            let rows: Vec<u32> = (0..segments[*slot as usize].rows as u32).collect();
            Source { slot: *slot, known: rows.len(), rows, ranks: Ranks::default() }
        };
        let sources = slots.iter().map(source).collect();
        Joining {
            sources,
            columns: Vec::new(),
            elsewhere: None,
            later: Vec::new(),
            visits: 0,
            tries: 0,
            size: 0,
        }
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.sources.iter().any(|source| source.slot == slot)
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        self.sources.iter().map(|source| source.slot)
    }

    fn add(&mut self, column: SegmentColumn) {
        self.size += column.size();
        self.columns.push(column);
    }

    /// What has been put together is of no use.
    fn give_up(&mut self) {
        self.sources.clear();
        self.elsewhere = None;
    }

    /// The rows of each source that the columns lack.
    fn missing(&self, segments: &[Segment]) -> Vec<(usize, Range<usize>)> {
        let missing = |source: &Source| source.known..segments[source.slot as usize].rows;
        self.sources.iter().map(missing).enumerate().filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// How many these are.
    fn lacks(&self, segments: &[Segment]) -> usize {
        self.missing(segments).iter().map(|(_, rows)| rows.len()).sum()
    }

    /// Whether so many rows have been added to the segments that they had better be encoded first.
    fn is_outgrown(&self, segments: &[Segment]) -> bool {
        let began_with: usize = self.sources.iter().map(|source| source.rows.len()).sum();
        let now: usize = self.slots().map(|slot| segments[slot as usize].rows).sum();
        now > began_with * 2
    }

    /// All rows of the columns in their order: of which source, and which.
    fn runs(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = self.sources.iter().enumerate().map(|(source, of)| (source, 0..of.rows.len()));
        first.chain(self.later.iter().cloned())
    }
}

impl Shard {
    /// Does some of it, if there are segments to be joined. Busy when there may be more to do now.
    pub(crate) fn join_some(&mut self) -> Progress {
        if let Some(table) = self.tables.values_mut().find(|table| table.is_releasing()) {
            table.release_some();
            return Progress::Busy;
        }
        let are_on_their_way = !self.received.is_empty()
            || self.precut.is_some()
            || self.riders.iter_mut().any(|rider| matches!(rider.work, Work::Blocks(_)));
        if are_on_their_way || self.join_due.is_some() {
            return Progress::Idle;
        }
        let begun = self.tables.values().find(|table| table.joining.is_some()).map(|table| table.schema.id);
        let (pieces, cuts) = (&self.pieces, &self.precut_at);
        let begin = |table: &mut Box<Table>| table.begin_to_join(pieces, cuts).then_some(table.schema.id);
        let Some(id) = begun.or_else(|| self.tables.values_mut().find_map(begin)) else {
            return Progress::Idle;
        };
        match self.tables.get_mut(&id).map(|table| table.put_together()) {
            Some(Stage::Due) => {
                self.join_due = Some(id);
                Progress::Busy
            }
            Some(Stage::Busy) => Progress::Busy,
            Some(Stage::Waits) | None => Progress::Idle,
        }
    }

    /// Puts what has been joined in the place of the segments, when nobody is on a revolution of the table.
    pub(crate) fn join_if_due(&mut self) {
        let Some(id) = self.join_due else { return };
        let Some(table) = self.tables.get_mut(&id).filter(|table| table.is_joining()) else {
            self.join_due = None;
            return;
        };
        if let Some(joining) = &mut table.joining {
            joining.visits += 1;
        }
        if !table.paused.is_empty() {
            // Nobody knows for how long.
            table.has_waited_to_join();
            self.join_due = None;
        } else if !table.riding.is_empty() || self.filling.is_some() {
            table.bring_in(CAUGHT_UP);
        } else if !table.bring_in(FEW) {
            self.join_due = None;
            self.install_all();
            if let Some(table) = self.tables.get_mut(&id) {
                table.put_in_place(&mut self.riders);
            }
        }
    }

    /// Whether nobody begins a revolution before segments have become one.
    pub(crate) fn is_held_up_by_join(&self) -> bool {
        let table = self.join_due.and_then(|table| self.tables.get(&table));
        table.is_some_and(|table| {
            let patience = PATIENCE.max(2 * table.segments.len());
            table.joining.as_ref().is_some_and(|joining| joining.visits > patience)
        })
    }

    /// Whether some have begun to become one, or have just become one: there may be something for
    /// [`collect_garbage`](Shard::collect_garbage) to do that had to wait.
    pub fn is_joining(&self) -> bool {
        self.join_due.is_none() && self.tables.values().any(|table| table.joining.is_some())
    }

    /// Rows are to be where they are.
    pub(crate) fn forget_joining(&mut self) {
        self.join_due = None;
        self.tables.values_mut().filter_map(|table| table.joining.as_mut()).for_each(|it| it.give_up());
    }
}

impl Table {
    /// Looks for segments that are to become one, of which none is cut at these positions if they are not.
    fn begin_to_join(&mut self, pieces: &[Piece], cuts: &[Position]) -> bool {
        let are_some = || self.segments.iter().filter(|segment| segment.rows > 0).nth(1).is_some();
        if self.dropped || !self.paused.is_empty() || self.is_compacting() || !are_some() {
            return false;
        }
        if self.join_rest > 0 {
            self.join_rest -= 1;
            return false;
        }
        let slots = self.to_join(pieces, cuts);
        self.joining = slots.map(|slots| Box::new(Joining::new(&slots, &self.segments)));
        self.joining.is_some()
    }

    /// As many neighbours as fit into one segment, if there are some.
    fn to_join(&self, pieces: &[Piece], cuts: &[Position]) -> Option<Vec<u32>> {
        let can_be = |(segment, slot): &(&Segment, u32)| {
            segment.rows > 0
                && segment.rows * SMALL <= self.options.segment_rows
                && pieces.get(segment.range).is_some_and(Piece::is_held)
                && !segment.is_part
                && !self.is_full(*slot)
                && self.tails[segment.range] != Some(*slot)
                && self.keys.can_move(*slot)
        };
        let at = |segment: &Segment| segment.within.unwrap_or(pieces[segment.range].range);
        let is_cut = |range: KeyRange| cuts.iter().any(|at| range.first < *at && *at <= range.last);
        let mut small: Vec<(&Segment, u32)> = self.segments.iter().zip(0..).filter(can_be).collect();
        let place = |segment: &Segment| (segment.range, is_cut(at(segment)), at(segment).first);
        small.sort_by_key(|(segment, slot)| (place(segment), *slot));
        let mut best: &[(&Segment, u32)] = &[];
        for of_piece in small.chunk_by(|a, b| a.0.range == b.0.range) {
            for first in 0..of_piece.len() {
                let (mut rows, mut bytes, mut most) = (0, 0, 0);
                let mut all = at(of_piece[first].0);
                // Those would have to be cut anyway.
                let mut are_cut = true;
                for (last, (segment, _)) in of_piece.iter().enumerate().skip(first) {
                    (rows, bytes) = (rows + segment.rows, bytes + segment.size());
                    most = most.max(segment.rows);
                    all = all.hull(at(segment));
                    are_cut &= is_cut(at(segment));
                    let fits = rows <= self.options.segment_rows && bytes <= SEGMENT_BYTES;
                    if !fits || is_cut(all) && !are_cut {
                        break;
                    }
                    if most * 3 <= rows * 2 && last - first >= best.len().max(1) {
                        best = &of_piece[first..=last];
                    }
                }
            }
        }
        (!best.is_empty()).then(|| best.iter().map(|(_, slot)| *slot).collect())
    }

    /// Whether segments become one.
    fn is_joining(&self) -> bool {
        self.joining.as_ref().is_some_and(|joining| !joining.sources.is_empty())
    }

    /// Whether something is left of what is of no use any more.
    fn is_releasing(&self) -> bool {
        self.joining.as_ref().is_some_and(|joining| joining.sources.is_empty())
    }

    /// Lets a column go: to give a lot of memory back takes its time.
    fn release_some(&mut self) {
        self.joining.take_if(|joining| {
            joining.columns.pop();
            joining.size = joining.columns.iter().map(SegmentColumn::size).sum();
            joining.columns.is_empty()
        });
    }

    /// What has been put together is of no use, and what will be may be of none, either.
    pub(crate) fn give_up_joining(&mut self) {
        if let Some(joining) = &mut self.joining {
            joining.give_up();
            self.join_rest = REST;
        }
    }

    /// Whether a segment stays as it is for now, as it is about to become one with others.
    pub(crate) fn waits_to_be_joined(&mut self, slot: u32) -> bool {
        let Some(joining) = self.joining.as_ref().filter(|joining| joining.has(slot)) else { return false };
        let is_outgrown = joining.is_outgrown(&self.segments);
        if is_outgrown {
            self.give_up_joining();
        }
        !is_outgrown
    }

    /// It would be their turn, but for those who are slower than the scan, or keys that have not followed.
    fn has_waited_to_join(&mut self) {
        if let Some(joining) = &mut self.joining {
            joining.visits = 0;
            joining.tries += 1;
            if joining.tries > TRIES {
                self.give_up_joining();
            }
        }
    }

    /// Puts the next column together, or brings rows in that have been added meanwhile.
    fn put_together(&mut self) -> Stage {
        let Some(joining) = &self.joining else { return Stage::Waits };
        if joining.elsewhere.is_some() {
            return Stage::Waits;
        }
        if joining.is_outgrown(&self.segments) {
            self.give_up_joining();
            return Stage::Busy;
        }
        let columns = self.schema.columns.len();
        if joining.columns.len() < columns {
            self.join_column();
            return Stage::Busy;
        }
        if joining.lacks(&self.segments) > CAUGHT_UP {
            self.bring_in(CAUGHT_UP.max(self.options.compact_cells / (columns * CELLS)));
            return Stage::Busy;
        }
        // Rows move once before their keys have followed.
        if !joining.slots().all(|slot| self.keys.can_move(slot)) {
            self.keys.wait_for();
            return Stage::Waits;
        }
        if !self.paused.is_empty() {
            self.has_waited_to_join();
            return Stage::Waits;
        }
        Stage::Due
    }

    /// Makes one of the next column, or leaves that to somebody else.
    fn join_column(&mut self) {
        let Some(joining) = &mut self.joining else { return };
        let index = joining.columns.len();
        let slots = joining.slots().collect();
        let spec = Spec { schema: self.schema.clone(), slots, index, part: 0, is_part: false };
        let column = |source: &Source| &self.segments[source.slot as usize].columns[index];
        let parts: Vec<(&SegmentColumn, Picked)> = joining
            .sources
            .iter()
            .map(|source| (column(source), Picked::new(&source.rows, &source.ranks)))
            .collect();
        let elsewhere = self.encoder.leave(&spec, &parts, self.options.compact_cells);
        if elsewhere.is_none() {
            let ty = &self.schema.columns[index].ty;
            let mut parts: Vec<SegmentColumn> =
                parts.iter().map(|(column, rows)| column.divided(ty, rows)).collect();
            joining.add(spec.join(&mut parts));
        }
        joining.elsewhere = elsewhere;
    }

    /// Takes a column back that somebody else has put together, if it is for segments that are being joined.
    pub(crate) fn take_joined(&mut self, encoding: Encoding) -> Option<Encoding> {
        match &mut self.joining {
            Some(joining) if joining.elsewhere == Some(encoding.number()) => {
                joining.elsewhere = None;
                joining.add(encoding.into_column());
                None
            }
            _ => Some(encoding),
        }
    }

    /// Brings in so many rows, at most, that have been added to the segments. Returns whether others are left.
    fn bring_in(&mut self, most: usize) -> bool {
        let Some(joining) = &mut self.joining else { return false };
        let mut left = most;
        for (source, rows) in joining.missing(&self.segments) {
            let rows = rows.start..rows.end.min(rows.start.saturating_add(left));
            left -= rows.len();
            if rows.is_empty() {
                continue;
            }
            let segment = &self.segments[joining.sources[source].slot as usize];
            let added: Vec<u32> = (rows.start as u32..rows.end as u32).collect();
            let definitions = segment.columns.iter().zip(&self.schema.columns);
            for (column, (of_segment, definition)) in joining.columns.iter_mut().zip(definitions) {
                column.append_rows_of(of_segment, &added);
                column.absorb_known(&definition.ty);
            }
            joining.sources[source].known = rows.end;
            match joining.later.last_mut() {
                Some((last, before)) if *last == source => before.end = rows.end,
                _ => joining.later.push((source, rows)),
            }
        }
        joining.lacks(&self.segments) > 0
    }

    /// Puts what has been joined in the place of the segments. Nobody is on a revolution.
    fn put_in_place(&mut self, riders: &mut Riders) {
        let is_ready = |joining: &Joining| {
            joining.lacks(&self.segments) == 0 && joining.slots().all(|slot| self.keys.can_move(slot))
        };
        if !self.is_joining() || !self.joining.as_deref().is_some_and(is_ready) {
            return self.has_waited_to_join();
        }
        let Some(mut joining) = self.joining.take() else { return };
        let slots: Vec<u32> = joining.slots().collect();
        let (first, piece) = (slots[0], self.segments[slots[0] as usize].range);
        let mut to: Vec<Vec<Address>> = slots.iter().map(|_| Vec::new()).collect();
        let mut row = 0;
        for (source, rows) in joining.runs() {
            to[source].extend((row..row + rows.len() as u32).map(|row| Address { slot: first, row }));
            row += rows.len() as u32;
        }
        let sources: Vec<&Segment> = slots.iter().map(|slot| &self.segments[*slot as usize]).collect();
        assert!(sources.iter().all(|segment| segment.range == piece), "rows stay in their piece");
        let versions: Vec<&Versions> = sources.iter().map(|segment| &segment.versions).collect();
        let versions = Versions::joined(&versions, joining.runs());
        let within: Option<Vec<KeyRange>> = sources.iter().map(|segment| segment.within).collect();
        let mut joined = Segment::joined(piece, std::mem::take(&mut joining.columns), versions, &sources);
        joined.within = within.and_then(|all| all.into_iter().reduce(KeyRange::hull));
        let mut joined = Some(joined);
        for slot in &slots {
            // What refers to rows is put where they have gone by `readdress`.
            let vacant = || Segment::new(NO_PIECE, &self.schema.columns);
            let mut segment = joined.take().unwrap_or_else(vacant);
            let old = &mut self.segments[*slot as usize];
            std::mem::swap(&mut segment.previous, &mut old.previous);
            std::mem::swap(&mut segment.next, &mut old.next);
            std::mem::swap(&mut segment.queues, &mut old.queues);
            let old = std::mem::replace(old, segment);
            self.forget_size(&old);
            joining.columns.extend(old.columns);
            self.is_full_no_more(*slot);
        }
        self.tails[piece].take_if(|tail| slots.contains(tail));
        self.readdress(slots.into_iter().zip(to).collect(), riders);
        joining.give_up();
        self.joining = Some(joining);
    }
}
