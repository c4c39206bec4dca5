//! Which start of every other router a router has heard of last.
//!
//! A router that has lost its data directory has forgotten what it acknowledged and whom it voted for. If the others took
//! it for the one that it was, it could make up a quorum with those that never had an entry that was acknowledged. It
//! counts its starts anew, too, and that is how it is known: by the others, who write down what they have heard.

use std::{collections::BTreeMap, io, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    message::{Incarnation, ProcessId, ProcessKind},
    wal::{read_file, replace_file},
};

/// A start of an operating system process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Counted in its data directory.
    pub(super) incarnation: Incarnation,
    /// Unlike that of any other.
    pub(super) life: u64,
}

/// The newest starts of routers elsewhere.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Where they are written down; nowhere in a process that is no router, which does not remember any.
    path: Option<PathBuf>,
    newest: BTreeMap<u32, Start>,
}

impl Lives {
    /// What earlier starts of this process have heard.
    pub(super) fn load(path: Option<PathBuf>) -> io::Result<Lives> {
        let content = path.as_deref().map(read_file).transpose()?.flatten();
        let newest = content.map(|content| postcard::from_bytes(&content)).transpose();
        let newest = newest.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Lives { path, newest: newest.unwrap_or_default() })
    }

    /// The newest start of a router, if one is remembered.
    pub(super) fn of(&self, process: ProcessId) -> Option<Start> {
        self.newest.get(&process.number).copied().filter(|_| process.kind == ProcessKind::Router)
    }

    /// A process has begun a session with this one. Durable before that is used.
    pub(super) fn hear(&mut self, process: ProcessId, start: Start) {
        let Some(path) = self.path.as_ref().filter(|_| process.kind == ProcessKind::Router) else { return };
        if self.newest.insert(process.number, start) == Some(start) {
            return;
        }
        let content = postcard::to_stdvec(&self.newest).map_err(io::Error::other);
        if let Err(error) = content.and_then(|content| replace_file(path, &content)) {
            // It is remembered as long as this process lives.
            tracing::warn!(%error, "cannot write down which starts of routers have been heard of");
        }
    }
}

/// Why a router is not the one that was heard of, if it has lost its data directory since.
pub(super) fn forgetful(router: ProcessId, start: Start, heard: Option<Start>) -> Option<String> {
    let heard = heard.filter(|heard| heard.life != start.life && heard.incarnation >= start.incarnation)?;
    Some(format!(
        "{router} counts its starts anew (this is number {}, but number {} has been heard of): it has lost its data \
         directory, and what it acknowledged with it. Remove it (ALTER CLUSTER REMOVE ROUTER {router}) and add another",
        start.incarnation, heard.incarnation
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const R2: ProcessId = ProcessId::router(2);

    #[test]
    fn a_router_that_counts_its_starts_anew_is_forgetful() {
        let directory = tempfile::tempdir().unwrap();
        let path = Some(directory.path().join("heard"));
        let start = |incarnation, life| Start { incarnation, life };
        let mut lives = Lives::load(path.clone()).unwrap();
        assert_eq!(lives.of(R2), None);
        for incarnation in 1..=3 {
            assert_eq!(forgetful(R2, start(incarnation, 10 + incarnation), lives.of(R2)), None);
            lives.hear(R2, start(incarnation, 10 + incarnation));
        }
        lives.hear(ProcessId::storage(2), start(9, 9));
        let lives = Lives::load(path).unwrap();
        // The same life may begin further sessions; an older or equal number of another one is a lost directory.
        assert_eq!(forgetful(R2, start(3, 13), lives.of(R2)), None);
        for incarnation in [1, 3] {
            let reason =
                forgetful(R2, start(incarnation, 99), lives.of(R2)).expect("it has lost its directory");
            assert!(reason.contains("number 3 has been heard of"), "{reason}");
        }
        assert_eq!(forgetful(R2, start(4, 99), lives.of(R2)), None);
        // Who is no router remembers none.
        let mut other = Lives::load(None).unwrap();
        other.hear(R2, start(3, 13));
        assert_eq!(other.of(R2), None);
    }
}
