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
