//! What routing a message costs on rings of 16 to 8,192 storage processes, beside a router that looks at the whole
//! ring: `cargo run --release -p carousel-cluster --example routing_cost`.
//!
//! Each line is one kind of message: how many processes it goes to, and the median time to compute its destination set.
#![allow(clippy::print_stdout, reason = "it prints its figures")]

use std::{collections::BTreeMap, hint::black_box, sync::Arc, time::Instant};

use carousel_cluster::{
    config::Config,
    message::{Body, Data, Message, MessageId, ProcessId},
};
use carousel_engine::{
    TableId,
    operation::{Operation, OperationKind, Read, ReadOutput},
    position::KeyRange,
};

const REPLICATION: u32 = 3;
const ROUNDS: usize = 41;

fn message(kind: OperationKind, ranges: Vec<KeyRange>, replica_offset: u32) -> Message {
    let operation = Arc::new(Operation { table: TableId(1), context: Default::default(), kind });
    let data = Data { operation, read_ts: None, replica_offset, fallible: false, staged: None };
    let id = MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: 1 };
    Message { id, tables: Vec::new(), ranges, body: Body::Data(data) }
}

fn read() -> OperationKind {
    OperationKind::Read(Read {
        predicate: Vec::new(),
        output: ReadOutput::Rows { projection: Vec::new(), top: None },
    })
}

/// The destinations of a write, found by looking at every process's ranges.
fn look_at_all(held: &[(ProcessId, Vec<KeyRange>)], message: &Message) -> Vec<(ProcessId, Vec<KeyRange>)> {
    let mut destinations: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
    for (process, ranges) in held {
        for range in ranges.iter().filter(|range| message.ranges.iter().any(|r| r.overlaps(range))) {
            destinations.entry(*process).or_default().push(*range);
        }
    }
    destinations.into_iter().collect()
}

/// Median nanoseconds of one call.
fn measure(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(&mut call);
            start.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    println!("{:>6}  {:<24}{:>13}{:>11}{:>14}", "ring", "message", "destinations", "ns", "ns, whole ring");
    for size in [16u32, 128, 1_024, 8_192] {
        let config = Config::evenly(size, REPLICATION).expect("a valid ring");
        let held: Vec<_> = config.storage_processes().map(|p| (p, config.held(p))).collect();
        let ranges: Vec<KeyRange> = config.primary_ranges().collect();
        // Some partitions somewhere on the ring, another place for each message.
        let partitions = |count: usize, i: usize| {
            let first = (i * 7_919 % ranges.len()).min(ranges.len() - count);
            vec![KeyRange::new(ranges[first].first, ranges[first + count - 1].last)]
        };
        let kinds: [(&str, usize, bool); 6] = [
            ("point write", 1, true),
            ("point read", 1, false),
            ("write of 8 partitions", 8, true),
            ("read of 8 partitions", 8, false),
            ("write of everything", ranges.len(), true),
            ("read of everything", ranges.len(), false),
        ];
        for (name, count, is_write) in kinds {
            let kind = || if is_write { OperationKind::Truncate } else { read() };
            let messages: Vec<Message> =
                (0..64).map(|i| message(kind(), partitions(count, i), i as u32)).collect();
            let destinations = config.destset(&messages[0]);
            if is_write {
                assert_eq!(destinations, look_at_all(&held, &messages[0]), "both find the same");
            }
            let calls = (200_000 / (count * REPLICATION as usize)).clamp(64, 20_000);
            let nanoseconds = measure(calls, |i| {
                black_box(config.destset(black_box(&messages[i % messages.len()])));
            });
            let all = is_write.then(|| {
                measure((2_000_000 / size as usize / 64).clamp(4, 1_000), |i| {
                    black_box(look_at_all(&held, black_box(&messages[i % messages.len()])));
                })
            });
            let all = all.map_or(String::new(), |all| format!("{all:.0}"));
            println!("{size:>6}  {name:<24}{:>13}{nanoseconds:>11.0}{all:>14}", destinations.len());
        }
    }
}
