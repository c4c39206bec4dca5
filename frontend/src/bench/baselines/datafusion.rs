//! DataFusion over the same rows in memory.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow::array::RecordBatch;
use datafusion::{
    datasource::MemTable,
    physical_plan::collect,
    prelude::{SessionConfig, SessionContext},
};

use crate::{
    bench::workload::{Key, key},
    cli::Failure,
    ticket::{TABLE, arrow_schema},
};

/// A session with the Ticket table.
pub struct DataFusion {
    context: SessionContext,
}

fn failed(error: datafusion::error::DataFusionError) -> Failure {
    Failure::job(format!("DataFusion: {error}"))
}

impl DataFusion {
    /// The rows, spread evenly over `partitions` partitions, which are scanned in parallel.
    ///
    /// # Errors
    /// When DataFusion refuses them.
    pub fn new(batches: Vec<RecordBatch>, partitions: usize) -> Result<DataFusion, Failure> {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let context = SessionContext::new_with_config(config);
        let mut spread = vec![Vec::new(); partitions];
        for (index, batch) in batches.into_iter().enumerate() {
            spread[index % partitions].push(batch);
        }
        let table = MemTable::try_new(arrow_schema(), spread).map_err(failed)?;
        context.register_table(TABLE, Arc::new(table)).map_err(failed)?;
        Ok(DataFusion { context })
    }

    /// The keys of a question's rows.
    ///
    /// # Errors
    /// DataFusion's.
    pub async fn ask(&self, sql: &str) -> Result<BTreeSet<Key>, Failure> {
        Ok(keys(&self.context.sql(sql).await.map_err(failed)?.collect().await.map_err(failed)?))
    }

    /// Asks a question; gives how long it took to plan it, how long to run the plan, and how many rows there were.
    ///
    /// # Errors
    /// DataFusion's.
    pub async fn time(&self, sql: &str) -> Result<(Duration, Duration, usize), Failure> {
        let started = Instant::now();
        let frame = self.context.sql(sql).await.map_err(failed)?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.map_err(failed)?;
        let planned = started.elapsed();
        let batches = collect(plan, task).await.map_err(failed)?;
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        Ok((planned, started.elapsed() - planned, rows))
    }
}

fn keys(batches: &[RecordBatch]) -> BTreeSet<Key> {
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|row| key(batch, row))).collect()
}
