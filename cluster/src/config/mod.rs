//! Rubberband's Config module: who holds what, and where a message goes (paper, sections 6.2 to 6.4, Algorithm 3).
//!
//! Storage processes stand on a ring at their identifiers. The keys from one identifier up to the next are the
//! *primary range* of the process at the former, and its `f - 1` successors hold replicas (successor replication):
//!
//! ```text
//!   identifier    0         1/4        1/2        3/4
//!   process       s1        s2         s3         s4
//!   range         |--- a ---|--- b ---|--- c ---|--- d ---|     f = 2
//!   holders          s1 s2     s2 s3     s3 s4     s4 s1
//! ```
//!
//! A write goes to every holder of every primary range that it overlaps, a read to a smallest possible set of
//! processes that together hold all of them (ROWA, `cover`). Configuration messages (`messages`) change the
//! ring (`placement`); a keyspace message carries the instructions that follow from it (`instructions`,
//! `optimiser`). All functions are pure: whoever has learned the same m-seq has the same config and computes the same
//! destinations.
//!
//! Where this departs from Algorithm 3:
//! * Destinations come with the primary ranges they act on, because replication, voting and counting are by primary
//!   range (DESIGN, decision 3).
//! * A process is named as suspected, rather than forgotten, as long as it stands on the ring, so that a range without
//!   a live replica can be recognised; and of every suspected process the incarnation is remembered, so that its
//!   messages have no effect while a later incarnation can join.
//! * A client or super process becomes a member when it subscribes, not by a configuration message; its messages count
//!   as long as it is not suspected.
//! * Everybody who follows the config gets every configuration message, affected or not: storage processes vote with
//!   the holders of any range, and clients stage data at them. An impossible or stale request has no effect, and every
//!   follower finds the same error.
//! * Copies that keyspace messages have asked for are part of the config until they are complete, because reads avoid
//!   the processes that are busy with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use carousel_engine::{
    Few, Ts,
    position::{KeyRange, Position, boundaries, covers, cut, intersect, normalise},
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

mod cover;
mod error;
mod history;
mod instructions;
mod messages;
mod optimiser;
mod placement;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod traces;

pub use error::ConfigError;
pub use history::History;
pub use messages::{Change, Configuration, Instruction, Keyspace, Membership};
pub use optimiser::{Rank, Solution};

use crate::message::{Body, Incarnation, Message, MessageId, ProcessId, ProcessKind};
use cover::Class;
use instructions::Implied;
use placement::{Node, Placement, Touched};

/// One version of the routing state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    version: u64,
    placement: Arc<Placement>,
    /// Storage processes that stand at no identifier.
    standbys: BTreeMap<ProcessId, Incarnation>,
    clients: BTreeMap<ProcessId, Incarnation>,
    supers: BTreeMap<ProcessId, Incarnation>,
    /// The last incarnation of each process that has been suspected.
    fenced: BTreeMap<ProcessId, Incarnation>,
    /// Keyspace messages whose copies are not complete, by their `Ts`.
    migrations: BTreeMap<Ts, Migration>,
    /// Where processes listen that the first description does not know.
    addresses: BTreeMap<ProcessId, String>,
    /// `Ts` of the last message that has changed it.
    changed_at: Ts,
}

/// A keyspace message that is being carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// What it changed.
    pub change: Change,
    /// Its copies that are not complete.
    pub copies: Vec<Instruction>,
    /// What is received by them, and what has been begun without rows and is not known to be durable.
    pub transfers: Vec<Transfer>,
    /// Who holds nothing behind it but what it moves there: a life of it without data can begin just before it.
    anew: BTreeSet<ProcessId>,
}

impl Migration {
    /// Whether a process is to receive something.
    pub(crate) fn has_for(&self, process: ProcessId) -> bool {
        self.transfers.iter().any(|transfer| transfer.to == process)
    }

    /// Who holds nothing behind it but what it moves there.
    pub(crate) fn anew(&self) -> impl Iterator<Item = ProcessId> {
        self.anew.iter().copied()
    }

    /// The senders and receivers of copies that are not complete, with their ranges.
    fn under_way(&self) -> impl Iterator<Item = (ProcessId, ProcessId, &[KeyRange])> {
        self.copies.iter().filter_map(|instruction| match instruction {
            Instruction::Copy { from, to, ranges } => Some((*from, *to, &ranges[..])),
            Instruction::Delete { .. } | Instruction::Lose { .. } => None,
        })
    }

    /// The receiver of a range is without its rows; if nobody sends it anything in their place, it begins so.
    fn lose(&mut self, process: ProcessId, lost: KeyRange, ts: Ts) {
        let concerns = |transfer: &&mut Transfer| transfer.to == process && transfer.range.overlaps(&lost);
        let mut is_sent = false;
        for transfer in self.transfers.iter_mut().filter(concerns) {
            transfer.lost.push((lost, ts));
            is_sent |= !transfer.senders.is_empty();
        }
        if is_sent {
            return;
        }
        let boundaries = boundaries(&[lost]);
        for copy in &mut self.copies {
            if let Instruction::Copy { to, ranges, .. } = copy
                && *to == process
            {
                let parts = ranges.iter().flat_map(|range| cut(*range, &boundaries));
                *ranges = normalise(parts.filter(|part| !part.overlaps(&lost)).collect());
            }
        }
        self.copies.retain(|copy| !copy.ranges().is_empty());
        self.name_senders();
    }

    /// Names in copies whom the receivers ask now.
    fn name_senders(&mut self) {
        for copy in &mut self.copies {
            let Instruction::Copy { from, to, ranges } = copy else { continue };
            let of = |transfer: &&Transfer| transfer.to == *to && ranges[0].contains(transfer.range.first);
            let left = self.transfers.iter().find(of).map_or(&[][..], |transfer| &transfer.senders);
            if let Some(first) = left.first().filter(|_| !left.contains(from)) {
                *from = *first;
            }
        }
    }
}

/// What a process has to do without that it was to receive, as all who had it have been given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Who.
    pub(crate) process: ProcessId,
    /// `Ts` of the keyspace message.
    pub(crate) keyspace: Ts,
    /// Of what it moves: what lies in this range.
    pub(crate) range: KeyRange,
}

/// A key range that a process receives because of a keyspace message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The receiver.
    pub to: ProcessId,
    /// The range; it lies in one primary range before the message and in one after it.
    pub range: KeyRange,
    /// Who can send it: first the one that the instructions name, then the other live holders in the order of the ring. Nobody,
    /// when its rows are lost.
    pub senders: Vec<ProcessId>,
    /// What of it is lost, and the `Ts` of the messages by which it was: the receiver has no such rows as there were before.
    pub lost: Vec<(KeyRange, Ts)>,
}

impl Transfer {
    /// Whether somebody waits for it in vain.
    fn is_stranded(&self) -> bool {
        let lost: Vec<KeyRange> = self.lost.iter().map(|(range, _)| *range).collect();
        self.senders.is_empty() && !covers(&normalise(lost), &[self.range])
    }
}

impl Config {
    /// The first config: `processes` storage processes `s1`, `s2`, … at evenly spaced identifiers beginning with 0.
    ///
    /// # Errors
    /// When there is no process, or fewer than the replication factor.
    pub fn evenly(processes: u32, replication: u32) -> Result<Self, ConfigError> {
        let ring = (0..processes).map(|i| {
            let identifier = (u128::from(i) << 64) / u128::from(processes);
            (identifier as Position, ProcessId::storage(i + 1))
        });
        let config = Self::new(ring, replication)?;
        if replication > processes {
            let processes = processes as usize;
            return Err(ConfigError::Replication { factor: replication, processes });
        }
        Ok(config)
    }

    /// The first config, with the given identifiers. As long as there are fewer processes than the replication factor
    /// says, every process holds everything.
    ///
    /// # Errors
    /// When there is no process, or a process or identifier twice, or a replication factor of 0.
    pub fn new(
        ring: impl IntoIterator<Item = (Position, ProcessId)>,
        replication: u32,
    ) -> Result<Self, ConfigError> {
        let node = |(identifier, process)| Node { identifier, process, incarnation: 0, suspected: false };
        let placement = Placement::new(ring.into_iter().map(node).collect(), replication)?;
        Ok(Config {
            version: 1,
            placement: Arc::new(placement),
            standbys: BTreeMap::new(),
            clients: BTreeMap::new(),
            supers: BTreeMap::new(),
            fenced: BTreeMap::new(),
            migrations: BTreeMap::new(),
            addresses: BTreeMap::new(),
            changed_at: Ts::ZERO,
        })
    }

    /// Counts changes of the placement, of the suspected processes on the ring, and of those there that begin without data.
    /// Other processes come and go without a new version, for nothing that was planned depends on them.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replication factor `f`.
    pub fn replication(&self) -> u32 {
        self.placement.replication()
    }

    /// Storage processes on the ring, in the order of their identifiers.
    pub fn storage_processes(&self) -> impl ExactSizeIterator<Item = ProcessId> {
        self.placement.nodes().iter().map(|node| node.process)
    }

    /// Those of them that are not suspected.
    pub fn live_storage(&self) -> impl Iterator<Item = ProcessId> {
        self.placement.nodes().iter().filter(|node| !node.suspected).map(|node| node.process)
    }

    /// The ring: identifiers, ascending, and the processes that stand there.
    pub fn ring(&self) -> impl ExactSizeIterator<Item = (Position, ProcessId)> {
        self.placement.nodes().iter().map(|node| (node.identifier, node.process))
    }

    /// The middle of the widest primary partition: where a further process takes the largest share.
    pub fn widest_gap(&self) -> Position {
        self.widest_gap_without(None)
    }

    /// The same, were a process not there: where it would best stand.
    ///
    /// # Errors
    /// When it stands there.
    pub fn best_place(&self, process: ProcessId) -> Result<Position, ConfigError> {
        let best = self.widest_gap_without(Some(process));
        match self.ring().any(|place| place == (best, process)) {
            true => Err(ConfigError::Balanced(process)),
            false => Ok(best),
        }
    }

    fn widest_gap_without(&self, process: Option<ProcessId>) -> Position {
        let nodes = self.placement.nodes().iter().filter(|node| Some(node.process) != process);
        let identifiers: Vec<Position> = nodes.map(|node| node.identifier).collect();
        let width = |index: usize| {
            let next = identifiers[(index + 1) % identifiers.len()];
            // All of the ring, when there is one process.
            next.wrapping_sub(identifiers[index]).wrapping_sub(1)
        };
        let widest = (0..identifiers.len()).max_by_key(|index| (width(*index), std::cmp::Reverse(*index)));
        widest.map_or(0, |index| identifiers[index].wrapping_add(width(index) / 2 + 1))
    }

    /// This config with another standby, and which: to see what would be possible with one.
    pub(crate) fn with_another_standby(&self) -> (Config, ProcessId) {
        let known = self.storage_processes().chain(self.standbys()).map(|process| process.number).max();
        let another = ProcessId::storage(known.map_or(1, |number| number.saturating_add(1)));
        let mut next = self.clone();
        next.standbys.insert(another, Incarnation::MAX);
        (next, another)
    }

    /// Whether those who stay receive rows of other ranges, too, when a process leaves the ring.
    pub(crate) fn moves_rows_by_contractions(&self) -> bool {
        (2..self.placement.nodes().len()).contains(&self.placement.reach())
    }

    /// Where a live process has to stand to leave its primary partition to the process before it, but for one position;
    /// nothing when that changes nothing.
    ///
    /// Who contracts moves there first. In a contraction all holders of a range receive rows, if only of other ranges, so
    /// that nobody is left to answer for it meanwhile; in each of these two steps only one process receives more than
    /// that position.
    pub fn end_of_primary(&self, process: ProcessId) -> Option<Position> {
        let nodes = self.placement.nodes();
        let index = self.placement.index(process)?;
        let end = nodes[(index + 1) % nodes.len()].identifier.wrapping_sub(1);
        (self.moves_rows_by_contractions() && !nodes[index].suspected && nodes[index].identifier != end)
            .then_some(end)
    }

    /// Storage processes that stand at no identifier.
    pub fn standbys(&self) -> impl ExactSizeIterator<Item = ProcessId> {
        self.standbys.keys().copied()
    }

    /// Client processes.
    pub fn clients(&self) -> impl ExactSizeIterator<Item = ProcessId> {
        self.clients.keys().copied()
    }

    /// Super processes.
    pub fn supers(&self) -> impl ExactSizeIterator<Item = ProcessId> {
        self.supers.keys().copied()
    }

    /// Keyspace messages whose copies are not complete, by their `Ts`.
    pub fn migrations(&self) -> &BTreeMap<Ts, Migration> {
        &self.migrations
    }

    /// Where (host:port) processes listen that have joined with an address.
    pub fn addresses(&self) -> &BTreeMap<ProcessId, String> {
        &self.addresses
    }

    /// Whether the process stands on the ring.
    pub fn is_active(&self, process: ProcessId) -> bool {
        self.placement.index(process).is_some()
    }

    /// This config as one sees it who has no data: it holds nothing.
    pub fn without(&self, process: ProcessId) -> Config {
        let mut config = self.clone();
        let Some(index) = self.placement.index(process) else { return config };
        Arc::make_mut(&mut config.placement).suspect(index);
        config
    }

    /// Whether the process is part of the system.
    pub fn contains(&self, process: ProcessId) -> bool {
        match process.kind {
            ProcessKind::Storage => {
                self.placement.index(process).is_some() || self.standbys.contains_key(&process)
            }
            ProcessKind::Client => self.clients.contains_key(&process),
            ProcessKind::Super => self.supers.contains_key(&process),
            ProcessKind::Router => false,
        }
    }

    /// The incarnation of a storage process that the config knows of; 0 for one of the first config that has not said.
    pub fn incarnation(&self, process: ProcessId) -> Option<Incarnation> {
        let standby = self.standbys.get(&process).copied();
        standby.or_else(|| self.placement.node(process).map(|node| node.incarnation))
    }

    /// Whether the process is suspected of having failed, and no later incarnation of it has taken its place.
    pub fn is_suspected(&self, process: ProcessId) -> bool {
        match self.placement.node(process) {
            Some(node) => node.suspected,
            None => self.fenced.contains_key(&process) && !self.contains(process),
        }
    }

    /// The last life of a process that has been suspected, if one has.
    pub(crate) fn last_failed(&self, process: ProcessId) -> Option<Incarnation> {
        self.fenced.get(&process).copied()
    }

    /// Whether no life of a process can ever be part of the system again.
    pub(crate) fn is_given_up(&self, process: ProcessId) -> bool {
        self.fenced.get(&process) == Some(&Incarnation::MAX)
    }

    /// Whether a message of this identity has no effect, because its submitter's incarnation is suspected.
    pub fn is_fenced(&self, id: MessageId) -> bool {
        self.fenced.get(&id.submitter).is_some_and(|fenced| id.incarnation <= *fenced)
    }

    /// Whether a storage process sends or receives a copy that is not complete.
    pub fn is_busy(&self, process: ProcessId) -> bool {
        self.copies().any(|(from, to, _)| process == from || process == to)
    }

    /// The oldest keyspace message because of which a storage process still receives rows that it holds, or has to send on.
    pub(crate) fn receives_since(&self, process: ProcessId) -> Option<Ts> {
        let (held, sends) = (self.held(process), self.may_send(process));
        let counts = |range: &KeyRange| sends || held.iter().any(|held| held.overlaps(range));
        let mut received = self.transfers_under_way().filter(|(_, transfer)| transfer.to == process);
        received.find(|(_, transfer)| counts(&transfer.range)).map(|(ts, _)| ts)
    }

    /// Whether all that a storage process holds is still being copied to it.
    pub(crate) fn receives_everything(&self, process: ProcessId) -> bool {
        let held = self.held(process);
        let received = self.transfers_under_way().filter(|(_, transfer)| transfer.to == process);
        let received = normalise(received.map(|(_, transfer)| transfer.range).collect());
        !held.is_empty() && covers(&received, &held)
    }

    /// Whether all that a storage process holds, or alone is to send, is still being copied to it since it held nothing: then no
    /// life of it has anything that could be lost.
    pub(crate) fn has_received_nothing(&self, process: ProcessId) -> bool {
        self.begins_before(process).is_some()
    }

    /// The last keyspace message before which a life of a storage process without data can begin: it has held nothing since but
    /// what such messages move there, may not have received anything of it, and is needed for nothing that it had before.
    pub(crate) fn begins_before(&self, process: ProcessId) -> Option<Ts> {
        let mut sends = self.transfers_under_way().filter(|(_, transfer)| transfer.senders == [process]);
        let sends = sends.next().map_or(Ts::INFINITY, |(ts, _)| ts);
        let begun = self.migrations.range(..sends).rev();
        let mut begun = begun.filter(|(_, by)| by.anew.contains(&process) && by.has_for(process));
        begun.next().map(|(ts, _)| *ts)
    }

    /// Whether a storage process may still be asked for rows of a copy that is not complete.
    pub(crate) fn may_send(&self, process: ProcessId) -> bool {
        self.transfers_under_way().any(|(_, transfer)| transfer.senders.contains(&process))
    }

    /// What is to be received by copies that are not complete, with the `Ts` of its keyspace message.
    fn transfers_under_way(&self) -> impl Iterator<Item = (Ts, &Transfer)> {
        self.migrations
            .iter()
            .flat_map(|(ts, migration)| migration.transfers.iter().map(|transfer| (*ts, transfer)))
    }

    /// What is waited for though none of those who can send it is there: the range, and who they are.
    pub(crate) fn out_of_reach(
        &self,
        is_there: impl Fn(ProcessId) -> bool,
    ) -> impl Iterator<Item = (KeyRange, &[ProcessId])> {
        let sent = self.transfers_under_way().filter(|(_, transfer)| !transfer.senders.is_empty());
        let awaited =
            sent.filter(move |(_, transfer)| !transfer.senders.iter().any(|sender| is_there(*sender)));
        awaited.map(|(_, transfer)| (transfer.range, transfer.senders.as_slice()))
    }

    /// A range whose rows would be lost with a storage process: no other process that is alive holds it, or whoever receives it
    /// can receive it from nobody else. So every receiver can always go on, unless disks are lost.
    pub(crate) fn solely_held(&self, process: ProcessId) -> Option<KeyRange> {
        self.solely_held_beside(process, &[])
    }

    /// The same, were some of the others of no use.
    pub(crate) fn solely_held_beside(&self, process: ProcessId, useless: &[ProcessId]) -> Option<KeyRange> {
        let is_of_use = |other: &ProcessId| *other == process || !useless.contains(other);
        let is_live = |node: &&Node| !node.suspected;
        let is_sole = |(_, partition): &&(KeyRange, usize)| {
            let live = self.placement.holders(*partition).filter(is_live).map(|node| node.process);
            let mut live = live.filter(is_of_use);
            live.next() == Some(process) && live.next().is_none()
        };
        let held = self.placement.primary().iter().find(is_sole).map(|(range, _)| *range);
        let is_needed = |transfer: &&Transfer| {
            let mut senders = transfer.senders.iter().filter(|sender| is_of_use(sender));
            senders.next() == Some(&process) && senders.next().is_none()
        };
        let sent = || self.transfers_under_way().map(|(_, transfer)| transfer).find(is_needed);
        held.or_else(|| sent().map(|transfer| transfer.range))
    }

    /// What receivers have to do without if a message takes effect on this config, because it gives up who alone could send it.
    /// What they have executed of it since they were to receive it is lost, too.
    pub(crate) fn losses(&self, message: &Message) -> Vec<Loss> {
        match &message.body {
            Body::Configuration(Configuration::Membership(Membership::Suspect { process, incarnation }))
                if self.may_configure(message) && self.contains(*process) =>
            {
                self.losses_with(*process, *incarnation)
            }
            _ => Vec::new(),
        }
    }

    /// Who has failed when the lives of a storage process up to an incarnation have: that process first, then who waits in
    /// vain from then on.
    pub(crate) fn failing(&self, process: ProcessId, incarnation: Incarnation) -> Vec<ProcessId> {
        let (next, _) = self.failed(process, incarnation);
        let fails =
            |other: &ProcessId| *other != process && next.is_suspected(*other) && !self.is_suspected(*other);
        iter::once(process).chain(self.storage_processes().filter(fails)).collect()
    }

    /// The same, if it suspects a storage process.
    pub(crate) fn losses_with(&self, process: ProcessId, incarnation: Incarnation) -> Vec<Loss> {
        self.failed(process, incarnation).1
    }

    /// The config when the lives of a process up to an incarnation have failed; and if a storage process is given up by that,
    /// which may have what nobody else has, what is lost with it. Who waits for what others have, but nobody is left to send,
    /// has failed with it.
    fn failed(&self, process: ProcessId, incarnation: Incarnation) -> (Config, Vec<Loss>) {
        let mut next = self.clone();
        next.fail(process, incarnation);
        if process.kind != ProcessKind::Storage || incarnation < Incarnation::MAX {
            return (next, Vec::new());
        }
        let (before, stranded) = (self.in_vain(), self.stranded());
        loop {
            let losses: Vec<Loss> =
                next.stranded().into_iter().filter(|loss| !stranded.contains(loss)).collect();
            let is_left = |loss: &Loss| !before.contains(loss) && !losses.contains(loss);
            let Some(failed) = next.in_vain().into_iter().find(is_left) else { return (next, losses) };
            let life = next.incarnation(failed.process).unwrap_or_default();
            next.fail(failed.process, life);
        }
    }

    /// What is waited for though nobody is left to send it.
    fn in_vain(&self) -> Vec<Loss> {
        let stranded = self.transfers_under_way().filter(|(_, transfer)| transfer.is_stranded());
        let loss = |(keyspace, transfer): (Ts, &Transfer)| Loss {
            process: transfer.to,
            keyspace,
            range: transfer.range,
        };
        stranded.map(loss).collect()
    }

    /// What a process is without, and is not known to be so durably; since when, and whether it is sent anything in its place.
    pub(crate) fn lacked_by(&self, process: ProcessId) -> impl Iterator<Item = (Loss, Ts, bool)> {
        let received = self.transfers_under_way().filter(move |(_, transfer)| transfer.to == process);
        received.flat_map(move |(keyspace, transfer)| {
            let loss = move |range| Loss { process, keyspace, range };
            let is_sent = !transfer.senders.is_empty();
            transfer.lost.iter().map(move |(range, ts)| (loss(*range), *ts, is_sent))
        })
    }

    /// Whether a process is the last that could send just this.
    pub(crate) fn sends_alone(&self, process: ProcessId, loss: &Loss) -> bool {
        let transfers = self.migrations.get(&loss.keyspace).map(|migration| &migration.transfers[..]);
        transfers.unwrap_or_default().iter().any(|transfer| {
            (transfer.to, transfer.range) == (loss.process, loss.range) && transfer.senders == [process]
        })
    }

    /// What receivers wait for in vain, as nobody has it any more: nobody is left to send it, or only others who wait for it.
    ///
    /// Where somebody else does have a part of it, who waits for it has failed, and can receive it from there.
    fn stranded(&self) -> Vec<Loss> {
        let mut first = self.in_vain();
        while !first.is_empty() {
            let stranded = self.stranded_behind(&first);
            let before = first.len();
            first.retain(|loss| !self.has_another_holder(loss.range, &stranded));
            if first.len() == before {
                return stranded;
            }
        }
        first
    }

    /// With those who receive it only from such who wait for it in vain themselves.
    fn stranded_behind(&self, first: &[Loss]) -> Vec<Loss> {
        let mut stranded = first.to_vec();
        for (keyspace, transfer) in self.transfers_under_way() {
            let lacks = |sender: &ProcessId| {
                let earlier =
                    stranded.iter().filter(|loss| loss.process == *sender && loss.keyspace < keyspace);
                let lacked = normalise(earlier.map(|loss| loss.range).collect());
                intersect(&lacked, &[transfer.range])
            };
            let lacked = transfer.senders.iter().map(lacks).reduce(|some, others| intersect(&some, &others));
            let losses: Vec<Loss> = lacked
                .into_iter()
                .flatten()
                .map(|range| Loss { process: transfer.to, keyspace, range })
                .collect();
            stranded.extend(losses);
        }
        stranded
    }

    /// Whether somebody alive holds some part of a range who does not wait for it in vain.
    fn has_another_holder(&self, range: KeyRange, stranded: &[Loss]) -> bool {
        self.placement.touched(&[range]).into_iter().any(|(primary, partition)| {
            let part = KeyRange::new(primary.first.max(range.first), primary.last.min(range.last));
            let mut live = self.placement.holders(partition).filter(|node| !node.suspected);
            live.any(|node| {
                let mut lacked = stranded.iter().filter(|loss| loss.process == node.process);
                !lacked.any(|loss| loss.range.overlaps(&part))
            })
        })
    }

    /// What is still being copied to a storage process.
    fn received_by(&self, process: ProcessId) -> impl Iterator<Item = KeyRange> {
        let received = self.copies().filter(move |(_, to, _)| *to == process);
        received.flat_map(|(_, _, ranges)| ranges.iter().copied())
    }

    /// Whether some part of a range is still being copied to a storage process.
    fn receives(&self, process: ProcessId, range: KeyRange) -> bool {
        self.received_by(process).any(|received| received.overlaps(&range))
    }

    /// How many positions of a range are still being copied to a storage process.
    fn positions_received(&self, process: ProcessId, range: KeyRange) -> u128 {
        let overlapping = self.received_by(process).filter(|received| received.overlaps(&range));
        let positions = |received: KeyRange| {
            u128::from(received.last.min(range.last) - received.first.max(range.first)) + 1
        };
        overlapping.map(positions).sum()
    }

    /// Whether a storage process receives a copy that is not complete.
    pub fn is_receiving(&self, process: ProcessId) -> bool {
        self.copies().any(|(_, to, _)| process == to)
    }

    /// The primary ranges, ascending; together the whole ring.
    pub fn primary_ranges(&self) -> impl ExactSizeIterator<Item = KeyRange> {
        self.placement.primary().iter().map(|(range, _)| *range)
    }

    /// The primary range that contains a position.
    pub fn range_of(&self, position: Position) -> KeyRange {
        self.placement.primary()[self.placement.primary_at(position)].0
    }

    /// The ranges that overlap any of `ranges` and that operations act on, ascending: the primary ranges, and where a process
    /// has a part of one and is still receiving another, the parts. Until all has been received each part has its own
    /// votes and answers, so that nobody waits for rows that are there.
    pub fn overlapping(&self, ranges: &[KeyRange]) -> Vec<KeyRange> {
        self.touched(ranges).into_iter().map(|(range, _)| range).collect()
    }

    /// The same, with their partitions.
    fn touched(&self, ranges: &[KeyRange]) -> Touched {
        let touched = self.placement.touched(ranges);
        if self.migrations.is_empty() {
            return touched;
        }
        let boundaries = self.boundaries();
        if boundaries.is_empty() {
            return touched;
        }
        let parts =
            |(range, partition)| cut(range, &boundaries).into_iter().map(move |part| (part, partition));
        let concerned = |part: &KeyRange| ranges.iter().any(|range| range.overlaps(part));
        touched.into_iter().flat_map(parts).filter(|(part, _)| concerned(part)).collect()
    }

    /// Where what is received, and is not complete, begins and ends.
    fn boundaries(&self) -> Vec<Position> {
        boundaries(self.transfers_under_way().map(|(_, transfer)| &transfer.range))
    }

    /// The parts of primary ranges that operations name, see [`Config::overlapping`].
    pub fn parts(&self, primary: &[KeyRange]) -> Vec<KeyRange> {
        let boundaries = self.boundaries();
        primary.iter().flat_map(|range| cut(*range, &boundaries)).collect()
    }

    /// The processes that hold a primary range or a part of one, its primary first; empty when no primary range contains it.
    pub fn holders(&self, range: KeyRange) -> Vec<ProcessId> {
        let (primary, partition) = self.placement.primary()[self.placement.primary_at(range.first)];
        if range.last > primary.last {
            return Vec::new();
        }
        self.placement.holders(partition).map(|node| node.process).collect()
    }

    /// Those of them that are not suspected.
    pub fn live_holders(&self, range: KeyRange) -> Vec<ProcessId> {
        let mut holders = self.holders(range);
        holders.retain(|holder| !self.is_suspected(*holder));
        holders
    }

    /// Since when a process holds the primary range that contains a position; none when it does not hold it.
    pub(crate) fn held_since(&self, process: ProcessId, position: Position) -> Option<Ts> {
        let partition = self.placement.primary()[self.placement.primary_at(position)].1;
        let replica = self.placement.replica(partition, self.placement.index(process)?)?;
        Some(self.placement.since(partition, replica))
    }

    /// A primary range that overlaps `ranges` and all of whose holders are suspected, if there is one.
    pub fn without_holder(&self, ranges: &[KeyRange]) -> Option<KeyRange> {
        if self.fenced.is_empty() {
            return None;
        }
        let touched = self.placement.touched(ranges).into_iter();
        let mut dead =
            touched.filter(|(_, partition)| self.placement.holders(*partition).all(|node| node.suspected));
        dead.next().map(|(range, _)| range)
    }

    /// Whether every range that is read at `read_ts` has a live holder that held it then.
    pub fn reaches_back(&self, ranges: &[KeyRange], read_ts: Ts) -> bool {
        let touched = self.placement.touched(ranges);
        touched.iter().all(|(_, partition)| {
            let mut holders = self.placement.holders(*partition).enumerate();
            holders.any(|(replica, node)| {
                !node.suspected && self.placement.since(*partition, replica) <= read_ts
            })
        })
    }

    /// The primary ranges that a process holds, ascending.
    pub fn held(&self, process: ProcessId) -> Vec<KeyRange> {
        self.placement.held(process)
    }

    /// The processes whose durable watermarks keep the log: those on the ring that are not suspected, and those that have left
    /// it and may still have to send. These come more than once.
    pub fn keepers_of_log(&self) -> impl Iterator<Item = ProcessId> {
        let senders = self.transfers_under_way().flat_map(|(_, transfer)| transfer.senders.iter().copied());
        self.live_storage().chain(senders)
    }

    /// `Ts` of the last message that has changed it. Clients come and go without one.
    pub fn changed_at(&self) -> Ts {
        self.changed_at
    }

    /// Whether others wait for what a storage process knows: a life of it is part of the system that is not suspected.
    pub fn is_awaited(&self, process: ProcessId) -> bool {
        self.standbys.contains_key(&process) || self.is_active(process) && !self.is_suspected(process)
    }

    /// The storage processes of which that is so.
    pub fn awaited(&self) -> Vec<ProcessId> {
        let mut awaited: Vec<ProcessId> = self.live_storage().chain(self.standbys()).collect();
        awaited.sort_unstable();
        awaited.dedup();
        awaited
    }

    /// The best keyspace message for a change of this config (paper, section 6.5).
    ///
    /// # Errors
    /// When the change is impossible.
    pub fn plan(&self, change: Change) -> Result<Keyspace, ConfigError> {
        let (next, implied) = self.changed(&change, Ts::ZERO)?;
        let instructions = optimiser::best(&implied.lossless()?, &next.placement, &self.edges());
        Ok(Keyspace { version: self.version, change, instructions })
    }

    /// The same, where what no live process has any more may be lost: the ranges are empty behind it.
    ///
    /// # Errors
    /// When the change is impossible.
    pub fn plan_with_loss(&self, change: Change) -> Result<Keyspace, ConfigError> {
        let (next, implied) = self.changed(&change, Ts::ZERO)?;
        let mut instructions = optimiser::best(&implied, &next.placement, &self.edges());
        instructions.extend(implied.lose());
        Ok(Keyspace { version: self.version, change, instructions })
    }

    /// Where a keyspace message cuts primary ranges of this config.
    pub(crate) fn cuts(&self, keyspace: &Keyspace) -> Vec<Position> {
        let Ok((next, _)) = self.changed(&keyspace.change, Ts::ZERO) else { return Vec::new() };
        let of = |config: &Config| boundaries(&config.primary_ranges().collect::<Vec<_>>());
        let before = of(self);
        of(&next).into_iter().filter(|position| before.binary_search(position).is_err()).collect()
    }

    /// All minimal solutions for a change of this config, in the order of the ring.
    ///
    /// # Errors
    /// When the change is impossible.
    pub fn solutions(&self, change: Change) -> Result<Vec<Solution>, ConfigError> {
        let (next, implied) = self.changed(&change, Ts::ZERO)?;
        Ok(optimiser::solutions(&implied.lossless()?, &next.placement, &self.edges()).collect())
    }

    /// What every process has to receive if a keyspace message takes effect on this config, and who can send it.
    ///
    /// # Errors
    /// When it does not take effect.
    pub fn transfers(&self, keyspace: &Keyspace) -> Result<Vec<Transfer>, ConfigError> {
        let (_, implied) = self.changed(&keyspace.change, Ts::ZERO)?;
        implied.check(&keyspace.instructions)?;
        Ok(implied.transfers(&keyspace.instructions))
    }

    /// The config after a message at a `Ts`, if the message changes it.
    ///
    /// # Errors
    /// When it is a stale or an impossible request; it has no effect then.
    pub fn apply(&self, message: &Message, ts: Ts) -> Result<Option<Config>, ConfigError> {
        let Some(mut changed) = self.applied(message, ts)? else { return Ok(None) };
        // Somebody else may listen there one day.
        let mut addresses = std::mem::take(&mut changed.addresses);
        addresses.retain(|process, _| changed.contains(*process));
        Ok(Some(Config { changed_at: ts, addresses, ..changed }))
    }

    fn applied(&self, message: &Message, ts: Ts) -> Result<Option<Config>, ConfigError> {
        let configuration = match &message.body {
            Body::Configuration(configuration) if self.may_configure(message) => configuration,
            Body::Configuration(_) | Body::Data(_) | Body::Ddl(_) | Body::Pin { .. } | Body::Checkpoint => {
                return Ok(None);
            }
        };
        match configuration {
            Configuration::Membership(Membership::Join { process, incarnation, address }) => {
                let mut joined = self.join(*process, *incarnation)?;
                if let (Some(config), Some(address)) = (&mut joined, address) {
                    config.addresses.insert(*process, address.clone());
                }
                Ok(joined)
            }
            Configuration::Membership(Membership::Part { process }) => {
                let mut config = self.part(*process)?;
                config.addresses.remove(process);
                Ok(Some(config))
            }
            Configuration::Membership(Membership::Suspect { process, incarnation }) => {
                self.suspect(*process, *incarnation, ts)
            }
            Configuration::Membership(Membership::Listen { process, address }) => {
                let is_own = message.id.submitter == *process && self.contains(*process);
                let moves = is_own && self.addresses.get(process) != Some(address);
                Ok(moves.then(|| {
                    let mut config = self.clone();
                    config.addresses.insert(*process, address.clone());
                    config
                }))
            }
            Configuration::Keyspace(keyspace) => {
                if keyspace.version != self.version {
                    let (planned, current) = (keyspace.version, self.version);
                    return Err(ConfigError::Stale { planned, current });
                }
                let (mut next, implied) = self.changed(&keyspace.change, ts)?;
                implied.check(&keyspace.instructions)?;
                let is_copy = |instruction: &&Instruction| matches!(instruction, Instruction::Copy { .. });
                let copies: Vec<Instruction> =
                    keyspace.instructions.iter().filter(is_copy).cloned().collect();
                let mut transfers = implied.transfers(&copies);
                for lost in transfers.iter_mut().filter(|transfer| transfer.senders.is_empty()) {
                    lost.lost = vec![(lost.range, ts)];
                }
                if !transfers.is_empty() {
                    let moved = |process: ProcessId| {
                        let moved = transfers.iter().filter(|transfer| transfer.to == process);
                        normalise(moved.map(|transfer| transfer.range).collect())
                    };
                    let mut anew: BTreeSet<ProcessId> =
                        transfers.iter().map(|transfer| transfer.to).collect();
                    anew.retain(|process| covers(&moved(*process), &next.held(*process)));
                    next.migrations
                        .insert(ts, Migration { change: keyspace.change, copies, transfers, anew });
                }
                next.end_copies(|_, _| false);
                Ok(Some(next))
            }
            Configuration::Received { keyspace, process } => Ok(self.received(*keyspace, *process)),
        }
    }

    /// The processes that a message declares as failed.
    pub fn suspects(&self, message: &Message) -> Vec<ProcessId> {
        match &message.body {
            Body::Configuration(Configuration::Membership(Membership::Suspect { process, .. }))
                if self.may_configure(message) =>
            {
                vec![*process]
            }
            _ => Vec::new(),
        }
    }

    /// The processes that would execute a write of these ranges now, or a read at the present time.
    pub fn executors(&self, ranges: &[KeyRange], writes: bool) -> Vec<ProcessId> {
        let touched = self.touched(ranges);
        let executors = if writes { self.write_all(&touched) } else { self.read_one(0, None, &[], &touched) };
        executors.into_iter().map(|(process, _)| process).collect()
    }

    /// The destination set: each process with the primary ranges it acts on (none for a process that only follows), in
    /// the order of their ids. A suspected process is not a destination; a range all of whose holders are suspected has
    /// none.
    pub fn destset(&self, message: &Message) -> Vec<(ProcessId, Few<KeyRange>)> {
        if self.is_fenced(message.id) {
            return Vec::new();
        }
        match &message.body {
            Body::Data(data) => {
                let touched = self.touched(&message.ranges);
                if data.operation.is_write() {
                    self.write_all(&touched)
                } else {
                    self.read_one(data.replica_offset as usize, data.read_ts, &data.avoided, &touched)
                }
            }
            Body::Pin { lease_ms } => {
                let mut destinations = self.write_all(self.placement.primary());
                if *lease_ms == 0 && self.follows(message.id.submitter) {
                    destinations.push((message.id.submitter, Few::default()));
                    destinations.sort_unstable_by_key(|(process, _)| *process);
                }
                destinations
            }
            Body::Checkpoint => self.write_all(self.placement.primary()),
            Body::Ddl(_) => {
                let mut destinations = self.write_all(self.placement.primary());
                destinations.extend(self.followers());
                destinations.sort_unstable_by_key(|(process, _)| *process);
                destinations
            }
            Body::Configuration(_) if self.may_configure(message) => {
                let live = self.placement.nodes().iter().filter(|node| !node.suspected);
                let live = live.map(|node| (node.process, Few::default()));
                let mut destinations: Vec<_> = live.chain(self.followers()).collect();
                destinations.sort_unstable_by_key(|(process, _)| *process);
                // A standby may be the new incarnation of a process on the ring, but then that one is suspected.
                destinations
            }
            Body::Configuration(_) => Vec::new(),
        }
    }

    /// The config with an incarnation of a client or super process joined, if that changes it.
    pub fn with_client(&self, client: ProcessId, incarnation: Incarnation) -> Option<Config> {
        if self.fenced.get(&client).is_some_and(|fenced| *fenced >= incarnation) {
            return None;
        }
        let mut config = self.clone();
        let members = config.subscribers(client.kind)?;
        if members.get(&client).is_some_and(|known| *known >= incarnation) {
            return None;
        }
        members.insert(client, incarnation);
        Some(config)
    }

    /// The config with a client or super process parted, if it was part of the system.
    pub fn without_client(&self, client: ProcessId) -> Option<Config> {
        let mut config = self.clone();
        config.subscribers(client.kind)?.remove(&client)?;
        Some(config)
    }

    /// The members of a kind, if it joins by subscribing.
    fn subscribers(&mut self, kind: ProcessKind) -> Option<&mut BTreeMap<ProcessId, Incarnation>> {
        match kind {
            ProcessKind::Client => Some(&mut self.clients),
            ProcessKind::Super => Some(&mut self.supers),
            ProcessKind::Router | ProcessKind::Storage => None,
        }
    }

    /// Whether a configuration message comes from an unsuspected process. A process may ask for its own admission.
    fn may_configure(&self, message: &Message) -> bool {
        let submitter = message.id.submitter;
        let joins = matches!(
            &message.body,
            Body::Configuration(Configuration::Membership(Membership::Join { process, .. }))
                if *process == submitter
        );
        // Only routers know all who have joined by subscribing.
        let is_member = submitter.kind.joins_by_subscribing() || self.contains(submitter) || joins;
        is_member && !self.is_fenced(message.id)
    }

    /// Those who follow the catalog and the config without holding a partition.
    fn followers(&self) -> impl Iterator<Item = (ProcessId, Few<KeyRange>)> {
        let followers = self.clients.keys().chain(self.supers.keys()).chain(self.standbys.keys());
        followers.map(|process| (*process, Few::default()))
    }

    /// Whether a process follows the catalog and the config without a place on the ring to be.
    fn follows(&self, process: ProcessId) -> bool {
        self.clients.contains_key(&process) || self.supers.contains_key(&process)
    }

    /// All live holders of primary ranges.
    fn write_all(&self, touched: &[(KeyRange, usize)]) -> Vec<(ProcessId, Few<KeyRange>)> {
        let mut destinations = SmallVec::<[_; 4]>::new();
        for (range, partition) in touched {
            let live = self.placement.holders(*partition).filter(|node| !node.suspected);
            destinations.extend(live.map(|node| (node.process, *range)));
        }
        by_process(destinations)
    }

    /// A smallest set of processes that together hold primary ranges, each range answered by one of them.
    fn read_one(
        &self,
        offset: usize,
        read_ts: Option<Ts>,
        avoided: &[ProcessId],
        touched: &[(KeyRange, usize)],
    ) -> Vec<(ProcessId, Few<KeyRange>)> {
        let mut partitions: Vec<usize> = touched.iter().map(|(_, partition)| *partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let answers = |partition: usize, replica: usize| {
            let is_late = |read_ts| self.placement.since(partition, replica) > read_ts;
            let node = self.placement.holder(partition, replica);
            (!node.suspected && !read_ts.is_some_and(is_late)).then_some(node.process)
        };
        let class = |partition: usize, replica: usize| {
            let process = answers(partition, replica)?;
            if avoided.contains(&process) {
                return Some(Class::Avoided);
            }
            if !self.is_busy(process) {
                return Some(Class::Idle);
            }
            let positions: u128 =
                self.placement.ranges(partition).map(|range| self.positions_received(process, range)).sum();
            Some(positions.checked_ilog2().map_or(Class::Busy, Class::Receiving))
        };
        let mut answering = cover::cover(&self.placement, &partitions, offset, class);
        answering.sort_unstable();
        let destinations = touched.iter().filter_map(|(range, partition)| {
            let found = answering.binary_search_by_key(partition, |(partition, _)| *partition).ok()?;
            let replica = answering[found].1;
            // Where nobody has all of a partition, somebody may have the part.
            let reach = self.placement.reach();
            let mut others = (0..reach).filter_map(|r| answers(*partition, (offset + r) % reach));
            let part = matches!(class(*partition, replica), Some(Class::Receiving(_)))
                .then(|| {
                    others.find(|process| !self.receives(*process, *range) && !avoided.contains(process))
                })
                .flatten();
            Some((part.unwrap_or(self.placement.holder(*partition, replica).process), *range))
        });
        by_process(destinations.collect())
    }

    /// Copies that are not complete: sender, receiver, ranges.
    fn copies(&self) -> impl Iterator<Item = (ProcessId, ProcessId, &[KeyRange])> {
        self.migrations.values().flat_map(Migration::under_way)
    }

    fn edges(&self) -> Vec<(ProcessId, ProcessId)> {
        self.copies().map(|(from, to, _)| (from, to)).collect()
    }

    /// The config with an incarnation of a process that joins without data, if that changes it. Nobody begins without what nobody
    /// else has: it may be found again, and to give it up is for the users to say.
    pub(crate) fn join(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
    ) -> Result<Option<Config>, ConfigError> {
        if self.fenced.get(&process).is_some_and(|fenced| incarnation <= *fenced) {
            return Err(ConfigError::Fenced(process, incarnation));
        }
        match process.kind {
            ProcessKind::Router => return Err(ConfigError::Kind(process)),
            ProcessKind::Client | ProcessKind::Super => return Ok(self.with_client(process, incarnation)),
            ProcessKind::Storage => {}
        }
        let on_ring = self.placement.index(process).filter(|index| !self.placement.nodes()[*index].suspected);
        let life = on_ring.map(|index| self.placement.nodes()[index].incarnation);
        let known = self.standbys.get(&process).copied().or(life);
        if known.is_some_and(|known| known >= incarnation) {
            return Ok(None);
        }
        let mut next = self.clone();
        if known.is_some()
            && self.has_received_nothing(process)
            && let Some(began) = self.begins_before(process)
        {
            // What it was to receive, it still receives, and can send then.
            next.end_sending(process, |ts| ts <= began);
            next.end_copies(|ts, to| to == process && ts < began);
            match on_ring {
                // Rows that have been staged there are gone.
                Some(index) => {
                    Arc::make_mut(&mut next.placement).restart(index, incarnation);
                    next.version += 1;
                }
                None => drop(next.standbys.insert(process, incarnation)),
            }
            return Ok(Some(next));
        }
        if known.is_some() {
            if let Some(range) = self.solely_held(process) {
                return Err(ConfigError::LastHolder { process, range });
            }
            // Its data is gone, which is the failure of its earlier lives.
            next.fail(process, incarnation.saturating_sub(1));
        }
        next.standbys.insert(process, incarnation);
        Ok(Some(next))
    }

    fn part(&self, process: ProcessId) -> Result<Config, ConfigError> {
        let is_active = self.placement.index(process).is_some() && !self.standbys.contains_key(&process);
        if is_active {
            return Err(ConfigError::Needed(process));
        }
        if self.is_busy(process) || self.may_send(process) {
            return Err(ConfigError::Moving(process));
        }
        let mut next = self.clone();
        let parted = next.standbys.remove(&process).is_some()
            || next.supers.remove(&process).is_some()
            || process.kind.joins_by_subscribing();
        next.clients.remove(&process);
        if !parted {
            return Err(ConfigError::Unknown(process));
        }
        Ok(next)
    }

    /// Who alone has the rows of a range is not suspected: nobody could take its place, and what waits for it would only fail.
    /// With the last incarnation that there can be it is given up for good, and the range with it: who was to receive it, and
    /// is alive, begins without its rows.
    pub(crate) fn suspect(
        &self,
        process: ProcessId,
        incarnation: Incarnation,
        ts: Ts,
    ) -> Result<Option<Config>, ConfigError> {
        match process.kind {
            ProcessKind::Router => return Err(ConfigError::Kind(process)),
            // Only routers know all of them, so followers cannot tell whether there is such a one.
            ProcessKind::Client | ProcessKind::Super => {}
            ProcessKind::Storage if self.contains(process) => {}
            ProcessKind::Storage => return Err(ConfigError::Unknown(process)),
        }
        let fails = self.incarnation(process).is_some_and(|life| life <= incarnation);
        if let Some(range) = self.solely_held(process).filter(|_| fails && incarnation < Incarnation::MAX) {
            return Err(ConfigError::LastHolder { process, range });
        }
        let (mut next, losses) = self.failed(process, incarnation);
        next.begin_without(&losses, ts);
        Ok((next != *self).then_some(next))
    }

    /// Receivers have what is lost: nothing. Nobody has what it was before. Others are still sent what there is in its place.
    fn begin_without(&mut self, losses: &[Loss], ts: Ts) {
        for loss in losses {
            let Loss { process, keyspace, range } = *loss;
            if let Some(migration) = self.migrations.get_mut(&keyspace) {
                migration.lose(process, range, ts);
            }
            Arc::make_mut(&mut self.placement).begin_anew(process, range, ts);
        }
        self.version += u64::from(!losses.is_empty());
    }

    /// The lives of a process up to an incarnation have failed, and what they had is gone.
    fn fail(&mut self, process: ProcessId, incarnation: Incarnation) {
        let fenced = self.fenced.entry(process).or_insert(incarnation);
        *fenced = (*fenced).max(incarnation);
        self.clients.retain(|client, life| *client != process || *life > incarnation);
        self.supers.retain(|other, life| *other != process || *life > incarnation);
        let mut has_failed = self.standbys.get(&process).is_some_and(|life| *life <= incarnation);
        if has_failed {
            self.standbys.remove(&process);
        }
        if let Some(index) = self.placement.index(process) {
            let node = &self.placement.nodes()[index];
            if !node.suspected && node.incarnation <= incarnation {
                Arc::make_mut(&mut self.placement).suspect(index);
                self.version += 1;
                has_failed = true;
            }
        }
        if has_failed {
            self.end_sending(process, |_| true);
            self.end_copies(|_, to| to == process);
        }
    }

    /// A process has nothing any more of some of that which others were to receive from it.
    fn end_sending(&mut self, process: ProcessId, ended: impl Fn(Ts) -> bool) {
        for (_, migration) in self.migrations.iter_mut().filter(|(ts, _)| ended(**ts)) {
            for transfer in &mut migration.transfers {
                let was_sent = !transfer.senders.is_empty();
                transfer.senders.retain(|sender| *sender != process);
                // What was sent in place of what is lost is lost with all of it, from when that is said.
                if was_sent && transfer.senders.is_empty() {
                    transfer.lost.clear();
                }
            }
            migration.name_senders();
        }
    }

    /// Who has durably received what a keyspace message instructed needs nothing of earlier ones either: either it had
    /// received that before, or it has begun behind them and will never say so.
    fn received(&self, keyspace: Ts, process: ProcessId) -> Option<Config> {
        let mut received = self.migrations.range(..=keyspace);
        let receives = received.any(|(_, migration)| migration.has_for(process));
        receives.then(|| {
            let mut next = self.clone();
            next.end_copies(|ts, to| ts <= keyspace && to == process);
            next
        })
    }

    /// Forgets copies by the `Ts` of their keyspace message and their receiver, and those that nobody needs any more: their
    /// receiver has left the ring and has nothing to send on.
    fn end_copies(&mut self, ended: impl Fn(Ts, ProcessId) -> bool) {
        self.retain_copies(|ts, to| !ended(ts, to));
        loop {
            let before = self.transfers_under_way().count();
            let placement = self.placement.clone();
            let senders = self.transfers_under_way().flat_map(|(_, transfer)| transfer.senders.clone());
            let senders: BTreeSet<ProcessId> = senders.collect();
            self.retain_copies(|_, to| placement.index(to).is_some() || senders.contains(&to));
            if self.transfers_under_way().count() == before {
                return;
            }
        }
    }

    fn retain_copies(&mut self, keep: impl Fn(Ts, ProcessId) -> bool) {
        self.migrations.retain(|ts, migration| {
            migration.copies.retain(|instruction| match instruction {
                Instruction::Copy { to, .. } => keep(*ts, *to),
                Instruction::Delete { .. } | Instruction::Lose { .. } => false,
            });
            migration.transfers.retain(|transfer| keep(*ts, transfer.to));
            !migration.transfers.is_empty()
        });
    }

    /// The next config, before its copies are entered, and what the change implies.
    fn changed(&self, change: &Change, ts: Ts) -> Result<(Config, Implied), ConfigError> {
        let mut next = self.clone();
        let mut nodes = self.placement.nodes().to_vec();
        let taken = |identifier: Position| {
            let at = |node: &&Node| node.identifier == identifier;
            match self.placement.nodes().iter().find(at) {
                Some(node) => Err(ConfigError::Taken { identifier, by: node.process }),
                None => Ok(()),
            }
        };
        match change {
            Change::Expand { process, identifier } => {
                if self.placement.index(*process).is_some() {
                    return Err(ConfigError::Active(*process));
                }
                taken(*identifier)?;
                let incarnation = next.standbys.remove(process).ok_or(ConfigError::Unknown(*process))?;
                let (identifier, process) = (*identifier, *process);
                nodes.push(Node { identifier, process, incarnation, suspected: false });
            }
            Change::Contract { process } => {
                let left = nodes.remove(self.active(*process)?);
                if nodes.is_empty() {
                    return Err(ConfigError::Last(*process));
                }
                next.retire(&left);
            }
            Change::Replace { process, by } => {
                let index = self.active(*process)?;
                if by != process && self.placement.index(*by).is_some() {
                    return Err(ConfigError::Active(*by));
                }
                let Some(incarnation) = next.standbys.remove(by) else {
                    let is_active = self.placement.index(*by).is_some();
                    return Err(if is_active { ConfigError::Active(*by) } else { ConfigError::Unknown(*by) });
                };
                let left = nodes[index];
                nodes[index] = Node { process: *by, incarnation, suspected: false, ..left };
                next.retire(&left);
            }
            Change::Rebalance { process, identifier } => {
                let index = self.active(*process)?;
                taken(*identifier)?;
                if nodes[index].suspected {
                    return Err(ConfigError::Suspected(*process));
                }
                nodes[index].identifier = *identifier;
            }
        }
        let placement = self.placement.changed(nodes, ts)?;
        if let Some(range) = placement.orphan_of(&self.placement) {
            return Err(ConfigError::Orphan { range });
        }
        let implied = Implied::by(&self.placement, &placement);
        next.placement = Arc::new(placement);
        next.version += 1;
        Ok((next, implied))
    }

    /// The index of a process that stands on the ring.
    fn active(&self, process: ProcessId) -> Result<usize, ConfigError> {
        self.placement.index(process).ok_or_else(|| match self.standbys.contains_key(&process) {
            true => ConfigError::Standby(process),
            false => ConfigError::Unknown(process),
        })
    }

    /// A process that leaves the ring alive becomes a standby.
    fn retire(&mut self, node: &Node) {
        if !node.suspected {
            self.standbys.insert(node.process, node.incarnation);
        }
    }
}

/// Groups by process; both sorted.
fn by_process(mut destinations: SmallVec<[(ProcessId, KeyRange); 4]>) -> Vec<(ProcessId, Few<KeyRange>)> {
    destinations.sort_unstable();
    let mut grouped: Vec<(ProcessId, Few<KeyRange>)> = Vec::with_capacity(destinations.len().min(4));
    for (process, range) in destinations {
        match grouped.last_mut() {
            Some((last, ranges)) if *last == process => ranges.push(range),
            _ => grouped.push((process, [range].into())),
        }
    }
    grouped
}
