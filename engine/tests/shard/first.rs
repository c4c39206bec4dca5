//! The first rows of an order, of which those that cannot be among them are left out early.

use arrow::array::Array;
use carousel_engine::{
    Ts, Type, Value,
    array::arrow_cell_to_value,
    expr::Expr,
    numeric::Numeric,
    operation::{Effect, OperationKind, Read, ReadOutput, SortKey, Top},
    shard::Options,
};

use crate::{
    oracle::{Row, compare_rows},
    sharing::Scan,
};

const ROWS: i32 = 400;

/// Values in no order, many of them equal.
fn scattered(k: i32) -> i32 {
    (k.wrapping_mul(0x9e37_79b1_u32 as i32) as u32 >> 20) as i32 % 23 - 11
}

fn value(ty: &Type, number: i32) -> Value {
    match ty {
        Type::Int4 => Value::Int4(number),
        Type::Int8 => Value::Int8(i64::from(number) << 40),
        Type::Date => Value::Date(number),
        Type::Bool => Value::Bool(number > 3),
        // Zeros of both signs, which are equal.
        Type::Float8 if number.abs() < 9 => Value::Float8(if number % 2 == 0 { 0.0 } else { -0.0 }),
        Type::Float8 => Value::Float8(f64::from(number)),
        Type::Text => Value::text(format!("{:02}", number + 11)),
        Type::Numeric(_) if number == 11 => Value::Numeric(Numeric::NaN),
        _ => Value::Numeric(Numeric::new(i64::from(number) * 5, 2)),
    }
}

/// In batches of what a read has got.
fn found(scan: &Scan, of: Ts, types: &[Type]) -> Vec<Row> {
    let mut rows = Vec::new();
    for effect in &scan.effects {
        let Effect::Rows { ts, batch, .. } = effect else { continue };
        for row in (0..batch.num_rows()).filter(|_| *ts == of) {
            let cell = |(column, ty): (usize, &Type)| {
                arrow_cell_to_value(batch.column(column) as &dyn Array, row, ty)
            };
            rows.push(types.iter().enumerate().map(cell).collect());
        }
    }
    rows
}

/// Every order by one key and by two, of values that come in any order, with no, few and many NULLs.
#[test]
fn the_first_rows_of_every_order_are_found() {
    let types = [
        Type::Int4,
        Type::Int8,
        Type::Date,
        Type::Bool,
        Type::Float8,
        Type::Text,
        Type::Numeric(Some((10, 2))),
        Type::Numeric(Some((30, 2))),
    ];
    for ty in types {
        for nulls_of_ten in [0, 1, 8] {
            for arrival in 0..3 {
                check_orders(&ty, nulls_of_ten, arrival);
            }
        }
    }
}

fn check_orders(ty: &Type, nulls_of_ten: i32, arrival: i32) {
    let row = |k: i32| {
        let number = match arrival {
            0 => k * 23 / ROWS - 11,
            1 => 11 - k * 23 / ROWS,
            _ => scattered(k),
        };
        let is_null = (scattered(k + 1000) + 11) % 10 < nulls_of_ten;
        let leading = if is_null { Value::Null } else { value(ty, number) };
        vec![Value::Int4(k), leading, Value::Int4(scattered(k * 7))]
    };
    let rows: Vec<Row> = (0..ROWS).map(row).collect();
    let columns = [("k", Type::Int4), ("a", ty.clone()), ("b", Type::Int4)];
    let options = Options { segment_rows: 90, batch_rows: 3, ..Options::default() };
    let mut scan = Scan::of(&columns, rows.clone(), options);
    let types = columns.map(|(_, ty)| ty);
    let projection: Vec<Expr> =
        types.iter().enumerate().map(|(at, ty)| Expr::column(at, ty.clone())).collect();
    let mut asked = Vec::new();
    for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let leading = SortKey { column: 1, descending, nulls_first };
        let then = |column, descending| SortKey { column, descending, nulls_first: !nulls_first };
        let orders = [
            vec![leading.clone()],
            vec![leading.clone(), then(2, false), then(0, true)],
            vec![leading.clone(), then(2, true)],
            vec![then(2, descending), leading.clone()],
        ];
        for keys in orders {
            for limit in [1, 7, 60] {
                let top = Top { keys: keys.clone(), limit };
                let output = ReadOutput::Rows { projection: projection.clone(), top: Some(top.clone()) };
                let read = Read { predicate: Vec::new(), output };
                asked.push((scan.submit(OperationKind::Read(read)), top));
            }
        }
    }
    scan.run();
    for (ts, top) in asked {
        let by_keys = |a: &Row, b: &Row| compare_rows(a, b, &top.keys, &types);
        let (mut expected, mut found) = (rows.clone(), found(&scan, ts, &types));
        expected.sort_by(by_keys);
        found.sort_by(by_keys);
        assert_eq!(found.len() as u64, top.limit);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                by_keys(found, expected).is_eq(),
                "{found:?} where {expected:?} is first: {top:?} of {ty}"
            );
        }
    }
}
