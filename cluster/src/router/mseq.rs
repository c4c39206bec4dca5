//! The m-seq as every router learns it: the replicated state of Algorithm 2, a function of the Raft log.
//!
//! Raft carries [`Batch`]es of commands. [`MSeq::learn`] goes through a batch in order and gives each message its
//! `Ts` (1, 2, 3, …) and its destinations. A message that is already in the m-seq is skipped, which makes resending
//! after a change of the leader harmless, and one that follows a gap is not learned, so that the messages of one
//! incarnation of a submitter stand in the m-seq in the order they were submitted and without gaps.
//!
//! Configuration messages change the config for the messages behind them. The configs behind what the log still has
//! are kept, so that a stream that begins in the middle begins with the config of that place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use carousel_engine::{Few, Ts, position::KeyRange};
use serde::{Deserialize, Serialize};

use crate::{
    catalog::Catalog,
    config::{Config, Configuration, History, Membership, Migration},
    message::{Body, Incarnation, Message, MessageId, ProcessId, ProcessKind},
    planted::{Bug, planted},
    routers::Routers,
};

/// What routers agree on the order of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// A message that a router received.
    Message(Arc<Message>),
    /// An incarnation of a process, counted in this directory, subscribes for the first time: a client or super process becomes
    /// part of the system.
    Join(ProcessId, Incarnation, u64),
    /// An incarnation of a client process leaves the system.
    Leave(ProcessId, Incarnation),
    /// Every storage process is durable up to here: the log before is not needed any more.
    Truncate(Ts),
}

impl Command {
    /// Bytes that it takes, roughly.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Command::Message(message) => message.weight(),
            Command::Join(..) | Command::Leave(..) | Command::Truncate(_) => 64,
        }
    }
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
    pub destinations: Arc<[(ProcessId, Few<KeyRange>)]>,
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
    /// An incarnation of a process has subscribed for the first time.
    Joined(ProcessId, Incarnation),
    /// An incarnation of a process has not the directory of an earlier one.
    Outlived {
        /// Which process.
        process: ProcessId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The newest one with the other directory.
        newest: Incarnation,
    },
    /// The log up to here is not needed any more.
    Truncate(Ts),
    /// The routers are others than before.
    Routers,
    /// The command was out of date.
    Nothing,
}

impl Learned {
    /// The message whose outcome this is.
    pub(super) fn message(&self) -> Option<MessageId> {
        match self {
            Learned::Message(routed) => Some(routed.message.id),
            Learned::Duplicate(id) | Learned::Gap { id, .. } => Some(*id),
            Learned::Joined(..)
            | Learned::Outlived { .. }
            | Learned::Truncate(_)
            | Learned::Routers
            | Learned::Nothing => None,
        }
    }
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

/// Where the stream of a storage process without data begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beginning {
    /// What is ordered behind this is sent.
    pub ts: Ts,
    /// The catalog there.
    pub catalog: Arc<Catalog>,
    /// The last message of each submitter there.
    pub passed: Arc<BTreeMap<ProcessId, MessageId>>,
}

/// The replicated state of a router. Cheap to clone: what is large is shared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MSeq {
    ts: Ts,
    /// The configs behind what the log still has.
    configs: History,
    catalog: Arc<Catalog>,
    submitters: BTreeMap<ProcessId, Last>,
    /// The incarnation of each process that joined last, and the `Ts` at which it did.
    joined: BTreeMap<ProcessId, (Incarnation, Ts)>,
    /// The newest incarnation of each process that has subscribed, and the directory in which it was counted (of a client, what it
    /// has drawn for that life). Whoever comes with another one, because that has been lost, is told.
    lives: BTreeMap<ProcessId, (Incarnation, u64)>,
    /// Where the streams of storage processes begin that were given a place on the ring since they joined, just before that:
    /// what is ordered behind it concerns them.
    /// Those that have received nothing of what they hold since have a place before each message by which they were to receive
    /// it.
    placed: BTreeMap<ProcessId, Vec<Beginning>>,
    truncated: Ts,
    /// Learned from the same log.
    routers: Arc<Routers>,
}

impl MSeq {
    /// The empty m-seq under a first config.
    pub fn new(config: Config) -> Self {
        MSeq {
            ts: Ts::ZERO,
            configs: History::new(Ts::ZERO, Arc::new(config)),
            catalog: Arc::default(),
            submitters: BTreeMap::new(),
            joined: BTreeMap::new(),
            lives: BTreeMap::new(),
            placed: BTreeMap::new(),
            truncated: Ts::ZERO,
            routers: Arc::default(),
        }
    }

    /// Who the routers are; empty before that is learned.
    pub fn routers(&self) -> &Arc<Routers> {
        &self.routers
    }

    /// Learns that the routers are others.
    pub(crate) fn learn_routers(&mut self, routers: Routers) -> Learned {
        self.routers = Arc::new(routers);
        Learned::Routers
    }

    /// `Ts` of the last message.
    pub fn ts(&self) -> Ts {
        self.ts
    }

    /// The config in force after it.
    pub fn config(&self) -> &Arc<Config> {
        self.configs.last()
    }

    /// The config that routes the message behind `ts`, as far back as the log reaches.
    pub fn config_behind(&self, ts: Ts) -> &Arc<Config> {
        self.configs.behind(ts)
    }

    /// The catalog after it.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The last message of a submitter.
    pub fn last(&self, submitter: ProcessId) -> Option<Last> {
        self.submitters.get(&submitter).copied()
    }

    /// Where the stream of a storage process without data begins: just before it was given a place, or what it still is to
    /// receive of it; or at the end.
    pub fn begins(&self, process: ProcessId) -> Beginning {
        let since = self.config().begins_before(process);
        let places = self.placed.get(&process).and_then(|places| {
            let before = |place: &&Beginning| since.is_none_or(|since| place.ts < since);
            places.iter().rev().filter(|_| since.is_some()).find(before).or(places.first())
        });
        places.cloned().unwrap_or_else(|| self.beginning(self.ts))
    }

    /// A stream that begins at the end of the m-seq, or just before its last message.
    fn beginning(&self, ts: Ts) -> Beginning {
        let last = |(submitter, last): (&ProcessId, &Last)| {
            let sequence = last.sequence - u64::from(last.ts > ts);
            (*submitter, MessageId { submitter: *submitter, incarnation: last.incarnation, sequence })
        };
        let passed = Arc::new(self.submitters.iter().map(last).collect());
        Beginning { ts, catalog: self.catalog.clone(), passed }
    }

    /// The last incarnation of a process that joined, and when.
    pub fn joined(&self, process: ProcessId) -> Option<(Incarnation, Ts)> {
        self.joined.get(&process).copied()
    }

    /// Whether this life of a process is the last that has subscribed.
    pub fn lives(&self, process: ProcessId, incarnation: Incarnation, directory: u64) -> bool {
        self.lives.get(&process) == Some(&(incarnation, directory))
    }

    /// The newest incarnation of a process that has subscribed or joined, if this one comes before it, or has the same number and,
    /// as far as that is known, another directory. Also a router that does not know the newest knows as much for good.
    pub fn outlived(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
        directory: Option<u64>,
    ) -> Option<Incarnation> {
        let joined = self.joined.get(&process).map(|(joined, _)| *joined);
        let lived = self.lives.get(&process).copied();
        let newest = lived.map(|(lived, _)| lived).max(joined)?;
        let is_another =
            lived.zip(directory).is_some_and(|((lived, before), now)| lived == incarnation && before != now);
        (newest > incarnation || is_another).then_some(newest)
    }

    /// The newest incarnation in which a storage process has ordered something, if this one comes before it and is the later one
    /// in the directory of the last that has subscribed: between them it had lost that directory, and has it again. Nobody listens
    /// to it before it has counted on.
    pub fn outnumbered(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
        directory: u64,
    ) -> Option<Incarnation> {
        let (_, known) = self.lives.get(&process)?;
        let newest = self.submitters.get(&process)?.incarnation;
        let is_again = process.kind == ProcessKind::Storage && *known == directory;
        (is_again && newest > incarnation).then_some(newest)
    }

    /// As [`MSeq::outlived`], and whether a storage process with another directory than before has not joined without data: that
    /// is to be asked in the order of the m-seq only, behind what it has said.
    fn lacks_directory(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
        directory: u64,
    ) -> Option<Incarnation> {
        let joined = self.joined.get(&process).is_some_and(|(joined, _)| *joined == incarnation);
        let before = self.lives.get(&process).filter(|(_, before)| *before != directory);
        let before = before.filter(|_| process.kind == ProcessKind::Storage && !joined);
        self.outlived(process, incarnation, Some(directory)).or(before.map(|(newest, _)| *newest))
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
            Command::Join(process, incarnation, directory) => {
                if self.lives(*process, *incarnation, *directory) {
                    return Learned::Nothing;
                }
                if let Some(newest) = self.lacks_directory(*process, *incarnation, *directory)
                    && !planted(Bug::LostDirectoryTrusted)
                {
                    return Learned::Outlived { process: *process, incarnation: *incarnation, newest };
                }
                self.lives.insert(*process, (*incarnation, *directory));
                if process.kind.joins_by_subscribing() {
                    self.joined.insert(*process, (*incarnation, self.ts));
                    if let Some(config) = self.config().with_client(*process, *incarnation) {
                        self.configs.push(self.ts, Arc::new(config));
                    }
                }
                Learned::Joined(*process, *incarnation)
            }
            Command::Leave(client, incarnation) => {
                if self.joined.get(client).is_none_or(|(last, _)| last != incarnation) {
                    return Learned::Nothing;
                }
                if let Some(config) = self.config().without_client(*client) {
                    self.configs.push(self.ts, Arc::new(config));
                }
                Learned::Nothing
            }
            Command::Truncate(ts) if *ts > self.truncated => {
                assert!(*ts <= self.ts, "durable at {ts}, but the m-seq ends at {}", self.ts);
                self.truncated = *ts;
                self.configs.forget(*ts);
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
        if id.sequence <= last && !(planted(Bug::DuplicateSuppressionLost) && id.sequence == last) {
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
        let config = self.config().clone();
        let destinations = config.destset(message);
        let config_version = config.version();
        assert_destinations(&config, message, &destinations);
        // An error is the message's outcome, which its destinations find out for themselves.
        if let Body::Ddl(ddl) = &message.body
            && !config.is_fenced(id)
        {
            let _ = Arc::make_mut(&mut self.catalog).apply(ts, ddl);
        }
        if let Ok(Some(config)) = config.apply(message, ts)
            && !planted(Bug::StaleConfig)
        {
            self.place(&message.body, &config, ts);
            self.configs.push(ts, Arc::new(config));
        }
        Learned::Message(Routed {
            ts,
            message: message.clone(),
            destinations: destinations.into(),
            config_version,
        })
    }

    /// Follows who joins, gets a place on the ring and loses it by a message that leads to another config.
    fn place(&mut self, body: &Body, config: &Config, ts: Ts) {
        let before = self.config().clone();
        // Also who takes the place back where it was suspected.
        let placed = before.standbys().filter(|process| {
            config.is_active(*process) && !config.standbys().any(|standby| standby == *process)
        });
        let mut placed: BTreeSet<ProcessId> = placed.collect();
        // And who has to receive all of it anew.
        placed.extend(config.migrations().get(&ts).into_iter().flat_map(Migration::anew));
        if !placed.is_empty() {
            let place = self.beginning(Ts(ts.0 - 1));
            for process in placed {
                let places = self.placed.entry(process).or_default();
                // Who has left may still have to send what it received, wherever it is placed again.
                if before.begins_before(process).is_none() {
                    places.clear();
                }
                places.push(place.clone());
            }
        }
        // Who has left may still have to send what it received: it began there, too.
        self.placed.retain(|process, _| config.is_active(*process) || config.may_send(*process));
        if let Body::Configuration(Configuration::Membership(Membership::Join {
            process, incarnation, ..
        })) = body
        {
            self.joined.insert(*process, (*incarnation, ts));
            // A later life begins where an earlier one was given its place, if that had received nothing.
            if !config.has_received_nothing(*process) {
                self.placed.remove(process);
            }
        }
    }
}

/// The promises of the destination set: each destination once, every touched range with a live holder answered; for a
/// read by exactly one process.
fn assert_destinations(config: &Config, message: &Message, destinations: &[(ProcessId, Few<KeyRange>)]) {
    assert!(
        destinations.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "a destination twice: {destinations:?}"
    );
    let Body::Data(data) = &message.body else { return };
    if data.operation.is_write() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Change, Keyspace},
        message::Ddl,
        router::testing::{configuration, read},
    };

    const CLIENT: ProcessId = ProcessId::client(1);
    const OTHER: ProcessId = ProcessId::client(2);

    fn learn(mseq: &mut MSeq, message: Message) -> Routed {
        match mseq.learn(&Batch(vec![Command::Message(Arc::new(message))])).remove(0) {
            Learned::Message(routed) => routed,
            other => panic!("{other:?}"),
        }
    }

    fn change(mseq: &mut MSeq, sequence: u64, change: Configuration) -> Routed {
        learn(mseq, configuration(CLIENT, 1, sequence, change))
    }

    fn three_and_a_standby() -> MSeq {
        with_a_standby(Config::evenly(3, 2).expect("a ring"))
    }

    fn with_a_standby(config: Config) -> MSeq {
        let mut mseq = MSeq::new(config);
        let process = ProcessId::storage(4);
        let joins = Membership::Join { process, incarnation: 1, address: None };
        change(&mut mseq, 1, Configuration::Membership(joins));
        assert_eq!(mseq.joined(process), Some((1, Ts(1))));
        mseq
    }

    fn expand(mseq: &MSeq, identifier: u64) -> Keyspace {
        let process = ProcessId::storage(4);
        mseq.config().plan(Change::Expand { process, identifier }).expect("possible")
    }

    #[test]
    fn a_message_is_routed_by_the_config_before_it_and_the_next_by_the_one_after() {
        let mut mseq = three_and_a_standby();
        let keyspace = expand(&mseq, 7);
        let before = learn(&mut mseq, read(OTHER, 1, 1, 0));
        let changed = change(&mut mseq, 2, Configuration::Keyspace(keyspace.clone()));
        assert_eq!((before.config_version, changed.config_version), (1, 1));
        let all: Vec<ProcessId> = changed.destinations.iter().map(|(process, _)| *process).collect();
        assert_eq!(all, (1..=4).map(ProcessId::storage).collect::<Vec<_>>(), "all who follow the config");
        let stale = change(&mut mseq, 3, Configuration::Keyspace(keyspace));
        let behind = learn(&mut mseq, read(OTHER, 1, 2, 0));
        assert_eq!((stale.config_version, behind.config_version), (2, 2), "a stale one has no effect");
        assert_eq!(mseq.config().storage_processes().len(), 4);
    }

    #[test]
    fn a_storage_process_without_data_begins_where_it_was_given_a_place() {
        let mut mseq = three_and_a_standby();
        let keyspace = expand(&mseq, 7);
        learn(&mut mseq, read(OTHER, 1, 1, 0));
        assert_eq!(mseq.begins(ProcessId::storage(4)).ts, mseq.ts(), "it has no place");
        let before = mseq.ts();
        change(&mut mseq, 2, Configuration::Keyspace(keyspace));
        learn(&mut mseq, read(OTHER, 1, 2, 0));
        let begins = mseq.begins(ProcessId::storage(4));
        assert_eq!(begins.ts, before);
        // It answers what is behind that.
        let passed = |submitter| begins.passed.get(&submitter).map(|id: &MessageId| id.sequence);
        assert_eq!((passed(CLIENT), passed(OTHER)), (Some(1), Some(1)));
        assert!(mseq.config_behind(before).standbys().any(|standby| standby == ProcessId::storage(4)));
    }

    #[test]
    fn who_leaves_before_it_has_received_begins_where_it_was_given_a_place() {
        let mut mseq = with_a_standby(Config::evenly(3, 1).expect("a ring"));
        let process = ProcessId::storage(4);
        let keyspace = expand(&mseq, 7);
        let before = mseq.ts();
        change(&mut mseq, 2, Configuration::Keyspace(keyspace));
        let keyspace = mseq.config().plan(Change::Contract { process }).expect("possible");
        let contracted = change(&mut mseq, 3, Configuration::Keyspace(keyspace)).ts;
        assert!(
            !mseq.config().is_active(process) && mseq.config().is_busy(process),
            "it has to send what it receives"
        );
        assert_eq!(mseq.begins(process).ts, before);
        assert!(mseq.config().migrations().contains_key(&contracted));
        let mut placed_again = mseq.clone();
        for (sequence, process) in (4..).zip((1..=3).map(ProcessId::storage)) {
            change(&mut mseq, sequence, Configuration::Received { keyspace: contracted, process });
        }
        assert!(!mseq.config().is_busy(process));
        assert_eq!(mseq.begins(process).ts, mseq.ts(), "nobody needs what it has");
        // It may be given a place again before that.
        let keyspace = expand(&placed_again, 9);
        change(&mut placed_again, 4, Configuration::Keyspace(keyspace));
        assert_eq!(placed_again.begins(process).ts, before, "it has to send that on");
        // Or behind it.
        let again = mseq.ts();
        let keyspace = expand(&mseq, 9);
        change(&mut mseq, 7, Configuration::Keyspace(keyspace));
        assert_eq!(mseq.begins(process).ts, again);
    }

    #[test]
    fn configs_are_kept_as_long_as_the_log_has_messages_that_rely_on_them() {
        let mut mseq = three_and_a_standby();
        let keyspace = expand(&mseq, 7);
        let changed = change(&mut mseq, 2, Configuration::Keyspace(keyspace)).ts;
        let suspicion = Membership::Suspect { process: ProcessId::storage(1), incarnation: 1 };
        let suspected = change(&mut mseq, 3, Configuration::Membership(suspicion)).ts;
        let version = |mseq: &MSeq, ts: Ts| mseq.config_behind(ts).version();
        assert_eq!(version(&mseq, Ts::ZERO), 1);
        assert_eq!(version(&mseq, changed), 2);
        assert_eq!(version(&mseq, suspected), 3);
        let stored = postcard::to_stdvec(&mseq).expect("serialises");
        let mut mseq: MSeq = postcard::from_bytes(&stored).expect("deserialises");
        mseq.learn(&Batch(vec![Command::Truncate(changed)]));
        assert_eq!(mseq.configs.len(), 2);
        assert_eq!((version(&mseq, changed), version(&mseq, suspected)), (2, 3));
        mseq.learn(&Batch(vec![Command::Truncate(suspected)]));
        assert_eq!(mseq.configs.len(), 1);
    }

    /// Otherwise a later release would take what an earlier one has left for damaged, or for something else.
    #[test]
    fn who_changes_what_routers_keep_on_disk_changes_its_format() {
        let mut mseq = three_and_a_standby();
        let id = |sequence| MessageId { submitter: OTHER, incarnation: 1, sequence };
        let message = |sequence, body| Message { id: id(sequence), body, ..read(OTHER, 1, sequence, 0) };
        let keyspace = Configuration::Keyspace(expand(&mseq, 7));
        let drop = Ddl::DropTables { names: vec!["t".into()], if_exists: true };
        let commands = [
            Command::Join(OTHER, 1, 2),
            Command::Message(Arc::new(read(OTHER, 1, 1, 0))),
            Command::Message(Arc::new(message(2, Body::Ddl(drop)))),
            Command::Message(Arc::new(message(3, Body::Configuration(keyspace)))),
            Command::Message(Arc::new(message(4, Body::Checkpoint))),
            Command::Truncate(Ts(1)),
            Command::Leave(OTHER, 1),
        ];
        let batch = Batch(commands.to_vec());
        mseq.learn(&batch);
        assert!(!mseq.config().migrations().is_empty() && mseq.ts() == Ts(5));
        let kept = postcard::to_stdvec(&(batch, mseq)).expect("serialises");
        assert_eq!((crate::data_dir::FORMAT, crc32fast::hash(&kept)), (18, 2_831_137_395));
    }

    #[test]
    fn nothing_that_a_suspected_client_submits_has_an_effect() {
        let mut mseq = three_and_a_standby();
        let suspicion = Membership::Suspect { process: OTHER, incarnation: 1 };
        change(&mut mseq, 2, Configuration::Membership(suspicion));
        let ddl = Ddl::DropTables { names: Vec::new(), if_exists: true };
        let message = |incarnation| {
            let id = MessageId { submitter: OTHER, incarnation, sequence: 1 };
            Message {
                id,
                tables: Default::default(),
                ranges: Default::default(),
                body: Body::Ddl(ddl.clone()),
            }
        };
        assert!(learn(&mut mseq, message(1)).destinations.is_empty());
        assert_eq!(mseq.catalog().version(), Ts::ZERO);
        assert!(!learn(&mut mseq, message(2)).destinations.is_empty());
        assert_eq!(mseq.catalog().version(), mseq.ts());
    }
}
