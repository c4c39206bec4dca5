//! The thread that writes a checkpoint's files.

use std::{io, path::PathBuf, sync::mpsc, thread::JoinHandle};

use arrow::record_batch::RecordBatch;
use carousel_engine::{TableSchema, Ts, position::KeyRange};

use super::{ballot::Ballot, core::ContentHash};
use crate::{catalog::Catalog, checkpoint::Writer, message::MessageId};

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum CheckpointCommand {
    Begin { ts: Ts, catalog: std::sync::Arc<Catalog>, ballots: Vec<(Ts, Ballot)>, passed: Vec<MessageId> },
    Rows { table: std::sync::Arc<TableSchema>, range: KeyRange, batch: RecordBatch },
    End { hashes: Vec<ContentHash> },
}

/// How a checkpoint ended.
pub(crate) type CheckpointOutcome = (Ts, Result<(), String>);

/// Starts the thread; it ends when the sender is dropped.
pub(crate) fn start(
    name: String,
    root: PathBuf,
    config_version: u64,
    outcomes: tokio::sync::mpsc::UnboundedSender<CheckpointOutcome>,
) -> io::Result<(mpsc::Sender<CheckpointCommand>, JoinHandle<()>)> {
    let (commands, received) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let mut writing: Option<(Ts, io::Result<Writer>)> = None;
        for command in received {
            match command {
                CheckpointCommand::Begin { ts, catalog, ballots, passed } => {
                    let writer = Writer::begin(&root, ts, config_version, &catalog, ballots, passed);
                    writing = Some((ts, writer));
                }
                CheckpointCommand::Rows { table, range, batch } => {
                    if let Some((_, writer)) = &mut writing
                        && let Ok(open) = writer
                        && let Err(error) = open.rows(&table, range, &batch)
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
