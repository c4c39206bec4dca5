//! Values that are too many or too long for one Arrow array.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int32Type;
use carousel_engine::{
    SqlState, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, Group},
    block::extent,
    expr::{CompareOp, Expr, Function},
    install::Rows,
    numeric::Numeric,
    operation::{
        Delete, Effect, Insert, InsertRows, OnConflict, OperationKind, Read, ReadOutput, RowBatch, SortKey,
        Top, Update,
    },
    shard::Options,
};

use crate::{
    oracle::{Row, batch_of},
    sharing::{Scan, column, compare_equal},
};

const ROWS: i32 = 2000;

/// Rows `(k, 'k')` in one segment.
fn scan() -> Scan {
    scan_of(ROWS)
}

fn scan_of(rows: i32) -> Scan {
    let row = |k: i32| -> Row { vec![Value::Int4(k), Value::text(format!("{:04}", k % 10_000))] };
    let columns = [("k", Type::Int4), ("v", Type::Text)];
    Scan::of(&columns, (0..rows).map(row).collect(), Options::default())
}

fn call(function: Function, args: Vec<Expr>, ty: Type) -> Expr {
    Expr::Call { function, args, ty }
}

fn text() -> Expr {
    Expr::column(1, Type::Text)
}

/// `repeat(v, times)`: four bytes each time.
fn repeat(times: i32) -> Expr {
    call(Function::Repeat, vec![text(), Expr::literal(Value::Int4(times), Type::Int4)], Type::Text)
}

fn length(expr: Expr) -> Expr {
    call(Function::Length, vec![expr], Type::Int4)
}

fn rows(predicate: Vec<Expr>, projection: Vec<Expr>, top: Option<Top>) -> OperationKind {
    OperationKind::Read(Read { predicate, output: ReadOutput::Rows { projection, top } })
}

fn equal(left: Expr, right: Value, ty: Type) -> Expr {
    let right = Box::new(Expr::literal(right, ty));
    Expr::Compare { op: CompareOp::Eq, left: Box::new(left), right }
}

fn batches(scan: &Scan, of: Ts) -> Vec<&RecordBatch> {
    let batch = |effect| match effect {
        &Effect::Rows { ts, ref batch, .. } if ts == of => Some(batch),
        _ => None,
    };
    scan.effects.iter().filter_map(batch).collect()
}

/// The integers of a read's only column, in order.
fn integers(scan: &Scan, of: Ts) -> Vec<i32> {
    let values = batches(scan, of)
        .into_iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Int32Type>().values().to_vec());
    let mut values: Vec<i32> = values.collect();
    values.sort_unstable();
    values
}

#[test]
fn tests_end_when_all_who_share_them_have_been_given_up() {
    let reversed = |text: &str| {
        equal(call(Function::Reverse, vec![self::text()], Type::Text), Value::text(text), Type::Text)
    };
    let mut scan = scan_of(20_000);
    let read = || rows(vec![reversed("7591")], vec![column(0)], None);
    let (given_up, wanted) = (scan.submit(read()), scan.submit(read()));
    scan.shard.given_up().give_up(given_up);
    scan.run();
    assert_eq!(scan.outcome_of(wanted), Ok(2));
    assert_eq!(integers(&scan, wanted), [1957, 11_957]);
    let (one, other) = (scan.submit(read()), scan.submit(read()));
    [one, other].into_iter().for_each(|read| scan.shard.given_up().give_up(read));
    scan.run();
    for read in [one, other] {
        assert_eq!(scan.outcome_of(read).unwrap_err().code, SqlState::QUERY_CANCELED);
    }
    let again = scan.submit(read());
    scan.run();
    assert_eq!(scan.outcome_of(again), Ok(2));
}

/// What is evaluated on the way to a small result may be larger than an array can be.
#[test]
fn intermediate_values_may_take_gigabytes() {
    const MANY: i32 = 20_000;
    let mut scan = scan_of(MANY);
    let read = scan.submit(rows(vec![], vec![length(repeat(27_000))], None));
    scan.run();
    assert_eq!(scan.outcome_of(read), Ok(MANY as u64));
    assert_eq!(integers(&scan, read), vec![108_000; MANY as usize]);
}

/// A NULL has the code of some string, but none of its bytes.
#[test]
fn nulls_beside_a_long_string_come_in_few_batches() {
    let value = |k: i32| if k == 0 { Value::text("x".repeat(70 << 20)) } else { Value::Null };
    let row = |k: i32| -> Row { vec![Value::Int4(k), value(k)] };
    let columns = [("k", Type::Int4), ("v", Type::Text)];
    let mut scan = Scan::of(&columns, (0..ROWS).map(row).collect(), Options::default());
    let above = Expr::Compare {
        op: CompareOp::Gt,
        left: Box::new(column(0)),
        right: Box::new(Expr::literal(Value::Int4(0), Type::Int4)),
    };
    let read = scan.submit(rows(vec![above], vec![column(0), text()], None));
    scan.run();
    assert_eq!(scan.outcome_of(read), Ok(ROWS as u64 - 1));
    assert!(batches(&scan, read).len() < 10, "{} batches", batches(&scan, read).len());
}

/// Rows come in batches that somebody may want to hold.
#[test]
fn batches_of_long_values_have_few_rows() {
    let mut scan = scan();
    let read = scan.submit(rows(vec![], vec![column(0), repeat(10_000)], None));
    scan.run();
    assert_eq!(scan.outcome_of(read), Ok(ROWS as u64));
    let mut keys = Vec::new();
    for batch in batches(&scan, read) {
        let (k, v) = (batch.column(0).as_primitive::<Int32Type>(), batch.column(1).as_string::<i32>());
        assert!(v.value_data().len() <= 16 << 20, "{} bytes", v.value_data().len());
        for row in 0..batch.num_rows() {
            assert_eq!(v.value(row), format!("{:04}", k.value(row)).repeat(10_000));
            keys.push(k.value(row));
        }
    }
    keys.sort_unstable();
    assert_eq!(keys, (0..ROWS).collect::<Vec<i32>>());
    // Whoever takes one batch at a time has no more of them waiting.
    scan.effects.clear();
    let read = scan.submit_with(rows(vec![], vec![repeat(10_000)], None), Some(1));
    scan.run();
    assert_eq!(batches(&scan, read).len(), 1);
}

/// New versions of a segment's rows, an expression over its dictionary, and everything that is then read of it.
#[test]
fn a_segment_may_be_larger_than_a_batch() {
    let mut scan = scan();
    let update = Update { predicate: vec![], assignments: vec![(1, repeat(15_000))], returning: None };
    let update = scan.submit(OperationKind::Update(update));
    let returning = Some(vec![length(text())]);
    let more = call(Function::Concat, vec![text(), Expr::literal(Value::text("-"), Type::Text)], Type::Text);
    let again = Update { predicate: vec![], assignments: vec![(1, more)], returning };
    let again = scan.submit(OperationKind::Update(again));
    scan.run();
    assert_eq!(scan.outcome_of(update), Ok(ROWS as u64));
    assert_eq!(scan.outcome_of(again), Ok(ROWS as u64));
    assert_eq!(integers(&scan, again), vec![60_001; ROWS as usize]);
    let like = |pattern: &str, case_insensitive| Expr::Like {
        expr: Box::new(text()),
        pattern: Box::new(Expr::literal(Value::text(pattern), Type::Text)),
        escape: None,
        case_insensitive,
        negated: false,
    };
    let key = |column, descending| SortKey { column, descending, nulls_first: false };
    let top = || Some(Top { keys: vec![key(1, true)], limit: 3 });
    let in_code = scan.submit(rows(vec![like("%0777-", true)], vec![column(0)], None));
    let residual =
        equal(length(call(Function::Upper, vec![text()], Type::Text)), Value::Int4(60_001), Type::Int4);
    let residual = vec![
        equal(
            call(Function::Right, vec![repeat(1), Expr::literal(Value::Int4(5), Type::Int4)], Type::Text),
            Value::text("0778-"),
            Type::Text,
        ),
        residual,
    ];
    let residual = scan.submit(rows(residual, vec![column(0)], None));
    let first = scan.submit(rows(vec![], vec![column(0), text()], top()));
    let longest = AggregateCall::new(AggregateFunction::Max, Some(text()));
    let output = ReadOutput::Groups { group_by: vec![], aggregates: vec![longest], top: None };
    let longest = scan.submit(OperationKind::Read(Read { predicate: vec![], output }));
    let whole = scan.submit(rows(vec![], vec![text()], None));
    scan.run();
    assert_eq!(integers(&scan, in_code), [777]);
    assert_eq!(integers(&scan, residual), [778]);
    assert_eq!(integers(&scan, first), [1997, 1998, 1999]);
    let longest = scan.groups_of(longest)[0].states[0].finish().expect("a string");
    assert_eq!(longest, Value::text(format!("{}-", "1999".repeat(15_000))));
    let lengths = batches(&scan, whole)
        .iter()
        .map(|batch| batch.column(0).as_string::<i32>().value_data().len())
        .sum::<usize>();
    assert_eq!(lengths, 60_001 * ROWS as usize);
}

/// Few rows may have most of the bytes: what they took is free when nobody sees them any more.
#[test]
fn few_long_rows_are_collected() {
    const LONG: i32 = 20;
    let mut scan = scan();
    let before = scan.shard.memory();
    let is_long = || {
        vec![Expr::Compare {
            op: CompareOp::Lt,
            left: Box::new(column(0)),
            right: Box::new(Expr::literal(Value::Int4(LONG), Type::Int4)),
        }]
    };
    let longer = Update { predicate: is_long(), assignments: vec![(1, repeat(10_000))], returning: None };
    scan.submit(OperationKind::Update(longer));
    scan.run();
    scan.collect();
    assert!(scan.shard.memory() > LONG as usize * 40_000);
    let delete = scan.submit(OperationKind::Delete(Delete { predicate: is_long(), returning: None }));
    scan.run();
    assert_eq!(scan.outcome_of(delete), Ok(LONG as u64));
    scan.collect();
    assert!(scan.shard.memory() <= before + 10_000, "{before} bytes, then {}", scan.shard.memory());
    let rest = scan.submit(rows(vec![], vec![length(text())], None));
    scan.run();
    assert_eq!(integers(&scan, rest), vec![4; (ROWS - LONG) as usize]);
}

/// A single value has PostgreSQL's limit, and nothing is left of who passes it.
#[test]
fn one_value_may_be_too_long() {
    let mut scan = scan();
    let read = scan.submit(rows(vec![], vec![length(repeat(300_000_000))], None));
    let too_long = Update { predicate: vec![], assignments: vec![(1, repeat(300_000_000))], returning: None };
    let update = scan.submit(OperationKind::Update(too_long));
    let after = scan.submit(rows(vec![], vec![length(text())], None));
    scan.run();
    for refused in [read, update] {
        assert_eq!(scan.outcome_of(refused).map_err(|error| error.code), Err(SqlState::LIMIT_EXCEEDED));
    }
    assert_eq!(integers(&scan, after), vec![4; ROWS as usize]);
}

/// What a block of several rows takes at most, and something for its codes.
const BLOCK_BYTES: usize = 17 << 20;

/// The sizes of the blocks of a scan's rows, and how many rows each has. Whoever receives the blocks has all rows.
fn blocks(scan: &mut Scan) -> Vec<(usize, u64)> {
    let all = || OperationKind::Read(Read { predicate: vec![], output: ReadOutput::ContentHash });
    let hash_of = |effects: &[Effect], of: Ts| {
        let hash = |effect: &Effect| match effect {
            Effect::ContentHash { ts, hash, .. } if *ts == of => Some(*hash),
            _ => None,
        };
        effects.iter().find_map(hash)
    };
    let sent = scan.submit_as(all(), |ordered| (ordered.blocks, ordered.bulk) = (true, true));
    scan.run();
    let columns = scan.schema.columns.iter().map(|column| (column.name.as_str(), column.ty.clone()));
    let mut receiver = Scan::of(&columns.collect::<Vec<_>>(), vec![], Options::default());
    let mut sizes = Vec::new();
    for effect in &scan.effects {
        let Effect::Block { range, block, .. } = effect else { continue };
        sizes.push((block.len(), extent(block).expect("a block").rows));
        let (table, range, block) = (scan.schema.id, *range, block.clone());
        receiver.shard.install(Rows { table, range, until: None, begin: Ts(1), block }).expect("rows");
    }
    let received = receiver.submit(all());
    receiver.run();
    assert_eq!(hash_of(&receiver.effects, received), hash_of(&scan.effects, sent));
    assert_eq!(sizes.iter().map(|(_, rows)| rows).sum::<u64>(), scan.shard.rows(scan.schema.id) as u64);
    sizes
}

fn assert_fit(blocks: &[(usize, u64)], most: usize) {
    assert!(blocks.iter().all(|(bytes, rows)| *bytes <= BLOCK_BYTES || *rows == 1), "{blocks:?}");
    assert!(blocks.len() <= most, "{blocks:?}");
}

/// Wherever they are, and whether the others have many values or few: a dictionary is no larger than the rows of a block need it.
#[test]
fn few_long_rows_make_small_blocks() {
    const LONG: i32 = 24;
    const ALL: i32 = 6000;
    let first = |k: i32| k < LONG;
    let last = |k: i32| k >= ALL - LONG;
    let anywhere = |k: i32| k % (ALL / LONG) == 100;
    let places: [(&dyn Fn(i32) -> bool, usize); 3] = [(&first, 14), (&last, 5), (&anywhere, 6)];
    for ((is_long, most), few) in places.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let row = |k: i32| -> Row {
            let value = Value::text(format!("{:04}", if few { k % 10 } else { k }));
            let long = || Value::text(format!("{k:04}").repeat(375_000));
            let (v, w) = match is_long(k) {
                true if k % 2 == 0 => (long(), long()),
                true => (long(), Value::Null),
                false if k % 3 == 0 => (Value::Null, value),
                false => (value, Value::Null),
            };
            vec![Value::Int4(k), v, w]
        };
        let columns = [("k", Type::Int4), ("v", Type::Text), ("w", Type::Text)];
        let mut scan = Scan::of(&columns, (0..ALL).map(row).collect(), Options::default());
        let deleted = (0..ALL).filter(|k| is_long(*k)).step_by(5).chain([1000, 1001]);
        for k in deleted {
            scan.submit(OperationKind::Delete(Delete {
                predicate: vec![compare_equal(0, k)],
                returning: None,
            }));
        }
        scan.run();
        assert_fit(&blocks(&mut scan), most);
    }
}

#[test]
fn long_rows_that_are_not_encoded_make_small_blocks() {
    const LONG: i32 = 24;
    let mut scan = scan();
    let is_long = Expr::Compare {
        op: CompareOp::Lt,
        left: Box::new(column(0)),
        right: Box::new(Expr::literal(Value::Int4(LONG), Type::Int4)),
    };
    for (predicate, times) in [(vec![], 2), (vec![is_long], 375_000)] {
        scan.submit(OperationKind::Update(Update {
            predicate,
            assignments: vec![(1, repeat(times))],
            returning: None,
        }));
    }
    scan.run();
    // The new keys are encoded with the others, the new strings are not: rows of either kind go by themselves.
    assert_fit(&blocks(&mut scan), 7);
}

/// A segment has been encoded when long values come to it: those that have none of them do without.
#[test]
fn values_that_came_later_go_with_the_rows_that_have_them() {
    const EARLIER: i32 = 3000;
    const LATER: i32 = 10;
    let row = |k: i32| -> Row {
        let numeric = |number: i32| Value::Numeric(Numeric::new(number, 0));
        let few = Value::text(format!("{}", k % 5));
        match k < EARLIER {
            true if k % 7 == 0 => vec![Value::Int4(k), Value::Null, few, Value::Null, numeric(k)],
            true => {
                let long = Value::text(format!("{k:04}").repeat(3000));
                vec![Value::Int4(k), long, few, Value::Int8(k.into()), Value::Null]
            }
            false => {
                let long = |bytes: usize| Value::text(format!("{k:04}").repeat(bytes / 4));
                vec![Value::Int4(-k), long(1 << 20), long(1 << 20), Value::Int8((-k).into()), numeric(-k)]
            }
        }
    };
    let columns = [
        ("k", Type::Int4),
        ("v", Type::Text),
        ("w", Type::Text),
        ("n", Type::Int8),
        ("x", Type::Numeric(Some((30, 0)))),
    ];
    let options = Options { segment_rows: (EARLIER + LATER) as usize, ..Options::default() };
    let mut scan = Scan::of(&columns, (0..EARLIER).map(row).collect(), options);
    // The last row finds the segment full, and has it encoded.
    for later in [EARLIER..EARLIER + LATER, EARLIER + LATER..EARLIER + LATER + 1] {
        let rows: Vec<Row> = later.map(row).collect();
        let rows = batch_of(&scan.schema, &rows);
        let positions = scan.schema.partitioning.positions(&scan.schema.columns, &rows);
        let ordinals = (0..rows.num_rows() as u64).collect();
        let rows = InsertRows::Inline(RowBatch { rows, positions, ordinals });
        scan.submit(OperationKind::Insert(Insert { rows, on_conflict: OnConflict::Fail, returning: None }));
    }
    scan.run();
    assert_fit(&blocks(&mut scan), 6);
}

/// Many groups are given out in parts, of which each could be held a second time.
#[test]
fn groups_are_given_out_in_parts() {
    let mut scan = scan_of(40_000);
    let output = ReadOutput::Groups { group_by: vec![column(0), repeat(8)], aggregates: vec![], top: None };
    let read = scan.submit(OperationKind::Read(Read { predicate: Vec::new(), output }));
    let none = Read {
        predicate: vec![compare_equal(0, -1)],
        output: ReadOutput::Groups { group_by: vec![column(0)], aggregates: vec![], top: None },
    };
    let none = scan.submit(OperationKind::Read(none));
    scan.run();
    let parts = scan.parts_of_groups(read);
    let bytes = |part: &&[Group]| part.iter().map(Group::heap_size).sum::<usize>();
    assert!(parts.len() > 3, "{} parts", parts.len());
    assert!(parts.iter().all(|part| bytes(part) <= 1 << 20));
    assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 40_000);
    assert_eq!(scan.groups_of(none).len(), 0);
}

/// Groups are weighed as they are made, however few rows they come from: those of all these rows would take 800 MB.
#[test]
fn groups_of_computed_values_are_weighed_part_by_part() {
    let (ten_rows, limit) = (scan_of(10).shard.memory(), 30_000_000);
    let row = |k: i32| -> Row { vec![Value::Int4(k), Value::text(format!("{k:04}"))] };
    let columns = [("k", Type::Int4), ("v", Type::Text)];
    let options = Options { memory_bytes: Some(ten_rows + limit), ..Options::default() };
    let mut scan = Scan::of(&columns, (0..ROWS).map(row).collect(), options);
    let mut all = AggregateCall::new(AggregateFunction::StringAgg, Some(repeat(100_000)));
    all.further = vec![Expr::literal(Value::text(","), Type::Text)];
    let mut distinct = AggregateCall::new(AggregateFunction::Count, Some(repeat(100_000)));
    distinct.distinct = true;
    for (group_by, aggregates) in
        [(vec![repeat(100_000)], Vec::new()), (Vec::new(), vec![distinct]), (Vec::new(), vec![all])]
    {
        let output = ReadOutput::Groups { group_by, aggregates, top: None };
        let read = scan.submit(OperationKind::Read(Read { predicate: Vec::new(), output }));
        scan.run();
        let error = scan.outcome_of(read).expect_err("there is no room");
        assert_eq!(error.code, SqlState::OUT_OF_MEMORY);
        let detail = error.detail.as_deref().expect("it says how much");
        let bytes = detail.split(' ').find_map(|word| word.parse::<usize>().ok()).expect("a number");
        assert!((limit / 2..200_000_000).contains(&bytes), "{detail}");
    }
}

/// Keys of an order that are too long to be looked at together leave more rows than are wanted, and no error: which rows they
/// are looked at with depends on where they lie.
#[test]
fn rows_with_keys_too_long_to_be_compared_together_are_kept() {
    let mut scan = scan_of(800);
    let key = SortKey { column: 1, descending: false, nulls_first: false };
    let top = Top { keys: vec![key], limit: 400 };
    let read = scan.submit(rows(Vec::new(), vec![column(0), repeat(25_000)], Some(top)));
    scan.run();
    assert_eq!(scan.outcome_of(read), Ok(800));
    let found = integers(&scan, read);
    assert!((0..400).all(|k| found.contains(&k)), "{} rows", found.len());
}
