//! Tests of values: for the plain rows of a segment, and for single rows.

use super::{BytesInterval, ColumnTest, Test};
use crate::{
    batch_size::in_short_parts,
    bits::{Bits, and_where},
    column::{Cell, PlainData, SegmentColumn},
    error::Result,
    expr::EvalContext,
    kernel,
    schema::Column,
    simd,
    types::Type,
};

/// Whether a cell meets a test that is no expression.
pub(super) fn cell_holds(test: &Test, cell: Cell) -> bool {
    match (test, cell) {
        (Test::Null, cell) => matches!(cell, Cell::Null),
        (_, Cell::Null) => false,
        (Test::NotNull, _) => true,
        (Test::Ints(intervals), Cell::Int(value)) => hold(intervals, value),
        (Test::Wides(intervals), Cell::Wide(value)) => hold(intervals, value),
        (Test::Bytes(intervals), Cell::Bytes(value)) => bytes_hold(intervals, value),
        _ => false,
    }
}

/// Whether a value lies in any of these intervals, bounds included.
fn hold<T: Copy + Ord>(intervals: &[(T, T)], value: T) -> bool {
    let next = intervals.partition_point(|(_, high)| *high < value);
    intervals.get(next).is_some_and(|(low, _)| *low <= value)
}

fn bytes_hold(intervals: &[BytesInterval], value: &[u8]) -> bool {
    let next =
        intervals.partition_point(|(_, high)| high.as_ref().is_some_and(|high| high.as_slice() <= value));
    intervals.get(next).is_some_and(|(low, _)| low.as_slice() <= value)
}

/// Clears the rows of `mask` (over those from row `first` on, which are not encoded in all columns) that do not meet the test.
pub(super) fn retain_plain(
    test: &Test,
    column: &SegmentColumn,
    ty: &Type,
    context: &EvalContext,
    first: usize,
    mask: &mut Bits,
) -> Result<()> {
    match (test, column.delta.data()) {
        (Test::Expression(expr), _) => {
            let rows: Vec<u32> = mask.iter().collect();
            let addresses: Vec<u32> = rows.iter().map(|row| row + first as u32).collect();
            mask.words_mut().fill(0);
            in_short_parts(0..rows.len(), &mut |part| {
                let array = column.gather(ty, &addresses[part.clone()])?;
                for kept in kernel::filter_array(expr, &array, context)? {
                    mask.set(rows[part.start + kept as usize] as usize);
                }
                Ok(())
            })?;
        }
        // Where this column has been encoded no further than the others, its values are compared at once.
        (Test::Ints(intervals), PlainData::Int(values)) if column.base_rows == first => {
            match intervals.as_slice() {
                [] => mask.words_mut().fill(0),
                [(low, high)] => and_where(mask.words_mut(), values, |value| *low <= value && value <= *high),
                _ => and_where(mask.words_mut(), values, |value| hold(intervals, value)),
            }
            if let Some(nulls) = column.delta.nulls() {
                simd::subtract(mask.words_mut(), nulls.words());
            }
        }
        _ => {
            let failed: Vec<u32> =
                mask.iter().filter(|row| !cell_holds(test, column.cell(first + *row as usize))).collect();
            failed.into_iter().for_each(|row| mask.clear(row as usize));
        }
    }
    Ok(())
}

/// Leaves those of some rows of a segment that meet a test; all when it cannot be made.
pub(crate) fn retain_rows(
    test: &ColumnTest,
    columns: &[SegmentColumn],
    types: &[Column],
    context: &EvalContext,
    rows: &mut Vec<u32>,
) -> Result<()> {
    let column = &columns[test.column];
    match &test.test {
        Test::Expression(expr) => {
            let mut met = Vec::new();
            in_short_parts(0..rows.len(), &mut |part| {
                let array = column.gather(&types[test.column].ty, &rows[part.clone()])?;
                let kept = kernel::filter_array(expr, &array, context)?;
                met.extend(kept.into_iter().map(|kept| rows[part.start + kept as usize]));
                Ok(())
            })?;
            *rows = met;
        }
        test => rows.retain(|row| cell_holds(test, column.cell(*row as usize))),
    }
    Ok(())
}

/// Whether one row of a segment meets a test.
pub(crate) fn row_holds(
    test: &ColumnTest,
    columns: &[SegmentColumn],
    types: &[Column],
    context: &EvalContext,
    row: usize,
) -> Result<bool> {
    let ty = &types[test.column].ty;
    let column = &columns[test.column];
    match &test.test {
        Test::Expression(expr) => {
            Ok(!kernel::filter_array(expr, &column.gather(ty, &[row as u32])?, context)?.is_empty())
        }
        test => Ok(cell_holds(test, column.cell(row))),
    }
}
