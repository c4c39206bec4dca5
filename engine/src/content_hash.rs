//! The content hash of a range (DESIGN, decision 3): an order-independent sum over the visible rows of a strong hash
//! of each. It says nothing about versions, codes or layout, so replicas of a range can be compared at any ordered
//! `Ts`.

use xxhash_rust::xxh3::xxh3_128;

use crate::{
    column::{Physical, SegmentColumn, physical},
    schema::Column,
};

/// Adds the hashes of these rows of a segment to `sum`. Values are taken as they are stored: `1.0` and `1.00` differ.
pub(crate) fn add_rows(sum: u128, columns: &[SegmentColumn], types: &[Column], rows: &[u32]) -> u128 {
    let mut sum = sum;
    let mut bytes = Vec::with_capacity(256);
    for row in rows {
        bytes.clear();
        for (column, definition) in columns.iter().zip(types) {
            write(&mut bytes, column, *row as usize, definition);
        }
        sum = sum.wrapping_add(xxh3_128(&bytes));
    }
    sum
}

fn write(out: &mut Vec<u8>, column: &SegmentColumn, row: usize, definition: &Column) {
    if column.is_null(row) {
        out.push(0);
        return;
    }
    match physical(&definition.ty) {
        Physical::Int => {
            out.push(1);
            out.extend_from_slice(&column.int(row).to_le_bytes());
        }
        Physical::Wide => {
            out.push(2);
            out.extend_from_slice(&column.wide(row).to_le_bytes());
        }
        Physical::Bytes => {
            let bytes = column.bytes(row);
            out.push(3);
            out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            out.extend_from_slice(bytes);
        }
    }
}
