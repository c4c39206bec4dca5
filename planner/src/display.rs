//! Typed expressions as text, for EXPLAIN.

use carousel_engine::{
    Type, Value,
    aggregate::AggregateCall,
    expr::{EvalContext, Expr, function::SIGNATURES},
    operation::SortKey,
    text::format_value,
};

/// Writes expressions over columns with these names.
pub(crate) struct Printer<'a> {
    pub(crate) names: &'a [String],
    pub(crate) context: &'a EvalContext,
}

/// How deep an expression is written out.
const MAX_DEPTH: usize = 64;

impl Printer<'_> {
    /// The text of an expression.
    pub(crate) fn expr(&self, expr: &Expr) -> String {
        self.nested(expr, 0)
    }

    /// Expressions in a list.
    pub(crate) fn list(&self, exprs: &[Expr]) -> String {
        exprs.iter().map(|e| self.expr(e)).collect::<Vec<_>>().join(", ")
    }

    fn literal(&self, value: &Value, ty: &Type) -> String {
        match value {
            Value::Null => "NULL".into(),
            Value::Bool(truth) => truth.to_string(),
            Value::Int2(_) | Value::Int4(_) | Value::Int8(_) | Value::Numeric(_) => {
                format_value(value, ty, self.context)
            }
            _ => format!("'{}'::{ty}", format_value(value, ty, self.context).replace('\'', "''")),
        }
    }

    fn nested(&self, expr: &Expr, depth: usize) -> String {
        if depth > MAX_DEPTH {
            return "…".into();
        }
        let one = |e: &Expr| self.nested(e, depth + 1);
        let inner = |e: &Expr| match e {
            Expr::Literal { .. } | Expr::Column { .. } | Expr::Parameter { .. } | Expr::Call { .. } => one(e),
            Expr::Cast { .. } => one(e),
            _ => format!("({})", one(e)),
        };
        let join = |operands: &[Expr], word: &str| operands.iter().map(inner).collect::<Vec<_>>().join(word);
        let not = |negated: bool| if negated { "NOT " } else { "" };
        match expr {
            Expr::Literal { value, ty } => self.literal(value, ty),
            Expr::Column { index, .. } => {
                self.names.get(*index).cloned().unwrap_or_else(|| format!("column {index}"))
            }
            Expr::Parameter { index, .. } => format!("${index}"),
            Expr::Call { function, args, .. } => {
                let name = SIGNATURES.iter().find(|s| s.function == *function && s.args.len() == args.len());
                let name = name.map_or_else(|| format!("{function:?}").to_lowercase(), |s| s.name.to_owned());
                let is_operator = !name.starts_with(|c: char| c.is_alphabetic());
                match args.as_slice() {
                    [only] if is_operator => format!("({name} {})", inner(only)),
                    [left, right] if is_operator => format!("({} {name} {})", inner(left), inner(right)),
                    args => format!("{name}({})", args.iter().map(one).collect::<Vec<_>>().join(", ")),
                }
            }
            Expr::Cast { expr, to, .. } => format!("{}::{to}", inner(expr)),
            Expr::Compare { op, left, right } => format!("{} {} {}", inner(left), op.symbol(), inner(right)),
            Expr::And(operands) => join(operands, " AND "),
            Expr::Or(operands) => join(operands, " OR "),
            Expr::Not(operand) => format!("NOT {}", inner(operand)),
            Expr::IsNull { expr, negated } => format!("{} IS {}NULL", inner(expr), not(*negated)),
            Expr::IsTruth { expr, truth, negated } => {
                let truth = match truth {
                    Some(true) => "TRUE",
                    Some(false) => "FALSE",
                    None => "UNKNOWN",
                };
                format!("{} IS {}{truth}", inner(expr), not(*negated))
            }
            Expr::IsDistinct { left, right, negated } => {
                format!("{} IS {}DISTINCT FROM {}", inner(left), not(*negated), inner(right))
            }
            Expr::InList { expr, list, negated } => {
                let list: Vec<String> = list.iter().map(one).collect();
                format!("{} {}IN ({})", inner(expr), not(*negated), list.join(", "))
            }
            Expr::Like { expr, pattern, case_insensitive, negated, .. } => {
                let operator = if *case_insensitive { "ILIKE" } else { "LIKE" };
                format!("{} {}{operator} {}", inner(expr), not(*negated), inner(pattern))
            }
            Expr::Case { branches, otherwise, .. } => {
                let mut text = "CASE".to_owned();
                for (condition, result) in branches {
                    text.push_str(&format!(" WHEN {} THEN {}", one(condition), one(result)));
                }
                if let Some(otherwise) = otherwise {
                    text.push_str(&format!(" ELSE {}", one(otherwise)));
                }
                text.push_str(" END");
                text
            }
            Expr::Coalesce { args, .. } => {
                format!("COALESCE({})", args.iter().map(one).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The text of an aggregate.
    pub(crate) fn aggregate(&self, call: &AggregateCall) -> String {
        let argument = match &call.argument {
            None => "*".to_owned(),
            Some(argument) => self.expr(argument),
        };
        let mut argument = argument;
        for (i, further) in call.further.iter().enumerate() {
            argument.push_str(if i == 1 { " ORDER BY " } else { ", " });
            argument.push_str(&self.expr(further));
            if i > 0 && call.order.get(i - 1).is_some_and(|direction| direction.descending) {
                argument.push_str(" DESC");
            }
        }
        let distinct = if call.distinct { "DISTINCT " } else { "" };
        let filter = match &call.filter {
            None => String::new(),
            Some(filter) => format!(" FILTER (WHERE {})", self.expr(filter)),
        };
        format!("{}({distinct}{argument}){filter}", call.function.name())
    }

    /// The keys of an order over columns with these names.
    pub(crate) fn sort(&self, keys: &[SortKey], columns: &[Expr]) -> String {
        let keys = keys.iter().map(|key| {
            let mut text = columns.get(key.column).map_or_else(String::new, |e| self.expr(e));
            if key.descending {
                text.push_str(" DESC");
            }
            if key.nulls_first != key.descending {
                text.push_str(if key.nulls_first { " NULLS FIRST" } else { " NULLS LAST" });
            }
            text
        });
        keys.collect::<Vec<_>>().join(", ")
    }
}
