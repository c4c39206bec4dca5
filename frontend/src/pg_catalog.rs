//! What clients look for in PostgreSQL's own tables. Carousel has none of them yet; a statement that names one is told
//! so, instead of being told that a table it knows to exist does not.

use carousel_engine::{SqlError, SqlState};

/// The error of a statement, made plain when it is about a table of the system catalog.
pub fn clarify(error: SqlError, statement: &str) -> SqlError {
    let about_catalog =
        error.code == SqlState::UNDEFINED_TABLE || error.code == SqlState::FEATURE_NOT_SUPPORTED;
    if !about_catalog {
        return error;
    }
    let lower = statement.to_ascii_lowercase();
    let named = lower
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
        .find(|word| word.starts_with("pg_catalog.pg_") || word.starts_with("information_schema."))
        .or_else(|| {
            let table = error.message.strip_prefix("relation \"")?.split_once('"')?.0;
            (table.starts_with("pg_")).then_some(table)
        });
    match named {
        Some(name) => {
            let mut clear = SqlError::unsupported(format!("the system catalog (\"{name}\")"))
                .with_hint("Carousel has no system catalog tables; psql's \\d and \\dt need them.");
            clear.position = error.position;
            clear
        }
        None => error,
    }
}
