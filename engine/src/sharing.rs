//! What reads that ride together have in common: it is done once at a segment.
//!
//! Reads with the same predicate form a class, and within it those that ask for the same groups and aggregates. At a
//! segment, the rows that the first of a class chooses, and the partial aggregates that it makes of them, are
//! remembered for those behind it. They see the same versions if nothing has begun or ended between their prefixes
//! ([`Versions::horizon`](crate::versions::Versions::horizon)), wherever each of them joined and however many writes ride
//! along. Reads that joined together also share what they have added up so far, until their ways part.
//!
//! Where rows wait for decisions nothing is shared: each read has rows of its own to wait for.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use hashbrown::{HashMap, HashTable};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    aggregate::AggregateCall,
    error::Result,
    expr::{
        Expr,
        identity::{are_all_same, hash_of},
    },
    kernel::Groups,
    operation::{Effect, Operation, OperationKind, ReadOutput, Ts},
    predicate_index::TestId,
    preparation::Work,
    rider::Rider,
    riders::{Ride, Riders},
    table::Table,
};

/// Which other reads a read has something in common with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    predicate: u32,
    groups: Option<u32>,
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    hash: u64,
    riders: u32,
}

/// Things that riders ask with, each held once.
#[derive(Debug)]
struct Held<K> {
    entries: Vec<Option<Entry<K>>>,
    free: Vec<u32>,
    index: HashTable<(u64, u32)>,
}

impl<K> Default for Held<K> {
    fn default() -> Held<K> {
        Held { entries: Vec::new(), free: Vec::new(), index: HashTable::new() }
    }
}

impl<K> Held<K> {
    fn join(&mut self, hash: u64, is_same: impl Fn(&K) -> bool, make: impl FnOnce() -> K) -> u32 {
        let is_it = |(other, id): &(u64, u32)| {
            *other == hash && self.entries[*id as usize].as_ref().is_some_and(|entry| is_same(&entry.key))
        };
        let found = self.index.find(hash, is_it).map(|(_, id)| *id);
        if let Some(id) = found
            && let Some(entry) = &mut self.entries[id as usize]
        {
            entry.riders += 1;
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[id as usize] = Some(Entry { key: make(), hash, riders: 1 });
        self.index.insert_unique(hash, (hash, id), |(hash, _)| *hash);
        id
    }

    fn leave(&mut self, id: u32) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        entry.riders -= 1;
        if entry.riders == 0 {
            if let Ok(found) = self.index.find_entry(entry.hash, |(_, other)| *other == id) {
                found.remove();
            }
            self.entries[id as usize] = None;
            self.free.push(id);
        }
    }

    fn get(&self, id: u32) -> Option<&Entry<K>> {
        self.entries[id as usize].as_ref()
    }
}

#[derive(Debug)]
struct SharedPredicate {
    /// Ascending.
    tests: Box<[TestId]>,
    residual: Vec<Expr>,
    /// Whose residual it is, if there is any.
    operation: Option<Arc<Operation>>,
}

#[derive(Debug)]
struct SharedGroups {
    predicate: u32,
    operation: Arc<Operation>,
    /// What every read of the class begins with.
    empty: Arc<Groups>,
}

/// The classes of the reads that ride past a table.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    predicates: Held<SharedPredicate>,
    groups: Held<SharedGroups>,
}

impl Classes {
    /// Adds a read with its tests; writes are in no class.
    pub(crate) fn join(&mut self, rider: &mut Rider, tests: &[TestId]) -> Option<Class> {
        if rider.is_write {
            return None;
        }
        let mut tests: Box<[TestId]> = tests.into();
        tests.sort_unstable();
        let (operation, residual) = (&rider.operation, &rider.prepared.residual);
        let hash = tests.iter().fold(hash_of(residual), |hash, test| mix(hash, u64::from(*test)));
        let is_same = |other: &SharedPredicate| {
            let is_same_residual = match &other.operation {
                Some(other_operation) => {
                    are_all_same(&other.residual, &other_operation.context, residual, &operation.context)
                }
                None => residual.is_empty(),
            };
            other.tests == tests && is_same_residual
        };
        let make = || SharedPredicate {
            tests: tests.clone(),
            residual: residual.clone(),
            operation: (!residual.is_empty()).then(|| operation.clone()),
        };
        let predicate = self.predicates.join(hash, is_same, make);
        let Work::Groups { groups, .. } = &mut rider.work else {
            return Some(Class { predicate, groups: None });
        };
        let is_same =
            |other: &SharedGroups| other.predicate == predicate && ask_same(&other.operation, operation);
        let make = || SharedGroups { predicate, operation: operation.clone(), empty: groups.clone() };
        let id = self.groups.join(mix(hash_of_groups(operation), u64::from(predicate)), is_same, make);
        if let Some(class) = self.groups.get(id) {
            groups.clone_from(&class.key.empty);
        }
        Some(Class { predicate, groups: Some(id) })
    }

    /// Takes a read away.
    pub(crate) fn leave(&mut self, class: Class) {
        self.predicates.leave(class.predicate);
        class.groups.into_iter().for_each(|groups| self.groups.leave(groups));
    }

    /// Whether there are several reads of a class.
    pub(crate) fn is_shared(&self, class: Class) -> bool {
        self.predicates.get(class.predicate).is_some_and(|entry| entry.riders > 1)
    }

    fn empty(&self, class: Class) -> Option<&Arc<Groups>> {
        Some(&self.groups.get(class.groups?)?.key.empty)
    }
}

fn mix(hash: u64, more: u64) -> u64 {
    (hash.rotate_left(25) ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn hash_of_groups(operation: &Operation) -> u64 {
    let OperationKind::Read(read) = &operation.kind else { return 0 };
    let ReadOutput::Groups { group_by, aggregates, .. } = &read.output else { return 0 };
    let mut hasher = Xxh3::new();
    hash_of(group_by).hash(&mut hasher);
    for call in aggregates {
        call.function.hash(&mut hasher);
        hash_of(call.argument.as_slice()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether two reads ask for the same groups and aggregates.
fn ask_same(a: &Operation, b: &Operation) -> bool {
    let (OperationKind::Read(read), OperationKind::Read(other)) = (&a.kind, &b.kind) else { return false };
    let (
        ReadOutput::Groups { group_by, aggregates, top },
        ReadOutput::Groups { group_by: other_group_by, aggregates: other_aggregates, top: other_top },
    ) = (&read.output, &other.output)
    else {
        return false;
    };
    let all_same = |x: &[Expr], y: &[Expr]| are_all_same(x, &a.context, y, &b.context);
    let is_same_call = |(x, y): (&AggregateCall, &AggregateCall)| {
        (x.function, x.distinct, &x.order) == (y.function, y.distinct, &y.order)
            && all_same(x.argument.as_slice(), y.argument.as_slice())
            && all_same(x.filter.as_slice(), y.filter.as_slice())
            && all_same(&x.further, &y.further)
    };
    all_same(group_by, other_group_by)
        && top == other_top
        && aggregates.len() == other_aggregates.len()
        && aggregates.iter().zip(other_aggregates).all(is_same_call)
}

/// The versions that a read sees in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sees {
    /// Those behind this change and before the next one.
    Horizon(u64),
    /// Those of a prefix whose changes are not remembered.
    Prefix(Ts),
}

/// A read at a segment with others of its class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Together {
    class: Class,
    sees: Sees,
}

/// What somebody has made of a segment's rows.
#[derive(Debug)]
struct Partial {
    groups: Arc<Groups>,
    rows: u64,
    /// What had been added up before, and the same with these groups.
    followed: Vec<(Arc<Groups>, Arc<Groups>)>,
}

/// What is known of a segment during a visit.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    chosen: HashMap<(u32, Sees), Arc<[u32]>>,
    partials: HashMap<(u32, Sees), Partial>,
}

impl Memo {
    /// At the end of a visit.
    pub(crate) fn forget(&mut self) {
        self.chosen.clear();
        self.partials.clear();
    }

    /// Remembers that no row meets a predicate.
    pub(crate) fn remember_none(&mut self, together: Together) {
        self.chosen.insert((together.class.predicate, together.sees), Arc::default());
    }

    /// Remembers the rows that a read has chosen.
    pub(crate) fn remember(&mut self, together: Together, rows: &[u32]) {
        self.chosen.insert((together.class.predicate, together.sees), rows.into());
    }
}

/// What a read had added up before a segment.
pub(crate) struct Before {
    groups: Arc<Groups>,
    rows: u64,
}

fn rows_in(rider: &Rider, place: usize) -> Option<u64> {
    rider.ranges[place].outcome.as_ref().ok().copied()
}

impl Table {
    /// What a read has in common with others here; `None` when it is alone.
    pub(crate) fn together(&self, slot: u32, ride: &Ride, riders: &mut Riders) -> Option<Together> {
        let class = ride.class.filter(|class| self.classes.is_shared(*class))?;
        let segment = &self.segments[slot as usize];
        if !segment.undecided.is_empty() || !segment.queues.is_empty() {
            return None;
        }
        let sees = riders.at(ride.place)?.sees;
        let sees = segment.versions.horizon(sees).map_or(Sees::Prefix(sees), Sees::Horizon);
        Some(Together { class, sees })
    }

    /// Gives a read what another one of its class has found out here. Returns whether there was something.
    pub(crate) fn take_over(
        &mut self,
        slot: u32,
        together: Together,
        rider: &mut Rider,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let range = self.segments[slot as usize].range;
        let Some(place) = rider.place_of_range[range] else { return false };
        let partial = together.class.groups.and_then(|id| self.memo.partials.get_mut(&(id, together.sees)));
        if let Some(partial) = partial {
            if let Err(error) = partial.add_to(rider, place) {
                self.fail(rider, range, error);
            }
            return true;
        }
        let Some(rows) = self.memo.chosen.get(&(together.class.predicate, together.sees)).cloned() else {
            return false;
        };
        let before = self.begin_partial(slot, together, rider);
        if !rows.is_empty() {
            self.apply(rider, slot, &rows, effects);
        }
        self.end_partial(slot, together, rider, before);
        true
    }

    /// Lets a read begin to add up anew, so that what it makes of this segment can be given to others.
    pub(crate) fn begin_partial(&self, slot: u32, together: Together, rider: &mut Rider) -> Option<Before> {
        let place = rider.place_of_range[self.segments[slot as usize].range]?;
        let empty = self.classes.empty(together.class)?.clone();
        let rows = rows_in(rider, place)?;
        let Work::Groups { groups, .. } = &mut rider.work else { return None };
        Some(Before { groups: std::mem::replace(groups, empty), rows })
    }

    /// Adds what a read has made of this segment to what it had before, and remembers it.
    pub(crate) fn end_partial(
        &mut self,
        slot: u32,
        together: Together,
        rider: &mut Rider,
        before: Option<Before>,
    ) {
        let range = self.segments[slot as usize].range;
        let (Some(before), Some(id), Some(place)) =
            (before, together.class.groups, rider.place_of_range[range])
        else {
            return;
        };
        let Work::Groups { groups, .. } = &mut rider.work else { return };
        let made = std::mem::replace(groups, before.groups);
        let outcome = &mut rider.ranges[place].outcome;
        let Ok(rows) = outcome else { return };
        let mut partial = Partial { groups: made, rows: *rows - before.rows, followed: Vec::new() };
        *rows = before.rows;
        match partial.add_to(rider, place) {
            Ok(()) => {
                self.memo.partials.insert((id, together.sees), partial);
            }
            Err(error) => self.fail(rider, range, error),
        }
    }
}

impl Partial {
    /// Adds these groups to those of a read.
    fn add_to(&mut self, rider: &mut Rider, place: usize) -> Result<()> {
        if let Ok(rows) = &mut rider.ranges[place].outcome {
            *rows += self.rows;
        }
        let Work::Groups { groups, .. } = &mut rider.work else { return Ok(()) };
        if let Some((_, sum)) = self.followed.iter().find(|(before, _)| Arc::ptr_eq(before, groups)) {
            groups.clone_from(sum);
            return Ok(());
        }
        let before = (Arc::strong_count(groups) > 1 && groups.are_few()).then(|| groups.clone());
        Arc::make_mut(groups).merge(&self.groups)?;
        self.followed.extend(before.map(|before| (before, groups.clone())));
        Ok(())
    }
}
