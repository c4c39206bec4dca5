//! Expressions: from syntax to the engine's typed form.
//!
//! What PostgreSQL calls an unknown literal - a quoted string, NULL or a parameter without a type - stays a [`Term`]
//! until the place where it stands gives it a type.

use std::sync::Arc;

use carousel_engine::{
    SqlError, SqlState, Type, Value,
    aggregate::AggregateCall,
    datetime::asks_for_now,
    error::Result,
    expr::{
        ArgType, CastContext, CastKind, CompareOp, Expr, Function, cast_allowed, resolve, select_common_type,
        walk,
    },
    text::parse_value,
};
use sqlparser::ast::{self, BinaryOperator, Spanned, UnaryOperator};

use crate::{
    literals::{negated, number_literal, written_number},
    names::{Scope, at},
    parse::{Source, position_of, too_deep},
    plan::{SESSION_VALUES, SessionValue},
    relational::Environment,
    settings::Settings,
    types::{self, plain_name},
};

/// How deep an expression may nest.
const MAX_DEPTH: usize = 300;
/// Columns from this index on stand for aggregates.
pub(crate) const AGGREGATES: usize = 1 << 24;
/// Columns from this index on stand for window functions.
pub(crate) const WINDOWS: usize = 1 << 25;
/// Columns from this index on stand for subqueries; those from `1 << 32` on belong to outer queries.
pub(crate) const SUBQUERIES: usize = 1 << 26;

/// The clause that an expression stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clause {
    SelectList,
    /// The select list of an operand of a set operation: parameters in it take their types from the other one.
    Operand,
    Where,
    GroupBy,
    Having,
    OrderBy,
    Limit,
    Values,
    Update,
    Returning,
    Default,
    Filter,
    AggregateArgument,
    Execute,
    Partition,
    JoinOn,
    FromFunction,
    Window,
}

impl Clause {
    /// Whether aggregates may stand here.
    fn has_aggregates(self) -> bool {
        matches!(
            self,
            Clause::SelectList | Clause::Operand | Clause::Having | Clause::OrderBy | Clause::Window
        )
    }

    /// Whether window functions may stand here.
    pub(crate) fn has_windows(self) -> bool {
        matches!(self, Clause::SelectList | Clause::Operand | Clause::OrderBy)
    }

    /// Whether the expression is evaluated once for the statement or for each row that is written in it.
    fn is_once(self) -> bool {
        matches!(self, Clause::Values | Clause::Default | Clause::Limit | Clause::Execute | Clause::Partition)
    }

    /// As PostgreSQL's errors name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Clause::SelectList | Clause::Operand => "SELECT",
            Clause::Where => "WHERE",
            Clause::GroupBy => "GROUP BY",
            Clause::Having => "HAVING",
            Clause::OrderBy => "ORDER BY",
            Clause::Limit => "LIMIT",
            Clause::Values => "VALUES",
            Clause::Update => "UPDATE",
            Clause::Returning => "RETURNING",
            Clause::Default => "DEFAULT expressions",
            Clause::Filter => "FILTER",
            Clause::AggregateArgument => "aggregate arguments",
            Clause::Execute => "EXECUTE parameters",
            Clause::Partition => "partition bound",
            Clause::JoinOn => "JOIN conditions",
            Clause::FromFunction => "functions in FROM",
            Clause::Window => "window definitions",
        }
    }
}

/// What is shared by all expressions of a statement.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Types of the parameters, as declared or inferred so far.
    pub(crate) parameters: Vec<Option<Type>>,
    /// Session values that expressions refer to.
    pub(crate) session_values: Vec<SessionValue>,
    /// Where quoted literals are whose value depends on the session, and what they are read as.
    pub(crate) read_in_session: Vec<(Option<u32>, Type)>,
    /// What a statement that is not about one table needs besides.
    pub(crate) relational: Option<Environment>,
}

impl Shared {
    /// There is a parameter of this number.
    fn count_parameter(&mut self, index: usize) -> &mut Option<Type> {
        if self.parameters.len() < index {
            self.parameters.resize(index, None);
        }
        &mut self.parameters[index - 1]
    }

    /// A parameter is of a type, unless it is known to be of another.
    pub(crate) fn infer_parameter(&mut self, index: usize, ty: &Type) {
        self.count_parameter(index).get_or_insert_with(|| ty.without_modifiers());
    }
}

/// The number of a parameter.
pub(crate) fn parameter_number(value: &ast::Value) -> Option<usize> {
    let ast::Value::Placeholder(name) = value else { return None };
    let index = name.strip_prefix('$').and_then(|n| n.parse::<usize>().ok());
    index.filter(|index| (1..=65_535).contains(index))
}

/// The text of a literal that is quoted in one of the forms whose type is whatever is wanted.
pub(crate) fn quoted(value: &ast::Value) -> Option<&str> {
    use ast::Value as V;
    match value {
        V::SingleQuotedString(text)
        | V::EscapedStringLiteral(text)
        | V::UnicodeStringLiteral(text)
        | V::NationalStringLiteral(text) => Some(text),
        V::DollarQuotedString(text) => Some(&text.value),
        _ => None,
    }
}

/// Whether a text can be another value of this type in another session, or at another time.
pub(crate) fn is_of_session(ty: &Type) -> bool {
    matches!(ty, Type::Date | Type::Time | Type::Timestamp | Type::TimestampTz)
}

/// Whether an expression has a value that is anew at each use.
pub(crate) fn is_volatile(expr: &Expr, session_values: &[SessionValue]) -> bool {
    let mut volatile = false;
    walk(expr, &mut |part| {
        if let Expr::Parameter { index, .. } = part {
            let value = index.checked_sub(SESSION_VALUES).and_then(|i| session_values.get(i));
            volatile |= value.is_some_and(SessionValue::is_volatile);
        }
    });
    volatile
}

/// What replicas would not draw alike.
pub(crate) fn random_for_each_row() -> SqlError {
    SqlError::unsupported("a random value for each row of a table")
}

/// An expression whose type may still be unknown.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) kind: TermKind,
    pub(crate) position: Option<u32>,
}

/// See [`Term`].
#[derive(Clone, Debug)]
pub(crate) enum TermKind {
    Known(Expr),
    Text(Arc<str>),
    Null,
    Parameter(usize),
}

/// Of how many parts an expression may be that is needed in several places, in all of them together.
const MOST_COPIED: usize = 100_000;

impl Term {
    /// 54001 when it is too large to be needed in so many places. Nested, such places multiply.
    pub(crate) fn check_copies(&self, places: usize) -> Result<()> {
        let (TermKind::Known(expr), 2..) = (&self.kind, places) else { return Ok(()) };
        let mut parts = 0usize;
        walk(expr, &mut |_| parts += 1);
        match parts.saturating_mul(places) > MOST_COPIED {
            true => Err(too_deep()),
            false => Ok(()),
        }
    }

    pub(crate) fn known(expr: Expr, position: Option<u32>) -> Term {
        Term { kind: TermKind::Known(expr), position }
    }

    pub(crate) fn arg_type(&self) -> ArgType {
        match &self.kind {
            TermKind::Known(expr) => ArgType::Known(expr.ty()),
            _ => ArgType::Unknown,
        }
    }
}

/// Resolves the expressions of one clause.
pub(crate) struct Resolver<'a> {
    pub(crate) source: &'a Source,
    pub(crate) scope: &'a Scope,
    pub(crate) settings: &'a Settings,
    pub(crate) shared: &'a mut Shared,
    pub(crate) clause: Clause,
    /// Aggregates found so far; they stand in expressions as columns from [`AGGREGATES`] on.
    pub(crate) aggregates: &'a mut Vec<AggregateCall>,
    /// Columns referred to outside of aggregates, with their positions.
    pub(crate) references: Vec<(usize, Option<u32>)>,
    depth: usize,
}

/// Folds numbers, strings and so on: what has a value already.
pub(crate) fn literal(value: Value, ty: Type) -> Expr {
    Expr::literal(value, ty)
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(
        source: &'a Source,
        scope: &'a Scope,
        settings: &'a Settings,
        shared: &'a mut Shared,
        aggregates: &'a mut Vec<AggregateCall>,
        clause: Clause,
    ) -> Resolver<'a> {
        Resolver { source, scope, settings, shared, clause, aggregates, references: Vec::new(), depth: 0 }
    }

    /// An expression of whatever type; an unknown literal is text.
    pub(crate) fn expression(&mut self, expr: &ast::Expr) -> Result<Expr> {
        let term = self.term(expr)?;
        self.settle(term)
    }

    /// Gives a term a type: text when it is unknown.
    pub(crate) fn settle(&mut self, term: Term) -> Result<Expr> {
        match term.kind {
            TermKind::Known(expr) => Ok(expr),
            _ => self.coerce(term, &Type::Text),
        }
    }

    /// An expression that must be boolean; `what` names the clause in the error (42804).
    pub(crate) fn boolean(&mut self, expr: &ast::Expr, what: &str) -> Result<Expr> {
        let term = self.term(expr)?;
        self.boolean_term(term, what)
    }

    fn boolean_term(&mut self, term: Term, what: &str) -> Result<Expr> {
        match &term.kind {
            TermKind::Known(expr) if expr.ty() != Type::Bool => Err(at(
                SqlError::new(
                    SqlState::DATATYPE_MISMATCH,
                    format!("argument of {what} must be type boolean, not type {}", plain_name(&expr.ty())),
                ),
                term.position,
            )),
            _ => self.coerce(term, &Type::Bool),
        }
    }

    /// The value of a term as `ty`, for an operator or function that wants it; the cast is known to exist.
    pub(crate) fn coerce(&mut self, term: Term, ty: &Type) -> Result<Expr> {
        let Term { kind, position } = term;
        match kind {
            TermKind::Known(expr) => {
                let from = expr.ty();
                let relabelled = matches!((&from, ty), (Type::Varchar(_), Type::Text | Type::Varchar(None)));
                if from == *ty || relabelled || from.without_modifiers() == *ty {
                    return Ok(expr);
                }
                let kind = match cast_allowed(&from, ty) {
                    Some(CastContext::Implicit) => CastKind::Implicit,
                    Some(_) => CastKind::Explicit,
                    None => return Err(at(cannot_cast(&from, ty), position)),
                };
                Ok(Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind })
            }
            TermKind::Null => Ok(literal(Value::Null, ty.without_modifiers())),
            TermKind::Text(text) => self.parse_text(&text, ty, position),
            TermKind::Parameter(index) => self.parameter(index, ty).map_err(|e| at(e, position)),
        }
    }

    /// A quoted literal as a value. What depends on the session is read when the plan is bound, and now for its errors.
    fn parse_text(&mut self, text: &Arc<str>, ty: &Type, position: Option<u32>) -> Result<Expr> {
        let plain = ty.without_modifiers();
        let value = parse_value(text, &plain, &self.settings.eval_context()).map_err(|e| at(e, position))?;
        if is_of_session(ty) && (*ty == Type::TimestampTz || asks_for_now(text)) {
            if self.clause == Clause::Default {
                self.shared.read_in_session.push((position, plain.clone()));
            }
            let text = Box::new(literal(Value::Text(text.clone()), Type::Text));
            return Ok(Expr::Cast { expr: text, to: plain, kind: CastKind::Explicit });
        }
        Ok(literal(value, plain))
    }

    fn parameter(&mut self, index: usize, ty: &Type) -> Result<Expr> {
        let ty = ty.without_modifiers();
        let slot = self
            .shared
            .parameters
            .get_mut(index - 1)
            .ok_or_else(|| SqlError::internal("a parameter that was not counted"))?;
        let known = slot.get_or_insert_with(|| ty.clone());
        if *known != ty {
            let detail = format!("{} versus {}", plain_name(known), plain_name(&ty));
            let message = format!("inconsistent types deduced for parameter ${index}");
            return Err(SqlError::new(SqlState(*b"42P08"), message).with_detail(detail));
        }
        Ok(Expr::Parameter { index, ty })
    }

    /// A term that is used again: of a parameter the type may be known by now.
    pub(crate) fn as_inferred(&self, term: &Term) -> Term {
        let TermKind::Parameter(index) = term.kind else { return term.clone() };
        match self.shared.parameters.get(index - 1) {
            Some(Some(ty)) => Term::known(Expr::Parameter { index, ty: ty.clone() }, term.position),
            _ => term.clone(),
        }
    }

    /// The value of a term as it is stored in a column of type `ty`: 42804 naming the column when there is no such
    /// cast.
    pub(crate) fn assign(&mut self, term: Term, ty: &Type, column: &str) -> Result<Expr> {
        let position = term.position;
        let expr = match term.kind {
            TermKind::Known(expr) => expr,
            _ => {
                let plain = if ty.is_string() { Type::Text } else { ty.without_modifiers() };
                let plain =
                    if matches!(term.kind, TermKind::Parameter(_)) { ty.without_modifiers() } else { plain };
                self.coerce(term, &plain)?
            }
        };
        let from = expr.ty();
        if from == *ty {
            return Ok(expr);
        }
        match cast_allowed(&from, ty) {
            Some(CastContext::Implicit | CastContext::Assignment) => {
                Ok(Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind: CastKind::Assignment })
            }
            _ => Err(at(
                SqlError::new(
                    SqlState::DATATYPE_MISMATCH,
                    format!(
                        "column \"{column}\" is of type {} but expression is of type {}",
                        plain_name(ty),
                        plain_name(&from)
                    ),
                )
                .with_hint("You will need to rewrite or cast the expression."),
                position,
            )),
        }
    }

    /// `CAST (term AS ty)`
    pub(crate) fn cast(&mut self, term: Term, ty: &Type) -> Result<Expr> {
        let position = term.position;
        let expr = match term.kind {
            TermKind::Known(expr) => expr,
            TermKind::Parameter(index) => self.parameter(index, ty)?,
            TermKind::Null => return Ok(literal(Value::Null, ty.clone())),
            TermKind::Text(_) if ty.is_string() => self.coerce(term, &Type::Text)?,
            TermKind::Text(_) => self.coerce(term, &ty.without_modifiers())?,
        };
        let from = expr.ty();
        if from == *ty {
            return Ok(expr);
        }
        if cast_allowed(&from, ty).is_none() {
            return Err(at(cannot_cast(&from, ty), position));
        }
        Ok(Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind: CastKind::Explicit })
    }

    /// Resolves an expression.
    pub(crate) fn term(&mut self, expr: &ast::Expr) -> Result<Term> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let term = stacker::maybe_grow(256 << 10, 4 << 20, || self.term_inner(expr));
        self.depth -= 1;
        term
    }

    fn term_inner(&mut self, expr: &ast::Expr) -> Result<Term> {
        use ast::Expr as E;
        let position = || position_of(expr.span());
        let unsupported = |what: &str| Err(at(SqlError::unsupported(what), position_of(expr.span())));
        match expr {
            E::Identifier(ident) => self.column(std::slice::from_ref(ident)),
            E::CompoundIdentifier(idents) => self.column(idents),
            E::Nested(inner) => self.term(inner),
            E::Value(value) => self.value(value),
            E::BinaryOp { left, op, right } => self.binary(expr, left, op, right),
            E::UnaryOp { op, expr: operand } => self.unary(op, operand),
            E::IsTrue(operand) => self.is_truth(operand, Some(true), false, "IS TRUE"),
            E::IsNotTrue(operand) => self.is_truth(operand, Some(true), true, "IS NOT TRUE"),
            E::IsFalse(operand) => self.is_truth(operand, Some(false), false, "IS FALSE"),
            E::IsNotFalse(operand) => self.is_truth(operand, Some(false), true, "IS NOT FALSE"),
            E::IsUnknown(operand) => self.is_truth(operand, None, false, "IS UNKNOWN"),
            E::IsNotUnknown(operand) => self.is_truth(operand, None, true, "IS NOT UNKNOWN"),
            E::IsNull(operand) | E::IsNotNull(operand) => {
                let negated = matches!(expr, E::IsNotNull(_));
                let operand = Box::new(self.expression(operand)?);
                Ok(Term::known(Expr::IsNull { expr: operand, negated }, position()))
            }
            E::IsDistinctFrom(left, right) | E::IsNotDistinctFrom(left, right) => {
                let negated = matches!(expr, E::IsNotDistinctFrom(..));
                let (l, r) = (self.term(left)?, self.term(right)?);
                let operator = self.source.operator_after(left.span(), "is");
                let (l, r) = self.same_type("=", l, r, operator)?;
                let expr = Expr::IsDistinct { left: Box::new(l), right: Box::new(r), negated };
                Ok(Term::known(expr, position()))
            }
            E::Between { expr: operand, negated, low, high } => {
                // A frame in the operand, whose span ends before it, has a BETWEEN of its own.
                let operator = match position_of(low.span()) {
                    Some(_) => self.source.operator_before(low.span(), "between"),
                    None => self.source.operator_after(operand.span(), "between"),
                };
                let operand_term = self.term(operand)?;
                let low = self.term(low)?;
                let high = self.term(high)?;
                let symmetric = self.source.is_followed_by(operator, "symmetric");
                let places = if symmetric { 2 } else { 1 };
                operand_term.check_copies(2 * places)?;
                [&low, &high].into_iter().try_for_each(|bound| bound.check_copies(places))?;
                let (low_op, high_op) = if *negated {
                    (("<", CompareOp::Lt), (">", CompareOp::Gt))
                } else {
                    ((">=", CompareOp::Ge), ("<=", CompareOp::Le))
                };
                let mut between = |low: &Term, high: &Term| -> Result<Expr> {
                    let [operand_term, low] = [&operand_term, low].map(|term| self.as_inferred(term));
                    let first = self.compare(low_op, operand_term.clone(), low, operator)?;
                    let [operand_term, high] = [&operand_term, high].map(|term| self.as_inferred(term));
                    let second = self.compare(high_op, operand_term, high, operator)?;
                    let sides = vec![first, second];
                    Ok(if *negated { Expr::Or(sides) } else { Expr::And(sides) })
                };
                let mut whole = between(&low, &high)?;
                if symmetric {
                    let sides = vec![whole, between(&high, &low)?];
                    whole = if *negated { Expr::And(sides) } else { Expr::Or(sides) };
                }
                Ok(Term::known(whole, position()))
            }
            E::InList { expr: operand, list, negated } => {
                self.in_list(operand, list, *negated, false, position())
            }
            E::Like { negated, any, expr: operand, pattern, escape_char: _ } => {
                if *any {
                    return unsupported("LIKE ANY");
                }
                self.like(operand, pattern, false, *negated, position())
            }
            E::ILike { negated, any, expr: operand, pattern, escape_char: _ } => {
                if *any {
                    return unsupported("ILIKE ANY");
                }
                self.like(operand, pattern, true, *negated, position())
            }
            E::AnyOp { left, compare_op, right, is_some: _ } if matches!(right.as_ref(), E::Subquery(_)) => {
                let E::Subquery(query) = right.as_ref() else { return unsupported("ANY") };
                self.quantified(left, compare_op, query, false, position())
            }
            E::AllOp { left, compare_op, right } if matches!(right.as_ref(), E::Subquery(_)) => {
                let E::Subquery(query) = right.as_ref() else { return unsupported("ALL") };
                self.quantified(left, compare_op, query, true, position())
            }
            E::AnyOp { left, compare_op: BinaryOperator::Eq, right, is_some: _ } => match right.as_ref() {
                E::Array(array) => self.in_list(left, &array.elem, false, true, position()),
                _ => unsupported("ANY over anything but an ARRAY[…]"),
            },
            E::AllOp { left, compare_op: BinaryOperator::NotEq, right } => match right.as_ref() {
                E::Array(array) => self.in_list(left, &array.elem, true, true, position()),
                _ => unsupported("ALL over anything but an ARRAY[…]"),
            },
            E::Cast { kind, expr: operand, data_type, array, format } => {
                if *array
                    || format.is_some()
                    || !matches!(kind, ast::CastKind::Cast | ast::CastKind::DoubleColon)
                {
                    return unsupported("this form of CAST");
                }
                let (cast, written) = match kind {
                    ast::CastKind::DoubleColon => {
                        let cast = self.source.operator_after(operand.span(), "::");
                        (cast, self.source.next_position(cast))
                    }
                    _ => {
                        let before_type = self.source.operator_after(operand.span(), "as");
                        let cast = self.source.operator_before(operand.span(), "cast");
                        (cast, self.source.next_position(before_type))
                    }
                };
                let ty = types::resolve(data_type).map_err(|e| at(e, written))?;
                let term = self.term(operand)?;
                let position = term.position;
                let expr = self.cast(term, &ty).map_err(|mut e| {
                    if e.code == SqlState::CANNOT_COERCE {
                        e.position = cast;
                    }
                    e
                })?;
                Ok(Term::known(expr, position))
            }
            E::TypedString(ast::TypedString { data_type, value, uses_odbc_syntax: _ }) => {
                let ty = types::resolve(data_type).map_err(|e| at(e, position()))?;
                let term = self.value(value)?;
                Ok(Term::known(self.cast(term, &ty)?, position()))
            }
            E::Interval(interval) => self.interval(interval, position()),
            E::Case { case_token: _, end_token: _, operand, conditions, else_result } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), position())
            }
            E::Function(function) => self.function(function),
            E::AtTimeZone { timestamp, time_zone } => {
                let operator = self.source.operator_after(timestamp.span(), "at");
                self.special("timezone", &[time_zone, timestamp], operator)
            }
            E::Extract { field, syntax: _, expr: operand } => {
                let field = field.to_string().trim_matches(['\'', '"']).to_lowercase();
                let field = Term::known(literal(Value::text(field), Type::Text), position());
                let operand = self.term(operand)?;
                let call = self.source.operator_before(expr.span(), "extract");
                self.call("extract", vec![field, operand], call)
            }
            E::Ceil { expr: operand, field } | E::Floor { expr: operand, field } => {
                let name = if matches!(expr, E::Ceil { .. }) { "ceil" } else { "floor" };
                if !matches!(field, ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime)) {
                    return unsupported("CEIL or FLOOR to a unit");
                }
                self.special(name, &[operand], self.source.operator_before(operand.span(), name))
            }
            E::Position { expr: part, r#in } => {
                self.special("position", &[r#in, part], self.source.operator_before(part.span(), "position"))
            }
            E::Substring { expr: operand, substring_from, substring_for, special: _, shorthand: _ } => {
                let call = self.source.operator_before(operand.span(), "substring");
                let mut arguments = vec![self.term(operand)?];
                match (substring_from, substring_for) {
                    (Some(from), _) => arguments.push(self.term(from)?),
                    (None, _) => arguments.push(Term::known(literal(Value::Int4(1), Type::Int4), None)),
                }
                if let Some(length) = substring_for {
                    arguments.push(self.term(length)?);
                }
                self.call("substring", arguments, call)
            }
            E::Trim { trim_where, trim_what, expr: operand, trim_characters } => {
                let name = match trim_where {
                    None | Some(ast::TrimWhereField::Both) => "btrim",
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                };
                let call = self.source.operator_before(expr.span(), "trim");
                let mut arguments = vec![self.term(operand)?];
                for argument in trim_what.iter().map(Box::as_ref).chain(trim_characters.iter().flatten()) {
                    arguments.push(self.term(argument)?);
                }
                self.call(name, arguments, call)
            }
            E::Overlay { expr: operand, overlay_what, overlay_from, overlay_for } => {
                let call = self.source.operator_before(operand.span(), "overlay");
                let mut arguments =
                    vec![self.term(operand)?, self.term(overlay_what)?, self.term(overlay_from)?];
                if let Some(length) = overlay_for {
                    arguments.push(self.term(length)?);
                }
                self.call("overlay", arguments, call)
            }
            E::Collate { expr: operand, collation } => {
                let name = collation.to_string().trim_matches('"').to_owned();
                if !matches!(
                    name.as_str(),
                    "C" | "POSIX" | "default" | "pg_catalog.\"C\"" | "pg_catalog.\"default"
                ) {
                    return unsupported(&format!("COLLATE {collation}"));
                }
                self.term(operand)
            }
            E::Tuple(_) => unsupported("a row constructor here"),
            E::Subquery(query) => self.scalar_subquery(query, position()),
            E::Exists { subquery, negated } => self.exists(subquery, *negated, position()),
            E::InSubquery { expr: operand, subquery, negated } => {
                self.in_subquery(operand, subquery, *negated, position())
            }
            E::SimilarTo { .. } => unsupported("SIMILAR TO"),
            E::Array(_) => unsupported("ARRAY[…]"),
            E::AnyOp { .. } => unsupported("ANY"),
            E::AllOp { .. } => unsupported("ALL"),
            E::CompoundFieldAccess { .. } | E::JsonAccess { .. } => {
                unsupported("access to elements of a value")
            }
            E::IsNormalized { .. } => unsupported("IS NORMALIZED"),
            E::GroupingSets(_) => unsupported("GROUPING SETS"),
            E::Cube(_) => unsupported("CUBE"),
            E::Rollup(_) => unsupported("ROLLUP"),
            E::InUnnest { .. }
            | E::RLike { .. }
            | E::Convert { .. }
            | E::Prefixed { .. }
            | E::Struct { .. }
            | E::Named { .. }
            | E::Dictionary(_)
            | E::Map(_)
            | E::MatchAgainst { .. }
            | E::Wildcard(_)
            | E::QualifiedWildcard(..)
            | E::OuterJoin(_)
            | E::Prior(_)
            | E::Lambda(_)
            | E::MemberOf(_) => unsupported("this form of expression"),
        }
    }

    fn column(&mut self, idents: &[ast::Ident]) -> Result<Term> {
        let position = idents.first().and_then(|i| position_of(i.span));
        if self.scope.relations.is_empty()
            && let [ident] = idents
            && ident.value.eq_ignore_ascii_case("default")
            && ident.quote_style.is_none()
        {
            return Err(at(
                SqlError::new(SqlState::SYNTAX_ERROR, "DEFAULT is not allowed in this context"),
                position,
            ));
        }
        if let [ident] = idents
            && ident.quote_style.is_none()
            && matches!(ident.value.to_lowercase().as_str(), "current_schema" | "current_role")
        {
            return self.keyword_function(&ident.value.to_lowercase(), position);
        }
        if self.clause == Clause::Default {
            return Err(at(
                SqlError::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "cannot use column reference in DEFAULT expression",
                ),
                position,
            ));
        }
        let found = self.scope.column(idents)?;
        self.references.push((found.index, position));
        Ok(Term::known(Expr::column(found.index, found.ty), position))
    }

    fn value(&mut self, value: &ast::ValueWithSpan) -> Result<Term> {
        use ast::Value as V;
        let position = position_of(value.span);
        if let Some(text) = quoted(&value.value) {
            return Ok(Term { kind: TermKind::Text(text.into()), position });
        }
        match &value.value {
            V::Number(number, false) => Ok(Term::known(number_literal(number)?, position)),
            V::Boolean(b) => Ok(Term::known(literal(Value::Bool(*b), Type::Bool), position)),
            V::Null => Ok(Term { kind: TermKind::Null, position }),
            V::Placeholder(name) => {
                let Some(index) = parameter_number(&value.value) else {
                    return Err(at(
                        SqlError::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {name}")),
                        position,
                    ));
                };
                if matches!(self.clause, Clause::Default | Clause::Partition | Clause::Execute) {
                    return Err(at(
                        SqlError::new(
                            SqlState::UNDEFINED_PARAMETER,
                            format!("there is no parameter ${index}"),
                        ),
                        position,
                    ));
                }
                self.shared.count_parameter(index);
                let kind = match &self.shared.parameters[index - 1] {
                    Some(ty) => TermKind::Known(Expr::Parameter { index, ty: ty.clone() }),
                    None => TermKind::Parameter(index),
                };
                Ok(Term { kind, position })
            }
            other => Err(at(SqlError::unsupported(format!("the literal {other}")), position)),
        }
    }

    fn interval(&mut self, interval: &ast::Interval, position: Option<u32>) -> Result<Term> {
        let ast::Interval {
            value,
            leading_field,
            leading_precision,
            last_field,
            fractional_seconds_precision,
        } = interval;
        if leading_precision.is_some() || last_field.is_some() || fractional_seconds_precision.is_some() {
            return Err(at(SqlError::unsupported("INTERVAL with several fields or a precision"), position));
        }
        let term = self.term(value)?;
        let text = match (&term.kind, leading_field) {
            (TermKind::Text(text), None) => text.clone(),
            // A bare number counts the field's unit.
            (TermKind::Text(text), Some(field)) if text.trim().parse::<f64>().is_ok() => {
                format!("{text} {field}").into()
            }
            (TermKind::Text(_), Some(_)) => {
                return Err(at(SqlError::unsupported("INTERVAL with a field"), position));
            }
            _ => return Err(self.source.syntax_error(term.position)),
        };
        let expr = self.coerce(Term { kind: TermKind::Text(text), position }, &Type::Interval)?;
        Ok(Term::known(expr, position))
    }

    fn is_truth(
        &mut self,
        operand: &ast::Expr,
        truth: Option<bool>,
        negated: bool,
        what: &str,
    ) -> Result<Term> {
        let position = position_of(operand.span());
        let expr = Box::new(self.boolean(operand, what)?);
        Ok(Term::known(Expr::IsTruth { expr, truth, negated }, position))
    }

    fn unary(&mut self, op: &UnaryOperator, operand: &ast::Expr) -> Result<Term> {
        let symbol = match op {
            UnaryOperator::Not => {
                let position = self.source.operator_before(operand.span(), "not");
                let expr = self.boolean(operand, "NOT")?;
                return Ok(Term::known(Expr::Not(Box::new(expr)), position));
            }
            UnaryOperator::Minus => {
                // The sign belongs to the number: -2147483648 is an integer.
                if let Some(number) = written_number(operand) {
                    let position = self.source.operator_before(operand.span(), "-");
                    return Ok(Term::known(number_literal(&negated(&number))?, position));
                }
                "-"
            }
            UnaryOperator::Plus => "+",
            UnaryOperator::BitwiseNot => "~",
            UnaryOperator::PGAbs => "@",
            UnaryOperator::PGSquareRoot | UnaryOperator::PGCubeRoot => {
                let name = if *op == UnaryOperator::PGSquareRoot { "sqrt" } else { "cbrt" };
                let position = self.source.operator_before(operand.span(), &op.to_string());
                let term = self.term(operand)?;
                let expr = self.coerce(term, &Type::Float8)?;
                return self.call(name, vec![Term::known(expr, position)], position);
            }
            // What was a factorial once is no syntax any more.
            UnaryOperator::PGPostfixFactorial => {
                let operator = self.source.operator_after(operand.span(), "!");
                return Err(self.source.syntax_error(self.source.next_position(operator)));
            }
            other => {
                // For types that do not exist here, so that no type has it.
                let symbol = other.to_string();
                let position = self.source.operator_before(operand.span(), &symbol);
                let term = self.term(operand)?;
                return self.call(&symbol, vec![term], position);
            }
        };
        let position = self.source.operator_before(operand.span(), symbol);
        let term = self.term(operand)?;
        self.call(symbol, vec![term], position)
    }

    fn binary(
        &mut self,
        whole: &ast::Expr,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
    ) -> Result<Term> {
        let position = position_of(left.span());
        match op {
            BinaryOperator::And | BinaryOperator::Or => {
                let what = if *op == BinaryOperator::And { "AND" } else { "OR" };
                let mut operands = Vec::new();
                for operand in chain(whole, op) {
                    match self.boolean(operand, what)? {
                        Expr::And(inner) if *op == BinaryOperator::And => operands.extend(inner),
                        Expr::Or(inner) if *op == BinaryOperator::Or => operands.extend(inner),
                        other => operands.push(other),
                    }
                }
                let expr = if *op == BinaryOperator::And { Expr::And(operands) } else { Expr::Or(operands) };
                return Ok(Term::known(expr, position));
            }
            _ => {}
        }
        if *op == BinaryOperator::StringConcat {
            return self.concatenation(&chain(whole, op), position);
        }
        let comparison = match op {
            BinaryOperator::Eq => Some(("=", CompareOp::Eq)),
            BinaryOperator::NotEq => Some(("<>", CompareOp::Ne)),
            BinaryOperator::Lt => Some(("<", CompareOp::Lt)),
            BinaryOperator::LtEq => Some(("<=", CompareOp::Le)),
            BinaryOperator::Gt => Some((">", CompareOp::Gt)),
            BinaryOperator::GtEq => Some((">=", CompareOp::Ge)),
            _ => None,
        };
        if let Some(comparison) = comparison {
            if let (ast::Expr::Tuple(l), ast::Expr::Tuple(r)) = (left, right) {
                return self.compare_rows(comparison, l, r, position);
            }
            let operator = self.source.operator_after(left.span(), &op.to_string());
            // Comparisons do not associate.
            if matches!(left, ast::Expr::BinaryOp { op, .. } if is_comparison(op)) {
                return Err(self.source.syntax_error(operator));
            }
            let (l, r) = (self.term(left)?, self.term(right)?);
            return Ok(Term::known(self.compare(comparison, l, r, operator)?, position));
        }
        let like = match op {
            BinaryOperator::PGLikeMatch => Some((false, false)),
            BinaryOperator::PGILikeMatch => Some((true, false)),
            BinaryOperator::PGNotLikeMatch => Some((false, true)),
            BinaryOperator::PGNotILikeMatch => Some((true, true)),
            _ => None,
        };
        if let Some((insensitive, negated)) = like {
            return self.like(left, right, insensitive, negated, position);
        }
        let symbol = match op {
            BinaryOperator::Plus => "+",
            BinaryOperator::Minus => "-",
            BinaryOperator::Multiply => "*",
            BinaryOperator::Divide => "/",
            BinaryOperator::Modulo => "%",
            BinaryOperator::PGExp => "^",
            BinaryOperator::BitwiseAnd => "&",
            BinaryOperator::BitwiseOr => "|",
            BinaryOperator::PGBitwiseXor => "#",
            BinaryOperator::PGBitwiseShiftLeft => "<<",
            BinaryOperator::PGBitwiseShiftRight => ">>",
            BinaryOperator::PGRegexMatch => "~",
            BinaryOperator::PGRegexIMatch => "~*",
            BinaryOperator::PGRegexNotMatch => "!~",
            BinaryOperator::PGRegexNotIMatch => "!~*",
            BinaryOperator::PGStartsWith => "^@",
            BinaryOperator::Spaceship => "<=>",
            BinaryOperator::Custom(symbol) => symbol,
            other => return Err(at(SqlError::unsupported(format!("operator {other}")), position)),
        };
        let operator = self.source.operator_after(left.span(), symbol);
        let (l, r) = (self.term(left)?, self.term(right)?);
        let mut term = self.call(symbol, vec![l, r], operator)?;
        term.position = position;
        Ok(term)
    }

    /// `a || b || …`, whose types are found from the left. Texts come together in pairs, so that many of them nest no deeper
    /// than the engine evaluates.
    fn concatenation(&mut self, operands: &[&ast::Expr], position: Option<u32>) -> Result<Term> {
        let mut joined: Option<Term> = None;
        for operand in operands {
            let right = self.term(operand)?;
            joined = Some(match joined {
                None => right,
                Some(left) => {
                    let operator = self.source.operator_before(operand.span(), "||");
                    self.call("||", vec![left, right], operator)?
                }
            });
        }
        let joined = joined.ok_or_else(|| SqlError::internal("a concatenation of nothing"))?;
        Ok(Term::known(in_pairs(self.settle(joined)?), position))
    }

    fn case(
        &mut self,
        operand: Option<&ast::Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
        position: Option<u32>,
    ) -> Result<Term> {
        let operand = operand.map(|o| self.term(o)).transpose()?;
        // An unknown operand is text, as in PostgreSQL.
        let operand = match operand {
            Some(term) => {
                let position = term.position;
                let term = Term::known(self.settle(term)?, position);
                term.check_copies(conditions.len())?;
                Some(term)
            }
            None => None,
        };
        let mut tests = Vec::new();
        let mut results = Vec::new();
        for ast::CaseWhen { condition, result } in conditions {
            tests.push(match &operand {
                None => self.boolean(condition, "CASE/WHEN")?,
                Some(operand) => {
                    let value = self.term(condition)?;
                    let position = value.position;
                    self.compare(("=", CompareOp::Eq), operand.clone(), value, position)?
                }
            });
            results.push(self.term(result)?);
        }
        let otherwise = otherwise.map(|e| self.term(e)).transpose()?;
        // PostgreSQL looks at the ELSE first.
        let arguments: Vec<ArgType> = otherwise.iter().chain(&results).map(Term::arg_type).collect();
        let ty = self.common_type("CASE", &arguments, otherwise.iter().chain(&results))?;
        let results = results.into_iter().map(|r| self.convert(r, &ty)).collect::<Result<Vec<_>>>()?;
        let otherwise = otherwise.map(|e| self.convert(e, &ty)).transpose()?.map(Box::new);
        let branches = tests.into_iter().zip(results).collect();
        Ok(Term::known(Expr::Case { branches, otherwise, ty }, position))
    }

    /// The common type; an error is placed at the first term that does not fit those before it.
    pub(crate) fn common_type<'t>(
        &mut self,
        construct: &str,
        arguments: &[ArgType],
        terms: impl Iterator<Item = &'t Term>,
    ) -> Result<Type> {
        select_common_type(construct, arguments).map_err(|error| {
            let positions: Vec<Option<u32>> = terms.map(|t| t.position).collect();
            let misfit =
                (1..=arguments.len()).find(|n| select_common_type(construct, &arguments[..*n]).is_err());
            at(error, misfit.and_then(|n| positions.get(n - 1).copied().flatten()))
        })
    }

    /// A term as exactly `ty`, which is the common type of it and others.
    pub(crate) fn convert(&mut self, term: Term, ty: &Type) -> Result<Expr> {
        let expr = self.coerce(term, ty)?;
        let from = expr.ty();
        if from == *ty
            || (from.without_modifiers() == ty.without_modifiers() && *ty == ty.without_modifiers())
        {
            return Ok(expr);
        }
        Ok(Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind: CastKind::Implicit })
    }

    fn special(&mut self, name: &str, arguments: &[&ast::Expr], position: Option<u32>) -> Result<Term> {
        let arguments = arguments.iter().map(|a| self.term(a)).collect::<Result<Vec<_>>>()?;
        self.call(name, arguments, position)
    }

    /// A call of an operator or function of the engine's catalogue.
    pub(crate) fn call(&mut self, name: &str, arguments: Vec<Term>, position: Option<u32>) -> Result<Term> {
        let types: Vec<ArgType> = arguments.iter().map(Term::arg_type).collect();
        let resolved = resolve(name, &types).map_err(|mut e| {
            if types.len() == 1 && e.code == SqlState::UNDEFINED_FUNCTION && !name.starts_with(char::is_alphabetic) {
                let hint = "No operator matches the given name and argument type. You might need to add an explicit type cast.";
                e.hint = Some(hint.into());
            }
            at(e, position)
        })?;
        let args = arguments
            .into_iter()
            .zip(&resolved.arg_types)
            .map(|(argument, ty)| self.coerce(argument, ty))
            .collect::<Result<Vec<_>>>()?;
        let function: Function = resolved.function;
        Ok(Term::known(Expr::Call { function, args, ty: resolved.return_type }, position))
    }

    /// A value that is fixed when the plan is bound.
    pub(crate) fn session_value(
        &mut self,
        value: SessionValue,
        ty: Type,
        position: Option<u32>,
    ) -> Result<Term> {
        if value.is_volatile() && !self.scope.relations.is_empty() && !self.clause.is_once() {
            return Err(at(random_for_each_row(), position));
        }
        let known = if value.is_volatile() {
            None
        } else {
            self.shared.session_values.iter().position(|v| *v == value)
        };
        let place = known.unwrap_or_else(|| {
            self.shared.session_values.push(value);
            self.shared.session_values.len() - 1
        });
        Ok(Term::known(Expr::Parameter { index: SESSION_VALUES + place, ty }, position))
    }

    /// 42803 when aggregates may not stand in this clause.
    pub(crate) fn check_aggregates(&self, position: Option<u32>) -> Result<()> {
        if self.clause.has_aggregates() {
            return Ok(());
        }
        let message = match self.clause {
            Clause::AggregateArgument => "aggregate function calls cannot be nested".into(),
            clause => format!("aggregate functions are not allowed in {}", clause.name()),
        };
        Err(at(SqlError::new(SqlState::GROUPING_ERROR, message), position))
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator as B;
    matches!(op, B::Eq | B::NotEq | B::Lt | B::LtEq | B::Gt | B::GtEq)
}

fn cannot_cast(from: &Type, to: &Type) -> SqlError {
    SqlError::new(
        SqlState::CANNOT_COERCE,
        format!("cannot cast type {} to {}", plain_name(from), plain_name(to)),
    )
}

/// The same concatenation of texts, as flat as it can be.
fn in_pairs(mut expr: Expr) -> Expr {
    let mut parts = Vec::new();
    loop {
        match expr {
            Expr::Call { function: Function::Concat, mut args, ty: Type::Text } if args.len() == 2 => {
                parts.extend(args.pop());
                expr = args.remove(0);
            }
            first => {
                parts.push(first);
                break;
            }
        }
    }
    parts.reverse();
    while parts.len() > 1 {
        let mut rest = parts.into_iter();
        parts = Vec::with_capacity(rest.len().div_ceil(2));
        while let Some(left) = rest.next() {
            parts.push(match rest.next() {
                Some(right) => {
                    Expr::Call { function: Function::Concat, args: vec![left, right], ty: Type::Text }
                }
                None => left,
            });
        }
    }
    parts.remove(0)
}

/// The operands of a chain of one associative operator, which hangs to the left: found without recursion.
fn chain<'e>(expr: &'e ast::Expr, op: &BinaryOperator) -> Vec<&'e ast::Expr> {
    let mut operands = Vec::new();
    let mut rest = expr;
    while let ast::Expr::BinaryOp { left, op: here, right } = rest {
        if here != op {
            break;
        }
        operands.push(right.as_ref());
        rest = left;
    }
    operands.push(rest);
    operands.reverse();
    operands
}
