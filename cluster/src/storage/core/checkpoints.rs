//! Checkpoints: what is read for them, and what follows when they are durable (DESIGN, decision 13).
//!
//! A checkpoint has the rows that a read just behind its `Ts` sees, those that others are still to receive as they were at
//! the keyspace messages that say so, and whatever else the process needs to go on from there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use carousel_engine::{
    TableId, TableSchema, Ts,
    operation::{Effect as ShardEffect, OperationKind, Read, ReadOutput},
    position::KeyRange,
};

use super::{
    Arc, Catalog, Config, ContentHash, Core, Effect, MessageId, ProcessId, Recovered, end, local, runs_until,
};
use crate::storage::migration::{self, PartId};

/// A checkpoint that waits for the execution of what was ordered before it.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) ts: Ts,
    catalog: Arc<Catalog>,
    config: Arc<Config>,
    /// The last message of each submitter that belongs to it.
    passed: Vec<MessageId>,
    /// The primary ranges that are held at its `Ts`, or else those that an earlier life held.
    held: Vec<KeyRange>,
    /// Whether other replicas have a checkpoint at the same `Ts` with the same rows: what an earlier life held ends where it
    /// was suspected.
    compared: bool,
    /// Parts that others may still ask for.
    served: Vec<(ProcessId, PartId)>,
    /// What the catalog was at their keyspace messages.
    catalogs: BTreeMap<Ts, Arc<Catalog>>,
}

/// The checkpoint that is being written.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) ts: Ts,
    /// Tables that have not been read, and whether they have been dropped.
    tables: VecDeque<(Arc<TableSchema>, bool)>,
    held: Vec<KeyRange>,
    compared: bool,
    served: Vec<PartId>,
    /// Reads of the present table, by their local time.
    reads: BTreeMap<Ts, CheckpointRead>,
    hashes: BTreeMap<(TableId, KeyRange), u128>,
    /// All rows have been read; the files are not durable yet.
    pub(super) complete: bool,
}

impl Requested {
    /// The oldest `Ts` as of which it will read: also when the receivers of what it keeps need nothing any more.
    pub(super) fn oldest_needed(&self) -> Ts {
        self.served.iter().map(|(_, part)| part.keyspace).fold(self.ts, Ts::min)
    }
}

impl Writing {
    /// The same.
    pub(super) fn oldest_needed(&self) -> Ts {
        self.served.iter().map(|part| part.keyspace).fold(self.ts, Ts::min)
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

impl Core {
    /// A checkpoint of the present moment, of everything up to `ts`, has been asked for: of everybody by an ordered message, so
    /// that replicas can compare what they hold, or it is this process's own. A newer one makes one that has not begun
    /// unnecessary.
    pub(super) fn request_checkpoint(&mut self, ts: Ts, of_everybody: bool) {
        let served: Vec<(ProcessId, PartId)> = self.moving.migrations.served().collect();
        let (catalog, config) = (self.catalog.clone(), self.options.config.clone());
        let holds_some = !self.held.is_empty();
        let held = if holds_some { self.held.clone() } else { self.moving.retained.clone() };
        let compared = of_everybody && holds_some;
        let passed = self.passed.values().copied().collect();
        let mut catalogs = self.moving.catalogs.clone();
        catalogs.retain(|keyspace, _| served.iter().any(|(_, part)| part.keyspace == *keyspace));
        self.requested = Some(Requested { ts, catalog, config, passed, held, compared, served, catalogs });
    }

    /// Begins a checkpoint whose time has come.
    pub(super) fn begin_checkpoint(&mut self) {
        let writes = &self.writes;
        if self.writing.is_some() {
            return;
        }
        let Some(requested) = self.requested.take_if(|requested| !runs_until(writes, requested.ts)) else {
            return;
        };
        let Requested { ts, catalog, config, passed, held, compared, served, catalogs } = requested;
        let mut parts: Vec<PartId> = served.iter().map(|(_, part)| *part).collect();
        parts.sort_unstable();
        parts.dedup();
        let checkpoint = Recovered {
            ts,
            catalog: Arc::unwrap_or_clone(catalog),
            ballots: self.ballots.up_to(ts),
            passed,
            hashes: Vec::new(),
            config: Some(config),
            held: held.clone(),
            served,
            catalogs,
        };
        // Nothing is read for one who holds nothing: it may have a keyspace message's turn at this very moment.
        let empty = held.is_empty() && parts.is_empty();
        let present = checkpoint.catalog.tables().filter(|_| !empty).cloned();
        let dropped = checkpoint.dropped().into_iter();
        let tables = present.map(|table| (table, false)).chain(dropped.map(|table| (table, true))).collect();
        self.writing = Some(Writing {
            ts,
            tables,
            held,
            compared,
            served: parts,
            reads: BTreeMap::new(),
            hashes: BTreeMap::new(),
            complete: false,
        });
        self.effects.push(Effect::BeginCheckpoint(Box::new(checkpoint)));
        self.read_next_table();
    }

    /// Whether some checkpoint needs rows that are no longer in the catalog.
    pub(super) fn is_reading_checkpoint(&self) -> bool {
        self.requested.is_some() || self.writing.as_ref().is_some_and(|writing| !writing.complete)
    }

    /// Reads the rows of the next table of a checkpoint, and their content hashes if they are compared; without one, its files can be completed.
    fn read_next_table(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        let ts = writing.ts;
        let Some((table, is_dropped)) = writing.tables.pop_front() else {
            writing.complete = true;
            let hashes: Vec<ContentHash> = std::mem::take(&mut writing.hashes)
                .into_iter()
                .map(|((table, range), hash)| (table, range, hash))
                .collect();
            self.hashes_at = (ts, hashes.clone());
            self.effects.push(Effect::EndCheckpoint { ts, hashes });
            return;
        };
        let rows = || ReadOutput::Rows { projection: Vec::new(), top: None };
        let (held, served, compared) = (writing.held.clone(), writing.served.clone(), writing.compared);
        if !is_dropped {
            self.read_for_checkpoint(&table, None, held.clone(), rows());
        }
        if !is_dropped && compared {
            self.read_for_checkpoint(&table, None, held, ReadOutput::ContentHash);
        }
        for PartId { keyspace, range } in served {
            self.read_for_checkpoint(&table, Some(keyspace), vec![range], rows());
        }
    }

    fn read_for_checkpoint(
        &mut self,
        table: &Arc<TableSchema>,
        until: Option<Ts>,
        ranges: Vec<KeyRange>,
        output: ReadOutput,
    ) {
        let time = self.next_local();
        let executing = (0..self.options.shards).collect();
        let Some(writing) = &mut self.writing else { return };
        writing.reads.insert(time, CheckpointRead { table: table.id, until, executing });
        let read_ts = until.map_or(end(writing.ts), local);
        let read = OperationKind::Read(Read { predicate: Vec::new(), output });
        self.submit_to_all(time, read_ts, table.id, read, ranges);
    }

    /// Takes the effect of a checkpoint's read; gives back any other.
    pub(super) fn checkpoint_effect(&mut self, shard: usize, effect: ShardEffect) -> Option<ShardEffect> {
        let Some(writing) = &mut self.writing else { return Some(effect) };
        match effect {
            ShardEffect::Block { ts, range, block } if writing.reads.contains_key(&ts) => {
                let CheckpointRead { table, until, .. } = writing.reads[&ts];
                self.effects.push(Effect::Allow { shard, ts, batches: 1 });
                self.effects.push(Effect::CheckpointRows { table, until, range, block });
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
                if writing.reads.is_empty() {
                    self.read_next_table();
                }
            }
            other => return Some(other),
        }
        None
    }

    /// The checkpoint cannot be written: nothing is read for it any more.
    pub(super) fn checkpoint_failed(&mut self, ts: Ts) {
        // Another one is due, also when nothing is written any more.
        self.logged = self.logged.max(1);
        let Some(writing) = self.writing.take_if(|writing| writing.ts == ts) else { return };
        for (ts, read) in writing.reads {
            self.effects.extend(read.executing.into_iter().map(|shard| Effect::Cancel { shard, ts }));
        }
    }

    pub(super) fn checkpoint_done(&mut self, ts: Ts) {
        let written = self.writing.take().filter(|writing| writing.complete).map(|writing| writing.ts);
        assert_eq!(written, Some(ts), "checkpoint {ts} was not being written");
        self.durable = ts;
        self.hashes = std::mem::take(&mut self.hashes_at.1);
        for peer in self.peers_of_ring().collect::<Vec<_>>() {
            self.effects.push(Effect::Send(peer, self.durable_wire(false)));
        }
        let peers: Vec<ProcessId> = self.peers.keys().copied().collect();
        for peer in peers {
            self.compare(peer);
        }
        self.forget();
        // What has been received up to a checkpoint's `Ts` is in it.
        self.migrate(migration::Event::Durable(Ts(ts.0 + 1)));
    }

    pub(super) fn peer_durable(&mut self, from: ProcessId, ts: Ts, hashes: Vec<ContentHash>, reply: bool) {
        self.peers.insert(from, (ts, hashes));
        if reply {
            self.effects.push(Effect::Send(from, self.durable_wire(false)));
        }
        self.compare(from);
        self.forget();
    }

    /// Replicas at the same checkpoint must hold the same rows.
    fn compare(&mut self, peer: ProcessId) {
        let Some((ts, hashes)) = self.peers.get(&peer) else { return };
        if *ts != self.durable {
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
