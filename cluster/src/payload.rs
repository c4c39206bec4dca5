//! The payload store of a storage process: rows that go around the m-seq (DESIGN, decision 12).
//!
//! A chunk is a file of its own, `<payload>/<range>.<chunk>`: the payload's latest `Ts`, the CRC-32 of the rows, the rows.
//! A receipt is given after the file and its directories have been synced; chunks that wait together share the syncs of
//! directories. A file that is cut short by a crash fails its CRC and counts as absent.

use std::{
    collections::BTreeMap,
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
    wire::StageChunk,
};

/// Bytes before the rows of a chunk file: latest `Ts`, CRC-32.
const HEADER: usize = 12;

/// The store; all of it is synchronous file I/O.
#[derive(Debug)]
pub struct PayloadStore {
    dir: PathBuf,
    payloads: BTreeMap<PayloadId, Stored>,
}

#[derive(Debug)]
struct Stored {
    latest: Ts,
    /// A message that names it has been delivered: from now on only checkpoints make it superfluous.
    ordered: bool,
}

impl PayloadStore {
    /// Opens the store in a directory, which is created when it does not exist.
    ///
    /// # Errors
    /// When the directory cannot be created or read.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<PayloadStore> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        let mut payloads = BTreeMap::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(parse_id) else { continue };
            let mut latest = None;
            for chunk in fs::read_dir(entry.path())? {
                latest = latest.max(read_header(&chunk?.path()).ok().map(|(latest, _)| latest));
            }
            match latest {
                Some(latest) => {
                    payloads.insert(id, Stored { latest, ordered: false });
                }
                None => fs::remove_dir_all(entry.path())?,
            }
        }
        Ok(PayloadStore { dir, payloads })
    }

    /// Puts chunks on the disk; an outcome for each, after which it survives any crash. A chunk that is already there
    /// is written again.
    pub fn stage(&mut self, chunks: &[StageChunk]) -> Vec<Result<(), SqlError>> {
        let mut outcomes: Vec<Result<(), SqlError>> = chunks.iter().map(|chunk| self.write(chunk)).collect();
        let written = chunks.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        let mut directories: Vec<PathBuf> = written.map(|(chunk, _)| self.dir_of(chunk.payload)).collect();
        directories.push(self.dir.clone());
        directories.sort_unstable();
        directories.dedup();
        if let Some(error) = directories.iter().find_map(|dir| sync_dir(dir).err()) {
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
        let path = self.path(chunk.payload, chunk.range, chunk.chunk);
        let write = || {
            fs::create_dir_all(self.dir_of(chunk.payload))?;
            let mut file = File::create(&path)?;
            file.write_all(&chunk.latest.0.to_le_bytes())?;
            file.write_all(&chunk.checksum.to_le_bytes())?;
            file.write_all(&chunk.rows)?;
            file.sync_all()
        };
        write().map_err(|error| {
            // What did not fit must not keep the room it took.
            let _ = fs::remove_file(&path);
            disk_error(&error)
        })?;
        self.payloads.entry(chunk.payload).or_insert(Stored { latest: chunk.latest, ordered: false });
        Ok(())
    }

    /// A message that names the payload has been delivered.
    pub fn mark_ordered(&mut self, payload: PayloadId) {
        if let Some(stored) = self.payloads.get_mut(&payload) {
            stored.ordered = true;
        }
    }

    /// The chunks of a part as they are; `None` when one is absent or damaged.
    pub fn part(&self, payload: PayloadId, range: KeyRange) -> Option<Vec<Bytes>> {
        let mut chunks = Vec::new();
        loop {
            let path = self.path(payload, range, chunks.len() as u32);
            if !path.exists() {
                break;
            }
            chunks.push(read_chunk(&path)?);
        }
        (!chunks.is_empty()).then_some(chunks)
    }

    /// The rows of a chunk as its message describes it; `None` when they are not here, or damaged.
    pub fn rows(&self, payload: &StagedPayload, part: &StagedPart, chunk: usize) -> Option<RowBatch> {
        let rows = read_chunk(&self.path(payload.id, part.range, chunk as u32))?;
        if crc32fast::hash(&rows) != *part.checksums.get(chunk)? {
            return None;
        }
        postcard::from_bytes(&rows).ok()
    }

    /// Stores a part that another holder has sent, if it is as its message describes it.
    pub fn adopt(
        &mut self,
        payload: &StagedPayload,
        part: &StagedPart,
        chunks: &[Bytes],
    ) -> Result<bool, SqlError> {
        let fits = chunks.len() == part.checksums.len()
            && chunks
                .iter()
                .zip(&part.checksums)
                .all(|(chunk, checksum)| crc32fast::hash(chunk) == *checksum);
        if !fits {
            return Ok(false);
        }
        let chunks: Vec<StageChunk> = (0..)
            .zip(chunks.iter().zip(&part.checksums))
            .map(|(chunk, (rows, checksum))| StageChunk {
                payload: payload.id,
                range: part.range,
                chunk,
                rows: rows.clone(),
                checksum: *checksum,
                latest: payload.latest,
            })
            .collect();
        self.stage(&chunks).into_iter().collect::<Result<Vec<()>, _>>()?;
        self.mark_ordered(payload.id);
        Ok(true)
    }

    /// Removes a payload.
    pub fn remove(&mut self, payload: PayloadId) {
        self.payloads.remove(&payload);
        if let Err(error) = fs::remove_dir_all(self.dir_of(payload))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove a staged payload: {error}");
        }
    }

    /// Removes a payload that its submitter has given up, unless a message names it after all.
    pub fn abandon(&mut self, payload: PayloadId) {
        if self.payloads.get(&payload).is_some_and(|stored| !stored.ordered) {
            self.remove(payload);
        }
    }

    /// Everything up to `frontier` has been delivered: payloads that had to be ordered before it, and were not, never
    /// will be.
    pub fn expire(&mut self, frontier: Ts) {
        let expired: Vec<PayloadId> = self
            .payloads
            .iter()
            .filter(|(_, stored)| !stored.ordered && stored.latest < frontier)
            .map(|(id, _)| *id)
            .collect();
        for payload in expired {
            self.remove(payload);
        }
    }

    /// How many payloads are here.
    pub fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    fn dir_of(&self, id: PayloadId) -> PathBuf {
        self.dir.join(format!("{}-{}-{}", id.process, id.incarnation, id.sequence))
    }

    fn path(&self, payload: PayloadId, range: KeyRange, chunk: u32) -> PathBuf {
        self.dir_of(payload).join(format!("{:016x}-{:016x}.{chunk}", range.first, range.last))
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn parse_id(name: &str) -> Option<PayloadId> {
    let mut numbers = name.split('-').map(|number| number.parse().ok());
    let id =
        PayloadId { process: numbers.next()??, incarnation: numbers.next()??, sequence: numbers.next()?? };
    numbers.next().is_none().then_some(id)
}

fn read_header(path: &Path) -> io::Result<(Ts, u32)> {
    let mut header = [0; HEADER];
    File::open(path)?.read_exact(&mut header)?;
    Ok(split_header(&header))
}

fn split_header(header: &[u8; HEADER]) -> (Ts, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    (Ts(u64::from_le_bytes([a, b, c, d, e, f, g, h])), u32::from_le_bytes([i, j, k, l]))
}

/// The rows of a chunk; `None` when the file is absent or damaged.
fn read_chunk(path: &Path) -> Option<Bytes> {
    let bytes = Bytes::from(fs::read(path).ok()?);
    let (_, checksum) = split_header(bytes.first_chunk()?);
    let rows = bytes.slice(HEADER..);
    (crc32fast::hash(&rows) == checksum).then_some(rows)
}

fn disk_error(error: &io::Error) -> SqlError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            SqlError::new(SqlState::DISK_FULL, "could not stage rows: no space left on device")
                .with_hint("Make room in the data directory of the storage processes.")
        }
        _ => SqlError::new(SqlState::INSUFFICIENT_RESOURCES, format!("could not stage rows: {error}")),
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
        let mut store = PayloadStore::open(dir.path()).expect("the directory can be opened");
        let outcomes = store.stage(&[chunk(1, 0, b"abc"), chunk(1, 1, b"def"), chunk(2, 0, b"ghi")]);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let mut damaged = chunk(3, 0, b"xyz");
        damaged.checksum ^= 1;
        assert_eq!(store.stage(&[damaged])[0].as_ref().expect_err("damaged").code, SqlState::DATA_CORRUPTED);

        let store = PayloadStore::open(dir.path()).expect("the directory can be opened");
        assert_eq!(store.len(), 2);
        let part = store.part(id(1), KeyRange::FULL).expect("the part is there");
        assert_eq!(part, [Bytes::from_static(b"abc"), Bytes::from_static(b"def")]);
        let path = store.path(id(1), KeyRange::FULL, 1);
        let mut bytes = fs::read(&path).expect("the file is there");
        *bytes.last_mut().expect("not empty") ^= 0x40;
        fs::write(&path, bytes).expect("the file can be written");
        assert_eq!(store.part(id(1), KeyRange::FULL), None);
    }

    #[test]
    fn only_unordered_payloads_expire_and_only_after_their_latest_ts() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut store = PayloadStore::open(dir.path()).expect("the directory can be opened");
        store.stage(&[chunk(1, 0, b"abc"), chunk(2, 0, b"def")]);
        store.mark_ordered(id(2));
        store.expire(Ts(100));
        assert_eq!(store.len(), 2);
        store.expire(Ts(101));
        assert_eq!(store.len(), 1);
        store.abandon(id(2));
        assert!(store.part(id(2), KeyRange::FULL).is_some(), "a message names it");
        store.remove(id(2));
        assert!(store.is_empty() && store.part(id(2), KeyRange::FULL).is_none());
    }
}
