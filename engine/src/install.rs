//! Taking rows that others have sent, or that a checkpoint has: a block becomes a segment (paper, section 6.4; DESIGN,
//! decision 15).
//!
//! ```text
//!   begin_install ───▶ sum up ──────▶ hash ────────▶ enter
//!   a segment          a column       some keys      some keys into the index
//!                      at a time      at a time      at a time
//! ```
//!
//! Nobody looks for a key of a range that is being received before all of it is there, so its keys follow between visits.
//! Until they have, the rows keep their numbers: nothing is compacted, cut or cleared. The content hash of what has been
//! taken is summed up on the way, so that it is known as soon as everything is there.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    batch_size::in_parts,
    block::Block,
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

/// Rows of a block whose content is summed up, and whose keys are on their way into the index.
#[derive(Debug)]
pub(crate) struct Entering {
    table: TableId,
    range: KeyRange,
    /// What is left of the content, and the sum of the others.
    left: Hashes,
    content: u128,
    /// The rows that have keys.
    rows: Vec<Address>,
    /// So many of the keys have been hashed,
    hashed: usize,
    /// which gave these, by part of the index,
    keys: Vec<Vec<(u64, Address)>>,
    /// and so many parts have theirs.
    entered: usize,
}

/// A block of rows, and what they are.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Of this table,
    pub table: TableId,
    /// and this range: as it is held, or
    pub range: KeyRange,
    /// as it was then, see [`Shard::restore_piece`]; what is held of the range, if it is, begins no earlier.
    pub until: Option<Ts>,
    /// When they begin.
    pub begin: Ts,
    /// The rows.
    pub block: &'a [u8],
}

impl Shard {
    /// Takes a block of rows: those that belong to this shard. The range is held here, cut out by a
    /// [`Recut`](crate::recut::Recut) that has been executed when they are received; or the rows are what it was before.
    ///
    /// # Errors
    /// When the block cannot be read, or has rows that do not belong to the table or the range.
    pub fn install(&mut self, rows: Rows<'_>) -> Result<()> {
        self.begin_install(rows)?;
        if let Some(entering) = &mut self.entering {
            entering.left = Hashes::default();
        }
        self.enter_all();
        Ok(())
    }

    /// As [`install`](Shard::install), but for the keys, which [`enter_some`](Shard::enter_some) enters; it also sums up the
    /// content, for [`received`](Shard::received).
    ///
    /// # Errors
    /// As those of [`install`](Shard::install).
    pub fn begin_install(&mut self, rows: Rows<'_>) -> Result<()> {
        self.enter_all();
        let Some(mut table) = self.tables.remove(&rows.table) else {
            return Err(SqlError::internal("rows of a table that does not exist"));
        };
        let outcome = self.install_into(&mut table, rows);
        table.measure_changed();
        let has_keys = table.has_keys();
        self.tables.insert(rows.table, table);
        let addresses = outcome?;
        if rows.until.is_none() {
            let mut left = Hashes::default();
            for run in addresses.chunk_by(|one, next| one.slot == next.slot) {
                let rows: Vec<u32> = run.iter().map(|address| address.row).collect();
                left.found.push(run[0].slot, &rows);
            }
            let keys = if has_keys { addresses } else { Vec::new() };
            self.entering = Some(Entering {
                table: rows.table,
                range: rows.range,
                left,
                content: 0,
                rows: keys,
                hashed: 0,
                keys: vec![Vec::new(); PARTS],
                entered: 0,
            });
        }
        Ok(())
    }

    /// The content hash of the rows of a range that have been taken since this was asked last, or the range was cleared.
    pub fn received(&mut self, table: TableId, range: KeyRange) -> u128 {
        self.enter_for(&[range]);
        self.received.remove(&(table, range)).unwrap_or_default()
    }

    /// Sums up some of the content of the block that was taken last, or enters some of its keys. Idle when nothing is left.
    pub fn enter_some(&mut self) -> Progress {
        let Some(entering) = &mut self.entering else { return Progress::Idle };
        // It may have been dropped meanwhile.
        let is_done = self.tables.get_mut(&entering.table).is_none_or(|table| table.enter_some(entering));
        if is_done
            && let Some(Entering { table, range, content, .. }) = self.entering.take()
            && content != 0
        {
            let sum = self.received.entry((table, range)).or_default();
            *sum = sum.wrapping_add(content);
        }
        if is_done { Progress::Idle } else { Progress::Busy }
    }

    /// Enters all of them.
    pub(crate) fn enter_all(&mut self) {
        while self.enter_some() == Progress::Busy {}
    }

    /// Whoever asks for rows of a range finds those that have been taken.
    pub(crate) fn enter_for(&mut self, ranges: &[KeyRange]) {
        if self.entering.as_ref().is_some_and(|it| ranges.iter().any(|range| range.overlaps(&it.range))) {
            self.enter_all();
        }
    }

    /// Returns where the rows are.
    fn install_into(
        &mut self,
        table: &mut Table,
        Rows { range, until, block, begin, .. }: Rows<'_>,
    ) -> Result<Vec<Address>> {
        let (shard, shards) = Block::shard_of(block)?;
        if shards == self.shards && shard != self.index {
            return Ok(Vec::new());
        }
        let schema = table.schema.clone();
        let block = Block::from_bytes(block, &schema.columns)?;
        let rows = block.rows;
        let segment = Segment::of(NO_PIECE, block.into_columns(&schema.columns), rows, begin);
        let own: Vec<u32> = match shards == self.shards || self.shards == 1 {
            true => (0..rows as u32).collect(),
            false => {
                let identity = Table::identity(&schema);
                let mut key = Vec::new();
                let mut is_own = |row: u32| {
                    segment.write_identity(&schema.columns, &identity, row, &mut key);
                    shard_of(Table::hash(&key), self.shards) == self.index
                };
                (0..rows as u32).filter(|row| is_own(*row)).collect()
            }
        };
        let mut of_piece: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut last = 0;
        let dropped = |piece: &Piece| piece.range == range && piece.until == until;
        let dropped = until.and_then(|_| self.pieces.iter().position(dropped));
        for (row, position) in own.iter().zip(segment.positions(&schema, &own)) {
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
        let mut segment = Some(segment);
        let mut addresses = Vec::with_capacity(own.len());
        for (piece, rows_of_piece) in of_piece {
            let part = match &segment {
                Some(whole) if rows_of_piece.len() < rows => {
                    whole.extract(&schema.columns, &rows_of_piece, piece)
                }
                _ => segment.take().unwrap_or_else(|| Segment::new(piece, &schema.columns)),
            };
            table.adopt(part, piece, begin, &mut addresses);
        }
        Ok(addresses)
    }
}

impl Table {
    /// Takes a segment whose rows, which begin at `begin`, are known to be new; adds where they are.
    fn adopt(&mut self, mut segment: Segment, piece: usize, begin: Ts, addresses: &mut Vec<Address>) {
        let rows = segment.rows;
        if rows * 8 < self.options.segment_rows {
            // Too small to be one of its own.
            let all: Vec<u32> = (0..rows as u32).collect();
            let columns = self.schema.clone();
            let append = &mut |part: Range<usize>| {
                let gather = |(column, definition): (&SegmentColumn, &Column)| {
                    column.gather(&definition.ty, &all[part.clone()])
                };
                let arrays =
                    segment.columns.iter().zip(&columns.columns).map(gather).collect::<Result<Vec<_>>>()?;
                addresses.extend(self.append(piece, &arrays, &all[..part.len()], begin));
                Ok(())
            };
            in_parts(0..rows, append).expect("a row fits into a batch");
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
        addresses.extend((0..rows as u32).map(|row| Address { slot, row }));
    }

    /// Sums up some content, then hashes or enters some keys. Returns whether all have been entered.
    fn enter_some(&mut self, entering: &mut Entering) -> bool {
        if entering.left.found.len() > 0 {
            let content = &mut entering.content;
            self.hash_some(&mut entering.left, |_, sum| *content = content.wrapping_add(sum));
            return false;
        }
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
