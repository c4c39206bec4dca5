//! Chunks of payloads on their way to storage processes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use carousel_engine::{SqlError, operation::PayloadId, position::KeyRange};

use crate::{
    message::ProcessId,
    wire::{StageChunk, Wire},
};

/// A chunk without a receipt is sent again after this long: its holder may have been restarted.
const RESEND_AFTER_MS: u64 = 2_000;

type ChunkKey = (PayloadId, KeyRange, u32);

#[derive(Debug)]
struct OnItsWay<D> {
    chunk: StageChunk,
    waiting: BTreeSet<ProcessId>,
    sent_ms: u64,
    done: D,
}

/// The chunks without all their receipts; `D` is whatever waits for them.
#[derive(Debug)]
pub(super) struct Staging<D> {
    chunks: BTreeMap<ChunkKey, OnItsWay<D>>,
    now_ms: u64,
}

impl<D> Staging<D> {
    pub(super) fn new() -> Staging<D> {
        Staging { chunks: BTreeMap::new(), now_ms: 0 }
    }

    /// A chunk is to be sent; returns what to send.
    pub(super) fn send(
        &mut self,
        chunk: StageChunk,
        holders: Vec<ProcessId>,
        done: D,
    ) -> Vec<(ProcessId, Wire)> {
        let wires = holders.iter().map(|holder| (*holder, Wire::Stage(chunk.clone()))).collect();
        let key = (chunk.payload, chunk.range, chunk.chunk);
        let waiting = holders.into_iter().collect();
        self.chunks.insert(key, OnItsWay { chunk, waiting, sent_ms: self.now_ms, done });
        wires
    }

    /// A receipt; returns what has been waiting for it when it was the last or an error.
    pub(super) fn receipt(
        &mut self,
        from: ProcessId,
        key: ChunkKey,
        outcome: Result<(), SqlError>,
    ) -> Option<(D, Result<(), SqlError>)> {
        let chunk = self.chunks.get_mut(&key)?;
        chunk.waiting.remove(&from);
        if outcome.is_err() || chunk.waiting.is_empty() {
            return self.chunks.remove(&key).map(|chunk| (chunk.done, outcome));
        }
        None
    }

    /// Processes are suspected: their receipts will not come. Returns what waited for nothing else; the INSERT will find
    /// another config and be staged again.
    pub(super) fn suspect(&mut self, is_suspected: impl Fn(ProcessId) -> bool) -> Vec<D> {
        let complete = self.chunks.extract_if(.., |_, chunk| {
            chunk.waiting.retain(|process| !is_suspected(*process));
            chunk.waiting.is_empty()
        });
        complete.map(|(_, chunk)| chunk.done).collect()
    }

    /// The payload is given up; nobody waits for its chunks.
    pub(super) fn abandon(&mut self, payload: PayloadId) {
        self.chunks.retain(|(id, ..), _| *id != payload);
    }

    /// Time passes; returns what to send again.
    pub(super) fn tick(&mut self, now_ms: u64) -> Vec<(ProcessId, Wire)> {
        self.now_ms = now_ms;
        let mut wires = Vec::new();
        for chunk in self.chunks.values_mut().filter(|chunk| chunk.sent_ms + RESEND_AFTER_MS <= now_ms) {
            chunk.sent_ms = now_ms;
            wires.extend(chunk.waiting.iter().map(|holder| (*holder, Wire::Stage(chunk.chunk.clone()))));
        }
        wires
    }
}
