//! Templates of `to_char`, `to_number`, `to_date` and `to_timestamp`, as PostgreSQL reads them (its `formatting.c`).

mod datetime;
mod number;
mod read_datetime;

pub(crate) use datetime::{InZone, interval_to_char, timestamp_to_char};
pub(crate) use number::{NumberSource, to_char_number, to_number};
pub(crate) use read_datetime::{to_date, to_timestamp};

/// A piece of a template.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    /// A pattern (one of the known ones, as written) with its suffixes.
    Pattern(&'static str, Suffix),
    /// A punctuation character.
    Separator(char),
    /// White space.
    Space(char),
    /// Any other character, or one in quotes.
    Text(char),
}

impl Node {
    /// The character, of what is no pattern.
    fn character(self) -> Option<char> {
        match self {
            Node::Pattern(..) => None,
            Node::Separator(c) | Node::Space(c) | Node::Text(c) => Some(c),
        }
    }
}

/// What stands in front of and behind a pattern of a date.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Suffix {
    /// `FM`: no padding.
    fill_mode: bool,
    /// `TM`: names in the language of the session, which is C's, without padding.
    translated: bool,
    /// `TH` or `th`, the ending of an ordinal number: whether it is in capitals.
    ordinal: Option<bool>,
}

fn is_separator(c: char) -> bool {
    c.is_ascii_graphic() && !c.is_ascii_alphanumeric()
}

/// White space as C's `isspace` has it.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// Cuts a template into its pieces. `patterns` are the known ones, longer ones before their prefixes; `dates` says that
/// there are suffixes.
fn parse(template: &str, patterns: &[&'static str], dates: bool) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut rest = template;
    while !rest.is_empty() {
        let mut suffix = Suffix::default();
        if dates {
            for prefix in ["FM", "fm", "TM", "tm"] {
                if let Some(behind) = rest.strip_prefix(prefix) {
                    suffix.fill_mode = prefix.eq_ignore_ascii_case("fm");
                    suffix.translated = !suffix.fill_mode;
                    rest = behind;
                    break;
                }
            }
        }
        if let Some(pattern) = patterns.iter().find(|pattern| rest.starts_with(**pattern)) {
            rest = &rest[pattern.len()..];
            if dates {
                for (ending, ordinal) in [("TH", Some(true)), ("th", Some(false)), ("SP", None)] {
                    if let Some(behind) = rest.strip_prefix(ending) {
                        suffix.ordinal = ordinal;
                        rest = behind;
                        break;
                    }
                }
            }
            nodes.push(Node::Pattern(pattern, suffix));
            continue;
        }
        if let Some(mut quoted) = rest.strip_prefix('"') {
            while let Some(c) = quoted.chars().next() {
                quoted = &quoted[c.len_utf8()..];
                match c {
                    '"' => break,
                    // A backslash quotes the next character, if there is one.
                    '\\' if !quoted.is_empty() => {
                        let Some(escaped) = quoted.chars().next() else { break };
                        quoted = &quoted[escaped.len_utf8()..];
                        nodes.push(Node::Text(escaped));
                    }
                    c => nodes.push(Node::Text(c)),
                }
            }
            rest = quoted;
            continue;
        }
        // Outside of quotes a backslash is special only before a quote.
        if rest.starts_with("\\\"") {
            rest = &rest[1..];
        }
        let Some(c) = rest.chars().next() else { break };
        rest = &rest[c.len_utf8()..];
        nodes.push(match c {
            c if dates && is_separator(c) => Node::Separator(c),
            c if is_space(c) => Node::Space(c),
            c => Node::Text(c),
        });
    }
    nodes
}

/// The ending of an ordinal number.
fn ordinal_ending(digits: &str, capitals: bool) -> &'static str {
    let mut last = digits.bytes().rev();
    let (ones, tens) = (last.next(), last.next());
    let endings = match ones {
        Some(b'1') if tens != Some(b'1') => ("ST", "st"),
        Some(b'2') if tens != Some(b'1') => ("ND", "nd"),
        Some(b'3') if tens != Some(b'1') => ("RD", "rd"),
        _ => ("TH", "th"),
    };
    if capitals { endings.0 } else { endings.1 }
}
