//! Expressions over columns, as operations ask for them: what a read returns, a write assigns, a condition needs.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, OnceLock},
};

use arrow::{
    array::{ArrayRef, Int64Array},
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchOptions},
};

use crate::{
    array::repeated,
    batch_size::RESULT_BYTES,
    error::{Result, SqlError},
    expr::{
        EvalContext, Expr, Input, columns, remap_columns,
        vector::{evaluate_part, string_bytes},
    },
    kernel,
};

/// Expressions over some columns of a row, renumbered so that only those columns need be fetched.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    /// As they were given, if they are nothing but columns.
    source: Vec<Expr>,
    columns: Vec<usize>,
    exprs: Vec<Expr>,
    has_ordinal: bool,
    /// That of [`batch`](Projection::batch), once it has been asked for.
    schema: OnceLock<SchemaRef>,
}

/// Fetches a column; [`SqlError::batch_full`] when the rows are too many for an array of it.
pub(crate) type Fetch<'a> = &'a dyn Fn(usize) -> Result<ArrayRef>;

/// A batch of these columns; their types make its schema.
pub(crate) fn batch_of(columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    static NO_COLUMNS: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::empty()));
    let field = |column: &ArrayRef| Field::new("", column.data_type().clone(), true);
    let schema = match columns.is_empty() {
        true => NO_COLUMNS.clone(),
        false => Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>())),
    };
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|error| SqlError::internal(error.to_string()))
}

/// The projections that reads have asked for last: statements that are prepared once are asked often.
#[derive(Debug, Default)]
pub(crate) struct Projections {
    recent: VecDeque<Arc<Projection>>,
}

impl Projections {
    const KEPT: usize = 16;

    pub(crate) fn get(&mut self, exprs: &[Expr], input: Input<'_>) -> Result<Arc<Projection>> {
        // Constants that compare as equal may still look different.
        if !exprs.iter().all(|expr| matches!(expr, Expr::Column { .. })) {
            return Ok(Arc::new(Projection::new(exprs, input)?));
        }
        if let Some(found) = self.recent.iter().find(|recent| recent.source == exprs) {
            return Ok(found.clone());
        }
        let mut projection = Projection::new(exprs, input)?;
        projection.source = exprs.to_vec();
        let projection = Arc::new(projection);
        self.recent.truncate(Projections::KEPT - 1);
        self.recent.push_front(projection.clone());
        Ok(projection)
    }
}

impl Projection {
    /// Of expressions over `input`.
    pub(crate) fn new<'a>(
        exprs: impl IntoIterator<Item = &'a Expr, IntoIter: Clone>,
        input: Input<'_>,
    ) -> Result<Projection> {
        let exprs = exprs.into_iter();
        exprs.clone().try_for_each(|expr| input.check(expr))?;
        let mut columns: Vec<usize> = exprs.clone().flat_map(columns).collect();
        columns.sort_unstable();
        columns.dedup();
        let place = |index: usize| columns.binary_search(&index).unwrap_or(0);
        let exprs: Vec<Expr> = exprs.map(|expr| remap_columns(expr.clone(), &place)).collect();
        Ok(Projection { source: Vec::new(), columns, exprs, has_ordinal: false, schema: OnceLock::new() })
    }

    /// With the row's ordinal in front.
    pub(crate) fn with_ordinal(self) -> Projection {
        Projection { has_ordinal: true, schema: OnceLock::new(), ..self }
    }

    fn schema(&self) -> &SchemaRef {
        self.schema.get_or_init(|| {
            let ordinal = self.has_ordinal.then(|| Field::new("ordinal", DataType::Int64, false));
            let field = |(index, expr): (usize, &Expr)| {
                Field::new(format!("column{}", index + 1), expr.ty().arrow(), true)
            };
            let fields = ordinal.into_iter().chain(self.exprs.iter().enumerate().map(field));
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        })
    }

    /// Whether both are known to be of the same columns: those of different shards are not the same objects.
    pub(crate) fn is_same(&self, other: &Projection) -> bool {
        !self.source.is_empty() && self.source == other.source
    }

    /// The table's columns that the input columns are.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The table's column that an input column is.
    pub(crate) fn source_of(&self, input: usize) -> Option<usize> {
        self.columns.get(input).copied()
    }

    /// The table's columns that the expressions are, if they are nothing but columns.
    pub(crate) fn table_columns(&self) -> Option<impl Iterator<Item = usize>> {
        let column = |expr: &Expr| match expr {
            Expr::Column { index, .. } => self.source_of(*index),
            _ => None,
        };
        let all = self.exprs.iter().all(|expr| column(expr).is_some());
        all.then(move || self.exprs.iter().filter_map(column))
    }

    /// The fetched columns as a batch.
    pub(crate) fn input(&self, rows: usize, fetch: Fetch<'_>) -> Result<RecordBatch> {
        batch_of(self.columns.iter().map(|column| fetch(*column)).collect::<Result<_>>()?, rows)
    }

    /// The expressions' values; [`SqlError::batch_full`] when they are of several rows and too large for arrays.
    pub(crate) fn evaluate(
        &self,
        rows: usize,
        fetch: Fetch<'_>,
        context: &EvalContext,
    ) -> Result<Vec<ArrayRef>> {
        if let Some(columns) = self.table_columns() {
            return columns.map(fetch).collect();
        }
        let constant = |expr: &Expr| match expr {
            Expr::Literal { value, ty } => repeated(value, ty, rows),
            _ => None,
        };
        if let Some(constants) = self.exprs.iter().map(constant).collect() {
            return Ok(constants);
        }
        let input = self.input(rows, fetch)?;
        self.exprs
            .iter()
            .map(|expr| match expr {
                Expr::Column { index, .. } => Ok(input.column(*index).clone()),
                _ => evaluate_part(expr, &input, context),
            })
            .collect()
    }

    /// The expressions' values as a batch for whoever submitted the operation; [`SqlError::batch_full`] when they are of
    /// several rows and too large for one.
    pub(crate) fn batch(
        &self,
        rows: usize,
        ordinals: Option<&[u64]>,
        fetch: Fetch<'_>,
        context: &EvalContext,
    ) -> Result<RecordBatch> {
        let mut columns = self.evaluate(rows, fetch, context)?;
        if rows > 1 && columns.iter().map(string_bytes).sum::<usize>() > RESULT_BYTES {
            return Err(SqlError::batch_full());
        }
        if let Some(ordinals) = ordinals {
            let ordinals: Int64Array = ordinals.iter().map(|ordinal| *ordinal as i64).collect();
            columns.insert(0, Arc::new(ordinals));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema().clone(), columns, &options)
            .map_err(|error| SqlError::internal(error.to_string()))
    }
}

/// A conjunction over some columns of a row.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    projection: Projection,
}

impl Filter {
    pub(crate) fn new(predicate: &[Expr], input: Input<'_>) -> Result<Option<Filter>> {
        if predicate.is_empty() {
            return Ok(None);
        }
        input.check_conditions(predicate)?;
        Ok(Some(Filter { projection: Projection::new(predicate, input)? }))
    }

    /// Indices of the rows for which it is true.
    pub(crate) fn select(&self, rows: usize, fetch: Fetch<'_>, context: &EvalContext) -> Result<Vec<u32>> {
        kernel::filter(&self.projection.exprs, &self.projection.input(rows, fetch)?, context)
    }
}
