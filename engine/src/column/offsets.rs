//! Where byte strings begin and end that lie one after the other.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{ahead::fetch_at, block::numbers};

/// Offsets of 32 bits each. New versions stay in their segment, however long they are: the few offsets from which on another
/// 4 GiB have to be added are kept beside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offsets {
    #[serde(with = "numbers")]
    low: Vec<u32>,
    /// Ascending.
    #[serde(with = "numbers")]
    beyond: Vec<u32>,
}

impl Offsets {
    /// Of no strings.
    pub(super) fn new() -> Offsets {
        Offsets::with_capacity(0)
    }

    pub(super) fn with_capacity(strings: usize) -> Offsets {
        let mut low = Vec::with_capacity(strings + 1);
        low.push(0);
        Offsets { low, beyond: Vec::new() }
    }

    /// Adds a string, which ends here.
    #[inline]
    pub(super) fn push(&mut self, end: usize) {
        while self.beyond.len() < end >> 32 {
            self.beyond.push(self.low.len() as u32);
        }
        self.low.push(end as u32);
    }

    #[inline]
    fn get(&self, index: usize) -> usize {
        let low = self.low[index] as usize;
        if self.beyond.is_empty() {
            return low;
        }
        low + (self.beyond.partition_point(|first| *first as usize <= index) << 32)
    }

    /// How many strings they are.
    pub(crate) fn strings(&self) -> usize {
        self.low.len().saturating_sub(1)
    }

    /// One of the strings.
    #[inline]
    pub(super) fn of<'a>(&self, string: usize, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.range(string)]
    }

    /// Where one of the strings is.
    #[inline]
    pub(super) fn range(&self, string: usize) -> Range<usize> {
        self.get(string)..self.get(string + 1)
    }

    /// Begins to fetch where a string is.
    #[inline]
    pub(super) fn fetch(&self, string: usize) {
        fetch_at(&self.low, string);
    }

    /// Logical size in bytes.
    pub(super) fn size(&self) -> usize {
        (self.low.len() + self.beyond.len()) * 4
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.low.len()).map(|index| self.get(index))
    }

    /// Whether they are of strings that lie one after the other in so many bytes.
    pub(super) fn are_in(&self, bytes: usize) -> bool {
        self.iter().next() == Some(0) && self.iter().last() == Some(bytes) && self.iter().is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_may_take_more_than_32_bits_can_count() {
        const LENGTHS: [usize; 6] = [10, (1 << 32) - 10, 5, 3 << 32, 1 << 31, 0];
        let mut offsets = Offsets::new();
        let mut ends = vec![0];
        for length in LENGTHS {
            ends.push(ends[ends.len() - 1] + length);
            offsets.push(ends[ends.len() - 1]);
        }
        assert_eq!(offsets.iter().collect::<Vec<usize>>(), ends);
        assert_eq!(offsets.strings(), LENGTHS.len());
        let all = ends[LENGTHS.len()];
        assert!(offsets.are_in(all) && !offsets.are_in(all - 1));
        offsets.push(7);
        assert!(!offsets.are_in(7));
    }
}
