//! Connecting to a running server.

use std::future::poll_fn;

use clap::Args;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, error::DbError};

use crate::cli::Failure;

/// Which server to talk to.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Connection string, for example postgres://carousel@127.0.0.1:5433/carousel
    #[arg(long, value_name = "URL", conflicts_with_all = ["host", "port"], env = "CAROUSEL_URL", hide_env_values = true)]
    pub url: Option<String>,

    /// Host of the server
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,

    /// Port of the server
    #[arg(long, value_name = "PORT", default_value_t = 5433)]
    pub port: u16,
}

impl ConnectArgs {
    /// The driver's configuration.
    ///
    /// # Errors
    /// When the connection string is malformed.
    pub fn config(&self) -> Result<Config, Failure> {
        let mut config = match &self.url {
            Some(url) => url.parse::<Config>().map_err(|error| {
                Failure::setup(format!("'{url}' is not a connection string: {}", reason(&error)))
            })?,
            None => {
                let mut config = Config::new();
                config.host(&self.host).port(self.port);
                config
            }
        };
        if config.get_user().is_none() {
            config.user("carousel");
        }
        if config.get_dbname().is_none() {
            config.dbname("carousel");
        }
        Ok(config)
    }

    /// Connects.
    ///
    /// # Errors
    /// When there is no server.
    pub async fn connect(&self) -> Result<Client, Failure> {
        connect(&self.config()?).await
    }
}

/// Connects and drives the connection in a task of its own, which tells what the server warns of on stderr.
///
/// # Errors
/// When there is no server, or it refuses.
pub async fn connect(config: &Config) -> Result<Client, Failure> {
    let (client, mut connection) = config.connect(NoTls).await.map_err(|error| {
        let host = match config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(tokio_postgres::config::Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        Failure::setup(format!("cannot connect to {host}:{port}: {}", reason(&error)))
    })?;
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) => eprintln!("{}", words(&notice)),
                Ok(_) => {}
                // Statements that are under way report the connection's end themselves.
                Err(error) => {
                    tracing::debug!(%error, "connection ended");
                    break;
                }
            }
        }
    });
    Ok(client)
}

/// The words of an error of the driver: the server's own where it sent any, with all causes otherwise.
pub fn reason(error: &tokio_postgres::Error) -> String {
    if let Some(server) = error.as_db_error() {
        return words(server);
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    text
}

/// The words of an error or a notice of the server.
fn words(server: &DbError) -> String {
    let mut text = format!("{}: {}", server.severity(), server.message());
    if let Some(detail) = server.detail() {
        text.push_str(&format!(" DETAIL: {detail}"));
    }
    if let Some(hint) = server.hint() {
        text.push_str(&format!(" HINT: {hint}"));
    }
    if let Some(context) = server.where_() {
        text.push_str(&format!(" CONTEXT: {context}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(url: Option<&str>) -> ConnectArgs {
        ConnectArgs { url: url.map(str::to_owned), host: "localhost".to_owned(), port: 7 }
    }

    #[test]
    fn a_connection_string_or_host_and_port() {
        let config = args(None).config().unwrap();
        assert_eq!((config.get_ports(), config.get_user()), (&[7][..], Some("carousel")));
        let config = args(Some("postgres://me@10.0.0.1:99/mine")).config().unwrap();
        assert_eq!((config.get_ports(), config.get_user()), (&[99][..], Some("me")));
        assert_eq!(config.get_dbname(), Some("mine"));
        let failure = args(Some("postgres://:::")).config().unwrap_err();
        assert!(failure.exit_code() == 2 && failure.to_string().contains("postgres://:::"), "{failure}");
    }
}
