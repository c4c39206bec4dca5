//! Batches of relational statements take little memory, however wide their rows are.

use std::sync::Arc;

use arrow::array::AsArray;
use carousel_cluster::client::Failure;
use carousel_engine::{SqlError, SqlState, Value};
use carousel_planner::{
    Execution,
    relational::{Answer, ReadRequest, Reader, Runtime, SystemView},
};
use futures::{FutureExt, StreamExt, executor::block_on, stream::BoxStream};

use crate::support::{bind_one, catalog};

/// Longer than 2 GB for the rows of one batch of 8,192.
const WIDE: usize = 300_000;

#[derive(Debug)]
struct NoTables;

impl Reader for NoTables {
    fn read(&self, _request: ReadRequest) -> BoxStream<'static, Result<Answer, Failure>> {
        async { Err(Failure::Sql(SqlError::internal("there are no tables"))) }.into_stream().boxed()
    }

    fn system(&self, _view: SystemView) -> &[Vec<Value>] {
        &[]
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// What comes of a statement.
#[derive(Debug, Default, PartialEq)]
struct Came {
    rows: usize,
    /// Bytes of all strings.
    bytes: usize,
    /// Bytes of the strings of the largest batch of more than one row.
    most: usize,
}

fn run(sql: &str, memory: usize) -> Result<Came, SqlState> {
    let runtime = Runtime::new(memory).expect("DataFusion can be set up");
    let (_, execution) = bind_one(&catalog(""), sql, &[]).expect("the statement can be bound");
    let Execution::Relational(relational) = execution else { panic!("{sql} is relational") };
    let mut rows = relational.start(&runtime, Arc::new(NoTables)).expect("it can be planned");
    let mut came = Came::default();
    while let Some(batch) = block_on(rows.next()) {
        let batch = batch.map_err(|failure| match failure {
            Failure::Sql(error) => error.code,
            other => panic!("{sql}: {other:?}"),
        })?;
        let strings = batch.columns().iter().filter_map(|column| column.as_string_opt::<i32>());
        let bytes = strings.map(|strings| strings.iter().flatten().map(str::len).sum::<usize>()).sum();
        came.rows += batch.num_rows();
        came.bytes += bytes;
        if batch.num_rows() > 1 {
            came.most = came.most.max(bytes);
        }
    }
    Ok(came)
}

/// Rows that a join repeats, and strings that are made of them, come in batches that are small, and no row is lost.
#[test]
fn wide_rows_come_in_small_batches() {
    let wide = format!("(VALUES (1, repeat('x', {WIDE})), (2, repeat('y', {WIDE})), (3, NULL)) AS w (k, t)");
    let joined =
        format!("SELECT w.t, s FROM generate_series(1, 9000) AS s LEFT JOIN {wide} ON w.k = s % 2 + 2");
    let long = "x".repeat(WIDE);
    let cases = [
        // Joins by nested loops without and with a condition over strings, by keys, and with rows that meet none.
        (
            format!("SELECT w.t, s FROM {wide}, generate_series(1, 9000) AS s WHERE w.k = 2"),
            9000,
            9000 * WIDE,
        ),
        (
            format!("SELECT w.t, s FROM {wide} JOIN generate_series(1, 4500) AS s ON w.t > s::text"),
            9000,
            9000 * WIDE,
        ),
        (
            format!("SELECT w.t, s FROM generate_series(1, 9000) AS s JOIN {wide} ON w.k = s % 2 + 2"),
            9000,
            4500 * WIDE,
        ),
        (
            format!("SELECT w.t, s FROM generate_series(1, 9000) AS s LEFT JOIN {wide} ON w.k = s % 2 + 3"),
            9000,
            0,
        ),
        (
            format!(
                "SELECT w.t, s FROM generate_series(1, 9000) AS s LEFT JOIN {wide} ON w.t LIKE '%x' AND s > w.k"
            ),
            9000,
            8999 * WIDE,
        ),
        (
            format!("SELECT a.k FROM {wide} JOIN (VALUES (repeat('y', {WIDE}))) AS a (k) ON a.k = w.t"),
            1,
            WIDE,
        ),
        // Wide rows that pass a join, each another.
        (
            format!(
                "SELECT name, t FROM (VALUES (0, 'a'), (1, 'b')) AS dim (id, name) \
                 JOIN (SELECT s, repeat(chr(97 + s % 26), {WIDE}) AS t FROM generate_series(1, 600) AS s) AS doc ON id = s % 3"
            ),
            400,
            400 * (WIDE + 1),
        ),
        // What a condition leaves of a join.
        (format!("SELECT * FROM ({joined}) AS j WHERE t IS NULL OR s > 1000"), 8500, 4000 * WIDE),
        (format!("SELECT * FROM ({joined}) AS j WHERE t LIKE 'y%' OR s < 0 LIMIT 100"), 100, 100 * WIDE),
        // Expressions and constants.
        (
            format!("SELECT repeat('z', {WIDE}) || s, s FROM generate_series(10000, 18999) AS s"),
            9000,
            9000 * (WIDE + 5),
        ),
        (format!("SELECT '{long}', s FROM generate_series(1, 9000) AS s"), 9000, 9000 * WIDE),
        (
            "SELECT repeat(s::text, 1 + s % 1000), lpad('', s, s::text) FROM generate_series(1, 99) AS s"
                .to_owned(),
            99,
            (1..100).map(|s: usize| s.to_string().len() * (1 + s) + s).sum(),
        ),
    ];
    for (sql, rows, bytes) in cases {
        let came = run(&sql, 64 << 20).expect("it needs little memory");
        let shown = &sql[..sql.len().min(100)];
        assert_eq!((came.rows, came.bytes), (rows, bytes), "{shown}");
        assert!(came.most <= 4 << 20, "{shown}: {came:?}");
    }
}

/// What a sort must hold is counted before it is there.
#[test]
fn wide_rows_beyond_the_memory_are_refused() {
    let sql = format!(
        "SELECT t, s FROM (VALUES (repeat('x', {WIDE}))) AS w (t), generate_series(1, 9000) AS s ORDER BY s DESC"
    );
    assert_eq!(run(&sql, 64 << 20), Err(SqlState::OUT_OF_MEMORY));
    let fewer = sql.replace("9000", "100");
    let came = run(&fewer, 256 << 20).expect("there is room");
    assert_eq!((came.rows, came.bytes), (100, 100 * WIDE));
}
