//! The rows of RETURNING. Few travel with the outcome of their write; many are kept here until the writer, who knows by then
//! which of the replicas' answers counts, asks for them, and then travel as the writer takes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arrow::record_batch::RecordBatch;
use carousel_engine::{Ts, array::size_of_cells, position::KeyRange};

use super::{Core, Effect, READ_WINDOW};
use crate::{
    message::MessageId,
    wire::{AnswerPart, Wire},
};

/// More bytes of rows than these are kept until they are asked for.
pub(super) const AT_ONCE: u64 = 1 << 20;

/// Rows of a write that has taken effect, until its writer has them.
#[derive(Debug)]
pub(super) struct Kept {
    ts: Ts,
    rows: BTreeMap<KeyRange, VecDeque<RecordBatch>>,
    /// The ranges that the writer has asked for.
    asked: BTreeSet<KeyRange>,
    /// Batches that have been sent and not been taken.
    unread: u32,
}

impl Core {
    /// With another limit, in bytes, for rows that are not kept.
    pub(crate) fn with_returned_at_once(self, bytes: u64) -> Core {
        Core { returned_at_once: bytes, ..self }
    }

    /// A write has taken effect; what it returns here takes `bytes`. Goes before its outcome.
    pub(super) fn return_rows(
        &mut self,
        id: MessageId,
        ts: Ts,
        rows: Vec<(KeyRange, RecordBatch)>,
        bytes: u64,
    ) {
        if bytes <= self.returned_at_once {
            for (range, batch) in rows {
                self.answer(id, ts, AnswerPart::Rows { range, batch });
            }
            return;
        }
        self.returned_bytes += bytes;
        let new = Kept { ts, rows: BTreeMap::new(), asked: BTreeSet::new(), unread: 0 };
        let kept = self.kept.entry(id).or_insert(new);
        let mut ranges = BTreeSet::new();
        for (range, batch) in rows {
            ranges.insert(range);
            kept.rows.entry(range).or_default().push_back(batch);
        }
        self.answer(id, ts, AnswerPart::Kept(ranges.into_iter().collect()));
    }

    /// A writer asks for what has been kept of some ranges.
    pub(super) fn fetch(&mut self, id: MessageId, ranges: &[KeyRange]) {
        let has = |kept: &Kept| ranges.iter().all(|range| kept.rows.contains_key(range));
        match self.kept.get_mut(&id).filter(|kept| has(kept)) {
            Some(kept) => {
                kept.asked.extend(ranges);
                self.send_kept(id);
            }
            // They were given up when the writer could not be reached.
            None => self.effects.push(Effect::Send(id.submitter, Wire::NoAnswers(vec![id]))),
        }
    }

    /// A writer has taken some of what it has asked for; whether there was such a one.
    pub(super) fn took_kept(&mut self, id: MessageId, batches: u32) -> bool {
        let Some(kept) = self.kept.get_mut(&id) else { return false };
        kept.unread = kept.unread.saturating_sub(batches);
        self.send_kept(id);
        true
    }

    fn send_kept(&mut self, id: MessageId) {
        while let Some(kept) = self.kept.get_mut(&id)
            && let Some(range) = kept.asked.first().copied()
            && let Some(batches) = kept.rows.get_mut(&range)
        {
            let ts = kept.ts;
            if let Some(batch) = batches.front() {
                if kept.unread >= READ_WINDOW {
                    return;
                }
                kept.unread += 1;
                self.returned_bytes -= size_of_cells(batch);
                if let Some(batch) = batches.pop_front() {
                    self.answer(id, ts, AnswerPart::Rows { range, batch });
                }
                continue;
            }
            kept.asked.remove(&range);
            kept.rows.remove(&range);
            if kept.rows.is_empty() {
                self.kept.remove(&id);
            }
            self.answer(id, ts, AnswerPart::Returned(range));
        }
    }

    /// Nobody will ask for what was kept of a write; whether there was anything.
    pub(super) fn drop_kept(&mut self, id: MessageId) -> bool {
        let Some(kept) = self.kept.remove(&id) else { return false };
        self.returned_bytes -= kept.rows.values().flatten().map(size_of_cells).sum::<u64>();
        true
    }

    /// The same for all writes whose writers are gone.
    pub(super) fn drop_kept_of(&mut self, is_gone: impl Fn(MessageId) -> bool) -> bool {
        let gone: Vec<MessageId> = self.kept.keys().copied().filter(|id| is_gone(*id)).collect();
        for id in &gone {
            self.drop_kept(*id);
        }
        !gone.is_empty()
    }
}
