//! From the hash of a value to its code in a dictionary: a search by halves waits for memory at each step.

use crate::ahead::fetch_at;

/// Codes by the hashes of their values. It does not know the values: who asks compares them.
#[derive(Clone, Debug)]
pub(super) struct CodeTable {
    /// Linear probing; at least a quarter of them is [`FREE`].
    slots: Vec<u16>,
    /// The number of slots is a power of two; this is its logarithm.
    log_slots: u32,
}

const FREE: u16 = u16::MAX;

impl CodeTable {
    /// Codes that there can be.
    pub(super) const MOST: usize = FREE as usize;

    /// Of the codes from 0 to below `codes`, at most [`MOST`](CodeTable::MOST).
    pub(super) fn new(codes: usize, hash: impl Fn(u64) -> u64) -> CodeTable {
        assert!(codes <= CodeTable::MOST, "a code table has room for the codes");
        let log_slots = (codes * 4 / 3 + 2).next_power_of_two().ilog2();
        let mut table = CodeTable { slots: vec![FREE; 1 << log_slots], log_slots };
        for code in 0..codes as u16 {
            let mut slot = table.first_slot(hash(u64::from(code)));
            while table.slots[slot] != FREE {
                slot = (slot + 1) % table.slots.len();
            }
            table.slots[slot] = code;
        }
        table
    }

    #[inline]
    fn first_slot(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.log_slots)) as usize
    }

    /// The codes whose values may have this hash.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = u64> {
        let (first, slots) = (self.first_slot(hash), self.slots.len());
        let codes = (0..slots).map(move |step| self.slots[(first + step) % slots]);
        codes.take_while(|code| *code != FREE).map(u64::from)
    }

    /// Begins to fetch where the codes of a hash are.
    #[inline]
    pub(super) fn fetch(&self, hash: u64) {
        fetch_at(&self.slots, self.first_slot(hash));
    }

    pub(super) fn size(&self) -> usize {
        self.slots.len() * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value_filter::hash_int;

    #[test]
    fn every_code_is_found_by_its_hash() {
        for codes in [0, 1, 2, 3, 100, 5000, CodeTable::MOST] {
            // Hashes that collide and some that run over the end.
            let hash =
                |code: u64| hash_int((code / 3) as i64) | if code.is_multiple_of(7) { 0xff << 56 } else { 0 };
            let table = CodeTable::new(codes, hash);
            assert!((0..codes as u64).all(|code| table.candidates(hash(code)).any(|other| other == code)));
        }
    }
}
