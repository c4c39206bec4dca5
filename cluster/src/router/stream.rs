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
/// So often they are, at most, before the subscriber hears something: where little of it concerns the subscriber, who would
/// otherwise take the router for dead.
const READS: usize = 8;

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
            let mut place = None;
            while let Some(job) = queue.recv().await {
                let outcome = match job {
                    Job::Send(wires) => send(&sender, to, wires).await,
                    Job::Read(after) => read(&reader, &mut place, to, after).await,
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

/// Where in the log a stream goes on that is to be read after a `Ts`: there, or still before it.
type Place = Option<(Cursor, Ts)>;

async fn read(reader: &MSeqReader, place: &mut Place, to: ProcessId, after: Ts) -> StreamReport {
    match collect(reader, place, to, after).await {
        Ok((deliveries, through)) => StreamReport::Read { deliveries, through },
        Err(ReadError::Purged(purged)) => StreamReport::Purged(purged),
        Err(ReadError::Log(error)) => StreamReport::Failed(format!("reading the log: {error}")),
    }
}

async fn collect(
    reader: &MSeqReader,
    place: &mut Place,
    to: ProcessId,
    after: Ts,
) -> Result<(Vec<Delivery>, Ts), ReadError> {
    let mut at = match place.take() {
        Some((at, reached)) if reached == after => at,
        _ => reader.seek(after)?,
    };
    let mut deliveries = Vec::new();
    let mut bytes = 0;
    // What does not concern the subscriber is passed over without a message for each chunk.
    for _ in 0..READS {
        if bytes >= READ_BYTES as usize {
            break;
        }
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
    let through = at.ts().max(after);
    *place = Some((at, through));
    Ok((deliveries, through))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        config::Config,
        network::Network,
        raft::{Consensus, Event, Timing},
        router::{
            mseq::{Batch, Command},
            testing::large_write,
        },
        wal::Durability,
    };

    /// A subscriber that little of the log concerns hears something before all of it has been read.
    #[tokio::test(start_paused = true)]
    async fn a_log_without_anything_for_the_subscriber_is_read_a_part_at_a_time() {
        const MESSAGES: u64 = 30;
        let (id, writer) = (ProcessId::router(1), ProcessId::client(1));
        let (events, mut heard) = mpsc::channel(16);
        let config = Config::evenly(1, 1).expect("a ring");
        let (members, network, timing) = ([id].into(), Network::new(), Timing::default());
        let consensus = Consensus::start(id, &members, config, Durability::Memory, &timing, &network, events);
        let consensus = consensus.await.expect("starts");
        while !matches!(heard.recv().await, Some(Event::Leader(_))) {}
        tokio::spawn(async move { while heard.recv().await.is_some() {} });
        let large =
            |sequence| Batch(vec![Command::Message(Arc::new(large_write(writer, sequence, 1 << 20)))]);
        consensus.propose_now(Batch(vec![Command::Join(writer, 1, 1)])).await.expect("it leads");
        for sequence in 1..=MESSAGES {
            consensus.propose_now(large(sequence)).await.expect("it leads");
        }
        let (reader, storage, other) = (consensus.reader(), ProcessId::storage(1), ProcessId::client(2));
        let all = async |to: ProcessId, after: Ts| {
            let (mut place, mut through, mut reads, mut got) = (None, after, 0, 0);
            loop {
                let (deliveries, reached) =
                    collect(&reader, &mut place, to, through).await.expect("the log is there");
                assert!(reached >= through);
                (reads, got, through) = (reads + 1, got + deliveries.len() as u64, reached);
                if through == Ts(MESSAGES) {
                    return (reads, got);
                }
            }
        };
        let (reads, got) = all(other, Ts::ZERO).await;
        assert!(reads >= MESSAGES as usize / READS && got == 0, "{reads} reads");
        let (reads, got) = all(storage, Ts::ZERO).await;
        assert!(reads >= MESSAGES as usize - 2 && got == MESSAGES, "{got} messages in {reads} reads");
        assert_eq!(all(storage, Ts(MESSAGES - 5)).await.1, 5);
    }
}
