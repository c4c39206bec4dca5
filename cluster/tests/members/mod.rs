//! The processes of a cluster apart from one another, over sockets.

use std::{collections::BTreeMap, path::Path, time::Duration};

use carousel_cluster::{
    client::Client,
    config::Config,
    description::Description,
    embedded::{Durability, StartError},
    member::{Member, MemberOptions},
    message::{ProcessId, ProcessKind},
    router::State,
    routers::{RouterEntry, Routers},
    storage::Progress,
};
use carousel_engine::{SqlState, Ts};

use super::Table;

/// A test that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(100);

/// Addresses at which nobody listens at the moment.
fn addresses(count: usize) -> Vec<String> {
    carousel_cluster::transport::free_addresses(count).expect("ports are free")
}

struct Apart {
    description: Description,
    directory: tempfile::TempDir,
    members: BTreeMap<ProcessId, Member>,
    added: Vec<RouterEntry>,
}

impl Apart {
    fn new(routers: usize, storage: usize, replication_factor: u32) -> Apart {
        let mut addresses = addresses(routers + storage);
        let description = Description {
            name: "apart".into(),
            replication_factor,
            durability: Durability::Disk,
            storage: addresses.split_off(routers),
            routers: addresses,
            ..Description::default()
        };
        let directory = tempfile::tempdir().expect("a temporary directory");
        Apart { description, directory, members: BTreeMap::new(), added: Vec::new() }
    }

    fn options(&self, id: ProcessId) -> MemberOptions {
        let directory = self.directory.path().join(id.to_string());
        let mut options = MemberOptions::new(self.description.clone(), id, directory);
        options.listen =
            self.description.members().get(&id).map(|address| address.parse().expect("an address"));
        options
    }

    /// A storage process that the description does not name.
    async fn start_added(&mut self, number: u32, address: &str) {
        let id = ProcessId::storage(number);
        let mut options = self.options(id);
        options.listen = Some(address.parse().expect("an address"));
        options.address = Some(address.to_owned());
        let member = Member::start(options).await.unwrap_or_else(|error| panic!("{id}: {error}"));
        self.members.insert(id, member);
    }

    async fn start(&mut self, id: ProcessId) {
        let member = Member::start(self.options(id)).await.unwrap_or_else(|error| panic!("{id}: {error}"));
        self.members.insert(id, member);
    }

    /// Adds a router that listens at a new address: asks for it, and starts it when it is listed.
    async fn add_router(&mut self, client: &Client) -> ProcessId {
        let address = addresses(1).remove(0);
        let listed = |routers: &Routers| routers.entries().iter().any(|entry| entry.address == address);
        let start = async {
            let routers = client.routers_when(listed).await.expect("it is listed");
            let entry = routers.entries().iter().find(|entry| entry.address == address);
            let id = ProcessId::router(entry.expect("it is listed").number);
            // As a running process describes the cluster.
            self.description.current = routers.resolved(&self.description.members());
            let mut options = self.options(id);
            options.listen = Some(address.parse().expect("an address"));
            (id, Member::start(options).await.unwrap_or_else(|error| panic!("{id}: {error}")))
        };
        let (added, (id, member)) = tokio::join!(client.add_router(None, &address), start);
        assert_eq!(added, Ok(id));
        self.members.insert(id, member);
        self.added.push(RouterEntry { number: id.number, address, votes: true });
        id
    }

    async fn start_all(routers: usize, storage: usize, replication_factor: u32) -> Apart {
        let mut apart = Apart::new(routers, storage, replication_factor);
        for id in apart.description.members().into_keys() {
            apart.start(id).await;
        }
        apart
    }

    async fn client(&mut self, number: u32) -> Client {
        let id = ProcessId::client(number);
        self.start(id).await;
        let client = self.members[&id].client().expect("it is a client");
        // As front ends do: what those have answered whom it has not met is lost.
        let _ = tokio::time::timeout(Duration::from_secs(1), client.meets_all()).await;
        client
    }

    /// Starts a process again at the address that it had.
    async fn restart(&mut self, id: ProcessId) {
        let mut options = self.options(id);
        if let Some(entry) = self.added.iter().find(|entry| ProcessId::router(entry.number) == id) {
            options.listen = Some(entry.address.parse().expect("an address"));
        }
        let member = Member::start(options).await.unwrap_or_else(|error| panic!("{id}: {error}"));
        self.members.insert(id, member);
    }

    async fn kill(&mut self, id: ProcessId) {
        self.members.remove(&id).expect("it runs").kill().await;
    }

    /// The directory of a process that is down is lost.
    fn lose_directory(&self, id: ProcessId) {
        std::fs::remove_dir_all(self.directory.path().join(id.to_string())).expect("it can be removed");
    }

    /// The router that leads now.
    fn leader(&self) -> Option<ProcessId> {
        let mut routers = self.members.values().filter_map(Member::router);
        routers.find(|router| router.state() == State::Leading).map(|router| router.id())
    }
}

/// A router that others look for at a wrong address reaches the other routers, as it dials them.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_only_routers_reach_leads_for_a_moment_only() {
    let mut apart = Apart::new(3, 2, 2);
    let [r1, r2, r3] = [1, 2, 3].map(ProcessId::router);
    let right = apart.description.clone();
    // What r2 is told stands for its election before all others do.
    let start = async |apart: &mut Apart, id: ProcessId| {
        let mut options = apart.options(id);
        options.description = right.clone();
        options.listen = Some(right.members()[&id].parse().expect("an address"));
        options.heartbeat = Duration::from_millis(if id == r2 { 50 } else { 100 });
        let member = Member::start(options).await.unwrap_or_else(|error| panic!("{id}: {error}"));
        apart.members.insert(id, member);
    };
    for router in [r1, r2, r3] {
        start(&mut apart, router).await;
    }
    apart.description.routers[1] = addresses(1).remove(0);
    for number in [1, 2] {
        apart.start(ProcessId::storage(number)).await;
    }
    let client = apart.client(1).await;
    let table = Table::create(&client, "t").await;
    let mut rounds = 0;
    loop {
        let leads = async {
            while apart.leader() != Some(r2) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(2), leads).await.is_ok() {
            break;
        }
        rounds += 1;
        assert!(rounds < 20, "it never leads");
        if let Some(leader) = apart.leader() {
            apart.kill(leader).await;
            start(&mut apart, leader).await;
        }
    }
    let write = tokio::time::timeout(Duration::from_secs(30), table.insert(&[(1, 1)]));
    let outcome = write.await.expect("another router leads");
    assert!(matches!(outcome, Ok(1) | Err(SqlState::OUTCOME_UNKNOWN)), "{outcome:?}");
    let leads = async {
        while apart.leader().is_none_or(|leader| leader == r2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), leads).await.expect("another router leads");
}

/// Inserts pairs, at either client in turn; the fate of a few may be unknown.
async fn insert(tables: &[Table; 2], keys: std::ops::Range<i64>, known: &mut BTreeMap<i64, i64>) {
    for k in keys {
        match tables[k as usize % 2].insert(&[(k, k)]).await {
            Ok(rows) => {
                assert_eq!(rows, 1);
                known.insert(k, k);
            }
            Err(SqlState::OUTCOME_UNKNOWN | SqlState::UNAVAILABLE) => {}
            Err(code) => panic!("{code:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn separate_processes_die_and_come_back() {
    let test = async {
        let mut apart = Apart::start_all(3, 4, 2).await;
        let (first, second) = (apart.client(1).await, apart.client(2).await);
        let table = Table::create(&first, "t").await;
        second.catalog_at(first.frontier()).await.expect("it follows");
        let tables = [table, Table::find(&second, "t")];
        let mut known = BTreeMap::new();
        let mut next = 0;
        for round in 1..=3 {
            insert(&tables, next..next + 20, &mut known).await;
            let victims = [apart.leader().unwrap_or(ProcessId::router(1)), ProcessId::storage(round)];
            for victim in victims {
                apart.kill(victim).await;
                insert(&tables, next + 20..next + 40, &mut known).await;
                next += 40;
                apart.start(victim).await;
            }
        }
        for table in &tables {
            let found = table.read().await;
            let lost: Vec<_> = known.keys().filter(|key| !found.contains_key(key)).collect();
            assert!(lost.is_empty(), "acknowledged, but lost: {lost:?}");
        }
        // All at once, and only what is on disk comes back.
        let ids: Vec<ProcessId> = apart.members.keys().copied().collect();
        for id in &ids {
            apart.kill(*id).await;
        }
        for id in ids.iter().filter(|id| id.kind != ProcessKind::Client) {
            apart.start(*id).await;
        }
        let client = apart.client(2).await;
        client.catalog_at(carousel_engine::Ts(1)).await.expect("it follows");
        let found = Table::find(&client, "t").read().await;
        assert!(known.keys().all(|key| found.contains_key(key)), "acknowledged, but lost");
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_the_description_does_not_name_joins_and_takes_rows() {
    let test = async {
        let mut apart = Apart::start_all(1, 2, 1).await;
        let client = apart.client(1).await;
        let table = Table::create(&client, "t").await;
        let rows: BTreeMap<i64, i64> = (0..500).map(|k| (k, k)).collect();
        let pairs: Vec<(i64, i64)> = rows.iter().map(|(k, v)| (*k, *v)).collect();
        assert_eq!(table.insert(&pairs).await, Ok(500));
        let added = addresses(2);
        for (number, address) in [3, 4].into_iter().zip(&added) {
            let process = ProcessId::storage(number);
            apart.start_added(number, address).await;
            let joined = |config: &Config| config.standbys().any(|standby| standby == process);
            client.config_when(joined).await.expect("it joins");
            // The second one receives rows of the first one, too.
            client.expand(Some(process), None).await.expect("it takes a place on the ring");
            client.settled().await.expect("it has its rows");
            assert_eq!(table.read().await, rows);
        }
        // Who comes later finds them, and they come back where they were, or elsewhere.
        let second = apart.client(2).await;
        for (number, address) in [(3, &added[0]), (4, &addresses(1)[0])] {
            apart.kill(ProcessId::storage(number)).await;
            apart.start_added(number, address).await;
        }
        assert_eq!(table.read().await, rows);
        second.catalog_at(client.frontier()).await.expect("it follows");
        assert_eq!(Table::find(&second, "t").read().await, rows);
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_routers_are_replaced_and_everybody_finds_the_new_ones() {
    let test = async {
        let mut apart = Apart::start_all(3, 2, 2).await;
        let (first, second) = (apart.client(1).await, apart.client(2).await);
        let table = Table::create(&first, "t").await;
        second.catalog_at(first.frontier()).await.expect("it follows");
        let tables = [table, Table::find(&second, "t")];
        let mut known = BTreeMap::new();
        let described = apart.description.clone();
        for old in 1..=3 {
            let old = ProcessId::router(old);
            if old.number == 2 {
                apart.kill(old).await;
            }
            let added = apart.add_router(&first).await;
            insert(&tables, i64::from(old.number) * 100..i64::from(old.number) * 100 + 20, &mut known).await;
            first.remove_router(old).await.expect("the others suffice");
            if let Some(removed) = apart.members.remove(&old) {
                let reason = removed.failure().await;
                assert!(reason.contains(&format!("router {old} has been removed")), "{reason}");
                removed.kill().await;
            }
            insert(&tables, i64::from(old.number) * 100 + 20..i64::from(old.number) * 100 + 40, &mut known)
                .await;
            assert!(first.routers().contains(added));
        }
        // Whoever was away finds none of the routers that it knows, but others who know better; a removed router learns
        // from them, too, that it is none.
        apart.description = described;
        let error = Member::start(apart.options(ProcessId::router(2))).await.err().expect("it is refused");
        assert!(error.to_string().contains("router r2 has been removed"), "{error}");
        apart.kill(ProcessId::client(2)).await;
        std::fs::remove_file(apart.directory.path().join("c2/known-routers"))
            .expect("it has heard of routers");
        let second = apart.client(2).await;
        second.catalog_at(first.frontier()).await.expect("it follows");
        assert_eq!(second.routers().voters().collect::<Vec<_>>(), [4, 5, 6].map(ProcessId::router));
        // All at once, and everybody knows from before who the routers are.
        let ids: Vec<ProcessId> = apart.members.keys().copied().collect();
        for id in &ids {
            apart.kill(*id).await;
        }
        for id in ids.iter().filter(|id| id.kind != ProcessKind::Client) {
            apart.restart(*id).await;
        }
        let client = apart.client(1).await;
        client.catalog_at(carousel_engine::Ts(1)).await.expect("it follows");
        let found = Table::find(&client, "t").read().await;
        assert!(known.keys().all(|key| found.contains_key(key)), "acknowledged, but lost");
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// All routers have lost everything, and of the storage processes nobody has ended one.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_an_earlier_cluster_does_not_mislead_a_new_one() {
    let test = async {
        let mut earlier = Apart::start_all(3, 2, 2).await;
        let client = earlier.client(1).await;
        let first = earlier.description.clone();
        earlier.add_router(&client).await;
        client.remove_router(ProcessId::router(1)).await.expect("the others suffice");
        let (left, number) = (ProcessId::storage(1), client.routers().edition().cluster);
        assert!(number.is_some());
        for id in earlier.members.keys().copied().filter(|id| *id != left).collect::<Vec<_>>() {
            earlier.kill(id).await;
        }

        let mut apart = Apart::new(1, 1, 1);
        apart.description = first;
        let ids: Vec<ProcessId> = apart.description.members().into_keys().filter(|id| *id != left).collect();
        for id in ids {
            apart.start(id).await;
        }
        let client = apart.client(2).await;
        client.routers_when(|routers| routers.edition().cluster.is_some()).await.expect("it is founded");
        assert_ne!(client.routers().edition().cluster, number);
        assert_eq!(client.routers().voters().collect::<Vec<_>>(), [1, 2, 3].map(ProcessId::router));
        earlier.kill(left).await;
        // Nor does its directory.
        let directory = |apart: &Apart| apart.directory.path().join(left.to_string());
        let own = std::mem::replace(&mut apart.description.current, client.routers());
        copy(&directory(&earlier), &directory(&apart));
        let error = Member::start(apart.options(left)).await.err().expect("it belongs to another cluster");
        assert!(error.to_string().contains("another cluster of the same name"), "{error}");
        apart.description.current = own;
        apart.lose_directory(left);
        apart.start(left).await;
        let table = Table::create(&client, "t").await;
        assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
        assert_eq!(table.read().await, [(1, 1)].into());
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// Why a router does not start.
async fn router_refused(apart: &Apart, id: ProcessId) -> String {
    Member::start(apart.options(id)).await.err().expect("it is refused").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_has_lost_its_directory_is_refused_by_the_others() {
    let test = async {
        let mut apart = Apart::start_all(3, 1, 1).await;
        let client = apart.client(1).await;
        let table = Table::create(&client, "t").await;
        let (lost, other) = (ProcessId::router(1), ProcessId::router(2));
        // Also one that has heard of it in an earlier life knows better.
        apart.kill(other).await;
        apart.start(other).await;
        apart.kill(lost).await;
        apart.lose_directory(lost);
        // However often it counts a start.
        for _ in 0..3 {
            let reason = router_refused(&apart, lost).await;
            assert!(
                reason.contains("another data directory") && reason.contains("REMOVE ROUTER r1"),
                "{reason}"
            );
        }
        assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
        // While nobody can tell it, it runs, but nobody takes it for the one that it was: there is no quorum.
        apart.kill(other).await;
        apart.kill(ProcessId::router(3)).await;
        apart.lose_directory(lost);
        apart.start(lost).await;
        apart.start(other).await;
        let leads = |state: &State| matches!(state, State::Leading);
        let routers = [lost, other].map(|id| apart.members[&id].router().expect("it is a router"));
        let [one, two] = &routers;
        let led = async {
            tokio::select! { _ = one.wait_for(leads) => (), _ = two.wait_for(leads) => () }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(2), led).await.is_err(),
            "a router without a log votes"
        );
        apart.start(ProcessId::router(3)).await;
        assert_eq!(table.read().await, [(1, 1)].into());
        client.remove_router(lost).await.expect("the others suffice");
        apart.kill(lost).await;
        let taken = apart.description.members()[&ProcessId::storage(1)].clone();
        let refused = client.add_router(None, &taken).await.expect_err("no router will listen there");
        assert_eq!(refused.code.0, *b"42710", "{refused}");
        apart.add_router(&client).await;
        assert_eq!(table.insert(&[(2, 2)]).await, Ok(1));
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// Copies a directory and all that is in it. Whoever runs in it may rename a file meanwhile: then it is copied anew.
fn copy(from: &Path, to: &Path) {
    while let Err(error) = try_to_copy(from, to) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        std::fs::remove_dir_all(to).expect("it can be removed");
    }
}

fn try_to_copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let from = entry?.path();
        let to = to.join(from.file_name().expect("it has a name"));
        match from.is_dir() {
            true => try_to_copy(&from, &to)?,
            false => drop(std::fs::copy(&from, &to)?),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_with_an_old_copy_of_its_directory_is_refused_for_good() {
    let test = async {
        let mut apart = Apart::start_all(3, 1, 1).await;
        let client = apart.client(1).await;
        let table = Table::create(&client, "t").await;
        let (restored, other) = (ProcessId::router(1), ProcessId::router(2));
        apart.kill(restored).await;
        let [directory, old, newest] = ["r1", "old", "newest"].map(|name| apart.directory.path().join(name));
        copy(&directory, &old);
        apart.start(restored).await;
        let follows = |state: &State| matches!(state, State::Following(Some(_)) | State::Leading);
        let router = apart.members[&restored].router().expect("it is a router");
        router.wait_for(follows).await;
        // It may follow by what it remembers. Whoever orders with it alone has heard of its start.
        apart.kill(other).await;
        assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
        apart.start(other).await;
        apart.kill(restored).await;
        std::fs::rename(&directory, &newest).expect("it can be moved");
        std::fs::rename(&old, &directory).expect("it can be moved");
        // The second start is one that none of the others has heard of.
        for _ in 0..3 {
            let reason = router_refused(&apart, restored).await;
            assert!(reason.contains("without its last starts (this is number 2"), "{reason}");
            assert!(reason.contains("REMOVE ROUTER r1"), "{reason}");
        }
        std::fs::remove_dir_all(&directory).expect("it can be removed");
        std::fs::rename(&newest, &directory).expect("it can be moved");
        apart.start(restored).await;
        let router = apart.members[&restored].router().expect("it is a router");
        router.wait_for(follows).await;
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// Its number of starts tells nothing, but the lead router knows what it has confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_with_a_copy_of_its_directory_from_its_last_start_is_found_out() {
    let test = async {
        // The lead router dials those with lower numbers, and is dialled by the others.
        for lowest in [true, false] {
            let mut apart = Apart::start_all(3, 2, 1).await;
            let client = apart.client(1).await;
            let table = Table::create(&client, "t").await;
            assert_eq!(table.insert(&[(0, 0)]).await, Ok(1));
            let leader = client.leader();
            let mut followers = [1, 2, 3].map(ProcessId::router).into_iter().filter(|r| Some(*r) != leader);
            let restored = if lowest { followers.next() } else { followers.next_back() };
            let restored = restored.expect("there are two");
            let directory = apart.directory.path().join(restored.to_string());
            let old = apart.directory.path().join("old");
            copy(&directory, &old);
            for key in 1..50 {
                assert_eq!(table.insert(&[(key, key)]).await, Ok(1));
            }
            // What it has confirmed last it need not know to be committed.
            let writing = tokio::spawn({
                let table = Table::find(&client, "t");
                async move {
                    for key in 100..200 {
                        assert_eq!(table.insert(&[(key, key)]).await, Ok(1));
                    }
                }
            });
            apart.kill(restored).await;
            writing.await.expect("two are a quorum");
            std::fs::remove_dir_all(&directory).expect("it can be removed");
            std::fs::rename(&old, &directory).expect("it can be moved");
            apart.start(restored).await;
            let reason = apart.members[&restored].failure().await;
            assert!(reason.contains("which it had confirmed"), "{reason}");
            apart.kill(restored).await;
            let reason = router_refused(&apart, restored).await;
            assert!(reason.contains("which it had confirmed"), "{reason}");
            assert_eq!(table.insert(&[(-1, 0)]).await, Ok(1), "two are a quorum");
        }
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_has_lost_its_log_alone_is_refused() {
    let test = async {
        let mut apart = Apart::start_all(3, 1, 1).await;
        let client = apart.client(1).await;
        let table = Table::create(&client, "t").await;
        let lost = ProcessId::router(1);
        apart.kill(lost).await;
        let [logs, away] = ["r1/routers", "away"].map(|name| apart.directory.path().join(name));
        std::fs::rename(&logs, &away).expect("it can be moved");
        for is_mounted_on in [false, true] {
            if is_mounted_on {
                std::fs::create_dir_all(logs.join("r1")).expect("it can be created");
            }
            let reason = router_refused(&apart, lost).await;
            assert!(
                reason.contains("r1 has lost its log") && reason.contains("REMOVE ROUTER r1"),
                "{reason}"
            );
        }
        assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
        std::fs::remove_dir_all(&logs).expect("it can be removed");
        std::fs::rename(&away, &logs).expect("it can be moved");
        apart.start(lost).await;
        apart.kill(ProcessId::router(2)).await;
        assert_eq!(table.insert(&[(2, 2)]).await, Ok(1));
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_process_that_has_lost_its_directory_joins_without_data() {
    let test = async {
        let mut apart = Apart::start_all(3, 3, 2).await;
        let client = apart.client(1).await;
        let table = Table::create(&client, "t").await;
        let lost = ProcessId::storage(2);
        let mut known = BTreeMap::new();
        for round in 0..3 {
            apart.kill(lost).await;
            apart.start(lost).await;
            let pairs: Vec<_> = (round * 10..round * 10 + 10).map(|k| (k, k)).collect();
            assert_eq!(table.insert(&pairs).await, Ok(10));
            known.extend(pairs);
        }
        apart.kill(lost).await;
        apart.lose_directory(lost);
        apart.start(lost).await;
        // It counts its lives on from those that others have heard of, and listens to nobody before.
        for k in 100..120 {
            assert_eq!(table.insert(&[(k, k)]).await, Ok(1));
            known.insert(k, k);
            assert_eq!(table.read().await, known);
        }
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// A router and storage processes, each of which alone has its part of a table's rows.
async fn with_rows(storage: usize) -> (Apart, Client, Table, Vec<(i64, i64)>) {
    let mut apart = Apart::start_all(1, storage, 1).await;
    let client = apart.client(1).await;
    let table = Table::create(&client, "t").await;
    let pairs: Vec<(i64, i64)> = (0..600).map(|k| (k, k)).collect();
    assert_eq!(table.insert(&pairs).await, Ok(600));
    (apart, client, table, pairs)
}

/// Nobody else has its rows, so others wait for it, unless somebody says that it is not coming back.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_alone_had_is_given_up_on_demand() {
    let test = async {
        let (mut apart, client, table, pairs) = with_rows(3).await;
        let process = ProcessId::storage(2);
        let connected = client.contract_with_loss(process).await.expect_err("it is there");
        assert!(connected.message.contains("s2 is connected"), "{connected}");

        apart.kill(process).await;
        let held = client.config().held(process);
        // The client has to notice that it is gone.
        let (_, lost) = loop {
            match client.contract_with_loss(process).await {
                Err(error) if error == connected => tokio::time::sleep(Duration::from_millis(10)).await,
                outcome => break outcome.expect("a possible change"),
            }
        };
        assert_eq!(lost, held);
        let [gone, kept] = table.split(&pairs, &lost);
        assert_eq!(table.read().await, kept.iter().copied().collect());
        // The range is there again, for others.
        assert_eq!(table.insert(&gone).await, Ok(gone.len() as u64));
        assert_eq!(table.read().await, pairs.iter().copied().collect());
        for survivor in [1, 3].map(ProcessId::storage) {
            // How s2 has voted is known to these two only, until it is in their checkpoints.
            let mut progress = apart.members[&survivor].progress().expect("it is a storage process");
            let durable = |progress: &Progress| progress.watermarks.durable > Ts::ZERO;
            progress.wait_for(durable).await.expect("it writes a checkpoint");
        }
        for survivor in [1, 3].map(ProcessId::storage) {
            apart.kill(survivor).await;
            apart.start(survivor).await;
        }
        assert_eq!(table.read().await, pairs.iter().copied().collect());

        apart.start(process).await;
        let reason = apart.members[&process].failure().await;
        assert!(reason.contains("s2 has been given up"), "{reason}");
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// Who is to receive its rows waits for them, and others wait for that one.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_rows_that_are_given_up_goes_on_without_them() {
    let test = async {
        let (mut apart, client, table, pairs) = with_rows(3).await;
        let process = ProcessId::storage(2);
        let held = client.config().held(process);
        apart.kill(process).await;
        client.contract(process).await.expect("it is not known to be dead");
        assert!(!client.config().migrations().is_empty(), "its rows are to be sent");
        let left = client.replace_with_loss(process, None).await.expect_err("it has no place on the ring");
        assert!(left.message.contains("s2 has left the ring"), "{left}");
        let unknown = client.replace_with_loss(ProcessId::storage(9), None).await.expect_err("there is none");
        assert_eq!(unknown.message, "s9 is not part of the system");
        // It does not join without what others wait for: its directory may be found again.
        apart.lose_directory(process);
        apart.start(process).await;
        let reason = apart.members[&process].failure().await;
        let told = ["nobody but s2 has the rows", "CONTRACT BY s2 WITH DATA LOSS"];
        assert!(told.iter().all(|text| reason.contains(text)), "{reason}");
        apart.kill(process).await;
        let waits = tokio::spawn({
            let table = Table::find(&client, "t");
            let pairs: Vec<(i64, i64)> = (1000..1020).map(|k| (k, k)).collect();
            async move { table.insert(&pairs).await }
        });
        let lost = loop {
            match client.contract_with_loss(process).await {
                // The client has to notice that it is gone, and to hear that the receiver lacks the rows.
                Err(error) if error.code == SqlState(*b"55000") => {
                    assert!(!waits.is_finished(), "it needs rows that nobody has");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                outcome => break outcome.expect("it has not sent them").1,
            }
        };
        assert_eq!(lost, held);
        let outcome = waits.await.expect("it ends");
        assert_eq!(outcome, Err(SqlState::OUTCOME_UNKNOWN), "it has no effect");
        let [gone, kept] = table.split(&pairs, &lost);
        assert_eq!(table.read().await, kept.iter().copied().collect());
        assert_eq!(table.insert(&gone).await, Ok(gone.len() as u64));
        client.settled().await.expect("nothing is waited for any more");
        for survivor in [1, 3].map(ProcessId::storage) {
            apart.kill(survivor).await;
            apart.start(survivor).await;
        }
        assert_eq!(table.read().await, pairs.iter().copied().collect());
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_its_directory_again_has_its_rows() {
    its_directory_is_away_for_a_while(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_its_directory_again_sends_what_others_wait_for() {
    its_directory_is_away_for_a_while(true).await;
}

/// A disk was not there when a process was started that alone has some rows, or is to send them.
async fn its_directory_is_away_for_a_while(leaves: bool) {
    let test = async {
        let (mut apart, client, table, pairs) = with_rows(3).await;
        let process = ProcessId::storage(2);
        apart.kill(process).await;
        if leaves {
            client.contract(process).await.expect("it is not known to be dead");
        }
        let [directory, away] = ["s2", "away"].map(|name| apart.directory.path().join(name));
        std::fs::rename(&directory, &away).expect("it can be moved");
        // Also where each start finds another directory, in which lives are counted from 1; and where there is one start, whose
        // number is that of the next in the right directory.
        let starts: &[bool] = if leaves { &[false, false, true] } else { &[false] };
        for is_another in starts.iter().copied() {
            if is_another {
                std::fs::remove_dir_all(&directory).expect("it can be removed");
            }
            apart.start(process).await;
            let reason = apart.members[&process].failure().await;
            assert!(reason.contains("nobody but s2 has the rows"), "{reason}");
            apart.kill(process).await;
        }
        std::fs::remove_dir_all(&directory).expect("it can be removed");
        std::fs::rename(&away, &directory).expect("it can be moved");
        apart.start(process).await;
        assert_eq!(table.read().await, pairs.into_iter().collect());
        client.settled().await.expect("everything is received");
        // What it orders has an effect, too.
        if leaves {
            client.expand(Some(process), None).await.expect("it is a standby");
        }
        assert_eq!(table.insert(&[(1000, 1)]).await, Ok(1));
        client.settled().await.expect("it says that it has received everything");
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_name_no_standby_do_not_fight_for_one() {
    let test = async {
        let (mut apart, client, table, pairs) = with_rows(2).await;
        for (number, address) in [3, 4].into_iter().zip(&addresses(2)) {
            apart.start_added(number, address).await;
        }
        client.config_when(|config| config.standbys().count() == 2).await.expect("they join");
        let (one, other) = tokio::join!(client.expand(None, None), client.expand(None, None));
        let mut added = [one, other].map(|added| added.expect("there is one for each").0.number);
        added.sort_unstable();
        assert_eq!(added, [3, 4]);
        client.settled().await.expect("everything is received");
        assert_eq!(table.read().await, pairs.into_iter().collect());
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_received_nothing_need_not_be_given_up() {
    let test = async {
        let (mut apart, client, table, pairs) = with_rows(2).await;
        let (process, address) = (ProcessId::storage(3), addresses(1).remove(0));
        apart.start_added(3, &address).await;
        client
            .config_when(|config| config.standbys().any(|standby| standby == process))
            .await
            .expect("it joins");
        apart.kill(process).await;
        client.expand(Some(process), None).await.expect("it is not known to be dead");
        for outcome in
            [client.replace_with_loss(process, None).await, client.contract_with_loss(process).await]
        {
            let error = outcome.expect_err("others have everything");
            assert!(error.message.contains("s3 has nothing yet"), "{error}");
        }
        apart.lose_directory(process);
        apart.start_added(3, &address).await;
        assert_eq!(table.read().await, pairs.into_iter().collect());
        client.settled().await.expect("it receives everything");
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

/// The front end begins with a directory that is not the one that it had: it ends once, and then goes on.
async fn counted_on(apart: &mut Apart) -> Table {
    let id = ProcessId::client(1);
    apart.start(id).await;
    let reason = apart.members[&id].failure().await;
    assert!(reason.contains("the directory of c1 is not the one that it had"), "{reason}");
    apart.kill(id).await;
    let client = apart.client(1).await;
    client.catalog_at(carousel_engine::Ts(1)).await.expect("it follows");
    Table::find(&client, "t")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_end_that_has_lost_its_directory_counts_its_starts_on() {
    let test = async {
        let mut apart = Apart::start_all(1, 2, 2).await;
        let id = ProcessId::client(1);
        let table = Table::create(&apart.client(1).await, "t").await;
        assert_eq!(table.insert(&[(0, 0)]).await, Ok(1));
        for starts in 1..=2 {
            // Its number is the same again, or lower.
            for _ in 1..starts {
                apart.kill(id).await;
                apart.client(1).await;
            }
            apart.kill(id).await;
            apart.lose_directory(id);
            let table = counted_on(&mut apart).await;
            assert_eq!(table.insert(&[(starts, starts)]).await, Ok(1));
            assert_eq!(table.read().await, (0..=starts).map(|k| (k, k)).collect());
        }
        // A copy from before its last start makes another life with the same number.
        apart.kill(id).await;
        let starts = apart.directory.path().join(id.to_string()).join("clients");
        let copy = std::fs::read(&starts).expect("it has been started");
        let client = apart.client(1).await;
        client.catalog_at(carousel_engine::Ts(1)).await.expect("it follows");
        let table = Table::find(&client, "t");
        assert_eq!(table.insert(&[(3, 3), (4, 4)]).await, Ok(2));
        apart.kill(id).await;
        std::fs::write(&starts, copy).expect("it can be put back");
        let table = counted_on(&mut apart).await;
        assert_eq!(table.insert(&[(5, 5)]).await, Ok(1));
        assert_eq!(table.read().await, (0..=5).map(|k| (k, k)).collect());
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_without_a_disk_does_not_come_back_as_the_one_that_it_was() {
    let test = async {
        let mut apart = Apart::new(3, 1, 1);
        apart.description.durability = Durability::Memory;
        for id in apart.description.members().into_keys() {
            apart.start(id).await;
        }
        let client = apart.client(1).await;
        let table = Table::create(&client, "t").await;
        let lost = ProcessId::router(1);
        apart.kill(lost).await;
        let reason = router_refused(&apart, lost).await;
        assert!(reason.contains("durability = memory") && reason.contains("REMOVE ROUTER r1"), "{reason}");
        client.remove_router(lost).await.expect("the others suffice");
        apart.add_router(&client).await;
        apart.kill(ProcessId::router(2)).await;
        assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
        assert_eq!(table.read().await, [(1, 1)].into());
    };
    tokio::time::timeout(PATIENCE, test).await.expect("the cluster makes progress");
}

#[tokio::test]
async fn a_directory_belongs_to_one_process_of_one_cluster() {
    let mut apart = Apart::new(1, 2, 1);
    let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
    apart.start(s1).await;
    let mut second = apart.options(s2);
    second.data_dir = apart.directory.path().join("s1");
    let locked = Member::start(second.clone()).await.err().expect("s1 runs there");
    assert!(matches!(locked, StartError::Locked { .. }), "{locked}");
    apart.kill(s1).await;
    let error = Member::start(second).await.err().expect("it is that of s1").to_string();
    assert!(error.contains("process s1 of cluster") && error.contains("process s2"), "{error}");
    let mut renamed = apart.options(s1);
    renamed.description.name = "other".into();
    let error = Member::start(renamed).await.err().expect("it is another cluster's").to_string();
    assert!(error.contains("apart") && error.contains("other"), "{error}");
    let unknown = apart.options(ProcessId::router(2));
    let error = Member::start(unknown).await.err().expect("there is one router").to_string();
    assert!(error.contains("r2 is not in the cluster's description"), "{error}");
}
