//! Input of dates and times: ISO 8601 first, then the free forms that PostgreSQL reads (month names, `MM/DD/YYYY`,
//! AM and PM, BC, zone names), with the setting `DateStyle = ISO, MDY`.

use super::*;
use crate::expr::EvalContext;

/// Why a text is no date or time.
enum Failure {
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
}

impl Failure {
    fn into_error(self, type_name: &str, text: &str) -> SqlError {
        match self {
            Failure::Format => SqlError::new(
                SqlState::INVALID_DATETIME,
                format!("invalid input syntax for type {type_name}: \"{text}\""),
            ),
            Failure::Range => SqlError::new(
                SqlState::DATETIME_OVERFLOW,
                format!("date/time field value out of range: \"{text}\""),
            ),
            Failure::MonthOrDay => SqlError::new(
                SqlState::DATETIME_OVERFLOW,
                format!("date/time field value out of range: \"{text}\""),
            )
            .with_hint("Perhaps you need a different \"datestyle\" setting."),
            Failure::Displacement => {
                SqlError::new(SqlState(*b"22009"), format!("time zone displacement out of range: \"{text}\""))
            }
            Failure::UnknownZone(zone) => SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("time zone \"{zone}\" not recognized"),
            ),
        }
    }
}

/// Words that stand for a whole date or time.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    Infinity,
    NegativeInfinity,
    Epoch,
    Now,
    /// Midnight this many days from today.
    Day(i64),
}

/// What was read.
#[derive(Default)]
struct Fields {
    date: Option<(i64, u32, u32)>,
    time: Option<i64>,
    zone: Option<Zone>,
    special: Option<Special>,
}

impl Fields {
    fn days(&self) -> Option<i64> {
        self.date.map(|(year, month, day)| days_from_civil(year, month, day))
    }
}

fn two(bytes: &[u8]) -> Option<u32> {
    match bytes {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', ..] => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

/// `YYYY-MM-DD` at the front.
fn iso_date(bytes: &[u8]) -> Option<(i64, u32, u32)> {
    if bytes.len() < 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let year = two(bytes)? * 100 + two(&bytes[2..])?;
    let (month, day) = (two(&bytes[5..])?, two(&bytes[8..])?);
    let valid = year > 0
        && (1..=12).contains(&month)
        && day >= 1
        && day <= days_in_month(i64::from(year), month)
        && !bytes.get(10).is_some_and(u8::is_ascii_alphanumeric_not_t);
    valid.then_some((i64::from(year), month, day))
}

trait NotT {
    fn is_ascii_alphanumeric_not_t(&self) -> bool;
}

impl NotT for u8 {
    fn is_ascii_alphanumeric_not_t(&self) -> bool {
        self.is_ascii_alphanumeric() && *self != b'T'
    }
}

/// The forms that machines write, without allocation; `None` sends the text to the general reader.
fn read_fast(text: &str) -> Option<Fields> {
    let bytes = text.as_bytes();
    let date = iso_date(bytes)?;
    let mut fields = Fields { date: Some(date), ..Fields::default() };
    if bytes.len() == 10 {
        return Some(fields);
    }
    if bytes.len() < 19 || !matches!(bytes[10], b' ' | b'T') || bytes[13] != b':' || bytes[16] != b':' {
        return None;
    }
    let (hour, minute, second) = (two(&bytes[11..])?, two(&bytes[14..])?, two(&bytes[17..])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut micros = i64::from(hour * 3600 + minute * 60 + second) * MICROS_PER_SECOND;
    let mut rest = &bytes[19..];
    if let [b'.', fraction @ ..] = rest {
        let length = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
        if length == 0 || length > 6 {
            return None;
        }
        let value = fraction[..length].iter().fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        micros += value * 10i64.pow(6 - length as u32);
        rest = &fraction[length..];
    }
    fields.time = Some(micros);
    fields.zone = match rest {
        [] => None,
        [b'Z'] => Some(Zone::UTC),
        [sign @ (b'+' | b'-'), offset @ ..] => {
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
        _ => return None,
    };
    Some(fields)
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

fn month_by_name(word: &str) -> Option<u32> {
    let found = MONTHS.iter().position(|month| word == *month || word == &month[..3]);
    found.map(|i| i as u32 + 1).or((word == "sept").then_some(9))
}

fn is_weekday(word: &str) -> bool {
    WEEKDAYS.iter().any(|day| word == *day || word == &day[..3])
        || matches!(word, "tues" | "wednes" | "weds" | "thur" | "thurs")
}

/// The general reader's state.
struct Reader<'a> {
    rest: &'a str,
    fields: Fields,
    /// Bare numbers and month names, waiting for the others.
    numbers: Vec<&'a str>,
    month: Option<u32>,
    before_christ: bool,
    /// The year of the date has no century.
    is_short_year: bool,
    /// The date is a number of days, whose year is known.
    is_julian: bool,
    /// The day of the year of the date, if that is what tells month and day.
    day_of_year: Option<i64>,
    afternoon: Option<bool>,
    /// The hour of the time of day, if one has been read.
    hour: Option<i64>,
    /// Whether a time of day is wanted, so that six digits are one.
    time_only: bool,
}

fn take_while(text: &str, accept: impl Fn(u8) -> bool) -> (&str, &str) {
    text.split_at(text.bytes().take_while(|b| accept(*b)).count())
}

impl<'a> Reader<'a> {
    fn read(text: &'a str, time_only: bool) -> Result<Fields, Failure> {
        let mut reader = Reader {
            rest: text,
            fields: Fields::default(),
            numbers: Vec::new(),
            month: None,
            before_christ: false,
            is_short_year: false,
            is_julian: false,
            day_of_year: None,
            afternoon: None,
            hour: None,
            time_only,
        };
        loop {
            reader.rest = reader.rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
            let Some(first) = reader.rest.bytes().next() else { break };
            match first {
                b'0'..=b'9' => reader.number()?,
                b'a'..=b'z' => reader.word()?,
                b'+' | b'-' => reader.sign()?,
                _ => return Err(Failure::Format),
            }
        }
        reader.finish()
    }

    fn set_date(&mut self, year: &str, month: u32, day: &str) -> Result<(), Failure> {
        if self.fields.date.is_some() || self.fields.special.is_some() {
            return Err(Failure::Format);
        }
        let day: u32 = day.parse().map_err(|_| Failure::Range)?;
        let value: i64 = year.parse().map_err(|_| Failure::Range)?;
        if value > 10_000_000 {
            return Err(Failure::Range);
        }
        self.is_short_year = year.len() <= 2;
        self.fields.date = Some((value, month, day));
        Ok(())
    }

    /// A time of day in `hh:mm[:ss[.ffffff]]` or `mm:ss.ffffff`.
    fn set_clock(&mut self, text: &str) -> Result<(), Failure> {
        if self.fields.time.is_some() {
            return Err(Failure::Format);
        }
        let mut parts = text.split(':');
        let mut field = || -> Result<Option<&str>, Failure> {
            match parts.next() {
                Some("") => Err(Failure::Format),
                other => Ok(other),
            }
        };
        let hour = field()?.ok_or(Failure::Format)?;
        let minute = field()?.ok_or(Failure::Format)?;
        let (hour, minute, second) = match field()? {
            None if minute.contains('.') => ("0", hour, minute),
            second => (hour, minute, second.unwrap_or("0")),
        };
        if field()?.is_some() {
            return Err(Failure::Format);
        }
        let (second, fraction) = second.split_once('.').unwrap_or((second, ""));
        let number = |text: &str| text.parse::<i64>().map_err(|_| Failure::Format);
        let (hour, minute, second) = (number(hour)?, number(minute)?, number(second)?);
        let micros = parse_fraction(fraction).ok_or(Failure::Format)?;
        self.set_time(hour, minute, second, micros)
    }

    fn set_time(&mut self, hour: i64, minute: i64, second: i64, micros: i64) -> Result<(), Failure> {
        if hour > 24 || minute > 59 || second > 60 {
            return Err(Failure::Range);
        }
        let total = ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + micros;
        if total > MICROS_PER_DAY {
            return Err(Failure::Range);
        }
        (self.hour, self.fields.time) = (Some(hour), Some(total));
        Ok(())
    }

    fn set_compact_clock(&mut self, digits: &str, fraction: &str) -> Result<(), Failure> {
        let part = |from: usize| digits.get(from..from + 2).and_then(|d| d.parse::<i64>().ok());
        let micros = parse_fraction(fraction).ok_or(Failure::Format)?;
        match (digits.len(), part(0), part(2)) {
            (6, Some(hour), Some(minute)) => {
                self.set_time(hour, minute, part(4).ok_or(Failure::Format)?, micros)
            }
            (4, Some(hour), Some(minute)) if fraction.is_empty() => self.set_time(hour, minute, 0, 0),
            _ => Err(Failure::Format),
        }
    }

    fn number(&mut self) -> Result<(), Failure> {
        let (digits, after) = take_while(self.rest, |b| b.is_ascii_digit());
        match after.bytes().next() {
            Some(b':') => {
                let (clock, rest) = take_while(self.rest, |b| b.is_ascii_digit() || b == b':' || b == b'.');
                self.rest = rest;
                self.set_clock(clock)
            }
            Some(delimiter @ (b'-' | b'/' | b'.'))
                if after.as_bytes().get(1).is_some_and(u8::is_ascii_alphanumeric) =>
            {
                let (token, rest) = take_while(self.rest, |b| b.is_ascii_alphanumeric() || b == delimiter);
                // A `T` or a zone sticks to the last number of a date.
                let mut parts = token.splitn(3, delimiter as char);
                let (a, b, c) = (
                    parts.next().ok_or(Failure::Format)?,
                    parts.next().ok_or(Failure::Format)?,
                    parts.next(),
                );
                let Some(c) = c else {
                    if delimiter == b'.' && (digits.len() == 6 || self.fields.date.is_some()) {
                        self.rest = rest;
                        return self.set_compact_clock(a, b);
                    }
                    if delimiter == b'-' && self.fields.date.is_some() && digits.len() >= 4 {
                        // hhmm-zz
                        self.rest = after;
                        return self.set_compact_clock(digits, "");
                    }
                    if delimiter == b'.' && a.len() == 4 && b.len() == 3 {
                        let day: i64 = b.parse().map_err(|_| Failure::Format)?;
                        let year: i64 = a.parse().map_err(|_| Failure::Format)?;
                        if !(1..=366).contains(&day) {
                            return Err(Failure::Format);
                        }
                        (self.fields.date, self.day_of_year) = (Some((year, 1, 1)), Some(day));
                        self.rest = rest;
                        return Ok(());
                    }
                    return Err(Failure::Format);
                };
                let (last, _) = take_while(c, |b| b.is_ascii_digit());
                let consumed = token.len() - (c.len() - last.len());
                self.rest = &self.rest[consumed..];
                if last.is_empty() {
                    return Err(Failure::Format);
                }
                self.delimited_date(a, b, last)
            }
            _ => {
                self.rest = after;
                if digits.len() == 8 && self.fields.date.is_none() && self.numbers.is_empty() {
                    let month = digits[4..6].parse().map_err(|_| Failure::Format)?;
                    return self.set_date(&digits[..4], month, &digits[6..]);
                }
                if digits.len() == 6 && self.time_only && self.fields.time.is_none() {
                    return self.set_compact_clock(digits, "");
                }
                if digits.len() == 6 && self.fields.date.is_none() && self.month.is_none() {
                    let month = digits[2..4].parse().map_err(|_| Failure::Format)?;
                    return self.set_date(&digits[..2], month, &digits[4..]);
                }
                if self.fields.date.is_some() && self.fields.time.is_none() && digits.len() >= 4 {
                    return self.set_compact_clock(digits, "");
                }
                if self.fields.date.is_some() && self.fields.time.is_none() {
                    // An hour before AM or PM.
                    let (next, _) = take_while(after.trim_start(), |b| b.is_ascii_alphabetic());
                    if matches!(next, "am" | "pm") {
                        let hour = digits.parse().map_err(|_| Failure::Format)?;
                        return self.set_time(hour, 0, 0, 0);
                    }
                    return Err(Failure::Format);
                }
                self.numbers.push(digits);
                Ok(())
            }
        }
    }

    fn delimited_date(&mut self, a: &str, b: &str, c: &str) -> Result<(), Failure> {
        let alphabetic = |text: &str| text.bytes().all(|b| b.is_ascii_alphabetic());
        if alphabetic(b) {
            let month = month_by_name(b).ok_or(Failure::Format)?;
            return if a.len() > 2 { self.set_date(a, month, c) } else { self.set_date(c, month, a) };
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| Failure::Format);
        number(a)?;
        if a.len() > 2 {
            return self.set_date(a, number(b)?, c);
        }
        self.set_date(c, number(a)?, b)
    }

    fn word(&mut self) -> Result<(), Failure> {
        let (word, after) = take_while(self.rest, |b| b.is_ascii_alphabetic());
        if let Some(month) = month_by_name(word) {
            if self.month.replace(month).is_some() {
                return Err(Failure::Format);
            }
            self.rest = after;
            let delimiter = after.bytes().next().filter(|b| matches!(b, b'-' | b'.' | b'/'));
            if let Some(delimiter) = delimiter {
                // `jan-08-1999`
                let (day, after) = take_while(&after[1..], |b| b.is_ascii_digit());
                self.numbers.push(day);
                self.rest = after;
                if let Some(after) = after.strip_prefix(delimiter as char) {
                    let (year, after) = take_while(after, |b| b.is_ascii_digit());
                    self.numbers.push(year);
                    self.rest = after;
                }
                if self.numbers.iter().any(|number| number.is_empty()) {
                    return Err(Failure::Format);
                }
            }
            return Ok(());
        }
        let special = match word {
            "infinity" | "inf" => Some(Special::Infinity),
            "epoch" => Some(Special::Epoch),
            "now" => Some(Special::Now),
            "today" => Some(Special::Day(0)),
            "tomorrow" => Some(Special::Day(1)),
            "yesterday" => Some(Special::Day(-1)),
            _ => None,
        };
        if let Some(special) = special {
            if self.fields.special.replace(special).is_some() || self.fields.date.is_some() {
                return Err(Failure::Format);
            }
            self.rest = after;
            return Ok(());
        }
        match word {
            "am" | "pm" => self.afternoon = Some(word == "pm"),
            "bc" => self.before_christ = true,
            "ad" | "at" | "on" => {}
            "t" if after.starts_with(|c: char| c.is_ascii_digit()) => {
                self.rest = after;
                let (digits, tail) = take_while(after, |b| b.is_ascii_digit());
                if !tail.starts_with(':') {
                    let (fraction, tail) = match tail.strip_prefix('.') {
                        Some(tail) => take_while(tail, |b| b.is_ascii_digit()),
                        None => ("", tail),
                    };
                    self.rest = tail;
                    return self.set_compact_clock(digits, fraction);
                }
                return Ok(());
            }
            "j" if after.starts_with(|c: char| c.is_ascii_digit()) => {
                let (digits, tail) = take_while(after, |b| b.is_ascii_digit());
                let julian: i64 = digits.parse().map_err(|_| Failure::Range)?;
                if julian > 2_147_483_493 {
                    return Err(Failure::Range);
                }
                self.fields.date = Some(civil_from_days(julian - 2_440_588));
                self.is_julian = true;
                self.rest = tail;
                return Ok(());
            }
            "allballs" => {
                if self.fields.time.is_some() || self.fields.zone.is_some() {
                    return Err(Failure::Format);
                }
                (self.hour, self.fields.time) = (Some(0), Some(0));
                self.fields.zone = Some(Zone::UTC);
            }
            _ if is_weekday(word) => {}
            _ => {
                let (name, tail) = take_while(self.rest, |b| {
                    b.is_ascii_alphanumeric() || matches!(b, b'/' | b'_' | b'-' | b'+')
                });
                let zone = match Zone::abbreviation(word) {
                    // An abbreviation may be followed by a number, but a name goes on.
                    Some(zone) if name == word => zone,
                    _ => match Zone::lookup(name) {
                        Some(zone) => zone,
                        None if name.contains('/') => return Err(Failure::UnknownZone(name.to_owned())),
                        None => return Err(Failure::Format),
                    },
                };
                if self.fields.zone.replace(zone).is_some() {
                    return Err(Failure::Format);
                }
                self.rest = tail;
                return Ok(());
            }
        }
        self.rest = after;
        Ok(())
    }

    fn sign(&mut self) -> Result<(), Failure> {
        let negative = self.rest.starts_with('-');
        let after = &self.rest[1..];
        if let Some(tail) = after.strip_prefix("infinity") {
            self.fields.special = Some(if negative { Special::NegativeInfinity } else { Special::Infinity });
            self.rest = tail;
            return Ok(());
        }
        if self.fields.time.is_none() && self.fields.date.is_none() || self.fields.zone.is_some() {
            return Err(Failure::Format);
        }
        let (token, tail) = take_while(after, |b| b.is_ascii_digit() || b == b':');
        self.rest = tail;
        let mut parts = token.split(':');
        let first = parts.next().unwrap_or("");
        let (hours, minutes, seconds) = match (first.len(), parts.next(), parts.next(), parts.next()) {
            (1 | 2, minutes, seconds, None) => (first, minutes.unwrap_or("0"), seconds.unwrap_or("0")),
            (3.., None, None, None) => {
                let (hours, minutes) = first.split_at(first.len() - 2);
                (hours, minutes, "0")
            }
            _ => return Err(Failure::Format),
        };
        let number = |text: &str| match text.is_empty() {
            true => Err(Failure::Format),
            false => text.parse::<i32>().map_err(|_| Failure::Displacement),
        };
        let (hours, minutes, seconds) = (number(hours)?, number(minutes)?, number(seconds)?);
        if hours > 15 || minutes > 59 || seconds > 59 {
            return Err(Failure::Displacement);
        }
        let total = hours * 3600 + minutes * 60 + seconds;
        self.fields.zone = Some(Zone::Fixed(if negative { -total } else { total }));
        Ok(())
    }

    fn finish(mut self) -> Result<Fields, Failure> {
        match (self.month, self.numbers.as_slice()) {
            (None, []) => {}
            (Some(month), &[a, b]) => {
                // The year is the longer number; the day comes first otherwise.
                if a.len() > 2 { self.set_date(a, month, b)? } else { self.set_date(b, month, a)? }
            }
            (None, &[a, b, c]) => self.delimited_date(a, b, c)?,
            _ => return Err(Failure::Format),
        }
        if let Some((year, month, day)) = self.fields.date {
            let year = match (self.before_christ, self.is_short_year) {
                _ if self.is_julian => year,
                // Years written are never 0; the year before 1 is 1 BC.
                (true, _) | (false, false) if year == 0 => return Err(Failure::Range),
                (true, _) => 1 - year,
                (false, true) => year + if year < 70 { 2000 } else { 1900 },
                (false, false) => year,
            };
            if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
                return Err(Failure::MonthOrDay);
            }
            if day > days_in_month(year, month) {
                return Err(Failure::Range);
            }
            self.fields.date = Some(match self.day_of_year {
                Some(day) => civil_from_days(days_from_civil(year, 1, 1) + day - 1),
                None => (year, month, day),
            });
        } else if self.before_christ {
            return Err(Failure::Format);
        }
        if let Some(afternoon) = self.afternoon {
            // What follows the hour may be a whole one, by rounding.
            let (hour, time) = self.hour.zip(self.fields.time).ok_or(Failure::Format)?;
            if hour > 12 {
                return Err(Failure::Range);
            }
            let moved = hour % 12 + if afternoon { 12 } else { 0 };
            let time = time + (moved - hour) * MICROS_PER_HOUR;
            // A timestamp is that of the next day.
            if self.time_only && time > MICROS_PER_DAY {
                return Err(Failure::Range);
            }
            self.fields.time = Some(time);
        }
        if self.fields.date.is_none() && self.fields.time.is_none() && self.fields.special.is_none() {
            return Err(Failure::Format);
        }
        Ok(self.fields)
    }
}

fn read(text: &str, type_name: &str) -> Result<Fields> {
    if let Some(fields) = read_fast(text) {
        return Ok(fields);
    }
    Reader::read(&text.to_ascii_lowercase(), type_name == "time")
        .map_err(|failure| failure.into_error(type_name, text))
}

fn out_of_range(what: &str, text: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("{what} out of range: \"{text}\""))
}

fn invalid(type_name: &str, text: &str) -> SqlError {
    Failure::Format.into_error(type_name, text)
}

fn today(context: &EvalContext) -> Result<i64> {
    Ok(Zone::parse(&context.time_zone)?.to_local(context.now)?.div_euclid(MICROS_PER_DAY))
}

/// Reads a date.
pub fn parse_date(text: &str, context: &EvalContext) -> Result<i32> {
    let fields = read(text, "date")?;
    let days = match (fields.special, fields.days()) {
        (Some(Special::Infinity), _) => return Ok(DATE_INFINITY),
        (Some(Special::NegativeInfinity), _) => return Ok(DATE_NEGATIVE_INFINITY),
        (Some(Special::Epoch), _) => 0,
        (Some(Special::Now), _) => today(context)?,
        (Some(Special::Day(days)), _) => today(context)? + days,
        (None, Some(days)) => days,
        (None, None) => return Err(invalid("date", text)),
    };
    checked_date(days).map_err(|_| out_of_range("date", text))
}

/// Reads a time of day.
pub fn parse_time(text: &str, context: &EvalContext) -> Result<i64> {
    let fields = read(text, "time")?;
    match (fields.time, fields.special) {
        (Some(time), _) => Ok(time),
        (None, Some(Special::Now)) => {
            Ok(Zone::parse(&context.time_zone)?.to_local(context.now)?.rem_euclid(MICROS_PER_DAY))
        }
        _ => Err(invalid("time", text)),
    }
}

/// The local timestamp of the fields, `Err` with the instant for words that name one.
fn local_timestamp(
    fields: &Fields,
    text: &str,
    type_name: &str,
    context: &EvalContext,
) -> Result<Result<i64, i64>> {
    let range = |_| out_of_range("timestamp", text);
    let day = |days: i64| {
        let time = fields.time.unwrap_or(0);
        checked_timestamp(i128::from(days) * i128::from(MICROS_PER_DAY) + i128::from(time)).map_err(range)
    };
    Ok(match (fields.special, fields.days()) {
        (Some(Special::Infinity), _) => Err(TIMESTAMP_INFINITY),
        (Some(Special::NegativeInfinity), _) => Err(TIMESTAMP_NEGATIVE_INFINITY),
        (Some(Special::Epoch), _) => Err(0),
        (Some(Special::Now), _) => Err(context.now),
        (Some(Special::Day(days)), _) => Ok(day(today(context)? + days)?),
        (None, Some(days)) => Ok(day(days)?),
        (None, None) => return Err(invalid(type_name, text)),
    })
}

/// Reads a timestamp; a zone is read and ignored.
pub fn parse_timestamp(text: &str, context: &EvalContext) -> Result<i64> {
    let fields = read(text, "timestamp")?;
    match local_timestamp(&fields, text, "timestamp", context)? {
        Ok(local) => Ok(local),
        // The epoch is that of Greenwich, now is the session's.
        Err(0) => Ok(0),
        Err(instant) => Zone::parse(&context.time_zone)?.to_local(instant),
    }
}

/// Reads a timestamp with time zone; without a zone it is local to the session's.
pub fn parse_timestamptz(text: &str, context: &EvalContext) -> Result<i64> {
    let fields = read(text, "timestamp with time zone")?;
    match local_timestamp(&fields, text, "timestamp with time zone", context)? {
        Ok(local) => {
            let zone = match fields.zone {
                Some(zone) => zone,
                None => Zone::parse(&context.time_zone)?,
            };
            zone.to_utc(local).map_err(|_| out_of_range("timestamp", text))
        }
        Err(instant) => Ok(instant),
    }
}
