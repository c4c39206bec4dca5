//! Columns of a segment: a plain form that grows, and an encoded form that is small and fast to compare.
//!
//! Both map SQL values onto three physical domains, each ordered as SQL orders the values:
//! - [`Physical::Int`]: everything that fits in 64 bits (booleans, integers, dates and times, decimals of up to 18
//!   digits, and floating point numbers by an order-preserving mapping of their bits);
//! - [`Physical::Wide`]: decimals of more digits;
//! - [`Physical::Bytes`]: strings (`char(n)` without its trailing blanks, which mean nothing to its order), uuid, bytea,
//!   and numeric without a declared precision (as text, whose byte order means nothing).
//!
//! An encoded column is a vector of narrow codes (one bit to 64 bits wide; constant columns have none) and a
//! domain that maps codes to values monotonically: `base + scale * code` for whole numbers, a sorted dictionary
//! otherwise. So a comparison with a constant becomes a comparison of codes, and the domain's ends are the zone map.

use std::sync::Arc;

use arrow::{
    array::{
        Array, ArrayRef, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray,
        StringArray,
    },
    buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer},
    datatypes::{
        ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
        Int64Type, Time64MicrosecondType, TimestampMicrosecondType,
    },
};
use hashbrown::{HashMap, HashTable};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    array::DECIMAL_NAN,
    bits::Bits,
    simd,
    types::Type,
    value_filter::{ValueFilter, hash_bytes, hash_int},
};

/// The physical domain of a SQL type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Physical {
    Int,
    Wide,
    Bytes,
}

/// The physical domain of a column of this type.
pub(crate) fn physical(ty: &Type) -> Physical {
    match ty {
        Type::Numeric(Some((precision, _))) if *precision <= 18 => Physical::Int,
        Type::Numeric(Some((precision, _))) if *precision <= 38 => Physical::Wide,
        Type::Numeric(_) | Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Uuid | Type::Bytea => {
            Physical::Bytes
        }
        _ => Physical::Int,
    }
}

/// Maps a double to an integer in the same order; every NaN becomes one, above everything.
pub(crate) fn float_to_int(value: f64) -> i64 {
    let bits = if value.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { value.to_bits() } as i64;
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

pub(crate) fn int_to_float(value: i64) -> f64 {
    f64::from_bits((if value < 0 { value ^ i64::MAX } else { value }) as u64)
}

/// A column that rows are appended to.
#[derive(Debug)]
pub(crate) struct PlainColumn {
    nulls: Option<Bits>,
    len: usize,
    data: PlainData,
}

#[derive(Debug)]
pub(crate) enum PlainData {
    Int(Vec<i64>),
    Wide(Vec<i128>),
    Bytes { offsets: Vec<u32>, bytes: Vec<u8> },
}

/// Which rows of a batch to take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Take<'a> {
    /// All of them.
    All(usize),
    /// Those with these indices.
    Rows(&'a [u32]),
}

impl Take<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Take::All(rows) => *rows,
            Take::Rows(rows) => rows.len(),
        }
    }

    #[inline]
    fn for_each(&self, mut f: impl FnMut(usize)) {
        match self {
            Take::All(rows) => (0..*rows).for_each(f),
            Take::Rows(rows) => rows.iter().for_each(|row| f(*row as usize)),
        }
    }
}

impl PlainColumn {
    pub(crate) fn new(ty: &Type) -> PlainColumn {
        let data = match physical(ty) {
            Physical::Int => PlainData::Int(Vec::new()),
            Physical::Wide => PlainData::Wide(Vec::new()),
            Physical::Bytes => PlainData::Bytes { offsets: vec![0], bytes: Vec::new() },
        };
        PlainColumn { nulls: None, len: 0, data }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn data(&self) -> &PlainData {
        &self.data
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.get(row))
    }

    pub(crate) fn nulls(&self) -> Option<&Bits> {
        self.nulls.as_ref()
    }

    pub(crate) fn int(&self, row: usize) -> i64 {
        match &self.data {
            PlainData::Int(values) => values[row],
            _ => 0,
        }
    }

    pub(crate) fn wide(&self, row: usize) -> i128 {
        match &self.data {
            PlainData::Wide(values) => values[row],
            _ => 0,
        }
    }

    pub(crate) fn bytes(&self, row: usize) -> &[u8] {
        match &self.data {
            PlainData::Bytes { offsets, bytes } => &bytes[offsets[row] as usize..offsets[row + 1] as usize],
            _ => &[],
        }
    }

    /// The rows from `first` on.
    fn rest(&self, first: usize, ty: &Type) -> PlainColumn {
        let mut rest = PlainColumn::new(ty);
        for row in first..self.len {
            let at = rest.len;
            rest.push_cell(self, row);
            if let Some(nulls) = &mut rest.nulls {
                nulls.resize(at + 1);
            }
            if self.is_null(row) {
                rest.nulls.get_or_insert_with(|| Bits::zeros(at + 1)).set(at);
            }
        }
        rest
    }

    /// Where the value of another column's cell is.
    fn position(&self, other: &PlainColumn, row: usize) -> Option<usize> {
        match (&self.data, &other.data) {
            (PlainData::Int(values), PlainData::Int(others)) => values.iter().position(|v| *v == others[row]),
            (PlainData::Wide(values), PlainData::Wide(others)) => {
                values.iter().position(|v| *v == others[row])
            }
            _ => (0..self.len).find(|place| self.bytes(*place) == other.bytes(row)),
        }
    }

    /// Appends another column's cell, without its being NULL.
    fn push_cell(&mut self, other: &PlainColumn, row: usize) {
        self.len += 1;
        match (&mut self.data, &other.data) {
            (PlainData::Int(values), PlainData::Int(others)) => values.push(others[row]),
            (PlainData::Wide(values), PlainData::Wide(others)) => values.push(others[row]),
            (PlainData::Bytes { offsets, bytes }, _) => {
                bytes.extend_from_slice(other.bytes(row));
                offsets.push(bytes.len() as u32);
            }
            _ => {}
        }
    }

    /// Logical size in bytes.
    pub(crate) fn size(&self) -> usize {
        let data = match &self.data {
            PlainData::Int(values) => values.len() * 8,
            PlainData::Wide(values) => values.len() * 16,
            PlainData::Bytes { offsets, bytes } => offsets.len() * 4 + bytes.len(),
        };
        data + self.nulls.as_ref().map_or(0, Bits::size)
    }

    /// Appends cells of an array of this column's Arrow type.
    pub(crate) fn append(&mut self, array: &dyn Array, ty: &Type, take: Take) {
        let before = self.len;
        self.len += take.len();
        if array.null_count() > 0 {
            let nulls = self.nulls.get_or_insert_with(|| Bits::zeros(before));
            nulls.resize(self.len);
            let mut at = before;
            take.for_each(|row| {
                if array.is_null(row) {
                    nulls.set(at);
                }
                at += 1;
            });
        } else if let Some(nulls) = &mut self.nulls {
            nulls.resize(self.len);
        }
        match &mut self.data {
            PlainData::Int(values) => append_ints(values, array, ty, take),
            PlainData::Wide(values) => {
                let array = array.as_primitive::<Decimal128Type>();
                take.for_each(|row| {
                    let value = array.value(row);
                    values.push(if value == DECIMAL_NAN { i128::MAX } else { value });
                });
            }
            PlainData::Bytes { offsets, bytes } => {
                let mut push = |value: &[u8]| {
                    bytes.extend_from_slice(value);
                    offsets.push(bytes.len() as u32);
                };
                // The slot of a NULL may hold anything: it is stored empty.
                let empty = |row: usize| array.null_count() > 0 && array.is_null(row);
                match ty {
                    Type::Uuid => {
                        let array = array.as_fixed_size_binary();
                        take.for_each(|row| push(if empty(row) { &[] } else { array.value(row) }));
                    }
                    Type::Bytea => {
                        let array = array.as_binary::<i32>();
                        take.for_each(|row| push(if empty(row) { &[] } else { array.value(row) }));
                    }
                    Type::Char(_) => {
                        let array = array.as_string::<i32>();
                        take.for_each(|row| {
                            let text = if empty(row) { "" } else { array.value(row) };
                            push(text.trim_end_matches(' ').as_bytes());
                        });
                    }
                    _ => {
                        let array = array.as_string::<i32>();
                        take.for_each(|row| push(if empty(row) { &[] } else { array.value(row).as_bytes() }));
                    }
                }
            }
        }
    }
}

fn append_ints(values: &mut Vec<i64>, array: &dyn Array, ty: &Type, take: Take) {
    values.reserve(take.len());
    macro_rules! primitive {
        ($arrow:ty, $map:expr) => {{
            let array = array.as_primitive::<$arrow>().values();
            take.for_each(|row| values.push($map(array[row])));
        }};
    }
    match ty {
        Type::Bool => {
            let array = array.as_boolean();
            take.for_each(|row| values.push(i64::from(array.value(row))));
        }
        Type::Int2 => primitive!(Int16Type, i64::from),
        Type::Int4 => primitive!(Int32Type, i64::from),
        Type::Int8 => primitive!(Int64Type, |v| v),
        Type::Float4 => primitive!(Float32Type, |v| float_to_int(f64::from(v))),
        Type::Float8 => primitive!(Float64Type, float_to_int),
        Type::Date => primitive!(Date32Type, i64::from),
        Type::Time => primitive!(Time64MicrosecondType, |v| v),
        Type::Timestamp | Type::TimestampTz => primitive!(TimestampMicrosecondType, |v| v),
        Type::Numeric(_) => {
            primitive!(Decimal128Type, |v| if v == DECIMAL_NAN { i64::MAX } else { v as i64 })
        }
        Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Uuid | Type::Bytea | Type::Interval => {
            unreachable!("physical() maps no such type to integers that a column may have")
        }
    }
}

/// Codes of an encoded column.
#[derive(Debug)]
pub(crate) enum Codes {
    /// Every code is 0.
    Constant,
    Bit(Bits),
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Codes {
    fn narrow(codes: &[u64], max: u64) -> Codes {
        match max {
            0 => Codes::Constant,
            1 => {
                let mut bits = Bits::zeros(codes.len());
                codes.iter().enumerate().filter(|(_, code)| **code == 1).for_each(|(row, _)| bits.set(row));
                Codes::Bit(bits)
            }
            2..=0xff => Codes::U8(codes.iter().map(|code| *code as u8).collect()),
            0x100..=0xffff => Codes::U16(codes.iter().map(|code| *code as u16).collect()),
            0x1_0000..=0xffff_ffff => Codes::U32(codes.iter().map(|code| *code as u32).collect()),
            _ => Codes::U64(codes.to_vec()),
        }
    }

    #[inline]
    pub(crate) fn get(&self, row: usize) -> u64 {
        match self {
            Codes::Constant => 0,
            Codes::Bit(bits) => u64::from(bits.get(row)),
            Codes::U8(codes) => u64::from(codes[row]),
            Codes::U16(codes) => u64::from(codes[row]),
            Codes::U32(codes) => u64::from(codes[row]),
            Codes::U64(codes) => codes[row],
        }
    }

    /// Adds a code behind `rows` others; the codes become wider if it does not fit.
    fn push(&mut self, code: u64, rows: usize) {
        fn add<T>(codes: &mut Vec<T>, code: T) {
            if codes.len() == codes.capacity() {
                // Doubling would leave half of a full segment's memory unused.
                codes.reserve_exact(1024.max(codes.len() / 16));
            }
            codes.push(code);
        }
        let fits = match self {
            Codes::Constant => code == 0,
            Codes::Bit(_) => code <= 1,
            Codes::U8(_) => code <= 0xff,
            Codes::U16(_) => code <= 0xffff,
            Codes::U32(_) => code <= 0xffff_ffff,
            Codes::U64(_) => true,
        };
        if !fits {
            let wide: Vec<u64> = (0..rows).map(|row| self.get(row)).collect();
            *self = Codes::narrow(&wide, code);
        }
        match self {
            Codes::Constant => {}
            Codes::Bit(bits) => {
                bits.resize(rows + 1);
                if code == 1 {
                    bits.set(rows);
                }
            }
            Codes::U8(codes) => add(codes, code as u8),
            Codes::U16(codes) => add(codes, code as u16),
            Codes::U32(codes) => add(codes, code as u32),
            Codes::U64(codes) => add(codes, code),
        }
    }

    /// The codes of some rows.
    fn gather(&self, rows: &[u32]) -> Codes {
        fn take<T: Copy>(codes: &[T], rows: &[u32]) -> Vec<T> {
            rows.iter().map(|row| codes[*row as usize]).collect()
        }
        match self {
            Codes::Constant => Codes::Constant,
            Codes::Bit(bits) => Codes::Bit(bits.gather(rows)),
            Codes::U8(codes) => Codes::U8(take(codes, rows)),
            Codes::U16(codes) => Codes::U16(take(codes, rows)),
            Codes::U32(codes) => Codes::U32(take(codes, rows)),
            Codes::U64(codes) => Codes::U64(take(codes, rows)),
        }
    }

    fn size(&self) -> usize {
        match self {
            Codes::Constant => 0,
            Codes::Bit(bits) => bits.size(),
            Codes::U8(codes) => codes.len(),
            Codes::U16(codes) => codes.len() * 2,
            Codes::U32(codes) => codes.len() * 4,
            Codes::U64(codes) => codes.len() * 8,
        }
    }
}

/// What codes stand for.
#[derive(Debug)]
pub(crate) enum Domain {
    /// `base + scale * code`
    Linear { base: i64, scale: u64 },
    /// Sorted.
    Ints(Vec<i64>),
    /// Sorted.
    Wides(Vec<i128>),
    /// Sorted.
    Bytes { offsets: Vec<u32>, bytes: Vec<u8> },
}

/// A column of codes. The domain is made once; values that are added later and are not in it get codes of their own
/// above it, in no order, until there are so many that the column is encoded again.
#[derive(Debug)]
pub(crate) struct EncodedColumn {
    pub(crate) codes: Codes,
    pub(crate) domain: Domain,
    /// Codes below this are the domain's.
    pub(crate) sorted: u64,
    /// The values of the codes from there on.
    pub(crate) extra: PlainColumn,
    /// The largest code.
    pub(crate) max_code: u64,
    /// Rows when the domain was made.
    made_of: usize,
    /// How often codes occur.
    pub(crate) frequency: Frequency,
    /// The values, unless they are so few that a search is as cheap.
    filter: Option<ValueFilter>,
    pub(crate) nulls: Option<Bits>,
    /// Whether every row is NULL: the domain is then meaningless.
    pub(crate) all_null: bool,
}

impl EncodedColumn {
    /// Number of dictionary entries, if there is a dictionary.
    pub(crate) fn dictionary_len(&self) -> Option<usize> {
        match &self.domain {
            Domain::Linear { .. } => None,
            _ => Some(self.sorted as usize + self.extra.len),
        }
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.all_null || self.nulls.as_ref().is_some_and(|nulls| nulls.get(row))
    }

    #[inline]
    pub(crate) fn int_of(&self, code: u64) -> i64 {
        if code >= self.sorted {
            let place = (code - self.sorted) as usize;
            // The code of a NULL may stand for nothing.
            return if place < self.extra.len { self.extra.int(place) } else { 0 };
        }
        match &self.domain {
            Domain::Linear { base, scale } => base.wrapping_add(scale.wrapping_mul(code) as i64),
            Domain::Ints(values) => values.get(code as usize).copied().unwrap_or(0),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn wide_of(&self, code: u64) -> i128 {
        if code >= self.sorted {
            let place = (code - self.sorted) as usize;
            // The code of a NULL may stand for nothing.
            return if place < self.extra.len { self.extra.wide(place) } else { 0 };
        }
        match &self.domain {
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
        match &self.domain {
            Domain::Bytes { offsets, bytes } if (code as usize) + 1 < offsets.len() => {
                &bytes[offsets[code as usize] as usize..offsets[code as usize + 1] as usize]
            }
            _ => &[],
        }
    }

    /// Whether a value with this hash may be in some row.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_have(hash))
    }

    fn make_filter(&self, rows: usize) -> Option<ValueFilter> {
        if self.max_code < 256 {
            return None;
        }
        match &self.domain {
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
                let entries = offsets.len() - 1;
                let mut filter = ValueFilter::new(entries);
                (0..entries).for_each(|code| filter.insert(hash_bytes(self.bytes_of(code as u64))));
                Some(filter)
            }
        }
    }

    /// The code of a plain column's cell, which is not NULL; it is given one if it has none.
    fn code_for(&mut self, plain: &PlainColumn, row: usize) -> u64 {
        let (known, hash) = match (&mut self.domain, &plain.data) {
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
                    Codes::U64(_) => u64::MAX - 1,
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
                let code = if self.may_have(hash) { self.bytes_below(value, 0) as u64 } else { self.sorted };
                ((code < self.sorted && self.bytes_of(code) == value).then_some(code), hash)
            }
        };
        let code = known
            .or_else(|| self.extra.position(plain, row).map(|place| self.sorted + place as u64))
            .unwrap_or_else(|| {
                self.extra.push_cell(plain, row);
                self.sorted + self.extra.len as u64 - 1
            });
        if let Some(filter) = &mut self.filter {
            filter.insert(hash);
        }
        code
    }

    /// How many of these of the first `rows` rows are not NULL, and their sum: of whole numbers, or of decimals without
    /// their point. `None` when there may be a NaN among them.
    pub(crate) fn sum(&self, rows: usize, mask: &Bits) -> Option<(u64, i128)> {
        let mut words = mask.words().to_vec();
        if self.all_null {
            return Some((0, 0));
        }
        if let Some(nulls) = &self.nulls {
            simd::subtract(&mut words, nulls.words());
        }
        let count = simd::count_ones(&words) as u64;
        let is_nan = |value: i64| value == i64::MAX;
        match &self.domain {
            Domain::Linear { base, scale } if self.extra.len == 0 => {
                if self.sorted > 0 && is_nan(self.int_of(self.sorted - 1)) {
                    return None;
                }
                let codes: u128 = match &self.codes {
                    Codes::Constant => 0,
                    Codes::Bit(bits) => simd::intersect(&mut words, bits.words()) as u128,
                    // The code of a NULL is 0.
                    Codes::U8(codes) if mask.count() == rows => u128::from(simd::sum_u8(codes)),
                    Codes::U16(codes) if mask.count() == rows => u128::from(simd::sum_u16(codes)),
                    Codes::U32(codes) if mask.count() == rows => u128::from(simd::sum_u32(codes)),
                    codes => Bits::from_words(words, rows)
                        .iter()
                        .map(|row| u128::from(codes.get(row as usize)))
                        .sum(),
                };
                let sum = i128::from(*base) * i128::from(count) + (*scale as i128) * codes as i128;
                Some((count, sum))
            }
            Domain::Linear { .. } | Domain::Ints(_) => {
                let mut sum = 0;
                for row in Bits::from_words(words, rows).iter() {
                    let value = self.int_of(self.codes.get(row as usize));
                    if is_nan(value) {
                        return None;
                    }
                    sum += i128::from(value);
                }
                Some((count, sum))
            }
            _ => None,
        }
    }

    /// Adds a code, or a NULL, behind `rows` rows.
    fn push(&mut self, code: Option<u64>, rows: usize) {
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

    /// Keeps only some rows.
    fn keep(&mut self, rows: &[u32]) {
        self.codes = self.codes.gather(rows);
        self.nulls = self.nulls.as_ref().map(|nulls| nulls.gather(rows)).filter(|nulls| nulls.count() > 0);
        self.frequency = Frequency::new(&self.codes, self.max_code, rows.len(), self.nulls.as_ref());
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

    /// Logical size in bytes.
    pub(crate) fn size(&self) -> usize {
        let domain = match &self.domain {
            Domain::Linear { .. } => 16,
            Domain::Ints(values) => values.len() * 8,
            Domain::Wides(values) => values.len() * 16,
            Domain::Bytes { offsets, bytes } => offsets.len() * 4 + bytes.len(),
        };
        self.codes.size()
            + domain
            + self.extra.size()
            + self.nulls.as_ref().map_or(0, Bits::size)
            + self.frequency.size()
            + self.filter.as_ref().map_or(0, ValueFilter::size)
    }

    /// The dictionary as an Arrow array of the column's type, one element for each code.
    pub(crate) fn dictionary(&self, ty: &Type) -> Option<ArrayRef> {
        let entries = self.dictionary_len()?;
        Some(build(ty, &Entries { column: self, entries: entries as u64 }))
    }
}

/// How often the codes of a column occur: what the index chooses by.
#[derive(Debug, Default)]
pub(crate) struct Frequency {
    /// Of a narrow column the rows of each code, NULLs left out.
    exact: Vec<u32>,
    /// Of a wide one the codes that stand out, ascending, with about their rows.
    heavy: Vec<(u64, u32)>,
    /// Rows of each other code.
    rest: f64,
}

impl Frequency {
    /// Codes up to which each is counted.
    const EXACT: u64 = 1024;
    /// Rows that are looked at in a wide column, and how often a code must be met to stand out.
    const SAMPLE: usize = 2048;
    const OFTEN: usize = 6;

    fn new(codes: &Codes, max_code: u64, rows: usize, nulls: Option<&Bits>) -> Frequency {
        let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.get(row));
        if max_code < Frequency::EXACT {
            let mut exact = vec![0; max_code as usize + 1];
            (0..rows).filter(|row| !is_null(*row)).for_each(|row| exact[codes.get(row) as usize] += 1);
            return Frequency { exact, ..Frequency::default() };
        }
        let stride = (rows / Frequency::SAMPLE).max(1);
        let mut sample: Vec<u64> =
            (0..rows).step_by(stride).filter(|row| !is_null(*row)).map(|row| codes.get(row)).collect();
        sample.sort_unstable();
        let mut heavy = Vec::new();
        let mut light = 0;
        for same in sample.chunk_by(|a, b| a == b) {
            if same.len() >= Frequency::OFTEN {
                heavy.push((same[0], (same.len() * stride) as u32));
            } else {
                light += same.len() * stride;
            }
        }
        Frequency { exact: Vec::new(), heavy, rest: light as f64 / (max_code as f64 + 1.0) }
    }

    /// Another row has this code.
    fn add(&mut self, code: u64) {
        if let Some(count) = self.exact.get_mut(code as usize) {
            *count += 1;
        }
    }

    /// About how many rows have one of these codes.
    pub(crate) fn estimate(&self, low: u64, high: u64) -> usize {
        if !self.exact.is_empty() {
            let high = (high as usize).min(self.exact.len() - 1);
            return self
                .exact
                .get(low as usize..=high)
                .map_or(0, |counts| counts.iter().sum::<u32>() as usize);
        }
        let first = self.heavy.partition_point(|(code, _)| *code < low);
        let heavy: u32 =
            self.heavy[first..].iter().take_while(|(code, _)| *code <= high).map(|(_, n)| n).sum();
        heavy as usize + (((high - low) as f64 + 1.0) * self.rest).ceil() as usize
    }

    fn size(&self) -> usize {
        self.exact.len() * 4 + self.heavy.len() * 12
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Encodes the values of `rows` rows; `value` is not asked for rows that are NULL.
fn encode_ints(
    rows: usize,
    is_null: &dyn Fn(usize) -> bool,
    value: &dyn Fn(usize) -> i64,
) -> (Codes, Domain, u64) {
    let values: Vec<Option<i64>> = (0..rows).map(|row| (!is_null(row)).then(|| value(row))).collect();
    let present = || values.iter().flatten().copied();
    let (Some(low), Some(high)) = (present().min(), present().max()) else {
        return (Codes::Constant, Domain::Linear { base: 0, scale: 1 }, 0);
    };
    let distance = |v: i64| v.wrapping_sub(low) as u64;
    let mut scale = 1;
    if distance(high) > 0xff {
        let mut divisor = 0;
        for v in present() {
            divisor = greatest_common_divisor(divisor, distance(v));
            if divisor == 1 {
                break;
            }
        }
        scale = divisor.max(1);
    }
    let max = distance(high) / scale;
    if max > 0xffff
        && let Some(dictionary) = small_dictionary(present(), rows, max)
    {
        let codes: Vec<u64> = values
            .iter()
            .map(|v| v.map_or(0, |v| dictionary.binary_search(&v).map_or(0, |code| code as u64)))
            .collect();
        let max = dictionary.len() as u64 - 1;
        return (Codes::narrow(&codes, max), Domain::Ints(dictionary), max);
    }
    let codes: Vec<u64> = values.iter().map(|v| v.map_or(0, |v| distance(v) / scale)).collect();
    (Codes::narrow(&codes, max), Domain::Linear { base: low, scale }, max)
}

/// The sorted distinct values, if codes into them save memory over plain codes up to `max`.
fn small_dictionary(values: impl Iterator<Item = i64>, rows: usize, max: u64) -> Option<Vec<i64>> {
    let saved_per_row = if max > 0xffff_ffff { 6 } else { 2 };
    let limit = (rows * saved_per_row / 8).min(0x1_0000);
    let mut distinct: HashMap<i64, ()> = HashMap::new();
    for value in values {
        if distinct.insert(value, ()).is_none() && distinct.len() > limit {
            return None;
        }
    }
    let mut dictionary: Vec<i64> = distinct.into_keys().collect();
    dictionary.sort_unstable();
    Some(dictionary)
}

fn encode_wides(
    rows: usize,
    is_null: &dyn Fn(usize) -> bool,
    value: &dyn Fn(usize) -> i128,
) -> (Codes, Domain, u64) {
    let mut dictionary: Vec<i128> = (0..rows).filter(|row| !is_null(*row)).map(value).collect();
    dictionary.sort_unstable();
    dictionary.dedup();
    let codes: Vec<u64> = (0..rows)
        .map(
            |row| {
                if is_null(row) { 0 } else { dictionary.binary_search(&value(row)).map_or(0, |c| c as u64) }
            },
        )
        .collect();
    let max = (dictionary.len() as u64).saturating_sub(1);
    (Codes::narrow(&codes, max), Domain::Wides(dictionary), max)
}

fn encode_bytes<'a>(
    rows: usize,
    is_null: &dyn Fn(usize) -> bool,
    value: &dyn Fn(usize) -> &'a [u8],
) -> (Codes, Domain, u64) {
    let mut distinct: Vec<&[u8]> = Vec::new();
    let mut table: HashTable<u32> = HashTable::new();
    let mut codes: Vec<u64> = Vec::with_capacity(rows);
    for row in 0..rows {
        if is_null(row) {
            codes.push(0);
            continue;
        }
        let bytes = value(row);
        let hash = xxh3_64(bytes);
        let entry = table.entry(
            hash,
            |code| distinct[*code as usize] == bytes,
            |code| xxh3_64(distinct[*code as usize]),
        );
        let code = match entry {
            hashbrown::hash_table::Entry::Occupied(entry) => *entry.get(),
            hashbrown::hash_table::Entry::Vacant(entry) => {
                let code = distinct.len() as u32;
                entry.insert(code);
                distinct.push(bytes);
                code
            }
        };
        codes.push(u64::from(code));
    }
    let mut order: Vec<u32> = (0..distinct.len() as u32).collect();
    order.sort_unstable_by_key(|code| distinct[*code as usize]);
    let mut rank = vec![0u64; distinct.len()];
    let mut offsets = Vec::with_capacity(distinct.len() + 1);
    let mut bytes = Vec::with_capacity(distinct.iter().map(|entry| entry.len()).sum());
    offsets.push(0);
    for (place, code) in order.iter().enumerate() {
        rank[*code as usize] = place as u64;
        bytes.extend_from_slice(distinct[*code as usize]);
        offsets.push(bytes.len() as u32);
    }
    for (row, code) in codes.iter_mut().enumerate() {
        if !is_null(row) {
            *code = rank[*code as usize];
        }
    }
    let max = (distinct.len() as u64).saturating_sub(1);
    (Codes::narrow(&codes, max), Domain::Bytes { offsets, bytes }, max)
}

/// A column of a segment: the encoded part, then the plain part.
#[derive(Debug)]
pub(crate) struct SegmentColumn {
    pub(crate) base: Option<EncodedColumn>,
    pub(crate) base_rows: usize,
    pub(crate) delta: PlainColumn,
}

impl SegmentColumn {
    pub(crate) fn new(ty: &Type) -> SegmentColumn {
        SegmentColumn { base: None, base_rows: 0, delta: PlainColumn::new(ty) }
    }

    pub(crate) fn size(&self) -> usize {
        self.base.as_ref().map_or(0, EncodedColumn::size) + self.delta.size()
    }

    #[inline]
    pub(crate) fn is_null(&self, row: usize) -> bool {
        match &self.base {
            Some(base) if row < self.base_rows => base.is_null(row),
            _ => self.delta.is_null(row - self.base_rows),
        }
    }

    /// Whether a row may be NULL.
    pub(crate) fn has_nulls(&self) -> bool {
        self.delta.nulls.is_some()
            || self.base.as_ref().is_some_and(|base| base.all_null || base.nulls.is_some())
    }

    #[inline]
    pub(crate) fn int(&self, row: usize) -> i64 {
        match &self.base {
            Some(base) if row < self.base_rows => base.int_of(base.codes.get(row)),
            _ => self.delta.int(row - self.base_rows),
        }
    }

    #[inline]
    pub(crate) fn wide(&self, row: usize) -> i128 {
        match &self.base {
            Some(base) if row < self.base_rows => base.wide_of(base.codes.get(row)),
            _ => self.delta.wide(row - self.base_rows),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self, row: usize) -> &[u8] {
        match &self.base {
            Some(base) if row < self.base_rows => base.bytes_of(base.codes.get(row)),
            _ => self.delta.bytes(row - self.base_rows),
        }
    }

    /// The cells of these rows as an Arrow array.
    pub(crate) fn gather(&self, ty: &Type, rows: &[u32]) -> ArrayRef {
        gather_runs(ty, &[(self, rows)])
    }

    /// Gives the plain rows codes, behind the others; the domain stays as it is, if that is reasonable.
    pub(crate) fn absorb(&mut self, ty: &Type) {
        /// Values beyond the domain with which a column is encoded again.
        const EXTRA: usize = 256;
        if let Some(base) = &mut self.base {
            let mut done = 0;
            while done < self.delta.len && base.extra.len < EXTRA {
                let code = match self.delta.is_null(done) {
                    true => None,
                    false if base.all_null => break,
                    false => Some(base.code_for(&self.delta, done)),
                };
                base.push(code, self.base_rows);
                self.base_rows += 1;
                done += 1;
            }
            self.delta = self.delta.rest(done, ty);
            if self.delta.len == 0 {
                return;
            }
        }
        let all: Vec<u32> = (0..(self.base_rows + self.delta.len) as u32).collect();
        self.encode(ty, &all);
    }

    /// Keeps only these rows, all of them encoded.
    pub(crate) fn compact(&mut self, ty: &Type, keep: &[u32]) {
        if self.delta.len * 4 > self.base_rows {
            return self.encode(ty, keep);
        }
        self.absorb(ty);
        match &mut self.base {
            // Most of the domain is still in use.
            Some(base) if !base.all_null && keep.len() * 2 >= base.made_of => {
                base.keep(keep);
                self.base_rows = keep.len();
            }
            _ => self.encode(ty, keep),
        }
    }

    /// Keeps only these rows, encoded from scratch.
    pub(crate) fn encode(&mut self, ty: &Type, keep: &[u32]) {
        let is_null = |i: usize| self.is_null(keep[i] as usize);
        let rows = keep.len();
        let (codes, domain, max_code) = match physical(ty) {
            Physical::Int => encode_ints(rows, &is_null, &|i| self.int(keep[i] as usize)),
            Physical::Wide => encode_wides(rows, &is_null, &|i| self.wide(keep[i] as usize)),
            Physical::Bytes => encode_bytes(rows, &is_null, &|i| self.bytes(keep[i] as usize)),
        };
        let mut nulls = Bits::zeros(rows);
        let mut null_count = 0;
        for i in (0..rows).filter(|i| is_null(*i)) {
            nulls.set(i);
            null_count += 1;
        }
        let all_null = rows > 0 && null_count == rows;
        let nulls = (null_count > 0 && !all_null).then_some(nulls);
        let frequency = Frequency::new(&codes, max_code, rows, nulls.as_ref());
        let sorted = match &domain {
            Domain::Linear { .. } => max_code + 1,
            Domain::Ints(values) => values.len() as u64,
            Domain::Wides(values) => values.len() as u64,
            Domain::Bytes { offsets, .. } => offsets.len() as u64 - 1,
        };
        let mut base = EncodedColumn {
            codes,
            domain,
            sorted,
            extra: PlainColumn::new(ty),
            max_code,
            made_of: rows,
            frequency,
            filter: None,
            nulls,
            all_null,
        };
        base.filter = base.make_filter(rows);
        self.base = Some(base);
        self.base_rows = rows;
        self.delta = PlainColumn::new(ty);
    }
}

/// Where the physical values of an array come from.
trait Cells {
    fn rows(&self) -> usize;
    fn nulls(&self) -> Option<NullBuffer>;
    fn ints(&self, f: impl FnMut(i64));
    fn wides(&self, f: impl FnMut(i128));
    fn bytes(&self, f: impl FnMut(&[u8]));
}

/// Rows of several columns of one type, one after the other.
struct Runs<'a>(&'a [(&'a SegmentColumn, &'a [u32])]);

/// The cells of rows of several segments' columns as one Arrow array.
pub(crate) fn gather_runs(ty: &Type, runs: &[(&SegmentColumn, &[u32])]) -> ArrayRef {
    build(ty, &Runs(runs))
}

impl Cells for Runs<'_> {
    fn rows(&self) -> usize {
        self.0.iter().map(|(_, rows)| rows.len()).sum()
    }

    fn nulls(&self) -> Option<NullBuffer> {
        if !self.0.iter().any(|(column, _)| column.has_nulls()) {
            return None;
        }
        let valid: Vec<bool> = self
            .0
            .iter()
            .flat_map(|(column, rows)| rows.iter().map(|row| !column.is_null(*row as usize)))
            .collect();
        valid.contains(&false).then(|| NullBuffer::from(valid))
    }

    fn ints(&self, mut f: impl FnMut(i64)) {
        for (column, rows) in self.0 {
            rows.iter().for_each(|row| f(column.int(*row as usize)));
        }
    }

    fn wides(&self, mut f: impl FnMut(i128)) {
        for (column, rows) in self.0 {
            rows.iter().for_each(|row| f(column.wide(*row as usize)));
        }
    }

    fn bytes(&self, mut f: impl FnMut(&[u8])) {
        for (column, rows) in self.0 {
            rows.iter().for_each(|row| f(column.bytes(*row as usize)));
        }
    }
}

/// The entries of a dictionary.
struct Entries<'a> {
    column: &'a EncodedColumn,
    entries: u64,
}

impl Cells for Entries<'_> {
    fn rows(&self) -> usize {
        self.entries as usize
    }

    fn nulls(&self) -> Option<NullBuffer> {
        None
    }

    fn ints(&self, mut f: impl FnMut(i64)) {
        (0..self.entries).for_each(|code| f(self.column.int_of(code)));
    }

    fn wides(&self, mut f: impl FnMut(i128)) {
        (0..self.entries).for_each(|code| f(self.column.wide_of(code)));
    }

    fn bytes(&self, mut f: impl FnMut(&[u8])) {
        (0..self.entries).for_each(|code| f(self.column.bytes_of(code)));
    }
}

/// Builds an Arrow array of a SQL type from physical values.
fn build(ty: &Type, cells: &impl Cells) -> ArrayRef {
    let (rows, nulls) = (cells.rows(), cells.nulls());
    macro_rules! primitive {
        ($arrow:ty, $map:expr) => {
            Arc::new(ints::<$arrow>(cells, nulls, $map))
        };
    }
    match ty {
        Type::Bool => {
            let mut values = Vec::with_capacity(rows);
            cells.ints(|value| values.push(value != 0));
            Arc::new(BooleanArray::new(values.into(), nulls))
        }
        Type::Int2 => primitive!(Int16Type, |v| v as i16),
        Type::Int4 => primitive!(Int32Type, |v| v as i32),
        Type::Int8 => primitive!(Int64Type, |v| v),
        Type::Float4 => primitive!(Float32Type, |v| int_to_float(v) as f32),
        Type::Float8 => primitive!(Float64Type, int_to_float),
        Type::Date => primitive!(Date32Type, |v| v as i32),
        Type::Time => primitive!(Time64MicrosecondType, |v| v),
        Type::Timestamp => primitive!(TimestampMicrosecondType, |v| v),
        Type::TimestampTz => {
            Arc::new(ints::<TimestampMicrosecondType>(cells, nulls, |v| v).with_timezone("UTC"))
        }
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            let mut values = Vec::with_capacity(rows);
            match physical(ty) {
                Physical::Int => cells.ints(|value| values.push(decimal(Some(value), || 0))),
                _ => cells.wides(|value| values.push(decimal(None, || value))),
            }
            let array = PrimitiveArray::<Decimal128Type>::new(values.into(), nulls);
            Arc::new(
                array.with_data_type(arrow::datatypes::DataType::Decimal128(*precision as u8, *scale as i8)),
            )
        }
        Type::Uuid => {
            let mut values = Vec::with_capacity(rows * 16);
            cells.bytes(|value| values.extend_from_slice(if value.len() == 16 { value } else { &[0; 16] }));
            Arc::new(FixedSizeBinaryArray::new(16, Buffer::from_vec(values), nulls))
        }
        Type::Bytea | Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Numeric(_) | Type::Interval => {
            let mut offsets = Vec::with_capacity(rows + 1);
            let mut values: Vec<u8> = Vec::with_capacity(rows * 8);
            offsets.push(0i32);
            let length = if let Type::Char(length) = ty { *length as usize } else { 0 };
            cells.bytes(|value| {
                let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(offsets.len() - 1));
                if valid {
                    values.extend_from_slice(value);
                    if length > 0 {
                        let characters = value.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
                        values.resize(values.len() + length.saturating_sub(characters), b' ');
                    }
                }
                offsets.push(i32::try_from(values.len()).expect("a segment's cells are below 2 GB"));
            });
            let offsets = OffsetBuffer::new(offsets.into());
            if *ty == Type::Bytea {
                Arc::new(BinaryArray::new(offsets, Buffer::from_vec(values), nulls))
            } else {
                // SAFETY: only whole cells of string arrays are ever stored in string columns, some of them without
                // trailing blanks.
                Arc::new(unsafe { StringArray::new_unchecked(offsets, Buffer::from_vec(values), nulls) })
            }
        }
    }
}

/// The Arrow form of a stored decimal. NaN is stored as the greatest number, which it is.
pub(crate) fn decimal(int: Option<i64>, wide: impl FnOnce() -> i128) -> i128 {
    match int {
        Some(i64::MAX) => DECIMAL_NAN,
        Some(value) => i128::from(value),
        None => match wide() {
            i128::MAX => DECIMAL_NAN,
            value => value,
        },
    }
}

fn ints<T: ArrowPrimitiveType>(
    cells: &impl Cells,
    nulls: Option<NullBuffer>,
    map: impl Fn(i64) -> T::Native,
) -> PrimitiveArray<T> {
    let mut values = Vec::with_capacity(cells.rows());
    cells.ints(|value| values.push(map(value)));
    PrimitiveArray::new(ScalarBuffer::from(values), nulls)
}
