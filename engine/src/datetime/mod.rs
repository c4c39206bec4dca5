//! Dates and times: the calendar, output in ISO style, truncation, fields and arithmetic.
//!
//! The proleptic Gregorian calendar as in PostgreSQL. Time zones come from the bundled database of `chrono-tz`, never
//! from the machine. Timestamps count microseconds since 1970, so the last of them lie in the year 294247, about thirty
//! years before PostgreSQL's.

use std::fmt::Write as _;

use crate::{
    error::{Result, SqlError, SqlState},
    interval::Interval,
    numeric::Numeric,
};

mod field;
mod parse;
mod zone;

pub(crate) use field::{Unit, unit};
pub use field::{age, extract, truncate_interval, truncate_timestamp, truncate_timestamptz};
pub(crate) use parse::{Failure, number, token};
pub use parse::{asks_for_now, parse_date, parse_time, parse_timestamp, parse_timestamptz};
pub use zone::Zone;

/// Microseconds in a second.
pub const MICROS_PER_SECOND: i64 = 1_000_000;
/// Microseconds in a minute.
pub const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
/// Microseconds in an hour.
pub const MICROS_PER_HOUR: i64 = 60 * MICROS_PER_MINUTE;
/// Microseconds in a day.
pub const MICROS_PER_DAY: i64 = 24 * MICROS_PER_HOUR;

/// Days from 1970-01-01 to the first date, 4714-11-24 BC.
const FIRST_DAY: i64 = -2_440_588;
/// Days from 1970-01-01 to the day after the last date, 5874897-12-31.
const END_DAY: i64 = 2_145_042_906;
/// `infinity` of dates.
pub const DATE_INFINITY: i32 = i32::MAX;
/// `-infinity` of dates.
pub const DATE_NEGATIVE_INFINITY: i32 = i32::MIN;
/// `infinity` of timestamps.
pub const TIMESTAMP_INFINITY: i64 = i64::MAX;
/// `-infinity` of timestamps.
pub const TIMESTAMP_NEGATIVE_INFINITY: i64 = i64::MIN;

/// 22008 "timestamp out of range".
pub fn timestamp_out_of_range() -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, "timestamp out of range")
}

/// 22008 "date out of range".
pub fn date_out_of_range() -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, "date out of range")
}

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar; the year before 1 is 0.
pub fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month = i64::from(month);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
pub fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_index + 2) / 5 + 1) as u32;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Whether a year has 366 days.
pub fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Number of days of a month.
pub fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        2 => 28 + u32::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A date from its number of days, when PostgreSQL has that date.
pub fn checked_date(days: i64) -> Result<i32> {
    if !(FIRST_DAY..END_DAY).contains(&days) {
        return Err(date_out_of_range());
    }
    Ok(days as i32)
}

/// A timestamp from microseconds, when it is within range.
pub fn checked_timestamp(micros: i128) -> Result<i64> {
    let first = i128::from(FIRST_DAY) * i128::from(MICROS_PER_DAY);
    if micros < first || micros >= i128::from(i64::MAX) {
        return Err(timestamp_out_of_range());
    }
    Ok(micros as i64)
}

/// Whether a timestamp is finite.
pub fn is_finite(micros: i64) -> bool {
    micros != TIMESTAMP_INFINITY && micros != TIMESTAMP_NEGATIVE_INFINITY
}

/// A date's midnight as a timestamp.
pub fn date_to_timestamp(days: i32) -> Result<i64> {
    match days {
        DATE_INFINITY => Ok(TIMESTAMP_INFINITY),
        DATE_NEGATIVE_INFINITY => Ok(TIMESTAMP_NEGATIVE_INFINITY),
        _ => checked_timestamp(i128::from(days) * i128::from(MICROS_PER_DAY))
            .map_err(|_| SqlError::new(SqlState::DATETIME_OVERFLOW, "date out of range for timestamp")),
    }
}

/// A timestamp's date.
pub fn timestamp_to_date(micros: i64) -> i32 {
    match micros {
        TIMESTAMP_INFINITY => DATE_INFINITY,
        TIMESTAMP_NEGATIVE_INFINITY => DATE_NEGATIVE_INFINITY,
        _ => micros.div_euclid(MICROS_PER_DAY) as i32,
    }
}

/// A timestamp plus an interval: months first (clamped to the month's last day), then days, then time.
pub fn add_interval(micros: i64, interval: &Interval) -> Result<i64> {
    if !is_finite(micros) {
        return Ok(micros);
    }
    let mut days = micros.div_euclid(MICROS_PER_DAY);
    let time = micros.rem_euclid(MICROS_PER_DAY);
    days = add_months(days, interval.months)? + i64::from(interval.days);
    checked_timestamp(
        i128::from(days) * i128::from(MICROS_PER_DAY) + i128::from(time) + i128::from(interval.microseconds),
    )
}

fn add_months(days: i64, months: i32) -> Result<i64> {
    if months == 0 {
        return Ok(days);
    }
    let (year, month, day) = civil_from_days(days);
    let total = year * 12 + i64::from(month) - 1 + i64::from(months);
    let (year, month) = (total.div_euclid(12), total.rem_euclid(12) as u32 + 1);
    Ok(days_from_civil(year, month, day.min(days_in_month(year, month))))
}

/// A timestamptz plus an interval: months and days move the local clock of the zone, time is absolute.
pub fn add_interval_in_zone(micros: i64, interval: &Interval, zone: &Zone) -> Result<i64> {
    if !is_finite(micros) {
        return Ok(micros);
    }
    let mut micros = micros;
    if interval.months != 0 || interval.days != 0 {
        let calendar = Interval { microseconds: 0, ..*interval };
        micros = zone.to_utc(add_interval(zone.to_local(micros)?, &calendar)?)?;
    }
    checked_timestamp(i128::from(micros) + i128::from(interval.microseconds))
}

/// The difference of two timestamps in days and time.
pub fn subtract_timestamps(a: i64, b: i64) -> Result<Interval> {
    if !is_finite(a) || !is_finite(b) {
        return Err(SqlError::new(SqlState::DATETIME_OVERFLOW, "cannot subtract infinite timestamps"));
    }
    let microseconds = a.checked_sub(b).ok_or_else(crate::interval::out_of_range)?;
    Interval { months: 0, days: 0, microseconds }.justify_hours()
}

/// Appends `.123` for 123000 microseconds, nothing for none.
pub fn write_fraction(out: &mut String, micros: u32) {
    if micros == 0 {
        return;
    }
    let mut digits = [b'0'; 6];
    let mut rest = micros;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let text = std::str::from_utf8(&digits).expect("digits are ASCII");
    out.push('.');
    out.push_str(text.trim_end_matches('0'));
}

/// Splits the digits off the front.
#[inline]
pub(crate) fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Microseconds of the digits behind a decimal point, rounded; `None` when they are no digits.
pub(crate) fn parse_fraction(digits: &str) -> Option<i64> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut micros = 0i64;
    for i in 0..6 {
        micros = micros * 10 + digits.as_bytes().get(i).map_or(0, |b| i64::from(b - b'0'));
    }
    if digits.len() > 6 {
        let value: f64 = format!("0.{digits}").parse().ok()?;
        micros = (value * 1_000_000.0).round_ties_even() as i64;
    }
    Some(micros)
}

/// Appends a number below 100 in two digits.
fn push_two(out: &mut String, value: u32) {
    out.push((b'0' + (value / 10) as u8) as char);
    out.push((b'0' + (value % 10) as u8) as char);
}

/// Appends the date; returns whether it is before Christ, which the caller writes at the end.
fn write_civil(out: &mut String, days: i64) -> bool {
    let (year, month, day) = civil_from_days(days);
    let before_christ = year <= 0;
    let year = if before_christ { 1 - year } else { year };
    if year < 10_000 {
        push_two(out, (year / 100) as u32);
        push_two(out, (year % 100) as u32);
    } else {
        let _ = write!(out, "{year}");
    }
    out.push('-');
    push_two(out, month);
    out.push('-');
    push_two(out, day);
    before_christ
}

/// Appends a date in ISO style.
pub fn write_date(out: &mut String, days: i32) {
    match days {
        DATE_INFINITY => out.push_str("infinity"),
        DATE_NEGATIVE_INFINITY => out.push_str("-infinity"),
        _ => {
            if write_civil(out, i64::from(days)) {
                out.push_str(" BC");
            }
        }
    }
}

/// Appends a time of day.
pub fn write_time(out: &mut String, micros: i64) {
    push_two(out, (micros / MICROS_PER_HOUR) as u32);
    out.push(':');
    push_two(out, (micros / MICROS_PER_MINUTE % 60) as u32);
    out.push(':');
    push_two(out, (micros / MICROS_PER_SECOND % 60) as u32);
    write_fraction(out, (micros % MICROS_PER_SECOND) as u32);
}

fn write_infinite(out: &mut String, micros: i64) -> bool {
    match micros {
        TIMESTAMP_INFINITY => out.push_str("infinity"),
        TIMESTAMP_NEGATIVE_INFINITY => out.push_str("-infinity"),
        _ => return false,
    }
    true
}

/// Appends a timestamp in ISO style.
pub fn write_timestamp(out: &mut String, micros: i64) {
    if write_infinite(out, micros) {
        return;
    }
    let before_christ = write_civil(out, micros.div_euclid(MICROS_PER_DAY));
    out.push(' ');
    write_time(out, micros.rem_euclid(MICROS_PER_DAY));
    if before_christ {
        out.push_str(" BC");
    }
}

/// Appends a timestamptz in ISO style, in the zone's local time with its offset.
pub fn write_timestamptz(out: &mut String, micros: i64, zone: &Zone) {
    if write_infinite(out, micros) {
        return;
    }
    let offset = zone.offset_at_utc(micros);
    let local = i128::from(micros) + i128::from(offset) * i128::from(MICROS_PER_SECOND);
    let day = i128::from(MICROS_PER_DAY);
    let before_christ = write_civil(out, local.div_euclid(day) as i64);
    out.push(' ');
    write_time(out, local.rem_euclid(day) as i64);
    out.push(if offset < 0 { '-' } else { '+' });
    let seconds = offset.unsigned_abs();
    match seconds / 3600 {
        // POSIX zones may be a week from Greenwich.
        hours @ 100.. => {
            let _ = write!(out, "{hours}");
        }
        hours => push_two(out, hours),
    }
    if !seconds.is_multiple_of(3600) {
        out.push(':');
        push_two(out, seconds / 60 % 60);
        if !seconds.is_multiple_of(60) {
            out.push(':');
            push_two(out, seconds % 60);
        }
    }
    if before_christ {
        out.push_str(" BC");
    }
}

/// A number of microseconds as numeric seconds with six digits.
fn seconds(micros: i128) -> Numeric {
    Numeric::new(micros, 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_as_many_digits_of_hours_as_they_take() {
        let written = |name: &str| {
            let mut out = String::new();
            write_timestamptz(&mut out, 0, &Zone::parse(name).expect("a zone"));
            out
        };
        assert_eq!(written("XYZ-9:30"), "1970-01-01 09:30:00+09:30");
        assert_eq!(written("XYZ-20"), "1970-01-01 20:00:00+20");
        assert_eq!(written("XYZ-100"), "1970-01-05 04:00:00+100");
        assert_eq!(written("XYZ167:59:59"), "1969-12-25 00:00:01-167:59:59");
    }
}
