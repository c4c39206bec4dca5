//! The dialect that sqlparser's parser is given: PostgreSQL's, with the precedence that operators have there, and a bound on the
//! parser's work.
//!
//! What the parser does not recognise it tries in another way, from the same place again. Where that is nested the tries
//! multiply: thirty opening calls with a mistake inside of the last would take years. So the expressions that are begun are
//! counted. (The arguments of a function are not tried twice at all: Carousel has no names of arguments that are expressions.)
//!
//! sqlparser reads `-2 ^ 2` as `-(2 ^ 2)`, PostgreSQL as `(-2) ^ 2`; `~ 1 + 1` as `(~ 1) + 1`, PostgreSQL as `~ (1 + 1)`; and
//! `a ~ b || c` as `a ~ (b || c)`, PostgreSQL, to which both are operators like any other, as `(a ~ b) || c`.

use std::{any::TypeId, cell::Cell};

use sqlparser::{
    ast::{BinaryOperator, Expr, UnaryOperator},
    dialect::{Dialect, PostgreSqlDialect, Precedence},
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::Token,
};

/// The operator between a pattern and what escapes in it, which sqlparser has no place for.
pub(crate) const ESCAPE: &str = "ESCAPE";

/// How many expressions may be begun for each token.
const PER_TOKEN: usize = 16;
/// How many may be begun besides: mistakes that are not nested deeply are told as what they are.
const AT_LEAST: usize = 20_000;

/// Words that are no name of an output column unless AS is before them: those that PostgreSQL's grammar calls AS_LABEL.
#[rustfmt::skip]
const ONLY_WITH_AS: &[Keyword] = &[
    Keyword::ARRAY, Keyword::AS, Keyword::CHAR, Keyword::CHARACTER, Keyword::CREATE, Keyword::DAY,
    Keyword::EXCEPT, Keyword::FETCH, Keyword::FILTER, Keyword::FOR, Keyword::FROM, Keyword::GRANT,
    Keyword::GROUP, Keyword::HAVING, Keyword::HOUR, Keyword::INTERSECT, Keyword::INTO, Keyword::LIMIT,
    Keyword::MINUTE, Keyword::MONTH, Keyword::NOTNULL, Keyword::OFFSET, Keyword::ON, Keyword::ORDER,
    Keyword::OVER, Keyword::OVERLAPS, Keyword::PRECISION, Keyword::RETURNING, Keyword::SECOND, Keyword::TO,
    Keyword::UNION, Keyword::VARYING, Keyword::WHERE, Keyword::WINDOW, Keyword::WITH, Keyword::WITHIN,
    Keyword::WITHOUT, Keyword::YEAR,
];

/// Words that PostgreSQL reserves, and those that are reserved but for names of functions and types: none of them is a name of a
/// table.
#[rustfmt::skip]
pub(crate) const RESERVED: &[Keyword] = &[
    Keyword::ALL, Keyword::ANALYZE, Keyword::AND, Keyword::ANY, Keyword::ARRAY, Keyword::AS,
    Keyword::ASC, Keyword::ASYMMETRIC, Keyword::AUTHORIZATION, Keyword::BINARY, Keyword::BOTH, Keyword::CASE,
    Keyword::CAST, Keyword::CHECK, Keyword::COLLATE, Keyword::COLLATION, Keyword::COLUMN, Keyword::CONCURRENTLY,
    Keyword::CONSTRAINT, Keyword::CREATE, Keyword::CROSS, Keyword::CURRENT_CATALOG, Keyword::CURRENT_DATE, Keyword::CURRENT_ROLE,
    Keyword::CURRENT_SCHEMA, Keyword::CURRENT_TIME, Keyword::CURRENT_TIMESTAMP, Keyword::CURRENT_USER, Keyword::DEFAULT, Keyword::DEFERRABLE,
    Keyword::DESC, Keyword::DISTINCT, Keyword::DO, Keyword::ELSE, Keyword::END, Keyword::EXCEPT,
    Keyword::FALSE, Keyword::FETCH, Keyword::FOR, Keyword::FOREIGN, Keyword::FREEZE, Keyword::FROM,
    Keyword::FULL, Keyword::GRANT, Keyword::GROUP, Keyword::HAVING, Keyword::ILIKE, Keyword::IN,
    Keyword::INITIALLY, Keyword::INNER, Keyword::INTERSECT, Keyword::INTO, Keyword::IS, Keyword::JOIN,
    Keyword::LATERAL, Keyword::LEADING, Keyword::LEFT, Keyword::LIKE, Keyword::LIMIT, Keyword::LOCALTIME,
    Keyword::LOCALTIMESTAMP, Keyword::NATURAL, Keyword::NOT, Keyword::NOTNULL, Keyword::NULL, Keyword::OFFSET,
    Keyword::ON, Keyword::ONLY, Keyword::OR, Keyword::ORDER, Keyword::OUTER, Keyword::OVERLAPS,
    Keyword::PLACING, Keyword::PRIMARY, Keyword::REFERENCES, Keyword::RETURNING, Keyword::RIGHT, Keyword::SELECT,
    Keyword::SESSION_USER, Keyword::SIMILAR, Keyword::SOME, Keyword::SYMMETRIC, Keyword::TABLE, Keyword::TABLESAMPLE,
    Keyword::THEN, Keyword::TO, Keyword::TRAILING, Keyword::TRUE, Keyword::UNION, Keyword::UNIQUE,
    Keyword::USER, Keyword::USING, Keyword::VARIADIC, Keyword::VERBOSE, Keyword::WHEN, Keyword::WHERE,
    Keyword::WINDOW, Keyword::WITH,
];

/// PostgreSQL's dialect for one text.
#[derive(Debug)]
pub(crate) struct Bounded {
    /// How many expressions may still be begun.
    left: Cell<usize>,
}

impl Bounded {
    /// For the parser of so many tokens.
    pub(crate) fn of_tokens(tokens: usize) -> Bounded {
        Bounded { left: Cell::new(AT_LEAST.saturating_add(tokens.saturating_mul(PER_TOKEN))) }
    }
}

impl Bounded {
    /// Whether an operand ends with an operator of this precedence, of which none may follow another. (So do comparisons, which
    /// are looked at where they are resolved.)
    fn stands_alone(&self, operand: &Expr, precedence: u8) -> bool {
        let own = match operand {
            Expr::Between { .. } | Expr::Like { .. } | Expr::ILike { .. } | Expr::SimilarTo { .. } => {
                Precedence::Between
            }
            Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..) => Precedence::Is,
            _ => return false,
        };
        self.prec_value(own) == precedence
    }

    /// The pattern behind LIKE, with what escapes in it.
    fn parse_pattern(&self, parser: &mut Parser<'_>) -> Result<Expr, ParserError> {
        let precedence = self.prec_value(Precedence::Like);
        let pattern = parser.parse_subexpr(precedence)?;
        if !parser.parse_keyword(Keyword::ESCAPE) {
            return Ok(pattern);
        }
        let right = Box::new(parser.parse_subexpr(precedence)?);
        Ok(Expr::BinaryOp { left: Box::new(pattern), op: BinaryOperator::Custom(ESCAPE.into()), right })
    }
}

/// Methods that answer as PostgreSQL's dialect does.
macro_rules! as_postgresql {
    ($($method:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        $(fn $method(&self, $($argument: $of),*) -> $answer {
            PostgreSqlDialect {}.$method($($argument),*)
        })*
    };
}

impl Dialect for Bounded {
    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let Some(left) = self.left.get().checked_sub(1) else {
            // The one error that the parser does not take for a reason to try something else.
            return Some(Err(ParserError::RecursionLimitExceeded));
        };
        self.left.set(left);
        let (op, precedence) = match parser.peek_token_ref().token {
            // Of what binds more there are no binary operators of numbers.
            Token::Minus => (UnaryOperator::Minus, Precedence::AtTz),
            Token::Plus => (UnaryOperator::Plus, Precedence::AtTz),
            Token::Tilde => (UnaryOperator::BitwiseNot, Precedence::PgOther),
            Token::AtSign => (UnaryOperator::PGAbs, Precedence::PgOther),
            Token::PGSquareRoot => (UnaryOperator::PGSquareRoot, Precedence::PgOther),
            Token::PGCubeRoot => (UnaryOperator::PGCubeRoot, Precedence::PgOther),
            _ => return None,
        };
        parser.next_token();
        let operand = parser.parse_subexpr(self.prec_value(precedence));
        Some(operand.map(|operand| Expr::UnaryOp { op, expr: Box::new(operand) }))
    }

    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        left: &Expr,
        precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        if self.stands_alone(left, precedence) {
            return Some(parser.expected_ref("the end of the operand", parser.peek_token_ref()));
        }
        let operand = || Box::new(left.clone());
        if parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]) {
            let right = parser.parse_subexpr(precedence);
            return Some(right.map(|right| Expr::IsDistinctFrom(operand(), Box::new(right))));
        }
        if parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]) {
            let right = parser.parse_subexpr(precedence);
            return Some(right.map(|right| Expr::IsNotDistinctFrom(operand(), Box::new(right))));
        }
        for keyword in [Keyword::LIKE, Keyword::ILIKE] {
            let negated = parser.parse_keywords(&[Keyword::NOT, keyword]);
            if !negated && !parser.parse_keyword(keyword) {
                continue;
            }
            let any = parser.parse_keyword(Keyword::ANY);
            return Some(self.parse_pattern(parser).map(|pattern| {
                let (expr, pattern) = (operand(), Box::new(pattern));
                match keyword {
                    Keyword::LIKE => Expr::Like { negated, any, expr, pattern, escape_char: None },
                    _ => Expr::ILike { negated, any, expr, pattern, escape_char: None },
                }
            }));
        }
        None
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        match &parser.peek_token_ref().token {
            Token::Word(word) if word.keyword == Keyword::OPERATOR => {
                Some(Ok(self.prec_value(Precedence::PgOther)))
            }
            Token::Tilde
            | Token::TildeAsterisk
            | Token::ExclamationMarkTilde
            | Token::ExclamationMarkTildeAsterisk
            | Token::DoubleTilde
            | Token::DoubleTildeAsterisk
            | Token::ExclamationMarkDoubleTilde
            | Token::ExclamationMarkDoubleTildeAsterisk => Some(Ok(self.prec_value(Precedence::PgOther))),
            _ => PostgreSqlDialect {}.get_next_precedence(parser),
        }
    }

    fn is_column_alias(&self, keyword: &Keyword, _: &mut Parser<'_>) -> bool {
        !ONLY_WITH_AS.contains(keyword)
    }

    fn is_table_factor_alias(&self, explicit: bool, keyword: &Keyword, _: &mut Parser<'_>) -> bool {
        // In front of what UPDATE assigns it is none.
        !RESERVED.contains(keyword) && (explicit || *keyword != Keyword::SET)
    }

    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    as_postgresql! {
        identifier_quote_style(identifier: &str) -> Option<char>;
        is_delimited_identifier_start(ch: char) -> bool;
        is_identifier_start(ch: char) -> bool;
        is_identifier_part(ch: char) -> bool;
        is_reserved_for_identifier(keyword: Keyword) -> bool;
        is_custom_operator_part(ch: char) -> bool;
        prec_value(precedence: Precedence) -> u8;
        allow_extract_custom() -> bool;
        allow_extract_single_quotes() -> bool;
        supports_alter_column_type_using() -> bool;
        supports_array_typedef_with_brackets() -> bool;
        supports_bitwise_shift_operators() -> bool;
        supports_comma_separated_trim() -> bool;
        supports_comment_on() -> bool;
        supports_comment_optimizer_hint() -> bool;
        supports_create_index_with_clause() -> bool;
        supports_create_table_like_parenthesized() -> bool;
        supports_empty_projections() -> bool;
        supports_explain_with_utility_options() -> bool;
        supports_factorial_operator() -> bool;
        supports_filter_during_aggregation() -> bool;
        supports_geometric_types() -> bool;
        supports_group_by_expr() -> bool;
        supports_insert_table_alias() -> bool;
        supports_interval_options() -> bool;
        supports_listen_notify() -> bool;
        supports_load_extension() -> bool;
        supports_named_fn_args_with_colon_operator() -> bool;
        supports_nested_comments() -> bool;
        supports_notnull_operator() -> bool;
        supports_numeric_literal_underscores() -> bool;
        supports_select_wildcard_with_alias() -> bool;
        supports_set_names() -> bool;
        supports_string_escape_constant() -> bool;
        supports_unicode_string_literal() -> bool;
        supports_xml_expressions() -> bool;
    }
}

#[cfg(test)]
mod tests {
    use sqlparser::parser::Parser;

    use super::*;

    fn parsed(sql: &str) -> String {
        let dialect = Bounded::of_tokens(100);
        let expr = Parser::new(&dialect)
            .try_with_sql(sql)
            .and_then(|mut parser| parser.parse_expr())
            .expect("an expression");
        shape(&expr)
    }

    /// The tree with all its parentheses.
    fn shape(expr: &Expr) -> String {
        match expr {
            Expr::BinaryOp { left, op, right } => format!("({} {op} {})", shape(left), shape(right)),
            Expr::UnaryOp { op, expr } => format!("({op} {})", shape(expr)),
            Expr::IsDistinctFrom(left, right) => format!("({} isd {})", shape(left), shape(right)),
            Expr::IsNotDistinctFrom(left, right) => format!("({} isnd {})", shape(left), shape(right)),
            Expr::Like { negated: false, expr, pattern, .. } => {
                format!("({} like {})", shape(expr), shape(pattern))
            }
            Expr::ILike { negated: true, expr, pattern, .. } => {
                format!("({} not ilike {})", shape(expr), shape(pattern))
            }
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
            ("a LIKE b || c ESCAPE d || e AND f", "((a like ((b || c) ESCAPE (d || e))) AND f)"),
            ("NOT a NOT ILIKE b ESCAPE c = d", "(NOT ((a not ilike (b ESCAPE c)) = d))"),
            ("(a < b) = c", "([(a < b)] = c)"),
        ] {
            assert_eq!(parsed(sql), expected, "{sql}");
        }
    }
}
