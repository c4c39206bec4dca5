//! Sums of floats that do not depend on the order of their addends.
//!
//! The sum is kept exactly, as a fixed-point number wide enough for every double (Kulisch's long accumulator), and
//! rounded once, at the end. That makes partial sums of partitions and replicas agree to the last bit.

use bigdecimal::num_bigint::{BigInt, Sign};
use serde::{Deserialize, Serialize};

use crate::error::{Result, SqlError, SqlState};

/// Words of a sum of doubles, the lowest counting `2^-1074`; enough for `2^63` of the largest.
const WORDS: usize = 68;
/// Words of a sum of products of two doubles, the lowest counting `2^-2148`.
const PRODUCT_WORDS: usize = 136;
/// Additions between carries: each adds less than `2^32` to a word of 63 bits.
const ADDITIONS_PER_CARRY: u32 = 1 << 30;

/// A fixed-point number of words of 32 bits, the lowest first. Between carries a word holds more than its 32 bits.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LongAccumulator<const LENGTH: usize> {
    #[serde(deserialize_with = "all_words::<LENGTH, _>")]
    words: Vec<i64>,
    additions: u32,
}

/// Refuses a sum that was not written by this code: it would be indexed out of bounds.
fn all_words<'de, const LENGTH: usize, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<i64>, D::Error> {
    let words = Vec::deserialize(deserializer)?;
    match words.len() {
        length if length == LENGTH => Ok(words),
        length => Err(serde::de::Error::invalid_length(length, &"the words of an exact sum")),
    }
}

impl<const LENGTH: usize> Default for LongAccumulator<LENGTH> {
    fn default() -> Self {
        LongAccumulator { words: vec![0; LENGTH], additions: 0 }
    }
}

impl<const LENGTH: usize> PartialEq for LongAccumulator<LENGTH> {
    fn eq(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.clone(), other.clone());
        a.carry();
        b.carry();
        a.words == b.words
    }
}

impl<const LENGTH: usize> LongAccumulator<LENGTH> {
    /// Adds `mantissa * 2^shift`, in units of the lowest bit; the mantissa has at most 96 bits.
    fn add(&mut self, mantissa: u128, shift: usize, negative: bool) {
        let spread = mantissa << (shift % 32);
        let sign = if negative { -1 } else { 1 };
        let first = shift / 32;
        for i in 0..4 {
            let part = (spread >> (32 * i)) as u32;
            if part != 0 {
                self.words[first + i] += sign * i64::from(part);
            }
        }
        self.additions += 1;
        if self.additions == ADDITIONS_PER_CARRY {
            self.carry();
        }
    }

    fn merge(&mut self, other: &Self) {
        self.carry();
        let mut other = other.clone();
        other.carry();
        // After carries words are below 2^32 (the highest far below 2^62), so that one more addition is safe.
        for (word, addend) in self.words.iter_mut().zip(&other.words) {
            *word += addend;
        }
        self.carry();
    }

    /// Brings every word but the highest, which has the sign, into `0..2^32`.
    fn carry(&mut self) {
        let mut carry = 0;
        let last = self.words.len() - 1;
        for word in &mut self.words[..last] {
            let total = *word + carry;
            carry = total >> 32;
            *word = total & 0xffff_ffff;
        }
        self.words[last] += carry;
        self.additions = 0;
    }

    /// The magnitude's words and the sign.
    fn magnitude(&self) -> (Vec<i64>, bool) {
        let mut sum = self.clone();
        sum.carry();
        let negative = sum.words.last().is_some_and(|word| *word < 0);
        if negative {
            sum.words.iter_mut().for_each(|word| *word = -*word);
            sum.carry();
        }
        (sum.words, negative)
    }

    /// The whole number of lowest bits.
    fn to_integer(&self) -> BigInt {
        let (words, negative) = self.magnitude();
        let digits = words.iter().flat_map(|word| {
            // The highest word may exceed 32 bits; it is the last one.
            [*word as u32, (*word >> 32) as u32]
        });
        let (low, high): (Vec<u32>, Vec<u32>) = {
            let all: Vec<u32> = digits.collect();
            (all.iter().step_by(2).copied().collect(), all.iter().skip(1).step_by(2).copied().collect())
        };
        let sign = if negative { Sign::Minus } else { Sign::Plus };
        BigInt::from_slice(sign, &low) + (BigInt::from_slice(sign, &high) << 32usize)
    }
}

/// Mantissa and exponent of a finite double's magnitude: `mantissa * 2^(exponent - 1074)`.
fn decompose(value: f64) -> (u64, usize) {
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as usize;
    let fraction = bits & ((1 << 52) - 1);
    // Subnormal numbers have the exponent of the smallest normal ones, without their leading bit.
    if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) }
}

/// An exact sum of doubles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExactSum {
    finite: LongAccumulator<WORDS>,
    /// Addends that are no numbers.
    nan: bool,
    positive_infinity: bool,
    negative_infinity: bool,
}

/// An exact sum of products of two finite doubles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExactProducts {
    finite: LongAccumulator<PRODUCT_WORDS>,
}

impl ExactProducts {
    /// Adds `a * b`.
    pub fn add(&mut self, a: f64, b: f64) {
        let ((x, x_shift), (y, y_shift)) = (decompose(a), decompose(b));
        let product = u128::from(x) * u128::from(y);
        let negative = a.is_sign_negative() != b.is_sign_negative();
        // 106 bits in two parts, so that shifting does not lose the highest.
        let shift = x_shift + y_shift;
        self.finite.add(product & ((1 << 64) - 1), shift, negative);
        self.finite.add(product >> 64, shift + 64, negative);
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactProducts) {
        self.finite.merge(&other.finite);
    }

    /// The sum in units of `2^-2148`.
    pub fn to_integer(&self) -> BigInt {
        self.finite.to_integer()
    }
}

impl ExactSum {
    /// Adds a double.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.nan |= value.is_nan();
            self.positive_infinity |= value == f64::INFINITY;
            self.negative_infinity |= value == f64::NEG_INFINITY;
            return;
        }
        let (mantissa, shift) = decompose(value);
        self.finite.add(mantissa.into(), shift, value.is_sign_negative());
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        self.finite.merge(&other.finite);
        self.nan |= other.nan;
        self.positive_infinity |= other.positive_infinity;
        self.negative_infinity |= other.negative_infinity;
    }

    /// Whether every addend was finite.
    pub fn is_finite(&self) -> bool {
        !(self.nan || self.positive_infinity || self.negative_infinity)
    }

    /// The sum of the finite addends in units of `2^-1074`.
    pub fn to_integer(&self) -> BigInt {
        self.finite.to_integer()
    }

    fn special(&self) -> Option<f64> {
        if self.nan || (self.positive_infinity && self.negative_infinity) {
            Some(f64::NAN)
        } else if self.positive_infinity {
            Some(f64::INFINITY)
        } else if self.negative_infinity {
            Some(f64::NEG_INFINITY)
        } else {
            None
        }
    }

    /// The sum cut to 53 bits, whether a half was cut off or more, and whether anything below was.
    fn cut(&self) -> (u64, bool, bool, bool) {
        let (words, negative) = self.finite.magnitude();
        let Some(top) = words.iter().rposition(|word| *word != 0) else { return (0, false, false, negative) };
        let highest = top * 32 + (63 - words[top].leading_zeros() as usize);
        let bit = |position: usize| words[position / 32] >> (position % 32) & 1 == 1;
        let shift = highest.saturating_sub(52);
        let mut mantissa = 0u64;
        for position in (shift..=highest).rev() {
            mantissa = mantissa << 1 | u64::from(bit(position));
        }
        let half = shift > 0 && bit(shift - 1);
        let rest = shift > 1 && (0..shift - 1).any(bit);
        // The bits of a double count through all of them: an exponent one larger is 2^52 bits further.
        (((shift as u64) << 52) + mantissa, half, rest, negative)
    }

    fn assemble(bits: u64, negative: bool) -> Result<f64> {
        let value = f64::from_bits(bits.min(f64::INFINITY.to_bits()));
        if value.is_infinite() {
            return Err(SqlError::new(SqlState::OUT_OF_RANGE, "value out of range: overflow"));
        }
        Ok(if negative { -value } else { value })
    }

    /// The nearest double; 22003 when the sum is larger than all of them.
    pub fn to_f64(&self) -> Result<f64> {
        if let Some(special) = self.special() {
            return Ok(special);
        }
        let (bits, half, rest, negative) = self.cut();
        let up = half && (rest || bits & 1 == 1);
        ExactSum::assemble(bits + u64::from(up), negative)
    }

    /// The nearest real; 22003 when the sum is larger than all of them.
    pub fn to_f32(&self) -> Result<f32> {
        if let Some(special) = self.special() {
            return Ok(special as f32);
        }
        let (bits, half, rest, negative) = self.cut();
        // Rounding to odd first makes the second rounding see what the first cut off.
        let value = ExactSum::assemble(bits | u64::from(half || rest), negative)?;
        crate::expr::cast::narrow(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum
    }

    #[test]
    fn a_serialised_sum_of_another_length_is_refused() {
        let good = postcard::to_stdvec(&sum(&[1.5])).expect("a sum can be serialised");
        assert!(postcard::from_bytes::<ExactSum>(&good).is_ok());
        // The first byte is the number of words.
        let mut short = good.clone();
        short[0] -= 1;
        assert!(postcard::from_bytes::<ExactSum>(&short).is_err());
    }

    #[test]
    fn cancels_exactly() {
        assert_eq!(sum(&[1e300, 1.0, -1e300]).to_f64(), Ok(1.0));
        assert_eq!(sum(&[0.1; 10]).to_f64(), Ok(1.0));
        assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX]).to_f64(), Ok(f64::MAX));
        assert_eq!(sum(&[5e-324, 5e-324]).to_f64(), Ok(1e-323));
        assert!(sum(&[f64::MAX, f64::MAX]).to_f64().is_err());
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).to_f64().is_ok_and(f64::is_nan));
    }

    proptest! {
        #[test]
        fn one_number_is_itself(value in any::<f64>()) {
            prop_assume!(!value.is_nan());
            prop_assert_eq!(sum(&[value]).to_f64(), Ok(value));
        }

        #[test]
        fn two_numbers_round_as_the_machine_does(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!((a + b).is_finite());
            prop_assert_eq!(sum(&[a, b]).to_f64(), Ok(a + b));
        }

        #[test]
        fn two_reals_round_as_the_machine_does(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!((a + b).is_finite() && a + b != 0.0);
            prop_assert_eq!(sum(&[a.into(), b.into()]).to_f32(), Ok(a + b));
        }

        #[test]
        fn order_and_partition_do_not_matter(
            mut values in prop::collection::vec(any::<f64>(), 0..40), cut in 0usize..40,
        ) {
            values.retain(|value| value.is_finite());
            let whole = sum(&values);
            let (left, right) = values.split_at(cut.min(values.len()));
            let mut merged = sum(right);
            merged.merge(&sum(left));
            prop_assert_eq!(&whole, &merged);
            values.reverse();
            prop_assert_eq!(whole, sum(&values));
        }
    }
}
