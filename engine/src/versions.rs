//! Versions of the rows of a segment (DESIGN, decision 6), kept apart from the columns.
//!
//! A version lives in `[begin, end)`. A read at `t` sees it when `begin < t <= end`: the prefix before `t`. A write at
//! `t` sees it when `begin < t < end`; the difference is what the write itself has already ended, so that a write
//! that meets a row twice acts once. Where they would say nothing there are no numbers: rows are appended, so that those
//! that began lately come last.

use std::ops::Range;

use crate::{
    bits::{Bits, and_where},
    operation::Ts,
};

/// Begin and end of each row of a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    /// So many rows, the first ones, began before every horizon.
    settled: usize,
    /// When the others began.
    begins: Vec<u64>,
    ends: Ends,
    max_begin: u64,
    ended: usize,
    max_end: u64,
    /// When rows have begun or ended, ascending, each once: what is behind `forgotten`.
    changes: Vec<u64>,
    forgotten: u64,
}

/// When rows have ended, in blocks of rows. Where none has, there is no block: a write that ends a few rows costs memory for
/// a few, and whoever looks for the others need not look there.
#[derive(Clone, Debug, Default)]
struct Ends {
    blocks: Vec<Option<Box<[u64; ENDS]>>>,
    present: usize,
}

/// Rows of a block of ends: whole words of a mask.
const ENDS: usize = 512;

impl Ends {
    fn get(&self, row: usize) -> u64 {
        self.blocks.get(row / ENDS).and_then(Option::as_ref).map_or(u64::MAX, |block| block[row % ENDS])
    }

    /// The end of a row, to be written.
    fn of(&mut self, row: usize) -> &mut u64 {
        if self.blocks.len() <= row / ENDS {
            self.blocks.resize(row / ENDS + 1, None);
        }
        let block = &mut self.blocks[row / ENDS];
        self.present += usize::from(block.is_none());
        &mut block.get_or_insert_with(|| Box::new([u64::MAX; ENDS]))[row % ENDS]
    }

    fn size(&self) -> usize {
        self.present * size_of::<[u64; ENDS]>() + self.blocks.len() * size_of::<usize>()
    }
}

/// Changes that are remembered.
const CHANGES: usize = 256;

/// The end of a version that must never be seen: an aborted write's.
const NEVER: u64 = 0;

impl Versions {
    /// Appends rows that begin at `begin`.
    pub(crate) fn append(&mut self, rows: usize, begin: Ts) {
        match begin.0 == 0 && self.begins.is_empty() {
            true => self.settled += rows,
            false => {
                if self.begins.is_empty() {
                    // The first write of a row would copy them.
                    self.begins.reserve_exact(rows + rows / 16);
                }
                self.begins.resize(self.begins.len() + rows, begin.0);
            }
        }
        self.max_begin = self.max_begin.max(begin.0);
        self.note(begin.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.settled + self.begins.len()
    }

    pub(crate) fn begin(&self, row: usize) -> u64 {
        row.checked_sub(self.settled).map_or(0, |place| self.begins[place])
    }

    pub(crate) fn end(&self, row: usize) -> u64 {
        self.ends.get(row)
    }

    /// Ends a row's version.
    pub(crate) fn set_end(&mut self, row: usize, end: Ts) {
        self.write_end(row, end.0);
    }

    /// Takes the end back: the version lives again.
    pub(crate) fn revive(&mut self, row: usize) {
        self.write_end(row, u64::MAX);
    }

    /// Makes the version invisible to everybody.
    pub(crate) fn kill(&mut self, row: usize) {
        self.write_end(row, NEVER);
    }

    fn write_end(&mut self, row: usize, end: u64) {
        let before = std::mem::replace(self.ends.of(row), end);
        match (before == u64::MAX, end == u64::MAX) {
            (true, false) => self.ended += 1,
            (false, true) => self.ended -= 1,
            _ => {}
        }
        if end != u64::MAX {
            self.max_end = self.max_end.max(end);
            self.note(end);
        }
    }

    fn note(&mut self, at: u64) {
        if at <= self.forgotten {
            return;
        }
        match self.changes.last() {
            Some(last) if *last == at => {}
            Some(last) if *last > at => {
                if let Err(place) = self.changes.binary_search(&at) {
                    self.changes.insert(place, at);
                }
            }
            _ => self.changes.push(at),
        }
        if self.changes.len() > CHANGES {
            let behind = self.changes.split_off(CHANGES / 2);
            let half = std::mem::replace(&mut self.changes, behind);
            self.forgotten = half.last().copied().unwrap_or(0).max(self.forgotten);
        }
    }

    /// The last change before `t`, if it is known: reads with the same horizon see the same versions.
    pub(crate) fn horizon(&self, t: Ts) -> Option<u64> {
        match self.changes.partition_point(|at| *at < t.0) {
            0 => (t.0 > self.forgotten).then_some(self.forgotten),
            place => (t.0 > self.forgotten).then(|| self.changes[place - 1].max(self.forgotten)),
        }
    }

    /// Whether an aborted write left this row behind.
    pub(crate) fn is_killed(&self, row: usize) -> bool {
        self.end(row) == NEVER
    }

    /// Rows that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Whether a read at `t` sees the row.
    pub(crate) fn read_sees(&self, row: usize, t: Ts) -> bool {
        self.begin(row) < t.0 && t.0 <= self.end(row)
    }

    /// Whether a write at `t` sees the row.
    pub(crate) fn write_sees(&self, row: usize, t: Ts) -> bool {
        self.begin(row) < t.0 && t.0 < self.end(row)
    }

    /// Keeps the rows that an operation at `t` sees.
    pub(crate) fn retain_visible(&self, mask: &mut Bits, t: Ts, is_write: bool) {
        if self.max_begin >= t.0 {
            let (first, after) = (self.settled, self.settled.next_multiple_of(64).min(self.len()));
            (first..after).filter(|row| self.begin(*row) >= t.0).for_each(|row| mask.clear(row));
            let (words, begins) =
                (&mut mask.words_mut()[after.div_ceil(64)..], &self.begins[after - first..]);
            and_where(words, begins, |begin| begin < t.0);
        }
        if self.ended > 0 {
            let first = if is_write { t.0.saturating_add(1) } else { t.0 };
            for (words, block) in mask.words_mut().chunks_mut(ENDS / 64).zip(&self.ends.blocks) {
                if let Some(block) = block {
                    and_where(words, &block[..], |end| end >= first);
                }
            }
        }
    }

    /// As [`retain_visible`](Versions::retain_visible), of a list of rows.
    pub(crate) fn retain_visible_rows(&self, rows: &mut Vec<u32>, t: Ts, is_write: bool) {
        if self.max_begin >= t.0 {
            rows.retain(|row| self.begin(*row as usize) < t.0);
        }
        if self.ended > 0 {
            let first = if is_write { t.0.saturating_add(1) } else { t.0 };
            rows.retain(|row| self.end(*row as usize) >= first);
        }
    }

    /// The rows that somebody at or after `horizon` may still see.
    pub(crate) fn survivors(&self, horizon: Ts) -> Vec<u32> {
        (0..self.len() as u32).filter(|row| self.end(*row as usize) >= horizon.0).collect()
    }

    /// Keeps only these rows, and forgets begins that nobody at or after `horizon` can tell from the beginning.
    pub(crate) fn compact(&mut self, keep: &[u32], horizon: Ts) {
        let rows = keep.iter().map(|row| (self.begin(*row as usize), self.end(*row as usize)));
        let of_rows =
            Versions::of_rows(rows.map(|(begin, end)| (if begin < horizon.0 { 0 } else { begin }, end)));
        let changes = std::mem::take(&mut self.changes);
        *self = Versions { changes, forgotten: self.forgotten, ..of_rows };
    }

    /// Of rows that begin and end then. When rows have begun or ended is not remembered.
    fn of_rows(rows: impl Iterator<Item = (u64, u64)>) -> Versions {
        let mut all = Versions::default();
        for (row, (begin, end)) in rows.enumerate() {
            all.max_begin = all.max_begin.max(begin);
            match begin == 0 && all.begins.is_empty() {
                true => all.settled += 1,
                false => all.begins.push(begin),
            }
            if end != u64::MAX {
                *all.ends.of(row) = end;
                (all.ended, all.max_end) = (all.ended + 1, all.max_end.max(end));
            }
        }
        all.begins.shrink_to_fit();
        all
    }

    /// Those of rows of several segments, one run behind the other: of which segment, and which rows.
    pub(crate) fn joined(of: &[&Versions], runs: impl Iterator<Item = (usize, Range<usize>)>) -> Versions {
        let rows = runs.flat_map(|(segment, rows)| rows.map(move |row| (of[segment], row)));
        let mut all = Versions::of_rows(rows.map(|(versions, row)| (versions.begin(row), versions.end(row))));
        all.forgotten = of.iter().map(|versions| versions.forgotten).max().unwrap_or(0);
        let mut changes: Vec<u64> = of.iter().flat_map(|versions| &versions.changes).copied().collect();
        changes.sort_unstable();
        changes.into_iter().for_each(|at| all.note(at));
        all
    }

    /// Those of some rows.
    pub(crate) fn of_part(&self, rows: &[u32]) -> Versions {
        let mut part = self.clone();
        part.compact(rows, Ts::ZERO);
        part
    }

    /// Forgets what says nothing to anybody at or after `horizon`. Returns whether that is something.
    pub(crate) fn trim(&mut self, horizon: Ts) -> bool {
        /// Rows that may begin before there is memory for more again.
        const SPARE: usize = 1 << 12;
        let before = self.size();
        let settled = self.begins.iter().position(|begin| *begin >= horizon.0).unwrap_or(self.begins.len());
        self.begins.drain(..settled);
        self.settled += settled;
        self.begins.shrink_to(SPARE);
        if self.begins.is_empty() {
            self.max_begin = 0;
        }
        if self.ended == 0 {
            self.ends = Ends::default();
        }
        self.size() < before
    }

    pub(crate) fn size(&self) -> usize {
        8 * self.begins.len() + self.ends.size()
    }
}
