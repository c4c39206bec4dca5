//! Scan threads: each drives one shard, and sleeps when there is nothing to do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use carousel_engine::{
    Ts,
    operation::{Decision, Effect, OrderedOperation, RowBatch},
    shard::{Progress, Shard},
};

/// What a scan thread is told. How much can wait is bounded by the operations that may run.
#[derive(Debug)]
pub(super) enum ShardCommand {
    Submit(OrderedOperation),
    Decide(Ts, Decision),
    /// Rows of a staged payload, and whether they are the last.
    Supply(Ts, Arc<RowBatch>, bool),
    /// Versions that ended before this can be collected.
    Horizon(Ts),
}

/// Effects of one shard, in order.
pub(super) type ShardEffects = (usize, Vec<Effect>);

/// A scan thread.
pub(super) struct ScanThread {
    commands: Option<mpsc::Sender<ShardCommand>>,
    memory: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl ScanThread {
    /// Starts the thread of a shard, of a lower priority than routers and network.
    pub(super) fn start(
        name: String,
        index: usize,
        shard: Shard,
        results: tokio::sync::mpsc::Sender<ShardEffects>,
    ) -> std::io::Result<ScanThread> {
        let (commands, received) = mpsc::channel();
        let memory = Arc::new(AtomicU64::new(shard.memory() as u64));
        let reported = memory.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            lower_priority();
            run(index, shard, &received, &results, &reported);
        })?;
        Ok(ScanThread { commands: Some(commands), memory, thread: Some(thread) })
    }

    /// Tells the thread. A thread that has ended by a panic ends the process through its result channel.
    pub(super) fn tell(&self, command: ShardCommand) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }

    /// Bytes that the shard's rows take.
    pub(super) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Whether the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for ScanThread {
    fn drop(&mut self) {
        // The thread ends when nobody can tell it anything. It is not waited for here: the last step may take a while.
        self.commands = None;
        self.thread = None;
    }
}

fn run(
    index: usize,
    mut shard: Shard,
    commands: &mpsc::Receiver<ShardCommand>,
    results: &tokio::sync::mpsc::Sender<ShardEffects>,
    memory: &AtomicU64,
) {
    let mut horizon = Ts::ZERO;
    let mut garbage = false;
    let mut idle = true;
    loop {
        let mut effects = Vec::new();
        if idle {
            match commands.recv() {
                Ok(command) => tell(&mut shard, command, &mut horizon, &mut garbage, &mut effects),
                Err(mpsc::RecvError) => return,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => tell(&mut shard, command, &mut horizon, &mut garbage, &mut effects),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
        let scanning = shard.step(&mut effects) == Progress::Busy;
        garbage = garbage && shard.collect_garbage(horizon) == Progress::Busy;
        memory.store(shard.memory() as u64, Ordering::Relaxed);
        // Waiting here, when the process's task has much to do, is what bounds the effects on their way.
        if !effects.is_empty() && results.blocking_send((index, effects)).is_err() {
            return;
        }
        idle = !scanning && !garbage;
    }
}

fn tell(
    shard: &mut Shard,
    command: ShardCommand,
    horizon: &mut Ts,
    garbage: &mut bool,
    effects: &mut Vec<Effect>,
) {
    match command {
        ShardCommand::Submit(operation) => shard.submit(operation),
        ShardCommand::Decide(ts, decision) => shard.decide(ts, decision, effects),
        ShardCommand::Supply(ts, rows, last) => shard.supply(ts, rows, last, effects),
        ShardCommand::Horizon(ts) => {
            *horizon = ts;
            *garbage = true;
        }
    }
}

/// Routers, network and sessions come first: they are what others wait for.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: both calls take and return plain numbers. On Linux the nice value belongs to the thread.
        let failed = unsafe {
            let thread = libc::gettid();
            libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, 5) != 0
        };
        if failed {
            tracing::debug!("the priority of a scan thread cannot be lowered");
        }
    }
}
