//! Tests as tests of codes: what a segment's index works with.

use std::ops::Range;

use super::{BytesInterval, Test, plain::cell_holds};
use crate::{
    batch_size::in_short_parts,
    bits::{Bits, and_where, for_bits},
    column::{Codes, Domain, EncodedColumn, RowsByCode},
    error::Result,
    expr::EvalContext,
    kernel, simd,
    simd::Code,
    types::Type,
};

/// A test translated to the codes of one encoded column.
#[derive(Debug, Default)]
pub(crate) struct CodeTest {
    codes: CodeSet,
    accept_null: bool,
}

#[derive(Debug, Default)]
enum CodeSet {
    #[default]
    None,
    All,
    /// Both ends included.
    Range(u64, u64),
    /// Closed, ascending, disjoint.
    Ranges(Vec<(u64, u64)>),
    Set(Bits),
}

/// Codes up to which a set of codes is held as a bitmap.
const SET_CODES: u64 = 1 << 16;

/// Calls a macro with the vector of fixed-width codes.
macro_rules! with_codes {
    ($codes:expr, $vector:ident => $body:expr, constant => $constant:expr, $bits:ident => $bit:expr) => {
        match $codes {
            Codes::Constant => $constant,
            Codes::Bit($bits) => $bit,
            Codes::U8($vector) => $body,
            Codes::U16($vector) => $body,
            Codes::U32($vector) => $body,
            Codes::U64($vector) => $body,
        }
    };
}

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
        let mut codes = match test {
            Test::Null => CodeSet::None,
            Test::NotNull => CodeSet::All,
            Test::Ints(intervals) => match &*column.domain {
                Domain::Ints(values) => int_ranges(intervals, values),
                Domain::Linear { base, scale } => linear_ranges(intervals, *base, *scale, column.sorted - 1),
                _ => CodeSet::None,
            },
            Test::Wides(intervals) => match &*column.domain {
                Domain::Wides(values) => dictionary_ranges(intervals, values),
                _ => CodeSet::None,
            },
            Test::Bytes(intervals) => bytes_ranges(intervals, column),
            Test::Expression(expr) => match column.dictionary_len() {
                Some(entries) => {
                    let mut set = Bits::zeros(entries);
                    in_short_parts(0..entries, &mut |codes| {
                        let values = column.entries(ty, codes.clone())?;
                        for place in kernel::filter_array(expr, &values, context)? {
                            set.set(codes.start + place as usize);
                        }
                        Ok(())
                    })?;
                    match set.count() {
                        0 => CodeSet::None,
                        all if all == entries => CodeSet::All,
                        _ => CodeSet::Set(set),
                    }
                }
                None => CodeSet::All,
            },
        };
        if !matches!(test, Test::Null | Test::NotNull | Test::Expression(_)) {
            for place in (0..column.extra.len()).filter(|place| cell_holds(test, column.extra.cell(*place))) {
                codes.push(column.sorted + place as u64, column.sorted + place as u64);
            }
        }
        codes.simplify(column.max_code);
        Ok(CodeTest { codes, accept_null })
    }

    /// The test for whole numbers from `low` to `high`, if it says everything and no value is beyond the domain.
    pub(super) fn of_interval(low: i64, high: i64, column: &EncodedColumn) -> Option<CodeTest> {
        if column.all_null || column.extra.len() > 0 {
            return None;
        }
        let mut codes = match &*column.domain {
            Domain::Linear { base, scale } => linear_ranges(&[(low, high)], *base, *scale, column.sorted - 1),
            Domain::Ints(values) => int_ranges(&[(low, high)], values),
            _ => return None,
        };
        codes.simplify(column.max_code);
        Some(CodeTest { codes, accept_null: false })
    }

    /// The test for one byte string, if its code can be told at once and no value is beyond the domain.
    pub(super) fn of_bytes(value: &[u8], hash: u64, column: &EncodedColumn) -> Option<CodeTest> {
        if column.all_null || column.extra.len() > 0 {
            return None;
        }
        let code = column.code_of_bytes(value, hash)?;
        let mut codes = code.map_or(CodeSet::None, |code| CodeSet::Range(code, code));
        codes.simplify(column.max_code);
        Some(CodeTest { codes, accept_null: false })
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

    /// About how many of the column's rows meet it.
    pub(crate) fn estimate(&self, column: &EncodedColumn, rows: usize) -> usize {
        if self.accept_null {
            return rows;
        }
        match &self.codes {
            CodeSet::None => 0,
            CodeSet::All => rows,
            CodeSet::Range(low, high) => column.frequency.estimate(*low, *high),
            CodeSet::Ranges(ranges) => {
                ranges.iter().map(|(low, high)| column.frequency.estimate(*low, *high)).sum()
            }
            CodeSet::Set(set) => {
                (rows as f64 * set.count() as f64 / (column.max_code as f64 + 1.0)).ceil() as usize
            }
        }
    }

    /// Calls `f` with the intervals of codes that meet it, if they are few and no NULL does; returns whether.
    pub(super) fn for_few_intervals(&self, mut f: impl FnMut(u64, u64)) -> bool {
        const FEW: usize = 16;
        match &self.codes {
            _ if self.accept_null => false,
            CodeSet::Range(low, high) => {
                f(*low, *high);
                true
            }
            CodeSet::Ranges(ranges) if ranges.len() <= FEW => {
                ranges.iter().for_each(|(low, high)| f(*low, *high));
                true
            }
            CodeSet::Set(set) if set.count() <= FEW => {
                set.iter().for_each(|code| f(u64::from(code), u64::from(code)));
                true
            }
            _ => false,
        }
    }

    /// The one interval of codes that meet it, if no NULL does.
    #[inline]
    pub(super) fn interval(&self) -> Option<(u64, u64)> {
        match &self.codes {
            CodeSet::Range(low, high) if !self.accept_null => Some((*low, *high)),
            _ => None,
        }
    }

    /// How many of the rows that are held by code meet it, if that can be told at once; and where they are, if that had
    /// to be found out.
    pub(super) fn count(
        &self,
        column: &EncodedColumn,
        by_code: &RowsByCode,
    ) -> Option<(usize, Option<Range<usize>>)> {
        if let Some((low, high)) = self.interval() {
            return Some(match by_code.few_places(&column.codes, low, high) {
                Ok(places) => (places.len(), Some(places)),
                Err(about) => (about, None),
            });
        }
        let mut rows = 0;
        let told = self.for_few_intervals(|low, high| {
            rows += by_code
                .few_places(&column.codes, low, high)
                .map_or_else(|about| about, |places| places.len());
        });
        told.then_some((rows, None))
    }

    /// Adds to `found` those of the column's first `rows` rows that meet it, ascending: those that are held by code
    /// are read off. It is a test of few intervals; of one, `places` may say where the first of these rows are.
    pub(super) fn look_up(
        &self,
        column: &EncodedColumn,
        mut places: Option<Range<usize>>,
        rows: usize,
        words: &mut Vec<u64>,
        found: &mut Vec<u32>,
    ) {
        let mut covered = 0;
        for by_code in column.by_code.parts() {
            let (mut values, first) = (0, found.len());
            self.for_few_intervals(|low, high| {
                values += (high - low).saturating_add(1);
                let places = places.take().unwrap_or_else(|| by_code.places(&column.codes, low, high));
                by_code.copy_rows(places, found);
            });
            if values > 1 {
                found[first..].sort_unstable();
            }
            covered = by_code.covered();
        }
        if covered < rows {
            self.mask(column, covered, rows, words);
            for_bits(words, |row| found.push(covered as u32 + row));
        }
    }

    /// Whether a code that is not a NULL's meets it.
    fn has(&self, code: u64) -> bool {
        match &self.codes {
            CodeSet::None => false,
            CodeSet::All => true,
            CodeSet::Range(low, high) => *low <= code && code <= *high,
            CodeSet::Ranges(ranges) => ranges.iter().any(|(low, high)| *low <= code && code <= *high),
            CodeSet::Set(set) => set.get(code as usize),
        }
    }

    /// Whether one row meets it.
    fn holds(&self, column: &EncodedColumn, row: usize) -> bool {
        if column.is_null(row) { self.accept_null } else { self.has(column.codes.get(row)) }
    }

    /// Keeps those of some rows that meet it.
    pub(crate) fn retain(&self, column: &EncodedColumn, rows: &mut Vec<u32>) {
        if self.is_certain(column) {
            return;
        }
        match &self.codes {
            CodeSet::Range(low, high) if !column.all_null && !self.accept_null => {
                with_codes!(&column.codes,
                    codes => {
                        let (low, span) = (Code::narrow(*low), Code::narrow(high - low));
                        keep(rows, |row| codes[row as usize].within(low, span));
                    },
                    constant => if *low > 0 { rows.clear() },
                    bits => {
                        let wanted = *low == 1;
                        keep(rows, |row| bits.get(row as usize) == wanted);
                    }
                );
                // The code of a NULL is 0.
                if *low == 0
                    && let Some(nulls) = &column.nulls
                {
                    keep(rows, |row| !nulls.get(row as usize));
                }
            }
            _ => rows.retain(|row| self.holds(column, *row as usize)),
        }
    }

    /// Sets in `words` the bits of the column's rows from `first` on, a multiple of 64, and below `after` that meet it,
    /// and no others. The column may have more: versions that have been written since it was translated.
    pub(crate) fn mask(&self, column: &EncodedColumn, first: usize, after: usize, words: &mut Vec<u64>) {
        let rows = after - first;
        words.clear();
        words.resize(rows.div_ceil(64), 0);
        if column.all_null || self.accept_null {
            for row in (0..rows).filter(|row| self.holds(column, first + *row)) {
                words[row / 64] |= 1 << (row % 64);
            }
            return;
        }
        match &self.codes {
            CodeSet::None => return,
            CodeSet::All => words.fill(u64::MAX),
            CodeSet::Range(low, high) => with_codes!(&column.codes,
                codes => {
                    Code::mask(&codes[first..after], Code::narrow(*low), Code::narrow(high - low), words)
                },
                constant => if *low == 0 { words.fill(u64::MAX) },
                bits => copy_bits(&bits.words()[first / 64..], *low == 0, *high >= 1, words)
            ),
            CodeSet::Ranges(_) | CodeSet::Set(_) => with_codes!(&column.codes,
                codes => {
                    words.fill(u64::MAX);
                    and_where(words, &codes[first..after], |code| self.has(code.wide()));
                },
                constant => if self.has(0) { words.fill(u64::MAX) },
                bits => copy_bits(&bits.words()[first / 64..], self.has(0), self.has(1), words)
            ),
        }
        if let Some(nulls) = &column.nulls {
            simd::subtract(words, &nulls.words()[first / 64..]);
        }
        if !rows.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last &= (1 << (rows % 64)) - 1;
        }
    }
}

/// Keeps rows without a branch for each.
#[inline]
pub(super) fn keep(rows: &mut Vec<u32>, test: impl Fn(u32) -> bool) {
    let mut kept = 0;
    for index in 0..rows.len() {
        let row = rows[index];
        rows[kept] = row;
        kept += usize::from(test(row));
    }
    rows.truncate(kept);
}

fn copy_bits(bits: &[u64], zeros: bool, ones: bool, words: &mut [u64]) {
    for (word, codes) in words.iter_mut().zip(bits) {
        *word = (if ones { *codes } else { 0 }) | (if zeros { !*codes } else { 0 });
    }
}

impl CodeSet {
    fn push(&mut self, low: u64, high: u64) {
        *self = match std::mem::take(self) {
            CodeSet::None => CodeSet::Range(low, high),
            CodeSet::Range(first, last) if last + 1 == low => CodeSet::Range(first, high),
            CodeSet::Range(first, last) => CodeSet::Ranges(vec![(first, last), (low, high)]),
            CodeSet::Ranges(mut ranges) => {
                ranges.push((low, high));
                CodeSet::Ranges(ranges)
            }
            other => other,
        };
    }

    fn simplify(&mut self, max_code: u64) {
        match self {
            CodeSet::Range(0, high) if *high == max_code => *self = CodeSet::All,
            CodeSet::Ranges(ranges) if max_code < SET_CODES => {
                let mut set = Bits::zeros(max_code as usize + 1);
                for code in ranges.iter().flat_map(|(low, high)| *low..=*high) {
                    set.set(code as usize);
                }
                *self = CodeSet::Set(set);
            }
            _ => {}
        }
    }
}

fn linear_ranges(intervals: &[(i64, i64)], base: i64, scale: u64, last_code: u64) -> CodeSet {
    let mut codes = CodeSet::None;
    if let [(low, high)] = intervals
        && low == high
    {
        let distance = low.wrapping_sub(base) as u64;
        if *low >= base && distance.is_multiple_of(scale) && distance / scale <= last_code {
            codes.push(distance / scale, distance / scale);
        }
        return codes;
    }
    let (base, scale) = (i128::from(base), i128::from(scale));
    for (low, high) in intervals {
        let low = (i128::from(*low) - base).max(0);
        let high = i128::from(*high) - base;
        if high < 0 {
            continue;
        }
        // Dividing numbers of 128 bits takes longer than all the rest.
        let (first, last) = if scale == 1 { (low, high) } else { ((low + scale - 1) / scale, high / scale) };
        let (first, last) = (first as u64, last.min(i128::from(last_code)) as u64);
        if first <= last {
            codes.push(first, last);
        }
    }
    codes
}

fn dictionary_ranges<K: Ord>(intervals: &[(K, K)], dictionary: &[K]) -> CodeSet {
    let mut codes = CodeSet::None;
    for (low, high) in intervals {
        let first = dictionary.partition_point(|value| value < low);
        let after = first + dictionary[first..].partition_point(|value| value <= high);
        if first < after {
            codes.push(first as u64, after as u64 - 1);
        }
    }
    codes
}

fn int_ranges(intervals: &[(i64, i64)], dictionary: &[i64]) -> CodeSet {
    let mut codes = CodeSet::None;
    for (low, high) in intervals {
        let first = below(dictionary, *low);
        let after = match high.checked_add(1) {
            _ if dictionary.get(first).is_none_or(|value| value > high) => first,
            Some(next) if low < high => below(dictionary, next),
            None => dictionary.len(),
            Some(_) => first + 1,
        };
        if first < after {
            codes.push(first as u64, after as u64 - 1);
        }
    }
    codes
}

/// How many of some ascending numbers are below a bound. Begins where the bound would be if they lay evenly: most of a
/// search by halves are steps that wait for memory.
fn below(values: &[i64], bound: i64) -> usize {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return 0 };
    if bound <= *first {
        return 0;
    }
    if bound > *last {
        return values.len();
    }
    let share = bound.abs_diff(*first) as f64 / last.abs_diff(*first) as f64;
    let guess = ((share * (values.len() - 1) as f64) as usize).min(values.len() - 1);
    let mut step = 8;
    let (mut low, mut high) = (guess, guess);
    if values[guess] < bound {
        while high < values.len() && values[high] < bound {
            (low, high) = (high, high + step);
            step *= 4;
        }
        high = high.min(values.len());
    } else {
        while low > 0 && values[low] >= bound {
            (low, high) = (low.saturating_sub(step), low);
            step *= 4;
        }
    }
    low + values[low..high].partition_point(|value| *value < bound)
}

fn bytes_ranges(intervals: &[BytesInterval], column: &EncodedColumn) -> CodeSet {
    let entries = column.sorted as usize;
    let mut codes = CodeSet::None;
    for (low, high) in intervals {
        let first = column.bytes_below(low, 0);
        // Equality is most of what is asked: the upper end is then the next entry or the first one itself.
        let after = match high {
            None => entries,
            Some(high) if first == entries || column.bytes_of(first as u64) >= high.as_slice() => first,
            Some(high) if first + 1 == entries || column.bytes_of(first as u64 + 1) >= high.as_slice() => {
                first + 1
            }
            Some(high) => column.bytes_below(high, first),
        };
        if first < after {
            codes.push(first as u64, after as u64 - 1);
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_are_counted() {
        let even: Vec<i64> = (0..1000).map(|value| value * 7 - 300).collect();
        let skewed: Vec<i64> = (0..60).map(|bits| 1 << bits).chain([i64::MAX - 1, i64::MAX]).collect();
        let far: Vec<i64> = [i64::MIN, i64::MIN + 1, -5, 0, 3, i64::MAX].to_vec();
        for values in [even, skewed, far, vec![4], Vec::new()] {
            let near =
                values.iter().flat_map(|value| [value.saturating_sub(1), *value, value.saturating_add(1)]);
            for bound in near.chain([i64::MIN, 0, i64::MAX]) {
                assert_eq!(below(&values, bound), values.partition_point(|value| *value < bound));
                for high in [bound, bound.saturating_add(9), i64::MAX] {
                    let expected = match (
                        values.partition_point(|value| *value < bound) as u64,
                        values.partition_point(|value| *value <= high) as u64,
                    ) {
                        (first, after) if first < after => Some((first, after - 1)),
                        _ => None,
                    };
                    let codes = int_ranges(&[(bound, high)], &values);
                    assert_eq!(CodeTest { codes, accept_null: false }.interval(), expected);
                }
            }
        }
    }
}
