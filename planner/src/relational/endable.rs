//! Plans that can be ended while they compute.

use std::{fmt, sync::Arc, task::Poll};

use datafusion::{
    common::{
        Result as DataFusionResult, internal_err,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, stream};

use super::strings::in_small_batches;

/// Batches that are computed one after the other, at most.
const TOGETHER: usize = 64;

/// The same plan in small batches, whose joins let others run every so many of them. What a join makes of few rows may take for
/// ever, and what takes it from the join asks for more as long as there is more: it would never be found out that nobody waits
/// for it.
pub(super) fn endable(plan: Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let wrap = |node: Arc<dyn ExecutionPlan>| {
        let is_join = node.children().len() > 1;
        let node = match in_small_batches(&node)? {
            Some(node) => node,
            None if is_join => node,
            None => return Ok(Transformed::no(node)),
        };
        Ok(Transformed::yes(Arc::new(Pausing(node)) as Arc<dyn ExecutionPlan>))
    };
    plan.transform_up(wrap).map(|plan| plan.data)
}

/// Gives what it is made of, and lets others run now and then. DataFusion's own way takes a part of what tokio lets a task do at
/// once for each batch that passes: above one another, some hundred of those never let a batch pass.
#[derive(Debug)]
struct Pausing(Arc<dyn ExecutionPlan>);

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
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.0]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(child), true) => Ok(Arc::new(Pausing(child))),
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
        let mut rows = self.0.execute(partition, context)?;
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
