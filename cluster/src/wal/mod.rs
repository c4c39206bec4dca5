//! The write-ahead log of a router.
//!
//! Records with consecutive indices in append-only segment files (see `segments` for their form) and one small file
//! of metadata that is replaced as a whole. All writing happens on a thread of its own, in the order of the calls; one
//! `fdatasync` serves all appends that wait for it. Beside it, segments that are not needed any more are removed, or wiped to be
//! used again, and others are made before they are needed. After the first error nothing is written any more and every call
//! fails with it: whether a failed write or sync reached the disk is unknown, so the router has to stop.

mod atomic_file;
mod ballast;
mod segments;
#[cfg(test)]
pub(crate) mod simulated;
mod spare;

use std::{
    fs::{self, File},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

pub use atomic_file::replace_text;
pub(crate) use atomic_file::{
    make_directory, overwrite, read as read_file, replace as replace_file, replace_without_room,
    sync_directory,
};
use ballast::Ballast;
pub use segments::Limits;
use segments::{Purged, Segments};
use spare::{GoesOn, Spare};

use crate::{
    metering::LogMeter,
    planted::{Bug, planted},
};

/// Something is kept for later where so many times its length is free.
const PLENTY: u64 = 8;
/// How often somebody looks whether a segment has been removed or wiped, while others may go.
const REMOVING: Duration = Duration::from_millis(5);
/// Whoever writes zeros beside the log is idle for so many times as long as that takes: syncs wait for the same disk.
const IDLE: u32 = 4;
/// But not longer: the disk may have hung.
const MOST_IDLE: Duration = Duration::from_secs(1);

/// Where a router keeps the m-seq (DESIGN, decision 13).
#[derive(Clone, Debug)]
pub enum Durability {
    /// In a write-ahead log in this directory: acknowledged means fsynced on a quorum.
    Disk {
        /// The router's own directory; created when missing.
        directory: PathBuf,
        /// Limits of the log.
        limits: Limits,
    },
    /// In memory only: the paper's disk-less mode. What was acknowledged survives as long as a quorum of routers does;
    /// a router that restarts is a new one.
    Memory,
}

/// What can go wrong with the log. None of it is deterministic: the router that meets it stops.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The file system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file system has no room for what was to be written, and nothing has been synced since.
    #[error(transparent)]
    Full(io::Error),
    /// A place that had been synced does not read back.
    #[error(
        "{path} is damaged at offset {offset}: replace this router by another (ALTER CLUSTER ADD ROUTER, REMOVE ROUTER)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
    },
    /// A file that had begun is not there.
    #[error(
        "{path} is missing: put it back, or replace this router by another (ALTER CLUSTER ADD ROUTER, REMOVE ROUTER)"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Records must have consecutive indices.
    #[error("record {found} appended where {expected} was expected")]
    Gap {
        /// The next index.
        expected: u64,
        /// The index that came.
        found: u64,
    },
    /// A record is too long.
    #[error("a record of {bytes} bytes is too long for the log")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The log was closed or has failed before.
    #[error("the log is closed: {0}")]
    Closed(Arc<str>),
}

impl From<WalError> for io::Error {
    fn from(error: WalError) -> io::Error {
        match error {
            WalError::Io(error) | WalError::Full(error) => error,
            other => io::Error::other(other),
        }
    }
}

/// Whether something could not be written for want of room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The bytes that are free on the disk of a directory.
pub(crate) fn free_bytes(directory: &Path) -> rustix::io::Result<u64> {
    rustix::fs::statvfs(directory).map(|told| told.f_bavail.saturating_mul(told.f_frsize))
}

/// Whether so much is free on the disk of a file that so many bytes may be kept beside it for later.
fn is_plenty_free(path: &Path, bytes: u64) -> rustix::io::Result<bool> {
    let free = free_bytes(path.parent().unwrap_or(Path::new(".")))?;
    Ok(free >= bytes.saturating_mul(PLENTY))
}

impl WalError {
    /// What a write has met that is not synced yet.
    fn of_write(error: io::Error) -> WalError {
        match is_full(&error) {
            true => WalError::Full(error),
            false => WalError::Io(error),
        }
    }
}

type Done<T> = Box<dyn FnOnce(Result<T, WalError>) + Send>;

type Append = (Vec<(u64, Bytes)>, Done<()>);

enum Job {
    Append(Vec<(u64, Bytes)>, Done<()>),
    Truncate(u64, Done<()>),
    Purge(u64, Done<()>),
    Metadata(Bytes, Done<()>),
    MakeRoom(u64, Done<()>),
}

/// A router's log.
pub(crate) struct Wal {
    segments: Arc<RwLock<Segments>>,
    // Unbounded, but what comes is bounded: a leader waits before it proposes more (`raft::Consensus::propose`), and does not
    // have more on the way to a follower than that has room for (`raft::network`).
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    abandoned: Arc<AtomicBool>,
    #[cfg(test)]
    hangs: Arc<AtomicBool>,
}

/// What was found when a log was opened.
pub(crate) struct Recovered {
    /// Indices of the records, if there are any.
    pub(crate) range: Option<Range<u64>>,
    /// The metadata saved last.
    pub(crate) metadata: Option<Vec<u8>>,
}

impl Wal {
    /// Opens or creates the log in a directory. Blocking. A directory that another process or router uses is an error.
    pub(crate) fn open(
        directory: &Path,
        limits: Limits,
        meter: LogMeter,
    ) -> Result<(Wal, Recovered), WalError> {
        Wal::open_with(directory, limits, meter, |writer, queue, lock| {
            let thread = std::thread::Builder::new().name("router-log".into());
            let run = move || {
                writer.run(queue);
                drop(lock);
            };
            thread.spawn(run).map(Some)
        })
    }

    /// Like [`Wal::open`], with a task of the caller's runtime in place of the thread. The directory is free again when
    /// that runtime has ended.
    #[cfg(test)]
    pub(crate) fn open_simulated(
        directory: &Path,
        limits: Limits,
        meter: LogMeter,
    ) -> Result<(Wal, Recovered), WalError> {
        Wal::open_with(directory, limits, meter, |writer, queue, lock| {
            tokio::spawn(simulated::run(writer, queue, lock));
            Ok(None)
        })
    }

    fn open_with(
        directory: &Path,
        limits: Limits,
        meter: LogMeter,
        start: impl FnOnce(Writer, mpsc::Receiver<Job>, File) -> io::Result<Option<JoinHandle<()>>>,
    ) -> Result<(Wal, Recovered), WalError> {
        make_directory(directory)?;
        let lock = File::create(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::Error(error) => error,
            fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::AddrInUse, format!("{} is in use", directory.display()))
            }
        })?;
        let metadata_path = directory.join("metadata");
        let metadata = read_file(&metadata_path)?;
        let ballast = Ballast::open(directory, limits.ballast_bytes);
        let segments = Segments::open(directory, limits)?;
        let recovered = Recovered { range: segments.range(), metadata };
        let segments = Arc::new(RwLock::new(segments));
        let (jobs, queue) = mpsc::channel();
        let abandoned = Arc::new(AtomicBool::new(false));
        #[cfg(test)]
        let hangs: Arc<AtomicBool> = Arc::default();
        let writer = Writer {
            segments: segments.clone(),
            metadata_path,
            ballast,
            abandoned: abandoned.clone(),
            meter,
            failed: None,
            purging: None,
            beside: None,
            tried: None,
            #[cfg(test)]
            hangs: hangs.clone(),
        };
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(start(writer, queue, lock)?));
        let wal = Wal {
            segments,
            jobs,
            thread,
            abandoned,
            #[cfg(test)]
            hangs,
        };
        Ok((wal, recovered))
    }

    fn submit(&self, job: Job) {
        let rejected = match &*self.jobs.lock() {
            Some(jobs) => jobs.send(job).err().map(|mpsc::SendError(job)| job),
            None => Some(job),
        };
        if let Some(job) = rejected {
            job.fail(&"closed".into());
        }
    }

    /// Appends records; `done` is called, on the log's thread, once they are on disk.
    pub(crate) fn append(
        &self,
        records: Vec<(u64, Bytes)>,
        done: impl FnOnce(Result<(), WalError>) + Send + 'static,
    ) {
        if planted(Bug::LostFsync) {
            done(Ok(()));
            return self.submit(Job::Append(records, Box::new(drop)));
        }
        self.submit(Job::Append(records, Box::new(done)));
    }

    async fn wait(&self, job: impl FnOnce(Done<()>) -> Job) -> Result<(), WalError> {
        let (answer, answered) = oneshot::channel();
        // The receiver is dropped only when nobody waits any more.
        self.submit(job(Box::new(move |result| drop(answer.send(result)))));
        answered.await.unwrap_or_else(|_| Err(WalError::Closed("abandoned".into())))
    }

    /// Durably removes all records with index `from` or greater.
    pub(crate) async fn truncate(&self, from: u64) -> Result<(), WalError> {
        self.wait(|done| Job::Truncate(from, done)).await
    }

    /// Allows the records with index `to` or less to go: now, if no others are left, otherwise a segment at a time.
    pub(crate) async fn purge(&self, to: u64) -> Result<(), WalError> {
        self.wait(|done| Job::Purge(to, done)).await
    }

    /// First replaces the metadata and then purges, behind all that has been asked for. Nothing is written any more when that
    /// fails, as whoever writes next hears.
    pub(crate) fn purge_later(&self, metadata: Bytes, to: u64) {
        self.submit(Job::Metadata(metadata, Box::new(drop)));
        self.submit(Job::Purge(to, Box::new(drop)));
    }

    /// Durably replaces the metadata.
    pub(crate) async fn save_metadata(&self, metadata: Bytes) -> Result<(), WalError> {
        self.wait(|done| Job::Metadata(metadata, done)).await
    }

    /// Lets go of some of the room that is kept for the log, for so many bytes that have found no other and without which the log
    /// cannot be cut.
    ///
    /// # Errors
    /// When that would not be enough, or too much, or nothing is written any more.
    pub(crate) async fn make_room(&self, bytes: u64) -> Result<(), WalError> {
        self.wait(|done| Job::MakeRoom(bytes, done)).await
    }

    /// Reads the records of a range as far as they exist, up to about `bytes` (but at least one).
    pub(crate) async fn read(&self, range: Range<u64>, bytes: u64) -> Result<Vec<(u64, Bytes)>, WalError> {
        // The log's thread holds on to the segments while it begins another one, however long the disk takes for that.
        let segments = self.segments.clone();
        let read = move || {
            let places = segments.read().places(range, bytes);
            places.into_iter().map(|place| Ok((place.index, place.read()?))).collect()
        };
        tokio::task::spawn_blocking(read)
            .await
            .unwrap_or_else(|_| Err(WalError::Closed("shutting down".into())))
    }

    /// Makes the log forget what it was asked to write and has not written yet, as a crash would.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// Nothing that a simulated log is asked to write is written until it hangs no more.
    #[cfg(test)]
    pub(crate) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Waits until the log's thread has ended and the directory is free again. Blocking.
    pub(crate) fn close(&self) {
        self.jobs.lock().take();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the log's thread panicked");
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.close();
    }
}

impl Job {
    fn fail(self, reason: &Arc<str>) {
        let (Job::Append(_, done)
        | Job::Truncate(_, done)
        | Job::Purge(_, done)
        | Job::Metadata(_, done)
        | Job::MakeRoom(_, done)) = self;
        done(Err(WalError::Closed(reason.clone())));
    }
}

/// What is done beside the log's thread.
struct Beside {
    thread: JoinHandle<Result<Option<Spare>, WalError>>,
    /// Set when what can be left out is to be left out from the next step on.
    ends: Arc<AtomicBool>,
}

struct Writer {
    segments: Arc<RwLock<Segments>>,
    metadata_path: PathBuf,
    ballast: Ballast,
    abandoned: Arc<AtomicBool>,
    meter: LogMeter,
    failed: Option<Arc<str>>,
    /// Records up to this index may go.
    purging: Option<u64>,
    /// Removes a segment of them, or prepares a spare.
    beside: Option<Beside>,
    /// The first index of the last segment for which a spare was to be made, whether it could be or not.
    tried: Option<u64>,
    #[cfg(test)]
    hangs: Arc<AtomicBool>,
}

impl Writer {
    fn run(mut self, queue: mpsc::Receiver<Job>) {
        loop {
            let first = match self.purging {
                None => queue.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                Some(_) => queue.recv_timeout(REMOVING),
            };
            match first {
                Ok(first) => self.take(std::iter::once(first).chain(queue.try_iter())),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            self.work_beside();
        }
        self.end_beside();
    }

    /// Has a segment that may go removed, if there is one, and nobody waits for it: a file system may take as long for it as for a
    /// hundred syncs. One at a time, so that a crash leaves no hole. Or else has a spare made, if it is time for one.
    fn work_beside(&mut self) {
        if self.beside.as_ref().is_some_and(|beside| !beside.thread.is_finished()) {
            return;
        }
        self.end_beside();
        if let Some(purged) = self.take_purged() {
            return match purged.was_last {
                // It has a note that belongs to the next one, too.
                true => self.retire(purged),
                false => self.begin_beside(move |goes_on| purged.retire(goes_on)),
            };
        }
        let lacking = self.segments.read().lacks_spare().filter(|_| self.failed.is_none());
        if let Some(last) = lacking.filter(|_| self.tried != lacking) {
            self.tried = lacking;
            let (path, bytes) = self.segments.read().next_spare(last);
            self.begin_beside(move |goes_on| {
                let made = Spare::make(&path, bytes, goes_on);
                Ok(made.unwrap_or_else(|error| {
                    tracing::debug!(path = %path.display(), %error, "no spare can be made");
                    None
                }))
            });
        }
    }

    fn begin_beside<W>(&mut self, work: W)
    where
        W: FnOnce(GoesOn<'_>) -> Result<Option<Spare>, WalError> + Send + 'static,
    {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = ends.clone();
        let (given, taken) = mpsc::sync_channel::<W>(1);
        let run = move || {
            let work = taken.recv().map_err(|_| WalError::Closed("there is nothing to do".into()))?;
            work(&|took| {
                std::thread::park_timeout(took.saturating_mul(IDLE).min(MOST_IDLE));
                !is_over.load(Ordering::SeqCst)
            })
        };
        match std::thread::Builder::new().name("router-log-end".into()).spawn(run) {
            Ok(thread) => {
                // It is there.
                let _ = given.send(work);
                self.beside = Some(Beside { thread, ends });
            }
            // There are too many threads: here, then, but not what can be left out.
            Err(_) => self.keep(work(&|_| false)),
        }
    }

    /// Waits until nothing is done beside this thread, not for what can be left out.
    fn end_beside(&mut self) {
        let Some(Beside { thread, ends }) = self.beside.take() else { return };
        ends.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        let panicked = |_| Err(WalError::Closed("what is done beside it panicked".into()));
        self.keep(thread.join().unwrap_or_else(panicked));
    }

    /// Removes a segment that may go, if there is one.
    #[cfg(test)]
    fn purge_some(&mut self) {
        if let Some(purged) = self.take_purged() {
            self.retire(purged);
        }
    }

    fn retire(&mut self, purged: Purged) {
        self.keep(purged.retire(&|_| true));
    }

    /// Keeps what was prepared, if anything was.
    fn keep(&mut self, prepared: Result<Option<Spare>, WalError>) {
        match prepared {
            Ok(None) => {}
            Ok(Some(spare)) => self.segments.write().keep_spare(spare),
            Err(error) => drop(self.fail(&error)),
        }
    }

    /// A segment that may go, which nobody reads from now on.
    fn take_purged(&mut self) -> Option<Purged> {
        let to = self.purging.filter(|_| self.failed.is_none());
        let purged = to.and_then(|to| self.segments.write().take_purged(to));
        if purged.is_none() {
            self.purging = None;
        }
        purged
    }

    /// Nothing is written any more, for this reason.
    fn fail(&mut self, error: &WalError) -> Arc<str> {
        let directory = self.metadata_path.parent().unwrap_or(Path::new(".")).display();
        tracing::error!(%directory, %error, "the router's log cannot be written");
        self.failed.insert(format!("{directory}: {error}").into()).clone()
    }

    fn take(&mut self, jobs: impl Iterator<Item = Job>) {
        let mut group: Vec<Append> = Vec::new();
        for job in jobs {
            if self.abandoned.load(Ordering::SeqCst) {
                self.failed.get_or_insert("abandoned".into());
            }
            if let Some(reason) = &self.failed {
                job.fail(reason);
                continue;
            }
            match job {
                Job::Append(records, done) => group.push((records, done)),
                other => {
                    self.write(std::mem::take(&mut group));
                    self.execute(other);
                }
            }
        }
        self.write(group);
    }

    /// Writes a group of appends with a single sync.
    fn write(&mut self, group: Vec<Append>) {
        if group.is_empty() {
            return;
        }
        if let Some(reason) = self.failed.clone() {
            return group.into_iter().for_each(|(_, done)| done(Err(WalError::Closed(reason.clone()))));
        }
        match self.append(&group) {
            Ok(()) => group.into_iter().for_each(|(_, done)| done(Ok(()))),
            Err(error) => {
                let reason = self.fail(&error);
                let mut error = Some(error);
                for (_, done) in group {
                    done(Err(error.take().unwrap_or_else(|| WalError::Closed(reason.clone()))));
                }
            }
        }
    }

    fn append(&mut self, group: &[Append]) -> Result<(), WalError> {
        let began = Instant::now();
        for (records, _) in group {
            let mut rest = &records[..];
            loop {
                let appended = self.segments.write().append(rest);
                let Err(error) = appended else { break };
                self.let_go_for(error)?;
                let written = self.segments.read().range().map_or(0, |range| range.end);
                rest = &records[records.partition_point(|(index, _)| *index < written)..];
            }
        }
        let unsynced = self.segments.read().unsynced();
        self.ballast.hold();
        // Readers do not wait for the sync.
        if let Some((file, length)) = unsynced {
            file.sync_data()?;
            self.segments.write().synced(length);
        }
        self.meter.synced(began.elapsed());
        Ok(())
    }

    /// Lets go of some of the room that is kept for the log if something found none: first of what is to become segments, then of
    /// the ballast.
    ///
    /// # Errors
    /// As of [`Ballast::let_go_for`], or when nothing is written any more.
    fn let_go_for(&mut self, error: WalError) -> Result<(), WalError> {
        if matches!(error, WalError::Full(_)) && self.let_spares_go() {
            return Ok(());
        }
        match &self.failed {
            Some(reason) => Err(WalError::Closed(reason.clone())),
            None => self.ballast.let_go_for(error),
        }
    }

    /// Gives back the room of what is to become segments, also of what is being prepared. Returns whether there was any.
    fn let_spares_go(&mut self) -> bool {
        self.end_beside();
        self.segments.write().let_spares_go()
    }

    fn execute(&mut self, job: Job) {
        if let Some(reason) = &self.failed {
            return job.fail(reason);
        }
        let (result, done) = match job {
            // It is nothing to the log itself that there is no more.
            Job::MakeRoom(bytes, done) => {
                return done(match self.let_spares_go() {
                    true => Ok(()),
                    false => self.ballast.make_room(bytes).map_err(WalError::of_write),
                });
            }
            Job::Append(records, done) => (self.append(&[(records, Box::new(|_| ()))]), done),
            Job::Truncate(from, done) => (self.segments.write().truncate(from), done),
            // What comes next need not follow what is there.
            Job::Purge(to, done) if self.segments.read().ends_before(to) => {
                self.end_beside();
                if let Some(reason) = &self.failed {
                    return Job::Purge(to, done).fail(reason);
                }
                (self.segments.write().purge(to), done)
            }
            Job::Purge(to, done) => {
                self.purging = self.purging.max(Some(to));
                (Ok(()), done)
            }
            Job::Metadata(content, done) => {
                // It is written to another file first, which can be begun again.
                let replaced = loop {
                    let replaced = replace_file(&self.metadata_path, &content).map_err(WalError::of_write);
                    let Err(error) = replaced else { break Ok(()) };
                    if let Err(error) = self.let_go_for(error) {
                        break Err(error);
                    }
                };
                (replaced, done)
            }
        };
        if let Err(error) = &result {
            self.fail(error);
        }
        done(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: u64) -> (u64, Bytes) {
        (index, Bytes::from(index.to_string()))
    }

    #[tokio::test]
    async fn appends_are_durable_and_ordered_with_the_other_calls() {
        let directory = tempfile::tempdir().expect("a directory");
        let (wal, recovered) =
            Wal::open(directory.path(), Limits::default(), LogMeter::noop()).expect("opens");
        assert!(recovered.range.is_none() && recovered.metadata.is_none());
        assert!(
            Wal::open(directory.path(), Limits::default(), LogMeter::noop()).is_err(),
            "one user at a time"
        );
        wal.append(vec![record(1), record(2)], |result| result.expect("appended"));
        wal.append(vec![record(3)], |result| result.expect("appended"));
        wal.truncate(3).await.expect("truncates");
        wal.append(vec![record(3), record(4)], |result| result.expect("appended"));
        wal.save_metadata(Bytes::from_static(b"vote")).await.expect("saves");
        assert_eq!(wal.read(2..100, u64::MAX).await.expect("reads"), vec![record(2), record(3), record(4)]);
        assert_eq!(wal.read(2..100, 1).await.expect("reads"), vec![record(2)]);
        drop(wal);
        let (wal, recovered) =
            Wal::open(directory.path(), Limits::default(), LogMeter::noop()).expect("opens");
        assert_eq!(recovered.range, Some(1..5));
        assert_eq!(recovered.metadata.as_deref(), Some(&b"vote"[..]));
        wal.abandon();
        wal.append(vec![record(5)], |result| assert!(matches!(result, Err(WalError::Closed(_)))));
        assert!(wal.truncate(1).await.is_err());
        drop(wal);
        let (_, recovered) = Wal::open(directory.path(), Limits::default(), LogMeter::noop()).expect("opens");
        assert_eq!(recovered.range, Some(1..5));
    }

    /// Files with a name that ends so.
    fn files(directory: &Path, extension: &str) -> usize {
        let entries = fs::read_dir(directory).expect("reads").map(|entry| entry.expect("reads").path());
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).count()
    }

    #[tokio::test]
    async fn segments_are_used_again_and_made_before_they_are_needed() {
        let directory = tempfile::tempdir().expect("a directory");
        let limits = Limits { segment_bytes: 1000, ..Limits::default() };
        let (wal, _) = Wal::open(directory.path(), limits.clone(), LogMeter::noop()).expect("opens");
        let mut next = 1;
        let mut append = async |until: &dyn Fn() -> bool, purges: bool| {
            let begin = std::time::Instant::now();
            while !until() {
                assert!(begin.elapsed() < Duration::from_secs(60), "it never comes to that");
                let (answer, answered) = oneshot::channel();
                let records = vec![(next, Bytes::from(vec![next as u8; 100]))];
                wal.append(records, move |result| drop(answer.send(result)));
                answered.await.expect("answered").expect("appended");
                if purges {
                    wal.purge_later(Bytes::from_static(b"vote"), next - 1);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                next += 1;
            }
            next
        };
        // Half of the first one is full.
        append(&|| files(directory.path(), "spare") == 1, false).await;
        // Many times around.
        for _ in 0..5 {
            append(&|| files(directory.path(), "wal") >= 6, false).await;
            append(&|| files(directory.path(), "wal") <= 3 && files(directory.path(), "spare") > 0, true)
                .await;
        }
        let end = append(&|| true, false).await;
        drop(wal);
        assert!(files(directory.path(), "spare") <= spare::MOST);
        let (wal, recovered) = Wal::open(directory.path(), limits, LogMeter::noop()).expect("opens");
        let range = recovered.range.expect("there are records");
        assert_eq!(range.end, end);
        let read = wal.read(range.clone(), u64::MAX).await.expect("reads");
        let expected = range.map(|index| (index, Bytes::from(vec![index as u8; 100])));
        assert_eq!(read, expected.collect::<Vec<_>>());
        assert_eq!(files(directory.path(), "spare"), 0, "nobody knows whether they are wiped");
    }

    #[tokio::test]
    async fn nothing_is_written_after_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let limits = Limits { log_bytes: Some(60), ..Limits::default() };
        let (wal, _) = Wal::open(directory.path(), limits, LogMeter::noop()).expect("opens");
        let (sent, outcomes) = mpsc::channel();
        for record in [record(1), (2, Bytes::from(vec![0; 100])), record(3)] {
            let sent = sent.clone();
            wal.append(vec![record], move |result| {
                let _ = sent.send(result.is_ok());
            });
            // One group each, so that the first is not drawn into the failure.
            let outcome = outcomes.recv().expect("answered");
            assert_eq!(outcome, wal.save_metadata(Bytes::new()).await.is_ok());
        }
        drop(wal);
        let (_, recovered) = Wal::open(directory.path(), Limits::default(), LogMeter::noop()).expect("opens");
        assert_eq!(recovered.range, Some(1..2));
    }
}
