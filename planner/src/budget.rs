//! The memory that statements hold above the scan.
//!
//! What runs above the scan sorts, groups and removes duplicates in the front end's memory. All sessions of a front end
//! draw from one budget; a statement that finds too little left fails with 53200 instead of taking the process with it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use carousel_engine::{SqlError, SqlState, error::Result};

/// How many bytes there are unless something else is said.
pub const DEFAULT_BYTES: usize = 1 << 30;

/// Memory that is shared by the statements of a front end.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    used: AtomicUsize,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        MemoryBudget::new(DEFAULT_BYTES)
    }
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> MemoryBudget {
        MemoryBudget { shared: Arc::new(Shared { limit, used: AtomicUsize::new(0) }) }
    }

    /// Bytes that are in use.
    pub fn used(&self) -> usize {
        self.shared.used.load(Ordering::Relaxed)
    }

    /// Nothing yet, to grow as needed.
    pub fn reservation(&self) -> Reservation {
        Reservation { shared: self.shared.clone(), bytes: 0 }
    }
}

/// A statement's part of a budget; given back when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Reservation {
    /// Takes more. 53200 when there is not so much left; then nothing has been taken.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        let Shared { limit, used } = self.shared.as_ref();
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|total| total <= limit)
        });
        if taken.is_err() {
            return Err(SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory")
                .with_detail(format!(
                    "A result that must be held as a whole needs more than what is left of the {limit} bytes for such results."
                ))
                .with_hint("Ask for fewer rows or groups, or raise the memory limit."));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Holds exactly so many bytes from now on. 53200 as for [`Reservation::grow`].
    pub fn resize(&mut self, bytes: usize) -> Result<()> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.shared.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
                self.bytes = bytes;
                Ok(())
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let budget = MemoryBudget::new(100);
        let (mut first, mut second) = (budget.reservation(), budget.reservation());
        assert!(first.grow(60).is_ok());
        assert_eq!(second.grow(50).map_err(|e| e.code), Err(SqlState::OUT_OF_MEMORY));
        assert_eq!(budget.used(), 60);
        assert!(first.resize(20).is_ok());
        assert!(second.resize(80).is_ok());
        assert!(first.grow(1).is_err());
        drop(second);
        assert!(first.grow(80).is_ok());
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
