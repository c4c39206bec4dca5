//! What a super process does about the suspected (DESIGN, decision 16): with a standby, replace by itself; without,
//! contract after a while. A pure function of the config.

use std::collections::BTreeMap;

use crate::{
    config::{Change, Config},
    message::ProcessId,
};

/// Chooses the changes that heal a ring.
#[derive(Debug)]
pub struct Healer {
    /// Milliseconds after which a suspected process without a successor leaves the ring; never, when `None`.
    contract_after_ms: Option<u64>,
    since_ms: BTreeMap<ProcessId, u64>,
}

impl Healer {
    /// A healer.
    pub fn new(contract_after_ms: Option<u64>) -> Healer {
        Healer { contract_after_ms, since_ms: BTreeMap::new() }
    }

    /// Forgets since when processes are suspected: somebody else heals now.
    pub fn reset(&mut self) {
        self.since_ms.clear();
    }

    /// The change to make now, if there is one. One change at a time: what is being copied is waited for, for a
    /// second change may need it.
    pub fn look(
        &mut self,
        now_ms: u64,
        config: &Config,
        is_alive: impl Fn(ProcessId) -> bool,
    ) -> Option<Change> {
        let suspected: Vec<ProcessId> =
            config.storage_processes().filter(|process| config.is_suspected(*process)).collect();
        self.since_ms.retain(|process, _| suspected.contains(process));
        for process in &suspected {
            self.since_ms.entry(*process).or_insert(now_ms);
        }
        if !config.migrations().is_empty() {
            return None;
        }
        let mut standbys: Vec<ProcessId> = config.standbys().filter(|standby| is_alive(*standby)).collect();
        for process in suspected {
            // Its own later life first: others are left for those that do not come back.
            standbys.sort_by_key(|standby| (*standby != process, *standby));
            let replace = standbys.iter().map(|standby| Change::Replace { process, by: *standby });
            let overdue =
                self.contract_after_ms.is_some_and(|after| now_ms - self.since_ms[&process] >= after);
            let contract = overdue.then_some(Change::Contract { process });
            // What is impossible, such as a change that leaves a range without a live sender, waits for better times.
            if let Some(change) = replace.chain(contract).find(|change| config.plan(*change).is_ok()) {
                return Some(change);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use carousel_engine::Ts;

    use super::*;
    use crate::{
        config::{Configuration, Membership},
        message::Incarnation,
        router::testing::configuration,
    };

    fn after(config: &Config, change: Configuration) -> Config {
        let message = configuration(ProcessId::client(1), 1, 1, change);
        config.apply(&message, Ts(5)).expect("a possible request").expect("it changes the config")
    }

    fn suspect(config: &Config, number: u32) -> Config {
        let process = ProcessId::storage(number);
        after(config, Configuration::Membership(Membership::Suspect { process, incarnation: 1 }))
    }

    fn join(config: &Config, number: u32, incarnation: Incarnation) -> Config {
        let process = ProcessId::storage(number);
        after(config, Configuration::Membership(Membership::Join { process, incarnation, address: None }))
    }

    #[test]
    fn a_standby_takes_the_place_of_the_suspected() {
        let healthy = join(&Config::evenly(4, 2).expect("a ring"), 7, 1);
        let mut healer = Healer::new(Some(60_000));
        assert_eq!(healer.look(0, &healthy, |_| true), None);
        let ill = suspect(&healthy, 2);
        let (process, by) = (ProcessId::storage(2), ProcessId::storage(7));
        assert_eq!(healer.look(0, &ill, |_| false), None, "the standby is not there");
        let change = healer.look(0, &ill, |_| true);
        assert_eq!(change, Some(Change::Replace { process, by }));
        let keyspace = ill.plan(change.expect("a change")).expect("a possible one");
        let healing = after(&ill, Configuration::Keyspace(keyspace));
        assert_eq!(healer.look(0, &suspect(&healing, 4), |_| true), None, "one change at a time");
        // Its own next life comes first.
        let back = join(&ill, 2, 2);
        assert_eq!(healer.look(0, &back, |_| true), Some(Change::Replace { process, by: process }));
    }

    #[test]
    fn without_a_standby_the_ring_contracts_in_the_end() {
        let ill = suspect(&Config::evenly(4, 2).expect("a ring"), 2);
        let mut healer = Healer::new(Some(60_000));
        assert_eq!(healer.look(1_000, &ill, |_| true), None);
        assert_eq!(healer.look(60_999, &ill, |_| true), None);
        let process = ProcessId::storage(2);
        assert_eq!(healer.look(61_000, &ill, |_| true), Some(Change::Contract { process }));
        assert_eq!(Healer::new(None).look(1 << 40, &ill, |_| true), None);
        let dead: BTreeSet<ProcessId> = [1, 2].map(ProcessId::storage).into();
        let (process, incarnation) = (ProcessId::storage(1), Incarnation::MAX);
        let dying = after(&ill, Configuration::Membership(Membership::Suspect { process, incarnation }));
        assert!(dead.iter().all(|process| dying.is_suspected(*process)));
        assert_eq!(healer.look(200_000, &dying, |_| true), None, "nobody has what both held");
    }
}
