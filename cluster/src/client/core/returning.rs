//! Rows that RETURNING gives and that replicas have kept, as they are many: they are fetched from those whose answers count,
//! when all ranges have been answered for. A replica that is lost before it has sent any is replaced by another.

use super::*;

/// The outcome of a write is known, and some of what it returns will not come.
pub(super) fn rows_lost() -> SqlError {
    let message = "the statement took effect, but rows that it returns were lost with their storage process";
    SqlError::new(SqlState::OUTCOME_UNKNOWN, message)
}

impl Core {
    /// All ranges have been answered for: asks for the rows that have not been asked for.
    pub(super) fn fetch(&mut self, sequence: u64) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        let mut wanted: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        for (range, fetching) in &mut open.fetching {
            if !std::mem::replace(&mut fetching.asked, true) {
                wanted.entry(fetching.from).or_default().push(*range);
            }
        }
        let id = open.message.id;
        let fetch = |(process, ranges)| Effect::Send(process, Wire::Fetch { id, ranges });
        self.effects.extend(wanted.into_iter().map(fetch));
    }

    /// A replica has sent all rows of a range.
    pub(super) fn returned(&mut self, sequence: u64, from: ProcessId, ts: Ts, range: KeyRange) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        if open.fetching.get(&range).is_none_or(|fetching| fetching.from != from || !fetching.asked) {
            return;
        }
        open.fetching.remove(&range);
        if let Some(kept) = open.kept.get_mut(&from) {
            kept.remove(&range);
            if kept.is_empty() {
                open.kept.remove(&from);
            }
        }
        if open.fetching.is_empty() && open.answered.covers(&open.message.ranges) {
            let rows = open.answered.rows();
            self.end(sequence, Ok(Part::Done { ts, rows }));
        }
    }

    /// What a process has kept is lost.
    pub(super) fn lose_kept(&mut self, process: ProcessId) {
        let keeps = |open: &Open| open.kept.contains_key(&process);
        let lost = self.open.iter().filter(|(_, open)| keeps(open));
        let mut lost: Vec<u64> = lost.map(|(sequence, _)| *sequence).collect();
        lost.sort_unstable();
        for sequence in lost {
            let kept = self.open.get(&sequence).and_then(|open| open.kept.get(&process)).cloned();
            self.lose_kept_of(sequence, process, &kept.unwrap_or_default());
        }
    }

    /// What a process has kept of a message is lost: another one sends it, if this one had not begun to. As long as there is
    /// none, nobody has answered for those ranges.
    pub(super) fn lose_kept_of(&mut self, sequence: u64, process: ProcessId, lost: &BTreeSet<KeyRange>) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        if let Some(kept) = open.kept.get_mut(&process) {
            kept.retain(|range| !lost.contains(range));
            if kept.is_empty() {
                open.kept.remove(&process);
            }
        }
        for range in lost {
            let Some(fetching) = open.fetching.get_mut(range).filter(|fetching| fetching.from == process)
            else {
                continue;
            };
            if fetching.begun {
                return self.end(sequence, Err(Failure::Sql(rows_lost())));
            }
            match open.kept.iter().find(|(_, kept)| kept.contains(range)) {
                Some((other, _)) => *fetching = Fetching { from: *other, asked: false, begun: false },
                None => {
                    open.fetching.remove(range);
                    open.answered.remove(*range);
                    open.lacks_rows = true;
                }
            }
        }
        if open.answered.covers(&open.message.ranges) {
            self.fetch(sequence);
        }
    }
}
