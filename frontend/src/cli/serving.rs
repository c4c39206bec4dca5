//! How a front end serves SQL: the same options for `carousel start` and `carousel frontend`.

use std::net::{SocketAddr, ToSocketAddrs};

use clap::{Args, builder::BoolishValueParser};
use serde::Serialize;

use super::{failure::Failure, size::MemorySize};

/// Where a front end listens unless it is told.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:5433";
/// Sessions that a front end has at most unless it is told.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 1_000;
const MOST_CONNECTIONS: u32 = 1_000_000;

/// Options of whatever serves SQL. What is not given is looked up in the file and then has its default.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServingArgs {
    /// Address to listen on for SQL; port 0 takes a free one. Addresses that other hosts reach need --trust-clients
    /// [default: 127.0.0.1:5433]
    #[arg(long, value_name = "HOST:PORT", env = "CAROUSEL_LISTEN", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,

    /// Serve clients of other hosts too. There are no passwords: whoever reaches the address may read and write
    /// everything, so it must be reached by nobody else
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), env = "CAROUSEL_TRUST_CLIENTS", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_clients: Option<bool>,

    /// Most sessions at a time; further clients are refused with 53300 [default: 1000]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_MAX_CONNECTIONS",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// Most memory for what statements hold on the way, those of all sessions together: joins, sorts, groups, rows to be
    /// inserted. Statements that need more fail with 53200 [default: 15%; of carousel start, a quarter of --memory-limit]
    #[arg(long, value_name = "SIZE", env = "CAROUSEL_MAX_SQL_MEMORY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sql_memory: Option<MemorySize>,
}

/// The address to listen on, if it may be served: there are no roles, so anybody who connects may do anything.
///
/// # Errors
/// A setup failure when it is none, or when other hosts reach it and are not trusted.
pub fn listen_address(text: &str, trust_clients: bool) -> Result<SocketAddr, Failure> {
    let addresses: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map_err(|error| {
            Failure::setup(format!("--listen '{text}' is not an address such as {DEFAULT_LISTEN}: {error}"))
        })?
        .collect();
    let local = |address: &&SocketAddr| address.ip().is_loopback();
    match addresses.iter().find(local).or(addresses.first()) {
        Some(address) if trust_clients || addresses.iter().all(|address| local(&address)) => Ok(*address),
        _ => Err(Failure::setup(format!(
            "--listen {text} is refused: there are no passwords, so only loopback addresses are served; \
             --trust-clients serves whoever reaches the address"
        ))),
    }
}

/// The bytes that a front end of its own takes for what statements hold on the way; `None` when that is a share of the
/// machine's memory and it is not known how much that is.
pub fn max_sql_memory(size: Option<MemorySize>) -> Option<u64> {
    size.unwrap_or(MemorySize::Percent(15)).bytes()
}

/// As [`max_sql_memory`], beside storage processes in the same process whose rows may take `memory_limit` bytes.
pub fn max_sql_memory_beside(size: Option<MemorySize>, memory_limit: Option<u64>) -> Option<u64> {
    size.map_or(memory_limit.map(|limit| limit / 4), MemorySize::bytes)
}

/// How many sessions there may be.
///
/// # Errors
/// A setup failure that names the limit.
pub fn max_connections(value: u32) -> Result<u32, Failure> {
    super::config::within("max-connections", value, MOST_CONNECTIONS)
}
