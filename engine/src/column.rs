//! Columns of a segment: a plain form that grows, and an encoded form that is small and fast to compare.
//!
//! Both map SQL values onto three physical domains, each ordered as SQL orders the values:
//! - [`Physical::Int`]: everything that fits in 64 bits (booleans, integers, dates and times, decimals of up to 18
//!   digits, and floating point numbers by an order-preserving mapping of their bits);
//! - [`Physical::Wide`]: decimals of more digits;
//! - [`Physical::Bytes`]: strings, uuid, bytea, and numeric without a declared precision (as text, whose byte order
//!   means nothing).
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

use crate::{array::DECIMAL_NAN, bits::Bits, types::Type};

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

/// An immutable column.
#[derive(Debug)]
pub(crate) struct EncodedColumn {
    pub(crate) codes: Codes,
    pub(crate) domain: Domain,
    /// The largest code.
    pub(crate) max_code: u64,
    pub(crate) nulls: Option<Bits>,
    /// Whether every row is NULL: the domain is then meaningless.
    pub(crate) all_null: bool,
}

impl EncodedColumn {
    /// Number of dictionary entries, if there is a dictionary.
    pub(crate) fn dictionary_len(&self) -> Option<usize> {
        match &self.domain {
            Domain::Linear { .. } => None,
            Domain::Ints(values) => Some(values.len()),
            Domain::Wides(values) => Some(values.len()),
            Domain::Bytes { offsets, .. } => Some(offsets.len() - 1),
        }
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.all_null || self.nulls.as_ref().is_some_and(|nulls| nulls.get(row))
    }

    #[inline]
    pub(crate) fn int_of(&self, code: u64) -> i64 {
        match &self.domain {
            Domain::Linear { base, scale } => base.wrapping_add(scale.wrapping_mul(code) as i64),
            Domain::Ints(values) => values.get(code as usize).copied().unwrap_or(0),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn wide_of(&self, code: u64) -> i128 {
        match &self.domain {
            Domain::Wides(values) => values.get(code as usize).copied().unwrap_or(0),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn bytes_of(&self, code: u64) -> &[u8] {
        match &self.domain {
            Domain::Bytes { offsets, bytes } if (code as usize) + 1 < offsets.len() => {
                &bytes[offsets[code as usize] as usize..offsets[code as usize + 1] as usize]
            }
            _ => &[],
        }
    }

    /// Logical size in bytes.
    pub(crate) fn size(&self) -> usize {
        let domain = match &self.domain {
            Domain::Linear { .. } => 16,
            Domain::Ints(values) => values.len() * 8,
            Domain::Wides(values) => values.len() * 16,
            Domain::Bytes { offsets, bytes } => offsets.len() * 4 + bytes.len(),
        };
        self.codes.size() + domain + self.nulls.as_ref().map_or(0, Bits::size)
    }

    /// The dictionary as an Arrow array of the column's type, one element for each code.
    pub(crate) fn dictionary(&self, ty: &Type) -> Option<ArrayRef> {
        let entries = self.dictionary_len()?;
        Some(build(
            ty,
            entries,
            |_| false,
            |i| self.int_of(i as u64),
            |i| self.wide_of(i as u64),
            |i| self.bytes_of(i as u64),
        ))
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
        build(
            ty,
            rows.len(),
            |i| self.is_null(rows[i] as usize),
            |i| self.int(rows[i] as usize),
            |i| self.wide(rows[i] as usize),
            |i| self.bytes(rows[i] as usize),
        )
    }

    /// Keeps only these rows, all of them encoded.
    pub(crate) fn compact(&mut self, ty: &Type, keep: &[u32]) {
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
        self.base = Some(EncodedColumn { codes, domain, max_code, nulls, all_null });
        self.base_rows = rows;
        self.delta = PlainColumn::new(ty);
    }
}

/// Builds an Arrow array of a SQL type from physical values.
fn build<'a>(
    ty: &Type,
    rows: usize,
    is_null: impl Fn(usize) -> bool,
    int: impl Fn(usize) -> i64,
    wide: impl Fn(usize) -> i128,
    bytes: impl Fn(usize) -> &'a [u8],
) -> ArrayRef {
    let valid: Vec<bool> = (0..rows).map(|row| !is_null(row)).collect();
    let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
    macro_rules! primitive {
        ($arrow:ty, $map:expr) => {
            primitive::<$arrow>(rows, nulls, |row| $map(int(row)))
        };
    }
    match ty {
        Type::Bool => {
            let values: Vec<bool> = (0..rows).map(|row| int(row) != 0).collect();
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
            let values: ScalarBuffer<i64> = (0..rows).map(int).collect();
            Arc::new(PrimitiveArray::<TimestampMicrosecondType>::new(values, nulls).with_timezone("UTC"))
        }
        Type::Numeric(Some((precision, scale))) if *precision <= 38 => {
            let narrow = physical(ty) == Physical::Int;
            let values: ScalarBuffer<i128> = (0..rows)
                .map(|row| decimal(if narrow { Some(int(row)) } else { None }, || wide(row)))
                .collect();
            let array = PrimitiveArray::<Decimal128Type>::new(values, nulls);
            Arc::new(
                array.with_data_type(arrow::datatypes::DataType::Decimal128(*precision as u8, *scale as i8)),
            )
        }
        Type::Uuid => {
            let mut values = Vec::with_capacity(rows * 16);
            for row in 0..rows {
                let value = bytes(row);
                if value.len() == 16 {
                    values.extend_from_slice(value);
                } else {
                    values.extend_from_slice(&[0; 16]);
                }
            }
            Arc::new(FixedSizeBinaryArray::new(16, Buffer::from_vec(values), nulls))
        }
        Type::Bytea | Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Numeric(_) | Type::Interval => {
            let mut offsets = Vec::with_capacity(rows + 1);
            let mut values: Vec<u8> = Vec::new();
            offsets.push(0i32);
            for row in 0..rows {
                if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                    values.extend_from_slice(bytes(row));
                }
                offsets.push(i32::try_from(values.len()).expect("a segment's cells are below 2 GB"));
            }
            let offsets = OffsetBuffer::new(offsets.into());
            if *ty == Type::Bytea {
                Arc::new(BinaryArray::new(offsets, Buffer::from_vec(values), nulls))
            } else {
                // SAFETY: only whole cells of string arrays are ever stored in string columns.
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

fn primitive<T: ArrowPrimitiveType>(
    rows: usize,
    nulls: Option<NullBuffer>,
    value: impl Fn(usize) -> T::Native,
) -> ArrayRef {
    let values: ScalarBuffer<T::Native> = (0..rows).map(value).collect();
    Arc::new(PrimitiveArray::<T>::new(values, nulls))
}
