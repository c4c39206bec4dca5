//! The whole cluster on one thread, from a seed (FoundationDB's way of testing).
//!
//! Routers, storage, client and super processes are the real state machines ([`crate::router::core`],
//! `crate::storage::node` with [`crate::storage::core`] and [`carousel_engine::Shard`], `crate::client::core`,
//! `crate::super_process`); time,
//! connections, disks and the consensus are simulated, and everything that happens is drawn from the seed: delays,
//! connections that have to be made again, partitions in both directions and in one, pauses, clocks that
//! jump, crashes that lose what was not synced, slow disks, messages that are said twice, changes of the members, of the
//! ring and of the routers, and suspicions of the living and the dead.
//!
//! ```text
//!   statement --compiled--> message ---> [ clients, routers, storage processes ] ---> answer
//!       |                                            | m-seq                            |
//!       +---------------------> replay <-------------+                                  |
//!                                  +-------------------- equal? <-----------------------+
//! ```
//!
//! Checked as it happens: every router learns the same m-seq, without gaps, each message once and those of a submitter
//! in its order; every process is delivered exactly its share; every answer is what a naive replay of the m-seq says;
//! checkpoints have the replay's rows; replicas agree on content hashes; and when the faults have ended, everything that
//! living clients have asked is answered; where there are super processes, the ring has healed, too, as far as it can.
//!
//! Not simulated: openraft itself (a model of Raft takes its place), bounded mailboxes, and the files under logs and checkpoints (what survives a crash is modelled). The real consensus, transport and logs
//! of routers have a run of their own in simulated time, in the tests of [`crate::router`] (`under_turmoil`).

mod clients;
mod consensus;
mod faults;
#[cfg(test)]
mod isolation;
mod network;
mod payloads;
mod random;
mod replay;
mod routers;
mod seeds;
mod statement;
mod stores;
mod supers;
#[cfg(test)]
mod tests;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use carousel_engine::Ts;

pub use random::Random;
#[cfg(test)]
pub(crate) use seeds::each_seed;
pub use seeds::run_seeds;
use world::World;

/// How much happens.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Statements and other operations that clients submit.
    pub operations: usize,
    /// Faults that are tried. Some have no effect, such as the end of who is down already; when those are more than three of
    /// eight, others are tried at the end.
    pub faults: usize,
    /// Changes of the ring, at most. With any there are standbys, and who was suspected may come back.
    pub reshapes: usize,
    /// Requests for routers more or less, at most; some clusters keep theirs.
    pub router_changes: usize,
    /// Whether half of the clusters have super processes, which suspect, heal and order checkpoints of themselves.
    pub super_processes: bool,
    /// Whether in half of the clusters some INSERTs stage their rows around the m-seq.
    pub staging: bool,
    /// Whether what happens is kept, line by line.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            operations: 500,
            faults: 16,
            reshapes: 4,
            router_changes: 4,
            super_processes: true,
            staging: true,
            trace: false,
        }
    }
}

/// What happened in a run that went well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything that happened, hashed: equal for equal seeds. Of several runs: the sum of theirs.
    pub trace_hash: u64,
    /// Events.
    pub events: u64,
    /// Operations submitted.
    pub operations: u64,
    /// Those that were answered.
    pub answers: u64,
    /// Messages that were ordered.
    pub messages: u64,
    /// Faults that had an effect.
    pub faults: u64,
    /// Messages that changed the config.
    pub reconfigurations: u64,
    /// Those by which rows were given up that nobody had any more.
    pub losses: u64,
    /// Routers that were added or removed.
    pub router_changes: u64,
    /// Suspicions of super processes, and changes of the ring with which they heal it.
    pub suspicions: u64,
    /// Those of processes that are heard, and whose disks take no checkpoints.
    pub full_disks: u64,
    /// See [`Report::suspicions`].
    pub healings: u64,
    /// INSERTs of staged rows, and files of theirs that were damaged.
    pub staged: u64,
    /// See [`Report::staged`].
    pub damaged: u64,
    /// Checkpoints that became durable.
    pub checkpoints: u64,
    /// Virtual time, in microseconds.
    pub virtual_us: u64,
    /// What happened, line by line, if it was asked for.
    pub trace: Vec<String>,
    /// Of several runs: the fewest operations, faults and reconfigurations in any of them.
    pub fewest: Option<[u64; 3]>,
    last_checkpoint: Option<Ts>,
}

impl Report {
    /// Adds what happened in another run.
    pub fn add(&mut self, other: &Report) {
        let counts = [other.operations, other.faults, other.reconfigurations];
        let fewest =
            self.fewest.map_or(counts, |fewest| std::array::from_fn(|of| fewest[of].min(counts[of])));
        self.fewest = Some(fewest);
        self.trace_hash = self.trace_hash.wrapping_add(other.trace_hash);
        self.events += other.events;
        self.operations += other.operations;
        self.router_changes += other.router_changes;
        self.answers += other.answers;
        self.messages += other.messages;
        self.faults += other.faults;
        self.reconfigurations += other.reconfigurations;
        self.losses += other.losses;
        self.suspicions += other.suspicions;
        self.full_disks += other.full_disks;
        self.healings += other.healings;
        self.staged += other.staged;
        self.damaged += other.damaged;
        self.checkpoints += other.checkpoints;
        self.virtual_us += other.virtual_us;
    }
}

/// What went wrong in a run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows it again.
    pub seed: u64,
    /// Virtual time, in microseconds.
    pub at_us: u64,
    /// What.
    pub reason: String,
    /// The last lines of the trace, if it was asked for.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} fails after {} ms: {}", self.seed, self.at_us / 1_000, self.reason)
    }
}

/// Runs a cluster from a seed to its end.
///
/// # Errors
/// What went wrong: a broken promise, an assertion, or something that does not come to an end.
pub fn run(seed: u64, options: Options) -> Result<Report, Box<Failure>> {
    let mut world = World::new(seed, options);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panic: {}", text.unwrap_or_default()))
    });
    match outcome {
        Ok(()) => {
            world.report.messages = world.replay.ts().0;
            world.report.trace = world.lines();
            Ok(world.report)
        }
        Err(reason) => {
            let (at_us, trace) = (world.now_us, world.lines());
            Err(Box::new(Failure { seed, at_us, reason, trace }))
        }
    }
}
