//! Divisors, factorials, histograms and scales of numerics.

use super::*;
use crate::value::{Value, compare_f64};

/// The largest number whose factorial PostgreSQL can hold.
const MAX_FACTORIAL: i64 = 32_177;

fn gcd_of(a: &BigInt, b: &BigInt) -> BigInt {
    let (mut a, mut b) = (a.abs(), b.abs());
    while !b.is_zero() {
        let rest = &a % &b;
        a = b;
        b = rest;
    }
    a
}

fn bucket_error(message: &str) -> SqlError {
    SqlError::new(SqlState(*b"2201G"), message)
}

impl Numeric {
    /// Both numbers' unscaled values at the larger of their scales; `None` when one is NaN.
    fn aligned(&self, other: &Numeric) -> Option<(BigInt, BigInt, i64)> {
        let ((a, a_scale), (b, b_scale)) = (self.parts()?, other.parts()?);
        let scale = a_scale.max(b_scale);
        Some((rescale(&a, a_scale, scale), rescale(&b, b_scale, scale), scale))
    }

    /// Greatest common divisor, of decimals too; never negative.
    pub fn gcd(&self, other: &Numeric) -> Numeric {
        match self.aligned(other) {
            Some((a, b, scale)) => Numeric::finite(gcd_of(&a, &b), scale),
            None => Numeric::NaN,
        }
    }

    /// Least common multiple, of decimals too; never negative.
    pub fn lcm(&self, other: &Numeric) -> Result<Numeric> {
        let Some((a, b, scale)) = self.aligned(other) else { return Ok(Numeric::NaN) };
        if a.is_zero() || b.is_zero() {
            return Ok(Numeric::finite(BigInt::zero(), scale));
        }
        let divisor = gcd_of(&a, &b);
        Numeric::checked((a / divisor * b).abs(), scale)
    }

    /// `n!`. 22003 when it is too large or the number negative.
    pub fn factorial(n: i64) -> Result<Numeric> {
        if n < 0 {
            return Err(SqlError::new(SqlState::OUT_OF_RANGE, "factorial of a negative number is undefined"));
        }
        if n > MAX_FACTORIAL {
            return Err(overflow());
        }
        // Products of neighbours keep the factors of a multiplication equally long.
        fn product(from: i64, to: i64) -> BigInt {
            match to - from {
                0 => BigInt::from(from),
                1 => BigInt::from(from) * to,
                distance => product(from, from + distance / 2) * product(from + distance / 2 + 1, to),
            }
        }
        Ok(Numeric::finite(if n < 2 { BigInt::from(1) } else { product(2, n) }, 0))
    }

    /// The smallest scale that keeps the value; `None` for NaN.
    pub fn min_scale(&self) -> Option<u32> {
        let (mut unscaled, mut scale) = self.unscaled()?;
        let ten = BigInt::from(10);
        while scale > 0 && (&unscaled % &ten).is_zero() {
            unscaled /= &ten;
            scale -= 1;
        }
        Some(scale)
    }

    /// The number without zeros at its end.
    pub fn trim_scale(&self) -> Result<Numeric> {
        self.min_scale().map_or(Ok(Numeric::NaN), |scale| self.round(scale.into()))
    }

    /// The number of the bucket of a histogram between two bounds that a number falls in.
    pub fn width_bucket(&self, low: &Numeric, high: &Numeric, count: i32) -> Result<Value> {
        if count <= 0 {
            return Err(bucket_error("count must be greater than zero"));
        }
        if self.is_nan() || low.is_nan() || high.is_nan() {
            return Err(bucket_error("operand, lower bound, and upper bound cannot be NaN"));
        }
        if low == high {
            return Err(bucket_error("lower bound cannot equal upper bound"));
        }
        let ascending = low < high;
        let before = if ascending { self < low } else { self > low };
        let behind = if ascending { self >= high } else { self <= high };
        if before {
            return Ok(Value::Int4(0));
        }
        if behind {
            return past_last(count);
        }
        let distance = self.subtract(low)?.multiply(&Numeric::from(i64::from(count)))?;
        let bucket = distance.divide_truncated(&high.subtract(low)?)?.to_i128_at_scale(0).unwrap_or(0);
        Ok(Value::Int4((bucket as i32).min(count - 1) + 1))
    }
}

fn past_last(count: i32) -> Result<Value> {
    let error = || SqlError::new(SqlState::OUT_OF_RANGE, "integer out of range");
    count.checked_add(1).map(Value::Int4).ok_or_else(error)
}

/// As [`Numeric::width_bucket`], of doubles.
pub(crate) fn width_bucket_float(operand: f64, low: f64, high: f64, count: i32) -> Result<Value> {
    if count <= 0 {
        return Err(bucket_error("count must be greater than zero"));
    }
    if operand.is_nan() || low.is_nan() || high.is_nan() {
        return Err(bucket_error("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(bucket_error("lower and upper bounds must be finite"));
    }
    if low == high {
        return Err(bucket_error("lower bound cannot equal upper bound"));
    }
    let ascending = low < high;
    let is_before = compare_f64(operand, low);
    if if ascending { is_before.is_lt() } else { is_before.is_gt() } {
        return Ok(Value::Int4(0));
    }
    if if ascending { operand >= high } else { operand <= high } {
        return past_last(count);
    }
    let (from, to) = (if ascending { operand - low } else { low - operand }, (high - low).abs());
    let share =
        if to.is_finite() { from / to } else { (operand / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0) };
    // The quotient may round to one.
    Ok(Value::Int4(((f64::from(count) * share) as i32).min(count - 1) + 1))
}
