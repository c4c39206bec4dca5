//! The thread that writes checkpoints' files.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use bytes::Bytes;
use carousel_engine::{TableId, Ts, position::KeyRange};
use tokio::sync::mpsc::{self, UnboundedSender};

use super::{
    core::Recovered,
    migration::{Chunk, PartId},
};
use crate::{
    checkpoint::{Checkpoint, CheckpointError, GoesOn, Writer},
    priority,
};

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum CheckpointCommand {
    /// Rows of the checkpoint of this `Ts`. What has been received for one comes while an older one is being written.
    Rows { ts: Ts, table: TableId, until: Option<Ts>, range: KeyRange, block: Bytes },
    /// What has come of a range, as of now, is of no use, or with none the whole checkpoint.
    Forget { ts: Ts, range: Option<KeyRange> },
    /// The checkpoint has all its rows.
    End(Box<Recovered>),
    /// All of what a keyspace message moves here has come.
    EndParts(Box<Recovered>),
    /// Read chunks of a part that an earlier life has received.
    Load { part: PartId, attempt: u64, chunks: Range<u32> },
}

/// What the thread answers.
#[derive(Debug)]
pub(crate) enum CheckpointOutcome {
    /// Some rows are not kept in memory any more: one for each [`CheckpointCommand::Rows`].
    Took,
    /// What takes long is still being done.
    GoesOn,
    /// How a checkpoint ended.
    Ended(Ts, Result<(), String>),
    /// Whether what a keyspace message moves here is durable.
    PartsEnded(Ts, Result<(), String>),
    /// What there is of the chunks that were to be loaded, or why there is not: one for each [`CheckpointCommand::Load`].
    Loaded { part: PartId, attempt: u64, chunks: Result<Vec<Chunk>, String> },
}

/// Checkpoints that are being written. One that cannot be says so at its end: until then the scan goes on regardless.
type Writers = BTreeMap<Ts, io::Result<Writer>>;

/// How often a file that is read says that it goes on: after so many pieces of it.
const PIECES: u32 = 64;

/// Starts the thread; it ends when the sender is dropped. Checkpoints leave `reserve_bytes` of the disk to others; `received` is
/// what an earlier life has received.
pub(crate) fn start(
    name: String,
    root: PathBuf,
    reserve_bytes: u64,
    received: Vec<Checkpoint>,
    outcomes: UnboundedSender<CheckpointOutcome>,
) -> io::Result<(UnboundedSender<CheckpointCommand>, JoinHandle<()>)> {
    let (commands, mut told) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        priority::lower(priority::CHECKPOINT);
        let mut writers = Writers::new();
        let mut loader = Loader { received, loading: BTreeMap::new(), outcomes: outcomes.clone() };
        while let Some(command) = told.blocking_recv() {
            for outcome in execute(&root, reserve_bytes, &mut writers, &mut loader, command) {
                if outcomes.send(outcome).is_err() {
                    return;
                }
            }
        }
    })?;
    Ok((commands, thread))
}

/// The chunks of a part, from one on.
type Chunks = Box<dyn Iterator<Item = Result<Chunk, CheckpointError>>>;

/// What an earlier life has received.
struct Loader {
    received: Vec<Checkpoint>,
    /// The parts that are being read, from these chunks on. Several are, in turn, and none is begun anew for that.
    loading: BTreeMap<PartId, (u32, Chunks)>,
    outcomes: UnboundedSender<CheckpointOutcome>,
}

/// What was asked for takes long, and some of it is done.
fn goes_on(outcomes: &UnboundedSender<CheckpointOutcome>) {
    // Without a receiver the process is ending.
    let _ = outcomes.send(CheckpointOutcome::GoesOn);
}

impl Loader {
    fn load(&mut self, part: PartId, wanted: Range<u32>) -> Result<Vec<Chunk>, String> {
        let at = self.loading.remove(&part).filter(|(next, _)| *next <= wanted.start);
        let begin = || {
            let found = self.received.iter().find(|received| received.recovered.ts == part.keyspace)?;
            // A file is checked as a whole before anything of it is used.
            let (outcomes, pieces) = (self.outcomes.clone(), Cell::new(0));
            let piece = move || {
                pieces.set((pieces.get() + 1) % PIECES);
                if pieces.get() == 0 {
                    goes_on(&outcomes);
                }
            };
            Some((0, Box::new(found.chunks(part.range, piece)) as Chunks))
        };
        let Some((mut next, mut chunks)) = at.or_else(begin) else {
            return Err(format!("nothing has been received at {}", part.keyspace));
        };
        let mut loaded = Vec::new();
        while next < wanted.end {
            let Some(chunk) = chunks.next() else { return Ok(loaded) };
            let chunk = chunk.map_err(|error| error.to_string())?;
            if next >= wanted.start {
                loaded.push(chunk);
            }
            next += 1;
        }
        self.loading.insert(part, (next, chunks));
        Ok(loaded)
    }
}

fn execute(
    root: &Path,
    reserve_bytes: u64,
    writers: &mut Writers,
    loader: &mut Loader,
    command: CheckpointCommand,
) -> Vec<CheckpointOutcome> {
    let outcomes = loader.outcomes.clone();
    let tell: GoesOn = Arc::new(move || goes_on(&outcomes));
    let begin = |ts| Writer::begin(root, ts, reserve_bytes, tell.clone());
    let mut taken = |ts| writers.remove(&ts).unwrap_or_else(|| begin(ts));
    let told = |ended: io::Result<()>| ended.map_err(|error| format!("{}: {error}", root.display()));
    match command {
        CheckpointCommand::Rows { ts, table, until, range, block } => {
            let writer = writers.entry(ts).or_insert_with(|| begin(ts));
            attempt(writer, |writer| writer.rows(table, until, range, &block));
            vec![CheckpointOutcome::Took]
        }
        CheckpointCommand::Forget { ts, range: None } => {
            writers.remove(&ts);
            Vec::new()
        }
        CheckpointCommand::Forget { ts, range: Some(range) } => {
            if let Some(writer) = writers.get_mut(&ts) {
                attempt(writer, |writer| writer.forget(range));
            }
            Vec::new()
        }
        CheckpointCommand::End(checkpoint) => {
            let ts = checkpoint.ts;
            let ended = taken(ts).and_then(|writer| writer.finish(*checkpoint));
            vec![CheckpointOutcome::Ended(ts, told(ended))]
        }
        CheckpointCommand::EndParts(parts) => {
            let ts = parts.ts;
            let ended = taken(ts).and_then(|writer| writer.finish_received(*parts));
            vec![CheckpointOutcome::PartsEnded(ts, told(ended))]
        }
        CheckpointCommand::Load { part, attempt, chunks } => {
            vec![CheckpointOutcome::Loaded { part, attempt, chunks: loader.load(part, chunks) }]
        }
    }
}

fn attempt(writer: &mut io::Result<Writer>, step: impl FnOnce(&mut Writer) -> io::Result<()>) {
    if let Ok(open) = writer
        && let Err(error) = step(open)
    {
        // What it has written is removed.
        *writer = Err(error);
    }
}
