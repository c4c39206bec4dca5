//! Staged payloads of the simulated cluster: [`crate::payload`] over files in memory, and users who stage their rows
//! chunk by chunk before they ask for them to be inserted ([`crate::client::staging`]).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::Arc,
};

use bytes::Bytes;
use carousel_engine::{
    TableSchema, Ts,
    operation::{PayloadId, RowBatch},
    position::KeyRange,
};

use super::{
    clients::What,
    random::Random,
    statement::{Statement, batch},
    world::{Item, Phase, World},
};
use crate::{
    client::{Staging, chunk_of, rows_within},
    message::{ProcessId, ReadIsolation, StagedPart, StagedPayload},
    payload::{ChunkKey, Files, Header, PayloadStore},
    storage::{
        node::Input,
        payloads::{PayloadCommand, obey},
    },
    wire::Wire,
};

/// Files on a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryFiles(BTreeMap<ChunkKey, Bytes>);

impl MemoryFiles {
    /// The parts of payloads that some of the files are of.
    pub(super) fn parts(&self) -> impl Iterator<Item = (PayloadId, KeyRange)> {
        self.0.keys().map(|(payload, range, _)| (*payload, *range))
    }
}

impl Files for MemoryFiles {
    fn list(&self, _: &dyn Fn()) -> io::Result<BTreeMap<PayloadId, Vec<Header>>> {
        let mut payloads: BTreeMap<PayloadId, Vec<Header>> = BTreeMap::new();
        for ((payload, ..), file) in &self.0 {
            payloads.entry(*payload).or_default().extend(file.first_chunk());
        }
        Ok(payloads)
    }

    fn read(&self, key: ChunkKey) -> io::Result<Option<Bytes>> {
        Ok(self.0.get(&key).cloned())
    }

    fn write(&mut self, key: ChunkKey, pieces: &[&[u8]]) -> io::Result<()> {
        self.0.insert(key, pieces.concat().into());
        Ok(())
    }

    fn sync(&mut self, _: &BTreeSet<PayloadId>) -> io::Result<()> {
        Ok(())
    }

    fn remove_some(&mut self, payload: PayloadId) -> io::Result<bool> {
        let first = self.0.keys().find(|(of, ..)| *of == payload).copied();
        Ok(first.is_some_and(|first| self.0.remove(&first).is_some()))
    }
}

/// A storage process's payload store, and what it has still to do.
pub(super) struct Payloads {
    store: PayloadStore<MemoryFiles>,
    commands: VecDeque<PayloadCommand>,
    last_us: u64,
}

impl Payloads {
    pub(super) fn new(files: MemoryFiles) -> Payloads {
        let store = PayloadStore::over(files, &|| ()).expect("files in memory can be read");
        Payloads { store, commands: VecDeque::new(), last_us: 0 }
    }

    /// What a crash leaves: perhaps also what was being written.
    pub(super) fn crash(mut self, random: &mut Random) -> MemoryFiles {
        if let Some(command @ PayloadCommand::Stage(..)) = self.commands.pop_front()
            && random.one_in(2)
        {
            obey(&mut self.store, command);
        }
        self.store.into_files()
    }

    fn has(&self, key: ChunkKey) -> bool {
        self.store.files().read(key).is_ok_and(|file| file.is_some())
    }

    /// A file turns out to be damaged, if it is there.
    fn damage(&mut self, key: ChunkKey) -> bool {
        let Some(file) = self.store.files_mut().0.get_mut(&key) else { return false };
        let mut bytes = file.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        *file = bytes.into();
        true
    }

    /// Whether some payload is kept that a message has named.
    pub(super) fn keeps_any(&self) -> bool {
        self.store.ordered() > 0
    }
}

/// An INSERT whose rows are being staged.
#[derive(Debug)]
pub(super) struct Stage {
    number: usize,
    table: Arc<TableSchema>,
    payload: StagedPayload,
    /// Chunks without all their receipts.
    waiting: usize,
}

/// What a client stages: chunks on their way, by the number of the payload, and for what.
#[derive(Debug)]
pub(super) struct Stages {
    staging: Staging<u64>,
    open: BTreeMap<u64, Stage>,
    last: u64,
}

impl Stages {
    pub(super) fn new() -> Stages {
        Stages { staging: Staging::new(), open: BTreeMap::new(), last: 0 }
    }

    /// How many INSERTs wait for receipts.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

impl World {
    /// Whether an INSERT of this client is to be staged.
    pub(super) fn stages_next(&mut self) -> bool {
        self.staging.as_mut().is_some_and(|random| random.one_in(3))
    }

    /// A user stages the rows of an INSERT.
    pub(super) fn stage(
        &mut self,
        id: ProcessId,
        statement: Statement,
        table: Arc<TableSchema>,
    ) -> Result<(), String> {
        let (Statement::Insert { rows, .. }, Some(random)) = (&statement, &mut self.staging) else {
            return Ok(());
        };
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        self.report.operations += 1;
        let view = host.view();
        let stages = &mut host.stages;
        stages.last += 1;
        let incarnation = self.lives[&id].number;
        let payload = PayloadId { process: id.number.into(), incarnation, sequence: stages.last };
        // Some are too late.
        let latest = Ts(view.frontier.0 + random.within(5..400));
        let rows = batch(&table, rows);
        let (mut parts, mut chunks) = (Vec::new(), Vec::new());
        for range in view.config.overlapping(&[KeyRange::FULL]) {
            let holders = view.config.live_holders(range);
            let Some(part) = rows_within(&rows, &range).map_err(|error| error.to_string())? else { continue };
            if holders.is_empty() {
                // The statement fails at once.
                return Ok(());
            }
            let mut checksums = Vec::new();
            let size = random.within(1..4) as usize;
            for first in (0..part.positions.len()).step_by(size) {
                let end = part.positions.len().min(first + size);
                let some = RowBatch {
                    rows: part.rows.slice(first, end - first),
                    positions: part.positions[first..end].to_vec(),
                    ordinals: part.ordinals[first..end].to_vec(),
                };
                let chunk = chunk_of(payload, range, checksums.len() as u32, &some, latest)
                    .map_err(|error| error.to_string())?;
                checksums.push(chunk.checksum);
                chunks.push((chunk, holders.clone()));
            }
            parts.push(StagedPart { range, holders, checksums });
        }
        let number = self.statements.len();
        let sequence = stages.last;
        let config_version = view.config.version();
        let payload = StagedPayload { id: payload, config_version, latest, parts };
        stages.open.insert(sequence, Stage { number, table, payload, waiting: chunks.len() });
        let wires: Vec<_> = chunks
            .into_iter()
            .flat_map(|(chunk, holders)| stages.staging.send(chunk, holders, &view.config, sequence))
            .flatten()
            .collect();
        self.note([19, sequence], || format!("{id} stages {sequence}: {statement:?}"));
        self.statements.push(statement);
        wires.into_iter().for_each(|(to, wire)| self.send(id, to, wire));
        Ok(())
    }

    /// A holder says what has become of a chunk.
    pub(super) fn staged(&mut self, id: ProcessId, from: ProcessId, wire: Wire) -> Result<(), String> {
        let Wire::Staged { payload, range, chunk, outcome } = wire else { return Ok(()) };
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        match host.stages.staging.receipt(from, (payload, range, chunk), outcome) {
            Some((sequence, Ok(()))) => self.chunk_is_staged(id, sequence),
            Some((sequence, Err(_))) => {
                self.abandon(id, sequence);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A client's config has changed: who is suspected gives no receipts.
    pub(super) fn restage(&mut self, id: ProcessId) -> Result<(), String> {
        let Some(host) = self.clients.get_mut(&id).filter(|host| host.stages.len() > 0) else {
            return Ok(());
        };
        let config = host.config();
        for sequence in host.stages.staging.reconfigured(&config) {
            self.chunk_is_staged(id, sequence)?;
        }
        Ok(())
    }

    /// Time passes for what a client stages. Some users lose their patience.
    pub(super) fn tick_stages(&mut self, id: ProcessId, now_ms: u64) {
        let Some(host) = self.clients.get_mut(&id) else { return };
        for (to, wire) in host.stages.staging.tick(now_ms) {
            self.send(id, to, wire);
        }
        let open: Vec<u64> = self.clients[&id].stages.open.keys().copied().collect();
        let Some(random) = &mut self.staging else { return };
        let given_up: Vec<u64> = open.into_iter().filter(|_| random.one_in(100)).collect();
        given_up.into_iter().for_each(|sequence| self.abandon(id, sequence));
    }

    fn abandon(&mut self, id: ProcessId, sequence: u64) {
        let Some(host) = self.clients.get_mut(&id) else { return };
        let Some(stage) = host.stages.open.remove(&sequence) else { return };
        let payload = stage.payload.id;
        host.stages.staging.abandon(payload);
        for holder in stage.payload.holders() {
            self.send(id, holder, Wire::Abandon(payload));
        }
    }

    /// When all chunks are on the disks of their holders, the rows can be inserted.
    fn chunk_is_staged(&mut self, id: ProcessId, sequence: u64) -> Result<(), String> {
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        let Some(stage) = host.stages.open.get_mut(&sequence) else { return Ok(()) };
        stage.waiting -= 1;
        if stage.waiting > 0 {
            return Ok(());
        }
        let Some(Stage { number, table, payload, .. }) = host.stages.open.remove(&sequence) else {
            return Ok(());
        };
        self.report.staged += 1;
        let payload = Arc::new(payload);
        let body = self.statements[number].staged_body(number, &table, &payload);
        let (isolation, read_ts) = (ReadIsolation::Sequential, None);
        let what = What::Statement { number, table, isolation, read_ts, staged: Some(payload) };
        self.ask(id, what, body, isolation)
    }

    /// A storage process's payload store is to do something.
    pub(super) fn tell_payloads(&mut self, id: ProcessId, command: PayloadCommand) {
        let Some(random) = &mut self.staging else { return };
        let delay_us = match &command {
            PayloadCommand::Stage(..) | PayloadCommand::Adopt { .. } => {
                random.within(200..20_000) + self.disk_us
            }
            _ => random.within(5..500),
        };
        let Some(host) = self.storage.get_mut(&id) else { return };
        host.payloads.commands.push_back(command);
        host.payloads.last_us = (host.payloads.last_us + 1).max(self.now_us + delay_us);
        let at_us = host.payloads.last_us;
        self.schedule_at(at_us, Item::Payloads(id));
    }

    /// It does the next thing. Now and then a file turns out to be damaged, if somebody else has a copy.
    pub(super) fn obey_payloads(&mut self, id: ProcessId) -> Result<(), String> {
        let Some(command) = self.storage.get_mut(&id).and_then(|host| host.payloads.commands.pop_front())
        else {
            return Ok(());
        };
        if let PayloadCommand::Load(wanted) = &command {
            let part = &wanted.payload.parts[wanted.part];
            let key = (wanted.payload.id, part.range, wanted.number as u32);
            let has = |process: &&ProcessId| {
                **process != id && self.storage.get(*process).is_some_and(|host| host.payloads.has(key))
            };
            let may_damage = self.phase == Phase::Turmoil && part.holders.iter().any(|holder| has(&holder));
            if may_damage
                && self.staging.as_mut().is_some_and(|random| random.one_in(10))
                && self.damaged.insert((key.0, key.1))
                && let Some(host) = self.storage.get_mut(&id)
            {
                self.report.damaged += u64::from(host.payloads.damage(key));
            }
        }
        let Some(host) = self.storage.get_mut(&id) else { return Ok(()) };
        let events = obey(&mut host.payloads.store, command);
        while host.payloads.store.remove_some() {}
        for event in events {
            self.storage_input(id, Input::Payload(event))?;
        }
        Ok(())
    }
}
