//! Window functions: what stands before OVER, and the window behind it.

use carousel_engine::{
    SqlError, SqlState, Type,
    aggregate::{AggregateCall, AggregateFunction},
    error::Result,
    expr::{ArgType, CastKind, Expr},
};
use sqlparser::ast::{self, Spanned};

use crate::{
    expression::{Clause, Resolver, Term, TermKind, WINDOWS},
    names::{at, fold, parts},
    parse::position_of,
};

/// A window function.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WindowFunction {
    Aggregate(AggregateCall),
    RowNumber,
    Rank,
    DenseRank,
    PercentRank,
    CumeDist,
    Ntile(Expr),
    /// `lag` and `lead`: the value, how many rows away, and what there is instead where no such row is.
    Neighbour {
        ahead: bool,
        value: Expr,
        offset: Option<Expr>,
        default: Option<Expr>,
    },
    FirstValue(Expr),
    LastValue(Expr),
    NthValue(Expr, Expr),
}

impl WindowFunction {
    /// Its SQL name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            WindowFunction::Aggregate(call) => call.function.name(),
            WindowFunction::RowNumber => "row_number",
            WindowFunction::Rank => "rank",
            WindowFunction::DenseRank => "dense_rank",
            WindowFunction::PercentRank => "percent_rank",
            WindowFunction::CumeDist => "cume_dist",
            WindowFunction::Ntile(_) => "ntile",
            WindowFunction::Neighbour { ahead: false, .. } => "lag",
            WindowFunction::Neighbour { ahead: true, .. } => "lead",
            WindowFunction::FirstValue(_) => "first_value",
            WindowFunction::LastValue(_) => "last_value",
            WindowFunction::NthValue(..) => "nth_value",
        }
    }
}

/// A key of a window's order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OrderKey {
    pub(crate) expr: Expr,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

/// An end of a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Bound {
    UnboundedPreceding,
    Preceding(Expr),
    CurrentRow,
    Following(Expr),
    UnboundedFollowing,
}

/// What a frame counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    Rows,
    Range,
    Groups,
}

/// The rows around the current one that a function looks at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) units: Units,
    pub(crate) start: Bound,
    pub(crate) end: Bound,
}

/// A window function over its window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowCall {
    pub(crate) function: WindowFunction,
    pub(crate) partition: Vec<Expr>,
    pub(crate) order: Vec<OrderKey>,
    pub(crate) frame: Frame,
    /// Type of the result.
    pub(crate) ty: Type,
}

impl WindowCall {
    /// Its expressions.
    pub(crate) fn exprs_mut(&mut self) -> Vec<&mut Expr> {
        let mut all: Vec<&mut Expr> = self.partition.iter_mut().collect();
        all.extend(self.order.iter_mut().map(|key| &mut key.expr));
        match &mut self.function {
            WindowFunction::Aggregate(call) => {
                all.extend(call.argument.iter_mut().chain(call.filter.iter_mut()));
            }
            WindowFunction::Ntile(expr)
            | WindowFunction::FirstValue(expr)
            | WindowFunction::LastValue(expr) => all.push(expr),
            WindowFunction::NthValue(value, place) => all.extend([value, place]),
            WindowFunction::Neighbour { ahead: _, value, offset, default } => {
                all.push(value);
                all.extend(offset.iter_mut().chain(default.iter_mut()));
            }
            _ => {}
        }
        for bound in [&mut self.frame.start, &mut self.frame.end] {
            if let Bound::Preceding(expr) | Bound::Following(expr) = bound {
                all.push(expr);
            }
        }
        all
    }
}

/// 42704.
pub(super) fn unknown(window: &ast::Ident) -> SqlError {
    let message = format!("window \"{}\" does not exist", fold(window));
    at(SqlError::new(SqlState::UNDEFINED_OBJECT, message), position_of(window.span))
}

impl Resolver<'_> {
    /// A function with OVER.
    pub(crate) fn window_function(
        &mut self,
        function: &ast::Function,
        over: &ast::WindowType,
    ) -> Result<Term> {
        let position = position_of(function.name.span());
        if self.shared.relational.is_none() {
            return Err(at(SqlError::unsupported("a window function (OVER)"), position));
        }
        if !self.clause.has_windows() {
            let message = match self.clause {
                Clause::Window => "window functions are not allowed in window definitions".into(),
                Clause::AggregateArgument => {
                    "aggregate function calls cannot contain window function calls".into()
                }
                clause => format!("window functions are not allowed in {}", clause.name()),
            };
            let code = if self.clause == Clause::AggregateArgument {
                SqlState::GROUPING_ERROR
            } else {
                SqlState(*b"42P20")
            };
            return Err(at(SqlError::new(code, message), position));
        }
        let clause = std::mem::replace(&mut self.clause, Clause::Window);
        let found = self.window_call(function, over, position);
        self.clause = clause;
        let call = found?;
        let ty = call.ty.clone();
        let relational = self
            .shared
            .relational
            .as_mut()
            .ok_or_else(|| SqlError::internal("a window outside of a relational statement"))?;
        let place = match relational.windows.iter().position(|known| *known == call) {
            Some(place) => place,
            None => {
                relational.windows.push(call);
                relational.windows.len() - 1
            }
        };
        Ok(Term { kind: TermKind::Known(Expr::column(WINDOWS + place, ty)), position })
    }

    fn window_call(
        &mut self,
        function: &ast::Function,
        over: &ast::WindowType,
        position: Option<u32>,
    ) -> Result<WindowCall> {
        let unsupported = |what: &str| Err(at(SqlError::unsupported(what), position));
        let ast::Function {
            name,
            uses_odbc_syntax: _,
            parameters,
            args,
            filter,
            null_treatment,
            over: _,
            within_group,
        } = function;
        if null_treatment.is_some() {
            return unsupported("IGNORE NULLS and RESPECT NULLS");
        }
        if !within_group.is_empty() {
            return unsupported("WITHIN GROUP");
        }
        if !matches!(parameters, ast::FunctionArguments::None) {
            return unsupported("a function with parameters");
        }
        let (distinct, arguments) = match args {
            ast::FunctionArguments::List(list) if list.clauses.is_empty() => {
                let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
                (distinct, list.args.as_slice())
            }
            _ => return unsupported("this form of window function"),
        };
        if distinct {
            return unsupported("DISTINCT for window functions");
        }
        let parts = parts(name)?;
        let name = parts.last().map_or("", String::as_str);
        let (function, ty) = match crate::functions::aggregate(name) {
            Some(aggregate) => {
                // Over groups its arguments may hold the aggregates of the groups.
                let arguments = self.aggregate_arguments(arguments, position)?;
                let filter = filter.as_deref().map(|f| self.boolean(f, "FILTER")).transpose()?;
                if aggregate == AggregateFunction::StringAgg {
                    return unsupported("string_agg as a window function");
                }
                let call = AggregateCall { filter, ..AggregateCall::new(aggregate, None) };
                let order = (Vec::new(), Vec::new());
                let (call, ty) = self.aggregate_call(call, name, arguments, order, position)?;
                (WindowFunction::Aggregate(call), ty)
            }
            None => {
                if filter.is_some() {
                    return unsupported("FILTER for a window function that is no aggregate");
                }
                self.ranking(name, arguments, position)?
            }
        };
        let (partition, order, frame) = self.window(over)?;
        Ok(WindowCall { function, partition, order, frame, ty })
    }

    fn ranking(
        &mut self,
        name: &str,
        arguments: &[ast::FunctionArg],
        position: Option<u32>,
    ) -> Result<(WindowFunction, Type)> {
        let mut terms = Vec::new();
        for argument in arguments {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => terms.push(self.term(expr)?),
                _ => return Err(at(SqlError::unsupported("this form of argument"), position)),
            }
        }
        let count = terms.len();
        let mut terms = terms.into_iter();
        let mut next = || terms.next().ok_or_else(|| SqlError::internal("an argument was not counted"));
        Ok(match (name, count) {
            ("row_number", 0) => (WindowFunction::RowNumber, Type::Int8),
            ("rank", 0) => (WindowFunction::Rank, Type::Int8),
            ("dense_rank", 0) => (WindowFunction::DenseRank, Type::Int8),
            ("percent_rank", 0) => (WindowFunction::PercentRank, Type::Float8),
            ("cume_dist", 0) => (WindowFunction::CumeDist, Type::Float8),
            ("ntile", 1) => {
                let buckets = next()?;
                (WindowFunction::Ntile(self.coerce(buckets, &Type::Int4)?), Type::Int4)
            }
            ("lag" | "lead", 1..=3) => {
                let value = next()?;
                let offset = if count > 1 { Some(next()?) } else { None };
                let default = if count > 2 { Some(next()?) } else { None };
                let offset = offset.map(|o| self.coerce(o, &Type::Int4)).transpose()?;
                let (value, default) = match default {
                    None => (self.settle(value)?, None),
                    Some(default) => {
                        let types: Vec<ArgType> = [&value, &default].map(Term::arg_type).into();
                        let ty = self.common_type(name, &types, [&value, &default].into_iter())?;
                        let ty = ty.without_modifiers();
                        // Both are laid out alike, also where their digits are limited.
                        let laid_out = |expr: Expr| match expr.ty().arrow() == ty.arrow() {
                            true => expr,
                            false => {
                                Expr::Cast { expr: Box::new(expr), to: ty.clone(), kind: CastKind::Implicit }
                            }
                        };
                        (laid_out(self.convert(value, &ty)?), Some(laid_out(self.convert(default, &ty)?)))
                    }
                };
                let ty = value.ty();
                (WindowFunction::Neighbour { ahead: name == "lead", value, offset, default }, ty)
            }
            ("first_value" | "last_value", 1) => {
                let value = next()?;
                let value = self.settle(value)?;
                let ty = value.ty();
                let first = name == "first_value";
                (if first { WindowFunction::FirstValue(value) } else { WindowFunction::LastValue(value) }, ty)
            }
            ("nth_value", 2) => {
                let (value, place) = (next()?, next()?);
                let value = self.settle(value)?;
                let place = self.coerce(place, &Type::Int4)?;
                let ty = value.ty();
                (WindowFunction::NthValue(value, place), ty)
            }
            _ => {
                let what = format!("the window function {name} with {count} arguments");
                return Err(at(SqlError::unsupported(what), position));
            }
        })
    }

    fn window(&mut self, over: &ast::WindowType) -> Result<(Vec<Expr>, Vec<OrderKey>, Frame)> {
        match over {
            ast::WindowType::WindowSpec(spec) => self.window_spec(spec),
            ast::WindowType::NamedWindow(ident) => {
                let spec = self.named_window(ident)?;
                self.window_spec(&spec)
            }
        }
    }

    fn named_window(&self, ident: &ast::Ident) -> Result<ast::WindowSpec> {
        let name = fold(ident);
        let windows = self.shared.relational.iter().flat_map(|r| &r.named_windows);
        let mut found = windows.filter(|(known, _)| *known == name).map(|(_, spec)| spec.clone());
        found.next().ok_or_else(|| unknown(ident))
    }

    fn window_spec(&mut self, spec: &ast::WindowSpec) -> Result<(Vec<Expr>, Vec<OrderKey>, Frame)> {
        let ast::WindowSpec { window_name, partition_by, order_by, window_frame } = spec;
        let (mut partition, mut order) = (Vec::new(), Vec::new());
        if let Some(ident) = window_name {
            let base = self.named_window(ident)?;
            let conflict = |what: &str| {
                let message = format!("cannot override {what} clause of window \"{}\"", fold(ident));
                Err(at(SqlError::new(SqlState(*b"42P20"), message), position_of(ident.span)))
            };
            if !partition_by.is_empty() {
                return conflict("PARTITION BY");
            }
            if !base.order_by.is_empty() && !order_by.is_empty() {
                return conflict("ORDER BY");
            }
            if base.window_frame.is_some() {
                let message = format!("cannot copy window \"{}\" because it has a frame clause", fold(ident));
                return Err(at(SqlError::new(SqlState(*b"42P20"), message), position_of(ident.span)));
            }
            (partition, order, _) = self.window_spec(&base)?;
        }
        for expr in partition_by {
            partition.push(self.expression(expr)?);
        }
        for ast::OrderByExpr { expr, options: ast::OrderByOptions { asc, nulls_first }, with_fill } in
            order_by
        {
            if with_fill.is_some() {
                return Err(SqlError::unsupported("WITH FILL"));
            }
            let descending = *asc == Some(false);
            let expr = self.expression(expr)?;
            order.push(OrderKey { expr, descending, nulls_first: nulls_first.unwrap_or(descending) });
        }
        let frame = match window_frame {
            None => Frame { units: Units::Range, start: Bound::UnboundedPreceding, end: Bound::CurrentRow },
            Some(ast::WindowFrame { units, start_bound, end_bound }) => Frame {
                units: match units {
                    ast::WindowFrameUnits::Rows => Units::Rows,
                    ast::WindowFrameUnits::Range => Units::Range,
                    ast::WindowFrameUnits::Groups => Units::Groups,
                },
                start: self.bound(start_bound)?,
                end: end_bound.as_ref().map_or(Ok(Bound::CurrentRow), |bound| self.bound(bound))?,
            },
        };
        self.check_frame(&frame, order.len())?;
        Ok((partition, order, frame))
    }

    fn bound(&mut self, bound: &ast::WindowFrameBound) -> Result<Bound> {
        let mut count = |expr: &ast::Expr| {
            let term = self.term(expr)?;
            self.coerce(term, &Type::Int8)
        };
        Ok(match bound {
            ast::WindowFrameBound::CurrentRow => Bound::CurrentRow,
            ast::WindowFrameBound::Preceding(None) => Bound::UnboundedPreceding,
            ast::WindowFrameBound::Following(None) => Bound::UnboundedFollowing,
            ast::WindowFrameBound::Preceding(Some(expr)) => Bound::Preceding(count(expr)?),
            ast::WindowFrameBound::Following(Some(expr)) => Bound::Following(count(expr)?),
        })
    }

    fn check_frame(&self, frame: &Frame, order_keys: usize) -> Result<()> {
        let error = |message: &str| Err(SqlError::new(SqlState(*b"42P20"), message));
        let by_offset = |bound: &Bound| matches!(bound, Bound::Preceding(_) | Bound::Following(_));
        match (&frame.start, &frame.end) {
            (Bound::UnboundedFollowing, _) => return error("frame start cannot be UNBOUNDED FOLLOWING"),
            (_, Bound::UnboundedPreceding) => return error("frame end cannot be UNBOUNDED PRECEDING"),
            (Bound::CurrentRow, Bound::Preceding(_)) => {
                return error("frame starting from current row cannot have preceding rows");
            }
            (Bound::Following(_), Bound::Preceding(_) | Bound::CurrentRow) => {
                return error("frame starting from following row cannot have preceding rows");
            }
            _ => {}
        }
        match frame.units {
            Units::Groups if order_keys == 0 => error("GROUPS mode requires an ORDER BY clause"),
            Units::Range if by_offset(&frame.start) || by_offset(&frame.end) => {
                Err(SqlError::unsupported("RANGE with an offset in a window's frame"))
            }
            _ => Ok(()),
        }
    }
}
