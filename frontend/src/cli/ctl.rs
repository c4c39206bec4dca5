//! `carousel ctl`: the cluster's own statements and tables, for those who have no SQL client at hand.

use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;

use super::failure::{Failure, print};
use crate::load::{ConnectArgs, connect, quote_identifier as quoted, quote_literal, reason};

/// As long as a `statement_timeout` may be.
const MOST_SECONDS: i64 = i32::MAX as i64 / 1_000;
/// How long a server that gives a statement up may take to say so.
const GRACE: Duration = Duration::from_secs(1);

/// Options of `carousel ctl`.
#[derive(Args, Clone, Debug)]
pub struct CtlArgs {
    #[command(flatten)]
    connect: ConnectArgs,

    /// Seconds after which nothing is waited for any more; a change that has been ordered goes on [default: no limit]
    #[arg(long, value_name = "S", global = true, value_parser = clap::value_parser!(u32).range(1..=MOST_SECONDS))]
    timeout: Option<u32>,

    #[command(subcommand)]
    command: CtlCommand,
}

/// What is asked of the cluster. Every command is one statement.
#[derive(Subcommand, Clone, Debug)]
enum CtlCommand {
    /// Show the routers
    Routers,
    /// Show the storage processes
    Storage,
    /// Show who stands where on the ring, and who holds what
    Ring,
    /// Show the rows that are being moved
    Migrations,
    /// Show what the front end has asked of the storage processes and is not answered in full
    Operations,
    /// Give a standby a place on the ring
    Expand {
        /// The standby, such as s5 [default: any, or a new process of `carousel start`]
        #[arg(long, value_name = "STORAGE")]
        with: Option<String>,
        /// Its identifier, from 0 to 18446744073709551615 [default: the middle of the widest range]
        #[arg(long, value_name = "IDENTIFIER")]
        at: Option<u64>,
    },
    /// Take a storage process from the ring
    Contract {
        /// The process, such as s2
        storage: String,
        /// It is not coming back: what nobody else has is given up, and these ranges are empty from then on
        #[arg(long)]
        with_data_loss: bool,
    },
    /// Let a standby take the place of a storage process
    Replace {
        /// The process, such as s2
        storage: String,
        /// The standby, such as s5 [default: any, or a new process of `carousel start`]
        #[arg(long, value_name = "STORAGE")]
        by: Option<String>,
        /// It is not coming back: what nobody else has is given up, and these ranges are empty from then on
        #[arg(long)]
        with_data_loss: bool,
    },
    /// Give a storage process another place on the ring
    Rebalance {
        /// The process, such as s2
        storage: String,
        /// Its identifier, from 0 to 18446744073709551615 [default: the middle of the widest range]
        #[arg(long, value_name = "IDENTIFIER")]
        to: Option<u64>,
    },
    /// Let a standby leave the cluster
    Remove {
        /// The standby, such as s5
        storage: String,
    },
    /// Let a router take part in consensus
    AddRouter {
        /// Where it listens
        #[arg(value_name = "HOST:PORT")]
        address: String,
        /// Its name, such as r4 [default: the next that is free]
        #[arg(long, value_name = "ROUTER")]
        name: Option<String>,
    },
    /// Let a router take part in consensus no longer
    RemoveRouter {
        /// The router, such as r4
        router: String,
    },
}

impl CtlCommand {
    /// The statement that it is.
    fn statement(&self) -> String {
        let with = |word: &str, value: Option<String>| {
            value.map(|value| format!(" {word} {value}")).unwrap_or_default()
        };
        let name = |name: &Option<String>| name.as_deref().map(quoted);
        let loss = |accepts: bool| if accepts { " WITH DATA LOSS" } else { "" };
        let number = |number: &Option<u64>| number.map(|number| number.to_string());
        match self {
            CtlCommand::Routers => "SELECT * FROM carousel.routers".into(),
            CtlCommand::Storage => "SELECT * FROM carousel.storage".into(),
            CtlCommand::Ring => "SELECT * FROM carousel.ring".into(),
            CtlCommand::Migrations => "SELECT * FROM carousel.migrations".into(),
            CtlCommand::Operations => "SELECT * FROM carousel.operations".into(),
            CtlCommand::Expand { with: process, at } => {
                format!("ALTER CLUSTER EXPAND{}{}", with("WITH", name(process)), with("AT", number(at)))
            }
            CtlCommand::Contract { storage, with_data_loss } => {
                format!("ALTER CLUSTER CONTRACT BY {}{}", quoted(storage), loss(*with_data_loss))
            }
            CtlCommand::Replace { storage, by, with_data_loss } => {
                let loss = loss(*with_data_loss);
                format!("ALTER CLUSTER REPLACE {}{}{loss}", quoted(storage), with("BY", name(by)))
            }
            CtlCommand::Rebalance { storage, to } => {
                format!("ALTER CLUSTER REBALANCE {}{}", quoted(storage), with("TO", number(to)))
            }
            CtlCommand::Remove { storage } => format!("ALTER CLUSTER REMOVE {}", quoted(storage)),
            CtlCommand::AddRouter { address, name: router } => {
                let router = with("", name(router));
                format!("ALTER CLUSTER ADD ROUTER{router} AT {}", quote_literal(address))
            }
            CtlCommand::RemoveRouter { router } => format!("ALTER CLUSTER REMOVE ROUTER {}", quoted(router)),
        }
    }
}

impl CtlArgs {
    /// Runs the statement and prints its rows.
    ///
    /// # Errors
    /// A setup failure when there is no server, a job's with the server's error.
    pub async fn run(&self) -> Result<(), Failure> {
        let config = self.connect.config()?;
        let limit = self.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        let no_answer = || format!("no answer within {} s", limit.unwrap_or_default().as_secs());
        let client = within(limit, connect(&config)).await.ok_or_else(|| Failure::setup(no_answer()))??;
        let answer = async {
            if let Some(limit) = limit {
                let limit = limit.as_secs();
                client.batch_execute(&format!("SET statement_timeout = '{limit}s'")).await?;
            }
            client.simple_query(&self.command.statement()).await
        };
        // The server itself may not say that it has given up.
        let answer = within(limit.map(|limit| limit + GRACE), answer).await;
        let messages =
            answer.ok_or_else(|| Failure::job(no_answer()))?.map_err(|error| Failure::job(reason(&error)))?;
        print(&table(&messages))
    }
}

/// What comes in time; `None` if nothing does.
async fn within<T>(limit: Option<Duration>, coming: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => timeout(limit, coming).await.ok(),
        None => Some(coming.await),
    }
}

/// The rows of an answer, under the names of their columns.
fn table(messages: &[SimpleQueryMessage]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                lines.push(columns.iter().map(|column| column.name().to_owned()).collect());
            }
            SimpleQueryMessage::Row(row) => {
                lines.push((0..row.len()).map(|i| row.get(i).unwrap_or_default().to_owned()).collect());
            }
            _ => {}
        }
    }
    columns(&lines)
}

/// Lines whose cells stand below one another.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_a_statement() {
        let expand = CtlCommand::Expand { with: Some("s5".into()), at: Some(7) };
        assert_eq!(expand.statement(), "ALTER CLUSTER EXPAND WITH \"s5\" AT 7");
        let replace = CtlCommand::Replace { storage: "s\"2".into(), by: None, with_data_loss: false };
        assert_eq!(replace.statement(), "ALTER CLUSTER REPLACE \"s\"\"2\"");
        let commands = [
            CtlCommand::Ring,
            expand,
            CtlCommand::Contract { storage: "s2".into(), with_data_loss: false },
            CtlCommand::Contract { storage: "s2".into(), with_data_loss: true },
            CtlCommand::Replace { storage: "s2".into(), by: Some("s5".into()), with_data_loss: true },
            CtlCommand::Rebalance { storage: "s2".into(), to: None },
            CtlCommand::Remove { storage: "s2".into() },
            CtlCommand::AddRouter { address: "it's:1".into(), name: Some("r4".into()) },
            CtlCommand::AddRouter { address: "host:1".into(), name: None },
            CtlCommand::RemoveRouter { router: "r4".into() },
        ];
        for command in commands {
            carousel_planner::parse(&command.statement()).expect("a statement");
        }
    }

    #[test]
    fn cells_stand_below_one_another() {
        let lines = [vec!["storage".to_owned(), "state".to_owned()], vec!["s1".to_owned(), String::new()]];
        assert_eq!(columns(&lines), "storage  state\ns1\n");
        assert_eq!(columns(&[]), "");
    }
}
