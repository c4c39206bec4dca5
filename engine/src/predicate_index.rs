//! The index over the predicates of the operations that share a scan (Crescando/RB paper, section 3.1; DESIGN,
//! decision 7).
//!
//! A conjunct that compares one column with constants becomes a [`Test`]: intervals of physical values. At each
//! segment it is translated once into intervals of codes; an empty translation lets the operation skip the segment
//! (zone map), the others are compared with the codes, 64 rows to a word. When many operations test the same column
//! for few values each, their values are put into one table from code to operations, and the column is probed once
//! for all of them.

use bigdecimal::{BigDecimal, RoundingMode};
use hashbrown::HashMap;

use crate::{
    bits::{Bits, and_where},
    column::{
        Codes, Domain, EncodedColumn, Physical, PlainColumn, PlainData, SegmentColumn, float_to_int, physical,
    },
    error::Result,
    expr::{CompareOp, EvalContext, Expr, can_fail},
    kernel,
    numeric::Numeric,
    schema::Column,
    types::Type,
    value::Value,
};

/// Bytes at or above the first and below the second.
type BytesInterval = (Vec<u8>, Option<Vec<u8>>);

/// A condition on one column. NULL does not meet it unless it says so.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    /// Closed intervals, ascending.
    Ints(Vec<(i64, i64)>),
    /// Closed intervals, ascending.
    Wides(Vec<(i128, i128)>),
    /// Ascending.
    Bytes(Vec<BytesInterval>),
    /// An expression over this column alone that cannot fail; evaluated on dictionaries.
    Expression(Expr),
    /// `IS NULL`
    Null,
    /// `IS NOT NULL`
    NotNull,
}

/// A test with its column.
#[derive(Clone, Debug)]
pub(crate) struct ColumnTest {
    pub(crate) column: usize,
    pub(crate) test: Test,
}

/// A predicate split into what the index understands and the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct SplitPredicate {
    /// All must hold. None of them can fail, so their order is free.
    pub(crate) tests: Vec<ColumnTest>,
    /// Evaluated afterwards, from the left.
    pub(crate) residual: Vec<Expr>,
}

/// Splits a predicate. Behind the first conjunct that may fail everything is left where it is, because conjuncts are
/// evaluated from the left.
pub(crate) fn split(predicate: &[Expr], columns: &[Column]) -> SplitPredicate {
    let mut flat = Vec::new();
    for conjunct in predicate {
        flatten(conjunct, &mut flat);
    }
    let mut split = SplitPredicate::default();
    let mut free = true;
    for conjunct in flat {
        free &= !can_fail(conjunct);
        match free.then(|| test_of(conjunct, columns)).flatten() {
            Some(test) => split.tests.push(test),
            None => split.residual.push(conjunct.clone()),
        }
    }
    split
}

fn flatten<'a>(conjunct: &'a Expr, flat: &mut Vec<&'a Expr>) {
    match conjunct {
        Expr::And(operands) if !can_fail(conjunct) => {
            operands.iter().for_each(|operand| flatten(operand, flat))
        }
        _ => flat.push(conjunct),
    }
}

fn column_index(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Column { index, .. } => Some(*index),
        _ => None,
    }
}

fn test_of(conjunct: &Expr, columns: &[Column]) -> Option<ColumnTest> {
    interval_test(conjunct, columns).or_else(|| {
        let (column, expr) = kernel::over_single_column(conjunct)?;
        (physical(&columns.get(column)?.ty) == Physical::Bytes)
            .then_some(ColumnTest { column, test: Test::Expression(expr) })
    })
}

fn interval_test(conjunct: &Expr, columns: &[Column]) -> Option<ColumnTest> {
    let boolean = |expr: &Expr, truth: bool| {
        let column = column_index(expr)?;
        (columns.get(column)?.ty == Type::Bool).then(|| {
            let value = i64::from(truth);
            ColumnTest { column, test: Test::Ints(vec![(value, value)]) }
        })
    };
    match conjunct {
        Expr::Column { .. } => boolean(conjunct, true),
        Expr::Not(operand) => boolean(operand, false),
        Expr::IsTruth { expr, truth: Some(truth), negated: false } => boolean(expr, *truth),
        Expr::IsNull { expr, negated } => {
            let column = column_index(expr)?;
            Some(ColumnTest { column, test: if *negated { Test::NotNull } else { Test::Null } })
        }
        Expr::Compare { op, left, right } => {
            let (column, op, value) = match (left.as_ref(), right.as_ref()) {
                (Expr::Column { index, .. }, Expr::Literal { value, .. }) => (*index, *op, value),
                (Expr::Literal { value, .. }, Expr::Column { index, .. }) => (*index, op.swapped(), value),
                _ => return None,
            };
            Some(ColumnTest { column, test: comparison(&columns.get(column)?.ty, op, value)? })
        }
        Expr::InList { expr, list, negated: false } => {
            let column = column_index(expr)?;
            let ty = &columns.get(column)?.ty;
            let mut union = empty(ty);
            for member in list {
                let Expr::Literal { value, .. } = member else { return None };
                union = unite(union, comparison(ty, CompareOp::Eq, value)?)?;
            }
            Some(ColumnTest { column, test: union })
        }
        Expr::Or(operands) => {
            let mut operands = operands.iter();
            let mut union = interval_test(operands.next()?, columns)?;
            for operand in operands {
                let other = interval_test(operand, columns)?;
                if other.column != union.column {
                    return None;
                }
                union.test = unite(union.test, other.test)?;
            }
            Some(union)
        }
        Expr::Like { expr, pattern, escape, case_insensitive: false, negated: false } => {
            let column = column_index(expr)?;
            if !matches!(columns.get(column)?.ty, Type::Text | Type::Varchar(_)) {
                return None;
            }
            let Expr::Literal { value: Value::Text(pattern), .. } = pattern.as_ref() else { return None };
            let prefix = pattern.strip_suffix('%')?;
            let plain = |c: char| c != '%' && c != '_' && Some(c) != *escape;
            prefix.chars().all(plain).then(|| ColumnTest {
                column,
                test: Test::Bytes(vec![(prefix.as_bytes().to_vec(), successor(prefix.as_bytes()))]),
            })
        }
        _ => None,
    }
}

/// The least byte string above every string with this prefix.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut above = prefix[..=keep].to_vec();
    above[keep] += 1;
    Some(above)
}

fn empty(ty: &Type) -> Test {
    match physical(ty) {
        Physical::Int => Test::Ints(Vec::new()),
        Physical::Wide => Test::Wides(Vec::new()),
        Physical::Bytes => Test::Bytes(Vec::new()),
    }
}

fn unite(a: Test, b: Test) -> Option<Test> {
    fn merge<K: Ord + Copy>(mut a: Vec<(K, K)>, b: Vec<(K, K)>) -> Vec<(K, K)> {
        a.extend(b);
        a.sort_unstable();
        let mut merged: Vec<(K, K)> = Vec::with_capacity(a.len());
        for (low, high) in a {
            match merged.last_mut() {
                Some(last) if low <= last.1 => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        merged
    }
    match (a, b) {
        (Test::Ints(a), Test::Ints(b)) => Some(Test::Ints(merge(a, b))),
        (Test::Wides(a), Test::Wides(b)) => Some(Test::Wides(merge(a, b))),
        (Test::Bytes(mut a), Test::Bytes(b)) => {
            a.extend(b);
            a.sort_unstable();
            let mut merged: Vec<BytesInterval> = Vec::with_capacity(a.len());
            for (low, high) in a {
                match merged.last_mut() {
                    Some(last) if last.1.as_ref().is_none_or(|end| low <= *end) => {
                        last.1 = match (last.1.take(), high) {
                            (Some(x), Some(y)) => Some(x.max(y)),
                            _ => None,
                        };
                    }
                    _ => merged.push((low, high)),
                }
            }
            Some(Test::Bytes(merged))
        }
        _ => None,
    }
}

/// The values that `column op constant` allows, or `None` when order or equality of the physical values do not tell.
fn comparison(ty: &Type, op: CompareOp, constant: &Value) -> Option<Test> {
    if constant.is_null() {
        return Some(empty(ty));
    }
    match physical(ty) {
        Physical::Int => {
            let intervals = number_intervals(op, equal_zone(ty, constant)?);
            let clamp = |(low, high): (i128, i128)| {
                (low <= i128::from(i64::MAX) && high >= i128::from(i64::MIN) && low <= high)
                    .then(|| (low.max(i128::from(i64::MIN)) as i64, high.min(i128::from(i64::MAX)) as i64))
            };
            Some(Test::Ints(intervals.into_iter().filter_map(clamp).collect()))
        }
        Physical::Wide => {
            let mut intervals = number_intervals(op, equal_zone(ty, constant)?);
            intervals.retain(|(low, high)| low <= high);
            Some(Test::Wides(intervals))
        }
        Physical::Bytes => bytes_comparison(ty, op, constant),
    }
}

/// The physical numbers that equal the constant; empty, but in the right place, when none does.
fn equal_zone(ty: &Type, constant: &Value) -> Option<(i128, i128)> {
    let point = |value: i64| (i128::from(value), i128::from(value));
    Some(match (ty, constant) {
        (Type::Bool, Value::Bool(v)) => point(i64::from(*v)),
        (Type::Int2, Value::Int2(v)) => point(i64::from(*v)),
        (Type::Int4, Value::Int4(v)) | (Type::Date, Value::Date(v)) => point(i64::from(*v)),
        (Type::Int8, Value::Int8(v))
        | (Type::Time, Value::Time(v))
        | (Type::Timestamp, Value::Timestamp(v))
        | (Type::TimestampTz, Value::TimestampTz(v)) => point(*v),
        (Type::Float4, Value::Float4(v)) => float_zone(f64::from(*v)),
        (Type::Float8, Value::Float8(v)) => float_zone(*v),
        (Type::Numeric(Some((_, scale))), Value::Numeric(Numeric::Finite(v))) => {
            let below = v.with_scale_round(i64::from(*scale), RoundingMode::Floor);
            let exact = below == *v;
            let below = unscaled(&below, i64::from(*scale))?;
            if exact { (below, below) } else { (below + 1, below) }
        }
        _ => return None,
    })
}

fn unscaled(value: &BigDecimal, scale: i64) -> Option<i128> {
    let (digits, _) = value.with_scale(scale).into_bigint_and_exponent();
    // Far from the ends, so that neighbours can be named.
    i128::try_from(digits).ok().filter(|v| v.unsigned_abs() < 1 << 126)
}

/// `-0` and `0` are equal but stored apart.
fn float_zone(value: f64) -> (i128, i128) {
    if value == 0.0 {
        (i128::from(float_to_int(-0.0)), i128::from(float_to_int(0.0)))
    } else {
        let point = i128::from(float_to_int(value));
        (point, point)
    }
}

fn number_intervals(op: CompareOp, (low, high): (i128, i128)) -> Vec<(i128, i128)> {
    match op {
        CompareOp::Eq => vec![(low, high)],
        CompareOp::Ne => vec![(i128::MIN, low - 1), (high + 1, i128::MAX)],
        CompareOp::Lt => vec![(i128::MIN, low - 1)],
        CompareOp::Le => vec![(i128::MIN, high)],
        CompareOp::Gt => vec![(high + 1, i128::MAX)],
        CompareOp::Ge => vec![(low, i128::MAX)],
    }
}

fn bytes_comparison(ty: &Type, op: CompareOp, constant: &Value) -> Option<Test> {
    let bytes = match (ty, constant) {
        (Type::Text | Type::Varchar(_), Value::Text(text)) => text.as_bytes().to_vec(),
        (Type::Char(length), Value::Text(text)) => {
            // Stored padded; padded strings are not in the order of char(n) where control characters occur.
            if !matches!(op, CompareOp::Eq | CompareOp::Ne) {
                return None;
            }
            let trimmed = text.trim_end_matches(' ');
            let missing = (*length as usize).saturating_sub(trimmed.chars().count());
            let mut padded = trimmed.as_bytes().to_vec();
            padded.resize(padded.len() + missing, b' ');
            padded
        }
        (Type::Bytea, Value::Bytea(bytes)) => bytes.to_vec(),
        (Type::Uuid, Value::Uuid(bytes)) => bytes.to_vec(),
        _ => return None,
    };
    let mut after = bytes.clone();
    after.push(0);
    Some(Test::Bytes(match op {
        CompareOp::Eq => vec![(bytes, Some(after))],
        CompareOp::Ne => vec![(Vec::new(), Some(bytes)), (after, None)],
        CompareOp::Lt => vec![(Vec::new(), Some(bytes))],
        CompareOp::Le => vec![(Vec::new(), Some(after))],
        CompareOp::Gt => vec![(after, None)],
        CompareOp::Ge => vec![(bytes, None)],
    }))
}

/// A test translated to the codes of one encoded column.
#[derive(Debug)]
pub(crate) struct CodeTest {
    codes: CodeSet,
    accept_null: bool,
}

#[derive(Debug)]
enum CodeSet {
    None,
    All,
    /// Closed, ascending, disjoint.
    Ranges(Vec<(u64, u64)>),
    Set(Bits),
}

/// Codes up to which a set of codes is held as a bitmap.
const SET_CODES: u64 = 1 << 16;

impl CodeTest {
    /// Translates a test. Only a [`Test::Expression`] can be wrong, and only if it is not what it promised.
    pub(crate) fn new(
        test: &Test,
        column: &EncodedColumn,
        ty: &Type,
        context: &EvalContext,
    ) -> Result<CodeTest> {
        let accept_null = match test {
            Test::Null => true,
            Test::Expression(expr) if column.all_null || column.nulls.is_some() => {
                let null = arrow::array::new_null_array(&ty.arrow(), 1);
                !kernel::filter_array(expr, &null, context)?.is_empty()
            }
            _ => false,
        };
        if column.all_null {
            return Ok(CodeTest { codes: CodeSet::None, accept_null });
        }
        let codes = match test {
            Test::Null => CodeSet::None,
            Test::NotNull => CodeSet::All,
            Test::Ints(intervals) => match &column.domain {
                Domain::Ints(values) => dictionary_ranges(intervals, values),
                Domain::Linear { base, scale } => linear_ranges(intervals, *base, *scale, column.max_code),
                _ => Vec::new(),
            }
            .into(),
            Test::Wides(intervals) => match &column.domain {
                Domain::Wides(values) => dictionary_ranges(intervals, values),
                _ => Vec::new(),
            }
            .into(),
            Test::Bytes(intervals) => bytes_ranges(intervals, column).into(),
            Test::Expression(expr) => match column.dictionary(ty) {
                Some(dictionary) => {
                    let mut set = Bits::zeros(dictionary.len());
                    for code in kernel::filter_array(expr, &dictionary, context)? {
                        set.set(code as usize);
                    }
                    match set.count() {
                        0 => CodeSet::None,
                        all if all == dictionary.len() => CodeSet::All,
                        _ => CodeSet::Set(set),
                    }
                }
                None => CodeSet::All,
            },
        };
        Ok(CodeTest { codes: codes.simplified(column.max_code), accept_null })
    }

    /// Whether no row of the column can meet it.
    pub(crate) fn is_hopeless(&self, column: &EncodedColumn) -> bool {
        matches!(self.codes, CodeSet::None)
            && !(self.accept_null && (column.all_null || column.nulls.is_some()))
    }

    /// Whether every row of the column meets it.
    pub(crate) fn is_certain(&self, column: &EncodedColumn) -> bool {
        matches!(self.codes, CodeSet::All) && !column.all_null && (self.accept_null || column.nulls.is_none())
    }

    /// The share of the codes that meets it: a guess of its selectivity.
    pub(crate) fn share(&self, column: &EncodedColumn) -> f64 {
        let codes = column.max_code as f64 + 1.0;
        match &self.codes {
            CodeSet::None => 0.0,
            CodeSet::All => 1.0,
            CodeSet::Ranges(ranges) => {
                ranges.iter().map(|(low, high)| (high - low) as f64 + 1.0).sum::<f64>() / codes
            }
            CodeSet::Set(set) => set.count() as f64 / codes,
        }
    }

    /// The codes that meet it, if they are few and no NULL does.
    fn few_codes(&self) -> Option<Vec<u64>> {
        const FEW: u64 = 16;
        match &self.codes {
            CodeSet::Ranges(ranges) if !self.accept_null => {
                let count: u64 = ranges.iter().map(|(low, high)| (high - low).saturating_add(1)).sum();
                (count <= FEW).then(|| ranges.iter().flat_map(|(low, high)| *low..=*high).collect())
            }
            CodeSet::Set(set) if !self.accept_null && set.count() as u64 <= FEW => {
                Some(set.iter().map(u64::from).collect())
            }
            _ => None,
        }
    }

    /// Whether one row meets it.
    pub(crate) fn holds(&self, column: &EncodedColumn, row: usize) -> bool {
        if column.is_null(row) {
            return self.accept_null;
        }
        let code = column.codes.get(row);
        match &self.codes {
            CodeSet::None => false,
            CodeSet::All => true,
            CodeSet::Ranges(ranges) => ranges.iter().any(|(low, high)| *low <= code && code <= *high),
            CodeSet::Set(set) => set.get(code as usize),
        }
    }

    /// Clears the rows of `mask` (over the encoded rows) that do not meet it.
    pub(crate) fn retain(&self, column: &EncodedColumn, mask: &mut Bits) {
        if self.is_certain(column) {
            return;
        }
        if self.accept_null || column.all_null {
            let kept: Vec<u32> = mask.iter().filter(|row| !self.holds(column, *row as usize)).collect();
            kept.into_iter().for_each(|row| mask.clear(row as usize));
            return;
        }
        match &self.codes {
            CodeSet::None => mask.words_mut().fill(0),
            CodeSet::All => {}
            CodeSet::Ranges(ranges) => match ranges.as_slice() {
                [(low, high)] => retain_range(&column.codes, *low, *high, mask),
                _ => {
                    let any = |code: u64| ranges.iter().any(|(low, high)| *low <= code && code <= *high);
                    retain_where(&column.codes, any, mask);
                }
            },
            CodeSet::Set(set) => retain_where(&column.codes, |code| set.get(code as usize), mask),
        }
        if let Some(nulls) = &column.nulls {
            for (word, null) in mask.words_mut().iter_mut().zip(nulls.words()) {
                *word &= !null;
            }
        }
    }
}

impl From<Vec<(u64, u64)>> for CodeSet {
    fn from(ranges: Vec<(u64, u64)>) -> CodeSet {
        if ranges.is_empty() { CodeSet::None } else { CodeSet::Ranges(ranges) }
    }
}

impl CodeSet {
    fn simplified(self, max_code: u64) -> CodeSet {
        match self {
            CodeSet::Ranges(ranges) if ranges == [(0, max_code)] => CodeSet::All,
            CodeSet::Ranges(ranges) if ranges.len() > 2 && max_code < SET_CODES => {
                let mut set = Bits::zeros(max_code as usize + 1);
                for code in ranges.iter().flat_map(|(low, high)| *low..=*high) {
                    set.set(code as usize);
                }
                CodeSet::Set(set)
            }
            other => other,
        }
    }
}

fn retain_range(codes: &Codes, low: u64, high: u64, mask: &mut Bits) {
    macro_rules! narrow {
        ($codes:expr, $ty:ty) => {{
            // One unsigned comparison tests both ends.
            let (low, span) = (low as $ty, (high - low) as $ty);
            and_where(mask.words_mut(), $codes, |code: $ty| code.wrapping_sub(low) <= span);
        }};
    }
    match codes {
        Codes::Constant => {
            if low > 0 {
                mask.words_mut().fill(0);
            }
        }
        Codes::Bit(bits) => retain_bits(bits, low == 0, high >= 1, mask),
        Codes::U8(codes) => narrow!(codes, u8),
        Codes::U16(codes) => narrow!(codes, u16),
        Codes::U32(codes) => narrow!(codes, u32),
        Codes::U64(codes) => narrow!(codes, u64),
    }
}

fn retain_bits(bits: &Bits, zeros: bool, ones: bool, mask: &mut Bits) {
    for (word, codes) in mask.words_mut().iter_mut().zip(bits.words()) {
        *word &= (if ones { *codes } else { 0 }) | (if zeros { !*codes } else { 0 });
    }
}

fn retain_where(codes: &Codes, test: impl Fn(u64) -> bool, mask: &mut Bits) {
    match codes {
        Codes::Constant => {
            if !test(0) {
                mask.words_mut().fill(0);
            }
        }
        Codes::Bit(bits) => retain_bits(bits, test(0), test(1), mask),
        Codes::U8(codes) => and_where(mask.words_mut(), codes, |code| test(u64::from(code))),
        Codes::U16(codes) => and_where(mask.words_mut(), codes, |code| test(u64::from(code))),
        Codes::U32(codes) => and_where(mask.words_mut(), codes, |code| test(u64::from(code))),
        Codes::U64(codes) => and_where(mask.words_mut(), codes, test),
    }
}

fn linear_ranges(intervals: &[(i64, i64)], base: i64, scale: u64, max_code: u64) -> Vec<(u64, u64)> {
    let (base, scale) = (i128::from(base), i128::from(scale));
    intervals
        .iter()
        .filter_map(|(low, high)| {
            let low = (i128::from(*low) - base).max(0);
            let high = i128::from(*high) - base;
            if high < 0 {
                return None;
            }
            let first = ((low + scale - 1) / scale) as u64;
            let last = ((high / scale).min(i128::from(max_code))) as u64;
            (first <= last).then_some((first, last))
        })
        .collect()
}

fn dictionary_ranges<K: Ord>(intervals: &[(K, K)], dictionary: &[K]) -> Vec<(u64, u64)> {
    intervals
        .iter()
        .filter_map(|(low, high)| {
            let first = dictionary.partition_point(|value| value < low);
            let after = dictionary.partition_point(|value| value <= high);
            (first < after).then(|| (first as u64, after as u64 - 1))
        })
        .collect()
}

fn bytes_ranges(intervals: &[BytesInterval], column: &EncodedColumn) -> Vec<(u64, u64)> {
    let entries = column.dictionary_len().unwrap_or(0);
    let below = |bound: &[u8]| {
        let (mut low, mut high) = (0, entries);
        while low < high {
            let middle = (low + high) / 2;
            if column.bytes_of(middle as u64) < bound { low = middle + 1 } else { high = middle }
        }
        low
    };
    intervals
        .iter()
        .filter_map(|(low, high)| {
            let first = below(low);
            let after = high.as_ref().map_or(entries, |high| below(high));
            (first < after).then(|| (first as u64, after as u64 - 1))
        })
        .collect()
}

fn plain_holds(test: &Test, column: &PlainColumn, row: usize) -> bool {
    if column.is_null(row) {
        return matches!(test, Test::Null);
    }
    match test {
        Test::Ints(intervals) => {
            let value = column.int(row);
            intervals.iter().any(|(low, high)| *low <= value && value <= *high)
        }
        Test::Wides(intervals) => {
            let value = column.wide(row);
            intervals.iter().any(|(low, high)| *low <= value && value <= *high)
        }
        Test::Bytes(intervals) => bytes_hold(intervals, column.bytes(row)),
        Test::NotNull => true,
        Test::Null | Test::Expression(_) => false,
    }
}

fn bytes_hold(intervals: &[BytesInterval], value: &[u8]) -> bool {
    intervals.iter().any(|(low, high)| {
        low.as_slice() <= value && high.as_ref().is_none_or(|high| value < high.as_slice())
    })
}

/// Clears the rows of `mask` (over the plain rows of the column) that do not meet the test.
fn retain_plain(
    test: &Test,
    column: &SegmentColumn,
    ty: &Type,
    context: &EvalContext,
    mask: &mut Bits,
) -> Result<()> {
    let plain = &column.delta;
    match (test, plain.data()) {
        (Test::Expression(expr), _) => {
            let rows: Vec<u32> = mask.iter().collect();
            let addresses: Vec<u32> = rows.iter().map(|row| row + column.base_rows as u32).collect();
            let array = column.gather(ty, &addresses);
            mask.words_mut().fill(0);
            for kept in kernel::filter_array(expr, &array, context)? {
                mask.set(rows[kept as usize] as usize);
            }
        }
        (Test::Ints(intervals), PlainData::Int(values)) => {
            match intervals.as_slice() {
                [] => mask.words_mut().fill(0),
                [(low, high)] => and_where(mask.words_mut(), values, |value| *low <= value && value <= *high),
                _ => and_where(mask.words_mut(), values, |value| {
                    intervals.iter().any(|(low, high)| *low <= value && value <= *high)
                }),
            }
            if let Some(nulls) = plain.nulls() {
                for (word, null) in mask.words_mut().iter_mut().zip(nulls.words()) {
                    *word &= !null;
                }
            }
        }
        _ => {
            let failed: Vec<u32> =
                mask.iter().filter(|row| !plain_holds(test, plain, *row as usize)).collect();
            failed.into_iter().for_each(|row| mask.clear(row as usize));
        }
    }
    Ok(())
}

/// Whether one row of a segment meets the tests.
pub(crate) fn row_holds(
    tests: &[ColumnTest],
    columns: &[SegmentColumn],
    types: &[Column],
    context: &EvalContext,
    row: usize,
) -> Result<bool> {
    for ColumnTest { column, test } in tests {
        let ty = &types[*column].ty;
        let column = &columns[*column];
        let holds = match test {
            Test::Expression(expr) => {
                !kernel::filter_array(expr, &column.gather(ty, &[row as u32]), context)?.is_empty()
            }
            Test::Null => column.is_null(row),
            _ if column.is_null(row) => false,
            Test::NotNull => true,
            Test::Ints(intervals) => {
                let value = column.int(row);
                intervals.iter().any(|(low, high)| *low <= value && value <= *high)
            }
            Test::Wides(intervals) => {
                let value = column.wide(row);
                intervals.iter().any(|(low, high)| *low <= value && value <= *high)
            }
            Test::Bytes(intervals) => bytes_hold(intervals, column.bytes(row)),
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One operation's tests at a segment.
pub(crate) struct Probe<'a> {
    pub(crate) tests: &'a [ColumnTest],
    pub(crate) context: &'a EvalContext,
}

/// Riders with a selective test on one column from which probing it once for all of them pays: a probe costs about
/// as much as this many vectorised comparisons.
const SHARED_FROM: usize = 6;

/// For each operation, the rows of the segment that meet all of its tests.
pub(crate) fn candidates(
    probes: &[Probe],
    columns: &[SegmentColumn],
    types: &[Column],
    rows: usize,
) -> Vec<Result<Bits>> {
    let base_rows = columns.first().map_or(rows, |column| column.base_rows);
    let mut results: Vec<Result<Bits>> = Vec::with_capacity(probes.len());
    // Translated tests of each probe, most selective first; `None` when the encoded part holds nothing for it.
    let mut translated: Vec<Option<Vec<(usize, CodeTest)>>> = Vec::with_capacity(probes.len());
    for probe in probes {
        match translate(probe, columns, types, base_rows) {
            Ok(tests) => {
                translated.push(tests);
                results.push(Ok(Bits::default()));
            }
            Err(error) => {
                translated.push(None);
                results.push(Err(error));
            }
        }
    }
    let mut shared: HashMap<usize, Vec<(usize, Vec<u64>)>> = HashMap::new();
    for (index, tests) in translated.iter().enumerate() {
        if let Some((column, test)) = tests.as_ref().and_then(|tests| tests.first())
            && let Some(codes) = test.few_codes()
        {
            shared.entry(*column).or_default().push((index, codes));
        }
    }
    let mut found: Vec<Option<Vec<u32>>> = vec![None; probes.len()];
    for (column, riders) in shared {
        if riders.len() >= SHARED_FROM
            && let Some(encoded) = &columns[column].base
        {
            probe_shared(encoded, base_rows, &riders, &mut found);
        }
    }
    for (index, probe) in probes.iter().enumerate() {
        if results[index].is_err() {
            continue;
        }
        let mut mask = match (&translated[index], found[index].take()) {
            (None, _) => Bits::zeros(base_rows),
            (Some(tests), Some(rows)) => {
                let mut mask = Bits::zeros(base_rows);
                for row in rows {
                    let holds = |(column, test): &(usize, CodeTest)| {
                        columns[*column]
                            .base
                            .as_ref()
                            .is_some_and(|encoded| test.holds(encoded, row as usize))
                    };
                    if tests[1..].iter().all(holds) {
                        mask.set(row as usize);
                    }
                }
                mask
            }
            (Some(tests), None) => {
                let mut mask = Bits::ones(base_rows);
                for (column, test) in tests {
                    if let Some(encoded) = &columns[*column].base {
                        test.retain(encoded, &mut mask);
                    }
                }
                mask
            }
        };
        results[index] = plain_candidates(probe, columns, types, rows - base_rows).map(|delta| {
            mask.resize(rows);
            delta.iter().for_each(|row| mask.set(base_rows + row as usize));
            mask
        });
    }
    results
}

fn translate(
    probe: &Probe,
    columns: &[SegmentColumn],
    types: &[Column],
    base_rows: usize,
) -> Result<Option<Vec<(usize, CodeTest)>>> {
    if base_rows == 0 {
        return Ok(None);
    }
    let mut tests = Vec::with_capacity(probe.tests.len());
    for ColumnTest { column, test } in probe.tests {
        let Some(encoded) = &columns[*column].base else { continue };
        let code_test = CodeTest::new(test, encoded, &types[*column].ty, probe.context)?;
        if code_test.is_hopeless(encoded) {
            return Ok(None);
        }
        if !code_test.is_certain(encoded) {
            let share = code_test.share(encoded);
            tests.push((share, *column, code_test));
        }
    }
    tests.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(Some(tests.into_iter().map(|(_, column, test)| (column, test)).collect()))
}

fn plain_candidates(probe: &Probe, columns: &[SegmentColumn], types: &[Column], rows: usize) -> Result<Bits> {
    let mut mask = Bits::ones(rows);
    if rows > 0 {
        for ColumnTest { column, test } in probe.tests {
            retain_plain(test, &columns[*column], &types[*column].ty, probe.context, &mut mask)?;
        }
    }
    Ok(mask)
}

/// Joins the column with the operations' codes: one pass over the column finds the rows of all of them.
fn probe_shared(
    column: &EncodedColumn,
    rows: usize,
    riders: &[(usize, Vec<u64>)],
    found: &mut [Option<Vec<u32>>],
) {
    // Lists are numbered from 1; 0 means that nobody asks for the code.
    let mut lists: Vec<(Vec<usize>, Vec<u32>)> = vec![(Vec::new(), Vec::new())];
    let mut list_of: HashMap<u64, u32> = HashMap::new();
    for (rider, codes) in riders {
        found[*rider] = Some(Vec::new());
        for code in codes {
            let list = *list_of.entry(*code).or_insert_with(|| {
                lists.push((Vec::new(), Vec::new()));
                (lists.len() - 1) as u32
            });
            lists[list as usize].0.push(*rider);
        }
    }
    let mut hit = |list: u32, row: usize| {
        if list != 0 && !column.is_null(row) {
            lists[list as usize].1.push(row as u32);
        }
    };
    let mut dense = Vec::new();
    if column.max_code < SET_CODES {
        dense = vec![0u32; column.max_code as usize + 1];
        for (code, list) in &list_of {
            dense[*code as usize] = *list;
        }
    }
    match &column.codes {
        Codes::U8(codes) => (0..rows).for_each(|row| hit(dense[usize::from(codes[row])], row)),
        Codes::U16(codes) => (0..rows).for_each(|row| hit(dense[usize::from(codes[row])], row)),
        codes if !dense.is_empty() => (0..rows).for_each(|row| hit(dense[codes.get(row) as usize], row)),
        codes => (0..rows).for_each(|row| hit(list_of.get(&codes.get(row)).copied().unwrap_or(0), row)),
    }
    for (riders, rows) in lists {
        for rider in riders {
            if let Some(found) = &mut found[rider] {
                found.extend_from_slice(&rows);
            }
        }
    }
}
