//! Text to statements. Errors are PostgreSQL's, with 1-based character positions in the whole text.
//!
//! The tokens of sqlparser's tokenizer are given spans that count characters from the beginning of the text (as the
//! column of line 1), so every span in a syntax tree is a position that a client understands.

use std::sync::Arc;

use carousel_engine::{SqlError, SqlState, error::Result};
use sqlparser::{
    ast,
    dialect::PostgreSqlDialect,
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer, Whitespace},
};

use crate::{dialect::Bounded, keywords, lexical, names::at, parse_session, plan::Plan, unsupported};

/// How many operators may follow one another in one expression without parentheses or commas between them.
const MAX_CHAIN: usize = 20_000;
/// From this many on a statement is worked on with a stack of its own.
const DEEP_CHAIN: usize = 100;
/// The same for so many tokens.
const LONG: usize = 1_000;
/// As many as that are one level of parentheses.
const NESTING: usize = 4;
/// How often a query in FROM may be parsed because of the parentheses around it.
const MOST_TRIES: usize = 1 << 12;
/// How deep sqlparser may recurse; it grows its stack itself.
const MAX_RECURSION: usize = 1_000;

/// One statement of a text.
#[derive(Clone, Debug)]
pub struct Statement {
    pub(crate) source: Arc<Source>,
    pub(crate) tree: Arc<Tree>,
    /// Byte range of the statement in the text.
    bytes: (usize, usize),
    read_isolation: Option<String>,
}

/// The text with the places of its tokens.
#[derive(Debug)]
pub(crate) struct Source {
    text: String,
    tokens: Vec<Place>,
    /// Position behind the last character.
    end: u32,
}

/// Where a token is: 1-based characters, and bytes.
#[derive(Clone, Copy, Debug)]
struct Place {
    position: u32,
    bytes: (u32, u32),
}

/// A syntax tree; a deep one is dropped on a stack of its own.
#[derive(Debug)]
pub(crate) struct Tree<T = Ast> {
    root: Option<Box<T>>,
    deep: bool,
}

/// What a token that is no white space takes in a statement and its plan: most where an INSERT has one value in a row.
const TOKEN_BYTES: usize = 400;
/// What a token takes while it is one: two lists of them may exist at a time.
const PARSING_BYTES: usize = 2 * size_of::<TokenWithSpan>();

/// What a statement may be.
#[derive(Debug)]
pub(crate) enum Ast {
    /// As sqlparser has it.
    Sql(ast::Statement),
    /// CREATE TABLE with the split points of its `SPLIT AT`.
    CreateTable { create: ast::CreateTable, split_at: Option<Vec<ast::Expr>> },
    /// COPY.
    Copy(CopyStatement),
    /// A statement about the session: nothing to resolve.
    Session(Plan),
    /// PREPARE with the declared types.
    Prepare { name: String, types: Vec<ast::DataType>, statement: Box<Statement> },
    /// EXPLAIN.
    Explain(Box<Statement>),
}

/// COPY as written.
#[derive(Debug)]
pub(crate) struct CopyStatement {
    pub(crate) source: CopySource,
    pub(crate) to: bool,
    pub(crate) options: Vec<CopyOption>,
}

/// What is copied.
#[derive(Debug)]
pub(crate) enum CopySource {
    Table { name: ast::ObjectName, columns: Vec<ast::Ident> },
    Query(Statement),
}

/// An option of COPY.
#[derive(Debug)]
pub(crate) struct CopyOption {
    /// Lower-case name.
    pub(crate) name: String,
    pub(crate) position: u32,
    pub(crate) value: CopyValue,
}

/// The value of an option of COPY.
#[derive(Debug)]
pub(crate) enum CopyValue {
    None,
    Text(String),
    Star,
    Columns(Vec<ast::Ident>),
}

impl<T> Tree<T> {
    pub(crate) fn root(&self) -> &T {
        self.root.as_deref().expect("a tree keeps its root until it is dropped")
    }

    /// Whether it is worked on with a stack of its own.
    pub(crate) fn is_deep(&self) -> bool {
        self.deep
    }
}

impl Tree<ast::Expr> {
    /// An expression out of a text, which is no deeper than that has tokens.
    pub(crate) fn of_part(expression: ast::Expr, source: &Source) -> Tree<ast::Expr> {
        Tree { root: Some(Box::new(expression)), deep: source.tokens.len() > DEEP_CHAIN }
    }
}

impl<T> Drop for Tree<T> {
    fn drop(&mut self) {
        let root = self.root.take();
        with_stack(self.deep, || drop(root));
    }
}

/// Runs `work` on a large stack of its own when the statement is `deep`.
pub(crate) fn with_stack<T>(deep: bool, work: impl FnOnce() -> T) -> T {
    if deep { stacker::grow(256 << 20, work) } else { work() }
}

/// The error for statements that nest too deeply.
pub(crate) fn too_deep() -> SqlError {
    SqlError::new(SqlState::TOO_COMPLEX, "stack depth limit exceeded")
        .with_hint("The statement nests expressions more deeply than Carousel allows.")
}

impl Statement {
    /// The statement's own text.
    pub fn text(&self) -> &str {
        self.source.text.get(self.bytes.0..self.bytes.1).unwrap_or_default()
    }

    /// The whole text that the statement is a part of; positions of errors count from its beginning.
    pub fn whole_text(&self) -> &str {
        &self.source.text
    }

    /// What it takes in memory, its plan included, by the number of tokens in the whole text: about, and rather more. Bytes.
    pub fn memory_bytes(&self) -> usize {
        2 * self.source.text.len() + self.source.tokens.len() * TOKEN_BYTES
    }

    /// `x` of a hint `/*+ read_isolation(x) */` in the statement, in lower case.
    pub fn read_isolation(&self) -> Option<&str> {
        self.read_isolation.as_deref()
    }

    /// The same, with the hint of a statement that executes it, if that has one.
    pub fn executed_by(&self, other: &Statement) -> Statement {
        let read_isolation = other.read_isolation.clone().or_else(|| self.read_isolation.clone());
        Statement { read_isolation, ..self.clone() }
    }

    /// Whether the statement is worked on with a stack of its own.
    pub(crate) fn is_deep(&self) -> bool {
        self.tree.is_deep()
    }
}

impl Source {
    /// Position of the first token at or behind a span's end whose text is `text`, else the span's start.
    pub(crate) fn operator_after(&self, span: Span, text: &str) -> Option<u32> {
        let from = u32::try_from(span.end.column).ok()?;
        let first = self.tokens.partition_point(|t| t.position < from);
        let is_it = |token: &str| token.eq_ignore_ascii_case(text) || text == "<>" && token == "!=";
        self.tokens[first..]
            .iter()
            .find(|t| is_it(self.token_text(t)))
            .map(|t| t.position)
            .or_else(|| position_of(span))
    }

    /// Position of the last token before a span whose text is `text`, else the span's start.
    pub(crate) fn operator_before(&self, span: Span, text: &str) -> Option<u32> {
        let before = u32::try_from(span.start.column).ok()?;
        let end = self.tokens.partition_point(|t| t.position < before);
        self.tokens[..end]
            .iter()
            .rev()
            .find(|t| self.token_text(t).eq_ignore_ascii_case(text))
            .map(|t| t.position)
            .or_else(|| position_of(span))
    }

    /// Position of the token behind another one.
    pub(crate) fn next_position(&self, position: Option<u32>) -> Option<u32> {
        let next = self.tokens.partition_point(|t| Some(t.position) <= position);
        self.tokens.get(next).map(|t| t.position)
    }

    /// Whether the token behind a position is this word.
    pub(crate) fn is_followed_by(&self, position: Option<u32>, word: &str) -> bool {
        let next = self.tokens.partition_point(|t| Some(t.position) <= position);
        self.tokens.get(next).is_some_and(|t| self.token_text(t).eq_ignore_ascii_case(word))
    }

    /// Whether the token at a position is one of these words, which stand together, or the one behind them.
    pub(crate) fn is_among(&self, position: u32, words: &str) -> bool {
        let at = self.tokens.partition_point(|t| t.position < position);
        let count = words.split(' ').count();
        let stand_at = |first: usize| {
            let tokens = self.tokens.get(first..first + count).unwrap_or_default();
            !tokens.is_empty()
                && words.split(' ').zip(tokens).all(|(word, t)| self.token_text(t).eq_ignore_ascii_case(word))
        };
        at < self.tokens.len() && (at.saturating_sub(count)..=at).any(stand_at)
    }

    /// The text of a span.
    pub(crate) fn slice(&self, span: Span) -> &str {
        let byte = |position: u64| {
            let before = usize::try_from(position.saturating_sub(1)).unwrap_or(usize::MAX);
            self.text.char_indices().nth(before).map_or(self.text.len(), |(byte, _)| byte)
        };
        // The beginning is known; the end is looked for from there.
        let first = self.tokens.partition_point(|t| u64::from(t.position) < span.start.column);
        let start = self.tokens.get(first).map_or_else(|| byte(span.start.column), |t| t.bytes.0 as usize);
        let length = usize::try_from(span.end.column.saturating_sub(span.start.column)).unwrap_or(0);
        let rest = &self.text[start..];
        &rest[..rest.char_indices().nth(length).map_or(rest.len(), |(byte, _)| byte)]
    }

    fn token_text(&self, place: &Place) -> &str {
        self.text.get(place.bytes.0 as usize..place.bytes.1 as usize).unwrap_or_default()
    }

    /// PostgreSQL's syntax error at a position, or at the end.
    pub(crate) fn syntax_error(&self, position: Option<u32>) -> SqlError {
        let place = position.and_then(|p| {
            let at = self.tokens.partition_point(|t| t.position < p);
            self.tokens.get(at).filter(|t| t.position == p)
        });
        match place {
            Some(place) => SqlError::new(
                SqlState::SYNTAX_ERROR,
                format!("syntax error at or near \"{}\"", self.token_text(place)),
            )
            .at(place.position),
            None => SqlError::new(SqlState::SYNTAX_ERROR, "syntax error at end of input").at(self.end),
        }
    }

    /// What sqlparser complains about, in PostgreSQL's words.
    pub(crate) fn parser_error(&self, error: ParserError, parser: &Parser<'_>) -> SqlError {
        let message = match error {
            ParserError::RecursionLimitExceeded => return too_deep(),
            ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
        };
        let column = message.rsplit_once("Column: ").and_then(|(_, column)| column.trim().parse().ok());
        match column {
            Some(column) => self.syntax_error(Some(column)),
            None if message.contains("found: EOF") => self.syntax_error(None),
            None => self.syntax_error(position_of(parser.peek_token_ref().span)),
        }
    }
}

/// Where a span starts, if it is known.
pub(crate) fn position_of(span: Span) -> Option<u32> {
    (span.start.line > 0).then_some(span.start.column as u32)
}

/// What it takes to parse a text, at most, and to plan what is in it: by its tokens, for strings are cheap and `(1),` is not.
/// Found without taking any, in one pass over the text. Bytes.
pub fn parsing_bytes(sql: &str) -> usize {
    3 * sql.len() + lexical::most_tokens(sql) * (PARSING_BYTES + TOKEN_BYTES)
}

/// Parses a text of statements separated by semicolons; empty ones are left out.
///
/// Errors: 42601 with the position of the offending token, 54001 for a statement that nests too deeply. As in
/// PostgreSQL no statement is returned when one of them is wrong.
pub fn parse(sql: &str) -> Result<Vec<Statement>> {
    let mut tokens = Vec::new();
    let outcome = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location_into_buf(&mut tokens);
    let (source, tokens) = locate(sql, tokens);
    if let Err(error) = outcome {
        return Err(tokenizer_error(sql, &error.message, error.location));
    }
    let source = Arc::new(source);
    let mut statements = Vec::new();
    let mut rest = tokens.into_iter();
    while rest.len() > 0 {
        let end = rest.as_slice().iter().position(|t| t.token == Token::SemiColon);
        let statement: Vec<TokenWithSpan> = match end {
            Some(end) => rest.by_ref().take(end + 1).filter(|t| t.token != Token::SemiColon).collect(),
            // One large statement is not copied.
            None => std::mem::take(&mut rest).collect(),
        };
        if statement.iter().any(|t| !matches!(t.token, Token::Whitespace(_))) {
            statements.push(parse_one(&source, statement)?);
        }
    }
    Ok(statements)
}

/// Parses one expression: the DEFAULT of a column.
pub(crate) fn parse_expression(sql: &str) -> Result<(Arc<Source>, ast::Expr)> {
    let mut tokens = Vec::new();
    let outcome = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location_into_buf(&mut tokens);
    let (source, tokens) = locate(sql, tokens);
    if let Err(error) = outcome {
        return Err(tokenizer_error(sql, &error.message, error.location));
    }
    check_depth(&tokens)?;
    let dialect = Bounded::of_tokens(tokens.len());
    let mut parser = parser(&dialect, tokens);
    let mut expression = parser.parse_expr().map_err(|e| source.parser_error(e, &parser))?;
    keywords::sort_out(&source, &mut expression)?;
    Ok((Arc::new(source), expression))
}

fn parser(dialect: &Bounded, tokens: Vec<TokenWithSpan>) -> Parser<'_> {
    Parser::new(dialect).with_recursion_limit(MAX_RECURSION).with_tokens_with_locations(tokens)
}

/// Parses the tokens of one statement.
pub(crate) fn parse_one(source: &Arc<Source>, tokens: Vec<TokenWithSpan>) -> Result<Statement> {
    check_tries(&tokens)?;
    // A list can be planned as a chain: FROM, for example.
    let deep = check_depth(&tokens)? > DEEP_CHAIN || tokens.len() > LONG;
    let mut visible = tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
    let place = |t: &TokenWithSpan| {
        let at = source.tokens.partition_point(|p| u64::from(p.position) < t.span.start.column);
        source.tokens.get(at).map(|p| (p.bytes.0 as usize, p.bytes.1 as usize)).unwrap_or_default()
    };
    let first = visible.next().map(place).unwrap_or_default();
    let last = visible.next_back().map(place).unwrap_or(first);
    let read_isolation = tokens.iter().find_map(|t| read_isolation_hint(&t.token));
    let unsupported = unsupported::statement(&tokens);
    let mut root = with_stack(deep, || parse_tokens(source, tokens)).map_err(|error| match unsupported {
        _ if error.code != SqlState::SYNTAX_ERROR => error,
        Some(statement) => at(SqlError::unsupported(statement), error.position),
        None => unsupported::clause(source, error),
    })?;
    if let Ast::Prepare { statement, .. } = &mut root
        && statement.read_isolation.is_none()
    {
        statement.read_isolation.clone_from(&read_isolation);
    }
    Ok(Statement {
        source: source.clone(),
        tree: Arc::new(Tree { root: Some(Box::new(root)), deep }),
        bytes: (first.0, last.1),
        read_isolation,
    })
}

fn parse_tokens(source: &Arc<Source>, tokens: Vec<TokenWithSpan>) -> Result<Ast> {
    let dialect = Bounded::of_tokens(tokens.len());
    let (mut tokens, mut split_at) = cut_split_at(tokens);
    expand_table(&mut tokens);
    for tokens in std::iter::once(&mut tokens).chain(&mut split_at) {
        join_literals(source, tokens)?;
        forget_keywords(tokens);
        lexical::check(source, tokens)?;
        adapt(source, tokens)?;
    }
    let mut parser = parser(&dialect, tokens);
    if let Some(ast) = parse_session::parse(source, &mut parser)? {
        return Ok(ast);
    }
    let mut statement = parser.parse_statement().map_err(|e| source.parser_error(e, &parser))?;
    keywords::sort_out(source, &mut statement)?;
    if parser.peek_token_ref().token != Token::EOF {
        return Err(source.syntax_error(position_of(parser.peek_token_ref().span)));
    }
    let split_at = match split_at {
        None => None,
        Some(tokens) => {
            let mut parser = self::parser(&dialect, tokens);
            let mut points = parser
                .parse_comma_separated(Parser::parse_expr)
                .map_err(|e| source.parser_error(e, &parser))?;
            keywords::sort_out(source, &mut points)?;
            if parser.peek_token_ref().token != Token::EOF {
                return Err(source.syntax_error(position_of(parser.peek_token_ref().span)));
            }
            Some(points)
        }
    };
    match statement {
        ast::Statement::CreateTable(create) => Ok(Ast::CreateTable { create, split_at }),
        _ if split_at.is_some() => Err(SqlError::unsupported("SPLIT AT outside of CREATE TABLE")),
        statement => Ok(Ast::Sql(statement)),
    }
}

/// String literals on lines of their own are one literal, on one line they are a syntax error. (sqlparser takes the
/// second one for an alias.)
fn join_literals(source: &Source, tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let mut joined: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // Where the last literal is, as long as nothing but white space has followed it, and whether that had a line end.
    let mut literal: Option<(usize, bool)> = None;
    for token in tokens.drain(..) {
        match (&token.token, &mut literal) {
            (Token::Whitespace(space), Some((_, line_end))) => {
                *line_end |= matches!(space, Whitespace::Newline | Whitespace::SingleLineComment { .. });
            }
            (Token::SingleQuotedString(more), Some((at, true))) => {
                if let Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) =
                    &mut joined[*at].token
                {
                    text.push_str(more);
                }
                literal = Some((*at, false));
                continue;
            }
            (Token::SingleQuotedString(_), Some((_, false))) => {
                return Err(source.syntax_error(position_of(token.span)));
            }
            (Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_), _) => {
                literal = Some((joined.len(), false));
            }
            (Token::Whitespace(_), None) => {}
            (Token::UnicodeStringLiteral(text), _) if text.contains('\0') => {
                let error = SqlError::new(SqlState::SYNTAX_ERROR, "invalid Unicode escape value");
                return Err(at(error, position_of(token.span)));
            }
            _ => literal = None,
        }
        joined.push(token);
    }
    *tokens = joined;
    Ok(())
}

/// Takes words for names that sqlparser has operators or clauses for, and PostgreSQL has not. (UNNEST is a function.)
fn forget_keywords(tokens: &mut [TokenWithSpan]) {
    const NAMES: &[Keyword] = &[
        Keyword::DIV,
        Keyword::IGNORE,
        Keyword::MEMBER,
        Keyword::REGEXP,
        Keyword::RESPECT,
        Keyword::RLIKE,
        Keyword::TOP,
        Keyword::UNNEST,
        Keyword::XOR,
    ];
    for token in tokens {
        if let Token::Word(word) = &mut token.token
            && NAMES.contains(&word.keyword)
        {
            word.keyword = Keyword::NoKeyword;
        }
    }
}

/// `TABLE name` is `SELECT * FROM name`.
fn expand_table(tokens: &mut Vec<TokenWithSpan>) {
    let first = tokens.iter().position(|t| !matches!(t.token, Token::Whitespace(_)));
    let Some(first) = first else { return };
    if matches!(&tokens[first].token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("table"))
    {
        let written = [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")];
        tokens.splice(first..=first, written.map(TokenWithSpan::wrap));
    }
}

/// Rewrites what PostgreSQL's grammar has and sqlparser's has not: `ISNULL`, `NOTNULL`, `ONLY`, `trim(leading from x)`,
/// `ORDER BY … USING <`. (`SYMMETRIC` is left out; whether it was there is looked up in the text.)
fn adapt(source: &Source, tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let lower = |token: &Token| match token {
        Token::Word(w) if w.quote_style.is_none() => w.value.to_ascii_lowercase(),
        _ => String::new(),
    };
    let interesting = |token: &TokenWithSpan| {
        matches!(
            lower(&token.token).as_str(),
            "isnull" | "notnull" | "only" | "from" | "symmetric" | "asymmetric" | "unlogged" | "using"
        )
    };
    if !tokens.iter().any(interesting) {
        return Ok(());
    }
    let mut adapted: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len() + 4);
    let (mut before, mut last) = (String::new(), String::new());
    let all = std::mem::take(tokens);
    let following =
        |index: usize| all[index + 1..].iter().map(|t| &t.token).find(|t| !matches!(t, Token::Whitespace(_)));
    let operators = |index: usize| following(index).map(ToString::to_string).unwrap_or_default();
    for (index, token) in all.iter().enumerate() {
        let word = lower(&token.token);
        let position = position_of(token.span);
        let unsupported = |what: &str| match position {
            Some(position) => Err(SqlError::unsupported(what).at(position)),
            None => Err(SqlError::unsupported(what)),
        };
        let mut push = |keyword: &str| {
            adapted.push(TokenWithSpan::new(Token::make_keyword(keyword), token.span));
        };
        match (last.as_str(), word.as_str()) {
            (_, "using") if !matches!(last.as_str(), "." | "as" | ",") => {
                // The word in front of a join's columns, or of an ordering operator.
                match following(index) {
                    Some(Token::Lt | Token::Gt) => {}
                    Some(Token::LParen | Token::Word(_)) | None => adapted.push(token.clone()),
                    Some(Token::LtEq | Token::GtEq | Token::Eq | Token::Neq) => {
                        let operator = source.next_position(position);
                        let error = SqlError::new(
                            SqlState(*b"42809"),
                            format!("operator {} is not a valid ordering operator", operators(index)),
                        )
                        .with_hint(
                            "Ordering operators must be \"<\" or \">\" members of btree operator families.",
                        );
                        return Err(match operator {
                            Some(operator) => error.at(operator),
                            None => error,
                        });
                    }
                    Some(_) => adapted.push(token.clone()),
                }
            }
            ("." | "as" | ",", _) => adapted.push(token.clone()),
            ("using", "") if token.token == Token::Lt => push("ASC"),
            ("using", "") if token.token == Token::Gt => push("DESC"),
            (_, "") => adapted.push(token.clone()),
            (_, "isnull") => {
                push("IS");
                push("NULL");
            }
            (_, "notnull") => {
                push("IS");
                push("NOT");
                push("NULL");
            }
            ("from" | "update" | "join", "only") => {}
            ("leading" | "trailing" | "both", "from") if before == "(" => {}
            ("between", "symmetric" | "asymmetric") => {}
            ("create", "unlogged") => return unsupported("CREATE UNLOGGED TABLE"),
            _ => adapted.push(token.clone()),
        }
        if !matches!(token.token, Token::Whitespace(_)) {
            let text = if word.is_empty() { token.token.to_string() } else { word };
            before = std::mem::replace(&mut last, text);
        }
    }
    *tokens = adapted;
    Ok(())
}

/// Takes `SPLIT AT (…)` out of a CREATE TABLE: sqlparser does not know it.
fn cut_split_at(tokens: Vec<TokenWithSpan>) -> (Vec<TokenWithSpan>, Option<Vec<TokenWithSpan>>) {
    let is_create = tokens.iter().find(|t| !matches!(t.token, Token::Whitespace(_))).is_some_and(|t| {
        matches!(&t.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("create"))
    });
    if !is_create {
        return (tokens, None);
    }
    let visible: Vec<usize> =
        (0..tokens.len()).filter(|i| !matches!(tokens[*i].token, Token::Whitespace(_))).collect();
    let word = |i: Option<&usize>, text: &str| {
        i.is_some_and(|i| matches!(&tokens[*i].token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(text)))
    };
    let mut depth = 0usize;
    for (at, i) in visible.iter().enumerate() {
        match tokens[*i].token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_split = depth == 0 && word(Some(i), "split") && word(visible.get(at + 1), "at");
        let open = visible.get(at + 2).copied().filter(|open| tokens[*open].token == Token::LParen);
        let (true, Some(open)) = (is_split, open) else { continue };
        let mut inner = 0usize;
        for close in open..tokens.len() {
            match tokens[close].token {
                Token::LParen => inner += 1,
                Token::RParen => inner -= 1,
                _ => {}
            }
            if inner == 0 {
                let mut rest = tokens[..*i].to_vec();
                rest.extend_from_slice(&tokens[close + 1..]);
                return (rest, Some(tokens[open + 1..close].to_vec()));
            }
        }
    }
    (tokens, None)
}

/// The longest run of operators without parentheses or commas between them, or of set operations, of which commas are no
/// end, or the depth of parentheses in the same measure; 54001 when a run is too long.
fn check_depth(tokens: &[TokenWithSpan]) -> Result<usize> {
    let mut runs = vec![0usize];
    let mut set_operations = vec![0usize];
    let mut longest = 0;
    for token in tokens {
        match &token.token {
            Token::LParen | Token::LBracket => {
                runs.push(0);
                set_operations.push(0);
                longest = longest.max((runs.len() * NESTING).min(MAX_CHAIN));
            }
            Token::RParen | Token::RBracket => {
                if runs.len() > 1 {
                    runs.pop();
                    set_operations.pop();
                }
            }
            Token::Comma => {
                if let Some(run) = runs.last_mut() {
                    *run = 0;
                }
            }
            Token::Whitespace(_) => {}
            token => {
                let is_set_operation = matches!(token, Token::Word(word)
                    if matches!(word.keyword, Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT));
                if is_set_operation && let Some(run) = set_operations.last_mut() {
                    // As many as the other words of a branch without commas would be.
                    *run += 4;
                    longest = longest.max(*run / 2);
                }
                if let Some(run) = runs.last_mut() {
                    *run += 1;
                    longest = longest.max(*run / 2);
                }
            }
        }
    }
    if longest > MAX_CHAIN { Err(too_deep()) } else { Ok(longest) }
}

/// 54001 when parentheses in front of queries in FROM nest so that sqlparser would try too much: each of those that open together
/// may begin the query or a join, and it tries both, with all that is nested.
fn check_tries(tokens: &[TokenWithSpan]) -> Result<()> {
    // How often what is in each open parenthesis may be tried, and everything together.
    let (mut open, mut tries) = (Vec::new(), 1usize);
    // Parentheses that have opened behind what a table may follow, and nothing else since.
    let mut together: Option<usize> = None;
    for token in tokens {
        together = match &token.token {
            Token::Whitespace(_) => continue,
            Token::LParen => {
                open.push(1);
                together.map(|opened| opened + 1)
            }
            Token::RParen => {
                tries /= open.pop().unwrap_or(1);
                None
            }
            Token::Comma => Some(0),
            Token::Word(word) if matches!(word.keyword, Keyword::FROM | Keyword::JOIN) => Some(0),
            Token::Word(word)
                if matches!(word.keyword, Keyword::SELECT | Keyword::WITH | Keyword::VALUES) =>
            {
                if let (Some(opened @ 2..), Some(last)) = (together, open.last_mut()) {
                    *last = opened;
                    tries = tries.saturating_mul(opened);
                }
                None
            }
            _ => None,
        };
        if tries > MOST_TRIES {
            return Err(too_deep());
        }
    }
    Ok(())
}

/// Gives tokens spans that count characters from the beginning of the text.
fn locate(sql: &str, mut tokens: Vec<TokenWithSpan>) -> (Source, Vec<TokenWithSpan>) {
    // Character and byte offsets of the beginning of each line.
    let mut lines = vec![(0u64, 0usize)];
    let mut characters = 0u64;
    for (byte, c) in sql.char_indices() {
        characters += 1;
        if c == '\n' {
            lines.push((characters, byte + 1));
        }
    }
    let absolute = |location: Location| {
        let line = lines.get(location.line.saturating_sub(1) as usize).map_or(0, |l| l.0);
        line + location.column
    };
    for token in &mut tokens {
        let (start, end) = (absolute(token.span.start), absolute(token.span.end));
        token.span = Span::new(Location::new(1, start), Location::new(1, end));
    }
    // Tokens are in order, so one pass finds the bytes.
    let mut places = Vec::with_capacity(tokens.len());
    let mut cursor = sql.char_indices().map(|(byte, _)| byte).chain(std::iter::once(sql.len()));
    let mut at = (1u64, cursor.next().unwrap_or(0));
    let mut advance = |to: u64| {
        while at.0 < to {
            match cursor.next() {
                Some(byte) => at = (at.0 + 1, byte),
                None => break,
            }
        }
        at.1 as u32
    };
    for token in &tokens {
        let (start, end) = (advance(token.span.start.column), advance(token.span.end.column));
        if !matches!(token.token, Token::Whitespace(_)) {
            places.push(Place { position: token.span.start.column as u32, bytes: (start, end) });
        }
    }
    (Source { text: sql.to_owned(), tokens: places, end: characters as u32 + 1 }, tokens)
}

/// What the tokenizer complains about, in PostgreSQL's words.
fn tokenizer_error(sql: &str, message: &str, location: Location) -> SqlError {
    let line_start: usize = sql
        .split_inclusive('\n')
        .take(location.line.saturating_sub(1) as usize)
        .map(|l| l.chars().count())
        .sum();
    let position = line_start + (location.column as usize).max(1);
    let rest: String = sql.chars().skip(position - 1).collect();
    if rest.starts_with(['e', 'E'])
        && let Some(error) = lexical::escape_error(position - 1, &rest)
    {
        return error;
    }
    let what = if message.contains("multi-line comment") {
        let start = sql.find("/*").unwrap_or(0);
        let position = sql[..start].chars().count() as u32 + 1;
        return SqlError::new(
            SqlState::SYNTAX_ERROR,
            format!("unterminated /* comment at or near \"{}\"", &sql[start..]),
        )
        .at(position);
    } else if message.contains("dollar") {
        "unterminated dollar-quoted string"
    } else if message.contains("close delimiter") {
        "unterminated quoted identifier"
    } else if message.contains("Unterminated") {
        "unterminated quoted string"
    } else {
        "syntax error"
    };
    let near = if what == "syntax error" {
        rest.split(char::is_whitespace).next().unwrap_or_default()
    } else {
        rest.as_str()
    };
    let text = if near.is_empty() {
        format!("{what} at end of input")
    } else {
        format!("{what} at or near \"{near}\"")
    };
    SqlError::new(SqlState::SYNTAX_ERROR, text).at(position as u32)
}

fn read_isolation_hint(token: &Token) -> Option<String> {
    let Token::Whitespace(Whitespace::MultiLineComment(comment)) = token else { return None };
    let hint = comment.strip_prefix('+')?;
    let (_, behind) = hint.split_once("read_isolation(")?;
    Some(behind.split_once(')')?.0.trim().trim_matches('\'').to_lowercase())
}
