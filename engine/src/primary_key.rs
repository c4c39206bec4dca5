//! The hash index over a table's primary key: from a key to its newest version. Older versions, and earlier rows with
//! the same key, are reached from there.

use std::cell::Cell;

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
    /// As [`Numbers`] says where it is.
    stored: Address,
}

impl Entry {
    /// Where it is to be looked for, for whoever puts all entries into other buckets.
    fn hash_again(&self, all_move: &Cell<bool>) -> u64 {
        all_move.set(true);
        spread(self.hash)
    }
}

/// Parts of an index: each grows alone, so that nobody waits until all keys have been put elsewhere.
pub(crate) const PARTS: usize = 64;

/// The index of one table in one shard.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    /// By the upper bits of the stored half of the hash.
    parts: [HashTable<Entry>; PARTS],
    numbers: Numbers,
}

/// A part of the index grows by so many times what is in it at most, whatever is about to come.
const MOST_GROWTH: usize = 16;

/// All entries are gone through for rows that move: when so many have that there are no more than this many keys for each.
const KEYS_OF_MOVED: usize = 8;

/// A part of which less than this part is in use gives memory back, when its entries have followed.
const SPARSE: usize = 8;

impl Default for KeyIndex {
    fn default() -> Self {
        KeyIndex { parts: [const { HashTable::new() }; PARTS], numbers: Numbers::default() }
    }
}

/// What the rows of entries mean. When the rows of a segment get other places, or are held no more, the entries follow some
/// at a time; until then those that have not been rewritten are told from the others by a bit.
#[derive(Debug, Default)]
struct Numbers {
    /// By slot. Those behind the last are as they are by default.
    slots: Vec<Slot>,
    /// How far the entries have followed.
    sweep: Option<Sweep>,
    /// Somebody waits until all have.
    is_waited_for: bool,
}

/// What entries that lead to a segment mean.
#[derive(Debug, Default)]
struct Slot {
    /// Its rows have moved an odd number of times: entries that lead to where they are have the bit [`ODD`].
    is_odd: bool,
    /// Rows that have moved have been in it or have moved to it, and entries may lead to where they were.
    is_reached: bool,
    /// No entry leads to it any more, while there may be some that did.
    is_left: bool,
    /// Where its rows have moved ([`GONE`] for those that are not there any more), while entries may lead to where they were;
    /// nothing if they have not.
    moved: Vec<Address>,
}

/// The parts before this one, and of it the buckets before this one, have followed.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    part: usize,
    bucket: usize,
}

/// The new place of a row that is not there any more.
pub(crate) const GONE: Address = Address { slot: u32::MAX, row: u32::MAX };

/// The bit of a stored slot that tells old places from new ones.
const ODD: u32 = 1 << 31;

impl Numbers {
    fn slot(&mut self, slot: u32) -> &mut Slot {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        &mut self.slots[slot]
    }

    /// How an address is stored.
    #[inline]
    fn stored(&self, address: Address) -> Address {
        let is_odd = self.slots.get(address.slot as usize).is_some_and(|slot| slot.is_odd);
        Address { slot: address.slot | if is_odd { ODD } else { 0 }, row: address.row }
    }

    /// Where a stored address is now.
    #[inline]
    fn now(&self, stored: Address) -> Option<Address> {
        let mut address = Address { slot: stored.slot & !ODD, row: stored.row };
        if self.sweep.is_none() {
            return Some(address);
        }
        let slot = |address: Address| self.slots.get(address.slot as usize);
        if let Some(from) = slot(address)
            && !from.moved.is_empty()
            && from.is_odd != (stored.slot & ODD != 0)
        {
            address = from.moved[address.row as usize];
        }
        (address != GONE && !slot(address).is_some_and(|slot| slot.is_left)).then_some(address)
    }

    /// Rows that have moved, while entries may lead to where they were.
    fn moved(&self) -> usize {
        self.slots.iter().map(|slot| slot.moved.len()).sum()
    }

    /// Begins to go through the buckets of a part anew when its entries have been put into others.
    fn note(&mut self, part: usize, all_move: &Cell<bool>) {
        if all_move.get()
            && let Some(sweep) = &mut self.sweep
            && sweep.part == part
        {
            sweep.bucket = 0;
        }
    }

    /// All entries have followed.
    fn end(&mut self) {
        for slot in &mut self.slots {
            *slot = Slot { is_odd: slot.is_odd, ..Slot::default() };
        }
        self.sweep = None;
        self.is_waited_for = false;
    }
}

/// Spreads the stored half of a hash over 64 bits again.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl KeyIndex {
    /// The part that keys with this hash are in.
    pub(crate) fn part(hash: u64) -> usize {
        (hash as u32 >> (u32::BITS - PARTS.ilog2())) as usize
    }

    /// The newest version of the key with this hash for which `is_key` holds.
    pub(crate) fn find(&self, hash: u64, mut is_key: impl FnMut(Address) -> bool) -> Option<Address> {
        let entries = &self.parts[KeyIndex::part(hash)];
        let hash = hash as u32;
        let mut found = None;
        entries.find(spread(hash), |entry| {
            found = (entry.hash == hash).then(|| self.numbers.now(entry.stored)).flatten();
            found.is_some_and(&mut is_key)
        })?;
        found
    }

    /// Adds a key that is not there.
    pub(crate) fn insert(&mut self, hash: u64, address: Address) {
        let part = KeyIndex::part(hash);
        let hash = hash as u32;
        let entry = Entry { hash, stored: self.numbers.stored(address) };
        let all_move = Cell::new(false);
        self.parts[part].insert_unique(spread(hash), entry, |entry| entry.hash_again(&all_move));
        self.numbers.note(part, &all_move);
    }

    /// As [`insert`](KeyIndex::insert), with many keys of one part and their hashes: in the order in which they lie, which
    /// spares most accesses to memory. If about so many `follow`, there is room for them, too. Returns how many keys it has
    /// dealt with: all of the part if it had to grow.
    pub(crate) fn insert_all(&mut self, part: usize, mut keys: Vec<(u64, Address)>, follow: usize) -> usize {
        let all_move = Cell::new(false);
        let before = self.parts[part].len();
        if self.parts[part].capacity() - before < keys.len() {
            // Parts are not quite as full as each other; and what follows is what somebody else says.
            let most = MOST_GROWTH * (before + keys.len());
            let room = keys.len() + follow.saturating_add(follow / 16).min(most);
            self.parts[part].reserve(room, |entry| entry.hash_again(&all_move));
        }
        self.numbers.note(part, &all_move);
        let last = self.parts[part].num_buckets() - 1;
        keys.sort_unstable_by_key(|(hash, _)| spread(*hash as u32) as usize & last);
        let dealt_with = keys.len() + if all_move.get() { before } else { 0 };
        keys.into_iter().for_each(|(hash, address)| self.insert(hash, address));
        dealt_with
    }

    /// Lets the entry that points to `old` point to `new`. Returns whether there was one.
    pub(crate) fn replace(&mut self, hash: u64, old: Address, new: Address) -> bool {
        let entries = &mut self.parts[KeyIndex::part(hash)];
        let (hash, numbers) = (hash as u32, &self.numbers);
        let is_it = |entry: &Entry| entry.hash == hash && numbers.now(entry.stored) == Some(old);
        match entries.find_mut(spread(hash), is_it) {
            Some(entry) => {
                entry.stored = numbers.stored(new);
                true
            }
            None => false,
        }
    }

    /// Removes the entry that points to `address`, if there is one.
    pub(crate) fn remove(&mut self, hash: u64, address: Address) {
        let entries = &mut self.parts[KeyIndex::part(hash)];
        let (hash, numbers) = (hash as u32, &self.numbers);
        let is_it = |entry: &Entry| entry.hash == hash && numbers.now(entry.stored) == Some(address);
        if let Ok(entry) = entries.find_entry(spread(hash), is_it) {
            entry.remove();
        }
    }

    /// Puts every entry where `to` says, and forgets those of which it says nothing: in one pass over all keys.
    pub(crate) fn readdress(&mut self, to: impl Fn(Address) -> Option<Address>) {
        let KeyIndex { parts, numbers } = self;
        let mut follow = |entry: &mut Entry| match numbers.now(entry.stored).and_then(&to) {
            Some(address) => {
                entry.stored = numbers.stored(address);
                true
            }
            None => false,
        };
        parts.iter_mut().for_each(|entries| entries.retain(&mut follow));
        numbers.end();
    }

    /// Gives the rows of a segment the numbers that `new_row` says: in one pass over all keys.
    pub(crate) fn renumber(&mut self, slot: u32, new_row: impl Fn(u32) -> u32) {
        self.readdress(|address| match address.slot == slot {
            true => Some(Address { slot, row: new_row(address.row) }),
            false => Some(address),
        });
    }

    /// Whether the rows of a segment can move while entries [`follow`](KeyIndex::follow) others: these have not moved into it.
    pub(crate) fn can_move(&self, slot: u32) -> bool {
        !self.numbers.slots.get(slot as usize).is_some_and(|slot| slot.is_reached)
    }

    /// Gives the rows of a segment new places, [`GONE`] to those that are not there any more. The entries
    /// [`follow`](KeyIndex::follow) later.
    pub(crate) fn begin_move(&mut self, slot: u32, to: Vec<Address>) {
        self.begin_moves([(slot, to)]);
    }

    /// The rows of a segment are in these places from now on.
    fn note_move(&mut self, slot: u32, to: Vec<Address>) {
        for to in to.iter().filter(|to| **to != GONE) {
            self.numbers.slot(to.slot).is_reached = true;
        }
        let from = self.numbers.slot(slot);
        *from = Slot { is_odd: !from.is_odd, is_reached: true, is_left: from.is_left, moved: to };
        self.numbers.sweep = Some(Sweep::default());
    }

    /// As [`begin_move`](KeyIndex::begin_move), of the rows of several segments, which may move into each other.
    pub(crate) fn begin_moves(&mut self, moves: impl IntoIterator<Item = (u32, Vec<Address>)>) {
        let moves: Vec<(u32, Vec<Address>)> = moves.into_iter().collect();
        assert!(
            moves.iter().all(|(slot, _)| self.can_move(*slot)),
            "rows do not move twice before their keys have followed"
        );
        for (slot, to) in moves {
            self.note_move(slot, to);
        }
    }

    /// Forgets the keys of the rows of these segments. The entries go before other rows come there.
    pub(crate) fn leave(&mut self, slots: impl IntoIterator<Item = u32>) {
        slots.into_iter().for_each(|slot| self.numbers.slot(slot).is_left = true);
        self.numbers.sweep = Some(Sweep::default());
    }

    /// Whether entries have to follow.
    pub(crate) fn are_to_follow(&self) -> bool {
        self.numbers.sweep.is_some()
    }

    /// Whether it is time for that: they have begun to, somebody waits for them, or enough rows have moved. To go through all
    /// of them for the rows of each segment would take a time that grows with the square of the table.
    pub(crate) fn must_follow(&self) -> bool {
        let Some(Sweep { part, bucket }) = self.numbers.sweep else { return false };
        self.numbers.is_waited_for
            || (part, bucket) != (0, 0)
            || self.numbers.moved() * KEYS_OF_MOVED >= self.len()
    }

    /// Somebody waits until no entry has to follow.
    pub(crate) fn wait_for(&mut self) {
        self.numbers.is_waited_for = self.are_to_follow();
    }

    /// Lets the entries of so many buckets follow their rows. Returns whether all have.
    pub(crate) fn follow(&mut self, buckets: usize) -> bool {
        let KeyIndex { parts, numbers } = self;
        let mut left = buckets;
        while let Some(Sweep { part, bucket }) = numbers.sweep {
            let Some(entries) = parts.get_mut(part) else {
                numbers.end();
                break;
            };
            if left == 0 {
                return false;
            }
            let all = entries.num_buckets();
            let until = all.min(bucket.saturating_add(left));
            for bucket in bucket..until {
                let Some(entry) = entries.get_bucket_mut(bucket) else { continue };
                match numbers.now(entry.stored) {
                    Some(address) => entry.stored = numbers.stored(address),
                    None => {
                        if let Ok(entry) = entries.get_bucket_entry(bucket) {
                            entry.remove();
                        }
                    }
                }
            }
            left -= until - bucket;
            let next = if until == all { (part + 1, 0) } else { (part, until) };
            if until == all && entries.len() * SPARSE < entries.capacity() {
                entries.shrink_to(entries.len() * 2, |entry| spread(entry.hash));
            }
            numbers.sweep = Some(Sweep { part: next.0, bucket: next.1 });
        }
        true
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }

    /// Size in bytes, with what has been taken for keys that are not there yet, or not any more.
    pub(crate) fn size(&self) -> usize {
        let parts: usize = self.parts.iter().map(HashTable::allocation_size).sum();
        parts + self.numbers.moved() * size_of::<Address>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 5000;

    /// Many keys have the same, so that their entries are wherever there is room.
    fn hash(key: u32) -> u64 {
        u64::from(key / 100).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn leads_to(index: &KeyIndex, key: u32, address: Address) -> bool {
        index.find(hash(key), |found| found == address) == Some(address)
    }

    /// Keys in two segments, of which the second is renumbered again and again; every third row goes at the first time.
    #[test]
    fn keys_are_found_while_they_follow_their_rows() {
        let mut index = KeyIndex::default();
        let at = |slot, row| Address { slot, row };
        (0..KEYS).for_each(|key| index.insert(hash(key), at(key % 2, key / 2)));
        let mut now: Vec<u32> = (0..KEYS / 2).collect();
        let mut more = KEYS;
        for round in 0..4 {
            let goes = |row: u32| round == 0 && row.is_multiple_of(3);
            let place = |row: u32| if goes(row) { GONE } else { at(1, row + 10 + round) };
            let by_row: Vec<Address> = (0..KEYS / 2 + 100).map(place).collect();
            now.iter_mut().filter(|row| **row != GONE.row).for_each(|row| *row = by_row[*row as usize].row);
            index.begin_move(1, by_row);
            let mut steps = 0;
            loop {
                for key in 0..KEYS {
                    let row = if key % 2 == 0 { key / 2 } else { now[key as usize / 2] };
                    assert!(
                        row == GONE.row || leads_to(&index, key, at(key % 2, row)),
                        "{key} in round {round}"
                    );
                }
                // A new version, and what takes it back.
                let key = 1 + 2 * (steps * 13 % (KEYS / 2));
                let (old, new) = (at(1, now[key as usize / 2]), at(0, 1_000_000));
                if old.row != GONE.row {
                    assert!(index.replace(hash(key), old, new) && !index.replace(hash(key), old, new));
                    assert!(leads_to(&index, key, new) && index.replace(hash(key), new, old));
                }
                // New keys: the index grows meanwhile.
                for _ in 0..100 {
                    index.insert(hash(more), at(1, more));
                    assert!(leads_to(&index, more, at(1, more)));
                    index.remove(hash(more), at(1, more));
                    index.insert(hash(more), at(0, more));
                    more += 1;
                }
                steps += 1;
                if index.follow(500) {
                    break;
                }
            }
            assert!(steps > 10 && !index.are_to_follow());
        }
        let there = now.iter().filter(|row| **row != GONE.row).count() as u32 + KEYS / 2 + (more - KEYS);
        assert_eq!(index.len() as u32, there);
        assert!((KEYS..more).all(|key| leads_to(&index, key, at(0, key))));
        // Whoever goes through all of them at once leaves none behind.
        index.begin_move(0, (0..more).map(|row| at(0, row + 1)).collect());
        index.renumber(0, |row| row);
        assert!(!index.are_to_follow() && leads_to(&index, 10, at(0, 6)));
    }

    /// Those of the rows of several segments, if nobody waits.
    #[test]
    fn keys_follow_together() {
        let (segments, rows) = (20, 100);
        let at = |key: u32| Address { slot: key % segments, row: key / segments };
        let mut index = KeyIndex::default();
        (0..segments * rows).for_each(|key| index.insert(hash(key), at(key)));
        let mut now = vec![0; segments as usize];
        let mut begin_move = |index: &mut KeyIndex, slot: u32| {
            now[slot as usize] += 1;
            index.begin_move(slot, (0..rows).map(|row| Address { slot, row: row + 1 }).collect());
            let has_moved = |key: u32| Address { row: at(key).row + now[at(key).slot as usize], ..at(key) };
            assert!((0..segments * rows).all(|key| leads_to(index, key, has_moved(key))));
        };
        for slot in 0..2 {
            begin_move(&mut index, slot);
            assert!(index.are_to_follow() && !index.must_follow() && !index.can_move(slot));
        }
        assert!(index.can_move(2));
        begin_move(&mut index, 2);
        assert!(index.must_follow(), "there are no more than eight for each row");
        // Who has begun ends.
        assert!(!index.follow(1) && index.must_follow());
        while !index.follow(100) {}
        assert!(!index.are_to_follow() && !index.must_follow() && index.can_move(0));
        begin_move(&mut index, 3);
        index.wait_for();
        assert!(index.must_follow());
        while !index.follow(100) {}
        index.wait_for();
        begin_move(&mut index, 4);
        assert!(!index.must_follow(), "nobody waits for what had not begun");
    }

    /// Segments become one, in whatever order they are named; then others' rows come to where some of them were.
    #[test]
    fn rows_of_several_segments_move_into_one_of_them() {
        let (segments, rows) = (3, 100);
        let at = |slot: u32, row: u32| Address { slot, row };
        for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
            let mut index = KeyIndex::default();
            let is_at = |index: &KeyIndex, to: fn(u32, u32) -> Address| {
                (0..segments * rows).all(|key| leads_to(index, key, to(key / 100, key % 100)))
            };
            (0..segments * rows).for_each(|key| index.insert(hash(key), at(key / rows, key % rows)));
            let to = |slot: u32| (0..rows).map(|row| at(1, slot * rows + row)).collect();
            index.begin_moves(order.map(|slot| (slot, to(slot))));
            assert!(is_at(&index, |slot, row| Address { slot: 1, row: slot * 100 + row }));
            assert!((0..segments).all(|slot| !index.can_move(slot)));
            // Somebody else's rows have the places that two of them had.
            (0..rows).for_each(|row| index.insert(hash(1_000 + row), at(2, row)));
            for all in [false, true] {
                while all && !index.follow(100) {}
                assert!(is_at(&index, |slot, row| Address { slot: 1, row: slot * 100 + row }));
                assert!((0..rows).all(|row| leads_to(&index, 1_000 + row, at(2, row))));
            }
        }
    }

    /// Entries that have gone leave no memory behind when the others follow their rows.
    #[test]
    fn few_keys_take_little_when_most_have_gone() {
        let mut index = KeyIndex::default();
        (0..KEYS).for_each(|key| index.insert(hash(key), Address { slot: 0, row: key }));
        let full = index.size();
        assert!(full >= KEYS as usize * size_of::<Entry>());
        index.begin_move(
            0,
            (0..KEYS).map(|row| if row % 100 == 0 { Address { slot: 0, row } } else { GONE }).collect(),
        );
        while !index.follow(100) {}
        assert!(
            index.len() == KEYS as usize / 100 && index.size() * SPARSE / 2 < full,
            "{} of {full}",
            index.size()
        );
        assert!((0..KEYS).step_by(100).all(|key| leads_to(&index, key, Address { slot: 0, row: key })));
    }

    #[test]
    fn a_part_that_grows_has_all_of_its_keys_to_deal_with() {
        let mut index = KeyIndex::default();
        assert_eq!(index.insert_all(0, keys(0, 100), 0), 100);
        let room = index.parts[0].capacity() - 100;
        assert_eq!(index.insert_all(0, keys(100, room), 0), room);
        assert_eq!(index.insert_all(0, keys(100 + room as u32, 5), 0), 100 + room + 5);
        assert!((0..105 + room as u32).all(|row| leads_to_row(&index, row)));
    }

    #[test]
    fn there_is_room_for_keys_that_follow_as_far_as_that_is_credible() {
        let mut index = KeyIndex::default();
        assert_eq!(index.insert_all(0, keys(0, 100), 400), 100);
        assert_eq!(index.insert_all(0, keys(100, 400), 0), 400, "it does not have to grow");
        let mut index = KeyIndex::default();
        index.insert_all(0, keys(0, 100), usize::MAX);
        assert!(index.parts[0].capacity() < 100 * 4 * MOST_GROWTH);
    }

    /// So many keys of one part, which are their hashes, too.
    fn keys(from: u32, count: usize) -> Vec<(u64, Address)> {
        (from..).take(count).map(|key| (u64::from(key), Address { slot: 0, row: key })).collect()
    }

    fn leads_to_row(index: &KeyIndex, row: u32) -> bool {
        let address = Address { slot: 0, row };
        index.find(u64::from(row), |found| found == address) == Some(address)
    }
}
