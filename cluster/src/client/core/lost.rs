//! Answers that will not come: from processes that have ended, are suspected, or could not be reached. Reads are submitted
//! again under another identity; what is no read ends when nobody will ever know what came of it.

use super::*;

impl Core {
    /// Another leader leads: it does not know the snapshot reads that were sent to the one before it.
    pub(super) fn lose_sent_reads(&mut self) {
        let unsent: HashSet<u64> = self.unsent_reads.iter().map(|message| message.id.sequence).collect();
        let sent = |open: &&Open| {
            open.isolation == ReadIsolation::Snapshot && !unsent.contains(&open.message.id.sequence)
        };
        let mut lost: Vec<u64> =
            self.open.values().filter(sent).map(|open| open.message.id.sequence).collect();
        lost.sort_unstable();
        lost.into_iter().for_each(|sequence| self.lose_read(sequence));
    }

    /// A snapshot or basic read will not be answered in full. It is sent again, under another identity, when time has passed:
    /// what is missing needs time to come back.
    pub(super) fn lose_read(&mut self, sequence: u64) {
        match self.open.get(&sequence) {
            Some(open) if open.handed_out => self.end_lost(sequence, "a process"),
            Some(_) => {
                let lost = self.take_open(sequence);
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
        .with_hint("Run the statement again.");
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
            self.ask_again(process);
        }
    }

    /// Submits reads again that a storage process owes and will not answer any more.
    pub(super) fn ask_again(&mut self, process: ProcessId) {
        let owed: Vec<u64> =
            self.owed(|p| p == process, 0).into_iter().map(|(sequence, _)| sequence).collect();
        for sequence in owed {
            if self.open.get(&sequence).is_some_and(|open| open.handed_out) {
                self.end_lost(sequence, &format!("storage process {process}"));
                continue;
            }
            self.submit_again(sequence);
        }
    }

    /// Ends what is not a read and what a process that stayed up may have answered in vain: nobody will know.
    pub(super) fn end_unanswered(&mut self, process: ProcessId) {
        let is_read = |body: &Body| matches!(body, Body::Data(data) if !data.operation.is_write());
        let concerns =
            |open: &&Open| !is_read(&open.message.body) && open.unanswered_by().any(|owing| owing == process);
        let mut unanswered: Vec<u64> =
            self.open.values().filter(concerns).map(|open| open.message.id.sequence).collect();
        unanswered.sort_unstable();
        for sequence in unanswered {
            let reason = SqlError::new(
                SqlState::CONNECTION_FAILURE,
                format!("{process} could not be reached for a while"),
            );
            self.end(sequence, Err(Failure::Sql(outcome_unknown(reason))));
        }
    }

    /// Deals with what all processes that could answer have executed in an earlier life: its answer is lost for ever.
    /// Pins and checkpoints are asked for again.
    pub(super) fn end_passed(&mut self) {
        let (config, passed) = (self.config.clone(), self.passed.clone());
        let is_silent = |process: &ProcessId, sequence: u64| {
            config.is_suspected(*process) || passed.get(process).is_some_and(|passed| *passed >= sequence)
        };
        let is_lost = |open: &&Open| {
            let id = open.message.id;
            let is_silent = |process: &ProcessId| is_silent(process, id.sequence);
            id.is_ordered()
                && match &open.message.body {
                    Body::Data(data) if data.operation.is_write() => {
                        let mut ranges = config.overlapping(&open.message.ranges).into_iter();
                        ranges.any(|range| {
                            !covered(&[range], &open.answered) && config.holders(range).iter().all(is_silent)
                        })
                    }
                    Body::Pin { .. } | Body::Checkpoint => {
                        config.storage_processes().all(|process| is_silent(&process))
                    }
                    // Reads are asked again anyhow; the client itself finds the outcome of the others.
                    Body::Data(_) | Body::Ddl(_) | Body::Configuration(_) => false,
                }
        };
        let mut lost: Vec<(u64, bool)> = self
            .open
            .values()
            .filter(is_lost)
            .map(|open| (open.message.id.sequence, is_for_storage(&open.message.body)))
            .collect();
        lost.sort_unstable();
        for (sequence, again) in lost {
            if again {
                self.submit_again(sequence);
            } else {
                let reason = "those who executed it have ended before their answer had come";
                let reason = SqlError::new(SqlState::CONNECTION_FAILURE, reason);
                self.end(sequence, Err(Failure::Sql(outcome_unknown(reason))));
            }
        }
    }

    /// Submits an open read again, under another identity.
    pub(super) fn submit_again(&mut self, sequence: u64) {
        if let Some(read) = self.take_open(sequence) {
            self.resubmit(read);
        }
    }

    /// Submits a read that was open again, under another identity.
    pub(super) fn resubmit(&mut self, read: Open) {
        let Open { submission, message, isolation, .. } = read;
        self.unsend(message.id.sequence);
        let Message { tables, ranges, body, .. } = Message::clone(&message);
        if let Some(error) = self.refusal(&body, &ranges) {
            self.effects.push(Effect::Part(submission, Err(Failure::Sql(error))));
            return self.close(message.id.sequence, submission);
        }
        // The submission keeps its place in the window: one of its messages is open at a time.
        self.submit_message(submission, Request { tables, ranges, body }, isolation);
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
            let is_read = matches!(&open.message.body, Body::Data(data) if !data.operation.is_write());
            if !is_read || open.submitted_ms + older_than_ms > self.now_ms {
                continue;
            }
            let processes: Vec<ProcessId> =
                open.unanswered_by().filter(|process| concerns(*process)).collect();
            if !processes.is_empty() {
                owed.push((*sequence, processes));
            }
        }
        owed.sort_unstable();
        owed
    }
}
