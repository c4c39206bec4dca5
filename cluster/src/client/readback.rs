//! Chunks that were staged and come back to be staged again, as the ring has changed since. Pure.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{config::Config, message::ProcessId, patience::Patience, payload::ChunkKey, wire::Wire};

/// How long a chunk is waited for before another holder is asked for it, at first and at most.
const PATIENCE_MS: std::ops::RangeInclusive<u64> = 5_000..=60_000;
/// How long it is waited for at all: as long as for the receipt of one.
const GIVEN_UP_MS: u64 = 180_000;

/// Whoever waits for a chunk. It gets none when there is nobody left who has it.
pub(crate) type Reader = oneshot::Sender<Option<Bytes>>;

#[derive(Debug)]
struct Asked {
    /// Who may have it; the first one has been asked.
    candidates: VecDeque<ProcessId>,
    /// Of its rows as they were staged.
    checksum: u32,
    patience: Patience,
    until_ms: u64,
    reader: Reader,
}

/// The chunks that have been asked for.
#[derive(Debug, Default)]
pub(crate) struct ReadBack {
    asked: BTreeMap<ChunkKey, Asked>,
    now_ms: u64,
}

impl ReadBack {
    /// Asks those for a chunk who hold it and are still in the ring. Returns what to send.
    pub(crate) fn ask(
        &mut self,
        key: ChunkKey,
        checksum: u32,
        holders: Vec<ProcessId>,
        config: &Config,
        reader: Reader,
    ) -> Option<(ProcessId, Wire)> {
        let candidates = holders.into_iter().filter(|holder| config.contains(*holder)).collect();
        let patience = Patience::new(PATIENCE_MS, self.now_ms);
        let until_ms = self.now_ms + GIVEN_UP_MS;
        self.asked.insert(key, Asked { candidates, checksum, patience, until_ms, reader });
        self.go_on(key)
    }

    /// An answer has come; returns what to send. Who has damaged rows has none.
    pub(crate) fn answered(
        &mut self,
        from: ProcessId,
        key: ChunkKey,
        rows: Option<Bytes>,
    ) -> Option<(ProcessId, Wire)> {
        let is_sound =
            |rows: &Bytes| self.asked.get(&key).is_none_or(|asked| crc32fast::hash(rows) == asked.checksum);
        match rows.filter(is_sound) {
            Some(rows) => {
                // Whoever asked may have given up.
                self.asked.remove(&key).map(|asked| asked.reader.send(Some(rows)));
                None
            }
            None => self.give_up(from, key),
        }
    }

    /// Nothing can be sent to a process, or it begins another life: what it was asked will not be answered, but it may be when it
    /// is asked again.
    pub(crate) fn lost(&mut self, process: ProcessId) {
        let of_process = self.asked.values_mut().filter(|asked| asked.candidates.front() == Some(&process));
        of_process.for_each(|asked| asked.patience.end());
    }

    /// Time passes; returns what to send.
    pub(crate) fn tick(&mut self, now_ms: u64, config: &Config) -> Vec<(ProcessId, Wire)> {
        self.now_ms = now_ms;
        self.asked.retain(|_, asked| !asked.reader.is_closed());
        let impatient = self.asked.iter_mut().filter_map(|(key, asked)| {
            let ends = asked.patience.ends(now_ms);
            if ends {
                asked.candidates.rotate_left(1);
                let is_over = now_ms >= asked.until_ms;
                asked.candidates.retain(|candidate| !is_over && config.contains(*candidate));
            }
            ends.then_some(*key)
        });
        let keys: Vec<ChunkKey> = impatient.collect();
        keys.into_iter().filter_map(|key| self.go_on(key)).collect()
    }

    /// A process does not have it.
    fn give_up(&mut self, process: ProcessId, key: ChunkKey) -> Option<(ProcessId, Wire)> {
        let asked = self.asked.get_mut(&key)?;
        let was_first = asked.candidates.front() == Some(&process);
        asked.candidates.retain(|candidate| *candidate != process);
        if was_first || asked.candidates.is_empty() { self.go_on(key) } else { None }
    }

    fn go_on(&mut self, key: ChunkKey) -> Option<(ProcessId, Wire)> {
        let asked = self.asked.get_mut(&key)?;
        match asked.candidates.front() {
            Some(holder) => {
                asked.patience.renew(self.now_ms);
                let (payload, range, chunk) = key;
                Some((*holder, Wire::FetchChunk { payload, range, chunk }))
            }
            None => {
                self.asked.remove(&key).map(|asked| asked.reader.send(None));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carousel_engine::{operation::PayloadId, position::KeyRange};

    use super::*;

    const KEY: ChunkKey = (PayloadId { process: 1, incarnation: 1, sequence: 1 }, KeyRange::FULL, 0);

    const ROWS: &[u8] = b"rows";

    fn asks(asked: Option<(ProcessId, Wire)>) -> Option<u32> {
        let (to, wire) = asked?;
        assert!(matches!(wire, Wire::FetchChunk { payload, range, chunk } if (payload, range, chunk) == KEY));
        Some(to.number)
    }

    #[test]
    fn one_holder_after_another_is_asked() {
        let [s1, s2, s3] = [1, 2, 3].map(ProcessId::storage);
        let config = &Config::evenly(3, 2).expect("a ring");
        let checksum = crc32fast::hash(ROWS);
        let mut back = ReadBack::default();
        let gone = ProcessId::storage(9);
        let (reader, mut read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, checksum, vec![gone, s1, s2, s3], config, reader)), Some(1));
        assert_eq!(asks(back.answered(s2, KEY, None)), None, "it is not its turn");
        assert_eq!(asks(back.answered(s1, KEY, None)), Some(3));
        let tick = |back: &mut ReadBack, now_ms, config: &Config| {
            back.tick(now_ms, config).into_iter().map(|asked| asks(Some(asked))).collect::<Vec<_>>()
        };
        // It is slow, and the only one left; when it has been away, it is asked at once.
        assert_eq!(tick(&mut back, 6_000, config), [Some(3)]);
        back.lost(s1);
        assert_eq!(tick(&mut back, 6_001, config), []);
        back.lost(s3);
        assert_eq!(tick(&mut back, 6_002, config), [Some(3)]);
        assert!(read.try_recv().is_err());
        assert_eq!(asks(back.answered(s3, KEY, Some(Bytes::from_static(ROWS)))), None);
        assert_eq!(read.try_recv(), Ok(Some(Bytes::from_static(ROWS))));
        assert_eq!(asks(back.answered(s3, KEY, Some(Bytes::new()))), None, "it comes twice");
        // Nobody has it any more.
        let (reader, mut read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, checksum, vec![s1, s2], config, reader)), Some(1));
        let damaged = Some(Bytes::from_static(b"row"));
        assert_eq!(asks(back.answered(s1, KEY, damaged)), Some(2), "it may be damaged at one of them");
        assert_eq!(asks(back.answered(s2, KEY, None)), None);
        assert_eq!(read.try_recv(), Ok(None));
        // Whoever leaves is asked no more, nor does anybody wait for ever.
        let (reader, mut read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, checksum, vec![s3, s1], config, reader)), Some(3));
        let without = &Config::evenly(2, 2).expect("a ring");
        assert_eq!(tick(&mut back, 20_000, without), [Some(1)]);
        assert_eq!(tick(&mut back, 20_000 + GIVEN_UP_MS, config), []);
        assert_eq!(read.try_recv(), Ok(None));
        // Whoever has given up is forgotten.
        let (reader, read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, checksum, vec![s1], config, reader)), Some(1));
        drop(read);
        assert_eq!(tick(&mut back, 900_000, config), []);
        assert!(back.asked.is_empty());
    }
}
