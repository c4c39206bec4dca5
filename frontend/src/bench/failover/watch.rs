//! The load while processes are killed, and what its clients notice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use carousel_cluster::message::ReadIsolation;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
};

use crate::{
    bench::order::{Store, Written, table::Table},
    cli::Failure,
};

/// Writes arrive in groups this far apart.
const PACE: Duration = Duration::from_millis(1);

/// What clients have noticed.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The value that was written last under each key.
    pub written: Written,
    /// Why writes failed.
    pub failed_writes: Vec<String>,
    /// The longest that a write took.
    pub longest_write: Duration,
    /// Reads that have ended.
    pub reads: u64,
    /// Why reads failed.
    pub failed_reads: Vec<String>,
    /// The longest that a read took.
    pub longest_read: Duration,
}

/// The last acknowledged write, by when it was submitted.
#[derive(Default)]
struct Acknowledged {
    submitted: Mutex<Option<Instant>>,
    more: Notify,
}

/// A load that goes on until it is stopped.
pub struct Load {
    stopping: Arc<AtomicBool>,
    acknowledged: Arc<Acknowledged>,
    seen: Arc<Mutex<Seen>>,
    reads: Arc<AtomicU64>,
    writing: JoinHandle<Result<Written, Failure>>,
    reading: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins to write to all keys in turn.
    pub fn start(table: &Table, keys: u64, per_second: u32) -> Load {
        let (stopping, acknowledged, seen): (Arc<AtomicBool>, Arc<Acknowledged>, Arc<Mutex<Seen>>) =
            Default::default();
        let writing = write(
            table.clone(),
            keys,
            per_second.into(),
            stopping.clone(),
            acknowledged.clone(),
            seen.clone(),
        );
        let (writing, reading) = (tokio::spawn(writing), Vec::new());
        Load { stopping, acknowledged, seen, reads: Arc::default(), writing, reading }
    }

    /// Adds clients that read the whole table of so many rows again and again.
    pub fn read(&mut self, table: &Table, rows: u64, isolation: ReadIsolation, clients: u32) {
        for _ in 0..clients {
            let (table, stopping, seen) = (table.clone(), self.stopping.clone(), self.seen.clone());
            let reads = self.reads.clone();
            self.reading.push(tokio::spawn(async move {
                while !stopping.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    let outcome = match table.count(isolation).await {
                        Ok(found) if found as u64 != rows => {
                            Err(Failure::job(format!("{found} rows of {rows} were read")))
                        }
                        outcome => outcome,
                    };
                    let mut seen = seen.lock();
                    seen.reads += 1;
                    seen.longest_read = seen.longest_read.max(begin.elapsed());
                    seen.failed_reads.extend(outcome.err().map(|failure| failure.to_string()));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }

    /// Waits until every reader can have read once, and forgets what was noticed before.
    pub async fn wait_for_reads(&self) {
        while self.reads.load(Ordering::Relaxed) < self.reading.len() as u64 {
            tokio::time::sleep(PACE).await;
        }
        *self.seen.lock() = Seen::default();
    }

    /// A moment, for [`Load::first_write_after`].
    pub fn mark(&self) -> Instant {
        Instant::now()
    }

    /// Waits until a write is acknowledged that was submitted after a moment; gives the time since then.
    pub async fn first_write_after(&self, moment: Instant) -> Duration {
        loop {
            let more = self.acknowledged.more.notified();
            if self.acknowledged.submitted.lock().is_some_and(|submitted| submitted > moment) {
                return moment.elapsed();
            }
            more.await;
        }
    }

    /// Stops, waits for what is under way, and tells what was noticed.
    pub async fn stop(self) -> Result<Seen, Failure> {
        self.stopping.store(true, Ordering::Relaxed);
        let written = self.writing.await.map_err(Failure::job)??;
        for reader in self.reading {
            reader.await.map_err(Failure::job)?;
        }
        let mut seen = std::mem::take(&mut *self.seen.lock());
        seen.written = written;
        Ok(seen)
    }
}

async fn write(
    table: Table,
    keys: u64,
    per_second: f64,
    stopping: Arc<AtomicBool>,
    acknowledged: Arc<Acknowledged>,
    seen: Arc<Mutex<Seen>>,
) -> Result<Written, Failure> {
    let mut written = vec![0; keys as usize];
    let mut running = JoinSet::new();
    let mut pace = tokio::time::interval(PACE);
    let (begin, mut arrived) = (Instant::now(), 0);
    while !stopping.load(Ordering::Relaxed) {
        pace.tick().await;
        let due = (begin.elapsed().as_secs_f64() * per_second) as u64;
        for arrival in arrived..due {
            let key = arrival % keys;
            written[key as usize] += 1;
            let submitted = Instant::now();
            let pending = table.submit(key, written[key as usize]).await?;
            let (acknowledged, seen) = (acknowledged.clone(), seen.clone());
            running.spawn(async move {
                let outcome = pending.await;
                let mut seen = seen.lock();
                seen.longest_write = seen.longest_write.max(submitted.elapsed());
                match outcome {
                    Ok(()) => {
                        let mut last = acknowledged.submitted.lock();
                        *last = (*last).max(Some(submitted));
                        acknowledged.more.notify_waiters();
                    }
                    Err(failure) => seen.failed_writes.push(failure.to_string()),
                }
            });
        }
        arrived = due;
        while let Some(ended) = running.try_join_next() {
            ended.map_err(Failure::job)?;
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(Failure::job)?;
    }
    Ok(written)
}
