//! What routing a message costs on rings of 16 to 8,192 storage processes, beside a router that looks at the whole
//! ring: the cost must grow with the destination set, not with the cluster (paper, section 6.3).

use std::{collections::BTreeMap, hint::black_box, sync::Arc, time::Instant};

use carousel_cluster::{
    config::Config,
    message::{Body, Data, Message, MessageId, ProcessId},
};
use carousel_engine::{
    Few, TableId,
    operation::{Operation, OperationKind, Read, ReadOutput},
    position::KeyRange,
};

use crate::{
    bench::report::{Report, median, ratio},
    cli::{Failure, progress::thousands},
};

const RINGS: [u32; 4] = [16, 128, 1_024, 8_192];
const REPLICATION: u32 = 3;
const ROUNDS: usize = 21;

fn message(is_write: bool, ranges: Few<KeyRange>, replica_offset: u32) -> Message {
    let kind = match is_write {
        true => OperationKind::Truncate,
        false => OperationKind::Read(Read {
            predicate: Vec::new(),
            output: ReadOutput::Rows { projection: Vec::new(), top: None },
        }),
    };
    let operation = Arc::new(Operation { table: TableId(1), context: Default::default(), kind });
    let data = Data { replica_offset, ..Data::new(operation) };
    let id = MessageId { submitter: ProcessId::client(1), incarnation: 1, sequence: 1 };
    Message { id, tables: Default::default(), ranges, body: Body::Data(data) }
}

/// The destinations of a write, found by looking at every process's ranges.
fn look_at_all(held: &[(ProcessId, Vec<KeyRange>)], message: &Message) -> Vec<(ProcessId, Few<KeyRange>)> {
    let mut destinations: BTreeMap<ProcessId, Few<KeyRange>> = BTreeMap::new();
    for (process, ranges) in held {
        for range in ranges.iter().filter(|range| message.ranges.iter().any(|r| r.overlaps(range))) {
            destinations.entry(*process).or_default().push(*range);
        }
    }
    destinations.into_iter().collect()
}

/// Median nanoseconds of one call.
fn nanoseconds(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(&mut call);
            start.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    median(&rounds)
}

/// Measures every kind of message on every ring; the answers are compared with those of looking at the whole ring.
pub fn measure() -> Result<Report, Failure> {
    let mut report = Report::new(
        "Routing a message on simulated rings",
        &[
            "message",
            "storage processes",
            "destinations",
            "ns",
            "ns, whole ring",
            "relative to the whole ring",
        ],
    );
    report.fact("replication factor", REPLICATION);
    report.fact("rounds", format!("{ROUNDS}; medians"));
    for (name, partitions, is_write) in [
        ("point write", Some(1), true),
        ("point read", Some(1), false),
        ("write of 8 partitions", Some(8), true),
        ("read of 8 partitions", Some(8), false),
        ("write of everything", None, true),
        ("read of everything", None, false),
    ] {
        for size in RINGS {
            let config = Config::evenly(size, REPLICATION).map_err(Failure::job)?;
            let held: Vec<_> = config.storage_processes().map(|p| (p, config.held(p))).collect();
            let ranges: Vec<KeyRange> = config.primary_ranges().collect();
            let count = partitions.unwrap_or(ranges.len());
            // Somewhere on the ring, another place for each message.
            let somewhere = |index: usize| {
                let first = (index * 7_919 % ranges.len()).min(ranges.len() - count);
                vec![KeyRange::new(ranges[first].first, ranges[first + count - 1].last)]
            };
            let messages: Vec<Message> =
                (0..64).map(|index| message(is_write, somewhere(index).into(), index as u32)).collect();
            let destinations = config.destset(&messages[0]);
            if is_write && destinations != look_at_all(&held, &messages[0]) {
                return Err(Failure::job(format!("a {name} goes to {destinations:?}, which is wrong")));
            }
            let calls = (200_000 / (count * REPLICATION as usize)).clamp(64, 20_000);
            let routed = nanoseconds(calls, |index| {
                black_box(config.destset(black_box(&messages[index % messages.len()])));
            });
            let all = is_write.then(|| {
                nanoseconds((2_000_000 / size as usize / 64).clamp(4, 1_000), |index| {
                    black_box(look_at_all(&held, black_box(&messages[index % messages.len()])));
                })
            });
            report.row(vec![
                name.to_owned(),
                thousands(size.into()),
                thousands(destinations.len() as u64),
                format!("{routed:.0}"),
                all.map_or("-".to_owned(), |all| format!("{all:.0}")),
                all.map_or("-".to_owned(), |all| ratio(routed, all)),
            ]);
        }
    }
    Ok(report)
}
