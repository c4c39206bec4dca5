//! Settings of a session: what SET, SHOW and RESET know, with PostgreSQL's names, defaults and errors.
//!
//! A value that Carousel does not implement is refused by name (0A000), never accepted without effect.

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::{SqlError, SqlState, datetime::Zone, error::Result};

/// Most settings of other programs (`class.name`) that a session may define.
const MAX_CUSTOM: usize = 256;

/// What values a setting takes.
enum Kind {
    /// SET is refused (55P02).
    Fixed,
    /// A role: the session's own, or none where that is what it begins with. There are no others.
    Role,
    /// Any text without effect inside the server.
    Text,
    /// A boolean.
    Bool,
    /// A boolean of which only this value is built.
    OnlyBool(bool),
    /// One of these words.
    Enum(&'static [&'static str]),
    /// One of these words, of which only the first ones, so many, are built.
    EnumOf(&'static [&'static str], usize),
    /// A whole number within bounds; of these only those from `built` on are built.
    Integer { min: i64, max: i64, built: i64 },
    /// Milliseconds, with a unit when shown.
    Milliseconds,
    /// An encoding; only UTF8, and SQL_ASCII, which converts nothing, are built.
    Encoding,
    /// Output style and order of date fields; only ISO, MDY is built.
    DateStyle,
    /// A time zone.
    TimeZone,
    /// Schemas to look names up in; only `public` exists.
    SearchPath,
}

struct Definition {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    /// Drivers are told of changes (ParameterStatus).
    reported: bool,
    description: &'static str,
}

const ISOLATION_LEVELS: &[&str] = &["serializable", "repeatable read", "read committed", "read uncommitted"];
const MESSAGE_LEVELS: &[&str] =
    &["debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning", "error"];

const fn setting(
    name: &'static str,
    default: &'static str,
    kind: Kind,
    reported: bool,
    description: &'static str,
) -> Definition {
    Definition { name, default, kind, reported, description }
}

/// A setting that every statement changes.
pub const LAST_TS: &str = "carousel.last_ts";

/// Settings of the present transaction, and those that say what the next one gets.
const MODES: [(&str, &str); 2] = [
    ("transaction_isolation", "default_transaction_isolation"),
    ("transaction_read_only", "default_transaction_read_only"),
];
const ENCODING_HINT: &str =
    "Set client_encoding to UTF8, for example by PGCLIENTENCODING=UTF8 in the client's environment.";

/// Sorted by lower-case name, as SHOW ALL lists them.
const DEFINITIONS: &[Definition] = &[
    setting(
        "application_name",
        "",
        Kind::Text,
        true,
        "Sets the application name to be reported in statistics and logs.",
    ),
    setting(
        "bytea_output",
        "hex",
        Kind::EnumOf(&["hex", "escape"], 1),
        false,
        "Sets the output format for bytea.",
    ),
    setting(
        LAST_TS,
        "",
        Kind::Fixed,
        false,
        "Shows where in the order of all writes the last statement was executed, or what it read.",
    ),
    setting(
        "carousel.read_isolation",
        "sequential",
        Kind::EnumOf(&["sequential", "snapshot", "basic", "linearizable", "tentative"], 3),
        false,
        "Sets how reads are ordered among writes.",
    ),
    setting("client_encoding", "UTF8", Kind::Encoding, true, "Sets the client's character set encoding."),
    setting(
        "client_min_messages",
        "notice",
        Kind::Enum(MESSAGE_LEVELS),
        false,
        "Sets the message levels that are sent to the client.",
    ),
    setting(
        "DateStyle",
        "ISO, MDY",
        Kind::DateStyle,
        true,
        "Sets the display format for date and time values.",
    ),
    setting(
        "default_transaction_isolation",
        "read committed",
        Kind::Enum(ISOLATION_LEVELS),
        false,
        "Sets the transaction isolation level of each new transaction.",
    ),
    setting(
        "default_transaction_read_only",
        "off",
        Kind::Bool,
        true,
        "Sets the default read-only status of new transactions.",
    ),
    setting(
        "extra_float_digits",
        "1",
        Kind::Integer { min: -15, max: 3, built: 1 },
        false,
        "Sets the number of digits displayed for floating-point values.",
    ),
    setting(
        "idle_in_transaction_session_timeout",
        "0",
        Kind::Milliseconds,
        false,
        "Sets the maximum allowed idle time between queries, when in a transaction.",
    ),
    setting(
        "idle_session_timeout",
        "0",
        Kind::Milliseconds,
        false,
        "Sets the maximum allowed idle time between queries, when not in a transaction.",
    ),
    setting("in_hot_standby", "off", Kind::Fixed, true, "Shows whether hot standby is currently active."),
    setting("integer_datetimes", "on", Kind::Fixed, true, "Shows whether datetimes are integer based."),
    setting(
        "IntervalStyle",
        "postgres",
        Kind::EnumOf(&["postgres", "postgres_verbose", "sql_standard", "iso_8601"], 1),
        true,
        "Sets the display format for interval values.",
    ),
    setting("is_superuser", "on", Kind::Fixed, true, "Shows whether the current user is a superuser."),
    setting("lc_collate", "C", Kind::Fixed, false, "Shows the collation order locale."),
    setting(
        "lc_ctype",
        "C",
        Kind::Fixed,
        false,
        "Shows the character classification and case conversion locale.",
    ),
    setting(
        "lc_messages",
        "C",
        Kind::EnumOf(&["C"], 1),
        false,
        "Sets the language in which messages are displayed.",
    ),
    setting(
        "lock_timeout",
        "0",
        Kind::Milliseconds,
        false,
        "Sets the maximum allowed duration of any wait for a lock; no statement waits for one.",
    ),
    setting("max_identifier_length", "63", Kind::Fixed, false, "Shows the maximum identifier length."),
    setting("role", "none", Kind::Role, false, "Sets the current role."),
    setting("search_path", "\"$user\", public", Kind::SearchPath, false, "Sets the schema search order."),
    setting(
        "server_encoding",
        "UTF8",
        Kind::Fixed,
        true,
        "Shows the server (database) character set encoding.",
    ),
    setting("server_version", SERVER_VERSION, Kind::Fixed, true, "Shows the server version."),
    setting("server_version_num", "150000", Kind::Fixed, false, "Shows the server version as an integer."),
    setting("session_authorization", "", Kind::Role, true, "Sets the session user name."),
    setting(
        "standard_conforming_strings",
        "on",
        Kind::OnlyBool(true),
        true,
        "Causes '...' strings to treat backslashes literally.",
    ),
    setting(
        "statement_timeout",
        "0",
        Kind::Milliseconds,
        false,
        "Sets the maximum allowed duration of any statement.",
    ),
    setting(
        "synchronous_commit",
        "on",
        Kind::EnumOf(&["on", "remote_apply", "remote_write", "local", "off"], 1),
        false,
        "Sets the current transaction's synchronization level.",
    ),
    setting(
        "TimeZone",
        "UTC",
        Kind::TimeZone,
        true,
        "Sets the time zone for displaying and interpreting time stamps.",
    ),
    setting(
        "transaction_isolation",
        "read committed",
        Kind::Enum(ISOLATION_LEVELS),
        false,
        "Sets the current transaction's isolation level.",
    ),
    setting(
        "transaction_read_only",
        "off",
        Kind::Bool,
        false,
        "Sets the current transaction's read-only status.",
    ),
];

/// What `server_version` shows: `version()` without the name.
const SERVER_VERSION: &str = match carousel_planner::settings::VERSION.split_at_checked("PostgreSQL ".len()) {
    Some((_, version)) => version,
    None => carousel_planner::settings::VERSION,
};

fn definition(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.iter().find(|d| d.name.eq_ignore_ascii_case(name))
}

type Values = BTreeMap<String, String>;

/// The settings of one session.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// What RESET goes back to.
    initial: Arc<Values>,
    /// In force, by lower-case name.
    current: Arc<Values>,
    /// What COMMIT leaves: as `current`, without what was SET LOCAL. `None` outside of a transaction.
    after_commit: Option<Arc<Values>>,
    /// What ROLLBACK goes back to. `None` outside of a transaction.
    after_rollback: Option<Arc<Values>>,
    /// What was in force when the client was last told of changes; shared with `current` as long as nothing has changed,
    /// which is what is asked after every statement.
    reported: Arc<Values>,
}

impl SessionSettings {
    /// The settings a session of this role starts with.
    pub fn new(user: &str) -> SessionSettings {
        let mut values: Values =
            DEFINITIONS.iter().map(|d| (d.name.to_ascii_lowercase(), d.default.to_owned())).collect();
        values.insert("session_authorization".into(), user.to_owned());
        let values = Arc::new(values);
        SessionSettings {
            initial: values.clone(),
            current: values,
            after_commit: None,
            after_rollback: None,
            reported: Arc::default(),
        }
    }

    /// Sets a value that the client asked for as it connected: RESET goes back to it.
    ///
    /// # Errors
    /// As [`SessionSettings::set`].
    pub fn set_initial(&mut self, name: &str, value: &str) -> Result<()> {
        self.set(name, Some(value), false)?;
        self.end(true);
        self.initial = self.current.clone();
        Ok(())
    }

    /// All values as SHOW prints them, by lower-case name.
    pub fn values(&self) -> Arc<Values> {
        self.current.clone()
    }

    /// A value as SHOW prints it; empty when there is no such setting.
    pub fn get(&self, name: &str) -> &str {
        self.current.get(name).map(String::as_str).unwrap_or_default()
    }

    /// The name PostgreSQL prints above the value of SHOW, and the value.
    ///
    /// # Errors
    /// 42704 when there is no such setting.
    pub fn show(&self, name: &str) -> Result<(String, String)> {
        let key = name.to_ascii_lowercase();
        let value = self.current.get(&key).ok_or_else(|| unrecognized(name))?;
        Ok((definition(name).map_or(key, |d| d.name.to_owned()), value.clone()))
    }

    /// Name, value and description of every setting.
    pub fn show_all(&self) -> Vec<[String; 3]> {
        DEFINITIONS
            .iter()
            .map(|d| {
                let value = self.get(&d.name.to_ascii_lowercase());
                [d.name.to_owned(), value.to_owned(), d.description.to_owned()]
            })
            .collect()
    }

    /// Sets a value, or the initial one for `None`; with `local` until the end of the transaction.
    ///
    /// # Errors
    /// 42704 when there is no such setting, 55P02 when it cannot be changed, 22023 when it does not take the value,
    /// 0A000 when PostgreSQL would take it and Carousel does not implement it.
    pub fn set(&mut self, name: &str, value: Option<&str>, local: bool) -> Result<()> {
        let key = name.to_ascii_lowercase();
        let value = match (definition(name), value) {
            (Some(Definition { kind: Kind::Fixed, name, .. }), _) => {
                return Err(SqlError::new(
                    SqlState(*b"55P02"),
                    format!("parameter \"{name}\" cannot be changed"),
                ));
            }
            (Some(Definition { kind: Kind::Role, .. }), Some(value))
                if value != self.get("session_authorization")
                    && self.initial.get(&key).is_none_or(|own| own != value) =>
            {
                return Err(SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("role \"{value}\" does not exist"),
                ));
            }
            (Some(definition), Some(value)) => Some(checked(definition, value)?),
            (None, value) => {
                self.check_custom(name)?;
                value.map(str::to_owned)
            }
            (Some(_), None) => None,
        };
        let value = value.or_else(|| self.initial.get(&key).cloned());
        self.change(&key, value, local);
        Ok(())
    }

    /// Sets every setting that can be set to its initial value; the modes of a transaction stay.
    pub fn reset_all(&mut self) {
        let before = std::mem::replace(&mut self.current, self.initial.clone());
        if let Some(after_commit) = &mut self.after_commit {
            *after_commit = self.initial.clone();
        }
        for (name, _) in MODES {
            self.change(name, before.get(name).cloned(), true);
        }
    }

    fn change(&mut self, key: &str, value: Option<String>, local: bool) {
        let put = |values: &mut Arc<Values>, value: Option<String>| match value {
            Some(value) => drop(Arc::make_mut(values).insert(key.to_owned(), value)),
            None => drop(Arc::make_mut(values).remove(key)),
        };
        if let Some(after_commit) = self.after_commit.as_mut().filter(|_| !local) {
            put(after_commit, value.clone());
        }
        put(&mut self.current, value);
    }

    /// A name of another program: `class.name`.
    fn check_custom(&self, name: &str) -> Result<()> {
        let Some((class, rest)) = name.split_once('.') else { return Err(unrecognized(name)) };
        if class.eq_ignore_ascii_case("carousel") {
            return Err(SqlError::new(
                SqlState(*b"42602"),
                format!("invalid configuration parameter name \"{name}\""),
            )
            .with_detail("\"carousel\" is a reserved prefix."));
        }
        let is_word = |word: &str| {
            let mut characters = word.chars();
            characters.next().is_some_and(|c| c.is_alphabetic() || c == '_')
                && characters.all(|c| c.is_alphanumeric() || c == '_' || c == '$')
        };
        if !is_word(class) || !rest.split('.').all(is_word) {
            return Err(SqlError::new(
                SqlState(*b"42602"),
                format!("invalid configuration parameter name \"{name}\""),
            ));
        }
        if self.current.len() >= DEFINITIONS.len() + MAX_CUSTOM {
            return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "too many settings of other programs"));
        }
        Ok(())
    }

    /// A transaction begins without a block, unless there is one.
    pub fn begin_implicit(&mut self) {
        if self.after_commit.is_none() {
            self.after_rollback = Some(self.current.clone());
            self.after_commit = Some(self.current.clone());
        }
    }

    /// A transaction block begins, with these modes if they are given. What a transaction without a block has set before becomes a
    /// part of it.
    pub fn begin(&mut self, isolation: Option<&str>, read_only: Option<bool>) {
        self.begin_implicit();
        if let Some(isolation) = isolation {
            self.change("transaction_isolation", Some(isolation.to_owned()), true);
        }
        if let Some(read_only) = read_only {
            let value = if read_only { "on" } else { "off" };
            self.change("transaction_read_only", Some(value.to_owned()), true);
        }
    }

    /// The transaction ends, if there is one.
    pub fn end(&mut self, committed: bool) {
        let (after_commit, after_rollback) = (self.after_commit.take(), self.after_rollback.take());
        if let Some(values) = if committed { after_commit } else { after_rollback } {
            self.current = values;
        }
        // Outside of blocks these two show what the next transaction gets.
        for (name, default) in MODES {
            if self.get(name) != self.get(default) {
                let value = self.get(default).to_owned();
                self.change(name, Some(value), false);
            }
        }
    }

    /// Settings that drivers follow and that changed since the last call, with PostgreSQL's names.
    pub fn take_changes(&mut self) -> Vec<(&'static str, String)> {
        if Arc::ptr_eq(&self.reported, &self.current) {
            return Vec::new();
        }
        let reported = std::mem::replace(&mut self.reported, self.current.clone());
        DEFINITIONS
            .iter()
            .filter(|definition| definition.reported)
            .filter_map(|definition| {
                let key = definition.name.to_ascii_lowercase();
                let value = self.current.get(&key).filter(|value| reported.get(&key) != Some(*value))?;
                Some((definition.name, value.clone()))
            })
            .collect()
    }

    /// The value of a time-out; `None` when it is off.
    pub fn timeout(&self, name: &str) -> Option<std::time::Duration> {
        match milliseconds(self.get(name)) {
            Some(0) | None => None,
            Some(ms) => Some(std::time::Duration::from_millis(ms)),
        }
    }
}

/// 42704
fn unrecognized(name: &str) -> SqlError {
    SqlError::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

fn invalid(definition: &Definition, value: &str) -> SqlError {
    SqlError::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("invalid value for parameter \"{}\": \"{value}\"", definition.name),
    )
}

fn not_built(definition: &Definition, value: &str) -> SqlError {
    SqlError::unsupported(format!("{} = '{value}'", definition.name))
}

/// The value as SHOW prints it.
fn checked(definition: &Definition, value: &str) -> Result<String> {
    let trimmed = value.trim();
    match &definition.kind {
        Kind::Fixed | Kind::Role | Kind::Text => {
            // As PostgreSQL does, what is not printable ASCII is shown as a question mark.
            Ok(value.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect())
        }
        Kind::Bool => match boolean(trimmed) {
            Some(on) => Ok(on_off(on).into()),
            None => Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("parameter \"{}\" requires a Boolean value", definition.name),
            )),
        },
        Kind::OnlyBool(built) => match boolean(trimmed) {
            Some(on) if on == *built => Ok(on_off(on).into()),
            Some(_) => Err(not_built(definition, trimmed)),
            None => Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("parameter \"{}\" requires a Boolean value", definition.name),
            )),
        },
        Kind::Enum(words) | Kind::EnumOf(words, _) => {
            let built = if let Kind::EnumOf(_, built) = &definition.kind { *built } else { words.len() };
            match words.iter().position(|word| word.eq_ignore_ascii_case(trimmed)) {
                Some(place) if place < built => Ok(words[place].to_owned()),
                Some(_) => Err(not_built(definition, trimmed)),
                None => Err(invalid(definition, value)
                    .with_hint(format!("Available values: {}.", words[..built].join(", ")))),
            }
        }
        Kind::Integer { min, max, built } => {
            let number: i64 = trimmed.parse().map_err(|_| invalid(definition, value))?;
            if !(*min..=*max).contains(&number) {
                return Err(SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!(
                        "{number} is outside the valid range for parameter \"{}\" ({min} .. {max})",
                        definition.name
                    ),
                ));
            }
            if number < *built { Err(not_built(definition, trimmed)) } else { Ok(number.to_string()) }
        }
        Kind::Milliseconds => {
            let ms = milliseconds(trimmed).ok_or_else(|| {
                invalid(definition, value).with_hint(
                    "Valid units for this parameter are \"us\", \"ms\", \"s\", \"min\", \"h\", and \"d\".",
                )
            })?;
            if ms > i32::MAX as u64 {
                return Err(SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!(
                        "{ms} ms is outside the valid range for parameter \"{}\" (0 .. {})",
                        definition.name,
                        i32::MAX
                    ),
                ));
            }
            Ok(shown_milliseconds(ms))
        }
        Kind::Encoding => {
            let plain: String = trimmed
                .trim_matches('\'')
                .chars()
                .filter(char::is_ascii_alphanumeric)
                .map(|c| c.to_ascii_lowercase())
                .collect();
            match plain.as_str() {
                "utf8" | "unicode" => Ok("UTF8".into()),
                // Nothing is converted, to or fro, and what comes has to be UTF-8: as in a database in UTF-8 elsewhere.
                "sqlascii" => Ok("SQL_ASCII".into()),
                "latin1" | "latin9" | "iso88591" | "iso885915" => {
                    Err(not_built(definition, trimmed).with_hint(ENCODING_HINT))
                }
                windows if windows.starts_with("win") => {
                    Err(not_built(definition, trimmed).with_hint(ENCODING_HINT))
                }
                _ => Err(invalid(definition, value)),
            }
        }
        Kind::DateStyle => {
            for word in trimmed.split(',').map(|w| w.trim().to_ascii_lowercase()) {
                match word.as_str() {
                    "iso" | "mdy" | "us" | "noneuro" | "noneuropean" | "default" => {}
                    "sql" | "postgres" | "german" | "dmy" | "euro" | "european" | "ymd" => {
                        return Err(not_built(definition, trimmed));
                    }
                    _ => {
                        let detail = format!("Unrecognized key word: \"{word}\".");
                        return Err(invalid(definition, value).with_detail(detail));
                    }
                }
            }
            Ok("ISO, MDY".into())
        }
        Kind::TimeZone => time_zone(definition, trimmed),
        Kind::SearchPath => {
            let schemas: Vec<&str> = trimmed.split(',').map(|s| s.trim().trim_matches('"')).collect();
            if let Some(other) = schemas.iter().find(|s| !matches!(**s, "$user" | "public" | "pg_catalog")) {
                return Err(SqlError::unsupported(format!("search_path with schema \"{other}\"")));
            }
            if !schemas.contains(&"public") {
                return Err(SqlError::unsupported("search_path without schema \"public\""));
            }
            let shown = schemas.iter().map(|s| if *s == "$user" { "\"$user\"" } else { s });
            Ok(shown.collect::<Vec<_>>().join(", "))
        }
    }
}

fn time_zone(definition: &Definition, value: &str) -> Result<String> {
    let lower = value.to_ascii_lowercase();
    if matches!(lower.as_str(), "local" | "default") {
        return Ok(definition.default.to_owned());
    }
    // A number is hours east of Greenwich; PostgreSQL shows it in POSIX form, where west is positive.
    if let Ok(hours) = value.parse::<f64>() {
        let seconds = (hours * 3600.0).round();
        if !(-604_800.0..=604_800.0).contains(&seconds) || seconds.abs() >= 16.0 * 3600.0 {
            return Err(invalid(definition, value));
        }
        let (sign, posix) = if seconds < 0.0 { ('-', '+') } else { ('+', '-') };
        let (minutes, rest) = ((seconds.abs() as u32) / 60, (seconds.abs() as u32) % 60);
        let mut clock = format!("{:02}", minutes / 60);
        if minutes % 60 != 0 || rest != 0 {
            clock.push_str(&format!(":{:02}", minutes % 60));
        }
        if rest != 0 {
            clock.push_str(&format!(":{rest:02}"));
        }
        return Ok(format!("<{sign}{clock}>{posix}{clock}"));
    }
    match Zone::parse(value)? {
        Zone::Named(zone) => Ok(zone.name().to_owned()),
        Zone::Fixed(_) if matches!(lower.as_str(), "utc" | "zulu" | "uct") => Ok("UTC".into()),
        _ => Ok(value.to_owned()),
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn boolean(text: &str) -> Option<bool> {
    let lower = text.to_ascii_lowercase();
    let begins = |word: &str, least: usize| lower.len() >= least && word.starts_with(&lower);
    match lower.as_str() {
        "1" => Some(true),
        "0" => Some(false),
        _ if begins("true", 1) || begins("yes", 1) || begins("on", 2) => Some(true),
        _ if begins("false", 1) || begins("no", 1) || begins("off", 2) => Some(false),
        _ => None,
    }
}

fn milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "" | "ms" => 1.0,
        "us" => 0.001,
        "s" => 1000.0,
        "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    Some((number * factor).round() as u64)
}

/// In the largest unit that divides the value.
fn shown_milliseconds(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
    match units.iter().find(|(size, _)| ms > 0 && ms.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", ms / size),
        None => "0".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_sorted() {
        let names: Vec<String> = DEFINITIONS.iter().map(|d| d.name.to_ascii_lowercase()).collect();
        assert!(names.is_sorted());
    }

    #[test]
    fn values_are_checked_and_shown_as_postgresql_does() {
        let mut settings = SessionSettings::new("me");
        let mut set = |name: &str, value: &str| {
            settings.set(name, Some(value), false).map(|()| settings.get(&name.to_lowercase()).to_owned())
        };
        assert_eq!(set("statement_timeout", "90000").unwrap(), "90s");
        assert_eq!(set("statement_timeout", "2min").unwrap(), "2min");
        assert_eq!(set("timezone", "europe/berlin").unwrap(), "Europe/Berlin");
        assert_eq!(set("timezone", "-7").unwrap(), "<-07>+07");
        assert_eq!(set("timezone", "5.5").unwrap(), "<+05:30>-05:30");
        assert_eq!(set("DateStyle", "iso").unwrap(), "ISO, MDY");
        assert_eq!(set("DateStyle", "German").unwrap_err().code, SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(set("client_encoding", "unicode").unwrap(), "UTF8");
        assert_eq!(set("client_encoding", "sql_ascii").unwrap(), "SQL_ASCII");
        let refused = set("client_encoding", "WIN1252").unwrap_err();
        assert_eq!(refused.code, SqlState::FEATURE_NOT_SUPPORTED);
        assert!(refused.hint.as_deref().is_some_and(|hint| hint.contains("PGCLIENTENCODING")));
        assert_eq!(set("extra_float_digits", "3").unwrap(), "3");
        assert_eq!(set("extra_float_digits", "0").unwrap_err().code, SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(set("extra_float_digits", "4").unwrap_err().code, SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(set("server_version", "1").unwrap_err().code, SqlState(*b"55P02"));
        assert_eq!(set("role", "none").unwrap(), "none");
        assert_eq!(set("role", "nobody").unwrap_err().code, SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(set("session_authorization", "none").unwrap_err().code, SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(
            set("nonsense", "1").unwrap_err().message,
            "unrecognized configuration parameter \"nonsense\""
        );
        assert_eq!(set("my.own", "x").unwrap(), "x");
        assert_eq!(
            set("carousel.read_isolation", "linearizable").unwrap_err().code,
            SqlState::FEATURE_NOT_SUPPORTED
        );
    }

    #[test]
    fn a_block_scopes_settings() {
        let mut settings = SessionSettings::new("me");
        settings.begin(None, Some(true));
        assert_eq!(settings.get("transaction_read_only"), "on");
        settings.set("application_name", Some("local"), true).unwrap();
        settings.set("timezone", Some("Europe/Berlin"), false).unwrap();
        assert_eq!(settings.get("application_name"), "local");
        settings.reset_all();
        assert_eq!(settings.get("transaction_read_only"), "on", "RESET ALL leaves the modes as they are");
        settings.set("timezone", Some("Europe/Berlin"), false).unwrap();
        settings.end(true);
        assert_eq!(settings.get("application_name"), "");
        assert_eq!(settings.get("timezone"), "Europe/Berlin");
        assert_eq!(settings.get("transaction_read_only"), "off");
        settings.begin(None, None);
        settings.set("timezone", Some("Asia/Tokyo"), false).unwrap();
        settings.end(false);
        assert_eq!(settings.get("timezone"), "Europe/Berlin");
        settings.set("default_transaction_read_only", Some("on"), false).unwrap();
        settings.end(true);
        assert_eq!(settings.get("transaction_read_only"), "on");
        settings.set("default_transaction_read_only", None, false).unwrap();
        settings.end(true);
        assert_eq!(settings.get("transaction_read_only"), "off");
        settings.set_initial("default_transaction_read_only", "on").unwrap();
        assert_eq!(settings.get("transaction_read_only"), "on");
    }
}
