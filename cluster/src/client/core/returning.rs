//! Rows that RETURNING gives and that replicas have kept, as they are many: they are fetched from those whose answers count,
//! when all ranges have been answered for. A replica that is lost before it has sent any is replaced by another.

use super::*;

impl Core {
    /// All ranges have been answered for: asks for the rows.
    pub(super) fn fetch(&mut self, sequence: u64) {
        let Some(open) = self.open.get(&sequence) else { return };
        let mut wanted: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        for (range, Fetching { from, .. }) in &open.fetching {
            wanted.entry(*from).or_default().push(*range);
        }
        let id = open.message.id;
        let fetch = |(process, ranges)| Effect::Send(process, Wire::Fetch { id, ranges });
        self.effects.extend(wanted.into_iter().map(fetch));
    }

    /// A replica has sent all rows of a range.
    pub(super) fn returned(&mut self, sequence: u64, from: ProcessId, range: KeyRange) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        let Some(ts) = open.fetched_at else { return };
        if open.fetching.get(&range).is_none_or(|fetching| fetching.from != from) {
            return;
        }
        open.fetching.remove(&range);
        if let Some(kept) = open.kept.get_mut(&from) {
            kept.remove(&range);
            if kept.is_empty() {
                open.kept.remove(&from);
            }
        }
        if open.fetching.is_empty() {
            let rows = open.answered.rows();
            self.end(sequence, Ok(Part::Done { ts, rows }));
        }
    }

    /// What a process has kept is lost, or may be.
    pub(super) fn lose_kept(&mut self, process: ProcessId, for_sure: bool) {
        let keeps = |open: &Open| open.kept.contains_key(&process);
        let lost = self.open.iter().filter(|(_, open)| keeps(open));
        let mut lost: Vec<u64> = lost.map(|(sequence, _)| *sequence).collect();
        lost.sort_unstable();
        lost.into_iter().for_each(|sequence| self.lose_kept_of(sequence, process, for_sure));
    }

    /// What a process has kept of a message, if anything, is lost, or may be: another one sends it, if this one had not begun
    /// to. If it has begun, what was on its way may be missing.
    pub(super) fn lose_kept_of(&mut self, sequence: u64, process: ProcessId, for_sure: bool) {
        let is_away = for_sure || self.absent.contains(&process);
        let Some(open) = self.open.get_mut(&sequence) else { return };
        let is_kept =
            if for_sure { open.kept.remove(&process).is_some() } else { open.kept.contains_key(&process) };
        if !is_kept {
            return;
        }
        let mut again: BTreeMap<ProcessId, Vec<KeyRange>> = BTreeMap::new();
        for (range, fetching) in open.fetching.iter_mut().filter(|(_, fetching)| fetching.from == process) {
            let has = |(other, kept): &(&ProcessId, &BTreeSet<KeyRange>)| {
                **other != process && kept.contains(range)
            };
            let other = open.kept.iter().find(has).map(|(other, _)| *other).filter(|_| is_away);
            // It may still have them, and says so if not.
            match other.or((!for_sure).then_some(process)).filter(|_| !fetching.begun) {
                Some(other) => {
                    fetching.from = other;
                    again.entry(other).or_default().push(*range);
                }
                None => {
                    let message = format!(
                        "the statement took effect, but storage process {process} was lost with rows that it returns"
                    );
                    let error = SqlError::new(SqlState::OUTCOME_UNKNOWN, message);
                    return self.end(sequence, Err(Failure::Sql(error)));
                }
            }
        }
        if open.fetched_at.is_some() {
            let id = open.message.id;
            let fetch = |(process, ranges)| Effect::Send(process, Wire::Fetch { id, ranges });
            self.effects.extend(again.into_iter().map(fetch));
        }
    }
}
