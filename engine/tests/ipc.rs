//! Batches as bytes: what is written is read again, and what is damaged is an error that costs nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, RecordBatch, RecordBatchOptions},
    datatypes::{Field, Schema},
};
use carousel_engine::{
    Type, Value,
    array::values_to_array,
    ipc::{decode, encode},
    numeric::Numeric,
    value::Interval,
};
use proptest::prelude::*;

/// Remembers the largest piece of memory that each thread asks for.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// Every call is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// A value of every type, besides NULL.
fn columns() -> Vec<(Type, Value)> {
    vec![
        (Type::Bool, Value::Bool(true)),
        (Type::Int2, Value::Int2(-2)),
        (Type::Int4, Value::Int4(i32::MAX)),
        (Type::Int8, Value::Int8(i64::MIN)),
        (Type::Float4, Value::Float4(1.5)),
        (Type::Float8, Value::Float8(-0.0)),
        (Type::Numeric(Some((12, 2))), Value::Numeric(Numeric::new(-1234, 2))),
        (Type::Numeric(None), Value::Numeric(Numeric::new(7, 0))),
        (Type::Text, Value::text("a carousel")),
        (Type::Varchar(Some(9)), Value::text("é")),
        (Type::Char(3), Value::text("ab ")),
        (Type::Date, Value::Date(20_000)),
        (Type::Time, Value::Time(86_399_999_999)),
        (Type::Timestamp, Value::Timestamp(1)),
        (Type::TimestampTz, Value::TimestampTz(-1)),
        (Type::Interval, Value::Interval(Interval { months: 1, days: -2, microseconds: 3 })),
        (Type::Uuid, Value::Uuid([7; 16])),
        (Type::Bytea, Value::Bytea([0, 255].into())),
    ]
}

fn batch(rows: usize) -> RecordBatch {
    let array = |(ty, value): &(Type, Value)| -> ArrayRef {
        let cells: Vec<Value> =
            (0..rows).map(|row| if row % 3 == 1 { Value::Null } else { value.clone() }).collect();
        values_to_array(&cells, ty).expect("values of the column's type")
    };
    let fields: Vec<Field> = columns()
        .iter()
        .enumerate()
        .map(|(i, (ty, _))| Field::new(format!("c{i}"), ty.arrow(), true))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns().iter().map(array).collect())
        .expect("columns that fit their schema")
}

fn examples() -> Vec<Vec<RecordBatch>> {
    let without_columns = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        Vec::new(),
        &RecordBatchOptions::new().with_row_count(Some(5)),
    );
    vec![
        vec![batch(4)],
        vec![batch(0)],
        vec![batch(100).slice(10, 2), batch(1)],
        vec![without_columns.expect("five rows")],
    ]
}

/// Reads damaged bytes; what is allocated meanwhile is bounded by their number.
fn read(bytes: &[u8]) -> Result<Vec<RecordBatch>, String> {
    LARGEST.set(0);
    let read = decode(bytes).map_err(|error| error.to_string());
    let largest = LARGEST.get();
    assert!(largest <= 4 * bytes.len() + 1024, "{largest} bytes at once for a stream of {}", bytes.len());
    read
}

#[test]
fn what_is_written_is_read() {
    for batches in examples() {
        let bytes = encode(&batches).expect("batches of one schema");
        assert_eq!(read(&bytes).expect("as they were written"), batches);
    }
}

/// Columns that are said to be at the same place would be copied to many.
#[test]
fn columns_that_overlap_are_an_error() {
    let numbers = values_to_array(&vec![Value::Uuid([7; 16]); 10], &Type::Uuid).expect("values of the type");
    let fields: Vec<Field> = (0..4).map(|i| Field::new(format!("c{i}"), Type::Uuid.arrow(), true)).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![numbers; 4]).expect("four columns");
    let mut bytes = encode(&[batch]).expect("a batch");
    let number =
        |bytes: &[u8], at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let buffers = |bytes: &[u8]| -> Vec<usize> {
        (0..bytes.len() - 16)
            .step_by(8)
            .filter(|at| number(bytes, at + 8) == 160 && number(bytes, *at) < 1000)
            .collect()
    };
    let found = buffers(&bytes);
    assert_eq!(found.len(), 4);
    assert!(read(&bytes).is_ok());
    for at in found {
        bytes[at..at + 8].copy_from_slice(&0i64.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&320i64.to_le_bytes());
    }
    let error = read(&bytes).expect_err("they are longer than the batch");
    assert!(error.contains("longer than it"), "{error}");
}

#[test]
fn a_part_of_a_stream_is_an_error() {
    for batches in examples() {
        let mut bytes = encode(&batches).expect("batches of one schema");
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "the first {length} of {} bytes", bytes.len());
        }
        bytes.push(0);
        assert!(read(&bytes).is_err(), "a byte behind the end");
    }
}

#[test]
fn a_damaged_byte_is_an_error_or_another_value() {
    for batches in examples() {
        let bytes = encode(&batches).expect("batches of one schema");
        let mut damaged = bytes.clone();
        for at in 0..bytes.len() {
            for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                damaged[at] = bytes[at] ^ flip;
                if let Ok(read) = read(&damaged) {
                    let rows: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
                    let is_counted = batches[0].num_columns() > 0;
                    assert!(!is_counted || read.iter().map(RecordBatch::num_rows).eq(rows), "byte {at}");
                }
            }
            damaged[at] = bytes[at];
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damage_at_several_places_does_no_harm(
        example in 0_usize..4,
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = encode(&examples()[example]).expect("batches of one schema");
        for (at, byte) in damages {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read(&bytes);
    }

    #[test]
    fn nonsense_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&bytes).is_err());
    }
}
