//! The storage process's shell: a task around the pure core, its scan threads, its payload store and its checkpoints.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc as std_mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use carousel_engine::{
    Ts,
    operation::PayloadId,
    position::KeyRange,
    shard::{Options as ShardOptions, Shard},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{
    checkpointer::{self, CheckpointCommand, CheckpointOutcome},
    core::{ChunkWanted, Core, CoreOptions, Effect, Event, Recovered, local},
    payloads::{self, PayloadCommand, PayloadEvent},
    scan::{ScanThread, ShardCommand, ShardEffects},
};
use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    config::Config,
    link::{RouterLink, log_lost},
    message::{Incarnation, ProcessId, ProcessKind},
    network::{Endpoint, Network},
    outbox::Outbox,
    payload::{PayloadStore, sync_dir},
    wire::{Answer, Watermarks, Wire},
};

/// How often time passes for the core.
const TICK: Duration = Duration::from_millis(100);
/// Batches of effects that may be on their way from the shards.
const EFFECTS_ON_THEIR_WAY: usize = 64;
/// Deliveries that may wait for their turn before no more are taken.
const PENDING: usize = 4096;
/// Operations that may run at a time, unless the options say otherwise.
pub const RUNNING: usize = 4096;

/// What a storage process needs to know.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Identity.
    pub id: ProcessId,
    /// Its directory.
    pub dir: PathBuf,
    /// Placement.
    pub config: Arc<Config>,
    /// All routers.
    pub routers: Vec<ProcessId>,
    /// Scan threads.
    pub threads: usize,
    /// The most bytes that its rows may take; it is what clients admit writes by.
    pub memory_limit: Option<u64>,
    /// Operations that may run at a time.
    pub running: usize,
}

/// Why a storage process does not start.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Its directory cannot be used.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Its checkpoint cannot be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// How far a storage process is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Watermarks and memory.
    pub watermarks: Watermarks,
    /// It has a subscription at the lead router.
    pub subscribed: bool,
    /// A checkpoint waits or is being written.
    pub checkpointing: bool,
    /// Approximate bytes of the messages that have been delivered since the last checkpoint was ordered.
    pub logged: u64,
    /// How many checkpoints could not be written.
    pub failed_checkpoints: u64,
    /// Why it has stopped itself.
    pub stopped: Option<String>,
}

/// A running storage process. Dropping the handle ends it as a crash would.
pub struct StorageHandle {
    id: ProcessId,
    network: Network,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    progress: watch::Receiver<Progress>,
}

impl StorageHandle {
    /// Its identity.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// How far it is, now and later.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Ends it at once, as a crash would, and waits until its threads have let go of its directory.
    pub async fn kill(mut self) {
        self.network.leave(self.id);
        self.stop = None;
        // A task that has panicked has ended, too.
        let _ = (&mut self.task).await;
    }
}

/// A storage process.
pub struct Storage {
    id: ProcessId,
    incarnation: Incarnation,
    memory_limit: Option<u64>,
    core: Core,
    link: RouterLink,
    outbox: Outbox,
    scans: Vec<ScanThread>,
    payloads: std_mpsc::Sender<PayloadCommand>,
    checkpoints: std_mpsc::Sender<CheckpointCommand>,
    /// Parts that are being fetched: for which message, and who has been asked.
    fetching: BTreeMap<(PayloadId, KeyRange), Fetching>,
    horizon: Ts,
    confirmed: Watermarks,
    /// Clients with the memory they have been told of.
    clients: BTreeMap<ProcessId, Option<u64>>,
    /// Clients have been told of this life.
    announced: bool,
    failed_checkpoints: u64,
    stopped: Option<String>,
}

#[derive(Debug)]
struct Fetching {
    ts: Ts,
    /// The chunks of the part that are waited for.
    wanted: Vec<ChunkWanted>,
    /// Other holders that have not said that they lack it.
    candidates: Vec<ProcessId>,
}

impl Storage {
    /// Starts a storage process: recovers its newest checkpoint and subscribes after it.
    ///
    /// # Errors
    /// When the directory cannot be used or the checkpoint is damaged.
    pub async fn start(options: StorageOptions, network: &Network) -> Result<StorageHandle, StorageError> {
        let id = options.id;
        let recovering = options.clone();
        let recovered = tokio::task::spawn_blocking(move || recover(&recovering)).await;
        let (incarnation, recovered, shards, store) = match recovered {
            Ok(recovered) => recovered?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let io = |source| StorageError::Io { path: options.dir.clone(), source };
        let core = Core::new(
            CoreOptions {
                id,
                config: options.config.clone(),
                shards: shards.len(),
                running: options.running.max(1),
            },
            recovered,
        );
        let (effects_in, effects) = mpsc::channel(EFFECTS_ON_THEIR_WAY);
        let mut scans = Vec::new();
        for (index, shard) in shards.into_iter().enumerate() {
            let name = format!("{id} scan {}", index + 1);
            scans.push(ScanThread::start(name, index, shard, effects_in.clone()).map_err(io)?);
        }
        let (payload_events_in, payload_events) = mpsc::unbounded_channel();
        let (payloads, payload_thread) =
            payloads::start(format!("{id} payloads"), store, payload_events_in).map_err(io)?;
        let (outcomes_in, outcomes) = mpsc::unbounded_channel();
        let version = options.config.version();
        let (checkpoints, checkpoint_thread) =
            checkpointer::start(format!("{id} checkpoint"), options.dir.clone(), version, outcomes_in)
                .map_err(io)?;

        let endpoint = network.join(id);
        let (outbox, unreachable) = Outbox::new(endpoint.sender());
        let (stop, stopping) = oneshot::channel();
        let (progress_in, progress) = watch::channel(Progress::default());
        let storage = Storage {
            id,
            incarnation,
            memory_limit: options.memory_limit,
            core,
            link: RouterLink::new(options.routers),
            outbox,
            scans,
            payloads,
            checkpoints,
            fetching: BTreeMap::new(),
            horizon: Ts::ZERO,
            confirmed: Watermarks::default(),
            clients: BTreeMap::new(),
            announced: false,
            failed_checkpoints: 0,
            stopped: None,
        };
        let threads = vec![payload_thread, checkpoint_thread];
        let inputs = Inputs { threads, endpoint, effects, payload_events, outcomes, unreachable, stopping };
        let task = tokio::spawn(storage.run(inputs, progress_in));
        Ok(StorageHandle { id, network: network.clone(), stop: Some(stop), task, progress })
    }

    async fn run(mut self, mut inputs: Inputs, progress: watch::Sender<Progress>) {
        let started = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for (to, wire) in self.core.greetings() {
            self.outbox.send(to, wire);
        }
        self.subscribe();
        while self.stopped.is_none() {
            tokio::select! {
                biased;
                _ = &mut inputs.stopping => break,
                received = receive(&mut inputs.endpoint, is_full(&self.core)) => match received {
                    Some((from, wire)) => self.received(from, wire),
                    None => break,
                },
                Some((shard, effects)) = inputs.effects.recv() => self.handle(Event::Shard { shard, effects }),
                Some(event) = inputs.payload_events.recv() => self.payload_event(event),
                Some((ts, outcome)) = inputs.outcomes.recv() => self.checkpoint_ended(ts, outcome),
                Some(process) = inputs.unreachable.recv() => self.unreachable(process),
                _ = ticks.tick() => self.tick(started.elapsed().as_millis() as u64),
            }
            self.subscribe();
            self.follow_up(&progress);
        }
        if let Some(reason) = &self.stopped {
            tracing::error!(process = %self.id, "storage process stops itself: {reason}");
            self.follow_up(&progress);
        }
        let Inputs { threads, endpoint, effects, .. } = inputs;
        drop((endpoint, effects, self));
        // They end when nobody can tell them anything.
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("a thread of a storage process has panicked");
                }
            }
        });
        let _ = joined.await;
    }

    fn subscribe(&mut self) {
        if self.link.must_subscribe() {
            let after = Some(self.core.frontier());
            let subscribe = Wire::Subscribe { incarnation: self.incarnation, after };
            self.confirmed = Watermarks::default();
            self.outbox.send(self.link.router(), subscribe);
        }
    }

    /// What follows from progress: garbage can be collected, the router and observers hear of it.
    fn follow_up(&mut self, progress: &watch::Sender<Progress>) {
        let horizon = self.core.horizon();
        if horizon > self.horizon {
            self.horizon = horizon;
            for scan in &self.scans {
                scan.tell(ShardCommand::Horizon(horizon));
            }
        }
        let watermarks = self.core.watermarks(self.memory());
        let subscribed = self.link.is_open(self.link.router());
        if subscribed && watermarks != self.confirmed {
            self.confirmed = watermarks;
            self.outbox.send(self.link.router(), Wire::Confirm(watermarks));
        }
        let now = Progress {
            watermarks,
            subscribed,
            checkpointing: self.core.is_checkpointing(),
            logged: self.core.logged(),
            failed_checkpoints: self.failed_checkpoints,
            stopped: self.stopped.clone(),
        };
        progress.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }

    fn memory(&self) -> u64 {
        self.scans.iter().map(ScanThread::memory).sum()
    }

    fn received(&mut self, from: ProcessId, wire: Wire) {
        if let ProcessKind::Client | ProcessKind::Super = from.kind {
            self.clients.entry(from).or_insert(None);
        }
        match wire {
            Wire::State { incarnation, config, clients, .. } if incarnation == self.incarnation => {
                self.subscribed(from, config, &clients);
            }
            Wire::LogLost { incarnation, last } if incarnation == self.incarnation => {
                self.stopped = Some(log_lost(last, self.core.frontier()));
            }
            Wire::SubscribeRefused { incarnation, purged } if incarnation == self.incarnation => {
                self.stopped = Some(format!(
                    "the routers' log begins at {purged}, this replica ends at {}; it must be copied from another",
                    self.core.frontier()
                ));
            }
            Wire::Deliver { incarnation, after, deliveries, frontier }
                if incarnation == self.incarnation
                    && self.link.is_open(from)
                    && after <= self.core.frontier() =>
            {
                self.link.heard(from);
                self.handle(Event::Delivered { deliveries, frontier });
            }
            // Of an earlier subscription. What was ordered will come again; snapshot reads will not.
            Wire::Deliver { deliveries, .. } => {
                for read in deliveries.iter().filter(|delivery| !delivery.message.id.is_ordered()) {
                    let id = read.message.id;
                    self.outbox.send(id.submitter, Wire::ReadsLost(vec![id]));
                }
            }
            Wire::NotLeader { leader } => self.link.not_leader(from, leader),
            Wire::Votes(votes) => self.handle(Event::Votes(votes)),
            Wire::AskVotes(writes) => self.handle(Event::AskVotes { from, writes }),
            Wire::Durable { ts, hashes, reply } => {
                self.handle(Event::PeerDurable { from, ts, hashes, reply })
            }
            Wire::RenewPin(ts) => self.handle(Event::RenewPin(ts)),
            Wire::ReleasePin(ts) => self.handle(Event::ReleasePin(ts)),
            Wire::Cancel(id) => self.handle(Event::Cancel(id)),
            Wire::Hello => self.tell_memory(from),
            Wire::Stage(chunk) => self.tell_payloads(PayloadCommand::Stage(from, chunk)),
            Wire::Abandon(payload) => self.tell_payloads(PayloadCommand::Abandon(payload)),
            Wire::FetchPart { payload, range } => {
                self.tell_payloads(PayloadCommand::Fetch { from, payload, range });
            }
            Wire::Part { payload, range, chunks } => self.part(from, payload, range, chunks),
            // Everything else is for another kind of process or for an earlier life of this one.
            _ => {}
        }
    }

    fn subscribed(&mut self, router: ProcessId, config: Arc<Config>, clients: &[ProcessId]) {
        if !self.link.accepted(router) || self.announced {
            return;
        }
        // Whoever waits for an answer of an earlier life must ask again, before this one answers. Once is enough: a client
        // whose messages have been ordered is among them, and nothing sent to one that is there gets lost.
        for client in clients {
            self.outbox.send(*client, Wire::Restarted(self.incarnation));
            self.clients.entry(*client).or_insert(None);
        }
        self.announced = true;
        self.handle(Event::Config(config));
    }

    fn handle(&mut self, event: Event) {
        let effects = self.core.handle(event);
        let mut answers: Vec<(ProcessId, Vec<Answer>)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Submit { shard, operation } => {
                    self.scans[shard].tell(ShardCommand::Submit(operation))
                }
                Effect::Decide { shard, ts, decision } => {
                    self.scans[shard].tell(ShardCommand::Decide(ts, decision))
                }
                Effect::Supply { shard, ts, rows, last } => {
                    self.scans[shard].tell(ShardCommand::Supply(ts, rows, last));
                }
                Effect::Keep(payload) => self.tell_payloads(PayloadCommand::Keep(payload)),
                Effect::Load(wanted) => self.tell_payloads(PayloadCommand::Load(wanted)),
                Effect::Forget(payload) => self.tell_payloads(PayloadCommand::Remove(payload)),
                Effect::Send(to, wire) => self.outbox.send(to, wire),
                Effect::Answer(to, answer) => match answers.iter_mut().find(|(client, _)| *client == to) {
                    Some((_, answers)) => answers.push(answer),
                    None => answers.push((to, vec![answer])),
                },
                Effect::BeginCheckpoint { ts, catalog, ballots } => {
                    self.tell_checkpoints(CheckpointCommand::Begin { ts, catalog, ballots });
                }
                Effect::CheckpointRows { table, range, batch } => {
                    self.tell_checkpoints(CheckpointCommand::Rows { table, range, batch });
                }
                Effect::EndCheckpoint { hashes, .. } => {
                    self.tell_checkpoints(CheckpointCommand::End { hashes })
                }
                Effect::Stop(reason) => self.stopped = Some(reason),
            }
        }
        // What diverged must not answer.
        if self.stopped.is_none() {
            for (to, answers) in answers {
                self.outbox.send(to, Wire::Answers(answers));
            }
        }
    }

    fn tell_payloads(&mut self, command: PayloadCommand) {
        if self.payloads.send(command).is_err() {
            self.stopped = Some("the payload store has ended".into());
        }
    }

    fn tell_checkpoints(&mut self, command: CheckpointCommand) {
        if self.checkpoints.send(command).is_err() {
            self.stopped = Some("the checkpoint thread has ended".into());
        }
    }

    fn payload_event(&mut self, event: PayloadEvent) {
        match event {
            PayloadEvent::Send(to, wire) => self.outbox.send(to, wire),
            PayloadEvent::Loaded { ts, chunk, rows } => {
                self.fetching.retain(|_, fetching| {
                    fetching.wanted.retain(|wanted| (wanted.ts, wanted.chunk) != (ts, chunk));
                    !fetching.wanted.is_empty()
                });
                self.handle(Event::Loaded { ts, chunk, rows });
            }
            PayloadEvent::Missing(wanted) => {
                let part = &wanted.payload.parts[wanted.part];
                let key = (wanted.payload.id, part.range);
                let (id, ts) = (self.id, wanted.ts);
                let fetching = self.fetching.entry(key).or_insert_with(|| {
                    let candidates = part.holders.iter().copied().filter(|holder| *holder != id).collect();
                    Fetching { ts, wanted: Vec::new(), candidates }
                });
                if fetching.wanted.iter().all(|other| other.chunk != wanted.chunk) {
                    fetching.wanted.push(wanted);
                }
                tracing::warn!(process = %id, %ts, "a staged part is missing or damaged and is fetched from a peer");
                ask_holders(&mut self.outbox, key, fetching, &mut self.stopped);
            }
        }
    }

    fn part(&mut self, from: ProcessId, payload: PayloadId, range: KeyRange, chunks: Option<Vec<Bytes>>) {
        let key = (payload, range);
        let Some(fetching) = self.fetching.get_mut(&key) else { return };
        // Whoever lacks it, or turns out to have sent damaged chunks, is not asked again.
        fetching.candidates.retain(|holder| *holder != from);
        match chunks {
            Some(chunks) => {
                let command = PayloadCommand::Adopt { wanted: fetching.wanted.clone(), chunks };
                self.tell_payloads(command);
            }
            None => ask_holders(&mut self.outbox, key, fetching, &mut self.stopped),
        }
    }

    fn checkpoint_ended(&mut self, ts: Ts, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.handle(Event::CheckpointDone { ts }),
            Err(reason) => {
                self.failed_checkpoints += 1;
                tracing::error!(process = %self.id, %ts, "cannot write a checkpoint: {reason}");
                self.handle(Event::CheckpointFailed { ts });
            }
        }
    }

    fn unreachable(&mut self, process: ProcessId) {
        match process.kind {
            ProcessKind::Router => self.link.unreachable(process),
            // Votes are asked for again, parts too. A client that is gone needs nothing.
            ProcessKind::Storage => {}
            ProcessKind::Client | ProcessKind::Super => {
                self.clients.remove(&process);
            }
        }
    }

    fn tick(&mut self, now_ms: u64) {
        if self.scans.iter().any(ScanThread::has_ended) {
            self.stopped = Some("a scan thread has ended".into());
            return;
        }
        self.link.tick(now_ms, !is_full(&self.core));
        self.handle(Event::Tick(now_ms));
        for (key, fetching) in &mut self.fetching {
            let fetch = Wire::FetchPart { payload: key.0, range: key.1 };
            if let Some(holder) = fetching.candidates.first() {
                self.outbox.send(*holder, fetch);
                // It may not be there: the next time another one is asked.
                fetching.candidates.rotate_left(1);
            }
        }
        let delivered = self.core.watermarks(0).delivered;
        self.tell_payloads(PayloadCommand::Expire(delivered));
        let memory = Some(self.memory());
        let behind: Vec<ProcessId> =
            self.clients.iter().filter(|(_, told)| **told != memory).map(|(client, _)| *client).collect();
        for client in behind {
            self.tell_memory(client);
        }
    }

    fn tell_memory(&mut self, client: ProcessId) {
        let used = self.memory();
        self.clients.insert(client, Some(used));
        let memory = Wire::Memory {
            incarnation: self.incarnation,
            used,
            limit: self.memory_limit,
            logged: self.core.logged(),
            checkpointing: self.core.is_checkpointing(),
        };
        self.outbox.send(client, memory);
    }
}

/// Asks the next holder of a part.
fn ask_holders(
    outbox: &mut Outbox,
    key: (PayloadId, KeyRange),
    fetching: &Fetching,
    stopped: &mut Option<String>,
) {
    match fetching.candidates.first() {
        Some(holder) => outbox.send(*holder, Wire::FetchPart { payload: key.0, range: key.1 }),
        None => {
            *stopped = Some(format!(
                "no holder has an undamaged copy of the payload of the INSERT at {}",
                fetching.ts
            ));
        }
    }
}

/// Whether so many deliveries wait for their turn that no more should be taken.
fn is_full(core: &Core) -> bool {
    core.pending() > PENDING
}

/// The next message; while deliveries wait for their turn, further data stays in the mailbox and holds up the router's
/// stream.
async fn receive(endpoint: &mut Endpoint, full: bool) -> Option<(ProcessId, Wire)> {
    if full { endpoint.recv_control().await } else { endpoint.recv().await }
}

struct Inputs {
    /// They have files open.
    threads: Vec<std::thread::JoinHandle<()>>,
    endpoint: Endpoint,
    effects: mpsc::Receiver<ShardEffects>,
    payload_events: mpsc::UnboundedReceiver<PayloadEvent>,
    outcomes: mpsc::UnboundedReceiver<CheckpointOutcome>,
    unreachable: mpsc::UnboundedReceiver<ProcessId>,
    stopping: oneshot::Receiver<()>,
}

type Parts = (Incarnation, Recovered, Vec<Shard>, PayloadStore);

/// Reads everything back that the directory holds.
fn recover(options: &StorageOptions) -> Result<Parts, StorageError> {
    let dir = &options.dir;
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| StorageError::Io { path, source }
    };
    fs::create_dir_all(dir).map_err(io(dir))?;
    let path = dir.join("incarnation");
    let incarnation = next_incarnation(&path).map_err(io(&path))?;
    let threads = options.threads.max(1) as u32;
    let held = options.config.held(options.id);
    let mut shards: Vec<Shard> =
        (0..threads).map(|index| Shard::new(index, threads, held.clone(), ShardOptions::default())).collect();
    let recovered = match Checkpoint::newest(dir)? {
        None => Recovered::default(),
        Some(checkpoint) => {
            for table in checkpoint.recovered.catalog.tables() {
                for shard in &mut shards {
                    shard.restore_table(table.clone());
                }
            }
            // Rows begin before every operation that is replayed.
            let begin = local(checkpoint.recovered.ts);
            for file in &checkpoint.files {
                checkpoint.read(file, |table, batch| {
                    shards.iter_mut().try_for_each(|shard| {
                        shard.restore(table.id, &batch, begin).map_err(|error| error.message)
                    })
                })?;
            }
            checkpoint.recovered
        }
    };
    let payloads = dir.join("payloads");
    let store = PayloadStore::open(&payloads).map_err(io(&payloads))?;
    Ok((incarnation, recovered, shards, store))
}

/// Counts an incarnation in a file, durably, and returns it.
///
/// # Errors
/// When the file cannot be read or written, or does not hold a number.
pub(crate) fn next_incarnation(path: &Path) -> io::Result<Incarnation> {
    let last: Incarnation = match fs::read_to_string(path) {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("damaged: {e}")))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let next = last + 1;
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    io::Write::write_all(&mut file, format!("{next}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    if let Some(dir) = path.parent() {
        sync_dir(dir)?;
    }
    Ok(next)
}
