//! Threads of low priority for lanes on which rows travel in bulk: to copy, check and send blocks takes a good part of a core,
//! and nobody waits for one of them.

use std::future::Future;

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinSet,
};

use crate::{
    message::{ProcessId, ProcessKind},
    network::Lane,
    priority,
};

/// The most threads.
const THREADS: usize = 4;

/// The threads, as soon as there is such a lane.
#[derive(Default)]
pub(super) struct Bulk(Mutex<Option<Runtime>>);

impl Bulk {
    /// What runs a lane between two processes, unless it is run like everything else.
    pub(super) fn of(&self, local: ProcessId, remote: ProcessId, lane: Lane) -> Option<Handle> {
        let are_storage = [local, remote].iter().all(|process| process.kind == ProcessKind::Storage);
        if !are_storage || lane != Lane::Data || is_simulated() {
            return None;
        }
        let mut runtime = self.0.lock();
        if runtime.is_none() {
            let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2);
            let built = Builder::new_multi_thread()
                .thread_name("bulk")
                .worker_threads(threads.clamp(1, THREADS))
                .on_thread_start(|| priority::lower(priority::BULK))
                .enable_all()
                .build();
            *runtime = built
                .inspect_err(
                    |error| tracing::warn!(%error, "there are no threads for what is copied in bulk"),
                )
                .ok();
        }
        runtime.as_ref().map(|runtime| runtime.handle().clone())
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.get_mut().take() {
            runtime.shutdown_background();
        }
    }
}

fn is_simulated() -> bool {
    #[cfg(test)]
    return turmoil::in_simulation();
    #[cfg(not(test))]
    false
}

/// A lane of a session that may run on threads of its own.
#[derive(Default)]
pub(super) struct Apart(JoinSet<String>);

impl Apart {
    /// Runs it to its end, there if it is said where. Safe to cancel, behind which it must be [ended](Apart::end).
    pub(super) async fn run(
        &mut self,
        there: Option<Handle>,
        lane: impl Future<Output = String> + Send + 'static,
    ) -> String {
        let Some(there) = there else { return lane.await };
        self.0.spawn_on(lane, &there);
        match self.0.join_next().await {
            Some(Ok(end)) => end,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => "this process is ending".into(),
        }
    }

    /// Returns when it has ended: nothing that it has received is handed on afterwards.
    pub(super) async fn end(mut self) {
        self.0.shutdown().await;
    }
}
