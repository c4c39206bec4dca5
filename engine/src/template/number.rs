//! `to_char` of numbers and `to_number`.
//!
//! Both walk through the template as PostgreSQL's `NUM_processor` does, digit by digit; the states below have its names
//! where a better one would hide what is compared with what.

use super::{Node, ordinal_ending, parse};
use crate::{
    error::{Result, SqlError, SqlState},
    numeric::Numeric,
};

/// The patterns of numbers, longer ones before their prefixes.
const PATTERNS: &[&str] = &[
    ",", ".", "0", "9", "B", "C", "D", "EEEE", "FM", "G", "L", "MI", "PL", "PR", "RN", "SG", "SP", "S", "TH",
    "V", "b", "c", "d", "eeee", "fm", "g", "l", "mi", "pl", "pr", "rn", "sg", "sp", "s", "th", "v",
];
/// The longest template, and a bound for the digits that it asks for.
const MAX_TEMPLATE: usize = 100_000;

/// Where the sign of `S` goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Anchor {
    Before,
    Behind,
}

/// What a template says as a whole.
#[derive(Clone, Copy, Debug, Default)]
struct Description {
    /// Digits before and behind the point.
    pre: usize,
    post: usize,
    /// Digits behind `V`.
    multi: usize,
    anchor: Option<Anchor>,
    /// Digits in front of `S`.
    pre_sign: usize,
    /// Where the first `0` is, counted from 1, and the last.
    zero_start: usize,
    zero_end: usize,
    decimal: bool,
    fill_mode: bool,
    zero: bool,
    blank: bool,
    bracket: bool,
    minus: bool,
    plus: bool,
    roman: bool,
    v: bool,
    exponent: bool,
    sign: bool,
}

fn syntax(message: &str) -> SqlError {
    SqlError::new(SqlState::SYNTAX_ERROR, message)
}

impl Description {
    fn of(nodes: &[Node]) -> Result<Description> {
        let mut d = Description::default();
        for node in nodes {
            let Node::Pattern(pattern, _) = node else { continue };
            let pattern = pattern.to_ascii_uppercase();
            if d.exponent && pattern != "EEEE" {
                return Err(syntax("\"EEEE\" must be the last pattern used"));
            }
            d.take(&pattern)?;
        }
        Ok(d)
    }

    fn take(&mut self, pattern: &str) -> Result<()> {
        match pattern {
            "9" if self.bracket => return Err(syntax("\"9\" must be ahead of \"PR\"")),
            "9" if self.v => self.multi += 1,
            "9" if self.decimal => self.post += 1,
            "9" => self.pre += 1,
            "0" => {
                if self.bracket {
                    return Err(syntax("\"0\" must be ahead of \"PR\""));
                }
                if !self.zero && !self.decimal {
                    self.zero = true;
                    self.zero_start = self.pre + 1;
                }
                if self.decimal {
                    self.post += 1;
                } else {
                    self.pre += 1;
                }
                self.zero_end = self.pre + self.post;
            }
            "B" => self.blank |= self.pre == 0 && self.post == 0 && !self.zero,
            "D" | "." => {
                if self.decimal {
                    return Err(syntax("multiple decimal points"));
                }
                if self.v {
                    return Err(syntax("cannot use \"V\" and decimal point together"));
                }
                self.decimal = true;
            }
            "FM" => self.fill_mode = true,
            "S" => {
                if self.sign {
                    return Err(syntax("cannot use \"S\" twice"));
                }
                if self.plus || self.minus || self.bracket {
                    return Err(syntax("cannot use \"S\" and \"PL\"/\"MI\"/\"SG\"/\"PR\" together"));
                }
                self.sign = true;
                if self.decimal {
                    self.anchor = Some(Anchor::Behind);
                } else {
                    self.anchor = Some(Anchor::Before);
                    self.pre_sign = self.pre;
                }
            }
            "MI" | "PL" | "SG" => {
                if self.sign {
                    return Err(syntax(&format!("cannot use \"S\" and \"{pattern}\" together")));
                }
                self.minus |= pattern != "PL";
                self.plus |= pattern != "MI";
            }
            "PR" => {
                if self.sign || self.plus || self.minus {
                    return Err(syntax("cannot use \"PR\" and \"S\"/\"PL\"/\"MI\"/\"SG\" together"));
                }
                self.bracket = true;
            }
            "RN" => self.roman = true,
            "V" => {
                if self.decimal {
                    return Err(syntax("cannot use \"V\" and decimal point together"));
                }
                self.v = true;
            }
            "EEEE" => {
                if self.exponent {
                    return Err(syntax("cannot use \"EEEE\" twice"));
                }
                if self.blank
                    || self.fill_mode
                    || self.sign
                    || self.bracket
                    || self.minus
                    || self.plus
                    || self.roman
                    || self.v
                {
                    return Err(syntax("\"EEEE\" is incompatible with other formats").with_detail(
                        "\"EEEE\" may only be used together with digit and decimal point patterns.",
                    ));
                }
                self.exponent = true;
            }
            _ => {}
        }
        Ok(())
    }
}

/// The number that `to_char` is asked to write.
pub(crate) enum NumberSource<'n> {
    Int4(i32),
    Int8(i64),
    Numeric(&'n Numeric),
    Float4(f32),
    Float8(f64),
}

/// `to_char` of a number.
pub(crate) fn to_char_number(number: &NumberSource<'_>, template: &str) -> Result<String> {
    if template.is_empty() || template.len() > MAX_TEMPLATE {
        return Ok(String::new());
    }
    let nodes = parse(template, PATTERNS, false);
    let mut description = Description::of(&nodes)?;
    let (text, pre_spaces, sign) = number.digits(&mut description)?;
    if description.exponent {
        return Ok(text);
    }
    Writer::new(description, text, pre_spaces, sign).write(&nodes)
}

impl NumberSource<'_> {
    /// The digits that the template is filled with, how many fewer they are before the point than it has places for,
    /// and the sign.
    fn digits(&self, d: &mut Description) -> Result<(String, usize, char)> {
        if d.roman {
            let whole = match self {
                NumberSource::Int4(value) => i64::from(*value),
                NumberSource::Int8(value) => *value,
                NumberSource::Numeric(value) => match value.to_integer("integer")? {
                    Some(whole) if i32::try_from(whole).is_ok() => whole as i64,
                    _ => return Err(SqlError::new(SqlState::OUT_OF_RANGE, "integer out of range")),
                },
                NumberSource::Float4(value) => f64::from(*value).round_ties_even() as i64,
                NumberSource::Float8(value) => value.round_ties_even() as i64,
            };
            return Ok((roman(whole), 0, '+'));
        }
        let float = match self {
            NumberSource::Float4(value) => Some((f64::from(*value), 6)),
            NumberSource::Float8(value) => Some((*value, 15)),
            NumberSource::Int4(value) if d.exponent => Some((f64::from(*value), 15)),
            _ => None,
        };
        let text = match (float, self) {
            (Some((value, _)), _) if d.exponent => return Ok((scientific_float(value, d), 0, '+')),
            (Some((value, digits)), _) => {
                let mut value = value;
                if d.v {
                    value *= 10f64.powi(d.multi as i32);
                    if digits == 6 {
                        value = f64::from(value as f32);
                    }
                    d.pre += d.multi;
                }
                // No more digits than the type is good for.
                let whole = fixed(value.abs(), 0).len();
                if whole >= digits {
                    d.post = 0;
                } else if whole + d.post > digits {
                    d.post = digits - whole;
                }
                fixed(value, d.post)
            }
            (None, source) => {
                let number = match source {
                    NumberSource::Numeric(number) => (*number).clone(),
                    NumberSource::Int8(value) => Numeric::from(*value),
                    // As in PostgreSQL an integer that V makes too large wraps around.
                    NumberSource::Int4(value) if d.v => {
                        d.pre += d.multi;
                        let shifted = value.wrapping_mul(10f64.powi(d.multi as i32) as i32);
                        d.v = false;
                        Numeric::from(i64::from(shifted))
                    }
                    NumberSource::Int4(value) => Numeric::from(i64::from(*value)),
                    _ => return Err(SqlError::internal("a float among the exact numbers")),
                };
                if d.exponent {
                    return Ok((scientific(&number, d)?, 0, '+'));
                }
                let number = if d.v {
                    d.pre += d.multi;
                    number.multiply(&Numeric::new(10, 0).power(&Numeric::from(d.multi as i64))?)?
                } else {
                    number
                };
                number.round(d.post as i64)?.to_string()
            }
        };
        let (text, sign) = match text.strip_prefix('-') {
            Some(rest) => (rest.to_owned(), '-'),
            None => (text, '+'),
        };
        let whole = text.find('.').unwrap_or(text.len());
        if whole > d.pre {
            return Ok((format!("{}.{}", "#".repeat(d.pre), "#".repeat(d.post)), 0, sign));
        }
        Ok((text, d.pre - whole, sign))
    }
}

/// As C's `%.*f`.
fn fixed(value: f64, places: usize) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        format!("{value:.places$}")
    }
}

/// What `EEEE` makes of a value without digits.
fn no_digits(d: &Description) -> String {
    format!(" {}.{}", "#".repeat(d.pre), "#".repeat(d.post + 4))
}

/// As C's `%+.*e`, with a blank for a plus.
fn scientific_float(value: f64, d: &Description) -> String {
    if !value.is_finite() {
        return no_digits(d);
    }
    // No double has more digits that are not zero.
    let places = d.post.min(1_100);
    let text = format!("{value:.places$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let blank = if mantissa.starts_with('-') { "" } else { " " };
    format!("{blank}{mantissa}{}e{exponent:+03}", "0".repeat(d.post - places))
}

fn scientific(number: &Numeric, d: &Description) -> Result<String> {
    let Some((unscaled, scale)) = number.unscaled() else { return Ok(no_digits(d)) };
    let digits = unscaled.magnitude().to_string().len() as i64;
    let exponent = if number.is_zero() { 0 } else { digits - 1 - i64::from(scale) };
    // The digits as a number between 1 and 10.
    let significand = match number.is_zero() {
        true => Numeric::zero(),
        false => Numeric::new(unscaled, (digits - 1) as u32),
    };
    let significand = significand.round(d.post as i64)?;
    let blank = if significand.is_negative() { "" } else { " " };
    Ok(format!("{blank}{significand}e{exponent:+03}"))
}

fn roman(number: i64) -> String {
    if !(1..=3999).contains(&number) {
        return "#".repeat(15);
    }
    const PARTS: [(i64, &str); 13] = [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ];
    let mut rest = number;
    let mut out = String::new();
    for (value, digits) in PARTS {
        while rest >= value {
            out.push_str(digits);
            rest -= value;
        }
    }
    out
}

/// Fills a template with digits.
struct Writer {
    d: Description,
    number: Vec<u8>,
    /// Place in `number`.
    at: usize,
    pre_spaces: usize,
    sign: char,
    sign_written: bool,
    /// Whether the last place of the number that was written was a digit.
    in_number: bool,
    /// Places of the template that were gone through, and how many there are.
    current: usize,
    count: i64,
    /// The last digit behind the point that is not zero (or the point), in fill mode.
    last_relevant: Option<usize>,
    out: String,
    /// Where the text ends, when that is before the template's end.
    end: Option<usize>,
}

impl Writer {
    fn new(mut d: Description, text: String, pre_spaces: usize, sign: char) -> Writer {
        let number = text.into_bytes();
        d.zero_start = d.zero_start.saturating_sub(1);
        let (mut sign, mut pre_spaces) = (sign, pre_spaces);
        if d.roman {
            let fill_mode = d.fill_mode;
            d = Description { fill_mode, roman: true, ..Description::default() };
            (sign, pre_spaces) = ('\0', 0);
        }
        let sign_written;
        if d.plus || d.minus {
            // MI and SG write the sign themselves.
            sign_written = d.minus;
        } else {
            if sign != '-' && d.fill_mode {
                d.bracket = false;
            }
            sign_written = sign == '+' && d.fill_mode && !d.sign;
            if d.anchor == Some(Anchor::Before) && d.pre == d.pre_sign {
                d.anchor = Some(Anchor::Behind);
            }
        }
        let mut count = (d.post + d.pre) as i64 - 1;
        let mut last_relevant = None;
        if d.fill_mode && d.decimal {
            last_relevant = number.iter().position(|c| *c == b'.').map(|point| {
                (point..number.len()).rev().find(|i| *i == point || number[*i] != b'0').unwrap_or(point)
            });
            if let Some(last) = &mut last_relevant
                && d.zero_end > pre_spaces
            {
                *last = (*last).max((number.len() - 1).min(d.zero_end - pre_spaces));
            }
        }
        if !sign_written && pre_spaces == 0 {
            count += 1;
        }
        Writer {
            d,
            number,
            at: 0,
            pre_spaces,
            sign,
            sign_written,
            in_number: false,
            current: 0,
            count,
            last_relevant,
            out: String::new(),
            end: None,
        }
    }

    fn write(mut self, nodes: &[Node]) -> Result<String> {
        for node in nodes {
            let Node::Pattern(pattern, _) = node else {
                self.out.extend(node.character());
                continue;
            };
            let capitals = pattern.starts_with(|c: char| c.is_ascii_uppercase());
            match pattern.to_ascii_uppercase().as_str() {
                digit @ ("9" | "0" | "." | "D") => self.place(digit == "0"),
                // The C locale groups digits with commas, too.
                "," | "G" => match (self.in_number, self.d.fill_mode) {
                    (true, _) => self.out.push(','),
                    (false, true) => {}
                    (false, false) => self.out.push(' '),
                },
                // It has no currency.
                "L" => self.out.push(' '),
                "RN" => {
                    let digits = String::from_utf8_lossy(&self.number);
                    let digits = if capitals { digits.into_owned() } else { digits.to_ascii_lowercase() };
                    self.out.push_str(&if self.d.fill_mode { digits } else { format!("{digits:>15}") });
                }
                "TH" => {
                    let plain = !self.d.roman
                        && self.number.first() != Some(&b'#')
                        && self.sign != '-'
                        && !self.d.decimal;
                    if plain {
                        let digits = String::from_utf8_lossy(&self.number);
                        if !digits.ends_with(|c: char| c.is_ascii_digit()) {
                            let message = format!("\"{digits}\" is not a number");
                            return Err(SqlError::new(SqlState::INVALID_TEXT, message));
                        }
                        self.out.push_str(ordinal_ending(&digits, capitals));
                    }
                }
                "MI" if self.sign == '-' => self.out.push('-'),
                "PL" if self.sign == '+' => self.out.push('+'),
                "MI" | "PL" if !self.d.fill_mode => self.out.push(' '),
                // Behind a Roman number there is no sign, and nothing comes after that.
                "SG" if self.sign == '\0' => break,
                "SG" => self.out.push(self.sign),
                _ => {}
            }
        }
        self.out.truncate(self.end.unwrap_or(usize::MAX));
        Ok(self.out)
    }

    /// A blank in place of the zero before the point: `0.1` in `9.9`.
    fn is_blank_zero(&self) -> bool {
        !self.d.zero && self.at == 0 && self.number.first() == Some(&b'0') && self.d.post != 0
    }

    fn ends_at_point(&self) -> bool {
        self.last_relevant.is_some_and(|last| self.number.get(last) == Some(&b'.'))
    }

    fn push_sign(&mut self) {
        self.out.push(if self.sign == '-' { '-' } else { '+' });
    }

    /// A place for a digit or the point.
    fn place(&mut self, is_zero: bool) {
        if self.d.roman {
            return;
        }
        self.in_number = false;
        let starts = self.current >= self.pre_spaces || (self.d.zero && self.d.zero_start == self.current);
        if !self.sign_written && starts && (!self.is_blank_zero() || self.ends_at_point()) {
            if self.d.sign {
                if self.d.anchor == Some(Anchor::Before) {
                    self.push_sign();
                    self.sign_written = true;
                }
            } else {
                if self.d.bracket {
                    self.out.push(if self.sign == '+' { ' ' } else { '<' });
                } else if self.sign == '-' {
                    self.out.push('-');
                } else if !self.d.fill_mode {
                    self.out.push(' ');
                }
                self.sign_written = true;
            }
        }
        if self.current < self.pre_spaces && (self.d.zero_start > self.current || !self.d.zero) {
            if !self.d.fill_mode {
                self.out.push(' ');
            }
        } else if self.d.zero && self.current < self.pre_spaces {
            self.out.push('0');
            self.in_number = true;
        } else {
            match self.number.get(self.at) {
                Some(b'.') => {
                    if !self.ends_at_point() || self.d.fill_mode {
                        self.out.push('.');
                    }
                }
                _ if self.last_relevant.is_some_and(|last| self.at > last) && !is_zero => {}
                _ if self.is_blank_zero() => {
                    if !self.d.fill_mode {
                        self.out.push(' ');
                    } else if self.ends_at_point() {
                        self.out.push('0');
                    }
                }
                Some(digit) => {
                    self.out.push(*digit as char);
                    self.in_number = true;
                }
                // The template has places for more digits than a float is good for: the text ends here.
                None => {
                    self.end.get_or_insert(self.out.len());
                }
            }
            if self.at < self.number.len() {
                self.at += 1;
            }
        }
        let mut end = self.count + i64::from(self.pre_spaces > 0) + i64::from(self.d.decimal);
        if self.last_relevant == Some(self.at) {
            end = self.current as i64;
        }
        if self.current as i64 + 1 == end {
            if self.sign_written && self.d.bracket {
                self.out.push(if self.sign == '+' { ' ' } else { '>' });
            } else if self.d.sign && self.d.anchor == Some(Anchor::Behind) {
                self.push_sign();
            }
        }
        self.current += 1;
    }
}

/// `to_number`; `None` for an empty template.
pub(crate) fn to_number(text: &str, template: &str) -> Result<Option<Numeric>> {
    if template.is_empty() || template.len() > MAX_TEMPLATE {
        return Ok(None);
    }
    let nodes = parse(template, PATTERNS, false);
    let description = Description::of(&nodes)?;
    for (used, pattern) in [(description.exponent, "EEEE"), (description.roman, "RN")] {
        if used {
            let message = format!("\"{pattern}\" not supported for input");
            return Err(SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message));
        }
    }
    let reader = Reader {
        d: description,
        input: text.chars().collect(),
        at: 0,
        sign: ' ',
        digits: String::new(),
        before: 0,
        behind: 0,
        point: false,
        in_number: false,
    };
    reader.read(&nodes).map(Some)
}

/// Takes digits out of a text by a template.
struct Reader {
    d: Description,
    input: Vec<char>,
    at: usize,
    /// A blank as long as none was seen.
    sign: char,
    digits: String,
    /// Digits read before and behind the point.
    before: usize,
    behind: usize,
    point: bool,
    in_number: bool,
}

impl Reader {
    fn read(mut self, nodes: &[Node]) -> Result<Numeric> {
        for node in nodes {
            let Some(next) = self.peek() else { break };
            let Node::Pattern(pattern, _) = node else {
                self.at += 1;
                continue;
            };
            match pattern.to_ascii_uppercase().as_str() {
                digit @ ("9" | "0" | "." | "D") => {
                    self.place(matches!(digit, "9" | "0"));
                    self.at += 1;
                }
                "," | "G" => {
                    let skipped_in_fill_mode = !self.in_number && self.d.fill_mode;
                    self.at += usize::from(next == ',' && !skipped_in_fill_mode);
                }
                "L" => self.skip(1),
                "TH" if !self.d.decimal && self.sign != '-' => self.skip(2),
                "MI" if next == '-' => self.take_sign(),
                "PL" if next == '+' => self.take_sign(),
                "SG" if matches!(next, '-' | '+') => self.take_sign(),
                "MI" | "PL" | "SG" => self.skip(1),
                _ => {}
            }
        }
        let digits = self.digits.strip_suffix('.').unwrap_or(&self.digits);
        let number = Numeric::parse(&format!("{}{digits}", self.sign))?;
        let precision = self.d.pre + self.d.multi + self.behind;
        let number = match (u16::try_from(precision), u16::try_from(self.behind)) {
            (Ok(precision), Ok(scale)) => number.fits(precision, scale)?,
            _ => number,
        };
        if self.d.v {
            let factor = Numeric::new(10, 0).power(&Numeric::from(-(self.d.multi as i64)))?;
            return number.multiply(&factor);
        }
        Ok(number)
    }

    fn peek(&self) -> Option<char> {
        self.input.get(self.at).copied()
    }

    fn take_sign(&mut self) {
        self.sign = self.peek().unwrap_or(' ');
        self.at += 1;
    }

    /// Skips characters that cannot be part of a number.
    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            match self.peek() {
                None | Some('0'..='9' | '.' | ',' | '+' | '-') => break,
                Some(_) => self.at += 1,
            }
        }
    }

    /// A place for a digit or the point; the caller steps over the character that it ends at.
    fn place(&mut self, is_digit: bool) {
        if self.peek() == Some(' ') {
            self.at += 1;
        }
        let Some(mut next) = self.peek() else { return };
        if self.sign == ' ' && is_digit && self.before + self.behind == 0 {
            if self.d.sign {
                if self.d.anchor == Some(Anchor::Before) && matches!(next, '-' | '+') {
                    self.take_sign();
                }
            } else if next == '-' || (self.d.bracket && next == '<') {
                self.sign = '-';
                self.at += 1;
            } else if next == '+' {
                self.take_sign();
            }
            match self.peek() {
                Some(c) => next = c,
                None => return,
            }
        }
        let mut read = false;
        if next.is_ascii_digit() {
            if self.point && self.behind == self.d.post {
                return;
            }
            self.digits.push(next);
            if self.point {
                self.behind += 1;
            } else {
                self.before += 1;
            }
            read = true;
        } else if self.d.decimal && !self.point && next == '.' {
            self.digits.push('.');
            self.point = true;
            read = true;
        }
        if self.sign == ' ' && self.before + self.behind > 0 {
            let following = self.input.get(self.at + 1).copied();
            if self.d.sign && read {
                // A sign that stands right behind the last digit.
                if let Some(sign @ ('-' | '+')) = following {
                    self.sign = sign;
                    self.at += 1;
                }
            } else if !read && !self.d.sign && (self.d.plus || self.d.minus) && matches!(next, '-' | '+') {
                self.sign = next;
            }
        }
    }
}
