//! Clearing away versions that nobody sees any more, and encoding rows that have been added: a piece at a time, between
//! the visits of segments (paper, section 4.3).
//!
//! ```text
//!   begin ─────▶ gather ────────▶ catch up ─────▶ swap ─────▶ follow ───────▶ release
//!   which rows   a column         rows written    at once     some keys       a column
//!   stay         at a time        meanwhile                   at a time       at a time
//! ```
//!
//! Nobody but those who look for garbage knows of it before the swap: the segment is read and written as it is. What has
//! ended before the horizon then will never be seen again, and which other rows have ended since is asked at the swap; so
//! all that has to be followed are rows that have been added, which stay. Keys follow their rows when those of enough segments
//! have their new numbers ([`KeyIndex::must_follow`](crate::primary_key::KeyIndex::must_follow)). A segment that is cut, cleared
//! or dropped takes the columns beside it along. Where rows are added faster than they can be followed it is begun anew, and all
//! is done at once when what has ended is as much as the rest. Somebody else may encode columns ([`crate::encoding`]); then the
//! compaction waits for each.

use crate::{
    bits::{Picked, Ranks},
    column::{GOOD_PART, SegmentColumn},
    encoding::{Encoding, Number, Spec},
    operation::Ts,
    primary_key::{Address, GONE},
    riders::Riders,
    segment::Segment,
    table::Table,
};

/// How much more is done at a time for each row that is garbage to one that is not: updates that never cease must not make
/// garbage faster than it goes.
const FOR_GARBAGE: usize = 16;

/// Rows added that are brought into all columns together.
const CAUGHT_UP: usize = 64;

/// Cells of a column that are gathered in the time in which one that was added is dealt with.
const CELLS: usize = 16;

/// Cells of a column that are gathered in the time in which a key follows its row: both ends of it are anywhere in memory.
const CELLS_OF_KEY: usize = 16;

/// Keys follow so many times as slowly when there is not much garbage that waits for them: when most rows of a table have moved,
/// as behind a [`precut`](crate::precut), a revolution would take some times as long until all have followed.
const UNHURRIED: usize = 4;

/// Keys that have to follow for each row of a segment that goes, at most, where they have to at once.
const KEYS_OF_GARBAGE: usize = 128;

/// The fewest buckets of the key index that are gone through together.
const FEWEST_BUCKETS: usize = 16;

/// The rows of a segment that stay, beside it; then what is left of the others.
#[derive(Debug)]
pub(crate) struct Compaction {
    horizon: Ts,
    /// Rows when it began, and which of them stay.
    rows: usize,
    keep: Vec<u32>,
    /// Strings that nobody has go where they are more than this part of a column.
    part: usize,
    stage: Stage,
    /// Those that stay, as far as they have been gathered; after the swap the old ones.
    columns: Vec<SegmentColumn>,
    /// Somebody else has the next one.
    elsewhere: Option<Number>,
    /// Logical size of the columns in bytes.
    size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Gather,
    Follow,
    Release,
}

impl Compaction {
    /// Whether rows get other numbers.
    fn drops_rows(&self) -> bool {
        self.keep.len() < self.rows
    }

    fn measure(&mut self) {
        self.size = self.columns.iter().map(SegmentColumn::size).sum();
    }

    /// The rows of the segment that column `index` of those gathered lacks.
    fn missing(&self, index: usize, rows: usize) -> std::ops::Range<usize> {
        self.columns[index].rows() - self.keep.len() + self.rows..rows
    }
}

impl Table {
    /// Whether a segment is being compacted.
    pub(crate) fn is_compacting(&self) -> bool {
        self.compaction().is_some()
    }

    fn compaction(&self) -> Option<&Compaction> {
        self.segments.get(self.compacting? as usize)?.compaction.as_deref()
    }

    /// Logical size in bytes of the columns beside the segments.
    pub(crate) fn copy_size(&self) -> usize {
        self.compaction().map_or(0, |compaction| compaction.size)
            + self.joining.as_ref().map_or(0, |joining| joining.size)
    }

    /// Collects versions that ended before `horizon` and encodes what has grown: a bounded amount of work on one segment.
    /// Returns whether there may be more to do now; not when somebody else has a column.
    pub(crate) fn collect_garbage(&mut self, horizon: Ts, riders: &mut Riders) -> bool {
        if !self.is_compacting() {
            if self.keys.must_follow() {
                let mut with_rows = self.segments.iter().filter(|segment| segment.rows > 0);
                let hurry = if with_rows.any(Segment::has_many_ended) { 1 } else { UNHURRIED };
                self.follow_some(self.options.compact_cells / hurry);
                return true;
            }
            if !self.begin_compaction(horizon) {
                return false;
            }
        }
        let Some(slot) = self.compacting else { return false };
        let segment = &self.segments[slot as usize];
        let ended = segment.versions.ended();
        let share = ended * FOR_GARBAGE / (segment.rows - ended).max(1);
        let mut room = self.options.compact_cells.saturating_mul(1 + share.min(2 * FOR_GARBAGE));
        if let Some(compaction) = &segment.compaction
            && compaction.stage == Stage::Gather
            && segment.rows - compaction.rows > compaction.rows
        {
            // There may be more garbage than rows by now.
            let horizon = compaction.horizon.max(horizon);
            let keep = segment.versions.survivors(horizon);
            // Rows that are only added make other segments in the end.
            let is_garbage = (segment.rows - keep.len()) * 2 >= segment.rows;
            self.compact(slot, keep, horizon);
            if is_garbage {
                room = usize::MAX;
            }
        }
        let at_once = room == usize::MAX;
        // Those who ride have waited longer than they should have: others wait for that.
        let owed = self.owed.min(room);
        self.owed -= owed;
        room -= owed;
        while room > 0 && self.is_compacting() && !self.waits_for_a_column() {
            let took = self.compact_some(slot, riders, at_once);
            self.owed += took.saturating_sub(room);
            room = room.saturating_sub(took);
        }
        if let Some(compaction) = &mut self.segments[slot as usize].compaction {
            compaction.measure();
        }
        self.measure(slot);
        !self.waits_for_a_column()
    }

    /// Whether somebody else has the next column of the segment that is being compacted.
    pub(crate) fn waits_for_a_column(&self) -> bool {
        self.compaction().is_some_and(|compaction| compaction.elsewhere.is_some())
    }

    /// Takes a column back that somebody else has encoded, if it is for the segment that is being compacted.
    pub(crate) fn take_compacted(&mut self, encoding: Encoding) -> Option<Encoding> {
        if let Some(slot) = self.compacting
            && let Some(compaction) = &mut self.segments.get_mut(slot as usize)?.compaction
            && compaction.elsewhere == Some(encoding.number())
        {
            compaction.elsewhere = None;
            compaction.columns.push(encoding.into_column());
            compaction.measure();
            return None;
        }
        Some(encoding)
    }

    /// Looks for a segment that has garbage or has grown.
    fn begin_compaction(&mut self, horizon: Ts) -> bool {
        for _ in 0..self.segments.len() {
            let slot = self.collector % self.segments.len();
            self.collector = (slot + 1) % self.segments.len();
            if self.waits_to_be_joined(slot as u32) {
                continue;
            }
            if let Some(keep) = self.what_stays(slot as u32, horizon) {
                self.compact(slot as u32, keep, horizon);
                return true;
            }
        }
        false
    }

    /// The rows of a segment that stay, if it is to be compacted.
    fn what_stays(&mut self, slot: u32, horizon: Ts) -> Option<Vec<u32>> {
        if self.segments[slot as usize].is_assumed {
            self.measure(slot);
        }
        let segment = &mut self.segments[slot as usize];
        let trimmed = segment.versions.trim(horizon);
        let searched = segment.searched;
        let encoded = segment.columns.iter_mut().filter_map(|column| column.base.as_mut());
        if encoded.fold(trimmed, |any, base| base.by_code.retire(searched) | any) {
            self.measure(slot);
        }
        let is_full = self.is_full(slot);
        let segment = &mut self.segments[slot as usize];
        let rows = segment.rows;
        let plain = rows - segment.encoded_rows();
        let is_to_be_encoded = plain >= 1024.max(segment.encoded_rows() / 4)
            || segment.is_worth_encoding()
            || plain > 0 && is_full;
        let grown = is_to_be_encoded || segment.is_part;
        let ended = segment.versions.ended();
        let may_be_much = segment.may_have_much_ended();
        // Where rows have moved before, all keys of the table have to follow first: that is for more of them.
        let are_enough = ended * 2 >= rows
            || segment.has_many_ended()
                && (ended * KEYS_OF_GARBAGE >= self.keys.len() || self.keys.can_move(slot));
        let much = are_enough || may_be_much;
        if !grown && (ended == 0 || !much || horizon <= segment.collected) {
            return None;
        }
        segment.collected = horizon;
        let everything = grown.then(|| (0..rows as u32).collect());
        if ended == 0 {
            return everything;
        }
        let survivors = segment.versions.survivors(horizon);
        let garbage = rows - survivors.len();
        let is_much = are_enough && garbage * 16 >= rows
            || (may_be_much && segment.has_much_unused(&survivors, garbage == ended));
        // All keys of the table have to follow when some rows go: that is for many of them.
        if is_much { Some(survivors) } else { everything }
    }

    /// Begins to keep only some rows of a segment.
    fn compact(&mut self, slot: u32, keep: Vec<u32>, horizon: Ts) {
        let segment = &mut self.segments[slot as usize];
        let rows = segment.rows;
        // To encode a column anew takes far longer than to drop rows: that is for strings that rows alone do not tell of.
        let for_bytes = (rows - keep.len()) * 16 < rows;
        let part = if for_bytes { GOOD_PART } else { 2 };
        let columns = Vec::with_capacity(segment.columns.len());
        let stage = Stage::Gather;
        segment.compaction = Some(Box::new(Compaction {
            horizon,
            rows,
            keep,
            part,
            stage,
            columns,
            elsewhere: None,
            size: 0,
        }));
        self.compacting = Some(slot);
    }

    /// Does some of what there is to do; returns what it took, in cells that are gathered in that time.
    fn compact_some(&mut self, slot: u32, riders: &mut Riders, at_once: bool) -> usize {
        let Some(mut compaction) = self.segments[slot as usize].compaction.take() else { return 0 };
        let took = match compaction.stage {
            Stage::Gather if compaction.columns.len() < self.schema.columns.len() => {
                self.gather_column(slot, &mut compaction, at_once)
            }
            // A row moves once before its key has followed; who has begun to follow ends first.
            Stage::Gather
                if compaction.drops_rows() && (self.keys.must_follow() || !self.keys.can_move(slot)) =>
            {
                self.follow_some(self.options.compact_cells).0
            }
            Stage::Gather => self.catch_up(slot, &mut compaction, riders),
            Stage::Follow => {
                let (took, all_have) = self.follow_some(self.options.compact_cells);
                if all_have {
                    compaction.stage = Stage::Release;
                }
                took
            }
            Stage::Release => compaction.columns.pop().map_or(1, |column| column.rows() / 4 + 1),
        };
        if compaction.stage == Stage::Release && compaction.columns.is_empty() {
            self.compacting = None;
        } else {
            self.segments[slot as usize].compaction = Some(compaction);
        }
        took
    }

    /// Lets some keys follow their rows, in about the time in which so many cells are gathered; returns what it took, and whether
    /// all have.
    pub(crate) fn follow_some(&mut self, cells: usize) -> (usize, bool) {
        let buckets = (cells / CELLS_OF_KEY).max(FEWEST_BUCKETS);
        (buckets * CELLS_OF_KEY, self.keys.follow(buckets))
    }

    /// Gathers the next column, or leaves that to somebody else unless it is to be done at once.
    fn gather_column(&mut self, slot: u32, compaction: &mut Compaction, at_once: bool) -> usize {
        let segment = &mut self.segments[slot as usize];
        let index = compaction.columns.len();
        let (schema, part, is_part) = (self.schema.clone(), compaction.part, segment.is_part);
        let spec = Spec { schema, slots: vec![slot], index, part, is_part };
        let stays = compaction.keep.len();
        compaction.keep.extend(compaction.rows as u32..segment.rows as u32);
        let ranks = Ranks::default();
        let keep = Picked::new(&compaction.keep, &ranks);
        let column = &mut segment.columns[index];
        let cells = if at_once { usize::MAX } else { self.options.compact_cells };
        compaction.elsewhere = self.encoder.leave(&spec, &[(&*column, keep)], cells);
        let took = if compaction.elsewhere.is_some() {
            keep.rows.len()
        } else {
            let (gathered, took) = spec.encode(column, &keep);
            compaction.columns.push(gathered);
            took
        };
        compaction.keep.truncate(stays);
        took
    }

    /// Brings some rows that have been added meanwhile into the columns, or puts these in the place of the old ones when
    /// few are left.
    fn catch_up(&mut self, slot: u32, compaction: &mut Compaction, riders: &mut Riders) -> usize {
        let segment = &mut self.segments[slot as usize];
        let mut left = 0;
        for (index, column) in segment.columns.iter().enumerate() {
            let missing = compaction.missing(index, segment.rows);
            left = left.max(missing.len());
            let now: Vec<u32> = missing.map(|row| row as u32).take(CAUGHT_UP).collect();
            compaction.columns[index].append_rows_of(column, &now);
            compaction.columns[index].absorb_known(&self.schema.columns[index].ty);
        }
        let columns = compaction.columns.len();
        match left > CAUGHT_UP {
            true => CAUGHT_UP * columns * CELLS,
            false => {
                self.swap(slot, compaction, riders);
                left * columns * CELLS + compaction.rows
            }
        }
    }

    /// Puts the rows that stay in the place of all; whatever refers to them by their numbers is put right.
    fn swap(&mut self, slot: u32, compaction: &mut Compaction, riders: &mut Riders) {
        let rows = self.segments[slot as usize].rows;
        let mut keep = std::mem::take(&mut compaction.keep);
        keep.extend(compaction.rows as u32..rows as u32);
        let columns = std::mem::take(&mut compaction.columns);
        assert!(columns.iter().all(|column| column.rows() == keep.len()), "every column has all rows");
        compaction.stage = Stage::Release;
        if keep.len() < rows {
            let mut renumbered = vec![GONE.row; rows];
            keep.iter().zip(0..).for_each(|(old, new)| renumbered[*old as usize] = new);
            self.renumber(slot, &renumbered, riders);
            if self.has_keys() {
                let place = |row: u32| if row == GONE.row { GONE } else { Address { slot, row } };
                self.keys.begin_move(slot, renumbered.into_iter().map(place).collect());
                if self.keys.must_follow() {
                    compaction.stage = Stage::Follow;
                }
            }
        }
        self.is_full_no_more(slot);
        let segment = &mut self.segments[slot as usize];
        compaction.columns = segment.replace_rows(columns, &keep, compaction.horizon);
    }

    /// Gives the rows of a segment new numbers wherever they are referred to, but for the keys.
    fn renumber(&mut self, slot: u32, renumbered: &[u32], riders: &mut Riders) {
        let now = |row: u32| Some(renumbered[row as usize]).filter(|row| *row != GONE.row);
        // What somebody may still take back, or waits for, is not garbage.
        let stays = |row: u32| now(row).expect("rows in doubt stay");
        for rider in riders.iter_mut().filter(|rider| rider.table == self.schema.id) {
            for change in rider.changes.iter_mut().filter(|change| change.slot == slot) {
                change.old = change.old.map(stays);
                change.new = change.new.map(stays);
            }
            if let Some(found) = rider.work.found() {
                found.renumber(slot, renumbered);
            }
        }
        for (index, segment) in self.segments.iter_mut().enumerate() {
            let here = index as u32 == slot;
            if !here && !segment.leads_elsewhere {
                continue;
            }
            let mut leads_elsewhere = false;
            segment.previous.retain(|_, old| {
                if old.slot == slot {
                    let Some(row) = now(old.row) else { return false };
                    old.row = row;
                }
                leads_elsewhere |= old.slot != index as u32;
                true
            });
            segment.leads_elsewhere = leads_elsewhere;
        }
        let segment = &mut self.segments[slot as usize];
        let previous = std::mem::take(&mut segment.previous);
        segment.previous = previous.into_iter().filter_map(|(row, old)| Some((now(row)?, old))).collect();
        let next = std::mem::take(&mut segment.next);
        segment.next = next.into_iter().filter_map(|(row, next)| Some((now(row)?, now(next)?))).collect();
        let queues = std::mem::take(&mut segment.queues);
        queues.into_all().for_each(|(root, queue)| segment.queues.insert(stays(root), queue));
    }
}
