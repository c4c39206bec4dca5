//! Following the config, and carrying out what keyspace messages instruct (paper, section 6.4): drives
//! [`Migrations`] with what the core and its shards know.
//!
//! A keyspace message has its turn when everything before it has been given to the shards. They change their key
//! ranges ([`Recut`]); then the process sends what others are to receive ([`super::serving`]), and takes what it is to
//! receive itself. Until its parts are there, operations of their ranges wait ([`super::late`]). What comes also goes into a
//! checkpoint of the keyspace message.
//!
//! What is received begins just before the keyspace message: a read at the message's `Ts` sees it, as it did where it
//! came from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use carousel_engine::{
    Few, TableId, Ts,
    operation::{Decision, Effect as ShardEffect, OperationKind, RowBatch},
    position::{KeyRange, intersect, normalise},
    recut::Recut,
};

use super::{
    Arc, Ballots, Catalog, Config, Core, CoreOptions, Delivery, Effect, Late, MessageId, ProcessId,
    Recovered, Wire, checkpoints::OnTheirWay, global, held_by, local, serving::Session,
};
use crate::{
    config::{Configuration, Keyspace, Loss, Membership, Transfer},
    message::{Body, Message, ProcessKind},
    planted::{Bug, planted},
    storage::{
        migration::{self, Arrived, Chunk, Event, Limits, Migrations, PartId},
        scan::ShardCommand,
    },
};

/// Chunks that each shard and the disk are given before they have taken the first of them.
const TAKING: usize = 4;
/// Tables of a part that the shards are asked about at a time.
const CHECKED_AT_ONCE: usize = 16;

/// A keyspace message whose turn it is, until the shards have changed their ranges.
#[derive(Debug)]
struct Changing {
    ts: Ts,
    executing: BTreeSet<usize>,
    transfers: Vec<Transfer>,
}

/// A part that has been given to the shards, whose content is being compared with what its sender says.
#[derive(Debug)]
struct Checking {
    part: PartId,
    wanted: BTreeMap<TableId, u128>,
    found: BTreeMap<TableId, u128>,
    /// Tables that the shards have not been asked about.
    unasked: Vec<TableId>,
    /// What has been asked, by the number of the question: of which table, and the shards that have not answered.
    asked: BTreeMap<Ts, (TableId, BTreeSet<usize>)>,
}

/// What has been given away of the chunks that have come, and is not taken.
#[derive(Debug, Default)]
struct Taking {
    /// When their rows begin.
    begin: Ts,
    /// How often shards have still to say that they have taken some.
    shards: usize,
    /// And the disk.
    disk: usize,
}

/// What the process knows about rows that move.
#[derive(Debug)]
pub(super) struct Moving {
    pub(super) migrations: Migrations,
    /// The config behind everything that has been received.
    pub(super) heard: Arc<Config>,
    changing: Option<Changing>,
    /// For keyspace messages whose parts others may ask for: the catalog.
    pub(super) catalogs: BTreeMap<Ts, Arc<Catalog>>,
    pub(super) sessions: BTreeMap<(ProcessId, PartId), Session>,
    /// Reads for sessions, by local time.
    pub(super) reads: BTreeMap<Ts, (ProcessId, PartId)>,
    checking: Vec<Checking>,
    /// Questions about content hashes so far.
    questions: u64,
    /// Chunks that have come while the shards had not taken those before.
    arrived: VecDeque<Event>,
    taking: Taking,
    /// What this process does without that it was to receive, and the `Ts` of the message, which is to have its turn, by which
    /// all who had it were given up.
    lost: Vec<(Loss, Ts)>,
    /// Messages that are to have their turn by which something is lost that was moved here: what has come of it goes then.
    losing: Vec<Ts>,
    /// The checkpoint of this `Ts` says that this process holds nothing, and is to be given a place by the next message.
    pub(super) base: Ts,
    /// A checkpoint has been ordered of everybody but those who receive, or could not be written.
    pub(super) has_missed_a_checkpoint: bool,
    /// How many could not be written since one was.
    pub(super) failed: u32,
    /// When one was last tried for one of these reasons, or could not be written.
    pub(super) made_up_ms: u64,
    /// The end of the m-seq when it subscribed, and the config there: what is behind it is news.
    pub(super) present: (Ts, Arc<Config>),
    /// The same, when it subscribed last. What is between the two is news when it comes; but whom nobody waits for any more is
    /// known from here, however long that takes.
    newest: (Ts, Arc<Config>),
    /// It has asked to join: what it had is forgotten, and it does nothing until it begins without.
    joining: bool,
    /// Since when it holds nothing any more: when that is durable, nobody need keep votes for it.
    left: Option<Ts>,
    /// It began with nothing: what the config says it holds was an earlier life's, until a keyspace message gives it a place.
    begun_empty: bool,
}

impl Moving {
    pub(super) fn new(options: &CoreOptions, recovered: &Recovered) -> Moving {
        let id = options.id;
        let migrations = options.config.migrations().iter();
        let unannounced = migrations.filter(|(_, migration)| migration.has_for(id));
        let unannounced = unannounced.map(|(keyspace, _)| *keyspace).collect();
        let mut migrations =
            Migrations::new(id, recovered.ts, unannounced, first_attempt(options), Limits::default());
        // Who has been removed needs nothing.
        let served = recovered.served.iter().filter(|(to, _)| options.config.contains(*to));
        migrations.resume_serving(served.copied());
        migrations.resume_receiving(recovered.kept_parts());
        Moving {
            migrations,
            heard: options.config.clone(),
            changing: None,
            catalogs: recovered.catalogs.clone(),
            sessions: BTreeMap::new(),
            reads: BTreeMap::new(),
            checking: Vec::new(),
            questions: 0,
            arrived: VecDeque::new(),
            taking: Taking::default(),
            lost: Vec::new(),
            losing: Vec::new(),
            base: Ts::ZERO,
            has_missed_a_checkpoint: false,
            failed: 0,
            made_up_ms: 0,
            present: (recovered.ts, options.config.clone()),
            newest: (recovered.ts, options.config.clone()),
            joining: false,
            left: None,
            begun_empty: recovered.config.is_some() && recovered.held.is_empty(),
        }
    }

    /// Up to where others may count on what is durable here.
    pub(super) fn counts_until(&self, durable: Ts, process: ProcessId) -> Ts {
        let received = self.heard.receives_since(process);
        received.map_or(durable, |keyspace| durable.min(Ts(keyspace.0 - 1)))
    }

    /// The primary ranges of a config that are held here.
    pub(super) fn held_in(&self, config: &Config, process: ProcessId) -> Vec<KeyRange> {
        if self.begun_empty { Vec::new() } else { held_by(config, process) }
    }

    /// Whether the shards are changing their ranges: nothing goes on.
    pub(super) fn is_changing(&self) -> bool {
        self.changing.is_some()
    }

    /// Whether what the last keyspace message gives to the process is not all there.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_changing() || self.migrations.is_waiting() && !planted(Bug::AheadOfTheCopy)
    }

    /// If an operation at a `Ts` acts on ranges whose rows are lost, and which nobody has as they were then: on which it ends,
    /// and on which it goes on, which a read does on none.
    pub(super) fn split_lost(
        &self,
        ts: Ts,
        ranges: &Few<KeyRange>,
        is_write: bool,
    ) -> Option<(Few<KeyRange>, Few<KeyRange>)> {
        let is_lost = |range: &KeyRange| {
            let concerns = |(loss, until): &(Loss, Ts)| {
                (loss.keyspace..*until).contains(&ts) && loss.range.overlaps(range)
            };
            self.lost.iter().any(concerns)
        };
        ranges.iter().any(is_lost).then(|| match is_write {
            true => ranges.iter().copied().partition(is_lost),
            false => (ranges.clone(), Few::default()),
        })
    }

    /// Whether something is lost of what a keyspace message moves here, by a message that is to have its turn.
    pub(super) fn loses_some_of(&self, keyspace: Ts) -> bool {
        self.lost.iter().any(|(loss, _)| loss.keyspace == keyspace)
    }

    /// Bytes of the chunks that have come and wait for their turn.
    pub(super) fn waiting_bytes(&self) -> usize {
        let bytes = |event: &Event| match event {
            Event::Chunk { chunk, .. } => chunk.rows.len(),
            _ => 0,
        };
        self.arrived.iter().map(bytes).sum()
    }

    /// Whether what is held here is not what the m-seq says, until the message has its turn by which the rest is lost.
    pub(super) fn lacks_rows(&self) -> bool {
        self.is_waiting() || !self.lost.is_empty()
    }

    /// The oldest keyspace message at whose `Ts` rows may still have to be read, or to be received: up to then no shard
    /// joins the pieces that it has been cut into.
    pub(super) fn oldest_needed(&self) -> Option<Ts> {
        let changing = self.changing.as_ref().map(|changing| changing.ts);
        let migrations = [self.migrations.oldest_served(), self.migrations.oldest_receiving()];
        changing.into_iter().chain(migrations.into_iter().flatten()).min()
    }
}

/// Attempts at receiving parts are counted in each life, behind those of all before it.
fn first_attempt(options: &CoreOptions) -> u64 {
    options.incarnation << 32
}

/// Why a process that was removed from the system has stopped.
pub(crate) fn removed(process: ProcessId) -> String {
    format!("{process} has been removed; started again, it joins without data")
}

/// Why a process does not come back that was given up with what it alone had.
pub(crate) fn given_up(process: ProcessId) -> String {
    format!("{process} has been given up, and its rows with it; whoever takes its place needs another number")
}

impl Core {
    /// Parts that have not been received: their keyspace message, range, and how much has come of them.
    pub fn receiving(&self) -> impl Iterator<Item = (PartId, Arrived)> {
        self.moving.migrations.progress()
    }

    /// Configuration messages up to here have had their turn.
    pub(crate) fn reached(&self) -> Ts {
        match &self.moving.changing {
            Some(changing) => Ts(changing.ts.0 - 1),
            None => self.options.config.changed_at(),
        }
    }

    /// Whether it holds back what has been delivered until its parts have come.
    pub fn is_receiving(&self) -> bool {
        self.moving.is_waiting()
    }

    /// This life has joined as a standby and goes on behind `ts`, without what it has recovered.
    pub(super) fn begin(
        &mut self,
        ts: Ts,
        config: Arc<Config>,
        catalog: Arc<Catalog>,
        present: (Ts, Arc<Config>),
    ) {
        for delivery in self.pending.take() {
            // What is ordered comes again, if it concerns this process.
            if !delivery.message.id.is_ordered() {
                self.lose(delivery.message.id);
            }
        }
        self.abandon(ts);
        (self.frontier, self.delivered, self.recovered) = (ts, ts, ts);
        let time = Ts(local(ts).0.max(self.submitted.0 + 1));
        self.take_time(time);
        let before = std::mem::replace(&mut self.catalog, catalog);
        let known: BTreeSet<TableId> = before.tables().map(|table| table.id).collect();
        let tables: Vec<_> = self.catalog.tables().cloned().collect();
        for schema in tables.iter().filter(|schema| !known.contains(&schema.id)) {
            let time = self.next_local();
            self.define(time, schema.id, OperationKind::CreateTable(schema.clone()), Vec::new());
        }
        self.drops.extend(known.into_iter().filter(|id| tables.iter().all(|table| table.id != *id)));
        self.ballots = Ballots::default();
        self.pins.clear();
        if !std::mem::take(&mut self.held).is_empty() {
            // What an earlier life held goes now, and not beside what this one is to receive.
            let time = self.next_local();
            self.take_time(time);
            let nothing = Recut { ts: time, ..Recut::default() };
            self.tell_shards(|| ShardCommand::Recut(nothing.clone()));
        }
        (self.moving.joining, self.moving.left, self.moving.begun_empty) = (false, Some(ts), true);
        self.learn(config.clone(), present);
        self.follow(config);
        self.request_checkpoint(ts, false);
    }

    /// Forgets what is under way: this life has lost its place, and nobody waits for it.
    fn abandon(&mut self, ts: Ts) {
        self.forget_moving(ts);
        for time in self.late.waiting() {
            // The shards have not been given it.
            if let Some(running) = self.running.get_mut(&time) {
                running.undecided = false;
            }
        }
        let times: Vec<Ts> = self.running.keys().copied().collect();
        times.into_iter().for_each(|time| self.give_up(time));
        self.late = Late::default();
    }

    /// Nobody hears how an operation ends that the shards have been given.
    fn give_up(&mut self, time: Ts) {
        let Some(running) = self.running.remove(&time) else { return };
        if running.undecided {
            self.tell_shards(|| ShardCommand::Decide(time, Decision::Abort));
        }
        if !running.is_write {
            // Nobody takes what it has sent, so it would wait with the versions that it sees.
            let shards = running.executing.iter().copied();
            self.effects.extend(shards.map(|shard| Effect::Cancel { shard, ts: time }));
        }
        self.returned_bytes -= running.returned_bytes;
        if let Some(id) = running.answer {
            self.by_message.remove(&id);
        }
        self.writes.remove(&time);
        self.stalled.remove(&time);
        if self.supplying.remove(&time).is_some() && !running.undecided {
            // The shards go on when nothing more comes.
            let rows = Arc::new(RowBatch::empty());
            self.tell_shards(|| ShardCommand::Supply(time, rows.clone(), true));
        }
        self.late.end(time);
        self.forget_nowhere(global(time));
    }

    /// Who has left the ring and has ended everything needs no votes any more, and votes again from what it has written down:
    /// the checkpoint says so to the others.
    pub(super) fn leave(&mut self) {
        let Some(left) = self.moving.left.filter(|_| self.writes.is_empty() && self.is_empty()) else {
            return;
        };
        if self.durable >= left {
            self.moving.left = None;
        } else if self.requested.is_empty()
            && self.writing.is_none()
            && (self.moving.failed == 0 || self.may_make_up())
        {
            self.moving.made_up_ms = self.now_ms;
            self.request_checkpoint(self.delivered, false);
            self.write_checkpoint();
        }
    }

    /// Whether nothing here is part of the system's data.
    fn is_empty(&self) -> bool {
        let moving = &self.moving;
        self.held.is_empty() && moving.migrations.served().next().is_none() && !moving.is_waiting()
    }

    /// Whether it is a standby that nobody waits for, and what was delivered here is nothing to it.
    pub(crate) fn is_blank(&self) -> bool {
        let heard = &self.moving.heard;
        heard.contains(self.options.id)
            && !heard.is_active(self.options.id)
            && self.is_empty()
            && self.running.is_empty()
    }

    /// Forgets what an earlier place in the system asked for.
    fn forget_moving(&mut self, ts: Ts) {
        let sessions: Vec<(ProcessId, PartId)> = self.moving.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.close_session(session));
        self.drop_incomplete_checkpoints();
        let moving = &mut self.moving;
        let attempts = moving.migrations.attempts();
        moving.migrations = Migrations::new(self.options.id, ts, Vec::new(), attempts, Limits::default());
        moving.changing = None;
        moving.catalogs.clear();
        moving.checking.clear();
        moving.arrived.clear();
        moving.lost.clear();
        moving.losing.clear();
        moving.has_missed_a_checkpoint = false;
    }

    /// Takes a configuration message as soon as it is delivered: who waits for others must not wait for its turn.
    pub(super) fn hear(&mut self, delivery: &Delivery) {
        let Body::Configuration(configuration) = &delivery.message.body else { return };
        let applied = self.moving.heard.apply(&delivery.message, delivery.ts);
        let is_refused = applied.is_err();
        let config = applied.ok().flatten();
        // The config need not wait for a receiver that has left the ring since: those who send to it do.
        if let Configuration::Received { keyspace, process } = configuration {
            self.migrate(Event::Received { keyspace: *keyspace, process: *process });
        }
        // So do those who send to a standby that says once more, in the same life, that it has no data; unless it begins where it
        // receives that.
        if let Configuration::Membership(Membership::Join { process, .. }) = configuration
            && config.is_none()
            && !is_refused
            && self.moving.heard.standbys().any(|standby| standby == *process)
            && !self.moving.heard.has_received_nothing(*process)
        {
            self.migrate(Event::Suspected { process: *process, ts: delivery.ts });
        }
        let Some(config) = config else { return };
        let before = std::mem::replace(&mut self.moving.heard, Arc::new(config));
        self.tell_durable();
        let own = |loss: &Loss| loss.process == self.options.id;
        let losses: Vec<Loss> = before.losses(&delivery.message).into_iter().filter(own).collect();
        if !losses.is_empty() {
            self.moving.losing.push(delivery.ts);
            self.know(&self.moving.heard.clone());
        }
        if let Configuration::Membership(Membership::Part { process }) = configuration
            && process.kind == ProcessKind::Storage
            && *process != self.options.id
        {
            // The config need not have waited for all that it was to be sent, and it will never say that it has that.
            self.migrate(Event::Suspected { process: *process, ts: delivery.ts });
        }
        if let Configuration::Membership(
            Membership::Suspect { process, .. } | Membership::Join { process, .. },
        ) = configuration
        {
            // Others may have failed with it.
            let heard = self.moving.heard.clone();
            let mut failed = before.awaited();
            failed.retain(|other| other != process && !heard.is_awaited(*other));
            // A standby that joins again has lost what it had, if it had anything.
            let begins_anew = before.standbys().any(|standby| standby == *process)
                && !before.has_received_nothing(*process);
            failed.extend((begins_anew || heard.is_suspected(*process)).then_some(*process));
            // It begins without data: what an earlier life has had is compared with nothing any more.
            failed.retain(|process| *process != self.options.id);
            for process in failed.iter().chain([process]) {
                if let Some((_, hashes)) = self.peers.get_mut(process) {
                    hashes.clear();
                }
            }
            for process in failed {
                self.migrate(Event::Suspected { process, ts: delivery.ts });
            }
        }
        if delivery.ts <= self.moving.present.0 {
            if self.is_cut_off() {
                // Another life may have come back since, and this one has not what that one has begun with.
                self.find_place();
            }
        } else if *configuration == Configuration::Membership(Membership::Part { process: self.options.id }) {
            // To come back after an earlier life was suspected is another matter.
            self.effects.push(Effect::Stop(removed(self.options.id)));
        } else {
            self.find_itself(&self.moving.heard.clone());
        }
    }

    /// A subscription has begun: the config behind everything that has been received, and that at the end of the m-seq.
    pub(super) fn learn(&mut self, config: Arc<Config>, present: (Ts, Arc<Config>)) {
        self.moving.heard = config;
        self.find_itself(&present.1);
        self.moving.present = present.clone();
        self.know_present(present.0, present.1);
    }

    /// The config at the end of the m-seq, of which more may be known than has been received.
    pub(super) fn know_present(&mut self, ts: Ts, config: Arc<Config>) {
        self.know(&config);
        if ts >= self.moving.newest.0 {
            self.moving.newest = (ts, config);
        }
    }

    /// A later config says what of that which this process is to receive is lost. It may be long until the message is delivered
    /// that says so, when it is not while much waits.
    fn know(&mut self, config: &Config) {
        // What nobody had when the keyspace message was ordered, that says itself.
        let lost = config.lacked_by(self.options.id).filter(|(loss, since, _)| *since > loss.keyspace);
        let moving = &mut self.moving;
        // Where it is there, operations on it have been executed, or are by every life.
        let is_new = |(loss, since, _): &(Loss, Ts, bool)| {
            !moving.lost.contains(&(*loss, *since)) && !moving.migrations.is_there(loss.keyspace, loss.range)
        };
        let lost: Vec<(Loss, Ts, bool)> = lost.filter(is_new).collect();
        if lost.is_empty() {
            return;
        }
        moving.lost.extend(lost.iter().map(|(loss, since, _)| (*loss, *since)));
        // What is sent in its place is still to come.
        let begun = lost.iter().filter(|(_, _, is_sent)| !is_sent);
        let part = |(loss, ..): &(Loss, Ts, bool)| PartId { keyspace: loss.keyspace, range: loss.range };
        self.migrate(Event::Lost(begun.map(part).collect()));
        self.lose_late();
    }

    /// The latest config that is known here, and up to where.
    pub(super) fn latest(&self) -> (Ts, &Arc<Config>) {
        let Moving { heard, newest: (ts, newest), .. } = &self.moving;
        if self.frontier < *ts { (*ts, newest) } else { (self.frontier, heard) }
    }

    /// Whether this life is about to begin without what it has recovered: others count on what it knows no more.
    pub(super) fn gives_up_its_data(&self) -> bool {
        self.moving.joining
    }

    /// What a later config says about this process.
    fn find_itself(&mut self, config: &Config) {
        if self.is_fenced(config) {
            // Nothing ordered since is delivered to it, so what it has is no replica of anything.
            let reason = match config.is_given_up(self.options.id) {
                true => given_up(self.options.id),
                false => "it is suspected of having failed".into(),
            };
            self.effects.push(Effect::Stop(reason));
        } else if self.must_join(config) {
            self.find_place();
        }
    }

    /// An earlier life is suspected: others have all that this one has, and do not wait for it.
    fn find_place(&mut self) {
        if self.has_told_votes {
            let reason = "an earlier life is suspected of having failed, and others have all that it has";
            self.effects.push(Effect::Outdated(reason.into()));
        } else if !std::mem::replace(&mut self.moving.joining, true) {
            self.abandon(self.frontier);
            self.effects.push(Effect::Join);
        }
    }

    /// Whether an earlier life was suspected behind what this one has recovered: what is ordered from then on is for others, or
    /// for a life that has come back meanwhile.
    pub(super) fn is_cut_off(&self) -> bool {
        let heard = &self.moving.heard;
        self.must_join(heard) && heard.standbys().all(|standby| standby != self.options.id)
    }

    /// A configuration message has its turn. An error is its outcome: its submitter finds the same one.
    pub(super) fn configure(&mut self, message: &Message, configuration: &Configuration, ts: Ts) {
        let before = self.options.config.clone();
        let Ok(Some(config)) = before.apply(message, ts) else { return };
        match configuration {
            Configuration::Keyspace(keyspace) => self.change(ts, keyspace, &before, Arc::new(config)),
            _ => {
                self.follow(Arc::new(config));
                let own = |loss: &Loss| loss.process == self.options.id;
                let lost = before.losses(message).into_iter().filter(own).map(|loss| loss.range).collect();
                self.begin_without(ts, lost);
            }
        }
        self.forget();
    }

    /// A message has its turn by which rows are lost that were to be received here: what has come of them goes.
    fn begin_without(&mut self, ts: Ts, lost: Vec<KeyRange>) {
        self.moving.lost.retain(|(_, until)| *until > ts);
        self.moving.losing.retain(|until| *until > ts);
        let mut held = self.held.clone();
        held.sort_unstable();
        let lost = intersect(&held, &normalise(lost));
        match lost.is_empty() {
            true => self.make_up_for_a_checkpoint(),
            false => self.recut(ts, lost, Vec::new(), Vec::new()),
        }
    }

    /// Whether a message that is to come takes rows away.
    pub(super) fn takes_rows_away(&self, ts: Ts) -> bool {
        self.moving.losing.contains(&ts)
    }

    /// Whether this life is suspected.
    fn is_fenced(&self, config: &Config) -> bool {
        let (submitter, incarnation) = (self.options.id, self.options.incarnation);
        config.is_fenced(MessageId { submitter, incarnation, sequence: 0 })
    }

    /// Another config is in force, with the same ranges.
    pub(super) fn follow(&mut self, config: Arc<Config>) {
        if self.is_fenced(&config) {
            // It has stopped.
            return;
        }
        self.held = self.moving.held_in(&config, self.options.id);
        self.options.config = config;
    }

    /// Whether an earlier life was suspected, and this one has not come back yet.
    fn must_join(&self, config: &Config) -> bool {
        let (process, incarnation) = (self.options.id, self.options.incarnation);
        config.is_suspected(process) && config.incarnation(process) != Some(incarnation)
    }

    /// What this life says to become part of the system.
    pub(crate) fn membership(&self) -> Membership {
        let CoreOptions { id: process, incarnation, address, .. } = self.options.clone();
        Membership::Join { process, incarnation, address }
    }

    /// What this life says when a config has another address of it.
    pub(crate) fn moved(&self, config: &Config) -> Option<Membership> {
        let (process, own) = (self.options.id, self.options.address.as_ref());
        let address =
            own.filter(|own| config.addresses().get(&process).is_some_and(|known| known != *own))?;
        Some(Membership::Listen { process, address: address.clone() })
    }

    /// The config behind everything that has been received.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.moving.heard
    }

    /// A keyspace message that takes effect has its turn.
    fn change(&mut self, ts: Ts, keyspace: &Keyspace, before: &Config, config: Arc<Config>) {
        let id = self.options.id;
        // It has been applied, so it is correct.
        let mut transfers = before.transfers(keyspace).unwrap_or_default();
        if self.moving.begun_empty {
            // What an earlier life held it cannot send.
            transfers.iter_mut().for_each(|transfer| transfer.senders.retain(|sender| *sender != id));
        }
        let held = held_by(&config, id);
        if self.held.is_empty() && !held.is_empty() {
            // From here on the log is kept for it: a restart begins here again. For what it still sends to one who is not waited
            // for any more, the log is not.
            self.moving.base = Ts(ts.0 - 1);
            if self.is_empty() {
                self.request_checkpoint(self.moving.base, false);
                self.write_checkpoint();
            } else if self.moving.lacks_rows() {
                self.moving.has_missed_a_checkpoint = true;
            } else {
                // What has to be read for it is, when the message has had its turn.
                self.request_checkpoint(self.moving.base, false);
            }
        }
        let ranges = |concerns: &dyn Fn(&Transfer) -> bool| -> Vec<KeyRange> {
            let mut ranges: Vec<KeyRange> = transfers
                .iter()
                .filter(|transfer| concerns(transfer))
                .map(|transfer| transfer.range)
                .collect();
            ranges.sort_unstable();
            ranges.dedup();
            ranges
        };
        let received = ranges(&|transfer: &Transfer| transfer.to == id);
        let cuts = ranges(&|transfer: &Transfer| transfer.to == id || transfer.senders.contains(&id));
        let recut = held != self.held || !cuts.is_empty();
        self.moving.left = held.is_empty().then_some(ts);
        if held.is_empty() {
            // Nobody reads here any more, nor would it hear that a pin is released.
            self.pins.clear();
        }
        self.moving.begun_empty = false;
        (self.held, self.options.config) = (held.clone(), config);
        // What is here of rows that are lost is as stale as what is received, but nothing comes.
        self.late.begin(ranges(&|transfer: &Transfer| transfer.to == id && !transfer.senders.is_empty()));
        if !recut {
            return self.begin_moving(ts, transfers);
        }
        self.recut(ts, received, cuts, transfers);
    }

    /// Lets the shards change their ranges at a message, before rows move.
    fn recut(&mut self, ts: Ts, received: Vec<KeyRange>, cuts: Vec<KeyRange>, transfers: Vec<Transfer>) {
        let executing = (0..self.options.shards).collect();
        self.moving.changing = Some(Changing { ts, executing, transfers });
        // Reads of a checkpoint may have been submitted behind the message already.
        let time = if self.submitted < local(ts) { local(ts) } else { self.next_local() };
        assert_eq!(time, local(ts), "a message by which ranges change has a time of its own");
        self.take_time(time);
        let recut = Recut { ts: time, held: self.options.config.parts(&self.held), received, cuts };
        self.tell_shards(|| ShardCommand::Recut(recut.clone()));
    }

    fn begin_moving(&mut self, ts: Ts, transfers: Vec<Transfer>) {
        self.moving.catalogs.insert(ts, self.catalog.clone());
        if transfers.iter().any(|transfer| transfer.to == self.options.id) {
            self.begin_keeping(ts);
        }
        self.migrate(Event::Keyspace { ts, transfers });
    }

    /// Tells the state machine what has happened and does what it says.
    pub(super) fn migrate(&mut self, event: Event) {
        if self.gives_up_its_data() {
            return;
        }
        if let Event::Chunk { from, part, attempt, chunk } = &event
            && self.takes_enough()
        {
            // No more than the windows of the parts: nobody sends again what has come.
            if self.moving.migrations.awaits(*from, *part, *attempt, chunk.number) {
                self.moving.arrived.push_back(event);
            }
            return;
        }
        let quiet = matches!(
            event,
            Event::Tick(_) | Event::Chunk { .. } | Event::Follows { .. } | Event::Asked { .. }
        );
        for effect in self.moving.migrations.handle(event) {
            self.migration_effect(effect);
        }
        if !quiet {
            self.forget_served();
        }
    }

    fn migration_effect(&mut self, effect: migration::Effect) {
        match effect {
            migration::Effect::Ask { to, part, attempt, chunks } if to == self.options.id => {
                self.effects.push(Effect::LoadRows { part, attempt, chunks });
            }
            migration::Effect::Ask { to, part, attempt, chunks } => {
                self.effects.push(Effect::Send(to, Wire::AskRows { part, attempt, chunks }));
            }
            migration::Effect::Serve { to, part, attempt, chunks } => self.serve(to, part, attempt, chunks),
            migration::Effect::Refuse { to, part, attempt } => {
                self.effects.push(Effect::Send(to, Wire::RowsRefused { part, attempt, anew: false }));
            }
            migration::Effect::Keep { part, chunk } => self.install(part, &chunk),
            migration::Effect::Discard(part) => {
                self.moving.checking.retain(|checking| checking.part != part);
                self.tell_shards(|| ShardCommand::Clear(part.range));
                self.forget_part(part);
            }
            migration::Effect::Install { part, hashes, .. } => {
                if let Some(keeping) = self.receiving_of(part.keyspace) {
                    keeping.hashes.insert(part.range, hashes.clone());
                }
                self.check(part, hashes);
            }
            migration::Effect::Complete { keyspace } => self.parts_are_there(keyspace),
            migration::Effect::Announce { keyspace } => {
                self.effects.push(Effect::Received { keyspace });
            }
            migration::Effect::Release { .. } => {}
            migration::Effect::Fail(reason) => self.effects.push(Effect::Stop(reason)),
        }
    }

    /// Gives a chunk's rows to the shards and to the disk, or keeps its votes.
    fn install(&mut self, part: PartId, chunk: &Chunk) {
        let Some(table) = chunk.table else {
            return self.receive_votes(part, &chunk.rows);
        };
        let PartId { keyspace, range } = part;
        let begin = Ts(local(keyspace).0 - 1);
        let is_kept = self.receiving_of(keyspace).is_some();
        if self.moving.taking.begin != begin {
            // What was given for an earlier change is not counted any more.
            self.moving.taking = Taking { begin, ..Taking::default() };
        }
        self.moving.taking.shards += self.options.shards;
        self.moving.taking.disk += usize::from(is_kept);
        let block = &chunk.rows;
        self.tell_shards(|| ShardCommand::Install { table, range, block: block.clone(), begin });
        if is_kept {
            self.on_their_way.push_back(OnTheirWay::Received { begin });
            let block = block.clone();
            self.effects.push(Effect::CheckpointRows { ts: keyspace, table, until: None, range, block });
        }
    }

    /// Asks the shards for the content hashes of what they have taken of a part.
    fn check(&mut self, part: PartId, hashes: Vec<(TableId, u128)>) {
        let wanted: BTreeMap<TableId, u128> = hashes.into_iter().collect();
        let tables: Vec<TableId> = self.catalog.tables().map(|table| table.id).collect();
        if let Some(missing) = tables.iter().find(|table| !wanted.contains_key(table)) {
            let outcome = Err(format!("does not have table {}", missing.0));
            return self.migrate(Event::Installed { part, outcome });
        }
        let (found, asked) = (BTreeMap::new(), BTreeMap::new());
        self.moving.checking.push(Checking { part, wanted, found, unasked: tables, asked });
        self.ask_for_hashes();
        self.checked();
    }

    /// Asks the shards about further tables. What has been received is compared whatever runs beside that, so a question is no
    /// operation with a time of its own: of those there are not enough for any number of tables before the next message, which may
    /// wait for the answers. Instead it has a number that is no operation's time.
    fn ask_for_hashes(&mut self) {
        for index in 0..self.moving.checking.len() {
            while self.moving.checking[index].asked.len() < CHECKED_AT_ONCE
                && let Some(table) = self.moving.checking[index].unasked.pop()
            {
                self.moving.questions += 1;
                let question = Ts(u64::MAX - self.moving.questions);
                let checking = &mut self.moving.checking[index];
                checking.asked.insert(question, (table, (0..self.options.shards).collect()));
                let range = checking.part.range;
                self.tell_shards(|| ShardCommand::Compare { ts: question, table, range });
            }
        }
    }

    /// Reports the parts whose content hashes are all known.
    fn checked(&mut self) {
        let moving = &mut self.moving;
        let (done, open) = std::mem::take(&mut moving.checking)
            .into_iter()
            .partition(|checking| checking.asked.is_empty() && checking.unasked.is_empty());
        moving.checking = open;
        let done: Vec<Checking> = done;
        for Checking { part, wanted, found, .. } in done {
            let differs = found.iter().find(|(table, hash)| wanted.get(table) != Some(hash));
            let outcome = match differs {
                Some((table, _)) => Err(format!("sends other rows of table {} than it has", table.0)),
                None => Ok(()),
            };
            self.migrate(Event::Installed { part, outcome });
        }
    }

    /// Takes the effect of what was done about rows that move; gives back any other.
    pub(super) fn moving_effect(&mut self, shard: usize, effect: ShardEffect) -> Option<ShardEffect> {
        match effect {
            ShardEffect::Executed { ts, .. } if self.is_changing(ts) => self.changed(shard),
            ShardEffect::Took { ts } if self.moving.taking.begin == ts => {
                self.moving.taking.shards = self.moving.taking.shards.saturating_sub(1);
                self.take_what_has_come();
            }
            ShardEffect::ContentHash { ts, hash, .. } if self.check_of(ts).is_some() => {
                if let Some(checking) = self.check_of(ts)
                    && let Some((table, _)) = checking.asked.get(&ts)
                {
                    let sum = checking.found.entry(*table).or_default();
                    *sum = sum.wrapping_add(hash);
                }
            }
            ShardEffect::Executed { ts, .. } if self.check_of(ts).is_some() => {
                if let Some(checking) = self.check_of(ts)
                    && let Some((table, executing)) = checking.asked.get_mut(&ts)
                {
                    checking.found.entry(*table).or_default();
                    executing.remove(&shard);
                    if executing.is_empty() {
                        checking.asked.remove(&ts);
                    }
                }
                self.ask_for_hashes();
                self.checked();
            }
            other => return self.serving_effect(shard, other),
        }
        None
    }

    fn is_changing(&self, time: Ts) -> bool {
        self.moving.changing.as_ref().is_some_and(|changing| local(changing.ts) == time)
    }

    /// A shard has changed its ranges.
    fn changed(&mut self, shard: usize) {
        let done = self.moving.changing.take_if(|changing| {
            changing.executing.remove(&shard);
            changing.executing.is_empty()
        });
        if let Some(Changing { ts, transfers, .. }) = done {
            self.begin_moving(ts, transfers);
            self.make_up_for_a_checkpoint();
        }
    }

    /// Whether shards or disk have as many chunks to take as they are given.
    fn takes_enough(&self) -> bool {
        let Taking { shards, disk, .. } = self.moving.taking;
        shards >= TAKING * self.options.shards || disk >= TAKING
    }

    /// The disk has taken the rows of a chunk, which begin here.
    pub(super) fn disk_took(&mut self, begin: Ts) {
        if self.moving.taking.begin == begin {
            self.moving.taking.disk = self.moving.taking.disk.saturating_sub(1);
            self.take_what_has_come();
        }
    }

    fn take_what_has_come(&mut self) {
        while !self.takes_enough()
            && let Some(chunk) = self.moving.arrived.pop_front()
        {
            self.migrate(chunk);
        }
    }

    /// Nobody need be asked again for what has come and waits here.
    pub(super) fn note_what_has_come(&mut self) {
        let Moving { arrived, migrations, .. } = &mut self.moving;
        for event in arrived {
            if let Event::Chunk { from, part, attempt, .. } = event {
                migrations.hear_from(*from, *part, *attempt);
            }
        }
    }

    fn check_of(&mut self, time: Ts) -> Option<&mut Checking> {
        self.moving.checking.iter_mut().find(|checking| checking.asked.contains_key(&time))
    }

    /// Forgets what was kept for receivers that need nothing any more.
    fn forget_served(&mut self) {
        let served: BTreeSet<(ProcessId, PartId)> = self.moving.migrations.served().collect();
        let over: Vec<(ProcessId, PartId)> =
            self.moving.sessions.keys().filter(|session| !served.contains(session)).copied().collect();
        over.into_iter().for_each(|session| self.close_session(session));
        let is_served = |keyspace: &Ts| served.iter().any(|(_, part)| part.keyspace == *keyspace);
        self.moving.catalogs.retain(|keyspace, _| is_served(keyspace));
    }
}
