//! What no driver sends. The session that sends it ends or gets an error; the others do not notice.

use proptest::{prelude::*, test_runner::TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Raw, Server, kinds, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_streams_end_their_session_only() {
    let server = Server::start().await;
    let bystander = server.connect().await;
    for bytes in [
        // A length of a gigabyte, one that is too short, a negative one.
        &b"Q\x40\0\0\0"[..],
        b"Q\0\0\0\x03",
        b"Q\xff\xff\xff\xff",
        // A type that does not exist.
        b"~\0\0\0\x04",
    ] {
        let mut raw = server.raw().await;
        raw.write(bytes).await;
        assert_eq!(raw.last_words().await.field(b'C'), "08P01");
        assert_eq!(value(&bystander, "select 1").await, "1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_messages_leave_the_session() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    // No terminating zero; text that is not UTF-8; a Bind that promises more than it has.
    raw.send('Q', b"select 1").await;
    assert_eq!(raw.until('Z').await[0].field(b'C'), "08P01");
    raw.send('Q', b"select '\xff'\0").await;
    assert_eq!(raw.until('Z').await[0].field(b'C'), "22021");
    raw.send('B', b"\0\0\0\0\xff\xff").await;
    raw.send('E', b"\0\0\0\0\0").await;
    raw.send('S', b"").await;
    let answer = raw.until('Z').await;
    assert_eq!(kinds(&answer), "EZ");
    assert_eq!(answer[0].field(b'C'), "08P01");
    raw.send('F', b"").await;
    assert_eq!(raw.until('Z').await[0].field(b'C'), "0A000");
    assert_eq!(kinds(&raw.query("select 1").await), "TDCZ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_starts() {
    let server = Server::start().await;
    for (packet, code) in [
        // Lengths: none, a gigabyte, too long for a startup packet.
        (&b"\0\0\0\0"[..], "08P01"),
        (b"\x40\0\0\0\0\x03\0\0", "08P01"),
        (b"\0\0\x80\0\0\x03\0\0", "08P01"),
        // No terminator, no role.
        (b"\0\0\0\x0a\0\x03\0\0us", "08P01"),
        (b"\0\0\0\x09\0\x03\0\0\0", "28000"),
        // A TLS client that does not ask first.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "08P01"),
    ] {
        let mut raw = Raw::open(server.address()).await;
        raw.write(packet).await;
        assert_eq!(raw.last_words().await.field(b'C'), code, "{packet:?}");
    }
    // A packet that never becomes complete: closed without a word when the client closes, or after a while.
    let mut raw = Raw::open(server.address()).await;
    raw.write(b"\0\0\0\x20\0\x03").await;
    raw.socket.shutdown().await.unwrap();
    assert_eq!(raw.next().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_takes_too_long() {
    let server = Server::start_with(|o| o.startup_timeout = std::time::Duration::from_millis(10)).await;
    let mut raw = Raw::open(server.address()).await;
    raw.write(b"\0\0\0\x20\0\x03").await;
    assert_eq!(raw.next().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_during_copy() {
    let server = Server::start().await;
    let bystander = server.connect().await;
    bystander.batch_execute("create table t (a int, b text)").await.unwrap();
    let mut raw = server.raw().await;
    raw.send('Q', b"copy t from stdin\0").await;
    raw.until('G').await;
    let line = format!("1\t{}\n", "x".repeat(90));
    for _ in 0..40 {
        raw.send('d', line.repeat(1000).as_bytes()).await;
    }
    // In the middle of a message.
    raw.write(b"d\0\0\x10\0half").await;
    drop(raw);
    while server.handle.connections() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(value(&bystander, "select count(*) from t").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes() {
    let server = Server::start().await;
    let address = server.address();
    let bystander = server.connect().await;
    let runtime = tokio::runtime::Handle::current();
    // Types that exist are more interesting than those that do not.
    let kind = prop_oneof![3 => prop::sample::select(b"QPBDCEHSXdcfpF".to_vec()), 1 => any::<u8>()];
    let message = (kind, prop::collection::vec(any::<u8>(), 0..40), prop::bool::weighted(0.9)).prop_map(
        |(kind, body, honest)| {
            let length = if honest { body.len() as u32 + 4 } else { u32::from(body.len() as u8) << 20 };
            [&[kind][..], &length.to_be_bytes(), &body].concat()
        },
    );
    let stream = (any::<bool>(), prop::collection::vec(message, 0..8)).prop_map(|(started, messages)| {
        let start = if started { &b"\0\0\0\x10\0\x03\0\0user\0r\0\0"[..] } else { b"" };
        [start, &messages.concat()].concat()
    });
    tokio::task::spawn_blocking(move || {
        TestRunner::new(ProptestConfig {
            cases: 200,
            failure_persistence: None,
            ..ProptestConfig::default()
        })
        .run(&stream, |bytes| {
            runtime.block_on(async {
                let mut raw = Raw::open(address).await;
                // The server may have had enough before the end.
                let _ = raw.socket.write_all(&bytes).await;
                let _ = raw.socket.shutdown().await;
                let mut answer = Vec::new();
                let _ = raw.socket.read_to_end(&mut answer).await;
            });
            Ok(())
        })
        .unwrap();
    })
    .await
    .unwrap();
    while server.handle.connections() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(value(&bystander, "select 1").await, "1");
}
