//! The fewest decimal digits that give a binary float back, chosen as PostgreSQL does: of several as short, the nearest, and of
//! two as near, the even one; and none that lies just between two floats, although it would be read as this one.
//!
//! What Rust writes differs in the last two points. Both can only arise for floats whose exact decimal form is short, or large
//! ones, so that most need no second look.

/// Powers of five beyond this are in no number that lies between two floats and has as many digits as one is written with.
const FIVES: u32 = 27;

/// A positive float: `mantissa` times two to the power of `exponent`.
struct Binary {
    mantissa: u64,
    exponent: i32,
    /// Whether the next smaller float is only half as far as the next larger one.
    is_first: bool,
    /// So many digits are never those of two floats.
    digits: usize,
}

/// Whether a float is a decimal number, both positive.
fn is_same((mantissa, exponent): (u64, i32), (digits, power): (u64, i32)) -> bool {
    let odd = |number: u64| (u128::from(number >> number.trailing_zeros()), number.trailing_zeros() as i32);
    if mantissa == 0 || digits == 0 || power.unsigned_abs() > FIVES {
        return false;
    }
    let ((mantissa, twos), (digits, even)) = (odd(mantissa), odd(digits));
    let fives = 5u128.pow(power.unsigned_abs());
    exponent + twos == power + even
        && match power >= 0 {
            true => mantissa == digits * fives,
            false => mantissa * fives == digits,
        }
}

/// The digits of a number like `-1.25e3`, its power of ten if these are a whole number, and how many they are.
fn parts(text: &str) -> Option<(u64, i32, usize)> {
    let (digits, power) = text.trim_start_matches('-').split_once('e')?;
    let digits = digits.bytes().filter(u8::is_ascii_digit);
    let (number, count) =
        digits.fold((0u64, 0), |(number, count), digit| (number * 10 + u64::from(digit - b'0'), count + 1));
    Some((number, power.parse::<i32>().ok()? + 1 - count as i32, count))
}

impl Binary {
    /// Whether a decimal number lies in the middle between this float and a neighbour.
    fn is_between(&self, text: &str) -> bool {
        let Some((digits, power, _)) = parts(text) else { return false };
        let upper = (2 * self.mantissa + 1, self.exponent - 1);
        let lower = match self.is_first {
            true => (4 * self.mantissa - 1, self.exponent - 2),
            false => ((2 * self.mantissa).saturating_sub(1), self.exponent - 1),
        };
        is_same(upper, (digits, power)) || is_same(lower, (digits, power))
    }

    /// The text that PostgreSQL writes in place of Rust's shortest one, if it may be another. `nearest` writes so many digits
    /// behind the first, and `gives_back` tells whether a text is read as this float.
    fn chosen(
        &self,
        shortest: &str,
        nearest: impl Fn(usize) -> String,
        gives_back: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let last = self.exponent + self.mantissa.trailing_zeros() as i32;
        if self.mantissa == 0 || last < -(FIVES as i32) || self.exponent > 5 * FIVES as i32 {
            return None;
        }
        let (_, _, count) = parts(shortest)?;
        // Whole numbers without gaps, and what is written with as many digits as any number may have.
        if self.exponent <= 0 && (last >= 0 || count <= self.digits) {
            return None;
        }
        for digits in count..=17 {
            let near = nearest(digits - 1);
            if gives_back(&near) && !self.is_between(&near) {
                return Some(near);
            }
            if digits == count && !self.is_between(shortest) {
                return None;
            }
        }
        None
    }
}

/// What to write in place of Rust's shortest text of a real, `{:e}`.
pub(crate) fn chosen_f32(value: f32, shortest: &str) -> Option<String> {
    let (fraction, biased) = (value.to_bits() & 0x7f_ffff, value.to_bits() >> 23 & 0xff);
    let binary = Binary {
        mantissa: u64::from(fraction | u32::from(biased > 0) << 23),
        exponent: biased.max(1) as i32 - 150,
        is_first: fraction == 0 && biased > 1,
        digits: 6,
    };
    binary.chosen(shortest, |digits| format!("{value:.digits$e}"), |text| text.parse() == Ok(value))
}

/// What to write in place of Rust's shortest text of a finite double, `{:e}`.
pub(crate) fn chosen_f64(value: f64, shortest: &str) -> Option<String> {
    let (fraction, biased) = (value.to_bits() & ((1 << 52) - 1), value.to_bits() >> 52 & 0x7ff);
    let binary = Binary {
        mantissa: fraction | u64::from(biased > 0) << 52,
        exponent: biased.max(1) as i32 - 1075,
        is_first: fraction == 0 && biased > 1,
        digits: 15,
    };
    binary.chosen(shortest, |digits| format!("{value:.digits$e}"), |text| text.parse() == Ok(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::text::{write_f32, write_f64};

    /// As PostgreSQL 15 writes them.
    #[test]
    fn digits_are_postgresqls() {
        for (value, expected) in [
            ("759383995823467.2", "759383995823467.2"),
            ("772157715593447.25", "772157715593447.2"),
            ("1e23", "9.999999999999999e+22"),
            ("2.66e22", "2.6599999999999998e+22"),
            ("2.9802322387695312e-08", "2.9802322387695312e-08"),
            ("999999999876543.2", "999999999876543.2"),
            ("1e22", "1e+22"),
            ("123456.789", "123456.789"),
            ("0.1", "0.1"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("9007199254740993.0", "9.007199254740992e+15"),
            ("9007199254740995.0", "9.007199254740996e+15"),
            ("2.2250738585072014e-308", "2.2250738585072014e-308"),
            ("4503599627370497.5", "4.503599627370498e+15"),
            ("4503599627370498.5", "4.503599627370498e+15"),
            ("1125899906842624.125", "1.125899906842624e+15"),
            ("1125899906842625.375", "1.1258999068426255e+15"),
            ("72057594037927945.0", "7.205759403792795e+16"),
            ("1152921504606847000.0", "1.152921504606847e+18"),
            ("1e15", "1e+15"),
            ("-1e23", "-9.999999999999999e+22"),
            ("0.5", "0.5"),
            ("2.25", "2.25"),
        ] {
            let mut text = String::new();
            write_f64(&mut text, value.parse().expect("a double"));
            assert_eq!(text, expected);
        }
        for (value, expected) in [
            ("1.5e10", "1.5000001e+10"),
            ("54063714.0", "5.4063712e+07"),
            ("397462784.0", "3.9746278e+08"),
            ("16777217.0", "1.6777216e+07"),
            ("16777218.0", "1.6777218e+07"),
            ("33554434.0", "3.3554432e+07"),
            ("8388608.5", "8.388608e+06"),
            ("0.1", "0.1"),
            ("1e-45", "1e-45"),
            ("3.4028235e38", "3.4028235e+38"),
            ("1.17549435e-38", "1.1754944e-38"),
            ("-54063714.0", "-5.4063712e+07"),
            ("123456.78", "123456.78"),
            ("4194304.25", "4.194304e+06"),
            ("0.015625", "0.015625"),
            ("1e10", "1e+10"),
            ("2e10", "2e+10"),
            ("9.5e9", "9.5e+09"),
        ] {
            let mut text = String::new();
            write_f32(&mut text, value.parse().expect("a real"));
            assert_eq!(text, expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_as_it_was(bits in any::<u64>(), whole in any::<i64>(), twos in 0..60i32) {
            for value in [f64::from_bits(bits), whole as f64, whole as f64 / f64::powi(2.0, twos)] {
                if value.is_finite() {
                    let mut text = String::new();
                    write_f64(&mut text, value);
                    prop_assert_eq!(text.parse(), Ok(value));
                }
                if (value as f32).is_finite() {
                    let mut text = String::new();
                    write_f32(&mut text, value as f32);
                    prop_assert_eq!(text.parse(), Ok(value as f32));
                }
            }
        }
    }
}
