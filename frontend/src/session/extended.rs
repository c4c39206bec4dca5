//! The extended query protocol: prepared statements and portals.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use carousel_engine::{SqlError, SqlState, Type, Value};
use carousel_planner::{OutputColumn, Planned, Reservation, Statement};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Result, Session,
    command::output_columns,
    execute::{Cursor, Outcome},
    in_failed_transaction,
    texts::Parsed,
    transaction::State,
};
use crate::{
    connection::{Failed, OUTPUT_ENOUGH_BYTES},
    protocol::{
        Format,
        backend::CACHED_PLAN_CHANGED,
        frontend::{FrontendMessage, Target},
        parameters, types,
    },
};

/// What the prepared statements of a session may take.
const STATEMENTS_BYTES: usize = 256 << 20;
/// What a prepared statement, or a portal, costs besides what is in it.
const STATEMENT_OVERHEAD_BYTES: usize = 4 << 10;
/// A prepared statement, and the parameters of an unnamed portal, are counted when they take more than this.
const UNCOUNTED_BYTES: usize = 64 << 10;
/// Most portals in a session.
const MAX_PORTALS: usize = 10_000;

/// Most suspended portals in a session that hold reads open.
const MAX_SUSPENDED: usize = 256;

/// A prepared statement, of the protocol or of PREPARE.
pub struct Prepared {
    /// `None` for a text without a statement.
    pub(super) statement: Option<Statement>,
    /// Types of parameters, as the client declared them or as they were inferred.
    pub(super) declared: Vec<Option<Type>>,
    /// As it was planned when it was prepared: its parameters and columns do not change any more.
    pub(super) planned: Option<Arc<Planned>>,
    bytes: usize,
    /// Room for that, if it is much.
    _memory: Option<Reservation>,
}

impl Prepared {
    fn parameter_types(&self) -> &[Type] {
        self.planned.as_ref().map_or(&[], |planned| &planned.parameter_types)
    }
}

/// A statement with its parameters, ready to run or running.
pub struct Portal {
    prepared: Arc<Prepared>,
    parameters: Vec<Value>,
    formats: Vec<Format>,
    columns: Option<Vec<OutputColumn>>,
    /// Room for its parameters, unless they are few and there is only one such portal.
    memory: Option<Reservation>,
    state: PortalState,
}

enum PortalState {
    Bound,
    /// Some rows were sent; of the batch those from the number on were not. If it holds reads open, it has room for them.
    Suspended(Box<Cursor>, Option<(RecordBatch, usize)>, Option<OwnedSemaphorePermit>),
    Finished,
}

impl Portal {
    /// Its block has failed: there is nothing more to come of it, but it keeps its name until the block ends.
    pub(super) fn fail(&mut self) {
        self.parameters = Vec::new();
        if !matches!(self.state, PortalState::Bound) {
            self.state = PortalState::Finished;
        }
    }
}

impl Session<'_> {
    /// Answers a message of the extended protocol.
    pub(super) async fn extended(&mut self, message: FrontendMessage) -> Result<()> {
        self.begin_implicit();
        match message {
            FrontendMessage::Parse { name, query, types } => {
                self.begin_statement();
                self.parse(&name, &query, &types).await?;
                self.connection.output.parse_complete();
            }
            FrontendMessage::Bind { portal, statement, parameter_formats, parameters, result_formats } => {
                let portal_name = portal;
                let mut portal = self.bind(&statement, &parameter_formats, &parameters, &result_formats)?;
                if !portal_name.is_empty() && self.portals.contains_key(&portal_name) {
                    let message = format!("cursor \"{portal_name}\" already exists");
                    return Err(SqlError::new(SqlState(*b"42P03"), message).into());
                }
                if self.portals.len() >= MAX_PORTALS {
                    return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "too many portals").into());
                }
                // The one that it replaces gives its room back first.
                self.portals.remove(&portal_name);
                let values: usize = portal.parameters.iter().map(Value::heap_size).sum();
                let bytes = values + STATEMENT_OVERHEAD_BYTES;
                if !portal_name.is_empty() || bytes > UNCOUNTED_BYTES {
                    portal.memory.insert(self.relations.memory().reservation()).grow(bytes)?;
                }
                self.portals.insert(portal_name, portal);
                self.connection.output.bind_complete();
            }
            FrontendMessage::Describe { target: Target::Statement, name } => {
                let prepared = self.statement(&name)?;
                let output = &mut self.connection.output;
                output.parameter_description(prepared.parameter_types());
                match prepared.planned.as_ref().and_then(|planned| self.result_columns(planned)) {
                    Some(columns) => self.connection.output.row_description(&columns, &[]),
                    None => self.connection.output.no_data(),
                }
            }
            FrontendMessage::Describe { target: Target::Portal, name } => {
                let portal = self.portals.get(&name).ok_or_else(|| undefined_portal(&name))?;
                match &portal.columns {
                    Some(columns) => self.connection.output.row_description(columns, &portal.formats),
                    None => self.connection.output.no_data(),
                }
            }
            FrontendMessage::Close { target, name } => {
                match target {
                    Target::Statement => self.forget_statement(&name),
                    Target::Portal => drop(self.portals.remove(&name)),
                }
                self.connection.output.close_complete();
            }
            FrontendMessage::Execute { portal, max_rows } => {
                self.begin_statement();
                let limit = usize::try_from(max_rows).ok().filter(|rows| *rows > 0);
                self.execute_portal(&portal, limit).await?;
            }
            other => {
                return Err(
                    SqlError::internal(format!("{other:?} is no message of the extended protocol")).into()
                );
            }
        }
        Ok(())
    }

    /// Sync: the implicit transaction ends.
    pub(super) async fn sync(&mut self) -> Result<()> {
        self.skipping = false;
        if self.transaction.state() == State::Idle {
            self.portals.clear();
        }
        self.ready().await
    }

    async fn parse(&mut self, name: &str, query: &str, types: &[u32]) -> Result<()> {
        if name.is_empty() {
            self.forget_statement("");
        }
        let declared = types
            .iter()
            .map(|oid| match oid {
                // Unspecified, or `unknown`.
                0 | 705 => Ok(None),
                oid => types::from_oid(*oid)
                    .map(Some)
                    .ok_or_else(|| SqlError::unsupported(format!("a parameter of the type with OID {oid}"))),
            })
            .collect::<carousel_engine::error::Result<Vec<_>>>()?;
        let Parsed { mut statements, memory } = self.parse_text(query).await?;
        drop(memory);
        if statements.len() > 1 {
            return Err(SqlError::new(
                SqlState::SYNTAX_ERROR,
                "cannot insert multiple commands into a prepared statement",
            )
            .into());
        }
        self.prepare(name, statements.pop(), declared).await
    }

    /// Makes a prepared statement.
    pub(super) async fn prepare(
        &mut self,
        name: &str,
        statement: Option<Statement>,
        mut declared: Vec<Option<Type>>,
    ) -> Result<()> {
        if self.statements.contains_key(name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new(SqlState::DUPLICATE_STATEMENT, message).into());
        }
        let tree = statement.as_ref().map_or(0, Statement::memory_bytes);
        let bytes = tree + name.len() + STATEMENT_OVERHEAD_BYTES;
        let mut memory = (bytes > UNCOUNTED_BYTES).then(|| self.relations.memory().reservation());
        let has_room = memory.as_mut().is_none_or(|memory| memory.grow(bytes).is_ok());
        if self.statements_bytes + bytes > STATEMENTS_BYTES || !has_room {
            return Err(SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory for prepared statements")
                .with_hint("Close prepared statements that are not needed any more.")
                .into());
        }
        let planned = match &statement {
            Some(statement) => Some(Arc::new(self.plan(statement, &declared).await?)),
            None => None,
        };
        if let Some(planned) = &planned {
            // Values come in these types, whatever becomes of the tables.
            declared = planned.parameter_types.iter().cloned().map(Some).collect();
        }
        self.statements_bytes += bytes;
        self.statements.insert(
            name.to_owned(),
            Arc::new(Prepared { statement, declared, planned, bytes, _memory: memory }),
        );
        Ok(())
    }

    /// The prepared statement with this name.
    pub(super) fn statement(&self, name: &str) -> Result<Arc<Prepared>> {
        let found = self.statements.get(name).cloned();
        Ok(found.ok_or_else(|| {
            let message = match name {
                "" => "unnamed prepared statement does not exist".into(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            SqlError::new(SqlState::UNDEFINED_STATEMENT, message)
        })?)
    }

    pub(super) fn forget_statement(&mut self, name: &str) {
        if let Some(prepared) = self.statements.remove(name) {
            self.statements_bytes -= prepared.bytes;
        }
    }

    /// Forgets all that have a name.
    pub(super) fn forget_statements(&mut self) {
        self.statements.retain(|name, _| name.is_empty());
        self.statements_bytes = self.statements.values().map(|prepared| prepared.bytes).sum();
    }

    /// A plan of the statement for the newest catalog; `None` when there is no statement.
    pub(super) async fn current_plan(&mut self, prepared: &Prepared) -> Result<Option<Arc<Planned>>> {
        let (Some(statement), Some(planned)) = (&prepared.statement, &prepared.planned) else {
            return Ok(None);
        };
        if self.transaction.state() != State::Failed && self.client.catalog().is_current(&planned.tables) {
            return Ok(Some(planned.clone()));
        }
        Ok(Some(self.plan_as_before(planned, statement, &prepared.declared).await?))
    }

    /// Plans a prepared statement again, whose columns and parameters the client knows.
    pub(super) async fn plan_as_before(
        &mut self,
        before: &Planned,
        statement: &Statement,
        declared: &[Option<Type>],
    ) -> Result<Arc<Planned>> {
        let again = self.plan(statement, declared).await?;
        if !again.has_columns_of(before) || again.parameter_types != before.parameter_types {
            return Err(SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, CACHED_PLAN_CHANGED).into());
        }
        Ok(Arc::new(again))
    }

    /// The columns of a plan's result, looking through EXECUTE and knowing the settings' names.
    fn result_columns(&self, planned: &Planned) -> Option<Vec<OutputColumn>> {
        match &planned.plan {
            carousel_planner::Plan::Execute { name, .. } => {
                let prepared = self.statements.get(name)?;
                output_columns(prepared.planned.as_ref()?)
            }
            carousel_planner::Plan::Show(name) => {
                let name = self.settings.show(name).map_or_else(|_| name.clone(), |(name, _)| name);
                Some(vec![OutputColumn { name, ty: Type::Text, origin: None }])
            }
            _ => output_columns(planned),
        }
    }

    fn bind(
        &mut self,
        statement: &str,
        parameter_formats: &[i16],
        values: &[Option<bytes::Bytes>],
        result_formats: &[i16],
    ) -> Result<Portal> {
        let prepared = self.statement(statement)?;
        let parameter_types = prepared.parameter_types();
        if values.len() != parameter_types.len() {
            return Err(SqlError::new(
                SqlState::PROTOCOL_VIOLATION,
                format!(
                    "bind message supplies {} parameters, but prepared statement \"{statement}\" requires {}",
                    values.len(),
                    parameter_types.len()
                ),
            )
            .into());
        }
        let formats = Format::expand(parameter_formats, values.len(), "parameter")?;
        let context = self.eval_context();
        let parameters = values
            .iter()
            .zip(parameter_types)
            .zip(formats)
            .map(|((value, ty), format)| match value {
                None => Ok(Value::Null),
                Some(bytes) => parameters::decode(bytes, format, ty, &context),
            })
            .collect::<carousel_engine::error::Result<Vec<_>>>()?;
        let columns = prepared.planned.as_ref().and_then(|planned| self.result_columns(planned));
        let count = columns.as_ref().map_or(0, Vec::len);
        let formats = match (&columns, result_formats) {
            // Formats for columns that do not exist mean nothing.
            (None, _) => Vec::new(),
            (Some(_), codes) => Format::expand(codes, count, "result")?,
        };
        Ok(Portal { prepared, parameters, formats, columns, memory: None, state: PortalState::Bound })
    }

    async fn execute_portal(&mut self, name: &str, limit: Option<usize>) -> Result<()> {
        // In a block one that fails keeps its name, as those that it leaves behind do.
        let in_block = self.transaction.state() != State::Idle;
        let known = self.portals.get(name).filter(|_| in_block).map(|portal| portal.prepared.clone());
        let result = self.run_portal(name, limit).await;
        if let (Err(Failed::Statement(_)), Some(prepared)) = (&result, known) {
            self.portals.entry(name.to_owned()).or_insert(Portal {
                prepared,
                parameters: Vec::new(),
                formats: Vec::new(),
                columns: None,
                memory: None,
                state: PortalState::Finished,
            });
        }
        result
    }

    async fn run_portal(&mut self, name: &str, limit: Option<usize>) -> Result<()> {
        let Portal { prepared, mut parameters, formats, columns, mut memory, state } =
            self.portals.remove(name).ok_or_else(|| undefined_portal(name))?;
        let Some(statement) = &prepared.statement else {
            self.connection.output.empty_query();
            let portal = Portal { prepared, parameters, formats, columns, memory, state };
            self.portals.insert(name.to_owned(), portal);
            return Ok(());
        };
        let (mut cursor, mut rest) = match state {
            PortalState::Suspended(mut cursor, rest, room) => {
                drop(room);
                // Each Execute tells its own.
                cursor.sent = 0;
                if cursor.is_write() {
                    self.in_doubt = true;
                    self.connection.interrupts.end_statement();
                }
                (*cursor, rest)
            }
            PortalState::Finished if self.transaction.state() == State::Failed => {
                return Err(in_failed_transaction().into());
            }
            // It has no more rows.
            PortalState::Finished if columns.is_some() => {
                let mut planned = prepared.planned.clone();
                if let Some(carousel_planner::Plan::Execute { name, .. }) =
                    planned.as_deref().map(|p| &p.plan)
                {
                    planned = self.statements.get(name).and_then(|named| named.planned.clone());
                }
                self.answered(planned.map(|planned| planned.plan.tag(0)).unwrap_or_default());
                let portal = Portal { prepared, parameters, formats, columns, memory, state };
                self.portals.insert(name.to_owned(), portal);
                return Ok(());
            }
            PortalState::Finished => {
                return Err(SqlError::new(
                    SqlState(*b"55000"),
                    format!("portal \"{name}\" cannot be run anymore"),
                )
                .into());
            }
            PortalState::Bound => {
                let Some(planned) = self.current_plan(&prepared).await? else { return Ok(()) };
                if self.writes(&planned) && self.transaction.has_written {
                    return Err(SqlError::unsupported("a second write before Sync")
                        .with_detail("The statements before a Sync are one transaction; the first write has taken effect.")
                        .with_hint("Send Sync after every write.")
                        .into());
                }
                let values = std::mem::take(&mut parameters);
                match self.begin(planned, statement, Some(&prepared.declared), values).await? {
                    Outcome::Rows(cursor) => (cursor, None),
                    Outcome::CopyOut(cursor, options) => {
                        self.copy_out(cursor, options).await?;
                        let state = PortalState::Finished;
                        let portal = Portal { prepared, parameters, formats, columns, memory, state };
                        self.portals.insert(name.to_owned(), portal);
                        return Ok(());
                    }
                    Outcome::Done(tag) => {
                        self.answered(tag);
                        let state = PortalState::Finished;
                        let portal = Portal { prepared, parameters, formats, columns, memory, state };
                        // COMMIT and ROLLBACK have closed all portals, and this one with them.
                        if self.transaction.state() != State::Idle {
                            self.portals.insert(name.to_owned(), portal);
                        }
                        return Ok(());
                    }
                }
            }
        };
        let mut encoder = self.encoder(cursor.columns.as_deref(), &formats)?;
        let mut left = limit.unwrap_or(usize::MAX);
        let complete = loop {
            let (batch, mut first) = match rest.take() {
                Some(rest) => rest,
                None if left == 0 => break false,
                None => match cursor.next(&mut self.connection.interrupts).await? {
                    Some(batch) => (batch, 0),
                    None => break true,
                },
            };
            while first < batch.num_rows() && left > 0 {
                let out = &mut self.connection.output.bytes;
                let written = encoder.encode(&batch, first, left, OUTPUT_ENOUGH_BYTES, out)?;
                first += written;
                left -= written;
                cursor.sent += written as u64;
                self.flush_rows(&cursor).await?;
            }
            if first < batch.num_rows() {
                rest = Some((batch, first));
                break false;
            }
        };
        let state = if complete {
            self.complete(cursor);
            PortalState::Finished
        } else {
            let room = self.room_to_suspend(cursor.open_reads())?;
            self.connection.output.portal_suspended();
            self.in_doubt = false;
            PortalState::Suspended(Box::new(cursor), rest, room)
        };
        // Its parameters have gone into what was executed.
        memory.as_mut().map_or(Ok(()), |memory| memory.resize(STATEMENT_OVERHEAD_BYTES))?;
        self.portals
            .insert(name.to_owned(), Portal { prepared, parameters, formats, columns, memory, state });
        Ok(())
    }

    /// Room for another suspended portal. What its reads hold, of the front end and of the storage processes, is bounded.
    fn room_to_suspend(&self, reads: usize) -> Result<Option<OwnedSemaphorePermit>> {
        if reads == 0 {
            return Ok(None);
        }
        let holds = |portal: &&Portal| matches!(portal.state, PortalState::Suspended(_, _, Some(_)));
        let has_room = self.portals.values().filter(holds).count() < MAX_SUSPENDED;
        let room = self.relations.suspend(reads).filter(|_| has_room);
        Ok(Some(room.ok_or_else(|| {
            SqlError::new(SqlState::LIMIT_EXCEEDED, "too many suspended portals")
                .with_hint("Read the rows of portals to the end, or close them, before others are suspended.")
        })?))
    }
}

fn undefined_portal(name: &str) -> SqlError {
    SqlError::new(SqlState::UNDEFINED_CURSOR, format!("portal \"{name}\" does not exist"))
}
