//! Statements about the session and COPY: their grammar is PostgreSQL's own, so they are parsed here, token by token.

use std::sync::Arc;

use carousel_cluster::message::ProcessId;
use carousel_engine::{SqlError, error::Result, position::Position};
use sqlparser::{
    parser::Parser,
    tokenizer::{Token, TokenWithSpan, Word},
};

use crate::{
    cluster::{self, AlterCluster},
    keywords,
    parse::{Ast, CopyOption, CopySource, CopyStatement, CopyValue, Source, Tree, parse_one, position_of},
    plan::{Discard, IsolationLevel, Plan, SetPlan, TransactionModes},
};

/// Parses the statement if it is one of these; otherwise the parser stands where it stood.
pub(crate) fn parse(source: &Arc<Source>, parser: &mut Parser<'_>) -> Result<Option<Ast>> {
    let first = match &parser.peek_token_ref().token {
        Token::Word(word) if word.quote_style.is_none() => word.value.to_ascii_lowercase(),
        _ => return Ok(None),
    };
    let mut grammar = Grammar { source, parser };
    let ast = match first.as_str() {
        "set" => grammar.set()?,
        "show" => grammar.show()?,
        "reset" => grammar.reset()?,
        "begin" => {
            grammar.next();
            let _ = grammar.word("work") || grammar.word("transaction");
            Plan::Begin { modes: grammar.transaction_modes()?, starts: false }
        }
        "start" => {
            grammar.next();
            grammar.expect_word("transaction")?;
            Plan::Begin { modes: grammar.transaction_modes()?, starts: true }
        }
        "commit" | "end" => {
            grammar.next();
            if grammar.word("prepared") {
                return Err(SqlError::unsupported("COMMIT PREPARED"));
            }
            let _ = grammar.word("work") || grammar.word("transaction");
            Plan::Commit { chain: grammar.chain()? }
        }
        "rollback" | "abort" => grammar.rollback(first == "rollback")?,
        "savepoint" => {
            grammar.next();
            Plan::Savepoint(grammar.name()?)
        }
        "release" => {
            grammar.next();
            let _ = grammar.word("savepoint");
            Plan::ReleaseSavepoint(grammar.name()?)
        }
        "discard" => {
            grammar.next();
            let discard = if grammar.word("all") {
                Discard::All
            } else if grammar.word("plans") {
                Discard::Plans
            } else if grammar.word("sequences") {
                Discard::Sequences
            } else if grammar.word("temp") || grammar.word("temporary") {
                Discard::Temporary
            } else {
                return Err(grammar.unexpected());
            };
            Plan::Discard(discard)
        }
        "deallocate" => {
            grammar.next();
            let _ = grammar.word("prepare");
            if grammar.word("all") { Plan::Deallocate(None) } else { Plan::Deallocate(Some(grammar.name()?)) }
        }
        "alter" => match grammar.alter_cluster()? {
            Some(plan) => plan,
            None => return Ok(None),
        },
        "execute" => grammar.execute()?,
        "prepare" => return grammar.prepare().map(Some),
        "explain" => return grammar.explain().map(Some),
        "copy" => return grammar.copy().map(Some),
        _ => return Ok(None),
    };
    grammar.expect_end()?;
    Ok(Some(Ast::Session(ast)))
}

struct Grammar<'a, 'p> {
    source: &'a Arc<Source>,
    parser: &'a mut Parser<'p>,
}

impl Grammar<'_, '_> {
    fn peek(&self) -> &Token {
        &self.parser.peek_token_ref().token
    }

    fn next(&mut self) -> TokenWithSpan {
        self.parser.next_token()
    }

    fn unexpected(&self) -> SqlError {
        self.source.syntax_error(position_of(self.parser.peek_token_ref().span))
    }

    fn is_word(&self, text: &str) -> bool {
        matches!(self.peek(), Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(text))
    }

    fn word(&mut self, text: &str) -> bool {
        let found = self.is_word(text);
        if found {
            self.next();
        }
        found
    }

    fn expect_word(&mut self, text: &str) -> Result<()> {
        if self.word(text) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn token(&mut self, token: &Token) -> bool {
        self.parser.consume_token(token)
    }

    fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.token(token) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn expect_end(&self) -> Result<()> {
        if *self.peek() == Token::EOF { Ok(()) } else { Err(self.unexpected()) }
    }

    /// An identifier, folded as PostgreSQL folds it.
    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Token::Word(word) => {
                let name = fold(word);
                self.next();
                Ok(name)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// The name of a setting: `a` or `a.b`.
    fn setting(&mut self) -> Result<String> {
        let mut name = self.name()?;
        while self.token(&Token::Period) {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.to_ascii_lowercase())
    }

    /// Everything up to the end of the statement, as tokens.
    fn rest(&mut self) -> Vec<TokenWithSpan> {
        let mut tokens = Vec::new();
        while let Some(token) = self.parser.next_token_no_skip() {
            tokens.push(token.clone());
        }
        tokens
    }

    fn string(&mut self) -> Result<String> {
        match self.peek().clone() {
            Token::SingleQuotedString(text)
            | Token::EscapedStringLiteral(text)
            | Token::UnicodeStringLiteral(text) => {
                self.next();
                Ok(text)
            }
            Token::DollarQuotedString(text) => {
                self.next();
                Ok(text.value)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// A value of a setting.
    fn value(&mut self) -> Result<String> {
        let sign = if self.token(&Token::Minus) {
            "-"
        } else {
            let _ = self.token(&Token::Plus);
            ""
        };
        match self.peek().clone() {
            Token::Number(number, _) => {
                self.next();
                Ok(format!("{sign}{number}"))
            }
            _ if !sign.is_empty() => Err(self.unexpected()),
            Token::Word(word) => {
                self.next();
                Ok(fold(&word))
            }
            _ => self.string(),
        }
    }

    fn set(&mut self) -> Result<Plan> {
        self.next();
        let mut local = false;
        if self.word("session") {
            if self.word("characteristics") {
                self.expect_word("as")?;
                self.expect_word("transaction")?;
                return Ok(Plan::SetTransaction { session: true, modes: self.transaction_modes()? });
            }
            if self.word("authorization") {
                let value = if self.word("default") { None } else { Some(self.value()?) };
                return Ok(Plan::Set(SetPlan { name: "session_authorization".into(), local, value }));
            }
        } else if self.word("local") {
            local = true;
        } else if self.word("transaction") {
            if self.is_word("snapshot") {
                return Err(SqlError::unsupported("SET TRANSACTION SNAPSHOT"));
            }
            return Ok(Plan::SetTransaction { session: false, modes: self.transaction_modes()? });
        } else if self.is_word("constraints") {
            return Err(SqlError::unsupported("SET CONSTRAINTS"));
        }
        let set = |name: &str, value| Ok(Plan::Set(SetPlan { name: name.into(), local, value }));
        if self.word("time") {
            self.expect_word("zone")?;
            if self.is_word("interval") {
                return Err(SqlError::unsupported("SET TIME ZONE INTERVAL"));
            }
            let default = self.word("default") || self.word("local");
            let value = if default { None } else { Some(self.value()?) };
            return set("timezone", value);
        }
        if self.word("names") {
            let default = self.word("default") || *self.peek() == Token::EOF;
            let value = if default { None } else { Some(self.string()?) };
            return set("client_encoding", value);
        }
        if self.word("role") {
            let value = if self.word("none") { None } else { Some(self.value()?) };
            return set("role", value);
        }
        if self.word("schema") {
            let value = self.string()?;
            return set("search_path", Some(value));
        }
        let name = self.setting()?;
        if !self.token(&Token::Eq) {
            if self.is_word("from") {
                return Err(SqlError::unsupported("SET … FROM CURRENT"));
            }
            self.expect_word("to")?;
        }
        if self.word("default") {
            return set(&name, None);
        }
        let mut value = self.value()?;
        while self.token(&Token::Comma) {
            value.push_str(", ");
            value.push_str(&self.value()?);
        }
        set(&name, Some(value))
    }

    fn show(&mut self) -> Result<Plan> {
        self.next();
        if self.word("all") {
            return Ok(Plan::ShowAll);
        }
        self.setting_or_phrase().map(Plan::Show)
    }

    fn setting_or_phrase(&mut self) -> Result<String> {
        if self.word("time") {
            self.expect_word("zone")?;
            return Ok("timezone".into());
        }
        if self.word("transaction") {
            self.expect_word("isolation")?;
            self.expect_word("level")?;
            return Ok("transaction_isolation".into());
        }
        if self.word("session") {
            self.expect_word("authorization")?;
            return Ok("session_authorization".into());
        }
        self.setting()
    }

    fn reset(&mut self) -> Result<Plan> {
        self.next();
        if self.word("all") {
            return Ok(Plan::ResetAll);
        }
        self.setting_or_phrase().map(Plan::Reset)
    }

    fn chain(&mut self) -> Result<bool> {
        if !self.word("and") {
            return Ok(false);
        }
        let no = self.word("no");
        self.expect_word("chain")?;
        Ok(!no)
    }

    fn rollback(&mut self, savepoints: bool) -> Result<Plan> {
        self.next();
        if savepoints && self.word("prepared") {
            return Err(SqlError::unsupported("ROLLBACK PREPARED"));
        }
        let _ = self.word("work") || self.word("transaction");
        if savepoints && self.word("to") {
            let _ = self.word("savepoint");
            return Ok(Plan::RollbackToSavepoint(self.name()?));
        }
        Ok(Plan::Rollback { chain: self.chain()? })
    }

    fn transaction_modes(&mut self) -> Result<TransactionModes> {
        let mut modes = TransactionModes::default();
        let mut comma = false;
        while comma || *self.peek() != Token::EOF {
            if self.word("isolation") {
                self.expect_word("level")?;
                modes.isolation = Some(if self.word("serializable") {
                    IsolationLevel::Serializable
                } else if self.word("repeatable") {
                    self.expect_word("read")?;
                    IsolationLevel::RepeatableRead
                } else {
                    self.expect_word("read")?;
                    if self.word("committed") {
                        IsolationLevel::ReadCommitted
                    } else {
                        self.expect_word("uncommitted")?;
                        IsolationLevel::ReadUncommitted
                    }
                });
            } else if self.word("read") {
                modes.read_only = Some(if self.word("only") {
                    true
                } else {
                    self.expect_word("write")?;
                    false
                });
            } else if self.word("not") {
                // Deferring only concerns serializable read-only transactions, and none of those waits here.
                self.expect_word("deferrable")?;
            } else if self.is_word("deferrable") {
                return Err(SqlError::unsupported("DEFERRABLE"));
            } else {
                return Err(self.unexpected());
            }
            comma = self.token(&Token::Comma);
        }
        Ok(modes)
    }

    /// ALTER CLUSTER; none for an ALTER of something else.
    fn alter_cluster(&mut self) -> Result<Option<Plan>> {
        let next = &self.parser.peek_nth_token_ref(1).token;
        if !matches!(next, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("cluster"))
        {
            return Ok(None);
        }
        self.next();
        self.next();
        let alter = if self.word("expand") {
            let process = if self.word("with") { Some(self.storage_process()?) } else { None };
            AlterCluster::Expand { process, identifier: self.identifier("at")? }
        } else if self.word("contract") {
            self.expect_word("by")?;
            let process = self.storage_process()?;
            AlterCluster::Contract { process, accepts_loss: self.with_data_loss()? }
        } else if self.word("replace") {
            let process = self.storage_process()?;
            let by = if self.word("by") { Some(self.storage_process()?) } else { None };
            AlterCluster::Replace { process, by, accepts_loss: self.with_data_loss()? }
        } else if self.word("rebalance") {
            let process = self.storage_process()?;
            AlterCluster::Rebalance { process, identifier: self.identifier("to")? }
        } else if self.word("remove") {
            if self.word("router") {
                AlterCluster::RemoveRouter(cluster::router(&self.name()?)?)
            } else {
                AlterCluster::Remove(self.storage_process()?)
            }
        } else if self.word("add") {
            self.expect_word("router")?;
            let router = if self.is_word("at") { None } else { Some(cluster::router(&self.name()?)?) };
            self.expect_word("at")?;
            AlterCluster::AddRouter { router, address: self.string()? }
        } else {
            return Err(self.unexpected());
        };
        Ok(Some(Plan::AlterCluster(alter)))
    }

    fn with_data_loss(&mut self) -> Result<bool> {
        let accepts = self.word("with");
        if accepts {
            self.expect_word("data")?;
            self.expect_word("loss")?;
        }
        Ok(accepts)
    }

    fn storage_process(&mut self) -> Result<ProcessId> {
        cluster::storage_process(&self.name()?)
    }

    /// An identifier on the ring behind a word.
    fn identifier(&mut self, word: &str) -> Result<Option<Position>> {
        if !self.word(word) {
            return Ok(None);
        }
        match self.peek().clone() {
            Token::Number(digits, _) => {
                self.next();
                cluster::identifier(&digits).map(Some)
            }
            _ => Err(self.unexpected()),
        }
    }

    fn execute(&mut self) -> Result<Plan> {
        self.next();
        let name = self.name()?;
        let mut arguments = Vec::new();
        if self.token(&Token::LParen) {
            let parsed = self.parser.parse_comma_separated(Parser::parse_expr);
            for mut expression in parsed.map_err(|e| self.source.parser_error(e, self.parser))? {
                keywords::sort_out(self.source, &mut expression)?;
                arguments.push(crate::bind::Argument {
                    source: self.source.clone(),
                    expression: Arc::new(Tree::of_part(expression, self.source)),
                });
            }
            self.expect_token(&Token::RParen)?;
        }
        Ok(Plan::Execute { name, arguments })
    }

    fn prepare(&mut self) -> Result<Ast> {
        self.next();
        if self.is_word("transaction") {
            return Err(SqlError::unsupported("PREPARE TRANSACTION"));
        }
        let name = self.name()?;
        let mut types = Vec::new();
        if self.token(&Token::LParen) {
            let parsed = self.parser.parse_comma_separated(Parser::parse_data_type);
            types = parsed.map_err(|e| self.source.parser_error(e, self.parser))?;
            self.expect_token(&Token::RParen)?;
        }
        self.expect_word("as")?;
        self.expect_query()?;
        let statement = self.nested()?;
        Ok(Ast::Prepare { name, types, statement: Box::new(statement) })
    }

    /// What PREPARE and COPY (…) take. A statement that holds another stands in none: each level would keep all that it holds.
    fn expect_query(&mut self) -> Result<()> {
        const BEGINNINGS: [&str; 8] =
            ["select", "insert", "update", "delete", "merge", "values", "table", "with"];
        let is_query = *self.peek() == Token::LParen || BEGINNINGS.iter().any(|word| self.is_word(word));
        if is_query { Ok(()) } else { Err(self.unexpected()) }
    }

    /// The statement inside another: everything up to the end.
    fn nested(&mut self) -> Result<crate::Statement> {
        let tokens = self.rest();
        if tokens.iter().all(|t| matches!(t.token, Token::Whitespace(_))) {
            return Err(self.source.syntax_error(None));
        }
        parse_one(self.source, tokens)
    }

    fn explain(&mut self) -> Result<Ast> {
        self.next();
        if self.token(&Token::LParen) {
            loop {
                let option = self.name()?;
                let value = if matches!(self.peek(), Token::Comma | Token::RParen) {
                    None
                } else {
                    Some(self.value()?.to_lowercase())
                };
                let on = !matches!(value.as_deref(), Some("off" | "false" | "0"));
                match option.as_str() {
                    "costs" | "verbose" | "summary" => {}
                    "format" if value.as_deref() == Some("text") => {}
                    "format" => return Err(SqlError::unsupported("EXPLAIN (FORMAT …) other than text")),
                    "analyze" | "buffers" | "settings" | "wal" | "timing" if !on => {}
                    _ => return Err(SqlError::unsupported(format!("EXPLAIN ({})", option.to_uppercase()))),
                }
                if !self.token(&Token::Comma) {
                    break;
                }
            }
            self.expect_token(&Token::RParen)?;
        } else {
            if self.is_word("analyze") || self.is_word("analyse") {
                return Err(SqlError::unsupported("EXPLAIN ANALYZE"));
            }
            let _ = self.word("verbose");
        }
        if ["explain", "prepare", "copy"].iter().any(|word| self.is_word(word)) {
            return Err(self.unexpected());
        }
        Ok(Ast::Explain(Box::new(self.nested()?)))
    }

    fn copy(&mut self) -> Result<Ast> {
        self.next();
        if self.is_word("binary") {
            return Err(SqlError::unsupported("COPY BINARY"));
        }
        let source = if self.token(&Token::LParen) {
            self.expect_query()?;
            let mut depth = 1;
            let mut tokens = Vec::new();
            loop {
                let token = match self.parser.next_token_no_skip() {
                    Some(token) => token.clone(),
                    None => return Err(self.source.syntax_error(None)),
                };
                match token.token {
                    Token::LParen => depth += 1,
                    Token::RParen => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
                tokens.push(token);
            }
            CopySource::Query(parse_one(self.source, tokens)?)
        } else {
            let name = self.parser.parse_object_name(false);
            let name = name.map_err(|e| self.source.parser_error(e, self.parser))?;
            let columns = if *self.peek() == Token::LParen { self.columns()? } else { Vec::new() };
            CopySource::Table { name, columns }
        };
        let is_query = matches!(source, CopySource::Query(_));
        let to = if self.word("to") {
            true
        } else if !is_query && self.word("from") {
            false
        } else {
            return Err(self.unexpected());
        };
        if self.word("program") {
            return Err(SqlError::unsupported("COPY to or from a program"));
        } else if self.string().is_ok() {
            return Err(SqlError::unsupported("COPY to or from a file of the server").with_hint(
                "Use COPY … FROM STDIN or TO STDOUT; psql's \\copy reads and writes files of the client.",
            ));
        } else if !(self.word("stdin") || self.word("stdout")) {
            return Err(self.unexpected());
        }
        let options = self.copy_options()?;
        if self.is_word("where") {
            return Err(SqlError::unsupported("COPY … FROM … WHERE"));
        }
        self.expect_end()?;
        Ok(Ast::Copy(CopyStatement { source, to, options }))
    }

    /// `( column, … )`
    fn columns(&mut self) -> Result<Vec<sqlparser::ast::Ident>> {
        self.expect_token(&Token::LParen)?;
        let columns = self.parser.parse_comma_separated(Parser::parse_identifier);
        let columns = columns.map_err(|e| self.source.parser_error(e, self.parser))?;
        self.expect_token(&Token::RParen)?;
        Ok(columns)
    }

    fn copy_options(&mut self) -> Result<Vec<CopyOption>> {
        let mut options = Vec::new();
        let _ = self.word("with");
        if self.token(&Token::LParen) {
            loop {
                let position = self.position();
                let name = self.name()?;
                let value = match self.peek() {
                    Token::Comma | Token::RParen => CopyValue::None,
                    Token::Mul => {
                        self.next();
                        CopyValue::Star
                    }
                    Token::LParen => CopyValue::Columns(self.columns()?),
                    _ => CopyValue::Text(self.value()?),
                };
                options.push(CopyOption { name, position, value });
                if !self.token(&Token::Comma) {
                    break;
                }
            }
            self.expect_token(&Token::RParen)?;
            return Ok(options);
        }
        // The syntax of PostgreSQL before version 9.0.
        loop {
            let position = self.position();
            let mut push =
                |name: &str, value| options.push(CopyOption { name: name.into(), position, value });
            if self.word("binary") {
                push("format", CopyValue::Text("binary".into()));
            } else if self.word("csv") {
                push("format", CopyValue::Text("csv".into()));
            } else if self.word("header") {
                push("header", CopyValue::None);
            } else if self.word("freeze") {
                push("freeze", CopyValue::None);
            } else if self.word("force") {
                let name = if self.word("quote") {
                    "force_quote"
                } else if self.word("null") {
                    "force_null"
                } else {
                    self.expect_word("not")?;
                    self.expect_word("null")?;
                    "force_not_null"
                };
                let value = if self.token(&Token::Mul) {
                    CopyValue::Star
                } else {
                    let columns = self.parser.parse_comma_separated(Parser::parse_identifier);
                    CopyValue::Columns(columns.map_err(|e| self.source.parser_error(e, self.parser))?)
                };
                push(name, value);
            } else {
                let Some(name) = ["delimiter", "delimiters", "null", "quote", "escape", "encoding"]
                    .into_iter()
                    .find(|name| self.is_word(name))
                else {
                    return Ok(options);
                };
                self.next();
                let _ = self.word("as");
                let value = self.string()?;
                push(name.trim_end_matches('s'), CopyValue::Text(value));
            }
        }
    }

    fn position(&self) -> u32 {
        position_of(self.parser.peek_token_ref().span).unwrap_or(1)
    }
}

/// The word as an identifier: folded to lower case unless it was quoted, but for letters outside of ASCII.
fn fold(word: &Word) -> String {
    if word.quote_style.is_some() { word.value.clone() } else { word.value.to_ascii_lowercase() }
}
