//! A whole cluster in one process, over in-process channels and with the same code paths as many processes (DESIGN,
//! decision 18). Its data lives in a directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use carousel_engine::{SqlError, SqlState, Ts};
use futures::FutureExt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::AbortHandle, time::timeout};

pub use crate::data_dir::storage_of;
use crate::{
    checkpoint::CheckpointError,
    client::{Client, ClientOptions, Failure, Lives},
    config::Config,
    data_dir::{has_log, lay_out, next_incarnation},
    founder::{Founder, storage_numbers},
    message::{Body, Incarnation, ProcessId},
    network::Network,
    router::{self, Router, RouterHandle, State},
    routers::{
        Routers,
        store::{self, Keeper},
    },
    storage::{self, Progress, Storage, StorageError, StorageHandle, StorageOptions},
    super_process::{CheckpointPolicy, Patience, SuperOptions, SuperProcess, WatchOptions},
    transport::{MOST_CLIENTS, TransportError},
    wal,
};

const CLIENTS: &str = "clients";
const SUPERS: &str = "supers";
const ROUTERS: &str = "routers";
/// The one super process. It stands beside no router.
const SUPER_PROCESS: ProcessId = ProcessId::super_process(0);
/// Silence after which a storage process counts as absent where nobody is suspected.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a clean end waits for its checkpoint.
const LAST_CHECKPOINT: Duration = Duration::from_secs(600);
/// How long nobody comes further where others may wait for a storage process that may not join.
const CHECKPOINT_OF_OTHERS: Duration = Duration::from_secs(10);
/// After so long it says that it waits.
const TOLD: Duration = Duration::from_secs(3);

/// Whether what was acknowledged survives the end of all processes (DESIGN, decision 13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Acknowledged means on disk, at a quorum of the routers.
    #[default]
    Disk,
    /// The log is kept in memory only: what has been acknowledged since the last checkpoint is lost when all routers
    /// end.
    Memory,
}

/// When a storage process has stopped, how long the client may take to hear why it had to.
const HEARS: Duration = Duration::from_secs(1);

/// Which cores scan threads are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// None: the operating system moves them as it likes.
    #[default]
    Nowhere,
    /// Each thread of each storage process to one of its own, if there are as many.
    Apart,
    /// Those of a process to this one, counted from 0, and those after it.
    From(usize),
}

/// What an embedded cluster consists of.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Where its data lives; created when it does not exist.
    pub data_dir: PathBuf,
    /// Number of router processes; an odd one makes sense.
    pub routers: u32,
    /// Number of storage processes.
    pub storage: u32,
    /// How many storage processes hold each row.
    pub replication_factor: u32,
    /// Scan threads of each storage process.
    pub threads: usize,
    /// Whether scan threads are bound to cores, where the platform can.
    pub binding: Binding,
    /// The most bytes that the rows of all storage processes together may take; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Whether acknowledged means on disk.
    pub durability: Durability,
    /// Bytes that are to be free on the disk of a router's log. With less on too many of them, writes are refused.
    pub log_reserve: u64,
    /// How often the lead router shows the others that it lives, see [`Timing`](router::Timing).
    pub heartbeat: Duration,
    /// A checkpoint is made when this many bytes have been written since the last one …
    pub checkpoint_bytes: u64,
    /// … or, if there was any write, when this long has passed.
    pub checkpoint_interval: Duration,
    /// A storage process that is silent for this long is suspected; never, when `None`.
    pub suspect_after: Option<Duration>,
    /// Whether standbys take the places of suspected processes although none is suspected for being silent: of those that have
    /// lost their directories.
    pub heals: bool,
    /// A suspected storage process for which there is no standby leaves the ring after this long; never, when `None`.
    pub contract_after: Option<Duration>,
}

impl EmbeddedOptions {
    /// The default: one router, one storage process with one scan thread, no replication.
    pub fn new(data_dir: impl Into<PathBuf>) -> EmbeddedOptions {
        EmbeddedOptions {
            data_dir: data_dir.into(),
            routers: 1,
            storage: 1,
            replication_factor: 1,
            threads: 1,
            binding: Binding::Nowhere,
            memory_limit: None,
            durability: Durability::Disk,
            log_reserve: router::RESERVE_BYTES,
            heartbeat: router::DEFAULT_HEARTBEAT,
            checkpoint_bytes: 64 << 20,
            checkpoint_interval: Duration::from_secs(300),
            suspect_after: None,
            heals: false,
            contract_after: None,
        }
    }
}

/// Why an embedded cluster did not start: one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options contradict one another.
    #[error("{0}")]
    Options(String),
    /// The directory cannot be created, read or written.
    #[error("cannot use data directory {path}: {source}")]
    DataDir {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process uses the directory.
    #[error("data directory {path} is in use by another process")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Another release wrote the directory.
    #[error("data directory {path} has format {found}, this release reads and writes format {expected}")]
    Format {
        /// The directory.
        path: PathBuf,
        /// What it has.
        found: String,
        /// What this release has.
        expected: u32,
    },
    /// The directory was created for another number of processes.
    #[error("data directory {path} was created with {found}, not with {asked}")]
    Shape {
        /// The directory.
        path: PathBuf,
        /// As it was created.
        found: String,
        /// As it was asked to start.
        asked: String,
    },
    /// A file in the directory is damaged.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A router cannot start.
    #[error("router {id} cannot start: {reason}")]
    Router {
        /// Which.
        id: ProcessId,
        /// Why not.
        reason: String,
    },
    /// A router finds no log, or another one, where it has begun its own: it must not vote with an empty one.
    #[error(
        "{id} has lost its log: {path} is not the directory that it has begun, and what it acknowledged is not there. Put \
         that back; if it is lost, remove the router (ALTER CLUSTER REMOVE ROUTER {id}) and add another. When most routers \
         have lost theirs, all processes have to begin anew with empty data directories"
    )]
    LogLost {
        /// Which router.
        id: ProcessId,
        /// Where its log should be.
        path: PathBuf,
    },
    /// Other processes cannot be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// There is no such process, or it runs already.
    #[error("{0}")]
    Process(String),
}

impl From<StorageError> for StartError {
    fn from(error: StorageError) -> StartError {
        match error {
            StorageError::Io { path, source }
            | StorageError::Checkpoint(CheckpointError::Io { path, source }) => {
                StartError::DataDir { path, source }
            }
            StorageError::Checkpoint(CheckpointError::Damaged { path, reason }) => StartError::Damaged {
                path,
                reason: format!(
                    "{reason}. Move the data directory of the storage process away and start it with an empty one: others send \
                     it its rows, or it is refused where nobody else has them"
                ),
            },
            StorageError::Ahead(_) => StartError::Process(error.to_string()),
        }
    }
}

/// A running cluster. Dropping it ends all its processes as if they had crashed; [`Cluster::shutdown`] is the clean
/// way.
pub struct Cluster {
    founder: Founder,
    founding: AbortHandle,
    options: EmbeddedOptions,
    network: Network,
    config: Config,
    routers: Mutex<BTreeMap<u32, RouterHandle>>,
    storage: Arc<watch::Sender<BTreeMap<u32, StorageHandle>>>,
    client: Client,
    clients: AtomicU32,
    keeper: Option<Keeper>,
    /// These are held as long as the cluster lives.
    _super_process: SuperProcess,
    _lock: File,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Lays out the data directory, or checks it against the options and recovers what it holds, and starts all
    /// processes. Statements can be submitted at once; they wait until the cluster is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(options: EmbeddedOptions) -> Result<Cluster, StartError> {
        let config = Config::evenly(options.storage, options.replication_factor)
            .map_err(|error| StartError::Options(error.to_string()))?;
        if options.routers == 0 {
            return Err(StartError::Options("a cluster needs at least one router".into()));
        }
        // Checkpoints without the m-seq that goes on from them are of no use.
        let forget = options.durability == Durability::Memory;
        let lock = lay_out(&options.data_dir, &shape(&options), forget)?;
        let network = Network::new();
        options.memory_limit.into_iter().for_each(|limit| network.set_memory_limit(limit));
        let is_kept = options.durability == Durability::Disk;
        let known = if is_kept { store::load(&options.data_dir)? } else { None };
        network.learn_routers(&Arc::new(known.unwrap_or_else(|| Routers::first(options.routers))));
        let keeper = is_kept.then(|| store::keep(&options.data_dir, &network));
        let mut routers = BTreeMap::new();
        let numbers = router_numbers(&options, &network)?;
        check_logs(&options, &network, &numbers)?;
        let mut lost = None;
        for number in &numbers {
            match start_router(&options, &config, &network, *number, &BTreeMap::new()).await {
                Ok(router) => drop(routers.insert(*number, router)),
                Err(error @ StartError::LogLost { .. }) => {
                    tracing::error!("{error}");
                    lost = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        // The others go on while they are a quorum: it can be removed.
        if let Some(error) = lost.filter(|_| 2 * routers.len() <= numbers.len()) {
            return Err(error);
        }
        let mut storage = BTreeMap::new();
        for number in storage_numbers(&options)? {
            storage.insert(number, start_storage(&options, &config, &network, number, None).await?);
        }
        let storage = Arc::new(watch::Sender::new(storage));
        let client = start_client(&options, &config, &network, 1)?;
        let super_process = start_super_process(&options, &config, &network, SUPER_PROCESS.number, None)?;
        let founder = Founder {
            options: options.clone(),
            config: config.clone(),
            network: network.clone(),
            client: client.clone(),
            storage: storage.clone(),
        };
        let founding = founder.clone().serve();
        Ok(Cluster {
            founder,
            founding,
            options,
            network,
            config,
            routers: Mutex::new(routers),
            storage,
            client,
            clients: AtomicU32::new(1),
            keeper,
            _super_process: super_process,
            _lock: lock,
        })
    }

    /// A handle on the front end's client process.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Starts a further client process.
    ///
    /// # Errors
    /// When its incarnation cannot be recorded in the data directory.
    pub fn add_client(&self) -> Result<Client, StartError> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        start_client(&self.options, &self.config, &self.network, number)
    }

    /// Waits until a lead router orders messages and every running storage process has executed what was ordered before.
    /// Where one may not join without the directory that it had, others may need its votes or rows, and are not waited for:
    /// somebody must be there who can be told that its rows are given up.
    ///
    /// # Errors
    /// 57P01 when the cluster is stopped meanwhile, 57P03 when a storage process has stopped itself.
    pub async fn ready(&self) -> Result<(), SqlError> {
        let pin = tokio::select! {
            pin = self.client.pin(Duration::from_secs(1)) => pin,
            // Nobody may be left to answer.
            reason = self.failure() => return Err(SqlError::new(SqlState::UNAVAILABLE, reason)),
            // Others may take nothing more, for what they wait for.
            () = async {
                self.refused().await;
                tokio::time::sleep(HEARS).await;
            } => return Ok(()),
        };
        let pin = pin.map_err(|failure| match failure {
            Failure::Sql(error) => error,
            Failure::Stale { .. } => SqlError::internal("a pin names no table"),
        })?;
        tokio::select! {
            outcome = self.wait_for_storage(|_, progress| progress.watermarks.executed >= pin.ts()) => outcome,
            _ = self.refused() => Ok(()),
        }
    }

    /// Waits until one of the processes that is not suspected stops itself, as it cannot go on, or the client process ends; tells
    /// which, and why. Never ends otherwise, nor because of one without the directory that it had: the others have their rows, and
    /// somebody must be there who can be told that its own are given up.
    pub async fn failure(&self) -> String {
        let mut storage = self.storage.subscribe();
        loop {
            tokio::select! {
                reason = self.failure_of_present() => return reason,
                // The cluster itself has the other end.
                _ = storage.changed() => {}
            }
        }
    }

    /// Ends when a storage process that others may wait for may not join; tells which. Never otherwise.
    async fn refused(&self) -> ProcessId {
        let config = self.client.config();
        let refusals = self.progress().into_iter().map(|(number, mut progress)| {
            let process = ProcessId::storage(number);
            // Who has left the ring may still have to send rows.
            let is_awaited = config.is_awaited(process);
            async move {
                if !is_awaited || progress.wait_for(|progress| progress.refused).await.is_err() {
                    std::future::pending::<()>().await;
                }
                process
            }
            .boxed()
        });
        futures::future::select_all(refusals.chain(std::iter::once(std::future::pending().boxed()))).await.0
    }

    /// As [`Cluster::failure`], of those storage processes that run now.
    async fn failure_of_present(&self) -> String {
        let storage = self.progress().into_iter().map(|(number, mut progress)| {
            async move {
                let process = ProcessId::storage(number);
                let stopped = progress.wait_for(|progress| progress.stopped.is_some()).await;
                let stopped = stopped.ok().filter(|progress| !progress.refused);
                let reason = stopped.and_then(|progress| progress.stopped.clone());
                // One that is suspected or has been removed has to stop, perhaps before the client hears of it; the others go
                // on without it.
                let may_stop = |config: &Config| !config.contains(process) || config.is_suspected(process);
                if let Some(reason) = reason
                    && !matches!(timeout(HEARS, self.client.config_when(may_stop)).await, Ok(Ok(_)))
                {
                    return format!("storage process {process} has stopped: {reason}");
                }
                std::future::pending().await
            }
            .boxed()
        });
        let routers: Vec<RouterHandle> = self.routers.lock().values().cloned().collect();
        let routers = routers.into_iter().map(|router| {
            async move {
                match router.wait_for(|_| false).await {
                    State::Failed(reason) => format!("router {} has stopped: {reason}", router.id()),
                    _ => std::future::pending().await,
                }
            }
            .boxed()
        });
        let client = std::iter::once(self.client.failure().boxed());
        futures::future::select_all(storage.chain(routers).chain(client)).await.0
    }

    /// Ends the cluster cleanly: makes a checkpoint, so that the next start need not replay the log, and stops all
    /// processes.
    ///
    /// # Errors
    /// When the checkpoint could not be made; the processes are stopped all the same, and nothing acknowledged is lost.
    pub async fn shutdown(self) -> Result<(), SqlError> {
        self.network.leave(SUPER_PROCESS);
        let changed = self.storage.borrow().values().any(|handle| handle.progress().borrow().logged > 0);
        let outcome = match changed {
            true => tokio::select! {
                outcome = self.checkpoint() => outcome,
                reason = self.failure() => Err(SqlError::new(SqlState::UNAVAILABLE, reason)),
                reason = self.no_checkpoint() => Err(SqlError::new(SqlState::UNAVAILABLE, reason)),
            },
            false => Ok(()),
        };
        self.network.leave(self.client.id());
        self.end_storage().await;
        let routers = std::mem::take(&mut *self.routers.lock());
        for router in routers.values() {
            router.stop().await;
        }
        store::close(self.keeper.as_ref()).await;
        outcome
    }

    /// Ends when the last checkpoint has been waited for long enough; tells why it may have taken so long. Says before that it is
    /// waited for.
    async fn no_checkpoint(&self) -> String {
        let told = async {
            tokio::time::sleep(TOLD).await;
            tracing::info!("waiting for the last checkpoint; asked once more, this ends without it");
            std::future::pending().await
        };
        let refused = async {
            let process = self.refused().await;
            let frontier = self.client.frontier();
            let mut before = Vec::new();
            loop {
                // Who has executed all writes its checkpoint.
                let is_behind =
                    |other: &Progress| other.stopped.is_none() && other.watermarks.executed < frontier;
                let others = self.progress().into_iter().map(|(_, progress)| progress.borrow().clone());
                let behind: Vec<Ts> =
                    others.filter(is_behind).map(|other| other.watermarks.executed).collect();
                if !behind.is_empty() && behind == before {
                    return process;
                }
                before = behind;
                tokio::time::sleep(CHECKPOINT_OF_OTHERS).await;
            }
        };
        tokio::select! {
            () = told => String::new(),
            process = refused => format!("others wait for {process}, which may not join without its directory"),
            () = tokio::time::sleep(LAST_CHECKPOINT) => "the last checkpoint took too long".into(),
        }
    }

    /// Ends all processes as if they had crashed, and waits until the data directory can be used again.
    pub async fn kill(self) {
        self.network.leave(self.client.id());
        self.network.leave(SUPER_PROCESS);
        let routers = std::mem::take(&mut *self.routers.lock());
        for router in routers.values() {
            router.kill().await;
        }
        self.end_storage().await;
        store::close(self.keeper.as_ref()).await;
    }

    /// Makes every running storage process write a checkpoint of this moment, and waits until it is durable.
    ///
    /// # Errors
    /// When a checkpoint cannot be written.
    pub async fn checkpoint(&self) -> Result<(), SqlError> {
        let failed_before: BTreeMap<u32, u64> = self
            .progress()
            .into_iter()
            .map(|(number, progress)| (number, progress.borrow().failed_checkpoints))
            .collect();
        let ts = self.client.order(Body::Checkpoint).await?;
        let config = self.client.config();
        let is_asked = |number| {
            let process = ProcessId::storage(number);
            !config.is_suspected(process) && config.storage_processes().any(|other| other == process)
        };
        let mut failed = false;
        self.wait_for_storage(|number, progress| {
            // Standbys hold nothing.
            if !is_asked(number) {
                return true;
            }
            let fails = progress.failed_checkpoints > failed_before.get(&number).copied().unwrap_or(0);
            failed |= fails;
            fails || progress.watermarks.durable >= ts
        })
        .await?;
        if failed {
            return Err(SqlError::new(SqlState::INSUFFICIENT_RESOURCES, "a checkpoint could not be written")
                .with_hint("See the log of the storage processes."));
        }
        Ok(())
    }

    /// How far a running storage process is.
    pub fn storage_progress(&self, number: u32) -> Option<watch::Receiver<Progress>> {
        self.storage.borrow().get(&number).map(StorageHandle::progress)
    }

    /// What a running router is doing.
    pub fn router(&self, number: u32) -> Option<RouterHandle> {
        self.routers.lock().get(&number).cloned()
    }

    /// Ends a router as a crash would.
    pub async fn kill_router(&self, number: u32) {
        let router = self.routers.lock().remove(&number);
        if let Some(router) = router {
            router.kill().await;
        }
    }

    /// Starts a router again.
    ///
    /// # Errors
    /// When it runs, or cannot start.
    pub async fn restart_router(&self, number: u32) -> Result<(), StartError> {
        let known = self.client.routers().entry(number).is_some();
        if !known || self.routers.lock().contains_key(&number) {
            return Err(StartError::Process(format!("router {number} cannot be restarted")));
        }
        let router =
            start_router(&self.options, &self.config, &self.network, number, &BTreeMap::new()).await?;
        self.routers.lock().insert(number, router);
        Ok(())
    }

    /// Starts a further router, and waits until it votes.
    ///
    /// # Errors
    /// When it cannot start, or the cluster is stopped meanwhile.
    pub async fn add_router(&self) -> Result<ProcessId, SqlError> {
        let number = self.client.routers().next_number();
        let started =
            start_router(&self.options, &self.config, &self.network, number, &BTreeMap::new()).await;
        let failed = |error: StartError| SqlError::new(SqlState::UNAVAILABLE, error.to_string());
        self.routers.lock().insert(number, started.map_err(failed)?);
        self.client.add_router(Some(number), &format!("embedded:{number}")).await
    }

    /// Removes a router, and waits until it has stopped.
    ///
    /// # Errors
    /// See [`Client::remove_router`].
    pub async fn remove_router(&self, number: u32) -> Result<(), SqlError> {
        self.client.remove_router(ProcessId::router(number)).await?;
        let router = self.routers.lock().remove(&number);
        if let Some(router) = router {
            router.wait_for(|_| false).await;
        }
        Ok(())
    }

    /// Ends a storage process as a crash would.
    pub async fn kill_storage(&self, number: u32) {
        let mut storage = None;
        self.storage.send_modify(|all| storage = all.remove(&number));
        if let Some(storage) = storage {
            storage.kill().await;
        }
    }

    /// Starts a storage process again.
    ///
    /// # Errors
    /// When it runs, or cannot start.
    pub async fn restart_storage(&self, number: u32) -> Result<(), StartError> {
        let known = storage_numbers(&self.options)?.contains(&number);
        if !known || self.storage.borrow().contains_key(&number) {
            return Err(StartError::Process(format!("storage process {number} cannot be restarted")));
        }
        let storage = start_storage(&self.options, &self.config, &self.network, number, None).await?;
        self.storage.send_modify(|all| drop(all.insert(number, storage)));
        Ok(())
    }

    /// Starts a further storage process and waits until it is a standby.
    ///
    /// # Errors
    /// When it cannot start, or cannot join.
    pub async fn add_storage(&self) -> Result<ProcessId, SqlError> {
        self.founder.found().await
    }

    fn progress(&self) -> Vec<(u32, watch::Receiver<Progress>)> {
        self.storage.borrow().iter().map(|(number, handle)| (*number, handle.progress())).collect()
    }

    /// Waits for every running storage process. `done` is called while the process cannot report further progress, so
    /// it must not look at anything but what it is given.
    async fn wait_for_storage(&self, mut done: impl FnMut(u32, &Progress) -> bool) -> Result<(), SqlError> {
        for (number, mut progress) in self.progress() {
            // One that is killed meanwhile is not waited for.
            if let Ok(reached) = progress.wait_for(|p| p.stopped.is_some() || done(number, p)).await
                && let Some(reason) = reached.stopped.as_ref().filter(|_| !reached.refused)
                && self.client.config().contains(ProcessId::storage(number))
            {
                let message = format!("storage process {} has stopped: {reason}", ProcessId::storage(number));
                return Err(SqlError::new(SqlState::UNAVAILABLE, message));
            }
        }
        Ok(())
    }

    async fn end_storage(&self) {
        let storage = self.storage.send_replace(BTreeMap::new());
        for (_, handle) in storage {
            handle.kill().await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.founding.abort();
        self.network.leave(self.client.id());
        self.network.leave(SUPER_PROCESS);
        for number in self.routers.lock().keys() {
            self.network.leave(ProcessId::router(*number));
        }
    }
}

/// The routers that are known, and those that have a directory and may have become routers without its being known.
fn router_numbers(options: &EmbeddedOptions, network: &Network) -> Result<BTreeSet<u32>, StartError> {
    let known = network.known_routers().borrow().clone();
    let mut numbers: BTreeSet<u32> = known.entries().iter().map(|entry| entry.number).collect();
    let path = options.data_dir.join(ROUTERS);
    match fs::read_dir(&path) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(|source| StartError::DataDir { path: path.clone(), source })?;
                let name = entry.file_name();
                numbers.extend(name.to_str().and_then(|name| name.strip_prefix('r')?.parse::<u32>().ok()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(StartError::DataDir { path, source }),
    }
    numbers.retain(|number| !known.is_removed(ProcessId::router(*number)));
    Ok(numbers)
}

/// Where a router's log is.
fn log_directory(options: &EmbeddedOptions, router: ProcessId) -> PathBuf {
    options.data_dir.join(ROUTERS).join(router.to_string())
}

/// What a cluster has agreed on is in the logs of most of its routers. When those of the routers `here` are not there, and too few
/// are left without them, they would wait for ever for somebody who has it. What others have lost is not known here.
pub(crate) fn check_logs(
    options: &EmbeddedOptions,
    network: &Network,
    here: &BTreeSet<u32>,
) -> Result<(), StartError> {
    let known = network.known_routers().borrow().clone();
    if options.durability == Durability::Memory || known.edition().cluster.is_none() {
        return Ok(());
    }
    let voters: Vec<ProcessId> = known.voters().collect();
    let is_lost =
        |router: &&ProcessId| here.contains(&router.number) && !log_directory(options, **router).exists();
    let lost: Vec<&ProcessId> = voters.iter().filter(is_lost).collect();
    match lost.first() {
        Some(id) if 2 * lost.len() >= voters.len() => {
            Err(StartError::LogLost { id: **id, path: log_directory(options, **id) })
        }
        _ => Ok(()),
    }
}

pub(crate) async fn start_router(
    options: &EmbeddedOptions,
    config: &Config,
    network: &Network,
    number: u32,
    addresses: &BTreeMap<ProcessId, String>,
) -> Result<RouterHandle, StartError> {
    let id = ProcessId::router(number);
    let members: BTreeSet<ProcessId> = (1..=options.routers).map(ProcessId::router).collect();
    let durability = match options.durability {
        Durability::Disk => {
            let directory = log_directory(options, id);
            let failed = |source| StartError::DataDir { path: directory.clone(), source };
            if !has_log(&options.data_dir, id, &directory).map_err(failed)? {
                return Err(StartError::LogLost { id, path: directory });
            }
            wal::Durability::Disk { directory, limits: wal::Limits::default() }
        }
        Durability::Memory => wal::Durability::Memory,
    };
    // What the first routers began has gone on: who has no log gets that of the others.
    let has_changed = network.known_routers().borrow().version() > 1;
    let options = router::Options {
        reserve_bytes: options.log_reserve,
        timing: router::Timing::with_heartbeat(options.heartbeat),
        added: !members.contains(&id) || has_changed,
        addresses: addresses.clone(),
        ..router::Options::member(id, members, config.clone(), durability)
    };
    let started = Router::start(options, network).await;
    started.map_err(|error| StartError::Router { id, reason: error.to_string() })
}

pub(crate) async fn start_storage(
    options: &EmbeddedOptions,
    config: &Config,
    network: &Network,
    number: u32,
    address: Option<String>,
) -> Result<StorageHandle, StartError> {
    let id = ProcessId::storage(number);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let first_core = match options.binding {
        Binding::Nowhere => None,
        Binding::Apart => (options.storage as usize * options.threads <= cores)
            .then(|| (number as usize - 1) * options.threads),
        Binding::From(core) => Some(core),
    };
    let storage = StorageOptions {
        id,
        dir: options.data_dir.join("storage").join(id.to_string()),
        address,
        config: Arc::new(config.clone()),
        routers: network.known_routers().borrow().voters().collect(),
        threads: options.threads,
        first_core,
        memory_limit: options.memory_limit.map(|limit| limit / u64::from(options.storage.max(1))),
        running: storage::RUNNING,
        // A checkpoint lets the log be cut, so it may take some of what is kept for that: but not all of it. Whoever keeps very
        // much has checkpoints all the same.
        reserve_bytes: options.log_reserve.min(router::RESERVE_BYTES) / 2,
    };
    Ok(Storage::start(storage, network).await?)
}

pub(crate) fn start_client(
    options: &EmbeddedOptions,
    config: &Config,
    network: &Network,
    number: u32,
) -> Result<Client, StartError> {
    let (start, lives) = count_start(&options.data_dir, CLIENTS, u64::from(MOST_CLIENTS + 1))?;
    // Row identifiers rest on it: no two client processes ever have the same, wherever they count their starts.
    let incarnation: Incarnation = start * lives.apart + u64::from(number);
    let client = ClientOptions {
        id: ProcessId::client(number),
        incarnation,
        lives,
        routers: network.known_routers().borrow().voters().collect(),
        config: Arc::new(config.clone()),
    };
    Ok(Client::start(client, network))
}

/// Counts a start of a client process in a file of a directory.
fn count_start(dir: &Path, file: &str, apart: u64) -> Result<(u64, Lives), StartError> {
    let path = dir.join(file);
    let failed = |source| StartError::DataDir { path: dir.to_path_buf(), source };
    let start = next_incarnation(&path).map_err(failed)?;
    Ok((start, Lives { starts: path, apart }))
}

pub(crate) fn start_super_process(
    options: &EmbeddedOptions,
    config: &Config,
    network: &Network,
    number: u32,
    router: Option<&RouterHandle>,
) -> Result<SuperProcess, StartError> {
    let (incarnation, lives) = count_start(&options.data_dir, SUPERS, 1)?;
    let client = ClientOptions {
        id: ProcessId::super_process(number),
        incarnation,
        lives,
        routers: network.known_routers().borrow().voters().collect(),
        config: Arc::new(config.clone()),
    };
    let ms = |duration: Duration| duration.as_millis() as u64;
    let silent_ms = ms(options.suspect_after.unwrap_or(DEFAULT_PATIENCE));
    let watch = WatchOptions {
        beside: router.map(RouterHandle::id),
        patience: Patience { silent_ms, starting_ms: 10 * silent_ms },
        suspects: options.suspect_after.is_some(),
        heals: options.suspect_after.is_some() || options.heals,
        contract_after_ms: options.contract_after.map(ms),
        checkpoints: CheckpointPolicy {
            bytes: options.checkpoint_bytes,
            interval_ms: ms(options.checkpoint_interval),
        },
    };
    let router = router.map(RouterHandle::followed);
    Ok(SuperProcess::start(SuperOptions { client, router, watch }, network))
}

/// What a data directory was created for.
pub(crate) fn shape(options: &EmbeddedOptions) -> String {
    let durability = match options.durability {
        Durability::Disk => "disk",
        Durability::Memory => "memory",
    };
    format!(
        "{} routers, {} storage processes, replication factor {}, durability {durability}",
        options.routers, options.storage, options.replication_factor
    )
}
