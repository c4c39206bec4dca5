//! Taking rows that others have sent, or that a checkpoint has: a block becomes a segment (paper, section 6.4; DESIGN,
//! decision 15).
//!
//! ```text
//!   begin_install ───▶ read ──────▶ place ──────▶ adopt ──────────▶ sum up ──────▶ hash ────────▶ enter
//!                      a column     some rows     a segment, or     a column       some keys      some keys into
//!                      at a time    at a time     some rows of one  at a time      at a time      the index
//! ```
//!
//! Nobody looks for a row of a range that is being received before all of it is there, so all this is done between visits.
//! Until its keys are in the index, the rows keep their numbers: nothing is compacted, cut or cleared. The content hash of what
//! has been taken is summed up on the way, so that it is known as soon as everything is there.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use bytes::Bytes;

use crate::{
    batch_size::in_parts,
    block::Reading,
    column::SegmentColumn,
    error::{Result, SqlError},
    found::Hashes,
    operation::Ts,
    pieces::{Piece, held_at},
    position::KeyRange,
    primary_key::{Address, KeyIndex, PARTS},
    recut::NO_PIECE,
    schema::{Column, TableId},
    segment::Segment,
    shard::{Progress, Shard},
    table::{Table, shard_of},
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
    /// Whether the content is asked for, and the sum of what has been hashed of it.
    is_summed: bool,
    content: u128,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has been read.
    Begin(Bytes),
    Read(Reading),
    Place(Placing),
    Adopt(Adopting),
    Enter(Entering),
}

/// Rows that have been read.
#[derive(Debug)]
struct Placing {
    segment: Box<Segment>,
    /// Those that belong to this shard,
    own: Vec<u32>,
    /// of which so many have been looked at,
    placed: usize,
    /// and are of these pieces.
    of_piece: BTreeMap<usize, Vec<u32>>,
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
}

/// Rows that are in their table.
#[derive(Debug, Default)]
struct Entering {
    /// Those whose content has not been hashed.
    left: Hashes,
    /// Those that have keys.
    rows: Vec<Address>,
    /// So many of the keys have been hashed,
    hashed: usize,
    /// which gave these, by part of the index,
    keys: Vec<Vec<(u64, Address)>>,
    /// and so many parts have theirs.
    entered: usize,
}

impl Shard {
    /// Takes a block of rows: those that belong to this shard. The range is held here, cut out by a
    /// [`Recut`](crate::recut::Recut) that has been executed when they are received; or the rows are what it was before.
    ///
    /// # Errors
    /// When the block cannot be read, or has rows that do not belong to the table or the range.
    pub fn install(&mut self, rows: Rows) -> Result<()> {
        self.begin_install(rows);
        if let Some(installing) = &mut self.installing {
            installing.is_summed = false;
        }
        while self.install_some()? == Progress::Busy {}
        Ok(())
    }

    /// As [`install`](Shard::install), but it is [`install_some`](Shard::install_some) that does it; it also sums up the
    /// content, for [`received`](Shard::received).
    pub fn begin_install(&mut self, rows: Rows) {
        self.install_all();
        let Rows { table, range, until, begin, block } = rows;
        let stage = Stage::Begin(block);
        self.installing =
            Some(Installing { table, range, until, begin, is_summed: until.is_none(), content: 0, stage });
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
        let Installing { range, until, begin, is_summed, .. } = *installing;
        let next = match &mut installing.stage {
            Stage::Begin(block) => {
                let reading = Reading::new(std::mem::take(block))?;
                let (shard, shards) = reading.shard();
                if shards == self.shards && shard != self.index {
                    return Ok(Progress::Idle);
                }
                Some(Stage::Read(reading))
            }
            Stage::Read(reading) => match reading.next(&table.schema.columns)? {
                true => None,
                false => Some(Stage::Place(self.placing(table, reading, begin))),
            },
            Stage::Place(placing) if placing.placed < placing.own.len() => {
                self.place_some(table, placing, range, until)?;
                None
            }
            Stage::Place(placing) => {
                let parts = table.parts(placing);
                Some(Stage::Adopt(Adopting { parts, ..Adopting::default() }))
            }
            Stage::Adopt(adopting) if !adopting.parts.is_empty() => {
                table.adopt_some(adopting, begin);
                None
            }
            Stage::Adopt(_) if until.is_some() => return Ok(Progress::Idle),
            Stage::Adopt(Adopting { rows, .. }) => {
                let rows = std::mem::take(rows);
                Some(Stage::Enter(Entering::new(rows, table.has_keys(), is_summed)))
            }
            Stage::Enter(entering) if entering.left.found.len() > 0 => {
                let content = &mut installing.content;
                table.hash_some(&mut entering.left, |_, sum| *content = content.wrapping_add(sum));
                None
            }
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

    /// Begins to place what has been read.
    fn placing(&self, table: &Table, reading: &mut Reading, begin: Ts) -> Placing {
        let schema = &table.schema;
        let ((_, shards), rows) = (reading.shard(), reading.rows());
        let segment = Box::new(Segment::of(NO_PIECE, reading.take_columns(), rows, begin));
        let own: Vec<u32> = match shards == self.shards || self.shards == 1 {
            true => (0..rows as u32).collect(),
            false => {
                let identity = Table::identity(schema);
                let mut key = Vec::new();
                let mut is_own = |row: u32| {
                    segment.write_identity(&schema.columns, &identity, row, &mut key);
                    shard_of(Table::hash(&key), self.shards) == self.index
                };
                (0..rows as u32).filter(|row| is_own(*row)).collect()
            }
        };
        Placing { segment, own, placed: 0, of_piece: BTreeMap::new() }
    }

    /// Finds the pieces of some rows.
    fn place_some(
        &self,
        table: &Table,
        placing: &mut Placing,
        range: KeyRange,
        until: Option<Ts>,
    ) -> Result<()> {
        let Placing { segment, own, placed, of_piece } = placing;
        let rows = &own[*placed..own.len().min(*placed + table.options.keys_together.max(1))];
        let mut last = 0;
        let dropped = |piece: &Piece| piece.range == range && piece.until == until;
        let dropped = until.and_then(|_| self.pieces.iter().position(dropped));
        for (row, position) in rows.iter().zip(segment.positions(&table.schema, rows)) {
            let piece = match until {
                None => held_at(&self.pieces, position, last),
                Some(_) => dropped,
            };
            let piece = piece.filter(|_| range.contains(position));
            let Some(piece) = piece else {
                return Err(SqlError::internal(format!("rows that do not lie in range {range}")));
            };
            last = piece;
            of_piece.entry(piece).or_default().push(*row);
        }
        *placed += rows.len();
        Ok(())
    }
}

impl Entering {
    fn new(rows: Vec<Address>, have_keys: bool, is_summed: bool) -> Entering {
        let mut left = Hashes::default();
        if is_summed {
            for run in rows.chunk_by(|one, next| one.slot == next.slot) {
                let rows: Vec<u32> = run.iter().map(|address| address.row).collect();
                left.found.push(run[0].slot, &rows);
            }
        }
        let rows = if have_keys { rows } else { Vec::new() };
        Entering { left, rows, keys: vec![Vec::new(); PARTS], ..Entering::default() }
    }
}

impl Table {
    /// The rows of a block by piece.
    fn parts(&self, placing: &mut Placing) -> VecDeque<(usize, Segment)> {
        let Placing { segment, of_piece, .. } = placing;
        let rows = segment.rows;
        let mut whole = Some(std::mem::replace(&mut **segment, Segment::new(NO_PIECE, &[])));
        let part = |(piece, rows_of_piece): (usize, Vec<u32>)| match &whole {
            Some(whole) if rows_of_piece.len() < rows => {
                Some((piece, whole.extract(&self.schema.columns, &rows_of_piece, piece)))
            }
            _ => whole.take().map(|whole| (piece, whole)),
        };
        std::mem::take(of_piece).into_iter().filter_map(part).collect()
    }

    /// Takes a segment whose rows, which begin at `begin`, are known to be new, or some rows of one that is too small to be
    /// one of its own.
    fn adopt_some(&mut self, adopting: &mut Adopting, begin: Ts) {
        let Some((piece, mut segment)) = adopting.parts.pop_front() else { return };
        let rows = segment.rows;
        if rows * 8 < self.options.segment_rows {
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
            Some(vacant) => self.segments[vacant] = segment,
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
        in_parts(rows, append).expect("a row fits into a batch");
    }

    /// Hashes or enters some keys. Returns whether all have been entered.
    fn enter_some(&mut self, entering: &mut Entering) -> bool {
        let together = self.options.keys_together.max(1);
        if entering.hashed < entering.rows.len() {
            let until = entering.rows.len().min(entering.hashed + together);
            let rows = &entering.rows[entering.hashed..until];
            for (hash, row) in self.hashes_of_stored(rows).into_iter().zip(rows) {
                entering.keys[KeyIndex::part(hash)].push((hash, *row));
            }
            entering.hashed = until;
            return false;
        }
        let mut entered = 0;
        while entering.entered < PARTS && entered < together {
            let keys = std::mem::take(&mut entering.keys[entering.entered]);
            entered += keys.len();
            self.keys.insert_all(entering.entered, keys);
            entering.entered += 1;
        }
        entering.entered == PARTS
    }
}
