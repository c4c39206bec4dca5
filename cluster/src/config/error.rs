//! What can be wrong with a request to change the config.

use carousel_engine::{
    SqlError, SqlState,
    position::{KeyRange, Position},
};

use super::messages::Instruction;
use crate::message::{Incarnation, ProcessId};

const DUPLICATE_OBJECT: SqlState = SqlState(*b"42710");
const NOT_IN_PREREQUISITE_STATE: SqlState = SqlState(*b"55000");

/// What is wrong with a description of a ring, or with a configuration message. Every follower of the m-seq finds the
/// same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There must be a storage process.
    #[error("a ring needs at least one storage process")]
    Empty,
    /// The replication factor must be at least 1 and, for a first config, no more than there are storage processes.
    #[error("replication factor {factor} with {processes} storage processes")]
    Replication {
        /// What was asked.
        factor: u32,
        /// Storage processes on the ring.
        processes: usize,
    },
    /// Two processes at one identifier, or one process at two.
    #[error("identifiers and processes on the ring must be distinct")]
    Duplicate,
    /// The keyspace message was planned against another config.
    #[error("the request was planned against config version {planned}, but version {current} is in force")]
    Stale {
        /// What it was planned against.
        planned: u64,
        /// What is in force.
        current: u64,
    },
    /// There is no such process.
    #[error("{0} is not part of the system")]
    Unknown(ProcessId),
    /// Only a standby can take a place on the ring.
    #[error("{0} is on the ring already")]
    Active(ProcessId),
    /// A standby holds nothing that could be moved.
    #[error("{0} is not on the ring")]
    Standby(ProcessId),
    /// A suspected process can only be removed or replaced.
    #[error("{0} is suspected")]
    Suspected(ProcessId),
    /// The incarnation has been suspected, so it cannot join any more.
    #[error("incarnation {1} of {0} is suspected; it has to be restarted to join")]
    Fenced(ProcessId, Incarnation),
    /// A process that holds a partition, or still sends copies of one, cannot leave.
    #[error("{0} holds a partition; contract the keyspace or replace it first")]
    Needed(ProcessId),
    /// The same, of one that is a standby already.
    #[error("{0} still sends or receives rows; wait until carousel.migrations says no more of it")]
    Moving(ProcessId),
    /// Membership of routers is a matter of their consensus.
    #[error("{0} is not a process of the kind that this request is about")]
    Kind(ProcessId),
    /// Two processes cannot stand at the same identifier.
    #[error("identifier {identifier} is taken by {by}")]
    Taken {
        /// The identifier.
        identifier: Position,
        /// Who stands there.
        by: ProcessId,
    },
    /// It would not move.
    #[error("{0} stands in the middle of the widest range already")]
    Balanced(ProcessId),
    /// The keyspace cannot become empty.
    #[error("{0} is the last storage process on the ring")]
    Last(ProcessId),
    /// As many successive processes as the replication factor says have failed.
    #[error("no live process holds range {range}, so it cannot be copied")]
    NoHolder {
        /// A range that would have to be copied.
        range: KeyRange,
    },
    /// The change would leave a range to nobody who is alive.
    #[error("all who would hold range {range} are suspected")]
    Orphan {
        /// Such a range.
        range: KeyRange,
    },
    /// Nobody else has the rows of a range, or could still receive them, so they would be lost.
    #[error("nobody but {process} has the rows of range {range}")]
    LastHolder {
        /// Who cannot be suspected, nor join without data.
        process: ProcessId,
        /// A range of which that is so.
        range: KeyRange,
    },
    /// The change does not imply this instruction.
    #[error("the change does not imply the instruction {0:?}")]
    Instruction(Instruction),
    /// The change implies more instructions for this process, or other ones.
    #[error("the instructions for {0} are not what the change implies")]
    Incomplete(ProcessId),
}

impl From<ConfigError> for SqlError {
    fn from(error: ConfigError) -> SqlError {
        let state = match &error {
            ConfigError::Stale { .. } => SqlState::SERIALIZATION_FAILURE,
            ConfigError::Unknown(_) => SqlState::UNDEFINED_OBJECT,
            ConfigError::Active(_) | ConfigError::Taken { .. } | ConfigError::Duplicate => DUPLICATE_OBJECT,
            ConfigError::Empty | ConfigError::Replication { .. } | ConfigError::Kind(_) => {
                SqlState::INVALID_PARAMETER_VALUE
            }
            ConfigError::Instruction(_) | ConfigError::Incomplete(_) => SqlState::INTERNAL,
            _ => NOT_IN_PREREQUISITE_STATE,
        };
        let told = SqlError::new(state, error.to_string());
        match error {
            ConfigError::NoHolder { .. } => told.with_hint(
                "If none of those who held it comes back, REPLACE or CONTRACT one of them WITH DATA LOSS: it is empty from then on.",
            ),
            _ => told,
        }
    }
}
