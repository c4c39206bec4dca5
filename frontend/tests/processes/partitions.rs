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

use super::{
    Cluster, PATIENCE, ROUTERS, STORAGE, connect,
    history::{History, last_ts},
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

/// Reads what has been acknowledged, at either front end, and never half of a write.
async fn read(url: String, isolation: &str, load: Arc<Load>) -> u64 {
    let client = connect(&url).await;
    let isolation = format!("SET carousel.read_isolation = {isolation}");
    client.batch_execute(&isolation).await.expect("there is such a level");
    let mut answered = 0;
    while load.goes_on() {
        if let Ok(row) = client.query_one("SELECT count(*), sum(money)::bigint FROM accounts", &[]).await {
            assert_eq!((row.get(0), row.get(1)), (ACCOUNTS, 0i64), "half of a write");
            answered += 1;
        }
        let before = load.done.each_ref().map(|done| done.load(Ordering::SeqCst));
        if let Ok(counters) = client.query("SELECT n FROM counters ORDER BY id", &[]).await {
            let counters: Vec<i64> = counters.iter().map(|row| row.get(0)).collect();
            // Snapshot reads promise this only to the front end that has seen the acknowledgement.
            if isolation.ends_with("sequential") {
                let is_fresh = counters.iter().zip(before).all(|(n, before)| *n >= before);
                assert!(is_fresh, "an acknowledged write was not seen");
            }
            load.history.read(last_ts(&client).await, counters);
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

#[test]
fn a_cut_network_loses_nothing_and_halves_no_write() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (cluster, links) = Cluster::start_with_links().await;
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
        let load = Arc::new(Load::default());
        let url = |writer: usize| urls[writer / WRITERS].clone();
        let writers: Vec<_> =
            (0..2 * WRITERS).map(|n| tokio::spawn(write(n, url(n), load.clone()))).collect();
        let read = |url: &String, isolation| tokio::spawn(read(url.clone(), isolation, load.clone()));
        let readers: Vec<_> =
            urls.iter().flat_map(|url| ["sequential", "snapshot"].map(|level| read(url, level))).collect();
        let cut = tokio::time::timeout(3 * PATIENCE, cut_under_load(&cluster, &links, &load));
        cut.await.expect("whoever can make progress does");
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
    });
}
