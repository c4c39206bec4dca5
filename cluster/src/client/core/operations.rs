//! What a client process has asked and is not answered in full.

use std::cmp::Reverse;

use carousel_engine::{TableId, Ts, operation::OperationKind};

use super::{Core, Open};
use crate::message::{Body, Message, MessageId, ProcessId, ReadIsolation};

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// It is not known to have a place in the m-seq.
    Submitted,
    /// It has its place in the m-seq, and not all answers.
    Ordered,
    /// It is a read that takes no place in the m-seq, and has not all answers.
    Reading,
    /// It is not known to have a place in the m-seq, but may still get one; nobody waits for its answer any more.
    Abandoned,
}

/// An operation that is not answered in full.
#[derive(Clone, Debug)]
pub struct OpenOperation {
    /// Which message it is.
    pub id: MessageId,
    /// What it does, in a word or two of SQL.
    pub kind: &'static str,
    /// The tables it names.
    pub tables: Vec<TableId>,
    /// How it is ordered if it is a read of rows.
    pub isolation: Option<ReadIsolation>,
    /// The `Ts` it reads at if it reads under a pin.
    pub read_ts: Option<Ts>,
    /// How far it has come.
    pub state: OperationState,
    /// The storage processes that owe an answer, in ascending order.
    pub waits_for: Vec<ProcessId>,
    /// For how long it has been open, in milliseconds.
    pub age_ms: u64,
}

impl Core {
    /// What is open, and what has been given up and may still be ordered, the oldest first.
    pub(crate) fn operations(&self) -> Vec<OpenOperation> {
        let open = self.open.values().map(|open| self.open_operation(open));
        let abandoned = self.window.iter().filter_map(|message| {
            let (_, submitted_ms) = self.ended.get(&message.id.sequence)?;
            let (state, isolation) = (OperationState::Abandoned, ReadIsolation::Sequential);
            Some(self.operation(message, state, isolation, Vec::new(), *submitted_ms))
        });
        let mut operations: Vec<OpenOperation> = open.chain(abandoned).collect();
        operations.sort_unstable_by_key(|operation| (Reverse(operation.age_ms), operation.id));
        operations
    }

    fn open_operation(&self, open: &Open) -> OpenOperation {
        let message = &open.message;
        let state = match () {
            () if !message.id.is_ordered() => OperationState::Reading,
            () if self.is_ordered(message.id.sequence) => OperationState::Ordered,
            () => OperationState::Submitted,
        };
        let mut waits_for: Vec<ProcessId> = match &message.body {
            // Those whose rows are still to be fetched, too.
            Body::Data(_) => {
                let fetched_from = open.fetching.values().map(|fetching| fetching.from);
                open.unanswered_by().into_iter().chain(fetched_from).collect()
            }
            _ => Vec::new(),
        };
        waits_for.sort_unstable();
        waits_for.dedup();
        self.operation(message, state, open.isolation, waits_for, open.submitted_ms)
    }

    fn operation(
        &self,
        message: &Message,
        state: OperationState,
        isolation: ReadIsolation,
        waits_for: Vec<ProcessId>,
        submitted_ms: u64,
    ) -> OpenOperation {
        let (kind, read_ts) = match &message.body {
            Body::Data(data) => (data.operation.open().map_or("unreadable", |o| kind(&o.kind)), data.read_ts),
            Body::Ddl(_) => ("DDL", None),
            Body::Pin { .. } => ("pin", None),
            Body::Checkpoint => ("checkpoint", None),
            Body::Configuration(_) => ("ALTER CLUSTER", None),
        };
        OpenOperation {
            id: message.id,
            kind,
            tables: message.tables.iter().map(|(table, _)| *table).collect(),
            isolation: (kind == "SELECT").then_some(isolation),
            read_ts,
            state,
            waits_for,
            age_ms: self.now_ms.saturating_sub(submitted_ms),
        }
    }
}

fn kind(kind: &OperationKind) -> &'static str {
    match kind {
        OperationKind::Read(_) => "SELECT",
        OperationKind::Insert(_) => "INSERT",
        OperationKind::Update(_) => "UPDATE",
        OperationKind::Delete(_) => "DELETE",
        OperationKind::Truncate => "TRUNCATE TABLE",
        OperationKind::CreateTable(_) => "CREATE TABLE",
        OperationKind::DropTable => "DROP TABLE",
    }
}
