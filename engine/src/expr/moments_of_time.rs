//! Dates, times and intervals put together from numbers, and written by templates.

use super::{EvalContext, call::wrong_arguments, function::Function};
use crate::{
    datetime::{
        self, Failure, MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, Zone, number::signed_displacement,
    },
    error::{Result, SqlError, SqlState},
    interval::Interval,
    template::{self, InZone, NumberSource},
    value::Value,
};

fn overflow(message: String) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, message)
}

/// As C's `%02g`.
fn seconds_text(seconds: f64) -> String {
    if !seconds.is_finite() {
        return if seconds.is_nan() {
            "NaN".into()
        } else {
            if seconds > 0.0 { "Infinity" } else { "-Infinity" }.into()
        };
    }
    let scientific = format!("{seconds:.5e}");
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let text = if (-4..6).contains(&exponent) {
        trimmed(&format!("{seconds:.*}", (5 - exponent).max(0) as usize))
    } else {
        let (mantissa, _) = scientific.split_once('e').unwrap_or((&scientific, ""));
        format!("{}e{}{:02}", trimmed(mantissa), if exponent < 0 { '-' } else { '+' }, exponent.abs())
    };
    format!("{text:0>2}")
}

/// Days since 1970 of a date; a negative year is before Christ, and there is no year 0.
fn days_of(year: i32, month: i32, day: i32) -> Result<i32> {
    let astronomical = if year < 0 { i64::from(year) + 1 } else { i64::from(year) };
    let exists = year != 0
        && (1..=12).contains(&month)
        && day >= 1
        && day as u32 <= datetime::days_in_month(astronomical, month as u32);
    if !exists {
        return Err(overflow(format!("date field value out of range: {year}-{month:02}-{day:02}")));
    }
    datetime::checked_date(datetime::days_from_civil(astronomical, month as u32, day as u32))
        .map_err(|_| overflow(format!("date out of range: {astronomical}-{month:02}-{day:02}")))
}

/// Microseconds of a time of day; 24:00 is one.
fn time_of(hour: i32, minute: i32, seconds: f64) -> Result<i64> {
    let micros = (seconds * 1_000_000.0).round_ties_even();
    let exists = (0..=24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..=60.0).contains(&seconds)
        && (0.0..=60_000_000.0).contains(&micros);
    // Other numbers may be too large to add up.
    let total = match exists {
        true => i64::from(hour) * MICROS_PER_HOUR + i64::from(minute) * MICROS_PER_MINUTE + micros as i64,
        false => i64::MAX,
    };
    if total > MICROS_PER_DAY {
        let seconds = seconds_text(seconds);
        return Err(overflow(format!("time field value out of range: {hour}:{minute:02}:{seconds}")));
    }
    Ok(total)
}

fn timestamp_of(fields: [i32; 5], seconds: f64) -> Result<i64> {
    let [year, month, day, hour, minute] = fields;
    let days = days_of(year, month, day)?;
    let time = time_of(hour, minute, seconds)?;
    let out_of_range = |_| {
        let seconds = seconds_text(seconds);
        overflow(format!("timestamp out of range: {year}-{month:02}-{day:02} {hour}:{minute:02}:{seconds}"))
    };
    datetime::checked_timestamp(i128::from(days) * i128::from(MICROS_PER_DAY) + i128::from(time))
        .map_err(out_of_range)
}

/// The zone of `make_timestamptz`. Unlike elsewhere a numeric one counts to the east.
fn zone_of(name: &str) -> Result<Zone> {
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(SqlError::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("invalid input syntax for type numeric time zone: \"{name}\""),
        )
        .with_hint("Numeric time zones must have \"-\" or \"+\" as first character."));
    }
    match signed_displacement(name) {
        Ok(offset) => Ok(Zone::Fixed(offset)),
        Err(Failure::Displacement) => Err(SqlError::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("numeric time zone \"{name}\" out of range"),
        )),
        Err(_) => Zone::parse_for_conversion(name),
    }
}

fn interval_of(parts: [i32; 6], seconds: f64) -> Result<Interval> {
    let [years, months, weeks, days, hours, minutes] = parts;
    let out_of_range = crate::interval::out_of_range;
    let micros = (seconds * 1_000_000.0).round_ties_even();
    if !(-9.2e18..=9.2e18).contains(&micros) {
        return Err(out_of_range());
    }
    let clock =
        i128::from(hours) * i128::from(MICROS_PER_HOUR) + i128::from(minutes) * i128::from(MICROS_PER_MINUTE);
    Ok(Interval {
        months: years.checked_mul(12).and_then(|y| y.checked_add(months)).ok_or_else(out_of_range)?,
        days: weeks.checked_mul(7).and_then(|w| w.checked_add(days)).ok_or_else(out_of_range)?,
        microseconds: i64::try_from(clock + micros as i128).map_err(|_| out_of_range())?,
    })
}

fn bin(stride: &Interval, source: i64, origin: i64) -> Result<i64> {
    if !datetime::is_finite(source) {
        return Ok(source);
    }
    if !datetime::is_finite(origin) {
        return Err(overflow("origin out of range".into()));
    }
    if stride.months != 0 {
        return Err(SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            "timestamps cannot be binned into intervals containing months or years",
        ));
    }
    let stride = i128::from(stride.days) * i128::from(MICROS_PER_DAY) + i128::from(stride.microseconds);
    if stride <= 0 {
        return Err(overflow("stride must be greater than zero".into()));
    }
    let distance = i128::from(source) - i128::from(origin);
    datetime::checked_timestamp(i128::from(origin) + distance.div_euclid(stride) * stride)
}

/// Calls a function that makes or looks at a moment.
pub(super) fn call(function: Function, args: &[Value], context: &EvalContext) -> Result<Value> {
    use Value::{Date, Float8, Int4, Interval as Span, Text, Timestamp, TimestampTz};
    let zone = || Zone::parse(&context.time_zone);
    Ok(match (function, args) {
        (Function::MakeDate, [Int4(year), Int4(month), Int4(day)]) => Date(days_of(*year, *month, *day)?),
        (Function::MakeTime, [Int4(hour), Int4(minute), Float8(seconds)]) => {
            Value::Time(time_of(*hour, *minute, *seconds)?)
        }
        (
            Function::MakeTimestamp | Function::MakeTimestampTz,
            [Int4(year), Int4(month), Int4(day), Int4(hour), Int4(minute), Float8(seconds), named @ ..],
        ) => {
            let local = timestamp_of([*year, *month, *day, *hour, *minute], *seconds)?;
            match (function, named) {
                (Function::MakeTimestamp, _) => Timestamp(local),
                (_, [Text(name)]) => TimestampTz(zone_of(name)?.to_utc(local)?),
                _ => TimestampTz(zone()?.to_utc(local)?),
            }
        }
        (Function::MakeInterval, parts) => {
            let mut whole = [0; 6];
            let mut seconds = 0.0;
            for (index, part) in parts.iter().enumerate() {
                match part {
                    Int4(number) if index < 6 => whole[index] = *number,
                    Float8(number) => seconds = *number,
                    _ => return Err(wrong_arguments(function)),
                }
            }
            Span(interval_of(whole, seconds)?)
        }
        (Function::IsFinite, [Date(days)]) => {
            Value::Bool(!matches!(*days, datetime::DATE_INFINITY | datetime::DATE_NEGATIVE_INFINITY))
        }
        (Function::IsFinite, [Timestamp(micros) | TimestampTz(micros)]) => {
            Value::Bool(datetime::is_finite(*micros))
        }
        (Function::DateBin, [Span(stride), Timestamp(source), Timestamp(origin)]) => {
            Timestamp(bin(stride, *source, *origin)?)
        }
        (Function::DateBin, [Span(stride), TimestampTz(source), TimestampTz(origin)]) => {
            TimestampTz(bin(stride, *source, *origin)?)
        }
        _ => return Err(wrong_arguments(function)),
    })
}

/// `to_char`; NULL of an infinite timestamp and for an empty template of a date or interval.
pub(super) fn to_char(value: &Value, template: &str, context: &EvalContext) -> Result<Value> {
    let number = |source| template::to_char_number(&source, template).map(Value::text);
    match value {
        Value::Int4(value) => number(NumberSource::Int4(*value)),
        Value::Int8(value) => number(NumberSource::Int8(*value)),
        Value::Numeric(value) => number(NumberSource::Numeric(value)),
        Value::Float4(value) => number(NumberSource::Float4(*value)),
        Value::Float8(value) => number(NumberSource::Float8(*value)),
        _ if template.is_empty() => Ok(Value::Null),
        Value::Interval(interval) => template::interval_to_char(interval, template).map(Value::text),
        Value::Timestamp(micros) if datetime::is_finite(*micros) => {
            template::timestamp_to_char(*micros, None, template).map(Value::text)
        }
        Value::TimestampTz(micros) if datetime::is_finite(*micros) => {
            let zone = Zone::parse(&context.time_zone)?;
            let in_zone = InZone { zone, name: &context.time_zone, instant: *micros };
            template::timestamp_to_char(zone.to_local(*micros)?, Some(in_zone), template).map(Value::text)
        }
        Value::Timestamp(_) | Value::TimestampTz(_) => Ok(Value::Null),
        _ => Err(wrong_arguments(Function::ToChar)),
    }
}
