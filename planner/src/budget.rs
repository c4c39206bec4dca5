//! The memory that statements hold above the scan.
//!
//! What runs above the scan sorts, groups and removes duplicates in the front end's memory. All sessions of a front end
//! draw from one pool, on either planning path; a statement that finds too little left fails with 53200 instead of
//! taking the process with it.

use std::sync::Arc;

use carousel_engine::error::Result;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation};

use crate::relational::sql_error;

/// Memory that is shared by the statements of a front end; without limit by default.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudget {
    pool: Option<Arc<dyn MemoryPool>>,
}

impl MemoryBudget {
    /// What is left of a pool.
    pub(crate) fn of(pool: Arc<dyn MemoryPool>) -> MemoryBudget {
        MemoryBudget { pool: Some(pool) }
    }

    /// So many bytes.
    pub fn limited(bytes: usize) -> MemoryBudget {
        MemoryBudget::of(Arc::new(GreedyMemoryPool::new(bytes)))
    }

    /// A statement's part of it, nothing yet; given back when it is dropped.
    pub fn reservation(&self) -> Reservation {
        let register = |pool| MemoryConsumer::new("rows above the scan").register(pool);
        Reservation { held: self.pool.as_ref().map(register) }
    }
}

/// A statement's part of a budget.
#[derive(Debug)]
pub struct Reservation {
    held: Option<MemoryReservation>,
}

impl Reservation {
    /// Takes more. 53200 when there is not so much left; then nothing has been taken.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        match &mut self.held {
            Some(held) => held.try_grow(bytes).map_err(|e| sql_error(&e)),
            None => Ok(()),
        }
    }

    /// Holds exactly so many bytes from now on. 53200 as for [`Reservation::grow`].
    pub fn resize(&mut self, bytes: usize) -> Result<()> {
        match &mut self.held {
            Some(held) => held.try_resize(bytes).map_err(|e| sql_error(&e)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use carousel_engine::SqlState;

    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let budget = MemoryBudget::limited(100);
        let (mut first, mut second) = (budget.reservation(), budget.reservation());
        assert!(first.grow(60).is_ok());
        assert_eq!(second.grow(50).map_err(|e| e.code), Err(SqlState::OUT_OF_MEMORY));
        assert!(first.resize(20).is_ok());
        assert!(second.resize(80).is_ok());
        assert!(first.grow(1).is_err());
        drop(second);
        assert!(first.grow(80).is_ok());
        assert!(MemoryBudget::default().reservation().grow(usize::MAX).is_ok());
    }
}
