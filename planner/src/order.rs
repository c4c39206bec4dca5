//! ORDER BY and DISTINCT ON: which outputs they mean.

use carousel_engine::{SqlError, SqlState, error::Result, operation::SortKey};
use sqlparser::ast::{self, Spanned};

use crate::{
    expression::{Clause, Resolver},
    names::{Scope, at},
    parse::position_of,
    select::{Item, Planner, Resolved, Shape, unsupported},
};

impl Planner<'_> {
    /// ORDER BY over the outputs; expressions that are not among them are appended as hidden outputs.
    pub(crate) fn order_by(
        &mut self,
        scope: &Scope,
        order_by: Option<&ast::OrderBy>,
        items: &[Item],
        shape: &mut Shape,
    ) -> Result<(Vec<SortKey>, Vec<Resolved>)> {
        let (mut keys, mut hidden) = (Vec::new(), Vec::<Resolved>::new());
        if let Some(ast::OrderBy { kind, interpolate }) = order_by {
            if interpolate.is_some() {
                return unsupported("INTERPOLATE");
            }
            let ast::OrderByKind::Expressions(expressions) = kind else { return unsupported("ORDER BY ALL") };
            for ast::OrderByExpr { expr, options: ast::OrderByOptions { asc, nulls_first }, with_fill } in
                expressions
            {
                if with_fill.is_some() {
                    return unsupported("WITH FILL");
                }
                let column = self.order_column(scope, expr, items, shape, &mut hidden, "ORDER BY")?;
                let descending = *asc == Some(false);
                if keys.iter().all(|key: &SortKey| key.column != column) {
                    let nulls_first = nulls_first.unwrap_or(descending);
                    keys.push(SortKey { column, descending, nulls_first });
                }
            }
        }
        for expr in std::mem::take(&mut shape.distinct_on) {
            let column = self.order_column(scope, &expr, items, shape, &mut hidden, "DISTINCT ON")?;
            shape.distinct_columns.push(column);
        }
        complete_order(&mut keys, &shape.distinct_columns)?;
        Ok((keys, hidden))
    }

    /// The output that ORDER BY or DISTINCT ON means by an expression; one that there is not becomes a hidden one.
    fn order_column(
        &mut self,
        scope: &Scope,
        expr: &ast::Expr,
        items: &[Item],
        shape: &mut Shape,
        hidden: &mut Vec<Resolved>,
        clause: &str,
    ) -> Result<usize> {
        if let Some(index) = self.output_reference(scope, expr, items, clause, false)? {
            return Ok(index);
        }
        let mut resolver = Resolver::new(
            self.source,
            scope,
            self.settings,
            &mut self.shared,
            &mut shape.aggregates,
            Clause::OrderBy,
        );
        let typed = resolver.expression(expr)?;
        let references = std::mem::take(&mut resolver.references);
        if let Some(index) = items.iter().position(|item| item.expr == typed) {
            Ok(index)
        } else if shape.distinct {
            Err(at(
                SqlError::new(
                    SqlState::INVALID_COLUMN_REFERENCE,
                    "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                ),
                position_of(expr.span()),
            ))
        } else if let Some(index) = hidden.iter().position(|h| h.expr == typed) {
            Ok(items.len() + index)
        } else {
            hidden.push(Resolved { expr: typed, references });
            Ok(items.len() + hidden.len() - 1)
        }
    }
}

/// Makes an order begin with the columns of DISTINCT ON: 42P10 when it begins with others.
fn complete_order(keys: &mut Vec<SortKey>, distinct_on: &[usize]) -> Result<()> {
    let is_wanted = |key: &SortKey| distinct_on.contains(&key.column);
    let first_other = keys.iter().position(|key| !is_wanted(key)).unwrap_or(keys.len());
    let missing: Vec<usize> =
        distinct_on.iter().copied().filter(|column| keys.iter().all(|key| key.column != *column)).collect();
    let others_before =
        keys[first_other..].iter().any(is_wanted) || first_other < keys.len() && !missing.is_empty();
    if others_before && !distinct_on.is_empty() {
        return Err(SqlError::new(
            SqlState::INVALID_COLUMN_REFERENCE,
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
        ));
    }
    for column in missing {
        if keys.iter().all(|key| key.column != column) {
            keys.push(SortKey { column, descending: false, nulls_first: false });
        }
    }
    Ok(())
}
