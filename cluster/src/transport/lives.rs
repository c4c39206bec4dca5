//! Which start of every other router a router has heard of last.
//!
//! A router that has lost its data directory has forgotten what it acknowledged and whom it voted for. If the others took
//! it for the one that it was, it could make up a quorum with those that never had an entry that was acknowledged. So
//! would one with an old copy of its directory. The others, who write down what they have heard, know the first by the
//! number of its directory, which is another one however often it has been started since, and the second by the number of
//! its start, which is none that comes next. As that one counts on, it writes down itself that it must not go on. A copy from
//! its last start is told from it by what its log lacks, by whoever leads and has heard it confirm that (`raft::network`).

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as Turn, watch};

use crate::{
    message::{Incarnation, ProcessId, ProcessKind},
    wal::{read_file, replace_without_room},
};

/// A start of an operating system process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Counted in its data directory.
    pub(super) incarnation: Incarnation,
    /// Drawn for that directory; 0 where it is not known.
    pub(super) directory: u64,
    /// Unlike that of any other.
    pub(super) life: u64,
}

/// What a router has heard, of others and of itself. Nobody waits for its disk but who has something to be written down.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Where it is written down; nowhere in a process that is no router, which does not remember anything.
    path: Option<PathBuf>,
    known: Arc<Mutex<Known>>,
    /// How many changes have been written down.
    written: Arc<AtomicU64>,
    /// Held while that is done.
    turn: Arc<Turn<()>>,
    /// What `heard.forgetful` says once it is written down, or cannot be, for those who wait for that.
    refused: watch::Sender<Option<String>>,
}

/// Why a session must not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unheard {
    /// The other process must not be taken for the one that has been heard of.
    Forgetful(String),
    /// This process would forget that it has heard of it.
    NotWritten(String),
}

#[derive(Debug, Default)]
struct Known {
    heard: Heard,
    /// How often that has changed.
    changes: u64,
    /// How often it had when each router's newest start was heard of.
    since: BTreeMap<u32, u64>,
    /// Lives of routers elsewhere that lack what they had confirmed, and what is to be said of them. They remember that
    /// themselves.
    disowned: BTreeMap<ProcessId, (u64, String)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Heard {
    /// The newest starts of routers elsewhere.
    newest: BTreeMap<u32, Start>,
    /// Why this router must not go on.
    forgetful: Option<String>,
}

impl Heard {
    /// Earlier releases wrote down incarnations and lives only. Until such a router is heard again its directory is not known.
    fn decode(content: &[u8]) -> postcard::Result<Heard> {
        // What they wrote is too short to be taken for the present form.
        postcard::from_bytes(content).or_else(|_| {
            let earlier: BTreeMap<u32, (Incarnation, u64)> = postcard::from_bytes(content)?;
            let start = |(incarnation, life)| Start { incarnation, directory: 0, life };
            let newest = earlier.into_iter().map(|(router, heard)| (router, start(heard))).collect();
            Ok(Heard { newest, forgetful: None })
        })
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let content = postcard::to_stdvec(self).map_err(io::Error::other)?;
        replace_without_room(path, &content)
    }
}

impl Lives {
    /// What earlier starts of this process have heard.
    pub(super) fn load(path: Option<PathBuf>) -> io::Result<Lives> {
        let content = path.as_deref().map(read_file).transpose()?.flatten();
        let heard = content.map(|content| Heard::decode(&content)).transpose();
        let heard = heard.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let heard = heard.unwrap_or_default();
        // What comes may have to be written down where there is no room.
        if let Some(path) = &path
            && let Err(error) = heard.write(path)
        {
            tracing::warn!(%error, "cannot write down again which starts of routers have been heard of");
        }
        let refused = watch::Sender::new(heard.forgetful.clone());
        let known = Arc::new(Mutex::new(Known { heard, ..Known::default() }));
        Ok(Lives { path, known, written: Arc::default(), turn: Arc::default(), refused })
    }

    /// The newest start of a router, if one is remembered.
    pub(super) fn of(&self, process: ProcessId) -> Option<Start> {
        self.known.lock().of(process)
    }

    /// A process is about to begin a session with this one. Durable when this returns.
    ///
    /// # Errors
    /// When the session must not begin.
    pub(super) async fn hear(&self, process: ProcessId, start: Start) -> Result<(), Unheard> {
        if process.kind != ProcessKind::Router {
            return Ok(());
        }
        let Some(path) = &self.path else { return Ok(()) };
        let change = {
            let mut known = self.known.lock();
            if let Some(reason) = forgetful(process, start, known.of(process)) {
                return Err(Unheard::Forgetful(reason));
            }
            if known.heard.newest.insert(process.number, start) != Some(start) {
                known.changes += 1;
                let changes = known.changes;
                known.since.insert(process.number, changes);
            }
            known.since.get(&process.number).copied().unwrap_or_default()
        };
        let written = self.write_down(path, change).await;
        written.map_err(|error| {
            Unheard::NotWritten(format!(
                "cannot write down which starts of routers have been heard of: {error}"
            ))
        })
    }

    /// The present life of a router lacks an entry of the log that it had confirmed. Returns what is to be said of it, unless
    /// it has been.
    pub(super) fn disown(&self, router: ProcessId, index: u64) -> Option<String> {
        let mut known = self.known.lock();
        let Start { life, .. } = known.of(router)?;
        let which = format!("a copy of its log that lacks entry {index}, which it had confirmed");
        let reason = replace_it(router, &which);
        let before = known.disowned.insert(router, (life, reason.clone()));
        before.is_none_or(|(before, _)| before != life).then_some(reason)
    }

    /// The life of a process that has been disowned, and why.
    pub(super) fn disowned(&self, process: ProcessId) -> Option<(u64, String)> {
        self.known.lock().disowned.get(&process).cloned()
    }

    /// Why this router must not go on, also when it is started again.
    pub(super) fn forgetful(&self) -> Option<String> {
        self.known.lock().heard.forgetful.clone()
    }

    /// Another process says that this router must not go on, and why. Durable when this returns, if it can be written.
    pub(super) async fn refuse(&self, reason: &str) {
        let Some(path) = &self.path else { return };
        let change = {
            let mut known = self.known.lock();
            if known.heard.forgetful.is_none() {
                known.heard.forgetful = Some(reason.to_owned());
                known.changes += 1;
            }
            known.changes
        };
        if let Err(error) = self.write_down(path, change).await {
            tracing::error!(%error, "cannot write down that this router must not go on: {reason}");
        }
    }

    /// Waits until so many changes have been written down, off the runtime: a disk may hang. What cannot be is tried again with
    /// the next change, or when it is waited for again.
    async fn write_down(&self, path: &Path, change: u64) -> io::Result<()> {
        let is_written = || self.written.load(Ordering::Acquire) >= change;
        if is_written() {
            return Ok(());
        }
        let turn = self.turn.clone().lock_owned().await;
        if is_written() {
            return Ok(());
        }
        let (path, known, refused) = (path.to_owned(), self.known.clone(), self.refused.clone());
        let written = self.written.clone();
        // Whoever gives up waiting leaves it to its end, and the turn with it.
        let writing = tokio::task::spawn_blocking(move || {
            let (heard, changes) = {
                let known = known.lock();
                (known.heard.clone(), known.changes)
            };
            let outcome = heard.write(&path);
            if outcome.is_ok() {
                written.store(changes, Ordering::Release);
            }
            drop(turn);
            // It must not go on in any case.
            if heard.forgetful.is_some() {
                refused.send_replace(heard.forgetful);
            }
            outcome
        });
        // It fails only with the runtime.
        writing.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// As [`Lives::forgetful`], of what comes.
    pub(super) fn refused(&self) -> watch::Receiver<Option<String>> {
        self.refused.subscribe()
    }
}

impl Known {
    fn of(&self, process: ProcessId) -> Option<Start> {
        self.heard.newest.get(&process.number).copied().filter(|_| process.kind == ProcessKind::Router)
    }
}

/// Why a router is not the one that was heard of, if it has lost its data directory since, or has an old copy of it.
pub(super) fn forgetful(router: ProcessId, start: Start, heard: Option<Start>) -> Option<String> {
    let heard = heard.filter(|heard| heard.life != start.life)?;
    let which = if heard.directory != 0 && heard.directory != start.directory {
        "another data directory than before".to_owned()
    } else if heard.incarnation >= start.incarnation {
        format!(
            "a data directory without its last starts (this is number {}, but number {} has been heard of)",
            start.incarnation, heard.incarnation
        )
    } else {
        return None;
    };
    Some(replace_it(router, &which))
}

fn replace_it(router: ProcessId, which: &str) -> String {
    format!(
        "{router} has {which}: what it acknowledged is not there. If the right one cannot be put back, remove the router \
         (ALTER CLUSTER REMOVE ROUTER {router}) and add another"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::replace_file;

    const R2: ProcessId = ProcessId::router(2);

    #[tokio::test]
    async fn a_router_that_counts_its_starts_anew_is_forgetful() {
        let directory = tempfile::tempdir().unwrap();
        let path = Some(directory.path().join("heard"));
        let start = |incarnation, life| Start { incarnation, directory: 7, life };
        let lives = Lives::load(path.clone()).unwrap();
        assert_eq!(lives.of(R2), None);
        for incarnation in 1..=3 {
            assert_eq!(forgetful(R2, start(incarnation, 10 + incarnation), lives.of(R2)), None);
            lives.hear(R2, start(incarnation, 10 + incarnation)).await.unwrap();
        }
        lives.hear(ProcessId::storage(2), start(9, 9)).await.unwrap();
        let lives = Lives::load(path).unwrap();
        // The same life may begin further sessions; an older or equal number of another one is that of an old copy.
        assert_eq!(forgetful(R2, start(3, 13), lives.of(R2)), None);
        for incarnation in [1, 3] {
            let reason = forgetful(R2, start(incarnation, 99), lives.of(R2)).expect("it has begun before");
            assert!(reason.contains("number 3 has been heard of"), "{reason}");
        }
        assert_eq!(forgetful(R2, start(4, 99), lives.of(R2)), None);
        // In a directory of its own it stays another one, however often it is started.
        for incarnation in 1..9 {
            let start = Start { incarnation, directory: 8, life: 100 + incarnation };
            let reason = forgetful(R2, start, lives.of(R2)).expect("it has lost its directory");
            assert!(reason.contains("r2 has another data directory"), "{reason}");
        }
        // Who is no router remembers none.
        let other = Lives::load(None).unwrap();
        other.hear(R2, start(3, 13)).await.unwrap();
        assert_eq!(other.of(R2), None);
    }

    #[tokio::test]
    async fn a_router_that_was_refused_stays_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = Some(directory.path().join("heard"));
        let lives = Lives::load(path.clone()).unwrap();
        let start = Start { incarnation: 1, directory: 7, life: 11 };
        lives.hear(R2, start).await.unwrap();
        let refused = lives.refused();
        lives.refuse("an old copy").await;
        assert_eq!(refused.borrow().as_deref(), Some("an old copy"));
        let lives = Lives::load(path.clone()).unwrap();
        assert_eq!((lives.forgetful().as_deref(), lives.of(R2)), (Some("an old copy"), Some(start)));
        lives.hear(R2, Start { incarnation: 2, ..start }).await.unwrap();
        assert_eq!(Lives::load(path).unwrap().forgetful().as_deref(), Some("an old copy"));
    }

    /// A directory in the way of the new file.
    fn put_in_the_way(path: &Path) -> PathBuf {
        let new = path.with_extension("new");
        std::fs::create_dir(&new).unwrap();
        new
    }

    #[tokio::test]
    async fn nobody_is_heard_of_who_cannot_be_written_down() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("heard");
        let lives = Lives::load(Some(path.clone())).unwrap();
        let way = put_in_the_way(&path);
        let start = Start { incarnation: 1, directory: 7, life: 11 };
        for _ in 0..2 {
            let heard = lives.hear(R2, start).await;
            assert!(matches!(heard, Err(Unheard::NotWritten(_))), "{heard:?}");
        }
        assert_eq!(Lives::load(Some(path.clone())).unwrap().of(R2), None);
        std::fs::remove_dir(&way).unwrap();
        assert_eq!(lives.hear(R2, start).await, Ok(()));
        assert_eq!(Lives::load(Some(path.clone())).unwrap().of(R2), Some(start));
        // Who must not go on does not, though it cannot remember that, and remembers it when it can.
        let way = put_in_the_way(&path);
        lives.refuse("an old copy").await;
        assert_eq!(lives.refused().borrow().as_deref(), Some("an old copy"));
        std::fs::remove_dir(&way).unwrap();
        lives.refuse("an old copy").await;
        assert_eq!(Lives::load(Some(path)).unwrap().forgetful().as_deref(), Some("an old copy"));
    }

    #[tokio::test]
    async fn what_earlier_releases_have_heard_is_remembered_without_directories() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("heard");
        for routers in 0..5_u32 {
            let earlier: BTreeMap<u32, (Incarnation, u64)> =
                (1..=routers).map(|router| (router, (3, u64::MAX / u64::from(router)))).collect();
            replace_file(&path, &postcard::to_stdvec(&earlier).unwrap()).unwrap();
            let lives = Lives::load(Some(path.clone())).unwrap();
            assert_eq!(lives.known.lock().heard.newest.len(), routers as usize);
            assert_eq!(lives.forgetful(), None);
            if routers >= 2 {
                let start = |incarnation, directory| Start { incarnation, directory, life: 99 };
                assert!(forgetful(R2, start(3, 7), lives.of(R2)).is_some());
                assert_eq!(forgetful(R2, start(4, 7), lives.of(R2)), None);
                lives.hear(R2, start(4, 7)).await.unwrap();
                let next = Start { life: 100, ..start(5, 8) };
                assert!(forgetful(R2, next, lives.of(R2)).is_some());
            }
        }
    }
}
