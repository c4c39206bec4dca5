//! Storage processes that were asked to cut segments ahead of a change of the ring, and who waits for them.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use crate::message::ProcessId;

/// The requests that are under way.
#[derive(Debug, Default)]
pub(super) struct Precuts {
    last: u64,
    waiting: BTreeMap<u64, (BTreeSet<ProcessId>, oneshot::Sender<()>)>,
}

impl Precuts {
    /// These are asked; returns the number of the request.
    pub(super) fn begin(
        &mut self,
        asked: impl IntoIterator<Item = ProcessId>,
        done: oneshot::Sender<()>,
    ) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, (asked.into_iter().collect(), done));
        self.last
    }

    /// A process has cut them.
    pub(super) fn has_cut(&mut self, process: ProcessId, request: u64) {
        let Some((waiting, _)) = self.waiting.get_mut(&request) else { return };
        waiting.remove(&process);
        if waiting.is_empty()
            && let Some((_, done)) = self.waiting.remove(&request)
        {
            // Whoever asked may have gone away.
            let _ = done.send(());
        }
    }

    /// A process may never hear of what it was asked, or has ended since: it is not waited for.
    pub(super) fn lost(&mut self, process: ProcessId) {
        for request in self.waiting.keys().copied().collect::<Vec<_>>() {
            self.has_cut(process, request);
        }
    }

    /// Those who are waited for.
    pub(super) fn awaited(&self) -> BTreeSet<ProcessId> {
        self.waiting.values().flat_map(|(waiting, _)| waiting).copied().collect()
    }

    /// Forgets what nobody waits for any more.
    pub(super) fn tidy(&mut self) {
        self.waiting.retain(|_, (_, done)| !done.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_gone_is_not_waited_for() {
        let (s1, s2, s3) = (ProcessId::storage(1), ProcessId::storage(2), ProcessId::storage(3));
        let mut precuts = Precuts::default();
        let [(first_done, mut first), (second_done, mut second)] = [(); 2].map(|()| oneshot::channel());
        let request = precuts.begin([s1, s2], first_done);
        precuts.begin([s2, s3], second_done);
        precuts.has_cut(s1, request);
        assert_eq!(precuts.awaited(), [s2, s3].into());
        assert!(first.try_recv().is_err());
        precuts.lost(s2);
        assert_eq!((first.try_recv(), second.try_recv().is_ok()), (Ok(()), false));
        drop(second);
        precuts.tidy();
        assert!(precuts.awaited().is_empty());
    }
}
