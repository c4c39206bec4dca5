//! Sending without waiting: what [`crate::network`] asks of a task that receives.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::mpsc;

use crate::{
    message::ProcessId,
    network::{Lane, Sender, TrySendError},
    wire::Wire,
};

/// Sends to many destinations, each lane of each in order. What does not fit into a mailbox at once waits in a queue
/// with a task of its own; how much that can be is bounded by the protocol (operations in progress).
pub(crate) struct Outbox {
    sender: Sender,
    queues: HashMap<(ProcessId, Lane), Queue>,
    unreachable: mpsc::UnboundedSender<ProcessId>,
}

struct Queue {
    waiting: Arc<AtomicUsize>,
    wires: mpsc::UnboundedSender<Wire>,
}

impl Outbox {
    /// An outbox, and where it reports destinations that are not there.
    pub(crate) fn new(sender: Sender) -> (Outbox, mpsc::UnboundedReceiver<ProcessId>) {
        let (unreachable, reports) = mpsc::unbounded_channel();
        (Outbox { sender, queues: HashMap::new(), unreachable }, reports)
    }

    /// Who sends.
    pub(crate) fn id(&self) -> ProcessId {
        self.sender.id()
    }

    /// Sends, now or later. To a destination that is not there, nothing is sent, and it is reported.
    pub(crate) fn send(&mut self, to: ProcessId, wire: Wire) {
        let lane = wire.lane();
        let mut wire = wire;
        let idle =
            self.queues.get(&(to, lane)).is_none_or(|queue| queue.waiting.load(Ordering::Acquire) == 0);
        if idle {
            match self.sender.try_send(to, wire) {
                Ok(()) => return,
                Err(TrySendError::Unreachable(_)) => {
                    // The receiver is this process's own task, which may be ending.
                    let _ = self.unreachable.send(to);
                    return;
                }
                Err(TrySendError::Full(_, back)) => wire = *back,
            }
        }
        let queue = self.queues.entry((to, lane)).or_insert_with(|| {
            let (wires, waiting_wires) = mpsc::unbounded_channel();
            let waiting = Arc::new(AtomicUsize::new(0));
            let task =
                drain(self.sender.clone(), to, waiting_wires, waiting.clone(), self.unreachable.clone());
            tokio::spawn(task);
            Queue { waiting, wires }
        });
        queue.waiting.fetch_add(1, Ordering::AcqRel);
        // The task ends only after its queue has been dropped.
        let _ = queue.wires.send(wire);
    }
}

async fn drain(
    sender: Sender,
    to: ProcessId,
    mut wires: mpsc::UnboundedReceiver<Wire>,
    waiting: Arc<AtomicUsize>,
    unreachable: mpsc::UnboundedSender<ProcessId>,
) {
    while let Some(wire) = wires.recv().await {
        let sent = sender.send(to, wire).await;
        waiting.fetch_sub(1, Ordering::AcqRel);
        if sent.is_err() && unreachable.send(to).is_err() {
            return;
        }
    }
}
