//! Bitmaps over the rows of a segment, in words of 64.

use std::{ops::Range, sync::OnceLock};

use serde::{Deserialize, Serialize};

use crate::block::numbers;

/// A growable bitmap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bits {
    #[serde(with = "numbers")]
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Bits {
        Bits { words: vec![0; len.div_ceil(64)], len }
    }

    /// `len` ones.
    pub(crate) fn ones(len: usize) -> Bits {
        let mut bits = Bits { words: vec![u64::MAX; len.div_ceil(64)], len };
        bits.trim();
        bits
    }

    /// Clears what is beyond the length.
    fn trim(&mut self) {
        if let Some(last) = self.words.last_mut()
            && !self.len.is_multiple_of(64)
        {
            *last &= (1 << (self.len % 64)) - 1;
        }
    }

    /// Whether it has so many bits; those beyond must be clear.
    pub(crate) fn is_of(&self, len: usize) -> bool {
        let rest = len % 64;
        self.len == len
            && self.words.len() == len.div_ceil(64)
            && (rest == 0 || self.words.last().is_none_or(|last| last >> rest == 0))
    }

    /// Grows with zeros or cuts.
    pub(crate) fn resize(&mut self, len: usize) {
        self.words.resize(len.div_ceil(64), 0);
        self.len = len;
        self.trim();
    }

    /// The first `len` of them.
    pub(crate) fn first(&self, len: usize) -> Bits {
        let mut first = Bits { words: self.words[..len.div_ceil(64)].to_vec(), len };
        first.trim();
        first
    }

    #[inline]
    pub(crate) fn get(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// Begins to fetch the bit of a row into the cache.
    #[inline]
    pub(crate) fn fetch(&self, row: usize) {
        crate::ahead::fetch_at(&self.words, row / 64);
    }

    #[inline]
    pub(crate) fn set(&mut self, row: usize) {
        self.words[row / 64] |= 1 << (row % 64);
    }

    #[inline]
    pub(crate) fn clear(&mut self, row: usize) {
        self.words[row / 64] &= !(1 << (row % 64));
    }

    /// From words whose bits beyond `len` are clear.
    pub(crate) fn from_words(words: Vec<u64>, len: usize) -> Bits {
        Bits { words, len }
    }

    /// The words; bits beyond the length are clear.
    pub(crate) fn into_words(self) -> Vec<u64> {
        self.words
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn size(&self) -> usize {
        self.words.len() * 8
    }

    /// Adds the bits of some of the `before` rows once more.
    pub(crate) fn repeat(&mut self, rows: &[u32], before: usize) {
        self.resize(before + rows.len());
        for (row, at) in rows.iter().zip(before..) {
            self.words[at / 64] |= u64::from(self.get(*row as usize)) << (at % 64);
        }
    }

    /// Adds some of the bits of another one.
    fn append(&mut self, other: &Bits, run: Range<usize>) {
        let mut next = run.start;
        while next < run.end {
            // As many as the last word has room for, and one of the other's has.
            let (at, from) = (self.len % 64, next % 64);
            let bits = (run.end - next).min(64 - at).min(64 - from);
            let word = (other.words[next / 64] >> from) & (u64::MAX >> (64 - bits));
            match at {
                0 => self.words.push(word),
                _ => self.words[self.len / 64] |= word << at,
            }
            self.len += bits;
            next += bits;
        }
    }

    /// The bits of some rows.
    pub(crate) fn gather(&self, picked: &Picked) -> Bits {
        /// Where fewer bits than one in so many are set, they are looked for rather than asked for row by row.
        const RARE: usize = 8;
        let rows = picked.rows;
        if self.count() * RARE <= self.len
            && let Some(ranks) = picked.ranks()
        {
            let mut bits = Bits::zeros(rows.len());
            for (index, (word, mask)) in self.words.iter().zip(&ranks.mask).enumerate() {
                for_bits(&[word & mask], |bit| {
                    let before = (mask & ((1 << bit) - 1)).count_ones();
                    bits.set((ranks.before[index] + before) as usize);
                });
            }
            return bits;
        }
        if let Some(runs) = picked.runs() {
            let mut bits = Bits::zeros(0);
            bits.words.reserve_exact(rows.len().div_ceil(64));
            runs.iter().for_each(|run| bits.append(self, run.clone()));
            return bits;
        }
        let word = |rows: &[u32]| {
            let bits = rows.iter().zip(0..).map(|(row, at)| u64::from(self.get(*row as usize)) << at);
            bits.fold(0, |word, bit: u64| word | bit)
        };
        Bits { words: rows.chunks(64).map(word).collect(), len: rows.len() }
    }

    /// The rows whose bit is set, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter_from(0)
    }

    /// As [`iter`](Bits::iter), of the rows from `first` on.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = u32> + '_ {
        let (first_word, before) = (first / 64, first % 64);
        self.words.iter().enumerate().skip(first_word).flat_map(move |(index, word)| {
            let mut rest = if index == first_word { word >> before << before } else { *word };
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    index as u32 * 64 + bit
                })
            })
        })
    }
}

/// Some rows of a segment, whose cells are taken from several columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picked<'a> {
    pub(crate) rows: &'a [u32],
    ranks: &'a Ranks,
}

/// What is found out once about some rows, when it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    ascending: OnceLock<Option<Ascending>>,
    runs: OnceLock<Option<Vec<Range<usize>>>>,
    end: OnceLock<usize>,
}

/// Which rows they are, as bits, and how many of them come before each word of these.
#[derive(Debug)]
struct Ascending {
    mask: Vec<u64>,
    before: Vec<u32>,
}

impl<'a> Picked<'a> {
    /// The ranks are those of the same rows.
    pub(crate) fn new(rows: &'a [u32], ranks: &'a Ranks) -> Picked<'a> {
        Picked { rows, ranks }
    }

    /// `None` when they do not ascend.
    fn ranks(&self) -> Option<&Ascending> {
        let make = || {
            let rows = Some(self.rows).filter(|rows| rows.is_sorted_by(|a, b| a < b))?;
            let mut mask = vec![0; rows.last().map_or(0, |last| *last as usize / 64 + 1)];
            rows.iter().for_each(|row| mask[*row as usize / 64] |= 1 << (row % 64));
            let mut before = Vec::with_capacity(mask.len());
            mask.iter().fold(0, |all, word: &u64| {
                before.push(all);
                all + word.count_ones()
            });
            Some(Ascending { mask, before })
        };
        self.ranks.ascending.get_or_init(make).as_ref()
    }

    /// The rows as runs of one behind the other, if these are long: to copy them is then much less than to take row by row.
    pub(crate) fn runs(&self) -> Option<&[Range<usize>]> {
        /// Rows that a run has on average, at least.
        const LONG: usize = 32;
        let make = || {
            let breaks = self.rows.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
            let runs = || self.rows.chunk_by(|a, b| *b == a + 1);
            let range = |run: &[u32]| run[0] as usize..run[0] as usize + run.len();
            ((breaks + 1) * LONG <= self.rows.len()).then(|| runs().map(range).collect())
        };
        self.ranks.runs.get_or_init(make).as_deref()
    }

    /// All of the rows are before this one.
    pub(crate) fn end(&self) -> usize {
        *self.ranks.end.get_or_init(|| self.rows.iter().max().map_or(0, |last| *last as usize + 1))
    }
}

/// ANDs into each word of `mask` the truth of `test` over the 64 values it stands for; words that are zero already
/// are skipped. Written so that the comparison is vectorised: bytes first, then eight bytes packed at a time.
#[inline]
pub(crate) fn and_where<T: Copy>(mask: &mut [u64], values: &[T], test: impl Fn(T) -> bool) {
    for (word, chunk) in mask.iter_mut().zip(values.chunks(64)) {
        if *word == 0 {
            continue;
        }
        let mut flags = [0u8; 64];
        for (flag, value) in flags.iter_mut().zip(chunk) {
            *flag = u8::from(test(*value));
        }
        *word &= pack(&flags);
    }
}

/// Packs 64 bytes that are 0 or 1 into 64 bits.
#[inline(always)]
pub(crate) fn pack(flags: &[u8; 64]) -> u64 {
    let mut word = 0;
    for (index, eight) in flags.chunks_exact(8).enumerate() {
        let mut lanes = [0; 8];
        lanes.copy_from_slice(eight);
        // Each byte's lowest bit is moved to its own place in the highest byte.
        let packed = u64::from_le_bytes(lanes).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= packed << (index * 8);
    }
    word
}

/// The places of the bits that are set, ascending.
#[inline]
pub(crate) fn for_bits(words: &[u64], mut f: impl FnMut(u32)) {
    for (index, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            f(index as u32 * 64 + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However few rows are left out or bits set.
        #[test]
        fn bits_of_rows_are_gathered(
            words in prop::collection::vec(any::<u64>(), 4),
            rare in any::<bool>(),
            left_out in prop::collection::btree_set(0..250u32, 0..12),
        ) {
            let words = words.into_iter().map(|word| if rare { word & 1 << 17 } else { word }).collect();
            let mut bits = Bits::from_words(words, 256);
            bits.resize(250);
            let rows: Vec<u32> = (0..250).filter(|row| !left_out.contains(row)).collect();
            let ranks = Ranks::default();
            let picked = Picked::new(&rows, &ranks);
            let gathered = bits.gather(&picked);
            prop_assert!(gathered.is_of(rows.len()));
            for (at, row) in rows.iter().enumerate() {
                prop_assert_eq!(gathered.get(at), bits.get(*row as usize));
            }
            prop_assert_eq!(picked.end(), rows.last().map_or(0, |row| *row as usize + 1));
            if let Some(runs) = picked.runs() {
                prop_assert_eq!(runs.iter().cloned().flatten().collect::<Vec<_>>(), rows.iter().map(|row| *row as usize).collect::<Vec<_>>());
            }
        }
    }
}
