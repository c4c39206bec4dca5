//! What runs above the scan, in the session's process: merging groups, HAVING, DISTINCT, ORDER BY, LIMIT, projection.

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use carousel_engine::{SqlError, aggregate::Group, error::Result};

/// What runs above the scan, before parameters are known.
#[derive(Clone, Debug)]
pub struct AbovePlan {}

/// What runs above the scan. Parts of the answer go in as they arrive, rows of the result come out as early as they are
/// known. For a write it passes RETURNING rows through, in the statement's order.
///
/// When a message turns out to have had no effect and is submitted again, start from a fresh one ([`Above::reset`]).
#[derive(Debug)]
pub struct Above {
    schema: SchemaRef,
}

/// What the pipeline has to say after it was given something.
#[derive(Debug)]
pub struct Progress {
    /// Rows of the result.
    pub output: Option<RecordBatch>,
    /// Nothing that is still to come can change the result: stop asking.
    pub done: bool,
}

impl Above {
    /// Arrow schema of the batches that come out: the output columns' names and Arrow types.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Whether rows may come out before [`Above::finish`].
    pub fn is_streaming(&self) -> bool {
        false
    }

    /// Takes rows of an answer.
    pub fn rows(&mut self, batch: RecordBatch) -> Result<Progress> {
        let _ = batch;
        Err(SqlError::unsupported("this query"))
    }

    /// Takes groups of an answer.
    pub fn groups(&mut self, groups: Vec<Group>) -> Result<()> {
        let _ = groups;
        Err(SqlError::unsupported("this query"))
    }

    /// Everything has arrived: the rest of the result.
    pub fn finish(&mut self) -> Result<Vec<RecordBatch>> {
        Err(SqlError::unsupported("this query"))
    }

    /// Forgets everything that was poured in.
    pub fn reset(&mut self) {}
}
