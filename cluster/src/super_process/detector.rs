//! Failure detection by heartbeat (paper, section 5.1; DESIGN, decision 16), as a pure function of what was heard when.

use std::{borrow::Cow, collections::BTreeMap};

use carousel_engine::Ts;

use crate::{
    config::Config,
    message::{Incarnation, ProcessId},
    storage::disk::DiskState,
};

/// What has been heard of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Its life.
    pub incarnation: Incarnation,
    /// How many heartbeats have been counted. Only that it changes matters.
    pub beats: u64,
    /// It does nothing yet but load what it had: the most that lives since the last heartbeat have loaded. As long as that
    /// grows, it is not silent.
    pub loading: Option<u64>,
    /// How often it has said so.
    pub loadings: u64,
    /// It has everything before this on its disk.
    pub durable: Ts,
    /// Bytes of messages since its last checkpoint.
    pub logged: u64,
    /// Bytes of staged rows since its last checkpoint.
    pub staged: u64,
    /// Bytes that its rows take.
    pub used: u64,
    /// Whether it is writing a checkpoint.
    pub checkpointing: bool,
    /// Whether its disk takes any.
    pub disk: DiskState,
}

impl Heartbeat {
    /// Differs from what it was when the process has been heard since, and goes on.
    pub(super) fn pulse(&self) -> impl PartialEq + use<> {
        // Who ends while it loads, and is started again and again, comes to nothing.
        (self.loading.is_none().then_some(self.incarnation), self.beats, self.loading)
    }
}

/// Why a process is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// It has not been heard.
    Silence,
    /// It is heard, and its disk takes no checkpoints: what it keeps the routers from cutting fills their disks.
    DiskFails,
    /// One life after the other is heard and ends without a checkpoint: it comes to nothing, and the log grows.
    Ends,
}

/// A life that has to be suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspicion {
    /// The process.
    pub process: ProcessId,
    /// Its life, and all before it.
    pub incarnation: Incarnation,
    /// Why.
    pub symptom: Symptom,
}

/// How long a process may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Milliseconds of silence after which a process that has been heard is suspected.
    pub silent_ms: u64,
    /// The same for one that has not been heard yet: it may still be starting.
    pub starting_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sight {
    /// The life that the config knows.
    life: Option<Incarnation>,
    /// Of that life, or a later one.
    heartbeat: Option<Heartbeat>,
    at_ms: u64,
    /// When it was last of no use to suspect it: with whoever else has its rows it was silent, too.
    spared_ms: Option<u64>,
}

/// The lives of a process that have followed each other.
#[derive(Clone, Copy, Debug)]
struct Lives {
    incarnation: Incarnation,
    since_ms: u64,
    durable: Ts,
    /// How many have ended since one has come to something.
    ended: usize,
    /// Nobody else had its rows then: they may have been refused, as they came without them.
    alone: bool,
}

/// So many lives end before their process is suspected …
const LIVES: usize = 5;
/// … none of which has been there for so many milliseconds, or has made a checkpoint.
const WELL_MS: u64 = 60_000;

impl Lives {
    fn new(now_ms: u64, heartbeat: Heartbeat) -> Lives {
        let Heartbeat { incarnation, durable, .. } = heartbeat;
        Lives { incarnation, since_ms: now_ms, durable, ended: 0, alone: false }
    }

    /// Whether they come to nothing. The last one was last heard at `at_ms`.
    fn hear(&mut self, now_ms: u64, heartbeat: Heartbeat, at_ms: u64) -> bool {
        let is_well =
            heartbeat.incarnation == self.incarnation && at_ms.saturating_sub(self.since_ms) >= WELL_MS;
        if heartbeat.durable > self.durable || is_well {
            *self = Lives::new(now_ms, heartbeat);
        } else if heartbeat.incarnation > self.incarnation {
            let ended = self.ended + 1;
            *self =
                Lives { ended, durable: self.durable, alone: self.alone, ..Lives::new(now_ms, heartbeat) };
        }
        self.ended >= LIVES
    }
}

/// Watches the storage processes of a config.
#[derive(Debug)]
pub struct FailureDetector {
    patience: Patience,
    sights: BTreeMap<ProcessId, Sight>,
    lives: BTreeMap<ProcessId, Lives>,
    last_ms: Option<u64>,
}

impl FailureDetector {
    /// Begins to watch.
    pub fn new(patience: Patience) -> FailureDetector {
        FailureDetector { patience, sights: BTreeMap::new(), lives: BTreeMap::new(), last_ms: None }
    }

    /// Forgets what was heard: everybody gets a new chance. For when this process could not listen.
    pub fn reset(&mut self) {
        self.sights.clear();
        self.lives.clear();
        self.last_ms = None;
    }

    /// The lives that have to be suspected now.
    ///
    /// When more than half the patience has passed since the last look, this process itself was not running, and
    /// whatever was not heard meanwhile means nothing. Whose suspicion the config would refuse is not suspected: it is the
    /// last one that has the rows of a range. Nor is one whose disk fails, or that ends in each life, where no other that has
    /// them is there with a disk that is known to be sound: it would be of no use. Where all who have the rows of a process are
    /// silent, too, as when there is no power, nobody could go on without it, and its rows might be the only ones that come back: it
    /// has the time of one that starts from when one of the others is there again. Nor can anybody go on without it while the others
    /// load what they had, which may come to nothing.
    pub fn look(
        &mut self,
        now_ms: u64,
        config: &Config,
        heard: &BTreeMap<ProcessId, Heartbeat>,
    ) -> Vec<Suspicion> {
        if self.last_ms.is_some_and(|last| now_ms.saturating_sub(last) > self.patience.silent_ms / 2) {
            self.reset();
        }
        self.last_ms = Some(now_ms);
        let members: Vec<ProcessId> = config.live_storage().chain(config.standbys()).collect();
        self.sights.retain(|process, _| members.contains(process));
        self.lives.retain(|process, _| members.contains(process));
        let (mut silent, mut failing) = (Vec::new(), Vec::new());
        let (mut useless, mut loading) = (Vec::new(), Vec::new());
        for process in members {
            // The silence of an earlier life says nothing about one that has joined since.
            let life = config.incarnation(process);
            let heartbeat = heard.get(&process).copied().filter(|heard| Some(heard.incarnation) >= life);
            let fresh = Sight { life, heartbeat, at_ms: now_ms, spared_ms: None };
            let sight = self.sights.entry(process).or_insert(fresh);
            let pulse = |heartbeat: Option<Heartbeat>| heartbeat.map(|heartbeat| heartbeat.pulse());
            if sight.life != life {
                self.lives.remove(&process);
            }
            if sight.life != life || pulse(sight.heartbeat) != pulse(heartbeat) {
                *sight = fresh;
            }
            let ends = heartbeat.filter(|heartbeat| heartbeat.loading.is_none()).is_some_and(|heartbeat| {
                let lives = self.lives.entry(process).or_insert_with(|| Lives::new(now_ms, heartbeat));
                if !lives.hear(now_ms, heartbeat, sight.at_ms) {
                    return false;
                }
                let was_alone = std::mem::replace(&mut lives.alone, config.solely_held(process).is_some());
                if was_alone && !lives.alone {
                    *lives = Lives::new(now_ms, heartbeat);
                }
                lives.ended > 0
            });
            let patience = match sight.heartbeat {
                Some(_) => self.patience.silent_ms,
                None => self.patience.starting_ms,
            };
            let is_silent = now_ms - sight.at_ms > patience;
            if is_silent || ends || heartbeat.is_none_or(|heartbeat| heartbeat.disk != DiskState::Sound) {
                useless.push(process);
            }
            // Who has fallen silent while it loaded does so no more.
            if !is_silent && heartbeat.is_some_and(|heartbeat| heartbeat.loading.is_some()) {
                loading.push(process);
            }
            let incarnation = heartbeat.map_or(0, |heartbeat| heartbeat.incarnation);
            if is_silent {
                silent.push((process, incarnation));
            } else if heartbeat.is_some_and(|heartbeat| heartbeat.disk == DiskState::Failing) {
                failing.push(((process, incarnation), Symptom::DiskFails));
            } else if ends {
                failing.push(((process, incarnation), Symptom::Ends));
            }
        }
        let quiet: Vec<ProcessId> = silent.iter().map(|(process, _)| *process).collect();
        let is_heard = |sight: &Sight| now_ms - sight.at_ms <= self.patience.silent_ms / 2;
        let there: Vec<ProcessId> =
            self.sights.iter().filter(|(_, sight)| is_heard(sight)).map(|(process, _)| *process).collect();
        silent.retain(|(process, _)| {
            let held = config.held(*process);
            let others: Vec<ProcessId> = held.iter().flat_map(|range| config.live_holders(*range)).collect();
            let Some(sight) = self.sights.get_mut(process) else { return false };
            if !held.is_empty() && !others.iter().any(|other| there.contains(other)) {
                // Who was heard a little later may have fallen silent with it.
                if others.iter().all(|other| quiet.contains(other)) {
                    sight.spared_ms = Some(now_ms);
                }
                return false;
            }
            sight.spared_ms.is_none_or(|spared_ms| now_ms - spared_ms > self.patience.starting_ms)
        });
        let mut config = Cow::Borrowed(config);
        let mut suspected = Vec::new();
        // Not where only these, of whom nothing is to be expected yet, have the same rows.
        let mut suspect = |(process, incarnation), symptom, beside: &[ProcessId]| {
            if config.solely_held_beside(process, beside).is_some() {
                return;
            }
            let incarnation = config.incarnation(process).unwrap_or(0).max(incarnation);
            if let Ok(Some(next)) = config.suspect(process, incarnation, Ts::ZERO) {
                config = Cow::Owned(next);
                suspected.push(Suspicion { process, incarnation, symptom });
            }
        };
        for life in silent {
            suspect(life, Symptom::Silence, &loading);
        }
        for (life, symptom) in failing {
            suspect(life, symptom, &useless);
        }
        suspected
    }

    /// For how long a process has not been heard, if that is longer than it may take to start.
    pub fn silent_ms(&self, process: ProcessId) -> Option<u64> {
        let silent_ms = self.last_ms?.saturating_sub(self.sights.get(&process)?.at_ms);
        (silent_ms > self.patience.starting_ms).then_some(silent_ms)
    }

    /// Whether the process was heard within its patience, and does what it is there for.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        let recently = |sight: &Sight| {
            self.last_ms.is_some_and(|last| last.saturating_sub(sight.at_ms) <= self.patience.silent_ms)
        };
        let works = |sight: &Sight| sight.heartbeat.is_some_and(|heartbeat| heartbeat.loading.is_none());
        self.sights.get(&process).is_some_and(|sight| works(sight) && recently(sight))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use carousel_engine::Ts;

    use super::*;
    use crate::{
        config::{Change, Configuration, Membership},
        router::testing::configuration,
    };

    const PATIENCE: Patience = Patience { silent_ms: 1_000, starting_ms: 30_000 };

    struct Scene {
        detector: FailureDetector,
        config: Config,
        heard: BTreeMap<ProcessId, Heartbeat>,
        now_ms: u64,
    }

    impl Scene {
        fn new(processes: u32, replication: u32) -> Scene {
            let config = Config::evenly(processes, replication).expect("a ring");
            Scene { detector: FailureDetector::new(PATIENCE), config, heard: BTreeMap::new(), now_ms: 0 }
        }

        /// Some time in which these processes are heard; who is suspected in it.
        fn pass(&mut self, ms: u64, alive: &[u32]) -> Vec<(ProcessId, Incarnation)> {
            let suspected = self.pass_with_bad_disks(ms, alive, &[]);
            assert!(suspected.iter().all(|suspicion| suspicion.symptom == Symptom::Silence));
            suspected.into_iter().map(|suspicion| (suspicion.process, suspicion.incarnation)).collect()
        }

        /// The same, while the disks of some of them fail.
        fn pass_with_bad_disks(&mut self, ms: u64, alive: &[u32], failing: &[u32]) -> Vec<Suspicion> {
            let mut suspected = Vec::new();
            for _ in 0..ms / 100 {
                self.now_ms += 100;
                for number in alive {
                    let heartbeat = self.heard.entry(ProcessId::storage(*number)).or_default();
                    heartbeat.incarnation = 7;
                    heartbeat.beats += 1;
                    heartbeat.disk = match failing.contains(number) {
                        true => DiskState::Failing,
                        false => DiskState::Sound,
                    };
                }
                suspected.extend(self.detector.look(self.now_ms, &self.config, &self.heard));
            }
            suspected.dedup();
            suspected
        }
    }

    fn load(scene: &mut Scene, number: u32, loading: Option<u64>) {
        let process = ProcessId::storage(number);
        let beats = scene.heard[&process].beats;
        let heartbeat = Heartbeat { incarnation: 8, beats, loading, ..Heartbeat::default() };
        scene.heard.insert(process, heartbeat);
    }

    /// Of two that are silent one is enough, though each could go without the other.
    #[test]
    fn one_of_those_who_are_silent_is_spared_while_the_last_other_one_loads() {
        let mut scene = Scene::new(3, 3);
        assert_eq!(scene.pass(1_000, &[1, 2, 3]), []);
        let mut suspected = Vec::new();
        for progress in 0..80 {
            load(&mut scene, 1, Some(progress));
            suspected.extend(scene.pass(500, &[]));
        }
        suspected.dedup();
        assert_eq!(suspected, [(ProcessId::storage(2), 7)]);
    }

    #[test]
    fn who_dies_while_it_loads_is_suspected() {
        let mut scene = Scene::new(4, 2);
        assert_eq!(scene.pass(1_000, &[1, 2, 3, 4]), []);
        [1, 2].into_iter().for_each(|number| load(&mut scene, number, Some(5)));
        let suspected = scene.pass(5_000, &[3, 4]);
        assert_eq!(
            suspected,
            [(ProcessId::storage(1), 8)],
            "s2 is the last one that has the rows of one range"
        );
    }

    /// It may be the only one whose rows come back, and nobody goes on without it before.
    #[test]
    fn who_falls_silent_while_the_others_load_is_suspected_when_they_have_loaded() {
        for silent_ms in [0, 60_000] {
            let mut scene = Scene::new(2, 2);
            assert_eq!(scene.pass(1_000, &[1, 2]), []);
            assert_eq!(scene.pass(silent_ms, &[]), []);
            for progress in 0..80 {
                load(&mut scene, 1, Some(progress));
                assert_eq!(scene.pass(500, &[]), [], "{progress}");
            }
            load(&mut scene, 1, None);
            assert_eq!(scene.pass(2_000, &[1]), [(ProcessId::storage(2), 7)]);
        }
    }

    #[test]
    fn who_falls_silent_is_suspected_and_nobody_else() {
        let mut scene = Scene::new(4, 2);
        assert_eq!(scene.pass(5_000, &[1, 2, 3, 4]), []);
        assert_eq!(scene.pass(1_000, &[1, 2, 4]), []);
        assert!(scene.detector.is_alive(ProcessId::storage(1)));
        assert_eq!(scene.pass(300, &[1, 2, 4]), [(ProcessId::storage(3), 7)]);
        assert!(!scene.detector.is_alive(ProcessId::storage(3)));
        assert_eq!(scene.detector.silent_ms(ProcessId::storage(3)), None, "it may be starting");
        scene.pass(29_000, &[1, 2, 4]);
        assert_eq!(scene.detector.silent_ms(ProcessId::storage(3)), Some(30_300));
        assert_eq!(scene.detector.silent_ms(ProcessId::storage(1)), None);
        assert_eq!(scene.pass(200, &[1, 2, 3, 4]), []);
    }

    #[test]
    fn whose_disk_fails_is_suspected_where_somebody_elses_does_not() {
        let of = |suspected: Vec<Suspicion>| {
            let number = |suspicion: &Suspicion| (suspicion.process.number, suspicion.symptom);
            let mut numbers: Vec<_> = suspected.iter().map(number).collect();
            numbers.sort_unstable_by_key(|(number, _)| *number);
            numbers.dedup();
            numbers
        };
        let all = [1, 2, 3, 4];
        let mut scene = Scene::new(4, 2);
        assert_eq!(of(scene.pass_with_bad_disks(1_000, &all, &[])), []);
        assert_eq!(of(scene.pass_with_bad_disks(1_000, &all, &[3])), [(3, Symptom::DiskFails)]);
        // They have no range in common.
        let both = [(1, Symptom::DiskFails), (3, Symptom::DiskFails)];
        assert_eq!(of(scene.pass_with_bad_disks(1_000, &all, &[1, 3])), both);
        // Neighbours, and all.
        assert_eq!(of(scene.pass_with_bad_disks(1_000, &all, &[2, 3])), []);
        assert_eq!(of(scene.pass_with_bad_disks(1_000, &all, &all)), []);
        // Nobody has heard of the other one since the watch began anew.
        scene.detector.reset();
        scene.heard.remove(&ProcessId::storage(3));
        assert_eq!(of(scene.pass_with_bad_disks(2_000, &[1, 2, 4], &[2])), []);
        assert_eq!(of(scene.pass_with_bad_disks(500, &all, &[])), []);
        // The other holder is silent.
        assert_eq!(of(scene.pass_with_bad_disks(1_500, &[1, 2, 4], &[])), [(3, Symptom::Silence)]);
        assert_eq!(of(scene.pass_with_bad_disks(500, &[1, 2, 4], &[2])), [(3, Symptom::Silence)]);
    }

    #[test]
    fn who_has_not_been_heard_yet_has_time_to_start() {
        let mut scene = Scene::new(3, 2);
        assert_eq!(scene.pass(29_000, &[1, 2]), []);
        assert_eq!(scene.pass(2_000, &[1, 2]), [(ProcessId::storage(3), 0)]);
    }

    #[test]
    fn who_loads_what_it_had_is_not_silent_as_long_as_it_goes_on() {
        let process = ProcessId::storage(3);
        let mut scene = Scene::new(3, 2);
        scene.pass(1_000, &[1, 2, 3]);
        let loading =
            |progress| Heartbeat { incarnation: 8, loading: Some(progress), ..Heartbeat::default() };
        for progress in 0..20 {
            scene.heard.insert(process, loading(progress));
            assert_eq!(scene.pass(500, &[1, 2]), []);
            assert!(!scene.detector.is_alive(process), "it does nothing else yet");
        }
        // Its disk hangs.
        assert_eq!(scene.pass(2_000, &[1, 2]), [(process, 8)]);
        scene.heard.insert(process, loading(20));
        assert_eq!(scene.pass(500, &[1, 2]), []);
        // The next life does not come as far.
        scene.heard.insert(process, Heartbeat { incarnation: 9, ..loading(20) });
        assert_eq!(scene.pass(500, &[1, 2]), []);
        scene.heard.insert(process, Heartbeat { incarnation: 10, ..loading(20) });
        assert_eq!(scene.pass(500, &[1, 2]), [(process, 10)]);
        // When it has begun to work, its loading is no excuse any more.
        let beats = Heartbeat { incarnation: 10, beats: 11, ..Heartbeat::default() };
        scene.heard.insert(process, beats);
        assert_eq!(scene.pass(500, &[1, 2]), []);
        assert!(scene.detector.is_alive(process));
        assert_eq!(scene.pass(2_000, &[1, 2]), [(process, 10)]);
    }

    #[test]
    fn the_last_holder_of_a_range_is_not_suspected() {
        let mut scene = Scene::new(3, 2);
        scene.pass(1_000, &[1, 2, 3]);
        // Neighbours on the ring: one of two falls, for together they are all who hold a range.
        assert_eq!(scene.pass(2_000, &[1]), [(ProcessId::storage(2), 7)]);
        let mut scene = Scene::new(2, 1);
        scene.pass(1_000, &[1, 2]);
        assert_eq!(scene.pass(60_000, &[1]), []);
    }

    /// As when there is no power for a while.
    #[test]
    fn nobody_is_suspected_where_all_who_have_its_rows_are_silent() {
        let mut scene = Scene::new(4, 2);
        scene.pass(1_000, &[1, 2, 3, 4]);
        assert_eq!(scene.pass(60_000, &[]), []);
        let suspected: BTreeSet<u32> =
            scene.pass(60_000, &[1]).iter().map(|(process, _)| process.number).collect();
        assert_eq!(suspected, BTreeSet::from([2, 4]), "s3 alone has what it has together with s2 or s4");
        // Not all were heard in the same moment for the last time.
        let mut scene = Scene::new(4, 2);
        scene.pass(1_000, &[1, 2, 3, 4]);
        scene.pass(200, &[2, 4]);
        assert_eq!(scene.pass(60_000, &[]), []);
        // The others may need a little longer.
        let mut scene = Scene::new(4, 2);
        scene.pass(1_000, &[1, 2, 3, 4]);
        scene.pass(60_000, &[]);
        assert_eq!(scene.pass(20_000, &[1]), []);
        assert_eq!(scene.pass(60_000, &[1, 2, 3, 4]), []);
    }

    #[test]
    fn who_ends_in_one_life_after_the_other_is_suspected() {
        let process = ProcessId::storage(3);
        let live = |scene: &mut Scene, incarnation: Incarnation, ms: u64, durable| {
            let heartbeat = Heartbeat { incarnation, beats: 1, durable: Ts(durable), ..Heartbeat::default() };
            scene.heard.insert(process, heartbeat);
            scene
                .pass_with_bad_disks(ms, &[1, 2, 4], &[])
                .into_iter()
                .map(|found| found.symptom)
                .collect::<Vec<_>>()
        };
        let mut scene = Scene::new(4, 2);
        scene.pass(1_000, &[1, 2, 4]);
        for incarnation in 1..=5 {
            assert_eq!(live(&mut scene, incarnation, 500, 9), []);
        }
        // It has come to something.
        assert_eq!(live(&mut scene, 6, 500, 10), []);
        for incarnation in 7..=10 {
            assert_eq!(live(&mut scene, incarnation, 500, 10), []);
        }
        assert_eq!(live(&mut scene, 11, 500, 10), [Symptom::Ends]);
        // Lives that take long to begin.
        let mut scene = Scene::new(4, 2);
        scene.pass(1_000, &[1, 2, 4]);
        for incarnation in 1..=5 {
            assert_eq!(live(&mut scene, incarnation, 500, 9), []);
            for progress in 0..130 {
                let loading = Some(incarnation * 1_000 + progress);
                let heartbeat = Heartbeat { incarnation: incarnation + 1, loading, ..Heartbeat::default() };
                scene.heard.insert(process, heartbeat);
                assert_eq!(scene.pass(500, &[1, 2, 4]), []);
            }
        }
        assert_eq!(live(&mut scene, 6, 500, 9), [Symptom::Ends]);
        // Who alone has rows is waited for.
        let mut scene = Scene::new(4, 1);
        scene.pass(1_000, &[1, 2, 4]);
        for incarnation in 1..=20 {
            assert_eq!(live(&mut scene, incarnation, 500, 9), []);
        }
        // When others have them, too, it has a new chance.
        scene.config = Config::evenly(4, 2).expect("a ring");
        for incarnation in 21..=25 {
            assert_eq!(live(&mut scene, incarnation, 500, 9), []);
        }
        assert_eq!(live(&mut scene, 26, 500, 9), [Symptom::Ends]);
    }

    #[test]
    fn who_has_left_and_sends_the_last_copy_is_not_suspected() {
        let mut scene = Scene::new(2, 1);
        scene.pass(1_000, &[1, 2]);
        let process = ProcessId::storage(1);
        let keyspace = scene.config.plan(Change::Contract { process }).expect("a possible change");
        let message = configuration(ProcessId::client(1), 1, 1, Configuration::Keyspace(keyspace));
        scene.config = scene.config.apply(&message, Ts(5)).expect("possible").expect("it changes the config");
        assert_eq!(scene.pass(60_000, &[2]), []);
        let received = Configuration::Received { keyspace: Ts(5), process: ProcessId::storage(2) };
        let message = configuration(ProcessId::client(1), 1, 2, received);
        scene.config = scene.config.apply(&message, Ts(6)).expect("possible").expect("it changes the config");
        assert_eq!(scene.pass(60_000, &[2]), [(process, 7)]);
    }

    #[test]
    fn the_silence_of_a_life_says_nothing_about_the_next() {
        let process = ProcessId::storage(3);
        let mut scene = Scene::new(3, 2);
        scene.pass(1_000, &[1, 2, 3]);
        assert_eq!(scene.pass(1_300, &[1, 2]), [(process, 7)]);
        // It comes back before anybody has looked again.
        for membership in [
            Membership::Suspect { process, incarnation: 7 },
            Membership::Join { process, incarnation: 8, address: None },
        ] {
            let message = configuration(ProcessId::client(1), 1, 1, Configuration::Membership(membership));
            let next = scene.config.apply(&message, Ts(5)).expect("a possible request");
            scene.config = next.expect("it changes the config");
        }
        assert_eq!(scene.pass(5_000, &[1, 2]), []);
    }

    #[test]
    fn a_pause_of_the_watcher_is_nobodys_fault() {
        let mut scene = Scene::new(4, 2);
        scene.pass(1_000, &[1, 2, 3, 4]);
        scene.now_ms += 20_000;
        assert_eq!(scene.pass(500, &[]), []);
        assert_eq!(scene.pass(5_000, &[1, 2, 3, 4]), []);
    }
}
