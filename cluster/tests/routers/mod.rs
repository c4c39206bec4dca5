//! Routers come and go while clients write.

use std::{collections::BTreeMap, time::Duration};

use carousel_cluster::{
    embedded::{Cluster, EmbeddedOptions},
    message::ProcessId,
    router::State,
};
use carousel_engine::SqlState;
use tokio::{sync::watch, task::JoinHandle};

use super::{Table, options};

/// A test that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(100);

/// Writes of one client, one after the other, until it is told to stop.
struct Writer {
    stop: watch::Sender<bool>,
    /// How many have been acknowledged.
    done: watch::Receiver<usize>,
    task: JoinHandle<BTreeMap<i64, i64>>,
}

impl Writer {
    /// Inserts keys from `first` on.
    pub(super) fn start(table: Table, first: i64) -> Writer {
        let (stop, stopping) = watch::channel(false);
        let (progress, done) = watch::channel(0);
        let task = tokio::spawn(async move {
            let mut known = BTreeMap::new();
            for k in first.. {
                if *stopping.borrow() {
                    break;
                }
                match table.insert(&[(k, k)]).await {
                    Ok(rows) => {
                        assert_eq!(rows, 1);
                        known.insert(k, k);
                        progress.send_replace(known.len());
                    }
                    Err(SqlState::OUTCOME_UNKNOWN) => {}
                    Err(code) => panic!("{code:?}"),
                }
            }
            known
        });
        Writer { stop, done, task }
    }

    /// Waits until some more have been acknowledged.
    async fn goes_on(&mut self) {
        let now = *self.done.borrow();
        self.done.wait_for(|done| *done >= now + 10).await.expect("it writes");
    }

    async fn stop(self) -> BTreeMap<i64, i64> {
        self.stop.send_replace(true);
        self.task.await.expect("it does not fail")
    }
}

fn voters(cluster: &Cluster) -> Vec<u32> {
    cluster.client().routers().voters().map(|router| router.number).collect()
}

async fn leader(cluster: &Cluster) -> u32 {
    loop {
        let leads =
            |number: &u32| cluster.router(*number).is_some_and(|router| router.state() == State::Leading);
        match voters(cluster).into_iter().find(leads) {
            Some(leader) => return leader,
            None => tokio::task::yield_now().await,
        }
    }
}

async fn start(options: &EmbeddedOptions) -> Cluster {
    Cluster::start(options.clone()).await.expect("it starts")
}

async fn found(cluster: &Cluster) -> BTreeMap<i64, i64> {
    cluster.ready().await.expect("it is ready");
    Table::find(&cluster.client(), "t").read().await
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_come_and_go_under_writes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 1, 2, 2, 1);
    let test = async {
        let cluster = start(&options).await;
        let table = Table::create(&cluster.client(), "t").await;
        let mut writer = Writer::start(table, 0);
        for number in 2..=5 {
            assert_eq!(cluster.add_router().await, Ok(ProcessId::router(number)));
            writer.goes_on().await;
        }
        assert_eq!(voters(&cluster), [1, 2, 3, 4, 5]);
        let first = leader(&cluster).await;
        cluster.remove_router(first).await.expect("the leader goes");
        writer.goes_on().await;
        let last = leader(&cluster).await;
        let other = voters(&cluster).into_iter().find(|number| *number != last).expect("there are four");
        cluster.remove_router(other).await.expect("a follower goes");
        cluster.remove_router(other).await.expect("it has gone");
        writer.goes_on().await;
        let rest: Vec<u32> = (1..=5).filter(|number| ![first, other].contains(number)).collect();
        assert_eq!(voters(&cluster), rest);
        // Whoever is started again finds the three that are left, and they suffice.
        cluster.kill_storage(1).await;
        cluster.restart_storage(1).await.expect("it starts");
        cluster.kill_router(rest[0]).await;
        writer.goes_on().await;
        let known = writer.stop().await;
        cluster.kill().await;
        let cluster = start(&options).await;
        let rows = found(&cluster).await;
        assert_eq!(voters(&cluster), rest);
        assert!(known.keys().all(|key| rows.contains_key(key)), "acknowledged, but lost");
        assert_eq!(cluster.add_router().await, Ok(ProcessId::router(6)), "numbers are not given twice");
        cluster.kill().await;
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_router_is_replaced_and_leaders_die_during_changes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 3, 2, 2, 1);
    let test = async {
        let cluster = start(&options).await;
        let table = Table::create(&cluster.client(), "t").await;
        let mut writer = Writer::start(table, 0);
        for dead in 1..=3 {
            cluster.kill_router(dead).await;
            cluster.add_router().await.expect("three of four are a quorum");
            cluster.remove_router(dead).await.expect("the dead can be removed");
            writer.goes_on().await;
        }
        assert_eq!(voters(&cluster), [4, 5, 6]);
        for _ in 0..3 {
            let victim = leader(&cluster).await;
            let killed = async {
                cluster.kill_router(victim).await;
                cluster.restart_router(victim).await.expect("it starts");
            };
            let (added, ()) = tokio::join!(cluster.add_router(), killed);
            let added = added.expect("whoever leads goes on");
            writer.goes_on().await;
            let victim = leader(&cluster).await;
            let killed = async {
                cluster.kill_router(victim).await;
                if cluster.client().routers().entry(victim).is_some() && victim != added.number {
                    cluster.restart_router(victim).await.expect("it starts");
                }
            };
            let (removed, ()) = tokio::join!(cluster.remove_router(added.number), killed);
            removed.expect("whoever leads goes on");
            writer.goes_on().await;
        }
        let known = writer.stop().await;
        let rows = found(&cluster).await;
        assert!(known.keys().all(|key| rows.contains_key(key)), "acknowledged, but lost");
        cluster.kill().await;
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_changes_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 2, 1, 1, 1);
    let test = async {
        let cluster = start(&options).await;
        let client = cluster.client();
        let code = |outcome: Result<ProcessId, carousel_engine::SqlError>| match outcome {
            Ok(router) => panic!("{router}"),
            Err(error) => error.code.as_str().to_owned(),
        };
        assert_eq!(code(client.add_router(None, "nowhere").await), "22023");
        assert_eq!(code(client.add_router(Some(2), "h:1").await), "42710");
        let unknown = client.remove_router(ProcessId::router(7)).await;
        assert_eq!(unknown.expect_err("there is none").code, SqlState::UNDEFINED_OBJECT);
        // Of two, one may go as long as the other answers.
        cluster.remove_router(2).await.expect("one is left");
        let last = client.remove_router(ProcessId::router(1)).await.expect_err("it is the last");
        assert_eq!(last.code.as_str(), "55000");
        assert_eq!(code(client.add_router(Some(2), "h:1").await), "42710");
        // Nobody is there: it never votes, and can be taken back.
        tokio::select! {
            added = client.add_router(None, "h:1") => panic!("{added:?}"),
            listed = client.routers_when(|routers| routers.entry(3).is_some()) => drop(listed.expect("it is listed")),
        }
        assert_eq!(voters(&cluster), [1]);
        client.remove_router(ProcessId::router(3)).await.expect("it is taken back");
        assert_eq!(client.routers().entries().len(), 1);
        // Who still waits for a router that is removed does not get another one instead.
        let asking = client.clone();
        let waiting = tokio::spawn(async move { asking.add_router(None, "h:2").await });
        client.routers_when(|routers| routers.entry(4).is_some()).await.expect("it is listed");
        client.remove_router(ProcessId::router(4)).await.expect("it is taken back");
        assert_eq!(code(waiting.await.expect("it is answered")), "42710");
        assert_eq!(client.routers().entries().len(), 1);
        cluster.kill().await;
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}
