//! The table that point writes and point reads go to: `CREATE TABLE counter (id bigint PRIMARY KEY, value bigint)`.
//! Requests are what a front end makes of prepared statements; no SQL is parsed here, for ordering is what is measured.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use carousel_cluster::{
    client::{Client, Part, Request, Submission},
    message::{Body, Data, Ddl, ReadIsolation},
};
use carousel_engine::{
    Few, TableSchema, Ts, Type, Value,
    expr::{CompareOp, EvalContext, Expr},
    operation::{
        Insert, InsertRows, OnConflict, Operation, OperationKind, Read, ReadOutput, RowBatch, Update,
    },
    position::{KeyRange, normalise},
    schema::{Column, Partitioning, TableId},
};
use futures::future::BoxFuture;

use super::load::{Store, Written};
use crate::cli::Failure;

const NAME: &str = "counter";
/// Rows in one INSERT.
const ROWS: usize = 4096;

/// The table, at a client.
#[derive(Clone)]
pub struct Table {
    client: Client,
    schema: Arc<TableSchema>,
}

fn column(name: &str) -> Column {
    Column { name: name.into(), ty: Type::Int8, not_null: name == "id", default: None }
}

fn literal(value: u64) -> Expr {
    Expr::literal(Value::Int8(value as i64), Type::Int8)
}

fn key_is(key: u64) -> Vec<Expr> {
    let (left, right) = (Box::new(Expr::column(0, Type::Int8)), Box::new(literal(key)));
    vec![Expr::Compare { op: CompareOp::Eq, left, right }]
}

impl Table {
    /// Creates the table with rows of the value 0 under the keys below `rows`.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub async fn create(client: Client, rows: u64) -> Result<Table, Failure> {
        let schema = TableSchema {
            id: TableId(0),
            version: Ts::ZERO,
            name: NAME.into(),
            columns: vec![column("id"), column("value")],
            primary_key: vec![0],
            primary_key_name: format!("{NAME}_pkey"),
            partitioning: Partitioning::Hash { columns: vec![0] },
        };
        let body = Body::Ddl(Ddl::CreateTable { schema: Arc::new(schema), if_not_exists: false });
        let created =
            client.submit(Request { tables: Default::default(), ranges: Default::default(), body }).await;
        finish(created.map_err(Failure::job)?).await?;
        let catalog = client.catalog();
        let schema = catalog.table(NAME).ok_or_else(|| Failure::job("the table was not created"))?.clone();
        let table = Table { client, schema };
        let keys: Vec<u64> = (0..rows).collect();
        for keys in keys.chunks(ROWS) {
            table.insert(keys).await?;
        }
        Ok(table)
    }

    async fn insert(&self, keys: &[u64]) -> Result<(), Failure> {
        let ids: ArrayRef = Arc::new(keys.iter().map(|key| *key as i64).collect::<Int64Array>());
        let values: ArrayRef = Arc::new(Int64Array::from(vec![0; keys.len()]));
        let rows = RecordBatch::try_new(self.schema.arrow(), vec![ids, values]).map_err(Failure::job)?;
        let positions = self.schema.partitioning.positions(&self.schema.columns, &rows);
        let ranges = normalise(positions.iter().copied().map(KeyRange::point).collect()).into();
        let rows =
            InsertRows::Inline(RowBatch { rows, positions, ordinals: (0..keys.len() as u64).collect() });
        let insert = Insert { rows, on_conflict: OnConflict::Fail, returning: None };
        let request = self.request(OperationKind::Insert(insert), ranges, true);
        finish(self.client.submit(request).await.map_err(Failure::job)?).await.map(drop)
    }

    fn request(&self, kind: OperationKind, ranges: Few<KeyRange>, fallible: bool) -> Request {
        let operation = Arc::new(Operation { table: self.schema.id, context: EvalContext::default(), kind });
        let data = Data { fallible, ..Data::new(operation) };
        Request { tables: [(self.schema.id, self.schema.version)].into(), ranges, body: Body::Data(data) }
    }

    fn point(&self, key: u64) -> Few<KeyRange> {
        [KeyRange::point(self.schema.partitioning.position(&[Value::Int8(key as i64)]))].into()
    }

    /// `UPDATE counter SET value = $2 WHERE id = $1`, which cannot fail.
    fn update(&self, key: u64, value: u64) -> Request {
        let assignments = vec![(1, literal(value))];
        let update = Update { predicate: key_is(key), assignments, returning: None };
        self.request(OperationKind::Update(update), self.point(key), false)
    }

    /// `SELECT value FROM counter WHERE id = $1`
    ///
    /// # Errors
    /// When the cluster refuses, or the answer is not one row.
    pub async fn read(&self, key: u64, isolation: ReadIsolation) -> Result<u64, Failure> {
        let rows = self.select(key_is(key), &[1], self.point(key), isolation).await?;
        match &rows[..] {
            [row] if row.len() == 1 => Ok(row[0]),
            _ => Err(Failure::job(format!("{rows:?} was read under key {key}"))),
        }
    }

    /// `SELECT id, value FROM counter`, whose rows are counted.
    ///
    /// # Errors
    /// As the cluster answers, with the SQLSTATE.
    pub async fn count(&self, isolation: ReadIsolation) -> Result<usize, Failure> {
        self.select(Vec::new(), &[0, 1], [KeyRange::FULL].into(), isolation).await.map(|rows| rows.len())
    }

    async fn select(
        &self,
        predicate: Vec<Expr>,
        columns: &[usize],
        ranges: Few<KeyRange>,
        isolation: ReadIsolation,
    ) -> Result<Vec<Vec<u64>>, Failure> {
        let projection = columns.iter().map(|column| Expr::column(*column, Type::Int8)).collect();
        let output = ReadOutput::Rows { projection, top: None };
        let request = self.request(OperationKind::Read(Read { predicate, output }), ranges, false);
        let mut submission = self.client.submit_read(request, isolation).await.map_err(Failure::job)?;
        let mut rows = Vec::new();
        while let Some(part) = submission.next().await {
            if let Part::Rows(batch) = part.map_err(|failure| Failure::job(format!("{failure:?}")))? {
                let columns: Vec<&Int64Array> =
                    batch.columns().iter().map(|column| column.as_primitive()).collect();
                let row = |row: usize| columns.iter().map(|column| column.value(row) as u64).collect();
                rows.extend((0..batch.num_rows()).map(row));
            }
        }
        Ok(rows)
    }

    /// Compares all rows, of every replica, with what was written.
    ///
    /// # Errors
    /// When they differ.
    pub async fn check(&self, written: &Written, replicas: u32) -> Result<(), Failure> {
        for _ in 0..replicas {
            // One read after the other goes to the next replica.
            let rows =
                self.select(Vec::new(), &[0, 1], [KeyRange::FULL].into(), ReadIsolation::Sequential).await?;
            let wrong = rows.iter().find(|row| written.get(row[0] as usize) != Some(&row[1]));
            if let Some(row) = wrong {
                let expected = written.get(row[0] as usize);
                return Err(Failure::job(format!("{row:?} was read where {expected:?} was written last")));
            }
            if rows.len() != written.len() {
                return Err(Failure::job(format!("{} rows of {} were read", rows.len(), written.len())));
            }
        }
        Ok(())
    }
}

async fn finish(submission: Submission) -> Result<u64, Failure> {
    match submission.finish().await {
        Ok(Part::Done { rows, .. }) => Ok(rows),
        Ok(_) => Ok(0),
        Err(failure) => Err(Failure::job(format!("{failure:?}"))),
    }
}

impl Store for Table {
    type Pending = BoxFuture<'static, Result<(), Failure>>;

    async fn submit(&self, key: u64, value: u64) -> Result<Self::Pending, Failure> {
        let submission = self.client.submit(self.update(key, value)).await.map_err(Failure::job)?;
        Ok(Box::pin(async move {
            match finish(submission).await? {
                1 => Ok(()),
                rows => Err(Failure::job(format!("{rows} rows were written under key {key}"))),
            }
        }))
    }
}
