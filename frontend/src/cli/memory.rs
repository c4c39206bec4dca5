//! Giving memory back to the operating system.
//!
//! mimalloc returns pages that have been free for a while, but only while something else is allocated or freed. After a
//! large load there may be nothing of the kind for a long time, so it is asked to now and then.

use std::time::Duration;

use tokio::task::JoinHandle;
// Its library has the function below.
use mimalloc as _;

unsafe extern "C" {
    /// Frees unused resources of the calling thread, and pages that have been free for long enough; all of them if
    /// `force`.
    fn mi_collect(force: bool);
}

/// A task that gives memory back, until this is dropped.
pub struct Tidying(JoinHandle<()>);

impl Tidying {
    /// Starts the task.
    pub fn start(period: Duration) -> Tidying {
        Tidying(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // SAFETY: it may be called by any thread at any time.
                unsafe { mi_collect(false) };
            }
        }))
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.0.abort();
    }
}
