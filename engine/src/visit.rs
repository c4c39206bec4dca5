//! One visit of a segment by the operations that ride past it.

use std::sync::Arc;

use crate::{
    batch_size::in_short_parts,
    bits::Bits,
    column::{EncodedColumn, RowsByCode},
    error::Result,
    operation::{Effect, Ts},
    predicate_index::{Found, Plan, Scene, Test, TestId, plain_rows, retain_rows},
    preparation::Work,
    primary_key::Address,
    rider::Rider,
    riders::{Ride, Riders, bit},
    segment::Segment,
    shard::MOST_VISITED,
    table::Table,
    types::Type,
};

/// Rows on which a rider acts.
struct Chosen {
    rows: Vec<u32>,
    /// Whether none has been added up already.
    are_all: bool,
}

/// Riders ahead of the one whose constant is looked for for which memory is fetched.
const FILTERS_AHEAD: usize = 16;

/// Riders whose rows are found side by side.
const SIDE_BY_SIDE: usize = 32;

impl Table {
    /// Applies riders, which are in `Ts` order, to a segment.
    ///
    /// First the index over all their predicates is probed with the columns: which rows can qualify depends on no
    /// version. Then they act one after the other, each on the versions that it sees, those written in this very
    /// visit by riders before it included. Most of them find nothing, and nothing but their [`Ride`] is looked at.
    /// Returns whether some of them pause.
    pub(crate) fn visit(
        &mut self,
        slot: u32,
        rides: &mut [Ride],
        visitors: &[u32],
        riders: &mut Riders,
        may_pause: bool,
        effects: &mut Vec<Effect>,
    ) -> bool {
        /// Rows by which a segment has grown between two visits, so that it will before the next one, too.
        const GROWN: usize = 16;
        let is_full = self.is_full(slot);
        let segment = &mut self.segments[slot as usize];
        let plain = segment.rows - segment.encoded_rows();
        let grows = segment.rows - segment.visited.min(segment.rows) >= GROWN;
        segment.visited = segment.rows;
        // What has been written since the last visit is added to the encoded rows, where the index finds it. Where that never
        // ends, no column is encoded anew for it, for which everybody here would have to wait again and again.
        if plain > 0 && (plain * 4 <= segment.encoded_rows() || segment.is_uneven()) {
            match grows || is_full {
                true => segment.absorb_known(&self.schema.columns),
                false => segment.encode(&self.schema.columns),
            }
            segment.is_assumed = true;
        }
        segment.note_tests(visitors.len());
        if segment.is_assumed {
            self.measure(slot);
        }
        let plans = self.plan(slot, rides, visitors);
        let segment = &self.segments[slot as usize];
        let (range, rows_before, encoded) = (segment.range, segment.rows, segment.encoded_rows());
        let has_plain = encoded < rows_before;
        // The columns that updates have assigned in this visit.
        let mut assigned = 0;
        let mut pauses = false;
        // The first write that waits here: so does whoever sees it.
        let mut closed = Ts::INFINITY;
        let mut ahead = Vec::new();
        for (at, (index, plan)) in visitors.iter().zip(&plans).enumerate() {
            if at % SIDE_BY_SIDE == 0 {
                let until = visitors.len().min(at + SIDE_BY_SIDE);
                let (some, plans) = (&visitors[at..until], &plans[at..until]);
                ahead = self.find_ahead(slot, rides, some, plans, encoded, riders);
            }
            let ride = &mut rides[*index as usize];
            if closed < ride.sees {
                ride.wait_here();
                continue;
            }
            let segment = &self.segments[slot as usize];
            let meets_new =
                segment.rows > rows_before && (ride.columns & assigned != 0 || ride.tests.is_empty());
            if *plan == Plan::Nothing && !has_plain && !meets_new && !segment.queues.may_change(ride.columns)
            {
                continue;
            }
            let together = self.together(slot, ride, riders);
            if let Some(together) = together
                && let Some(rider) = riders.at(ride.place).filter(|rider| rider.acts_on(range))
                && self.take_over(slot, together, rider, effects)
            {
                pauses |= self.after(ride, rider);
                continue;
            }
            self.searches += 1;
            let found = ahead[at % SIDE_BY_SIDE].take();
            let found = found.unwrap_or_else(|| self.find_encoded(slot, ride, *plan, encoded));
            let found =
                found.and_then(|found| self.meeting(slot, ride, found, encoded, rows_before, meets_new));
            let found = match found {
                Ok(Found::Rows(rows))
                    if rows.is_empty() && !self.segments[slot as usize].queues.may_change(ride.columns) =>
                {
                    self.prober.recycle(Found::Rows(rows));
                    if let Some(together) = together {
                        self.memo.remember_none(together);
                    }
                    continue;
                }
                found => found,
            };
            let Some(rider) = riders.at(ride.place).filter(|rider| rider.acts_on(range)) else { continue };
            let mut found = match found {
                Ok(mut found) if !self.segments[slot as usize].undecided.is_empty() => {
                    let most = if may_pause { self.options.rows_in_doubt } else { usize::MAX };
                    let Some(in_doubt) = self.take_in_doubt(slot, rider, &mut found, most) else {
                        self.prober.recycle(found);
                        ride.wait_here();
                        pauses = true;
                        if rider.is_write {
                            closed = closed.min(rider.ts);
                        }
                        continue;
                    };
                    in_doubt.into_iter().for_each(|row| self.defer(rider, Address { slot, row }, None));
                    Ok(found)
                }
                found => found,
            };
            if let Ok(Found::Mask(mask)) = &mut found
                && self.keep_mask(rider, slot, mask)
            {
                pauses |= self.after(ride, rider);
                continue;
            }
            let rows = self.segments[slot as usize].rows;
            let before = together.and_then(|together| self.begin_partial(slot, together, rider));
            match found.and_then(|found| self.choose(slot, rider, found)) {
                Ok(Chosen { rows: chosen, are_all }) => {
                    if let Some(together) = together.filter(|_| are_all) {
                        self.memo.remember(together, &chosen);
                    }
                    if !chosen.is_empty() {
                        self.apply(rider, slot, &chosen, effects);
                    }
                    self.prober.recycle(Found::Rows(chosen));
                }
                Err(error) => self.fail(rider, range, error),
            }
            if let Some(together) = together {
                self.end_partial(slot, together, rider, before);
            }
            if self.segments[slot as usize].rows > rows
                && let Work::Update { targets, .. } = &rider.work
            {
                assigned |= targets.iter().fold(0, |bits, target| bits | bit(*target));
            }
            pauses |= self.after(ride, rider);
        }
        self.memo.forget();
        pauses
    }

    /// Ends a ride that need not go on. Returns whether it pauses.
    fn after(&mut self, ride: &mut Ride, rider: &mut Rider) -> bool {
        self.weigh(rider);
        if rider.is_satisfied() {
            ride.left = 0;
        }
        ride.paused = rider.is_blocked(self.options.batch_rows);
        ride.paused
    }

    /// How each visitor's rows are to be found, with the lists that this takes.
    fn plan(&mut self, slot: u32, rides: &mut [Ride], visitors: &[u32]) -> Vec<Plan> {
        let segment = &self.segments[slot as usize];
        let rows = segment.encoded_rows();
        if rows == 0 {
            return vec![Plan::Nothing; visitors.len()];
        }
        let scene = Scene::of(&self.tests, segment, &self.schema.columns, rows, self.options);
        self.prober.begin(&self.tests);
        let mut next = visitors.iter().peekable();
        let mut visits = |index: usize| next.next_if(|next| **next as usize == index).is_some();
        let new = rides.iter_mut().enumerate().filter(|(index, ride)| visits(*index) && !ride.ordered);
        let mut new: Vec<&mut Ride> = new.map(|(_, ride)| ride).collect();
        let tests: Vec<&mut [TestId]> = new.iter_mut().map(|ride| &mut *ride.tests).collect();
        self.prober.order_all(&scene, tests);
        for ride in new {
            ride.ordered = true;
            ride.point = ride.tests.first().and_then(|id| {
                let column = self.tests.column(*id) as u32;
                self.tests.point(*id).map(|hash| (column, hash))
            });
        }
        // A loop of its own, so that one rider's wait for memory is not the next one's.
        let bases: Vec<Option<&EncodedColumn>> =
            segment.columns.iter().map(|column| column.base.as_ref()).collect();
        let is_hopeless =
            |(column, hash): (u32, u64)| bases[column as usize].is_some_and(|base| !base.may_have(hash));
        let fetch = |index: &u32| {
            if let Some((column, hash)) = rides[*index as usize].point
                && let Some(base) = bases[column as usize]
            {
                base.fetch_filter(hash);
            }
        };
        let mut plans: Vec<Plan> = visitors
            .iter()
            .enumerate()
            .map(|(at, index)| {
                visitors.get(at + FILTERS_AHEAD).into_iter().for_each(fetch);
                match rides[*index as usize].point.is_some_and(is_hopeless) {
                    true => Plan::Nothing,
                    false => Plan::All,
                }
            })
            .collect();
        let (places, open): (Vec<usize>, Vec<&[TestId]>) = visitors
            .iter()
            .enumerate()
            .filter(|(place, _)| plans[*place] != Plan::Nothing)
            .map(|(place, index)| (place, &*rides[*index as usize].tests))
            .unzip();
        self.prober.plan_all(&scene, &open, |place, plan| plans[places[place]] = plan);
        self.prober.probe(&scene);
        self.hold_by_code(slot);
        plans
    }

    /// Begins to put the rows of columns in the order of their codes where looking for them has taken longer than that takes; in
    /// memory that is a fraction of what the table has. Where it is taken, columns that few ask for give way.
    fn hold_by_code(&mut self, slot: u32) {
        /// What part of the table's memory may be taken for it.
        const PART: usize = 5;
        let segments = self.segments.len();
        let segment = &mut self.segments[slot as usize];
        // Visits by those who look for nothing do not make it a long time since a column was asked.
        let any_asked = self.prober.looked_up().next().is_some() || !self.prober.passes().is_empty();
        segment.searched += u64::from(any_asked);
        let (rows, visit) = (segment.encoded_rows(), segment.searched);
        let (size, mut changed) = (self.by_code_size, false);
        for (column, riders) in self.prober.looked_up() {
            let Some(base) = &mut segment.columns[column].base else { continue };
            base.by_code.used_at(visit, riders * base.codes.row_bytes());
            // One column at a visit: many rows may have been added to all of them.
            changed = changed || base.order_later_rows(rows);
        }
        // One column in a revolution: segments that are new together are worth it at the same time, and nobody waits for all.
        self.since_ordered = self.since_ordered.saturating_add(usize::from(any_asked));
        let may_order = self.since_ordered >= MOST_VISITED.min(segments) && self.ordering.is_none();
        let mut to_order = None;
        for (column, tests, passes) in self.prober.passes() {
            let Some(base) = &mut segment.columns[*column].base else { continue };
            base.by_code.used_at(visit, tests * base.codes.row_bytes());
            let is_missed = base.by_code.miss(*passes, self.options.passes_to_order);
            if !is_missed || !may_order || to_order.is_some() || !RowsByCode::covers_most(rows) {
                continue;
            }
            if size * PART >= self.segments_size {
                let asked = base.by_code.ask_for_room(visit);
                let held = segment.columns.iter_mut().filter_map(|column| column.base.as_mut());
                let yielding = held.filter_map(|held| Some((held.by_code.yields_to(asked, visit)?, held)));
                let Some((_, least)) = yielding.min_by(|(a, _), (b, _)| a.total_cmp(b)) else { continue };
                least.by_code.give_up();
                changed = true;
            }
            to_order = Some(*column);
        }
        if let Some(column) = to_order
            && let Some(base) = &mut segment.columns[column].base
        {
            base.begin_order(rows, visit);
            self.ordering = Some((slot, column));
            self.since_ordered = 0;
        }
        if changed {
            self.measure(slot);
        }
        self.order_some();
    }

    /// Goes on to put rows in the order of their codes.
    fn order_some(&mut self) {
        let Some((slot, column)) = self.ordering else { return };
        // Others may be in their place by now, or have been added that are no part of it.
        let segment = self.segments.get_mut(slot as usize);
        let base = segment.and_then(|segment| segment.columns.get_mut(column)?.base.as_mut());
        let is_there = base.is_some();
        if !base.is_some_and(EncodedColumn::order_some) {
            self.ordering = None;
            if is_there {
                self.measure(slot);
            }
        }
    }

    /// Finds the encoded rows of some riders side by side, as far as that is possible and nobody else finds the same.
    fn find_ahead(
        &mut self,
        slot: u32,
        rides: &[Ride],
        visitors: &[u32],
        plans: &[Plan],
        encoded: usize,
        riders: &Riders,
    ) -> Vec<Option<Result<Found>>> {
        let asked: Vec<(&[TestId], Plan)> = visitors
            .iter()
            .zip(plans)
            .map(|(index, plan)| {
                let ride = &rides[*index as usize];
                let alone = !ride.class.is_some_and(|class| self.classes.is_shared(class));
                (&*ride.tests, if alone { *plan } else { Plan::Nothing })
            })
            .collect();
        let segment = &self.segments[slot as usize];
        let scene = Scene::of(&self.tests, segment, &self.schema.columns, encoded, self.options);
        let found = self.prober.find_all(&scene, &asked);
        for (found, index) in found.iter().zip(visitors) {
            if matches!(found, Some(Ok(Found::Rows(rows))) if !rows.is_empty()) {
                riders.fetch(rides[*index as usize].place);
            }
        }
        found
    }

    /// The encoded rows that meet a rider's tests.
    fn find_encoded(&mut self, slot: u32, ride: &Ride, plan: Plan, encoded: usize) -> Result<Found> {
        let segment = &self.segments[slot as usize];
        let scene = Scene::of(&self.tests, segment, &self.schema.columns, encoded, self.options);
        self.prober.find(&scene, &ride.tests, plan)
    }

    /// The rows that meet a rider's tests, in whatever version, from those that are encoded.
    fn meeting(
        &self,
        slot: u32,
        ride: &Ride,
        mut found: Found,
        encoded: usize,
        rows_before: usize,
        meets_new: bool,
    ) -> Result<Found> {
        let segment = &self.segments[slot as usize];
        let scene = Scene::of(&self.tests, segment, &self.schema.columns, encoded, self.options);
        if encoded < rows_before {
            let plain = plain_rows(&scene, &ride.tests, rows_before - encoded)?;
            found.extend(plain.iter().map(|row| row + encoded as u32), rows_before);
        }
        if segment.rows > rows_before {
            if meets_new {
                let mut qualifying = Vec::new();
                for row in rows_before..segment.rows {
                    let mut all = true;
                    for id in &ride.tests {
                        all = all && scene.row_holds(*id, row)?;
                    }
                    if all {
                        qualifying.push(row as u32);
                    }
                }
                found.extend(qualifying.into_iter(), segment.rows);
            } else {
                // What has been written in this visit differs from its predecessor only where nobody asks here.
                segment.add_successors(&mut found, rows_before);
            }
        }
        Ok(found)
    }

    /// The rows whose decisions a rider has to wait for; those in doubt are taken out of what it has found. `None` if there are
    /// more than `most`: then it had better wait for them together, at the segment.
    fn take_in_doubt(&self, slot: u32, rider: &Rider, found: &mut Found, most: usize) -> Option<Vec<u32>> {
        let segment = &self.segments[slot as usize];
        let mut roots = Vec::new();
        let mut is_in_doubt = |row: u32| {
            let root = if roots.len() > most { None } else { segment.waits_for(row, rider.sees) };
            roots.extend(root);
            root.is_some()
        };
        match found {
            Found::Rows(rows) => rows.retain(|row| !is_in_doubt(*row)),
            Found::Mask(mask) => {
                let in_doubt: Vec<u32> = mask.iter().filter(|row| is_in_doubt(*row)).collect();
                in_doubt.into_iter().for_each(|row| mask.clear(row as usize));
            }
        }
        // Behind so many the rest has not been looked at.
        if roots.len() > most {
            return None;
        }
        // What a waiting write makes of a row may qualify, even if none of its versions does.
        let rows = self.may_qualify(segment, rider).into_iter();
        roots.extend(rows.filter_map(|row| segment.waits_for(row, rider.sees)));
        // Versions of one row wait for the same one.
        roots.sort_unstable();
        roots.dedup();
        (roots.len() <= most).then_some(roots)
    }

    /// Versions of rows at which writes wait, of which a rider's tests may be met by what becomes of them: columns that nobody who
    /// waits assigns are as they are.
    fn may_qualify(&self, segment: &Segment, rider: &Rider) -> Vec<u32> {
        let waited_for = segment.queues.changing(rider.prepared.tested, rider.ts);
        let mut rows: Vec<u32> = waited_for.flat_map(|root| segment.versions_from(root)).collect();
        if rows.is_empty() {
            return rows;
        }
        let types = &self.schema.columns;
        let tests = rider.prepared.tests.iter().filter(|test| !segment.queues.may_change(bit(test.column)));
        // What takes longest is asked of the fewest rows.
        let (expressions, comparisons): (Vec<_>, Vec<_>) =
            tests.partition(|test| matches!(test.test, Test::Expression(_)));
        let _entered = rider.interest.enter();
        for test in comparisons.into_iter().chain(expressions) {
            if rows.is_empty() {
                break;
            }
            // A test that cannot be made says nothing.
            let _ = retain_rows(test, &segment.columns, types, rider.context(), &mut rows);
        }
        rows
    }

    /// Those of the rows that meet a rider's tests, and are not in doubt, on which it acts.
    fn choose(&mut self, slot: u32, rider: &mut Rider, found: Found) -> Result<Chosen> {
        let _entered = rider.interest.enter();
        let segment = &self.segments[slot as usize];
        let is_filtered = rider.prepared.filter.is_some();
        let chosen = match found {
            Found::Rows(mut rows) => {
                segment.versions.retain_visible_rows(&mut rows, rider.sees, rider.is_write);
                match !is_filtered && self.count_only(slot, rider, rows.len()) {
                    true => Chosen { rows: Vec::new(), are_all: false },
                    false => Chosen { rows, are_all: true },
                }
            }
            Found::Mask(mut mask) => {
                segment.versions.retain_visible(&mut mask, rider.sees, rider.is_write);
                let added = match is_filtered {
                    true => 0,
                    false if self.count_only(slot, rider, mask.count()) => segment.rows,
                    false => self.sum_only(slot, rider, &mask)?,
                };
                let rows = mask.iter_from(added).collect();
                self.prober.recycle(Found::Mask(mask));
                Chosen { rows, are_all: added == 0 }
            }
        };
        let segment = &self.segments[slot as usize];
        match &rider.prepared.filter {
            Some(filter) if !chosen.rows.is_empty() => {
                let types = &self.schema.columns;
                let mut passing = Vec::new();
                in_short_parts(0..chosen.rows.len(), &mut |part| {
                    let rows = &chosen.rows[part];
                    let fetch = |column: usize| segment.columns[column].gather(&types[column].ty, rows);
                    let selected = filter.select(rows.len(), &fetch, rider.context())?;
                    passing.extend(selected.into_iter().map(|index| rows[index as usize]));
                    Ok(())
                })?;
                Ok(Chosen { rows: passing, are_all: true })
            }
            _ => Ok(chosen),
        }
    }

    /// Counts rows for a rider that asks for no more of them.
    fn count_only(&self, slot: u32, rider: &mut Rider, rows: usize) -> bool {
        let place = rider.place_of_range[self.segments[slot as usize].range];
        match (&mut rider.work, place) {
            (Work::Groups { groups, .. }, Some(place)) if groups.counts_only() => {
                Arc::make_mut(groups).count(rows as u64);
                if let Ok(count) = &mut rider.ranges[place].outcome {
                    *count += rows as u64;
                }
                true
            }
            _ => false,
        }
    }

    /// Adds up columns for a rider that asks for no more of its rows, from their codes. Returns up to which row that has been
    /// done.
    fn sum_only(&self, slot: u32, rider: &mut Rider, mask: &Bits) -> Result<usize> {
        let segment = &self.segments[slot as usize];
        let Some(place) = rider.place_of_range[segment.range] else { return Ok(0) };
        let Work::Groups { groups, input } = &mut rider.work else { return Ok(0) };
        let Some(columns) = groups.sums() else { return Ok(0) };
        let encoded = segment.encoded_rows();
        let front = (encoded < segment.rows).then(|| mask.first(encoded));
        let mask = front.as_ref().unwrap_or(mask);
        if mask.count() == 0 {
            return Ok(0);
        }
        let mut sums = Vec::with_capacity(columns.len());
        for column in columns {
            let sum = match column.map(|column| input.source_of(column)) {
                None => Some((mask.count() as u64, 0, 0)),
                Some(column) => column.and_then(|column| {
                    let scale = match self.schema.columns[column].ty {
                        Type::Numeric(Some((_, scale))) => u32::from(scale),
                        _ => 0,
                    };
                    let base = segment.columns[column].base.as_ref()?;
                    base.sum(encoded, mask).map(|(values, total)| (values, total, scale))
                }),
            };
            let Some(sum) = sum else { return Ok(0) };
            sums.push(sum);
        }
        let groups = Arc::make_mut(groups);
        for (aggregate, (values, total, scale)) in sums.into_iter().enumerate() {
            groups.add_sum(aggregate, values, total, scale)?;
        }
        if let Ok(count) = &mut rider.ranges[place].outcome {
            *count += mask.count() as u64;
        }
        Ok(encoded)
    }

    /// Makes an operation wait for the decision about a row: to look at it, or to insert one of its own.
    pub(crate) fn defer(&mut self, rider: &mut Rider, root: Address, insert: Option<u32>) {
        let segment = &mut self.segments[root.slot as usize];
        if segment.defer(root.row, rider, insert) {
            rider.waiting += 1;
        }
    }
}
