//! Listening for others.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::{
    Shared,
    bulk::Apart,
    frame::{FrameError, FrameReader, FrameWriter},
    hello::{Greeting, Hello, Known, Reply, Welcome, decode, dials, encode, impostor, is_early},
    identity,
    lane::{End, LaneState, Reading, Writing, given_up_at},
    lives::{Start, Unheard, forgetful},
    refusals::plain,
    socket::{TcpListener, TcpStream},
    tls::failure,
};
use crate::{
    message::{ProcessId, ProcessKind},
    network::{Envelope, Lane},
    routers::{Edition, removed},
    wire::Wire,
};

/// How long a greeting may take.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Connections that may be greeting at a time. One more ends the one that has had the longest time for that: else whoever opens
/// connections without a word would keep all others out.
const GREETING: usize = 256;

/// A connection of a session, not yet welcomed.
struct Accepted {
    reading: Reading,
    writing: Writing,
    taken: u64,
}

/// The sessions that others have begun.
#[derive(Default)]
pub(super) struct Sessions {
    /// By the process here and the one elsewhere.
    open: HashMap<(ProcessId, ProcessId), Session>,
    /// The newest start of each process elsewhere.
    lives: HashMap<ProcessId, Start>,
    /// The life of the process elsewhere in the last session of each pair, whoever began it.
    last: HashMap<(ProcessId, ProcessId), u64>,
}

struct Session {
    id: u64,
    life: u64,
    control: mpsc::Sender<Accepted>,
    data: mpsc::Sender<Accepted>,
}

impl Sessions {
    /// A process here, and one elsewhere, have a new session. Whether the one before was with the same life.
    pub(super) fn meets(&mut self, pair: (ProcessId, ProcessId), life: u64) -> bool {
        self.last.insert(pair, life) == Some(life)
    }

    /// Ends the sessions with some processes.
    pub(super) fn end(&mut self, mut ends: impl FnMut(ProcessId) -> bool) {
        self.open.retain(|(_, remote), _| !ends(*remote));
    }

    /// Whether a connection begins a session.
    fn begins(&self, hello: &Hello) -> Result<bool, Reply> {
        let open = self.open.get(&(hello.to, hello.from));
        if open.is_some_and(|session| session.id == hello.session) {
            return Ok(false);
        }
        match impostor(hello, self.known(hello.from)) {
            Some(reason) => Err(Reply::Refused(reason)),
            // The first lane of a session that has ended before the second came begins none: the other side knows that one.
            None if !hello.begins || hello.lane == Lane::Data => Err(Reply::Unknown),
            None => Ok(true),
        }
    }

    fn known(&self, process: ProcessId) -> Option<Known> {
        let start = *self.lives.get(&process)?;
        let connected =
            self.open.iter().any(|((_, remote), session)| *remote == process && session.life == start.life);
        Some(Known { start, connected })
    }
}

/// Accepts connections for ever.
pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    // Those that are greeting, the oldest first, and some that no longer are.
    let mut greeting: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if greeting.len() >= GREETING {
                    greeting.retain(|place| !place.is_closed());
                }
                if greeting.len() >= GREETING {
                    greeting.pop_front();
                }
                let (place, taken) = oneshot::channel();
                greeting.push_back(place);
                let shared_ = shared.clone();
                shared.spawn(async move {
                    let greeted = tokio::select! {
                        greeted = timeout(HANDSHAKE, greeted(&shared_, stream)) => greeted,
                        _ = taken => Ok(Err("too many others are greeting".into())),
                    };
                    let refused = match greeted {
                        Ok(Ok(())) => return,
                        Ok(Err(reason)) => reason,
                        Err(_) => format!("no greeting within {} s", HANDSHAKE.as_secs()),
                    };
                    shared_.tell_refused(address, &refused);
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

impl Shared {
    /// A line for a connection that was not taken, unless an equal one has just been said.
    fn tell_refused(&self, address: SocketAddr, reason: &str) {
        if let Some(line) = self.refusals.lock().line(address.ip(), reason, Instant::now()) {
            let process = self.locals.first().map(tracing::field::display);
            tracing::warn!(process, %address, "{line}");
        }
    }
}

/// Hears the greeting of a connection and hands it to its session; or tells why not.
async fn greeted(shared: &Arc<Shared>, stream: TcpStream) -> Result<(), String> {
    // Only a delay is at stake.
    let _ = stream.set_nodelay(true);
    let mut shown = None;
    let (mut reading, mut writing): (Reading, Writing) = match &shared.tls {
        None => {
            let (reading, writing) = stream.into_split();
            (FrameReader::new(Box::new(reading)), FrameWriter::new(Box::new(writing)))
        }
        Some(tls) => {
            let stream = tls.acceptor().accept(stream).await.map_err(|error| failure(&error))?;
            shown = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
            let (reading, writing) = tokio::io::split(stream);
            (FrameReader::new(Box::new(reading)), FrameWriter::new(Box::new(writing)))
        }
    };
    let greeting = match reading.next().await {
        Ok(frame) => decode(&frame),
        // It is told so: it does not find out by itself.
        Err(error @ FrameError::Tls) => Err(format!("it does not greet: {error}")),
        Err(error) => return Err(format!("it does not greet: {error}")),
    };
    if let Ok(Greeting::Hello(hello)) = &greeting
        && shared.edition().cluster.is_none()
        && is_early((hello.from, hello.routers), (hello.to, shared.edition()))
    {
        // It is asked again if it does not come to know.
        let _ = timeout(HANDSHAKE / 2, shared.learns_its_cluster()).await;
    }
    let (reply, outcome) = match greeting {
        Ok(Greeting::Describe) => (Reply::Description(shared.describe()), Ok(())),
        Ok(Greeting::Routers { cluster, shape, routers, router }) => {
            let forgotten = router.and_then(|(router, start)| forgotten(shared, router, start));
            match (stranger(shared, &cluster, &shape, routers), forgotten) {
                (Some(reason), _) => (Reply::Refused(reason.clone()), Err(reason)),
                (None, Some(reason)) => (Reply::Forgetful(reason.clone()), Err(reason)),
                (None, None) => {
                    (Reply::Routers(shared.network.known_routers().borrow().as_ref().clone()), Ok(()))
                }
            }
        }
        Ok(Greeting::Hello(hello)) if is_news(shared, &hello) => (Reply::NotReady(None), Ok(())),
        Ok(Greeting::Hello(hello)) => match refusal(shared, &hello, shown.as_deref()).await {
            Some((reply, reason)) => {
                (reply, Err(format!("{} wants to talk to {}: {reason}", hello.from, hello.to)))
            }
            None => {
                let accepted = Accepted { reading, writing, taken: hello.taken };
                let Err((reply, accepted)) = join_session(shared, &hello, accepted).await else {
                    return Ok(());
                };
                writing = accepted.writing;
                let outcome = match &reply {
                    Reply::Refused(reason) | Reply::Forgetful(reason) => {
                        Err(format!("{}: {reason}", hello.from))
                    }
                    _ => Ok(()),
                };
                (reply, outcome)
            }
        },
        Ok(Greeting::Refused { from, to, reason }) => {
            let line = format!("{from} wants to talk to {to}, but not to this process: {reason}");
            (Reply::Refused(reason), Err(line))
        }
        Err(reason) => (Reply::Refused(reason.clone()), Err(reason)),
    };
    // What it does not hear it will find out.
    let _ = writing.write(&encode(&reply), 0).await;
    let _ = writing.flush().await;
    outcome
}

/// Why whoever belongs to that cluster has no business here.
fn stranger(shared: &Shared, cluster: &str, shape: &str, routers: Edition) -> Option<String> {
    if *cluster != shared.cluster {
        return Some(format!(
            "the process that connects belongs to the cluster '{cluster}', the other one to '{}'",
            shared.cluster
        ));
    }
    if *shape != shared.shape {
        return Some(format!(
            "to the process that connects the cluster consists of {shape}, to the other one of {}",
            shared.shape
        ));
    }
    let own = shared.edition();
    own.is_foreign(routers).then(|| {
        let [there, here] = [routers, own].map(|list| list.cluster.unwrap_or_default());
        format!(
            "the processes belong to different clusters of the same name: the one that connects, or its data directory, to \
             number {there}, the other one to number {here}"
        )
    })
}

/// Whether this process will hear of the other one, or of the cluster that it belongs to itself: a router speaks that it does
/// not know, as it has an older list than that one, or either has no list with the cluster's number yet.
fn is_news(shared: &Shared, hello: &Hello) -> bool {
    if stranger(shared, &hello.cluster, &hello.shape, hello.routers).is_some() {
        return false;
    }
    let routers = shared.network.known_routers().borrow().clone();
    let is_unknown = matches!(hello.from.kind, ProcessKind::Router | ProcessKind::Super)
        && routers.edition().yields_to(hello.routers)
        && !routers.contains(hello.from)
        && !routers.is_removed(hello.from);
    is_unknown || is_early((hello.from, hello.routers), (hello.to, routers.edition()))
}

/// Why a router must not be taken for the one that it was.
fn forgotten(shared: &Shared, router: ProcessId, start: Start) -> Option<String> {
    let disowned = shared.lives.disowned(router).filter(|(life, _)| *life == start.life);
    disowned.map(|(_, reason)| reason).or_else(|| forgetful(router, start, shared.lives.of(router)))
}

/// What this process answers when it does not talk to that one at all, which has shown these certificates, and why.
async fn refusal(
    shared: &Shared,
    hello: &Hello,
    shown: Option<&[CertificateDer<'_>]>,
) -> Option<(Reply, String)> {
    if let Some(reason) = outsider(shared, hello, shown) {
        return Some((Reply::Refused(reason.clone()), reason));
    }
    if let Some(reason) = forgotten(shared, hello.from, hello.start) {
        return Some((Reply::Forgetful(reason.clone()), reason));
    }
    // Only routers remember the starts of others.
    let heard = hello.heard.filter(|_| hello.from.kind == ProcessKind::Router);
    let disowned = hello
        .disowned
        .clone()
        .filter(|(life, _)| hello.from.kind == ProcessKind::Router && *life == shared.start.life);
    let reason =
        disowned.map(|(_, reason)| plain(&reason)).or_else(|| forgetful(hello.to, shared.start, heard))?;
    shared.lives.refuse(&reason).await;
    Some((Reply::Refused(reason.clone()), reason))
}

/// Why whoever says that, and has shown these certificates, has no business here.
fn outsider(shared: &Shared, hello: &Hello, shown: Option<&[CertificateDer<'_>]>) -> Option<String> {
    let Hello { cluster, shape, from, to, routers, .. } = hello;
    if let Some(reason) = stranger(shared, cluster, shape, *routers) {
        return Some(reason);
    }
    if !shared.locals.contains(to) {
        return Some(format!("this is not {to}"));
    }
    let routers = shared.network.known_routers().borrow().clone();
    let is_known = routers.edition().cluster.is_some();
    if is_known && routers.is_removed(*from) {
        return Some(removed(ProcessId::router(from.number)));
    }
    let is_member = match from.kind {
        // Who is not described may be on its way to join.
        ProcessKind::Storage => (1..=super::MOST_STORAGE).contains(&from.number),
        // Before the cluster is known, also those of the description.
        ProcessKind::Router | ProcessKind::Super => {
            let is_described = shared.members.contains_key(&ProcessId::router(from.number));
            routers.contains(*from) || !is_known && is_described
        }
        ProcessKind::Client => (1..=super::MOST_CLIENTS).contains(&from.number),
    };
    if !is_member {
        return Some(format!("{from} is not a member of the cluster"));
    }
    if !dials(*from, *to) {
        return Some(format!("{to} connects to {from}, not the other way round"));
    }
    shared.tls.as_ref().and_then(|_| identity::refusal(shown, cluster, *from, shared.unnamed_certificates))
}

/// Hands a connection to the session that it belongs to, which may begin with it.
async fn join_session(
    shared: &Arc<Shared>,
    hello: &Hello,
    accepted: Accepted,
) -> Result<(), (Reply, Accepted)> {
    if !shared.network.contains(hello.to) {
        return Err((Reply::NotReady(shared.network.loading(hello.to)), accepted));
    }
    let begins = shared.sessions.lock().begins(hello);
    let heard = match begins {
        Ok(true) => shared.lives.hear(hello.from, hello.start).await.map_err(|unheard| match unheard {
            Unheard::Forgetful(reason) => Reply::Forgetful(reason),
            Unheard::NotWritten(reason) => {
                tracing::warn!(process = %hello.to, peer = %hello.from, "{reason}");
                Reply::NotReady(None)
            }
        }),
        Ok(false) => Ok(()),
        Err(reply) => Err(reply),
    };
    if let Err(reply) = heard {
        return Err((reply, accepted));
    }
    let key = (hello.to, hello.from);
    let mut sessions = shared.sessions.lock();
    // Others may have begun theirs meanwhile.
    let begins = match sessions.begins(hello) {
        Ok(begins) => begins,
        Err(reply) => return Err((reply, accepted)),
    };
    if begins {
        let had_met = sessions.last.contains_key(&key);
        let again = sessions.meets(key, hello.start.life);
        // What an earlier life of a client was told, and what it waited for, is over with it.
        let again = again || had_met && hello.from.kind.joins_by_subscribing();
        sessions.lives.insert(hello.from, hello.start);
        let (control, control_in) = mpsc::channel(1);
        let (data, data_in) = mpsc::channel(1);
        let session = Session { id: hello.session, life: hello.start.life, control, data };
        sessions.open.insert(key, session);
        let running = run(shared.clone(), hello.to, hello.from, hello.session, again, control_in, data_in);
        shared.spawn(running);
    }
    let Some(session) = sessions.open.get(&key) else { return Err((Reply::Unknown, accepted)) };
    let lane = match hello.lane {
        Lane::Control => &session.control,
        Lane::Data => &session.data,
    };
    match lane.try_send(accepted) {
        Ok(()) => Ok(()),
        Err(mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back)) => {
            Err((Reply::NotReady(None), back))
        }
    }
}

/// Runs a session to its end.
async fn run(
    shared: Arc<Shared>,
    local: ProcessId,
    remote: ProcessId,
    session: u64,
    again: bool,
    control: mpsc::Receiver<Accepted>,
    data: mpsc::Receiver<Accepted>,
) {
    let mut route = shared.network.open_route(local, remote);
    let mut apart = Apart::default();
    let lanes = async {
        let (Some(control_out), Some(data_out)) = (route.take(Lane::Control), route.take(Lane::Data)) else {
            return "its mailbox is in use".to_owned();
        };
        if again && shared.network.deliver(remote, local, Wire::Lost).await.is_err() {
            return "this process has ended".to_owned();
        }
        tracing::info!(process = %local, peer = %remote, "connected");
        let there = shared.bulk.of(local, remote, Lane::Data);
        let data = lane(shared.clone(), local, remote, Lane::Data, data, data_out);
        tokio::select! {
            end = lane(shared.clone(), local, remote, Lane::Control, control, control_out) => end,
            end = apart.run(there, data) => end,
        }
    };
    let end = lanes.await;
    apart.end().await;
    tracing::warn!(process = %local, peer = %remote, "the connection was lost: {end}");
    drop(route);
    let mut sessions = shared.sessions.lock();
    if sessions.open.get(&(local, remote)).is_some_and(|open| open.id == session) {
        sessions.open.remove(&(local, remote));
    }
}

/// Runs a lane of a session over one connection after another.
async fn lane(
    shared: Arc<Shared>,
    local: ProcessId,
    remote: ProcessId,
    lane: Lane,
    mut connections: mpsc::Receiver<Accepted>,
    mut mailbox: mpsc::Receiver<Envelope>,
) -> String {
    let state = LaneState::new(&shared.network, local, remote, lane);
    let mut end = String::from("there was no connection in time");
    let mut next = None;
    loop {
        let accepted = match next.take() {
            Some(accepted) => accepted,
            None => match timeout_at(given_up_at(), connections.recv()).await {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return "another session took its place".into(),
                Err(_) => return end,
            },
        };
        let Accepted { reading, mut writing, taken } = accepted;
        let welcome = Welcome { start: shared.start, taken: state.taken() };
        let serving = async {
            let welcomed = async {
                writing.write(&encode(&Reply::Welcome(welcome)), 0).await?;
                writing.flush().await
            };
            match welcomed.await {
                Ok(()) => state.serve(reading, writing, taken, &mut mailbox).await,
                Err(error) => End::Connection(error.into()),
            }
        };
        let served = tokio::select! {
            served = serving => served,
            newer = connections.recv() => match newer {
                Some(newer) => {
                    next = Some(newer);
                    continue;
                }
                None => return "another session took its place".into(),
            },
        };
        end = served.to_string();
        if matches!(served, End::Over | End::Unsendable(_)) {
            return end;
        }
        tracing::debug!(process = %local, peer = %remote, ?lane, "a connection broke: {end}");
        shared.tell_protocol_error(local, remote, &served);
    }
}
