//! How large a batch may be.
//!
//! The strings of an Arrow array lie in one buffer of less than 2 GB, and nobody wants to hold that much at once. So what
//! gathers cells or evaluates expressions stops when an array of several rows would be larger than [`BATCH_BYTES`], with
//! an error that never leaves the engine ([`SqlError::batch_full`]): who asked for the array halves the rows. An array of
//! one row has the room that one value may take.

use std::ops::Range;

use crate::{
    error::{Result, SqlError, SqlState},
    given_up::check_entered,
};

/// Bytes of strings in an array of more than one row.
pub(crate) const BATCH_BYTES: usize = 64 << 20;

/// Rows of which conditions are evaluated together: their cells stay in the cache, and a read that is given up ends soon.
const EVALUATED: usize = 4 << 10;

/// Bytes of a batch of more than one row for whoever has asked for it.
pub(crate) const RESULT_BYTES: usize = 4 << 20;

/// What one value may take, as in PostgreSQL.
pub(crate) const VALUE_BYTES: usize = 0x3fff_ffff;

/// 54000 when a value of so many bytes is too large.
pub(crate) fn check_value(bytes: usize) -> Result<()> {
    if bytes <= VALUE_BYTES {
        return Ok(());
    }
    Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "requested length too large")
        .with_detail(format!("A value may take {VALUE_BYTES} bytes; this one takes {bytes}.")))
}

/// Does something with rows in their order: all of them at once, or in as many parts as it takes. `act` fails with
/// [`SqlError::batch_full`] before it has done anything, and never for a single row. Ends between parts when it is for a read
/// that has been given up.
pub(crate) fn in_parts(rows: Range<usize>, act: &mut dyn FnMut(Range<usize>) -> Result<()>) -> Result<()> {
    in_all_parts(rows, &mut |part| {
        check_entered()?;
        act(part)
    })
}

/// As [`in_parts`], of [`EVALUATED`] rows at most.
pub(crate) fn in_short_parts(
    rows: Range<usize>,
    act: &mut dyn FnMut(Range<usize>) -> Result<()>,
) -> Result<()> {
    let starts = rows.clone().step_by(EVALUATED);
    starts.map(|start| start..rows.end.min(start + EVALUATED)).try_for_each(|part| in_parts(part, act))
}

/// As [`in_parts`], but comes to its end.
pub(crate) fn in_all_parts(
    rows: Range<usize>,
    act: &mut dyn FnMut(Range<usize>) -> Result<()>,
) -> Result<()> {
    match act(rows.clone()) {
        Err(error) if error.is_batch_full() && rows.len() > 1 => {
            let middle = rows.start + rows.len() / 2;
            in_all_parts(rows.start..middle, act)?;
            in_all_parts(middle..rows.end, act)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_large_as_fits_and_in_order() {
        let sizes = [1, 1, 1, 1, 9, 1, 1, 1, 30];
        let mut parts = Vec::new();
        in_parts(0..sizes.len(), &mut |part| {
            if part.len() > 1 && sizes[part.clone()].iter().sum::<usize>() > 10 {
                return Err(SqlError::batch_full());
            }
            parts.push(part);
            Ok(())
        })
        .unwrap();
        assert_eq!(parts, [0..4, 4..6, 6..7, 7..8, 8..9]);
    }
}
