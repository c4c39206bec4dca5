//! Crescando, the storage engine: versioned Arrow columns, shared scans over them, and the one meaning of an
//! expression.
//!
//! The crate knows no network, no clock and no async runtime: ordered operations in, Arrow batches out. Everything in
//! it is a function of the operations it was given, so two replicas that execute the same prefix of the m-seq hold
//! the same rows (Crescando/RB paper, sections 3.1 and 4.4).

mod admission;
pub mod aggregate;
mod ahead;
pub mod array;
mod batch_size;
mod bits;
pub mod block;
pub mod buffers;
mod column;
mod compaction;
mod content_hash;
pub mod datetime;
pub mod encoding;
pub mod error;
pub mod expr;
mod few;
mod found;
pub mod given_up;
mod grouping;
pub mod install;
pub mod interval;
pub mod ipc;
mod joining;
mod kernel;
#[doc(hidden)]
pub mod kernels;
mod key;
pub mod numeric;
pub mod operation;
pub mod order;
pub mod pack;
mod pieces;
pub mod position;
mod precut;
mod predicate_index;
pub mod preparation;
mod primary_key;
mod projection;
mod queue;
pub mod recut;
mod results;
mod rider;
mod riders;
pub mod schema;
mod segment;
pub mod shard;
mod sharing;
mod shortest;
mod simd;
pub mod statistics;
mod table;
mod template;
pub mod text;
pub mod types;
pub mod unpack;
pub mod value;
mod value_filter;
mod versions;
mod visit;

pub use error::{Report, SqlError, SqlState};
pub use few::Few;
pub use operation::Ts;
pub use predicate_index::indexable;
pub use schema::{TableId, TableSchema};
pub use shard::Shard;
pub use types::Type;
pub use value::Value;
