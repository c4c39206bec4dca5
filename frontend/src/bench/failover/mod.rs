//! Fail-over: how long writes stand still when the lead router is killed, and what clients notice when a storage process
//! is (paper, sections 7.7 and 7.8).
//!
//! Writes arrive at a fixed rate, whether those before them are acknowledged or not. Processes are killed as `kill -9`
//! does it, and nobody is told.

mod watch;

use std::time::Duration;

use carousel_cluster::{
    embedded::Durability,
    message::{ProcessId, ProcessKind, ReadIsolation},
};
use clap::Args;

use self::watch::{Load, Seen};
use super::{
    order::table::Table,
    processes::{Processes, Shape},
    report::{Latencies, OutputArgs, Report, milliseconds},
    targets::Targets,
};
use crate::cli::{Failure, progress::thousands};

/// Routers must be this close to the leader before one of them is killed.
const CLOSE: f64 = 1_000.0;
/// How long one waits before one asks again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a cluster may take to be whole again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `carousel bench failover`.
#[derive(Args, Clone, Debug)]
pub struct FailoverArgs {
    /// How often the lead router is killed
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,

    /// How often a storage process is killed, each time in a new cluster
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    storage_kills: u32,

    /// Writes that arrive in a second
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    writes: u32,

    /// Clients that read whole tables, where a storage process is killed, for each isolation level
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    readers: u32,

    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,

    /// Router processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=9))]
    routers: u32,

    /// Storage processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    storage: u32,

    /// How many storage processes hold each row
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    replication_factor: u32,

    /// Silent storage processes are suspected after so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(500..=3_600_000))]
    suspect_after_ms: u64,

    #[command(flatten)]
    output: OutputArgs,
}

impl FailoverArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        if self.replication_factor > self.storage {
            return Err(Failure::setup(
                "--replication-factor is greater than the number of storage processes",
            ));
        }
        self.output.create()?;
        let mut targets = Targets::new("Fail-over: what is to be reached");
        let mut report = Report::new(
            "Fail-over: processes are killed under load",
            &["killed", "times", "what", "p50", "p99", "most"],
        );
        report.fact(
            "Carousel",
            format!(
                "{} routers with their log on disk, {} storage processes, replication factor {}, each a process",
                self.routers, self.storage, self.replication_factor
            ),
        );
        report.fact("rows", thousands(self.keys));
        report.fact("writes that arrive in a second", thousands(self.writes.into()));
        report.fact("readers of the whole table", format!("{} for each isolation level", self.readers));
        report.fact("suspected after", format!("{} ms", self.suspect_after_ms));
        self.kill_routers(&mut report, &mut targets).await?;
        if self.storage_kills > 0 {
            self.kill_storage(&mut report, &mut targets).await?;
        }
        report.publish(&self.output.report("failover"))?;
        targets.publish(&self.output.report("failover-targets"))
    }

    fn shape(&self, suspect_after: Option<Duration>) -> Shape {
        Shape {
            routers: self.routers,
            storage: self.storage,
            replication_factor: self.replication_factor,
            durability: Durability::Disk,
            suspect_after,
            memory_reserve_mib: 0,
        }
    }

    async fn kill_routers(&self, report: &mut Report, targets: &mut Targets) -> Result<(), Failure> {
        let mut cluster = Processes::start(self.shape(None)).await?;
        let table = Table::create(cluster.client()?, self.keys).await?;
        let load = Load::start(&table, self.keys, self.writes);
        let mut outages = Latencies::default();
        for kill in 1..=self.kills {
            let leader = whole(&cluster).await?;
            let killed = load.mark();
            cluster.kill(leader);
            let outage = tokio::time::timeout(PATIENCE, load.first_write_after(killed))
                .await
                .map_err(|_| Failure::job(format!("no write was acknowledged after {leader} was killed")))?;
            eprintln!("{leader} killed, {kill} of {}: {}", self.kills, milliseconds(outage));
            outages.extend([outage]);
            cluster.restart(leader)?;
        }
        let seen = load.stop().await?;
        row(report, "lead router", self.kills, "first write that was submitted after it", &mut outages);
        let p99 = outages.percentile(99).as_secs_f64() * 1e3;
        targets.at_most("lead router killed: ms to the first write, p99", Some(p99), 1_000.0);
        tell_failures(report, "When lead routers were killed", &seen);
        table.check(&seen.written, self.replication_factor).await
    }

    async fn kill_storage(&self, report: &mut Report, targets: &mut Targets) -> Result<(), Failure> {
        let suspect_after = Duration::from_millis(self.suspect_after_ms);
        let (mut first, mut longest_write, mut longest_read) =
            (Latencies::default(), Latencies::default(), Latencies::default());
        let mut all = Seen::default();
        for kill in 1..=self.storage_kills {
            let mut cluster = Processes::start(self.shape(Some(suspect_after))).await?;
            let table = Table::create(cluster.client()?, self.keys).await?;
            let mut load = Load::start(&table, self.keys, self.writes);
            for isolation in [ReadIsolation::Sequential, ReadIsolation::Snapshot, ReadIsolation::Basic] {
                load.read(&table, self.keys, isolation, self.readers);
            }
            load.wait_for_reads().await;
            let victim = ProcessId::storage((kill - 1) % self.storage + 1);
            let killed = load.mark();
            cluster.kill(victim);
            let outage = tokio::time::timeout(PATIENCE, load.first_write_after(killed))
                .await
                .map_err(|_| Failure::job(format!("no write was acknowledged after {victim} was killed")))?;
            // Long enough for the suspicion to be ordered, and for what it changes to be seen.
            tokio::time::sleep(2 * suspect_after + Duration::from_secs(1)).await;
            let mut seen = load.stop().await?;
            eprintln!(
                "{victim} killed, {kill} of {}: {} reads, {} failed; longest write {}, longest read {}",
                self.storage_kills,
                seen.reads,
                seen.failed_reads.len(),
                milliseconds(seen.longest_write),
                milliseconds(seen.longest_read)
            );
            first.extend([outage]);
            longest_write.extend([seen.longest_write]);
            longest_read.extend([seen.longest_read]);
            // The killed process's part is answered by its other holders.
            table.check(&seen.written, 1).await?;
            all.reads += seen.reads;
            all.failed_reads.append(&mut seen.failed_reads);
            all.failed_writes.append(&mut seen.failed_writes);
        }
        let times = self.storage_kills;
        row(report, "storage process", times, "first write that was submitted after it", &mut first);
        row(report, "storage process", times, "longest write around it", &mut longest_write);
        row(report, "storage process", times, "longest read of the whole table around it", &mut longest_read);
        report.remark(format!(
            "When storage processes were killed, {} reads of the whole table were under way or came after; {} of them \
             failed{}.",
            thousands(all.reads),
            all.failed_reads.len(),
            examples(&all.failed_reads)
        ));
        targets.at_most(
            "storage process killed: failed reads whose rows had not begun to come",
            Some(all.failed_reads.len() as f64),
            0.0,
        );
        let most = longest_write.percentile(100).as_secs_f64() * 1e3;
        let within = self.suspect_after_ms as f64;
        targets.at_most("storage process killed: ms that a write took at most", Some(most), within);
        tell_failures(report, "When storage processes were killed", &all);
        Ok(())
    }
}

fn row(report: &mut Report, killed: &str, times: u32, what: &str, durations: &mut Latencies) {
    let times = if what.starts_with("first") { times.to_string() } else { String::new() };
    let figures = [50, 99, 100].map(|percent| milliseconds(durations.percentile(percent)));
    report.row([&[killed.to_owned(), times, what.to_owned()], &figures[..]].concat());
}

fn examples(failures: &[String]) -> String {
    failures.first().map_or(String::new(), |first| format!(", such as: {first}"))
}

fn tell_failures(report: &mut Report, when: &str, seen: &Seen) {
    report.remark(format!(
        "{when}, {} writes failed{}. All rows had the values that were written last.",
        seen.failed_writes.len(),
        examples(&seen.failed_writes)
    ));
}

/// Waits until a router leads and the others are close behind; gives the leader.
async fn whole(cluster: &Processes) -> Result<ProcessId, Failure> {
    let is_whole = async {
        loop {
            let leader = cluster.wait_for_leader().await?;
            let mut behind: f64 = 0.0;
            let last = cluster.metric_of(leader, "carousel_mseq_ts", &[]).await?;
            for router in cluster.ids(ProcessKind::Router).filter(|router| *router != leader) {
                behind = behind.max(last - cluster.metric_of(router, "carousel_mseq_ts", &[]).await?);
            }
            if behind < CLOSE {
                return Ok(leader);
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_whole)
        .await
        .map_err(|_| Failure::job("the routers do not catch up with their leader"))?
}
