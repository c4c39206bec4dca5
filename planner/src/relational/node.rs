//! The algebra in which a relational statement is planned: a tree of operators over the engine's expressions.
//!
//! Columns are numbered: an operator's expressions refer to the columns of its input (of both inputs of a join, those
//! of the left one first). A column of an outer query, [`crate::names::outer_column`], occurs only until the subquery
//! is made a part of the tree that it stands in.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use carousel_engine::{
    SqlError, SqlState, TableSchema, Type,
    aggregate::AggregateCall,
    error::Result,
    expr::{Expr, walk},
    operation::{Predicate, SortKey},
};

use super::{system::SystemView, window::WindowCall};
use crate::{
    names::{outer_column, outer_level},
    rewrite::rewrite,
};

/// A column of an operator's output.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// What EXPLAIN calls it.
    pub(crate) name: String,
    pub(crate) ty: Type,
}

impl Field {
    pub(crate) fn new(name: impl Into<String>, ty: Type) -> Field {
        Field { name: name.into(), ty }
    }
}

/// An operator with its inputs.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Its output.
    pub(crate) fields: Vec<Field>,
}

/// How two inputs are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
    /// The left rows that have a partner.
    Semi,
    /// The left rows that have none.
    Anti,
    /// The left rows with one more column: whether there is a partner.
    Mark,
}

/// An aggregate of a relational statement.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Aggregate(AggregateCall),
    /// The value of the first row, NULL without one.
    Single(Expr),
}

impl Call {
    /// Its arguments; none of `count(*)`.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &Expr> {
        let (first, further) = match self {
            Call::Aggregate(call) => (call.argument.as_ref(), call.further.as_slice()),
            Call::Single(expr) => (Some(expr), &[][..]),
        };
        first.into_iter().chain(further)
    }

    /// The type of its result.
    pub(crate) fn ty(&self) -> Result<Type> {
        match self {
            Call::Aggregate(call) => call.result_type(),
            Call::Single(expr) => Ok(expr.ty()),
        }
    }
}

/// What an operator does.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Reads the visible columns of a table.
    Scan {
        table: Arc<TableSchema>,
        predicate: Predicate,
    },
    /// Reads groups of a table's rows: keys, then results. Computed where the rows are.
    Groups {
        table: Arc<TableSchema>,
        predicate: Predicate,
        keys: Vec<Expr>,
        calls: Vec<AggregateCall>,
    },
    /// Rows of expressions over nothing.
    Rows(Vec<Vec<Expr>>),
    /// Rows that are known.
    Batch(RecordBatch),
    /// What the front end knows of its cluster.
    System(SystemView),
    /// The values from the first of these bounds to the second one, the third one apart, and their numbers if there are two fields.
    Series(Vec<Expr>),
    /// What is computed once for all the places that it stands in, which are those of the same pointer. It refers to no outer
    /// query, and nothing moves into it or out of it.
    Shared(Arc<Node>),
    Filter {
        input: Box<Node>,
        predicate: Predicate,
    },
    Project {
        input: Box<Node>,
        exprs: Vec<Expr>,
    },
    Join {
        kind: JoinKind,
        left: Box<Node>,
        right: Box<Node>,
        condition: Predicate,
    },
    /// Keys, then results. Without keys there is one group, even without any row.
    Aggregate {
        input: Box<Node>,
        keys: Vec<Expr>,
        calls: Vec<Call>,
    },
    /// The input's columns, then results.
    Window {
        input: Box<Node>,
        calls: Vec<WindowCall>,
    },
    /// Without duplicates.
    Distinct {
        input: Box<Node>,
    },
    /// UNION ALL.
    Union {
        inputs: Vec<Node>,
    },
    Sort {
        input: Box<Node>,
        keys: Vec<SortKey>,
        limit: Option<Expr>,
        offset: Option<Expr>,
    },
}

impl Node {
    /// One row without columns.
    pub(crate) fn one_row() -> Node {
        Node { kind: Kind::Rows(vec![Vec::new()]), fields: Vec::new() }
    }

    /// A table.
    pub(crate) fn scan(table: &Arc<TableSchema>) -> Node {
        let fields = table.visible_columns().iter().map(|c| Field::new(&c.name, c.ty.clone())).collect();
        Node { kind: Kind::Scan { table: table.clone(), predicate: Vec::new() }, fields }
    }

    /// The rows of which every conjunct is true.
    pub(crate) fn filter(self, predicate: Predicate) -> Node {
        if predicate.is_empty() {
            return self;
        }
        Node { fields: self.fields.clone(), kind: Kind::Filter { input: Box::new(self), predicate } }
    }

    /// Expressions with the names of their columns.
    pub(crate) fn project(self, exprs: Vec<Expr>, names: impl IntoIterator<Item = String>) -> Node {
        let fields = exprs.iter().zip(names).map(|(e, name)| Field::new(name, e.ty())).collect();
        Node { kind: Kind::Project { input: Box::new(self), exprs }, fields }
    }

    /// Expressions with the names of their columns, unless they are its columns as they are: then it keeps its own names.
    pub(crate) fn project_if_needed(self, exprs: Vec<Expr>, names: impl IntoIterator<Item = String>) -> Node {
        let is_itself = exprs.len() == self.width()
            && exprs.iter().enumerate().all(|(index, expr)| *expr == self.column(index));
        if is_itself { self } else { self.project(exprs, names) }
    }

    /// The columns with these numbers.
    pub(crate) fn select(self, columns: impl IntoIterator<Item = usize>) -> Node {
        let exprs: Vec<Expr> = columns.into_iter().map(|c| self.column(c)).collect();
        let names: Vec<String> = exprs.iter().map(|e| self.name_of(e)).collect();
        self.project(exprs, names)
    }

    /// All columns and behind them more expressions.
    pub(crate) fn extend(self, more: Vec<(Expr, &str)>) -> Node {
        if more.is_empty() {
            return self;
        }
        let mut exprs: Vec<Expr> = (0..self.width()).map(|c| self.column(c)).collect();
        let mut names: Vec<String> = self.fields.iter().map(|f| f.name.clone()).collect();
        for (expr, name) in more {
            exprs.push(expr);
            names.push(name.to_owned());
        }
        self.project(exprs, names)
    }

    /// A join.
    pub(crate) fn join(self, kind: JoinKind, right: Node, condition: Predicate) -> Node {
        let mut fields = self.fields.clone();
        match kind {
            JoinKind::Semi | JoinKind::Anti => {}
            JoinKind::Mark => fields.push(Field::new("mark", Type::Bool)),
            _ => fields.extend(right.fields.iter().cloned()),
        }
        Node { kind: Kind::Join { kind, left: Box::new(self), right: Box::new(right), condition }, fields }
    }

    /// Groups.
    pub(crate) fn aggregate(self, keys: Vec<Expr>, calls: Vec<Call>) -> Result<Node> {
        let mut fields: Vec<Field> = keys.iter().map(|k| Field::new(self.name_of(k), k.ty())).collect();
        for call in &calls {
            let name = match call {
                Call::Aggregate(call) => call.function.name(),
                Call::Single(_) => "single",
            };
            fields.push(Field::new(name, call.ty()?));
        }
        Ok(Node { kind: Kind::Aggregate { input: Box::new(self), keys, calls }, fields })
    }

    /// Without duplicates.
    pub(crate) fn distinct(self) -> Node {
        Node { fields: self.fields.clone(), kind: Kind::Distinct { input: Box::new(self) } }
    }

    /// With window functions.
    pub(crate) fn window(self, calls: Vec<WindowCall>) -> Node {
        if calls.is_empty() {
            return self;
        }
        let mut fields = self.fields.clone();
        fields.extend(calls.iter().map(|c| Field::new(c.function.name(), c.ty.clone())));
        Node { kind: Kind::Window { input: Box::new(self), calls }, fields }
    }

    /// All rows of both. A union of many inputs is flat, not deep.
    pub(crate) fn union(self, other: Node) -> Node {
        let fields = self.fields.clone();
        let inputs = match self.kind {
            Kind::Union { mut inputs } => {
                inputs.push(other);
                inputs
            }
            kind => vec![Node { kind, fields: self.fields }, other],
        };
        Node { kind: Kind::Union { inputs }, fields }
    }

    /// The rows of a UNION, equal ones as often as it happens to have them. Other rows that are made distinct are made so where they
    /// are read.
    pub(crate) fn with_duplicates(self) -> Node {
        match self.kind {
            Kind::Distinct { input } if matches!(input.kind, Kind::Union { .. }) => *input,
            kind => Node { kind, fields: self.fields },
        }
    }

    /// In an order, and only some of the rows.
    pub(crate) fn sort(self, keys: Vec<SortKey>, limit: Option<Expr>, offset: Option<Expr>) -> Node {
        if keys.is_empty() && limit.is_none() && offset.is_none() {
            return self;
        }
        Node { fields: self.fields.clone(), kind: Kind::Sort { input: Box::new(self), keys, limit, offset } }
    }

    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        self.fields.len()
    }

    /// Number of operators.
    fn size(&self) -> usize {
        1 + self.inputs().into_iter().map(Node::size).sum::<usize>()
    }

    /// Whether it may be too deep for the stack of a thread: see [`crate::parse::with_stack`].
    pub(crate) fn is_deep(&self) -> bool {
        self.size() > 64
    }

    /// A reference to an output column.
    pub(crate) fn column(&self, index: usize) -> Expr {
        Expr::column(index, self.fields[index].ty.clone())
    }

    fn name_of(&self, expr: &Expr) -> String {
        match expr {
            Expr::Column { index, .. } => self.fields.get(*index).map_or("?column?", |f| &f.name).to_owned(),
            _ => "?column?".to_owned(),
        }
    }

    /// The inputs.
    pub(crate) fn inputs(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Scan { .. }
            | Kind::Groups { .. }
            | Kind::Rows(_)
            | Kind::Batch(_)
            | Kind::System(_)
            | Kind::Series(_) => Vec::new(),
            Kind::Shared(input) => vec![input],
            Kind::Filter { input, .. }
            | Kind::Project { input, .. }
            | Kind::Aggregate { input, .. }
            | Kind::Window { input, .. }
            | Kind::Distinct { input }
            | Kind::Sort { input, .. } => vec![input],
            Kind::Join { left, right, .. } => vec![left, right],
            Kind::Union { inputs } => inputs.iter().collect(),
        }
    }

    /// The inputs, to be changed: not what is shared, which would be another one afterwards.
    pub(crate) fn inputs_mut(&mut self) -> Vec<&mut Node> {
        match &mut self.kind {
            Kind::Scan { .. }
            | Kind::Groups { .. }
            | Kind::Rows(_)
            | Kind::Batch(_)
            | Kind::System(_)
            | Kind::Series(_)
            | Kind::Shared(_) => Vec::new(),
            Kind::Filter { input, .. }
            | Kind::Project { input, .. }
            | Kind::Aggregate { input, .. }
            | Kind::Window { input, .. }
            | Kind::Distinct { input }
            | Kind::Sort { input, .. } => vec![input],
            Kind::Join { left, right, .. } => vec![left, right],
            Kind::Union { inputs } => inputs.iter_mut().collect(),
        }
    }

    /// The operator's own expressions.
    pub(crate) fn exprs_mut(&mut self) -> Vec<&mut Expr> {
        match &mut self.kind {
            Kind::Batch(_)
            | Kind::System(_)
            | Kind::Shared(_)
            | Kind::Groups { .. }
            | Kind::Distinct { .. }
            | Kind::Union { .. } => Vec::new(),
            Kind::Scan { predicate, .. } | Kind::Filter { predicate, .. } => predicate.iter_mut().collect(),
            Kind::Join { condition, .. } => condition.iter_mut().collect(),
            Kind::Rows(rows) => rows.iter_mut().flatten().collect(),
            Kind::Series(bounds) => bounds.iter_mut().collect(),
            Kind::Project { exprs, .. } => exprs.iter_mut().collect(),
            Kind::Aggregate { keys, calls, .. } => {
                let mut all: Vec<&mut Expr> = keys.iter_mut().collect();
                for call in calls {
                    match call {
                        Call::Aggregate(call) => {
                            all.extend(
                                call.argument
                                    .iter_mut()
                                    .chain(&mut call.further)
                                    .chain(call.filter.iter_mut()),
                            );
                        }
                        Call::Single(expr) => all.push(expr),
                    }
                }
                all
            }
            Kind::Window { calls, .. } => calls.iter_mut().flat_map(WindowCall::exprs_mut).collect(),
            Kind::Sort { limit, offset, .. } => limit.iter_mut().chain(offset.iter_mut()).collect(),
        }
    }

    /// Rewrites every expression of the tree.
    pub(crate) fn map_exprs(&mut self, map: &mut dyn FnMut(&Expr) -> Result<Expr>) -> Result<()> {
        for expr in self.exprs_mut() {
            *expr = map(expr)?;
        }
        for input in self.inputs_mut() {
            input.map_exprs(map)?;
        }
        Ok(())
    }

    /// Columns of the query around this one that the tree refers to: by index, with their types.
    pub(crate) fn outer_columns(&self) -> Vec<(usize, Type)> {
        let all = self.columns_further_out().into_iter();
        all.filter(|(column, _)| outer_level(*column).0 == 0).collect()
    }

    /// Columns of the query around this one, and of those around that one, that the tree refers to: as they are numbered there.
    pub(crate) fn columns_further_out(&self) -> Vec<(usize, Type)> {
        let mut found: Vec<(usize, Type)> = Vec::new();
        // The tree is only looked at; a copy keeps one way to its expressions.
        let mut tree = self.clone();
        let collected = tree.map_exprs(&mut |expr| {
            walk(expr, &mut |part| {
                if let Expr::Column { index, ty } = part
                    && let (level @ 1.., index) = outer_level(*index)
                    && let column = outer_column(level - 1, index)
                    && found.iter().all(|(known, _)| *known != column)
                {
                    found.push((column, ty.clone()));
                }
            });
            Ok(expr.clone())
        });
        debug_assert!(collected.is_ok(), "nothing fails");
        found
    }

    /// The tree as seen from `by` levels further in: columns of outer queries are further out.
    pub(crate) fn deeper(mut self, by: usize) -> Result<Node> {
        if by > 0 {
            self.map_exprs(&mut |expr| {
                rewrite(expr, &mut |part| {
                    Ok(match part {
                        Expr::Column { index, ty } if outer_level(*index).0 > 0 => {
                            let (level, index) = outer_level(*index);
                            Some(Expr::column(outer_column(level + by, index), ty.clone()))
                        }
                        _ => None,
                    })
                })
            })?;
        }
        Ok(self)
    }
}

/// Most operators of a statement. Subqueries and common table expressions may each be needed in several places, so that
/// a short text can stand for a very large tree.
const MAX_OPERATORS: usize = 4096;

/// Refuses a tree that is too large (54001).
pub(crate) fn check_size(node: &Node) -> Result<()> {
    if node.size() <= MAX_OPERATORS {
        return Ok(());
    }
    Err(SqlError::new(SqlState::TOO_COMPLEX, "the statement is too complex")
        .with_detail(format!("Its plan has more than {MAX_OPERATORS} operators.")))
}

/// Whether a tree refers to a column of any query around.
pub(crate) fn has_outer_columns(node: &Node) -> bool {
    let mut found = false;
    let mut tree = node.clone();
    let looked_at = tree.map_exprs(&mut |expr| {
        found |= is_correlated(expr);
        Ok(expr.clone())
    });
    debug_assert!(looked_at.is_ok(), "nothing fails");
    found
}

/// Whether an expression refers to a column of the query around.
pub(crate) fn is_correlated(expr: &Expr) -> bool {
    let mut found = false;
    walk(expr, &mut |part| {
        found |= matches!(part, Expr::Column { index, .. } if outer_level(*index).0 > 0);
    });
    found
}
