//! VALUES.

use carousel_engine::{
    SqlError, SqlState,
    error::Result,
    expr::{ArgType, Expr},
};
use sqlparser::ast::{self, Spanned};

use crate::{
    expression::{Clause, Term},
    names::{Scope, at},
    parse::{Source, position_of},
    plan::{OutputColumn, QueryPlan},
    select::{Item, Planner, Shape, check_width, unsupported},
};

impl Planner<'_> {
    pub(crate) fn values(
        &mut self,
        values: &ast::Values,
        order_by: Option<&ast::OrderBy>,
        limits: (Option<Expr>, Option<Expr>),
    ) -> Result<(QueryPlan, Vec<OutputColumn>)> {
        let (rows, items) = self.values_rows(values)?;
        let columns = items.iter().map(Item::column).collect();
        let scope = Scope::empty();
        let (sort, hidden) = self.order_by(&scope, order_by, &items, &mut Shape::default())?;
        if !hidden.is_empty() {
            return unsupported("ORDER BY of an expression on VALUES");
        }
        Ok(self.rows(rows, Vec::new(), columns, sort, limits))
    }

    /// The rows of VALUES, and their columns.
    pub(crate) fn values_rows(&mut self, values: &ast::Values) -> Result<(Vec<Vec<Expr>>, Vec<Item>)> {
        let scope = Scope::empty();
        let lists = lists(values, self.source)?;
        let width = lists.first().map_or(0, |l| l.len());
        check_width(width)?;
        let mut terms: Vec<Vec<Term>> = Vec::with_capacity(lists.len());
        for list in &lists {
            terms.push(self.resolve(&scope, Clause::Values, |r| list.iter().map(|e| r.term(e)).collect())?);
        }
        let mut types = Vec::with_capacity(width);
        for column in 0..width {
            let arguments: Vec<ArgType> = terms.iter().map(|row| row[column].arg_type()).collect();
            let of_column = terms.iter().map(|row| &row[column]);
            types.push(
                self.resolve(&scope, Clause::Values, |r| r.common_type("VALUES", &arguments, of_column))?,
            );
        }
        let mut rows = Vec::with_capacity(terms.len());
        for row in terms {
            rows.push(self.resolve(&scope, Clause::Values, |r| {
                row.into_iter().zip(&types).map(|(t, ty)| r.convert(t, ty)).collect::<Result<Vec<_>>>()
            })?);
        }
        let items: Vec<Item> = types
            .iter()
            .enumerate()
            .map(|(index, ty)| Item {
                name: format!("column{}", index + 1),
                expr: Expr::column(index, ty.clone()),
                origin: None,
                references: Vec::new(),
                position: None,
                unknown: None,
            })
            .collect();
        Ok((rows, items))
    }
}

/// The rows of VALUES, all of one length (42601 otherwise).
pub(crate) fn lists<'v>(values: &'v ast::Values, source: &Source) -> Result<Vec<&'v [ast::Expr]>> {
    let ast::Values { explicit_row, value_keyword, rows } = values;
    if *explicit_row || *value_keyword {
        return unsupported("ROW or VALUE in VALUES");
    }
    let mut lists: Vec<&[ast::Expr]> = Vec::with_capacity(rows.len());
    for row in rows {
        let list: &[ast::Expr] = &row.content;
        if list.is_empty() {
            return Err(source.syntax_error(None));
        }
        if lists.first().is_some_and(|first| first.len() != list.len()) {
            return Err(at(
                SqlError::new(SqlState::SYNTAX_ERROR, "VALUES lists must all be the same length"),
                list.first().and_then(|e| position_of(e.span())),
            ));
        }
        lists.push(list);
    }
    Ok(lists)
}
