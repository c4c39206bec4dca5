//! Operations are indexed on the attribute of which a segment's own statistics say that it leaves the fewest rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array};

use super::{ColumnTest, Plan, Prober, Scene, SharedTests, Test, TestId};
use crate::{
    column::{SegmentColumn, Take},
    expr::EvalContext,
    given_up::Interest,
    operation::Ts,
    schema::Column,
    shard::Options,
    types::Type,
};

const ROWS: usize = 1 << 16;

fn column(value: impl Fn(usize) -> i32) -> SegmentColumn {
    let array: ArrayRef = Arc::new((0..ROWS).map(value).collect::<Int32Array>());
    let mut column = SegmentColumn::new(&Type::Int4);
    column.delta.append(array.as_ref(), &Type::Int4, Take::All(ROWS));
    column.encode(&Type::Int4, &(0..ROWS as u32).collect::<Vec<_>>());
    column
}

#[test]
fn the_most_selective_attribute_comes_first() {
    // Nearly all rows have a 0 in the first column, a few a 1; the second has a thousand values.
    let columns = [column(|row| i32::from(row % 20_000 == 5)), column(|row| (row % 1000) as i32)];
    let types =
        ["a", "b"].map(|name| Column { name: name.into(), ty: Type::Int4, not_null: true, default: None });
    let (mut tests, mut prober) = (SharedTests::default(), Prober::default());
    let mut first = |wanted: [(i64, i64); 2]| {
        let mut ids: Vec<TestId> = Vec::new();
        for (column, interval) in wanted.into_iter().enumerate() {
            let test = Arc::new(ColumnTest { column, test: Test::Ints(vec![interval]) });
            ids.push(tests.join(&test, &EvalContext::default(), Ts::ZERO, &Interest::default()));
        }
        let scene = Scene {
            tests: &tests,
            columns: &columns,
            types: &types,
            rows: ROWS,
            options: Options::default(),
        };
        prober.begin(&tests);
        prober.order(&scene, &mut ids);
        let plan = prober.plan(&scene, &ids);
        (tests.get(ids[0]).column, matches!(plan, Plan::List(id) if id == ids[0]), plan)
    };
    // As many values either way: what counts is how often this one occurs.
    assert_eq!(first([(0, 0), (7, 7)]).0, 1);
    assert_eq!((first([(1, 1), (7, 7)]).0, first([(1, 1), (7, 7)]).1), (0, true));
    // A range over nearly everything says less than one over a few values.
    assert_eq!(first([(0, 1), (3, 4)]).0, 1);
    // A value that is nowhere spares the operation the segment.
    assert_eq!(first([(9, 9), (7, 7)]).2, Plan::Nothing);
}
