//! The content hash of a range (DESIGN, decision 3): an order-independent sum over the visible rows of a strong hash
//! of each. It says nothing about versions, codes or layout, so replicas of a range can be compared at any ordered
//! `Ts`.

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::{
    column::{Physical, SegmentColumn, physical},
    schema::Column,
};

/// Adds the hashes of these rows of a segment to `sum`. Values are taken as they are stored: `1.0` and `1.00` differ.
///
/// The hash of a row is that of the sum of its cells' hashes, each of which says which column it is in: so the segment is
/// walked column by column, and a value that many rows have is hashed once.
pub(crate) fn add_rows(sum: u128, columns: &[SegmentColumn], types: &[Column], rows: &[u32]) -> u128 {
    let mut cells = vec![0u128; rows.len()];
    for (index, (column, definition)) in columns.iter().zip(types).enumerate() {
        add_cells(&mut cells, column, physical(&definition.ty), rows, index as u64);
    }
    cells.into_iter().fold(sum, |sum, cells| sum.wrapping_add(xxh3_128(&cells.to_le_bytes())))
}

/// Adds the hash of the cell of each row.
fn add_cells(sums: &mut [u128], column: &SegmentColumn, physical: Physical, rows: &[u32], seed: u64) {
    let null = xxh3_128_with_seed(&[], !seed);
    let int = |value: i64| xxh3_128_with_seed(&value.to_le_bytes(), seed);
    let wide = |value: i128| xxh3_128_with_seed(&value.to_le_bytes(), seed);
    let bytes = |value: &[u8]| xxh3_128_with_seed(value, seed);
    let of_row = |row: usize| match physical {
        Physical::Int => int(column.int(row)),
        Physical::Wide => wide(column.wide(row)),
        Physical::Bytes => bytes(column.bytes(row)),
    };
    // The hash of what each code stands for, where that costs less than to hash what each row has: a table that does not
    // fit into the cache costs more than to hash a number.
    let rows_of_code = if physical == Physical::Bytes { 1 } else { 16 };
    let base = column.base.as_ref().filter(|base| base.max_code < rows.len() as u64 / rows_of_code);
    let of_code: Vec<u128> = base.map_or_else(Vec::new, |base| {
        let of_code = |code: u64| match physical {
            Physical::Int => int(base.int_of(code)),
            Physical::Wide => wide(base.wide_of(code)),
            Physical::Bytes => bytes(base.bytes_of(code)),
        };
        (0..=base.max_code).map(of_code).collect()
    });
    for (sum, row) in sums.iter_mut().zip(rows) {
        let row = *row as usize;
        let hash = match base {
            _ if column.is_null(row) => null,
            Some(base) if row < column.base_rows => of_code[base.codes.get(row) as usize],
            _ => of_row(row),
        };
        *sum = sum.wrapping_add(hash);
    }
}
