//! Statements of PostgreSQL that there are none of here, known by their first words: what sqlparser cannot read of them is no
//! mistake of whoever wrote it.

use sqlparser::tokenizer::{Token, TokenWithSpan};

/// First words after which everything is unsupported.
const STATEMENTS: [&str; 23] = [
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
const OBJECTS: [&str; 37] = [
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
    "trigger",
    "type",
    "user",
    "view",
];

/// Words between CREATE and what is created.
const MODIFIERS: [&str; 9] =
    ["or", "replace", "unique", "constraint", "recursive", "temp", "temporary", "trusted", "procedural"];

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
        ] {
            assert_eq!(code(sql).map(|(code, _)| code), Some(SqlState::SYNTAX_ERROR), "{sql}");
        }
    }
}
