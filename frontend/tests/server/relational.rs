//! Statements that read several tables: one `Ts`, bounded memory, an end when they are cancelled.

use tokio::task::JoinSet;

use crate::support::{PATIENCE, Server, code, db_error, rows, value};

/// A plan is as deep as a statement has joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_joins_find_stack() {
    let server = Server::start().await;
    let client = server.connect().await;
    let row = |number: usize| format!("(values ({number})) a{number}(a)");
    let joined = |number: usize| format!(" left join {} on a{number}.a > a{}.a", row(number), number - 1);
    let joins: String = (1..300).map(joined).collect();
    let sql = format!("select count(*), sum(a299.a) from {}{joins}", row(0));
    let answer = client.query_one(&sql, &[]).await.unwrap();
    assert_eq!((answer.get::<_, i64>(0), answer.get::<_, i64>(1)), (1, 299));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_reads_of_a_statement_see_the_same() {
    const STEPS: i64 = 60;
    let server = Server::start().await;
    let (reader, writer) = (server.connect().await, server.connect().await);
    writer.batch_execute("create table a (k int primary key, n int)").await.unwrap();
    writer.batch_execute("create table b (k int primary key, n int)").await.unwrap();
    for table in ["a", "b"] {
        writer.batch_execute(&format!("insert into {table} values (1, 0), (2, 0), (3, 0)")).await.unwrap();
    }
    // A row of `a` is always changed before that of `b`, so that it is ahead by one change at most.
    let mut writing = JoinSet::new();
    writing.spawn(async move {
        for _ in 0..STEPS {
            for table in ["a", "b"] {
                writer.batch_execute(&format!("update {table} set n = n + 1")).await.unwrap();
            }
        }
    });
    loop {
        let ended = writing.try_join_next().is_some();
        let ahead = rows(&reader, "select a.n - b.n, a.n from a join b on a.k = b.k").await;
        let first = ahead[0].clone();
        assert!(matches!(first[0].as_deref(), Some("0" | "1")), "{ahead:?}");
        assert_eq!(ahead.len(), 3);
        assert!(ahead.iter().all(|row| *row == first), "{ahead:?}");
        if ended {
            break;
        }
    }
    assert_eq!(
        value(&reader, "select sum(a.n) + (select sum(n) from b) from a").await,
        (STEPS * 6).to_string()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_of_several_reads_outlives_moves_of_what_it_reads() {
    const MOVES: u64 = 40;
    let server = Server::start().await;
    let (reader, mover) = (server.connect().await, server.connect().await);
    reader.batch_execute("create table t (a int primary key)").await.unwrap();
    let numbers: Vec<String> = (0..1000).map(|n| format!("({n})")).collect();
    reader.batch_execute(&format!("insert into t values {}", numbers.join(","))).await.unwrap();
    let mut moving = JoinSet::new();
    moving.spawn(async move {
        for n in 0..MOVES {
            let identifier = (1 + n % 8) << 60;
            mover.batch_execute(&format!("alter cluster rebalance s2 to {identifier}")).await.unwrap();
        }
    });
    reader.batch_execute("create table copied (a int)").await.unwrap();
    let mut copies: usize = 0;
    while moving.try_join_next().is_none() {
        assert_eq!(value(&reader, "select count(*) from t x join t y on x.a = y.a + 1").await, "999");
        // Whichever statement is the first of a block chooses what the block sees; the others may find that too old.
        for first in ["select count(*) from t", "select count(*) from t x, t y where x.a = y.a"] {
            reader.batch_execute("begin").await.unwrap();
            assert_eq!(value(&reader, first).await, "1000");
            reader.batch_execute("rollback").await.unwrap();
        }
        reader.batch_execute("insert into copied select x.a from t x join t y on x.a = y.a").await.unwrap();
        copies += 1;
    }
    assert_eq!(value(&reader, "select count(*) from copied").await, (copies * 1000).to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_sees_one_snapshot_through_joins() {
    let server = Server::start().await;
    let (reader, writer) = (server.connect().await, server.connect().await);
    writer.batch_execute("create table t (a int)").await.unwrap();
    writer.batch_execute("insert into t values (1)").await.unwrap();
    reader.batch_execute("begin").await.unwrap();
    assert_eq!(value(&reader, "select count(*) from t x, t y").await, "1");
    writer.batch_execute("insert into t values (2)").await.unwrap();
    assert_eq!(value(&reader, "select count(*) from t x, t y").await, "1");
    assert_eq!(value(&reader, "select count(*) from t").await, "1");
    reader.batch_execute("commit").await.unwrap();
    assert_eq!(value(&reader, "select count(*) from t x, t y").await, "4");
}

/// A table of a hundred rows.
async fn hundred(client: &tokio_postgres::Client) {
    client.batch_execute("create table t (a int, b text)").await.unwrap();
    let values: Vec<String> = (0..100).map(|n| format!("({n}, 'row {n}')")).collect();
    client.batch_execute(&format!("insert into t values {}", values.join(", "))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded() {
    let server = Server::start_with(|options| options.relations_bytes = 1 << 20).await;
    let client = server.connect().await;
    hundred(&client).await;
    let many = "select x.a, y.b, z.b from t x, t y, t z order by z.b, y.b, x.a";
    assert_eq!(code(client.simple_query(many).await.unwrap_err()), "53200");
    // What the failed statement held is free again.
    assert_eq!(value(&client, "select count(*) from t x join t y using (a)").await, "100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_texts_take_memory_of_all() {
    let server = Server::start_with(|options| options.relations_bytes = 8 << 20).await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int, b text)").await.unwrap();
    let insert = |rows: usize| format!("insert into t values {}", vec!["(1, '')"; rows].join(","));
    // Its strings are cheap, and its tokens are not.
    client.batch_execute(&format!("insert into t values (1, '{}')", "x y ".repeat(100_000))).await.unwrap();
    client.batch_execute(&insert(2_000)).await.unwrap();
    let error = db_error(client.batch_execute(&insert(20_000)).await.unwrap_err());
    assert!(
        error.code().code() == "53200" && error.hint().is_some_and(|hint| hint.contains("COPY")),
        "{error}"
    );
    // Prepared statements keep what they take until they are closed.
    let mut prepared = Vec::new();
    let error = loop {
        match client.prepare(&insert(2_000)).await {
            Ok(statement) => prepared.push(statement),
            Err(error) => break db_error(error),
        }
    };
    assert_eq!(error.code().code(), "53200");
    assert!((1..6).contains(&prepared.len()), "{}", prepared.len());
    drop(prepared);
    assert_eq!(value(&client, "select count(*) from t").await, "2001");
    client.prepare(&insert(2_000)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_with_many_reads_end() {
    let server = Server::start().await;
    let client = server.connect().await;
    hundred(&client).await;
    let all = |reads: usize| vec!["select a from t"; reads].join(" union all ");
    // Each has to give back what it took.
    let counts = (0..7).map(|_| async {
        let client = server.connect().await;
        for _ in 0..2 {
            let rows = client.simple_query(&all(700)).await.unwrap();
            assert_eq!(rows.len(), 70_002);
        }
    });
    tokio::time::timeout(PATIENCE, futures::future::join_all(counts)).await.expect("nobody waits for ever");
    let error = db_error(client.simple_query(&all(3_000)).await.unwrap_err());
    assert_eq!(error.code().code(), "54001");
}

/// What plans and joins them does more than a task may do at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_of_many_tables_ends() {
    let server = Server::start().await;
    let client = server.connect().await;
    hundred(&client).await;
    let tables: Vec<String> = (0..140).map(|number| format!("t t{number}")).collect();
    let on: Vec<String> = (1..140).map(|number| format!("t{number}.a = t0.a")).collect();
    let join = format!("select count(*) from {} where {}", tables.join(", "), on.join(" and "));
    let count =
        tokio::time::timeout(PATIENCE, value(&client, &join)).await.expect("it does not wait for ever");
    assert_eq!(count, "100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_ends_when_it_is_cancelled() {
    let server = Server::start().await;
    let client = server.connect().await;
    hundred(&client).await;
    client.batch_execute("set statement_timeout = 100").await.unwrap();
    let endless =
        "select count(*) from t a, t b, t c, t d, t e, t f where a.a + b.a + c.a + d.a + e.a + f.a = -1";
    assert_eq!(code(client.simple_query(endless).await.unwrap_err()), "57014");
    client.batch_execute("set statement_timeout = 0").await.unwrap();
    assert_eq!(value(&client, "select count(*) from t x join t y using (a)").await, "100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_that_nobody_waits_for_leave_their_threads_to_others() {
    let server = Server::start().await;
    let client = server.connect().await;
    hundred(&client).await;
    // More of them than there are threads.
    let count = std::thread::available_parallelism().map_or(8, |cores| cores.get() + 1);
    for condition in ["a.a < b.a + c.a + d.a + e.a + f.a", "a.a + b.a + c.a + d.a + e.a + f.a = -1"] {
        for _ in 0..count {
            let raw = server.connect().await;
            let endless = format!("select count(*) from t a, t b, t c, t d, t e, t f where {condition}");
            raw.batch_execute("set statement_timeout = 200").await.unwrap();
            assert_eq!(code(raw.batch_execute(&endless).await.unwrap_err()), "57014");
        }
    }
    assert_eq!(value(&client, "select count(*) from t x, t y").await, "10000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_take_for_ever_at_one_segment_end_when_they_are_cancelled() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a text, b int)").await.unwrap();
    let rows: Vec<String> = (1..=8000).map(|number| format!("('x', {number})")).collect();
    client.batch_execute(&format!("insert into t values {}", rows.join(", "))).await.unwrap();
    let long = "md5(repeat(a || b::text, 5000000))";
    let reads = [
        format!("select count(*) from t where {long} = 'x'"),
        format!("select count({long}) from t"),
        format!("select max({long}) from t group by b % 2"),
        format!("select {long} from t"),
    ];
    for read in reads {
        client.batch_execute("set statement_timeout = 200").await.unwrap();
        assert_eq!(code(client.simple_query(&read).await.unwrap_err()), "57014", "{read}");
        client.batch_execute("set statement_timeout = 0").await.unwrap();
        let count = tokio::time::timeout(PATIENCE, value(&client, "select count(*) from t where b > 0"));
        assert_eq!(count.await.expect("nobody waits for it"), "8000", "{read}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_joins_follow_their_tables() {
    let server = Server::start().await;
    let (client, other) = (server.connect().await, server.connect().await);
    other.batch_execute("create table t (a int)").await.unwrap();
    other.batch_execute("insert into t values (1), (2)").await.unwrap();
    let join = "select count(*) from t x join t y on x.a = y.a where x.a > $1";
    let join = client.prepare(join).await.unwrap();
    assert_eq!(client.query_one(&join, &[&0]).await.unwrap().get::<_, i64>(0), 2);
    other.batch_execute("drop table t").await.unwrap();
    assert_eq!(code(client.query_one(&join, &[&0]).await.unwrap_err()), "42P01");
    other.batch_execute("create table t (a int)").await.unwrap();
    other.batch_execute("insert into t values (7)").await.unwrap();
    assert_eq!(client.query_one(&join, &[&0]).await.unwrap().get::<_, i64>(0), 1);
    assert_eq!(client.query_one(&join, &[&7]).await.unwrap().get::<_, i64>(0), 0);
}
