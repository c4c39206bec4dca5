//! Configuration messages (paper, section 6.4): membership messages change which processes are part of the system,
//! keyspace messages change which storage process stands at which identifier, and thereby where the data lies.
//!
//! Where this departs from the paper: a keyspace message's instructions are carried out while messages go on, so a
//! third kind, [`Configuration::Received`], tells the routers that a copy is complete and its processes are not busy
//! any more.

use carousel_engine::{
    Ts,
    position::{KeyRange, Position},
};
use serde::{Deserialize, Serialize};

use crate::message::{Incarnation, ProcessId};

/// A message that changes the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Configuration {
    /// Changes which processes are part of the system.
    Membership(Membership),
    /// Changes which storage process stands at which identifier.
    Keyspace(Keyspace),
    /// A storage process has received all that the keyspace message at a `Ts` instructed it to, and it is durable.
    Received {
        /// `Ts` of the keyspace message.
        keyspace: Ts,
        /// The receiver.
        process: ProcessId,
    },
}

/// Changes which processes are part of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Membership {
    /// An incarnation of a process becomes part of the system; a storage process as a standby and without data, which is the
    /// failure of its earlier lives, unless these have not received anything. Refused where nobody else has what these had.
    Join {
        /// The process.
        process: ProcessId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Where it listens (host:port), when the first description of the system does not say so.
        address: Option<String>,
    },
    /// A process that holds no partition leaves the system.
    Part {
        /// The process.
        process: ProcessId,
    },
    /// An incarnation of a process, and all before it, are declared as failed. What it submits afterwards has no effect,
    /// whether it has failed or not. Refused where rows would be lost with it, unless for the last incarnation that there can
    /// be: then it is given up with them.
    Suspect {
        /// The process.
        process: ProcessId,
        /// The incarnation that has failed.
        incarnation: Incarnation,
    },
    /// A process that had joined says that it listens elsewhere now. Of no effect from anybody else.
    Listen {
        /// The process.
        process: ProcessId,
        /// Where it listens (host:port).
        address: String,
    },
}

/// A keyspace message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyspace {
    /// The config version it was planned against. If another is in force at its `Ts`, it has no effect.
    pub version: u64,
    /// What it changes.
    pub change: Change,
    /// What storage processes have to do about it.
    pub instructions: Vec<Instruction>,
}

impl Keyspace {
    /// Who begins without rows, and in which ranges.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (ProcessId, &[KeyRange])> {
        self.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Lose { process, ranges } => Some((*process, &ranges[..])),
            Instruction::Copy { .. } | Instruction::Delete { .. } => None,
        })
    }
}

/// A transformation of the keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A standby process becomes active at a free identifier.
    Expand {
        /// The standby.
        process: ProcessId,
        /// Where it will stand.
        identifier: Position,
    },
    /// An active process leaves the ring. When it is alive, it becomes a standby.
    Contract {
        /// The process.
        process: ProcessId,
    },
    /// A standby process takes the place of an active one. When that is alive, it becomes a standby.
    Replace {
        /// The active process.
        process: ProcessId,
        /// The standby. It may be a new incarnation of the active one, when that is suspected.
        by: ProcessId,
    },
    /// An active process gets another identifier.
    Rebalance {
        /// The process.
        process: ProcessId,
        /// Where it will stand.
        identifier: Position,
    },
}

/// One step of an instruction list. Receiving is the other side of a copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Instruction {
    /// One process sends a copy of its rows in some ranges to another, which receives them.
    Copy {
        /// The sender.
        from: ProcessId,
        /// The receiver.
        to: ProcessId,
        /// Sorted, disjoint, not adjacent.
        ranges: Vec<KeyRange>,
    },
    /// A process deletes its rows in some ranges.
    Delete {
        /// The process.
        process: ProcessId,
        /// Sorted, disjoint, not adjacent.
        ranges: Vec<KeyRange>,
    },
    /// A process begins without rows in some ranges: all who had them have failed, and somebody has said that they are given up.
    Lose {
        /// The process.
        process: ProcessId,
        /// Sorted, disjoint, not adjacent.
        ranges: Vec<KeyRange>,
    },
}

impl Instruction {
    /// The ranges it is about.
    pub fn ranges(&self) -> &[KeyRange] {
        match self {
            Instruction::Copy { ranges, .. }
            | Instruction::Delete { ranges, .. }
            | Instruction::Lose { ranges, .. } => ranges,
        }
    }

    /// Whether the process has to do something.
    pub fn concerns(&self, concerned: ProcessId) -> bool {
        match self {
            Instruction::Copy { from, to, .. } => concerned == *from || concerned == *to,
            Instruction::Delete { process, .. } | Instruction::Lose { process, .. } => concerned == *process,
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Expand { process, identifier } => write!(f, "expand {process} at {identifier}"),
            Change::Contract { process } => write!(f, "contract {process}"),
            Change::Replace { process, by } => write!(f, "replace {process} by {by}"),
            Change::Rebalance { process, identifier } => write!(f, "rebalance {process} to {identifier}"),
        }
    }
}
