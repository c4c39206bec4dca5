//! The thread that owns a storage process's payload store: its disk must not hold up the process's task.

use std::{sync::mpsc, thread::JoinHandle};

use bytes::Bytes;
use carousel_engine::{
    Ts,
    operation::{PayloadId, RowBatch},
    position::KeyRange,
};

use crate::{
    message::ProcessId,
    payload::PayloadStore,
    storage::core::ChunkWanted,
    wire::{StageChunk, Wire},
};

/// Chunks that share the syncs of directories.
const GROUP: usize = 64;

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum PayloadCommand {
    /// A client's chunk.
    Stage(ProcessId, StageChunk),
    /// A message that names the payload has been delivered.
    Keep(PayloadId),
    /// Rows for a message that has been delivered.
    Load(ChunkWanted),
    /// Another storage process lacks a part.
    Fetch { from: ProcessId, payload: PayloadId, range: KeyRange },
    /// A part that another storage process has sent, for these chunks of it.
    Adopt { wanted: Vec<ChunkWanted>, chunks: Vec<Bytes> },
    /// No replica needs it any more.
    Remove(PayloadId),
    /// Its submitter has given it up.
    Abandon(PayloadId),
    /// Everything up to here has been delivered.
    Expire(Ts),
}

/// What the thread answers.
#[derive(Debug)]
pub(crate) enum PayloadEvent {
    /// To be sent.
    Send(ProcessId, Wire),
    /// A chunk.
    Loaded { ts: Ts, chunk: usize, rows: Result<RowBatch, String> },
    /// A chunk is not here, or damaged: some other holder must send its part.
    Missing(ChunkWanted),
}

/// Starts the thread; it ends when the sender is dropped.
pub(crate) fn start(
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
                    let receipt = Wire::Staged { payload, range, chunk, outcome };
                    let _ = events.send(PayloadEvent::Send(client, receipt));
                }
                continue;
            }
            PayloadCommand::Keep(payload) => {
                store.mark_ordered(payload);
                continue;
            }
            PayloadCommand::Load(wanted) => load(&store, wanted),
            PayloadCommand::Adopt { wanted, chunks } => {
                for event in adopt(&mut store, wanted, &chunks) {
                    if events.send(event).is_err() {
                        return;
                    }
                }
                continue;
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

fn load(store: &PayloadStore, wanted: ChunkWanted) -> PayloadEvent {
    match store.rows(&wanted.payload, &wanted.payload.parts[wanted.part], wanted.number) {
        Some(rows) => PayloadEvent::Loaded { ts: wanted.ts, chunk: wanted.chunk, rows: Ok(rows) },
        None => PayloadEvent::Missing(wanted),
    }
}

fn adopt(store: &mut PayloadStore, wanted: Vec<ChunkWanted>, chunks: &[Bytes]) -> Vec<PayloadEvent> {
    let Some(first) = wanted.first() else { return Vec::new() };
    match store.adopt(&first.payload, &first.payload.parts[first.part], chunks) {
        Ok(true) => wanted.into_iter().map(|wanted| load(store, wanted)).collect(),
        Ok(false) => wanted.into_iter().map(PayloadEvent::Missing).collect(),
        Err(error) => {
            let rows = Err(error.into_report().message);
            vec![PayloadEvent::Loaded { ts: first.ts, chunk: first.chunk, rows }]
        }
    }
}
