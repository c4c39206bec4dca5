//! Whole clusters in one process: clients against a model, while processes are killed and started again.

mod members;
#[path = "moving/mod.rs"]
mod moving;
mod routers;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arrow::{
    array::{Array, ArrayRef, Int64Array},
    record_batch::RecordBatch,
};
use carousel_cluster::{
    client::{Client, Failure, Part, Request, Submission, staged_ranges},
    config::{Config, Configuration, Membership},
    embedded::{Cluster, EmbeddedOptions, StartError},
    message::{Body, Data, Ddl, ProcessId, ReadIsolation, StagedPayload},
};
use carousel_engine::{
    Few, SqlState, TableSchema, Ts, Type, Value,
    aggregate::{AggregateCall, AggregateFunction},
    expr::{CompareOp, EvalContext, Expr},
    operation::{
        Delete, Insert, InsertRows, OnConflict, Operation, OperationKind, Read, ReadOutput, RowBatch, Update,
    },
    position::KeyRange,
    schema::{Column, Partitioning, TableId},
};
use tokio::sync::watch;

fn options(
    dir: &Path,
    routers: u32,
    storage: u32,
    replication_factor: u32,
    threads: usize,
) -> EmbeddedOptions {
    EmbeddedOptions { routers, storage, replication_factor, threads, ..EmbeddedOptions::new(dir) }
}

/// A cluster that is ready.
async fn started(options: EmbeddedOptions) -> Cluster {
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    cluster.ready().await.expect("the cluster gets ready");
    cluster
}

/// A table of keys and values at the client, and what can be done with it.
#[derive(Clone)]
struct Table {
    client: Client,
    schema: Arc<TableSchema>,
}

fn column(name: &str) -> Column {
    Column { name: name.into(), ty: Type::Int8, not_null: true, default: None }
}

impl Table {
    async fn create(client: &Client, name: &str) -> Table {
        let schema = TableSchema {
            id: TableId(0),
            version: Ts::ZERO,
            name: name.into(),
            columns: vec![column("k"), column("v")],
            primary_key: vec![0],
            primary_key_name: format!("{name}_pkey"),
            partitioning: Partitioning::Hash { columns: vec![0] },
        };
        let body = Body::Ddl(Ddl::CreateTable { schema: Arc::new(schema), if_not_exists: false });
        let request = Request { tables: Default::default(), ranges: Default::default(), body };
        let done = client.submit(request).await.expect("submitted").finish().await.expect("created");
        assert!(matches!(done, Part::Ddl { .. }), "{done:?}");
        Table::find(client, name)
    }

    fn find(client: &Client, name: &str) -> Table {
        let schema = client.catalog().table(name).expect("the table is in the catalog").clone();
        Table { client: client.clone(), schema }
    }

    fn rows(&self, rows: &[(i64, i64)]) -> RowBatch {
        let keys: ArrayRef = Arc::new(rows.iter().map(|(k, _)| *k).collect::<Int64Array>());
        let values: ArrayRef = Arc::new(rows.iter().map(|(_, v)| *v).collect::<Int64Array>());
        let batch = RecordBatch::try_new(self.schema.arrow(), vec![keys, values]).expect("the columns fit");
        let positions = self.schema.partitioning.positions(&self.schema.columns, &batch);
        RowBatch { rows: batch, positions, ordinals: (0..rows.len() as u64).collect() }
    }

    fn request(&self, kind: OperationKind, ranges: impl Into<Few<KeyRange>>, fallible: bool) -> Request {
        let operation = Arc::new(Operation { table: self.schema.id, context: EvalContext::default(), kind });
        let data = Data { fallible, ..Data::new(operation) };
        Request {
            tables: [(self.schema.id, self.schema.version)].into(),
            ranges: ranges.into(),
            body: Body::Data(data),
        }
    }

    async fn write(&self, request: Request) -> Result<u64, SqlState> {
        match self.client.submit(request).await.expect("submitted").finish().await {
            Ok(Part::Done { rows, .. }) => Ok(rows),
            Err(Failure::Sql(error)) => Err(error.code),
            other => panic!("{other:?}"),
        }
    }

    fn insert_request(&self, rows: InsertRows, ranges: impl Into<Few<KeyRange>>) -> Request {
        let insert = Insert { rows, on_conflict: OnConflict::Fail, returning: None };
        self.request(OperationKind::Insert(insert), ranges, true)
    }

    async fn insert(&self, rows: &[(i64, i64)]) -> Result<u64, SqlState> {
        let rows = self.rows(rows);
        let ranges = carousel_engine::position::normalise(
            rows.positions.iter().copied().map(KeyRange::point).collect(),
        );
        self.write(self.insert_request(InsertRows::Inline(rows), ranges)).await
    }

    /// `UPDATE SET v = value`
    async fn set(&self, value: i64) -> Result<u64, SqlState> {
        let value = Expr::literal(Value::Int8(value), Type::Int8);
        let update = Update { predicate: Vec::new(), assignments: vec![(1, value)], returning: None };
        self.write(self.request(OperationKind::Update(update), vec![KeyRange::FULL], true)).await
    }

    /// `UPDATE SET v = NULL WHERE k >= at`: fails when there is such a row, and only in the ranges that have one.
    async fn fail_at(&self, at: i64) -> Result<u64, SqlState> {
        let predicate = vec![Expr::Compare {
            op: CompareOp::Ge,
            left: Box::new(Expr::column(0, Type::Int8)),
            right: Box::new(Expr::literal(Value::Int8(at), Type::Int8)),
        }];
        let null = Expr::literal(Value::Null, Type::Int8);
        let update = Update { predicate, assignments: vec![(1, null)], returning: None };
        self.write(self.request(OperationKind::Update(update), vec![KeyRange::FULL], true)).await
    }

    /// `DELETE WHERE k < below`
    async fn delete_below(&self, below: i64) -> Result<u64, SqlState> {
        let predicate = vec![Expr::Compare {
            op: CompareOp::Lt,
            left: Box::new(Expr::column(0, Type::Int8)),
            right: Box::new(Expr::literal(Value::Int8(below), Type::Int8)),
        }];
        let delete = Delete { predicate, returning: None };
        self.write(self.request(OperationKind::Delete(delete), vec![KeyRange::FULL], false)).await
    }

    /// Those of its rows that are in some ranges, and the others; there are many of both.
    fn split(&self, pairs: &[(i64, i64)], ranges: &[KeyRange]) -> [Vec<(i64, i64)>; 2] {
        let position = |(k, _): &(i64, i64)| self.rows(&[(*k, *k)]).positions[0];
        let is_in = |pair: &(i64, i64)| ranges.iter().any(|range| range.contains(position(pair)));
        let (inside, outside): (Vec<_>, Vec<_>) = pairs.iter().copied().partition(is_in);
        assert!(inside.len() > 50 && outside.len() > 50, "{} rows are in the ranges", inside.len());
        [inside, outside]
    }

    async fn read(&self) -> BTreeMap<i64, i64> {
        self.read_as(ReadIsolation::Sequential).await
    }

    async fn read_as(&self, isolation: ReadIsolation) -> BTreeMap<i64, i64> {
        self.read_at(None, isolation).await.expect("a read does not fail")
    }

    /// All rows; a read that lost a storage process half-way is repeated.
    async fn read_at(
        &self,
        read_ts: Option<Ts>,
        isolation: ReadIsolation,
    ) -> Result<BTreeMap<i64, i64>, SqlState> {
        loop {
            let projection = vec![Expr::column(0, Type::Int8), Expr::column(1, Type::Int8)];
            let output = ReadOutput::Rows { projection, top: None };
            let read = OperationKind::Read(Read { predicate: Vec::new(), output });
            let mut request = self.request(read, vec![KeyRange::FULL], false);
            if let Body::Data(data) = &mut request.body {
                data.read_ts = read_ts;
            }
            let mut submission = self.client.submit_read(request, isolation).await.expect("submitted");
            let mut rows = BTreeMap::new();
            let ended = loop {
                match submission.next().await.expect("it ends with Done or a failure") {
                    Ok(Part::Rows(batch)) => {
                        let column = |i: usize| {
                            batch
                                .column(i)
                                .as_any()
                                .downcast_ref::<Int64Array>()
                                .expect("bigint")
                                .values()
                                .to_vec()
                        };
                        for (k, v) in column(0).into_iter().zip(column(1)) {
                            assert_eq!(rows.insert(k, v), None, "key {k} came twice");
                        }
                    }
                    Ok(Part::Done { .. }) => break Ok(rows),
                    Err(Failure::Sql(error)) => break Err(error.code),
                    other => panic!("{other:?}"),
                }
            };
            match ended {
                Err(SqlState::SERIALIZATION_FAILURE) if read_ts.is_none() => {}
                ended => return ended,
            }
        }
    }
}

/// A small generator of numbers: tests must not depend on chance.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Writes and reads one table, of which this is the only writer, and compares with a model; counts its rounds.
async fn work(
    table: Table,
    seed: u64,
    stop: Arc<AtomicBool>,
    rounds: watch::Sender<u64>,
) -> BTreeMap<i64, i64> {
    let mut numbers = Numbers(seed);
    let mut model: BTreeMap<i64, i64> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        match numbers.below(8) {
            0 | 1 => {
                let first = numbers.below(200) as i64;
                let rows: Vec<(i64, i64)> =
                    (first..first + 8).map(|k| (k, numbers.below(1000) as i64)).collect();
                let outcome = table.insert(&rows).await;
                if rows.iter().any(|(k, _)| model.contains_key(k)) {
                    assert_eq!(outcome, Err(SqlState::UNIQUE_VIOLATION));
                } else {
                    assert_eq!(outcome, Ok(8));
                    model.extend(rows);
                }
            }
            2 => {
                let value = numbers.below(1000) as i64;
                assert_eq!(table.set(value).await, Ok(model.len() as u64));
                model.values_mut().for_each(|v| *v = value);
            }
            3 => {
                let at = 100 + numbers.below(100) as i64;
                let expected = match model.range(at..).next() {
                    Some(_) => Err(SqlState::NOT_NULL_VIOLATION),
                    None => Ok(0),
                };
                assert_eq!(table.fail_at(at).await, expected);
            }
            4 => {
                let below = numbers.below(60) as i64;
                let kept = model.split_off(&below);
                assert_eq!(table.delete_below(below).await, Ok(model.len() as u64));
                model = kept;
            }
            // A client sees what it has done, however its reads are ordered.
            5 => assert_eq!(table.read().await, model),
            6 => assert_eq!(table.read_as(ReadIsolation::Basic).await, model),
            _ => assert_eq!(table.read_as(ReadIsolation::Snapshot).await, model),
        }
        rounds.send_modify(|rounds| *rounds += 1);
    }
    model
}

/// Waits until every worker has done `more` further rounds.
async fn progress(workers: &mut [watch::Receiver<u64>], more: u64) {
    for rounds in workers {
        let goal = *rounds.borrow() + more;
        rounds.wait_for(|rounds| *rounds >= goal).await.expect("the worker works on");
    }
}

async fn leader(cluster: &Cluster, routers: u32) -> u32 {
    loop {
        for number in 1..=routers {
            if cluster.router(number).is_some_and(|r| r.state() == carousel_cluster::router::State::Leading) {
                return number;
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn disturbed(routers: u32, storage: u32, replication_factor: u32, threads: usize, clients: usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), routers, storage, replication_factor, threads);
    let cluster = started(options.clone()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut workers, mut rounds) = (Vec::new(), Vec::new());
    for number in 0..clients {
        let client = cluster.add_client().expect("a client starts");
        let table = Table::create(&client, &format!("t{number}")).await;
        let (sender, receiver) = watch::channel(0);
        rounds.push(receiver);
        workers.push(tokio::spawn(work(table, 0x9E37_79B9 + number as u64, stop.clone(), sender)));
    }
    progress(&mut rounds, 10).await;
    for round in 0..2 {
        let victim = leader(&cluster, routers).await;
        cluster.kill_router(victim).await;
        if routers > 1 {
            progress(&mut rounds, 5).await;
        }
        cluster.restart_router(victim).await.expect("the router starts again");
        progress(&mut rounds, 5).await;
        let victim = 1 + round % storage;
        cluster.kill_storage(victim).await;
        if replication_factor > 1 {
            progress(&mut rounds, 5).await;
        }
        cluster.restart_storage(victim).await.expect("the storage process starts again");
        progress(&mut rounds, 5).await;
        cluster.checkpoint().await.expect("a checkpoint is made");
        progress(&mut rounds, 5).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut models = Vec::new();
    for worker in workers {
        models.push(worker.await.expect("no assertion failed"));
    }
    // Everything ends at once and starts again.
    cluster.kill().await;
    let cluster = started(options.clone()).await;
    for (number, model) in models.iter().enumerate() {
        assert_eq!(Table::find(&cluster.client(), &format!("t{number}")).read().await, *model);
    }
    cluster.shutdown().await.expect("a clean end");
    let cluster = started(options).await;
    for (number, model) in models.iter().enumerate() {
        assert_eq!(Table::find(&cluster.client(), &format!("t{number}")).read().await, *model);
    }
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicated_clusters_survive_kills() {
    disturbed(3, 4, 2, 2, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreplicated_clusters_survive_kills() {
    disturbed(1, 2, 1, 1, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_to_all_rows_are_atomic_for_all_readers() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(options(dir.path(), 1, 3, 2, 2)).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "shared").await;
    let rows: Vec<(i64, i64)> = (0..100).map(|k| (k, 0)).collect();
    assert_eq!(table.insert(&rows).await, Ok(100));
    let mut writers = Vec::new();
    for writer in 0..4 {
        let client = cluster.add_client().expect("a client starts");
        // The new client follows the m-seq from where it joins.
        client.catalog_at(cluster.client().frontier()).await.expect("it runs");
        let table = Table::find(&client, "shared");
        writers.push(tokio::spawn(async move {
            for write in 0..20 {
                assert_eq!(table.set(100 * writer + write).await, Ok(100));
            }
        }));
    }
    for round in 0..40 {
        let isolation = if round % 2 == 0 { ReadIsolation::Sequential } else { ReadIsolation::Snapshot };
        let seen = table.read_as(isolation).await;
        assert_eq!(seen.len(), 100);
        let first = seen[&0];
        assert!(seen.values().all(|v| *v == first), "a read saw half a write: {seen:?}");
    }
    let pin = cluster.client().pin(Duration::from_secs(60)).await.expect("a pin");
    let pinned = table.read_at(Some(pin.ts()), ReadIsolation::Sequential).await.expect("the pin holds");
    for writer in writers {
        writer.await.expect("no assertion failed");
    }
    assert_eq!(
        table.read_at(Some(pin.ts()), ReadIsolation::Sequential).await.expect("the pin holds"),
        pinned
    );
    let ts = pin.ts();
    drop(pin);
    assert!(table.read().await.values().all(|v| v % 100 == 19), "the last write of some writer");
    assert_eq!(
        table.read_at(Some(ts), ReadIsolation::Sequential).await,
        Err(SqlState::SERIALIZATION_FAILURE)
    );
    cluster.shutdown().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_rows_are_inserted_even_when_a_copy_is_damaged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 1, 2, 2, 1);
    let cluster = Cluster::start(options.clone()).await.expect("the cluster starts");
    let client = cluster.client();
    let table = Table::create(&client, "t").await;
    let rows: Vec<(i64, i64)> = (0..1000).map(|k| (k, -k)).collect();
    let mut stager = client.stage();
    for chunk in rows.chunks(100) {
        stager.push(&table.rows(chunk)).await.expect("staged");
    }
    let id = stager.id();
    let payload: StagedPayload = stager.finish().await.expect("every holder has it");
    // Half of s1's chunks rot.
    let dir_of_payload = dir
        .path()
        .join("storage/s1/payloads")
        .join(format!("{}-{}-{}", id.process, id.incarnation, id.sequence));
    let chunks: Vec<_> = std::fs::read_dir(&dir_of_payload).expect("it is there").collect();
    assert_eq!(chunks.len(), 20, "ten chunks in each of two ranges");
    for chunk in chunks.into_iter().step_by(2) {
        let path = chunk.expect("readable").path();
        let mut bytes = std::fs::read(&path).expect("readable");
        *bytes.last_mut().expect("not empty") ^= 1;
        std::fs::write(path, bytes).expect("writable");
    }
    let mut request = table.insert_request(InsertRows::Staged(id), staged_ranges(&payload));
    if let Body::Data(data) = &mut request.body {
        data.staged = Some(Box::new(payload.clone()));
    }
    assert_eq!(table.write(request).await, Ok(1000));
    stager.submitted();
    let model: BTreeMap<i64, i64> = rows.iter().copied().collect();
    // Whoever answers, the rows are all there.
    for _ in 0..4 {
        assert_eq!(table.read().await, model);
    }
    // A payload that comes too late has no effect.
    let mut late = payload;
    late.latest = Ts(1);
    let mut request = table.insert_request(InsertRows::Staged(id), staged_ranges(&late));
    if let Body::Data(data) = &mut request.body {
        data.staged = Some(Box::new(late));
    }
    let outcome = client.submit(request).await.expect("submitted").finish().await;
    assert!(matches!(outcome, Err(Failure::Stale { .. })), "{outcome:?}");
    // Replays need the payload until checkpoints have passed it.
    cluster.kill().await;
    let cluster = started(options).await;
    assert_eq!(Table::find(&cluster.client(), "t").read().await, model);
    cluster.shutdown().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_limit_refuses_rows_before_they_are_ordered() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut options = options(dir.path(), 1, 1, 1, 1);
    options.memory_limit = Some(100_000);
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "t").await;
    let mut key = 0;
    let error = loop {
        let rows: Vec<(i64, i64)> = (key..key + 100).map(|k| (k, 0)).collect();
        key += 100;
        let rows = table.rows(&rows);
        let request = table.insert_request(InsertRows::Inline(rows), vec![KeyRange::FULL]);
        match cluster.client().submit(request).await {
            Ok(submission) => {
                submission.finish().await.expect("inserted");
            }
            Err(error) => break error,
        }
        assert!(key < 1_000_000, "the limit does not hold");
    };
    assert_eq!(error.code, SqlState::OUT_OF_MEMORY);
    assert!(error.hint.is_some());
    cluster.shutdown().await.expect("a clean end");
}

/// Somebody must be there to be told that its rows are given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_starts_without_the_directory_of_a_storage_process() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 1, 2, 1, 1);
    let start = || started(options.clone());
    let cluster = start().await;
    let pairs: Vec<(i64, i64)> = (0..200).map(|k| (k, k)).collect();
    let table = Table::create(&cluster.client(), "t").await;
    assert_eq!(table.insert(&pairs).await, Ok(200));
    cluster.shutdown().await.expect("a clean end");
    let [directory, away] = ["storage/s2", "away"].map(|name| dir.path().join(name));
    std::fs::rename(&directory, &away).expect("it can be moved");
    for _ in 0..2 {
        start().await.shutdown().await.expect("a clean end");
    }
    let [other, other_away] = ["storage/s1", "other"].map(|name| dir.path().join(name));
    std::fs::rename(&other, &other_away).expect("it can be moved");
    start().await.shutdown().await.expect("a clean end");
    std::fs::remove_dir_all(&other).expect("it can be removed");
    std::fs::rename(&other_away, &other).expect("it can be moved");
    // What is copied back is what it had, whatever it has met meanwhile.
    for entry in std::fs::read_dir(&away).expect("it is there") {
        let entry = entry.expect("it can be read");
        let to = directory.join(entry.file_name());
        if to.is_dir() {
            std::fs::remove_dir_all(&to).expect("it can be removed");
        }
        std::fs::rename(entry.path(), to).expect("it can be moved");
    }
    let cluster = start().await;
    assert_eq!(Table::find(&cluster.client(), "t").read().await, pairs.iter().copied().collect());
    cluster.shutdown().await.expect("a clean end");

    std::fs::remove_dir_all(&directory).expect("it can be removed");
    let cluster = start().await;
    let by = cluster.add_storage().await.expect("it starts");
    let (_, lost) = cluster
        .client()
        .replace_with_loss(ProcessId::storage(2), Some(by))
        .await
        .expect("nobody else has them");
    let table = Table::find(&cluster.client(), "t");
    let [gone, kept] = table.split(&pairs, &lost);
    assert_eq!(table.read().await, kept.into_iter().collect());
    assert_eq!(table.insert(&gone).await, Ok(gone.len() as u64));
    cluster.shutdown().await.expect("a clean end");
}

/// Others need what it voted.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_starts_though_a_directory_is_lost_that_undecided_writes_need() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 1, 2, 1, 1);
    let start = || started(options.clone());
    let cluster = start().await;
    let table = Table::create(&cluster.client(), "t").await;
    let pairs: Vec<(i64, i64)> = (0..200).map(|k| (k, k)).collect();
    assert_eq!(table.insert(&pairs).await, Ok(200));
    cluster.checkpoint().await.expect("it can be written");
    let undecided: Vec<(i64, i64)> = (200..400).map(|k| (k, k)).collect();
    assert_eq!(table.insert(&undecided).await, Ok(200));
    cluster.kill().await;
    std::fs::remove_dir_all(dir.path().join("storage/s2")).expect("it can be removed");
    let cluster = start().await;
    let mut other = cluster.storage_progress(1).expect("it runs");
    other.wait_for(|other| other.logged > 0).await.expect("it replays");
    let ended = cluster.shutdown().await;
    assert_eq!(ended.map_err(|error| error.code), Err(SqlState::UNAVAILABLE));

    let cluster = start().await;
    let by = cluster.add_storage().await.expect("it starts");
    let replaced = cluster.client().replace_with_loss(ProcessId::storage(2), Some(by)).await;
    let (_, lost) = replaced.expect("nobody else has them");
    let table = Table::find(&cluster.client(), "t");
    let [gone, kept] = table.split(&pairs, &lost);
    assert!(!gone.is_empty() && !kept.is_empty());
    // Nobody knows any more whether the others can be: a part of a write is none.
    assert_eq!(table.read().await, kept.into_iter().collect());
    assert_eq!(table.insert(&undecided).await, Ok(200));
    cluster.shutdown().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_cluster_copies_what_a_lost_directory_had() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { heals: true, ..options(dir.path(), 1, 2, 2, 1) };
    let cluster = Cluster::start(options.clone()).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "t").await;
    assert_eq!(table.insert(&[(1, 10), (2, 20)]).await, Ok(2));
    cluster.shutdown().await.expect("a clean end");
    std::fs::remove_dir_all(dir.path().join("storage/s1")).expect("it can be removed");
    let cluster = started(options).await;
    let process = ProcessId::storage(1);
    let is_back = |config: &Config| {
        config.is_active(process) && !config.is_suspected(process) && config.incarnation(process) > Some(1)
    };
    tokio::time::timeout(Duration::from_secs(60), cluster.client().config_when(is_back))
        .await
        .expect("it heals")
        .expect("no stop");
    cluster.client().settled().await.expect("it is sent the rows");
    cluster.kill_storage(2).await;
    assert_eq!(Table::find(&cluster.client(), "t").read().await, [(1, 10), (2, 20)].into());
    cluster.shutdown().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_is_used_by_one_cluster_of_its_own_shape() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let first = Cluster::start(options(dir.path(), 1, 1, 1, 1)).await.expect("the cluster starts");
    let mut ids = vec![first.client().reserve_row_ids(10).expect("there are many")];
    ids.push(first.client().next_row_id().expect("there are many"));
    let second = Cluster::start(options(dir.path(), 1, 1, 1, 1)).await;
    assert!(matches!(second, Err(StartError::Locked { .. })), "{second:?}");
    first.shutdown().await.expect("a clean end");
    let other = Cluster::start(options(dir.path(), 1, 2, 1, 1)).await;
    assert!(matches!(other, Err(StartError::Shape { .. })), "{other:?}");
    let again = Cluster::start(options(dir.path(), 1, 1, 1, 1)).await.expect("the cluster starts");
    ids.push(again.client().next_row_id().expect("there are many"));
    assert!(ids[0] + 10 == ids[1] && ids[1] < ids[2], "{ids:?}");
    again.kill().await;
    std::fs::write(dir.path().join("CAROUSEL"), "format 99\nanything\n").expect("writable");
    let newer = Cluster::start(options(dir.path(), 1, 1, 1, 1)).await;
    assert!(matches!(newer, Err(StartError::Format { .. })), "{newer:?}");
    let foreign = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(foreign.path().join("precious"), "data").expect("writable");
    let refused = Cluster::start(options(foreign.path(), 1, 1, 1, 1)).await;
    assert!(matches!(refused, Err(StartError::Damaged { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_snapshot_reads_without_a_write_between_them() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(options(dir.path(), 1, 2, 1, 2)).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "quiet").await;
    assert_eq!(table.insert(&[(1, 2), (3, 4)]).await, Ok(2));
    let before = cluster.client().frontier();
    // More than a storage process can tell apart between two messages.
    let readers = (0..8).map(|_| {
        let table = table.clone();
        tokio::spawn(async move {
            for _ in 0..10_000 {
                assert_eq!(table.read_as(ReadIsolation::Snapshot).await.len(), 2);
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.expect("no assertion failed");
    }
    let moved = cluster.client().frontier().0 - before.0;
    // The more slowly they are ordered the fewer.
    assert!((2..1000).contains(&moved), "80,000 reads made {moved} messages");
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_that_nobody_waits_for_any_more_is_released() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = started(options(dir.path(), 1, 2, 2, 2)).await;
    let client = cluster.client();
    let table = Table::create(&client, "pinned").await;
    let before = client.pin(Duration::from_secs(600)).await.expect("it is ordered");
    {
        let abandoned = client.pin(Duration::from_secs(600));
        tokio::pin!(abandoned);
        assert!(futures::poll!(&mut abandoned).is_pending(), "it is submitted");
    }
    // The next in the m-seq, unless somebody made a checkpoint meanwhile.
    let ts = carousel_engine::Ts(before.ts().0 + 1);
    let after = client.pin(Duration::from_secs(600)).await.expect("it is ordered");
    assert!(ts < after.ts(), "there is room in the window, so that it is submitted at once");
    let is_released = async {
        while table.read_at(Some(ts), ReadIsolation::Sequential).await != Err(SqlState::SERIALIZATION_FAILURE)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), is_released).await.expect("nobody holds it");
    assert_eq!(table.read_at(Some(before.ts()), ReadIsolation::Sequential).await, Ok(BTreeMap::new()));
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_outlives_the_restart_of_a_replica_behind_a_checkpoint() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = started(options(dir.path(), 1, 2, 2, 2)).await;
    let table = Table::create(&cluster.client(), "pinned").await;
    assert_eq!(table.insert(&[(1, 2), (3, 4)]).await, Ok(2));
    let pin = cluster.client().pin(Duration::from_secs(60)).await.expect("it is ordered");
    assert_eq!(table.set(5).await, Ok(2));
    cluster.checkpoint().await.expect("a checkpoint is made");
    let seen = BTreeMap::from([(1, 2), (3, 4)]);
    for (number, read_ts) in [(1, Ok(seen)), (2, Err(SqlState::SERIALIZATION_FAILURE))] {
        cluster.kill_storage(number).await;
        cluster.restart_storage(number).await.expect("it starts again");
        // They take turns in answering reads.
        for _ in 0..4 {
            assert_eq!(table.read_at(Some(pin.ts()), ReadIsolation::Sequential).await, read_ts);
        }
    }
    assert_eq!(table.read().await, BTreeMap::from([(1, 5), (3, 5)]));
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_go_on_without_a_suspected_storage_process() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 1, 3, 2, 2);
    let cluster = started(options).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut workers, mut rounds) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let client = cluster.add_client().expect("a client starts");
        let table = Table::create(&client, &format!("t{number}")).await;
        let (sender, receiver) = watch::channel(0);
        rounds.push(receiver);
        workers.push(tokio::spawn(work(table, 0x517C_C1B7 + number as u64, stop.clone(), sender)));
    }
    progress(&mut rounds, 5).await;
    cluster.kill_storage(2).await;
    let configure = async |membership| {
        let body = Body::Configuration(Configuration::Membership(membership));
        let request = Request { tables: Default::default(), ranges: Default::default(), body };
        cluster.client().submit(request).await.expect("submitted").finish().await
    };
    let victim = ProcessId::storage(2);
    let done = configure(Membership::Suspect { process: victim, incarnation: 9 }).await;
    assert!(matches!(done, Ok(Part::Done { .. })), "{done:?}");
    let config = cluster.client().config();
    assert!(config.is_suspected(victim) && config.version() == 2);
    let error = configure(Membership::Suspect { process: ProcessId::storage(9), incarnation: 9 }).await;
    assert!(
        matches!(&error, Err(Failure::Sql(error)) if error.message == "s9 is not part of the system"),
        "{error:?}"
    );
    progress(&mut rounds, 10).await;
    // The log is cut without it.
    cluster.checkpoint().await.expect("a checkpoint is made");
    progress(&mut rounds, 10).await;
    // Its next life is fenced.
    cluster.restart_storage(2).await.expect("it starts");
    let mut fenced = cluster.storage_progress(2).expect("it runs");
    let stopped = fenced.wait_for(|progress| progress.stopped.is_some()).await.expect("it ends").clone();
    let reason = stopped.stopped.expect("a reason");
    assert!(reason.contains("suspected") || reason.contains("must be copied"), "{reason}");
    progress(&mut rounds, 10).await;
    stop.store(true, Ordering::Relaxed);
    for (number, worker) in workers.into_iter().enumerate() {
        let model = worker.await.expect("no assertion failed");
        assert_eq!(Table::find(&cluster.client(), &format!("t{number}")).read().await, model);
    }
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_storage_process_is_suspected_by_itself() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let patience = Some(Duration::from_secs(1));
    let options = EmbeddedOptions { suspect_after: patience, ..options(dir.path(), 1, 3, 2, 1) };
    let cluster = started(options).await;
    let client = cluster.client();
    let table = Table::create(&client, "t").await;
    for key in 0..10 {
        assert_eq!(table.insert(&[(key, key)]).await, Ok(1));
    }
    cluster.kill_storage(2).await;
    while !client.config().is_suspected(ProcessId::storage(2)) {
        client.order(Body::Pin { lease_ms: 0 }).await.expect("the routers order");
    }
    assert!(!client.config().is_suspected(ProcessId::storage(1)));
    assert_eq!(table.insert(&[(10, 10)]).await, Ok(1));
    assert_eq!(table.read().await.len(), 11);
    // The others hold ranges that nobody else holds any more: they are waited for.
    cluster.kill_storage(3).await;
    let waiting = tokio::spawn({
        let table = table.clone();
        async move { table.read().await.len() }
    });
    cluster.restart_storage(3).await.expect("it starts");
    assert_eq!(waiting.await.expect("no panic"), 11);
    cluster.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_on_without_a_process_that_was_removed() {
    const LIMIT: u64 = 1 << 30;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { memory_limit: Some(LIMIT), ..options(dir.path(), 1, 1, 1, 1) };
    let cluster = started(options).await;
    let client = cluster.client();
    let table = Table::create(&client, "t").await;
    assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
    let come_and_go = async {
        assert_eq!(client.memory().limit, Some(LIMIT));
        let (s2, _) = client.expand(None, None).await.expect("a new process gets a place");
        assert_eq!(client.memory().limit, Some(LIMIT / 2), "all of them together have no more than before");
        client.settled().await.expect("rows move");
        client.contract(s2).await.expect("it leaves the ring");
        client.settled().await.expect("rows move back");
        client.remove(s2).await.expect("it is a standby");
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    // It stops, perhaps before the client hears why, which is no failure.
    tokio::select! {
        reason = cluster.failure() => panic!("{reason}"),
        () = come_and_go => {}
    }
    assert_eq!(table.insert(&[(2, 2)]).await, Ok(1));
    assert_eq!(table.read().await.len(), 2);
    cluster.shutdown().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_that_have_lost_their_logs_are_an_error() {
    for routers in [1, 3] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = options(dir.path(), routers, 2, 1, 1);
        let cluster = Cluster::start(options.clone()).await.expect("the cluster starts");
        let table = Table::create(&cluster.client(), "t").await;
        for key in 0..10 {
            assert_eq!(table.insert(&[(key, key)]).await, Ok(1));
        }
        let founded = cluster.client();
        let founded = founded.routers_when(|routers| routers.edition().cluster.is_some());
        founded.await.expect("the cluster gets its number");
        cluster.shutdown().await.expect("a clean end");
        std::fs::remove_dir_all(dir.path().join("routers")).expect("it can be removed");
        let error = Cluster::start(options.clone()).await.expect_err("no router has its log").to_string();
        assert!(error.contains("has lost its log"), "{error}");
        // Also where it is not known that there was one.
        for router in 1..=routers {
            std::fs::remove_file(dir.path().join(format!("log-r{router}"))).expect("it can be removed");
        }
        let error =
            Cluster::start(options.clone()).await.expect_err("the cluster has its number").to_string();
        assert!(error.contains("has lost its log"), "{error}");
        std::fs::remove_file(dir.path().join("known-routers")).expect("it can be removed");
        let cluster = Cluster::start(options.clone()).await.expect("the cluster starts");
        let error = cluster.ready().await.expect_err("the rows are newer than the log");
        assert!(error.message.contains("the routers have lost messages"), "{error:?}");
        cluster.shutdown().await.expect("nothing has changed");
        // A later start does not forget that.
        let error = Cluster::start(options).await.expect_err("the rows are newer than the log").to_string();
        assert!(error.contains("has stopped itself before, as the routers' log ends at"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_on_without_a_router_that_has_lost_its_log() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = options(dir.path(), 3, 1, 1, 1);
    let cluster = Cluster::start(options.clone()).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "t").await;
    assert_eq!(table.insert(&[(1, 1)]).await, Ok(1));
    cluster.shutdown().await.expect("a clean end");
    let [log, away] = ["routers/r1", "away"].map(|name| dir.path().join(name));
    std::fs::rename(&log, &away).expect("it can be moved");
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    cluster.ready().await.expect("two are a quorum");
    let table = Table::find(&cluster.client(), "t");
    assert_eq!(table.insert(&[(2, 2)]).await, Ok(1));
    let refused = cluster.restart_router(1).await.expect_err("its log is not there");
    assert!(matches!(refused, StartError::LogLost { .. }), "{refused}");
    std::fs::rename(&away, &log).expect("it can be moved");
    cluster.restart_router(1).await.expect("it has its log again");
    cluster.shutdown().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_rows_belong_to_the_table_they_were_staged_for() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(options(dir.path(), 1, 2, 2, 2)).await.expect("the cluster starts");
    let client = cluster.client();
    let table = Table::create(&client, "t").await;
    let stage = async || {
        let rows: Vec<(i64, i64)> = (0..1000).map(|k| (k, -k)).collect();
        let mut stager = client.stage();
        for chunk in rows.chunks(100) {
            stager.push(&table.rows(chunk)).await.expect("staged");
        }
        let payload = stager.finish().await.expect("every holder has it");
        let mut request = table.insert_request(InsertRows::Staged(payload.id), staged_ranges(&payload));
        if let Body::Data(data) = &mut request.body {
            data.staged = Some(Box::new(payload));
        }
        stager.submitted();
        request
    };
    let (first, second) = (stage().await, stage().await);
    let drop = Body::Ddl(Ddl::DropTables { names: vec!["t".into()], if_exists: false });
    let drop = Request { tables: Default::default(), ranges: Default::default(), body: drop };
    // Ordered one behind the other, without waiting.
    let inserted = client.submit(first).await.expect("submitted");
    let dropped = client.submit(drop).await.expect("submitted");
    let late = client.submit(second.clone()).await.expect("submitted");
    assert!(matches!(inserted.finish().await, Ok(Part::Done { rows: 1000, .. })));
    assert!(matches!(dropped.finish().await, Ok(Part::Ddl { .. })));
    assert!(matches!(late.finish().await, Err(Failure::Stale { .. })));
    // Another table of the same name is not what the rows were made for.
    let again = Table::create(&client, "t").await;
    let late = client.submit(second).await.expect("submitted").finish().await;
    assert!(matches!(late, Err(Failure::Stale { .. })), "{late:?}");
    assert!(again.read().await.is_empty());
    cluster.shutdown().await.expect("a clean end");
}

/// Rows of a read, and whether that was all.
async fn take_batches(submission: &mut Submission, most: usize) -> (usize, bool) {
    let mut rows = 0;
    for _ in 0..most {
        match submission.next().await.expect("it ends with Done or a failure") {
            Ok(Part::Rows(batch)) => rows += batch.num_rows(),
            Ok(Part::Done { .. }) => return (rows, true),
            other => panic!("{other:?}"),
        }
    }
    (rows, false)
}

/// A reader that takes the first rows of a large result and then nothing: what is on its way to it is bounded, 64 others
/// and writes go on, and a checkpoint is written. When it reads on, it gets the rows as they were. When it goes away, so
/// does what was kept for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_slows_only_itself() {
    const ROWS: i64 = 120_000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(options(dir.path(), 1, 2, 1, 2)).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "t").await;
    for first in (0..ROWS).step_by(4_000) {
        let rows: Vec<(i64, i64)> = (first..first + 4_000).map(|k| (k, 7)).collect();
        let request = table.insert_request(InsertRows::Inline(table.rows(&rows)), vec![KeyRange::FULL]);
        table.write(request).await.expect("inserted");
    }
    let read = |output| {
        table.request(
            OperationKind::Read(Read { predicate: Vec::new(), output }),
            vec![KeyRange::FULL],
            false,
        )
    };
    let all = || {
        let projection = vec![Expr::column(0, Type::Int8), Expr::column(1, Type::Int8)];
        read(ReadOutput::Rows { projection, top: None })
    };
    let count = || {
        let aggregates = vec![AggregateCall::new(AggregateFunction::Count, None)];
        read(ReadOutput::Groups { group_by: Vec::new(), aggregates, top: None })
    };
    let mut slow = cluster.client().submit(all()).await.expect("submitted");
    let (first, ended) = take_batches(&mut slow, 1).await;
    assert!(!ended);
    let mut gone = cluster.client().submit(all()).await.expect("submitted");
    assert!(!take_batches(&mut gone, 1).await.1);
    drop(gone);

    // Everything else goes on, more than once around the scan.
    for _ in 0..4 {
        let others = (0..64).map(|_| {
            let (client, request) = (cluster.client(), count());
            tokio::spawn(async move { client.submit(request).await.expect("submitted").finish().await })
        });
        for other in others.collect::<Vec<_>>() {
            other.await.expect("no panic").expect("counted");
        }
    }
    assert_eq!(table.set(8).await, Ok(ROWS as u64));
    cluster.checkpoint().await.expect("written");
    // What was held back in the hope of a complete answer; then 2 processes of 2 threads with 8 batches of 512 rows each, of
    // 16 bytes and a little more.
    let waiting = slow.waiting_bytes();
    assert!(
        waiting <= (1 << 20) + 2 * 2 * 8 * 512 * 32,
        "{waiting} bytes are on their way to one who does not read"
    );

    let mut rows = first;
    loop {
        match slow.next().await.expect("it ends with Done or a failure") {
            Ok(Part::Rows(batch)) => {
                let values = batch.column(1).as_any().downcast_ref::<Int64Array>().expect("bigint");
                assert!(values.values().iter().all(|value| *value == 7), "a read sees its prefix");
                rows += batch.num_rows();
            }
            Ok(Part::Done { rows: all, .. }) => break assert_eq!(all, ROWS as u64),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rows, ROWS as usize);
    assert!(table.read().await.values().all(|value| *value == 8));
    cluster.shutdown().await.expect("a clean end");
}

/// Many writers at once cannot exceed the limit together, nor can rows that are staged, which are not in memory before they
/// are inserted. What is refused changes nothing, and reads and deletions go on.
#[tokio::test(flavor = "multi_thread")]
async fn writers_that_race_for_the_last_memory_do_not_exceed_the_limit() {
    const LIMIT: u64 = 2_000_000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut options = options(dir.path(), 1, 1, 1, 2);
    options.memory_limit = Some(LIMIT);
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    let table = Table::create(&cluster.client(), "t").await;
    // The client hears of the limit with the first report.
    while cluster.client().memory().limit.is_none() {
        assert_eq!(table.delete_below(0).await, Ok(0));
    }
    let writers = (0..32i64).map(|writer| {
        let table = table.clone();
        tokio::spawn(async move {
            let mut inserted = 0;
            for first in (0..1_000_000).step_by(200) {
                let key = writer * 1_000_000 + first;
                let rows: Vec<(i64, i64)> = (key..key + 200).map(|k| (k, 0)).collect();
                let rows = InsertRows::Inline(table.rows(&rows));
                let request = table.insert_request(rows, vec![KeyRange::FULL]);
                match table.client.submit(request).await {
                    Ok(submission) => {
                        submission.finish().await.expect("what is admitted is inserted");
                        inserted += 200;
                    }
                    Err(error) => {
                        assert_eq!(error.code, SqlState::OUT_OF_MEMORY);
                        return inserted;
                    }
                }
            }
            panic!("the limit does not hold");
        })
    });
    let mut inserted = 0;
    for writer in writers.collect::<Vec<_>>() {
        inserted += writer.await.expect("no panic");
    }
    assert_eq!(table.read().await.len(), inserted, "reads go on, and nothing that was refused is there");
    let progress = cluster.storage_progress(1).expect("it runs");
    let used = progress.borrow().watermarks.memory;
    assert!(used <= LIMIT, "{used} bytes");

    // No chunk by itself is too much, but the payload is.
    let mut stager = cluster.client().stage();
    let mut refused = None;
    for chunk in 0..1_000i64 {
        let key = 100_000_000 + chunk * 100;
        let rows: Vec<(i64, i64)> = (key..key + 100).map(|k| (k, 0)).collect();
        refused = stager.push(&table.rows(&rows)).await.err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused.map(|error| error.code), Some(SqlState::OUT_OF_MEMORY));
    drop(stager);
    assert!(table.delete_below(i64::MAX).await.is_ok(), "rows can be deleted");
    cluster.shutdown().await.expect("a clean end");
}

/// INSERT, COPY and UPDATE at the limit: each is refused before it is ordered and changes nothing; an UPDATE of few rows,
/// reads and deletions go on, and what was deleted makes room.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_write_is_refused_at_the_limit_and_changes_nothing() {
    const ROWS: i64 = 20_000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut options = options(dir.path(), 1, 1, 1, 2);
    options.memory_limit = Some(4_000_000);
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    let client = cluster.client();
    let table = Table::create(&client, "t").await;
    let mut model = BTreeMap::new();
    for first in (0..ROWS).step_by(1000) {
        let rows: Vec<(i64, i64)> = (first..first + 1000).map(|k| (k, 7)).collect();
        assert_eq!(table.insert(&rows).await, Ok(1000));
        model.extend(rows);
    }
    // What is known comes with the reports.
    let knows_all = || {
        let known = client.statistics(table.schema.id).map(|statistics| statistics.rows);
        client.memory().limit.is_some() && known.is_some_and(|rows| rows > ROWS as u64 * 9 / 10)
    };
    while !knows_all() {
        assert_eq!(table.delete_below(0).await, Ok(0));
    }
    let submit = async |kind, ranges, fallible| {
        client.submit(table.request(kind, ranges, fallible)).await.map(drop).map_err(|error| error.code)
    };
    let assigned = || vec![(1, Expr::literal(Value::Int8(8), Type::Int8))];
    let update = |predicate, returning| {
        OperationKind::Update(Update { predicate, assignments: assigned(), returning })
    };
    // As many more rows as there are, in one statement, and two versions of each.
    let more: Vec<(i64, i64)> = (ROWS..5 * ROWS).map(|k| (k, 8)).collect();
    let insert = Insert {
        rows: InsertRows::Inline(table.rows(&more)),
        on_conflict: OnConflict::Fail,
        returning: None,
    };
    let refused = Err(SqlState::OUT_OF_MEMORY);
    assert_eq!(submit(OperationKind::Insert(insert), vec![KeyRange::FULL], true).await, refused);
    let returning = Some(vec![Expr::column(0, Type::Int8); 4]);
    assert_eq!(submit(update(vec![], returning), vec![KeyRange::FULL], false).await, refused);
    let mut stager = client.stage();
    let mut staged = Ok(());
    for rows in more.chunks(1000) {
        staged = stager.push(&table.rows(rows)).await.map_err(|error| error.code);
        if staged.is_err() {
            break;
        }
    }
    assert_eq!(staged, refused);
    drop(stager);
    assert_eq!(table.read().await, model, "nothing has changed");

    // One row takes little.
    let key = Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::column(0, Type::Int8)),
        right: Box::new(Expr::literal(Value::Int8(5), Type::Int8)),
    };
    let update = table.request(update(vec![key], None), vec![KeyRange::FULL], false);
    // The room of the rows that were staged is free when the reports have told of their end.
    let submission = loop {
        match client.submit(update.clone()).await {
            Ok(submission) => break submission,
            Err(error) => assert_eq!(error.code, SqlState::OUT_OF_MEMORY),
        }
        assert_eq!(table.read().await, model);
    };
    assert!(matches!(submission.finish().await, Ok(Part::Done { rows: 1, .. })));
    model.insert(5, 8);
    assert_eq!(table.read().await, model);
    assert_eq!(table.delete_below(ROWS / 2).await, Ok(ROWS as u64 / 2));
    model.retain(|key, _| *key >= ROWS / 2);
    assert_eq!(table.read().await, model);
    cluster.shutdown().await.expect("a clean end");
}
