//! Answers that PostgreSQL 15 gave (`postgres_answers.txt`: C locale, UTF-8, time zone America/New_York), compared with
//! ours: type input and output, functions and operators through overload resolution, and casts.
//!
//! A line is `input <type> <text>`, `call <name> <type>:<text>…` or `cast <from>><to> <text>`, separated by tabs, and
//! then `=<text of the result>` or `!<SQLSTATE> <message>`.

use carousel_engine::{
    SqlError, Type, Value,
    expr::{ArgType, CastKind, EvalContext, Expr, cast, cast_allowed, eval_const, fold, resolve},
    text::{format_value, parse_value},
};

fn context() -> EvalContext {
    EvalContext { time_zone: "America/New_York".into(), now: 0 }
}

fn type_of(name: &str) -> Type {
    let (base, modifiers) = name.trim_end_matches(')').split_once('(').unwrap_or((name, ""));
    let numbers: Vec<u32> = modifiers.split(',').filter_map(|n| n.parse().ok()).collect();
    match base {
        "bool" => Type::Bool,
        "int2" => Type::Int2,
        "int4" => Type::Int4,
        "int8" => Type::Int8,
        "float4" => Type::Float4,
        "float8" => Type::Float8,
        "numeric" => Type::Numeric(numbers.first().map(|p| (*p as u16, numbers[1] as u16))),
        "text" => Type::Text,
        "varchar" => Type::Varchar(numbers.first().copied()),
        "char" => Type::Char(numbers[0]),
        "date" => Type::Date,
        "time" => Type::Time,
        "timestamp" => Type::Timestamp,
        "timestamptz" => Type::TimestampTz,
        "interval" => Type::Interval,
        "uuid" => Type::Uuid,
        "bytea" => Type::Bytea,
        other => panic!("unknown type {other}"),
    }
}

/// `CAST('text' AS type)` of a literal.
fn literal(text: &str, ty: &Type) -> Result<Value, SqlError> {
    let bare = ty.without_modifiers();
    cast(parse_value(text, &bare, &context())?, &bare, ty, CastKind::Explicit, &context())
}

fn input(ty: &Type, text: &str) -> Result<String, SqlError> {
    let value = parse_value(text, ty, &context())?;
    let printed = format_value(&value, ty, &context());
    assert_eq!(
        parse_value(&printed, ty, &context()).as_ref(),
        Ok(&value),
        "{printed} reads as it was written"
    );
    // The answers were printed through a cast to text, which writes booleans in full.
    Ok(match value {
        Value::Bool(value) => value.to_string(),
        _ => printed,
    })
}

fn call(name: &str, args: &[&str]) -> Result<String, SqlError> {
    let mut types = Vec::new();
    let mut literals = Vec::new();
    for arg in args {
        let (ty, text) = arg.split_once(':').expect("type:text");
        let ty = type_of(ty);
        literals.push(Expr::literal(literal(text, &ty)?, ty.clone()));
        types.push(ArgType::Known(ty));
    }
    let resolved = resolve(name, &types)?;
    let args = literals
        .into_iter()
        .zip(&resolved.arg_types)
        .map(|(expr, to)| {
            if expr.ty() == *to {
                return expr;
            }
            let kind = match cast_allowed(&expr.ty(), to) {
                Some(carousel_engine::expr::CastContext::Implicit) => CastKind::Implicit,
                _ => CastKind::Explicit,
            };
            Expr::Cast { expr: Box::new(expr), to: to.clone(), kind }
        })
        .collect();
    let expr = Expr::Call { function: resolved.function, args, ty: resolved.return_type.clone() };
    let value = eval_const(&expr, &context())?;
    assert_eq!(fold(&expr, &context()), Ok(Expr::literal(value.clone(), resolved.return_type.clone())));
    Ok(format_value(&value, &resolved.return_type, &context()))
}

fn convert(from: &Type, to: &Type, text: &str) -> Result<String, SqlError> {
    let value = literal(text, from)?;
    if cast_allowed(from, to).is_none() {
        return Err(SqlError::new(
            carousel_engine::SqlState::CANNOT_COERCE,
            format!("cannot cast type {from} to {to}"),
        ));
    }
    let result = cast(value, from, to, CastKind::Explicit, &context())?;
    Ok(format_value(&result, to, &context()))
}

#[test]
fn agrees_with_postgresql() {
    let mut wrong = Vec::new();
    for line in include_str!("postgres_answers.txt").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let (expected, question) = fields.split_last().expect("a line has an answer");
        let answer = match question {
            ["input", ty, text] => input(&type_of(ty), text),
            ["call", name, args @ ..] => call(name, args),
            ["cast", types, text] => {
                let (from, to) = types.split_once('>').expect("from>to");
                convert(&type_of(from), &type_of(to), text)
            }
            _ => panic!("malformed line {line}"),
        };
        let answer = match answer {
            Ok(text) => format!("={}", text.replace('\n', "\\n")),
            Err(error) => format!("!{} {}", error.code.as_str(), error.message),
        };
        if answer != *expected {
            wrong.push(format!("{}\n    PostgreSQL {expected}\n    ours       {answer}", question.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
