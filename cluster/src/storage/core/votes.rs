//! Votes about undecided writes (DESIGN, decision 5), and how long they and payloads are kept.

use std::collections::BTreeMap;

use carousel_engine::{Ts, position::KeyRange};

use super::{Core, Effect, global, local};
use crate::{
    message::ProcessId,
    storage::ballot::Ballot,
    wire::{Vote, Wire},
};

impl Core {
    pub(super) fn cast(&mut self, vote: &Vote) {
        match self.ballots.cast(vote) {
            Ok(()) => self.decide(vote.ts),
            Err(reason) => self.effects.push(Effect::Stop(reason)),
        }
    }

    /// Ends an undecided write that has been executed here, if its votes allow.
    pub(super) fn decide(&mut self, ts: Ts) {
        let Some(decision) = self.ballots.get(ts).and_then(Ballot::decision) else { return };
        let is_executed = |time: &Ts| {
            self.running.get(time).is_some_and(|running| running.undecided && running.executing.is_empty())
        };
        let executed: Vec<Ts> = self.parts(local(ts)).filter(is_executed).collect();
        executed.into_iter().for_each(|time| self.end(time, Some(decision)));
    }

    /// Whether votes about a write are kept here.
    pub(crate) fn keeps_votes(&self, ts: Ts) -> bool {
        self.ballots.get(ts).is_some()
    }

    /// Whether a write has been begun here that others must vote about before it is decided.
    pub(crate) fn needs_votes(&self, ts: Ts) -> bool {
        let parts = || self.parts(local(ts)).map(|part| &self.running[&part]).filter(|part| part.undecided);
        let ballot = self.ballots.get(ts).filter(|ballot| ballot.decision().is_none());
        // What it acts on here votes here, whatever is held since.
        let votes_here = |range: &KeyRange| parts().any(|part| part.outcomes.contains_key(range));
        parts().next().is_some()
            && ballot.is_some_and(|ballot| ballot.missing().any(|range| !votes_here(&range)))
    }

    /// The ranges whose votes are missing about writes that have been executed here.
    pub(crate) fn missing_votes(&self) -> impl Iterator<Item = (Ts, KeyRange)> {
        let waiting =
            self.running.iter().filter(|(_, running)| running.undecided).map(|(time, _)| global(*time));
        let ballots = waiting.filter_map(|ts| self.ballots.get(ts).map(|ballot| (ts, ballot)));
        ballots.flat_map(|(ts, ballot)| ballot.missing().map(move |range| (ts, range)))
    }

    /// Asks for the votes that are missing about some writes.
    pub(super) fn ask_votes(&mut self, writes: Vec<Ts>) {
        let mut questions: BTreeMap<ProcessId, Vec<Ts>> = BTreeMap::new();
        for ts in writes {
            let Some(ballot) = self.ballots.get(ts).filter(|ballot| ballot.decision().is_none()) else {
                continue;
            };
            // The ring may have changed since: those who held the ranges then have voted.
            for holder in ballot.holders().iter().filter(|_| ballot.missing().next().is_some()) {
                questions.entry(*holder).or_default().push(ts);
            }
        }
        for (process, writes) in questions {
            self.effects.push(Effect::Send(process, Wire::AskVotes(writes)));
        }
    }

    /// Forgets votes and payloads that nobody will replay.
    pub(super) fn forget(&mut self) {
        // Those for whom the log is kept replay it; who has left the ring may still have to end what it has begun.
        let (peers, config) = (&self.peers, &self.options.config);
        let (keepers, standbys): (Vec<ProcessId>, Vec<ProcessId>) =
            (config.keepers_of_log(), config.standbys().collect());
        let needs = |process: &ProcessId| {
            keepers.contains(process) || standbys.contains(process) && !config.is_suspected(*process)
        };
        let durable = |process: ProcessId| match needs(&process) {
            true => peers.get(&process).map_or(Ts::ZERO, |(ts, _)| *ts),
            false => Ts::INFINITY,
        };
        self.ballots.forget(self.durable, durable);
        let own = self.options.id;
        let passed: Vec<Ts> = self
            .payloads
            .range(..=self.durable)
            .filter(|(ts, (_, holders))| {
                holders.iter().all(|holder| *holder == own || durable(*holder) >= **ts)
            })
            .map(|(ts, _)| *ts)
            .collect();
        for ts in passed {
            if let Some((payload, _)) = self.payloads.remove(&ts) {
                self.effects.push(Effect::Forget(payload));
            }
        }
    }
}
