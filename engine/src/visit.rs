//! One visit of a segment by the operations that ride past it.

use crate::{
    bits::Bits,
    error::Result,
    operation::Effect,
    predicate_index::{Probe, candidates, row_holds},
    primary_key::Address,
    rider::{Rider, Work},
    table::Table,
};

impl Table {
    /// Applies the riders, which are in `Ts` order, to a segment.
    ///
    /// First the index over all their predicates is probed with the columns: which rows can qualify depends on no
    /// version. Then they act one after the other, each on the versions that it sees, those written in this very
    /// visit by riders before it included.
    pub(crate) fn visit(&mut self, slot: u32, riders: &mut [Box<Rider>], effects: &mut Vec<Effect>) {
        let segment = &self.segments[slot as usize];
        let rows_before = segment.rows;
        let probes: Vec<Probe> = riders
            .iter()
            .map(|rider| Probe { tests: &rider.split.tests, context: &rider.operation.context })
            .collect();
        let found = candidates(&probes, &segment.columns, &self.schema.columns, rows_before);
        for (rider, found) in riders.iter_mut().zip(found) {
            let range = self.segments[slot as usize].range;
            match found.and_then(|found| self.visit_with(slot, rider, found, rows_before)) {
                Ok(rows) => self.apply(rider, slot, &rows, effects),
                Err(error) => self.fail(rider, range, error),
            }
        }
    }

    /// The rows on which a rider acts, given those that can qualify among the first `rows_before`. Makes it wait for
    /// rows in doubt.
    fn visit_with(
        &mut self,
        slot: u32,
        rider: &mut Rider,
        mut found: Bits,
        rows_before: usize,
    ) -> Result<Vec<u32>> {
        let segment = &self.segments[slot as usize];
        if segment.rows > rows_before {
            found.resize(segment.rows);
            for row in rows_before..segment.rows {
                let (types, context) = (&self.schema.columns, rider.context());
                if row_holds(&rider.split.tests, &segment.columns, types, context, row)? {
                    found.set(row);
                }
            }
        }
        if !segment.undecided.is_empty() {
            self.wait_for_rows_in_doubt(slot, rider, &mut found);
        }
        let segment = &self.segments[slot as usize];
        segment.versions.retain_visible(&mut found, rider.sees, rider.is_write);
        if rider.residual.is_none() && self.count_only(slot, rider, found.count()) {
            return Ok(Vec::new());
        }
        let rows: Vec<u32> = found.iter().collect();
        match &rider.residual {
            Some(filter) if !rows.is_empty() => {
                let types = &self.schema.columns;
                let fetch = |column: usize| segment.columns[column].gather(&types[column].ty, &rows);
                let selected = filter.select(rows.len(), &fetch, rider.context())?;
                Ok(selected.into_iter().map(|index| rows[index as usize]).collect())
            }
            _ => Ok(rows),
        }
    }

    /// Counts rows for a rider that asks for no more of them.
    fn count_only(&self, slot: u32, rider: &mut Rider, rows: usize) -> bool {
        let place = rider.place_of_range[self.segments[slot as usize].range];
        match (&mut rider.work, place) {
            (Work::Groups { groups, .. }, Some(place)) if groups.counts_only() => {
                groups.count(rows as u64);
                if let Ok(count) = &mut rider.ranges[place].outcome {
                    *count += rows as u64;
                }
                true
            }
            _ => false,
        }
    }

    fn wait_for_rows_in_doubt(&mut self, slot: u32, rider: &mut Rider, found: &mut Bits) {
        let segment = &self.segments[slot as usize];
        let mut roots = Vec::new();
        let mut in_doubt = Vec::new();
        for row in found.iter() {
            if let Some(root) = segment.waits_for(row, rider.sees) {
                in_doubt.push(row);
                roots.push(root);
            }
        }
        // What a waiting write makes of a row may qualify, even if none of its versions does.
        for (root, queue) in &segment.queues {
            if queue.iter().any(|(ts, deferred)| deferred.writes && *ts < rider.ts)
                && let Some(root) = segment.waits_for(*root, rider.sees)
            {
                roots.push(root);
            }
        }
        in_doubt.into_iter().for_each(|row| found.clear(row as usize));
        roots.sort_unstable();
        roots.dedup();
        for row in roots {
            self.defer(rider, Address { slot, row }, None);
        }
    }

    /// Makes an operation wait for the decision about a row: to look at it, or to insert one of its own.
    pub(crate) fn defer(&mut self, rider: &mut Rider, root: Address, insert: Option<u32>) {
        let segment = &mut self.segments[root.slot as usize];
        if segment.defer(root.row, rider.ts, rider.is_write, insert) {
            rider.waiting += 1;
        }
    }
}
