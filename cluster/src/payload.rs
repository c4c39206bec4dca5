//! The payload store of a storage process: rows that go around the m-seq (DESIGN, decision 12).
//!
//! A chunk is a file of its own, `<payload>/<range>.<chunk>`: the payload's latest `Ts`, the CRC-32 of the rows, the rows.
//! A receipt is given after the file and its directories have been synced; chunks that wait together share the syncs of
//! directories. A file is written under another name first: when a chunk comes a second time, the one that has a receipt
//! stays until the new one is complete.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use carousel_engine::{
    SqlError, SqlState, Ts,
    operation::{PayloadId, RowBatch},
    position::KeyRange,
};

use crate::{
    message::{StagedPart, StagedPayload},
    removal,
    wal::{is_full, make_directory, sync_directory},
    wire::StageChunk,
};

/// Bytes before the rows of a chunk file: latest `Ts`, CRC-32.
const HEADER: usize = 12;

/// Which chunk: its payload, its part, and its number there.
pub type ChunkKey = (PayloadId, KeyRange, u32);

/// The rows of a chunk with this checksum; `None` when it is damaged.
pub(crate) fn rows_of(chunk: &[u8], checksum: u32) -> Option<RowBatch> {
    if crc32fast::hash(chunk) != checksum {
        return None;
    }
    postcard::from_bytes(chunk).ok()
}

/// How a chunk's file begins.
pub type Header = [u8; HEADER];

/// Where chunks lie, each in a file of its own: [`Directory`], or a simulated disk.
pub trait Files {
    /// The payloads of which there are files, with the first bytes of each of those. Says again and again that it goes on.
    ///
    /// # Errors
    /// When that cannot be read.
    fn list(&self, goes_on: &dyn Fn()) -> io::Result<BTreeMap<PayloadId, Vec<Header>>>;

    /// What is in a file; `None` when it is absent.
    ///
    /// # Errors
    /// When it may be there, but cannot be read.
    fn read(&self, key: ChunkKey) -> io::Result<Option<Bytes>>;

    /// Makes a file of these pieces, or leaves the file that was there as it was. It survives a crash once its payload is
    /// synced, too.
    ///
    /// # Errors
    /// Why there is no new file.
    fn write(&mut self, key: ChunkKey, pieces: &[&[u8]]) -> io::Result<()>;

    /// Makes which files there are of these payloads survive a crash.
    ///
    /// # Errors
    /// Why they might not.
    fn sync(&mut self, payloads: &BTreeSet<PayloadId>) -> io::Result<()>;

    /// Removes some of a payload's files, so few that it does not take long. Returns whether there are more.
    ///
    /// # Errors
    /// Why they are still there.
    fn remove_some(&mut self, payload: PayloadId) -> io::Result<bool>;
}

/// The store; all of it is synchronous.
#[derive(Debug)]
pub struct PayloadStore<F = Directory> {
    files: F,
    payloads: BTreeMap<PayloadId, Stored>,
    /// Of which there may still be files, and for nobody any more.
    removing: VecDeque<PayloadId>,
}

#[derive(Debug)]
struct Stored {
    latest: Ts,
    /// A message that names it has been delivered: from now on only checkpoints make it superfluous.
    ordered: bool,
}

impl PayloadStore {
    /// Opens the store in a directory, which is created when it does not exist. Says again and again that it goes on.
    ///
    /// # Errors
    /// When the directory cannot be created or read.
    pub fn open(dir: impl Into<PathBuf>, goes_on: impl Fn()) -> io::Result<PayloadStore> {
        let dir = dir.into();
        make_directory(&dir)?;
        PayloadStore::over(Directory { dir }, &goes_on)
    }
}

impl<F: Files> PayloadStore<F> {
    /// Opens the store over files. Says again and again that it goes on.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn over(files: F, goes_on: &dyn Fn()) -> io::Result<PayloadStore<F>> {
        let mut payloads = BTreeMap::new();
        let mut removing = VecDeque::new();
        for (id, headers) in files.list(goes_on)? {
            match headers.iter().map(|header| split_header(header).0).max() {
                Some(latest) => {
                    payloads.insert(id, Stored { latest, ordered: false });
                }
                None => removing.push_back(id),
            }
        }
        Ok(PayloadStore { files, payloads, removing })
    }

    /// The files under the store.
    pub(crate) fn files(&self) -> &F {
        &self.files
    }

    /// The files under the store, for those who damage them.
    pub(crate) fn files_mut(&mut self) -> &mut F {
        &mut self.files
    }

    /// The files, when the store is not used any more.
    pub(crate) fn into_files(self) -> F {
        self.files
    }

    /// Puts chunks on the disk; an outcome for each, after which it survives any crash. A chunk that is already there
    /// is written again.
    pub fn stage(&mut self, chunks: &[StageChunk]) -> Vec<Result<(), SqlError>> {
        let mut outcomes: Vec<Result<(), SqlError>> = chunks.iter().map(|chunk| self.write(chunk)).collect();
        let written = chunks.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        let payloads = written.map(|(chunk, _)| chunk.payload).collect();
        if let Err(error) = self.files.sync(&payloads) {
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
                *outcome = Err(disk_error(&error));
            }
        }
        outcomes
    }

    fn write(&mut self, chunk: &StageChunk) -> Result<(), SqlError> {
        if crc32fast::hash(&chunk.rows) != chunk.checksum {
            return Err(SqlError::new(
                SqlState::DATA_CORRUPTED,
                "a chunk of staged rows was damaged on its way",
            ));
        }
        let (latest, checksum) = (chunk.latest.0.to_le_bytes(), chunk.checksum.to_le_bytes());
        while self.removing.contains(&chunk.payload) {
            self.remove_some();
        }
        let key = (chunk.payload, chunk.range, chunk.chunk);
        while let Err(error) = self.files.write(key, &[&latest, &checksum, &chunk.rows]) {
            // There may be room when all is gone that nobody needs.
            if !is_full(&error) || self.removing.is_empty() {
                return Err(disk_error(&error));
            }
            self.remove_some();
        }
        self.payloads.entry(chunk.payload).or_insert(Stored { latest: chunk.latest, ordered: false });
        Ok(())
    }

    /// A message that names the payload has been delivered.
    pub fn mark_ordered(&mut self, payload: PayloadId) {
        if let Some(stored) = self.payloads.get_mut(&payload) {
            stored.ordered = true;
        }
    }

    /// A chunk as it is; `None` when it is absent or damaged.
    ///
    /// # Errors
    /// When it may be here, but cannot be read now.
    pub fn chunk(&self, key: ChunkKey) -> io::Result<Option<Bytes>> {
        if self.removing.contains(&key.0) {
            return Ok(None);
        }
        Ok(self.files.read(key)?.and_then(|file| rows_in(&file)))
    }

    /// The rows of a chunk as its message describes it; `None` when they are not here, or damaged.
    ///
    /// # Errors
    /// When they may be here, but cannot be read now.
    pub fn rows(
        &self,
        payload: &StagedPayload,
        part: &StagedPart,
        chunk: usize,
    ) -> io::Result<Option<RowBatch>> {
        let checksum = part.checksums.get(chunk);
        let rows = self.chunk((payload.id, part.range, chunk as u32))?;
        Ok(rows.zip(checksum).and_then(|(rows, checksum)| rows_of(&rows, *checksum)))
    }

    /// The rows of a chunk that another holder has sent; `None` when it is not as its message describes it. It is stored, but
    /// can be used also when that fails: others keep it until nobody needs it any more.
    pub fn adopt(
        &mut self,
        payload: &StagedPayload,
        part: &StagedPart,
        chunk: usize,
        bytes: Bytes,
    ) -> Option<RowBatch> {
        let checksum = *part.checksums.get(chunk)?;
        let rows = rows_of(&bytes, checksum)?;
        let (id, range, chunk, latest) = (payload.id, part.range, chunk as u32, payload.latest);
        let chunk = StageChunk { payload: id, range, chunk, rows: bytes, checksum, latest };
        match self.stage(&[chunk]).into_iter().collect::<Result<Vec<()>, _>>() {
            Ok(_) => self.mark_ordered(id),
            Err(error) => {
                tracing::warn!(
                    "a staged chunk that was fetched is not stored: {}",
                    error.into_report().message
                );
            }
        }
        Some(rows)
    }

    /// Removes a payload. Its files go one after the other ([`remove_some`](PayloadStore::remove_some)): there may be many, and
    /// others wait for the disk.
    pub fn remove(&mut self, payload: PayloadId) {
        self.payloads.remove(&payload);
        if !self.removing.contains(&payload) {
            self.removing.push_back(payload);
        }
    }

    /// Removes some of the files that are not needed any more. Returns whether there are more.
    pub fn remove_some(&mut self) -> bool {
        let Some(payload) = self.removing.front() else { return false };
        match self.files.remove_some(*payload) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => tracing::warn!("cannot remove a staged payload: {error}"),
        }
        self.removing.pop_front();
        !self.removing.is_empty()
    }

    /// Removes a payload that its submitter has given up, unless a message names it after all.
    pub fn abandon(&mut self, payload: PayloadId) {
        // Also what has left no more than a directory.
        if self.payloads.get(&payload).is_none_or(|stored| !stored.ordered) {
            self.remove(payload);
        }
    }

    /// Everything up to `frontier` has been delivered: payloads that had to be ordered before it, and were not, never
    /// will be.
    pub fn expire(&mut self, frontier: Ts) {
        self.remove_unordered(|_, latest| latest < frontier);
    }

    /// A life of a client process has been heard of in the m-seq: what an earlier one has staged, and no message has named so
    /// far, none ever will.
    pub fn outlive(&mut self, process: u64, incarnation: u64) {
        self.remove_unordered(|id, _| id.process == process && id.incarnation < incarnation);
    }

    fn remove_unordered(&mut self, is_over: impl Fn(PayloadId, Ts) -> bool) {
        let over =
            self.payloads.iter().filter(|(id, stored)| !stored.ordered && is_over(**id, stored.latest));
        let over: Vec<PayloadId> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|payload| self.remove(payload));
    }

    /// How many payloads are here.
    pub fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// How many of them a message names that has been delivered.
    pub(crate) fn ordered(&self) -> usize {
        self.payloads.values().filter(|stored| stored.ordered).count()
    }
}

/// Files in a directory, with a directory for each payload.
#[derive(Debug)]
pub struct Directory {
    dir: PathBuf,
}

impl Directory {
    fn dir_of(&self, id: PayloadId) -> PathBuf {
        self.dir.join(format!("{}-{}-{}", id.process, id.incarnation, id.sequence))
    }

    fn path(&self, (payload, range, chunk): ChunkKey) -> PathBuf {
        self.dir_of(payload).join(format!("{:016x}-{:016x}.{chunk}", range.first, range.last))
    }
}

impl Files for Directory {
    fn list(&self, goes_on: &dyn Fn()) -> io::Result<BTreeMap<PayloadId, Vec<Header>>> {
        let mut payloads: BTreeMap<PayloadId, Vec<Header>> = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(parse_id) else { continue };
            let headers = payloads.entry(id).or_default();
            for chunk in fs::read_dir(entry.path())? {
                goes_on();
                let path = chunk?.path();
                match read_header(&path) {
                    Ok(header) => headers.push(header),
                    // It was not written to its end: nobody has a receipt for it.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                    // Rows without which others may have nothing are not to be taken for such.
                    Err(error) => {
                        return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                    }
                }
            }
        }
        Ok(payloads)
    }

    fn read(&self, key: ChunkKey) -> io::Result<Option<Bytes>> {
        match fs::read(self.path(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(|file| Some(file.into())),
        }
    }

    fn write(&mut self, key: ChunkKey, pieces: &[&[u8]]) -> io::Result<()> {
        let path = self.path(key);
        let new = path.with_extension(format!("{}.new", key.2));
        let write = || {
            // Where the process's directory has been removed, a part of it must not come back.
            match fs::create_dir(self.dir_of(key.0)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let mut file = File::create(&new)?;
            pieces.iter().try_for_each(|piece| file.write_all(piece))?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        // What did not fit must not keep the room it took.
        write().inspect_err(|_| drop(fs::remove_file(&new)))
    }

    fn sync(&mut self, payloads: &BTreeSet<PayloadId>) -> io::Result<()> {
        payloads.iter().try_for_each(|payload| sync_directory(&self.dir_of(*payload)))?;
        sync_directory(&self.dir)
    }

    fn remove_some(&mut self, payload: PayloadId) -> io::Result<bool> {
        match removal::remove_some(&self.dir_of(payload)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed,
        }
    }
}

fn parse_id(name: &str) -> Option<PayloadId> {
    let mut numbers = name.split('-').map(|number| number.parse().ok());
    let id =
        PayloadId { process: numbers.next()??, incarnation: numbers.next()??, sequence: numbers.next()?? };
    numbers.next().is_none().then_some(id)
}

fn read_header(path: &Path) -> io::Result<Header> {
    let mut header = [0; HEADER];
    File::open(path)?.read_exact(&mut header)?;
    Ok(header)
}

fn split_header(header: &Header) -> (Ts, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    (Ts(u64::from_le_bytes([a, b, c, d, e, f, g, h])), u32::from_le_bytes([i, j, k, l]))
}

/// The rows in a chunk's file; `None` when it is damaged.
fn rows_in(file: &Bytes) -> Option<Bytes> {
    let (_, checksum) = split_header(file.first_chunk()?);
    let rows = file.slice(HEADER..);
    (crc32fast::hash(&rows) == checksum).then_some(rows)
}

const IO_ERROR: SqlState = SqlState(*b"58030");

/// Whether it is the disk for which a chunk was not staged.
pub(crate) fn is_of_disk(error: &SqlError) -> bool {
    [SqlState::DISK_FULL, IO_ERROR].contains(&error.code)
}

fn disk_error(error: &io::Error) -> SqlError {
    match is_full(error) {
        true => SqlError::new(SqlState::DISK_FULL, "could not stage rows: no space left on device")
            .with_hint("Make room in its data directory."),
        false => SqlError::new(IO_ERROR, format!("could not stage rows: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64) -> PayloadId {
        PayloadId { process: 1, incarnation: 1, sequence }
    }

    fn chunk(sequence: u64, number: u32, rows: &'static [u8]) -> StageChunk {
        StageChunk {
            payload: id(sequence),
            range: KeyRange::FULL,
            chunk: number,
            rows: Bytes::from_static(rows),
            checksum: crc32fast::hash(rows),
            latest: Ts(100),
        }
    }

    #[test]
    fn chunks_survive_a_restart_and_damage_is_noticed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut store = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        let outcomes = store.stage(&[chunk(1, 0, b"abc"), chunk(1, 1, b"def"), chunk(2, 0, b"ghi")]);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let mut damaged = chunk(3, 0, b"xyz");
        damaged.checksum ^= 1;
        assert_eq!(store.stage(&[damaged])[0].as_ref().expect_err("damaged").code, SqlState::DATA_CORRUPTED);

        let store = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        assert_eq!(store.len(), 2);
        let found = |number| store.chunk((id(1), KeyRange::FULL, number)).expect("it can be read");
        assert_eq!([0, 1, 2].map(found), [Some("abc".into()), Some("def".into()), None]);
        let path = store.files.path((id(1), KeyRange::FULL, 1));
        let mut bytes = fs::read(&path).expect("the file is there");
        *bytes.last_mut().expect("not empty") ^= 0x40;
        fs::write(&path, bytes).expect("the file can be written");
        assert_eq!([0, 1].map(found), [Some("abc".into()), None]);
        // What cannot be read may be there.
        fs::remove_file(&path).expect("it is there");
        fs::create_dir(&path).expect("nothing is there");
        store.chunk((id(1), KeyRange::FULL, 1)).expect_err("it is no file");
        let dir_of = |sequence| store.files.dir_of(id(sequence));
        PayloadStore::open(dir.path(), || ()).expect_err("nobody knows what is in it");
        assert!(dir_of(1).exists());
        // What was not written to its end has never been.
        fs::remove_dir(&path).expect("it is there");
        for torn in [path, store.files.path((id(2), KeyRange::FULL, 0))] {
            fs::write(torn, b"7").expect("it can be written");
        }
        let mut reopened = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        assert!(reopened.len() == 1 && !reopened.remove_some());
        assert!(dir_of(1).exists() && !dir_of(2).exists());
    }

    #[test]
    fn a_chunk_that_cannot_be_written_again_stays() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut store = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        assert!(store.stage(&[chunk(1, 0, b"abc")])[0].is_ok());
        let key = (id(1), KeyRange::FULL, 0);
        let new = store.files.path(key).with_extension("0.new");
        fs::create_dir(&new).expect("nothing is there");
        store.stage(&[chunk(1, 0, b"abc")])[0].as_ref().expect_err("something is in the way");
        assert_eq!(store.chunk(key).expect("it can be read"), Some("abc".into()));
        fs::remove_dir(&new).expect("it is empty");
        assert!(store.stage(&[chunk(1, 0, b"abc")])[0].is_ok());
        assert_eq!(fs::read_dir(store.files.dir_of(id(1))).expect("a directory").count(), 1);
        // Whoever starts there once more must not find a part of it.
        fs::remove_dir_all(dir.path()).expect("it is there");
        let error = store.stage(&[chunk(2, 0, b"abc")])[0].clone().expect_err("nothing is there");
        assert!(error.code == IO_ERROR && !dir.path().exists(), "{error}");
    }

    #[test]
    fn only_unordered_payloads_expire_and_only_after_their_latest_ts() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut store = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        store.stage(&[chunk(1, 0, b"abc"), chunk(2, 0, b"def")]);
        store.mark_ordered(id(2));
        store.expire(Ts(100));
        assert_eq!(store.len(), 2);
        store.expire(Ts(101));
        assert_eq!(store.len(), 1);
        store.stage(&[chunk(3, 0, b"ghi")]);
        let PayloadId { process, incarnation, .. } = id(3);
        store.outlive(process, incarnation);
        store.outlive(process + 1, incarnation + 1);
        assert_eq!(store.len(), 2);
        store.outlive(process, incarnation + 1);
        assert_eq!(store.len(), 1, "a message names the other one");
        store.abandon(id(2));
        let is_there =
            |store: &PayloadStore| store.chunk((id(2), KeyRange::FULL, 0)).expect("it can be read").is_some();
        assert!(is_there(&store), "a message names it");
        store.remove(id(2));
        assert!(store.is_empty() && !is_there(&store));
    }

    #[test]
    fn files_go_little_by_little_when_nobody_needs_them() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut store = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        for number in 0..700 {
            store.stage(&[chunk(1, number, b"abc")]);
        }
        let files = || fs::read_dir(dir.path().join("1-1-1")).map_or(0, Iterator::count);
        store.remove(id(1));
        store.remove(id(1));
        let mut left = files();
        assert!(left == 700 && store.is_empty());
        let mut steps = 0;
        while store.remove_some() {
            steps += 1;
            assert!((1..left).contains(&files()));
            left = files();
        }
        assert!(steps > 1 && !dir.path().join("1-1-1").exists());
        assert!(!store.remove_some());

        // What comes behind a removal is not taken for a part of what is removed.
        store.stage(&[chunk(1, 0, b"abc"), chunk(1, 1, b"def")]);
        store.remove(id(1));
        assert!(store.stage(&[chunk(1, 2, b"ghi")])[0].is_ok());
        assert!(!store.remove_some() && files() == 1);
        // Nor is it gone when whoever should remove it ends.
        store.remove(id(1));
        let store = PayloadStore::open(dir.path(), || ()).expect("the directory can be opened");
        assert_eq!(store.len(), 1);
    }
}
