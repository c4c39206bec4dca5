//! Numbers within tokens, read as C's `strtol` and `strtod` read them: what is no digit ends a number, and
//! there may be no digits at all.

use super::Failure;
use crate::datetime::{MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND, parse_fraction, split_digits};

/// The hours of displacements of zones stay below this.
const DISPLACED_HOURS: i32 = 16;

/// Takes digits, whose sign has been read, off the front.
pub(crate) fn take_digits(negative: bool, text: &str) -> Result<(i64, &str), Failure> {
    let (digits, rest) = split_digits(text);
    let sign = if negative { -1 } else { 1 };
    let mut value = 0i64;
    for digit in digits.bytes() {
        let digit = sign * i64::from(digit - b'0');
        value = value.checked_mul(10).and_then(|tens| tens.checked_add(digit)).ok_or(Failure::Range)?;
    }
    Ok((value, rest))
}

/// Takes an integer, perhaps behind blanks and with a sign, off the front; zero when there is none.
pub(crate) fn take_integer<T: TryFrom<i64>>(text: &str) -> Result<(T, &str), Failure> {
    let number = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
    let (value, mut rest) = take_digits(number.starts_with('-'), unsigned)?;
    if rest.len() == unsigned.len() {
        rest = text;
    }
    Ok((T::try_from(value).map_err(|_| Failure::Range)?, rest))
}

/// A run of digits as a number of 32 bits, whose higher bits are lost as they are in PostgreSQL.
pub(super) fn digits_value(text: &str) -> i32 {
    let (digits, _) = split_digits(text);
    digits.bytes().fold(0i64, |sum, b| sum.saturating_mul(10).saturating_add(i64::from(b - b'0'))) as i32
}

/// The microseconds of `.123`, which is all there is.
pub(super) fn fraction_micros(text: &str) -> Result<i32, Failure> {
    let digits = text.strip_prefix('.').ok_or(Failure::Format)?;
    parse_fraction(digits).map(|micros| micros as i32).ok_or(Failure::Format)
}

/// The value of `.123`, which is all there is.
pub(crate) fn fraction_value(text: &str) -> Result<f64, Failure> {
    let digits = text.strip_prefix('.').ok_or(Failure::Format)?;
    if digits.is_empty() {
        return Ok(0.0);
    }
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Failure::Format);
    }
    text.parse().map_err(|_| Failure::Format)
}

/// Hours, minutes, seconds and microseconds of a token with colons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clock {
    /// Hours, as many as were written.
    pub hour: i64,
    /// Minutes below 60.
    pub minute: i32,
    /// Seconds, of which there may be 60.
    pub second: i32,
    /// Microseconds; a million when a fraction was rounded to it.
    pub micros: i32,
}

impl Clock {
    /// `hh:mm[:ss[.ffffff]]`, or `mm:ss.ffffff`. What is left out at the end is zero.
    pub(crate) fn read(text: &str) -> Result<Clock, Failure> {
        let (hour, rest) = take_integer::<i64>(text)?;
        let rest = rest.strip_prefix(':').ok_or(Failure::Format)?;
        let (minute, rest) = take_integer::<i32>(rest)?;
        let clock = if let Some(seconds) = rest.strip_prefix(':') {
            let (second, rest) = take_integer::<i32>(seconds)?;
            let micros = if rest.is_empty() { 0 } else { fraction_micros(rest)? };
            Clock { hour, minute, second, micros }
        } else if rest.is_empty() {
            Clock { hour, minute, second: 0, micros: 0 }
        } else {
            let micros = fraction_micros(rest)?;
            let minutes = i32::try_from(hour).map_err(|_| Failure::Range)?;
            Clock { hour: 0, minute: minutes, second: minute, micros }
        };
        let is_valid = clock.hour >= 0 && (0..60).contains(&clock.minute) && (0..=60).contains(&clock.second);
        if is_valid { Ok(clock) } else { Err(Failure::Range) }
    }

    /// All of it in microseconds.
    pub(crate) fn total(&self) -> Option<i64> {
        let rest = i64::from(self.minute) * MICROS_PER_MINUTE
            + i64::from(self.second) * MICROS_PER_SECOND
            + i64::from(self.micros);
        self.hour.checked_mul(MICROS_PER_HOUR)?.checked_add(rest)
    }
}

/// A zone's displacement `hh[[:]mm[:ss]]` behind its sign, in seconds.
pub(super) fn displacement(text: &str) -> Result<i32, Failure> {
    let field = |text| take_integer::<i32>(text).map_err(|_| Failure::Displacement);
    let (mut hour, mut rest) = field(text)?;
    let (mut minute, mut second) = (0, 0);
    if let Some(minutes) = rest.strip_prefix(':') {
        (minute, rest) = field(minutes)?;
        if let Some(seconds) = rest.strip_prefix(':') {
            (second, rest) = field(seconds)?;
        }
    } else if rest.is_empty() && text.len() > 2 {
        (hour, minute) = (hour / 100, hour % 100);
    }
    let is_valid =
        (0..DISPLACED_HOURS).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
    match rest {
        _ if !is_valid => Err(Failure::Displacement),
        "" => Ok((hour * 60 + minute) * 60 + second),
        _ => Err(Failure::Format),
    }
}

/// A zone's displacement with its sign, in seconds east of Greenwich.
pub(crate) fn signed_displacement(text: &str) -> Result<i32, Failure> {
    match text.strip_prefix('-') {
        Some(west) => Ok(-displacement(west)?),
        None => displacement(text.strip_prefix('+').ok_or(Failure::Format)?),
    }
}
