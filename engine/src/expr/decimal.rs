//! Sums, differences and products of decimals over batches.
//!
//! Exact numbers are added, subtracted and multiplied as whole numbers of one scale for a whole column. How large they can
//! be is known beforehand, from the precision of columns and from constants, so that no result has to be looked at: where
//! one might not fit in 128 bits, and where there is a NaN, the reference evaluates row by row.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array},
    buffer::{NullBuffer, ScalarBuffer},
    datatypes::{DataType, Decimal128Type, Int16Type, Int32Type, Int64Type},
};

use super::{CompareOp, Function, vector::loops};
use crate::{
    array::{ColumnBuilder, DECIMAL_NAN},
    error::Result,
    numeric::{Numeric, power_of_ten},
    types::Type,
    value::Value,
};

/// A column of exact numbers of one scale.
#[derive(Clone)]
pub(super) struct Decimals {
    /// Without their point; any number where they are NULL.
    values: ScalarBuffer<i128>,
    scale: u32,
    /// No value is further from zero.
    bound: i128,
    nulls: Option<NullBuffer>,
}

/// One side of an operation.
pub(super) enum Side {
    Column(Decimals),
    /// A number without its point, and its scale.
    Constant(i128, u32),
}

impl Side {
    pub(super) fn constant(value: &Value) -> Option<Side> {
        let Value::Numeric(number) = value else { return None };
        let (unscaled, scale) = number.small()?;
        Some(Side::Constant(unscaled, u32::try_from(scale).ok()?))
    }

    fn scale(&self) -> u32 {
        match self {
            Side::Column(column) => column.scale,
            Side::Constant(_, scale) => *scale,
        }
    }

    fn bound(&self) -> Option<i128> {
        match self {
            Side::Column(column) => Some(column.bound),
            Side::Constant(value, _) => value.checked_abs(),
        }
    }

    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Side::Column(column) => column.nulls.as_ref(),
            Side::Constant(..) => None,
        }
    }

    /// With so many digits more; `None` when they might not fit.
    fn at_scale(self, scale: u32) -> Option<Side> {
        let factor = power_of_ten(scale.checked_sub(self.scale())?)?;
        let bound = self.bound()?.checked_mul(factor)?;
        Some(match self {
            _ if factor == 1 => self,
            Side::Constant(value, _) => Side::Constant(value * factor, scale),
            Side::Column(column) => {
                let values = map(&column.values, column.bound, bound, |v| v * factor as i64, |v| v * factor);
                Side::Column(Decimals { values, scale, bound, ..column })
            }
        })
    }
}

/// Applies an operation to every number; in 64 bits if operands and results have no more.
fn map(
    values: &[i128],
    bound: i128,
    result: i128,
    small: impl Fn(i64) -> i64,
    large: impl Fn(i128) -> i128,
) -> ScalarBuffer<i128> {
    match bound.max(result) <= i64::MAX.into() {
        true => values.iter().map(|value| i128::from(small(*value as i64))).collect(),
        false => values.iter().map(|value| large(*value)).collect(),
    }
}

/// As [`map`], of two sides of the same length, of which at least one is a column.
fn combine(
    (a, b): (&Side, &Side),
    result: i128,
    small: impl Fn(i64, i64) -> i64,
    large: impl Fn(i128, i128) -> i128,
) -> Option<ScalarBuffer<i128>> {
    let bound = a.bound()?.max(b.bound()?);
    Some(match (a, b) {
        (Side::Column(a), Side::Column(b)) => {
            let pairs = a.values.iter().zip(b.values.iter());
            match bound.max(result) <= i64::MAX.into() {
                true => pairs.map(|(a, b)| i128::from(small(*a as i64, *b as i64))).collect(),
                false => pairs.map(|(a, b)| large(*a, *b)).collect(),
            }
        }
        (Side::Column(a), Side::Constant(b, _)) => {
            map(&a.values, bound, result, |a| small(a, *b as i64), |a| large(a, *b))
        }
        (Side::Constant(a, _), Side::Column(b)) => {
            map(&b.values, bound, result, |b| small(*a as i64, b), |b| large(*a, b))
        }
        (Side::Constant(..), Side::Constant(..)) => return None,
    })
}

/// The result of an operation; `None` when it is another one, or when the reference has to look at it.
pub(super) fn arithmetic(function: Function, a: Side, b: Side) -> Option<Decimals> {
    let nulls = NullBuffer::union(a.nulls(), b.nulls());
    let (values, scale, bound) = match function {
        Function::Add | Function::Subtract => {
            let scale = a.scale().max(b.scale());
            let (a, b) = (a.at_scale(scale)?, b.at_scale(scale)?);
            let bound = a.bound()?.checked_add(b.bound()?)?;
            let values = match function {
                Function::Add => combine((&a, &b), bound, |a, b| a + b, |a, b| a + b)?,
                _ => combine((&a, &b), bound, |a, b| a - b, |a, b| a - b)?,
            };
            (values, scale, bound)
        }
        Function::Multiply => {
            let bound = a.bound()?.checked_mul(b.bound()?)?;
            let values = combine((&a, &b), bound, |a, b| a * b, |a, b| a * b)?;
            (values, a.scale() + b.scale(), bound)
        }
        _ => return None,
    };
    Some(Decimals { values, scale, bound, nulls })
}

/// A comparison; `None` when the reference has to look at it.
pub(super) fn compare(op: CompareOp, a: Side, b: Side) -> Option<BooleanArray> {
    let nulls = NullBuffer::union(a.nulls(), b.nulls());
    let scale = a.scale().max(b.scale());
    let values = match (a.at_scale(scale)?, b.at_scale(scale)?) {
        (Side::Column(a), Side::Column(b)) => {
            loops(op, a.values.len(), |row| a.values[row], |row| b.values[row])
        }
        (Side::Column(a), Side::Constant(b, _)) => loops(op, a.values.len(), |row| a.values[row], |_| b),
        (Side::Constant(a, _), Side::Column(b)) => loops(op, b.values.len(), |_| a, |row| b.values[row]),
        (Side::Constant(..), Side::Constant(..)) => return None,
    };
    Some(BooleanArray::new(values, nulls))
}

impl Decimals {
    /// The numbers of an array: integers, or decimals without NaN.
    pub(super) fn of_array(array: &ArrayRef) -> Option<Decimals> {
        macro_rules! integers {
            ($arrow:ty, $native:ty) => {{
                let values = array.as_primitive::<$arrow>().values();
                (values.iter().map(|value| i128::from(*value)).collect(), 0, -i128::from(<$native>::MIN))
            }};
        }
        let (values, scale, bound) = match array.data_type() {
            DataType::Int16 => integers!(Int16Type, i16),
            DataType::Int32 => integers!(Int32Type, i32),
            DataType::Int64 => integers!(Int64Type, i64),
            DataType::Decimal128(precision, scale) => {
                let values = array.as_primitive::<Decimal128Type>().values();
                if values.contains(&DECIMAL_NAN) {
                    return None;
                }
                (values.clone(), u32::try_from(*scale).ok()?, power_of_ten((*precision).into())? - 1)
            }
            _ => return None,
        };
        // A NULL may stand for any number: it must not overflow either.
        let nulls = array.nulls().cloned();
        let values: ScalarBuffer<i128> = match &nulls {
            Some(nulls) => {
                let valid = |(row, value): (usize, &i128)| if nulls.is_valid(row) { *value } else { 0 };
                values.iter().enumerate().map(valid).collect()
            }
            None => values,
        };
        Some(Decimals { values, scale, bound, nulls })
    }

    pub(super) fn nulls(&self) -> Option<&NullBuffer> {
        self.nulls.as_ref()
    }

    pub(super) fn value(&self, row: usize) -> Value {
        match self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            true => Value::Null,
            false => Value::Numeric(Numeric::new(self.values[row], self.scale)),
        }
    }

    /// In the Arrow form of a numeric without a precision.
    pub(super) fn into_texts(self, rows: usize) -> Result<ArrayRef> {
        let mut builder = ColumnBuilder::of_batch(&Type::Numeric(None), rows);
        (0..rows).try_for_each(|row| builder.append(&self.value(row)))?;
        Ok(builder.finish())
    }

    /// As decimals, if none has too many digits.
    pub(super) fn into_decimals(self) -> std::result::Result<ArrayRef, Decimals> {
        let most = power_of_ten(38).unwrap_or(0);
        match self.bound < most && self.scale <= 38 {
            true => {
                let ty = DataType::Decimal128(38, self.scale as i8);
                Ok(Arc::new(Decimal128Array::new(self.values, self.nulls).with_data_type(ty)))
            }
            false => Err(self),
        }
    }

    /// Rounded half away from zero to a type that has a precision and a scale; `None` when one does not fit.
    pub(super) fn fit(self, precision: u16, scale: u16) -> Option<ArrayRef> {
        let wanted = u32::from(scale);
        let most = power_of_ten(precision.into()).filter(|_| precision <= 38)?;
        let column = match wanted >= self.scale {
            true => match Side::Column(self).at_scale(wanted)? {
                Side::Column(column) => column,
                Side::Constant(..) => return None,
            },
            false => {
                let divisor = power_of_ten(self.scale - wanted)?;
                let (half, bound) = (divisor / 2, self.bound.checked_add(divisor)?);
                let values = map(
                    &self.values,
                    bound,
                    bound,
                    |v| (v + v.signum() * half as i64) / divisor as i64,
                    |v| (v + v.signum() * half) / divisor,
                );
                Decimals { values, ..self }
            }
        };
        let fits = |value: &i128| -most < *value && *value < most;
        column.values.iter().all(fits).then(|| {
            let ty = DataType::Decimal128(precision as u8, scale as i8);
            Arc::new(Decimal128Array::new(column.values, column.nulls).with_data_type(ty)) as ArrayRef
        })
    }
}
