//! Input of dates and times as PostgreSQL reads them, with the setting `DateStyle = ISO, MDY`.
//!
//! The rules are those of PostgreSQL's `DecodeDateTime` and `DecodeTimeOnly`.
//!
//! Three steps: the text is split into [tokens](token); the tokens, from left to right, fill in [fields],
//! each of which may come once; and what the fields say together is checked when all of them are there. A
//! date with a time and a time of day alone are [read](mod@read) by rules that differ in what a number or a
//! date can be.

use super::*;
use crate::expr::EvalContext;

mod fields;
mod keyword;
pub(crate) mod number;
mod read;
pub(crate) mod token;

use keyword::{Keyword, keyword};
use read::{Moment, ROOM, TIMESTAMP_ROOM, read_moment, read_time};
use token::{Token, split};

/// Days from 1970-01-01 to 2000-01-01.
const DAYS_TO_2000: i64 = 10_957;

/// Why a text is no date, time or interval.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Not of any known form.
    Format,
    /// A field beyond its range.
    Range,
    /// A month or a day that another order of fields might explain.
    MonthOrDay,
    /// A displacement that no zone has.
    Displacement,
    /// A zone that nobody knows.
    UnknownZone(String),
    /// The session's time cannot be told.
    Other(SqlError),
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Failure {
        Failure::Other(error)
    }
}

impl Failure {
    /// The error of the input of this type.
    pub(crate) fn into_error(self, type_name: &str, text: &str) -> SqlError {
        let out_of_range = || out_of_range("date/time field value", text);
        match self {
            Failure::Format => SqlError::new(
                SqlState::INVALID_DATETIME,
                format!("invalid input syntax for type {type_name}: \"{text}\""),
            ),
            Failure::Range => out_of_range(),
            Failure::MonthOrDay => {
                out_of_range().with_hint("Perhaps you need a different \"datestyle\" setting.")
            }
            Failure::Displacement => {
                SqlError::new(SqlState(*b"22009"), format!("time zone displacement out of range: \"{text}\""))
            }
            Failure::UnknownZone(name) => zone::not_recognized(&name),
            Failure::Other(error) => error,
        }
    }
}

fn out_of_range(what: &str, text: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("{what} out of range: \"{text}\""))
}

fn two(bytes: &[u8]) -> Option<u32> {
    match bytes {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', ..] => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

/// `YYYY-MM-DD` at the front, in days since 1970-01-01.
fn iso_date(bytes: &[u8]) -> Option<i64> {
    if bytes.len() < 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let year = i64::from(two(bytes)? * 100 + two(&bytes[2..])?);
    let (month, day) = (two(&bytes[5..])?, two(&bytes[8..])?);
    let valid = year > 0 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    valid.then(|| days_from_civil(year, month, day))
}

/// `hh:mm:ss[.ffffff]` at the front, in microseconds, and what follows.
fn iso_time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    if bytes.len() < 8 || bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (two(bytes)?, two(&bytes[3..])?, two(&bytes[6..])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let micros = i64::from(hour * 3600 + minute * 60 + second) * MICROS_PER_SECOND;
    let [b'.', fraction @ ..] = &bytes[8..] else { return Some((micros, &bytes[8..])) };
    let length = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
    if length == 0 || length > 6 {
        return None;
    }
    let value = fraction[..length].iter().fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    Some((micros + value * 10i64.pow(6 - length as u32), &fraction[length..]))
}

/// `Z` or `+hh[:mm]` with either sign.
fn iso_zone(bytes: &[u8]) -> Option<Zone> {
    let [sign @ (b'+' | b'-'), offset @ ..] = bytes else { return (bytes == b"Z").then_some(Zone::UTC) };
    let seconds = match offset {
        [_, _] => two(offset)? * 3600,
        [_, _, b':', _, _] if offset[3] < b'6' => two(offset)? * 3600 + two(&offset[3..])? * 60,
        _ => return None,
    };
    if seconds >= 15 * 3600 {
        return None;
    }
    Some(Zone::Fixed(if *sign == b'-' { -(seconds as i32) } else { seconds as i32 }))
}

/// The forms that machines write, without allocation; `None` sends the text to the general reader.
fn read_fast(text: &str) -> Option<Moment> {
    let bytes = text.as_bytes();
    let days = iso_date(bytes)?;
    if bytes.len() == 10 {
        return Some(Moment::Local { days, micros: 0, zone: None });
    }
    if !matches!(bytes[10], b' ' | b'T') {
        return None;
    }
    let (micros, rest) = iso_time(&bytes[11..])?;
    let zone = if rest.is_empty() { None } else { Some(iso_zone(rest)?) };
    Some(Moment::Local { days, micros, zone })
}

fn read(text: &str, type_name: &str, context: &EvalContext) -> Result<Moment> {
    if let Some(moment) = read_fast(text) {
        return Ok(moment);
    }
    let room = if type_name == "date" { ROOM } else { TIMESTAMP_ROOM };
    read_moment(&text.to_ascii_lowercase(), room, context)
        .map_err(|failure| failure.into_error(type_name, text))
}

/// Whether a text, read as a date, a time or a timestamp, may say another one at another time: whether one of the
/// words `now`, `today`, `tomorrow` and `yesterday` is in it. Not so for a text that is none of these types.
pub fn asks_for_now(text: &str) -> bool {
    let is_asking = |token: &Token| match token {
        Token::Word(word) => matches!(keyword(word), Some(Keyword::Now | Keyword::Today(_))),
        _ => false,
    };
    // There is room for the tokens of all types in a timestamp.
    split(&text.to_ascii_lowercase(), TIMESTAMP_ROOM).is_ok_and(|tokens| tokens.iter().any(is_asking))
}

/// Reads a date.
pub fn parse_date(text: &str, context: &EvalContext) -> Result<i32> {
    match read(text, "date", context)? {
        Moment::Infinity => Ok(DATE_INFINITY),
        Moment::NegativeInfinity => Ok(DATE_NEGATIVE_INFINITY),
        Moment::Epoch => Ok(0),
        Moment::Local { days, .. } => checked_date(days).map_err(|_| out_of_range("date", text)),
    }
}

/// Reads a time of day; a date and a zone are read and ignored.
pub fn parse_time(text: &str, context: &EvalContext) -> Result<i64> {
    match iso_time(text.as_bytes()) {
        Some((micros, [])) => Ok(micros),
        _ => {
            read_time(&text.to_ascii_lowercase(), context).map_err(|failure| failure.into_error("time", text))
        }
    }
}

/// The timestamp of a day and a time, which may be a time of other days if its digits were run together. As
/// in PostgreSQL it must not take it from one side of 2000-01-01 to the other, but for the day before.
fn local_timestamp(days: i64, time: i64, text: &str) -> Result<i64> {
    let micros = i128::from(days) * i128::from(MICROS_PER_DAY) + i128::from(time);
    let since_2000 = micros - i128::from(DAYS_TO_2000) * i128::from(MICROS_PER_DAY);
    let crosses = days > DAYS_TO_2000 && since_2000 < 0 || days < DAYS_TO_2000 - 1 && since_2000 > 0;
    match (checked_date(days), checked_timestamp(micros)) {
        (Ok(_), Ok(local)) if !crosses => Ok(local),
        _ => Err(out_of_range("timestamp", text)),
    }
}

/// Reads a timestamp; a zone is read and ignored.
pub fn parse_timestamp(text: &str, context: &EvalContext) -> Result<i64> {
    match read(text, "timestamp", context)? {
        Moment::Infinity => Ok(TIMESTAMP_INFINITY),
        Moment::NegativeInfinity => Ok(TIMESTAMP_NEGATIVE_INFINITY),
        Moment::Epoch => Ok(0),
        Moment::Local { days, micros, .. } => local_timestamp(days, micros, text),
    }
}

/// Reads a timestamp with time zone; without a zone it is local to the session's.
pub fn parse_timestamptz(text: &str, context: &EvalContext) -> Result<i64> {
    match read(text, "timestamp with time zone", context)? {
        Moment::Infinity => Ok(TIMESTAMP_INFINITY),
        Moment::NegativeInfinity => Ok(TIMESTAMP_NEGATIVE_INFINITY),
        Moment::Epoch => Ok(0),
        Moment::Local { days, micros, zone } => {
            let local = local_timestamp(days, micros, text)?;
            let zone = zone.map_or_else(|| Zone::parse(&context.time_zone), Ok)?;
            zone.to_utc(local).map_err(|_| out_of_range("timestamp", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn context() -> EvalContext {
        EvalContext { time_zone: "America/New_York".into(), now: 0 }
    }

    /// What machines write, and texts that are nearly that.
    fn iso_like() -> impl Strategy<Value = String> {
        let iso = "[0-9]{4}-[01][0-9]-[0-3][0-9]\
            ([ Tt][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{0,7})?(Z|[+-][01][0-9](:?[0-6][0-9])?)?)?";
        (iso, any::<prop::sample::Index>(), prop::option::of("[0-9:. TZ+-]")).prop_map(
            |(mut text, at, other)| {
                if let Some(other) = other {
                    let at = at.index(text.len());
                    text.replace_range(at..at + 1, &other);
                }
                text
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn the_fast_reader_gives_what_the_general_one_gives(text in iso_like()) {
            if let Some(moment) = read_fast(&text) {
                let general = read_moment(&text.to_ascii_lowercase(), TIMESTAMP_ROOM, &context());
                prop_assert_eq!(general.ok(), Some(moment));
            }
            let time = text.get(11..).unwrap_or("");
            if let Some((micros, [])) = iso_time(time.as_bytes()) {
                prop_assert_eq!(read_time(time, &context()).ok(), Some(micros));
            }
        }
    }

    #[test]
    fn words_for_the_present_ask_for_it_wherever_they_stand() {
        for text in [
            "now",
            "NOW",
            " today",
            "tomorrow",
            "yesterday",
            "10:00 today",
            "today 10:00",
            "(tomorrow)",
            "\"now\"",
            "#now",
            ", today",
            "today+1",
            "10:00today",
            "now now",
            "infinity now",
        ] {
            assert!(asks_for_now(text), "{text}");
        }
        for text in [
            "",
            "2020-01-01",
            "2020-01-01 10:00:00.5+02",
            "epoch",
            "infinity",
            "allballs",
            "January 8, 1999",
            "nowhere",
            "now-5",
            "-now",
            "now\u{e9}",
            "2020-01-01 10:00 Europe/Moscow",
        ] {
            assert!(!asks_for_now(text), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_does_not_ask_for_the_present_is_the_same_at_all_times(
            parts in prop::collection::vec(
                "[ ,(+-]?(now|today|tomorrow|yesterday|epoch|at|utc|2020|jan|5|10:00)[ ,)-]?",
                1..4,
            ),
        ) {
            let text = parts.concat();
            let later = EvalContext { now: 1000 * MICROS_PER_DAY + 7 * MICROS_PER_HOUR, ..context() };
            if !asks_for_now(&text) {
                prop_assert_eq!(parse_date(&text, &context()), parse_date(&text, &later));
                prop_assert_eq!(parse_time(&text, &context()), parse_time(&text, &later));
                prop_assert_eq!(parse_timestamp(&text, &context()), parse_timestamp(&text, &later));
                prop_assert_eq!(parse_timestamptz(&text, &context()), parse_timestamptz(&text, &later));
            }
        }
    }

    #[test]
    fn the_fast_reader_takes_what_machines_write() {
        for text in
            ["2020-02-29", "2020-02-29 23:59:59.123456", "2020-02-29T10:00:00Z", "2020-02-29 10:00:00-05:30"]
        {
            assert!(read_fast(text).is_some(), "{text}");
        }
    }
}
