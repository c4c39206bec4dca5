//! The words of dates and times.

/// What a word says, if it names no zone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Keyword {
    /// A month, from 1.
    Month(i32),
    /// A day of the week, which nothing is done with.
    Weekday,
    /// Later than all others; with a minus sign, earlier.
    Infinity,
    /// Midnight of 1970-01-01 in Greenwich.
    Epoch,
    /// The time of the transaction.
    Now,
    /// So many days from today.
    Today(i64),
    /// Midnight in Greenwich.
    Midnight,
    /// Whether the hour is of the afternoon.
    Afternoon(bool),
    /// Whether the year is before Christ.
    BeforeChrist(bool),
    /// Clocks are an hour ahead of the zone's time.
    DaylightSaving,
    /// What the next number is.
    Label(Label),
    /// A word without meaning.
    Filler,
}

/// What the number behind it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Label {
    /// `y`
    Year,
    /// `m`; minutes where there is a month and an hour.
    Month,
    /// `d`
    Day,
    /// `h`
    Hour,
    /// `mm`
    Minute,
    /// `s`
    Second,
    /// `j`: a number of days since 4714-11-24 BC.
    Julian,
    /// `t`: a time of day, whose digits may be run together.
    Time,
    /// Of no number that a date or a time has.
    Other,
}

/// The meaning of a word in small letters.
pub(super) fn keyword(word: &str) -> Option<Keyword> {
    Some(match word {
        "jan" | "january" => Keyword::Month(1),
        "feb" | "february" => Keyword::Month(2),
        "mar" | "march" => Keyword::Month(3),
        "apr" | "april" => Keyword::Month(4),
        "may" => Keyword::Month(5),
        "jun" | "june" => Keyword::Month(6),
        "jul" | "july" => Keyword::Month(7),
        "aug" | "august" => Keyword::Month(8),
        "sep" | "sept" | "september" => Keyword::Month(9),
        "oct" | "october" => Keyword::Month(10),
        "nov" | "november" => Keyword::Month(11),
        "dec" | "december" => Keyword::Month(12),
        "sun" | "sunday" | "mon" | "monday" | "tue" | "tues" | "tuesday" | "wed" | "weds" | "wednesday"
        | "thu" | "thur" | "thurs" | "thursday" | "fri" | "friday" | "sat" | "saturday" => Keyword::Weekday,
        "infinity" => Keyword::Infinity,
        "epoch" => Keyword::Epoch,
        "now" => Keyword::Now,
        "yesterday" => Keyword::Today(-1),
        "today" => Keyword::Today(0),
        "tomorrow" => Keyword::Today(1),
        "allballs" => Keyword::Midnight,
        "am" => Keyword::Afternoon(false),
        "pm" => Keyword::Afternoon(true),
        "ad" => Keyword::BeforeChrist(false),
        "bc" => Keyword::BeforeChrist(true),
        "dst" => Keyword::DaylightSaving,
        "at" | "on" => Keyword::Filler,
        "y" => Keyword::Label(Label::Year),
        "m" => Keyword::Label(Label::Month),
        "d" => Keyword::Label(Label::Day),
        "h" => Keyword::Label(Label::Hour),
        "mm" => Keyword::Label(Label::Minute),
        "s" => Keyword::Label(Label::Second),
        "j" | "jd" | "julian" => Keyword::Label(Label::Julian),
        "t" => Keyword::Label(Label::Time),
        "dow" | "doy" | "isodow" | "isoyear" => Keyword::Label(Label::Other),
        _ => return None,
    })
}
