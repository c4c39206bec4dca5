//! Changes of a shard's key ranges, and moving their rows between shards (paper, section 6.4; DESIGN, decision 15).
//!
//! ```text
//!   figure 6, process b:           [20, 30)   [30, 40)            pieces before the keyspace message at M
//!                                      │        ┌──┴──┐
//!                                  [20, 30)  [30,35) [35,40)      behind it: cut where the new ranges end,
//!                                                    until M      and kept, for reads at M, where it holds no more
//! ```
//!
//! A [`Recut`] has its turn between the operations before and behind its `Ts`. It waits until no operation is on its
//! revolution or waits for an undecided row, so that nobody misses a row that changes its segment, or looks for a key
//! that has left the index. (Undecided writes that nobody waits for do not hold it up.) Reads of prefixes before it pass
//! by: another process may need them before it can vote about a write that is waited for here. Rows change their place
//! only where a piece is cut in two. Everything waits for that, so most segments have been cut before ([`Shard::precut`]), and
//! only codes are copied: the parts of a segment have the dictionaries of its columns in common until they are compacted.
//! Keys follow later, and those of a range that is held no more are forgotten later.
//!
//! What another process is to receive is read like anything else, by a read of the prefix before the change that sends
//! as much as its reader allows ([`Shard::allow`]): it keeps the versions it needs. A read that has paused finds the rest
//! of its rows before the next change, and sends them later from where they are then. A piece that is held no more goes
//! when garbage collection passes the change.

use hashbrown::HashMap;

use crate::{
    found::FoundRows,
    operation::{Effect, OrderedOperation, Ts},
    pieces::Piece,
    position::{KeyRange, Position, boundaries, cut},
    precut::Cutting,
    primary_key::{Address, GONE},
    rider::Change,
    riders::Riders,
    segment::Segment,
    shard::Shard,
    table::Table,
};

/// The range of a segment that belongs to no piece.
pub(crate) const NO_PIECE: usize = usize::MAX;

/// A change of a shard's key ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recut {
    /// When: operations before it find the ranges as they were.
    pub ts: Ts,
    /// The ranges that are held from then on. Operations behind it name these, or parts of them at `cuts`.
    pub held: Vec<KeyRange>,
    /// What of `held` is to be received: rows that are here are stale. They come by [`Shard::install`].
    pub received: Vec<KeyRange>,
    /// Further ranges that operations may name: what others receive.
    pub cuts: Vec<KeyRange>,
}

impl Recut {
    /// Positions at which a piece must begin, ascending.
    fn boundaries(&self) -> Vec<Position> {
        boundaries(self.held.iter().chain(&self.received).chain(&self.cuts))
    }
}

/// What of these ranges is not in others; all sorted and disjoint.
fn without(ranges: &[KeyRange], others: &[KeyRange]) -> Vec<KeyRange> {
    let boundaries = boundaries(others);
    let parts = ranges.iter().flat_map(|range| cut(*range, &boundaries));
    parts.filter(|part| others.iter().all(|other| !other.overlaps(part))).collect()
}

impl Shard {
    /// Hands over a change of the key ranges; when it has been made, the shard reports its `Ts` as executed.
    ///
    /// # Panics
    /// When its `Ts` is not above those of all operations submitted before.
    pub fn recut(&mut self, recut: Recut) {
        self.advance_to(recut.ts);
        self.recuts.push_back(recut);
    }

    /// The next operation whose turn it is; changes of the pieces that come before it are made.
    pub(crate) fn next_operation(&mut self, effects: &mut Vec<Effect>) -> Option<OrderedOperation> {
        while let Some(recut) = self.recuts.front()
            && self.inbox.front().is_none_or(|next| next.ts > recut.ts)
        {
            let ts = recut.ts;
            if !self.is_quiet() {
                let is_older = |operation: &OrderedOperation| {
                    !operation.operation.kind.is_write() && operation.read_ts < ts
                };
                let passes = self.inbox.iter().position(is_older)?;
                return self.inbox.remove(passes);
            }
            if let Some(recut) = self.recuts.pop_front() {
                self.recut_now(&recut);
                effects.push(Effect::Executed { ts, outcomes: Default::default() });
            }
        }
        self.inbox.pop_front()
    }

    /// Whether no operation is on its revolution, has paused on it or waits for a row.
    pub(crate) fn is_quiet(&self) -> bool {
        self.rotation.is_empty()
            && self.riders.none_waits()
            && self.tables.values().all(|table| table.paused.is_empty())
    }

    /// Lets the reads that have paused go on, when they hold up a change: to its end they only note what they find.
    pub(crate) fn resume_for_recut(&mut self) {
        if !self.recut_is_next() {
            return;
        }
        for (id, table) in self.tables.iter_mut().filter(|(_, table)| !table.paused.is_empty()) {
            if table.riding.is_empty() {
                self.rotation.push_back(*id);
            }
            table.resume_all();
        }
    }

    /// Whether nothing comes before the next change of the pieces but what is under way.
    pub(crate) fn recut_is_next(&self) -> bool {
        self.filling.is_none()
            && self
                .recuts
                .front()
                .is_some_and(|recut| self.inbox.front().is_none_or(|next| next.ts > recut.ts))
    }

    /// Forgets the rows of a range that has been received in part, also those that a read under way has found.
    pub fn clear(&mut self, range: KeyRange) {
        self.install_all();
        self.forget_cutting();
        self.forget_joining();
        self.received.retain(|(_, received), _| *received != range);
        for piece in 0..self.pieces.len() {
            if self.pieces[piece].is_held() && self.pieces[piece].lies_in(&range) {
                for rider in self.riders.iter_mut() {
                    let table = self.tables.get(&rider.table);
                    if let Some((table, found)) = table.zip(rider.work.found()) {
                        found.forget(|slot| table.segments[slot as usize].range == piece);
                    }
                }
                self.tables.values_mut().for_each(|table| {
                    table.forget_keys(&[piece]);
                    table.vacate(piece);
                });
            }
        }
    }

    /// A range as it was at `until`, whose rows a read at that `Ts` and no other still asks for: loading a checkpoint. It
    /// may be held, too, with the rows of the checkpoint's `Ts`.
    pub fn restore_piece(&mut self, range: KeyRange, until: Ts) {
        self.add_piece(Piece { until: Some(until), ..Piece::new(range, until) });
    }

    fn add_piece(&mut self, piece: Piece) -> usize {
        let index = match self.pieces.iter().position(Piece::is_vacant) {
            Some(vacant) => {
                self.pieces[vacant] = piece;
                vacant
            }
            None => {
                self.pieces.push(piece);
                self.pieces.len() - 1
            }
        };
        let pieces = self.pieces.len();
        self.tables.values_mut().for_each(|table| table.tails.resize(pieces, None));
        // Nothing that is under way acts on it, unless it is cut from a piece on which it does.
        for rider in self.riders.iter_mut() {
            rider.place_of_range.resize(pieces, None);
            rider.place_of_range[index] = None;
        }
        index
    }

    /// Changes the pieces. Nobody is on its revolution.
    pub(crate) fn recut_now(&mut self, recut: &Recut) {
        self.install_all();
        self.forget_cutting();
        self.forget_joining();
        let boundaries = recut.boundaries();
        for piece in 0..self.pieces.len() {
            let Piece { range, .. } = self.pieces[piece];
            let parts = cut(range, &boundaries);
            if self.pieces[piece].is_held() && parts.len() > 1 {
                self.split(piece, &parts, recut.ts);
            }
        }
        let mut held = recut.held.clone();
        held.sort_unstable();
        let mut received = recut.received.clone();
        received.sort_unstable();
        // What came for an earlier place does not count.
        self.received.retain(|(_, range), _| !received.iter().any(|begins| begins.overlaps(range)));
        let kept = without(&held, &received);
        let mut left = Vec::new();
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            if piece.is_held() && !kept.iter().any(|range| piece.lies_in(range)) {
                // A read at the change's `Ts` sees what is received, and not what it takes the place of.
                let stale = received.iter().any(|range| piece.lies_in(range));
                piece.until = Some(if stale { Ts(recut.ts.0 - 1) } else { recut.ts });
                left.push(index);
            }
        }
        if !left.is_empty() {
            self.tables.values_mut().for_each(|table| table.leave_pieces(&left));
        }
        let mut there: Vec<KeyRange> =
            self.pieces.iter().filter(|piece| piece.is_held()).map(|piece| piece.range).collect();
        there.sort_unstable();
        for range in without(&held, &there).into_iter().flat_map(|range| cut(range, &boundaries)) {
            self.add_piece(Piece::new(range, recut.ts));
        }
        self.held = held;
        self.recut_at = recut.ts;
    }

    /// Cuts a piece in two or more.
    fn split(&mut self, piece: usize, parts: &[KeyRange], ts: Ts) {
        let whole = self.pieces[piece];
        self.pieces[piece] = Piece { range: parts[0], cut: ts, ..whole };
        let mut indices = vec![piece];
        for part in &parts[1..] {
            let index = self.add_piece(Piece { range: *part, cut: ts, ..whole });
            for rider in self.riders.iter_mut() {
                rider.place_of_range[index] = rider.place_of_range[piece];
            }
            indices.push(index);
        }
        for table in self.tables.values_mut() {
            let moves = table.split(piece, parts, &indices);
            if !moves.is_empty() {
                table.readdress(moves, &mut self.riders);
            }
        }
    }

    /// Lets pieces go that are held no more and that nobody reads; joins neighbours that nobody tells apart. Whether
    /// there was anything to do.
    pub(crate) fn drop_pieces(&mut self) -> bool {
        let horizon = self.horizon;
        // Whoever reads an earlier prefix names the ranges of then.
        if self.riders.is_empty() && self.recut_at < horizon {
            self.join_pieces();
        }
        let mut dropped = false;
        let goes = |piece: &Piece| piece.until.is_some_and(|until| until < horizon) && !piece.is_vacant();
        if self.pieces.iter().any(goes) && self.tables.values().any(|table| table.keys.are_to_follow()) {
            // Some lead there.
            self.tables.values_mut().for_each(|table| table.keys.wait_for());
            return false;
        }
        for piece in 0..self.pieces.len() {
            if goes(&self.pieces[piece]) {
                // To give a lot of memory back takes its time: nobody reads the others meanwhile.
                if self.tables.values_mut().any(|table| table.vacate_some(piece)) {
                    return true;
                }
                self.pieces[piece].vacate();
                dropped = true;
            }
        }
        dropped
    }

    /// Joins pieces of one range that nobody tells apart.
    fn join_pieces(&mut self) {
        for piece in 0..self.pieces.len() {
            while let Some(next) = self.next_of(piece) {
                self.pieces[piece].range.last = self.pieces[next].range.last;
                self.pieces[piece].reached = self.pieces[piece].reached.max(self.pieces[next].reached);
                self.pieces[next].vacate();
                for table in self.tables.values_mut() {
                    table.tails[next] = None;
                    let segments = table.segments.iter_mut().filter(|segment| segment.range == next);
                    segments.for_each(|segment| segment.range = piece);
                }
            }
        }
    }

    fn next_of(&self, piece: usize) -> Option<usize> {
        let this = self.pieces[piece];
        let together = |next: &Piece| {
            [this, *next].iter().all(|piece| piece.is_held() && piece.since.max(piece.cut) < self.horizon)
                && this.range.last.checked_add(1) == Some(next.range.first)
                && self.held.iter().any(|range| this.lies_in(range) && next.lies_in(range))
        };
        self.pieces.iter().position(together)
    }
}

/// Where the rows of a segment have gone.
type Moves = HashMap<u32, Vec<Address>>;

impl Table {
    /// Divides the rows of a piece among its parts, whose indices are given, and tells where they have gone.
    fn split(&mut self, piece: usize, parts: &[KeyRange], indices: &[usize]) -> Moves {
        let mut moves = Moves::new();
        self.tails[piece] = None;
        for slot in 0..self.segments.len() as u32 {
            if self.segments[slot as usize].range == piece
                && let Some(addresses) = self.divide(slot, parts, indices, None)
            {
                moves.insert(slot, addresses);
            }
        }
        moves
    }

    /// Divides the rows of a segment among the parts of its piece, for which some of it may have been done. Tells where they
    /// have gone, unless they stay together.
    pub(crate) fn divide(
        &mut self,
        slot: u32,
        parts: &[KeyRange],
        indices: &[usize],
        cutting: Option<Cutting>,
    ) -> Option<Vec<Address>> {
        let part_of = |position: Position| parts.partition_point(|part| part.last < position);
        let whole = &mut self.segments[slot as usize];
        if whole.rows == 0 {
            return None;
        }
        if let Some(KeyRange { first, last }) = whole.within
            && part_of(first) == part_of(last)
        {
            whole.range = indices[part_of(first)];
            return None;
        }
        let cutting = cutting.filter(|cutting| cutting.is_in(parts));
        let mut cutting = cutting.unwrap_or_else(|| Cutting::new(parts));
        cutting.find_rows(whole, &self.schema, usize::MAX);
        let filled = cutting.filled();
        if let [only] = filled[..] {
            (whole.range, whole.within) = (indices[only], Some(parts[only]));
            return None;
        }
        let (mut columns, all_gathered) = cutting.finish(whole, &self.schema);
        let rows = &cutting.rows;
        let mut addresses = vec![GONE; whole.rows];
        self.has_changed(slot);
        let mut made = Vec::new();
        for (number, part) in filled.into_iter().enumerate() {
            let to = if number == 0 { slot } else { (self.segments.len() + number - 1) as u32 };
            for (row, old) in rows[part].iter().zip(0..).map(|(old, row)| (row, *old)) {
                addresses[old as usize] = Address { slot: to, row };
            }
            let columns = std::mem::take(&mut columns[part]);
            let mut segment = self.segments[slot as usize].divide(columns, &rows[part], indices[part]);
            segment.within = Some(parts[part]);
            segment.is_part = !all_gathered;
            made.push(segment);
        }
        let mut made = made.into_iter();
        if let Some(first) = made.next() {
            let old = std::mem::replace(&mut self.segments[slot as usize], first);
            self.forget_size(&old);
            // What refers to rows is put where they have gone by `readdress`.
            self.segments[slot as usize].previous = old.previous;
            self.segments[slot as usize].next = old.next;
            self.segments[slot as usize].queues = old.queues;
        }
        self.segments.extend(made);
        Some(addresses)
    }

    /// Puts right everything that refers to rows which have moved, and the sizes of segments.
    pub(crate) fn readdress(&mut self, moves: Moves, riders: &mut Riders) {
        let mut moved: Vec<Option<&[Address]>> = vec![None; self.segments.len()];
        moves.iter().for_each(|(slot, addresses)| moved[*slot as usize] = Some(addresses));
        let to = |address: Address| match moved[address.slot as usize] {
            Some(addresses) => addresses[address.row as usize],
            None => address,
        };
        let mut previous = Vec::new();
        for (slot, segment) in self.segments.iter_mut().enumerate() {
            if moved[slot].is_none() && !segment.leads_elsewhere {
                continue;
            }
            segment.leads_elsewhere = false;
            let at = |row: u32| Address { slot: slot as u32, row };
            let before = std::mem::take(&mut segment.previous);
            previous.extend(before.into_iter().map(|(row, old)| (to(at(row)), to(old))));
        }
        for (new, old) in previous {
            self.segments[new.slot as usize].set_previous(new.slot, new.row, old);
        }
        let take = |slot: &u32| {
            let segment = &mut self.segments[*slot as usize];
            (*slot, std::mem::take(&mut segment.next), std::mem::take(&mut segment.queues))
        };
        // Some may move to where others of them were.
        let taken: Vec<_> = moves.keys().map(take).collect();
        for (slot, next, queues) in taken {
            let addresses = &moves[&slot];
            for (row, after) in next {
                let (at, after) = (addresses[row as usize], addresses[after as usize]);
                self.segments[at.slot as usize].next.insert(at.row, after.row);
            }
            for (root, queue) in queues.into_all() {
                let at = addresses[root as usize];
                self.segments[at.slot as usize].queues.insert(at.row, queue);
            }
        }
        for rider in riders.iter_mut().filter(|rider| rider.table == self.schema.id) {
            for change in &mut rider.changes {
                let row = change.new.or(change.old).unwrap_or_default();
                let slot = to(Address { slot: change.slot, row }).slot;
                let of = |row: Option<u32>| row.map(|row| to(Address { slot: change.slot, row }).row);
                *change = Change { slot, old: of(change.old), new: of(change.new) };
                self.segments[slot as usize].note_undecided(rider.ts);
            }
            if let Some(found) = rider.work.found() {
                *found = found.readdressed(to);
            }
        }
        match moves.keys().all(|slot| self.keys.can_move(*slot)) {
            true => self.keys.begin_moves(moves),
            false => self.keys.readdress(|address| Some(to(address))),
        }
        (0..self.segments.len() as u32).for_each(|slot| self.measure(slot));
    }

    /// Leaves pieces to those who read what was there before.
    fn leave_pieces(&mut self, pieces: &[usize]) {
        let segments = self.segments.iter_mut().zip(0..);
        let left = segments.filter(|(segment, _)| pieces.contains(&segment.range));
        self.keys.leave(left.map(|(segment, slot)| {
            // It will not be here for long.
            segment.is_part = false;
            slot
        }));
    }

    /// Takes the keys of the rows of pieces out of the index.
    fn forget_keys(&mut self, pieces: &[usize]) {
        let goes: Vec<bool> = self.segments.iter().map(|segment| pieces.contains(&segment.range)).collect();
        self.keys.readdress(|address| (!goes[address.slot as usize]).then_some(address));
    }

    /// Forgets the rows of a piece. No index entry and no operation refers to them.
    fn vacate(&mut self, piece: usize) {
        while self.vacate_some(piece) {}
    }

    /// Forgets those of one of its segments. Whether there was one.
    fn vacate_some(&mut self, piece: usize) -> bool {
        assert!(!self.keys.are_to_follow(), "no key leads to where other rows may come");
        if let Some(tail) = self.tails.get_mut(piece) {
            *tail = None;
        }
        let Some(slot) = self.segments.iter().position(|segment| segment.range == piece) else {
            return false;
        };
        // Nobody follows these any more, and others' rows may come to where they lead before all are gone.
        let leading = self.segments.iter_mut().filter(|segment| segment.range == piece);
        leading.for_each(|segment| segment.previous = HashMap::new());
        let old = std::mem::replace(&mut self.segments[slot], Segment::new(NO_PIECE, &self.schema.columns));
        self.forget_size(&old);
        self.is_full_no_more(slot as u32);
        self.measure(slot as u32);
        true
    }
}

impl FoundRows {
    /// The same rows where they are now.
    fn readdressed(&self, to: impl Fn(Address) -> Address) -> FoundRows {
        let mut by_slot: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
        for Address { slot, row } in self.addresses().map(to) {
            by_slot.entry(slot).or_default().push(row);
        }
        let mut found = FoundRows::default();
        for (slot, mut rows) in by_slot {
            // Those of several segments that have become one do not come in order.
            rows.sort_unstable();
            found.push(slot, &rows);
        }
        found
    }
}
