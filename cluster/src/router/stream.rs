//! The task of one subscriber's stream: it waits for room in the subscriber's mailbox, and reads the log, so that the
//! router itself never waits.

use carousel_engine::Ts;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    core::{StreamId, delivery},
    mseq::Learned,
};
use crate::{
    message::ProcessId,
    network::Sender,
    raft::{Cursor, MSeqReader, ReadError},
    wire::{Delivery, Wire},
};

/// Bytes of the log that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// What a stream's task reports.
pub(super) enum StreamReport {
    /// All was sent.
    Sent,
    /// The subscriber is not there.
    Unreachable,
    /// The log was read.
    Read { deliveries: Vec<Delivery>, through: Ts },
    /// The log no longer reaches that far back.
    Purged(Ts),
    /// The log cannot be read.
    Failed(String),
}

enum Job {
    Send(Vec<Wire>),
    Read(Ts),
}

/// A stream's task; ended when dropped.
pub(super) struct StreamHandle {
    id: StreamId,
    jobs: mpsc::UnboundedSender<Job>,
    task: AbortHandle,
}

impl StreamHandle {
    pub(super) fn start(
        id: StreamId,
        to: ProcessId,
        sender: Sender,
        reader: MSeqReader,
        report: impl Fn(StreamReport) + Send + 'static,
    ) -> Self {
        // Unbounded, but the core gives one job at a time.
        let (jobs, mut queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut cursor = None;
            while let Some(job) = queue.recv().await {
                let outcome = match job {
                    Job::Send(wires) => send(&sender, to, wires).await,
                    Job::Read(after) => read(&reader, &mut cursor, to, after).await,
                };
                report(outcome);
            }
        });
        StreamHandle { id, jobs, task: task.abort_handle() }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    pub(super) fn send(&self, wires: Vec<Wire>) {
        // The task ends only with this handle.
        let _ = self.jobs.send(Job::Send(wires));
    }

    pub(super) fn read(&self, after: Ts) {
        let _ = self.jobs.send(Job::Read(after));
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send(sender: &Sender, to: ProcessId, wires: Vec<Wire>) -> StreamReport {
    for wire in wires {
        if sender.send(to, wire).await.is_err() {
            return StreamReport::Unreachable;
        }
    }
    StreamReport::Sent
}

async fn read(reader: &MSeqReader, cursor: &mut Option<Cursor>, to: ProcessId, after: Ts) -> StreamReport {
    match collect(reader, cursor, to, after).await {
        Ok((deliveries, through)) => StreamReport::Read { deliveries, through },
        Err(ReadError::Purged(purged)) => StreamReport::Purged(purged),
        Err(ReadError::Log(error)) => StreamReport::Failed(format!("reading the log: {error}")),
    }
}

async fn collect(
    reader: &MSeqReader,
    cursor: &mut Option<Cursor>,
    to: ProcessId,
    after: Ts,
) -> Result<(Vec<Delivery>, Ts), ReadError> {
    let mut at = match cursor.take() {
        Some(at) if at.ts() == after => at,
        _ => reader.seek(after)?,
    };
    let mut deliveries = Vec::new();
    let mut bytes = 0;
    // What does not concern the subscriber is passed over without a message for each chunk.
    while bytes < READ_BYTES as usize {
        let learned = reader.read(&mut at, READ_BYTES).await?;
        // Leaders write what nobody learns anything from, too.
        if learned.is_empty() && reader.is_at_end(&at) {
            break;
        }
        for learned in learned {
            if let Learned::Message(routed) = learned
                && routed.ts > after
                && let Some(delivery) = delivery(&routed, to)
            {
                bytes += routed.message.weight();
                deliveries.push(delivery);
            }
        }
    }
    let through = at.ts();
    *cursor = Some(at);
    Ok((deliveries, through))
}
