//! A cluster of separate processes, secured by certificates: three routers, four storage processes, two front ends.
//! They are killed and started again under load, cut off from one another, and strangers are kept out.

mod history;
mod partitions;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_postgres::{Client, NoTls, error::SqlState};

use self::{
    history::{History, last_ts},
    partitions::Links,
};
use super::{carousel, path, refusal, scratch};

/// A test that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rows of a table that does not change.
const STILL: i64 = 4000;

/// What a process has printed so far.
#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Lines {
    fn follow(output: impl Read + Send + 'static) -> Arc<Lines> {
        let lines = Arc::new(Lines::default());
        let followed = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                followed.lines.lock().unwrap().push(line);
                followed.more.notify_all();
            }
        });
        lines
    }

    /// Waits for a line with all of these parts.
    fn expect(&self, parts: &[&str]) -> String {
        let has_all = |line: &&String| parts.iter().all(|part| line.contains(part));
        let lines = self.lines.lock().unwrap();
        let (lines, _) = self
            .more
            .wait_timeout_while(lines, PATIENCE, |lines| !lines.iter().any(|line| has_all(&line)))
            .unwrap();
        let found = lines.iter().find(has_all).cloned();
        found.unwrap_or_else(|| panic!("no line with {parts:?} in:\n{}", lines.join("\n")))
    }

    /// How many lines there are with all of these parts.
    fn count(&self, parts: &[&str]) -> usize {
        count(&self.lines.lock().unwrap(), parts)
    }

    /// Waits for another line with all of these parts.
    fn more_than(&self, before: usize, parts: &[&str]) {
        let lines = self.lines.lock().unwrap();
        let waited = self.more.wait_timeout_while(lines, PATIENCE, |lines| count(lines, parts) <= before);
        let (lines, timed_out) = waited.unwrap();
        assert!(!timed_out.timed_out(), "no further line with {parts:?} in:\n{}", lines.join("\n"));
    }
}

fn count(lines: &[String], parts: &[&str]) -> usize {
    lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

struct Process {
    child: Child,
    output: Arc<Lines>,
    log: Arc<Lines>,
}

impl Process {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority's certificate, and one that it has signed with its key.
struct Certificates {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificates {
    fn make(directory: &Path, name: &str) -> Certificates {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let own = authority.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().unwrap();
        let hosts = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let certificate = hosts.signed_by(&key, &issuer).unwrap();
        let write = |file: &str, text: String| {
            let path = directory.join(format!("{name}-{file}.pem"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Certificates {
            authority: write("authority", own.pem()),
            certificate: write("certificate", certificate.pem()),
            key: write("key", key.serialize_pem()),
        }
    }
}

const REPLICATION_FACTOR: u32 = 2;
const ROUTERS: [&str; 3] = ["r1", "r2", "r3"];
const STORAGE: [&str; 4] = ["s1", "s2", "s3", "s4"];
const PROCESSES: [&str; 9] = ["r1", "r2", "r3", "s1", "s2", "s3", "s4", "c1", "c2"];

struct Cluster {
    directory: tempfile::TempDir,
    description: PathBuf,
    /// Descriptions of their own for processes that see the others at other addresses.
    views: BTreeMap<String, PathBuf>,
    certificates: Certificates,
    metrics: BTreeMap<String, String>,
    processes: BTreeMap<String, Process>,
    /// 0 for never.
    suspect_after_ms: u64,
    replication_factor: u32,
}

fn addresses(count: usize) -> Vec<String> {
    carousel_cluster::transport::free_addresses(count).expect("ports are free")
}

/// `r1` as the command and the number.
fn role(name: &str) -> (&'static str, &str) {
    let kind = match &name[..1] {
        "r" => "router",
        "s" => "storage",
        _ => "frontend",
    };
    (kind, &name[1..])
}

/// Writes a description with the addresses of the routers and storage processes.
fn describe(path: PathBuf, addresses: &BTreeMap<String, String>) -> PathBuf {
    let of = |names: &[&str]| names.iter().map(|name| addresses[*name].clone()).collect::<Vec<_>>();
    let text = format!(
        "name = \"test\"\nreplication-factor = {REPLICATION_FACTOR}\nunnamed-certificates = true\nrouters = {:?}\nstorage = {:?}\n",
        of(&ROUTERS),
        of(&STORAGE)
    );
    std::fs::write(&path, text).unwrap();
    path
}

impl Cluster {
    fn start() -> Cluster {
        let mut cluster = Cluster::lay_out(&Cluster::addresses());
        cluster.run_all();
        cluster
    }

    /// A cluster in which every process reaches every other through a link of its own.
    async fn start_with_links(suspect_after_ms: u64, replication_factor: u32) -> (Cluster, Links) {
        let addresses = Cluster::addresses();
        let (links, seen_by) = Links::lay(&PROCESSES, &addresses).await;
        let mut cluster = Cluster::lay_out(&addresses);
        (cluster.suspect_after_ms, cluster.replication_factor) = (suspect_after_ms, replication_factor);
        for (process, seen) in seen_by {
            let path = cluster.directory.path().join(format!("{process}.toml"));
            cluster.views.insert(process, describe(path, &seen));
        }
        cluster.run_all();
        (cluster, links)
    }

    fn addresses() -> BTreeMap<String, String> {
        let names = ROUTERS.iter().chain(&STORAGE).map(|name| (*name).to_owned());
        names.zip(addresses(ROUTERS.len() + STORAGE.len())).collect()
    }

    fn lay_out(addresses: &BTreeMap<String, String>) -> Cluster {
        let directory = scratch();
        let description = describe(directory.path().join("cluster.toml"), addresses);
        let certificates = Certificates::make(directory.path(), "ours");
        let (views, metrics, processes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (suspect_after_ms, replication_factor) = (0, REPLICATION_FACTOR);
        Cluster {
            directory,
            description,
            views,
            certificates,
            metrics,
            processes,
            suspect_after_ms,
            replication_factor,
        }
    }

    fn run_all(&mut self) {
        for name in PROCESSES {
            self.run(name);
        }
    }

    fn command(&self, name: &str) -> std::process::Command {
        let (kind, number) = role(name);
        let mut command = carousel(&[kind, "--number", number, "--log", "info,openraft=error"]);
        let data = self.directory.path().join(name);
        command.arg("--data-dir").arg(data);
        if kind == "frontend" {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if self.replication_factor != REPLICATION_FACTOR {
            command.args(["--replication-factor", &self.replication_factor.to_string()]);
        }
        if kind == "router" {
            command.args(["--suspect-after-ms", &self.suspect_after_ms.to_string()]);
        }
        command
    }

    fn secured(&self, command: &mut std::process::Command, certificates: &Certificates) {
        command.arg("--tls-authority").arg(&certificates.authority);
        command.arg("--tls-certificate").arg(&certificates.certificate);
        command.arg("--tls-key").arg(&certificates.key);
    }

    fn spawn(&self, mut command: std::process::Command) -> Process {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let output = Lines::follow(child.stdout.take().unwrap());
        let log = Lines::follow(child.stderr.take().unwrap());
        Process { child, output, log }
    }

    /// Starts a process and waits until it runs.
    fn run(&mut self, name: &str) {
        let mut command = self.command(name);
        command.arg("--cluster").arg(self.views.get(name).unwrap_or(&self.description));
        self.secured(&mut command, &self.certificates);
        if let "r1" | "s1" | "c1" = name {
            let address = addresses(1).remove(0);
            command.args(["--metrics-listen", &address, "--log-format", "json"]);
            self.metrics.insert(name.to_owned(), address);
        }
        let process = self.spawn(command);
        process.output.expect(&["Carousel", name]);
        self.processes.insert(name.to_owned(), process);
    }

    /// Starts a process that asks a router for the description, and waits until it runs.
    fn join(&mut self, name: &str) {
        self.join_at(name, &addresses(1)[0], true);
    }

    fn join_at(&mut self, name: &str, address: &str, waits: bool) {
        let description = std::fs::read_to_string(&self.description).unwrap();
        let router = description.split('"').nth(3).expect("the first router's address").to_owned();
        let mut command = self.command(name);
        command.args(["--join", &router]);
        if !name.starts_with('c') {
            command.args(["--bind", address]);
        }
        self.secured(&mut command, &self.certificates);
        let process = self.spawn(command);
        if waits {
            process.output.expect(&["Carousel", name]);
        }
        self.processes.insert(name.to_owned(), process);
    }

    fn kill(&mut self, name: &str) {
        self.processes.remove(name).expect("it runs").kill();
    }

    fn url(&self, front_end: &str) -> String {
        let line = self.processes[front_end].output.expect(&["psql -h"]);
        let port = line.rsplit(' ').next().unwrap();
        format!("postgres://tester@127.0.0.1:{port}/carousel")
    }

    /// The metrics of a process, as Prometheus gets them.
    fn metrics(&self, name: &str) -> String {
        let mut stream = TcpStream::connect(&self.metrics[name]).expect("metrics are served");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let names = |word: &str| -> BTreeSet<&str> {
            text.lines().filter_map(|line| line.strip_prefix(word)?.split(' ').next()).collect()
        };
        assert_eq!(names("# TYPE "), names("# HELP "), "each says what it is");
        text
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the front end answers");
    tokio::spawn(connection);
    client
}

/// Inserts keys of its own and counts, until it is told to stop; gives what is known to be there.
async fn write(
    number: i64,
    url: String,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicI64>,
    history: Arc<History>,
) -> BTreeSet<i64> {
    let client = connect(&url).await;
    let mut inserted = BTreeSet::new();
    let mut key = number * 1_000_000;
    while !stop.load(Ordering::Relaxed) {
        key += 1;
        if client.execute(&format!("INSERT INTO kept VALUES ({key}, {number})"), &[]).await.is_ok() {
            inserted.insert(key);
            written.fetch_add(1, Ordering::Relaxed);
        }
        let count = format!("UPDATE counters SET n = {key} WHERE id = {number}");
        let ts = match client.execute(&count, &[]).await {
            Ok(_) => Some(last_ts(&client).await),
            Err(_) => None,
        };
        history.wrote(number as usize, key, ts);
    }
    inserted
}

/// Reads a table again and again until it is told to stop. The answer has several batches from several processes, and
/// is short enough to be run again when one of them is lost: no read fails.
async fn read(url: String, stop: Arc<AtomicBool>, history: Arc<History>) -> usize {
    let client = connect(&url).await;
    let mut reads = 0;
    while !stop.load(Ordering::Relaxed) {
        let rows = client.query("SELECT id FROM still", &[]).await.expect("no read fails");
        assert_eq!(rows.len(), STILL as usize);
        read_counters(&client, &history).await;
        reads += 1;
    }
    reads
}

async fn read_counters(client: &Client, history: &History) {
    let counters = client.query("SELECT n FROM counters ORDER BY id", &[]).await.expect("no read fails");
    history.read(last_ts(client).await, counters.iter().map(|row| row.get(0)).collect());
}

async fn progress(written: &AtomicI64, more: i64) {
    let target = written.load(Ordering::Relaxed) + more;
    while written.load(Ordering::Relaxed) < target {
        tokio::task::yield_now().await;
        std::thread::yield_now();
    }
}

/// Lets something happen to a cluster while clients write and read, and checks that nothing is lost and no read fails.
async fn under_load(cluster: &mut Cluster, happens: impl AsyncFnOnce(&mut Cluster, &AtomicI64, &Client)) {
    let urls = [cluster.url("c1"), cluster.url("c2")];
    let clients = [connect(&urls[0]).await, connect(&urls[1]).await];
    for sql in [
        "CREATE TABLE kept (id bigint PRIMARY KEY, writer integer)",
        "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint)",
        "CREATE TABLE keyless (n bigint)",
        "CREATE TABLE still (id bigint PRIMARY KEY)",
        "INSERT INTO counters VALUES (0, 0), (1, 0)",
    ] {
        clients[0].execute(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let rows: Vec<String> = (0..STILL).map(|id| format!("({id})")).collect();
    let insert = format!("INSERT INTO still VALUES {}", rows.join(", "));
    clients[0].execute(&insert, &[]).await.expect("the rows are inserted");
    let stop = Arc::new(AtomicBool::new(false));
    let (written, history) = (Arc::new(AtomicI64::new(0)), Arc::new(History::default()));
    let writers = [0, 1].map(|number| {
        let url = urls[number].clone();
        tokio::spawn(write(number as i64, url, stop.clone(), written.clone(), history.clone()))
    });
    let readers =
        [0, 1].map(|number| tokio::spawn(read(urls[number].clone(), stop.clone(), history.clone())));
    progress(&written, 20).await;
    happens(cluster, &written, &clients[0]).await;
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.expect("no read fails") > 0);
    }
    let mut known = BTreeSet::new();
    for writer in writers {
        known.extend(writer.await.expect("the writer saw nothing impossible"));
    }
    for client in &clients {
        read_counters(client, &history).await;
    }
    Arc::into_inner(history).expect("everybody has ended").check();
    for client in &clients {
        let rows = client.query("SELECT id FROM kept", &[]).await.expect("the rows can be read");
        let found: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        let lost: Vec<_> = known.difference(&found).collect();
        assert!(lost.is_empty(), "acknowledged, but lost: {lost:?}");
        // Rows without a key of their own get identifiers from either front end.
        client.execute("INSERT INTO keyless VALUES (1), (2), (3)", &[]).await.expect("they are inserted");
    }
    let row = clients[1].query_one("SELECT count(*) FROM keyless", &[]).await.expect("they are counted");
    assert_eq!(row.get::<_, i64>(0), 6);
}

async fn killed(cluster: &mut Cluster, written: &AtomicI64, _: &Client) {
    // One of the routers leads.
    for name in ["r1", "s2", "r2", "s3", "r3"] {
        cluster.kill(name);
        progress(written, 10).await;
        cluster.run(name);
        progress(written, 10).await;
    }
}

/// Waits until a query answers true.
async fn until(client: &Client, query: &str) {
    loop {
        let row = client.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
        if row.get(0) {
            return;
        }
    }
}

/// A storage process dies, a standby takes its place by itself, and what comes back is a standby.
async fn healed(cluster: &mut Cluster, written: &AtomicI64, client: &Client) {
    cluster.join("s5");
    until(client, "SELECT count(*) = 1 FROM carousel.storage WHERE storage = 's5' AND state = 'standby'")
        .await;
    cluster.kill("s2");
    until(client, "SELECT count(*) = 1 FROM carousel.ring WHERE storage = 's5'").await;
    until(client, "SELECT count(*) = 0 FROM carousel.migrations").await;
    progress(written, 10).await;
    cluster.run("s2");
    until(client, "SELECT count(*) = 1 FROM carousel.storage WHERE storage = 's2' AND state = 'standby'")
        .await;
    client.execute("ALTER CLUSTER EXPAND WITH s2", &[]).await.expect("it is a standby");
    until(client, "SELECT count(*) = 0 FROM carousel.migrations").await;
    progress(written, 10).await;
}

/// A router is added, one that is dead and the one that leads are removed; the cluster goes on with those that stay.
async fn rerouted(cluster: &mut Cluster, written: &AtomicI64, client: &Client) {
    let address = addresses(1).remove(0);
    cluster.join_at("r4", &address, false);
    let add = format!("ALTER CLUSTER ADD ROUTER r4 AT '{address}'");
    client.batch_execute(&add).await.expect("it is added");
    cluster.processes["r4"].output.expect(&["Carousel", "r4"]);
    until(client, "SELECT count(*) = 4 FROM carousel.routers WHERE votes AND address IS NOT NULL").await;
    progress(written, 10).await;
    cluster.kill("r2");
    client.batch_execute("ALTER CLUSTER REMOVE ROUTER r2").await.expect("the others agree");
    progress(written, 10).await;
    until(client, "SELECT count(*) = 1 FROM carousel.routers WHERE leads").await;
    let row = client.query_one("SELECT router FROM carousel.routers WHERE leads", &[]).await;
    let leader: String = row.expect("one leads").get(0);
    let remove = format!("ALTER CLUSTER REMOVE ROUTER {leader}");
    client.batch_execute(&remove).await.expect("the others agree");
    cluster.processes[&leader].log.expect(&["has been removed from the cluster"]);
    progress(written, 10).await;
    let refused = client.batch_execute("ALTER CLUSTER REMOVE ROUTER r9").await.expect_err("there is none");
    assert_eq!(refused.code().map(|code| code.code()), Some("42704"));
}

#[test]
fn routers_come_and_go_under_load() {
    let mut cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let test = under_load(&mut cluster, rerouted);
        tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
    });
}

#[test]
fn a_standby_replaces_a_dead_storage_process() {
    let mut cluster = Cluster::lay_out(&Cluster::addresses());
    cluster.suspect_after_ms = 1_000;
    cluster.run_all();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let test = under_load(&mut cluster, healed);
        tokio::time::timeout(PATIENCE, test).await.expect("the cluster heals");
    });
}

/// Statements of one front end about a table that another one replaces meanwhile, with other columns each time.
async fn tables_are_replaced(replacing: &Client, reading: &Client) {
    let stop = AtomicBool::new(false);
    let replace = async {
        for round in 0..30 {
            let columns = ["a bigint, b text", "a text"][round % 2];
            let create = format!("CREATE TABLE replaced ({columns})");
            for sql in [&create, "DROP TABLE replaced"] {
                replacing.execute(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            }
        }
        stop.store(true, Ordering::Relaxed);
    };
    let read = async {
        while !stop.load(Ordering::Relaxed) {
            // There may be none at the moment; but what there is can be read.
            if let Err(error) = reading.simple_query("SELECT * FROM replaced").await {
                assert_eq!(error.code(), Some(&SqlState::UNDEFINED_TABLE), "{error:?}");
            }
        }
    };
    tokio::join!(replace, read);
}

fn strangers_are_refused(cluster: &Cluster) {
    // A process of another cluster.
    let mut other = cluster.command("c3");
    other.arg("--cluster").arg(&cluster.description).args(["--cluster-name", "other"]);
    cluster.secured(&mut other, &cluster.certificates);
    let other = cluster.spawn(other);
    other.log.expect(&["cannot connect", "belongs to the cluster 'other'", "'test'"]);
    cluster.processes["r2"].log.expect(&["c3", "belongs to the cluster 'other'"]);

    // One with the certificate of another authority, and one with none.
    let theirs = Certificates::make(cluster.directory.path(), "theirs");
    let mut forger = cluster.command("c4");
    forger.arg("--cluster").arg(&cluster.description);
    let trusting = Certificates { authority: cluster.certificates.authority.clone(), ..theirs };
    cluster.secured(&mut forger, &trusting);
    let forger = cluster.spawn(forger);
    forger.log.expect(&["cannot connect", "alert"]);
    cluster.processes["r2"].log.expect(&["a connection was refused", "certificate"]);
    let mut open = cluster.command("c5");
    open.arg("--cluster").arg(&cluster.description);
    let open = cluster.spawn(open);
    open.log.expect(&["cannot connect", "TLS"]);

    // A copy of a front end's directory.
    let mut twin = cluster.command("c2");
    twin.arg("--cluster").arg(&cluster.description);
    cluster.secured(&mut twin, &cluster.certificates);
    let line = refusal(&mut twin);
    assert!(line.contains("in use by another process"), "{line}");
}

#[test]
fn separate_processes_lose_nothing_and_keep_strangers_out() {
    let mut cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let test = under_load(&mut cluster, killed);
        tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
        let [replacing, reading] = [cluster.url("c1"), cluster.url("c2")];
        tables_are_replaced(&connect(&replacing).await, &connect(&reading).await).await;
    });
    strangers_are_refused(&cluster);
    cluster.join("c6");
    let url = cluster.url("c6");
    runtime.block_on(async {
        let rows = connect(&url).await.query("SELECT id FROM counters", &[]).await.expect("they can be read");
        assert_eq!(rows.len(), 2);
    });
    for (name, metric) in [
        ("r1", "carousel_mseq_ts"),
        ("r1", "carousel_router_leading"),
        ("r1", "carousel_transport_sent_bytes_total"),
        ("s1", "carousel_storage_executed_ts"),
        ("s1", "carousel_storage_memory_bytes"),
        ("s1", "carousel_scan_revolutions_total"),
        ("r1", "carousel_router_log_sync_seconds_bucket{process=\"r1\",le=\"0.0001\"}"),
        ("r1", "carousel_process_step_seconds_count{process=\"r1\"}"),
        ("s1", "carousel_process_step_seconds_count{process=\"s1\"}"),
        ("s1", "carousel_scan_revolution_seconds_bucket{thread=\"s1 scan 1\""),
        ("c1", "carousel_transport_received_bytes_total"),
        ("c1", "carousel_frontend_statement_seconds_bucket{kind=\"select\""),
        ("c1", "carousel_frontend_sessions"),
    ] {
        let text = cluster.metrics(name);
        assert!(text.contains(metric), "{name} has no {metric}:\n{text}");
    }
    let told = ["r1", "s1", "c1"].map(|name| cluster.metrics(name)).concat();
    let dashboard = include_str!("../../../docker/grafana/carousel.json");
    let metrics = dashboard.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    for metric in metrics.filter(|word| word.starts_with("carousel_")) {
        assert!(told.contains(&format!("\n{metric}")), "the dashboard shows {metric}, which nobody tells");
    }
    let json = cluster.processes["r1"].log.expect(&["\"level\":\"INFO\"", "\"message\":\"connected\""]);
    assert!(json.starts_with('{') && json.ends_with('}'), "{json}");
}

#[test]
fn a_process_that_cannot_run_says_why() {
    let directory = scratch();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = addresses(3);
    let (router, storage) = (free[0].as_str(), format!("{},{}", free[1], free[2]));
    let all = ["--router-addresses", router, "--storage-addresses", &storage];
    let missing = directory.path().join("missing.pem");
    let cases = [
        (&["router"][..], "routers"),
        (&["router", "--router-addresses", "nonsense", "--storage-addresses", &storage], "HOST:PORT"),
        (
            &["router", "--number", "2", all[0], all[1], all[2], all[3]],
            "r2 is not in the cluster's description",
        ),
        (&["router", "--bind", &taken, all[0], all[1], all[2], all[3]], "already in use"),
        (
            &["storage", "--number", "9", "--bind", "0.0.0.0:1", all[0], all[1], all[2], all[3]],
            "others can reach it",
        ),
        (&["storage", "--number", "9", "--bind", "h:0", all[0], all[1], all[2], all[3]], "--bind 'h:0' is"),
        (&["storage", "--number", "9", "--bind", ":7201", all[0], all[1], all[2], all[3]], "HOST:PORT"),
        (&["storage", "--replication-factor", "3", all[0], all[1], all[2], all[3]], "factor"),
        (&["storage", "--tls-key", path(&missing), all[0], all[1], all[2], all[3]], "go together"),
        (
            &[
                "storage",
                "--tls-key",
                path(&missing),
                "--tls-authority",
                path(&missing),
                "--tls-certificate",
                path(&missing),
                all[0],
                all[1],
                all[2],
                all[3],
            ],
            "missing.pem",
        ),
        (&["frontend", "--number", "0", all[0], all[1], all[2], all[3]], "numbers from 1"),
        (&["frontend", "--join", &free[0], "--log", "error"], "cannot join by"),
        (&["frontend", "--listen", "0.0.0.0:1", all[0], all[1], all[2], all[3]], "loopback"),
        (&["router", "--metrics-listen", &taken, all[0], all[1], all[2], all[3]], "metrics"),
        (&["router", "--cluster", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["router", "--number", "65537", all[0], all[1], all[2], all[3]], "from 1 to 65536"),
        (&["router", "--suspect-after-ms", "499", all[0], all[1], all[2], all[3]], "at least 500, or 0"),
        (
            &[
                "storage",
                "--memory-reserve",
                "2GiB",
                "--memory-limit",
                "1GiB",
                all[0],
                all[1],
                all[2],
                all[3],
            ],
            "--memory-reserve is more",
        ),
    ];
    for (number, (arguments, part)) in cases.into_iter().enumerate() {
        let data = directory.path().join(number.to_string());
        let line = refusal(carousel(arguments).args(["--data-dir", path(&data)]));
        assert!(line.contains(part), "{arguments:?}: {line}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_storage_process_takes_memory_when_it_starts() {
    let cluster = Cluster::lay_out(&Cluster::addresses());
    let mut command = cluster.command("s1");
    command.arg("--cluster").arg(&cluster.description).args(["--memory-reserve", "128MiB"]);
    cluster.secured(&mut command, &cluster.certificates);
    let process = cluster.spawn(command);
    process.output.expect(&["Carousel s1"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib >= 128 << 10, "{kib} KiB are resident");
}

#[test]
fn flags_of_a_process_override_variables_which_override_its_file() {
    let directory = scratch();
    let file = directory.path().join("router.toml");
    std::fs::write(&file, "number = 7\n").unwrap();
    // Which number was taken is told, as the description has one router only.
    let taken = |variable: Option<&str>, flag: &[&str]| {
        let mut command =
            carousel(&["router", "--router-addresses", "h:1", "--storage-addresses", "h:2,h:3"]);
        command.args(flag).args(["--data-dir", path(directory.path())]).env("CAROUSEL_CONFIG", &file);
        if let Some(value) = variable {
            command.env("CAROUSEL_NUMBER", value);
        }
        refusal(&mut command)
    };
    assert!(taken(None, &[]).contains("r7 is not in"));
    assert!(taken(Some("8"), &[]).contains("r8 is not in"));
    assert!(taken(Some("8"), &["--number", "9"]).contains("r9 is not in"));
    // So are variables of the description, and a file of it.
    let description = directory.path().join("cluster.toml");
    std::fs::write(&description, "replication-factor = 5\nrouters = [\"h:1\"]\nstorage = [\"h:2\"]\n")
        .unwrap();
    let mut described = carousel(&["storage", "--data-dir", path(directory.path())]);
    described.env("CAROUSEL_CLUSTER", &description);
    assert!(refusal(&mut described).contains("factor 5"), "{}", refusal(&mut described));
    described.env("CAROUSEL_REPLICATION_FACTOR", "6");
    assert!(refusal(&mut described).contains("factor 6"), "{}", refusal(&mut described));
}

#[test]
fn a_flag_overrides_the_variable_of_what_stands_in_its_place() {
    let directory = scratch();
    let description = directory.path().join("cluster.toml");
    std::fs::write(&description, "replication-factor = 5\nrouters = [\"h:1\"]\nstorage = [\"h:2\"]\n")
        .unwrap();
    let told = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = carousel(&["router", "--data-dir", path(directory.path())]);
        refusal(command.args(flags).envs(variables.iter().copied()))
    };
    let (cluster, join) = (("CAROUSEL_CLUSTER", path(&description)), ("CAROUSEL_JOIN", "h:1"));
    assert!(told(&["--cluster", cluster.1], &[join]).contains("factor 5"));
    assert!(told(&["--cluster", cluster.1], &[cluster, join]).contains("factor 5"));
    // Nobody is asked who cannot be one of its routers.
    assert!(told(&["--join", join.1, "--number", "0"], &[cluster]).contains("--number must be"));
    assert!(told(&["--cluster", cluster.1, "--join", join.1], &[]).contains("cannot be used with"));
    assert!(told(&[], &[cluster, join]).contains("cannot be used with"));
}

#[test]
fn who_has_joined_starts_again_without_the_process_that_it_joined_by() {
    let mut cluster = Cluster::lay_out(&Cluster::addresses());
    cluster.run_all();
    let description = std::fs::read_to_string(&cluster.description).unwrap();
    let router = description.split('"').nth(3).expect("the first router's address").to_owned();
    let working = cluster.directory.path().join("working");
    std::fs::create_dir(&working).unwrap();
    // In the directory that a process has when it is told none.
    let start = |cluster: &Cluster| {
        let mut command =
            carousel(&["frontend", "--number", "7", "--join", &router, "--listen", "127.0.0.1:0"]);
        command.current_dir(&working);
        cluster.secured(&mut command, &cluster.certificates);
        let process = cluster.spawn(command);
        process.output.expect(&["Carousel c7 is listening"]);
        process
    };
    start(&cluster).kill();
    // An address that was added under another number is told, for nobody can add it again.
    let other = description.split('"').nth(5).expect("the second router's address");
    let mut second = carousel(&["router", "--number", "5", "--join", &router, "--bind", other]);
    second.args(["--log", "error"]).current_dir(&working);
    cluster.secured(&mut second, &cluster.certificates);
    assert!(refusal(&mut second).contains(&format!("{other} was added as r2, but this is r5")));
    assert!(working.join("carousel-data/c7/cluster.toml").exists());
    cluster.kill("r1");
    let again = start(&cluster);
    again.log.expect(&["cannot join by", "going on with what is known from before"]);
}
