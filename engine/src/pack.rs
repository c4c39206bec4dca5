//! Packing blocks: what a read has found becomes blocks of rows for a process that is to receive them (`block`).
//!
//! ```text
//!   found rows ── gathered, some columns at a time ──> Packing ── written and hashed ──> block
//!                 (by the shard: it needs the segment)            (by anybody)
//! ```
//!
//! Both are done when all of the rows have been found. To gather columns is little more than to copy them, and the most of
//! the work is left to whoever has time for it.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
};

use crate::{
    bits::{Picked, Ranks},
    block::{BLOCK_BYTES, Writing},
    buffers::Buffers,
    column::{CELLS_OF_ENCODED, EncodedColumn, SegmentColumn},
    content_hash::Sums,
    error::Result,
    found::FoundRows,
    operation::{Effect, Ts},
    preparation::Work,
    rider::Rider,
    schema::TableSchema,
    segment::Segment,
    shard::{Options, Progress},
    table::Table,
};

/// Rows that a read has found, and that are sent as blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// They are blocks of this shard, of so many.
    shard: (u32, u32),
    /// Those that have not been gathered.
    pub(crate) found: FoundRows,
    /// How many more blocks may be sent now, if not all.
    credit: Option<i64>,
    /// Whether the content hashes are asked for, too.
    pub(crate) hashed: bool,
    /// The block that is being made.
    making: Option<Making>,
    /// Whether it is its turn from time to time.
    pub(crate) is_queued: bool,
}

#[derive(Debug)]
enum Making {
    Gathering(Gathering),
    Packing(Box<Packing>),
    /// It is being packed, and comes back by [`crate::Shard::packed`].
    Elsewhere,
}

/// The columns of the next block, as far as they have been gathered.
#[derive(Debug)]
struct Gathering {
    /// Of so many rows at the end of those that were found.
    rows: usize,
    ranks: Ranks,
    columns: VecDeque<EncodedColumn>,
}

/// What has been made of a read's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Some,
    /// As many as it may send, or what others have not given back.
    AllThatMayBe,
    All,
}

impl Clone for Blocks {
    /// What is being made is not copied: only a read that has not begun is.
    fn clone(&self) -> Blocks {
        debug_assert!(self.making.is_none(), "a block is being made");
        Blocks { found: self.found.clone(), ..Blocks::new(self.shard, self.credit, self.hashed) }
    }
}

impl Blocks {
    pub(crate) fn new(shard: (u32, u32), credit: Option<i64>, hashed: bool) -> Blocks {
        Blocks { shard, found: FoundRows::default(), credit, hashed, making: None, is_queued: false }
    }

    /// The rows that have not been gathered, to be put elsewhere or forgotten: the block that is being gathered is begun anew.
    pub(crate) fn found_anew(&mut self) -> &mut FoundRows {
        self.making.take_if(|making| matches!(making, Making::Gathering(_)));
        &mut self.found
    }

    /// Whether something has not been sent.
    pub(crate) fn are_left(&self) -> bool {
        self.found.len() > 0 || self.making.is_some()
    }

    /// Lets it send more blocks.
    pub(crate) fn allow(&mut self, blocks: u32) {
        self.credit = self.credit.map(|credit| credit + i64::from(blocks));
    }
}

/// A block whose columns have been gathered.
#[derive(Debug)]
pub struct Packing {
    /// The read.
    ts: Ts,
    /// Which of its ranges the rows are in.
    place: usize,
    schema: Arc<TableSchema>,
    /// Those that are not in the block.
    columns: VecDeque<EncodedColumn>,
    rows: usize,
    block: Result<Writing>,
    /// If the content hash is asked for, and is not known.
    sums: Option<Sums>,
    content: u128,
    options: Options,
}

impl Packing {
    /// Does some of the work. Idle when nothing is left.
    pub fn pack_some(&mut self) -> Progress {
        let most = (self.options.cells_hashed_together() / self.rows.max(1)).max(1);
        let some: Vec<EncodedColumn> = self.columns.drain(..most.min(self.columns.len())).collect();
        if let Ok(block) = &mut self.block
            && let Err(error) = some.iter().try_for_each(|column| block.add(column))
        {
            self.block = Err(error);
        }
        if let Some(sums) = &mut self.sums {
            sums.add_all(&some, &self.schema.columns);
        }
        if self.columns.is_empty()
            && let Some(sums) = self.sums.take()
        {
            self.content = sums.finish();
        }
        if self.is_packed() { Progress::Idle } else { Progress::Busy }
    }

    fn is_packed(&self) -> bool {
        self.columns.is_empty() || self.block.is_err()
    }

    /// The block and, if it is asked for, its content hash.
    fn finish(mut self) -> Result<(Vec<u8>, u128)> {
        while self.pack_some() == Progress::Busy {}
        Ok((self.block?.finish(), self.content))
    }

    /// The read that it is for.
    pub(crate) fn ts(&self) -> Ts {
        self.ts
    }
}

/// Who packs the blocks of a shard, and with what.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    /// Somebody else, if it is not the shard.
    other: Option<mpsc::Sender<Box<Packing>>>,
    /// Blocks that have not come back.
    elsewhere: usize,
    /// Kept from one read to the next, which may soon follow.
    buffers: Buffers,
}

impl Packer {
    /// Somebody else does it from now on.
    pub(crate) fn leave_it_to(&mut self, other: mpsc::Sender<Box<Packing>>) {
        self.other = Some(other);
    }

    /// Whether somebody else has blocks.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.elsewhere > 0
    }

    /// Takes a block back.
    pub(crate) fn take_back(&mut self) {
        self.elsewhere = self.elsewhere.saturating_sub(1);
    }

    /// Whether it keeps memory for blocks that are asked for later.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.buffers.are_kept()
    }

    /// No blocks are asked for now.
    pub(crate) fn rest(&mut self) {
        self.buffers.forget();
    }

    fn pack(&mut self, packing: Box<Packing>) -> Making {
        let Some(other) = &self.other else { return Making::Packing(packing) };
        match other.send(packing) {
            Ok(()) => {
                self.elsewhere += 1;
                Making::Elsewhere
            }
            Err(mpsc::SendError(packing)) => Making::Packing(packing),
        }
    }

    /// Sends a block for its read.
    pub(crate) fn send(&self, packing: Packing, rider: &mut Rider, effects: &mut Vec<Effect>) {
        if let Work::Blocks(blocks) = &mut rider.work {
            (blocks.making, blocks.credit) = (None, blocks.credit.map(|credit| credit - 1));
        }
        let (ts, place) = (packing.ts, packing.place);
        match packing.finish() {
            Ok((block, hash)) => {
                let range = &mut rider.ranges[place];
                range.hash = range.hash.wrapping_add(hash);
                effects.push(Effect::Block { ts, range: range.range, block: self.buffers.lend(block) });
            }
            Err(error) => rider.fail_everywhere(&error),
        }
    }
}

/// What a column has in a block besides its cells, about.
const COLUMN_BYTES: usize = 64;

/// What a row takes, about.
fn row_bytes(segment: &Segment) -> usize {
    segment.size() / segment.rows.max(1) + 1
}

/// How many at the end of some rows of a segment fit into a block, up to a limit: about so many where the rows are as large as
/// each other.
fn rows_that_fit(segment: &Segment, rows: &[u32], about: usize, limit: usize) -> usize {
    let besides: usize = segment.columns.iter().map(SegmentColumn::bytes_besides).sum();
    let besides = besides / segment.rows.max(1) + 1;
    let held = |columns: &[&SegmentColumn]| columns.iter().map(|column| column.bytes_held()).sum::<usize>();
    let is_little = |column: &&SegmentColumn| column.bytes_held() * segment.columns.len() <= BLOCK_BYTES / 8;
    let (little, much): (Vec<_>, Vec<_>) = segment.columns.iter().partition(is_little);
    let little = held(&little);
    let entries = |count| segment.columns.iter().map(|column| column.entries_bytes(count)).sum::<usize>();
    if about * besides + entries(about) + little + held(&much) <= BLOCK_BYTES {
        return about;
    }
    // A few rows may have most of the strings. To look at rows one by one would take as long as to copy them, whereas each column
    // tells in one pass what any number of rows need.
    let bytes_of = |count: usize| {
        let last = &rows[rows.len() - count..];
        count * besides
            + entries(count)
            + little
            + much.iter().map(|column| column.bytes_used(last)).sum::<usize>()
    };
    let (mut most, mut bytes) = (about, bytes_of(about));
    if bytes > BLOCK_BYTES {
        while bytes > BLOCK_BYTES && most > 1 {
            let in_proportion = most * BLOCK_BYTES / bytes;
            most = in_proportion.clamp(most / 2, most - most.div_ceil(8));
            bytes = bytes_of(most);
        }
        return most;
    }
    let all = rows.len().min(limit);
    while bytes <= BLOCK_BYTES / 2 && most < all {
        let more = all.min(most * 2);
        bytes = bytes_of(more);
        if bytes <= BLOCK_BYTES {
            most = more;
        }
    }
    most
}

impl Table {
    /// How many at the end of a run of rows that were found make the next block: not too many.
    fn rows_of_block(&self, slot: u32, rows: &[u32]) -> usize {
        let segment = &self.segments[slot as usize];
        // Rows that were added to a segment since it was encoded go by themselves: all others would have to be encoded again
        // for the sake of a few. To encode these takes long, and whoever receives them adds them to others.
        let encoded = rows.partition_point(|row| (*row as usize) < segment.encoded_rows());
        let (rows, limit) = match rows.len() - encoded {
            0 => (rows, usize::MAX),
            _ => (&rows[encoded..], self.options.plain_rows.max(1)),
        };
        // As large as each other: a small one would not be a segment of its own.
        let even = |most: usize| rows.len().div_ceil(rows.len().div_ceil(most));
        let on_average = even(limit.min((BLOCK_BYTES / row_bytes(segment)).max(1)));
        even(rows_that_fit(segment, rows, on_average, limit))
    }

    /// Does some of the work on the blocks of a read that has found all of its rows.
    pub(crate) fn make_blocks(
        &self,
        rider: &mut Rider,
        packer: &mut Packer,
        effects: &mut Vec<Effect>,
    ) -> Made {
        let Work::Blocks(blocks) = &mut rider.work else { return Made::All };
        let making = match blocks.making.take() {
            None if blocks.found.len() == 0 => return Made::All,
            None if blocks.credit.is_some_and(|credit| credit <= 0) => return Made::AllThatMayBe,
            None => {
                blocks.found.list_some();
                Making::Gathering(self.begin_block(&blocks.found))
            }
            Some(making) => making,
        };
        let making = match making {
            Making::Gathering(gathering) => {
                let gathered = self.gather_some(rider.ts, &rider.place_of_range, blocks, gathering, packer);
                match gathered {
                    Some(Making::Packing(packing)) => Some(packer.pack(packing)),
                    gathered => gathered,
                }
            }
            Making::Packing(mut packing) => match packing.pack_some() {
                Progress::Busy => Some(Making::Packing(packing)),
                Progress::Idle => {
                    packer.send(*packing, rider, effects);
                    return Made::Some;
                }
            },
            Making::Elsewhere => Some(Making::Elsewhere),
        };
        let is_elsewhere = matches!(making, Some(Making::Elsewhere));
        blocks.making = making;
        if is_elsewhere { Made::AllThatMayBe } else { Made::Some }
    }

    fn begin_block(&self, found: &FoundRows) -> Gathering {
        let rows = found.last_run().map_or(0, |(slot, run)| self.rows_of_block(slot, run));
        Gathering { rows, ranks: Ranks::default(), columns: VecDeque::new() }
    }

    /// Gathers some columns. When all of them are there, the rows are not needed where they are any more.
    fn gather_some(
        &self,
        ts: Ts,
        places: &[Option<usize>],
        blocks: &mut Blocks,
        mut gathering: Gathering,
        packer: &mut Packer,
    ) -> Option<Making> {
        let (slot, run) = blocks.found.last_run()?;
        let segment = &self.segments[slot as usize];
        let rows = &run[run.len() - gathering.rows..];
        let picked = Picked::new(rows, &gathering.ranks);
        // To encode cells takes longer than to gather them.
        let is_encoded = picked.end() <= segment.encoded_rows();
        let each = rows.len().max(1) * if is_encoded { 1 } else { CELLS_OF_ENCODED / 2 };
        let most = (self.options.block_cells / each).max(1);
        let definitions = self.schema.columns.iter().zip(&segment.columns);
        let next = definitions.skip(gathering.columns.len()).take(most);
        gathering.columns.extend(next.map(|(definition, column)| column.part(&definition.ty, &picked)));
        if gathering.columns.len() < segment.columns.len() {
            return Some(Making::Gathering(gathering));
        }
        let rows = rows.len();
        let room = ((rows + rows / 4) * row_bytes(segment)).min(BLOCK_BYTES + BLOCK_BYTES / 4)
            + segment.columns.len() * COLUMN_BYTES;
        let place = places[segment.range];
        blocks.found.drop_last(rows);
        // What is in a range of which it does not want to know any more is not sent.
        let place = place?;
        let (follow, buffer) = (blocks.found.len(), packer.buffers.take(room));
        Some(Making::Packing(Box::new(Packing {
            ts,
            place,
            schema: self.schema.clone(),
            block: Writing::new(blocks.shard, rows, follow, gathering.columns.len(), buffer),
            columns: gathering.columns,
            rows,
            sums: blocks.hashed.then(|| Sums::of_all(rows)),
            content: 0,
            options: self.options,
        })))
    }
}
