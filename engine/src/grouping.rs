//! Groups of the rows of a segment, by the codes of the columns that they are grouped by.
//!
//! Rows with the same codes are of the same group: its key is made of values, hashed and looked for once for each
//! combination of codes in a segment, not for each row. What of an aggregate follows from the codes is a loop over them:
//! counts, sums of whole numbers and of decimals, which row has the smallest or the largest value, and which values are
//! there at all. Everything else is evaluated over gathered cells, as it is for rows that are not encoded.

use std::{collections::BTreeSet, sync::Arc};

use arrow::{
    array::{ArrayRef, NullArray},
    record_batch::RecordBatch,
};
use hashbrown::{HashSet, HashTable};

use crate::{
    aggregate::{AggregateCall, AggregateFunction, Fed, GroupTable},
    batch_size::in_parts,
    column::{EncodedColumn, SegmentColumn},
    error::{Result, SqlError},
    expr::{EvalContext, Expr, columns, vector::evaluate_part},
    preparation::Work,
    projection::batch_of,
    rider::Rider,
    table::Table,
    types::Type,
};

/// Rows of a segment, and of its columns those that a read looks at.
pub(crate) struct SegmentRows<'a> {
    pub(crate) columns: &'a [(&'a SegmentColumn, &'a Type)],
    pub(crate) rows: &'a [u32],
}

/// What is known of the rows of a segment while they are added to groups: as long as nothing changes the segment or takes
/// groups away.
#[derive(Default)]
pub(crate) struct CodeGroups {
    combinations: Option<Combinations>,
    /// By combination.
    groups: Vec<u32>,
    /// By aggregate.
    aggregates: Vec<Aggregate>,
}

/// What an aggregate makes of codes.
enum Aggregate {
    /// For each combination how many values of a column it has that are not NULL, or rows.
    Counts(Option<usize>, Vec<u64>),
    /// For each combination also the sum of the values: of whole numbers, or of decimals without their point.
    Sums(usize, u32, Vec<(u64, i128)>),
    /// For each combination the smallest or the largest code, and a row that has it.
    Extremes(usize, AggregateFunction, Vec<(u64, u32)>),
    /// Which values of which combinations it has been fed.
    Distinct(usize, HashSet<u64>),
    /// It is fed cells.
    Cells,
}

/// Combinations of codes, numbered as they are met.
enum Combinations {
    /// Their numbers, [`NONE`] of those that have not been met.
    Few(Vec<u32>),
    /// With their numbers.
    Many(HashTable<(u64, u32)>),
}

const NONE: u32 = u32::MAX;

/// Combinations of codes for each row up to which each has a place.
const PLACES_A_ROW: u64 = 4;

/// Codes that fit beside the number of a combination.
const FEW_CODES: u64 = 1 << u32::BITS;

fn spread(combination: u64) -> u64 {
    combination.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Combinations {
    /// Of at most so many, of so many rows.
    fn of(most: u64, rows: usize) -> Combinations {
        match most <= rows as u64 * PLACES_A_ROW {
            true => Combinations::Few(vec![NONE; most as usize]),
            false => Combinations::Many(HashTable::new()),
        }
    }

    /// The number of each combination; calls `is_new` with the places of those that get the next one.
    fn number(&mut self, combinations: &[u64], mut next: u32, mut is_new: impl FnMut(usize)) -> Vec<u32> {
        let mut add = |place: usize| {
            is_new(place);
            next += 1;
            next - 1
        };
        match self {
            Combinations::Few(numbers) => {
                let number = |(place, combination): (usize, &u64)| {
                    let number = &mut numbers[*combination as usize];
                    if *number == NONE {
                        *number = add(place);
                    }
                    *number
                };
                combinations.iter().enumerate().map(number).collect()
            }
            Combinations::Many(numbers) => {
                let number = |(place, combination): (usize, &u64)| {
                    let is_it = |(other, _): &(u64, u32)| other == combination;
                    let hash = |(other, _): &(u64, u32)| spread(*other);
                    numbers
                        .entry(spread(*combination), is_it, hash)
                        .or_insert_with(|| (*combination, add(place)))
                        .get()
                        .1
                };
                combinations.iter().enumerate().map(number).collect()
            }
        }
    }
}

/// What an aggregate is fed of some rows.
enum Food {
    Nothing,
    /// The cells of some of them, and their combinations.
    Some(ArrayRef, Vec<u32>),
    All(Fed),
}

impl SegmentRows<'_> {
    /// The encoded form of an input column.
    fn base(&self, column: usize) -> Option<&EncodedColumn> {
        self.columns[column].0.base.as_ref()
    }

    /// The cells of all columns.
    pub(crate) fn batch(&self) -> Result<RecordBatch> {
        self.gather(&(0..self.columns.len()).collect(), self.rows)
    }

    /// The cells of these columns in some rows, others without any.
    fn gather(&self, needed: &BTreeSet<usize>, rows: &[u32]) -> Result<RecordBatch> {
        let cells = |(index, (column, ty)): (usize, &(&SegmentColumn, &Type))| match needed.contains(&index) {
            true => column.gather(ty, rows),
            false => Ok(Arc::new(NullArray::new(rows.len())) as ArrayRef),
        };
        batch_of(self.columns.iter().enumerate().map(cells).collect::<Result<_>>()?, rows.len())
    }

    /// For each row what it has in these columns, as one number, and how many of them there may be.
    fn combinations(&self, keys: &BTreeSet<usize>) -> Option<(Vec<u64>, u64)> {
        let (mut combinations, mut most) = (vec![0; self.rows.len()], 1u64);
        for key in keys {
            let base = self.base(*key)?;
            // A NULL comes behind the codes.
            let null = base.max_code + 1;
            let values = null.checked_add(1)?;
            most = most.checked_mul(values)?;
            let mut at = combinations.iter_mut();
            let mut add = |code: u64| {
                if let Some(combination) = at.next() {
                    *combination = *combination * values + code;
                }
            };
            match base.all_null || base.nulls.is_some() {
                false => base.codes.for_listed(self.rows, add),
                true => self.rows.iter().map(|row| *row as usize).for_each(|row| {
                    add(if base.is_null(row) { null } else { base.codes.get(row) });
                }),
            }
        }
        Some((combinations, most))
    }

    /// The rows with their combinations, without those that are NULL in a column.
    fn not_null<'a>(&'a self, column: usize, numbers: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
        let base = self.base(column).filter(|base| base.all_null || base.nulls.is_some());
        let rows = self.rows.iter().copied().zip(numbers.iter().copied());
        rows.filter(move |(row, _)| base.is_none_or(|base| !base.is_null(*row as usize)))
    }
}

impl Aggregate {
    fn new(call: &AggregateCall, rows: &SegmentRows) -> Aggregate {
        use AggregateFunction::{Avg, Count, Max, Min, Sum};
        let column = match &call.argument {
            None => None,
            Some(Expr::Column { index, .. }) => Some(*index),
            Some(_) => return Aggregate::Cells,
        };
        if call.filter.is_some() || !call.further.is_empty() {
            return Aggregate::Cells;
        }
        let Some(column) = column else { return Aggregate::Counts(None, Vec::new()) };
        let (Some(base), ty) = (rows.base(column), rows.columns[column].1) else { return Aggregate::Cells };
        match call.function {
            Min | Max if base.is_in_order(ty) => Aggregate::Extremes(column, call.function, Vec::new()),
            Min | Max => Aggregate::Cells,
            _ if call.distinct && base.max_code < FEW_CODES => Aggregate::Distinct(column, HashSet::new()),
            _ if call.distinct => Aggregate::Cells,
            Count => Aggregate::Counts(Some(column), Vec::new()),
            Sum | Avg if !base.may_be_nan() => match ty {
                Type::Int2 | Type::Int4 | Type::Int8 => Aggregate::Sums(column, 0, Vec::new()),
                Type::Numeric(Some((precision, scale))) if *precision <= 18 => {
                    Aggregate::Sums(column, (*scale).into(), Vec::new())
                }
                _ => Aggregate::Cells,
            },
            _ => Aggregate::Cells,
        }
    }

    /// What it is fed of rows, of which the batch has cells.
    fn choose(
        &mut self,
        call: &AggregateCall,
        rows: &SegmentRows,
        numbers: &[u32],
        batch: &RecordBatch,
        context: &EvalContext,
    ) -> Result<Food> {
        match self {
            Aggregate::Cells => Ok(Food::All(Fed::new(call, batch, context)?)),
            Aggregate::Distinct(column, seen) => {
                let Some(base) = rows.base(*column) else { return Ok(Food::Nothing) };
                let is_new = |(row, number): &(u32, u32)| {
                    seen.insert(u64::from(*number) * FEW_CODES + base.codes.get(*row as usize))
                };
                let (picked, numbers): (Vec<u32>, Vec<u32>) =
                    rows.not_null(*column, numbers).filter(is_new).unzip();
                let (cells, ty) = rows.columns[*column];
                Ok(Food::Some(cells.gather(ty, &picked)?, numbers))
            }
            _ => Ok(Food::Nothing),
        }
    }

    /// Looks at the codes of rows of so many combinations.
    fn look_at(&mut self, rows: &SegmentRows, numbers: &[u32], combinations: usize) {
        match self {
            Aggregate::Counts(None, counts) => {
                counts.resize(combinations, 0);
                numbers.iter().for_each(|number| counts[*number as usize] += 1);
            }
            Aggregate::Counts(Some(column), counts) => {
                counts.resize(combinations, 0);
                rows.not_null(*column, numbers).for_each(|(_, number)| counts[number as usize] += 1);
            }
            Aggregate::Sums(column, _, sums) => {
                sums.resize(combinations, (0, 0));
                let Some(base) = rows.base(*column) else { return };
                let mut cells = rows.rows.iter().zip(numbers);
                base.for_ints(rows.rows, |value| {
                    if let Some((row, number)) = cells.next()
                        && !base.is_null(*row as usize)
                    {
                        let (count, sum) = &mut sums[*number as usize];
                        *count += 1;
                        *sum += i128::from(value);
                    }
                });
            }
            Aggregate::Extremes(column, function, found) => {
                found.resize(combinations, (0, NONE));
                let Some(base) = rows.base(*column) else { return };
                let largest = *function == AggregateFunction::Max;
                let mut cells = rows.rows.iter().zip(numbers);
                base.codes.for_listed(rows.rows, |code| {
                    if let Some((row, number)) = cells.next()
                        && !base.is_null(*row as usize)
                    {
                        let (best, at) = &mut found[*number as usize];
                        if *at == NONE || if largest { code > *best } else { code < *best } {
                            (*best, *at) = (code, *row);
                        }
                    }
                });
            }
            Aggregate::Distinct(..) | Aggregate::Cells => {}
        }
    }
}

impl CodeGroups {
    /// Adds rows, of which there will be `all`; what codes tell is kept for [`finish`](CodeGroups::finish). Returns false when
    /// they do not tell the groups. After a failure, which may be [`SqlError::batch_full`], these rows have not been
    /// added, and no others can be.
    pub(crate) fn add(
        &mut self,
        table: &mut GroupTable,
        rows: &SegmentRows,
        all: usize,
        group_by: &[Expr],
        context: &EvalContext,
    ) -> Result<bool> {
        let keys: BTreeSet<usize> = group_by.iter().flat_map(columns).collect();
        let Some((combinations, most)) = rows.combinations(&keys) else { return Ok(false) };
        if self.combinations.is_none() {
            self.aggregates = table.calls().iter().map(|call| Aggregate::new(call, rows)).collect();
        }
        let (mut firsts, known) = (Vec::new(), self.groups.len() as u32);
        let numbers = self.combinations.get_or_insert_with(|| Combinations::of(most, all)).number(
            &combinations,
            known,
            |place| firsts.push(rows.rows[place]),
        );
        let batch = rows.gather(&keys, &firsts)?;
        let keys: Vec<ArrayRef> =
            group_by.iter().map(|expr| evaluate_part(expr, &batch, context)).collect::<Result<_>>()?;
        let food = self.choose(table.calls(), rows, &numbers, context)?;
        // Nothing fails from here on for want of room.
        self.groups.extend(table.assign_groups(&keys, firsts.len()));
        for (call, (aggregate, food)) in self.aggregates.iter_mut().zip(food).enumerate() {
            let groups = |numbers: &[u32]| -> Vec<u32> {
                numbers.iter().map(|number| self.groups[*number as usize]).collect()
            };
            match food {
                Food::Nothing => aggregate.look_at(rows, &numbers, self.groups.len()),
                Food::Some(cells, numbers) => {
                    table.update_aggregate(call, &groups(&numbers), Some(&cells), None)?;
                }
                Food::All(fed) => table.feed(call, &groups(&numbers), &fed)?,
            }
        }
        Ok(true)
    }

    /// What the aggregates are fed of rows.
    fn choose(
        &mut self,
        calls: &[AggregateCall],
        rows: &SegmentRows,
        numbers: &[u32],
        context: &EvalContext,
    ) -> Result<Vec<Food>> {
        let fed = calls.iter().zip(&self.aggregates).filter(|(_, kind)| matches!(kind, Aggregate::Cells));
        let exprs = fed.flat_map(|(call, _)| call.argument.iter().chain(&call.filter).chain(&call.further));
        let batch = rows.gather(&exprs.flat_map(columns).collect(), rows.rows)?;
        let calls = calls.iter().zip(&mut self.aggregates);
        calls.map(|(call, aggregate)| aggregate.choose(call, rows, numbers, &batch, context)).collect()
    }

    /// Adds what codes have told to the groups.
    pub(crate) fn finish(self, table: &mut GroupTable, rows: &SegmentRows) -> Result<()> {
        let groups = &self.groups;
        for (call, aggregate) in self.aggregates.into_iter().enumerate() {
            match aggregate {
                Aggregate::Counts(_, counts) => {
                    let mut counts = groups.iter().zip(counts);
                    counts.try_for_each(|(group, count)| table.add_sum(call, *group, (count, 0), 0))?;
                }
                Aggregate::Sums(_, scale, sums) => {
                    let mut sums = groups.iter().zip(sums);
                    sums.try_for_each(|(group, sum)| table.add_sum(call, *group, sum, scale))?;
                }
                Aggregate::Extremes(column, _, found) => {
                    let found = groups.iter().zip(found).filter(|(_, (_, row))| *row != NONE);
                    let (groups, found): (Vec<u32>, Vec<u32>) =
                        found.map(|(group, (_, row))| (*group, row)).unzip();
                    let (cells, ty) = rows.columns[column];
                    in_parts(0..found.len(), &mut |part| {
                        let cells = cells.gather(ty, &found[part.clone()])?;
                        table.update_aggregate(call, &groups[part], Some(&cells), None)
                    })?;
                }
                Aggregate::Distinct(..) | Aggregate::Cells => {}
            }
        }
        Ok(())
    }
}

impl Table {
    /// Adds rows of a segment to the groups of a read. Returns how many it were.
    pub(crate) fn add_to_groups(&self, rider: &mut Rider, slot: u32, rows: &[u32]) -> Result<u64> {
        let segment = &self.segments[slot as usize];
        let Work::Groups { groups, input } = &mut rider.work else {
            return Err(SqlError::internal("a read without groups"));
        };
        let groups = Arc::make_mut(groups);
        let before = groups.bytes();
        // They come first; the others may be in any order.
        let encoded = rows.partition_point(|row| (*row as usize) < segment.encoded_rows());
        let encoded = if encoded >= self.options.group_by_code { encoded } else { 0 };
        let columns: Vec<(&SegmentColumn, &Type)> = input
            .columns()
            .iter()
            .map(|column| (&segment.columns[*column], &self.schema.columns[*column].ty))
            .collect();
        for (rows, is_encoded) in [(&rows[..encoded], true), (&rows[encoded..], false)] {
            let mut by_code = is_encoded.then(CodeGroups::default);
            for part in rows.chunks(self.options.rows_together()) {
                in_parts(0..part.len(), &mut |range| {
                    let part = SegmentRows { columns: &columns, rows: &part[range] };
                    groups.add(&part, rows.len(), &mut by_code, &|bytes| {
                        // What they took before has been counted.
                        self.make_room(bytes.saturating_sub(before))
                    })
                })?;
            }
            groups.finish(&SegmentRows { columns: &columns, rows }, by_code)?;
        }
        Ok(rows.len() as u64)
    }
}
