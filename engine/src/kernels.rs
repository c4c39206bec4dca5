//! The loops that a scan spends its time in, one by one, for `benches/kernels.rs`. No part of the interface.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};

use crate::{
    bits::Bits,
    column::{SegmentColumn, Take},
    expr::EvalContext,
    given_up::Interest,
    operation::Ts,
    predicate_index::{ColumnTest, Plan, Prober, Scene, SharedTests, Test},
    schema::Column,
    shard::Options,
    types::Type,
};

/// One column of a segment, with tests that ride past it.
pub struct Kernels {
    columns: Vec<SegmentColumn>,
    types: Vec<Column>,
    rows: usize,
    tests: SharedTests,
    prober: Prober,
}

impl Kernels {
    /// A column of whole numbers, encoded.
    pub fn ints(values: &[i64]) -> Kernels {
        Kernels::new(Type::Int8, Arc::new(Int64Array::from(values.to_vec())), values.len())
    }

    /// A column of strings, encoded.
    pub fn texts(values: &[&str]) -> Kernels {
        Kernels::new(Type::Text, Arc::new(StringArray::from(values.to_vec())), values.len())
    }

    fn new(ty: Type, values: ArrayRef, rows: usize) -> Kernels {
        let mut column = SegmentColumn::new(&ty);
        column.delta.append(values.as_ref(), &ty, Take::All(rows));
        let types = vec![Column { name: String::new(), ty, not_null: true, default: None }];
        let mut kernels = Kernels {
            columns: vec![column],
            types,
            rows,
            tests: SharedTests::default(),
            prober: Prober::default(),
        };
        kernels.encode();
        kernels
    }

    /// Encodes the column from scratch.
    pub fn encode(&mut self) {
        let all: Vec<u32> = (0..self.rows as u32).collect();
        self.columns[0].encode(&self.types[0].ty, &all);
    }

    /// Puts the column's rows in the order of their codes.
    pub fn order_rows(&mut self) {
        let rows = self.rows;
        self.columns[0].base.iter_mut().for_each(|base| {
            base.begin_order(rows, 0);
            while base.order_some() {}
        });
    }

    /// The sum of all values.
    pub fn sum(&self) -> Option<i128> {
        let all = Bits::ones(self.rows);
        self.columns[0].base.as_ref()?.sum(self.rows, &all).map(|(_, sum)| sum)
    }

    /// How many rows meet each of these tests: in all of them together, as a visit of the segment finds them.
    pub fn visit(&mut self, tests: &[Asked]) -> usize {
        let context = EvalContext::default();
        let ids: Vec<_> = tests
            .iter()
            .map(|test| {
                let test = Arc::new(ColumnTest { column: 0, test: test.0.clone() });
                self.tests.join(&test, &context, Ts::ZERO, &Interest::default())
            })
            .collect();
        let scene = Scene {
            tests: &self.tests,
            columns: &self.columns,
            types: &self.types,
            rows: self.rows,
            options: Options::default(),
        };
        self.prober.begin(&self.tests);
        let plans: Vec<Plan> = ids.iter().map(|id| self.prober.plan(&scene, &[*id])).collect();
        self.prober.probe(&scene);
        let mut found = 0;
        for (id, plan) in ids.iter().zip(plans) {
            if let Ok(rows) = self.prober.find(&scene, &[*id], plan) {
                found += rows.len();
                self.prober.recycle(rows);
            }
        }
        ids.into_iter().for_each(|id| self.tests.leave(id, Ts::ZERO));
        found
    }
}

/// A test of the column.
pub struct Asked(Test);

/// A test for whole numbers from `low` to `high`.
pub fn between(low: i64, high: i64) -> Asked {
    Asked(Test::Ints(vec![(low, high)]))
}

/// A test for a string.
pub fn equal(text: &str) -> Asked {
    Asked(Test::Bytes(vec![(text.as_bytes().to_vec(), Some([text.as_bytes(), &[0]].concat()))]))
}
