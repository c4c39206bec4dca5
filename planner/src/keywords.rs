//! What sqlparser mixes up about key words and names. To it a key word that stands for a call is one behind a point, too, so
//! `t.user` is given back to the columns; and it takes words for names that PostgreSQL reserves.

use std::ops::ControlFlow;

use carousel_engine::error::Result;
use sqlparser::{
    ast::{
        Assignment, AssignmentTarget, Expr, Function, FunctionArguments, Ident, ObjectName, Query, Statement,
        TableAlias, TableFactor, VisitMut, VisitorMut,
    },
    tokenizer::Token,
};

use crate::{
    dialect::RESERVED,
    parse::{Source, position_of},
};

/// Makes such calls in a syntax tree columns. 42601 when a name is a reserved word.
pub(crate) fn sort_out(source: &Source, tree: &mut impl VisitMut) -> Result<()> {
    let mut visitor = SortOut { reserved: None };
    // The visitor never breaks off.
    let _ = tree.visit(&mut visitor);
    match visitor.reserved {
        Some(position) => Err(source.syntax_error(Some(position))),
        None => Ok(()),
    }
}

struct SortOut {
    /// Where the first reserved word is.
    reserved: Option<u32>,
}

impl SortOut {
    fn check(&mut self, name: &Ident) {
        let is_reserved = name.quote_style.is_none()
            && matches!(Token::make_word(&name.value, None), Token::Word(word) if RESERVED.contains(&word.keyword));
        if is_reserved && let Some(position) = position_of(name.span) {
            self.reserved = Some(self.reserved.map_or(position, |first| first.min(position)));
        }
    }

    /// Behind a point any word is a name.
    fn check_first(&mut self, name: &ObjectName) {
        if let Some(first) = name.0.first().and_then(|part| part.as_ident()) {
            self.check(first);
        }
    }

    fn check_columns(&mut self, alias: &TableAlias) {
        for column in &alias.columns {
            self.check(&column.name);
        }
    }
}

impl VisitorMut for SortOut {
    type Break = ();

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<()> {
        match statement {
            Statement::CreateTable(create) => {
                create.columns.iter().for_each(|column| self.check(&column.name));
            }
            Statement::Insert(insert) => insert.columns.iter().for_each(|column| self.check_first(column)),
            Statement::Update(update) => {
                for Assignment { target, value: _ } in &update.assignments {
                    match target {
                        AssignmentTarget::ColumnName(name) => self.check_first(name),
                        AssignmentTarget::Tuple(names) => {
                            names.iter().for_each(|name| self.check_first(name))
                        }
                    }
                }
            }
            Statement::Drop { names, .. } => names.iter().for_each(|name| self.check_first(name)),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.check(&cte.alias.name);
            self.check_columns(&cte.alias);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        self.check_first(relation);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. } = factor
        {
            self.check_columns(alias);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && let Some(column) = column(function)
        {
            *expr = column;
        }
        match expr {
            // These are no names: they are resolved where columns are.
            Expr::Identifier(name)
                if ["current_role", "current_schema", "default"]
                    .iter()
                    .any(|word| name.value.eq_ignore_ascii_case(word)) => {}
            Expr::Identifier(name) => self.check(name),
            Expr::CompoundIdentifier(names) => self.check(&names[0]),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The column that a call without parentheses and with a qualified name is.
fn column(function: &Function) -> Option<Expr> {
    let parts = &function.name.0;
    if !matches!(function.args, FunctionArguments::None) || parts.len() < 2 {
        return None;
    }
    let idents: Option<Vec<_>> = parts.iter().map(|part| part.as_ident().cloned()).collect();
    idents.map(Expr::CompoundIdentifier)
}
