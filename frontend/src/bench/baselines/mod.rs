//! What Carousel is measured against, in the same run and on the same data.

mod datafusion;
mod postgres;

pub use datafusion::DataFusion;
pub use postgres::Postgres;
