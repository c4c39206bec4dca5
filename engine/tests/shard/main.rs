//! Shards against an oracle: random schemas, rows, operations, decisions, segment boundaries, shards, key ranges and
//! garbage collections; changes of the key ranges and rows that move; every answer and every content hash must be the
//! one that a naive evaluator gets by applying the operations one after the other, in the order of their `Ts`, to a list
//! of rows.

mod compaction;
mod errors;
mod first;
mod generate;
mod grouping;
mod joining;
mod large;
mod late;
mod limits;
mod moving;
mod nonsense;
mod oracle;
mod plans;
mod sharing;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, mpsc},
};

use carousel_engine::{
    Few, Shard, SqlError, Ts, Type, Value,
    aggregate::{Group, GroupTable},
    array::arrow_cell_to_value,
    encoding::Encoding,
    operation::{
        Decision, Effect, InsertRows, Operation, OperationKind, OrderedOperation, PayloadId, Read,
        ReadOutput, RowBatch, Top,
    },
    pack::Packing,
    position::{KeyRange, boundaries},
    shard::{Options, Progress},
};
use generate::{Generator, Random, random_schema};
use moving::{Move, Moving, random_ranges};
use oracle::{
    Answer, Row, World, batch_of, compare_rows, context, evaluate, groups, qualifies, show, types_of,
};

/// One ordered operation with what it must answer.
struct Step {
    /// The key ranges at its time, and how they have changed just before it.
    world: Arc<World>,
    change: Option<Move>,
    ordered: OrderedOperation,
    answers: Vec<Answer>,
    wanted: Vec<bool>,
    /// For undecided writes: how they end.
    decision: Decision,
    hash: Option<Vec<u128>>,
    /// A read that may be cancelled at any time.
    cancelled: bool,
}

/// What came out of one shard for one operation.
#[derive(Default)]
struct Collected {
    rows: BTreeMap<KeyRange, Vec<String>>,
    values: Vec<Row>,
    hashes: BTreeMap<KeyRange, u128>,
    groups: Vec<Group>,
    outcomes: Option<Few<(KeyRange, Result<u64, SqlError>)>>,
}

/// Rows that were staged for one shard and have not been supplied.
#[derive(Default)]
struct Store {
    pieces: VecDeque<(Ts, Arc<RowBatch>, bool)>,
    /// Pieces that the shard has and has not said to have taken.
    supplied: usize,
}

impl Store {
    /// Some inserts leave their rows here, cut into pieces.
    fn stage(&mut self, ordered: &OrderedOperation, random: &mut Random) -> OrderedOperation {
        let mut ordered = ordered.clone();
        let OperationKind::Insert(insert) = &ordered.operation.kind else { return ordered };
        let InsertRows::Inline(batch) = &insert.rows else { return ordered };
        let rows = batch.rows.num_rows();
        if rows == 0 || random.one_in(2) {
            return ordered;
        }
        let mut first = 0;
        while first < rows {
            let count = 1 + random.below(rows - first);
            let piece = RowBatch {
                rows: batch.rows.slice(first, count),
                positions: batch.positions[first..first + count].to_vec(),
                ordinals: batch.ordinals[first..first + count].to_vec(),
            };
            first += count;
            self.pieces.push_back((ordered.ts, Arc::new(piece), first == rows));
        }
        let mut insert = insert.clone();
        insert.rows = InsertRows::Staged(PayloadId { process: 1, incarnation: 1, sequence: ordered.ts.0 });
        let (table, context) = (ordered.operation.table, ordered.operation.context.clone());
        ordered.operation = Arc::new(Operation { table, context, kind: OperationKind::Insert(insert) });
        ordered
    }

    fn supply(&mut self, shard: &mut Shard, count: usize, effects: &mut Vec<Effect>) {
        for (ts, rows, last) in self.pieces.drain(..count.min(self.pieces.len())) {
            shard.supply(ts, rows, last, effects);
            self.supplied += 1;
        }
    }

    fn count_taken(&mut self, effects: &[Effect]) {
        let taken = effects.iter().filter(|effect| matches!(effect, Effect::Took { .. })).count();
        assert!(taken <= self.supplied, "more pieces were taken than supplied");
        self.supplied -= taken;
    }

    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.supplied == 0
    }
}

/// Batches of one shard that nobody has asked to be followed by others, by operation.
#[derive(Default)]
struct Windows(BTreeMap<Ts, u32>);

impl Windows {
    fn count(&mut self, steps: &[Step], effects: &[Effect]) {
        for effect in effects {
            let Effect::Rows { ts, .. } = effect else { continue };
            let step = steps.iter().find(|step| step.ordered.ts == *ts).expect("an operation of the history");
            let Some(window) = step.ordered.window.filter(|_| !step.ordered.operation.kind.is_write()) else {
                continue;
            };
            let unread = self.0.entry(*ts).or_default();
            *unread += 1;
            // The last rows of several ranges come out together.
            let most = window + step.ordered.ranges.len() as u32 - 1;
            assert!(*unread <= most, "{unread} batches of a window of {window} at {ts}");
        }
    }

    fn allow(&mut self, shard: &mut Shard, random: &mut Random, effects: &mut Vec<Effect>) {
        for (ts, unread) in &mut self.0 {
            let batches = random.below(*unread as usize + 1) as u32;
            *unread -= batches;
            shard.allow(*ts, batches, effects);
        }
    }
}

fn full_hash(world: &World, rows: &[Row]) -> Vec<u128> {
    let mut shard = Shard::new(0, 1, world.ranges.clone(), Options::default());
    shard.restore_table(world.schema.clone());
    shard.restore(world.schema.id, &batch_of(&world.schema, rows), Ts::ZERO).expect("rows in the layout");
    hash_of(world, read_all(&mut shard, world, Ts(1), false))
}

/// Somebody who packs the blocks of a shard, at some time.
fn packer(shard: &mut Shard) -> mpsc::Receiver<Box<Packing>> {
    let (blocks, received) = mpsc::channel();
    shard.pack_elsewhere(blocks);
    received
}

/// Somebody who encodes the columns of a shard, at some time.
fn encoder(shard: &mut Shard) -> mpsc::Receiver<Box<Encoding>> {
    let (columns, received) = mpsc::channel();
    shard.encode_elsewhere(columns);
    received
}

/// Encodes the column that was left to somebody first. Returns whether there was one.
fn encode(shard: &mut Shard, encoder: &mpsc::Receiver<Box<Encoding>>) -> bool {
    let next = encoder.try_recv();
    next.map(|mut encoding| {
        encoding.encode();
        shard.encoded(*encoding);
    })
    .is_ok()
}

/// Effects of a read of everything: of the content hashes, with or without the rows as blocks.
fn read_all(shard: &mut Shard, world: &World, ts: Ts, blocks: bool) -> Vec<Effect> {
    let output = ReadOutput::ContentHash;
    let operation = Operation {
        table: world.schema.id,
        context: context(),
        kind: OperationKind::Read(Read { predicate: vec![], output }),
    };
    shard.submit(OrderedOperation {
        blocks,
        bulk: true,
        ..OrderedOperation::new(ts, Arc::new(operation), world.ranges.clone())
    });
    let mut effects = Vec::new();
    while shard.step(&mut effects) == Progress::Busy {}
    effects
}

/// The content hashes among effects, by range.
fn hash_of(world: &World, effects: Vec<Effect>) -> Vec<u128> {
    let mut hashes = vec![0u128; world.ranges.len()];
    for effect in effects {
        if let Effect::ContentHash { range, hash, .. } = effect {
            let at = world.ranges.iter().position(|r| *r == range).expect("a range of the world");
            hashes[at] = hashes[at].wrapping_add(hash);
        }
    }
    hashes
}

fn may_fail_across_shards(kind: &OperationKind) -> bool {
    !matches!(kind, OperationKind::Truncate)
}

/// How large a history is.
struct Scale {
    /// Values are drawn from about as many.
    spread: usize,
    rows: usize,
    operations: usize,
    segment_rows: usize,
}

/// Names the history that a test fails in.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the history of SEED={}", self.0);
        }
    }
}

/// Returns the number of operations.
fn run(seed: u64, scale: &Scale) -> usize {
    let _named = Named(seed);
    let random = &mut Random::new(seed, scale.spread);
    let schema = random_schema(random, 1);
    let shard_count = 1 + random.below(3) as u32;
    let first_ranges = random_ranges(random);
    let mut world = Arc::new(World { schema: Arc::new(schema), ranges: first_ranges.clone() });

    // The history, and what the oracle says about it.
    let mut state = Vec::new();
    let initial = {
        let mut generator = Generator { random, schema: &world.schema, next_row_id: 0 };
        let count = generator.random.below(scale.rows);
        generator.distinct_rows(&world, count)
    };
    state.extend(initial.iter().cloned());
    let mut history: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
    let mut steps: Vec<Step> = Vec::new();
    let mut next_row_id = 1000;
    let mut asked = Vec::new();
    let mut ts = 10;
    for _ in 0..10 + random.below(scale.operations) {
        ts += 1 + random.next() % 2;
        let mut change = None;
        if random.one_in(12) {
            let schema = world.schema.clone();
            world = Arc::new(World { schema, ranges: random_ranges(random) });
            ts += 100;
            let made = Move::new(Ts(ts - 90), &world.ranges, random);
            if !made.recut.received.is_empty() {
                // Older prefixes of what is received cannot be read.
                history.clear();
            }
            change = Some(made);
        }
        let mut generator = Generator { random, schema: &world.schema, next_row_id };
        let kind = generator.operation(&world, &asked);
        if let OperationKind::Read(read) = &kind {
            asked.push(read.clone());
        }
        next_row_id = generator.next_row_id;
        history.insert(ts, state.clone());
        let is_write = kind.is_write();
        let wanted: Vec<bool> = world.ranges.iter().map(|_| is_write || !random.one_in(3)).collect();
        let mut read_ts = ts;
        if !is_write && random.one_in(3) {
            read_ts = *random.pick(&history.keys().copied().collect::<Vec<_>>());
        }
        let prediction = world.predict(&kind, &history[&read_ts], &wanted);
        let fails = prediction.answers.iter().any(|answer| !answer.errors.is_empty());
        let undecided = is_write && ((shard_count > 1 && may_fail_across_shards(&kind)) || random.one_in(3));
        let decision =
            if fails || (undecided && random.one_in(4)) { Decision::Abort } else { Decision::Commit };
        let hash = match &kind {
            OperationKind::Read(Read { predicate, output: ReadOutput::ContentHash }) if !fails => {
                let selected: Vec<Row> = history[&read_ts]
                    .iter()
                    .filter(|row| qualifies(predicate, row) == Ok(true))
                    .cloned()
                    .collect();
                Some(full_hash(&world, &selected))
            }
            _ => None,
        };
        if is_write && decision == Decision::Commit {
            state = prediction.after;
        }
        let window = random.one_in(3).then(|| 1 + random.below(4) as u32);
        let ranges: Vec<KeyRange> = world
            .ranges
            .iter()
            .zip(&wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|(range, _)| *range)
            .collect();
        let operation = Arc::new(Operation { table: world.schema.id, context: context(), kind });
        steps.push(Step {
            world: world.clone(),
            change,
            ordered: OrderedOperation {
                read_ts: Ts(read_ts),
                undecided,
                window,
                bulk: random.one_in(4),
                ..OrderedOperation::new(Ts(ts), operation, ranges)
            },
            answers: prediction.answers,
            wanted,
            decision,
            hash,
            cancelled: !is_write && random.one_in(12),
        });
    }
    let last_ts = ts + 1;

    // The shards, each at its own pace.
    let options = Options {
        segment_rows: 2 + random.below(scale.segment_rows),
        probe_together: 1 + random.below(4),
        selective_share: 1 + random.below(20),
        batch_rows: 1 + random.below(40),
        passes_to_order: random.below(3) * random.below(6),
        group_by_code: random.below(30),
        compact_cells: 1 << random.below(16),
        block_cells: 1 << random.below(16),
        keys_together: 1 << random.below(10),
        small_part: 1 + random.below(24),
        plain_rows: 1 << random.below(8),
        rows_in_doubt: random.below(4) * random.below(8),
        memory_bytes: None,
    };
    let mut shards: Vec<Shard> =
        (0..shard_count).map(|index| Shard::new(index, shard_count, first_ranges.clone(), options)).collect();
    let initial = batch_of(&world.schema, &initial);
    for shard in &mut shards {
        shard.restore_table(world.schema.clone());
        shard.restore(world.schema.id, &initial, Ts(random.next() % 5)).expect("rows in the layout");
    }
    let packers: Vec<_> = shards.iter_mut().map(|shard| random.one_in(2).then(|| packer(shard))).collect();
    let encoders: Vec<_> = shards.iter_mut().map(|shard| random.one_in(2).then(|| encoder(shard))).collect();
    let mut moving: Vec<Option<Moving>> = shards.iter().map(|_| None).collect();
    let mut submitted = vec![0; shards.len()];
    let mut stores: Vec<Store> = shards.iter().map(|_| Store::default()).collect();
    let mut told: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); shards.len()];
    let mut precuts = vec![0; shards.len()];
    let mut collected: Vec<BTreeMap<u64, Collected>> = shards.iter().map(|_| BTreeMap::new()).collect();
    let mut windows: Vec<Windows> = shards.iter().map(|_| Windows::default()).collect();
    loop {
        let index = random.below(shards.len());
        let shard = &mut shards[index];
        let mut effects = Vec::new();
        match random.below(11) {
            0..=2 => {
                for _ in 0..1 + random.below(10) {
                    if submitted[index] < steps.len() {
                        if !Moving::is_done(&mut moving[index], &steps[submitted[index]], shard) {
                            break;
                        }
                        let ordered = &steps[submitted[index]].ordered;
                        shard.submit(stores[index].stage(ordered, random));
                        submitted[index] += 1;
                    }
                }
            }
            8 => stores[index].supply(shard, 1 + random.below(4), &mut effects),
            9 => windows[index].allow(shard, random, &mut effects),
            10 => {
                for step in steps[..submitted[index]].iter().filter(|step| step.cancelled) {
                    // In the middle of a visit, which happens in a thread of its own; and then at the next.
                    if random.one_in(8) {
                        shard.given_up().give_up(step.ordered.ts);
                    }
                    if random.one_in(8) {
                        shard.cancel(step.ordered.ts, &mut effects);
                    }
                }
                // Each begins anew what those before it have not ended.
                if precuts[index] < MOST_PRECUTS && random.one_in(3) {
                    precuts[index] += 1;
                    // Where the next change cuts, or anywhere.
                    let next = steps.get(submitted[index]).and_then(|step| step.change.as_ref());
                    let at =
                        next.map(|change| boundaries(change.recut.held.iter().chain(&change.recut.cuts)));
                    shard.precut(at.unwrap_or_else(|| vec![random.next(), random.next()]));
                }
            }
            3..=5 => {
                for _ in 0..1 + random.below(3) {
                    shard.step(&mut effects);
                }
                if let Some(packer) = &packers[index]
                    && random.one_in(2)
                    && let Ok(mut packing) = packer.try_recv()
                {
                    while random.one_in(2) {
                        packing.pack_some();
                    }
                    shard.packed(*packing, &mut effects);
                }
                if let Some(encoder) = &encoders[index]
                    && random.one_in(2)
                {
                    encode(shard, encoder);
                }
            }
            6 => {
                for step in &steps {
                    let ts = step.ordered.ts;
                    if !step.ordered.undecided || told[index].contains(&ts.0) {
                        continue;
                    }
                    // The decision is known when all shards have voted; elsewhere it may be known at any time.
                    let all_voted = collected
                        .iter()
                        .all(|c| c.get(&ts.0).is_some_and(|collected| collected.outcomes.is_some()));
                    if (all_voted && random.one_in(2)) || random.one_in(60) {
                        told[index].insert(ts.0);
                        shard.decide(ts, step.decision, &mut effects);
                    }
                }
            }
            _ => {
                let pinned = steps[submitted[index]..].iter().map(|step| step.ordered.read_ts.0).min();
                // What others are to receive is kept until they have it.
                let next = steps.get(submitted[index]).and_then(|step| step.change.as_ref());
                let kept = next.map_or(last_ts, |change| change.recut.ts.0 - 1);
                let horizon = pinned.unwrap_or(last_ts).min(kept).min(random.next() % (last_ts + 1));
                for _ in 0..random.below(8) {
                    shard.collect_garbage(Ts(horizon));
                }
            }
        }
        stores[index].count_taken(&effects);
        if let Some(moving) = &mut moving[index] {
            effects = moving.go_on(shard, effects, random);
        }
        windows[index].count(&steps, &effects);
        collect(&steps, &mut collected[index], effects);
        let all_told = steps
            .iter()
            .all(|step| !step.ordered.undecided || told.iter().all(|told| told.contains(&step.ordered.ts.0)));
        if all_told
            && stores.iter().all(Store::is_empty)
            && submitted.iter().all(|n| *n == steps.len())
            && shards.iter().all(Shard::is_idle)
        {
            break;
        }
    }
    if is_alone() {
        for (index, step) in steps.iter().enumerate() {
            let kind = format!("{:?}", step.ordered.operation.kind);
            eprintln!(
                "{index} {} reads {} undecided {} {:?} {:?}\n   {}",
                step.ordered.ts,
                step.ordered.read_ts,
                step.ordered.undecided,
                step.decision,
                step.answers,
                &kind.chars().take(if kind.starts_with("Insert") { 300 } else { 900 }).collect::<String>()
            );
            for shard in &collected {
                eprintln!("      {:?}", shard.get(&step.ordered.ts.0).map(|c| (&c.outcomes, &c.rows)));
            }
        }
    }
    for (index, step) in steps.iter().enumerate() {
        check(seed, index, step, &step.world, &collected);
    }

    drop(packers);
    for (shard, encoder) in shards.iter_mut().zip(encoders) {
        while encoder.as_ref().is_some_and(|encoder| encode(shard, encoder)) {}
    }

    // What is left.
    let expected = full_hash(&world, &state);
    let mut found = vec![0u128; world.ranges.len()];
    for shard in &mut shards {
        for step in steps.iter().filter(|step| step.cancelled) {
            shard.cancel(step.ordered.ts, &mut Vec::new());
        }
        while shard.collect_garbage(Ts(last_ts)) == Progress::Busy {}
        let hashes = read_all(shard, &world, Ts(last_ts), false);
        found.iter_mut().zip(hash_of(&world, hashes)).for_each(|(sum, hash)| *sum = sum.wrapping_add(hash));
    }
    assert_eq!(found, expected, "seed {seed}: final content");
    let rows: usize = shards.iter().map(|shard| shard.rows(world.schema.id)).sum();
    assert_eq!(rows, state.len(), "seed {seed}: final rows");
    moving::check_blocks(&world, &mut shards, Ts(last_ts + 1), &expected, random);
    steps.len()
}

fn collect(steps: &[Step], collected: &mut BTreeMap<u64, Collected>, effects: Vec<Effect>) {
    for effect in effects {
        match effect {
            Effect::Rows { ts, range, batch } => {
                let step =
                    steps.iter().find(|step| step.ordered.ts == ts).expect("an operation of the history");
                let mut types = match &step.ordered.operation.kind {
                    OperationKind::Read(Read { output: ReadOutput::Rows { projection, .. }, .. }) => {
                        types_of(projection)
                    }
                    OperationKind::Insert(insert) => {
                        let mut types = types_of(insert.returning.as_deref().unwrap_or(&[]));
                        types.insert(0, Type::Int8);
                        types
                    }
                    OperationKind::Update(update) => types_of(update.returning.as_deref().unwrap_or(&[])),
                    OperationKind::Delete(delete) => types_of(delete.returning.as_deref().unwrap_or(&[])),
                    other => panic!("no rows come from {other:?}"),
                };
                let Collected { rows, values: all, .. } = collected.entry(ts.0).or_default();
                let rows = rows.entry(range).or_default();
                for row in 0..batch.num_rows() {
                    let values: Vec<Value> = batch
                        .columns()
                        .iter()
                        .zip(&mut types)
                        .map(|(array, ty)| arrow_cell_to_value(array.as_ref(), row, ty))
                        .collect();
                    rows.push(show(&values, &types));
                    all.push(values);
                }
            }
            Effect::ContentHash { ts, range, hash } => {
                collected.entry(ts.0).or_default().hashes.insert(range, hash);
            }
            Effect::Took { .. } | Effect::Block { .. } | Effect::Precut => {}
            Effect::Groups { ts, groups } => collected.entry(ts.0).or_default().groups.extend(groups),
            Effect::Executed { ts, outcomes } => {
                let entry = collected.entry(ts.0).or_default();
                assert!(entry.outcomes.is_none(), "an operation is executed once");
                entry.outcomes = Some(outcomes);
            }
        }
    }
}

fn check(seed: u64, index: usize, step: &Step, world: &World, shards: &[BTreeMap<u64, Collected>]) {
    let ts = step.ordered.ts;
    let kind = &step.ordered.operation.kind;
    let what = || format!("seed {seed}, operation {index} at {ts}: {kind:?} over {:?}", world.schema);
    let fails_somewhere = step.answers.iter().any(|answer| !answer.errors.is_empty());
    if step.cancelled {
        let is_executed = |shard: &BTreeMap<u64, Collected>| shard[&ts.0].outcomes.is_some();
        assert!(shards.iter().all(is_executed), "not executed: {}", what());
        return;
    }
    if let OperationKind::Read(Read { output: ReadOutput::Rows { projection, top: Some(top), .. }, .. }) =
        kind
        && !fails_somewhere
    {
        check_first(&types_of(projection), top, step, shards, &what);
    }
    if let OperationKind::Read(Read {
        output: output @ ReadOutput::Groups { group_by, aggregates, top }, ..
    }) = kind
        && !fails_somewhere
    {
        let mut table = GroupTable::for_read(group_by, aggregates);
        for shard in shards {
            table.merge(shard[&ts.0].groups.clone()).expect("groups of one read");
        }
        let mut types = types_of(group_by);
        types.extend(aggregates.iter().map(|call| call.result_type().expect("an aggregate that exists")));
        let rows: Vec<Row> = step.answers.iter().flat_map(|answer| answer.qualifying.clone()).collect();
        let mut expected = groups(output, &rows);
        let mut finished = table.finish().expect("sums in range");
        if let Some(top) = top {
            // Groups beyond the limit may be left out: those of an order are the first of all groups.
            let limit = top.limit.min(expected.len() as u64) as usize;
            assert!(finished.len() >= limit, "groups are missing: {}", what());
            for shard in shards {
                assert!(shard[&ts.0].groups.len() as u64 <= top.limit, "too many groups: {}", what());
            }
            let mut all = GroupTable::for_read(group_by, aggregates);
            let keys =
                |row: &Row| group_by.iter().map(|expr| evaluate(expr, row).expect("a column")).collect();
            all.merge(rows.iter().map(|row| Group { key: keys(row), states: vec![] })).expect("groups");
            let mut all = all.finish().expect("groups without aggregates");
            let by_keys = |a: &(Row, Row), b: &(Row, Row)| compare_rows(&a.0, &b.0, &top.keys, &types);
            all.sort_by(by_keys);
            finished.sort_by(by_keys);
            for (found, first) in finished.iter().zip(&all).take(limit) {
                assert!(by_keys(found, first).is_eq(), "{found:?} where {first:?} is first: {}", what());
            }
        }
        let mut found: Vec<String> = finished
            .into_iter()
            .map(|(key, results)| {
                let key = show(&key, &types[..key.len()]);
                format!("{key}|{}", show(&results, &types[types.len() - results.len()..]))
            })
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        if top.is_some() {
            expected.retain(|group| found.contains(group));
        }
        assert_eq!(found, expected, "groups: {}", what());
    }
    let aborted = step.ordered.undecided && step.decision == Decision::Abort;
    for (place, range) in world.ranges.iter().enumerate().filter(|(place, _)| step.wanted[*place]) {
        let mut count = 0;
        let mut rows = Vec::new();
        let mut errors = BTreeSet::new();
        let mut hash = 0u128;
        for shard in shards {
            let collected = shard.get(&ts.0).unwrap_or_else(|| panic!("no answer: {}", what()));
            let outcomes = collected.outcomes.as_ref().unwrap_or_else(|| panic!("not executed: {}", what()));
            let (_, outcome) = outcomes.iter().find(|(r, _)| r == range).expect("an outcome for each range");
            match outcome {
                Ok(n) => count += n,
                Err(error) => {
                    errors.insert(error.code.as_str().to_owned());
                }
            }
            rows.extend(collected.rows.get(range).into_iter().flatten().cloned());
            hash = hash.wrapping_add(collected.hashes.get(range).copied().unwrap_or(0));
        }
        let answer = &step.answers[place];
        let may_fail_with = match !step.ordered.undecided {
            // The shard fails as a whole.
            true => step.answers.iter().flat_map(|answer| answer.errors.clone()).collect(),
            false => answer.errors.clone(),
        };
        assert!(errors.is_subset(&may_fail_with), "errors {errors:?}: {}", what());
        if let OperationKind::Read(Read { output: ReadOutput::Rows { top: Some(top), .. }, .. }) = kind {
            // Any rows may be left out beyond the limit, and with them their errors.
            if may_fail_with.is_empty() {
                let total: usize = step.answers.iter().map(|answer| answer.rows.len()).sum();
                let mut rest = answer.rows.clone();
                for row in &rows {
                    let at = rest.iter().position(|other| other == row);
                    rest.swap_remove(at.unwrap_or_else(|| panic!("row {row}: {}", what())));
                }
                let enough = rest.is_empty() || total as u64 >= top.limit;
                assert!(enough, "rows are missing: {}", what());
            }
            continue;
        }
        if matches!(kind, OperationKind::Read(Read { output: ReadOutput::Groups { top: Some(_), .. }, .. })) {
            // What need not be looked at is not counted either.
            continue;
        }
        // An early abort may come before the vote.
        if !aborted {
            assert_eq!(errors.is_empty(), may_fail_with.is_empty(), "errors {errors:?}: {}", what());
        }
        if aborted || fails_somewhere {
            continue;
        }
        if !matches!(kind, OperationKind::Truncate) {
            assert_eq!(count, answer.count, "count in {range}: {}", what());
        }
        let mut expected = answer.rows.clone();
        expected.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, expected, "rows in {range}: {}", what());
        if let Some(hashes) = &step.hash {
            assert_eq!(hash, hashes[place], "hash of {range}: {}", what());
        }
    }
}

/// Checks that the first rows of an order are among those that came, and that no shard sent more than that.
fn check_first(
    types: &[Type],
    top: &Top,
    step: &Step,
    shards: &[BTreeMap<u64, Collected>],
    what: &dyn Fn() -> String,
) {
    let ts = step.ordered.ts;
    let mut found: Vec<&Row> = Vec::new();
    for shard in shards {
        let values = &shard[&ts.0].values;
        assert!(values.len() as u64 <= top.limit, "too many rows: {}", what());
        found.extend(values);
    }
    let mut expected: Vec<&Row> = step.answers.iter().flat_map(|answer| &answer.values).collect();
    let by_keys = |a: &&Row, b: &&Row| compare_rows(a, b, &top.keys, types);
    found.sort_by(by_keys);
    expected.sort_by(by_keys);
    let limit = expected.len().min(top.limit as usize);
    assert!(found.len() >= limit, "rows are missing: {}", what());
    for (found, first) in found.iter().zip(&expected).take(limit) {
        assert!(by_keys(found, first).is_eq(), "{found:?} where {first:?} is first: {}", what());
    }
}

fn number_from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Whether one history is run and printed.
fn is_alone() -> bool {
    let is_set = |name| std::env::var(name).is_ok();
    is_set("SEED") && !is_set("SEEDS") && !is_set("LARGE_SEEDS")
}

/// The histories to be run, by their seeds: `SEED` and what follows it, as many as the environment says.
fn seeds(name: &str, otherwise: u64) -> std::ops::Range<u64> {
    let from = number_from_environment("SEED", 0);
    from..from + number_from_environment(name, if is_alone() { 1 } else { otherwise })
}

/// More than 100,000 operations. `SEED` and `SEEDS` choose which histories are run; `SEED` alone prints one. A long run:
/// `SEEDS=1000000 LARGE_SEEDS=20000 cargo test --release -p carousel-engine --test shard`.
#[test]
fn small_histories_are_the_oracles() {
    let scale = Scale { spread: 0, rows: 30, operations: 50, segment_rows: 40 };
    let seeds = seeds("SEEDS", 3000);
    let are_many = seeds.end - seeds.start >= 3000;
    let operations: usize = seeds.map(|seed| run(seed, &scale)).sum();
    // A piece of which one segment was gone led to where others' rows had come.
    run(140_181, &scale);
    assert!(!are_many || operations >= 100_000, "{operations} operations are few");
}

/// Cuts before a change that a history asks a shard for.
const MOST_PRECUTS: u32 = 12;

/// Segments of many words, all widths of codes, and enough riders for the shared index.
#[test]
fn large_histories_are_the_oracles() {
    let scale = Scale { spread: 3000, rows: 1200, operations: 60, segment_rows: 700 };
    for seed in seeds("LARGE_SEEDS", 40) {
        run(seed, &scale);
    }
}
