//! Statements about the cluster (paper, section 6.4):
//!
//! ```text
//! ALTER CLUSTER EXPAND [ WITH s5 ] [ AT identifier ]
//! ALTER CLUSTER CONTRACT BY s2 [ WITH DATA LOSS ]
//! ALTER CLUSTER REPLACE s2 [ BY s5 ] [ WITH DATA LOSS ]
//! ALTER CLUSTER REBALANCE s2 [ TO identifier ]
//! ALTER CLUSTER REMOVE s5
//! ALTER CLUSTER ADD ROUTER [ r4 ] AT 'host:port'
//! ALTER CLUSTER REMOVE ROUTER r4
//! ```
//!
//! A process is named as it calls itself, `s` or `r` and its number. An identifier is a position on the ring, a number
//! from 0 to 2⁶⁴ − 1. Which processes and identifiers there are is known when the statement runs, not here.

use carousel_cluster::message::ProcessId;
use carousel_engine::{SqlError, SqlState, error::Result, position::Position};

/// What is to be done to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlterCluster {
    /// EXPAND: a standby takes a place on the ring.
    Expand {
        /// The standby; any, or a new process, when it is not named.
        process: Option<ProcessId>,
        /// Where; in the middle of the widest primary range when it is not said.
        identifier: Option<Position>,
    },
    /// CONTRACT: a process leaves the ring.
    Contract {
        /// The process.
        process: ProcessId,
        /// WITH DATA LOSS: rows that nobody has any more are given up.
        accepts_loss: bool,
    },
    /// REPLACE: a standby takes the place of a process.
    Replace {
        /// The process.
        process: ProcessId,
        /// The standby; any, or a new process, when it is not named.
        by: Option<ProcessId>,
        /// WITH DATA LOSS: rows that nobody has any more are given up.
        accepts_loss: bool,
    },
    /// REBALANCE: a process moves on the ring.
    Rebalance {
        /// The process.
        process: ProcessId,
        /// Where to; into the middle of the widest primary range when it is not said.
        identifier: Option<Position>,
    },
    /// REMOVE: a standby leaves the system.
    Remove(ProcessId),
    /// ADD ROUTER: a router takes part in consensus.
    AddRouter {
        /// The router; the next number that is free when it is not named.
        router: Option<ProcessId>,
        /// Where it listens, host:port.
        address: String,
    },
    /// REMOVE ROUTER: a router takes part in consensus no longer.
    RemoveRouter(ProcessId),
}

/// The storage process of this name.
///
/// # Errors
/// 42704 when no storage process can be called so.
pub(crate) fn storage_process(name: &str) -> Result<ProcessId> {
    numbered(name, 's').map(ProcessId::storage).ok_or_else(|| {
        undefined(format!("storage process \"{name}\" does not exist"))
            .with_hint("Storage processes are called s1, s2 and so on; see carousel.storage.")
    })
}

/// The router of this name.
///
/// # Errors
/// 42704 when no router can be called so.
pub(crate) fn router(name: &str) -> Result<ProcessId> {
    numbered(name, 'r').map(ProcessId::router).ok_or_else(|| {
        undefined(format!("router \"{name}\" does not exist"))
            .with_hint("Routers are called r1, r2 and so on; see carousel.routers.")
    })
}

fn numbered(name: &str, kind: char) -> Option<u32> {
    let digits = name.strip_prefix(kind).filter(|digits| !digits.starts_with(['0', '+']))?;
    digits.parse().ok()
}

fn undefined(message: String) -> SqlError {
    SqlError::new(SqlState::UNDEFINED_OBJECT, message)
}

/// The position on the ring that a number means.
///
/// # Errors
/// 22003 when there is none.
pub(crate) fn identifier(digits: &str) -> Result<Position> {
    digits.parse().map_err(|_| {
        SqlError::new(SqlState::OUT_OF_RANGE, format!("identifier {digits} is not a position on the ring"))
            .with_detail("Identifiers are whole numbers from 0 to 18446744073709551615.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn altered(text: &str) -> Result<AlterCluster> {
        let statements = crate::parse(text)?;
        match statements[0].tree.root() {
            crate::parse::Ast::Session(Plan::AlterCluster(alter)) => Ok(alter.clone()),
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn statements_about_the_cluster_are_understood() {
        let (s2, s5) = (ProcessId::storage(2), ProcessId::storage(5));
        let (process, identifier) = (Some(s5), Some(u64::MAX));
        let cases = [
            ("alter cluster expand", AlterCluster::Expand { process: None, identifier: None }),
            (
                "ALTER CLUSTER EXPAND WITH s5 AT 18446744073709551615",
                AlterCluster::Expand { process, identifier },
            ),
            ("ALTER CLUSTER CONTRACT BY S2", AlterCluster::Contract { process: s2, accepts_loss: false }),
            (
                "ALTER CLUSTER CONTRACT BY s2 WITH DATA LOSS",
                AlterCluster::Contract { process: s2, accepts_loss: true },
            ),
            (
                "ALTER CLUSTER REPLACE s2",
                AlterCluster::Replace { process: s2, by: None, accepts_loss: false },
            ),
            (
                "ALTER CLUSTER REPLACE s2 BY \"s5\"",
                AlterCluster::Replace { process: s2, by: process, accepts_loss: false },
            ),
            (
                "alter cluster replace s2 with data loss",
                AlterCluster::Replace { process: s2, by: None, accepts_loss: true },
            ),
            ("ALTER CLUSTER REBALANCE s2 TO 7", AlterCluster::Rebalance { process: s2, identifier: Some(7) }),
            ("ALTER CLUSTER REMOVE s5", AlterCluster::Remove(s5)),
            (
                "ALTER CLUSTER ADD ROUTER r4 AT 'host:4'",
                AlterCluster::AddRouter { router: Some(ProcessId::router(4)), address: "host:4".into() },
            ),
            (
                "ALTER CLUSTER ADD ROUTER AT 'host:4'",
                AlterCluster::AddRouter { router: None, address: "host:4".into() },
            ),
            ("ALTER CLUSTER REMOVE ROUTER r4", AlterCluster::RemoveRouter(ProcessId::router(4))),
        ];
        for (text, wanted) in cases {
            assert_eq!(altered(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_where_it_is() {
        let cases = [
            ("ALTER CLUSTER", "42601"),
            ("ALTER CLUSTER GROW", "42601"),
            ("ALTER CLUSTER CONTRACT", "42601"),
            ("ALTER CLUSTER CONTRACT BY s2 s3", "42601"),
            ("ALTER CLUSTER CONTRACT BY s2 WITH LOSS", "42601"),
            ("ALTER CLUSTER REPLACE s2 WITH DATA LOSS BY s5", "42601"),
            ("ALTER CLUSTER EXPAND AT s5", "42601"),
            ("ALTER CLUSTER CONTRACT BY r2", "42704"),
            ("ALTER CLUSTER CONTRACT BY s02", "42704"),
            ("ALTER CLUSTER REBALANCE s2 TO 18446744073709551616", "22003"),
            ("ALTER CLUSTER REBALANCE s2 TO 1.5", "22003"),
            ("ALTER CLUSTER CONTRACT BY \"s+2\"", "42704"),
            ("ALTER CLUSTER ADD ROUTER 'h:1'", "42601"),
            ("ALTER CLUSTER ADD ROUTER r4", "42601"),
            ("ALTER CLUSTER ADD ROUTER r4 AT h", "42601"),
            ("ALTER CLUSTER ADD ROUTER s4 AT 'h:1'", "42704"),
            ("ALTER CLUSTER REMOVE ROUTER", "42601"),
        ];
        for (text, state) in cases {
            let error = altered(text).expect_err(text);
            assert_eq!(error.code.as_str(), state, "{text}: {error}");
        }
    }
}
