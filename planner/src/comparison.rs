//! Comparisons: of values, of rows, with lists and with patterns.

use carousel_engine::{
    SqlError, SqlState, Type,
    error::Result,
    expr::{
        ArgType, CompareOp, Expr, columns, comparison_type, pattern::escape_character, select_common_type,
    },
};
use sqlparser::ast::{self, Spanned};

use crate::{
    dialect::ESCAPE,
    expression::{Resolver, Term, TermKind},
    names::{at, outer_level},
    parse::position_of,
};

impl Resolver<'_> {
    /// `(a, b) = (c, d)` and `<>`: by their members.
    pub(crate) fn compare_rows(
        &mut self,
        comparison: (&str, CompareOp),
        left: &[ast::Expr],
        right: &[ast::Expr],
        position: Option<u32>,
    ) -> Result<Term> {
        if left.len() != right.len() {
            return Err(at(
                SqlError::new(SqlState::SYNTAX_ERROR, "unequal number of entries in row expressions"),
                position,
            ));
        }
        if !matches!(comparison.1, CompareOp::Eq | CompareOp::Ne) {
            return self.order_rows(comparison.1, left, right, position);
        }
        let mut members = Vec::new();
        for (l, r) in left.iter().zip(right) {
            let (l, r) = (self.term(l)?, self.term(r)?);
            members.push(self.compare(comparison, l, r, position)?);
        }
        let joined = if comparison.1 == CompareOp::Eq { Expr::And(members) } else { Expr::Or(members) };
        Ok(Term::known(joined, position))
    }

    /// `(a, b) < (c, d)` is `a < c OR a = c AND b < d`.
    fn order_rows(
        &mut self,
        op: CompareOp,
        left: &[ast::Expr],
        right: &[ast::Expr],
        position: Option<u32>,
    ) -> Result<Term> {
        let strict = match op {
            CompareOp::Le => CompareOp::Lt,
            CompareOp::Ge => CompareOp::Gt,
            other => other,
        };
        let mut joined: Option<Expr> = None;
        for (index, (l, r)) in left.iter().zip(right).enumerate().rev() {
            let (l, r) = (self.term(l)?, self.term(r)?);
            let here = if index + 1 == left.len() { op } else { strict };
            let decides = self.compare((here.symbol(), here), l.clone(), r.clone(), position)?;
            joined = Some(match joined {
                None => decides,
                Some(rest) => {
                    let equal = self.compare(("=", CompareOp::Eq), l, r, position)?;
                    Expr::Or(vec![decides, Expr::And(vec![equal, rest])])
                }
            });
        }
        let joined = joined.ok_or_else(|| SqlError::internal("a comparison of rows without members"))?;
        Ok(Term::known(joined, position))
    }

    /// Both sides in the type in which they are compared.
    pub(crate) fn same_type(
        &mut self,
        symbol: &str,
        left: Term,
        right: Term,
        position: Option<u32>,
    ) -> Result<(Expr, Expr)> {
        let ty = comparison_type(symbol, &left.arg_type(), &right.arg_type()).map_err(|e| at(e, position))?;
        Ok((self.coerce(left, &ty)?, self.coerce(right, &ty)?))
    }

    pub(crate) fn compare(
        &mut self,
        (symbol, op): (&str, CompareOp),
        left: Term,
        right: Term,
        position: Option<u32>,
    ) -> Result<Expr> {
        let (left, right) = self.same_type(symbol, left, right, position)?;
        Ok(Expr::Compare { op, left: Box::new(left), right: Box::new(right) })
    }

    /// `IN`, and `= ANY` and `<> ALL` of an array.
    pub(crate) fn in_list(
        &mut self,
        operand: &ast::Expr,
        list: &[ast::Expr],
        negated: bool,
        is_array: bool,
        position: Option<u32>,
    ) -> Result<Term> {
        if let ast::Expr::Tuple(members) = operand {
            let mut any = Vec::new();
            for row in list {
                let ast::Expr::Tuple(row) = row else {
                    return Err(at(
                        SqlError::unsupported("IN of a row and a scalar"),
                        position_of(row.span()),
                    ));
                };
                let term = self.compare_rows(("=", CompareOp::Eq), members, row, position)?;
                any.push(self.settle(term)?);
            }
            let expr = Expr::Or(any);
            let expr = if negated { Expr::Not(Box::new(expr)) } else { expr };
            return Ok(Term::known(expr, position));
        }
        let operator = self.source.operator_after(operand.span(), "in").or(position);
        let symbol = if negated { "<>" } else { "=" };
        let operand = self.term(operand)?;
        // An array has a type of its own. Several members of a list without columns are an array to PostgreSQL, too, of a type that
        // it finds for them and the operand together; each of the others is compared by itself.
        let is_alone = |term: &Term| match &term.kind {
            TermKind::Known(expr) if !is_array => {
                columns(expr).into_iter().any(|column| outer_level(column).0 == 0)
            }
            _ => false,
        };
        let members = list.iter().map(|member| self.term(member)).collect::<Result<Vec<Term>>>()?;
        let (alone, mut array): (Vec<Term>, Vec<Term>) = members.into_iter().partition(is_alone);
        let mut types: Vec<ArgType> = array.iter().map(Term::arg_type).collect();
        let element = if is_array {
            Some(select_common_type("ARRAY", &types).map_err(|e| at(e, position))?)
        } else {
            types.insert(0, operand.arg_type());
            if array.len() > 1 { select_common_type("IN", &types).ok() } else { None }
        };
        if let Some(element) = &element {
            for member in &mut array {
                if is_array || matches!(member.kind, TermKind::Known(_)) {
                    let position = member.position;
                    let known = self.as_inferred(member);
                    *member = Term::known(self.coerce(known, element)?, position);
                }
            }
        }
        let element = element.map_or(ArgType::Unknown, ArgType::Known);
        let mut lists: Vec<(Type, Vec<Expr>)> = Vec::new();
        for member in array.into_iter().chain(alone) {
            let member = self.as_inferred(&member);
            let theirs = match member.arg_type() {
                ArgType::Unknown => element.clone(),
                known => known,
            };
            let compared =
                |a: &ArgType, b: &ArgType| comparison_type(symbol, a, b).map_err(|e| at(e, operator));
            let own =
                if lists.is_empty() { operand.arg_type() } else { self.as_inferred(&operand).arg_type() };
            let ty = compared(&own, &theirs)?;
            let ty = compared(&ArgType::Known(ty), &ArgType::Unknown)?;
            let member = self.coerce(member, &ty)?;
            match lists.iter_mut().find(|(of, _)| *of == ty) {
                Some((_, list)) => list.push(member),
                None => lists.push((ty, vec![member])),
            }
        }
        operand.check_copies(lists.len())?;
        let mut tests = Vec::with_capacity(lists.len());
        for (ty, list) in lists {
            let operand = self.as_inferred(&operand);
            tests.push(Expr::InList { expr: Box::new(self.coerce(operand, &ty)?), list, negated });
        }
        let test = match tests.len() {
            1 => tests.remove(0),
            _ if negated => Expr::And(tests),
            _ => Expr::Or(tests),
        };
        Ok(Term::known(test, position))
    }

    pub(crate) fn like(
        &mut self,
        operand: &ast::Expr,
        pattern: &ast::Expr,
        case_insensitive: bool,
        negated: bool,
        position: Option<u32>,
    ) -> Result<Term> {
        let symbol = match (case_insensitive, negated) {
            (false, false) => "~~",
            (false, true) => "!~~",
            (true, false) => "~~*",
            (true, true) => "!~~*",
        };
        let keyword = if case_insensitive { "ilike" } else { "like" };
        let operator = self.source.operator_after(operand.span(), if negated { "not" } else { keyword });
        let operand = self.term(operand)?;
        let (pattern, escape) = match pattern {
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::Custom(op), right } if op == ESCAPE => {
                (left.as_ref(), Some(right))
            }
            pattern => (pattern, None),
        };
        let mut pattern = self.term(pattern)?;
        for side in [&operand, &pattern] {
            if let ArgType::Known(ty) = side.arg_type()
                && !ty.is_string()
            {
                let message = format!(
                    "operator does not exist: {} {symbol} {}",
                    operand.arg_type(),
                    pattern.arg_type()
                );
                return Err(at(
                    SqlError::new(SqlState::UNDEFINED_FUNCTION, message).with_hint(
                        "No operator matches the given name and argument types. You might need to add explicit type casts.",
                    ),
                    operator,
                ));
            }
        }
        let escape = match escape.map(|escape| self.term(escape)).transpose()? {
            None => Some('\\'),
            Some(Term { kind: TermKind::Text(text), .. }) => escape_character(&text)?,
            // What escapes becomes a backslash.
            Some(escape) => {
                pattern = self.call("like_escape", vec![pattern, escape], operator)?;
                Some('\\')
            }
        };
        let expr = Box::new(self.settle(operand)?);
        // Blanks at the end of a pattern of type character count for nothing; those of what it is compared with do.
        let mut pattern = self.settle(pattern)?;
        if matches!(pattern.ty(), Type::Char(_)) {
            pattern = self.cast(Term::known(pattern, position), &Type::Text)?;
        }
        let pattern = Box::new(pattern);
        Ok(Term::known(Expr::Like { expr, pattern, escape, case_insensitive, negated }, position))
    }
}
