//! Chunks that were staged and come back to be staged again, as the ring has changed since. Pure.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{config::Config, message::ProcessId, patience::Patience, payload::ChunkKey, wire::Wire};

/// How long a chunk is waited for before another holder is asked for it, at first and at most.
const PATIENCE_MS: std::ops::RangeInclusive<u64> = 5_000..=60_000;

/// Whoever waits for a chunk. It gets none when there is nobody left who has it.
pub(crate) type Reader = oneshot::Sender<Option<Bytes>>;

#[derive(Debug)]
struct Asked {
    /// Who may have it; the first one has been asked.
    candidates: VecDeque<ProcessId>,
    patience: Patience,
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
        holders: Vec<ProcessId>,
        config: &Config,
        reader: Reader,
    ) -> Option<(ProcessId, Wire)> {
        let candidates = holders.into_iter().filter(|holder| config.contains(*holder)).collect();
        let patience = Patience::new(PATIENCE_MS, self.now_ms);
        self.asked.insert(key, Asked { candidates, patience, reader });
        self.go_on(key)
    }

    /// An answer has come; returns what to send.
    pub(crate) fn answered(
        &mut self,
        from: ProcessId,
        key: ChunkKey,
        rows: Option<Bytes>,
    ) -> Option<(ProcessId, Wire)> {
        match rows {
            Some(rows) => {
                // Whoever asked may have given up.
                self.asked.remove(&key).map(|asked| asked.reader.send(Some(rows)));
                None
            }
            None => self.give_up(from, key),
        }
    }

    /// Nothing can be sent to a process, or it begins another life: what it was asked will not be answered. Returns what to send.
    pub(crate) fn lost(&mut self, process: ProcessId) -> Vec<(ProcessId, Wire)> {
        let of_process = self.asked.iter().filter(|(_, asked)| asked.candidates.front() == Some(&process));
        let keys: Vec<ChunkKey> = of_process.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.give_up(process, key)).collect()
    }

    /// Time passes; returns what to send.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Vec<(ProcessId, Wire)> {
        self.now_ms = now_ms;
        self.asked.retain(|_, asked| !asked.reader.is_closed());
        let impatient = self.asked.iter_mut().filter_map(|(key, asked)| {
            let ends = asked.patience.ends(now_ms);
            if ends {
                asked.candidates.rotate_left(1);
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

    fn asks(asked: Option<(ProcessId, Wire)>) -> Option<u32> {
        let (to, wire) = asked?;
        assert!(matches!(wire, Wire::FetchChunk { payload, range, chunk } if (payload, range, chunk) == KEY));
        Some(to.number)
    }

    #[test]
    fn one_holder_after_another_is_asked() {
        let [s1, s2, s3] = [1, 2, 3].map(ProcessId::storage);
        let config = &Config::evenly(3, 2).expect("a ring");
        let mut back = ReadBack::default();
        let gone = ProcessId::storage(9);
        let (reader, mut read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, vec![gone, s1, s2, s3], config, reader)), Some(1));
        assert_eq!(asks(back.answered(s2, KEY, None)), None, "it is not its turn");
        assert_eq!(asks(back.answered(s1, KEY, None)), Some(3));
        // It is slow, and the only one left.
        assert_eq!(
            back.tick(6_000).into_iter().map(|asked| asks(Some(asked))).collect::<Vec<_>>(),
            [Some(3)]
        );
        assert!(back.tick(6_001).is_empty() && back.lost(s1).is_empty());
        assert!(read.try_recv().is_err());
        assert_eq!(asks(back.answered(s3, KEY, Some(Bytes::from_static(b"rows")))), None);
        assert_eq!(read.try_recv(), Ok(Some(Bytes::from_static(b"rows"))));
        assert_eq!(asks(back.answered(s3, KEY, Some(Bytes::new()))), None, "it comes twice");
        // Nobody has it any more.
        let (reader, mut read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, vec![s1, s2], config, reader)), Some(1));
        assert_eq!(back.lost(s1).into_iter().map(|asked| asks(Some(asked))).collect::<Vec<_>>(), [Some(2)]);
        assert!(back.lost(s2).is_empty());
        assert_eq!(read.try_recv(), Ok(None));
        // Whoever has given up is forgotten.
        let (reader, read) = oneshot::channel();
        assert_eq!(asks(back.ask(KEY, vec![s1], config, reader)), Some(1));
        drop(read);
        assert!(back.tick(100_000).is_empty() && back.asked.is_empty());
    }
}
