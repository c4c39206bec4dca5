//! Staged payloads that the shards are supplied with, chunk by chunk (DESIGN, decision 12).

use std::{collections::BTreeMap, sync::Arc};

use carousel_engine::{
    Ts,
    operation::{InsertRows, OperationKind, RowBatch},
    position::{KeyRange, covers},
};

use super::{ChunkWanted, Core, Effect, local};
use crate::{
    message::{Body, StagedPayload},
    planted::{Bug, planted},
    wire::Delivery,
};

/// Chunks of a payload that are loaded while the shards work on those before them.
const CHUNKS_AHEAD: usize = 2;

/// A staged payload that the shards are supplied with, chunk by chunk.
#[derive(Debug)]
pub(super) struct Supplying {
    pub(super) ts: Ts,
    pub(super) payload: Arc<StagedPayload>,
    /// The chunks in the ranges held here: the part's index, and the number in the part.
    pub(super) chunks: Vec<(usize, usize)>,
    /// How many have been asked for, and given to the shards.
    pub(super) asked: usize,
    pub(super) supplied: usize,
    /// Those that came before their turn.
    pub(super) early: BTreeMap<usize, RowBatch>,
    /// How many each shard does not need any more.
    pub(super) taken: Vec<usize>,
}

impl Core {
    pub(super) fn loaded(&mut self, ts: Ts, chunk: usize, rows: RowBatch) {
        let time = local(ts);
        let Some(supplying) = self.supplying.get_mut(&time) else { return };
        // It may have been asked for more than once.
        if chunk >= supplying.supplied {
            let bytes = rows.size();
            if supplying.early.insert(chunk, rows).is_none() && ts > self.checkpoint_ordered {
                self.staged += bytes;
            }
        }
        while let Some(rows) = supplying.early.remove(&supplying.supplied) {
            supplying.supplied += 1;
            let (rows, last) = (Arc::new(rows), supplying.supplied == supplying.chunks.len());
            for shard in 0..self.options.shards {
                let rows = rows.clone();
                self.effects.push(Effect::Supply { shard, ts: time, rows, last });
            }
        }
    }

    /// Whether an INSERT still needs rows.
    pub(crate) fn supplies(&self, ts: Ts) -> bool {
        self.supplying.contains_key(&local(ts))
    }

    /// A shard does not need a chunk any more.
    pub(super) fn took(&mut self, shard: usize, time: Ts) {
        let Some(supplying) = self.supplying.get_mut(&time) else { return };
        supplying.taken[shard] += 1;
        if supplying.taken.iter().all(|taken| *taken == supplying.chunks.len()) {
            self.supplying.remove(&time);
        } else {
            self.ask_chunks(time);
        }
    }

    /// Asks for the next chunks of a payload: few, so that they take little memory.
    pub(super) fn ask_chunks(&mut self, time: Ts) {
        let Some(supplying) = self.supplying.get_mut(&time) else { return };
        let taken = supplying.taken.iter().copied().min().unwrap_or(0);
        while supplying.asked < supplying.chunks.len().min(taken + CHUNKS_AHEAD) {
            let (part, number) = supplying.chunks[supplying.asked];
            self.effects.push(Effect::Load(ChunkWanted {
                ts: supplying.ts,
                payload: supplying.payload.clone(),
                chunk: supplying.asked,
                part,
                number,
            }));
            supplying.asked += 1;
        }
    }
}

/// The chunks of a payload that lie in these ranges, by part and number. What was staged in parts of a range may be inserted
/// when nothing tells them apart any more.
pub(super) fn chunks_in(staged: &StagedPayload, ranges: &[KeyRange]) -> Vec<(usize, usize)> {
    let held = staged.parts.iter().enumerate().filter(|(_, part)| covers(ranges, &[part.range]));
    held.flat_map(|(index, part)| (0..part.checksums.len()).map(move |number| (index, number))).collect()
}

/// The staged payload of a delivery that is an INSERT of one.
pub(super) fn staged_insert(delivery: &Delivery) -> Option<&StagedPayload> {
    match &delivery.message.body {
        Body::Data(data) => data.staged.as_deref().filter(|_| match data.operation.open() {
            Ok(operation) => matches!(&operation.kind, OperationKind::Insert(insert)
                if matches!(insert.rows, InsertRows::Staged(_))),
            Err(_) => false,
        }),
        _ => None,
    }
}

/// Whether a staged payload lies where it is needed and the message came in time.
pub(super) fn staged_in_time(delivery: &Delivery, staged: &StagedPayload) -> bool {
    let is_placed = staged.config_version == delivery.config_version || planted(Bug::StagedForAnotherConfig);
    is_placed && delivery.ts <= staged.latest
}

#[cfg(test)]
mod tests {
    use carousel_engine::operation::PayloadId;

    use super::*;
    use crate::message::StagedPart;

    #[test]
    fn rows_that_were_staged_in_parts_are_inserted_into_the_whole() {
        let range = |first, last| KeyRange::new(first, last);
        let part =
            |range, chunks: u32| StagedPart { range, holders: Vec::new(), checksums: (0..chunks).collect() };
        let staged = StagedPayload {
            id: PayloadId { process: 1, incarnation: 1, sequence: 1 },
            config_version: 3,
            latest: Ts(9),
            parts: vec![part(range(0, 9), 1), part(range(10, 19), 2), part(range(20, 29), 1)],
        };
        // Staged while what is below 10 was being received, ordered when it had been.
        assert_eq!(chunks_in(&staged, &[range(0, 19)]), [(0, 0), (1, 0), (1, 1)]);
        assert_eq!(chunks_in(&staged, &[range(10, 19), range(20, 29)]), [(1, 0), (1, 1), (2, 0)]);
        assert_eq!(chunks_in(&staged, &[range(30, 39)]), []);
    }
}
