//! Subqueries in expressions, as joins.
//!
//! A subquery stands in an expression as a column of its own ([`SUBQUERIES`]) until the expression is about to be
//! computed over some tree; then [`Planner::attach`] joins the subquery to that tree. One that refers to columns of the
//! tree is first made independent of it: it is evaluated for all the combinations of values that these columns have at
//! once, by carrying them through it as additional columns, and the join is on them (Neumann and Kemper, *Unnesting
//! arbitrary queries*). Where the subquery's own conjuncts say that such a column equals one of its own expressions,
//! that expression takes the column's place and the tree need not be read twice.

use std::sync::Arc;

use carousel_engine::{
    SqlError, SqlState, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, AggregateState},
    error::Result,
    expr::{CastKind, CompareOp, Expr, Function, columns, walk},
};
use sqlparser::ast;

use super::{
    Query,
    node::{Call, JoinKind, Kind, Node, check_size},
    query::{Translation, row_number},
    repeatable::share,
    window::OrderKey,
};
use crate::{
    bind::checked_count,
    expression::{Resolver, SUBQUERIES, Term, literal},
    names::{at, outer_column, outer_level},
    rewrite::rewrite,
    select::Planner,
};

/// What is asked of a subquery.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    /// The value of its only row.
    Scalar,
    /// Whether it has rows.
    Exists,
    /// Whether these operands equal one of its rows.
    In(Vec<Expr>),
    /// Whether this operand compares so with one of its rows.
    Any(CompareOp, Expr),
}

/// A subquery of an expression.
#[derive(Clone, Debug)]
pub(crate) struct Subquery {
    pub(crate) question: Question,
    pub(crate) node: Node,
}

/// Whether a subquery stands in an expression.
pub(crate) fn has_subquery(expr: &Expr) -> bool {
    !places(std::slice::from_ref(expr)).is_empty()
}

/// The subqueries that stand in expressions.
fn places(exprs: &[Expr]) -> Vec<usize> {
    let mut found = Vec::new();
    for expr in exprs {
        walk(expr, &mut |part| {
            if let Some(place) = place(part)
                && !found.contains(&place)
            {
                found.push(place);
            }
        });
    }
    found
}

fn place(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Column { index, .. } if *index >= SUBQUERIES && outer_level(*index).0 == 0 => {
            Some(index - SUBQUERIES)
        }
        _ => None,
    }
}

impl Resolver<'_> {
    fn plan_subquery(&mut self, query: &ast::Query, position: Option<u32>) -> Result<Query> {
        let Some(relational) = &mut self.shared.relational else {
            return Err(at(SqlError::unsupported("a subquery"), position));
        };
        relational.depth += 1;
        let catalog = relational.catalog.clone();
        let mut planner = Planner {
            source: self.source,
            catalog: &catalog,
            settings: self.settings,
            shared: std::mem::take(self.shared),
            tables: Default::default(),
        };
        let planned = planner.relational_query(query, Some(Arc::new(self.scope.clone())));
        let Planner { shared, tables, .. } = planner;
        *self.shared = shared;
        if let Some(relational) = &mut self.shared.relational {
            relational.depth -= 1;
            for table in tables {
                if !relational.tables.contains(&table) {
                    relational.tables.push(table);
                }
            }
        }
        let planned = planned?;
        // Of an outer query it refers to these columns; if that one groups its rows, they must be grouped, too.
        for (index, _) in planned.node.outer_columns() {
            self.references.push((index, position));
        }
        Ok(planned)
    }

    fn subquery(&mut self, question: Question, node: Node, ty: Type, position: Option<u32>) -> Result<Term> {
        let Some(relational) = &mut self.shared.relational else {
            return Err(SqlError::internal("a subquery outside of a relational statement"));
        };
        relational.subqueries.push(Subquery { question, node });
        let place = relational.subqueries.len() - 1;
        Ok(Term::known(Expr::column(SUBQUERIES + place, ty), position))
    }

    /// `(SELECT …)`
    pub(crate) fn scalar_subquery(&mut self, query: &ast::Query, position: Option<u32>) -> Result<Term> {
        let planned = self.plan_subquery(query, position)?;
        let [column] = planned.columns.as_slice() else {
            let error = SqlError::new(SqlState::SYNTAX_ERROR, "subquery must return only one column");
            return Err(at(error, self.source.operator_before(ast::Spanned::span(query), "(").or(position)));
        };
        let ty = column.ty.clone();
        self.subquery(Question::Scalar, planned.node, ty, position)
    }

    /// `[NOT] EXISTS (SELECT …)`
    pub(crate) fn exists(
        &mut self,
        query: &ast::Query,
        negated: bool,
        position: Option<u32>,
    ) -> Result<Term> {
        let planned = self.plan_subquery(query, position)?;
        let term = self.subquery(Question::Exists, planned.node, Type::Bool, position)?;
        self.negate_if(negated, term)
    }

    /// `x [NOT] IN (SELECT …)`, `x = ANY (SELECT …)`
    pub(crate) fn in_subquery(
        &mut self,
        operand: &ast::Expr,
        query: &ast::Query,
        negated: bool,
        position: Option<u32>,
    ) -> Result<Term> {
        let operator = self.source.operator_after(ast::Spanned::span(operand), "in").or(position);
        let mut operand = operand;
        while let ast::Expr::Nested(inner) = operand {
            operand = inner;
        }
        let operands: Vec<&ast::Expr> = match operand {
            ast::Expr::Tuple(members) => members.iter().collect(),
            one => vec![one],
        };
        let terms = operands.into_iter().map(|o| self.term(o)).collect::<Result<Vec<_>>>()?;
        let planned = self.plan_subquery(query, position)?;
        let (wanted, there) = (terms.len(), planned.columns.len());
        if wanted != there {
            let what = if there < wanted { "few" } else { "many" };
            let message = format!("subquery has too {what} columns");
            return Err(at(SqlError::new(SqlState::SYNTAX_ERROR, message), operator));
        }
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for (index, term) in terms.into_iter().enumerate() {
            let column = Term::known(planned.node.column(index), position);
            let symbol = if negated { "<>" } else { "=" };
            let (l, r) = self.same_type(symbol, term, column, operator)?;
            mine.push(l);
            theirs.push(r);
        }
        let names = planned.columns.iter().map(|c| c.name.clone());
        let node = planned.node.project(theirs, names);
        let term = self.subquery(Question::In(mine), node, Type::Bool, position)?;
        self.negate_if(negated, term)
    }

    /// `x < ANY (SELECT …)`, and, negated twice, `x >= ALL (SELECT …)`.
    pub(crate) fn quantified(
        &mut self,
        operand: &ast::Expr,
        op: &ast::BinaryOperator,
        query: &ast::Query,
        all: bool,
        position: Option<u32>,
    ) -> Result<Term> {
        use ast::BinaryOperator as B;
        let (symbol, op) = match op {
            B::Eq => ("=", CompareOp::Eq),
            B::NotEq => ("<>", CompareOp::Ne),
            B::Lt => ("<", CompareOp::Lt),
            B::LtEq => ("<=", CompareOp::Le),
            B::Gt => (">", CompareOp::Gt),
            B::GtEq => (">=", CompareOp::Ge),
            other => {
                let what = format!("operator {other} with ANY or ALL");
                return Err(at(SqlError::unsupported(what), position));
            }
        };
        if (all && op == CompareOp::Ne) || (!all && op == CompareOp::Eq) {
            return self.in_subquery(operand, query, all, position);
        }
        let operator = self.source.operator_after(ast::Spanned::span(operand), symbol).or(position);
        let term = self.term(operand)?;
        let planned = self.plan_subquery(query, position)?;
        if planned.columns.len() != 1 {
            let message = "subquery has too many columns";
            return Err(at(SqlError::new(SqlState::SYNTAX_ERROR, message), operator));
        }
        let column = Term::known(planned.node.column(0), position);
        let (mine, theirs) = self.same_type(symbol, term, column, operator)?;
        let node = planned.node.project(vec![theirs], planned.columns.iter().map(|c| c.name.clone()));
        // It holds of all when its opposite holds of none.
        let asked = if all { op.negated() } else { op };
        let term = self.subquery(Question::Any(asked, mine), node, Type::Bool, position)?;
        self.negate_if(all, term)
    }

    /// The columns that stand behind one of an expression: itself, or those of this and outer queries that the subquery which it
    /// stands for refers to.
    pub(crate) fn beyond_subquery(&self, column: usize) -> Vec<usize> {
        let subquery = column.checked_sub(SUBQUERIES).filter(|_| outer_level(column).0 == 0);
        let relational = self.shared.relational.as_ref();
        let Some(subquery) = subquery.and_then(|place| relational?.subqueries.get(place)) else {
            return vec![column];
        };
        let operands = match &subquery.question {
            Question::In(operands) => operands.as_slice(),
            Question::Any(_, operand) => std::slice::from_ref(operand),
            Question::Scalar | Question::Exists => &[],
        };
        let operands = operands.iter().flat_map(columns).flat_map(|column| self.beyond_subquery(column));
        subquery.node.columns_further_out().into_iter().map(|(column, _)| column).chain(operands).collect()
    }

    fn negate_if(&mut self, negated: bool, term: Term) -> Result<Term> {
        if !negated {
            return Ok(term);
        }
        let position = term.position;
        Ok(Term::known(Expr::Not(Box::new(self.settle(term)?)), position))
    }
}

/// A subquery about to be joined to a tree.
struct Attached {
    question: Question,
    /// The subquery: its own columns, then those of the tree that it depends on.
    right: Node,
    /// How many columns are its own.
    own: usize,
    /// What the columns that it depends on equal in the tree.
    outers: Vec<Expr>,
}

impl Attached {
    /// The join is on the columns that it depends on.
    fn condition(&self, left_width: usize) -> Vec<Expr> {
        let columns = (self.own..).zip(&self.outers);
        columns.map(|(c, outer)| same(outer.clone(), shifted(self.right.column(c), left_width))).collect()
    }
}

impl Planner<'_> {
    fn subquery_at(&self, place: usize) -> Result<Subquery> {
        let mut subqueries = self.shared.relational.iter().flat_map(|r| &r.subqueries);
        subqueries.nth(place).cloned().ok_or_else(|| SqlError::internal("a subquery that was not noted"))
    }

    /// What is compared with the rows of the subqueries that stand in expressions.
    pub(crate) fn operands(&self, exprs: &[Expr]) -> Vec<Expr> {
        let asked = places(exprs).into_iter().filter_map(|place| self.subquery_at(place).ok());
        let operands = asked.flat_map(|subquery| match subquery.question {
            Question::In(operands) => operands,
            Question::Any(_, operand) => vec![operand],
            Question::Scalar | Question::Exists => Vec::new(),
        });
        operands.collect()
    }

    /// Joins the subqueries that stand in expressions to a tree over whose columns they are to be computed.
    /// `translate` turns what the subqueries' names mean into expressions over the tree.
    pub(crate) fn attach(
        &mut self,
        mut node: Node,
        exprs: &mut [Expr],
        translate: Translation<'_>,
    ) -> Result<Node> {
        let mut answers: Vec<(usize, Expr)> = Vec::new();
        for place in places(exprs) {
            let subquery = self.subquery_at(place)?;
            let answer;
            (node, answer) = self.attach_one(node, subquery, translate)?;
            answers.push((place, answer));
        }
        if answers.is_empty() {
            return Ok(node);
        }
        for expr in exprs {
            *expr = rewrite(expr, &mut |part| {
                let answer = place(part).and_then(|p| answers.iter().find(|(known, _)| *known == p));
                Ok(answer.map(|(_, answer)| answer.clone()))
            })?;
        }
        Ok(node)
    }

    /// The rows of which every conjunct is true. EXISTS and IN become semi-joins here.
    pub(crate) fn filter(
        &mut self,
        node: Node,
        predicate: Vec<Expr>,
        translate: Translation<'_>,
    ) -> Result<Node> {
        let (plain, asking): (Vec<Expr>, Vec<Expr>) = predicate.into_iter().partition(|c| !has_subquery(c));
        let mut node = node.filter(plain);
        let mut rest = Vec::new();
        for conjunct in asking {
            let (found, negated) = match &conjunct {
                Expr::Not(inner) => (place(inner), true),
                other => (place(other), false),
            };
            if let Some(found) = found {
                let subquery = self.subquery_at(found)?;
                let correlated = !subquery.node.outer_columns().is_empty();
                let joins = match &subquery.question {
                    Question::Exists => correlated,
                    Question::In(_) => !negated,
                    Question::Scalar | Question::Any(..) => false,
                };
                if joins {
                    let attached;
                    (node, attached) = self.prepare(node, subquery, translate)?;
                    let mut condition = attached.condition(node.width());
                    if let Question::In(operands) = &attached.question {
                        condition.extend(equalities(operands, &attached.right, node.width()));
                    }
                    let kind = if negated { JoinKind::Anti } else { JoinKind::Semi };
                    node = node.join(kind, attached.right, condition);
                    continue;
                }
            }
            rest.push(conjunct);
        }
        node = self.attach(node, &mut rest, translate)?;
        Ok(node.filter(rest))
    }

    /// Makes a subquery independent of the tree that it is to be joined to. The tree comes back with the subqueries
    /// joined that stand in the operands.
    fn prepare(
        &mut self,
        mut node: Node,
        subquery: Subquery,
        translate: Translation<'_>,
    ) -> Result<(Node, Attached)> {
        let Subquery { mut question, node: right } = subquery;
        match &mut question {
            Question::In(operands) => {
                let mut translated = operands.iter().map(translate).collect::<Result<Vec<_>>>()?;
                node = self.attach(node, &mut translated, translate)?;
                *operands = translated;
            }
            Question::Any(_, operand) => {
                let mut translated = [translate(operand)?];
                node = self.attach(node, &mut translated, translate)?;
                [*operand] = translated;
            }
            Question::Scalar | Question::Exists => {}
        }
        let own = right.width();
        let dependence = Dependence::new(&mut node, &right, translate)?;
        let right = dependence.carry(right)?;
        Ok((node, Attached { question, right, own, outers: dependence.outers }))
    }

    /// Joins one subquery; gives its answer over the columns of the joined tree.
    fn attach_one(
        &mut self,
        node: Node,
        subquery: Subquery,
        translate: Translation<'_>,
    ) -> Result<(Node, Expr)> {
        if matches!(subquery.question, Question::Scalar) {
            return attach_scalar(node, subquery.node, translate);
        }
        let (node, mut attached) = self.prepare(node, subquery, translate)?;
        let width = node.width();
        if let Question::Any(op, operand) = &attached.question {
            let holds = compare(*op, operand.clone(), shifted(attached.right.column(0), width));
            return attach_any(node, attached, vec![holds]);
        }
        let Question::In(operands) = &attached.question else {
            if attached.outers.is_empty() {
                let one = literal(Value::Int8(1), Type::Int8);
                let counted = attached.right.sort(Vec::new(), Some(one), None);
                let counted = counted.aggregate(Vec::new(), vec![count(None)])?;
                let node = node.join(JoinKind::Inner, counted, Vec::new());
                let answer = compare(CompareOp::Gt, node.column(width), literal(Value::Int8(0), Type::Int8));
                return Ok((node, answer));
            }
            let condition = attached.condition(width);
            let node = node.join(JoinKind::Mark, attached.right, condition);
            let answer = node.column(width);
            return Ok((node, answer));
        };
        let operands = operands.clone();
        let equal = equalities(&operands, &attached.right, width);
        let [operand] = operands.as_slice() else { return attach_any(node, attached, equal) };
        share(&mut attached.right)?;
        let mut condition = attached.condition(width);
        condition.extend(equal);
        let dependent: Vec<Expr> =
            (attached.own..attached.right.width()).map(|c| attached.right.column(c)).collect();
        let node = node.join(JoinKind::Mark, attached.right.clone(), condition);
        let is_member = node.column(width);
        let (no, unknown) = (literal(Value::Bool(false), Type::Bool), literal(Value::Null, Type::Bool));
        let yes = (is_member, literal(Value::Bool(true), Type::Bool));
        let calls = vec![count(None), count(Some(attached.right.column(0)))];
        let keys = dependent.len();
        let counts = attached.right.aggregate(dependent, calls)?;
        let base = node.width();
        let condition = attached.outers.iter().enumerate();
        let condition: Vec<Expr> =
            condition.map(|(i, outer)| same(outer.clone(), shifted(counts.column(i), base))).collect();
        let kind = if keys == 0 { JoinKind::Inner } else { JoinKind::Left };
        let node = node.join(kind, counts, condition);
        let (rows, values) = (node.column(base + keys), node.column(base + keys + 1));
        let zero = literal(Value::Int8(0), Type::Int8);
        let is_null = |expr: Expr| Expr::IsNull { expr: Box::new(expr), negated: false };
        let empty = Expr::Or(vec![is_null(rows.clone()), compare(CompareOp::Eq, rows.clone(), zero)]);
        let has_null = Expr::Or(vec![is_null(operand.clone()), compare(CompareOp::Lt, values, rows)]);
        Ok((node, decide(vec![yes, (empty, no.clone()), (has_null, unknown)], no)))
    }
}

/// `CASE WHEN …`
fn decide(branches: Vec<(Expr, Expr)>, otherwise: Expr) -> Expr {
    Expr::Case { branches, otherwise: Some(Box::new(otherwise)), ty: Type::Bool }
}

/// Joins what says whether all of some conjuncts are true of one of a subquery's rows; where they are of none, and not
/// all false of some, that is unknown.
fn attach_any(node: Node, mut attached: Attached, conjuncts: Vec<Expr>) -> Result<(Node, Expr)> {
    share(&mut attached.right)?;
    let width = node.width();
    let on = attached.condition(width);
    let mut condition = on.clone();
    condition.extend(conjuncts.iter().cloned());
    let node = node.join(JoinKind::Mark, attached.right.clone(), condition);
    let is_true = node.column(width);
    // The mark has come in between.
    let by_one = |expr: &Expr| {
        rewrite(expr, &mut |part| {
            Ok(match part {
                Expr::Column { index, ty } if *index >= width && outer_level(*index).0 == 0 => {
                    Some(Expr::column(index + 1, ty.clone()))
                }
                _ => None,
            })
        })
    };
    let undecided = Expr::IsNull { expr: Box::new(Expr::And(conjuncts)), negated: false };
    let mut condition = on.iter().map(by_one).collect::<Result<Vec<_>>>()?;
    condition.push(by_one(&undecided)?);
    let node = node.join(JoinKind::Mark, attached.right, condition);
    let is_unknown = node.column(width + 1);
    let truth = |value: Value| literal(value, Type::Bool);
    let branches = vec![(is_true, truth(Value::Bool(true))), (is_unknown, truth(Value::Null))];
    Ok((node, decide(branches, truth(Value::Bool(false)))))
}

/// Joins what stands behind LATERAL, which refers to the columns of the left side.
pub(crate) fn join_lateral(
    mut left: Node,
    kind: JoinKind,
    right: Node,
    condition: Vec<Expr>,
) -> Result<Node> {
    let (width, own) = (left.width(), right.width());
    let dependence = Dependence::new(&mut left, &right, &|expr| Ok(expr.clone()))?;
    let right = dependence.carry(right)?;
    let attached = Attached { question: Question::Scalar, right, own, outers: dependence.outers };
    let mut on = attached.condition(width);
    on.extend(condition);
    Ok(left.join(kind, attached.right, on))
}

/// Joins a scalar subquery.
fn attach_scalar(mut node: Node, right: Node, translate: Translation<'_>) -> Result<(Node, Expr)> {
    let width = node.width();
    let dependence = Dependence::new(&mut node, &right, translate)?;
    let keys = dependence.outers.len();
    if keys == 0 {
        let right = dependence.carry(right)?;
        if is_single_row(&right) {
            let node = node.join(JoinKind::Inner, right, Vec::new());
            let answer = node.column(width);
            return Ok((node, answer));
        }
        let first = first_and_count(right, Vec::new())?;
        let node = node.join(JoinKind::Inner, first, Vec::new());
        let answer = only_row(node.column(width), node.column(width + 1));
        return Ok((node, answer));
    }
    let on = |right: &Node| -> Vec<Expr> {
        let outers = dependence.outers.iter().enumerate();
        outers.map(|(i, outer)| same(outer.clone(), shifted(right.column(i), width))).collect()
    };
    // An aggregate over all rows, and expressions of it: computed above the join, so that it has a value, that of no
    // rows, where there are none.
    let (exprs, bottom) = peel(right)?;
    let of_all_rows = matches!(&bottom.kind, Kind::Aggregate { keys, .. } if keys.is_empty());
    if let (true, Node { kind: Kind::Aggregate { input, calls, .. }, .. }) = (of_all_rows, bottom.clone()) {
        let own = input.width();
        let input = dependence.carry(*input)?;
        let by: Vec<Expr> = (own..own + keys).map(|c| input.column(c)).collect();
        let calls_there =
            calls.iter().map(|call| dependence.replace_call(call, own)).collect::<Result<Vec<_>>>()?;
        let groups = input.aggregate(by, calls_there)?;
        let groups = groups.extend(vec![(literal(Value::Bool(true), Type::Bool), "found")]);
        let condition = on(&groups);
        let node = node.join(JoinKind::Left, groups, condition);
        let found = node.column(width + keys + calls.len());
        let answer = rewrite(&exprs[0], &mut |part| {
            let Expr::Column { index, ty } = part else { return Ok(None) };
            Ok(Some(match outer_level(*index) {
                (0, index) => {
                    with_empty(&found, &calls[index], Expr::column(width + keys + index, ty.clone()))?
                }
                (1, index) => dependence.outer(index)?,
                (level, index) => Expr::column(outer_column(level - 1, index), ty.clone()),
            }))
        })?;
        return Ok((node, answer));
    }
    let names = vec!["value".to_owned(); exprs.len()];
    let right = bottom.project(exprs, names);
    let own = right.width();
    let right = dependence.carry(right)?;
    let by: Vec<Expr> = (own..own + keys).map(|c| right.column(c)).collect();
    let right = first_and_count(right, by)?;
    let condition = on(&right);
    let node = node.join(JoinKind::Left, right, condition);
    let answer = only_row(node.column(width + keys), node.column(width + keys + 1));
    Ok((node, answer))
}

/// The first row's value and the number of rows, of each group. That there are several is no error as long as nobody asks
/// for the value, so it is one above the join, where the subquery stands.
fn first_and_count(right: Node, by: Vec<Expr>) -> Result<Node> {
    let value = right.column(0);
    right.aggregate(by, vec![Call::Single(value), count(None)])
}

/// A scalar subquery's value, once it is asked for.
fn only_row(first: Expr, rows: Expr) -> Expr {
    let ty = first.ty();
    Expr::Call { function: Function::OnlyRow, args: vec![first, rows], ty }
}

/// Whether an expression fails for rows of which a subquery has several.
pub(crate) fn asks_for_only_row(expr: &Expr) -> bool {
    let mut found = false;
    walk(expr, &mut |part| found |= matches!(part, Expr::Call { function: Function::OnlyRow, .. }));
    found
}

/// The result of an aggregate, or that over no rows where there are none.
fn with_empty(found: &Expr, call: &Call, result: Expr) -> Result<Expr> {
    let empty = match call {
        Call::Aggregate(call) => AggregateState::new(call).finish()?,
        Call::Single(_) => Value::Null,
    };
    if empty.is_null() {
        return Ok(result);
    }
    let ty = result.ty();
    let missing = Expr::IsNull { expr: Box::new(found.clone()), negated: false };
    Ok(Expr::Case {
        branches: vec![(missing, literal(empty, ty.clone()))],
        otherwise: Some(Box::new(result)),
        ty,
    })
}

/// The projections at the top of a tree as one, and what is below them.
fn peel(node: Node) -> Result<(Vec<Expr>, Node)> {
    match node.kind {
        Kind::Project { input, exprs } => {
            let (below, bottom) = peel(*input)?;
            let exprs = exprs.iter().map(|e| substitute(e, &below)).collect::<Result<Vec<_>>>()?;
            Ok((exprs, bottom))
        }
        kind => {
            let node = Node { kind, fields: node.fields };
            Ok(((0..node.width()).map(|c| node.column(c)).collect(), node))
        }
    }
}

/// An expression over a projection's columns as one over the projection's input.
pub(crate) fn substitute(expr: &Expr, exprs: &[Expr]) -> Result<Expr> {
    rewrite(expr, &mut |part| {
        Ok(match part {
            Expr::Column { index, .. } if outer_level(*index).0 == 0 => exprs.get(*index).cloned(),
            _ => None,
        })
    })
}

/// Whether a tree always gives exactly one row.
fn is_single_row(node: &Node) -> bool {
    match &node.kind {
        Kind::Aggregate { keys, .. } => keys.is_empty(),
        Kind::Project { input, .. } => is_single_row(input),
        Kind::Shared(input) => is_single_row(input),
        Kind::Rows(rows) => rows.len() == 1,
        _ => false,
    }
}

fn count(argument: Option<Expr>) -> Call {
    Call::Aggregate(AggregateCall::new(AggregateFunction::Count, argument))
}

fn compare(op: CompareOp, left: Expr, right: Expr) -> Expr {
    Expr::Compare { op, left: Box::new(left), right: Box::new(right) }
}

/// Equal, or both NULL.
fn same(left: Expr, right: Expr) -> Expr {
    Expr::IsDistinct { left: Box::new(left), right: Box::new(right), negated: true }
}

fn shifted(column: Expr, by: usize) -> Expr {
    match column {
        Expr::Column { index, ty } => Expr::column(index + by, ty),
        other => other,
    }
}

fn equalities(operands: &[Expr], right: &Node, left_width: usize) -> Vec<Expr> {
    let pairs = operands.iter().enumerate();
    pairs.map(|(i, o)| compare(CompareOp::Eq, o.clone(), shifted(right.column(i), left_width))).collect()
}

/// Carried columns while it is not yet known where they are.
const CARRIED: usize = 1 << 31;

/// What a subquery needs of the tree that it is joined to.
struct Dependence {
    /// The columns of the outer query that it refers to.
    columns: Vec<usize>,
    /// What they are in the tree, and behind that what else tells their values apart.
    outers: Vec<Expr>,
    /// The combinations of values that they have there, or why there is no saying.
    combinations: Option<Result<Node>>,
}

impl Dependence {
    /// The tree is needed twice then, for the combinations and for what is joined to it.
    fn new(tree: &mut Node, subquery: &Node, translate: Translation<'_>) -> Result<Dependence> {
        let columns = subquery.outer_columns();
        let outers = columns
            .iter()
            .map(|(index, ty)| translate(&Expr::column(*index, ty.clone())))
            .collect::<Result<Vec<Expr>>>()
            .map_err(|error| match error.code {
                SqlState::GROUPING_ERROR => {
                    let column = error.message.split('"').nth(1).unwrap_or_default();
                    let message = format!("subquery uses ungrouped column \"{column}\" from outer query");
                    error.with_message(message)
                }
                _ => error,
            })?;
        check_size(tree)?;
        // Equal values of these types are told apart by their text, which the subquery may look at.
        let is_shown = |(_, ty): &&(usize, Type)| {
            matches!(ty, Type::Numeric(None) | Type::Float4 | Type::Float8 | Type::Interval)
        };
        let texts = columns.iter().zip(&outers).filter(|(column, _)| is_shown(column)).map(|(_, outer)| {
            Expr::Cast { expr: Box::new(outer.clone()), to: Type::Text, kind: CastKind::Explicit }
        });
        let outers: Vec<Expr> = outers.iter().cloned().chain(texts).collect();
        let combinations = (!columns.is_empty()).then(|| {
            let names = vec!["outer".to_owned(); outers.len()];
            share(tree)?;
            Ok(tree.clone().project(outers.clone(), names).distinct())
        });
        Ok(Dependence { columns: columns.into_iter().map(|(i, _)| i).collect(), outers, combinations })
    }

    fn outer(&self, index: usize) -> Result<Expr> {
        let found = self.columns.iter().position(|c| *c == index).map(|place| self.outers[place].clone());
        found.ok_or_else(|| SqlError::internal("a column of an outer query that was not noted"))
    }

    /// An expression with the columns of the tree behind `base` columns; those of queries further out come closer.
    fn replace(&self, expr: &Expr, base: usize) -> Result<Expr> {
        rewrite(expr, &mut |part| {
            let Expr::Column { index, ty } = part else { return Ok(None) };
            Ok(match outer_level(*index) {
                (0, _) => None,
                (1, index) => {
                    let place = self.columns.iter().position(|c| *c == index);
                    let place = place.ok_or_else(|| SqlError::internal("an unknown outer column"))?;
                    Some(Expr::column(base + place, ty.clone()))
                }
                (level, index) => Some(Expr::column(outer_column(level - 1, index), ty.clone())),
            })
        })
    }

    fn replace_call(&self, call: &Call, base: usize) -> Result<Call> {
        Ok(match call {
            Call::Single(expr) => Call::Single(self.replace(expr, base)?),
            Call::Aggregate(call) => {
                let mut call = call.clone();
                call.argument = call.argument.map(|e| self.replace(&e, base)).transpose()?;
                call.further = call.further.iter().map(|e| self.replace(e, base)).collect::<Result<_>>()?;
                call.filter = call.filter.map(|e| self.replace(&e, base)).transpose()?;
                Call::Aggregate(call)
            }
        })
    }

    /// As seen from one query further out; nothing in it refers to that one.
    fn closer(&self, mut node: Node) -> Result<Node> {
        node.map_exprs(&mut |expr| self.replace(expr, CARRIED))?;
        Ok(node)
    }

    /// The tree with the columns that it depends on behind its own, for every combination of their values.
    fn carry(&self, node: Node) -> Result<Node> {
        let Some(combinations) = &self.combinations else { return self.closer(node) };
        if node.outer_columns().is_empty() {
            return Ok(self.closer(node)?.join(JoinKind::Inner, combinations.clone()?, Vec::new()));
        }
        let added = self.outers.len();
        let width = node.width();
        let all = |exprs: Vec<Expr>, base: usize| {
            exprs.iter().map(|e| self.replace(e, base)).collect::<Result<Vec<Expr>>>()
        };
        match node.kind {
            Kind::Filter { input, predicate } => {
                if input.outer_columns().is_empty()
                    && let Some(carried) = self.carry_by_equality(&input, &predicate)?
                {
                    return Ok(carried);
                }
                let predicate = all(predicate, width)?;
                Ok(self.carry(*input)?.filter(predicate))
            }
            Kind::Project { input, exprs } => {
                let base = input.width();
                let input = self.carry(*input)?;
                let mut exprs = all(exprs, base)?;
                exprs.extend((base..base + added).map(|c| input.column(c)));
                let names = node.fields.iter().map(|f| f.name.clone());
                let names: Vec<String> = names.chain(vec!["outer".to_owned(); added]).collect();
                Ok(input.project(exprs, names))
            }
            Kind::Join { kind, left, right, condition } => self.carry_join(kind, *left, *right, condition),
            Kind::Aggregate { input, keys, calls } => {
                let base = input.width();
                let input = self.carry(*input)?;
                let (groups, results) = (keys.len(), calls.len());
                let mut by = all(keys, base)?;
                by.extend((base..base + added).map(|c| input.column(c)));
                let there =
                    calls.iter().map(|call| self.replace_call(call, base)).collect::<Result<Vec<_>>>()?;
                let grouped = input.aggregate(by, there)?;
                if groups > 0 {
                    let own = (0..groups).chain(groups + added..groups + added + results);
                    return Ok(grouped.select(own.chain(groups..groups + added)));
                }
                // Without keys there is a result even where there are no rows.
                let combinations = combinations.clone()?;
                let grouped = grouped.extend(vec![(literal(Value::Bool(true), Type::Bool), "found")]);
                let condition = (0..added)
                    .map(|c| same(combinations.column(c), shifted(grouped.column(c), added)))
                    .collect();
                let joined = combinations.join(JoinKind::Left, grouped, condition);
                let found = joined.column(2 * added + results);
                let mut exprs = Vec::new();
                for (index, call) in calls.iter().enumerate() {
                    exprs.push(with_empty(&found, call, joined.column(2 * added + index))?);
                }
                exprs.extend((0..added).map(|c| joined.column(c)));
                let names = vec!["value".to_owned(); exprs.len()];
                Ok(joined.project(exprs, names))
            }
            Kind::Window { input, mut calls } => {
                let base = input.width();
                let input = self.carry(*input)?;
                let results = calls.len();
                for call in &mut calls {
                    for expr in call.exprs_mut() {
                        *expr = self.replace(expr, base)?;
                    }
                    call.partition.extend((base..base + added).map(|c| input.column(c)));
                }
                let windowed = input.window(calls);
                let own = (0..base).chain(base + added..base + added + results);
                Ok(windowed.select(own.chain(base..base + added)))
            }
            Kind::Distinct { input } => Ok(self.carry(*input)?.distinct()),
            Kind::Union { inputs } => {
                let inputs = inputs.into_iter().map(|i| self.carry(i)).collect::<Result<Vec<_>>>()?;
                let fields = inputs[0].fields.clone();
                Ok(Node { kind: Kind::Union { inputs }, fields })
            }
            Kind::Sort { input, keys, limit, offset } => {
                let input = self.carry(*input)?;
                if limit.is_none() && offset.is_none() {
                    return Ok(input);
                }
                let order = keys.iter().map(|key| OrderKey {
                    expr: input.column(key.column),
                    descending: key.descending,
                    nulls_first: key.nulls_first,
                });
                let partition = (width..width + added).map(|c| input.column(c)).collect();
                let number = row_number(partition, order.collect());
                let numbered = input.window(vec![number]);
                let place = numbered.column(width + added);
                let zero = || literal(Value::Int8(0), Type::Int8);
                let or_zero = |expr: Expr| Expr::Coalesce { args: vec![expr, zero()], ty: Type::Int8 };
                let offset = offset.map(|count| checked_count(Function::OffsetCount, count));
                let limit = limit.map(|count| checked_count(Function::LimitCount, count));
                let skipped = offset.map_or_else(zero, or_zero);
                let mut predicate = vec![compare(CompareOp::Gt, place.clone(), skipped.clone())];
                if let Some(limit) = limit {
                    // Neither is negative, so that the difference is a number where the sum need not be.
                    let args = vec![place, skipped];
                    let taken = Expr::Call { function: Function::Subtract, args, ty: Type::Int8 };
                    let unlimited = Expr::IsNull { expr: Box::new(limit.clone()), negated: false };
                    predicate.push(Expr::Or(vec![unlimited, compare(CompareOp::Le, taken, limit)]));
                }
                Ok(numbered.filter(predicate).select(0..width + added))
            }
            Kind::Scan { .. }
            | Kind::Groups { .. }
            | Kind::Rows(_)
            | Kind::Batch(_)
            | Kind::System(_)
            | Kind::Series(_)
            | Kind::Shared(_) => Err(SqlError::unsupported("VALUES that refer to an outer query")),
        }
    }

    /// Where conjuncts say that each column equals an expression of the tree's own, that expression is the column.
    fn carry_by_equality(&self, input: &Node, predicate: &[Expr]) -> Result<Option<Node>> {
        if self.outers.len() > self.columns.len() {
            return Ok(None);
        }
        let mut own: Vec<Option<Expr>> = vec![None; self.columns.len()];
        let mut rest = Vec::new();
        for conjunct in predicate {
            if let Expr::Compare { op: CompareOp::Eq, left, right } = conjunct {
                let pairs = [(left, right), (right, left)];
                let found = pairs.into_iter().find_map(|(outer, inner)| {
                    let Expr::Column { index, ty } = outer.as_ref() else { return None };
                    let (1, index) = outer_level(*index) else { return None };
                    let place = self.columns.iter().position(|c| *c == index)?;
                    let fits = inner.ty() == *ty && !super::node::is_correlated(inner);
                    (fits && own[place].is_none()).then(|| (place, inner.as_ref().clone()))
                });
                if let Some((place, inner)) = found {
                    rest.push(Expr::IsNull { expr: Box::new(inner.clone()), negated: true });
                    own[place] = Some(inner);
                    continue;
                }
            }
            if super::node::is_correlated(conjunct) {
                return Ok(None);
            }
            rest.push(conjunct.clone());
        }
        let Some(own) = own.into_iter().collect::<Option<Vec<Expr>>>() else { return Ok(None) };
        let more = own.into_iter().map(|expr| (expr, "outer")).collect();
        Ok(Some(self.closer(input.clone())?.filter(rest).extend(more)))
    }

    fn carry_join(&self, kind: JoinKind, left: Node, right: Node, condition: Vec<Expr>) -> Result<Node> {
        let added = self.outers.len();
        let (l, r) = (left.width(), right.width());
        // Columns of the right side move behind those that the left side carries.
        let moved = |expr: &Expr| {
            let replaced = self.replace(expr, CARRIED)?;
            rewrite(&replaced, &mut |part| {
                let Expr::Column { index, ty } = part else { return Ok(None) };
                let (0, index) = outer_level(*index) else { return Ok(None) };
                let carried = index.checked_sub(CARRIED);
                let index = match carried {
                    Some(place) => l + place,
                    None if index >= l => index + added,
                    None => return Ok(None),
                };
                Ok(Some(Expr::column(index, ty.clone())))
            })
        };
        let mut condition = condition.iter().map(moved).collect::<Result<Vec<Expr>>>()?;
        // All rows of the right side are there for each combination.
        let keeps_right = matches!(kind, JoinKind::Right | JoinKind::Full);
        let carries_right = keeps_right || !right.outer_columns().is_empty();
        let left = self.carry(left)?;
        let right = if carries_right { self.carry(right)? } else { self.closer(right)? };
        if carries_right {
            for c in 0..added {
                condition.push(same(left.column(l + c), shifted(right.column(r + c), l + added)));
            }
        }
        let joined = left.join(kind, right, condition);
        let own = match kind {
            JoinKind::Semi | JoinKind::Anti => return Ok(joined),
            JoinKind::Mark => 1,
            _ => r,
        };
        let columns = (0..l).chain(l + added..l + added + own);
        if !keeps_right {
            return Ok(joined.select(columns.chain(l..l + added)));
        }
        // A row has them from a side that it has.
        let width = joined.width();
        let either = |c| {
            let args = vec![joined.column(l + c), joined.column(l + added + r + c)];
            let ty = args[0].ty();
            (Expr::Coalesce { args, ty }, "outer")
        };
        let either = (0..added).map(either).collect();
        Ok(joined.extend(either).select(columns.chain(width..width + added)))
    }
}
