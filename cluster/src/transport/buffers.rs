//! Memory for large messages that follow one another: what one has left is used for the next. To have as much new memory
//! from the operating system takes longer than everything else that is done to receive a message.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

/// The most that are kept: those on their way to disk and to the shards come back in time for the next messages.
const KEPT: usize = 8;

type Free = Mutex<Vec<Vec<u8>>>;

/// The buffers of a connection.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Arc<Free>,
    /// Bytes of the last message.
    last: usize,
}

impl Buffers {
    /// An empty buffer, with room for a message like the last one.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let free = self.free.lock().pop();
        free.unwrap_or_else(|| Vec::with_capacity(self.last))
    }

    /// A message in a buffer, which comes back with the last part of the message that somebody has.
    pub(super) fn message(&mut self, bytes: Vec<u8>) -> Bytes {
        self.last = bytes.len();
        Bytes::from_owner(Lent { bytes, to: Arc::downgrade(&self.free) })
    }

    /// Gives the memory back: no messages follow for now.
    pub(super) fn forget(&mut self) {
        *self = Buffers::default();
    }
}

/// A buffer on its way.
struct Lent {
    bytes: Vec<u8>,
    to: Weak<Free>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(to) = self.to.upgrade() else { return };
        let mut buffer = std::mem::take(&mut self.bytes);
        buffer.clear();
        let mut free = to.lock();
        if free.len() < KEPT {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_nobody_has_a_part_of_its_message() {
        let mut buffers = Buffers::default();
        let mut buffer = buffers.take();
        buffer.extend_from_slice(b"first");
        let place = buffer.as_ptr();
        let message = buffers.message(buffer);
        let part = message.slice(1..3);
        drop(message);
        let other = buffers.take();
        assert_ne!(other.as_ptr(), place, "somebody has a part of it");
        assert_eq!(&part[..], b"ir");
        drop(part);
        let again = buffers.take();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }

    #[test]
    fn what_comes_back_late_or_is_too_much_is_given_back() {
        let mut buffers = Buffers::default();
        let messages: Vec<Bytes> = (0..KEPT + 2).map(|_| buffers.message(vec![7; 100])).collect();
        let late = buffers.message(vec![7; 100]);
        drop(messages);
        assert_eq!(buffers.free.lock().len(), KEPT);
        buffers.forget();
        drop(late);
        assert_eq!(buffers.free.lock().len(), 0);
    }
}
