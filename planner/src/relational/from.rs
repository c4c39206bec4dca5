//! FROM: tables, subqueries, common table expressions and joins, and the names they give to expressions.

use std::sync::Arc;

use carousel_engine::{
    SqlError, SqlState,
    error::Result,
    expr::{ArgType, CastKind, CompareOp, Expr},
};
use sqlparser::ast::{self, Spanned};

use super::{
    SystemView,
    node::{JoinKind, Node},
    series::FunctionCall,
    subquery::{has_subquery, join_lateral},
    system_view,
};
use crate::{
    expression::{Clause, Term},
    names::{Relation, Scope, ScopeColumn, at, parts},
    parse::position_of,
    rewrite::conjuncts,
    select::{Planner, check_factor, unsupported},
};

/// A tree and the names of its columns.
pub(crate) type Input = (Node, Scope);

/// An element of FROM.
struct Factor {
    node: Node,
    scope: Scope,
    /// Whether it may refer to the columns of what stands before it: it is a query inside that, one level deeper.
    lateral: bool,
}

impl Factor {
    fn plain((node, scope): Input) -> Factor {
        Factor { node, scope, lateral: false }
    }
}

impl Planner<'_> {
    /// FROM; without any table it is one row without columns.
    pub(crate) fn from(&mut self, from: &[ast::TableWithJoins], outer: &Option<Arc<Scope>>) -> Result<Input> {
        let mut all: Option<Input> = None;
        for item in from {
            let next = match &all {
                Some((_, scope)) if has_lateral(item) => self.lateral_item(item, scope, outer)?,
                _ => Factor::plain(self.item(item, outer, outer)?),
            };
            all = Some(match all {
                None => (next.node, next.scope),
                Some(left) => join(left, next, &item.relation, JoinKind::Inner, Vec::new())?,
            });
        }
        Ok(all.unwrap_or_else(|| (Node::one_row(), Scope::empty())))
    }

    /// What is between two commas joins among itself first. `beyond` is what is around what is lateral.
    fn item(
        &mut self,
        item: &ast::TableWithJoins,
        outer: &Option<Arc<Scope>>,
        beyond: &Option<Arc<Scope>>,
    ) -> Result<Input> {
        let first = self.factor(&item.relation, outer, beyond, None)?;
        let mut left = (first.node, first.scope);
        for ast::Join { relation, global, join_operator } in &item.joins {
            if *global {
                return unsupported("GLOBAL JOIN");
            }
            let before = || Arc::new(Scope { outer: beyond.clone(), ..left.1.clone() });
            let before = sees_more(relation).then(before);
            let right = self.factor(relation, outer, beyond, before)?;
            left = self.join(left, right, relation, join_operator, outer)?;
        }
        Ok(left)
    }

    /// An item in which something may refer to what stands before it: to that, all of it is a query inside another one.
    fn lateral_item(
        &mut self,
        item: &ast::TableWithJoins,
        before: &Scope,
        outer: &Option<Arc<Scope>>,
    ) -> Result<Factor> {
        let inside = |scope: Scope| Some(Arc::new(Scope { outer: outer.clone(), ..scope }));
        // What is not lateral sees none of the names before it, and what is around all of them from as far.
        let (nothing, names) = (inside(Scope::empty()), inside(before.clone()));
        let (node, scope) = self.one_deeper(|planner| planner.item(item, &nothing, &names))?;
        Ok(Factor { node, scope, lateral: true })
    }

    /// An element. What is lateral sees what stands before it in the same item, if anything does, and beyond that.
    fn factor(
        &mut self,
        factor: &ast::TableFactor,
        outer: &Option<Arc<Scope>>,
        beyond: &Option<Arc<Scope>>,
        before: Option<Arc<Scope>>,
    ) -> Result<Factor> {
        check_factor(factor)?;
        let position = position_of(factor.span());
        match factor {
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                if let Some(found) = self.cte(name, alias.as_ref())? {
                    return Ok(Factor::plain(found));
                }
                if let Some(view) = system_view(name) {
                    let view = SystemView::named(&view).map_err(|error| at(error, position))?;
                    return Ok(Factor::plain(system(view, alias.as_ref())?));
                }
                let (table, scope) = self.table_factor(factor)?;
                Ok(Factor::plain((Node::scan(&table), scope)))
            }
            ast::TableFactor::Derived { lateral, subquery, alias, sample } => {
                if sample.is_some() {
                    return Err(at(SqlError::unsupported("TABLESAMPLE"), position));
                }
                let Some(alias) = alias else {
                    let is_values = matches!(subquery.body.as_ref(), ast::SetExpr::Values(_));
                    let (what, hint) = if is_values {
                        ("VALUES in FROM must have an alias", "For example, FROM (VALUES ...) [AS] foo.")
                    } else {
                        ("subquery in FROM must have an alias", "For example, FROM (SELECT ...) [AS] foo.")
                    };
                    let error = SqlError::new(SqlState::SYNTAX_ERROR, what).with_hint(hint);
                    let open = self.source.operator_before(subquery.span(), "(");
                    return Err(at(error, open.or(position)));
                };
                let joins_before = *lateral && before.is_some();
                let query = match before {
                    Some(before) if *lateral => self.nested_query(subquery, before)?,
                    _ if *lateral => self.relational_query(subquery, beyond.clone())?,
                    _ => self.relational_query(subquery, outer.clone())?,
                };
                let relation = query.relation(String::new()).renamed(alias)?;
                Ok(Factor { node: query.node, scope: Scope::of(vec![relation]), lateral: joins_before })
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias } => {
                let (node, scope) = self.item(table_with_joins, outer, beyond)?;
                let Some(alias) = alias else { return Ok(Factor::plain((node, scope))) };
                let relation = Relation {
                    name: String::new(),
                    is_table_name: false,
                    table: None,
                    columns: scope.visible().into_iter().cloned().collect(),
                };
                Ok(Factor::plain((node, Scope::of(vec![relation.renamed(alias)?]))))
            }
            ast::TableFactor::Table { name, alias, args: Some(arguments), with_ordinality, .. } => {
                let ast::TableFunctionArgs { args, settings } = arguments;
                if settings.is_some() {
                    return Err(at(SqlError::unsupported("SETTINGS"), position));
                }
                let (arguments, with_ordinality) = (args.as_slice(), *with_ordinality);
                let call = FunctionCall { name, arguments, with_ordinality, alias: alias.as_ref() };
                let around = before.or_else(|| beyond.clone());
                Ok(Factor::plain(self.function_in_from(&call, around)?))
            }
            ast::TableFactor::Function { lateral: _, name, args, with_ordinality, alias } => {
                let (arguments, with_ordinality) = (args.as_slice(), *with_ordinality);
                let call = FunctionCall { name, arguments, with_ordinality, alias: alias.as_ref() };
                let around = before.or_else(|| beyond.clone());
                Ok(Factor::plain(self.function_in_from(&call, around)?))
            }
            other => {
                let (table, scope) = self.table_factor(other)?;
                Ok(Factor::plain((Node::scan(&table), scope)))
            }
        }
    }

    /// The common table expression of this name.
    fn cte(&mut self, name: &ast::ObjectName, alias: Option<&ast::TableAlias>) -> Result<Option<Input>> {
        let parts = parts(name)?;
        let ([name], Some(relational)) = (parts.as_slice(), &mut self.shared.relational) else {
            return Ok(None);
        };
        let Some(cte) = relational.ctes.iter_mut().rev().find(|cte| cte.name == *name) else {
            return Ok(None);
        };
        if let (true, Some(error)) = (cte.is_used, &cte.once) {
            return Err(error.clone());
        }
        cte.is_used = true;
        let deeper = relational.depth - cte.depth;
        let query = cte.query.clone();
        let mut relation = query.relation(cte.name.clone());
        if let Some(alias) = alias {
            relation = relation.renamed(alias)?;
        }
        Ok(Some((query.node.deeper(deeper)?, Scope::of(vec![relation]))))
    }

    fn join(
        &mut self,
        left: Input,
        right: Factor,
        written: &ast::TableFactor,
        operator: &ast::JoinOperator,
        outer: &Option<Arc<Scope>>,
    ) -> Result<Input> {
        use ast::JoinOperator as J;
        let (kind, constraint) = match operator {
            J::Join(constraint) | J::Inner(constraint) => (JoinKind::Inner, constraint),
            J::CrossJoin(constraint) => (JoinKind::Inner, constraint),
            J::Left(constraint) | J::LeftOuter(constraint) => (JoinKind::Left, constraint),
            J::Right(constraint) | J::RightOuter(constraint) => (JoinKind::Right, constraint),
            J::FullOuter(constraint) => (JoinKind::Full, constraint),
            _ => return unsupported("this form of JOIN"),
        };
        match constraint {
            ast::JoinConstraint::None if matches!(operator, J::CrossJoin(_)) => {
                join(left, right, written, JoinKind::Inner, Vec::new())
            }
            ast::JoinConstraint::None => Err(self.source.syntax_error(None)),
            ast::JoinConstraint::On(condition) => {
                let mut scope = combine(&left, &right, written)?;
                scope.outer = outer.clone();
                let condition = self.resolve(&scope, Clause::JoinOn, |r| r.boolean(condition, "JOIN/ON"))?;
                let condition = conjuncts(condition);
                scope.outer = None;
                let (plain, with_subqueries): (Vec<Expr>, Vec<Expr>) =
                    condition.into_iter().partition(|c| !has_subquery(c));
                if !with_subqueries.is_empty() && kind != JoinKind::Inner {
                    return unsupported("a subquery in the ON of an outer join");
                }
                let (node, _) = join(left, right, written, kind, plain)?;
                let node = self.filter(node, with_subqueries, &|e| Ok(e.clone()))?;
                Ok((node, scope))
            }
            ast::JoinConstraint::Using(names) => {
                let mut columns = Vec::new();
                for name in names {
                    let parts = parts(name)?;
                    let [column] = parts.as_slice() else {
                        return Err(self.source.syntax_error(position_of(name.span())));
                    };
                    if columns.contains(column) {
                        let message =
                            format!("column name \"{column}\" appears more than once in USING clause");
                        return Err(SqlError::new(SqlState(*b"42701"), message));
                    }
                    columns.push(column.clone());
                }
                self.join_using(left, right, written, kind, &columns)
            }
            ast::JoinConstraint::Natural => {
                let theirs = right.scope.visible();
                let mut columns: Vec<String> = Vec::new();
                for column in left.1.visible() {
                    if theirs.iter().any(|c| c.name == column.name) && !columns.contains(&column.name) {
                        columns.push(column.name.clone());
                    }
                }
                self.join_using(left, right, written, kind, &columns)
            }
        }
    }

    fn join_using(
        &mut self,
        left: Input,
        right: Factor,
        written: &ast::TableFactor,
        kind: JoinKind,
        names: &[String],
    ) -> Result<Input> {
        let mut scope = combine(&left, &right, written)?;
        let shift = left.0.width();
        let mut condition = Vec::new();
        let (mut merged, mut computed) = (Vec::new(), Vec::new());
        let own = right.node.width();
        for name in names {
            let mine = common_column(&left.1, name, "left")?;
            let mut theirs = common_column(&right.scope, name, "right")?;
            theirs.index += shift;
            let term = |c: &ScopeColumn| Term::known(Expr::column(c.index, c.ty.clone()), None);
            let (l, r) = (term(&mine), term(&theirs));
            let arguments = [ArgType::Known(mine.ty.clone()), ArgType::Known(theirs.ty.clone())];
            let ty = self.resolve(&Scope::empty(), Clause::JoinOn, |resolver| {
                let ty = resolver.common_type("JOIN/USING", &arguments, [&l, &r].into_iter())?;
                condition.push(resolver.compare(("=", CompareOp::Eq), l.clone(), r.clone(), None)?);
                Ok(ty)
            })?;
            // Of equal ones it is the left one, unless only the right one is of the common type as it is.
            let is_theirs =
                kind == JoinKind::Right || kind == JoinKind::Inner && mine.ty != ty && theirs.ty == ty;
            let side = if is_theirs { &theirs } else { &mine };
            if kind != JoinKind::Full && side.ty == ty {
                merged.push(ScopeColumn { name: name.clone(), ..side.clone() });
                continue;
            }
            let cast = |c: &ScopeColumn| {
                let expr = Expr::column(c.index, c.ty.clone());
                if c.ty == ty {
                    return expr;
                }
                Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind: CastKind::Implicit }
            };
            let expr = match kind {
                JoinKind::Full => Expr::Coalesce { args: vec![cast(&mine), cast(&theirs)], ty: ty.clone() },
                _ => cast(side),
            };
            merged.push(ScopeColumn { name: name.clone(), index: 0, ty, origin: None });
            computed.push((merged.len() - 1, expr, name.as_str()));
        }
        let rest = |scope: &Scope, by: usize| -> Vec<ScopeColumn> {
            let columns = scope.visible().into_iter().filter(|c| !names.contains(&c.name));
            columns.map(|c| ScopeColumn { index: c.index + by, ..c.clone() }).collect()
        };
        merged.extend(rest(&left.1, 0));
        merged.extend(rest(&right.scope, shift));
        let (node, _) = join(left, right, written, kind, condition)?;
        // Behind all columns of both sides come those that are computed of two.
        debug_assert!(node.width() >= shift + own, "a join has the columns of both sides");
        let mut more = Vec::new();
        for (place, expr, name) in computed {
            merged[place].index = node.width() + more.len();
            more.push((expr, name));
        }
        scope.unqualified = Some(merged);
        Ok((node.extend(more), scope))
    }
}

/// Whether something in an item may refer to what stands before the item.
fn has_lateral(item: &ast::TableWithJoins) -> bool {
    let mut factors = std::iter::once(&item.relation).chain(item.joins.iter().map(|join| &join.relation));
    factors.any(sees_more)
}

/// Whether something in an element may refer to what stands before it.
fn sees_more(factor: &ast::TableFactor) -> bool {
    match factor {
        ast::TableFactor::Derived { lateral, .. } => *lateral,
        ast::TableFactor::Table { args, .. } => args.is_some(),
        ast::TableFactor::Function { .. } => true,
        ast::TableFactor::NestedJoin { table_with_joins, .. } => has_lateral(table_with_joins),
        _ => false,
    }
}

/// A system view and its columns.
fn system(view: SystemView, alias: Option<&ast::TableAlias>) -> Result<Input> {
    let columns = view.columns().into_iter().enumerate();
    let columns =
        columns.map(|(index, (name, ty))| ScopeColumn { name: name.into(), index, ty, origin: None });
    let mut relation =
        Relation { name: view.name().into(), is_table_name: false, table: None, columns: columns.collect() };
    if let Some(alias) = alias {
        relation = relation.renamed(alias)?;
    }
    Ok((Node::system(view), Scope::of(vec![relation])))
}

/// The column of USING on one side.
fn common_column(scope: &Scope, name: &str, side: &str) -> Result<ScopeColumn> {
    let mut found = scope.visible().into_iter().filter(|c| c.name == name);
    match (found.next(), found.next()) {
        (Some(column), None) => Ok(column.clone()),
        (None, _) => Err(SqlError::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{name}\" specified in USING clause does not exist in {side} table"),
        )),
        _ => Err(SqlError::new(
            SqlState::AMBIGUOUS_COLUMN,
            format!("common column name \"{name}\" appears more than once in {side} table"),
        )),
    }
}

/// Joins two sides.
fn join(
    left: Input,
    right: Factor,
    written: &ast::TableFactor,
    kind: JoinKind,
    condition: Vec<Expr>,
) -> Result<Input> {
    let scope = combine(&left, &right, written)?;
    if !right.lateral {
        return Ok((left.0.join(kind, right.node, condition), scope));
    }
    if matches!(kind, JoinKind::Right | JoinKind::Full) && !right.node.outer_columns().is_empty() {
        return Err(at(
            SqlError::new(SqlState::INVALID_COLUMN_REFERENCE, "invalid reference to FROM-clause entry")
                .with_detail("The combining JOIN type must be INNER or LEFT for a LATERAL reference."),
            position_of(written.span()),
        ));
    }
    Ok((join_lateral(left.0, kind, right.node, condition)?, scope))
}

/// The names of both sides.
fn combine(left: &Input, right: &Factor, written: &ast::TableFactor) -> Result<Scope> {
    let shift = left.0.width();
    let mut relations = left.1.relations.clone();
    for relation in &right.scope.relations {
        if relations.iter().any(|known| known.name == relation.name) {
            let error = SqlError::new(
                SqlState(*b"42712"),
                format!("table name \"{}\" specified more than once", relation.name),
            );
            return Err(at(error, position_of(written.span())));
        }
        relations.push(relation.clone().shifted(shift));
    }
    let unqualified = if left.1.unqualified.is_some() || right.scope.unqualified.is_some() {
        let mut columns: Vec<ScopeColumn> = left.1.visible().into_iter().cloned().collect();
        let theirs = right.scope.visible().into_iter();
        columns.extend(theirs.map(|c| ScopeColumn { index: c.index + shift, ..c.clone() }));
        Some(columns)
    } else {
        None
    };
    Ok(Scope { relations, unqualified, outer: None })
}

impl super::Query {
    /// What the query is in FROM.
    pub(super) fn relation(&self, name: String) -> Relation {
        let columns = self.columns.iter().enumerate().map(|(index, column)| ScopeColumn {
            name: column.name.clone(),
            index,
            ty: column.ty.clone(),
            origin: column.origin,
        });
        Relation { name, is_table_name: false, table: None, columns: columns.collect() }
    }
}
