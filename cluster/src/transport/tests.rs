use std::collections::VecDeque;

use carousel_engine::Ts;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    dial::{DialError, Dialler},
    *,
};
use crate::{
    message::ProcessKind,
    network::{Endpoint, Lane, Loading, TrySendError},
    router::testing::large_write,
    routers::{RouterEntry, Routers, change::RouterChange},
    wire::Wire,
};

const R1: ProcessId = ProcessId::router(1);
const S1: ProcessId = ProcessId::storage(1);
const C7: ProcessId = ProcessId::client(7);

/// Three routers and three storage processes, of which some exist.
fn options(local: ProcessId, router: &str) -> TransportOptions {
    let nowhere = "127.0.0.1:1".to_owned();
    let members = (1..=3).flat_map(|n| [ProcessId::router(n), ProcessId::storage(n)]);
    let mut members: BTreeMap<ProcessId, String> =
        members.map(|process| (process, nowhere.clone())).collect();
    members.insert(R1, router.to_owned());
    TransportOptions {
        cluster: "test".into(),
        shape: "some processes".into(),
        description: "name = \"test\"\n".into(),
        members,
        locals: [local].into(),
        listen: (local == R1).then(|| "127.0.0.1:0".parse().expect("an address")),
        incarnation: 5,
        directory: 1,
        heard: None,
        tls: None,
        unnamed_certificates: false,
    }
}

/// An operating system process with one process in it.
struct Side {
    endpoint: Endpoint,
    transport: Transport,
}

impl Side {
    async fn start(id: ProcessId, options: TransportOptions) -> Side {
        let network = Network::new();
        let endpoint = network.join(id);
        let transport = Transport::start(options, &network).await.expect("it starts");
        Side { endpoint, transport }
    }

    fn address(&self) -> String {
        self.transport.address().expect("it listens").to_string()
    }

    /// Sends as soon as there is a session.
    async fn send(&self, to: ProcessId, wire: Wire) {
        while self.endpoint.sender().send(to, wire.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    async fn unreachable(&self, to: ProcessId) {
        while !matches!(
            self.endpoint.sender().try_send(to, control(R1, 0)),
            Err(TrySendError::Unreachable(_))
        ) {
            tokio::task::yield_now().await;
        }
    }

    async fn receive(&mut self) -> (ProcessId, Wire) {
        self.endpoint.recv().await.expect("it is not replaced")
    }

    /// Waits until this side has said so of connections, and left out so many equal lines.
    async fn says(&self, reason: &str, left_out: u64) {
        let said = || self.transport.shared.refusals.lock().reasons();
        let waiting = async {
            while !said().iter().any(|(said, count)| said == reason && *count == left_out) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await;
        assert!(waited.is_ok(), "'{reason}' and {left_out} more: {:?}", said());
    }

    /// Why a connection with such options to this side is refused, for good.
    async fn refusal(&self, from: ProcessId, change: impl FnOnce(&mut TransportOptions)) -> String {
        let mut options = options(from, &self.address());
        change(&mut options);
        // It shall not connect by itself.
        let members = std::mem::take(&mut options.members);
        let side = Side::start(from, options).await;
        match self.dial(&side, members[&R1].clone(), from).await {
            Err(DialError::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn dial(&self, side: &Side, address: String, from: ProcessId) -> Result<(), DialError> {
        let shared = side.transport.shared.clone();
        let dialler = Dialler { shared, local: from, remote: R1, address };
        let session = rand::random();
        dialler.connect(session, Lane::Control, true, 0).await.map(drop)
    }
}

fn control(from: ProcessId, n: u64) -> Wire {
    match from.kind {
        ProcessKind::Router => Wire::Lease { incarnation: 1, asked_ms: n },
        ProcessKind::Storage => Wire::AskLease { incarnation: 1, asked_ms: n },
        ProcessKind::Client | ProcessKind::Super => {
            Wire::ChangeRouters { incarnation: 1, request: n, change: RouterChange::Remove { number: 1 } }
        }
    }
}

fn data(from: ProcessId, n: u64) -> Wire {
    match from.kind {
        ProcessKind::Router => {
            Wire::Deliver { incarnation: n, after: Ts::ZERO, deliveries: Vec::new(), frontier: Ts::ZERO }
        }
        _ => Wire::Leave { incarnation: n },
    }
}

/// A message of about so many bytes.
fn large(bytes: usize) -> Wire {
    Wire::Route(vec![Arc::new(large_write(S1, 1, bytes))])
}

async fn pair() -> (Side, Side) {
    let router = Side::start(R1, options(R1, "127.0.0.1:1")).await;
    let storage = Side::start(S1, options(S1, &router.address())).await;
    (router, storage)
}

/// Receives `count` messages of each lane and checks that they follow `first` without a gap.
async fn expect(side: &mut Side, from: ProcessId, first: u64, count: u64) {
    let mut next = (first, first);
    while next != (first + count, first + count) {
        match side.receive().await {
            (
                sender,
                Wire::Lease { asked_ms: n, .. }
                | Wire::AskLease { asked_ms: n, .. }
                | Wire::ChangeRouters { request: n, .. },
            ) => {
                assert_eq!((sender, n), (from, next.0));
                next.0 += 1;
            }
            (sender, Wire::Leave { incarnation: n } | Wire::Deliver { incarnation: n, .. }) => {
                assert_eq!((sender, n), (from, next.1));
                next.1 += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn exchange(
    sender: &Side,
    to: ProcessId,
    receiver: &mut Side,
    from: ProcessId,
    first: u64,
    count: u64,
) {
    let send = async {
        for n in first..first + count {
            sender.send(to, control(from, n)).await;
            sender.send(to, data(from, n)).await;
        }
    };
    tokio::join!(send, expect(receiver, from, first, count));
}

#[tokio::test]
async fn messages_pass_both_ways_in_order() {
    let (mut router, mut storage) = pair().await;
    exchange(&storage, R1, &mut router, S1, 0, 3_000).await;
    exchange(&router, S1, &mut storage, R1, 0, 3_000).await;
}

#[tokio::test]
async fn a_message_larger_than_a_frame_travels_in_pieces() {
    let (mut router, storage) = pair().await;
    let sent = large(5 * frame::CONTENT + 7);
    storage.send(R1, data(S1, 1)).await;
    storage.send(R1, sent.clone()).await;
    storage.send(R1, data(S1, 2)).await;
    assert!(matches!(router.receive().await, (S1, Wire::Leave { incarnation: 1 })));
    let bytes = |wire: &Wire| postcard::to_stdvec(wire).expect("bytes");
    match router.receive().await {
        (S1, found @ Wire::Route(_)) => assert!(bytes(&found) == bytes(&sent)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(router.receive().await, (S1, Wire::Leave { incarnation: 2 })));
}

/// Whoever can prove to be a storage process does not speak as a router does.
#[tokio::test]
async fn what_no_process_of_the_kind_says_is_not_heard() {
    let (mut router, storage) = pair().await;
    storage.send(R1, data(S1, 1)).await;
    assert!(matches!(router.receive().await, (S1, Wire::Leave { incarnation: 1 })));
    for forged in [Wire::Routers(Arc::default()), Wire::Lost] {
        storage.send(R1, forged).await;
        // With the session goes what was sent in it.
        assert!(matches!(router.receive().await, (S1, Wire::Lost)));
        storage.send(R1, control(S1, 2)).await;
        assert!(matches!(router.receive().await, (S1, Wire::AskLease { asked_ms: 2, .. })));
    }
}

/// Only who watches or is asked by users hears of a process that it is loading; to all it is not there for anything else.
#[tokio::test]
async fn who_watches_hears_how_far_a_process_is_that_loads() {
    let network = Network::new();
    let starting = network.starts(S1, 7);
    let listening = TransportOptions { listen: "127.0.0.1:0".parse().ok(), ..options(S1, "127.0.0.1:1") };
    let transport = Transport::start(listening, &network).await.expect("it starts");
    let address = transport.address().expect("it listens").to_string();
    let side = async |id| {
        let mut options = options(id, "127.0.0.1:1");
        options.members.insert(S1, address.clone());
        Side::start(id, options).await
    };
    let supers = ProcessId::super_process(1);
    let asks = || Wire::Durable { ts: Ts(1), hashes: Vec::new(), reply: true };
    let (mut watching, other) = (side(supers).await, side(ProcessId::storage(2)).await);
    let mut heard = async |progress| {
        loop {
            match watching.receive().await {
                (S1, Wire::Loading(loading)) if loading.progress < progress => {}
                (S1, Wire::Loading(loading)) => return loading,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(heard(0).await, Loading { incarnation: 7, progress: 0 });
    starting.goes_on();
    starting.goes_on();
    assert_eq!(heard(1).await, Loading { incarnation: 7, progress: 2 });
    assert!(other.endpoint.sender().try_send(S1, asks()).is_err());
    let endpoint = network.join(S1);
    drop(starting);
    let mut storage = Side { endpoint, transport };
    other.send(S1, asks()).await;
    assert!(matches!(storage.receive().await, (_, Wire::Durable { .. })));
    storage.send(supers, Wire::ReadsMissed).await;
    loop {
        match watching.receive().await {
            (S1, Wire::Loading(_) | Wire::Lost) => {}
            (S1, Wire::ReadsMissed) => break,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn control_does_not_queue_behind_data() {
    let (mut router, storage) = pair().await;
    let route = large(frame::CONTENT / 2);
    storage.send(R1, route.clone()).await;
    // Until the mailboxes and the window are full, for nobody receives.
    let mut sent = 1;
    let mut full = 0;
    while full < 100_000 {
        match storage.endpoint.sender().try_send(R1, route.clone()) {
            Ok(()) => (sent, full) = (sent + 1, 0),
            Err(TrySendError::Full(..)) => {
                full += 1;
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    storage.send(R1, control(S1, 1)).await;
    assert!(matches!(router.endpoint.recv_control().await, Some((S1, Wire::AskLease { asked_ms: 1, .. }))));
    for _ in 0..sent {
        assert!(matches!(router.receive().await, (S1, Wire::Route(_))));
    }
}

#[tokio::test]
async fn who_does_not_belong_is_refused() {
    let (router, _storage) = pair().await;
    for (reason, part) in [
        (router.refusal(S1, |options| options.cluster = "other".into()).await, "cluster 'other'"),
        (router.refusal(S1, |options| options.shape = "much more".into()).await, "much more"),
        (router.refusal(ProcessId::storage(70_000), |_| ()).await, "s70000 is not a member"),
        (router.refusal(ProcessId::router(9), |_| ()).await, "r9 is not a member"),
        (router.refusal(ProcessId::client(5_000), |_| ()).await, "c5000 is not a member"),
    ] {
        assert!(reason.contains("refused") && reason.contains(part), "{reason}");
    }
}

/// Who cannot be let in tries again for ever.
#[tokio::test]
async fn connections_that_are_refused_for_the_same_reason_make_one_line() {
    let router = Side::start(R1, options(R1, "127.0.0.1:1")).await;
    for _ in 0..10 {
        router.refusal(S1, |options| options.cluster = "a\nb".into()).await;
        drop(TcpStream::connect(router.address()).await.expect("it listens"));
    }
    router.says("it does not greet: the connection was closed", 9).await;
    let line = r"s1 wants to talk to r1: the process that connects belongs to the cluster 'a\nb', the other one to 'test'";
    router.says(line, 9).await;
    assert_eq!(router.transport.shared.refusals.lock().reasons().len(), 2);
}

#[tokio::test]
async fn an_older_or_second_life_of_a_connected_process_is_refused() {
    let (mut router, storage) = pair().await;
    exchange(&storage, R1, &mut router, S1, 0, 1).await;
    let older = router.refusal(S1, |options| options.incarnation = 4).await;
    assert!(older.contains("newer one, 5, is connected"), "{older}");
    let second = router.refusal(S1, |_| ()).await;
    assert!(second.contains("same incarnation 5"), "{second}");
    exchange(&storage, R1, &mut router, S1, 1, 1).await;
    // Also one that counts its starts elsewhere, however often it has been started.
    let elsewhere = router.refusal(S1, |options| (options.incarnation, options.directory) = (9, 2)).await;
    assert!(elsewhere.contains("with another data directory"), "{elsewhere}");
    exchange(&storage, R1, &mut router, S1, 2, 1).await;
    // A newer one takes its place.
    let mut newer = options(S1, &router.address());
    newer.incarnation = 6;
    let newer = Side::start(S1, newer).await;
    exchange(&newer, R1, &mut router, S1, 0, 10).await;
    // When no other is there it is heard: it may have lost its directory, and has to be told.
    let client = Side::start(C7, options(C7, &router.address())).await;
    exchange(&client, R1, &mut router, C7, 0, 1).await;
    drop(client);
    router.unreachable(C7).await;
    let mut older = options(C7, &router.address());
    older.incarnation = 4;
    let older = Side::start(C7, older).await;
    older.send(R1, data(C7, 0)).await;
    assert!(matches!(router.receive().await, (C7, Wire::Lost)));
    assert!(matches!(router.receive().await, (C7, _)));
}

#[tokio::test]
async fn a_router_that_dials_or_is_dialled_hears_that_it_has_lost_its_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let r2 = ProcessId::router(2);
    for (forgetful, other) in [(R1, r2), (r2, R1)] {
        let side = |id: ProcessId| {
            let mut options = options(id, "127.0.0.1:1");
            options.heard = Some(directory.path().join(format!("{id}, but not {forgetful}")));
            Side::start(id, options)
        };
        let sides = BTreeMap::from([(R1, side(R1).await), (r2, side(r2).await)]);
        let lives = |id: &ProcessId| &sides[id].transport.shared.lives;
        let start = Start { incarnation: 1, directory: 99, life: 1 };
        lives(&other).hear(forgetful, start).await.expect("it is the first");
        let dialled = sides[&R1].dial(&sides[&r2], sides[&R1].address(), r2).await;
        let refused = dialled.expect_err("it is refused").to_string();
        assert!(refused.contains(&format!("{forgetful} has another data directory")), "{refused}");
        assert!(lives(&forgetful).forgetful().is_some() && lives(&other).forgetful().is_none());
    }
}

/// Routers remember the starts of others; nobody else can know that one must not go on.
#[tokio::test]
async fn only_a_router_can_say_that_a_router_must_not_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
    let address = listener.local_addr().expect("it listens").to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (reading, writing) = stream.into_split();
            let mut greeting = frame::FrameReader::new(Box::new(reading));
            greeting.next().await.expect("a greeting");
            let mut writer = frame::FrameWriter::new(writing);
            let reply = hello::encode(&hello::Reply::Forgetful("it says so".into()));
            writer.write(&reply, 0).await.expect("it is read");
            writer.flush().await.expect("it is read");
        }
    });
    let r2 = ProcessId::router(2);
    let mut options = options(r2, "127.0.0.1:1");
    options.heard = Some(directory.path().join("heard"));
    let side = Side::start(r2, options).await;
    let shared = &side.transport.shared;
    for (remote, obeys) in [(S1, false), (R1, true)] {
        let dialler = Dialler { shared: shared.clone(), local: r2, remote, address: address.clone() };
        let refused = dialler.connect(1, Lane::Control, true, 0).await.map(drop).expect_err("it is refused");
        assert!(matches!(&refused, DialError::Refused(_)), "{refused}");
        assert_eq!(shared.lives.forgetful().is_some(), obeys, "{remote}");
        let asked = dial::ask_routers(shared, remote, &address).await.expect_err("it is refused");
        assert_eq!(matches!(asked, DialError::Forgetful(_)), obeys, "{asked}");
        assert_eq!(shared.lives.forgetful().is_some(), obeys, "{remote}");
    }
    assert_eq!(side.transport.refused().await, "it says so");
}

#[tokio::test]
async fn connections_without_a_word_keep_nobody_out() {
    let (mut router, storage) = pair().await;
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(TcpStream::connect(router.address()).await.expect("it listens"));
    }
    let address = router.address();
    let newer = Side::start(C7, options(C7, &address)).await;
    exchange(&newer, R1, &mut router, C7, 0, 10).await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    // Those that were there first have made room.
    let mut rest = Vec::new();
    let ended = silent[0].read_to_end(&mut rest);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(1), ended).await;
    assert!(ended.is_ok(), "the oldest has gone, and nobody waited for it");
}

#[tokio::test]
async fn another_version_of_the_protocol_and_noise_are_refused() {
    let (mut router, storage) = pair().await;
    let speak = |bytes: Vec<u8>| {
        let address = router.address();
        async move {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(&bytes).await.expect("it reads");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answer
        }
    };
    let mut content = hello::encode(&hello::Greeting::Describe).bytes.to_vec();
    content[4] = 99;
    let greeting = frame::Content::new(frame::Kind::Greeting, 0, 0, content);
    let mut bytes = Vec::new();
    let mut writer = frame::FrameWriter::new(&mut bytes);
    writer.write(&greeting, 0).await.expect("it is in memory");
    writer.flush().await.expect("it is in memory");
    let answer = String::from_utf8_lossy(&speak(bytes).await).into_owned();
    assert!(answer.contains("version 99") && answer.contains(&format!("version {PROTOCOL}")), "{answer}");
    speak(b"GET / HTTP/1.1\r\n\r\n".to_vec()).await;
    speak(vec![0; 100]).await;
    speak([0, 0, 0, 40].into_iter().chain([0x55; 40]).collect()).await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
}

#[tokio::test]
async fn a_running_process_describes_its_cluster() {
    let (router, _storage) = pair().await;
    let description = Transport::describe(&router.address(), None).await.expect("it answers");
    assert_eq!(description, "name = \"test\"\n");
    assert!(matches!(Transport::describe("127.0.0.1:1", None).await, Err(TransportError::Join { .. })));
}

#[tokio::test]
async fn a_taken_port_is_told() {
    let (router, _storage) = pair().await;
    let mut options = options(R1, "127.0.0.1:1");
    options.listen = router.transport.address();
    let error = Transport::start(options, &Network::new()).await.err().expect("the port is taken");
    assert!(matches!(error, TransportError::PortInUse(_)), "{error}");
}

/// What a proxy does to the next frame with messages.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Corrupt,
    Repeat,
    Drop,
    Cut,
}

/// Stands between two sides and passes frames on.
struct Proxy {
    address: String,
    damage: Arc<Mutex<VecDeque<Damage>>>,
    hole: watch::Sender<bool>,
    task: tokio::task::AbortHandle,
}

impl Proxy {
    async fn start(target: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens").to_string();
        let damage = Arc::new(Mutex::new(VecDeque::new()));
        let (hole, holes) = watch::channel(false);
        let damages = damage.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&target).await.expect("the target listens");
                let (damages, holes) = (damages.clone(), holes.clone());
                connections.spawn(async move {
                    let (near_in, near_out) = near.into_split();
                    let (far_in, far_out) = far.into_split();
                    tokio::select! {
                        _ = pass(near_in, far_out, damages.clone(), holes.clone()) => {}
                        _ = pass(far_in, near_out, damages, holes) => {}
                    }
                });
            }
        });
        Proxy { address, damage, hole, task: task.abort_handle() }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    damages: Arc<Mutex<VecDeque<Damage>>>,
    mut holes: watch::Receiver<bool>,
) -> std::io::Result<()> {
    loop {
        let length = from.read_u32().await?;
        let mut frame = vec![0; length as usize];
        from.read_exact(&mut frame).await?;
        let has_messages = frame[0] <= 3;
        let damage = if has_messages { damages.lock().pop_front() } else { None };
        let mut times = 1;
        match damage {
            Some(Damage::Corrupt) => frame[length as usize - 1] ^= 1,
            Some(Damage::Repeat) => times = 2,
            Some(Damage::Drop) => times = 0,
            Some(Damage::Cut) => return Ok(()),
            None => {}
        }
        // Nothing passes through a hole, and nobody is told.
        holes.wait_for(|hole| !*hole).await.map_err(std::io::Error::other)?;
        for _ in 0..times {
            to.write_u32(length).await?;
            to.write_all(&frame).await?;
        }
    }
}

#[tokio::test]
async fn damaged_connections_are_replaced_and_nothing_is_lost_or_comes_twice() {
    let mut router = Side::start(R1, options(R1, "127.0.0.1:1")).await;
    let proxy = Proxy::start(router.address()).await;
    let mut storage = Side::start(S1, options(S1, &proxy.address)).await;
    let mut first = 0;
    for damage in [Damage::Corrupt, Damage::Repeat, Damage::Drop, Damage::Cut] {
        for _ in 0..3 {
            proxy.damage.lock().push_back(damage);
            exchange(&storage, R1, &mut router, S1, first, 50).await;
            proxy.damage.lock().push_back(damage);
            exchange(&router, S1, &mut storage, R1, first, 50).await;
            first += 50;
        }
    }
    assert!(proxy.damage.lock().is_empty(), "all damage was done");
}

#[tokio::test]
async fn a_dead_process_is_unreachable_and_its_next_life_is_not() {
    let (mut router, storage) = pair().await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    drop(storage);
    router.unreachable(S1).await;
    let mut next = options(S1, &router.address());
    next.incarnation = 6;
    let storage = Side::start(S1, next).await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    drop(router);
    storage.unreachable(R1).await;
}

#[tokio::test]
async fn a_half_open_connection_ends_and_both_sides_hear_that_something_may_be_lost() {
    let mut router = Side::start(R1, options(R1, "127.0.0.1:1")).await;
    let proxy = Proxy::start(router.address()).await;
    let mut storage = Side::start(S1, options(S1, &proxy.address)).await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    proxy.hole.send_replace(true);
    tokio::join!(router.unreachable(S1), storage.unreachable(R1));
    proxy.hole.send_replace(false);
    assert!(matches!(router.receive().await, (S1, Wire::Lost)));
    assert!(matches!(storage.receive().await, (R1, Wire::Lost)));
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    exchange(&router, S1, &mut storage, R1, 0, 10).await;
}

/// A storage process may have answered before what routers have brought there.
#[tokio::test]
async fn a_client_that_meets_a_storage_process_for_the_first_time_hears_that_something_may_be_lost() {
    let mut there = options(S1, "127.0.0.1:1");
    there.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let storage = Side::start(S1, there).await;
    storage.unreachable(C7).await;
    let mut here = options(C7, "127.0.0.1:1");
    here.members.insert(S1, storage.address());
    let mut client = Side::start(C7, here).await;
    storage.send(C7, Wire::ReadsMissed).await;
    assert!(matches!(client.receive().await, (S1, Wire::Lost)));
    assert!(matches!(client.receive().await, (S1, Wire::ReadsMissed)));
}

/// What it told an earlier life of a client, or keeps for it, concerns that one alone.
#[tokio::test]
async fn who_is_met_by_another_life_of_a_client_hears_that_something_may_be_lost() {
    let mut there = options(S1, "127.0.0.1:1");
    there.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let mut storage = Side::start(S1, there).await;
    for life in 0..2 {
        let mut here = options(C7, "127.0.0.1:1");
        here.members.insert(S1, storage.address());
        here.incarnation += life;
        let client = Side::start(C7, here).await;
        client.send(S1, Wire::Hello).await;
        if life > 0 {
            assert!(matches!(storage.receive().await, (C7, Wire::Lost)));
        }
        assert!(matches!(storage.receive().await, (C7, Wire::Hello)));
    }
}

/// As when it is found at another address.
#[tokio::test]
async fn who_connects_anew_to_the_same_life_hears_that_something_may_be_lost() {
    let mut router = Side::start(R1, options(R1, "127.0.0.1:1")).await;
    let mut storage = Side::start(S1, options(S1, "127.0.0.1:1")).await;
    let address = router.address();
    let dial = |storage: &Side| {
        let (shared, address) = (storage.transport.shared.clone(), address.clone());
        tokio::spawn(Dialler { shared, local: S1, remote: R1, address }.run())
    };
    let first = dial(&storage);
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    first.abort();
    dial(&storage);
    assert!(matches!(storage.receive().await, (R1, Wire::Lost)));
    assert!(matches!(router.receive().await, (S1, Wire::Lost)));
}

/// Who signs certificates.
struct Authority {
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    directory: tempfile::TempDir,
}

impl Authority {
    fn new(name: &'static str) -> Authority {
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.distinguished_name.push(DnType::CommonName, name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = authority.self_signed(&key).expect("a certificate").pem();
        let directory = tempfile::tempdir().expect("a directory");
        Authority { name, issuer: Issuer::new(authority, key), pem, directory }
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(format!("{}-{file}.pem", self.name));
        std::fs::write(&path, text).expect("there is room");
        path
    }

    /// Writes a certificate for this host and with a URI, if one is given.
    fn certify(&self, uri: Option<&str>) -> TlsFiles {
        let key = KeyPair::generate().expect("a key");
        let hosts = vec!["127.0.0.1".into(), "localhost".into()];
        let mut parameters = CertificateParams::new(hosts).expect("parameters");
        let names = uri.map(|uri| SanType::URI(uri.try_into().expect("a URI")));
        parameters.subject_alt_names.extend(names);
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let file = uri.unwrap_or("unnamed").replace('/', "-");
        TlsFiles {
            authority: self.write("authority", &self.pem),
            certificate: self.write(&format!("{file}-certificate"), &certificate.pem()),
            key: self.write(&format!("{file}-key"), &key.serialize_pem()),
        }
    }
}

/// The options with TLS.
fn secured(local: ProcessId, router: &str, tls: &TlsFiles) -> TransportOptions {
    let mut options = options(local, router);
    options.tls = Some(tls.clone());
    options
}

#[tokio::test]
async fn a_certificate_speaks_for_the_process_that_it_names() {
    let authority = Authority::new("ours");
    let [r1, s1, c7, other] = ["router/1", "storage/1", "frontend/7", "storage/2"]
        .map(|name| authority.certify(Some(&format!("carousel://test/{name}"))));
    let elsewhere = authority.certify(Some("carousel://other/storage/1"));
    let unnamed = authority.certify(None);
    let mut router = Side::start(R1, secured(R1, "127.0.0.1:1", &r1)).await;
    let address = router.address();
    let storage = Side::start(S1, secured(S1, &address, &s1)).await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
    let client = Side::start(C7, secured(C7, &address, &c7)).await;
    client.send(R1, data(C7, 0)).await;
    let nameless = Side::start(ProcessId::client(8), secured(ProcessId::client(8), &address, &unnamed)).await;
    nameless.send(R1, data(C7, 0)).await;

    for (from, shown, part) in [
        (
            ProcessId::storage(3),
            &other,
            "is that of carousel://test/storage/2, not of carousel://test/storage/3",
        ),
        (ProcessId::storage(2), &elsewhere, "is that of carousel://other/storage/1"),
        (ProcessId::storage(2), &unnamed, "has to have the name carousel://test/storage/2"),
        (ProcessId::super_process(1), &s1, "not of carousel://test/router/1"),
        (ProcessId::client(9), &c7, "not of carousel://test/frontend/9"),
    ] {
        let refusal = router.refusal(from, |options| options.tls = Some(shown.clone())).await;
        assert!(refusal.contains(part), "{from}: {refusal}");
    }
    // Nor does anybody take a storage process for a router because it listens at its address.
    let impostor = Side::start(R1, secured(R1, "127.0.0.1:1", &s1)).await;
    let refusal = impostor.refusal(S1, |options| options.tls = Some(s1.clone())).await;
    assert!(
        refusal.contains("is that of carousel://test/storage/1, not of carousel://test/router/1"),
        "{refusal}"
    );
    let line = format!("s1 wants to talk to r1, but not to this process: {refusal}");
    impostor.says(&line, 0).await;
    // Where the description says so, names do not matter.
    let lenient = |mut options: TransportOptions| {
        options.unnamed_certificates = true;
        options
    };
    let mut router = Side::start(R1, lenient(secured(R1, "127.0.0.1:1", &unnamed))).await;
    let storage = Side::start(S1, lenient(secured(S1, &router.address(), &unnamed))).await;
    exchange(&storage, R1, &mut router, S1, 0, 10).await;
}

#[tokio::test]
async fn with_tls_only_those_with_a_certificate_of_the_authority_are_heard() {
    let authority = Authority::new("ours");
    let router_files = authority.certify(Some("carousel://test/router/1"));
    let ours = authority.certify(Some("carousel://test/storage/1"));
    let mut router = Side::start(R1, secured(R1, "127.0.0.1:1", &router_files)).await;
    let address = router.address();
    let mut storage = Side::start(S1, secured(S1, &address, &ours)).await;
    exchange(&storage, R1, &mut router, S1, 0, 500).await;
    exchange(&router, S1, &mut storage, R1, 0, 500).await;

    let not_trusted = "TLS: its certificate is of no authority that this process trusts";
    for (left_out, (name, alert)) in (0..).zip([("theirs", "UnknownCA"), ("ours", "DecryptError")]) {
        let not_accepted = format!("TLS: it does not accept the certificate of this process (alert {alert})");
        let another = Authority::new(name);
        let theirs = another.certify(Some("carousel://test/storage/1"));
        let stranger = router.refusal(S1, |options| options.tls = Some(theirs.clone())).await;
        assert_eq!(stranger, not_trusted);
        router.says(&not_accepted, 0).await;
        // It trusts the router, but cannot be trusted itself.
        let forged = TlsFiles { authority: ours.authority.clone(), ..theirs };
        let forger = router.refusal(S1, |options| options.tls = Some(forged)).await;
        assert_eq!(forger, not_accepted);
        router.says(not_trusted, left_out).await;
    }
    let open = router.refusal(S1, |options| options.tls = None).await;
    assert_eq!(open, "it speaks TLS, this process does not");
    router.says("it does not speak TLS, this process does", 0).await;
    let error = Transport::describe(&address, None).await.expect_err("it is no secured connection");
    assert!(error.to_string().contains("TLS"), "{error}");
    exchange(&storage, R1, &mut router, S1, 500, 10).await;

    let plain = Side::start(R1, options(R1, "127.0.0.1:1")).await;
    let secure = plain.refusal(S1, |options| options.tls = Some(ours.clone())).await;
    assert_eq!(secure, "it does not speak TLS, this process does");
    plain.says("it does not greet: it speaks TLS, this process does not", 0).await;

    let missing = TlsFiles { key: "nothing.pem".into(), ..ours };
    let error = Transport::start(secured(R1, "127.0.0.1:1", &missing), &Network::new()).await;
    assert!(error.err().is_some_and(|error| error.to_string().contains("nothing.pem")));
}

fn routers(version: u64, entries: &[(u32, &str)]) -> Arc<Routers> {
    let entry = |(number, address): &(u32, &str)| RouterEntry {
        number: *number,
        address: (*address).to_owned(),
        votes: true,
    };
    Arc::new(Routers::first(3).changed(version, Some(1), entries.iter().map(entry).collect()))
}

/// The first three routers, of the cluster of a number.
fn numbered(cluster: u64, version: u64) -> Arc<Routers> {
    let first = Routers::first(3);
    Arc::new(first.changed(version, Some(cluster), first.entries().to_vec()))
}

#[tokio::test]
async fn processes_of_an_earlier_cluster_of_the_same_name_are_refused_and_not_believed() {
    let learns = |side: &Side, list: &Arc<Routers>| side.transport.shared.network.learn_routers(list);
    let knows = |side: &Side| side.transport.shared.network.known_routers().borrow().edition();
    let described = Arc::new(Routers::first(3));
    let mut old = options(S1, "127.0.0.1:1");
    old.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let old = Side::start(S1, old).await;
    learns(&old, &numbered(7, 57));
    let with_old = |id: ProcessId, router: &str| {
        let mut options = options(id, router);
        options.members.insert(S1, old.address());
        options
    };
    // A router that has no log yet does not take its word, and listens to it no sooner than it knows its own number.
    let mut router = Side::start(R1, with_old(R1, "127.0.0.1:1")).await;
    learns(&router, &described);
    router.transport.ask_for_routers().await.expect("nobody says that it must not go on");
    assert_eq!(knows(&router), described.edition());
    assert!(matches!(router.dial(&old, router.address(), S1).await, Err(DialError::NotReady)));
    learns(&router, &numbered(8, 3));
    let line = "the processes belong to different clusters of the same name: the one that connects, or its data directory, to \
                number 7, the other one to number 8";
    match router.dial(&old, router.address(), S1).await {
        Err(DialError::Refused(reason)) => assert!(reason.contains(line), "{reason}"),
        other => panic!("{other:?}"),
    }
    router.says(&format!("s1 wants to talk to r1: {line}"), 0).await;
    // Somebody new may look for routers where it says, but belongs to the cluster of the router that it finds.
    let lost = Side::start(C7, with_old(C7, "127.0.0.1:1")).await;
    learns(&lost, &described);
    lost.transport.ask_for_routers().await.expect("nobody says that it must not go on");
    assert_eq!(knows(&lost), Edition { cluster: None, version: 57 });
    let mut others = options(C7, &router.address());
    others.members.retain(|process, _| *process == R1);
    let mut client = Side::start(C7, others).await;
    learns(&client, &Arc::new(numbered(7, 57).as_ref().clone().into_hearsay()));
    let to_old =
        Dialler { shared: client.transport.shared.clone(), local: C7, remote: S1, address: old.address() };
    let early = to_old.connect(1, Lane::Control, true, 0).await.map(drop);
    assert!(matches!(early, Err(DialError::NotReady)), "{early:?}");
    exchange(&client, R1, &mut router, C7, 0, 10).await;
    router.send(C7, Wire::Routers(numbered(8, 3))).await;
    match client.receive().await {
        (R1, Wire::Routers(list)) => learns(&client, &list),
        other => panic!("{other:?}"),
    }
    assert_eq!(knows(&client), Edition { cluster: Some(8), version: 3 });
    let refused =
        to_old.connect(1, Lane::Control, true, 0).await.map(drop).expect_err("it is of another cluster");
    assert!(refused.to_string().contains("to number 8, the other one to number 7"), "{refused}");
}

#[tokio::test]
async fn added_routers_are_dialled_and_removed_ones_are_refused() {
    let (r4, r5) = (ProcessId::router(4), ProcessId::router(5));
    let mut added = options(r4, "127.0.0.1:1");
    added.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let mut added = Side::start(r4, added).await;
    let address = added.address();
    let storage = Side::start(S1, options(S1, "127.0.0.1:1")).await;
    let now = routers(7, &[(3, ""), (4, &address)]);
    added.transport.shared.network.learn_routers(&now);
    storage.transport.shared.network.learn_routers(&now);
    exchange(&storage, r4, &mut added, S1, 0, 10).await;

    let dial = async |from: ProcessId, knows: &Arc<Routers>| {
        let mut options = options(from, "");
        options.members.clear();
        let side = Side::start(from, options).await;
        side.transport.shared.network.learn_routers(knows);
        let shared = side.transport.shared.clone();
        let dialler = Dialler { shared, local: from, remote: r4, address: address.clone() };
        dialler.connect(1, Lane::Control, true, 0).await.map(drop).expect_err("it is refused").to_string()
    };
    let removed = dial(ProcessId::router(2), &routers(3, &[(2, "")])).await;
    assert!(removed.contains("router r2 has been removed from the cluster"), "{removed}");
    let removed = dial(ProcessId::super_process(2), &routers(3, &[(2, "")])).await;
    assert!(removed.contains("router r2 has been removed from the cluster"), "{removed}");
    let unknown = dial(r5, &routers(7, &[(4, &address)])).await;
    assert!(unknown.contains("r5 is not a member"), "{unknown}");
    // It has heard of more than this one.
    let early = dial(r5, &routers(9, &[(4, &address), (5, "127.0.0.1:1")])).await;
    assert!(early.contains("not ready"), "{early}");
}

#[tokio::test]
async fn who_knows_none_of_the_routers_any_more_asks_somebody_who_does() {
    let mut informed = options(S1, "127.0.0.1:1");
    informed.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let informed = Side::start(S1, informed).await;
    informed.transport.shared.network.learn_routers(&routers(7, &[(4, "h:4")]));
    let mut uninformed = options(C7, "127.0.0.1:1");
    uninformed.members.insert(S1, informed.address());
    let uninformed = Side::start(C7, uninformed).await;
    let network = &uninformed.transport.shared.network;
    network.learn_routers(&Arc::new(Routers::first(3)));
    let mut known = network.known_routers();
    let known = known.wait_for(|routers| routers.version() == 7).await.expect("it hears of it");
    assert_eq!(known.voters().collect::<Vec<_>>(), [ProcessId::router(4)]);
    let described = Transport::describe(&informed.address(), None).await.expect("it tells");
    assert!(described.contains("[[current.entries]]\nnumber = 4\naddress = \"h:4\""), "{described}");
}
