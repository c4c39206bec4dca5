//! Taking rows that others have sent, or that a checkpoint has: a block becomes a segment (paper, section 6.4; DESIGN,
//! decision 15).
//!
//! ```text
//!   unpack ────────────▶ place ─────────▶ adopt ──────────▶ enter
//!   crate::unpack,       some rows        a segment, or     some keys into
//!   by anybody           at a time        some rows of one  the index
//! ```
//!
//! Nobody looks for a row of a range that is being received before all of it is there, so all this is done between visits.
//! Until its keys are in the index, the rows keep their numbers: nothing is compacted, cut or cleared. The content hashes of
//! what has been taken are summed up, so that the content is known as soon as everything is there.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use bytes::Bytes;

use crate::{
    batch_size::in_all_parts,
    column::SegmentColumn,
    error::{Result, SqlError},
    operation::Ts,
    pieces::{Piece, held_at},
    position::{KeyRange, Position},
    primary_key::{Address, KeyIndex, PARTS},
    recut::NO_PIECE,
    schema::{Column, TableId},
    segment::Segment,
    shard::{Progress, Shard},
    table::Table,
    unpack::{Unpacked, Unpacking, Wants},
};

/// A block of rows, and what they are.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Of this table,
    pub table: TableId,
    /// and this range: as it is held, or
    pub range: KeyRange,
    /// as it was then, see [`Shard::restore_piece`]; what is held of the range, if it is, begins no earlier.
    pub until: Option<Ts>,
    /// When they begin.
    pub begin: Ts,
    /// The rows.
    pub block: Bytes,
}

/// A block that is being taken.
#[derive(Debug)]
pub(crate) struct Installing {
    table: TableId,
    range: KeyRange,
    until: Option<Ts>,
    begin: Ts,
    /// The content hash of the block, if it is asked for.
    content: u128,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Unpack(Unpacking),
    Place(Placing),
    Adopt(Adopting),
    Enter(Entering),
}

/// Rows that have been unpacked.
#[derive(Debug)]
struct Placing {
    rows: Box<Unpacked>,
    /// So many of the shard's own have been looked at,
    placed: usize,
    /// and are of these pieces: which of its own they are,
    of_piece: BTreeMap<usize, Vec<usize>>,
    /// or all of them are of this one.
    whole: Option<usize>,
}

/// Rows whose pieces are known.
#[derive(Debug, Default)]
struct Adopting {
    /// By piece.
    parts: VecDeque<(usize, Segment)>,
    /// So many rows of the first have been added to other segments.
    added: usize,
    /// Where those are that are in their table.
    rows: Vec<Address>,
    /// The hashes of the keys of all, in this order.
    hashes: Vec<u64>,
    /// How many more may be about to come.
    follow: usize,
}

/// Rows that are in their table.
#[derive(Debug)]
struct Entering {
    /// Their keys, by part of the index,
    keys: Vec<Vec<(u64, Address)>>,
    /// of which so many parts have theirs,
    entered: usize,
    /// and how many more may be about to come.
    follow: usize,
}

impl Shard {
    /// Takes a block of rows: those that belong to this shard. The range is held here, cut out by a
    /// [`Recut`](crate::recut::Recut) that has been executed when they are received; or the rows are what it was before.
    ///
    /// # Errors
    /// When the block cannot be read, or has rows that do not belong to the table or the range.
    pub fn install(&mut self, rows: Rows) -> Result<()> {
        let Rows { table, range, until, begin, block } = rows;
        let keys = until.is_none();
        let unpacking = self.unpacking(table, begin, block, Wants { content: false, keys })?;
        self.begin_install(table, range, until, begin, unpacking);
        while self.install_some()? == Progress::Busy {}
        Ok(())
    }

    /// A block of rows that have been received, which begin at `begin`, for whoever has time to unpack it; then it is
    /// [`install_unpacked`](Shard::install_unpacked).
    ///
    /// # Errors
    /// When there is no such table.
    pub fn to_unpack(&self, table: TableId, begin: Ts, block: Bytes) -> Result<Unpacking> {
        self.unpacking(table, begin, block, Wants { content: true, keys: true })
    }

    /// As [`install`](Shard::install), of a block however much of which has been unpacked, but it is
    /// [`install_some`](Shard::install_some) that does it; it also sums up the content, for [`received`](Shard::received).
    pub fn install_unpacked(&mut self, table: TableId, range: KeyRange, begin: Ts, unpacking: Unpacking) {
        self.begin_install(table, range, None, begin, unpacking);
    }

    fn unpacking(&self, table: TableId, begin: Ts, block: Bytes, wants: Wants) -> Result<Unpacking> {
        let table = self.tables.get(&table);
        let table = table.ok_or_else(|| SqlError::internal("rows of a table that does not exist"))?;
        let wants = Wants { keys: wants.keys && table.has_keys(), ..wants };
        let shard = (self.index, self.shards);
        Ok(Unpacking::new(block, table.schema.clone(), shard, begin, wants, table.options))
    }

    fn begin_install(
        &mut self,
        table: TableId,
        range: KeyRange,
        until: Option<Ts>,
        begin: Ts,
        unpacking: Unpacking,
    ) {
        self.install_all();
        let stage = Stage::Unpack(unpacking);
        self.installing = Some(Installing { table, range, until, begin, content: 0, stage });
    }

    /// The content hash of the rows of a range that have been taken since this was asked last, or the range was cleared.
    pub fn received(&mut self, table: TableId, range: KeyRange) -> u128 {
        self.install_for(&[range]);
        self.received.remove(&(table, range)).unwrap_or_default()
    }

    /// Does some of the work on the block that came last. Idle when nothing is left.
    ///
    /// # Errors
    /// As those of [`install`](Shard::install); nothing is left then, and the content lacks these rows.
    pub fn install_some(&mut self) -> Result<Progress> {
        let Some(mut installing) = self.installing.take() else { return Ok(Progress::Idle) };
        let Some(mut table) = self.tables.remove(&installing.table) else {
            return Err(SqlError::internal("rows of a table that does not exist"));
        };
        let outcome = self.install_into(&mut table, &mut installing);
        table.measure_changed();
        self.tables.insert(installing.table, table);
        let progress = outcome?;
        let Installing { table, range, content, .. } = installing;
        if progress == Progress::Busy {
            self.installing = Some(installing);
        } else if content != 0 {
            let sum = self.received.entry((table, range)).or_default();
            *sum = sum.wrapping_add(content);
        }
        Ok(progress)
    }

    /// Does some of it, and says whether there was something to do.
    pub(crate) fn install_more(&mut self) -> bool {
        let is_some = self.installing.is_some();
        // Where some cannot be taken, the content tells.
        let _ = self.install_some();
        is_some
    }

    /// Does all of it.
    pub(crate) fn install_all(&mut self) {
        while self.install_more() {}
    }

    /// Whoever asks for rows of a range finds those that have come.
    pub(crate) fn install_for(&mut self, ranges: &[KeyRange]) {
        if self.installing.as_ref().is_some_and(|it| ranges.iter().any(|range| range.overlaps(&it.range))) {
            self.install_all();
        }
    }

    fn install_into(&self, table: &mut Table, installing: &mut Installing) -> Result<Progress> {
        let Installing { range, until, begin, .. } = *installing;
        let next = match &mut installing.stage {
            Stage::Unpack(unpacking) => match unpacking.unpack_some() {
                Progress::Busy => None,
                Progress::Idle => {
                    let rows = unpacking.take(&table.schema)?;
                    Some(Stage::Place(Placing { rows, placed: 0, of_piece: BTreeMap::new(), whole: None }))
                }
            },
            Stage::Place(placing) if placing.placed < placing.rows.own.len() => {
                self.place_some(table, placing, range, until)?;
                None
            }
            Stage::Place(placing) => {
                installing.content = placing.rows.content;
                Some(Stage::Adopt(table.adopting(placing)))
            }
            Stage::Adopt(adopting) if !adopting.parts.is_empty() => {
                table.adopt_some(adopting, begin);
                None
            }
            Stage::Adopt(adopting) if adopting.hashes.is_empty() => return Ok(Progress::Idle),
            Stage::Adopt(adopting) => Some(Stage::Enter(Entering::new(adopting))),
            Stage::Enter(entering) => match table.enter_some(entering) {
                true => return Ok(Progress::Idle),
                false => None,
            },
        };
        if let Some(next) = next {
            installing.stage = next;
        }
        Ok(Progress::Busy)
    }

    /// Finds the pieces of some rows.
    fn place_some(
        &self,
        table: &Table,
        placing: &mut Placing,
        range: KeyRange,
        until: Option<Ts>,
    ) -> Result<()> {
        let Placing { rows, placed, of_piece, whole } = placing;
        let some = *placed..rows.own.len().min(*placed + table.options.keys_together.max(1));
        let mut last = 0;
        let dropped = |piece: &Piece| piece.range == range && piece.until == until;
        let dropped = until.and_then(|_| self.pieces.iter().position(dropped));
        let mut piece_at = |position: Position| {
            let piece = match until {
                None => held_at(&self.pieces, position, last),
                Some(_) => dropped,
            };
            let piece = piece.filter(|_| range.contains(position));
            last = piece.unwrap_or(last);
            piece.ok_or_else(|| SqlError::internal(format!("rows that do not lie in range {range}")))
        };
        // Most blocks have rows of one piece only.
        if let Some(within) = rows.within.filter(|_| *placed == 0) {
            let [first, last] = [piece_at(within.first)?, piece_at(within.last)?];
            if first == last {
                (*placed, *whole) = (rows.own.len(), Some(first));
                return Ok(());
            }
        }
        for own in some.clone() {
            of_piece.entry(piece_at(rows.positions[own])?).or_default().push(own);
        }
        *placed = some.end;
        Ok(())
    }
}

impl Entering {
    fn new(adopting: &Adopting) -> Entering {
        // Parts are not quite as full as each other.
        let each = adopting.hashes.len() / PARTS;
        let room = each + each / 8 + 1;
        let mut keys: Vec<Vec<(u64, Address)>> = (0..PARTS).map(|_| Vec::with_capacity(room)).collect();
        for (hash, row) in adopting.hashes.iter().zip(&adopting.rows) {
            keys[KeyIndex::part(*hash)].push((*hash, *row));
        }
        Entering { keys, entered: 0, follow: adopting.follow }
    }
}

impl Table {
    /// The rows of a block by piece.
    fn adopting(&self, placing: &mut Placing) -> Adopting {
        let Unpacked { segment, own, within, keys, follow, .. } = &mut *placing.rows;
        let rows = segment.rows;
        if let Some(piece) = placing.whole {
            let segment = std::mem::replace(segment, Segment::new(NO_PIECE, &[]));
            let mut segment = match own.len() == rows {
                true => segment,
                false => segment.extract(&self.schema.columns, own, piece),
            };
            segment.within = *within;
            let (parts, hashes) = ([(piece, segment)].into(), std::mem::take(keys));
            return Adopting { parts, hashes, follow: *follow, ..Adopting::default() };
        }
        let of_piece = std::mem::take(&mut placing.of_piece);
        let in_order = of_piece.values().flatten();
        let hashes = if keys.is_empty() { Vec::new() } else { in_order.map(|own| keys[*own]).collect() };
        let mut whole = Some(std::mem::replace(segment, Segment::new(NO_PIECE, &[])));
        let part = |(piece, of_piece): (usize, Vec<usize>)| match &whole {
            Some(whole) if of_piece.len() < rows => {
                let rows: Vec<u32> = of_piece.iter().map(|at| own[*at]).collect();
                Some((piece, whole.extract(&self.schema.columns, &rows, piece)))
            }
            _ => whole.take().map(|whole| (piece, whole)),
        };
        let parts = of_piece.into_iter().filter_map(part).collect();
        Adopting { parts, hashes, follow: *follow, ..Adopting::default() }
    }

    /// Takes a segment whose rows, which begin at `begin`, are known to be new, or some rows of one that is too small to be
    /// one of its own.
    fn adopt_some(&mut self, adopting: &mut Adopting, begin: Ts) {
        let Some((piece, mut segment)) = adopting.parts.pop_front() else { return };
        let rows = segment.rows;
        if rows * self.options.small_part < self.options.segment_rows {
            let until = rows.min(adopting.added + self.options.plain_rows.max(1));
            self.add_some(piece, &segment, adopting.added..until, begin, &mut adopting.rows);
            adopting.added = until % rows.max(1);
            if until < rows {
                adopting.parts.push_front((piece, segment));
            }
            return;
        }
        segment.range = piece;
        let vacant = self.segments.iter().position(|segment| segment.range == NO_PIECE);
        let slot = vacant.unwrap_or(self.segments.len()) as u32;
        match vacant {
            Some(vacant) => {
                let empty = std::mem::replace(&mut self.segments[vacant], segment);
                self.forget_size(&empty);
            }
            None => self.segments.push(segment),
        }
        self.measure(slot);
        adopting.rows.extend((0..rows as u32).map(|row| Address { slot, row }));
    }

    /// Adds some rows of a segment to others of a piece; adds where they are.
    fn add_some(
        &mut self,
        piece: usize,
        segment: &Segment,
        rows: Range<usize>,
        begin: Ts,
        addresses: &mut Vec<Address>,
    ) {
        let all: Vec<u32> = (0..rows.end as u32).collect();
        let schema = self.schema.clone();
        let append = &mut |part: Range<usize>| {
            let gather = |(column, definition): (&SegmentColumn, &Column)| {
                column.gather(&definition.ty, &all[part.clone()])
            };
            let arrays =
                segment.columns.iter().zip(&schema.columns).map(gather).collect::<Result<Vec<_>>>()?;
            addresses.extend(self.append(piece, &arrays, &all[..part.len()], begin));
            Ok(())
        };
        in_all_parts(rows, append).expect("a row fits into a batch");
    }

    /// Enters some keys. Returns whether all have been entered.
    fn enter_some(&mut self, entering: &mut Entering) -> bool {
        let together = self.options.keys_together.max(1);
        let mut entered = 0;
        while entering.entered < PARTS && entered < together {
            let keys = std::mem::take(&mut entering.keys[entering.entered]);
            // The parts are as full as each other: if they have to grow, all of them have to.
            entered += self.keys.insert_all(entering.entered, keys, entering.follow / PARTS);
            entering.entered += 1;
        }
        entering.entered == PARTS
    }
}
