//! The thread that owns a storage process's payload store: its disk must not hold up the process's task.

use std::{sync::mpsc, thread::JoinHandle};

use bytes::Bytes;
use carousel_engine::{
    Ts,
    operation::{PayloadId, RowBatch},
};

use crate::{
    message::{Incarnation, ProcessId},
    payload::{ChunkKey, Files, PayloadStore},
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
    /// Another storage process lacks a chunk.
    Fetch { from: ProcessId, chunk: ChunkKey },
    /// A chunk that another storage process has sent.
    Adopt { wanted: ChunkWanted, rows: Bytes },
    /// No replica needs it any more.
    Remove(PayloadId),
    /// Its submitter has given it up.
    Abandon(PayloadId),
    /// A life of a client process has been heard of: what earlier ones have staged and not submitted will not be ordered.
    Outlived(u32, Incarnation),
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
    /// A chunk is not here, or damaged: some other holder must send it.
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
        let answers = match command {
            PayloadCommand::Stage(from, chunk) => {
                let mut group = vec![(from, chunk)];
                while group.len() < GROUP {
                    match commands.try_recv() {
                        Ok(PayloadCommand::Stage(from, chunk)) => group.push((from, chunk)),
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                stage(&mut store, group)
            }
            command => obey(&mut store, command),
        };
        for event in answers {
            if events.send(event).is_err() {
                return;
            }
        }
    }
}

/// Puts chunks that came together on the disk.
fn stage<F: Files>(store: &mut PayloadStore<F>, group: Vec<(ProcessId, StageChunk)>) -> Vec<PayloadEvent> {
    let (clients, chunks): (Vec<ProcessId>, Vec<StageChunk>) = group.into_iter().unzip();
    let outcomes = store.stage(&chunks);
    let receipts = clients.into_iter().zip(chunks).zip(outcomes);
    receipts
        .map(|((client, StageChunk { payload, range, chunk, .. }), outcome)| {
            PayloadEvent::Send(client, Wire::Staged { payload, range, chunk, outcome })
        })
        .collect()
}

/// Does what the store is told.
pub(crate) fn obey<F: Files>(store: &mut PayloadStore<F>, command: PayloadCommand) -> Vec<PayloadEvent> {
    match command {
        PayloadCommand::Stage(from, chunk) => return stage(store, vec![(from, chunk)]),
        PayloadCommand::Keep(payload) => store.mark_ordered(payload),
        PayloadCommand::Load(wanted) => return vec![load(store, wanted)],
        PayloadCommand::Adopt { wanted, rows } => return vec![adopt(store, wanted, rows)],
        PayloadCommand::Fetch { from, chunk: (payload, range, chunk) } => {
            let rows = store.chunk((payload, range, chunk));
            return vec![PayloadEvent::Send(from, Wire::StagedRows { payload, range, chunk, rows })];
        }
        PayloadCommand::Remove(payload) => store.remove(payload),
        PayloadCommand::Abandon(payload) => store.abandon(payload),
        PayloadCommand::Outlived(client, incarnation) => store.outlive(u64::from(client), incarnation),
        PayloadCommand::Expire(frontier) => store.expire(frontier),
    }
    Vec::new()
}

fn load<F: Files>(store: &PayloadStore<F>, wanted: ChunkWanted) -> PayloadEvent {
    match store.rows(&wanted.payload, &wanted.payload.parts[wanted.part], wanted.number) {
        Some(rows) => PayloadEvent::Loaded { ts: wanted.ts, chunk: wanted.chunk, rows: Ok(rows) },
        None => PayloadEvent::Missing(wanted),
    }
}

fn adopt<F: Files>(store: &mut PayloadStore<F>, wanted: ChunkWanted, rows: Bytes) -> PayloadEvent {
    match store.adopt(&wanted.payload, &wanted.payload.parts[wanted.part], wanted.number, rows) {
        Ok(true) => load(store, wanted),
        Ok(false) => PayloadEvent::Missing(wanted),
        Err(error) => {
            let rows = Err(error.into_report().message);
            PayloadEvent::Loaded { ts: wanted.ts, chunk: wanted.chunk, rows }
        }
    }
}
