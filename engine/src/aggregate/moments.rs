//! Variance and standard deviation, exactly: the sums of the values and of their squares are kept without rounding, and
//! only the result is rounded. So they do not depend on the order of the values or of partitions.

use bigdecimal::{
    num_bigint::{BigInt, Sign},
    num_traits::{ToPrimitive, Zero},
};
use serde::{Deserialize, Serialize};

use super::{ExactSum, add_decimal, exact_sum::ExactProducts};
use crate::{
    error::{Result, SqlError, SqlState},
    numeric::Numeric,
    value::Value,
};

/// Which of the six functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spread {
    /// The square root of the variance.
    pub deviation: bool,
    /// Of a sample: divides by one less than the number of values.
    pub sample: bool,
}

/// A sum of decimals: `small / 10^scale + rest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DecimalSum {
    small: i128,
    scale: u32,
    rest: Numeric,
}

impl Default for DecimalSum {
    fn default() -> Self {
        DecimalSum { small: 0, scale: 0, rest: Numeric::zero() }
    }
}

impl DecimalSum {
    fn add(&mut self, number: &Numeric) -> Result<()> {
        add_decimal(&mut self.small, &mut self.scale, &mut self.rest, number)
    }

    fn merge(&mut self, other: &DecimalSum) -> Result<()> {
        self.add(&Numeric::new(other.small, other.scale))?;
        if !other.rest.is_zero() {
            self.rest = self.rest.add(&other.rest)?;
        }
        Ok(())
    }

    fn total(&self) -> Result<Numeric> {
        self.rest.add(&Numeric::new(self.small, self.scale))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Sums {
    Decimal { sum: DecimalSum, squares: DecimalSum },
    Float { sum: ExactSum, squares: Box<ExactProducts> },
}

/// Number of values, their sum and the sum of their squares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    count: u64,
    sums: Sums,
}

impl Moments {
    /// Of integers and numerics.
    pub fn decimal() -> Moments {
        let sums = Sums::Decimal { sum: DecimalSum::default(), squares: DecimalSum::default() };
        Moments { count: 0, sums }
    }

    /// Of floats.
    pub fn float() -> Moments {
        Moments { count: 0, sums: Sums::Float { sum: ExactSum::default(), squares: Box::default() } }
    }

    /// Takes in a value that is not NULL.
    pub fn add(&mut self, value: &Value) -> Result<()> {
        self.count += 1;
        match (&mut self.sums, value) {
            (Sums::Float { sum, squares }, Value::Float4(_) | Value::Float8(_)) => {
                let value = match value {
                    Value::Float4(value) => f64::from(*value),
                    Value::Float8(value) => *value,
                    _ => f64::NAN,
                };
                sum.add(value);
                if value.is_finite() {
                    squares.add(value, value);
                }
                Ok(())
            }
            (Sums::Decimal { sum, squares }, Value::Numeric(number)) => {
                sum.add(number)?;
                squares.add(&square(number)?)
            }
            (Sums::Decimal { sum, squares }, value) => {
                let number = value
                    .as_i64()
                    .ok_or_else(|| SqlError::internal("the variance of a value that is no number"))?;
                sum.add(&Numeric::from(number))?;
                squares.add(&Numeric::from(i128::from(number) * i128::from(number)))
            }
            _ => Err(SqlError::internal("the variance of a value that is no number")),
        }
    }

    /// Takes in the moments of other values.
    pub fn merge(&mut self, other: &Moments) -> Result<()> {
        self.count += other.count;
        match (&mut self.sums, &other.sums) {
            (Sums::Decimal { sum, squares }, Sums::Decimal { sum: s, squares: q }) => {
                sum.merge(s)?;
                squares.merge(q)
            }
            (Sums::Float { sum, squares }, Sums::Float { sum: s, squares: q }) => {
                sum.merge(s);
                squares.merge(q);
                Ok(())
            }
            _ => Err(SqlError::internal("moments of different types cannot be merged")),
        }
    }

    /// The result; NULL of too few values.
    pub fn finish(&self, spread: Spread) -> Result<Value> {
        if self.count <= u64::from(spread.sample) {
            return Ok(Value::Null);
        }
        // (count * squares - sum^2) / (count * (count - 1)), or / count^2
        let divisor = u128::from(self.count) * u128::from(self.count - u64::from(spread.sample));
        match &self.sums {
            Sums::Decimal { sum, squares } => {
                let (sum, squares) = (sum.total()?, squares.total()?);
                let numerator =
                    Numeric::from(i128::from(self.count)).multiply(&squares)?.subtract(&square(&sum)?)?;
                if numerator.is_nan() {
                    return Ok(Value::Numeric(Numeric::NaN));
                }
                if numerator.is_negative() || numerator.is_zero() {
                    return Ok(Value::Numeric(Numeric::zero()));
                }
                let variance = numerator.divide(&Numeric::new(BigInt::from(divisor), 0))?;
                Ok(Value::Numeric(match spread.deviation {
                    true => variance.sqrt_at_scale(variance.scale())?,
                    false => variance,
                }))
            }
            Sums::Float { sum, squares } => {
                if !sum.is_finite() {
                    return Ok(Value::Float8(f64::NAN));
                }
                // In units of 2^-2148.
                let sum = sum.to_integer();
                let numerator = BigInt::from(self.count) * squares.to_integer() - &sum * &sum;
                let result = quotient(numerator, BigInt::from(divisor), spread.deviation);
                if result.is_infinite() {
                    return Err(SqlError::new(SqlState::OUT_OF_RANGE, "value out of range: overflow"));
                }
                Ok(Value::Float8(result))
            }
        }
    }

    /// Bytes held on the heap, roughly.
    pub fn heap_size(&self) -> usize {
        match &self.sums {
            Sums::Decimal { sum, squares } => sum.rest.heap_size() + squares.rest.heap_size(),
            Sums::Float { .. } => (68 + 136) * 8,
        }
    }
}

fn square(number: &Numeric) -> Result<Numeric> {
    match number.small() {
        Some((unscaled, scale)) if unscaled.unsigned_abs() < 1 << 63 => {
            Ok(Numeric::new(unscaled * unscaled, 2 * scale as u32))
        }
        _ => number.multiply(number),
    }
}

/// `numerator / denominator * 2^-2148`, or its square root, as the nearest double.
fn quotient(numerator: BigInt, denominator: BigInt, root: bool) -> f64 {
    if numerator.sign() != Sign::Plus {
        return 0.0;
    }
    // Scaled so that the quotient has more bits than a double, and an even exponent for the root.
    let have = numerator.bits() as i64 - denominator.bits() as i64;
    let mut shift = (260 - have).max(0);
    shift += shift & 1;
    let scaled = numerator << shift as usize;
    let mut whole = &scaled / &denominator;
    let mut exact = (&whole * &denominator) == scaled;
    let mut exponent = -2148 - shift;
    if root {
        let floor = whole.sqrt();
        exact &= &floor * &floor == whole;
        whole = floor;
        exponent /= 2;
    }
    // A bit below the last stands for what was cut off, so that the one rounding is right.
    whole = (whole << 1usize) + BigInt::from(u8::from(!exact));
    exponent -= 1;
    round_to_double(&whole, exponent)
}

/// `whole * 2^exponent` as the nearest double, ties to even; infinite when it is larger than all of them.
fn round_to_double(whole: &BigInt, exponent: i64) -> f64 {
    if whole.is_zero() {
        return 0.0;
    }
    let bits = whole.bits() as i64;
    // Doubles have 53 bits, fewer below 2^-1022.
    let drop = (bits - 53).max(-1074 - exponent).max(0);
    if drop > bits + 1 {
        return 0.0;
    }
    let kept: BigInt = whole >> drop as usize;
    let rest = whole - (&kept << drop as usize);
    let half = if drop == 0 { BigInt::zero() } else { BigInt::from(1) << (drop - 1) as usize };
    let up = drop > 0 && (rest > half || (rest == half && kept.bit(0)));
    let mantissa = (kept + u8::from(up)).to_u64().unwrap_or(u64::MAX);
    let exponent = exponent + drop;
    if exponent > 971 {
        return f64::INFINITY;
    }
    // At most 2^53 times a power of two that is in range: exact, in two steps because the power alone may not be.
    let half_power = exponent / 2;
    let scaled = mantissa as f64 * 2f64.powi(half_power as i32) * 2f64.powi((exponent - half_power) as i32);
    if scaled.is_finite() { scaled } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use bigdecimal::BigDecimal;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounding_to_doubles() {
        for value in [1.0, 0.1, 1e-320, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e300] {
            let decimal = BigDecimal::try_from(value).expect("finite");
            let (unscaled, scale) = decimal.into_bigint_and_scale();
            let denominator = BigInt::from(10).pow(scale.max(0) as u32);
            let numerator = (unscaled * BigInt::from(10).pow((-scale).max(0) as u32)) << 2148usize;
            assert_eq!(quotient(numerator.clone(), denominator.clone(), false), value);
            let squared = quotient(&numerator * &numerator, (&denominator * &denominator) << 2148usize, true);
            assert_eq!(squared, value);
        }
    }

    proptest! {
        /// Against the same formula over exact decimals.
        #[test]
        fn variances_are_those_of_exact_arithmetic(
            values in prop::collection::vec(prop_oneof![-1e6f64..1e6, Just(0.1), Just(1e-300), Just(1e100)], 2..12),
        ) {
            let mut moments = Moments::float();
            let (mut sum, mut squares) = (BigDecimal::from(0), BigDecimal::from(0));
            for value in &values {
                moments.add(&Value::Float8(*value))?;
                let exact = BigDecimal::try_from(*value).expect("finite");
                squares += &exact * &exact;
                sum += exact;
            }
            let count = BigDecimal::from(values.len() as u64);
            let numerator = &count * squares - &sum * &sum;
            let expected = (numerator / (&count * &count)).with_prec(60).to_string().parse::<f64>().expect("a number");
            let spread = Spread { deviation: false, sample: false };
            prop_assert_eq!(moments.finish(spread)?, Value::Float8(expected));
        }
    }
}
