//! Processes that die under load: nothing acknowledged is lost, nothing refused has happened, nothing is half done.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use carousel_sqllogictest::session::connect;
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::server::{FULL, SMALL, Server, Shape};

const WRITERS: i64 = 4;
/// Rows of the table whose rows are all updated by one statement.
const SPREAD_ROWS: i64 = 40;
/// A test that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(150);

/// What a client knows about a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Refused,
    /// The answer was lost, or said that the outcome is not known (class 08).
    Unknown,
}

fn fate(result: Result<u64, tokio_postgres::Error>) -> Fate {
    match result {
        Ok(_) => Fate::Acknowledged,
        Err(error) => match error.as_db_error() {
            Some(error) if !error.code().code().starts_with("08") => Fate::Refused,
            _ => Fate::Unknown,
        },
    }
}

/// What one writer did.
#[derive(Debug, Default)]
struct Ledger {
    /// Keys whose insertion was acknowledged.
    inserted: BTreeSet<i64>,
    /// Keys that may be there or not.
    uncertain: BTreeSet<i64>,
    /// Increments of the writer's own counter: acknowledged, and of unknown fate.
    counted: (i64, i64),
    /// Increments of the rows that are always updated together.
    spread: (i64, i64),
}

fn tally(counts: &mut (i64, i64), fate: Fate) {
    match fate {
        Fate::Acknowledged => counts.0 += 1,
        Fate::Refused => {}
        Fate::Unknown => counts.1 += 1,
    }
}

/// A client that gets a new connection when it has lost one.
struct Writer {
    url: watch::Receiver<String>,
    client: Option<Client>,
}

impl Writer {
    async fn execute(&mut self, sql: &str) -> Fate {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let url = self.url.borrow().clone();
            self.client = connect(&url).await.ok().map(|(client, _)| client);
        }
        match &self.client {
            Some(client) => fate(client.execute(sql, &[]).await),
            None => {
                // Nobody listens: let others run before the next attempt.
                tokio::task::yield_now().await;
                Fate::Refused
            }
        }
    }
}

/// Writes until it is told to stop, reporting every acknowledged statement.
async fn write(
    number: i64,
    url: watch::Receiver<String>,
    stop: Arc<AtomicBool>,
    progress: watch::Sender<u64>,
) -> Ledger {
    let mut writer = Writer { url, client: None };
    let mut ledger = Ledger::default();
    let mut next = number * 1_000_000;
    while !stop.load(Ordering::Relaxed) {
        next += 3;
        let inserted = writer.execute(&format!("INSERT INTO kept VALUES ({next}, {number})")).await;
        match inserted {
            Fate::Acknowledged => drop(ledger.inserted.insert(next)),
            Fate::Refused => {}
            Fate::Unknown => drop(ledger.uncertain.insert(next)),
        }
        // The second key exists, so that the first one must never appear.
        if inserted == Fate::Acknowledged {
            let sql = format!("INSERT INTO kept VALUES ({}, -1), ({next}, -1)", next + 1);
            let refused = writer.execute(&sql).await;
            assert_ne!(refused, Fate::Acknowledged, "a duplicate key was accepted: {sql}");
        }
        let sql = format!("UPDATE counters SET n = n + 1 WHERE id = {number}");
        tally(&mut ledger.counted, writer.execute(&sql).await);
        let spread = writer.execute("UPDATE spread SET n = n + 1").await;
        tally(&mut ledger.spread, spread);
        if spread == Fate::Acknowledged {
            progress.send_modify(|count| *count += 1);
        }
    }
    ledger
}

/// The load on a server, and what its clients know.
struct Load {
    url: watch::Sender<String>,
    stop: Arc<AtomicBool>,
    progress: watch::Receiver<u64>,
    writers: Vec<tokio::task::JoinHandle<Ledger>>,
}

impl Load {
    async fn start(server: &Server) -> Load {
        let (client, _) = connect(&server.url).await.expect("the server accepts a connection");
        let rows =
            |from: i64, to: i64| (from..to).map(|id| format!("({id}, 0)")).collect::<Vec<_>>().join(", ");
        for sql in [
            "CREATE TABLE kept (id bigint PRIMARY KEY, writer integer)".to_owned(),
            "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint)".to_owned(),
            "CREATE TABLE spread (id bigint PRIMARY KEY, n bigint)".to_owned(),
            format!("INSERT INTO counters VALUES {}", rows(0, WRITERS)),
            format!("INSERT INTO spread VALUES {}", rows(0, SPREAD_ROWS)),
        ] {
            client.execute(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        let (url, urls) = watch::channel(server.url.clone());
        let (sender, progress) = watch::channel(0);
        let stop = Arc::new(AtomicBool::new(false));
        let writers = (0..WRITERS)
            .map(|number| tokio::spawn(write(number, urls.clone(), stop.clone(), sender.clone())))
            .collect();
        Load { url, stop, progress, writers }
    }

    /// Waits until this many more statements have been acknowledged.
    async fn progress(&mut self, more: u64) {
        let target = *self.progress.borrow() + more;
        self.progress.wait_for(|count| *count >= target).await.expect("the writers are at work");
    }

    /// Ends the load and compares what is there with what the clients know.
    async fn check(self, server: &Server) {
        self.stop.store(true, Ordering::Relaxed);
        let mut ledgers = Vec::new();
        for writer in self.writers {
            ledgers.push(writer.await.expect("no writer saw anything impossible"));
        }
        let (client, _) = connect(&server.url).await.expect("the server accepts a connection");
        let found: BTreeSet<i64> = client
            .query("SELECT id FROM kept", &[])
            .await
            .expect("the rows can be read")
            .iter()
            .map(|row| row.get(0))
            .collect();
        let kept: BTreeSet<i64> = ledgers.iter().flat_map(|l| l.inserted.iter().copied()).collect();
        let allowed: BTreeSet<i64> =
            ledgers.iter().flat_map(|l| l.uncertain.iter().copied()).chain(kept.iter().copied()).collect();
        let lost: Vec<_> = kept.difference(&found).collect();
        assert!(lost.is_empty(), "acknowledged, but lost: {lost:?}");
        let invented: Vec<_> = found.difference(&allowed).collect();
        assert!(invented.is_empty(), "refused, but there: {invented:?}");

        for (number, ledger) in (0..).zip(&ledgers) {
            let row = client
                .query_one(&format!("SELECT n FROM counters WHERE id = {number}"), &[])
                .await
                .expect("the counter can be read");
            within("a counter", row.get(0), ledger.counted);
        }
        let row = client
            .query_one("SELECT min(n), max(n), count(*) FROM spread", &[])
            .await
            .expect("the rows can be read");
        let (least, most, count): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(count, SPREAD_ROWS);
        assert_eq!(least, most, "an update took effect in some rows only");
        let total = ledgers.iter().fold((0, 0), |sum, l| (sum.0 + l.spread.0, sum.1 + l.spread.1));
        within("the rows updated together", least, total);
    }
}

fn within(what: &str, found: i64, (acknowledged, unknown): (i64, i64)) {
    assert!(
        (acknowledged..=acknowledged + unknown).contains(&found),
        "{what}: {found}, with {acknowledged} acknowledged increments and {unknown} of unknown fate"
    );
}

async fn in_time(test: impl Future<Output = ()>) {
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_processes_die_and_come_back_under_load() {
    in_time(async {
        let server = Server::start(FULL).await;
        let mut load = Load::start(&server).await;
        for storage in 1..=FULL.storage {
            load.progress(8).await;
            server.cluster.kill_storage(storage).await;
            load.progress(8).await;
            server.cluster.restart_storage(storage).await.expect("it starts again");
        }
        load.progress(8).await;
        load.check(&server).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_die_and_come_back_under_load() {
    in_time(async {
        let server = Server::start(FULL).await;
        let mut load = Load::start(&server).await;
        for router in 1..=FULL.routers {
            load.progress(8).await;
            server.cluster.kill_router(router).await;
            load.progress(8).await;
            server.cluster.restart_router(router).await.expect("it starts again");
        }
        load.progress(8).await;
        load.check(&server).await;
    })
    .await;
}

async fn everything_dies(shape: Shape) {
    in_time(async {
        let mut server = Server::start(shape).await;
        let mut load = Load::start(&server).await;
        for _ in 0..3 {
            load.progress(8).await;
            server = server.crash_and_start(shape).await;
            load.url.send_replace(server.url.clone());
        }
        load.progress(8).await;
        load.check(&server).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_dies_at_once_in_the_small_shape() {
    everything_dies(SMALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_dies_at_once_in_the_full_shape() {
    everything_dies(FULL).await;
}
