//! Room on the disk of the log that is let go of when there is no other: a file that is cut. What is ordered until clients hear
//! that writes are to be refused (`router::room`), and what reads order from then on, finds room then, however fast somebody
//! else has filled the disk. It is cut in small steps, so that who goes on filling the disk does not take it all.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FallocateFlags, fallocate};

use super::{WalError, free_bytes, is_plenty_free};

/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// What is let go of at a time: more than a few records need.
const STEP_BYTES: u64 = 1 << 20;
/// What is let go of for nothing else than the log itself.
const FOR_THE_LOG: u64 = 8 * STEP_BYTES;
/// What `MetadataExt::blocks` counts.
const BLOCK_BYTES: u64 = 512;

/// A file that keeps room.
pub(super) struct Ballast {
    path: PathBuf,
    /// What is to be kept, and what is.
    bytes: u64,
    held: u64,
    looked: Option<Instant>,
}

impl Ballast {
    /// That of the log in a directory: what is there from before, or a new one.
    pub(super) fn open(directory: &Path, bytes: u64) -> Ballast {
        let path = directory.join("ballast");
        // A copy of it may have its length, and no room.
        let found = fs::metadata(&path).map_or(0, |found| found.len().min(found.blocks() * BLOCK_BYTES));
        let mut ballast = Ballast { path, bytes, held: found, looked: None };
        if found > bytes || bytes == 0 {
            let _ = fs::remove_file(&ballast.path);
            ballast.held = 0;
        }
        ballast.hold();
        ballast
    }

    /// Keeps the room if it does not yet and there is plenty. A file system that cannot do so goes without.
    pub(super) fn hold(&mut self) {
        if self.held == self.bytes || self.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Err(error) = self.make() {
            tracing::debug!(path = %self.path.display(), %error, "no room is kept for the log");
            let _ = fs::remove_file(&self.path);
            self.held = 0;
        }
    }

    fn make(&mut self) -> io::Result<()> {
        if is_plenty_free(&self.path, self.bytes)? {
            let file = File::options().create(true).append(true).open(&self.path)?;
            fallocate(file, FallocateFlags::empty(), 0, self.bytes)?;
            self.held = self.bytes;
        }
        Ok(())
    }

    /// Lets go of some of the room if something found none.
    ///
    /// # Errors
    /// That one, if it was another error or no room is kept any more.
    pub(super) fn let_go_for(&mut self, error: WalError) -> Result<(), WalError> {
        if !matches!(error, WalError::Full(_)) || self.held == 0 {
            return Err(error);
        }
        if self.held == self.bytes {
            tracing::warn!(path = %self.path.display(), "the disk of the router's log is full; what was kept for it is used now");
        }
        self.keep(self.held.saturating_sub(STEP_BYTES)).map_err(|_| error)
    }

    /// Lets go of what so many bytes need that have found no room, if that is enough for them and leaves some for the log.
    ///
    /// # Errors
    /// When there is not enough.
    pub(super) fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let free = free_bytes(self.path.parent().unwrap_or(Path::new(".")))?;
        self.make_room_beside(free, bytes)
    }

    fn make_room_beside(&mut self, free: u64, bytes: u64) -> io::Result<()> {
        let missing = bytes.saturating_add(STEP_BYTES).saturating_sub(free);
        if missing == 0 || self.held < missing.saturating_add(FOR_THE_LOG) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.keep(self.held - missing)
    }

    fn keep(&mut self, left: u64) -> io::Result<()> {
        match File::options().write(true).open(&self.path).and_then(|file| file.set_len(left)) {
            Ok(()) => {
                self.held = left;
                Ok(())
            }
            // Somebody may have removed it.
            Err(error) => {
                self.held = 0;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::PLENTY, *};

    #[test]
    fn what_is_not_for_the_log_gets_room_if_that_is_enough() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut ballast = Ballast::open(directory.path(), 4 * STEP_BYTES + FOR_THE_LOG);
        for (free, bytes, left) in [
            (0, 4 * STEP_BYTES, None),
            (STEP_BYTES, 4 * STEP_BYTES, Some(0)),
            (0, 0, None),
            // It was something else that it lacked.
            (2 * STEP_BYTES, STEP_BYTES, None),
        ] {
            let before = ballast.held;
            let made = ballast.make_room_beside(free, bytes).is_ok();
            assert_eq!(made.then(|| ballast.held - FOR_THE_LOG), left);
            assert!(made || ballast.held == before);
            assert_eq!(fs::metadata(&ballast.path).map(|found| found.len()).ok(), Some(ballast.held));
        }
    }

    #[test]
    fn room_is_kept_until_something_finds_no_other() {
        const BYTES: u64 = 2 * STEP_BYTES + 1;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ballast");
        let length = || fs::metadata(&path).map(|found| found.len()).ok();
        let full = || WalError::of_write(io::ErrorKind::StorageFull.into());
        let mut ballast = Ballast::open(directory.path(), BYTES);
        assert_eq!(length(), Some(BYTES));
        assert!(matches!(ballast.let_go_for(io::Error::other("a fault").into()), Err(WalError::Io(_))));
        assert_eq!(length(), Some(BYTES), "nothing was full");
        assert!(ballast.let_go_for(full()).is_ok());
        assert_eq!(length(), Some(BYTES - STEP_BYTES));
        ballast.hold();
        assert_eq!(length(), Some(BYTES - STEP_BYTES), "it was looked a moment ago");
        // A later life makes it whole again.
        let mut ballast = Ballast::open(directory.path(), BYTES);
        assert_eq!(length(), Some(BYTES));
        for left in [STEP_BYTES + 1, 1, 0] {
            assert!(ballast.let_go_for(full()).is_ok());
            assert_eq!(length(), Some(left));
        }
        assert!(matches!(ballast.let_go_for(full()), Err(WalError::Full(_))), "it is gone");
        ballast.looked = None;
        ballast.hold();
        assert_eq!(length(), Some(BYTES));
        // Somebody has removed it.
        fs::remove_file(&path).expect("it is there");
        assert!(matches!(ballast.let_go_for(full()), Err(WalError::Full(_))));
        // A copy without room.
        File::create(&path).and_then(|file| file.set_len(BYTES)).expect("a sparse file");
        let blocks = |path: &Path| fs::metadata(path).map_or(0, |found| found.blocks());
        assert_eq!(blocks(&path), 0);
        let _ = Ballast::open(directory.path(), BYTES);
        assert!(blocks(&path) > 0);
        // Of another length, or none.
        let _ = Ballast::open(directory.path(), 1);
        assert_eq!(length(), Some(1));
        assert_eq!(Ballast::open(directory.path(), 0).held, 0);
        assert_eq!(length(), None);
        // Nobody's disk is filled by it.
        assert_eq!(Ballast::open(directory.path(), u64::MAX / PLENTY).held, 0);
        assert_eq!(length(), None);
    }
}
