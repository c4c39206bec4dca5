//! Aggregates computed where the data is: partial states that merge in any order to the same result.

use std::collections::BTreeSet;

use arrow::{
    array::{Array, ArrayRef, AsArray},
    datatypes::{DataType, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type},
};
use serde::{Deserialize, Serialize};

use crate::{
    array::{arrow_cell_to_value, decimal_cell},
    error::{Result, SqlError, SqlState},
    expr::Expr,
    interval::Interval,
    numeric::Numeric,
    types::Type,
    value::{Value, compare_as},
};

mod concatenation;
mod exact_sum;
mod group_table;
mod moments;

use concatenation::Concatenation;
pub use exact_sum::ExactSum;
pub(crate) use group_table::Fed;
pub use group_table::GroupTable;
pub use moments::{Moments, Spread};

/// Aggregate functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AggregateFunction {
    /// `count(*)` without argument, `count(x)` with one.
    Count,
    /// `sum`
    Sum,
    /// `avg`
    Avg,
    /// `min`
    Min,
    /// `max`
    Max,
    /// `bool_and`, `every`
    BoolAnd,
    /// `bool_or`
    BoolOr,
    /// `bit_and`
    BitAnd,
    /// `bit_or`
    BitOr,
    /// `bit_xor`
    BitXor,
    /// `stddev`, `variance` and their kin
    Spread(Spread),
    /// `string_agg`
    StringAgg,
}

/// One aggregate of a read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AggregateCall {
    /// Which.
    pub function: AggregateFunction,
    /// Argument over the table's columns; none for `count(*)`.
    pub argument: Option<Expr>,
    /// `DISTINCT`
    pub distinct: bool,
    /// `FILTER (WHERE …)` over the table's columns.
    pub filter: Option<Expr>,
    /// Further arguments over the table's columns: the delimiter of `string_agg`, and behind it what it is ordered by.
    pub further: Vec<Expr>,
    /// How the last of `further` order the values: `ORDER BY` inside the call. (Only `string_agg` has it; the results of
    /// the others do not depend on an order.)
    pub order: Vec<Direction>,
}

/// A direction of `ORDER BY` inside a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Direction {
    /// `DESC`
    pub descending: bool,
    /// `NULLS FIRST`
    pub nulls_first: bool,
}

impl AggregateCall {
    /// A call without DISTINCT, FILTER and further arguments.
    pub fn new(function: AggregateFunction, argument: Option<Expr>) -> AggregateCall {
        let (further, order) = (Vec::new(), Vec::new());
        AggregateCall { function, argument, distinct: false, filter: None, further, order }
    }

    /// The type of the result. 42883 when there is no such aggregate.
    pub fn result_type(&self) -> Result<Type> {
        let argument = self.argument.as_ref().map(Expr::ty);
        result_type(self.function, argument.as_ref()).ok_or_else(|| {
            SqlError::new(
                SqlState::UNDEFINED_FUNCTION,
                format!(
                    "function {}({}) does not exist",
                    self.function.name(),
                    argument.map_or("*".into(), |ty| ty.without_modifiers().to_string())
                ),
            )
            .with_hint(
                "No function matches the given name and argument types. You might need to add explicit type casts.",
            )
        })
    }
}

/// A group with partial states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Values of the grouping expressions.
    pub key: Vec<Value>,
    /// One state for each aggregate.
    pub states: Vec<AggregateState>,
}

impl Group {
    /// Bytes held, roughly.
    pub fn heap_size(&self) -> usize {
        let key: usize = self.key.iter().map(|value| value.heap_size() + size_of::<Value>()).sum();
        let states = self.states.iter().map(|s| s.heap_size() + size_of::<AggregateState>());
        key + states.sum::<usize>() + size_of::<Group>() + 24
    }
}

impl AggregateFunction {
    /// The function's SQL name.
    pub fn name(self) -> &'static str {
        match self {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum => "sum",
            AggregateFunction::Avg => "avg",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
            AggregateFunction::BoolAnd => "bool_and",
            AggregateFunction::BoolOr => "bool_or",
            AggregateFunction::BitAnd => "bit_and",
            AggregateFunction::BitOr => "bit_or",
            AggregateFunction::BitXor => "bit_xor",
            AggregateFunction::Spread(Spread { deviation: true, sample: true }) => "stddev",
            AggregateFunction::Spread(Spread { deviation: true, sample: false }) => "stddev_pop",
            AggregateFunction::Spread(Spread { deviation: false, sample: true }) => "variance",
            AggregateFunction::Spread(Spread { deviation: false, sample: false }) => "var_pop",
            AggregateFunction::StringAgg => "string_agg",
        }
    }

    /// The function of a SQL name (lower case).
    pub fn by_name(name: &str) -> Option<AggregateFunction> {
        let spread = |deviation, sample| AggregateFunction::Spread(Spread { deviation, sample });
        Some(match name {
            "count" => AggregateFunction::Count,
            "sum" => AggregateFunction::Sum,
            "avg" => AggregateFunction::Avg,
            "min" => AggregateFunction::Min,
            "max" => AggregateFunction::Max,
            "bool_and" | "every" => AggregateFunction::BoolAnd,
            "bool_or" => AggregateFunction::BoolOr,
            "bit_and" => AggregateFunction::BitAnd,
            "bit_or" => AggregateFunction::BitOr,
            "bit_xor" => AggregateFunction::BitXor,
            "stddev" | "stddev_samp" => spread(true, true),
            "stddev_pop" => spread(true, false),
            "variance" | "var_samp" => spread(false, true),
            "var_pop" => spread(false, false),
            "string_agg" => AggregateFunction::StringAgg,
            _ => return None,
        })
    }
}

/// The result type of an aggregate over an argument type, or `None` when PostgreSQL has no such aggregate.
pub fn result_type(function: AggregateFunction, argument: Option<&Type>) -> Option<Type> {
    use AggregateFunction::*;
    let Some(argument) = argument else { return (function == Count).then_some(Type::Int8) };
    Some(match (function, argument) {
        (Count, _) => Type::Int8,
        (Sum, Type::Int2 | Type::Int4) => Type::Int8,
        (Sum | Avg, Type::Int8 | Type::Numeric(_)) | (Avg, Type::Int2 | Type::Int4) => Type::Numeric(None),
        (Sum, Type::Float4) => Type::Float4,
        (Sum | Avg, Type::Float8) | (Avg, Type::Float4) => Type::Float8,
        (Sum | Avg, Type::Interval | Type::Time) => Type::Interval,
        (Min | Max, Type::Bool | Type::Uuid | Type::Bytea) => return None,
        (Min | Max, Type::Varchar(_)) => Type::Text,
        (Min | Max, Type::Numeric(_)) => Type::Numeric(None),
        (Min | Max, other) => other.clone(),
        (BoolAnd | BoolOr, Type::Bool) => Type::Bool,
        (BitAnd | BitOr | BitXor, Type::Int2 | Type::Int4 | Type::Int8) => argument.clone(),
        (Spread(_), Type::Float4 | Type::Float8) => Type::Float8,
        (Spread(_), ty) if ty.is_number() => Type::Numeric(None),
        (StringAgg, ty) if ty.is_string() => Type::Text,
        (StringAgg, Type::Bytea) => Type::Bytea,
        _ => return None,
    })
}

/// The partial state of one aggregate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AggregateState {
    function: AggregateFunction,
    argument: Option<Type>,
    accumulator: Accumulator,
    /// The values seen, of a DISTINCT aggregate; they are accumulated at the end.
    distinct: Option<BTreeSet<Value>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Accumulator {
    Count(u64),
    Integer {
        sum: i128,
        count: u64,
    },
    /// The sum is `small / 10^scale + rest`.
    Decimal {
        small: i128,
        scale: u32,
        rest: Numeric,
        count: u64,
    },
    Float {
        sum: ExactSum,
        count: u64,
    },
    Interval {
        months: i64,
        days: i64,
        microseconds: i128,
        count: u64,
    },
    /// The smallest or largest value, NULL before the first.
    Extreme(Value),
    Bool(Option<bool>),
    /// Of `bit_and` and its kin.
    Bits(Option<i64>),
    Moments(Moments),
    Concatenation(Concatenation),
}

impl Accumulator {
    fn new(call: &AggregateCall, argument: Option<&Type>) -> Accumulator {
        use AggregateFunction::*;
        match (call.function, argument) {
            (Count, _) => Accumulator::Count(0),
            (Min | Max, _) => Accumulator::Extreme(Value::Null),
            (BoolAnd | BoolOr, _) => Accumulator::Bool(None),
            (BitAnd | BitOr | BitXor, _) => Accumulator::Bits(None),
            (Spread(_), Some(Type::Float4 | Type::Float8)) => Accumulator::Moments(Moments::float()),
            (Spread(_), _) => Accumulator::Moments(Moments::decimal()),
            (StringAgg, _) => Accumulator::Concatenation(Concatenation::new(call)),
            (Sum | Avg, Some(Type::Float4 | Type::Float8)) => {
                Accumulator::Float { sum: ExactSum::default(), count: 0 }
            }
            (Sum | Avg, Some(Type::Numeric(_))) => {
                Accumulator::Decimal { small: 0, scale: 0, rest: Numeric::zero(), count: 0 }
            }
            (Sum | Avg, Some(Type::Interval | Type::Time)) => {
                Accumulator::Interval { months: 0, days: 0, microseconds: 0, count: 0 }
            }
            (Sum | Avg, _) => Accumulator::Integer { sum: 0, count: 0 },
        }
    }

    fn add_decimal(&mut self, number: &Numeric) -> Result<()> {
        let Accumulator::Decimal { small, scale, rest, count } = self else {
            return Err(SqlError::internal("a decimal in another aggregate"));
        };
        *count += 1;
        add_decimal(small, scale, rest, number)
    }
}

/// Adds to `small / 10^scale + rest`, whose scale grows to the largest of the addends.
fn add_decimal(small: &mut i128, scale: &mut u32, rest: &mut Numeric, number: &Numeric) -> Result<()> {
    let wanted = (*scale).max(number.scale());
    if let (Some(addend), Some(factor)) =
        (number.to_i128_at_scale(wanted), crate::numeric::power_of_ten(wanted - *scale))
        && let Some(sum) = small.checked_mul(factor).and_then(|shifted| shifted.checked_add(addend))
    {
        *small = sum;
        *scale = wanted;
        return Ok(());
    }
    *rest = rest.add(&Numeric::new(*small, *scale))?.add(number)?;
    *small = 0;
    *scale = wanted;
    Ok(())
}

fn out_of_range(what: &str) -> SqlError {
    SqlError::new(SqlState::OUT_OF_RANGE, format!("{what} out of range"))
}

impl AggregateState {
    /// The state before any row.
    pub fn new(call: &AggregateCall) -> AggregateState {
        let argument = call.argument.as_ref().map(Expr::ty);
        // Duplicates make no difference to these.
        let idempotent = matches!(
            call.function,
            AggregateFunction::Min
                | AggregateFunction::Max
                | AggregateFunction::BoolAnd
                | AggregateFunction::BoolOr
                | AggregateFunction::BitAnd
                | AggregateFunction::BitOr
        );
        AggregateState {
            function: call.function,
            accumulator: Accumulator::new(call, argument.as_ref()),
            argument,
            // Which pairs of values and delimiters are equal is for the concatenation itself to say.
            distinct: (call.distinct && !idempotent && call.function != AggregateFunction::StringAgg)
                .then(BTreeSet::new),
        }
    }

    /// Takes in the argument's value for one row that passes the filter. (For `count(*)` any value does, NULL too.)
    pub fn update(&mut self, value: &Value) -> Result<()> {
        if value.is_null() && self.argument.is_some() {
            return Ok(());
        }
        if let Some(seen) = &mut self.distinct {
            let ty = self.argument.as_ref().unwrap_or(&Type::Text);
            add_distinct(seen, canonical(value, ty));
            return Ok(());
        }
        self.accumulate(value)
    }

    /// Takes in one row that passes the filter of a call with further arguments: the argument's value and theirs.
    pub fn update_further(&mut self, values: Vec<Value>) -> Result<()> {
        match &mut self.accumulator {
            Accumulator::Concatenation(concatenation) => concatenation.add(values),
            _ => Err(SqlError::internal("several arguments of an aggregate that takes one")),
        }
    }

    /// Takes in `rows` rows of `count(*)`.
    pub fn update_count(&mut self, rows: u64) {
        if let Accumulator::Count(count) = &mut self.accumulator {
            *count += rows;
        }
    }

    /// Whether [`update_sum`](AggregateState::update_sum) is all that it needs of whole numbers or decimals.
    pub(crate) fn takes_sums(&self) -> bool {
        self.distinct.is_none()
            && matches!(
                self.accumulator,
                Accumulator::Count(_) | Accumulator::Integer { .. } | Accumulator::Decimal { .. }
            )
    }

    /// Takes in `count` values that are not NULL, and whose sum is `sum / 10^scale`.
    pub(crate) fn update_sum(&mut self, values: u64, total: i128, scale: u32) -> Result<()> {
        match &mut self.accumulator {
            _ if values == 0 => {}
            Accumulator::Count(count) => *count += values,
            Accumulator::Integer { sum, count } => {
                *sum += total;
                *count += values;
            }
            Accumulator::Decimal { small, scale: so_far, rest, count } => {
                *count += values;
                match small.checked_add(total).filter(|_| *so_far == scale) {
                    Some(sum) => *small = sum,
                    None => add_decimal(small, so_far, rest, &Numeric::new(total, scale))?,
                }
            }
            _ => return Err(SqlError::internal("a sum in another aggregate")),
        }
        Ok(())
    }

    fn accumulate(&mut self, value: &Value) -> Result<()> {
        let function = self.function;
        match &mut self.accumulator {
            Accumulator::Count(count) => *count += 1,
            Accumulator::Integer { sum, count } => {
                *sum += i128::from(
                    value.as_i64().ok_or_else(|| SqlError::internal("sum of a value that is no integer"))?,
                );
                *count += 1;
            }
            Accumulator::Decimal { .. } => match value {
                Value::Numeric(number) => self.accumulator.add_decimal(number)?,
                _ => return Err(SqlError::internal("sum of a value that is no numeric")),
            },
            Accumulator::Float { sum, count } => {
                match value {
                    Value::Float4(value) => sum.add(f64::from(*value)),
                    Value::Float8(value) => sum.add(*value),
                    _ => return Err(SqlError::internal("sum of a value that is no float")),
                }
                *count += 1;
            }
            Accumulator::Interval { months, days, microseconds, count } => {
                match value {
                    Value::Interval(interval) => {
                        *months += i64::from(interval.months);
                        *days += i64::from(interval.days);
                        *microseconds += i128::from(interval.microseconds);
                    }
                    Value::Time(time) => *microseconds += i128::from(*time),
                    _ => return Err(SqlError::internal("sum of a value that is no interval")),
                }
                *count += 1;
            }
            Accumulator::Extreme(extreme) => {
                let ty = self.argument.as_ref().unwrap_or(&Type::Text);
                let ordering = compare_as(value, extreme, ty);
                // Among equal values that print differently the choice must not depend on their order.
                let wins = match function {
                    _ if extreme.is_null() => true,
                    AggregateFunction::Min => ordering.is_lt(),
                    _ => ordering.is_gt(),
                };
                if wins || (ordering.is_eq() && tie_breaker(value) < tie_breaker(extreme)) {
                    *extreme = value.clone();
                }
            }
            Accumulator::Bool(state) => {
                if let Value::Bool(value) = value {
                    *state = Some(match (*state, function) {
                        (None, _) => *value,
                        (Some(before), AggregateFunction::BoolAnd) => before && *value,
                        (Some(before), _) => before || *value,
                    });
                }
            }
            Accumulator::Bits(state) => {
                let bits =
                    value.as_i64().ok_or_else(|| SqlError::internal("bits of a value that is no integer"))?;
                *state = Some(match (*state, function) {
                    (None, _) => bits,
                    (Some(before), AggregateFunction::BitAnd) => before & bits,
                    (Some(before), AggregateFunction::BitOr) => before | bits,
                    (Some(before), _) => before ^ bits,
                });
            }
            Accumulator::Moments(moments) => moments.add(value)?,
            Accumulator::Concatenation(_) => {
                return Err(SqlError::internal("a concatenation without its delimiter"));
            }
        }
        Ok(())
    }

    /// Takes in a state of the same aggregate over other rows.
    pub fn merge(&mut self, other: AggregateState) -> Result<()> {
        match (&mut self.accumulator, other.accumulator) {
            (Accumulator::Count(a), Accumulator::Count(b)) => *a += b,
            (Accumulator::Integer { sum, count }, Accumulator::Integer { sum: s, count: c }) => {
                *sum += s;
                *count += c;
            }
            (
                Accumulator::Decimal { small, scale, rest, count },
                Accumulator::Decimal { small: s, scale: sc, rest: r, count: c },
            ) => {
                add_decimal(small, scale, rest, &Numeric::new(s, sc))?;
                if !r.is_zero() {
                    *rest = rest.add(&r)?;
                }
                *count += c;
            }
            (Accumulator::Float { sum, count }, Accumulator::Float { sum: s, count: c }) => {
                sum.merge(&s);
                *count += c;
            }
            (
                Accumulator::Interval { months, days, microseconds, count },
                Accumulator::Interval { months: m, days: d, microseconds: us, count: c },
            ) => {
                *months += m;
                *days += d;
                *microseconds += us;
                *count += c;
            }
            (Accumulator::Extreme(_), Accumulator::Extreme(value)) => {
                if !value.is_null() {
                    self.accumulate(&value)?;
                }
            }
            (Accumulator::Bool(_), Accumulator::Bool(value)) => {
                if let Some(value) = value {
                    self.accumulate(&Value::Bool(value))?;
                }
            }
            (Accumulator::Bits(_), Accumulator::Bits(bits)) => {
                if let Some(bits) = bits {
                    self.accumulate(&Value::Int8(bits))?;
                }
            }
            (Accumulator::Moments(moments), Accumulator::Moments(other)) => moments.merge(&other)?,
            (Accumulator::Concatenation(concatenation), Accumulator::Concatenation(other)) => {
                concatenation.merge(other);
            }
            _ => return Err(SqlError::internal("states of different aggregates cannot be merged")),
        }
        match (&mut self.distinct, other.distinct) {
            (Some(seen), Some(more)) => more.into_iter().for_each(|value| add_distinct(seen, value)),
            (None, None) => {}
            _ => return Err(SqlError::internal("states of different aggregates cannot be merged")),
        }
        Ok(())
    }

    /// The aggregate's result. 22003 when a sum does not fit its type.
    pub fn finish(&self) -> Result<Value> {
        if let Some(seen) = &self.distinct {
            let mut all = AggregateState {
                accumulator: self.accumulator.clone(),
                distinct: None,
                function: self.function,
                argument: self.argument.clone(),
            };
            for value in seen {
                all.accumulate(value)?;
            }
            return all.finish();
        }
        let average = self.function == AggregateFunction::Avg;
        Ok(match &self.accumulator {
            Accumulator::Count(count) => {
                Value::Int8(i64::try_from(*count).map_err(|_| out_of_range("bigint"))?)
            }
            Accumulator::Integer { count: 0, .. }
            | Accumulator::Decimal { count: 0, .. }
            | Accumulator::Float { count: 0, .. }
            | Accumulator::Interval { count: 0, .. } => Value::Null,
            Accumulator::Integer { sum, count } => match self.argument {
                _ if average => {
                    Value::Numeric(Numeric::from(*sum).divide(&Numeric::from(i128::from(*count)))?)
                }
                Some(Type::Int8) => Value::Numeric(Numeric::from(*sum)),
                _ => Value::Int8(i64::try_from(*sum).map_err(|_| out_of_range("bigint"))?),
            },
            Accumulator::Decimal { small, scale, rest, count } => {
                let sum = rest.add(&Numeric::new(*small, *scale))?;
                Value::Numeric(if average { sum.divide(&Numeric::from(i128::from(*count)))? } else { sum })
            }
            Accumulator::Float { sum, count } => match self.argument {
                _ if average => Value::Float8(sum.to_f64()? / *count as f64),
                Some(Type::Float4) => Value::Float4(sum.to_f32()?),
                _ => Value::Float8(sum.to_f64()?),
            },
            Accumulator::Interval { months, days, microseconds, count } => {
                let error = |_| crate::interval::out_of_range();
                let sum = Interval {
                    months: i32::try_from(*months).map_err(error)?,
                    days: i32::try_from(*days).map_err(error)?,
                    microseconds: i64::try_from(*microseconds).map_err(error)?,
                };
                Value::Interval(if average { sum.divide(*count as f64)? } else { sum })
            }
            Accumulator::Extreme(value) => value.clone(),
            Accumulator::Bool(value) => value.map_or(Value::Null, Value::Bool),
            Accumulator::Bits(bits) => bits.map_or(Value::Null, |bits| match self.argument {
                Some(Type::Int2) => Value::Int2(bits as i16),
                Some(Type::Int4) => Value::Int4(bits as i32),
                _ => Value::Int8(bits),
            }),
            Accumulator::Moments(moments) => match self.function {
                AggregateFunction::Spread(spread) => moments.finish(spread)?,
                _ => return Err(SqlError::internal("moments of another aggregate")),
            },
            Accumulator::Concatenation(concatenation) => concatenation.finish()?,
        })
    }

    /// Whether it may take more bytes the more rows there are.
    fn may_grow(&self) -> bool {
        let grows = match &self.accumulator {
            Accumulator::Extreme(_) => match &self.argument {
                Some(Type::Numeric(modifiers)) => modifiers.is_none(),
                Some(ty) => ty.is_string() || *ty == Type::Bytea,
                None => false,
            },
            Accumulator::Moments(_) | Accumulator::Concatenation(_) => true,
            _ => false,
        };
        grows || self.distinct.is_some()
    }

    /// Bytes held on the heap, roughly.
    pub fn heap_size(&self) -> usize {
        let seen = self.distinct.iter().flatten().map(|value| value.heap_size() + 48).sum::<usize>();
        seen + match &self.accumulator {
            Accumulator::Float { .. } => 68 * 8,
            Accumulator::Extreme(value) => value.heap_size(),
            Accumulator::Moments(moments) => moments.heap_size(),
            Accumulator::Concatenation(concatenation) => concatenation.heap_size(),
            _ => 0,
        }
    }

    /// Takes in rows of an array in the Arrow form of the argument's type.
    pub fn update_array(&mut self, array: &ArrayRef, rows: impl Iterator<Item = usize>) -> Result<()> {
        let Some(ty) = self.argument.clone() else {
            self.update_count(rows.count() as u64);
            return Ok(());
        };
        let column = ArgumentColumn::new(array, &ty);
        for row in rows {
            column.feed(row, self)?;
        }
        Ok(())
    }

    /// Takes in an array in the Arrow form of the argument's type, each row into the state of its group. All states
    /// are of the same aggregate, which has an argument.
    pub fn update_grouped(states: &mut [AggregateState], groups: &[usize], array: &ArrayRef) -> Result<()> {
        let Some(ty) = states.first().and_then(|state| state.argument.clone()) else { return Ok(()) };
        let column = ArgumentColumn::new(array, &ty);
        for (row, group) in groups.iter().enumerate() {
            column.feed(row, &mut states[*group])?;
        }
        Ok(())
    }
}

/// Digits that tell equal values apart: scales of numerics and the sign of zero.
fn tie_breaker(value: &Value) -> i64 {
    match value {
        Value::Numeric(number) => i64::from(number.scale()),
        Value::Float8(value) => i64::from(value.is_sign_negative()),
        Value::Float4(value) => i64::from(value.is_sign_negative()),
        _ => 0,
    }
}

fn add_distinct(seen: &mut BTreeSet<Value>, value: Value) {
    match seen.get(&value) {
        Some(known) if tie_breaker(known) <= tie_breaker(&value) => {}
        _ => {
            seen.replace(value);
        }
    }
}

/// The representative of equal values in a DISTINCT aggregate.
fn canonical(value: &Value, ty: &Type) -> Value {
    match (value, ty) {
        (Value::Text(text), Type::Char(_)) => Value::text(text.trim_end_matches(' ')),
        _ => value.clone(),
    }
}

/// An argument's column, with its representation looked up once. Numbers of a numeric without a precision may be decimals.
enum ArgumentColumn<'a> {
    Int2(&'a arrow::array::Int16Array),
    Int4(&'a arrow::array::Int32Array),
    Int8(&'a arrow::array::Int64Array),
    Float4(&'a arrow::array::Float32Array),
    Float8(&'a arrow::array::Float64Array),
    Decimal(&'a arrow::array::Decimal128Array, u32),
    Other(&'a dyn Array, &'a Type),
}

impl<'a> ArgumentColumn<'a> {
    fn new(array: &'a ArrayRef, ty: &'a Type) -> Self {
        if let DataType::Decimal128(_, scale) = array.data_type() {
            return ArgumentColumn::Decimal(array.as_primitive::<Decimal128Type>(), *scale as u32);
        }
        match ty {
            Type::Int2 => ArgumentColumn::Int2(array.as_primitive::<Int16Type>()),
            Type::Int4 => ArgumentColumn::Int4(array.as_primitive::<Int32Type>()),
            Type::Int8 => ArgumentColumn::Int8(array.as_primitive::<Int64Type>()),
            Type::Float4 => ArgumentColumn::Float4(array.as_primitive::<Float32Type>()),
            Type::Float8 => ArgumentColumn::Float8(array.as_primitive::<Float64Type>()),
            ty => ArgumentColumn::Other(array.as_ref(), ty),
        }
    }

    fn feed(&self, row: usize, state: &mut AggregateState) -> Result<()> {
        let array: &dyn Array = match self {
            ArgumentColumn::Int2(array) => *array,
            ArgumentColumn::Int4(array) => *array,
            ArgumentColumn::Int8(array) => *array,
            ArgumentColumn::Float4(array) => *array,
            ArgumentColumn::Float8(array) => *array,
            ArgumentColumn::Decimal(array, _) => *array,
            ArgumentColumn::Other(array, _) => *array,
        };
        if array.is_null(row) {
            return Ok(());
        }
        if state.distinct.is_none() {
            match (&mut state.accumulator, self) {
                (Accumulator::Count(count), _) => {
                    *count += 1;
                    return Ok(());
                }
                (Accumulator::Integer { sum, count }, ArgumentColumn::Int2(array)) => {
                    *sum += i128::from(array.value(row));
                    *count += 1;
                    return Ok(());
                }
                (Accumulator::Integer { sum, count }, ArgumentColumn::Int4(array)) => {
                    *sum += i128::from(array.value(row));
                    *count += 1;
                    return Ok(());
                }
                (Accumulator::Integer { sum, count }, ArgumentColumn::Int8(array)) => {
                    *sum += i128::from(array.value(row));
                    *count += 1;
                    return Ok(());
                }
                (Accumulator::Float { sum, count }, ArgumentColumn::Float4(array)) => {
                    sum.add(f64::from(array.value(row)));
                    *count += 1;
                    return Ok(());
                }
                (Accumulator::Float { sum, count }, ArgumentColumn::Float8(array)) => {
                    sum.add(array.value(row));
                    *count += 1;
                    return Ok(());
                }
                (
                    Accumulator::Decimal { small, scale: own, count, .. },
                    ArgumentColumn::Decimal(array, scale),
                ) if own == scale && array.value(row) != crate::array::DECIMAL_NAN => {
                    if let Some(sum) = small.checked_add(array.value(row)) {
                        *small = sum;
                        *count += 1;
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        let value = match self {
            ArgumentColumn::Int2(array) => Value::Int2(array.value(row)),
            ArgumentColumn::Int4(array) => Value::Int4(array.value(row)),
            ArgumentColumn::Int8(array) => Value::Int8(array.value(row)),
            ArgumentColumn::Float4(array) => Value::Float4(array.value(row)),
            ArgumentColumn::Float8(array) => Value::Float8(array.value(row)),
            ArgumentColumn::Decimal(array, scale) => Value::Numeric(decimal_cell(array.value(row), *scale)),
            ArgumentColumn::Other(array, ty) => arrow_cell_to_value(*array, row, ty),
        };
        state.update(&value)
    }
}
