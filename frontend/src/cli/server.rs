//! A whole Carousel in this process: an embedded cluster with a front end.

use std::time::Duration;

use carousel_cluster::embedded::{Binding, Cluster, Durability as ClusterDurability, EmbeddedOptions};
use tokio_postgres::Config;

use super::{
    config::{Durability, Settings},
    failure::Failure,
    memory::Tidying,
    open_files,
};
use crate::{
    FrontEnd, Handle, Options,
    load::{connect, reason},
};

/// How often memory that is free is given back to the operating system.
const TIDY: Duration = Duration::from_secs(1);

/// A running server.
pub struct Server {
    cluster: Cluster,
    front_end: Handle,
    _tidying: Tidying,
}

impl Server {
    /// Starts the cluster and the front end; returns when a query has been answered over the wire.
    ///
    /// # Errors
    /// A setup failure: the port is taken, the directory cannot be used, and so on.
    pub async fn start(settings: &Settings) -> Result<Server, Failure> {
        // A taken port is told before the directory is touched; the front end finds out again if it loses a race.
        drop(std::net::TcpListener::bind(settings.listen).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                Failure::setup(format!("cannot listen on {}: the port is already in use", settings.listen))
            }
            _ => Failure::setup(format!("cannot listen on {}: {error}", settings.listen)),
        })?);
        let connections = settings.max_connections;
        open_files::allow(connections, &format!("--max-connections {connections}"))?;
        let cluster = Cluster::start(EmbeddedOptions {
            routers: settings.routers,
            storage: settings.storage,
            replication_factor: settings.replication_factor,
            threads: settings.threads_per_storage as usize,
            binding: Binding::Apart,
            memory_limit: settings.memory_limit,
            durability: match settings.durability {
                Durability::Disk => ClusterDurability::Disk,
                Durability::Memory => ClusterDurability::Memory,
            },
            log_reserve: settings.log_reserve,
            heals: true,
            ..EmbeddedOptions::new(&settings.data_dir)
        })
        .await
        .map_err(Failure::setup)?;
        cluster
            .ready()
            .await
            .map_err(|error| Failure::job(format!("the cluster did not start: {}", error.message)))?;
        let mut options = Options::new(settings.listen);
        options.max_connections = settings.max_connections as usize;
        options.limit_memory(settings.max_sql_memory);
        let front_end = FrontEnd::start(options, cluster.client()).await.map_err(Failure::setup)?;
        let server = Server { cluster, front_end, _tidying: Tidying::start(TIDY) };
        let client = connect(&server.config()).await?;
        client
            .simple_query("SELECT 1")
            .await
            .map_err(|error| Failure::job(format!("the server does not answer: {}", reason(&error))))?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.front_end.local_addr()
    }

    /// Waits until a part of the server has stopped itself; tells why. Never ends otherwise.
    pub async fn failure(&self) -> String {
        self.cluster.failure().await
    }

    /// How a client of this process connects.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host(self.address().ip().to_string()).port(self.address().port());
        config.user("carousel").dbname("carousel").application_name("carousel");
        config
    }

    /// Bytes that the rows of the fullest storage process take, as it last told.
    pub fn memory_used(&self) -> u64 {
        self.cluster.client().memory().used
    }

    /// Ends all sessions, makes a checkpoint and stops.
    ///
    /// # Errors
    /// When the checkpoint could not be made; nothing acknowledged is lost then either.
    pub async fn stop(self) -> Result<(), Failure> {
        self.front_end.stop().await;
        self.cluster
            .shutdown()
            .await
            .map_err(|error| Failure::job(format!("no checkpoint at the end: {}", error.message)))
    }
}
