//! The m-seq as every router learns it: the replicated state of Algorithm 2, a function of the Raft log.
//!
//! Raft carries [`Batch`]es of commands. [`MSeq::learn`] goes through a batch in order and gives each message its
//! `Ts` (1, 2, 3, …) and its destinations. A message that is already in the m-seq is skipped, which makes resending
//! after a change of the leader harmless, and one that follows a gap is not learned, so that the messages of one
//! incarnation of a submitter stand in the m-seq in the order they were submitted and without gaps.

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::{Ts, position::KeyRange};
use serde::{Deserialize, Serialize};

use crate::{
    catalog::Catalog,
    config::Config,
    message::{Body, Incarnation, Message, MessageId, ProcessId},
};

/// What routers agree on the order of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// A message that a router received.
    Message(Arc<Message>),
    /// An incarnation of a client process becomes part of the system.
    Join(ProcessId, Incarnation),
    /// An incarnation of a client process leaves the system.
    Leave(ProcessId, Incarnation),
    /// Every storage process is durable up to here: the log before is not needed any more.
    Truncate(Ts),
}

/// Commands that travel in one Raft entry (group commit).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch(pub Vec<Command>);

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} commands", self.0.len())
    }
}

/// A message with its place in the order and its destination set.
#[derive(Clone, Debug)]
pub struct Routed {
    /// Position in the m-seq.
    pub ts: Ts,
    /// The message.
    pub message: Arc<Message>,
    /// Destinations with the primary ranges they act on, in the order of their ids.
    pub destinations: Arc<[(ProcessId, Vec<KeyRange>)]>,
    /// The config version in force.
    pub config_version: u64,
}

/// What came of a command.
#[derive(Clone, Debug)]
pub enum Learned {
    /// The message has its place.
    Message(Routed),
    /// The message had its place already, or belongs to an incarnation that is over.
    Duplicate(MessageId),
    /// The message came without its predecessor; `expected` is the sequence number to continue with.
    Gap {
        /// The message.
        id: MessageId,
        /// First sequence number of this incarnation that is not in the m-seq.
        expected: u64,
    },
    /// A client process has joined.
    Joined(ProcessId, Incarnation),
    /// The log up to here is not needed any more.
    Truncate(Ts),
    /// The command was out of date.
    Nothing,
}

/// The last message of a submitter in the m-seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// Incarnation.
    pub incarnation: Incarnation,
    /// Sequence number.
    pub sequence: u64,
    /// Its `Ts`.
    pub ts: Ts,
}

/// The replicated state of a router. Cheap to clone: what is large is shared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MSeq {
    ts: Ts,
    config: Arc<Config>,
    catalog: Arc<Catalog>,
    submitters: BTreeMap<ProcessId, Last>,
    /// The incarnation of each client process that joined last, and the `Ts` at which it did.
    joined: BTreeMap<ProcessId, (Incarnation, Ts)>,
    truncated: Ts,
}

impl MSeq {
    /// The empty m-seq under a first config.
    pub fn new(config: Config) -> Self {
        MSeq {
            ts: Ts::ZERO,
            config: Arc::new(config),
            catalog: Arc::default(),
            submitters: BTreeMap::new(),
            joined: BTreeMap::new(),
            truncated: Ts::ZERO,
        }
    }

    /// `Ts` of the last message.
    pub fn ts(&self) -> Ts {
        self.ts
    }

    /// The config in force after it.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// The catalog after it.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The last message of a submitter.
    pub fn last(&self, submitter: ProcessId) -> Option<Last> {
        self.submitters.get(&submitter).copied()
    }

    /// The last incarnation of a client process that joined, and when.
    pub fn joined(&self, client: ProcessId) -> Option<(Incarnation, Ts)> {
        self.joined.get(&client).copied()
    }

    /// Up to where the log is not needed any more.
    pub fn truncated(&self) -> Ts {
        self.truncated
    }

    /// Learns a batch: what came of each command, in order.
    pub fn learn(&mut self, batch: &Batch) -> Vec<Learned> {
        batch.0.iter().map(|command| self.learn_command(command)).collect()
    }

    fn learn_command(&mut self, command: &Command) -> Learned {
        match command {
            Command::Message(message) => self.learn_message(message),
            Command::Join(client, incarnation) => {
                if self.joined.get(client).is_some_and(|(last, _)| last >= incarnation) {
                    return Learned::Nothing;
                }
                self.joined.insert(*client, (*incarnation, self.ts));
                if let Some(config) = self.config.with_client(*client) {
                    self.config = Arc::new(config);
                }
                Learned::Joined(*client, *incarnation)
            }
            Command::Leave(client, incarnation) => {
                if self.joined.get(client).is_none_or(|(last, _)| last != incarnation) {
                    return Learned::Nothing;
                }
                if let Some(config) = self.config.without_client(*client) {
                    self.config = Arc::new(config);
                }
                Learned::Nothing
            }
            Command::Truncate(ts) if *ts > self.truncated => {
                assert!(*ts <= self.ts, "durable at {ts}, but the m-seq ends at {}", self.ts);
                self.truncated = *ts;
                Learned::Truncate(*ts)
            }
            Command::Truncate(_) => Learned::Nothing,
        }
    }

    fn learn_message(&mut self, message: &Arc<Message>) -> Learned {
        let id = message.id;
        let last = match self.submitters.get(&id.submitter) {
            Some(last) if last.incarnation > id.incarnation => return Learned::Duplicate(id),
            Some(last) if last.incarnation == id.incarnation => last.sequence,
            _ => 0,
        };
        if id.sequence <= last {
            return Learned::Duplicate(id);
        }
        if id.sequence > last + 1 {
            return Learned::Gap { id, expected: last + 1 };
        }
        self.ts = Ts(self.ts.0 + 1);
        let ts = self.ts;
        let last = Last { incarnation: id.incarnation, sequence: id.sequence, ts };
        self.submitters.insert(id.submitter, last);
        // A message is routed by the config that holds before it takes effect.
        let destinations = self.config.destset(message);
        let config_version = self.config.version();
        assert_destinations(&self.config, message, &destinations);
        if let Body::Ddl(ddl) = &message.body {
            // An error is the message's outcome, which its destinations find out for themselves.
            let _ = Arc::make_mut(&mut self.catalog).apply(ts, ddl);
        }
        if let Some(config) = self.config.apply(message, ts) {
            self.config = Arc::new(config);
        }
        Learned::Message(Routed {
            ts,
            message: message.clone(),
            destinations: destinations.into(),
            config_version,
        })
    }
}

/// The promises of the destination set: each destination once, every touched range with a live holder answered; for a
/// read by exactly one process.
fn assert_destinations(config: &Config, message: &Message, destinations: &[(ProcessId, Vec<KeyRange>)]) {
    assert!(
        destinations.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "a destination twice: {destinations:?}"
    );
    let Body::Data(data) = &message.body else { return };
    if data.operation.kind.is_write() {
        return;
    }
    let mut answered: Vec<KeyRange> = destinations.iter().flat_map(|(_, ranges)| ranges).copied().collect();
    let count = answered.len();
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), count, "a range of a read has two destinations: {destinations:?}");
    for (process, ranges) in destinations {
        assert!(!ranges.is_empty(), "{process} has nothing to answer");
        assert!(
            ranges.iter().all(|range| config.holders(*range).contains(process)),
            "{process} lacks a range"
        );
    }
}
