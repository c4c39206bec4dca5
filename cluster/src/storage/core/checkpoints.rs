//! Checkpoints: what is read for them, and what follows when they are durable (DESIGN, decision 13).
//!
//! A checkpoint has the rows that a read just behind its `Ts` sees, those that others are still to receive as they were at
//! the keyspace messages that say so, and whatever else the process needs to go on from there. Rows that the process
//! receives itself are kept beside the checkpoint before them, in the form in which they come, until another one has them:
//! what is received is written, and not what is there already.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use carousel_engine::{TableId, TableSchema, Ts, operation::Effect as ShardEffect, position::KeyRange};

use super::{
    Arc, CHECKPOINT_WINDOW, ContentHash, Core, Effect, ProcessId, Recovered, end, local, runs_until,
};
use crate::{
    catalog::Catalog,
    planted::{Bug, planted},
    storage::{
        ballot::Ballot,
        migration::{self, PartId},
    },
};

/// Who tries again by itself to write a checkpoint does so this often, at first.
const MAKE_UP_MS: u64 = 5_000;
/// As failures follow one another, the pause between them doubles so often.
const MAKE_UP_DOUBLINGS: u32 = 3;

/// What a keyspace message moves here, which is kept on disk as it comes.
#[derive(Debug)]
pub(super) struct Keeping {
    keyspace: Ts,
    catalog: Arc<Catalog>,
    /// Of each part, when all of it has come: the content hashes that its sender has told.
    pub(super) hashes: BTreeMap<KeyRange, Vec<(TableId, u128)>>,
    /// The votes that have come with a part.
    pub(super) ballots: BTreeMap<KeyRange, Vec<(Ts, Ballot)>>,
    /// A restart comes to the keyspace message from a checkpoint of this or a later `Ts`.
    behind: Ts,
    stage: Stage,
    /// What has waited for the parts has not been given to the shards: only then is whoever received them of use.
    awaits_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Receiving,
    /// All parts are there. They are not durable.
    Complete,
    Durable,
}

/// A checkpoint that waits for the execution of what was ordered before it, or is being written.
#[derive(Debug)]
pub(super) struct Writing {
    /// What it says apart from the rows; content hashes at its end. When it is complete, only its `Ts` is left here.
    checkpoint: Recovered,
    /// Whether other replicas have a checkpoint at the same `Ts` with the same rows.
    compared: bool,
    /// The ranges whose rows are read.
    read: Vec<KeyRange>,
    /// Tables that have not been read, and whether they have been dropped.
    tables: VecDeque<(Arc<TableSchema>, bool)>,
    /// Reads of the present table, by their local time.
    reads: BTreeMap<Ts, CheckpointRead>,
    hashes: BTreeMap<(TableId, KeyRange), u128>,
    /// All rows are there; the files are not durable yet.
    pub(super) complete: bool,
}

impl Writing {
    /// The oldest `Ts` as of which it will read: also when the receivers of what it keeps need nothing any more.
    pub(super) fn oldest_needed(&self) -> Ts {
        let Recovered { ts, served, .. } = &self.checkpoint;
        served.iter().map(|(_, part)| part.keyspace).fold(*ts, Ts::min)
    }

    /// The parts that others may still ask for.
    fn served(&self) -> BTreeSet<PartId> {
        self.checkpoint.served.iter().map(|(_, part)| *part).collect()
    }
}

/// A read of a checkpoint.
#[derive(Debug)]
struct CheckpointRead {
    table: TableId,
    /// For what others are to receive: as of when.
    until: Option<Ts>,
    executing: BTreeSet<usize>,
}

/// Rows that are on their way to the disk.
#[derive(Debug)]
pub(super) enum OnTheirWay {
    /// From a read of a shard, which sends more when these are there.
    Read { shard: usize, time: Ts },
    /// Of a part that is received, whose rows begin here.
    Received { begin: Ts },
}

impl Core {
    /// A checkpoint of the present moment, of everything up to `ts`, has been asked for: of everybody by an ordered message, so
    /// that replicas can compare what they hold, or it is this process's own. A newer one makes one unnecessary that has
    /// nothing yet.
    pub(super) fn request_checkpoint(&mut self, ts: Ts, of_everybody: bool) {
        let held = self.held.clone();
        let compared = of_everybody && !held.is_empty();
        self.moving.has_missed_a_checkpoint = false;
        self.requested.clear();
        self.requested.push_back(self.checkpoint(ts, held, compared));
    }

    /// What a keyspace message moves here, which has its turn, is kept as it comes ([`Core::install`]), unless an earlier life
    /// has done so: when everything is there, little is left to do until it is durable.
    pub(super) fn begin_keeping(&mut self, keyspace: Ts) {
        let is_kept = self.moving.migrations.has_kept(keyspace);
        self.keeping.push_back(Keeping {
            keyspace,
            catalog: self.catalog.clone(),
            hashes: BTreeMap::new(),
            ballots: BTreeMap::new(),
            behind: self.moving.base,
            stage: if is_kept { Stage::Durable } else { Stage::Receiving },
            awaits_late: true,
        });
    }

    fn keeping_of(&mut self, keyspace: Ts) -> Option<&mut Keeping> {
        self.keeping.iter_mut().find(|keeping| keeping.keyspace == keyspace)
    }

    /// What is kept of a keyspace message's parts as it comes.
    pub(super) fn receiving_of(&mut self, keyspace: Ts) -> Option<&mut Keeping> {
        self.keeping_of(keyspace).filter(|keeping| keeping.stage == Stage::Receiving)
    }

    /// What has come of a part is of no use.
    pub(super) fn forget_part(&mut self, part: PartId) {
        if let Some(keeping) = self.receiving_of(part.keyspace) {
            keeping.hashes.remove(&part.range);
            keeping.ballots.remove(&part.range);
        }
        self.effects.push(Effect::ForgetRows { ts: part.keyspace, range: Some(part.range) });
    }

    fn checkpoint(&self, ts: Ts, held: Vec<KeyRange>, compared: bool) -> Writing {
        let served: Vec<(ProcessId, PartId)> = self.moving.migrations.served().collect();
        let mut catalogs = self.moving.catalogs.clone();
        catalogs.retain(|keyspace, _| served.iter().any(|(_, part)| part.keyspace == *keyspace));
        let checkpoint = Recovered {
            ts,
            catalog: self.catalog.clone(),
            ballots: Vec::new(),
            payloads: Vec::new(),
            passed: self.passed.values().copied().collect(),
            hashes: Vec::new(),
            config: Some(self.options.config.clone()),
            held: held.clone(),
            served,
            catalogs,
            kept: Vec::new(),
        };
        Writing {
            checkpoint,
            compared,
            read: held,
            tables: VecDeque::new(),
            reads: BTreeMap::new(),
            hashes: BTreeMap::new(),
            complete: false,
        }
    }

    /// Begins a checkpoint whose time has come, and completes the one that has everything.
    pub(super) fn write_checkpoint(&mut self) {
        self.begin_checkpoint();
        self.complete_checkpoint();
    }

    fn begin_checkpoint(&mut self) {
        let writes = &self.writes;
        if self.writing.is_some() {
            return;
        }
        // They are in the order of their `Ts`.
        let is_due = |writing: &Writing| !runs_until(writes, writing.checkpoint.ts);
        if !self.requested.front().is_some_and(is_due) {
            return;
        }
        let Some(mut writing) = self.requested.pop_front() else { return };
        writing.checkpoint.ballots = self.ballots.up_to(writing.checkpoint.ts);
        let payloads = self.payloads.range(..=writing.checkpoint.ts);
        writing.checkpoint.payloads =
            payloads.map(|(ts, (id, holders))| (*ts, *id, holders.clone())).collect();
        let checkpoint = &writing.checkpoint;
        // Nothing is read for it where it holds nothing: it may have a keyspace message's turn at this very moment.
        let empty = writing.read.is_empty() && checkpoint.served.is_empty();
        let present = checkpoint.catalog.tables().filter(|_| !empty).cloned();
        let dropped = checkpoint.dropped().into_iter();
        writing.tables =
            present.map(|table| (table, false)).chain(dropped.map(|table| (table, true))).collect();
        self.writing = Some(writing);
        self.read_next_table();
    }

    /// Whether some checkpoint needs rows that are no longer in the catalog.
    pub(super) fn is_reading_checkpoint(&self) -> bool {
        self.unread_checkpoints().next().is_some()
    }

    /// Checkpoints for which rows have to be read.
    pub(super) fn unread_checkpoints(&self) -> impl Iterator<Item = &Writing> {
        let writing = self.writing.as_ref().filter(|writing| !writing.complete);
        writing.into_iter().chain(&self.requested)
    }

    /// Everything that a keyspace message instructed has been received.
    pub(super) fn parts_are_there(&mut self, keyspace: Ts) {
        let has_late = !self.late.is_empty();
        // Without rows that are lost it is what it should be only behind the message by which they are.
        let loses_some = self.moving.loses_some_of(keyspace);
        let config = self.options.config.clone();
        let Some(keeping) = self.keeping_of(keyspace) else { return };
        keeping.awaits_late = has_late;
        if loses_some {
            keeping.stage = Stage::Complete;
            self.effects.push(Effect::ForgetRows { ts: keyspace, range: None });
            return self.parts_ended(keyspace, false);
        }
        if keeping.stage == Stage::Receiving && keeping.hashes.is_empty() {
            // The message itself says that its rows are lost, so a restart finds the same.
            keeping.stage = Stage::Durable;
        } else if keeping.stage == Stage::Receiving {
            keeping.stage = Stage::Complete;
            let hashes = std::mem::take(&mut keeping.hashes);
            let ranges: Vec<KeyRange> = hashes.keys().copied().collect();
            let of_part = |(range, hashes): (KeyRange, Vec<(TableId, u128)>)| {
                hashes.into_iter().map(move |(table, hash)| (table, range, hash))
            };
            let parts = Box::new(Recovered {
                ts: keyspace,
                catalog: keeping.catalog.clone(),
                ballots: std::mem::take(&mut keeping.ballots).into_values().flatten().collect(),
                hashes: hashes.into_iter().flat_map(of_part).collect(),
                config: Some(config),
                held: ranges,
                ..Recovered::default()
            });
            self.effects.push(Effect::EndParts(parts));
        }
        self.announce_parts();
    }

    /// What has waited for parts has been given to the shards.
    pub(super) fn late_is_submitted(&mut self) {
        self.keeping.iter_mut().for_each(|keeping| keeping.awaits_late = false);
        self.announce_parts();
    }

    /// What a keyspace message has moved here is durable, or could not be written: then it, and what has been received since,
    /// waits for a checkpoint.
    pub(super) fn parts_ended(&mut self, keyspace: Ts, are_durable: bool) {
        if !are_durable {
            self.logged = self.logged.max(1);
            self.moving.has_missed_a_checkpoint = true;
        } else if let Some(keeping) = self.keeping_of(keyspace) {
            keeping.stage = Stage::Durable;
            self.announce_parts();
        }
    }

    /// Says that parts have been received when a restart would have them, too.
    fn announce_parts(&mut self) {
        let is_done = |keeping: &mut Keeping| {
            let is_durable = keeping.stage == Stage::Durable && self.durable >= keeping.behind;
            let is_there = keeping.stage == Stage::Complete && planted(Bug::ReceivedTooEarly);
            (is_durable || is_there) && !keeping.awaits_late
        };
        if let Some(Keeping { keyspace, .. }) = self.keeping.pop_front_if(is_done) {
            self.migrate(migration::Event::Durable(Ts(keyspace.0 + 1)));
            self.make_up_for_a_checkpoint();
            self.announce_parts();
        }
    }

    /// Forgets checkpoints that do not have all their rows, and what has been received.
    pub(super) fn drop_incomplete_checkpoints(&mut self) {
        for Keeping { keyspace, .. } in std::mem::take(&mut self.keeping) {
            self.effects.push(Effect::ForgetRows { ts: keyspace, range: None });
        }
        let writing = self.writing.take_if(|writing| !writing.complete);
        for writing in std::mem::take(&mut self.requested).into_iter().chain(writing) {
            self.effects.push(Effect::ForgetRows { ts: writing.checkpoint.ts, range: None });
            self.cancel_reads_of(writing);
        }
    }

    /// Completes the checkpoint when it has all its rows.
    fn complete_checkpoint(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        let is_read = writing.reads.is_empty() && writing.tables.is_empty();
        if writing.complete || !is_read {
            return;
        }
        writing.complete = true;
        let hashes = std::mem::take(&mut writing.hashes).into_iter();
        let hashes: Vec<ContentHash> = hashes.map(|((table, range), hash)| (table, range, hash)).collect();
        let ts = writing.checkpoint.ts;
        self.hashes_at = (ts, hashes.clone());
        let checkpoint = std::mem::replace(&mut writing.checkpoint, Recovered { ts, ..Recovered::default() });
        self.effects.push(Effect::EndCheckpoint(Box::new(Recovered { hashes, ..checkpoint })));
    }

    /// Reads the rows of the next table of a checkpoint, and their content hashes if they are compared.
    pub(super) fn read_next_table(&mut self) {
        if !self.has_times() {
            return;
        }
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.reads.is_empty()) else { return };
        let Some((table, is_dropped)) = writing.tables.pop_front() else { return };
        let (read, served, compared) = (writing.read.clone(), writing.served(), writing.compared);
        if !is_dropped && !read.is_empty() {
            self.read_for_checkpoint(&table, None, read, compared);
        }
        for PartId { keyspace, range } in served {
            self.read_for_checkpoint(&table, Some(keyspace), vec![range], false);
        }
    }

    fn read_for_checkpoint(
        &mut self,
        table: &Arc<TableSchema>,
        until: Option<Ts>,
        ranges: Vec<KeyRange>,
        hashed: bool,
    ) {
        let time = self.next_local();
        let executing = (0..self.options.shards).collect();
        let Some(writing) = &mut self.writing else { return };
        writing.reads.insert(time, CheckpointRead { table: table.id, until, executing });
        let read_ts = until.map_or(end(writing.checkpoint.ts), local);
        self.read_blocks(time, read_ts, table.id, ranges, CHECKPOINT_WINDOW, hashed);
    }

    /// Takes the effect of a checkpoint's read; gives back any other.
    pub(super) fn checkpoint_effect(&mut self, shard: usize, effect: ShardEffect) -> Option<ShardEffect> {
        let Some(writing) = &mut self.writing else { return Some(effect) };
        match effect {
            ShardEffect::Block { ts, range, block } if writing.reads.contains_key(&ts) => {
                let CheckpointRead { table, until, .. } = writing.reads[&ts];
                let of = writing.checkpoint.ts;
                self.on_their_way.push_back(OnTheirWay::Read { shard, time: ts });
                self.effects.push(Effect::CheckpointRows { ts: of, table, until, range, block });
            }
            // Others ask for content hashes, too.
            ShardEffect::ContentHash { ts, range, hash } if writing.reads.contains_key(&ts) => {
                if let Some(read) = writing.reads.get(&ts) {
                    let sum = writing.hashes.entry((read.table, range)).or_default();
                    *sum = sum.wrapping_add(hash);
                }
            }
            ShardEffect::Executed { ts, outcomes } if writing.reads.contains_key(&ts) => {
                if let Some(error) = outcomes.into_iter().find_map(|(_, outcome)| outcome.err()) {
                    self.effects.push(Effect::Stop(format!("a checkpoint cannot read a table: {error}")));
                    return None;
                }
                let done = writing.reads.get_mut(&ts).is_some_and(|read| {
                    read.executing.remove(&shard);
                    read.executing.is_empty()
                });
                if done {
                    writing.reads.remove(&ts);
                }
                self.read_next_table();
            }
            other => return Some(other),
        }
        None
    }

    /// Some rows are on their way no more.
    pub(super) fn checkpoint_took(&mut self) {
        match self.on_their_way.pop_front() {
            Some(OnTheirWay::Read { shard, time }) => {
                self.effects.push(Effect::Allow { shard, ts: time, batches: 1 });
            }
            Some(OnTheirWay::Received { begin }) => self.disk_took(begin),
            None => {}
        }
    }

    /// The checkpoint cannot be written: nothing is read for it any more.
    pub(super) fn checkpoint_failed(&mut self, ts: Ts) {
        // Another one is due, also when nothing is written any more.
        self.logged = self.logged.max(1);
        self.moving.has_missed_a_checkpoint = true;
        self.moving.failed += 1;
        self.moving.made_up_ms = self.now_ms;
        if let Some(failed) = self.writing.take_if(|writing| writing.checkpoint.ts == ts) {
            self.cancel_reads_of(failed);
        }
    }

    fn cancel_reads_of(&mut self, writing: Writing) {
        for (ts, read) in writing.reads {
            self.effects.extend(read.executing.into_iter().map(|shard| Effect::Cancel { shard, ts }));
        }
    }

    pub(super) fn checkpoint_done(&mut self, ts: Ts) {
        let written = self.writing.take().filter(|writing| writing.complete);
        assert_eq!(
            written.map(|writing| writing.checkpoint.ts),
            Some(ts),
            "checkpoint {ts} was not being written"
        );
        self.durable = ts;
        self.moving.failed = 0;
        self.hashes = std::mem::take(&mut self.hashes_at.1);
        self.tell_durable();
        let peers: Vec<ProcessId> = self.peers.keys().copied().collect();
        for peer in peers {
            self.compare(peer);
        }
        self.forget();
        // What has been received up to a checkpoint's `Ts` is in it.
        self.keeping.retain(|keeping| keeping.keyspace > ts || keeping.stage == Stage::Receiving);
        self.migrate(migration::Event::Durable(Ts(ts.0 + 1)));
        self.announce_parts();
        self.make_up_for_a_checkpoint();
    }

    /// Makes a checkpoint when one was ordered while parts were received.
    pub(super) fn make_up_for_a_checkpoint(&mut self) {
        let is_free = !self.moving.lacks_rows();
        if is_free && self.requested.is_empty() && self.moving.has_missed_a_checkpoint {
            self.request_checkpoint(self.delivered, false);
        }
    }

    /// Who has left the ring, and may still have to send what it has received, hears of no checkpoint any more: when one has
    /// failed it tries again by itself. So does who is still to say what it has received, for which nobody orders one, and whose
    /// disk has failed: nobody knows better whether it is well again. It may take long to find that it is not, and others may
    /// need the room that is tried to be taken: so it is tried less and less often.
    pub(super) fn make_up_by_itself(&mut self) {
        if (self.held.is_empty() || !self.keeping.is_empty() || self.moving.failed > 0)
            && self.writing.is_none()
            && self.may_make_up()
        {
            self.moving.made_up_ms = self.now_ms;
            self.make_up_for_a_checkpoint();
        }
    }

    /// Whether one that failed, or that nobody asked for, may be tried again: less and less often.
    pub(super) fn may_make_up(&self) -> bool {
        let pause_ms = MAKE_UP_MS << self.moving.failed.saturating_sub(1).min(MAKE_UP_DOUBLINGS);
        self.now_ms >= self.moving.made_up_ms + pause_ms
    }

    pub(super) fn peer_durable(&mut self, from: ProcessId, ts: Ts, hashes: Vec<ContentHash>, reply: bool) {
        self.peers.insert(from, (ts, hashes));
        if reply {
            self.effects.push(Effect::Send(from, self.durable_wire(false)));
        }
        self.compare(from);
        self.forget();
    }

    /// Replicas at the same checkpoint must hold the same rows. Who is not waited for any more may have executed writes that
    /// are aborted by those who are left, because it alone had known their votes.
    fn compare(&mut self, peer: ProcessId) {
        let Some((ts, hashes)) = self.peers.get(&peer) else { return };
        if *ts != self.durable || !self.latest().1.is_awaited(peer) {
            return;
        }
        let theirs: HashMap<(TableId, KeyRange), u128> =
            hashes.iter().map(|(table, range, hash)| ((*table, *range), *hash)).collect();
        for (table, range, hash) in &self.hashes {
            if theirs.get(&(*table, *range)).is_some_and(|other| other != hash) {
                self.effects.push(Effect::Stop(format!(
                    "table {} differs from the replica at {peer} in range {range} at checkpoint {ts}",
                    table.0
                )));
                return;
            }
        }
    }
}
