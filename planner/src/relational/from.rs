//! FROM: tables, subqueries, common table expressions and joins, and the names they give to expressions.

use std::sync::Arc;

use carousel_engine::{
    SqlError, SqlState,
    error::Result,
    expr::{ArgType, CastKind, CompareOp, Expr},
};
use sqlparser::ast::{self, Spanned};

use super::node::{JoinKind, Node};
use crate::{
    expression::{Clause, Term},
    names::{Relation, Scope, ScopeColumn, at, parts},
    parse::position_of,
    rewrite::conjuncts,
    select::{Planner, unsupported},
};

/// A tree and the names of its columns.
pub(crate) type Input = (Node, Scope);

impl Planner<'_> {
    /// FROM; without any table it is one row without columns.
    pub(crate) fn from(&mut self, from: &[ast::TableWithJoins], outer: &Option<Arc<Scope>>) -> Result<Input> {
        let mut all: Option<Input> = None;
        for item in from {
            let left = all.take();
            let next = self.table_with_joins(item, outer, left.as_ref())?;
            all = Some(match left {
                None => next,
                Some(left) => self.cross(left, next, &item.relation)?,
            });
        }
        Ok(all.unwrap_or_else(|| (Node::one_row(), Scope::empty())))
    }

    /// A comma of FROM, or CROSS JOIN.
    fn cross(&mut self, left: Input, right: Input, written: &ast::TableFactor) -> Result<Input> {
        let scope = combine(&left, &right, written)?;
        Ok((left.0.join(JoinKind::Inner, right.0, Vec::new()), scope))
    }

    fn table_with_joins(
        &mut self,
        item: &ast::TableWithJoins,
        outer: &Option<Arc<Scope>>,
        before: Option<&Input>,
    ) -> Result<Input> {
        let ast::TableWithJoins { relation, joins } = item;
        let mut left = self.factor(relation, outer, before)?;
        for ast::Join { relation, global, join_operator } in joins {
            if *global {
                return unsupported("GLOBAL JOIN");
            }
            let right = self.factor(relation, outer, Some(&left))?;
            left = self.join(left, right, relation, join_operator, outer)?;
        }
        Ok(left)
    }

    fn factor(
        &mut self,
        factor: &ast::TableFactor,
        outer: &Option<Arc<Scope>>,
        _before: Option<&Input>,
    ) -> Result<Input> {
        let position = position_of(factor.span());
        match factor {
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                if let Some(found) = self.cte(name, alias.as_ref())? {
                    return Ok(found);
                }
                let (table, scope) = self.table_factor(factor)?;
                Ok((Node::scan(&table), scope))
            }
            ast::TableFactor::Derived { lateral, subquery, alias, sample } => {
                if *lateral {
                    return Err(at(SqlError::unsupported("LATERAL"), position));
                }
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
                let query = self.relational_query(subquery, outer.clone())?;
                let relation = query.relation(String::new()).renamed(alias)?;
                Ok((query.node, Scope::of(vec![relation])))
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias } => {
                let (node, scope) = self.table_with_joins(table_with_joins, outer, None)?;
                let Some(alias) = alias else { return Ok((node, scope)) };
                let relation = Relation {
                    name: String::new(),
                    is_table_name: false,
                    table: None,
                    columns: scope.visible().into_iter().cloned().collect(),
                };
                Ok((node, Scope::of(vec![relation.renamed(alias)?])))
            }
            other => {
                let (table, scope) = self.table_factor(other)?;
                Ok((Node::scan(&table), scope))
            }
        }
    }

    /// The common table expression of this name.
    fn cte(&mut self, name: &ast::ObjectName, alias: Option<&ast::TableAlias>) -> Result<Option<Input>> {
        let parts = parts(name)?;
        let ([name], Some(relational)) = (parts.as_slice(), &self.shared.relational) else { return Ok(None) };
        let Some(cte) = relational.ctes.iter().rev().find(|cte| cte.name == *name) else { return Ok(None) };
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
        right: Input,
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
                self.cross(left, right, written)
            }
            ast::JoinConstraint::None => Err(self.source.syntax_error(None)),
            ast::JoinConstraint::On(condition) => {
                let mut scope = combine(&left, &right, written)?;
                scope.outer = outer.clone();
                let condition = self.resolve(&scope, Clause::JoinOn, |r| r.boolean(condition, "JOIN/ON"))?;
                let condition = conjuncts(condition);
                scope.outer = None;
                let (plain, with_subqueries): (Vec<Expr>, Vec<Expr>) =
                    condition.into_iter().partition(|c| !super::subquery::has_subquery(c));
                if !with_subqueries.is_empty() && kind != JoinKind::Inner {
                    return unsupported("a subquery in the ON of an outer join");
                }
                let node = left.0.join(kind, right.0, plain);
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
                let theirs = right.1.visible();
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
        right: Input,
        written: &ast::TableFactor,
        kind: JoinKind,
        names: &[String],
    ) -> Result<Input> {
        let mut scope = combine(&left, &right, written)?;
        let shift = left.0.width();
        let mut condition = Vec::new();
        let (mut merged, mut computed) = (Vec::new(), Vec::new());
        let width = shift + right.0.width();
        for name in names {
            let mine = common_column(&left.1, name, "left")?;
            let mut theirs = common_column(&right.1, name, "right")?;
            theirs.index += shift;
            let term = |c: &ScopeColumn| Term::known(Expr::column(c.index, c.ty.clone()), None);
            let (l, r) = (term(&mine), term(&theirs));
            let arguments = [ArgType::Known(mine.ty.clone()), ArgType::Known(theirs.ty.clone())];
            let ty = self.resolve(&Scope::empty(), Clause::JoinOn, |resolver| {
                condition.push(resolver.compare(("=", CompareOp::Eq), l.clone(), r.clone(), None)?);
                resolver.common_type("JOIN/USING", &arguments, [&l, &r].into_iter())
            })?;
            let side = if kind == JoinKind::Right { &theirs } else { &mine };
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
            merged.push(ScopeColumn { name: name.clone(), index: width + computed.len(), ty, origin: None });
            computed.push((expr, name.as_str()));
        }
        let rest = |scope: &Scope, by: usize| -> Vec<ScopeColumn> {
            let columns = scope.visible().into_iter().filter(|c| !names.contains(&c.name));
            columns.map(|c| ScopeColumn { index: c.index + by, ..c.clone() }).collect()
        };
        merged.extend(rest(&left.1, 0));
        merged.extend(rest(&right.1, shift));
        scope.unqualified = Some(merged);
        Ok((left.0.join(kind, right.0, condition).extend(computed), scope))
    }
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

/// The names of both sides.
fn combine(left: &Input, right: &Input, written: &ast::TableFactor) -> Result<Scope> {
    let shift = left.0.width();
    let mut relations = left.1.relations.clone();
    for relation in &right.1.relations {
        if relations.iter().any(|known| known.name == relation.name) {
            let error = SqlError::new(
                SqlState(*b"42712"),
                format!("table name \"{}\" specified more than once", relation.name),
            );
            return Err(at(error, position_of(alias_span(written))));
        }
        relations.push(relation.clone().shifted(shift));
    }
    let unqualified = if left.1.unqualified.is_some() || right.1.unqualified.is_some() {
        let mut columns: Vec<ScopeColumn> = left.1.visible().into_iter().cloned().collect();
        let theirs = right.1.visible().into_iter();
        columns.extend(theirs.map(|c| ScopeColumn { index: c.index + shift, ..c.clone() }));
        Some(columns)
    } else {
        None
    };
    Ok(Scope { relations, unqualified, outer: None })
}

fn alias_span(factor: &ast::TableFactor) -> sqlparser::tokenizer::Span {
    factor.span()
}

impl super::Query {
    /// What the query is in FROM.
    fn relation(&self, name: String) -> Relation {
        let columns = self.columns.iter().enumerate().map(|(index, column)| ScopeColumn {
            name: column.name.clone(),
            index,
            ty: column.ty.clone(),
            origin: column.origin,
        });
        Relation { name, is_table_name: false, table: None, columns: columns.collect() }
    }
}
