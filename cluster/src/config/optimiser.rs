//! Which instruction list is best (paper, section 6.5).
//!
//! The instruction lists of a change differ in who sends. Each is a *solution graph* with an edge from every sender to
//! its receivers. When a process fails, everything it was to send has not arrived, so its receivers have failed as
//! well, and theirs in turn. All minimal solutions are enumerated (one whose graph contains the graph of another is
//! never better), every single further failure is simulated by flooding the graph, and the solution wins that leaves
//! the fewest failed processes in any replication group: first the fewest groups with `f` failed processes, then with
//! `f - 1`, and so on; then the one that keeps the fewest processes busy. Among equals the sender that stands first
//! on the ring wins.
//!
//! ```text
//!   figure 7: e expands at 35, f = 3, d has failed before
//!
//!   identifier    20  30  35  40  50        c sends to e, c fails:   e, c, d have all failed: data loss
//!   process       a   b   e   c   d         b sends to e, b fails:   in each group one process is left
//! ```
//!
//! As minimality and the graph's edges are a matter of each receiver by itself, the minimal solutions are all
//! combinations of the minimal sets of senders of each receiver. Only groups that some solution can affect are
//! looked at, so the cost does not depend on the size of the ring. Copies that an earlier keyspace message has asked
//! for and that are not complete belong to the graph.
//!
//! Where this departs from the paper: for replication factors beyond the practical ones (`f <= 5`) the combinations
//! are too many; then each receiver's choice is improved in turn until none can be.
//!
//! Carousel tries a failed copy again from any other holder (DESIGN, decision 15), so a sender's failure dooms its
//! receivers only if no other holder is left. The ranking takes the paper's more cautious view: a copy that need not be
//! tried again is the better one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    instructions::{Implied, Need},
    messages::Instruction,
    placement::Placement,
};
use crate::message::ProcessId;

/// The most combinations that are enumerated.
const MOST: usize = 1 << 16;

/// An instruction list with its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The list.
    pub instructions: Vec<Instruction>,
    /// Its rank; the smallest is the best.
    pub rank: Rank,
}

/// How a solution bears further failures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Over all single further failures: the number of replication groups in which as many processes as the
    /// replication factor have failed, then with one less, and so on down to one.
    pub failed: Vec<usize>,
    /// Processes that are busy with the copies.
    pub busy: usize,
}

/// The minimal solutions, in the order of the ring.
pub(super) fn solutions(
    implied: &Implied,
    new: &Placement,
    under_way: &[(ProcessId, ProcessId)],
) -> impl Iterator<Item = Solution> {
    let problem = Problem::new(implied, new, under_way);
    let combinations = problem.combinations();
    combinations.into_iter().map(move |chosen| problem.solution(implied, &chosen))
}

/// The best solution.
pub(super) fn best(
    implied: &Implied,
    new: &Placement,
    under_way: &[(ProcessId, ProcessId)],
) -> Vec<Instruction> {
    let problem = Problem::new(implied, new, under_way);
    let chosen = match problem.count() {
        Some(count) if count <= MOST => {
            let combinations = problem.combinations();
            let ranked = combinations.into_iter().map(|chosen| (problem.rank(&chosen), chosen));
            // The first of equal ones.
            ranked.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, chosen)| chosen).unwrap_or_default()
        }
        _ => problem.improved(),
    };
    problem.solution(implied, &chosen).instructions
}

/// The processes and groups that the solutions can affect, and what there is to choose from.
struct Problem {
    /// In the order of their ids. All others are indices into this.
    processes: Vec<ProcessId>,
    /// For each process, its place in the new ring's groups.
    groups: Vec<Vec<usize>>,
    /// In each group, how many processes have failed before.
    suspected: Vec<usize>,
    /// Replication factor: how many processes a group has.
    reach: usize,
    /// Receivers, and for each the minimal sets of senders.
    receivers: Vec<(usize, Vec<Vec<usize>>)>,
    under_way: Vec<(usize, usize)>,
}

impl Problem {
    fn new(implied: &Implied, new: &Placement, under_way: &[(ProcessId, ProcessId)]) -> Problem {
        let receivers = implied.needs.keys().copied();
        let senders = implied.needs.values().flatten().flat_map(|need| need.senders.iter().copied());
        let copying = under_way.iter().flat_map(|(from, to)| [*from, *to]);
        let processes: BTreeSet<ProcessId> = receivers.chain(senders).chain(copying).collect();
        let processes: Vec<ProcessId> = processes.into_iter().collect();
        let index = |process: ProcessId| {
            processes.binary_search(&process).expect("all processes that take part are listed")
        };

        let (size, reach) = (new.nodes().len(), new.reach());
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        let mut suspected = Vec::new();
        let mut groups = Vec::with_capacity(processes.len());
        for process in &processes {
            let partitions = new
                .index(*process)
                .into_iter()
                .flat_map(|at| (0..reach).map(move |back| (at + size - back) % size));
            let mut member_of = Vec::new();
            for partition in partitions {
                let next = numbers.len();
                let number = *numbers.entry(partition).or_insert(next);
                if number == next {
                    suspected.push(new.holders(partition).filter(|node| node.suspected).count());
                }
                member_of.push(number);
            }
            groups.push(member_of);
        }
        let receivers = implied.needs.iter().map(|(receiver, needs)| {
            let covers = minimal_covers(needs).into_iter();
            let covers = covers.map(|cover| cover.into_iter().map(index).collect()).collect();
            (index(*receiver), covers)
        });
        let receivers = receivers.collect();
        let under_way = under_way.iter().map(|(from, to)| (index(*from), index(*to))).collect();
        Problem { groups, suspected, reach, receivers, under_way, processes }
    }

    /// How many minimal solutions there are, if that can be counted.
    fn count(&self) -> Option<usize> {
        self.receivers.iter().try_fold(1usize, |count, (_, covers)| count.checked_mul(covers.len()))
    }

    /// All choices: for each receiver the number of its set of senders.
    fn combinations(&self) -> impl Iterator<Item = Vec<usize>> + use<> {
        let counts: Vec<usize> = self.receivers.iter().map(|(_, covers)| covers.len()).collect();
        let mut next = Some(vec![0; counts.len()]);
        std::iter::from_fn(move || {
            let current = next.take()?;
            let mut following = current.clone();
            for (choice, count) in following.iter_mut().zip(&counts).rev() {
                *choice += 1;
                if *choice < *count {
                    next = Some(following);
                    break;
                }
                *choice = 0;
            }
            Some(current)
        })
    }

    /// Improves the choice of each receiver in turn, from the first one on.
    fn improved(&self) -> Vec<usize> {
        let mut chosen = vec![0; self.receivers.len()];
        let mut best = self.rank(&chosen);
        loop {
            let before = best.clone();
            for receiver in 0..chosen.len() {
                for choice in 0..self.receivers[receiver].1.len() {
                    let known = std::mem::replace(&mut chosen[receiver], choice);
                    let rank = self.rank(&chosen);
                    if rank < best {
                        best = rank;
                    } else {
                        chosen[receiver] = known;
                    }
                }
            }
            if best == before {
                return chosen;
            }
        }
    }

    fn edges(&self, chosen: &[usize]) -> Vec<(usize, usize)> {
        let chosen = self.receivers.iter().zip(chosen);
        chosen.flat_map(|((to, covers), choice)| covers[*choice].iter().map(|from| (*from, *to))).collect()
    }

    fn rank(&self, chosen: &[usize]) -> Rank {
        let mut edges = self.edges(chosen);
        let mut busy = vec![false; self.processes.len()];
        for (from, to) in &edges {
            busy[*from] = true;
            busy[*to] = true;
        }
        edges.extend(&self.under_way);
        let mut counts = vec![0; self.reach];
        let mut in_group = self.suspected.clone();
        let mut failed = vec![false; self.processes.len()];
        let mut flooded = Vec::with_capacity(self.processes.len());
        for first in 0..self.processes.len() {
            failed.fill(false);
            failed[first] = true;
            flooded.clear();
            flooded.push(first);
            let mut next = 0;
            while next < flooded.len() {
                let source = flooded[next];
                for (_, to) in edges.iter().filter(|(from, _)| *from == source) {
                    if !std::mem::replace(&mut failed[*to], true) {
                        flooded.push(*to);
                    }
                }
                next += 1;
            }
            in_group.copy_from_slice(&self.suspected);
            for group in flooded.iter().flat_map(|process| &self.groups[*process]) {
                in_group[*group] += 1;
            }
            for count in in_group.iter().filter(|count| **count > 0) {
                counts[self.reach - (*count).min(self.reach)] += 1;
            }
        }
        Rank { failed: counts, busy: busy.into_iter().filter(|busy| *busy).count() }
    }

    fn solution(&self, implied: &Implied, chosen: &[usize]) -> Solution {
        let covers: BTreeMap<ProcessId, &Vec<usize>> = self
            .receivers
            .iter()
            .zip(chosen)
            .map(|((to, covers), choice)| (self.processes[*to], &covers[*choice]))
            .collect();
        let instructions = implied.list(|to, need| {
            let chosen =
                |sender: &&ProcessId| covers[&to].iter().any(|index| self.processes[*index] == **sender);
            *need.senders.iter().find(chosen).expect("a cover has a sender for every need")
        });
        Solution { instructions, rank: self.rank(chosen) }
    }
}

/// The minimal sets of senders that together can send everything that one receiver needs: the smaller ones first, then
/// in the order of the ring.
fn minimal_covers(needs: &[Need]) -> Vec<Vec<ProcessId>> {
    let mut order: Vec<ProcessId> = Vec::new();
    for sender in needs.iter().flat_map(|need| &need.senders) {
        if !order.contains(sender) {
            order.push(*sender);
        }
    }
    let mut wanted: Vec<&[ProcessId]> = Vec::new();
    for need in needs {
        if !wanted.contains(&&need.senders[..]) {
            wanted.push(&need.senders);
        }
    }
    let hits =
        |cover: &[ProcessId], senders: &[ProcessId]| cover.iter().any(|sender| senders.contains(sender));
    let mut covers: Vec<Vec<ProcessId>> = Vec::new();
    let mut open: Vec<Vec<ProcessId>> = vec![Vec::new()];
    while let Some(cover) = open.pop() {
        match wanted.iter().find(|senders| !hits(&cover, senders)) {
            Some(senders) => {
                open.extend(senders.iter().map(|sender| cover.iter().chain([sender]).copied().collect()));
            }
            None => {
                let is_minimal = (0..cover.len()).all(|without| {
                    let mut smaller = cover.clone();
                    smaller.remove(without);
                    !wanted.iter().all(|senders| hits(&smaller, senders))
                });
                if is_minimal {
                    covers.push(cover);
                }
            }
        }
    }
    let place = |sender: &ProcessId| order.iter().position(|other| other == sender);
    for cover in &mut covers {
        cover.sort_unstable_by_key(place);
    }
    covers.sort_by_cached_key(|cover| (cover.len(), cover.iter().map(place).collect::<Vec<_>>()));
    covers.dedup();
    covers
}
