//! Whole statements through parse, plan and bind.

mod above;
mod batches;
mod explains;
mod parameters;
mod postgresql;
mod robustness;
mod support;
mod tables;
