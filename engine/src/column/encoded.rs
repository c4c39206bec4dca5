//! Columns of codes and what the codes stand for.

use std::{ops::Range, sync::Arc};

use arrow::array::ArrayRef;
use serde::{Deserialize, Serialize};

use super::{
    ByCode, Cell, Codes, Frequency, Offsets, Physical, PlainColumn, SegmentColumn,
    arrays::{Entries, build},
    code_table::CodeTable,
    encode::{CODES_BEHIND, encode_bytes, encode_ints, encode_wides},
    physical,
    plain::{PlainData, are_values},
};
use crate::{
    ahead::{fetch, fetch_at},
    bits::{Bits, Picked},
    block::{numbers, shared},
    error::Result,
    types::Type,
    value_filter::{ValueFilter, hash_bytes, hash_int},
};

/// What codes stand for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Domain {
    /// `base + scale * code`
    Linear { base: i64, scale: u64 },
    /// Sorted.
    Ints(#[serde(with = "numbers")] Vec<i64>),
    /// Sorted.
    Wides(#[serde(with = "numbers")] Vec<i128>),
    /// Sorted.
    Bytes {
        offsets: Offsets,
        #[serde(with = "numbers")]
        bytes: Vec<u8>,
    },
}

impl Domain {
    /// Logical size in bytes.
    fn size(&self) -> usize {
        match self {
            Domain::Linear { .. } => 16,
            Domain::Ints(values) => values.len() * 8,
            Domain::Wides(values) => values.len() * 16,
            Domain::Bytes { offsets, bytes } => offsets.size() + bytes.len(),
        }
    }
}

/// Cells for which memory is fetched ahead of the one that is read.
const AHEAD: usize = 8;

/// Codes up to which a search for a value is as cheap as asking a filter.
const FEW_CODES: u64 = 256;

/// A column of codes. The domain is made once; values that are added later and are not in it get codes of their own
/// above it, in no order, until there are so many that the column is encoded again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EncodedColumn {
    pub(crate) codes: Codes,
    /// Parts of one column have it in common until they are compacted.
    #[serde(with = "shared")]
    pub(crate) domain: Arc<Domain>,
    /// Codes below this are the domain's.
    pub(crate) sorted: u64,
    /// The values of the codes from there on.
    pub(crate) extra: PlainColumn,
    /// The largest code.
    pub(crate) max_code: u64,
    /// Rows when the domain was made.
    pub(super) made_of: usize,
    /// How often codes occur.
    #[serde(skip)]
    pub(crate) frequency: Frequency,
    /// The values, unless they are so few that a search is as cheap.
    #[serde(with = "shared::optional")]
    pub(super) filter: Option<Arc<ValueFilter>>,
    /// The codes of the byte strings, if they are few for so many rows.
    #[serde(skip)]
    pub(super) table: Option<Arc<CodeTable>>,
    /// Which rows have a code, for columns that are asked for it often.
    #[serde(skip)]
    pub(crate) by_code: ByCode,
    pub(crate) nulls: Option<Bits>,
    /// Whether every row is NULL: the domain is then meaningless.
    pub(crate) all_null: bool,
}

impl EncodedColumn {
    /// Encodes the values of so many rows, each of which is a row of some column.
    pub(super) fn encode<'a>(
        ty: &Type,
        rows: usize,
        cell: impl Fn(usize) -> (&'a SegmentColumn, usize),
    ) -> EncodedColumn {
        let is_null = |row: usize| {
            let (column, row) = cell(row);
            column.is_null(row)
        };
        let (codes, domain, max_code) = match physical(ty) {
            Physical::Int => encode_ints(rows, &is_null, &|row| {
                let (column, row) = cell(row);
                column.int(row)
            }),
            Physical::Wide => encode_wides(rows, &is_null, &|row| {
                let (column, row) = cell(row);
                column.wide(row)
            }),
            Physical::Bytes => encode_bytes(rows, &is_null, &|row| {
                let (column, row) = cell(row);
                column.bytes(row)
            }),
        };
        let mut nulls = Bits::zeros(rows);
        (0..rows).filter(|row| is_null(*row)).for_each(|row| nulls.set(row));
        EncodedColumn::made(ty, &codes, domain, max_code, nulls)
    }

    /// Codes up to the largest that there may be, the first one for NULLs, and what they stand for.
    pub(super) fn made(
        ty: &Type,
        codes: &[u64],
        domain: Domain,
        max_code: u64,
        nulls: Bits,
    ) -> EncodedColumn {
        let (rows, null_count) = (codes.len(), nulls.count());
        let all_null = rows > 0 && null_count == rows;
        let sorted = match &domain {
            Domain::Linear { .. } => max_code + 1,
            Domain::Ints(values) => values.len() as u64,
            Domain::Wides(values) => values.len() as u64,
            Domain::Bytes { offsets, .. } => offsets.strings() as u64,
        };
        let mut column = EncodedColumn {
            codes: Codes::narrow(codes, max_code),
            domain: Arc::new(domain),
            sorted,
            extra: PlainColumn::new(ty),
            max_code,
            made_of: rows,
            frequency: Frequency::default(),
            filter: None,
            table: None,
            by_code: ByCode::default(),
            nulls: (null_count > 0 && !all_null).then_some(nulls),
            all_null,
        };
        column.derive(rows);
        column.filter = column.make_filter(rows).map(Arc::new);
        column
    }

    /// About how many values there are: as many as codes, but no more than rows.
    pub(crate) fn distinct(&self) -> u64 {
        (self.max_code + 1).min(self.made_of as u64).max(1)
    }

    /// Number of dictionary entries, if there is a dictionary.
    pub(crate) fn dictionary_len(&self) -> Option<usize> {
        match &*self.domain {
            Domain::Linear { .. } => None,
            _ => Some(self.sorted as usize + self.extra.len),
        }
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.all_null || self.nulls.as_ref().is_some_and(|nulls| nulls.get(row))
    }

    /// Begins to fetch the code of a row into the cache.
    #[inline]
    pub(crate) fn fetch_code(&self, row: usize) {
        self.codes.fetch(row);
        if let Some(nulls) = &self.nulls {
            nulls.fetch(row);
        }
    }

    /// Begins to fetch the domain's entry for a code into the cache.
    #[inline]
    pub(super) fn fetch_value(&self, code: u64) {
        match &*self.domain {
            Domain::Linear { .. } => {}
            Domain::Ints(values) => fetch_at(values, code as usize),
            Domain::Wides(values) => fetch_at(values, code as usize),
            Domain::Bytes { offsets, .. } => offsets.fetch(code as usize),
        }
    }

    #[inline]
    pub(crate) fn int_of(&self, code: u64) -> i64 {
        if code >= self.sorted {
            let place = (code - self.sorted) as usize;
            // The code of a NULL may stand for nothing.
            return if place < self.extra.len { self.extra.int(place) } else { 0 };
        }
        match &*self.domain {
            Domain::Linear { base, scale } => base.wrapping_add(scale.wrapping_mul(code) as i64),
            Domain::Ints(values) => values.get(code as usize).copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether one of its whole numbers may be what stands for a NaN among decimals.
    pub(crate) fn may_be_nan(&self) -> bool {
        let last = self.sorted.checked_sub(1).map(|code| self.int_of(code));
        let extra = (0..self.extra.len).map(|place| self.extra.int(place));
        last.into_iter().chain(extra).any(|value| value == i64::MAX)
    }

    /// Whether the order of codes is that of the values of a column of this type, and equal values look alike.
    pub(crate) fn is_in_order(&self, ty: &Type) -> bool {
        let is_text = matches!(ty, Type::Numeric(_)) && physical(ty) == Physical::Bytes;
        self.extra.len == 0 && !is_text && !matches!(ty, Type::Float4 | Type::Float8)
    }

    /// Calls `f` with the whole number of each of these rows; of a NULL it may be any.
    #[inline]
    pub(crate) fn for_ints(&self, rows: &[u32], mut f: impl FnMut(i64)) {
        match &*self.domain {
            Domain::Linear { base, scale } if self.extra.len == 0 => {
                self.codes.for_listed(rows, |code| f(base.wrapping_add(scale.wrapping_mul(code) as i64)));
            }
            Domain::Ints(values) if self.extra.len == 0 => {
                let codes = self.codes.widened(rows);
                for (at, code) in codes.iter().enumerate() {
                    if let Some(code) = codes.get(at + AHEAD) {
                        fetch_at(values, *code as usize);
                    }
                    f(values.get(*code as usize).copied().unwrap_or(0));
                }
            }
            _ => self.codes.for_listed(rows, |code| f(self.int_of(code))),
        }
    }

    /// As [`for_ints`](EncodedColumn::for_ints), the bytes.
    #[inline]
    pub(crate) fn for_bytes(&self, rows: &[u32], mut f: impl FnMut(&[u8])) {
        match &*self.domain {
            Domain::Bytes { offsets, bytes } if self.extra.len == 0 && offsets.strings() > 0 => {
                // A dictionary may be larger than the cache: what is read next is fetched while others are copied.
                let codes = self.codes.widened(rows);
                for (at, code) in codes.iter().enumerate() {
                    if let Some(code) = codes.get(at + 2 * AHEAD) {
                        offsets.fetch(*code as usize);
                    }
                    if let Some(code) = codes.get(at + AHEAD) {
                        fetch_at(bytes, offsets.range(*code as usize).start);
                    }
                    f(offsets.of(*code as usize, bytes));
                }
            }
            _ => self.codes.for_listed(rows, |code| f(self.bytes_of(code))),
        }
    }

    #[inline]
    pub(crate) fn wide_of(&self, code: u64) -> i128 {
        if code >= self.sorted {
            let place = (code - self.sorted) as usize;
            // The code of a NULL may stand for nothing.
            return if place < self.extra.len { self.extra.wide(place) } else { 0 };
        }
        match &*self.domain {
            Domain::Wides(values) => values.get(code as usize).copied().unwrap_or(0),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn bytes_of(&self, code: u64) -> &[u8] {
        if code >= self.sorted {
            let place = (code - self.sorted) as usize;
            // The code of a NULL may stand for nothing.
            return if place < self.extra.len { self.extra.bytes(place) } else { &[] };
        }
        match &*self.domain {
            Domain::Bytes { offsets, bytes } if (code as usize) < offsets.strings() => {
                offsets.of(code as usize, bytes)
            }
            _ => &[],
        }
    }

    pub(crate) fn cell(&self, row: usize) -> Cell<'_> {
        match &self.extra.data {
            _ if self.is_null(row) => Cell::Null,
            PlainData::Int(_) => Cell::Int(self.int_of(self.codes.get(row))),
            PlainData::Wide(_) => Cell::Wide(self.wide_of(self.codes.get(row))),
            PlainData::Bytes { .. } => Cell::Bytes(self.bytes_of(self.codes.get(row))),
        }
    }

    /// Whether a value with this hash may be in some row.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_have(hash))
    }

    /// Begins to fetch what tells whether a value with this hash may be in some row.
    #[inline]
    pub(crate) fn fetch_filter(&self, hash: u64) {
        if let Some(filter) = &self.filter {
            filter.fetch(hash);
        }
    }

    pub(super) fn make_filter(&self, rows: usize) -> Option<ValueFilter> {
        if self.max_code < FEW_CODES {
            return None;
        }
        match &*self.domain {
            Domain::Linear { .. } => {
                let mut filter = ValueFilter::new(rows);
                (0..rows).for_each(|row| filter.insert(hash_int(self.int_of(self.codes.get(row)))));
                Some(filter)
            }
            Domain::Ints(values) => {
                let mut filter = ValueFilter::new(values.len());
                values.iter().for_each(|value| filter.insert(hash_int(*value)));
                Some(filter)
            }
            Domain::Wides(_) => None,
            Domain::Bytes { offsets, .. } => {
                let entries = offsets.strings();
                let mut filter = ValueFilter::new(entries);
                (0..entries).for_each(|code| filter.insert(hash_bytes(self.bytes_of(code as u64))));
                Some(filter)
            }
        }
    }

    pub(super) fn make_table(&self, rows: usize) -> Option<CodeTable> {
        /// Rows for each value from which the table takes little of the column's memory.
        const ROWS_A_VALUE: usize = 4;
        let Domain::Bytes { offsets, .. } = &*self.domain else { return None };
        let entries = offsets.strings();
        (entries <= (rows / ROWS_A_VALUE).min(CodeTable::MOST))
            .then(|| CodeTable::new(entries, |code| hash_bytes(self.bytes_of(code))))
    }

    /// The code of a byte string with this hash, if it has one; `None` if that takes a search.
    #[inline]
    pub(crate) fn code_of_bytes(&self, value: &[u8], hash: u64) -> Option<Option<u64>> {
        let table = self.table.as_ref()?;
        Some(table.candidates(hash).find(|code| self.bytes_of(*code) == value))
    }

    /// Begins to fetch the code of a byte string with this hash.
    #[inline]
    pub(crate) fn fetch_code_of(&self, hash: u64) {
        if let Some(table) = &self.table {
            table.fetch(hash);
        }
    }

    /// Begins to fetch where the byte string with this hash is, whose code has been fetched.
    #[inline]
    pub(crate) fn fetch_value_of(&self, hash: u64) {
        if let Some(code) = self.table.as_ref().and_then(|table| table.candidates(hash).next()) {
            self.fetch_value(code);
        }
    }

    /// Begins to fetch the byte string with this hash; where it is has been fetched.
    #[inline]
    pub(crate) fn fetch_bytes_of(&self, hash: u64) {
        if let Some(code) = self.table.as_ref().and_then(|table| table.candidates(hash).next()) {
            fetch(self.bytes_of(code).as_ptr());
        }
    }

    /// The code of a plain column's cell, which is not NULL; it is given one if it has none.
    pub(super) fn code_for(&mut self, plain: &PlainColumn, row: usize) -> u64 {
        let (known, hash) = match (&*self.domain, &plain.data) {
            (Domain::Linear { base, scale }, PlainData::Int(values)) => {
                let value = values[row];
                let distance = value.wrapping_sub(*base) as u64;
                let code = (value >= *base && distance.is_multiple_of(*scale)).then(|| distance / *scale);
                let widest = match self.codes {
                    Codes::Constant => 0,
                    Codes::Bit(_) => 1,
                    Codes::U8(_) => 0xff,
                    Codes::U16(_) => 0xffff,
                    Codes::U32(_) => 0xffff_ffff,
                    Codes::U64(_) => u64::MAX - CODES_BEHIND,
                };
                // A line has no end of its own: it may go on as long as no other code is in its way.
                let code =
                    code.filter(|code| *code < self.sorted || (self.extra.len == 0 && *code <= widest));
                if let Some(code) = code {
                    self.sorted = self.sorted.max(code + 1);
                }
                (code, hash_int(value))
            }
            (Domain::Ints(sorted), PlainData::Int(values)) => {
                (sorted.binary_search(&values[row]).ok().map(|code| code as u64), hash_int(values[row]))
            }
            (Domain::Wides(sorted), PlainData::Wide(values)) => {
                (sorted.binary_search(&values[row]).ok().map(|code| code as u64), 0)
            }
            _ => {
                let value = plain.bytes(row);
                let hash = hash_bytes(value);
                let search = || {
                    let code =
                        if self.may_have(hash) { self.bytes_below(value, 0) as u64 } else { self.sorted };
                    (code < self.sorted && self.bytes_of(code) == value).then_some(code)
                };
                (self.code_of_bytes(value, hash).unwrap_or_else(search), hash)
            }
        };
        let code = known
            .or_else(|| self.extra.position(plain, row).map(|place| self.sorted + place as u64))
            .unwrap_or_else(|| {
                self.extra.push(plain.cell(row));
                self.sorted + self.extra.len as u64 - 1
            });
        if let Some(filter) = &mut self.filter {
            Arc::make_mut(filter).insert(hash);
        }
        code
    }

    /// Adds a code, or a NULL, behind `rows` rows.
    pub(super) fn push(&mut self, code: Option<u64>, rows: usize) {
        match code {
            None if self.all_null => {}
            None => {
                let nulls = self.nulls.get_or_insert_with(|| Bits::zeros(rows));
                nulls.resize(rows + 1);
                nulls.set(rows);
            }
            Some(code) => {
                if let Some(nulls) = &mut self.nulls {
                    nulls.resize(rows + 1);
                }
                self.max_code = self.max_code.max(code);
                self.frequency.add(code);
            }
        }
        self.codes.push(code.unwrap_or(0), rows);
    }

    /// Bytes of the strings that some rows have.
    pub(super) fn bytes_used(&self, rows: &[u32]) -> usize {
        let mut used = Bits::zeros(self.max_code as usize + 1);
        match self.all_null || self.nulls.is_some() {
            false => self.codes.for_listed(rows, |code| used.set(code as usize)),
            true => rows.iter().map(|row| *row as usize).filter(|row| !self.is_null(*row)).for_each(|row| {
                used.set(self.codes.get(row) as usize);
            }),
        }
        used.iter().map(|code| self.bytes_of(code.into()).len()).sum()
    }

    /// Adds some of the `before` rows once more.
    pub(super) fn repeat(&mut self, rows: &[u32], before: usize) {
        if let Some(nulls) = &mut self.nulls {
            nulls.repeat(rows, before);
        }
        self.codes.repeat(rows, before);
        if !self.frequency.is_exact() || self.all_null {
            return;
        }
        match &self.nulls {
            None => self.codes.for_listed(rows, |code| self.frequency.add(code)),
            Some(nulls) => rows.iter().map(|row| *row as usize).for_each(|row| {
                if !nulls.get(row) {
                    self.frequency.add(self.codes.get(row));
                }
            }),
        }
    }

    /// Only some rows, with the same codes.
    pub(super) fn keep(&self, picked: &Picked) -> EncodedColumn {
        let codes = self.codes.gather(picked);
        let nulls = self.nulls_of(picked);
        EncodedColumn {
            frequency: Frequency::new(&codes, self.max_code, picked.rows.len(), nulls.as_ref()),
            codes,
            domain: self.domain.clone(),
            extra: self.extra.clone(),
            filter: self.filter.clone(),
            table: self.table.clone(),
            by_code: self.by_code.anew(),
            nulls,
            ..*self
        }
    }

    /// Some of its rows, of so many, as a column that has its domain in common with this one: to make it takes little more
    /// than to copy their codes.
    pub(super) fn divided(&self, picked: &Picked, of: usize) -> EncodedColumn {
        EncodedColumn {
            codes: self.codes.gather(picked),
            domain: self.domain.clone(),
            extra: self.extra.clone(),
            frequency: self.frequency.of_part(picked.rows.len(), of),
            filter: self.filter.clone(),
            table: self.table.clone(),
            by_code: self.by_code.anew(),
            nulls: self.nulls_of(picked),
            ..*self
        }
    }

    /// Which of some rows are NULL, if there are any but not all.
    fn nulls_of(&self, picked: &Picked) -> Option<Bits> {
        self.nulls.as_ref().map(|nulls| nulls.gather(picked)).filter(|nulls| nulls.count() > 0)
    }

    /// Some of its rows as a column of their own that travels: it has only values that they need, or the dictionary of this column.
    /// What only speeds it up is left out.
    pub(super) fn part(&self, ty: &Type, picked: &Picked) -> EncodedColumn {
        /// Bytes of a filter for each row up to which it travels along. It may say yes to what only other rows have; a large one is
        /// made anew where they arrive.
        const FILTER_BYTES: usize = 8;
        let rows = picked.rows.len();
        let nulls = self.nulls_of(picked);
        let (codes, domain, sorted, extra) = self.needed(ty, picked, nulls.as_ref());
        // Where no row has a value, there is none that a NULL's code could stand for.
        let all_null = self.all_null || rows > 0 && sorted + extra.len as u64 == 0;
        EncodedColumn {
            codes,
            domain,
            sorted,
            extra,
            max_code: 0,
            made_of: rows,
            frequency: Frequency::default(),
            filter: self.filter.clone().filter(|filter| filter.size() <= rows * FILTER_BYTES),
            table: None,
            by_code: ByCode::default(),
            nulls: nulls.filter(|_| !all_null),
            all_null,
        }
    }

    /// Some of its rows as a column of their own, which has nothing in common with this one.
    pub(super) fn extract(&self, ty: &Type, picked: &Picked) -> EncodedColumn {
        let mut part = self.part(ty, picked);
        if Arc::ptr_eq(&part.domain, &self.domain) {
            part.domain = Arc::new(Domain::clone(&self.domain));
        }
        part.filter = self.filter.as_deref().cloned().map(Arc::new);
        part.derive(picked.rows.len());
        part.by_code = self.by_code.anew();
        part
    }

    /// Whether some rows need so much of the domain that to look for the rest of it is not worth while.
    fn needs_whole_domain(&self, picked: &Picked) -> bool {
        /// Bytes a row of a domain that is small.
        const SMALL: usize = 8;
        let (rows, entries) = (picked.rows, self.sorted as usize);
        let is_small = || self.domain.size() <= rows.len() * SMALL;
        matches!(*self.domain, Domain::Linear { .. })
            || self.all_null
            || rows.len() == self.made_of && picked.end() == self.made_of
            // A few of its strings may take most of it.
            || entries * 4 <= rows.len() && (is_small() || self.bytes_used(rows) * 2 >= self.bytes_held())
    }

    /// The codes of some rows, which of them are NULL, and what they stand for: the domain that is needed, how many codes it
    /// has, and the values of those from there on.
    fn needed(
        &self,
        ty: &Type,
        picked: &Picked,
        nulls: Option<&Bits>,
    ) -> (Codes, Arc<Domain>, u64, PlainColumn) {
        let is_whole = self.needs_whole_domain(picked);
        if is_whole {
            let codes = self.codes.gather(picked);
            if self.extra.len == 0 || codes.largest() < self.sorted {
                return (codes, self.domain.clone(), self.sorted, PlainColumn::new(ty));
            }
        }
        // Codes below this stay; of the others, those that are used follow them without a gap.
        let first = if is_whole { self.sorted } else { 0 };
        let end = self.sorted + self.extra.len as u64;
        let others = (end - first).max(1) as usize;
        let mut codes = self.codes.widened(picked.rows);
        let mut used = Bits::zeros(others);
        // A NULL needs nothing: its code is the first one, whatever that stands for.
        let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.get(row));
        for (row, code) in codes.iter().enumerate() {
            if *code >= first && (*code > 0 || !is_null(row)) {
                used.set((*code - first) as usize);
            }
        }
        let used: Vec<u32> = used.iter().collect();
        let mut place = vec![0u32; others];
        used.iter().zip(0..).for_each(|(old, new)| place[*old as usize] = new);
        for code in codes.iter_mut().filter(|code| **code >= first) {
            *code = first + u64::from(place[(*code - first) as usize]);
        }
        let of_domain = (self.sorted - first) as usize;
        let (of_domain, extra) = used.split_at(used.partition_point(|old| (*old as usize) < of_domain));
        let max = (first + used.len() as u64).saturating_sub(1);
        let domain = if is_whole { self.domain.clone() } else { Arc::new(self.domain_of(of_domain)) };
        let extra =
            self.extra.some(extra.iter().map(|old| (first + u64::from(*old) - self.sorted) as usize), ty);
        (Codes::narrow(&codes, max), domain, first + of_domain.len() as u64, extra)
    }

    /// A domain of some of its entries.
    fn domain_of(&self, codes: &[u32]) -> Domain {
        match &*self.domain {
            Domain::Linear { base, scale } => Domain::Linear { base: *base, scale: *scale },
            Domain::Ints(values) => Domain::Ints(codes.iter().map(|code| values[*code as usize]).collect()),
            Domain::Wides(values) => Domain::Wides(codes.iter().map(|code| values[*code as usize]).collect()),
            Domain::Bytes { .. } => {
                let mut offsets = Offsets::with_capacity(codes.len());
                let mut bytes = Vec::new();
                for code in codes {
                    bytes.extend_from_slice(self.bytes_of(u64::from(*code)));
                    offsets.push(bytes.len());
                }
                Domain::Bytes { offsets, bytes }
            }
        }
    }

    /// Computes what follows from the codes and what they stand for.
    pub(super) fn derive(&mut self, rows: usize) {
        let largest = self.codes.largest();
        if self.extra.len == 0
            && let Domain::Linear { .. } = *self.domain
        {
            // A line ends where the rows do.
            self.sorted = largest + 1;
        }
        self.max_code = largest.max((self.sorted + self.extra.len as u64).saturating_sub(1));
        self.frequency = Frequency::new(&self.codes, self.max_code, rows, self.nulls.as_ref());
        if self.max_code < FEW_CODES {
            self.filter = None;
        }
        self.table = self.make_table(rows).map(Arc::new);
    }

    /// Takes a column that comes from elsewhere, if it is one of this type with so many rows.
    pub(crate) fn admit(mut self, ty: &Type, rows: usize) -> Option<EncodedColumn> {
        let entries = match (&*self.domain, physical(ty)) {
            (Domain::Linear { scale, .. }, Physical::Int) if self.sorted > 0 && *scale > 0 => None,
            (Domain::Ints(values), Physical::Int) if values.is_sorted() => Some(values.len()),
            (Domain::Wides(values), Physical::Wide) if values.is_sorted() => Some(values.len()),
            (Domain::Bytes { offsets, bytes }, Physical::Bytes) if are_values(ty, offsets, bytes) => {
                Some(offsets.strings())
            }
            _ => return None,
        };
        let fits = self.codes.is_of(rows)
            && self.nulls.as_ref().is_none_or(|nulls| nulls.is_of(rows))
            && self.extra.is_of(ty)
            && self.filter.as_ref().is_none_or(|filter| filter.is_whole())
            && entries.is_none_or(|entries| entries as u64 == self.sorted);
        if !fits {
            return None;
        }
        let ends = self.sorted.checked_add(self.extra.len as u64)?;
        let first = |row: u32| self.codes.get(row as usize) == 0;
        let most = if self.all_null { 1 } else { ends };
        // There must be room for the codes of values that come later.
        let is_known =
            self.sorted <= u64::MAX - CODES_BEHIND + 1 && (rows == 0 || self.codes.largest() < most);
        if !is_known || !self.nulls.as_ref().is_none_or(|nulls| nulls.iter().all(first)) {
            return None;
        }
        self.made_of = rows;
        self.derive(rows);
        // One that is large beside the rows is left out where they come from.
        if self.filter.is_none() {
            self.filter = self.make_filter(rows).map(Arc::new);
        }
        Some(self)
    }

    /// How many entries of a dictionary of byte strings are below a bound, when the first `from` are.
    pub(crate) fn bytes_below(&self, bound: &[u8], from: usize) -> usize {
        let (mut low, mut high) = (from, self.sorted as usize);
        while low < high {
            let middle = (low + high) / 2;
            if self.bytes_of(middle as u64) < bound { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Bytes of its strings.
    pub(super) fn bytes_held(&self) -> usize {
        let domain = if let Domain::Bytes { bytes, .. } = &*self.domain { bytes.len() } else { 0 };
        domain + self.extra.bytes_held()
    }

    /// Logical size in bytes; of what it has in common with others, its share.
    pub(crate) fn size(&self) -> usize {
        self.own_size()
            + self.domain.size() / Arc::strong_count(&self.domain)
            + self.filter.as_ref().map_or(0, |filter| filter.size() / Arc::strong_count(filter))
            + self.table.as_ref().map_or(0, |table| table.size() / Arc::strong_count(table))
    }

    /// Logical size in bytes, whatever it has in common with others.
    pub(super) fn whole_size(&self) -> usize {
        self.own_size()
            + self.domain.size()
            + self.filter.as_ref().map_or(0, |filter| filter.size())
            + self.table.as_ref().map_or(0, |table| table.size())
    }

    fn own_size(&self) -> usize {
        self.codes.size()
            + self.extra.size()
            + self.nulls.as_ref().map_or(0, Bits::size)
            + self.by_code.size()
            + self.frequency.size()
    }

    /// What some codes of a dictionary stand for, as an Arrow array of the column's type;
    /// [`SqlError::batch_full`](crate::SqlError::batch_full) when they are several and too large for one.
    pub(crate) fn entries(&self, ty: &Type, codes: Range<usize>) -> Result<ArrayRef> {
        build(ty, &Entries { column: self, codes: codes.start as u64..codes.end as u64 })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        array::{arrow_cell_to_value, values_to_array},
        bits::Ranks,
        column::{SegmentColumn, Take},
        numeric::Numeric,
        value::Value,
    };

    /// Values far enough from each other that whole numbers make a dictionary where they are few; the longest strings come first.
    fn value(ty: &Type, number: Option<i64>) -> Value {
        let Some(number) = number else { return Value::Null };
        match ty {
            Type::Int4 => Value::Int4(number as i32),
            Type::Int8 => Value::Int8(number * number * 1_000_003),
            Type::Numeric(_) => Value::Numeric(Numeric::new(number * number * 1_000_003, 0)),
            _ => Value::text(format!("{:02}", 99 - number).repeat(number as usize + 1)),
        }
    }

    /// Encoded values, and some that came later, as far as the column has taken them.
    fn column_of(ty: &Type, first: &[Value], later: &[Value]) -> SegmentColumn {
        let append = |column: &mut SegmentColumn, values: &[Value]| {
            let array = values_to_array(values, ty).expect("values of the type");
            column.delta.append(array.as_ref(), ty, Take::All(values.len()));
        };
        let mut column = SegmentColumn::new(ty);
        append(&mut column, first);
        column.encode(ty, &(0..first.len() as u32).collect::<Vec<u32>>());
        append(&mut column, later);
        column.absorb_known(ty);
        column
    }

    /// The cells of an encoded column.
    fn cells(ty: &Type, column: EncodedColumn, rows: usize) -> Vec<Value> {
        let column = SegmentColumn::of(column, rows, ty);
        let array =
            column.gather(ty, &(0..rows as u32).collect::<Vec<u32>>()).expect("they fit into a batch");
        (0..rows).map(|row| arrow_cell_to_value(array.as_ref(), row, ty)).collect()
    }

    /// What has arrived of a column that travels.
    fn sent(ty: &Type, part: &EncodedColumn, rows: usize) -> EncodedColumn {
        let bytes = postcard::to_allocvec(part).expect("a column travels");
        let arrived: EncodedColumn = postcard::from_bytes(&bytes).expect("it is what was sent");
        arrived.admit(ty, rows).expect("a column of the type")
    }

    /// The values beyond the domain are those of some rows, each of them once; so are its strings where they are not few.
    fn assert_needed(part: &EncodedColumn, values: &[Value]) {
        let is_beyond = |row: &usize| !part.is_null(*row) && part.codes.get(*row) >= part.sorted;
        let beyond: BTreeSet<u64> =
            (0..values.len()).filter(is_beyond).map(|row| part.codes.get(row)).collect();
        assert_eq!(part.extra.len, beyond.len());
        let length = |value: &&Value| if let Value::Text(text) = value { text.len() } else { 0 };
        let distinct: BTreeSet<&Value> = values.iter().collect();
        let needed: usize = distinct.iter().map(length).sum();
        assert!(part.bytes_held() <= (needed * 2).max(needed + values.len() * 8));
    }

    proptest! {
        /// Of rows with few values or many, with NULLs and values that came after the column was encoded; and of a part again.
        #[test]
        fn a_part_has_the_values_of_its_rows_and_no_more_than_it_needs(
            ty in prop::sample::select(vec![
                Type::Int4, Type::Int8, Type::Text, Type::Numeric(Some((30, 0))), Type::Numeric(Some((18, 0))),
            ]),
            first in prop_oneof![
                prop::collection::vec(prop::option::weighted(0.8, 0..40i64), 1..80),
                prop::collection::vec(prop::option::weighted(0.8, 0..5i64), 1..80),
                prop::collection::vec(prop::option::weighted(0.1, 5..40i64), 1..80),
            ],
            later in prop::collection::vec(prop::option::weighted(0.8, 0..70i64), 0..40),
            picks in prop::collection::vec((any::<bool>(), any::<bool>()), 120),
            dense in any::<bool>(),
        ) {
            let of_type = |numbers: &[Option<i64>]| -> Vec<Value> {
                numbers.iter().map(|number| value(&ty, *number)).collect()
            };
            let (first, later) = (of_type(&first), of_type(&later));
            let column = column_of(&ty, &first, &later);
            let values = [first, later].concat();
            let picked = |rows: usize, pick: fn(&(bool, bool)) -> bool| -> Vec<u32> {
                (0..rows).filter(|row| dense || pick(&picks[*row])).map(|row| row as u32).collect()
            };
            let rows = picked(column.base_rows, |pick| pick.0);
            prop_assume!(!rows.is_empty());
            let ranks = Ranks::default();
            let base = column.base.as_ref().expect("it has been encoded");
            let expected: Vec<Value> = rows.iter().map(|row| values[*row as usize].clone()).collect();
            let extract = base.extract(&ty, &Picked::new(&rows, &ranks));
            assert_needed(&extract, &expected);
            prop_assert_eq!(cells(&ty, extract, rows.len()), expected.clone());
            let part = base.part(&ty, &Picked::new(&rows, &ranks));
            assert_needed(&part, &expected);
            let arrived = sent(&ty, &part, rows.len());

            let again = picked(rows.len(), |pick| pick.1);
            let ranks = Ranks::default();
            let part = arrived.part(&ty, &Picked::new(&again, &ranks));
            prop_assert_eq!(cells(&ty, arrived, rows.len()), expected.clone());
            if !again.is_empty() {
                let expected: Vec<Value> = again.iter().map(|row| expected[*row as usize].clone()).collect();
                assert_needed(&part, &expected);
                prop_assert_eq!(cells(&ty, sent(&ty, &part, again.len()), again.len()), expected);
            }
        }
    }

    #[test]
    fn what_no_column_is_made_of_is_not_admitted() {
        let ty = Type::Int8;
        let admitted = |values: &[Value], damage: &dyn Fn(&mut EncodedColumn)| {
            let column = column_of(&ty, values, &[]);
            let rows: Vec<u32> = (0..values.len() as u32).collect();
            let base = column.base.as_ref().expect("it has been encoded");
            let mut part = base.part(&ty, &Picked::new(&rows, &Ranks::default()));
            damage(&mut part);
            part.admit(&ty, values.len()).is_some()
        };
        let numbers: Vec<Value> = (0..1000).map(Value::Int8).collect();
        let line = |scale: u64| {
            move |part: &mut EncodedColumn| {
                assert!(matches!(*part.domain, Domain::Linear { .. }));
                part.domain = Arc::new(Domain::Linear { base: 0, scale });
            }
        };
        assert!(admitted(&numbers, &|_| {}) && admitted(&numbers, &line(1)));
        assert!(!admitted(&numbers, &line(0)));
        assert!(admitted(&numbers, &|part| part.sorted = u64::MAX - CODES_BEHIND + 1));
        assert!(!admitted(&numbers, &|part| part.sorted = u64::MAX - CODES_BEHIND + 2));
        let nothing = vec![Value::Null; 3];
        let codes = |codes: [u64; 3]| move |part: &mut EncodedColumn| part.codes = Codes::narrow(&codes, 9);
        assert!(admitted(&nothing, &codes([0; 3])));
        assert!(!admitted(&nothing, &codes([0, 9, 0])));
    }

    #[test]
    fn numbers_may_be_as_far_apart_as_they_can_be() {
        let ty = Type::Int8;
        let numbers = |numbers: &[i64]| numbers.iter().map(|number| Value::Int8(*number)).collect::<Vec<_>>();
        let (first, later) = (numbers(&[i64::MIN, 0, i64::MAX, -1]), numbers(&[7, i64::MIN + 1, i64::MAX]));
        let (nearly, beside) = (numbers(&[i64::MIN + 1, i64::MAX, -1]), numbers(&[i64::MIN, i64::MIN + 7]));
        let all = [(&first[..], &later), (&first[..3], &later), (&first[..2], &later), (&first[1..], &later)];
        for (first, later) in all.into_iter().chain([(&nearly[..], &beside)]) {
            let column = column_of(&ty, first, later);
            let values = [first, later].concat();
            let found = column.gather(&ty, &(0..values.len() as u32).collect::<Vec<_>>()).expect("a batch");
            let found = (0..values.len()).map(|row| arrow_cell_to_value(found.as_ref(), row, &ty));
            assert_eq!(found.collect::<Vec<_>>(), values);
            let base = column.base.as_ref().expect("it has been encoded");
            let rows: Vec<u32> = (0..first.len() as u32).collect();
            let part = base.part(&ty, &Picked::new(&rows, &Ranks::default()));
            assert_eq!(cells(&ty, sent(&ty, &part, rows.len()), rows.len()), first);
        }
    }

    #[test]
    fn few_rows_of_many_travel_without_the_filter() {
        let ty = Type::Int4;
        let values: Vec<Value> = (0..20_000).map(Value::Int4).collect();
        let column = column_of(&ty, &values, &[]);
        let base = column.base.as_ref().expect("it has been encoded");
        for (rows, travels) in [(0..20_000, true), (10_000..10_005, false)] {
            let rows: Vec<u32> = rows.collect();
            let ranks = Ranks::default();
            let picked = Picked::new(&rows, &ranks);
            let part = base.part(&ty, &picked);
            assert_eq!(part.filter.is_some(), travels);
            let arrived = sent(&ty, &part, rows.len());
            // One that fits is made anew.
            let filter = arrived.filter.as_ref().expect("the values are many");
            assert!(travels || filter.size() < 1_000, "{} bytes", filter.size());
            assert_eq!(cells(&ty, arrived, rows.len()), values[rows[0] as usize..][..rows.len()]);
        }
        let bytes = |rows: &[u32]| {
            let part = base.part(&ty, &Picked::new(rows, &Ranks::default()));
            postcard::to_allocvec(&part).expect("a column travels").len()
        };
        assert!(bytes(&[7]) < 100, "{} bytes", bytes(&[7]));
    }
}
