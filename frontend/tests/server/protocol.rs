//! Starting, simple and extended queries, portals, cancelling, stopping.

use carousel_frontend::{FrontEnd, Options, StartError};
use futures::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_postgres::NoTls;

use crate::support::{PATIENCE, Raw, Server, code, connect, db_error, kinds, make_long_table, rows, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_greeted_as_by_postgresql() {
    let server = Server::start().await;
    let (client, connection) = server.config().application_name("test").connect(NoTls).await.unwrap();
    for (name, expected) in [
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
        ("integer_datetimes", "on"),
        ("standard_conforming_strings", "on"),
        ("application_name", "test"),
        ("session_authorization", "tester"),
    ] {
        assert_eq!(connection.parameter(name), Some(expected), "{name}");
    }
    assert!(connection.parameter("server_version").unwrap().starts_with("15."));
    tokio::spawn(connection);
    assert!(value(&client, "select version()").await.starts_with("PostgreSQL 15"));
    assert_eq!(value(&client, "select current_user").await, "tester");
    assert_eq!(value(&client, "select current_database()").await, "anything");
    assert_eq!(value(&client, "select current_schema()").await, "public");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_port_is_told() {
    let server = Server::start().await;
    let client = server.cluster().client();
    let taken = FrontEnd::start(Options::new(server.address()), client).await.err().unwrap();
    assert!(matches!(taken, StartError::PortInUse(_)), "{taken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_and_encryption_are_negotiated() {
    let server = Server::start().await;
    // SSL, then GSSAPI, then plain protocol 3.9 with an option that nobody knows.
    let mut raw = Raw::open(server.address()).await;
    for request in [80_877_103u32, 80_877_104] {
        raw.startup(request, b"").await;
        let mut answer = [0];
        tokio::io::AsyncReadExt::read_exact(&mut raw.socket, &mut answer).await.unwrap();
        assert_eq!(&answer, b"N");
    }
    raw.startup(0x30009, b"user\0raw\0_pq_.future\0x\0\0").await;
    let greeting = raw.until('Z').await;
    assert_eq!(greeting[0].kind, 'v');
    assert_eq!(&greeting[0].body[..8], &[0, 3, 0, 2, 0, 0, 0, 1]);
    assert_eq!(&greeting[0].body[8..], b"_pq_.future\0");
    let key = greeting.iter().find(|m| m.kind == 'K').unwrap();
    assert_eq!(key.body.len(), 4 + 32);
    // Protocol 3.0 has keys of four bytes.
    let mut raw = Raw::open(server.address()).await;
    let greeting = raw.start().await;
    assert_eq!(greeting.iter().find(|m| m.kind == 'K').unwrap().body.len(), 8);
    // Protocol 2 is history.
    let mut raw = Raw::open(server.address()).await;
    raw.startup(0x20000, b"user\0raw\0\0").await;
    assert_eq!(raw.last_words().await.field(b'C'), "0A000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simple_queries() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let answer = raw.query("select 1 as one, null, 'a'; select 2").await;
    assert_eq!(kinds(&answer), "TDCTDCZ");
    assert_eq!(&answer[1].body, b"\0\x03\0\0\0\x011\xff\xff\xff\xff\0\0\0\x01a");
    assert_eq!(&answer[2].body, b"SELECT 1\0");
    assert_eq!(kinds(&raw.query(" ; ").await), "IZ");
    // An error ends the text.
    let answer = raw.query("select 1; select nothing_like_it(); select 2").await;
    assert_eq!(kinds(&answer), "TDCEZ");
    assert_eq!(answer[3].field(b'C'), "42883");
    assert_eq!(&answer[4].body, b"I");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_rows_and_errors() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int primary key, b text not null)").await.unwrap();
    assert_eq!(client.execute("insert into t values ($1, $2)", &[&1i32, &"x"]).await.unwrap(), 1);
    assert_eq!(client.execute("insert into t values (2, 'y'), (3, 'z')", &[]).await.unwrap(), 2);
    let all = client.query("select a, b from t where a >= $1 order by a desc", &[&2i32]).await.unwrap();
    let all: Vec<(i32, String)> = all.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(all, [(3, "z".into()), (2, "y".into())]);
    assert_eq!(client.execute("update t set b = b || '!' where a > 1", &[]).await.unwrap(), 2);
    assert_eq!(client.execute("delete from t where b = 'y!'", &[]).await.unwrap(), 1);

    let error = db_error(client.execute("insert into t values (1, 'again')", &[]).await.unwrap_err());
    assert_eq!(error.code().code(), "23505");
    assert_eq!(error.message(), "duplicate key value violates unique constraint \"t_pkey\"");
    assert_eq!(error.detail(), Some("Key (a)=(1) already exists."));
    assert_eq!((error.table(), error.constraint()), (Some("t"), Some("t_pkey")));
    let error = db_error(client.execute("insert into t values (9, null)", &[]).await.unwrap_err());
    assert_eq!(error.code().code(), "23502");
    assert_eq!(error.detail(), Some("Failing row contains (9, null)."));
    assert_eq!(error.column(), Some("b"));
    let error = db_error(client.simple_query("select a, nope from t").await.unwrap_err());
    assert_eq!(error.code().code(), "42703");
    assert_eq!(error.position(), Some(&tokio_postgres::error::ErrorPosition::Original(11)));
    assert_eq!(value(&client, "select count(*) from t").await, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_in_a_pipeline() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int primary key)").await.unwrap();
    let insert = client.prepare("insert into t values ($1)").await.unwrap();
    let inserts = (0..50i32).map(|i| {
        let (client, insert) = (&client, &insert);
        async move { client.execute(insert, &[&(i % 40)]).await }
    });
    let outcomes = futures::future::join_all(inserts).await;
    // Each has a Sync of its own: those that fail do not take the others with them.
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 40);
    assert_eq!(value(&client, "select count(*) from t").await, "40");
}

fn parse(name: &str, sql: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat()
}

fn bind(portal: &str, statement: &str) -> Vec<u8> {
    [portal.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\0\0\0\0\0"].concat()
}

fn execute(portal: &str, rows: u32) -> Vec<u8> {
    [portal.as_bytes(), b"\0", &rows.to_be_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn portals_give_rows_in_pieces() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("begin").await;
    raw.send('P', &parse("", "values (1), (2), (3)")).await;
    raw.send('B', &bind("p", "")).await;
    raw.send('D', b"Pp\0").await;
    raw.send('E', &execute("p", 2)).await;
    raw.send('S', b"").await;
    assert_eq!(kinds(&raw.until('Z').await), "12TDDsZ");
    // In a block, a portal outlives Sync.
    raw.send('E', &execute("p", 2)).await;
    // Who asks until nothing comes any more gets nothing in the end.
    raw.send('E', &execute("p", 2)).await;
    raw.send('C', b"Pp\0").await;
    raw.send('E', &execute("p", 0)).await;
    raw.send('P', &parse("", "skipped")).await;
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "DCC3EZ");
    assert_eq!((&answer[1].body[..], &answer[2].body[..]), (&b"SELECT 1\0"[..], &b"SELECT 0\0"[..]));
    assert_eq!(answer[4].field(b'C'), "34000");
    assert_eq!(&answer[5].body, b"E");
}

/// Silent clients keep others out for some seconds only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_start_make_room() {
    let server = Server::start_with(|o| o.startup_timeout = 10 * PATIENCE).await;
    let mut silent = Vec::new();
    for _ in 0..256 {
        silent.push(Raw::open(server.address()).await);
    }
    let client = tokio::time::timeout(PATIENCE, server.connect()).await.expect("there is room");
    assert_eq!(value(&client, "select 1").await, "1");
}

/// As in PostgreSQL, also to who asks for a flush instead of a Sync, or for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_extended_queries_are_sent_at_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (sql, flushes, answer) in
        [("select 1/0", true, "12E"), ("select 1/0", false, "12E"), ("selec", true, "E")]
    {
        raw.send('P', &parse("", sql)).await;
        raw.send('B', &bind("", "")).await;
        raw.send('E', &execute("", 0)).await;
        if flushes {
            raw.send('H', b"").await;
        }
        assert_eq!(kinds(&raw.until('E').await), answer);
        raw.send('S', b"").await;
        assert_eq!(kinds(&raw.until('Z').await), "Z");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn portals_of_a_failed_block_give_and_hold_nothing_more() {
    let server = Server::start().await;
    let client = server.connect().await;
    make_long_table(&client).await;
    let mut raw = server.raw().await;
    raw.query("begin").await;
    raw.send('P', &parse("s", "select b from t")).await;
    for portal in ["suspended", "bound"] {
        raw.send('B', &bind(portal, "s")).await;
    }
    raw.send('E', &execute("suspended", 1)).await;
    raw.send('S', b"").await;
    assert_eq!(kinds(&raw.until('Z').await), "122DsZ");
    let open = "select count(*) from carousel.operations";
    assert_eq!(value(&client, open).await, "1");
    raw.query("nonsense").await;
    let given_up = async {
        while value(&client, open).await != "0" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, given_up).await.expect("its read is still open");
    for (portal, code) in [("suspended", "25P02"), ("bound", "25P02"), ("none", "34000")] {
        raw.send('E', &execute(portal, 1)).await;
        raw.send('S', b"").await;
        assert_eq!(raw.until('Z').await[0].field(b'C'), code, "{portal}");
    }
    raw.query("rollback").await;
    raw.send('E', &execute("suspended", 1)).await;
    raw.send('S', b"").await;
    assert_eq!(raw.until('Z').await[0].field(b'C'), "34000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_portals_are_limited() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int)").await;
    raw.query("insert into t values (1), (2), (3)").await;
    raw.query("begin").await;
    raw.send('P', &parse("s", "select a from t")).await;
    for portal in 0..256 {
        raw.send('B', &bind(&portal.to_string(), "s")).await;
        raw.send('E', &execute(&portal.to_string(), 1)).await;
    }
    // One that is closed leaves its place to another; one that gives all its rows needs none.
    raw.send('C', b"P0\0").await;
    raw.send('B', &bind("one", "s")).await;
    raw.send('E', &execute("one", 1)).await;
    raw.send('E', &execute("one", 1)).await;
    raw.send('B', &bind("", "s")).await;
    raw.send('E', &execute("", 0)).await;
    raw.send('S', b"").await;
    let expected = format!("1{}32DsDs2DDDCZ", "2Ds".repeat(256));
    assert_eq!(kinds(&raw.until('Z').await), expected);
    raw.send('B', &bind("more", "s")).await;
    raw.send('E', &execute("more", 1)).await;
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "2DEZ");
    assert_eq!(answer[2].field(b'C'), "54000");
    assert_eq!(answer[2].field(b'M'), "too many suspended portals");
    raw.send('E', &execute("more", 1)).await;
    raw.send('S', b"").await;
    assert_eq!(
        raw.until('Z').await[0].field(b'C'),
        "25P02",
        "it is still there, and has failed with its block"
    );
}

/// Until a Sync it would be one transaction in PostgreSQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_behind_a_write_says_that_the_write_has_taken_effect() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int primary key)").await;
    for (text, detail) in [("select 1/0", "has taken effect"), ("insert into t values (9)", "transaction")] {
        raw.query("delete from t").await;
        for text in ["insert into t values (1)", text] {
            raw.send('P', &parse("", text)).await;
            raw.send('B', &bind("", "")).await;
            raw.send('E', &execute("", 0)).await;
        }
        raw.send('S', b"").await;
        let answer = raw.until('Z').await;
        let error = answer.iter().find(|message| message.kind == 'E').expect("the second fails");
        let found = error.field(b'D');
        assert!(found.contains(detail), "{found}");
        assert_eq!(kinds(&raw.query("delete from t where a = 1 returning a").await), "TDCZ", "{text}");
    }
    // EXECUTE is what it executes.
    raw.query("prepare p as insert into t values (7)").await;
    for name in ["a", "b"] {
        raw.send('P', &parse(name, "execute p")).await;
        raw.send('B', &bind(name, name)).await;
        raw.send('E', &execute(name, 0)).await;
    }
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    let error = answer.iter().find(|message| message.kind == 'E').expect("the second is refused");
    assert_eq!(error.field(b'C'), "0A000");
    for (text, code) in [
        ("prepare q as insert into t values (8); execute q; select 1/0", "0A000"),
        ("prepare r as select 1; execute r; execute nobody", "26000"),
        ("execute a", "0A000"),
    ] {
        let answer = raw.query(text).await;
        let error = answer.iter().find(|message| message.kind == 'E').expect("it is refused");
        assert_eq!(error.field(b'C'), code, "{text}");
    }
    assert_eq!(kinds(&raw.query("select a from t").await), "TDCZ", "only what was inserted once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_statement_outlives_its_table_if_there_is_another_like_it() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int, b text)").await.unwrap();
    let prepared = client.prepare("select a, b from t").await.unwrap();
    assert!(client.query(&prepared, &[]).await.unwrap().is_empty());
    client.batch_execute("drop table t").await.unwrap();
    client.batch_execute("create table t (a int, b text)").await.unwrap();
    client.batch_execute("insert into t values (1, 'x')").await.unwrap();
    assert_eq!(client.query(&prepared, &[]).await.unwrap().len(), 1);
    client.batch_execute("drop table t").await.unwrap();
    client.batch_execute("create table t (a bigint, b text)").await.unwrap();
    let error = client.query(&prepared, &[]).await.unwrap_err();
    let error = db_error(error);
    assert_eq!(error.message(), "cached plan must not change result type");
    assert_eq!(error.routine(), Some("RevalidateCachedQuery"), "drivers look at it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_before_the_end_of_the_stream_is_done() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int)").await.unwrap();
    for _ in 0..30 {
        let mut raw = server.raw().await;
        raw.send('Q', b"insert into t values (1)\0").await;
        raw.send('X', b"").await;
    }
    while server.handle.connections() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(value(&client, "select count(*) from t").await, "30");
    let mut raw = server.raw().await;
    raw.send('Q', b"insert into t values (2)\0").await;
    raw.socket.shutdown().await.unwrap();
    raw.until('C').await;
    assert_eq!(value(&client, "select count(*) from t").await, "31");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_keep_their_types_when_a_table_is_made_anew() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int primary key, b int)").await.unwrap();
    let update = client.prepare("update t set b = $1 where a = $2").await.unwrap();
    let delete = client.prepare("delete from t where a = $1").await.unwrap();
    client.batch_execute("drop table t").await.unwrap();
    client.batch_execute("create table t (a bigint primary key, b numeric)").await.unwrap();
    client.batch_execute("insert into t values (1, 2)").await.unwrap();
    assert_eq!(client.execute(&update, &[&3i32, &1i32]).await.unwrap(), 1);
    assert_eq!(value(&client, "select b from t").await, "3");
    assert_eq!(client.execute(&delete, &[&1i32]).await.unwrap(), 1);
    client.batch_execute("drop table t").await.unwrap();
    client.batch_execute("create table t (a date primary key, b text)").await.unwrap();
    let error = client.execute(&delete, &[&1i32]).await.unwrap_err();
    assert_eq!(db_error(error).code().code(), "42883");
    assert_eq!(value(&client, "select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_an_expression_has_its_type() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int primary key, b numeric)").await.unwrap();
    client.batch_execute("insert into t values (1, 2)").await.unwrap();
    for set in [
        "coalesce(3.25::numeric(10,2), b)",
        "case when true then 3.25::numeric(10,2) else b end",
        "case when true then b::numeric(10,2) else b + 1 end + 0.01",
    ] {
        client.batch_execute(&format!("update t set b = {set}")).await.unwrap();
    }
    assert_eq!(value(&client, "select b from t").await, "3.26");
    assert_eq!(value(&client, "select coalesce(1::numeric(4,1), b) from t").await, "1.0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_portals_hold_is_bounded() {
    let server = Server::start_with(|options| options.relations_bytes = 1 << 20).await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int, b text)").await;
    let values: Vec<String> = (0..2_000).map(|n| format!("({n}, '{}')", "x".repeat(80))).collect();
    for values in values.chunks(500) {
        raw.query(&format!("insert into t values {}", values.join(", "))).await;
    }
    let sorted = "select b from t order by a";
    // Its rows are all there when the first comes out.
    raw.query("begin").await;
    raw.send('P', &parse("s", sorted)).await;
    for portal in 0..6 {
        raw.send('B', &bind(&portal.to_string(), "s")).await;
        raw.send('E', &execute(&portal.to_string(), 1)).await;
    }
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert!(kinds(&answer).starts_with("12Ds") && kinds(&answer).ends_with("EZ"), "{}", kinds(&answer));
    assert_eq!(answer[answer.len() - 2].field(b'C'), "53200");
    raw.query("rollback").await;
    assert_eq!(raw.query(sorted).await.len(), 2_000 + 3);

    // So do parameters.
    let long = |portal: &str| {
        let (count, length) = (1_i16.to_be_bytes(), 400_000_i32.to_be_bytes());
        let value = vec![b'y'; 400_000];
        [portal.as_bytes(), b"\0p\0\0\0", &count, &length, &value, b"\0\0"].concat()
    };
    raw.send('P', &parse("p", "select length($1::text)")).await;
    for portal in ["a", "b", "c"] {
        raw.send('B', &long(portal)).await;
    }
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "122EZ");
    assert_eq!(answer[3].field(b'C'), "53200");
    for _ in 0..6 {
        raw.send('B', &long("")).await;
    }
    raw.send('E', &execute("", 0)).await;
    raw.send('S', b"").await;
    assert_eq!(kinds(&raw.until('Z').await), "222222DCZ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_statements() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.send('P', &parse("s", "select $1::int + 1")).await;
    raw.send('P', &parse("s", "select 1")).await;
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "1EZ");
    assert_eq!(answer[1].field(b'C'), "42P05");
    raw.send('D', b"Ss\0").await;
    raw.send('B', &bind("", "s")).await;
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "tTEZ");
    assert_eq!(&answer[0].body, &[0, 1, 0, 0, 0, 23]);
    assert_eq!(answer[2].field(b'C'), "08P01");
    // SQL's PREPARE shares the names.
    let answer = raw.query("execute s(41)").await;
    assert_eq!(&answer[1].body, b"\0\x01\0\0\0\x0242");
    assert_eq!(kinds(&raw.query("deallocate s").await), "CZ");
    let error = &raw.query("execute s(41)").await[0];
    assert_eq!((error.field(b'C').as_str(), error.field(b'R').as_str()), ("26000", "FetchPreparedStatement"));
    // That which has no name is not among all.
    raw.send('P', &parse("", "select 1")).await;
    raw.send('P', &parse("all", "deallocate all")).await;
    raw.send('B', &bind("", "all")).await;
    raw.send('E', &execute("", 0)).await;
    raw.send('B', &bind("", "")).await;
    raw.send('B', &bind("", "all")).await;
    raw.send('S', b"").await;
    assert_eq!(kinds(&raw.until('Z').await), "112C2EZ");
    assert_eq!(
        raw.query("prepare q(int) as select $1 * 2; execute q(4)").await[2].body,
        b"\0\x01\0\0\0\x018"
    );
    raw.send('P', &parse("", "select 1; select 2")).await;
    raw.send('S', b"").await;
    assert_eq!(raw.until('Z').await[0].field(b'C'), "42601");
    // Nothing at all is a statement too.
    raw.send('P', &parse("", "")).await;
    raw.send('B', &bind("", "")).await;
    raw.send('D', b"P\0").await;
    raw.send('E', &execute("", 0)).await;
    raw.send('S', b"").await;
    assert_eq!(kinds(&raw.until('Z').await), "12nIZ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_write_before_sync_is_refused() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int primary key)").await;
    for _ in 0..2 {
        raw.send('P', &parse("", "insert into t values (1) on conflict do nothing")).await;
        raw.send('B', &bind("", "")).await;
        raw.send('E', &execute("", 0)).await;
    }
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "12C12EZ");
    assert_eq!(answer[5].field(b'C'), "0A000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_have_a_time_limit() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int)").await;
    raw.query("set statement_timeout = 20").await;
    // COPY waits for data for as long as it may.
    raw.send('Q', b"copy t from stdin\0").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "GEZ");
    assert_eq!(answer[1].field(b'C'), "57014");
    assert_eq!(answer[1].field(b'M'), "canceling statement due to statement timeout");
    // To parse it takes longer.
    raw.query("set statement_timeout = 1").await;
    let long = format!("select 1 where 1 in (1{})", ", 1".repeat(100_000));
    raw.send('Q', format!("{long}\0").as_bytes()).await;
    let simple = raw.until('Z').await;
    raw.send('P', &parse("", &long)).await;
    raw.send('S', b"").await;
    for answer in [simple, raw.until('Z').await] {
        assert_eq!(kinds(&answer), "EZ");
        assert_eq!(answer[0].field(b'C'), "57014");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_right_secret_cancels() {
    let server = Server::start().await;
    let mut raw = Raw::open(server.address()).await;
    let greeting = raw.start().await;
    let key = greeting.iter().find(|m| m.kind == 'K').unwrap().body.clone();
    raw.query("create table t (a int)").await;
    raw.send('Q', b"copy t from stdin\0").await;
    raw.until('G').await;
    for change in [1u8, 0] {
        let mut secret = key.clone();
        secret[7] ^= change;
        let mut other = Raw::open(server.address()).await;
        other.startup(80_877_102, &secret).await;
        // The server closes without an answer in either case.
        assert_eq!(other.next().await, None);
        if change == 1 {
            raw.send('d', b"1\n").await;
        }
    }
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "EZ");
    assert_eq!(answer[0].field(b'C'), "57014");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_sessions_is_limited() {
    let server = Server::start_with(|options| options.max_connections = 2).await;
    let (first, _second) = (server.connect().await, server.connect().await);
    let error = server.config().connect(NoTls).await.err().unwrap();
    assert_eq!(code(error), "53300");
    assert_eq!(value(&first, "select 1").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_ends_sessions() {
    let server = Server::start().await;
    let mut idle = server.raw().await;
    let mut busy = server.raw().await;
    busy.query("create table t (a int)").await;
    busy.send('Q', b"copy t from stdin\0").await;
    busy.until('G').await;
    server.handle.stop().await;
    assert_eq!(idle.last_words().await.field(b'C'), "57P01");
    assert_eq!(busy.last_words().await.field(b'C'), "57P01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_slows_only_itself() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int, b text)").await.unwrap();
    let mut sink = Box::pin(client.copy_in::<_, bytes::Bytes>("copy t from stdin").await.unwrap());
    for i in 0..200 {
        let lines: String = (0..100).map(|j| format!("{}\t{}\n", i * 100 + j, "x".repeat(1000))).collect();
        sink.send(bytes::Bytes::from(lines)).await.unwrap();
    }
    assert_eq!(sink.as_mut().finish().await.unwrap(), 20_000);
    // Twenty megabytes that nobody reads yet.
    let mut slow = server.raw().await;
    slow.send('Q', b"select * from t\0").await;
    assert_eq!(slow.next().await.unwrap().kind, 'T');
    assert_eq!(value(&client, "select count(*) from t").await, "20000");
    let answer = slow.until('Z').await;
    assert_eq!(answer.iter().filter(|m| m.kind == 'D').count(), 20_000);
    // One that leaves in the middle is forgotten.
    let mut leaving = server.raw().await;
    leaving.send('Q', b"select * from t\0").await;
    leaving.until('D').await;
    drop(leaving);
    drop(slow);
    while server.handle.connections() > 1 {
        tokio::task::yield_now().await;
    }
    let all = client.query_raw("select a from t", std::iter::empty::<i32>()).await.unwrap();
    assert_eq!(all.count().await, 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_of_the_connection_are_settings() {
    let server = Server::start().await;
    let mut config = server.config();
    let client = connect(config.options("-c timezone=Europe/Berlin -c statement_timeout=1min")).await;
    assert_eq!(rows(&client, "show timezone").await, [[Some("Europe/Berlin".to_owned())]]);
    client.batch_execute("set timezone = 'UTC'; reset timezone").await.unwrap();
    assert_eq!(value(&client, "show timezone").await, "Europe/Berlin");
    let error = config.options("-c nonsense=1").connect(NoTls).await.err().unwrap();
    assert_eq!(code(error), "42704");
}
