//! COPY FROM STDIN and COPY TO STDOUT.

use bytes::Bytes;
use futures::{SinkExt, TryStreamExt};
use tokio_postgres::Client;

use crate::support::{Server, db_error, kinds, rows, value};

async fn copy_in(client: &Client, sql: &str, data: &[u8]) -> Result<u64, tokio_postgres::Error> {
    let mut sink = Box::pin(client.copy_in(sql).await?);
    for piece in data.chunks(1000) {
        sink.send(Bytes::copy_from_slice(piece)).await?;
    }
    sink.as_mut().finish().await
}

async fn copy_out(client: &Client, sql: &str) -> String {
    let stream = client.copy_out(sql).await.unwrap();
    let pieces: Vec<Bytes> = stream.try_collect().await.unwrap();
    String::from_utf8(pieces.concat()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_and_csv() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int, b text, c date default '2000-01-01')").await.unwrap();
    let text = b"1\tx\\ty\t2024-01-01\n2\t\\N\t\\N\n";
    assert_eq!(copy_in(&client, "copy t from stdin", text).await.unwrap(), 2);
    assert_eq!(copy_out(&client, "copy t to stdout").await.len(), text.len());
    let csv = b"b,a\r\n\"two\r\nlines, \"\"quoted\"\"\",3\r\n,4\r\n\"\",5\r\n";
    assert_eq!(
        copy_in(&client, "copy t (b, a) from stdin (format csv, header match)", csv).await.unwrap(),
        3
    );
    assert_eq!(
        rows(&client, "select b, c from t where a >= 3 order by a").await,
        [
            [Some("two\r\nlines, \"quoted\"".to_owned()), Some("2000-01-01".into())],
            [None, Some("2000-01-01".into())],
            [Some(String::new()), Some("2000-01-01".into())]
        ]
    );
    assert_eq!(
        copy_out(&client, "copy (select a, b from t where a <> 3 order by a) to stdout with csv header")
            .await,
        "a,b\n1,x\ty\n2,\n4,\n5,\"\"\n"
    );
    assert_eq!(
        copy_out(
            &client,
            "copy (select 'x' as \"a,b\", null) to stdout (format csv, header, force_quote *, null '-')"
        )
        .await,
        "\"a,b\",?column?\n\"x\",-\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_rows_are_named_and_load_nothing() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int not null, b varchar(3))").await.unwrap();
    for (options, data, code, message, context) in [
        ("", &b"1\tx\n2\n"[..], "22P04", "missing data for column \"b\"", "COPY t, line 2: \"2\""),
        ("", b"1\tx\t3\n", "22P04", "extra data after last expected column", "COPY t, line 1: \"1\tx\t3\""),
        (
            "",
            b"1\tx\nq\tx\n",
            "22P02",
            "invalid input syntax for type integer: \"q\"",
            "COPY t, line 2, column a: \"q\"",
        ),
        (
            "csv",
            b"1,\"a\nb\"\n2,abcd\n",
            "22001",
            "value too long for type character varying(3)",
            "COPY t, line 3, column b: \"abcd\"",
        ),
        (
            "",
            b"1\tx\n\\N\ty\n",
            "23502",
            "null value in column \"a\" of relation \"t\" violates not-null constraint",
            "COPY t, line 2: \"\\N\ty\"",
        ),
        ("csv", b"1,\"x\n", "22P04", "unterminated CSV quoted field", "COPY t, line 2: \"1,\"x\n\""),
        (
            "(format csv, header match)",
            b"a,c\n",
            "22P04",
            "column name mismatch in header line field 2: got \"c\", expected \"b\"",
            "COPY t, line 1: \"a,c\"",
        ),
        ("", b"1\t\xff\n", "22021", "invalid byte sequence for encoding \"UTF8\": 0xff", "COPY t, line 1"),
    ] {
        let error =
            db_error(copy_in(&client, &format!("copy t from stdin {options}"), data).await.unwrap_err());
        assert_eq!(error.code().code(), code);
        assert_eq!(error.message(), message);
        assert_eq!(error.where_(), Some(context));
        assert_eq!(value(&client, "select count(*) from t").await, "0");
    }
    let error = copy_in(&client, "copy t from stdin", b"\\N\tx\n").await.unwrap_err();
    assert_eq!(db_error(error).detail(), Some("Failing row contains (null, x)."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_are_staged() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.batch_execute("create table t (a int primary key, b text)").await.unwrap();
    let data: String = (0..50_000).map(|i| format!("{i}\trow {i}\n")).collect();
    assert_eq!(copy_in(&client, "copy t from stdin", data.as_bytes()).await.unwrap(), 50_000);
    assert_eq!(value(&client, "select count(*) from t").await, "50000");
    assert_eq!(value(&client, "select b from t where a = 43210").await, "row 43210");
    // A duplicate anywhere loads nothing of the rest.
    let data: String = (50_000..90_000).chain([7]).map(|i| format!("{i}\tx\n")).collect();
    let error = db_error(copy_in(&client, "copy t from stdin", data.as_bytes()).await.unwrap_err());
    assert_eq!(error.detail(), Some("Key (a)=(7) already exists."));
    assert_eq!(error.where_(), Some("COPY t, line 40001"));
    let csv = b"a,b\n90000,\"two\nlines\"\n90001,x\n90000,y\n";
    let error = db_error(copy_in(&client, "copy t from stdin csv header", csv).await.unwrap_err());
    assert_eq!(error.detail(), Some("Key (a)=(90000) already exists."));
    assert_eq!(error.where_(), Some("COPY t, line 5"));
    assert_eq!(value(&client, "select count(*) from t").await, "50000");
    // A bad row after many good ones that were staged.
    let data: String = (50_000..90_000).map(|i| format!("{i}\tx\n")).collect::<String>() + "bad\tx\n";
    let error = db_error(copy_in(&client, "copy t from stdin", data.as_bytes()).await.unwrap_err());
    assert_eq!(error.where_(), Some("COPY t, line 40001, column a: \"bad\""));
    assert_eq!(value(&client, "select count(*) from t").await, "50000");
    assert_eq!(copy_out(&client, "copy t to stdout").await.lines().count(), 50_000);
}

/// The rows that have been staged are then staged again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ring_may_change_while_rows_come() {
    let server = Server::start().await;
    let (client, mover) = (server.connect().await, server.connect().await);
    client.batch_execute("create table t (a int primary key, b text)").await.unwrap();
    let rows = |from: usize| -> Bytes {
        (from..from + 20_000).map(|i| format!("{i}\trow {i}\n")).collect::<String>().into()
    };
    let mut sink = Box::pin(client.copy_in("copy t from stdin").await.unwrap());
    for (n, identifier) in
        ["4611686018427387904", "9223372036854775808", "4611686018427387904"].iter().enumerate()
    {
        // More than what is on its way at a time, so that something has been staged by the time the last of it is taken.
        for part in 0..3 {
            sink.send(rows((3 * n + part) * 20_000)).await.unwrap();
        }
        mover.batch_execute(&format!("alter cluster rebalance s2 to {identifier}")).await.unwrap();
    }
    assert_eq!(sink.as_mut().finish().await.unwrap(), 180_000);
    assert_eq!(value(&client, "select count(*) || ' ' || count(distinct b) from t").await, "180000 180000");
    assert_eq!(value(&mover, "select b from t where a = 123456").await, "row 123456");
    let error = copy_in(&client, "copy t from stdin", b"7\tx\n").await.unwrap_err();
    assert_eq!(db_error(error).detail(), Some("Key (a)=(7) already exists."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_megabytes() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a text)").await;
    raw.send('Q', b"copy t from stdin\0").await;
    raw.until('G').await;
    let line = format!("{}\n", "x".repeat(999));
    for _ in 0..3 {
        raw.send('d', line.repeat(3000).as_bytes()).await;
    }
    raw.send('c', b"").await;
    assert_eq!(&raw.until('Z').await[0].body, b"COPY 9000\0");
    let long = format!("select length('{}')", "y".repeat(3 << 20));
    assert_eq!(&raw.query(&long).await[1].body, b"\0\x01\0\0\0\x073145728");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_the_client_gives_up() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.query("create table t (a int)").await;
    raw.send('Q', b"copy t from stdin\0").await;
    assert_eq!(raw.until('G').await.last().unwrap().body, [0, 0, 1, 0, 0]);
    raw.send('d', b"1\n").await;
    raw.send('f', b"changed my mind\0").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "EZ");
    assert_eq!(answer[0].field(b'C'), "57014");
    assert_eq!(answer[0].field(b'M'), "COPY from stdin failed: changed my mind");
    // What comes after an error up to the end of the data is left out; the session goes on.
    raw.send('Q', b"copy t from stdin\0").await;
    raw.send('d', b"q\n").await;
    raw.send('d', b"1\n").await;
    raw.send('c', b"").await;
    assert_eq!(kinds(&raw.until('Z').await), "GEZ");
    let count = raw.query("select count(*) from t").await;
    assert_eq!(&count[1].body, b"\0\x01\0\0\0\x010");
    // Another message in the middle.
    raw.send('Q', b"copy t from stdin\0").await;
    raw.until('G').await;
    raw.send('Q', b"select 1\0").await;
    assert_eq!(raw.until('Z').await[0].field(b'C'), "08P01");
}
