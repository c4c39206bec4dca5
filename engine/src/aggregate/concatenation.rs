//! `string_agg`: strings put together in an order.
//!
//! Values come from partitions in any order, so they are kept until the end. Those that the call's ORDER BY does not
//! tell apart stand in the order of the values themselves; without an ORDER BY that is the order of all.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{AggregateCall, Direction};
use crate::{
    error::{Result, SqlError, SqlState},
    expr::Expr,
    types::Type,
    value::{Value, compare, compare_as},
};

/// PostgreSQL's limit for one value, in bytes.
const MAX_BYTES: usize = 0x3fff_ffff;

/// The values that are to be put together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Concatenation {
    distinct: bool,
    order: Vec<(Type, Direction)>,
    /// Each has the value, the delimiter in front of it, and the values it is ordered by.
    entries: Vec<Vec<Value>>,
}

/// The same values, in whatever order they came.
impl PartialEq for Concatenation {
    fn eq(&self, other: &Concatenation) -> bool {
        let sorted = |concatenation: &Concatenation| {
            let mut entries = concatenation.entries.clone();
            entries.sort();
            entries
        };
        self.distinct == other.distinct && self.order == other.order && sorted(self) == sorted(other)
    }
}

impl Concatenation {
    pub(super) fn new(call: &AggregateCall) -> Concatenation {
        let types = call.further.iter().skip(1).map(Expr::ty);
        let order = types.zip(call.order.iter().copied()).collect();
        Concatenation { distinct: call.distinct, order, entries: Vec::new() }
    }

    /// Takes in the value, its delimiter and what it is ordered by. NULL values are left out.
    pub(super) fn add(&mut self, entry: Vec<Value>) -> Result<()> {
        if entry.len() != self.order.len() + 2 {
            return Err(SqlError::internal("a concatenation of too few or too many values"));
        }
        if !entry[0].is_null() {
            self.entries.push(entry);
        }
        Ok(())
    }

    pub(super) fn merge(&mut self, other: Concatenation) {
        self.entries.extend(other.entries);
    }

    fn compare(&self, a: &[Value], b: &[Value]) -> Ordering {
        for (i, (ty, direction)) in self.order.iter().enumerate() {
            let (a, b) = (&a[i + 2], &b[i + 2]);
            let ordering = match (a.is_null(), b.is_null()) {
                (true, true) => Ordering::Equal,
                (a_null, b_null) if a_null != b_null => {
                    if a_null == direction.nulls_first {
                        Ordering::Less
                    } else {
                        Ordering::Greater
                    }
                }
                _ if direction.descending => compare_as(b, a, ty),
                _ => compare_as(a, b, ty),
            };
            if ordering.is_ne() {
                return ordering;
            }
        }
        compare(&a[0], &b[0]).then_with(|| compare(&a[1], &b[1]))
    }

    pub(super) fn finish(&self) -> Result<Value> {
        let mut entries: Vec<&[Value]> = self.entries.iter().map(Vec::as_slice).collect();
        if self.distinct {
            // PostgreSQL has seen to it that what a DISTINCT call is ordered by is among its arguments.
            let same = |a: &[Value], b: &[Value]| compare(&a[0], &b[0]).then_with(|| compare(&a[1], &b[1]));
            entries.sort_by(|a, b| same(a, b));
            entries.dedup_by(|a, b| same(a, b).is_eq());
        }
        entries.sort_by(|a, b| self.compare(a, b));
        let Some(first) = entries.first() else { return Ok(Value::Null) };
        let is_text = matches!(first[0], Value::Text(_));
        let mut bytes: Vec<u8> = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            // The delimiter stands in front of every value but the first.
            let parts: &[usize] = if i == 0 { &[0] } else { &[1, 0] };
            for part in parts {
                match &entry[*part] {
                    Value::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                    Value::Bytea(part) => bytes.extend_from_slice(part),
                    _ => {}
                }
            }
            if bytes.len() > MAX_BYTES {
                return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "requested length too large"));
            }
        }
        if !is_text {
            return Ok(Value::Bytea(bytes.into()));
        }
        String::from_utf8(bytes)
            .map(Value::text)
            .map_err(|_| SqlError::internal("a string that is not UTF-8"))
    }

    /// Bytes held on the heap, roughly.
    pub(super) fn heap_size(&self) -> usize {
        let entry = |entry: &Vec<Value>| {
            size_of::<Vec<Value>>() + entry.iter().map(|v| v.heap_size() + size_of::<Value>()).sum::<usize>()
        };
        self.entries.iter().map(entry).sum()
    }
}
