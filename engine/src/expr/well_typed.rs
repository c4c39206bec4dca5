//! Whether an expression fits the rows that it is to be evaluated over.
//!
//! The planner makes no others; but what arrives in a message is input, and the evaluators rely on it.

use super::{Expr, check_depth, walk};
use crate::{
    error::{Result, SqlError},
    schema::Column,
    types::Type,
    value::Value,
};

/// The rows that an expression is evaluated over: some columns, or the same columns of several rows one after the
/// other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    columns: &'a [Column],
    rows: usize,
}

impl<'a> Input<'a> {
    /// One row.
    pub(crate) fn row(columns: &'a [Column]) -> Input<'a> {
        Input { columns, rows: 1 }
    }

    /// A row, and behind it another one.
    pub(crate) fn two_rows(columns: &'a [Column]) -> Input<'a> {
        Input { columns, rows: 2 }
    }

    fn ty(&self, index: usize) -> Option<&'a Type> {
        let inside = index < self.columns.len() * self.rows;
        inside.then(|| &self.columns[index % self.columns.len()].ty)
    }

    /// Refuses an expression that is too deep, refers to a column that is not there or has another type, or has operands
    /// of other types than its operators take.
    pub(crate) fn check(&self, expr: &Expr) -> Result<()> {
        // Nearly everything that comes by is a column, or a column compared with a constant.
        let is_leaf = |expr: &Expr| match expr {
            Expr::Column { index, ty } => self.ty(*index) == Some(ty),
            Expr::Literal { value, ty } => is_of(value, ty),
            _ => false,
        };
        match expr {
            Expr::Compare { left, right, .. }
                if is_leaf(left) && is_leaf(right) && same(left, &right.ty()) =>
            {
                return Ok(());
            }
            leaf if is_leaf(leaf) => return Ok(()),
            _ => {}
        }
        check_depth(expr)?;
        let mut fits = true;
        walk(expr, &mut |part| fits &= self.fits(part));
        if fits { Ok(()) } else { Err(SqlError::internal("an expression does not fit the table's columns")) }
    }

    /// As [`check`](Input::check), of conditions.
    pub(crate) fn check_conditions(&self, conditions: &[Expr]) -> Result<()> {
        conditions.iter().try_for_each(|condition| match condition.ty() {
            Type::Bool => self.check(condition),
            _ => Err(SqlError::internal("a condition that is not boolean")),
        })
    }

    /// Whether an expression fits, its operands apart.
    fn fits(&self, expr: &Expr) -> bool {
        let is_bool = |expr: &Expr| expr.ty() == Type::Bool;
        match expr {
            Expr::Column { index, ty } => {
                self.ty(*index).is_some_and(|known| known.arrow() == ty.arrow() && kind(known) == kind(ty))
            }
            Expr::Literal { value, ty } => is_of(value, ty),
            Expr::Parameter { .. } | Expr::Call { .. } | Expr::Cast { .. } | Expr::IsNull { .. } => true,
            Expr::Compare { left, right, .. } | Expr::IsDistinct { left, right, .. } => {
                same(left, &right.ty())
            }
            Expr::And(operands) | Expr::Or(operands) => operands.iter().all(is_bool),
            Expr::Not(operand) | Expr::IsTruth { expr: operand, .. } => is_bool(operand),
            Expr::InList { expr, list, .. } => list.iter().all(|member| same(member, &expr.ty())),
            Expr::Like { expr, pattern, .. } => expr.ty().is_string() && pattern.ty().is_string(),
            Expr::Case { branches, otherwise, ty } => {
                branches.iter().all(|(condition, result)| is_bool(condition) && same(result, ty))
                    && otherwise.as_ref().is_none_or(|result| same(result, ty))
            }
            Expr::Coalesce { args, ty } => args.iter().all(|arg| same(arg, ty)),
        }
    }
}

/// A type without modifiers; strings of every type compare with one another.
fn kind(ty: &Type) -> Type {
    if ty.is_string() { Type::Text } else { ty.without_modifiers() }
}

fn same(expr: &Expr, ty: &Type) -> bool {
    kind(&expr.ty()) == kind(ty)
}

fn is_of(value: &Value, ty: &Type) -> bool {
    matches!(
        (value, ty),
        (Value::Null, _)
            | (Value::Bool(_), Type::Bool)
            | (Value::Int2(_), Type::Int2)
            | (Value::Int4(_), Type::Int4)
            | (Value::Int8(_), Type::Int8)
            | (Value::Float4(_), Type::Float4)
            | (Value::Float8(_), Type::Float8)
            | (Value::Numeric(_), Type::Numeric(_))
            | (Value::Text(_), Type::Text | Type::Varchar(_) | Type::Char(_))
            | (Value::Bytea(_), Type::Bytea)
            | (Value::Date(_), Type::Date)
            | (Value::Time(_), Type::Time)
            | (Value::Timestamp(_), Type::Timestamp)
            | (Value::TimestampTz(_), Type::TimestampTz)
            | (Value::Interval(_), Type::Interval)
            | (Value::Uuid(_), Type::Uuid)
    )
}
