//! Crescando, the storage engine: versioned Arrow columns, shared scans over them, and the one meaning of an
//! expression.
//!
//! The crate knows no network, no clock and no async runtime: ordered operations in, Arrow batches out. Everything in
//! it is a function of the operations it was given, so two replicas that execute the same prefix of the m-seq hold
//! the same rows (Crescando/RB paper, sections 3.1 and 4.4).

pub mod aggregate;
pub mod array;
pub mod datetime;
pub mod error;
pub mod expr;
pub mod interval;
pub mod ipc;
pub mod numeric;
pub mod operation;
pub mod position;
pub mod schema;
pub mod text;
pub mod types;
pub mod value;

pub use error::{SqlError, SqlState};
pub use operation::Ts;
pub use schema::{TableId, TableSchema};
pub use types::Type;
pub use value::Value;
