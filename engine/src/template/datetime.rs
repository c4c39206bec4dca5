//! `to_char` of timestamps and intervals.

use std::fmt::Write as _;

use super::{Node, Suffix, ordinal_ending, parse};
use crate::{
    datetime::{
        MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND, Zone, civil_from_days,
        days_from_civil,
    },
    error::{Result, SqlError, SqlState},
    interval::Interval,
};

/// The patterns of dates and times, longer ones before their prefixes.
pub(super) const PATTERNS: &[&str] = &[
    "A.D.", "A.M.", "AD", "AM", "B.C.", "BC", "CC", "DAY", "DDD", "DD", "DY", "Day", "Dy", "D", "FF1", "FF2",
    "FF3", "FF4", "FF5", "FF6", "FX", "HH24", "HH12", "HH", "IDDD", "ID", "IW", "IYYY", "IYY", "IY", "I",
    "J", "MI", "MM", "MONTH", "MON", "MS", "Month", "Mon", "OF", "P.M.", "PM", "Q", "RM", "SSSSS", "SSSS",
    "SS", "TZH", "TZM", "TZ", "US", "WW", "W", "Y,YYY", "YYYY", "YYY", "YY", "Y", "a.d.", "a.m.", "ad", "am",
    "b.c.", "bc", "cc", "day", "ddd", "dd", "dy", "d", "ff1", "ff2", "ff3", "ff4", "ff5", "ff6", "fx",
    "hh24", "hh12", "hh", "iddd", "id", "iw", "iyyy", "iyy", "iy", "i", "j", "mi", "mm", "month", "mon",
    "ms", "of", "p.m.", "pm", "q", "rm", "sssss", "ssss", "ss", "tzh", "tzm", "tz", "us", "ww", "w", "y,yyy",
    "yyyy", "yyy", "yy", "y",
];

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
pub(super) const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
pub(super) const ROMAN_MONTHS: [&str; 12] =
    ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// An instant in a zone that goes by a name.
#[derive(Clone, Copy)]
pub(crate) struct InZone<'a> {
    pub zone: Zone,
    pub name: &'a str,
    pub instant: i64,
}

/// What a template shows: the fields of a timestamp or of an interval.
struct Clock<'a> {
    /// Years; of a timestamp 0 is 1 BC.
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    day_of_year: i64,
    /// Days since 1970, of a timestamp.
    days: Option<i64>,
    /// The session's zone and the instant of a timestamp with time zone.
    zone: Option<InZone<'a>>,
}

/// `to_char` of a finite local timestamp, which in `zone` is an instant.
pub(crate) fn timestamp_to_char(local: i64, zone: Option<InZone>, template: &str) -> Result<String> {
    let (days, time) = (local.div_euclid(MICROS_PER_DAY), local.rem_euclid(MICROS_PER_DAY));
    let (year, month, day) = civil_from_days(days);
    let clock = Clock {
        year,
        month: month.into(),
        day: day.into(),
        hour: time / MICROS_PER_HOUR,
        minute: time / MICROS_PER_MINUTE % 60,
        second: time / MICROS_PER_SECOND % 60,
        micros: time % MICROS_PER_SECOND,
        day_of_year: days - days_from_civil(year, 1, 1) + 1,
        days: Some(days),
        zone,
    };
    clock.write(template)
}

/// `to_char` of an interval.
pub(crate) fn interval_to_char(interval: &Interval, template: &str) -> Result<String> {
    let (year, month) = (i64::from(interval.months / 12), i64::from(interval.months % 12));
    let (day, time) = (i64::from(interval.days), interval.microseconds);
    let clock = Clock {
        year,
        month,
        day,
        hour: time / MICROS_PER_HOUR,
        minute: time / MICROS_PER_MINUTE % 60,
        second: time / MICROS_PER_SECOND % 60,
        micros: time % MICROS_PER_SECOND,
        // Approximates the span in days.
        day_of_year: (year * 12 + month) * 30 + day,
        days: None,
        zone: None,
    };
    clock.write(template)
}

/// The number, padded with zeros to `width` digits (one more place for a sign) unless in fill mode.
fn padded(number: i64, width: usize, suffix: Suffix) -> String {
    match (suffix.fill_mode, number < 0) {
        (true, _) => number.to_string(),
        (false, false) => format!("{number:0width$}"),
        (false, true) => format!("{number:0width$}", width = width + 1),
    }
}

fn only_for_timestamps() -> SqlError {
    SqlError::new(SqlState::INVALID_DATETIME, "invalid format specification for an interval value")
        .with_hint("Intervals are not tied to specific calendar dates.")
}

impl Clock<'_> {
    fn write(&self, template: &str) -> Result<String> {
        let mut out = String::new();
        for node in parse(template, PATTERNS, true) {
            match node {
                Node::Pattern(pattern, suffix) => self.pattern(pattern, suffix, &mut out)?,
                other => out.extend(other.character()),
            }
        }
        Ok(out)
    }

    /// The year as it is written: before Christ it counts backwards, without a year 0.
    fn written_year(&self, year: i64) -> i64 {
        if self.days.is_some() && year <= 0 { 1 - year } else { year }
    }

    /// Days since 1970; of an interval as if its fields were a date, whatever they are.
    fn days_since_1970(&self) -> i64 {
        self.days.unwrap_or_else(|| {
            let (month, year) = if self.month > 2 {
                (self.month + 1, self.year + 4800)
            } else {
                (self.month + 13, self.year + 4799)
            };
            let century = year / 100;
            let julian =
                year * 365 - 32_167 + year / 4 - century + century / 4 + 7834 * month / 256 + self.day;
            julian - 2_440_588
        })
    }

    /// The Thursday of the ISO week, which tells its year and number, in days since 1970.
    fn thursday(&self) -> i64 {
        let days = self.days_since_1970();
        days - (days + 3).rem_euclid(7) + 3
    }

    fn iso_year(&self) -> i64 {
        civil_from_days(self.thursday()).0
    }

    fn iso_week(&self) -> i64 {
        (self.thursday() - days_from_civil(self.iso_year(), 1, 1)) / 7 + 1
    }

    fn offset(&self) -> i64 {
        self.zone.map_or(0, |InZone { zone, instant, .. }| i64::from(zone.offset_at_utc(instant)))
    }

    fn pattern(&self, pattern: &'static str, suffix: Suffix, out: &mut String) -> Result<()> {
        let days = || self.days.ok_or_else(only_for_timestamps);
        let named = |name: &str, width: usize| {
            let name = match pattern.as_bytes() {
                [first, second, ..] if first.is_ascii_uppercase() && second.is_ascii_uppercase() => {
                    name.to_ascii_uppercase()
                }
                [first, ..] if first.is_ascii_uppercase() => name.to_owned(),
                _ => name.to_ascii_lowercase(),
            };
            if suffix.fill_mode || suffix.translated { name } else { format!("{name:width$}") }
        };
        let lower = pattern.to_ascii_lowercase();
        let half = |names: [&str; 2]| {
            let name = names[usize::from(self.hour % 24 >= 12)];
            if pattern.starts_with(|c: char| c.is_ascii_uppercase()) {
                name.to_uppercase()
            } else {
                name.to_owned()
            }
        };
        let era = |names: [&str; 2]| {
            let name = names[usize::from(self.year <= 0)];
            if pattern.starts_with(|c: char| c.is_ascii_uppercase()) {
                name.to_uppercase()
            } else {
                name.to_owned()
            }
        };
        let year = self.written_year(self.year);
        let number = match lower.as_str() {
            "a.m." | "p.m." => return push(out, &half(["a.m.", "p.m."])),
            "am" | "pm" => return push(out, &half(["am", "pm"])),
            "hh" | "hh12" => {
                // C's remainder has the sign of the dividend, but twelve takes the place of zero.
                let hour = if self.hour % 12 == 0 { 12 } else { self.hour % 12 };
                let width = if self.hour >= 0 { 2 } else { 3 };
                if suffix.fill_mode { hour.to_string() } else { format!("{hour:0width$}") }
            }
            "hh24" => padded(self.hour, 2, suffix),
            "mi" => padded(self.minute, 2, suffix),
            "ss" => padded(self.second, 2, suffix),
            "ff1" => format!("{:01}", self.micros / 100_000),
            "ff2" => format!("{:02}", self.micros / 10_000),
            "ff3" | "ms" => format!("{:03}", self.micros / 1_000),
            "ff4" => format!("{:04}", self.micros / 100),
            "ff5" => format!("{:05}", self.micros / 10),
            "ff6" | "us" => format!("{:06}", self.micros),
            "ssss" | "sssss" => (self.hour * 3600 + self.minute * 60 + self.second).to_string(),
            "tz" => {
                days()?;
                if let Some(InZone { zone, name, instant }) = self.zone {
                    let name = zone.abbreviation_at(name, instant);
                    return push(out, &if pattern == "tz" { name.to_ascii_lowercase() } else { name });
                }
                return Ok(());
            }
            "tzh" => {
                days()?;
                let sign = if self.offset() >= 0 { '+' } else { '-' };
                return push(out, &format!("{sign}{:02}", self.offset().abs() / 3600));
            }
            "tzm" => {
                days()?;
                return push(out, &format!("{:02}", self.offset().abs() % 3600 / 60));
            }
            "of" => {
                days()?;
                let (sign, seconds) = (if self.offset() >= 0 { '+' } else { '-' }, self.offset().abs());
                out.push(sign);
                out.push_str(&padded(seconds / 3600, 2, suffix));
                if seconds % 3600 != 0 {
                    let _ = write!(out, ":{:02}", seconds % 3600 / 60);
                }
                return Ok(());
            }
            "a.d." | "b.c." => {
                days()?;
                return push(out, &era(["a.d.", "b.c."]));
            }
            "ad" | "bc" => {
                days()?;
                return push(out, &era(["ad", "bc"]));
            }
            "month" | "mon" => {
                days()?;
                let name = MONTHS[(self.month - 1).clamp(0, 11) as usize];
                let text = if lower == "mon" { named(&name[..3], 0) } else { named(name, 9) };
                return push(out, &text);
            }
            "mm" => padded(self.month, 2, suffix),
            "day" | "dy" => {
                let name = DAYS[(days()? + 4).rem_euclid(7) as usize];
                let text = if lower == "dy" { named(&name[..3], 0) } else { named(name, 9) };
                return push(out, &text);
            }
            "ddd" => format!("{:0width$}", self.day_of_year, width = if suffix.fill_mode { 0 } else { 3 }),
            "iddd" => {
                let first_monday = {
                    let january_4 = days_from_civil(self.iso_year(), 1, 4);
                    january_4 - (january_4 + 3).rem_euclid(7)
                };
                format!(
                    "{:0width$}",
                    self.days_since_1970() - first_monday + 1,
                    width = if suffix.fill_mode { 0 } else { 3 }
                )
            }
            "dd" => format!("{:0width$}", self.day, width = if suffix.fill_mode { 0 } else { 2 }),
            "d" => ((days()? + 4).rem_euclid(7) + 1).to_string(),
            "id" => ((days()? + 3).rem_euclid(7) + 1).to_string(),
            "ww" => {
                let week = (self.day_of_year - 1) / 7 + 1;
                format!("{week:0width$}", width = if suffix.fill_mode { 0 } else { 2 })
            }
            "iw" => format!("{:0width$}", self.iso_week(), width = if suffix.fill_mode { 0 } else { 2 }),
            "q" if self.month == 0 => return Ok(()),
            "q" => ((self.month - 1) / 3 + 1).to_string(),
            "cc" => {
                let century = match self.days {
                    None => self.year / 100,
                    Some(_) if self.year > 0 => (self.year - 1) / 100 + 1,
                    Some(_) => self.year / 100 - 1,
                };
                if (-99..=99).contains(&century) { padded(century, 2, suffix) } else { century.to_string() }
            }
            "y,yyy" => format!("{},{:03}", year / 1000, year - year / 1000 * 1000),
            "yyyy" => padded(year, 4, suffix),
            "yyy" => padded(year % 1000, 3, suffix),
            "yy" => padded(year % 100, 2, suffix),
            "y" => (year % 10).to_string(),
            "iyyy" => padded(self.written_year(self.iso_year()), 4, suffix),
            "iyy" => padded(self.written_year(self.iso_year()) % 1000, 3, suffix),
            "iy" => padded(self.written_year(self.iso_year()) % 100, 2, suffix),
            "i" => (self.written_year(self.iso_year()) % 10).to_string(),
            "rm" => {
                if self.month == 0 && self.year == 0 {
                    return Ok(());
                }
                // Of an interval months may be negative and count from the end; whole years are a December.
                let index = match self.month {
                    0 if self.year >= 0 => 11,
                    0 => 0,
                    month if month < 0 => 12 + month,
                    month => month - 1,
                };
                let name = ROMAN_MONTHS[index.clamp(0, 11) as usize];
                let name = if pattern == "rm" { name.to_ascii_lowercase() } else { name.to_owned() };
                return push(out, &if suffix.fill_mode { name } else { format!("{name:4}") });
            }
            "w" => ((self.day - 1) / 7 + 1).to_string(),
            "j" => (self.days_since_1970() + 2_440_588).to_string(),
            // FX matters only for input.
            _ => return Ok(()),
        };
        out.push_str(&number);
        if let Some(capitals) = suffix.ordinal {
            out.push_str(ordinal_ending(&number, capitals));
        }
        Ok(())
    }
}

fn push(out: &mut String, text: &str) -> Result<()> {
    out.push_str(text);
    Ok(())
}
