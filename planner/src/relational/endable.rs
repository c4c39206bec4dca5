//! Plans that can be ended while they compute.

use std::{fmt, sync::Arc, task::Poll};

use arrow::{compute::concat_batches, record_batch::RecordBatch};
use datafusion::{
    common::{
        Result as DataFusionResult, internal_err,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties, joins::CrossJoinExec,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{
    StreamExt,
    stream::{self, Fuse},
};

use super::{
    execute::BATCH_ROWS,
    strings::{BATCH_BYTES, in_small_batches},
};

/// Batches that are computed one after the other, at most.
const TOGETHER: usize = 64;

/// The same plan in small batches, whose joins let others run every so many of them. What a join makes of few rows may take for
/// ever, and what takes it from the join asks for more as long as there is more: it would never be found out that nobody waits
/// for it.
pub(super) fn endable(plan: Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let wrap = |node: Arc<dyn ExecutionPlan>| {
        let is_join = node.children().len() > 1;
        let gathers = node.downcast_ref::<CrossJoinExec>().is_some();
        let node = match in_small_batches(&node)? {
            Some(node) => node,
            None if is_join => node,
            None => return Ok(Transformed::no(node)),
        };
        Ok(Transformed::yes(Arc::new(Pausing { input: node, gathers }) as Arc<dyn ExecutionPlan>))
    };
    plan.transform_up(wrap).map(|plan| plan.data)
}

/// Gives what it is made of, and lets others run now and then. DataFusion's own way takes a part of what tokio lets a task do at
/// once for each batch that passes: above one another, some hundred of those never let a batch pass.
#[derive(Debug)]
struct Pausing {
    input: Arc<dyn ExecutionPlan>,
    /// Its batches may be of a few rows each: nobody counts what a batch takes itself, and a sort holds all of them.
    gathers: bool,
}

/// The same rows, of which as many become a batch as usual.
fn gathered(rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let of = schema.clone();
    // With the first batch of the next ones.
    let next = move |(mut rows, first): (Fuse<SendableRecordBatchStream>, Option<RecordBatch>)| {
        let schema = of.clone();
        async move {
            let (mut few, mut count, mut bytes) = (Vec::new(), 0, 0);
            let mut next = first;
            while count < BATCH_ROWS {
                let batch = match next.take() {
                    Some(batch) => batch,
                    None => match rows.next().await.transpose()? {
                        Some(batch) => batch,
                        None => break,
                    },
                };
                let more = batch.get_array_memory_size();
                if !few.is_empty() && bytes + more > BATCH_BYTES {
                    next = Some(batch);
                    break;
                }
                count += batch.num_rows();
                bytes += more;
                few.push(batch);
            }
            let gathered = match few.len() {
                0 => return Ok(None),
                1 => few.swap_remove(0),
                _ => concat_batches(&schema, &few)?,
            };
            Ok(Some((gathered, (rows, next))))
        }
    };
    let gathered = stream::try_unfold((rows.fuse(), None), next);
    Box::pin(RecordBatchStreamAdapter::new(schema, gathered))
}

impl DisplayAs for Pausing {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Pausing {
    fn name(&self) -> &str {
        "Pausing"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(Pausing { input, gathers: self.gathers })),
            _ => internal_err!("it has one child"),
        }
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let mut rows = if self.gathers { gathered(rows) } else { rows };
        let (schema, mut together) = (rows.schema(), 0);
        let rows = stream::poll_fn(move |context| {
            if together == TOGETHER {
                together = 0;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let next = rows.poll_next_unpin(context);
            together = if next.is_ready() { together + 1 } else { 0 };
            next
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{AsArray, Int32Array},
        datatypes::{DataType, Field, Int32Type, Schema},
    };
    use futures::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn few_rows_are_gathered_in_their_order() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, false)]));
        let batch = |rows: std::ops::Range<usize>| {
            let column = Int32Array::from_iter_values(rows.map(|n| n as i32));
            Ok(RecordBatch::try_new(schema.clone(), vec![Arc::new(column)]).expect("one column"))
        };
        let all = 2 * BATCH_ROWS + 50;
        let few: Vec<_> = (0..all).step_by(5).map(|n| batch(n..(n + 5).min(all))).collect();
        let rows = RecordBatchStreamAdapter::new(schema.clone(), stream::iter(few));
        let batches: Vec<RecordBatch> = gathered(Box::pin(rows)).try_collect().await.expect("rows");
        assert_eq!(batches.len(), 3);
        let found: Vec<i32> = batches
            .iter()
            .flat_map(|batch| batch.column(0).as_primitive::<Int32Type>().values().to_vec())
            .collect();
        assert_eq!(found, (0..all as i32).collect::<Vec<_>>());
        let none = RecordBatchStreamAdapter::new(schema.clone(), stream::empty());
        let batches: Vec<RecordBatch> = gathered(Box::pin(none)).try_collect().await.expect("no rows");
        assert!(batches.is_empty());
    }
}
