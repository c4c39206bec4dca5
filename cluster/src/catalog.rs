//! The catalog: a function of the m-seq (DESIGN, decision 11), followed by routers, storage and client processes.

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::{SqlError, SqlState, TableId, TableSchema, Ts};
use serde::{Deserialize, Serialize};

use crate::message::Ddl;

/// All tables at one `Ts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    version: Ts,
    tables: BTreeMap<String, Arc<TableSchema>>,
}

/// What a DDL message did.
#[derive(Clone, Debug, PartialEq)]
pub struct DdlEffect {
    /// Tables that exist now.
    pub created: Vec<Arc<TableSchema>>,
    /// Tables that no longer exist.
    pub dropped: Vec<TableId>,
    /// Notices for the client, as PostgreSQL words them.
    pub notices: Vec<SqlError>,
}

impl Catalog {
    /// `Ts` of the last DDL message that was applied, whether it succeeded or not.
    pub fn version(&self) -> Ts {
        self.version
    }

    /// The table with this name.
    pub fn table(&self, name: &str) -> Option<&Arc<TableSchema>> {
        self.tables.get(name)
    }

    /// The table with this identity.
    pub fn table_by_id(&self, id: TableId) -> Option<&Arc<TableSchema>> {
        self.tables.values().find(|t| t.id == id)
    }

    /// All tables by name.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableSchema>> {
        self.tables.values()
    }

    /// Whether every table still has the version that a message was planned against.
    pub fn is_current(&self, tables: &[(TableId, Ts)]) -> bool {
        tables.iter().all(|(id, version)| self.table_by_id(*id).is_some_and(|t| t.version == *version))
    }

    /// Applies a DDL message. An error is its outcome and changes nothing but the version.
    ///
    /// # Panics
    /// When `ts` does not lie after the version: the m-seq was not followed in order.
    pub fn apply(&mut self, ts: Ts, ddl: &Ddl) -> Result<DdlEffect, SqlError> {
        assert!(ts > self.version, "DDL at {ts} after the catalog reached {}", self.version);
        self.version = ts;
        let mut effect = DdlEffect { created: Vec::new(), dropped: Vec::new(), notices: Vec::new() };
        match ddl {
            Ddl::CreateTable { schema, if_not_exists } => {
                if self.tables.contains_key(&schema.name) {
                    let message = format!("relation \"{}\" already exists", schema.name);
                    if !if_not_exists {
                        return Err(SqlError::new(SqlState::DUPLICATE_TABLE, message));
                    }
                    effect
                        .notices
                        .push(SqlError::new(SqlState::DUPLICATE_TABLE, format!("{message}, skipping")));
                    return Ok(effect);
                }
                let mut schema = TableSchema::clone(schema);
                schema.id = TableId(ts.0);
                schema.version = ts;
                let schema = Arc::new(schema);
                self.tables.insert(schema.name.clone(), schema.clone());
                effect.created.push(schema);
            }
            Ddl::DropTables { names, if_exists } => {
                for name in names {
                    if self.tables.contains_key(name) {
                        continue;
                    }
                    let message = format!("table \"{name}\" does not exist");
                    if !if_exists {
                        return Err(SqlError::new(SqlState::UNDEFINED_TABLE, message));
                    }
                    effect.notices.push(SqlError::new(SqlState::SUCCESS, format!("{message}, skipping")));
                }
                effect.dropped.extend(names.iter().filter_map(|name| Some(self.tables.remove(name)?.id)));
            }
        }
        Ok(effect)
    }
}
