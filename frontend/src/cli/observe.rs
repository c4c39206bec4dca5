//! What a process tells about itself: its log and its metrics.

use std::{
    io::IsTerminal,
    net::{SocketAddr, ToSocketAddrs},
};

use clap::{Args, ValueEnum};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use super::failure::Failure;
use crate::metering::describe;

/// Upper bounds of the buckets in which durations are counted.
const SECONDS: [f64; 18] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];

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
        Some(filter) => EnvFilter::try_new(beside_consensus(filter))
            .map_err(|error| Failure::setup(format!("--log '{filter}': {error}")))?,
        None => match std::env::var("RUST_LOG") {
            Ok(filter) => EnvFilter::try_new(beside_consensus(&filter))
                .map_err(|error| Failure::setup(format!("RUST_LOG '{filter}': {error}")))?,
            Err(_) => EnvFilter::new(beside_consensus("warn")),
        },
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// The filter, with errors only of the consensus where it says nothing of that: it warns of every election, also of the first
/// one, and of each heartbeat that a dead router misses.
fn beside_consensus(filter: &str) -> String {
    match filter.contains("openraft") || ["", "off"].contains(&filter) {
        true => filter.to_owned(),
        false => format!("{filter},openraft=error"),
    }
}

/// Options about what a process tells about itself.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ObserveArgs {
    /// What to log on stderr, in the syntax of RUST_LOG: info, or carousel_cluster=debug,warn; of openraft errors only,
    /// unless it is named [default: RUST_LOG, or warn]
    #[arg(long, value_name = "FILTER", env = "CAROUSEL_LOG", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,

    /// How to log [default: text]
    #[arg(long, value_enum, env = "CAROUSEL_LOG_FORMAT", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,

    /// Serve Prometheus metrics on this address, at any path [default: none]
    #[arg(long, value_name = "HOST:PORT", env = "CAROUSEL_METRICS_LISTEN", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_listen: Option<String>,
}

/// The address to serve metrics on.
///
/// # Errors
/// A setup failure when it is none.
pub fn metrics_address(text: &str) -> Result<SocketAddr, Failure> {
    let wrong = |reason: String| Failure::setup(format!("cannot serve metrics on '{text}': {reason}"));
    let mut addresses = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    addresses.next().ok_or_else(|| wrong("the host has no address".into()))
}

/// Serves metrics to Prometheus from now on. Within a runtime.
///
/// # Errors
/// A setup failure when it is not possible to listen there.
pub fn serve_metrics(address: SocketAddr) -> Result<(), Failure> {
    let durations = Matcher::Suffix("_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(durations, &SECONDS);
    builder.and_then(|builder| builder.with_http_listener(address).install()).map_err(|error| {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        Failure::setup(format!("cannot serve metrics on {address}: {text}"))
    })?;
    describe();
    Ok(())
}
