//! Deliveries that wait for their turn.

use std::collections::VecDeque;

use crate::wire::Delivery;

/// Deliveries in their order, and what their messages take.
#[derive(Debug, Default)]
pub(super) struct Pending {
    deliveries: VecDeque<(Delivery, usize)>,
    bytes: usize,
}

impl Pending {
    pub(super) fn push_back(&mut self, delivery: Delivery) {
        let bytes = delivery.message.weight();
        self.bytes += bytes;
        self.deliveries.push_back((delivery, bytes));
    }

    pub(super) fn pop_front(&mut self) -> Option<Delivery> {
        let (delivery, bytes) = self.deliveries.pop_front()?;
        self.bytes -= bytes;
        Some(delivery)
    }

    /// All of them; none waits any more.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Delivery> + use<> {
        std::mem::take(self).deliveries.into_iter().map(|(delivery, _)| delivery)
    }

    pub(super) fn front(&self) -> Option<&Delivery> {
        self.deliveries.front().map(|(delivery, _)| delivery)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.deliveries.iter().map(|(delivery, _)| delivery)
    }

    pub(super) fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// About so many bytes of messages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }
}

impl Extend<Delivery> for Pending {
    fn extend<I: IntoIterator<Item = Delivery>>(&mut self, deliveries: I) {
        deliveries.into_iter().for_each(|delivery| self.push_back(delivery));
    }
}
