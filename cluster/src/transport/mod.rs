//! Processes in several operating system processes, on several hosts: the [`Network`]'s mailboxes, carried over TCP.
//!
//! ```text
//!   r1: core -> Sender -> mailbox of s1 ==control==> mailbox of s1 -> Endpoint -> core :s1
//!                              (a Route)  ==data=====>   (the real one)
//! ```
//!
//! For every pair of a process here and one elsewhere there is a *session*: numbered messages each way on either lane,
//! each lane over a TCP connection of its own, so that control never queues behind data. What the other side has not
//! taken is kept and sent again when a connection breaks and the next one is made: as long as both processes live and
//! reach one another within a few seconds, channels are quasi-reliable and FIFO as the paper assumes (section 5.2),
//! whatever happens to connections. A session ends when nobody listens at the other end any more, or when there was no
//! connection for too long; from then on the process is [`crate::network::Unreachable`]. When two processes that both
//! stayed up begin another session, each is told so by [`crate::wire::Wire::Lost`]; and so is a client that meets a storage
//! process for the first time, which may have answered it in vain before, and whoever is met by another life of a client.
//!
//! One of two processes connects to the other (`hello` says which), so a client needs no address. The first frame on
//! a connection says who wants to talk to whom; whoever belongs to another cluster, if only an earlier one of
//! the same name and shape (`crate::routers`), speaks another version of the protocol, has no certificate of the cluster's authority, is an older life of a connected process or a router that has
//! lost its data directory (`lives`) is refused, with a line in both logs; who finds another process than the one that it
//! has dialled says so before it leaves. Whatever cannot be healed by trying again soon is tried every two seconds, and an
//! equal line is said once in a minute (`refusals`). Frames (`frame`) are bounded, summed and counted:
//! a damaged or replayed one ends its connection and nothing else. All memory is bounded: by the mailboxes, and by a window
//! for each lane.

mod accept;
mod bulk;
mod dial;
mod follow;
mod frame;
mod hello;
mod identity;
mod lane;
mod lives;
mod ports;
mod refusals;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};

use self::{
    bulk::Bulk,
    lane::End,
    lives::{Lives, Start},
    refusals::Refusals,
    socket::TcpListener,
    tls::Tls,
};
pub use self::{hello::PROTOCOL, ports::free_addresses, tls::TlsFiles};
use crate::{
    message::{Incarnation, ProcessId},
    network::Network,
    routers::Edition,
};

/// Client processes have numbers up to this.
pub const MOST_CLIENTS: u32 = 1023;
/// Storage processes that join later have numbers up to this.
pub const MOST_STORAGE: u32 = 1 << 16;

/// How the processes here reach others.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// The cluster's name.
    pub cluster: String,
    /// What the cluster was made as: what all its processes must agree on.
    pub shape: String,
    /// What is told to processes that ask what the cluster consists of.
    pub description: String,
    /// Addresses (host:port) of the first routers and storage processes. Where others listen, the network knows.
    pub members: BTreeMap<ProcessId, String>,
    /// The processes here.
    pub locals: BTreeSet<ProcessId>,
    /// Where to listen; nowhere for clients alone.
    pub listen: Option<SocketAddr>,
    /// This start of the operating system process, counted in its data directory.
    pub incarnation: Incarnation,
    /// Drawn for that directory.
    pub directory: u64,
    /// Where a router writes down which starts of other routers it has heard of, and that it must not go on itself; other
    /// processes need not.
    pub heard: Option<PathBuf>,
    /// Mutual TLS, if it is wanted.
    pub tls: Option<TlsFiles>,
    /// Whether certificates that name no process are good for any.
    pub unnamed_certificates: bool,
}

/// Why the transport did not start: one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Another process listens there.
    #[error("cannot listen on {0}: the port is already in use")]
    PortInUse(SocketAddr),
    /// The system refuses.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A file for TLS cannot be used.
    #[error("TLS: cannot use {path}: {reason}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The file with the starts of other routers cannot be read.
    #[error("cannot read {path}: {source}")]
    Heard {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A running process did not tell what its cluster consists of.
    #[error("cannot join by {address}: {reason}")]
    Join {
        /// Its address.
        address: String,
        /// Why not.
        reason: String,
        /// It may be starting.
        again: bool,
    },
}

/// What all connections share.
struct Shared {
    cluster: String,
    shape: String,
    description: String,
    members: BTreeMap<ProcessId, String>,
    locals: BTreeSet<ProcessId>,
    start: Start,
    lives: Lives,
    tls: Option<Tls>,
    unnamed_certificates: bool,
    network: Network,
    sessions: Mutex<accept::Sessions>,
    refusals: Mutex<Refusals>,
    /// Whatever runs until the transport is dropped.
    tasks: Mutex<JoinSet<()>>,
    bulk: Bulk,
}

impl Shared {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = self.tasks.lock();
        // Those that have ended are forgotten.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    /// Which list of routers is known here.
    fn edition(&self) -> Edition {
        self.network.known_routers().borrow().edition()
    }

    /// Waits until the number of the cluster is known here.
    async fn learns_its_cluster(&self) {
        let mut known = self.network.known_routers();
        if known.wait_for(|routers| routers.edition().cluster.is_some()).await.is_err() {
            // Its other end is this transport's own.
            std::future::pending().await
        }
    }

    /// A line for what should never happen: somebody does not keep to the protocol, or a network damages frames.
    fn tell_protocol_error(&self, local: ProcessId, remote: ProcessId, end: &End) {
        let is_strange = match end {
            End::Protocol(_) => true,
            End::Connection(error) => {
                matches!(error, frame::FrameError::Corrupted(_) | frame::FrameError::Number { .. })
            }
            End::Over | End::Unsendable(_) => false,
        };
        if is_strange {
            tracing::warn!(process = %local, peer = %remote, "a connection was ended: {end}");
        }
    }
}

/// The connections of the processes here. Dropping it ends them.
pub struct Transport {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
}

impl Transport {
    /// Listens, and begins to connect.
    ///
    /// # Errors
    /// See [`TransportError`].
    pub async fn start(options: TransportOptions, network: &Network) -> Result<Transport, TransportError> {
        let TransportOptions {
            cluster,
            shape,
            description,
            members,
            locals,
            listen,
            incarnation,
            directory,
            heard,
            tls,
            unnamed_certificates,
        } = options;
        let lives = Lives::load(heard.clone());
        let lives =
            lives.map_err(|source| TransportError::Heard { path: heard.unwrap_or_default(), source })?;
        let tls = tls.as_ref().map(Tls::load).transpose()?;
        let listener = match listen {
            None => None,
            Some(address) => {
                Some(TcpListener::bind(address).await.map_err(|source| match source.kind() {
                    std::io::ErrorKind::AddrInUse => TransportError::PortInUse(address),
                    _ => TransportError::Listen { address, source },
                })?)
            }
        };
        network.set_described(members.clone());
        let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let shared = Arc::new(Shared {
            cluster,
            shape,
            description,
            members,
            locals,
            start: Start { incarnation, directory, life: rand::random() },
            lives,
            tls,
            unnamed_certificates,
            network: network.clone(),
            sessions: Mutex::default(),
            refusals: Mutex::default(),
            tasks: Mutex::default(),
            bulk: Bulk::default(),
        });
        if let Some(listener) = listener {
            shared.spawn(accept::listen(shared.clone(), listener));
        }
        shared.spawn(follow::follow(shared.clone()));
        if shared.tls.is_some() {
            let shared_ = shared.clone();
            shared.spawn(async move {
                loop {
                    tokio::time::sleep(tls::LOOK).await;
                    let shared = shared_.clone();
                    // Where the files lie may hang.
                    let _ = tokio::task::spawn_blocking(move || shared.tls.iter().for_each(Tls::look)).await;
                }
            });
        }
        Ok(Transport { shared, address })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Asks all processes that are known who the routers are. Ends when all have answered or cannot be reached, after a
    /// second at most.
    ///
    /// # Errors
    /// Why this router must not go on: it has lost its data directory, or has an old copy of it.
    pub(crate) async fn ask_for_routers(&self) -> Result<(), String> {
        self.shared.ask_all().await
    }

    /// Waits until another process says that this router must not go on; tells why. Never ends otherwise.
    pub(crate) async fn refused(&self) -> String {
        let mut refused = self.shared.lives.refused();
        let reason = refused.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // Its other end is this transport's own.
            None => std::future::pending().await,
        }
    }

    /// Ends all connections; the port is free when this returns.
    pub async fn close(self) {
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock());
        tasks.shutdown().await;
    }

    /// Asks a running process at `address` (host:port) what its cluster consists of.
    ///
    /// # Errors
    /// [`TransportError::Join`], [`TransportError::Tls`].
    pub async fn describe(address: &str, tls: Option<&TlsFiles>) -> Result<String, TransportError> {
        let shared = Shared {
            cluster: String::new(),
            shape: String::new(),
            description: String::new(),
            members: BTreeMap::new(),
            locals: BTreeSet::new(),
            start: Start { incarnation: 0, directory: 0, life: 0 },
            lives: Lives::default(),
            tls: tls.map(Tls::load).transpose()?,
            unnamed_certificates: true,
            network: Network::new(),
            sessions: Mutex::default(),
            refusals: Mutex::default(),
            tasks: Mutex::default(),
            bulk: Bulk::default(),
        };
        let failed = |error: dial::DialError| TransportError::Join {
            address: address.to_owned(),
            reason: error.to_string(),
            again: matches!(error, dial::DialError::NotListening | dial::DialError::NotReady),
        };
        dial::describe(&shared, address).await.map_err(failed)
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.shared.tasks.lock().abort_all();
    }
}
