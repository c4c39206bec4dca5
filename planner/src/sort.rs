//! ORDER BY over a batch, in PostgreSQL's order of values.

use std::cmp::Ordering;

use arrow::{
    array::{Array, ArrayRef, AsArray, PrimitiveArray},
    datatypes::{
        ArrowPrimitiveType, Date32Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType,
        TimestampMicrosecondType,
    },
    record_batch::RecordBatch,
};
use carousel_engine::{Type, Value, array::arrow_cell_to_value, operation::SortKey, value::compare_as};

/// Compares two rows by one column; both are not NULL.
type Compare<'a> = Box<dyn Fn(usize, usize) -> Ordering + 'a>;

/// The rows of a batch in order. Rows that compare equal stay in the order in which they are.
pub(crate) fn sorted(batch: &RecordBatch, types: &[Type], keys: &[SortKey]) -> Vec<u32> {
    let columns: Vec<(&SortKey, &ArrayRef, Compare<'_>)> = keys
        .iter()
        .map(|key| {
            let column = batch.column(key.column);
            (key, column, comparison(column, &types[key.column]))
        })
        .collect();
    let mut rows: Vec<u32> = (0..batch.num_rows() as u32).collect();
    rows.sort_by(|a, b| {
        let (a, b) = (*a as usize, *b as usize);
        for (key, column, compare) in &columns {
            let ordering = match (column.is_null(a), column.is_null(b)) {
                (true, true) => Ordering::Equal,
                (true, false) if key.nulls_first => Ordering::Less,
                (true, false) => Ordering::Greater,
                (false, true) if key.nulls_first => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) if key.descending => compare(b, a),
                (false, false) => compare(a, b),
            };
            if ordering.is_ne() {
                return ordering;
            }
        }
        Ordering::Equal
    });
    rows
}

fn primitive<T: ArrowPrimitiveType>(column: &ArrayRef) -> Compare<'_>
where
    T::Native: Ord,
{
    let array: &PrimitiveArray<T> = column.as_primitive();
    Box::new(|a, b| array.value(a).cmp(&array.value(b)))
}

fn comparison<'a>(column: &'a ArrayRef, ty: &'a Type) -> Compare<'a> {
    match ty {
        Type::Int2 => primitive::<Int16Type>(column),
        Type::Int4 => primitive::<Int32Type>(column),
        Type::Int8 => primitive::<Int64Type>(column),
        Type::Date => primitive::<Date32Type>(column),
        Type::Time => primitive::<Time64MicrosecondType>(column),
        Type::Timestamp | Type::TimestampTz => primitive::<TimestampMicrosecondType>(column),
        Type::Text | Type::Varchar(_) => {
            let array = column.as_string::<i32>();
            Box::new(|a, b| array.value(a).as_bytes().cmp(array.value(b).as_bytes()))
        }
        _ => {
            let values: Vec<Value> =
                (0..column.len()).map(|row| arrow_cell_to_value(column, row, ty)).collect();
            Box::new(move |a, b| compare_as(&values[a], &values[b], ty))
        }
    }
}
