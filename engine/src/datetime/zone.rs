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
    ("acsst", 630),
    ("acst", 570),
    ("act", -300),
    ("acwst", 525),
    ("adt", -180),
    ("aedt", 660),
    ("aesst", 660),
    ("aest", 600),
    ("aft", 270),
    ("akdt", -480),
    ("akst", -540),
    ("almst", 420),
    ("almt", 360),
    ("amt", -240),
    ("ast", -240),
    ("awsst", 540),
    ("awst", 480),
    ("azost", 0),
    ("azot", -60),
    ("bdst", 120),
    ("bdt", 360),
    ("bnt", 480),
    ("bort", 480),
    ("bot", -240),
    ("bra", -180),
    ("brst", -120),
    ("brt", -180),
    ("bst", 60),
    ("btt", 360),
    ("cadt", 630),
    ("cast", 570),
    ("cct", 480),
    ("cdt", -300),
    ("cest", 120),
    ("cet", 60),
    ("cetdst", 120),
    ("chadt", 825),
    ("chast", 765),
    ("chut", 600),
    ("clst", -180),
    ("cot", -300),
    ("cst", -360),
    ("cxt", 420),
    ("ddut", 600),
    ("eat", 180),
    ("edt", -240),
    ("eest", 180),
    ("eet", 120),
    ("eetdst", 180),
    ("egst", 0),
    ("egt", -60),
    ("est", -300),
    ("fet", 180),
    ("fjst", 780),
    ("fjt", 720),
    ("fnst", -60),
    ("fnt", -120),
    ("galt", -360),
    ("gamt", -540),
    ("gft", -180),
    ("gilt", 720),
    ("gmt", 0),
    ("hkt", 480),
    ("hst", -600),
    ("ict", 420),
    ("idt", 180),
    ("irt", 210),
    ("ist", 120),
    ("jayt", 540),
    ("jst", 540),
    ("kdt", 600),
    ("kgst", 360),
    ("kst", 540),
    ("lhst", 630),
    ("ligt", 600),
    ("mart", -570),
    ("mdt", -360),
    ("mest", 120),
    ("mesz", 120),
    ("met", 60),
    ("metdst", 120),
    ("mez", 60),
    ("mht", 720),
    ("mmt", 390),
    ("mpt", 600),
    ("msd", 240),
    ("mst", -420),
    ("must", 300),
    ("mut", 240),
    ("mvt", 300),
    ("myt", 480),
    ("ndt", -150),
    ("nft", -210),
    ("npt", 345),
    ("nst", -210),
    ("nzdt", 780),
    ("nzst", 720),
    ("nzt", 720),
    ("pdt", -420),
    ("pet", -300),
    ("pgt", 600),
    ("pht", 480),
    ("pkst", 360),
    ("pkt", 300),
    ("pmdt", -120),
    ("pmst", -180),
    ("pont", 660),
    ("pst", -480),
    ("pwt", 540),
    ("pyst", -180),
    ("ret", 240),
    ("sadt", 630),
    ("sast", 120),
    ("sct", 240),
    ("taht", -600),
    ("tft", 300),
    ("tjt", 300),
    ("tot", 780),
    ("trut", 600),
    ("tvt", 720),
    ("uct", 0),
    ("ulast", 540),
    ("ut", 0),
    ("utc", 0),
    ("uyst", -120),
    ("uyt", -180),
    ("uzst", 360),
    ("uzt", 300),
    ("vut", 660),
    ("wadt", 480),
    ("wakt", 720),
    ("wast", 420),
    ("wat", 60),
    ("wdt", 540),
    ("wet", 0),
    ("wetdst", 60),
    ("wft", 720),
    ("wgst", -120),
    ("wgt", -180),
    ("xjt", 360),
    ("yapt", 600),
    ("yekst", 360),
    ("z", 0),
    ("zulu", 0),
];

/// Abbreviations of that set that stand for the time that a place has then. (MSK is not among
/// them: it is not what Moscow had in summer.)
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
        if let Ok(found) = ABBREVIATIONS.binary_search_by(|(known, _)| known.cmp(&lower.as_str())) {
            return Some(Zone::Fixed(ABBREVIATIONS[found].1 * 60));
        }
        let found = OF_PLACES.binary_search_by(|(known, _)| known.cmp(&lower.as_str())).ok()?;
        Some(Zone::Named(OF_PLACES[found].1))
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
