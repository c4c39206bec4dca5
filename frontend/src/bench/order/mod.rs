//! Ordering: small writes through real router and storage processes, beside a cluster of three etcds on the same machine.
//!
//! Each message is a point write that the engine executes at every replica; it counts when its acknowledgement has come
//! back to the client. The client process is this one, and everything shares the machine: what the load takes of it
//! counts against the system measured.

mod etcd;
mod load;
mod reads;
mod routing;
pub mod table;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use carousel_cluster::{embedded::Durability as ClusterDurability, message::ProcessKind};
use clap::Args;
use etcd::Etcd;
use load::Outcome;
pub use load::{Store, Written};
use table::Table;

use super::{
    processes::{Processes, Shape, processor_time},
    report::{Latencies, OutputArgs, Report, median, milliseconds, ratio},
    targets::Targets,
};
use crate::cli::{Failure, progress::thousands};

/// Writes a second that Carousel is to reach.
const WANTED: f64 = 100_000.0;
/// Before anything is measured, a system is loaded for this long.
const WARM_UP: Duration = Duration::from_secs(1);

/// Options of `carousel bench order`.
#[derive(Args, Clone, Debug)]
pub struct OrderArgs {
    /// Clients that write at the same time, each waiting for its last write
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,

    /// Keys that are written to in turn
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,

    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Rounds, in which the systems take turns; what is reported is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Writes that arrive at Carousel in a second, whether those before them are acknowledged or not, when full load has
    /// been measured; at etcd it is always half of what full load reached [default: that half]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    arrivals: Option<u32>,

    /// Router processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    routers: u32,

    /// Storage processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    storage: u32,

    /// How many storage processes hold each row
    #[arg(long, value_name = "N", default_value_t = 2)]
    replication_factor: u32,

    /// The etcd program [default: that in the path, if there is one]
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,

    /// Do not measure etcd
    #[arg(long, conflicts_with = "etcd")]
    no_etcd: bool,

    /// Measure writes only: neither reads by isolation level nor routing
    #[arg(long)]
    writes_only: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// A system that is measured.
#[derive(Clone, Debug)]
enum System {
    Carousel(ClusterDurability),
    Etcd(PathBuf),
}

/// What one round found.
#[derive(Clone, Debug)]
struct Round {
    per_second: f64,
    arriving_per_second: f64,
    /// Microseconds of a processor for each write at full load: the routers (or etcd's members), the storage processes
    /// and the clients.
    cpu: [f64; 3],
    /// Messages in one entry of the routers' log at full load.
    in_an_entry: Option<f64>,
}

/// All rounds of a system.
#[derive(Default)]
struct Measured {
    rounds: Vec<Round>,
    full: Latencies,
    arriving: Latencies,
}

impl Measured {
    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(&self.rounds.iter().map(figure).collect::<Vec<_>>())
    }
}

impl OrderArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        if self.replication_factor == 0 || self.replication_factor > self.storage {
            return Err(Failure::setup(
                "--replication-factor must be between 1 and the number of storage processes",
            ));
        }
        self.output.create()?;
        self.writes().await?;
        if self.writes_only {
            return Ok(());
        }
        self.reads().await?;
        let routing = tokio::task::spawn_blocking(routing::measure).await.map_err(Failure::job)??;
        routing.publish(&self.output.report("routing"))
    }

    fn shape(&self, durability: ClusterDurability) -> Shape {
        Shape {
            routers: self.routers,
            storage: self.storage,
            replication_factor: self.replication_factor,
            durability,
            suspect_after: None,
            memory_reserve_mib: 0,
        }
    }

    fn systems(&self) -> Result<Vec<(String, System)>, Failure> {
        let mut systems = vec![
            ("Carousel, durability disk".to_owned(), System::Carousel(ClusterDurability::Disk)),
            ("Carousel, durability memory".to_owned(), System::Carousel(ClusterDurability::Memory)),
        ];
        match self.etcd.clone().or_else(Etcd::find).filter(|_| !self.no_etcd) {
            Some(program) => systems.push((Etcd::version(&program)?, System::Etcd(program))),
            None if self.no_etcd => {}
            None => {
                eprintln!("etcd is not installed here and --etcd is not given: Carousel is measured alone")
            }
        }
        Ok(systems)
    }

    async fn writes(&self) -> Result<(), Failure> {
        let systems = self.systems()?;
        let mut measured: Vec<Measured> = systems.iter().map(|_| Measured::default()).collect();
        for round in 1..=self.rounds {
            for ((name, system), measured) in systems.iter().zip(&mut measured) {
                let (found, full, arriving) = match system {
                    System::Carousel(durability) => self.carousel(*durability).await?,
                    System::Etcd(program) => self.etcd(program).await?,
                };
                eprintln!("{name}, round {round} of {}: {:.0} writes/s", self.rounds, found.per_second);
                measured.full.extend(full.latencies);
                measured.arriving.extend(arriving.latencies);
                measured.rounds.push(found);
            }
        }
        let mut report = Report::new(
            "Ordering: small writes, from submission to acknowledgement",
            &[
                "system",
                "writes/s",
                "p50",
                "p99",
                "arriving: writes/s",
                "p50 ",
                "p99 ",
                "CPU us a write: routers or etcd",
                "storage",
                "clients",
                "writes a log entry",
                "relative to etcd",
            ],
        );
        report.fact(
            "Carousel",
            format!(
                "{} routers, {} storage processes, replication factor {}, each a process; one client process",
                self.routers, self.storage, self.replication_factor
            ),
        );
        report.fact("etcd", "3 members with their defaults, gRPC over 16 connections to the leader");
        report.fact("write", "8 bytes under a key of 8 bytes; in Carousel an UPDATE by the primary key");
        report.fact("clients", thousands(self.clients.into()));
        report.fact("keys", thousands(self.keys));
        report.fact("rounds", format!("{} of 2 x {} s, in turn; medians", self.rounds, self.seconds));
        let is_etcd = |(_, system): &(String, System)| matches!(system, System::Etcd(_));
        let baseline = systems.iter().position(is_etcd);
        let baseline = baseline.map_or(0.0, |index| measured[index].median(|round| round.per_second));
        let mut figures = Vec::new();
        for ((name, _), measured) in systems.iter().zip(&mut measured) {
            let per_second = measured.median(|round| round.per_second);
            let [routers, storage, clients] =
                [0, 1, 2].map(|part| format!("{:.1}", measured.median(|round| round.cpu[part])));
            let [p50, p99] =
                [50, 99].map(|percent| measured.arriving.percentile(percent).as_secs_f64() * 1e3);
            figures.push([per_second, p50, p99, measured.median(|round| round.arriving_per_second)]);
            let in_an_entry = measured.median(|round| round.in_an_entry.unwrap_or(0.0));
            report.row(vec![
                name.clone(),
                thousands(per_second as u64),
                milliseconds(measured.full.percentile(50)),
                milliseconds(measured.full.percentile(99)),
                thousands(measured.median(|round| round.arriving_per_second) as u64),
                milliseconds(measured.arriving.percentile(50)),
                milliseconds(measured.arriving.percentile(99)),
                routers,
                storage,
                clients,
                if in_an_entry > 0.0 { format!("{in_an_entry:.0}") } else { "-".to_owned() },
                ratio(per_second, baseline),
            ]);
        }
        report.remark(
            "Full load: every client writes again when its last write is acknowledged. Arriving: writes come at a steady \
             rate, whether those before them are acknowledged or not, and their time counts from when they were due.",
        );
        report.remark(
            "After each measurement of Carousel every row was read from every replica and compared with what was \
             written last.",
        );
        report.publish(&self.output.report("order"))?;
        // Disk, then memory, as in `systems`.
        let ([rate, p50, p99, arriving], [memory_rate, memory_p50, ..]) = (figures[0], figures[1]);
        let half = WANTED / 2.0;
        let enough_arrived = arriving >= 0.99 * half;
        let mut targets = Targets::new("Ordering: what is to be reached");
        targets.at_least("durability disk: writes a second", Some(rate), WANTED);
        let what =
            format!("durability disk: ms of p99 when {} or more arrive a second", thousands(half as u64));
        targets.at_most(what, enough_arrived.then_some(p99), 10.0);
        targets.at_least("durability disk: rate to etcd's", (baseline > 0.0).then(|| rate / baseline), 20.0);
        targets.at_least("durability memory: rate to that of disk", Some(memory_rate / rate), 1.0);
        // Of writes that arrive: who writes again when its last write is acknowledged has a time that is the number of clients
        // by the rate, whatever the disk does.
        let what = "durability memory: p50 of writes that arrive to that of disk";
        targets.at_most(what, Some(memory_p50 / p50), 0.5);
        targets.publish(&self.output.report("order-targets"))
    }

    /// Loads a store in full, then by writes that arrive, so many a second or half of what full load reached. `counts` tells
    /// the processor time taken so far (the routers' or etcd's, the storage processes', the clients'), and how many entries the
    /// routers' log has, where it has any.
    async fn load<S: Store>(
        &self,
        store: &S,
        written: &mut Written,
        arrivals: Option<u32>,
        counts: impl AsyncFn() -> Result<([Duration; 3], Option<f64>), Failure>,
    ) -> Result<(Round, Outcome, Outcome), Failure> {
        let (clients, duration) = (self.clients as usize, Duration::from_secs(self.seconds));
        load::closed(store, written, clients, WARM_UP).await?;
        let (before, entries_before) = counts().await?;
        let full = load::closed(store, written, clients, duration).await?;
        let (after, entries_after) = counts().await?;
        let arrivals = arrivals.map_or(full.per_second() / 2.0, f64::from);
        let arriving = load::open(store, written, arrivals, duration).await?;
        let writes = full.latencies.len().max(1) as f64;
        let micros = |part: usize| after[part].saturating_sub(before[part]).as_secs_f64() * 1e6 / writes;
        let entries = entries_after.zip(entries_before).map(|(after, before)| (after - before).max(1.0));
        let round = Round {
            per_second: full.per_second(),
            arriving_per_second: arriving.per_second(),
            cpu: [micros(0), micros(1), micros(2)],
            in_an_entry: entries.map(|entries| writes / entries),
        };
        Ok((round, full, arriving))
    }

    async fn carousel(&self, durability: ClusterDurability) -> Result<(Round, Outcome, Outcome), Failure> {
        let cluster = Processes::start(self.shape(durability)).await?;
        let table = Table::create(cluster.client()?, self.keys).await?;
        let mut written = vec![0; self.keys as usize];
        let counts = async || {
            let entries = cluster.metric(ProcessKind::Router, "carousel_router_entries_total", &[]).await?;
            let cpu = [
                cluster.processor_time(ProcessKind::Router),
                cluster.processor_time(ProcessKind::Storage),
                processor_time(std::process::id()),
            ];
            Ok((cpu, Some(entries / f64::from(self.routers))))
        };
        let measured = self.load(&table, &mut written, self.arrivals, counts).await?;
        table.check(&written, self.replication_factor).await?;
        Ok(measured)
    }

    async fn etcd(&self, program: &Path) -> Result<(Round, Outcome, Outcome), Failure> {
        let etcd = Etcd::start(program).await?;
        let mut written = vec![0; self.keys as usize];
        let counts = async || {
            let clients = processor_time(std::process::id());
            Ok(([etcd.processor_time(), Duration::ZERO, clients], None))
        };
        self.load(&etcd.connections(), &mut written, None, counts).await
    }

    /// Reads from half of the storage processes, and from all of them.
    async fn reads(&self) -> Result<(), Failure> {
        let (clients, duration) = (self.clients as usize, Duration::from_secs(self.seconds));
        let mut report = reads::report(clients, duration, self.rounds);
        let half = (self.storage / 2).max(self.replication_factor);
        for storage in BTreeSet::from([half, self.storage]) {
            let shape = Shape { storage, ..self.shape(ClusterDurability::Disk) };
            let cluster = Processes::start(shape).await?;
            let table = Table::create(cluster.client()?, self.keys).await?;
            let mut written = vec![0; self.keys as usize];
            load::closed(&table, &mut written, clients, WARM_UP).await?;
            reads::measure(&mut report, &cluster, &table, &written, clients, duration, self.rounds).await?;
        }
        report.publish(&self.output.report("reads"))
    }
}
