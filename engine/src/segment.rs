//! A segment: some rows of one table and one key range, the unit of a scan. Rows of different ranges never share one.

use std::ops::Range;

use arrow::array::{Array, ArrayRef};
use hashbrown::{HashMap, HashSet};

use crate::{
    batch_size::in_all_parts,
    bits::{Picked, Ranks},
    column::{CELLS_OF_ENCODED, GOOD_PART, SegmentColumn, Take},
    compaction::Compaction,
    error::Result,
    key::{Blanks, write_stored},
    operation::Ts,
    position::{KeyRange, Position, hash_position},
    predicate_index::Found,
    primary_key::Address,
    queue::{Deferred, Lane, Queues},
    rider::Rider,
    schema::{Column, Partitioning, TableSchema},
    versions::Versions,
};

/// What part of the rows has to have ended so that they are cleared away whatever they take.
const MANY_ENDED: usize = 16;

/// Logical sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) all: usize,
    /// Of this, what rows held by code take: what can be given up.
    pub(crate) by_code: usize,
}

/// Rows of one table and one key range.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Index of the key range.
    pub(crate) range: usize,
    pub(crate) columns: Vec<SegmentColumn>,
    pub(crate) rows: usize,
    encoded: usize,
    /// How many rows that are plain in some column have been looked at, by all riders, since they were all encoded.
    tested: usize,
    /// How many rows there were at the last visit.
    pub(crate) visited: usize,
    pub(crate) versions: Versions,
    /// From a row to the version before it: its predecessor, or an earlier row with the same key.
    pub(crate) previous: HashMap<u32, Address>,
    /// Whether any of these is in another segment.
    pub(crate) leads_elsewhere: bool,
    /// From a row to the version after it, in this segment.
    pub(crate) next: HashMap<u32, u32>,
    /// Writes with undecided effects here.
    pub(crate) undecided: HashSet<u64>,
    /// Operations that wait for undecided rows.
    pub(crate) queues: Queues,
    size: Size,
    /// Whether it is to be compacted because it has been divided: its columns have domains of more rows.
    pub(crate) is_part: bool,
    /// Where on the ring all of its rows are known to be: in no more than one part of a range that has been cut.
    pub(crate) within: Option<KeyRange>,
    /// Whether the size is partly assumed.
    pub(crate) is_assumed: bool,
    /// At how many visits riders have looked for rows by their codes.
    pub(crate) searched: u64,
    /// The horizon up to which superseded versions have been looked for.
    pub(crate) collected: Ts,
    /// Bytes of strings in rows that have ended since, about.
    ended_bytes: usize,
    /// The rows that stay, while they are being gathered. Whoever puts another segment here gives it up.
    pub(crate) compaction: Option<Box<Compaction>>,
}

impl Segment {
    pub(crate) fn new(range: usize, columns: &[Column]) -> Segment {
        Segment {
            range,
            columns: columns.iter().map(|column| SegmentColumn::new(&column.ty)).collect(),
            rows: 0,
            encoded: 0,
            tested: 0,
            visited: 0,
            versions: Versions::default(),
            previous: HashMap::new(),
            leads_elsewhere: false,
            next: HashMap::new(),
            undecided: HashSet::new(),
            queues: Queues::default(),
            size: Size::default(),
            is_part: false,
            within: None,
            is_assumed: false,
            searched: 0,
            collected: Ts::ZERO,
            ended_bytes: 0,
            compaction: None,
        }
    }

    /// Columns that are encoded, whose rows begin at `begin`.
    pub(crate) fn of(range: usize, columns: Vec<SegmentColumn>, rows: usize, begin: Ts) -> Segment {
        let mut segment = Segment { columns, rows, encoded: rows, ..Segment::new(range, &[]) };
        segment.versions.append(rows, begin);
        segment
    }

    /// Some of its rows, which ascend, with their versions, as a segment of another piece; their columns are given. If these
    /// are [`divided`](SegmentColumn::divided), it is to be compacted: until then it has the domains of its columns in common
    /// with the others that are made of this one.
    pub(crate) fn divide(&self, columns: Vec<SegmentColumn>, rows: &[u32], piece: usize) -> Segment {
        Segment {
            encoded: columns.iter().map(|column| column.base_rows).min().unwrap_or(rows.len()),
            rows: rows.len(),
            versions: self.versions.of_part(rows),
            columns,
            // Of whose rows they are is measured when somebody looks for them.
            ended_bytes: self.ended_bytes,
            ..Segment::new(piece, &[])
        }
    }

    /// Some of its rows, with their versions, as a segment of another piece.
    pub(crate) fn extract(&self, columns: &[Column], rows: &[u32], piece: usize) -> Segment {
        let ranks = Ranks::default();
        let picked = Picked::new(rows, &ranks);
        let extract = |(column, definition): (&SegmentColumn, &Column)| {
            SegmentColumn::of(column.extract(&definition.ty, &picked), rows.len(), &definition.ty)
        };
        let columns = self.columns.iter().zip(columns).map(extract).collect();
        let mut segment = Segment::of(piece, columns, rows.len(), Ts::ZERO);
        segment.versions = self.versions.of_part(rows);
        segment
    }

    /// The rows of several segments of a piece, whose columns and versions are given.
    pub(crate) fn joined(
        range: usize,
        columns: Vec<SegmentColumn>,
        versions: Versions,
        of: &[&Segment],
    ) -> Segment {
        let rows = versions.len();
        assert!(columns.iter().all(|column| column.rows() == rows), "every column has all rows");
        let ended_bytes = of.iter().map(|segment| segment.ended_bytes).sum();
        let mut segment = Segment { columns, rows, versions, ended_bytes, ..Segment::new(range, &[]) };
        segment.visited = rows;
        segment.note_encoded();
        segment
    }

    /// Writes the canonical form of what identifies a row: these columns.
    pub(crate) fn write_identity(&self, columns: &[Column], identity: &[usize], row: u32, key: &mut Vec<u8>) {
        self.write_cells(columns, identity, row, Blanks::ByType, key);
    }

    /// Puts the canonical forms of some cells of a row in the place of what a buffer has.
    fn write_cells(
        &self,
        columns: &[Column],
        indices: &[usize],
        row: u32,
        blanks: Blanks,
        key: &mut Vec<u8>,
    ) {
        key.clear();
        for index in indices {
            write_stored(key, &self.columns[*index], row as usize, &columns[*index].ty, blanks);
        }
    }

    /// Notes which version or row comes before a row.
    pub(crate) fn set_previous(&mut self, slot: u32, row: u32, previous: Address) {
        self.leads_elsewhere |= previous.slot != slot;
        self.previous.insert(row, previous);
    }

    /// Ring positions of some rows.
    pub(crate) fn positions(&self, schema: &TableSchema, rows: &[u32]) -> Vec<Position> {
        if let Partitioning::Hash { columns } = &schema.partitioning {
            // Nothing has to be gathered first.
            let mut key = Vec::new();
            let mut position = |row: u32| {
                self.write_cells(&schema.columns, columns, row, Blanks::Trimmed, &mut key);
                hash_position(&key)
            };
            let column = if let [only] = columns[..] { Some(&self.columns[only]) } else { None };
            let base = column.and_then(|column| Some((column.base.as_ref()?, column.base_rows)));
            let Some((base, base_rows)) = base.filter(|(base, _)| base.max_code < rows.len() as u64) else {
                return rows.iter().map(|row| position(*row)).collect();
            };
            // Rows that have the same code are at the same position.
            let mut of_code: Vec<Option<Position>> = vec![None; base.max_code as usize + 1];
            let of_row = |row: &u32| match *row as usize {
                at if at < base_rows && !base.is_null(at) => {
                    *of_code[base.codes.get(at) as usize].get_or_insert_with(|| position(*row))
                }
                _ => position(*row),
            };
            return rows.iter().map(of_row).collect();
        }
        let mut positions = Vec::with_capacity(rows.len());
        let of_part = &mut |part: Range<usize>| {
            let rows = &rows[part];
            let gather = |column: &usize| self.columns[*column].gather(&schema.columns[*column].ty, rows);
            let key = schema.partitioning.columns().iter().map(gather).collect::<Result<Vec<_>>>()?;
            positions.extend(schema.partitioning.positions_of(&schema.columns, rows.len(), &key));
            Ok(())
        };
        in_all_parts(0..rows.len(), of_part).expect("a row fits into a batch");
        positions
    }

    /// Appends rows that begin at `begin`; returns the first one's index.
    pub(crate) fn append(&mut self, columns: &[Column], arrays: &[ArrayRef], take: Take, begin: Ts) -> u32 {
        let first = self.rows as u32;
        self.within = None;
        for ((column, array), definition) in self.columns.iter_mut().zip(arrays).zip(columns) {
            column.delta.append(array.as_ref() as &dyn Array, &definition.ty, take);
        }
        self.rows += take.len();
        self.versions.append(take.len(), begin);
        first
    }

    /// Appends new versions of rows, which begin at `begin`: the columns `targets` from arrays, where a later one
    /// counts more, all others as they are. Returns the first one's index.
    pub(crate) fn append_versions(
        &mut self,
        columns: &[Column],
        rows: &[u32],
        targets: &[usize],
        assigned: &[ArrayRef],
        begin: Ts,
    ) -> u32 {
        /// Rows whose codes are fetched before they are copied.
        const FETCHED: usize = 4;
        let first = self.rows as u32;
        // The codes of a row lie as far apart as there are columns: one wait for all of them.
        for column in &self.columns {
            rows.iter().take(FETCHED).for_each(|row| column.fetch_code(*row as usize));
            column.fetch_code(column.base_rows);
        }
        for (index, (column, definition)) in self.columns.iter_mut().zip(columns).enumerate() {
            match targets.iter().rposition(|target| *target == index) {
                Some(place) => {
                    let array = assigned[place].as_ref() as &dyn Array;
                    column.delta.append(array, &definition.ty, Take::All(rows.len()));
                }
                None => column.repeat(rows),
            }
        }
        self.rows += rows.len();
        self.versions.append(rows.len(), begin);
        self.note_encoded();
        first
    }

    /// Rows that every column has encoded. New versions may be encoded in some columns and plain in others: until the
    /// next [`encode`](Segment::encode).
    pub(crate) fn encoded_rows(&self) -> usize {
        self.encoded
    }

    /// Whether the plain rows of some columns are encoded in others.
    pub(crate) fn is_uneven(&self) -> bool {
        self.columns.iter().any(|column| column.base_rows != self.encoded)
    }

    /// Encodes every row: where a few of a column are plain they are added to the others, otherwise all of them are encoded
    /// together. Rows keep their indices.
    pub(crate) fn encode(&mut self, columns: &[Column]) {
        (0..columns.len()).for_each(|index| self.encode_column(columns, index));
    }

    /// As [`encode`](Segment::encode), as far as the domains of the columns stay as they are.
    pub(crate) fn absorb_known(&mut self, columns: &[Column]) {
        self.columns
            .iter_mut()
            .zip(columns)
            .for_each(|(column, definition)| column.absorb_known(&definition.ty));
        self.note_encoded();
    }

    fn note_encoded(&mut self) {
        self.encoded = self.columns.iter().map(|column| column.base_rows).min().unwrap_or(self.rows);
        if self.encoded == self.rows {
            self.tested = 0;
        }
    }

    /// So many riders look at the rows that are plain in some column.
    pub(crate) fn note_tests(&mut self, riders: usize) {
        self.tested = self.tested.saturating_add(riders * (self.rows - self.encoded));
    }

    /// Whether to look at plain rows has taken as long by now as to encode all.
    pub(crate) fn is_worth_encoding(&self) -> bool {
        self.rows > self.encoded && self.tested >= self.rows * self.columns.len() * CELLS_OF_ENCODED
    }

    /// As [`encode`](Segment::encode), for one column.
    pub(crate) fn encode_column(&mut self, columns: &[Column], index: usize) {
        let (column, ty) = (&mut self.columns[index], &columns[index].ty);
        if column.has_grown_little() {
            column.absorb(ty);
        } else {
            let all: Vec<u32> = (0..self.rows as u32).collect();
            column.encode(ty, &all);
        }
        self.note_encoded();
    }

    /// Puts a column of the same rows in the place of what is there.
    pub(crate) fn replace_column(&mut self, index: usize, column: SegmentColumn) {
        assert_eq!(column.rows(), self.rows, "a column has all rows");
        self.columns[index] = column;
        self.note_encoded();
    }

    /// Puts columns of only these rows in the place of what is there, which is returned.
    pub(crate) fn replace_rows(
        &mut self,
        columns: Vec<SegmentColumn>,
        keep: &[u32],
        horizon: Ts,
    ) -> Vec<SegmentColumn> {
        self.versions.compact(keep, horizon);
        self.rows = keep.len();
        self.is_part = false;
        self.tested = 0;
        let replaced = std::mem::replace(&mut self.columns, columns);
        self.note_encoded();
        replaced
    }

    /// The row for whose decision an operation at `t` must wait before it looks at `row`: the oldest version of the
    /// row that is in doubt. `None` when nothing is in doubt for it.
    pub(crate) fn waits_for(&self, row: u32, t: Ts) -> Option<u32> {
        if self.undecided.is_empty() {
            return None;
        }
        let in_doubt = |at: u64| at < t.0 && self.undecided.contains(&at);
        if in_doubt(self.versions.end(row as usize)) {
            return Some(row);
        }
        let begin = self.versions.begin(row as usize);
        if self.versions.is_killed(row as usize) || !in_doubt(begin) {
            return None;
        }
        match self.previous.get(&row) {
            Some(old) if self.replaced(old.row, row, begin) => Some(old.row),
            _ => Some(row),
        }
    }

    /// Whether row `old` of this segment was replaced by row `new`, which begins at `begin`. (`previous` may also lead
    /// to an earlier row with the same key, in any segment.)
    fn replaced(&self, old: u32, new: u32, begin: u64) -> bool {
        self.next.get(&old) == Some(&new) && self.versions.end(old as usize) == begin
    }

    /// Makes an operation wait for a row. Returns whether it did not wait for it yet.
    pub(crate) fn defer(&mut self, root: u32, rider: &Rider, insert: Option<u32>) -> bool {
        let lane = if insert.is_some() { Lane::Inserts } else { Lane::Visits };
        let deferred = Deferred {
            visit: insert.is_none(),
            inserts: insert.into_iter().collect(),
            writes: rider.is_write,
            assigned: rider.prepared.assigned,
        };
        self.queues.push(root, lane, (rider.sees, rider.ts), deferred)
    }

    /// The versions of a row from this one on.
    pub(crate) fn versions_from(&self, row: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(row), |row| self.next.get(row).copied())
    }

    /// Adds the versions from row `first` on that follow versions which are there.
    pub(crate) fn add_successors(&self, found: &mut Found, first: usize) {
        match found {
            Found::Rows(rows) => {
                for index in 0..rows.len() {
                    let mut row = rows[index];
                    while let Some(next) = self.next.get(&row).filter(|next| **next >= first as u32) {
                        rows.push(*next);
                        row = *next;
                    }
                }
            }
            Found::Mask(mask) => {
                mask.resize(self.rows);
                for row in first..self.rows {
                    let is_next = |old: &Address| mask.get(old.row as usize);
                    if self.previous.get(&(row as u32)).is_some_and(is_next) {
                        mask.set(row);
                    }
                }
            }
        }
    }

    /// Ends a row's version.
    pub(crate) fn end(&mut self, row: u32, ts: Ts) {
        self.versions.set_end(row as usize, ts);
        self.note_ended(row);
    }

    /// Ends rows of this segment, which is in `slot`; their new versions are in it from row `first` on.
    pub(crate) fn supersede(&mut self, slot: u32, rows: &[u32], first: u32, ts: Ts) {
        let are_many = (self.versions.ended() + rows.len()) * MANY_ENDED >= self.rows;
        self.previous.reserve(rows.len());
        self.next.reserve(rows.len());
        for (old, new) in rows.iter().copied().zip(first..) {
            self.versions.set_end(old as usize, ts);
            if !are_many {
                self.note_ended(old);
            }
            self.previous.insert(new, Address { slot, row: old });
            self.next.insert(old, new);
        }
    }

    /// Makes a version invisible to everybody.
    pub(crate) fn kill(&mut self, row: u32) {
        self.versions.kill(row as usize);
        self.note_ended(row);
    }

    /// Counts the bytes of a row that has ended: few rows may have most of them.
    fn note_ended(&mut self, row: u32) {
        if !self.has_many_ended() {
            let bytes = self.columns.iter().map(|column| column.string_bytes(row as usize));
            self.ended_bytes += bytes.sum::<usize>();
        }
    }

    /// Whether so many rows have ended that they are cleared away whatever they take.
    pub(crate) fn has_many_ended(&self) -> bool {
        self.versions.ended() * MANY_ENDED >= self.rows
    }

    /// Whether what has ended may be a good part of the bytes.
    pub(crate) fn may_have_much_ended(&self) -> bool {
        self.ended_bytes > 0 && self.ended_bytes * GOOD_PART > self.size.all
    }

    /// Whether strings that none of these rows has are a good part of the bytes; `is_last` when there will not be more of
    /// them until other rows end.
    pub(crate) fn has_much_unused(&mut self, keep: &[u32], is_last: bool) -> bool {
        let unused: usize = self.columns.iter().map(|column| column.unused_bytes(keep)).sum();
        let is_much = unused * GOOD_PART > self.size.all;
        if is_much || is_last {
            self.ended_bytes = 0;
        }
        is_much
    }

    pub(crate) fn note_undecided(&mut self, ts: Ts) {
        self.undecided.insert(ts.0);
    }

    /// The last version in the chain that starts at `row`, aborted ones included.
    pub(crate) fn newest(&self, mut row: u32) -> u32 {
        while let Some(next) = self.next.get(&row) {
            row = *next;
        }
        row
    }

    /// The sizes when they were last measured.
    pub(crate) fn measured(&self) -> Size {
        self.size
    }

    /// Logical size in bytes when it was last measured.
    pub(crate) fn size(&self) -> usize {
        self.size.all
    }

    /// Recomputes the logical size; returns old and new.
    pub(crate) fn measure(&mut self) -> (Size, Size) {
        let before = self.size;
        self.is_assumed = false;
        let by_code = |column: &SegmentColumn| column.base.as_ref().map_or(0, |base| base.by_code.size());
        self.size = Size {
            all: self.columns.iter().map(SegmentColumn::size).sum::<usize>() + self.versions_size(),
            by_code: self.columns.iter().map(by_code).sum(),
        };
        (before, self.size)
    }

    /// Adds new versions of rows to the logical size, as rows of average size; returns what that adds.
    pub(crate) fn assume_growth(&mut self, rows: usize) -> usize {
        /// What is known of a version.
        const VERSION: usize = 16 + 16 + 12;
        self.is_assumed = true;
        let more = rows * (self.size.all / self.rows.max(1) + VERSION);
        self.size.all += more;
        more
    }

    /// Logical size in bytes of what is known about the rows' versions.
    pub(crate) fn versions_size(&self) -> usize {
        self.versions.size() + self.previous.len() * 16 + self.next.len() * 12
    }
}

#[cfg(test)]
mod tests {
    use bigdecimal::BigDecimal;

    use super::*;
    use crate::{array::values_to_array, numeric::Numeric, schema::TableId, types::Type, value::Value};

    /// What has not been assigned keeps its codes when many rows have new versions.
    #[test]
    fn only_what_is_plain_is_encoded() {
        let column = |name: &str| Column { name: name.into(), ty: Type::Int8, not_null: true, default: None };
        let columns = vec![column("a"), column("b")];
        let rows = 1000;
        let values = |factor: i64| {
            let values: Vec<Value> = (0..rows).map(|row| Value::Int8(row * factor % 997)).collect();
            values_to_array(&values, &Type::Int8).expect("values of the type")
        };
        let mut segment = Segment::new(0, &columns);
        segment.append(&columns, &[values(3), values(5)], Take::All(rows as usize), Ts(1));
        segment.encode(&columns);
        let domain = |segment: &Segment, column: usize| {
            std::sync::Arc::as_ptr(&segment.columns[column].base.as_ref().expect("it is encoded").domain)
        };
        let (a, b) = (domain(&segment, 0), domain(&segment, 1));
        let all: Vec<u32> = (0..rows as u32).collect();
        segment.append_versions(&columns, &all, &[1], &[values(7)], Ts(2));
        segment.encode(&columns);
        assert_eq!(segment.encoded_rows(), 2 * rows as usize);
        assert!(domain(&segment, 0) == a && domain(&segment, 1) != b);
        let of = |column: usize, row: usize| segment.columns[column].int(row);
        let same = |row: usize| of(0, row) == of(0, row + rows as usize);
        assert!((0..rows as usize).all(same));
        assert_eq!((of(1, 1), of(1, 1 + rows as usize)), (5, 7));
    }

    /// Few rows may have most of the strings, and their segment may be divided before anybody may collect them.
    #[test]
    fn parts_know_that_much_may_have_ended() {
        let columns = vec![Column { name: "t".into(), ty: Type::Text, not_null: false, default: None }];
        let text = |row: usize| Value::text("x".repeat(if row < 3 { 100_000 } else { row }));
        let values: Vec<Value> = (0..100).map(text).collect();
        let values = values_to_array(&values, &Type::Text).expect("values of the type");
        let mut segment = Segment::new(0, &columns);
        segment.append(&columns, &[values], Take::All(100), Ts(1));
        segment.encode(&columns);
        let part = |segment: &Segment, rows: std::ops::Range<u32>| {
            let rows: Vec<u32> = rows.collect();
            let ranks = Ranks::default();
            let picked = Picked::new(&rows, &ranks);
            let columns = segment.columns.iter().map(|column| column.divided(&Type::Text, &picked)).collect();
            segment.divide(columns, &rows, 1)
        };
        assert!(!part(&segment, 0..50).may_have_much_ended());
        (0..3).for_each(|row| segment.kill(row));
        assert!(!segment.has_many_ended() && segment.may_have_much_ended());
        let mut part = part(&segment, 0..50);
        assert!(part.may_have_much_ended());
        assert!(part.has_much_unused(&(3..50).collect::<Vec<u32>>(), true));
    }

    /// Rows lie where the statement that inserted them said, whatever the types of the columns by which they are placed.
    #[test]
    fn rows_lie_where_their_cells_say() {
        let text = |text: &str| Value::Text(text.into());
        let numeric =
            |text: &str| Value::Numeric(Numeric::Finite(text.parse::<BigDecimal>().expect("a number")));
        let cells = [
            (Type::Int4, [Value::Int4(-7), Value::Int4(i32::MAX), Value::Int4(0)]),
            (Type::Bool, [Value::Bool(true), Value::Bool(false), Value::Bool(true)]),
            (Type::Float8, [Value::Float8(-0.0), Value::Float8(f64::NAN), Value::Float8(1.5)]),
            (Type::Numeric(Some((10, 2))), [numeric("1.50"), numeric("0"), numeric("-300")]),
            (Type::Numeric(None), [numeric("1.50"), Value::Numeric(Numeric::NaN), numeric("1e60")]),
            (Type::Text, [text("a  "), text(""), text("  ")]),
            (Type::Varchar(Some(9)), [text("a "), text(" a"), text("\u{fc} ")]),
            (Type::Char(3), [text("a  "), text("abc"), text("   ")]),
            (Type::Date, [Value::Date(1), Value::Date(-1), Value::Date(0)]),
            (Type::Uuid, [[1; 16], [0; 16], [255; 16]].map(Value::Uuid)),
            (Type::Bytea, [&b" "[..], b"", b"\x01 "].map(|bytes| Value::Bytea(bytes.into()))),
        ];
        let columns: Vec<Column> = cells
            .iter()
            .map(|(ty, _)| Column { name: "c".into(), ty: ty.clone(), not_null: false, default: None })
            .collect();
        let arrays: Vec<ArrayRef> = cells
            .iter()
            .map(|(ty, cells)| {
                let cells: Vec<Value> = cells.iter().cloned().chain([Value::Null]).collect();
                values_to_array(&cells, ty).expect("values of the type")
            })
            .collect();
        let rows: Vec<u32> = (0..4).collect();
        let mut segment = Segment::new(0, &columns);
        segment.append(&columns, &arrays, Take::All(rows.len()), Ts(1));
        let by = |indices: Vec<usize>| TableSchema {
            id: TableId(1),
            version: Ts(1),
            name: "t".into(),
            columns: columns.clone(),
            primary_key: Vec::new(),
            primary_key_name: String::new(),
            partitioning: Partitioning::Hash { columns: indices },
        };
        let all: Vec<usize> = (0..columns.len()).collect();
        let schemas: Vec<TableSchema> =
            all.iter().map(|index| vec![*index]).chain([all.clone()]).map(by).collect();
        for encoded in [false, true] {
            if encoded {
                for (column, definition) in segment.columns.iter_mut().zip(&columns) {
                    column.encode(&definition.ty, &rows);
                }
            }
            for schema in &schemas {
                let key: Vec<ArrayRef> =
                    schema.partitioning.columns().iter().map(|index| arrays[*index].clone()).collect();
                let wanted = schema.partitioning.positions_of(&columns, rows.len(), &key);
                assert_eq!(
                    segment.positions(schema, &rows),
                    wanted,
                    "by {:?}, {encoded}",
                    schema.partitioning
                );
            }
        }
    }
}
