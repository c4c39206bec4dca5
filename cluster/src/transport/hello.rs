//! The handshake: who talks to whom, and whether they should.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    frame::{Content, Frame, Kind},
    lives::Start,
};
use crate::{
    message::{ProcessId, ProcessKind},
    network::{Lane, Loading},
    routers::{Edition, Routers},
};

/// Version of everything that travels: of frames, greetings and messages, and of who gets these.
pub const PROTOCOL: u16 = 36;
const MAGIC: [u8; 4] = *b"CRSL";

/// What whoever has connected says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Greeting {
    /// Let us talk.
    Hello(Hello),
    /// What does the cluster consist of?
    Describe,
    /// Who are the routers now?
    Routers {
        /// The cluster that the speaker belongs to.
        cluster: String,
        /// What that was made as.
        shape: String,
        /// The speaker's list of routers.
        routers: Edition,
        /// The speaker and its start, if it is a router.
        router: Option<(ProcessId, Start)>,
    },
    /// No, not to you, as your certificate is not that of whom I want to talk to.
    Refused {
        /// The speaker.
        from: ProcessId,
        /// Whom it wants to talk to.
        to: ProcessId,
        /// Why it does not.
        reason: String,
    },
}

/// One process wants to talk to another over one lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The cluster that the speaker belongs to.
    pub(super) cluster: String,
    /// What the speaker's cluster was made as.
    pub(super) shape: String,
    /// The speaker.
    pub(super) from: ProcessId,
    /// The speaker's start.
    pub(super) start: Start,
    /// Whom it wants to talk to.
    pub(super) to: ProcessId,
    /// The newest start of that one that the speaker remembers: one router of another.
    pub(super) heard: Option<Start>,
    /// The life of that one that must not go on, as far as the speaker knows, and why.
    pub(super) disowned: Option<(u64, String)>,
    /// The lane.
    pub(super) lane: Lane,
    /// The session that the connection belongs to; all connections of a session carry one stream of messages each way.
    pub(super) session: u64,
    /// The session is new, unless its other lane has been connected already.
    pub(super) begins: bool,
    /// The speaker has taken all messages of the lane up to here.
    pub(super) taken: u64,
    /// The speaker's list of routers.
    pub(super) routers: Edition,
}

/// The answer to a greeting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Messages may follow.
    Welcome(Welcome),
    /// The session is not known (any more): begin another.
    Unknown,
    /// Not now: the process is starting, and how far it is, or ending.
    NotReady(Option<Loading>),
    /// No, and why.
    Refused(String),
    /// The router that speaks has lost its data directory or has an old copy of it, and must not go on.
    Forgetful(String),
    /// The cluster's description.
    Description(String),
    /// The routers, as far as this process knows.
    Routers(Routers),
}

/// The answerer's side of a session.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// The answerer's start.
    pub(super) start: Start,
    /// It has taken all messages of the lane up to here.
    pub(super) taken: u64,
}

/// Puts a greeting or reply into a frame.
pub(super) fn encode(greeting: &impl Serialize) -> Content {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(PROTOCOL.to_le_bytes());
    // Nothing in it can fail to be serialised.
    let bytes = postcard::to_extend(greeting, bytes).unwrap_or_default();
    Content::new(Kind::Greeting, 0, 0, bytes)
}

/// Takes a greeting or reply out of a frame; or tells what it is instead.
pub(super) fn decode<T: DeserializeOwned>(frame: &Frame) -> Result<T, String> {
    let bytes = &frame.content[..];
    if frame.kind != Kind::Greeting || bytes.len() < 6 || bytes[..4] != MAGIC {
        return Err("it does not speak Carousel's protocol".into());
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != PROTOCOL {
        return Err(format!("it speaks version {version} of the protocol, this process version {PROTOCOL}"));
    }
    postcard::from_bytes(&bytes[6..]).map_err(|error| format!("its greeting cannot be read: {error}"))
}

/// Whether `from` connects to `to`, rather than the other way round: exactly one of two processes does. Clients need
/// no address, and routers connect to nobody but one another.
pub(super) fn dials(from: ProcessId, to: ProcessId) -> bool {
    let rank = |process: ProcessId| match process.kind {
        ProcessKind::Router => 0,
        ProcessKind::Storage => 1,
        ProcessKind::Client | ProcessKind::Super => 2,
    };
    match rank(from).cmp(&rank(to)) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => rank(from) < 2 && from.number > to.number,
        std::cmp::Ordering::Less => false,
    }
}

/// Whether two processes of which only one knows the number of its cluster have to wait until the other has learned its own,
/// which may be another: that comes from routers only.
pub(super) fn is_early(from: (ProcessId, Edition), to: (ProcessId, Edition)) -> bool {
    let tells = |process: ProcessId| matches!(process.kind, ProcessKind::Router | ProcessKind::Super);
    match (from.1.cluster, to.1.cluster) {
        (Some(_), None) => !tells(from.0),
        (None, Some(_)) => !tells(to.0),
        _ => false,
    }
}

/// An identity as it is known from connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) start: Start,
    /// It has a session now.
    pub(super) connected: bool,
}

/// Why a process must not speak in its name, beside what is `known` of that name.
pub(super) fn impostor(hello: &Hello, known: Option<Known>) -> Option<String> {
    // Who has lost its directory, when no other is there, hears so from the lead router.
    let known = known.filter(|known| known.connected && known.start.life != hello.start.life)?.start;
    let (from, incarnation) = (hello.from, hello.start.incarnation);
    if hello.start.directory != known.directory && known.directory != 0 {
        // However often it has been started: its starts are counted in another place.
        return Some(format!(
            "another process is connected as {from}, with another data directory: its number is used twice"
        ));
    }
    match incarnation.cmp(&known.incarnation) {
        std::cmp::Ordering::Less => Some(format!(
            "{from} has incarnation {incarnation}, but a newer one, {}, is connected",
            known.incarnation
        )),
        std::cmp::Ordering::Equal => Some(format!(
            "another process is connected as {from} with the same incarnation {incarnation}: its data directory was \
             copied, or its number is used twice"
        )),
        _ => None,
    }
}
