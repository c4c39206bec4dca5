//! Settings and transaction blocks.

use crate::support::{Server, code, connect, db_error, kinds, rows, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("set timezone to 'Asia/Tokyo'").await.unwrap();
    assert_eq!(value(&client, "show timezone").await, "Asia/Tokyo");
    assert_eq!(
        value(&client, "select '2024-01-01 00:00:00+00'::timestamptz").await,
        "2024-01-01 09:00:00+09"
    );
    assert_eq!(value(&client, "select current_setting('timezone')").await, "Asia/Tokyo");
    assert_eq!(value(&client, "show transaction isolation level").await, "read committed");
    assert!(rows(&client, "show all").await.len() > 20);
    assert_eq!(code(client.simple_query("show nonsense").await.unwrap_err()), "42704");
    let error = db_error(client.simple_query("set nonsense = 1").await.unwrap_err());
    assert_eq!(error.message(), "unrecognized configuration parameter \"nonsense\"");
    assert_eq!(code(client.simple_query("set datestyle = 'SQL'").await.unwrap_err()), "0A000");
    assert_eq!(code(client.simple_query("set timezone = 'Nowhere/Atall'").await.unwrap_err()), "22023");
    client.batch_execute("discard all").await.unwrap();
    assert_eq!(value(&client, "show timezone").await, "UTC");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drivers_are_told_of_changes() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let answer = raw.query("set application_name = 'x'").await;
    assert_eq!(kinds(&answer), "CSZ");
    assert_eq!(&answer[1].body, b"application_name\0x\0");
    assert_eq!(kinds(&raw.query("set application_name = 'x'").await), "CZ");
    let answer = raw.query("begin; set local timezone = 'Asia/Tokyo'").await;
    assert_eq!(kinds(&answer), "CCSZ");
    let answer = raw.query("commit").await;
    assert_eq!(&answer[1].body, b"TimeZone\0UTC\0");
}

/// The statements of one text, and those before a Sync, are one transaction for settings: what is SET LOCAL ends with it, and
/// an error takes back what was SET.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_of_one_text_scope_settings() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let zone = b"Asia/Tokyo".as_slice();
    let shown = |answer: &[crate::support::Message]| {
        answer.iter().filter(|m| m.kind == 'D').map(|m| m.body[6..].to_vec()).collect::<Vec<_>>()
    };
    let answer = raw.query("set local timezone = 'Asia/Tokyo'; show timezone").await;
    assert_eq!(kinds(&answer), "CTDCZ");
    assert_eq!(shown(&answer), [zone]);
    assert_eq!(shown(&raw.query("show timezone").await), [b"UTC"]);
    // By itself it warns.
    assert_eq!(kinds(&raw.query("set local timezone = 'Asia/Tokyo'").await), "NCZ");
    assert_eq!(shown(&raw.query("show timezone").await), [b"UTC"]);

    assert_eq!(kinds(&raw.query("set timezone = 'Asia/Tokyo'; select 1 / 0").await), "CEZ");
    assert_eq!(shown(&raw.query("show timezone").await), [b"UTC"]);
    // What came before a block in its text is a part of it.
    let answer =
        raw.query("set timezone = 'Asia/Tokyo'; begin; show timezone; rollback; show timezone").await;
    assert_eq!(shown(&answer), [zone, b"UTC"]);
    let answer = raw.query("set timezone = 'Asia/Tokyo'; commit; select 1 / 0").await;
    assert_eq!(kinds(&answer), "CNCESZ");
    assert_eq!(shown(&raw.query("show timezone").await), [zone]);
    assert_eq!(kinds(&raw.query("reset all").await), "CSZ");

    let answer = raw.query("set transaction read only; show transaction_read_only").await;
    assert_eq!(shown(&answer), [b"on"]);
    assert_eq!(shown(&raw.query("show transaction_read_only").await), [b"off"]);
    let answer = raw.query("set transaction read only; begin; show transaction_read_only; rollback").await;
    assert_eq!(shown(&answer), [b"on"]);
    let answer = raw.query("set default_transaction_read_only = on; show transaction_read_only").await;
    assert_eq!(shown(&answer), [b"off"]);
    assert_eq!(shown(&raw.query("show transaction_read_only").await), [b"on"]);
    let answer = raw.query("begin read write; show transaction_read_only; rollback").await;
    assert_eq!(shown(&answer), [b"off"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_reads_one_snapshot() {
    let server = Server::start().await;
    let (reader, writer) = (server.connect().await, server.connect().await);
    writer.batch_execute("create table t (a int)").await.unwrap();
    writer.batch_execute("insert into t values (1)").await.unwrap();
    reader.batch_execute("begin").await.unwrap();
    assert_eq!(value(&reader, "select count(*) from t").await, "1");
    writer.batch_execute("insert into t values (2)").await.unwrap();
    assert_eq!(value(&reader, "select count(*) from t").await, "1");
    assert_eq!(value(&writer, "select count(*) from t").await, "2");
    // A table of the same name that was made later had no rows then.
    for sql in ["drop table t", "create table t (a int)", "insert into t values (3), (4)"] {
        writer.batch_execute(sql).await.unwrap();
    }
    assert_eq!(code(reader.simple_query("select count(*) from t").await.unwrap_err()), "40001");
    reader.batch_execute("rollback").await.unwrap();
    assert_eq!(value(&reader, "select count(*) from t").await, "2");
}

/// A connection's option, a hint and SET LOCAL choose the level of reads, also within a block and of several reads: what
/// has no place in the order of messages leaves no trace there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn basic_reads_are_not_ordered_wherever_they_are_asked_for() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int)").await.unwrap();
    client.batch_execute("insert into t values (1), (2)").await.unwrap();
    let written = value(&client, "show carousel.last_ts").await.parse::<u64>().unwrap();
    let join = "select count(*) from t x, t y where x.a < y.a and (select max(a) from t) = 2";
    let mut options = server.config();
    options.options("-c carousel.read_isolation=basic");
    let optional = connect(&options).await;
    assert_eq!(value(&optional, "show carousel.read_isolation").await, "basic");
    assert_eq!(value(&optional, "select count(*) from t").await, "2");
    assert_eq!(value(&client, &format!("/*+ read_isolation(basic) */ {join}")).await, "1");
    client.batch_execute("begin; set local carousel.read_isolation = 'basic'").await.unwrap();
    assert_eq!(value(&client, "select count(*) from t").await, "2");
    // Basic reads see what has been written meanwhile.
    optional.batch_execute("insert into t values (0)").await.unwrap();
    assert_eq!(value(&client, "select count(*) from t").await, "3");
    assert_eq!(value(&client, join).await, "3");
    client.batch_execute("commit").await.unwrap();
    assert_eq!(value(&client, "show carousel.read_isolation").await, "sequential");
    // Two writes, and this read: nothing else has been ordered.
    assert_eq!(value(&client, "select count(*) from t").await, "3");
    let read = value(&client, "show carousel.last_ts").await.parse::<u64>().unwrap();
    assert_eq!(read, written + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_in_a_block_is_refused() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int)").await;
    let answer = raw.query("begin").await;
    assert_eq!(&answer[1].body, b"T");
    let answer = raw.query("insert into t values (1)").await;
    assert_eq!(answer[0].field(b'C'), "0A000");
    assert!(answer[0].field(b'H').contains("autocommit"));
    assert_eq!(&answer[1].body, b"E");
    assert_eq!(raw.query("select 1").await[0].field(b'C'), "25P02");
    assert_eq!(raw.query("select no_such_thing").await[0].field(b'C'), "25P02");
    let answer = raw.query("commit").await;
    assert_eq!(&answer[0].body, b"ROLLBACK\0");
    assert_eq!(&answer[1].body, b"I");
    let count = raw.query("select count(*) from t").await;
    assert_eq!(&count[1].body, b"\0\x01\0\0\0\x010");
    // Warnings as PostgreSQL gives them.
    let answer = raw.query("commit").await;
    assert_eq!(kinds(&answer), "NCZ");
    assert_eq!(answer[0].field(b'C'), "25P01");
    let answer = raw.query("begin; begin").await;
    assert_eq!(kinds(&answer), "CNCZ");
    assert_eq!(answer[1].field(b'C'), "25001");
    assert_eq!(raw.query("savepoint s").await[0].field(b'C'), "0A000");
    raw.query("rollback").await;
    raw.query("set default_transaction_read_only = on").await;
    let answer = raw.query("insert into t values (1)").await;
    assert_eq!(answer[0].field(b'C'), "25006");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_is_one_transaction() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int)").await.unwrap();
    let refused = "insert into t values (1); insert into t values (2)";
    assert_eq!(code(client.simple_query(refused).await.unwrap_err()), "0A000");
    assert_eq!(value(&client, "select count(*) from t").await, "0");
    client.batch_execute("select 1; insert into t values (1)").await.unwrap();
    assert_eq!(value(&client, "select count(*) from t").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalog_may_change_under_a_prepared_statement() {
    let server = Server::start().await;
    let (client, other) = (server.connect().await, server.connect().await);
    other.batch_execute("create table t (a int)").await.unwrap();
    let count = client.prepare("select count(*) from t").await.unwrap();
    assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 0);
    other.batch_execute("drop table t").await.unwrap();
    assert_eq!(code(client.query_one(&count, &[]).await.unwrap_err()), "42P01");
    other.batch_execute("create table t (a int, b int)").await.unwrap();
    other.batch_execute("insert into t values (1, 2)").await.unwrap();
    assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_end_when_they_are_told_to() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("set idle_session_timeout = '1h'").await;
    assert_eq!(&raw.query("show idle_session_timeout").await[1].body, b"\0\x01\0\0\0\x021h");
    raw.query("set idle_in_transaction_session_timeout = 50").await;
    raw.query("begin").await;
    let error = raw.last_words().await;
    assert_eq!(error.field(b'S'), "FATAL");
    assert_eq!(error.field(b'C'), "25P03");
    assert_eq!(error.field(b'M'), "terminating connection due to idle-in-transaction timeout");
    let mut raw = server.raw().await;
    raw.query("set idle_session_timeout = 50").await;
    let error = raw.last_words().await;
    assert_eq!(error.field(b'C'), "57P05");
    assert_eq!(error.field(b'M'), "terminating connection due to idle-session timeout");
}

/// The system asks whether the client of an idle session is still there.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_is_noticed() {
    let server = Server::start().await;
    let raw = server.raw().await;
    // Addresses in hexadecimal, and `02` for the timer of keepalive, with hundredths of a second to go.
    let (own, others) = (raw.socket.local_addr().unwrap().port(), server.address().port());
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().unwrap().ends_with(&format!(":{others:04X}"))
            && words.next().unwrap().ends_with(&format!(":{own:04X}"))
    };
    let timer = connections.lines().skip(1).find(ends).unwrap().split_whitespace().nth(5).unwrap();
    let (kind, left) = timer.split_once(':').unwrap();
    assert_eq!(kind, "02", "{timer}");
    assert!(u32::from_str_radix(left, 16).unwrap() <= 60 * 100, "{timer}");
}

/// A front end follows the catalog from behind; it does not say that a table is not there before it has caught up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_front_end_has_made_is_there() {
    let server = Server::start().await;
    let other = server.cluster().add_client().unwrap();
    let options = carousel_frontend::Options::new("127.0.0.1:0".parse().unwrap());
    let other = carousel_frontend::FrontEnd::start(options, other).await.unwrap();
    let mut config = server.config();
    let (here, there) = (connect(&config).await, {
        config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(other.local_addr().port()).user("tester").dbname("anything");
        connect(&config).await
    });
    for round in 0..40 {
        let statement = match round % 4 {
            0 => "select n from t",
            1 => "insert into t values (1)",
            2 => "/*+ read_isolation(basic) */ select count(*) from t",
            _ => "explain select n from t",
        };
        there.batch_execute("create table t (n int)").await.unwrap();
        here.batch_execute(statement).await.unwrap();
        here.batch_execute("drop table t; create table t (m int)").await.unwrap_err();
        here.batch_execute("drop table t").await.unwrap();
    }
    assert_eq!(code(here.simple_query("select n from t").await.unwrap_err()), "42P01");
    other.stop().await;
}
