//! A cluster of separate processes, started from this executable on a temporary directory, as a user would run it; the
//! client process is the benchmark.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use carousel_cluster::{
    client::Client,
    description::Description,
    embedded::Durability,
    member::{Member, MemberOptions},
    message::{Body, ProcessId, ProcessKind},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::Config;

use crate::cli::Failure;

/// How long one waits before one asks again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a cluster may take to have a leader that answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much of a processor processes take that have hardly anything to do, and for how long one looks.
const IDLE: f64 = 0.2;
const LOOK: Duration = Duration::from_secs(1);
/// How long they may have something to do when nobody asks them for anything.
const SETTLED: Duration = Duration::from_secs(600);

/// What a cluster consists of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub routers: u32,
    pub storage: u32,
    pub replication_factor: u32,
    pub durability: Durability,
    /// Silent storage processes are suspected after this long; never, when `None`.
    pub suspect_after: Option<Duration>,
    /// MiB of memory that each storage process is told to reserve; 0 for none.
    pub memory_reserve_mib: u64,
}

struct Process {
    child: Child,
    metrics: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        // What it holds is of no use to anybody any more. It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running cluster, with a client process in this one. Its processes end when it is dropped.
pub struct Processes {
    shape: Shape,
    description: Description,
    file: PathBuf,
    processes: BTreeMap<ProcessId, Process>,
    client: Member,
    directory: TempDir,
}

fn failed(reason: impl std::fmt::Display) -> Failure {
    Failure::job(format!("cannot start a cluster of processes: {reason}"))
}

/// Addresses at which nobody listens at the moment.
pub fn free_addresses(count: u32) -> Result<Vec<String>, Failure> {
    carousel_cluster::transport::free_addresses(count as usize).map_err(failed)
}

impl Processes {
    /// Starts the processes and a client; returns when a message has been ordered.
    ///
    /// # Errors
    /// When one does not start; it has told why on stderr.
    pub async fn start(shape: Shape) -> Result<Processes, Failure> {
        let directory = tempfile::tempdir().map_err(failed)?;
        let mut routers = free_addresses(shape.routers + shape.storage)?;
        let storage = routers.split_off(shape.routers as usize);
        let description = Description {
            name: "bench".into(),
            replication_factor: shape.replication_factor,
            durability: shape.durability,
            routers,
            storage,
            ..Description::default()
        };
        let file = directory.path().join("cluster.toml");
        std::fs::write(&file, description.to_toml()).map_err(failed)?;
        let id = ProcessId::client(1);
        let options = MemberOptions::new(description.clone(), id, directory.path().join(id.to_string()));
        let mut processes = BTreeMap::new();
        for id in description.members().into_keys() {
            processes.insert(id, run(&shape, id, &file, &directory, &[])?);
        }
        let client = Member::start(options).await.map_err(failed)?;
        let cluster = Processes { shape, description, file, processes, client, directory };
        let ordered =
            tokio::time::timeout(PATIENCE, cluster.client()?.order(Body::Pin { lease_ms: 0 })).await;
        ordered.map_err(failed)?.map_err(failed)?;
        Ok(cluster)
    }

    /// The client process.
    pub fn client(&self) -> Result<Client, Failure> {
        self.client.client().ok_or_else(|| failed("a client process has no client"))
    }

    /// The routers or the storage processes.
    pub fn ids(&self, kind: ProcessKind) -> impl Iterator<Item = ProcessId> {
        self.description.members().into_keys().filter(move |id| id.kind == kind)
    }

    /// Starts a storage process that the description does not name: it joins as a standby.
    ///
    /// # Errors
    /// When it does not start; it has told why on stderr.
    pub fn start_standby(&mut self, id: ProcessId) -> Result<(), Failure> {
        let address = free_addresses(1)?.remove(0);
        let process = run(&self.shape, id, &self.file, &self.directory, &["--bind", &address])?;
        self.processes.insert(id, process);
        Ok(())
    }

    /// Starts a front end; it is reached like this.
    ///
    /// # Errors
    /// When it does not start; it has told why on stderr.
    pub fn start_frontend(&mut self, number: u32) -> Result<Config, Failure> {
        let (id, address) = (ProcessId::client(number), free_addresses(1)?.remove(0));
        let process = run(&self.shape, id, &self.file, &self.directory, &["--listen", &address])?;
        self.processes.insert(id, process);
        format!("postgresql://carousel@{address}/carousel").parse().map_err(failed)
    }

    /// Kills a process as `kill -9` does.
    pub fn kill(&mut self, id: ProcessId) {
        self.processes.remove(&id);
    }

    /// Starts a process that was killed again.
    ///
    /// # Errors
    /// When it does not start; it has told why on stderr.
    pub fn restart(&mut self, id: ProcessId) -> Result<(), Failure> {
        let process = run(&self.shape, id, &self.file, &self.directory, &[])?;
        self.processes.insert(id, process);
        Ok(())
    }

    /// Time of a processor that the processes of a kind have taken.
    pub fn processor_time(&self, kind: ProcessKind) -> Duration {
        let running = self.processes.iter().filter(|(id, _)| id.kind == kind);
        running.map(|(_, process)| processor_time(process.child.id())).sum()
    }

    /// Waits until the processes of a kind have hardly anything to do.
    ///
    /// # Errors
    /// When they are busy for long.
    pub async fn settle(&self, kind: ProcessKind) -> Result<(), Failure> {
        let begin = Instant::now();
        loop {
            let before = self.processor_time(kind);
            tokio::time::sleep(LOOK).await;
            if self.processor_time(kind).saturating_sub(before) < LOOK.mul_f64(IDLE) {
                return Ok(());
            }
            if begin.elapsed() > SETTLED {
                let seconds = SETTLED.as_secs();
                return Err(Failure::job(format!("the cluster is still busy after {seconds} s")));
            }
        }
    }

    /// The sum of a metric of the processes of a kind over those of its labels that are wanted.
    ///
    /// # Errors
    /// When a process does not tell.
    pub async fn metric(
        &self,
        kind: ProcessKind,
        name: &str,
        labels: &[(&str, &str)],
    ) -> Result<f64, Failure> {
        let mut sum = 0.0;
        for id in self.processes.keys().filter(|id| id.kind == kind) {
            sum += self.metric_of(*id, name, labels).await?;
        }
        Ok(sum)
    }

    /// As [`Processes::metric`], of one process; 0 when it does not run.
    ///
    /// # Errors
    /// When it does not tell.
    pub async fn metric_of(
        &self,
        id: ProcessId,
        name: &str,
        labels: &[(&str, &str)],
    ) -> Result<f64, Failure> {
        let Some(process) = self.processes.get(&id) else { return Ok(0.0) };
        let text = fetch(&process.metrics)
            .await
            .map_err(|error| Failure::job(format!("{id} does not tell its metrics: {error}")))?;
        Ok(sum_of(&text, name, labels))
    }

    /// The router that leads, if there is one.
    pub async fn leader(&self) -> Option<ProcessId> {
        for id in self.ids(ProcessKind::Router) {
            if matches!(self.metric_of(id, "carousel_router_leading", &[]).await, Ok(leading) if leading > 0.0)
            {
                return Some(id);
            }
        }
        None
    }

    /// Waits until a router leads.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn wait_for_leader(&self) -> Result<ProcessId, Failure> {
        let leads = async {
            loop {
                if let Some(leader) = self.leader().await {
                    return leader;
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::time::timeout(PATIENCE, leads).await.map_err(|_| Failure::job("no router leads"))
    }
}

fn run(
    shape: &Shape,
    id: ProcessId,
    file: &std::path::Path,
    directory: &TempDir,
    options: &[&str],
) -> Result<Process, Failure> {
    let kind = match id.kind {
        ProcessKind::Router => "router",
        ProcessKind::Storage => "storage",
        ProcessKind::Client | ProcessKind::Super => "frontend",
    };
    let metrics = free_addresses(1)?.remove(0);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .args([kind, "--number", &id.number.to_string(), "--metrics-listen", &metrics, "--log"])
        // That processes come and go is the benchmark's own doing.
        .args(["error,openraft=off", "--cluster"])
        .arg(file)
        .arg("--data-dir")
        .arg(directory.path().join(id.to_string()))
        .args(options);
    match (id.kind, shape.suspect_after) {
        (ProcessKind::Router, after) => {
            let after = after.unwrap_or_default().as_millis();
            command.arg("--suspect-after-ms").arg(after.to_string());
        }
        // There are more processes than cores already.
        (ProcessKind::Storage, _) => {
            command.args(["--threads", "1"]);
            if shape.memory_reserve_mib > 0 {
                command.arg("--memory-reserve").arg(format!("{}MiB", shape.memory_reserve_mib));
            }
        }
        _ => {}
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut process = Process { child, metrics };
    let mut greeting = String::new();
    if let Some(output) = process.child.stdout.take() {
        // It says nothing more after its greeting.
        BufReader::new(output).read_line(&mut greeting).map_err(failed)?;
    }
    match greeting.is_empty() {
        true => Err(failed(format!("{id} has ended"))),
        false => Ok(process),
    }
}

/// User and system time that a process has taken; zero where the system does not tell.
pub fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in brackets, may contain anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // SAFETY: sysconf takes and returns plain numbers.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    Duration::from_secs_f64((ticks(11) + ticks(12)) as f64 / per_second as f64)
}

async fn fetch(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// The sum of a metric in Prometheus's text over the lines that have these labels.
fn sum_of(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let wanted: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    text.lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
        .filter(|line| wanted.iter().all(|label| line.contains(label.as_str())))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_the_wanted_labels() {
        let text = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"2\",y=\"2\"} 4\nab{x=\"1\"} 9\na 5\n";
        assert_eq!(sum_of(text, "a", &[]), 12.0);
        assert_eq!(sum_of(text, "a", &[("x", "1")]), 3.0);
        assert_eq!(sum_of(text, "a", &[("y", "2"), ("x", "2")]), 4.0);
        assert_eq!(sum_of(text, "b", &[]), 0.0);
    }

    #[test]
    fn a_process_takes_time() {
        let begin = processor_time(std::process::id());
        let mut sum = 0_u64;
        while processor_time(std::process::id()) == begin {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
