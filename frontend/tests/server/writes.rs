//! What clients are told of a write that was submitted: how it ended, or that nobody knows.

use tokio::net::TcpStream;

use crate::support::{LONG, Message, Raw, Server, kinds, make_long_table, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_an_insert_need_no_memory_of_others() {
    let server = Server::start_with(|options| options.relations_bytes = 1).await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int primary key, b text)").await;
    assert_eq!(kinds(&raw.query("insert into t values (2, 'x'), (1, 'y') returning a").await), "TDDCZ");
    assert_eq!(raw.query("select a from t order by b").await[1].field(b'C'), "53200");
}

/// The key of a new connection, to cancel its statements.
async fn connect(server: &Server) -> (Raw, Vec<u8>) {
    let mut raw = Raw::open(server.address()).await;
    let greeting = raw.start().await;
    let key = greeting.into_iter().find(|message| message.kind == 'K').unwrap();
    (raw, key.body)
}

async fn cancel(server: &Server, key: &[u8]) {
    let mut other = Raw::open(server.address()).await;
    other.startup(80_877_102, key).await;
    assert_eq!(other.next().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_done_is_answered_whatever_happens_meanwhile() {
    let server = Server::start().await;
    make_long_table(&server.connect().await).await;
    let (mut raw, key) = connect(&server).await;
    raw.send('Q', b"update t set a = a + 1 returning b\0").await;
    assert_eq!(raw.next().await.unwrap().kind, 'T');
    cancel(&server, &key).await;
    let answer = raw.until('Z').await;
    assert_eq!(answer.iter().filter(|message| message.kind == 'D').count(), LONG);
    assert_eq!(answer[LONG].body, format!("UPDATE {LONG}\0").into_bytes());
    // The request was for that statement only.
    assert_eq!(kinds(&raw.query("select 1").await), "TDCZ");
    // When the server stops, a client that waits for the rest must not take the write for one that has not happened.
    raw.send('Q', b"update t set a = a + 1 returning b\0").await;
    assert_eq!(raw.next().await.unwrap().kind, 'T');
    let address = server.address();
    let stopping = tokio::spawn(server.handle.stop());
    while TcpStream::connect(address).await.is_ok() {}
    let mut last = raw.next().await.unwrap();
    while let Some(message) = raw.next().await {
        last = message;
    }
    assert_in_doubt(&last, "terminating connection due to administrator command");
    stopping.await.unwrap();
}

fn assert_in_doubt(error: &Message, message: &str) {
    assert_eq!(error.kind, 'E');
    assert_eq!((error.field(b'C').as_str(), error.field(b'M').as_str()), ("08007", message));
    assert_eq!(error.field(b'D'), "The statement had been submitted and may take effect.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_submitted_is_in_doubt_until_it_is_answered() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int primary key)").await.unwrap();
    let mut cancelled = connect(&server).await;
    let mut stopped = Vec::new();
    server.cluster().kill_router(1).await;
    cancelled.0.send('Q', b"insert into t values (1)\0").await;
    for statement in ["insert into t values (2)", "drop table t", "alter cluster rebalance s1 to 1"] {
        let mut raw = server.raw().await;
        raw.send('Q', format!("{statement}\0").as_bytes()).await;
        stopped.push(raw);
    }
    let open = "select count(*) from carousel.operations";
    while value(&client, open).await != "4" {
        tokio::task::yield_now().await;
    }
    cancel(&server, &cancelled.1).await;
    assert_in_doubt(&cancelled.0.next().await.unwrap(), "canceling statement due to user request");
    server.handle.stop().await;
    for mut raw in stopped {
        assert_in_doubt(&raw.last_words().await, "terminating connection due to administrator command");
    }
}

/// Many rows of RETURNING come as they are read. Who reads no further has changed them all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_rows_are_not_read_has_taken_effect() {
    let server = Server::start().await;
    let client = server.connect().await;
    make_long_table(&client).await;
    let sum: i64 = value(&client, "select sum(a) from t").await.parse().unwrap();
    let mut raw = server.raw().await;
    for times in 1..4 {
        raw.send('P', b"\0update t set a = a + 1 returning b\0\0\0").await;
        raw.send('B', b"\0\0\0\0\0\0\0\0").await;
        raw.send('E', b"\0\0\0\0\x01").await;
        raw.send('S', b"").await;
        assert_eq!(kinds(&raw.until('Z').await), "12DsZ");
        let now = value(&client, "select sum(a) from t").await;
        assert_eq!(now, (sum + times * LONG as i64).to_string());
    }
    let returned = "select count(*) from carousel.operations where kind = 'UPDATE'";
    while value(&client, returned).await != "0" {
        tokio::task::yield_now().await;
    }
}
