//! SQL to catalog-checked plans: what to ask of the storage processes, and what runs above the scan.
//!
//! The only crate that parses SQL; it does no I/O. A statement's way through it:
//!
//! 1. [`parse()`] splits and parses text ([`Statement`]).
//! 2. [`plan()`] resolves names against the catalog, types expressions and gives a [`Plan`], which may be kept and used
//!    again with other parameters for as long as the versions of its tables are current.
//! 3. [`bind()`] puts in parameters, session values and defaults, folds constants and gives an [`Execution`]: either
//!    finished rows, or a [`Request`] - a message body with the tables and key ranges that it names - and an
//!    [`Above`] through which what comes back must be poured.
//!
//! A single-table statement is lowered straight from the syntax tree (DESIGN, decision 9).

pub mod above;
pub mod bind;
pub mod budget;
pub mod cluster;
mod comparison;
pub mod copy;
mod ddl;
mod dialect;
mod display;
mod dml;
pub mod explain;
mod expression;
mod fit;
mod functions;
mod keywords;
mod lexical;
mod literals;
mod names;
mod order;
pub mod parse;
mod parse_session;
pub mod plan;
pub mod relational;
mod rewrite;
mod select;
pub mod settings;
mod titles;
mod types;
mod unsupported;
mod values;

pub use above::{Above, Progress};
pub use bind::{Execution, Request, bind};
pub use budget::{MemoryBudget, Reservation};
pub use cluster::AlterCluster;
pub use explain::explain;
pub use parse::{Statement, parse, parsing_bytes};
pub use plan::{OutputColumn, Plan, Planned, plan};
pub use settings::{IdSource, Settings};
