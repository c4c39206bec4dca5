//! Basic reads at a storage process (paper, section 6.7; DESIGN, decision 14): they come straight from the client and
//! see what has been executed here when it is their turn. Several processes that answer parts of one read may be at
//! different places of the m-seq.

use std::{collections::VecDeque, sync::Arc};

use carousel_engine::{Few, Ts, position::KeyRange};

use crate::{
    message::{Message, MessageId},
    router::LEASE_MS,
    wire::Delivery,
};

/// Reads that wait because their client has seen more than this process; more are lost.
const EARLY: usize = 4096;

/// A basic read as it arrives.
#[derive(Clone, Debug)]
pub struct BasicRead {
    /// The read.
    pub message: Arc<Message>,
    /// The key ranges this process answers for.
    pub ranges: Few<KeyRange>,
    /// The config version by which they were chosen.
    pub config_version: u64,
    /// The client has seen this much.
    pub seen: Ts,
}

/// The lease, and the reads that are too early.
#[derive(Debug, Default)]
pub(super) struct BasicReads {
    lease_ends_ms: u64,
    early: VecDeque<BasicRead>,
}

impl BasicReads {
    /// The lead router has granted the lease that was asked for at this time.
    pub(super) fn leased(&mut self, asked_ms: u64) {
        self.lease_ends_ms = self.lease_ends_ms.max(asked_ms + LEASE_MS);
    }

    /// Takes a read at the present time: as a delivery behind all that was received, up to `frontier`; or nothing, when
    /// it has to wait.
    ///
    /// # Errors
    /// The read, when it cannot be answered here.
    pub(super) fn take(
        &mut self,
        read: BasicRead,
        frontier: Ts,
        now_ms: u64,
    ) -> Result<Option<Delivery>, MessageId> {
        let id = read.message.id;
        if now_ms >= self.lease_ends_ms || id.is_ordered() || !read.message.is_read() {
            return Err(id);
        }
        if read.seen <= frontier {
            return Ok(Some(delivery(read, frontier)));
        }
        if self.early.len() == EARLY {
            return Err(id);
        }
        self.early.push_back(read);
        Ok(None)
    }

    /// More has been received: the reads that are not too early any more. What they see is at least as new as when
    /// they came, when there was a lease.
    pub(super) fn reached(&mut self, frontier: Ts) -> impl Iterator<Item = Delivery> {
        let (due, early) =
            std::mem::take(&mut self.early).into_iter().partition(|read| read.seen <= frontier);
        self.early = early;
        let due: VecDeque<BasicRead> = due;
        due.into_iter().map(move |read| delivery(read, frontier))
    }
}

fn delivery(read: BasicRead, frontier: Ts) -> Delivery {
    let BasicRead { message, ranges, config_version, .. } = read;
    Delivery { ts: frontier, message, ranges, config_version }
}
