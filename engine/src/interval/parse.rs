//! Input of intervals: numbers with units and clocks in any order, which are read from right to left, so that
//! a unit is known before its number; or else ISO 8601's forms, which begin with `P`. The rules are those of
//! PostgreSQL's `DecodeInterval` and `DecodeISO8601Interval`.

use super::Interval;
use crate::{
    datetime::{
        Failure, MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND, Unit,
        number::{Clock, fraction_value, take_digits, take_integer},
        split_digits,
        token::{Token, split},
        unit,
    },
    error::{Result, SqlError, SqlState},
};

/// Characters that an interval has room for.
const ROOM: usize = 256;
/// ISO numbers beyond this are out of range.
const MAX_ISO_NUMBER: f64 = 1e15;

type Reading<T> = std::result::Result<T, Failure>;

/// A set of units, none of which may come twice.
type Units = u32;

/// The units of a clock.
const CLOCK: Units = 0b1_1111;
/// The unit of a second and all within it.
const SECOND_AND_PARTS: Units = 0b111;

/// A number: its part before the decimal point and that behind it, both with its sign.
#[derive(Clone, Copy)]
struct Number {
    whole: i64,
    fraction: f64,
}

/// The parts of an interval while it is read.
#[derive(Default)]
struct Parts {
    years: i32,
    months: i32,
    days: i32,
    micros: i64,
}

impl Parts {
    fn add_micros(&mut self, number: Number, unit: i64) -> Option<()> {
        self.micros = number.whole.checked_mul(unit)?.checked_add(self.micros)?;
        self.add_fraction(number.fraction, unit)
    }

    /// Adds a fraction of so many microseconds; half of one is none.
    fn add_fraction(&mut self, fraction: f64, unit: i64) -> Option<()> {
        let part = fraction * unit as f64;
        let rest = part.fract();
        let rounded = part as i64 + i64::from(rest > 0.5) - i64::from(rest < -0.5);
        self.micros = self.micros.checked_add(rounded)?;
        Some(())
    }

    fn add_days(&mut self, number: Number, unit: i32) -> Option<()> {
        let days = i32::try_from(number.whole).ok()?.checked_mul(unit)?;
        self.days = self.days.checked_add(days)?;
        self.add_fraction_of_days(number.fraction, unit)
    }

    fn add_fraction_of_days(&mut self, fraction: f64, unit: i32) -> Option<()> {
        let days = fraction * f64::from(unit);
        self.days = self.days.checked_add(days as i32)?;
        self.add_fraction(days.fract(), MICROS_PER_DAY)
    }

    fn add_months(&mut self, number: Number) -> Option<()> {
        self.months = self.months.checked_add(i32::try_from(number.whole).ok()?)?;
        self.add_fraction_of_days(number.fraction, 30)
    }

    fn add_years(&mut self, number: Number, unit: i32) -> Option<()> {
        let years = i32::try_from(number.whole).ok()?.checked_mul(unit)?;
        self.years = self.years.checked_add(years)?;
        let months = (number.fraction * f64::from(unit) * 12.0).round_ties_even();
        self.months = self.months.checked_add(months as i32)?;
        Some(())
    }

    /// Adds a number of a unit.
    fn add(&mut self, number: Number, unit: Unit) -> Reading<()> {
        let added = match unit {
            Unit::Microsecond => self.add_micros(number, 1),
            Unit::Millisecond => self.add_micros(number, 1000),
            Unit::Second => self.add_micros(number, MICROS_PER_SECOND),
            Unit::Minute => self.add_micros(number, MICROS_PER_MINUTE),
            Unit::Hour => self.add_micros(number, MICROS_PER_HOUR),
            Unit::Day => self.add_days(number, 1),
            Unit::Week => self.add_days(number, 7),
            Unit::Month => self.add_months(number),
            Unit::Year => self.add_years(number, 1),
            Unit::Decade => self.add_years(number, 10),
            Unit::Century => self.add_years(number, 100),
            Unit::Millennium => self.add_years(number, 1000),
            Unit::Quarter => return Err(Failure::Format),
        };
        added.ok_or(Failure::Range)
    }

    fn negate(&mut self) -> Option<()> {
        self.years = self.years.checked_neg()?;
        self.months = self.months.checked_neg()?;
        self.days = self.days.checked_neg()?;
        self.micros = self.micros.checked_neg()?;
        Some(())
    }
}

/// Numbers with units and clocks.
struct Reader {
    parts: Parts,
    given: Units,
    /// The unit of the next number to the left, seconds at the end; none where no number can be.
    unit: Option<Unit>,
    is_ago: bool,
}

impl Reader {
    fn new() -> Reader {
        Reader { parts: Parts::default(), given: 0, unit: Some(Unit::Second), is_ago: false }
    }

    fn give(&mut self, units: Units) -> Reading<()> {
        if self.given & units != 0 {
            return Err(Failure::Format);
        }
        self.given |= units;
        Ok(())
    }

    fn read(mut self, tokens: &[Token]) -> Reading<Parts> {
        for token in tokens.iter().rev() {
            match *token {
                Token::Time(text) => self.clock(Clock::read(text)?.total().ok_or(Failure::Range)?)?,
                Token::Signed(negative, text) => match Clock::read(text).map(|clock| clock.total()) {
                    Ok(Some(micros)) => self.clock(if negative { -micros } else { micros })?,
                    _ => self.number(negative, text)?,
                },
                Token::Date(text) | Token::Number(text) => self.number(false, text)?,
                Token::Word("ago") => (self.is_ago, self.unit) = (true, None),
                Token::Word("timezone") => self.unit = None,
                Token::Word(name) => self.unit = Some(unit(name).ok_or(Failure::Format)?),
                Token::SignedWord(..) => return Err(Failure::Format),
            }
        }
        if self.given == 0 {
            return Err(Failure::Format);
        }
        if self.is_ago {
            self.parts.negate().ok_or(Failure::Range)?;
        }
        Ok(self.parts)
    }

    /// A clock takes the place of all microseconds to its right. A number to its left is one of days.
    fn clock(&mut self, micros: i64) -> Reading<()> {
        self.parts.micros = micros;
        self.unit = Some(Unit::Day);
        self.give(CLOCK)
    }

    /// A number, or years and months with a minus sign between them.
    fn number(&mut self, negative: bool, text: &str) -> Reading<()> {
        let mut unit = self.unit;
        let (whole, rest) = take_digits(negative, text)?;
        let mut number = Number { whole, fraction: 0.0 };
        if let Some(months) = rest.strip_prefix('-') {
            number.whole = years_and_months(negative, whole, months)?;
            unit = Some(Unit::Month);
        } else if !rest.is_empty() {
            let fraction = fraction_value(rest)?;
            number.fraction = if negative { -fraction } else { fraction };
        }
        let unit = unit.ok_or(Failure::Format)?;
        self.parts.add(number, unit)?;
        // To the left of hours are days.
        self.unit = Some(if unit == Unit::Hour { Unit::Day } else { unit });
        self.give(match unit {
            Unit::Second if number.fraction != 0.0 => SECOND_AND_PARTS,
            _ => 1 << unit as u32,
        })
    }
}

/// The months of SQL's `years-months`.
fn years_and_months(negative: bool, years: i64, months: &str) -> Reading<i64> {
    let (months, rest) = take_integer::<i64>(months)?;
    if !(0..12).contains(&months) {
        return Err(Failure::Range);
    }
    if !rest.is_empty() {
        return Err(Failure::Format);
    }
    let months = if negative { -months } else { months };
    years.checked_mul(12).and_then(|years| years.checked_add(months)).ok_or(Failure::Range)
}

/// Takes a number of an ISO interval off the front, which may have an exponent.
fn take_iso_number(text: &str) -> Reading<(Number, &str)> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (whole, rest) = split_digits(unsigned);
    let (fraction, mut rest) = match rest.strip_prefix('.') {
        Some(after) => split_digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(Failure::Format);
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let (digits, after) = split_digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent));
        if !digits.is_empty() {
            rest = after;
        }
    }
    let value: f64 = text[..text.len() - rest.len()].parse().map_err(|_| Failure::Format)?;
    let is_zero = whole.bytes().chain(fraction.bytes()).all(|digit| digit == b'0');
    if !is_zero && !value.is_normal() {
        return Err(Failure::Format);
    }
    if value.abs() > MAX_ISO_NUMBER {
        return Err(Failure::Range);
    }
    Ok((Number { whole: value as i64, fraction: value.fract() }, rest))
}

/// The unit that ISO 8601 has this letter for.
fn designated(letter: Option<char>, in_time: bool) -> Option<Unit> {
    Some(match (letter?, in_time) {
        ('Y', false) => Unit::Year,
        ('M', false) => Unit::Month,
        ('W', false) => Unit::Week,
        ('D', false) => Unit::Day,
        ('H', true) => Unit::Hour,
        ('M', true) => Unit::Minute,
        ('S', true) => Unit::Second,
        _ => return None,
    })
}

/// ISO 8601's forms: with designators, or, for the date and for the time alike, with marks between the
/// numbers or with all of their digits run together.
fn read_iso(text: &str) -> Reading<Parts> {
    let mut rest = text.strip_prefix('P').filter(|rest| !rest.is_empty()).ok_or(Failure::Format)?;
    let mut parts = Parts::default();
    let mut in_time = false;
    let mut has_designators = false;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('T') {
            (in_time, has_designators, rest) = (true, false, after);
            continue;
        }
        let (number, after) = take_iso_number(rest)?;
        if let Some(unit) = designated(after.chars().next(), in_time) {
            parts.add(number, unit)?;
            (has_designators, rest) = (true, &after[1..]);
            continue;
        }
        let is_end = |rest: &str| rest.is_empty() || !in_time && rest.starts_with('T');
        let mark = if in_time { ':' } else { '-' };
        if has_designators || !is_end(after) && !after.starts_with(mark) {
            return Err(Failure::Format);
        }
        let (digits, _) = split_digits(rest.strip_prefix('-').unwrap_or(rest));
        if is_end(after) && digits.len() == if in_time { 6 } else { 8 } {
            parts.add_run_together(number, in_time)?;
            rest = after;
        } else {
            rest = parts.add_marked(number, after, in_time, mark, is_end)?;
        }
    }
    Ok(parts)
}

impl Parts {
    /// Adds `YYYYMMDD` or `hhmmss`. The fraction behind seconds is one of a microsecond, as PostgreSQL has
    /// it.
    fn add_run_together(&mut self, number: Number, in_time: bool) -> Reading<()> {
        let units = if in_time {
            [Unit::Hour, Unit::Minute, Unit::Second]
        } else {
            [Unit::Year, Unit::Month, Unit::Day]
        };
        let Number { whole, fraction } = number;
        for (unit, whole) in units.into_iter().zip([whole / 10_000, whole / 100 % 100, whole % 100]) {
            self.add(Number { whole, fraction: 0.0 }, unit)?;
        }
        self.add_fraction(fraction, if in_time { 1 } else { MICROS_PER_DAY }).ok_or(Failure::Range)
    }

    /// Adds up to three numbers with marks between them, and tells what follows.
    fn add_marked<'a>(
        &mut self,
        first: Number,
        after: &'a str,
        in_time: bool,
        mark: char,
        is_end: impl Fn(&str) -> bool,
    ) -> Reading<&'a str> {
        let units = if in_time {
            [Unit::Hour, Unit::Minute, Unit::Second]
        } else {
            [Unit::Year, Unit::Month, Unit::Day]
        };
        let (mut number, mut rest) = (first, after);
        for (i, unit) in units.into_iter().enumerate() {
            if i > 0 {
                (number, rest) = take_iso_number(rest.strip_prefix(mark).ok_or(Failure::Format)?)?;
            }
            self.add(number, unit)?;
            if is_end(rest) {
                return Ok(rest);
            }
        }
        Err(Failure::Format)
    }
}

impl Interval {
    /// Reads PostgreSQL's and ISO 8601's forms. 22007 for what is none of them, 22015 for a field beyond its
    /// range, 22008 for an interval that is too long.
    pub fn parse(text: &str) -> Result<Interval> {
        let lower = text.to_ascii_lowercase();
        let read = split(&lower, ROOM).and_then(|tokens| Reader::new().read(&tokens));
        let parts = match read {
            Err(Failure::Format) => read_iso(text),
            other => other,
        };
        let parts = parts.map_err(|failure| match failure {
            Failure::Range => {
                SqlError::new(SqlState(*b"22015"), format!("interval field value out of range: \"{text}\""))
            }
            other => other.into_error("interval", text),
        })?;
        let months = i64::from(parts.years) * 12 + i64::from(parts.months);
        Ok(Interval {
            months: months.try_into().map_err(|_| super::out_of_range())?,
            days: parts.days,
            microseconds: parts.micros,
        })
    }
}
