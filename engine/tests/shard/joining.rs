//! Segments that have become small become one, while everything else goes on.

use std::collections::BTreeMap;

use carousel_engine::{
    Ts,
    operation::{Effect, OperationKind, Read, ReadOutput},
    position::KeyRange,
    recut::Recut,
    shard::{Options, Progress},
};

use crate::{
    compaction::{Beside, found, rows},
    sharing::compare_equal,
};

const ROWS: i32 = 4000;
const SEGMENT_ROWS: usize = 400;

/// Rows in segments, each of which is cut in four.
fn cut_up(elsewhere: bool) -> Beside {
    let options = Options { segment_rows: SEGMENT_ROWS, compact_cells: 1000, ..Options::default() };
    let mut beside = Beside::with(options).encoded_elsewhere(elsewhere);
    beside.scan.collect();
    while beside.encode() || beside.compact_some() {}
    let quarters = (1..4).map(|quarter| u64::MAX / 4 * quarter).collect();
    beside.scan.shard.precut(quarters);
    while !beside.scan.effects.iter().any(|effect| matches!(effect, Effect::Precut)) {
        beside.scan.shard.step(&mut beside.scan.effects);
        beside.encode();
    }
    beside
}

#[test]
fn rows_change_while_their_segments_become_one() {
    for elsewhere in [false, true] {
        let mut beside = cut_up(elsewhere);
        let before = beside.scan.shard.segments();
        assert!(before >= 36, "{before} segments");
        let mut n = 0;
        let mut reads: Vec<(Ts, BTreeMap<i32, (i32, i32)>)> = Vec::new();
        // There is always somebody on a revolution.
        while beside.scan.shard.segments() > before / 2 {
            for _ in 0..7 {
                beside.update_one(n * 17 % ROWS, n);
                beside.delete(vec![compare_equal(0, n * 13 % ROWS)], |k, _| k == n * 13 % ROWS);
                if !beside.rows.contains_key(&(n * 13 % ROWS)) {
                    beside.insert(n * 13 % ROWS, 1, n);
                }
                let read = beside.scan.submit(rows(vec![compare_equal(1, n % 10)]));
                let expected = beside.rows.iter().filter(|(_, (a, _))| *a == n % 10);
                reads.push((read, expected.map(|(k, row)| (*k, *row)).collect()));
                beside.scan.shard.step(&mut beside.scan.effects);
                beside.compact_some();
                n += 1;
            }
            assert!(n < 7_000, "it ends");
        }
        beside.scan.run();
        let few = reads.len().div_ceil(40);
        for (ts, expected) in reads.into_iter().step_by(few) {
            assert_eq!(found(&beside.scan, ts), expected);
        }
        beside.check();
        for _ in 0..100 {
            while beside.compact_some() {}
            beside.scan.run();
        }
        let after = beside.scan.shard.segments();
        assert!(after <= before * 2 / 5, "{after} of {before} segments are left");
        beside.check();
    }
}

/// What somebody reads slowly, and what is being received, stays where it is; so does what is to be cut.
#[test]
fn segments_wait_for_those_who_are_slower_than_the_scan() {
    let mut beside = cut_up(false);
    let before = beside.scan.shard.segments();
    let read = OperationKind::Read(Read {
        predicate: Vec::new(),
        output: ReadOutput::Rows { projection: Vec::new(), top: None },
    });
    let slow = beside.scan.submit_with(read, Some(1));
    let collect = |beside: &mut Beside| {
        for _ in 0..30 {
            beside.scan.run();
            while beside.compact_some() {}
        }
        beside.scan.shard.segments()
    };
    assert_eq!(collect(&mut beside), before);
    beside.scan.shard.cancel(slow, &mut beside.scan.effects);
    assert!(collect(&mut beside) < before / 2);
    beside.check();
}

/// A change of the ranges meets segments that are about to become one.
#[test]
fn ranges_change_while_segments_become_one() {
    for done in 0..40 {
        let mut beside = cut_up(done % 2 == 0);
        let held = [KeyRange::new(0, u64::MAX / 3), KeyRange::new(u64::MAX / 3 + 1, u64::MAX)];
        for _ in 0..done {
            beside.compact_some();
        }
        let ts: Ts = beside.scan.next_ts();
        beside.scan.shard.recut(Recut { ts, held: held.to_vec(), ..Recut::default() });
        beside.scan.run();
        beside.check();
        for _ in 0..30 {
            while beside.compact_some() {}
            beside.scan.run();
        }
        let after = beside.scan.shard.segments();
        assert!(after <= 16, "{after} segments");
        beside.check();
        assert_eq!(beside.scan.shard.collect_garbage(Ts(u64::MAX)), Progress::Idle);
    }
}
