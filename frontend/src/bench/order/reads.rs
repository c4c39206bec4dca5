//! What a point read costs the routers and the storage processes, by isolation level, and which messages it makes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use carousel_cluster::message::{ProcessKind, ReadIsolation};
use tokio::task::JoinSet;

use super::{load::Written, table::Table};
use crate::{
    bench::{
        processes::Processes,
        report::{Latencies, Report, milliseconds},
    },
    cli::{Failure, progress::thousands},
};

/// The levels, in the order of the report.
const LEVELS: [(ReadIsolation, &str); 3] = [
    (ReadIsolation::Sequential, "sequential"),
    (ReadIsolation::Snapshot, "snapshot"),
    (ReadIsolation::Basic, "basic"),
];

/// What the processes have counted.
struct Counts {
    routers: Duration,
    storage: Duration,
    /// Messages in the m-seq.
    ordered: f64,
    /// Batches of the client's messages that routers have received on the data lane.
    from_client: f64,
}

impl Counts {
    async fn take(cluster: &Processes) -> Result<Counts, Failure> {
        let labels = [("peer", "c1"), ("lane", "data")];
        let received = "carousel_transport_received_messages_total";
        // Each router counts the whole m-seq.
        let ordered = cluster.metric(ProcessKind::Router, "carousel_mseq_ts", &[]).await?;
        Ok(Counts {
            routers: cluster.processor_time(ProcessKind::Router),
            storage: cluster.processor_time(ProcessKind::Storage),
            ordered: ordered / cluster.ids(ProcessKind::Router).count().max(1) as f64,
            from_client: cluster.metric(ProcessKind::Router, received, &labels).await?,
        })
    }
}

/// A report without rows.
pub fn report(clients: usize, duration: Duration, rounds: u32) -> Report {
    let mut report = Report::new(
        "Point reads by isolation level: what the routers and storage processes do for each",
        &[
            "storage processes",
            "isolation",
            "reads/s",
            "p50",
            "p99",
            "routers, CPU us a read",
            "storage, CPU us a read",
            "messages ordered a read",
            "client's messages to routers a read",
        ],
    );
    report.fact("clients", thousands(clients as u64));
    let rounds_of = format!("{rounds} of {} s for each level, in turn; medians", duration.as_secs());
    report.fact("rounds", rounds_of);
    report.remark(
        "What is ordered beside sequential reads are super processes' checkpoints, and one empty message after \
         16,384 snapshot or basic reads at a storage process at one place in the order. Every answer was compared with what had \
         been written. All processes share this machine: where its cores are busy, more storage processes give no more \
         reads a second, and that a read costs as much as before shows that they would on machines of their own.",
    );
    report
}

/// Measures each level in turn, and puts the medians into the report.
pub async fn measure(
    report: &mut Report,
    cluster: &Processes,
    table: &Table,
    written: &Written,
    clients: usize,
    duration: Duration,
    rounds: u32,
) -> Result<(), Failure> {
    let storage = cluster.ids(ProcessKind::Storage).count();
    let written = Arc::new(written.clone());
    let mut figures: Vec<Vec<[f64; 5]>> = vec![Vec::new(); LEVELS.len()];
    let mut latencies = vec![Latencies::default(); LEVELS.len()];
    for round in 1..=rounds {
        for (level, (isolation, name)) in LEVELS.into_iter().enumerate() {
            let before = Counts::take(cluster).await?;
            let begin = Instant::now();
            let durations = read(table, isolation, &written, clients, duration).await?;
            let seconds = begin.elapsed().as_secs_f64();
            let after = Counts::take(cluster).await?;
            let reads = durations.len().max(1) as f64;
            let micros =
                |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() * 1e6 / reads;
            eprintln!("{storage} storage processes, {name} reads, round {round}: {:.0}/s", reads / seconds);
            figures[level].push([
                reads / seconds,
                micros(after.routers, before.routers),
                micros(after.storage, before.storage),
                (after.ordered - before.ordered) / reads,
                (after.from_client - before.from_client) / reads,
            ]);
            latencies[level].extend(durations);
        }
    }
    for (level, (_, name)) in LEVELS.into_iter().enumerate() {
        let middle = |figure: usize| {
            let values: Vec<f64> = figures[level].iter().map(|round| round[figure]).collect();
            crate::bench::report::median(&values)
        };
        report.row(vec![
            storage.to_string(),
            name.to_owned(),
            thousands(middle(0) as u64),
            milliseconds(latencies[level].percentile(50)),
            milliseconds(latencies[level].percentile(99)),
            format!("{:.1}", middle(1)),
            format!("{:.1}", middle(2)),
            format!("{:.4}", middle(3)),
            format!("{:.4}", middle(4)),
        ]);
    }
    Ok(())
}

/// Closed loop: every client reads its keys one after the other.
async fn read(
    table: &Table,
    isolation: ReadIsolation,
    written: &Arc<Written>,
    clients: usize,
    duration: Duration,
) -> Result<Vec<Duration>, Failure> {
    let end = Instant::now() + duration;
    let mut running = JoinSet::new();
    for client in 0..clients {
        let (table, written) = (table.clone(), written.clone());
        running.spawn(async move {
            let mut durations = Vec::new();
            let mut key = client % written.len();
            loop {
                let submitted = Instant::now();
                if submitted >= end {
                    return Ok::<_, Failure>(durations);
                }
                let value = table.read(key as u64, isolation).await?;
                durations.push(submitted.elapsed());
                if value != written[key] {
                    let expected = written[key];
                    return Err(Failure::job(format!("{value} was read under {key}, not {expected}")));
                }
                key = (key + clients) % written.len();
            }
        });
    }
    let mut durations = Vec::new();
    while let Some(ended) = running.join_next().await {
        durations.extend(ended.map_err(Failure::job)??);
    }
    Ok(durations)
}
