//! Statements about the session itself: transaction blocks, settings, prepared statements, EXPLAIN.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, StringArray},
    datatypes::{DataType, Field, Schema},
    record_batch::RecordBatch,
};
use carousel_engine::{SqlError, SqlState, Type, Value, position::KeyRange};
use carousel_planner::{
    OutputColumn, Plan, Planned,
    explain::explain,
    plan::{Discard, IsolationLevel, SetPlan, TransactionModes},
};

use super::{
    Result, Session,
    execute::{Cursor, Outcome},
    ids::Ids,
    transaction::State,
};
use crate::{connection::Failed, settings::LAST_TS};

/// The columns of what a plan returns; `None` when it returns no rows.
pub fn output_columns(planned: &Planned) -> Option<Vec<OutputColumn>> {
    match &planned.plan {
        Plan::ShowAll => Some(text_columns(&["name", "setting", "description"])),
        Plan::Explain(_) => Some(text_columns(&["QUERY PLAN"])),
        Plan::CopyIn(_) | Plan::CopyOut(_) => None,
        _ => planned.output.clone(),
    }
}

fn text_columns(names: &[&str]) -> Vec<OutputColumn> {
    names.iter().map(|name| OutputColumn { name: (*name).into(), ty: Type::Text, origin: None }).collect()
}

/// Rows of text.
fn text_rows(planned: Arc<Planned>, names: &[&str], columns: Vec<Vec<String>>) -> Result<Outcome> {
    let fields: Vec<Field> = names.iter().map(|name| Field::new(*name, DataType::Utf8, false)).collect();
    let arrays = columns.into_iter().map(|c| Arc::new(StringArray::from(c)) as ArrayRef).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
        .map_err(|e| SqlError::internal(format!("cannot make rows of text: {e}")))?;
    Ok(Outcome::Rows(Cursor::ready(planned, Some(text_columns(names)), vec![batch])))
}

impl Session<'_> {
    fn shown_ts(&self) -> String {
        self.last_ts.map(|ts| ts.to_string()).unwrap_or_default()
    }

    /// Runs a statement that is for the session itself.
    pub(super) async fn command(&mut self, planned: Arc<Planned>, parameters: &[Value]) -> Result<Outcome> {
        let tag = planned.plan.tag(0);
        let done = Ok(Outcome::Done(tag));
        match &planned.plan {
            Plan::Show(name) => {
                let (name, value) = self.settings.show(name)?;
                let value = if name == LAST_TS { self.shown_ts() } else { value };
                text_rows(planned, &[&name], vec![vec![value]])
            }
            Plan::ShowAll => {
                let mut all = self.settings.show_all();
                let last_ts = all.iter_mut().filter(|row| row[0] == LAST_TS);
                last_ts.for_each(|row| row[1] = self.shown_ts());
                let column = |i: usize| all.iter().map(|row| row[i].clone()).collect();
                let columns = (0..3).map(column).collect();
                text_rows(planned, &["name", "setting", "description"], columns)
            }
            Plan::Set(set) => self.set(set).and(done),
            Plan::Reset(name) => {
                self.settings.set(name, None, false)?;
                done
            }
            Plan::ResetAll => {
                self.settings.reset_all();
                done
            }
            Plan::SetTransaction { session, modes } => self.set_transaction(*session, modes).and(done),
            Plan::Begin { modes, .. } => {
                if self.transaction.state() == State::Open {
                    self.warning(SqlState::ACTIVE_TRANSACTION, "there is already a transaction in progress");
                } else {
                    self.begin_block(modes);
                }
                done
            }
            Plan::Commit { chain } => self.end_block(true, *chain),
            Plan::Rollback { chain } => self.end_block(false, *chain),
            Plan::Savepoint(_) | Plan::ReleaseSavepoint(_) | Plan::RollbackToSavepoint(_) => {
                let what = match &planned.plan {
                    Plan::Savepoint(_) => "SAVEPOINT",
                    Plan::ReleaseSavepoint(_) => "RELEASE SAVEPOINT",
                    _ => "ROLLBACK TO SAVEPOINT",
                };
                if self.transaction.state() == State::Idle {
                    return Err(SqlError::new(
                        SqlState::NO_ACTIVE_TRANSACTION,
                        format!("{what} can only be used in transaction blocks"),
                    )
                    .into());
                }
                Err(SqlError::unsupported(what).into())
            }
            Plan::Prepare { name, parameter_types, statement } => {
                self.prepare(name, Some((**statement).clone()), parameter_types.clone()).await?;
                done
            }
            Plan::Deallocate(Some(name)) => {
                self.statement(name)?;
                self.forget_statement(name);
                done
            }
            Plan::Deallocate(None) => {
                self.forget_statements();
                done
            }
            Plan::Discard(what) => self.discard(*what).and(done),
            Plan::AlterCluster(alter) => self.alter_cluster(alter).await.and(done),
            Plan::Explain(inner) => {
                let lines = self.explain(inner, parameters)?;
                text_rows(planned, &["QUERY PLAN"], vec![lines])
            }
            other => Err(SqlError::internal(format!("{} came to the wrong place", other.tag(0))).into()),
        }
    }

    fn set(&mut self, set: &SetPlan) -> Result<()> {
        if set.local && !self.transaction.is_block() {
            self.warning(SqlState::NO_ACTIVE_TRANSACTION, "SET LOCAL can only be used in transaction blocks");
        }
        Ok(self.settings.set(&set.name, set.value.as_deref(), set.local)?)
    }

    fn set_transaction(&mut self, session: bool, modes: &TransactionModes) -> Result<()> {
        let prefix = if session { "default_transaction" } else { "transaction" };
        if !session && !self.transaction.is_block() {
            self.warning(
                SqlState::NO_ACTIVE_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            );
        }
        if let Some(level) = modes.isolation {
            self.settings.set(&format!("{prefix}_isolation"), Some(level_name(level)), !session)?;
        }
        if let Some(read_only) = modes.read_only {
            let value = if read_only { "on" } else { "off" };
            self.settings.set(&format!("{prefix}_read_only"), Some(value), !session)?;
        }
        Ok(())
    }

    fn begin_block(&mut self, modes: &TransactionModes) {
        self.transaction.begin();
        self.settings.begin(modes.isolation.map(level_name), modes.read_only);
    }

    fn end_block(&mut self, commit: bool, chain: bool) -> Result<Outcome> {
        let state = self.transaction.state();
        if state == State::Idle {
            let what = if commit { "COMMIT" } else { "ROLLBACK" };
            if chain {
                return Err(SqlError::new(
                    SqlState::NO_ACTIVE_TRANSACTION,
                    format!("{what} AND CHAIN can only be used in transaction blocks"),
                )
                .into());
            }
            self.warning(SqlState::NO_ACTIVE_TRANSACTION, "there is no transaction in progress");
            self.settings.end(commit);
            self.settings.begin_implicit();
            return Ok(Outcome::Done(what.into()));
        }
        let committed = commit && state == State::Open;
        let isolation = self.settings.get("transaction_isolation").to_owned();
        let read_only = self.settings.get("transaction_read_only") == "on";
        self.transaction.end();
        self.portals.clear();
        self.settings.end(committed);
        self.transaction.end_implicit();
        self.begin_implicit();
        if chain {
            self.transaction.begin();
            self.settings.begin(Some(&isolation), Some(read_only));
        }
        Ok(Outcome::Done(if committed { "COMMIT" } else { "ROLLBACK" }.into()))
    }

    fn discard(&mut self, what: Discard) -> Result<()> {
        match what {
            // There are no sequences and no temporary tables, and plans are checked before every use.
            Discard::Plans | Discard::Sequences | Discard::Temporary => Ok(()),
            Discard::All => {
                if self.transaction.is_block() {
                    return Err(SqlError::new(
                        SqlState::ACTIVE_TRANSACTION,
                        "DISCARD ALL cannot run inside a transaction block",
                    )
                    .into());
                }
                self.portals.clear();
                self.forget_statements();
                self.settings.reset_all();
                Ok(())
            }
        }
    }

    fn explain(&mut self, plan: &Plan, parameters: &[Value]) -> Result<Vec<String>, Failed> {
        let config = self.client.config();
        let destinations = |ranges: &[KeyRange], writes: bool| config.executors(ranges, writes);
        let settings = self.planner_settings();
        let mut ids = Ids::new(&self.client, 1);
        let lines = explain(plan, parameters, &settings, &mut ids, &destinations)?;
        ids.check()?;
        Ok(lines)
    }
}

fn level_name(level: IsolationLevel) -> &'static str {
    match level {
        IsolationLevel::ReadUncommitted => "read uncommitted",
        IsolationLevel::ReadCommitted => "read committed",
        IsolationLevel::RepeatableRead => "repeatable read",
        IsolationLevel::Serializable => "serializable",
    }
}
