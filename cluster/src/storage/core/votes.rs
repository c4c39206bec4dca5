//! Votes about undecided writes (DESIGN, decision 5), and how long they and payloads are kept.

use std::collections::{BTreeMap, BTreeSet};

use carousel_engine::{Ts, position::KeyRange};

use super::{ContentHash, Core, Effect, Running, global, local};
use crate::{
    config::Config,
    message::{Incarnation, ProcessId},
    storage::{ballot::Ballot, migration::PartId},
    wire::{Choice, MissingVotes, Vote, Wire},
};

/// Those who seem to be less durable than this process are asked whether they are so often.
const ASK_DURABLE_MS: u64 = 5_000;

/// Who has said of a vote that it does not have it.
#[derive(Debug, Default)]
pub(super) struct Nowhere {
    /// `Ts` of the last configuration message that was known then.
    heard: Ts,
    /// Answers to earlier questions do not count.
    since: u64,
    without: BTreeMap<ProcessId, Incarnation>,
    /// Who had said so in the round before.
    before: Option<BTreeMap<ProcessId, Incarnation>>,
    /// The holders have said so, and the others were asked in this round.
    asked_all: bool,
}

impl Nowhere {
    /// Begins anew when another configuration message is known.
    fn begin(&mut self, heard: Ts) {
        if self.heard != heard {
            *self = Nowhere { heard, since: self.since, ..Nowhere::default() };
        }
    }

    /// Whether nobody has the vote. When all have said so, `next` is the first question of another round, unless this was
    /// the second one and everybody is in the same life as in the first.
    fn ends_round(&mut self, all: &[ProcessId], next: u64) -> bool {
        if !all.iter().all(|process| self.without.contains_key(process)) {
            return false;
        }
        let round = std::mem::take(&mut self.without);
        let is_same =
            |before: &BTreeMap<_, _>| all.iter().all(|process| before.get(process) == round.get(process));
        let is_lost = self.before.as_ref().is_some_and(is_same);
        (self.before, self.since, self.asked_all) = (Some(round), next, false);
        is_lost
    }
}

/// How far other processes are durable, as far as anybody waits for them: those for whom the log is kept replay it, and who
/// has left the ring may still have to end what it has begun.
pub(super) fn durable(
    peers: &BTreeMap<ProcessId, (Ts, Vec<ContentHash>)>,
    config: &Config,
) -> impl Fn(ProcessId) -> Ts {
    let (keepers, standbys): (Vec<ProcessId>, Vec<ProcessId>) = (
        config.keepers_of_log().collect(),
        config.standbys().filter(|standby| !config.is_suspected(*standby)).collect(),
    );
    move |process| match keepers.contains(&process) || standbys.contains(&process) {
        true => peers.get(&process).map_or(Ts::ZERO, |(ts, _)| *ts),
        false => Ts::INFINITY,
    }
}

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

    pub(super) fn send_votes(&mut self, to: ProcessId, votes: Vec<Vote>) {
        if !self.gives_up_its_data() {
            let incarnation = self.options.incarnation;
            self.has_told_votes = true;
            self.effects.push(Effect::Send(to, Wire::Votes { incarnation, votes }));
        }
    }

    /// Takes the votes that another process knows. What somebody says who is not waited for any more comes too late: the
    /// others may have found that those votes are lost.
    pub(super) fn hear_votes(&mut self, from: ProcessId, incarnation: Incarnation, votes: Vec<Vote>) {
        let (known, config) = self.latest();
        let is_old = config.incarnation(from).is_some_and(|life| life > incarnation);
        let comes_late = is_old || !config.is_awaited(from);
        for vote in votes {
            // What is not kept any more has been decided and is durable here.
            let is_open = vote.ts > self.delivered || self.ballots.get(vote.ts).is_some();
            if is_open && !(comes_late && vote.ts <= known) {
                self.cast(&vote);
            }
        }
    }

    /// Takes the votes about writes of a part that is received.
    pub(super) fn receive_votes(&mut self, part: PartId, votes: &[u8]) {
        let decoded = postcard::from_bytes::<Vec<(Ts, Ballot)>>(votes).map_err(|error| error.to_string());
        let received = decoded.and_then(|ballots| {
            let writes: Vec<Ts> = ballots.iter().map(|(ts, _)| *ts).collect();
            if let Some(keeping) = self.receiving_of(part.keyspace) {
                keeping.ballots.entry(part.range).or_default().extend_from_slice(&ballots);
            }
            self.ballots.receive(self.options.id, ballots)?;
            Ok(writes)
        });
        match received {
            Ok(writes) => writes.into_iter().for_each(|ts| self.decide(ts)),
            Err(reason) => self.effects.push(Effect::Stop(reason)),
        }
    }

    /// Tells another process what is known here of votes that it lacks.
    pub(super) fn tell_votes(&mut self, to: ProcessId, missing: MissingVotes) {
        let MissingVotes { heard, question, mut votes } = missing;
        let wanted = |(ts, ranges): &(Ts, Vec<KeyRange>)| {
            let known = self.ballots.votes(*ts).filter(|vote| ranges.contains(&vote.range));
            known.collect::<Vec<_>>()
        };
        let known: Vec<Vote> = votes.iter().flat_map(wanted).collect();
        if !known.is_empty() {
            self.send_votes(to, known);
        }
        let (_, config) = self.latest();
        if config.changed_at() != heard || !config.is_awaited(to) || self.gives_up_its_data() {
            // One of them may take votes of somebody whom the other does not wait for any more; or must not decide anything.
            return;
        }
        // Who has said that it is durable past a write has no question about it, or had it in an earlier life.
        let durable = self.peers.get(&to).map_or(Ts::ZERO, |(ts, _)| *ts);
        votes.retain(|(ts, _)| *ts > durable);
        for (ts, ranges) in &mut votes {
            ranges.retain(|range| self.never_has(*ts, *range));
        }
        votes.retain(|(_, ranges)| !ranges.is_empty());
        if !votes.is_empty() {
            let incarnation = self.options.incarnation;
            let missing = MissingVotes { heard, question, votes };
            self.effects.push(Effect::Send(to, Wire::NoVotes { incarnation, missing }));
        }
    }

    /// Whether the vote of a range is not known here, and will not be cast here. Votes are forgotten only when nobody who is
    /// waited for may ask for them; what may still be received with rows, its sender is asked for, too.
    fn never_has(&self, ts: Ts, range: KeyRange) -> bool {
        let is_known = self.ballots.votes(ts).any(|vote| vote.range == range);
        !is_known && ts <= self.delivered && !self.votes_here(ts, range)
    }

    /// Another process does not have votes that are missing here.
    pub(super) fn hear_no_votes(&mut self, from: ProcessId, incarnation: Incarnation, missing: MissingVotes) {
        let MissingVotes { heard, question, votes } = missing;
        if heard != self.latest().1.changed_at() {
            // Since then somebody may have failed from whom it has heard them.
            return;
        }
        for (ts, ranges) in votes.into_iter().filter(|(ts, _)| self.needs_votes(*ts)).collect::<Vec<_>>() {
            for range in ranges {
                let nowhere = self.nowhere.entry((ts, range)).or_default();
                nowhere.begin(heard);
                if question >= nowhere.since {
                    nowhere.without.insert(from, incarnation);
                }
            }
            self.end_lost_vote(ts);
        }
    }

    /// Whether some of these have not said that they do not have the vote of a range.
    fn may_have(&self, ts: Ts, range: KeyRange, mut others: impl Iterator<Item = ProcessId>) -> bool {
        let nowhere = self.nowhere.get(&(ts, range));
        others.any(|other| nowhere.is_none_or(|nowhere| !nowhere.without.contains_key(&other)))
    }

    /// The other holders of what a write affects, of those who are waited for.
    fn awaited_holders(&self, ballot: &Ballot) -> Vec<ProcessId> {
        let (_, config) = self.latest();
        ballot.holders().iter().copied().filter(|holder| config.is_awaited(*holder)).collect()
    }

    /// All other processes that are waited for: who has received a range since has the votes of those who held it.
    fn awaited(&self) -> Vec<ProcessId> {
        let mut awaited = self.latest().1.awaited();
        awaited.retain(|process| *process != self.options.id);
        awaited
    }

    /// The ranges whose votes about a write are missing, and will not be cast here.
    fn missing_elsewhere(&self, ts: Ts) -> Vec<KeyRange> {
        let ballot = self.ballots.get(ts).filter(|ballot| ballot.decision().is_none());
        let missing = ballot.into_iter().flat_map(Ballot::missing);
        missing.filter(|range| !self.votes_here(ts, *range)).collect()
    }

    /// Ends a write when a vote that is missing is lost: nobody has it of all who are waited for.
    ///
    /// Whoever says that it has no vote takes none of those who are not waited for, as it knows of the same failures. Who
    /// was asked later than another may have had the vote then, and told it to that one, and lost it with its life: so all
    /// are asked a second time, in the same lives. Then nobody had it between the two rounds, and all who lack it come to
    /// the same end. Who has failed may have known it and committed: what was written in that range has failed with all its
    /// holders.
    pub(super) fn end_lost_vote(&mut self, ts: Ts) {
        let heard = self.latest().1.changed_at();
        // What had been ordered before this life began comes first; what has been since it may not take for long.
        let is_behind = self.frontier < self.moving.present.0;
        if is_behind || self.gives_up_its_data() || self.undecided(ts).next().is_none() {
            return;
        }
        let Some(ballot) = self.ballots.get(ts) else { return };
        let holders = self.awaited_holders(ballot);
        let mut missing = self.missing_elsewhere(ts);
        missing.retain(|range| !self.may_have(ts, *range, holders.iter().copied()));
        if missing.is_empty() {
            return;
        }
        let others = self.awaited();
        let mut lost = Vec::new();
        let mut ask_on = false;
        for range in missing {
            let nowhere = self.nowhere.entry((ts, range)).or_default();
            nowhere.begin(heard);
            if nowhere.ends_round(&others, self.questions_asked + 1) {
                lost.push(Vote { ts, range, vote: Choice::Lost });
                continue;
            }
            // At once: whoever ends again and again because of this very write must not be awaited in every life.
            let ends_round = nowhere.without.is_empty();
            ask_on |= ends_round || !std::mem::replace(&mut nowhere.asked_all, true);
        }
        if lost.is_empty() {
            self.questions.extend(ask_on.then_some(ts));
            return;
        }
        self.effects.extend(lost.iter().map(|vote| Effect::VoteLost { ts, range: vote.range }));
        others.into_iter().for_each(|other| self.send_votes(other, lost.clone()));
        lost.iter().for_each(|vote| self.cast(vote));
    }

    /// A write has ended.
    pub(super) fn forget_nowhere(&mut self, ts: Ts) {
        let first = (ts, KeyRange::new(0, 0));
        while let Some(key) =
            self.nowhere.range(first..).next().map(|(key, _)| *key).filter(|key| key.0 == ts)
        {
            self.nowhere.remove(&key);
        }
    }

    /// Whether votes about a write are kept here.
    pub(crate) fn keeps_votes(&self, ts: Ts) -> bool {
        self.ballots.get(ts).is_some()
    }

    /// Whether a write has been begun here that others must vote about before it is decided.
    pub(crate) fn needs_votes(&self, ts: Ts) -> bool {
        self.undecided(ts).next().is_some() && !self.missing_elsewhere(ts).is_empty()
    }

    /// The parts of an undecided write that have not ended.
    fn undecided(&self, ts: Ts) -> impl Iterator<Item = &Running> {
        self.parts(local(ts)).map(|part| self.running[&part].as_ref()).filter(|part| part.undecided)
    }

    /// Whether a range will vote here: what a write acts on here votes here, whatever is held since.
    fn votes_here(&self, ts: Ts, range: KeyRange) -> bool {
        self.undecided(ts).any(|part| part.outcomes.iter().any(|(known, _)| *known == range))
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
        let mut questions: BTreeMap<ProcessId, Vec<(Ts, Vec<KeyRange>)>> = BTreeMap::new();
        for ts in writes {
            let missing = self.missing_elsewhere(ts);
            let Some(ballot) = self.ballots.get(ts).filter(|_| !missing.is_empty()) else { continue };
            // The ring may have changed since: those who held the ranges then have voted.
            let holders = self.awaited_holders(ballot);
            let is_nowhere = |range: &KeyRange| !self.may_have(ts, *range, holders.iter().copied());
            let asked = if missing.iter().any(is_nowhere) { self.awaited() } else { holders };
            for process in asked {
                questions.entry(process).or_default().push((ts, missing.clone()));
            }
        }
        self.questions_asked += 1;
        let (heard, question) = (self.latest().1.changed_at(), self.questions_asked);
        for (process, votes) in questions {
            self.effects.push(Effect::Send(process, Wire::AskVotes(MissingVotes { heard, question, votes })));
        }
    }

    /// Asks those whom votes or payloads are kept for how far they are durable. They say so after each checkpoint, but that
    /// may be lost, and who has left the ring makes no more.
    pub(super) fn ask_durable(&mut self) {
        let kept = self.ballots.oldest().into_iter().chain(self.payloads.keys().next().copied()).min();
        if self.now_ms < self.asked_durable_ms + ASK_DURABLE_MS
            || kept.is_none_or(|ts| ts > self.told_durable)
        {
            return;
        }
        self.asked_durable_ms = self.now_ms;
        let config = &self.options.config;
        let durable = durable(&self.peers, config);
        let others: BTreeSet<ProcessId> = config.storage_processes().chain(config.standbys()).collect();
        let behind = others
            .into_iter()
            .filter(|other| *other != self.options.id && durable(*other) < self.told_durable);
        for process in behind.collect::<Vec<_>>() {
            self.effects.push(Effect::Send(process, self.durable_wire(true)));
        }
    }

    /// Says how far this process is durable, as far as others may count on that: until it has been ordered that it has received
    /// something, a life without data may take its place and execute all again that has come since
    /// ([`crate::router::MSeq::begins`]), with the votes and payloads that others have.
    pub(super) fn tell_durable(&mut self) {
        let counts = self.moving.counts_until(self.durable, self.options.id);
        if counts > self.told_durable {
            self.told_durable = counts;
            for peer in self.peers_of_ring().collect::<Vec<_>>() {
                self.effects.push(Effect::Send(peer, self.durable_wire(false)));
            }
        }
    }

    /// Forgets votes and payloads that nobody will replay.
    pub(super) fn forget(&mut self) {
        let durable = durable(&self.peers, &self.options.config);
        self.ballots.forget(self.told_durable, &durable);
        let own = self.options.id;
        let passed: Vec<Ts> = self
            .payloads
            .range(..=self.told_durable)
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
