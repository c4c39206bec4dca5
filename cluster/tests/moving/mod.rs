//! The ring changes while clients read and write, and processes are killed meanwhile.

use std::{collections::BTreeMap, path::Path, sync::Arc, sync::atomic::Ordering, time::Duration};

use carousel_cluster::{
    client::Client,
    config::{Change, Config, Configuration, Instruction, Membership},
    embedded::{Cluster, EmbeddedOptions},
    message::{Body, ProcessId, ReadIsolation},
};
use carousel_engine::SqlState;
use tokio::task::JoinHandle;

use super::{AtomicBool, Table, options};

const ROWS: i64 = 2_000;

/// One client that writes rows of its own and reads everything, against its own model.
struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<BTreeMap<i64, i64>>,
}

impl Load {
    fn start(cluster: &Cluster, from: i64) -> Load {
        let client = cluster.add_client().expect("a client");
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let task = tokio::spawn(async move {
            while client.catalog().table("t").is_none() {
                tokio::task::yield_now().await;
            }
            let table = Table::find(&client, "t");
            let mut model = BTreeMap::new();
            let mut key = from;
            while !stopping.load(Ordering::Relaxed) {
                let rows: Vec<(i64, i64)> = (key..key + 20).map(|key| (key, key * 3)).collect();
                assert_eq!(table.insert(&rows).await, Ok(20));
                model.extend(rows);
                assert_eq!(table.insert(&[(key, 0)]).await, Err(SqlState::UNIQUE_VIOLATION));
                key += 20;
                let isolation =
                    if key % 40 == 0 { ReadIsolation::Sequential } else { ReadIsolation::Snapshot };
                let read = table.read_as(isolation).await;
                let own: BTreeMap<i64, i64> =
                    read.range(from..from + 1_000_000).map(|(k, v)| (*k, *v)).collect();
                assert_eq!(own, model, "a client sees what it has written");
                assert_eq!(read.range(..ROWS).count() as i64, ROWS, "what was there is there");
            }
            model
        });
        Load { stop, task }
    }

    async fn end(self) -> BTreeMap<i64, i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("it meets no error")
    }
}

/// A cluster with a table of rows.
async fn start(dir: &Path, storage: u32, replication_factor: u32) -> (Cluster, Table) {
    let cluster = Cluster::start(options(dir, 1, storage, replication_factor, 2)).await.expect("it starts");
    let table = Table::create(&cluster.client(), "t").await;
    let rows: Vec<(i64, i64)> = (0..ROWS).map(|key| (key, key * 2)).collect();
    assert_eq!(table.insert(&rows).await, Ok(ROWS as u64));
    (cluster, table)
}

fn expected(models: impl IntoIterator<Item = BTreeMap<i64, i64>>) -> BTreeMap<i64, i64> {
    let mut all: BTreeMap<i64, i64> = (0..ROWS).map(|key| (key, key * 2)).collect();
    models.into_iter().for_each(|model| all.extend(model));
    all
}

/// Everything is there, on every replica, and after a restart of the whole cluster.
async fn check(cluster: Cluster, table: Table, wanted: BTreeMap<i64, i64>, dir: &Path, shape: (u32, u32)) {
    cluster.client().settled().await.expect("all rows have moved");
    // Reads with different offsets ask different replicas.
    for _ in 0..4 {
        assert_eq!(table.read().await, wanted);
    }
    // Replicas compare their content hashes.
    cluster.checkpoint().await.expect("a checkpoint");
    cluster.checkpoint().await.expect("nobody has stopped");
    cluster.kill().await;
    let cluster = Cluster::start(options(dir, 1, shape.0, shape.1, 2)).await.expect("it starts again");
    cluster.ready().await.expect("it is ready");
    let table = Table::find(&cluster.client(), "t");
    for _ in 0..4 {
        assert_eq!(table.read().await, wanted);
    }
    cluster.shutdown().await.expect("it ends");
}

fn ring(client: &Client) -> Vec<u32> {
    client.config().storage_processes().map(|process| process.number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ring_changes_under_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start(dir.path(), 3, 2).await;
    let loads = [Load::start(&cluster, 1_000_000), Load::start(&cluster, 2_000_000)];
    let (added, _) = cluster.client().expand(None, None).await.expect("it expands");
    assert_eq!(added, ProcessId::storage(4));
    // The next changes need not wait for the first one.
    cluster.client().rebalance(ProcessId::storage(2), Some(5 << 60)).await.expect("it rebalances");
    cluster.client().settled().await.expect("it settles");
    let (by, _) = cluster.client().replace(ProcessId::storage(1), None).await.expect("it is replaced");
    assert_eq!(by, ProcessId::storage(5));
    cluster.client().contract(ProcessId::storage(3)).await.expect("it contracts");
    cluster.client().settled().await.expect("it settles");
    let mut models = Vec::new();
    for load in loads {
        models.push(load.end().await);
    }
    let mut left = ring(&cluster.client());
    left.sort_unstable();
    assert_eq!(left, [2, 4, 5]);
    check(cluster, table, expected(models), dir.path(), (3, 2)).await;
}

/// Without that, ranges that it has just left would have nobody with all their rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_for_a_contraction_waits_for_the_rows_of_its_first_step() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start(dir.path(), 4, 2).await;
    let (client, process) = (cluster.client(), ProcessId::storage(2));
    let identifier = client.config().end_of_primary(process).expect("it has rows to leave");
    let first_step = Change::Rebalance { process, identifier };
    let plan = client.config().plan(first_step).expect("it is possible");
    let receiver = plan.instructions.iter().find_map(|instruction| match instruction {
        Instruction::Copy { to, .. } => Some(to.number),
        Instruction::Delete { .. } | Instruction::Lose { .. } => None,
    });
    let receiver = receiver.expect("somebody receives rows");
    cluster.kill_storage(receiver).await;
    client.reshape(first_step).await.expect("it is said by somebody else");
    let mut contraction = tokio::spawn(async move { client.contract(process).await });
    let early = tokio::time::timeout(Duration::from_millis(500), &mut contraction).await;
    assert!(early.is_err() && cluster.client().config().is_active(process), "{early:?}");
    cluster.restart_storage(receiver).await.expect("it starts again");
    contraction.await.expect("it ends").expect("it contracts");
    assert!(!cluster.client().config().is_active(process));
    check(cluster, table, expected([]), dir.path(), (4, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_and_receivers_are_killed_while_rows_move() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start(dir.path(), 2, 1).await;
    // Without replicas, whoever is killed has the only copy.
    let (added, ts) = cluster.client().expand(None, None).await.expect("it expands");
    let sender = cluster.client().config().migrations().get(&ts).and_then(|migration| {
        migration.copies.iter().find_map(|copy| match copy {
            Instruction::Copy { from, .. } => Some(from.number),
            _ => None,
        })
    });
    for number in [sender.unwrap_or(1), added.number, sender.unwrap_or(1)] {
        cluster.kill_storage(number).await;
        cluster.restart_storage(number).await.expect("it starts again");
    }
    cluster.client().settled().await.expect("it settles");
    // A sender that has left the ring is killed behind a checkpoint of its own.
    cluster
        .client()
        .reshape(Change::Contract { process: ProcessId::storage(1) })
        .await
        .expect("it contracts");
    cluster.kill_storage(1).await;
    cluster.restart_storage(1).await.expect("it starts again");
    check(cluster, table, expected([]), dir.path(), (2, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_sender_is_gone_comes_from_another_holder() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start(dir.path(), 3, 2).await;
    let load = Load::start(&cluster, 1_000_000);
    let (added, ts) = cluster.client().expand(None, None).await.expect("it expands");
    let migrations = cluster.client().config();
    let copies =
        migrations.migrations().get(&ts).map(|migration| migration.copies.clone()).unwrap_or_default();
    let sender = copies.into_iter().find_map(|copy| match copy {
        Instruction::Copy { from, .. } => Some(from),
        Instruction::Delete { .. } | Instruction::Lose { .. } => None,
    });
    // If all has been copied already, a holder is gone all the same.
    let process = sender.unwrap_or(ProcessId::storage(1));
    cluster.kill_storage(process.number).await;
    let suspicion = Configuration::Membership(Membership::Suspect { process, incarnation: 1 });
    cluster.client().order(Body::Configuration(suspicion)).await.expect("it is suspected");
    cluster.client().settled().await.expect("it settles");
    cluster.client().reshape(Change::Contract { process }).await.expect("the ring heals");
    cluster.client().settled().await.expect("it settles");
    assert!(ring(&cluster.client()).contains(&added.number));
    let model = load.end().await;
    cluster.restart_storage(process.number).await.expect("it starts again");
    check(cluster, table, expected([model]), dir.path(), (3, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_suspected_comes_back_as_a_standby() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start(dir.path(), 3, 2).await;
    let load = Load::start(&cluster, 1_000_000);
    let process = ProcessId::storage(2);
    let incarnation = 1;
    let suspicion = Configuration::Membership(Membership::Suspect { process, incarnation });
    cluster.client().order(Body::Configuration(suspicion)).await.expect("it is suspected");
    cluster.kill_storage(2).await;
    cluster.restart_storage(2).await.expect("it starts again");
    let standby = |config: &Config| config.standbys().any(|standby| standby == process);
    cluster.client().config_when(standby).await.expect("it joins");
    cluster.client().reshape(Change::Replace { process, by: process }).await.expect("it comes back");
    cluster.client().settled().await.expect("it settles");
    assert!(!cluster.client().config().is_suspected(process));
    let model = load.end().await;
    check(cluster, table, expected([model]), dir.path(), (3, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_changes_are_refused_and_old_pins_are_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start(dir.path(), 2, 1).await;
    let refused = |change| {
        let cluster = &cluster;
        async move {
            cluster.client().reshape(change).await.expect_err("it is impossible").code.as_str().to_owned()
        }
    };
    let (one, nine) = (ProcessId::storage(1), ProcessId::storage(9));
    assert_eq!(refused(Change::Contract { process: nine }).await, "42704");
    assert_eq!(refused(Change::Expand { process: nine, identifier: 5 }).await, "42704");
    assert_eq!(refused(Change::Rebalance { process: one, identifier: 1 << 63 }).await, "42710");
    let pin = cluster.client().pin(Duration::from_secs(60)).await.map_err(|_| ()).expect("a pin");
    let whole = table.read_at(Some(pin.ts()), ReadIsolation::Sequential).await;
    assert_eq!(whole, Ok(expected([])));
    cluster.client().expand(None, None).await.expect("it expands");
    cluster.client().settled().await.expect("it settles");
    let outcome = table.read_at(Some(pin.ts()), ReadIsolation::Sequential).await;
    assert_eq!(outcome, Err(SqlState::SERIALIZATION_FAILURE), "the only holder has it since later");
    drop(pin);
    check(cluster, table, expected([]), dir.path(), (2, 1)).await;
}

/// A cluster that heals itself, with a table of rows.
async fn start_healing(dir: &Path, contract_after: Option<Duration>) -> (Cluster, Table) {
    let healing = EmbeddedOptions {
        // Who is suspected although it lives stops for good.
        suspect_after: Some(Duration::from_secs(4)),
        contract_after,
        ..options(dir, 1, 3, 2, 2)
    };
    let cluster = Cluster::start(healing).await.expect("it starts");
    let table = Table::create(&cluster.client(), "t").await;
    let rows: Vec<(i64, i64)> = (0..ROWS).map(|key| (key, key * 2)).collect();
    assert_eq!(table.insert(&rows).await, Ok(ROWS as u64));
    (cluster, table)
}

/// Waits until the config is as wanted.
async fn until(cluster: &Cluster, wanted: impl Fn(&Config) -> bool) {
    let client = cluster.client();
    if tokio::time::timeout(Duration::from_secs(60), client.config_when(wanted)).await.is_err() {
        let progress = (1..=4).filter_map(|number| Some((number, cluster.storage_progress(number)?)));
        let progress: Vec<_> =
            progress.map(|(number, progress)| (number, progress.borrow().clone())).collect();
        panic!("{:?} {:?} {progress:#?}", client.config(), client.heard());
    }
}

fn is_whole(config: &Config, gone: ProcessId) -> bool {
    let nobody = config.storage_processes().all(|process| process != gone && !config.is_suspected(process));
    nobody && config.migrations().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_the_place_of_who_has_failed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start_healing(dir.path(), None).await;
    let standby = cluster.add_storage().await.expect("a standby");
    let load = Load::start(&cluster, 1_000_000);
    let failed = ProcessId::storage(2);
    cluster.kill_storage(failed.number).await;
    let client = cluster.client();
    until(&cluster, |config| is_whole(config, failed)).await;
    assert!(ring(&client).contains(&standby.number));
    let model = load.end().await;
    assert_eq!(table.read().await, expected([model]));
    // Who was replaced is the next standby.
    cluster.restart_storage(failed.number).await.expect("it starts again");
    let back = |config: &Config| config.standbys().any(|standby| standby == failed);
    until(&cluster, back).await;
    cluster.shutdown().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_standby_who_has_failed_comes_back_or_leaves_the_ring() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start_healing(dir.path(), None).await;
    let load = Load::start(&cluster, 1_000_000);
    let failed = ProcessId::storage(2);
    let client = cluster.client();
    cluster.kill_storage(failed.number).await;
    until(&cluster, |config| config.is_suspected(failed)).await;
    cluster.restart_storage(failed.number).await.expect("it starts again");
    let back = |config: &Config| !config.is_suspected(failed) && config.migrations().is_empty();
    until(&cluster, back).await;
    assert_eq!(ring(&client), [1, 2, 3]);
    let model = load.end().await;
    assert_eq!(table.read().await, expected([model]));
    cluster.shutdown().await.expect("it ends");

    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, table) = start_healing(dir.path(), Some(Duration::from_millis(100))).await;
    let load = Load::start(&cluster, 1_000_000);
    cluster.kill_storage(failed.number).await;
    let client = cluster.client();
    until(&cluster, |config| is_whole(config, failed)).await;
    assert_eq!(ring(&client), [1, 3]);
    let model = load.end().await;
    assert_eq!(table.read().await, expected([model]));
    cluster.shutdown().await.expect("it ends");
}
