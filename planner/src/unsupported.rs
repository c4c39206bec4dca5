//! Statements of PostgreSQL that there are none of here, known by their first words: what sqlparser cannot read of them is no
//! mistake of whoever wrote it. So are clauses, known by words that stand together.

use carousel_engine::SqlError;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::parse::Source;

/// First words after which everything is unsupported.
const STATEMENTS: [&str; 24] = [
    "analyse",
    "analyze",
    "call",
    "checkpoint",
    "close",
    "cluster",
    "comment",
    "declare",
    "do",
    "fetch",
    "grant",
    "import",
    "listen",
    "load",
    "lock",
    "move",
    "notify",
    "reassign",
    "refresh",
    "reindex",
    "revoke",
    "security",
    "unlisten",
    "vacuum",
];

/// What is created, altered and dropped elsewhere.
const OBJECTS: [&str; 38] = [
    "access",
    "aggregate",
    "cast",
    "collation",
    "conversion",
    "database",
    "default",
    "domain",
    "event",
    "extension",
    "foreign",
    "function",
    "group",
    "index",
    "language",
    "large",
    "materialized",
    "operator",
    "owned",
    "policy",
    "procedure",
    "publication",
    "role",
    "routine",
    "rule",
    "schema",
    "sequence",
    "server",
    "statistics",
    "subscription",
    "system",
    "tablespace",
    "text",
    "transform",
    "trigger",
    "type",
    "user",
    "view",
];

/// Words between CREATE and what is created.
const MODIFIERS: [&str; 9] =
    ["or", "replace", "unique", "constraint", "recursive", "temp", "temporary", "trusted", "procedural"];

/// What clauses that sqlparser does not know are called, as they are written.
const CLAUSES: [&str; 26] = [
    "collation for",
    "current of",
    "exclude current",
    "exclude group",
    "exclude no",
    "exclude ties",
    "exclude using",
    "for key share",
    "for no key update",
    "for read only",
    "group by all",
    "group by distinct",
    "include",
    "including",
    "is document",
    "is not document",
    "national char",
    "national character",
    "no inherit",
    "nulls not distinct",
    "overriding",
    "rows from",
    "search breadth",
    "search depth",
    "uescape",
    "variadic array",
];

/// What a syntax error is when it is in a clause that is not supported, or right behind its words.
pub(crate) fn clause(source: &Source, error: SqlError) -> SqlError {
    let Some(position) = error.position else { return error };
    match CLAUSES.iter().find(|clause| source.is_among(position, clause)) {
        Some(clause) => SqlError::unsupported(clause.to_uppercase()).at(position),
        None => error,
    }
}

/// The name of a statement that is not supported whatever it says.
pub(crate) fn statement(tokens: &[TokenWithSpan]) -> Option<String> {
    let mut words =
        tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_)));
    let mut word = || match words.next() {
        Some(Token::Word(word)) if word.quote_style.is_none() => Some(word.value.to_ascii_lowercase()),
        _ => None,
    };
    let first = word()?;
    if STATEMENTS.contains(&first.as_str()) {
        return Some(first.to_uppercase());
    }
    if !matches!(first.as_str(), "create" | "alter" | "drop") {
        return None;
    }
    let mut object = word()?;
    while MODIFIERS.contains(&object.as_str()) {
        object = word()?;
    }
    // Only that of a table is not there at all.
    let is_unsupported =
        OBJECTS.contains(&object.as_str()) || (first.as_str(), object.as_str()) == ("alter", "table");
    if !is_unsupported {
        return None;
    }
    Some(format!("{first} {object}").to_uppercase())
}

#[cfg(test)]
mod tests {
    use carousel_engine::SqlState;

    use crate::parse::parse;

    #[test]
    fn what_there_is_not_is_no_syntax_error() {
        let code = |sql: &str| parse(sql).err().map(|error| (error.code, error.message.clone()));
        for (sql, statement) in [
            ("FETCH 1 c", "FETCH"),
            ("MOVE c", "MOVE"),
            ("DO $$BEGIN PERFORM 1; END$$", "DO"),
            ("checkpoint", "CHECKPOINT"),
            ("ALTER GROUP g ADD USER u", "ALTER GROUP"),
            ("CREATE OR REPLACE LANGUAGE l", "CREATE LANGUAGE"),
            ("CREATE EVENT TRIGGER t ON ddl_command_start EXECUTE FUNCTION f()", "CREATE EVENT"),
            ("ALTER TABLE t SET (fillfactor = 70), INHERIT u", "ALTER TABLE"),
            ("DROP OWNED BY r", "DROP OWNED"),
            ("CREATE TRANSFORM FOR int LANGUAGE l (FROM SQL WITH FUNCTION f(internal))", "CREATE TRANSFORM"),
            ("CREATE TABLE t (LIKE u INCLUDING ALL)", "INCLUDING"),
            ("CREATE TABLE t (a integer CHECK (a > 0) NO INHERIT)", "NO INHERIT"),
            ("CREATE TABLE t (a integer UNIQUE NULLS NOT DISTINCT)", "NULLS NOT DISTINCT"),
            ("SELECT a FROM t FOR NO KEY UPDATE", "FOR NO KEY UPDATE"),
            ("SELECT a FROM t FOR READ ONLY", "FOR READ ONLY"),
            ("SELECT a FROM t GROUP BY DISTINCT CUBE (a)", "GROUP BY DISTINCT"),
            ("DELETE FROM t WHERE CURRENT OF c", "CURRENT OF"),
            ("INSERT INTO t OVERRIDING USER VALUE VALUES (1)", "OVERRIDING"),
            ("SELECT format('%s', VARIADIC ARRAY['a'])", "VARIADIC ARRAY"),
            ("SELECT U&'d!0061t' UESCAPE '!'", "UESCAPE"),
            ("SELECT sum(a) OVER (ORDER BY a GROUPS CURRENT ROW EXCLUDE TIES) FROM t", "EXCLUDE TIES"),
        ] {
            let expected = (SqlState::FEATURE_NOT_SUPPORTED, format!("{statement} is not supported"));
            assert_eq!(code(sql), Some(expected), "{sql}");
        }
        for sql in [
            "fetsch c",
            "CREATE TABLE",
            "TRUNCATE",
            "CREATE",
            "\"fetch\" c",
            "SELECT fetch FROM",
            "ALTER CLUSTER",
            "SELECT include FROM t WHERE",
            "SELECT a FROM t FOR \"no\" key update",
        ] {
            assert_eq!(code(sql).map(|(code, _)| code), Some(SqlState::SYNTAX_ERROR), "{sql}");
        }
    }
}
