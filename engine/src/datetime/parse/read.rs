//! The second step's two readings: of a date with a time, and of a time of day.

use super::{
    super::{MICROS_PER_DAY, Zone},
    Failure,
    fields::{DATE, DAY, Fields, GivenZone, MONTH, SPECIAL, TIME, WEEKDAY, ZONE},
    keyword::{Keyword, Label, keyword},
    token::{Token, split},
};
use crate::expr::EvalContext;

/// Characters that a date or a time has room for.
pub(super) const ROOM: usize = 129;
/// Characters that a timestamp has room for.
pub(super) const TIMESTAMP_ROOM: usize = 153;

/// What a text of a date or a timestamp says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    /// Later than all others.
    Infinity,
    /// Earlier than all others.
    NegativeInfinity,
    /// 1970-01-01, in Greenwich if that matters.
    Epoch,
    /// A date and a time.
    Local {
        /// Days since 1970-01-01.
        days: i64,
        /// Microseconds since midnight.
        micros: i64,
        /// Whose clock shows that time, if not the session's.
        zone: Option<Zone>,
    },
}

/// The session's local time in microseconds, and its displacement.
fn now(context: &EvalContext) -> Result<(i64, GivenZone), Failure> {
    let zone = Zone::parse(&context.time_zone)?;
    Ok((zone.to_local(context.now)?, GivenZone::Displacement(zone.offset_at_utc(context.now))))
}

/// Reads a date or a timestamp, in small letters, of no more characters than there is room for.
pub(super) fn read_moment(text: &str, room: usize, context: &EvalContext) -> Result<Moment, Failure> {
    let tokens = split(text, room)?;
    let mut fields = Fields::default();
    let mut special = None;
    for (i, token) in tokens.iter().enumerate() {
        match *token {
            Token::Date(text) => date_of_moment(&mut fields, text)?,
            Token::Time(text) => {
                if fields.label.take().is_some_and(|label| label != Label::Time) {
                    return Err(Failure::Format);
                }
                fields.clock(text)?;
                fields.check_time()?;
                fields.give(TIME)?;
            }
            Token::Number(text) => {
                if let Some(label) = fields.label.take() {
                    special = None;
                    fields.labelled(label, text)?;
                } else {
                    number_of_moment(&mut fields, text)?;
                }
            }
            Token::Signed(negative, text) => fields.displacement(negative, text)?,
            Token::SignedWord(true, "infinity") => {
                special = Some(Moment::NegativeInfinity);
                fields.give(SPECIAL)?;
            }
            Token::SignedWord(..) => return Err(Failure::Format),
            Token::Word(word) => match keyword(word) {
                None => fields.zone_word(word)?,
                Some(Keyword::Infinity) => {
                    special = Some(Moment::Infinity);
                    fields.give(SPECIAL)?;
                }
                Some(Keyword::Epoch) => {
                    special = Some(Moment::Epoch);
                    fields.give(SPECIAL)?;
                }
                Some(Keyword::Now) => {
                    special = None;
                    let (local, zone) = now(context)?;
                    fields.set_local(local);
                    fields.zone = Some(zone);
                    fields.give(DATE | TIME | ZONE)?;
                }
                Some(Keyword::Today(days)) => {
                    special = None;
                    fields.set_days(now(context)?.0.div_euclid(MICROS_PER_DAY) + days);
                    fields.give(DATE)?;
                }
                Some(Keyword::Midnight) => {
                    special = None;
                    fields.midnight()?;
                }
                Some(Keyword::Month(month)) => fields.month_name(month)?,
                Some(Keyword::Weekday) => fields.give(WEEKDAY)?,
                Some(Keyword::Label(Label::Time)) => {
                    if !fields.has(DATE) || !is_time_like(tokens.get(i + 1)) {
                        return Err(Failure::Format);
                    }
                    fields.label = Some(Label::Time);
                }
                Some(other) => fields.keyword(other)?,
            },
        }
    }
    fields.finish_date()?;
    fields.finish_hour()?;
    if let Some(special) = special {
        return Ok(special);
    }
    if !fields.has(DATE) {
        return Err(Failure::Format);
    }
    fields.check_zone()?;
    let zone = fields.zone.map(|zone| match zone {
        GivenZone::Displacement(offset) => Zone::Fixed(offset),
        GivenZone::Name(zone) | GivenZone::Abbreviation(zone) => zone,
    });
    Ok(Moment::Local { days: fields.days(), micros: fields.time_micros(), zone })
}

/// Whether a time of day can be read from a token behind `t`.
fn is_time_like(token: Option<&Token>) -> bool {
    matches!(token, Some(Token::Number(_) | Token::Time(_) | Token::Date(_)))
}

/// A token of several parts is a date, but behind a month and a day a zone, or a time with one.
fn date_of_moment(fields: &mut Fields, text: &str) -> Result<(), Failure> {
    match fields.label.take() {
        Some(Label::Julian) => fields.julian_with_zone(text),
        Some(Label::Time) => fields.run_together_with_zone(text, fields.given),
        Some(_) => Err(Failure::Format),
        None if !fields.has(MONTH | DAY) => fields.date(text),
        None if text.starts_with(|c: char| c.is_ascii_digit()) => {
            fields.run_together_with_zone(text, fields.given)
        }
        None => fields.zone_name(text),
    }
}

/// Long numbers are dates or times run together, as long as there is not a part of each.
fn number_of_moment(fields: &mut Fields, text: &str) -> Result<(), Failure> {
    let point = text.find('.');
    if point.is_some() && fields.given & DATE == 0 {
        return fields.date(text);
    }
    let is_long = text.len() >= 6 && (fields.given & DATE == 0 || fields.given & TIME == 0);
    if is_long || point.is_some_and(|point| point > 2) {
        let read = fields.run_together(text, fields.given)?;
        return fields.give(read);
    }
    fields.bare_number(text, fields.given)
}

/// Reads a time of day, in small letters, in microseconds.
pub(super) fn read_time(text: &str, context: &EvalContext) -> Result<i64, Failure> {
    let tokens = split(text, ROOM)?;
    let mut fields = Fields::default();
    // A date may come first, if it is clear that the time is elsewhere.
    let ends_with_date = tokens.len() >= 2 && matches!(tokens.last(), Some(Token::Date(_)));
    let begins_with_date = ends_with_date || matches!(tokens.get(1), Some(Token::Time(_)));
    for (i, token) in tokens.iter().enumerate() {
        match *token {
            Token::Date(text) if i == 0 && begins_with_date => fields.date(text)?,
            Token::Date(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                fields.run_together_with_zone(text, fields.given | DATE)?;
            }
            Token::Date(text) => fields.zone_name(text)?,
            Token::Time(text) => {
                fields.clock(text)?;
                fields.give(TIME)?;
            }
            Token::Number(text) => {
                if let Some(label) = fields.label.take() {
                    fields.labelled(label, text)?;
                } else if text.contains('.') && i == 0 && ends_with_date {
                    fields.date(text)?;
                } else {
                    number_of_time(&mut fields, text)?;
                }
            }
            Token::Signed(negative, text) => fields.displacement(negative, text)?,
            Token::SignedWord(..) => return Err(Failure::Format),
            Token::Word(word) => match keyword(word) {
                None => fields.zone_word(word)?,
                Some(Keyword::Now) => {
                    fields.set_local(now(context)?.0);
                    fields.give(TIME)?;
                }
                Some(Keyword::Midnight) => fields.midnight()?,
                Some(Keyword::Label(Label::Time)) if !is_time_like(tokens.get(i + 1)) => {
                    return Err(Failure::Format);
                }
                Some(other) => fields.keyword(other)?,
            },
        }
    }
    fields.finish_date()?;
    fields.finish_hour()?;
    fields.check_time()?;
    if !fields.has(TIME) {
        return Err(Failure::Format);
    }
    fields.check_zone()?;
    // The time that clocks show there must be known, for which the session's zone takes no date or all of it.
    let is_known = match fields.zone {
        Some(GivenZone::Displacement(_)) => true,
        Some(GivenZone::Name(zone)) => fields.has(DATE) || zone.is_constant(),
        Some(GivenZone::Abbreviation(_)) | None => fields.has(DATE) || fields.given & DATE == 0,
    };
    if is_known { Ok(fields.time_micros()) } else { Err(Failure::Format) }
}

/// A number is an hour and its minutes, perhaps with seconds.
fn number_of_time(fields: &mut Fields, text: &str) -> Result<(), Failure> {
    let given = fields.given | DATE;
    let is_long = match text.find('.') {
        Some(point) if point <= 2 => return Err(Failure::Format),
        Some(_) => true,
        None => text.len() > 4,
    };
    if is_long {
        let read = fields.run_together(text, given)?;
        return fields.give(read);
    }
    fields.bare_number(text, given)
}
