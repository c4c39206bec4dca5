//! Finding the rows of all riders at a segment.
//!
//! ```text
//!   plan      each rider's tests become tests of codes, the most selective first and no more of them than it takes:
//!             a constant that is in no row of the segment spares the rider the segment
//!   probe     where few rows are expected, each of the riders' most selective tests gets the list of its rows. Columns
//!             that are asked often hold their rows by code, and the list is read off; otherwise all tests of a column
//!             are joined with it in one pass
//!   find      each rider's list is checked against its other tests; or, where no test of it is selective by itself,
//!             the bitmaps of its tests are intersected, each of which is made once for all riders
//! ```

use std::ops::Range;

use super::{
    SharedTests, TestId,
    code_test::{CodeTest, keep},
    plain::{retain_plain, row_holds},
};
use crate::{
    bits::{Bits, for_bits},
    column::{Codes, EncodedColumn, SegmentColumn},
    error::{Result, SqlError},
    schema::Column,
    segment::Segment,
    shard::Options,
    simd,
    simd::{BUCKETS, Buckets, Code},
};

/// What is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) tests: &'a SharedTests,
    pub(crate) columns: &'a [SegmentColumn],
    pub(crate) types: &'a [Column],
    /// Encoded rows.
    pub(crate) rows: usize,
    pub(crate) options: Options,
}

impl<'a> Scene<'a> {
    /// The first `rows` rows of a segment, which are encoded.
    pub(crate) fn of(
        tests: &'a SharedTests,
        segment: &'a Segment,
        types: &'a [Column],
        rows: usize,
        options: Options,
    ) -> Scene<'a> {
        Scene { tests, columns: &segment.columns, types, rows, options }
    }

    /// Rows up to which a test counts as selective.
    fn few(&self) -> usize {
        self.rows / self.options.selective_share.max(1)
    }

    /// Rows that are asked one by one in no more time than a pass over a column takes.
    fn checked(&self) -> usize {
        const SHARE: usize = 64;
        self.rows / SHARE
    }

    /// Rows up to which no other test is asked whether it is more selective.
    fn enough(&self) -> usize {
        self.few() / 4
    }

    /// Lists from which one pass over a column, joining it with all of them, costs less than comparing it with each;
    /// `None` where comparing always costs less.
    fn together(&self, column: &EncodedColumn) -> Option<usize> {
        let together = self.options.probe_together;
        match column.codes {
            Codes::Constant | Codes::Bit(_) => None,
            Codes::U8(_) => Some(together * 2),
            Codes::U16(_) => Some(together),
            Codes::U32(_) => Some(together.div_ceil(2)),
            Codes::U64(_) => Some(together.div_ceil(4)),
        }
    }

    /// Whether one row meets a test.
    pub(crate) fn row_holds(&self, id: TestId, row: usize) -> Result<bool> {
        row_holds(self.tests.get(id), self.columns, self.types, self.tests.context(id), row)
    }

    pub(super) fn encoded(&self, id: TestId) -> Option<&'a EncodedColumn> {
        self.columns[self.tests.column(id)].base.as_ref()
    }
}

/// How a rider's rows are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// There are none.
    Nothing,
    /// They are all rows.
    All,
    /// From the list of this test's rows.
    List(TestId),
    /// From this test's rows, which the column holds by code.
    LookUp(TestId),
    /// From the bitmaps of the tests.
    Masks,
    /// The evaluation of this test fails.
    Wrong(TestId),
}

/// Rows that meet all tests of a rider.
#[derive(Debug)]
pub(crate) enum Found {
    /// Ascending.
    Rows(Vec<u32>),
    Mask(Bits),
}

impl Found {
    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Found::Rows(rows) => rows.len(),
            Found::Mask(mask) => mask.count(),
        }
    }

    /// Adds rows behind all others; there are `rows` then.
    pub(crate) fn extend(&mut self, more: impl Iterator<Item = u32>, rows: usize) {
        match self {
            Found::Rows(found) => found.extend(more),
            Found::Mask(mask) => {
                mask.resize(rows);
                more.for_each(|row| mask.set(row as usize));
            }
        }
    }
}

/// What a test comes to at a segment.
#[derive(Debug, Default)]
pub(super) enum Standing {
    /// No row meets it.
    #[default]
    Hopeless,
    /// Every row meets it.
    Certain,
    Open,
    Wrong(SqlError),
}

pub(super) const NONE: u32 = u32::MAX;
const UNKNOWN: usize = usize::MAX;

/// A test during a visit.
#[derive(Debug)]
pub(super) struct State {
    /// The visit that the rest is about.
    visit: u64,
    pub(super) standing: Standing,
    pub(super) code: CodeTest,
    /// About how many rows meet it; [`UNKNOWN`] until somebody asks.
    rows: usize,
    /// Where they are in a column that holds its rows by code, if that is known.
    places: Option<Range<usize>>,
    list: u32,
    pub(super) mask: u32,
}

/// Rows up to which looking at their values is cheaper than translating a test.
pub(super) const SINGLE: usize = 6;

/// Lists of rows that are kept for the next riders.
const SPARE_ROWS: usize = 64;

/// An interval of codes that somebody wants, and where the rows go.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    low: u64,
    high: u64,
    /// The greatest end of this interval and those before it.
    reach: u64,
    list: u32,
}

/// Vectors that are used again at every visit.
#[derive(Debug)]
struct Pool<T> {
    vectors: Vec<Vec<T>>,
    used: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { vectors: Vec::new(), used: 0 }
    }
}

impl<T> Pool<T> {
    /// Vectors that are kept for the next visit.
    const KEPT: usize = 512;

    fn next(&mut self) -> u32 {
        match self.vectors.get_mut(self.used) {
            Some(vector) => vector.clear(),
            None => self.vectors.push(Vec::new()),
        }
        self.used += 1;
        self.used as u32 - 1
    }

    fn reset(&mut self) {
        self.used = 0;
        self.vectors.truncate(Pool::<T>::KEPT);
    }
}

/// Finds rows; keeps its memory from visit to visit.
#[derive(Debug, Default)]
pub(crate) struct Prober {
    visit: u64,
    pub(super) states: Vec<State>,
    lists: Pool<u32>,
    masks: Pool<u64>,
    /// Tests whose lists are to be made, with their columns.
    requests: Vec<(usize, TestId)>,
    /// By column: how many lists were made at the last visit, and how many riders have chosen it since.
    popularity: Vec<u32>,
    /// By column, of those that hold their rows by code: how many riders have asked for some.
    looked_up: Vec<usize>,
    /// The columns that do not: how many tests asked for rows, and how many passes it took to find them.
    passes: Vec<(usize, usize, f32)>,
    wanted: Vec<Wanted>,
    /// Which buckets somebody wants, and behind which interval to look for those that overlap a bucket.
    buckets: Vec<u64>,
    behind: Vec<u32>,
    pub(super) spare_rows: Vec<Vec<u32>>,
    spare_words: Vec<u64>,
    scratch: Vec<u64>,
}

impl Prober {
    /// Begins the visit of another segment.
    pub(crate) fn begin(&mut self, tests: &SharedTests) {
        self.visit += 1;
        self.lists.reset();
        self.masks.reset();
        self.requests.clear();
        self.looked_up.clear();
        self.passes.clear();
        self.states.resize_with(tests.bound(), || State {
            visit: 0,
            standing: Standing::Hopeless,
            code: CodeTest::default(),
            rows: 0,
            places: None,
            list: NONE,
            mask: NONE,
        });
    }

    pub(super) fn is_translated(&self, id: TestId) -> bool {
        self.states[id as usize].visit == self.visit
    }

    pub(super) fn translate(&mut self, scene: &Scene, id: TestId) -> &State {
        let state = &mut self.states[id as usize];
        if state.visit != self.visit {
            state.visit = self.visit;
            (state.rows, state.places, state.list, state.mask) = (UNKNOWN, None, NONE, NONE);
            let Some(column) = scene.encoded(id) else {
                state.standing = Standing::Hopeless;
                return state;
            };
            if scene.tests.point(id).is_some_and(|hash| !column.may_have(hash)) {
                state.standing = Standing::Hopeless;
                return state;
            }
            let interval = scene.tests.interval(id);
            let at_once = match interval {
                Some((low, high)) => CodeTest::of_interval(low, high, column),
                None => {
                    scene.tests.bytes(id).and_then(|(value, hash)| CodeTest::of_bytes(value, hash, column))
                }
            };
            let code = at_once.map_or_else(
                || {
                    let _entered = scene.tests.enter(id);
                    let test = scene.tests.get(id);
                    let ty = &scene.types[test.column].ty;
                    CodeTest::new(&test.test, column, ty, scene.tests.context(id))
                },
                Ok,
            );
            match code {
                Ok(code) => {
                    state.standing = if code.is_hopeless(column) {
                        Standing::Hopeless
                    } else if code.is_certain(column) {
                        Standing::Certain
                    } else {
                        Standing::Open
                    };
                    state.code = code;
                }
                Err(error) => state.standing = Standing::Wrong(error),
            }
        }
        state
    }

    /// About how many rows meet a test that has been translated and is open. It may turn out that none does.
    fn estimate(&mut self, scene: &Scene, id: TestId) -> usize {
        let state = &mut self.states[id as usize];
        if state.rows == UNKNOWN {
            let Some(column) = scene.encoded(id) else { return 0 };
            let held = column.by_code.get().and_then(|by_code| {
                let others = scene.rows.saturating_sub(by_code.covered());
                let (rows, places) = state.code.count(column, by_code)?;
                state.places = places;
                if rows + others == 0 {
                    state.standing = Standing::Hopeless;
                }
                Some(rows + others * rows / by_code.covered().max(1))
            });
            state.rows = held.unwrap_or_else(|| state.code.estimate(column, scene.rows));
        }
        state.rows
    }

    /// Orders tests by what this segment tells about their selectivity; in front comes the one whose list is the
    /// cheapest way to the rider's rows.
    pub(crate) fn order(&mut self, scene: &Scene, tests: &mut [TestId]) {
        let mut keyed: Vec<(f64, TestId)> = tests
            .iter()
            .map(|id| {
                let codes = scene.encoded(*id).map_or(1.0, |column| column.max_code as f64 + 1.0);
                let is_open = matches!(self.translate(scene, *id).standing, Standing::Open);
                let estimated = if is_open { self.estimate(scene, *id) } else { 0 };
                let rows = match self.states[*id as usize].standing {
                    Standing::Open => estimated as f64,
                    // A constant that is not here: as rare as its column's values are on average.
                    Standing::Hopeless | Standing::Wrong(_) => (scene.rows as f64 / codes).min(0.5),
                    Standing::Certain => scene.rows as f64,
                };
                (rows, *id)
            })
            .collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (place, (_, id)) in tests.iter_mut().zip(&keyed) {
            *place = *id;
        }
        let enough = scene.enough() as f64;
        let costs = keyed.iter().take_while(|(rows, _)| *rows <= enough).map(|(rows, id)| {
            let column = scene.tests.column(*id);
            rows + self.cost_of_list(scene, column)
        });
        if let Some((first, _)) = costs.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)) {
            tests[..=first].rotate_right(1);
            let column = scene.tests.column(tests[0]);
            self.popularity[column] += 1;
        }
    }

    /// What another list of rows of this column costs a rider, counted in candidates: its share in a pass that makes
    /// the lists of everybody who chose the column, or a comparison with the column of its own.
    fn cost_of_list(&mut self, scene: &Scene, column: usize) -> f64 {
        /// Rows that a shared pass looks at in the time that a candidate takes.
        const ROWS_A_CANDIDATE: f64 = 8.0;
        self.popularity.resize(scene.columns.len().max(self.popularity.len()), 0);
        let pass = scene.rows as f64 / ROWS_A_CANDIDATE;
        let base = scene.columns[column].base.as_ref().filter(|base| base.by_code.get().is_none());
        match base.and_then(|base| scene.together(base)) {
            Some(together) => (pass / together as f64).min(pass / (f64::from(self.popularity[column]) + 1.0)),
            None => 0.0,
        }
    }

    /// Decides how a rider's rows are found. The first tests are the most selective ones.
    pub(crate) fn plan(&mut self, scene: &Scene, tests: &[TestId]) -> Plan {
        let few = scene.few();
        let mut best: Option<(usize, TestId)> = None;
        for id in tests {
            let state = self.translate(scene, *id);
            match state.standing {
                Standing::Hopeless => return Plan::Nothing,
                Standing::Wrong(_) => return Plan::Wrong(*id),
                Standing::Certain => continue,
                Standing::Open => {}
            }
            let rows = self.estimate(scene, *id);
            if matches!(self.states[*id as usize].standing, Standing::Hopeless) {
                return Plan::Nothing;
            }
            if best.is_none_or(|(least, _)| rows < least) {
                best = Some((rows, *id));
            }
            // Good enough: the others are asked about its rows only.
            if best.is_some_and(|(rows, _)| rows <= scene.enough()) {
                break;
            }
        }
        let Some((rows, id)) = best else { return Plan::All };
        let held = scene.encoded(id).is_some_and(|column| column.by_code.get().is_some());
        if rows > if held { few.max(scene.checked()) } else { few } {
            return Plan::Masks;
        }
        let column = scene.tests.column(id);
        let state = &mut self.states[id as usize];
        if state.list == NONE {
            if !state.code.for_few_intervals(|_, _| {}) {
                return Plan::Masks;
            }
            if held {
                self.looked_up.resize(scene.columns.len(), 0);
                self.looked_up[column] += 1;
                return Plan::LookUp(id);
            }
            state.list = self.lists.next();
            self.requests.push((column, id));
        }
        Plan::List(id)
    }

    /// The columns from which rows were read off, and for how many riders.
    pub(crate) fn looked_up(&self) -> impl Iterator<Item = (usize, usize)> {
        self.looked_up.iter().copied().enumerate().filter(|(_, riders)| *riders > 0)
    }

    /// The columns whose rows were looked for, for how many tests, and the passes that it took.
    pub(crate) fn passes(&self) -> &[(usize, usize, f32)] {
        &self.passes
    }

    /// Makes the lists that plans need: one pass over each column.
    pub(crate) fn probe(&mut self, scene: &Scene) {
        let mut requests = std::mem::take(&mut self.requests);
        requests.sort_unstable();
        self.popularity.clear();
        self.popularity.resize(scene.columns.len(), 0);
        for column_requests in requests.chunk_by(|a, b| a.0 == b.0) {
            self.popularity[column_requests[0].0] = column_requests.len() as u32;
            if let Some(column) = &scene.columns[column_requests[0].0].base {
                let passes = self.probe_column(scene, column, column_requests);
                self.passes.push((column_requests[0].0, column_requests.len(), passes));
            }
        }
        requests.clear();
        self.requests = requests;
    }

    /// Returns how many passes that join them with a column would have taken as long.
    fn probe_column(&mut self, scene: &Scene, column: &EncodedColumn, requests: &[(usize, TestId)]) -> f32 {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        for (_, id) in requests {
            let state = &self.states[*id as usize];
            let list = state.list;
            state.code.for_few_intervals(|low, high| wanted.push(Wanted { low, high, reach: high, list }));
        }
        let together = scene.together(column);
        let alone = together.is_none_or(|together| wanted.len() < together);
        let passes = match together {
            Some(together) if alone => wanted.len() as f32 / together as f32,
            Some(_) => 1.0,
            None => 0.0,
        };
        if alone {
            let mut words = std::mem::take(&mut self.scratch);
            for (_, id) in requests {
                let state = &self.states[*id as usize];
                state.code.mask(column, 0, scene.rows, &mut words);
                let list = &mut self.lists.vectors[state.list as usize];
                for_bits(&words, |row| list.push(row));
            }
            self.scratch = words;
        } else {
            wanted.sort_unstable_by_key(|wanted| wanted.low);
            let mut reach = 0;
            for wanted in &mut wanted {
                reach = reach.max(wanted.high);
                wanted.reach = reach;
            }
            match &column.codes {
                Codes::U8(codes) => self.join(&codes[..scene.rows], column, &wanted),
                Codes::U16(codes) => self.join(&codes[..scene.rows], column, &wanted),
                Codes::U32(codes) => self.join(&codes[..scene.rows], column, &wanted),
                Codes::U64(codes) => self.join(&codes[..scene.rows], column, &wanted),
                Codes::Constant | Codes::Bit(_) => {}
            }
        }
        self.wanted = wanted;
        passes
    }

    /// Joins codes with intervals, which are in the order of their lower ends.
    fn join<T: Code>(&mut self, codes: &[T], column: &EncodedColumn, wanted: &[Wanted]) {
        let bits = u64::BITS - column.max_code.leading_zeros();
        let shift = bits.saturating_sub(BUCKETS.ilog2());
        let bucket = |code: u64| (code >> shift) as usize % BUCKETS;
        self.buckets.clear();
        self.buckets.resize(BUCKETS / 64, 0);
        self.behind.resize(BUCKETS, 0);
        for (index, wanted) in wanted.iter().enumerate() {
            for bucket in bucket(wanted.low)..=bucket(wanted.high) {
                self.buckets[bucket / 64] |= 1 << (bucket % 64);
                self.behind[bucket] = index as u32 + 1;
            }
        }
        let Ok(buckets) = <&Buckets>::try_from(self.buckets.as_slice()) else { return };
        let lists = &mut self.lists.vectors;
        self.scratch.clear();
        self.scratch.resize(codes.len().div_ceil(64), 0);
        T::lookup(codes, shift, buckets, &mut self.scratch);
        for (index, word) in self.scratch.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let row = index * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                let code = codes[row].wide();
                // The code of a NULL is 0.
                if code == 0 && column.is_null(row) {
                    continue;
                }
                let mut at = self.behind[bucket(code)] as usize;
                while at > 0 && wanted[at - 1].reach >= code {
                    at -= 1;
                    if wanted[at].low <= code && code <= wanted[at].high {
                        lists[wanted[at].list as usize].push(row as u32);
                    }
                }
            }
        }
    }

    /// The bitmap of a test that has been translated.
    fn mask(&mut self, scene: &Scene, id: TestId) -> u32 {
        let state = &mut self.states[id as usize];
        if state.mask == NONE {
            state.mask = self.masks.next();
            if let Some(column) = scene.encoded(id) {
                state.code.mask(column, 0, scene.rows, &mut self.masks.vectors[state.mask as usize]);
            }
        }
        state.mask
    }

    /// The encoded rows that meet all of a rider's tests.
    pub(crate) fn find(&mut self, scene: &Scene, tests: &[TestId], plan: Plan) -> Result<Found> {
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        match plan {
            Plan::Nothing => Ok(Found::Rows(rows)),
            Plan::Wrong(id) => match &self.states[id as usize].standing {
                Standing::Wrong(error) => Err(error.clone()),
                _ => Ok(Found::Rows(rows)),
            },
            Plan::All => Ok(Found::Mask(Bits::ones(scene.rows))),
            Plan::List(first) | Plan::LookUp(first) => {
                self.begin_find(scene, plan, &mut rows);
                for id in tests.iter().filter(|id| **id != first) {
                    self.retain(scene, *id, &mut rows)?;
                }
                Ok(Found::Rows(rows))
            }
            Plan::Masks => self.intersect(scene, tests, rows),
        }
    }

    /// Adds the rows of the test that a plan begins with.
    pub(super) fn begin_find(&mut self, scene: &Scene, plan: Plan, rows: &mut Vec<u32>) {
        match plan {
            Plan::List(first) => {
                let list = self.states[first as usize].list;
                rows.extend_from_slice(&self.lists.vectors[list as usize]);
            }
            Plan::LookUp(first) => {
                let state = &self.states[first as usize];
                if let Some(column) = scene.encoded(first) {
                    let places = state.places.clone();
                    state.code.look_up(column, places, scene.rows, &mut self.scratch, rows);
                }
            }
            _ => {}
        }
    }

    /// Keeps those of some rows that meet a test.
    pub(super) fn retain(&mut self, scene: &Scene, id: TestId, rows: &mut Vec<u32>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        if rows.len() <= SINGLE && !self.is_translated(id) {
            let _entered = scene.tests.enter(id);
            let mut error = None;
            rows.retain(|row| {
                scene.row_holds(id, *row as usize).unwrap_or_else(|wrong| {
                    error = Some(wrong);
                    false
                })
            });
            return error.map_or(Ok(()), Err);
        }
        self.translate(scene, id);
        let state = &self.states[id as usize];
        match &state.standing {
            Standing::Hopeless => rows.clear(),
            Standing::Certain => {}
            Standing::Wrong(error) => return Err(error.clone()),
            Standing::Open if state.mask != NONE => {
                let words = &self.masks.vectors[state.mask as usize];
                keep(rows, |row| words[row as usize / 64] >> (row % 64) & 1 == 1);
            }
            Standing::Open => {
                if let Some(column) = scene.encoded(id) {
                    state.code.retain(column, rows);
                }
            }
        }
        Ok(())
    }

    fn intersect(&mut self, scene: &Scene, tests: &[TestId], mut rows: Vec<u32>) -> Result<Found> {
        // The plan may have been made before all of them were asked.
        let mut order = Vec::with_capacity(tests.len());
        for id in tests {
            match &self.translate(scene, *id).standing {
                Standing::Hopeless => return Ok(Found::Rows(rows)),
                Standing::Certain => {}
                Standing::Open => order.push(*id),
                Standing::Wrong(error) => return Err(error.clone()),
            }
        }
        if order.is_empty() {
            return Ok(Found::Mask(Bits::ones(scene.rows)));
        }
        order.sort_by_cached_key(|id| self.estimate(scene, *id));
        let mut words = std::mem::take(&mut self.spare_words);
        words.clear();
        let mut left = scene.rows;
        for (index, id) in order.iter().enumerate() {
            if index > 0 && left <= scene.checked() {
                for_bits(&words, |row| rows.push(row));
                self.spare_words = words;
                for id in &order[index..] {
                    self.retain(scene, *id, &mut rows)?;
                }
                return Ok(Found::Rows(rows));
            }
            let mask = self.mask(scene, *id) as usize;
            if index == 0 {
                words.extend_from_slice(&self.masks.vectors[mask]);
                left = simd::count_ones(&words);
            } else {
                left = simd::intersect(&mut words, &self.masks.vectors[mask]);
            }
        }
        if left <= scene.few() {
            for_bits(&words, |row| rows.push(row));
            self.spare_words = words;
            return Ok(Found::Rows(rows));
        }
        self.spare_rows.push(rows);
        Ok(Found::Mask(Bits::from_words(words, scene.rows)))
    }

    /// Takes memory back for the next rider.
    pub(crate) fn recycle(&mut self, found: Found) {
        match found {
            Found::Rows(mut rows) => {
                rows.clear();
                if self.spare_rows.len() < SPARE_ROWS {
                    self.spare_rows.push(rows);
                }
            }
            Found::Mask(mask) => self.spare_words = mask.into_words(),
        }
    }
}

/// The rows of a segment behind those that every column has encoded, counted from 0, that meet all tests.
pub(crate) fn plain_rows(scene: &Scene, tests: &[TestId], rows: usize) -> Result<Bits> {
    let mut mask = Bits::ones(rows);
    for id in tests {
        let _entered = scene.tests.enter(*id);
        let test = scene.tests.get(*id);
        let ty = &scene.types[test.column].ty;
        let (column, context) = (&scene.columns[test.column], scene.tests.context(*id));
        retain_plain(&test.test, column, ty, context, scene.rows, &mut mask)?;
    }
    Ok(mask)
}
