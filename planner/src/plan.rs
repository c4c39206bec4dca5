//! Plans: statements after name resolution and typing, before parameters.

use std::sync::Arc;

use carousel_cluster::{catalog::Catalog, message::Ddl};
use carousel_engine::{
    SqlError, SqlState, TableId, TableSchema, Ts, Type,
    error::Result,
    expr::Expr,
    operation::{OnConflict, Predicate, ReadOutput},
};

use sqlparser::ast;

use crate::{
    above::Pipeline,
    cluster::AlterCluster,
    ddl::drop_tables,
    expression::Shared,
    parse::{Ast, Statement, with_stack},
    relational::{RelationalPlan, is_relational},
    select::Planner,
    settings::Settings,
    types,
};

/// A planned statement.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What to do.
    pub plan: Plan,
    /// Types of `$1`, `$2`, …: as declared, or inferred from use.
    pub parameter_types: Vec<Type>,
    /// Output columns, when the statement returns rows.
    pub output: Option<Vec<OutputColumn>>,
    /// The tables the plan names with the versions it was made against; when one is no longer current, plan again.
    pub tables: Vec<(TableId, Ts)>,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputColumn {
    /// Name, as PostgreSQL gives it.
    pub name: String,
    /// Type with modifiers.
    pub ty: Type,
    /// The table and the 0-based index of the column in it, for a plain reference to a column.
    pub origin: Option<(TableId, usize)>,
}

impl Planned {
    /// Whether another plan of the statement has the same columns to whoever has been told them: the tables that they come from
    /// may have been made anew.
    pub fn has_columns_of(&self, other: &Planned) -> bool {
        let columns = |planned: &'_ Planned| -> Option<Vec<(String, Type)>> {
            let output = planned.output.as_ref()?;
            Some(output.iter().map(|column| (column.name.clone(), column.ty.clone())).collect())
        };
        columns(self) == columns(other)
    }
}

/// What a statement asks for. Those marked *bind* go through [`crate::bind()`]; the others are for the session itself.
#[derive(Clone, Debug)]
pub enum Plan {
    /// SELECT, VALUES, TABLE (*bind*).
    Query(Box<QueryPlan>),
    /// A SELECT or VALUES that is not about one table or none (*bind*).
    Relational(Box<RelationalPlan>),
    /// INSERT (*bind*).
    Insert(Box<InsertPlan>),
    /// INSERT … SELECT: bind and run its query; [`crate::bind::bind_insert_select`] makes the write of the rows.
    InsertSelect(Box<InsertSelectPlan>),
    /// UPDATE (*bind*).
    Update(Box<UpdatePlan>),
    /// DELETE (*bind*).
    Delete(Box<DeletePlan>),
    /// TRUNCATE of one table (*bind*).
    Truncate(Arc<TableSchema>),
    /// CREATE TABLE, DROP TABLE (*bind*).
    Ddl(DdlPlan),
    /// COPY … FROM STDIN: [`crate::copy::CopyIn::rows`] completes parsed columns, [`crate::copy::CopyIn::request`]
    /// makes the request.
    CopyIn(Box<crate::copy::CopyIn>),
    /// COPY … TO STDOUT (*bind* gives the query's execution).
    CopyOut(Box<crate::copy::CopyOut>),
    /// EXPLAIN: [`crate::explain::explain`] gives the lines.
    Explain(Box<Plan>),
    /// SET.
    Set(SetPlan),
    /// SET TRANSACTION, or SET SESSION CHARACTERISTICS when `session`.
    SetTransaction {
        /// For the session's later transactions instead of the current one.
        session: bool,
        /// The modes.
        modes: TransactionModes,
    },
    /// SHOW of one setting, by lower-case name.
    Show(String),
    /// SHOW ALL.
    ShowAll,
    /// RESET of one setting, by lower-case name.
    Reset(String),
    /// RESET ALL.
    ResetAll,
    /// BEGIN, START TRANSACTION.
    Begin {
        /// Its modes.
        modes: TransactionModes,
        /// It is called START TRANSACTION.
        starts: bool,
    },
    /// COMMIT, END.
    Commit {
        /// AND CHAIN.
        chain: bool,
    },
    /// ROLLBACK, ABORT.
    Rollback {
        /// AND CHAIN.
        chain: bool,
    },
    /// SAVEPOINT.
    Savepoint(String),
    /// RELEASE SAVEPOINT.
    ReleaseSavepoint(String),
    /// ROLLBACK TO SAVEPOINT.
    RollbackToSavepoint(String),
    /// PREPARE.
    Prepare {
        /// Name of the prepared statement.
        name: String,
        /// Declared types of its parameters.
        parameter_types: Vec<Option<Type>>,
        /// The statement: plan it with these types.
        statement: Box<Statement>,
    },
    /// EXECUTE: its parameters go through [`crate::bind::evaluate_arguments`].
    Execute {
        /// Name of the prepared statement.
        name: String,
        /// Its parameters, not yet of the parameters' types.
        arguments: Vec<crate::bind::Argument>,
    },
    /// DEALLOCATE of one prepared statement, or of all (`None`).
    Deallocate(Option<String>),
    /// DISCARD.
    Discard(Discard),
    /// ALTER CLUSTER.
    AlterCluster(AlterCluster),
}

/// What DISCARD discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// ALL
    All,
    /// PLANS
    Plans,
    /// SEQUENCES
    Sequences,
    /// TEMP
    Temporary,
}

/// Modes of a transaction; `None` leaves a mode as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionModes {
    /// READ ONLY or READ WRITE.
    pub read_only: Option<bool>,
    /// ISOLATION LEVEL.
    pub isolation: Option<IsolationLevel>,
}

/// Isolation levels of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationLevel {
    /// READ UNCOMMITTED
    ReadUncommitted,
    /// READ COMMITTED
    ReadCommitted,
    /// REPEATABLE READ
    RepeatableRead,
    /// SERIALIZABLE
    Serializable,
}

/// SET of a setting.
#[derive(Clone, Debug, PartialEq)]
pub struct SetPlan {
    /// Lower-case name; `SET TIME ZONE` is `timezone`, `SET NAMES` is `client_encoding`.
    pub name: String,
    /// SET LOCAL: for the current transaction only.
    pub local: bool,
    /// The new value as text (members of a list joined with `, `); `None` for DEFAULT.
    pub value: Option<String>,
}

/// CREATE TABLE or DROP TABLE.
#[derive(Clone, Debug)]
pub struct DdlPlan {
    /// The body of the message.
    pub ddl: Ddl,
}

/// A query over one table or none.
#[derive(Clone, Debug)]
pub struct QueryPlan {
    /// The table, if there is one. Without a table, `above` is given one row without columns.
    pub source: Source,
    /// What runs above the scan.
    pub above: Arc<Pipeline>,
    /// Session values that the expressions refer to, see [`SessionValue`].
    pub session_values: Vec<SessionValue>,
}

/// What a query reads.
#[derive(Clone, Debug)]
pub enum Source {
    /// Nothing: rows of expressions over nothing (SELECT without FROM is one row; VALUES).
    Rows {
        /// The rows; each has the same types.
        rows: Vec<Vec<Expr>>,
        /// WHERE; not true: no row at all.
        predicate: Predicate,
        /// Grouping expressions, when the rows are grouped.
        group_by: Option<Vec<Expr>>,
    },
    /// One table.
    Table {
        /// Its definition.
        table: Arc<TableSchema>,
        /// Which rows.
        predicate: Predicate,
        /// What of them. `top` is set when the request is made.
        output: ReadOutput,
    },
}

/// A value that is fixed when a plan is bound: stands in expressions as the parameter `SESSION_VALUES + n`.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionValue {
    /// `current_user`, `session_user`, `user`, `current_role`
    User,
    /// `current_database()`, `current_catalog`
    Database,
    /// `now()`
    TransactionTimestamp,
    /// `statement_timestamp()`
    StatementTimestamp,
    /// `clock_timestamp()`
    ClockTimestamp,
    /// `pg_backend_pid()`
    BackendPid,
    /// `current_setting(name[, missing_ok])`
    Setting {
        /// Lower-case name.
        name: String,
        /// NULL instead of an error when there is no such setting.
        missing_ok: bool,
    },
    /// `gen_random_uuid()`: new at every use
    RandomUuid,
    /// `random()`: new at every use
    Random,
}

impl SessionValue {
    /// Its type.
    pub fn ty(&self) -> Type {
        match self {
            SessionValue::User | SessionValue::Database | SessionValue::Setting { .. } => Type::Text,
            SessionValue::TransactionTimestamp
            | SessionValue::StatementTimestamp
            | SessionValue::ClockTimestamp => Type::TimestampTz,
            SessionValue::BackendPid => Type::Int4,
            SessionValue::RandomUuid => Type::Uuid,
            SessionValue::Random => Type::Float8,
        }
    }

    /// Whether it is new at every use.
    pub fn is_volatile(&self) -> bool {
        matches!(self, SessionValue::RandomUuid | SessionValue::Random)
    }
}

/// Parameters from this index on stand for a plan's session values.
pub const SESSION_VALUES: usize = 1 << 20;

/// INSERT.
#[derive(Clone, Debug)]
pub struct InsertPlan {
    /// The table.
    pub table: Arc<TableSchema>,
    /// For each row one expression for each visible column, of the column's type; defaults already filled in.
    pub rows: Vec<Vec<Expr>>,
    /// What to do about a row whose primary key exists.
    pub on_conflict: OnConflict,
    /// RETURNING.
    pub returning: Option<Vec<Expr>>,
    /// What runs above it.
    pub above: Arc<Pipeline>,
    /// Session values that the expressions refer to.
    pub session_values: Vec<SessionValue>,
}

/// INSERT … SELECT. The query reads as of one `Ts`, as in PostgreSQL's READ COMMITTED; then its rows are inserted.
#[derive(Clone, Debug)]
pub struct InsertSelectPlan {
    /// The query, which is bound by itself.
    pub source: Arc<Planned>,
    /// The INSERT: its only row is made anew of each row of the query.
    pub insert: InsertPlan,
}

/// UPDATE.
#[derive(Clone, Debug)]
pub struct UpdatePlan {
    /// The table.
    pub table: Arc<TableSchema>,
    /// Which rows.
    pub predicate: Predicate,
    /// New values by column, of the column's type.
    pub assignments: Vec<(usize, Expr)>,
    /// RETURNING.
    pub returning: Option<Vec<Expr>>,
    /// What runs above it.
    pub above: Arc<Pipeline>,
    /// Session values that the expressions refer to.
    pub session_values: Vec<SessionValue>,
}

/// DELETE.
#[derive(Clone, Debug)]
pub struct DeletePlan {
    /// The table.
    pub table: Arc<TableSchema>,
    /// Which rows.
    pub predicate: Predicate,
    /// RETURNING.
    pub returning: Option<Vec<Expr>>,
    /// What runs above it.
    pub above: Arc<Pipeline>,
    /// Session values that the expressions refer to.
    pub session_values: Vec<SessionValue>,
}

impl Plan {
    /// Whether [`crate::bind()`] makes an execution of it.
    pub fn is_bindable(&self) -> bool {
        matches!(
            self,
            Plan::Query(_)
                | Plan::Relational(_)
                | Plan::Insert(_)
                | Plan::Update(_)
                | Plan::Delete(_)
                | Plan::Truncate(_)
                | Plan::Ddl(_)
                | Plan::CopyOut(_)
        )
    }

    /// Whether the plan changes tables or the catalog.
    pub fn is_write(&self) -> bool {
        matches!(
            self,
            Plan::Insert(_)
                | Plan::InsertSelect(_)
                | Plan::Update(_)
                | Plan::Delete(_)
                | Plan::Truncate(_)
                | Plan::Ddl(_)
                | Plan::CopyIn(_)
        )
    }

    /// The command tag; `rows` is the number of rows read or written.
    pub fn tag(&self, rows: u64) -> String {
        match self {
            Plan::Query(_) | Plan::Relational(_) => format!("SELECT {rows}"),
            Plan::Insert(_) | Plan::InsertSelect(_) => format!("INSERT 0 {rows}"),
            Plan::Update(_) => format!("UPDATE {rows}"),
            Plan::Delete(_) => format!("DELETE {rows}"),
            Plan::CopyIn(_) | Plan::CopyOut(_) => format!("COPY {rows}"),
            Plan::Truncate(_) => "TRUNCATE TABLE".into(),
            Plan::Ddl(DdlPlan { ddl: Ddl::CreateTable { .. } }) => "CREATE TABLE".into(),
            Plan::Ddl(DdlPlan { ddl: Ddl::DropTables { .. } }) => "DROP TABLE".into(),
            Plan::Explain(_) => "EXPLAIN".into(),
            Plan::Set(_) | Plan::SetTransaction { .. } => "SET".into(),
            Plan::Show(_) | Plan::ShowAll => "SHOW".into(),
            Plan::Reset(_) | Plan::ResetAll => "RESET".into(),
            Plan::Begin { starts: false, .. } => "BEGIN".into(),
            Plan::Begin { starts: true, .. } => "START TRANSACTION".into(),
            Plan::Commit { .. } => "COMMIT".into(),
            Plan::Rollback { .. } | Plan::RollbackToSavepoint(_) => "ROLLBACK".into(),
            Plan::Savepoint(_) => "SAVEPOINT".into(),
            Plan::ReleaseSavepoint(_) => "RELEASE".into(),
            Plan::Prepare { .. } => "PREPARE".into(),
            Plan::Execute { .. } => "EXECUTE".into(),
            Plan::Deallocate(Some(_)) => "DEALLOCATE".into(),
            Plan::Deallocate(None) => "DEALLOCATE ALL".into(),
            Plan::Discard(Discard::All) => "DISCARD ALL".into(),
            Plan::Discard(Discard::Plans) => "DISCARD PLANS".into(),
            Plan::Discard(Discard::Sequences) => "DISCARD SEQUENCES".into(),
            Plan::Discard(Discard::Temporary) => "DISCARD TEMP".into(),
            Plan::AlterCluster(_) => "ALTER CLUSTER".into(),
        }
    }
}

/// Plans a statement.
///
/// `parameter_types` gives declared types of `$1`, `$2`, …; what is not declared is inferred. Errors are PostgreSQL's,
/// with positions in the text that was given to [`crate::parse()`].
pub fn plan(
    statement: &Statement,
    catalog: &Catalog,
    settings: &Settings,
    parameter_types: &[Option<Type>],
) -> Result<Planned> {
    with_stack(statement.is_deep(), || plan_statement(statement, catalog, settings, parameter_types))
}

fn plan_statement(
    statement: &Statement,
    catalog: &Catalog,
    settings: &Settings,
    parameter_types: &[Option<Type>],
) -> Result<Planned> {
    let mut planner = Planner {
        source: &statement.source,
        catalog,
        settings,
        shared: Shared { parameters: parameter_types.to_vec(), ..Shared::default() },
        tables: Default::default(),
    };
    let (plan, output) = match statement.tree.root() {
        Ast::Sql(statement) => planner.statement(statement)?,
        Ast::CreateTable { create, split_at } => {
            (Plan::Ddl(planner.create_table(create, split_at.as_deref())?), None)
        }
        Ast::Copy(copy) => planner.copy(copy)?,
        Ast::Session(plan) => {
            let output = match plan {
                Plan::Show(name) => Some(vec![text_column(name)]),
                Plan::ShowAll => {
                    Some(["name", "setting", "description"].into_iter().map(text_column).collect())
                }
                _ => None,
            };
            (plan.clone(), output)
        }
        Ast::Prepare { name, types, statement } => {
            let parameter_types =
                // As in PostgreSQL, lengths and precisions say nothing here.
                types.iter().map(|ty| Ok(Some(types::resolve(ty)?.without_modifiers()))).collect::<Result<_>>()?;
            let plan = Plan::Prepare { name: name.clone(), parameter_types, statement: statement.clone() };
            (plan, None)
        }
        Ast::Explain(inner) => {
            let planned = plan(inner, catalog, settings, parameter_types)?;
            if !planned.plan.is_bindable() {
                return Err(SqlError::unsupported(format!("EXPLAIN of {}", planned.plan.tag(0))));
            }
            return Ok(Planned {
                plan: Plan::Explain(Box::new(planned.plan)),
                output: Some(vec![text_column("QUERY PLAN")]),
                ..planned
            });
        }
    };
    let parameters = std::mem::take(&mut planner.shared.parameters);
    let mut parameter_types = Vec::with_capacity(parameters.len());
    for (index, ty) in parameters.into_iter().enumerate() {
        parameter_types.push(ty.ok_or_else(|| {
            SqlError::new(
                SqlState::INDETERMINATE_TYPE,
                format!("could not determine data type of parameter ${}", index + 1),
            )
        })?);
    }
    Ok(Planned { plan, parameter_types, output, tables: planner.tables })
}

fn text_column(name: &str) -> OutputColumn {
    OutputColumn { name: name.to_owned(), ty: Type::Text, origin: None }
}

impl Planner<'_> {
    /// A query on the planning path that is for it.
    pub(crate) fn any_query(&mut self, query: &ast::Query) -> Result<(Plan, Vec<OutputColumn>)> {
        if is_relational(query) {
            let (plan, output) = self.relational(query)?;
            return Ok((Plan::Relational(Box::new(plan)), output));
        }
        let (plan, output) = self.query(query)?;
        Ok((Plan::Query(Box::new(plan)), output))
    }

    fn statement(&mut self, statement: &ast::Statement) -> Result<(Plan, Option<Vec<OutputColumn>>)> {
        use ast::Statement as S;
        match statement {
            S::Query(query) => match query.body.as_ref() {
                // A WITH in front of INSERT, UPDATE or DELETE puts them inside a query.
                ast::SetExpr::Insert(_) | ast::SetExpr::Update(_) | ast::SetExpr::Delete(_) => {
                    Err(SqlError::unsupported("WITH (a common table expression)"))
                }
                _ => {
                    let (plan, output) = self.any_query(query)?;
                    Ok((plan, Some(output)))
                }
            },
            S::Insert(insert) => self.insert(insert),
            S::Update(update) => self.update(update),
            S::Delete(delete) => self.delete(delete),
            S::Truncate(truncate) => Ok((self.truncate(truncate)?, None)),
            S::Drop { object_type, if_exists, names, cascade: _, restrict: _, purge, temporary, table } => {
                if *object_type != ast::ObjectType::Table {
                    return Err(SqlError::unsupported(format!("DROP {object_type}")));
                }
                if *purge || *temporary || table.is_some() {
                    return Err(SqlError::unsupported("this form of DROP TABLE"));
                }
                Ok((Plan::Ddl(drop_tables(names, *if_exists)?), None))
            }
            other => {
                let text = other.to_string();
                let words: Vec<&str> = text.split_whitespace().take(2).collect();
                let first = words.first().copied().unwrap_or_default().to_uppercase();
                let what = match (first.as_str(), words.get(1)) {
                    ("CREATE" | "ALTER" | "DROP" | "COMMENT", Some(second)) => {
                        format!("{first} {}", second.to_uppercase())
                    }
                    _ => first,
                };
                Err(SqlError::unsupported(what))
            }
        }
    }
}
