//! Room on the disk of the log that nobody else can take: a file that is removed when there is no other room. What is ordered
//! until clients hear that writes are to be refused (`router::room`), and what reads order from then on, finds room then,
//! however fast somebody else has filled the disk.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::WalError;

/// It is made again when so many times its length is free.
const FREE_FOR_IT: u64 = 8;

/// A file that keeps room.
pub(super) struct Ballast {
    path: PathBuf,
    bytes: u64,
    is_held: bool,
}

impl Ballast {
    /// That of the log in a directory: what is there from before, or a new one.
    pub(super) fn open(directory: &Path, bytes: u64) -> Ballast {
        let path = directory.join("ballast");
        let is_held = fs::metadata(&path).is_ok_and(|found| bytes > 0 && found.len() == bytes);
        let mut ballast = Ballast { path, bytes, is_held };
        if !is_held {
            // Of another length, or made when a power loss came.
            let _ = fs::remove_file(&ballast.path);
            ballast.hold();
        }
        ballast
    }

    /// Keeps the room if it does not yet and there is plenty. A file system that cannot do so goes without.
    pub(super) fn hold(&mut self) {
        if self.is_held || self.bytes == 0 {
            return;
        }
        let made = self.make();
        if let Err(error) = &made {
            tracing::debug!(path = %self.path.display(), %error, "no room is kept for the log");
            let _ = fs::remove_file(&self.path);
        }
        self.is_held = matches!(made, Ok(true));
    }

    fn make(&self) -> io::Result<bool> {
        let told = statvfs(self.path.parent().unwrap_or(Path::new(".")))?;
        if told.f_bavail.saturating_mul(told.f_frsize) < FREE_FOR_IT * self.bytes {
            return Ok(false);
        }
        fallocate(File::create(&self.path)?, FallocateFlags::empty(), 0, self.bytes)?;
        Ok(true)
    }

    /// Lets go of the room if something found none.
    ///
    /// # Errors
    /// That one, if it was another error or no room was kept.
    pub(super) fn let_go_for(&mut self, error: WalError) -> Result<(), WalError> {
        if !matches!(error, WalError::Full(_)) || !std::mem::take(&mut self.is_held) {
            return Err(error);
        }
        tracing::warn!(path = %self.path.display(), "the disk of the router's log is full; what was kept for it is used now");
        Ok(fs::remove_file(&self.path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_until_something_finds_no_other() {
        const BYTES: u64 = 1 << 16;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ballast");
        let full = || WalError::of_write(io::ErrorKind::StorageFull.into());
        let mut ballast = Ballast::open(directory.path(), BYTES);
        assert_eq!(fs::metadata(&path).expect("it is made").len(), BYTES);
        assert!(matches!(ballast.let_go_for(io::Error::other("a fault").into()), Err(WalError::Io(_))));
        assert!(path.exists(), "nothing was full");
        // A later life finds it.
        let mut ballast = Ballast::open(directory.path(), BYTES);
        assert!(ballast.let_go_for(full()).is_ok() && !path.exists());
        assert!(matches!(ballast.let_go_for(full()), Err(WalError::Full(_))), "it is gone");
        ballast.hold();
        assert!(path.exists());
        // Of another length, or none.
        assert!(Ballast::open(directory.path(), 2 * BYTES).is_held);
        assert_eq!(fs::metadata(&path).expect("it is made again").len(), 2 * BYTES);
        assert!(!Ballast::open(directory.path(), 0).is_held && !path.exists());
        // Nobody's disk is filled by it.
        assert!(!Ballast::open(directory.path(), u64::MAX / FREE_FOR_IT).is_held);
    }
}
