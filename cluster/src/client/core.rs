//! The client process as a pure state machine (Crescando/RB paper, section 5.4, algorithm 1).
//!
//! Messages are numbered as they are submitted and stay in the send window until a router says that they are ordered.
//! Their answers come from the storage processes, part by part; a message is done when every primary range that it
//! touches has been answered for.
//!
//! Departures from algorithm 1: *ordered* (in the m-seq, on a quorum of routers) takes a message out of the window, not
//! *stable*; the user is answered by storage processes (DESIGN, decision 4). A read that a restarted or absent storage
//! process owes is submitted again as a new message.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    SqlError, SqlState, TableId, Ts, aggregate::Group, position::KeyRange, statistics::TableStatistics,
};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

mod lost;
mod operations;
mod returning;

pub use self::operations::{OpenOperation, OperationState};

use super::{
    Failure, Heard, Memory, Part, Request,
    held::{Held, Holding},
    routers::{Inquiries, Inquiry, Reply},
};
use crate::{
    catalog::Catalog,
    config::Config,
    link::{RouterLink, log_lost},
    message::{Body, Data, Incarnation, Message, MessageId, ProcessId, ProcessKind, ReadIsolation},
    routers::Routers,
    super_process::Heartbeat,
    wire::{Answer, AnswerPart, Delivery, Routed, Wire},
};

/// Messages that travel together, at most.
const MESSAGES_TOGETHER: usize = 1024;
/// When those that travel together take so many bytes, it is enough.
const BYTES_TOGETHER: usize = 16 << 20;
/// When the oldest message in the window has not been ordered for this long, the window is sent again; then after twice as long,
/// and so on: a window that takes longer than this to get through a link must not fill what waits for it with copies.
const RESEND_AFTER_MS: u64 = 2_000;
const RESEND_AFTER_MS_AT_MOST: u64 = 16_000;

/// The lead router says every second that there is no room, as long as there is none, but only once that there is room again.
const NO_ROOM_MS: u64 = 4_000;

/// Bytes of groups that all reads together may keep: they are merged only when all of a read are here.
const GROUPS_BUFFER: usize = if cfg!(test) { 1 << 20 } else { 1 << 30 };

/// What the client process is.
#[derive(Clone, Debug)]
pub(crate) struct CoreOptions {
    pub(crate) id: ProcessId,
    pub(crate) incarnation: Incarnation,
    /// Unlike that of any other life with the same incarnation.
    pub(crate) directory: u64,
    pub(crate) routers: Vec<ProcessId>,
    pub(crate) config: Arc<Config>,
}

/// What happens to the client process.
#[derive(Debug)]
pub(crate) enum Event {
    Submit {
        submission: u64,
        request: Request,
        isolation: ReadIsolation,
    },
    Cancel {
        submission: u64,
    },
    /// The reader of a submission has taken batches that came from a process.
    Took {
        submission: u64,
        from: ProcessId,
        batches: u32,
    },
    Received {
        from: ProcessId,
        wire: Wire,
    },
    Unreachable(ProcessId),
    /// Who the routers are.
    Routers(Arc<Routers>),
    Tick(u64),
}

/// What the client process does.
#[derive(Debug)]
pub(crate) enum Effect {
    Send(ProcessId, Wire),
    /// Rows for a read, and the process that is to hear when they have been taken, if one is.
    Rows(u64, Option<ProcessId>, RecordBatch),
    /// Any other part for a submission; `Done`, `Ddl` and failures are the last.
    Part(u64, Result<Part, Failure>),
    /// The submission's place in the window is free again.
    Release(u64),
    /// Catalog, config, frontier or memory have changed.
    ViewChanged,
    /// The lead router has replied to an inquiry.
    RoutersAnswered(u64, Result<Reply, SqlError>),
    /// The directory in which its lives are counted was lost: the next one has to be behind this one.
    CountOn(Incarnation),
    /// The process cannot go on; whoever waits, or comes later, gets this error.
    Stop(SqlError),
}

/// A config that has come into force.
#[derive(Debug)]
struct Later {
    config: Arc<Config>,
    /// When, at the earliest and at the latest: of a subscription one hears only what has come of all changes.
    since: Ts,
    by: Ts,
}

/// Ranges that have been answered for, ascending, and the rows of each. Most messages touch one.
#[derive(Debug, Default)]
struct Answered(SmallVec<[(KeyRange, u64); 1]>);

impl Answered {
    fn place(&self, range: &KeyRange) -> Result<usize, usize> {
        self.0.binary_search_by_key(range, |(range, _)| *range)
    }

    fn contains(&self, range: &KeyRange) -> bool {
        self.place(range).is_ok()
    }

    /// Whether the range has not been answered for before: the first word counts.
    fn insert(&mut self, range: KeyRange, rows: u64) -> bool {
        let place = self.place(&range);
        if let Err(place) = place {
            self.0.insert(place, (range, rows));
        }
        place.is_err()
    }

    /// Nobody has answered for a range after all.
    fn remove(&mut self, range: KeyRange) {
        self.0.retain(|(answered, _)| *answered != range);
    }

    fn rows(&self) -> u64 {
        self.0.iter().map(|(_, rows)| rows).sum()
    }

    /// Whether they contain all positions of the ranges that are wanted.
    fn covers(&self, wanted: &[KeyRange]) -> bool {
        wanted.iter().all(|range| {
            let mut next = range.first;
            for (part, _) in &self.0 {
                if part.first <= next && next <= part.last {
                    if part.last >= range.last {
                        return true;
                    }
                    next = part.last + 1;
                }
            }
            false
        })
    }
}

/// Who is to send the rows of a range that it has kept.
#[derive(Clone, Copy, Debug)]
struct Fetching {
    from: ProcessId,
    /// It was asked for them.
    asked: bool,
    /// Some have come.
    begun: bool,
}

/// A message that is not answered in full.
#[derive(Debug)]
struct Open {
    submission: u64,
    message: Arc<Message>,
    isolation: ReadIsolation,
    submitted_ms: u64,
    /// The config it was submitted under.
    config: Arc<Config>,
    /// It may have been ordered under each of them.
    later: Vec<Later>,
    /// It stands in the m-seq at or before this, and behind `ordered_after`.
    ordered_by: Option<Ts>,
    ordered_after: Ts,
    /// Storage processes that were suspected or came back without data, and when: their earlier lives do not answer.
    fenced: BTreeMap<ProcessId, Ts>,
    /// Storage processes that have answered for all ranges that they were asked about, or have told that nothing will come.
    done: BTreeSet<ProcessId>,
    answered: Answered,
    /// RETURNING rows by replica, until the replica says for which ranges they count.
    returned: BTreeMap<ProcessId, Vec<(KeyRange, RecordBatch)>>,
    /// The ranges of which replicas have kept such rows, as they are many, and have not sent all.
    kept: BTreeMap<ProcessId, BTreeSet<KeyRange>>,
    /// Those of them that are still to come, from the replica whose answer counts.
    fetching: BTreeMap<KeyRange, Fetching>,
    /// Some that were to come are lost, so that their range is answered for by nobody.
    lacks_rows: bool,
    /// Groups of a read by process, until the process says for which ranges they count.
    grouped: BTreeMap<ProcessId, Vec<Group>>,
    /// Groups of ranges that have been answered for, kept until all have come.
    groups: Vec<Group>,
    has_groups: bool,
    /// What all that have come take.
    group_bytes: usize,
    /// Rows of a read, kept until all have come or there are too many.
    held: Held,
    /// Rows have been handed out: the read cannot be repeated.
    handed_out: bool,
    /// Storage processes that do not keep the prefix that the read sees, as they have said.
    lacking: BTreeSet<ProcessId>,
}

impl Open {
    fn new(
        submission: u64,
        message: Arc<Message>,
        isolation: ReadIsolation,
        submitted_ms: u64,
        config: Arc<Config>,
    ) -> Open {
        Open {
            submission,
            message,
            isolation,
            submitted_ms,
            config,
            later: Vec::new(),
            ordered_by: None,
            ordered_after: Ts::ZERO,
            fenced: BTreeMap::new(),
            done: BTreeSet::new(),
            answered: Answered::default(),
            returned: BTreeMap::new(),
            kept: BTreeMap::new(),
            fetching: BTreeMap::new(),
            lacks_rows: false,
            grouped: BTreeMap::new(),
            groups: Vec::new(),
            has_groups: false,
            group_bytes: 0,
            held: Held::default(),
            handed_out: false,
            lacking: BTreeSet::new(),
        }
    }

    /// Whether it reads rows, and can be submitted again.
    fn is_read(&self) -> bool {
        matches!(&self.message.body, Body::Data(data) if !data.operation.is_write())
    }
}

/// The state of a client process.
#[derive(Debug)]
pub(crate) struct Core {
    options: CoreOptions,
    link: RouterLink,
    inquiries: Inquiries,
    config: Arc<Config>,
    catalog: Arc<Catalog>,
    /// The catalog is that of this `Ts`.
    frontier: Ts,
    /// A router has accepted this life. What comes before that is for an earlier one, which has the same number if the directory
    /// was lost.
    is_known: bool,
    /// The m-seq can be followed from the frontier on. Not at the beginning, and no longer when the routers' log does
    /// not reach back that far: then a subscription begins with the routers' catalog.
    follows: bool,
    /// The last sequence number given.
    sequence: u64,
    /// Messages that are not known to be ordered: the send window.
    window: VecDeque<Arc<Message>>,
    /// The last sequence number of the window that was sent under that leadership.
    sent: u64,
    /// The oldest message in the window, when the window is sent again if that has not been ordered, and after how long it was.
    oldest: (Option<u64>, u64, u64),
    open: HashMap<u64, Open>,
    /// How many snapshot reads there have been.
    unordered: u64,
    /// Snapshot reads that were not sent, and those that were lost and will be sent again after a tick.
    unsent_reads: Vec<Arc<Message>>,
    /// Basic reads that were not sent, by who answers them, with the ranges to answer for.
    unsent_basic: BTreeMap<ProcessId, Vec<Routed>>,
    lost_reads: Vec<Open>,
    /// When those who owe answers for a while were asked whether any will come.
    asked_ms: u64,
    /// The last message that each was asked about.
    asked: BTreeMap<ProcessId, u64>,
    holding: Holding,
    /// What the groups take that are kept.
    group_bytes: usize,
    /// The leadership under which the window and snapshot reads were sent last.
    leadership: u64,
    /// The router that led then.
    reads_at: Option<ProcessId>,
    /// Too few routers have room for more of their log, and until when that counts if it is not said again.
    no_room_until_ms: Option<u64>,
    /// The newest `Ts` of an answer.
    seen: Ts,
    /// Where the last message stands of which that is known.
    ordered_to: (u64, Ts),
    /// Sequence numbers of submissions.
    by_submission: HashMap<u64, u64>,
    /// Submissions that have ended, by sequence number, until they are ordered; and when they were submitted.
    ended: HashMap<u64, (u64, u64)>,
    /// Processes that could not be reached and have not been heard since.
    absent: BTreeSet<ProcessId>,
    /// Which router leads, as others see it.
    leader: Option<ProcessId>,
    incarnations: HashMap<ProcessId, Incarnation>,
    /// Processes that this client has heard of first by a life's heartbeat: an earlier life may owe it something.
    unannounced: BTreeSet<ProcessId>,
    /// The last sequence numbers that restarted storage processes had executed: they will not answer up to there.
    passed: HashMap<ProcessId, u64>,
    heard: Arc<BTreeMap<ProcessId, Heard>>,
    /// What each storage process has told of its tables last.
    statistics_of: BTreeMap<ProcessId, Vec<TableStatistics>>,
    /// By table: what the storage process with the most rows of it says.
    statistics: Arc<BTreeMap<TableId, TableStatistics>>,
    heartbeats: BTreeMap<ProcessId, Heartbeat>,
    reads: u32,
    now_ms: u64,
    effects: Vec<Effect>,
}

impl Core {
    pub(crate) fn new(options: CoreOptions) -> Core {
        Core {
            link: RouterLink::new(options.routers.clone()),
            inquiries: Inquiries::default(),
            config: options.config.clone(),
            catalog: Arc::default(),
            frontier: Ts::ZERO,
            is_known: false,
            follows: false,
            sequence: 0,
            window: VecDeque::new(),
            sent: 0,
            oldest: (None, 0, 0),
            open: HashMap::new(),
            unordered: 0,
            unsent_reads: Vec::new(),
            unsent_basic: BTreeMap::new(),
            lost_reads: Vec::new(),
            asked_ms: 0,
            asked: BTreeMap::new(),
            holding: Holding::default(),
            group_bytes: 0,
            leadership: 0,
            reads_at: None,
            no_room_until_ms: None,
            seen: Ts::ZERO,
            ordered_to: (0, Ts::ZERO),
            by_submission: HashMap::new(),
            ended: HashMap::new(),
            absent: BTreeSet::new(),
            leader: None,
            incarnations: HashMap::new(),
            unannounced: BTreeSet::new(),
            passed: HashMap::new(),
            heard: Arc::default(),
            statistics_of: BTreeMap::new(),
            statistics: Arc::default(),
            heartbeats: BTreeMap::new(),
            reads: 0,
            now_ms: 0,
            effects: Vec::new(),
            options,
        }
    }

    pub(crate) fn view(&self) -> super::View {
        // What somebody said who is suspected is not so for ever.
        let on_ring = || self.config.live_storage().filter_map(|process| self.heard.get(&process));
        let used = on_ring().map(|heard| heard.used).max().unwrap_or(0);
        let limit = on_ring().filter_map(|heard| heard.limit).min();
        super::View {
            catalog: self.catalog.clone(),
            config: self.config.clone(),
            frontier: self.frontier,
            memory: Memory { used, limit },
            statistics: self.statistics.clone(),
            heard: self.heard.clone(),
            heartbeats: self.heartbeats.clone(),
            leader: self.link.leader(),
            has_room: self.no_room_until_ms.is_none(),
            stopped: None,
        }
    }

    /// Whether it asks all storage processes for heartbeats.
    fn watches(&self) -> bool {
        self.options.id.kind == ProcessKind::Super
    }

    /// The config in force.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// The router in use.
    pub(crate) fn router(&self) -> ProcessId {
        self.link.router()
    }

    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Submit { submission, request, isolation } => self.submit(submission, request, isolation),
            Event::Cancel { submission } => self.cancel(submission),
            Event::Took { submission, from, batches } => self.took(submission, from, batches),
            Event::Received { from, wire } => self.received(from, wire),
            Event::Unreachable(process) => self.unreachable(process),
            Event::Routers(routers) => self.link.learn(&routers),
            Event::Tick(now_ms) => self.tick(now_ms),
        }
    }

    /// What is to be done, after some events: their messages travel together.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        if std::mem::replace(&mut self.leader, self.link.leader()) != self.link.leader() {
            self.effects.push(Effect::ViewChanged);
        }
        if self.link.must_subscribe() {
            self.inquiries.forget_sent();
            let after = self.follows.then_some(self.frontier);
            let subscribe = Wire::Subscribe {
                incarnation: self.options.incarnation,
                directory: self.options.directory,
                after,
            };
            self.effects.push(Effect::Send(self.link.router(), subscribe));
        }
        if self.link.is_open(self.link.router()) {
            for inquiry in self.inquiries.due(self.options.incarnation, self.now_ms) {
                self.effects.push(Effect::Send(self.link.router(), inquiry));
            }
            // The sequence numbers in the window have no gap.
            let first = self.window.front().map_or(0, |message| message.id.sequence);
            let mut next = (self.sent + 1).saturating_sub(first) as usize;
            while next < self.window.len() {
                let end = next + together(self.window.range(next..));
                let messages: Vec<Arc<Message>> = self.window.range(next..end).cloned().collect();
                self.sent = messages.last().map_or(self.sent, |message| message.id.sequence);
                self.effects.push(Effect::Send(self.link.router(), Wire::Route(messages)));
                next = end;
            }
            let mut messages = std::mem::take(&mut self.unsent_reads);
            while !messages.is_empty() {
                let rest = messages.split_off(together(&messages));
                let seen = self.seen.max(self.catalog.version());
                self.effects.push(Effect::Send(self.link.router(), Wire::Read { messages, seen }));
                messages = rest;
            }
        }
        // Whoever does not know the catalog yet that they were planned by waits until it does.
        let (config_version, seen) = (self.config.version(), self.seen.max(self.catalog.version()));
        let basic = if self.is_known { std::mem::take(&mut self.unsent_basic) } else { Default::default() };
        for (process, mut reads) in basic {
            while !reads.is_empty() {
                let rest = reads.split_off(together(reads.iter().map(|(message, _)| message)));
                self.effects.push(Effect::Send(process, Wire::BasicRead { reads, config_version, seen }));
                reads = rest;
            }
        }
        std::mem::take(&mut self.effects)
    }

    /// Asks the lead router; returns the number of the inquiry.
    pub(crate) fn ask_routers(&mut self, inquiry: Inquiry) -> u64 {
        self.inquiries.ask(inquiry)
    }

    /// Nobody waits for the reply to an inquiry any more.
    pub(crate) fn forget_inquiry(&mut self, request: u64) {
        self.inquiries.end(request);
    }

    fn submit(&mut self, submission: u64, request: Request, isolation: ReadIsolation) {
        if matches!(request.body, Body::Data(_)) && request.ranges.is_empty() {
            // It concerns no row.
            self.effects.push(Effect::Part(submission, Ok(Part::Done { ts: self.frontier, rows: 0 })));
            self.effects.push(Effect::Release(submission));
            return;
        }
        if let Some(error) = self.refusal(&request.body, &request.ranges) {
            self.abandon_rows(&request.body);
            self.effects.push(Effect::Part(submission, Err(Failure::Sql(error))));
            self.effects.push(Effect::Release(submission));
            return;
        }
        // What reads under a pin has its Ts already.
        let is_read = matches!(&request.body, Body::Data(data)
            if !data.operation.is_write() && data.read_ts.is_none());
        let isolation = if is_read { isolation } else { ReadIsolation::Sequential };
        self.submit_message(submission, request, isolation, BTreeSet::new());
    }

    /// Why something would have no effect anywhere: it is not even sent.
    fn refusal(&self, body: &Body, ranges: &[KeyRange]) -> Option<SqlError> {
        match body {
            _ if self.is_fenced() => Some(suspected()),
            _ if self.no_room_until_ms.is_some() && changes(body) => Some(no_room()),
            Body::Data(_) => {
                self.config.without_holder(ranges).map(no_replica).or_else(|| self.too_old(body, ranges))
            }
            Body::Pin { .. } | Body::Checkpoint => self.is_alone().then(nobody),
            Body::Ddl(_) | Body::Configuration(_) => None,
        }
    }

    /// The rows that were staged for what is not submitted will not be ordered.
    fn abandon_rows(&mut self, body: &Body) {
        let Body::Data(Data { staged: Some(staged), .. }) = body else { return };
        let abandons =
            staged.holders().into_iter().map(|holder| Effect::Send(holder, Wire::Abandon(staged.id)));
        self.effects.extend(abandons);
    }

    /// Submits something under an identity of its own, and not to processes that lack what it reads if there are others.
    fn submit_message(
        &mut self,
        submission: u64,
        request: Request,
        isolation: ReadIsolation,
        lacking: BTreeSet<ProcessId>,
    ) {
        let (submitter, incarnation) = (self.options.id, self.options.incarnation);
        let id = if isolation == ReadIsolation::Sequential {
            self.sequence += 1;
            MessageId { submitter, incarnation, sequence: self.sequence }
        } else {
            self.unordered += 1;
            MessageId::unordered(submitter, incarnation, self.unordered)
        };
        let Request { tables, ranges, body } = request;
        let mut message = Message { id, tables, ranges, body };
        self.choose_replicas(&mut message, &lacking);
        let message = Arc::new(message);
        match isolation {
            ReadIsolation::Sequential => self.window.push_back(message.clone()),
            ReadIsolation::Snapshot => self.unsent_reads.push(message.clone()),
            ReadIsolation::Basic => self.send_basic(&message),
        }
        self.by_submission.insert(submission, id.sequence);
        let open = Open::new(submission, message, isolation, self.now_ms, self.config.clone());
        self.open.insert(id.sequence, Open { lacking, ..open });
    }

    /// Puts a basic read among those that travel together to the processes that answer it.
    fn send_basic(&mut self, message: &Arc<Message>) {
        for (process, ranges) in self.config.destset(message) {
            self.unsent_basic.entry(process).or_default().push((message.clone(), ranges));
        }
    }

    /// Spreads reads over the replicas, and away from processes that are known to be absent, or to lack what is read, or, if that
    /// is possible, to lag.
    fn choose_replicas(&mut self, message: &mut Message, lacking: &BTreeSet<ProcessId>) {
        match &mut message.body {
            Body::Data(data) if !data.operation.is_write() => {
                data.avoided = self.absent.union(lacking).copied().collect();
            }
            _ => return,
        }
        self.reads = self.reads.wrapping_add(1);
        let first = self.reads;
        let lags = |process: &ProcessId| {
            !self.absent.contains(process) && self.heard.get(process).is_some_and(|heard| heard.lags)
        };
        let some_lag = self.heard.keys().any(lags);
        let attempts = if some_lag { 4 * self.config.replication().max(1) } else { 1 };
        for attempt in 0..attempts {
            if let Body::Data(data) = &mut message.body {
                data.replica_offset = first.wrapping_add(attempt);
            }
            if attempts == 1 || !self.config.destset(message).iter().any(|(process, _)| lags(process)) {
                return;
            }
        }
    }

    /// Whether a storage process tells of a life of which this client has not heard.
    pub(crate) fn is_new_life(&self, process: ProcessId, wire: &Wire) -> bool {
        match wire {
            Wire::Memory { incarnation, .. } | Wire::Restarted { incarnation, .. } => {
                self.incarnations.get(&process).is_none_or(|known| known < incarnation)
            }
            _ => false,
        }
    }

    fn received(&mut self, from: ProcessId, wire: Wire) {
        let own = self.options.incarnation;
        // Who loads is not there for anything else.
        if !matches!(wire, Wire::Loading(_)) && self.absent.remove(&from) {
            // Who is known to begin another life is asked again for that.
            let knows = self.incarnations.contains_key(&from) || matches!(wire, Wire::Restarted { .. });
            let begins_anew = knows && self.is_new_life(from, &wire);
            // So is who says what it is asked again for.
            let asks_again = begins_anew || matches!(wire, Wire::Lost | Wire::ReadsMissed);
            self.ask_absent_again((!asks_again).then_some(from));
        }
        match wire {
            Wire::Ordered { .. }
            | Wire::Resend { .. }
            | Wire::Answers(_)
            | Wire::NoAnswers(_)
            | Wire::ReadsLost(_)
                if !self.is_known => {}
            Wire::State { incarnation, ts, config, catalog, leadership, .. } if incarnation == own => {
                // Without a catalog it answers a subscription that has been refused since. With one it answers one of before
                // this client followed anything: whoever went on from there would miss what has come of changes.
                let is_old = match &catalog {
                    None => !self.follows,
                    Some(_) => self.follows && !self.open_changes().is_empty(),
                };
                if is_old || !self.link.accepted(from) {
                    return;
                }
                (self.is_known, self.follows) = (true, true);
                if leadership != self.leadership {
                    self.leadership = leadership;
                    // What another one was sent may be lost. One and the same has all of it, however long it takes: else it says so.
                    self.sent = 0;
                    // The next leader has to find out.
                    self.no_room_until_ms = None;
                    self.lose_sent_reads();
                }
                self.reads_at = Some(from);
                // An answer to an earlier subscription must not take back what has been delivered since.
                if ts >= self.frontier {
                    // Nobody said when, only after what.
                    self.replace_config(config, Ts(self.frontier.0 + 1), ts);
                    self.end_if_fenced();
                }
                if let Some(catalog) = catalog
                    && ts >= self.frontier
                {
                    self.catalog = catalog;
                    self.frontier = ts;
                }
                self.effects.push(Effect::ViewChanged);
            }
            // It answers a subscription that has been overtaken by what another router delivered.
            Wire::SubscribeRefused { incarnation, purged, .. }
                if incarnation == own && self.follows && purged <= self.frontier =>
            {
                self.link.ask_again(from);
            }
            Wire::SubscribeRefused { incarnation, .. } if incarnation == own => {
                // The log has been cut past what this client has seen; begin again with the routers' catalog. Whether
                // changes of the catalog that are under way succeeded can no longer be known.
                (self.follows, self.sent) = (false, 0);
                self.link.ask_again(from);
                self.fail_ddl();
            }
            Wire::LogLost { incarnation, last } if incarnation == own => {
                let error =
                    SqlError::new(SqlState::DATA_CORRUPTED, "the cluster has lost acknowledged messages");
                let error = error.with_detail(log_lost(last, self.frontier));
                self.effects.push(Effect::Stop(error));
            }
            Wire::Outlived { incarnation, newest, .. } if incarnation == own => {
                let process = self.options.id;
                let reason = format!(
                    "the directory of {process} is not the one that it had; started again, it counts its starts on"
                );
                let error = SqlError::new(SqlState::UNAVAILABLE, reason)
                    .with_detail(format!("This is life {own}, and life {newest} has been heard of."));
                self.effects.extend([Effect::CountOn(newest), Effect::Stop(error)]);
            }
            Wire::Deliver { incarnation, after, deliveries, frontier }
                if incarnation == own && self.link.is_open(from) && after <= self.frontier =>
            {
                self.link.heard(from);
                self.delivered(deliveries, frontier);
            }
            Wire::Ordered { incarnation, sequence, ts } if incarnation == own => self.ordered(sequence, ts),
            Wire::Resend { incarnation, expected } if incarnation == own && self.reads_at == Some(from) => {
                if expected <= self.sequence && self.is_ordered(expected) {
                    // It does not know what has been ordered: it leads no longer.
                    self.lose_sent(from);
                    self.link.not_leader(from, None);
                } else {
                    self.sent = self.sent.min(expected.saturating_sub(1));
                }
            }
            Wire::NotLeader { leader } => {
                self.lose_sent(from);
                self.link.not_leader(from, leader);
            }
            Wire::Room { has_room } if from == self.link.router() => {
                self.no_room_until_ms = (!has_room).then_some(self.now_ms + NO_ROOM_MS);
                self.effects.push(Effect::ViewChanged);
            }
            Wire::Routers(routers) => self.link.learn(&routers),
            Wire::RoutersChanged { incarnation, request, outcome } if incarnation == own => {
                self.inquiries.end(request);
                self.effects.push(Effect::RoutersAnswered(request, outcome.map(Reply::Changed)));
            }
            Wire::Looked { incarnation, request, reaches } if incarnation == own => {
                self.inquiries.end(request);
                self.effects.push(Effect::RoutersAnswered(request, Ok(Reply::Reaches(reaches))));
            }
            Wire::ReadsLost(reads) => {
                let own_reads = reads.into_iter().filter(|id| id.incarnation == own && !id.is_ordered());
                for id in own_reads.collect::<Vec<_>>() {
                    self.lose_read(id.sequence);
                }
            }
            Wire::Answers(answers) => {
                for answer in answers {
                    self.answered(from, answer);
                }
            }
            Wire::Restarted { incarnation, passed } => {
                self.restarted(from, incarnation);
                if let Some(passed) = passed.filter(|passed| passed.incarnation == own) {
                    self.passed.insert(from, passed.sequence);
                    let _ = self.end_passed(0);
                }
            }
            Wire::NoAnswers(messages) => self.not_answered(from, &messages),
            Wire::ReadsMissed => self.ask_again(from),
            Wire::Lost if from.kind == ProcessKind::Router => {
                self.link.ask_again(from);
                self.lose_sent(from);
                // Also when this client has turned to another router meanwhile, and will come back.
                if self.reads_at == Some(from) {
                    self.lose_sent_reads();
                }
            }
            // What is no read need not have been answered in vain, nor only by this one: who may have executed it will be asked.
            Wire::Lost => {
                self.lose_kept(from);
                self.ask_again(from);
                // It tells of its life, and what it has said of it before may be what is lost.
                self.effects.push(Effect::Send(from, Wire::Hello));
            }
            Wire::Gone { id, ranges } if id.incarnation == self.options.incarnation => {
                self.lose_kept_of(id.sequence, from, &ranges.into_iter().collect());
            }
            Wire::Memory {
                incarnation,
                used,
                limit,
                reached,
                durable,
                logged,
                staged,
                checkpointing,
                receiving,
                lags,
                disk,
                unreached,
            } => {
                if self.watches() {
                    let heard = self.heartbeats.entry(from).or_default();
                    let (beats, loading, loadings) = (heard.beats + 1, None, heard.loadings);
                    *heard = Heartbeat {
                        incarnation,
                        beats,
                        loading,
                        loadings,
                        durable,
                        logged,
                        staged,
                        used,
                        checkpointing,
                        disk,
                    };
                }
                match self.incarnations.get(&from) {
                    Some(known) if *known < incarnation => self.restarted(from, incarnation),
                    Some(_) => {}
                    None => {
                        self.incarnations.insert(from, incarnation);
                        self.unannounced.insert(from);
                    }
                }
                let heard = Heard { incarnation, used, limit, reached, durable, receiving, lags, unreached };
                Arc::make_mut(&mut self.heard).insert(from, heard);
                self.effects.push(Effect::ViewChanged);
            }
            Wire::Loading(loading) => {
                let heard = self.heartbeats.entry(from).or_default();
                let (incarnation, beats, loadings) = (loading.incarnation, heard.beats, heard.loadings + 1);
                let loading = heard.loading.max(Some(loading.progress));
                *heard = Heartbeat { incarnation, beats, loading, loadings, ..Heartbeat::default() };
                self.effects.push(Effect::ViewChanged);
            }
            Wire::Statistics(tables) => {
                self.statistics_of.insert(from, tables);
                self.sum_statistics();
                self.effects.push(Effect::ViewChanged);
            }
            // Everything else is for another kind of process or for an earlier life of this one.
            _ => {}
        }
    }

    /// Of each table, takes what the process with the most of its rows has told.
    fn sum_statistics(&mut self) {
        let mut most: BTreeMap<TableId, &TableStatistics> = BTreeMap::new();
        for table in self.statistics_of.values().flatten() {
            let known = most.entry(table.table).or_insert(table);
            if known.rows < table.rows {
                *known = table;
            }
        }
        self.statistics = Arc::new(most.into_iter().map(|(id, table)| (id, table.clone())).collect());
    }

    /// The newest `Ts` whose state an answer has shown.
    pub(crate) fn seen(&self) -> Ts {
        self.seen
    }

    fn delivered(&mut self, deliveries: Vec<Delivery>, frontier: Ts) {
        let mut last = Ts::ZERO;
        for delivery in deliveries {
            assert!(last < delivery.ts && delivery.ts <= frontier, "delivery {} after {last}", delivery.ts);
            last = delivery.ts;
            if delivery.ts <= self.frontier {
                continue;
            }
            let id = delivery.message.id;
            let part = match &delivery.message.body {
                Body::Ddl(ddl) => {
                    let outcome = Arc::make_mut(&mut self.catalog).apply(delivery.ts, ddl);
                    outcome.map(|effect| Part::Ddl { ts: delivery.ts, effect }).map_err(Failure::Sql)
                }
                Body::Configuration(_) => {
                    let outcome = self.reconfigure(&delivery.message, delivery.ts);
                    outcome.map(|()| Part::Done { ts: delivery.ts, rows: 0 }).map_err(Failure::Sql)
                }
                Body::Data(_) | Body::Pin { .. } | Body::Checkpoint => continue,
            };
            if id.submitter == self.options.id && id.incarnation == self.options.incarnation {
                self.ordered(id.sequence, delivery.ts);
                // The view must show the change before the submitter hears of it, and no later read the state before it.
                self.frontier = delivery.ts;
                self.seen = self.seen.max(delivery.ts);
                self.effects.push(Effect::ViewChanged);
                self.end(id.sequence, part);
            }
            if matches!(delivery.message.body, Body::Configuration(_)) {
                self.end_if_fenced();
            }
        }
        if frontier > self.frontier {
            self.frontier = frontier;
            self.effects.push(Effect::ViewChanged);
        }
    }

    /// Ends everything once this client is suspected: none of it will have an effect, or be answered.
    fn end_if_fenced(&mut self) {
        if !self.is_fenced() {
            return;
        }
        for sequence in self.sequences(|_| true) {
            self.end(sequence, Err(Failure::Sql(outcome_unknown(suspected()))));
        }
        self.send_lost_reads();
    }

    /// Follows a configuration message.
    fn reconfigure(&mut self, message: &Message, ts: Ts) -> Result<(), SqlError> {
        let Some(config) = self.config.apply(message, ts)? else { return Ok(()) };
        self.replace_config(Arc::new(config), ts, ts);
        Ok(())
    }

    /// There is another config since some `Ts`, and `by` another one at the latest.
    fn replace_config(&mut self, config: Arc<Config>, since: Ts, by: Ts) {
        let before = std::mem::replace(&mut self.config, config.clone());
        if before == config {
            return;
        }
        // Who has come back to stand by begins without data.
        let anew = |process: &ProcessId| before.incarnation(*process) < config.incarnation(*process);
        let suspected = config.storage_processes().filter(|process| config.is_suspected(*process));
        let fenced: Vec<ProcessId> = suspected.chain(config.standbys().filter(anew)).collect();
        for open in self.open.values_mut() {
            if open.ordered_by.is_none_or(|ordered| since <= ordered) {
                open.later.push(Later { config: config.clone(), since, by });
            }
            open.fenced.extend(fenced.iter().map(|process| (*process, since)));
        }
        let keepers: BTreeSet<ProcessId> =
            self.open.values().flat_map(|open| open.kept.keys()).copied().collect();
        for process in
            keepers.into_iter().filter(|keeper| fenced.contains(keeper) || !config.contains(*keeper))
        {
            self.lose_kept(process);
        }
        if before.version() != config.version() {
            let lives = |process: ProcessId| config.contains(process) && !config.is_suspected(process);
            self.statistics_of.retain(|process, _| lives(*process));
            self.sum_statistics();
            self.rerouted();
        }
    }

    /// Why a read under a pin cannot be answered: who holds its rows now has received them later.
    fn too_old(&self, body: &Body, ranges: &[KeyRange]) -> Option<SqlError> {
        let Body::Data(data) = body else { return None };
        let read_ts = data.read_ts.filter(|read_ts| !self.config.reaches_back(ranges, *read_ts))?;
        let detail = format!("The rows as of {read_ts} have moved to other storage processes since.");
        Some(snapshot_too_old(detail))
    }

    /// Whether nothing that this client submits has an effect any more.
    fn is_fenced(&self) -> bool {
        let (submitter, incarnation) = (self.options.id, self.options.incarnation);
        self.config.is_fenced(MessageId { submitter, incarnation, sequence: 0 })
    }

    /// The placement or the suspected processes have changed. Which processes owe answers to a read depends on where it
    /// stands in the m-seq; as that is not known, all are asked again.
    fn rerouted(&mut self) {
        for sequence in self.sequences(|open| matches!(open.message.body, Body::Data(_))) {
            let Some(open) = self.open.get(&sequence) else { continue };
            let is_write = matches!(&open.message.body, Body::Data(data) if data.operation.is_write());
            if let Some(range) = self.config.without_holder(&open.message.ranges) {
                let error = if is_write { outcome_unknown(no_replica(range)) } else { no_replica(range) };
                self.end(sequence, Err(Failure::Sql(error)));
            } else if let Some(error) = self.too_old(&open.message.body, &open.message.ranges)
                && !open.handed_out
            {
                self.end(sequence, Err(Failure::Sql(error)));
            } else if !is_write && !open.handed_out {
                self.submit_again(sequence);
            } else if !is_write {
                let owing =
                    open.unanswered_by().into_iter().find(|process| self.config.is_suspected(*process));
                if let Some(process) = owing {
                    self.end_lost(sequence, &format!("storage process {process}"));
                }
            }
        }
        if self.is_alone() {
            for sequence in self.sequences(|open| is_for_storage(&open.message.body)) {
                self.end(sequence, Err(Failure::Sql(nobody())));
            }
        }
        let _ = self.end_passed(0);
    }

    /// Whether no storage process lives.
    fn is_alone(&self) -> bool {
        self.config.live_storage().next().is_none()
    }

    /// The message `sequence` stands in the m-seq at a `Ts`, those before it before that.
    fn ordered(&mut self, sequence: u64, ts: Ts) {
        let (_, after) = self.ordered_to;
        self.ordered_to = self.ordered_to.max((sequence, ts));
        while let Some(message) = self.window.front()
            && message.id.sequence <= sequence
        {
            if let Some((submission, _)) = self.ended.remove(&message.id.sequence) {
                self.effects.push(Effect::Release(submission));
            }
            if let Some(open) = self.open.get_mut(&message.id.sequence) {
                (open.ordered_by, open.ordered_after) = (Some(ts), after);
            }
            self.window.pop_front();
        }
    }

    fn is_ordered(&self, sequence: u64) -> bool {
        // What has no place in the m-seq waits for none.
        sequence > self.sequence || self.window.front().is_none_or(|first| first.id.sequence > sequence)
    }

    fn answered(&mut self, from: ProcessId, answer: Answer) {
        let Answer { id, ts, part } = answer;
        if id.submitter != self.options.id || id.incarnation != self.options.incarnation {
            return self.refuse_rows(from, id, &part);
        }
        // What is answered has been ordered, even if the router's word is still on its way.
        if id.is_ordered() {
            self.ordered(id.sequence, ts);
        }
        // Rows may be handed out before the last part comes, or without it.
        let shows =
            matches!(part, AnswerPart::Done { .. } | AnswerPart::Rows { .. } | AnswerPart::Fetched { .. });
        if shows && self.open.contains_key(&id.sequence) {
            self.seen = self.seen.max(ts);
        }
        let Some(open) = self.open.get_mut(&id.sequence) else {
            return self.refuse_rows(from, id, &part);
        };
        if id.is_ordered() {
            // Routers say that only of the last of several messages.
            (open.ordered_by, open.ordered_after) = (Some(ts), Ts(ts.0 - 1));
        } else if open.isolation == ReadIsolation::Snapshot {
            // It stands behind the message with that `Ts`.
            (open.ordered_by, open.ordered_after) = (Some(ts), ts);
        }
        let is_write = match &open.message.body {
            Body::Data(data) => data.operation.is_write(),
            _ => false,
        };
        match part {
            AnswerPart::Fetched { range, ref batch } => match open.fetching.get_mut(&range) {
                Some(fetching) if fetching.from == from && fetching.asked => {
                    fetching.begun = true;
                    self.effects.push(Effect::Rows(open.submission, Some(from), batch.clone()));
                }
                // It was not told that it was taken for lost.
                _ => self.refuse_rows(from, id, &part),
            },
            AnswerPart::Rows { range, batch } if is_write => {
                open.returned.entry(from).or_default().push((range, batch));
            }
            // A process that has answered, restarted and executed the message again answers again.
            AnswerPart::Rows { range, .. } if open.answered.contains(&range) => {
                self.refuse_rows(from, id, &part);
            }
            AnswerPart::Rows { batch, .. } => self.take_rows(id.sequence, from, batch),
            AnswerPart::Kept(ranges) => open.kept.entry(from).or_default().extend(&ranges[..]),
            AnswerPart::Returned(range) => self.returned(id.sequence, from, ts, range),
            AnswerPart::Groups(groups) => {
                let bytes = groups.iter().map(Group::heap_size).sum::<usize>();
                if self.group_bytes + bytes > GROUPS_BUFFER {
                    return self.end(id.sequence, Err(Failure::Sql(too_many_groups())));
                }
                self.group_bytes += bytes;
                open.group_bytes += bytes;
                open.has_groups = true;
                open.grouped.entry(from).or_default().extend(groups);
            }
            AnswerPart::Stale => {
                // It names holders that need not have been asked: the ring was another one.
                let message = open.message.clone();
                self.abandon_rows(&message.body);
                self.end(id.sequence, Err(Failure::Stale { ts }));
            }
            // It had answered before it was restarted; unless it was asked under a config of which this client has not heard.
            AnswerPart::TooOld if ts <= self.frontier && !open.unanswered_by().contains(&from) => {}
            // It has been restarted behind a checkpoint, or has not heard of this client for a whole lease.
            AnswerPart::TooOld if open.lacking.insert(from) && !open.handed_out => {
                self.submit_again(id.sequence);
            }
            AnswerPart::TooOld => {
                let detail = "The rows that the statement began to read are not kept any more.";
                self.end(id.sequence, Err(Failure::Sql(snapshot_too_old(detail))));
            }
            AnswerPart::Done { outcomes, more } => {
                let returned = open.returned.remove(&from).unwrap_or_default();
                let grouped = open.grouped.remove(&from).unwrap_or_default();
                let mut counted: SmallVec<[KeyRange; 1]> = SmallVec::new();
                let mut failure = None;
                for (range, outcome) in outcomes {
                    match outcome {
                        Ok(rows) => {
                            let keeps = open.kept.get(&from).is_some_and(|kept| kept.contains(&range));
                            let is_asked = open.fetching.get(&range).map(|fetching| fetching.asked);
                            match (open.answered.insert(range, rows), keeps) {
                                (true, true) => {
                                    open.fetching
                                        .insert(range, Fetching { from, asked: false, begun: false });
                                    counted.push(range);
                                }
                                (true, false) => counted.push(range),
                                // Who has answered before has kept the rows, and might be lost with them: these are here.
                                (false, false) if is_asked == Some(false) => {
                                    open.fetching.remove(&range);
                                    counted.push(range);
                                }
                                (false, _) => {}
                            }
                        }
                        // The first word counts.
                        Err(_) if open.answered.contains(&range) => {}
                        Err(error) => {
                            let earlier: Option<&SqlError> = failure.as_ref();
                            // PostgreSQL tells of the first bad row.
                            if earlier.is_none_or(|earlier| error.ordinal < earlier.ordinal) {
                                failure = Some(error);
                            }
                        }
                    }
                }
                if let Some(error) = failure {
                    return self.end(id.sequence, Err(Failure::Sql(error)));
                }
                if !counted.is_empty() {
                    open.groups.extend(grouped);
                }
                for (range, batch) in returned {
                    if counted.contains(&range) {
                        self.effects.push(Effect::Part(open.submission, Ok(Part::Rows(batch))));
                    }
                }
                let complete = match &open.message.body {
                    Body::Data(_) => open.answered.covers(&open.message.ranges),
                    Body::Pin { .. } | Body::Checkpoint => true,
                    // This client's own catalog or config tells.
                    Body::Ddl(_) | Body::Configuration(_) => false,
                };
                if complete && !open.fetching.is_empty() {
                    self.fetch(id.sequence);
                } else if complete {
                    let rows = open.answered.rows();
                    for (from, batch) in self.holding.release(&mut open.held) {
                        self.effects.push(Effect::Rows(open.submission, from, batch));
                    }
                    if open.has_groups {
                        let groups = std::mem::take(&mut open.groups);
                        self.effects.push(Effect::Part(open.submission, Ok(Part::Groups(groups))));
                    }
                    self.end(id.sequence, Ok(Part::Done { ts, rows }));
                } else if !more {
                    open.done.insert(from);
                }
            }
        }
    }

    /// Rows of a read have come: they are held back as long as there is room.
    fn take_rows(&mut self, sequence: u64, from: ProcessId, batch: RecordBatch) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        if open.handed_out {
            return self.effects.push(Effect::Rows(open.submission, Some(from), batch));
        }
        let (taken, has_room) = self.holding.hold(&mut open.held, from, batch);
        if let Some(batches) = taken {
            self.effects.push(Effect::Send(from, Wire::Took { id: open.message.id, batches }));
        }
        if !has_room {
            open.handed_out = true;
            for (from, batch) in self.holding.release(&mut open.held) {
                self.effects.push(Effect::Rows(open.submission, from, batch));
            }
        }
    }

    /// Removes an open message; rows of it that are held are forgotten.
    fn take_open(&mut self, sequence: u64) -> Option<Open> {
        let mut open = self.open.remove(&sequence)?;
        drop(self.holding.release(&mut open.held));
        self.group_bytes -= open.group_bytes;
        let kept = std::mem::take(&mut open.kept).into_keys();
        self.effects.extend(kept.map(|process| Effect::Send(process, Wire::Cancel(open.message.id))));
        Some(open)
    }

    /// Removes an open message to whose answer nobody listens any more.
    fn take_back(&mut self, sequence: u64) -> Option<Open> {
        let open = self.take_open(sequence)?;
        self.call_off(&open);
        Some(open)
    }

    /// Nobody waits for an answer any more. Whoever has sent as much as it may before some is taken would wait for ever, and keep
    /// the versions that the read sees.
    fn call_off(&mut self, open: &Open) {
        let storage = open.unanswered_by().into_iter().filter(|process| process.kind == ProcessKind::Storage);
        self.effects.extend(storage.map(|process| Effect::Send(process, Wire::Cancel(open.message.id))));
    }

    /// The last part of a submission.
    fn end(&mut self, sequence: u64, part: Result<Part, Failure>) {
        if let Some(open) = self.take_open(sequence) {
            if part.is_err() && open.is_read() {
                self.call_off(&open);
            }
            self.effects.push(Effect::Part(open.submission, part));
            self.close(&open);
        }
    }

    fn close(&mut self, open: &Open) {
        let (sequence, submission) = (open.message.id.sequence, open.submission);
        self.by_submission.remove(&submission);
        if self.is_ordered(sequence) {
            self.effects.push(Effect::Release(submission));
        } else {
            self.ended.insert(sequence, (submission, open.submitted_ms));
        }
    }

    fn took(&mut self, submission: u64, from: ProcessId, batches: u32) {
        let sequence = self.by_submission.get(&submission);
        if let Some(open) = sequence.and_then(|sequence| self.open.get(sequence)) {
            self.effects.push(Effect::Send(from, Wire::Took { id: open.message.id, batches }));
        }
    }

    /// Rows that nobody waits for: more of them would never be asked for.
    fn refuse_rows(&mut self, from: ProcessId, id: MessageId, part: &AnswerPart) {
        if matches!(part, AnswerPart::Rows { .. } | AnswerPart::Kept(_) | AnswerPart::Fetched { .. }) {
            self.effects.push(Effect::Send(from, Wire::Cancel(id)));
        }
    }

    fn cancel(&mut self, submission: u64) {
        let Some(sequence) = self.by_submission.get(&submission).copied() else { return };
        self.unsend(sequence);
        if let Some(lost) = self.lost_reads.iter().position(|open| open.submission == submission) {
            let lost = self.lost_reads.swap_remove(lost);
            return self.close(&lost);
        }
        if let Some(open) = self.take_back(sequence) {
            self.close(&open);
        }
    }

    /// What a router has been sent of the window may be lost.
    fn lose_sent(&mut self, router: ProcessId) {
        if self.reads_at == Some(router) {
            self.sent = 0;
        }
    }

    fn unreachable(&mut self, process: ProcessId) {
        match process.kind {
            ProcessKind::Router => {
                self.lose_sent(process);
                self.link.unreachable(process);
            }
            _ => {
                self.lose_kept(process);
                if self.absent.insert(process) {
                    // When it is back it will be behind, until it says otherwise.
                    if self.heard.contains_key(&process)
                        && let Some(heard) = Arc::make_mut(&mut self.heard).get_mut(&process)
                    {
                        heard.lags = true;
                    }
                    // What it has answered in vain meanwhile will be known when it is met again.
                    self.ask_owed_again(|owes| owes == process);
                }
            }
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.link.tick(now_ms, true);
        if self.no_room_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.no_room_until_ms = None;
            self.effects.push(Effect::ViewChanged);
        }
        let oldest = self.window.front().map(|message| message.id.sequence);
        if oldest != self.oldest.0 {
            self.oldest = (oldest, now_ms + RESEND_AFTER_MS, RESEND_AFTER_MS);
        } else if oldest.is_some() && now_ms >= self.oldest.1 {
            // A message, or the word that it was ordered, has been lost; or ordering takes long, then it does no harm.
            let after_ms = (2 * self.oldest.2).min(RESEND_AFTER_MS_AT_MOST);
            self.oldest = (oldest, now_ms + after_ms, after_ms);
            self.sent = 0;
        }
        self.send_lost_reads();
        let mut probed = self.ask_overdue();
        if self.watches() {
            probed.extend(self.config.storage_processes().chain(self.config.standbys()));
        }
        // Who is absent may be back, or be gone for good.
        let config = self.config.clone();
        self.absent.retain(|process| config.contains(*process));
        probed.extend(&self.absent);
        // Users look at standbys, too, to which nothing else is sent.
        let known = self.config.storage_processes().chain(self.config.standbys());
        probed.extend(known.filter(|process| !self.heard.contains_key(process)));
        self.effects.extend(probed.into_iter().map(|process| Effect::Send(process, Wire::Hello)));
    }

    /// What is open whose outcome only the deliveries tell.
    fn open_changes(&self) -> Vec<u64> {
        self.sequences(|open| matches!(open.message.body, Body::Ddl(_) | Body::Configuration(_)))
    }

    /// The sequence numbers of what is open and of that kind, ascending.
    fn sequences(&self, is_it: impl Fn(&Open) -> bool) -> Vec<u64> {
        let open = self.open.iter().filter(|(_, open)| is_it(open));
        let mut sequences: Vec<u64> = open.map(|(sequence, _)| *sequence).collect();
        sequences.sort_unstable();
        sequences
    }

    fn fail_ddl(&mut self) {
        for sequence in self.open_changes() {
            let error =
                SqlError::new(SqlState::OUTCOME_UNKNOWN, "it is not known whether the change took effect");
            self.end(sequence, Err(Failure::Sql(error)));
        }
    }
}

/// How many of these messages, which are some, travel together.
fn together<'a>(messages: impl IntoIterator<Item = &'a Arc<Message>>) -> usize {
    let mut bytes = 0;
    let has_room = |message: &&Arc<Message>| {
        let has_room = bytes < BYTES_TOGETHER;
        bytes += message.weight();
        has_room
    };
    messages.into_iter().take(MESSAGES_TOGETHER).take_while(has_room).count()
}

fn no_replica(range: KeyRange) -> SqlError {
    SqlError::new(SqlState::UNAVAILABLE, format!("no live storage process holds key range {range}"))
}

/// What changes data or the catalog, and needs room in the routers' logs for as long as it is not in a checkpoint.
fn changes(body: &Body) -> bool {
    match body {
        Body::Data(data) => data.operation.is_write(),
        Body::Ddl(_) => true,
        Body::Configuration(_) | Body::Pin { .. } | Body::Checkpoint => false,
    }
}

/// Why a write is not even sent, or its rows.
pub(super) fn no_room() -> SqlError {
    SqlError::new(SqlState::DISK_FULL, "the disks of the routers' logs are nearly full")
        .with_hint("Make room there, or add routers with more and remove these. Reads go on.")
}

fn snapshot_too_old(detail: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::SERIALIZATION_FAILURE, "snapshot too old")
        .with_detail(detail)
        .with_hint("Run the statement again, or the transaction that it is part of.")
}

fn too_many_groups() -> SqlError {
    SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory")
        .with_detail(format!("The groups on their way to this process take more than {GROUPS_BUFFER} bytes."))
        .with_hint("Group by less, restrict the rows, or ask one after the other.")
}

fn nobody() -> SqlError {
    SqlError::new(SqlState::UNAVAILABLE, "no storage process lives")
}

/// Whether any live storage process answers for all of them.
fn is_for_storage(body: &Body) -> bool {
    matches!(body, Body::Pin { .. } | Body::Checkpoint)
}

fn suspected() -> SqlError {
    SqlError::new(SqlState::UNAVAILABLE, "this client process is suspected of having failed")
        .with_hint("Restart the front end.")
}

/// A statement was under way when it became known why it will not be answered.
fn outcome_unknown(reason: SqlError) -> SqlError {
    let message = format!("it is not known whether the statement took effect: {}", reason.message);
    SqlError::new(SqlState::OUTCOME_UNKNOWN, message)
}
