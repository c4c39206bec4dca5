//! The start of a session: what the client says about itself, and the settings it brings.

use std::{collections::HashMap, sync::Arc, time::Instant};

use carousel_cluster::client::Client;
use carousel_engine::{SqlError, SqlState, error::Result};
use pgwire::messages::response::TransactionStatus;

use super::{Identity, Relations, Session, transaction::Transaction};
use crate::{connection::Connection, metering::Meter, protocol::startup::Startup, settings::SessionSettings};

impl<'c> Session<'c> {
    /// A session as the client asks for it; its greeting is in the connection's output. Until roles exist, any role
    /// and database name will do.
    ///
    /// # Errors
    /// 28000 without a role, 0A000 for replication, and those of settings: the connection cannot go on.
    pub fn start(
        connection: &'c mut Connection,
        client: Client,
        relations: Arc<Relations>,
        meter: Arc<Meter>,
        identity: Identity,
        startup: Startup,
        longest_row: usize,
    ) -> Result<Session<'c>> {
        let mut parameters = startup.parameters;
        let mut take = |name: &str| parameters.remove(name).filter(|value| !value.is_empty());
        let user = take("user").ok_or_else(|| {
            SqlError::new(SqlState(*b"28000"), "no PostgreSQL user name specified in startup packet")
        })?;
        let database = take("database").unwrap_or_else(|| user.clone());
        let options = take("options");
        if let Some(replication) = take("replication")
            && !matches!(replication.to_ascii_lowercase().as_str(), "false" | "off" | "no" | "0")
        {
            return Err(SqlError::unsupported("the replication protocol"));
        }
        let mut settings = SessionSettings::new(&user);
        for (name, value) in options.iter().flat_map(|options| command_line(options)) {
            let value = value.ok_or_else(|| invalid_option(&name))?;
            settings.set_initial(&name, &value)?;
        }
        for (name, value) in &parameters {
            if !name.starts_with("_pq_.") {
                settings.set_initial(name, value)?;
            }
        }

        let output = &mut connection.output;
        output.authentication_ok();
        for (name, value) in settings.take_changes() {
            output.parameter_status(name, &value);
        }
        output.backend_key_data(identity.process, &identity.secret);
        output.ready_for_query(TransactionStatus::Idle);
        Ok(Session {
            connection,
            client,
            relations,
            meter,
            begun: Instant::now(),
            process: identity.process,
            user: user.into(),
            database: database.into(),
            settings,
            transaction: Transaction::new(),
            in_doubt: false,
            last_ts: None,
            statements: HashMap::new(),
            statements_bytes: 0,
            portals: HashMap::new(),
            idle: true,
            skipping: false,
            longest_row,
        })
    }
}

fn invalid_option(option: &str) -> SqlError {
    SqlError::new(
        SqlState::SYNTAX_ERROR,
        format!("invalid command-line argument for server process: {option}"),
    )
}

/// The settings in an `options` parameter: `-c name=value`, `-cname=value` and `--name=value`, separated by blanks; a
/// backslash takes the next character as it is. What is no setting has no value.
fn command_line(options: &str) -> Vec<(String, Option<String>)> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = options.chars();
    while let Some(c) = characters.next() {
        if c.is_ascii_whitespace() {
            words.extend(word.take());
            continue;
        }
        let c = if c == '\\' { characters.next() } else { Some(c) };
        word.get_or_insert_default().extend(c);
    }
    words.extend(word);
    let mut settings = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let assignment = if word == "-c" {
            words.next()
        } else {
            word.strip_prefix("--").or_else(|| word.strip_prefix("-c")).map(str::to_owned)
        };
        settings.push(match assignment.as_deref().and_then(|a| a.split_once('=')) {
            Some((name, value)) => (name.replace('-', "_"), Some(value.to_owned())),
            None => (word, None),
        });
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split_as_a_command_line() {
        let some = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        assert_eq!(
            command_line(r"-c a=1 -cb.c=x\ y --statement-timeout=5s -x"),
            [some("a", "1"), some("b.c", "x y"), some("statement_timeout", "5s"), ("-x".to_owned(), None)]
        );
    }
}
