//! What DataFusion's rules over physical plans must not do.
//!
//! Conditions are not pushed down: [`push_down`](super::push_down) has done so where it may, and DataFusion's own rule takes
//! them below an aggregation that gives a row for no rows, and tells columns of a join apart by name only. Fences stop what
//! else goes too far: to sort below an offset, which then leaves out other rows, or below a UNION of equal columns; to take for
//! constant, behind an outer join, what was constant in the side that it fills with NULL; and to take for sorted, behind any
//! join, what is constant in a side, as that is forgotten when the join leaves out what it equals.

use std::{fmt, sync::Arc};

use datafusion::{
    common::{
        JoinType, Result as DataFusionResult,
        config::ConfigOptions,
        internal_err,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::{EquivalenceProperties, LexOrdering, OrderingRequirements},
    physical_optimizer::{PhysicalOptimizerRule, optimizer::PhysicalOptimizer},
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties,
        execution_plan::{CardinalityEffect, replace_children_if_necessary},
        joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec},
        limit::GlobalLimitExec,
        union::UnionExec,
    },
};

/// The rules that physical plans go through.
pub(super) fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = Vec::new();
    for rule in PhysicalOptimizer::new().rules {
        match rule.name() {
            "FilterPushdown" | "FilterPushdown(Post)" => {}
            // What sorts, and looks what need not be sorted.
            "EnsureRequirements" => {
                rules.push(Arc::new(Fences::Raise) as Arc<dyn PhysicalOptimizerRule + Send + Sync>);
                rules.push(rule);
                rules.push(Arc::new(Fences::Lower));
            }
            _ => rules.push(rule),
        }
    }
    rules
}

/// The rules that raise fences, and take those away that are not needed any more.
#[derive(Debug)]
enum Fences {
    Raise,
    Lower,
}

impl PhysicalOptimizerRule for Fences {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let done = match self {
            Fences::Raise => plan.transform_up(raise),
            Fences::Lower => plan.transform_up(lower),
        };
        done.map(|plan| plan.data)
    }

    fn name(&self) -> &str {
        match self {
            Fences::Raise => "RaiseFences",
            Fences::Lower => "LowerFences",
        }
    }

    fn schema_check(&self) -> bool {
        true
    }
}

type Rewritten = DataFusionResult<Transformed<Arc<dyn ExecutionPlan>>>;

fn raise(plan: Arc<dyn ExecutionPlan>) -> Rewritten {
    let is_offset = plan.downcast_ref::<GlobalLimitExec>().is_some_and(|limit| limit.skip() > 0);
    if is_offset || plan.downcast_ref::<UnionExec>().is_some() {
        let plan = if is_offset { with_order(plan)? } else { plan };
        return Ok(Transformed::yes(Arc::new(Fence::new(plan, Keeps::Order(None)))));
    }
    let (left, right) = match join_type(&plan) {
        Some(JoinType::Left) => (false, true),
        Some(JoinType::Right) => (true, false),
        Some(JoinType::Full) => (true, true),
        Some(_) => (false, false),
        None => return Ok(Transformed::no(plan)),
    };
    let mut fenced = false;
    let mut children = Vec::new();
    for (child, is_filled) in plan.children().into_iter().zip([left, right]) {
        let known = child.equivalence_properties();
        let knows_too_much =
            is_filled && known.eq_group().iter().next().is_some() || !known.constants().is_empty();
        fenced |= knows_too_much;
        children.push(match knows_too_much {
            true => Arc::new(Fence::new(child.clone(), Keeps::Rows)),
            false => child.clone(),
        });
    }
    match fenced {
        true => replace_children_if_necessary(plan, children).map(Transformed::yes),
        false => Ok(Transformed::no(plan)),
    }
}

/// The rows that an offset leaves out are the first in the order below it, whether somebody asks for that above or not; what it is
/// ordered by may have been left out in between.
fn with_order(plan: Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let child = match (plan.children().as_slice(), plan.maintains_input_order().as_slice()) {
        ([child], [true]) => Arc::clone(child),
        _ => return Ok(plan),
    };
    let child = match child.output_ordering().cloned() {
        Some(order) => Arc::new(Fence::new(child, Keeps::Order(Some(order)))),
        None => with_order(child)?,
    };
    replace_children_if_necessary(plan, vec![child])
}

fn join_type(plan: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    let hash = plan.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
    let loops = || plan.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    let merge = || plan.downcast_ref::<SortMergeJoinExec>().map(|join| join.join_type());
    hash.or_else(loops).or_else(merge)
}

fn lower(plan: Arc<dyn ExecutionPlan>) -> Rewritten {
    match plan.downcast_ref::<Fence>() {
        Some(Fence { input, keeps: Keeps::Order(_), .. }) => Ok(Transformed::yes(input.clone())),
        _ => Ok(Transformed::no(plan)),
    }
}

/// What is known above a fence of the rows below it.
#[derive(Clone, Debug)]
enum Keeps {
    /// All, but nothing is sorted below it that is not; and what is sorted so stays so.
    Order(Option<LexOrdering>),
    /// In which order they are, but not which columns are constant or equal. What is above is not sorted below it instead, as no
    /// fence says that it maintains an order: what is constant there would be taken for sorted.
    Rows,
}

/// Gives the rows of its input.
#[derive(Debug)]
struct Fence {
    input: Arc<dyn ExecutionPlan>,
    keeps: Keeps,
    properties: Arc<PlanProperties>,
}

impl Fence {
    fn new(input: Arc<dyn ExecutionPlan>, keeps: Keeps) -> Fence {
        let properties = match &keeps {
            Keeps::Order(_) => input.properties().clone(),
            Keeps::Rows => Arc::new(PlanProperties::new(
                EquivalenceProperties::new_with_orderings(input.schema(), input.output_ordering().cloned()),
                input.output_partitioning().clone(),
                input.pipeline_behavior(),
                input.boundedness(),
            )),
        };
        Fence { input, keeps, properties }
    }
}

impl DisplayAs for Fence {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Fence {
    fn name(&self) -> &str {
        "Fence"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![match &self.keeps {
            Keeps::Order(order) => order.clone().map(OrderingRequirements::from),
            Keeps::Rows => None,
        }]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(child), true) => Ok(Arc::new(Fence::new(child, self.keeps.clone()))),
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
        self.input.execute(partition, context)
    }
}
