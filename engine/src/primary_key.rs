//! The hash index over a table's primary key: from a key to its newest version. Older versions, and earlier rows with
//! the same key, are reached from there.

use hashbrown::HashTable;

/// Where a row version is: a segment of its table, and a row of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) slot: u32,
    pub(crate) row: u32,
}

/// Twelve bytes for each key: the keys themselves are in the columns.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    address: Address,
}

/// The index of one table in one shard.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    entries: HashTable<Entry>,
}

/// Spreads the stored half of a hash over 64 bits again.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl KeyIndex {
    /// The newest version of the key with this hash for which `is_key` holds.
    pub(crate) fn find(&self, hash: u64, mut is_key: impl FnMut(Address) -> bool) -> Option<Address> {
        let hash = hash as u32;
        self.entries
            .find(spread(hash), |entry| entry.hash == hash && is_key(entry.address))
            .map(|entry| entry.address)
    }

    /// Adds a key that is not there.
    pub(crate) fn insert(&mut self, hash: u64, address: Address) {
        let hash = hash as u32;
        self.entries.insert_unique(spread(hash), Entry { hash, address }, |entry| spread(entry.hash));
    }

    /// Lets the entry that points to `old` point to `new`. Returns whether there was one.
    pub(crate) fn replace(&mut self, hash: u64, old: Address, new: Address) -> bool {
        let hash = hash as u32;
        match self.entries.find_mut(spread(hash), |entry| entry.hash == hash && entry.address == old) {
            Some(entry) => {
                entry.address = new;
                true
            }
            None => false,
        }
    }

    /// Removes the entry that points to `address`, if there is one.
    pub(crate) fn remove(&mut self, hash: u64, address: Address) {
        let hash = hash as u32;
        if let Ok(entry) =
            self.entries.find_entry(spread(hash), |entry| entry.hash == hash && entry.address == address)
        {
            entry.remove();
        }
    }

    /// Puts every entry where `to` says, and forgets those of which it says nothing: in one pass over all keys.
    pub(crate) fn readdress(&mut self, to: impl Fn(Address) -> Option<Address>) {
        self.entries.retain(|entry| match to(entry.address) {
            Some(address) => {
                entry.address = address;
                true
            }
            None => false,
        });
    }

    /// Gives the rows of a segment the numbers that `new_row` says, and forgets those that get none: in one pass over all
    /// keys.
    pub(crate) fn renumber(&mut self, slot: u32, new_row: impl Fn(u32) -> Option<u32>) {
        self.readdress(|address| match address.slot == slot {
            true => new_row(address.row).map(|row| Address { slot, row }),
            false => Some(address),
        });
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Makes room for that many more keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.entries.reserve(keys, |entry| spread(entry.hash));
    }

    /// Logical size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.entries.len() * (size_of::<Entry>() + 1)
    }
}
