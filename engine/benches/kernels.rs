//! The loops that a scan spends its time in, each beside the plain loop or the kernel of arrow that does the same.
//!
//! `cargo bench -p carousel-engine -p carousel-cluster --bench kernels`

use std::{collections::HashMap, hint::black_box};

use arrow::array::{Int64Array, StringArray};
use carousel_engine::kernels::{Asked, Kernels, between, equal};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Rows of a segment.
const ROWS: usize = 1 << 16;

/// Numbers below `distinct`, in no order.
fn numbers(distinct: u64) -> Vec<i64> {
    (0..ROWS as u64)
        .map(|row| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % distinct)
        .map(|v| v as i64)
        .collect()
}

/// Columns of one, two and four bytes a row.
const WIDTHS: [(&str, u64); 3] = [("8 bits", 200), ("16 bits", 50_000), ("32 bits", 1 << 30)];

fn masks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a range that a third of the rows meet");
    group.throughput(Throughput::Elements(ROWS as u64));
    for (width, distinct) in WIDTHS {
        let values = numbers(distinct);
        let (low, high) = (distinct as i64 / 3, distinct as i64 * 2 / 3);
        let mut column = Kernels::ints(&values);
        let test = [between(low, high)];
        group.bench_function(BenchmarkId::new("mask of codes", width), |bencher| {
            bencher.iter(|| column.visit(black_box(&test)))
        });
        group.bench_function(BenchmarkId::new("plain loop over values", width), |bencher| {
            bencher.iter(|| black_box(&values).iter().filter(|value| (low..=high).contains(value)).count())
        });
        let array = Int64Array::from(values.clone());
        let (least, most) = (Int64Array::new_scalar(low), Int64Array::new_scalar(high));
        group.bench_function(BenchmarkId::new("arrow's comparisons", width), |bencher| {
            bencher.iter(|| {
                let above = arrow::compute::kernels::cmp::gt_eq(black_box(&array), &least).expect("numbers");
                let below = arrow::compute::kernels::cmp::lt_eq(black_box(&array), &most).expect("numbers");
                arrow::compute::and(&above, &below).expect("of one length").true_count()
            })
        });
    }
    group.finish();
}

fn joins(criterion: &mut Criterion) {
    let values = numbers(50_000);
    for asked in [1usize, 16, 256, 1024] {
        let constants: Vec<i64> = (0..asked).map(|index| values[index * 61 % ROWS]).collect();
        let tests: Vec<Asked> = constants.iter().map(|value| between(*value, *value)).collect();
        let mut group = criterion.benchmark_group(format!("the rows of {asked} values"));
        group.throughput(Throughput::Elements(asked as u64));
        let mut column = Kernels::ints(&values);
        group.bench_function("looked for in one pass", |bencher| {
            bencher.iter(|| column.visit(black_box(&tests)))
        });
        column.order_rows();
        group.bench_function("read off in the order of codes", |bencher| {
            bencher.iter(|| column.visit(black_box(&tests)))
        });
        group.bench_function("plain loop with a hash table", |bencher| {
            bencher.iter(|| {
                let mut lists: HashMap<i64, Vec<u32>> =
                    constants.iter().map(|value| (*value, Vec::new())).collect();
                for (row, value) in black_box(&values).iter().enumerate() {
                    if let Some(list) = lists.get_mut(value) {
                        list.push(row as u32);
                    }
                }
                lists.values().map(Vec::len).sum::<usize>()
            })
        });
        group.finish();
    }
}

fn constants(criterion: &mut Criterion) {
    let texts: Vec<String> = numbers(20_000).iter().map(|number| format!("agent {number}")).collect();
    let values: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut group = criterion.benchmark_group("a string that no row has");
    let mut column = Kernels::texts(&values);
    let absent = [equal("agent 19999x")];
    group.bench_function("translated to codes", |bencher| bencher.iter(|| column.visit(black_box(&absent))));
    let array = StringArray::from(values);
    let scalar = StringArray::new_scalar("agent 19999x");
    group.bench_function("arrow's comparison", |bencher| {
        bencher.iter(|| {
            arrow::compute::kernels::cmp::eq(black_box(&array), &scalar).expect("strings").true_count()
        })
    });
    group.finish();
}

fn sums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sum");
    for (width, distinct) in WIDTHS {
        let values = numbers(distinct);
        let column = Kernels::ints(&values);
        let bytes = if distinct <= 256 {
            1
        } else if distinct <= 1 << 16 {
            2
        } else {
            4
        };
        group.throughput(Throughput::Bytes((ROWS * bytes) as u64));
        group.bench_function(BenchmarkId::new("codes", width), |bencher| bencher.iter(|| column.sum()));
        macro_rules! plain {
            ($ty:ty) => {{
                let codes: Vec<$ty> = values.iter().map(|value| *value as $ty).collect();
                group.bench_function(BenchmarkId::new("plain loop over as many bytes", width), |bencher| {
                    bencher.iter(|| black_box(&codes).iter().map(|code| u64::from(*code)).sum::<u64>())
                });
            }};
        }
        match bytes {
            1 => plain!(u8),
            2 => plain!(u16),
            _ => plain!(u32),
        }
    }
    group.finish();
}

fn encoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a column of a segment");
    group.throughput(Throughput::Elements(ROWS as u64));
    let values = numbers(50_000);
    let mut column = Kernels::ints(&values);
    group.bench_function("encoded", |bencher| bencher.iter(|| column.encode()));
    group.bench_function("put in the order of its codes", |bencher| bencher.iter(|| column.order_rows()));
    group.bench_function("plain sort of its values", |bencher| {
        bencher.iter(|| {
            let mut rows: Vec<u32> = (0..ROWS as u32).collect();
            rows.sort_unstable_by_key(|row| values[*row as usize]);
            rows
        })
    });
    group.finish();
}

criterion_group!(kernels, masks, joins, constants, sums, encoding);
criterion_main!(kernels);
