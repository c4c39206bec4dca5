//! Hash aggregation: groups by the values of their keys.

use std::borrow::Cow;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray},
    datatypes::{Date32Type, Float64Type, Int16Type, Int32Type, Int64Type},
    record_batch::RecordBatch,
};
use hashbrown::HashTable;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{AggregateCall, AggregateState, ArgumentColumn, Group};
use crate::{
    array::arrow_cell_to_value,
    batch_size::in_parts,
    error::{Result, SqlError},
    expr::{
        EvalContext, Expr, can_fail,
        vector::{evaluate_numbers, evaluate_part, part_of, string_bytes},
    },
    operation::SortKey,
    order::compare_values,
    types::Type,
    value::{Value, canonical_bits, compare_as},
};

/// Groups with their partial states.
#[derive(Clone)]
pub struct GroupTable {
    key_types: Vec<Type>,
    calls: Vec<AggregateCall>,
    index: HashTable<u32>,
    hashes: Vec<u64>,
    groups: Vec<Group>,
    /// So many groups, the first ones, have been weighed, and take so many bytes.
    weighed: (usize, usize),
    /// Bytes of strings that the groups were fed since.
    fed: usize,
}

/// Both halves of the product count: the table goes by the low bits, and the cells of whole floats, or of multiples of a large
/// power of two, differ in their high bits only.
fn mix(hash: u64, cell: u64) -> u64 {
    let product = u128::from(hash.rotate_left(23) ^ cell) * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

fn hash_value(value: &Value, ty: &Type) -> u64 {
    match value {
        Value::Null => 0x6e75_6c6c,
        Value::Int2(value) => *value as u64,
        Value::Int4(value) | Value::Date(value) => *value as u64,
        Value::Int8(value) => *value as u64,
        Value::Float8(value) => canonical_bits(*value),
        Value::Text(text) => hash_text(text, ty),
        other => {
            let mut hasher = Xxh3::new();
            std::hash::Hash::hash(other, &mut hasher);
            hasher.digest()
        }
    }
}

fn hash_text(text: &str, ty: &Type) -> u64 {
    let significant = if matches!(ty, Type::Char(_)) { text.trim_end_matches(' ') } else { text };
    xxh3_64(significant.as_bytes())
}

/// Mixes a column's cells into the rows' hashes, exactly as [`hash_value`] does.
fn hash_column(array: &ArrayRef, ty: &Type, hashes: &mut [u64]) {
    macro_rules! primitive {
        ($arrow:ty, $bits:expr) => {{
            let array = array.as_primitive::<$arrow>();
            for (row, hash) in hashes.iter_mut().enumerate() {
                let cell = if array.is_null(row) { 0x6e75_6c6c } else { $bits(array.value(row)) };
                *hash = mix(*hash, cell);
            }
        }};
    }
    match ty {
        Type::Int2 => primitive!(Int16Type, |v: i16| v as u64),
        Type::Int4 => primitive!(Int32Type, |v: i32| v as u64),
        Type::Date => primitive!(Date32Type, |v: i32| v as u64),
        Type::Int8 => primitive!(Int64Type, |v: i64| v as u64),
        Type::Float8 => primitive!(Float64Type, canonical_bits),
        Type::Text | Type::Varchar(_) | Type::Char(_) => {
            let array = array.as_string::<i32>();
            for (row, hash) in hashes.iter_mut().enumerate() {
                let cell = if array.is_null(row) { 0x6e75_6c6c } else { hash_text(array.value(row), ty) };
                *hash = mix(*hash, cell);
            }
        }
        _ => {
            for (row, hash) in hashes.iter_mut().enumerate() {
                *hash = mix(*hash, hash_value(&arrow_cell_to_value(array, row, ty), ty));
            }
        }
    }
}

fn cell_equals(array: &ArrayRef, row: usize, ty: &Type, value: &Value) -> bool {
    if array.is_null(row) || value.is_null() {
        return array.is_null(row) == value.is_null();
    }
    match (ty, value) {
        (Type::Int2, Value::Int2(value)) => array.as_primitive::<Int16Type>().value(row) == *value,
        (Type::Int4, Value::Int4(value)) => array.as_primitive::<Int32Type>().value(row) == *value,
        (Type::Int8, Value::Int8(value)) => array.as_primitive::<Int64Type>().value(row) == *value,
        (Type::Date, Value::Date(value)) => array.as_primitive::<Date32Type>().value(row) == *value,
        (Type::Text | Type::Varchar(_), Value::Text(value)) => {
            array.as_string::<i32>().value(row) == value.as_ref()
        }
        _ => compare_as(&arrow_cell_to_value(array, row, ty), value, ty).is_eq(),
    }
}

impl GroupTable {
    /// A table for groups with keys of these types. Without keys there is one group, even without any row.
    pub fn new(key_types: Vec<Type>, calls: Vec<AggregateCall>) -> GroupTable {
        let (index, hashes, groups) = Default::default();
        let mut table = GroupTable { key_types, calls, index, hashes, groups, weighed: (0, 0), fed: 0 };
        if table.key_types.is_empty() {
            table.find_or_add(0, |_| true, Vec::new);
        }
        table
    }

    /// A table for what a read asks for.
    pub fn for_read(group_by: &[Expr], calls: &[AggregateCall]) -> GroupTable {
        GroupTable::new(group_by.iter().map(Expr::ty).collect(), calls.to_vec())
    }

    /// The states of the one group of a table without keys.
    pub(crate) fn only_states(&mut self) -> Option<&mut [AggregateState]> {
        match (self.key_types.as_slice(), self.groups.as_mut_slice()) {
            ([], [group]) => Some(&mut group.states),
            _ => None,
        }
    }

    /// The aggregates.
    pub(crate) fn calls(&self) -> &[AggregateCall] {
        &self.calls
    }

    /// Adds to one aggregate of a group what it needs to know of rows: `values` that are not NULL, and their sum.
    pub(crate) fn add_sum(
        &mut self,
        call: usize,
        group: u32,
        (values, total): (u64, i128),
        scale: u32,
    ) -> Result<()> {
        self.groups[group as usize].states[call].update_sum(values, total, scale)
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Bytes held, roughly.
    pub fn heap_size(&mut self) -> usize {
        // Most aggregates take as much for many rows as for one.
        let grow = |group: &Group| group.states.iter().any(AggregateState::may_grow);
        let (weighed, bytes) = match self.groups.first().is_some_and(grow) {
            true => (0, 0),
            false => self.weighed,
        };
        self.fed = 0;
        let more: usize = self.groups[weighed..].iter().map(Group::heap_size).sum();
        self.weighed = (self.groups.len(), bytes + more);
        self.weighed.1
    }

    /// Bytes of strings that the groups were fed since they were weighed.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// So many bytes were merged into the groups.
    pub(crate) fn note_fed(&mut self, bytes: usize) {
        self.fed += bytes;
    }

    fn find_or_add(
        &mut self,
        hash: u64,
        is_key: impl Fn(&[Value]) -> bool,
        make_key: impl FnOnce() -> Vec<Value>,
    ) -> u32 {
        let groups = &self.groups;
        if let Some(found) = self.index.find(hash, |group| is_key(&groups[*group as usize].key)) {
            return *found;
        }
        let number = u32::try_from(self.groups.len()).expect("memory ends before 2^32 groups");
        self.groups
            .push(Group { key: make_key(), states: self.calls.iter().map(AggregateState::new).collect() });
        self.hashes.push(hash);
        let hashes = &self.hashes;
        self.index.insert_unique(hash, number, |group| hashes[*group as usize]);
        number
    }

    /// The group of each row; `keys` are the grouping expressions' columns, all of `rows` rows.
    pub(crate) fn assign_groups(&mut self, keys: &[ArrayRef], rows: usize) -> Vec<u32> {
        if keys.is_empty() {
            return vec![0; rows];
        }
        self.fed += keys.iter().map(string_bytes).sum::<usize>();
        let mut hashes = vec![0; rows];
        let types = self.key_types.clone();
        for (array, ty) in keys.iter().zip(&types) {
            hash_column(array, ty, &mut hashes);
        }
        let mut assigned = Vec::with_capacity(rows);
        for (row, hash) in hashes.into_iter().enumerate() {
            let is_key = |key: &[Value]| {
                key.iter()
                    .zip(keys)
                    .zip(&types)
                    .all(|((value, array), ty)| cell_equals(array, row, ty, value))
            };
            let make_key =
                || keys.iter().zip(&types).map(|(array, ty)| arrow_cell_to_value(array, row, ty)).collect();
            assigned.push(self.find_or_add(hash, is_key, make_key));
        }
        assigned
    }

    pub(crate) fn update_aggregate(
        &mut self,
        number: usize,
        groups: &[u32],
        argument: Option<&ArrayRef>,
        filter: Option<&BooleanArray>,
    ) -> Result<()> {
        self.fed += argument.map_or(0, string_bytes);
        let passes = |row: usize| filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        let ty = self.calls[number].argument.as_ref().map(Expr::ty);
        match (argument, &ty) {
            (Some(array), Some(ty)) => {
                let column = ArgumentColumn::new(array, ty);
                for (row, group) in groups.iter().enumerate() {
                    if passes(row) {
                        column.feed(row, &mut self.groups[*group as usize].states[number])?;
                    }
                }
            }
            (None, None) => {
                for (row, group) in groups.iter().enumerate() {
                    if passes(row) {
                        self.groups[*group as usize].states[number].update_count(1);
                    }
                }
            }
            _ => return Err(SqlError::internal("an aggregate's argument is missing")),
        }
        Ok(())
    }

    /// As [`GroupTable::update_aggregate`], for an aggregate with several arguments: one column for each.
    fn update_several(&mut self, number: usize, groups: &[u32], arguments: &[ArrayRef]) -> Result<()> {
        self.fed += arguments.iter().map(string_bytes).sum::<usize>();
        let call = &self.calls[number];
        let types: Vec<Type> = call.argument.iter().chain(&call.further).map(Expr::ty).collect();
        for (row, group) in groups.iter().enumerate() {
            let cells = arguments.iter().zip(&types).map(|(array, ty)| arrow_cell_to_value(array, row, ty));
            self.groups[*group as usize].states[number].update_further(cells.collect())?;
        }
        Ok(())
    }

    /// Takes in rows: one column for each grouping expression, and for each aggregate its argument's column (none for
    /// `count(*)`) and its evaluated filter (none without one). All columns have `rows` rows.
    pub fn update_batch(
        &mut self,
        keys: &[ArrayRef],
        arguments: &[Option<ArrayRef>],
        filters: &[Option<BooleanArray>],
        rows: usize,
    ) -> Result<()> {
        let groups = self.assign_groups(keys, rows);
        for number in 0..self.calls.len() {
            let argument = arguments.get(number).and_then(Option::as_ref);
            let filter = filters.get(number).and_then(Option::as_ref);
            self.update_aggregate(number, &groups, argument, filter)?;
        }
        Ok(())
    }

    /// Takes in the rows of a batch: evaluates grouping expressions, filters and arguments. Arguments that may fail are
    /// evaluated only for rows that pass their filter.
    pub fn update(&mut self, batch: &RecordBatch, group_by: &[Expr], context: &EvalContext) -> Result<()> {
        self.update_weighed(batch, group_by, context, &mut |_| Ok(()))
    }

    /// The same. Values may be much longer than what they are made from: `weigh` is asked after each part of the rows that is
    /// evaluated at once whether there is room for what has been added.
    pub(crate) fn update_weighed(
        &mut self,
        batch: &RecordBatch,
        group_by: &[Expr],
        context: &EvalContext,
        weigh: &mut dyn FnMut(&mut GroupTable) -> Result<()>,
    ) -> Result<()> {
        in_parts(0..batch.num_rows(), &mut |part| {
            let batch = part_of(batch, part);
            let keys: Vec<ArrayRef> =
                group_by.iter().map(|expr| evaluate_part(expr, &batch, context)).collect::<Result<_>>()?;
            let fed: Vec<Fed> =
                self.calls.iter().map(|call| Fed::new(call, &batch, context)).collect::<Result<_>>()?;
            let groups = self.assign_groups(&keys, batch.num_rows());
            fed.iter().enumerate().try_for_each(|(number, fed)| self.feed(number, &groups, fed))?;
            weigh(self)
        })
    }

    pub(crate) fn feed(&mut self, number: usize, groups: &[u32], fed: &Fed) -> Result<()> {
        let theirs: Cow<'_, [u32]> = match &fed.passing {
            Some(rows) => rows.iter().map(|row| groups[*row]).collect(),
            None => groups.into(),
        };
        if !self.calls[number].further.is_empty() {
            return self.update_several(number, &theirs, &fed.arguments);
        }
        self.update_aggregate(number, &theirs, fed.arguments.first(), fed.filter.as_ref())
    }

    /// Takes in groups of the same aggregates over other rows.
    pub fn merge(&mut self, groups: impl IntoIterator<Item = Group>) -> Result<()> {
        for group in groups {
            if group.key.len() != self.key_types.len() || group.states.len() != self.calls.len() {
                return Err(SqlError::internal("groups of different aggregates cannot be merged"));
            }
            let types = self.key_types.clone();
            let hash =
                group.key.iter().zip(&types).fold(0, |hash, (value, ty)| mix(hash, hash_value(value, ty)));
            let is_key = |key: &[Value]| {
                key.iter().zip(&group.key).zip(&types).all(|((a, b), ty)| compare_as(a, b, ty).is_eq())
            };
            let number = self.find_or_add(hash, is_key, || group.key.clone()) as usize;
            for (state, more) in self.groups[number].states.iter_mut().zip(group.states) {
                state.merge(more)?;
            }
        }
        Ok(())
    }

    /// Keeps only the first `limit` groups in the order of `keys`, which are over the groups' keys.
    pub(crate) fn keep_first(&mut self, keys: &[SortKey], limit: usize) {
        if limit >= self.groups.len() {
            return;
        }
        let mut groups = std::mem::take(&mut self.groups);
        if !keys.is_empty() {
            groups
                .select_nth_unstable_by(limit, |a, b| compare_values(&a.key, &b.key, &self.key_types, keys));
        }
        groups.truncate(limit);
        let hash_of = |group: &Group| {
            group
                .key
                .iter()
                .zip(&self.key_types)
                .fold(0, |hash, (value, ty)| mix(hash, hash_value(value, ty)))
        };
        self.hashes = groups.iter().map(hash_of).collect();
        self.groups = groups;
        self.weighed = (0, 0);
        self.index.clear();
        let hashes = &self.hashes;
        for (number, hash) in hashes.iter().enumerate() {
            self.index.insert_unique(*hash, number as u32, |group| hashes[*group as usize]);
        }
    }

    /// The groups with their partial states.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// As `GroupTable::groups`, for good.
    pub fn into_groups(self) -> Vec<Group> {
        self.groups
    }

    /// The groups' keys and the aggregates' results.
    pub fn finish(&self) -> Result<Vec<(Vec<Value>, Vec<Value>)>> {
        self.groups
            .iter()
            .map(|group| {
                let results = group.states.iter().map(AggregateState::finish).collect::<Result<_>>()?;
                Ok((group.key.clone(), results))
            })
            .collect()
    }
}

/// What an aggregate is fed of a batch.
pub(crate) struct Fed {
    /// Which rows it is, if not all of them.
    passing: Option<Vec<usize>>,
    arguments: Vec<ArrayRef>,
    /// Which of all rows count.
    filter: Option<BooleanArray>,
}

impl Fed {
    pub(crate) fn new(call: &AggregateCall, batch: &RecordBatch, context: &EvalContext) -> Result<Fed> {
        let filter = call.filter.as_ref().map(|expr| evaluate_part(expr, batch, context)).transpose()?;
        let filter = filter.map(|array| array.as_boolean().clone());
        let arguments = |batch: &RecordBatch| -> Result<Vec<ArrayRef>> {
            match &call.argument {
                Some(argument) if call.further.is_empty() => {
                    Ok(vec![evaluate_numbers(argument, batch, context)?])
                }
                argument => {
                    let exprs = argument.iter().chain(&call.further);
                    exprs.map(|expr| evaluate_part(expr, batch, context)).collect()
                }
            }
        };
        match filter {
            Some(filter) if !call.further.is_empty() || call.argument.as_ref().is_some_and(can_fail) => {
                // Only rows that pass the filter are looked at.
                let passing = arrow::compute::filter_record_batch(batch, &filter)
                    .map_err(|error| SqlError::internal(error.to_string()))?;
                let passes = |row: &usize| filter.is_valid(*row) && filter.value(*row);
                let rows = (0..batch.num_rows()).filter(passes).collect();
                Ok(Fed { passing: Some(rows), arguments: arguments(&passing)?, filter: None })
            }
            filter => Ok(Fed { passing: None, arguments: arguments(batch)?, filter }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that differ in few of their bits begin all over the table.
    #[test]
    fn keys_are_spread_over_the_table() {
        const KEYS: u64 = 4096;
        let places = |cell: &dyn Fn(u64) -> u64, first: u64| {
            let hashes = (0..KEYS).map(|key| mix(mix(0, first), cell(key)));
            let places: std::collections::HashSet<u64> = hashes.map(|hash| hash % KEYS).collect();
            places.len() as u64
        };
        let cells: [&dyn Fn(u64) -> u64; 4] =
            [&|key| key, &|key| key << 40, &|key| canonical_bits(key as f64), &|key| {
                canonical_bits(key as f64 / 4.0)
            }];
        for (at, cell) in cells.iter().enumerate() {
            for first in [0, 7, canonical_bits(7.0)] {
                let places = places(cell, first);
                assert!(places > KEYS / 4, "{places} places of {KEYS} for cells {at} behind {first}");
            }
        }
    }
}
