//! Parameters and session values put into a relational statement.

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::{
    Type, Value,
    error::Result,
    expr::{Expr, Function},
};

use super::{
    RelationalPlan,
    execute::Relational,
    node::{Kind, Node},
    push_down::push_down,
};
use crate::{
    bind::{Binder, rows_batch},
    expression::literal,
    parse::with_stack,
    settings::{IdSource, Settings},
};

/// Binds a relational statement.
pub(crate) fn bind_relational(
    plan: &RelationalPlan,
    parameters: &[Value],
    settings: &Settings,
    ids: &mut dyn IdSource,
) -> Result<Relational> {
    let binder = Binder::new(parameters, settings, ids, &plan.session_values).drawing_once();
    let node = with_stack(plan.node.is_deep(), || {
        let mut node = plan.node.clone();
        let mut binding = Binding { binder, places: BTreeMap::new(), bound: BTreeMap::new() };
        binding.count(&node);
        binding.node(&mut node)?;
        push_down(node, Vec::new())
    })?;
    Ok(Relational { node, context: Arc::new(settings.eval_context()) })
}

struct Binding<'a> {
    binder: Binder<'a>,
    /// In how many places the plan has each of its shared trees.
    places: BTreeMap<*const Node, usize>,
    /// The shared trees that are bound.
    bound: BTreeMap<*const Node, Arc<Node>>,
}

impl Binding<'_> {
    fn count(&mut self, node: &Node) {
        if let Kind::Shared(input) = &node.kind {
            let places = self.places.entry(Arc::as_ptr(input)).or_default();
            *places += 1;
            if *places > 1 {
                return;
            }
        }
        node.inputs().into_iter().for_each(|input| self.count(input));
    }

    fn node(&mut self, node: &mut Node) -> Result<()> {
        if let Kind::Shared(input) = &node.kind {
            let input = input.clone();
            // What stands in one place only is nothing special.
            if self.places.get(&Arc::as_ptr(&input)) == Some(&1) {
                node.kind = input.kind.clone();
                return self.node(node);
            }
            node.kind = Kind::Shared(self.shared(&input)?);
            return Ok(());
        }
        for input in node.inputs_mut() {
            self.node(input)?;
        }
        self.own_exprs(node)
    }

    /// A shared tree, the same for all of its places.
    fn shared(&mut self, input: &Arc<Node>) -> Result<Arc<Node>> {
        if let Some(bound) = self.bound.get(&Arc::as_ptr(input)) {
            return Ok(bound.clone());
        }
        let mut node = Node::clone(input);
        self.node(&mut node)?;
        let bound = Arc::new(push_down(node, Vec::new())?);
        self.bound.insert(Arc::as_ptr(input), bound.clone());
        Ok(bound)
    }

    fn own_exprs(&mut self, node: &mut Node) -> Result<()> {
        let binder = &mut self.binder;
        match &mut node.kind {
            Kind::Scan { predicate, .. } | Kind::Filter { predicate, .. } => {
                *predicate = binder.predicate(predicate)?;
            }
            Kind::Join { condition, .. } => *condition = binder.predicate(condition)?,
            Kind::Rows(rows) => {
                let types: Vec<Type> = node.fields.iter().map(|f| f.ty.clone()).collect();
                node.kind = Kind::Batch(rows_batch(binder, rows, &types)?);
            }
            Kind::Sort { limit, offset, .. } => {
                let number = |count: Option<u64>| {
                    let count = count.map(|c| i64::try_from(c).unwrap_or(i64::MAX));
                    count.map(|c| literal(Value::Int8(c), Type::Int8))
                };
                let bound: Option<Expr> = number(binder.count(limit.as_ref(), Function::LimitCount)?);
                *limit = bound;
                let bound: Option<Expr> = number(binder.count(offset.as_ref(), Function::OffsetCount)?);
                *offset = bound;
            }
            _ => {
                for expr in node.exprs_mut() {
                    *expr = binder.expr(expr)?;
                }
            }
        }
        Ok(())
    }
}
