//! Who the routers are: a function of the routers' log, beside the m-seq and independent of who stands on the ring.
//!
//! The description of a cluster names its first routers. Others are added and removed while it runs: a change is an
//! entry of the Raft log (joint consensus), and who has learned it counts up the *version* of the list. Lists travel to
//! all processes, which dial the new routers and forget the removed ones; the newest that anybody knows is the right one.
//! A number is never given twice: a removed router that comes back must not be taken for another.
//!
//! The first thing that the first leader does is to draw the cluster's *number*, as a part of the list. By it processes of
//! an earlier cluster of the same name and shape, which still run, are known: whoever has learned the number of its own
//! cluster talks to nobody who belongs to another, and believes no list of another. It is learned from routers only; before, what
//! others say is where routers may be looked for, beside those of the description.

pub(crate) mod change;
pub(crate) mod store;

pub use change::MOST_ROUTERS;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use serde::{Deserialize, Serialize};

use crate::message::{ProcessId, ProcessKind};

/// A router of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterEntry {
    /// Its number.
    pub number: u32,
    /// Where (host:port) it listens; empty for one of the first routers, whose address is in the description.
    pub address: String,
    /// Whether it counts for a quorum. One that was added does not until it has caught up.
    pub votes: bool,
}

/// Which of all lists of routers one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edition {
    /// The number of the cluster, if it is known.
    pub cluster: Option<u64>,
    /// Greater than that of every earlier list of the cluster; 0 for the description's.
    pub version: u64,
}

impl Edition {
    /// Whether whoever has this list is to take the other one in its place.
    pub fn yields_to(self, told: Edition) -> bool {
        match (self.cluster, told.cluster) {
            // Whatever was believed before came from somebody who may belong to an earlier cluster.
            (None, Some(_)) => true,
            (own, other) => own == other && told.version > self.version,
        }
    }

    /// Whether they are known to be of different clusters.
    pub fn is_foreign(self, other: Edition) -> bool {
        self.cluster.is_some() && other.cluster.is_some() && self.cluster != other.cluster
    }
}

/// The routers of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routers {
    /// The number of the cluster. It fits into an `i64`, for TOML's sake.
    cluster: Option<u64>,
    /// Greater than that of every earlier list; 0 for the description's.
    version: u64,
    /// Ascending by number.
    entries: Vec<RouterEntry>,
    removed: BTreeSet<u32>,
}

impl Routers {
    /// The routers that a description names: numbers 1 to `count`.
    pub fn first(count: u32) -> Routers {
        let entry = |number| RouterEntry { number, address: String::new(), votes: true };
        let entries = (1..=count).map(entry).collect();
        Routers { cluster: None, version: 0, entries, removed: BTreeSet::new() }
    }

    /// The list after a change: who is in none of the lists any more has been removed. The number of the cluster stays as it
    /// is once it has been drawn.
    pub(crate) fn changed(&self, version: u64, cluster: Option<u64>, entries: Vec<RouterEntry>) -> Routers {
        assert!(version > self.version || self.version == 0, "a change of the routers is learned once");
        assert!(entries.windows(2).all(|pair| pair[0].number < pair[1].number), "a router twice");
        assert!(self.cluster.is_none() || self.cluster == cluster, "a cluster has one number");
        let mut removed = self.removed.clone();
        removed.extend(self.entries.iter().map(|entry| entry.number));
        entries.iter().for_each(|entry| {
            removed.remove(&entry.number);
        });
        Routers { cluster, version, entries, removed }
    }

    /// Which list it is: newer ones have greater versions.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Which list it is, also among those of other clusters.
    pub fn edition(&self) -> Edition {
        Edition { cluster: self.cluster, version: self.version }
    }

    /// This list without the number of the cluster, as whoever told it may belong to an earlier one.
    pub(crate) fn into_hearsay(mut self) -> Routers {
        self.cluster = None;
        self
    }

    /// Whether nothing is known yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them, those that do not vote yet included.
    pub fn entries(&self) -> &[RouterEntry] {
        &self.entries
    }

    /// The router of a number.
    pub fn entry(&self, number: u32) -> Option<&RouterEntry> {
        self.entries.iter().find(|entry| entry.number == number)
    }

    /// The routers that vote: one of them leads.
    pub fn voters(&self) -> impl Iterator<Item = ProcessId> {
        self.entries.iter().filter(|entry| entry.votes).map(|entry| ProcessId::router(entry.number))
    }

    /// Whether a router, or the super process beside one, is part of the cluster.
    pub fn contains(&self, process: ProcessId) -> bool {
        matches!(process.kind, ProcessKind::Router | ProcessKind::Super)
            && self.entry(process.number).is_some()
    }

    /// Whether a router was part of the cluster and is not any more.
    pub fn is_removed(&self, process: ProcessId) -> bool {
        matches!(process.kind, ProcessKind::Router | ProcessKind::Super)
            && self.removed.contains(&process.number)
    }

    /// The numbers of all routers, also of those that have been removed.
    pub(crate) fn known_numbers(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.number).chain(self.removed.iter().copied())
    }

    /// A number that no router has had.
    pub(crate) fn next_number(&self) -> u32 {
        let last = self.entries.last().map_or(0, |entry| entry.number);
        last.max(self.removed.last().copied().unwrap_or(0)) + 1
    }

    /// This list with the addresses that a description has for its first routers.
    pub fn resolved(&self, first: &BTreeMap<ProcessId, String>) -> Routers {
        let mut resolved = self.clone();
        for entry in resolved.entries.iter_mut().filter(|entry| entry.address.is_empty()) {
            entry.address = first.get(&ProcessId::router(entry.number)).cloned().unwrap_or_default();
        }
        resolved
    }

    /// As the part `current` of a cluster's description in TOML.
    pub fn to_toml(&self) -> String {
        let cluster = self.cluster.map(|number| format!("cluster = {number}\n")).unwrap_or_default();
        let mut text = format!(
            "\n# The routers that the cluster has now.\n[current]\n{cluster}version = {}\nremoved = {:?}\n",
            self.version,
            self.removed.iter().collect::<Vec<_>>()
        );
        for RouterEntry { number, address, votes } in &self.entries {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "[[current.entries]]\nnumber = {number}\naddress = {address:?}\nvotes = {votes}\n"
            );
        }
        text
    }
}

/// How the removal of a router is told, to it and to whoever asks.
pub fn removed(router: ProcessId) -> String {
    format!("router {router} has been removed from the cluster; a new one needs a new number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_once() {
        let first = Routers::first(3);
        let entry = |number: u32| RouterEntry { number, address: format!("h:{number}"), votes: true };
        let grown = first.changed(5, Some(77), vec![entry(1), entry(2), entry(3), entry(4)]);
        let shrunk = grown.changed(9, Some(77), vec![entry(1), entry(3)]);
        assert!(shrunk.is_removed(ProcessId::router(4)) && shrunk.is_removed(ProcessId::super_process(2)));
        assert!(!shrunk.is_removed(ProcessId::router(3)) && !shrunk.is_removed(ProcessId::storage(2)));
        assert_eq!((first.next_number(), grown.next_number(), shrunk.next_number()), (4, 5, 5));
        assert_eq!(shrunk.voters().collect::<Vec<_>>(), [ProcessId::router(1), ProcessId::router(3)]);
    }

    #[test]
    fn a_list_is_believed_when_it_is_newer_and_of_no_other_cluster() {
        let edition = |cluster, version| Edition { cluster, version };
        let (unknown, own, other) = (None, Some(7), Some(8));
        assert!(edition(unknown, 0).yields_to(edition(unknown, 1)));
        assert!(edition(own, 3).yields_to(edition(own, 4)) && !edition(own, 3).yields_to(edition(own, 3)));
        assert!(edition(unknown, 57).yields_to(edition(own, 3)), "what was hearsay");
        assert!(!edition(own, 3).yields_to(edition(unknown, 57)), "hearsay");
        assert!(!edition(own, 3).yields_to(edition(other, 57)));
        assert!(
            edition(own, 3).is_foreign(edition(other, 3)) && !edition(own, 3).is_foreign(edition(own, 4))
        );
        assert!(!edition(own, 3).is_foreign(edition(unknown, 57)));
    }

    #[test]
    fn addresses_of_the_first_are_those_of_the_description() {
        let known = [(ProcessId::router(1), "here:1".to_owned())].into();
        let resolved = Routers::first(2).resolved(&known);
        assert_eq!(resolved.entries()[0].address, "here:1");
        assert_eq!(resolved.entries()[1].address, "");
    }
}
