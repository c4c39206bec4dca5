//! A shard: one scan thread's share of a storage process (Crescando/RB paper, sections 3.1 and 4.3; DESIGN,
//! decisions 3, 5, 6 and 7).
//!
//! ```text
//!             submit                               step: visit one segment with all riders
//!   m-seq ──────────────▶ inbox ──▶ admission ──▶   ┌──▶ segment 0 ─▶ segment 1 ─▶ … ─┐
//!                                     │  │          └──────────────◀──────────────────┘
//!                 inserts take effect ┘  └ operations that name keys are answered from the key index
//! ```
//!
//! The shard is a deterministic state machine: ordered operations and decisions in, effects out; no threads, no clock,
//! no I/O. A table's rows lie in segments, each of one key range. A cursor cycles over the segments of each table that
//! has riders. An operation joins at a segment boundary, in `Ts` order, and leaves after one revolution; at each
//! segment, the riders are applied in `Ts` order. So for every single row the operations are applied in `Ts` order
//! (a new version stays in its predecessor's segment), although no two rows need be at the same `Ts` at one time.
//!
//! Three things go out of turn, and the first two make sure that nobody can tell:
//! - *Inserts* and *point operations* (whose predicate fixes the primary key) act when they are admitted. Riding writes
//!   that have not reached the rows they meet are applied to those rows first. That is idempotent: when such a write
//!   comes to the row's segment later, it does not see the version that it has itself ended.
//! - *Undecided* writes: versions that wait for a decision are visible to nobody behind them. An operation that
//!   meets one waits for that row alone, in a queue that is worked off in `Ts` order after the decision; and so it does
//!   where a write waits already after which the row may meet its predicate. A write that may
//!   fail is undecided until the end of its own revolution, even if no other shard has a say.
//! - *Definitions* (create, drop) act at once.
//!
//! Where rows are still being received, operations wait while those behind them go on with the rows that are there. Such a
//! *late* operation joins behind later ones that have left its ranges alone: for every single row the order is the same.
//!
//! Rows that were staged come piece by piece ([`Shard::supply`]), so that a large INSERT needs little memory besides
//! what it inserts and riders go on between the pieces; nothing is admitted before the last piece is in.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, mpsc},
};

use arrow::{array::ArrayRef, record_batch::RecordBatch};

use crate::{
    aggregate::Group,
    encoding::{Encoder, Encoding},
    error::{Result, SqlError, SqlState},
    given_up::GivenUp,
    install::Installing,
    operation::{Decision, Effect, InsertRows, OperationKind, OrderedOperation, RowBatch, Ts},
    pack::{Blocks, Made, Packer, Packing},
    pieces::{self, Piece},
    position::{KeyRange, Position},
    precut::Precut,
    preparation::Work,
    primary_key::Address,
    queue::Deferred,
    recut::Recut,
    rider::Rider,
    riders::{Ride, Riders, bit},
    schema::{TableId, TableSchema},
    statistics::TableStatistics,
    table::{RowKeys, Table, Visit, shard_of},
};

/// What can be set of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rows after which a segment takes no more inserted rows. (New versions always stay in their segment.)
    pub segment_rows: usize,
    /// Tests of one column of 16-bit codes from which one pass over it, joining it with all of them, costs less than
    /// comparing it with each; the number for other widths follows from it.
    pub probe_together: usize,
    /// A test is selective, and its rows are listed, when at most one row in so many meets it.
    pub selective_share: usize,
    /// Passes over a column of a segment that take as long as it takes to put its rows in the order of their codes: when
    /// the column has been asked for rows so often, that is done.
    pub passes_to_order: usize,
    /// Encoded rows of a segment from which they are put to their groups by codes rather than by values.
    pub group_by_code: usize,
    /// Cells of columns that are compacted at a time, between two visits; a column is not divided.
    pub compact_cells: usize,
    /// Cells of the columns of a block that are gathered at a time, between two visits, and twice as many as are hashed; one that
    /// has to be encoded counts as sixteen, and a column is not divided.
    pub block_cells: usize,
    /// Keys that are hashed at a time, of received rows or where key ranges are to be cut, or entered into the index.
    pub keys_together: usize,
    /// An operation waits one by one for so many rows of a segment that are in doubt; where there are more, it waits at the
    /// segment, and so does, behind a write, whoever comes there later.
    pub rows_in_doubt: usize,
    /// Rows that are received in a block become a segment of their own, unless they are fewer than one in so many of
    /// `segment_rows`: to add them to others takes long, and each segment takes some time at every revolution. Segments are cut in
    /// halves again and again: it should be no power of two, lest chance decides about each of many parts that are as large.
    pub small_part: usize,
    /// Rows that are not encoded which make a block, or are added to a segment out of one, at a time, between two visits.
    pub plain_rows: usize,
    /// The most rows in a batch of an answer. As many are sent before the end of a revolution.
    pub batch_rows: usize,
    /// The most bytes that rows and the groups of reads under way should take together, if there is a limit. Rows are
    /// admitted by somebody else, before they are ordered; a read whose groups do not fit fails with 53200. An eighth is
    /// left to groups in any case, so that reads go on when rows take everything.
    pub memory_bytes: Option<usize>,
}

impl Options {
    /// How many rows are added to groups before these are weighed: enough to look at what a code stands for once for all of
    /// them.
    pub(crate) fn rows_together(&self) -> usize {
        self.batch_rows.max(1) * 32
    }

    /// Cells that are added to a content hash at a time.
    pub(crate) fn cells_hashed_together(&self) -> usize {
        (self.block_cells / 2).max(1)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_rows: 1 << 18,
            probe_together: 10,
            selective_share: 256,
            passes_to_order: 16,
            group_by_code: 64,
            compact_cells: 1 << 17,
            block_cells: 1 << 20,
            keys_together: 1 << 15,
            rows_in_doubt: 64,
            small_part: 20,
            plain_rows: 1 << 12,
            batch_rows: 512,
            memory_bytes: None,
        }
    }
}

/// After so many visits there is time for what nobody waits for, however many segments there are.
pub(crate) const MOST_VISITED: usize = 64;

/// Operations ahead of the one that ends for which memory is fetched.
pub(crate) const RIDERS_AHEAD: usize = 4;

/// Whether there is more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call again.
    Busy,
    /// Nothing to do until something is submitted or decided, or comes back from whoever does some of the work.
    Idle,
}

/// One scan thread's share of a storage process.
#[derive(Debug)]
pub struct Shard {
    pub(crate) index: u32,
    pub(crate) shards: u32,
    pub(crate) pieces: Vec<Piece>,
    /// The ranges that operations name now: each is one piece or several.
    pub(crate) held: Vec<KeyRange>,
    options: Options,
    /// Ordered: what walks them has to be a function of the history.
    pub(crate) tables: BTreeMap<TableId, Box<Table>>,
    /// Operations that have been admitted and are not finished.
    pub(crate) riders: Riders,
    pub(crate) inbox: VecDeque<OrderedOperation>,
    /// Changes of the pieces that wait for the operations before them.
    pub(crate) recuts: VecDeque<Recut>,
    /// When the last of them was made.
    pub(crate) recut_at: Ts,
    submitted: Ts,
    /// The last one that was late.
    submitted_late: Ts,
    /// Nobody asks for a prefix before this.
    pub(crate) horizon: Ts,
    /// The INSERT that was admitted last, if not all its rows have come.
    pub(crate) filling: Option<Ts>,
    /// Pieces of staged rows by their INSERT, the last one marked.
    supplies: BTreeMap<Ts, VecDeque<(Arc<RowBatch>, bool)>>,
    /// What was taken last of rows that others have sent.
    pub(crate) installing: Option<Installing>,
    /// Content hashes of what has been taken before, until somebody asks.
    pub(crate) received: BTreeMap<(TableId, KeyRange), u128>,
    /// What is cut before the next change of the key ranges.
    pub(crate) precut: Option<Precut>,
    /// Where that has been lately, the last one last.
    pub(crate) precut_at: Vec<Position>,
    /// It is the turn of a table's segments that become one.
    pub(crate) join_due: Option<TableId>,
    /// Decisions that came before their operation.
    early: BTreeMap<Ts, Decision>,
    /// Tables with riders, next first.
    pub(crate) rotation: VecDeque<TableId>,
    /// Reads that have found all of their rows, which are hashed or made blocks of: some at a time, between visits.
    worked_off: VecDeque<Ts>,
    /// Who packs these blocks.
    packer: Packer,
    /// Who encodes columns, if it is not the shard.
    encoder: Option<mpsc::Sender<Box<Encoding>>>,
    given_up: GivenUp,
    /// Visits since some was done for them.
    visited: usize,
    /// Rows whose decision has been made and that others may wait for.
    pub(crate) decided: VecDeque<(TableId, Address)>,
    revolutions: u64,
    visits: u64,
}

impl Shard {
    /// Shard `index` of the `shards` of a process that holds these key ranges.
    ///
    /// # Panics
    /// When `index` is not below `shards`.
    pub fn new(index: u32, shards: u32, ranges: Vec<KeyRange>, options: Options) -> Shard {
        assert!(index < shards, "a shard's index is below the number of shards");
        let pieces = ranges.iter().map(|range| Piece::new(*range, Ts::ZERO)).collect();
        Shard {
            index,
            shards,
            pieces,
            held: ranges,
            options,
            tables: BTreeMap::new(),
            riders: Riders::default(),
            inbox: VecDeque::new(),
            recuts: VecDeque::new(),
            recut_at: Ts::ZERO,
            horizon: Ts::ZERO,
            submitted: Ts::ZERO,
            submitted_late: Ts::ZERO,
            filling: None,
            supplies: BTreeMap::new(),
            installing: None,
            received: BTreeMap::new(),
            precut: None,
            precut_at: Vec::new(),
            join_due: None,
            early: BTreeMap::new(),
            rotation: VecDeque::new(),
            worked_off: VecDeque::new(),
            packer: Packer::default(),
            encoder: None,
            given_up: GivenUp::default(),
            visited: 0,
            decided: VecDeque::new(),
            revolutions: 0,
            visits: 0,
        }
    }

    /// The key ranges that the shard holds its share of, as operations name them.
    pub fn ranges(&self) -> &[KeyRange] {
        &self.held
    }

    /// Hands over the next operation; it joins at the next segment boundary.
    ///
    /// # Panics
    /// When its `Ts` is not above those of all operations submitted before, or of those that were late if it is.
    pub fn submit(&mut self, operation: OrderedOperation) {
        self.install_for(&operation.ranges);
        if operation.late {
            assert!(
                operation.ts > self.submitted_late,
                "late operations are submitted in the order of their Ts"
            );
            self.submitted_late = operation.ts;
        } else {
            self.advance_to(operation.ts);
        }
        self.inbox.push_back(operation);
    }

    pub(crate) fn advance_to(&mut self, ts: Ts) {
        assert!(ts > self.submitted, "operations are submitted in the order of their Ts");
        self.submitted = ts;
    }

    /// Gives the next piece of an INSERT's staged rows to the shard, which says [`Effect::Took`] when it does not need
    /// the piece any more. The INSERT has been submitted; the last piece is marked, and there is at least one, though it
    /// may be [`RowBatch::empty`]. After the INSERT has been executed, pieces are ignored.
    pub fn supply(&mut self, ts: Ts, rows: Arc<RowBatch>, last: bool, effects: &mut Vec<Effect>) {
        if self.filling == Some(ts) || self.inbox.iter().any(|operation| operation.ts == ts) {
            self.supplies.entry(ts).or_default().push_back((rows, last));
        } else {
            effects.push(Effect::Took { ts });
        }
    }

    /// Inserts staged rows, or admits waiting operations; then visits one segment with all operations that ride past
    /// it.
    pub fn step(&mut self, effects: &mut Vec<Effect>) -> Progress {
        let progress = self.work(effects);
        self.measure_changed();
        progress
    }

    fn measure_changed(&mut self) {
        self.tables.values_mut().for_each(|table| table.measure_changed());
    }

    fn work(&mut self, effects: &mut Vec<Effect>) -> Progress {
        if let Some(ts) = self.filling {
            self.fill(ts, effects);
            self.drain(effects);
        }
        self.precut_some(effects);
        self.join_if_due();
        let is_held_up = self.is_held_up();
        while !is_held_up
            && self.filling.is_none()
            && let Some(operation) = self.next_operation(effects)
        {
            let is_large = matches!(&operation.operation.kind, OperationKind::Insert(insert)
                if matches!(&insert.rows, InsertRows::Inline(batch) if batch.positions.len() > 1024));
            let ts = operation.ts;
            self.admit(operation, effects);
            if self.filling != Some(ts) {
                // It was refused or aborted before its rows came.
                self.forget_supplies(ts, effects);
            }
            self.drain(effects);
            if is_large {
                return Progress::Busy;
            }
        }
        self.resume_for_recut();
        if let Some(id) = self.rotation.pop_front() {
            self.visit_next(id, effects);
            self.visited += 1;
            let rides = self.tables.get(&id).is_some_and(|table| !table.riding.is_empty());
            if rides && !self.rotation.contains(&id) {
                self.rotation.push_back(id);
            }
            self.drain(effects);
        }
        if !self.worked_off.is_empty() && self.take_time() {
            self.work_some_off(effects);
        }
        // One that has failed meanwhile is supplied no more, and others wait for its place.
        let can_fill = |ts: Ts| self.supplies.contains_key(&ts) || self.riders.get(ts).is_none();
        let can_fill = self.filling.is_some_and(can_fill);
        let can_recut = self.recut_is_next() && self.is_quiet();
        // It waits for staged rows that have not come.
        let is_due = self.join_due.is_some() || self.precut.as_ref().is_some_and(Precut::is_due);
        let waits_for_rows = self.filling.is_some() && is_due;
        let is_precut = self.precut.is_none() || waits_for_rows || self.precut_waits();
        let is_joined = self.join_due.is_none() || waits_for_rows;
        let is_done = self.rotation.is_empty() && self.worked_off.is_empty() && is_precut && is_joined;
        let is_idle = is_done && !can_fill && !can_recut;
        if is_idle { Progress::Idle } else { Progress::Busy }
    }

    /// Whether rows are about to change their segment, and nobody begins a revolution before they have.
    fn is_held_up(&self) -> bool {
        self.is_held_up_by_join() || self.precut.as_ref().is_some_and(Precut::holds_up)
    }

    /// Whether reads have found all of their rows and are not done with them. What nobody waits for had better wait for that.
    pub fn is_working_off(&self) -> bool {
        !self.worked_off.is_empty() || self.packer.is_waited_for()
    }

    /// Lets somebody else pack the blocks that reads ask for: when the rows of one have been gathered, it goes there and comes
    /// back by [`Shard::packed`]. Without that the shard packs them itself, and so it does when nobody takes them.
    pub fn pack_elsewhere(&mut self, packer: mpsc::Sender<Box<Packing>>) {
        self.packer.leave_it_to(packer);
    }

    /// Lets somebody else encode the columns of segments that are compacted, cut or full: a copy of one goes there and comes back by
    /// [`Shard::encoded`]. Without that the shard encodes them itself, and so it does when nobody takes them.
    pub fn encode_elsewhere(&mut self, encoder: mpsc::Sender<Box<Encoding>>) {
        self.tables.values_mut().for_each(|table| table.encoder = Encoder::new(Some(encoder.clone())));
        self.encoder = Some(encoder);
    }

    /// Takes a column back; one that is of no use any more is dropped.
    pub fn encoded(&mut self, encoding: Encoding) {
        let (id, slots) = (encoding.table(), encoding.slots().to_vec());
        let encoding = self.take_cut(encoding);
        let Some(table) = self.tables.get_mut(&id) else { return };
        table.encoder.take_back();
        let encoding = encoding.and_then(|encoding| table.take_compacted(encoding));
        let encoding = encoding.and_then(|encoding| table.take_joined(encoding));
        drop(encoding.and_then(|encoding| table.take_full(encoding)));
        // What it had in common with the copy was counted in halves.
        let segments = table.segments.len();
        slots.into_iter().filter(|slot| (*slot as usize) < segments).for_each(|slot| table.measure(slot));
    }

    /// Where others say, while the shard is busy, that it will be told to [cancel](Shard::cancel) a read.
    pub fn given_up(&self) -> GivenUp {
        self.given_up.clone()
    }

    /// Takes a block back, however much of which has been packed.
    pub fn packed(&mut self, packing: Packing, effects: &mut Vec<Effect>) {
        self.packer.take_back();
        let ts = packing.ts();
        let Some(mut rider) = self.riders.take(ts) else { return };
        self.packer.send(packing, &mut rider, effects);
        self.riders.put_back(rider);
        self.finish(ts, effects);
    }

    /// Whether it is time to do some of what nobody waits for: nobody rides, or those who ride have come around since the last
    /// time. It takes longer than to visit a segment: if some were done at each, a revolution would take many times as long.
    pub fn take_time(&mut self) -> bool {
        let tables = self.rotation.iter().filter_map(|id| self.tables.get(id));
        let visited = tables.flat_map(|table| &table.segments).filter(|segment| segment.rows > 0);
        let is_time = self.visited >= visited.take(MOST_VISITED).count();
        if is_time {
            self.visited = 0;
        }
        is_time
    }

    /// Makes some of a block of the rows of a read that has found all of them, or else hashes some: whoever receives blocks
    /// has something to do with them meanwhile.
    fn work_some_off(&mut self, effects: &mut Vec<Effect>) {
        let makes_blocks =
            |ts: &Ts| self.riders.get(*ts).is_some_and(|rider| matches!(rider.work, Work::Blocks(_)));
        let next = self.worked_off.iter().position(makes_blocks).unwrap_or(0);
        let Some(ts) = self.worked_off.remove(next) else { return };
        let Some(mut rider) = self.riders.take(ts) else { return };
        let made = match self.tables.get(&rider.table) {
            Some(table) if matches!(rider.work, Work::Blocks(_)) => {
                table.make_blocks(&mut rider, &mut self.packer, effects)
            }
            Some(table) if !table.hash_found(&mut rider) => Made::Some,
            _ => Made::All,
        };
        if let Work::Blocks(blocks) = &mut rider.work {
            blocks.is_queued = made == Made::Some;
        }
        self.riders.put_back(rider);
        match made {
            // Others first.
            Made::Some => self.worked_off.push_back(ts),
            Made::AllThatMayBe => {}
            Made::All => self.finish(ts, effects),
        }
    }

    /// Inserts the next piece of staged rows.
    fn fill(&mut self, ts: Ts, effects: &mut Vec<Effect>) {
        let Some(mut rider) = self.riders.take(ts) else {
            // It has failed, or was aborted.
            self.filling = None;
            self.forget_supplies(ts, effects);
            return;
        };
        let piece = self.supplies.get_mut(&ts).and_then(VecDeque::pop_front);
        if self.supplies.get(&ts).is_some_and(VecDeque::is_empty) {
            self.supplies.remove(&ts);
        }
        if let Some((rows, last)) = piece {
            if !rows.positions.is_empty()
                && let Some(mut table) = self.tables.remove(&rider.table)
            {
                self.insert(&mut table, &mut rider, &rows, effects);
                self.tables.insert(rider.table, table);
            }
            effects.push(Effect::Took { ts });
            if last {
                rider.filling = false;
                self.filling = None;
            }
        }
        self.riders.put_back(rider);
        self.finish(ts, effects);
    }

    fn forget_supplies(&mut self, ts: Ts, effects: &mut Vec<Effect>) {
        let pieces = self.supplies.remove(&ts).unwrap_or_default();
        effects.extend(pieces.into_iter().map(|_| Effect::Took { ts }));
    }

    /// Tells how an undecided write ended. May come at any time after the write has been ordered, even before it is
    /// submitted; a decision about a write that is not undecided is ignored.
    pub fn decide(&mut self, ts: Ts, decision: Decision, effects: &mut Vec<Effect>) {
        match self.riders.get(ts) {
            Some(rider) if rider.awaits_decision => self.settle_decided(ts, decision, effects),
            Some(_) => {}
            None if ts > self.submitted || self.inbox.iter().any(|operation| operation.ts == ts) => {
                self.early.insert(ts, decision);
            }
            None => {}
        }
        self.drain(effects);
        self.measure_changed();
    }

    /// Lets a read send more batches of its answer, see [`OrderedOperation::window`]. A read that has paused goes on
    /// with the segment where it stopped, when the scan comes there. Ignored when the read has ended.
    pub fn allow(&mut self, ts: Ts, batches: u32, effects: &mut Vec<Effect>) {
        let Some(mut rider) = self.riders.take(ts) else { return };
        if let Some(table) = self.tables.get_mut(&rider.table) {
            table.allow(&mut rider, batches, effects);
            if !rider.is_blocked(self.options.batch_rows)
                && let Some(ride) = table.take_paused(ts)
            {
                if table.riding.is_empty() {
                    self.rotation.push_back(rider.table);
                }
                table.resume(ride);
            }
        }
        self.riders.put_back(rider);
        self.finish(ts, effects);
    }

    /// Ends a read whose answer nobody wants any more; it is executed with what it has counted so far. Writes are not
    /// cancelled: what is ordered takes effect.
    pub fn cancel(&mut self, ts: Ts, effects: &mut Vec<Effect>) {
        self.given_up.forget(ts);
        let is_it = |o: &OrderedOperation| o.ts == ts && !o.operation.kind.is_write();
        if let Some(index) = self.inbox.iter().position(is_it)
            && let Some(operation) = self.inbox.remove(index)
        {
            let outcomes = operation.ranges.into_iter().map(|range| (range, Ok(0))).collect();
            return effects.push(Effect::Executed { ts, outcomes });
        }
        if self.riders.get(ts).is_some_and(|rider| !rider.is_write)
            && let Some(rider) = self.riders.take(ts)
        {
            effects.push(Effect::Executed { ts, outcomes: rider.outcomes() });
            self.leave(&rider);
        }
    }

    /// Frees versions that ended before `horizon`: nobody will ask for a prefix below it any more; then makes one of several
    /// small segments. Looks at a bounded amount of data, so that a segment may take many calls; `Busy` means that there was
    /// something to do and may be more, `Idle` also that a column or a step has to come first.
    pub fn collect_garbage(&mut self, horizon: Ts) -> Progress {
        if self.install_more() {
            return Progress::Busy;
        }
        let oldest = self.riders.horizon();
        let queued = self.inbox.iter().map(|o| o.read_ts.min(o.ts)).min().unwrap_or(Ts::INFINITY);
        let horizon = horizon.min(oldest).min(queued);
        let has_advanced = std::mem::replace(&mut self.horizon, horizon) < horizon;
        if has_advanced
            && self.packer.keeps_memory()
            && !self.riders.iter_mut().any(|rider| matches!(rider.work, Work::Blocks(_)))
        {
            // Nobody waits for rows as they were before: there will be no such reads for now.
            self.packer.rest();
        }
        if self.drop_pieces() {
            return Progress::Busy;
        }
        // One segment is compacted at a time.
        let mut ids: Vec<(bool, TableId)> =
            self.tables.iter().map(|(id, table)| (!table.is_compacting(), *id)).collect();
        ids.sort_unstable();
        for (_, id) in ids {
            let Some(table) = self.tables.get_mut(&id) else { continue };
            let may_begin = self.precut.is_none() || table.is_compacting();
            if may_begin && table.collect_garbage(horizon, &mut self.riders) {
                return Progress::Busy;
            }
            if table.waits_for_a_column() {
                return Progress::Idle;
            }
        }
        self.join_some()
    }

    /// How often the scan has gone round a table.
    pub fn revolutions(&self) -> u64 {
        self.revolutions
    }

    /// How many segments the scan has visited with operations that act on them.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// How many segments have rows.
    pub fn segments(&self) -> usize {
        let segments = self.tables.values().flat_map(|table| &table.segments);
        segments.filter(|segment| segment.rows > 0).count()
    }

    /// How often the rows of an operation have been looked for in a segment. Of reads with the same predicate that see the
    /// same versions there, one looks; those for blocks or content hashes all do.
    pub fn searches(&self) -> u64 {
        self.tables.values().map(|table| table.searches).sum()
    }

    /// Operations that have been admitted and are not finished.
    pub fn riding(&self) -> usize {
        self.riders.len()
    }

    /// Logical size of the rows, their versions and keys in bytes, and of the groups of reads under way.
    pub fn memory(&self) -> usize {
        let tables = self.tables.values().map(|table| table.size() + table.groups_size).sum::<usize>();
        tables + self.cutting_size()
    }

    /// What is known of the tables' rows, in the order of the tables.
    pub fn statistics(&self) -> Vec<TableStatistics> {
        self.tables.values().filter(|table| !table.dropped).map(|table| table.statistics()).collect()
    }

    /// What the groups of a table's reads may take now, while it is taken out.
    fn room_for_groups(&self, table: &Table) -> usize {
        let Some(limit) = self.options.memory_bytes else { return usize::MAX };
        let others: usize = self.tables.values().map(|other| other.groups_size).sum();
        let rows = self.memory() - others + table.size();
        limit.saturating_sub(rows).max(limit / 8).saturating_sub(others)
    }

    /// Logical size of one table in bytes, by part: its columns by name, then their versions, the key index,
    /// and the columns that are being made beside them.
    pub fn memory_by_part(&self, table: TableId) -> Vec<(String, usize)> {
        self.tables.get(&table).map_or(Vec::new(), |table| table.size_by_part())
    }

    /// Number of rows of a table that have not ended, undecided ones included.
    pub fn rows(&self, table: TableId) -> usize {
        self.tables.get(&table).map_or(0, |table| table.live_rows())
    }

    /// The tables that exist here.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableSchema>> {
        self.tables.values().filter(|table| !table.dropped).map(|table| &table.schema)
    }

    /// Whether operations are on their way, or wait for decisions, or segments are to be cut.
    pub fn is_idle(&self) -> bool {
        let nothing_comes = self.inbox.is_empty() && self.recuts.is_empty() && self.precut.is_none();
        nothing_comes && self.riders.is_empty()
    }

    /// Makes room for a table when a checkpoint is loaded, as its `CreateTable` did.
    pub fn restore_table(&mut self, schema: Arc<TableSchema>) {
        let (ranges, options, encoder) = (self.pieces.len(), self.options, self.encoder.clone());
        self.tables
            .entry(schema.id)
            .or_insert_with(|| Box::new(Table::new(schema, ranges, options, Encoder::new(encoder))));
    }

    /// Loads rows in the table's Arrow schema: those that belong to this shard are taken, the others left to the other
    /// shards. They begin at `begin`. Positions are computed here.
    pub fn restore(&mut self, table: TableId, rows: &RecordBatch, begin: Ts) -> Result<()> {
        let Some(table) = self.tables.get_mut(&table) else {
            return Err(SqlError::internal("rows of a table that has not been restored"));
        };
        check_layout(&table.schema, rows)?;
        let positions = table.schema.partitioning.positions(&table.schema.columns, rows);
        let keys = RowKeys::new(&table.schema, rows.columns(), rows.num_rows());
        for (range, own) in own_rows(&self.pieces, &positions, &keys, self.index, self.shards, None) {
            table.restore(range, rows, &own, begin);
        }
        table.measure_changed();
        Ok(())
    }

    /// Whether a row belongs to this shard is a function of its key alone, independent of its ring position.
    pub(crate) fn own_rows(
        &self,
        positions: &[Position],
        keys: &RowKeys,
        rider: &Rider,
    ) -> Vec<(usize, Vec<u32>)> {
        own_rows(&self.pieces, positions, keys, self.index, self.shards, Some(rider))
    }

    fn admit(&mut self, ordered: OrderedOperation, effects: &mut Vec<Effect>) {
        let early = self.early.remove(&ordered.ts);
        let is_to_come = |ts: &Ts| *ts > ordered.ts || self.inbox.iter().any(|other| other.ts == *ts);
        self.early.retain(|ts, _| is_to_come(ts));
        let refuse = |error: SqlError, effects: &mut Vec<Effect>| {
            let outcomes = ordered.ranges.iter().map(|range| (*range, Err(error.clone()))).collect();
            effects.push(Effect::Executed { ts: ordered.ts, outcomes });
        };
        let done = |effects: &mut Vec<Effect>| {
            let outcomes = ordered.ranges.iter().map(|range| (*range, Ok(0))).collect();
            effects.push(Effect::Executed { ts: ordered.ts, outcomes });
        };
        let id = ordered.operation.table;
        if early == Some(Decision::Abort) {
            return done(effects);
        }
        match &ordered.operation.kind {
            OperationKind::CreateTable(schema) => {
                self.restore_table(schema.clone());
                return done(effects);
            }
            OperationKind::DropTable => {
                if let Some(table) = self.tables.get_mut(&id) {
                    table.dropped = true;
                }
                self.forget_dropped(id);
                return done(effects);
            }
            _ => {}
        }
        let Some(mut table) = self.tables.remove(&id).filter(|table| !table.dropped) else {
            let error = SqlError::new(SqlState::UNDEFINED_TABLE, "the table does not exist");
            return refuse(error, effects);
        };
        let elsewhere = || SqlError::internal("an operation on a key range that the shard does not hold");
        let places = pieces::places(&self.pieces, &ordered).ok_or_else(elsewhere);
        let rider = places.and_then(|places| {
            let prepared =
                ordered.preparation.of(&ordered.operation, &table.schema, &mut table.projections)?;
            Ok(Box::new(Rider::new(&ordered, prepared, places, &self.given_up)))
        });
        let mut rider = match rider {
            Ok(rider) => rider,
            Err(error) => {
                self.tables.insert(id, table);
                return refuse(error, effects);
            }
        };
        self.reach(&rider);
        if early == Some(Decision::Commit) {
            rider.awaits_decision = false;
        }
        if ordered.blocks {
            rider.send_blocks((self.index, self.shards), ordered.window);
        }
        table.active += 1;
        let prepared = rider.prepared.clone();
        match &prepared.keys {
            _ if matches!(rider.work, Work::Insert { .. }) => {
                self.begin_insert(&mut table, &mut rider, effects);
                if rider.filling {
                    self.filling = Some(rider.ts);
                }
            }
            Some(keys) => self.visit_keys(&mut table, &mut rider, keys, effects),
            None if table.segments.is_empty() => {}
            // Nobody waits for a revolution that finds nothing.
            None if rider.is_bulk && !table.has_rows_for(&rider) => {}
            None => {
                if table.riding.is_empty() {
                    self.rotation.push_back(id);
                }
                rider.rides = true;
                table.ride(&mut rider);
            }
        }
        let (ts, rides) = (rider.ts, rider.rides);
        let place = self.riders.insert(rider);
        if rides {
            table.ride_of(ts).place = place;
        }
        self.tables.insert(id, table);
        if !rides {
            self.finish(ts, effects);
        }
    }

    /// Notes how far the pieces are that an operation acts on.
    ///
    /// # Panics
    /// When it is a write of a prefix that has been read.
    fn reach(&mut self, rider: &Rider) {
        for (piece, place) in self.pieces.iter_mut().zip(&rider.place_of_range) {
            if place.is_some() {
                let is_in_order = !rider.is_write || rider.ts >= piece.reached;
                assert!(is_in_order, "a write at {} where {} has been read", rider.ts, piece.reached);
                piece.reached = piece.reached.max(rider.sees.min(rider.ts));
            }
        }
    }

    /// Visits the next segment that one of the table's riders has to see.
    fn visit_next(&mut self, id: TableId, effects: &mut Vec<Effect>) {
        let may_pause = !self.recut_is_next();
        let Some(mut table) = self.tables.remove(&id) else { return };
        table.room_for_groups = self.room_for_groups(&table);
        let mut rides = std::mem::take(&mut table.riding);
        let mut arrived = Vec::new();
        let mut visitors = Vec::with_capacity(rides.len());
        let some_lag = table.paused.iter().chain(&rides).any(|ride| ride.is_write && ride.lags);
        for _ in 0..table.segments.len() {
            let slot = table.cursor % table.segments.len();
            table.cursor = (slot + 1) % table.segments.len();
            self.revolutions += u64::from(table.cursor == 0);
            let range = bit(table.segments[slot].range);
            visitors.clear();
            let lagging =
                some_lag.then(|| first_lagging(&table.paused, &rides, slot as u32, range)).flatten();
            let mut pauses = false;
            for (index, ride) in rides.iter_mut().enumerate() {
                if !ride.is_next(slot as u32) {
                    continue;
                }
                let acts = ride.ranges & range != 0;
                match lagging {
                    Some(first) if acts && first.ts < ride.sees => {
                        ride.lags = true;
                        if first.is_paused && may_pause {
                            ride.pause_in_doubt();
                            pauses = true;
                        }
                    }
                    _ => {
                        ride.step();
                        if acts {
                            visitors.push(index as u32);
                        }
                    }
                }
            }
            let visited = !visitors.is_empty() && table.segments[slot].rows > 0;
            if visited {
                self.visits += 1;
                pauses |=
                    table.visit(slot as u32, &mut rides, &visitors, &mut self.riders, may_pause, effects);
            }
            if pauses && may_pause {
                table.paused.extend(rides.extract_if(.., |ride| ride.paused && ride.left > 0));
            }
            let done: Vec<Ride> = rides.extract_if(.., |ride| ride.left == 0).collect();
            for (at, ride) in done.iter().enumerate() {
                if let Some(ride) = done.get(at + RIDERS_AHEAD) {
                    table.tests.fetch_all(&ride.tests);
                    self.riders.fetch(ride.place);
                }
                arrived.push((ride.ts, ride.place));
                table.leave(ride);
                if let Some(rider) = self.riders.at(ride.place) {
                    rider.rides = false;
                }
            }
            if visited || rides.is_empty() {
                break;
            }
        }
        table.riding = rides;
        table.send_together(&arrived, &mut self.riders, effects);
        self.tables.insert(id, table);
        for (at, (ts, _)) in arrived.iter().enumerate() {
            if let Some((_, place)) = arrived.get(at + RIDERS_AHEAD) {
                self.riders.fetch(*place);
            }
            self.finish(*ts, effects);
        }
    }

    /// Applies the riding writes before `before` to one row that they have not reached yet; whether there were any.
    pub(crate) fn fast_forward(
        &mut self,
        table: &mut Table,
        address: Address,
        before: Ts,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if table.writes_riding == 0 {
            return false;
        }
        let range = table.segments[address.slot as usize].range;
        let riding = table.riding.iter().take_while(|ride| ride.ts < before);
        let mut pending: Vec<Ts> = riding
            .chain(table.paused.iter().filter(|ride| ride.ts < before))
            .filter(|ride| ride.is_write && ride.has_ahead(address.slot) && ride.ranges & bit(range) != 0)
            .map(|ride| ride.ts)
            .filter(|ts| self.riders.get(*ts).is_some_and(|rider| rider.acts_on(range)))
            .collect();
        pending.sort_unstable();
        let are_some = !pending.is_empty();
        for ts in pending {
            let Some(mut rider) = self.riders.take(ts) else { continue };
            if let Visit::Waits(root) = table.visit_row(&mut rider, address.slot, address.row, effects) {
                table.defer(&mut rider, Address { slot: address.slot, row: root }, None);
            }
            self.riders.put_back(rider);
        }
        are_some
    }

    /// Reports an operation that has nothing more to do.
    pub(crate) fn finish(&mut self, ts: Ts, effects: &mut Vec<Effect>) {
        let Some(rider) = self.riders.get(ts) else { return };
        // What fails alone need not wait for the rows it has not seen.
        let gives_up = rider.is_write && !rider.awaits_decision && rider.has_failed();
        if rider.executed || (!gives_up && (rider.rides || rider.waiting > 0 || rider.filling)) {
            return;
        }
        let Some(mut rider) = self.riders.take(ts) else { return };
        if !rider.is_write {
            let has_failed = rider.has_failed();
            let (is_left, is_queued) = match &mut rider.work {
                Work::Hash(hashes) => (hashes.found.len() > 0, false),
                Work::Blocks(blocks) => {
                    (blocks.are_left() && !has_failed, std::mem::replace(&mut blocks.is_queued, true))
                }
                _ => (false, false),
            };
            if is_left && !is_queued {
                self.worked_off.push_back(ts);
            }
            if is_left {
                return self.riders.put_back(rider);
            }
            let table = self.tables.get(&rider.table);
            if !table.is_none_or(|table| table.send_found(&mut rider, effects)) {
                // It ends when it may send the rest.
                return self.riders.put_back(rider);
            }
            report_read(&mut rider, effects);
        }
        rider.executed = true;
        if rider.awaits_decision {
            effects.push(Effect::Executed { ts, outcomes: rider.outcomes() });
            self.riders.put_back(rider);
            return;
        }
        // Alone it fails as a whole: ranges without an error may be unfinished.
        if let Some(error) = rider.ranges.iter().find_map(|range| range.outcome.as_ref().err().cloned()) {
            rider.fail_everywhere(&error);
        }
        let commit = !rider.has_failed();
        self.settle(&mut rider, commit);
        effects.push(Effect::Executed { ts, outcomes: rider.outcomes() });
        self.leave(&rider);
    }

    fn settle_decided(&mut self, ts: Ts, decision: Decision, effects: &mut Vec<Effect>) {
        let Some(mut rider) = self.riders.take(ts) else { return };
        self.settle(&mut rider, decision == Decision::Commit);
        rider.awaits_decision = false;
        match (decision, rider.executed) {
            (_, true) => self.leave(&rider),
            (Decision::Abort, false) => {
                // What it has still to do does not matter any more.
                effects.push(Effect::Executed { ts, outcomes: rider.outcomes() });
                self.leave(&rider);
            }
            (Decision::Commit, false) => {
                self.riders.put_back(rider);
                self.finish(ts, effects);
            }
        }
    }

    fn settle(&mut self, rider: &mut Rider, commit: bool) {
        let Some(table) = self.tables.get_mut(&rider.table) else { return };
        let waited_for = table.settle(rider, commit);
        self.decided.extend(waited_for.into_iter().map(|address| (rider.table, address)));
        if table.resume_in_doubt() && !self.rotation.contains(&rider.table) {
            self.rotation.push_back(rider.table);
        }
    }

    /// Forgets an operation that is done.
    pub(crate) fn leave(&mut self, rider: &Rider) {
        self.riders.remove(rider.ts);
        if let Some(table) = self.tables.get_mut(&rider.table) {
            table.active -= 1;
            table.groups_size -= rider.groups_size;
            if rider.rides {
                let riding = table.riding.binary_search_by_key(&rider.ts, |ride| ride.ts);
                let ride = match riding {
                    Ok(index) => Some(table.riding.remove(index)),
                    Err(_) => table.take_paused(rider.ts),
                };
                if let Some(ride) = ride {
                    table.leave(&ride);
                }
            }
            if table.riding.is_empty() {
                self.rotation.retain(|id| *id != rider.table);
            }
        }
        self.forget_dropped(rider.table);
    }

    fn forget_dropped(&mut self, id: TableId) {
        if self.tables.get(&id).is_some_and(|table| table.dropped && table.active == 0) {
            self.tables.remove(&id);
        }
    }

    /// Works off the queues of rows that have been decided.
    fn drain(&mut self, effects: &mut Vec<Effect>) {
        while let Some((id, root)) = self.decided.pop_front() {
            let Some(mut table) = self.tables.remove(&id) else { continue };
            let progressed = self.drain_row(&mut table, root, effects);
            self.tables.insert(id, table);
            for ts in progressed {
                self.finish(ts, effects);
            }
        }
    }

    /// Lets the operations that wait for a row go on, in the order of what they see, as far as they can; returns them.
    fn drain_row(&mut self, table: &mut Table, root: Address, effects: &mut Vec<Effect>) -> Vec<Ts> {
        let mut progressed = Vec::new();
        let Some(mut queue) = table.segments[root.slot as usize].queues.remove(root.row) else {
            return progressed;
        };
        while let Some((lane, place, deferred)) = queue.pop() {
            let (_, ts) = place;
            // It may have failed or been aborted meanwhile.
            let Some(mut rider) = self.riders.take(ts) else { continue };
            let rest = self.resume(table, &mut rider, root, deferred, effects);
            self.riders.put_back(rider);
            let Some((root, rest)) = rest else {
                self.has_waited(ts);
                progressed.push(ts);
                continue;
            };
            let queues = &mut table.segments[root.slot as usize].queues;
            if !queues.push(root.row, lane, place, rest) {
                self.has_waited(ts);
            }
            queues.take_over(root.row, lane, &mut queue).into_iter().for_each(|ts| self.has_waited(ts));
        }
        progressed
    }

    /// An operation waits for a row less.
    fn has_waited(&mut self, ts: Ts) {
        if let Some(rider) = self.riders.get_mut(ts) {
            rider.waiting -= 1;
        }
    }

    fn resume(
        &mut self,
        table: &mut Table,
        rider: &mut Rider,
        root: Address,
        mut deferred: Deferred,
        effects: &mut Vec<Effect>,
    ) -> Option<(Address, Deferred)> {
        if deferred.visit {
            if let Visit::Waits(row) = table.visit_row(rider, root.slot, root.row, effects) {
                return Some((Address { slot: root.slot, row }, deferred));
            }
            deferred.visit = false;
        }
        while let Some(row) = deferred.inserts.front().copied() {
            if let Some(blocked) = self.insert_deferred(table, rider, row, root, effects) {
                return Some((blocked, deferred));
            }
            deferred.inserts.pop_front();
        }
        None
    }
}

/// Bytes of groups, about, that are given out together.
const GROUPS_BYTES: usize = 1 << 20;

/// A write that has yet to come to a segment where others are whose turn it is.
#[derive(Clone, Copy)]
struct Lagging {
    ts: Ts,
    is_paused: bool,
}

/// The first of the writes that have waited and come later to a segment, of a piece with this bit, than those whose turn it is:
/// whoever sees it has to wait. (A read of an older prefix has not: another process may need what it reads before it can vote.)
fn first_lagging(paused: &[Ride], riding: &[Ride], slot: u32, range: u64) -> Option<Lagging> {
    let lags = |ride: &Ride| ride.is_write && ride.lags && ride.ranges & range != 0 && ride.has_ahead(slot);
    let paused = paused.iter().filter(|ride| lags(ride));
    let riding = riding.iter().filter(|ride| lags(ride) && !ride.is_next(slot));
    let paused = paused.map(|ride| Lagging { ts: ride.ts, is_paused: true });
    paused.chain(riding.map(|ride| Lagging { ts: ride.ts, is_paused: false })).min_by_key(|first| first.ts)
}

/// The last effects of a read before its `Executed`.
fn report_read(rider: &mut Rider, effects: &mut Vec<Effect>) {
    if rider.has_failed() {
        return;
    }
    let ts = rider.ts;
    match &mut rider.work {
        Work::Groups { groups, .. } => {
            let parts = parts_of(Arc::make_mut(groups).take());
            effects.extend(parts.into_iter().map(|groups| Effect::Groups { ts, groups }));
        }
        Work::Hash(_) | Work::Blocks(Blocks { hashed: true, .. }) => {
            for range in &rider.ranges {
                effects.push(Effect::ContentHash { ts, range: range.range, hash: range.hash });
            }
        }
        _ => {}
    }
}

/// Groups in parts that travel one by one: nobody wants to hold all of them a second time, in a message. There is always one.
fn parts_of(groups: Vec<Group>) -> Vec<Vec<Group>> {
    let (mut parts, mut bytes) = (vec![Vec::new()], 0);
    for group in groups {
        let more = group.heap_size();
        if bytes > 0 && bytes + more > GROUPS_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(part) = parts.last_mut() {
            part.push(group);
        }
    }
    parts
}

/// Refuses a batch that is not in the table's Arrow schema.
pub(crate) fn check_layout(schema: &TableSchema, rows: &RecordBatch) -> Result<()> {
    let fits = rows.num_columns() == schema.columns.len()
        && rows
            .columns()
            .iter()
            .zip(&schema.columns)
            .all(|(array, column): (&ArrayRef, _)| *array.data_type() == column.ty.arrow());
    if fits { Ok(()) } else { Err(SqlError::internal("rows that are not in the table's layout")) }
}

/// The rows of a batch that belong to a shard, by piece; only the ranges of `rider` if there is one.
fn own_rows(
    pieces: &[Piece],
    positions: &[Position],
    keys: &RowKeys,
    index: u32,
    shards: u32,
    rider: Option<&Rider>,
) -> Vec<(usize, Vec<u32>)> {
    let mut own: Vec<(usize, Vec<u32>)> = (0..pieces.len()).map(|piece| (piece, Vec::new())).collect();
    let mut last = 0;
    for (row, position) in positions.iter().enumerate() {
        if shards > 1 && shard_of(Table::hash(keys.get(row)), shards) != index {
            continue;
        }
        let Some(piece) = pieces::held_at(pieces, *position, last) else { continue };
        last = piece;
        own[last].1.push(row as u32);
    }
    own.retain(|(piece, rows)| !rows.is_empty() && rider.is_none_or(|rider| rider.acts_on(*piece)));
    own
}
