//! Many seeds, on all cores: each run has a thread to itself, and the threads share nothing but the next seed.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{Failure, Options, Report, run};

/// Runs a cluster from each of the seeds, on `threads` threads. `done` hears how each run has ended, in any order.
///
/// Returns the sum of the reports of the runs that went well, and the others in the order of their seeds.
pub fn run_seeds(
    seeds: Range<u64>,
    options: Options,
    threads: usize,
    done: impl Fn(u64, &Result<Report, Box<Failure>>) + Sync,
) -> (Report, Vec<Failure>) {
    let ended = Mutex::new((Report::default(), Vec::new()));
    each_seed(seeds, threads, |seed| {
        let outcome = run(seed, options);
        done(seed, &outcome);
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(report) => ended.0.add(&report),
            Err(failure) => ended.1.push(*failure),
        }
    });
    let (report, mut failures) = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_unstable_by_key(|failure: &Failure| failure.seed);
    (report, failures)
}

/// Does something for each of the seeds, on `threads` threads.
pub(crate) fn each_seed(seeds: Range<u64>, threads: usize, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            run(seed);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
}
