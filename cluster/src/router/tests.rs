//! Routers with a network, logs and elections, all in one process.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use carousel_engine::Ts;
use tokio::sync::watch;

use super::{
    processes::{follow, submit, writes},
    *,
};
use crate::{
    router::testing::read,
    wire::{Watermarks, Wire},
};

struct Cluster {
    network: Network,
    members: BTreeSet<ProcessId>,
    config: Config,
    directory: tempfile::TempDir,
    routers: Vec<RouterHandle>,
    limits: Limits,
}

impl Cluster {
    async fn start(routers: u32, storage: u32, replication: u32) -> Self {
        let members: BTreeSet<_> = (1..=routers).map(ProcessId::router).collect();
        let mut cluster = Cluster {
            network: Network::new(),
            members: members.clone(),
            config: Config::evenly(storage, replication).expect("a valid ring"),
            directory: tempfile::tempdir().expect("a directory"),
            routers: Vec::new(),
            // Small, so that batches are split and old messages are read from the log.
            limits: Limits { deliver_messages: 7, window_bytes: 40_000, ..Limits::default() },
        };
        for id in members {
            let router = cluster.router(id).await;
            cluster.routers.push(router);
        }
        cluster
    }

    async fn router(&self, id: ProcessId) -> RouterHandle {
        let directory = self.directory.path().join(id.to_string());
        let durability = Durability::Disk { directory, limits: Default::default() };
        let options = Options {
            limits: self.limits.clone(),
            ..Options::member(id, self.members.clone(), self.config.clone(), durability)
        };
        Router::start(options, &self.network).await.expect("starts")
    }

    /// Waits until one of the running routers leads.
    async fn leader(&self) -> usize {
        let running = |router: &RouterHandle| !matches!(router.state(), State::Stopped | State::Failed(_));
        let running: Vec<usize> = (0..self.routers.len()).filter(|i| running(&self.routers[*i])).collect();
        let lead = |i: &usize| Box::pin(self.routers[*i].wait_for(|state| *state == State::Leading));
        running[futures::future::select_all(running.iter().map(lead)).await.1]
    }
}

fn directory_of(cluster: &Cluster, id: ProcessId) -> std::path::PathBuf {
    Path::new(cluster.directory.path()).join(id.to_string())
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    // Only a guard against hanging for ever.
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("the test hangs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_router_orders_and_delivers() {
    within(async {
        let cluster = Cluster::start(1, 3, 2).await;
        let (until, stop) = watch::channel(None);
        let followers: Vec<_> = (1..=3)
            .map(|n| {
                let id = ProcessId::storage(n);
                tokio::spawn(follow(
                    cluster.network.clone(),
                    cluster.members.clone(),
                    id,
                    Ts::ZERO,
                    stop.clone(),
                ))
            })
            .collect();
        let client = ProcessId::client(1);
        let mut messages = writes(client, 500);
        messages.push(read(client, 1, 501, 0));
        submit(cluster.network.clone(), cluster.members.clone(), client, messages).await;
        until.send_replace(Some(Ts(501)));
        let mut reads = 0;
        for follower in followers {
            let received = follower.await.expect("no panic").expect("streams");
            let (write, read): (Vec<_>, Vec<_>) = received.into_iter().partition(|(ts, _)| ts.0 <= 500);
            assert_eq!(
                write.iter().map(|(ts, id)| (ts.0, id.sequence)).collect::<Vec<_>>(),
                (1..=500).map(|n| (n, n)).collect::<Vec<_>>()
            );
            reads += read.len();
        }
        assert_eq!(reads, 2, "two of three processes hold all ranges with f = 2");
        cluster.routers[0].stop().await;
        assert_eq!(cluster.routers[0].state(), State::Stopped);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_order_for_all_while_leaders_are_killed() {
    within(async {
        let mut cluster = Cluster::start(3, 3, 3).await;
        let (until, stop) = watch::channel(None);
        let mut followers = Vec::new();
        for n in 1..=3 {
            let (network, members) = (cluster.network.clone(), cluster.members.clone());
            followers.push(tokio::spawn(follow(
                network,
                members,
                ProcessId::storage(n),
                Ts::ZERO,
                stop.clone(),
            )));
        }
        const EACH: u64 = 600;
        let mut submitters = Vec::new();
        for n in 1..=2 {
            let (network, members) = (cluster.network.clone(), cluster.members.clone());
            let client = ProcessId::client(n);
            submitters.push(tokio::spawn(submit(network, members, client, writes(client, EACH))));
        }
        for _ in 0..3 {
            let leader = cluster.leader().await;
            cluster.routers[leader].kill().await;
            let id = cluster.routers[leader].id();
            cluster.routers[leader] = cluster.router(id).await;
        }
        for submitter in submitters {
            submitter.await.expect("no panic");
        }
        until.send_replace(Some(Ts(2 * EACH)));
        let mut orders = Vec::new();
        for follower in followers {
            orders.push(follower.await.expect("no panic").expect("streams"));
        }
        assert_eq!(
            orders[0].iter().map(|(ts, _)| ts.0).collect::<Vec<_>>(),
            (1..=2 * EACH).collect::<Vec<_>>()
        );
        for n in 1..=2 {
            let own = orders[0].iter().filter(|(_, id)| id.submitter == ProcessId::client(n));
            assert_eq!(own.map(|(_, id)| id.sequence).collect::<Vec<_>>(), (1..=EACH).collect::<Vec<_>>());
        }
        assert!(orders.iter().all(|order| *order == orders[0]), "the same order everywhere");

        // All routers restart from their disks: the m-seq is the same, and a new follower gets all of it.
        for router in &cluster.routers {
            router.kill().await;
        }
        cluster.routers.clear();
        for id in cluster.members.clone() {
            let router = cluster.router(id).await;
            cluster.routers.push(router);
        }
        let (network, members) = (cluster.network.clone(), cluster.members.clone());
        let again = follow(network, members, ProcessId::storage(2), Ts::ZERO, stop.clone()).await;
        assert_eq!(again.expect("streams"), orders[0]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_cut_below_what_all_storage_has_durable() {
    within(async {
        let cluster = Cluster::start(1, 2, 1).await;
        let (network, members) = (cluster.network.clone(), cluster.members.clone());
        let client = ProcessId::client(1);
        submit(network.clone(), members.clone(), client, writes(client, 300)).await;

        let storage: Vec<_> = (1..=2).map(|n| network.join(ProcessId::storage(n))).collect();
        for (endpoint, durable) in storage.iter().zip([200, 150]) {
            let confirm = Wire::Confirm(Watermarks { durable: Ts(durable), ..Watermarks::default() });
            endpoint.sender().send(ProcessId::router(1), confirm).await.expect("the router is there");
        }
        drop(storage);
        // A stream from the beginning is refused once the log has been cut.
        let (_until, stop) = watch::channel(Some(Ts(300)));
        let purged = loop {
            let (network, members) = (network.clone(), members.clone());
            if let Err(purged) = follow(network, members, ProcessId::storage(1), Ts::ZERO, stop.clone()).await
            {
                break purged;
            }
        };
        assert!(purged > Ts::ZERO && purged <= Ts(150), "cut at {purged}");
        // Later ones are served, from the log, also after a restart.
        let snapshot = directory_of(&cluster, ProcessId::router(1)).join("snapshot");
        while !snapshot.exists() {
            tokio::task::yield_now().await;
        }
        cluster.routers[0].kill().await;
        let _restarted = cluster.router(ProcessId::router(1)).await;
        let mut purged = purged;
        let received = loop {
            let (network, members, stop) = (network.clone(), members.clone(), stop.clone());
            match follow(network, members, ProcessId::storage(1), purged, stop).await {
                Ok(received) => break received,
                Err(later) => purged = later,
            }
        };
        assert!(purged <= Ts(150), "cut at {purged}");
        assert_eq!(
            received.iter().map(|(ts, _)| ts.0).collect::<Vec<_>>(),
            (purged.0 + 1..=300).collect::<Vec<_>>()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_subscriber_holds_up_nobody() {
    within(async {
        let cluster = Cluster::start(1, 2, 2).await;
        let (network, members) = (cluster.network.clone(), cluster.members.clone());
        // s1 subscribes and then does not look at its mailbox.
        let mut slow = network.join(ProcessId::storage(1));
        let subscribe = Wire::Subscribe { incarnation: 1, directory: 1, after: Some(Ts::ZERO) };
        slow.sender().send(ProcessId::router(1), subscribe).await.expect("the router is there");
        const COUNT: u64 = 3000;
        let client = ProcessId::client(1);
        submit(network.clone(), members.clone(), client, writes(client, COUNT)).await;
        let (_until, stop) = watch::channel(Some(Ts(COUNT)));
        let received =
            follow(network, members, ProcessId::storage(2), Ts::ZERO, stop).await.expect("streams");
        assert_eq!(received.len() as u64, COUNT);
        // When it looks again it misses nothing: most of it has left the router's window and comes from the log.
        let mut next = 1;
        while next <= COUNT {
            if let Some((_, Wire::Deliver { deliveries, .. })) = slow.recv().await {
                for delivery in deliveries {
                    assert_eq!(delivery.ts, Ts(next));
                    next += 1;
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routers_without_disks_survive_the_loss_of_one() {
    within(async {
        let network = Network::new();
        let members: BTreeSet<_> = (1..=3).map(ProcessId::router).collect();
        let config = Config::evenly(1, 1).expect("a ring");
        let mut routers = Vec::new();
        for id in members.clone() {
            let options = Options::member(id, members.clone(), config.clone(), Durability::Memory);
            routers.push(Router::start(options, &network).await.expect("starts"));
        }
        let client = ProcessId::client(1);
        submit(network.clone(), members.clone(), client, writes(client, 100)).await;
        let leads = routers.iter().find(|router| router.state() == State::Leading);
        leads.unwrap_or(&routers[0]).kill().await;
        let client = ProcessId::client(2);
        submit(network.clone(), members.clone(), client, writes(client, 100)).await;
        let (_until, stop) = watch::channel(Some(Ts(200)));
        let received =
            follow(network, members, ProcessId::storage(1), Ts::ZERO, stop).await.expect("streams");
        assert_eq!(received.len(), 200);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_router_that_is_added_begins_no_log() {
    let network = Network::new();
    let single = Options::single(Config::evenly(1, 1).expect("a ring"), Durability::Memory);
    let router = Router::start(Options { added: true, ..single }, &network).await.expect("starts");
    let leads = router.wait_for(|state| *state == State::Leading);
    let led = tokio::time::timeout(Duration::from_secs(10), leads).await;
    assert!(led.is_err(), "it waits for the others' log, but {led:?}");
    router.kill().await;
}

/// The leader may be a router that has been added since the process was here last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_find_the_leader_hears_who_the_routers_are() {
    within(async {
        let cluster = Cluster::start(3, 1, 1).await;
        let client = ProcessId::client(1);
        submit(cluster.network.clone(), cluster.members.clone(), client, writes(client, 10)).await;
        let leader = cluster.leader().await;
        let follower = cluster.routers[(leader + 1) % 3].id();
        let mut endpoint = cluster.network.join(ProcessId::client(2));
        let messages: Vec<_> = writes(ProcessId::client(2), 1).into_iter().map(Arc::new).collect();
        let (mut is_refused, mut told) = (false, None);
        while !(is_refused && told.is_some()) {
            // Until it has learned who they are.
            endpoint.sender().send(follower, Wire::Route(messages.clone())).await.expect("it is there");
            let waits = tokio::time::timeout(Duration::from_millis(100), endpoint.recv());
            match waits.await {
                Ok(Some((_, Wire::NotLeader { .. }))) => is_refused = true,
                Ok(Some((_, Wire::Routers(routers)))) => told = Some(routers.voters().count()),
                _ => {}
            }
        }
        assert_eq!(told, Some(3));
    })
    .await;
}

/// Confirms that all storage is durable up to `durable`, to the current leader.
async fn confirm_all(cluster: &Cluster, durable: u64) {
    let leader = cluster.routers[cluster.leader().await].id();
    for process in cluster.config.storage_processes() {
        let endpoint = cluster.network.join(process);
        let watermarks = Watermarks { durable: Ts(durable), ..Watermarks::default() };
        endpoint.sender().send(leader, Wire::Confirm(watermarks)).await.expect("the leader is there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_missed_what_was_cut_gets_a_snapshot() {
    within(async {
        let mut cluster = Cluster::start(3, 1, 1).await;
        let (network, members) = (cluster.network.clone(), cluster.members.clone());
        let (client, storage) = (ProcessId::client(1), ProcessId::storage(1));
        let leader = cluster.leader().await;
        let absent = (leader + 1) % 3;
        cluster.routers[absent].kill().await;
        submit(network.clone(), members.clone(), client, writes(client, 200)).await;
        let (_until, stop) = watch::channel(Some(Ts(200)));
        let purged = loop {
            confirm_all(&cluster, 150).await;
            if let Err(purged) =
                follow(network.clone(), members.clone(), storage, Ts::ZERO, stop.clone()).await
            {
                break purged;
            }
        };
        // The absent router comes back; together they are a quorum only with it.
        cluster.routers[absent] = cluster.router(cluster.routers[absent].id()).await;
        let leader = cluster.leader().await;
        cluster.routers[leader].kill().await;
        let client = ProcessId::client(2);
        submit(network.clone(), members.clone(), client, writes(client, 50)).await;
        let (_until, stop) = watch::channel(Some(Ts(250)));
        let received = follow(network, members, storage, purged, stop).await.expect("streams");
        assert_eq!(
            received.iter().map(|(ts, _)| ts.0).collect::<Vec<_>>(),
            (purged.0 + 1..=250).collect::<Vec<_>>()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_stops_the_router_and_loses_nothing() {
    within(async {
        let directory = tempfile::tempdir().expect("a directory");
        let network = Network::new();
        let options = |log_bytes| {
            let limits = crate::wal::Limits { log_bytes, ..Default::default() };
            let durability = Durability::Disk { directory: directory.path().into(), limits };
            Options::single(Config::evenly(1, 1).expect("a ring"), durability)
        };
        let router = Router::start(options(Some(20_000)), &network).await.expect("starts");
        let client = ProcessId::client(1);
        let mut endpoint = network.join(client);
        let sender = endpoint.sender();
        let mut acknowledged = 0;
        for message in writes(client, 10_000) {
            if sender.send(router.id(), Wire::Route(vec![Arc::new(message)])).await.is_err() {
                break;
            }
            if let Ok(Some((_, Wire::Ordered { sequence, .. }))) =
                tokio::time::timeout(Duration::from_millis(1), endpoint.recv()).await
            {
                acknowledged = sequence;
            }
        }
        let state = router.wait_for(|_| false).await;
        assert!(matches!(&state, State::Failed(reason) if reason.contains("size limit")), "{state:?}");
        drop(endpoint);

        let _router = Router::start(options(None), &network).await.expect("restarts");
        let (_until, stop) = watch::channel(Some(Ts(acknowledged)));
        let members = [ProcessId::router(1)].into();
        let received =
            follow(network, members, ProcessId::storage(1), Ts::ZERO, stop).await.expect("streams");
        assert!(received.len() as u64 >= acknowledged);
    })
    .await;
}

/// What it writes to files that are open there is in no directory any more, and would be gone with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_whose_directory_is_removed_stops() {
    within(async {
        let directory = tempfile::tempdir().expect("a directory");
        let network = Network::new();
        let durability = Durability::Disk { directory: directory.path().into(), limits: Default::default() };
        let options = Options::single(Config::evenly(1, 1).expect("a ring"), durability);
        let router = Router::start(options, &network).await.expect("starts");
        router.wait_for(|state| *state == State::Leading).await;
        drop(directory);
        let state = router.wait_for(|_| false).await;
        assert!(matches!(&state, State::Failed(reason) if reason.contains("has been removed")), "{state:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_another_leadership() {
    within(async {
        let mut cluster = Cluster::start(1, 1, 1).await;
        let storage = cluster.network.join(ProcessId::storage(1));
        let mut storage = (storage.sender(), storage);
        let mut leaderships = BTreeSet::new();
        for _ in 0..3 {
            let subscribe = Wire::Subscribe { incarnation: 1, directory: 1, after: Some(Ts::ZERO) };
            storage.0.send(ProcessId::router(1), subscribe).await.expect("the router is there");
            let leadership = loop {
                match storage.1.recv().await {
                    Some((_, Wire::State { leadership, .. })) => break leadership,
                    // Who the routers are, on the other lane.
                    Some((_, Wire::Routers(_))) => {}
                    other => panic!("a subscription begins with the state, not with {other:?}"),
                }
            };
            // What was in the memory of the earlier life is lost.
            assert!(leaderships.insert(leadership), "{leadership} again");
            cluster.routers[0].kill().await;
            cluster.routers[0] = cluster.router(ProcessId::router(1)).await;
        }
    })
    .await;
}
