//! A server in this process, with its data in a temporary directory.

use std::net::{Ipv4Addr, SocketAddr};

use carousel_cluster::embedded::{Cluster, EmbeddedOptions};
use carousel_frontend::{FrontEnd, Handle, Options};
use tempfile::TempDir;

/// How many processes of each kind there are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub routers: u32,
    pub storage: u32,
    pub replication_factor: u32,
}

/// As `carousel start` runs without options on two cores.
pub const SMALL: Shape = Shape { routers: 1, storage: 2, replication_factor: 1 };
/// The whole protocol.
pub const FULL: Shape = Shape { routers: 3, storage: 4, replication_factor: 2 };

/// A running server. Its parts end, as if they had crashed, before its directory is removed.
pub struct Server {
    pub url: String,
    front_end: Handle,
    pub cluster: Cluster,
    directory: TempDir,
}

impl Server {
    pub async fn start(shape: Shape) -> Server {
        Server::start_in(tempfile::tempdir().expect("a temporary directory"), shape).await
    }

    async fn start_in(directory: TempDir, shape: Shape) -> Server {
        let options = EmbeddedOptions {
            routers: shape.routers,
            storage: shape.storage,
            replication_factor: shape.replication_factor,
            ..EmbeddedOptions::new(directory.path())
        };
        let cluster = Cluster::start(options).await.expect("the cluster starts");
        cluster.ready().await.expect("the cluster becomes ready");
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let front_end =
            FrontEnd::start(Options::new(anywhere), cluster.client()).await.expect("the front end starts");
        let address = front_end.local_addr();
        let url = format!("postgres://tester@{}:{}/carousel", address.ip(), address.port());
        Server { url, front_end, cluster, directory }
    }

    /// Ends every process without a chance to clean up, and starts all again on the same data.
    pub async fn crash_and_start(self, shape: Shape) -> Server {
        let Server { front_end, cluster, directory, .. } = self;
        cluster.kill().await;
        drop(front_end);
        Server::start_in(directory, shape).await
    }
}
