//! The thread that writes checkpoints' files.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use bytes::Bytes;
use carousel_engine::{TableId, Ts, position::KeyRange};

use super::core::Recovered;
use crate::{checkpoint::Writer, priority};

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum CheckpointCommand {
    /// Rows of the checkpoint of this `Ts`. What has been received for one comes while an older one is being written.
    Rows { ts: Ts, table: TableId, until: Option<Ts>, range: KeyRange, block: Bytes },
    /// What has come of a range, as of now, is of no use, or with none the whole checkpoint.
    Forget { ts: Ts, range: Option<KeyRange> },
    /// The checkpoint has all its rows.
    End(Box<Recovered>),
}

/// What the thread answers.
#[derive(Debug)]
pub(crate) enum CheckpointOutcome {
    /// Some rows are not kept in memory any more: one for each [`CheckpointCommand::Rows`].
    Took,
    /// How a checkpoint ended.
    Ended(Ts, Result<(), String>),
}

/// Checkpoints that are being written. One that cannot be says so at its end: until then the scan goes on regardless.
type Writers = BTreeMap<Ts, io::Result<Writer>>;

/// Starts the thread; it ends when the sender is dropped.
pub(crate) fn start(
    name: String,
    root: PathBuf,
    outcomes: tokio::sync::mpsc::UnboundedSender<CheckpointOutcome>,
) -> io::Result<(mpsc::Sender<CheckpointCommand>, JoinHandle<()>)> {
    let (commands, received) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        priority::lower(priority::SCAN);
        let mut writers = Writers::new();
        for command in received {
            let outcome = execute(&root, &mut writers, command);
            if outcome.is_some_and(|outcome| outcomes.send(outcome).is_err()) {
                return;
            }
        }
    })?;
    Ok((commands, thread))
}

fn execute(root: &Path, writers: &mut Writers, command: CheckpointCommand) -> Option<CheckpointOutcome> {
    match command {
        CheckpointCommand::Rows { ts, table, until, range, block } => {
            let writer = writers.entry(ts).or_insert_with(|| Writer::begin(root, ts));
            attempt(writer, |writer| writer.rows(table, until, range, &block));
            Some(CheckpointOutcome::Took)
        }
        CheckpointCommand::Forget { ts, range: None } => {
            writers.remove(&ts);
            None
        }
        CheckpointCommand::Forget { ts, range: Some(range) } => {
            attempt(writers.get_mut(&ts)?, |writer| writer.forget(range));
            None
        }
        CheckpointCommand::End(checkpoint) => {
            let ts = checkpoint.ts;
            let writer = writers.remove(&ts).unwrap_or_else(|| Writer::begin(root, ts));
            let ended = writer.and_then(|writer| writer.finish(*checkpoint));
            Some(CheckpointOutcome::Ended(ts, ended.map_err(|error| error.to_string())))
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
