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

/// The ring in eight parts.
fn eighths() -> Vec<KeyRange> {
    let eighth = u64::MAX / 8 + 1;
    (0..8).map(|at| KeyRange::new(at * eighth, at * eighth + (eighth - 1))).collect()
}

fn recut(beside: &mut Beside, held: Vec<KeyRange>) {
    let ts = beside.scan.next_ts();
    beside.scan.shard.recut(Recut { ts, held, ..Recut::default() });
    beside.scan.run();
}

/// Rows in segments, each of which has been cut in eight.
fn cut_up(elsewhere: bool) -> Beside {
    let mut beside = about_to_be_cut_up(elsewhere);
    recut(&mut beside, vec![KeyRange::FULL]);
    beside
}

/// The change for which that was done has not come.
fn about_to_be_cut_up(elsewhere: bool) -> Beside {
    let options = Options { segment_rows: SEGMENT_ROWS, compact_cells: 1000, ..Options::default() };
    let mut beside = Beside::with(options).encoded_elsewhere(elsewhere);
    beside.scan.collect();
    while beside.encode() || beside.compact_some() {}
    beside.scan.shard.precut(eighths()[1..].iter().map(|eighth| eighth.first).collect());
    while !beside.scan.effects.iter().any(|effect| matches!(effect, Effect::Precut)) {
        beside.scan.shard.step(&mut beside.scan.effects);
        beside.encode();
    }
    beside
}

/// Does all that there is to do, as often as it may have to wait.
fn collect(beside: &mut Beside) {
    for _ in 0..400 {
        beside.scan.run();
        while beside.compact_some() {}
    }
    beside.scan.run();
    let parts = beside.scan.shard.memory_by_part(beside.scan.schema.id);
    let (parts, all) = (parts.iter().map(|(_, size)| size).sum::<usize>(), beside.scan.shard.memory());
    // Some is measured when a segment is visited next.
    assert!(all.abs_diff(parts) * 100 <= all, "{parts} of {all} bytes");
}

#[test]
fn rows_change_while_their_segments_become_one() {
    for elsewhere in [false, true] {
        let mut beside = cut_up(elsewhere);
        let before = beside.scan.shard.segments();
        assert!(before >= 72, "{before} segments");
        let mut n = 0;
        let (mut reads, mut answers) = (Vec::new(), Vec::new());
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
                reads.push(read);
                answers.push(expected.map(|(k, row)| (*k, *row)).collect::<BTreeMap<_, _>>());
                beside.scan.shard.step(&mut beside.scan.effects);
                beside.compact_some();
                n += 1;
            }
            assert!(n < 7_000, "it ends");
        }
        beside.scan.run();
        let few = reads.len().div_ceil(40);
        for (ts, expected) in reads.into_iter().zip(answers).step_by(few) {
            assert_eq!(found(&beside.scan, ts), expected);
        }
        beside.check();
        collect(&mut beside);
        let after = beside.scan.shard.segments();
        assert!(after <= before * 2 / 5, "{after} of {before} segments are left");
        beside.check();
    }
}

/// What has been cut for a change that is to come need not be cut again.
#[test]
fn segments_become_one_on_either_side_of_a_cut() {
    let mut beside = about_to_be_cut_up(false);
    let before = beside.scan.shard.segments();
    collect(&mut beside);
    let joined = beside.scan.shard.segments();
    assert!((10..before / 2).contains(&joined), "{joined} of {before} segments");
    recut(&mut beside, eighths());
    assert_eq!(beside.scan.shard.segments(), joined);
    beside.check();
}

/// What is sent to others stays where it is meanwhile.
#[test]
fn segments_wait_until_everything_has_been_sent() {
    let mut beside = cut_up(false);
    let before = beside.scan.shard.segments();
    let read = OperationKind::Read(Read { predicate: Vec::new(), output: ReadOutput::ContentHash });
    let ts = beside.scan.submit_as(read, |ordered| (ordered.blocks, ordered.window) = (true, Some(1)));
    collect(&mut beside);
    assert_eq!(beside.scan.shard.segments(), before, "somebody is sent rows");
    beside.scan.shard.cancel(ts, &mut beside.scan.effects);
    collect(&mut beside);
    assert!(beside.scan.shard.segments() < before / 2);
    beside.check();
}

/// What somebody reads slowly stays where it is.
#[test]
fn segments_wait_for_those_who_are_slower_than_the_scan() {
    let mut beside = cut_up(false);
    let before = beside.scan.shard.segments();
    let read = OperationKind::Read(Read {
        predicate: Vec::new(),
        output: ReadOutput::Rows { projection: Vec::new(), top: None },
    });
    let slow = beside.scan.submit_with(read, Some(1));
    collect(&mut beside);
    assert_eq!(beside.scan.shard.segments(), before);
    beside.scan.shard.cancel(slow, &mut beside.scan.effects);
    collect(&mut beside);
    assert!(beside.scan.shard.segments() < before / 2);
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
        recut(&mut beside, held.to_vec());
        beside.check();
        collect(&mut beside);
        let after = beside.scan.shard.segments();
        assert!(after <= 16, "{after} segments");
        beside.check();
        assert_eq!(beside.scan.shard.collect_garbage(Ts(u64::MAX)), Progress::Idle);
    }
}
