//! The thread that owns a storage process's payload store: its disk must not hold up the process's task.

use std::{sync::mpsc, thread::JoinHandle};

use bytes::Bytes;
use carousel_engine::{
    Ts,
    operation::{PayloadId, RowBatch},
    position::KeyRange,
};

use crate::{
    message::{ProcessId, StagedPart, StagedPayload},
    payload::{PayloadStore, concatenate},
    wire::{StageChunk, Wire},
};

/// Chunks that share the syncs of directories.
const GROUP: usize = 64;

/// What the thread is told.
#[derive(Debug)]
pub(super) enum PayloadCommand {
    /// A client's chunk.
    Stage(ProcessId, StageChunk),
    /// Rows for a message that has been delivered.
    Load { ts: Ts, payload: StagedPayload, ranges: Vec<KeyRange> },
    /// Another storage process lacks a part.
    Fetch { from: ProcessId, payload: PayloadId, range: KeyRange },
    /// A part that another storage process has sent.
    Adopt { ts: Ts, payload: StagedPayload, ranges: Vec<KeyRange>, part: StagedPart, chunks: Vec<Bytes> },
    /// No replica needs it any more.
    Remove(PayloadId),
    /// Its submitter has given it up.
    Abandon(PayloadId),
    /// Everything up to here has been delivered.
    Expire(Ts),
}

/// What the thread answers.
#[derive(Debug)]
pub(super) enum PayloadEvent {
    /// To be sent.
    Send(ProcessId, Wire),
    /// The rows of a message.
    Loaded { ts: Ts, rows: Result<Option<RowBatch>, String> },
    /// A part is not here, or damaged: some other holder must send it.
    Missing { ts: Ts, payload: StagedPayload, ranges: Vec<KeyRange>, part: StagedPart },
}

/// Starts the thread; it ends when the sender is dropped.
pub(super) fn start(
    name: String,
    store: PayloadStore,
    events: tokio::sync::mpsc::UnboundedSender<PayloadEvent>,
) -> std::io::Result<(mpsc::Sender<PayloadCommand>, JoinHandle<()>)> {
    let (commands, received) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || run(store, &received, &events))?;
    Ok((commands, thread))
}

fn run(
    mut store: PayloadStore,
    commands: &mpsc::Receiver<PayloadCommand>,
    events: &tokio::sync::mpsc::UnboundedSender<PayloadEvent>,
) {
    let mut next = None;
    loop {
        let command = match next.take() {
            Some(command) => command,
            None => match commands.recv() {
                Ok(command) => command,
                Err(mpsc::RecvError) => return,
            },
        };
        let event = match command {
            PayloadCommand::Stage(from, chunk) => {
                let (mut clients, mut chunks) = (vec![from], vec![chunk]);
                while chunks.len() < GROUP {
                    match commands.try_recv() {
                        Ok(PayloadCommand::Stage(from, chunk)) => {
                            clients.push(from);
                            chunks.push(chunk);
                        }
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                let outcomes = store.stage(&chunks);
                for ((client, chunk), outcome) in clients.into_iter().zip(chunks).zip(outcomes) {
                    let StageChunk { payload, range, chunk, .. } = chunk;
                    let receipt = Wire::Staged { payload, range, chunk, outcome: outcome.map_err(Box::new) };
                    let _ = events.send(PayloadEvent::Send(client, receipt));
                }
                continue;
            }
            PayloadCommand::Load { ts, payload, ranges } => {
                store.mark_ordered(payload.id);
                load(&store, ts, payload, ranges)
            }
            PayloadCommand::Adopt { ts, payload, ranges, part, chunks } => {
                match store.adopt(&payload, &part, &chunks) {
                    Ok(true) => load(&store, ts, payload, ranges),
                    Ok(false) => PayloadEvent::Missing { ts, payload, ranges, part },
                    Err(error) => PayloadEvent::Loaded { ts, rows: Err(error.message) },
                }
            }
            PayloadCommand::Fetch { from, payload, range } => {
                let chunks = store.part(payload, range);
                PayloadEvent::Send(from, Wire::Part { payload, range, chunks })
            }
            PayloadCommand::Remove(payload) => {
                store.remove(payload);
                continue;
            }
            PayloadCommand::Abandon(payload) => {
                store.abandon(payload);
                continue;
            }
            PayloadCommand::Expire(frontier) => {
                store.expire(frontier);
                continue;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

fn load(store: &PayloadStore, ts: Ts, payload: StagedPayload, ranges: Vec<KeyRange>) -> PayloadEvent {
    let mut batches = Vec::new();
    for part in payload.parts.iter().filter(|part| ranges.contains(&part.range)) {
        match store.rows(&payload, part) {
            Some(rows) => batches.extend(rows),
            None => {
                let part = part.clone();
                return PayloadEvent::Missing { ts, payload, ranges, part };
            }
        }
    }
    PayloadEvent::Loaded { ts, rows: concatenate(batches).map_err(|error| error.message) }
}
