//! Checkpoints on disk (DESIGN, decision 13): for every table and primary range a file of its rows as segments hold them,
//! and a manifest.
//!
//! A file of rows is a sequence of blocks ([`carousel_engine::operation::Effect::Block`]), each behind its length in bytes
//! as 8 bytes, little-endian. Rows in full would have to be gathered to be written, and encoded again to be read.
//!
//! A checkpoint is written to `checkpoint-<ts>.part`, everything in it is synced, and only then it is renamed to
//! `checkpoint-<ts>`: so one that bears its final name is complete. The manifest is `CRSLCKPT`, the format version, the
//! CRC-32 of the rest, and the rest in postcard; it has the CRC-32 of every other file.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use carousel_engine::{TableId, Ts, position::KeyRange};
use serde::{Deserialize, Serialize};

use crate::{
    catalog::Catalog,
    config::Config,
    message::{MessageId, ProcessId},
    payload::sync_dir,
    storage::{
        ballot::Ballot,
        core::{ContentHash, Recovered},
        migration::PartId,
    },
};

const MAGIC: &[u8; 8] = b"CRSLCKPT";
/// Format of the manifest and of the files it names.
const FORMAT: u32 = 6;
const MANIFEST: &str = "MANIFEST";
const PREFIX: &str = "checkpoint-";
const UNFINISHED: &str = ".part";

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
    catalog: Catalog,
    ballots: Vec<(Ts, Ballot)>,
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

/// Counts and sums what goes through.
struct Summing<W> {
    inner: W,
    bytes: u64,
    checksum: crc32fast::Hasher,
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(data)?;
        self.checksum.update(&data[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

type RowFile = Summing<BufWriter<File>>;

/// Writes one checkpoint.
pub struct Writer {
    root: PathBuf,
    dir: PathBuf,
    manifest: Manifest,
    /// Files of the table whose rows arrive at present.
    open: BTreeMap<(Option<Ts>, KeyRange), RowFile>,
    table: Option<TableId>,
}

impl Writer {
    /// Begins a checkpoint in `root`.
    ///
    /// # Errors
    /// When its directory cannot be created.
    pub fn begin(root: &Path, checkpoint: Recovered) -> io::Result<Writer> {
        let Recovered { ts, catalog, ballots, passed, hashes, config, held, served, catalogs } = checkpoint;
        let dir = root.join(format!("{PREFIX}{}{UNFINISHED}", ts.0));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        let config = config.map(Arc::unwrap_or_clone).ok_or_else(|| io::Error::other("no config"))?;
        let manifest = Manifest {
            ts,
            config,
            catalog,
            ballots,
            passed,
            held,
            served,
            catalogs,
            hashes,
            files: Vec::new(),
        };
        Ok(Writer { root: root.to_path_buf(), dir, manifest, open: BTreeMap::new(), table: None })
    }

    /// Adds rows of a range, as of now or as of an earlier `Ts`. Those of one table come together.
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
        if self.table != Some(table) {
            self.close_table()?;
            self.table = Some(table);
        }
        let file = match self.open.entry((until, range)) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(vacant) => {
                let file = File::create(self.dir.join(file_name(table, until, range)))?;
                let inner = BufWriter::new(file);
                vacant.insert(Summing { inner, bytes: 0, checksum: crc32fast::Hasher::new() })
            }
        };
        file.write_all(&(block.len() as u64).to_le_bytes())?;
        file.write_all(block)
    }

    fn close_table(&mut self) -> io::Result<()> {
        let Some(table) = self.table.take() else { return Ok(()) };
        for ((until, range), Summing { inner, bytes, checksum }) in std::mem::take(&mut self.open) {
            inner.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            let checksum = checksum.finalize();
            self.manifest.files.push(FileEntry {
                name: file_name(table, until, range),
                table,
                range,
                until,
                bytes,
                checksum,
            });
        }
        Ok(())
    }

    /// Completes the checkpoint, makes it durable, and removes older ones.
    ///
    /// # Errors
    /// When that is not possible; the older ones are still there.
    pub fn finish(mut self, hashes: Vec<ContentHash>) -> io::Result<()> {
        self.close_table()?;
        self.manifest.hashes = hashes;
        let content = postcard::to_stdvec(&self.manifest).map_err(io::Error::other)?;
        let mut file = File::create(self.dir.join(MANIFEST))?;
        file.write_all(MAGIC)?;
        file.write_all(&FORMAT.to_le_bytes())?;
        file.write_all(&crc32fast::hash(&content).to_le_bytes())?;
        file.write_all(&content)?;
        file.sync_all()?;
        sync_dir(&self.dir)?;
        let complete = self.root.join(format!("{PREFIX}{}", self.manifest.ts.0));
        if complete.exists() {
            // The same checkpoint was written before: a replay has come to it again.
            fs::remove_dir_all(&complete)?;
        }
        fs::rename(&self.dir, &complete)?;
        sync_dir(&self.root)?;
        for (ts, path) in complete_checkpoints(&self.root)? {
            if ts < self.manifest.ts {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }
}

fn file_name(table: TableId, until: Option<Ts>, range: KeyRange) -> String {
    match until {
        None => format!("table-{}-{:016x}.rows", table.0, range.first),
        Some(until) => format!("table-{}-{:016x}-until-{until}.rows", table.0, range.first),
    }
}

fn complete_checkpoints(root: &Path) -> io::Result<Vec<(Ts, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let ts = entry.file_name().to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
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

impl Checkpoint {
    /// The newest complete checkpoint in `root`, if there is one. Unfinished ones are removed.
    ///
    /// # Errors
    /// When it cannot be read or its manifest is damaged.
    pub fn newest(root: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| CheckpointError::Io { path, source }
        };
        for entry in fs::read_dir(root).map_err(io(root))? {
            let entry = entry.map_err(io(root))?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(UNFINISHED)) {
                fs::remove_dir_all(entry.path()).map_err(io(&entry.path()))?;
            }
        }
        let Some((ts, dir)) = complete_checkpoints(root).map_err(io(root))?.pop() else { return Ok(None) };
        let path = dir.join(MANIFEST);
        let bytes = fs::read(&path).map_err(io(&path))?;
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
        let Manifest { ts, config, catalog, ballots, passed, held, served, catalogs, hashes, files } =
            manifest;
        let config = Some(Arc::new(config));
        let recovered = Recovered { ts, catalog, ballots, passed, hashes, config, held, served, catalogs };
        Ok(Some(Checkpoint { dir, recovered, files }))
    }

    /// Removes all checkpoints in `root`, as they are of no use any more.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn remove_all(root: &Path) -> io::Result<()> {
        complete_checkpoints(root)?.into_iter().try_for_each(|(_, path)| fs::remove_dir_all(path))
    }

    /// Reads one file, block by block.
    ///
    /// # Errors
    /// When it is absent or damaged.
    pub fn read(
        &self,
        entry: &FileEntry,
        mut each: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), CheckpointError> {
        let path = self.dir.join(&entry.name);
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        let damaged = |reason: String| CheckpointError::Damaged { path: path.clone(), reason };
        let mut file = File::open(&path).map_err(io)?;
        let mut checksum = crc32fast::Hasher::new();
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = file.read(&mut buffer).map_err(io)?;
            if read == 0 {
                break;
            }
            checksum.update(&buffer[..read]);
            bytes += read as u64;
        }
        if bytes != entry.bytes || checksum.finalize() != entry.checksum {
            return Err(damaged("its checksum does not match".into()));
        }
        let mut reader = BufReader::new(File::open(&path).map_err(io)?);
        let mut left = bytes;
        let mut block = Vec::new();
        while left > 0 {
            let mut length = [0; 8];
            reader.read_exact(&mut length).map_err(io)?;
            let length = u64::from_le_bytes(length);
            let rest = left.checked_sub(8).and_then(|left| left.checked_sub(length));
            left = rest.ok_or_else(|| damaged("its last block is cut off".into()))?;
            block.resize(length as usize, 0);
            reader.read_exact(&mut block).map_err(io)?;
            each(&block).map_err(damaged)?;
        }
        Ok(())
    }
}
