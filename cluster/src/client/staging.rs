//! Chunks of payloads on their way to storage processes. Pure.

use std::collections::{BTreeMap, VecDeque};

use carousel_engine::{SqlError, SqlState, operation::PayloadId};

use crate::{
    config::Config,
    message::ProcessId,
    patience::Patience,
    payload::ChunkKey,
    wire::{StageChunk, Wire},
};

/// How long a receipt is waited for before the chunk is sent again, at first and at most. A holder that may have lost it is
/// known.
const PATIENCE_MS: std::ops::RangeInclusive<u64> = 10_000..=60_000;
/// A holder that cannot be reached from here for so long, and that nobody suspects, is not waited for: longer than it takes to
/// be suspected, unless that takes longer than usual.
const AWAY_MS: u64 = 180_000;
/// The payloads of which each holder hears, whenever it is met, that they were given up.
const ABANDONED: usize = 64;

#[derive(Debug)]
struct OnItsWay<D> {
    chunk: StageChunk,
    waiting: BTreeMap<ProcessId, Patience>,
    done: D,
}

/// The chunks without all their receipts; `D` is whatever waits for them.
#[derive(Debug)]
pub(crate) struct Staging<D> {
    chunks: BTreeMap<ChunkKey, OnItsWay<D>>,
    /// Holders that cannot be reached, since when.
    away: BTreeMap<ProcessId, u64>,
    /// By holder: the last payloads that were given up. It may not have heard of that.
    abandoned: BTreeMap<ProcessId, VecDeque<PayloadId>>,
    now_ms: u64,
}

/// Whatever waited for receipts, and how that ended.
type Ended<D> = (D, Result<(), SqlError>);

impl<D> Staging<D> {
    pub(crate) fn new() -> Staging<D> {
        let (away, abandoned) = (BTreeMap::new(), BTreeMap::new());
        Staging { chunks: BTreeMap::new(), away, abandoned, now_ms: 0 }
    }

    /// A chunk is to be sent to those of its holders who are still there. Returns what to send; or what would wait, when
    /// there is nobody to wait for: the payload's holders are those of when its rows began to come.
    pub(crate) fn send(
        &mut self,
        chunk: StageChunk,
        holders: Vec<ProcessId>,
        config: &Config,
        done: D,
    ) -> Result<Vec<(ProcessId, Wire)>, D> {
        let there = holders.into_iter().filter(|holder| is_there(config, *holder));
        let waiting: BTreeMap<ProcessId, Patience> =
            there.map(|holder| (holder, Patience::new(PATIENCE_MS, self.now_ms))).collect();
        if waiting.is_empty() {
            return Err(done);
        }
        let wires = waiting.keys().map(|holder| (*holder, Wire::Stage(chunk.clone()))).collect();
        let key = (chunk.payload, chunk.range, chunk.chunk);
        self.chunks.insert(key, OnItsWay { chunk, waiting, done });
        Ok(wires)
    }

    /// A receipt; returns what has been waiting for it when it was the last or an error.
    pub(crate) fn receipt(
        &mut self,
        from: ProcessId,
        key: ChunkKey,
        outcome: Result<(), SqlError>,
    ) -> Option<Ended<D>> {
        let chunk = self.chunks.get_mut(&key)?;
        chunk.waiting.remove(&from);
        if outcome.is_err() || chunk.waiting.is_empty() {
            return self.chunks.remove(&key).map(|chunk| (chunk.done, outcome));
        }
        None
    }

    /// Another config is in force: the receipts of those who are suspected or have left the ring need not come. Returns
    /// what waited for nothing else; the INSERT will find another config, too, and be staged again by whoever has its rows.
    pub(crate) fn reconfigured(&mut self, config: &Config) -> Vec<D> {
        self.away.retain(|process, _| config.contains(*process));
        self.abandoned.retain(|process, _| config.contains(*process));
        let complete = self.chunks.extract_if(.., |_, chunk| {
            chunk.waiting.retain(|process, _| is_there(config, *process));
            chunk.waiting.is_empty()
        });
        complete.map(|(_, chunk)| chunk.done).collect()
    }

    /// The payload is given up; nobody waits for its chunks.
    pub(crate) fn abandon(&mut self, payload: PayloadId) {
        self.chunks.retain(|(id, ..), _| *id != payload);
    }

    /// A holder is told that a payload was given up.
    pub(crate) fn note_abandoned(&mut self, holder: ProcessId, payload: PayloadId) {
        let abandoned = self.abandoned.entry(holder).or_default();
        abandoned.push_back(payload);
        if abandoned.len() > ABANDONED {
            abandoned.pop_front();
        }
    }

    /// Nothing can be sent to a process.
    pub(crate) fn unreachable(&mut self, process: ProcessId) {
        self.away.entry(process).or_insert(self.now_ms);
        self.lost(process);
    }

    /// Something has come from a process.
    pub(crate) fn heard(&mut self, process: ProcessId) {
        self.away.remove(&process);
    }

    /// A process is met, or begins another life: what it may not have heard.
    pub(crate) fn met(&mut self, process: ProcessId) -> Vec<Wire> {
        self.lost(process);
        self.abandoned.get(&process).into_iter().flatten().copied().map(Wire::Abandon).collect()
    }

    /// What waits for a holder that has been away for too long fails: it has no effect anywhere yet.
    pub(crate) fn give_up(&mut self) -> Vec<Ended<D>> {
        if self.chunks.is_empty() {
            return Vec::new();
        }
        let gone = |since: u64| self.now_ms >= since + AWAY_MS;
        let gone: Vec<ProcessId> =
            self.away.iter().filter(|(_, since)| gone(**since)).map(|(process, _)| *process).collect();
        let mut ended = Vec::new();
        for process in gone {
            let stuck = self.chunks.extract_if(.., |_, chunk| chunk.waiting.contains_key(&process));
            let error = || {
                let message = format!("storage process {process} cannot be reached from this front end");
                SqlError::new(SqlState::UNAVAILABLE, message)
            };
            ended.extend(stuck.map(|(_, chunk)| (chunk.done, Err(error()))));
        }
        ended
    }

    /// Time passes; returns what to send again.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Vec<(ProcessId, Wire)> {
        self.now_ms = now_ms;
        let mut wires = Vec::new();
        for OnItsWay { chunk, waiting, .. } in self.chunks.values_mut() {
            let impatient =
                waiting.iter_mut().filter_map(|(holder, patience)| patience.ends(now_ms).then_some(holder));
            wires.extend(impatient.map(|holder| (*holder, Wire::Stage(chunk.clone()))));
        }
        wires
    }

    /// A process may have lost what it was sent, or its receipts were.
    fn lost(&mut self, process: ProcessId) {
        self.chunks.values_mut().filter_map(|chunk| chunk.waiting.get_mut(&process)).for_each(Patience::end);
    }
}

/// Whether a process may still give receipts.
fn is_there(config: &Config, process: ProcessId) -> bool {
    config.is_active(process) && !config.is_suspected(process)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use carousel_engine::{Ts, position::KeyRange};

    use super::*;
    use crate::{
        config::{Change, Configuration},
        router::testing::configuration,
    };

    const PAYLOAD: PayloadId = PayloadId { process: 1, incarnation: 1, sequence: 1 };

    fn some_chunk() -> StageChunk {
        let (rows, latest) = (Bytes::from_static(b"abc"), Ts(100));
        let checksum = crc32fast::hash(&rows);
        StageChunk { payload: PAYLOAD, range: KeyRange::FULL, chunk: 0, rows, checksum, latest }
    }

    #[test]
    fn who_cannot_be_reached_for_long_is_not_waited_for() {
        let storage = [1, 2].map(ProcessId::storage);
        let config = Config::evenly(2, 2).expect("a ring");
        let mut staging = Staging::new();
        for comes_back in [true, false] {
            assert!(staging.send(some_chunk(), storage.to_vec(), &config, "done").is_ok());
            staging.unreachable(storage[1]);
            let begun = staging.now_ms;
            staging.tick(begun + AWAY_MS - 1);
            staging.unreachable(storage[1]);
            assert!(staging.give_up().is_empty());
            if comes_back {
                staging.heard(storage[1]);
            }
            staging.tick(begun + AWAY_MS);
            let ended = staging.give_up();
            assert_eq!(ended.is_empty(), comes_back);
            assert!(ended.iter().all(|(done, ended)| {
                *done == "done" && ended.as_ref().is_err_and(|error| error.code == SqlState::UNAVAILABLE)
            }));
        }
    }

    #[test]
    fn who_may_not_have_heard_that_a_payload_was_given_up_hears_it_again() {
        let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
        let mut staging = Staging::<()>::new();
        let payload = |sequence| PayloadId { sequence, ..PAYLOAD };
        (1..=ABANDONED as u64 + 1).for_each(|sequence| staging.note_abandoned(s1, payload(sequence)));
        assert!(staging.met(s2).is_empty());
        let again = staging.met(s1);
        assert!(again.len() == ABANDONED && matches!(again[0], Wire::Abandon(id) if id == payload(2)));
        assert_eq!(staging.met(s1).len(), ABANDONED, "also this may be lost on its way");
        staging.reconfigured(&Config::evenly(1, 1).expect("a ring"));
        assert_eq!(staging.met(s1).len(), ABANDONED);
    }

    #[test]
    fn who_has_left_the_ring_is_not_waited_for() {
        let storage = [1, 2, 3].map(ProcessId::storage);
        let config = Config::evenly(3, 3).expect("a ring");
        let (payload, chunk) = (PAYLOAD, some_chunk());
        let mut staging = Staging::new();
        let next = StageChunk { chunk: 1, ..chunk.clone() };
        assert!(staging.send(chunk, storage.to_vec(), &config, "done").is_ok_and(|wires| wires.len() == 3));
        assert!(staging.receipt(storage[0], (payload, KeyRange::FULL, 0), Ok(())).is_none());
        assert!(staging.reconfigured(&config).is_empty());
        let keyspace = config.plan(Change::Contract { process: storage[2] }).expect("a possible change");
        let message = configuration(ProcessId::client(1), 1, 1, Configuration::Keyspace(keyspace));
        let config = config.apply(&message, Ts(5)).expect("possible").expect("it changes the config");
        assert!(staging.reconfigured(&config).is_empty());
        let mut sent = |now_ms| staging.tick(now_ms).into_iter().map(|(to, _)| to).collect::<Vec<_>>();
        assert_eq!(sent(PATIENCE_MS.start() - 1), []);
        let begin = *PATIENCE_MS.start();
        assert_eq!(sent(begin), [storage[1]]);
        assert_eq!(sent(3 * begin - 1), [], "it is slow, and gets nothing twice as often");
        staging.lost(storage[0]);
        assert!(staging.tick(3 * begin - 1).is_empty(), "it has given its receipt");
        staging.lost(storage[1]);
        assert_eq!(staging.tick(3 * begin - 1).len(), 1);
        assert!(staging.tick(4 * begin - 2).is_empty());
        assert_eq!(staging.tick(4 * begin - 1).len(), 1);
        let done = staging.receipt(storage[1], (payload, KeyRange::FULL, 0), Ok(()));
        assert!(matches!(done, Some(("done", Ok(())))));
        // Nor with what comes of the payload after that.
        let nobody = staging.send(next.clone(), vec![storage[2]], &config, "next");
        assert_eq!(nobody.err(), Some("next"));
        let wires = staging.send(next, storage.to_vec(), &config, "next").expect("two of them are there");
        assert_eq!(wires.into_iter().map(|(to, _)| to).collect::<Vec<_>>(), storage[..2]);
    }
}
