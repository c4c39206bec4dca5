//! Pattern matching: LIKE, and regular expressions in PostgreSQL's syntax as far as the `regex` crate knows it.

use std::cell::RefCell;

use regex::{Regex, RegexBuilder};

use crate::{
    batch_size::check_value,
    error::{Result, SqlError, SqlState},
    given_up::check_entered,
    value::Value,
};

/// The character that escapes in a LIKE pattern: none if the text is empty. 22025 when it is longer than one.
pub fn escape_character(text: &str) -> Result<Option<char>> {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (character, None) => Ok(character),
        _ => Err(SqlError::new(SqlState::INVALID_ESCAPE, "invalid escape string")
            .with_hint("Escape string must be empty or one character.")),
    }
}

/// A LIKE pattern in which a backslash escapes, from one in which another character does. 22025 as [`escape_character`].
pub(crate) fn with_backslashes(pattern: &str, escape: &str) -> Result<String> {
    let escape = escape_character(escape)?;
    let mut written = String::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if Some(c) == escape {
            written.push('\\');
            written.extend(rest.next());
        } else if c == '\\' {
            written.push_str("\\\\");
        } else {
            written.push(c);
        }
    }
    Ok(written)
}

/// A piece of a LIKE pattern.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// `%`
    Any,
    /// `_`
    One,
    /// Characters that stand for themselves.
    Literal(String),
    /// An escape character with nothing behind it: an error for the strings whose matching gets there.
    DanglingEscape,
}

/// How much of a search, about in bytes that are compared, lies between two looks at whether somebody still wants it.
const SEARCHED: usize = 1 << 20;

/// Patterns that need no search.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
    General(Vec<Token>),
}

/// A compiled LIKE pattern.
#[derive(Clone, Debug)]
pub struct LikePattern {
    shape: Shape,
    case_insensitive: bool,
}

impl LikePattern {
    /// Compiles a pattern. Letters match in both cases (ASCII) when `case_insensitive`.
    pub fn new(pattern: &str, escape: Option<char>, case_insensitive: bool) -> LikePattern {
        let mut tokens = Vec::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            let literal = match c {
                c if Some(c) == escape => rest.next().ok_or(Token::DanglingEscape),
                '%' => Err(Token::Any),
                '_' => Err(Token::One),
                c => Ok(c),
            };
            match (literal, tokens.last_mut()) {
                (Ok(c), Some(Token::Literal(before))) => before.push(c),
                (Ok(c), _) => tokens.push(Token::Literal(c.into())),
                (Err(token), _) => tokens.push(token),
            }
        }
        tokens.dedup_by(|a, b| *a == Token::Any && *b == Token::Any);
        let literal = |tokens: &[Token]| match tokens {
            [] => Some(String::new()),
            [Token::Literal(text)] => Some(text.clone()),
            _ => None,
        };
        let simple = if case_insensitive {
            None
        } else {
            match tokens.as_slice() {
                [Token::Any, middle @ .., Token::Any] => literal(middle).map(Shape::Contains),
                [Token::Any, rest @ ..] => literal(rest).map(Shape::Suffix),
                [rest @ .., Token::Any] => literal(rest).map(Shape::Prefix),
                all => literal(all).map(Shape::Exact),
            }
        };
        LikePattern { shape: simple.unwrap_or(Shape::General(tokens)), case_insensitive }
    }

    /// Whether matching some string is an error.
    pub fn can_fail(&self) -> bool {
        matches!(&self.shape, Shape::General(tokens) if tokens.contains(&Token::DanglingEscape))
    }

    /// The string that every match begins with, and whether the pattern is that prefix and `%`.
    pub fn prefix(&self) -> Option<&str> {
        match &self.shape {
            Shape::Prefix(prefix) | Shape::Exact(prefix) => Some(prefix),
            _ => None,
        }
    }

    /// Whether a string matches. 22025 when the pattern ends with its escape character and matching gets there.
    pub fn matches(&self, text: &str) -> Result<bool> {
        match &self.shape {
            Shape::Exact(exact) => Ok(text == exact),
            Shape::Prefix(prefix) => Ok(text.starts_with(prefix.as_str())),
            Shape::Suffix(suffix) => Ok(text.ends_with(suffix.as_str())),
            Shape::Contains(part) => Ok(text.contains(part.as_str())),
            Shape::General(tokens) => self.search(tokens, text),
        }
    }

    /// Goes forward greedily and falls back to the last `%`, which suffices for LIKE. Between a `%` and the next `%` or end it
    /// is linear unless there is a `_`, or letters of both cases match.
    fn search(&self, tokens: &[Token], text: &str) -> Result<bool> {
        let (mut token, mut at) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        let mut searched = 0;
        loop {
            let rest = &text[at..];
            match (tokens.get(token), rest.chars().next()) {
                (Some(Token::Any), _) => {
                    token += 1;
                    if token == tokens.len() {
                        return Ok(true);
                    }
                    let Some(from) = self.possible(&tokens[token], text, at) else { return Ok(false) };
                    at = from;
                    retry = Some((token, at));
                    continue;
                }
                (Some(Token::DanglingEscape), Some(_)) => {
                    return Err(SqlError::new(
                        SqlState::INVALID_ESCAPE,
                        "LIKE pattern must not end with escape character",
                    ));
                }
                (Some(Token::One), Some(c)) => {
                    token += 1;
                    at += c.len_utf8();
                    continue;
                }
                (Some(Token::Literal(wanted)), Some(_)) => {
                    searched += wanted.len();
                    if self.begins(rest, wanted) {
                        token += 1;
                        at += wanted.len();
                        continue;
                    }
                }
                (None, None) => return Ok(true),
                (Some(_), None) => return Ok(false),
                _ => {}
            }
            searched += 1;
            if searched >= SEARCHED {
                check_entered()?;
                searched = 0;
            }
            let Some((after, from)) = retry else { return Ok(false) };
            let Some(skipped) = text[from..].chars().next() else { return Ok(false) };
            let next = self.possible(&tokens[after], text, from + skipped.len_utf8());
            let Some(next) = next else { return Ok(false) };
            token = after;
            at = next;
            retry = Some((after, at));
        }
    }

    /// The first place from `at` on where the token behind a `%` may match.
    fn possible(&self, token: &Token, text: &str, at: usize) -> Option<usize> {
        match token {
            Token::Literal(wanted) if !self.case_insensitive => {
                text[at..].find(wanted.as_str()).map(|found| at + found)
            }
            _ => Some(at),
        }
    }

    /// Whether a text begins with a literal.
    fn begins(&self, text: &str, literal: &str) -> bool {
        let bytes = text.as_bytes().get(..literal.len());
        match self.case_insensitive {
            true => bytes.is_some_and(|bytes| bytes.eq_ignore_ascii_case(literal.as_bytes())),
            false => bytes == Some(literal.as_bytes()),
        }
    }
}

/// PostgreSQL's escapes in the `regex` crate's words.
fn translate(pattern: &str) -> Result<String> {
    let unsupported = |what: &str| {
        SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("{what} in regular expressions is not supported"),
        )
    };
    let mut out = String::with_capacity(pattern.len());
    // A director in front chooses the syntax.
    let mut rest = match pattern {
        _ if pattern.starts_with("***=") => return Ok(regex::escape(&pattern[4..])),
        _ if pattern.starts_with("***:") => &pattern[4..],
        _ => pattern,
    }
    .chars()
    .peekable();
    // In a bracket, and there in the name of a class.
    let (mut in_class, mut in_name) = (false, false);
    // Where the members of the class begin.
    let mut members = 0;
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                None => {
                    return Err(SqlError::new(
                        SqlState(*b"2201B"),
                        "invalid regular expression: invalid escape \\ sequence",
                    ));
                }
                Some('m') => out.push_str("(?-u:\\b{start})"),
                Some('M') => out.push_str("(?-u:\\b{end})"),
                Some('y') => out.push_str("(?-u:\\b)"),
                Some('Y') => out.push_str("(?-u:\\B)"),
                Some('Z') => out.push_str("\\z"),
                Some('b') => out.push_str("\\x08"),
                Some('B') => out.push_str("\\\\"),
                // Of ASCII, as everywhere else; a class may hold classes.
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('s') => out.push_str("[ \\t\\n\\r\\f\\v]"),
                Some('S') => out.push_str("[^ \\t\\n\\r\\f\\v]"),
                Some('w') => out.push_str("[A-Za-z0-9_]"),
                Some('W') => out.push_str("[^A-Za-z0-9_]"),
                Some('1'..='9') if !in_class => return Err(unsupported("a back reference")),
                Some(c) if c.is_ascii_alphanumeric() => {
                    out.push('\\');
                    out.push(c);
                }
                Some(c) => out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            },
            '[' if in_class && matches!(rest.peek(), Some('.' | '=')) => {
                return Err(unsupported("a collating element"));
            }
            '[' if in_class && matches!(rest.peek(), Some(':')) => {
                if matches!(rest.clone().nth(1), Some('<' | '>')) {
                    return Err(unsupported("a word boundary in brackets"));
                }
                // [:alpha:]
                out.push('[');
                in_name = true;
            }
            '[' if in_class => out.push_str("\\["),
            '[' => {
                in_class = true;
                out.push('[');
                if rest.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                members = out.len();
                if rest.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            ':' if in_class && rest.peek() == Some(&']') => {
                // The end of a named class, unless the colon stands alone.
                in_class = std::mem::take(&mut in_name);
                out.push_str(":]");
                rest.next();
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // The crate gives these a meaning in classes that PostgreSQL does not know: a hyphen in front or behind another stands
            // for itself.
            '-' if in_class && out.len() > members && (out.ends_with("\\-") || !out.ends_with('-')) => {
                out.push('-');
            }
            '&' | '~' | '-' if in_class => {
                out.push('\\');
                out.push(c);
            }
            // Not a bound.
            '{' if !in_class && !rest.peek().is_some_and(char::is_ascii_digit) => out.push_str("\\{"),
            '(' if !in_class && rest.peek() == Some(&'?') => {
                let mut ahead = rest.clone();
                ahead.next();
                match ahead.next() {
                    Some(':') => out.push('('),
                    Some('=' | '!' | '<') => return Err(unsupported("a lookaround constraint")),
                    _ => {
                        return Err(SqlError::new(
                            SqlState(*b"2201B"),
                            "invalid regular expression: quantifier operand invalid",
                        ));
                    }
                }
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

fn build(pattern: &str, case_insensitive: bool) -> Result<Regex> {
    let translated = translate(pattern)?;
    RegexBuilder::new(&translated)
        .case_insensitive(case_insensitive)
        .dot_matches_new_line(true)
        .build()
        .map_err(|error| {
            let reason = match &error {
                regex::Error::Syntax(text)
                    if text.contains("unclosed group") || text.contains("unopened group") =>
                {
                    "parentheses () not balanced".to_owned()
                }
                regex::Error::Syntax(text) if text.contains("unclosed character class") => {
                    "brackets [] not balanced".to_owned()
                }
                regex::Error::Syntax(text) if text.contains("unclosed counted repetition") => {
                    "braces {} not balanced".to_owned()
                }
                regex::Error::Syntax(text) if text.contains("repetition operator missing expression") => {
                    "quantifier operand invalid".to_owned()
                }
                regex::Error::Syntax(text) if text.contains("invalid repetition count range") => {
                    "invalid repetition count(s)".to_owned()
                }
                regex::Error::CompiledTooBig(_) => "regular expression is too complex".to_owned(),
                other => other.to_string().lines().last().unwrap_or("invalid syntax").trim().to_owned(),
            };
            SqlError::new(SqlState(*b"2201B"), format!("invalid regular expression: {reason}"))
        })
}

/// Compiled expressions that a thread keeps.
const CACHED: usize = 16;

thread_local! {
    static CACHE: RefCell<Vec<(String, bool, Regex)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `use_regex` with the compiled pattern, which the thread keeps for the next rows.
pub(super) fn with_regex<T>(
    pattern: &str,
    case_insensitive: bool,
    use_regex: impl FnOnce(&Regex) -> T,
) -> Result<T> {
    CACHE.with_borrow_mut(|cache| {
        let found = cache.iter().position(|(known, ci, _)| known == pattern && *ci == case_insensitive);
        let at = match found {
            Some(at) => at,
            None => {
                let regex = build(pattern, case_insensitive)?;
                if cache.len() == CACHED {
                    cache.remove(0);
                }
                cache.push((pattern.to_owned(), case_insensitive, regex));
                cache.len() - 1
            }
        };
        Ok(use_regex(&cache[at].2))
    })
}

/// `regexp_replace` with the flags `g` and `i`.
pub(super) fn replace(text: &str, pattern: &str, replacement: &str, flags: &str) -> Result<Value> {
    let mut all = false;
    let mut case_insensitive = false;
    for flag in flags.chars() {
        match flag {
            'g' => all = true,
            'i' => case_insensitive = true,
            'c' => case_insensitive = false,
            's' => {}
            'b' | 'e' | 'm' | 'n' | 'p' | 'q' | 't' | 'w' | 'x' => {
                return Err(SqlError::unsupported(format!("regular expression option \"{flag}\"")));
            }
            _ => {
                return Err(SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("invalid regular expression option: \"{flag}\""),
                ));
            }
        }
    }
    let push = |out: &mut String, piece: &str| {
        check_value(out.len() + piece.len())?;
        out.push_str(piece);
        Ok::<_, SqlError>(())
    };
    let expand = |out: &mut String, captures: &regex::Captures<'_>| {
        let mut rest = replacement;
        while let Some(at) = rest.find('\\') {
            push(out, &rest[..at])?;
            let escaped = rest[at + 1..].chars().next();
            let length = 1 + escaped.map_or(0, char::len_utf8);
            match escaped {
                Some('&') => push(out, &captures[0])?,
                Some(digit @ '1'..='9') => {
                    let group = digit as usize - '0' as usize;
                    push(out, captures.get(group).map_or("", |found| found.as_str()))?;
                }
                Some('\\') | None => push(out, "\\")?,
                Some(_) => push(out, &rest[at..at + length])?,
            }
            rest = &rest[at + length..];
        }
        push(out, rest)
    };
    with_regex(pattern, case_insensitive, |regex| {
        let mut out = String::new();
        let (mut copied, mut from) = (0, 0);
        while from <= text.len()
            && let Some(captures) = regex.captures_at(text, from)
        {
            let found = captures.get_match();
            push(&mut out, &text[copied..found.start()])?;
            expand(&mut out, &captures)?;
            (copied, from) = (found.end(), found.end());
            if found.is_empty() {
                from += text[from..].chars().next().map_or(1, char::len_utf8);
            }
            if !all {
                break;
            }
        }
        push(&mut out, &text[copied..])?;
        Ok(Value::text(out))
    })?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tries everything.
    fn matches_somehow(pattern: &[char], text: &[char], case_insensitive: bool) -> bool {
        let same = |a: char, b: char| match case_insensitive {
            true => a.eq_ignore_ascii_case(&b),
            false => a == b,
        };
        match (pattern, text) {
            ([], text) => text.is_empty(),
            (['%', rest @ ..], text) => {
                (0..=text.len()).any(|skipped| matches_somehow(rest, &text[skipped..], case_insensitive))
            }
            (['_', rest @ ..], [_, text @ ..]) => matches_somehow(rest, text, case_insensitive),
            (['\\', c, rest @ ..] | [c, rest @ ..], [first, text @ ..]) => {
                same(*c, *first) && matches_somehow(rest, text, case_insensitive)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn like_finds_what_trying_everything_finds(
            // No escape at the end, and none in front of another, which the oracle does not tell apart.
            pattern in "([abBé%_]|\\\\[ab%_]){0,10}",
            text in "[abABé%_]{0,12}",
            case_insensitive: bool,
        ) {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = matches_somehow(&characters(&pattern), &characters(&text), case_insensitive);
            let like = LikePattern::new(&pattern, Some('\\'), case_insensitive);
            prop_assert_eq!(like.matches(&text), Ok(expected), "{:?}", like);
        }
    }
}
