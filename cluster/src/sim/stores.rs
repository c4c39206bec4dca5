//! Storage processes of the simulated cluster: [`crate::storage::node`] with real shards and a simulated disk.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::Arc,
};

use bytes::Bytes;
use carousel_engine::{
    Ts,
    install::Rows,
    operation::{
        Decision, Effect as ShardEffect, Operation, OperationKind, OrderedOperation, Read, ReadOutput,
    },
    position::KeyRange,
    schema::TableId,
    shard::{Options as ShardOptions, Progress, Shard},
};

use arrow::{
    array::AsArray,
    datatypes::{Int32Type, Int64Type},
    record_batch::RecordBatch,
};

use super::{
    faults::ALL_LIVES,
    payloads::{MemoryFiles, Payloads},
    replay::{Outcome, Replay},
    statement::{Filter, both},
    world::{Item, Phase, World},
};
use crate::{
    config::{Configuration, Membership},
    message::{Incarnation, ProcessId, ProcessKind},
    storage::{
        checkpointer::{CheckpointCommand, CheckpointOutcome},
        core::{Core, CoreOptions, Recovered, global, held_by, local},
        migration::{Chunk, PartId},
        node::{Input, Life, Node, Output},
        scan::{Scan, ShardCommand},
    },
    super_process::Heartbeat,
    wire::{Answer, MissingVotes, Wire},
};

/// Milliseconds that a disk may take no checkpoint: less than [`super::faults::FULL_DISK_US`], with what is tried again.
const DISK_PATIENCE_MS: u64 = 2_500;

/// At some processes the rows of a range fill segments, at others what is received is added to a segment that has room. Some wait
/// at segments that are in doubt, others for single rows.
fn few_rows_a_segment(process: ProcessId) -> ShardOptions {
    let segment_rows = if process.number.is_multiple_of(4) { 64 } else { 4 };
    let rows_in_doubt =
        if process.number.is_multiple_of(2) { 1 } else { ShardOptions::default().rows_in_doubt };
    ShardOptions { segment_rows, rows_in_doubt, ..ShardOptions::default() }
}

/// A checkpoint on a disk.
#[derive(Clone, Debug)]
struct Checkpoint {
    recovered: Recovered,
    began: Ts,
    rows: Vec<CheckpointRows>,
}

/// Rows of a checkpoint, as of now or as of an earlier `Ts`.
#[derive(Clone, Debug)]
struct CheckpointRows {
    table: TableId,
    until: Option<Ts>,
    range: KeyRange,
    block: Bytes,
}

impl Checkpoint {
    fn load(&self, shards: &mut [Shard]) {
        for shard in shards {
            self.recovered.prepare(shard);
            for CheckpointRows { table, until, range, block } in &self.rows {
                let begin = if until.is_some() { Ts::ZERO } else { local(self.recovered.ts) };
                let rows = Rows {
                    table: *table,
                    range: *range,
                    until: until.map(local),
                    begin,
                    block: block.clone(),
                };
                shard.install(rows).expect("rows of a checkpoint");
            }
        }
    }
}

/// What is written, with all its rows.
#[derive(Clone, Debug)]
enum Written {
    Checkpoint(Checkpoint),
    /// What a keyspace message moves here.
    Received(Checkpoint),
}

impl StorageDisk {
    fn keep(&mut self, written: Written) {
        match written {
            Written::Checkpoint(checkpoint) => {
                let ts = checkpoint.recovered.ts;
                self.received.retain(|received| received.recovered.ts > ts);
                self.checkpoint = Some(checkpoint);
            }
            Written::Received(received) => self.received.push(received),
        }
    }

    /// The chunks of a part that has been received.
    fn chunks(&self, part: PartId) -> Vec<Chunk> {
        let of = self.received.iter().rfind(|received| received.recovered.ts == part.keyspace);
        let Some(Checkpoint { recovered, rows, .. }) = of else { return Vec::new() };
        let blocks = rows.iter().filter(|rows| rows.range == part.range);
        let blocks = blocks.map(|rows| Ok::<_, Infallible>((rows.table, rows.block.clone())));
        recovered.chunks(part.range, blocks).map(|Ok(chunk)| chunk).collect()
    }
}

/// What survives a storage process: its newest complete checkpoint, and what it has received since.
#[derive(Debug, Default)]
pub(super) struct StorageDisk {
    checkpoint: Option<Checkpoint>,
    received: Vec<Checkpoint>,
    payloads: MemoryFiles,
    /// What it had was of no use any more.
    outdated: bool,
    /// Up to where it has told others that it needs no votes: it is durable there, or has left the ring without any need.
    told: Ts,
    /// It has not joined since it has lost the last one.
    is_another: bool,
}

struct ScanHost {
    scan: Scan,
    commands: VecDeque<ShardCommand>,
    scheduled: bool,
    effects_us: u64,
}

/// A storage process's life.
pub(super) struct StorageHost {
    node: Node,
    pub(super) payloads: Payloads,
    scans: Vec<ScanHost>,
    /// Rows of checkpoints that are being written.
    unfinished: BTreeMap<Ts, Vec<CheckpointRows>>,
    /// When chunks that were to be read last come.
    loaded_us: u64,
    /// What has all its rows, and is to be durable one after the other.
    writing: VecDeque<Written>,
    /// Where it, or the life whose checkpoint it has, joined without what was before.
    began: Ts,
}

impl StorageHost {
    /// How far it is.
    pub(super) fn progress(&self) -> crate::storage::Progress {
        self.node.progress()
    }

    /// The ranges whose votes are missing about writes that have been executed here.
    pub(super) fn missing_votes(&self) -> impl Iterator<Item = (Ts, KeyRange)> {
        self.node.core().missing_votes()
    }

    /// What a super process hears of it.
    pub(super) fn heartbeat(&self) -> Heartbeat {
        let crate::storage::Progress { logged, staged, checkpointing, watermarks, .. } = self.progress();
        Heartbeat { logged, staged, used: watermarks.memory, checkpointing, ..Heartbeat::default() }
    }

    fn memory(&self) -> u64 {
        self.scans.iter().map(|host| host.scan.memory()).sum()
    }
}

/// The rows `(k, n)` of a batch of such columns.
pub(super) fn rows_of(batch: &RecordBatch) -> Vec<(i64, i32)> {
    let (keys, numbers) =
        (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int32Type>());
    keys.values().iter().copied().zip(numbers.values().iter().copied()).collect()
}

/// The rows of a table that are read at a time of a shard.
fn all_rows(shard: &mut Shard, table: TableId, time: Ts, ranges: &[KeyRange]) -> Vec<(i64, i32)> {
    let output = ReadOutput::Rows { projection: both(), top: None };
    let kind = OperationKind::Read(Read { predicate: Vec::new(), output });
    shard.submit(OrderedOperation::new(
        time,
        Arc::new(Operation { table, context: Default::default(), kind }),
        ranges.to_vec(),
    ));
    let mut effects = Vec::new();
    while shard.step(&mut effects) == Progress::Busy {}
    let batches = effects.iter().filter_map(|effect| match effect {
        ShardEffect::Rows { batch, .. } => Some(batch),
        _ => None,
    });
    batches.flat_map(rows_of).collect()
}

impl World {
    pub(super) fn start_storage(&mut self, id: ProcessId) {
        let shards = 1 + (id.number + 2) % 3;
        let disk = self.storage_disks.entry(id).or_default();
        let checkpoint = disk.checkpoint.clone();
        let outdated = std::mem::take(&mut disk.outdated);
        let joins = checkpoint.is_none() && (outdated || !self.config.contains(id));
        let held = match &checkpoint {
            Some(checkpoint) => checkpoint.recovered.parts(),
            None if joins => Vec::new(),
            None => self.config.held(id),
        };
        let mut scans: Vec<Shard> = (0..shards)
            .map(|index| Shard::new(index, shards, held.clone(), few_rows_a_segment(id)))
            .collect();
        let began = checkpoint.as_ref().map_or(Ts::ZERO, |checkpoint| checkpoint.began);
        let mut recovered = match checkpoint {
            Some(checkpoint) => {
                checkpoint.load(&mut scans);
                checkpoint.recovered
            }
            None => {
                let config = joins.then(|| Arc::new(self.config.without(id)));
                Recovered { config, ..Recovered::default() }
            }
        };
        let disk = self.storage_disks.entry(id).or_default();
        disk.received.retain(|received| !joins && received.recovered.ts > recovered.ts);
        recovered.kept = disk.received.iter().map(|received| received.recovered.as_kept()).collect();
        let incarnation = self.incarnation(id);
        let core_options = CoreOptions {
            id,
            incarnation,
            address: None,
            config: self.config.clone(),
            shards: scans.len(),
            running: 16,
            between: 8,
        };
        // Some keep all rows that RETURNING gives until they are fetched.
        let at_once = if id.number.is_multiple_of(3) { 1 << 20 } else { 0 };
        let core = Core::new(core_options, recovered).with_returned_at_once(at_once);
        let routers = self.of_kind(ProcessKind::Router);
        let mut node = Node::new(
            Life { id, incarnation, directory: self.lives[&id].directory },
            None,
            scans.len(),
            routers,
            core,
            joins,
        )
        .with_disk_patience(DISK_PATIENCE_MS);
        let outputs = node.begin();
        let scans = scans
            .into_iter()
            .map(|shard| ScanHost {
                scan: Scan::new(shard),
                commands: VecDeque::new(),
                scheduled: false,
                effects_us: 0,
            })
            .collect();
        let (unfinished, writing) = (BTreeMap::new(), VecDeque::new());
        let payloads =
            Payloads::new(self.storage_disks.get(&id).map(|disk| disk.payloads.clone()).unwrap_or_default());
        self.storage
            .insert(id, StorageHost { node, payloads, scans, unfinished, writing, began, loaded_us: 0 });
        self.storage_outputs(id, outputs).expect("who begins aborts no write");
    }

    /// A checkpoint that was complete may be durable, though nobody has heard of it.
    pub(super) fn crash_storage(&mut self, id: ProcessId) {
        for processes in self.committed.values_mut() {
            processes.remove(&id);
        }
        let Some(StorageHost { writing, payloads, .. }) = self.storage.remove(&id) else { return };
        if let Some(random) = &mut self.staging {
            self.storage_disks.entry(id).or_default().payloads = payloads.crash(random);
        }
        for written in writing {
            if !self.random.one_in(3) {
                return;
            }
            self.storage_disks.entry(id).or_default().keep(written);
        }
    }

    /// The directory of a process that is down is lost, with staged rows that nobody else may have: it can receive again what it
    /// was receiving, and the log has what has come meanwhile, but not these.
    pub(super) fn lose_disk(&mut self, id: ProcessId) {
        self.forget_lives(id);
        let another = StorageDisk { is_another: true, ..StorageDisk::default() };
        if let Some(lost) = self.storage_disks.insert(id, another) {
            self.damaged.extend(lost.payloads.parts());
        }
    }

    /// Whether a process has not joined since it has lost its directory.
    pub(super) fn lacks_directory(&self) -> bool {
        self.storage_disks.values().any(|disk| disk.is_another)
    }

    /// Votes are kept as long as somebody may ask for them, by those who have had the write and everything since.
    pub(super) fn check_votes(
        &self,
        from: ProcessId,
        to: ProcessId,
        missing: &MissingVotes,
    ) -> Result<(), String> {
        let (Some(asking), Some(asked)) = (self.storage.get(&from), self.storage.get(&to)) else {
            return Ok(());
        };
        let (asking, began, asked) = (asking.node.core(), asked.began, asked.node.core());
        let durable = asked.watermarks(0).durable;
        let told = self.storage_disks.get(&from).map_or(Ts::ZERO, |disk| disk.told);
        let later = self.replay.configs_since(asking.frontier());
        let is_cut_off = later.iter().any(|(_, config)| config.is_suspected(from));
        let is_forgotten = |ts: &&Ts| {
            let was_durable = (began..=durable).contains(*ts) && self.replay.is_destination(to, **ts);
            **ts > told && asking.needs_votes(**ts) && was_durable && !asked.keeps_votes(**ts)
        };
        match missing.votes.iter().map(|(ts, _)| ts).find(is_forgotten) {
            // Who has lost its place may still ask, until it begins again without data; so may a life behind one that has
            // found another, until it hears that it had been suspected.
            Some(ts) if self.replay.config().keepers_of_log().any(|keeper| keeper == from) && !is_cut_off => {
                Err(format!("{to} has forgotten the votes about the write at {ts} that {from} needs"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn storage_input(&mut self, id: ProcessId, input: Input) -> Result<(), String> {
        let now_ms = self.clock_ms(id);
        let Some(host) = self.storage.get_mut(&id) else { return Ok(()) };
        let deliveries = match &input {
            Input::Received { wire: Wire::Deliver { deliveries, .. }, .. } => Some(deliveries.clone()),
            _ => None,
        };
        // A life that joins begins with the present catalog.
        let joined = match &input {
            Input::Received { wire: Wire::State { ts, catalog: Some(_), .. }, .. } => Some(*ts),
            _ => None,
        };
        host.node.clock(now_ms);
        let (before, memory) = (host.node.frontier(), host.memory());
        let outputs = host.node.handle(input, memory);
        let (after, stopped) = (host.node.frontier(), host.node.stopped().map(str::to_string));
        let (outdated, outlived) = (host.node.is_outdated(), host.node.outlived());
        if joined == Some(after) {
            host.began = Ts(after.0 + 1);
            if let Some(disk) = self.storage_disks.get_mut(&id) {
                disk.is_another = false;
            }
            // Who begins without data has given up what it had committed.
            let core = host.node.core();
            for (_, processes) in self.committed.iter_mut().filter(|(ts, _)| !core.keeps_votes(**ts)) {
                processes.remove(&id);
            }
        }
        if let Some(deliveries) = deliveries.filter(|_| after > before) {
            self.replay.delivered(id, before, after, &deliveries)?;
        }
        self.storage_outputs(id, outputs)?;
        if let Some(reason) = stopped {
            self.storage_stopped(id, &reason, outdated, outlived)?;
        }
        Ok(())
    }

    /// A storage process has stopped itself: because it is suspected, what it has is outdated, the copies are gone that it was to
    /// receive, or its own, which nobody else has.
    fn storage_stopped(
        &mut self,
        id: ProcessId,
        reason: &str,
        outdated: bool,
        outlived: Option<Incarnation>,
    ) -> Result<(), String> {
        self.note([7, 0], || format!("{id} stops: {reason}"));
        let config = self.replay.config();
        let incarnation = self.incarnation(id);
        let is_live = config.is_active(id) && !config.is_suspected(id);
        let is_damaged = reason.starts_with("no holder has an undamaged copy") && !self.damaged.is_empty();
        // Somebody may look for what it has lost for a while, or those who wait have received it.
        let must_not_join = reason.contains("cannot join without data");
        let has_lost = reason.starts_with("no holder remains")
            || is_damaged
            || self.has_diverged(reason)
            || must_not_join && self.random.one_in(2);
        // What a standby is to receive may be behind what is left of the log when it hears of it.
        let is_another =
            outlived.is_some() && self.storage_disks.get(&id).is_some_and(|disk| disk.is_another);
        let is_receiving = config.receives_since(id).is_some();
        let may_begin_anew = outdated && (!is_live || is_receiving || is_another) || must_not_join;
        // Who has said that it has received something has it.
        let has_received = is_live && reason.starts_with("no holder remains") && !config.is_receiving(id);
        if !(self.replay.is_fenced(id, incarnation) || may_begin_anew || has_lost) || has_received {
            return Err(format!("{id} stops: {reason}"));
        }
        self.crash(id);
        if outdated && let Some(disk) = self.storage_disks.get_mut(&id) {
            (disk.checkpoint, disk.outdated) = (None, true);
            disk.received.clear();
        }
        if let Some(newest) = outlived {
            self.count_on(id, newest);
        }
        if has_lost {
            // It cannot go on, so what it alone has is lost, too.
            let is_sole = self.replay.config().solely_held(id).is_some();
            let incarnation = if is_sole { Incarnation::MAX } else { incarnation };
            self.configure(Configuration::Membership(Membership::Suspect { process: id, incarnation }))?;
        }
        let is_gone = self.replay.is_fenced(id, ALL_LIVES);
        if let Some(life) = self.lives.get_mut(&id).filter(|_| is_gone) {
            life.gone = true;
        }
        let after_us = self.random.within(10_000..2_000_000);
        self.schedule(after_us, Item::Restart(id));
        Ok(())
    }

    /// Whether a process finds others voting differently than their earlier lives had, which executed a write of which a
    /// vote has been lost since: nobody knows any more what those lives had done.
    fn has_diverged(&self, reason: &str) -> bool {
        let write = reason.rsplit_once("voted differently about the write at ").map(|(_, ts)| ts.parse());
        matches!(write, Some(Ok(ts)) if self.replay.has_lost_vote_before(Ts(ts)))
    }

    fn storage_outputs(&mut self, id: ProcessId, outputs: Vec<Output>) -> Result<(), String> {
        for output in outputs {
            match output {
                Output::Send(to, wire) => {
                    if let (Wire::Durable { ts, .. }, Some(disk)) = (&wire, self.storage_disks.get_mut(&id)) {
                        disk.told = disk.told.max(*ts);
                    }
                    if let Wire::Answers(answers) = &wire {
                        let is_late = |answer: &&Answer| self.late_reads.contains(&(id, answer.id));
                        if let Some(late) = answers.iter().find(is_late) {
                            return Err(format!(
                                "{id} is suspected, and answers the basic read {:?}",
                                late.id
                            ));
                        }
                    }
                    self.send(id, to, wire);
                }
                Output::Shard(shard, command) => {
                    match &command {
                        ShardCommand::Decide(time, Decision::Commit) => {
                            let ts = global(*time);
                            self.committed.entry(ts).or_default().insert(id);
                            self.check_commit(ts)?;
                        }
                        ShardCommand::Decide(time, Decision::Abort) => {
                            self.aborted.insert(global(*time));
                            self.follow_aborts()?;
                        }
                        _ => {}
                    }
                    if let Some(host) = self.storage.get_mut(&id) {
                        host.scans[shard].commands.push_back(command);
                        self.wake(id, shard);
                    }
                }
                Output::Payload(command) => self.tell_payloads(id, command),
                Output::VoteLost(ts, range) => {
                    self.note([8, ts.0], || format!("{id}: the vote of {range} about {ts} is lost"));
                    self.replay.abort(ts, &self.statements)?;
                    self.check_commit(ts)?;
                    self.follow_aborts()?;
                }
                Output::Checkpoint(command) => self.write_checkpoint(id, command),
            }
        }
        Ok(())
    }

    /// Whoever has failed may have voted against a write because of an earlier one that has no effect, as another vote about that
    /// is lost. What it voted counts.
    fn follow_aborts(&mut self) -> Result<(), String> {
        let voted_down = |replay: &Replay, ts: Ts| {
            replay.has_lost_vote_before(ts)
                && matches!(replay.outcome(ts), Some(Outcome::Written(..)))
                && replay.message(ts).is_some_and(|message| replay.was_dead(&message.ranges))
        };
        while let Some(ts) = self.aborted.iter().find(|ts| voted_down(&self.replay, **ts)).copied() {
            self.replay.abort(ts, &self.statements)?;
            self.voted_down.insert(ts);
            self.check_commit(ts)?;
        }
        Ok(())
    }

    /// Nobody who is waited for has committed a write that others have aborted because of a lost vote.
    ///
    /// Who has voted against one in an earlier life does not come to that vote again when an earlier write has lost one since,
    /// and commits what others have aborted. They find out that it votes differently, and one of them has to be given up.
    fn check_commit(&mut self, ts: Ts) -> Result<(), String> {
        if self.replay.outcome(ts) != Some(&Outcome::VoteLost) {
            return Ok(());
        }
        let committed = self.committed.get(&ts).into_iter().flatten();
        match committed.copied().find(|process| self.replay.config().is_awaited(*process)) {
            Some(process) if self.voted_down.contains(&ts) => {
                self.committed.entry(ts).or_default().remove(&process);
                let reason = format!("its earlier life voted differently about the write at {ts}");
                self.storage_stopped(process, &reason, false, None)
            }
            Some(process) => {
                Err(format!("{process} has committed the write at {ts}, of which a vote is lost"))
            }
            None => Ok(()),
        }
    }

    fn wake(&mut self, id: ProcessId, shard: usize) {
        let delay_us = self.random.within(20..800);
        let Some(scan) = self.storage.get_mut(&id).map(|host| &mut host.scans[shard]) else { return };
        if !scan.scheduled {
            scan.scheduled = true;
            self.schedule(delay_us, Item::Scan { storage: id, shard });
        }
    }

    /// A scan thread does a step.
    pub(super) fn scan(&mut self, id: ProcessId, shard: usize) -> Result<(), String> {
        let take = 1 + self.random.below(4) as usize;
        let delay_us = self.random.within(20..1_000);
        let Some(host) = self.storage.get_mut(&id) else { return Ok(()) };
        let scan = &mut host.scans[shard];
        scan.scheduled = false;
        let mut effects: Vec<ShardEffect> = Vec::new();
        for command in scan.commands.drain(..take.min(scan.commands.len())) {
            scan.scan.tell(command, &mut effects);
        }
        let busy = scan.scan.step(&mut effects) == Progress::Busy || !scan.commands.is_empty();
        if !effects.is_empty() {
            scan.effects_us = (scan.effects_us + 1).max(self.now_us + delay_us);
            let at_us = scan.effects_us;
            self.schedule_at(at_us, Item::Storage { to: id, input: Input::Shard((shard, effects)) });
        }
        if busy {
            self.wake(id, shard);
        }
        Ok(())
    }

    fn write_checkpoint(&mut self, id: ProcessId, command: CheckpointCommand) {
        let delay_us = self.random.within(500..100_000) + self.disk_us;
        let Some(host) = self.storage.get_mut(&id) else { return };
        match command {
            CheckpointCommand::Rows { ts, table, until, range, block } => {
                let rows = CheckpointRows { table, until, range, block };
                host.unfinished.entry(ts).or_default().push(rows);
                let input = Input::Checkpoint(CheckpointOutcome::Took);
                self.schedule(delay_us / 4, Item::Storage { to: id, input });
            }
            CheckpointCommand::Forget { ts, range: None } => {
                host.unfinished.remove(&ts);
            }
            CheckpointCommand::Forget { ts, range: Some(range) } => {
                if let Some(rows) = host.unfinished.get_mut(&ts) {
                    rows.retain(|rows| rows.until.is_some() || rows.range != range);
                }
            }
            CheckpointCommand::End(recovered) => {
                let rows = host.unfinished.remove(&recovered.ts).unwrap_or_default();
                let checkpoint = Checkpoint { recovered: *recovered, began: host.began, rows };
                host.writing.push_back(Written::Checkpoint(checkpoint));
                self.schedule(delay_us, Item::CheckpointWritten(id));
            }
            CheckpointCommand::EndParts(parts) => {
                let rows = host.unfinished.remove(&parts.ts).unwrap_or_default();
                let received = Checkpoint { recovered: *parts, began: host.began, rows };
                host.writing.push_back(Written::Received(received));
                self.schedule(delay_us, Item::CheckpointWritten(id));
            }
            CheckpointCommand::Load { part, attempt, chunks } => {
                // In the order in which they are asked for.
                host.loaded_us = (host.loaded_us + 1).max(self.now_us + delay_us);
                let delay_us = host.loaded_us - self.now_us;
                let all = self.storage_disks.get(&id).map_or_else(Vec::new, |disk| disk.chunks(part));
                let wanted = all.into_iter().filter(|chunk| chunks.contains(&chunk.number)).collect();
                let loaded = CheckpointOutcome::Loaded { part, attempt, chunks: Ok(wanted) };
                self.schedule(delay_us, Item::Storage { to: id, input: Input::Checkpoint(loaded) });
            }
        }
    }

    /// A checkpoint or what has been received is durable, or could not be written.
    pub(super) fn checkpoint_written(&mut self, id: ProcessId) -> Result<(), String> {
        let fails = (self.random.one_in(30) || self.full_disk == Some(id)) && self.phase == Phase::Turmoil;
        let Some(written) = self.storage.get_mut(&id).and_then(|host| host.writing.pop_front()) else {
            return Ok(());
        };
        let ended = if fails { Err("no space left on device".to_string()) } else { Ok(()) };
        let outcome = match &written {
            Written::Checkpoint(checkpoint) => CheckpointOutcome::Ended(checkpoint.recovered.ts, ended),
            Written::Received(received) => CheckpointOutcome::PartsEnded(received.recovered.ts, ended),
        };
        if !fails {
            match &written {
                Written::Checkpoint(checkpoint) => self.check_checkpoint(id, checkpoint)?,
                Written::Received(received) => self.check_rows(id, received, &received.recovered.held)?,
            }
            self.report.checkpoints += 1;
            self.storage_disks.entry(id).or_default().keep(written);
        }
        self.storage_input(id, Input::Checkpoint(outcome))
    }

    /// A checkpoint has the rows that the replay has at its `Ts`, in the ranges that the process holds.
    fn check_checkpoint(&self, id: ProcessId, checkpoint: &Checkpoint) -> Result<(), String> {
        let ts = checkpoint.recovered.ts;
        let held = checkpoint.recovered.config.as_ref().map_or(Vec::new(), |config| held_by(config, id));
        if held.is_empty() {
            // Who has begun without data may have rows of an earlier life, which do not count.
            return Ok(());
        }
        let behind = self.replay.configs_since(ts).get(1);
        if checkpoint.recovered.held.is_empty()
            && behind.is_some_and(|(_, config)| config.receives_everything(id))
        {
            // It has begun without data, and is given a place, or another one, by the next message.
            return Ok(());
        }
        self.check_rows(id, checkpoint, &held)
    }

    /// It has the rows that the replay has at its `Ts` in these ranges.
    fn check_rows(&self, id: ProcessId, checkpoint: &Checkpoint, held: &[KeyRange]) -> Result<(), String> {
        let ts = checkpoint.recovered.ts;
        let mut shard = [Shard::new(0, 1, checkpoint.recovered.held.clone(), few_rows_a_segment(id))];
        checkpoint.load(&mut shard);
        let [mut shard] = shard;
        for (number, table) in (1..).zip(checkpoint.recovered.catalog.tables()) {
            let position = |key: i64| table.partitioning.position(&[carousel_engine::Value::Int8(key)]);
            let mut wanted = self.replay.rows(table.id, &Filter::All, Ts(ts.0 + 1));
            wanted.retain(|(key, _)| held.iter().any(|range| range.contains(position(*key))));
            let time = Ts(local(ts).0 + number);
            let mut rows = all_rows(&mut shard, table.id, time, &checkpoint.recovered.held);
            rows.sort_unstable();
            if rows != wanted {
                return Err(format!(
                    "{id}: checkpoint {ts} of table {} has {rows:?} instead of {wanted:?}",
                    table.name
                ));
            }
        }
        Ok(())
    }

    /// Whether every storage process that lives is durable up to the last checkpoint, and has executed everything.
    pub(super) fn is_checkpointed(&self) -> bool {
        let last = self.last_checkpoint();
        let config = self.replay.config();
        config.live_storage().all(|id| {
            self.storage.get(&id).is_some_and(|host| {
                if host.payloads.keeps_any() {
                    return false;
                }
                let marks = host.node.progress().watermarks;
                last.is_some_and(|last| marks.durable >= last) && marks.executed == self.replay.ts()
            })
        })
    }

    fn last_checkpoint(&self) -> Option<Ts> {
        self.report.last_checkpoint
    }

    /// The config that storage processes begin with.
    pub(super) fn first_config(&self) -> Arc<crate::config::Config> {
        self.config.clone()
    }
}
