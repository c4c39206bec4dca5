//! The schema `carousel`: tables that are made up of what a front end knows of its cluster. They belong to no `Ts`.

use carousel_engine::{SqlError, SqlState, Type, Value, array::values_to_array, error::Result};

use arrow::{
    datatypes::{Field as ArrowField, Schema},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use std::sync::Arc;

use super::node::{Field, Kind, Node};

/// The schema's name.
pub(crate) const SCHEMA: &str = "carousel";

/// A table of the schema `carousel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SystemView {
    /// Routers, where those that were added listen, which vote and which one leads.
    Routers,
    /// Storage processes.
    Storage,
    /// Primary ranges in the order of the ring, with those who hold them.
    Ring,
    /// Copies that are not complete.
    Migrations,
    /// What this front end has asked of the storage processes and is not answered in full. A read that has no place in the
    /// m-seq has no sequence number.
    Operations,
}

impl SystemView {
    /// The view of this name.
    ///
    /// # Errors
    /// 42P01 when there is none.
    pub(crate) fn named(name: &str) -> Result<SystemView> {
        let all = [
            SystemView::Routers,
            SystemView::Storage,
            SystemView::Ring,
            SystemView::Migrations,
            SystemView::Operations,
        ];
        all.into_iter().find(|view| view.name() == name).ok_or_else(|| {
            SqlError::new(SqlState::UNDEFINED_TABLE, format!("relation \"{SCHEMA}.{name}\" does not exist"))
        })
    }

    /// Its name in the schema.
    pub fn name(self) -> &'static str {
        match self {
            SystemView::Routers => "routers",
            SystemView::Storage => "storage",
            SystemView::Ring => "ring",
            SystemView::Migrations => "migrations",
            SystemView::Operations => "operations",
        }
    }

    /// Its columns.
    pub fn columns(self) -> Vec<(&'static str, Type)> {
        let position = || Type::Numeric(Some((20, 0)));
        match self {
            SystemView::Routers => vec![
                ("router", Type::Text),
                ("address", Type::Text),
                ("votes", Type::Bool),
                ("leads", Type::Bool),
            ],
            SystemView::Storage => vec![
                ("storage", Type::Text),
                ("state", Type::Text),
                ("reachable", Type::Bool),
                ("busy", Type::Bool),
                ("lags", Type::Bool),
                ("does_not_reach", Type::Text),
                ("incarnation", Type::Int8),
                ("memory_bytes", Type::Int8),
                ("memory_limit_bytes", Type::Int8),
            ],
            SystemView::Ring => vec![
                ("identifier", position()),
                ("storage", Type::Text),
                ("last_position", position()),
                ("holders", Type::Text),
            ],
            SystemView::Migrations => vec![
                ("keyspace_ts", Type::Int8),
                ("change", Type::Text),
                ("sender", Type::Text),
                ("receiver", Type::Text),
                ("first_position", position()),
                ("last_position", position()),
                ("received_chunks", Type::Int8),
                ("received_rows", Type::Int8),
                ("rows_to_come", Type::Int8),
                ("state", Type::Text),
            ],
            SystemView::Operations => vec![
                ("submitter", Type::Text),
                ("sequence", Type::Int8),
                ("kind", Type::Text),
                ("tables", Type::Text),
                ("read_isolation", Type::Text),
                ("read_ts", Type::Int8),
                ("state", Type::Text),
                ("waits_for", Type::Text),
                ("age_ms", Type::Int8),
            ],
        }
    }

    /// Rows of values of the columns' types as a batch.
    ///
    /// # Errors
    /// When they are not of these types.
    pub(crate) fn batch(self, rows: &[Vec<Value>]) -> Result<RecordBatch> {
        let columns = self.columns();
        let fields: Vec<ArrowField> =
            columns.iter().map(|(name, ty)| ArrowField::new(*name, ty.arrow(), true)).collect();
        let arrays = columns.iter().enumerate().map(|(index, (_, ty))| {
            let values: Vec<Value> = rows.iter().map(|row| row[index].clone()).collect();
            values_to_array(&values, ty)
        });
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
            .map_err(|error| SqlError::internal(format!("rows of carousel.{}: {error}", self.name())))
    }
}

impl Node {
    /// A system view.
    pub(crate) fn system(view: SystemView) -> Node {
        let fields = view.columns().into_iter().map(|(name, ty)| Field::new(name, ty)).collect();
        Node { kind: Kind::System(view), fields }
    }
}
