//! The Carousel that is measured: one in this process, in a temporary directory, or a running one.

use clap::Args;
use tempfile::TempDir;
use tokio_postgres::Config;

use crate::cli::{
    Failure,
    config::{Settings, StartArgs},
    server::Server,
    serving::ServingArgs,
};

/// Which Carousel to measure.
#[derive(Args, Clone, Debug)]
pub struct TargetArgs {
    /// Measure this running server; without it, one is started in this process on a temporary directory
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Storage processes of the server that is started [default: one for each core, at least 2]
    #[arg(long, value_name = "N", conflicts_with = "url")]
    pub storage: Option<u32>,

    /// Scan threads of the server that is started, all together [default: one for each core]
    #[arg(long, value_name = "N", conflicts_with = "url")]
    pub threads: Option<u32>,
}

/// A Carousel to measure.
pub struct Target {
    /// How to connect.
    pub config: Config,
    /// What it is, for the report.
    pub description: String,
    /// The server, when it is ours.
    pub server: Option<Server>,
    _directory: Option<TempDir>,
}

impl TargetArgs {
    /// Starts it, or finds it.
    ///
    /// # Errors
    /// When it cannot be started, or the URL is malformed.
    pub async fn open(&self) -> Result<Target, Failure> {
        if let Some(url) = &self.url {
            let config = url
                .parse()
                .map_err(|error| Failure::setup(format!("'{url}' is not a connection string: {error}")))?;
            return Ok(Target { config, description: url.clone(), server: None, _directory: None });
        }
        let directory = tempfile::tempdir()
            .map_err(|error| Failure::setup(format!("cannot create a temporary directory: {error}")))?;
        let args = StartArgs {
            serving: ServingArgs { listen: Some("127.0.0.1:0".to_owned()), ..ServingArgs::default() },
            data_dir: Some(directory.path().join("data")),
            storage: self.storage,
            threads: self.threads,
            ..StartArgs::default()
        };
        let settings = Settings::resolve(&args, crate::cli::cores())?;
        let server = Server::start(&settings).await?;
        let description = format!(
            "in this process, {} router, {} storage processes with {} scan threads each, replication factor {}, \
             durability disk",
            settings.routers, settings.storage, settings.threads_per_storage, settings.replication_factor
        );
        Ok(Target { config: server.config(), description, server: Some(server), _directory: Some(directory) })
    }
}

impl Target {
    /// Stops the server if it is ours.
    ///
    /// # Errors
    /// When it does not stop cleanly.
    pub async fn close(self) -> Result<(), Failure> {
        match self.server {
            Some(server) => server.stop().await,
            None => Ok(()),
        }
    }
}
