//! Connecting to others, again and again.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Shared,
    bulk::Apart,
    frame::{FrameError, FrameReader, FrameWriter},
    hello::{Greeting, Hello, Reply, Welcome, decode, encode},
    identity,
    lane::{End, LaneState, Reading, Writing, given_up_at},
    lives::Unheard,
    refusals::plain,
    socket::TcpStream,
    tls::{failure, server_name},
};
use crate::{
    message::{ProcessId, ProcessKind},
    network::{Envelope, Lane, answers_unasked},
    routers::Routers,
    wire::Wire,
};

/// How long it may take until a connection can be used.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// The first wait between two attempts; each further one is twice as long …
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// … up to this.
const LAST_WAIT: Duration = Duration::from_millis(200);
/// So many lines about connections in vain are remembered, so as not to be said again.
const MOST_TOLD: usize = 16;
/// So many connections of a lane may end one after the other without a message having come through.
const FRUITLESS: u32 = 10;
/// The waits between attempts.
struct Waits(Duration);

impl Waits {
    fn begin() -> Waits {
        Waits(FIRST_WAIT)
    }

    fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (2 * wait).min(LAST_WAIT);
        wait
    }
}

/// The wait after a refusal, which time alone does not heal.
const REFUSED_WAIT: Duration = Duration::from_secs(2);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// Nobody listens there.
    #[error("nobody listens there")]
    NotListening,
    /// It is starting or ending.
    #[error("it is not ready")]
    NotReady,
    /// It does not know the session.
    #[error("it does not know the session any more")]
    Unknown,
    /// It does not want to talk, or must not be talked to.
    #[error("{0}")]
    Refused(String),
    /// This router must not go on.
    #[error("{0}")]
    Forgetful(String),
    /// Something else went wrong.
    #[error("{0}")]
    Failed(String),
}

/// A connection that can be used.
pub(super) struct Connected {
    reading: Reading,
    writing: Writing,
    welcome: Welcome,
}

/// Connects, secures the connection and hands it out in halves; and says why whoever has answered is not `to`, if with TLS
/// it has shown the certificate of another.
async fn connect(
    shared: &Shared,
    address: &str,
    to: Option<ProcessId>,
) -> Result<(Reading, Writing, Option<String>), DialError> {
    let tls = shared.tls.as_ref().map(|tls| server_name(address).map(|name| (tls, name)));
    let tls = tls.transpose().map_err(DialError::Refused)?;
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => DialError::NotListening,
        _ => DialError::Failed(error.to_string()),
    })?;
    // Only a delay is at stake.
    let _ = stream.set_nodelay(true);
    match tls {
        None => {
            let (reading, writing) = stream.into_split();
            Ok((FrameReader::new(Box::new(reading)), FrameWriter::new(Box::new(writing)), None))
        }
        Some((tls, name)) => {
            let stream = tls.connector().connect(name, stream).await.map_err(unsecured)?;
            let shown = stream.get_ref().1.peer_certificates();
            let refused =
                to.and_then(|to| identity::refusal(shown, &shared.cluster, to, shared.unnamed_certificates));
            let (reading, writing) = tokio::io::split(stream);
            Ok((FrameReader::new(Box::new(reading)), FrameWriter::new(Box::new(writing)), refused))
        }
    }
}

/// Somebody refuses this process, which is "it" in the other's words.
fn refused_by(other: ProcessId, reason: &str) -> String {
    format!("refused by {other}, in its words: {reason}")
}

/// What an error of TLS means: what is wrong with a certificate or its owner stays so.
fn unsecured(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::InvalidData => DialError::Refused(failure(&error)),
        _ => DialError::Failed(failure(&error)),
    }
}

/// Sends a greeting, from one process to another if it is said who listens there, and waits for the reply.
async fn greet(
    shared: &Shared,
    address: &str,
    between: Option<(ProcessId, ProcessId)>,
    greeting: &Greeting,
) -> Result<(Reading, Writing, Reply), DialError> {
    let mut refused = None;
    let greeted = async {
        let (mut reading, mut writing, reason) = connect(shared, address, between.map(|(_, to)| to)).await?;
        refused = reason;
        let refusal = between.zip(refused.clone());
        let refusal = refusal.map(|((from, to), reason)| Greeting::Refused { from, to, reason });
        // Whoever does not like our certificate says so only now, even if it does not hear any more.
        let _ = writing.write(&encode(refusal.as_ref().unwrap_or(greeting)), 0).await;
        let _ = writing.flush().await;
        let frame = reading.next().await.map_err(|error| match error {
            FrameError::Io(error) if error.kind() == io::ErrorKind::InvalidData => unsecured(error),
            FrameError::Tls | FrameError::Foreign => DialError::Refused(error.to_string()),
            _ => DialError::Failed(format!("it ended the connection: {error}")),
        })?;
        let reply = match decode(&frame).map_err(DialError::Refused)? {
            Reply::Refused(reason) => Reply::Refused(plain(&reason)),
            Reply::Forgetful(reason) => Reply::Forgetful(plain(&reason)),
            reply => reply,
        };
        Ok((reading, writing, reply))
    };
    let greeted = timeout(HANDSHAKE, greeted).await;
    match (refused, greeted) {
        // Whatever it has answered to that.
        (Some(reason), _) => Err(DialError::Refused(reason)),
        (None, Ok(greeted)) => greeted,
        (None, Err(_)) => Err(DialError::Failed(format!("no answer within {} s", HANDSHAKE.as_secs()))),
    }
}

/// Asks a running process what its cluster consists of.
pub(super) async fn describe(shared: &Shared, address: &str) -> Result<String, DialError> {
    match greet(shared, address, None, &Greeting::Describe).await? {
        (_, _, Reply::Description(description)) => Ok(description),
        (_, _, Reply::Refused(reason)) => Err(DialError::Refused(reason)),
        _ => Err(DialError::Failed("an answer to another question".into())),
    }
}

/// Asks a running process of the same cluster who the routers are.
pub(super) async fn ask_routers(
    shared: &Shared,
    asked: ProcessId,
    address: &str,
) -> Result<Routers, DialError> {
    let router = shared.locals.iter().copied().find(|local| local.kind == ProcessKind::Router);
    let Some(local) = shared.locals.first() else { return Err(DialError::NotReady) };
    let greeting = Greeting::Routers {
        cluster: shared.cluster.clone(),
        shape: shared.shape.clone(),
        routers: shared.edition(),
        router: router.map(|router| (router, shared.start)),
    };
    match greet(shared, address, Some((*local, asked)), &greeting).await? {
        (_, _, Reply::Routers(routers)) => Ok(routers),
        (_, _, Reply::Refused(reason)) => Err(DialError::Refused(reason)),
        // Only routers remember the starts of others.
        (_, _, Reply::Forgetful(reason)) if asked.kind == ProcessKind::Router => {
            shared.lives.refuse(&reason).await;
            Err(DialError::Forgetful(reason))
        }
        (_, _, Reply::Forgetful(reason)) => Err(DialError::Refused(reason)),
        _ => Err(DialError::Failed("an answer to another question".into())),
    }
}

/// One process here and one elsewhere that it connects to.
#[derive(Clone)]
pub(super) struct Dialler {
    pub(super) shared: Arc<Shared>,
    pub(super) local: ProcessId,
    pub(super) remote: ProcessId,
    pub(super) address: String,
}

impl Dialler {
    /// Keeps a session with the other process for ever.
    pub(super) async fn run(self) {
        let mut waits = Waits::begin();
        // What has been said of connections in vain since the last one that was not.
        let mut told = BTreeSet::new();
        loop {
            match self.begin().await {
                Ok((session, control, data)) => {
                    tracing::info!(process = %self.local, peer = %self.remote, address = %self.address, "connected");
                    told.clear();
                    let begun = Instant::now();
                    let life = control.welcome.start.life;
                    let again = self.shared.sessions.lock().meets((self.local, self.remote), life);
                    let end = self.session(session, again, control, data).await;
                    tracing::warn!(process = %self.local, peer = %self.remote, "the connection was lost: {end}");
                    match begun.elapsed() > LAST_WAIT {
                        true => waits = Waits::begin(),
                        false => tokio::time::sleep(waits.next()).await,
                    }
                }
                Err(error) => {
                    let text = plain(&error.to_string());
                    let harmless = matches!(error, DialError::NotReady | DialError::Unknown);
                    if told.len() == MOST_TOLD {
                        told.clear();
                    }
                    if !harmless && told.insert(text.clone()) {
                        tracing::warn!(
                            process = %self.local, peer = %self.remote, address = %self.address, "cannot connect: {text}"
                        );
                    }
                    let wait = waits.next();
                    let wait = if matches!(error, DialError::Refused(_)) { REFUSED_WAIT } else { wait };
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        // The other one may have waited for that.
                        () = self.shared.learns_its_cluster(), if self.shared.edition().cluster.is_none() => {}
                    }
                }
            }
        }
    }

    /// Begins a session.
    async fn begin(&self) -> Result<(u64, Connected, Connected), DialError> {
        if !self.shared.network.contains(self.local) {
            return Err(DialError::NotReady);
        }
        let session = rand::random();
        let control = self.connect(session, Lane::Control, true, 0).await?;
        let data = self.connect(session, Lane::Data, true, 0).await?;
        if control.welcome.start != data.welcome.start {
            return Err(DialError::NotReady);
        }
        Ok((session, control, data))
    }

    /// Connects for one lane of a session.
    pub(super) async fn connect(
        &self,
        session: u64,
        lane: Lane,
        begins: bool,
        taken: u64,
    ) -> Result<Connected, DialError> {
        let shared = &self.shared;
        let (heard, disowned) = (shared.lives.of(self.remote), shared.lives.disowned(self.remote));
        let hello = Hello {
            cluster: shared.cluster.clone(),
            shape: shared.shape.clone(),
            from: self.local,
            start: shared.start,
            to: self.remote,
            heard,
            disowned,
            lane,
            session,
            begins,
            taken,
            routers: shared.edition(),
        };
        let between = Some((self.local, self.remote));
        let (reading, writing, reply) =
            greet(shared, &self.address, between, &Greeting::Hello(hello)).await?;
        match reply {
            Reply::Welcome(welcome) => {
                let heard = shared.lives.hear(self.remote, welcome.start).await;
                heard.map_err(|unheard| match unheard {
                    Unheard::Forgetful(reason) => DialError::Refused(reason),
                    Unheard::NotWritten(reason) => DialError::Failed(reason),
                })?;
                Ok(Connected { reading, writing, welcome })
            }
            Reply::Unknown => Err(DialError::Unknown),
            Reply::NotReady(loading) => {
                // To everybody else it is not there, nor to these for anything else.
                let hears = matches!(self.local.kind, ProcessKind::Super | ProcessKind::Client);
                if let Some(loading) = loading.filter(|_| hears) {
                    let _ = shared.network.deliver(self.remote, self.local, Wire::Loading(loading)).await;
                }
                Err(DialError::NotReady)
            }
            Reply::Refused(reason) => Err(DialError::Refused(refused_by(self.remote, &reason))),
            Reply::Forgetful(reason) => {
                if self.remote.kind == ProcessKind::Router {
                    shared.lives.refuse(&reason).await;
                }
                Err(DialError::Refused(refused_by(self.remote, &reason)))
            }
            Reply::Description(_) | Reply::Routers(_) => {
                Err(DialError::Failed("an answer to another question".into()))
            }
        }
    }

    /// Runs a session to its end.
    async fn session(&self, session: u64, again: bool, control: Connected, data: Connected) -> String {
        let network = &self.shared.network;
        let mut route = network.open_route(self.local, self.remote);
        let (Some(control_out), Some(data_out)) = (route.take(Lane::Control), route.take(Lane::Data)) else {
            return "its mailbox is in use".into();
        };
        if (again || answers_unasked(self.remote, self.local))
            && network.deliver(self.remote, self.local, Wire::Lost).await.is_err()
        {
            return "this process has ended".into();
        }
        let there = self.shared.bulk.of(self.local, self.remote, Lane::Data);
        let data = self.clone().lane(session, Lane::Data, data, data_out);
        let mut apart = Apart::default();
        let end = tokio::select! {
            end = self.clone().lane(session, Lane::Control, control, control_out) => end,
            end = apart.run(there, data) => end,
        };
        apart.end().await;
        end
    }

    /// Runs a lane of a session over one connection after another.
    async fn lane(
        self,
        session: u64,
        lane: Lane,
        first: Connected,
        mut mailbox: mpsc::Receiver<Envelope>,
    ) -> String {
        let state = LaneState::new(&self.shared.network, self.local, self.remote, lane);
        let life = first.welcome.start.life;
        let mut connected = first;
        let (mut progress, mut fruitless, mut pauses) = (0, 0, Waits::begin());
        loop {
            let Connected { reading, writing, welcome } = connected;
            let end = state.serve(reading, writing, welcome.taken, &mut mailbox).await;
            if matches!(end, End::Over | End::Unsendable(_)) {
                return end.to_string();
            }
            // What ended one connection may end the next one, too.
            let now = state.progress();
            if std::mem::replace(&mut progress, now) < now {
                (fruitless, pauses) = (0, Waits::begin());
            } else if fruitless == FRUITLESS {
                return end.to_string();
            } else {
                tokio::time::sleep(pauses.next()).await;
                fruitless += 1;
            }
            tracing::debug!(process = %self.local, peer = %self.remote, ?lane, "a connection broke: {end}");
            self.shared.tell_protocol_error(self.local, self.remote, &end);
            let until = given_up_at();
            let mut waits = Waits::begin();
            connected = loop {
                match timeout_at(until, self.connect(session, lane, false, state.taken())).await {
                    Ok(Ok(next)) if next.welcome.start.life == life => break next,
                    Ok(Err(DialError::Failed(_) | DialError::NotReady)) => {
                        if timeout_at(until, tokio::time::sleep(waits.next())).await.is_err() {
                            return end.to_string();
                        }
                    }
                    Ok(_) | Err(_) => return end.to_string(),
                }
            };
        }
    }
}
