//! How a store is loaded: by clients that each wait for their last write, and by arrivals that wait for nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::cli::Failure;

/// Writes arrive in groups this far apart, where nothing waits for their end.
const PACE: Duration = Duration::from_millis(1);

/// Where small values are written under keys.
pub trait Store: Clone + Send + Sync + 'static {
    /// What is waited for after a write has been submitted.
    type Pending: Future<Output = Result<(), Failure>> + Send + 'static;

    /// Submits a write, which may have to wait for room. Writes of one key are submitted one after the other.
    fn submit(&self, key: u64, value: u64) -> impl Future<Output = Result<Self::Pending, Failure>> + Send;
}

/// What happened under a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From submission, or from when it was due, to the acknowledgement.
    pub latencies: Vec<Duration>,
    /// From the first to the last acknowledgement.
    pub elapsed: Duration,
}

impl Outcome {
    /// Acknowledged writes a second.
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// The value that was written last under each key.
pub type Written = Vec<u64>;

/// `clients` that write for so long, each the next of its own keys as soon as its last write is acknowledged. Keys are
/// the indices of `written`.
pub async fn closed(
    store: &impl Store,
    written: &mut Written,
    clients: usize,
    duration: Duration,
) -> Result<Outcome, Failure> {
    let begin = Instant::now();
    let end = begin + duration;
    let mut running = JoinSet::new();
    let clients = clients.min(written.len());
    for client in 0..clients {
        let store = store.clone();
        let mut values: Vec<u64> = written.iter().skip(client).step_by(clients).copied().collect();
        running.spawn(async move {
            let mut latencies = Vec::new();
            'writing: loop {
                for (index, value) in values.iter_mut().enumerate() {
                    let submitted = Instant::now();
                    if submitted >= end {
                        break 'writing;
                    }
                    *value += 1;
                    let key = (client + index * clients) as u64;
                    store.submit(key, *value).await?.await?;
                    latencies.push(submitted.elapsed());
                }
            }
            Ok::<_, Failure>((client, values, latencies))
        });
    }
    let mut outcome = Outcome::default();
    while let Some(ended) = running.join_next().await {
        let (client, values, latencies) = ended.map_err(Failure::job)??;
        for (index, value) in values.into_iter().enumerate() {
            written[client + index * clients] = value;
        }
        outcome.latencies.extend(latencies);
    }
    outcome.elapsed = begin.elapsed();
    Ok(outcome)
}

/// Writes that arrive at a rate for so long, whether those before them are acknowledged or not. A latency counts from
/// when the write was due.
pub async fn open(
    store: &impl Store,
    written: &mut Written,
    per_second: f64,
    duration: Duration,
) -> Result<Outcome, Failure> {
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let mut running: JoinSet<Result<(), Failure>> = JoinSet::new();
    let mut pace = tokio::time::interval(PACE);
    let begin = Instant::now();
    let total = (per_second * duration.as_secs_f64()) as u64;
    let mut arrived = 0;
    while arrived < total {
        pace.tick().await;
        let due = ((begin.elapsed().as_secs_f64() * per_second) as u64).min(total);
        for arrival in arrived..due {
            let key = (arrival % written.len() as u64) as usize;
            let since = begin + Duration::from_secs_f64((arrival + 1) as f64 / per_second);
            written[key] += 1;
            let pending = store.submit(key as u64, written[key]).await?;
            let latencies = latencies.clone();
            running.spawn(async move {
                pending.await?;
                latencies.lock().push(since.elapsed());
                Ok(())
            });
        }
        arrived = due;
        while let Some(ended) = running.try_join_next() {
            ended.map_err(Failure::job)??;
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(Failure::job)??;
    }
    let elapsed = begin.elapsed();
    let latencies = std::mem::take(&mut *latencies.lock());
    Ok(Outcome { latencies, elapsed })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A store that takes a while, and whose values of a key only grow.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<BTreeMap<u64, u64>>>);

    impl Store for Slow {
        type Pending = futures::future::BoxFuture<'static, Result<(), Failure>>;

        async fn submit(&self, key: u64, value: u64) -> Result<Self::Pending, Failure> {
            let last = self.0.lock().insert(key, value).unwrap_or(0);
            assert!(value == last + 1, "{key}: {value} after {last}");
            Ok(Box::pin(async {
                tokio::task::yield_now().await;
                Ok(())
            }))
        }
    }

    #[tokio::test]
    async fn each_write_is_counted_once_and_the_last_values_are_known() {
        let store = Slow::default();
        let mut written = vec![0; 10];
        let first = closed(&store, &mut written, 4, Duration::from_millis(20)).await.expect("written");
        let second = open(&store, &mut written, 5_000.0, Duration::from_millis(20)).await.expect("written");
        assert_eq!(second.latencies.len(), 100);
        let count = (first.latencies.len() + second.latencies.len()) as u64;
        assert_eq!(written.iter().sum::<u64>(), count);
        assert!(store.0.lock().iter().all(|(key, value)| written[*key as usize] == *value));
    }
}
