//! Votes about undecided writes (DESIGN, decision 5).
//!
//! A write that can fail and touches several ranges is executed as undecided. Each range votes `Commit` if the write
//! did not fail in it; any replica's vote is the range's, for replicas that execute the same prefix of the m-seq vote
//! the same. The write commits when all affected ranges voted `Commit` and aborts on the first `Abort`.

use std::collections::BTreeMap;

use carousel_engine::{Ts, operation::Decision, position::KeyRange};
use serde::{Deserialize, Serialize};

use crate::{
    message::ProcessId,
    planted::{Bug, planted},
    wire::{Choice, Vote},
};

/// The votes about one write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// Primary ranges that the write affects; empty as long as the message has not been delivered here.
    affected: Vec<KeyRange>,
    /// The processes that hold them: they need the votes until they are durable past the write.
    holders: Vec<ProcessId>,
    votes: BTreeMap<KeyRange, Choice>,
}

impl Ballot {
    /// How the write ends, if that is known.
    pub fn decision(&self) -> Option<Decision> {
        if self.votes.values().any(|vote| *vote != Choice::Commit) {
            return Some(Decision::Abort);
        }
        let complete =
            !self.affected.is_empty() && self.affected.iter().all(|range| self.votes.contains_key(range));
        complete.then_some(Decision::Commit)
    }

    /// Whether it ends as it does because a vote is lost.
    pub fn is_lost(&self) -> bool {
        let has = |choice| self.votes.values().any(|vote| *vote == choice);
        has(Choice::Lost) && !has(Choice::Abort)
    }

    /// Ranges that have not voted.
    pub fn missing(&self) -> impl Iterator<Item = KeyRange> {
        self.affected.iter().copied().filter(|range| !self.votes.contains_key(range))
    }

    /// The processes that hold affected ranges.
    pub fn holders(&self) -> &[ProcessId] {
        &self.holders
    }
}

/// The votes that this process knows and may still be asked for.
#[derive(Debug, Default)]
pub struct Ballots {
    by_ts: BTreeMap<Ts, Ballot>,
}

impl Ballots {
    /// Those that a checkpoint kept.
    pub fn restore(kept: Vec<(Ts, Ballot)>) -> Ballots {
        Ballots { by_ts: kept.into_iter().collect() }
    }

    /// Those about writes up to `ts`, for a checkpoint.
    pub fn up_to(&self, ts: Ts) -> Vec<(Ts, Ballot)> {
        self.by_ts.range(..=ts).map(|(ts, ballot)| (*ts, ballot.clone())).collect()
    }

    /// The write has been delivered here.
    pub fn open(&mut self, ts: Ts, affected: Vec<KeyRange>, holders: Vec<ProcessId>) {
        let ballot = self.by_ts.entry(ts).or_default();
        ballot.affected = affected;
        ballot.holders = holders;
    }

    /// The votes about a write.
    pub fn get(&self, ts: Ts) -> Option<&Ballot> {
        self.by_ts.get(&ts)
    }

    /// Records a vote.
    ///
    /// # Errors
    /// When the range has already voted otherwise: two replicas of it differ.
    pub fn cast(&mut self, vote: &Vote) -> Result<(), String> {
        let ballot = self.by_ts.entry(vote.ts).or_default();
        // The first one counts.
        match ballot.votes.get(&vote.range).copied() {
            Some(earlier) if earlier != vote.vote => Err(format!(
                "replicas of range {} voted differently about the write at {}",
                vote.range, vote.ts
            )),
            Some(_) if planted(Bug::VoteCountedTwice) => {
                let other = ballot.missing().next();
                ballot.votes.extend(other.map(|range| (range, vote.vote)));
                Ok(())
            }
            Some(_) => Ok(()),
            None => {
                ballot.votes.insert(vote.range, vote.vote);
                Ok(())
            }
        }
    }

    /// The votes of a range about writes before `until`, for somebody who receives the range from `sender`; `durable` as
    /// for [`Ballots::forget`].
    pub fn of_range(
        &self,
        sender: ProcessId,
        range: KeyRange,
        until: Ts,
        durable: impl Fn(ProcessId) -> Ts,
    ) -> Vec<(Ts, Ballot)> {
        let votes = |ballot: &&Ballot| ballot.votes.keys().any(|voter| voter.overlaps(&range));
        let handed_on = |(ts, ballot): (&Ts, &Ballot)| {
            let mut ballot = ballot.clone();
            // The receiver may never hear how far these are.
            ballot.holders.retain(|holder| durable(*holder) < *ts);
            ballot.holders.push(sender);
            (*ts, ballot)
        };
        self.by_ts.range(..until).filter(|(_, ballot)| votes(ballot)).map(handed_on).collect()
    }

    /// Takes what [`Ballots::of_range`] has given to `receiver`.
    ///
    /// # Errors
    /// When a range has already voted otherwise.
    pub fn receive(&mut self, receiver: ProcessId, handed_on: Vec<(Ts, Ballot)>) -> Result<(), String> {
        for (ts, Ballot { affected, holders, votes }) in handed_on {
            let ballot = self.by_ts.entry(ts).or_default();
            if ballot.affected.is_empty() {
                ballot.affected = affected;
            }
            let known = ballot.holders.clone();
            let is_new = |holder: &ProcessId| *holder != receiver && !known.contains(holder);
            ballot.holders.extend(holders.into_iter().filter(is_new));
            votes.into_iter().try_for_each(|(range, vote)| self.cast(&Vote { ts, range, vote }))?;
        }
        Ok(())
    }

    /// All known votes about a write.
    pub fn votes(&self, ts: Ts) -> impl Iterator<Item = Vote> {
        let votes = self.by_ts.get(&ts).into_iter().flat_map(|ballot| &ballot.votes);
        votes.map(move |(range, vote)| Vote { ts, range: *range, vote: *vote })
    }

    /// The oldest write about which votes are kept.
    pub fn oldest(&self) -> Option<Ts> {
        self.by_ts.keys().next().copied()
    }

    /// Forgets the votes about writes up to `own`, as far as every other holder's durable watermark, given by
    /// `durable`, has passed them too: nobody will replay such a write.
    pub fn forget(&mut self, own: Ts, durable: impl Fn(ProcessId) -> Ts) {
        let passed: Vec<Ts> = self
            .by_ts
            .range(..=own)
            .filter(|(ts, ballot)| {
                let passed = ballot.holders.iter().all(|holder| durable(*holder) >= **ts);
                passed || planted(Bug::VotesForgottenTooEarly)
            })
            .map(|(ts, _)| *ts)
            .collect();
        for ts in passed {
            self.by_ts.remove(&ts);
        }
    }

    /// How many writes there are votes about.
    pub fn len(&self) -> usize {
        self.by_ts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_ts.is_empty()
    }
}
