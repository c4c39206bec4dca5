//! Late operations: what is behind them goes on in other ranges, and everything answers as if they had come in their turn.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use carousel_engine::{
    Shard, TableId, Ts,
    aggregate::Group,
    operation::{Decision, Effect, Operation, OperationKind, OrderedOperation, Read, ReadOutput},
    position::KeyRange,
    shard::{Options, Progress},
};

use crate::{
    generate::{Generator, Random, random_schema},
    oracle::{World, batch_of, context},
};

/// A shard, and what has come out of it.
struct Store {
    shard: Shard,
    /// Operations that wait for their ranges.
    waiting: VecDeque<(OrderedOperation, Decision)>,
    /// What has been submitted, and how it ends if it is undecided and does not fail.
    open: BTreeMap<Ts, Option<Decision>>,
    /// What has been executed and waits for its decision.
    undecided: Vec<(Ts, Decision)>,
    answers: BTreeMap<Ts, Vec<String>>,
}

impl Store {
    fn new(shard: Shard) -> Store {
        Store {
            shard,
            waiting: VecDeque::new(),
            open: BTreeMap::new(),
            undecided: Vec::new(),
            answers: BTreeMap::new(),
        }
    }

    fn submit(&mut self, ordered: OrderedOperation, decision: Decision) {
        self.open.insert(ordered.ts, ordered.undecided.then_some(decision));
        self.shard.submit(ordered);
    }

    /// The ranges that operations have waited for are there.
    fn submit_late(&mut self) {
        for (ordered, decision) in std::mem::take(&mut self.waiting) {
            self.submit(OrderedOperation { late: true, ..ordered }, decision);
        }
    }

    /// Does something; whether there may be more to do.
    fn step(&mut self, random: &mut Random) -> bool {
        let mut effects = Vec::new();
        if !self.undecided.is_empty() && random.one_in(3) {
            let (ts, decision) = self.undecided.swap_remove(random.below(self.undecided.len()));
            self.shard.decide(ts, decision, &mut effects);
        }
        let progress = self.shard.step(&mut effects);
        effects.into_iter().for_each(|effect| self.take(effect));
        if random.one_in(4) {
            let waiting = self.waiting.front().map(|(ordered, _)| ordered.ts);
            let oldest = waiting.into_iter().chain(self.open.keys().copied()).min();
            self.shard.collect_garbage(oldest.unwrap_or(Ts::ZERO));
        }
        progress == Progress::Busy || !self.undecided.is_empty()
    }

    fn take(&mut self, effect: Effect) {
        let (ts, lines) = match effect {
            Effect::Executed { ts, outcomes } => {
                let fails = outcomes.iter().any(|(_, outcome)| outcome.is_err());
                if let Some(Some(decision)) = self.open.remove(&ts) {
                    self.undecided.push((ts, if fails { Decision::Abort } else { decision }));
                }
                if fails {
                    // Which of several errors counts, and what came before it, is for nobody to say.
                    self.answers.insert(ts, vec!["it fails".into()]);
                    return;
                }
                (ts, vec![format!("{outcomes:?}")])
            }
            Effect::Groups { ts, groups } => {
                // Sums that are equal may have come about in other ways.
                let values =
                    |group: &Group| group.states.iter().map(|state| state.finish()).collect::<Vec<_>>();
                (ts, groups.iter().map(|group| format!("{:?} {:?}", group.key, values(group))).collect())
            }
            Effect::ContentHash { ts, range, hash } => (ts, vec![format!("{range} {hash}")]),
            Effect::Rows { ts, range, batch } => {
                let row = |row| format!("{range} {:?}", batch.slice(row, 1).columns());
                (ts, (0..batch.num_rows()).map(row).collect())
            }
            Effect::Block { .. } | Effect::Took { .. } | Effect::Precut => return,
        };
        let answer = self.answers.entry(ts).or_default();
        answer.extend(lines);
        answer.sort();
    }
}

/// One history for two shards: in one everything comes in its turn, in the other some ranges are late now and then.
/// Returns how many operations were late.
fn run(seed: u64) -> usize {
    let random = &mut Random::new(seed, [20, 200, 3000][seed as usize % 3]);
    let schema = Arc::new(random_schema(random, 1));
    let third = u64::MAX / 3;
    let ranges = vec![
        KeyRange::new(0, third),
        KeyRange::new(third + 1, 2 * third),
        KeyRange::new(2 * third + 1, u64::MAX),
    ];
    let world = World { schema: schema.clone(), ranges: ranges.clone() };
    let options = Options {
        segment_rows: 2 + random.below(60),
        batch_rows: 1 + random.below(20),
        rows_in_doubt: random.below(6),
        ..Options::default()
    };
    let mut generator = Generator { random, schema: &schema, next_row_id: 0 };
    let rows = batch_of(&schema, &generator.distinct_rows(&world, 150));
    let mut next_row_id = generator.next_row_id.max(1000);
    let mut stores = [0, 1].map(|_| {
        let mut shard = Shard::new(0, 1, ranges.clone(), options);
        shard.restore_table(schema.clone());
        shard.restore(schema.id, &rows, Ts::ZERO).expect("rows in the layout");
        Store::new(shard)
    });
    let mut asked = Vec::new();
    let mut late = 0;
    let mut is_late = [false; 3];
    for number in 1..150 {
        if random.one_in(25) {
            is_late = [random.one_in(2), random.one_in(2), false];
            stores[1].submit_late();
        }
        let mut generator = Generator { random, schema: &schema, next_row_id };
        let mut kind = generator.operation(&world, &asked);
        next_row_id = generator.next_row_id;
        if let OperationKind::Read(read) = &mut kind {
            asked.push(read.clone());
            if let ReadOutput::Rows { top, .. } | ReadOutput::Groups { top, .. } = &mut read.output {
                // Which of the rows are wanted may be for nobody to say.
                *top = None;
            }
        }
        let is_write = kind.is_write();
        let undecided = is_write && random.one_in(3);
        let decision = if random.one_in(4) { Decision::Abort } else { Decision::Commit };
        let operation = Arc::new(Operation { table: schema.id, context: context(), kind });
        // A read with a range that is late is late as a whole.
        let waits = |at: usize| is_late[at] || !is_write && is_late.contains(&true);
        for part in [false, true] {
            let ranges: Vec<KeyRange> = ranges
                .iter()
                .enumerate()
                .filter(|(at, _)| waits(*at) == part)
                .map(|(_, range)| *range)
                .collect();
            if ranges.is_empty() {
                continue;
            }
            let ts = Ts(4 * number + u64::from(part));
            let ordered =
                OrderedOperation { undecided, ..OrderedOperation::new(ts, operation.clone(), ranges) };
            stores[0].submit(ordered.clone(), decision);
            if part {
                late += 1;
                stores[1].waiting.push_back((ordered, decision));
            } else {
                stores[1].submit(ordered, decision);
            }
        }
        for store in &mut stores {
            for _ in 0..random.below(4) {
                store.step(random);
            }
        }
    }
    let output = ReadOutput::ContentHash;
    let kind = OperationKind::Read(Read { predicate: Vec::new(), output });
    let operation = Arc::new(Operation { table: schema.id, context: context(), kind });
    for store in &mut stores {
        store.submit_late();
        store.submit(OrderedOperation::new(Ts(1_000), operation.clone(), ranges.clone()), Decision::Commit);
        while store.step(random) {}
        assert!(store.open.is_empty(), "seed {seed}: {:?} have not ended", store.open);
    }
    let [in_turn, late_ones] = &stores;
    for (ts, answer) in &in_turn.answers {
        assert_eq!(late_ones.answers.get(ts), Some(answer), "seed {seed}: the answer of {ts}");
    }
    late
}

#[test]
fn late_operations_answer_as_if_they_had_come_in_their_turn() {
    let late: usize = (0..300).map(run).sum();
    assert!(late > 10_000, "{late}");
}

#[test]
#[should_panic(expected = "has been read")]
fn what_has_been_read_is_not_written_late() {
    let mut scan = crate::sharing::Scan::with(10, Options::default());
    let submit = |scan: &mut crate::sharing::Scan, ts: u64, kind: OperationKind, late: bool| {
        let operation = Arc::new(Operation { table: TableId(1), context: context(), kind });
        scan.shard.submit(OrderedOperation {
            late,
            ..OrderedOperation::new(Ts(ts), operation, vec![KeyRange::FULL])
        });
        while scan.shard.step(&mut Vec::new()) == Progress::Busy {}
    };
    let output = ReadOutput::ContentHash;
    submit(&mut scan, 100, OperationKind::Read(Read { predicate: Vec::new(), output }), false);
    submit(&mut scan, 50, OperationKind::Truncate, true);
}
