//! Gives `IS [NOT] DISTINCT FROM` the precedence it has in PostgreSQL.
//!
//! sqlparser lets the right side of `IS DISTINCT FROM` reach as far as it can: `a IS DISTINCT FROM b AND c` comes out as
//! `a IS DISTINCT FROM (b AND c)`. What was written in parentheses is an [`Expr::Nested`], so a right side that is
//! an AND or an OR without them was never meant to be one operand; such trees are regrouped.
//!
//! And gives `t.user` back to the columns: to sqlparser a key word that stands for a call is one behind a point, too.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArguments, UnaryOperator, VisitMut, VisitorMut,
};

/// Regroups every expression in a syntax tree.
pub(crate) fn regroup(tree: &mut impl VisitMut) {
    // The visitor never breaks off.
    let _ = tree.visit(&mut Regroup);
}

struct Regroup;

impl VisitorMut for Regroup {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && let Some(column) = column(function)
        {
            *expr = column;
        }
        // Operands have been regrouped already, so only an operator that binds less than this one can be misplaced,
        // and it is at the top of an operand.
        while is_misplaced(expr) {
            rotate(expr);
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

/// Whether the last operand of the operator at the top is an operator that binds less.
fn is_misplaced(expr: &Expr) -> bool {
    let and_or =
        |expr: &Expr| matches!(expr, Expr::BinaryOp { op: BinaryOperator::And | BinaryOperator::Or, .. });
    let or = |expr: &Expr| matches!(expr, Expr::BinaryOp { op: BinaryOperator::Or, .. });
    match expr {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => and_or(right),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => and_or(expr),
        Expr::BinaryOp { op: BinaryOperator::And, right, .. } => or(right),
        _ => false,
    }
}

fn last_operand(expr: &mut Expr) -> Option<&mut Box<Expr>> {
    match expr {
        Expr::IsDistinctFrom(_, right)
        | Expr::IsNotDistinctFrom(_, right)
        | Expr::UnaryOp { expr: right, .. }
        | Expr::BinaryOp { right, .. } => Some(right),
        _ => None,
    }
}

/// `x ⊕ (l OR r)` becomes `(x ⊕ l) OR r`.
fn rotate(expr: &mut Expr) {
    let placeholder = || Expr::value(sqlparser::ast::Value::Null);
    let Some(inner) = last_operand(expr) else { return };
    let taken = std::mem::replace(inner.as_mut(), placeholder());
    let Expr::BinaryOp { left, op, right } = taken else {
        **inner = taken;
        return;
    };
    **inner = *left;
    let mut left = std::mem::replace(expr, placeholder());
    // What has moved down may meet another misplaced operator there.
    while is_misplaced(&left) {
        rotate(&mut left);
    }
    *expr = Expr::BinaryOp { left: Box::new(left), op, right };
}

#[cfg(test)]
mod tests {
    use sqlparser::parser::Parser;

    use super::*;
    use crate::dialect::Bounded;

    fn regrouped(sql: &str) -> String {
        let dialect = Bounded::of_tokens(100);
        let mut expr = Parser::new(&dialect)
            .try_with_sql(sql)
            .and_then(|mut parser| parser.parse_expr())
            .expect("an expression");
        regroup(&mut expr);
        shape(&expr)
    }

    /// The tree with all its parentheses.
    fn shape(expr: &Expr) -> String {
        match expr {
            Expr::BinaryOp { left, op, right } => format!("({} {op} {})", shape(left), shape(right)),
            Expr::UnaryOp { op, expr } => format!("({op} {})", shape(expr)),
            Expr::IsDistinctFrom(left, right) => format!("({} isd {})", shape(left), shape(right)),
            Expr::IsNotDistinctFrom(left, right) => format!("({} isnd {})", shape(left), shape(right)),
            Expr::Nested(inner) => format!("[{}]", shape(inner)),
            other => other.to_string(),
        }
    }

    #[test]
    fn operands_end_where_postgresql_ends_them() {
        for (sql, expected) in [
            ("a IS DISTINCT FROM b AND c", "((a isd b) AND c)"),
            ("a IS DISTINCT FROM b OR c AND d", "((a isd b) OR (c AND d))"),
            ("a IS NOT DISTINCT FROM b + 1 AND c", "((a isnd (b + 1)) AND c)"),
            ("x AND a IS DISTINCT FROM b OR c", "((x AND (a isd b)) OR c)"),
            ("x OR a IS DISTINCT FROM b AND c", "(x OR ((a isd b) AND c))"),
            ("NOT a IS DISTINCT FROM b AND c OR d", "(((NOT (a isd b)) AND c) OR d)"),
            ("a IS DISTINCT FROM (b AND c)", "(a isd [(b AND c)])"),
            ("a IS DISTINCT FROM b = c AND d", "((a isd (b = c)) AND d)"),
            ("a IS DISTINCT FROM b AND c IS DISTINCT FROM d OR e", "(((a isd b) AND (c isd d)) OR e)"),
            ("-2 ^ 3 ^ 2", "(((- 2) ^ 3) ^ 2)"),
            ("1 - -2 ^ 2", "(1 - ((- 2) ^ 2))"),
            ("2 ^ - 1 ^ + 3", "((2 ^ (- 1)) ^ (+ 3))"),
            ("- - a::b * c", "((- (- a::b)) * c)"),
            ("2 * ~ 1 + 1", "(2 * (~ (1 + 1)))"),
            ("|/ a ^ 2 | @ b || c", "(((|/ (a ^ 2)) | (@ b)) || c)"),
            ("a = b ~ c || d AND e", "((a = ((b ~ c) || d)) AND e)"),
            ("NOT a !~* b IS NULL", "(NOT a !~* b IS NULL)"),
            ("-(2 ^ 2)", "(- [(2 ^ 2)])"),
            ("x AND (a IS DISTINCT FROM b OR c)", "(x AND [((a isd b) OR c)])"),
        ] {
            assert_eq!(regrouped(sql), expected, "{sql}");
        }
    }
}
