//! The storage process's shell: a task around the pure core, its scan threads, its payload store and its checkpoints.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use carousel_engine::{
    TableId, Ts,
    install::Rows,
    shard::{Options as ShardOptions, Shard},
    statistics::TableStatistics,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{
    checkpointer::{self, CheckpointCommand, CheckpointOutcome},
    core::{BETWEEN, Core, CoreOptions, Recovered, local},
    migration::{Arrived, PartId},
    node::{Input, Life, Node, Output},
    payloads::{self, PayloadEvent, Payloads},
    scan::{self, ScanThread, ShardCommand, ShardEffects},
};
use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    clock::Clock,
    config::Config,
    data_dir::{directory_number, next_incarnation, write_number},
    message::{Incarnation, ProcessId},
    metering::{StepMeter, StorageMeter},
    network::{Endpoint, Network, Starting},
    outbox::Outbox,
    payload::PayloadStore,
    wal::{make_directory, read_file, replace_file, sync_directory},
    wire::{Watermarks, Wire},
};

/// In the directory: its checkpoint is of no use, for the routers' log does not reach back to it.
const OUTDATED: &str = "outdated";
/// Another life is waited for that follows a shorter one than this, the longer the more of them there were.
const LONG_LIFE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// In the directory: why it must not go on, as the routers have lost what it had. A later life would begin with a checkpoint from
/// before that, and go on as if nothing had been.
const AHEAD: &str = "ahead";
/// In the directory: the number of its newest life.
const INCARNATION: &str = "incarnation";
/// How often time passes for the core.
const TICK: Duration = Duration::from_millis(100);
/// Batches of effects that may be on their way from the shards.
const EFFECTS_ON_THEIR_WAY: usize = 64;
/// Operations that may run at a time, unless the options say otherwise.
pub const RUNNING: usize = 4096;

/// What a storage process needs to know.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Identity.
    pub id: ProcessId,
    /// Its directory.
    pub dir: PathBuf,
    /// Where it listens, when the first description of the system does not say so.
    pub address: Option<String>,
    /// Placement.
    pub config: Arc<Config>,
    /// All routers.
    pub routers: Vec<ProcessId>,
    /// Scan threads.
    pub threads: usize,
    /// Which of the cores that there are the first scan thread is bound to, the others to the next ones; none is bound when
    /// it is absent, or when there are not enough.
    pub first_core: Option<usize>,
    /// The most bytes that its rows may take; it is what clients admit writes by.
    pub memory_limit: Option<u64>,
    /// Operations that may run at a time.
    pub running: usize,
    /// What checkpoints leave of the disk to the logs of routers on it, in bytes.
    pub reserve_bytes: u64,
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
    /// The routers have lost what an earlier life had.
    #[error("the storage process has stopped itself before, as {0}")]
    Ahead(String),
}

/// How far a storage process is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Watermarks and memory.
    pub watermarks: Watermarks,
    /// It has a subscription at the lead router.
    pub subscribed: bool,
    /// A checkpoint waits or is being written, and not for rows that are still to be received.
    pub checkpointing: bool,
    /// Approximate bytes of the messages that have been delivered since the last checkpoint was ordered.
    pub logged: u64,
    /// Bytes of the staged rows that have been loaded since then.
    pub staged: u64,
    /// How many checkpoints could not be written.
    pub failed_checkpoints: u64,
    /// Parts that it is receiving because of keyspace messages, with how much has come of each.
    pub receiving: Vec<(PartId, Arrived)>,
    /// Why it has stopped itself.
    pub stopped: Option<String>,
    /// That is because it may not join without its data, which nobody else has: others wait for it, and go on.
    pub refused: bool,
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
    dir: PathBuf,
    network: Network,
    node: Node,
    outbox: Outbox,
    scans: Vec<ScanThread>,
    payloads: Payloads,
    checkpoints: mpsc::UnboundedSender<CheckpointCommand>,
}

impl Storage {
    /// Starts a storage process: recovers its newest checkpoint and subscribes after it. One without a place in the
    /// system joins as a standby, also when the routers' log does not reach back to its checkpoint any more.
    ///
    /// # Errors
    /// When the directory cannot be used or the checkpoint is damaged.
    pub async fn start(options: StorageOptions, network: &Network) -> Result<StorageHandle, StorageError> {
        let id = options.id;
        let (mut storage, mut inputs) = Storage::build(&options, network, false).await?;
        let (stop, mut stopping) = oneshot::channel();
        let (progress_in, progress) = watch::channel(Progress::default());
        let registry = network.clone();
        let panicked = progress_in.clone();
        let running = tokio::spawn(async move {
            let mut pause = Duration::ZERO;
            loop {
                let begun = Instant::now();
                let Some(Anew { is_outdated }) = storage.run(inputs, &mut stopping, &progress_in).await
                else {
                    return;
                };
                // What ends one life soon may end the next: its disk takes no mark, say.
                if begun.elapsed() > LONG_LIFE {
                    pause = Duration::ZERO;
                }
                tracing::warn!(process = %id, "storage process begins another life");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = &mut stopping => return,
                }
                pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                (storage, inputs) = match Storage::build(&options, &registry, is_outdated).await {
                    Ok(parts) => parts,
                    Err(error) => {
                        tracing::error!(process = %id, %error, "storage process cannot begin anew");
                        progress_in.send_modify(|progress| progress.stopped = Some(error.to_string()));
                        return;
                    }
                };
            }
        });
        let task = tokio::spawn(async move {
            if running.await.is_err() {
                panicked.send_modify(|progress| progress.stopped = Some("it has panicked".into()));
            }
        });
        Ok(StorageHandle { id, network: network.clone(), stop: Some(stop), task, progress })
    }

    /// Begins a life; without the data that there is, if the last one has found it to be outdated.
    async fn build(
        options: &StorageOptions,
        network: &Network,
        is_outdated: bool,
    ) -> Result<(Storage, Inputs), StorageError> {
        let id = options.id;
        let recovering = options.clone();
        let there = network.clone();
        let recovered = tokio::task::spawn_blocking(move || recover(&recovering, &there, is_outdated)).await;
        let Parts { starting, incarnation, directory, recovered, received, shards, store, joins } =
            match recovered {
                Ok(recovered) => recovered?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            };
        let io = |source| StorageError::Io { path: options.dir.clone(), source };
        let core = Core::new(
            CoreOptions {
                id,
                incarnation,
                address: options.address.clone(),
                config: options.config.clone(),
                shards: shards.len(),
                running: options.running.max(1),
                between: BETWEEN,
            },
            recovered,
        );
        let (effects_in, effects) = mpsc::channel(EFFECTS_ON_THEIR_WAY);
        let cores = options.first_core.and_then(|first| scan::cores(first, shards.len()));
        if let Some(first) = options.first_core.filter(|_| cores.is_none()) {
            tracing::warn!(process = %id, first, threads = shards.len(), "there are no such cores: scan threads run on any");
        }
        let mut scans = Vec::new();
        for (index, shard) in shards.into_iter().enumerate() {
            let name = format!("{id} scan {}", index + 1);
            let core = cores.as_ref().and_then(|cores| cores.get(index)).copied();
            scans.push(ScanThread::start(name, index, shard, effects_in.clone(), core).map_err(io)?);
        }
        let (payload_events_in, payload_events) = mpsc::unbounded_channel();
        let (payloads, payload_thread) =
            payloads::start(format!("{id} payloads"), store, payload_events_in).map_err(io)?;
        let (outcomes_in, outcomes) = mpsc::unbounded_channel();
        let (checkpoints, checkpoint_thread) = checkpointer::start(
            format!("{id} checkpoint"),
            options.dir.clone(),
            options.reserve_bytes,
            received,
            outcomes_in,
        )
        .map_err(io)?;

        let endpoint = network.join(id);
        drop(starting);
        let (outbox, unreachable) = Outbox::new(endpoint.sender());
        let routers = options.routers.clone();
        let life = Life { id, incarnation, directory };
        let node = Node::new(life, options.memory_limit, scans.len(), routers, core, joins);
        let storage = Storage {
            dir: options.dir.clone(),
            network: network.clone(),
            node,
            outbox,
            scans,
            payloads,
            checkpoints,
        };
        let threads = vec![payload_thread, checkpoint_thread];
        Ok((storage, Inputs { threads, endpoint, effects, payload_events, outcomes, unreachable }))
    }

    /// Lives to its end; tells how the next life begins, if there is to be one.
    async fn run(
        mut self,
        mut inputs: Inputs,
        stopping: &mut oneshot::Receiver<()>,
        progress: &watch::Sender<Progress>,
    ) -> Option<Anew> {
        let mut clock = Clock::begin();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut meter, steps) = (StorageMeter::new(self.outbox.id()), StepMeter::new(self.outbox.id()));
        let mut config = self.node.config().clone();
        self.network.learn(&config);
        let mut known = self.network.known_routers();
        known.mark_changed();
        let first = self.node.begin();
        self.execute(first);
        while self.node.stopped().is_none() {
            let input = tokio::select! {
                biased;
                _ = &mut *stopping => break,
                // Time passes, however much is received.
                _ = ticks.tick() => match self.scans.iter().any(ScanThread::has_ended) {
                    true => Input::Stop("a scan thread has ended".into()),
                    false => Input::Tick(clock.now_ms()),
                },
                // Few, and however much is received the disk must not seem to hang.
                Some(outcome) = inputs.outcomes.recv() => Input::Checkpoint(outcome),
                received = receive(&mut inputs.endpoint, self.node.is_full()) => match received {
                    Some((_, Wire::Routers(routers))) => {
                        self.network.learn_routers(&routers);
                        continue;
                    }
                    Some((from, wire)) => Input::Received { from, wire },
                    None => break,
                },
                Ok(()) = known.changed() => Input::Routers(known.borrow_and_update().clone()),
                Some(effects) = inputs.effects.recv() => Input::Shard(effects),
                Some(event) = inputs.payload_events.recv() => Input::Payload(event),
                Some(process) = inputs.unreachable.recv() => Input::Unreachable(process),
            };
            let done = steps.begin();
            if let Input::Received { wire: Wire::Rows { chunk, .. }, .. } = &input {
                meter.moved(chunk.rows.len());
            }
            let memory = self.scans.iter().map(ScanThread::memory).sum();
            self.node.clock(clock.now_ms());
            let is_tick = matches!(input, Input::Tick(_));
            if is_tick {
                self.node.count(self.statistics());
                let (network, own) = (&self.network, self.outbox.id());
                self.node.note_reach(|process| network.reaches(own, process));
            }
            let outputs = self.node.handle(input, memory);
            self.execute(outputs);
            if is_tick {
                // It takes long when very much waits, and must not be all that is done then.
                ticks.reset();
            }
            if !Arc::ptr_eq(&config, self.node.config()) {
                config = self.node.config().clone();
                self.network.learn(&config);
            }
            let now = self.node.progress();
            meter.progress(&now, self.node.pending());
            progress.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
            done();
        }
        let (is_outdated, begins_anew) = (self.node.is_outdated(), self.node.begins_anew());
        match self.node.stopped() {
            Some(reason) if is_outdated && begins_anew => {
                tracing::warn!(process = %self.outbox.id(), "storage process asks to begin without data: {reason}");
            }
            Some(reason) if begins_anew => {
                tracing::warn!(process = %self.outbox.id(), "storage process begins another life: {reason}");
            }
            Some(reason) => {
                tracing::error!(process = %self.outbox.id(), "storage process stops itself: {reason}");
            }
            None => {}
        }
        let (id, dir) = (self.outbox.id(), self.dir.clone());
        let ahead = self.node.ahead().map(|(reason, last)| (reason.to_owned(), last));
        if let Some((reason, _)) = &ahead {
            // What is still being written may be of what they have lost.
            note_ahead(id, &dir, reason, None);
        }
        if is_outdated && let Err(error) = fs::File::create(self.dir.join(OUTDATED)) {
            tracing::error!(process = %self.outbox.id(), %error, "cannot mark the data as outdated");
        }
        if let Some(newest) = self.node.outlived()
            && let Err(error) = write_number(&self.dir.join(INCARNATION), newest)
        {
            tracing::error!(process = %self.outbox.id(), %error, "cannot count its lives on from {newest}");
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
        if let Some((reason, last)) = ahead {
            note_ahead(id, &dir, &reason, Some(last));
        }
        begins_anew.then_some(Anew { is_outdated })
    }

    /// What is known of the tables, all shards together.
    fn statistics(&self) -> Vec<TableStatistics> {
        let mut tables: BTreeMap<TableId, TableStatistics> = BTreeMap::new();
        for scan in &self.scans {
            for more in scan.statistics() {
                match tables.entry(more.table) {
                    Entry::Occupied(mut known) => known.get_mut().add(&more),
                    Entry::Vacant(place) => {
                        place.insert(more);
                    }
                }
            }
        }
        tables.into_values().collect()
    }

    fn execute(&mut self, outputs: Vec<Output>) {
        // What a thread is told, it is told at once: waking it for each operation would cost more than the operation.
        let mut commands: Vec<Vec<ShardCommand>> = self.scans.iter().map(|_| Vec::new()).collect();
        for output in outputs {
            let told = match output {
                Output::Send(to, wire) => {
                    self.outbox.send(to, wire);
                    Ok(())
                }
                Output::Shard(shard, command) => {
                    commands[shard].push(command);
                    Ok(())
                }
                Output::Payload(command) => self.payloads.tell(command),
                Output::VoteLost(ts, range) => {
                    let process = self.outbox.id();
                    tracing::warn!(%process, %ts, %range, "a write has no effect: all who could know the vote of a range have failed");
                    Ok(())
                }
                Output::Checkpoint(command) => {
                    self.checkpoints.send(command).map_err(|_| "the checkpoint thread has ended")
                }
            };
            if let Err(reason) = told {
                // It stops without further outputs.
                self.node.handle(Input::Stop(reason.into()), 0);
                return;
            }
        }
        for (scan, commands) in self.scans.iter().zip(commands).filter(|(_, commands)| !commands.is_empty()) {
            scan.tell(commands);
        }
    }
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
}

/// Writes down that a process must not go on, as the routers have lost what it has, and what to do. When nothing is written there
/// any more, `last` is where their log ends: then it may be that nothing is there of what they have lost.
fn note_ahead(id: ProcessId, dir: &Path, reason: &str, last: Option<Ts>) {
    let path = dir.join(AHEAD);
    let beyond = last.and_then(|last| Checkpoint::beyond(dir, last).ok());
    let advice = match beyond {
        Some((false, received)) => {
            let more: Vec<String> = received.iter().map(|path| format!(" and {}", path.display())).collect();
            format!("remove that file{}, too: it goes on with what they have", more.concat())
        }
        _ => {
            format!("remove everything in {}: the checkpoint there is of what they have lost", dir.display())
        }
    };
    let text =
        format!("{reason}. Then remove the file {}. If they cannot be restored, {advice}", path.display());
    // An empty file takes no room, which there may be none of.
    let noted = replace_file(&path, text.as_bytes()).or_else(|error| {
        tracing::error!(process = %id, %error, "cannot write down why it must not go on: {text}");
        fs::File::create(&path)?.sync_all()?;
        sync_directory(dir)
    });
    if let Err(error) = noted {
        tracing::error!(process = %id, %error, "cannot write down that it must not go on");
    }
}

/// The end of a life that another one follows.
struct Anew {
    /// Whether that has to begin without data.
    is_outdated: bool,
}

/// What a life begins with.
struct Parts {
    /// Whoever watches hears that it is loading.
    starting: Starting,
    incarnation: Incarnation,
    directory: u64,
    recovered: Recovered,
    /// What an earlier life has received since.
    received: Vec<Checkpoint>,
    shards: Vec<Shard>,
    store: PayloadStore,
    /// It has nothing, and no place in the first config.
    joins: bool,
}

/// Reads everything back that the directory holds.
fn recover(options: &StorageOptions, network: &Network, is_outdated: bool) -> Result<Parts, StorageError> {
    let dir = &options.dir;
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| StorageError::Io { path, source }
    };
    make_directory(dir).map_err(io(dir))?;
    let path = dir.join(AHEAD);
    // No room was left for a word, nor for its checksum.
    if fs::metadata(&path).is_ok_and(|there| there.len() == 0) {
        let reason = format!("its log of then says; there was no room to write it to {}", path.display());
        return Err(StorageError::Ahead(reason));
    }
    if let Some(reason) = read_file(&path).map_err(io(&path))? {
        return Err(StorageError::Ahead(String::from_utf8_lossy(&reason).into_owned()));
    }
    let directory = directory_number(dir).map_err(io(dir))?;
    let path = dir.join(INCARNATION);
    let incarnation = next_incarnation(&path).map_err(io(dir))?;
    let starting = network.starts(options.id, incarnation);
    let outdated = dir.join(OUTDATED);
    let is_marked = outdated.exists();
    let is_outdated = is_outdated || is_marked;
    if is_outdated {
        // Without a checkpoint it is refused again, and marked again, if it ends before it has joined. Staged rows stay: it may
        // still be the one that has given a receipt for them, and they are named by what is ordered later.
        Checkpoint::remove_all(dir, || starting.goes_on()).map_err(io(dir))?;
        if is_marked {
            fs::remove_file(&outdated).map_err(io(&outdated))?;
        }
    }
    let checkpoint = Checkpoint::newest(dir, || starting.goes_on())?;
    let joins = checkpoint.is_none() && (is_outdated || !options.config.contains(options.id));
    let held = match &checkpoint {
        Some(checkpoint) => checkpoint.recovered.parts(),
        None if joins => Vec::new(),
        None => options.config.held(options.id),
    };
    let threads = options.threads.max(1) as u32;
    let memory_bytes = options.memory_limit.map(|limit| (limit / u64::from(threads)) as usize);
    let shard_options = ShardOptions { memory_bytes, ..ShardOptions::default() };
    let mut shards: Vec<Shard> =
        (0..threads).map(|index| Shard::new(index, threads, held.clone(), shard_options)).collect();
    let mut recovered = match checkpoint {
        // The config only tells that it holds nothing.
        None => Recovered {
            config: joins.then(|| Arc::new(options.config.without(options.id))),
            ..Recovered::default()
        },
        Some(checkpoint) => {
            load(&checkpoint, &mut shards, &starting)?;
            checkpoint.recovered
        }
    };
    // Whoever joins does not come to what an earlier life has received.
    let until = if joins { Ts::INFINITY } else { recovered.ts };
    let received = Checkpoint::received(dir, until, || starting.goes_on())?;
    recovered.kept = received.iter().map(|Checkpoint { recovered, .. }| recovered.as_kept()).collect();
    let payloads = dir.join("payloads");
    let store = PayloadStore::open(&payloads, || starting.goes_on()).map_err(io(&payloads))?;
    Ok(Parts { starting, incarnation, directory, recovered, received, shards, store, joins })
}

/// Gives the rows of a checkpoint to the shards.
fn load(checkpoint: &Checkpoint, shards: &mut [Shard], starting: &Starting) -> Result<(), StorageError> {
    let recovered = &checkpoint.recovered;
    shards.iter_mut().for_each(|shard| recovered.prepare(shard));
    // Rows begin before every operation that is replayed. What others are still to receive is there a second time, as it was
    // before: what is held must not begin early enough for a read of that to see both.
    let begin = local(recovered.ts);
    for file in &checkpoint.files {
        let begin = if file.until.is_some() { Ts::ZERO } else { begin };
        let until = file.until.map(local);
        checkpoint.read(
            file,
            || starting.goes_on(),
            |block| {
                let rows = Rows { table: file.table, range: file.range, until, begin, block };
                let install = |shard: &mut Shard| shard.install(rows.clone());
                shards.iter_mut().try_for_each(install).map_err(|error| error.into_report().message)
            },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use carousel_engine::{operation::PayloadId, position::KeyRange};

    use super::*;
    use crate::{storage::RUNNING, wire::StageChunk};

    #[test]
    fn who_is_ahead_says_what_there_is_of_what_is_lost() {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path();
        let note = |last| {
            note_ahead(ProcessId::storage(1), dir, "the log is lost", last);
            let text = read_file(&dir.join(AHEAD)).expect("it can be read").expect("it is there");
            String::from_utf8(text).expect("it is text")
        };
        let everything = |text: String| text.contains("remove everything");
        fs::create_dir(dir.join("checkpoint-5")).expect("it is new");
        assert!(everything(note(None)), "more may come");
        assert!(!everything(note(Some(Ts(7)))));
        fs::create_dir(dir.join("received-9")).expect("it is new");
        assert!(note(Some(Ts(7))).contains("received-9, too"));
        assert!(!note(Some(Ts(9))).contains("received-9"));
        fs::rename(dir.join("checkpoint-5"), dir.join("checkpoint-8")).expect("it is there");
        assert!(everything(note(Some(Ts(7)))));
    }

    #[test]
    fn staged_rows_stay_when_the_data_is_outdated() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = StorageOptions {
            id: ProcessId::storage(1),
            dir: directory.path().to_path_buf(),
            address: None,
            config: Arc::new(Config::evenly(2, 2).expect("a ring")),
            routers: vec![ProcessId::router(1)],
            threads: 1,
            first_core: None,
            memory_limit: None,
            running: RUNNING,
            reserve_bytes: 0,
        };
        let payload = PayloadId { process: 1, incarnation: 1, sequence: 1 };
        let rows = Bytes::from_static(b"rows");
        let checksum = crc32fast::hash(&rows);
        let (range, latest) = (KeyRange::FULL, Ts(100));
        let chunk = StageChunk { payload, range, chunk: 0, rows, checksum, latest };
        let network = Network::new();
        let Parts { mut store, .. } = recover(&options, &network, false).expect("a directory");
        assert!(store.stage(&[chunk]).iter().all(Result::is_ok));
        drop(store);
        fs::File::create(options.dir.join(OUTDATED)).expect("it is marked");
        let Parts { store, joins, .. } = recover(&options, &network, false).expect("a directory");
        assert!(joins, "it begins anew");
        assert!(store.chunk((payload, range, 0)).expect("it can be read").is_some());
        drop(store);
        // The last life may not have been able to mark it.
        for is_outdated in [false, true] {
            let Parts { joins, .. } = recover(&options, &network, is_outdated).expect("a directory");
            assert_eq!(joins, is_outdated);
        }
        // Nor may there have been room to say why it must not go on.
        fs::File::create(options.dir.join(AHEAD)).expect("it takes no room");
        let refused = recover(&options, &network, false).map(|_| ()).expect_err("it is ahead");
        assert!(matches!(&refused, StorageError::Ahead(reason) if reason.contains("no room")), "{refused}");
    }
}
