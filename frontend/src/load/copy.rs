//! COPY FROM STDIN from a stream of bytes.

use std::pin::pin;

use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use tokio_postgres::Client;

use super::connection::reason;
use crate::cli::Failure;

/// A chunk of input and how far it moves the progress bar.
pub struct Chunk {
    /// The bytes.
    pub bytes: Bytes,
    /// Rows or bytes, whatever the bar counts.
    pub progress: u64,
}

/// Sends chunks to the server as the input of a COPY statement; gives the number of rows it loaded.
///
/// # Errors
/// The server's own error, translated by `explain`; or what went wrong with the input, in which case nothing is loaded.
pub async fn copy(
    client: &Client,
    statement: &str,
    chunks: impl Stream<Item = Result<Chunk, Failure>>,
    mut advance: impl FnMut(u64),
    explain: impl Fn(&tokio_postgres::Error) -> Failure,
) -> Result<u64, Failure> {
    let sink = client.copy_in::<_, Bytes>(statement).await.map_err(|error| explain(&error))?;
    let mut sink = pin!(sink);
    let mut chunks = pin!(chunks);
    while let Some(chunk) = chunks.next().await {
        // Leaving without `finish` makes the driver send CopyFail: nothing is loaded.
        let chunk = chunk?;
        if sink.send(chunk.bytes).await.is_err() {
            // The connection ended; why is told by `finish`.
            break;
        }
        advance(chunk.progress);
    }
    sink.finish().await.map_err(|error| explain(&error))
}

/// An error about a file: where the server names the line of its input, the file's line is the same.
pub fn explain_file(file: &str, error: &tokio_postgres::Error, unit: &str) -> Failure {
    let Some(server) = error.as_db_error() else {
        return Failure::job(format!("{file}: {}", reason(error)));
    };
    let Some((line, rest)) = server.where_().and_then(place) else {
        return Failure::job(format!("{file}: {}", reason(error)));
    };
    let mut text = format!("{file}, {unit} {line}{rest}: {}", server.message());
    if let Some(detail) = server.detail() {
        text.push_str(&format!(" ({detail})"));
    }
    text.push_str("; nothing was loaded");
    Failure::job(text)
}

/// Line and column of a context such as `COPY flights, line 5, column dep_delay: "abc"`.
fn place(context: &str) -> Option<(u64, String)> {
    let after = context.strip_prefix("COPY ")?.split_once(", line ")?.1;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    let line = after[..digits].parse().ok()?;
    let column = after[digits..].strip_prefix(", column ").map(|rest| {
        let end = rest.find(": ").unwrap_or(rest.len());
        format!(", column {}", &rest[..end])
    });
    Some((line, column.unwrap_or_default()))
}

/// A name as SQL writes it when it means exactly this name, keyword or not.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string as SQL writes it.
pub fn quote_literal(text: &str) -> String {
    if text.contains('\\') {
        format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_error_is_found_in_its_context() {
        let column = |name: &str| format!(", column {name}");
        assert_eq!(place("COPY flights, line 5, column dep_delay: \"abc\""), Some((5, column("dep_delay"))));
        assert_eq!(place("COPY flights, line 12: \"1,2\""), Some((12, String::new())));
        assert_eq!(place("COPY t, line 3, column x"), Some((3, column("x"))));
        assert_eq!(place("PL/pgSQL function f() line 5"), None);
        assert_eq!(place("COPY t, line x"), None);
    }

    #[test]
    fn names_and_strings_are_quoted() {
        assert_eq!(quote_identifier("order"), "\"order\"");
        assert_eq!(quote_identifier("Dep Delay"), "\"Dep Delay\"");
        assert_eq!(quote_identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal("\\N"), "E'\\\\N'");
    }
}
