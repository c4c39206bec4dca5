//! The tests of everybody who rides past a table, each held once.

use std::sync::Arc;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::{ColumnTest, Test};
use crate::{
    ahead::fetch_all,
    expr::{
        EvalContext,
        identity::{self, are_same},
    },
    given_up::{Entered, Interest},
    operation::Ts,
    value_filter::{hash_bytes, hash_int},
};

/// A test that somebody rides with.
pub(crate) type TestId = u32;

/// The tests of a table's riders.
#[derive(Debug)]
pub(crate) struct SharedTests {
    entries: Vec<Entry>,
    free: Vec<TestId>,
    index: HashTable<TestId>,
    any_context: EvalContext,
    /// Stands for the tests that nobody rides with.
    nothing: Arc<ColumnTest>,
}

impl Default for SharedTests {
    fn default() -> SharedTests {
        SharedTests {
            entries: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            any_context: EvalContext::default(),
            nothing: Arc::new(ColumnTest { column: 0, test: Test::Null }),
        }
    }
}

#[derive(Debug)]
struct Entry {
    test: Arc<ColumnTest>,
    /// Only of an expression.
    evaluation: Option<Box<Evaluation>>,
    hash: u64,
    gist: Gist,
    column: u32,
    riders: u32,
}

/// What an expression is evaluated in, and for whom.
#[derive(Debug)]
struct Evaluation {
    context: EvalContext,
    interests: Vec<(Ts, Interest)>,
}

/// What most questions about a test are answered from, without a look at the test itself.
#[derive(Clone, Copy, Debug)]
enum Gist {
    /// One closed interval of whole numbers.
    Interval(i64, i64),
    /// One byte string, by its hash, and itself if it is short.
    Bytes(u64, Option<Short>),
    Other,
}

/// A short byte string.
#[derive(Clone, Copy, Debug)]
struct Short {
    length: u8,
    bytes: [u8; Short::MOST],
}

impl Short {
    const MOST: usize = 14;

    fn new(value: &[u8]) -> Option<Short> {
        let mut short = Short { length: value.len() as u8, bytes: [0; Short::MOST] };
        short.bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(short)
    }
}

impl Entry {
    fn is_same(&self, test: &ColumnTest, context: &EvalContext) -> bool {
        match (&self.test.test, &test.test, &self.evaluation) {
            (Test::Expression(a), Test::Expression(b), Some(its)) => {
                self.test.column == test.column && are_same(a, &its.context, b, context)
            }
            _ => *self.test == *test,
        }
    }
}

impl SharedTests {
    /// Adds a test of the rider at `ts`.
    pub(crate) fn join(
        &mut self,
        test: &Arc<ColumnTest>,
        context: &EvalContext,
        ts: Ts,
        interest: &Interest,
    ) -> TestId {
        let hash = hash_of(test);
        let is_expression = matches!(test.test, Test::Expression(_));
        let same = |id: &TestId| {
            let entry = &self.entries[*id as usize];
            entry.hash == hash && entry.is_same(test, context)
        };
        if let Some(id) = self.index.find(hash, same).copied() {
            let entry = &mut self.entries[id as usize];
            entry.riders += 1;
            if let Some(evaluation) = &mut entry.evaluation {
                evaluation.interests.push((ts, interest.clone()));
            }
            return id;
        }
        let entry = Entry {
            test: test.clone(),
            evaluation: is_expression.then(|| {
                Box::new(Evaluation { context: context.clone(), interests: vec![(ts, interest.clone())] })
            }),
            hash,
            gist: gist_of(&test.test),
            column: test.column as u32,
            riders: 1,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as TestId - 1
            }
        };
        let entries = &self.entries;
        self.index.insert_unique(hash, id, |id| entries[*id as usize].hash);
        id
    }

    /// Takes a test of the rider at `ts` away.
    pub(crate) fn leave(&mut self, id: TestId, ts: Ts) {
        let entry = &mut self.entries[id as usize];
        entry.riders -= 1;
        if let Some(evaluation) = &mut entry.evaluation
            && let Some(place) = evaluation.interests.iter().position(|(of, _)| *of == ts)
        {
            evaluation.interests.swap_remove(place);
        }
        if entry.riders == 0 {
            entry.test = self.nothing.clone();
            entry.evaluation = None;
            if let Ok(found) = self.index.find_entry(entry.hash, |other| *other == id) {
                found.remove();
            }
            self.free.push(id);
        }
    }

    /// Begins to fetch what most questions about a test are answered from.
    #[inline]
    pub(crate) fn fetch(&self, id: TestId) {
        fetch_all(self.entries.as_ptr().wrapping_add(id as usize));
    }

    /// As [`fetch`](SharedTests::fetch), of several tests.
    #[inline]
    pub(crate) fn fetch_all(&self, ids: &[TestId]) {
        ids.iter().for_each(|id| self.fetch(*id));
    }

    /// Begins to fetch the test itself, if what has been fetched of it does not say everything.
    #[inline]
    pub(crate) fn fetch_whole(&self, id: TestId) {
        let entry = &self.entries[id as usize];
        if !matches!(entry.gist, Gist::Interval(..) | Gist::Bytes(_, Some(_))) {
            fetch_all(Arc::as_ptr(&entry.test));
        }
    }

    pub(crate) fn get(&self, id: TestId) -> &Arc<ColumnTest> {
        &self.entries[id as usize].test
    }

    /// What a test is evaluated in. Only expressions ask, and theirs is the riders'.
    pub(crate) fn context(&self, id: TestId) -> &EvalContext {
        let evaluation = self.entries[id as usize].evaluation.as_deref();
        evaluation.map_or(&self.any_context, |evaluation| &evaluation.context)
    }

    /// Until what this gives is dropped, an expression is evaluated for as long as one of those who ride with it wants it.
    pub(crate) fn enter(&self, id: TestId) -> Option<Entered> {
        let evaluation = self.entries[id as usize].evaluation.as_deref()?;
        Some(Interest::enter_any(evaluation.interests.iter().map(|(_, interest)| interest)))
    }

    /// The hash of the one value that meets a test, as [`ValueFilter`](crate::value_filter::ValueFilter) has it.
    #[inline]
    pub(crate) fn point(&self, id: TestId) -> Option<u64> {
        match self.entries[id as usize].gist {
            Gist::Interval(low, high) if low == high => Some(hash_int(low)),
            Gist::Bytes(hash, _) => Some(hash),
            _ => None,
        }
    }

    /// The one byte string that meets a test, with its hash.
    #[inline]
    pub(crate) fn bytes(&self, id: TestId) -> Option<(&[u8], u64)> {
        let entry = &self.entries[id as usize];
        match (&entry.gist, &entry.test.test) {
            (Gist::Bytes(hash, Some(short)), _) => Some((&short.bytes[..usize::from(short.length)], *hash)),
            (Gist::Bytes(hash, None), Test::Bytes(intervals)) => {
                intervals.first().map(|(value, _)| (value.as_slice(), *hash))
            }
            _ => None,
        }
    }

    /// The interval of whole numbers that meet a test, if it is one.
    #[inline]
    pub(crate) fn interval(&self, id: TestId) -> Option<(i64, i64)> {
        match self.entries[id as usize].gist {
            Gist::Interval(low, high) => Some((low, high)),
            _ => None,
        }
    }

    /// The column that a test is about.
    #[inline]
    pub(crate) fn column(&self, id: TestId) -> usize {
        self.entries[id as usize].column as usize
    }

    /// Above every test's number.
    pub(crate) fn bound(&self) -> usize {
        self.entries.len()
    }
}

fn gist_of(test: &Test) -> Gist {
    match test {
        Test::Ints(intervals) => match intervals.as_slice() {
            [(low, high)] => Gist::Interval(*low, *high),
            _ => Gist::Other,
        },
        Test::Bytes(intervals) => match intervals.as_slice() {
            [(low, Some(high))] => match high.split_last() {
                Some((0, value)) if value == low => Gist::Bytes(hash_bytes(low), Short::new(low)),
                _ => Gist::Other,
            },
            _ => Gist::Other,
        },
        _ => Gist::Other,
    }
}

fn hash_of(test: &ColumnTest) -> u64 {
    let mut hash = test.column as u64;
    let mut add = |value: u64| hash = (hash.rotate_left(25) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match &test.test {
        Test::Ints(intervals) => intervals.iter().for_each(|(low, high)| {
            add(*low as u64);
            add(*high as u64);
        }),
        Test::Wides(intervals) => intervals.iter().for_each(|(low, high)| {
            add(*low as u64);
            add(*high as u64);
        }),
        Test::Bytes(intervals) => intervals.iter().for_each(|(low, high)| {
            add(xxh3_64(low));
            add(high.as_ref().map_or(1, |high| xxh3_64(high)));
        }),
        Test::Expression(expr) => add(identity::hash_of(std::slice::from_ref(expr))),
        Test::Null => add(3),
        Test::NotNull => add(4),
    }
    hash ^ hash >> 29
}
