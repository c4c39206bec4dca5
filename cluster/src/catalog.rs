//! The catalog: a function of the m-seq (DESIGN, decision 11), followed by routers, storage and client processes.

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::{SqlError, SqlState, TableId, TableSchema, Ts};
use serde::{Deserialize, Serialize};

use crate::message::Ddl;

/// As many tables can be there at a time. A storage process makes all of them between two messages when it joins, at a local time
/// each, of which there are 2^16.
pub const MAX_TABLES: usize = 1 << 15;

/// All tables at one `Ts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Catalog {
    version: Ts,
    tables: BTreeMap<String, Arc<TableSchema>>,
    /// The same: every delivery looks for what it was planned against.
    #[serde(skip)]
    by_id: BTreeMap<TableId, Arc<TableSchema>>,
}

/// What is written of a catalog.
#[derive(Deserialize)]
#[serde(rename = "Catalog")]
struct Stored {
    version: Ts,
    tables: BTreeMap<String, Arc<TableSchema>>,
}

impl From<Stored> for Catalog {
    fn from(Stored { version, tables }: Stored) -> Catalog {
        let by_id = tables.values().map(|table| (table.id, table.clone())).collect();
        Catalog { version, tables, by_id }
    }
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
        self.by_id.get(&id)
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
                if self.tables.len() >= MAX_TABLES {
                    let message = format!("cannot have more than {MAX_TABLES} tables");
                    return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, message));
                }
                let mut schema = TableSchema::clone(schema);
                schema.id = TableId(ts.0);
                schema.version = ts;
                let schema = Arc::new(schema);
                self.tables.insert(schema.name.clone(), schema.clone());
                self.by_id.insert(schema.id, schema.clone());
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
                effect.dropped.iter().for_each(|id| _ = self.by_id.remove(id));
            }
        }
        Ok(effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::tests::schema;

    #[test]
    fn tables_are_bounded() {
        let mut catalog = Catalog::default();
        let mut ts = 0;
        let mut apply = |catalog: &mut Catalog, ddl| {
            ts += 1;
            catalog.apply(Ts(ts), &ddl).map(|effect| effect.created.first().map(|table| table.id))
        };
        let create = |number: usize| Ddl::CreateTable {
            schema: Arc::new(TableSchema { name: format!("t{number}"), ..schema() }),
            if_not_exists: false,
        };
        for number in 0..MAX_TABLES {
            apply(&mut catalog, create(number)).expect("there is room");
        }
        let refused = apply(&mut catalog, create(MAX_TABLES)).expect_err("there is none");
        assert_eq!(refused.code, SqlState::LIMIT_EXCEEDED);
        let dropped = catalog.table("t7").expect("made").id;
        apply(&mut catalog, Ddl::DropTables { names: vec!["t7".into()], if_exists: false })
            .expect("it is there");
        let made = apply(&mut catalog, create(MAX_TABLES)).expect("there is room again").expect("made");
        assert_eq!(catalog.tables().count(), MAX_TABLES);
        let by_id = |catalog: &Catalog, id| catalog.table_by_id(id).map(|table| table.name.clone());
        assert_eq!((by_id(&catalog, dropped), by_id(&catalog, made)), (None, Some(format!("t{MAX_TABLES}"))));
        let bytes = postcard::to_allocvec(&catalog).expect("written");
        assert_eq!(postcard::from_bytes::<Catalog>(&bytes).expect("read"), catalog);
    }
}
