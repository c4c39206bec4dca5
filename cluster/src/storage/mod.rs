//! Storage processes: they hold partitions of the data and execute operations on them.

pub mod ballot;
pub mod core;
