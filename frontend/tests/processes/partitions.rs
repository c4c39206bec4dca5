//! The network between the processes is cut and mended under load: every process reaches every other through a link of
//! its own, which can stop carrying bytes in either direction without closing a connection, as a network does.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
};
use tokio_postgres::Client;

use super::{
    Cluster, PATIENCE, REPLICATION_FACTOR, ROUTERS, STORAGE, connect,
    history::{History, last_ts},
    until,
};

/// Accounts between which money is moved; all of it together stays 0.
const ACCOUNTS: i64 = 16;
/// Writers at each front end.
const WRITERS: usize = 2;

/// Which directions of a link carry bytes: from the process that connects, and to it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Open {
    out: bool,
    back: bool,
}

/// Links from each process (the first name) to each router and storage process (the second).
pub(super) struct Links {
    gates: BTreeMap<(String, String), watch::Sender<Open>>,
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut gate: watch::Receiver<Open>,
    carries: fn(&Open) -> bool,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await {
        // Also the end of a connection is not known at the other side while nothing is carried there.
        if gate.wait_for(carries).await.is_err() || read == 0 || to.write_all(&buffer[..read]).await.is_err()
        {
            break;
        }
    }
    // The other side may have gone.
    let _ = to.shutdown().await;
}

async fn carry(near: TcpStream, target: String, gate: watch::Receiver<Open>) {
    // Nobody listens there: the connection ends, as it would without the link.
    let Ok(far) = TcpStream::connect(target).await else { return };
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    tokio::join!(
        pump(near_in, far_out, gate.clone(), |open| open.out),
        pump(far_in, near_out, gate, |open| open.back),
    );
}

impl Links {
    /// Links to `addresses`, by name, from each of `processes`, and the addresses that each of them has to use.
    pub(super) async fn lay(
        processes: &[&str],
        addresses: &BTreeMap<String, String>,
    ) -> (Links, BTreeMap<String, BTreeMap<String, String>>) {
        let (mut gates, mut seen_by) = (BTreeMap::new(), BTreeMap::new());
        for process in processes {
            let mut seen = addresses.clone();
            for (remote, target) in addresses.iter().filter(|(remote, _)| remote != process) {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
                let address = listener.local_addr().expect("it listens").to_string();
                seen.insert(remote.clone(), address);
                let (gate, watched) = watch::channel(Open { out: true, back: true });
                gates.insert(((*process).to_owned(), remote.clone()), gate);
                let target = target.clone();
                tokio::spawn(async move {
                    while let Ok((near, _)) = listener.accept().await {
                        tokio::spawn(carry(near, target.clone(), watched.clone()));
                    }
                });
            }
            seen_by.insert((*process).to_owned(), seen);
        }
        (Links { gates }, seen_by)
    }

    /// Nothing gets from any of `from` to any of `to` any more.
    fn cut(&self, from: &[&str], to: &[&str]) {
        for ((near, far), gate) in &self.gates {
            let (near, far) = (near.as_str(), far.as_str());
            gate.send_modify(|open| {
                open.out &= !(from.contains(&near) && to.contains(&far));
                open.back &= !(from.contains(&far) && to.contains(&near));
            });
        }
    }

    /// Everything gets everywhere again.
    fn mend(&self) {
        for gate in self.gates.values() {
            gate.send_replace(Open { out: true, back: true });
        }
    }
}

/// What the writers have been told was done, for each of them the last value, and whether they should stop.
#[derive(Default)]
struct Load {
    history: History,
    done: [AtomicI64; 2 * WRITERS],
    more: Notify,
    stop: AtomicBool,
}

impl Load {
    fn done(&self, writers: std::ops::Range<usize>) -> i64 {
        self.done[writers].iter().map(|done| done.load(Ordering::SeqCst)).sum()
    }

    /// Waits until these writers have done some more.
    async fn progress(&self, writers: std::ops::Range<usize>) {
        let target = self.done(writers.clone()) + 10;
        loop {
            let more = self.more.notified();
            if self.done(writers.clone()) >= target {
                return;
            }
            more.await;
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

/// The statement's number of rows, or nothing when it failed as a statement may while processes do not reach one
/// another. The connection to the front end itself is never cut.
fn rows(result: Result<u64, tokio_postgres::Error>) -> Option<u64> {
    result.map_err(|error| assert!(error.as_db_error().is_some(), "the connection ended: {error:?}")).ok()
}

/// Counts, and moves money between accounts of different storage processes.
async fn write(writer: usize, url: String, load: Arc<Load>) {
    let client = connect(&url).await;
    let mut step = 0;
    while load.goes_on() {
        step += 1;
        let (from, to) = ((step + writer as i64) % ACCOUNTS, (step * 7 + 3) % ACCOUNTS);
        if from != to {
            let moved = format!(
                "UPDATE accounts SET money = money + CASE id WHEN {from} THEN -1 ELSE 1 END WHERE id IN ({from}, {to})"
            );
            assert!(matches!(rows(client.execute(&moved, &[]).await), None | Some(2)), "half of a write");
        }
        let count = format!("UPDATE counters SET n = {step} WHERE id = {writer}");
        match rows(client.execute(&count, &[]).await) {
            Some(affected) => {
                assert_eq!(affected, 1);
                load.history.wrote(writer, step, Some(last_ts(&client).await));
                load.done[writer].store(step, Ordering::SeqCst);
                load.more.notify_waiters();
            }
            None => load.history.wrote(writer, step, None),
        }
    }
}

/// Reads what has been acknowledged: at either front end under `sequential`, at the one that has told so under any level;
/// never half of a write, except under `basic`; and never less than before.
async fn read(front_end: usize, url: String, isolation: &str, load: Arc<Load>) -> u64 {
    let client = connect(&url).await;
    let setting = format!("SET carousel.read_isolation = {isolation}");
    client.batch_execute(&setting).await.expect("there is such a level");
    let is_consistent = isolation != "basic";
    let acknowledged = match isolation {
        "sequential" => 0..2 * WRITERS,
        _ => front_end * WRITERS..(front_end + 1) * WRITERS,
    };
    let mut answered = 0;
    let mut last = vec![0; 2 * WRITERS];
    while load.goes_on() {
        if let Ok(row) = client.query_one("SELECT count(*), sum(money)::bigint FROM accounts", &[]).await {
            let (count, sum): (i64, i64) = (row.get(0), row.get(1));
            assert!(
                count == ACCOUNTS && (sum == 0 || !is_consistent),
                "half of a write under {isolation} at front end {front_end}, behind {answered} reads: {count} accounts, \
                 sum {sum}"
            );
            answered += 1;
        }
        let before = load.done.each_ref().map(|done| done.load(Ordering::SeqCst));
        if let Ok(counters) = client.query("SELECT n FROM counters ORDER BY id", &[]).await {
            let counters: Vec<i64> = counters.iter().map(|row| row.get(0)).collect();
            let is_fresh = acknowledged.clone().all(|writer| counters[writer] >= before[writer]);
            assert!(is_fresh, "{isolation}: {before:?} was acknowledged, {counters:?} is seen");
            let goes_on = counters.iter().zip(&last).all(|(n, last)| n >= last);
            assert!(goes_on, "{isolation}: {counters:?} after {last:?}");
            last.clone_from(&counters);
            if is_consistent {
                load.history.read(last_ts(&client).await, counters);
            }
        }
    }
    answered
}

/// Cuts the network in every way that matters, and mends it.
async fn cut_under_load(cluster: &Cluster, links: &Links, load: &Load) {
    let (all, ones, twos) = (0..2 * WRITERS, 0..WRITERS, WRITERS..2 * WRITERS);
    let everybody: Vec<&str> = cluster.processes.keys().map(String::as_str).collect();
    let others = |name: &str| everybody.iter().copied().filter(|other| *other != name).collect::<Vec<_>>();
    load.progress(all.clone()).await;
    // One of the routers leads: the others choose another when it cannot be reached …
    for router in ROUTERS {
        links.cut(&[router], &others(router));
        links.cut(&others(router), &[router]);
        load.progress(all.clone()).await;
        links.mend();
        load.progress(all.clone()).await;
    }
    // … or when only half of its words get through.
    for router in ROUTERS {
        links.cut(&[router], &others(router));
        load.progress(all.clone()).await;
        links.mend();
        load.progress(all.clone()).await;
    }
    // A front end that reaches nobody waits; the other does not.
    links.cut(&["c1"], &others("c1"));
    links.cut(&others("c1"), &["c1"]);
    load.progress(twos.clone()).await;
    links.mend();
    load.progress(ones.clone()).await;
    // A storage process that hears nothing, and one that is not heard: writes to its rows wait until it is back.
    for storage in STORAGE {
        let lost = cluster.processes[storage].log.count(&["the connection was lost"]);
        match storage {
            "s1" | "s2" => links.cut(&others(storage), &[storage]),
            _ => links.cut(&[storage], &others(storage)),
        }
        cluster.processes[storage].log.more_than(lost, &["the connection was lost"]);
        links.mend();
        load.progress(all.clone()).await;
    }
    // Two halves, neither of which has all rows.
    let half = ["r1", "s1", "s2", "c1"];
    let rest: Vec<&str> = everybody.iter().copied().filter(|name| !half.contains(name)).collect();
    let lost = cluster.processes["s1"].log.count(&["the connection was lost"]);
    links.cut(&half, &rest);
    links.cut(&rest, &half);
    cluster.processes["s1"].log.more_than(lost, &["the connection was lost"]);
    links.mend();
    load.progress(ones).await;
    load.progress(twos).await;
}

/// Storage processes that live are cut off for so long that they are suspected: the others answer for them meanwhile, and
/// what they say has no effect. They end when they hear of it, and come back without data.
async fn suspect_under_load(cluster: &mut Cluster, links: &Links, load: &Load, client: &Client) {
    let all = 0..2 * WRITERS;
    load.progress(all.clone()).await;
    let everybody: Vec<String> = cluster.processes.keys().filter(|name| *name != "s3").cloned().collect();
    let everybody: Vec<&str> = everybody.iter().map(String::as_str).collect();
    // One that front ends reach, but no router does, would answer basic reads from the past; the other reaches nobody.
    for (process, from, is_reached) in [("s2", &ROUTERS[..], true), ("s3", &everybody, false)] {
        links.cut(&[process], from);
        links.cut(from, &[process]);
        let is = |state: &str, is_reached: bool| {
            let has_row = "SELECT count(*) = 1 FROM carousel.storage WHERE storage";
            format!("{has_row} = '{process}' AND state = '{state}' AND reachable = {is_reached}")
        };
        until(client, &is("suspected", is_reached)).await;
        load.progress(all.clone()).await;
        load.progress(all.clone()).await;
        links.mend();
        cluster.processes[process].log.expect(&[process, "it is suspected of having failed"]);
        cluster.kill(process);
        cluster.run(process);
        until(client, &is("active", true)).await;
        until(client, "SELECT count(*) = 0 FROM carousel.migrations").await;
        load.progress(all.clone()).await;
    }
}

/// Lets something happen to a cluster with links while clients move money and count, and checks what they were told.
async fn under_load(
    cluster: &mut Cluster,
    links: &Links,
    happens: impl AsyncFnOnce(&mut Cluster, &Links, &Load, &Client),
) {
    let urls = [cluster.url("c1"), cluster.url("c2")];
    let client = connect(&urls[0]).await;
    let zeros = |count: i64| (0..count).map(|id| format!("({id}, 0)")).collect::<Vec<_>>().join(", ");
    for sql in [
        "CREATE TABLE accounts (id bigint PRIMARY KEY, money bigint NOT NULL)",
        "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL)",
        &format!("INSERT INTO accounts VALUES {}", zeros(ACCOUNTS)),
        &format!("INSERT INTO counters VALUES {}", zeros(2 * WRITERS as i64)),
    ] {
        client.execute(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    // The other front end has not heard of these: its basic reads could see a part of them, before it has seen all.
    let count = connect(&urls[1]).await.query_one("SELECT count(*) FROM accounts", &[]).await;
    assert_eq!(count.expect("it can be read").get::<_, i64>(0), ACCOUNTS);
    let load = Arc::new(Load::default());
    let url = |writer: usize| urls[writer / WRITERS].clone();
    let writers: Vec<_> = (0..2 * WRITERS).map(|n| tokio::spawn(write(n, url(n), load.clone()))).collect();
    let mut readers = Vec::new();
    for (front_end, url) in urls.iter().enumerate() {
        for level in ["sequential", "snapshot", "basic"] {
            readers.push(tokio::spawn(read(front_end, url.clone(), level, load.clone())));
        }
    }
    let happening = tokio::time::timeout(3 * PATIENCE, happens(cluster, links, &load, &client));
    happening.await.expect("whoever can make progress does");
    load.stop.store(true, Ordering::SeqCst);
    for reader in readers {
        assert!(reader.await.expect("the reader saw nothing impossible") > 0);
    }
    for writer in writers {
        writer.await.expect("the writer saw nothing impossible");
    }
    let counters = client.query("SELECT n FROM counters ORDER BY id", &[]).await.expect("it can be read");
    load.history.read(last_ts(&client).await, counters.iter().map(|row| row.get(0)).collect());
    Arc::into_inner(load).expect("everybody has ended").history.check();
    let row = client.query_one("SELECT count(*), sum(money)::bigint FROM accounts", &[]).await;
    let row = row.expect("it can be read");
    assert_eq!((row.get(0), row.get(1)), (ACCOUNTS, 0i64));
}

#[test]
fn a_cut_network_loses_nothing_and_halves_no_write() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (mut cluster, links) = Cluster::start_with_links(0, REPLICATION_FACTOR).await;
        under_load(&mut cluster, &links, async |cluster, links, load, _| {
            cut_under_load(cluster, links, load).await;
        })
        .await;
    });
}

#[test]
fn storage_processes_that_are_cut_off_are_suspected_and_fenced() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (mut cluster, links) = Cluster::start_with_links(2_000, REPLICATION_FACTOR).await;
        under_load(&mut cluster, &links, suspect_under_load).await;
    });
}

#[test]
fn rows_are_not_given_up_where_only_a_front_end_is_cut_off_from_them() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (cluster, links) = Cluster::start_with_links(0, 1).await;
        let client = connect(&cluster.url("c1")).await;
        client.execute("CREATE TABLE spread (id bigint PRIMARY KEY)", &[]).await.expect("it is created");
        let rows = "INSERT INTO spread SELECT * FROM generate_series(1, 100)";
        client.execute(rows, &[]).await.expect("they are inserted");
        links.cut(&["c1"], &["s3"]);
        links.cut(&["s3"], &["c1"]);
        until(&client, "SELECT NOT reachable FROM carousel.storage WHERE storage = 's3'").await;
        let lost = client.execute("ALTER CLUSTER CONTRACT BY s3 WITH DATA LOSS", &[]).await;
        let error = lost.expect_err("others reach it");
        let error = error.as_db_error().expect("the front end says so");
        assert_eq!(error.code().code(), "55000");
        assert!(error.message().contains("the lead router reaches s3"), "{error}");
        links.mend();
        let counted = client.query_one("SELECT count(*) FROM spread", &[]).await.expect("they are counted");
        assert_eq!(counted.get::<_, i64>(0), 100);
    });
}

#[test]
fn it_is_seen_which_storage_processes_do_not_reach_each_other() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (cluster, links) = Cluster::start_with_links(0, 1).await;
        let client = connect(&cluster.url("c1")).await;
        let all_reached = "SELECT count(*) = 4 FROM carousel.storage WHERE does_not_reach = ''";
        until(&client, all_reached).await;
        links.cut(&["s1"], &["s3"]);
        links.cut(&["s3"], &["s1"]);
        let expected = "(('s1', 's3'), ('s2', ''), ('s3', 's1'), ('s4', ''))";
        until(
            &client,
            &format!(
                "SELECT count(*) = 4 FROM carousel.storage WHERE (storage, does_not_reach) IN {expected} AND reachable"
            ),
        )
        .await;
        links.mend();
        until(&client, all_reached).await;
    });
}
