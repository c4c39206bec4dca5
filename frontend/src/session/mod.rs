//! A session: one client's statements, one after the other.
//!
//! This file has the session's state, its start and its message loop with the simple query protocol; `extended` has
//! the extended one, `execute` the way of a plan through the cluster, `command` the statements about the session
//! itself, `relational` those that read several tables, `copy_in` COPY FROM STDIN, `startup` what a client says first, `texts`
//! what large texts take.

mod cluster;
mod command;
mod copy_in;
mod execute;
mod extended;
mod ids;
mod relational;
mod startup;
mod system;
mod texts;
mod transaction;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use carousel_cluster::{client::Client, message::Body};
use carousel_engine::{SqlError, SqlState, Ts, Type, Value, expr::EvalContext, text::TextWriter};
use carousel_planner::{OutputColumn, Plan, Planned, Settings, Statement};
use pgwire::messages::response::TransactionStatus;

use self::{
    execute::{Cursor, Outcome},
    extended::{Portal, Prepared},
    texts::{Parsed, compute},
    transaction::{State, Transaction},
};
use crate::{
    connection::{Connection, Failed, OUTPUT_ENOUGH_BYTES},
    copy::output::CopyWriter,
    metering::Meter,
    pg_catalog,
    protocol::{
        Format,
        backend::Severity,
        frames::Frame,
        frontend::{self, FrontendMessage},
        rows::RowEncoder,
    },
    settings::SessionSettings,
};

pub use self::relational::Relations;

type Result<T, E = Failed> = std::result::Result<T, E>;

/// By what a session is known outside.
#[derive(Debug)]
pub struct Identity {
    /// Number, as `pg_backend_pid()` gives it.
    pub process: i32,
    /// What a cancel request must show.
    pub secret: Vec<u8>,
}

/// One client's session.
pub struct Session<'c> {
    connection: &'c mut Connection,
    client: Client,
    relations: Arc<Relations>,
    meter: Arc<Meter>,
    /// When the running statement began.
    begun: Instant,
    process: i32,
    user: Arc<str>,
    database: Arc<str>,
    settings: SessionSettings,
    transaction: Transaction,
    /// A write was submitted, the cluster has not refused it, and the client has not been told of its end.
    in_doubt: bool,
    /// What `carousel.last_ts` shows.
    last_ts: Option<Ts>,
    statements: HashMap<String, Arc<Prepared>>,
    /// About what the prepared statements take, in bytes.
    statements_bytes: usize,
    portals: HashMap<String, Portal>,
    /// The client was told last that the next statement may come.
    idle: bool,
    /// An error in the extended protocol: everything up to the next Sync is left out.
    skipping: bool,
    /// Longest row of COPY data.
    longest_row: usize,
}

impl Session<'_> {
    /// Answers messages until the session ends, and says how it ended.
    pub async fn run(mut self) -> Failed {
        // The greeting.
        if let Err(ended) = self.connection.flush().await {
            return ended;
        }
        loop {
            match self.next_message().await {
                Ok(()) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// Takes and answers one message. An error ends the session.
    async fn next_message(&mut self) -> Result<()> {
        let frame = self.next_frame().await?;
        let kind = frame.kind;
        if self.skipping && !matches!(kind, b'S' | b'X') {
            return Ok(());
        }
        let has_written = self.transaction.has_written;
        match self.answer(frame).await.map_err(|failed| self.in_view_of_writes(failed, has_written)) {
            Ok(()) => {}
            Err(Failed::Statement(error)) => {
                self.fail(&error);
                if frontend::is_extended(kind) {
                    self.skipping = true;
                    // A client may wait for it, and for what came before, without a Sync; its Flush would be left out, too.
                    self.connection.flush().await?;
                } else {
                    self.ready().await?;
                }
            }
            Err(ended) => return Err(ended),
        }
        self.connection.interrupts.end_statement();
        if self.connection.output.bytes.len() >= OUTPUT_ENOUGH_BYTES {
            self.connection.flush().await?;
        }
        Ok(())
    }

    /// Waits for a message, of an idle client for as long as the settings allow.
    async fn next_frame(&mut self) -> Result<Frame> {
        let (setting, code, what) = match self.transaction.state() {
            State::Idle => ("idle_session_timeout", *b"57P05", "idle-session"),
            _ => ("idle_in_transaction_session_timeout", *b"25P03", "idle-in-transaction"),
        };
        let next = self.connection.next_message();
        let idle = std::mem::take(&mut self.idle);
        let Some(limit) = self.settings.timeout(setting).filter(|_| idle) else { return next.await };
        tokio::time::timeout(limit, next).await.unwrap_or_else(|_| {
            let message = format!("terminating connection due to {what} timeout");
            Err(Failed::Session(Some(SqlError::new(SqlState(code), message))))
        })
    }

    async fn answer(&mut self, frame: Frame) -> Result<()> {
        match frontend::decode(frame.kind, frame.into_body())? {
            FrontendMessage::Query(text) => {
                self.simple_query(&text).await?;
                self.ready().await
            }
            FrontendMessage::Sync => self.sync().await,
            FrontendMessage::Flush => self.connection.flush().await,
            FrontendMessage::Terminate => Err(Failed::GONE),
            // What is left of a COPY that failed.
            FrontendMessage::CopyData(_) | FrontendMessage::CopyDone | FrontendMessage::CopyFail(_) => Ok(()),
            message => self.extended(message).await,
        }
    }

    /// Ends an answer: settings that changed, the state, and everything is sent.
    async fn ready(&mut self) -> Result<()> {
        self.transaction.end_implicit();
        self.transaction.several = false;
        if self.transaction.state() == State::Idle {
            self.settings.end(true);
        }
        for (name, value) in self.settings.take_changes() {
            self.connection.output.parameter_status(name, &value);
        }
        let status = match self.transaction.state() {
            State::Idle => TransactionStatus::Idle,
            State::Open => TransactionStatus::Transaction,
            State::Failed => TransactionStatus::Error,
        };
        self.connection.output.ready_for_query(status);
        self.idle = true;
        self.connection.flush().await
    }

    /// How a piece of work ended, as the client must be told. A write that was submitted cannot be taken back, and only the
    /// cluster can refuse it: whatever else ends the statement must not make it look undone. Nor must what fails behind it before
    /// a Sync, though the two would be one transaction in PostgreSQL.
    fn in_view_of_writes(&mut self, failed: Failed, had_written: bool) -> Failed {
        let outcome_unknown = |error: SqlError| {
            SqlError::new(SqlState::OUTCOME_UNKNOWN, error.into_report().message)
                .with_detail("The statement had been submitted and may take effect.")
        };
        match (std::mem::take(&mut self.in_doubt), failed) {
            (false, Failed::Statement(error)) if had_written && error.detail.is_none() => Failed::Statement(
                error.with_detail("The write before it, without a Sync between them, has taken effect."),
            ),
            (false, failed) => failed,
            (true, Failed::Statement(error)) => Failed::Statement(outcome_unknown(error)),
            (true, Failed::Session(error)) => Failed::Session(error.map(outcome_unknown)),
        }
    }

    /// A statement failed.
    fn fail(&mut self, error: &SqlError) {
        self.connection.output.report(Severity::Error, error);
        self.transaction.fail();
        match self.transaction.state() {
            State::Failed => self.portals.values_mut().for_each(Portal::fail),
            // Nothing uses portals before the next Sync, which closes them.
            _ => {
                self.portals.clear();
                self.settings.end(false);
            }
        }
        self.meter.failed();
    }

    fn notice(&mut self, severity: Severity, notice: &SqlError) {
        if severity.is_shown_at(self.settings.get("client_min_messages")) {
            self.connection.output.report(severity, notice);
        }
    }

    fn warning(&mut self, code: SqlState, message: &str) {
        self.notice(Severity::Warning, &SqlError::new(code, message));
    }

    /// A statement begins to run: its time-out starts, and earlier requests to cancel are forgotten.
    fn begin_statement(&mut self) {
        let deadline = self.begin_to_count();
        self.connection.interrupts.begin_statement(deadline);
    }

    /// A statement's time begins; returns until when it may run.
    fn begin_to_count(&mut self) -> Option<Instant> {
        self.begun = Instant::now();
        self.settings.timeout("statement_timeout").map(|limit| self.begun + limit)
    }

    /// Outside of a block, a transaction begins with the first statement after the end of an answer.
    fn begin_implicit(&mut self) {
        self.transaction.begin_implicit();
        self.settings.begin_implicit();
    }

    async fn simple_query(&mut self, text: &str) -> Result<()> {
        self.forget_statement("");
        self.portals.remove("");
        self.begin_statement();
        self.begin_implicit();
        let Parsed { statements, memory: _memory } = self.parse_text(text).await?;
        self.transaction.several = statements.len() > 1;
        if statements.is_empty() {
            self.connection.output.empty_query();
        }
        self.check_implicit_transaction(&statements)?;
        for (index, statement) in statements.iter().enumerate() {
            // A request to cancel may have come since the text did.
            if index > 0 {
                let deadline = self.begin_to_count();
                self.connection.interrupts.go_on(deadline);
            }
            self.run_simple(statement).await?;
        }
        if self.transaction.state() == State::Idle {
            self.portals.clear();
        }
        Ok(())
    }

    /// Several statements in one text are one transaction in PostgreSQL. As long as there are none, a text may hold one
    /// write at most, and nothing that could fail after it.
    fn check_implicit_transaction(&self, statements: &[Statement]) -> Result<()> {
        let Some((_, before)) = statements.split_last() else { return Ok(()) };
        // What is prepared by the text itself, and writes.
        let mut prepared = HashSet::new();
        let mut writes = |statement: &&Statement| {
            let Some(planned) = self.planned_now(statement) else { return is_called_write(statement) };
            match &planned.plan {
                Plan::Prepare { name, statement, .. } => {
                    let inner = self.planned_now(statement);
                    if inner.map_or_else(|| is_called_write(statement), |inner| self.writes(&inner)) {
                        prepared.insert(name.clone());
                    }
                    false
                }
                Plan::Execute { name, .. } if prepared.contains(name) => true,
                _ => self.writes(&planned),
            }
        };
        let Some(first) = before.iter().find(|statement| writes(statement)) else { return Ok(()) };
        let keyword = first.text().split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
        Err(SqlError::unsupported(format!("{keyword} before other statements in one query string"))
            .with_detail("The statements of one query string are one transaction, which would not be atomic.")
            .with_hint("Send each statement by itself; every write is committed when it is answered.")
            .into())
    }

    /// A plan by what is known now, if there is one.
    fn planned_now(&self, statement: &Statement) -> Option<Planned> {
        self.plan_against_known(statement, &[]).ok()
    }

    /// Whether a plan writes, looking through EXECUTE.
    fn writes(&self, planned: &Planned) -> bool {
        let Plan::Execute { name, .. } = &planned.plan else { return planned.plan.is_write() };
        self.statements
            .get(name)
            .is_some_and(|prepared| prepared.planned.as_ref().is_some_and(|planned| planned.plan.is_write()))
    }

    async fn run_simple(&mut self, statement: &Statement) -> Result<()> {
        let planned = Arc::new(self.plan(statement, &[]).await?);
        let outcome = self.begin(planned, statement, None, Vec::new()).await?;
        match outcome {
            Outcome::Done(tag) => {
                self.answered(tag);
                Ok(())
            }
            Outcome::CopyOut(cursor, options) => self.copy_out(cursor, options).await,
            Outcome::Rows(mut cursor) => {
                if let Some(columns) = &cursor.columns {
                    self.connection.output.row_description(columns, &[]);
                }
                let mut encoder = self.encoder(cursor.columns.as_deref(), &[])?;
                while let Some(batch) = cursor.next(&mut self.connection.interrupts).await? {
                    let mut first = 0;
                    while first < batch.num_rows() {
                        let out = &mut self.connection.output.bytes;
                        first += encoder.encode(&batch, first, usize::MAX, OUTPUT_ENOUGH_BYTES, out)?;
                        self.flush_rows(&cursor).await?;
                    }
                    cursor.sent += batch.num_rows() as u64;
                }
                self.complete(cursor);
                Ok(())
            }
        }
    }

    /// Ends a statement whose rows have all been sent.
    fn complete(&mut self, mut cursor: Cursor) {
        for notice in std::mem::take(&mut cursor.notices) {
            self.notice(Severity::Notice, &notice);
        }
        self.last_ts = cursor.ts.or(self.last_ts);
        self.answered(cursor.tag());
    }

    /// A statement has been answered whole.
    fn answered(&mut self, tag: String) {
        self.in_doubt = false;
        self.meter.answered(&tag, self.begun.elapsed());
        self.connection.output.command_complete(tag);
    }

    async fn copy_out(
        &mut self,
        mut cursor: Cursor,
        options: carousel_planner::copy::CopyOptions,
    ) -> Result<()> {
        let columns = cursor.columns.clone().unwrap_or_default();
        let types = columns.iter().map(|c| c.ty.clone()).collect();
        let mut writer = CopyWriter::new(options, types, self.text_writer()?);
        self.connection.output.copy_out(columns.len());
        writer.header(columns.iter().map(|c| c.name.as_str()), &mut self.connection.output.bytes);
        while let Some(batch) = cursor.next(&mut self.connection.interrupts).await? {
            let mut first = 0;
            while first < batch.num_rows() {
                let out = &mut self.connection.output.bytes;
                first += writer.rows(&batch, first, OUTPUT_ENOUGH_BYTES, out)?;
                self.flush_rows(&cursor).await?;
            }
            cursor.sent += batch.num_rows() as u64;
        }
        self.connection.output.copy_done();
        self.complete(cursor);
        Ok(())
    }

    fn encoder(&self, columns: Option<&[OutputColumn]>, formats: &[Format]) -> Result<RowEncoder> {
        let types = columns.unwrap_or_default().iter().map(|c| c.ty.clone());
        Ok(RowEncoder::new(types, formats, self.text_writer()?))
    }

    fn text_writer(&self) -> Result<TextWriter> {
        Ok(TextWriter::new(&self.eval_context())?)
    }

    /// What values need to know of the session when they are read or written as text.
    fn eval_context(&self) -> EvalContext {
        EvalContext { time_zone: self.settings.get("timezone").into(), now: self.transaction.timestamp() }
    }

    /// What expressions of a statement may ask of the session.
    fn planner_settings(&self) -> Settings {
        Settings {
            time_zone: self.settings.get("timezone").to_owned(),
            user: self.user.clone(),
            database: self.database.clone(),
            transaction_timestamp: self.transaction.timestamp(),
            statement_timestamp: ids::now_micros(),
            backend_pid: self.process,
            variables: self.settings.values(),
            memory: self.relations.memory().clone(),
        }
    }

    /// Plans a statement against the newest catalog. What seems to be missing, or of another type, another front end may just have
    /// made: whether it did is asked before an error says so.
    async fn plan(&mut self, statement: &Statement, declared: &[Option<Type>]) -> Result<Planned> {
        let known = self.client.catalog().version();
        match self.plan_by_known(statement, declared) {
            // Class 42, and values that are constants of another type.
            Err(Failed::Statement(error))
                if error.code.0.starts_with(b"42") || error.code == SqlState(*b"22P02") =>
            {
                let ordered = self.connection.interrupts.guard(self.client.order(Body::Pin { lease_ms: 0 }));
                let ts = ordered.await??;
                self.follow_catalog(ts).await?;
                if self.client.catalog().version() == known {
                    return Err(error.into());
                }
                self.plan_by_known(statement, declared)
            }
            planned => planned,
        }
    }

    /// Plans a statement against the newest catalog that this front end knows, whatever the transaction's state.
    fn plan_against_known(
        &self,
        statement: &Statement,
        declared: &[Option<Type>],
    ) -> carousel_engine::error::Result<Planned> {
        let (catalog, settings) = (self.client.catalog(), self.planner_settings());
        compute(statement.text().len(), || carousel_planner::plan(statement, &catalog, &settings, declared))
    }

    /// Plans a statement against the newest catalog that this front end knows.
    fn plan_by_known(&self, statement: &Statement, declared: &[Option<Type>]) -> Result<Planned> {
        let planned = self.plan_against_known(statement, declared);
        if self.transaction.state() == State::Failed {
            let leaves = |plan: &Plan| matches!(plan, Plan::Commit { .. } | Plan::Rollback { .. });
            return match planned {
                Ok(planned) if leaves(&planned.plan) => Ok(planned),
                _ => Err(in_failed_transaction().into()),
            };
        }
        if let Some(isolation) = statement.read_isolation() {
            // The same values as the setting's, with the same errors; nothing is kept.
            self.settings.clone().set("carousel.read_isolation", Some(isolation), false)?;
        }
        Ok(planned.map_err(|e| pg_catalog::clarify(e, statement.text()))?)
    }

    /// Starts what a plan asks for. `parameters` are of the plan's types; `prepared` are the types of them that were declared with
    /// a prepared statement, whose columns the client knows.
    async fn begin(
        &mut self,
        planned: Arc<Planned>,
        statement: &Statement,
        prepared: Option<&[Option<Type>]>,
        parameters: Vec<Value>,
    ) -> Result<Outcome> {
        if let Plan::Execute { name, arguments } = &planned.plan {
            let named = self.statement(name)?;
            let Some(inner) = self.current_plan(&named).await? else {
                return Ok(Outcome::Done(String::new()));
            };
            if matches!(inner.plan, Plan::Execute { .. }) {
                // Made by a Parse message; its result would change with the statement that it names.
                let message = "EXECUTE does not support variable-result cached plans";
                return Err(SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message).into());
            }
            if arguments.len() != inner.parameter_types.len() {
                return Err(SqlError::new(
                    SqlState::SYNTAX_ERROR,
                    format!("wrong number of parameters for prepared statement \"{name}\""),
                )
                .with_detail(format!(
                    "Expected {} parameters but got {}.",
                    inner.parameter_types.len(),
                    arguments.len()
                ))
                .into());
            }
            let settings = self.planner_settings();
            let mut ids = ids::Ids::new(&self.client, 1);
            let values = carousel_planner::bind::evaluate_arguments(
                arguments,
                &inner.parameter_types,
                &settings,
                &mut ids,
            )?;
            ids.check()?;
            let Some(executed) = &named.statement else { return Ok(Outcome::Done(String::new())) };
            let executed = executed.executed_by(statement);
            return self.begin_plan(inner, &executed, Some(&named.declared), values).await;
        }
        self.begin_plan(planned, statement, prepared, parameters).await
    }

    async fn begin_plan(
        &mut self,
        planned: Arc<Planned>,
        statement: &Statement,
        prepared: Option<&[Option<Type>]>,
        parameters: Vec<Value>,
    ) -> Result<Outcome> {
        if planned.plan.is_write() {
            self.check_write(&planned.plan)?;
        }
        match &planned.plan {
            Plan::Query(_)
            | Plan::Relational(_)
            | Plan::Insert(_)
            | Plan::InsertSelect(_)
            | Plan::Update(_)
            | Plan::Delete(_)
            | Plan::Truncate(_)
            | Plan::Ddl(_) => {
                let cursor = self.execute(planned, statement, prepared, &parameters).await?;
                Ok(Outcome::Rows(cursor))
            }
            Plan::CopyOut(copy) => {
                let options = copy.options.clone();
                let cursor = self.execute(planned, statement, prepared, &parameters).await?;
                Ok(Outcome::CopyOut(cursor, options))
            }
            Plan::CopyIn(copy) => {
                let copy = Arc::new(carousel_planner::copy::CopyIn::clone(copy));
                let rows = self.copy_in(copy).await?;
                Ok(Outcome::Done(planned.plan.tag(rows)))
            }
            _ => self.command(planned, &parameters).await,
        }
    }

    /// Refuses a write that would not be what the client takes it for.
    fn check_write(&self, plan: &Plan) -> Result<()> {
        let tag = plan.tag(0);
        let what = tag.trim_end_matches([' ', '0']);
        if self.settings.get("transaction_read_only") == "on" {
            return Err(SqlError::new(
                SqlState(*b"25006"),
                format!("cannot execute {what} in a read-only transaction"),
            )
            .into());
        }
        if self.transaction.state() != State::Idle {
            return Err(SqlError::unsupported(format!("{what} in a transaction block"))
                .with_hint("Use autocommit: send the statement outside of BEGIN and COMMIT.")
                .into());
        }
        Ok(())
    }
}

/// 25P02
fn in_failed_transaction() -> SqlError {
    SqlError::new(
        SqlState::IN_FAILED_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}

/// Whether a statement that cannot be planned yet writes, as the table it names may be made by a statement before it: what it is
/// called decides.
fn is_called_write(statement: &Statement) -> bool {
    let keyword = statement.text().split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
    matches!(
        keyword.as_str(),
        "insert" | "update" | "delete" | "truncate" | "create" | "drop" | "alter" | "merge" | "copy"
    )
}
