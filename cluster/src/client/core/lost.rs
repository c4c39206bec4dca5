//! Answers that will not come: from processes that have ended, are suspected, or could not be reached. Reads are submitted
//! again under another identity; what is no read ends when nobody will ever know what came of it.

use std::{collections::BTreeSet, iter};

use carousel_engine::position::Position;

use super::*;

/// A read that is not answered for this long makes the client look whether those who owe the answer are there.
const PROBE_AFTER_MS: u64 = 500;
/// About so many messages each of them is asked at a time.
const ASKED: usize = 256;

impl Open {
    /// The configs that it may have been ordered under.
    fn configs(&self) -> impl Iterator<Item = &Config> {
        let later = self.later.iter().map(|later| (later.since, &later.config));
        let configs = iter::once((Ts::ZERO, &self.config)).chain(later);
        let until = self.later.iter().map(|later| later.by).chain(iter::once(Ts::INFINITY));
        let in_time =
            |since: Ts, until: Ts| self.ordered_by.is_none_or(|by| since <= by) && until > self.ordered_after;
        let valid = configs.zip(until).filter(move |((since, _), until)| in_time(*since, *until));
        valid.map(|((_, config), _)| config.as_ref())
    }

    /// The storage processes that may owe an answer.
    pub(super) fn unanswered_by(&self) -> BTreeSet<ProcessId> {
        let is_open = |range: &KeyRange| !self.answered.covers(&[*range]);
        let destinations = self.configs().flat_map(|config| config.destset(&self.message));
        destinations.filter(|(_, ranges)| ranges.iter().any(is_open)).map(|(process, _)| process).collect()
    }

    /// The storage processes that may have executed what is no read, under any of the configs it may have been ordered
    /// under: one of each set has to answer. For a write, the sets are those of the positions where ranges begin that nobody
    /// has answered for.
    fn executors(&self) -> Vec<BTreeSet<ProcessId>> {
        let configs: Vec<&Config> = self.configs().collect();
        let everything = [KeyRange::FULL];
        let wanted = match &self.message.body {
            Body::Data(data) if data.operation.is_write() => &self.message.ranges[..],
            Body::Pin { .. } | Body::Checkpoint => &everything[..],
            // Reads are asked again anyhow; the client itself finds the outcome of the others.
            Body::Data(_) | Body::Ddl(_) | Body::Configuration(_) => return Vec::new(),
        };
        let begins = |part: KeyRange| {
            let overlapping = wanted.iter().filter(move |range| range.overlaps(&part));
            overlapping.map(move |range| range.first.max(part.first))
        };
        let parts = configs.iter().flat_map(|config| config.overlapping(wanted));
        let positions: BTreeSet<Position> = parts.flat_map(begins).collect();
        let open = positions.into_iter().filter(|at| !self.answered.covers(&[KeyRange::point(*at)]));
        let executors = |at: Position| {
            let holds = |config: &Config, process: ProcessId| {
                let since = config.held_since(process, at).filter(|_| !config.is_suspected(process));
                since.is_some_and(|since| self.ordered_by.is_none_or(|by| since <= by))
            };
            let mut executors = BTreeSet::new();
            for config in &configs {
                let holders = config.holders(config.range_of(at)).into_iter();
                executors.extend(holders.filter(|process| holds(config, *process)));
            }
            executors
        };
        let executors = open.map(executors);
        match is_for_storage(&self.message.body) {
            true => vec![executors.flatten().collect()],
            false => executors.collect(),
        }
    }
}

impl Core {
    /// Another leader leads: it does not know the snapshot reads that were sent to the one before it.
    pub(super) fn lose_sent_reads(&mut self) {
        let unsent: HashSet<u64> = self.unsent_reads.iter().map(|message| message.id.sequence).collect();
        let sent = |open: &Open| {
            open.isolation == ReadIsolation::Snapshot && !unsent.contains(&open.message.id.sequence)
        };
        self.sequences(sent).into_iter().for_each(|sequence| self.lose_read(sequence));
    }

    /// A read will not be answered in full, or may not be. It is sent again, under another identity, when time has passed:
    /// what is missing needs time to come back.
    pub(super) fn lose_read(&mut self, sequence: u64) {
        match self.open.get(&sequence) {
            Some(open) if open.handed_out => self.end_lost(sequence, "a process"),
            Some(_) => {
                let lost = self.take_back(sequence);
                self.lost_reads.extend(lost);
            }
            // It was answered, cancelled or sent again meanwhile.
            None => {}
        }
    }

    /// Ends a read of which the user has some rows and will not get the others.
    pub(super) fn end_lost(&mut self, sequence: u64, whom: &str) {
        let error = SqlError::new(
            SqlState::SERIALIZATION_FAILURE,
            format!("{whom} was lost while it answered the statement"),
        )
        .with_hint("Run the statement again, or the transaction that it is part of.");
        self.end(sequence, Err(Failure::Sql(error)));
    }

    pub(super) fn send_lost_reads(&mut self) {
        for lost in std::mem::take(&mut self.lost_reads) {
            self.resubmit(lost);
        }
    }

    pub(super) fn restarted(&mut self, process: ProcessId, incarnation: Incarnation) {
        let known = self.incarnations.get(&process).copied();
        let announced = self.unannounced.remove(&process) && known == Some(incarnation);
        if announced || known.is_none_or(|known| known < incarnation) {
            self.incarnations.insert(process, incarnation);
            self.lose_kept(process);
            self.ask_again(process);
        }
    }

    /// A process that was absent is there again: what `back` has been sent meanwhile it may have answered in vain, and what
    /// others owe who are absent it may answer.
    pub(super) fn ask_absent_again(&mut self, back: Option<ProcessId>) {
        let absent: BTreeSet<ProcessId> = back.into_iter().chain(self.absent.iter().copied()).collect();
        self.ask_owed_again(|process| absent.contains(&process));
    }

    /// Submits reads again that a storage process owes, or may owe, and will not answer any more, or not in full. Those that it
    /// may owe are submitted after a tick: what makes it lose answers may make others lose theirs. Not where it has no place on
    /// the ring, as far as is known here: most of these are met for the first time, as they have just begun to stand by.
    pub(super) fn ask_again(&mut self, process: ProcessId) {
        let unplaced = self.unplaced();
        let has_place = !self.config.held(process).is_empty();
        self.ask_owed_again(|owes| owes == process);
        for sequence in unplaced {
            let is_handed_out = self.open.get(&sequence).is_some_and(|open| open.handed_out);
            match has_place || is_handed_out {
                true => self.lose_read(sequence),
                false => self.submit_again(sequence),
            }
        }
    }

    /// Submits reads again that some storage processes owe, by what is known here, and will not answer any more.
    pub(super) fn ask_owed_again(&mut self, concerns: impl Fn(ProcessId) -> bool) {
        for (sequence, owed_by) in self.owed(concerns, 0) {
            match owed_by.first().filter(|_| self.open.get(&sequence).is_some_and(|open| open.handed_out)) {
                Some(process) => self.end_lost(sequence, &format!("storage process {process}")),
                None => self.submit_again(sequence),
            }
        }
    }

    /// Reads that may stand behind configs which are not known here yet: anybody may owe them.
    fn unplaced(&self) -> Vec<u64> {
        self.sequences(|open| {
            open.is_read()
                && open.isolation != ReadIsolation::Basic
                && open.ordered_by.is_none_or(|by| by > self.frontier)
        })
    }

    /// Deals with what all who may have executed it will not answer any more: nobody will know what came of it. Pins and
    /// checkpoints are asked for again. Returns who may still answer what has been open for a while, with what each can be
    /// asked about, and by when that was ordered.
    pub(super) fn end_passed(&mut self, older_than_ms: u64) -> BTreeMap<ProcessId, Vec<(MessageId, Ts)>> {
        let mut awaited: BTreeMap<ProcessId, Vec<(MessageId, Ts)>> = BTreeMap::new();
        let mut lost: Vec<(u64, bool, bool)> = Vec::new();
        for (sequence, open) in &self.open {
            if open.submitted_ms + older_than_ms > self.now_ms {
                continue;
            }
            let executors = open.executors();
            let silent =
                |processes: &BTreeSet<ProcessId>| processes.iter().all(|id| self.is_silent(open, *id));
            if executors.iter().any(silent) {
                lost.push((*sequence, is_for_storage(&open.message.body), open.lacks_rows));
            } else {
                let asked = open.ordered_by.map(|by| (open.message.id, by));
                for process in executors.into_iter().flatten().collect::<BTreeSet<_>>() {
                    awaited.entry(process).or_default().extend(asked);
                }
            }
        }
        awaited.values_mut().for_each(|messages| messages.sort_unstable());
        lost.sort_unstable();
        for (sequence, again, lacks_rows) in lost {
            if again {
                self.submit_again(sequence);
            } else if lacks_rows {
                self.end(sequence, Err(Failure::Sql(returning::rows_lost())));
            } else {
                let reason =
                    "those who executed it have ended or could not be reached before their answer had come";
                let reason = SqlError::new(SqlState::CONNECTION_FAILURE, reason);
                self.end(sequence, Err(Failure::Sql(outcome_unknown(reason))));
            }
        }
        awaited
    }

    /// Deals with what has been open for a while. Returns who may still answer something of it; now and then they are also
    /// asked whether they will.
    pub(super) fn ask_overdue(&mut self) -> BTreeSet<ProcessId> {
        self.end_forlorn();
        let owed = self.owed(|_| true, PROBE_AFTER_MS);
        let mut overdue: BTreeSet<ProcessId> =
            owed.into_iter().flat_map(|(_, processes)| processes).collect();
        let fetching = self.open.values().flat_map(|open| open.fetching.values());
        overdue.extend(fetching.map(|fetching| fetching.from));
        let awaited = self.end_passed(PROBE_AFTER_MS);
        let asks = self.now_ms >= self.asked_ms + PROBE_AFTER_MS;
        if asks {
            self.asked_ms = self.now_ms;
        }
        for (process, mut messages) in awaited {
            overdue.insert(process);
            if asks && !messages.is_empty() {
                let last = self.asked.entry(process).or_default();
                let next = messages.partition_point(|(id, _)| id.sequence <= *last) % messages.len();
                messages.rotate_left(next);
                messages.truncate(ASKED);
                *last = messages.last().map_or(0, |(id, _)| id.sequence);
                self.effects.push(Effect::Send(process, Wire::AskAnswers(messages)));
            }
        }
        overdue
    }

    /// Deals with reads that nobody owes an answer, though some ranges have none: whoever holds them where the read has been
    /// ordered has not had them at the time that it reads.
    fn end_forlorn(&mut self) {
        let is_overdue = |open: &Open| open.is_read() && open.submitted_ms + PROBE_AFTER_MS <= self.now_ms;
        let overdue = self.open.iter().filter(|(_, open)| is_overdue(open));
        let forlorn = overdue.filter(|(_, open)| open.unanswered_by().is_empty());
        let mut forlorn: Vec<(u64, bool)> =
            forlorn.map(|(sequence, open)| (*sequence, open.handed_out)).collect();
        forlorn.sort_unstable();
        for (sequence, handed_out) in forlorn {
            match handed_out {
                true => self.end_lost(sequence, "the snapshot"),
                false => self.submit_again(sequence),
            }
        }
    }

    /// A process has told that there is nothing more to come from it. It need not have executed these messages at all: by what
    /// is known here they may have been ordered under a config that leaves them to others.
    pub(super) fn not_answered(&mut self, process: ProcessId, messages: &[MessageId]) {
        for id in messages.iter().filter(|id| id.incarnation == self.options.incarnation) {
            if let Some(open) = self.open.get_mut(&id.sequence) {
                open.done.insert(process);
            }
        }
        let _ = self.end_passed(0);
    }

    /// For each message that waits for answers: who may still give them, and by when it was ordered.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        let awaited = |(sequence, open): (&u64, &Open)| {
            let processes: BTreeSet<ProcessId> = open.executors().into_iter().flatten().collect();
            format!("{sequence} for {processes:?}, ordered by {:?}", open.ordered_by)
        };
        self.open.iter().map(awaited).collect()
    }

    /// Whether a process that may have executed a message will not answer, or answer more: it has done so, it is suspected, it
    /// was suspected later and has begun anew since, it is no member any more, or it executed the message in an earlier life.
    fn is_silent(&self, open: &Open, process: ProcessId) -> bool {
        let passed = self.passed.get(&process).is_some_and(|passed| *passed >= open.message.id.sequence);
        let fenced = open.fenced.get(&process).zip(open.ordered_by).is_some_and(|(since, by)| by < *since);
        // As long as this client does not know the config of then, others may hold what it takes for that process's.
        let knows = open.ordered_by.is_some_and(|by| by <= self.frontier);
        let is_removed = !self.config.contains(process);
        knows && (passed || open.done.contains(&process) || is_removed)
            || fenced
            || self.config.is_suspected(process)
    }

    /// Submits an open read again, under another identity.
    pub(super) fn submit_again(&mut self, sequence: u64) {
        if let Some(read) = self.take_back(sequence) {
            self.resubmit(read);
        }
    }

    /// Submits a read that was open again, under another identity.
    pub(super) fn resubmit(&mut self, read: Open) {
        self.unsend(read.message.id.sequence);
        let Message { tables, ranges, body, .. } = Message::clone(&read.message);
        if let Some(error) = self.refusal(&body, &ranges) {
            self.effects.push(Effect::Part(read.submission, Err(Failure::Sql(error))));
            return self.close(&read);
        }
        let Open { submission, isolation, lacking, .. } = read;
        // The submission keeps its place in the window: one of its messages is open at a time.
        self.submit_message(submission, Request { tables, ranges, body }, isolation, lacking);
    }

    /// Takes back a read that was not sent.
    pub(super) fn unsend(&mut self, sequence: u64) {
        self.unsent_reads.retain(|message| message.id.sequence != sequence);
        for reads in self.unsent_basic.values_mut() {
            reads.retain(|(message, _)| message.id.sequence != sequence);
        }
    }

    /// Reads that some storage process owes an answer, in the order of submission, with those processes.
    pub(super) fn owed(
        &self,
        concerns: impl Fn(ProcessId) -> bool,
        older_than_ms: u64,
    ) -> Vec<(u64, Vec<ProcessId>)> {
        let mut owed = Vec::new();
        for (sequence, open) in &self.open {
            if !open.is_read() || open.submitted_ms + older_than_ms > self.now_ms {
                continue;
            }
            let processes: Vec<ProcessId> =
                open.unanswered_by().into_iter().filter(|process| concerns(*process)).collect();
            if !processes.is_empty() {
                owed.push((*sequence, processes));
            }
        }
        owed.sort_unstable();
        owed
    }
}
