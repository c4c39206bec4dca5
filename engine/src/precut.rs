//! Cutting segments before a change of the key ranges, so that little is left to be cut at the change itself, which
//! everything waits for ([`crate::recut`]; paper, section 6.4).
//!
//! ```text
//!   precut ───▶ a segment ───▶ its keys follow ───▶ another segment ───▶ …      recut: which piece has a segment
//! ```
//!
//! Rows stay in their piece, and nobody can tell: the two halves of a segment are visited one after the other as if they
//! had always been two. A segment is cut while nobody is on a revolution, so that nobody misses a row; whoever comes waits
//! for one revolution and one segment. Rows that are inserted meanwhile, and those of tables that somebody reads more
//! slowly than they are scanned, are left to the change.

use std::collections::VecDeque;

use crate::{
    operation::Effect,
    position::{Position, cut},
    schema::TableId,
    shard::{Progress, Shard},
    table::Table,
};

/// What is still to be cut.
#[derive(Debug)]
pub(crate) struct Precut {
    /// Where, ascending.
    at: Vec<Position>,
    segments: VecDeque<(TableId, u32)>,
    /// It is the first segment's turn when nobody is on a revolution.
    pub(crate) is_due: bool,
}

impl Shard {
    /// Begins to cut segments where key ranges are about to be cut. The shard says [`Effect::Precut`] when it has.
    pub fn precut(&mut self, mut at: Vec<Position>) {
        at.extend(self.precut.take().map_or(Vec::new(), |before| before.at));
        at.sort_unstable();
        at.dedup();
        let mut tables: Vec<&Table> = self.tables.values().map(|table| &**table).collect();
        tables.sort_unstable_by_key(|table| table.schema.id);
        let slots = |table: &&Table| {
            let id = table.schema.id;
            (0..table.segments.len() as u32).map(move |slot| (id, slot))
        };
        let segments = tables.iter().flat_map(slots).collect();
        self.precut = Some(Precut { at, segments, is_due: false });
    }

    /// Does some of it, if there is something to do and time for it.
    pub(crate) fn precut_some(&mut self, effects: &mut Vec<Effect>) {
        let Some(mut precut) = self.precut.take() else { return };
        if precut.is_due {
            let nobody_rides = self.rotation.is_empty() && self.filling.is_none();
            if nobody_rides && let Some((id, slot)) = precut.segments.pop_front() {
                precut.is_due = false;
                self.enter_all();
                self.cut_in_place(id, slot, &precut.at);
            }
        } else if self.take_time() && self.enter_some() == Progress::Idle {
            while let Some((id, slot)) = precut.segments.front().copied()
                && !self.spans_parts(id, slot, &precut.at)
            {
                precut.segments.pop_front();
            }
            let Some((id, _)) = precut.segments.front() else { return effects.push(Effect::Precut) };
            // Rows of one segment move at a time.
            let moving = self.tables.get_mut(id).filter(|it| it.is_compacting() || it.keys.are_to_follow());
            match moving {
                Some(table) => _ = table.collect_garbage(self.horizon, &mut self.riders),
                None => precut.is_due = true,
            }
        }
        self.precut = Some(precut);
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

    fn cut_in_place(&mut self, table: TableId, slot: u32, at: &[Position]) {
        if !self.spans_parts(table, slot, at) {
            return;
        }
        let Some(table) = self.tables.get_mut(&table) else { return };
        let piece = table.segments[slot as usize].range;
        let parts = cut(self.pieces[piece].range, at);
        let slots = table.segments.len();
        if let Some(addresses) = table.divide(slot, &parts, &vec![piece; parts.len()]) {
            if table.tails[piece] == Some(slot) {
                table.tails[piece] = None;
            }
            std::iter::once(slot)
                .chain(slots as u32..table.segments.len() as u32)
                .for_each(|slot| table.measure(slot));
            table.readdress([(slot, addresses)].into(), &mut self.riders);
        }
    }
}
