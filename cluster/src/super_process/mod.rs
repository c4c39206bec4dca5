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
//! [`Checkpoints`]); this module is the shell that looks at the clock and submits. A super process speaks and hears
//! through a [`Client`]. Each runs beside a router and acts only as long as that router leads, so that whoever cannot
//! be reached from the lead router is suspected, and nobody else. If two act at a time it does no harm: a keyspace
//! message that was planned against another config has no effect, and to suspect the suspected has none either.

mod checkpoints;
mod detector;
mod healing;

use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, JoinHandle};

pub use self::{
    checkpoints::{CheckpointPolicy, Checkpoints},
    detector::{FailureDetector, Heartbeat, Patience},
    healing::Healer,
};
use crate::{
    client::{Client, ClientOptions},
    config::Membership,
    message::{Body, ProcessId},
    network::Network,
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
    /// The router it runs beside; it acts while that one leads. Always, when `None`.
    pub beside: Option<ProcessId>,
    /// How long storage processes may be silent.
    pub patience: Patience,
    /// Whether the silent are suspected and the ring is healed.
    pub heals: bool,
    /// Milliseconds after which a suspected process for which there is no standby leaves the ring; `None` for never.
    pub contract_after_ms: Option<u64>,
    /// When checkpoints are made.
    pub checkpoints: CheckpointPolicy,
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
        let watch = Watch {
            detector: FailureDetector::new(options.patience),
            healer: Healer::new(options.contract_after_ms),
            checkpoints: Checkpoints::new(options.checkpoints, 0),
            client,
            options,
            change: None,
            checkpoint: None,
        };
        SuperProcess { task: tokio::spawn(watch.run()).abort_handle() }
    }
}

struct Watch {
    options: SuperOptions,
    client: Client,
    detector: FailureDetector,
    healer: Healer,
    checkpoints: Checkpoints,
    /// What is being submitted. Neither waits for the other: a checkpoint waits for storage processes that may have
    /// to be suspected.
    change: Option<JoinHandle<()>>,
    checkpoint: Option<JoinHandle<()>>,
}

impl Watch {
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
        let view = self.client.view().clone();
        let acts =
            view.leader.is_some() && self.options.beside.is_none_or(|router| view.leader == Some(router));
        if !acts {
            return self.detector.reset();
        }
        let silent = self.detector.look(now_ms, &view.config, &view.heartbeats);
        let is_alive = |process| self.detector.is_alive(process);
        if is_idle(&self.checkpoint) {
            let live = view.heartbeats.iter().filter(|(process, _)| is_alive(**process));
            if self.checkpoints.is_due(now_ms, live.map(|(_, heartbeat)| *heartbeat)) {
                self.checkpoints.ordered(now_ms);
                self.checkpoint = Some(tokio::spawn(order_checkpoint(self.client.clone())));
            }
        }
        if !self.options.heals || !is_idle(&self.change) {
            return;
        }
        let client = self.client.clone();
        if !silent.is_empty() {
            self.change = Some(tokio::spawn(async move {
                for (process, incarnation) in silent {
                    tracing::warn!(%process, incarnation, "no heartbeat: suspected");
                    let suspicion = Membership::Suspect { process, incarnation };
                    if let Err(error) = client.configure(suspicion).await {
                        tracing::warn!(%process, %error, "the suspicion had no effect");
                    }
                }
            }));
        } else if let Some(change) = self.healer.look(now_ms, &view.config, is_alive) {
            self.change = Some(tokio::spawn(async move {
                match client.reshape(change).await {
                    Ok(ts) => tracing::info!(%change, %ts, "the ring heals"),
                    Err(error) => tracing::warn!(%change, %error, "the ring cannot be healed so"),
                }
            }));
        }
    }
}

fn is_idle(task: &Option<JoinHandle<()>>) -> bool {
    task.as_ref().is_none_or(JoinHandle::is_finished)
}

async fn order_checkpoint(client: Client) {
    match client.order(Body::Checkpoint).await {
        Ok(ts) => tracing::info!(%ts, "checkpoint"),
        Err(error) => tracing::warn!("a checkpoint was not ordered: {error}"),
    }
}
