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

/// Rows of a range.
#[derive(Debug, Default)]
struct Rows {
    batches: VecDeque<RecordBatch>,
    /// The writer has asked for them.
    asked: bool,
    /// Some have been sent, so that another replica cannot go on with the others, nor this one say them again.
    begun: bool,
}

/// Rows of a write that has taken effect, until its writer has them.
#[derive(Debug)]
pub(super) struct Kept {
    ts: Ts,
    rows: BTreeMap<KeyRange, Rows>,
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
        let new = Kept { ts, rows: BTreeMap::new(), unread: 0 };
        let kept = self.kept.entry(id).or_insert(new);
        let mut ranges = BTreeSet::new();
        for (range, batch) in rows {
            ranges.insert(range);
            kept.rows.entry(range).or_default().batches.push_back(batch);
        }
        self.answer(id, ts, AnswerPart::Kept(ranges.into_iter().collect()));
    }

    /// A writer asks for what has been kept of some ranges. It does so again when an answer may have been lost.
    pub(super) fn fetch(&mut self, id: MessageId, ranges: Vec<KeyRange>) {
        let mut gone = Vec::new();
        for range in ranges {
            let rows = self.kept.get_mut(&id).and_then(|kept| kept.rows.get_mut(&range));
            match rows.filter(|rows| !rows.begun) {
                Some(rows) => rows.asked = true,
                None => gone.push(range),
            }
        }
        if !gone.is_empty() {
            self.drop_ranges(id, &gone);
            self.effects.push(Effect::Send(id.submitter, Wire::Gone { id, ranges: gone }));
        }
        self.send_kept(id);
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
            && let Some((&range, rows)) = kept.rows.iter_mut().find(|(_, rows)| rows.asked)
        {
            let ts = kept.ts;
            if rows.batches.is_empty() {
                self.drop_ranges(id, &[range]);
                self.answer(id, ts, AnswerPart::Returned(range));
            } else if kept.unread < READ_WINDOW
                && let Some(batch) = rows.batches.pop_front()
            {
                rows.begun = true;
                kept.unread += 1;
                self.returned_bytes -= size_of_cells(&batch);
                self.answer(id, ts, AnswerPart::Fetched { range, batch });
            } else {
                return;
            }
        }
    }

    fn drop_ranges(&mut self, id: MessageId, ranges: &[KeyRange]) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        for range in ranges {
            let rows = kept.rows.remove(range).unwrap_or_default();
            self.returned_bytes -= rows.batches.iter().map(size_of_cells).sum::<u64>();
        }
        if kept.rows.is_empty() {
            self.kept.remove(&id);
        }
    }

    /// Nobody will ask for what was kept of a write; which ranges that were.
    pub(super) fn drop_kept(&mut self, id: MessageId) -> Vec<KeyRange> {
        let ranges = self.kept.get(&id).map_or(Vec::new(), |kept| kept.rows.keys().copied().collect());
        self.drop_ranges(id, &ranges);
        ranges
    }

    /// The same for all writes whose writers are gone. Should they be there after all they hear of it.
    pub(super) fn drop_kept_of(&mut self, is_gone: impl Fn(MessageId) -> bool) {
        let gone: Vec<MessageId> = self.kept.keys().copied().filter(|id| is_gone(*id)).collect();
        for id in gone {
            let ranges = self.drop_kept(id);
            self.effects.push(Effect::Send(id.submitter, Wire::Gone { id, ranges }));
        }
    }
}
