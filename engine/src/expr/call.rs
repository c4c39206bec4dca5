//! What functions of numbers, dates and times do.

use super::{EvalContext, elementary, function::Function, moments_of_time as moments, strings};
use crate::{
    datetime::{self, MICROS_PER_DAY, MICROS_PER_SECOND, Zone},
    error::{Result, SqlError, SqlState},
    interval::Interval,
    numeric::Numeric,
    types::Type,
    value::{Value, compare_as},
};

fn out_of_range(what: &str) -> SqlError {
    SqlError::new(SqlState::OUT_OF_RANGE, format!("{what} out of range"))
}

fn division_by_zero() -> SqlError {
    SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

fn power_error(message: &str) -> SqlError {
    SqlError::new(SqlState(*b"2201F"), message)
}

pub(super) fn more_than_one_row() -> SqlError {
    SqlError::new(
        SqlState::CARDINALITY_VIOLATION,
        "more than one row returned by a subquery used as an expression",
    )
}

fn negative_count(function: Function) -> SqlError {
    let (clause, code) = match function {
        Function::OffsetCount => ("OFFSET", b"2201X"),
        _ => ("LIMIT", b"2201W"),
    };
    SqlError::new(SqlState(*code), format!("{clause} must not be negative"))
}

pub(super) fn wrong_arguments(function: Function) -> SqlError {
    SqlError::internal(format!("{function:?} was called with arguments it has no signature for"))
}

/// Checks a result as PostgreSQL does: infinite without an infinite operand is overflow, zero where it cannot be is
/// underflow.
fn check_float(result: f64, infinite_operand: bool, zero_allowed: bool) -> Result<f64> {
    if result.is_infinite() && !infinite_operand {
        return Err(SqlError::new(SqlState::OUT_OF_RANGE, "value out of range: overflow"));
    }
    if result == 0.0 && !zero_allowed {
        return Err(SqlError::new(SqlState::OUT_OF_RANGE, "value out of range: underflow"));
    }
    Ok(result)
}

fn float_arithmetic(function: Function, a: f64, b: f64, round: impl Fn(f64) -> f64) -> Result<f64> {
    let infinite = a.is_infinite() || b.is_infinite();
    match function {
        Function::Add => check_float(round(a + b), infinite, true),
        Function::Subtract => check_float(round(a - b), infinite, true),
        Function::Multiply => check_float(round(a * b), infinite, a == 0.0 || b == 0.0),
        Function::Divide if b == 0.0 && !a.is_nan() => Err(division_by_zero()),
        Function::Divide => check_float(round(a / b), a.is_infinite(), a == 0.0 || b.is_infinite()),
        _ => Err(wrong_arguments(function)),
    }
}

/// Never negative; 0 of two zeros.
fn greatest_divisor(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

macro_rules! integer_arithmetic {
    ($name:ident, $ty:ty, $type_name:literal) => {
        fn $name(function: Function, a: $ty, b: $ty) -> Result<$ty> {
            let result = match function {
                Function::Add => a.checked_add(b),
                Function::Subtract => a.checked_sub(b),
                Function::Multiply => a.checked_mul(b),
                Function::Divide | Function::Modulo if b == 0 => return Err(division_by_zero()),
                Function::Divide => a.checked_div(b),
                // The remainder by -1 is 0 even where the quotient overflows.
                Function::Modulo => Some(a.wrapping_rem(b)),
                Function::BitAnd => Some(a & b),
                Function::BitOr => Some(a | b),
                Function::BitXor => Some(a ^ b),
                Function::Gcd => <$ty>::try_from(greatest_divisor(a.into(), b.into())).ok(),
                Function::Lcm if a == 0 || b == 0 => Some(0),
                Function::Lcm => {
                    let divisor = greatest_divisor(a.into(), b.into());
                    <$ty>::try_from((i128::from(a) / divisor * i128::from(b)).abs()).ok()
                }
                _ => return Err(wrong_arguments(function)),
            };
            result.ok_or_else(|| out_of_range($type_name))
        }
    };
}

integer_arithmetic!(int2_arithmetic, i16, "smallint");
integer_arithmetic!(int4_arithmetic, i32, "integer");
integer_arithmetic!(int8_arithmetic, i64, "bigint");

fn numeric_arithmetic(function: Function, a: &Numeric, b: &Numeric) -> Result<Numeric> {
    match function {
        Function::Add => a.add(b),
        Function::Subtract => a.subtract(b),
        Function::Multiply => a.multiply(b),
        Function::Divide => a.divide(b),
        Function::Modulo => a.remainder(b),
        Function::Power => a.power(b),
        Function::IntegerDivide => a.divide_truncated(b),
        // log(base, number)
        Function::Log => b.log(a),
        Function::Gcd => Ok(a.gcd(b)),
        Function::Lcm => a.lcm(b),
        _ => Err(wrong_arguments(function)),
    }
}

fn float_power(a: f64, b: f64) -> Result<f64> {
    if a.is_nan() {
        return Ok(if b == 0.0 { 1.0 } else { f64::NAN });
    }
    if b.is_nan() {
        return Ok(if a == 1.0 { 1.0 } else { f64::NAN });
    }
    if a == 0.0 && b < 0.0 {
        return Err(power_error("zero raised to a negative power is undefined"));
    }
    if a < 0.0 && b.floor() != b {
        return Err(power_error("a negative number raised to a non-integer power yields a complex result"));
    }
    check_float(
        elementary::power(a, b),
        a.is_infinite() || b.is_infinite(),
        a == 0.0 || b.is_infinite() || a.is_infinite(),
    )
}

fn logarithm_argument(value: f64) -> Result<f64> {
    if value == 0.0 {
        return Err(SqlError::new(SqlState(*b"2201E"), "cannot take logarithm of zero"));
    }
    if value < 0.0 {
        return Err(SqlError::new(SqlState(*b"2201E"), "cannot take logarithm of a negative number"));
    }
    Ok(value)
}

fn float_function(function: Function, value: f64) -> Result<f64> {
    let infinite = value.is_infinite();
    Ok(match function {
        Function::Negate => -value,
        Function::Identity => value,
        Function::Abs => value.abs(),
        Function::Round => value.round_ties_even(),
        Function::Truncate => value.trunc(),
        Function::Ceil => value.ceil(),
        Function::Floor => value.floor(),
        Function::Sign if value > 0.0 => 1.0,
        Function::Sign if value < 0.0 => -1.0,
        Function::Sign => 0.0,
        Function::SquareRoot if value < 0.0 => {
            return Err(power_error("cannot take square root of a negative number"));
        }
        Function::SquareRoot => value.sqrt(),
        Function::CubeRoot => elementary::cube_root(value),
        Function::Exp if value == f64::NEG_INFINITY => 0.0,
        Function::Exp => check_float(elementary::exp(value), infinite, false)?,
        Function::Ln => elementary::ln(logarithm_argument(value)?),
        Function::Log => elementary::log10(logarithm_argument(value)?),
        Function::Degrees => check_float(value / (std::f64::consts::PI / 180.0), infinite, value == 0.0)?,
        Function::Radians => check_float(value * (std::f64::consts::PI / 180.0), infinite, value == 0.0)?,
        _ => elementary::trigonometric(function, value)?,
    })
}

fn numeric_function(function: Function, value: &Numeric) -> Result<Numeric> {
    match function {
        Function::Negate => Ok(value.negate()),
        Function::Identity => Ok(value.clone()),
        Function::Abs => Ok(value.abs()),
        Function::Round => value.round(0),
        Function::Truncate => value.truncate(0),
        Function::Ceil => value.ceil(),
        Function::Floor => value.floor(),
        Function::Sign => Ok(value.sign()),
        Function::SquareRoot => value.sqrt(),
        Function::Exp => value.exp(),
        Function::Ln => value.ln(),
        Function::Log => value.log(&Numeric::new(10, 0)),
        Function::TrimScale => value.trim_scale(),
        _ => Err(wrong_arguments(function)),
    }
}

/// Calls a function. Arguments have the types of one of its signatures, or are NULL; `arg_type` gives the declared type
/// of the first argument (which tells `char(n)` from other strings).
pub(super) fn call(
    function: Function,
    args: &[Value],
    arg_type: impl Fn() -> Type,
    context: &EvalContext,
) -> Result<Value> {
    if function.is_total() {
        return apply(function, args, arg_type, context);
    }
    contained(function, || apply(function, args, arg_type, context))
}

/// Calls what may fail for some values. Writes vote about that, so not even a panic need end a process: it would end every
/// replica, and each of their lives when the message comes by again.
pub(super) fn contained(what: impl std::fmt::Debug, call: impl FnOnce() -> Result<Value>) -> Result<Value> {
    // What it shares with others are compiled patterns, which are whole at any time.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(SqlError::everywhere),
        Err(panic) => {
            let message = panic.downcast::<String>().map_or_else(
                |panic| panic.downcast::<&str>().map_or_else(|_| String::new(), |text| text.to_string()),
                |text| *text,
            );
            Err(SqlError::internal(format!("{what:?} has panicked: {message}")).everywhere())
        }
    }
}

fn apply(
    function: Function,
    args: &[Value],
    arg_type: impl Fn() -> Type,
    context: &EvalContext,
) -> Result<Value> {
    if function.is_strict() && args.iter().any(Value::is_null) {
        return Ok(Value::Null);
    }
    match function {
        Function::Greatest | Function::Least => {
            let ty = arg_type();
            let present = args.iter().filter(|value| !value.is_null());
            let chosen = match function {
                // The first of equal arguments, as PostgreSQL keeps it.
                Function::Greatest => {
                    present.reduce(|a, b| if compare_as(b, a, &ty).is_gt() { b } else { a })
                }
                _ => present.reduce(|a, b| if compare_as(b, a, &ty).is_lt() { b } else { a }),
            };
            return Ok(chosen.cloned().unwrap_or(Value::Null));
        }
        Function::NullIf => {
            let [a, b] = args else { return Err(wrong_arguments(function)) };
            let equal = !a.is_null() && !b.is_null() && compare_as(a, b, &arg_type()).is_eq();
            return Ok(if equal { Value::Null } else { a.clone() });
        }
        Function::OnlyRow => {
            let [first, rows] = args else { return Err(wrong_arguments(function)) };
            return match rows.as_i64() {
                Some(2..) => Err(more_than_one_row()),
                _ => Ok(first.clone()),
            };
        }
        Function::LimitCount | Function::OffsetCount => {
            let [count] = args else { return Err(wrong_arguments(function)) };
            return match count.as_i64() {
                Some(..0) => Err(negative_count(function)),
                _ => Ok(count.clone()),
            };
        }
        Function::Pi => return Ok(Value::Float8(std::f64::consts::PI)),
        // Any number of arguments.
        Function::MakeInterval => return moments::call(function, args, context),
        Function::ConcatAll
        | Function::ConcatSeparated
        | Function::Format
        | Function::NumNulls
        | Function::NumNonNulls => return other(function, args, context),
        _ => {}
    }
    match args {
        [a] => unary(function, a, context),
        [a, b] => binary(function, a, b, context),
        _ => other(function, args, context),
    }
}

fn unary(function: Function, value: &Value, context: &EvalContext) -> Result<Value> {
    macro_rules! integer {
        ($value:expr, $variant:ident, $type_name:literal) => {{
            let value = *$value;
            let result = match function {
                Function::Negate => value.checked_neg(),
                Function::Abs => value.checked_abs(),
                Function::Identity => Some(value),
                Function::BitNot => Some(!value),
                Function::Factorial => return Numeric::factorial(value.into()).map(Value::Numeric),
                _ => return other(function, std::slice::from_ref(&Value::$variant(value)), context),
            };
            result.map(Value::$variant).ok_or_else(|| out_of_range($type_name))
        }};
    }
    match value {
        Value::Int2(value) => integer!(value, Int2, "smallint"),
        Value::Int4(value) => integer!(value, Int4, "integer"),
        Value::Int8(value) => integer!(value, Int8, "bigint"),
        Value::Float4(value) => Ok(Value::Float4(float_function(function, f64::from(*value))? as f32)),
        Value::Float8(seconds) if function == Function::ToTimestamp => timestamp_of_seconds(*seconds),
        Value::Float8(value) => Ok(Value::Float8(float_function(function, *value)?)),
        Value::Numeric(value) => match function {
            Function::Scale if value.is_nan() => Ok(Value::Null),
            Function::Scale => Ok(Value::Int4(value.scale() as i32)),
            Function::MinScale => {
                Ok(value.min_scale().map_or(Value::Null, |scale| Value::Int4(scale as i32)))
            }
            _ => Ok(Value::Numeric(numeric_function(function, value)?)),
        },
        Value::Interval(value) => match function {
            Function::Negate => Ok(Value::Interval(value.checked_neg()?)),
            Function::JustifyHours => Ok(Value::Interval(value.justify_hours()?)),
            Function::JustifyDays => Ok(Value::Interval(value.justify_days()?)),
            Function::JustifyInterval => Ok(Value::Interval(value.justify_interval()?)),
            Function::IsFinite => Ok(Value::Bool(true)),
            _ => Err(wrong_arguments(function)),
        },
        other_value => other(function, std::slice::from_ref(other_value), context),
    }
}

/// The beginning of 2000, in seconds since 1970.
const EPOCH_2000: f64 = 946_684_800.0;

fn timestamp_of_seconds(seconds: f64) -> Result<Value> {
    if seconds.is_infinite() {
        return Ok(Value::TimestampTz(if seconds > 0.0 {
            datetime::TIMESTAMP_INFINITY
        } else {
            datetime::TIMESTAMP_NEGATIVE_INFINITY
        }));
    }
    let mut text = String::new();
    crate::text::write_f64(&mut text, seconds);
    let error = || SqlError::new(SqlState::DATETIME_OVERFLOW, format!("timestamp out of range: \"{text}\""));
    if seconds.is_nan() {
        return Err(SqlError::new(SqlState::DATETIME_OVERFLOW, "timestamp cannot be NaN"));
    }
    // As PostgreSQL does, whose time begins in 2000: that decides about the last microsecond.
    let micros = ((seconds - EPOCH_2000) * 1_000_000.0).round_ties_even();
    if micros.abs() > 9.2e18 {
        return Err(error());
    }
    datetime::checked_timestamp(micros as i128 + EPOCH_2000 as i128 * 1_000_000)
        .map(Value::TimestampTz)
        .map_err(|_| error())
}

fn shift(function: Function, bits: u32, by: i32) -> Result<(bool, u32)> {
    // The machine takes the distance modulo the width of the (promoted) operand.
    let by = (by as u32) & (bits - 1);
    match function {
        Function::ShiftLeft => Ok((true, by)),
        Function::ShiftRight => Ok((false, by)),
        _ => Err(wrong_arguments(function)),
    }
}

fn binary(function: Function, a: &Value, b: &Value, context: &EvalContext) -> Result<Value> {
    let zone = || Zone::parse(&context.time_zone);
    if let (Function::ToChar, Value::Text(template)) = (function, b) {
        return moments::to_char(a, template, context);
    }
    Ok(match (a, b) {
        (Value::Int2(a), Value::Int2(b)) => Value::Int2(int2_arithmetic(function, *a, *b)?),
        (Value::Int4(a), Value::Int4(b))
            if !matches!(function, Function::ShiftLeft | Function::ShiftRight) =>
        {
            Value::Int4(int4_arithmetic(function, *a, *b)?)
        }
        (Value::Int8(a), Value::Int8(b)) => Value::Int8(int8_arithmetic(function, *a, *b)?),
        (Value::Int2(a), Value::Int4(by)) => {
            let (left, by) = shift(function, 32, *by)?;
            let wide = i32::from(*a);
            Value::Int2(if left { wide.wrapping_shl(by) as i16 } else { (wide >> by) as i16 })
        }
        (Value::Int4(a), Value::Int4(by)) => {
            let (left, by) = shift(function, 32, *by)?;
            Value::Int4(if left { a.wrapping_shl(by) } else { a >> by })
        }
        (Value::Int8(a), Value::Int4(by)) => {
            let (left, by) = shift(function, 64, *by)?;
            Value::Int8(if left { a.wrapping_shl(by) } else { a >> by })
        }
        (Value::Float4(a), Value::Float4(b)) => {
            // Rounding the exact double once more gives the correctly rounded real.
            let round = |value: f64| f64::from(value as f32);
            Value::Float4(float_arithmetic(function, f64::from(*a), f64::from(*b), round)? as f32)
        }
        (Value::Float8(a), Value::Float8(b)) if function == Function::Power => {
            Value::Float8(float_power(*a, *b)?)
        }
        (Value::Float8(a), Value::Float8(b)) if function == Function::Atan2 => {
            Value::Float8(elementary::angle(*a, *b))
        }
        (Value::Float8(a), Value::Float8(b)) if function == Function::Atan2Degrees => {
            Value::Float8(elementary::atan2_degrees(*a, *b))
        }
        (Value::Float8(a), Value::Float8(b)) => Value::Float8(float_arithmetic(function, *a, *b, |x| x)?),
        (Value::Numeric(a), Value::Numeric(b)) => Value::Numeric(numeric_arithmetic(function, a, b)?),
        (Value::Numeric(number), Value::Int4(scale)) => Value::Numeric(match function {
            Function::Round => number.round(i64::from(*scale))?,
            Function::Truncate => number.truncate(i64::from(*scale))?,
            _ => return Err(wrong_arguments(function)),
        }),
        (Value::Interval(interval), Value::Float8(factor)) => Value::Interval(match function {
            Function::Multiply => interval.multiply(*factor)?,
            Function::Divide => interval.divide(*factor)?,
            _ => return Err(wrong_arguments(function)),
        }),
        (Value::Float8(factor), Value::Interval(interval)) if function == Function::Multiply => {
            Value::Interval(interval.multiply(*factor)?)
        }
        (Value::Interval(a), Value::Interval(b)) => Value::Interval(match function {
            Function::Add => a.checked_add(b)?,
            Function::Subtract => a.checked_add(&b.checked_neg()?)?,
            _ => return Err(wrong_arguments(function)),
        }),
        (Value::Date(days), Value::Int4(number)) | (Value::Int4(number), Value::Date(days)) => {
            Value::Date(shift_date(function, *days, *number)?)
        }
        (Value::Date(a), Value::Date(b)) if function == Function::Subtract => {
            if [*a, *b]
                .iter()
                .any(|d| matches!(*d, datetime::DATE_INFINITY | datetime::DATE_NEGATIVE_INFINITY))
            {
                return Err(SqlError::new(SqlState::DATETIME_OVERFLOW, "cannot subtract infinite dates"));
            }
            Value::Int4(a - b)
        }
        (Value::Date(days), Value::Time(time)) | (Value::Time(time), Value::Date(days)) => {
            let midnight = datetime::date_to_timestamp(*days)?;
            if !datetime::is_finite(midnight) {
                return Ok(Value::Timestamp(midnight));
            }
            Value::Timestamp(datetime::checked_timestamp(i128::from(midnight) + i128::from(*time))?)
        }
        (Value::Date(days), Value::Interval(interval)) | (Value::Interval(interval), Value::Date(days)) => {
            let midnight = datetime::date_to_timestamp(*days)?;
            Value::Timestamp(datetime::add_interval(midnight, &signed(function, interval)?)?)
        }
        (Value::Interval(interval), Value::Timestamp(micros))
        | (Value::Timestamp(micros), Value::Interval(interval))
            if matches!(function, Function::Add | Function::Subtract) =>
        {
            Value::Timestamp(datetime::add_interval(*micros, &signed(function, interval)?)?)
        }
        (Value::Interval(interval), Value::TimestampTz(micros))
        | (Value::TimestampTz(micros), Value::Interval(interval))
            if matches!(function, Function::Add | Function::Subtract) =>
        {
            let interval = signed(function, interval)?;
            Value::TimestampTz(datetime::add_interval_in_zone(*micros, &interval, &zone()?)?)
        }
        (Value::Time(time), Value::Interval(interval)) | (Value::Interval(interval), Value::Time(time)) => {
            let interval = signed(function, interval)?;
            let sum = i128::from(*time) + i128::from(interval.microseconds);
            Value::Time(sum.rem_euclid(i128::from(MICROS_PER_DAY)) as i64)
        }
        (Value::Time(a), Value::Time(b)) if function == Function::Subtract => {
            Value::Interval(Interval { microseconds: a - b, ..Interval::default() })
        }
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b))
            if function == Function::Subtract =>
        {
            Value::Interval(datetime::subtract_timestamps(*a, *b)?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) if function == Function::Age => {
            Value::Interval(datetime::age(*a, *b)?)
        }
        (Value::TimestampTz(a), Value::TimestampTz(b)) if function == Function::Age => {
            let zone = zone()?;
            Value::Interval(datetime::age(zone.to_local(*a)?, zone.to_local(*b)?)?)
        }
        (Value::Text(field), value) if function == Function::DateTrunc => match value {
            Value::Timestamp(micros) => Value::Timestamp(datetime::truncate_timestamp(field, *micros)?),
            Value::TimestampTz(micros) => {
                Value::TimestampTz(datetime::truncate_timestamptz(field, *micros, &zone()?)?)
            }
            Value::Interval(interval) => Value::Interval(datetime::truncate_interval(field, interval)?),
            _ => return Err(wrong_arguments(function)),
        },
        (Value::Text(field), Value::Date(days)) if function == Function::DatePart => {
            // As for a timestamp, so that the fields of a time of day exist.
            let midnight = Value::Timestamp(datetime::date_to_timestamp(*days)?);
            field_as_float(field, &midnight, zone)?
        }
        (Value::Text(field), value) if function == Function::DatePart => field_as_float(field, value, zone)?,
        (Value::Text(field), value) if function == Function::Extract => {
            datetime::extract(field, value, zone)?.map_or(Value::Null, Value::Numeric)
        }
        (Value::Text(text), Value::Text(template)) if function == Function::ToTimestamp => {
            Value::TimestampTz(crate::template::to_timestamp(text, template, &zone()?)?)
        }
        (Value::Text(text), Value::Text(template)) if function == Function::ToDate => {
            Value::Date(crate::template::to_date(text, template)?)
        }
        (Value::Text(text), Value::Text(template)) if function == Function::ToNumber => {
            crate::template::to_number(text, template)?.map_or(Value::Null, Value::Numeric)
        }
        (zone, Value::Timestamp(micros)) if function == Function::AtTimeZone => {
            Value::TimestampTz(conversion_zone(zone)?.to_utc(*micros)?)
        }
        (zone, Value::TimestampTz(micros)) if function == Function::AtTimeZone => {
            Value::Timestamp(conversion_zone(zone)?.to_local(*micros)?)
        }
        _ => return strings::call(function, &[a.clone(), b.clone()], context),
    })
}

fn shift_date(function: Function, days: i32, number: i32) -> Result<i32> {
    if matches!(days, datetime::DATE_INFINITY | datetime::DATE_NEGATIVE_INFINITY) {
        return Ok(days);
    }
    datetime::checked_date(match function {
        Function::Add => i64::from(days) + i64::from(number),
        Function::Subtract => i64::from(days) - i64::from(number),
        _ => return Err(wrong_arguments(function)),
    })
}

fn signed(function: Function, interval: &Interval) -> Result<Interval> {
    match function {
        Function::Add => Ok(*interval),
        Function::Subtract => interval.checked_neg(),
        _ => Err(wrong_arguments(function)),
    }
}

fn field_as_float(field: &str, value: &Value, zone: impl FnOnce() -> Result<Zone>) -> Result<Value> {
    match datetime::extract(field, value, zone)? {
        Some(number) => Ok(Value::Float8(number.to_f64()?)),
        None => Ok(Value::Null),
    }
}

fn conversion_zone(zone: &Value) -> Result<Zone> {
    match zone {
        Value::Text(name) => Zone::parse_for_conversion(name),
        Value::Interval(interval) if interval.months != 0 || interval.days != 0 => {
            let mut text = String::new();
            interval.write(&mut text);
            Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("interval time zone \"{text}\" must not include months or days"),
            ))
        }
        Value::Interval(interval) => {
            let seconds = interval.microseconds / MICROS_PER_SECOND;
            i32::try_from(seconds).map(Zone::Fixed).map_err(|_| crate::interval::out_of_range())
        }
        _ => Err(wrong_arguments(Function::AtTimeZone)),
    }
}

fn other(function: Function, args: &[Value], context: &EvalContext) -> Result<Value> {
    match (function, args) {
        (Function::DateTrunc, [Value::Text(field), Value::TimestampTz(micros), Value::Text(zone)]) => {
            let zone = Zone::parse_for_truncation(zone)?;
            Ok(Value::TimestampTz(datetime::truncate_timestamptz(field, *micros, &zone)?))
        }
        (
            Function::WidthBucket,
            [Value::Float8(operand), Value::Float8(low), Value::Float8(high), Value::Int4(count)],
        ) => crate::numeric::width_bucket_float(*operand, *low, *high, *count),
        (
            Function::WidthBucket,
            [Value::Numeric(operand), Value::Numeric(low), Value::Numeric(high), Value::Int4(count)],
        ) => operand.width_bucket(low, high, *count),
        (
            Function::MakeDate
            | Function::MakeTime
            | Function::MakeTimestamp
            | Function::MakeTimestampTz
            | Function::IsFinite
            | Function::DateBin,
            _,
        ) => moments::call(function, args, context),
        _ => strings::call(function, args, context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_every_replica_meets() {
        let error = contained(Function::Substring, || panic!("at {}", 7)).expect_err("it has panicked");
        assert_eq!(error.code, SqlState::INTERNAL);
        assert!(error.is_deterministic() && error.message.ends_with("at 7"), "{error}");
        let error = contained(Function::Substring, || Err(wrong_arguments(Function::Substring)));
        assert!(error.expect_err("refused").is_deterministic());
    }
}
