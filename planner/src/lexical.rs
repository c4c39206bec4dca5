//! Lexical rules of PostgreSQL that sqlparser's tokenizer does not have.

use carousel_engine::{SqlError, SqlState, error::Result};
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::parse::{Source, position_of};

/// 42601 for a number that runs into a name (`12abc`) or is written as PostgreSQL 15 does not know it (`0x1F`, `1_000`),
/// and the operator `==`, which has no meaning, made an operator like any other.
pub(crate) fn check(source: &Source, tokens: &mut [TokenWithSpan]) -> Result<()> {
    for index in 0..tokens.len() {
        let token = &tokens[index];
        if token.token == Token::DoubleEq {
            tokens[index].token = Token::CustomBinaryOperator("==".into());
            continue;
        }
        let text = source.slice(token.span);
        let is_number = match &token.token {
            Token::Number(..) => true,
            Token::HexStringLiteral(_) => text.starts_with('0'),
            _ => false,
        };
        if !is_number {
            continue;
        }
        let touches = |(before, behind): (&TokenWithSpan, &TokenWithSpan)| {
            let runs_on = match &behind.token {
                Token::Number(..) => true,
                Token::Word(word) => word.quote_style.is_none(),
                _ => false,
            };
            runs_on && before.span.end == behind.span.start
        };
        let rest = &tokens[index..];
        let joined = rest.iter().zip(&rest[1..]).take_while(|pair| touches(*pair)).count();
        let is_plain = matches!(&token.token, Token::Number(text, false) if !text.contains('_'));
        if joined == 0 && is_plain {
            continue;
        }
        let whole = token.span.union(&rest[joined].span);
        let message = format!("trailing junk after numeric literal at or near \"{}\"", source.slice(whole));
        let error = SqlError::new(SqlState::SYNTAX_ERROR, message);
        return Err(match position_of(whole) {
            Some(position) => error.at(position),
            None => error,
        });
    }
    Ok(())
}

/// At most so many tokens a text has, white space included.
pub(crate) fn most_tokens(sql: &str) -> usize {
    let text = sql.as_bytes();
    let at = |place: usize| text.get(place).copied().unwrap_or(0);
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let run = |from: usize, is_part: &dyn Fn(&u8) -> bool| {
        text.get(from..).unwrap_or_default().iter().take_while(|byte| is_part(byte)).count()
    };
    // Where strings end would take a tokenizer; but no token is shorter than a byte.
    let is_intricate = |place: usize| matches!((at(place), at(place + 1)), (b'\\', _) | (b'-', b'-') | (b'/', b'*') | (b'$', b'$' | b'_' | b'a'..=b'z' | b'A'..=b'Z' | 0x80..));
    if (0..text.len()).any(is_intricate) {
        return text.len();
    }
    let (mut place, mut tokens) = (0, 0);
    while place < text.len() {
        tokens += 1;
        place += match at(place) {
            quote @ (b'\'' | b'"') => {
                let mut end = place + 1;
                while end < text.len() && (at(end) != quote || at(end + 1) == quote) {
                    end += if at(end) == quote { 2 } else { 1 };
                }
                end + 1 - place
            }
            byte if byte.is_ascii_digit() => {
                let whole = run(place, &u8::is_ascii_digit);
                match at(place + whole) {
                    b'.' => whole + 1 + run(place + whole + 1, &u8::is_ascii_digit),
                    _ => whole,
                }
            }
            byte if is_word(&byte) => run(place, &is_word),
            _ => 1,
        };
    }
    tokens
}

/// The error of an escape string that is cut short, as PostgreSQL words it: an escape that lacks digits (22025).
/// `before` is the number of characters of the statement before `rest`, which begins with the string.
pub(crate) fn escape_error(before: usize, rest: &str) -> Option<SqlError> {
    let mut characters = rest.char_indices().skip(2).enumerate();
    while let Some((index, (byte, c))) = characters.next() {
        let digits = match (c, rest[byte + c.len_utf8()..].chars().next()) {
            ('\'', _) => return None,
            ('\\', Some('u')) => 4,
            ('\\', Some('U')) => 8,
            ('\\', _) => {
                characters.next();
                continue;
            }
            _ => continue,
        };
        let written = rest[byte + 2..].chars().take(digits).take_while(char::is_ascii_hexdigit).count();
        if written < digits {
            let error = SqlError::new(SqlState::INVALID_ESCAPE, "invalid Unicode escape")
                .with_hint("Unicode escapes must be \\uXXXX or \\UXXXXXXXX.");
            return Some(error.at((before + index + 3) as u32));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sqlparser::{dialect::PostgreSqlDialect, tokenizer::Tokenizer};

    use super::most_tokens;

    fn tokens(sql: &str) -> Option<usize> {
        Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize().ok().map(|tokens| tokens.len())
    }

    #[test]
    fn strings_are_a_token_each() {
        for (text, most) in [
            ("INSERT INTO t VALUES (1, 2.5, 'it''s, (no) token'),('x','y')", 30),
            ("SELECT 'no end, of, it", 3),
            ("1.1.1.1......1a,(1)", 19),
            ("", 0),
            // These could be intricate.
            ("-- it's\r(1),(1),(1)", 19),
            ("/* /* */ ' */ (1),(1)", 21),
            ("date'\\',(1),(1)", 15),
            ("$$it's$$,(1),(1)", 16),
        ] {
            let counted = most_tokens(text);
            assert!(counted <= most, "{text}: {counted}");
            assert!(tokens(text).is_none_or(|tokens| tokens <= counted), "{text}: {counted}");
        }
    }

    proptest! {
        #[test]
        fn no_text_has_more(text in "([a-ez0-9]{1,4}|'[a-z, ]*'|e'(\\\\'|[a-z])*'|[ ,().;+*<>=-]|[0-9]+\\.[0-9]+|\"[a-z ]*\"|\\$[0-9a]?|--[a-z']*[\n\r]|/\\*[a' ]*|\\*/|[é–]|\\\\|::){0,40}") {
            if let Some(tokens) = tokens(&text) {
                prop_assert!(tokens <= most_tokens(&text), "{}: {} > {}", text, tokens, most_tokens(&text));
            }
        }
    }
}
