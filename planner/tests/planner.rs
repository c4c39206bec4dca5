//! Whole statements through parse, plan and bind.

mod above;
mod explains;
mod postgresql;
mod robustness;
mod support;
