//! PostgreSQL's exact numeric: a decimal number with a display scale, or NaN.
//!
//! The display scales of results follow `numeric.c` of PostgreSQL 15: the larger scale for sums, the sum of scales for
//! products, and for quotients, roots and logarithms at least sixteen significant digits. Infinite numerics are not
//! supported (0A000).

use std::{borrow::Cow, cmp::Ordering, fmt::Write as _, hash::Hash};

use bigdecimal::{
    BigDecimal,
    num_bigint::{BigInt, Sign},
    num_traits::{Signed, ToPrimitive, Zero},
};
use serde::{Deserialize, Serialize};

use crate::error::{Result, SqlError, SqlState};

mod whole;

pub(crate) use whole::width_bucket_float;

/// Digits after the point that a numeric can have.
pub const MAX_SCALE: i64 = 16383;
/// Digits before the point that a numeric can have.
const MAX_WEIGHT: i64 = 131072;
/// Significant digits that an inexact result has at least.
const MIN_SIGNIFICANT_DIGITS: i64 = 16;
/// Digits after the point of an inexact result at most.
const MAX_RESULT_SCALE: i64 = 1000;

/// An exact decimal number with its display scale (the `BigDecimal`'s own scale, never negative), or NaN.
#[derive(Clone, Debug)]
pub enum Numeric {
    /// A finite number.
    Finite(BigDecimal),
    /// Not a number: equal to itself, greater than every number.
    NaN,
}

fn overflow() -> SqlError {
    SqlError::new(SqlState::OUT_OF_RANGE, "value overflows numeric format")
}

fn division_by_zero() -> SqlError {
    SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

const POWERS: [i128; 39] = {
    let mut powers = [1i128; 39];
    let mut i = 1;
    while i < 39 {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// `10^n` when it fits.
pub fn power_of_ten(n: u32) -> Option<i128> {
    POWERS.get(n as usize).copied()
}

fn big_power_of_ten(n: i64) -> BigInt {
    match power_of_ten(n as u32) {
        Some(power) => BigInt::from(power),
        None => BigInt::from(10u8).pow(n as u32),
    }
}

fn decimal_digits(value: &BigInt) -> i64 {
    if value.is_zero() {
        return 1;
    }
    if let Some(small) = value.to_i128() {
        return small.unsigned_abs().ilog10() as i64 + 1;
    }
    // The estimate from the number of bits is at most one too large.
    let estimate = (value.bits() as f64 * std::f64::consts::LOG10_2) as i64 + 1;
    if value.magnitude() >= big_power_of_ten(estimate).magnitude() {
        estimate + 1
    } else if value.magnitude() < big_power_of_ten(estimate - 1).magnitude() {
        estimate - 1
    } else {
        estimate
    }
}

/// `numerator / denominator`, rounded half away from zero.
fn divide_rounded(numerator: &BigInt, denominator: &BigInt) -> BigInt {
    let quotient = numerator / denominator;
    let remainder = numerator - &quotient * denominator;
    if (remainder.abs() << 1usize) >= denominator.abs() {
        if (numerator.sign() == Sign::Minus) != (denominator.sign() == Sign::Minus) {
            quotient - 1
        } else {
            quotient + 1
        }
    } else {
        quotient
    }
}

/// Changes the scale of an unscaled value, rounding half away from zero.
fn rescale(value: &BigInt, from: i64, to: i64) -> BigInt {
    match to.cmp(&from) {
        Ordering::Equal => value.clone(),
        Ordering::Greater => value * big_power_of_ten(to - from),
        Ordering::Less => divide_rounded(value, &big_power_of_ten(from - to)),
    }
}

/// The weight of the first base-10000 digit and that digit, as PostgreSQL stores numerics.
fn leading_digit(value: &BigInt, scale: i64) -> (i64, u32) {
    if value.is_zero() {
        return (0, 0);
    }
    let digits = decimal_digits(value);
    let exponent = digits - 1 - scale;
    let weight = exponent.div_euclid(4);
    let wanted = exponent - 4 * weight + 1;
    let magnitude = value.abs();
    let first = if digits > wanted {
        magnitude / big_power_of_ten(digits - wanted)
    } else {
        magnitude * big_power_of_ten(wanted - digits)
    };
    (weight, first.to_u32().unwrap_or(9999))
}

impl Numeric {
    /// The number `unscaled / 10^scale`, displayed with `scale` digits after the point.
    pub fn new(unscaled: impl Into<BigInt>, scale: u32) -> Numeric {
        Numeric::Finite(BigDecimal::new(unscaled.into(), i64::from(scale)))
    }

    /// Zero.
    pub fn zero() -> Numeric {
        Numeric::new(0, 0)
    }

    fn finite(unscaled: BigInt, scale: i64) -> Numeric {
        Numeric::Finite(BigDecimal::new(unscaled, scale))
    }

    /// As `finite`, but refuses numbers that PostgreSQL cannot hold and rounds off digits beyond its largest scale.
    fn checked(unscaled: BigInt, scale: i64) -> Result<Numeric> {
        let (unscaled, scale) = if scale > MAX_SCALE {
            (rescale(&unscaled, scale, MAX_SCALE), MAX_SCALE)
        } else {
            (unscaled, scale)
        };
        if unscaled.bits() > 400_000 && decimal_digits(&unscaled) - scale > MAX_WEIGHT {
            return Err(overflow());
        }
        Ok(Numeric::finite(unscaled, scale))
    }

    fn parts(&self) -> Option<(Cow<'_, BigInt>, i64)> {
        match self {
            Numeric::Finite(value) => {
                let (unscaled, scale) = value.as_bigint_and_scale();
                // A BigDecimal made elsewhere may have a negative scale.
                if scale < 0 {
                    Some((Cow::Owned(unscaled.as_ref() * big_power_of_ten(-scale)), 0))
                } else {
                    Some((unscaled, scale))
                }
            }
            Numeric::NaN => None,
        }
    }

    /// Unscaled value and scale when the unscaled value fits.
    pub fn small(&self) -> Option<(i128, i64)> {
        let (unscaled, scale) = self.parts()?;
        Some((unscaled.to_i128()?, scale))
    }

    /// The unscaled value and the scale; `None` for NaN.
    pub fn unscaled(&self) -> Option<(BigInt, u32)> {
        self.parts().map(|(unscaled, scale)| (unscaled.into_owned(), scale as u32))
    }

    /// The unscaled value at exactly this scale, or `None` when it would need rounding, does not fit or is NaN.
    pub fn to_i128_at_scale(&self, wanted: u32) -> Option<i128> {
        let (unscaled, scale) = self.small()?;
        let wanted = i64::from(wanted);
        if wanted >= scale {
            unscaled.checked_mul(power_of_ten((wanted - scale) as u32)?)
        } else {
            let power = power_of_ten((scale - wanted) as u32)?;
            (unscaled % power == 0).then(|| unscaled / power)
        }
    }

    /// Whether this is NaN.
    pub fn is_nan(&self) -> bool {
        matches!(self, Numeric::NaN)
    }

    /// Whether this is zero of any scale.
    pub fn is_zero(&self) -> bool {
        matches!(self, Numeric::Finite(value) if value.is_zero())
    }

    /// Whether this is less than zero.
    pub fn is_negative(&self) -> bool {
        matches!(self, Numeric::Finite(value) if value.is_negative())
    }

    /// Digits displayed after the point.
    pub fn scale(&self) -> u32 {
        self.parts().map_or(0, |(_, scale)| scale as u32)
    }

    /// Bytes held on the heap, roughly.
    pub fn heap_size(&self) -> usize {
        match self.parts() {
            Some((unscaled, _)) => (unscaled.bits() as usize).div_ceil(64) * 8,
            None => 0,
        }
    }

    fn combine(
        &self,
        other: &Numeric,
        small: impl Fn(i128, i128) -> Option<i128>,
        big: impl Fn(&BigInt, &BigInt) -> BigInt,
    ) -> Result<Numeric> {
        let (Some((a, a_scale)), Some((b, b_scale))) = (self.parts(), other.parts()) else {
            return Ok(Numeric::NaN);
        };
        let scale = a_scale.max(b_scale);
        if let (Some(x), Some(y)) = (a.to_i128(), b.to_i128())
            && let (Some(p), Some(q)) =
                (power_of_ten((scale - a_scale) as u32), power_of_ten((scale - b_scale) as u32))
            && let (Some(x), Some(y)) = (x.checked_mul(p), y.checked_mul(q))
            && let Some(result) = small(x, y)
        {
            return Ok(Numeric::finite(BigInt::from(result), scale));
        }
        Numeric::checked(big(&rescale(&a, a_scale, scale), &rescale(&b, b_scale, scale)), scale)
    }

    /// Sum.
    pub fn add(&self, other: &Numeric) -> Result<Numeric> {
        self.combine(other, i128::checked_add, |a, b| a + b)
    }

    /// Difference.
    pub fn subtract(&self, other: &Numeric) -> Result<Numeric> {
        self.combine(other, i128::checked_sub, |a, b| a - b)
    }

    /// Product; the scales add up.
    pub fn multiply(&self, other: &Numeric) -> Result<Numeric> {
        let (Some((a, a_scale)), Some((b, b_scale))) = (self.parts(), other.parts()) else {
            return Ok(Numeric::NaN);
        };
        Numeric::checked(a.as_ref() * b.as_ref(), a_scale + b_scale)
    }

    /// Quotient with PostgreSQL's choice of scale.
    pub fn divide(&self, other: &Numeric) -> Result<Numeric> {
        let (Some((a, a_scale)), Some((b, b_scale))) = (self.parts(), other.parts()) else {
            return Ok(Numeric::NaN);
        };
        if b.is_zero() {
            return Err(division_by_zero());
        }
        let (a_weight, a_first) = leading_digit(&a, a_scale);
        let (b_weight, b_first) = leading_digit(&b, b_scale);
        let weight = a_weight - b_weight - i64::from(a_first <= b_first);
        let scale =
            (MIN_SIGNIFICANT_DIGITS - weight * 4).max(a_scale).max(b_scale).clamp(0, MAX_RESULT_SCALE);
        Numeric::checked(divide_at_scale(&a, a_scale, &b, b_scale, scale), scale)
    }

    /// Quotient truncated to a whole number.
    pub fn divide_truncated(&self, other: &Numeric) -> Result<Numeric> {
        let (Some((a, a_scale)), Some((b, b_scale))) = (self.parts(), other.parts()) else {
            return Ok(Numeric::NaN);
        };
        if b.is_zero() {
            return Err(division_by_zero());
        }
        let scale = a_scale.max(b_scale);
        Numeric::checked(rescale(&a, a_scale, scale) / rescale(&b, b_scale, scale), 0)
    }

    /// Remainder with the dividend's sign.
    pub fn remainder(&self, other: &Numeric) -> Result<Numeric> {
        if matches!(self, Numeric::NaN) || matches!(other, Numeric::NaN) {
            return Ok(Numeric::NaN);
        }
        if other.is_zero() {
            return Err(division_by_zero());
        }
        self.combine(other, i128::checked_rem, |a, b| a % b)
    }

    /// The number with its sign changed.
    pub fn negate(&self) -> Numeric {
        match self.parts() {
            Some((unscaled, scale)) => Numeric::finite(-unscaled.into_owned(), scale),
            None => Numeric::NaN,
        }
    }

    /// Absolute value.
    pub fn abs(&self) -> Numeric {
        if self.is_negative() { self.negate() } else { self.clone() }
    }

    /// -1, 0 or 1; NaN of NaN.
    pub fn sign(&self) -> Numeric {
        match self {
            Numeric::NaN => Numeric::NaN,
            _ if self.is_zero() => Numeric::zero(),
            _ if self.is_negative() => Numeric::new(-1, 0),
            _ => Numeric::new(1, 0),
        }
    }

    /// Rounded half away from zero to `scale` digits after the point, or before it when negative.
    pub fn round(&self, scale: i64) -> Result<Numeric> {
        self.shorten(scale, divide_rounded)
    }

    /// Cut to `scale` digits after the point, or before it when negative.
    pub fn truncate(&self, scale: i64) -> Result<Numeric> {
        self.shorten(scale, |a, b| a / b)
    }

    fn shorten(&self, wanted: i64, divide: impl Fn(&BigInt, &BigInt) -> BigInt) -> Result<Numeric> {
        let Some((unscaled, scale)) = self.parts() else { return Ok(Numeric::NaN) };
        let wanted = wanted.clamp(-MAX_WEIGHT, MAX_SCALE);
        if wanted >= scale {
            return Numeric::checked(rescale(&unscaled, scale, wanted), wanted);
        }
        let dropped = scale - wanted;
        // More digits than there are leave nothing, whichever way they are dropped.
        let shortened = if dropped > decimal_digits(&unscaled) {
            BigInt::zero()
        } else {
            divide(&unscaled, &big_power_of_ten(dropped))
        };
        if wanted < 0 {
            Numeric::checked(shortened * big_power_of_ten(-wanted), 0)
        } else {
            Numeric::checked(shortened, wanted)
        }
    }

    /// The least whole number that is not smaller.
    pub fn ceil(&self) -> Result<Numeric> {
        let whole = self.truncate(0)?;
        if &whole < self { whole.add(&Numeric::new(1, 0)) } else { Ok(whole) }
    }

    /// The greatest whole number that is not larger.
    pub fn floor(&self) -> Result<Numeric> {
        let whole = self.truncate(0)?;
        if &whole > self { whole.subtract(&Numeric::new(1, 0)) } else { Ok(whole) }
    }

    /// Square root.
    pub fn sqrt(&self) -> Result<Numeric> {
        let Some((unscaled, scale)) = self.parts() else { return Ok(Numeric::NaN) };
        if unscaled.is_negative() {
            return Err(SqlError::new(SqlState(*b"2201F"), "cannot take square root of a negative number"));
        }
        let (weight, _) = leading_digit(&unscaled, scale);
        let result_scale =
            (MIN_SIGNIFICANT_DIGITS - (weight * 4 / 2 + 1)).max(scale).clamp(0, MAX_RESULT_SCALE);
        self.sqrt_at_scale(result_scale as u32)
    }

    /// Square root of a number that is not negative, rounded to this many digits after the point.
    pub(crate) fn sqrt_at_scale(&self, result_scale: u32) -> Result<Numeric> {
        let Some((unscaled, scale)) = self.parts() else { return Ok(Numeric::NaN) };
        let result_scale = i64::from(result_scale);
        // One digit more than wanted decides how to round.
        let squared = rescale(&unscaled, scale, 2 * (result_scale + 1).max(scale));
        let work_scale = (result_scale + 1).max(scale);
        Numeric::checked(rescale(&squared.sqrt(), work_scale, result_scale), result_scale)
    }

    /// Natural exponential.
    pub fn exp(&self) -> Result<Numeric> {
        let Some((unscaled, scale)) = self.parts() else { return Ok(Numeric::NaN) };
        let approximate = (self.to_f64_saturating() * std::f64::consts::LOG10_E).clamp(-2000.0, 2000000.0);
        let result_scale =
            (MIN_SIGNIFICANT_DIGITS - approximate as i64).max(scale).clamp(0, MAX_RESULT_SCALE);
        exp_at_scale(&unscaled, scale, result_scale)
    }

    /// Natural logarithm.
    pub fn ln(&self) -> Result<Numeric> {
        let Some((unscaled, scale)) = self.parts() else { return Ok(Numeric::NaN) };
        check_logarithm(&unscaled)?;
        let result_scale =
            (MIN_SIGNIFICANT_DIGITS - ln_weight(&unscaled, scale)).max(scale).clamp(0, MAX_RESULT_SCALE);
        Numeric::checked(ln_fixed(&unscaled, scale, result_scale), result_scale)
    }

    /// Logarithm to a base.
    pub fn log(&self, base: &Numeric) -> Result<Numeric> {
        let (Some((x, x_scale)), Some((b, b_scale))) = (self.parts(), base.parts()) else {
            return Ok(Numeric::NaN);
        };
        check_logarithm(&b)?;
        check_logarithm(&x)?;
        let weight = ln_weight(&x, x_scale) - ln_weight(&b, b_scale);
        let scale = (MIN_SIGNIFICANT_DIGITS - weight).max(x_scale).max(b_scale).clamp(0, MAX_RESULT_SCALE);
        let work = scale + 30 + ln_weight(&x, x_scale).abs() + ln_weight(&b, b_scale).abs();
        let divisor = ln_fixed(&b, b_scale, work);
        if divisor.is_zero() {
            return Err(division_by_zero());
        }
        Numeric::checked(divide_at_scale(&ln_fixed(&x, x_scale, work), work, &divisor, work, scale), scale)
    }

    /// The number raised to a power.
    pub fn power(&self, exponent: &Numeric) -> Result<Numeric> {
        let one = Numeric::new(1, 0);
        let (Some((base, base_scale)), Some((exp, exp_scale))) = (self.parts(), exponent.parts()) else {
            // One to any power and anything to the power zero are one, even of NaN.
            let is_one = (self == &one && exponent.is_nan()) || (self.is_nan() && exponent.is_zero());
            return Ok(if is_one { one } else { Numeric::NaN });
        };
        if base.is_zero() && exp.is_negative() {
            return Err(SqlError::new(SqlState(*b"2201F"), "zero raised to a negative power is undefined"));
        }
        let whole = exponent.truncate(0)?;
        let is_whole = &whole == exponent;
        if base.is_negative() && !is_whole {
            return Err(SqlError::new(
                SqlState(*b"2201F"),
                "a negative number raised to a non-integer power yields a complex result",
            ));
        }
        if base.is_zero() {
            let scale = MIN_SIGNIFICANT_DIGITS;
            let result = if exp.is_zero() { big_power_of_ten(scale) } else { BigInt::zero() };
            return Ok(Numeric::finite(result, scale));
        }
        let weight_of = |log10: f64| -> Result<Option<i64>> {
            if log10 > MAX_WEIGHT as f64 {
                return Err(overflow());
            }
            Ok((log10 + 1.0 >= -(MAX_SCALE as f64)).then_some(log10 as i64))
        };
        if is_whole && let Some(n) = whole.to_i128_at_scale(0).and_then(|n| i32::try_from(n).ok()) {
            let estimate = f64::from(n) * log10_of(&base, base_scale);
            let Some(weight) = weight_of(estimate)? else {
                return Ok(Numeric::finite(BigInt::zero(), MAX_SCALE));
            };
            // Unlike other inexact results, whole powers have this many digits whatever their size.
            let scale = MIN_SIGNIFICANT_DIGITS.max(base_scale).min(MAX_RESULT_SCALE);
            return whole_power(&base, base_scale, n, scale, weight);
        }
        let magnitude = base.abs();
        let log = ln_fixed(&magnitude, base_scale, (8 - ln_weight(&magnitude, base_scale)).max(0) + 8);
        let log_scale = (8 - ln_weight(&magnitude, base_scale)).max(0) + 8;
        let estimate = Numeric::finite(log, log_scale).to_f64_saturating() * exponent.to_f64_saturating();
        if estimate > 6020.0 {
            return Err(overflow());
        }
        if estimate < -6020.0 {
            return Ok(Numeric::finite(BigInt::zero(), MAX_RESULT_SCALE));
        }
        let weight = (estimate * std::f64::consts::LOG10_E) as i64;
        let scale =
            (MIN_SIGNIFICANT_DIGITS - weight).max(base_scale).max(exp_scale).clamp(0, MAX_RESULT_SCALE);
        let work = scale + weight.abs() + decimal_digits(&exp) + 20;
        let product = ln_fixed(&magnitude, base_scale, work) * exp.as_ref();
        let result = exp_at_scale(&product, work + exp_scale, scale)?;
        let odd = whole.remainder(&Numeric::new(2, 0)).is_ok_and(|r| !r.is_zero());
        Ok(if base.is_negative() && odd { result.negate() } else { result })
    }

    /// Rounds to `numeric(precision, scale)`; 22003 when the result has more digits before the point than that allows.
    pub fn fits(&self, precision: u16, scale: u16) -> Result<Numeric> {
        let rounded = if self.scale() == u32::from(scale) { self.clone() } else { self.round(scale.into())? };
        let Some((unscaled, _)) = rounded.parts() else { return Ok(Numeric::NaN) };
        if !unscaled.is_zero() && decimal_digits(&unscaled) > i64::from(precision) {
            return Err(field_overflow(precision, scale));
        }
        drop(unscaled);
        Ok(rounded)
    }

    /// Reads the text form: digits with an optional point and exponent, or `NaN`.
    pub fn parse(text: &str) -> Result<Numeric> {
        let invalid = || {
            SqlError::new(
                SqlState::INVALID_TEXT,
                format!("invalid input syntax for type numeric: \"{text}\""),
            )
        };
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
        let (negative, rest) = match trimmed.as_bytes().first() {
            Some(b'-') => (true, &trimmed[1..]),
            Some(b'+') => (false, &trimmed[1..]),
            _ => (false, trimmed),
        };
        if trimmed.eq_ignore_ascii_case("nan") {
            return Ok(Numeric::NaN);
        }
        if rest.eq_ignore_ascii_case("infinity") || rest.eq_ignore_ascii_case("inf") {
            return Err(SqlError::unsupported("infinite numeric"));
        }
        let bytes = rest.as_bytes();
        let mut digits = String::new();
        let (mut small, mut count, mut scale, mut seen, mut point) = (0i128, 0usize, 0i64, false, false);
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'0'..=b'9' => {
                    seen = true;
                    if count == 37 {
                        let _ = write!(digits, "{small}");
                    }
                    if count < 37 {
                        small = small * 10 + i128::from(byte - b'0');
                    } else {
                        digits.push(byte as char);
                    }
                    count += usize::from(count > 0 || byte != b'0');
                    scale += i64::from(point);
                }
                b'.' if !point => point = true,
                _ => break,
            }
            at += 1;
        }
        if !seen {
            return Err(invalid());
        }
        let mut exponent = 0i64;
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let text = &rest[at + 1..];
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(invalid());
            }
            exponent = text.parse::<i64>().ok().filter(|e| e.abs() < 1_000_000_000).ok_or_else(overflow)?;
        } else if at != bytes.len() {
            return Err(invalid());
        }
        let scale = scale - exponent;
        // As PostgreSQL does. There may be many digits.
        if scale > MAX_SCALE || count > 0 && count as i64 - scale > MAX_WEIGHT {
            return Err(overflow());
        }
        let mut unscaled = if count <= 37 {
            BigInt::from(small)
        } else {
            digits.parse::<BigInt>().map_err(|_| invalid())?
        };
        if negative {
            unscaled = -unscaled;
        }
        if scale >= 0 {
            Ok(Numeric::finite(unscaled, scale))
        } else if unscaled.is_zero() {
            Ok(Numeric::zero())
        } else {
            Ok(Numeric::finite(unscaled * big_power_of_ten(-scale), 0))
        }
    }

    /// The exact decimal that PostgreSQL makes of a double: its fifteen leading digits.
    pub fn from_f64(value: f64) -> Result<Numeric> {
        Numeric::from_float_text(value, 15)
    }

    /// The exact decimal that PostgreSQL makes of a real: its six leading digits.
    pub fn from_f32(value: f32) -> Result<Numeric> {
        Numeric::from_float_text(f64::from(value), 6)
    }

    fn from_float_text(value: f64, digits: usize) -> Result<Numeric> {
        if value.is_nan() {
            return Ok(Numeric::NaN);
        }
        if value.is_infinite() {
            return Err(SqlError::unsupported("infinite numeric"));
        }
        let text = format!("{:.*e}", digits - 1, value);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        // %g drops trailing zeros.
        let mantissa = match mantissa.contains('.') {
            true => mantissa.trim_end_matches('0').trim_end_matches('.'),
            false => mantissa,
        };
        Numeric::parse(&format!("{mantissa}e{exponent}"))
    }

    /// The nearest double; 22003 when it is too large, or so small that it would be zero.
    pub fn to_f64(&self) -> Result<f64> {
        let Some((unscaled, scale)) = self.parts() else { return Ok(f64::NAN) };
        if let Some(small) = unscaled.to_i64()
            && small.unsigned_abs() < 1 << 53
            && scale <= 22
        {
            // Both operands are exact, so the quotient is correctly rounded.
            return Ok(small as f64 / 10f64.powi(scale as i32));
        }
        let value = self.to_f64_saturating();
        if value.is_infinite() || value == 0.0 && !self.is_zero() {
            return Err(SqlError::new(
                SqlState::OUT_OF_RANGE,
                format!("\"{self}\" is out of range for type double precision"),
            ));
        }
        Ok(value)
    }

    fn to_f64_saturating(&self) -> f64 {
        match self.parts() {
            Some((unscaled, scale)) => format!("{unscaled}e-{scale}").parse().unwrap_or(f64::NAN),
            None => f64::NAN,
        }
    }

    /// Rounded to a whole number that fits; `None` when it is too large. NaN is 0A000, naming the type.
    pub fn to_integer(&self, type_name: &str) -> Result<Option<i128>> {
        if self.is_nan() {
            return Err(SqlError::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("cannot convert NaN to {type_name}"),
            ));
        }
        Ok(self.round(0)?.to_i128_at_scale(0))
    }

    /// Appends the text form.
    pub fn write(&self, out: &mut String) {
        let Some((unscaled, scale)) = self.parts() else {
            out.push_str("NaN");
            return;
        };
        match unscaled.to_i128() {
            Some(small) => write_scaled(out, small, scale as u32),
            None => {
                write_digits(out, unscaled.is_negative(), &unscaled.magnitude().to_string(), scale as usize)
            }
        }
    }
}

/// 22003 for a number that `numeric(precision, scale)` cannot hold.
pub fn field_overflow(precision: u16, scale: u16) -> SqlError {
    let digits = i32::from(precision) - i32::from(scale);
    let bound = if digits == 0 { "1".to_owned() } else { format!("10^{digits}") };
    SqlError::new(SqlState::OUT_OF_RANGE, "numeric field overflow").with_detail(format!(
        "A field with precision {precision}, scale {scale} must round to an absolute value less than {bound}."
    ))
}

/// Appends `unscaled / 10^scale` as PostgreSQL prints it.
pub fn write_scaled(out: &mut String, unscaled: i128, scale: u32) {
    let mut buffer = [0u8; 40];
    let mut at = buffer.len();
    let mut rest = unscaled.unsigned_abs();
    loop {
        // Division of 64-bit numbers is much faster; few numbers need more.
        if let Ok(mut small) = u64::try_from(rest) {
            while small > 0 || at == buffer.len() {
                at -= 1;
                buffer[at] = b'0' + (small % 10) as u8;
                small /= 10;
            }
            break;
        }
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let digits = std::str::from_utf8(&buffer[at..]).expect("digits are ASCII");
    write_digits(out, unscaled < 0, digits, scale as usize);
}

fn write_digits(out: &mut String, negative: bool, digits: &str, scale: usize) {
    if negative {
        out.push('-');
    }
    if scale == 0 {
        out.push_str(digits);
    } else if digits.len() > scale {
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        out.push_str(whole);
        out.push('.');
        out.push_str(fraction);
    } else {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', scale - digits.len()));
        out.push_str(digits);
    }
}

fn check_logarithm(value: &BigInt) -> Result<()> {
    match value.sign() {
        Sign::Plus => Ok(()),
        Sign::NoSign => Err(SqlError::new(SqlState(*b"2201E"), "cannot take logarithm of zero")),
        Sign::Minus => Err(SqlError::new(SqlState(*b"2201E"), "cannot take logarithm of a negative number")),
    }
}

fn divide_at_scale(a: &BigInt, a_scale: i64, b: &BigInt, b_scale: i64, scale: i64) -> BigInt {
    let shift = scale + b_scale - a_scale;
    if shift >= 0 {
        divide_rounded(&(a * big_power_of_ten(shift)), b)
    } else {
        divide_rounded(a, &(b * big_power_of_ten(-shift)))
    }
}

/// Decimal logarithm of the magnitude, to the precision of a double.
fn log10_of(value: &BigInt, scale: i64) -> f64 {
    let digits = decimal_digits(value);
    let kept = digits.min(17);
    let leading = (value.abs() / big_power_of_ten(digits - kept)).to_f64().unwrap_or(1.0);
    leading.log10() + (digits - kept - scale) as f64
}

/// PostgreSQL's estimate of the decimal weight of a logarithm.
fn ln_weight(value: &BigInt, scale: i64) -> i64 {
    let number = Numeric::finite(value.clone(), scale);
    if number >= Numeric::new(9, 1) && number <= Numeric::new(11, 1) {
        let difference = value - big_power_of_ten(scale);
        if difference.is_zero() {
            return 0;
        }
        let (weight, first) = leading_digit(&difference, scale);
        return weight * 4 + i64::from(first.ilog10());
    }
    let log = log10_of(value, scale) * std::f64::consts::LN_10;
    log.abs().log10() as i64
}

/// `ln(value)` as an unscaled number of the given scale.
fn ln_fixed(value: &BigInt, scale: i64, result_scale: i64) -> BigInt {
    let digits = decimal_digits(value);
    let work = result_scale + 15 + (digits - scale).abs().max(1).ilog10() as i64;
    let one = big_power_of_ten(work);
    // value = mantissa * 10^exponent with the mantissa in [0.1, 1): ln(value) = ln(mantissa) + exponent * ln(10).
    let exponent = digits - scale;
    let mantissa = rescale(value, digits, work.max(digits));
    let mantissa = if work < digits { rescale(&mantissa, digits, work) } else { mantissa };
    // Near one the sum of two logarithms would cancel: use the value itself.
    let near_one = (0..=1).contains(&exponent);
    let (x, exponent) =
        if near_one { (rescale(value, scale, work.max(scale)), 0) } else { (mantissa, exponent) };
    let x = if near_one && work < scale { rescale(&x, scale, work) } else { x };
    let mut result = ln_near_one(x, &one);
    if exponent != 0 {
        result += ln_near_one(BigInt::from(10) * &one, &one) * exponent;
    }
    rescale(&result, work, result_scale)
}

/// `ln(x / one) * one` for moderate x, by square roots and the series of the inverse hyperbolic tangent.
fn ln_near_one(mut x: BigInt, one: &BigInt) -> BigInt {
    let extra = big_power_of_ten(15);
    let one = one * &extra;
    x *= &extra;
    let mut doublings = 0u32;
    let (low, high) = (&one * 9 / 10, &one * 11 / 10);
    while x < low || x > high {
        x = (x * &one).sqrt();
        doublings += 1;
    }
    let z = ((&x - &one) * &one) / (&x + &one);
    let square = (&z * &z) / &one;
    let (mut term, mut sum, mut n) = (z.clone(), z, 1u32);
    loop {
        term = (&term * &square) / &one;
        n += 2;
        let addend = &term / n;
        if addend.is_zero() {
            break;
        }
        sum += addend;
    }
    divide_rounded(&((sum * 2) << doublings as usize), &extra)
}

/// `exp(value)` rounded to a scale.
fn exp_at_scale(value: &BigInt, scale: i64, result_scale: i64) -> Result<Numeric> {
    let number = Numeric::finite(value.clone(), scale).to_f64_saturating();
    // PostgreSQL's bounds: what is beyond takes too long.
    if number >= 6000.0 {
        return Err(overflow());
    }
    if number <= -6000.0 {
        return Ok(Numeric::finite(BigInt::zero(), result_scale));
    }
    // Enough digits for the whole part, and a few for what squaring loses.
    let weight = (number * std::f64::consts::LOG10_E).max(0.0) as i64;
    let mut halvings = 0u32;
    let mut reduced = number.abs();
    while reduced > 0.01 {
        reduced /= 2.0;
        halvings += 1;
    }
    let work = result_scale + weight + 12 + i64::from(halvings);
    let one = big_power_of_ten(work);
    let x = rescale(value, scale, work) / (BigInt::from(1) << halvings as usize);
    let (mut term, mut sum, mut n) = (one.clone(), one.clone(), 0u32);
    loop {
        n += 1;
        term = (&term * &x) / (&one * n);
        if term.is_zero() {
            break;
        }
        sum += &term;
    }
    for _ in 0..halvings {
        sum = (&sum * &sum) / &one;
    }
    Numeric::checked(rescale(&sum, work, result_scale), result_scale)
}

/// `base^n` rounded to a scale; `weight` is the result's estimated decimal weight.
fn whole_power(base: &BigInt, base_scale: i64, n: i32, scale: i64, weight: i64) -> Result<Numeric> {
    match n {
        0 => return Ok(Numeric::finite(big_power_of_ten(scale), scale)),
        1 => return Ok(Numeric::finite(rescale(base, base_scale, scale), scale)),
        2 => return Ok(Numeric::finite(rescale(&(base * base), base_scale * 2, scale), scale)),
        _ => {}
    }
    // Square and multiply with a limited number of significant digits.
    let precision = scale + weight.abs() + 20 + i64::from(n.unsigned_abs().ilog2()) * 2;
    let limit = |value: BigInt, scale: i64| {
        let surplus = decimal_digits(&value) - precision;
        if surplus > 0 {
            (divide_rounded(&value, &big_power_of_ten(surplus)), scale - surplus)
        } else {
            (value, scale)
        }
    };
    let (mut factor, mut factor_scale) = (base.clone(), base_scale);
    let (mut result, mut result_scale) = (BigInt::from(1), 0i64);
    let mut rest = n.unsigned_abs();
    while rest > 0 {
        if rest & 1 == 1 {
            (result, result_scale) = limit(&result * &factor, result_scale + factor_scale);
        }
        rest >>= 1;
        if rest > 0 {
            (factor, factor_scale) = limit(&factor * &factor, factor_scale * 2);
        }
    }
    let unscaled = if n < 0 {
        divide_at_scale(&BigInt::from(1), 0, &result, result_scale, scale)
    } else {
        rescale(&result, result_scale, scale)
    };
    Numeric::checked(unscaled, scale)
}

impl std::fmt::Display for Numeric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}

impl From<i64> for Numeric {
    fn from(value: i64) -> Numeric {
        Numeric::new(value, 0)
    }
}

impl From<i128> for Numeric {
    fn from(value: i128) -> Numeric {
        Numeric::new(value, 0)
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Numeric) -> Ordering {
        let (Some((a, a_scale)), Some((b, b_scale))) = (self.parts(), other.parts()) else {
            return self.is_nan().cmp(&other.is_nan());
        };
        if a_scale == b_scale {
            return a.cmp(&b);
        }
        if a.sign() != b.sign() {
            return a.sign().cmp(&b.sign());
        }
        let scale = a_scale.max(b_scale);
        if let (Some(x), Some(y)) = (a.to_i128(), b.to_i128())
            && let (Some(p), Some(q)) =
                (power_of_ten((scale - a_scale) as u32), power_of_ten((scale - b_scale) as u32))
            && let (Some(x), Some(y)) = (x.checked_mul(p), y.checked_mul(q))
        {
            return x.cmp(&y);
        }
        rescale(&a, a_scale, scale).cmp(&rescale(&b, b_scale, scale))
    }
}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Numeric) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Numeric) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Numeric {}

/// Numbers that are equal hash alike whatever their scales.
impl Hash for Numeric {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Some((unscaled, mut scale)) = self.parts() else {
            return u8::MAX.hash(state);
        };
        match unscaled.to_i128() {
            Some(mut small) => {
                while scale > 0 && small % 10 == 0 {
                    small /= 10;
                    scale -= 1;
                }
                (small, scale).hash(state);
            }
            None => {
                let ten = BigInt::from(10);
                let mut rest = unscaled.into_owned();
                while scale > 0 && (&rest % &ten).is_zero() {
                    rest /= &ten;
                    scale -= 1;
                }
                match rest.to_i128() {
                    Some(small) => (small, scale).hash(state),
                    None => (rest, scale).hash(state),
                }
            }
        }
    }
}

/// The form that travels: scale and two's complement bytes; no bytes for NaN.
#[derive(Serialize, Deserialize)]
struct Encoded {
    scale: u32,
    unscaled: Vec<u8>,
}

impl Serialize for Numeric {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let encoded = match self.parts() {
            Some((unscaled, scale)) => {
                Encoded { scale: scale as u32, unscaled: unscaled.to_signed_bytes_le() }
            }
            None => Encoded { scale: 0, unscaled: Vec::new() },
        };
        encoded.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Numeric {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded = Encoded::deserialize(deserializer)?;
        if encoded.unscaled.is_empty() {
            return Ok(Numeric::NaN);
        }
        Ok(Numeric::finite(BigInt::from_signed_bytes_le(&encoded.unscaled), i64::from(encoded.scale)))
    }
}
