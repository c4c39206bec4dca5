//! The operations of a shard that are not finished, and what of them is looked at at every segment.

use hashbrown::HashMap;

use crate::{ahead::fetch_all, operation::Ts, predicate_index::TestId, rider::Rider, sharing::Class};

/// The operations that have been admitted and are not finished. Each has a place, which it keeps while it is taken
/// out to act.
#[derive(Debug, Default)]
pub(crate) struct Riders {
    places: Vec<Option<Box<Rider>>>,
    /// By place: the earliest prefix that the operation asks for.
    horizons: Vec<u64>,
    free: Vec<u32>,
    by_ts: HashMap<Ts, u32>,
}

impl Riders {
    pub(crate) fn len(&self) -> usize {
        self.by_ts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_ts.is_empty()
    }

    /// Adds an operation.
    pub(crate) fn insert(&mut self, rider: Box<Rider>) -> u32 {
        let horizon = rider.sees.min(rider.ts).0;
        let ts = rider.ts;
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(rider);
                self.horizons[place as usize] = horizon;
                place
            }
            None => {
                self.places.push(Some(rider));
                self.horizons.push(horizon);
                self.places.len() as u32 - 1
            }
        };
        self.by_ts.insert(ts, place);
        place
    }

    /// Forgets an operation, which may have been taken out.
    pub(crate) fn remove(&mut self, ts: Ts) {
        if let Some(place) = self.by_ts.remove(&ts) {
            self.places[place as usize] = None;
            self.horizons[place as usize] = u64::MAX;
            self.free.push(place);
        }
    }

    pub(crate) fn get(&self, ts: Ts) -> Option<&Rider> {
        self.places[*self.by_ts.get(&ts)? as usize].as_deref()
    }

    pub(crate) fn get_mut(&mut self, ts: Ts) -> Option<&mut Rider> {
        self.places[*self.by_ts.get(&ts)? as usize].as_deref_mut()
    }

    /// The operation at a place.
    pub(crate) fn at(&mut self, place: u32) -> Option<&mut Rider> {
        self.places[place as usize].as_deref_mut()
    }

    /// Begins to fetch the operation at a place into the cache.
    pub(crate) fn fetch(&self, place: u32) {
        if let Some(rider) = &self.places[place as usize] {
            fetch_all(&raw const **rider);
        }
    }

    /// Takes an operation out for a while.
    pub(crate) fn take(&mut self, ts: Ts) -> Option<Box<Rider>> {
        self.places[*self.by_ts.get(&ts)? as usize].take()
    }

    /// Puts an operation back where it was.
    pub(crate) fn put_back(&mut self, rider: Box<Rider>) {
        if let Some(place) = self.by_ts.get(&rider.ts) {
            self.places[*place as usize] = Some(rider);
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Rider> {
        self.places.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// Whether no operation waits for a row.
    pub(crate) fn none_waits(&self) -> bool {
        self.places.iter().flatten().all(|rider| rider.waiting == 0)
    }

    /// The earliest prefix that an operation asks for.
    pub(crate) fn horizon(&self) -> Ts {
        Ts(self.horizons.iter().copied().min().unwrap_or(u64::MAX))
    }
}

/// An operation on its revolution: no more of it than decides whether it has to look at a segment.
#[derive(Debug)]
pub(crate) struct Ride {
    pub(crate) ts: Ts,
    /// It sees writes before this, and waits for no others.
    pub(crate) sees: Ts,
    /// Its place among the riders.
    pub(crate) place: u32,
    /// First segment of its revolution, and how many there are in it.
    start: u32,
    slots: u32,
    /// Segments not yet passed.
    pub(crate) left: u32,
    /// Whether it has found more than it may send, or many rows in doubt, and waits.
    pub(crate) paused: bool,
    /// Whether it waits for decisions about rows of the segment that it comes to next, or for a write before it that does.
    pub(crate) in_doubt: bool,
    /// Whether it has waited, so that the segment which is visited next need not be the one that it comes to next.
    pub(crate) lags: bool,
    pub(crate) is_write: bool,
    /// Whether its tests are in the order of their selectivity.
    pub(crate) ordered: bool,
    /// The key ranges of the shard that it acts on, as [`bit`]s.
    pub(crate) ranges: u64,
    /// The columns it tests, as [`bit`]s.
    pub(crate) columns: u64,
    /// The most selective test, if it asks for one value: its column, and the value's hash.
    pub(crate) point: Option<(u32, u64)>,
    pub(crate) tests: Box<[TestId]>,
    /// The reads that it has something in common with.
    pub(crate) class: Option<Class>,
}

/// One of 64 bits for an index; indices may share one.
pub(crate) fn bit(index: usize) -> u64 {
    1 << (index % 64)
}

impl Ride {
    /// A revolution over `slots` segments that begins at `start`.
    pub(crate) fn new(
        rider: &Rider,
        tests: Box<[TestId]>,
        class: Option<Class>,
        start: u32,
        slots: u32,
    ) -> Ride {
        let acts = |range: &usize| rider.acts_on(*range);
        Ride {
            ts: rider.ts,
            sees: rider.sees.min(rider.ts),
            place: 0,
            start,
            slots,
            left: slots,
            paused: false,
            in_doubt: false,
            lags: false,
            is_write: rider.is_write,
            ordered: false,
            ranges: (0..rider.place_of_range.len()).filter(acts).fold(0, |bits, range| bits | bit(range)),
            columns: rider.prepared.tested,
            point: None,
            tests,
            class,
        }
    }

    /// Takes its turn at the segment that it comes to next.
    pub(crate) fn step(&mut self) {
        self.left -= 1;
        self.lags = false;
    }

    /// Lets it wait at the segment at which it has just taken its turn until somebody decides about rows there.
    pub(crate) fn wait_here(&mut self) {
        self.left += 1;
        self.pause_in_doubt();
    }

    /// Lets it wait before the segment that it comes to next.
    pub(crate) fn pause_in_doubt(&mut self) {
        (self.paused, self.in_doubt, self.lags) = (true, true, true);
    }

    /// Whether the segment is the one that it looks at next. After a pause it may have to wait for it.
    pub(crate) fn is_next(&self, slot: u32) -> bool {
        self.left > 0 && slot == (self.start + self.slots - self.left) % self.slots
    }

    /// Whether the segment is still to come.
    pub(crate) fn has_ahead(&self, slot: u32) -> bool {
        slot < self.slots && (slot + self.slots - self.start) % self.slots >= self.slots - self.left
    }
}
