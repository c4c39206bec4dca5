//! Function calls: aggregates, what the session knows, and the engine's catalogue.

use carousel_engine::{
    SqlError, SqlState, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, Direction, result_type},
    error::Result,
    expr::{ArgType, CastKind, CompareOp, Expr, cast_allowed, columns},
};
use sqlparser::ast::{self, Spanned};

use crate::{
    expression::{AGGREGATES, Clause, Resolver, Term, TermKind, literal},
    names::{at, fold, outer_level, parts},
    parse::position_of,
    plan::SessionValue,
    settings::VERSION,
    types,
};

/// Aggregates that PostgreSQL has and Carousel has not.
const OTHER_AGGREGATES: &[&str] = &[
    "array_agg",
    "json_agg",
    "jsonb_agg",
    "json_object_agg",
    "jsonb_object_agg",
    "xmlagg",
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "mode",
    "percentile_cont",
    "percentile_disc",
    "range_agg",
    "any_value",
];

/// Functions that PostgreSQL has and Carousel has not.
const OTHER_FUNCTIONS: &[&str] = &[
    "array_length",
    "array_to_string",
    "cardinality",
    "col_description",
    "currval",
    "format_type",
    "generate_series",
    "grouping",
    "has_table_privilege",
    "inet_client_addr",
    "inet_server_addr",
    "json_build_object",
    "jsonb_build_object",
    "lastval",
    "nextval",
    "normalize",
    "obj_description",
    "parse_ident",
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_advisory_unlock",
    "pg_advisory_unlock_all",
    "pg_advisory_unlock_shared",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_cancel_backend",
    "pg_client_encoding",
    "pg_get_constraintdef",
    "pg_get_expr",
    "pg_get_indexdef",
    "pg_get_userbyid",
    "pg_notify",
    "pg_postmaster_start_time",
    "pg_relation_size",
    "pg_size_pretty",
    "pg_sleep",
    "pg_table_is_visible",
    "pg_table_size",
    "pg_terminate_backend",
    "pg_total_relation_size",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
    "pg_typeof",
    "regexp_count",
    "regexp_instr",
    "regexp_match",
    "regexp_matches",
    "regexp_split_to_array",
    "regexp_split_to_table",
    "regexp_substr",
    "row_to_json",
    "set_config",
    "setseed",
    "setval",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "string_to_array",
    "string_to_table",
    "timeofday",
    "to_ascii",
    "to_json",
    "to_jsonb",
    "to_regclass",
    "txid_current",
    "unistr",
    "unnest",
];

/// A call of an aggregate as written.
#[derive(Clone, Copy)]
struct AggregateSyntax<'a> {
    function: AggregateFunction,
    name: &'a str,
    distinct: bool,
    arguments: &'a [ast::FunctionArg],
    order: &'a [ast::OrderByExpr],
    filter: Option<&'a ast::Expr>,
}

/// The aggregate of this name.
pub(crate) fn aggregate(name: &str) -> Option<AggregateFunction> {
    AggregateFunction::by_name(name)
}

/// The type that an argument takes whose type is not known, `None` when several would do as well.
fn untyped_argument(function: AggregateFunction) -> Option<Type> {
    use AggregateFunction::*;
    match function {
        Count | Min | Max | StringAgg => Some(Type::Text),
        BoolAnd | BoolOr => Some(Type::Bool),
        Spread(_) => Some(Type::Float8),
        Sum | Avg | BitAnd | BitOr | BitXor => None,
    }
}

impl Resolver<'_> {
    /// A function call of any kind.
    pub(crate) fn function(&mut self, function: &ast::Function) -> Result<Term> {
        let ast::Function {
            name,
            uses_odbc_syntax: _,
            parameters,
            args,
            filter,
            null_treatment,
            over,
            within_group,
        } = function;
        let position = position_of(name.span());
        let unsupported = |what: &str| Err(at(SqlError::unsupported(what), position));
        if let Some(over) = over {
            return self.window_function(function, over);
        }
        if !within_group.is_empty() {
            return unsupported("WITHIN GROUP");
        }
        if null_treatment.is_some() {
            return unsupported("IGNORE NULLS and RESPECT NULLS");
        }
        if !matches!(parameters, ast::FunctionArguments::None) {
            return unsupported("a function with parameters");
        }
        let parts = parts(name)?;
        let name = match parts.as_slice() {
            [name] => name.as_str(),
            [schema, name] if schema == "pg_catalog" => name.as_str(),
            _ => parts.last().map_or("", String::as_str),
        };
        let mut order: &[ast::OrderByExpr] = &[];
        let (distinct, arguments) = match args {
            ast::FunctionArguments::None => (None, &[][..]),
            ast::FunctionArguments::Subquery(_) => return unsupported("a subquery"),
            ast::FunctionArguments::List(ast::FunctionArgumentList {
                duplicate_treatment,
                args,
                clauses,
            }) => {
                for clause in clauses {
                    match clause {
                        ast::FunctionArgumentClause::OrderBy(keys) => order = keys,
                        other => return unsupported(&format!("{other} inside a call")),
                    }
                }
                (*duplicate_treatment, args.as_slice())
            }
        };
        let distinct = distinct == Some(ast::DuplicateTreatment::Distinct);
        let without_parentheses = matches!(args, ast::FunctionArguments::None);
        if !without_parentheses && parts.len() == 1 {
            self.refuse_type_name(name, arguments, position)?;
        }
        if let Some(aggregate) = aggregate(name) {
            let call = AggregateSyntax {
                function: aggregate,
                name,
                distinct,
                arguments,
                order,
                filter: filter.as_deref(),
            };
            return self.aggregate(&call, position);
        }
        if OTHER_AGGREGATES.contains(&name) {
            return unsupported(&format!("aggregate {name}"));
        }
        for (is_there, clause) in
            [(distinct, "DISTINCT"), (!order.is_empty(), "ORDER BY"), (filter.is_some(), "FILTER")]
        {
            if is_there {
                return Err(at(
                    SqlError::new(
                        SqlState(*b"42809"),
                        format!("{clause} specified, but {name} is not an aggregate function"),
                    ),
                    position,
                ));
            }
        }
        if name == "make_interval" && arguments.iter().any(|a| !matches!(a, ast::FunctionArg::Unnamed(_))) {
            return self.make_interval(arguments, position);
        }
        // A row, unless it is a function of that name.
        let is_row = name == "row"
            && matches!(function.name.0.as_slice(),
            [ast::ObjectNamePart::Identifier(name)] if name.quote_style.is_none());
        let mut terms = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => terms.push(self.term(expr)?),
                _ if is_row => return unsupported("a row constructor here"),
                // A star is no argument, which only an aggregate can do without.
                ast::FunctionArg::Unnamed(_) => {
                    return self
                        .call(&format!("{name}\u{0}"), Vec::new(), position)
                        .map_err(|e| e.with_message(format!("function {name}() does not exist")));
                }
                ast::FunctionArg::Named { .. } | ast::FunctionArg::ExprNamed { .. } => {
                    return unsupported("named arguments");
                }
            }
        }
        if is_row {
            return unsupported("a row constructor here");
        }
        if let Some(term) = self.session_function(name, without_parentheses, &terms, position)? {
            return Ok(term);
        }
        match name {
            "coalesce" if !terms.is_empty() => {
                let types: Vec<ArgType> = terms.iter().map(Term::arg_type).collect();
                let ty = self.common_type("COALESCE", &types, terms.iter())?;
                let args = terms.into_iter().map(|t| self.convert(t, &ty)).collect::<Result<Vec<_>>>()?;
                Ok(Term { kind: TermKind::Known(Expr::Coalesce { args, ty }), position })
            }
            "nullif" => self.null_if(terms, position),
            "greatest" | "least" if !terms.is_empty() => {
                let types: Vec<ArgType> = terms.iter().map(Term::arg_type).collect();
                self.common_type(&name.to_uppercase(), &types, terms.iter())?;
                self.call(name, terms, position)
            }
            _ => {
                // A qualified name that is not pg_catalog's is shown, and missed, as written.
                if OTHER_FUNCTIONS.contains(&name) {
                    return unsupported(&format!("function {name}"));
                }
                if let Some(term) = self.cast_call(name, &terms)? {
                    return Ok(term);
                }
                let known = parts.len() == 1 || (parts.len() == 2 && parts[0] == "pg_catalog");
                self.call(if known { name.to_owned() } else { parts.join(".") }.as_str(), terms, position)
            }
        }
    }

    /// A call of an aggregate.
    fn aggregate(&mut self, call: &AggregateSyntax<'_>, position: Option<u32>) -> Result<Term> {
        let AggregateSyntax { function, name, distinct, arguments, order, filter } = *call;
        self.check_aggregates(position)?;
        let outer = self.clause;
        let references = self.references.len();
        self.clause = Clause::AggregateArgument;
        let arguments = self.aggregate_arguments(arguments, position)?;
        let order = self.aggregate_order(order)?;
        self.clause = Clause::Filter;
        let filter = filter.map(|f| self.boolean(f, "FILTER")).transpose()?;
        self.clause = outer;
        self.references.truncate(references);
        let call = AggregateCall { distinct, filter, ..AggregateCall::new(function, None) };
        let (call, ty) = self.aggregate_call(call, name, arguments, order, position)?;
        let exprs = call.argument.iter().chain(&call.further).chain(&call.filter);
        let columns = exprs.flat_map(columns).flat_map(|column| self.beyond_subquery(column));
        let mut levels = columns.map(|column| outer_level(column).0).peekable();
        if levels.peek().is_some() && levels.all(|level| level > 0) {
            let what = "an aggregate of columns of an outer query only";
            return Err(at(SqlError::unsupported(what), position));
        }
        let place = self.aggregates.iter().position(|a| *a == call).unwrap_or_else(|| {
            self.aggregates.push(call);
            self.aggregates.len() - 1
        });
        Ok(Term { kind: TermKind::Known(Expr::column(AGGREGATES + place, ty)), position })
    }

    /// The arguments of an aggregate, and whether they are `*`.
    pub(crate) fn aggregate_arguments(
        &mut self,
        arguments: &[ast::FunctionArg],
        position: Option<u32>,
    ) -> Result<(Vec<Term>, bool)> {
        let mut terms = Vec::new();
        let mut star = false;
        for argument in arguments {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => terms.push(self.term(expr)?),
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard) => star = true,
                _ => return Err(at(SqlError::unsupported("this form of argument"), position)),
            }
        }
        Ok((terms, star))
    }

    /// Completes an aggregate by its resolved arguments and its order; gives the type of its result, too.
    pub(crate) fn aggregate_call(
        &mut self,
        mut call: AggregateCall,
        name: &str,
        (mut terms, star): (Vec<Term>, bool),
        (keys, order): (Vec<(Expr, Option<u32>)>, Vec<Direction>),
        position: Option<u32>,
    ) -> Result<(AggregateCall, Type)> {
        let AggregateCall { function, distinct, .. } = call;
        let types: Vec<String> = terms.iter().map(|t| t.arg_type().to_string()).collect();
        let undefined = || {
            at(
                SqlError::new(
                    SqlState::UNDEFINED_FUNCTION,
                    format!("function {name}({}) does not exist", types.join(", ")),
                )
                .with_hint(
                    "No function matches the given name and argument types. You might need to add explicit type casts.",
                ),
                position,
            )
        };
        if distinct && star {
            return Err(self.source.syntax_error(position));
        }
        let mut further = Vec::new();
        let argument = match (terms.len(), star, function) {
            (0, true, AggregateFunction::Count) => None,
            (0, false, AggregateFunction::Count) => {
                return Err(at(
                    SqlError::new(
                        SqlState(*b"42809"),
                        "count(*) must be used to call a parameterless aggregate function",
                    ),
                    position,
                ));
            }
            (2, false, AggregateFunction::StringAgg) => {
                let delimiter = terms.pop().ok_or_else(undefined)?;
                let value = terms.pop().ok_or_else(undefined)?;
                // Both are strings or both are bytes; what is not known yet follows the other.
                let is = |term: &Term, wanted: &dyn Fn(&Type) -> bool| match term.arg_type() {
                    ArgType::Known(ty) => wanted(&ty),
                    ArgType::Unknown => true,
                };
                let ty = if is(&value, &Type::is_string) && is(&delimiter, &Type::is_string) {
                    Type::Text
                } else if is(&value, &|ty| *ty == Type::Bytea) && is(&delimiter, &|ty| *ty == Type::Bytea) {
                    Type::Bytea
                } else {
                    return Err(undefined());
                };
                further.push(self.coerce(delimiter, &ty)?);
                Some(Term::known(self.coerce(value, &ty)?, position))
            }
            (_, _, AggregateFunction::StringAgg) => return Err(undefined()),
            (1, false, _) => terms.pop(),
            _ => return Err(undefined()),
        };
        let argument = match argument {
            Some(term) if term.arg_type() == ArgType::Unknown => {
                let ty = untyped_argument(function).ok_or_else(|| {
                    at(
                        SqlError::new(
                            SqlState::AMBIGUOUS_FUNCTION,
                            format!("function {name}(unknown) is not unique"),
                        )
                        .with_hint(
                            "Could not choose a best candidate function. You might need to add explicit type casts.",
                        ),
                        position,
                    )
                })?;
                Some(self.coerce(term, &ty)?)
            }
            argument => argument.map(|term| self.settle(term)).transpose()?,
        };
        let ty = result_type(function, argument.as_ref().map(Expr::ty).as_ref()).ok_or_else(undefined)?;
        if distinct {
            let listed = |key: &Expr| argument.iter().chain(&further).any(|a| a == key);
            if let Some((_, position)) = keys.iter().find(|(key, _)| !listed(key)) {
                return Err(at(
                    SqlError::new(
                        SqlState::INVALID_COLUMN_REFERENCE,
                        "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
                    ),
                    *position,
                ));
            }
        }
        call.argument = argument;
        if function == AggregateFunction::StringAgg {
            // No other result depends on the order of the values.
            further.extend(keys.into_iter().map(|(key, _)| key));
            (call.further, call.order) = (further, order);
        }
        Ok((call, ty))
    }

    /// ORDER BY inside a call: what it orders by, with positions, and how.
    #[allow(clippy::type_complexity)] // two lists of one length
    fn aggregate_order(
        &mut self,
        order: &[ast::OrderByExpr],
    ) -> Result<(Vec<(Expr, Option<u32>)>, Vec<Direction>)> {
        let (mut keys, mut directions) = (Vec::new(), Vec::new());
        for ast::OrderByExpr { expr, options: ast::OrderByOptions { asc, nulls_first }, with_fill } in order {
            if with_fill.is_some() {
                return Err(SqlError::unsupported("WITH FILL"));
            }
            let term = self.term(expr)?;
            let position = term.position;
            keys.push((self.settle(term)?, position));
            let descending = *asc == Some(false);
            directions.push(Direction { descending, nulls_first: nulls_first.unwrap_or(descending) });
        }
        Ok((keys, directions))
    }

    /// `make_interval` with arguments by name; those that are missing are 0.
    fn make_interval(&mut self, arguments: &[ast::FunctionArg], position: Option<u32>) -> Result<Term> {
        const NAMES: [&str; 7] = ["years", "months", "weeks", "days", "hours", "mins", "secs"];
        let mut parts: [Option<Term>; 7] = Default::default();
        for (index, argument) in arguments.iter().enumerate() {
            let (place, value) = match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(value)) => (Some(index), value),
                ast::FunctionArg::Named { name, arg: ast::FunctionArgExpr::Expr(value), operator: _ } => {
                    (NAMES.iter().position(|known| *known == fold(name)), value)
                }
                ast::FunctionArg::ExprNamed {
                    name: ast::Expr::Identifier(name),
                    arg: ast::FunctionArgExpr::Expr(value),
                    operator: _,
                } => (NAMES.iter().position(|known| *known == fold(name)), value),
                _ => return Err(at(SqlError::unsupported("this form of argument"), position)),
            };
            let Some(part) = place.and_then(|place| parts.get_mut(place)).filter(|part| part.is_none())
            else {
                return Err(at(
                    SqlError::new(
                        SqlState::UNDEFINED_FUNCTION,
                        "function make_interval does not exist with these arguments",
                    ),
                    position,
                ));
            };
            *part = Some(self.term(value)?);
        }
        let missing = |index: usize| match index {
            6 => literal(Value::Float8(0.0), Type::Float8),
            _ => literal(Value::Int4(0), Type::Int4),
        };
        let terms = parts.into_iter().enumerate();
        let terms = terms.map(|(index, part)| part.unwrap_or_else(|| Term::known(missing(index), position)));
        self.call("make_interval", terms.collect(), position)
    }

    /// 42601 for a type's name that is a key word, which cannot be called: in parentheses it has modifiers, and then comes
    /// a literal.
    fn refuse_type_name(
        &self,
        name: &str,
        arguments: &[ast::FunctionArg],
        position: Option<u32>,
    ) -> Result<()> {
        let open = self.source.next_position(position);
        let wrong = match name {
            "int" | "integer" | "smallint" | "bigint" | "real" | "boolean" => open,
            "varchar" | "char" | "character" | "float" | "time" | "timestamp" => {
                self.source.next_position(open)
            }
            "numeric" | "decimal" | "dec" => {
                let close = arguments.last().map(|last| self.source.operator_after(last.span(), ")"));
                close.map_or(open, |close| self.source.next_position(close))
            }
            _ => return Ok(()),
        };
        Err(self.source.syntax_error(wrong))
    }

    /// `nullif` of types that compare as they are: the result is of the first one's type.
    fn null_if(&mut self, terms: Vec<Term>, position: Option<u32>) -> Result<Term> {
        let class = |term: &Term| match term.arg_type() {
            ArgType::Known(Type::Int2 | Type::Int4 | Type::Int8) => Some(0),
            ArgType::Known(Type::Float4 | Type::Float8) => Some(1),
            ArgType::Known(Type::Date | Type::Timestamp | Type::TimestampTz) => Some(2),
            _ => None,
        };
        let [first, second] = terms.as_slice() else { return self.call("nullif", terms, position) };
        if class(first).is_none() || class(first) != class(second) {
            return self.call("nullif", terms, position);
        }
        first.check_copies(2)?;
        let equal = self.compare(("=", CompareOp::Eq), first.clone(), second.clone(), position)?;
        let value = self.settle(first.clone())?;
        let ty = value.ty().without_modifiers();
        let branches = vec![(equal, literal(Value::Null, ty.clone()))];
        Ok(Term::known(Expr::Case { branches, otherwise: Some(Box::new(value)), ty }, position))
    }

    /// A call that is a cast: `int4('5')`, `text(5)`. `None` when the name is no type's or there is no such cast.
    fn cast_call(&mut self, name: &str, terms: &[Term]) -> Result<Option<Term>> {
        let ([term], Some(ty)) = (terms, types::by_internal_name(name)) else { return Ok(None) };
        let allowed = match term.arg_type() {
            ArgType::Unknown => true,
            ArgType::Known(from) => cast_allowed(&from, &ty).is_some(),
        };
        if !allowed {
            return Ok(None);
        }
        let position = term.position;
        self.cast(term.clone(), &ty).map(|expr| Some(Term::known(expr, position)))
    }

    /// A function whose call is a keyword.
    pub(crate) fn keyword_function(&mut self, name: &str, position: Option<u32>) -> Result<Term> {
        match self.session_function(name, true, &[], position)? {
            Some(term) => Ok(term),
            None => self.call(name, Vec::new(), position),
        }
    }

    /// What the session knows: the time, the user, its settings.
    fn session_function(
        &mut self,
        name: &str,
        without_parentheses: bool,
        terms: &[Term],
        position: Option<u32>,
    ) -> Result<Option<Term>> {
        let keyword = without_parentheses
            && matches!(
                name,
                "current_date"
                    | "current_time"
                    | "current_timestamp"
                    | "localtime"
                    | "localtimestamp"
                    | "current_user"
                    | "session_user"
                    | "user"
                    | "current_role"
                    | "current_catalog"
                    | "current_schema"
            );
        let plain = !without_parentheses && terms.is_empty();
        let known = |expr: Expr| Ok(Some(Term { kind: TermKind::Known(expr), position }));
        let value = match name {
            "now" | "transaction_timestamp" if plain => SessionValue::TransactionTimestamp,
            "current_timestamp" if keyword => SessionValue::TransactionTimestamp,
            "current_date" | "localtimestamp" | "localtime" if keyword => {
                let now =
                    self.session_value(SessionValue::TransactionTimestamp, Type::TimestampTz, position)?;
                let now = self.settle(now)?;
                let to = match name {
                    "current_date" => Type::Date,
                    "localtime" => Type::Time,
                    _ => Type::Timestamp,
                };
                return known(Expr::Cast { expr: Box::new(now), to, kind: CastKind::Explicit });
            }
            // The age of something is that at today's midnight.
            "age" if terms.len() == 1 => {
                let from = match terms[0].arg_type() {
                    ArgType::Known(Type::Date | Type::TimestampTz) | ArgType::Unknown => Type::TimestampTz,
                    ArgType::Known(Type::Timestamp) => Type::Timestamp,
                    _ => return Ok(None),
                };
                let now =
                    self.session_value(SessionValue::TransactionTimestamp, Type::TimestampTz, position)?;
                let expr = Box::new(self.settle(now)?);
                let today = Box::new(Expr::Cast { expr, to: Type::Date, kind: CastKind::Explicit });
                let midnight = Expr::Cast { expr: today, to: from.clone(), kind: CastKind::Explicit };
                let moment = self.coerce(terms[0].clone(), &from)?;
                let arguments = vec![Term::known(midnight, position), Term::known(moment, position)];
                return self.call("age", arguments, position).map(Some);
            }
            "current_time" if keyword => {
                return Err(at(SqlError::unsupported("type time with time zone (CURRENT_TIME)"), position));
            }
            "current_timestamp" | "localtimestamp" | "localtime" | "current_time" => {
                return Err(at(SqlError::unsupported(format!("{name} with a precision")), position));
            }
            "statement_timestamp" if plain => SessionValue::StatementTimestamp,
            "clock_timestamp" if plain => SessionValue::ClockTimestamp,
            "current_user" | "session_user" | "user" | "current_role" if keyword => SessionValue::User,
            "current_catalog" if keyword => SessionValue::Database,
            "current_database" if plain => SessionValue::Database,
            "current_schema" if keyword || plain => {
                return known(literal(Value::text("public"), Type::Text));
            }
            "version" if plain => return known(literal(Value::text(VERSION), Type::Text)),
            "pg_backend_pid" if plain => SessionValue::BackendPid,
            "gen_random_uuid" if plain => SessionValue::RandomUuid,
            "random" if plain => SessionValue::Random,
            "pg_is_in_recovery" if plain => return known(literal(Value::Bool(false), Type::Bool)),
            "current_setting" if matches!(terms.len(), 1 | 2) => {
                let text = match &terms[0].kind {
                    TermKind::Text(text) => text.to_string(),
                    TermKind::Known(Expr::Literal { value: Value::Text(text), .. }) => text.to_string(),
                    _ => {
                        return Err(at(
                            SqlError::unsupported("current_setting of a computed name"),
                            position,
                        ));
                    }
                };
                let missing_ok = match terms.get(1).map(|t| &t.kind) {
                    None => false,
                    Some(TermKind::Known(Expr::Literal { value: Value::Bool(missing_ok), .. })) => {
                        *missing_ok
                    }
                    Some(TermKind::Text(text)) => matches!(text.as_ref(), "t" | "true" | "on" | "1"),
                    Some(_) => {
                        return Err(at(
                            SqlError::unsupported("current_setting with a computed second argument"),
                            position,
                        ));
                    }
                };
                SessionValue::Setting { name: text.to_ascii_lowercase(), missing_ok }
            }
            _ => return Ok(None),
        };
        let ty = value.ty();
        self.session_value(value, ty, position).map(Some)
    }
}
