//! Text input and output of every type, as PostgreSQL's type input and output functions.

use std::fmt::Write as _;

use crate::{
    datetime::{self, Zone},
    error::{Result, SqlError, SqlState},
    expr::EvalContext,
    interval::Interval,
    numeric::Numeric,
    shortest::{chosen_f32, chosen_f64},
    types::Type,
    value::Value,
};

/// The name of a type in input errors: that of its input function, without modifiers.
fn input_name(ty: &Type) -> &'static str {
    match ty {
        Type::Bool => "boolean",
        Type::Int2 => "smallint",
        Type::Int4 => "integer",
        Type::Int8 => "bigint",
        Type::Float4 => "real",
        Type::Float8 => "double precision",
        Type::Numeric(_) => "numeric",
        Type::Text => "text",
        Type::Varchar(_) => "character varying",
        Type::Char(_) => "character",
        Type::Date => "date",
        Type::Time => "time",
        Type::Timestamp => "timestamp",
        Type::TimestampTz => "timestamp with time zone",
        Type::Interval => "interval",
        Type::Uuid => "uuid",
        Type::Bytea => "bytea",
    }
}

fn invalid(ty: &Type, text: &str) -> SqlError {
    let code = match ty {
        Type::Date | Type::Time | Type::Timestamp | Type::TimestampTz | Type::Interval => {
            SqlState::INVALID_DATETIME
        }
        _ => SqlState::INVALID_TEXT,
    };
    SqlError::new(code, format!("invalid input syntax for type {}: \"{text}\"", input_name(ty)))
}

fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b')
}

/// Reads a whole number of at most 64 bits that lies within `min..=max`.
pub(crate) fn parse_integer(text: &str, ty: &Type, min: i64, max: i64) -> Result<i64> {
    let trimmed = trim(text);
    let (negative, digits) = match trimmed.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(invalid(ty, text));
    }
    // Downwards, where there is one number more.
    let mut value = 0i64;
    for digit in digits {
        let next = value.checked_mul(10).and_then(|v| v.checked_sub(i64::from(digit - b'0')));
        match next {
            Some(next) => value = next,
            None => return Err(integer_out_of_range(text, ty)),
        }
    }
    let value = if negative { Some(value) } else { value.checked_neg() };
    value.filter(|v| (min..=max).contains(v)).ok_or_else(|| integer_out_of_range(text, ty))
}

fn integer_out_of_range(text: &str, ty: &Type) -> SqlError {
    SqlError::new(
        SqlState::OUT_OF_RANGE,
        format!("value \"{text}\" is out of range for type {}", input_name(ty)),
    )
}

fn special_float(text: &str) -> Option<f64> {
    let (negative, word) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let value = if word.eq_ignore_ascii_case("infinity") || word.eq_ignore_ascii_case("inf") {
        f64::INFINITY
    } else if word.eq_ignore_ascii_case("nan") {
        f64::NAN
    } else {
        return None;
    };
    Some(if negative { -value } else { value })
}

/// Whether the text is a decimal number as `strtod` reads it (Rust's reader knows more words).
fn is_decimal(text: &str) -> bool {
    let mut digits = false;
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => digits = true,
            b'.' => {}
            b'+' | b'-' if i == 0 => {}
            b'+' | b'-' => {
                if !matches!(text.as_bytes()[i - 1], b'e' | b'E') {
                    return false;
                }
            }
            b'e' | b'E' if digits => {}
            _ => return false,
        }
    }
    digits
}

fn has_nonzero_digit(text: &str) -> bool {
    text.bytes().take_while(|b| !matches!(b, b'e' | b'E')).any(|b| (b'1'..=b'9').contains(&b))
}

pub(crate) fn parse_f64(text: &str) -> Result<f64> {
    let trimmed = trim(text);
    if let Some(value) = special_float(trimmed) {
        return Ok(value);
    }
    let value = is_decimal(trimmed)
        .then(|| trimmed.parse::<f64>().ok())
        .flatten()
        .ok_or_else(|| invalid(&Type::Float8, text))?;
    if value.is_infinite() || (value == 0.0 && has_nonzero_digit(trimmed)) {
        return Err(SqlError::new(
            SqlState::OUT_OF_RANGE,
            format!("\"{trimmed}\" is out of range for type double precision"),
        ));
    }
    Ok(value)
}

pub(crate) fn parse_f32(text: &str) -> Result<f32> {
    let trimmed = trim(text);
    if let Some(value) = special_float(trimmed) {
        return Ok(value as f32);
    }
    let value = is_decimal(trimmed)
        .then(|| trimmed.parse::<f32>().ok())
        .flatten()
        .ok_or_else(|| invalid(&Type::Float4, text))?;
    if value.is_infinite() || (value == 0.0 && has_nonzero_digit(trimmed)) {
        return Err(SqlError::new(
            SqlState::OUT_OF_RANGE,
            format!("\"{trimmed}\" is out of range for type real"),
        ));
    }
    Ok(value)
}

pub(crate) fn parse_bool(text: &str) -> Result<bool> {
    let lower = trim(text).to_ascii_lowercase();
    let prefix_of = |word: &str, least: usize| lower.len() >= least && word.starts_with(&lower);
    if lower == "1" || prefix_of("true", 1) || prefix_of("yes", 1) || lower == "on" {
        Ok(true)
    } else if lower == "0" || prefix_of("false", 1) || prefix_of("no", 1) || prefix_of("off", 2) {
        Ok(false)
    } else {
        Err(invalid(&Type::Bool, text))
    }
}

/// Digits of a hexadecimal text; blanks between pairs are allowed.
pub(crate) fn decode_hex(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for c in text.chars() {
        if high.is_none() && matches!(c, ' ' | '\n' | '\t' | '\r') {
            continue;
        }
        let digit = c.to_digit(16).ok_or_else(|| {
            SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid hexadecimal digit: \"{c}\""))
        })? as u8;
        match high.take() {
            None => high = Some(digit),
            Some(high) => bytes.push(high << 4 | digit),
        }
    }
    if high.is_some() {
        return Err(SqlError::new(
            SqlState::INVALID_PARAMETER_VALUE,
            "invalid hexadecimal data: odd number of digits",
        ));
    }
    Ok(bytes)
}

/// Reads bytea in hex or escape format.
pub(crate) fn parse_bytea(text: &str) -> Result<Vec<u8>> {
    if let Some(hex) = text.strip_prefix("\\x") {
        return decode_hex(hex);
    }
    let source = text.as_bytes();
    let mut bytes = Vec::with_capacity(source.len());
    let mut at = 0;
    while at < source.len() {
        match &source[at..] {
            [b'\\', b'\\', ..] => {
                bytes.push(b'\\');
                at += 2;
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                at += 4;
            }
            [b'\\', ..] => {
                return Err(SqlError::new(SqlState::INVALID_TEXT, "invalid input syntax for type bytea"));
            }
            [byte, ..] => {
                bytes.push(*byte);
                at += 1;
            }
            [] => break,
        }
    }
    Ok(bytes)
}

/// Reads a uuid: 32 digits, a hyphen after any group of four, braces around it.
pub(crate) fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    let error = || invalid(&Type::Uuid, text);
    let inner = match text.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}').ok_or_else(error)?,
        None => text,
    };
    let mut bytes = [0u8; 16];
    let source = inner.as_bytes();
    let mut at = 0;
    for (i, byte) in bytes.iter_mut().enumerate() {
        let pair = source.get(at..at + 2).ok_or_else(error)?;
        let digit = |b: u8| (b as char).to_digit(16).ok_or_else(error);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        at += 2;
        if i % 2 == 1 && i < 15 && source.get(at) == Some(&b'-') {
            at += 1;
        }
    }
    if at == source.len() { Ok(bytes) } else { Err(error()) }
}

/// 22001 for a string that `ty` cannot hold.
pub fn too_long(ty: &Type) -> SqlError {
    SqlError::new(SqlState::STRING_TOO_LONG, format!("value too long for type {ty}"))
}

/// Number of bytes of the first `n` characters.
pub(crate) fn prefix_length(text: &str, n: usize) -> usize {
    if text.len() <= n {
        return text.len();
    }
    text.char_indices().nth(n).map_or(text.len(), |(i, _)| i)
}

/// What is stored of a string in a column of type `ty`: cut (blanks only, unless `explicit`) and padded. The second
/// number is how many blanks are to be appended.
pub(crate) fn fit_string<'a>(text: &'a str, ty: &Type, explicit: bool) -> Result<(&'a str, usize)> {
    let (limit, pad) = match ty {
        Type::Varchar(Some(n)) => (*n as usize, false),
        Type::Char(n) if *n > 0 => (*n as usize, true),
        _ => return Ok((text, 0)),
    };
    let length = prefix_length(text, limit);
    if length < text.len() {
        if !explicit && text[length..].bytes().any(|b| b != b' ') {
            return Err(too_long(ty));
        }
        return Ok((&text[..length], 0));
    }
    let missing = if pad { limit - text.chars().count() } else { 0 };
    Ok((text, missing))
}

/// Reads a value as the type's input function does; the type's modifiers are applied as on storing into a column.
pub fn parse_value(text: &str, ty: &Type, context: &EvalContext) -> Result<Value> {
    Ok(match ty {
        Type::Bool => Value::Bool(parse_bool(text)?),
        Type::Int2 => Value::Int2(parse_integer(text, ty, i16::MIN.into(), i16::MAX.into())? as i16),
        Type::Int4 => Value::Int4(parse_integer(text, ty, i32::MIN.into(), i32::MAX.into())? as i32),
        Type::Int8 => Value::Int8(parse_integer(text, ty, i64::MIN, i64::MAX)?),
        Type::Float4 => Value::Float4(parse_f32(text)?),
        Type::Float8 => Value::Float8(parse_f64(text)?),
        Type::Numeric(None) => Value::Numeric(Numeric::parse(text)?),
        Type::Numeric(Some((precision, scale))) => {
            Value::Numeric(Numeric::parse(text)?.fits(*precision, *scale)?)
        }
        Type::Text | Type::Varchar(_) | Type::Char(_) => {
            let (kept, blanks) = fit_string(text, ty, false)?;
            if blanks == 0 {
                Value::text(kept)
            } else {
                let mut padded = String::with_capacity(kept.len() + blanks);
                padded.push_str(kept);
                padded.extend(std::iter::repeat_n(' ', blanks));
                Value::text(padded)
            }
        }
        Type::Date => Value::Date(datetime::parse_date(text, context)?),
        Type::Time => Value::Time(datetime::parse_time(text, context)?),
        Type::Timestamp => Value::Timestamp(datetime::parse_timestamp(text, context)?),
        Type::TimestampTz => Value::TimestampTz(datetime::parse_timestamptz(text, context)?),
        Type::Interval => Value::Interval(Interval::parse(text)?),
        Type::Uuid => Value::Uuid(parse_uuid(text)?),
        Type::Bytea => Value::Bytea(parse_bytea(text)?.into()),
    })
}

/// Writes digits and exponent of a shortest decimal in PostgreSQL's choice of notation: fixed when the decimal point
/// lies from four places before the digits up to `fixed_limit` places behind the first.
fn write_shortest(out: &mut String, scientific: &str, fixed_limit: i32) {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    out.push_str(sign);
    let (first, rest) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if exponent < -4 || exponent >= fixed_limit {
        out.push_str(mantissa);
        let _ = write!(out, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    } else if exponent < 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', (-exponent - 1) as usize));
        out.push_str(first);
        out.push_str(rest);
    } else {
        out.push_str(first);
        let whole = exponent as usize;
        if rest.len() <= whole {
            out.push_str(rest);
            out.extend(std::iter::repeat_n('0', whole - rest.len()));
        } else {
            out.push_str(&rest[..whole]);
            out.push('.');
            out.push_str(&rest[whole..]);
        }
    }
}

/// A small buffer for the digits of a float.
struct FloatText {
    bytes: [u8; 40],
    length: usize,
}

impl std::fmt::Write for FloatText {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let end = self.length + s.len();
        self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.length = end;
        Ok(())
    }
}

fn write_float(
    out: &mut String,
    value: f64,
    scientific: std::fmt::Arguments<'_>,
    chosen: impl FnOnce(&str) -> Option<String>,
    fixed_limit: i32,
) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        let mut buffer = FloatText { bytes: [0; 40], length: 0 };
        let written = buffer.write_fmt(scientific);
        debug_assert!(written.is_ok(), "a shortest float has at most 24 characters");
        let shortest = std::str::from_utf8(&buffer.bytes[..buffer.length]).unwrap_or("NaN");
        write_shortest(out, chosen(shortest).as_deref().unwrap_or(shortest), fixed_limit);
    }
}

/// Appends a double with the fewest digits that give it back.
pub fn write_f64(out: &mut String, value: f64) {
    write_float(out, value, format_args!("{value:e}"), |text| chosen_f64(value, text), 15);
}

/// Appends a real with the fewest digits that give it back.
pub fn write_f32(out: &mut String, value: f32) {
    write_float(out, f64::from(value), format_args!("{value:e}"), |text| chosen_f32(value, text), 6);
}

/// Appends bytes in hexadecimal digits.
pub(crate) fn write_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() * 2);
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

pub(crate) fn write_bytea(out: &mut String, bytes: &[u8]) {
    out.push_str("\\x");
    write_hex(out, bytes);
}

pub(crate) fn write_uuid(out: &mut String, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        write_hex(out, std::slice::from_ref(byte));
    }
}

pub(crate) fn write_i64(out: &mut String, value: i64) {
    crate::numeric::write_scaled(out, i128::from(value), 0);
}

/// Writes values as text; holds what is the same for all of them.
#[derive(Clone, Copy, Debug)]
pub struct TextWriter {
    zone: Zone,
}

impl TextWriter {
    /// A writer for the session that `context` describes. 22023 when its time zone is unknown.
    pub fn new(context: &EvalContext) -> Result<TextWriter> {
        Ok(TextWriter { zone: Zone::parse(&context.time_zone)? })
    }

    /// The session's time zone.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Appends a value as its type's output function gives it; nothing for NULL.
    pub fn write(&self, out: &mut String, value: &Value) {
        match value {
            Value::Null => {}
            Value::Bool(value) => out.push(if *value { 't' } else { 'f' }),
            Value::Int2(value) => write_i64(out, i64::from(*value)),
            Value::Int4(value) => write_i64(out, i64::from(*value)),
            Value::Int8(value) => write_i64(out, *value),
            Value::Float4(value) => write_f32(out, *value),
            Value::Float8(value) => write_f64(out, *value),
            Value::Numeric(value) => value.write(out),
            Value::Text(value) => out.push_str(value),
            Value::Bytea(value) => write_bytea(out, value),
            Value::Date(value) => datetime::write_date(out, *value),
            Value::Time(value) => datetime::write_time(out, *value),
            Value::Timestamp(value) => datetime::write_timestamp(out, *value),
            Value::TimestampTz(value) => datetime::write_timestamptz(out, *value, &self.zone),
            Value::Interval(value) => value.write(out),
            Value::Uuid(value) => write_uuid(out, value),
        }
    }
}

/// Appends a value as its type's output function gives it; nothing for NULL. An unknown time zone is taken for UTC (it
/// is checked when it is set). For many values make one [`TextWriter`].
pub fn write_value(out: &mut String, value: &Value, context: &EvalContext) {
    TextWriter::new(context).unwrap_or(TextWriter { zone: Zone::UTC }).write(out, value);
}

/// A value as its type's output function gives it; empty for NULL.
pub fn format_value(value: &Value, _ty: &Type, context: &EvalContext) -> String {
    let mut out = String::new();
    write_value(&mut out, value, context);
    out
}
