//! What a change of the keyspace implies for every process: who has to receive which rows and who can send them, and
//! who has to delete which (paper, section 6.4).
//!
//! The change cuts the ring into pieces, each of which lies in one partition before and in one after it. A live
//! process that holds a piece afterwards and has not held it before must receive it from a live process that has; one
//! that has held it before and does not afterwards must delete it. When no live process has held it, its rows are lost, and
//! whoever holds it afterwards begins without; but only where somebody accepts that. A keyspace message is correct when its
//! instructions do exactly this; which of the possible senders it names is for [`super::optimiser`] to choose.

use std::collections::BTreeMap;

use carousel_engine::position::{KeyRange, covers, intersect, normalise};

use super::{ConfigError, Transfer, messages::Instruction, placement::Placement};
use crate::message::ProcessId;

/// A piece that a process has to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) range: KeyRange,
    /// Live processes that hold it, in the order of the ring, its primary first.
    pub(super) senders: Vec<ProcessId>,
}

/// What a change implies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Implied {
    /// By receiver.
    pub(super) needs: BTreeMap<ProcessId, Vec<Need>>,
    pub(super) deletes: BTreeMap<ProcessId, Vec<KeyRange>>,
    /// What a process comes to hold and can receive from nobody.
    pub(super) losses: BTreeMap<ProcessId, Vec<KeyRange>>,
}

impl Implied {
    /// What the change from one ring to another one implies.
    pub(super) fn by(old: &Placement, new: &Placement) -> Implied {
        let mut implied = Implied::default();
        for piece in old.pieces(new) {
            let before = || old.holders(piece.old).filter(|node| !node.suspected);
            for node in new.holders(piece.new).filter(|node| !node.suspected) {
                if old.held_by(piece.old, node).is_some() {
                    continue;
                }
                let senders: Vec<ProcessId> = before().map(|node| node.process).collect();
                if senders.is_empty() {
                    implied.losses.entry(node.process).or_default().push(piece.range);
                    continue;
                }
                implied.needs.entry(node.process).or_default().push(Need { range: piece.range, senders });
            }
            for node in before().filter(|node| new.held_by(piece.new, node).is_none()) {
                implied.deletes.entry(node.process).or_default().push(piece.range);
            }
        }
        for ranges in implied.deletes.values_mut().chain(implied.losses.values_mut()) {
            *ranges = normalise(std::mem::take(ranges));
        }
        implied
    }

    /// The same, when no rows are lost.
    pub(super) fn lossless(self) -> Result<Implied, ConfigError> {
        match self.losses.values().flatten().next() {
            Some(range) => Err(ConfigError::NoHolder { range: *range }),
            None => Ok(self),
        }
    }

    /// The instructions to begin without what is lost.
    pub(super) fn lose(&self) -> impl Iterator<Item = Instruction> {
        self.losses.iter().map(|(process, ranges)| {
            let (process, ranges) = (*process, ranges.clone());
            Instruction::Lose { process, ranges }
        })
    }

    /// The list in which `sender` decides between those of each need.
    pub(super) fn list(&self, sender: impl Fn(ProcessId, &Need) -> ProcessId) -> Vec<Instruction> {
        let mut copies: BTreeMap<(ProcessId, ProcessId), Vec<KeyRange>> = BTreeMap::new();
        for (to, needs) in &self.needs {
            for need in needs {
                copies.entry((sender(*to, need), *to)).or_default().push(need.range);
            }
        }
        let copies = copies.into_iter().map(|((from, to), ranges)| {
            let ranges = normalise(ranges);
            Instruction::Copy { from, to, ranges }
        });
        let deletes = self.deletes.iter().map(|(process, ranges)| {
            let (process, ranges) = (*process, ranges.clone());
            Instruction::Delete { process, ranges }
        });
        copies.chain(deletes).collect()
    }

    /// What every process receives and who can send it: first whom a list of instructions names; nobody, if it is lost.
    pub(super) fn transfers(&self, instructions: &[Instruction]) -> Vec<Transfer> {
        let mut transfers = Vec::new();
        for (to, Need { range, senders }) in
            self.needs.iter().flat_map(|(to, needs)| needs.iter().map(move |need| (*to, need)))
        {
            let named = instructions.iter().find_map(|instruction| match instruction {
                Instruction::Copy { from, to: receiver, ranges } if *receiver == to => {
                    ranges.iter().any(|copied| copied.contains(range.first)).then_some(*from)
                }
                _ => None,
            });
            let mut senders = senders.clone();
            senders.sort_by_key(|sender| Some(*sender) != named);
            transfers.push(Transfer { to, range: *range, senders, lost: Vec::new() });
        }
        let lost = self.losses.iter().flat_map(|(to, ranges)| ranges.iter().map(|range| (*to, *range)));
        transfers.extend(lost.map(|(to, range)| Transfer {
            to,
            range,
            senders: Vec::new(),
            lost: Vec::new(),
        }));
        transfers
    }

    /// Whether a list does what the change implies, and nothing else.
    pub(super) fn check(&self, instructions: &[Instruction]) -> Result<(), ConfigError> {
        let mut received: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        let mut deletes: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        let mut losses: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        for instruction in instructions {
            match instruction {
                Instruction::Copy { from, to, ranges } => {
                    let needs = self.needs.get(to).into_iter().flatten();
                    let sent = needs.filter(|need| need.senders.contains(from)).map(|need| need.range);
                    // Nobody would ever say of a copy of nothing that it has been received.
                    if ranges.is_empty() || !covers(&sent.collect::<Vec<_>>(), ranges) {
                        return Err(ConfigError::Instruction(instruction.clone()));
                    }
                    let received = received.entry(*to).or_default();
                    if !intersect(received, ranges).is_empty() {
                        return Err(ConfigError::Instruction(instruction.clone()));
                    }
                    received.extend(ranges);
                    received.sort_unstable();
                }
                Instruction::Delete { process, ranges } => {
                    deletes.entry(*process).or_default().extend(ranges);
                }
                Instruction::Lose { process, ranges } => {
                    losses.entry(*process).or_default().extend(ranges);
                }
            }
        }
        for (process, ranges) in &self.losses {
            if losses.get(process) != Some(ranges) {
                return Err(ConfigError::NoHolder { range: ranges[0] });
            }
        }
        if let Some(process) = losses.keys().find(|process| !self.losses.contains_key(process)) {
            return Err(ConfigError::Incomplete(*process));
        }
        for (process, needs) in &self.needs {
            let needed: Vec<KeyRange> = needs.iter().map(|need| need.range).collect();
            if !received.get(process).is_some_and(|received| covers(received, &needed)) {
                return Err(ConfigError::Incomplete(*process));
            }
        }
        for process in self.deletes.keys().chain(deletes.keys()) {
            if self.deletes.get(process) != deletes.get(process) {
                return Err(ConfigError::Incomplete(*process));
            }
        }
        Ok(())
    }
}
