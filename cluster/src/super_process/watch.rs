//! What a super process does next, as a pure function of the time, of what its client process sees and of what it is
//! submitting already.

use std::collections::BTreeSet;

use super::{CheckpointPolicy, Checkpoints, FailureDetector, Healer, Heartbeat, Patience, Suspicion};
use crate::{
    client::{View, room},
    config::Change,
    message::ProcessId,
    planted::{Bug, planted},
    storage::disk::DiskState,
};

/// What a super process watches for.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The router it runs beside; it acts while that one leads. Always, when `None`.
    pub beside: Option<ProcessId>,
    /// How long storage processes may be silent.
    pub patience: Patience,
    /// Whether the silent are suspected.
    pub suspects: bool,
    /// Whether the ring is healed of suspected processes.
    pub heals: bool,
    /// Milliseconds after which a suspected process for which there is no standby leaves the ring; `None` for never.
    pub contract_after_ms: Option<u64>,
    /// When checkpoints are made.
    pub checkpoints: CheckpointPolicy,
}

/// What is being submitted. No suspicion waits for the others: a checkpoint and a change of the ring wait for storage processes
/// that may have to be suspected.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) suspicion: bool,
    pub(crate) change: bool,
    pub(crate) checkpoint: bool,
}

/// Something to submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A checkpoint; behind it the log is kept for these, which are silent.
    Checkpoint {
        /// So many milliseconds each.
        absent: Vec<(ProcessId, u64)>,
    },
    /// Suspicions, one after the other.
    Suspect(Vec<Suspicion>),
    Heal(Change),
}

/// Watches the storage processes.
#[derive(Debug)]
pub(crate) struct Watch {
    options: WatchOptions,
    detector: FailureDetector,
    healer: Healer,
    checkpoints: Checkpoints,
    /// When it acted last.
    acted_ms: u64,
}

impl Watch {
    /// Begins to watch, at the time 0.
    pub(crate) fn new(options: WatchOptions) -> Watch {
        Watch {
            detector: FailureDetector::new(options.patience),
            healer: Healer::new(options.contract_after_ms),
            checkpoints: Checkpoints::new(options.checkpoints, 0),
            options,
            acted_ms: 0,
        }
    }

    /// What to submit now: at most one checkpoint, and suspicions or a change.
    pub(crate) fn look(&mut self, now_ms: u64, view: &View, busy: Busy) -> Vec<Step> {
        let mut steps = Vec::new();
        let acts =
            view.leader.is_some() && self.options.beside.is_none_or(|router| view.leader == Some(router));
        if !acts {
            // For a moment the router may not know that it is followed still, and nobody else has watched meanwhile.
            let elsewhere = view.leader.is_some() || planted(Bug::LeaderForgotten);
            if elsewhere || now_ms.saturating_sub(self.acted_ms) > self.options.patience.silent_ms / 2 {
                self.detector.reset();
                self.healer.reset();
            }
            return steps;
        }
        self.acted_ms = now_ms;
        let suspicions = self.detector.look(now_ms, &view.config, &view.heartbeats);
        let is_alive = |process| self.detector.is_alive(process);
        // A standby is told of no checkpoint, so what has been logged at one stays so.
        let on_ring = view.config.live_storage().filter(|process| is_alive(*process));
        let heard = on_ring.filter_map(|process| view.heartbeats.get(&process).copied());
        // Others do not wait for a disk that takes none; who has it tries by itself whether it is well again.
        let able = heard.filter(|heartbeat| heartbeat.disk != DiskState::Failing);
        let able: Vec<Heartbeat> = able.collect();
        if !busy.checkpoint && self.checkpoints.is_due(now_ms, &able, view.has_room) {
            self.checkpoints.ordered(now_ms, view.has_room);
            let mut absent = Vec::new();
            let keepers: BTreeSet<ProcessId> = view.config.keepers_of_log().collect();
            for keeper in keepers {
                absent.extend(self.detector.silent_ms(keeper).map(|silent_ms| (keeper, silent_ms)));
            }
            steps.push(Step::Checkpoint { absent });
        }
        if self.options.suspects && !suspicions.is_empty() {
            if !busy.suspicion {
                steps.push(Step::Suspect(suspicions));
            }
        } else if self.options.heals && !busy.suspicion && !busy.change {
            let has_room = |process, by| room::has_room(&view.config, &view.heard, process, by);
            steps.extend(self.healer.look(now_ms, &view.config, is_alive, has_room).map(Step::Heal));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use carousel_engine::Ts;

    use super::{super::Symptom, *};
    use crate::{
        client::core::{Core, CoreOptions},
        config::{Config, Configuration, Membership},
        message::ProcessKind,
        router::testing,
    };

    const ROUTER: ProcessId = ProcessId::router(1);

    fn options() -> WatchOptions {
        WatchOptions {
            beside: None,
            patience: Patience { silent_ms: 800, starting_ms: 4_000 },
            suspects: true,
            heals: true,
            contract_after_ms: None,
            checkpoints: CheckpointPolicy { bytes: 100, interval_ms: 60_000 },
        }
    }

    /// What is seen while a router leads and a change is in force.
    fn view_behind(config: Config, change: Membership) -> View {
        let own = ProcessId { kind: ProcessKind::Super, number: 1 };
        let message = testing::configuration(own, 1, 1, Configuration::Membership(change));
        let config = config.apply(&message, Ts(1)).expect("possible").expect("it changes the config");
        let (routers, config) = (vec![ROUTER], Arc::new(config));
        let core = Core::new(CoreOptions { id: own, incarnation: 1, directory: 1, routers, config });
        View { leader: Some(ROUTER), ..core.view() }
    }

    #[test]
    fn a_moment_without_followers_does_not_let_everything_be_watched_anew() {
        let suspected = ProcessId::storage(3);
        let suspicion = Membership::Suspect { process: suspected, incarnation: 0 };
        let followed = view_behind(Config::evenly(3, 2).expect("a ring"), suspicion);
        let contracts_at = |without: std::ops::Range<u64>, leader: Option<ProcessId>| {
            let mut watch = Watch::new(WatchOptions {
                beside: Some(ROUTER),
                contract_after_ms: Some(20_000),
                ..options()
            });
            (0..60_000).step_by(100).find(|now_ms| {
                let mut view = followed.clone();
                if without.contains(now_ms) {
                    view.leader = leader;
                }
                for process in [1, 2].map(ProcessId::storage) {
                    view.heartbeats.insert(process, Heartbeat { beats: *now_ms, ..Heartbeat::default() });
                }
                let steps = watch.look(*now_ms, &view, Busy { checkpoint: true, ..Busy::default() });
                steps.contains(&Step::Heal(Change::Contract { process: suspected }))
            })
        };
        assert_eq!(contracts_at(0..0, None), Some(20_000));
        assert_eq!(contracts_at(15_000..15_300, None), Some(20_000));
        assert_eq!(contracts_at(15_000..16_000, None), Some(36_000), "it was cut off");
        let other = Some(ProcessId::router(2));
        assert_eq!(contracts_at(15_000..15_100, other), Some(35_100), "others have watched");
    }

    /// That change may wait for who has to be suspected.
    #[test]
    fn who_is_silent_is_suspected_while_the_ring_is_being_changed() {
        let suspicion = Membership::Suspect { process: ProcessId::storage(4), incarnation: 0 };
        let mut view = view_behind(Config::evenly(4, 2).expect("a ring"), suspicion);
        let mut watch = Watch::new(options());
        let mut look = |now_ms, busy| {
            for process in [1, 3].map(ProcessId::storage) {
                view.heartbeats.insert(process, Heartbeat { beats: now_ms, ..Heartbeat::default() });
            }
            view.heartbeats.entry(ProcessId::storage(2)).or_default();
            watch.look(now_ms, &view, Busy { checkpoint: true, ..busy })
        };
        let change = Busy { change: true, ..Busy::default() };
        assert!((0..900).step_by(100).all(|now_ms| look(now_ms, change).is_empty()));
        let silence = Suspicion { process: ProcessId::storage(2), incarnation: 0, symptom: Symptom::Silence };
        assert_eq!(look(900, change), [Step::Suspect(vec![silence])]);
        assert_eq!(look(1_000, Busy { suspicion: true, ..change }), [], "once");
    }

    #[test]
    fn what_has_been_logged_at_a_standby_makes_no_checkpoint_due() {
        let standby = ProcessId::storage(3);
        let join = Membership::Join { process: standby, incarnation: 1, address: None };
        let mut view = view_behind(Config::evenly(2, 1).expect("a ring"), join);
        let mut watch = Watch::new(options());
        let mut look = |now_ms, logged_by: ProcessId| {
            for number in 1..=3 {
                let process = ProcessId::storage(number);
                let logged = if process == logged_by { 1_000 } else { 0 };
                let heartbeat = Heartbeat { beats: now_ms, logged, ..Heartbeat::default() };
                view.heartbeats.insert(process, heartbeat);
            }
            watch.look(now_ms, &view, Busy { change: true, ..Busy::default() })
        };
        assert_eq!(look(70_000, standby), []);
        assert_eq!(look(70_100, ProcessId::storage(1)), [Step::Checkpoint { absent: Vec::new() }]);
    }
}
