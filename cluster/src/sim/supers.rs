//! Super processes of the simulated cluster: one beside each router, with which it begins and ends. Each is a client
//! process that nobody asks anything but [`crate::super_process`].

use super::{
    clients::{ClientHost, What},
    world::World,
};
use crate::{
    config::{Change, Config, Configuration, Keyspace, Membership},
    message::{Body, ProcessId, ProcessKind, ReadIsolation},
    super_process::{
        Busy, CheckpointPolicy, Healer, Patience, Step, Suspicion, Symptom, Watch, WatchOptions,
    },
    wire::Wire,
};

/// Milliseconds that a suspected process has before the ring contracts.
const CONTRACT_AFTER_MS: u64 = 3_000;

/// The router that a super process runs beside.
pub(super) fn beside(id: ProcessId) -> ProcessId {
    ProcessId::router(id.number)
}

/// What a super process watches for. Its patience is that of impatient operators, so that processes which only pause are
/// suspected, too.
pub(super) fn watch(id: ProcessId) -> Watch {
    Watch::new(WatchOptions {
        beside: Some(beside(id)),
        patience: Patience { silent_ms: 800, starting_ms: 4_000 },
        suspects: true,
        heals: true,
        contract_after_ms: Some(CONTRACT_AFTER_MS),
        checkpoints: CheckpointPolicy { bytes: u64::MAX, interval_ms: 2_000 },
    })
}

impl World {
    /// Whether this cluster heals itself.
    pub(super) fn has_supers(&self) -> bool {
        self.lives.keys().any(|process| process.kind == ProcessKind::Super)
    }

    /// A super process looks around.
    pub(super) fn super_looks(&mut self, id: ProcessId, now_ms: u64) -> Result<(), String> {
        let Some(host) = self.clients.get_mut(&id) else { return Ok(()) };
        let Some(steps) = host.watch(now_ms) else { return Ok(()) };
        for step in steps {
            self.note([18, 0], || format!("{id}: {step:?}"));
            match step {
                Step::Checkpoint { .. } => {
                    self.ask(id, What::Checkpoint, Body::Checkpoint, ReadIsolation::Sequential)?;
                }
                Step::Suspect(suspicions) => {
                    for Suspicion { process, incarnation, symptom } in suspicions {
                        self.report.suspicions += 1;
                        self.report.full_disks += u64::from(symptom == Symptom::DiskFails);
                        let suspicion = Membership::Suspect { process, incarnation };
                        self.ask_configuration(id, Configuration::Membership(suspicion))?;
                    }
                }
                Step::Heal(change) => self.plan(id, change)?,
            }
        }
        Ok(())
    }

    /// A process asks for the best keyspace message for a change, as it sees the config.
    fn plan(&mut self, id: ProcessId, change: Change) -> Result<(), String> {
        let Some(host) = self.clients.get(&id) else { return Ok(()) };
        let config = host.config();
        let Ok(keyspace) = config.plan(change) else { return Ok(()) };
        if self.random.one_in(2) {
            self.precut(id, &config, &keyspace);
        }
        self.report.healings += 1;
        self.ask_configuration(id, Configuration::Keyspace(keyspace))
    }

    /// Storage processes are to cut segments ahead of a change.
    pub(super) fn precut(&mut self, from: ProcessId, config: &Config, keyspace: &Keyspace) {
        let at = config.cuts(keyspace);
        for process in config.storage_processes() {
            self.send(from, process, Wire::Precut { request: 1, at: at.clone() });
        }
    }

    /// What a super process would still have to do, were it as patient as can be: a suspected process that somebody could
    /// replace, or without which the ring would go on.
    pub(super) fn to_heal(&self) -> Option<Change> {
        let config = self.replay.config();
        Healer::new(Some(0)).look(0, config, |process| self.is_up(process), |_, _| true)
    }
}

impl ClientHost {
    /// What a super process does now; nothing for any other.
    fn watch(&mut self, now_ms: u64) -> Option<Vec<Step>> {
        // Most hosts are clients.
        self.watch.as_ref()?;
        let busy = Busy {
            suspicion: self.waits_for_suspicion(),
            change: self.waits_for_change(),
            checkpoint: self.waits_for_checkpoint(),
        };
        let view = self.view();
        Some(self.watch.as_mut()?.look(now_ms, &view, busy))
    }
}
