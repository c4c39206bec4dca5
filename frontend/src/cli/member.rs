//! The settings of `carousel router`, `storage` and `frontend`: from flags, else from `CAROUSEL_…` variables, else from
//! TOML files, else defaults. What the cluster consists of is told by its description, which is the same for all of its
//! processes.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use carousel_cluster::{
    description::{Description, check_address},
    embedded::{Binding, Durability as ClusterDurability},
    member::{MemberOptions, router_of},
    message::{ProcessId, ProcessKind},
    router::{DEFAULT_HEARTBEAT, Timing},
    routers::{MOST_ROUTERS, Routers, removed},
    super_process::LEAST_PATIENCE,
    transport::{TlsFiles, Transport, TransportError},
    wal::{is_full, replace_text},
};
use clap::{Args, builder::BoolishValueParser};
use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
};
use serde::{Deserialize, Serialize};

use super::{
    config::{Durability, MOST_THREADS, file_error},
    failure::Failure,
    observe::{LogFormat, ObserveArgs, metrics_address},
    serving::{self, ServingArgs},
    size::{MemorySize, log_reserve},
};

/// What a process that has joined remembers of the cluster.
const REMEMBERED: &str = "cluster.toml";
/// How often a router that joins looks whether it has been added.
const ADDED: Duration = Duration::from_millis(500);
/// How long whoever joins for the first time waits for the process that it joins by.
const STARTING: Duration = Duration::from_secs(15);
/// Silence after which a storage process is suspected, unless routers are told otherwise.
const DEFAULT_SUSPECT_AFTER: Duration = Duration::from_secs(10);
/// After this long a suspected process that nobody replaces leaves the ring, unless routers are told otherwise.
const DEFAULT_CONTRACT_AFTER: Duration = Duration::from_secs(300);

/// A number of milliseconds, of which 0 means never.
fn unless_never(milliseconds: Option<u64>, default: Duration) -> Option<Duration> {
    Some(milliseconds.map_or(default, Duration::from_millis)).filter(|duration| !duration.is_zero())
}

/// What the cluster consists of.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DescriptionArgs {
    /// The cluster's description: a TOML file with name, replication-factor, durability, routers and storage
    #[arg(
        long,
        value_name = "FILE",
        env = "CAROUSEL_CLUSTER",
        hide_env_values = true,
        conflicts_with = "join"
    )]
    #[serde(skip)]
    pub cluster: Option<PathBuf>,

    /// Ask a running router or storage process for the cluster's description. A router that it does not name waits until
    /// it is added to the cluster (ALTER CLUSTER ADD ROUTER)
    #[arg(long, value_name = "HOST:PORT", env = "CAROUSEL_JOIN", hide_env_values = true)]
    #[serde(skip)]
    pub join: Option<String>,

    /// The cluster's name [default: carousel]
    #[arg(long, value_name = "NAME", env = "CAROUSEL_CLUSTER_NAME", hide_env_values = true)]
    #[serde(rename = "name", skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,

    /// How many storage processes hold each row [default: 2]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_REPLICATION_FACTOR",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_factor: Option<u32>,

    /// When a write counts as done [default: disk]
    #[arg(long, value_enum, env = "CAROUSEL_DURABILITY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,

    /// Addresses of the routers, numbered from 1 in this order
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        env = "CAROUSEL_ROUTER_ADDRESSES",
        hide_env_values = true
    )]
    #[serde(rename = "routers", skip_serializing_if = "Option::is_none")]
    pub router_addresses: Option<Vec<String>>,

    /// Addresses of the storage processes, numbered from 1 in this order
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        env = "CAROUSEL_STORAGE_ADDRESSES",
        hide_env_values = true
    )]
    #[serde(rename = "storage", skip_serializing_if = "Option::is_none")]
    pub storage_addresses: Option<Vec<String>>,

    /// With TLS, talk to routers and storage processes whose certificates name no process, too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), env = "CAROUSEL_UNNAMED_CERTIFICATES", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unnamed_certificates: Option<bool>,
}

/// What every process needs.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberArgs {
    #[command(flatten)]
    #[serde(skip)]
    pub description: DescriptionArgs,

    /// Number of this process among its kind, counted from 1 [default: 1; of a router that joins, the one that it has been
    /// given with the address in --bind]
    #[arg(long, value_name = "N", env = "CAROUSEL_NUMBER", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,

    /// Directory of this process alone; created when it does not exist [default: ./carousel-data/r1, s1, c1, …]
    #[arg(long, value_name = "DIR", env = "CAROUSEL_DATA_DIR", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,

    /// PEM file of the authority that signs the certificates of all processes; with it, only they are talked to
    #[arg(long, value_name = "FILE", env = "CAROUSEL_TLS_AUTHORITY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_authority: Option<PathBuf>,

    /// PEM file of this process's certificate, for the host in its address and for the process, by a URI such as
    /// carousel://CLUSTER/router/1, storage/1 or frontend/1
    #[arg(long, value_name = "FILE", env = "CAROUSEL_TLS_CERTIFICATE", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,

    /// PEM file of the key to the certificate
    #[arg(long, value_name = "FILE", env = "CAROUSEL_TLS_KEY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,

    /// What it tells about itself.
    #[command(flatten)]
    #[serde(flatten)]
    pub observe: ObserveArgs,

    /// TOML file with any of these options but those of the cluster, named as here without the dashes in front
    #[arg(long, value_name = "FILE", env = "CAROUSEL_CONFIG", hide_env_values = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// Where a router or storage process listens.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BindArgs {
    /// Listen here for other processes, if it is not the address that the description has for this one. A process that the
    /// description does not name is reached here; a router that joins without a number is added by this address
    #[arg(long, value_name = "HOST:PORT", env = "CAROUSEL_BIND", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<String>,
}

/// Options of `carousel router`.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RouterArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub member: MemberArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub bind: BindArgs,

    /// Bytes that are to be free on the disk of the log, such as 1GiB. When too few routers have so much left, writes are
    /// refused until they have [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "CAROUSEL_LOG_RESERVE", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_reserve: Option<MemorySize>,

    /// The lead router shows the others every so many milliseconds that it lives, and they elect another one when they have not
    /// heard from it for three to six times as long. It must be longer than a round trip between two routers. The same for
    /// all routers [default: 50]
    #[arg(long, value_name = "MS", env = "CAROUSEL_HEARTBEAT_MS", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,

    /// Suspect a storage process that is silent for so many milliseconds: others answer for it, and a standby takes its
    /// place; 0 for never. One that has not been heard since this router was started has ten times as long. The same for
    /// all routers [default: 10000]
    #[arg(long, value_name = "MS", env = "CAROUSEL_SUSPECT_AFTER_MS", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_after_ms: Option<u64>,

    /// Take a storage process from the ring that has been suspected for so many milliseconds and that no standby has
    /// replaced, so that every row has as many holders as before; 0 for never. The same for all routers [default: 300000]
    #[arg(long, value_name = "MS", env = "CAROUSEL_CONTRACT_AFTER_MS", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_after_ms: Option<u64>,
}

/// Options of `carousel storage`.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StorageArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub member: MemberArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub bind: BindArgs,

    /// Scan threads [default: one for each core]
    #[arg(long, value_name = "N", env = "CAROUSEL_THREADS", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,

    /// Bind the scan threads to cores: to this one, counted from 0, and those after it [default: not bound]
    #[arg(long, value_name = "CORE", env = "CAROUSEL_FIRST_CORE", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_core: Option<u32>,

    /// Most memory for rows: 4GiB, 512MB, or a share of the machine's memory such as 60%. Writes beyond it are refused
    /// [default: 60%]
    #[arg(long, value_name = "SIZE", env = "CAROUSEL_MEMORY_LIMIT", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MemorySize>,

    /// Memory that is taken at start and kept, such as 4GiB: rows that come find it ready, where memory that is new costs
    /// time, in a virtual machine most [default: none]
    #[arg(long, value_name = "SIZE", env = "CAROUSEL_MEMORY_RESERVE", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reserve: Option<MemorySize>,
}

/// Options of `carousel frontend`.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FrontendArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub member: MemberArgs,

    /// How SQL is served.
    #[command(flatten)]
    #[serde(flatten)]
    pub serving: ServingArgs,
}

/// What the file may hold, and what the layers together give. Not every kind of process has every option.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Layers {
    number: Option<u32>,
    data_dir: Option<PathBuf>,
    tls_authority: Option<PathBuf>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    metrics_listen: Option<String>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    bind: Option<String>,
    log_reserve: Option<MemorySize>,
    heartbeat_ms: Option<u64>,
    suspect_after_ms: Option<u64>,
    contract_after_ms: Option<u64>,
    threads: Option<u32>,
    first_core: Option<u32>,
    memory_limit: Option<MemorySize>,
    memory_reserve: Option<MemorySize>,
    listen: Option<String>,
    trust_clients: Option<bool>,
    max_connections: Option<u32>,
    max_sql_memory: Option<MemorySize>,
}

/// One process of a cluster.
#[derive(Clone, Debug)]
pub enum Role {
    /// A router, and a super process beside it.
    Router(RouterArgs),
    /// A storage process.
    Storage(StorageArgs),
    /// A front end.
    Frontend(FrontendArgs),
}

/// Settings that fit together.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// The process.
    pub member: MemberOptions,
    /// Where a front end listens for SQL.
    pub listen: Option<SocketAddr>,
    /// Most sessions of a front end.
    pub max_connections: u32,
    /// Most bytes for what statements of a front end hold on the way.
    pub max_sql_memory: Option<u64>,
    /// Bytes that are taken at start and kept.
    pub memory_reserve: Option<u64>,
    /// Where metrics are served.
    pub metrics_listen: Option<SocketAddr>,
}

/// How to log, which must be known before anything else is tried.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// What to log.
    pub filter: Option<String>,
    /// How.
    pub format: LogFormat,
}

impl Role {
    fn member(&self) -> &MemberArgs {
        match self {
            Role::Router(args) => &args.member,
            Role::Storage(args) => &args.member,
            Role::Frontend(args) => &args.member,
        }
    }

    fn layers(&self) -> Result<Layers, Failure> {
        let mut figment = Figment::from(Serialized::defaults(Layers::default()));
        if let Some(path) = &self.member().config {
            figment = figment.merge(checked::<Layers>(path, Layers::default())?);
        }
        let figment = match self {
            Role::Router(args) => figment.merge(Serialized::defaults(args)),
            Role::Storage(args) => figment.merge(Serialized::defaults(args)),
            Role::Frontend(args) => figment.merge(Serialized::defaults(args)),
        };
        figment.extract().map_err(Failure::setup)
    }

    fn id(&self, number: u32) -> ProcessId {
        match self {
            Role::Router(_) => ProcessId::router(number),
            Role::Storage(_) => ProcessId::storage(number),
            Role::Frontend(_) => ProcessId::client(number),
        }
    }

    /// The directory of the process, unless it has to be given a number first.
    fn data_dir(&self, layers: &Layers) -> Option<PathBuf> {
        let number = match self {
            // It is known by its address.
            Role::Router(_) if self.member().description.join.is_some() && layers.bind.is_some() => {
                layers.number
            }
            _ => Some(layers.number.unwrap_or(1)),
        };
        layers.data_dir.clone().or_else(|| Some(default_data_dir(self.id(number?))))
    }

    /// How to log.
    ///
    /// # Errors
    /// A setup failure when the file cannot be read.
    pub fn log(&self) -> Result<LogSettings, Failure> {
        let layers = self.layers()?;
        Ok(LogSettings { filter: layers.log, format: layers.log_format.unwrap_or_default() })
    }

    /// Puts the layers together and checks the result for a machine with `cores` cores; asks a running process for the
    /// description if that is wanted.
    ///
    /// # Errors
    /// A setup failure that names the option and what is wrong with it.
    pub async fn resolve(&self, cores: u32) -> Result<MemberSettings, Failure> {
        let layers = self.layers()?;
        let tls = tls_files(&layers)?;
        if let (Role::Router(_), Some(number)) = (self, layers.number)
            && !(1..=MOST_ROUTERS).contains(&number)
        {
            return Err(Failure::setup(format!("--number must be from 1 to {MOST_ROUTERS}")));
        }
        let args = &self.member().description;
        // Only who asks others may have to go on without them.
        let directory = self.data_dir(&layers).filter(|_| args.join.is_some());
        let known = remembered(directory.as_deref(), args).unwrap_or_else(|failure| {
            tracing::warn!("{failure}: going on without it");
            None
        });
        let patience = if known.is_some() { Duration::ZERO } else { STARTING };
        let description = match describe(args, tls.as_ref(), patience).await {
            // Whoever has joined once knows enough to go on without the process that it was told to ask.
            Err(failure) if args.join.is_some() => match known {
                Some(description) => {
                    tracing::warn!("{failure}: going on with what is known from before");
                    description
                }
                None => return Err(failure),
            },
            described => described?,
        };
        let (description, number) = match self {
            Role::Router(_) if args.join.is_some() => {
                // It may have been one before, perhaps one that has been removed since.
                let number = layers.number.or_else(|| router_of(directory.as_deref()?));
                wait_to_be_added(description, args, tls.as_ref(), number, layers.bind.as_deref()).await?
            }
            _ => (description, layers.number.unwrap_or(1)),
        };
        let id = self.id(number);
        description.check().map_err(Failure::setup)?;
        let own_address = address_of(&description, id);
        // A storage process that the description does not name joins as a standby.
        let address =
            layers.bind.clone().filter(|_| own_address.is_none() && matches!(self, Role::Storage(_)));
        if own_address.is_none() && address.is_none() && !matches!(self, Role::Frontend(_)) {
            let hint = match self {
                Role::Storage(_) => "; with --bind HOST:PORT, where others reach it, it joins as a standby",
                _ => "",
            };
            return Err(Failure::setup(format!(
                "--number {number}: {id} is not in the cluster's description{hint}"
            )));
        }
        if let Some(address) = &address {
            check_bind(address)?;
            // A name may stand for it.
            if resolve_bind(address)?.ip().is_unspecified() {
                return Err(Failure::setup(format!(
                    "--bind {address}: others cannot reach {id} there; say by which of this machine's addresses \
                     they can"
                )));
            }
        }
        let listen = layers.bind.or(own_address).map(|address| resolve_bind(&address)).transpose()?;
        if layers.threads.is_some_and(|threads| !(1..=MOST_THREADS).contains(&threads)) {
            return Err(Failure::setup(format!("--threads must be from 1 to {MOST_THREADS}")));
        }
        let heartbeat = layers.heartbeat_ms.map_or(DEFAULT_HEARTBEAT, Duration::from_millis);
        if !Timing::HEARTBEATS.contains(&heartbeat) {
            let (least, most) = (Timing::HEARTBEATS.start(), Timing::HEARTBEATS.end());
            return Err(Failure::setup(format!(
                "--heartbeat-ms must be from {} to {}",
                least.as_millis(),
                most.as_millis()
            )));
        }
        let suspect_after = unless_never(layers.suspect_after_ms, DEFAULT_SUSPECT_AFTER);
        if suspect_after.is_some_and(|patience| patience < LEAST_PATIENCE) {
            return Err(Failure::setup(format!(
                "--suspect-after-ms must be at least {}, or 0 for never",
                LEAST_PATIENCE.as_millis()
            )));
        }
        let data_dir = layers.data_dir.unwrap_or_else(|| default_data_dir(id));
        if data_dir.as_os_str().is_empty() {
            return Err(Failure::setup("--data-dir is empty"));
        }
        let memory_limit = layers.memory_limit.unwrap_or(MemorySize::Percent(60)).bytes();
        let memory_reserve = layers.memory_reserve.filter(|_| matches!(self, Role::Storage(_)));
        let memory_reserve = memory_reserve.and_then(MemorySize::bytes);
        if memory_limit.is_some_and(|limit| memory_reserve > Some(limit)) {
            return Err(Failure::setup("--memory-reserve is more than --memory-limit"));
        }
        let member = MemberOptions {
            listen,
            address,
            tls,
            threads: layers.threads.unwrap_or(cores) as usize,
            binding: layers.first_core.map_or(Binding::Nowhere, |core| Binding::From(core as usize)),
            memory_limit,
            log_reserve: log_reserve(layers.log_reserve)?,
            heartbeat,
            suspect_after,
            contract_after: unless_never(layers.contract_after_ms, DEFAULT_CONTRACT_AFTER),
            ..MemberOptions::new(description, id, data_dir)
        };
        let listen = match self {
            Role::Frontend(_) => {
                let text = layers.listen.as_deref().unwrap_or(serving::DEFAULT_LISTEN);
                Some(serving::listen_address(text, layers.trust_clients.unwrap_or(false))?)
            }
            _ => None,
        };
        let max_connections =
            serving::max_connections(layers.max_connections.unwrap_or(serving::DEFAULT_MAX_CONNECTIONS))?;
        let metrics_listen = layers.metrics_listen.as_deref().map(metrics_address).transpose()?;
        let max_sql_memory = serving::max_sql_memory(layers.max_sql_memory);
        Ok(MemberSettings { member, listen, max_connections, max_sql_memory, memory_reserve, metrics_listen })
    }
}

/// A TOML file, checked alone first: an error is then the file's and can say so.
fn checked<T>(path: &Path, defaults: T) -> Result<figment::providers::Data<Toml>, Failure>
where
    T: Serialize + serde::de::DeserializeOwned,
{
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::setup(format!("cannot read {}: {error}", path.display())))?;
    let alone = Figment::from(Serialized::defaults(defaults)).merge(Toml::string(&text));
    alone.extract::<T>().map_err(|error| file_error(path, &error))?;
    Ok(Toml::string(&text))
}

async fn describe(
    args: &DescriptionArgs,
    tls: Option<&TlsFiles>,
    patience: Duration,
) -> Result<Description, Failure> {
    let defaults = || Description {
        name: "carousel".into(),
        replication_factor: 2,
        durability: ClusterDurability::Disk,
        ..Description::default()
    };
    let mut figment = Figment::from(Serialized::defaults(defaults()));
    if let Some(path) = &args.cluster {
        figment = figment.merge(checked(path, defaults())?);
    }
    if let Some(address) = &args.join {
        let told = describe_by(address, tls, patience).await.map_err(Failure::setup)?;
        figment = figment.merge(Toml::string(&told));
    }
    figment.merge(Serialized::defaults(args)).extract().map_err(Failure::setup)
}

/// What a running process says of its cluster; it is waited for as long, as it may be starting, too.
async fn describe_by(
    address: &str,
    tls: Option<&TlsFiles>,
    patience: Duration,
) -> Result<String, TransportError> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        match Transport::describe(address, tls).await {
            Err(TransportError::Join { reason, again: true, .. }) if begun.elapsed() < patience => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%address, "waiting for the process to join by: {reason}");
                }
                tokio::time::sleep(ADDED).await;
            }
            outcome => return outcome,
        }
    }
}

/// Where a process listens.
fn address_of(description: &Description, id: ProcessId) -> Option<String> {
    let members = description.members();
    let routers = description.known_routers().resolved(&members);
    match id.kind {
        ProcessKind::Router => routers.entry(id.number).map(|entry| entry.address.clone()),
        _ => members.get(&id).cloned(),
    }
}

/// The number of a router that joins, if a list has it: the one that it asks for, or the one that belongs to its address.
///
/// # Errors
/// A setup failure when it is not known who it is, or somebody else is known by its address, or it has been removed.
fn number_in(routers: &Routers, number: Option<u32>, bind: Option<&str>) -> Result<Option<u32>, Failure> {
    let at = |address: &str| routers.entries().iter().find(|entry| entry.address == address);
    let Some(number) = number else {
        let Some(bind) = bind else {
            let reason = "which router is this? Say --number, or --bind HOST:PORT, where others reach it";
            return Err(Failure::setup(reason));
        };
        // Whoever adds it says this address.
        check_bind(bind)?;
        return Ok(at(bind).map(|entry| entry.number));
    };
    let router = ProcessId::router(number);
    if routers.entry(number).is_some() {
        return Ok(Some(number));
    }
    if routers.is_removed(router) {
        return Err(Failure::setup(removed(router)));
    }
    match bind.and_then(at) {
        Some(entry) => Err(Failure::setup(format!(
            "{} was added as {}, but this is {router} by --number or its data directory",
            entry.address,
            ProcessId::router(entry.number)
        ))),
        None => Ok(None),
    }
}

/// The statement that adds a router which is to join.
fn addition(number: Option<u32>, bind: Option<&str>) -> String {
    let router = number.map(|number| format!(" {}", ProcessId::router(number))).unwrap_or_default();
    // It may listen at one address and be reached at another.
    let address = bind.filter(|bind| check_address(bind).is_ok()).unwrap_or("HOST:PORT");
    format!("ALTER CLUSTER ADD ROUTER{router} AT '{address}'")
}

/// The description of a router that is to join, as soon as it has this one, with its number.
async fn wait_to_be_added(
    mut description: Description,
    args: &DescriptionArgs,
    tls: Option<&TlsFiles>,
    number: Option<u32>,
    bind: Option<&str>,
) -> Result<(Description, u32), Failure> {
    let mut told = false;
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let routers = description.known_routers().resolved(&description.members());
        if let Some(number) = number_in(&routers, number, bind)? {
            return Ok((description, number));
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!("waiting to be added to the cluster: {}", addition(number, bind));
        }
        tokio::time::sleep(ADDED).await;
        // The process to join by may be restarting, or gone for good: the other routers know as much.
        let others = routers.entries().iter().map(|entry| &entry.address);
        for address in args.join.iter().chain(others.filter(|address| args.join.as_ref() != Some(address))) {
            let args = DescriptionArgs { join: Some(address.clone()), ..args.clone() };
            let (known, told) = (&description, describe(&args, tls, Duration::ZERO).await);
            let reason = match told {
                Err(failure) => failure.to_string(),
                Ok(told)
                    if told.name != known.name
                        || known.current.edition().is_foreign(told.current.edition()) =>
                {
                    format!("another cluster, '{}', is there now", told.name)
                }
                Ok(told) => {
                    if known.current.edition().yields_to(told.current.edition()) {
                        description = told;
                    }
                    failures.remove(address);
                    continue;
                }
            };
            if failures.get(address) != Some(&reason) {
                tracing::warn!(%address, "waiting to be added to the cluster: {reason}");
                failures.insert(address.clone(), reason);
            }
        }
    }
}

fn default_data_dir(id: ProcessId) -> PathBuf {
    Path::new("carousel-data").join(id.to_string())
}

/// What an earlier start was told of the cluster.
fn remembered(directory: Option<&Path>, args: &DescriptionArgs) -> Result<Option<Description>, Failure> {
    let Some(path) = directory.map(|directory| directory.join(REMEMBERED)).filter(|path| path.exists())
    else {
        return Ok(None);
    };
    let figment = Figment::from(Serialized::defaults(Description::default()));
    let figment = figment.merge(checked(&path, Description::default())?);
    let description: Description =
        figment.merge(Serialized::defaults(args)).extract().map_err(Failure::setup)?;
    let is_damaged = |reason| Failure::setup(format!("{} is damaged: {reason}", path.display()));
    description.check().map_err(is_damaged)?;
    Ok(Some(description))
}

/// Writes down what the cluster consists of, for a start at which nobody can be asked.
///
/// # Errors
/// A setup failure when the directory cannot be written.
pub fn remember(member: &MemberOptions) -> Result<(), Failure> {
    let path = member.data_dir.join(REMEMBERED);
    let description = &member.description;
    let mut text = description.to_toml();
    if description.current.version() > 0 {
        text.push_str(&description.current.to_toml());
    }
    let before = std::fs::read(&path).ok();
    if before.as_deref() == Some(text.as_bytes()) {
        return Ok(());
    }
    match replace_text(&path, text.as_bytes()) {
        // An older list is better than no start: the cluster tells the newest one.
        Err(error) if before.is_some() && is_full(&error) => {
            tracing::warn!(path = %path.display(), %error, "what the cluster consists of is not written down anew");
            Ok(())
        }
        written => {
            written.map_err(|error| Failure::setup(format!("cannot write {}: {error}", path.display())))
        }
    }
}

fn tls_files(layers: &Layers) -> Result<Option<TlsFiles>, Failure> {
    match (&layers.tls_authority, &layers.tls_certificate, &layers.tls_key) {
        (None, None, None) => Ok(None),
        (Some(authority), Some(certificate), Some(key)) => Ok(Some(TlsFiles {
            authority: authority.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
        })),
        _ => Err(Failure::setup("--tls-authority, --tls-certificate and --tls-key go together")),
    }
}

/// Checks that others could reach a process that joins where it listens.
fn check_bind(address: &str) -> Result<(), Failure> {
    check_address(address).map_err(|reason| Failure::setup(format!("--bind '{address}' {reason}")))
}

fn resolve_bind(address: &str) -> Result<SocketAddr, Failure> {
    let wrong = |reason: String| Failure::setup(format!("cannot listen on '{address}': {reason}"));
    let mut addresses = address.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    addresses.next().ok_or_else(|| wrong("the host has no address".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_that_joins_is_known_by_its_number_or_its_address() {
        let known =
            [(ProcessId::router(1), "a:1".to_owned()), (ProcessId::router(2), "b:1".to_owned())].into();
        let routers = Routers::first(2).resolved(&known);
        let number = |number: Option<u32>, bind: Option<&str>| number_in(&routers, number, bind);
        assert_eq!(number(None, Some("b:1")), Ok(Some(2)));
        assert_eq!(number(Some(2), None), Ok(Some(2)));
        assert_eq!(number(Some(2), Some("0.0.0.0:1")), Ok(Some(2)), "others reach it elsewhere");
        assert_eq!(number(None, Some("c:1")), Ok(None));
        assert_eq!(number(Some(5), Some("c:1")), Ok(None));
        for (asked, bind, part) in [
            (None, None, "which router"),
            (None, Some("h:0"), "--bind 'h:0'"),
            (None, Some(":1"), "HOST:PORT"),
            (Some(5), Some("b:1"), "b:1 was added as r2, but this is r5"),
        ] {
            let failure = number(asked, bind).unwrap_err();
            assert!(failure.exit_code() == 2 && failure.to_string().contains(part), "{failure}");
        }
    }

    #[test]
    fn a_router_is_added_by_the_number_that_it_waits_for() {
        assert_eq!(addition(Some(5), Some("h:1")), "ALTER CLUSTER ADD ROUTER r5 AT 'h:1'");
        assert_eq!(addition(None, Some("h:1")), "ALTER CLUSTER ADD ROUTER AT 'h:1'");
        assert_eq!(addition(Some(5), Some("0.0.0.0:1")), "ALTER CLUSTER ADD ROUTER r5 AT 'HOST:PORT'");
        for number in [Some(5), None] {
            carousel_planner::parse(&addition(number, None)).expect("a statement");
        }
    }
}
