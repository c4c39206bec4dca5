//! Finding the rows of many riders side by side.
//!
//! What a rider asks for lies scattered: its tests, what they come to here, the rows of their codes, and the codes of
//! those rows. One after the other, nearly all of the time would be spent waiting for memory. So the riders go through
//! the same steps one behind the other, and each step begins to fetch what the next one looks at.

use super::{
    Found, Plan, Prober, Scene, TestId,
    probe::{NONE, SINGLE, Standing},
};
use crate::{
    ahead::{fetch, fetch_all},
    column::{EncodedColumn, RowsByCode},
    error::Result,
};

/// Riders between one step and the next: enough for memory to answer, few enough for what it answers to stay in the
/// nearest cache.
const APART: usize = 6;

/// Rows of a rider whose codes are fetched before they are asked for: of more, the processor itself looks for many at
/// the same time.
const FETCHED: usize = 32;

/// The steps of [`prepare`](Prober::prepare).
const STEPS: usize = 7;

/// A rider whose rows are being found.
struct Search<'a> {
    tests: &'a [TestId],
    first: TestId,
    /// Its place in the answer.
    place: usize,
    rows: Result<Vec<u32>>,
}

impl Prober {
    /// Begins to fetch what is known of a test.
    #[inline]
    fn fetch_test(&self, scene: &Scene, id: TestId) {
        fetch_all(self.states.as_ptr().wrapping_add(id as usize));
        scene.tests.fetch(id);
    }

    /// The column of a test that is one interval of codes, if its rows are held by code.
    #[inline]
    fn held<'a>(
        &self,
        scene: &Scene<'a>,
        id: TestId,
    ) -> Option<(&'a EncodedColumn, &'a RowsByCode, u64, u64)> {
        let state = &self.states[id as usize];
        let (low, high) =
            matches!(state.standing, Standing::Open).then(|| state.code.interval()).flatten()?;
        let column = scene.encoded(id)?;
        Some((column, column.by_code.get()?, low, high))
    }

    /// Takes tests through the steps before their rows can be counted: the first one for the test `at`, the others for
    /// those behind it.
    fn prepare(&mut self, scene: &Scene, at: usize, test: impl Fn(usize) -> Option<TestId>) {
        let test = |steps: usize| test(at.checked_sub(steps * APART)?);
        let bytes = |id: TestId| Some((scene.encoded(id)?, scene.tests.bytes(id)?.1));
        if let Some(id) = test(0) {
            self.fetch_test(scene, id);
        }
        if let Some(id) = test(1) {
            scene.tests.fetch_whole(id);
            if let (Some(hash), Some(column)) = (scene.tests.point(id), scene.encoded(id)) {
                column.fetch_filter(hash);
                column.fetch_code_of(hash);
            }
        }
        if let Some((column, hash)) = test(2).and_then(&bytes) {
            column.fetch_value_of(hash);
        }
        if let Some((column, hash)) = test(3).and_then(bytes) {
            column.fetch_bytes_of(hash);
        }
        if let Some(id) = test(4) {
            self.translate(scene, id);
            if let Some((_, by_code, low, _)) = self.held(scene, id) {
                by_code.fetch_start(low);
            }
        }
        if let Some(id) = test(5)
            && let Some((_, by_code, low, high)) = self.held(scene, id)
        {
            by_code.fetch_rows(low, high);
        }
        if let Some(id) = test(6)
            && let Some((column, by_code, low, high)) = self.held(scene, id)
        {
            by_code.fetch_codes(&column.codes, low, high);
        }
    }

    /// Plans riders one after the other, see [`plan`](Prober::plan).
    pub(crate) fn plan_all(
        &mut self,
        scene: &Scene,
        riders: &[&[TestId]],
        mut planned: impl FnMut(usize, Plan),
    ) {
        let first = |at: usize| riders.get(at).and_then(|tests| tests.first()).copied();
        for at in 0..riders.len() + STEPS * APART {
            if let Some(tests) = riders.get(at + APART) {
                fetch(tests.as_ptr());
            }
            self.prepare(scene, at, first);
            if let Some(behind) = at.checked_sub(STEPS * APART) {
                planned(behind, self.plan(scene, riders[behind]));
            }
        }
    }

    /// Orders the tests of riders, see [`order`](Prober::order).
    pub(crate) fn order_all(&mut self, scene: &Scene, riders: Vec<&mut [TestId]>) {
        let mut others = Vec::with_capacity(riders.len());
        for tests in riders {
            match self.rarest_by_far(scene, tests) {
                Some(place) => tests[..=place].rotate_right(1),
                None => others.push(tests),
            }
        }
        let all: Vec<TestId> = others.iter().flat_map(|tests| tests.iter().copied()).collect();
        let (mut at, mut prepared) = (0, 0);
        for tests in others {
            at += tests.len();
            while prepared < at + STEPS * APART {
                self.prepare(scene, prepared, |at| all.get(at).copied());
                prepared += 1;
            }
            self.order(scene, tests);
        }
    }

    /// The place of a test that so few rows meet, and that are read off, that no other one need be asked. It takes no look
    /// at the values of the column.
    fn rarest_by_far(&self, scene: &Scene, tests: &[TestId]) -> Option<usize> {
        let is_rare = |id: &TestId| {
            let held = scene.encoded(*id).filter(|column| column.by_code.get().is_some());
            let rows = held.and_then(|column| column.frequency.of_any());
            scene.tests.point(*id).is_some() && rows.is_some_and(|rows| rows <= SINGLE as f64)
        };
        tests.iter().position(is_rare)
    }

    /// Finds the rows of riders that look for them in a list; the others find them one by one.
    pub(crate) fn find_all(
        &mut self,
        scene: &Scene,
        riders: &[(&[TestId], Plan)],
    ) -> Vec<Option<Result<Found>>> {
        let mut searches: Vec<Search> = Vec::with_capacity(riders.len());
        let mut found: Vec<Option<Result<Found>>> = Vec::with_capacity(riders.len());
        for (place, (tests, plan)) in riders.iter().enumerate() {
            found.push(None);
            if let Plan::List(first) | Plan::LookUp(first) = *plan {
                tests.iter().filter(|id| **id != first).for_each(|id| self.fetch_test(scene, *id));
                let mut rows = self.spare_rows.pop().unwrap_or_default();
                self.begin_find(scene, *plan, &mut rows);
                searches.push(Search { tests, first, place, rows: Ok(rows) });
            }
        }
        let most = searches.iter().map(|search| search.tests.len()).max().unwrap_or(0);
        for round in 0..=most {
            for search in &mut searches {
                let test = |round: usize| search.tests.get(round).copied().filter(|id| *id != search.first);
                let Ok(rows) = &mut search.rows else { continue };
                if let Some(id) = round.checked_sub(1).and_then(test)
                    && let Err(error) = self.retain(scene, id, rows)
                {
                    search.rows = Err(error);
                    continue;
                }
                if let Some(id) = test(round)
                    && !rows.is_empty()
                {
                    self.fetch_cells(scene, id, rows);
                }
            }
        }
        for search in searches {
            found[search.place] = Some(search.rows.map(Found::Rows));
        }
        found
    }

    /// Begins to fetch what tells which of some rows meet a test.
    fn fetch_cells(&mut self, scene: &Scene, id: TestId, rows: &[u32]) {
        if rows.len() <= SINGLE && !self.is_translated(id) {
            scene.tests.fetch_whole(id);
        } else {
            let state = self.translate(scene, id);
            if !matches!(state.standing, Standing::Open) || state.mask != NONE {
                return;
            }
        }
        if let Some(column) = scene.encoded(id) {
            rows.iter().take(FETCHED).for_each(|row| column.fetch_code(*row as usize));
        }
    }
}
