//! Fields of dates and times, truncation and ages.

use super::*;
use crate::value::Value;

/// A unit of time, in ascending order of length.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Unit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
    Decade,
    Century,
    Millennium,
}

fn unit(name: &str) -> Option<Unit> {
    Some(match name {
        "microsecond" | "microseconds" | "us" | "usec" | "usecs" | "usecond" | "useconds" => {
            Unit::Microsecond
        }
        "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" | "msecond" | "mseconds" => {
            Unit::Millisecond
        }
        "second" | "seconds" | "s" | "sec" | "secs" => Unit::Second,
        "minute" | "minutes" | "m" | "min" | "mins" => Unit::Minute,
        "hour" | "hours" | "h" | "hr" | "hrs" => Unit::Hour,
        "day" | "days" | "d" => Unit::Day,
        "week" | "weeks" | "w" => Unit::Week,
        "month" | "months" | "mon" | "mons" => Unit::Month,
        "quarter" | "quarters" | "qtr" => Unit::Quarter,
        "year" | "years" | "y" | "yr" | "yrs" => Unit::Year,
        "decade" | "decades" | "dec" | "decs" => Unit::Decade,
        "century" | "centuries" | "c" | "cent" => Unit::Century,
        "millennium" | "millennia" | "mil" | "mils" => Unit::Millennium,
        _ => return None,
    })
}

const OTHER_FIELDS: [&str; 9] =
    ["epoch", "julian", "dow", "isodow", "doy", "isoyear", "timezone", "timezone_hour", "timezone_minute"];

fn unit_error(name: &str, type_name: &str) -> SqlError {
    if unit(name).is_some() || OTHER_FIELDS.contains(&name) {
        return SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("unit \"{name}\" not supported for type {type_name}"),
        );
    }
    SqlError::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("unit \"{name}\" not recognized for type {type_name}"),
    )
}

/// The first month and year of the period of years that a year lies in.
fn period_start(year: i64, unit: Unit) -> i64 {
    match unit {
        Unit::Millennium if year > 0 => (year + 999) / 1000 * 1000 - 999,
        Unit::Millennium => -((999 - (year - 1)) / 1000) * 1000 + 1,
        Unit::Century if year > 0 => (year + 99) / 100 * 100 - 99,
        Unit::Century => -((99 - (year - 1)) / 100) * 100 + 1,
        Unit::Decade if year > 0 => year / 10 * 10,
        Unit::Decade => -((8 - (year - 1)) / 10) * 10,
        _ => year,
    }
}

fn truncate_to(local: i64, unit: Unit) -> i64 {
    let step = match unit {
        Unit::Microsecond => return local,
        Unit::Millisecond => 1000,
        Unit::Second => MICROS_PER_SECOND,
        Unit::Minute => MICROS_PER_MINUTE,
        Unit::Hour => MICROS_PER_HOUR,
        _ => MICROS_PER_DAY,
    };
    if unit <= Unit::Day {
        return local - local.rem_euclid(step);
    }
    let days = local.div_euclid(MICROS_PER_DAY);
    let (year, month, _) = civil_from_days(days);
    let days = match unit {
        Unit::Week => days - (days + 3).rem_euclid(7),
        Unit::Month => days_from_civil(year, month, 1),
        Unit::Quarter => days_from_civil(year, (month - 1) / 3 * 3 + 1, 1),
        _ => days_from_civil(period_start(year, unit), 1, 1),
    };
    days.saturating_mul(MICROS_PER_DAY)
}

/// `date_trunc` of a timestamp.
pub fn truncate_timestamp(field: &str, micros: i64) -> Result<i64> {
    let name = field.to_ascii_lowercase();
    let unit = unit(&name).ok_or_else(|| unit_error(&name, "timestamp without time zone"))?;
    if !is_finite(micros) {
        return Ok(micros);
    }
    checked_timestamp(i128::from(truncate_to(micros, unit)))
}

/// `date_trunc` of a timestamptz in a zone.
pub fn truncate_timestamptz(field: &str, micros: i64, zone: &Zone) -> Result<i64> {
    let name = field.to_ascii_lowercase();
    let unit = unit(&name).ok_or_else(|| unit_error(&name, "timestamp with time zone"))?;
    if !is_finite(micros) {
        return Ok(micros);
    }
    let local = zone.to_local(micros)?;
    let truncated = truncate_to(local, unit);
    if unit >= Unit::Day {
        return zone.to_utc(truncated);
    }
    checked_timestamp(i128::from(micros) - i128::from(local - truncated))
}

/// `date_trunc` of an interval.
pub fn truncate_interval(field: &str, interval: &Interval) -> Result<Interval> {
    let name = field.to_ascii_lowercase();
    let unit = match unit(&name) {
        Some(unit) if unit != Unit::Week => unit,
        Some(_) => {
            return Err(unit_error(&name, "interval").with_detail("Months usually have fractional weeks."));
        }
        None => return Err(unit_error(&name, "interval")),
    };
    let months = |step: i32| Interval { months: interval.months / step * step, ..Interval::default() };
    let time = |step: i64| Interval { microseconds: interval.microseconds / step * step, ..*interval };
    Ok(match unit {
        Unit::Millennium => months(12_000),
        Unit::Century => months(1200),
        Unit::Decade => months(120),
        Unit::Year => months(12),
        Unit::Quarter => months(3),
        Unit::Month => months(1),
        Unit::Week | Unit::Day => Interval { microseconds: 0, ..*interval },
        Unit::Hour => time(MICROS_PER_HOUR),
        Unit::Minute => time(MICROS_PER_MINUTE),
        Unit::Second => time(MICROS_PER_SECOND),
        Unit::Millisecond => time(1000),
        Unit::Microsecond => *interval,
    })
}

/// `extract(field from value)`; NULL for a field that an infinite value does not have.
pub fn extract(field: &str, value: &Value, zone: impl FnOnce() -> Result<Zone>) -> Result<Option<Numeric>> {
    let name = field.to_ascii_lowercase();
    match value {
        Value::Date(days) => {
            if unit(&name).is_some_and(|unit| unit < Unit::Day) || name.starts_with("timezone") {
                return Err(unit_error(&name, "date"));
            }
            let micros = i128::from(*days) * i128::from(MICROS_PER_DAY);
            if matches!(*days, DATE_INFINITY | DATE_NEGATIVE_INFINITY) {
                return infinite(&name, "date");
            }
            match name.as_str() {
                "epoch" => Ok(Some(Numeric::from(i64::from(*days) * 86_400))),
                "julian" => Ok(Some(Numeric::from(i64::from(*days) + 2_440_588))),
                _ => calendar_field(&name, micros).map(Some).ok_or_else(|| unit_error(&name, "date")),
            }
        }
        Value::Timestamp(micros) => {
            let type_name = "timestamp without time zone";
            if !is_finite(*micros) {
                return infinite(&name, type_name);
            }
            timestamp_field(&name, i128::from(*micros), i128::from(*micros), type_name)
        }
        Value::TimestampTz(micros) => {
            let type_name = "timestamp with time zone";
            if !is_finite(*micros) {
                return infinite(&name, type_name);
            }
            let offset = i64::from(zone()?.offset_at_utc(*micros));
            let from_offset = match name.as_str() {
                "timezone" => Some(offset),
                "timezone_hour" => Some(offset / 3600),
                "timezone_minute" => Some(offset % 3600 / 60),
                _ => None,
            };
            if let Some(number) = from_offset {
                return Ok(Some(Numeric::from(number)));
            }
            let local = i128::from(*micros) + i128::from(offset) * i128::from(MICROS_PER_SECOND);
            timestamp_field(&name, local, i128::from(*micros), type_name)
        }
        Value::Time(micros) => {
            let error = || unit_error(&name, "time without time zone");
            if name == "epoch" {
                return Ok(Some(seconds(i128::from(*micros))));
            }
            if unit(&name).is_none_or(|unit| unit > Unit::Hour) {
                return Err(error());
            }
            clock_field(&name, *micros).map(Some).ok_or_else(error)
        }
        Value::Interval(interval) => {
            let years = i64::from(interval.months / 12);
            let number = match unit(&name) {
                Some(Unit::Week) => None,
                Some(Unit::Day) => Some(Numeric::from(i64::from(interval.days))),
                Some(Unit::Month) => Some(Numeric::from(i64::from(interval.months % 12))),
                Some(Unit::Quarter) => Some(Numeric::from(i64::from(interval.months % 12 / 3 + 1))),
                Some(Unit::Year) => Some(Numeric::from(years)),
                Some(Unit::Decade) => Some(Numeric::from(years / 10)),
                Some(Unit::Century) => Some(Numeric::from(years / 100)),
                Some(Unit::Millennium) => Some(Numeric::from(years / 1000)),
                Some(Unit::Hour) => Some(Numeric::from(interval.microseconds / MICROS_PER_HOUR)),
                Some(_) => clock_field(&name, interval.microseconds),
                None if name == "epoch" => {
                    // A year counts 365.25 days here, a month 30.
                    let quarter_days = 1461 * i128::from(years)
                        + 120 * i128::from(interval.months % 12)
                        + 4 * i128::from(interval.days);
                    Some(seconds(
                        quarter_days * 21_600 * i128::from(MICROS_PER_SECOND)
                            + i128::from(interval.microseconds),
                    ))
                }
                None => None,
            };
            number.map(Some).ok_or_else(|| unit_error(&name, "interval"))
        }
        _ => Err(SqlError::internal("extract from a value that has no fields")),
    }
}

fn infinite(name: &str, type_name: &str) -> Result<Option<Numeric>> {
    match (unit(name), name) {
        (Some(Unit::Year | Unit::Decade | Unit::Century | Unit::Millennium), _)
        | (None, "epoch" | "julian" | "isoyear") => Err(SqlError::unsupported("infinite numeric")),
        (Some(_), _) => Ok(None),
        (None, _) if OTHER_FIELDS.contains(&name) => Ok(None),
        _ => Err(unit_error(name, type_name)),
    }
}

fn timestamp_field(name: &str, local: i128, instant: i128, type_name: &str) -> Result<Option<Numeric>> {
    let day = i128::from(MICROS_PER_DAY);
    let number = match name {
        "epoch" => Some(seconds(instant)),
        "julian" => {
            let fraction = Numeric::from(local.rem_euclid(day)).divide(&Numeric::from(day))?;
            Some(Numeric::from(local.div_euclid(day) + 2_440_588).add(&fraction)?)
        }
        _ => match unit(name) {
            Some(unit) if unit < Unit::Day => clock_field(name, local.rem_euclid(day) as i64),
            _ => calendar_field(name, local),
        },
    };
    number.map(Some).ok_or_else(|| unit_error(name, type_name))
}

fn clock_field(name: &str, micros: i64) -> Option<Numeric> {
    let within_minute = micros % MICROS_PER_MINUTE;
    Some(match unit(name)? {
        Unit::Microsecond => Numeric::from(within_minute),
        Unit::Millisecond => Numeric::new(within_minute, 3),
        Unit::Second => seconds(i128::from(within_minute)),
        Unit::Minute => Numeric::from(micros % MICROS_PER_HOUR / MICROS_PER_MINUTE),
        Unit::Hour => Numeric::from(micros / MICROS_PER_HOUR),
        _ => return None,
    })
}

fn calendar_field(name: &str, local: i128) -> Option<Numeric> {
    let days = local.div_euclid(i128::from(MICROS_PER_DAY)) as i64;
    let (year, month, day) = civil_from_days(days);
    let weekday = (days + 3).rem_euclid(7);
    // The ISO year of a day is that of its week's Thursday.
    let thursday = days - weekday + 3;
    let iso_year = civil_from_days(thursday).0;
    let written = |year: i64| if year > 0 { year } else { year - 1 };
    let number = match unit(name) {
        Some(Unit::Day) => i64::from(day),
        Some(Unit::Week) => (thursday - days_from_civil(iso_year, 1, 1)) / 7 + 1,
        Some(Unit::Month) => i64::from(month),
        Some(Unit::Quarter) => i64::from((month - 1) / 3 + 1),
        Some(Unit::Year) => written(year),
        Some(Unit::Decade) => year.div_euclid(10),
        Some(Unit::Century) if year > 0 => (year + 99) / 100,
        Some(Unit::Century) => -((99 - (year - 1)) / 100),
        Some(Unit::Millennium) if year > 0 => (year + 999) / 1000,
        Some(Unit::Millennium) => -((999 - (year - 1)) / 1000),
        Some(_) => return None,
        None => match name {
            "dow" => (weekday + 1) % 7,
            "isodow" => weekday + 1,
            "doy" => days - days_from_civil(year, 1, 1) + 1,
            "isoyear" => written(iso_year),
            _ => return None,
        },
    };
    Some(Numeric::from(number))
}

/// `age`: the difference of two timestamps in years, months, days and time.
pub fn age(a: i64, b: i64) -> Result<Interval> {
    if !is_finite(a) || !is_finite(b) {
        return Err(SqlError::new(SqlState::DATETIME_OVERFLOW, "cannot subtract infinite timestamps"));
    }
    let (later, earlier) = if a >= b { (a, b) } else { (b, a) };
    let split =
        |micros: i64| (civil_from_days(micros.div_euclid(MICROS_PER_DAY)), micros.rem_euclid(MICROS_PER_DAY));
    let ((year_1, month_1, day_1), time_1) = split(later);
    let ((year_2, month_2, day_2), time_2) = split(earlier);
    let mut months = (year_1 - year_2) * 12 + i64::from(month_1) - i64::from(month_2);
    let mut days = i64::from(day_1) - i64::from(day_2);
    let mut microseconds = time_1 - time_2;
    if microseconds < 0 {
        microseconds += MICROS_PER_DAY;
        days -= 1;
    }
    if days < 0 {
        // Borrowed are the days of the earlier argument's month.
        days += i64::from(days_in_month(year_2, month_2));
        months -= 1;
    }
    let sign = if a >= b { 1 } else { -1 };
    Ok(Interval {
        months: (months * sign) as i32,
        days: (days * sign) as i32,
        microseconds: microseconds * sign,
    })
}
