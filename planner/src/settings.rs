//! What a statement may depend on besides the database: resolved before a message is submitted (DESIGN, decision 2).

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::expr::EvalContext;

use crate::budget::MemoryBudget;

/// What `version()` answers; drivers insist on the beginning.
pub const VERSION: &str = concat!("PostgreSQL 15.0 (Carousel ", env!("CARGO_PKG_VERSION"), ")");

/// The session's values that expressions may ask for.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Session time zone as `SHOW timezone` prints it: an IANA name or a POSIX zone such as `XYZ5XYT`, which a
    /// fixed offset is too: `<+02>-02`.
    pub time_zone: String,
    /// Role name.
    pub user: Arc<str>,
    /// Database name.
    pub database: Arc<str>,
    /// Microseconds since 1970-01-01 UTC at the start of the transaction: `now()`.
    pub transaction_timestamp: i64,
    /// Microseconds since 1970-01-01 UTC when the statement arrived.
    pub statement_timestamp: i64,
    /// `pg_backend_pid()`
    pub backend_pid: i32,
    /// Settings as `SHOW` prints them, by lower-case name: `current_setting(name)`.
    pub variables: Arc<BTreeMap<String, String>>,
    /// The memory for results that must be held as a whole.
    pub memory: MemoryBudget,
}

impl Settings {
    /// What the engine's evaluators need of them.
    pub fn eval_context(&self) -> EvalContext {
        EvalContext { time_zone: self.time_zone.as_str().into(), now: self.transaction_timestamp }
    }
}

/// Where values come from that must be new at every use. Asked before a message is submitted, never by a replica.
pub trait IdSource {
    /// An identifier for a row of a table without a primary key: unique for ever in the database.
    fn row_id(&mut self) -> i64;
    /// A random (version 4) UUID.
    fn uuid(&mut self) -> [u8; 16];
    /// A random number, at least 0 and below 1.
    fn random(&mut self) -> f64;
}
