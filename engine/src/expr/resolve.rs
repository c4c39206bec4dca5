//! Overload resolution: from names and argument types to functions, as PostgreSQL's parser does it (chapter "Type
//! Conversion" of its manual).

use super::{
    cast::{CastContext, cast_allowed},
    function::{Function, Signature, candidates},
};
use crate::{
    error::{Result, SqlError, SqlState},
    types::Type,
};

/// What is known of an argument before resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgType {
    /// An expression of this type.
    Known(Type),
    /// A quoted literal, NULL or parameter whose type is not known yet.
    Unknown,
}

impl ArgType {
    fn known(&self) -> Option<&Type> {
        match self {
            ArgType::Known(ty) => Some(ty),
            ArgType::Unknown => None,
        }
    }
}

impl std::fmt::Display for ArgType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Messages name types without their modifiers.
            ArgType::Known(Type::Char(_)) => f.write_str("character"),
            ArgType::Known(ty) => ty.without_modifiers().fmt(f),
            ArgType::Unknown => f.write_str("unknown"),
        }
    }
}

/// A resolved call. Arguments of other types are to be cast to `arg_types` ([`super::CastKind::Implicit`]; what
/// [`cast_allowed`] gives no implicit cast for, as numbers beside `||`, [`super::CastKind::Explicit`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Meaning.
    pub function: Function,
    /// Types the arguments must have.
    pub arg_types: Vec<Type>,
    /// Type of the result.
    pub return_type: Type,
}

/// Categories within which conversions are preferred.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Category {
    Boolean,
    Number,
    String,
    DateTime,
    TimeSpan,
    User(u8),
}

fn category(ty: &Type) -> Category {
    match ty {
        Type::Bool => Category::Boolean,
        Type::Int2 | Type::Int4 | Type::Int8 | Type::Float4 | Type::Float8 | Type::Numeric(_) => {
            Category::Number
        }
        Type::Text | Type::Varchar(_) | Type::Char(_) => Category::String,
        Type::Date | Type::Time | Type::Timestamp | Type::TimestampTz => Category::DateTime,
        Type::Interval => Category::TimeSpan,
        Type::Uuid => Category::User(0),
        Type::Bytea => Category::User(1),
    }
}

fn is_preferred(ty: &Type) -> bool {
    matches!(ty, Type::Bool | Type::Float8 | Type::Text | Type::TimestampTz | Type::Interval)
}

/// Strings of any length take part in resolution as `text` does, except that `char` is a type of its own.
fn same(a: &Type, b: &Type) -> bool {
    a.without_modifiers() == b.without_modifiers()
}

fn implicit(from: &Type, to: &Type) -> bool {
    cast_allowed(from, to) == Some(CastContext::Implicit)
}

/// Whether names made of these characters are operators.
fn is_operator(name: &str) -> bool {
    name.chars().all(|c| "+-*/<>=~!@#%^&|`?".contains(c))
}

fn describe(name: &str, args: &[ArgType]) -> String {
    let types: Vec<String> = args.iter().map(ToString::to_string).collect();
    match types.as_slice() {
        [only] if is_operator(name) => format!("{name} {only}"),
        [left, right] if is_operator(name) => format!("{left} {name} {right}"),
        _ => format!("{name}({})", types.join(", ")),
    }
}

fn undefined(name: &str, args: &[ArgType]) -> SqlError {
    let kind = if is_operator(name) { "operator" } else { "function" };
    let message = if is_operator(name) {
        format!("operator does not exist: {}", describe(name, args))
    } else {
        format!("function {} does not exist", describe(name, args))
    };
    SqlError::new(SqlState::UNDEFINED_FUNCTION, message).with_hint(format!(
        "No {kind} matches the given name and argument types. You might need to add explicit type casts."
    ))
}

fn ambiguous(name: &str, args: &[ArgType]) -> SqlError {
    let (kind, message) = if is_operator(name) {
        ("operator", format!("operator is not unique: {}", describe(name, args)))
    } else {
        ("function", format!("function {} is not unique", describe(name, args)))
    };
    SqlError::new(SqlState::AMBIGUOUS_FUNCTION, message).with_hint(format!(
        "Could not choose a best candidate {kind}. You might need to add explicit type casts."
    ))
}

fn text_of_unknown(arg: &ArgType) -> Type {
    arg.known().cloned().unwrap_or(Type::Text)
}

/// Finds the function that PostgreSQL calls by this name (lower case, or an operator's symbol) for these arguments.
/// 42883 when there is none, 42725 when there are several.
pub fn resolve(name: &str, args: &[ArgType]) -> Result<Resolved> {
    let any = |function, arg_types, return_type| Ok(Resolved { function, arg_types, return_type });
    match name {
        "concat" if !args.is_empty() => {
            return any(Function::ConcatAll, args.iter().map(text_of_unknown).collect(), Type::Text);
        }
        "concat_ws" if args.len() > 1 => {
            let mut types: Vec<Type> = args.iter().map(text_of_unknown).collect();
            if !implicit(&types[0], &Type::Text) {
                return Err(undefined(name, args));
            }
            types[0] = Type::Text;
            return any(Function::ConcatSeparated, types, Type::Text);
        }
        "format" if !args.is_empty() => {
            let mut types: Vec<Type> = args.iter().map(text_of_unknown).collect();
            if !implicit(&types[0], &Type::Text) {
                return Err(undefined(name, args));
            }
            types[0] = Type::Text;
            return any(Function::Format, types, Type::Text);
        }
        "quote_literal" | "quote_nullable" if args.len() == 1 => {
            let nullable = name == "quote_nullable";
            let function = if nullable { Function::QuoteNullable } else { Function::QuoteLiteral };
            return any(function, vec![Type::Text], Type::Text);
        }
        "num_nulls" | "num_nonnulls" if !args.is_empty() => {
            let function = if name == "num_nulls" { Function::NumNulls } else { Function::NumNonNulls };
            return any(function, args.iter().map(text_of_unknown).collect(), Type::Int4);
        }
        "greatest" | "least" if !args.is_empty() => {
            let common = select_common_type(&name.to_ascii_uppercase(), args)?;
            let function = if name == "greatest" { Function::Greatest } else { Function::Least };
            return any(function, vec![common.clone(); args.len()], common);
        }
        "nullif" if args.len() == 2 => {
            let operand = comparison_type("=", &args[0], &args[1])?;
            // The result has the first argument's own type; both are compared in the operand type.
            let returns = if args[0].known().is_some_and(|ty| same(ty, &operand)) {
                match text_of_unknown(&args[0]) {
                    // There is no comparison of this type's own.
                    Type::Varchar(_) => Type::Text,
                    own => own,
                }
            } else {
                operand.clone()
            };
            return any(Function::NullIf, vec![operand.clone(), operand], returns);
        }
        "||" if args.len() == 2 => {
            let is_text = |arg: &ArgType| arg.known().is_none_or(Type::is_string);
            let is_bytea = |arg: &ArgType| arg.known() == Some(&Type::Bytea);
            let bytes = (is_bytea(&args[0]) || is_bytea(&args[1]))
                && !args.iter().any(|a| a.known().is_some_and(Type::is_string));
            if !bytes && (is_text(&args[0]) || is_text(&args[1])) {
                return any(Function::Concat, vec![Type::Text, Type::Text], Type::Text);
            }
        }
        _ => {}
    }
    let signature = choose(name, args)?;
    let mut arg_types: Vec<Type> = signature.args.to_vec();
    // Mixed floats are computed in double precision.
    if arg_types.contains(&Type::Float4) && arg_types.contains(&Type::Float8) {
        arg_types = vec![Type::Float8; arg_types.len()];
    }
    any(signature.function, arg_types, signature.returns.clone())
}

fn choose(name: &str, args: &[ArgType]) -> Result<&'static Signature> {
    let named: Vec<&Signature> = candidates(name).filter(|s| s.args.len() == args.len()).collect();
    let exact =
        |types: &[&Type]| named.iter().find(|s| s.args.iter().zip(types).all(|(a, b)| same(a, b))).copied();
    // An exact match; for an operator an unknown side is first taken to be of the other side's type.
    let known: Vec<&Type> = args.iter().filter_map(ArgType::known).collect();
    if known.len() == args.len() {
        if let Some(found) = exact(&known) {
            return Ok(found);
        }
    } else if args.len() == 2
        && is_operator(name)
        && let [only] = known.as_slice()
        && let Some(found) = exact(&[*only, *only])
    {
        return Ok(found);
    }
    let mut left: Vec<&Signature> = named
        .into_iter()
        .filter(|s| {
            s.args.iter().zip(args).all(|(wanted, arg)| arg.known().is_none_or(|ty| implicit(ty, wanted)))
        })
        .collect();
    let keep_best = |left: &mut Vec<&'static Signature>, score: &dyn Fn(&Signature) -> usize| {
        let best = left.iter().map(|s| score(s)).max().unwrap_or(0);
        left.retain(|s| score(s) == best);
    };
    if left.is_empty() {
        return Err(undefined(name, args));
    }
    keep_best(&mut left, &|s| {
        s.args.iter().zip(args).filter(|(wanted, arg)| arg.known().is_some_and(|ty| same(ty, wanted))).count()
    });
    if left.len() > 1 {
        keep_best(&mut left, &|s| {
            s.args
                .iter()
                .zip(args)
                .filter(|(wanted, arg)| {
                    arg.known().is_some_and(|ty| {
                        same(ty, wanted) || (is_preferred(wanted) && category(ty) == category(wanted))
                    })
                })
                .count()
        });
    }
    if left.len() > 1 && known.len() < args.len() {
        for (i, arg) in args.iter().enumerate() {
            if arg.known().is_some() {
                continue;
            }
            let mut categories: Vec<Category> = Vec::new();
            for signature in &left {
                let found = category(&signature.args[i]);
                if !categories.contains(&found) {
                    categories.push(found);
                }
            }
            let chosen = match categories.as_slice() {
                [only] => *only,
                several if several.contains(&Category::String) => Category::String,
                _ => break,
            };
            let preferred = left.iter().any(|s| category(&s.args[i]) == chosen && is_preferred(&s.args[i]));
            left.retain(|s| category(&s.args[i]) == chosen && (!preferred || is_preferred(&s.args[i])));
        }
        // Unknowns are finally taken to be of the type that all known arguments share.
        if left.len() > 1
            && let Some(first) = known.first()
            && known.iter().all(|ty| same(ty, first))
        {
            let assumed: Vec<&&Signature> =
                left.iter().filter(|s| s.args.iter().all(|wanted| implicit(first, wanted))).collect();
            if let [only] = assumed.as_slice() {
                return Ok(only);
            }
        }
    }
    match left.as_slice() {
        [only] => Ok(only),
        _ => Err(ambiguous(name, args)),
    }
}

/// The type in which two sides of a comparison (`operator` is its symbol, for the message) are compared. 42883 when
/// PostgreSQL has no such operator.
pub fn comparison_type(operator: &str, left: &ArgType, right: &ArgType) -> Result<Type> {
    let error = || undefined(operator, &[left.clone(), right.clone()]);
    let (a, b) = match (left.known(), right.known()) {
        (None, None) => return Ok(Type::Text),
        (Some(ty), None) | (None, Some(ty)) => return Ok(comparable(ty)),
        (Some(a), Some(b)) => (a, b),
    };
    if same(a, b) {
        return Ok(if a == b { a.clone() } else { a.without_modifiers() });
    }
    match (category(a), category(b)) {
        (Category::Number, Category::Number) => {
            let is_float = |ty: &Type| matches!(ty, Type::Float4 | Type::Float8);
            if is_float(a) || is_float(b) {
                return Ok(Type::Float8);
            }
            let rank = |ty: &Type| match ty {
                Type::Int2 => 0,
                Type::Int4 => 1,
                Type::Int8 => 2,
                _ => 3,
            };
            Ok(if rank(a) > rank(b) { a.without_modifiers() } else { b.without_modifiers() })
        }
        (Category::String, Category::String) => {
            let is_text = |ty: &Type| *ty == Type::Text;
            if !is_text(a) && !is_text(b) && (matches!(a, Type::Char(_)) || matches!(b, Type::Char(_))) {
                Ok(Type::Char(0))
            } else {
                Ok(Type::Text)
            }
        }
        (Category::DateTime, Category::DateTime) if *a != Type::Time && *b != Type::Time => {
            if *a == Type::TimestampTz || *b == Type::TimestampTz {
                Ok(Type::TimestampTz)
            } else {
                Ok(Type::Timestamp)
            }
        }
        (Category::DateTime, Category::TimeSpan) | (Category::TimeSpan, Category::DateTime)
            if *a == Type::Time || *b == Type::Time =>
        {
            Ok(Type::Interval)
        }
        _ => Err(error()),
    }
}

/// The type that an unknown literal takes beside an operand of this type.
fn comparable(ty: &Type) -> Type {
    match ty {
        Type::Varchar(_) => Type::Text,
        other => other.without_modifiers(),
    }
}

/// The type of a CASE, COALESCE, IN list, VALUES column or set operation (`construct` names it in the message:
/// "CASE", "COALESCE", "UNION", …) over these arguments. 42804 when they have none in common.
pub fn select_common_type(construct: &str, args: &[ArgType]) -> Result<Type> {
    let mut chosen: Option<&Type> = None;
    for ty in args.iter().filter_map(ArgType::known) {
        match chosen {
            None => chosen = Some(ty),
            Some(before) if same(before, ty) => {}
            Some(before) => {
                if category(before) != category(ty) {
                    return Err(SqlError::new(
                        SqlState::DATATYPE_MISMATCH,
                        format!(
                            "{construct} types {} and {} cannot be matched",
                            ArgType::Known(before.clone()),
                            ArgType::Known(ty.clone())
                        ),
                    ));
                }
                if !is_preferred(before) && implicit(before, ty) && !implicit(ty, before) {
                    chosen = Some(ty);
                }
            }
        }
    }
    let Some(chosen) = chosen else { return Ok(Type::Text) };
    for ty in args.iter().filter_map(ArgType::known) {
        if !implicit(ty, chosen) {
            return Err(SqlError::new(
                SqlState::CANNOT_COERCE,
                format!(
                    "{construct} could not convert type {} to {}",
                    ArgType::Known(ty.clone()),
                    ArgType::Known(chosen.clone())
                ),
            ));
        }
    }
    // Modifiers remain only where all arguments share them; what has no type yet has none.
    let shared = args.iter().all(|arg| arg.known() == Some(chosen));
    Ok(if shared { chosen.clone() } else { chosen.without_modifiers() })
}
