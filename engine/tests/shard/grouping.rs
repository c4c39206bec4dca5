//! Groups by the codes of segments beside groups by values.

use std::sync::Arc;

use carousel_engine::{
    Shard, Ts,
    aggregate::GroupTable,
    operation::{Effect, Operation, OperationKind, OrderedOperation, ReadOutput, Update},
    position::KeyRange,
    shard::{Options, Progress},
};

use crate::{
    generate::{Generator, Random, random_schema},
    oracle::{World, batch_of, context, show, types_of},
};

/// The groups as text, and the outcome.
fn answer(shard: &mut Shard, ts: u64, operation: &Arc<Operation>) -> (Vec<String>, String) {
    shard.submit(OrderedOperation::new(Ts(ts), operation.clone(), vec![KeyRange::FULL]));
    let mut effects = Vec::new();
    while shard.step(&mut effects) == Progress::Busy {}
    while shard.collect_garbage(Ts(ts + 1)) == Progress::Busy {}
    let (mut lines, mut outcome) = (Vec::new(), String::new());
    for effect in effects {
        match (effect, &operation.kind) {
            (Effect::Groups { groups, .. }, OperationKind::Read(read)) => {
                let ReadOutput::Groups { group_by, aggregates, .. } = &read.output else { continue };
                let mut table = GroupTable::for_read(group_by, aggregates);
                table.merge(groups).expect("groups of the same aggregates");
                let results: Vec<_> =
                    aggregates.iter().map(|call| call.result_type().expect("it has")).collect();
                lines.extend(table.finish().expect("sums in range").iter().map(|(key, values)| {
                    format!("{} -> {}", show(key, &types_of(group_by)), show(values, &results))
                }));
            }
            (Effect::Executed { outcomes, .. }, _) => outcome = format!("{outcomes:?}"),
            _ => {}
        }
    }
    lines.sort();
    (lines, outcome)
}

#[test]
fn codes_and_values_make_the_same_groups() {
    let mut encoded = 0;
    for seed in 0..60 {
        let random = &mut Random::new(seed, [0, 40, 3000][seed as usize % 3]);
        let schema = Arc::new(random_schema(random, 1));
        let world = World { schema: schema.clone(), ranges: vec![KeyRange::FULL] };
        let batch_rows = 1 + random.below(10);
        let mut generator = Generator { random, schema: &schema, next_row_id: 0 };
        let rows = batch_of(&schema, &generator.distinct_rows(&world, 500));
        let mut shards = [0, usize::MAX].map(|group_by_code| {
            let options = Options { segment_rows: 120, group_by_code, batch_rows, ..Options::default() };
            let mut shard = Shard::new(0, 1, vec![KeyRange::FULL], options);
            shard.restore_table(schema.clone());
            shard.restore(schema.id, &rows, Ts::ZERO).expect("rows in the layout");
            while shard.collect_garbage(Ts(1)) == Progress::Busy {}
            shard
        });
        encoded += usize::from(rows.num_rows() > 120);
        for ts in 10..60 {
            let kind = match generator.random.one_in(5) {
                true => OperationKind::Update(Update {
                    predicate: generator.predicate(),
                    assignments: generator.assignments(false),
                    returning: None,
                }),
                false => {
                    let mut read = generator.groups();
                    if generator.random.one_in(2) {
                        read.predicate.clear();
                    }
                    if let ReadOutput::Groups { top, .. } = &mut read.output {
                        // Which of the groups are wanted may be for nobody to say.
                        *top = None;
                    }
                    OperationKind::Read(read)
                }
            };
            let operation = Arc::new(Operation { table: schema.id, context: context(), kind });
            let [by_code, by_value] = &mut shards;
            let expected = answer(by_value, ts, &operation);
            assert_eq!(answer(by_code, ts, &operation), expected, "seed {seed}: {:?}", operation.kind);
        }
    }
    assert!(encoded > 20, "{encoded} tables with encoded segments are few");
}
