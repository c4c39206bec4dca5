//! Cutting segments before a change of the ring that clients are about to order ([`carousel_engine::Shard::precut`]).
//! Nothing depends on it but how long everything waits for the change itself: whoever asks is told, and waits no longer than
//! it likes.

use std::collections::BTreeSet;

use carousel_engine::position::Position;

use super::{Core, Effect, ProcessId, Wire};
use crate::storage::scan::ShardCommand;

/// Who has asked, and which shards have not done it.
#[derive(Debug, Default)]
pub(super) struct Precut {
    asked: BTreeSet<(ProcessId, u64)>,
    cutting: BTreeSet<usize>,
}

impl Core {
    /// A client asks that segments be cut at these positions.
    pub(super) fn precut(&mut self, client: ProcessId, request: u64, at: &[Position]) {
        // A shard that still cuts for another goes on with both, and says once that it has.
        self.tell_shards(|| ShardCommand::Precut(at.to_vec()));
        self.precut.asked.insert((client, request));
        self.precut.cutting = (0..self.options.shards).collect();
    }

    /// A shard has nothing left to cut.
    pub(super) fn has_precut(&mut self, shard: usize) {
        self.precut.cutting.remove(&shard);
        if self.precut.cutting.is_empty() {
            let asked = std::mem::take(&mut self.precut.asked).into_iter();
            let told = asked.map(|(client, request)| Effect::Send(client, Wire::HasPrecut { request }));
            self.effects.extend(told);
        }
    }
}
