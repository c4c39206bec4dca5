//! Gives `t.user` back to the columns: to sqlparser a key word that stands for a call is one behind a point, too.

use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Function, FunctionArguments, VisitMut, VisitorMut};

/// Makes columns of all such calls in a syntax tree.
pub(crate) fn restore_columns(tree: &mut impl VisitMut) {
    // The visitor never breaks off.
    let _ = tree.visit(&mut Restore);
}

struct Restore;

impl VisitorMut for Restore {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && let Some(column) = column(function)
        {
            *expr = column;
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
