//! `to_date` and `to_timestamp`: dates and times read by a template.

use super::{
    Node, Suffix,
    datetime::{DAYS, MONTHS, PATTERNS, ROMAN_MONTHS},
    is_separator, is_space, parse,
};
use crate::{
    datetime::{
        MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND, Zone, checked_date,
        checked_timestamp, civil_from_days, days_from_civil, days_in_month,
    },
    error::{Result, SqlError, SqlState},
};

/// Days from the Julian day 0 to 1970-01-01.
const JULIAN_1970: i64 = 2_440_588;

fn invalid(message: String) -> SqlError {
    SqlError::new(SqlState::INVALID_DATETIME, message)
}

/// The two ways to name a day; a template uses one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Convention {
    Gregorian,
    IsoWeek,
}

fn convention(pattern: &str) -> Option<Convention> {
    match pattern {
        "ddd" | "dd" | "d" | "mm" | "month" | "mon" | "rm" | "ww" | "w" | "y,yyy" | "yyyy" | "yyy" | "yy"
        | "y" => Some(Convention::Gregorian),
        "iddd" | "id" | "iw" | "iyyy" | "iyy" | "iy" | "i" => Some(Convention::IsoWeek),
        _ => None,
    }
}

/// Whether a pattern reads digits only.
fn is_number(pattern: &str) -> bool {
    !matches!(
        pattern,
        "a.d."
            | "a.m."
            | "ad"
            | "am"
            | "b.c."
            | "bc"
            | "day"
            | "dy"
            | "fx"
            | "month"
            | "mon"
            | "of"
            | "p.m."
            | "pm"
            | "rm"
            | "tzh"
            | "tz"
    )
}

/// The fields that were read; 0 where there was none.
#[derive(Debug, Default)]
struct Fields {
    convention: Option<Convention>,
    hour: i32,
    afternoon: i32,
    minute: i32,
    second: i32,
    seconds_of_day: i32,
    /// Sunday is 1.
    weekday: i32,
    day: i32,
    day_of_year: i32,
    month: i32,
    millis: i32,
    year: i32,
    before_christ: i32,
    week: i32,
    week_of_month: i32,
    century: i32,
    julian: i32,
    micros: i32,
    /// Digits of the year's pattern.
    year_digits: u32,
    twelve_hours: bool,
    zone_sign: i32,
    zone_hours: i32,
    zone_minutes: i32,
}

/// A local time, and its zone's offset if one was read.
struct Moment {
    days: i64,
    micros: i64,
    offset: Option<i32>,
}

struct Reader<'s> {
    rest: &'s str,
    /// What has been passed, for a minus in front of TZH.
    whole: &'s str,
    exact: bool,
    fields: Fields,
}

fn set(field: &mut i32, value: i32, pattern: &str) -> Result<()> {
    if *field != 0 && *field != value {
        return Err(invalid(format!("conflicting values for \"{pattern}\" field in formatting string"))
            .with_detail("This value contradicts a previous setting for the same field type."));
    }
    *field = value;
    Ok(())
}

/// A two-digit year means one between 1970 and 2069; and so on.
fn complete_year(year: i32) -> i32 {
    match year {
        ..70 => year + 2000,
        70..100 => year + 1900,
        100..520 => year + 2000,
        520..1000 => year + 1000,
        _ => year,
    }
}

impl<'s> Reader<'s> {
    fn skip_spaces(&mut self) -> i32 {
        let trimmed = self.rest.trim_start_matches(is_space);
        let skipped = self.rest.len() - trimmed.len();
        self.rest = trimmed;
        skipped as i32
    }

    fn skip_character(&mut self) {
        let mut rest = self.rest.chars();
        rest.next();
        self.rest = rest.as_str();
    }

    fn read(&mut self, nodes: &[Node]) -> Result<()> {
        let mut skipped = 0;
        for (index, node) in nodes.iter().enumerate() {
            if self.rest.is_empty() {
                break;
            }
            let is_pattern = matches!(node, Node::Pattern(..));
            let is_exact = matches!(node, Node::Pattern("FX" | "fx", _));
            if !self.exact && !is_exact && (is_pattern || index == 0) {
                skipped += self.skip_spaces();
            }
            match node {
                Node::Space(_) | Node::Separator(_) if !self.exact => {
                    // One blank or separator in the text for one in the template, or none.
                    skipped -= 1;
                    if self.rest.starts_with(|c| is_space(c) || is_separator(c)) {
                        self.skip_character();
                        skipped += 1;
                    }
                }
                Node::Space(_) | Node::Separator(_) => self.skip_character(),
                // What was skipped already may be this character.
                Node::Text(_) if !self.exact && skipped > 0 => skipped -= 1,
                Node::Text(_) => self.skip_character(),
                Node::Pattern(pattern, suffix) => {
                    self.pattern(pattern, *suffix, nodes.get(index + 1), skipped)?;
                    if !self.exact {
                        skipped = self.skip_spaces();
                    }
                }
            }
        }
        Ok(())
    }

    /// A whole number of at most `length` digits (of exactly as many where digits follow) and how long it was.
    fn number(
        &mut self,
        length: usize,
        pattern: &str,
        suffix: Suffix,
        next: Option<&Node>,
    ) -> Result<(i32, usize)> {
        self.skip_spaces();
        let until_other = suffix.fill_mode
            || suffix.ordinal.is_some()
            || match next {
                None => true,
                Some(Node::Pattern(next, _)) => !is_number(&next.to_ascii_lowercase()),
                Some(other) => !other.character().is_some_and(|c| c.is_ascii_digit()),
            };
        // Lengths are of bytes, but nothing beyond ASCII is a digit.
        let mut end = length.min(self.rest.len());
        while !self.rest.is_char_boundary(end) {
            end -= 1;
        }
        let copy = &self.rest[..end];
        let source = if until_other { self.rest } else { copy };
        let digits = |text: &str| {
            let unsigned = text.trim_start_matches(is_space);
            let blanks = text.len() - unsigned.len();
            let sign = usize::from(unsigned.starts_with(['+', '-']));
            let count = unsigned[sign..].bytes().take_while(u8::is_ascii_digit).count();
            if count == 0 { 0 } else { blanks + sign + count }
        };
        let hint = "If your source string is not fixed-width, try using the \"FM\" modifier.";
        let used = digits(source);
        if !until_other {
            if copy.len() < length {
                return Err(invalid(format!("source string too short for \"{pattern}\" formatting field"))
                    .with_detail(format!(
                        "Field requires {length} characters, but only {} remain.",
                        copy.len()
                    ))
                    .with_hint(hint));
            }
            if used > 0 && used < length {
                return Err(invalid(format!("invalid value \"{copy}\" for \"{pattern}\""))
                    .with_detail(format!(
                        "Field requires {length} characters, but only {used} could be parsed."
                    ))
                    .with_hint(hint));
            }
        }
        if used == 0 {
            return Err(invalid(format!("invalid value \"{copy}\" for \"{pattern}\""))
                .with_detail("Value must be an integer."));
        }
        let text = source[..used].trim_start_matches(is_space);
        let value = text.strip_prefix('+').unwrap_or(text).parse::<i32>().map_err(|_| {
            SqlError::new(
                SqlState::DATETIME_OVERFLOW,
                format!("value for \"{pattern}\" in source string is out of range"),
            )
            .with_detail(format!("Value must be in the range {} to {}.", i32::MIN, i32::MAX))
        })?;
        self.rest = &self.rest[used..];
        Ok((value, used))
    }

    /// The index of the name that the text begins with, in any case.
    fn name(&mut self, names: &[&str], pattern: &str) -> Result<usize> {
        let begins =
            |name: &str| self.rest.get(..name.len()).is_some_and(|text| text.eq_ignore_ascii_case(name));
        if let Some(index) = names.iter().position(|name| begins(name)) {
            self.rest = &self.rest[names[index].len()..];
            return Ok(index);
        }
        let word = self.rest.split(is_space).next().unwrap_or_default();
        Err(invalid(format!("invalid value \"{word}\" for \"{pattern}\""))
            .with_detail("The given value did not match any of the allowed values for this field."))
    }

    fn pattern(
        &mut self,
        pattern: &'static str,
        suffix: Suffix,
        next: Option<&Node>,
        skipped: i32,
    ) -> Result<()> {
        let lower = pattern.to_ascii_lowercase();
        if let Some(convention) = convention(&lower) {
            if self.fields.convention.is_some_and(|before| before != convention) {
                return Err(invalid("invalid combination of date conventions".into()).with_hint(
                    "Do not mix Gregorian and ISO week date conventions in a formatting template.",
                ));
            }
            self.fields.convention = Some(convention);
        }
        // The number of digits is that of the pattern where nothing else is said.
        let length = match lower.as_str() {
            "hh" | "hh12" | "hh24" | "tzh" | "tzm" => 2,
            "iddd" | "ms" => 3,
            "us" => 6,
            "id" => 1,
            ff if ff.starts_with("ff") => usize::from(ff.as_bytes()[2] - b'0'),
            other => other.len(),
        };
        macro_rules! number {
            ($field:ident) => {{
                let (value, used) = self.number(length, pattern, suffix, next)?;
                set(&mut self.fields.$field, value, pattern)?;
                used
            }};
        }
        match lower.as_str() {
            "fx" => {
                self.exact = true;
                return Ok(());
            }
            "a.m." | "p.m." | "am" | "pm" => {
                let names = if lower.contains('.') { ["a.m.", "p.m."] } else { ["am", "pm"] };
                let half = self.name(&names, pattern)?;
                set(&mut self.fields.afternoon, half as i32, pattern)?;
                self.fields.twelve_hours = true;
                return Ok(());
            }
            "hh" | "hh12" => {
                number!(hour);
                self.fields.twelve_hours = true;
            }
            "hh24" => {
                number!(hour);
            }
            "mi" => {
                number!(minute);
            }
            "ss" => {
                number!(second);
            }
            "ms" => {
                let used = number!(millis);
                self.fields.millis *= [1, 100, 10].get(used).copied().unwrap_or(1);
            }
            "us" | "ff1" | "ff2" | "ff3" | "ff4" | "ff5" | "ff6" => {
                let used = number!(micros);
                self.fields.micros *= [1, 100_000, 10_000, 1_000, 100, 10].get(used).copied().unwrap_or(1);
            }
            "ssss" | "sssss" => {
                number!(seconds_of_day);
            }
            "tz" | "of" => {
                return Err(SqlError::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("formatting field \"{pattern}\" is only supported in to_char"),
                ));
            }
            "tzh" => {
                // The sign may have been taken for a separator.
                let passed = &self.whole[..self.whole.len() - self.rest.len()];
                self.fields.zone_sign = match self.rest.chars().next() {
                    Some('-') => -1,
                    Some('+' | ' ') => 1,
                    _ if skipped > 0 && passed.ends_with('-') => -1,
                    _ => 1,
                };
                if self.rest.starts_with(['+', '-', ' ']) {
                    self.skip_character();
                }
                number!(zone_hours);
                return Ok(());
            }
            "tzm" => {
                if self.fields.zone_sign == 0 {
                    self.fields.zone_sign = 1;
                }
                number!(zone_minutes);
                return Ok(());
            }
            "a.d." | "b.c." | "ad" | "bc" => {
                let names = if lower.contains('.') { ["a.d.", "b.c."] } else { ["ad", "bc"] };
                let era = self.name(&names, pattern)?;
                return set(&mut self.fields.before_christ, era as i32, pattern);
            }
            "month" | "mon" => {
                let short = MONTHS.map(|name| &name[..3]);
                let month = self.name(if lower == "mon" { &short } else { &MONTHS }, pattern)?;
                return set(&mut self.fields.month, month as i32 + 1, pattern);
            }
            "rm" => {
                // Longer numbers before those they begin with.
                let reversed: Vec<&str> = ROMAN_MONTHS.iter().rev().copied().collect();
                let month = self.name(&reversed, pattern)?;
                return set(&mut self.fields.month, 12 - month as i32, pattern);
            }
            "mm" => {
                number!(month);
            }
            "day" | "dy" => {
                let short = DAYS.map(|name| &name[..3]);
                let day = self.name(if lower == "dy" { &short } else { &DAYS }, pattern)?;
                set(&mut self.fields.weekday, day as i32, pattern)?;
                self.fields.weekday += 1;
                return Ok(());
            }
            "ddd" | "iddd" => {
                number!(day_of_year);
            }
            "dd" => {
                number!(day);
            }
            "d" => {
                number!(weekday);
            }
            "id" => {
                number!(weekday);
                // From Monday as 1 to Sunday as 1.
                self.fields.weekday = if self.fields.weekday + 1 > 7 { 1 } else { self.fields.weekday + 1 };
            }
            "ww" | "iw" => {
                number!(week);
            }
            // A quarter alone says too little; it is read and forgotten.
            "q" => {
                self.number(length, pattern, suffix, next)?;
            }
            "cc" => {
                number!(century);
            }
            "y,yyy" => {
                let error = || invalid("invalid input string for \"Y,YYY\"".into());
                let (thousands, behind) =
                    self.rest.trim_start_matches(is_space).split_once(',').ok_or_else(error)?;
                let count = behind.bytes().take(3).take_while(u8::is_ascii_digit).count();
                let years = behind[..count].parse::<i32>().map_err(|_| error())?;
                let thousands = thousands.parse::<i32>().map_err(|_| error())?;
                let year =
                    thousands.checked_mul(1000).and_then(|y| y.checked_add(years)).ok_or_else(error)?;
                set(&mut self.fields.year, year, pattern)?;
                self.fields.year_digits = 4;
                self.rest = &behind[count..];
            }
            "yyyy" | "iyyy" => {
                number!(year);
                self.fields.year_digits = 4;
            }
            "yyy" | "iyy" | "yy" | "iy" | "y" | "i" => {
                let used = number!(year);
                if used < 4 {
                    self.fields.year = complete_year(self.fields.year);
                }
                self.fields.year_digits = length as u32;
            }
            "w" => {
                number!(week_of_month);
            }
            "j" => {
                number!(julian);
            }
            _ => {}
        }
        if suffix.ordinal.is_some() {
            self.skip_character();
            self.skip_character();
        }
        Ok(())
    }
}

fn field_out_of_range(text: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, format!("date/time field value out of range: \"{text}\""))
}

/// The first day of an ISO year, a Monday, in days since 1970.
fn iso_year_start(year: i64) -> i64 {
    let january_4 = days_from_civil(year, 1, 4);
    january_4 - (january_4 + 3).rem_euclid(7)
}

fn read(text: &str, template: &str) -> Result<Moment> {
    let nodes = parse(template, PATTERNS, true);
    let mut reader = Reader { rest: text, whole: text, exact: false, fields: Fields::default() };
    reader.read(&nodes)?;
    let mut f = reader.fields;

    let (mut hour, mut minute, mut second) = (0i64, 0i64, 0i64);
    if f.seconds_of_day != 0 {
        let seconds = i64::from(f.seconds_of_day);
        (hour, minute, second) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
    }
    for (field, value) in [(&mut second, f.second), (&mut minute, f.minute), (&mut hour, f.hour)] {
        if value != 0 {
            *field = value.into();
        }
    }
    if f.twelve_hours {
        if !(1..=12).contains(&hour) {
            return Err(invalid(format!("hour \"{hour}\" is invalid for the 12-hour clock"))
                .with_hint("Use the 24-hour clock, or give an hour between 1 and 12."));
        }
        match (f.afternoon != 0, hour) {
            (true, ..12) => hour += 12,
            (false, 12) => hour = 0,
            _ => {}
        }
    }

    let (mut year, mut month, mut day) = (0i64, 1i64, 1i64);
    let (mut has_month, mut has_day) = (false, false);
    let before_christ = f.before_christ != 0;
    let century = i64::from(if before_christ { -f.century } else { f.century });
    if f.year != 0 {
        if f.century != 0 && f.year_digits <= 2 {
            // The low digits of a year of the century; the 21st century runs from 2001 to 2100.
            year = i64::from(f.year % 100);
            year = match (year, century >= 0) {
                (0, true) => century * 100,
                (0, false) => century * 100 + 1,
                (low, true) => low + (century - 1) * 100,
                (low, false) => (century + 1) * 100 - low + 1,
            };
        } else {
            year = i64::from(if before_christ { -f.year } else { f.year });
            year += i64::from(year < 0);
        }
    } else if f.century != 0 {
        year = if century >= 0 { (century - 1) * 100 + 1 } else { century * 100 + 1 };
    }
    let mut set_date = |days: i64, year: &mut i64, month: &mut i64, day: &mut i64| {
        let (y, m, d) = civil_from_days(days);
        (*year, *month, *day) = (y, m.into(), d.into());
        (has_month, has_day) = (true, true);
    };
    if f.julian != 0 {
        set_date(i64::from(f.julian) - JULIAN_1970, &mut year, &mut month, &mut day);
    }
    if f.week != 0 {
        if f.convention == Some(Convention::IsoWeek) {
            // Without a day of the week the date is its Monday.
            let weekday = match f.weekday {
                0 => 0,
                1 => 6,
                weekday => i64::from(weekday) - 2,
            };
            let days = iso_year_start(year) + (i64::from(f.week) - 1) * 7 + weekday;
            set_date(days, &mut year, &mut month, &mut day);
        } else {
            f.day_of_year = f.week.saturating_sub(1).saturating_mul(7).saturating_add(1);
        }
    }
    if f.week_of_month != 0 {
        f.day = f.week_of_month.saturating_sub(1).saturating_mul(7).saturating_add(1);
    }
    if f.day != 0 {
        (day, has_day) = (f.day.into(), true);
    }
    if f.month != 0 {
        (month, has_month) = (f.month.into(), true);
    }
    if f.day_of_year != 0 && (month <= 1 || day <= 1) {
        if year == 0 && !before_christ {
            return Err(invalid("cannot calculate day of year without year information".into()));
        }
        let wanted = i64::from(f.day_of_year);
        if f.convention == Some(Convention::IsoWeek) {
            let (y, m, d) = civil_from_days(iso_year_start(year) + wanted - 1);
            (year, month, day) = (y, m.into(), d.into());
        } else {
            let mut before = 0;
            let mut found = 1;
            while found <= 12 && wanted > before + i64::from(days_in_month(year, found)) {
                before += i64::from(days_in_month(year, found));
                found += 1;
            }
            if month <= 1 {
                month = found.into();
            }
            if day <= 1 {
                day = wanted - before;
            }
        }
        (has_month, has_day) = (true, true);
    }
    let micros_of_second = i64::from(f.millis) * 1000 + i64::from(f.micros);
    let wrong_date = (has_month && !(1..=12).contains(&month))
        || (has_day && !(1..=31).contains(&day))
        || (has_month && has_day && day > i64::from(days_in_month(year, month.clamp(1, 12) as u32)));
    let wrong_time = !(0..24).contains(&hour)
        || !(0..60).contains(&minute)
        || !(0..60).contains(&second)
        || !(0..MICROS_PER_SECOND).contains(&micros_of_second);
    if wrong_date || wrong_time {
        return Err(field_out_of_range(text));
    }
    let offset = match f.zone_sign {
        0 => None,
        _ if !(0..=15).contains(&f.zone_hours) || !(0..60).contains(&f.zone_minutes) => {
            return Err(SqlError::new(
                SqlState(*b"22009"),
                format!("time zone displacement out of range: \"{text}\""),
            ));
        }
        sign => Some(sign * (f.zone_hours * 3600 + f.zone_minutes * 60)),
    };
    Ok(Moment {
        days: days_from_civil(year, month as u32, 1) + day - 1,
        micros: hour * MICROS_PER_HOUR
            + minute * MICROS_PER_MINUTE
            + second * MICROS_PER_SECOND
            + micros_of_second,
        offset,
    })
}

/// `to_timestamp(text, template)`: microseconds since 1970 UTC.
pub(crate) fn to_timestamp(text: &str, template: &str, zone: &Zone) -> Result<i64> {
    let moment = read(text, template)?;
    let local =
        checked_timestamp(i128::from(moment.days) * i128::from(MICROS_PER_DAY) + i128::from(moment.micros))?;
    moment.offset.map_or(*zone, Zone::Fixed).to_utc(local)
}

/// `to_date(text, template)`: days since 1970.
pub(crate) fn to_date(text: &str, template: &str) -> Result<i32> {
    checked_date(read(text, template)?.days)
        .map_err(|_| SqlError::new(SqlState::DATETIME_OVERFLOW, format!("date out of range: \"{text}\"")))
}
