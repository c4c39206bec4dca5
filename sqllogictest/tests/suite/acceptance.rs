//! The flights out of New York in 2013: what psql prints for a script must be what it prints with PostgreSQL.

use std::{
    fmt::Write,
    io::Read,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use carousel_sqllogictest::session::connect;
use flate2::read::GzDecoder;
use futures::SinkExt;
use tokio_postgres::{
    Client, SimpleQueryMessage,
    error::{DbError, ErrorPosition},
};

use crate::server::{SMALL, Server};

/// Bytes of one message of COPY data.
const COPY_CHUNK: usize = 64 << 10;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("acceptance")
}

fn script(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).expect("the script can be read")
}

/// Statements of a script, each with the number of its last line; comment lines are left out, as by psql.
fn statements(script: &str) -> Vec<(usize, String)> {
    let mut statements = Vec::new();
    let mut statement = String::new();
    for (index, line) in script.lines().enumerate() {
        if statement.is_empty() && (line.starts_with("--") || line.is_empty()) {
            continue;
        }
        statement += line;
        if line.ends_with(';') || statement.starts_with('\\') {
            statements.push((index + 1, std::mem::take(&mut statement)));
        } else {
            statement.push('\n');
        }
    }
    statements
}

/// psql's `\copy table from program 'gzip -dc file' with (options)`.
async fn copy(client: &Client, command: &str) {
    let (table, rest) = command
        .strip_prefix("\\copy ")
        .and_then(|rest| rest.split_once(" from program 'gzip -dc "))
        .expect("a \\copy from gzip");
    let (file, options) = rest.split_once("' ").expect("options after the program");
    let mut decoder = GzDecoder::new(std::fs::File::open(folder().join(file)).expect("the data file exists"));
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN {options}")).await.expect("COPY starts");
    let mut sink = std::pin::pin!(sink);
    loop {
        let mut chunk = Vec::with_capacity(COPY_CHUNK);
        decoder.by_ref().take(COPY_CHUNK as u64).read_to_end(&mut chunk).expect("the data can be unpacked");
        if chunk.is_empty() {
            break;
        }
        sink.send(Bytes::from(chunk)).await.expect("COPY data is taken");
    }
    sink.as_mut().finish().await.unwrap_or_else(|error| panic!("COPY {table}: {error:?}"));
}

/// What `psql -A -f acceptance/NAME` prints for one statement.
async fn psql(client: &Client, name: &str, line: usize, sql: &str) -> String {
    let mut out = String::new();
    let verb = sql.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    let messages = match client.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("line {line}: {error:?}"));
            return psql_error(name, line, sql, error);
        }
    };
    let mut rows = None;
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                let names: Vec<&str> = columns.iter().map(|c| c.name()).collect();
                out += &format!("{}\n", names.join("|"));
                rows = Some(0);
            }
            SimpleQueryMessage::Row(row) => {
                let values: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or_default()).collect();
                out += &format!("{}\n", values.join("|"));
                rows = rows.map(|rows| rows + 1);
            }
            SimpleQueryMessage::CommandComplete(count) => {
                if let Some(rows) = rows {
                    out += &format!("({rows} row{})\n", if rows == 1 { "" } else { "s" });
                }
                // The client library keeps only the number of the tag.
                match verb.as_str() {
                    "SELECT" | "WITH" => {}
                    "INSERT" => out += &format!("INSERT 0 {count}\n"),
                    "UPDATE" | "DELETE" => out += &format!("{verb} {count}\n"),
                    _ => out += &format!("{verb}\n"),
                }
            }
            _ => {}
        }
    }
    out
}

fn psql_error(name: &str, line: usize, sql: &str, error: &DbError) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "psql:acceptance/{name}:{line}: {}:  {}", error.severity(), error.message());
    if let Some(ErrorPosition::Original(position)) = error.position() {
        let before: String = sql.chars().take(*position as usize - 1).collect();
        let number = before.matches('\n').count();
        let column = before.chars().rev().take_while(|c| *c != '\n').count();
        let text = sql.lines().nth(number).unwrap_or_default();
        let prefix = format!("LINE {}: ", number + 1);
        let _ = writeln!(out, "{prefix}{text}\n{}^", " ".repeat(prefix.len() + column));
    }
    if let Some(detail) = error.detail() {
        let _ = writeln!(out, "DETAIL:  {detail}");
    }
    if let Some(hint) = error.hint() {
        let _ = writeln!(out, "HINT:  {hint}");
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn flights_print_what_postgresql_prints() {
    let server = Server::start(SMALL).await;
    let (client, _) = connect(&server.url).await.expect("the server accepts a connection");
    for (line, statement) in statements(&script("flights_load.sql")) {
        if statement.starts_with('\\') {
            copy(&client, &statement).await;
        } else {
            client.simple_query(&statement).await.unwrap_or_else(|e| panic!("line {line}: {e:?}"));
        }
    }
    // The second script finds the rows as the first one leaves them.
    for name in ["flights_main", "flights_joins"] {
        let source = format!("{name}.sql");
        let mut printed = String::new();
        for (line, statement) in statements(&script(&source)) {
            printed += &psql(&client, &source, line, &statement).await;
        }
        let expected = script(&format!("{name}.expected"));
        for (number, (expected, printed)) in expected.lines().zip(printed.lines()).enumerate() {
            assert_eq!(printed, expected, "line {} of the output of {name}", number + 1);
        }
        assert_eq!(printed.lines().count(), expected.lines().count());
    }
}
