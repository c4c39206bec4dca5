//! One process of a cluster of separate operating system processes: a router with a super process beside it, a storage
//! process, or the client process of a front end. They are started by the functions that start them in
//! [`crate::embedded`]; only the network reaches further, by a [`crate::transport`].

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::sync::watch;

pub use crate::data_dir::router_of;
use crate::{
    client::Client,
    data_dir::{directory_number, lay_out, next_incarnation},
    description::Description,
    embedded::{
        self, Binding, Durability, EmbeddedOptions, StartError, check_logs, start_client, start_router,
        start_storage, start_super_process,
    },
    message::{ProcessId, ProcessKind},
    network::Network,
    router::{DEFAULT_HEARTBEAT, RESERVE_BYTES, RouterHandle, State},
    routers::{
        Routers, removed,
        store::{self, Keeper},
    },
    storage::{Progress, StorageHandle},
    super_process::SuperProcess,
    transport::{TlsFiles, Transport, TransportOptions},
    wal::sync_directory,
};

const INCARNATION: &str = "incarnation";
const HEARD: &str = "heard-routers";
/// A router with durability `memory` has run.
const BEGUN: &str = "begun";

/// How to run one process of a cluster.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// The cluster.
    pub description: Description,
    /// Which of its processes.
    pub id: ProcessId,
    /// The process's own directory; created when it does not exist.
    pub data_dir: PathBuf,
    /// Where to listen for other processes; nowhere for a client.
    pub listen: Option<SocketAddr>,
    /// Where (host:port) others reach a storage process that the description does not name: it joins as a standby.
    pub address: Option<String>,
    /// Mutual TLS between processes, if it is wanted.
    pub tls: Option<TlsFiles>,
    /// Scan threads of a storage process.
    pub threads: usize,
    /// Whether they are bound to cores.
    pub binding: Binding,
    /// The most bytes that the rows of a storage process may take; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Bytes that are to be free on the disk of a router's log. With less on too many of them, writes are refused.
    pub log_reserve: u64,
    /// How often the lead router shows the others that it lives: longer than a round trip between two of them, and the same for
    /// all.
    pub heartbeat: Duration,
    /// A storage process that is silent for this long is suspected; never, when `None`.
    pub suspect_after: Option<Duration>,
    /// A suspected storage process for which there is no standby leaves the ring after this long; never, when `None`.
    pub contract_after: Option<Duration>,
}

impl MemberOptions {
    /// A process with one scan thread and without limits.
    pub fn new(description: Description, id: ProcessId, data_dir: impl Into<PathBuf>) -> MemberOptions {
        MemberOptions {
            description,
            id,
            data_dir: data_dir.into(),
            listen: None,
            address: None,
            tls: None,
            threads: 1,
            binding: Binding::Nowhere,
            memory_limit: None,
            log_reserve: RESERVE_BYTES,
            heartbeat: DEFAULT_HEARTBEAT,
            suspect_after: None,
            contract_after: None,
        }
    }

    /// What the functions that start processes ask for.
    fn parts(&self) -> EmbeddedOptions {
        let Description { routers, storage, replication_factor, durability, .. } = &self.description;
        let storage = storage.len() as u32;
        EmbeddedOptions {
            routers: routers.len() as u32,
            storage,
            replication_factor: *replication_factor,
            durability: *durability,
            threads: self.threads,
            binding: self.binding,
            // There it is the limit of all storage processes together.
            memory_limit: self.memory_limit.map(|limit| limit.saturating_mul(u64::from(storage))),
            // A storage process of its own knows of no log on its disk.
            log_reserve: if self.id.kind == ProcessKind::Router { self.log_reserve } else { 0 },
            heartbeat: self.heartbeat,
            suspect_after: self.suspect_after,
            contract_after: self.contract_after,
            ..EmbeddedOptions::new(&self.data_dir)
        }
    }
}

enum Part {
    Router { router: RouterHandle, _super_process: SuperProcess },
    Storage(StorageHandle),
    Client(Client),
}

/// A running process. Dropping it ends it as a crash would.
pub struct Member {
    id: ProcessId,
    part: Part,
    network: Network,
    transport: Transport,
    keeper: Option<Keeper>,
    _lock: File,
}

/// Whether a router of this number is part of the cluster.
fn may_run(id: ProcessId, routers: &Routers) -> Result<(), StartError> {
    if routers.is_removed(id) {
        return Err(StartError::Options(removed(id)));
    }
    match routers.contains(id) {
        true => Ok(()),
        false => Err(StartError::Options(format!("{id} is not in the cluster's description"))),
    }
}

/// A router without a log that has run before has forgotten what it acknowledged and whom it voted for.
fn may_begin(id: ProcessId, data_dir: &Path) -> Result<(), StartError> {
    let path = data_dir.join(BEGUN);
    let begun = File::create_new(&path).and_then(|file| file.sync_all());
    match begun.and_then(|()| sync_directory(data_dir)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(StartError::Options(format!(
            "{id} had the order of messages in memory only (durability = memory), and has lost it with its last start. \
             Remove it (ALTER CLUSTER REMOVE ROUTER {id}) and add another; when all routers have ended, all processes \
             have to begin anew with empty data directories"
        ))),
        Err(source) => Err(StartError::DataDir { path, source }),
    }
}

impl Member {
    /// Lays out the data directory, or recovers what it holds, listens, and starts the process.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(options: MemberOptions) -> Result<Member, StartError> {
        let id = options.id;
        options.description.check()?;
        let members = options.description.members();
        match id.kind {
            ProcessKind::Storage if !(1..=crate::transport::MOST_STORAGE).contains(&id.number) => {
                let most = crate::transport::MOST_STORAGE;
                return Err(StartError::Options(format!("storage processes have numbers from 1 to {most}")));
            }
            // It joins as a standby.
            ProcessKind::Storage if options.address.is_some() => {}
            ProcessKind::Storage if !members.contains_key(&id) => {
                return Err(StartError::Options(format!("{id} is not in the cluster's description")));
            }
            ProcessKind::Client if !(1..=crate::transport::MOST_CLIENTS).contains(&id.number) => {
                let most = crate::transport::MOST_CLIENTS;
                return Err(StartError::Options(format!("front ends have numbers from 1 to {most}")));
            }
            ProcessKind::Super => {
                return Err(StartError::Options("a super process runs beside its router".into()));
            }
            _ => {}
        }
        let parts = options.parts();
        let config = options.description.config()?;
        let shape = embedded::shape(&parts);
        let name = &options.description.name;
        let lock = lay_out(&options.data_dir, &format!("process {id} of cluster {name:?}, {shape}"), false)?;
        let failed = |source| StartError::DataDir { path: options.data_dir.clone(), source };
        let incarnation = next_incarnation(&options.data_dir.join(INCARNATION)).map_err(failed)?;
        let directory = directory_number(&options.data_dir).map_err(failed)?;
        let network = Network::new();
        let is_kept = options.description.durability == Durability::Disk;
        let known = if is_kept { store::load(&options.data_dir)? } else { None };
        let told = options.description.known_routers();
        if let Some(known) = known {
            let [before, now] = [known.edition(), told.edition()];
            if before.is_foreign(now) {
                let [before, now] = [before, now].map(|list| list.cluster.unwrap_or_default());
                return Err(StartError::Options(format!(
                    "the data directory belongs to another cluster of the same name: to number {before}, not {now}"
                )));
            }
            network.learn_routers(&Arc::new(known));
        }
        network.learn_routers(&Arc::new(told));
        let keeper = is_kept.then(|| store::keep(&options.data_dir, &network));
        let mut locals = BTreeSet::from([id]);
        let beside = ProcessId::super_process(id.number);
        if id.kind == ProcessKind::Router {
            locals.insert(beside);
        }
        let transport = TransportOptions {
            cluster: name.clone(),
            shape,
            description: options.description.to_toml(),
            members: members.clone(),
            locals,
            listen: options.listen,
            incarnation,
            directory,
            heard: (id.kind == ProcessKind::Router).then(|| options.data_dir.join(HEARD)),
            tls: options.tls.clone(),
            unnamed_certificates: options.description.unnamed_certificates,
        };
        let transport = Transport::start(transport, &network).await?;
        let part = async {
            if id.kind == ProcessKind::Router {
                // It may have been removed while it was away, and the first routers must not begin anew without the others.
                transport.ask_for_routers().await.map_err(StartError::Options)?;
                may_run(id, &network.known_routers().borrow())?;
                check_logs(&parts, &network, &[id.number].into())?;
                if options.description.durability == Durability::Memory {
                    may_begin(id, &options.data_dir)?;
                }
            }
            Ok(match id.kind {
                ProcessKind::Router => {
                    let router = start_router(&parts, &config, &network, id.number, &members).await?;
                    let beside = Some(&router);
                    let _super_process = start_super_process(&parts, &config, &network, id.number, beside)?;
                    Part::Router { router, _super_process }
                }
                ProcessKind::Storage => {
                    let address = options.address.clone();
                    Part::Storage(start_storage(&parts, &config, &network, id.number, address).await?)
                }
                ProcessKind::Client | ProcessKind::Super => {
                    Part::Client(start_client(&parts, &config, &network, id.number)?)
                }
            })
        };
        let part = match part.await {
            Ok(part) => part,
            Err(error) => {
                // Whoever starts it again finds the port free.
                transport.close().await;
                return Err(error);
            }
        };
        tracing::info!(process = %id, cluster = %name, incarnation, "started");
        Ok(Member { id, part, network, transport, keeper, _lock: lock })
    }

    /// Which process.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Where it listens for other processes.
    pub fn address(&self) -> Option<SocketAddr> {
        self.transport.address()
    }

    /// A handle on the client process, if it is one.
    pub fn client(&self) -> Option<Client> {
        match &self.part {
            Part::Client(client) => Some(client.clone()),
            _ => None,
        }
    }

    /// A handle on the router, if it is one.
    pub fn router(&self) -> Option<RouterHandle> {
        match &self.part {
            Part::Router { router, .. } => Some(router.clone()),
            _ => None,
        }
    }

    /// How far the storage process is, if it is one.
    pub fn progress(&self) -> Option<watch::Receiver<Progress>> {
        match &self.part {
            Part::Storage(storage) => Some(storage.progress()),
            _ => None,
        }
    }

    /// Waits until the process stops itself, as it cannot go on; tells why. Never ends otherwise.
    pub async fn failure(&self) -> String {
        match &self.part {
            Part::Router { router, .. } => tokio::select! {
                // Others could make up a quorum with it.
                reason = self.transport.refused() => reason,
                state = router.wait_for(|_| false) => match state {
                    State::Failed(reason) => format!("router {} has stopped: {reason}", self.id),
                    State::Removed => removed(self.id),
                    _ => std::future::pending().await,
                },
            },
            Part::Storage(storage) => {
                let mut progress = storage.progress();
                let stopped = progress.wait_for(|progress| progress.stopped.is_some()).await;
                let reason = stopped.ok().and_then(|progress| progress.stopped.clone());
                match reason {
                    Some(reason) => format!("storage process {} has stopped: {reason}", self.id),
                    None => format!("storage process {} has ended", self.id),
                }
            }
            Part::Client(client) => client.failure().boxed().await,
        }
    }

    /// Ends the process: a router tells its subscribers first. Nothing acknowledged is lost, for every process can end
    /// at any time.
    pub async fn stop(self) {
        match self.part {
            Part::Router { router, .. } => {
                self.network.leave(ProcessId::super_process(self.id.number));
                router.stop().await;
            }
            Part::Storage(storage) => storage.kill().await,
            Part::Client(_) => self.network.leave(self.id),
        }
        self.transport.close().await;
        store::close(self.keeper.as_ref()).await;
    }

    /// Ends the process as a crash would, and waits until its directory can be used again.
    pub async fn kill(self) {
        self.transport.close().await;
        match self.part {
            Part::Router { router, .. } => {
                self.network.leave(ProcessId::super_process(self.id.number));
                router.kill().await;
            }
            Part::Storage(storage) => storage.kill().await,
            Part::Client(_) => self.network.leave(self.id),
        }
        store::close(self.keeper.as_ref()).await;
    }
}
