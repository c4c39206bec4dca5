//! What a process tells about itself: its log and its metrics.

use std::{io::IsTerminal, net::SocketAddr};

use clap::ValueEnum;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use super::failure::Failure;

/// The form of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Logs to stderr what the filter says, else what `RUST_LOG` says, else warnings.
///
/// # Errors
/// A setup failure when the filter cannot be read.
pub fn log_to_stderr(filter: Option<&str>, format: LogFormat) -> Result<(), Failure> {
    let filter = match filter {
        Some(filter) => EnvFilter::try_new(filter)
            .map_err(|error| Failure::setup(format!("--log '{filter}': {error}")))?,
        None => match std::env::var("RUST_LOG") {
            Ok(filter) => EnvFilter::try_new(&filter)
                .map_err(|error| Failure::setup(format!("RUST_LOG '{filter}': {error}")))?,
            // Consensus warns of every election, also of the first one.
            Err(_) => EnvFilter::new("warn,openraft=error"),
        },
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Serves metrics to Prometheus from now on. Within a runtime.
///
/// # Errors
/// A setup failure when it is not possible to listen there.
pub fn serve_metrics(address: SocketAddr) -> Result<(), Failure> {
    PrometheusBuilder::new().with_http_listener(address).install().map_err(|error| {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        Failure::setup(format!("cannot serve metrics on {address}: {text}"))
    })
}
