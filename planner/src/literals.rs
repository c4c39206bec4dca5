//! Numbers as they are written.

use carousel_engine::{Type, Value, error::Result, expr::Expr, numeric::Numeric};
use sqlparser::ast::{self, UnaryOperator};

use crate::expression::literal;

/// A number that is written out, with its signs and parentheses.
pub(crate) fn written_number(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Number(number, false) => Some(number.clone()),
            _ => None,
        },
        ast::Expr::Nested(inner) => written_number(inner),
        ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => Some(negated(&written_number(expr)?)),
        _ => None,
    }
}

/// A written number with its sign changed.
pub(crate) fn negated(number: &str) -> String {
    match number.strip_prefix('-') {
        Some(number) => number.to_owned(),
        None => format!("-{number}"),
    }
}

/// A number as PostgreSQL types it: integer, bigint or numeric, whatever is enough.
pub(crate) fn number_literal(number: &str) -> Result<Expr> {
    if let Ok(value) = number.parse::<i32>() {
        return Ok(literal(Value::Int4(value), Type::Int4));
    }
    if let Ok(value) = number.parse::<i64>() {
        return Ok(literal(Value::Int8(value), Type::Int8));
    }
    Ok(literal(Value::Numeric(Numeric::parse(number)?), Type::Numeric(None)))
}
