//! The router's bookkeeping (paper, section 5.5, Algorithm 2) as a deterministic state machine: inputs in, effects
//! out; no clock, no I/O.
//!
//! ```text
//!   submitter --Route--> leader --Propose--> [consensus] --Learned--> every router's m-seq and window
//!   submitter <-Ordered- leader                                            |
//!   subscriber --Subscribe--> leader --State, Deliver, Deliver, …----------+
//! ```
//!
//! The leader gathers routed messages while its previous proposal is in flight, so that one consensus decision carries
//! many messages. Each subscriber has a *stream*: all messages behind its `after` of whose destination set it is a
//! member, in `Ts` order and without a gap, each `Deliver` with the frontier up to which nothing more will come. At
//! most one step of a stream is under way; a subscriber that is slow holds up nothing but itself, for what has
//! meanwhile left the bounded window is read from the log again when its turn comes.
//!
//! Where this departs from Algorithm 2: subscribers keep the position of their streams, so that the leader needs no
//! set of unconfirmed destinations for each message; messages count as "stable" for their submitter once they are in
//! the m-seq (`Ordered`), and the log is cut by the watermark below which every storage process is durable.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use carousel_engine::{Few, Ts, position::KeyRange};

use super::{
    leases::{Ending, Leases},
    mseq::{Batch, Beginning, Command, Learned, MSeq, Routed},
    room::Rooms,
};
use crate::{
    config::{Config, ConfigError, Configuration, Membership},
    message::{Body, Incarnation, Message, MessageId, ProcessId, ProcessKind},
    parcel,
    planted::{Bug, planted},
    routers::change::RouterChange,
    wire::{Delivery, Watermarks, Wire},
};

/// Bounds of what a router keeps in memory and sends at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Messages in one proposal.
    pub proposal_messages: usize,
    /// Approximate bytes in one proposal.
    pub proposal_bytes: usize,
    /// Approximate bytes of routed messages that wait for a proposal; beyond it the router takes no more. Also of snapshot
    /// reads that wait for one stream.
    pub queue_bytes: usize,
    /// Approximate bytes of the newest messages kept for delivery.
    pub window_bytes: usize,
    /// Snapshot reads that wait for one stream; more are lost.
    pub stream_reads: usize,
    /// Messages in one `Deliver`.
    pub deliver_messages: usize,
    /// Approximate bytes in one `Deliver`.
    pub deliver_bytes: usize,
    /// `Route`s and `Subscribe`s kept while no leader is known; their messages take no more than `queue_bytes`.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            proposal_messages: 4096,
            proposal_bytes: 4 << 20,
            queue_bytes: 64 << 20,
            window_bytes: 64 << 20,
            stream_reads: 16 << 10,
            deliver_messages: 1024,
            deliver_bytes: 1 << 20,
            waiting: 256,
        }
    }
}

/// Number of a subscription's stream; never used twice by one router.
pub type StreamId = u64;

/// What happens to a router.
#[derive(Clone, Debug)]
pub enum Input {
    /// Another process has sent something.
    Received {
        /// Who.
        from: ProcessId,
        /// What.
        wire: Wire,
    },
    /// The m-seq has grown.
    Learned {
        /// The m-seq now.
        mseq: MSeq,
        /// What came of the commands.
        learned: Vec<Learned>,
    },
    /// The m-seq was replaced by a later one, as this router had fallen behind.
    Installed(MSeq),
    /// This router leads, and has learned all that earlier leaders have. The number is unlike that of any other
    /// leadership, also of another life of this router.
    Leader(u64),
    /// This router does not lead; who does, if known.
    Follower(Option<ProcessId>),
    /// A proposal has been learned, or failed.
    Proposed {
        /// Which.
        proposal: u64,
        /// Whether it was learned.
        accepted: bool,
    },
    /// The last step of a stream has reached the subscriber's mailbox.
    Sent {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
    },
    /// The subscriber is not there any more.
    Unreachable {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
    },
    /// Whether the disk of this router's log has room.
    Room(bool),
    /// The log was read for a stream.
    Read {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
        /// What it is a destination of behind the position asked for, up to `through`.
        deliveries: Vec<Delivery>,
        /// How far the log was read.
        through: Ts,
    },
    /// Time passes: milliseconds of this router's clock.
    Tick(u64),
    /// A storage process asks for a lease.
    AskLease {
        /// Who asks.
        from: ProcessId,
        /// Which life of it.
        incarnation: Incarnation,
        /// When it asked, by its clock.
        asked_ms: u64,
        /// When it is heard here.
        now_ms: u64,
        /// A quorum of routers followed this one then, as it knows, or later: nobody else had begun to lead.
        led_ms: Option<u64>,
    },
    /// The log does not reach back far enough for a stream.
    Purged {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
        /// Streams can begin here or later.
        purged: Ts,
    },
}

/// What a router does.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Propose a batch; answered by [`Input::Proposed`].
    Propose {
        /// Number of the proposal.
        proposal: u64,
        /// The batch.
        batch: Batch,
    },
    /// Send a small message.
    Send {
        /// To whom.
        to: ProcessId,
        /// What.
        wire: Wire,
    },
    /// Send the next step of a stream when there is room; answered by [`Input::Sent`] or [`Input::Unreachable`].
    Stream {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
        /// What, in order.
        wires: Vec<Wire>,
    },
    /// Read the log for a stream; answered by [`Input::Read`] or [`Input::Purged`].
    Read {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
        /// From behind this.
        after: Ts,
    },
    /// A stream has ended: forget what is under way.
    Close {
        /// The subscriber.
        to: ProcessId,
        /// Its stream.
        stream: StreamId,
    },
    /// The log up to here is not needed any more.
    Truncate(Ts),
    /// Somebody wants other routers; the consensus answers when it is so or cannot be.
    ChangeRouters {
        /// Who.
        from: ProcessId,
        /// The asker's incarnation.
        incarnation: Incarnation,
        /// The asker's number for it.
        request: u64,
        /// What is to become of them.
        change: RouterChange,
    },
    /// Somebody wants to know whether a process can be reached from here.
    Look {
        /// Who.
        from: ProcessId,
        /// The asker's incarnation.
        incarnation: Incarnation,
        /// The asker's number for it.
        request: u64,
        /// Which process.
        process: ProcessId,
    },
}

/// The newest messages of the m-seq.
struct Window {
    messages: VecDeque<(Routed, usize)>,
    bytes: usize,
    /// `Ts` of the last message, also when there is none in the window.
    last: Ts,
}

impl Window {
    fn new(last: Ts) -> Self {
        Window { messages: VecDeque::new(), bytes: 0, last }
    }

    fn push(&mut self, routed: Routed, limit: usize) {
        assert_eq!(routed.ts.0, self.last.0 + 1, "the m-seq has no gaps");
        self.last = routed.ts;
        let weight = routed.message.weight();
        self.bytes += weight;
        self.messages.push_back((routed, weight));
        while self.bytes > limit && self.messages.len() > 1 {
            self.bytes -= self.messages.pop_front().map_or(0, |(_, weight)| weight);
        }
    }

    /// Whether all messages behind `after` are in the window.
    fn reaches(&self, after: Ts) -> bool {
        after.0 + self.messages.len() as u64 >= self.last.0
    }

    /// The messages behind `after`.
    fn behind(&self, after: Ts) -> impl Iterator<Item = &(Routed, usize)> {
        let skip = self.messages.len() - self.last.0.saturating_sub(after.0) as usize;
        self.messages.iter().skip(skip)
    }
}

/// Whether a storage process says that it begins without data.
fn joins_itself(message: &Message) -> bool {
    matches!(
        &message.body,
        Body::Configuration(Configuration::Membership(Membership::Join { process, .. }))
            if *process == message.id.submitter && process.kind == ProcessKind::Storage
    )
}

/// Whether lives of storage processes can end with a message. Which do, depends on the config at its place.
fn may_end_lives(message: &Message) -> bool {
    let Body::Configuration(Configuration::Membership(membership)) = &message.body else { return false };
    match membership {
        Membership::Suspect { process, .. } => process.kind == ProcessKind::Storage,
        Membership::Join { process, incarnation, .. } => {
            process.kind == ProcessKind::Storage && *incarnation > 1
        }
        Membership::Part { .. } | Membership::Listen { .. } => false,
    }
}

/// The lives of storage processes that end with a message, were it ordered on this config: all of who is suspected, also later
/// ones than whoever suspects it has heard of, and of those who fail with it; and those before one that joins without data, if
/// it does.
fn ending(config: &Config, message: &Message) -> Vec<Ending> {
    let Body::Configuration(Configuration::Membership(membership)) = &message.body else { return Vec::new() };
    match membership {
        Membership::Suspect { process, incarnation } if process.kind == ProcessKind::Storage => {
            let failing = config.failing(*process, *incarnation).into_iter();
            failing.map(|process| (process, Incarnation::MAX)).collect()
        }
        Membership::Join { process, incarnation, .. }
            if process.kind == ProcessKind::Storage
                && config.incarnation(*process).is_some()
                && matches!(config.join(*process, *incarnation), Ok(Some(_))) =>
        {
            vec![(*process, incarnation.saturating_sub(1))]
        }
        _ => Vec::new(),
    }
}

/// Bytes that the messages in a wire message take, roughly.
fn wire_weight(wire: &Wire) -> usize {
    match wire {
        Wire::Route(messages) | Wire::Read { messages, .. } => {
            messages.iter().map(|message| message.weight()).sum()
        }
        _ => 64,
    }
}

/// A message as one destination gets it, if it is one.
pub(crate) fn delivery(routed: &Routed, to: ProcessId) -> Option<Delivery> {
    let index = routed.destinations.binary_search_by_key(&to, |(process, _)| *process).ok()?;
    let ranges: Few<KeyRange> = routed.destinations[index].1.clone();
    Some(Delivery {
        ts: routed.ts,
        message: routed.message.clone(),
        ranges,
        config_version: routed.config_version,
    })
}

/// A subscriber's stream.
struct Stream {
    id: StreamId,
    incarnation: Incarnation,
    /// Everything up to here has been sent.
    sent: Ts,
    /// What the stream begins with, until it is sent.
    state: Option<Wire>,
    /// A step is under way.
    busy: bool,
    /// There is more to say than a frontier, or it is time to say that. Only storage processes are told every frontier:
    /// reads wait for theirs.
    due: bool,
    /// Snapshot reads that have not been sent, in the order of their `Ts`.
    reads: VecDeque<Delivery>,
    /// About how many bytes these take.
    reads_bytes: usize,
    /// Those of the step that is under way.
    sending: Vec<MessageId>,
}

impl Stream {
    /// The snapshot reads that its end loses.
    fn lost(self) -> impl Iterator<Item = MessageId> {
        self.sending.into_iter().chain(self.reads.into_iter().map(|read| read.message.id))
    }

    /// Keeps a snapshot read until it is sent.
    fn push_read(&mut self, read: Delivery) {
        self.reads_bytes += read.message.weight();
        self.reads.push_back(read);
    }

    /// Puts the waiting reads up to the frontier behind the messages whose `Ts` they have; remembers which.
    fn with_reads(&mut self, deliveries: Vec<Delivery>, frontier: Ts) -> Vec<Delivery> {
        let count = self.reads.partition_point(|read| read.ts <= frontier);
        if count == 0 {
            return deliveries;
        }
        let reads = self.reads.range(..count);
        // What was not serialised then may be now, and weighs more.
        let bytes: usize = reads.clone().map(|read| read.message.weight()).sum();
        let is_all = count == self.reads.len();
        self.reads_bytes = if is_all { 0 } else { self.reads_bytes.saturating_sub(bytes) };
        self.sending.extend(reads.map(|read| read.message.id));
        let mut merged: Vec<Delivery> = deliveries.into_iter().chain(self.reads.drain(..count)).collect();
        // Stable: a read stays behind the message with its `Ts`.
        merged.sort_by_key(|delivery| delivery.ts);
        merged
    }
}

/// How far the leader has taken a submitter's messages: into the m-seq, a proposal or the queue.
#[derive(Clone, Copy)]
struct Taken {
    incarnation: Incarnation,
    sequence: u64,
}

/// A subscriber that has more than the m-seq. It has followed a later leader, of which this router has not heard yet,
/// or the routers have lost their disks. Which of the two, the first proposal after the subscription tells: when a
/// router learns it, no later leader had agreed on anything before.
struct Ahead {
    incarnation: Incarnation,
    after: Ts,
    /// The last proposal before the subscription.
    proposal: u64,
}

#[derive(Default)]
struct Leading {
    leadership: u64,
    taken: BTreeMap<ProcessId, Taken>,
    queue: VecDeque<(Command, usize)>,
    queue_bytes: usize,
    in_flight: Option<u64>,
    streams: BTreeMap<ProcessId, Stream>,
    /// Those whose subscription waits until their life is known.
    joining: BTreeMap<ProcessId, (Incarnation, u64, Option<Ts>)>,
    /// Subscribers that are ahead of the m-seq.
    ahead: BTreeMap<ProcessId, Ahead>,
    watermarks: BTreeMap<ProcessId, Watermarks>,
    leases: Leases,
    rooms: Rooms,
    truncating: Ts,
}

impl Leading {
    fn enqueue(&mut self, command: Command) {
        let weight = command.weight();
        self.queue_bytes += weight;
        self.queue.push_back((command, weight));
    }
}

/// Bytes of the longest message: an operation or a change of the catalog, and what is around it. No client submits a longer one.
const LONGEST_MESSAGE: usize = parcel::MOST + (64 << 20);

enum Role {
    Leading(Box<Leading>),
    Following(Option<ProcessId>),
}

/// See the module's head.
pub struct Core {
    id: ProcessId,
    limits: Limits,
    mseq: MSeq,
    window: Window,
    role: Role,
    /// What came while no leader was known.
    waiting: VecDeque<(ProcessId, Wire)>,
    waiting_bytes: usize,
    last_stream: StreamId,
    last_proposal: u64,
    now_ms: Option<u64>,
    effects: Vec<Effect>,
}

impl Core {
    /// A router that follows, at the position of an m-seq.
    pub fn new(id: ProcessId, mseq: MSeq, limits: Limits) -> Self {
        let window = Window::new(mseq.ts());
        Core {
            id,
            limits,
            mseq,
            window,
            role: Role::Following(None),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last_stream: 0,
            last_proposal: 0,
            now_ms: None,
            effects: Vec::new(),
        }
    }

    /// `Ts` of the last message that was learned.
    pub fn ts(&self) -> Ts {
        self.mseq.ts()
    }

    /// The config behind it.
    pub fn config(&self) -> &Config {
        self.mseq.config()
    }

    /// Whether so much waits to be proposed that no more data should be taken.
    pub fn is_full(&self) -> bool {
        match &self.role {
            Role::Leading(leading) => {
                leading.queue_bytes + leading.leases.held_bytes() >= self.limits.queue_bytes
            }
            Role::Following(_) => false,
        }
    }

    /// What follows from an input.
    pub fn handle(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::Received { from, wire } => self.receive(from, wire),
            Input::Learned { mseq, learned } => self.learn(mseq, learned),
            Input::Installed(mseq) => {
                self.window = Window::new(mseq.ts());
                self.mseq = mseq;
                self.pump_all();
            }
            Input::Leader(leadership) => self.lead(leadership),
            Input::Follower(leader) => self.follow(leader),
            Input::Proposed { proposal, accepted } => {
                if let Role::Leading(leading) = &mut self.role
                    && leading.in_flight == Some(proposal)
                {
                    leading.in_flight = None;
                    match accepted {
                        true => self.settle_ahead(proposal),
                        false => self.follow(None),
                    }
                }
            }
            Input::Sent { to, stream } => {
                if let Some(subscription) = self.stream(to, stream) {
                    subscription.busy = false;
                    subscription.sending.clear();
                    self.pump(to);
                }
            }
            Input::Unreachable { to, stream } => {
                if self.stream(to, stream).is_some() {
                    self.close(to);
                }
            }
            Input::Read { to, stream, deliveries, through } => {
                self.stream_from_log(to, stream, deliveries, through)
            }
            Input::Tick(now_ms) => {
                self.now_ms = Some(now_ms);
                if let Role::Leading(leading) = &mut self.role {
                    leading.leases.tick(now_ms);
                }
                self.route_held();
                self.make_due();
                self.pump_all();
            }
            Input::Room(has_room) => match self.role {
                Role::Following(Some(leader)) => self.send(leader, Wire::Room { has_room }),
                Role::Following(None) => {}
                Role::Leading(_) => self.hear_of_room(self.id, has_room),
            },
            Input::AskLease { from, incarnation, asked_ms, now_ms, led_ms } => {
                if let Role::Leading(leading) = &mut self.role
                    && leading.streams.get(&from).is_some_and(|stream| stream.incarnation == incarnation)
                    && self.mseq.outlived(from, incarnation, None).is_none()
                    && !self.mseq.config().is_suspected(from)
                    && leading
                        .leases
                        .grant(from, incarnation, now_ms, led_ms, |end| ending(self.mseq.config(), end))
                {
                    self.send(from, Wire::Lease { incarnation, asked_ms });
                }
            }
            Input::Purged { to, stream, purged } => {
                if let Some(subscription) = self.stream(to, stream) {
                    let incarnation = subscription.incarnation;
                    self.close(to);
                    self.send(to, Wire::SubscribeRefused { incarnation, purged, removed: false });
                }
            }
        }
        self.propose();
        std::mem::take(&mut self.effects)
    }

    fn send(&mut self, to: ProcessId, wire: Wire) {
        self.effects.push(Effect::Send { to, wire });
    }

    fn stream(&mut self, to: ProcessId, stream: StreamId) -> Option<&mut Stream> {
        match &mut self.role {
            Role::Leading(leading) => leading.streams.get_mut(&to).filter(|found| found.id == stream),
            Role::Following(_) => None,
        }
    }

    fn receive(&mut self, from: ProcessId, wire: Wire) {
        match (&self.role, &wire) {
            (Role::Leading(_), _) => self.receive_leading(from, wire),
            (
                Role::Following(Some(leader)),
                Wire::Route(_)
                | Wire::Read { .. }
                | Wire::Subscribe { .. }
                | Wire::Leave { .. }
                | Wire::ChangeRouters { .. }
                | Wire::Look { .. },
            ) => {
                let leader = Some(*leader);
                // The leader may be one that it has never heard of.
                self.greet(from);
                self.send(from, Wire::NotLeader { leader });
            }
            (
                Role::Following(None),
                Wire::Route(_)
                | Wire::Read { .. }
                | Wire::Subscribe { .. }
                | Wire::Leave { .. }
                | Wire::ChangeRouters { .. }
                | Wire::Look { .. },
            ) => {
                // An election is short; answering would make everybody ask again and again.
                let bytes = self.waiting_bytes + wire_weight(&wire);
                if self.waiting.len() < self.limits.waiting && bytes <= self.limits.queue_bytes {
                    self.waiting_bytes = bytes;
                    self.waiting.push_back((from, wire));
                } else {
                    self.send(from, Wire::NotLeader { leader: None });
                }
            }
            (Role::Following(_), _) => {}
        }
    }

    fn receive_leading(&mut self, from: ProcessId, wire: Wire) {
        match wire {
            Wire::Route(messages) => self.route(from, messages),
            Wire::Read { messages, seen } => self.read(from, messages, seen),
            Wire::Subscribe { incarnation, directory, after } => {
                self.subscribe(from, incarnation, directory, after)
            }
            Wire::Leave { incarnation } if from.kind.joins_by_subscribing() => {
                if let Role::Leading(leading) = &mut self.role {
                    leading.enqueue(Command::Leave(from, incarnation));
                    leading.joining.remove(&from);
                    leading.ahead.remove(&from);
                }
                self.close(from);
            }
            Wire::Confirm(watermarks) => self.confirm(from, watermarks),
            Wire::Room { has_room } if from.kind == ProcessKind::Router => self.hear_of_room(from, has_room),
            Wire::ChangeRouters { incarnation, request, change } => {
                self.effects.push(Effect::ChangeRouters { from, incarnation, request, change });
            }
            Wire::Look { incarnation, request, process } => {
                self.effects.push(Effect::Look { from, incarnation, request, process });
            }
            other => tracing::debug!(router = %self.id, %from, ?other, "not for a router"),
        }
    }

    /// Tells clients when too few routers have room for more of the log, again and again, and when there is room again; also
    /// the super processes, of which one makes some.
    fn hear_of_room(&mut self, router: ProcessId, has_room: bool) {
        let Role::Leading(leading) = &mut self.role else { return };
        let voters: Vec<ProcessId> = self.mseq.routers().voters().collect();
        let now_ms = self.now_ms.unwrap_or(0);
        let is_news = leading.rooms.hear(router, has_room, now_ms);
        let (is_short, changed) = leading.rooms.look(&voters, now_ms);
        match has_room {
            _ if !is_news => {}
            true => tracing::info!(of = %router, "the disk of a router's log has room again"),
            false => tracing::warn!(of = %router, "the disk of a router's log is nearly full"),
        }
        if changed {
            let router = self.id;
            match is_short {
                true => tracing::error!(%router, "the disks of the routers' logs are nearly full: no writes"),
                false => tracing::info!(%router, "the disks of the routers' logs have room again"),
            }
        }
        if is_short || changed {
            let is_told = |process: &&ProcessId| process.kind != ProcessKind::Storage;
            let told: Vec<ProcessId> = leading.streams.keys().filter(is_told).copied().collect();
            told.into_iter().for_each(|process| self.send(process, Wire::Room { has_room: !is_short }));
        }
    }

    /// Tells a process who the routers are.
    fn greet(&mut self, to: ProcessId) {
        // Before it has learned that, everybody knows as much.
        if self.mseq.routers().version() > 0 {
            self.send(to, Wire::Routers(self.mseq.routers().clone()));
        }
    }

    /// The leader tells everybody who the routers are now, those that have been removed included; the super process
    /// beside one of those is no part of the system any more.
    fn tell_routers(&mut self) {
        let Role::Leading(leading) = &mut self.role else { return };
        let routers = self.mseq.routers().clone();
        let supers = self.mseq.config().supers().filter(|client| routers.is_removed(*client));
        for process in supers.collect::<Vec<_>>() {
            if let Some((incarnation, _)) = self.mseq.joined(process) {
                leading.enqueue(Command::Leave(process, incarnation));
            }
        }
        let subscribers = leading.streams.keys().chain(leading.joining.keys()).copied();
        let mut told: BTreeSet<ProcessId> = subscribers.collect();
        told.extend(routers.known_numbers().map(ProcessId::router));
        told.remove(&self.id);
        told.into_iter().for_each(|to| self.send(to, Wire::Routers(routers.clone())));
    }

    fn route(&mut self, from: ProcessId, messages: Vec<Arc<Message>>) {
        if messages.first().is_some_and(|first| self.is_outlived(from, first.id.incarnation, None)) {
            return;
        }
        let Role::Leading(leading) = &mut self.role else { return };
        let Some(messages) = leading.leases.behind_held(from, messages) else { return };
        let last = self.mseq.last(from);
        let mut ordered = false;
        let mut resend = None;
        let mut outnumbered = None;
        for (index, message) in messages.iter().enumerate() {
            let MessageId { submitter, incarnation, sequence } = message.id;
            if submitter != from {
                tracing::warn!(router = %self.id, %from, %submitter, "a message in another's name has no effect");
                continue;
            }
            let learned = last.map_or(Taken { incarnation, sequence: 0 }, |last| Taken {
                incarnation: last.incarnation,
                sequence: last.sequence,
            });
            let taken = leading.taken.entry(from).or_insert(learned);
            // A proposal of an earlier leadership may have been learned in this one.
            if (taken.incarnation, taken.sequence) < (learned.incarnation, learned.sequence) {
                *taken = learned;
            }
            if incarnation < taken.incarnation {
                let newest = taken.incarnation;
                tracing::warn!(router = %self.id, %from, incarnation, newest, "an earlier life says something");
                if joins_itself(message) {
                    // Lives in other directories have tried that before, to no effect, and it would wait for an answer.
                    outnumbered = Some(Wire::Outlived { incarnation, newest, goes_on: false });
                }
                continue;
            }
            if incarnation > taken.incarnation {
                *taken = Taken { incarnation, sequence: 0 };
            }
            if sequence <= taken.sequence {
                // In the m-seq, or on its way.
                if planted(Bug::DuplicateSuppressionLost) && sequence == learned.sequence {
                    leading.enqueue(Command::Message(message.clone()));
                }
                ordered |=
                    last.is_some_and(|last| last.incarnation == incarnation && sequence <= last.sequence);
            } else if sequence == taken.sequence + 1 {
                // Those who submit keep to that. One entry must take what is proposed together.
                if message.weight() > LONGEST_MESSAGE {
                    tracing::warn!(router = %self.id, %from, sequence, "a message that is too long has no effect");
                    break;
                }
                if may_end_lives(message) {
                    let until_ms = match leading.leases.awaits_config() {
                        // Until that is ordered.
                        true => Some(0),
                        false => leading.leases.ends_ms(&ending(self.mseq.config(), message)),
                    };
                    if let Some(until_ms) = until_ms {
                        leading.leases.hold(until_ms, from, messages[index..].to_vec());
                        break;
                    }
                }
                if let Body::Configuration(_) = message.body {
                    leading.leases.pass(message.clone());
                }
                taken.sequence = sequence;
                leading.enqueue(Command::Message(message.clone()));
            } else {
                resend = Some(Wire::Resend { incarnation, expected: taken.sequence + 1 });
                break;
            }
        }
        if let Some(last) = last.filter(|_| ordered) {
            let wire = Wire::Ordered { incarnation: last.incarnation, sequence: last.sequence, ts: last.ts };
            self.send(from, wire);
        }
        if let Some(wire) = resend.or(outnumbered) {
            self.send(from, wire);
        }
    }

    /// Orders messages that were held, if their time has come and all before them that may change the config is ordered.
    fn route_held(&mut self) {
        let Role::Leading(leading) = &mut self.role else { return };
        if leading.leases.awaits_config() {
            return;
        }
        for (from, messages) in leading.leases.due() {
            self.route(from, messages);
        }
    }

    /// Gives snapshot reads the `Ts` of the last message and puts them on the streams of their destinations. They are
    /// lost when a destination has no stream, or its stream ends (paper, section 6.7: "delivery is not guaranteed").
    fn read(&mut self, from: ProcessId, messages: Vec<Arc<Message>>, seen: Ts) {
        let Role::Leading(leading) = &mut self.role else { return };
        let ts = self.mseq.ts();
        if seen > ts {
            // A later leader has answered this client.
            self.send(from, Wire::ReadsLost(messages.iter().map(|message| message.id).collect()));
            self.send(from, Wire::NotLeader { leader: None });
            return;
        }
        let config = self.mseq.config();
        let mut lost = Vec::new();
        let mut touched = BTreeSet::new();
        for message in messages {
            let is_read = matches!(&message.body, Body::Data(data)
                if !data.operation.is_write() && data.read_ts.is_none());
            if message.id.submitter != from || message.id.is_ordered() || !is_read {
                tracing::warn!(router = %self.id, %from, id = ?message.id, "not a snapshot read of this client's");
                continue;
            }
            let destinations = config.destset(&message);
            let has_room = |(to, _): &(ProcessId, _)| {
                leading.streams.get(to).is_some_and(|stream| {
                    stream.reads.len() < self.limits.stream_reads
                        && stream.reads_bytes < self.limits.queue_bytes
                })
            };
            if !destinations.iter().all(has_room) {
                lost.push(message.id);
                continue;
            }
            for (to, ranges) in destinations {
                if let Some(stream) = leading.streams.get_mut(&to) {
                    let (message, config_version) = (message.clone(), config.version());
                    stream.push_read(Delivery { ts, message, ranges, config_version });
                    touched.insert(to);
                }
            }
        }
        if !lost.is_empty() {
            self.send(from, Wire::ReadsLost(lost));
        }
        touched.into_iter().for_each(|to| self.pump(to));
    }

    /// Tells the submitters of snapshot reads that they are lost.
    fn lose(&mut self, reads: impl Iterator<Item = MessageId>) {
        let mut by_submitter: BTreeMap<ProcessId, Vec<MessageId>> = BTreeMap::new();
        for id in reads {
            by_submitter.entry(id.submitter).or_default().push(id);
        }
        by_submitter.into_iter().for_each(|(to, reads)| self.send(to, Wire::ReadsLost(reads)));
    }

    fn subscribe(&mut self, from: ProcessId, incarnation: Incarnation, directory: u64, after: Option<Ts>) {
        if self.is_outlived(from, incarnation, Some(directory)) {
            return;
        }
        if let Some(newest) = self.mseq.outnumbered(from, incarnation, directory) {
            return self.send(from, Wire::Outlived { incarnation, newest, goes_on: true });
        }
        let Role::Leading(leading) = &mut self.role else { return };
        if leading.streams.get(&from).is_some_and(|stream| stream.incarnation > incarnation) {
            return;
        }
        let config = self.mseq.config();
        if from.kind == ProcessKind::Storage && config.is_given_up(from) {
            return self.send(from, Wire::GivenUp { incarnation });
        }
        if !self.mseq.lives(from, incarnation, directory)
            && (from.kind.joins_by_subscribing() || config.contains(from))
        {
            leading.joining.insert(from, (incarnation, directory, after));
            leading.enqueue(Command::Join(from, incarnation, directory));
            return;
        }
        let is_fenced = config.is_fenced(MessageId { submitter: from, incarnation, sequence: 0 });
        // A client that is suspected finds that in the config; otherwise it would wait for ever.
        if !(config.contains(from) || is_fenced && from.kind.joins_by_subscribing()) {
            tracing::warn!(router = %self.id, %from, "a process that is not part of the system subscribes");
            if from.kind == ProcessKind::Storage {
                // What it has is of no use then, how far it may be; it joins without.
                let purged = Ts(self.mseq.ts().0 + 1);
                let joined = self.mseq.joined(from).map(|(life, _)| life);
                let removed = config.last_failed(from).is_none_or(|failed| joined > Some(failed));
                let refused = Wire::SubscribeRefused { incarnation, purged, removed };
                self.send(from, refused);
            }
            return;
        }
        if !self.refuses_to_let_join(from, incarnation, after) {
            self.open(from, incarnation, after);
        }
    }

    /// Whether a storage process that has ordered that it joins has not, as that had no effect: it is told.
    fn refuses_to_let_join(&mut self, from: ProcessId, incarnation: Incarnation, after: Option<Ts>) -> bool {
        let config = self.mseq.config();
        let has_ordered = from.kind == ProcessKind::Storage && after.is_none();
        if !has_ordered || config.incarnation(from).is_none_or(|life| life >= incarnation) {
            return false;
        }
        let refused = match config.join(from, incarnation) {
            Err(error @ ConfigError::LastHolder { .. }) => {
                let reason = format!(
                    "{error}, so that it cannot join without data: it needs the data directory that it had; or ALTER CLUSTER \
                     REPLACE {from} WITH DATA LOSS (or CONTRACT BY {from} WITH DATA LOSS) gives the rows up, while it is stopped"
                );
                tracing::warn!(router = %self.id, %from, incarnation, reason, "a storage process may not join");
                Wire::JoinRefused { incarnation, reason }
            }
            // It finds in the config why.
            Err(_) => return false,
            // Others have waited for what it had, and do so no more.
            Ok(_) => {
                let purged = Ts(self.mseq.ts().0 + 1);
                Wire::SubscribeRefused { incarnation, purged, removed: false }
            }
        };
        self.send(from, refused);
        true
    }

    /// Whether a process has lost its directory: it is told. It counts its lives anew, so that nobody listens to it or what it
    /// says has been said; and others do not keep for a storage process any more what it had before.
    fn is_outlived(&mut self, from: ProcessId, incarnation: Incarnation, directory: Option<u64>) -> bool {
        if planted(Bug::LostDirectoryTrusted) {
            return false;
        }
        let Some(newest) = self.mseq.outlived(from, incarnation, directory) else { return false };
        tracing::warn!(router = %self.id, %from, incarnation, newest, "a process has lost its directory");
        self.send(from, Wire::Outlived { incarnation, newest, goes_on: false });
        true
    }

    /// Begins a subscription's stream.
    fn open(&mut self, to: ProcessId, incarnation: Incarnation, after: Option<Ts>) {
        self.close(to);
        let now = self.mseq.ts();
        if let Role::Leading(leading) = &mut self.role {
            leading.ahead.remove(&to);
            if let Some(after) = after.filter(|after| *after > now) {
                tracing::warn!(router = %self.id, %to, %after, %now, "a subscriber is ahead of the m-seq");
                leading.ahead.insert(to, Ahead { incarnation, after, proposal: self.last_proposal });
                // Something has to be proposed.
                leading.enqueue(Command::Truncate(Ts::ZERO));
                return;
            }
        }
        let (ts, catalog, passed) = match after {
            Some(after) => (after, None, Arc::default()),
            // A keyspace message may have given it a place since it joined.
            None => {
                let Beginning { ts, catalog, passed } = self.mseq.begins(to);
                (ts, Some(catalog), passed)
            }
        };
        let purged = self.mseq.truncated();
        if ts < purged {
            // The log may reach back further, but nobody knows any more by which config it was routed.
            return self.send(to, Wire::SubscribeRefused { incarnation, purged, removed: false });
        }
        let Role::Leading(leading) = &mut self.role else { return };
        let (config, leadership) = (self.mseq.config_behind(ts).clone(), leading.leadership);
        let clients = self.mseq.config().clients();
        let clients = clients.map(|client| (client, passed.get(&client).copied())).collect();
        let is_storage = to.kind == ProcessKind::Storage;
        let present = is_storage.then(|| (now, self.mseq.config().clone()));
        self.last_stream += 1;
        let stream = Stream {
            id: self.last_stream,
            incarnation,
            sent: ts,
            state: Some(Wire::State { incarnation, ts, config, clients, catalog, present, leadership }),
            busy: false,
            due: true,
            reads: VecDeque::new(),
            reads_bytes: 0,
            sending: Vec::new(),
        };
        leading.streams.insert(to, stream);
        self.greet(to);
        self.pump(to);
    }

    /// A proposal was learned: those that were ahead before it was made have what this m-seq will never have, unless
    /// it has grown since.
    fn settle_ahead(&mut self, proposal: u64) {
        let Role::Leading(leading) = &mut self.role else { return };
        let settled = |ahead: &Ahead| ahead.proposal < proposal;
        let subscribers: Vec<ProcessId> =
            leading.ahead.iter().filter(|(_, ahead)| settled(ahead)).map(|(to, _)| *to).collect();
        for to in subscribers {
            let Role::Leading(leading) = &mut self.role else { return };
            let Some(Ahead { incarnation, after, .. }) = leading.ahead.remove(&to) else { continue };
            let last = self.mseq.ts();
            if after > last {
                tracing::error!(router = %self.id, %to, %after, %last, "the routers' log has lost messages");
                self.send(to, Wire::LogLost { incarnation, last });
            } else {
                self.open(to, incarnation, Some(after));
            }
        }
    }

    fn close(&mut self, to: ProcessId) {
        if let Role::Leading(leading) = &mut self.role
            && let Some(stream) = leading.streams.remove(&to)
        {
            self.effects.push(Effect::Close { to, stream: stream.id });
            self.lose(stream.lost());
        }
    }

    fn pump_all(&mut self) {
        if let Role::Leading(leading) = &self.role {
            let subscribers: Vec<_> = leading.streams.keys().copied().collect();
            subscribers.into_iter().for_each(|to| self.pump(to));
        }
    }

    /// All streams have more to say than a frontier, or it is time for that.
    fn make_due(&mut self) {
        if let Role::Leading(leading) = &mut self.role {
            leading.streams.values_mut().for_each(|stream| stream.due = true);
        }
    }

    /// Takes the next step of a stream, if none is under way and there is something to say.
    fn pump(&mut self, to: ProcessId) {
        let Role::Leading(leading) = &mut self.role else { return };
        let Some(stream) = leading.streams.get_mut(&to).filter(|stream| !stream.busy) else { return };
        let has_frontier = stream.sent < self.window.last && (stream.due || to.kind == ProcessKind::Storage);
        if !has_frontier && stream.state.is_none() && stream.reads.is_empty() {
            return;
        }
        stream.busy = true;
        if !self.window.reaches(stream.sent) {
            self.effects.push(Effect::Read { to, stream: stream.id, after: stream.sent });
            return;
        }
        let mut deliveries = Vec::new();
        let mut bytes = 0;
        let mut frontier = stream.sent;
        for (routed, weight) in self.window.behind(stream.sent) {
            if deliveries.len() >= self.limits.deliver_messages || bytes >= self.limits.deliver_bytes {
                break;
            }
            frontier = routed.ts;
            if let Some(delivery) = delivery(routed, to) {
                bytes += weight;
                deliveries.push(delivery);
            }
        }
        stream.due = frontier < self.window.last;
        if planted(Bug::FrontierAhead) {
            frontier = self.window.last;
        }
        self.step(to, deliveries, frontier);
    }

    fn stream_from_log(&mut self, to: ProcessId, stream: StreamId, deliveries: Vec<Delivery>, through: Ts) {
        let Some(subscription) = self.stream(to, stream) else { return };
        assert!(through >= subscription.sent, "the log was read backwards");
        self.step(to, deliveries, through);
    }

    /// Sends deliveries up to a frontier on a stream.
    fn step(&mut self, to: ProcessId, deliveries: Vec<Delivery>, frontier: Ts) {
        let Role::Leading(leading) = &mut self.role else { return };
        let Some(stream) = leading.streams.get_mut(&to) else { return };
        // Strictly increasing behind what was sent, and nothing beyond the frontier.
        let mut last = stream.sent;
        for delivery in &deliveries {
            assert!(delivery.ts > last, "{to} would get {} after {last}", delivery.ts);
            last = delivery.ts;
        }
        assert!(last <= frontier, "{to} would get {last} beyond the frontier {frontier}");
        let mut wires = Vec::from_iter(stream.state.take());
        let mut deliveries = stream.with_reads(deliveries, frontier);
        if planted(Bug::ReorderedWindow) && deliveries.len() > 1 {
            deliveries.swap(0, 1);
        }
        // Where the log has nothing for the subscriber, that somebody is there is worth saying.
        if frontier > stream.sent || !deliveries.is_empty() || wires.is_empty() {
            let (incarnation, after) = (stream.incarnation, stream.sent);
            wires.push(Wire::Deliver { incarnation, after, deliveries, frontier });
        }
        stream.sent = frontier;
        self.effects.push(Effect::Stream { to, stream: stream.id, wires });
    }

    fn confirm(&mut self, from: ProcessId, watermarks: Watermarks) {
        let Role::Leading(leading) = &mut self.role else { return };
        leading.watermarks.insert(from, watermarks);
        // A storage process that has not confirmed anything holds on to everything.
        let silent = if planted(Bug::SkippedConfirmation) { Ts::INFINITY } else { Ts::ZERO };
        let durable = |process| leading.watermarks.get(&process).map_or(silent, |w| w.durable);
        let keepers = || self.mseq.config().keepers_of_log().map(durable);
        let truncated = self.mseq.truncated().max(leading.truncating);
        // Mostly somebody lacks something, and one of the first that are asked.
        if keepers().any(|durable| durable <= truncated) {
            return;
        }
        let durable = keepers().min().unwrap_or(Ts::ZERO).min(self.mseq.ts());
        if durable > truncated {
            leading.truncating = durable;
            leading.enqueue(Command::Truncate(durable));
        }
    }

    fn learn(&mut self, mseq: MSeq, learned: Vec<Learned>) {
        self.mseq = mseq;
        let mut ordered = BTreeSet::new();
        let mut concerns_others = false;
        for learned in learned {
            if let Role::Leading(leading) = &mut self.role {
                learned.message().into_iter().for_each(|id| leading.leases.settle(id));
            }
            match learned {
                Learned::Message(routed) => {
                    ordered.insert(routed.message.id.submitter);
                    // Storage processes come first.
                    let last = routed.destinations.last();
                    concerns_others |= last.is_some_and(|(process, _)| process.kind != ProcessKind::Storage);
                    self.window.push(routed, self.limits.window_bytes);
                }
                Learned::Duplicate(id) => {
                    ordered.insert(id.submitter);
                }
                Learned::Gap { id, expected } => {
                    if let Role::Leading(leading) = &mut self.role {
                        let incarnation = id.incarnation;
                        leading.taken.insert(id.submitter, Taken { incarnation, sequence: expected - 1 });
                        self.send(id.submitter, Wire::Resend { incarnation, expected });
                    }
                }
                Learned::Joined(process, incarnation) => {
                    if let Some((directory, after)) = self.end_joining(process, incarnation) {
                        // It may have lost its place meanwhile.
                        self.subscribe(process, incarnation, directory, after);
                    }
                }
                Learned::Outlived { process, incarnation, newest } => {
                    if let Some((_, after)) = self.end_joining(process, incarnation)
                        && !self.refuses_to_let_join(process, incarnation, after)
                    {
                        self.send(process, Wire::Outlived { incarnation, newest, goes_on: false });
                    }
                }
                Learned::Truncate(ts) => self.effects.push(Effect::Truncate(ts)),
                Learned::Routers => self.tell_routers(),
                Learned::Nothing => {}
            }
        }
        assert_eq!(self.window.last, self.mseq.ts(), "what was learned is what the m-seq says");
        if let Role::Leading(_) = self.role {
            for submitter in ordered {
                if let Some(last) = self.mseq.last(submitter) {
                    let (incarnation, sequence, ts) = (last.incarnation, last.sequence, last.ts);
                    self.send(submitter, Wire::Ordered { incarnation, sequence, ts });
                }
            }
        }
        self.route_held();
        if concerns_others {
            self.make_due();
        }
        self.pump_all();
    }

    /// A life of a process waits for its subscription no longer, if it does: what it subscribed with.
    fn end_joining(&mut self, process: ProcessId, incarnation: Incarnation) -> Option<(u64, Option<Ts>)> {
        let Role::Leading(leading) = &mut self.role else { return None };
        // A later one may have subscribed meanwhile.
        leading.joining.get(&process).filter(|(subscribed, ..)| *subscribed == incarnation)?;
        leading.joining.remove(&process).map(|(_, directory, after)| (directory, after))
    }

    fn lead(&mut self, leadership: u64) {
        match &self.role {
            // Another leader may have led between them.
            Role::Leading(leading) if leading.leadership != leadership => self.follow(None),
            Role::Leading(_) => return,
            Role::Following(_) => {}
        }
        let leases = Leases::new(self.now_ms);
        let leading = Leading { leadership, leases, ..Leading::default() };
        self.role = Role::Leading(Box::new(leading));
        if self.mseq.routers().version() > 0 {
            // An earlier leader may not have come to it.
            self.tell_routers();
        }
        self.waiting_bytes = 0;
        for (from, wire) in std::mem::take(&mut self.waiting) {
            self.receive_leading(from, wire);
        }
    }

    fn follow(&mut self, leader: Option<ProcessId>) {
        let mut told = BTreeSet::new();
        if let Role::Leading(leading) = std::mem::replace(&mut self.role, Role::Following(leader)) {
            told.extend(leading.streams.keys().copied());
            told.extend(leading.joining.into_keys().chain(leading.ahead.into_keys()));
            told.extend(leading.taken.into_keys());
            for (to, stream) in leading.streams {
                self.effects.push(Effect::Close { to, stream: stream.id });
                self.lose(stream.lost());
            }
        }
        if leader.is_some() {
            self.waiting_bytes = 0;
            told.extend(self.waiting.drain(..).map(|(from, _)| from));
        }
        told.into_iter().for_each(|to| self.send(to, Wire::NotLeader { leader }));
    }

    fn propose(&mut self) {
        let Role::Leading(leading) = &mut self.role else { return };
        if leading.in_flight.is_some() || leading.queue.is_empty() {
            return;
        }
        let mut batch = Batch::default();
        let mut bytes = 0;
        while batch.0.len() < self.limits.proposal_messages
            && bytes < self.limits.proposal_bytes
            && let Some((command, weight)) = leading.queue.pop_front()
        {
            bytes += weight;
            batch.0.push(command);
        }
        leading.queue_bytes -= bytes;
        self.last_proposal += 1;
        leading.in_flight = Some(self.last_proposal);
        self.effects.push(Effect::Propose { proposal: self.last_proposal, batch });
    }
}
