//! What a storage process submits: that it joins, what it has received, and empty messages. A send window of its own,
//! as small as can be (Crescando/RB paper, section 5.4, algorithm 1).

use std::{collections::VecDeque, sync::Arc};

use crate::{
    config::Configuration,
    message::{Body, Incarnation, Message, MessageId, ProcessId},
};

/// When the oldest message has not been ordered for this long, all are sent again.
const RESEND_AFTER_MS: u64 = 1_000;

/// Messages that are not known to be ordered.
#[derive(Debug)]
pub(crate) struct Submitter {
    id: ProcessId,
    incarnation: Incarnation,
    sequence: u64,
    window: VecDeque<Arc<Message>>,
    /// The last sequence number that has been sent, and when.
    sent: u64,
    sent_ms: u64,
    /// Something has been sent to who does not lead.
    in_vain: bool,
}

impl Submitter {
    pub(crate) fn new(id: ProcessId, incarnation: Incarnation) -> Submitter {
        Submitter {
            id,
            incarnation,
            sequence: 0,
            window: VecDeque::new(),
            sent: 0,
            sent_ms: 0,
            in_vain: false,
        }
    }

    /// Takes a message, unless the same is on its way.
    pub(crate) fn submit(&mut self, configuration: Configuration) {
        let same = |message: &Arc<Message>| matches!(&message.body, Body::Configuration(other) if *other == configuration);
        if !self.window.iter().any(same) {
            self.push(Body::Configuration(configuration));
        }
    }

    /// Has an empty message ordered, if no other is on its way.
    pub(crate) fn move_on(&mut self) {
        if !self.window.iter().any(|message| matches!(message.body, Body::Pin { .. })) {
            self.push(Body::Pin { lease_ms: 0 });
        }
    }

    fn push(&mut self, body: Body) {
        self.sequence += 1;
        let id = MessageId { submitter: self.id, incarnation: self.incarnation, sequence: self.sequence };
        self.window.push_back(Arc::new(Message {
            id,
            tables: Default::default(),
            ranges: Default::default(),
            body,
        }));
    }

    /// Messages up to a sequence number have been ordered; returns them.
    pub(crate) fn ordered(&mut self, sequence: u64) -> Vec<Arc<Message>> {
        let count = self.window.iter().take_while(|message| message.id.sequence <= sequence).count();
        self.window.drain(..count).collect()
    }

    /// A router asks for everything from a sequence number on: unless it does not know what has been ordered, as it leads no
    /// longer, it is sent again. It would ask again and again.
    #[must_use]
    pub(crate) fn resend(&mut self, expected: u64) -> bool {
        let is_kept = self.window.front().is_none_or(|front| front.id.sequence <= expected);
        if is_kept {
            self.sent = self.sent.min(expected.saturating_sub(1));
        }
        is_kept
    }

    /// Everything has to be sent again.
    pub(crate) fn resend_all(&mut self) {
        self.sent = 0;
    }

    /// Everything has to be sent again when time has passed: a router that does not lead says so at once.
    pub(crate) fn resend_later(&mut self) {
        self.in_vain = true;
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if std::mem::take(&mut self.in_vain) || now_ms >= self.sent_ms + RESEND_AFTER_MS {
            self.sent_ms = now_ms;
            self.sent = 0;
        }
    }

    /// What is to be sent now.
    pub(crate) fn unsent(&mut self) -> Vec<Arc<Message>> {
        let sent = self.sent;
        self.sent = self.sequence;
        self.window.iter().filter(|message| message.id.sequence > sent).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_that_does_not_know_what_has_been_ordered_is_sent_nothing() {
        let mut submitter = Submitter::new(ProcessId::storage(1), 3);
        let sequences = |messages: Vec<Arc<Message>>| Vec::from_iter(messages.iter().map(|m| m.id.sequence));
        submitter.move_on();
        assert_eq!(sequences(submitter.unsent()), [1]);
        assert_eq!(sequences(submitter.ordered(1)), [1]);
        submitter.move_on();
        assert_eq!(sequences(submitter.unsent()), [2]);
        // It would ask for it whenever it gets the second.
        assert!(!submitter.resend(1));
        assert_eq!(sequences(submitter.unsent()), [0; 0]);
        assert!(submitter.resend(2));
        assert_eq!(sequences(submitter.unsent()), [2]);
        // Another router knows nothing of it.
        submitter.resend_all();
        assert_eq!(sequences(submitter.unsent()), [2]);
    }
}
