//! One table's rows in one shard, and what is done to them.

use std::{collections::VecDeque, sync::Arc};

use arrow::array::{Array, ArrayRef};
use arrow::record_batch::RecordBatch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    batch_size::in_parts,
    bits::{Picked, Ranks},
    column::Take,
    encoding::{Encoder, Encoding, Number, Spec},
    error::{Result, SqlError, SqlState},
    found::Hashes,
    joining::Joining,
    key::{Blanks, KEY_BYTES, write_cell},
    operation::{Effect, Ts},
    pack::Blocks,
    predicate_index::{Prober, SharedTests, TestId, row_holds},
    preparation::Work,
    primary_key::{Address, KeyIndex},
    projection::Projections,
    recut::NO_PIECE,
    rider::{Change, Rider, check_not_null},
    riders::Ride,
    schema::TableSchema,
    segment::Segment,
    shard::Options,
    sharing::{Classes, Memo},
    statistics::TableStatistics,
};

/// Bytes after which a segment takes no more inserted rows: far below what the offsets of a column can count.
pub(crate) const SEGMENT_BYTES: usize = 128 << 20;

/// Seed of the key hash: other bits than the ring position.
const KEY_SEED: u64 = 0x6b65_7973;

/// One table's share in one shard.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) schema: Arc<TableSchema>,
    pub(crate) segments: Vec<Segment>,
    /// The segment that takes new rows, by key range.
    pub(crate) tails: Vec<Option<u32>>,
    pub(crate) keys: KeyIndex,
    /// Segments that have become full since, the oldest first, with how many of their columns are still to be encoded.
    full: VecDeque<(u32, usize)>,
    /// Somebody else encodes the next column of the first of them.
    full_elsewhere: Option<Number>,
    /// Rows that have been added and for which none of these columns has been encoded.
    unpaid: usize,
    /// Operations on their revolution, by `Ts`.
    pub(crate) riding: Vec<Ride>,
    /// Those that are off the scan: reads that have found more than they may send, until they may, and whoever waits at a
    /// segment until somebody decides about rows there.
    pub(crate) paused: Vec<Ride>,
    /// How many of both are writes.
    pub(crate) writes_riding: usize,
    /// The tests of both.
    pub(crate) tests: SharedTests,
    pub(crate) prober: Prober,
    /// What the reads of both have in common.
    pub(crate) classes: Classes,
    pub(crate) memo: Memo,
    /// How often the rows of an operation have been looked for in a segment.
    pub(crate) searches: u64,
    pub(crate) projections: Projections,
    /// The segment that is visited next.
    pub(crate) cursor: usize,
    /// Operations that are not finished.
    pub(crate) active: usize,
    pub(crate) dropped: bool,
    pub(crate) options: Options,
    pub(crate) segments_size: usize,
    /// Of this, what rows held by code take.
    pub(crate) by_code_size: usize,
    /// Visits since it was begun to put rows in the order of codes.
    pub(crate) since_ordered: usize,
    /// The segment and the column whose rows are being.
    pub(crate) ordering: Option<(u32, usize)>,
    /// What the groups of reads under way take, and what they may.
    pub(crate) groups_size: usize,
    pub(crate) room_for_groups: usize,
    /// Segments that have changed a little since they were measured.
    unmeasured: Vec<u32>,
    /// The segment whose garbage is looked for next, and the one that is being compacted.
    pub(crate) collector: usize,
    pub(crate) compacting: Option<u32>,
    /// Cells that could have been gathered in the time that compaction took longer than it should have.
    pub(crate) owed: usize,
    /// Segments that become one, and how often others are not looked for.
    pub(crate) joining: Option<Box<Joining>>,
    pub(crate) join_rest: usize,
    /// Who encodes columns.
    pub(crate) encoder: Encoder,
}

/// Keys that are gone through in the time that a key is read, hashed and found.
const KEYS_A_SEARCH: usize = 32;
/// Rows of a segment that are numbered in the time that a key is gone through.
const ROWS_A_KEY: usize = 8;

/// What became of an operation's look at one row.
pub(crate) enum Visit {
    Done,
    /// It must wait for the decision about this row.
    Waits(u32),
}

impl Table {
    pub(crate) fn new(schema: Arc<TableSchema>, ranges: usize, options: Options, encoder: Encoder) -> Table {
        Table {
            schema,
            segments: Vec::new(),
            tails: vec![None; ranges],
            full: VecDeque::new(),
            full_elsewhere: None,
            unpaid: 0,
            keys: KeyIndex::default(),
            riding: Vec::new(),
            paused: Vec::new(),
            writes_riding: 0,
            tests: SharedTests::default(),
            prober: Prober::default(),
            classes: Classes::default(),
            memo: Memo::default(),
            searches: 0,
            projections: Projections::default(),
            cursor: 0,
            active: 0,
            dropped: false,
            options,
            groups_size: 0,
            room_for_groups: usize::MAX,
            segments_size: 0,
            by_code_size: 0,
            since_ordered: usize::MAX,
            ordering: None,
            unmeasured: Vec::new(),
            collector: 0,
            compacting: None,
            owed: 0,
            joining: None,
            join_rest: 0,
            encoder,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.segments_size + self.keys.size() + self.copy_size()
    }

    pub(crate) fn statistics(&self) -> TableStatistics {
        let rows = self.live_rows() as u64;
        let distinct = |column: usize| {
            // Also where nothing has been encoded, and while keys follow their rows.
            if self.schema.primary_key == [column] {
                return rows.max(1);
            }
            let values = self.segments.iter().filter_map(|segment| segment.columns[column].base.as_ref());
            values.map(|base| base.distinct()).max().unwrap_or(1)
        };
        TableStatistics {
            table: self.schema.id,
            rows,
            versions: self.segments.iter().map(|segment| segment.rows as u64).sum(),
            bytes: self.size() as u64,
            distinct: (0..self.schema.columns.len()).map(distinct).collect(),
        }
    }

    /// Counts what the groups of a read take, which fails when there is no room for them. Those of a read that has failed
    /// are dropped, so that others find room.
    pub(crate) fn weigh(&mut self, rider: &mut Rider) {
        let Work::Groups { groups, .. } = &rider.work else { return };
        let bytes = groups.bytes();
        self.groups_size -= rider.groups_size;
        rider.groups_size = 0;
        if let Err(error) = self.make_room(bytes) {
            rider.fail_everywhere(&error);
        }
        if let Work::Groups { groups, .. } = &mut rider.work
            && rider.ranges.iter().any(|range| range.outcome.is_err())
        {
            *groups = Arc::new(groups.without_groups());
            return;
        }
        self.groups_size += bytes;
        rider.groups_size = bytes;
    }

    /// 53200 when there is no room for so many bytes more of groups.
    pub(crate) fn make_room(&self, bytes: usize) -> Result<()> {
        let all = self.groups_size + bytes;
        if bytes == 0 || all <= self.room_for_groups {
            return Ok(());
        }
        Err(SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory")
            .with_detail(format!("The groups of reads under way take {all} bytes."))
            .with_hint("Group by less, ask less at a time or raise the memory limit."))
    }

    /// The size by column, then that of versions and keys.
    pub(crate) fn size_by_part(&self) -> Vec<(String, usize)> {
        let columns = self.schema.columns.iter().enumerate().map(|(index, column)| {
            (column.name.clone(), self.segments.iter().map(|segment| segment.columns[index].size()).sum())
        });
        let versions = self.segments.iter().map(Segment::versions_size).sum();
        let others = [("versions", versions), ("keys", self.keys.size()), ("compaction", self.copy_size())];
        columns.chain(others.map(|(name, size)| (name.to_owned(), size))).collect()
    }

    /// Whether some segment is one that an operation has to look at.
    pub(crate) fn has_rows_for(&self, rider: &Rider) -> bool {
        let looks_at =
            |segment: &Segment| segment.rows > 0 && segment.range != NO_PIECE && rider.acts_on(segment.range);
        self.segments.iter().any(looks_at)
    }

    /// Rows that have not ended.
    pub(crate) fn live_rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows - segment.versions.ended()).sum()
    }

    pub(crate) fn measure(&mut self, slot: u32) {
        let (before, after) = self.segments[slot as usize].measure();
        self.segments_size = self.segments_size - before.all + after.all;
        self.by_code_size = self.by_code_size - before.by_code + after.by_code;
    }

    /// Takes a segment that goes out of the sizes.
    pub(crate) fn forget_size(&mut self, segment: &Segment) {
        let size = segment.measured();
        self.segments_size -= size.all;
        self.by_code_size -= size.by_code;
    }

    /// Takes new versions of rows into account as rows of average size: until the segment is measured again, which is when
    /// it is visited or collected next.
    fn assume_growth(&mut self, slot: u32, rows: usize) {
        self.segments_size += self.segments[slot as usize].assume_growth(rows);
    }

    /// Measures a segment at the end of the step: operations that change it together walk its columns once.
    fn measure_later(&mut self, slot: u32) {
        if !self.unmeasured.contains(&slot) {
            self.unmeasured.push(slot);
        }
    }

    /// Measures what has changed.
    pub(crate) fn measure_changed(&mut self) {
        while let Some(slot) = self.unmeasured.pop() {
            self.measure(slot);
        }
    }

    pub(crate) fn has_keys(&self) -> bool {
        !self.schema.primary_key.is_empty()
    }

    /// Indices of the columns that identify a row: the primary key, or the hidden identifier.
    pub(crate) fn identity(schema: &TableSchema) -> Vec<usize> {
        match (schema.primary_key.as_slice(), schema.row_id()) {
            ([], Some(row_id)) => vec![row_id],
            ([], None) => (0..schema.columns.len()).collect(),
            (key, _) => key.to_vec(),
        }
    }

    pub(crate) fn hash(key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, KEY_SEED)
    }

    /// Lets an operation ride, from the segment that is visited next.
    pub(crate) fn ride(&mut self, rider: &mut Rider) {
        let slots = self.segments.len();
        let context = &rider.operation.context;
        let shared = &mut self.tests;
        let mut join = |test| shared.join(test, context, rider.ts, &rider.interest);
        let tests: Box<[TestId]> = rider.prepared.tests.iter().map(&mut join).collect();
        let class = self.classes.join(rider, &tests);
        self.writes_riding += usize::from(rider.is_write);
        self.join(Ride::new(rider, tests, class, (self.cursor % slots) as u32, slots as u32));
    }

    /// Adds a ride in the order of `Ts`.
    fn join(&mut self, ride: Ride) {
        let index = match self.riding.last() {
            Some(last) if last.ts > ride.ts => self.riding.partition_point(|other| other.ts < ride.ts),
            _ => self.riding.len(),
        };
        self.riding.insert(index, ride);
    }

    /// The ride of an operation that rides.
    pub(crate) fn ride_of(&mut self, ts: Ts) -> &mut Ride {
        let index = self.riding.partition_point(|ride| ride.ts < ts);
        &mut self.riding[index]
    }

    /// Takes an operation from those that have paused.
    pub(crate) fn take_paused(&mut self, ts: Ts) -> Option<Ride> {
        let index = self.paused.iter().position(|ride| ride.ts == ts)?;
        Some(self.paused.swap_remove(index))
    }

    /// Lets an operation go on that has paused.
    pub(crate) fn resume(&mut self, mut ride: Ride) {
        (ride.paused, ride.in_doubt) = (false, false);
        self.join(ride);
    }

    /// Lets those go on that wait for decisions: something has been decided. Returns whether there were any.
    pub(crate) fn resume_in_doubt(&mut self) -> bool {
        let waiting: Vec<Ride> = self.paused.extract_if(.., |ride| ride.in_doubt).collect();
        let are_some = !waiting.is_empty();
        waiting.into_iter().for_each(|ride| self.resume(ride));
        are_some
    }

    pub(crate) fn resume_all(&mut self) {
        for ride in std::mem::take(&mut self.paused) {
            self.resume(ride);
        }
    }

    /// Takes the tests and the class of an operation away that does not ride any more.
    pub(crate) fn leave(&mut self, ride: &Ride) {
        self.writes_riding -= usize::from(ride.is_write);
        ride.tests.iter().for_each(|id| self.tests.leave(*id, ride.ts));
        ride.class.into_iter().for_each(|class| self.classes.leave(class));
    }

    /// The canonical key of a stored row.
    pub(crate) fn stored_key(&self, address: Address, key: &mut Vec<u8>) {
        let segment = &self.segments[address.slot as usize];
        segment.write_identity(&self.schema.columns, &self.schema.primary_key, address.row, key);
    }

    /// The newest version of the row with this key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Address> {
        let mut stored = Vec::with_capacity(key.len());
        self.keys.find(Table::hash(key), |address| {
            self.stored_key(address, &mut stored);
            stored == key
        })
    }

    pub(crate) fn hash_of_stored(&self, address: Address) -> u64 {
        let mut key = Vec::with_capacity(KEY_BYTES);
        self.stored_key(address, &mut key);
        Table::hash(&key)
    }

    /// A segment takes no more rows that are added, and is to be encoded. One of each range can wait, for they may become full
    /// together.
    fn has_become_full(&mut self, slot: u32) {
        self.is_full_no_more(slot);
        self.full.push_back((slot, self.schema.columns.len()));
        if self.full.len() > self.tails.len()
            && let Some((oldest, _)) = self.full.pop_front()
        {
            self.full_elsewhere = None;
            self.segments[oldest as usize].encode(&self.schema.columns);
            self.measure(oldest);
        }
    }

    /// Whether a segment has become full and is not encoded.
    pub(crate) fn is_full(&self, slot: u32) -> bool {
        self.full.iter().any(|(full, _)| *full == slot)
    }

    /// A segment has been encoded, or another is in its place.
    pub(crate) fn is_full_no_more(&mut self, slot: u32) {
        self.has_changed(slot);
        self.full.retain(|(full, _)| *full != slot);
    }

    /// The rows of a segment have other numbers: a column of it that somebody else has is of no use, nor is what it was to
    /// become together with others.
    pub(crate) fn has_changed(&mut self, slot: u32) {
        if self.joining.as_ref().is_some_and(|joining| joining.has(slot)) {
            self.give_up_joining();
        }
        if self.full.front().is_some_and(|(full, _)| *full == slot) {
            self.full_elsewhere = None;
        }
    }

    /// Encodes columns of full segments, as rows have been added, or leaves that to somebody else: all that takes far too long for
    /// one step, and is done when the next segment of the range is half full.
    fn encode_some(&mut self, added: usize) {
        /// Somebody else may be behind by the rows of so many columns.
        const PATIENCE: usize = 4;
        self.unpaid += added;
        while let Some((slot, left)) = self.full.front().copied() {
            let rows_of_column = self.rows_of_column(slot);
            if self.unpaid < rows_of_column {
                return;
            }
            if self.unpaid < rows_of_column * PATIENCE {
                self.full_elsewhere = self.full_elsewhere.or_else(|| self.leave_full(slot, left - 1));
                if self.full_elsewhere.is_some() {
                    return;
                }
            }
            // Nobody else does it, or not as fast as rows are added.
            self.full_elsewhere = None;
            self.segments[slot as usize].encode_column(&self.schema.columns, left - 1);
            self.has_encoded(slot, left);
        }
        self.unpaid = 0;
    }

    /// Leaves it to somebody else to encode a column of a full segment, if there is anybody and it takes more than to give a few
    /// rows codes that are known.
    fn leave_full(&mut self, slot: u32, index: usize) -> Option<Number> {
        let segment = &self.segments[slot as usize];
        if segment.columns[index].has_grown_little() {
            return None;
        }
        let all: Vec<u32> = (0..segment.rows as u32).collect();
        let ranks = Ranks::default();
        let spec =
            Spec { schema: self.schema.clone(), slots: vec![slot], index, part: 2, is_part: segment.is_part };
        let cells = self.options.compact_cells;
        self.encoder.leave(&spec, &[(&segment.columns[index], Picked::new(&all, &ranks))], cells)
    }

    /// Takes a column back that somebody else has encoded, if it is for a full segment.
    pub(crate) fn take_full(&mut self, encoding: Encoding) -> Option<Encoding> {
        if self.full_elsewhere != Some(encoding.number()) {
            return Some(encoding);
        }
        self.full_elsewhere = None;
        if let Some((slot, left)) = self.full.front().copied() {
            let (segment, index) = (&mut self.segments[slot as usize], left - 1);
            let mut encoded = encoding.into_column();
            // A visit may have given the plain rows codes meanwhile.
            if segment.columns[index].base_rows < encoded.base_rows {
                let added: Vec<u32> = (encoded.rows() as u32..segment.rows as u32).collect();
                encoded.append_rows_of(&segment.columns[index], &added);
                encoded.absorb_known(&self.schema.columns[index].ty);
                segment.replace_column(index, encoded);
            }
            self.has_encoded(slot, left);
            self.encode_some(0);
        }
        None
    }

    /// So many rows that are added pay for a column of a full segment.
    fn rows_of_column(&self, slot: u32) -> usize {
        let rows = self.segments[slot as usize].rows.min(self.options.segment_rows);
        rows / (2 * self.schema.columns.len())
    }

    /// A column of the first of the full segments has been encoded.
    fn has_encoded(&mut self, slot: u32, left: usize) {
        self.unpaid = self.unpaid.saturating_sub(self.rows_of_column(slot));
        self.full.pop_front();
        if left > 1 {
            self.full.push_front((slot, left - 1));
        }
        self.measure(slot);
    }

    /// A segment of the range with room, and how much.
    fn tail(&mut self, range: usize) -> (u32, usize) {
        if let Some(slot) = self.tails[range] {
            let segment = &self.segments[slot as usize];
            if segment.rows < self.options.segment_rows && segment.size() < SEGMENT_BYTES {
                return (slot, self.options.segment_rows - segment.rows);
            }
            self.has_become_full(slot);
        }
        // A segment that deletions have emptied is filled again before another is made.
        let roomy = self.segments.iter().position(|segment| {
            (segment.range == range || segment.range == NO_PIECE)
                && segment.rows * 2 <= self.options.segment_rows
                && segment.size() * 2 <= SEGMENT_BYTES
        });
        let slot = match roomy {
            Some(slot) => {
                self.segments[slot].range = range;
                slot as u32
            }
            None => {
                self.segments.push(Segment::new(range, &self.schema.columns));
                (self.segments.len() - 1) as u32
            }
        };
        self.tails[range] = Some(slot);
        (slot, self.options.segment_rows - self.segments[slot as usize].rows)
    }

    /// Appends rows of a batch that begin at `begin`; returns where they are, in order. Keys are not entered.
    pub(crate) fn append(
        &mut self,
        range: usize,
        arrays: &[ArrayRef],
        rows: &[u32],
        begin: Ts,
    ) -> Vec<Address> {
        let mut addresses = Vec::with_capacity(rows.len());
        let most = match rows.len() {
            0 | 1 => 1,
            _ => {
                let size = |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or(0);
                let bytes: usize = arrays.iter().map(size).sum();
                let row_bytes = bytes / arrays.first().map_or(1, |array| array.len()).max(1) + 1;
                (SEGMENT_BYTES / row_bytes).max(1)
            }
        };
        let mut rest = rows;
        while !rest.is_empty() {
            let (slot, room) = self.tail(range);
            let (now, later) = rest.split_at(room.min(most).min(rest.len()));
            let first = self.append_to(slot, arrays, now, begin);
            addresses.extend((0..now.len() as u32).map(|row| Address { slot, row: first + row }));
            self.encode_some(now.len());
            rest = later;
        }
        addresses
    }

    /// Appends rows of a batch to one segment; returns the first one's index.
    pub(crate) fn append_to(&mut self, slot: u32, arrays: &[ArrayRef], rows: &[u32], begin: Ts) -> u32 {
        let all = arrays.first().is_some_and(|array| array.len() == rows.len());
        let take = if all { Take::All(rows.len()) } else { Take::Rows(rows) };
        let first = self.segments[slot as usize].append(&self.schema.columns, arrays, take, begin);
        // Where the next rows go depends on the size: it must not lag far behind.
        match first / 64 == (first + rows.len() as u32) / 64 {
            true => self.measure_later(slot),
            false => self.measure(slot),
        }
        first
    }

    /// Remembers a change that may have to be taken back.
    pub(crate) fn record(&mut self, rider: &mut Rider, change: Change) {
        if rider.tentative {
            rider.changes.push(change);
            self.segments[change.slot as usize].note_undecided(rider.ts);
        }
    }

    /// Whether an operation sees a version.
    pub(crate) fn sees(&self, rider: &Rider, slot: u32, row: u32) -> bool {
        let versions = &self.segments[slot as usize].versions;
        if rider.is_write {
            versions.write_sees(row as usize, rider.sees)
        } else {
            versions.read_sees(row as usize, rider.sees)
        }
    }

    /// Whether the operation's predicate is true of a version.
    fn qualifies(&self, rider: &Rider, slot: u32, row: u32) -> Result<bool> {
        let _entered = rider.interest.enter();
        let segment = &self.segments[slot as usize];
        let (types, context) = (&self.schema.columns, rider.context());
        for test in &rider.prepared.tests {
            if !row_holds(test, &segment.columns, types, context, row as usize)? {
                return Ok(false);
            }
        }
        match &rider.prepared.filter {
            None => Ok(true),
            Some(filter) => {
                let fetch = |column: usize| segment.columns[column].gather(&types[column].ty, &[row]);
                Ok(!filter.select(1, &fetch, context)?.is_empty())
            }
        }
    }

    /// Lets an operation look at one row, whose versions are `row` and what follows it in the segment.
    pub(crate) fn visit_row(
        &mut self,
        rider: &mut Rider,
        slot: u32,
        mut row: u32,
        effects: &mut Vec<Effect>,
    ) -> Visit {
        loop {
            let segment = &self.segments[slot as usize];
            if let Some(root) = segment.waits_for(row, rider.sees) {
                return Visit::Waits(root);
            }
            let next = segment.next.get(&row).copied();
            if self.sees(rider, slot, row) {
                self.visit_version(rider, slot, row, effects);
                return Visit::Done;
            }
            match next {
                Some(next) => row = next,
                None => return Visit::Done,
            }
        }
    }

    /// Lets an operation act on one version that it sees, if its predicate is true of it.
    pub(crate) fn visit_version(
        &mut self,
        rider: &mut Rider,
        slot: u32,
        row: u32,
        effects: &mut Vec<Effect>,
    ) {
        let range = self.segments[slot as usize].range;
        if !rider.acts_on(range) {
            return;
        }
        match self.qualifies(rider, slot, row) {
            Ok(true) => self.apply(rider, slot, &[row], effects),
            Ok(false) => {}
            Err(error) => self.fail(rider, range, error),
        }
    }

    pub(crate) fn fail(&self, rider: &mut Rider, range: usize, error: SqlError) {
        if let Some(place) = rider.place_of_range[range] {
            rider.fail(place, error);
        }
    }

    /// Lets an operation act on qualifying rows of a segment.
    pub(crate) fn apply(&mut self, rider: &mut Rider, slot: u32, rows: &[u32], effects: &mut Vec<Effect>) {
        let range = self.segments[slot as usize].range;
        let Some(place) = rider.place_of_range[range] else { return };
        if rows.is_empty() || rider.ranges[place].outcome.is_err() {
            return;
        }
        let _entered = rider.interest.enter();
        match self.try_apply(rider, place, slot, rows, effects) {
            Ok(affected) => {
                if let Ok(count) = &mut rider.ranges[place].outcome {
                    *count += affected;
                }
            }
            Err(error) => rider.fail(place, error),
        }
    }

    /// Acts on rows, in parts that fit into batches. Returns how many it were.
    fn try_apply(
        &mut self,
        rider: &mut Rider,
        place: usize,
        slot: u32,
        rows: &[u32],
        effects: &mut Vec<Effect>,
    ) -> Result<u64> {
        match rider.work {
            Work::Rows { .. } => return self.find_rows(rider, slot, rows, effects),
            Work::Groups { .. } => return self.add_to_groups(rider, slot, rows),
            _ => {}
        }
        let mut affected = 0;
        in_parts(0..rows.len(), &mut |part| {
            affected += self.apply_to_part(rider, place, slot, &rows[part], effects)?;
            Ok(())
        })?;
        Ok(affected)
    }

    /// Acts on rows; [`SqlError::batch_full`] when nothing has been done because they are too many for batches.
    fn apply_to_part(
        &mut self,
        rider: &mut Rider,
        place: usize,
        slot: u32,
        rows: &[u32],
        effects: &mut Vec<Effect>,
    ) -> Result<u64> {
        let operation = rider.operation.clone();
        let context = &operation.context;
        let (ts, range) = (rider.ts, rider.ranges[place].range);
        let segment = &self.segments[slot as usize];
        let types = &self.schema.columns;
        let fetch = |column: usize| segment.columns[column].gather(&types[column].ty, rows);
        match &mut rider.work {
            // To hash them, or to make blocks of them, takes long: that is done between the visits.
            Work::Hash(Hashes { found, .. }) | Work::Blocks(Blocks { found, .. }) => {
                found.push(slot, rows);
                Ok(rows.len() as u64)
            }
            Work::Delete { returning, counted } => {
                let counted = *counted;
                if let Some(returning) = returning {
                    let batch = returning.batch(rows.len(), None, &fetch, context)?;
                    effects.push(Effect::Rows { ts, range, batch });
                }
                for row in rows {
                    self.segments[slot as usize].end(*row, ts);
                    self.record(rider, Change { slot, old: Some(*row), new: None });
                }
                self.measure_later(slot);
                Ok(if counted { rows.len() as u64 } else { 0 })
            }
            Work::Update { targets, values, returning } => {
                let assigned = values.evaluate(rows.len(), &fetch, context)?;
                let keeps_not_null = |(target, array): (&usize, &ArrayRef)| {
                    array.null_count() == 0 || !self.schema.columns[*target].not_null
                };
                if returning.is_none() && targets.iter().zip(&assigned).all(keeps_not_null) {
                    self.check_types(targets.iter().copied().zip(&assigned))?;
                    let targets = std::mem::take(targets);
                    let columns = &self.schema.columns;
                    let segment = &mut self.segments[slot as usize];
                    let first = segment.append_versions(columns, rows, &targets, &assigned, ts);
                    self.supersede(rider, slot, rows, first);
                    if let Work::Update { targets: place, .. } = &mut rider.work {
                        *place = targets;
                    }
                    return Ok(rows.len() as u64);
                }
                // Whole rows are needed to return them, or to tell which one is wrong.
                let arrays: Vec<ArrayRef> = (0..types.len())
                    .map(|column| match targets.iter().rposition(|target| *target == column) {
                        Some(index) => Ok(assigned[index].clone()),
                        None => fetch(column),
                    })
                    .collect::<Result<_>>()?;
                let checked = self.check_new_rows(targets, &arrays, context)?;
                if let Some(returning) = returning {
                    let fetch = |column: usize| Ok(arrays[column].clone());
                    let batch = returning.batch(rows.len(), None, &fetch, context)?;
                    effects.push(Effect::Rows { ts, range, batch });
                }
                debug_assert_eq!(checked, rows.len());
                self.replace(rider, slot, rows, &arrays);
                Ok(rows.len() as u64)
            }
            Work::Rows { .. } | Work::Groups { .. } | Work::Insert { .. } => {
                Err(SqlError::internal("rows are for others than this operation"))
            }
        }
    }

    /// Checks new versions of rows: types as declared, NOT NULL kept. Returns how many rows they are.
    pub(crate) fn check_new_rows(
        &self,
        targets: &[usize],
        arrays: &[ArrayRef],
        context: &crate::expr::EvalContext,
    ) -> Result<usize> {
        self.check_types(targets.iter().map(|target| (*target, &arrays[*target])))?;
        check_not_null(&self.schema, targets, arrays, context)?;
        Ok(arrays.first().map_or(0, |array| array.len()))
    }

    /// Refuses new values of columns that are of another type.
    fn check_types<'a>(&self, assigned: impl Iterator<Item = (usize, &'a ArrayRef)>) -> Result<()> {
        for (target, array) in assigned {
            let column = &self.schema.columns[target];
            if *array.data_type() != column.ty.arrow() {
                return Err(SqlError::internal(format!(
                    "an assignment of {} to column \"{}\" of type {}",
                    array.data_type(),
                    column.name,
                    column.ty
                )));
            }
        }
        Ok(())
    }

    /// Ends rows and puts their new versions into the same segment.
    pub(crate) fn replace(&mut self, rider: &mut Rider, slot: u32, rows: &[u32], arrays: &[ArrayRef]) {
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let first = self.append_to(slot, arrays, &all, rider.ts);
        self.supersede(rider, slot, rows, first);
        self.measure(slot);
    }

    /// Ends rows whose new versions are in the same segment, from row `first` on.
    fn supersede(&mut self, rider: &mut Rider, slot: u32, rows: &[u32], first: u32) {
        self.segments[slot as usize].supersede(slot, rows, first, rider.ts);
        if self.has_keys() {
            self.supersede_keys(slot, rows, first);
        }
        for (old, new) in rows.iter().copied().zip(first..) {
            self.record(rider, Change { slot, old: Some(old), new: Some(new) });
        }
        self.assume_growth(slot, rows.len());
    }

    /// Lets the key index point to the new versions of rows, from row `first` on.
    fn supersede_keys(&mut self, slot: u32, rows: &[u32], first: u32) {
        // To note a row that has no new version costs little, but there may be many.
        if self.keys.len() + first as usize / ROWS_A_KEY <= rows.len() * KEYS_A_SEARCH {
            let mut renumbered: Vec<u32> = (0..first).collect();
            rows.iter().zip(first..).for_each(|(old, new)| renumbered[*old as usize] = new);
            return self.keys.renumber(slot, |row| renumbered[row as usize]);
        }
        let mut key = Vec::with_capacity(KEY_BYTES);
        for (old, new) in rows.iter().copied().zip(first..) {
            let new = Address { slot, row: new };
            self.stored_key(new, &mut key);
            self.keys.replace(Table::hash(&key), Address { slot, row: old }, new);
        }
    }

    /// Makes a write's effects final or takes them back; returns the rows that others wait for.
    pub(crate) fn settle(&mut self, rider: &mut Rider, commit: bool) -> Vec<Address> {
        let mut waited_for = Vec::new();
        let mut touched: Vec<u32> = Vec::new();
        for change in std::mem::take(&mut rider.changes).into_iter().rev() {
            let Change { slot, old, new } = change;
            if !commit {
                self.take_back(change);
            }
            let segment = &mut self.segments[slot as usize];
            if touched.last() != Some(&slot) {
                segment.undecided.remove(&rider.ts.0);
                touched.push(slot);
            }
            if let Some(root) = old.or(new)
                && segment.queues.contains(root)
            {
                waited_for.push(Address { slot, row: root });
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|slot| self.measure_later(slot));
        rider.tentative = false;
        waited_for
    }

    fn take_back(&mut self, Change { slot, old, new }: Change) {
        if let Some(new) = new {
            let address = Address { slot, row: new };
            let previous = self.segments[slot as usize].previous.remove(&new);
            if self.has_keys() {
                let hash = self.hash_of_stored(address);
                match previous {
                    Some(previous) => {
                        self.keys.replace(hash, address, previous);
                    }
                    None => self.keys.remove(hash, address),
                }
            }
            self.segments[slot as usize].kill(new);
        }
        if let Some(old) = old {
            self.segments[slot as usize].versions.revive(old as usize);
            self.segments[slot as usize].next.remove(&old);
        }
    }

    /// Appends rows that are known to be new: loading a checkpoint.
    pub(crate) fn restore(&mut self, range: usize, rows: &RecordBatch, own: &[u32], begin: Ts) {
        let addresses = self.append(range, rows.columns(), own, begin);
        if self.has_keys() {
            for address in addresses {
                let hash = self.hash_of_stored(address);
                self.keys.insert(hash, address);
            }
        }
    }
}

/// The canonical identities of a batch's rows, one after the other.
pub(crate) struct RowKeys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl RowKeys {
    pub(crate) fn new(schema: &TableSchema, arrays: &[ArrayRef], rows: usize) -> RowKeys {
        let identity = Table::identity(schema);
        let mut keys = RowKeys { bytes: Vec::with_capacity(rows * 16), ends: Vec::with_capacity(rows) };
        for row in 0..rows {
            for index in &identity {
                let ty = &schema.columns[*index].ty;
                write_cell(&mut keys.bytes, arrays[*index].as_ref(), row, ty, Blanks::ByType);
            }
            keys.ends.push(keys.bytes.len() as u32);
        }
        keys
    }

    pub(crate) fn get(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.bytes[start..self.ends[row] as usize]
    }
}

/// The hashes of the keys of some rows of a segment, as [`Table::hash_of_stored`]: what the next ones are is fetched meanwhile.
pub(crate) fn key_hashes(schema: &TableSchema, segment: &Segment, rows: &[u32]) -> Vec<u64> {
    /// Rows that are looked at ahead of the one that is hashed.
    const AHEAD: usize = 8;
    let mut key = Vec::new();
    let hash = |(at, row): (usize, &u32)| {
        for column in schema.primary_key.iter().map(|column| &segment.columns[*column]) {
            if let Some(next) = rows.get(at + 2 * AHEAD) {
                column.fetch_value(*next as usize);
            }
            if let Some(next) = rows.get(at + AHEAD) {
                column.fetch_bytes(*next as usize);
            }
        }
        segment.write_identity(&schema.columns, &schema.primary_key, *row, &mut key);
        Table::hash(&key)
    };
    rows.iter().enumerate().map(hash).collect()
}

/// Which shard of a process a row with this key hash belongs to.
pub(crate) fn shard_of(hash: u64, shards: u32) -> u32 {
    ((hash >> 32) % u64::from(shards)) as u32
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};

    use super::*;
    use crate::{
        schema::{Column, Partitioning, TableId},
        types::Type,
    };

    const ROWS: usize = 24;

    fn table(ranges: usize) -> Table {
        let column = |name: &str, ty| Column { name: name.into(), ty, not_null: false, default: None };
        let schema = TableSchema {
            id: TableId(1),
            version: Ts(1),
            name: "t".into(),
            columns: vec![column("k", Type::Int8), column("name", Type::Text), column("n", Type::Int8)],
            primary_key: vec![0],
            primary_key_name: "t_pkey".into(),
            partitioning: Partitioning::Hash { columns: vec![0] },
        };
        let options = Options { segment_rows: ROWS, ..Options::default() };
        Table::new(Arc::new(schema), ranges, options, Encoder::default())
    }

    /// Adds rows to a range, of which the first has this key.
    fn add(table: &mut Table, range: usize, first: i64, rows: usize) {
        let keys: Vec<i64> = (first..first + rows as i64).collect();
        let names = keys.iter().map(|key| (key % 3 > 0).then(|| format!("name {}", key % 7)));
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(keys.clone())),
            Arc::new(names.collect::<StringArray>()),
            Arc::new(Int64Array::from_iter_values(keys.iter().map(|key| key * key))),
        ];
        table.append(range, &arrays, &(0..rows as u32).collect::<Vec<u32>>(), Ts(1));
    }

    /// How many columns of a segment have no plain rows.
    fn encoded(table: &Table, slot: usize) -> usize {
        table.segments[slot].columns.iter().filter(|column| column.delta.len() == 0).count()
    }

    #[test]
    fn a_full_segment_is_encoded_a_column_at_a_time() {
        let mut table = table(1);
        (0..ROWS as i64).for_each(|key| add(&mut table, 0, key, 1));
        let mut before = 0;
        for key in ROWS..2 * ROWS {
            add(&mut table, 0, key as i64, 1);
            let now = encoded(&table, 0);
            assert!(now <= before + 1, "row {key}: {now} columns after {before}");
            before = now;
        }
        assert_eq!(before, 3);
        assert!(!table.is_full(0));
        let columns = &table.segments[0].columns;
        for row in 0..ROWS {
            assert_eq!((columns[0].int(row), columns[2].int(row)), (row as i64, (row * row) as i64));
            assert_eq!(columns[1].is_null(row), row % 3 == 0);
            if row % 3 > 0 {
                assert_eq!(columns[1].bytes(row), format!("name {}", row % 7).as_bytes());
            }
        }
    }

    #[test]
    fn no_more_full_segments_wait_than_there_are_ranges() {
        let mut table = table(2);
        for round in 0..5 {
            for range in [0, 1] {
                add(&mut table, range, round * 1_000 + 100 * range as i64, ROWS);
                assert!(table.full.len() <= 2);
            }
        }
        add(&mut table, 0, 10_000, 10 * ROWS);
        add(&mut table, 0, 20_000, ROWS / 2);
        add(&mut table, 1, 30_000, ROWS / 2);
        let plain = |slot: &usize| table.segments[*slot].encoded_rows() < table.segments[*slot].rows;
        let plain: Vec<usize> = (0..table.segments.len()).filter(plain).collect();
        let tails: Vec<usize> = table.tails.iter().flatten().map(|slot| *slot as usize).collect();
        assert!(plain.iter().all(|slot| tails.contains(slot)), "{plain:?} beside {tails:?}");
    }
}
