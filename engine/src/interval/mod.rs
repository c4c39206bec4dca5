//! PostgreSQL's interval: months, days and microseconds kept apart, with its input and output in `postgres` style.

use std::fmt::Write as _;

mod parse;

use serde::{Deserialize, Serialize};

use crate::{
    datetime::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, MICROS_PER_SECOND},
    error::{Result, SqlError, SqlState},
};

/// PostgreSQL's interval: its three parts are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// Months (years are 12).
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
    pub microseconds: i64,
}

/// 22008 "interval out of range".
pub fn out_of_range() -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, "interval out of range")
}

/// Two units with one sign: where they have different ones, one of the greater, which is `one` of the lesser, becomes that.
fn of_one_sign(greater: i64, less: i64, one: i64) -> (i64, i64) {
    match (greater.signum(), less.signum()) {
        (1, -1) => (greater - 1, less + one),
        (-1, 1) => (greater + 1, less - one),
        _ => (greater, less),
    }
}

impl Interval {
    /// Microseconds with months of 30 days and days of 24 hours: what intervals are compared by.
    pub fn span(&self) -> i128 {
        (i128::from(self.months) * 30 + i128::from(self.days)) * i128::from(MICROS_PER_DAY)
            + i128::from(self.microseconds)
    }

    /// Sum, part by part.
    pub fn checked_add(&self, other: &Interval) -> Result<Interval> {
        Ok(Interval {
            months: self.months.checked_add(other.months).ok_or_else(out_of_range)?,
            days: self.days.checked_add(other.days).ok_or_else(out_of_range)?,
            microseconds: self.microseconds.checked_add(other.microseconds).ok_or_else(out_of_range)?,
        })
    }

    /// The interval with all its signs changed.
    pub fn checked_neg(&self) -> Result<Interval> {
        Ok(Interval {
            months: self.months.checked_neg().ok_or_else(out_of_range)?,
            days: self.days.checked_neg().ok_or_else(out_of_range)?,
            microseconds: self.microseconds.checked_neg().ok_or_else(out_of_range)?,
        })
    }

    /// Product with a factor; fractions of months become days, fractions of days time.
    pub fn multiply(&self, factor: f64) -> Result<Interval> {
        self.scale(|part| part * factor)
    }

    /// Quotient; fractions of months become days, fractions of days time.
    pub fn divide(&self, divisor: f64) -> Result<Interval> {
        if divisor == 0.0 {
            return Err(SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero"));
        }
        self.scale(|part| part / divisor)
    }

    fn scale(&self, apply: impl Fn(f64) -> f64) -> Result<Interval> {
        // The steps and their roundings are those of interval_mul and interval_div.
        let round = |x: f64| (x * 1_000_000.0).round_ties_even() / 1_000_000.0;
        let whole = |x: f64| -> Result<i32> {
            if x.is_nan() || x >= 2147483648.0 || x <= -2147483649.0 {
                return Err(out_of_range());
            }
            Ok(x as i32)
        };
        let months_exact = apply(f64::from(self.months));
        let months = whole(months_exact)?;
        let days_exact = apply(f64::from(self.days));
        let mut days = whole(days_exact)?;
        let month_remainder_days = round((months_exact - f64::from(months)) * 30.0);
        let month_days = month_remainder_days as i32;
        let mut second_remainder = round(
            ((days_exact - f64::from(days)) + (month_remainder_days - f64::from(month_days))) * 86400.0,
        );
        if second_remainder.abs() >= 86400.0 {
            days = days.checked_add((second_remainder / 86400.0) as i32).ok_or_else(out_of_range)?;
            second_remainder -= f64::from((second_remainder / 86400.0) as i32) * 86400.0;
        }
        let days = days.checked_add(month_days).ok_or_else(out_of_range)?;
        let microseconds =
            (apply(self.microseconds as f64) + second_remainder * 1_000_000.0).round_ties_even();
        if !(-9223372036854775808.0..9223372036854775808.0).contains(&microseconds) {
            return Err(out_of_range());
        }
        Ok(Interval { months, days, microseconds: microseconds as i64 })
    }

    /// Turns whole 24 hours of time into days.
    pub fn justify_hours(&self) -> Result<Interval> {
        let days = i64::from(self.days) + self.microseconds / MICROS_PER_DAY;
        let (days, microseconds) = of_one_sign(days, self.microseconds % MICROS_PER_DAY, MICROS_PER_DAY);
        Ok(Interval { days: days.try_into().map_err(|_| out_of_range())?, microseconds, ..*self })
    }

    /// Turns whole 30 days into months.
    pub fn justify_days(&self) -> Result<Interval> {
        let months = i64::from(self.months) + i64::from(self.days / 30);
        let (months, days) = of_one_sign(months, (self.days % 30).into(), 30);
        let months = months.try_into().map_err(|_| out_of_range())?;
        Ok(Interval { months, days: days as i32, ..*self })
    }

    /// Turns whole days of time into days and whole 30 days into months, and gives all parts the same sign.
    pub fn justify_interval(&self) -> Result<Interval> {
        let mut days = i64::from(self.days) + self.microseconds / MICROS_PER_DAY;
        let microseconds = self.microseconds % MICROS_PER_DAY;
        // As PostgreSQL does, before signs are looked at.
        let months = i64::from(self.months) + days / 30;
        let mut months = i32::try_from(months).map_err(|_| out_of_range())?;
        days %= 30;
        if months > 0 && (days < 0 || (days == 0 && microseconds < 0)) {
            days += 30;
            months -= 1;
        } else if months < 0 && (days > 0 || (days == 0 && microseconds > 0)) {
            days -= 30;
            months += 1;
        }
        let (days, microseconds) = of_one_sign(days, microseconds, MICROS_PER_DAY);
        Ok(Interval { months, days: days as i32, microseconds })
    }

    /// Appends the text in `postgres` style.
    pub fn write(&self, out: &mut String) {
        let mut empty = true;
        let mut before = false;
        for (value, unit) in [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")] {
            if value != 0 {
                let space = if empty { "" } else { " " };
                let plus = if before && value > 0 { "+" } else { "" };
                let plural = if value == 1 { "" } else { "s" };
                let _ = write!(out, "{space}{plus}{value} {unit}{plural}");
                before = value < 0;
                empty = false;
            }
        }
        if empty || self.microseconds != 0 {
            if !empty {
                out.push(' ');
            }
            if self.microseconds < 0 {
                out.push('-');
            } else if before {
                out.push('+');
            }
            let rest = self.microseconds.unsigned_abs();
            let (hours, rest) = (rest / MICROS_PER_HOUR as u64, rest % MICROS_PER_HOUR as u64);
            let (minutes, rest) = (rest / MICROS_PER_MINUTE as u64, rest % MICROS_PER_MINUTE as u64);
            let (seconds, micros) = (rest / MICROS_PER_SECOND as u64, rest % MICROS_PER_SECOND as u64);
            let _ = write!(out, "{hours:02}:{minutes:02}:{seconds:02}");
            crate::datetime::write_fraction(out, micros as u32);
        }
    }
}
