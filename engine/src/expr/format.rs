//! `format`, and the quoting of identifiers and literals.

use super::EvalContext;
use crate::{
    error::{Result, SqlError, SqlState},
    text::write_value,
    value::Value,
};

/// Words that PostgreSQL 15 does not take for an identifier everywhere, so that it quotes them.
const KEYWORDS: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "both",
    "case",
    "cast",
    "char",
    "character",
    "check",
    "coalesce",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "dec",
    "decimal",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "exists",
    "extract",
    "false",
    "fetch",
    "float",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "greatest",
    "group",
    "grouping",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "inout",
    "int",
    "integer",
    "intersect",
    "interval",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "least",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "national",
    "natural",
    "nchar",
    "none",
    "normalize",
    "not",
    "notnull",
    "null",
    "nullif",
    "numeric",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "out",
    "outer",
    "overlaps",
    "overlay",
    "placing",
    "position",
    "precision",
    "primary",
    "real",
    "references",
    "returning",
    "right",
    "row",
    "select",
    "session_user",
    "setof",
    "similar",
    "smallint",
    "some",
    "substring",
    "symmetric",
    "table",
    "tablesample",
    "then",
    "time",
    "timestamp",
    "to",
    "trailing",
    "treat",
    "trim",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "values",
    "varchar",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
    "xmlattributes",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlnamespaces",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
    "xmltable",
];

/// A string as an identifier, quoted where it has to be.
pub(super) fn quote_identifier(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && KEYWORDS.binary_search(&text).is_err();
    if plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// A string as a literal.
pub(super) fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

fn parameter(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn unterminated() -> SqlError {
    parameter("unterminated format() type specifier").with_hint("For a single \"%\" use \"%%\".")
}

fn too_few() -> SqlError {
    parameter("too few arguments for format()")
}

/// Walks through a template.
struct Specifiers<'t> {
    rest: &'t str,
}

impl Specifiers<'_> {
    /// The next character of a specifier; 22023 when there is none.
    fn peek(&self) -> Result<char> {
        self.rest.chars().next().ok_or_else(unterminated)
    }

    fn skip(&mut self) {
        let mut rest = self.rest.chars();
        rest.next();
        self.rest = rest.as_str();
    }

    /// A number, if there is one.
    fn number(&mut self) -> Result<Option<usize>> {
        let count = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.rest.split_at(count);
        self.rest = rest;
        if count == 0 {
            return Ok(None);
        }
        self.peek()?;
        let number = digits.parse::<i32>().ok().and_then(|n| usize::try_from(n).ok());
        number.map(Some).ok_or_else(|| SqlError::new(SqlState::OUT_OF_RANGE, "number is out of range"))
    }

    /// The position of an argument, which counts from 1.
    fn position(number: usize) -> Result<usize> {
        match number {
            0 => Err(parameter("format specifies argument 0, but arguments are numbered from 1")),
            number => Ok(number),
        }
    }
}

/// `format(template, arguments)`
pub(super) fn format(template: &str, arguments: &[Value], context: &EvalContext) -> Result<String> {
    let mut out = String::new();
    let mut specifiers = Specifiers { rest: template };
    // The next argument, counted from 1.
    let mut next = 1;
    while let Some(place) = specifiers.rest.find('%') {
        out.push_str(&specifiers.rest[..place]);
        specifiers.rest = &specifiers.rest[place + 1..];
        if specifiers.peek()? == '%' {
            out.push('%');
            specifiers.skip();
            continue;
        }
        let argument = |position: usize| arguments.get(position - 1).ok_or_else(too_few);
        let (mut position, mut width, mut left) = (None, 0i64, false);
        let mut indirect = None;
        let first = specifiers.number()?;
        let is_width_only = first.is_some() && specifiers.peek()? != '$';
        if let (Some(number), true) = (first, is_width_only) {
            width = number as i64;
        } else {
            if let Some(number) = first {
                position = Some(Specifiers::position(number)?);
                specifiers.skip();
            }
            while specifiers.peek()? == '-' {
                left = true;
                specifiers.skip();
            }
            if specifiers.peek()? == '*' {
                specifiers.skip();
                specifiers.peek()?;
                indirect = Some(match specifiers.number()? {
                    None => None,
                    Some(number) => {
                        if specifiers.peek()? != '$' {
                            return Err(parameter("width argument position must be ended by \"$\""));
                        }
                        specifiers.skip();
                        Some(Specifiers::position(number)?)
                    }
                });
            } else if let Some(number) = specifiers.number()? {
                width = number as i64;
            }
        }
        let kind = specifiers.peek()?;
        if !matches!(kind, 's' | 'I' | 'L') {
            return Err(parameter(format!("unrecognized format() type specifier \"{kind}\""))
                .with_hint("For a single \"%\" use \"%%\"."));
        }
        specifiers.skip();
        if let Some(at) = indirect {
            next = at.unwrap_or(next);
            let value = argument(next)?;
            next += 1;
            width = match value {
                Value::Null => 0,
                value => {
                    let mut text = String::new();
                    write_value(&mut text, value, context);
                    crate::text::parse_integer(
                        &text,
                        &crate::types::Type::Int4,
                        i32::MIN.into(),
                        i32::MAX.into(),
                    )?
                }
            };
        }
        next = position.unwrap_or(next);
        let value = argument(next)?;
        next += 1;
        let mut text = String::new();
        write_value(&mut text, value, context);
        let text = match (kind, value) {
            ('I', Value::Null) => {
                return Err(SqlError::new(
                    SqlState(*b"22004"),
                    "null values cannot be formatted as an SQL identifier",
                ));
            }
            ('I', _) => quote_identifier(&text),
            ('L', Value::Null) => "NULL".into(),
            ('L', _) => quote_literal(&text),
            _ => text,
        };
        // A negative width is a positive one to the left.
        let padding = usize::try_from(width.abs()).unwrap_or(0).saturating_sub(text.chars().count());
        if padding > 0x3fff_ffff || out.len() + text.len() > 0x3fff_ffff {
            return Err(SqlError::new(SqlState::LIMIT_EXCEEDED, "requested length too large"));
        }
        if left || width < 0 {
            out.push_str(&text);
            out.extend(std::iter::repeat_n(' ', padding));
        } else {
            out.extend(std::iter::repeat_n(' ', padding));
            out.push_str(&text);
        }
    }
    out.push_str(specifiers.rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn keywords_are_sorted() {
        assert!(super::KEYWORDS.is_sorted());
    }
}
