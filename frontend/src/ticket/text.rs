//! Rows as csv, in the form that COPY … (FORMAT csv) reads and that PostgreSQL itself would print.

use super::{FieldVisitor, Ticket};

/// Appends rows as csv: comma, `\n`, no header, NULL is an empty field.
pub fn write_csv(tickets: &[Ticket], out: &mut Vec<u8>) {
    for ticket in tickets {
        ticket.visit(&mut Csv(out));
        if let Some(last) = out.last_mut() {
            // The comma behind the last field.
            *last = b'\n';
        }
    }
}

struct Csv<'a>(&'a mut Vec<u8>);

impl Csv<'_> {
    fn number(&mut self, value: i64) {
        if value < 0 {
            self.0.push(b'-');
        }
        let mut digits = [0; 20];
        let mut start = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.0.extend_from_slice(&digits[start..]);
    }

    fn two_digits(&mut self, value: i64) {
        self.0.extend_from_slice(&[b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]);
    }

    fn day(&mut self, days: i64) {
        let (year, month, day) = civil(days);
        self.two_digits(year / 100);
        self.two_digits(year % 100);
        self.0.push(b'-');
        self.two_digits(month);
        self.0.push(b'-');
        self.two_digits(day);
    }

    fn clock(&mut self, seconds: i64) {
        self.two_digits(seconds / 3600);
        self.0.push(b':');
        self.two_digits(seconds / 60 % 60);
        self.0.push(b':');
        self.two_digits(seconds % 60);
    }

    fn moment(&mut self, seconds: i64) {
        self.day(seconds.div_euclid(86_400));
        self.0.push(b' ');
        self.clock(seconds.rem_euclid(86_400));
    }

    fn tenths(&mut self, tenths: i64) {
        self.number(tenths / 10);
        if tenths % 10 != 0 {
            self.0.extend_from_slice(&[b'.', b'0' + (tenths % 10) as u8]);
        }
    }

    fn hex(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in bytes {
            self.0.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }

    fn end(&mut self) {
        self.0.push(b',');
    }
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar (Hinnant's algorithm).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

impl FieldVisitor for Csv<'_> {
    fn boolean(&mut self, value: bool) {
        self.0.push(if value { b't' } else { b'f' });
        self.end();
    }

    fn int2(&mut self, value: Option<i16>) {
        if let Some(value) = value {
            self.number(i64::from(value));
        }
        self.end();
    }

    fn int4(&mut self, value: i32) {
        self.number(i64::from(value));
        self.end();
    }

    fn int8(&mut self, value: i64) {
        self.number(value);
        self.end();
    }

    fn real_tenths(&mut self, tenths: i32) {
        self.tenths(i64::from(tenths));
        self.end();
    }

    fn double_tenths(&mut self, tenths: i64) {
        self.tenths(tenths);
        self.end();
    }

    fn cents(&mut self, cents: i64) {
        self.number(cents / 100);
        self.0.push(b'.');
        self.two_digits(cents % 100);
        self.end();
    }

    fn text(&mut self, value: Option<&str>) {
        if let Some(value) = value {
            debug_assert!(
                !value.is_empty() && !value.contains([',', '"', '\n', '\r']),
                "{value} needs quotes"
            );
            self.0.extend_from_slice(value.as_bytes());
        }
        self.end();
    }

    fn date(&mut self, days: Option<i32>) {
        if let Some(days) = days {
            self.day(i64::from(days));
        }
        self.end();
    }

    fn time(&mut self, seconds: i32) {
        self.clock(i64::from(seconds));
        self.end();
    }

    fn timestamp(&mut self, seconds: i64) {
        self.moment(seconds);
        self.end();
    }

    fn timestamptz(&mut self, seconds: i64) {
        self.moment(seconds);
        self.0.extend_from_slice(b"+00");
        self.end();
    }

    fn uuid(&mut self, value: &[u8; 16]) {
        for (i, part) in
            [&value[..4], &value[4..6], &value[6..8], &value[8..10], &value[10..]].iter().enumerate()
        {
            if i > 0 {
                self.0.push(b'-');
            }
            self.hex(part);
        }
        self.end();
    }

    fn bytea(&mut self, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.0.extend_from_slice(b"\\x");
            self.hex(value);
        }
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(20_454), (2026, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        let mut previous = civil(-50_000);
        for day in -49_999..50_000 {
            let next = civil(day);
            assert!(next > previous, "{next:?} after {previous:?}");
            previous = next;
        }
    }
}
