//! Elementary functions of doubles.
//!
//! They are computed from additions, multiplications and the like alone, never by the machine's mathematical library,
//! so that every replica gets the same bits. Exponentials, logarithms and powers are correctly rounded (but for cases
//! that are closer to a tie than 2^-90), which is what PostgreSQL gets from a good library.

use std::f64::consts::{LOG2_E, PI};

use super::call::wrong_arguments;
use super::function::Function;
use crate::error::{Result, SqlError, SqlState};

/// A number as the sum of two doubles, the second below half a unit of the first's last place.
#[derive(Clone, Copy)]
struct Double {
    high: f64,
    low: f64,
}

/// The exact sum of two doubles.
fn two_sum(a: f64, b: f64) -> Double {
    let high = a + b;
    let b_part = high - a;
    Double { high, low: (a - (high - b_part)) + (b - b_part) }
}

/// The exact product of two doubles of moderate size.
fn two_product(a: f64, b: f64) -> Double {
    let split = |x: f64| {
        let shifted = 134_217_729.0 * x;
        let high = shifted - (shifted - x);
        (high, x - high)
    };
    let high = a * b;
    let ((a_high, a_low), (b_high, b_low)) = (split(a), split(b));
    let low = ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low;
    Double { high, low }
}

impl Double {
    fn of(high: f64) -> Double {
        Double { high, low: 0.0 }
    }

    fn add(self, other: Double) -> Double {
        let high = two_sum(self.high, other.high);
        let low = two_sum(self.low, other.low);
        let sum = two_sum(high.high, high.low + low.high);
        two_sum(sum.high, sum.low + low.low)
    }

    fn multiply(self, other: Double) -> Double {
        let product = two_product(self.high, other.high);
        two_sum(product.high, product.low + (self.high * other.low + self.low * other.high))
    }

    fn divide(self, divisor: f64) -> Double {
        let first = self.high / divisor;
        let product = two_product(first, divisor);
        let rest = (self.high - product.high - product.low + self.low) / divisor;
        two_sum(first, rest)
    }

    /// The quotient's nearest double.
    fn quotient(self, divisor: Double) -> f64 {
        let first = self.high / divisor.high;
        let rest = self.add(divisor.multiply(Double::of(first)).negate());
        first + rest.high / divisor.high
    }

    fn negate(self) -> Double {
        Double { high: -self.high, low: -self.low }
    }

    /// Times a power of two.
    fn scale(self, exponent: i32) -> f64 {
        if exponent > -1000 {
            return libm::ldexp(self.high, exponent);
        }
        // The result may be subnormal: the two parts are rounded together.
        let unit = libm::ldexp(1.0, exponent.max(-1074));
        let factor = libm::ldexp(1.0, exponent - exponent.max(-1074));
        (self.high * factor + self.low * factor) * unit
    }
}

/// `ln 2` in parts; the first has so few bits that its multiples are exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_MIDDLE: f64 = 1.908_214_929_270_587_7e-10;
const LN_2_LOW: f64 = 1.161_222_722_936_253_2e-26;

/// `e^x` as a number around one and a power of two.
fn exp_parts(x: Double) -> (Double, i32) {
    let k = (x.high * LOG2_E).round();
    let reduced = two_sum(x.high - k * LN_2_HIGH, x.low)
        .add(two_product(-k, LN_2_MIDDLE))
        .add(Double::of(-k * LN_2_LOW));
    const HALVINGS: i32 = 8;
    let unit = libm::ldexp(1.0, -HALVINGS);
    let r = Double { high: reduced.high * unit, low: reduced.low * unit };
    // The series without its first term, which would swallow digits.
    let (mut term, mut sum) = (r, r);
    for n in 2..=10 {
        term = term.multiply(r).divide(f64::from(n));
        sum = sum.add(term);
    }
    for _ in 0..HALVINGS {
        // (1 + s)^2 = 1 + (2 s + s^2)
        let double = Double { high: sum.high * 2.0, low: sum.low * 2.0 };
        sum = double.add(sum.multiply(sum));
    }
    (Double::of(1.0).add(sum), k as i32)
}

/// `e^x`; infinite or zero when that is out of range.
pub(super) fn exp(x: f64) -> f64 {
    exp_of(Double::of(x))
}

fn exp_of(x: Double) -> f64 {
    if x.high.is_nan() {
        f64::NAN
    } else if x.high > 710.0 {
        f64::INFINITY
    } else if x.high < -746.0 {
        0.0
    } else {
        let (value, exponent) = exp_parts(x);
        value.scale(exponent)
    }
}

/// `ln x` of a positive finite number.
fn ln_of(x: f64) -> Double {
    // Near one and with the exponent apart, so that the correction below is accurate.
    let (mut mantissa, mut exponent) = libm::frexp(x);
    if mantissa < std::f64::consts::FRAC_1_SQRT_2 {
        mantissa *= 2.0;
        exponent -= 1;
    }
    // A step of Newton's method: ln m = y + (m e^-y - 1) - (m e^-y - 1)^2 / 2 + …
    let y = libm::log(mantissa);
    let (inverse, shift) = exp_parts(Double::of(-y));
    let factor = libm::ldexp(1.0, shift);
    let product = inverse.multiply(Double::of(mantissa));
    let product = Double { high: product.high * factor, low: product.low * factor };
    let error = product.add(Double::of(-1.0));
    let correction = error.add(Double::of(-error.high * error.high / 2.0));
    let ln = Double::of(y).add(correction);
    let k = f64::from(exponent);
    two_sum(k * LN_2_HIGH, 0.0).add(two_product(k, LN_2_MIDDLE)).add(Double::of(k * LN_2_LOW)).add(ln)
}

/// Natural logarithm of a number that is not negative.
pub(super) fn ln(x: f64) -> f64 {
    if x.is_nan() || x == f64::INFINITY {
        return x;
    }
    let ln = ln_of(x);
    ln.high + ln.low
}

/// Decimal logarithm of a number that is not negative, put together as the GNU C library does it: not always the nearest
/// double, but PostgreSQL's.
pub(super) fn log10(x: f64) -> f64 {
    if x.is_nan() || x == f64::INFINITY {
        return x;
    }
    let (mut mantissa, mut exponent) = libm::frexp(x);
    if exponent > 0 {
        mantissa *= 2.0;
        exponent -= 1;
    }
    let exponent = f64::from(exponent);
    let low = exponent * 3.694_239_077_158_931e-13 + std::f64::consts::LOG10_E * ln(mantissa);
    low + exponent * 3.010_299_956_636_117_7e-1
}

/// `x^y` as C has it.
pub(super) fn power(x: f64, y: f64) -> f64 {
    let magnitude = x.abs();
    let plain = x.is_finite() && y.is_finite() && x != 0.0 && y != 0.0 && magnitude != 1.0;
    if !plain {
        return libm::pow(x, y);
    }
    let odd = y.abs() < 9_007_199_254_740_992.0 && (y / 2.0).fract() != 0.0;
    let log = ln_of(magnitude);
    let product = if y.abs() < 1e100 && y.abs() > 1e-100 {
        two_product(log.high, y).add(Double::of(log.low * y))
    } else {
        Double::of(log.high * y)
    };
    let result = exp_of(product);
    if x < 0.0 && odd { -result } else { result }
}

/// Cube root, by the approximation that the GNU C library uses: not the nearest double, but PostgreSQL's.
pub(super) fn cube_root(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x + x;
    }
    const CUBE_ROOT_2: f64 = 1.259_921_049_894_873_2;
    const CUBE_ROOT_4: f64 = 1.587_401_051_968_199_6;
    const FACTORS: [f64; 5] = [1.0 / CUBE_ROOT_4, 1.0 / CUBE_ROOT_2, 1.0, CUBE_ROOT_2, CUBE_ROOT_4];
    let (mantissa, exponent) = libm::frexp(x.abs());
    // An approximation by a polynomial, and one step that triples its digits.
    const COEFFICIENTS: [f64; 7] = [
        0.14526389938548637,
        0.7849323449766392,
        1.8346927748361308,
        2.4469312256353444,
        2.114994941673713,
        1.508191937815849,
        0.35489576504391984,
    ];
    let m = mantissa;
    let [c6, c5, c4, c3, c2, c1, c0] = COEFFICIENTS;
    let u = (((((c5 - c6 * m) * m - c4) * m + c3) * m - c2) * m + c1) * m + c0;
    let cube = u * u * u;
    let root = u * (cube + 2.0 * m) / (2.0 * cube + m) * FACTORS[(2 + exponent % 3) as usize];
    libm::ldexp(if x > 0.0 { root } else { -root }, exponent / 3)
}

/// `pi / 2` in parts; all but the last have so few bits that their multiples are exact.
const HALF_PI: [f64; 4] =
    [1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32];
/// Beyond this the multiples are not exact.
const MAX_REDUCED: f64 = 1_000_000.0;

/// Sine and cosine.
fn sine_and_cosine(x: f64) -> (Double, Double) {
    let k = (x * std::f64::consts::FRAC_2_PI).round();
    let r = HALF_PI.iter().fold(Double::of(x), |rest, part| rest.add(two_product(-k, *part)));
    let square = r.multiply(r).negate();
    let series = |first: Double, from: i32| {
        let (mut term, mut sum) = (first, first);
        for n in 0..13 {
            let m = f64::from(from + 2 * n);
            term = term.multiply(square).divide((m + 1.0) * (m + 2.0));
            sum = sum.add(term);
        }
        sum
    };
    let (sine, cosine) = (series(r, 1), series(Double::of(1.0), 0));
    match k.rem_euclid(4.0) as u8 {
        0 => (sine, cosine),
        1 => (cosine, sine.negate()),
        2 => (sine.negate(), cosine.negate()),
        _ => (cosine.negate(), sine),
    }
}

fn sine(x: f64) -> f64 {
    // A sine of next to nothing keeps its argument's sign, of zero too.
    if x.abs() > MAX_REDUCED || x.abs() < 1e-8 { libm::sin(x) } else { sine_and_cosine(x).0.high }
}

fn cosine(x: f64) -> f64 {
    if x.abs() > MAX_REDUCED { libm::cos(x) } else { sine_and_cosine(x).1.high }
}

fn tangent(x: f64) -> f64 {
    if x.abs() > MAX_REDUCED || x.abs() < 1e-8 {
        return libm::tan(x);
    }
    let (sine, cosine) = sine_and_cosine(x);
    sine.quotient(cosine)
}

/// The angle of a point; a step of Newton's method corrects the last digit.
pub(super) fn angle(y: f64, x: f64) -> f64 {
    let angle = libm::atan2(y, x);
    let moderate = |value: f64| (1e-100..1e100).contains(&value.abs());
    if !moderate(y) || !moderate(x) || angle.abs() < 1e-8 {
        return angle;
    }
    let (sine, cosine) = sine_and_cosine(angle);
    let (x, y) = (Double::of(x), Double::of(y));
    let error = y.multiply(cosine).add(x.multiply(sine).negate());
    angle + error.high / x.multiply(cosine).add(y.multiply(sine)).high
}

fn arc_sine(x: f64) -> f64 {
    let angle = libm::asin(x);
    if !(1e-8..0.9999).contains(&x.abs()) {
        return angle;
    }
    let (sine, cosine) = sine_and_cosine(angle);
    angle + Double::of(x).add(sine.negate()).high / cosine.high
}

fn arc_cosine(x: f64) -> f64 {
    let angle = libm::acos(x);
    if !(1e-8..0.9999).contains(&x.abs()) {
        return angle;
    }
    let (sine, cosine) = sine_and_cosine(angle);
    angle + cosine.add(Double::of(-x)).high / sine.high
}

/// `e^x` and `e^-x`, for arguments of moderate size.
fn exponentials(x: f64) -> (Double, Double) {
    let of = |x: f64| {
        let (value, exponent) = exp_parts(Double::of(x));
        let factor = libm::ldexp(1.0, exponent);
        Double { high: value.high * factor, low: value.low * factor }
    };
    (of(x), of(-x))
}

fn hyperbolic(function: Function, x: f64) -> f64 {
    if x.abs() > 300.0 || x.abs() < 1e-3 {
        return match function {
            Function::Sinh => libm::sinh(x),
            Function::Cosh => libm::cosh(x),
            _ => libm::tanh(x),
        };
    }
    let (grown, shrunk) = exponentials(x);
    let (sum, difference) = (grown.add(shrunk), grown.add(shrunk.negate()));
    match function {
        Function::Sinh => difference.high / 2.0,
        Function::Cosh => sum.high / 2.0,
        _ => difference.quotient(sum),
    }
}

fn out_of_domain() -> SqlError {
    SqlError::new(SqlState::OUT_OF_RANGE, "input is out of range")
}

/// Trigonometric and hyperbolic functions of one argument.
pub(super) fn trigonometric(function: Function, x: f64) -> Result<f64> {
    use Function as F;
    if x.is_nan() {
        return Ok(f64::NAN);
    }
    let finite = || if x.is_infinite() { Err(out_of_domain()) } else { Ok(x) };
    let unit = || if (-1.0..=1.0).contains(&x) { Ok(x) } else { Err(out_of_domain()) };
    Ok(match function {
        F::Sin => sine(finite()?),
        F::Cos => cosine(finite()?),
        F::Tan => tangent(finite()?),
        F::Cot => 1.0 / tangent(finite()?),
        F::Asin => arc_sine(unit()?),
        F::Acos => arc_cosine(unit()?),
        F::Atan => angle(x, 1.0),
        // Beyond the range the first two are infinite, as PostgreSQL has it.
        F::Sinh | F::Cosh | F::Tanh => hyperbolic(function, x),
        F::Asinh => libm::asinh(x),
        F::Acosh if x < 1.0 => return Err(out_of_domain()),
        F::Acosh => libm::acosh(x),
        F::Atanh if !(-1.0..=1.0).contains(&x) => return Err(out_of_domain()),
        F::Atanh if x.abs() == 1.0 => f64::INFINITY.copysign(x),
        F::Atanh => libm::atanh(x),
        F::SinDegrees => sin_degrees(finite()?),
        F::CosDegrees => cos_degrees(finite()?),
        F::TanDegrees => tan_degrees(finite()?),
        F::CotDegrees => cot_degrees(finite()?),
        F::AsinDegrees => asin_degrees(unit()?),
        F::AcosDegrees => acos_degrees(unit()?),
        F::AtanDegrees => angle(x, 1.0) / std::f64::consts::FRAC_PI_4 * 45.0,
        _ => return Err(wrong_arguments(function)),
    })
}

/// `atan2d`
pub(super) fn atan2_degrees(y: f64, x: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { angle(y, x) / std::f64::consts::FRAC_PI_4 * 45.0 }
}

const RADIANS_PER_DEGREE: f64 = PI / 180.0;

// The functions of degrees give exact results where there are any: each is scaled by its value at 30, 45 or 60 degrees.

fn sin_0_to_30(x: f64) -> f64 {
    sine(x * RADIANS_PER_DEGREE) / sine(30.0 * RADIANS_PER_DEGREE) / 2.0
}

fn cos_0_to_60(x: f64) -> f64 {
    let one_minus_cos = 1.0 - cosine(x * RADIANS_PER_DEGREE);
    1.0 - (one_minus_cos / (1.0 - cosine(60.0 * RADIANS_PER_DEGREE))) / 2.0
}

fn sin_quadrant(x: f64) -> f64 {
    if x <= 30.0 { sin_0_to_30(x) } else { cos_0_to_60(90.0 - x) }
}

fn cos_quadrant(x: f64) -> f64 {
    if x <= 60.0 { cos_0_to_60(x) } else { sin_0_to_30(90.0 - x) }
}

fn sin_degrees(x: f64) -> f64 {
    let mut x = x % 360.0;
    let mut sign = 1.0;
    if x < 0.0 {
        (x, sign) = (-x, -sign);
    }
    if x > 180.0 {
        (x, sign) = (360.0 - x, -sign);
    }
    if x > 90.0 {
        x = 180.0 - x;
    }
    sign * sin_quadrant(x)
}

fn cos_degrees(x: f64) -> f64 {
    let mut x = (x % 360.0).abs();
    let mut sign = 1.0;
    if x > 180.0 {
        x = 360.0 - x;
    }
    if x > 90.0 {
        (x, sign) = (180.0 - x, -sign);
    }
    sign * cos_quadrant(x)
}

/// The angle in the first quadrant whose tangent is that of `x`, and its sign.
fn tangent_quadrant(x: f64) -> (f64, f64) {
    let mut x = x % 360.0;
    let mut sign = 1.0;
    if x < 0.0 {
        (x, sign) = (-x, -sign);
    }
    if x > 180.0 {
        (x, sign) = (360.0 - x, -sign);
    }
    if x > 90.0 {
        (x, sign) = (180.0 - x, -sign);
    }
    (x, sign)
}

fn tan_degrees(x: f64) -> f64 {
    let (x, sign) = tangent_quadrant(x);
    let result = sign * ((sin_quadrant(x) / cos_quadrant(x)) / (sin_quadrant(45.0) / cos_quadrant(45.0)));
    // No minus zero.
    if result == 0.0 { 0.0 } else { result }
}

fn cot_degrees(x: f64) -> f64 {
    let (x, sign) = tangent_quadrant(x);
    let result = sign * ((cos_quadrant(x) / sin_quadrant(x)) / (cos_quadrant(45.0) / sin_quadrant(45.0)));
    if result == 0.0 { 0.0 } else { result }
}

fn asin_quadrant(x: f64) -> f64 {
    if x <= 0.5 { arc_sine(x) / arc_sine(0.5) * 30.0 } else { 90.0 - arc_cosine(x) / arc_cosine(0.5) * 60.0 }
}

fn acos_quadrant(x: f64) -> f64 {
    if x <= 0.5 { 90.0 - arc_sine(x) / arc_sine(0.5) * 30.0 } else { arc_cosine(x) / arc_cosine(0.5) * 60.0 }
}

fn asin_degrees(x: f64) -> f64 {
    if x >= 0.0 { asin_quadrant(x) } else { -asin_quadrant(-x) }
}

fn acos_degrees(x: f64) -> f64 {
    if x >= 0.0 { acos_quadrant(x) } else { 90.0 + asin_quadrant(-x) }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LN_2;

    use bigdecimal::BigDecimal;

    use super::*;
    use crate::numeric::Numeric;

    #[test]
    fn exponentials_and_logarithms_are_correctly_rounded() {
        // The exact numeric functions have more digits than a double.
        let exact = |x: f64| {
            let text = BigDecimal::try_from(x).expect("finite").to_plain_string();
            Numeric::parse(&text).and_then(|n| n.round(400)).expect("a number")
        };
        let mut x = 0.000_123f64;
        while x < 600.0 {
            for value in [x, -x] {
                let wanted: f64 =
                    exact(value).exp().expect("in range").to_string().parse().expect("a number");
                assert_eq!(exp(value), wanted, "exp({value:e})");
            }
            let wanted: f64 = exact(x).ln().expect("in range").to_string().parse().expect("a number");
            assert_eq!(ln(x), wanted, "ln({x:e})");
            x *= 1.37;
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(power(2.0, 10.0), 1024.0);
        assert_eq!(power(10.0, -3.0), 0.001);
        assert_eq!(power(-3.0, 3.0), -27.0);
        assert_eq!(log10(1000.0), 3.0);
        assert_eq!(LN_2_HIGH + LN_2_MIDDLE, LN_2);
    }
}
