//! Elasticity: the ring changes under load (paper, section 7.9 and figures 11 to 15). How fast rows are copied, whether a
//! statement fails, and what statements notice meanwhile.
//!
//! Routers, storage processes, standbys and the front end are processes of their own; the clients, which talk SQL over
//! real connections, are in this one. To measure a slower network, run it in a network namespace of its own and shape
//! that one's loopback device.

mod load;
mod trace;

use std::{
    cell::Cell,
    collections::VecDeque,
    time::{Duration, Instant},
};

use carousel_cluster::{
    embedded::Durability,
    message::{ProcessId, ProcessKind},
};
use clap::{Args, ValueEnum};
use tokio_postgres::Client;

use self::{
    load::{Load, Plan, Seen, Statement},
    trace::Phase,
};
use super::{
    processes::{Processes, Shape},
    report::{Latencies, OutputArgs, Report, milliseconds, ratio},
    targets::Targets,
};
use crate::{
    cli::{
        Failure,
        progress::{Progress, Unit, thousands},
    },
    load::{TicketArgs, connect, create_ticket, load_ticket, reason},
    ticket::{MAX_ROWS, TABLE},
};

/// How long one waits before one asks again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long one waits before one asks again whether rows are being moved: not so often that it is a load of its own.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a change may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// A change of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Change {
    /// A standby takes a place on the ring
    Expand,
    /// A storage process moves on the ring
    Rebalance,
    /// A standby takes the place of a storage process
    Replace,
    /// A storage process leaves the ring
    Contract,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::Expand => "expand",
            Change::Rebalance => "rebalance",
            Change::Replace => "replace",
            Change::Contract => "contract",
        }
    }
}

/// What a row takes, about.
const ROW_BYTES: u64 = 160;

/// Options of `carousel bench elastic`.
#[derive(Args, Clone, Debug)]
pub struct ElasticArgs {
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 6_500_000, value_parser = clap::value_parser!(u64).range(1..=MAX_ROWS))]
    rows: u64,

    /// What is done to the ring, one after the other
    #[arg(
        long,
        value_name = "CHANGE",
        value_enum,
        value_delimiter = ',',
        default_value = "expand,rebalance,replace,contract"
    )]
    changes: Vec<Change>,

    /// How often all of that is done: a single change is too short to tell what one statement in a hundred notices
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,

    /// Selective SELECTs that arrive in a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reads: u32,

    /// Selective UPDATEs that arrive in a second
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    writes: u32,

    /// Connections for the SELECTs, and as many for the UPDATEs
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,

    /// Seconds before the first change, between two, and after the last
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Router processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    routers: u32,

    /// Storage processes on the ring at first
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    storage: u32,

    /// How many storage processes hold each row
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    replication_factor: u32,

    /// MiB of memory that each storage process takes before rows come; 0 for none [default: 160 bytes a row]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    memory_reserve_mib: Option<u64>,

    /// Seed of the rows and of the questions
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

impl ElasticArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        if self.replication_factor > self.storage {
            return Err(Failure::setup(
                "--replication-factor is greater than the number of storage processes",
            ));
        }
        self.output.create()?;
        let mut cluster = Processes::start(Shape {
            routers: self.routers,
            storage: self.storage,
            replication_factor: self.replication_factor,
            durability: Durability::Disk,
            suspect_after: None,
            memory_reserve_mib: self.memory_reserve_mib(),
        })
        .await?;
        let config = cluster.start_frontend(2)?;
        let client = connect(&config).await?;
        create_ticket(&client, true).await?;
        let rows = TicketArgs { rows: self.rows, seed: self.seed };
        let progress = Progress::new("loading ticket", Unit::Rows, Some(self.rows));
        load_ticket(&client, &rows, progress).await?;
        let plan = Plan { reads: self.reads, writes: self.writes, clients: self.clients, seed: self.seed };
        // What the load has left to be tidied up has nothing to do with the changes.
        cluster.settle(ProcessKind::Storage).await?;
        let before = total_fare(&client).await?;
        let load = Load::start(&config, plan, self.rows).await?;
        let watcher = connect(&config).await?;
        let phases = self.change_all(&mut cluster, &client, &watcher, &load).await?;
        let seen = load.stop().await?;
        check(&client, before, &seen).await?;
        let report = self.report(&phases, &seen);
        report.publish(&self.output.report("elastic"))?;
        targets(&phases, &seen).publish(&self.output.report("elastic-targets"))?;
        trace::write(&self.output, &phases, &seen)
    }

    /// What each storage process is told to reserve: by default as much as all rows take.
    fn memory_reserve_mib(&self) -> u64 {
        self.memory_reserve_mib.unwrap_or(self.rows.saturating_mul(ROW_BYTES) >> 20)
    }

    /// Does all changes, with time between them.
    async fn change_all(
        &self,
        cluster: &mut Processes,
        client: &Client,
        watcher: &Client,
        load: &Load,
    ) -> Result<Vec<Phase>, Failure> {
        let pause = Duration::from_secs(self.seconds);
        let mut phases = Vec::new();
        // Those on the ring are changed in turn; a standby is another one for each change.
        let mut ring: VecDeque<ProcessId> = (1..=self.storage).map(ProcessId::storage).collect();
        let changes = std::iter::repeat_n(&self.changes, self.rounds as usize).flatten();
        for (&change, number) in changes.zip(1..) {
            let standby = ProcessId::storage(self.storage + number);
            let process = ring[0];
            let statement = match change {
                Change::Expand => format!("EXPAND WITH {standby}"),
                Change::Rebalance => {
                    format!("REBALANCE {process} TO {}", middle(client, process).await?)
                }
                Change::Replace => format!("REPLACE {process} BY {standby}"),
                Change::Contract => format!("CONTRACT BY {process}"),
            };
            if change == Change::Contract && ring.len() <= self.replication_factor as usize {
                return Err(Failure::setup("--changes leaves fewer storage processes than hold each row"));
            }
            match change {
                Change::Expand => ring.push_back(standby),
                Change::Rebalance => ring.rotate_left(1),
                Change::Replace => {
                    ring[0] = standby;
                    ring.rotate_left(1);
                }
                Change::Contract => drop(ring.pop_front()),
            }
            if matches!(change, Change::Expand | Change::Replace) {
                cluster.start_standby(standby)?;
                let named = format!("storage = '{standby}' AND state = 'standby'");
                until(client, &format!("SELECT count(*) = 1 FROM carousel.storage WHERE {named}")).await?;
            }
            tokio::time::sleep(pause).await;
            let moved = moved_bytes(cluster).await?;
            let begin = load.now();
            let is_ordered = Cell::new(false);
            let order = async {
                let ordered = client.batch_execute(&format!("ALTER CLUSTER {statement}")).await;
                is_ordered.set(true);
                ordered.map_err(failed)
            };
            let ((), moving) = tokio::try_join!(order, watch_moving(watcher, &is_ordered))?;
            let end = load.now();
            let bytes = moved_bytes(cluster).await? - moved;
            let (moving_s, all) = (moving.as_secs_f64(), (end - begin).as_secs_f64());
            eprintln!("{statement}: {:.1} MB in {moving_s:.2} of {all:.2} s", bytes / 1e6);
            phases.push(Phase { name: change.name(), begin, end, moving, bytes });
        }
        tokio::time::sleep(pause).await;
        Ok(phases)
    }

    fn report(&self, phases: &[Phase], seen: &Seen) -> Report {
        let columns = [
            "phase",
            "seconds",
            "moving",
            "MB moved",
            "MB/s",
            "statements",
            "p50",
            "p99",
            "p99 to steady",
            "most",
        ];
        let mut report = Report::new("Elasticity: the ring changes under load", &columns);
        report.fact(
            "Carousel",
            format!(
                "{} routers with their log on disk, {} storage processes, replication factor {}, a front end and the \
                 standbys, each a process",
                self.routers, self.storage, self.replication_factor
            ),
        );
        let reserved = thousands(self.memory_reserve_mib());
        report.fact("MiB of memory that each storage process had taken before", reserved);
        report.fact("rows", thousands(self.rows));
        report.fact("times that each change was made", thousands(self.rounds.into()));
        report.fact("selective SELECTs that arrive in a second", thousands(self.reads.into()));
        report.fact("selective UPDATEs that arrive in a second", thousands(self.writes.into()));
        for statement in [Statement::Read, Statement::Write] {
            let mut steady = steady(phases, seen, statement);
            let basis = steady.percentile(99);
            report.row(row("steady", Default::default(), statement, &mut steady, basis));
            for (name, phases) in by_change(phases) {
                let mut during = during(&phases, seen, statement);
                let sum = |value: fn(&Phase) -> f64| phases.iter().map(value).sum::<f64>();
                let moved = [
                    format!("{:.2}", sum(|phase| (phase.end - phase.begin).as_secs_f64())),
                    format!("{:.2}", sum(|phase| phase.moving.as_secs_f64())),
                    format!("{:.1}", sum(|phase| phase.bytes) / 1e6),
                    format!("{:.0}", rate(&phases)),
                ];
                report.row(row(name, moved, statement, &mut during, basis));
            }
        }
        let failures = seen.failures();
        report.remark(format!(
            "{} statements, {} of them failed{}. The rows had the values that the UPDATEs that had ended gave them.",
            thousands(seen.count() as u64),
            failures.len(),
            failures.first().map_or(String::new(), |first| format!(", such as: {first}"))
        ));
        report
    }
}

/// How long statements took that were due while the ring stayed as it was.
fn steady(phases: &[Phase], seen: &Seen, statement: Statement) -> Latencies {
    seen.latencies(statement, |at| !phases.iter().any(|phase| phase.has(at)))
}

/// How long statements took that were due while the ring changed.
fn during(phases: &[Phase], seen: &Seen, statement: Statement) -> Latencies {
    seen.latencies(statement, |at| phases.iter().any(|phase| phase.has(at)))
}

/// The phases of each kind of change, in the order of their first ones.
fn by_change(phases: &[Phase]) -> Vec<(&'static str, Vec<Phase>)> {
    let mut grouped: Vec<(&'static str, Vec<Phase>)> = Vec::new();
    for phase in phases {
        match grouped.iter_mut().find(|(name, _)| *name == phase.name) {
            Some((_, group)) => group.push(*phase),
            None => grouped.push((phase.name, vec![*phase])),
        }
    }
    grouped
}

/// Megabytes a second that were moved in phases. What was too short to be seen took less than a look.
fn rate(phases: &[Phase]) -> f64 {
    let bytes: f64 = phases.iter().map(|phase| phase.bytes).sum();
    let moving: Duration = phases.iter().map(|phase| phase.moving.max(LOOK_AGAIN)).sum();
    bytes / 1e6 / moving.as_secs_f64()
}

fn targets(phases: &[Phase], seen: &Seen) -> Targets {
    let mut targets = Targets::new("Elasticity: what is to be reached");
    let basis = steady(phases, seen, Statement::Read).percentile(99).as_secs_f64();
    for (name, phases) in by_change(phases) {
        let p99 = |statement| during(&phases, seen, statement).percentile(99).as_secs_f64();
        targets.at_least(format!("{name}: MB/s"), Some(rate(&phases)), 200.0);
        let to_steady = (basis > 0.0).then(|| p99(Statement::Read) / basis);
        targets.at_most(format!("{name}: p99 of SELECTs to steady"), to_steady, 2.0);
        let writes = Some(p99(Statement::Write) * 1e3);
        targets.at_most(format!("{name}: ms of p99 of UPDATEs"), writes, 500.0);
    }
    targets.at_most("failed statements", Some(seen.failures().len() as f64), 0.0);
    targets
}

/// A row of the report; `moved` are its second to fifth fields.
fn row(
    phase: &str,
    moved: [String; 4],
    statement: Statement,
    latencies: &mut Latencies,
    basis: Duration,
) -> Vec<String> {
    let p99 = latencies.percentile(99);
    let mut fields = vec![phase.to_owned()];
    fields.extend(moved);
    fields.push(statement.name().to_owned());
    fields.push(milliseconds(latencies.percentile(50)));
    fields.push(milliseconds(p99));
    fields.push(ratio(p99.as_secs_f64(), basis.as_secs_f64()));
    fields.push(milliseconds(latencies.percentile(100)));
    fields
}

fn failed(error: tokio_postgres::Error) -> Failure {
    Failure::job(reason(&error))
}

/// Bytes of rows that storage processes have received from others.
async fn moved_bytes(cluster: &Processes) -> Result<f64, Failure> {
    cluster.metric(ProcessKind::Storage, "carousel_storage_moved_bytes_total", &[]).await
}

/// The place that gives half of a process's range to the one before it.
async fn middle(client: &Client, process: ProcessId) -> Result<String, Failure> {
    let all = 1u128 << 64;
    let length = format!("mod(last_position::numeric - identifier + {all}, {all})");
    let middle = format!("mod(identifier + trunc({length} / 2), {all})::text");
    let query = format!("SELECT {middle} FROM carousel.ring WHERE storage = '{process}'");
    client.query_one(&query, &[]).await.map(|row| row.get(0)).map_err(failed)
}

/// Waits until a change has been ordered and all rows have been moved; returns how long some were on their way.
async fn watch_moving(client: &Client, is_ordered: &Cell<bool>) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let (mut moving, mut since) = (Duration::ZERO, None);
    loop {
        // Asked before the rows are: none are left when there are none then.
        let may_end = is_ordered.get();
        let is_moving: bool = client
            .query_one("SELECT count(*) > 0 FROM carousel.migrations", &[])
            .await
            .map_err(failed)?
            .get(0);
        let now = Instant::now();
        moving += since.map_or(Duration::ZERO, |since| now - since);
        since = is_moving.then_some(now);
        if may_end && !is_moving {
            return Ok(moving);
        }
        if begin.elapsed() > PATIENCE {
            return Err(Failure::job(format!("rows are being moved after {} s", PATIENCE.as_secs())));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits until a query answers true.
async fn until(client: &Client, query: &str) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        if client.query_one(query, &[]).await.map_err(failed)?.get(0) {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(Failure::job(format!("not true after {} s: {query}", PATIENCE.as_secs())));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Rows, and the sum of their fares in cents.
async fn total_fare(client: &Client) -> Result<(i64, i64), Failure> {
    let query = format!("SELECT count(*), (sum(fare) * 100)::bigint FROM {TABLE}");
    let row = client.query_one(&query, &[]).await.map_err(failed)?;
    Ok((row.get(0), row.get(1)))
}

/// Every UPDATE has taken effect once on each of its rows.
async fn check(client: &Client, before: (i64, i64), seen: &Seen) -> Result<(), Failure> {
    let (rows, cents) = total_fare(client).await?;
    if rows != before.0 {
        return Err(Failure::job(format!("{rows} rows are left of {}", before.0)));
    }
    let (raised, unknown) = (cents - before.1, seen.failed_writes() > 0);
    // Nobody knows of a write that failed whether it took effect.
    if raised < seen.updated || raised > seen.updated && !unknown {
        let updated = seen.updated;
        return Err(Failure::job(format!(
            "fares were raised {updated} times by a cent, and are {raised} higher"
        )));
    }
    Ok(())
}
