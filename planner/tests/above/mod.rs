//! What runs above the scan, against a naive evaluation, whatever way the answer is cut into parts.

use std::{cmp::Ordering, sync::Arc};

use arrow::{
    array::{Array, ArrayRef},
    datatypes::{Field, Schema},
    record_batch::RecordBatch,
};
use carousel_cluster::{
    catalog::Catalog,
    message::{Body, Data},
};
use carousel_engine::{
    SqlState, Type, Value,
    aggregate::GroupTable,
    array::{arrow_cell_to_value, values_to_array},
    expr::EvalContext,
    operation::{OperationKind, ReadOutput},
    value::compare,
};
use carousel_planner::{Execution, MemoryBudget, Request, Settings, bind, parse, plan, relational::Runtime};
use proptest::prelude::*;

use crate::support::{Counter, bind_one, catalog, settings};

/// Rows of `(id integer, n integer, f double precision, t text)`.
type Row = (i32, Option<i32>, Option<f64>, Option<String>);

fn tables() -> Catalog {
    catalog("CREATE TABLE r (id integer PRIMARY KEY, n integer, f double precision, t text)")
}

fn request(sql: &str) -> Request {
    let (_, execution) = bind_one(&tables(), sql, &[]).expect("the statement can be bound");
    match execution {
        Execution::Request(request) => *request,
        _ => panic!("a table is read by a message"),
    }
}

fn output(request: &Request) -> ReadOutput {
    let Body::Data(Data { operation, .. }) = &request.body else { panic!("a read is data") };
    let OperationKind::Read(read) = &operation.open().expect("it is open").kind else { panic!("a read") };
    read.output.clone()
}

fn values(row: &Row) -> Vec<Value> {
    let (id, n, f, t) = row;
    vec![
        Value::Int4(*id),
        n.map_or(Value::Null, Value::Int4),
        f.map_or(Value::Null, Value::Float8),
        t.as_ref().map_or(Value::Null, |t| Value::text(t.as_str())),
    ]
}

const TYPES: [Type; 4] = [Type::Int4, Type::Int4, Type::Float8, Type::Text];

/// A batch of some columns of the table.
fn batch(rows: &[Row], columns: &[usize]) -> RecordBatch {
    let arrays: Vec<ArrayRef> = columns
        .iter()
        .map(|c| {
            let cells: Vec<Value> = rows.iter().map(|r| values(r)[*c].clone()).collect();
            values_to_array(&cells, &TYPES[*c]).expect("values of the type")
        })
        .collect();
    let fields: Vec<Field> = columns.iter().map(|c| Field::new("", TYPES[*c].arrow(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns of one length")
}

fn cells(batches: &[RecordBatch], types: &[Type]) -> Vec<Vec<Value>> {
    let row = |batch: &RecordBatch, row: usize| {
        batch.columns().iter().zip(types).map(|(c, ty)| arrow_cell_to_value(c, row, ty)).collect()
    };
    batches.iter().flat_map(|b| (0..b.num_rows()).map(move |r| row(b, r))).collect()
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let n = prop::option::weighted(0.8, -3..4i32);
    let f = prop::option::weighted(
        0.8,
        prop::sample::select(vec![0.0, -0.0, 1.5, -2.0, f64::NAN, f64::INFINITY]),
    );
    let t = prop::option::weighted(0.8, "[ab]{0,2}");
    prop::collection::vec((n, f, t), 0..60)
        .prop_map(|rows| rows.into_iter().enumerate().map(|(id, (n, f, t))| (id as i32, n, f, t)).collect())
}

/// Cuts rows into parts of these lengths.
fn parts<'r>(rows: &'r [Row], lengths: &[usize]) -> Vec<&'r [Row]> {
    let mut rest = rows;
    let mut parts = Vec::new();
    for length in lengths {
        let (part, behind) = rest.split_at((*length).min(rest.len()));
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    parts
}

/// Orders by `n` descending (NULL first), `f` (NULL first), `t` descending (NULL last) and `id`.
fn order(a: &Row, b: &Row) -> Ordering {
    let (a, b) = (values(a), values(b));
    let first = |a: &Value, b: &Value| b.is_null().cmp(&a.is_null());
    let n = first(&a[1], &b[1]).then_with(|| compare(&b[1], &a[1]));
    let f = || first(&a[2], &b[2]).then_with(|| compare(&a[2], &b[2]));
    let t = || first(&a[3], &b[3]).reverse().then_with(|| compare(&b[3], &a[3]));
    n.then_with(f).then_with(t).then_with(|| compare(&a[0], &b[0]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_limit_and_offset(
        rows in rows(),
        lengths in prop::collection::vec(0..20usize, 0..6),
        limit in 0..70usize,
        offset in 0..20usize,
    ) {
        let request = request(&format!(
            "SELECT t, id FROM r ORDER BY n DESC, f NULLS FIRST, t DESC NULLS LAST, id LIMIT {limit} OFFSET {offset}"
        ));
        let mut above = request.above;
        for part in parts(&rows, &lengths) {
            above.rows(batch(part, &[3, 0, 1, 2])).expect("rows of the projection");
        }
        let found = cells(&above.finish().expect("no expression is left that can fail").0, &[Type::Text, Type::Int4]);
        let mut sorted = rows;
        sorted.sort_by(order);
        let expected: Vec<Vec<Value>> = sorted
            .iter()
            .skip(offset)
            .take(limit)
            .map(|row| vec![values(row)[3].clone(), values(row)[0].clone()])
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn limits_without_an_order_stop_early(
        rows in rows(),
        lengths in prop::collection::vec(0..20usize, 0..6),
        limit in 0..70usize,
        offset in 0..20usize,
    ) {
        let request = request(&format!("SELECT id FROM r LIMIT {limit} OFFSET {offset}"));
        let mut above = request.above;
        prop_assert!(above.is_streaming());
        let (mut found, mut given) = (Vec::new(), 0);
        for part in parts(&rows, &lengths) {
            let progress = above.rows(batch(part, &[0])).expect("rows of the projection");
            found.extend(cells(&progress.output.into_iter().collect::<Vec<_>>(), &[Type::Int4]));
            given += part.len();
            prop_assert_eq!(progress.done, found.len() == limit, "after {} rows", given);
            if progress.done {
                break;
            }
        }
        found.extend(cells(&above.finish().expect("nothing can fail").0, &[Type::Int4]));
        let expected: Vec<Vec<Value>> =
            rows.iter().skip(offset).take(limit).map(|row| vec![Value::Int4(row.0)]).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn groups_of_several_parts_are_merged(
        rows in rows(),
        lengths in prop::collection::vec(0..20usize, 0..6),
    ) {
        let request = request(
            "SELECT t, count(*) + 0, sum(n), max(n) FROM r GROUP BY t HAVING count(*) > 1 ORDER BY t NULLS FIRST",
        );
        let ReadOutput::Groups { group_by, aggregates, .. } = output(&request) else { panic!("groups are asked for") };
        let mut above = request.above;
        prop_assert!(above.takes_groups());
        for part in parts(&rows, &lengths) {
            let mut table = GroupTable::for_read(&group_by, &aggregates);
            table.update(&batch(part, &[0, 1, 2, 3]), &group_by, &EvalContext::default()).expect("no overflow");
            above.groups(table.into_groups()).expect("states of these aggregates");
        }
        let types = [Type::Text, Type::Int8, Type::Int8, Type::Int4];
        let found = cells(&above.finish().expect("no overflow").0, &types);
        let mut keys: Vec<Option<String>> = rows.iter().map(|r| r.3.clone()).collect();
        keys.sort();
        keys.dedup();
        let mut expected = Vec::new();
        for key in keys {
            let group: Vec<&Row> = rows.iter().filter(|r| r.3 == key).collect();
            if group.len() < 2 {
                continue;
            }
            let numbers: Vec<i32> = group.iter().filter_map(|r| r.1).collect();
            let sum = numbers.iter().map(|n| i64::from(*n)).sum();
            expected.push(vec![
                key.map_or(Value::Null, Value::text),
                Value::Int8(group.len() as i64),
                if numbers.is_empty() { Value::Null } else { Value::Int8(sum) },
                numbers.iter().max().map_or(Value::Null, |n| Value::Int4(*n)),
            ]);
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn distinct_rows_are_groups(rows in rows(), lengths in prop::collection::vec(0..20usize, 0..6)) {
        let request = request("SELECT DISTINCT f, n FROM r ORDER BY 1, n");
        let ReadOutput::Groups { group_by, aggregates, .. } = output(&request) else { panic!("groups are asked for") };
        let mut above = request.above;
        for part in parts(&rows, &lengths) {
            let mut table = GroupTable::for_read(&group_by, &aggregates);
            table.update(&batch(part, &[0, 1, 2, 3]), &group_by, &EvalContext::default()).expect("no overflow");
            above.groups(table.into_groups()).expect("states of these aggregates");
        }
        let found = cells(&above.finish().expect("nothing can fail").0, &[Type::Float8, Type::Int4]);
        let mut expected: Vec<Vec<Value>> =
            rows.iter().map(|row| vec![values(row)[2].clone(), values(row)[1].clone()]).collect();
        expected.sort();
        expected.dedup();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn groups_without_any_part_are_one_group() {
    let above = request("SELECT count(*), max(n) FROM r WHERE false").above;
    let found = cells(&above.finish().expect("nothing can fail").0, &[Type::Int8, Type::Int4]);
    assert_eq!(found, [[Value::Int8(0), Value::Null]]);
    let above = request("SELECT n, count(*) FROM r GROUP BY n").above;
    assert!(above.finish().expect("nothing can fail").0.iter().all(|b| b.num_rows() == 0));
}

#[test]
fn returning_of_an_insert_comes_in_the_statements_order() {
    let (_, execution) = bind_one(&tables(), "INSERT INTO r VALUES (7, 1), (8, 2), (9, 3) RETURNING id", &[])
        .expect("it binds");
    let Execution::Request(request) = execution else { panic!("rows are inserted by a message") };
    let mut above = request.above;
    for (ordinal, id) in [(2, 9), (0, 7), (1, 8)] {
        let columns = vec![
            values_to_array(&[Value::Int8(ordinal)], &Type::Int8).expect("a bigint"),
            values_to_array(&[Value::Int4(id)], &Type::Int4).expect("an integer"),
        ];
        let fields = [Type::Int8, Type::Int4].map(|ty| Field::new("", ty.arrow(), true));
        let batch =
            RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns).expect("two columns");
        above.rows(batch).expect("rows of RETURNING");
    }
    let found = above.finish().expect("nothing can fail").0;
    assert_eq!(found[0].column(0).null_count(), 0);
    assert_eq!(cells(&found, &[Type::Int4]), [7, 8, 9].map(|id| vec![Value::Int4(id)]));
}

/// What must be held as a whole is held within the budget, and given back.
#[test]
fn results_beyond_the_memory_are_refused() {
    let runtime = Runtime::new(64 << 10).expect("DataFusion can be set up");
    let settings = Settings { memory: runtime.memory().clone(), ..settings() };
    let rows: Vec<Row> = (0..1000).map(|id| (id, Some(id), None, Some("x".repeat(40)))).collect();
    for (sql, columns) in [
        ("SELECT id, t FROM r ORDER BY t", &[0, 3][..]),
        ("SELECT DISTINCT ON (n) n, id FROM r", &[1, 0][..]),
    ] {
        // Twice, since a statement that failed holds nothing any more.
        for _ in 0..2 {
            let statement = parse(sql).expect("it parses").remove(0);
            let planned = plan(&statement, &tables(), &settings, &[]).expect("it can be planned");
            let execution = bind(&planned.plan, &[], &settings, &mut Counter::default()).expect("and bound");
            let Execution::Request(mut request) = execution else { panic!("a table is read by a message") };
            assert!(request.above.rows(batch(&rows[..100], columns)).is_ok(), "{sql}");
            let refused = (0..100).find_map(|_| request.above.rows(batch(&rows, columns)).err());
            assert_eq!(refused.map(|error| error.code), Some(SqlState::OUT_OF_MEMORY), "{sql}");
        }
    }
    let limited = "SELECT id, t FROM r ORDER BY t LIMIT 3";
    let statement = parse(limited).expect("it parses").remove(0);
    let planned = plan(&statement, &tables(), &settings, &[]).expect("it can be planned");
    let unlimited = Settings { memory: MemoryBudget::default(), ..settings };
    let execution = bind(&planned.plan, &[], &unlimited, &mut Counter::default()).expect("and bound");
    let Execution::Request(mut request) = execution else { panic!("a table is read by a message") };
    for _ in 0..100 {
        request.above.rows(batch(&rows, &[0, 3])).expect("without a limit there is memory");
    }
    assert_eq!(request.above.finish().expect("rows").0.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
}

/// What the storage processes are allowed to leave out: keys as (column, descending, NULLS FIRST), and how many remain.
#[test]
fn the_first_rows_and_groups_are_chosen_where_the_data_is() {
    type Wanted = Option<(&'static [(usize, bool, bool)], u64)>;
    let cases: [(&str, Wanted); 11] = [
        ("SELECT id FROM r", None),
        ("SELECT id FROM r LIMIT 3 OFFSET 2", Some((&[], 5))),
        (
            "SELECT id FROM r ORDER BY n DESC, id LIMIT 3 OFFSET 2",
            Some((&[(1, true, true), (0, false, false)], 5)),
        ),
        ("SELECT DISTINCT ON (n) n, id FROM r ORDER BY n LIMIT 1", None),
        ("SELECT DISTINCT n FROM r", None),
        ("SELECT DISTINCT n FROM r LIMIT 3", Some((&[], 3))),
        ("SELECT DISTINCT n, t FROM r ORDER BY t NULLS FIRST LIMIT 3", Some((&[(1, false, true)], 3))),
        ("SELECT n + 1 FROM r GROUP BY n, t ORDER BY t DESC LIMIT 1", Some((&[(1, true, true)], 1))),
        // A group must be whole when something is computed over it or depends on it.
        ("SELECT n, count(*) FROM r GROUP BY n ORDER BY n LIMIT 1", None),
        ("SELECT n FROM r GROUP BY n HAVING n > 1 LIMIT 1", None),
        ("SELECT n FROM r GROUP BY n ORDER BY n + 1 LIMIT 1", None),
    ];
    for (sql, wanted) in cases {
        let (ReadOutput::Rows { top, .. } | ReadOutput::Groups { top, .. }) = output(&request(sql)) else {
            panic!("{sql} reads rows or groups")
        };
        let found = top.map(|top| {
            let keys = top.keys.iter().map(|key| (key.column, key.descending, key.nulls_first));
            (keys.collect::<Vec<_>>(), top.limit)
        });
        assert_eq!(found, wanted.map(|(keys, limit)| (keys.to_vec(), limit)), "{sql}");
    }
}
