//! What Carousel is measured against, in the same run and on the same data.

mod datafusion;
mod duckdb;
mod postgres;

pub use datafusion::DataFusion;
pub use duckdb::DuckDb;
pub use postgres::Postgres;
