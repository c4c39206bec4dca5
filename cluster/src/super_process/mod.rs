//! Super processes (paper, section 3.2): they watch the storage processes, suspect the silent, heal the ring and order
//! checkpoints (DESIGN, decisions 13, 15 and 16).
//!
//! ```text
//!   storage processes --heartbeats--> client process of kind super --view--> detector   -> Suspect
//!                                              |   ^                         healer     -> Keyspace
//!                                              v   |                         checkpoints-> Checkpoint
//!                                       routers: the m-seq
//! ```
//!
//! What to do is decided by pure functions of the config and of what was heard when ([`FailureDetector`], [`Healer`],
//! [`Checkpoints`], and `watch` over them); this module is the shell that looks at the clock and submits. A super process speaks and hears
//! through a [`Client`]. Each runs beside a router and acts only as long as that router leads, so that whoever cannot
//! be reached from the lead router is suspected, and nobody else. If two act at a time it does no harm: a keyspace
//! message that was planned against another config has no effect, and to suspect the suspected has none either.

mod checkpoints;
mod detector;
mod healing;
mod watch;

use std::time::{Duration, Instant};

use carousel_engine::{SqlError, SqlState};
use tokio::task::{AbortHandle, JoinHandle};

pub(crate) use self::watch::{Busy, Step, Watch};
pub use self::{
    checkpoints::{CheckpointPolicy, Checkpoints},
    detector::{FailureDetector, Heartbeat, Patience, Suspicion, Symptom},
    healing::Healer,
    watch::WatchOptions,
};
use crate::{
    client::{Client, ClientOptions},
    config::{Change, Config, Membership},
    message::Body,
    network::Network,
    router::Followed,
    storage::disk::DiskState,
};

/// How often it looks around.
const TICK: Duration = Duration::from_millis(100);
/// The least patience with silent processes: with less, a look that comes a little late would mean nothing
/// ([`FailureDetector::look`]), and nobody would ever be suspected.
pub const LEAST_PATIENCE: Duration = TICK.saturating_mul(5);

/// What a super process needs to know.
#[derive(Clone, Debug)]
pub struct SuperOptions {
    /// Its mouth and ears; the identity is of kind super.
    pub client: ClientOptions,
    /// The router it runs beside, if it acts only while that one leads: who is not followed cannot tell others' silence from its
    /// own.
    pub router: Option<Followed>,
    /// What it watches for.
    pub watch: WatchOptions,
}

/// A running super process. Dropping it ends the process.
#[derive(Debug)]
pub struct SuperProcess {
    task: AbortHandle,
}

impl Drop for SuperProcess {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SuperProcess {
    /// Starts a super process.
    pub fn start(options: SuperOptions, network: &Network) -> SuperProcess {
        let client = Client::start(options.client.clone(), network);
        let SuperOptions { router, watch, .. } = options;
        let watch = Watch::new(watch);
        let shell = Shell { client, router, watch, suspicion: None, change: None, checkpoint: None };
        SuperProcess { task: tokio::spawn(shell.run()).abort_handle() }
    }
}

/// The shell around a [`Watch`].
struct Shell {
    client: Client,
    router: Option<Followed>,
    watch: Watch,
    /// What is being submitted.
    suspicion: Option<JoinHandle<()>>,
    change: Option<JoinHandle<()>>,
    checkpoint: Option<JoinHandle<()>>,
}

impl Shell {
    async fn run(mut self) {
        let started = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(started.elapsed().as_millis() as u64);
        }
    }

    fn look(&mut self, now_ms: u64) {
        let mut view = self.client.view().clone();
        // What is submitted is ordered some day, even if it was this side that was cut off and the silence is long over.
        if !is_followed(self.router.as_ref()) {
            view.leader = None;
        }
        let busy = Busy {
            suspicion: is_busy(&self.suspicion),
            change: is_busy(&self.change),
            checkpoint: is_busy(&self.checkpoint),
        };
        for step in self.watch.look(now_ms, &view, busy) {
            let client = self.client.clone();
            match step {
                Step::Checkpoint { absent } => {
                    for (process, silent_ms) in absent {
                        let seconds = silent_ms / 1_000;
                        tracing::warn!(
                            "{process} has not been heard for {seconds} s: the routers keep their log for it, until their disks are full. \
                             Start it again; or give up what it alone has (ALTER CLUSTER REPLACE or CONTRACT … WITH DATA LOSS)"
                        );
                    }
                    self.checkpoint = Some(tokio::spawn(order_checkpoint(client)));
                }
                Step::Suspect(suspicions) => {
                    self.suspicion = Some(tokio::spawn(suspect(client, self.router.clone(), suspicions)));
                }
                Step::Heal(change) => self.change = Some(tokio::spawn(heal(client, change))),
            }
        }
    }
}

fn is_busy(task: &Option<JoinHandle<()>>) -> bool {
    task.as_ref().is_some_and(|task| !task.is_finished())
}

/// Whether others follow the router that this side runs beside.
fn is_followed(router: Option<&Followed>) -> bool {
    router.is_none_or(Followed::is_followed)
}

async fn suspect(client: Client, router: Option<Followed>, suspicions: Vec<Suspicion>) {
    let heard = |process| client.view().heartbeats.get(&process).copied();
    let with_heard = |suspicion: Suspicion| (suspicion, heard(suspicion.process));
    for (suspicion, before) in suspicions.into_iter().map(with_heard).collect::<Vec<_>>() {
        let Suspicion { process, incarnation, symptom } = suspicion;
        let now = heard(process);
        // Each suspicion takes its time. If it was this side that was cut off, that may be over, and so may other symptoms.
        let lasts = match symptom {
            Symptom::Silence => {
                now.map(|heartbeat| heartbeat.pulse()) == before.map(|heartbeat| heartbeat.pulse())
            }
            Symptom::DiskFails => now.is_some_and(|heartbeat| heartbeat.disk == DiskState::Failing),
            Symptom::Ends => true,
        };
        if !lasts || !is_followed(router.as_ref()) {
            continue;
        }
        match symptom {
            Symptom::Silence => tracing::warn!(%process, incarnation, "no heartbeat: suspected"),
            Symptom::DiskFails => {
                tracing::warn!(%process, incarnation, "its disk takes no checkpoints: suspected");
            }
            Symptom::Ends => {
                tracing::warn!(%process, incarnation, "it ends in one life after the other: suspected");
            }
        }
        let suspicion = Membership::Suspect { process, incarnation };
        if let Err(error) = client.configure(suspicion).await {
            tracing::warn!(%process, %error, "the suspicion had no effect");
        }
    }
}

async fn heal(client: Client, change: Change) {
    let (Change::Replace { process, .. }
    | Change::Contract { process }
    | Change::Expand { process, .. }
    | Change::Rebalance { process, .. }) = change;
    // A change of the ring in the meantime may have been its return.
    let still = |config: &Config| match config.is_suspected(process) {
        true => Ok(change),
        false => Err(SqlError::new(SqlState(*b"55000"), format!("{process} is not suspected any more"))),
    };
    match client.reshape_by(still).await {
        Ok(ts) => tracing::info!(%change, %ts, "the ring heals"),
        Err(error) => tracing::warn!(%change, %error, "the ring cannot be healed so"),
    }
}

async fn order_checkpoint(client: Client) {
    match client.order(Body::Checkpoint).await {
        Ok(ts) => tracing::info!(%ts, "checkpoint"),
        Err(error) => tracing::warn!("a checkpoint was not ordered: {error}"),
    }
}
