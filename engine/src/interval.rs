//! PostgreSQL's interval: months, days and microseconds kept apart, with its input and output in `postgres` style.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::{
    datetime::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND},
    error::{Result, SqlError, SqlState},
};

/// PostgreSQL's interval: its three parts are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// Months (years are 12).
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
    pub microseconds: i64,
}

/// 22008 "interval out of range".
pub fn out_of_range() -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, "interval out of range")
}

impl Interval {
    /// Microseconds with months of 30 days and days of 24 hours: what intervals are compared by.
    pub fn span(&self) -> i128 {
        (i128::from(self.months) * 30 + i128::from(self.days)) * i128::from(MICROS_PER_DAY)
            + i128::from(self.microseconds)
    }

    /// Sum, part by part.
    pub fn checked_add(&self, other: &Interval) -> Result<Interval> {
        Ok(Interval {
            months: self.months.checked_add(other.months).ok_or_else(out_of_range)?,
            days: self.days.checked_add(other.days).ok_or_else(out_of_range)?,
            microseconds: self.microseconds.checked_add(other.microseconds).ok_or_else(out_of_range)?,
        })
    }

    /// The interval with all its signs changed.
    pub fn checked_neg(&self) -> Result<Interval> {
        Ok(Interval {
            months: self.months.checked_neg().ok_or_else(out_of_range)?,
            days: self.days.checked_neg().ok_or_else(out_of_range)?,
            microseconds: self.microseconds.checked_neg().ok_or_else(out_of_range)?,
        })
    }

    /// Product with a factor; fractions of months become days, fractions of days time.
    pub fn multiply(&self, factor: f64) -> Result<Interval> {
        self.scale(|part| part * factor)
    }

    /// Quotient; fractions of months become days, fractions of days time.
    pub fn divide(&self, divisor: f64) -> Result<Interval> {
        if divisor == 0.0 {
            return Err(SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero"));
        }
        self.scale(|part| part / divisor)
    }

    fn scale(&self, apply: impl Fn(f64) -> f64) -> Result<Interval> {
        // The steps and their roundings are those of interval_mul and interval_div.
        let round = |x: f64| (x * 1_000_000.0).round_ties_even() / 1_000_000.0;
        let whole = |x: f64| -> Result<i32> {
            if x.is_nan() || x >= 2147483648.0 || x <= -2147483649.0 {
                return Err(out_of_range());
            }
            Ok(x as i32)
        };
        let months_exact = apply(f64::from(self.months));
        let months = whole(months_exact)?;
        let days_exact = apply(f64::from(self.days));
        let mut days = whole(days_exact)?;
        let month_remainder_days = round((months_exact - f64::from(months)) * 30.0);
        let month_days = month_remainder_days as i32;
        let mut second_remainder = round(
            ((days_exact - f64::from(days)) + (month_remainder_days - f64::from(month_days))) * 86400.0,
        );
        if second_remainder.abs() >= 86400.0 {
            days = days.checked_add((second_remainder / 86400.0) as i32).ok_or_else(out_of_range)?;
            second_remainder -= f64::from((second_remainder / 86400.0) as i32) * 86400.0;
        }
        let days = days.checked_add(month_days).ok_or_else(out_of_range)?;
        let microseconds =
            (apply(self.microseconds as f64) + second_remainder * 1_000_000.0).round_ties_even();
        if !(-9223372036854775808.0..9223372036854775808.0).contains(&microseconds) {
            return Err(out_of_range());
        }
        Ok(Interval { months, days, microseconds: microseconds as i64 })
    }

    /// Turns whole 24 hours of time into days.
    pub fn justify_hours(&self) -> Result<Interval> {
        let mut days =
            i64::from(self.days).checked_add(self.microseconds / MICROS_PER_DAY).ok_or_else(out_of_range)?;
        let mut microseconds = self.microseconds % MICROS_PER_DAY;
        if days > 0 && microseconds < 0 {
            microseconds += MICROS_PER_DAY;
            days -= 1;
        } else if days < 0 && microseconds > 0 {
            microseconds -= MICROS_PER_DAY;
            days += 1;
        }
        Ok(Interval { months: self.months, days: days.try_into().map_err(|_| out_of_range())?, microseconds })
    }

    /// Turns whole 30 days into months.
    pub fn justify_days(&self) -> Result<Interval> {
        let mut months = self.months.checked_add(self.days / 30).ok_or_else(out_of_range)?;
        let mut days = self.days % 30;
        if months > 0 && days < 0 {
            days += 30;
            months -= 1;
        } else if months < 0 && days > 0 {
            days -= 30;
            months += 1;
        }
        Ok(Interval { months, days, ..*self })
    }

    /// Turns whole days of time into days and whole 30 days into months, and gives all parts the same sign.
    pub fn justify_interval(&self) -> Result<Interval> {
        let (mut months, mut days) = (i64::from(self.months), i64::from(self.days));
        let mut microseconds = self.microseconds % MICROS_PER_DAY;
        days += self.microseconds / MICROS_PER_DAY;
        months += days / 30;
        days %= 30;
        if months > 0 && (days < 0 || (days == 0 && microseconds < 0)) {
            days += 30;
            months -= 1;
        } else if months < 0 && (days > 0 || (days == 0 && microseconds > 0)) {
            days -= 30;
            months += 1;
        }
        if days > 0 && microseconds < 0 {
            microseconds += MICROS_PER_DAY;
            days -= 1;
        } else if days < 0 && microseconds > 0 {
            microseconds -= MICROS_PER_DAY;
            days += 1;
        }
        let months = i32::try_from(months).map_err(|_| out_of_range())?;
        Ok(Interval { months, days: days as i32, microseconds })
    }

    /// Appends the text in `postgres` style.
    pub fn write(&self, out: &mut String) {
        let mut empty = true;
        let mut before = false;
        for (value, unit) in [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")] {
            if value != 0 {
                let space = if empty { "" } else { " " };
                let plus = if before && value > 0 { "+" } else { "" };
                let plural = if value == 1 { "" } else { "s" };
                let _ = write!(out, "{space}{plus}{value} {unit}{plural}");
                before = value < 0;
                empty = false;
            }
        }
        if empty || self.microseconds != 0 {
            if !empty {
                out.push(' ');
            }
            if self.microseconds < 0 {
                out.push('-');
            } else if before {
                out.push('+');
            }
            let rest = self.microseconds.unsigned_abs();
            let (hours, rest) = (rest / MICROS_PER_HOUR as u64, rest % MICROS_PER_HOUR as u64);
            let (minutes, rest) = (rest / MICROS_PER_MINUTE as u64, rest % MICROS_PER_MINUTE as u64);
            let (seconds, micros) = (rest / MICROS_PER_SECOND as u64, rest % MICROS_PER_SECOND as u64);
            let _ = write!(out, "{hours:02}:{minutes:02}:{seconds:02}");
            crate::datetime::write_fraction(out, micros as u32);
        }
    }

    /// Reads PostgreSQL's and ISO 8601's forms.
    pub fn parse(text: &str) -> Result<Interval> {
        let invalid = || {
            SqlError::new(
                SqlState::INVALID_DATETIME,
                format!("invalid input syntax for type interval: \"{text}\""),
            )
        };
        let overflow =
            || SqlError::new(SqlState(*b"22015"), format!("interval field value out of range: \"{text}\""));
        let parts = match text.strip_prefix('P') {
            Some(iso) => parse_iso(iso),
            None => parse_traditional(&text.to_ascii_lowercase()),
        };
        parts.ok_or_else(invalid)?.finish().ok_or_else(overflow)
    }
}

/// Parts while reading, wide enough that only the end needs a check.
#[derive(Default)]
struct Parts {
    months: i128,
    days: i128,
    microseconds: i128,
    /// Units that have been given: none may be given twice, and with a clock none of hours or less.
    given: u32,
    /// There has been a clock. What others leave for it, as parts of a day, counts only in front of it.
    has_clock: bool,
    /// A clock with minutes or seconds that there are not.
    overflows: bool,
}

/// The units of a clock, as [`unit_of`] numbers them.
const CLOCK: u32 = 0b1_1111;

/// A number for a unit; `None` when there is none of that name.
fn unit_of(name: &str) -> Option<u32> {
    Some(match name {
        "microsecond" | "microseconds" | "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecon" => 0,
        "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecon" => 1,
        "second" | "seconds" | "s" | "sec" | "secs" => 2,
        "minute" | "minutes" | "m" | "min" | "mins" => 3,
        "hour" | "hours" | "h" | "hr" | "hrs" => 4,
        "day" | "days" | "d" => 5,
        "week" | "weeks" | "w" => 6,
        "month" | "months" | "mon" | "mons" => 7,
        "year" | "years" | "y" | "yr" | "yrs" => 9,
        "decade" | "decades" | "dec" | "decs" => 10,
        "century" | "centuries" | "c" | "cent" => 11,
        "millennium" | "millennia" | "mil" | "mils" => 12,
        _ => return None,
    })
}

/// No interval has as much of any unit, and parts have room for many times as much.
const MAX_FIELD: i128 = 1 << 80;
/// What is more than this has been more than an interval can be.
const MAX_SUM: i128 = 1 << 120;

/// A fraction of so many microseconds; half of one is none.
fn part_of(micros: i64, fraction: f64) -> i128 {
    let part = fraction * micros as f64;
    let whole = part.trunc();
    let rest = part - whole;
    whole as i128 + i128::from(rest > 0.5) - i128::from(rest < -0.5)
}

impl Parts {
    fn finish(self) -> Option<Interval> {
        if self.overflows {
            return None;
        }
        Some(Interval {
            months: self.months.try_into().ok()?,
            days: self.days.try_into().ok()?,
            microseconds: self.microseconds.try_into().ok()?,
        })
    }

    fn add_days(&mut self, number: &Number, factor: i128) {
        self.days += number.whole * factor;
        let fraction = number.fraction * factor as f64;
        self.days += fraction as i128;
        self.microseconds += part_of(MICROS_PER_DAY, fraction.fract());
    }

    fn add_months(&mut self, number: &Number, factor: i128) {
        self.months += number.whole * factor;
        if factor == 1 {
            let days = number.fraction * 30.0;
            self.days += days as i128;
            self.microseconds += part_of(MICROS_PER_DAY, days.fract());
        } else {
            self.months += (number.fraction * factor as f64).round_ties_even() as i128;
        }
    }

    fn add_micros(&mut self, number: &Number, factor: i64) {
        self.microseconds += number.whole * i128::from(factor);
        self.microseconds += part_of(factor, number.fraction);
    }

    /// Notes that units are given; `None` when one of them has been before.
    fn give(&mut self, units: u32) -> Option<()> {
        let is_new = self.given & units == 0;
        self.given |= units;
        is_new.then_some(())
    }

    /// Adds a number of some unit; `None` when there is no such unit, or has been.
    fn add(&mut self, number: &Number, unit: &str) -> Option<()> {
        let unit = unit_of(unit)?;
        // The fraction of a second is of the smaller units.
        let with_fraction = unit == 2 && number.fraction != 0.0;
        self.give(if with_fraction { 0b111 } else { 1 << unit })?;
        let before = self.microseconds;
        match unit {
            0 => self.add_micros(number, 1),
            1 => self.add_micros(number, 1000),
            2 => self.add_micros(number, MICROS_PER_SECOND),
            3 => self.add_micros(number, MICROS_PER_MINUTE),
            4 => self.add_micros(number, MICROS_PER_HOUR),
            5 => self.add_days(number, 1),
            6 => self.add_days(number, 7),
            7 => self.add_months(number, 1),
            9 => self.add_months(number, 12),
            10 => self.add_months(number, 120),
            11 => self.add_months(number, 1200),
            _ => self.add_months(number, 12000),
        }
        if self.has_clock {
            self.microseconds = before;
        }
        // However often a unit comes, the sums stay in their types.
        self.overflows |= [self.months, self.days, self.microseconds].iter().any(|sum| sum.abs() > MAX_SUM);
        [&mut self.months, &mut self.days, &mut self.microseconds]
            .into_iter()
            .for_each(|sum| *sum = (*sum).clamp(-MAX_SUM, MAX_SUM));
        Some(())
    }
}

/// A decimal number: a whole part and a fraction, both with the number's sign.
struct Number {
    negative: bool,
    whole: i128,
    fraction: f64,
    /// It has no digits behind a point.
    is_whole: bool,
}

impl Number {
    /// As [`take`](Number::take), of a number whose sign may be apart.
    fn take_apart(text: &str) -> Option<(Number, &str)> {
        let unsigned = text.strip_prefix(['+', '-']).filter(|rest| rest.starts_with(is_blank));
        let Some(unsigned) = unsigned.map(|rest| rest.trim_start_matches(is_blank)) else {
            return Number::take(text);
        };
        if unsigned.starts_with(['+', '-']) {
            return None;
        }
        let negative = text.starts_with('-');
        let (number, rest) = Number::take(unsigned)?;
        let Number { whole, fraction, is_whole, .. } = number;
        let (whole, fraction) = if negative { (-whole, -fraction) } else { (whole, fraction) };
        Some((Number { negative, whole, fraction, is_whole }, rest))
    }

    /// Takes a number off the front.
    fn take(text: &str) -> Option<(Number, &str)> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let whole = match digits {
            0 => 0,
            _ => rest[..digits].parse::<i128>().unwrap_or(MAX_FIELD).min(MAX_FIELD),
        };
        let mut rest = &rest[digits..];
        let mut fraction_digits = "";
        if let Some(after) = rest.strip_prefix('.') {
            let length = after.bytes().take_while(u8::is_ascii_digit).count();
            fraction_digits = &after[..length];
            rest = &after[length..];
        }
        if digits == 0 && fraction_digits.is_empty() {
            return None;
        }
        let is_whole = fraction_digits.is_empty();
        let fraction = if is_whole { 0.0 } else { format!("0.{fraction_digits}").parse().unwrap_or(0.0) };
        let (whole, fraction) = if negative { (-whole, -fraction) } else { (whole, fraction) };
        Some((Number { negative, whole, fraction, is_whole }, rest))
    }
}

/// `[+-]hh:mm[:ss[.ffffff]]` behind its first number.
fn clock(first: &Number, rest: &str, overflows: &mut bool) -> Option<i128> {
    let mut fields = rest.split(':');
    let minutes_text = fields.next()?;
    let seconds_text = fields.next();
    if fields.next().is_some() || !first.is_whole {
        return None;
    }
    let digits = |text: &str| -> Option<i128> {
        (!text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse().ok())?
    };
    let seconds_of = |text: &str| -> Option<i128> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let micros = crate::datetime::parse_fraction(fraction)?;
        Some(digits(whole)? * i128::from(MICROS_PER_SECOND) + i128::from(micros))
    };
    let hours = first.whole.abs();
    let micros = match seconds_text {
        None if minutes_text.contains('.') => {
            // mm:ss.ff
            *overflows |= hours > 59 || seconds_of(minutes_text)? / i128::from(MICROS_PER_SECOND) > 60;
            return Some(
                (hours * i128::from(MICROS_PER_MINUTE) + seconds_of(minutes_text)?)
                    * if first.negative { -1 } else { 1 },
            );
        }
        None => digits(minutes_text)? * i128::from(MICROS_PER_MINUTE),
        Some(seconds) => {
            let seconds = seconds_of(seconds)?;
            *overflows |= seconds / i128::from(MICROS_PER_SECOND) > 60;
            digits(minutes_text)? * i128::from(MICROS_PER_MINUTE) + seconds
        }
    };
    *overflows |= digits(minutes_text)? > 59;
    let total = hours * i128::from(MICROS_PER_HOUR) + micros;
    Some(if first.negative { -total } else { total })
}

fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{b}'
}

/// What follows blanks and marks that say nothing.
fn skip(text: &str) -> &str {
    text.trim_start_matches(|c| is_blank(c) || c.is_ascii_punctuation() && !matches!(c, '+' | '-' | '.'))
}

fn parse_traditional(text: &str) -> Option<Parts> {
    let mut parts = Parts::default();
    let mut rest = skip(text);
    let mut any = false;
    while !rest.is_empty() {
        if any && rest.strip_prefix("ago").is_some_and(|tail| skip(tail).is_empty()) {
            return Some(Parts {
                months: -parts.months,
                days: -parts.days,
                microseconds: -parts.microseconds,
                ..parts
            });
        }
        let (number, after) = Number::take_apart(rest)?;
        if after.starts_with('/') && !rest.starts_with(['+', '-']) {
            return None;
        }
        any = true;
        if let Some(clock_text) = after.strip_prefix(':') {
            let end = clock_text.find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.'));
            let (fields, tail) = clock_text.split_at(end.unwrap_or(clock_text.len()));
            parts.give(CLOCK)?;
            parts.has_clock = true;
            parts.microseconds += clock(&number, fields, &mut parts.overflows)?;
            rest = skip(tail);
            continue;
        }
        if let Some(months) = after.strip_prefix('-')
            && number.is_whole
        {
            let length = months.bytes().take_while(u8::is_ascii_digit).count();
            let count: i128 = months[..length].parse().ok().filter(|m| *m < 12)?;
            parts.give(1 << 7)?;
            parts.months += number.whole * 12 + if number.negative { -count } else { count };
            let after = &months[length..];
            if !after.is_empty() && !after.starts_with('+') && !after.starts_with(char::is_whitespace) {
                return None;
            }
            rest = skip(after);
            continue;
        }
        let after = skip(after);
        let length = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = &after[..length];
        if unit == "ago" {
            // Only what has a unit.
            return None;
        }
        if unit.is_empty() {
            // A bare number before a clock counts days, else seconds.
            let is_day = Number::take_apart(after).is_some_and(|(_, tail)| tail.starts_with(':'));
            parts.add(&number, if is_day { "day" } else { "second" })?;
            if !is_day && !after.is_empty() {
                return None;
            }
            rest = after;
            continue;
        }
        parts.add(&number, unit)?;
        let after = &after[length..];
        if after.starts_with('/') {
            return None;
        }
        rest = skip(after);
    }
    any.then_some(parts)
}

fn parse_iso(text: &str) -> Option<Parts> {
    let mut parts = Parts::default();
    let mut rest = text;
    let mut in_time = false;
    let mut any = false;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('T') {
            in_time = true;
            rest = after;
            continue;
        }
        let (number, after) = Number::take(rest)?;
        // Here it is the fraction of the double that the number is read as.
        let value: f64 = rest[..rest.len() - after.len()].parse().ok()?;
        let number = Number { fraction: value.fract(), ..number };
        let unit = after.chars().next()?;
        let unit_name = match (unit, in_time) {
            ('Y', false) => "year",
            ('M', false) => "month",
            ('W', false) => "week",
            ('D', false) => "day",
            ('H', true) => "hour",
            ('M', true) => "minute",
            ('S', true) => "second",
            _ => return None,
        };
        // Here units may come twice.
        parts.given = 0;
        parts.add(&number, unit_name)?;
        any = true;
        rest = &after[1..];
    }
    any.then_some(parts)
}
