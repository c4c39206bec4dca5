//! Choosing codes for the values of a column.

use hashbrown::{HashMap, HashTable};
use xxhash_rust::xxh3::xxh3_64;

use super::{Domain, Offsets};

pub(super) fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Encodes the values of `rows` rows; `value` is not asked for rows that are NULL.
pub(super) fn encode_ints(
    rows: usize,
    is_null: &dyn Fn(usize) -> bool,
    value: &dyn Fn(usize) -> i64,
) -> (Vec<u64>, Domain, u64) {
    let values: Vec<Option<i64>> = (0..rows).map(|row| (!is_null(row)).then(|| value(row))).collect();
    let present = || values.iter().flatten().copied();
    let (Some(low), Some(high)) = (present().min(), present().max()) else {
        return (vec![0; rows], Domain::Linear { base: 0, scale: 1 }, 0);
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
        return (codes, Domain::Ints(dictionary), max);
    }
    let codes: Vec<u64> = values.iter().map(|v| v.map_or(0, |v| distance(v) / scale)).collect();
    (codes, Domain::Linear { base: low, scale }, max)
}

/// Codes that are free behind those of a line: for values beside it, and for the first that stands for nothing.
pub(super) const CODES_BEHIND: u64 = 1 << 32;

/// Distinct values up to which a dictionary's codes are narrower than others.
const MOST_ENTRIES: usize = 1 << 16;

/// How many values a dictionary of so many rows may have so that it saves memory, however far from each other they lie.
pub(super) fn most_entries(rows: usize) -> usize {
    (rows * 2 / 8).min(MOST_ENTRIES)
}

/// The sorted distinct values, if codes into them save memory over plain codes up to `max`, or if there are too few codes behind
/// that one for what may come later.
fn small_dictionary(values: impl Iterator<Item = i64>, rows: usize, max: u64) -> Option<Vec<i64>> {
    let limit = match max {
        _ if max > u64::MAX - CODES_BEHIND => rows,
        0x1_0000_0000.. => (rows * 6 / 8).min(MOST_ENTRIES),
        _ => most_entries(rows),
    };
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

pub(super) fn encode_wides(
    rows: usize,
    is_null: &dyn Fn(usize) -> bool,
    value: &dyn Fn(usize) -> i128,
) -> (Vec<u64>, Domain, u64) {
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
    (codes, Domain::Wides(dictionary), max)
}

pub(super) fn encode_bytes<'a>(
    rows: usize,
    is_null: &dyn Fn(usize) -> bool,
    value: &dyn Fn(usize) -> &'a [u8],
) -> (Vec<u64>, Domain, u64) {
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
    let mut offsets = Offsets::with_capacity(distinct.len());
    let mut bytes = Vec::with_capacity(distinct.iter().map(|entry| entry.len()).sum());
    for (place, code) in order.iter().enumerate() {
        rank[*code as usize] = place as u64;
        bytes.extend_from_slice(distinct[*code as usize]);
        offsets.push(bytes.len());
    }
    for (row, code) in codes.iter_mut().enumerate() {
        if !is_null(row) {
            *code = rank[*code as usize];
        }
    }
    let max = (distinct.len() as u64).saturating_sub(1);
    (codes, Domain::Bytes { offsets, bytes }, max)
}
