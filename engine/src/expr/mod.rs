//! The typed expression form: the one meaning of an expression in Carousel, PostgreSQL's.
//!
//! The planner resolves names, overloads and implicit casts; what arrives here is fully typed. Two evaluators give it
//! meaning: `eval` for one row (the reference) and `vector` for a batch (arrow kernels where they agree with the
//! reference, the reference itself elsewhere).

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

mod call;
pub mod cast;
mod decimal;
mod elementary;
pub mod eval;
mod format;
pub mod function;
pub(crate) mod identity;
mod moments_of_time;
mod nesting;
pub mod pattern;
pub mod resolve;
mod strings;
pub mod vector;
mod visit;
mod well_typed;

pub use cast::{CastContext, cast, cast_allowed};
pub use eval::{MAX_DEPTH, can_fail, check_depth, eval, eval_const, fold, qualifies};
pub use function::{Function, Signature, Volatility};
pub use resolve::{ArgType, Resolved, comparison_type, resolve, select_common_type};
pub use visit::{
    bind_parameters, children, columns, map_children, remap_columns, shift_columns, transform, walk,
};

pub(crate) use well_typed::Input;

use crate::{types::Type, value::Value};

/// What evaluation may depend on besides its input row; fixed before a message is submitted, so that every replica
/// computes the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EvalContext {
    /// Session time zone as `SHOW timezone` prints it: an IANA name or a POSIX zone such as `XYZ5XYT`,
    /// which a fixed offset is too: `<+02>-02`.
    pub time_zone: SmolStr,
    /// Microseconds since 1970-01-01 UTC at the start of the statement's transaction.
    pub now: i64,
}

impl Default for EvalContext {
    fn default() -> Self {
        EvalContext { time_zone: "UTC".into(), now: 0 }
    }
}

/// An input row of an expression.
pub trait Row {
    /// The value of column `index` (0-based), whose type is `ty`.
    fn value(&self, index: usize, ty: &Type) -> Value;
}

impl Row for [Value] {
    fn value(&self, index: usize, _ty: &Type) -> Value {
        self[index].clone()
    }
}

impl Row for Vec<Value> {
    fn value(&self, index: usize, _ty: &Type) -> Value {
        self[index].clone()
    }
}

/// Comparison operators; both sides have the same type (modifiers apart).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CompareOp {
    /// `=`
    Eq,
    /// `<>`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl CompareOp {
    /// The operator with its sides exchanged: `a < b` is `b > a`.
    pub fn swapped(self) -> CompareOp {
        match self {
            CompareOp::Eq => CompareOp::Eq,
            CompareOp::Ne => CompareOp::Ne,
            CompareOp::Lt => CompareOp::Gt,
            CompareOp::Le => CompareOp::Ge,
            CompareOp::Gt => CompareOp::Lt,
            CompareOp::Ge => CompareOp::Le,
        }
    }

    /// The operator that holds exactly when this one does not (of non-null sides).
    pub fn negated(self) -> CompareOp {
        match self {
            CompareOp::Eq => CompareOp::Ne,
            CompareOp::Ne => CompareOp::Eq,
            CompareOp::Lt => CompareOp::Ge,
            CompareOp::Le => CompareOp::Gt,
            CompareOp::Gt => CompareOp::Le,
            CompareOp::Ge => CompareOp::Lt,
        }
    }

    /// Whether the operator holds of two values that compare as `ordering`.
    pub fn holds(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            CompareOp::Eq => ordering.is_eq(),
            CompareOp::Ne => ordering.is_ne(),
            CompareOp::Lt => ordering.is_lt(),
            CompareOp::Le => ordering.is_le(),
            CompareOp::Gt => ordering.is_gt(),
            CompareOp::Ge => ordering.is_ge(),
        }
    }

    /// The operator's text.
    pub fn symbol(self) -> &'static str {
        match self {
            CompareOp::Eq => "=",
            CompareOp::Ne => "<>",
            CompareOp::Lt => "<",
            CompareOp::Le => "<=",
            CompareOp::Gt => ">",
            CompareOp::Ge => ">=",
        }
    }
}

/// How a cast came about; PostgreSQL treats lengths differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CastKind {
    /// Inserted by the planner between types of an operator.
    Implicit,
    /// Storing into a column: a string longer than `varchar(n)` is an error (22001) unless only blanks are lost.
    Assignment,
    /// `CAST` or `::`: a string longer than `varchar(n)` is cut.
    Explicit,
}

/// A typed scalar expression over one input row. What is nested deeper than [`MAX_DEPTH`] is not deserialised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum Expr {
    /// A constant; `ty` also types NULL.
    Literal {
        /// The constant.
        value: Value,
        /// Its type.
        ty: Type,
    },
    /// Column `index` of the input row.
    Column {
        /// 0-based position in the input row.
        index: usize,
        /// The column's type.
        ty: Type,
    },
    /// Parameter `$index` (1-based) of a prepared statement: replaced by a literal before submission, an error in
    /// evaluation.
    Parameter {
        /// 1-based number.
        index: usize,
        /// Its inferred type.
        ty: Type,
    },
    /// A scalar function or operator; arguments already have the types of `function`'s chosen signature.
    Call {
        /// Which function.
        function: Function,
        /// Arguments.
        args: Vec<Expr>,
        /// Result type.
        ty: Type,
    },
    /// A cast.
    Cast {
        /// What is cast.
        expr: Box<Expr>,
        /// Target type with modifiers.
        to: Type,
        /// How the cast came about.
        kind: CastKind,
    },
    /// Comparison; NULL when a side is NULL.
    Compare {
        /// Operator.
        op: CompareOp,
        /// Left side.
        left: Box<Expr>,
        /// Right side.
        right: Box<Expr>,
    },
    /// Three-valued conjunction, evaluated from the left; what follows a false operand is not evaluated.
    And(Vec<Expr>),
    /// Three-valued disjunction, evaluated from the left; what follows a true operand is not evaluated.
    Or(Vec<Expr>),
    /// Three-valued negation.
    Not(Box<Expr>),
    /// `IS NULL`, or `IS NOT NULL` when negated.
    IsNull {
        /// Operand.
        expr: Box<Expr>,
        /// `IS NOT NULL`.
        negated: bool,
    },
    /// `IS [NOT] TRUE | FALSE | UNKNOWN` (`truth` = Some(true), Some(false), None).
    IsTruth {
        /// Operand, boolean.
        expr: Box<Expr>,
        /// Which truth value.
        truth: Option<bool>,
        /// `IS NOT`.
        negated: bool,
    },
    /// `IS DISTINCT FROM`, or `IS NOT DISTINCT FROM` when negated.
    IsDistinct {
        /// Left side.
        left: Box<Expr>,
        /// Right side, of the same type.
        right: Box<Expr>,
        /// `IS NOT DISTINCT FROM`.
        negated: bool,
    },
    /// `[NOT] IN (…)` over expressions of the same type as `expr`.
    InList {
        /// Operand.
        expr: Box<Expr>,
        /// Members.
        list: Vec<Expr>,
        /// `NOT IN`.
        negated: bool,
    },
    /// `[NOT] LIKE | ILIKE`.
    Like {
        /// Operand, a string.
        expr: Box<Expr>,
        /// Pattern, a string.
        pattern: Box<Expr>,
        /// Escape character; `None` for `ESCAPE ''`; the default is a backslash.
        escape: Option<char>,
        /// `ILIKE`.
        case_insensitive: bool,
        /// `NOT`.
        negated: bool,
    },
    /// Searched `CASE`; branches are evaluated only when reached.
    Case {
        /// (condition, result) pairs, in order.
        branches: Vec<(Expr, Expr)>,
        /// `ELSE`; NULL when absent.
        otherwise: Option<Box<Expr>>,
        /// Result type.
        ty: Type,
    },
    /// `COALESCE`, operands evaluated until one is not NULL.
    Coalesce {
        /// Operands, all of type `ty`.
        args: Vec<Expr>,
        /// Result type.
        ty: Type,
    },
}

impl Expr {
    /// A literal.
    pub fn literal(value: Value, ty: Type) -> Expr {
        Expr::Literal { value, ty }
    }

    /// A reference to an input column.
    pub fn column(index: usize, ty: Type) -> Expr {
        Expr::Column { index, ty }
    }

    /// The type of the result.
    pub fn ty(&self) -> Type {
        match self {
            Expr::Literal { ty, .. }
            | Expr::Column { ty, .. }
            | Expr::Parameter { ty, .. }
            | Expr::Call { ty, .. }
            | Expr::Case { ty, .. }
            | Expr::Coalesce { ty, .. } => ty.clone(),
            Expr::Cast { to, .. } => to.clone(),
            Expr::Compare { .. }
            | Expr::And(_)
            | Expr::Or(_)
            | Expr::Not(_)
            | Expr::IsNull { .. }
            | Expr::IsTruth { .. }
            | Expr::IsDistinct { .. }
            | Expr::InList { .. }
            | Expr::Like { .. } => Type::Bool,
        }
    }
}
