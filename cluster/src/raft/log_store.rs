//! openraft's log storage over the write-ahead log, with the newest entries in memory.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, Range, RangeBounds},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, stream};
use openraft::{
    EntryPayload, LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::Instant};

use super::{ConsensusError, Entry, LogId, TypeConfig, Vote};
#[cfg(test)]
use crate::wal::simulated;
use crate::{
    metering::LogMeter,
    router::mseq::Command,
    wal::{Durability, Wal, WalError},
    wire::form,
};

/// Encoded bytes of entries kept in memory although they are on disk.
const CACHE_BYTES: usize = 32 << 20;
/// Encoded bytes that are read from disk at a time.
const CHUNK_BYTES: u64 = 4 << 20;
/// While more encoded bytes than this wait for the disk, the log has no room: some seconds of a disk that is slow, and as much
/// as the router takes of what is to be proposed.
pub(super) const PENDING_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Metadata {
    vote: Option<Vote>,
    purged: Option<LogId>,
}

#[derive(Default)]
struct State {
    metadata: Metadata,
    last: Option<LogId>,
    /// The newest entries with their encoded lengths, consecutive up to the last.
    cache: VecDeque<(Entry, usize)>,
    cached_bytes: usize,
    /// Entries before this index are on disk.
    flushed: u64,
}

impl State {
    fn push(&mut self, entry: Entry, length: usize) {
        self.last = Some(entry.log_id);
        self.cached_bytes += length;
        self.cache.push_back((entry, length));
    }

    /// Forgets entries that are on disk.
    fn evict(&mut self) {
        while self.cached_bytes > CACHE_BYTES
            && let Some((entry, length)) = self.cache.front()
            && entry.log_id.index < self.flushed
        {
            self.cached_bytes -= length;
            self.cache.pop_front();
        }
    }

    /// Index of the first entry in memory, or the index after the last entry.
    fn cached_from(&self) -> u64 {
        match self.cache.front() {
            Some((entry, _)) => entry.log_id.index,
            None => self.last.map_or(0, |last| last.index + 1),
        }
    }
}

/// How the disk keeps up.
#[derive(Clone, Copy, Default)]
struct Disk {
    /// Encoded bytes of entries that it was given and has not taken yet.
    pending_bytes: usize,
    /// While there are any, since when it has taken none.
    stands_still: Option<Instant>,
    fails: bool,
}

impl Disk {
    fn gave(&mut self, bytes: usize) {
        self.pending_bytes += bytes;
        self.stands_still.get_or_insert_with(Instant::now);
    }

    fn took(&mut self, bytes: usize) {
        self.pending_bytes -= bytes;
        self.stands_still = (self.pending_bytes > 0).then(Instant::now);
    }
}

/// See the module's head. Clones share the log.
#[derive(Clone)]
pub(crate) struct LogStore {
    state: Arc<Mutex<State>>,
    wal: Option<Arc<Wal>>,
    /// Changes when entries have come to disk or gone.
    disk: watch::Sender<Disk>,
}

impl LogStore {
    /// Opens or creates the log.
    pub(super) async fn open(durability: Durability, meter: LogMeter) -> Result<Self, ConsensusError> {
        let Durability::Disk { directory, limits } = durability else {
            return Ok(LogStore { state: Arc::default(), wal: None, disk: watch::Sender::default() });
        };
        #[cfg(not(test))]
        let open = Wal::open;
        #[cfg(test)]
        let open = if simulated::is_used() { Wal::open_simulated } else { Wal::open };
        let opened = tokio::task::spawn_blocking(move || open(&directory, limits, meter)).await;
        let (wal, recovered) = opened.map_err(|_| WalError::Closed("shutting down".into()))??;
        let metadata = match recovered.metadata {
            Some(bytes) => postcard::from_bytes(&bytes)
                .map_err(|error| ConsensusError::State(format!("metadata: {error}")))?,
            None => Metadata::default(),
        };
        let mut state = State { metadata, last: metadata.purged, ..State::default() };
        let next = metadata.purged.map_or(0, |purged| purged.index + 1);
        match recovered.range {
            // The router was killed after it had promised to purge and before it had.
            Some(range) if range.end <= next => wal.purge(range.end).await?,
            Some(range) if range.start > next => {
                return Err(ConsensusError::State(format!(
                    "the log begins at {}, but was purged only before {next}",
                    range.start
                )));
            }
            Some(range) => {
                let last = wal.read(range.end - 1..range.end, 0).await?;
                let entries = decode(last).map_err(|error| ConsensusError::State(error.to_string()))?;
                state.last = entries.last().map(|entry| entry.log_id);
                state.flushed = range.end;
            }
            // It was killed when it had begun a segment, and then before it had purged that.
            None => wal.purge(next).await?,
        }
        let (state, wal) = (Arc::new(Mutex::new(state)), Some(Arc::new(wal)));
        Ok(LogStore { state, wal, disk: watch::Sender::default() })
    }

    /// The log on disk; nothing when it is kept in memory.
    pub(super) fn wal(&self) -> Weak<Wal> {
        self.wal.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }

    /// Whether it belongs to a snapshot, which stands for everything up to `applied`. One that is missing, or older than it was,
    /// does not reach where the log begins; nor is there an entry of a later term than the last one that was voted in.
    pub(super) fn check(&self, applied: Option<LogId>) -> Result<(), ConsensusError> {
        let state = self.state.lock();
        let Metadata { vote, purged } = state.metadata;
        if let Some(begins) = purged.filter(|purged| applied.is_none_or(|at| at.index < purged.index)) {
            let which = match applied {
                None => "there is no snapshot of it".to_owned(),
                Some(applied) => format!("the snapshot of it is an older one, of entry {}", applied.index),
            };
            let begins = begins.index;
            return Err(ConsensusError::State(format!("the log begins behind entry {begins}, but {which}")));
        }
        let voted = vote.map_or(0, |vote| vote.leader_id.term);
        let last = [state.last, applied].into_iter().flatten().map(|last| last.leader_id.term).max();
        if let Some(term) = last.filter(|term| *term > voted) {
            return Err(ConsensusError::State(format!(
                "the log has entries of term {term}, but what it knows of votes ends with term {voted}: its metadata is missing \
                 or an older one"
            )));
        }
        Ok(())
    }

    /// A snapshot stands for everything up to here. Killed before the log was purged behind that, the router may have an end of it
    /// that nobody else has, of a later term than the snapshot's.
    pub(super) async fn begin_behind(&mut self, snapshot: LogId) -> io::Result<()> {
        let ends_before = |last: LogId| last.index <= snapshot.index && last != snapshot;
        let is_replaced = self.state.lock().last.is_some_and(ends_before);
        if is_replaced { self.purge(snapshot).await } else { Ok(()) }
    }

    /// Waits until an entry is on disk, or is not in the log any more.
    async fn on_disk(&self, index: u64) -> io::Result<()> {
        let mut disk = self.disk.subscribe();
        let is_pending = || {
            let state = self.state.lock();
            index >= state.flushed && state.last.is_some_and(|last| last.index >= index)
        };
        loop {
            // What the disk says behind this is a change.
            let fails = disk.borrow_and_update().fails;
            if self.wal.is_none() || !is_pending() {
                return Ok(());
            }
            if fails {
                return Err(io::Error::other("the log cannot be written"));
            }
            disk.changed().await.map_err(io::Error::other)?;
        }
    }

    /// Waits until not much waits for the disk, or it fails.
    pub(super) async fn room(&self) {
        let mut disk = self.disk.subscribe();
        // There is always somebody who says how it keeps up: this.
        let _ = disk.wait_for(|disk| disk.fails || disk.pending_bytes <= PENDING_BYTES).await;
    }

    /// For how long the disk has taken nothing, although entries wait for it.
    pub(super) fn stands_still(&self) -> Duration {
        self.disk.borrow().stands_still.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Entries from the beginning of a range, as far as they exist: about `bytes` of them if they are on disk.
    pub(super) async fn read(&self, range: Range<u64>, bytes: u64) -> io::Result<Vec<Entry>> {
        let cached_from = {
            let state = self.state.lock();
            let from = state.cached_from();
            if range.start >= from || self.wal.is_none() {
                let skip = range.start.saturating_sub(from) as usize;
                let mut taken = 0;
                let entries = state.cache.iter().skip(skip).take_while(|(entry, length)| {
                    let more = taken == 0 || taken < bytes;
                    taken += *length as u64;
                    more && entry.log_id.index < range.end
                });
                return Ok(entries.map(|(entry, _)| entry.clone()).collect());
            }
            from
        };
        match &self.wal {
            Some(wal) => decode(wal.read(range.start..range.end.min(cached_from), bytes).await?),
            None => Ok(Vec::new()),
        }
    }

    fn range(&self, bounds: &impl RangeBounds<u64>) -> Range<u64> {
        let state = self.state.lock();
        let first = state.metadata.purged.map_or(0, |purged| purged.index + 1);
        let end = state.last.map_or(0, |last| last.index + 1);
        let from = match bounds.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let to = match bounds.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        from.max(first)..to.min(end)
    }

    async fn save(&self, change: impl FnOnce(&mut Metadata)) -> io::Result<()> {
        let encoded = {
            let mut state = self.state.lock();
            change(&mut state.metadata);
            encode(&state.metadata)?
        };
        if let Some(wal) = &self.wal {
            wal.save_metadata(encoded).await?;
        }
        Ok(())
    }

    /// See [`Wal::abandon`].
    pub(super) fn abandon(&self) {
        self.disk.send_modify(|disk| disk.fails = true);
        if let Some(wal) = &self.wal {
            wal.abandon();
        }
    }

    /// See [`Wal::hang`].
    #[cfg(test)]
    pub(super) fn hang(&self, hangs: bool) {
        self.wal.as_ref().expect("there is a disk").hang(hangs);
    }

    /// Encoded bytes that wait for the disk.
    #[cfg(test)]
    pub(super) fn pending_bytes(&self) -> usize {
        self.disk.borrow().pending_bytes
    }

    /// Waits until the directory is free again.
    pub(super) async fn close(&self) {
        if let Some(wal) = self.wal.clone() {
            let closed = tokio::task::spawn_blocking(move || wal.close()).await;
            closed.unwrap_or_else(|_| tracing::warn!("the log was not closed in order"));
        }
    }
}

fn encode(value: &impl Serialize) -> io::Result<Bytes> {
    form::append(value, Vec::new()).map(Bytes::from).map_err(io::Error::other)
}

fn decode(records: Vec<(u64, Bytes)>) -> io::Result<Vec<Entry>> {
    let decode = |(index, bytes): (u64, Bytes)| {
        let entry: Entry = postcard::from_bytes(&bytes).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("record {index}: {error}"))
        })?;
        if entry.log_id.index != index {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("record {index} is not its own")));
        }
        Ok(entry)
    };
    records.into_iter().map(decode).collect()
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        // openraft looks here for places, terms and memberships, as it starts for those of many entries at once; what is applied or
        // sent comes of the others. So commands are left out: all of those together could take any amount of memory.
        let without_commands = |mut entry: Entry| {
            if let EntryPayload::Normal(_) = entry.payload {
                entry.payload = EntryPayload::Blank;
            }
            entry
        };
        let mut range = self.range(&range);
        let mut entries = Vec::new();
        while range.start < range.end {
            let read = self.read(range.clone(), CHUNK_BYTES).await?;
            let Some(last) = read.last() else { break };
            range.start = last.log_id.index + 1;
            entries.extend(read.into_iter().map(without_commands));
        }
        Ok(entries)
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // In chunks: after a restart the range is the whole log.
        let range = self.range(&range);
        let chunks = stream::unfold((self.clone(), range), |(store, mut range)| async move {
            if range.is_empty() {
                return None;
            }
            let chunk = store.read(range.clone(), CHUNK_BYTES).await;
            range.start = match &chunk {
                Ok(entries) => entries.last().map_or(range.end, |last| last.log_id.index + 1),
                Err(_) => range.end,
            };
            let items: Vec<_> = match chunk {
                Ok(entries) => entries.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            Some((stream::iter(items), (store, range)))
        });
        Box::pin(futures::StreamExt::flatten(chunks))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let entries = self.read(self.range(&(start..end)), CHUNK_BYTES).await?;
        // What goes to others. They hear of a membership only when it is on disk here: else, after a crash, the only one that
        // has it may be somebody whom it leaves out, who neither leads nor lets others lead who do not have it.
        let is_membership = |entry: &&Entry| matches!(entry.payload, EntryPayload::Membership(_));
        if let Some(entry) = entries.iter().rfind(is_membership) {
            self.on_disk(entry.log_id.index).await?;
        }
        Ok(entries)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.state.lock().metadata.vote)
    }
}

// The committed index is not saved (`save_committed`): a restarted leader or a live one tells it at once, and what openraft
// would learn again by itself before it starts, the state machine would report to a router that does not listen yet.
impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.state.lock();
        Ok(LogState { last_purged_log_id: state.metadata.purged, last_log_id: state.last })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.save(|metadata| metadata.vote = Some(*vote)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let Some(wal) = &self.wal else {
            let mut state = self.state.lock();
            for entry in entries {
                // Nothing is evicted; readers take so much at a time.
                let weight = match &entry.payload {
                    EntryPayload::Normal(batch) => batch.0.iter().map(Command::weight).sum(),
                    EntryPayload::Blank | EntryPayload::Membership(_) => 0,
                };
                state.push(entry, weight);
            }
            drop(state);
            callback.io_completed(Ok(()));
            return Ok(());
        };
        let mut records = Vec::new();
        for entry in entries {
            let encoded = encode(&entry)?;
            records.push((entry.log_id.index, encoded.clone()));
            self.state.lock().push(entry, encoded.len());
        }
        let end = records.last().map_or(0, |(index, _)| index + 1);
        let bytes: usize = records.iter().map(|(_, record)| record.len()).sum();
        self.disk.send_modify(|disk| disk.gave(bytes));
        let (state, disk) = (self.state.clone(), self.disk.clone());
        wal.append(records, move |result| {
            if result.is_ok() {
                let mut state = state.lock();
                state.flushed = state.flushed.max(end);
                state.evict();
            }
            disk.send_modify(|disk| {
                disk.took(bytes);
                disk.fails |= result.is_err();
            });
            callback.io_completed(result.map_err(io::Error::from));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let from = last_log_id.map_or(0, |last| last.index + 1);
        if let Some(wal) = &self.wal {
            wal.truncate(from).await?;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        while let Some((entry, length)) = state.cache.back()
            && entry.log_id.index >= from
        {
            state.cached_bytes -= length;
            state.cache.pop_back();
        }
        state.flushed = state.flushed.min(from);
        state.last = last_log_id;
        self.disk.send_modify(|_| ());
        Ok(())
    }

    /// Nobody waits for the disk: heartbeats would wait, too, and with them the leadership of whoever has much to write.
    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let metadata = {
            let mut state = self.state.lock();
            let state = &mut *state;
            state.metadata.purged = Some(log_id);
            while let Some((entry, length)) = state.cache.front()
                && entry.log_id.index <= log_id.index
            {
                state.cached_bytes -= length;
                state.cache.pop_front();
            }
            // By place: what is purged can be of an earlier term.
            state.last = state.last.filter(|last| last.index > log_id.index).or(Some(log_id));
            encode(&state.metadata)?
        };
        if let Some(wal) = &self.wal {
            wal.purge_later(metadata, log_id.index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::mseq::{Batch, Command};
    use carousel_engine::Ts;
    use openraft::{EntryPayload, type_config::TypeConfigExt};

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: super::super::LeaderId { term: 1, node_id: 1 }, index }
    }

    fn entry(index: u64) -> Entry {
        let batch = Batch(vec![Command::Truncate(Ts(index))]);
        Entry { log_id: log_id(index), payload: EntryPayload::Normal(Arc::new(batch)) }
    }

    #[tokio::test]
    async fn a_snapshot_stands_for_an_end_of_the_log_of_a_later_term() {
        let directory = tempfile::tempdir().expect("a directory");
        let durability = Durability::Disk { directory: directory.path().into(), limits: Default::default() };
        let mut store = LogStore::open(durability.clone(), LogMeter::noop()).await.expect("opens");
        append(&mut store, 0..11).await;
        let earlier = |index| LogId { leader_id: super::super::LeaderId { term: 0, node_id: 1 }, index };
        store.begin_behind(earlier(5)).await.expect("nothing to do");
        assert_eq!(store.get_log_state().await.expect("state").last_log_id, Some(log_id(10)));
        store.begin_behind(earlier(20)).await.expect("purges");
        store.close().await;
        let mut store = LogStore::open(durability, LogMeter::noop()).await.expect("opens");
        let state = store.get_log_state().await.expect("state");
        assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(earlier(20)), Some(earlier(20))));
        append(&mut store, 21..23).await;
        assert_eq!(indices(&store.try_get_log_entries(0..100).await.expect("entries")), [21, 22]);
    }

    fn indices(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.log_id.index).collect()
    }

    async fn append(store: &mut LogStore, range: Range<u64>) {
        let (signal, flushed) = TypeConfig::oneshot();
        let callback = IOFlushed::signal(signal);
        store.append(range.map(entry), callback).await.expect("appends");
        flushed.await.expect("answered").expect("flushed");
    }

    #[tokio::test]
    async fn survives_a_restart_with_truncation_and_purge() {
        let directory = tempfile::tempdir().expect("a directory");
        let durability = Durability::Disk { directory: directory.path().into(), limits: Default::default() };
        let mut store = LogStore::open(durability.clone(), LogMeter::noop()).await.expect("opens");
        append(&mut store, 0..10).await;
        store.truncate_after(Some(log_id(6))).await.expect("truncates");
        append(&mut store, 7..9).await;
        store.purge(log_id(2)).await.expect("purges");
        let vote = Vote::new(3, 2);
        store.save_vote(&vote).await.expect("saves");
        store.close().await;

        let mut store = LogStore::open(durability, LogMeter::noop()).await.expect("opens");
        let state = store.get_log_state().await.expect("state");
        assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(2)), Some(log_id(8))));
        assert_eq!(store.read_vote().await.expect("vote"), Some(vote));
        append(&mut store, 9..12).await;
        // Partly from disk, partly from memory.
        let entries = store.try_get_log_entries(..).await.expect("reads");
        assert_eq!(indices(&entries), (3..12).collect::<Vec<_>>());
        let streamed: Vec<_> = futures::StreamExt::collect::<Vec<_>>(store.entries_stream(4..11).await).await;
        let streamed: Vec<Entry> = streamed.into_iter().map(|entry| entry.expect("reads")).collect();
        assert_eq!(indices(&streamed), (4..11).collect::<Vec<_>>());
        // A snapshot that is ahead of the log.
        store.purge(log_id(20)).await.expect("purges");
        append(&mut store, 21..22).await;
        assert_eq!(indices(&store.try_get_log_entries(..).await.expect("reads")), vec![21]);
    }

    #[tokio::test]
    async fn who_looks_for_memberships_holds_no_commands() {
        let directory = tempfile::tempdir().expect("a directory");
        let durability = Durability::Disk { directory: directory.path().into(), limits: Default::default() };
        let mut store = LogStore::open(durability, LogMeter::noop()).await.expect("opens");
        append(&mut store, 0..10).await;
        let payload = EntryPayload::Membership(Default::default());
        let (signal, _flushed) = TypeConfig::oneshot();
        let entries = [Entry { log_id: log_id(10), payload }];
        store.append(entries, IOFlushed::signal(signal)).await.expect("appends");
        let found = store.try_get_log_entries(..).await.expect("reads");
        assert_eq!(indices(&found), (0..11).collect::<Vec<_>>());
        let is_membership = |entry: &Entry| matches!(entry.payload, EntryPayload::Membership(_));
        assert!(found[..10].iter().all(|entry| matches!(entry.payload, EntryPayload::Blank)));
        assert!(is_membership(&found[10]));
        let sent = store.limited_get_log_entries(0, 11).await.expect("reads");
        assert!(sent[..10].iter().all(|entry| matches!(entry.payload, EntryPayload::Normal(_))));
    }

    #[tokio::test]
    async fn a_snapshot_or_votes_that_are_missing_are_missed() {
        let directory = tempfile::tempdir().expect("a directory");
        let durability = Durability::Disk { directory: directory.path().into(), limits: Default::default() };
        let mut store = LogStore::open(durability, LogMeter::noop()).await.expect("opens");
        assert!(store.check(None).is_ok());
        append(&mut store, 0..10).await;
        let refused = |store: &LogStore, applied| store.check(applied).expect_err("it is missed").to_string();
        assert!(refused(&store, None).contains("votes ends with term 0"));
        store.save_vote(&Vote::new(1, 2)).await.expect("saves");
        assert!(store.check(None).is_ok() && store.check(Some(log_id(3))).is_ok());
        store.purge(log_id(5)).await.expect("purges");
        assert!(refused(&store, None).contains("there is no snapshot"));
        assert!(refused(&store, Some(log_id(4))).contains("of entry 4"));
        assert!(store.check(Some(log_id(5))).is_ok() && store.check(Some(log_id(12))).is_ok());
        let later = LogId { leader_id: super::super::LeaderId { term: 2, node_id: 1 }, index: 12 };
        assert!(refused(&store, Some(later)).contains("entries of term 2"));
    }

    #[tokio::test]
    async fn others_hear_of_a_membership_when_it_is_on_disk() {
        let directory = tempfile::tempdir().expect("a directory");
        let durability = Durability::Disk { directory: directory.path().into(), limits: Default::default() };
        let mut store = LogStore::open(durability, LogMeter::noop()).await.expect("opens");
        for index in 0..20 {
            let payload = EntryPayload::Membership(Default::default());
            let (signal, _flushed) = TypeConfig::oneshot();
            let entries = [entry(2 * index), Entry { log_id: log_id(2 * index + 1), payload }];
            store.append(entries, IOFlushed::signal(signal)).await.expect("appends");
            let sent = store.limited_get_log_entries(2 * index, 2 * index + 2).await.expect("reads");
            assert_eq!(sent.len(), 2);
            assert_eq!(store.state.lock().flushed, 2 * index + 2);
        }
        store.on_disk(40).await.expect("there is none");
        store.abandon();
        let (signal, _flushed) = TypeConfig::oneshot();
        let payload = EntryPayload::Membership(Default::default());
        let entries = [Entry { log_id: log_id(40), payload }];
        store.append(entries, IOFlushed::signal(signal)).await.expect("appends");
        assert!(store.limited_get_log_entries(40, 41).await.is_err(), "it never comes to disk");
    }
}
