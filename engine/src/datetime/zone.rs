//! Time zones: IANA names, abbreviations, fixed offsets and POSIX zones such as `XYZ5XYT`.

use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeZone};
use chrono_tz::{OffsetName, Tz};

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
    /// A zone of two offsets, in seconds east of Greenwich, whose clocks are changed on the second Sunday of March
    /// and on the first of November, in all years. That is what POSIX's form means without rules of its own, as in
    /// `XYZ5XYT`.
    Seasonal {
        /// The offset in winter.
        standard: i32,
        /// The offset in summer.
        daylight: i32,
    },
    /// Moscow's standard time, even where its clocks were advanced.
    Msk,
}

/// What an abbreviation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abbreviation {
    /// An offset in seconds east of Greenwich, and whether it is that of daylight saving time.
    Offset(i32, bool),
    /// The offset that a place has then.
    Place(Zone),
}

/// Abbreviations of PostgreSQL's default set that have one meaning all year, in minutes east of Greenwich, and
/// whether they are of daylight saving time.
const ABBREVIATIONS: &[(&str, i32, bool)] = &[
    ("acdt", 630, true),
    ("acsst", 630, true),
    ("acst", 570, false),
    ("act", -300, false),
    ("acwst", 525, false),
    ("adt", -180, true),
    ("aedt", 660, true),
    ("aesst", 660, true),
    ("aest", 600, false),
    ("aft", 270, false),
    ("akdt", -480, true),
    ("akst", -540, false),
    ("almst", 420, true),
    ("almt", 360, false),
    ("amt", -240, false),
    ("ast", -240, false),
    ("awsst", 540, true),
    ("awst", 480, false),
    ("azost", 0, true),
    ("azot", -60, false),
    ("bdst", 120, true),
    ("bdt", 360, false),
    ("bnt", 480, false),
    ("bort", 480, false),
    ("bot", -240, false),
    ("bra", -180, false),
    ("brst", -120, true),
    ("brt", -180, false),
    ("bst", 60, true),
    ("btt", 360, false),
    ("cadt", 630, true),
    ("cast", 570, false),
    ("cct", 480, false),
    ("cdt", -300, true),
    ("cest", 120, true),
    ("cet", 60, false),
    ("cetdst", 120, true),
    ("chadt", 825, true),
    ("chast", 765, false),
    ("chut", 600, false),
    ("clst", -180, true),
    ("cot", -300, false),
    ("cst", -360, false),
    ("cxt", 420, false),
    ("ddut", 600, false),
    ("eat", 180, false),
    ("edt", -240, true),
    ("eest", 180, true),
    ("eet", 120, false),
    ("eetdst", 180, true),
    ("egst", 0, true),
    ("egt", -60, false),
    ("est", -300, false),
    ("fet", 180, false),
    ("fjst", 780, true),
    ("fjt", 720, false),
    ("fnst", -60, true),
    ("fnt", -120, false),
    ("galt", -360, false),
    ("gamt", -540, false),
    ("gft", -180, false),
    ("gilt", 720, false),
    ("gmt", 0, false),
    ("hkt", 480, false),
    ("hst", -600, false),
    ("ict", 420, false),
    ("idt", 180, true),
    ("irt", 210, false),
    ("ist", 120, false),
    ("jayt", 540, false),
    ("jst", 540, false),
    ("kdt", 600, true),
    ("kgst", 360, true),
    ("kst", 540, false),
    ("lhst", 630, false),
    ("ligt", 600, false),
    ("mart", -570, false),
    ("mdt", -360, true),
    ("mest", 120, true),
    ("mesz", 120, true),
    ("met", 60, false),
    ("metdst", 120, true),
    ("mez", 60, false),
    ("mht", 720, false),
    ("mmt", 390, false),
    ("mpt", 600, false),
    ("msd", 240, true),
    ("mst", -420, false),
    ("must", 300, true),
    ("mut", 240, false),
    ("mvt", 300, false),
    ("myt", 480, false),
    ("ndt", -150, true),
    ("nft", -210, false),
    ("npt", 345, false),
    ("nst", -210, false),
    ("nzdt", 780, true),
    ("nzst", 720, false),
    ("nzt", 720, false),
    ("pdt", -420, true),
    ("pet", -300, false),
    ("pgt", 600, false),
    ("pht", 480, false),
    ("pkst", 360, true),
    ("pkt", 300, false),
    ("pmdt", -120, true),
    ("pmst", -180, false),
    ("pont", 660, false),
    ("pst", -480, false),
    ("pwt", 540, false),
    ("pyst", -180, true),
    ("ret", 240, false),
    ("sadt", 630, true),
    ("sast", 120, false),
    ("sct", 240, false),
    ("taht", -600, false),
    ("tft", 300, false),
    ("tjt", 300, false),
    ("tot", 780, false),
    ("trut", 600, false),
    ("tvt", 720, false),
    ("uct", 0, false),
    ("ulast", 540, true),
    ("ut", 0, false),
    ("utc", 0, false),
    ("uyst", -120, true),
    ("uyt", -180, false),
    ("uzst", 360, true),
    ("uzt", 300, false),
    ("vut", 660, false),
    ("wadt", 480, true),
    ("wakt", 720, false),
    ("wast", 420, false),
    ("wat", 60, false),
    ("wdt", 540, true),
    ("wet", 0, false),
    ("wetdst", 60, true),
    ("wft", 720, false),
    ("wgst", -120, true),
    ("wgt", -180, false),
    ("xjt", 360, false),
    ("yapt", 600, false),
    ("yekst", 360, true),
    ("z", 0, false),
    ("zulu", 0, false),
];

/// Abbreviations of that set that stand for the time that a place has then. (MSK is not among them: it is
/// [a zone of its own](Zone::Msk), as clocks in Moscow went by another abbreviation in summer.)
const OF_PLACES: &[(&str, Tz)] = &[
    ("amst", Tz::Asia__Yerevan),
    ("anast", Tz::Asia__Anadyr),
    ("anat", Tz::Asia__Anadyr),
    ("arst", Tz::America__Argentina__Buenos_Aires),
    ("art", Tz::America__Argentina__Buenos_Aires),
    ("azst", Tz::Asia__Baku),
    ("azt", Tz::Asia__Baku),
    ("ckt", Tz::Pacific__Rarotonga),
    ("clt", Tz::America__Santiago),
    ("davt", Tz::Antarctica__Davis),
    ("easst", Tz::Pacific__Easter),
    ("east", Tz::Pacific__Easter),
    ("fkst", Tz::Atlantic__Stanley),
    ("fkt", Tz::Atlantic__Stanley),
    ("gest", Tz::Asia__Tbilisi),
    ("get", Tz::Asia__Tbilisi),
    ("gyt", Tz::America__Guyana),
    ("iot", Tz::Indian__Chagos),
    ("irkst", Tz::Asia__Irkutsk),
    ("irkt", Tz::Asia__Irkutsk),
    ("kgt", Tz::Asia__Bishkek),
    ("kost", Tz::Pacific__Kosrae),
    ("krast", Tz::Asia__Krasnoyarsk),
    ("krat", Tz::Asia__Krasnoyarsk),
    ("lhdt", Tz::Australia__Lord_Howe),
    ("lint", Tz::Pacific__Kiritimati),
    ("lkt", Tz::Asia__Colombo),
    ("magst", Tz::Asia__Magadan),
    ("magt", Tz::Asia__Magadan),
    ("mawt", Tz::Antarctica__Mawson),
    ("novst", Tz::Asia__Novosibirsk),
    ("novt", Tz::Asia__Novosibirsk),
    ("nut", Tz::Pacific__Niue),
    ("omsst", Tz::Asia__Omsk),
    ("omst", Tz::Asia__Omsk),
    ("petst", Tz::Asia__Kamchatka),
    ("pett", Tz::Asia__Kamchatka),
    ("pyt", Tz::America__Asuncion),
    ("sgt", Tz::Asia__Singapore),
    ("tkt", Tz::Pacific__Fakaofo),
    ("tmt", Tz::Asia__Ashgabat),
    ("ulat", Tz::Asia__Ulaanbaatar),
    ("vet", Tz::America__Caracas),
    ("vlast", Tz::Asia__Vladivostok),
    ("vlat", Tz::Asia__Vladivostok),
    ("volt", Tz::Europe__Volgograd),
    ("yakst", Tz::Asia__Yakutsk),
    ("yakt", Tz::Asia__Yakutsk),
    ("yekt", Tz::Asia__Yekaterinburg),
];

/// When MSK was four hours east of Greenwich rather than three: all year from March 2011 to October 2014.
const MSK_OF_FOUR_HOURS: std::ops::Range<i64> =
    1_301_180_400 * MICROS_PER_SECOND..1_414_274_400 * MICROS_PER_SECOND;

/// Bytes that the name of a zone may have.
const MAX_NAME_LENGTH: usize = 255;

/// Whether an instant is in the summer of a [`Zone::Seasonal`], which begins and ends at two o'clock.
fn is_summer(micros: i64, standard: i32, daylight: i32) -> bool {
    let seconds = micros.div_euclid(MICROS_PER_SECOND);
    let (year, ..) = civil_from_days((seconds + i64::from(standard)).div_euclid(86_400));
    let change = |month, day, offset| {
        let first = days_from_civil(year, month, day);
        // The third day of 1970 was a Sunday, counted from 0.
        let sunday = first + (3 - first).rem_euclid(7);
        sunday * 86_400 + 2 * 3600 - i64::from(offset)
    };
    (change(3, 8, standard)..change(11, 1, daylight)).contains(&seconds)
}

/// Takes POSIX's `[+-]hh[:mm[:ss]]` off the front: seconds to the *west*, up to a week.
fn take_posix_offset(text: &str) -> Option<(i32, &str)> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut total = 0;
    for (i, (factor, max)) in [(3600, 167), (60, 59), (1, 60)].into_iter().enumerate() {
        if i > 0 {
            let Some(after) = rest.strip_prefix(':') else { break };
            rest = after;
        }
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        total += rest[..length].parse::<i32>().ok().filter(|value| *value <= max)? * factor;
        rest = &rest[length..];
    }
    Some((if negative { -total } else { total }, rest))
}

/// Takes a name of POSIX's form off the front: one in angle brackets, or all up to a digit, a sign or a comma.
fn take_posix_name(text: &str) -> Option<(&str, &str)> {
    if let Some(quoted) = text.strip_prefix('<') {
        return quoted.split_once('>');
    }
    let end = text.find(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | ',')).unwrap_or(text.len());
    Some(text.split_at(end))
}

/// A zone of POSIX's form without rules, and its names in winter and in summer: a name that may be missing and an
/// offset, then perhaps the name of daylight saving time and its offset, which is else an hour to the east.
fn posix(text: &str) -> Option<(Zone, [&str; 2])> {
    let (standard_name, rest) = take_posix_name(text)?;
    let (west, rest) = take_posix_offset(rest)?;
    if rest.is_empty() {
        return Some((Zone::Fixed(-west), [standard_name; 2]));
    }
    let (daylight_name, rest) = take_posix_name(rest).filter(|(name, _)| !name.is_empty())?;
    let (daylight_west, rest) = match rest {
        "" => (west - 3600, ""),
        _ => take_posix_offset(rest)?,
    };
    let zone = Zone::Seasonal { standard: -west, daylight: -daylight_west };
    rest.is_empty().then_some((zone, [standard_name, daylight_name]))
}

/// 22023 "time zone … not recognized".
pub(super) fn not_recognized(name: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("time zone \"{name}\" not recognized"))
}

impl Zone {
    /// Greenwich.
    pub const UTC: Zone = Zone::Fixed(0);

    /// The meaning of this abbreviation, which is in small letters.
    pub(super) fn abbreviation(name: &str) -> Option<Abbreviation> {
        if let Ok(found) = ABBREVIATIONS.binary_search_by(|(known, ..)| (*known).cmp(name)) {
            let (_, minutes, is_daylight_saving) = ABBREVIATIONS[found];
            return Some(Abbreviation::Offset(minutes * 60, is_daylight_saving));
        }
        if name == "msk" {
            return Some(Abbreviation::Place(Zone::Msk));
        }
        let found = OF_PLACES.binary_search_by(|(known, _)| (*known).cmp(name)).ok()?;
        Some(Abbreviation::Place(Zone::Named(OF_PLACES[found].1)))
    }

    /// The zone of a setting: an IANA name in any case, or POSIX's form (`+02` and `XYZ+2` lie two hours *west*, as
    /// POSIX has it), which is also that of PostgreSQL's numeric settings, `<+02>-02`. 22023 for anything else.
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
        match Zone::abbreviation(&name.to_ascii_lowercase()) {
            Some(Abbreviation::Offset(offset, _)) => Ok(Zone::Fixed(offset)),
            Some(Abbreviation::Place(zone)) => Ok(zone),
            None => Zone::lookup(name).ok_or_else(|| not_recognized(name)),
        }
    }

    /// As [`Zone::parse_for_conversion`], but the abbreviation of a place's time is all times of that place. So
    /// `date_trunc` has it.
    pub fn parse_for_truncation(name: &str) -> Result<Zone> {
        Ok(match Zone::parse_for_conversion(name)? {
            Zone::Msk => Zone::Named(Tz::Europe__Moscow),
            zone => zone,
        })
    }

    /// A zone by name, without an error.
    pub(super) fn lookup(name: &str) -> Option<Zone> {
        if name.len() > MAX_NAME_LENGTH {
            return None;
        }
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
        posix(name).map(|(zone, _)| zone)
    }

    /// Whether the zone has had one offset at all times.
    pub(super) fn is_constant(&self) -> bool {
        match self {
            Zone::Fixed(_) => true,
            Zone::Seasonal { standard, daylight } => standard == daylight,
            Zone::Msk => false,
            // The others began with the time of their sun, and have not come back to it.
            Zone::Named(_) => [1800, 2000, 2020]
                .into_iter()
                .flat_map(|year| [days_from_civil(year, 1, 1), days_from_civil(year, 7, 1)])
                .all(|day| self.offset_at_utc(day * MICROS_PER_DAY) == self.offset_at_utc(0)),
        }
    }

    /// Seconds east of Greenwich at an instant.
    pub fn offset_at_utc(&self, micros: i64) -> i32 {
        match self {
            Zone::Fixed(offset) => *offset,
            Zone::Named(zone) => zone.offset_from_utc_datetime(&naive(micros)).fix().local_minus_utc(),
            Zone::Seasonal { standard, daylight } if is_summer(micros, *standard, *daylight) => *daylight,
            Zone::Seasonal { standard, .. } => *standard,
            Zone::Msk if MSK_OF_FOUR_HOURS.contains(&micros) => 4 * 3600,
            Zone::Msk => 3 * 3600,
        }
    }

    /// The abbreviation in force at an instant, such as `EST`, where `name` is what the zone was read from. POSIX's
    /// zones have those of their names.
    pub fn abbreviation_at(&self, name: &str, micros: i64) -> String {
        match self {
            Zone::Msk => "MSK".into(),
            Zone::Named(zone) => {
                zone.offset_from_utc_datetime(&naive(micros)).abbreviation().unwrap_or_default().to_owned()
            }
            Zone::Fixed(_) | Zone::Seasonal { .. } => {
                let Some((_, names)) = posix(name) else { return "UTC".into() };
                let is_summer = match *self {
                    Zone::Seasonal { standard, daylight } => is_summer(micros, standard, daylight),
                    _ => false,
                };
                names[usize::from(is_summer)].to_ascii_uppercase()
            }
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
            Zone::Seasonal { standard, daylight } => {
                let holds = |offset: i32| {
                    let instant = local.saturating_sub(i64::from(offset) * MICROS_PER_SECOND);
                    self.offset_at_utc(instant) == offset
                };
                match (holds(*standard), holds(*daylight)) {
                    (true, false) => *standard,
                    (false, true) => *daylight,
                    _ => *standard.min(daylight),
                }
            }
            Zone::Msk => {
                let offset = Zone::Named(Tz::Europe__Moscow).offset_at_local(local);
                self.offset_at_utc(local.saturating_sub(i64::from(offset) * MICROS_PER_SECOND))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The offset on the first of January and of July 2020, in hours, and the abbreviations then.
    fn offsets(name: &str) -> Option<(f64, f64, String, String)> {
        let zone = Zone::parse(name).ok()?;
        let [january, july] = [1, 7].map(|month| days_from_civil(2020, month, 1) * MICROS_PER_DAY);
        let hours = |micros| f64::from(zone.offset_at_utc(micros)) / 3600.0;
        let abbreviation = |micros| zone.abbreviation_at(name, micros);
        Some((hours(january), hours(july), abbreviation(january), abbreviation(july)))
    }

    #[test]
    fn zones_of_posix_have_the_names_that_they_give() {
        for (name, january, july, winter, summer) in [
            ("XYZ-100", 100.0, 100.0, "XYZ", "XYZ"),
            ("foo5bar", -5.0, -4.0, "FOO", "BAR"),
            ("XYZ5XYT", -5.0, -4.0, "XYZ", "XYT"),
            ("XYZ5foo3", -5.0, -3.0, "XYZ", "FOO"),
            ("XYZ5<ab>", -5.0, -4.0, "XYZ", "AB"),
            ("XYZ0", 0.0, 0.0, "XYZ", "XYZ"),
            ("<+02>-02", 2.0, 2.0, "+02", "+02"),
            ("<x y>3", -3.0, -3.0, "X Y", "X Y"),
            ("-3:30", 3.5, 3.5, "", ""),
            ("<>5", -5.0, -5.0, "", ""),
            ("zulu", 0.0, 0.0, "UTC", "UTC"),
            ("UTC", 0.0, 0.0, "UTC", "UTC"),
            ("utc", 0.0, 0.0, "UTC", "UTC"),
            ("GMT+3", -3.0, -3.0, "GMT", "GMT"),
        ] {
            assert_eq!(offsets(name), Some((january, july, winter.to_owned(), summer.to_owned())), "{name}");
        }
    }

    #[test]
    fn names_of_zones_have_limits() {
        for name in ["XYZ5<>", "XYZ5<>4", "<>5<>", ",5", "<5", "XYZ168"] {
            assert_eq!(offsets(name), None, "{name}");
        }
        let of_length = |length: usize| Zone::parse(&format!("{}5", "a".repeat(length - 1)));
        assert_eq!(of_length(255), Ok(Zone::Fixed(-5 * 3600)));
        assert!(of_length(256).is_err());
    }
}
