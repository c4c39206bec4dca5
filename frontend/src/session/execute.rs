//! The way of a plan through the cluster: bound, submitted, planned again when the catalog has moved on, and its
//! answer poured through what runs above the scan.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use arrow::record_batch::RecordBatch;
use carousel_cluster::{
    client::{Client, Failure, Part, Pin, Request, Stager, Submission, staged_ranges},
    message::{Body, ReadIsolation, StagedPayload},
};
use carousel_engine::{
    SqlError, SqlState, Ts, Type, Value,
    operation::{InsertRows, OperationKind, RowBatch},
};
use carousel_planner::{
    Above, Execution, OutputColumn, Plan, Planned, Reservation, Statement, copy::CopyOptions,
    plan::InsertSelectPlan,
};

use super::{
    Result, Session, command::output_columns, ids::Ids, relational::Running, texts::compute,
    transaction::State,
};
use crate::connection::{Failed, Interrupts};

/// How often a statement is tried because the catalog changed under it.
const ATTEMPTS: usize = 10;
/// How often a statement takes another snapshot because rows have moved that it was to read. While the ring changes all the time
/// every other one may be too old.
const SNAPSHOTS: usize = 100;
/// Rows of an INSERT that take more bytes than this are staged around the m-seq (DESIGN, decision 12).
pub const INLINE_BYTES: usize = 256 << 10;
/// Rows of RETURNING that take more bytes than this are sent as they come.
const HELD_BYTES: usize = 1 << 20;
/// Rows in one staged chunk.
const STAGED_ROWS: usize = 16 << 10;
/// How long the storage processes keep a block's snapshot without hearing of it.
const PIN_LEASE: Duration = Duration::from_secs(30);

/// What a statement turned out to be.
pub enum Outcome {
    /// Rows may follow; the command tag comes after them.
    Rows(Cursor),
    /// Rows follow as COPY data.
    CopyOut(Cursor, CopyOptions),
    /// It is done; this is its command tag.
    Done(String),
}

/// What is known of a write that is done.
pub(super) struct Written {
    pub(super) parts: Vec<Part>,
    /// What the others come from, which are rows and then its end.
    rest: Option<Submission>,
}

/// A statement that runs: its rows as they arrive.
pub struct Cursor {
    planned: Arc<Planned>,
    /// The columns of its rows; `None` when it returns none.
    pub columns: Option<Vec<OutputColumn>>,
    submission: Option<Submission>,
    running: Option<Running>,
    above: Option<Above>,
    /// A part that arrived and was not looked at.
    arrived: Option<Part>,
    ready: VecDeque<RecordBatch>,
    /// Room for those rows that had to be there before any came out.
    held: Option<Reservation>,
    /// Where in the m-seq it was executed, or what it read, as soon as that is known.
    pub(super) ts: Option<Ts>,
    /// Rows that a write affected.
    affected: Option<u64>,
    /// Rows that were sent to the client.
    pub sent: u64,
    /// What the client should know at the end.
    pub notices: Vec<SqlError>,
}

impl Cursor {
    /// A statement whose rows are known.
    pub fn ready(
        planned: Arc<Planned>,
        columns: Option<Vec<OutputColumn>>,
        rows: Vec<RecordBatch>,
    ) -> Cursor {
        Cursor {
            planned,
            columns,
            submission: None,
            running: None,
            above: None,
            arrived: None,
            ready: rows.into(),
            held: None,
            ts: None,
            affected: None,
            sent: 0,
            notices: Vec::new(),
        }
    }

    /// Whether it has changed rows or the catalog.
    pub fn is_write(&self) -> bool {
        self.planned.plan.is_write()
    }

    /// How many reads it holds open.
    pub fn open_reads(&self) -> usize {
        usize::from(self.submission.is_some()) + self.running.as_ref().map_or(0, |running| running.reads)
    }

    /// The command tag, once all rows have been taken.
    pub fn tag(&self) -> String {
        self.planned.plan.tag(self.affected.unwrap_or(self.sent))
    }

    /// The next rows, or `None` after the last.
    ///
    /// # Errors
    /// How the statement failed, or why it must stop.
    pub async fn next(&mut self, interrupts: &mut Interrupts) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                if batch.num_rows() > 0 && self.columns.is_some() {
                    return Ok(Some(batch));
                }
                continue;
            }
            if let Some(running) = &mut self.running {
                match interrupts.guard(running.next()).await? {
                    Some(Ok(batch)) => self.ready.push_back(batch),
                    Some(Err(failure)) => return Err(failed_midway(failure).into()),
                    None => self.running = None,
                }
                continue;
            }
            let part = match (self.arrived.take(), &mut self.submission) {
                (Some(part), _) => part,
                (None, None) => return Ok(None),
                (None, Some(submission)) => {
                    next_part(submission, interrupts).await?.map_err(failed_midway)?
                }
            };
            self.take(part)?;
        }
    }

    fn take(&mut self, part: Part) -> carousel_engine::error::Result<()> {
        match (part, &mut self.above) {
            (Part::Rows(batch), Some(above)) => {
                let progress = above.rows(batch)?;
                self.ready.extend(progress.output);
                if progress.done {
                    self.finish()?;
                }
            }
            (Part::Groups(groups), Some(above)) => above.groups(groups)?,
            (Part::Rows(_) | Part::Groups(_), None) => {}
            (Part::Done { ts, rows }, _) => {
                // What reads under a pin says when it was asked, not what it saw.
                self.ts = self.ts.or(Some(ts));
                self.affected = self.is_write().then_some(rows);
                self.finish()?;
            }
            (Part::Ddl { ts, effect }, _) => {
                self.ts = Some(ts);
                self.notices = effect.notices;
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Nothing more is needed of the cluster.
    fn finish(&mut self) -> carousel_engine::error::Result<()> {
        self.submission = None;
        if let Some(above) = self.above.take() {
            let (rows, held) = above.finish()?;
            self.ready.extend(rows);
            self.held = Some(held);
        }
        Ok(())
    }
}

/// The next part of a read's answer, unless the statement must stop.
async fn next_part(
    submission: &mut Submission,
    interrupts: &mut Interrupts,
) -> Result<Result<Part, Failure>> {
    let part = interrupts.guard(submission.next()).await?;
    Ok(part.ok_or_else(|| SqlError::internal("an answer ended before its end"))?)
}

/// Whether all reads of a statement, or of a transaction block, see one state. Basic reads need no place in the order of
/// messages, and get none by being several.
pub(super) fn sees_one_state(isolation: ReadIsolation) -> bool {
    isolation != ReadIsolation::Basic
}

impl Session<'_> {
    /// Submits a plan that goes through [`carousel_planner::bind()`], and waits until its answer begins. `prepared` as for
    /// [`Session::begin`].
    pub(super) async fn execute(
        &mut self,
        mut planned: Arc<Planned>,
        statement: &Statement,
        prepared: Option<&[Option<Type>]>,
        parameters: &[Value],
    ) -> Result<Cursor> {
        let shares_snapshot = self.transaction.pin.is_some();
        let (mut attempts, mut snapshots) = (1, 1);
        loop {
            match self.bind_and_attempt(&planned, statement, parameters).await {
                Ok(Ok(cursor)) => return Ok(cursor),
                Ok(Err(ts)) if attempts < ATTEMPTS => {
                    attempts += 1;
                    planned = self.plan_again(ts, &planned, statement, prepared).await?;
                }
                Ok(Err(_)) => return Err(changing().into()),
                // Nobody has seen anything of its snapshot, so it may have another one, at which those answer who hold its
                // ranges now.
                Err(Failed::Statement(error))
                    if error.code == SqlState::SERIALIZATION_FAILURE
                        && !shares_snapshot
                        && snapshots < SNAPSHOTS
                        && !(planned.plan.is_write() && self.transaction.has_written) =>
                {
                    self.transaction.pin = None;
                    snapshots += 1;
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Binds a plan and submits it. `Err` as for [`Session::attempt`].
    async fn bind_and_attempt(
        &mut self,
        planned: &Arc<Planned>,
        statement: &Statement,
        parameters: &[Value],
    ) -> Result<std::result::Result<Cursor, Ts>> {
        if let Plan::InsertSelect(insert) = &planned.plan {
            return self.insert_select(planned, insert, statement, parameters).await;
        }
        let settings = self.planner_settings();
        let mut ids = Ids::new(&self.client, 1);
        let execution = compute(statement.text().len(), || {
            carousel_planner::bind(&planned.plan, parameters, &settings, &mut ids)
        })?;
        ids.check()?;
        self.attempt(planned.clone(), execution, statement).await
    }

    /// Runs the query of INSERT … SELECT and then inserts its rows. `Err` as for [`Session::attempt`].
    async fn insert_select(
        &mut self,
        planned: &Arc<Planned>,
        insert: &InsertSelectPlan,
        statement: &Statement,
        parameters: &[Value],
    ) -> Result<std::result::Result<Cursor, Ts>> {
        let settings = self.planner_settings();
        let mut ids = Ids::new(&self.client, 1);
        let execution = carousel_planner::bind(&insert.source.plan, parameters, &settings, &mut ids)?;
        ids.check()?;
        let mut selected = match self.attempt(insert.source.clone(), execution, statement).await? {
            Ok(cursor) => cursor,
            Err(ts) => return Ok(Err(ts)),
        };
        let mut memory = settings.memory.reservation();
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = selected.next(&mut self.connection.interrupts).await? {
            memory.grow(batch.get_array_memory_size())?;
            bytes += batch.get_array_memory_size();
            batches.push(batch);
        }
        // Nor does it keep others' reads waiting any more.
        drop(selected);
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let mut ids = Ids::new(&self.client, rows.max(1) as u64);
        let execution = compute(bytes, || {
            carousel_planner::bind::bind_insert_select(insert, &batches, parameters, &settings, &mut ids)
        })?;
        ids.check()?;
        drop(batches);
        self.attempt(planned.clone(), execution, statement).await
    }

    /// Submits what a plan was bound to, and waits until its answer begins. `Err` when the plan was made against
    /// another catalog than that of this `Ts`; then it had no effect.
    async fn attempt(
        &mut self,
        planned: Arc<Planned>,
        execution: Execution,
        statement: &Statement,
    ) -> Result<std::result::Result<Cursor, Ts>> {
        self.check_snapshot(&planned, statement)?;
        let columns = match &planned.plan {
            Plan::CopyOut(_) => planned.output.clone(),
            _ => output_columns(&planned),
        };
        let request = match execution {
            Execution::Rows(rows) => return Ok(Ok(Cursor::ready(planned, columns, rows))),
            Execution::Relational(relational) => {
                let isolation = self.read_isolation(statement);
                let mut running = self.start_relational(*relational, isolation).await?;
                let mut cursor = Cursor::ready(planned, columns, Vec::new());
                match self.connection.interrupts.guard(running.next()).await? {
                    Some(Ok(batch)) => cursor.ready.push_back(batch),
                    Some(Err(Failure::Sql(error))) => return Err(error.into()),
                    Some(Err(Failure::Stale { ts })) => return Ok(Err(ts)),
                    None => {}
                }
                (cursor.ts, self.last_ts) = (running.ts, None);
                cursor.running = Some(running);
                return Ok(Ok(cursor));
            }
            Execution::Request(request) => *request,
        };
        let mut cursor = Cursor::ready(planned, columns, Vec::new());
        cursor.above = Some(request.above);
        if request.ranges.is_empty() && matches!(request.body, Body::Data(_)) {
            cursor.affected = cursor.is_write().then_some(0);
            cursor.finish()?;
            return Ok(Ok(cursor));
        }
        let message =
            Request { tables: request.tables.into(), ranges: request.ranges.into(), body: request.body };
        let begun = if cursor.is_write() {
            self.write(message).await?.and_then(|Written { parts, rest }| {
                self.last_ts = None;
                cursor.submission = rest;
                Ok(parts.into_iter().try_for_each(|part| cursor.take(part))?)
            })
        } else {
            let isolation = self.read_isolation(statement);
            self.read(message, isolation).await?.map(|(part, submission)| {
                let pin = self.transaction.pin.as_ref().filter(|_| sees_one_state(isolation));
                (cursor.ts, self.last_ts) = (pin.map(Pin::ts), None);
                cursor.arrived = Some(part);
                cursor.submission = Some(submission);
            })
        };
        match begun {
            Ok(()) => Ok(Ok(cursor)),
            Err(Failure::Sql(error)) => Err(error.into()),
            Err(Failure::Stale { ts }) => Ok(Err(ts)),
        }
    }

    /// Refuses to read a table that has been made behind the transaction's snapshot: there it has no rows, whatever a table of
    /// its name had.
    fn check_snapshot(&self, planned: &Planned, statement: &Statement) -> Result<()> {
        let Some(pin) = &self.transaction.pin else { return Ok(()) };
        let reads = !planned.plan.is_write() && sees_one_state(self.read_isolation(statement));
        if reads && planned.tables.iter().any(|(_, version)| *version > pin.ts()) {
            let message = "could not serialize access due to a table made after the transaction's snapshot";
            return Err(SqlError::new(SqlState::SERIALIZATION_FAILURE, message).into());
        }
        Ok(())
    }

    /// Plans a statement again that was planned against another catalog than that of a `Ts`.
    async fn plan_again(
        &mut self,
        ts: Ts,
        planned: &Planned,
        statement: &Statement,
        prepared: Option<&[Option<Type>]>,
    ) -> Result<Arc<Planned>> {
        self.follow_catalog(ts).await?;
        match prepared {
            Some(declared) => self.plan_as_before(planned, statement, declared).await,
            // Nobody has been told of its columns yet.
            None => Ok(Arc::new(self.plan(statement, &[]).await?)),
        }
    }

    /// Waits until this client knows the catalog of a `Ts`.
    pub(super) async fn follow_catalog(&mut self, ts: Ts) -> Result<()> {
        let client = self.client.clone();
        self.connection.interrupts.guard(client.catalog_at(ts)).await??;
        Ok(())
    }

    /// Submits a read and waits for the first part of its answer.
    async fn read(
        &mut self,
        mut message: Request,
        isolation: ReadIsolation,
    ) -> Result<Result<(Part, Submission), Failure>> {
        if let Body::Data(data) = &mut message.body
            && self.transaction.state() == State::Open
            && sees_one_state(isolation)
        {
            data.read_ts = Some(self.snapshot().await?);
        }
        let interrupts = &mut self.connection.interrupts;
        let mut submission = interrupts.guard(self.client.submit_read(message, isolation)).await??;
        let part = next_part(&mut submission, interrupts).await?;
        Ok(part.map(|part| (part, submission)))
    }

    /// Submits a write and waits for the whole answer, or until it is done and has given many rows. Between the two the write
    /// is in doubt; afterwards nothing but the end of the session stops the statement any more.
    pub(super) async fn write(&mut self, mut message: Request) -> Result<Result<Written, Failure>> {
        let stager = self.stage_if_large(&mut message).await?;
        self.write_staged(message, stager).await
    }

    /// As [`write`](Session::write), of rows that have been staged if there is a stager.
    pub(super) async fn write_staged(
        &mut self,
        message: Request,
        stager: Option<Stager>,
    ) -> Result<Result<Written, Failure>> {
        let interrupts = &mut self.connection.interrupts;
        let mut submission = interrupts.guard(self.client.submit(message)).await??;
        stager.into_iter().for_each(Stager::submitted);
        let had_written = std::mem::replace(&mut self.transaction.has_written, true);
        self.in_doubt = true;
        let (mut parts, mut bytes) = (Vec::new(), 0);
        while let Some(part) = interrupts.guard(submission.next()).await? {
            match part {
                Ok(Part::Rows(batch)) => {
                    bytes += batch.get_array_memory_size();
                    parts.push(Part::Rows(batch));
                    // There are rows only of what has taken effect.
                    if bytes > HELD_BYTES {
                        interrupts.end_statement();
                        return Ok(Ok(Written { parts, rest: Some(submission) }));
                    }
                }
                Ok(part) => parts.push(part),
                Err(failure) => {
                    self.in_doubt = false;
                    if let Failure::Stale { .. } = failure {
                        self.transaction.has_written = had_written;
                    }
                    return Ok(Err(failure));
                }
            }
        }
        interrupts.end_statement();
        Ok(Ok(Written { parts, rest: None }))
    }

    /// How the statement's reads are ordered among the writes: as its hint says, else as the session's setting does.
    fn read_isolation(&self, statement: &Statement) -> ReadIsolation {
        let setting = self.settings.get("carousel.read_isolation");
        match statement.read_isolation().unwrap_or(setting.as_ref()) {
            "snapshot" => ReadIsolation::Snapshot,
            "basic" => ReadIsolation::Basic,
            _ => ReadIsolation::Sequential,
        }
    }

    /// What the reads of the transaction block see; fixed by its first read.
    pub(super) async fn snapshot(&mut self) -> Result<Ts> {
        if let Some(pin) = &self.transaction.pin {
            return Ok(pin.ts());
        }
        let pin = self.pin().await?;
        Ok(self.transaction.pin.insert(pin).ts())
    }

    /// A `Ts` at which several reads see the same.
    pub(super) async fn pin(&mut self) -> Result<Pin> {
        let pinned = self.connection.interrupts.guard(self.client.pin(PIN_LEASE)).await?;
        Ok(pinned.map_err(|failure| match failure {
            Failure::Sql(error) => error,
            Failure::Stale { .. } => SqlError::internal("a pin was stale"),
        })?)
    }

    /// Sends the rows of a large INSERT around the m-seq.
    async fn stage_if_large(&mut self, message: &mut Request) -> Result<Option<Stager>> {
        let Body::Data(data) = &mut message.body else { return Ok(None) };
        let OperationKind::Insert(insert) = &data.operation.open()?.kind else { return Ok(None) };
        let InsertRows::Inline(rows) = &insert.rows else { return Ok(None) };
        if rows.rows.get_array_memory_size() <= INLINE_BYTES {
            return Ok(None);
        }
        let rows = rows.clone();
        let (staged, stager) = self.connection.interrupts.guard(stage(&self.client, &rows)).await??;
        message.ranges = staged_ranges(&staged);
        let operation = data.operation.open_mut()?;
        if let OperationKind::Insert(insert) = &mut operation.kind {
            insert.rows = InsertRows::Staged(staged.id);
        }
        data.staged = Some(Box::new(staged));
        Ok(Some(stager))
    }
}

async fn stage(client: &Client, rows: &RowBatch) -> carousel_engine::error::Result<(StagedPayload, Stager)> {
    let mut stager = client.stage();
    let count = rows.rows.num_rows();
    for first in (0..count).step_by(STAGED_ROWS) {
        let length = STAGED_ROWS.min(count - first);
        let chunk = RowBatch {
            rows: rows.rows.slice(first, length),
            positions: rows.positions[first..first + length].to_vec(),
            ordinals: rows.ordinals[first..first + length].to_vec(),
        };
        stager.push(&chunk).await?;
    }
    Ok((stager.finish().await?, stager))
}

/// 40001: a statement that was overtaken again and again.
pub fn changing() -> SqlError {
    SqlError::new(
        SqlState::SERIALIZATION_FAILURE,
        "could not serialize access due to concurrent changes of tables or their placement",
    )
    .with_hint("The statement had no effect; send it again.")
}

/// How a statement has failed of which rows may have been sent, so that it cannot be planned again. Processes that answer a
/// basic read may execute a change of its table at different times.
fn failed_midway(failure: Failure) -> SqlError {
    match failure {
        Failure::Sql(error) => error,
        Failure::Stale { .. } => changing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_dropped_under_a_read_is_no_internal_error() {
        let error = failed_midway(Failure::Stale { ts: Ts(1) });
        assert_eq!(error.code, SqlState::SERIALIZATION_FAILURE);
    }
}
