//! What reads have found, as batches: reads that finish together and ask for the same columns share them.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use hashbrown::HashMap;

use crate::{
    error::Result,
    expr::EvalContext,
    found::FoundRows,
    operation::{Effect, Ts},
    position::KeyRange,
    preparation::Work,
    projection::Projection,
    rider::Rider,
    riders::Riders,
    shard::RIDERS_AHEAD,
    table::Table,
};

/// Rows of a shared batch: a slow reader holds on to no more than so many besides its own.
const SHARED_ROWS: usize = 1024;

/// What a read has found in one key range.
struct Share {
    ts: Ts,
    range: KeyRange,
    found: FoundRows,
}

impl Table {
    /// Sends what reads that have just ended their revolution have found and not sent yet.
    pub(crate) fn send_together(
        &self,
        arrived: &[(Ts, u32)],
        riders: &mut Riders,
        effects: &mut Vec<Effect>,
    ) {
        let mut groups: Vec<(Arc<Projection>, Vec<Share>, usize)> = Vec::new();
        let mut by_projection: HashMap<*const Projection, usize> = HashMap::new();
        for (at, (_, place)) in arrived.iter().enumerate() {
            if let Some((_, place)) = arrived.get(at + RIDERS_AHEAD) {
                riders.fetch(*place);
            }
            let Some(rider) = riders.at(*place) else { continue };
            let Some((projection, share)) = share_of(rider, self.options.batch_rows) else { continue };
            let group = *by_projection.entry(Arc::as_ptr(&projection)).or_insert_with(|| {
                let same = groups.iter().position(|(other, ..)| other.is_same(&projection));
                same.unwrap_or_else(|| {
                    groups.push((projection, Vec::new(), 0));
                    groups.len() - 1
                })
            });
            let (projection, shares, rows) = &mut groups[group];
            *rows += share.found.len();
            shares.push(share);
            if *rows >= SHARED_ROWS {
                self.send_shares(projection, shares, riders, effects);
                shares.clear();
                *rows = 0;
            }
        }
        for (projection, shares, _) in &groups {
            self.send_shares(projection, shares, riders, effects);
        }
    }

    fn send_shares(
        &self,
        projection: &Projection,
        shares: &[Share],
        riders: &mut Riders,
        effects: &mut Vec<Effect>,
    ) {
        if shares.is_empty() {
            return;
        }
        match self.shared_batch(projection, shares) {
            Ok(batch) => {
                let mut start = 0;
                for share in shares {
                    let rows = share.found.len();
                    let batch = batch.slice(start, rows);
                    start += rows;
                    effects.push(Effect::Rows { ts: share.ts, range: share.range, batch });
                }
            }
            Err(error) if error.is_batch_full() => {
                // Each gets its own, in parts, when it ends.
                for share in shares {
                    if let Some(rider) = riders.get_mut(share.ts)
                        && let Work::Rows { found, credit, .. } = &mut rider.work
                    {
                        share.found.runs().for_each(|(slot, rows)| found.push(slot, rows));
                        *credit = credit.map(|credit| credit + 1);
                    }
                }
            }
            Err(error) => {
                for share in shares {
                    if let Some(rider) = riders.get_mut(share.ts) {
                        rider.fail_everywhere(&error);
                    }
                }
            }
        }
    }

    /// The rows of all shares, one after the other. Nothing but columns is evaluated, so the context does not matter.
    fn shared_batch(&self, projection: &Projection, shares: &[Share]) -> Result<RecordBatch> {
        let rows = shares.iter().map(|share| share.found.len()).sum();
        let runs = || shares.iter().flat_map(|share| share.found.runs());
        projection.batch(rows, None, &|column| self.cells(column, runs()), &EvalContext::default())
    }
}

/// Takes from a read what it has found, if that can be sent with what others have found: columns of a single key
/// range, no more than one batch, and neither a row nor the reader is waited for.
fn share_of(rider: &mut Rider, batch_rows: usize) -> Option<(Arc<Projection>, Share)> {
    if rider.waiting > 0 || rider.has_failed() {
        return None;
    }
    let [only] = rider.ranges.as_slice() else { return None };
    let Work::Rows { projection, wanted, found, credit } = &mut rider.work else { return None };
    let waits = credit.is_some_and(|credit| credit <= 0);
    if waits
        || !wanted.are_sent_when_found()
        || !(1..=batch_rows).contains(&found.len())
        || projection.table_columns().is_none()
    {
        return None;
    }
    *credit = credit.map(|credit| credit - 1);
    let share = Share { ts: rider.ts, range: only.range, found: std::mem::take(found) };
    Some((projection.clone(), share))
}
