//! Relational statements: reads of several tables at one `Ts`, and what runs above them, on threads of their own.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arrow::record_batch::RecordBatch;
use carousel_cluster::{
    client::{Client, Failure, Part, Pin, Request, Submission},
    message::{Body, ReadIsolation},
};
use carousel_engine::{SqlError, SqlState, Ts, Value};
use carousel_planner::{
    MemoryBudget,
    relational::{Answer, ReadRequest, Reader, Relational, RowStream, Runtime, SystemView},
};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::{
    runtime::{Builder, Handle},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::AbortHandle,
};

use super::{
    Result, Session,
    execute::{Cursor, sees_one_state},
    system,
    texts::turns,
    transaction::State,
};

/// Rows, or how a statement failed.
type Rows = std::result::Result<RecordBatch, Failure>;

/// Reads of relational statements of all sessions, at most: half of the operations that a client process may have open. Each
/// statement has room for all of its reads before it begins: none of them waits for a place that another one has, which waits
/// for its rows to be taken.
const READS: usize = 4096;
/// Reads of suspended portals of all sessions, and of statements whose clients do not read, at most: half of that, so that what
/// nobody goes on with leaves room for statements that run.
const SUSPENDED_READS: usize = READS / 2;
/// The most reads in a statement: so many are left whatever is suspended.
const MOST_READS: usize = READS - SUSPENDED_READS;
/// Relational statements that are planned at a time, at most.
const PLANNED: usize = 64;
/// A client that takes this long to read [`crate::connection::OUTPUT_ENOUGH_BYTES`] does not read.
const SLOW: Duration = Duration::from_secs(5);
/// Batches that wait to be sent, at most.
const WAITING_BATCHES: usize = 2;

/// What the statements of all sessions share: where relational ones run, memory, and room for suspended portals.
#[derive(Debug)]
pub struct Relations {
    runtime: Runtime,
    threads: Threads,
    suspended: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    planning: Arc<Semaphore>,
    /// To parse large texts.
    pub(super) turns: Arc<Semaphore>,
}

/// The stack of a thread that computes: plans are as deep as a statement has operators. Only what is used of it takes memory.
const STACK: usize = 256 << 20;

/// Threads that compute: what they do takes no time from those that answer messages.
#[derive(Debug)]
struct Threads(Option<tokio::runtime::Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        // Statements that still run belong to sessions that are gone.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

impl Relations {
    /// All statements together may take `memory_bytes`.
    ///
    /// # Errors
    /// When there are no threads to be had.
    pub fn new(memory_bytes: usize) -> carousel_engine::error::Result<Relations> {
        let threads = Builder::new_multi_thread()
            .thread_name("relations")
            .thread_stack_size(STACK)
            .enable_time()
            .build()
            .map_err(|e| SqlError::internal(format!("cannot start threads: {e}")))?;
        Ok(Relations {
            runtime: Runtime::new(memory_bytes)?,
            threads: Threads(Some(threads)),
            suspended: Arc::new(Semaphore::new(SUSPENDED_READS)),
            reads: Arc::new(Semaphore::new(READS)),
            planning: Arc::new(Semaphore::new(PLANNED)),
            turns: turns(),
        })
    }

    /// The memory that statements of all sessions may take for what they hold.
    pub fn memory(&self) -> &MemoryBudget {
        self.runtime.memory()
    }

    /// Room for a suspended portal, or a statement whose client does not read, that holds so many reads open, until it is
    /// dropped; `None` when there is not enough.
    pub fn suspend(&self, reads: usize) -> Option<OwnedSemaphorePermit> {
        let reads = u32::try_from(reads).ok()?;
        self.suspended.clone().try_acquire_many_owned(reads).ok()
    }

    fn handle(&self) -> carousel_engine::error::Result<&Handle> {
        let threads = self.threads.0.as_ref();
        threads.map(|t| t.handle()).ok_or_else(|| SqlError::internal("the threads have ended"))
    }
}

/// A relational statement that runs; dropped, it ends.
#[derive(Debug)]
pub struct Running {
    rows: mpsc::Receiver<Rows>,
    task: AbortHandle,
    /// Nobody waits for it any more.
    over: Arc<AtomicBool>,
    /// What its reads see, if they are pinned.
    pub(super) ts: Option<Ts>,
    /// How many reads it may have open.
    pub(super) reads: usize,
    /// Holds that, unless it is a block's snapshot.
    _pin: Option<Pin>,
    /// Room for its reads.
    _room: OwnedSemaphorePermit,
}

impl Running {
    /// The next rows; `None` after the last.
    pub async fn next(&mut self) -> Option<Rows> {
        self.rows.recv().await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

impl Session<'_> {
    /// Starts a relational statement.
    pub(super) async fn start_relational(
        &mut self,
        statement: Relational,
        isolation: ReadIsolation,
    ) -> Result<Running> {
        let reads = statement.reads();
        if reads > MOST_READS {
            let message = format!("the statement reads tables {reads} times, more than {MOST_READS}");
            return Err(SqlError::new(SqlState::TOO_COMPLEX, message).into());
        }
        let room = self.relations.reads.clone().acquire_many_owned(reads as u32);
        let room = self.connection.interrupts.guard(room).await?;
        let room = room.map_err(|_| SqlError::internal("the front end has ended"))?;
        let (mut read_ts, mut pin) = (None, None);
        if !sees_one_state(isolation) {
            // Each of its reads goes straight to the storage processes.
        } else if self.transaction.state() == State::Open {
            read_ts = Some(self.snapshot().await?);
        } else if reads > 1 {
            // One read by itself sees what was ordered before it; several must see the same.
            let own = self.pin().await?;
            read_ts = Some(own.ts());
            pin = Some(own);
        }
        let mut system = BTreeMap::new();
        for view in statement.system_views() {
            system.insert(view, system::rows(view, &self.client).await?);
        }
        let over = Arc::<AtomicBool>::default();
        let client = self.client.clone();
        let reader = Arc::new(ClusterReader { client, read_ts, isolation, system, over: over.clone() });
        let rows = self.plan_relational(statement, reader).await.inspect_err(|_| {
            over.store(true, Ordering::Relaxed);
        })?;
        let (sender, receiver) = mpsc::channel(WAITING_BATCHES);
        let next = |mut rows: RowStream| async move { rows.next().await.map(|batch| (batch, rows)) };
        let rows = stream::unfold(rows, next).boxed();
        let task = self.relations.handle()?.spawn(run(rows, sender)).abort_handle();
        Ok(Running { rows: receiver, task, over, ts: read_ts, reads, _pin: pin, _room: room })
    }

    /// Plans a relational statement and starts it. That can take long, and other sessions go on meanwhile; so does this one when the
    /// statement is to stop, and then nobody takes what comes of it.
    async fn plan_relational(
        &mut self,
        statement: Relational,
        reader: Arc<ClusterReader>,
    ) -> Result<RowStream> {
        let turn = self.relations.planning.clone().acquire_owned();
        let turn = self.connection.interrupts.guard(turn).await?;
        let relations = self.relations.clone();
        // Parts of it begin to run at once, and compute: on the threads that are this one's siblings.
        let planning = self.relations.handle()?.spawn_blocking(move || {
            let _turn = turn;
            statement.start(&relations.runtime, reader)
        });
        let planned = self.connection.interrupts.guard(planning).await?;
        Ok(planned.map_err(|_| SqlError::internal("what plans a statement panicked"))??)
    }

    /// Sends what there is, if it is enough. A client that does not read keeps the statement's reads open like a suspended portal,
    /// and the statement fails when there are too many such reads. What has changed rows does not fail any more.
    pub(super) async fn flush_rows(&mut self, cursor: &Cursor) -> Result<()> {
        let reads = if cursor.is_write() { 0 } else { cursor.open_reads() };
        let mut flush = std::pin::pin!(self.connection.flush_if_enough());
        if reads == 0 {
            return flush.await;
        }
        if let Ok(flushed) = tokio::time::timeout(SLOW, &mut flush).await {
            return flushed;
        }
        let Some(_room) = self.relations.suspend(reads) else {
            let message = "too many statements wait for clients that do not read";
            return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, message)
                .with_hint("Read the rows of a statement as they come, or select fewer of them.")
                .into());
        };
        flush.await
    }
}

async fn run(rows: BoxStream<'static, Rows>, sender: mpsc::Sender<Rows>) {
    let mut rows = AssertUnwindSafe(rows).catch_unwind();
    while let Some(batch) = rows.next().await {
        // An end without a word would be taken for the end of the rows.
        let batch =
            batch.unwrap_or_else(|_| Err(SqlError::internal("what runs a statement panicked").into()));
        let failed = batch.is_err();
        if sender.send(batch).await.is_err() || failed {
            return;
        }
    }
}

/// Reads by messages.
#[derive(Debug)]
struct ClusterReader {
    client: Client,
    read_ts: Option<Ts>,
    /// How a read that has no `Ts` yet is ordered.
    isolation: ReadIsolation,
    /// The rows of the statement's system views.
    system: BTreeMap<SystemView, Vec<Vec<Value>>>,
    /// Nobody waits for the statement any more. What computes finds out between two batches of what it reads or tests, however
    /// long it goes on without letting others run.
    over: Arc<AtomicBool>,
}

enum Step {
    Submit(Client, Request, ReadIsolation),
    Answer(Submission),
}

impl Reader for ClusterReader {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn system(&self, view: SystemView) -> &[Vec<Value>] {
        self.system.get(&view).map_or(&[], Vec::as_slice)
    }

    fn read(&self, request: ReadRequest) -> BoxStream<'static, std::result::Result<Answer, Failure>> {
        let ReadRequest { tables, ranges, mut body } = request;
        if let Body::Data(data) = &mut body {
            data.read_ts = self.read_ts;
        }
        let first = Step::Submit(
            self.client.clone(),
            Request { tables: tables.into(), ranges: ranges.into(), body },
            self.isolation,
        );
        let over = self.over.clone();
        let read = move |step: Option<Step>| async move {
            let mut submission = match step? {
                Step::Answer(submission) => submission,
                Step::Submit(client, request, isolation) => {
                    match client.submit_read(request, isolation).await {
                        Ok(submission) => submission,
                        Err(error) => return Some((Err(error.into()), None)),
                    }
                }
            };
            match submission.next().await? {
                Ok(Part::Rows(batch)) => Some((Ok(Answer::Rows(batch)), Some(Step::Answer(submission)))),
                Ok(Part::Groups(groups)) => {
                    Some((Ok(Answer::Groups(groups)), Some(Step::Answer(submission))))
                }
                Ok(Part::Done { .. }) => None,
                Ok(part) => {
                    let error = SqlError::internal(format!("a read was answered by {part:?}"));
                    Some((Err(error.into()), None))
                }
                Err(failure) => Some((Err(failure), None)),
            }
        };
        stream::unfold(Some(first), read)
            .map(move |answer| match over.load(Ordering::Relaxed) {
                true => Err(SqlError::new(SqlState::QUERY_CANCELED, "the statement is over").into()),
                false => answer,
            })
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;

    use super::*;

    #[test]
    fn suspended_portals_leave_room_for_others() {
        let relations = Relations::new(0).expect("threads");
        let (first, rest) = (relations.suspend(1), relations.suspend(SUSPENDED_READS - 1));
        assert!(first.is_some() && rest.is_some() && relations.suspend(1).is_none());
        drop(first);
        assert!(relations.suspend(2).is_none() && relations.suspend(1).is_some());
    }

    #[tokio::test]
    async fn a_panic_is_not_the_end_of_the_rows() {
        let batches = [0, 1, 2].map(|batch| {
            move || match batch {
                1 => panic!("in the middle"),
                _ => Ok(RecordBatch::new_empty(Arc::new(Schema::empty()))),
            }
        });
        let rows = stream::iter(batches).map(|batch| batch()).boxed();
        let (sender, mut received) = mpsc::channel(WAITING_BATCHES);
        tokio::spawn(run(rows, sender));
        assert!(matches!(received.recv().await, Some(Ok(_))));
        let Some(Err(Failure::Sql(error))) = received.recv().await else { panic!("it has failed") };
        assert_eq!(error.code, SqlState::INTERNAL);
        assert!(received.recv().await.is_none());
    }
}
