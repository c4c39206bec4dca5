//! What functions of strings and byte strings do. Letters change case as in the C locale: ASCII only.

use std::collections::{HashMap, HashSet};

use super::{EvalContext, call::wrong_arguments, function::Function, pattern};
use crate::{
    error::{Result, SqlError, SqlState},
    text::{self, prefix_length, write_value},
    value::Value,
};

/// So many characters are looked at one by one.
const FEW: usize = 16;
/// PostgreSQL's limit for one value, in bytes.
const MAX_BYTES: usize = 0x3fff_ffff;

fn too_large() -> SqlError {
    SqlError::new(SqlState::LIMIT_EXCEEDED, "requested length too large")
}

fn int(n: usize) -> Value {
    Value::Int4(i32::try_from(n).unwrap_or(i32::MAX))
}

fn chars(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// Byte offset of character `n` (0-based), or the end.
fn offset(text: &str, n: usize) -> usize {
    if text.is_ascii() { n.min(text.len()) } else { prefix_length(text, n) }
}

/// The positions `[from, to)`, 0-based, of `substring` over `length` units.
fn substring_bounds(length: usize, start: i32, count: Option<i32>) -> Result<(usize, usize)> {
    let start = i64::from(start);
    let end = match count {
        Some(count) if count < 0 => {
            return Err(SqlError::new(SqlState(*b"22011"), "negative substring length not allowed"));
        }
        Some(count) => start + i64::from(count),
        None => i64::MAX,
    };
    let clamp = |position: i64| (position - 1).clamp(0, length as i64) as usize;
    let from = clamp(start);
    Ok((from, if end == i64::MAX { length } else { clamp(end).max(from) }))
}

fn title_case(text: &str) -> String {
    let mut in_word = false;
    text.chars()
        .map(|c| {
            let changed = if in_word { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() };
            in_word = c.is_ascii_alphanumeric();
            changed
        })
        .collect()
}

fn pad(text: &str, length: i32, fill: &str, left: bool) -> Result<Value> {
    let length = length.max(0) as usize;
    let have = chars(text);
    if have >= length {
        return Ok(Value::text(&text[..offset(text, length)]));
    }
    if fill.is_empty() {
        return Ok(Value::text(text));
    }
    let missing = length - have;
    let (times, more) = (missing / chars(fill), &fill[..offset(fill, missing % chars(fill))]);
    let bytes = times.saturating_mul(fill.len()).saturating_add(more.len() + text.len());
    if bytes > MAX_BYTES {
        return Err(too_large());
    }
    let mut out = String::with_capacity(bytes);
    let parts = if left { ["", text] } else { [text, ""] };
    out.push_str(parts[0]);
    (0..times).for_each(|_| out.push_str(fill));
    out.push_str(more);
    out.push_str(parts[1]);
    Ok(Value::text(out))
}

fn split_part(text: &str, separator: &str, n: i32) -> Result<Value> {
    if n == 0 {
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "field position must not be zero"));
    }
    if separator.is_empty() {
        return Ok(Value::text(if n == 1 || n == -1 { text } else { "" }));
    }
    let part = if n > 0 {
        text.split(separator).nth(n as usize - 1)
    } else {
        // From the left, so that overlapping separators split the same way.
        let parts: Vec<&str> = text.split(separator).collect();
        parts.len().checked_sub(n.unsigned_abs() as usize).map(|i| parts[i])
    };
    Ok(Value::text(part.unwrap_or("")))
}

fn translate(text: &str, from: &str, to: &str) -> String {
    let mut to = to.chars();
    // The first of equal characters counts.
    let mut replaced: HashMap<char, Option<char>> = HashMap::new();
    for c in from.chars() {
        let by = to.next();
        replaced.entry(c).or_insert(by);
    }
    text.chars().filter_map(|c| replaced.get(&c).copied().unwrap_or(Some(c))).collect()
}

fn chr(code: i32) -> Result<Value> {
    if code < 0 {
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "character number must be positive"));
    }
    if code == 0 {
        return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "null character not permitted"));
    }
    let error = |what: &str| {
        SqlError::new(SqlState::LIMIT_EXCEEDED, format!("requested character {what} for encoding: {code}"))
    };
    if code > 0x10_ffff {
        return Err(error("too large"));
    }
    let c = char::from_u32(code as u32).ok_or_else(|| error("not valid"))?;
    Ok(Value::text(c.to_string()))
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode_base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    let mut line = 0;
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |sum, b| sum << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        // PostgreSQL breaks lines after 76 characters.
        if line == 76 {
            out.push('\n');
            line = 0;
        }
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(BASE64[(group >> (18 - 6 * i) & 63) as usize] as char);
            } else {
                out.push('=');
            }
        }
        line += 4;
    }
    out
}

fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let (mut group, mut count, mut padding) = (0u32, 0, 0);
    for c in text.chars() {
        if matches!(c, ' ' | '\t' | '\n' | '\r') {
            continue;
        }
        let digit = match c {
            '=' if count >= 2 => {
                padding += 1;
                0
            }
            '=' => {
                return Err(SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    "unexpected \"=\" while decoding base64 sequence",
                ));
            }
            _ => match u8::try_from(c).ok().and_then(|b| BASE64.iter().position(|known| *known == b)) {
                Some(digit) if padding == 0 => digit as u32,
                _ => {
                    return Err(SqlError::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("invalid symbol \"{c}\" found while decoding base64 sequence"),
                    ));
                }
            },
        };
        group = group << 6 | digit;
        count += 1;
        if count == 4 {
            let bytes = group.to_be_bytes();
            out.extend_from_slice(&bytes[1..4 - padding.min(2)]);
            (group, count) = (0, 0);
        }
    }
    if count != 0 {
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "invalid base64 end sequence")
            .with_hint("Input data is missing padding, is truncated, or is otherwise corrupted."));
    }
    Ok(out)
}

fn encode(bytes: &[u8], format: &str) -> Result<Value> {
    let mut out = String::new();
    match format.to_ascii_lowercase().as_str() {
        "hex" => text::write_hex(&mut out, bytes),
        "base64" => out = encode_base64(bytes),
        "escape" => {
            for byte in bytes {
                match byte {
                    b'\\' => out.push_str("\\\\"),
                    0 | 0x80.. => {
                        out.push('\\');
                        out.extend([byte >> 6, byte >> 3 & 7, byte & 7].map(|digit| (b'0' + digit) as char));
                    }
                    _ => out.push(*byte as char),
                }
            }
        }
        _ => return Err(unknown_encoding(format)),
    }
    Ok(Value::text(out))
}

fn unknown_encoding(format: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("unrecognized encoding: \"{format}\""))
}

fn decode(source: &str, format: &str) -> Result<Value> {
    let bytes = match format.to_ascii_lowercase().as_str() {
        "hex" => text::decode_hex(source)?,
        "base64" => decode_base64(source)?,
        // A leading `\x` means nothing in this format.
        "escape" if source.starts_with("\\x") => {
            return Err(SqlError::new(SqlState::INVALID_TEXT, "invalid input syntax for type bytea"));
        }
        "escape" => text::parse_bytea(source)?,
        _ => return Err(unknown_encoding(format)),
    };
    Ok(Value::Bytea(bytes.into()))
}

fn trimmed<'a>(function: Function, text: &'a str, set: &str) -> &'a str {
    let many: Option<HashSet<char>> = (set.len() > FEW).then(|| set.chars().collect());
    let in_set = |c: char| many.as_ref().map_or_else(|| set.contains(c), |many| many.contains(&c));
    match function {
        Function::TrimLeft => text.trim_start_matches(in_set),
        Function::TrimRight => text.trim_end_matches(in_set),
        _ => text.trim_matches(in_set),
    }
}

fn concatenate<'a>(
    args: impl Iterator<Item = &'a Value>,
    separator: &str,
    context: &EvalContext,
) -> Result<Value> {
    let mut out = String::new();
    for (i, value) in args.filter(|value| !value.is_null()).enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        write_value(&mut out, value, context);
        if out.len() > MAX_BYTES {
            return Err(too_large());
        }
    }
    Ok(Value::text(out))
}

/// Calls a function of strings.
pub(super) fn call(function: Function, args: &[Value], context: &EvalContext) -> Result<Value> {
    use Function as F;
    use Value::{Bytea, Int4, Int8, Text};
    Ok(match (function, args) {
        (F::ConcatAll, _) => concatenate(args.iter(), "", context)?,
        (F::ConcatSeparated, [separator, rest @ ..]) => match separator {
            Text(separator) => concatenate(rest.iter(), separator, context)?,
            _ => Value::Null,
        },
        (F::Format, [template, arguments @ ..]) => match template {
            Text(template) => Value::text(super::format::format(template, arguments, context)?),
            _ => Value::Null,
        },
        (F::QuoteNullable, [Value::Null]) => Value::text("NULL"),
        (F::QuoteLiteral | F::QuoteNullable, [Text(text)]) => Value::text(super::format::quote_literal(text)),
        (F::QuoteIdentifier, [Text(text)]) => Value::text(super::format::quote_identifier(text)),
        (F::NumNulls, _) => int(args.iter().filter(|value| value.is_null()).count()),
        (F::NumNonNulls, _) => int(args.iter().filter(|value| !value.is_null()).count()),
        (F::Overlay, [Text(text), Text(new), Int4(start), rest @ ..]) => {
            let length = count_of(rest).unwrap_or(chars(new) as i32);
            let (head, tail) = overlay_bounds(chars(text), *start, length)?;
            Value::text(format!("{}{new}{}", &text[..offset(text, head)], &text[offset(text, tail)..]))
        }
        (F::Overlay, [Bytea(bytes), Bytea(new), Int4(start), rest @ ..]) => {
            let length = count_of(rest).unwrap_or(new.len() as i32);
            let (head, tail) = overlay_bounds(bytes.len(), *start, length)?;
            Bytea([&bytes[..head], new, &bytes[tail..]].concat().into())
        }
        (F::Trim | F::TrimLeft | F::TrimRight, [Bytea(bytes), Bytea(set)]) => {
            let mut members = [false; 256];
            set.iter().for_each(|byte| members[usize::from(*byte)] = true);
            let kept = |byte: &u8| !members[usize::from(*byte)];
            let from = if function == F::TrimRight { Some(0) } else { bytes.iter().position(kept) };
            let to = if function == F::TrimLeft {
                bytes.len()
            } else {
                bytes.iter().rposition(kept).map_or(0, |i| i + 1)
            };
            Bytea(from.and_then(|from| bytes.get(from..to)).unwrap_or_default().into())
        }
        (F::Position, [Bytea(bytes), Bytea(wanted)]) => {
            let found =
                (0..=bytes.len().saturating_sub(wanted.len())).find(|i| bytes[*i..].starts_with(wanted));
            int(found.map_or(0, |i| i + 1))
        }
        (F::GetByte, [Bytea(bytes), Int4(n)]) => Int4(bytes[index(i64::from(*n), bytes.len())?].into()),
        (F::SetByte, [Bytea(bytes), Int4(n), Int4(byte)]) => {
            let mut bytes = bytes.to_vec();
            let place = index(i64::from(*n), bytes.len())?;
            bytes[place] = *byte as u8;
            Bytea(bytes.into())
        }
        (F::GetBit, [Bytea(bytes), Int8(n)]) => {
            let place = index(*n, bytes.len() * 8)?;
            Int4((bytes[place / 8] >> (place % 8) & 1).into())
        }
        (F::SetBit, [Bytea(bytes), Int8(n), Int4(bit)]) => {
            let mut bytes = bytes.to_vec();
            let place = index(*n, bytes.len() * 8)?;
            match bit {
                0 => bytes[place / 8] &= !(1 << (place % 8)),
                1 => bytes[place / 8] |= 1 << (place % 8),
                _ => return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "new bit must be 0 or 1")),
            }
            Bytea(bytes.into())
        }
        (F::BitCount, [Bytea(bytes)]) => Int8(bytes.iter().map(|byte| i64::from(byte.count_ones())).sum()),
        (F::ConvertFrom, [Bytea(bytes), Text(encoding)]) => {
            only_utf8(encoding, "source")?;
            match std::str::from_utf8(bytes) {
                Ok(text) if !text.contains('\0') => Value::text(text),
                outcome => {
                    let at = outcome.map_or_else(|e| e.valid_up_to(), |text| text.find('\0').unwrap_or(0));
                    let shown: Vec<String> =
                        bytes[at..].iter().take(1).map(|b| format!("0x{b:02x}")).collect();
                    return Err(SqlError::new(
                        SqlState::BAD_ENCODING,
                        format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" ")),
                    ));
                }
            }
        }
        (F::ConvertTo, [Text(text), Text(encoding)]) => {
            only_utf8(encoding, "destination")?;
            Bytea(text.as_bytes().into())
        }
        (F::LikeEscape, [Text(pattern), Text(escape)]) => {
            Value::text(pattern::with_backslashes(pattern, escape)?)
        }
        (F::RegexLike, [Text(text), Text(pattern), flags @ ..]) => {
            let flags = flags.first().and_then(Value::as_str).unwrap_or("");
            let mut insensitive = false;
            for flag in flags.chars() {
                match flag {
                    'i' => insensitive = true,
                    'c' => insensitive = false,
                    'g' => {
                        return Err(SqlError::new(
                            SqlState::INVALID_PARAMETER_VALUE,
                            "regexp_like() does not support the \"global\" option",
                        ));
                    }
                    other => {
                        return Err(SqlError::unsupported(format!("regular expression option \"{other}\"")));
                    }
                }
            }
            Value::Bool(pattern::with_regex(pattern, insensitive, |regex| regex.is_match(text))?)
        }
        (F::Concat, [Text(a), Text(b)]) => {
            let mut out = String::with_capacity(a.len() + b.len());
            out.push_str(a);
            out.push_str(b);
            if out.len() > MAX_BYTES {
                return Err(too_large());
            }
            Value::text(out)
        }
        (F::Concat, [Bytea(a), Bytea(b)]) => Bytea([a.as_ref(), b.as_ref()].concat().into()),
        (F::Length, [Text(text)]) => int(chars(text)),
        (F::Length | F::OctetLength, [Bytea(bytes)]) => int(bytes.len()),
        (F::OctetLength, [Text(text)]) => int(text.len()),
        (F::BitLength, [Text(text)]) => int(text.len() * 8),
        (F::BitLength, [Bytea(bytes)]) => int(bytes.len() * 8),
        (F::Lower, [Text(text)]) => Value::text(text.to_ascii_lowercase()),
        (F::Upper, [Text(text)]) => Value::text(text.to_ascii_uppercase()),
        (F::InitCap, [Text(text)]) => Value::text(title_case(text)),
        (F::Trim | F::TrimLeft | F::TrimRight, [Text(text)]) => Value::text(trimmed(function, text, " ")),
        (F::Trim | F::TrimLeft | F::TrimRight, [Text(text), Text(set)]) => {
            Value::text(trimmed(function, text, set))
        }
        (F::Substring, [Text(text), Int4(start), rest @ ..]) => {
            let (from, to) = substring_bounds(chars(text), *start, count_of(rest))?;
            Value::text(&text[offset(text, from)..offset(text, to)])
        }
        (F::Substring, [Bytea(bytes), Int4(start), rest @ ..]) => {
            let (from, to) = substring_bounds(bytes.len(), *start, count_of(rest))?;
            Bytea(bytes[from..to].into())
        }
        (F::Left, [Text(text), Int4(n)]) => {
            let kept =
                if *n >= 0 { *n as usize } else { chars(text).saturating_sub(n.unsigned_abs() as usize) };
            Value::text(&text[..offset(text, kept)])
        }
        (F::Right, [Text(text), Int4(n)]) => {
            let skipped = if *n >= 0 {
                chars(text).saturating_sub(*n as usize)
            } else {
                n.wrapping_neg().max(0) as usize
            };
            Value::text(&text[offset(text, skipped)..])
        }
        (F::PadLeft | F::PadRight, [Text(text), Int4(length)]) => {
            pad(text, *length, " ", function == F::PadLeft)?
        }
        (F::PadLeft | F::PadRight, [Text(text), Int4(length), Text(fill)]) => {
            pad(text, *length, fill, function == F::PadLeft)?
        }
        (F::Repeat, [Text(text), Int4(n)]) => {
            let n = (*n).max(0) as usize;
            if text.len().saturating_mul(n) > MAX_BYTES {
                return Err(too_large());
            }
            Value::text(text.repeat(n))
        }
        (F::Replace, [Text(text), Text(from), Text(to)]) => {
            if from.is_empty() || !text.contains(from.as_ref()) {
                return Ok(Text(text.clone()));
            }
            let growth = to.len().saturating_mul(text.len() / from.len());
            if text.len().saturating_add(growth) > MAX_BYTES
                && text.len() + to.len() * text.matches(from.as_ref()).count() > MAX_BYTES
            {
                return Err(too_large());
            }
            Value::text(text.replace(from.as_ref(), to))
        }
        (F::Reverse, [Text(text)]) => Value::text(text.chars().rev().collect::<String>()),
        (F::Position, [Text(text), Text(wanted)]) => {
            int(text.find(wanted.as_ref()).map_or(0, |at| chars(&text[..at]) + 1))
        }
        (F::SplitPart, [Text(text), Text(separator), Int4(n)]) => split_part(text, separator, *n)?,
        (F::StartsWith, [Text(text), Text(prefix)]) => Value::Bool(text.starts_with(prefix.as_ref())),
        (F::Ascii, [Text(text)]) => Int4(text.chars().next().map_or(0, |c| c as i32)),
        (F::Chr, [Int4(code)]) => chr(*code)?,
        (F::Md5, [Text(text)]) => Value::text(format!("{:x}", md5::compute(text.as_bytes()))),
        (F::Md5, [Bytea(bytes)]) => Value::text(format!("{:x}", md5::compute(bytes))),
        (F::ToHex, [Int4(value)]) => Value::text(format!("{value:x}")),
        (F::ToHex, [Int8(value)]) => Value::text(format!("{value:x}")),
        (F::Translate, [Text(text), Text(from), Text(to)]) => Value::text(translate(text, from, to)),
        (F::Encode, [Bytea(bytes), Text(format)]) => encode(bytes, format)?,
        (F::Decode, [Text(source), Text(format)]) => decode(source, format)?,
        (F::RegexMatch | F::RegexNotMatch, [Text(text), Text(pattern)]) => {
            let found = pattern::with_regex(pattern, false, |regex| regex.is_match(text))?;
            Value::Bool(found == (function == F::RegexMatch))
        }
        (F::RegexMatchInsensitive | F::RegexNotMatchInsensitive, [Text(text), Text(pattern)]) => {
            let found = pattern::with_regex(pattern, true, |regex| regex.is_match(text))?;
            Value::Bool(found == (function == F::RegexMatchInsensitive))
        }
        (F::SubstringRegex, [Text(text), Text(pattern)]) => {
            // The first parenthesised part, or else the whole match.
            pattern::with_regex(pattern, false, |regex| {
                let Some(captures) = regex.captures(text) else { return Value::Null };
                let wanted = if captures.len() > 1 { captures.get(1) } else { captures.get(0) };
                wanted.map_or(Value::Null, |found| Value::text(found.as_str()))
            })?
        }
        (F::RegexReplace, [Text(text), Text(pattern), Text(replacement), flags @ ..]) => {
            let flags = flags.first().and_then(Value::as_str).unwrap_or("");
            pattern::replace(text, pattern, replacement, flags)?
        }
        _ => return Err(wrong_arguments(function)),
    })
}

/// The end of what is kept before an overlay and the beginning of what is kept behind it, 0-based.
fn overlay_bounds(length: usize, start: i32, count: i32) -> Result<(usize, usize)> {
    if start <= 0 {
        return Err(SqlError::new(SqlState(*b"22011"), "negative substring length not allowed"));
    }
    let behind = start
        .checked_add(count)
        .ok_or_else(|| SqlError::new(SqlState::OUT_OF_RANGE, "integer out of range"))?;
    let (head, _) = substring_bounds(length, start, None)?;
    let (tail, _) = substring_bounds(length, behind, None)?;
    Ok((head, tail))
}

/// A 0-based place among `length`; 2202E when there is none.
fn index(n: i64, length: usize) -> Result<usize> {
    usize::try_from(n).ok().filter(|n| *n < length).ok_or_else(|| {
        let last = length as i64 - 1;
        SqlError::new(SqlState(*b"2202E"), format!("index {n} out of valid range, 0..{last}"))
    })
}

/// Strings are UTF-8; there are no other encodings.
fn only_utf8(name: &str, role: &str) -> Result<()> {
    match name.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
        "utf8" | "unicode" => Ok(()),
        _ => Err(SqlError::unsupported(format!("{role} encoding \"{name}\""))),
    }
}

fn count_of(rest: &[Value]) -> Option<i32> {
    match rest {
        [Value::Int4(count)] => Some(*count),
        _ => None,
    }
}
