//! ORDER BY over rows, in PostgreSQL's order of values.

use std::cmp::Ordering;

use arrow::{
    array::{Array, ArrayRef, AsArray, PrimitiveArray},
    datatypes::{
        ArrowPrimitiveType, Date32Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType,
        TimestampMicrosecondType,
    },
};

use crate::{
    array::arrow_cell_to_value,
    operation::SortKey,
    types::Type,
    value::{Value, compare_as},
};

/// Compares two rows by one column; both are not NULL.
type Compare<'a> = Box<dyn Fn(usize, usize) -> Ordering + 'a>;

/// The rows of some columns in order. Rows that compare equal stay in the order in which they are.
pub fn sorted(columns: &[ArrayRef], types: &[Type], keys: &[SortKey]) -> Vec<u32> {
    let order = Order::new(columns, types, keys);
    let mut rows: Vec<u32> = (0..columns.first().map_or(0, |column| column.len()) as u32).collect();
    rows.sort_by(|a, b| order.compare(*a as usize, *b as usize));
    rows
}

/// The first `limit` rows of some columns in their order, themselves in no order.
pub(crate) fn first(columns: &[ArrayRef], types: &[Type], keys: &[SortKey], limit: usize) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..columns.first().map_or(0, |column| column.len()) as u32).collect();
    if limit < rows.len() {
        let order = Order::new(columns, types, keys);
        // Of rows that compare equal the first ones, so that it is a function of the rows alone.
        rows.select_nth_unstable_by(limit, |a, b| {
            order.compare(*a as usize, *b as usize).then_with(|| a.cmp(b))
        });
        rows.truncate(limit);
    }
    rows
}

/// Compares two rows whose values are at hand.
pub(crate) fn compare_values(a: &[Value], b: &[Value], types: &[Type], keys: &[SortKey]) -> Ordering {
    let of_key = |key: &SortKey| {
        let (a, b) = (&a[key.column], &b[key.column]);
        with_nulls(key, a.is_null(), b.is_null(), || compare_as(a, b, &types[key.column]))
    };
    keys.iter().map(of_key).find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal)
}

/// The order by one key, of which `compare` says how two values that are not NULL compare.
fn with_nulls(key: &SortKey, a_is_null: bool, b_is_null: bool, compare: impl Fn() -> Ordering) -> Ordering {
    match (a_is_null, b_is_null) {
        (true, true) => Ordering::Equal,
        (true, false) if key.nulls_first => Ordering::Less,
        (true, false) => Ordering::Greater,
        (false, true) if key.nulls_first => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) if key.descending => compare().reverse(),
        (false, false) => compare(),
    }
}

/// Rows compared by keys over their columns.
struct Order<'a> {
    keys: Vec<(&'a SortKey, &'a ArrayRef, Compare<'a>)>,
}

impl<'a> Order<'a> {
    fn new(columns: &'a [ArrayRef], types: &'a [Type], keys: &'a [SortKey]) -> Order<'a> {
        let keys = keys.iter().map(|key| {
            let column = &columns[key.column];
            (key, column, comparison(column, &types[key.column]))
        });
        Order { keys: keys.collect() }
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        for (key, column, compare) in &self.keys {
            let ordering = with_nulls(key, column.is_null(a), column.is_null(b), || compare(a, b));
            if ordering.is_ne() {
                return ordering;
            }
        }
        Ordering::Equal
    }
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
