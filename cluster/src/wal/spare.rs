//! Files of zeros that become segments of the log.
//!
//! Zeros that are on disk can be written over without the file system's journal: neither does the file grow nor are blocks given to
//! it. And a segment whose records have gone is not removed but wiped: to take its blocks back, a journal may need as long as for
//! a hundred syncs, while all others on the disk wait for it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, RenameFlags, renameat, renameat_with},
    io::Errno,
};

use super::is_plenty_free;

/// As many wait to be used: more than checkpoints let go of at a time, when they come often.
pub(super) const MOST: usize = 4;
/// What the names of their files end with.
pub(super) const EXTENSION: &str = "spare";
/// So many zeros are written at a time.
const STEP_BYTES: usize = 1 << 20;

/// A file of zeros on the disk.
pub(super) struct Spare {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// Asked before each step, with how long the last one took, whether to go on.
pub(super) type GoesOn<'a> = &'a dyn Fn(Duration) -> bool;

impl Spare {
    /// A new one of a name and a length; `None` when it was not to go on or there is too little room.
    ///
    /// # Errors
    /// The file system's. Nothing is left then, if it can be removed.
    pub(super) fn make(path: &Path, bytes: u64, goes_on: GoesOn<'_>) -> io::Result<Option<Spare>> {
        if !is_plenty_free(path, bytes)? {
            return Ok(None);
        }
        let path = path.with_extension(EXTENSION);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        Spare::wipe(path, file, bytes, goes_on)
    }

    /// What becomes of a file whose first bytes nobody reads any more.
    ///
    /// # Errors
    /// As of [`Spare::make`].
    pub(super) fn wipe(
        path: PathBuf,
        file: File,
        bytes: u64,
        goes_on: GoesOn<'_>,
    ) -> io::Result<Option<Spare>> {
        match write_zeros(&file, bytes, goes_on) {
            Ok(true) => Ok(Some(Spare { path, file, bytes })),
            Ok(false) => fs::remove_file(&path).map(|()| None),
            Err(error) => {
                fs::remove_file(&path)?;
                Err(error)
            }
        }
    }

    /// Gives the file another name, which is durable when its directory is synced. Returns it and its length; `None` if it cannot
    /// be named so, and is gone: somebody may have removed it, or there may be no room for the name.
    pub(super) fn become_segment(self, path: &Path) -> Option<(File, u64)> {
        let named = renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE).or_else(|error| {
            match error {
                // Not every file system knows the flag. The directory is locked: nobody else makes files here.
                Errno::INVAL | Errno::NOSYS if !path.exists() => renameat(CWD, &self.path, CWD, path),
                _ => Err(error),
            }
        });
        match named {
            Ok(()) => Some((self.file, self.bytes)),
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "a spare segment is not used");
                self.remove();
                None
            }
        }
    }

    /// Gives its room back. Returns whether it had some.
    pub(super) fn remove(self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }
}

fn write_zeros(file: &File, bytes: u64, goes_on: GoesOn<'_>) -> io::Result<bool> {
    let zeros = vec![0; STEP_BYTES];
    let mut took = Duration::ZERO;
    for from in (0..bytes).step_by(STEP_BYTES) {
        if !goes_on(took) {
            return Ok(false);
        }
        let begin = Instant::now();
        let length = (bytes - from).min(STEP_BYTES as u64) as usize;
        file.write_all_at(&zeros[..length], from)?;
        file.sync_data()?;
        took = begin.elapsed();
    }
    Ok(true)
}
