//! openraft's state machine: the m-seq.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    ConsensusError, Event, LogId, Snapshot, SnapshotMeta, StoredMembership, TypeConfig, changed,
    marks::{Mark, Marks},
};
use crate::{
    router::mseq::MSeq,
    wal::{Wal, is_full, read_file, replace_file},
};

/// The snapshot made or received last.
#[derive(Clone)]
pub(super) struct Stored {
    path: Option<Arc<Path>>,
    /// The log beside it.
    wal: Weak<Wal>,
    current: Arc<Mutex<Option<Snapshot>>>,
    /// No file is written any more. Held while one is.
    closed: Arc<Mutex<bool>>,
}

impl Stored {
    /// False when there is a later one: the leader's may come while one is made here.
    async fn store(&self, snapshot: Snapshot) -> io::Result<bool> {
        let Stored { path, current, closed, .. } = self.clone();
        let store = move || {
            let closed = closed.lock();
            let is_late = |now: &Snapshot| now.meta.last_log_id > snapshot.meta.last_log_id;
            if current.lock().as_ref().is_some_and(is_late) {
                return Ok(false);
            }
            if let Some(path) = path {
                if *closed {
                    return Err(io::Error::other("shutting down"));
                }
                let content = postcard::to_stdvec(&(&snapshot.meta, &snapshot.snapshot[..]));
                replace_file(&path, &content.map_err(io::Error::other)?)?;
            }
            *current.lock() = Some(snapshot);
            Ok(true)
        };
        let stored = tokio::task::spawn_blocking(store).await;
        stored.unwrap_or_else(|_| Err(io::Error::other("shutting down")))
    }

    /// The same, as often as it takes: that there is no room is no reason to end.
    async fn store_when_there_is_room(&self, snapshot: Snapshot) -> io::Result<bool> {
        let mut told = false;
        loop {
            match self.store(snapshot.clone()).await {
                Err(error) if is_full(&error) => {
                    // As for what is appended to the log, which will have more room when it is cut.
                    let bytes = snapshot.snapshot.len() as u64;
                    if let Some(wal) = self.wal.upgrade()
                        && wal.make_room(bytes).await.is_ok()
                    {
                        continue;
                    }
                    if !std::mem::replace(&mut told, true) {
                        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
                        tracing::error!(%path, %error, "cannot write a snapshot, without which the log cannot be cut: trying again");
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits until nothing is being written, and lets nothing be written later: the directory may have another life's
    /// files by then.
    pub(super) async fn close(&self) {
        let closed = self.closed.clone();
        let _ = tokio::task::spawn_blocking(move || *closed.lock() = true).await;
    }
}

/// See the module's head.
pub(super) struct StateMachine {
    marks: Arc<Marks>,
    now: Mark,
    stored: Stored,
    events: mpsc::Sender<Event>,
}

impl StateMachine {
    /// Begins at the snapshot in the directory beside a log, or with `empty`.
    pub(super) fn open(
        directory: Option<PathBuf>,
        wal: Weak<Wal>,
        empty: MSeq,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, ConsensusError> {
        let path: Option<Arc<Path>> = directory.map(|directory| directory.join("snapshot").into());
        let bad = |error: &dyn std::fmt::Display| ConsensusError::State(format!("snapshot: {error}"));
        let content = match &path {
            Some(path) => read_file(path).map_err(|error| bad(&error))?,
            None => None,
        };
        let mut now = Mark { log_id: None, membership: StoredMembership::default(), mseq: empty };
        let mut current = None;
        if let Some(content) = content {
            let (meta, state): (SnapshotMeta, Vec<u8>) =
                postcard::from_bytes(&content).map_err(|error| bad(&error))?;
            now = mark(&meta, &state).map_err(|error| bad(&error))?;
            current = Some(Snapshot { meta, snapshot: state.into() });
        }
        let stored = Stored { path, wal, current: Arc::new(Mutex::new(current)), closed: Arc::default() };
        Ok(StateMachine { marks: Arc::new(Marks::new(now.clone())), now, stored, events })
    }

    /// Where its snapshots are kept.
    pub(super) fn stored(&self) -> Stored {
        self.stored.clone()
    }

    /// The last entry that it has learned.
    pub(super) fn applied(&self) -> Option<LogId> {
        self.now.log_id
    }

    /// Positions from which the m-seq can be read again.
    pub(super) fn marks(&self) -> Arc<Marks> {
        self.marks.clone()
    }
}

fn mark(meta: &SnapshotMeta, state: &[u8]) -> io::Result<Mark> {
    let mseq = postcard::from_bytes(state).map_err(io::Error::other)?;
    Ok(Mark { log_id: meta.last_log_id, membership: meta.last_membership.clone(), mseq })
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.now.log_id, self.now.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            self.now.log_id = Some(entry.log_id);
            let mut learned = Vec::new();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(batch) => learned = self.now.mseq.learn(&batch),
                EntryPayload::Membership(membership) => {
                    let routers = changed(self.now.mseq.routers(), entry.log_id.index, &membership);
                    learned.push(self.now.mseq.learn_routers(routers));
                    self.now.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            self.marks.advance(self.now.clone());
            if !learned.is_empty() {
                // Without a receiver the router is stopping; what was learned stays in the log.
                let _ = self.events.send(Event::Learned { mseq: self.now.mseq.clone(), learned }).await;
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Builder> {
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { marks: self.marks.clone(), stored: self.stored.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Bytes) -> Result<(), io::Error> {
        let now = mark(meta, &snapshot)?;
        self.stored.store_when_there_is_room(Snapshot { meta: meta.clone(), snapshot }).await?;
        self.now = now;
        self.marks.reset(self.now.clone());
        let _ = self.events.send(Event::Installed(self.now.mseq.clone())).await;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.stored.current.lock().clone())
    }
}

/// How long a snapshot for which there is no room waits for some.
const AGAIN: Duration = Duration::from_secs(1);

/// Makes a snapshot of the planned mark.
pub(super) struct Builder {
    marks: Arc<Marks>,
    stored: Stored,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (mark, received) = self.marks.planned();
        let meta = SnapshotMeta { last_log_id: mark.log_id, last_membership: mark.membership.clone() };
        let state = postcard::to_stdvec(&mark.mseq).map_err(io::Error::other)?;
        let snapshot = Snapshot { meta, snapshot: state.into() };
        if self.stored.store_when_there_is_room(snapshot.clone()).await? {
            self.marks.snapshot_made(&mark, received);
        }
        Ok(snapshot)
    }
}
