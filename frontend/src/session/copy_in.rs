//! COPY FROM STDIN: rows are parsed as they arrive and staged to the storage processes while more come in; one message
//! at the end names them all. Until then nothing is visible, and nothing stays if the COPY does not get there.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use carousel_cluster::{
    client::{Client, Failure, Part, Request, Stager, staged_ranges},
    message::{Body, StagedPayload},
};
use carousel_engine::{
    SqlError, SqlState,
    operation::{InsertRows, OperationKind, RowBatch},
};
use carousel_planner::copy::CopyIn;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Result, Session,
    execute::{INLINE_BYTES, Written, changing},
    ids::Ids,
};
use crate::{
    connection::Failed,
    copy::input::{CopyReader, ParsedBatch},
    protocol::{
        frames::Frame,
        frontend::{self, FrontendMessage},
    },
};

/// Batches that wait to be staged, at most.
const STAGING_QUEUE: usize = 1;
/// How often rows are staged again because the ring changes under them.
const STAGINGS: usize = 10;
/// Row identifiers that are asked for at a time.
const ID_BLOCK: u64 = 4096;

impl Session<'_> {
    /// Takes the rows of a COPY and inserts them, all or none; gives their number.
    pub(super) async fn copy_in(&mut self, copy: Arc<CopyIn>) -> Result<u64> {
        self.connection.output.copy_in(copy.columns.len());
        self.connection.flush().await?;
        let context = self.planner_settings().eval_context();
        let reader = CopyReader::new(copy.clone(), context, self.longest_row);
        let mut rows = Rows { copy, reader, count: 0, first: None, staging: None };
        loop {
            let frame = self.connection.next_message_of_statement().await?;
            match copy_message(&frame)? {
                Some(FrontendMessage::CopyData(data)) => {
                    rows.reader.feed(&data);
                    while let Some(batch) = rows.reader.full_batch()? {
                        self.take(&mut rows, batch).await?;
                    }
                }
                Some(FrontendMessage::CopyDone) => break,
                Some(FrontendMessage::CopyFail(reason)) => {
                    let message = format!("COPY from stdin failed: {reason}");
                    return Err(SqlError::new(SqlState::QUERY_CANCELED, message).into());
                }
                Some(_) => return Err(Failed::GONE),
                None => {}
            }
        }
        rows.reader.end_input();
        while let Some(batch) = rows.reader.full_batch()? {
            self.take(&mut rows, batch).await?;
        }
        if let Some(batch) = rows.reader.take_batch() {
            self.take(&mut rows, batch).await?;
        }
        self.insert(rows).await
    }

    /// Completes a batch of parsed rows, and hands it on to be staged, unless it may turn out to be the only one.
    async fn take(&mut self, rows: &mut Rows, batch: ParsedBatch) -> Result<()> {
        let settings = self.planner_settings();
        let mut ids = Ids::new(&self.client, ID_BLOCK.min(batch.rows() as u64));
        let count = batch.rows() as u64;
        let columns = batch.columns.clone();
        let completed = rows.copy.rows(columns, rows.count, &settings, &mut ids);
        let completed = completed.map_err(|bad| batch.locate(bad))?;
        ids.check()?;
        rows.count += count;
        let is_first = rows.first.is_none() && rows.staging.is_none();
        if is_first && completed.rows.get_array_memory_size() <= INLINE_BYTES {
            rows.first = Some(completed);
            return Ok(());
        }
        if rows.staging.is_none() {
            let mut staging = Staging::start(self.client.clone());
            if let Some(first) = rows.first.take() {
                self.connection.interrupts.guard(staging.push(first)).await??;
            }
            rows.staging = Some(staging);
            rows.first = Some(RowBatch {
                rows: RecordBatch::new_empty(completed.rows.schema()),
                positions: Vec::new(),
                ordinals: Vec::new(),
            });
        }
        if let Some(staging) = &mut rows.staging {
            self.connection.interrupts.guard(staging.push(completed)).await??;
        }
        Ok(())
    }

    async fn insert(&mut self, rows: Rows) -> Result<u64> {
        let Some(first) = rows.first else { return Ok(0) };
        let staging = rows.staging;
        // What is staged takes the place of the rows in the message.
        let request = rows.copy.request(first)?;
        let mut message =
            Request { tables: request.tables.into(), ranges: request.ranges.into(), body: request.body };
        let is_staged = staging.is_some();
        let mut stager = None;
        if let Some(staging) = staging {
            let mut staged = self.connection.interrupts.guard(staging.finish()).await??;
            for _ in 0..STAGINGS {
                if !staged.1.is_outdated() {
                    break;
                }
                staged = self.connection.interrupts.guard(staged.1.again()).await??;
            }
            let (payload, staged_by) = staged;
            name_payload(&mut message, payload)?;
            stager = Some(staged_by);
        }
        let tables = message.tables.clone();
        loop {
            match self.write_staged(message.clone(), stager.take()).await? {
                // It returns no rows.
                Ok(Written { parts, .. }) => {
                    let Some(Part::Done { ts, rows }) = parts.last() else {
                        return Err(SqlError::internal("an INSERT ended before its end").into());
                    };
                    self.last_ts = Some(*ts);
                    return Ok(*rows);
                }
                Err(Failure::Sql(error)) => return Err(rows.reader.locate(error).into()),
                Err(Failure::Stale { ts }) => {
                    self.follow_catalog(ts).await?;
                    // Rows were made for one version of the table. Those that were staged have gone with a message that named
                    // them at the moment at which the ring changed.
                    if is_staged || !self.client.catalog().is_current(&tables) {
                        return Err(changing().into());
                    }
                }
            }
        }
    }
}

/// Replaces the rows of an INSERT by those of a payload.
fn name_payload(message: &mut Request, payload: StagedPayload) -> Result<()> {
    message.ranges = staged_ranges(&payload);
    if let Body::Data(data) = &mut message.body
        && let OperationKind::Insert(insert) = &mut data.operation.open_mut()?.kind
    {
        insert.rows = InsertRows::Staged(payload.id);
        data.staged = Some(Box::new(payload));
        return Ok(());
    }
    Err(SqlError::internal("COPY made a message that inserts nothing").into())
}

/// A message during COPY; `None` for those without meaning here.
fn copy_message(frame: &Frame) -> Result<Option<FrontendMessage>> {
    match frame.kind {
        b'd' | b'c' | b'f' | b'X' => Ok(Some(frontend::decode(frame.kind, frame.body.clone())?)),
        // As PostgreSQL does: a client may have sent these before it knew.
        b'H' | b'S' => Ok(None),
        other => Err(SqlError::new(
            SqlState::PROTOCOL_VIOLATION,
            format!("unexpected message type 0x{other:02X} during COPY from stdin"),
        )
        .into()),
    }
}

/// The rows of a COPY so far.
struct Rows {
    copy: Arc<CopyIn>,
    reader: CopyReader,
    count: u64,
    /// The first batch: it travels in the message when it stays the only one, and is small. Without rows, once they are staged.
    first: Option<RowBatch>,
    staging: Option<Staging>,
}

/// What the staging task is told.
enum Staged {
    Batch(RowBatch),
    /// There are no more: without this, what was staged is removed.
    End,
}

/// A task that stages batches while the session parses the next ones.
struct Staging {
    queue: Option<mpsc::Sender<Staged>>,
    task: JoinHandle<carousel_engine::error::Result<Option<(StagedPayload, Stager)>>>,
}

impl Staging {
    fn start(client: Client) -> Staging {
        let (queue, mut batches) = mpsc::channel(STAGING_QUEUE);
        let task = tokio::spawn(async move {
            let mut stager = client.stage();
            loop {
                match batches.recv().await {
                    Some(Staged::Batch(batch)) => stager.push(&batch).await?,
                    Some(Staged::End) => return Ok(Some((stager.finish().await?, stager))),
                    None => return Ok(None),
                }
            }
        });
        Staging { queue: Some(queue), task }
    }

    async fn send(&mut self, staged: Staged) -> carousel_engine::error::Result<()> {
        if let Some(queue) = &self.queue
            && queue.send(staged).await.is_ok()
        {
            return Ok(());
        }
        // The task has ended: with an error.
        self.queue = None;
        self.outcome().await.map(drop)
    }

    async fn push(&mut self, batch: RowBatch) -> carousel_engine::error::Result<()> {
        self.send(Staged::Batch(batch)).await
    }

    async fn finish(mut self) -> carousel_engine::error::Result<(StagedPayload, Stager)> {
        self.send(Staged::End).await?;
        self.outcome().await?.ok_or_else(|| SqlError::internal("the staging of a COPY was given up"))
    }

    async fn outcome(&mut self) -> carousel_engine::error::Result<Option<(StagedPayload, Stager)>> {
        match (&mut self.task).await {
            Ok(outcome) => outcome,
            Err(error) => Err(SqlError::internal(format!("the staging of a COPY ended: {error}"))),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.task.abort();
    }
}
