//! The rows of an encoded column by their codes: which rows have a value is read off instead of being looked for.

use std::ops::Range;

use super::{Codes, EncodedColumn};
use crate::ahead::fetch_at;

/// Which rows have the codes of a column, of some rows that lie together. It says nothing about rows that were added
/// after it was begun: codes are never changed, only added.
#[derive(Debug)]
pub(crate) struct RowsByCode {
    /// The row that is counted as 0. A multiple of 64.
    first: usize,
    /// The rows that are not NULL in the order of their codes, those of one code ascending: the lower 16 bits of each.
    rows: Vec<u16>,
    /// Their bits above those, so many for each row.
    high: Vec<u64>,
    high_bits: u32,
    /// Where the rows of each bucket start, and where the last one's end. The codes of a bucket have the same upper
    /// bits.
    starts: Vec<u32>,
    /// The bits of a code that its bucket does not tell.
    shift: u32,
    /// The rows from the first one up to here are covered, NULLs included. A multiple of 64.
    covered: usize,
}

impl RowsByCode {
    /// Rows that can be covered: their numbers have 18 bits.
    const MOST_ROWS: usize = 1 << 18;
    /// Rows for each bucket, where they are many: where the buckets start takes little memory then.
    const ROWS_A_BUCKET: usize = 16;
    /// Buckets up to which there is one for each row.
    const BUCKETS: usize = 1 << 13;
    /// Rows up to which the code of each is looked at.
    const COUNTED: usize = 32;
    /// Buckets whose rows are counted by their codes.
    const FEW_BUCKETS: usize = 2;
    /// Bits of a code by which rows are put in order at a time: the places where the next row of each goes stay in the
    /// cache.
    const DIGIT_BITS: u32 = 11;

    /// Whether most of so many rows can be covered.
    pub(crate) fn covers_most(rows: usize) -> bool {
        rows <= RowsByCode::MOST_ROWS * 3 / 2
    }

    /// Of the rows from `first` on of a column that has so many.
    fn new(column: &EncodedColumn, first: usize, rows: usize) -> RowsByCode {
        let mut ordering = Ordering::begin(column, first, rows);
        loop {
            if let Some(by_code) = ordering.pass(column) {
                return by_code;
            }
        }
    }

    /// The row at a place in the order of codes.
    #[inline]
    fn row(&self, place: usize) -> u32 {
        let mut row = u32::from(self.rows[place]);
        if self.high_bits > 0 {
            let at = place * self.high_bits as usize;
            row |= ((self.high[at / 64] >> (at % 64)) as u32 & ((1 << self.high_bits) - 1)) << 16;
        }
        self.first as u32 + row
    }

    /// The rows at some places in the order of codes.
    #[inline]
    pub(crate) fn rows(&self, places: Range<usize>) -> impl Iterator<Item = u32> {
        places.map(|place| self.row(place))
    }

    /// Appends the rows at some places to others.
    pub(crate) fn copy_rows(&self, places: Range<usize>, found: &mut Vec<u32>) {
        let first = self.first as u32;
        if self.high_bits == 0 {
            return found.extend(self.rows[places].iter().map(|row| first + u32::from(*row)));
        }
        // The upper bits of so many rows lie in one word.
        let (bits, in_word) = (self.high_bits, (u64::BITS / self.high_bits) as usize);
        let mut place = places.start;
        while place < places.end {
            let end = places.end.min((place / in_word + 1) * in_word);
            let mut high = self.high[place / in_word] >> ((place % in_word) as u32 * bits);
            found.extend(self.rows[place..end].iter().map(|row| {
                let upper = high as u32 & ((1 << bits) - 1);
                high >>= bits;
                first + (u32::from(*row) | upper << 16)
            }));
            place = end;
        }
    }

    /// The places of the covered rows with codes from `low` to `high`.
    #[inline]
    pub(crate) fn places(&self, codes: &Codes, low: u64, high: u64) -> Range<usize> {
        let (first, after) = self.buckets(low, high);
        let (mut start, mut end) = (self.starts[first] as usize, self.starts[after] as usize);
        if self.shift > 0 && after - first == 1 && end - start <= RowsByCode::COUNTED {
            return match codes {
                Codes::U16(codes) => self.places_in(start..end, |row| u64::from(codes[row]), low, high),
                Codes::U32(codes) => self.places_in(start..end, |row| u64::from(codes[row]), low, high),
                codes => self.places_in(start..end, |row| codes.get(row), low, high),
            };
        }
        // Whole buckets in between need no look at their codes.
        if self.shift > 0 && start < end {
            start += self.below(codes, first, low);
            if let Some(above) = high.checked_add(1) {
                let last = after - 1;
                end = end.min(self.starts[last] as usize + self.below(codes, last, above));
            }
        }
        start..end.max(start)
    }

    /// Those places of a few with codes from `low` to `high`.
    #[inline]
    fn places_in(
        &self,
        places: Range<usize>,
        code: impl Fn(usize) -> u64,
        low: u64,
        high: u64,
    ) -> Range<usize> {
        let (mut start, mut end) = (places.start, places.start);
        for row in self.rows(places) {
            let code = code(row as usize);
            start += usize::from(code < low);
            end += usize::from(code <= high);
        }
        start..end
    }

    /// How many rows of a bucket have codes below a bound.
    #[inline]
    fn below(&self, codes: &Codes, bucket: usize, bound: u64) -> usize {
        let (start, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        let is_below = |place: usize| codes.get(self.row(place) as usize) < bound;
        if end - start <= RowsByCode::COUNTED {
            // No search, in which each step waits for the memory of the one before.
            return (start..end).filter(|place| is_below(*place)).count();
        }
        let (mut low, mut high) = (start, end);
        while low < high {
            let middle = (low + high) / 2;
            if is_below(middle) { low = middle + 1 } else { high = middle }
        }
        low - start
    }

    /// As [`places`](RowsByCode::places), or about how many they are if they lie in more than a few buckets.
    #[inline]
    pub(crate) fn few_places(
        &self,
        codes: &Codes,
        low: u64,
        high: u64,
    ) -> std::result::Result<Range<usize>, usize> {
        let (first, after) = self.buckets(low, high);
        if self.shift > 0 && after - first > RowsByCode::FEW_BUCKETS {
            return Err((self.starts[after - 1] - self.starts[first + 1]) as usize + 1);
        }
        Ok(self.places(codes, low, high))
    }

    /// The first bucket that codes from `low` to `high` fall into, and the one behind the last.
    #[inline]
    fn buckets(&self, low: u64, high: u64) -> (usize, usize) {
        let buckets = self.starts.len() - 1;
        let first = (low >> self.shift).min(buckets as u64) as usize;
        let after = ((high >> self.shift).saturating_add(1)).clamp(first as u64, buckets as u64) as usize;
        (first, after)
    }

    /// Begins to fetch what tells where the rows of a code are.
    #[inline]
    pub(crate) fn fetch_start(&self, low: u64) {
        fetch_at(&self.starts, (low >> self.shift) as usize);
    }

    /// Begins to fetch the first rows of codes from `low` to `high`.
    #[inline]
    pub(crate) fn fetch_rows(&self, low: u64, high: u64) {
        let place = self.starts[self.buckets(low, high).0] as usize;
        fetch_at(&self.rows, place);
        fetch_at(&self.high, place * self.high_bits as usize / 64);
    }

    /// Begins to fetch the codes that tell which rows of a bucket are those of one code.
    #[inline]
    pub(crate) fn fetch_codes(&self, codes: &Codes, low: u64, high: u64) {
        let (first, after) = self.buckets(low, high);
        if self.shift > 0 && after - first <= RowsByCode::FEW_BUCKETS {
            let places = self.starts[first] as usize..self.starts[after] as usize;
            self.rows(places).take(RowsByCode::COUNTED).for_each(|row| codes.fetch(row as usize));
        }
    }

    /// The rows from here on are not covered.
    #[inline]
    pub(crate) fn covered(&self) -> usize {
        self.covered
    }

    fn len(&self) -> usize {
        self.covered - self.first
    }

    /// Logical size in bytes.
    pub(super) fn size(&self) -> usize {
        self.rows.len() * 2 + self.starts.len() * 4 + self.high.len() * 8
    }
}

/// Rows that are being put in the order of their codes, a pass over them at a time: to do all at once takes longer than whoever
/// scans should have to wait. The column may get more rows meanwhile.
#[derive(Debug)]
struct Ordering {
    first: usize,
    covered: usize,
    buckets: usize,
    shift: u32,
    /// In the order of so many of the lowest bits of their codes, if it is one; what has been put in order stays in order.
    ordered: u32,
    rows: Option<Vec<u32>>,
}

impl Ordering {
    fn begin(column: &EncodedColumn, first: usize, rows: usize) -> Ordering {
        let covered = rows.min(first + RowsByCode::MOST_ROWS) & !63;
        let rows = covered - first;
        let bits = u64::BITS - column.max_code.leading_zeros();
        let buckets = rows.min(RowsByCode::BUCKETS).max(rows / RowsByCode::ROWS_A_BUCKET);
        let shift = bits.saturating_sub(buckets.next_power_of_two().max(2).ilog2());
        let buckets = (column.max_code >> shift) as usize + 1;
        Ordering { first, covered, buckets, shift, ordered: 0, rows: None }
    }

    /// Does a pass; returns the rows by their codes after the last one.
    fn pass(&mut self, column: &EncodedColumn) -> Option<RowsByCode> {
        let rows = self.first..self.covered;
        match &column.codes {
            Codes::U8(codes) => self.pass_over(column, &codes[rows]),
            Codes::U16(codes) => self.pass_over(column, &codes[rows]),
            Codes::U32(codes) => self.pass_over(column, &codes[rows]),
            Codes::U64(codes) => self.pass_over(column, &codes[rows]),
            codes => self.pass_over(column, &rows.map(|row| codes.get(row) as u8).collect::<Vec<u8>>()),
        }
    }

    fn pass_over<T: Copy + Into<u64>>(&mut self, column: &EncodedColumn, codes: &[T]) -> Option<RowsByCode> {
        let nulls = column.nulls.as_ref().map_or(&[][..], |nulls| &nulls.words()[self.first / 64..]);
        let is_null =
            |row: &u32| nulls.get(*row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 == 1);
        let present = || (0..codes.len() as u32).filter(|row| !is_null(row));
        let bits = (self.shift - self.ordered).min(RowsByCode::DIGIT_BITS);
        let (is_last, low) = (bits == 0, self.ordered);
        let (digits, mask) = if is_last { (self.buckets, u64::MAX) } else { (1 << bits, (1 << bits) - 1) };
        let digit = |row: u32| (codes[row as usize].into() >> low & mask) as usize;
        let (starts, sorted) = match self.rows.take() {
            None => sort_by(present, digits, digit),
            Some(rows) => sort_by(|| rows.iter().copied(), digits, digit),
        };
        if !is_last {
            self.ordered += bits;
            self.rows = Some(sorted);
            return None;
        }
        // A power of two, so that no row's lie in two words.
        let high_bits = match (codes.len().saturating_sub(1) >> 16).checked_ilog2() {
            None => 0,
            Some(last) => (last + 1).next_power_of_two(),
        };
        let mut high = vec![0u64; (sorted.len() * high_bits as usize).div_ceil(64)];
        for (place, row) in sorted.iter().enumerate().filter(|(_, row)| **row >> 16 > 0) {
            let at = place * high_bits as usize;
            high[at / 64] |= u64::from(row >> 16) << (at % 64);
        }
        let rows = sorted.into_iter().map(|row| row as u16).collect();
        let (first, shift, covered) = (self.first, self.shift, self.covered);
        Some(RowsByCode { first, rows, high, high_bits, starts, shift, covered })
    }
}

/// Rows in the order of their digits, those with the same one in the order that they have; and where those of each digit start,
/// and the last one's end.
fn sort_by<R: Iterator<Item = u32>>(
    rows: impl Fn() -> R,
    digits: usize,
    digit: impl Fn(u32) -> usize,
) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; digits + 1];
    rows().for_each(|row| starts[digit(row) + 1] += 1);
    for index in 1..starts.len() {
        starts[index] += starts[index - 1];
    }
    let (mut next, mut sorted) = (starts.clone(), vec![0; starts[digits] as usize]);
    rows().for_each(|row| {
        let place = &mut next[digit(row)];
        sorted[*place as usize] = row;
        *place += 1;
    });
    (starts, sorted)
}

impl EncodedColumn {
    /// Begins to put the column's rows in the order of their codes, if most of them can be held so.
    pub(crate) fn begin_order(&mut self, rows: usize, visit: u64) {
        if RowsByCode::covers_most(rows) {
            self.by_code.ordering = Some(Box::new(Ordering::begin(self, 0, rows)));
            self.by_code.used = visit;
        }
    }

    /// Does some of that. Returns whether there is more of it.
    pub(crate) fn order_some(&mut self) -> bool {
        let Some(mut ordering) = self.by_code.ordering.take() else { return false };
        match ordering.pass(self) {
            None => self.by_code.ordering = Some(ordering),
            held => (self.by_code.held, self.by_code.later) = (held, None),
        }
        self.by_code.ordering.is_some()
    }

    /// Holds the rows by code that have been added to a column whose rows are, when they are many. Returns whether they
    /// were.
    pub(crate) fn order_later_rows(&mut self, rows: usize) -> bool {
        /// Rows that are looked through in little time.
        const FEW: usize = 256;
        /// What part of the later rows may be added before they are put in order again.
        const PART: usize = 8;
        let Some(held) = &self.by_code.held else { return false };
        let (later, covered) =
            self.by_code.later.as_ref().map_or((0, held.covered), |later| (later.len(), later.covered));
        let are_many = rows.saturating_sub(covered) >= FEW.max(later / PART) && later < RowsByCode::MOST_ROWS;
        if are_many {
            self.by_code.later = Some(RowsByCode::new(self, held.covered, rows));
        }
        are_many
    }
}

/// Whether the rows of a column are held by code.
#[derive(Debug, Default)]
pub(crate) struct ByCode {
    /// Passes over the column's rows that it would have saved.
    missed: f32,
    held: Option<RowsByCode>,
    /// What it is being made from. What that takes for a while is not counted: it is of one column of a table at a time.
    ordering: Option<Box<Ordering>>,
    /// Of the rows behind those.
    later: Option<RowsByCode>,
    /// How many have asked for rows of the column of late, each as often as the bytes of a code that a pass would have
    /// read: those of earlier visits count for less.
    asked: f32,
    /// The visit at which somebody asked last.
    used: u64,
}

impl ByCode {
    /// Visits of the segment without use after which it is given up.
    const UNUSED: u64 = 1 << 14;

    #[inline]
    pub(crate) fn get(&self) -> Option<&RowsByCode> {
        self.held.as_ref()
    }

    /// All that are held, one behind the other.
    #[inline]
    pub(crate) fn parts(&self) -> impl Iterator<Item = &RowsByCode> {
        self.held.iter().chain(&self.later)
    }

    /// Notes that rows were looked for in as much time as so many passes take. Returns whether that makes `worth` of
    /// them.
    pub(crate) fn miss(&mut self, passes: f32, worth: usize) -> bool {
        self.missed += passes;
        self.missed >= worth as f32 && self.held.is_none() && self.ordering.is_none()
    }

    /// How many have asked for rows of late, where there is no room for it. What it would have saved is counted anew:
    /// columns do not take turns without end.
    pub(crate) fn ask_for_room(&mut self, visit: u64) -> f32 {
        self.missed = 0.0;
        self.asked_by(visit)
    }

    fn asked_by(&self, visit: u64) -> f32 {
        /// What is left of a visit's count at the next one.
        const LEFT: f32 = 63.0 / 64.0;
        self.asked * LEFT.powi(i32::try_from(visit.saturating_sub(self.used)).unwrap_or(i32::MAX))
    }

    /// Gives way to a column that so many have asked for, if it is held and far fewer have asked for it; returns how
    /// many.
    pub(crate) fn yields_to(&self, asked: f32, visit: u64) -> Option<f32> {
        /// So many times as many, lest two columns give way to each other by chance.
        const TIMES: f32 = 1.5;
        let own = self.asked_by(visit);
        (self.held.is_some() && own * TIMES < asked).then_some(own)
    }

    /// Gives it up.
    pub(crate) fn give_up(&mut self) {
        *self = ByCode::default();
    }

    /// What is known of a column when its rows have got new numbers: nothing but that it was asked for.
    pub(super) fn anew(&self) -> ByCode {
        ByCode { missed: self.missed, ..ByCode::default() }
    }

    /// Gives it up if nobody has used it for a long time; returns whether it was so.
    pub(crate) fn retire(&mut self, visit: u64) -> bool {
        let unused = self.held.is_some() && visit >= self.used + ByCode::UNUSED;
        if unused {
            self.give_up();
        }
        unused
    }

    pub(crate) fn size(&self) -> usize {
        self.parts().map(RowsByCode::size).sum()
    }

    /// Notes that so much was asked for at a visit.
    pub(crate) fn used_at(&mut self, visit: u64, asked: usize) {
        self.asked = self.asked_by(visit) + asked as f32;
        self.used = visit;
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;
    use crate::{
        column::{SegmentColumn, Take},
        types::Type,
    };

    /// A column of whole numbers, some of them NULL.
    fn encoded(rows: usize, value: impl Fn(i64) -> Option<i64>) -> EncodedColumn {
        let values: Int64Array = (0..rows as i64).map(value).collect();
        let mut column = SegmentColumn::new(&Type::Int8);
        column.delta.append(&values, &Type::Int8, Take::All(rows));
        column.encode(&Type::Int8, &(0..rows as u32).collect::<Vec<u32>>());
        column.base.expect("it has been encoded")
    }

    fn order_rows(column: &mut EncodedColumn, rows: usize, visit: u64) {
        column.begin_order(rows, visit);
        while column.order_some() {}
    }

    #[test]
    fn rows_of_codes_are_those_that_have_them() {
        let scattered = |row: i64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
        let columns = [
            encoded(1000, |row| (row % 7 != 3).then_some(row % 5)),
            encoded(1030, |row| (row % 7 != 3).then_some(scattered(row) >> 40)),
            encoded(1024, |row| (row % 7 != 3).then_some(scattered(row))),
            encoded(40_000, |row| Some(scattered(row) >> 48)),
        ];
        for column in columns {
            let rows = 1000;
            let by_code = RowsByCode::new(&column, 0, rows);
            assert_eq!(by_code.covered(), 960);
            let codes: Vec<u64> = (0..rows).map(|row| column.codes.get(row)).collect();
            for low in codes.iter().copied().step_by(37).chain([0, column.max_code, column.max_code + 1]) {
                for high in [low, low + 1, low + (column.max_code - low.min(column.max_code)) / 2, u64::MAX] {
                    let places = by_code.places(&column.codes, low, high);
                    let mut copied = Vec::new();
                    by_code.copy_rows(places.clone(), &mut copied);
                    assert!(by_code.rows(places).eq(copied.iter().copied()));
                    let mut found: Vec<usize> = copied.into_iter().map(|row| row as usize).collect();
                    if low == high {
                        assert!(found.is_sorted());
                    }
                    found.sort_unstable();
                    let inside = |row: &usize| !column.is_null(*row) && (low..=high).contains(&codes[*row]);
                    let expected: Vec<usize> = (0..by_code.covered()).filter(inside).collect();
                    assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn rows_with_numbers_of_18_bits_are_found() {
        let rows = RowsByCode::MOST_ROWS + 100;
        let scattered = |row: i64| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 32) & 0xffff;
        for column in [encoded(rows, |row| Some(row % 300)), encoded(rows, |row| Some(scattered(row)))] {
            let by_code = RowsByCode::new(&column, 0, rows);
            assert_eq!(by_code.covered(), RowsByCode::MOST_ROWS);
            for (low, high) in [(7, 7), (0, 0), (column.max_code, column.max_code), (20, 60), (0, u64::MAX)] {
                let places = by_code.places(&column.codes, low, high);
                let about =
                    by_code.few_places(&column.codes, low, high).map_or_else(|rows| rows, |it| it.len());
                assert!(about <= places.len() + 1 && about * 2 + 100 >= places.len(), "{about} {places:?}");
                let mut found = Vec::new();
                by_code.copy_rows(places.clone(), &mut found);
                assert!(by_code.rows(places).eq(found.iter().copied()));
                found.sort_unstable();
                let inside = |row: &u32| (low..=high).contains(&column.codes.get(*row as usize));
                let expected: Vec<u32> = (0..RowsByCode::MOST_ROWS as u32).filter(inside).collect();
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn rows_that_are_added_later_are_found() {
        let value = |row: i64| (row % 11 != 3).then_some((row * 7) % 300);
        let mut column = encoded(2000, value);
        let find = |column: &EncodedColumn, low: u64, high: u64| -> Vec<usize> {
            let parts = column.by_code.parts();
            let rows = parts.flat_map(|part| part.rows(part.places(&column.codes, low, high)));
            let mut rows: Vec<usize> = rows.map(|row| row as usize).collect();
            rows.sort_unstable();
            rows
        };
        assert!(!column.order_later_rows(2000));
        order_rows(&mut column, 1000, 0);
        assert!(!column.order_later_rows(1200) && column.order_later_rows(1300));
        assert!(!column.order_later_rows(1500) && column.order_later_rows(2000));
        for (low, high) in [(0, 0), (7, 7), (20, 60), (0, u64::MAX)] {
            let inside =
                |row: &usize| (low..=high).contains(&column.codes.get(*row)) && !column.is_null(*row);
            assert_eq!(find(&column, low, high), (0..1984).filter(inside).collect::<Vec<usize>>());
        }
    }

    #[test]
    fn rows_that_are_added_while_others_are_put_in_order_do_no_harm() {
        let scattered = |row: i64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 20;
        let mut column = encoded(1000, |row| (row % 7 != 3).then_some(scattered(row)));
        let ordered = RowsByCode::new(&column, 0, 1000);
        column.begin_order(1000, 0);
        let mut rows = 1000;
        let mut passes = 1;
        while column.order_some() {
            passes += 1;
            assert!(column.by_code.get().is_none() && !column.by_code.miss(100.0, 16));
            for code in [None, Some(7), Some(column.max_code + 1)] {
                column.push(code, rows);
                rows += 1;
            }
        }
        assert!(passes > 2, "{passes} passes");
        let held = column.by_code.get().expect("they are in order");
        assert_eq!(format!("{held:?}"), format!("{ordered:?}"));
        assert!(!column.order_some());
    }

    #[test]
    fn what_nobody_uses_is_given_up() {
        let mut column = encoded(1000, Some);
        assert!(!column.by_code.miss(15.5, 16));
        assert!(column.by_code.miss(0.5, 16));
        order_rows(&mut column, 1000, 5);
        assert!(!column.by_code.miss(1.0, 16) && column.by_code.size() > 0);
        column.by_code.used_at(9, 1);
        assert!(!column.by_code.retire(8 + ByCode::UNUSED) && column.by_code.retire(9 + ByCode::UNUSED));
        assert!(column.by_code.get().is_none());
    }

    #[test]
    fn what_few_ask_for_gives_way() {
        let (mut held, mut other) = (encoded(1000, Some), encoded(1000, Some));
        order_rows(&mut held, 1000, 0);
        (1..=100).for_each(|visit| held.by_code.used_at(visit, 10));
        let ask = |other: &mut EncodedColumn, visits: Range<u64>, riders: usize| {
            let end = visits.end;
            visits.for_each(|visit| other.by_code.used_at(visit, riders));
            assert!(other.by_code.miss(16.0, 16));
            let asked = other.by_code.ask_for_room(end);
            assert!(!other.by_code.miss(15.0, 16));
            asked
        };
        let few = ask(&mut other, 1..101, 14);
        assert_eq!(held.by_code.yields_to(few, 101), None);
        let many = ask(&mut other, 101..401, 30);
        (101..401).for_each(|visit| held.by_code.used_at(visit, 10));
        assert!(held.by_code.yields_to(many, 401).is_some() && other.by_code.yields_to(many, 401).is_none());
        // Whoever is not asked for any more gives way in the end.
        assert!(held.by_code.yields_to(few / 4.0, 401 + 640).is_some());
    }
}
