//! The client process: submits reads and writes, follows the catalog, gathers answers (Crescando/RB paper, section
//! 5.4, algorithm 1; a front end has one).
//!
//! [`Client`] is a cheap handle. The protocol is a pure state machine in its own task; what a statement sees of it is a
//! [`Submission`], a stream of [`Part`]s.

mod admission;
pub(crate) mod core;
mod held;
mod parts;
mod pin;
mod precuts;
mod process;
mod readback;
mod reshape;
pub mod room;
mod routers;
mod stage;
mod staging;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    Few, SqlError, SqlState, TableId, Ts,
    aggregate::Group,
    operation::PayloadId,
    position::{KeyRange, Position},
    statistics::TableStatistics,
};
use postcard::experimental::serialized_size;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use self::{
    admission::{Admission, Admitted, Tightest},
    parts::Waiting,
};
pub use self::{
    core::{OpenOperation, OperationState},
    pin::Pin,
    process::{ClientOptions, Lives},
    stage::{Stager, staged_ranges},
};
pub(crate) use self::{
    routers::Inquiry,
    stage::{chunk_of, rows_within},
    staging::Staging,
};
use crate::{
    catalog::{Catalog, DdlEffect},
    config::Config,
    message::{Body, Incarnation, MOST_RANGES, ProcessId, ReadIsolation},
    network::Network,
    parcel::check_length,
    storage::migration::{Arrived, PartId},
    super_process::Heartbeat,
};

/// What a client asks: a message before it has an identity.
#[derive(Clone, Debug)]
pub struct Request {
    /// The tables it names with the versions it was planned against.
    pub tables: Few<(TableId, Ts)>,
    /// The keys it reads or writes: sorted, disjoint. Empty for a change of the catalog.
    pub ranges: Few<KeyRange>,
    /// What it asks. The client chooses the replica offset of a read.
    pub body: Body,
}

/// A part of what a submission answers. Rows and groups come first, `Done` or `Ddl` is the last.
#[derive(Clone, Debug)]
pub enum Part {
    /// Rows of a read, or RETURNING rows of a write; those of an INSERT have the ordinal column in front. In any
    /// order.
    Rows(RecordBatch),
    /// Groups with partial states, to be merged with those of the other parts.
    Groups(Vec<Group>),
    /// The message has been executed.
    Done {
        /// Its position in the m-seq.
        ts: Ts,
        /// How many rows were read, inserted, updated or deleted.
        rows: u64,
    },
    /// The change of the catalog took effect, and this client's catalog has it.
    Ddl {
        /// Its position in the m-seq.
        ts: Ts,
        /// What it did.
        effect: DdlEffect,
    },
}

/// How a submission failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// With an error for the user; a write had no effect unless the code is 08007.
    Sql(SqlError),
    /// The message was planned against another catalog or config and had no effect: plan again, with the catalog of
    /// [`Client::catalog_at`]`(ts)`.
    Stale {
        /// Where the message was ordered.
        ts: Ts,
    },
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Failure {
        Failure::Sql(error)
    }
}

/// The memory of storage processes as far as this client knows; what is used and the limit need not be those of the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that the rows of the fullest storage process take.
    pub used: u64,
    /// What the one with the lowest limit may take; `None` for no limit.
    pub limit: Option<u64>,
}

/// What a client process has heard of a storage process last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its life.
    pub incarnation: Incarnation,
    /// Bytes that its rows take.
    pub used: u64,
    /// The most that they may take; `None` for no limit.
    pub limit: Option<u64>,
    /// Configuration messages up to here have had their turn there.
    pub reached: Ts,
    /// What it has executed up to here survives its end.
    pub durable: Ts,
    /// Parts that it is receiving because of keyspace messages, with how much has come of each.
    pub receiving: Vec<(PartId, Arrived)>,
    /// It has not executed what was delivered a while ago: reads avoid it.
    pub lags: bool,
    /// Other storage processes that it cannot talk to: writes that need votes of both wait, unless somebody else has them.
    pub unreached: Vec<ProcessId>,
}

/// What the client process tells its handles.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) config: Arc<Config>,
    /// The catalog is that of this `Ts`.
    pub(crate) frontier: Ts,
    pub(crate) memory: Memory,
    /// By table: what the storage process with the most rows of it says.
    pub(crate) statistics: Arc<BTreeMap<TableId, TableStatistics>>,
    pub(crate) heard: Arc<BTreeMap<ProcessId, Heard>>,
    /// What a super process has heard of storage processes; a client process only of those that load what they had.
    pub(crate) heartbeats: BTreeMap<ProcessId, Heartbeat>,
    /// The router that leads, as far as it knows.
    pub(crate) leader: Option<ProcessId>,
    /// Whether enough routers have room for more of their log.
    pub(crate) has_room: bool,
    /// Why the process has stopped itself.
    pub(crate) stopped: Option<SqlError>,
}

/// What handles tell the client process.
#[derive(Debug)]
pub(crate) enum Command {
    Submit {
        request: Request,
        isolation: ReadIsolation,
        answers: Answers,
        place: Place,
    },
    /// The reader of a submission has taken batches that came from a storage process.
    Took {
        submission: u64,
        from: ProcessId,
        batches: u32,
    },
    /// Nobody waits for this submission any more.
    Cancel {
        submission: u64,
    },
    Stage(stage::StageCommand),
    /// The lead router is to be asked.
    AskRouters {
        inquiry: routers::Inquiry,
        done: routers::Inquirer,
    },
    RenewPin(Ts),
    ReleasePin(Ts),
    /// Storage processes are to cut segments at these positions.
    Precut {
        at: Vec<Position>,
        done: oneshot::Sender<()>,
    },
    /// What is open?
    Operations(oneshot::Sender<Vec<OpenOperation>>),
}

/// A place in the window, and the memory that the message may take; held until the message is done.
pub(crate) type Place = (OwnedSemaphorePermit, Admitted);

/// A part, and the storage process that waits for it to be taken.
pub(crate) type HandedOut = (Option<ProcessId>, Result<Part, Failure>);

/// Batches of one storage process that are taken before it hears of them: a part of what it may send.
const TAKEN_TOGETHER: u32 = 4;

/// Where the parts of a submission's answer go.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Handle's number of the submission.
    pub(crate) submission: u64,
    pub(crate) parts: parts::Writer<HandedOut>,
    /// Whether it is of something that may change rows.
    pub(crate) changes: bool,
}

/// Row identifiers below this many bits are one incarnation's.
const ROW_ID_BITS: u32 = 36;

/// A handle on a client process; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: ProcessId,
    incarnation: Incarnation,
    network: Network,
    window: Arc<Semaphore>,
    /// Room for chunks of staged rows on their way, in KiB.
    staging: Arc<Semaphore>,
    /// What has arrived of all answers and waits to be taken.
    waiting: Waiting,
    admission: Arc<Admission>,
    commands: mpsc::UnboundedSender<Command>,
    view: watch::Receiver<View>,
    submissions: AtomicU64,
    payloads: AtomicU64,
    row_ids: AtomicU64,
}

impl Client {
    pub(crate) fn new(
        options: ClientOptions,
        network: Network,
        window: usize,
        admission: Arc<Admission>,
        waiting: Waiting,
        commands: mpsc::UnboundedSender<Command>,
        view: watch::Receiver<View>,
    ) -> Client {
        Client {
            shared: Arc::new(Shared {
                id: options.id,
                incarnation: options.incarnation,
                network,
                window: Arc::new(Semaphore::new(window)),
                staging: Arc::new(Semaphore::new(stage::STAGED_KIB)),
                waiting,
                admission,
                commands,
                view,
                submissions: AtomicU64::new(0),
                payloads: AtomicU64::new(0),
                row_ids: AtomicU64::new(0),
            }),
        }
    }

    /// The client process's identity.
    pub fn id(&self) -> ProcessId {
        self.shared.id
    }

    /// The client process's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation
    }

    /// Submits a message: waits for a place in the bounded window, then returns the stream of its answer's parts.
    /// Messages of one client are ordered as they were submitted. There is no time-out: drop the submission to give up.
    ///
    /// # Errors
    /// 54000 when it is too long to be ordered; 53200 when the request adds rows, or makes long strings of them, and the storage
    /// processes report too little memory for them; 57P01 when the client process has been stopped, XX001 when it has stopped
    /// because the routers have lost their log.
    pub fn submit(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Submission, SqlError>> + Send + use<'_> {
        self.submit_read(request, ReadIsolation::Sequential)
    }

    /// As [`Client::submit`], but a read that has no pin is ordered among the writes as `isolation` says.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn submit_read(
        &self,
        mut request: Request,
        isolation: ReadIsolation,
    ) -> Result<Submission, SqlError> {
        if request.ranges.len() > MOST_RANGES {
            let error = SqlError::new(SqlState::LIMIT_EXCEEDED, "the statement concerns too many key ranges");
            return Err(error
                .with_detail(format!("They are {}, and may be {MOST_RANGES}.", request.ranges.len()))
                .with_hint("Split it into several, or use COPY for many rows."));
        }
        let expected = || self.expected_bytes(&request.body);
        let tightest = || self.tightest(&request.ranges);
        let admitted = self.shared.admission.admit(&request.body, self.memory(), tightest, expected)?;
        match &mut request.body {
            Body::Data(data) if self.shared.network.goes_elsewhere() => data.operation.close()?,
            // Routers will need it for their log. What reads under a pin is ordered whatever the isolation.
            Body::Data(data) if isolation == ReadIsolation::Sequential || data.read_ts.is_some() => {
                data.operation.seal()?;
            }
            Body::Ddl(ddl) => check_length(serialized_size(ddl).map_err(|error| {
                SqlError::internal(format!("a change of the catalog cannot be serialised: {error}"))
            })?)?,
            _ => {}
        }
        let place = self.shared.window.clone().acquire_owned().await.map_err(|_| self.stopped())?;
        let changes = match &request.body {
            Body::Data(data) => data.operation.is_write(),
            Body::Ddl(_) | Body::Configuration(_) => true,
            Body::Pin { .. } | Body::Checkpoint => false,
        };
        // What a write returns was admitted before it is ordered, and makes no room for others.
        let of_all = if changes { Waiting::default() } else { self.shared.waiting.clone() };
        let (sender, parts) = parts::parts(of_all);
        let submission = self.shared.submissions.fetch_add(1, Ordering::Relaxed) + 1;
        let answers = Answers { submission, parts: sender, changes };
        self.command(Command::Submit { request, isolation, answers, place: (place, admitted) })?;
        let taken = BTreeMap::new();
        Ok(Submission { client: self.clone(), submission, parts, taken, changes, ended: false })
    }

    /// The newest catalog this client has followed the m-seq to.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.shared.view.borrow().catalog.clone()
    }

    /// The config in force.
    pub fn config(&self) -> Arc<Config> {
        self.shared.view.borrow().config.clone()
    }

    /// The config as soon as it is as wanted.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub async fn config_when(&self, wanted: impl Fn(&Config) -> bool) -> Result<Arc<Config>, SqlError> {
        let mut view = self.shared.view.clone();
        let view = view.wait_for(|view| wanted(&view.config)).await.map_err(|_| self.stopped())?;
        Ok(view.config.clone())
    }

    /// Everything up to here that concerns this client has been seen.
    pub fn frontier(&self) -> Ts {
        self.shared.view.borrow().frontier
    }

    /// The catalog once this client has followed the m-seq to `ts` or further.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub async fn catalog_at(&self, ts: Ts) -> Result<Arc<Catalog>, SqlError> {
        let mut view = self.shared.view.clone();
        let view = view.wait_for(|view| view.frontier >= ts).await.map_err(|_| self.stopped())?;
        Ok(view.catalog.clone())
    }

    /// Orders a pin: until it is dropped, reads with `read_ts` set to [`Pin::ts`] all see the same rows. It is renewed
    /// in the background; `lease` is how long the storage processes keep it without hearing from this client.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn pin(&self, lease: Duration) -> Result<Pin, Failure> {
        Pin::acquire(self, lease).await
    }

    /// Starts to stage the rows of an INSERT around the m-seq (DESIGN, decision 12).
    pub fn stage(&self) -> Stager {
        let sequence = self.shared.payloads.fetch_add(1, Ordering::Relaxed) + 1;
        let id = PayloadId {
            process: u64::from(self.shared.id.number),
            incarnation: self.shared.incarnation,
            sequence,
        };
        Stager::new(self.clone(), id)
    }

    /// What this client process has asked and is not answered in full, the oldest first.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub async fn operations(&self) -> Result<Vec<OpenOperation>, SqlError> {
        let (answer, operations) = oneshot::channel();
        self.command(Command::Operations(answer))?;
        operations.await.map_err(|_| self.stopped())
    }

    /// What this process sees: for the super process, which has a client process for its mouth and ears.
    pub(crate) fn view(&self) -> watch::Ref<'_, View> {
        self.shared.view.borrow()
    }

    /// What the new versions and the returned rows of a write may take, and long strings on the way, as far as statistics tell.
    fn expected_bytes(&self, body: &Body) -> u64 {
        let Body::Data(data) = body else { return 0 };
        // An operation that cannot be read is refused elsewhere.
        let Ok(operation) = data.operation.open() else { return 0 };
        let view = self.shared.view.borrow();
        let statistics = view.statistics.get(&operation.table);
        statistics.map_or(0, |statistics| statistics.expected_bytes(&operation.kind))
    }

    /// What the storage process with the most rows of a table has told of it last; `None` of a table that is empty or new.
    pub fn statistics(&self, table: TableId) -> Option<TableStatistics> {
        self.shared.view.borrow().statistics.get(&table).cloned()
    }

    /// Waits until this client has heard of all storage processes on the ring that live: what they answer before is lost.
    ///
    /// # Errors
    /// 57P01 when the client process has been stopped.
    pub async fn meets_all(&self) -> Result<(), SqlError> {
        let mut view = self.shared.view.clone();
        let meets_all =
            |view: &View| view.config.live_storage().all(|process| view.heard.contains_key(&process));
        view.wait_for(meets_all).await.map(drop).map_err(|_| self.stopped())
    }

    /// What this client has heard of storage processes.
    pub fn heard(&self) -> Arc<BTreeMap<ProcessId, Heard>> {
        self.shared.view.borrow().heard.clone()
    }

    /// Whether a storage process can be reached, or could be not longer ago than it takes to connect.
    pub fn reaches(&self, process: ProcessId) -> bool {
        self.shared.network.reaches(self.id(), process)
            || self.heard().get(&process).is_some_and(|heard| !heard.lags)
    }

    /// Ranges whose rows somebody waits for, and of those who have them nobody can be reached; with those who have them.
    pub fn out_of_reach(&self) -> Vec<(KeyRange, Vec<ProcessId>)> {
        let config = self.config();
        let awaited = config.out_of_reach(|process| self.reaches(process));
        awaited.map(|(range, senders)| (range, senders.to_vec())).collect()
    }

    /// The router that leads, as far as this client knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.shared.view.borrow().leader
    }

    /// The storage process with the least room for rows of these ranges.
    fn tightest(&self, ranges: &[KeyRange]) -> Option<Tightest> {
        let share = self.memory_share();
        let view = self.shared.view.borrow();
        let holders =
            view.config.overlapping(ranges).into_iter().flat_map(|range| view.config.live_holders(range));
        Tightest::of(holders.filter_map(|process| {
            let heard = view.heard.get(&process)?;
            Some(Tightest { process, used: heard.used, limit: share.or(heard.limit)? })
        }))
    }

    /// What the fullest storage process uses, and the lowest limit, which is the share of each of what all may take together, if
    /// that is said.
    pub fn memory(&self) -> Memory {
        let memory = self.shared.view.borrow().memory;
        Memory { limit: self.memory_share().or(memory.limit), ..memory }
    }

    /// The most that each storage process on the ring may take, in bytes, where all are in this process and together have a
    /// limit.
    pub fn memory_share(&self) -> Option<u64> {
        let on_ring = self.shared.view.borrow().config.storage_processes().len().max(1) as u64;
        self.shared.network.memory_limit().map(|limit| limit / on_ring)
    }

    /// Whether enough routers have room in their logs for what changes data.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.view.borrow().has_room
    }

    /// A row identifier that was never given before and never will be again.
    ///
    /// # Errors
    /// As [`Client::reserve_row_ids`].
    pub fn next_row_id(&self) -> Result<i64, SqlError> {
        self.reserve_row_ids(1)
    }

    /// The first of `count` consecutive row identifiers that were never given before and never will be again: the
    /// incarnation in the high bits, a counter below.
    ///
    /// # Errors
    /// 54000 when this incarnation has given all its 2^36 identifiers, or there have been 2^27 incarnations.
    pub fn reserve_row_ids(&self, count: u64) -> Result<i64, SqlError> {
        let exhausted = || {
            SqlError::new(SqlState::LIMIT_EXCEEDED, "row identifiers are exhausted")
                .with_hint("Restart the front end: every start has 2^36 row identifiers of its own.")
        };
        let mut end = 0;
        let first = self
            .shared
            .row_ids
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                end = next.checked_add(count).filter(|end| *end <= 1 << ROW_ID_BITS)?;
                Some(end)
            })
            .map_err(|_| exhausted())?;
        let incarnation = i64::try_from(self.shared.incarnation).map_err(|_| exhausted())?;
        if incarnation >= 1 << (63 - ROW_ID_BITS) {
            return Err(exhausted());
        }
        Ok((incarnation << ROW_ID_BITS) | first as i64)
    }

    /// The memory for the writes on their way.
    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.shared.admission
    }

    /// Waits until the client process stops itself, as it cannot go on; tells why. Never ends otherwise.
    pub async fn failure(&self) -> String {
        let mut view = self.shared.view.clone();
        let stopped = view.wait_for(|view| view.stopped.is_some()).await;
        let reason = stopped.ok().and_then(|view| view.stopped.clone());
        match reason {
            Some(reason) => format!("client process {} has stopped: {}", self.shared.id, reason.message),
            None => format!("client process {} has ended", self.shared.id),
        }
    }

    fn command(&self, command: Command) -> Result<(), SqlError> {
        self.shared.commands.send(command).map_err(|_| self.stopped())
    }

    /// Why the client process has ended.
    fn stopped(&self) -> SqlError {
        let reason = self.shared.view.borrow().stopped.clone();
        reason.unwrap_or_else(|| SqlError::new(SqlState::ADMIN_SHUTDOWN, "the cluster is shutting down"))
    }
}

/// The stream of a submitted message's answer. Dropping it tells the cluster that nobody waits any more; a write that
/// has been submitted takes effect all the same.
#[derive(Debug)]
pub struct Submission {
    client: Client,
    submission: u64,
    parts: parts::Reader<HandedOut>,
    /// Batches that were taken and of which their processes have not heard.
    taken: BTreeMap<ProcessId, u32>,
    /// Whether the message may change rows or the catalog.
    changes: bool,
    ended: bool,
}

impl Submission {
    /// The next part; `None` after the last one ([`Part::Done`], [`Part::Ddl`] or a failure).
    pub async fn next(&mut self) -> Option<Result<Part, Failure>> {
        if self.ended {
            return None;
        }
        let (from, part) = self.parts.recv().await.unwrap_or_else(|| (None, Err(self.abandoned().into())));
        if let Some(from) = from {
            self.count_taken(from);
        }
        self.ended = !matches!(part, Ok(Part::Rows(_) | Part::Groups(_)));
        Some(part)
    }

    /// Bytes of rows that have arrived and wait to be taken.
    pub fn waiting_bytes(&self) -> u64 {
        self.parts.waiting()
    }

    fn count_taken(&mut self, from: ProcessId) {
        let taken = self.taken.entry(from).or_default();
        *taken += 1;
        if *taken == TAKEN_TOGETHER {
            let batches = std::mem::take(taken);
            // A stopped client process has nobody to tell.
            let _ = self.client.command(Command::Took { submission: self.submission, from, batches });
        }
    }

    /// The client process has ended before the answer came. A change may have been ordered by then, or may still be.
    fn abandoned(&self) -> SqlError {
        if !self.changes {
            return self.client.stopped();
        }
        SqlError::new(SqlState::OUTCOME_UNKNOWN, "the cluster stopped before it answered")
            .with_detail("The statement may have taken effect, or may still do so.")
    }

    /// Waits for the end; rows and groups are dropped.
    ///
    /// # Errors
    /// How the message failed.
    pub async fn finish(mut self) -> Result<Part, Failure> {
        while let Some(part) = self.next().await {
            match part? {
                Part::Rows(_) | Part::Groups(_) => {}
                last => return Ok(last),
            }
        }
        Err(SqlError::internal("a finished submission was waited for again").into())
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if !self.ended {
            // A stopped client process has nobody to tell.
            let _ = self.client.command(Command::Cancel { submission: self.submission });
        }
    }
}
