//! Rows of a read that are held back until the whole answer is there, so that the read can be repeated when a process
//! that answers it is lost: nobody has seen anything of the first answer.
//!
//! What is held is bounded, for each read and for all together. A longer answer is handed out as it comes, and then
//! ends with 40001 if a process is lost.

use std::collections::BTreeMap;

use arrow::record_batch::RecordBatch;

use super::TAKEN_TOGETHER;
use crate::message::ProcessId;

/// Bytes of one read's rows that are held back.
const OF_A_READ: u64 = 1 << 20;
/// Bytes of all reads' rows that are held back.
const OF_ALL: u64 = 256 << 20;

/// The rows of one read.
#[derive(Debug, Default)]
pub(super) struct Held {
    batches: Vec<(ProcessId, RecordBatch)>,
    bytes: u64,
    /// Batches of each process that it has not been told of as taken.
    untold: BTreeMap<ProcessId, u32>,
}

/// The rows of all reads.
#[derive(Debug, Default)]
pub(super) struct Holding {
    bytes: u64,
}

impl Holding {
    /// Holds a batch. Gives the number of batches that its process is to be told of as taken, so that it sends more, if
    /// it is time to; and whether there is still room.
    pub(super) fn hold(
        &mut self,
        held: &mut Held,
        from: ProcessId,
        batch: RecordBatch,
    ) -> (Option<u32>, bool) {
        let bytes = batch.get_array_memory_size() as u64;
        held.bytes += bytes;
        self.bytes += bytes;
        held.batches.push((from, batch));
        let untold = held.untold.entry(from).or_default();
        *untold += 1;
        let tell = (*untold == TAKEN_TOGETHER).then(|| std::mem::take(untold));
        (tell, held.bytes <= OF_A_READ && self.bytes <= OF_ALL)
    }

    /// What was held, in order, each batch with the process that is to hear when it has been taken, if it is to hear of
    /// it at all.
    pub(super) fn release(&mut self, held: &mut Held) -> Vec<(Option<ProcessId>, RecordBatch)> {
        let Held { batches, bytes, mut untold } = std::mem::take(held);
        self.bytes -= bytes;
        let mut released: Vec<_> = batches
            .into_iter()
            .rev()
            .map(|(from, batch)| {
                // The last ones of each process are those that it was not told of.
                let teller = untold.get_mut(&from).filter(|untold| **untold > 0);
                (teller.map(|untold| (*untold -= 1, from).1), batch)
            })
            .collect();
        released.reverse();
        released
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    fn batch(rows: usize) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1; rows]));
        RecordBatch::try_from_iter([("n", column)]).expect("a batch")
    }

    #[test]
    fn each_batch_is_told_of_once() {
        let (s1, s2) = (ProcessId::storage(1), ProcessId::storage(2));
        let (mut holding, mut held) = (Holding::default(), Held::default());
        let mut told = 0;
        for _ in 0..6 {
            told += holding.hold(&mut held, s1, batch(1)).0.unwrap_or(0);
        }
        assert_eq!(holding.hold(&mut held, s2, batch(1)), (None, true));
        assert_eq!(told, TAKEN_TOGETHER);
        let tellers: Vec<_> = holding.release(&mut held).into_iter().map(|(teller, _)| teller).collect();
        assert_eq!(tellers, [None, None, None, None, Some(s1), Some(s1), Some(s2)]);
        assert_eq!(holding.bytes, 0);
    }

    #[test]
    fn what_is_held_is_bounded_for_each_read_and_for_all() {
        let (mut holding, s1) = (Holding::default(), ProcessId::storage(1));
        let large = batch(OF_A_READ as usize / 8 - 100);
        let mut reads: Vec<Held> = Vec::new();
        loop {
            let mut held = Held::default();
            let (_, has_room) = holding.hold(&mut held, s1, large.clone());
            reads.push(held);
            if !has_room {
                break;
            }
        }
        assert!(reads.len() as u64 >= OF_ALL / OF_A_READ, "one alone has room");
        reads.iter_mut().for_each(|held| drop(holding.release(held)));
        let mut held = Held::default();
        assert!(holding.hold(&mut held, s1, large.clone()).1);
        assert!(!holding.hold(&mut held, s1, large).1, "two are too much for one read");
    }
}
