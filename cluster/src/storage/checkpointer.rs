//! The thread that writes a checkpoint's files.

use std::{io, path::PathBuf, sync::mpsc, thread::JoinHandle};

use carousel_engine::{TableId, Ts, position::KeyRange};

use super::core::{ContentHash, Recovered};
use crate::checkpoint::Writer;

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum CheckpointCommand {
    Begin(Box<Recovered>),
    Rows { table: TableId, until: Option<Ts>, range: KeyRange, block: Vec<u8> },
    End { hashes: Vec<ContentHash> },
}

/// How a checkpoint ended.
pub(crate) type CheckpointOutcome = (Ts, Result<(), String>);

/// Starts the thread; it ends when the sender is dropped.
pub(crate) fn start(
    name: String,
    root: PathBuf,
    outcomes: tokio::sync::mpsc::UnboundedSender<CheckpointOutcome>,
) -> io::Result<(mpsc::Sender<CheckpointCommand>, JoinHandle<()>)> {
    let (commands, received) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let mut writing: Option<(Ts, io::Result<Writer>)> = None;
        for command in received {
            match command {
                CheckpointCommand::Begin(checkpoint) => {
                    writing = Some((checkpoint.ts, Writer::begin(&root, *checkpoint)));
                }
                CheckpointCommand::Rows { table, until, range, block } => {
                    if let Some((_, writer)) = &mut writing
                        && let Ok(open) = writer
                        && let Err(error) = open.rows(table, until, range, &block)
                    {
                        // Reported when all rows have come, for the scan goes on regardless.
                        *writer = Err(error);
                    }
                }
                CheckpointCommand::End { hashes } => {
                    if let Some((ts, writer)) = writing.take() {
                        let outcome =
                            writer.and_then(|writer| writer.finish(hashes)).map_err(|e| e.to_string());
                        if outcomes.send((ts, outcome)).is_err() {
                            return;
                        }
                    }
                }
            }
        }
    })?;
    Ok((commands, thread))
}
