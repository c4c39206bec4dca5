//! The second planning path (DESIGN, decisions 8 and 9): everything that is not a statement about one table is a
//! DataFusion plan whose table scans are Rubberband reads, all at one `Ts`.
//!
//! 1. `query`, `from`, `subquery` and `window` resolve the statement as PostgreSQL does into a tree of
//!    operators over the engine's expressions (`node`). Subqueries become joins there.
//! 2. `bind` puts in parameters; `push_down` moves conjuncts towards the tables, so that each read asks for as few
//!    rows as the direct path would. What is needed in several places is copied, unless it would give other rows each
//!    time (`repeatable`): that is computed once (`shared`).
//! 3. `lower` makes the DataFusion plan. An expression is one function call to DataFusion (`function`), evaluated
//!    by the engine; only column references are native, and equality and order of types whose Arrow form has
//!    PostgreSQL's. For the others both are native on keys. Aggregates are the engine's, too (`aggregate`).
//! 4. `scan` is what DataFusion sees of a table; the rows come from a [`Reader`] that the front end brings. `series` makes
//!    rows of nothing. `execute` runs the plan within bounded memory, `endable` lets it be ended, and `strings` keeps batches of
//!    wide rows small.
//!
//! DataFusion chooses how to join, sort and aggregate; what an expression means, it never decides.

mod aggregate;
mod bind;
mod endable;
mod execute;
mod fence;
mod from;
mod function;
mod lower;
mod node;
mod push_down;
mod query;
mod repeatable;
mod scan;
mod series;
mod shared;
mod strings;
mod subquery;
mod system;
mod window;

use std::{ops::ControlFlow, sync::Arc};

use carousel_cluster::catalog::Catalog;
use carousel_engine::{SqlError, TableId, Ts, error::Result};
use sqlparser::ast::{self, Visit, Visitor};

use crate::{
    expression::TermKind,
    names::parts,
    plan::{OutputColumn, SessionValue},
    select::Planner,
};

pub(crate) use self::{
    bind::bind_relational,
    execute::{explain_relational, sql_error},
};
pub use self::{
    execute::{Relational, RowStream, Runtime},
    scan::{Answer, ReadRequest, Reader},
    system::SystemView,
};
use self::{node::Node, subquery::Subquery};

/// A planned relational statement.
#[derive(Clone, Debug)]
pub struct RelationalPlan {
    pub(crate) node: Node,
    /// Session values that the expressions refer to.
    pub(crate) session_values: Vec<SessionValue>,
}

/// A query with its output columns.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) node: Node,
    pub(crate) columns: Vec<OutputColumn>,
    /// The columns that are literals without a type.
    pub(crate) unknown: Vec<Option<TermKind>>,
}

/// A common table expression that may be referred to.
#[derive(Clone, Debug)]
pub(crate) struct Cte {
    pub(crate) name: String,
    pub(crate) query: Query,
    /// How many queries were around it.
    pub(crate) depth: usize,
    /// Why it may stand in one place only, and whether it does by now.
    pub(crate) once: Option<SqlError>,
    pub(crate) is_used: bool,
}

/// What the expressions of a relational statement need besides their scope.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) catalog: Arc<Catalog>,
    /// The tables that subqueries name.
    pub(crate) tables: Vec<(TableId, Ts)>,
    pub(crate) ctes: Vec<Cte>,
    /// How many queries are around the one that is being resolved.
    pub(crate) depth: usize,
    /// Subqueries of expressions; they stand there as columns from [`crate::expression::SUBQUERIES`] on.
    pub(crate) subqueries: Vec<Subquery>,
    /// Window functions; they stand in expressions as columns from [`crate::expression::WINDOWS`] on.
    pub(crate) windows: Vec<window::WindowCall>,
    /// The windows of WINDOW.
    pub(crate) named_windows: Vec<(String, ast::WindowSpec)>,
}

/// Whether a query is for this path: whether it is about more than one table or has subqueries, common table
/// expressions, set operations or window functions.
pub(crate) fn is_relational(query: &ast::Query) -> bool {
    struct Search;
    impl Visitor for Search {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            match expr {
                ast::Expr::Subquery(_) | ast::Expr::InSubquery { .. } | ast::Expr::Exists { .. } => {
                    ControlFlow::Break(())
                }
                ast::Expr::Function(function) if function.over.is_some() => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    let plain_table = |from: &ast::TableWithJoins| {
        from.joins.is_empty()
            && !matches!(&from.relation, ast::TableFactor::Table { name, .. } if system_view(name).is_some())
            && !matches!(
                from.relation,
                ast::TableFactor::Derived { .. }
                    | ast::TableFactor::NestedJoin { .. }
                    | ast::TableFactor::Function { .. }
                    | ast::TableFactor::Table { args: Some(_), .. }
            )
    };
    if query.with.is_some() {
        return true;
    }
    match query.body.as_ref() {
        ast::SetExpr::Select(select) => {
            let grouping_sets = match &select.group_by {
                ast::GroupByExpr::All(_) => false,
                ast::GroupByExpr::Expressions(keys, modifiers) => {
                    modifiers.iter().any(|m| !matches!(m, ast::GroupByWithModifier::Totals))
                        || keys.iter().any(query::is_grouping_set)
                }
            };
            select.from.len() > 1
                || select.from.iter().any(|from| !plain_table(from))
                || !select.named_window.is_empty()
                || grouping_sets
                || query.visit(&mut Search).is_break()
        }
        ast::SetExpr::SetOperation { .. } => true,
        ast::SetExpr::Query(inner) => {
            query.order_by.is_some()
                || query.limit_clause.is_some()
                || query.fetch.is_some()
                || is_relational(inner)
        }
        ast::SetExpr::Values(_) => query.visit(&mut Search).is_break(),
        _ => false,
    }
}

/// The name of a table in the schema of the system views.
pub(crate) fn system_view(name: &ast::ObjectName) -> Option<String> {
    match parts(name).ok()?.as_slice() {
        [schema, view] if schema == system::SCHEMA => Some(view.clone()),
        _ => None,
    }
}

impl Planner<'_> {
    /// Plans a statement of this path.
    pub(crate) fn relational(&mut self, query: &ast::Query) -> Result<(RelationalPlan, Vec<OutputColumn>)> {
        self.shared.relational = Some(Environment {
            catalog: Arc::new(self.catalog.clone()),
            tables: Default::default(),
            ctes: Vec::new(),
            depth: 0,
            subqueries: Vec::new(),
            windows: Vec::new(),
            named_windows: Vec::new(),
        });
        let planned = self.relational_query(query, None);
        let relational = self.shared.relational.take();
        for table in relational.into_iter().flat_map(|r| r.tables) {
            if !self.tables.contains(&table) {
                self.tables.push(table);
            }
        }
        let Query { node, columns, unknown: _ } = planned?;
        let session_values = self.shared.session_values.clone();
        Ok((RelationalPlan { node, session_values }, columns))
    }
}
