//! Listening, the start of connections, and their end.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use carousel_cluster::client::Client;
use carousel_engine::{SqlError, SqlState};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinHandle, JoinSet},
};

use crate::{
    connection::{Connection, Failed, Interrupter, Interrupts},
    metering::Meter,
    protocol::{
        backend::{Output, Severity},
        frames,
        startup::{FirstPacket, Startup, read_first_packet},
    },
    session::{Identity, Relations, Session},
};

/// Connections that may be on their way to become sessions, or to be refused, at a time.
const MAX_PENDING: usize = 256;
/// How long a client may take to its startup packet while that many are on their way, so that they keep nobody out for long.
const CROWDED_PATIENCE: Duration = Duration::from_secs(3);
/// How long a client may take to read the last words of its connection.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long sessions may take to end when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may be silent before its system is asked whether it is still there …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// … how long it is given to answer …
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// … and how often it is asked before it is given up.
const KEEPALIVE_PROBES: u32 = 6;
/// Requests for encryption that a client may make before it starts.
const MAX_ENCRYPTION_REQUESTS: usize = 3;

/// How a front end serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 for any free one. Whoever reaches the address is trusted.
    pub listen: SocketAddr,
    /// Most sessions at a time.
    pub max_connections: usize,
    /// How long a client may take from connecting to its startup packet.
    pub startup_timeout: Duration,
    /// Longest message of a client, in bytes; also the longest row of COPY data.
    pub max_message_bytes: usize,
    /// Most memory, in bytes, that joins, sorts, groups and rows to be inserted of all sessions together may take: 53200
    /// beyond it.
    pub relations_bytes: usize,
}

impl Options {
    /// The defaults: 1,000 sessions, a minute to start, messages of up to 64 MiB, 512 MiB for joins.
    pub fn new(listen: SocketAddr) -> Options {
        Options {
            listen,
            max_connections: 1_000,
            startup_timeout: Duration::from_secs(60),
            max_message_bytes: 64 << 20,
            relations_bytes: 512 << 20,
        }
    }

    /// Statements may hold so many bytes on the way; as many as before with `None`.
    pub fn limit_memory(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.relations_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
    }
}

/// Why a front end did not start: one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
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
    /// There are no threads to be had.
    #[error("cannot start: {0}")]
    Relations(SqlError),
}

/// The Postgres front end of a cluster.
pub struct FrontEnd;

impl FrontEnd {
    /// Listens, and serves every connection with statements on `client` until the handle is stopped or dropped.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(options: Options, client: Client) -> Result<Handle, StartError> {
        let listener = TcpListener::bind(options.listen).await.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => StartError::PortInUse(options.listen),
            _ => StartError::Listen { address: options.listen, source },
        })?;
        let address =
            listener.local_addr().map_err(|source| StartError::Listen { address: options.listen, source })?;
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            sessions: Arc::new(Semaphore::new(options.max_connections)),
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            registry: Mutex::new(HashMap::new()),
            next_process: AtomicI32::new(1),
            relations: Arc::new(Relations::new(options.relations_bytes).map_err(StartError::Relations)?),
            meter: Arc::new(Meter::new()),
            options,
            client,
        });
        let accepting = tokio::spawn(accept(listener, shared.clone(), stopped));
        Ok(Handle { address, stop, accepting, shared })
    }
}

/// A running front end. Dropped, it ends its sessions without a word.
pub struct Handle {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl Handle {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections there are now, those that are still starting included.
    pub fn connections(&self) -> usize {
        self.shared.registry.lock().len()
    }

    /// Stops listening and ends every session with 57P01; a statement that runs is given up.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // The task ends by itself, and has reported what went wrong in it.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What all connections of a front end share.
struct Shared {
    options: Options,
    client: Client,
    relations: Arc<Relations>,
    meter: Arc<Meter>,
    sessions: Arc<Semaphore>,
    pending: Arc<Semaphore>,
    registry: Mutex<HashMap<i32, Registered>>,
    next_process: AtomicI32,
}

/// How a connection can be interrupted.
struct Registered {
    secret: Vec<u8>,
    interrupter: Interrupter,
}

/// A connection's entry in the registry, for as long as it lives.
struct Registration {
    shared: Arc<Shared>,
    process: i32,
    secret: [u8; 32],
    interrupter: Interrupter,
}

impl Registration {
    fn new(shared: Arc<Shared>) -> (Registration, Interrupts) {
        let (interrupter, interrupts) = Interrupter::new();
        let secret: [u8; 32] = rand::random();
        let mut registry = shared.registry.lock();
        // Numbers come round after 2^31 connections; one that is still in use is passed over.
        let process = loop {
            let process = shared.next_process.fetch_add(1, Ordering::Relaxed) & i32::MAX;
            if process != 0 && !registry.contains_key(&process) {
                break process;
            }
        };
        let registered = Registered { secret: secret.to_vec(), interrupter: interrupter.clone() };
        registry.insert(process, registered);
        drop(registry);
        (Registration { shared, process, secret, interrupter }, interrupts)
    }

    /// The key that a client of this minor protocol version is given: four bytes before 3.2.
    fn use_secret(&self, minor: u16) -> Vec<u8> {
        let secret = if minor < 2 { &self.secret[..4] } else { &self.secret[..] };
        if let Some(registered) = self.shared.registry.lock().get_mut(&self.process) {
            registered.secret = secret.to_vec();
        }
        secret.to_vec()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.registry.lock().remove(&self.process);
    }
}

impl Shared {
    /// Stops the statement of another session, if the secret is the right one. Nobody is told whether it was.
    fn cancel(&self, process: i32, secret: &[u8]) {
        let registry = self.registry.lock();
        let Some(registered) = registry.get(&process) else { return };
        // The time this takes must not tell how much of a guess is right.
        let different = registered.secret.iter().zip(secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        if registered.secret.len() == secret.len() && different == 0 {
            registered.interrupter.cancel();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Also when the handle is gone.
            () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => break,
            Some(ended) = connections.join_next() => report_end(ended),
            // While too many are starting, others wait in the system's queue, as they would for a busy server.
            Ok((pending, accepted)) = start(&listener, &shared) => match accepted {
                Ok((socket, _)) => {
                    let (registration, interrupts) = Registration::new(shared.clone());
                    connections.spawn(async move {
                        serve(socket, &registration, interrupts, pending).await;
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: leave the others time to end.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
    drop(listener);
    for registered in shared.registry.lock().values() {
        registered.interrupter.shutdown();
    }
    let all = async {
        while let Some(ended) = connections.join_next().await {
            report_end(ended);
        }
    };
    if tokio::time::timeout(STOP_PATIENCE, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// The next connection, with a place among those that are starting.
async fn start(
    listener: &TcpListener,
    shared: &Shared,
) -> Result<(OwnedSemaphorePermit, std::io::Result<(TcpStream, SocketAddr)>), AcquireError> {
    let pending = shared.pending.clone().acquire_owned().await?;
    Ok((pending, listener.accept().await))
}

/// A panic ends its own connection only.
fn report_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a session ended by a panic");
    }
}

/// Waits until a client has taken too long while there is no room for others.
async fn crowded(pending: &Semaphore) {
    loop {
        tokio::time::sleep(CROWDED_PATIENCE).await;
        if pending.available_permits() == 0 {
            return;
        }
    }
}

/// What a connection turns out to be.
enum Beginning {
    Session(Startup),
    Nothing,
}

async fn serve(
    mut socket: TcpStream,
    registration: &Registration,
    mut interrupts: Interrupts,
    pending: OwnedSemaphorePermit,
) {
    // Only a delay is at stake.
    let _ = socket.set_nodelay(true);
    // A client that vanishes without a word must not keep its session, and old versions of rows with it.
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    if let Err(error) = SockRef::from(&socket).set_tcp_keepalive(&keepalive) {
        tracing::warn!(%error, "clients that vanish will not be noticed");
    }
    let shared = &registration.shared;
    let mut received = BytesMut::new();
    let beginning = tokio::select! {
        _ = interrupts.session() => return,
        _ = crowded(&shared.pending) => return,
        beginning = tokio::time::timeout(
            shared.options.startup_timeout,
            begin(&mut socket, &mut received, shared),
        ) => beginning,
    };
    let startup = match beginning {
        Ok(Ok(Beginning::Session(startup))) => startup,
        Ok(Ok(Beginning::Nothing)) | Err(_) => return,
        Ok(Err(error)) => return refuse(socket, &error).await,
    };
    let Ok(_place) = shared.sessions.clone().try_acquire_owned() else {
        let error = SqlError::new(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already");
        return refuse(socket, &error).await;
    };
    drop(pending);
    let _running = shared.meter.session();

    let (mut reading, writing) = socket.into_split();
    let (sender, inbox) = mpsc::unbounded_channel();
    let limit = shared.options.max_message_bytes;
    let memory = shared.relations.memory().clone();
    let interrupter = registration.interrupter.clone();
    let reader = tokio::spawn(async move {
        if frames::read_frames(&mut reading, received, limit, &memory, sender).await {
            interrupter.gone();
        }
        reading
    });
    let reader = AbortOnDrop(reader);

    let minor = startup.agreed_minor();
    let mut output = Output::default();
    let options = startup.protocol_options();
    if startup.minor != minor || !options.is_empty() {
        output.negotiate_protocol_version(minor, options);
    }
    let identity = Identity { process: registration.process, secret: registration.use_secret(minor) };
    let mut connection = Connection::new(writing, inbox, output, interrupts);
    let ended = match Session::start(
        &mut connection,
        shared.client.clone(),
        shared.relations.clone(),
        shared.meter.clone(),
        identity,
        startup,
        limit,
    ) {
        Ok(session) => session.run().await,
        Err(error) => Failed::Session(Some(error)),
    };
    if let Failed::Session(Some(error)) | Failed::Statement(error) = ended {
        connection.output.report(Severity::Fatal, &error);
    }
    connection.finish(LAST_WORDS).await;
    reader.linger().await;
}

/// Reads first packets until one decides what the connection is for.
async fn begin(
    socket: &mut TcpStream,
    received: &mut BytesMut,
    shared: &Shared,
) -> Result<Beginning, SqlError> {
    for _ in 0..=MAX_ENCRYPTION_REQUESTS {
        match read_first_packet(socket, received).await? {
            None => return Ok(Beginning::Nothing),
            Some(FirstPacket::Startup(startup)) => return Ok(Beginning::Session(startup)),
            Some(FirstPacket::Cancel { process, secret }) => {
                shared.cancel(process, &secret);
                return Ok(Beginning::Nothing);
            }
            Some(FirstPacket::Encryption) => {
                if socket.write_all(b"N").await.is_err() {
                    return Ok(Beginning::Nothing);
                }
            }
        }
    }
    Err(SqlError::new(SqlState::PROTOCOL_VIOLATION, "too many requests for encryption"))
}

/// Tells a client that never became a session why, and closes.
async fn refuse(mut socket: TcpStream, error: &SqlError) {
    let mut output = Output::default();
    output.report(Severity::Fatal, error);
    let last = async {
        if socket.write_all(&output.bytes).await.is_ok() && socket.shutdown().await.is_ok() {
            drain(&mut socket).await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, last).await;
}

/// Reads and forgets a little of what still comes: closing a socket with unread input makes the system discard what
/// was sent last, and the client would not learn why it was refused.
async fn drain(socket: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut buffer = [0; 4096];
    for _ in 0..256 {
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// The reading task, which must not outlive its session.
struct AbortOnDrop(JoinHandle<tokio::net::tcp::OwnedReadHalf>);

impl AbortOnDrop {
    /// Lets the client read its last words if the reading task has given up on what it sends.
    async fn linger(mut self) {
        if self.0.is_finished()
            && let Ok(mut reading) = (&mut self.0).await
        {
            let _ = tokio::time::timeout(LAST_WORDS, drain(&mut reading)).await;
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
