//! Making one of several small segments, a piece at a time, between the visits of segments (paper, section 4.3).
//!
//! ```text
//!   begin ─────────────▶ gather ────────▶ catch up ─────▶ join ───────▶ release       keys follow
//!   which segments       a column         rows written    at once       a column
//!                        at a time        meanwhile                     at a time
//! ```
//!
//! What is asked of a table is looked for in each of its segments anew: many small ones make a revolution longer than few large
//! ones of the same rows. Blocks that have been received and segments that have been cut are small. What becomes of them is put
//! together beside them, as it is in a [`compaction`](crate::compaction), from which it differs in that rows change their segment:
//! so they do it while nobody is on a revolution, lest somebody misses one or meets it twice; whoever comes waits for one
//! revolution. Keys follow later.
//!
//! Segments become one that are neighbours on the ring, so that as few as possible have to be cut again, and none of them is more
//! than half of the whole: so a row moves no more often than the logarithm of a segment's rows. All of this waits while rows are
//! received or sent, or are to be cut, and while a table has readers that are slower than the scan.

use std::ops::Range;

use crate::{
    bits::{Picked, Ranks},
    column::SegmentColumn,
    encoding::{Encoding, Number, Spec},
    pieces::Piece,
    position::KeyRange,
    preparation::Work,
    primary_key::Address,
    recut::{Moves, NO_PIECE},
    riders::Riders,
    segment::Segment,
    shard::{Progress, Shard},
    table::{SEGMENT_BYTES, Table},
    versions::Versions,
};

/// Rows added that are brought into all columns together.
const CAUGHT_UP: usize = 64;

/// Segments of a piece that become one.
#[derive(Debug)]
pub(crate) struct Joining {
    /// Nothing when they have become one.
    sources: Vec<Source>,
    /// Their columns as one, as far as they have been put together; then what is left of the old ones.
    columns: Vec<SegmentColumn>,
    /// Somebody else has the next one.
    elsewhere: Option<Number>,
    /// Rows that have been added to them since, as far as they have been brought in, in this order: of which source, and which.
    later: Vec<(usize, Range<usize>)>,
    /// How often it was their turn and could not be.
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
        Joining { sources, columns: Vec::new(), elsewhere: None, later: Vec::new(), tries: 0, size: 0 }
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

    /// The rows of each source that the columns lack.
    fn missing(&self, segments: &[Segment]) -> Vec<(usize, Range<usize>)> {
        let missing = |source: &Source| source.known..segments[source.slot as usize].rows;
        self.sources.iter().map(missing).enumerate().filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// All rows of the columns in their order: of which source, and which.
    fn runs(&self) -> impl Iterator<Item = (&Source, Range<usize>)> + Clone {
        let first = self.sources.iter().map(|source| (source, 0..source.rows.len()));
        first.chain(self.later.iter().map(|(source, rows)| (&self.sources[*source], rows.clone())))
    }
}

impl Shard {
    /// Does some of it, if there are segments to be joined. Busy when there may be more to do now.
    pub(crate) fn join_some(&mut self) -> Progress {
        let are_on_their_way = !self.received.is_empty()
            || self.precut.is_some()
            || self.riders.iter_mut().any(|rider| matches!(rider.work, Work::Blocks(_)));
        if are_on_their_way || self.join_due.is_some() {
            return Progress::Idle;
        }
        let begun = self.tables.values().find(|table| table.joining.is_some()).map(|table| table.schema.id);
        let pieces = &self.pieces;
        let begin = |table: &mut Box<Table>| table.begin_to_join(pieces).then_some(table.schema.id);
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

    /// Puts what has been joined in the place of the segments, when nobody is on a revolution.
    pub(crate) fn join_if_due(&mut self) {
        if !self.rotation.is_empty() || self.filling.is_some() {
            return;
        }
        if let Some(id) = self.join_due.take() {
            self.install_all();
            if let Some(table) = self.tables.get_mut(&id) {
                table.put_in_place(&mut self.riders);
            }
        }
    }

    /// Rows are to be where they are.
    pub(crate) fn forget_joining(&mut self) {
        self.join_due = None;
        self.tables.values_mut().for_each(|table| table.joining = None);
    }
}

impl Table {
    /// Looks for segments that are to become one.
    fn begin_to_join(&mut self, pieces: &[Piece]) -> bool {
        let are_cut_up = || self.segments.iter().filter(|segment| segment.rows > 0).nth(1).is_some();
        let may_begin = !self.dropped && self.paused.is_empty() && !self.is_compacting() && are_cut_up();
        let slots = if may_begin { self.to_join(pieces) } else { None };
        self.joining = slots.map(|slots| Box::new(Joining::new(&slots, &self.segments)));
        self.joining.is_some()
    }

    /// As many neighbours as fit into one segment, if there are some.
    fn to_join(&self, pieces: &[Piece]) -> Option<Vec<u32>> {
        let can_be = |(segment, slot): &(&Segment, u32)| {
            segment.rows > 0
                && segment.rows * 2 <= self.options.segment_rows
                && pieces.get(segment.range).is_some_and(Piece::is_held)
                && !segment.is_part
                && !self.is_full(*slot)
                && self.tails[segment.range] != Some(*slot)
                && self.keys.can_move(*slot)
        };
        let at = |segment: &Segment| segment.within.unwrap_or(pieces[segment.range].range);
        let mut small: Vec<(&Segment, u32)> = self.segments.iter().zip(0..).filter(can_be).collect();
        small.sort_by_key(|(segment, slot)| (segment.range, at(segment).first, *slot));
        let mut best: &[(&Segment, u32)] = &[];
        for of_piece in small.chunk_by(|a, b| a.0.range == b.0.range) {
            for first in 0..of_piece.len() {
                let (mut rows, mut bytes, mut most) = (0, 0, 0);
                for (last, (segment, _)) in of_piece.iter().enumerate().skip(first) {
                    (rows, bytes) = (rows + segment.rows, bytes + segment.size());
                    most = most.max(segment.rows);
                    if rows > self.options.segment_rows || bytes > SEGMENT_BYTES {
                        break;
                    }
                    if most * 2 <= rows && last - first >= best.len().max(1) {
                        best = &of_piece[first..=last];
                    }
                }
            }
        }
        (!best.is_empty()).then(|| best.iter().map(|(_, slot)| *slot).collect())
    }

    /// Puts the next column together, brings rows in that have been added meanwhile, or lets an old column go.
    fn put_together(&mut self) -> Stage {
        let Some(mut joining) = self.joining.take() else { return Stage::Waits };
        if joining.sources.is_empty() {
            // To give a lot of memory back takes its time.
            let column = joining.columns.pop();
            joining.size = joining.columns.iter().map(SegmentColumn::size).sum();
            self.joining = column.map(|_| joining);
            return Stage::Busy;
        }
        let missing: usize = joining.missing(&self.segments).iter().map(|(_, rows)| rows.len()).sum();
        let began_with: usize = joining.sources.iter().map(|source| source.rows.len()).sum();
        if missing > began_with {
            // Rows are added faster than it goes on.
            return Stage::Waits;
        }
        let stage = if joining.elsewhere.is_some() {
            Stage::Waits
        } else if joining.columns.len() < self.schema.columns.len() {
            self.join_column(&mut joining);
            Stage::Busy
        } else if missing > CAUGHT_UP {
            self.bring_in(&mut joining, CAUGHT_UP);
            Stage::Busy
        } else {
            self.is_join_due(&joining)
        };
        self.joining = Some(joining);
        stage
    }

    /// Whether rows can change their places, but for those who ride.
    fn is_join_due(&mut self, joining: &Joining) -> Stage {
        // Rows move once before their keys have followed.
        let can_move = joining.slots().all(|slot| self.keys.can_move(slot));
        if !can_move {
            self.keys.wait_for();
        }
        if can_move && self.paused.is_empty() { Stage::Due } else { Stage::Waits }
    }

    /// Makes one of the next column, or leaves that to somebody else.
    fn join_column(&mut self, joining: &mut Joining) {
        let index = joining.columns.len();
        let schema = self.schema.clone();
        let spec = Spec { schema, slot: joining.sources[0].slot, index, part: 0, is_part: false };
        let column = |source: &Source| &self.segments[source.slot as usize].columns[index];
        let parts: Vec<(&SegmentColumn, Picked)> = joining
            .sources
            .iter()
            .map(|source| (column(source), Picked::new(&source.rows, &source.ranks)))
            .collect();
        joining.elsewhere = self.encoder.leave(&spec, &parts, self.options.compact_cells);
        if joining.elsewhere.is_none() {
            let ty = &self.schema.columns[index].ty;
            let mut parts: Vec<SegmentColumn> =
                parts.iter().map(|(column, rows)| column.divided(ty, rows)).collect();
            joining.add(spec.join(&mut parts));
        }
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

    /// Brings in so many rows, at most, that have been added to the segments.
    fn bring_in(&self, joining: &mut Joining, most: usize) {
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
            joining.later.push((source, rows));
        }
    }

    /// Puts what has been joined in the place of the segments. Nobody is on a revolution.
    fn put_in_place(&mut self, riders: &mut Riders) {
        /// Readers that are slow may always be there.
        const TRIES: usize = 16;
        let Some(mut joining) = self.joining.take() else { return };
        if self.is_join_due(&joining) != Stage::Due {
            joining.tries += 1;
            self.joining = Some(joining).filter(|joining| joining.tries < TRIES);
            return;
        }
        self.bring_in(&mut joining, usize::MAX);
        let slots: Vec<u32> = joining.slots().collect();
        let (first, piece) = (slots[0], self.segments[slots[0] as usize].range);
        let mut moves = Moves::new();
        let mut row = 0;
        for (source, rows) in joining.runs() {
            let to = rows.clone().zip(row..).map(|(_, row)| Address { slot: first, row });
            moves.entry(source.slot).or_default().extend(to);
            row += rows.len() as u32;
        }
        let segments = &self.segments;
        let versions = Versions::joined(
            joining.runs().map(|(source, rows)| (&segments[source.slot as usize].versions, rows)),
        );
        let of_slots = || slots.iter().map(|slot| &segments[*slot as usize]);
        assert!(of_slots().all(|segment| segment.range == piece), "rows stay in their piece");
        let within: Option<Vec<KeyRange>> = of_slots().map(|segment| segment.within).collect();
        let mut joined = Segment::joined(piece, std::mem::take(&mut joining.columns), versions, of_slots());
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
            self.measure(*slot);
        }
        self.tails[piece].take_if(|tail| slots.contains(tail));
        self.readdress(moves, riders);
        joining.sources.clear();
        self.joining = Some(joining);
    }
}
