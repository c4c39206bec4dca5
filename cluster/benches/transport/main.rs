//! The transport beside gRPC in its place: tonic's bidirectional streams between the same mailboxes, over loopback, in turn.
//!
//! ```text
//!              transport:  Wire -> frames    ═ TCP ═▶  frames    -> Wire
//!   mailbox ->                                                           -> mailbox
//!              gRPC:       Wire -> a stream  ═ TCP ═▶  a stream  -> Wire
//! ```
//!
//! Both carry the same bytes, messages in postcard's form, without delay and with windows of 16 MiB. gRPC does less: it has no
//! checksums, and nothing is kept for another connection when one breaks.
//!
//! `cargo bench -p carousel-cluster --bench transport`

#![allow(clippy::print_stdout, reason = "figures are for whoever runs it")]

mod grpc;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Instant};

use carousel_cluster::{
    message::{Body, Data, Message, MessageId, ProcessId},
    network::{Endpoint, Network, Sender},
    storage::migration::{Chunk, PartId},
    transport::{Transport, TransportOptions},
    wire::{Delivery, Wire},
};
use carousel_engine::{
    TableId, Ts, Type, Value,
    expr::{CompareOp, EvalContext, Expr},
    operation::{Operation, OperationKind, Update},
    position::KeyRange,
};
use tokio::runtime::Runtime;

/// As in the `carousel` binary: what is allocated for a large message decides much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Messages that become one at most where they are batched, as in the transport.
const BATCH: usize = 1024;

/// A process, alone on its network.
struct Process {
    network: Network,
    endpoint: Endpoint,
    sender: Sender,
    other: ProcessId,
    /// What carries its messages elsewhere.
    transport: Option<Transport>,
}

impl Process {
    fn new(id: ProcessId, other: ProcessId) -> Process {
        let network = Network::new();
        let endpoint = network.join(id);
        Process { network, sender: endpoint.sender(), endpoint, other, transport: None }
    }

    async fn start_transport(&mut self, members: BTreeMap<ProcessId, String>) {
        let options = TransportOptions {
            cluster: "bench".to_owned(),
            shape: String::new(),
            description: String::new(),
            listen: members.is_empty().then(loopback),
            members,
            locals: [self.endpoint.id()].into(),
            incarnation: 1,
            directory: 1,
            heard: None,
            tls: None,
            unnamed_certificates: false,
        };
        self.transport = Some(Transport::start(options, &self.network).await.expect("a free port"));
    }

    async fn send(&self, message: Wire) {
        self.sender.send(self.other, message).await.expect("it is connected");
    }

    async fn receive(&mut self) -> Wire {
        self.endpoint.recv().await.expect("it is not replaced").1
    }
}

/// Two processes that reach one another.
struct Pair {
    near: Process,
    far: Process,
}

impl Pair {
    /// A client and a storage process: between two storage processes, the transport carries rows on threads of a priority
    /// lower than that of gRPC's.
    fn new() -> Pair {
        let (near, far) = (ProcessId::client(1), ProcessId::storage(1));
        Pair { near: Process::new(near, far), far: Process::new(far, near) }
    }

    async fn by_transport() -> Pair {
        let Pair { mut near, mut far } = Pair::new();
        far.start_transport(BTreeMap::new()).await;
        let address = far.transport.as_ref().and_then(Transport::address).expect("it listens");
        near.start_transport([(near.other, address.to_string())].into()).await;
        for process in [&near, &far] {
            while process.sender.try_send(process.other, Wire::Hello).is_err() {
                tokio::task::yield_now().await;
            }
        }
        near.receive().await;
        far.receive().await;
        Pair { near, far }
    }

    async fn by_grpc(batch: usize) -> Pair {
        let pair = Pair::new();
        grpc::connect(&pair, batch).await;
        pair
    }

    /// How many seconds it takes until so many messages have arrived.
    async fn one_way(self, message: Wire, count: u32) -> (Pair, f64) {
        let Pair { near, mut far } = self;
        let begin = Instant::now();
        let sending = tokio::spawn(async move {
            for _ in 0..count {
                near.send(message.clone()).await;
            }
            near
        });
        for _ in 0..count {
            far.receive().await;
        }
        let took = begin.elapsed();
        (Pair { near: sending.await.expect("no panic"), far }, took.as_secs_f64())
    }

    /// How many seconds it takes until a message has gone there and back so many times.
    async fn both_ways(mut self, message: Wire, count: u32) -> (Pair, f64) {
        let begin = Instant::now();
        for _ in 0..count {
            self.near.send(message.clone()).await;
            let message = self.far.receive().await;
            self.far.send(message).await;
            self.near.receive().await;
        }
        (self, begin.elapsed().as_secs_f64())
    }
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A router's deliveries of updates of one row each. The more there is to deliver, the more of them are in a message.
fn deliver(many: usize) -> Wire {
    let key = Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::column(0, Type::Int8)),
        right: Box::new(Expr::literal(Value::Int8(4_000_000), Type::Int8)),
    };
    let value = Expr::literal(Value::text("a value of no great length"), Type::Text);
    let update = Update { predicate: vec![key], assignments: vec![(2, value)], returning: None };
    let operation = Operation {
        table: TableId(1_000),
        context: EvalContext::default(),
        kind: OperationKind::Update(update),
    };
    let ranges = [KeyRange::point(0x1234_5678_9abc_def0)];
    let message = Message {
        id: MessageId { submitter: ProcessId::client(1), incarnation: 2, sequence: 3_000_000 },
        tables: [(TableId(1_000), Ts(1_000))].into(),
        ranges: ranges.into(),
        body: Body::Data(Data::new(operation)),
    };
    let ts = Ts(5_000_000);
    let delivery = Delivery { ts, message: Arc::new(message), ranges: ranges.into(), config_version: 1_000 };
    Wire::Deliver { incarnation: 2, after: Ts(4_999_999), deliveries: vec![delivery; many], frontier: ts }
}

/// A block of the rows that a keyspace message moves.
fn block(bytes: u32) -> Wire {
    let part = PartId { keyspace: Ts(5_000_000), range: KeyRange::FULL };
    let rows = (0..bytes).map(|byte| (byte % 251) as u8).collect::<Vec<u8>>().into();
    Wire::Rows {
        attempt: 1,
        part,
        chunk: Chunk { number: 7, table: Some(TableId(1_000)), rows, checksum: 0, last: None },
    }
}

/// What is measured.
#[derive(Clone, Copy)]
enum Way {
    /// Until a message has arrived, of many under way.
    One,
    /// Until a message has gone there and back, one after the other.
    Both,
}

/// How much is measured.
struct Bench {
    runtime: Runtime,
    rounds: usize,
    /// Of the messages of a round one in so many is sent.
    divisor: u32,
}

impl Bench {
    fn by_transport(&self) -> (&'static str, Pair) {
        ("transport", self.runtime.block_on(Pair::by_transport()))
    }

    fn by_grpc(&self, system: &'static str, batch: usize) -> (&'static str, Pair) {
        (system, self.runtime.block_on(Pair::by_grpc(batch)))
    }

    /// Measures systems in turn, the transport first. `figure` prints the seconds that a message takes.
    fn compare(
        &self,
        (way, message, count): (Way, Wire, u32),
        mut systems: Vec<(&str, Pair)>,
        figure: impl Fn(f64) -> String,
    ) {
        let count = (count / self.divisor).max(1);
        let mut times = Vec::new();
        for _ in 0..=self.rounds {
            let mut round = Vec::new();
            for (system, pair) in std::mem::take(&mut systems) {
                let message = message.clone();
                let running = self.runtime.spawn(async move {
                    match way {
                        Way::One => pair.one_way(message, count).await,
                        Way::Both => pair.both_ways(message, count).await,
                    }
                });
                let (pair, seconds) = self.runtime.block_on(running).expect("no panic");
                systems.push((system, pair));
                round.push(seconds / f64::from(count));
            }
            times.push(round);
        }
        // Nothing was warm in the first.
        let times = &times[1..];
        for (number, (system, _)) in systems.iter().enumerate() {
            let time = median(times.iter().map(|round| round[number]));
            let ratio = median(times.iter().map(|round| round[number] / round[0]));
            println!("  {system:<14} {:>18}   {ratio:.2}", figure(time));
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo test --benches` only wants to see it run.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (rounds, divisor) = if is_measured { (11, 1) } else { (1, 1_000) };
    let bench = Bench { runtime: Runtime::new().expect("threads"), rounds, divisor };
    println!("medians of {rounds} rounds, and the time that each takes as a multiple of the transport's");

    let small = deliver(1);
    let bytes_of = |wire: &Wire| grpc::append(wire, Vec::new()).len();
    for (many, count) in [(1, 200_000), (64, 6_000)] {
        let message = deliver(many);
        println!("messages of {} bytes, deliveries in each: {many}, one way", bytes_of(&message));
        let systems =
            vec![bench.by_transport(), bench.by_grpc("gRPC", 1), bench.by_grpc("gRPC, batched", BATCH)];
        let per_second = |time: f64| format!("{:.0} messages/s", 1.0 / time);
        bench.compare((Way::One, message, count), systems, per_second);
    }

    for mib in [1, 16] {
        println!("blocks of rows of {mib} MiB, one way");
        let systems = vec![bench.by_transport(), bench.by_grpc("gRPC", 1)];
        let megabytes = f64::from(mib << 20) / 1e6;
        let per_second = |time: f64| format!("{:.0} MB/s", megabytes / time);
        bench.compare((Way::One, block(mib << 20), 256 / mib), systems, per_second);
    }

    println!("a message of {} bytes, there and back", bytes_of(&small));
    let systems = vec![bench.by_transport(), bench.by_grpc("gRPC", BATCH)];
    bench.compare((Way::Both, small, 5_000), systems, |time| format!("{:.1} µs", time * 1e6));
}
