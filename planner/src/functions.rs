//! Function calls: aggregates, what the session knows, and the engine's catalogue.

use carousel_engine::{
    SqlError, SqlState, Type, Value,
    aggregate::{AggregateCall, AggregateFunction, result_type},
    error::Result,
    expr::{ArgType, CastKind, Expr},
};
use sqlparser::ast::{self, Spanned};

use crate::{
    expression::{AGGREGATES, Clause, Resolver, Term, TermKind, literal},
    names::{at, parts},
    parse::position_of,
    plan::SessionValue,
    settings::VERSION,
};

/// Aggregates that PostgreSQL has and Carousel has not.
const OTHER_AGGREGATES: &[&str] = &[
    "string_agg",
    "array_agg",
    "json_agg",
    "jsonb_agg",
    "json_object_agg",
    "jsonb_object_agg",
    "xmlagg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "variance",
    "var_pop",
    "var_samp",
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
    "acos",
    "acosd",
    "acosh",
    "array_length",
    "array_to_string",
    "asin",
    "asind",
    "asinh",
    "atan",
    "atan2",
    "atand",
    "atanh",
    "bit_count",
    "cardinality",
    "col_description",
    "convert_from",
    "convert_to",
    "cos",
    "cosd",
    "cosh",
    "cot",
    "currval",
    "date_bin",
    "factorial",
    "format",
    "format_type",
    "gcd",
    "generate_series",
    "get_bit",
    "get_byte",
    "grouping",
    "has_table_privilege",
    "inet_client_addr",
    "inet_server_addr",
    "isfinite",
    "json_build_object",
    "jsonb_build_object",
    "justify_days",
    "justify_interval",
    "lastval",
    "lcm",
    "make_interval",
    "make_time",
    "make_timestamp",
    "make_timestamptz",
    "min_scale",
    "nextval",
    "normalize",
    "num_nonnulls",
    "num_nulls",
    "obj_description",
    "overlay",
    "parse_ident",
    "pg_client_encoding",
    "pg_get_constraintdef",
    "pg_get_expr",
    "pg_get_indexdef",
    "pg_get_userbyid",
    "pg_postmaster_start_time",
    "pg_relation_size",
    "pg_size_pretty",
    "pg_sleep",
    "pg_table_is_visible",
    "pg_table_size",
    "pg_total_relation_size",
    "pg_typeof",
    "quote_ident",
    "quote_literal",
    "quote_nullable",
    "regexp_count",
    "regexp_instr",
    "regexp_like",
    "regexp_match",
    "regexp_matches",
    "regexp_split_to_array",
    "regexp_split_to_table",
    "regexp_substr",
    "row_to_json",
    "scale",
    "set_bit",
    "set_byte",
    "set_config",
    "setseed",
    "setval",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "sin",
    "sind",
    "sinh",
    "string_to_array",
    "string_to_table",
    "tan",
    "tand",
    "tanh",
    "timeofday",
    "to_ascii",
    "to_char",
    "to_date",
    "to_json",
    "to_jsonb",
    "to_number",
    "to_regclass",
    "trim_scale",
    "txid_current",
    "unistr",
    "unnest",
    "width_bucket",
];

pub(crate) fn aggregate(name: &str) -> Option<AggregateFunction> {
    Some(match name {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "avg" => AggregateFunction::Avg,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        "bool_and" | "every" => AggregateFunction::BoolAnd,
        "bool_or" => AggregateFunction::BoolOr,
        _ => return None,
    })
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
        let (distinct, arguments) = match args {
            ast::FunctionArguments::None => (None, &[][..]),
            ast::FunctionArguments::Subquery(_) => return unsupported("a subquery"),
            ast::FunctionArguments::List(ast::FunctionArgumentList {
                duplicate_treatment,
                args,
                clauses,
            }) => {
                if !clauses.is_empty() {
                    return unsupported("ORDER BY and other clauses inside a call");
                }
                (*duplicate_treatment, args.as_slice())
            }
        };
        let distinct = distinct == Some(ast::DuplicateTreatment::Distinct);
        let without_parentheses = matches!(args, ast::FunctionArguments::None);
        if let Some(aggregate) = aggregate(name) {
            return self.aggregate(aggregate, name, distinct, arguments, filter.as_deref(), position);
        }
        if OTHER_AGGREGATES.contains(&name) {
            return unsupported(&format!("aggregate {name}"));
        }
        for (is_there, clause) in [(distinct, "DISTINCT"), (filter.is_some(), "FILTER")] {
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
        let mut terms = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => terms.push(self.term(expr)?),
                // A star is no argument, which only an aggregate can do without.
                ast::FunctionArg::Unnamed(_) => {
                    return self
                        .call(&format!("{name}\u{0}"), Vec::new(), position)
                        .map_err(|e| SqlError { message: format!("function {name}() does not exist"), ..e });
                }
                ast::FunctionArg::Named { .. } | ast::FunctionArg::ExprNamed { .. } => {
                    return unsupported("named arguments");
                }
            }
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
                let known = parts.len() == 1 || (parts.len() == 2 && parts[0] == "pg_catalog");
                self.call(if known { name.to_owned() } else { parts.join(".") }.as_str(), terms, position)
            }
        }
    }

    pub(crate) fn aggregate(
        &mut self,
        function: AggregateFunction,
        name: &str,
        distinct: bool,
        arguments: &[ast::FunctionArg],
        filter: Option<&ast::Expr>,
        position: Option<u32>,
    ) -> Result<Term> {
        self.check_aggregates(position)?;
        let outer = self.clause;
        let references = self.references.len();
        self.clause = Clause::AggregateArgument;
        let (terms, star) = self.aggregate_arguments(arguments, position)?;
        self.clause = Clause::Filter;
        let filter = filter.map(|f| self.boolean(f, "FILTER")).transpose()?;
        self.clause = outer;
        self.references.truncate(references);
        let (call, ty) = self.aggregate_call(function, name, distinct, (terms, star), filter, position)?;
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

    /// An aggregate over resolved arguments, with the type of its result.
    pub(crate) fn aggregate_call(
        &mut self,
        function: AggregateFunction,
        name: &str,
        distinct: bool,
        (mut terms, star): (Vec<Term>, bool),
        filter: Option<Expr>,
        position: Option<u32>,
    ) -> Result<(AggregateCall, Type)> {
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
            (1, false, _) => terms.pop(),
            _ => return Err(undefined()),
        };
        let argument = argument.map(|a| self.settle(a)).transpose()?;
        let ty = result_type(function, argument.as_ref().map(Expr::ty).as_ref()).ok_or_else(undefined)?;
        Ok((AggregateCall { function, argument, distinct, filter }, ty))
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
                SessionValue::Setting { name: text.to_lowercase(), missing_ok }
            }
            _ => return Ok(None),
        };
        let ty = value.ty();
        self.session_value(value, ty, position).map(Some)
    }
}
