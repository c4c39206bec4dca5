//! What happens when memory is short.

use carousel_engine::{
    SqlState, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::Expr,
    operation::{Delete, Effect, OperationKind, Read, ReadOutput},
    shard::Options,
};

use crate::sharing::{Scan, column, compare_equal};

fn groups_by(index: usize, aggregates: Vec<AggregateCall>) -> OperationKind {
    let output = ReadOutput::Groups { group_by: vec![column(index)], aggregates, top: None };
    OperationKind::Read(Read { predicate: vec![], output })
}

/// A read with more groups than there is room for fails; others, deletions among them, go on, and what it took is free.
#[test]
fn groups_without_room_fail_and_harm_nobody() {
    const ROWS: i32 = 100_000;
    let segment_rows = 10_000;
    let rows = Scan::with(ROWS, Options { segment_rows, ..Options::default() }).shard.memory();
    let options = Options { segment_rows, memory_bytes: Some(rows + 1_000_000), ..Options::default() };
    let mut scan = Scan::with(ROWS, options);
    let few = scan.submit(groups_by(1, vec![AggregateCall::new(AggregateFunction::Count, None)]));
    let many = scan.submit(groups_by(0, vec![]));
    let mut distinct = AggregateCall::new(AggregateFunction::Count, Some(column(0)));
    distinct.distinct = true;
    let large = scan.submit(groups_by(2, vec![distinct]));
    let delete = Delete { predicate: vec![compare_equal(1, 3)], returning: None };
    let deleted = scan.submit(OperationKind::Delete(delete));
    scan.run();
    for refused in [many, large] {
        assert_eq!(scan.outcome_of(refused).map_err(|error| error.code), Err(SqlState::OUT_OF_MEMORY));
        let has_groups = |effect: &Effect| matches!(effect, Effect::Groups { ts, .. } if *ts == refused);
        assert!(!scan.effects.iter().any(has_groups));
    }
    assert_eq!(scan.outcome_of(few), Ok(ROWS as u64));
    assert_eq!(scan.groups_of(few).len(), 10);
    assert_eq!(scan.outcome_of(deleted), Ok(ROWS as u64 / 10));
    assert!(scan.shard.is_idle());
    assert!(scan.shard.memory() < rows + 1_000_000, "{} bytes", scan.shard.memory());
}

/// Few rows that make long groups are weighed, too, whether codes tell the groups or not.
#[test]
fn few_rows_make_groups_that_have_no_room() {
    for group_by_code in [1, usize::MAX] {
        let row =
            |k: i32| vec![Value::Int4(k), Value::Int4(k % 7), Value::text(format!("{k:06}").repeat(30_000))];
        let columns = [("k", Type::Int4), ("a", Type::Int4), ("b", Type::Text)];
        let with = |options| Scan::of(&columns, (0..100).map(row).collect(), options);
        let options = Options { group_by_code, ..Options::default() };
        let rows = with(options).shard.memory();
        let mut scan = with(Options { memory_bytes: Some(rows + 4_000_000), ..options });
        let b = Expr::column(2, Type::Text);
        let mut all = AggregateCall::new(AggregateFunction::StringAgg, Some(b.clone()));
        all.further = vec![Expr::literal(Value::text(","), Type::Text)];
        let mut distinct = AggregateCall::new(AggregateFunction::Count, Some(b));
        distinct.distinct = true;
        for call in [all, distinct] {
            let read = scan.submit(groups_by(1, vec![call]));
            scan.run();
            assert_eq!(scan.outcome_of(read).map_err(|error| error.code), Err(SqlState::OUT_OF_MEMORY));
        }
    }
}

/// Groups are weighed while a segment's rows are added to them, and those of a read that has failed make room for others
/// in the same visit.
#[test]
fn groups_without_room_are_dropped_at_once() {
    const ROWS: i32 = 200_000;
    let rows = Scan::with(ROWS, Options::default()).shard.memory();
    let options = Options { memory_bytes: Some(rows + 4_000_000), ..Options::default() };
    let mut scan = Scan::with(ROWS, options);
    let distinct = || {
        let mut distinct = AggregateCall::new(AggregateFunction::Count, Some(column(0)));
        distinct.distinct = true;
        distinct
    };
    // Each of these would take more than there is; the last one no more than what is left when they have given up.
    let many: Vec<_> = (0..8).map(|_| scan.submit(groups_by(0, vec![distinct()]))).collect();
    let few = Read {
        predicate: vec![compare_equal(1, 3)],
        output: ReadOutput::Groups { group_by: vec![], aggregates: vec![distinct()], top: None },
    };
    let fits = scan.submit(OperationKind::Read(few));
    scan.run();
    for refused in many {
        let error = scan.outcome_of(refused).expect_err("there is no room");
        assert_eq!(error.code, SqlState::OUT_OF_MEMORY);
        // Far less than what the groups of all rows would take.
        let detail = error.into_report().detail.expect("how much it is");
        let bytes: usize = detail.split(' ').find_map(|word| word.parse().ok()).expect("bytes");
        assert!(bytes < 6_000_000, "{detail}");
    }
    assert_eq!(scan.outcome_of(fits), Ok(ROWS as u64 / 10));
    assert!(scan.shard.memory() < rows + 4_000_000);
}

/// When rows take all that there is, an eighth is left to groups.
#[test]
fn reads_go_on_when_rows_take_everything() {
    let options = Options { memory_bytes: Some(100_000), ..Options::default() };
    let mut scan = Scan::with(100_000, options);
    assert!(scan.shard.memory() > 100_000);
    let sum = AggregateCall::new(AggregateFunction::Sum, Some(column(0)));
    let read = scan.submit(groups_by(2, vec![sum]));
    scan.run();
    assert_eq!(scan.groups_of(read).len(), 7);
    assert_eq!(scan.groups_of(read)[0].key.len(), 1);
    assert_ne!(scan.groups_of(read)[0].key[0], Value::Null);
}

#[test]
fn statistics_tell_rows_bytes_and_values() {
    let scan = Scan::with(100_000, Options { segment_rows: 10_000, ..Options::default() });
    let [statistics] = scan.shard.statistics().try_into().expect("one table");
    assert_eq!((statistics.rows, statistics.bytes), (100_000, scan.shard.memory() as u64));
    assert_eq!(statistics.distinct, [100_000, 10, 7]);
    assert_eq!(statistics.expected_rows(&vec![compare_equal(1, 3)]), 10_000);
    assert_eq!(statistics.expected_rows(&vec![compare_equal(1, 3), compare_equal(2, 3)]), 1_429);
}

/// Before anything is encoded nothing is known of other columns than the key; many updates by it must be admitted.
#[test]
fn a_key_has_one_row_from_the_beginning() {
    let scan = Scan::with(1_000, Options::default());
    let [statistics] = scan.shard.statistics().try_into().expect("one table");
    assert_eq!(statistics.expected_rows(&vec![compare_equal(0, 3)]), 1);
}
