//! What a super process does about the suspected (DESIGN, decision 16): with a standby, replace by itself; without,
//! contract after a while. A pure function of the config.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    config::{Change, Config, Migration, Transfer},
    message::{Incarnation, ProcessId},
};

/// Chooses the changes that heal a ring.
#[derive(Debug)]
pub struct Healer {
    /// Milliseconds after which a suspected process without a successor leaves the ring; never, when `None`.
    contract_after_ms: Option<u64>,
    since_ms: BTreeMap<ProcessId, u64>,
    /// The lives that were given an earlier one's place back, and when that was for the last time.
    given_back: BTreeMap<ProcessId, (BTreeSet<Incarnation>, u64)>,
}

/// Who has failed again in so many lives that had their place back is not the first choice for it any more …
const LIVES: usize = 3;
/// … unless it has been well for so many milliseconds.
const WELL_MS: u64 = 600_000;

impl Healer {
    /// A healer.
    pub fn new(contract_after_ms: Option<u64>) -> Healer {
        Healer { contract_after_ms, since_ms: BTreeMap::new(), given_back: BTreeMap::new() }
    }

    /// Forgets since when processes are suspected: somebody else heals now.
    pub fn reset(&mut self) {
        self.since_ms.clear();
        self.given_back.clear();
    }

    /// The change to make now, if there is one. One change at a time: what is being copied is waited for, for a
    /// second change may need it. Of several standbys it is one that has room for what the suspected is to hold, if there is one.
    pub fn look(
        &mut self,
        now_ms: u64,
        config: &Config,
        is_alive: impl Fn(ProcessId) -> bool,
        has_room: impl Fn(ProcessId, ProcessId) -> bool,
    ) -> Option<Change> {
        let suspected: Vec<ProcessId> =
            config.storage_processes().filter(|process| config.is_suspected(*process)).collect();
        self.since_ms.retain(|process, _| suspected.contains(process));
        for process in &suspected {
            self.since_ms.entry(*process).or_insert(now_ms);
        }
        self.given_back
            .retain(|process, (_, at_ms)| suspected.contains(process) || now_ms - *at_ms < WELL_MS);
        // What nobody is there to send may never come. It is not what other ranges have to wait for; nor is a receiver that is not
        // there and cannot be suspected.
        let is_sent = |transfer: &Transfer| transfer.senders.iter().any(|sender| is_alive(*sender));
        let goes_on = |transfer: &Transfer| {
            let comes = is_alive(transfer.to) || config.solely_held(transfer.to).is_none();
            is_sent(transfer) && comes
        };
        let is_under_way = |migration: &Migration| {
            // What is lost is not sent.
            let mut copied =
                migration.transfers.iter().filter(|transfer| transfer.lost.is_empty()).peekable();
            copied.peek().is_some() && copied.all(goes_on)
        };
        if config.migrations().values().any(is_under_way) {
            return None;
        }
        // Who waits for rows that nobody is there to send could not even be given up together with them.
        let is_possible = |change: &Change| {
            let planned = config.plan(*change).and_then(|keyspace| config.transfers(&keyspace));
            planned.is_ok_and(|transfers| transfers.iter().all(is_sent))
        };
        let standbys: Vec<ProcessId> = config.standbys().filter(|standby| is_alive(*standby)).collect();
        for process in suspected {
            // Its own later life first: others are left for those that do not come back.
            let fails = self.given_back.get(&process).is_some_and(|(lives, _)| lives.len() >= LIVES);
            let (own, others): (Vec<_>, Vec<_>) = standbys
                .iter()
                .map(|standby| Change::Replace { process, by: *standby })
                .partition(|change| matches!(change, Change::Replace { by, .. } if *by == process));
            let fits = |change: &Change| match change {
                Change::Replace { process, by } => has_room(*process, *by),
                _ => true,
            };
            let (roomy, small): (Vec<_>, Vec<_>) = others.into_iter().partition(fits);
            let overdue = |after| fails || now_ms - self.since_ms[&process] >= after;
            // A ring without anybody left to have copies gains nothing by being shorter, and nobody would take the place back.
            let overdue = self.contract_after_ms.is_some_and(overdue)
                && config.storage_processes().len() > config.replication() as usize;
            let contract = overdue.then_some(Change::Contract { process });
            let changes: Vec<Change> = match fails {
                true => roomy.into_iter().chain(contract).chain(small).chain(own).collect(),
                false => own.into_iter().chain(roomy).chain(contract).chain(small).collect(),
            };
            // What is impossible waits for better times.
            let Some(change) = changes.into_iter().find(is_possible) else { continue };
            if matches!(change, Change::Replace { by, .. } if by == process) {
                let (lives, at_ms) = self.given_back.entry(process).or_default();
                lives.extend(config.incarnation(process));
                *at_ms = now_ms;
            }
            return Some(change);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use carousel_engine::Ts;

    use super::*;
    use crate::{
        config::{Configuration, Membership},
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
        assert_eq!(healer.look(0, &healthy, |_| true, |_, _| true), None);
        let ill = suspect(&healthy, 2);
        let (process, by) = (ProcessId::storage(2), ProcessId::storage(7));
        assert_eq!(healer.look(0, &ill, |_| false, |_, _| true), None, "the standby is not there");
        let change = healer.look(0, &ill, |_| true, |_, _| true);
        assert_eq!(change, Some(Change::Replace { process, by }));
        let keyspace = ill.plan(change.expect("a change")).expect("a possible one");
        let healing = after(&ill, Configuration::Keyspace(keyspace));
        assert_eq!(
            healer.look(0, &suspect(&healing, 4), |_| true, |_, _| true),
            None,
            "one change at a time"
        );
        // Its own next life comes first.
        let back = join(&ill, 2, 2);
        assert_eq!(
            healer.look(0, &back, |_| true, |_, _| true),
            Some(Change::Replace { process, by: process })
        );
    }

    #[test]
    fn a_standby_with_room_is_preferred() {
        let process = ProcessId::storage(2);
        let ill = suspect(&Config::evenly(4, 2).expect("a ring"), 2);
        let [small, roomy] = [7, 8].map(ProcessId::storage);
        let healed = |config: &Config, after_ms: Option<u64>| {
            let mut healer = Healer::new(after_ms);
            healer.look(0, config, |_| true, |_, by| by != small)
        };
        let with_small = join(&ill, 7, 1);
        let by_small = Some(Change::Replace { process, by: small });
        assert_eq!(healed(&with_small, Some(60_000)), by_small, "what fits is better than nothing");
        assert_eq!(healed(&with_small, Some(0)), Some(Change::Contract { process }));
        let with_both = join(&with_small, 8, 1);
        assert_eq!(healed(&with_both, Some(0)), Some(Change::Replace { process, by: roomy }));
    }

    /// It would be no shorter way to as many copies as before, and its next life could not have the place.
    #[test]
    fn a_ring_of_no_more_than_there_are_copies_waits() {
        let ill = suspect(&Config::evenly(2, 2).expect("a ring"), 2);
        let mut healer = Healer::new(Some(1));
        assert_eq!(healer.look(0, &ill, |_| true, |_, _| true), None);
        assert_eq!(healer.look(100_000, &ill, |_| true, |_, _| true), None);
    }

    #[test]
    fn who_fails_in_one_life_after_the_other_is_replaced_by_somebody_else() {
        let process = ProcessId::storage(2);
        let mut healer = Healer::new(Some(60_000));
        let ill = suspect(&Config::evenly(4, 2).expect("a ring"), 2);
        for life in 2..5 {
            let back = join(&ill, 2, life);
            let change = healer.look(life * 1_000, &back, |_| true, |_, _| true);
            assert_eq!(change, Some(Change::Replace { process, by: process }));
        }
        let back = join(&ill, 2, 5);
        assert_eq!(healer.look(6_000, &back, |_| true, |_, _| true), Some(Change::Contract { process }));
        let (with_other, by) = (join(&back, 7, 1), ProcessId::storage(7));
        assert_eq!(
            healer.look(6_000, &with_other, |_| true, |_, _| true),
            Some(Change::Replace { process, by })
        );
        // It has been well for long.
        assert_eq!(
            healer.look(2 * WELL_MS, &Config::evenly(4, 2).expect("a ring"), |_| true, |_, _| true),
            None
        );
        let change = healer.look(2 * WELL_MS, &with_other, |_| true, |_, _| true);
        assert_eq!(change, Some(Change::Replace { process, by: process }));
    }

    #[test]
    fn what_nobody_can_send_does_not_keep_other_ranges_from_healing() {
        let ring = join(&join(&Config::evenly(6, 2).expect("a ring"), 7, 1), 8, 1);
        let ill = suspect(&ring, 2);
        let (process, by) = (ProcessId::storage(2), ProcessId::storage(7));
        let keyspace = ill.plan(Change::Replace { process, by }).expect("a possible change");
        let receiving = suspect(&after(&ill, Configuration::Keyspace(keyspace)), 5);
        let mut healer = Healer::new(None);
        assert_eq!(healer.look(0, &receiving, |_| true, |_, _| true), None, "it is sent");
        let senders = receiving.migrations().values().flat_map(|migration| &migration.transfers);
        let senders: BTreeSet<ProcessId> = senders.flat_map(|transfer| transfer.senders.clone()).collect();
        let (process, by) = (ProcessId::storage(5), ProcessId::storage(8));
        let change = healer.look(0, &receiving, |process| !senders.contains(&process), |_, _| true);
        assert_eq!(change, Some(Change::Replace { process, by }));
    }

    #[test]
    fn a_receiver_that_is_not_there_and_cannot_be_suspected_is_not_waited_for() {
        let ring = join(&join(&Config::evenly(6, 2).expect("a ring"), 7, 1), 8, 1);
        let (s5, s7, s8) = (ProcessId::storage(5), ProcessId::storage(7), ProcessId::storage(8));
        let identifier = ring.best_place(s7).expect("a place");
        let keyspace = ring.plan(Change::Expand { process: s7, identifier }).expect("a possible change");
        let expanded = after(&ring, Configuration::Keyspace(keyspace));
        // It alone is left to hold some of what others are to send to it.
        let without = |number| suspect(&suspect(&expanded, 5), number);
        let mut ill = [1, 2, 3].map(without).into_iter().filter(|ill| ill.solely_held(s7).is_some());
        let ill = ill.next().expect("somebody holds it, too");
        let mut healer = Healer::new(None);
        assert_eq!(healer.look(0, &ill, |_| true, |_, _| true), None, "it receives");
        let change = healer.look(0, &ill, |process| process != s7, |_, _| true);
        assert_eq!(change, Some(Change::Replace { process: s5, by: s8 }));
    }

    #[test]
    fn nobody_is_to_receive_what_nobody_is_there_to_send() {
        let ill = join(&suspect(&Config::evenly(4, 2).expect("a ring"), 2), 7, 1);
        let mut healer = Healer::new(Some(0));
        // It alone has what both had: it may come back, or be given up.
        assert_eq!(healer.look(0, &ill, |process| process != ProcessId::storage(3), |_, _| true), None);
        let (process, by) = (ProcessId::storage(2), ProcessId::storage(7));
        assert_eq!(healer.look(0, &ill, |_| true, |_, _| true), Some(Change::Replace { process, by }));
    }

    #[test]
    fn without_a_standby_the_ring_contracts_in_the_end() {
        let ill = suspect(&Config::evenly(4, 2).expect("a ring"), 2);
        let mut healer = Healer::new(Some(60_000));
        assert_eq!(healer.look(1_000, &ill, |_| true, |_, _| true), None);
        assert_eq!(healer.look(60_999, &ill, |_| true, |_, _| true), None);
        let process = ProcessId::storage(2);
        assert_eq!(healer.look(61_000, &ill, |_| true, |_, _| true), Some(Change::Contract { process }));
        assert_eq!(Healer::new(None).look(1 << 40, &ill, |_| true, |_, _| true), None);
        let dead: BTreeSet<ProcessId> = [1, 2].map(ProcessId::storage).into();
        let (process, incarnation) = (ProcessId::storage(1), Incarnation::MAX);
        let dying = after(&ill, Configuration::Membership(Membership::Suspect { process, incarnation }));
        assert!(dead.iter().all(|process| dying.is_suspected(*process)));
        assert_eq!(healer.look(200_000, &dying, |_| true, |_, _| true), None, "nobody has what both held");
    }
}
