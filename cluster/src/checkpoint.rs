//! Checkpoints on disk (DESIGN, decision 13): for every table and primary range, or part of one that has been received, a
//! file of its rows as segments hold them; and a manifest.
//!
//! A file of rows is a sequence of blocks ([`carousel_engine::operation::Effect::Block`]), each behind its length in bytes
//! as 8 bytes, little-endian. Rows in full would have to be gathered to be written, and encoded again to be read.
//!
//! A checkpoint is written to `checkpoint-<ts>.part`, everything in it is synced, and only then it is renamed to
//! `checkpoint-<ts>`: so one that bears its final name is complete. The manifest is `CRSLCKPT`, the format version, the
//! CRC-32 of the rest, and the rest in postcard; it has the CRC-32 of every other file.
//!
//! Where one of that `Ts` is there already, it is put aside as `checkpoint-<ts>.old` until the other is in its place. One that is
//! to be removed is called `checkpoint-<ts>.gone` before anything of it goes.
//!
//! What a keyspace message moves to the process is written in the same way, but called `received-<ts>` at last, and is there
//! until there is a checkpoint of that `Ts` or behind it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use carousel_engine::{TableId, Ts, operation::PayloadId, position::KeyRange};
use serde::{Deserialize, Serialize};

use crate::{
    catalog::Catalog,
    config::Config,
    direct::{Direct, End},
    message::{MessageId, ProcessId},
    removal::{remove_directory, remove_file},
    storage::{
        ballot::Ballot,
        core::{ContentHash, Recovered},
        migration::{Chunk, PartId},
    },
    wal::{free_bytes, sync_directory},
};

const MAGIC: &[u8; 8] = b"CRSLCKPT";
/// Format of the manifest and of the files it names.
const FORMAT: u32 = 13;
const MANIFEST: &str = "MANIFEST";
const PREFIX: &str = "checkpoint-";
const RECEIVED: &str = "received-";
const UNFINISHED: &str = ".part";
/// What takes its place is not there yet, or it is to be removed.
const REPLACED: &str = ".old";
/// It is being removed, and is not whole any more.
const GONE: &str = ".gone";

/// Says that what takes long goes on.
pub type GoesOn = Arc<dyn Fn() + Send + Sync>;

/// What is wrong with a checkpoint on disk.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is not what was written.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    ts: Ts,
    config: Config,
    catalog: Arc<Catalog>,
    ballots: Vec<(Ts, Ballot)>,
    payloads: Vec<(Ts, PayloadId, Vec<ProcessId>)>,
    passed: Vec<MessageId>,
    held: Vec<KeyRange>,
    served: Vec<(ProcessId, PartId)>,
    catalogs: BTreeMap<Ts, Arc<Catalog>>,
    hashes: Vec<ContentHash>,
    files: Vec<FileEntry>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    name: String,
    /// Whose rows.
    pub table: TableId,
    /// Which rows.
    pub range: KeyRange,
    /// For rows that others are to receive: as of when.
    pub until: Option<Ts>,
    bytes: u64,
    checksum: u32,
}

/// Bytes of a file that are made durable together while more are written, so that little is left to do at its end.
const SYNC_BYTES: u64 = 32 << 20;

/// Which rows a file has: of a table, as of now or as of an earlier `Ts`, in a range.
type Rows = (TableId, Option<Ts>, KeyRange);

/// What has been written of a file.
#[derive(Default)]
struct Written {
    bytes: u64,
    /// How many of them may not be durable.
    unsynced: u64,
    checksum: crc32fast::Hasher,
    /// While it is not open.
    end: End,
}

/// Writes one checkpoint. What has been written is removed if it is not finished.
pub struct Writer {
    root: PathBuf,
    /// It leaves so much room on the disk.
    reserve_bytes: u64,
    dir: PathBuf,
    files: BTreeMap<Rows, Written>,
    /// The file that was written to last.
    open: Option<(Rows, Direct)>,
    goes_on: GoesOn,
}

impl Writer {
    /// Begins the checkpoint of `ts` in `root`. It leaves so many bytes of the disk to others, who go on only while there is some
    /// room. What takes long, to sync many files or to remove large ones, says again and again that it `goes_on`.
    ///
    /// # Errors
    /// When its directory cannot be created, or there is no more room than that.
    pub fn begin(root: &Path, ts: Ts, reserve_bytes: u64, goes_on: GoesOn) -> io::Result<Writer> {
        let dir = root.join(format!("{PREFIX}{}{UNFINISHED}", ts.0));
        if dir.exists() {
            remove_directory(&dir, &*goes_on)?;
        }
        fs::create_dir_all(&dir)?;
        let (root, files) = (root.to_path_buf(), BTreeMap::new());
        let writer = Writer { root, reserve_bytes, dir, files, open: None, goes_on };
        writer.leave_room()?;
        Ok(writer)
    }

    /// Adds rows of a range, as of now or as of an earlier `Ts`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn rows(
        &mut self,
        table: TableId,
        until: Option<Ts>,
        range: KeyRange,
        block: &[u8],
    ) -> io::Result<()> {
        let rows = (table, until, range);
        if self.open.as_ref().is_none_or(|(open, _)| *open != rows) {
            self.close()?;
        }
        let written = self.files.entry(rows).or_default();
        let file = match &mut self.open {
            Some((_, file)) => file,
            none => {
                let path = self.dir.join(file_name(rows));
                &mut none.insert((rows, Direct::open(&path, std::mem::take(&mut written.end))?)).1
            }
        };
        for bytes in [&(block.len() as u64).to_le_bytes(), block] {
            file.write_all(bytes)?;
            written.checksum.update(bytes);
            written.bytes += bytes.len() as u64;
            written.unsynced += bytes.len() as u64;
        }
        if written.unsynced >= SYNC_BYTES {
            file.sync()?;
            written.unsynced = 0;
            self.leave_room()?;
        }
        Ok(())
    }

    fn leave_room(&self) -> io::Result<()> {
        // A file system that does not tell has room until it refuses.
        let is_short = free_bytes(&self.root).is_ok_and(|free| free < self.reserve_bytes);
        if is_short { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn close(&mut self) -> io::Result<()> {
        if let Some((rows, file)) = self.open.take() {
            self.files.entry(rows).or_default().end = file.close()?;
        }
        Ok(())
    }

    /// Forgets the rows of a range as of now.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn forget(&mut self, range: KeyRange) -> io::Result<()> {
        let is_forgotten = |(_, until, of): &Rows| until.is_none() && *of == range;
        self.open.take_if(|(rows, _)| is_forgotten(rows));
        let forgotten: Vec<Rows> = self.files.keys().copied().filter(is_forgotten).collect();
        for rows in forgotten {
            self.files.remove(&rows);
            remove_file(&self.dir.join(file_name(rows)), &*self.goes_on)?;
        }
        Ok(())
    }

    /// Completes the checkpoint with what it says apart from the rows, makes it durable, and removes what is older.
    ///
    /// # Errors
    /// When that is not possible; the older ones are still there.
    pub fn finish(self, checkpoint: Recovered) -> io::Result<()> {
        let (root, ts, goes_on) = (self.root.clone(), checkpoint.ts, self.goes_on.clone());
        self.complete(PREFIX, checkpoint)?;
        // It is durable, whatever becomes of them: what is still there goes with the next one.
        if let Err(error) = remove_older(&root, ts, &*goes_on) {
            tracing::warn!(path = %root.display(), %error, "an older checkpoint cannot be removed");
        }
        Ok(())
    }

    /// As [`finish`](Writer::finish), of what a keyspace message moves here: it removes nothing.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn finish_received(self, parts: Recovered) -> io::Result<()> {
        self.complete(RECEIVED, parts)
    }

    fn complete(mut self, prefix: &str, checkpoint: Recovered) -> io::Result<()> {
        let Recovered {
            ts,
            catalog,
            ballots,
            payloads,
            passed,
            hashes,
            config,
            held,
            served,
            catalogs,
            kept: _,
        } = checkpoint;
        let config = config.map(Arc::unwrap_or_clone).ok_or_else(|| io::Error::other("no config"))?;
        self.close()?;
        let mut files = Vec::new();
        for (rows, Written { bytes, checksum, end, .. }) in std::mem::take(&mut self.files) {
            let (name, (table, until, range)) = (file_name(rows), rows);
            Direct::open(&self.dir.join(&name), end)?.finish()?;
            (self.goes_on)();
            files.push(FileEntry { name, table, range, until, bytes, checksum: checksum.finalize() });
        }
        let manifest = Manifest {
            ts,
            config,
            catalog,
            ballots,
            payloads,
            passed,
            held,
            served,
            catalogs,
            hashes,
            files,
        };
        let content = postcard::to_stdvec(&manifest).map_err(io::Error::other)?;
        let mut file = File::create(self.dir.join(MANIFEST))?;
        file.write_all(MAGIC)?;
        file.write_all(&FORMAT.to_le_bytes())?;
        file.write_all(&crc32fast::hash(&content).to_le_bytes())?;
        file.write_all(&content)?;
        file.sync_all()?;
        sync_directory(&self.dir)?;
        let name = format!("{prefix}{}", ts.0);
        let (complete, replaced) = (self.root.join(&name), self.root.join(name + REPLACED));
        // The same checkpoint may have been written before: a replay has come to it again. Others count on it, so it goes
        // only when this one is in its place.
        let replaces = complete.exists();
        if replaces {
            if replaced.exists() {
                remove_directory(&replaced, &*self.goes_on)?;
            }
            fs::rename(&complete, &replaced)?;
        }
        if let Err(error) = fs::rename(&self.dir, &complete) {
            if replaces {
                fs::rename(&replaced, &complete)?;
            }
            return Err(error);
        }
        sync_directory(&self.root)?;
        if replaces && let Err(error) = remove_directory(&replaced, &*self.goes_on) {
            tracing::warn!(path = %replaced.display(), %error, "a replaced checkpoint cannot be removed");
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Not there any more when it is finished. What cannot be removed is removed at the next start.
        let _ = remove_directory(&self.dir, &*self.goes_on);
    }
}

fn file_name((table, until, range): Rows) -> String {
    match until {
        None => format!("table-{}-{:016x}.rows", table.0, range.first),
        Some(until) => format!("table-{}-{:016x}-until-{until}.rows", table.0, range.first),
    }
}

fn remove_older(root: &Path, ts: Ts, goes_on: &dyn Fn()) -> io::Result<()> {
    let older = complete(root, PREFIX)?.into_iter().filter(|(older, _)| *older < ts);
    let received = complete(root, RECEIVED)?.into_iter().filter(|(keyspace, _)| *keyspace <= ts);
    older.chain(received).try_for_each(|(_, path)| remove(&path, goes_on))
}

/// Removes what is complete: nobody takes what is left of it for that, whenever the process is killed.
fn remove(path: &Path, goes_on: &dyn Fn()) -> io::Result<()> {
    let mut gone = path.as_os_str().to_owned();
    gone.push(GONE);
    let gone = PathBuf::from(gone);
    if gone.exists() {
        remove_directory(&gone, goes_on)?;
    }
    fs::rename(path, &gone)?;
    path.parent().map_or(Ok(()), sync_directory)?;
    remove_directory(&gone, goes_on)
}

/// Ends what a process that was killed had begun: what was not finished goes, or was being removed, and what was to be replaced
/// and has not been is in its place again.
fn settle(root: &Path, goes_on: &dyn Fn()) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX) || name.starts_with(RECEIVED))
        else {
            continue;
        };
        match name.strip_suffix(REPLACED).map(|name| root.join(name)) {
            Some(complete) if !complete.exists() => {
                fs::rename(path, complete)?;
                sync_directory(root)?;
            }
            Some(_) => remove_directory(&path, goes_on)?,
            None if name.ends_with(UNFINISHED) || name.ends_with(GONE) => remove_directory(&path, goes_on)?,
            None => {}
        }
    }
    Ok(())
}

fn complete(root: &Path, prefix: &str) -> io::Result<Vec<(Ts, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let ts = entry.file_name().to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        found.extend(ts.map(|ts| (Ts(ts), entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// A checkpoint on disk.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// What it says apart from the rows.
    pub recovered: Recovered,
    /// The files with the rows.
    pub files: Vec<FileEntry>,
}

/// Why a file that belongs to a checkpoint cannot be read.
fn lost(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + use<> {
    let path = path.to_path_buf();
    move |source| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::Damaged { path, reason: "it is missing".into() },
        io::ErrorKind::UnexpectedEof => CheckpointError::Damaged { path, reason: "it is cut off".into() },
        _ => CheckpointError::Io { path, source },
    }
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + use<> {
    let path = path.to_path_buf();
    move |source| CheckpointError::Io { path, source }
}

impl Checkpoint {
    /// The newest complete checkpoint in `root`, if there is one. Unfinished ones are removed: says again and again that it
    /// `goes_on`.
    ///
    /// # Errors
    /// When it cannot be read or its manifest is damaged.
    pub fn newest(root: &Path, goes_on: impl Fn()) -> Result<Option<Checkpoint>, CheckpointError> {
        settle(root, &goes_on).map_err(unreadable(root))?;
        let newest = complete(root, PREFIX).map_err(unreadable(root))?.pop();
        newest.map(|(ts, dir)| Checkpoint::open(ts, dir)).transpose()
    }

    /// What keyspace messages behind `ts` have moved to the process in `root`. What is older is removed: says again and again that
    /// it `goes_on`.
    ///
    /// # Errors
    /// When it cannot be read or a manifest is damaged.
    pub fn received(root: &Path, ts: Ts, goes_on: impl Fn()) -> Result<Vec<Checkpoint>, CheckpointError> {
        let mut found = Vec::new();
        for (keyspace, dir) in complete(root, RECEIVED).map_err(unreadable(root))? {
            if keyspace <= ts {
                remove(&dir, &goes_on).map_err(unreadable(&dir))?;
            } else {
                found.push(Checkpoint::open(keyspace, dir)?);
            }
        }
        Ok(found)
    }

    fn open(ts: Ts, dir: PathBuf) -> Result<Checkpoint, CheckpointError> {
        let path = dir.join(MANIFEST);
        let bytes = fs::read(&path).map_err(lost(&path))?;
        let damaged = |reason: String| CheckpointError::Damaged { path: path.clone(), reason };
        let (header, content) =
            bytes.split_first_chunk::<16>().ok_or_else(|| damaged("it is too short".into()))?;
        let [magic @ .., f0, f1, f2, f3, c0, c1, c2, c3] = header;
        if magic != MAGIC {
            return Err(damaged("it is not the manifest of a checkpoint".into()));
        }
        let format = u32::from_le_bytes([*f0, *f1, *f2, *f3]);
        if format != FORMAT {
            return Err(damaged(format!("it has format {format}, this release reads format {FORMAT}")));
        }
        if crc32fast::hash(content) != u32::from_le_bytes([*c0, *c1, *c2, *c3]) {
            return Err(damaged("its checksum does not match".into()));
        }
        let manifest: Manifest = postcard::from_bytes(content).map_err(|e| damaged(e.to_string()))?;
        if manifest.ts != ts {
            return Err(damaged(format!("it is the manifest of checkpoint {}", manifest.ts)));
        }
        let Manifest {
            ts,
            config,
            catalog,
            ballots,
            payloads,
            passed,
            held,
            served,
            catalogs,
            hashes,
            files,
        } = manifest;
        let config = Some(Arc::new(config));
        let kept = Vec::new();
        let recovered = Recovered {
            ts,
            catalog,
            ballots,
            payloads,
            passed,
            hashes,
            config,
            held,
            served,
            catalogs,
            kept,
        };
        Ok(Checkpoint { dir, recovered, files })
    }

    /// Of whether the newest complete checkpoint in `root` is behind `last`, and of what has been received behind it: where that is.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn beyond(root: &Path, last: Ts) -> io::Result<(bool, Vec<PathBuf>)> {
        let newest = complete(root, PREFIX)?.pop();
        let received = complete(root, RECEIVED)?.into_iter().filter(|(keyspace, _)| *keyspace > last);
        Ok((newest.is_some_and(|(ts, _)| ts > last), received.map(|(_, path)| path).collect()))
    }

    /// Removes all checkpoints in `root`, and what has been received, as they are of no use any more.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn remove_all(root: &Path, goes_on: impl Fn()) -> io::Result<()> {
        settle(root, &goes_on)?;
        let received = complete(root, RECEIVED)?;
        let mut all = complete(root, PREFIX)?.into_iter().chain(received);
        all.try_for_each(|(_, path)| remove(&path, &goes_on))
    }

    /// Reads one file, block by block; says again and again that it `goes_on`, also where no block comes yet.
    ///
    /// # Errors
    /// When it is absent or damaged.
    pub fn read(
        &self,
        entry: &FileEntry,
        goes_on: impl Fn(),
        mut each: impl FnMut(Bytes) -> Result<(), String>,
    ) -> Result<(), CheckpointError> {
        let blocks = self.blocks(entry, &goes_on)?;
        let path = blocks.path.clone();
        for block in blocks {
            goes_on();
            each(block?).map_err(|reason| CheckpointError::Damaged { path: path.clone(), reason })?;
        }
        Ok(())
    }

    /// The blocks of a file, which has been checked.
    fn blocks(&self, entry: &FileEntry, goes_on: impl Fn()) -> Result<Blocks, CheckpointError> {
        let path = self.dir.join(&entry.name);
        let mut file = File::open(&path).map_err(lost(&path))?;
        let mut checksum = crc32fast::Hasher::new();
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = file.read(&mut buffer).map_err(lost(&path))?;
            if read == 0 {
                break;
            }
            checksum.update(&buffer[..read]);
            bytes += read as u64;
            goes_on();
        }
        if bytes != entry.bytes || checksum.finalize() != entry.checksum {
            let reason = "its checksum does not match".into();
            return Err(CheckpointError::Damaged { path, reason });
        }
        let file = BufReader::new(File::open(&path).map_err(lost(&path))?);
        Ok(Blocks { path, file, left: bytes })
    }

    /// The chunks of a part that has been received ([`Recovered::chunks`]). It says again and again that it `goes_on`, also where
    /// none comes yet.
    pub fn chunks<G: Fn()>(
        &self,
        range: KeyRange,
        goes_on: G,
    ) -> impl Iterator<Item = Result<Chunk, CheckpointError>> + use<G> {
        let of_part = self.files.iter().filter(|file| file.range == range);
        let files: Vec<FileEntry> = of_part.cloned().collect();
        let this = Checkpoint { dir: self.dir.clone(), recovered: Recovered::default(), files: Vec::new() };
        let blocks = files.into_iter().flat_map(move |entry| {
            let (blocks, error) = match this.blocks(&entry, &goes_on) {
                Ok(blocks) => (Some(blocks), None),
                Err(error) => (None, Some(Err(error))),
            };
            blocks.into_iter().flatten().chain(error).map(move |block| Ok((entry.table, block?)))
        });
        self.recovered.chunks(range, blocks)
    }
}

/// The blocks of a file.
struct Blocks {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes that have not been read.
    left: u64,
}

impl Blocks {
    fn read(&mut self) -> Result<Bytes, CheckpointError> {
        let Blocks { path, file, left } = self;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(lost(path))?;
        let length = u64::from_le_bytes(length);
        let rest = left.checked_sub(8).and_then(|left| left.checked_sub(length));
        let Some(rest) = rest else {
            let reason = "its last block is cut off".into();
            return Err(CheckpointError::Damaged { path: path.clone(), reason });
        };
        let mut block = vec![0; length as usize];
        file.read_exact(&mut block).map_err(lost(path))?;
        *left = rest;
        Ok(block.into())
    }
}

impl Iterator for Blocks {
    type Item = Result<Bytes, CheckpointError>;

    fn next(&mut self) -> Option<Result<Bytes, CheckpointError>> {
        if self.left == 0 {
            return None;
        }
        let block = self.read();
        if block.is_err() {
            self.left = 0;
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn recovered(ts: u64) -> Recovered {
        let config = Some(Arc::new(Config::evenly(1, 1).expect("a ring")));
        Recovered { ts: Ts(ts), config, ..Recovered::default() }
    }

    fn blocks(checkpoint: &Checkpoint) -> Vec<(Rows, Vec<Vec<u8>>)> {
        let files = checkpoint.files.iter().map(|file| {
            let mut blocks = Vec::new();
            let each = |block: Bytes| {
                blocks.push(block.to_vec());
                Ok(())
            };
            checkpoint.read(file, || (), each).expect("what was written");
            ((file.table, file.until, file.range), blocks)
        });
        files.collect()
    }

    fn begin(root: &Path, ts: Ts, reserve_bytes: u64) -> io::Result<Writer> {
        Writer::begin(root, ts, reserve_bytes, Arc::new(|| ()))
    }

    #[test]
    fn others_keep_the_room_that_is_left_to_them() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let refused = begin(dir.path(), Ts(7), u64::MAX).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::StorageFull));
        let mut writer = begin(dir.path(), Ts(7), 1).expect("there is room");
        writer.reserve_bytes = u64::MAX;
        let block = vec![0; SYNC_BYTES as usize];
        let written = writer.rows(TableId(1), None, KeyRange::FULL, &block);
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
        drop(writer);
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn rows_of_several_files_come_in_any_order_and_some_may_be_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (TableId(1), TableId(2));
        let [low, high] = [KeyRange { first: 0, last: 9 }, KeyRange { first: 10, last: 19 }];
        let told = Arc::new(AtomicUsize::new(0));
        let goes_on = told.clone();
        let goes_on: GoesOn = Arc::new(move || {
            goes_on.fetch_add(1, Ordering::Relaxed);
        });
        let mut writer = Writer::begin(dir.path(), Ts(7), 0, goes_on).expect("it can be written");
        let mut write =
            |table, until, range, block: &[u8]| writer.rows(table, until, range, block).expect("room");
        write(one, None, low, b"a");
        write(two, None, high, b"b");
        write(one, None, low, b"c");
        write(one, Some(Ts(5)), low, b"d");
        write(two, None, high, b"e");
        writer.forget(low).expect("they are there");
        writer.rows(one, None, low, b"f").expect("room");
        assert_eq!(told.swap(0, Ordering::Relaxed), 1, "when one has been removed");
        writer.finish(recovered(7)).expect("it can be written");
        assert_eq!(told.load(Ordering::Relaxed), 3, "with each file");
        let checkpoint =
            Checkpoint::newest(dir.path(), || ()).expect("it can be read").expect("there is one");
        assert_eq!(checkpoint.recovered.ts, Ts(7));
        let of = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let wanted = [
            ((one, None, low), of(&["f"])),
            ((one, Some(Ts(5)), low), of(&["d"])),
            ((two, None, high), of(&["b", "e"])),
        ];
        assert_eq!(blocks(&checkpoint), wanted);
    }

    #[test]
    fn what_is_not_finished_leaves_nothing_and_a_newer_one_takes_the_place_of_an_older_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let names = || {
            let entries = fs::read_dir(dir.path()).expect("it is there");
            let names = entries.map(|entry| entry.expect("a name").file_name().into_string().expect("text"));
            names.collect::<Vec<_>>()
        };
        for ts in [7, 9] {
            let mut writer = begin(dir.path(), Ts(ts), 0).expect("it can be written");
            writer.rows(TableId(1), None, KeyRange::FULL, b"a").expect("room");
            writer.finish(recovered(ts)).expect("it can be written");
            let mut unfinished = begin(dir.path(), Ts(ts + 1), 0).expect("it can be written");
            unfinished.rows(TableId(1), None, KeyRange::FULL, b"a").expect("room");
            drop(unfinished);
            assert_eq!(names(), [format!("checkpoint-{ts}")]);
        }
    }

    #[test]
    fn what_is_replaced_is_there_until_the_other_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |block: &[u8]| {
            let mut writer = begin(dir.path(), Ts(7), 0).expect("it can be written");
            writer.rows(TableId(1), None, KeyRange::FULL, block).expect("room");
            writer.finish(recovered(7)).expect("it can be written");
        };
        // The rows; the votes come behind them.
        let read = || -> Option<u8> {
            let newest =
                Checkpoint::newest(dir.path(), || ()).expect("it can be read").expect("there is one");
            let chunks: Result<Vec<Chunk>, _> = newest.chunks(KeyRange::FULL, || ()).collect();
            let chunks = chunks.expect("what was written");
            chunks.first().and_then(|chunk| chunk.rows.first().copied())
        };
        write(b"a");
        write(b"b");
        assert_eq!(read(), Some(b'b'));
        // A process is killed when it has put the old one aside …
        let [complete, replaced] = ["checkpoint-7", "checkpoint-7.old"].map(|name| dir.path().join(name));
        fs::rename(&complete, &replaced).expect("it is there");
        fs::create_dir(dir.path().join("checkpoint-7.part")).expect("it can be made");
        assert_eq!(read(), Some(b'b'));
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 1);
        // … or before it has removed that.
        fs::create_dir(&replaced).expect("it can be made");
        assert_eq!(read(), Some(b'b'));
        assert!(!replaced.exists());
        // One that was being removed is none any more.
        let gone = dir.path().join("checkpoint-9.gone");
        fs::create_dir(&gone).expect("it can be made");
        assert_eq!(read(), Some(b'b'));
        assert!(!gone.exists());
        fs::create_dir(dir.path().join("checkpoint-7.gone")).expect("it can be made");
        fs::rename(&complete, &replaced).expect("it is there");
        Checkpoint::remove_all(dir.path(), || ()).expect("it can be removed");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    /// It is there beside an older checkpoint, comes as another process would send it, and goes with a newer one.
    #[test]
    fn what_has_been_received_is_kept_until_a_checkpoint_has_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (TableId(1), TableId(2));
        let [low, high] = [KeyRange { first: 0, last: 9 }, KeyRange { first: 10, last: 19 }];
        let finish = |ts| begin(dir.path(), Ts(ts), 0).and_then(|writer| writer.finish(recovered(ts)));
        finish(5).expect("it can be written");
        let mut writer = begin(dir.path(), Ts(7), 0).expect("it can be written");
        for (table, range, block) in [(two, low, "b"), (one, low, "a"), (one, high, "x"), (one, low, "c")] {
            writer.rows(table, None, range, block.as_bytes()).expect("room");
        }
        let (hashes, ballots) =
            (vec![(one, low, 1), (two, low, 2), (one, high, 3)], vec![(Ts(6), Ballot::default())]);
        let parts = Recovered { hashes, ballots: ballots.clone(), held: vec![low, high], ..recovered(7) };
        writer.finish_received(parts).expect("it can be written");
        let newest = || Checkpoint::newest(dir.path(), || ()).expect("it can be read").expect("there is one");
        assert_eq!(newest().recovered.ts, Ts(5));
        let received = Checkpoint::received(dir.path(), Ts(5), || ()).expect("it can be read");
        assert_eq!(received.len(), 1);
        let chunks = |range| -> Vec<Chunk> {
            received[0].chunks(range, || ()).collect::<Result<_, _>>().expect("what was written")
        };
        let rows: Vec<(Option<TableId>, Vec<u8>)> =
            chunks(low).into_iter().map(|chunk| (chunk.table, chunk.rows.to_vec())).collect();
        let votes = postcard::to_stdvec(&ballots).expect("votes");
        let rows_of = |table, text: &str| (Some(table), text.as_bytes().to_vec());
        assert_eq!(rows, [rows_of(one, "a"), rows_of(one, "c"), rows_of(two, "b"), (None, votes)]);
        for (number, chunk) in (0..).zip(chunks(low)) {
            assert_eq!((chunk.number, chunk.checksum), (number, crc32fast::hash(&chunk.rows)));
            assert_eq!(chunk.last, (number == 3).then(|| vec![(one, 1), (two, 2)]));
        }
        assert_eq!(chunks(high).len(), 2);
        let file = dir.path().join("received-7").join(&received[0].files[0].name);
        let damaged = [fs::read(&file).expect("it is there"), vec![0]].concat();
        fs::write(&file, damaged).expect("room");
        let told = || received[0].chunks(received[0].files[0].range, || ()).find_map(|chunk| chunk.err());
        assert!(matches!(told(), Some(CheckpointError::Damaged { .. })), "it is longer");
        fs::remove_file(&file).expect("it is there");
        assert!(matches!(told(), Some(CheckpointError::Damaged { .. })), "it is missing");
        finish(7).expect("it can be written");
        assert!(!dir.path().join("received-7").exists(), "the checkpoint has it");
        assert_eq!(newest().recovered.ts, Ts(7));
    }
}
