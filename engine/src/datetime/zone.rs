//! Time zones: IANA names, abbreviations and fixed offsets.

use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeZone};
use chrono_tz::{OffsetComponents, OffsetName, Tz};

use super::{
    MICROS_PER_DAY, MICROS_PER_SECOND, checked_timestamp, civil_from_days, days_from_civil, is_finite,
};
use crate::error::{Result, SqlError, SqlState};

/// A time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// A fixed offset, in seconds east of Greenwich.
    Fixed(i32),
    /// A zone of the IANA database.
    Named(Tz),
}

/// Abbreviations of PostgreSQL's default set that have one meaning all year, in minutes east of Greenwich.
const ABBREVIATIONS: &[(&str, i32)] = &[
    ("acdt", 630),
    ("acst", 570),
    ("adt", -180),
    ("aedt", 660),
    ("aest", 600),
    ("akdt", -480),
    ("akst", -540),
    ("ast", -240),
    ("awst", 480),
    ("bst", 60),
    ("cdt", -300),
    ("cest", 120),
    ("cet", 60),
    ("cst", -360),
    ("eat", 180),
    ("edt", -240),
    ("eest", 180),
    ("eet", 120),
    ("est", -300),
    ("gmt", 0),
    ("hkt", 480),
    ("hst", -600),
    ("idt", 180),
    ("ist", 120),
    ("jst", 540),
    ("kst", 540),
    ("mdt", -360),
    ("mest", 120),
    ("met", 60),
    ("mst", -420),
    ("ndt", -150),
    ("nst", -210),
    ("nzdt", 780),
    ("nzst", 720),
    ("pdt", -420),
    ("pkt", 300),
    ("pst", -480),
    ("sast", 120),
    ("sgt", 480),
    ("uct", 0),
    ("ut", 0),
    ("utc", 0),
    ("wast", 120),
    ("wat", 60),
    ("west", 60),
    ("wet", 0),
    ("z", 0),
    ("zulu", 0),
];

/// `hh[:mm[:ss]]` in seconds.
fn clock_seconds(text: &str) -> Option<i32> {
    let mut total = 0;
    let mut factor = 3600;
    for (i, field) in text.split(':').enumerate() {
        if i > 2 || field.is_empty() || field.len() > 2 || !field.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        total += field.parse::<i32>().ok()? * factor;
        factor /= 60;
    }
    (total < 16 * 3600).then_some(total)
}

impl Zone {
    /// Greenwich.
    pub const UTC: Zone = Zone::Fixed(0);

    /// The zone of this abbreviation.
    pub fn abbreviation(name: &str) -> Option<Zone> {
        let lower = name.to_ascii_lowercase();
        let found = ABBREVIATIONS.binary_search_by(|(known, _)| known.cmp(&lower.as_str())).ok()?;
        Some(Zone::Fixed(ABBREVIATIONS[found].1 * 60))
    }

    /// The zone of a setting: an IANA name in any case, a POSIX offset (`+02` and `XYZ+2` lie two hours *west*, as POSIX
    /// has it), or PostgreSQL's form of a numeric setting, `<+02>-02`. 22023 for anything else.
    pub fn parse(name: &str) -> Result<Zone> {
        if name == "UTC" {
            return Ok(Zone::UTC);
        }
        Zone::lookup(name).ok_or_else(|| {
            SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"TimeZone\": \"{name}\""),
            )
        })
    }

    /// As [`Zone::parse`], or an abbreviation; the error is that of `AT TIME ZONE`.
    pub fn parse_for_conversion(name: &str) -> Result<Zone> {
        Zone::abbreviation(name).or_else(|| Zone::lookup(name)).ok_or_else(|| {
            SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("time zone \"{name}\" not recognized"))
        })
    }

    /// A zone by name, without an error.
    pub(super) fn lookup(name: &str) -> Option<Zone> {
        if let Ok(zone) = name.parse::<Tz>() {
            return Some(Zone::Named(zone));
        }
        if let Some(zone) = chrono_tz::TZ_VARIANTS.iter().find(|zone| zone.name().eq_ignore_ascii_case(name))
        {
            return Some(Zone::Named(*zone));
        }
        if name.eq_ignore_ascii_case("zulu") || name.eq_ignore_ascii_case("uct") {
            return Some(Zone::UTC);
        }
        // POSIX: an optional name (in angle brackets when it is no word), then the offset to the west.
        let rest = match name.strip_prefix('<') {
            Some(quoted) => quoted.split_once('>')?.1,
            None => name.trim_start_matches(|c: char| c.is_ascii_alphabetic()),
        };
        if rest.is_empty() {
            return None;
        }
        let (west, digits) = match rest.as_bytes()[0] {
            b'+' => (1, &rest[1..]),
            b'-' => (-1, &rest[1..]),
            b'0'..=b'9' if rest.len() < name.len() => (1, rest),
            _ => return None,
        };
        Some(Zone::Fixed(-west * clock_seconds(digits)?))
    }

    /// Seconds east of Greenwich at an instant.
    pub fn offset_at_utc(&self, micros: i64) -> i32 {
        match self {
            Zone::Fixed(offset) => *offset,
            Zone::Named(zone) => zone.offset_from_utc_datetime(&naive(micros)).fix().local_minus_utc(),
        }
    }

    /// The abbreviation of the zone in force at an instant, such as `EST`; the offset where there is none.
    pub fn abbreviation_at(&self, micros: i64) -> String {
        match self {
            Zone::Fixed(0) => "UTC".into(),
            Zone::Fixed(offset) => {
                let (sign, seconds) = (if *offset < 0 { '-' } else { '+' }, offset.unsigned_abs());
                let mut text = format!("{sign}{:02}", seconds / 3600);
                if !seconds.is_multiple_of(3600) {
                    text.push_str(&format!(":{:02}", seconds / 60 % 60));
                }
                text
            }
            Zone::Named(zone) => {
                zone.offset_from_utc_datetime(&naive(micros)).abbreviation().unwrap_or_default().to_owned()
            }
        }
    }

    /// Whether daylight saving time is in force at an instant.
    pub fn is_daylight_saving(&self, micros: i64) -> bool {
        match self {
            Zone::Fixed(_) => false,
            Zone::Named(zone) => !zone.offset_from_utc_datetime(&naive(micros)).dst_offset().is_zero(),
        }
    }

    /// Seconds east of Greenwich at a local time. In a gap the offset before it counts, of two readings the later.
    pub fn offset_at_local(&self, local: i64) -> i32 {
        match self {
            Zone::Fixed(offset) => *offset,
            Zone::Named(zone) => match zone.offset_from_local_datetime(&naive(local)) {
                LocalResult::Single(offset) => offset.fix().local_minus_utc(),
                LocalResult::Ambiguous(a, b) => a.fix().local_minus_utc().min(b.fix().local_minus_utc()),
                LocalResult::None => self.offset_at_utc(local.saturating_sub(MICROS_PER_DAY)),
            },
        }
    }

    /// The local timestamp of an instant.
    pub fn to_local(&self, micros: i64) -> Result<i64> {
        if !is_finite(micros) {
            return Ok(micros);
        }
        let offset = self.offset_at_utc(micros);
        checked_timestamp(i128::from(micros) + i128::from(offset) * i128::from(MICROS_PER_SECOND))
    }

    /// The instant of a local timestamp.
    pub fn to_utc(&self, local: i64) -> Result<i64> {
        if !is_finite(local) {
            return Ok(local);
        }
        let offset = self.offset_at_local(local);
        checked_timestamp(i128::from(local) - i128::from(offset) * i128::from(MICROS_PER_SECOND))
    }
}

/// Years up to which the bundled database lists its rules' changes one by one.
const LAST_LISTED_YEAR: i64 = 2037;
/// The last of them, which are under the rules that hold from then on: among them the first of January, and that of March, are every
/// day of the week.
const UNDER_LASTING_RULES: std::ops::Range<i64> = LAST_LISTED_YEAR - 11..LAST_LISTED_YEAR;

/// Chrono's form of a timestamp. One beyond the years that the database lists is moved into a late listed year in which this part
/// of the year has the same days of the week, by which clocks are changed; one before them lies in a time without changes.
fn naive(micros: i64) -> NaiveDateTime {
    let days = micros.div_euclid(MICROS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    let moved = if year > LAST_LISTED_YEAR {
        let begins = |year: i64| days_from_civil(year, if month > 2 { 3 } else { 1 }, 1).rem_euclid(7);
        let same = UNDER_LASTING_RULES.rev().find(|listed| begins(*listed) == begins(year));
        let days = days_from_civil(same.unwrap_or(LAST_LISTED_YEAR), month, day);
        days * MICROS_PER_DAY + micros.rem_euclid(MICROS_PER_DAY)
    } else {
        micros.max(-20_000 * 365 * MICROS_PER_DAY)
    };
    DateTime::from_timestamp_micros(moved).unwrap_or_default().naive_utc()
}
