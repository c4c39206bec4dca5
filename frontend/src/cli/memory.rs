//! Giving memory back to the operating system, and keeping some.
//!
//! mimalloc returns pages that have been free for a while, but only while something else is allocated or freed. After a
//! large load there may be nothing of the kind for a long time, so it is asked to now and then.
//!
//! A page that is touched for the first time has to be found and cleared; in a virtual machine its host may have to do so,
//! too, which takes several times as long. Who is to receive rows fast can take its memory before.

use std::{io, mem::ManuallyDrop, time::Duration};

use memmap2::MmapOptions;
use tokio::task::JoinHandle;
// Its library has the functions below.
use mimalloc as _;

unsafe extern "C" {
    /// Frees unused resources of the calling thread, and pages that have been free for long enough; all of them if
    /// `force`.
    fn mi_collect(force: bool);

    /// Takes memory to allocate from. It is `is_pinned` if it is never to be given back; `numa_node` may be -1.
    fn mi_manage_os_memory(
        start: *mut u8,
        size: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        numa_node: i32,
    ) -> bool;
}

/// mimalloc takes memory in pieces of this size.
const PIECE: usize = 32 << 20;
/// Where a piece may begin.
const ALIGNMENT: usize = 64 << 10;

/// Sizes of the blocks that fill what mimalloc has begun with, and how much that may be.
const LEAST_BLOCK: usize = 256 << 10;
const MOST_BLOCK: usize = 16 << 20;
const MOST_GIVEN_AWAY: usize = 8 << 30;

/// Takes so many bytes from the operating system and keeps them for everything that is allocated from now on. On Linux they are
/// touched.
///
/// # Errors
/// When there is not so much memory, or the allocator of this program is another one.
pub fn reserve(bytes: u64) -> io::Result<()> {
    let size = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(PIECE));
    let size = size.and_then(|size| size.checked_add(ALIGNMENT));
    let size = size.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut region = ManuallyDrop::new(MmapOptions::new().len(size).populate().map_anon()?);
    let start = region.as_mut_ptr();
    let region = start.addr()..start.addr() + size;
    // SAFETY: nobody else has the region, which is mapped for as long as this process runs, and all zero.
    if !unsafe { mi_manage_os_memory(start, size, true, true, true, -1) } {
        return Err(io::Error::other("the allocator does not take it"));
    }
    // It looks for room where it has begun to allocate, which has not been touched, before it looks here. So what is left there
    // is given to nobody: that costs addresses, and no memory.
    for size in (LEAST_BLOCK.ilog2()..=MOST_BLOCK.ilog2()).rev().map(|bits| 1 << bits) {
        let is_here = |_| {
            let block = ManuallyDrop::new(Vec::<u8>::with_capacity(size));
            let is_here = region.contains(&block.as_ptr().addr());
            if is_here {
                drop(ManuallyDrop::into_inner(block));
            }
            is_here
        };
        if !(0..MOST_GIVEN_AWAY / size).any(is_here) {
            return Err(io::Error::other("memory is allocated elsewhere"));
        }
    }
    Ok(())
}

/// A task that gives memory back, until this is dropped.
pub struct Tidying(JoinHandle<()>);

impl Tidying {
    /// Starts the task.
    pub fn start(period: Duration) -> Tidying {
        Tidying(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // SAFETY: it may be called by any thread at any time.
                unsafe { mi_collect(false) };
            }
        }))
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.0.abort();
    }
}
