//! Storage processes: they hold partitions of the data and execute operations on them (Crescando/RB paper, sections
//! 3.1 and 6).
//!
//! [`core`] is the process as a pure state machine, [`ballot`] its votes, [`basic`] its basic reads, [`migration`] what
//! it does about keyspace messages (the core drives it), `node` all that is said to others. [`Storage`] is the shell
//! around them: a task that owns the core and the network endpoint, scan threads with a shard each, a thread for staged
//! payloads and one for checkpoints.

pub mod ballot;
pub mod basic;
pub(crate) mod checkpointer;
pub mod core;
pub(crate) mod disk;
mod handover;
pub mod migration;
#[cfg(test)]
mod moving_tests;
pub(crate) mod node;
pub(crate) mod payloads;
mod process;
pub(crate) mod scan;
pub(crate) mod submitter;
#[cfg(test)]
pub(crate) mod tests;

pub use self::process::{Progress, RUNNING, Storage, StorageError, StorageHandle, StorageOptions};
