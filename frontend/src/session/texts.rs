//! Large statements: what it takes to parse one comes out of the memory that all sessions share, as few are parsed at a time as
//! there are processors, and who computes with one lets others have its thread.

use std::{sync::Arc, thread::available_parallelism};

use carousel_engine::{SqlError, SqlState};
use carousel_planner::{Reservation, Statement, parsing_bytes};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::block_in_place,
};

use super::{Result, Session};

/// A text of so many bytes is large: it may take more than a millisecond.
const LARGE_BYTES: usize = 64 << 10;

/// The statements of a text, with the room that they take if it is large.
pub(super) struct Parsed {
    pub(super) statements: Vec<Statement>,
    pub(super) memory: Option<Reservation>,
}

/// Turns to parse a large text.
pub(super) fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from)))
}

/// Computes something about so many bytes. When they are many, tasks that wait for this thread go on on another one meanwhile: what
/// it has woken last could not even be taken by others.
pub(super) fn compute<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let has_others =
        Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LARGE_BYTES && has_others { block_in_place(work) } else { work() }
}

impl Session<'_> {
    /// Parses a text.
    pub(super) async fn parse_text(&mut self, text: &str) -> Result<Parsed> {
        if text.len() < LARGE_BYTES {
            return Ok(Parsed { statements: carousel_planner::parse(text)?, memory: None });
        }
        let mut memory = self.relations.memory().reservation();
        memory.grow(compute(text.len(), || parsing_bytes(text))).map_err(|_| {
            let message = format!("out of memory for a text of {} bytes", text.len());
            SqlError::new(SqlState::OUT_OF_MEMORY, message)
                .with_hint("Send fewer rows in a statement, or use COPY.")
        })?;
        let turn = self.relations.turns.clone().acquire_owned();
        let turn = self.connection.interrupts.guard(turn).await?;
        let statements = compute(text.len(), || carousel_planner::parse(text))?;
        drop(turn);
        self.connection.interrupts.check().await?;
        // They share one text.
        memory.resize(statements.first().map_or(0, Statement::memory_bytes))?;
        Ok(Parsed { statements, memory: Some(memory) })
    }
}
