//! The log's jobs in simulated time, so that a simulated crash finds some of them waiting and loses them.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    sync::{atomic::Ordering, mpsc},
    time::Duration,
};

use super::{Job, Writer};
use crate::sim::Random;

thread_local! {
    static DISKS: RefCell<Random> = const { RefCell::new(Random::new(0)) };
    static USED: Cell<bool> = const { Cell::new(false) };
}

/// As long as it is there, logs that are opened on this thread are simulated, as they always are in a simulation.
pub(crate) struct Used(());

impl Used {
    pub(crate) fn new() -> Used {
        USED.set(true);
        Used(())
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        USED.set(false);
    }
}

pub(crate) fn is_used() -> bool {
    USED.get() || turmoil::in_simulation()
}

/// How long the disks of this thread's simulation take follows from this.
pub(crate) fn seed(seed: u64) {
    DISKS.replace(Random::new(seed));
}

/// Usually fast, now and then slow.
fn delay() -> Duration {
    DISKS.with_borrow_mut(|random| {
        Duration::from_millis(if random.one_in(20) { random.within(10..100) } else { random.within(1..5) })
    })
}

/// Does what the log's thread does, until the log is closed or the host has crashed.
pub(super) async fn run(mut writer: Writer, queue: mpsc::Receiver<Job>, lock: File) {
    loop {
        tokio::time::sleep(delay()).await;
        if writer.hangs.load(Ordering::SeqCst) {
            continue;
        }
        match queue.try_recv() {
            Ok(first) => {
                writer.take(std::iter::once(first).chain(queue.try_iter()));
                while writer.purging.is_some() {
                    writer.purge_some();
                }
            }
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => break,
        }
    }
    drop(lock);
}
