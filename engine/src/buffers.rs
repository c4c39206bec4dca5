//! Memory for large blocks of bytes that follow one another: what one has left is used for the next. To have as much new
//! memory from the operating system takes longer than everything else that is done to make or to receive a block.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

/// The most that are kept: those on their way come back in time for the next ones.
const KEPT: usize = 8;

type Free = Mutex<Vec<Vec<u8>>>;

/// What may be a large block.
const LARGE: usize = 64 << 10;

/// Large blocks get so much room, so that each buffer is good for all of them: what is not used of it takes no memory, whereas
/// one that grows is copied into new memory.
const ROOM: usize = 20 << 20;

/// The buffers of one stream of blocks.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Arc<Free>,
}

impl Buffers {
    /// An empty buffer with room for a block of so many bytes.
    pub fn take(&mut self, room: usize) -> Vec<u8> {
        let free = self.free.lock().pop().filter(|free| free.capacity() >= room);
        free.unwrap_or_else(|| Vec::with_capacity(if room < LARGE { room } else { room.max(ROOM) }))
    }

    /// A block in a buffer, which comes back with the last part of the block that somebody has.
    pub fn lend(&self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { bytes, to: Arc::downgrade(&self.free) })
    }

    /// Whether it keeps memory that nobody uses.
    pub(crate) fn are_kept(&self) -> bool {
        !self.free.lock().is_empty()
    }

    /// Gives the memory back: no blocks follow for now.
    pub fn forget(&mut self) {
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
    fn a_buffer_comes_back_when_nobody_has_a_part_of_its_block() {
        let mut buffers = Buffers::default();
        let mut buffer = buffers.take(0);
        buffer.extend_from_slice(b"first");
        let place = buffer.as_ptr();
        let block = buffers.lend(buffer);
        let part = block.slice(1..3);
        drop(block);
        let other = buffers.take(0);
        assert_ne!(other.as_ptr(), place, "somebody has a part of it");
        assert_eq!(&part[..], b"ir");
        drop(part);
        let again = buffers.take(0);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        drop(buffers.lend(again));
        assert!(buffers.take(1_000).capacity() >= 1_000);
        assert!(buffers.take(LARGE).capacity() >= ROOM && buffers.take(2 * ROOM).capacity() >= 2 * ROOM);
    }

    #[test]
    fn what_comes_back_late_or_is_too_much_is_given_back() {
        let mut buffers = Buffers::default();
        let blocks: Vec<Bytes> = (0..KEPT + 2).map(|_| buffers.lend(vec![7; 100])).collect();
        let late = buffers.lend(vec![7; 100]);
        drop(blocks);
        assert_eq!(buffers.free.lock().len(), KEPT);
        buffers.forget();
        drop(late);
        assert_eq!(buffers.free.lock().len(), 0);
    }
}
