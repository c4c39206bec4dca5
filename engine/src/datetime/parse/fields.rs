//! The second and the third step: fields are filled in as tokens tell them, none of them twice, and checked
//! at the end.
//!
//! What a bare number is, is told by the fields that there are before it: with `DateStyle` MDY the first one
//! of up to two digits is a month, then come the day and the year; a longer one is a year, then come the
//! month and the day.

use smallvec::SmallVec;

use super::{
    Failure,
    keyword::{Keyword, Label, keyword},
    number::{
        Clock, digits_value, displacement, fraction_micros, fraction_value, signed_displacement, take_integer,
    },
};
use crate::datetime::{
    MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND, civil_from_days, days_from_civil,
    days_in_month, split_digits,
    zone::{Abbreviation, Zone},
};

/// The day of number 0 of those that astronomers count, in days since 1970-01-01.
const JULIAN_EPOCH: i64 = -2_440_588;

/// A set of fields.
pub(super) type Mask = u32;
pub(super) const YEAR: Mask = 1;
pub(super) const MONTH: Mask = 1 << 1;
pub(super) const DAY: Mask = 1 << 2;
const DAY_OF_YEAR: Mask = 1 << 3;
const HOUR: Mask = 1 << 4;
const MINUTE: Mask = 1 << 5;
const SECOND: Mask = 1 << 6;
const FRACTION: Mask = 1 << 7;
pub(super) const ZONE: Mask = 1 << 8;
/// An offset of daylight saving time, or the word for it.
const DAYLIGHT_SAVING: Mask = 1 << 9;
/// The zone is by the time that a place has.
const ZONE_OF_PLACE: Mask = 1 << 10;
const HALF_OF_DAY: Mask = 1 << 11;
const ERA: Mask = 1 << 12;
pub(super) const WEEKDAY: Mask = 1 << 13;
/// One of the words for a whole date and time.
pub(super) const SPECIAL: Mask = 1 << 14;
pub(super) const DATE: Mask = YEAR | MONTH | DAY;
pub(super) const TIME: Mask = HOUR | MINUTE | SECOND | FRACTION;

/// A zone as it is given; what time it has there is known at the end only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GivenZone {
    /// Seconds east of Greenwich.
    Displacement(i32),
    /// The name of a zone.
    Name(Zone),
    /// The abbreviation of a place's time.
    Abbreviation(Zone),
}

/// What has been read.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// Which fields there are.
    pub given: Mask,
    year: i32,
    month: i32,
    day: i32,
    day_of_year: i32,
    hour: i32,
    minute: i32,
    second: i32,
    micros: i32,
    /// The zone, if there is one.
    pub zone: Option<GivenZone>,
    /// What the number behind this token is.
    pub label: Option<Label>,
    /// The year has no century.
    is_short_year: bool,
    /// The year is that of a count of days: there is a year 0.
    is_julian: bool,
    is_before_christ: bool,
    has_month_name: bool,
    is_afternoon: Option<bool>,
}

impl Fields {
    /// Notes that fields are given, which they must not have been.
    pub fn give(&mut self, fields: Mask) -> Result<(), Failure> {
        if self.given & fields != 0 {
            return Err(Failure::Format);
        }
        self.given |= fields;
        Ok(())
    }

    /// Whether all of these fields are given.
    pub fn has(&self, fields: Mask) -> bool {
        self.given & fields == fields
    }

    fn set_civil(&mut self, (year, month, day): (i64, u32, u32)) {
        (self.year, self.month, self.day) = (year as i32, month as i32, day as i32);
    }

    /// Sets the date to this many days since 1970-01-01.
    pub fn set_days(&mut self, days: i64) {
        self.set_civil(civil_from_days(days));
    }

    fn set_julian(&mut self, number: i32) -> Result<(), Failure> {
        if number < 0 {
            return Err(Failure::Range);
        }
        self.is_julian = true;
        self.set_days(i64::from(number) + JULIAN_EPOCH);
        Ok(())
    }

    /// Sets the time of day.
    fn set_micros(&mut self, micros: i64) {
        self.hour = (micros / MICROS_PER_HOUR) as i32;
        self.minute = (micros / MICROS_PER_MINUTE % 60) as i32;
        self.second = (micros / MICROS_PER_SECOND % 60) as i32;
        self.micros = (micros % MICROS_PER_SECOND) as i32;
    }

    /// Sets the date and the time to those of a local timestamp.
    pub fn set_local(&mut self, local: i64) {
        self.set_days(local.div_euclid(MICROS_PER_DAY));
        self.set_micros(local.rem_euclid(MICROS_PER_DAY));
    }

    /// Reads the word for midnight in Greenwich. A fraction that a number left behind stays, as it does in
    /// PostgreSQL.
    pub fn midnight(&mut self) -> Result<(), Failure> {
        (self.hour, self.minute, self.second) = (0, 0, 0);
        self.zone = Some(GivenZone::Displacement(0));
        self.give(TIME | ZONE)
    }

    /// The time of day in microseconds, which is not always checked: what is more than a day counts, and what
    /// is more than 32 bits of seconds is lost as in PostgreSQL.
    pub fn time_micros(&self) -> i64 {
        let minutes = self.hour.wrapping_mul(60).wrapping_add(self.minute);
        let seconds = minutes.wrapping_mul(60).wrapping_add(self.second);
        i64::from(seconds) * MICROS_PER_SECOND + i64::from(self.micros)
    }

    /// The date in days since 1970-01-01.
    pub fn days(&self) -> i64 {
        days_from_civil(i64::from(self.year), self.month as u32, self.day as u32)
    }

    /// Whether the parts of the time are in range, and the whole of it.
    pub fn check_time(&self) -> Result<(), Failure> {
        let valid = (0..=24).contains(&self.hour)
            && (0..60).contains(&self.minute)
            && (0..=60).contains(&self.second)
            && self.time_micros() <= MICROS_PER_DAY;
        if valid { Ok(()) } else { Err(Failure::Range) }
    }

    /// Reads `hh:mm…`.
    pub fn clock(&mut self, text: &str) -> Result<(), Failure> {
        let Clock { hour, minute, second, micros } = Clock::read(text)?;
        self.hour = hour.try_into().map_err(|_| Failure::Range)?;
        (self.minute, self.second, self.micros) = (minute, second, micros);
        Ok(())
    }

    /// Reads a date of three numbers, or two and a month's name, or two for year and day of the year.
    pub fn date(&mut self, text: &str) -> Result<(), Failure> {
        let parts = date_parts(text)?;
        let is_word = |part: &str| part.as_bytes()[0].is_ascii_alphabetic();
        let mut has_month_name = false;
        for word in parts.iter().filter(|part| is_word(part)) {
            let Some(Keyword::Month(month)) = keyword(word) else { return Err(Failure::Format) };
            (self.month, has_month_name) = (month, true);
            self.give(MONTH)?;
        }
        for number in parts.iter().filter(|part| !is_word(part)) {
            let fields = self.number(number, self.given, has_month_name)?;
            self.give(fields)?;
        }
        // Nothing but a zone may come before.
        if self.given & !(DAY_OF_YEAR | ZONE) != DATE { Err(Failure::Format) } else { Ok(()) }
    }

    /// Reads a single number and tells which fields it is, with `given` as the fields before it.
    pub fn number(&mut self, text: &str, given: Mask, has_month_name: bool) -> Result<Mask, Failure> {
        let (value, rest) = take_integer::<i32>(text)?;
        let digits = text.len() - rest.len();
        if digits == 0 {
            return Err(Failure::Format);
        }
        if rest.starts_with('.') {
            if digits > 2 {
                return self.run_together(text, given | DATE);
            }
            self.micros = fraction_micros(rest)?;
        } else if !rest.is_empty() {
            return Err(Failure::Format);
        }
        let is_long = text.len() > 2;
        if text.len() == 3 && given & DATE == YEAR && (1..=366).contains(&value) {
            self.day_of_year = value;
            return Ok(DAY_OF_YEAR | MONTH | DAY);
        }
        let field = match given & DATE {
            0 if is_long => YEAR,
            0 | YEAR | DAY => MONTH,
            MONTH if has_month_name && is_long => YEAR,
            DATE => return self.run_together(text, given),
            fields if fields & DAY == 0 => DAY,
            fields if fields & YEAR == 0 => YEAR,
            _ => return Err(Failure::Format),
        };
        match field {
            YEAR => {
                self.year = value;
                self.is_short_year = !is_long;
            }
            MONTH => self.month = value,
            _ => self.day = value,
        }
        Ok(field)
    }

    /// Reads a single number as [`number`](Fields::number) does, and notes its fields.
    pub fn bare_number(&mut self, text: &str, given: Mask) -> Result<(), Failure> {
        let fields = self.number(text, given, self.has_month_name)?;
        self.give(fields)
    }

    /// Reads digits without marks: `yymmdd` with a year of any length while there is no date, else `hhmmss`
    /// or `hhmm`, which may have a fraction.
    pub fn run_together(&mut self, text: &str, given: Mask) -> Result<Mask, Failure> {
        let mut digits = text;
        if let Some(point) = text.find('.') {
            let (fraction, _) = split_digits(&text[point + 1..]);
            self.micros = fraction_micros(&text[point..point + 1 + fraction.len()])?;
            digits = &text[..point];
        } else if given & DATE != DATE && digits.len() >= 6 {
            let (year, month_and_day) = digits.split_at(digits.len() - 4);
            self.year = digits_value(year);
            self.month = digits_value(&month_and_day[..2]);
            self.day = digits_value(&month_and_day[2..]);
            self.is_short_year |= year.len() == 2;
            return Ok(DATE);
        }
        if given & TIME == TIME || !matches!(digits.len(), 4 | 6) {
            return Err(Failure::Format);
        }
        self.hour = digits_value(&digits[..2]);
        self.minute = digits_value(&digits[2..4]);
        self.second = digits_value(&digits[4..]);
        Ok(TIME)
    }

    /// Reads `hhmmss-zz` with any displacement; its digits are a date if `given` lacks one.
    pub fn run_together_with_zone(&mut self, text: &str, given: Mask) -> Result<(), Failure> {
        let minus = text.find('-').filter(|_| !self.has(TIME)).ok_or(Failure::Format)?;
        self.zone = Some(GivenZone::Displacement(signed_displacement(&text[minus..])?));
        let fields = self.run_together(&text[..minus], given)?;
        self.give(fields | ZONE)
    }

    /// Reads the number behind a label.
    pub fn labelled(&mut self, label: Label, text: &str) -> Result<(), Failure> {
        let (value, rest) = take_integer::<i32>(text)?;
        let may_go_on = match label {
            Label::Second | Label::Julian | Label::Time => rest.starts_with('.'),
            _ => false,
        };
        if !rest.is_empty() && !may_go_on {
            return Err(Failure::Format);
        }
        let (field, fields) = match label {
            Label::Year => (&mut self.year, YEAR),
            Label::Month if self.has(MONTH) && self.has(HOUR) => (&mut self.minute, MINUTE),
            Label::Month => (&mut self.month, MONTH),
            Label::Day => (&mut self.day, DAY),
            Label::Hour => (&mut self.hour, HOUR),
            Label::Minute => (&mut self.minute, MINUTE),
            Label::Second if rest.is_empty() => (&mut self.second, SECOND),
            Label::Second => {
                self.micros = fraction_micros(rest)?;
                (&mut self.second, SECOND | FRACTION)
            }
            Label::Julian => {
                self.set_julian(value)?;
                if rest.is_empty() {
                    return self.give(DATE);
                }
                self.set_micros((fraction_value(rest)? * MICROS_PER_DAY as f64) as i64);
                return self.give(DATE | TIME);
            }
            Label::Time => {
                return match self.run_together(text, self.given | DATE)? {
                    TIME => self.give(TIME),
                    _ => Err(Failure::Format),
                };
            }
            Label::Other => return Err(Failure::Format),
        };
        *field = value;
        self.give(fields)
    }

    /// Reads a number of days since 4714-11-24 BC with a displacement behind it.
    pub fn julian_with_zone(&mut self, text: &str) -> Result<(), Failure> {
        let (value, rest) = take_integer::<i32>(text)?;
        self.set_julian(value)?;
        self.zone = Some(GivenZone::Displacement(signed_displacement(rest)?));
        self.give(DATE | TIME | ZONE)
    }

    /// Reads a displacement behind its sign.
    pub fn displacement(&mut self, negative: bool, text: &str) -> Result<(), Failure> {
        let east = displacement(text)?;
        self.zone = Some(GivenZone::Displacement(if negative { -east } else { east }));
        self.give(ZONE)
    }

    /// Reads the name of a zone.
    pub fn zone_name(&mut self, name: &str) -> Result<(), Failure> {
        let zone = Zone::lookup(name).ok_or_else(|| Failure::UnknownZone(name.to_owned()))?;
        self.zone = Some(GivenZone::Name(zone));
        self.give(ZONE)
    }

    /// Reads a word that is no keyword: the abbreviation or the name of a zone.
    pub fn zone_word(&mut self, word: &str) -> Result<(), Failure> {
        let (zone, fields) = match Zone::abbreviation(word) {
            Some(Abbreviation::Offset(offset, false)) => (GivenZone::Displacement(offset), ZONE),
            Some(Abbreviation::Offset(offset, true)) => {
                (GivenZone::Displacement(offset), ZONE | DAYLIGHT_SAVING)
            }
            Some(Abbreviation::Place(zone)) => (GivenZone::Abbreviation(zone), ZONE | ZONE_OF_PLACE),
            None => (GivenZone::Name(Zone::lookup(word).ok_or(Failure::Format)?), ZONE),
        };
        self.zone = Some(zone);
        self.give(fields)
    }

    /// Reads a keyword that means the same in all types; `Format` for others.
    pub fn keyword(&mut self, keyword: Keyword) -> Result<(), Failure> {
        match keyword {
            Keyword::DaylightSaving => {
                // It counts behind an offset only.
                if let Some(GivenZone::Displacement(offset)) = &mut self.zone {
                    *offset += 3600;
                }
                self.give(DAYLIGHT_SAVING)
            }
            Keyword::Afternoon(is_afternoon) => {
                self.is_afternoon = Some(is_afternoon);
                self.give(HALF_OF_DAY)
            }
            Keyword::BeforeChrist(is_before_christ) => {
                self.is_before_christ = is_before_christ;
                self.give(ERA)
            }
            Keyword::Label(label) => {
                self.label = Some(label);
                Ok(())
            }
            Keyword::Filler => Ok(()),
            _ => Err(Failure::Format),
        }
    }

    /// Reads a month's name. A number before it that seemed to be a month is the day.
    pub fn month_name(&mut self, month: i32) -> Result<(), Failure> {
        let is_day_before =
            self.given & (MONTH | DAY) == MONTH && !self.has_month_name && (1..=31).contains(&self.month);
        let field = if is_day_before {
            self.day = self.month;
            DAY
        } else {
            MONTH
        };
        self.has_month_name = true;
        self.month = month;
        self.give(field)
    }

    /// Gives the year its century and its era, turns a day of the year into month and day, and checks them.
    pub fn finish_date(&mut self) -> Result<(), Failure> {
        if self.has(YEAR) && !self.is_julian {
            let may_be_zero = self.is_short_year && !self.is_before_christ;
            if self.year < 0 || self.year == 0 && !may_be_zero {
                return Err(Failure::Range);
            }
            self.year = match self.year {
                year if self.is_before_christ => 1 - year,
                year if self.is_short_year => year + if year < 70 { 2000 } else { 1900 },
                year => year,
            };
        }
        if self.has(DAY_OF_YEAR) {
            let first = days_from_civil(i64::from(self.year), 1, 1);
            self.set_days(first + i64::from(self.day_of_year) - 1);
        }
        let is_month = !self.has(MONTH) || (1..=12).contains(&self.month);
        let is_day = !self.has(DAY) || (1..=31).contains(&self.day);
        if !is_month || !is_day {
            return Err(Failure::MonthOrDay);
        }
        if self.has(DATE) && self.day > days_in_month(i64::from(self.year), self.month as u32) as i32 {
            return Err(Failure::Range);
        }
        Ok(())
    }

    /// Moves the hour into its half of the day.
    pub fn finish_hour(&mut self) -> Result<(), Failure> {
        let Some(is_afternoon) = self.is_afternoon else { return Ok(()) };
        if self.hour > 12 {
            return Err(Failure::Range);
        }
        match (is_afternoon, self.hour) {
            (false, 12) => self.hour = 0,
            (true, hour) if hour != 12 => self.hour += 12,
            _ => {}
        }
        Ok(())
    }

    /// Refuses a word for daylight saving time that there is no offset for.
    pub fn check_zone(&self) -> Result<(), Failure> {
        let has_offset = matches!(self.zone, Some(GivenZone::Displacement(_)));
        if self.has(DAYLIGHT_SAVING) && !has_offset { Err(Failure::Format) } else { Ok(()) }
    }
}

/// The words and the numbers of a date. One more character, whatever it is, goes with each of them.
fn date_parts(text: &str) -> Result<SmallVec<[&str; 4]>, Failure> {
    let mut parts = SmallVec::new();
    let mut rest = text;
    while !rest.is_empty() {
        rest = &rest[rest.bytes().take_while(|b| !b.is_ascii_alphanumeric()).count()..];
        let is_number = rest.as_bytes().first().ok_or(Failure::Format)?.is_ascii_digit();
        let belongs = |b: &u8| b.is_ascii_alphanumeric() && b.is_ascii_digit() == is_number;
        let (part, after) = rest.split_at(rest.bytes().take_while(belongs).count());
        parts.push(part);
        rest = after.get(1..).unwrap_or("");
    }
    Ok(parts)
}
