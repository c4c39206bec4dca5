//! The first step: the text of a date, a time or an interval is split into tokens, each of a kind that its
//! first characters tell.

use smallvec::SmallVec;

use super::{Failure, keyword::keyword};
use crate::datetime::split_digits;

/// No text has more tokens.
const MAX_TOKENS: usize = 25;

/// A piece of the text, which is in small letters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    /// Digits, perhaps with a decimal point before or between them.
    Number(&'a str),
    /// Digits and words with marks between them: a date, a zone, or a time of day with a zone.
    Date(&'a str),
    /// Digits and colons, perhaps with a fraction.
    Time(&'a str),
    /// Letters.
    Word(&'a str),
    /// Whether there is a minus sign, and what begins with a digit behind the sign.
    Signed(bool, &'a str),
    /// Whether there is a minus sign, and letters.
    SignedWord(bool, &'a str),
}

/// Tokens in their order.
pub(crate) type Tokens<'a> = SmallVec<[Token<'a>; 8]>;

fn is_blank(b: u8) -> bool {
    b.is_ascii_whitespace() || b == b'\x0b'
}

/// Splits off the front what is accepted, behind `from` bytes that have been.
fn split_while(text: &str, from: usize, accept: impl Fn(u8) -> bool) -> (&str, &str) {
    let length = text.bytes().skip(from).take_while(|b| accept(*b)).count();
    text.split_at(from + length)
}

/// Splits a text in small letters into its tokens. Marks without a meaning only separate. There is `room` for
/// the tokens' characters and one more for each, as texts that are longer are refused.
pub(crate) fn split(text: &str, room: usize) -> Result<Tokens<'_>, Failure> {
    let mut tokens = Tokens::new();
    let mut used = 0;
    let mut rest = text;
    while let Some(&first) = rest.as_bytes().first() {
        let is_sign = matches!(first, b'+' | b'-');
        if is_blank(first) || first.is_ascii_punctuation() && !is_sign && first != b'.' {
            rest = &rest[1..];
            continue;
        }
        let (token, after) = match first {
            b'0'..=b'9' => digits(rest),
            b'.' => {
                let (number, after) = split_while(rest, 1, |b| b.is_ascii_digit());
                (Token::Number(number), after)
            }
            b'a'..=b'z' => letters(rest),
            _ if is_sign => signed(rest)?,
            _ => return Err(Failure::Format),
        };
        used += match token {
            Token::Number(text) | Token::Date(text) | Token::Time(text) | Token::Word(text) => text.len(),
            Token::Signed(_, text) | Token::SignedWord(_, text) => 1 + text.len(),
        } + 1;
        if used > room || tokens.len() == MAX_TOKENS {
            return Err(Failure::Format);
        }
        tokens.push(token);
        rest = after;
    }
    Ok(tokens)
}

/// A time has colons, a date the same mark twice or a word in its middle; the rest are numbers.
fn digits(text: &str) -> (Token<'_>, &str) {
    let (number, rest) = split_digits(text);
    let Some(&mark) = rest.as_bytes().first().filter(|b| b":-/.".contains(b)) else {
        return (Token::Number(number), rest);
    };
    if mark == b':' {
        let (time, after) = split_while(text, number.len(), |b| b.is_ascii_digit() || b == b':' || b == b'.');
        return (Token::Time(time), after);
    }
    let (second, after) = split_digits(&rest[1..]);
    if second.is_empty() {
        let (date, after) = split_while(text, number.len(), |b| b.is_ascii_alphanumeric() || b == mark);
        return (Token::Date(date), after);
    }
    if after.as_bytes().first() == Some(&mark) {
        let (date, after) = split_while(text, number.len(), |b| b.is_ascii_digit() || b == mark);
        return (Token::Date(date), after);
    }
    let (pair, after) = text.split_at(number.len() + 1 + second.len());
    (if mark == b'.' { Token::Number(pair) } else { Token::Date(pair) }, after)
}

/// A word is of letters only, unless a mark or what follows makes it a date or the name of a zone.
fn letters(text: &str) -> (Token<'_>, &str) {
    let (word, rest) = split_while(text, 0, |b| b.is_ascii_lowercase());
    let goes_on = match rest.as_bytes().first() {
        Some(b'-' | b'/' | b'.') => true,
        Some(b'+' | b'0'..=b'9') => keyword(word).is_none(),
        _ => false,
    };
    if !goes_on {
        return (Token::Word(word), rest);
    }
    let (date, after) =
        split_while(text, word.len(), |b| b.is_ascii_alphanumeric() || b"+-/_.:".contains(&b));
    (Token::Date(date), after)
}

/// Blanks may stand behind a sign.
fn signed(text: &str) -> Result<(Token<'_>, &str), Failure> {
    let negative = text.starts_with('-');
    let text = text[1..].trim_start_matches(|c: char| c.is_ascii() && is_blank(c as u8));
    match text.as_bytes().first() {
        Some(b'0'..=b'9') => {
            let (number, after) = split_while(text, 0, |b| b.is_ascii_digit() || b":.-".contains(&b));
            Ok((Token::Signed(negative, number), after))
        }
        Some(b'a'..=b'z') => {
            let (word, after) = split_while(text, 0, |b| b.is_ascii_lowercase());
            Ok((Token::SignedWord(negative, word), after))
        }
        _ => Err(Failure::Format),
    }
}
