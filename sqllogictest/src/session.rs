//! One connection to the server under test, as the sqllogictest crate wants it.
//!
//! A statement is first described (protocol Parse and Describe), which gives the types of its columns, and then run as
//! a simple query, which gives its values as the text that psql prints. So each record tests both protocols.

use std::fmt;

use async_trait::async_trait;
use sqllogictest::{AsyncDB, ColumnType, DBOutput};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, types::Type};

/// The type of a result column, one letter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultType(pub char);

/// Letters of the types; any other type is `?`.
const LETTERS: &[(Type, char)] = &[
    (Type::BOOL, 'B'),
    (Type::INT2, 'S'),
    (Type::INT4, 'I'),
    (Type::INT8, 'L'),
    (Type::FLOAT4, 'F'),
    (Type::FLOAT8, 'R'),
    (Type::NUMERIC, 'N'),
    (Type::TEXT, 'T'),
    (Type::VARCHAR, 'V'),
    (Type::BPCHAR, 'C'),
    (Type::DATE, 'D'),
    (Type::TIME, 'H'),
    (Type::TIMESTAMP, 'P'),
    (Type::TIMESTAMPTZ, 'Z'),
    (Type::INTERVAL, 'W'),
    (Type::UUID, 'U'),
    (Type::BYTEA, 'Y'),
];

impl ColumnType for ResultType {
    fn from_char(letter: char) -> Option<Self> {
        Some(ResultType(letter))
    }

    fn to_char(&self) -> char {
        self.0
    }
}

impl From<&Type> for ResultType {
    fn from(ty: &Type) -> Self {
        ResultType(LETTERS.iter().find(|(known, _)| known == ty).map_or('?', |(_, letter)| *letter))
    }
}

/// What the server said to a statement that failed: `SQLSTATE: message`, then DETAIL and HINT on lines of their own.
#[derive(Clone, Debug)]
pub struct ServerError {
    /// The five characters of the SQLSTATE; `None` when the connection itself failed.
    pub sqlstate: Option<String>,
    /// The text compared with the expected one.
    pub text: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ServerError {}

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(database) = error.as_db_error() else {
            return ServerError { sqlstate: None, text: format!("connection: {error:?}") };
        };
        let mut text = format!("{}: {}", database.code().code(), database.message());
        if let Some(detail) = database.detail() {
            text += &format!("\nDETAIL: {detail}");
        }
        if let Some(hint) = database.hint() {
            text += &format!("\nHINT: {hint}");
        }
        ServerError { sqlstate: Some(database.code().code().to_owned()), text }
    }
}

/// One connection.
pub struct Session {
    client: Option<Client>,
    connection: tokio::task::JoinHandle<()>,
}

/// Opens a connection whose other half runs as a task.
pub async fn connect(url: &str) -> Result<(Client, tokio::task::JoinHandle<()>), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let task = tokio::spawn(async move {
        // The error of a connection that breaks reaches the client's next call.
        let _ = connection.await;
    });
    Ok((client, task))
}

impl Session {
    /// Connects to `url`, a `postgres://` URL or a libpq connection string.
    pub async fn connect(url: &str) -> Result<Session, ServerError> {
        let (client, connection) = connect(url).await?;
        Ok(Session { client: Some(client), connection })
    }

    /// Runs one statement and gives the types of its columns (`None` when it returns no rows), its rows, and the count
    /// of its command tag.
    pub async fn execute(&mut self, sql: &str) -> Result<Answer, ServerError> {
        let client = self.client.as_ref().expect("a session is not used after its shutdown");
        let columns =
            client.prepare(sql).await?.columns().iter().map(|c| c.type_().into()).collect::<Vec<_>>();
        let mut answer = Answer { types: columns, rows: Vec::new(), count: 0 };
        for message in client.simple_query(sql).await? {
            match message {
                SimpleQueryMessage::Row(row) => {
                    answer.rows.push((0..row.len()).map(|i| cell(row.get(i))).collect());
                }
                SimpleQueryMessage::CommandComplete(count) => answer.count = count,
                _ => {}
            }
        }
        Ok(answer)
    }
}

/// What a statement gave.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Types of the columns; empty for a statement that returns no rows.
    pub types: Vec<ResultType>,
    /// Values as text.
    pub rows: Vec<Vec<String>>,
    /// The number in the command tag, 0 when it has none.
    pub count: u64,
}

/// How a value is written in a suite: one line, never nothing, no blanks at its end.
fn cell(value: Option<&str>) -> String {
    match value {
        None => "NULL".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(text) => {
            let visible = text.trim_end_matches(' ');
            let blanks = "\\s".repeat(text.len() - visible.len());
            visible.replace('\n', "\\n").replace('\t', "\\t") + &blanks
        }
    }
}

#[async_trait]
impl AsyncDB for Session {
    type Error = ServerError;
    type ColumnType = ResultType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<ResultType>, ServerError> {
        let answer = self.execute(sql).await?;
        Ok(match answer.types.is_empty() {
            true => DBOutput::StatementComplete(answer.count),
            false => DBOutput::Rows { types: answer.types, rows: answer.rows },
        })
    }

    async fn shutdown(&mut self) {
        // Dropping the client ends the connection's task.
        self.client = None;
        let _ = (&mut self.connection).await;
    }

    fn engine_name(&self) -> &str {
        "postgresql"
    }

    fn error_sql_state(error: &ServerError) -> Option<String> {
        error.sqlstate.clone()
    }
}
