//! Which values may occur in a column of a segment: spares most constants the search in its dictionary.

use serde::{Deserialize, Serialize};

use crate::{ahead::fetch_at, block::numbers};

/// A set of hashes that may say yes wrongly, about once in fifteen times, but never no. Each hash has two bits of one
/// word, so that asking is a single access to memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ValueFilter {
    #[serde(with = "numbers")]
    words: Vec<u64>,
    /// The number of words is a power of two; this is its logarithm.
    log_words: u32,
}

impl ValueFilter {
    /// With room for so many values.
    pub(crate) fn new(values: usize) -> ValueFilter {
        let log_words = (values * 6).next_power_of_two().ilog2().max(7) - u64::BITS.ilog2();
        ValueFilter { words: vec![0; 1 << log_words], log_words }
    }

    /// Whether it has the words that it must have.
    pub(crate) fn is_whole(&self) -> bool {
        self.log_words < 32 && self.log_words > 0 && self.words.len() == 1 << self.log_words
    }

    /// The word of a hash, and its bits there.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u64) {
        let bits = 1 << (hash >> 20 & 63) | 1 << (hash >> 26 & 63);
        ((hash >> (64 - self.log_words)) as usize, bits)
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        let (word, bits) = self.place(hash);
        self.words[word] |= bits;
    }

    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let (word, bits) = self.place(hash);
        self.words[word] & bits == bits
    }

    /// Begins to fetch what [`may_have`](ValueFilter::may_have) looks at.
    #[inline]
    pub(crate) fn fetch(&self, hash: u64) {
        fetch_at(&self.words, self.place(hash).0);
    }

    pub(crate) fn size(&self) -> usize {
        self.words.len() * 8
    }
}

/// The hash of a whole number.
#[inline]
pub(crate) fn hash_int(value: i64) -> u64 {
    let mixed = (value as u64 ^ (value as u64 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// The hash of a byte string.
pub(crate) fn hash_bytes(value: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_never_denied() {
        let mut filter = ValueFilter::new(1000);
        (0..1000).for_each(|value| filter.insert(hash_int(value * 3)));
        assert!((0..1000).all(|value| filter.may_have(hash_int(value * 3))));
        let wrong = (0..10_000).filter(|value| filter.may_have(hash_int(value * 3 + 1))).count();
        assert!(wrong < 1_500, "{wrong} of 10,000");
    }
}
