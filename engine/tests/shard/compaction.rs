//! Segments that are compacted a piece at a time, while everything else goes on.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
};

use arrow::{array::AsArray, datatypes::Int32Type};
use carousel_engine::{
    Shard, Ts, Type, Value,
    encoding::Encoding,
    expr::Expr,
    install::Rows,
    operation::{
        Decision, Delete, Effect, Insert, InsertRows, OnConflict, OperationKind, Read, ReadOutput, RowBatch,
        Update,
    },
    position::KeyRange,
    recut::Recut,
    shard::{Options, Progress},
};

use crate::{
    encode, encoder,
    oracle::batch_of,
    sharing::{Scan, column, compare_equal, number},
};

const ROWS: i32 = 4000;

/// Fewer cells than a column has: its pieces are as small as they can be, and there are several of the keys.
const PIECE: usize = 1000;

/// Rows `(k, a, b)` by `k`, and a shard that should have them in one segment.
pub struct Beside {
    pub scan: Scan,
    pub rows: BTreeMap<i32, (i32, i32)>,
    /// Somebody who encodes columns, if it is not the shard.
    encoder: Option<mpsc::Receiver<Box<Encoding>>>,
}

impl Beside {
    /// A segment with a fifth of garbage, of which each piece that is compacted has `compact_cells` cells.
    fn new(compact_cells: usize) -> Beside {
        Beside::with(Options { compact_cells, ..Options::default() })
    }

    pub fn with(options: Options) -> Beside {
        let options = Options { block_cells: PIECE, batch_rows: 20, ..options };
        let rows = (0..ROWS).map(|k| (k, (k % 10, k % 7))).collect();
        let mut beside = Beside { scan: Scan::with(ROWS, options), rows, encoder: None };
        beside.update(3, 1000);
        beside.delete(vec![compare_equal(1, 5)], |_, (a, _)| a == 5);
        beside.scan.run();
        beside
    }

    /// Somebody else encodes columns, or not.
    pub fn encoded_elsewhere(mut self, elsewhere: bool) -> Beside {
        self.encoder = elsewhere.then(|| encoder(&mut self.scan.shard));
        self
    }

    /// Encodes a column that the shard has left to somebody else. Returns whether there was one.
    pub fn encode(&mut self) -> bool {
        self.encoder.as_ref().is_some_and(|encoder| encode(&mut self.scan.shard, encoder))
    }

    /// `SET b = b WHERE a = …`
    fn update(&mut self, a: i32, b: i32) -> Ts {
        self.rows.values_mut().filter(|row| row.0 == a).for_each(|row| row.1 = b);
        self.scan.submit(update(vec![compare_equal(1, a)], b))
    }

    pub fn update_one(&mut self, k: i32, b: i32) {
        self.rows.entry(k).and_modify(|row| row.1 = b);
        self.scan.submit(update(vec![compare_equal(0, k)], b));
    }

    pub fn delete(&mut self, predicate: Vec<Expr>, goes: impl Fn(i32, (i32, i32)) -> bool) {
        self.rows.retain(|k, row| !goes(*k, *row));
        self.scan.submit(OperationKind::Delete(Delete { predicate, returning: None }));
    }

    pub fn insert(&mut self, k: i32, a: i32, b: i32) {
        self.rows.insert(k, (a, b));
        let insert = insert(&self.scan, k, a, b);
        self.scan.submit(insert);
    }

    /// Compacts a piece, or encodes a column that is waited for. Returns whether there was one.
    pub fn compact_some(&mut self) -> bool {
        let horizon = Ts(self.scan.next_ts().0 + 1);
        self.scan.shard.collect_garbage(horizon) == Progress::Busy || self.encode()
    }

    /// All rows are found by the scan, and each of them by its key; keys that nobody has are free.
    pub fn check(&mut self) {
        self.scan.run();
        let read = self.scan.submit(rows(Vec::new()));
        self.scan.run();
        assert_eq!(found(&self.scan, read), self.rows);
        for k in -1..self.rows.keys().last().map_or(0, |last| last + 2) {
            let read = self.scan.submit(rows(vec![compare_equal(0, k)]));
            self.scan.run();
            let expected = self.rows.get_key_value(&k).map(|(k, row)| (*k, *row));
            assert_eq!(found(&self.scan, read), expected.into_iter().collect(), "by key {k}");
            self.scan.effects.clear();
        }
        let twice = self.rows.keys().next().map(|k| insert(&self.scan, *k, 0, 0));
        if let Some(twice) = twice.map(|twice| self.scan.submit(twice)) {
            self.scan.run();
            assert!(self.scan.outcome_of(twice).is_err(), "the key is there");
        }
    }
}

fn update(predicate: Vec<Expr>, b: i32) -> OperationKind {
    OperationKind::Update(Update { predicate, assignments: vec![(2, number(b))], returning: None })
}

fn insert(scan: &Scan, k: i32, a: i32, b: i32) -> OperationKind {
    let rows = batch_of(&scan.schema, &[vec![Value::Int4(k), Value::Int4(a), Value::Int4(b)]]);
    let positions = scan.schema.partitioning.positions(&scan.schema.columns, &rows);
    let rows = InsertRows::Inline(RowBatch { rows, positions, ordinals: vec![0] });
    OperationKind::Insert(Insert { rows, on_conflict: OnConflict::Fail, returning: None })
}

pub fn rows(predicate: Vec<Expr>) -> OperationKind {
    let output = ReadOutput::Rows { projection: (0..3).map(column).collect(), top: None };
    OperationKind::Read(Read { predicate, output })
}

fn hash() -> OperationKind {
    OperationKind::Read(Read { predicate: Vec::new(), output: ReadOutput::ContentHash })
}

/// The rows that a read has got.
pub fn found(scan: &Scan, of: Ts) -> BTreeMap<i32, (i32, i32)> {
    let mut rows = BTreeMap::new();
    for effect in &scan.effects {
        let Effect::Rows { ts, batch, .. } = effect else { continue };
        let cell = |column: usize, row: usize| batch.column(column).as_primitive::<Int32Type>().value(row);
        for row in (0..batch.num_rows()).filter(|_| *ts == of) {
            let again = rows.insert(cell(0, row), (cell(1, row), cell(2, row)));
            assert!(again.is_none(), "a row comes once");
        }
    }
    rows
}

fn hash_of(scan: &Scan, of: Ts) -> u128 {
    let hashes = scan.effects.iter().filter_map(|effect| match effect {
        Effect::ContentHash { ts, hash, .. } if *ts == of => Some(*hash),
        _ => None,
    });
    hashes.fold(0, u128::wrapping_add)
}

/// The content hash of some rows.
fn hash_of_rows(rows: &BTreeMap<i32, (i32, i32)>) -> u128 {
    let row = |(k, (a, b)): (&i32, &(i32, i32))| vec![Value::Int4(*k), Value::Int4(*a), Value::Int4(*b)];
    let types = [("k", carousel_engine::Type::Int4), ("a", carousel_engine::Type::Int4)];
    let types = [&types[..], &[("b", carousel_engine::Type::Int4)]].concat();
    let mut scan = Scan::of(&types, rows.iter().map(row).collect(), Options::default());
    let read = scan.submit(hash());
    scan.run();
    hash_of(&scan, read)
}

#[test]
fn rows_change_while_their_segment_is_compacted() {
    for (compact_cells, elsewhere) in
        [(PIECE, false), (2_000, false), (7_000, false), (PIECE, true), (7_000, true)]
    {
        let mut beside = Beside::new(compact_cells).encoded_elsewhere(elsewhere);
        let before = beside.scan.shard.memory();
        let (mut pieces, mut largest) = (0, 0);
        while beside.compact_some() {
            let n = pieces % ROWS;
            beside.update_one(n * 17 % ROWS, n);
            beside.delete(vec![compare_equal(0, n * 13 % ROWS)], |k, _| k == n * 13 % ROWS);
            beside.insert(ROWS + n, 1, n);
            // One that was deleted before the compaction began.
            if !beside.rows.contains_key(&(n * 10 + 5)) {
                beside.insert(n * 10 + 5, 2, n);
            }
            if n == 3 {
                beside.update(2, 77);
            }
            beside.scan.run();
            pieces += 1;
            assert!(pieces < 300, "it ends");
            // What is beside the segment counts, and is about as large at most: rows without codes take more.
            let parts = beside.scan.shard.memory_by_part(beside.scan.schema.id);
            assert_eq!(beside.scan.shard.memory(), parts.iter().map(|(_, size)| size).sum::<usize>());
            let columns: usize = parts[..3].iter().map(|(_, size)| size).sum();
            let copy = parts.iter().find(|(name, _)| name == "compaction").map_or(0, |(_, size)| *size);
            assert!(copy <= columns * 4 / 3, "{copy} bytes beside {columns}");
            largest = largest.max(copy);
        }
        assert!(pieces > if compact_cells == PIECE { 12 } else { 0 }, "{pieces} pieces");
        assert!(compact_cells > PIECE || largest > ROWS as usize, "{largest} bytes at most");
        beside.check();
        // What ended meanwhile goes the next time.
        beside.delete(Vec::new(), |k, _| k >= 0);
        beside.scan.run();
        while beside.compact_some() {}
        assert!(beside.scan.shard.memory() < before / 20, "{} bytes", beside.scan.shard.memory());
        beside.check();
    }
}

/// Updates that never cease, some a piece; more than a piece can follow; and of all rows at every piece.
#[test]
fn compaction_ends_under_constant_updates() {
    for (updates, all, elsewhere) in [
        (5, false, false),
        (70, false, false),
        (400, false, false),
        (0, true, false),
        (70, false, true),
        (0, true, true),
    ] {
        let mut beside = Beside::new(PIECE).encoded_elsewhere(elsewhere);
        let (mut n, mut most) = (0, 0);
        for _ in 0..400 {
            beside.compact_some();
            for _ in 0..updates {
                n += 1;
                beside.update_one(n * 7919 % ROWS, n);
            }
            if all {
                (0..10).for_each(|a| {
                    n += 1;
                    beside.update(a, n);
                });
            }
            beside.scan.run();
            most = most.max(beside.scan.shard.memory());
        }
        let one = beside.scan.shard.memory() / beside.rows.len();
        assert!(one < 1000, "{one} bytes a row with {updates} updates");
        assert!(most / beside.rows.len() < 1200, "{most} bytes at most with {updates} updates");
        while beside.compact_some() {}
        beside.check();
    }
}

/// Keys of several segments follow together, unless rows of one end again and again.
#[test]
fn keys_are_found_while_those_of_many_segments_follow() {
    for updated in [ROWS, ROWS / 20] {
        let mut beside =
            Beside::with(Options { segment_rows: 100, compact_cells: PIECE, ..Options::default() });
        for n in 0..8000 {
            beside.update_one(n * 7919 % updated, n);
            if n % 10 == 0 {
                let k = n * 13 % updated;
                beside.delete(vec![compare_equal(0, k)], |gone, _| gone == k);
                beside.insert(k, 1, n);
            }
            if n % 5 == 0 {
                beside.scan.run();
                beside.compact_some();
            }
        }
        beside.scan.run();
        while beside.compact_some() {}
        let one = beside.scan.shard.memory() / beside.rows.len();
        assert!(one < 200, "{one} bytes a row where {updated} are updated");
        beside.check();
    }
}

/// Columns of segments that have become full come back at once, when more rows are there and some have been updated, far too late,
/// or never.
#[test]
fn full_segments_are_encoded_elsewhere() {
    for given_back_every in [1, 6, 40, 900, i32::MAX] {
        let options = Options { segment_rows: 100, compact_cells: PIECE, ..Options::default() };
        let mut beside = Beside::with(options).encoded_elsewhere(true);
        let mut encoded = 0;
        for n in 0..3000 {
            beside.insert(ROWS + n, n % 3, n);
            beside.update_one(ROWS + n * 7 % (n + 1), -n);
            beside.scan.run();
            if n % given_back_every == given_back_every - 1 && beside.encode() {
                encoded += 1;
            }
        }
        // One after the other where they come back in time; otherwise the shard encodes the next ones itself.
        let expected = if given_back_every <= 6 { 60 } else { 0 };
        assert!(encoded >= expected, "{encoded} columns");
        beside.check();
        while beside.compact_some() {}
        beside.check();
    }
}

/// Each is decided when those before it are, and the others stay in line together: what a decision costs does not grow with how
/// many wait.
#[test]
fn many_undecided_writes_of_the_same_rows_take_effect_one_after_the_other() {
    let mut beside = Beside::new(PIECE);
    let scan = &mut beside.scan;
    let writes: Vec<Ts> = (0..800)
        .map(|n| {
            let kind = update(vec![compare_equal(1, 2)], n);
            scan.submit_as(kind, |ordered| ordered.undecided = true)
        })
        .collect();
    scan.run();
    let reads = [scan.submit(rows(Vec::new())), scan.submit(rows(vec![compare_equal(1, 2)]))];
    scan.run();
    for (n, ts) in (0..).zip(&writes) {
        let decision = if n % 7 == 6 { Decision::Abort } else { Decision::Commit };
        scan.shard.decide(*ts, decision, &mut scan.effects);
        scan.run();
    }
    beside.rows.values_mut().filter(|row| row.0 == 2).for_each(|row| row.1 = 799);
    assert_eq!(found(&beside.scan, reads[0]), beside.rows);
    assert_eq!(found(&beside.scan, reads[1]).len(), ROWS as usize / 10);
    beside.check();
}

/// Of rows at which writes wait, those are waited for that may meet a predicate when the writes have assigned what they assign.
#[test]
fn who_waits_for_a_row_holds_up_nobody_whom_the_row_does_not_concern() {
    const KEPT: i32 = 7;
    let mut beside = Beside::new(PIECE);
    let scan = &mut beside.scan;
    // More than are waited for one by one.
    let keys: Vec<i32> = (0..200).map(|n| 10 * n + 2).collect();
    let writes: Vec<Ts> = [1, KEPT]
        .into_iter()
        .flat_map(|b| keys.iter().map(move |key| update(vec![compare_equal(0, *key)], b)))
        .map(|kind| scan.submit_as(kind, |ordered| ordered.undecided = true))
        .collect();
    scan.run();
    let free = [
        scan.submit(rows(vec![compare_equal(1, 3)])),
        scan.submit(rows(vec![compare_equal(1, 3), compare_equal(2, KEPT)])),
        scan.submit(update(vec![compare_equal(1, 4), compare_equal(0, 4)], 5)),
    ];
    let bound = [
        scan.submit(rows(vec![compare_equal(2, KEPT)])),
        scan.submit(rows(vec![compare_equal(1, 2), compare_equal(2, KEPT)])),
    ];
    scan.run();
    let is_executed = |scan: &Scan, asked: Ts| {
        scan.effects.iter().any(|effect| matches!(effect, Effect::Executed { ts, .. } if *ts == asked))
    };
    assert_eq!(free.map(|ts| is_executed(scan, ts)), [true; 3]);
    assert_eq!(bound.map(|ts| is_executed(scan, ts)), [false; 2]);
    for ts in writes {
        scan.shard.decide(ts, Decision::Commit, &mut scan.effects);
        scan.run();
    }
    for key in &keys {
        beside.rows.entry(*key).and_modify(|row| row.1 = KEPT);
    }
    beside.rows.entry(4).and_modify(|row| row.1 = 5);
    let of = |a: Option<i32>| {
        let kept = beside.rows.iter().filter(|(_, row)| row.1 == KEPT && a.is_none_or(|a| row.0 == a));
        kept.map(|(key, row)| (*key, *row)).collect::<Vec<_>>()
    };
    for (ts, a) in [(bound[0], None), (bound[1], Some(2)), (free[1], Some(3))] {
        assert_eq!(found(&beside.scan, ts).into_iter().collect::<Vec<_>>(), of(a));
    }
    beside.check();
}

/// Another process may need what it reads before it can vote on the writes that it would wait for.
#[test]
fn a_read_of_an_older_prefix_waits_for_no_write_behind_it() {
    let Beside { mut scan, rows: before, .. } = Beside::new(PIECE);
    let read_ts = scan.next_ts();
    // The second finds many rows that wait for the first, and stays where they are.
    let writes = [100, 200]
        .map(|b| scan.submit_as(update(vec![compare_equal(1, 2)], b), |ordered| ordered.undecided = true));
    scan.run();
    let read = scan.submit_as(rows(Vec::new()), |ordered| ordered.read_ts = read_ts);
    let behind = scan.submit(rows(Vec::new()));
    scan.run();
    assert_eq!(found(&scan, read), before);
    assert!(
        scan.effects.iter().all(|effect| !matches!(effect, Effect::Executed { ts, .. } if *ts == behind))
    );
    for ts in writes {
        scan.shard.decide(ts, Decision::Commit, &mut scan.effects);
        scan.run();
    }
    let after = before.iter().map(|(k, (a, b))| (*k, (*a, if *a == 2 { 200 } else { *b }))).collect();
    assert_eq!(found(&scan, behind), after);
}

/// Upserts, updates and deletes of one key, and reads of older prefixes among them: they wait in several lines, and what a decision
/// costs does not grow with how many there are.
#[test]
fn many_undecided_writes_of_one_key_take_effect_one_after_the_other() {
    const KEY: i32 = 2;
    let mut beside = Beside::new(PIECE);
    let scan = &mut beside.scan;
    // What the key's row has before each of them.
    let mut states = vec![beside.rows.get(&KEY).copied()];
    let mut writes = Vec::new();
    let mut reads = Vec::new();
    for n in 0..1_500 {
        let is_committed = n % 7 != 6;
        let before = states.last().copied().flatten();
        let (kind, after) = match n % 5 {
            0 => (update(vec![compare_equal(0, KEY)], n), before.map(|(a, _)| (a, n))),
            1 if n % 10 == 1 => (
                OperationKind::Delete(Delete { predicate: vec![compare_equal(0, KEY)], returning: None }),
                None,
            ),
            _ => {
                let OperationKind::Insert(mut insert) = insert(scan, KEY, n, n) else { panic!("an INSERT") };
                let assignments = vec![(2, Expr::column(5, Type::Int4))];
                insert.on_conflict = OnConflict::Update { assignments, predicate: Vec::new() };
                (OperationKind::Insert(insert), Some((before.map_or(n, |(a, _)| a), n)))
            }
        };
        let ts = scan.submit_as(kind, |ordered| ordered.undecided = true);
        writes.push((ts, if is_committed { Decision::Commit } else { Decision::Abort }));
        states.push(if is_committed { after } else { before });
        if n % 50 == 49 {
            let (seen, _) = writes[writes.len() - 20];
            let read_ts = Ts(seen.0 + 1);
            let read = scan.submit_as(rows(vec![compare_equal(0, KEY)]), |ordered| ordered.read_ts = read_ts);
            reads.push((read, states[states.len() - 20]));
        }
    }
    scan.run();
    for (ts, decision) in writes {
        scan.shard.decide(ts, decision, &mut scan.effects);
        scan.run();
    }
    for (read, expected) in reads {
        assert_eq!(found(scan, read).get(&KEY).copied(), expected);
    }
    match states.last().copied().flatten() {
        Some(row) => beside.rows.insert(KEY, row),
        None => beside.rows.remove(&KEY),
    };
    beside.check();
}

/// Writes whose effects may be taken back, and others that wait for them.
#[test]
fn undecided_writes_outlive_a_compaction() {
    for pieces_before in 0..16 {
        for decision in [Decision::Commit, Decision::Abort] {
            let mut beside = Beside::new(PIECE);
            (0..pieces_before).for_each(|_| {
                beside.compact_some();
            });
            let undecided = |scan: &mut Scan, kind| scan.submit_as(kind, |ordered| ordered.undecided = true);
            let goes =
                OperationKind::Delete(Delete { predicate: vec![compare_equal(1, 7)], returning: None });
            let insert_old = insert(&beside.scan, 15, 5, -1);
            let scan = &mut beside.scan;
            let writes = [
                undecided(scan, update(vec![compare_equal(1, 2)], 500)),
                undecided(scan, goes),
                undecided(scan, insert_old),
            ];
            scan.run();
            let waits = [scan.submit(rows(Vec::new())), scan.submit(update(vec![compare_equal(1, 2)], 600))];
            let insert_again = insert(scan, 17, 7, -2);
            let inserts = scan.submit(insert_again);
            scan.run();
            while beside.compact_some() {}
            let scan = &mut beside.scan;
            assert!(scan.effects.iter().all(|effect| !matches!(effect, Effect::Executed { ts, .. }
                if waits.contains(ts) || *ts == inserts)));
            for ts in writes {
                scan.shard.decide(ts, decision, &mut scan.effects);
            }
            scan.run();
            let is_committed = decision == Decision::Commit;
            if is_committed {
                beside.rows.values_mut().filter(|row| row.0 == 2).for_each(|row| row.1 = 500);
                beside.rows.retain(|_, row| row.0 != 7);
                beside.rows.insert(15, (5, -1));
            }
            assert_eq!(found(&beside.scan, waits[0]), beside.rows);
            assert_eq!(beside.scan.outcome_of(waits[1]), Ok(ROWS as u64 / 10));
            assert_eq!(
                beside.scan.outcome_of(inserts).is_ok(),
                is_committed,
                "the key is free if it was deleted"
            );
            beside.rows.values_mut().filter(|row| row.0 == 2).for_each(|row| row.1 = 600);
            if is_committed {
                beside.rows.insert(17, (7, -2));
            }
            beside.check();
            while beside.compact_some() {}
            beside.check();
        }
    }
}

/// Reads that have found rows find them again when the rows have other numbers.
#[test]
fn reads_go_on_when_rows_have_new_numbers() {
    for pieces_before in 0..16 {
        let mut beside = Beside::new(PIECE);
        (0..pieces_before).for_each(|_| {
            beside.compact_some();
        });
        let rows_then = beside.rows.clone();
        let scan = &mut beside.scan;
        let slow = scan.submit_with(rows(Vec::new()), Some(1));
        let hashed = scan.submit(hash());
        let copied = scan.submit_as(rows(Vec::new()), |ordered| {
            (ordered.blocks, ordered.window) = (true, Some(0));
        });
        scan.shard.step(&mut scan.effects);
        assert!(scan.shard.riding() == 3, "nobody is done");
        beside.update(1, 9);
        beside.scan.shard.step(&mut beside.scan.effects);
        while beside.compact_some() {}
        let scan = &mut beside.scan;
        scan.shard.allow(slow, 1000, &mut scan.effects);
        scan.shard.allow(copied, 1000, &mut scan.effects);
        scan.run();
        assert_eq!(found(scan, slow), rows_then);
        assert_eq!(hash_of(scan, hashed), hash_of_rows(&rows_then));
        let mut copy = Shard::new(0, 1, vec![KeyRange::FULL], Options::default());
        copy.restore_table(scan.schema.clone());
        for effect in &scan.effects {
            let Effect::Block { ts, range, block } = effect else { continue };
            assert_eq!(*ts, copied);
            let rows = Rows {
                table: scan.schema.id,
                range: *range,
                until: None,
                begin: Ts(1),
                block: block.clone(),
            };
            copy.install(rows).expect("rows of the range");
        }
        assert_eq!(copy.rows(scan.schema.id), rows_then.len());
        beside.check();
        while beside.compact_some() {}
        beside.check();
    }
}

/// The ranges change, are cleared, or the table goes, before each piece.
#[test]
fn a_segment_goes_while_it_is_compacted() {
    let halves = [KeyRange::new(0, u64::MAX / 2), KeyRange::new(u64::MAX / 2 + 1, u64::MAX)];
    for (pieces_before, elsewhere) in (0..24).flat_map(|pieces| [(pieces, false), (pieces, true)]) {
        let began = || {
            let mut beside = Beside::new(PIECE).encoded_elsewhere(elsewhere);
            let pieces = (0..pieces_before).filter(|_| beside.compact_some()).count();
            (beside, pieces)
        };
        let (mut cut, _) = began();
        let recut = Recut { ts: cut.scan.next_ts(), held: halves.to_vec(), ..Recut::default() };
        cut.scan.shard.recut(recut);
        cut.scan.run();
        cut.update(4, 12);
        cut.scan.run();
        while cut.compact_some() {}
        cut.check();

        let (mut cleared, _) = began();
        cleared.scan.shard.clear(KeyRange::FULL);
        cleared.rows.clear();
        while cleared.compact_some() {}
        (0..100).for_each(|k| cleared.insert(k, k, k));
        cleared.check();
        cleared.update_one(7, 8);
        cleared.delete(vec![compare_equal(0, 9)], |k, _| k == 9);
        cleared.scan.run();
        while cleared.compact_some() {}
        cleared.check();

        // A range that is held no more is read until garbage collection passes that.
        let (mut left, _) = began();
        let until = left.scan.next_ts();
        left.scan.shard.recut(Recut { ts: until, held: vec![halves[0]], ..Recut::default() });
        left.scan.run();
        (0..pieces_before).for_each(|_| {
            left.scan.shard.collect_garbage(until);
        });
        let read = left.scan.submit_as(rows(Vec::new()), |ordered| {
            ordered.read_ts = until;
            ordered.ranges = halves[..].into();
        });
        left.scan.run();
        assert_eq!(found(&left.scan, read), left.rows);
        while left.compact_some() {}
        let mut there = left.rows.len();
        left.rows.retain(|k, _| {
            let row = batch_of(&left.scan.schema, &[vec![Value::Int4(*k), Value::Int4(0), Value::Int4(0)]]);
            let position = left.scan.schema.partitioning.positions(&left.scan.schema.columns, &row)[0];
            halves[0].contains(position)
        });
        assert!(left.rows.len() < there);
        there = left.rows.len();
        assert_eq!(left.scan.shard.rows(left.scan.schema.id), there);
        left.check();

        let (mut dropped, pieces) = began();
        dropped.scan.submit(OperationKind::DropTable);
        dropped.scan.run();
        while dropped.encode() {}
        assert!(pieces == 0 || !dropped.compact_some());
        assert_eq!(dropped.scan.shard.memory(), 0);
    }
}

/// The parts of a segment have their dictionaries in common until they are compacted; then each has what it needs.
#[test]
fn the_parts_of_a_segment_take_as_much_as_the_whole() {
    let halves = [KeyRange::new(0, u64::MAX / 2), KeyRange::new(u64::MAX / 2 + 1, u64::MAX)];
    // Far longer than what tells a key that its row has moved.
    let row =
        |k: i32| vec![Value::Int4(k), Value::Text(format!("{:>90}", k * 7919).into()), Value::Int4(k % 7)];
    let types = [("k", Type::Int4), ("a", Type::Text), ("b", Type::Int4)];
    let mut scan = Scan::of(&types, (0..ROWS).map(row).collect(), Options::default());
    // A few rows that are not encoded.
    scan.submit(update(vec![compare_equal(0, 17)], 1_000_000));
    scan.run();
    let hashed = scan.submit(hash());
    scan.run();
    // The index over the keys gives back what few of them leave behind, and nothing before.
    let memory = |scan: &Scan| {
        let of = scan.shard.memory_by_part(scan.schema.id);
        of.iter().filter(|(part, _)| part != "keys").map(|(_, size)| size).sum::<usize>()
    };
    let before = memory(&scan);
    let ts = scan.next_ts();
    scan.shard.recut(Recut { ts, held: halves.to_vec(), ..Recut::default() });
    scan.run();
    let is_no_more = |now: usize, expected: usize| now < expected * 11 / 10;
    let cut = memory(&scan);
    assert!(is_no_more(cut, before), "{cut} bytes of {before}");
    let hashed_again = scan.submit(hash());
    scan.run();
    assert_eq!(hash_of(&scan, hashed_again), hash_of(&scan, hashed));
    let horizon = |scan: &mut Scan| Ts(scan.next_ts().0 + 1);
    let collect = |scan: &mut Scan, until: Ts| {
        (0..).take_while(|_| scan.shard.collect_garbage(until) == Progress::Busy).count()
    };
    let until = horizon(&mut scan);
    assert!(collect(&mut scan, until) > 1, "parts are compacted");
    let compacted = memory(&scan);
    assert!(is_no_more(compacted, before), "{compacted} bytes of {before}");
    let hashed_again = scan.submit(hash());
    scan.run();
    assert_eq!(hash_of(&scan, hashed_again), hash_of(&scan, hashed));
    let ts = scan.next_ts();
    scan.shard.recut(Recut { ts, held: vec![halves[0]], ..Recut::default() });
    scan.run();
    let until = horizon(&mut scan);
    collect(&mut scan, until);
    let left = memory(&scan);
    assert!(is_no_more(left, before / 2), "{left} bytes of half of {before}");
}

/// A segment that an other table's compaction is under way beside waits for its turn.
#[test]
fn one_segment_is_compacted_at_a_time() {
    let mut beside = Beside::new(PIECE);
    let mut other = (*beside.scan.schema).clone();
    other.id = carousel_engine::TableId(0);
    let other = Arc::new(other);
    beside.scan.shard.restore_table(other.clone());
    let row = |k: i32| vec![Value::Int4(k), Value::Int4(k), Value::Int4(k)];
    let batch = batch_of(&other, &(0..ROWS).map(row).collect::<Vec<_>>());
    assert!(beside.compact_some());
    let memory = |beside: &Beside, part: &str| -> Vec<usize> {
        let of = |table| beside.scan.shard.memory_by_part(table);
        let tables = [other.id, beside.scan.schema.id];
        tables
            .map(|table| of(table).iter().find(|(name, _)| name == part).map_or(0, |(_, size)| *size))
            .to_vec()
    };
    beside.scan.shard.restore(other.id, &batch, Ts::ZERO).expect("rows in the layout");
    let mut had_turn = [false; 2];
    while beside.compact_some() {
        let copies = memory(&beside, "compaction");
        assert!(copies.contains(&0), "{copies:?}");
        assert!(had_turn[1] || copies[0] == 0, "who began ends");
        had_turn.iter_mut().zip(&copies).for_each(|(had, size)| *had |= *size > 0);
    }
    assert_eq!(had_turn, [true, true]);
    assert_eq!(memory(&beside, "compaction"), [0, 0]);
    beside.check();
}
