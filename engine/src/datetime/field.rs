//! Fields of dates and times, truncation and ages.

use super::*;
use crate::value::Value;

/// A unit of time, in ascending order of length.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum Unit {
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

/// As much of a name as counts: ten bytes.
fn significant(name: &str) -> &str {
    name.get(..10).unwrap_or(name)
}

/// The unit of this name, which is in small letters.
pub(crate) fn unit(name: &str) -> Option<Unit> {
    Some(match significant(name) {
        "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecon" => Unit::Microsecond,
        "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecon" => Unit::Millisecond,
        "s" | "sec" | "secs" | "second" | "seconds" => Unit::Second,
        "m" | "min" | "mins" | "minute" | "minutes" => Unit::Minute,
        "h" | "hr" | "hrs" | "hour" | "hours" => Unit::Hour,
        "d" | "day" | "days" => Unit::Day,
        "w" | "week" | "weeks" => Unit::Week,
        "mon" | "mons" | "month" | "months" => Unit::Month,
        "qtr" | "quarter" => Unit::Quarter,
        "y" | "yr" | "yrs" | "year" | "years" => Unit::Year,
        "dec" | "decs" | "decade" | "decades" => Unit::Decade,
        "c" | "cent" | "century" | "centuries" => Unit::Century,
        "mil" | "mils" | "millennia" | "millennium" => Unit::Millennium,
        _ => return None,
    })
}

/// What `extract` knows.
#[derive(Clone, Copy, PartialEq)]
enum Field {
    Unit(Unit),
    Epoch,
    Julian,
    Weekday,
    IsoWeekday,
    DayOfYear,
    IsoYear,
    Zone,
    ZoneHour,
    ZoneMinute,
}

impl Field {
    /// The field of this name, which is in small letters.
    fn named(name: &str) -> Option<Field> {
        Some(match significant(name) {
            "epoch" => Field::Epoch,
            "julian" | "jd" | "j" => Field::Julian,
            "dow" => Field::Weekday,
            "isodow" => Field::IsoWeekday,
            "doy" => Field::DayOfYear,
            "isoyear" => Field::IsoYear,
            "mm" => Field::Unit(Unit::Minute),
            _ => return Field::of_truncation(name),
        })
    }

    /// As [`named`](Field::named), of the fields that `date_trunc` knows. It supports only the units.
    fn of_truncation(name: &str) -> Option<Field> {
        Some(match significant(name) {
            "timezone" => Field::Zone,
            "timezone_h" => Field::ZoneHour,
            "timezone_m" => Field::ZoneMinute,
            _ => Field::Unit(unit(name)?),
        })
    }

    fn is_of_zone(self) -> bool {
        matches!(self, Field::Zone | Field::ZoneHour | Field::ZoneMinute)
    }
}

fn not_recognized(name: &str, type_name: &str) -> SqlError {
    SqlError::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("unit \"{name}\" not recognized for type {type_name}"),
    )
}

fn not_supported(name: &str, type_name: &str) -> SqlError {
    SqlError::new(
        SqlState::FEATURE_NOT_SUPPORTED,
        format!("unit \"{name}\" not supported for type {type_name}"),
    )
}

/// The unit that `date_trunc` is to keep.
fn unit_of_truncation(name: &str, type_name: &str) -> Result<Unit> {
    match Field::of_truncation(name) {
        Some(Field::Unit(unit)) => Ok(unit),
        Some(_) => Err(not_supported(name, type_name)),
        None => Err(not_recognized(name, type_name)),
    }
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
    let unit = unit_of_truncation(&name, "timestamp without time zone")?;
    if !is_finite(micros) {
        return Ok(micros);
    }
    checked_timestamp(i128::from(truncate_to(micros, unit)))
}

/// `date_trunc` of a timestamptz in a zone.
pub fn truncate_timestamptz(field: &str, micros: i64, zone: &Zone) -> Result<i64> {
    let name = field.to_ascii_lowercase();
    let unit = unit_of_truncation(&name, "timestamp with time zone")?;
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
    let unit = unit_of_truncation(&name, "interval")?;
    let months = |step: i32| Interval { months: interval.months / step * step, ..Interval::default() };
    let time = |step: i64| Interval { microseconds: interval.microseconds / step * step, ..*interval };
    Ok(match unit {
        Unit::Millennium => months(12_000),
        Unit::Century => months(1200),
        Unit::Decade => months(120),
        Unit::Year => months(12),
        Unit::Quarter => months(3),
        Unit::Month => months(1),
        Unit::Week => {
            return Err(not_supported(&name, "interval").with_detail("Months usually have fractional weeks."));
        }
        Unit::Day => Interval { microseconds: 0, ..*interval },
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
    let type_name = match value {
        Value::Date(_) => "date",
        Value::Timestamp(_) => "timestamp without time zone",
        Value::TimestampTz(_) => "timestamp with time zone",
        Value::Time(_) => "time without time zone",
        Value::Interval(_) => "interval",
        _ => return Err(SqlError::internal("extract from a value that has no fields")),
    };
    let field = Field::named(&name).ok_or_else(|| not_recognized(&name, type_name))?;
    let number = match value {
        Value::Date(_) if field.is_of_zone() || matches!(field, Field::Unit(unit) if unit < Unit::Day) => {
            None
        }
        Value::Date(DATE_INFINITY | DATE_NEGATIVE_INFINITY) => return infinite(field),
        Value::Date(days) => match field {
            Field::Epoch => Some(Numeric::from(i64::from(*days) * 86_400)),
            Field::Julian => Some(Numeric::from(i64::from(*days) + 2_440_588)),
            _ => calendar_field(field, i64::from(*days)),
        },
        Value::Timestamp(micros) | Value::TimestampTz(micros) if !is_finite(*micros) => {
            return infinite(field);
        }
        Value::Timestamp(micros) => timestamp_field(field, i128::from(*micros), *micros)?,
        Value::TimestampTz(micros) => {
            let offset = i64::from(zone()?.offset_at_utc(*micros));
            match field {
                Field::Zone => Some(Numeric::from(offset)),
                Field::ZoneHour => Some(Numeric::from(offset / 3600)),
                Field::ZoneMinute => Some(Numeric::from(offset % 3600 / 60)),
                _ => {
                    let local = i128::from(*micros) + i128::from(offset) * i128::from(MICROS_PER_SECOND);
                    timestamp_field(field, local, *micros)?
                }
            }
        }
        Value::Time(micros) => match field {
            Field::Epoch => Some(seconds(i128::from(*micros))),
            Field::Unit(unit) => clock_field(unit, *micros),
            _ => None,
        },
        Value::Interval(interval) => interval_field(field, interval),
        _ => None,
    };
    number.map(Some).ok_or_else(|| not_supported(&name, type_name))
}

fn infinite(field: Field) -> Result<Option<Numeric>> {
    match field {
        Field::Unit(Unit::Year | Unit::Decade | Unit::Century | Unit::Millennium)
        | Field::Epoch
        | Field::Julian
        | Field::IsoYear => Err(SqlError::unsupported("infinite numeric")),
        _ => Ok(None),
    }
}

fn interval_field(field: Field, interval: &Interval) -> Option<Numeric> {
    let (years, months) = (i64::from(interval.months / 12), i64::from(interval.months % 12));
    Some(Numeric::from(match field {
        Field::Epoch => {
            // A year counts 365.25 days here, a month 30.
            let quarter_days =
                1461 * i128::from(years) + 120 * i128::from(months) + 4 * i128::from(interval.days);
            let days = quarter_days * 21_600 * i128::from(MICROS_PER_SECOND);
            return Some(seconds(days + i128::from(interval.microseconds)));
        }
        Field::Unit(Unit::Day) => i64::from(interval.days),
        Field::Unit(Unit::Month) => months,
        Field::Unit(Unit::Quarter) => months / 3 + 1,
        Field::Unit(Unit::Year) => years,
        Field::Unit(Unit::Decade) => years / 10,
        Field::Unit(Unit::Century) => years / 100,
        Field::Unit(Unit::Millennium) => years / 1000,
        Field::Unit(unit) => return clock_field(unit, interval.microseconds),
        _ => return None,
    }))
}

/// A field of a local timestamp, which is the `instant`.
fn timestamp_field(field: Field, local: i128, instant: i64) -> Result<Option<Numeric>> {
    let day = i128::from(MICROS_PER_DAY);
    let (days, time) = (local.div_euclid(day), local.rem_euclid(day));
    Ok(match field {
        Field::Epoch => Some(seconds(instant.into())),
        Field::Julian => {
            let fraction = Numeric::from(time).divide(&Numeric::from(day))?;
            Some(Numeric::from(days + 2_440_588).add(&fraction)?)
        }
        Field::Unit(unit) if unit < Unit::Day => clock_field(unit, time as i64),
        _ => calendar_field(field, days as i64),
    })
}

fn clock_field(unit: Unit, micros: i64) -> Option<Numeric> {
    let within_minute = micros % MICROS_PER_MINUTE;
    Some(match unit {
        Unit::Microsecond => Numeric::from(within_minute),
        Unit::Millisecond => Numeric::new(within_minute, 3),
        Unit::Second => seconds(i128::from(within_minute)),
        Unit::Minute => Numeric::from(micros % MICROS_PER_HOUR / MICROS_PER_MINUTE),
        Unit::Hour => Numeric::from(micros / MICROS_PER_HOUR),
        _ => return None,
    })
}

fn calendar_field(field: Field, days: i64) -> Option<Numeric> {
    let (year, month, day) = civil_from_days(days);
    let weekday = (days + 3).rem_euclid(7);
    // The ISO year of a day is that of its week's Thursday.
    let thursday = days - weekday + 3;
    let iso_year = civil_from_days(thursday).0;
    let written = |year: i64| if year > 0 { year } else { year - 1 };
    Some(Numeric::from(match field {
        Field::Unit(Unit::Day) => i64::from(day),
        Field::Unit(Unit::Week) => (thursday - days_from_civil(iso_year, 1, 1)) / 7 + 1,
        Field::Unit(Unit::Month) => i64::from(month),
        Field::Unit(Unit::Quarter) => i64::from((month - 1) / 3 + 1),
        Field::Unit(Unit::Year) => written(year),
        Field::Unit(Unit::Decade) => year.div_euclid(10),
        Field::Unit(Unit::Century) if year > 0 => (year + 99) / 100,
        Field::Unit(Unit::Century) => -((99 - (year - 1)) / 100),
        Field::Unit(Unit::Millennium) if year > 0 => (year + 999) / 1000,
        Field::Unit(Unit::Millennium) => -((999 - (year - 1)) / 1000),
        Field::Weekday => (weekday + 1) % 7,
        Field::IsoWeekday => weekday + 1,
        Field::DayOfYear => days - days_from_civil(year, 1, 1) + 1,
        Field::IsoYear => written(iso_year),
        _ => return None,
    }))
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
