//! Reads whose answers nobody wants any more, told while the scan thread is busy.
//!
//! A cancelled read leaves at the next visit ([`Shard::cancel`](crate::Shard::cancel)); but one visit of a large segment by a
//! read whose expressions take long can be minutes, during which nobody else is served.

use std::{
    cell::RefCell,
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    error::{Result, SqlError, SqlState},
    operation::Ts,
};

/// The reads of a shard that are to end as soon as they can. Clones are of the same list.
#[derive(Clone, Debug, Default)]
pub struct GivenUp(Arc<List>);

#[derive(Debug, Default)]
struct List {
    /// As many as there are: most of the time none, which is seen without a lock.
    count: AtomicUsize,
    reads: Mutex<HashSet<Ts>>,
}

impl GivenUp {
    /// Asks for the end of a read, whose shard is also told to [cancel](crate::Shard::cancel) it, later: that takes it off the
    /// list.
    pub fn give_up(&self, ts: Ts) {
        let mut reads = self.0.reads.lock();
        reads.insert(ts);
        self.0.count.store(reads.len(), Ordering::Relaxed);
    }

    /// Takes a read off the list.
    pub(crate) fn forget(&self, ts: Ts) {
        if self.0.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut reads = self.0.reads.lock();
        reads.remove(&ts);
        self.0.count.store(reads.len(), Ordering::Relaxed);
    }

    fn has(&self, ts: Ts) -> bool {
        self.0.count.load(Ordering::Relaxed) > 0 && self.0.reads.lock().contains(&ts)
    }
}

/// Whether somebody still wants what an operation finds: always, if it is a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interest(Option<(Ts, GivenUp)>);

impl Interest {
    /// In the read at `read`, or in a write.
    pub(crate) fn of(read: Option<Ts>, given_up: &GivenUp) -> Interest {
        Interest(read.map(|ts| (ts, given_up.clone())))
    }

    /// Until what this gives is dropped, [`check_entered`] asks for this operation.
    pub(crate) fn enter(&self) -> Entered {
        Interest::enter_any([self])
    }

    /// As [`enter`](Interest::enter), for what several operations want: it is given up when all of them are.
    pub(crate) fn enter_any<'a>(interests: impl IntoIterator<Item = &'a Interest>) -> Entered {
        let reads: Option<Reads> = interests.into_iter().map(|interest| interest.0.clone()).collect();
        Entered(ENTERED.replace(reads.unwrap_or_default()))
    }
}

/// Reads that want the same; none if it is also for somebody who always wants it.
type Reads = SmallVec<[(Ts, GivenUp); 1]>;

thread_local! {
    /// The reads whose expressions this thread evaluates.
    static ENTERED: RefCell<Reads> = RefCell::default();
}

/// Expressions of an operation are being evaluated. Holds what was before.
#[must_use]
pub(crate) struct Entered(Reads);

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(std::mem::take(&mut self.0));
    }
}

/// For what knows no operation: whether somebody still wants what the thread evaluates.
///
/// # Errors
/// When nobody does (57014).
pub(crate) fn check_entered() -> Result<()> {
    ENTERED.with_borrow(|reads| match !reads.is_empty() && reads.iter().all(|(ts, list)| list.has(*ts)) {
        true => Err(SqlError::new(SqlState::QUERY_CANCELED, "the read has been given up")),
        false => Ok(()),
    })
}
