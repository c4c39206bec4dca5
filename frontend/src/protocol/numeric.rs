//! The binary form of `numeric`: digits to the base 10,000.

use bytes::{BufMut, BytesMut};
use carousel_engine::{SqlError, SqlState, error::Result};

use super::parameters::too_few;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const POSITIVE_INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// Appends the binary form of a number given by its text, as Carousel writes numerics: digits with an optional sign
/// and point, or `NaN`.
pub fn encode(text: &str, out: &mut BytesMut) {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (NEGATIVE, rest),
        None => (0, text),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        for field in [0, 0, NAN, 0] {
            out.put_u16(field);
        }
        return;
    }
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0').as_bytes();
    let fraction = fraction.as_bytes();
    // Groups of four digits, aligned at the point.
    let head = whole.len() % 4;
    let mut groups: Vec<i16> = Vec::with_capacity(whole.len() / 4 + fraction.len() / 4 + 2);
    let group = |digits: &[u8]| digits.iter().fold(0i16, |sum, d| sum * 10 + i16::from(d - b'0'));
    if head > 0 {
        groups.push(group(&whole[..head]));
    }
    groups.extend(whole[head..].chunks(4).map(group));
    let mut weight = groups.len() as i32 - 1;
    groups.extend(fraction.chunks(4).map(|digits| {
        let missing = 4 - digits.len() as u32;
        group(digits) * 10i16.pow(missing)
    }));
    let leading = groups.iter().take_while(|g| **g == 0).count();
    weight -= leading as i32;
    let mut groups = &groups[leading..];
    while let Some((0, rest)) = groups.split_last() {
        groups = rest;
    }
    if groups.is_empty() {
        weight = 0;
    }
    out.put_u16(groups.len() as u16);
    out.put_i16(weight as i16);
    out.put_u16(if groups.is_empty() { 0 } else { sign });
    out.put_u16(fraction.len() as u16);
    for digit in groups {
        out.put_i16(*digit);
    }
}

/// Reads the binary form and gives the number's text.
///
/// # Errors
/// 22P03 when it is no number, 08P01 when it is too short, 0A000 for an infinity.
pub fn decode(bytes: &[u8]) -> Result<String> {
    let invalid = |what: &str| {
        SqlError::new(SqlState::INVALID_BINARY, format!("invalid {what} in external \"numeric\" value"))
    };
    let mut fields = bytes.chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let mut header = || fields.next().ok_or_else(too_few);
    let (count, weight, sign, scale) = (header()? as usize, header()? as i16, header()?, header()?);
    match sign {
        0 | NEGATIVE => {}
        NAN => return Ok("NaN".into()),
        POSITIVE_INFINITY | NEGATIVE_INFINITY => return Err(SqlError::unsupported("infinity in numeric")),
        _ => return Err(invalid("sign")),
    }
    if scale > 0x3fff {
        return Err(invalid("scale"));
    }
    let digits: Vec<u16> = fields.collect();
    if bytes.len() < 8 + 2 * count {
        return Err(too_few());
    }
    if digits.len() != count || bytes.len() != 8 + 2 * count {
        return Err(invalid("length"));
    }
    if digits.iter().any(|d| *d > 9999) {
        return Err(invalid("digit"));
    }
    let mut text = String::with_capacity(digits.len() * 4 + usize::from(scale) + 3);
    if sign == NEGATIVE {
        text.push('-');
    }
    let digit = |position: i32| {
        let index = i32::from(weight) - position;
        usize::try_from(index).ok().and_then(|i| digits.get(i)).copied().unwrap_or(0)
    };
    use std::fmt::Write;
    if weight < 0 {
        text.push('0');
    }
    for position in (0..=i32::from(weight)).rev() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{:04}", digit(position));
    }
    if scale > 0 {
        text.push('.');
        let end = text.len() + usize::from(scale);
        let mut position = -1;
        while text.len() < end {
            let _ = write!(text, "{:04}", digit(position));
            position -= 1;
        }
        // PostgreSQL cuts digits beyond the scale too.
        text.truncate(end);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(text: &str) -> String {
        let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
        let trimmed = rest.trim_start_matches('0');
        let whole = if trimmed.is_empty() || trimmed.starts_with('.') { "0" } else { "" };
        let sign = if trimmed.chars().all(|c| matches!(c, '0' | '.')) { "" } else { sign };
        format!("{sign}{whole}{trimmed}")
    }

    proptest! {
        #[test]
        fn binary_round_trip(text in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,30})?") {
            let mut out = BytesMut::new();
            encode(&text, &mut out);
            prop_assert_eq!(normal(&decode(&out).unwrap()), normal(&text));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn known_forms() {
        let mut out = BytesMut::new();
        encode("12345.678", &mut out);
        // As PostgreSQL's numeric_send gives it: 1, 2345, 6780 at weight 1, scale 3.
        assert_eq!(&out[..], [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 0x09, 0x29, 0x1a, 0x7c]);
        out.clear();
        encode("0.00", &mut out);
        assert_eq!(&out[..], [0, 0, 0, 0, 0, 0, 0, 2]);
    }
}
