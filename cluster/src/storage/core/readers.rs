//! Readers of answers: how much may be on its way to each, and what happens when one goes away.
//!
//! A shard sends so many batches of a read's answer and then waits for the reader to take some; meanwhile the read is
//! off the scan, and the versions that it sees are kept. So a slow reader has a bounded amount of rows on their way, and
//! slows nobody but itself.

use super::{Core, Effect, READ_WINDOW, REMEMBERED_CANCELLATIONS, Running};
use crate::message::{Incarnation, MessageId, ProcessId};
use carousel_engine::Ts;

impl Core {
    /// The client processes of reads that wait for their readers, and of writes whose rows do.
    pub(crate) fn stalled_clients(&self) -> impl Iterator<Item = ProcessId> {
        let stalled = self.stalled.iter().filter_map(|time| Some(self.running.get(time)?.answer?.submitter));
        stalled.chain(self.kept.keys().map(|id| id.submitter))
    }

    /// A reader has taken batches: the shards that they came from may send as many more.
    pub(super) fn took_batches(&mut self, id: MessageId, batches: u32) {
        if self.took_kept(id, batches) {
            return;
        }
        // A read has one part.
        let Some(time) = self.by_message.get(&id).and_then(|time| self.parts(*time).next()) else { return };
        let Some(running) = self.running.get_mut(&time) else { return };
        let mut allowed = vec![0; self.options.shards];
        let taken = running.unread.len().min(batches as usize);
        running.unread.drain(..taken).for_each(|shard| allowed[shard] += 1);
        for (shard, batches) in allowed.into_iter().enumerate() {
            if batches > 0 && running.executing.contains(&shard) {
                self.effects.push(Effect::Allow { shard, ts: time, batches });
            }
        }
        self.note_stalled(time);
    }

    /// Notes whether a read waits for its reader: none of its shards may send anything.
    pub(super) fn note_stalled(&mut self, time: Ts) {
        let is_stalled = |running: &Running| {
            let full = |shard: &usize| {
                running.unread.iter().filter(|from| *from == shard).count() >= READ_WINDOW as usize
            };
            !running.executing.is_empty() && running.executing.iter().all(full)
        };
        if self.running.get(&time).is_some_and(|running| is_stalled(running)) {
            self.stalled.insert(time);
        } else {
            self.stalled.remove(&time);
        }
    }

    /// Nobody waits for an answer any more.
    pub(super) fn cancel(&mut self, id: MessageId) {
        if !self.drop_kept(id).is_empty() && !self.by_message.contains_key(&id) {
            return;
        }
        let Some(time) = self.by_message.remove(&id) else {
            // Cancellations overtake deliveries. If one is forgotten, the client says it again when rows come.
            if self.cancelled.len() >= REMEMBERED_CANCELLATIONS {
                self.cancelled.clear();
            }
            self.cancelled.insert(id);
            return;
        };
        for time in self.parts(time).collect::<Vec<_>>() {
            self.stalled.remove(&time);
            let Some(running) = self.running.get_mut(&time) else { continue };
            running.answer = None;
            running.rows.clear();
            running.unread.clear();
            if running.is_write {
                continue;
            }
            if self.late.cancel(time) {
                self.running.remove(&time);
                continue;
            }
            let shards = running.executing.iter();
            self.effects.extend(shards.map(|shard| Effect::Cancel { shard: *shard, ts: time }));
        }
    }

    /// Cancels reads whose readers are gone; whether there were any.
    pub(super) fn cancel_reads(&mut self, is_gone: impl Fn(MessageId) -> bool) -> bool {
        let reads = self.running.values().filter(|running| !running.is_write);
        let gone: Vec<MessageId> =
            reads.filter_map(|running| running.answer).filter(|id| is_gone(*id)).collect();
        gone.iter().for_each(|id| self.cancel(*id));
        !gone.is_empty()
    }

    /// Notes the incarnation of a submitter: nobody reads the answers of an earlier one.
    pub(super) fn note_life(&mut self, id: MessageId) {
        let MessageId { submitter, incarnation, .. } = id;
        let known: &mut Incarnation = self.lives.entry(submitter).or_insert(incarnation);
        if *known < incarnation {
            *known = incarnation;
            let is_gone = |id: MessageId| id.submitter == submitter && id.incarnation < incarnation;
            self.cancel_reads(is_gone);
            self.drop_kept_of(is_gone);
        }
    }
}
