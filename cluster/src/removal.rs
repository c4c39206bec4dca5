//! Removing large files without keeping others waiting.
//!
//! A file system gives back what a file had when it commits that the file is gone, and whoever syncs anything at all waits for
//! that: beside a file of 1 GB that is removed at once, a router that makes a few bytes of its log durable waits for a twentieth
//! of a second on an idle disk, and several times as long on a busy one.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use crate::wal::sync_directory;

/// Bytes that are given back at once. To sync so often takes hardly longer in all.
const PIECE: u64 = 16 << 20;
/// What a file counts as at least: to remove it takes some time, too.
const SMALL: u64 = 64 << 10;

/// Removes a file a piece at a time, and says with each that it goes on. Whoever is reading it finds its end.
///
/// # Errors
/// When it cannot be removed; it may be shorter then.
pub(crate) fn remove_file(path: &Path, goes_on: &dyn Fn()) -> io::Result<()> {
    if let Ok(metadata) = fs::symlink_metadata(path)
        // What has another name belongs to somebody else, too.
        && metadata.is_file() && metadata.nlink() == 1 && metadata.len() > PIECE
    {
        // Where it cannot be shortened it goes as a whole.
        let _ = shorten(path, metadata.len(), goes_on);
    }
    fs::remove_file(path)?;
    goes_on();
    Ok(())
}

/// Leaves at most one piece of a file.
fn shorten(path: &Path, bytes: u64, goes_on: &dyn Fn()) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    for piece in (1..bytes.div_ceil(PIECE)).rev() {
        if file.metadata()?.nlink() != 1 {
            break;
        }
        file.set_len(piece * PIECE)?;
        file.sync_all()?;
        goes_on();
    }
    Ok(())
}

/// Removes a directory with what is in it, which may be many files, in the same way; of a link to one only the link.
///
/// # Errors
/// When something in it cannot be removed; others may be gone then.
pub(crate) fn remove_directory(path: &Path, goes_on: &dyn Fn()) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_symlink() {
        return fs::remove_file(path);
    }
    let mut removed = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        removed += entry.metadata().map_or(0, |metadata| metadata.len().min(PIECE));
        match entry.file_type()?.is_dir() {
            true => remove_directory(&entry.path(), goes_on)?,
            false => remove_file(&entry.path(), goes_on)?,
        }
        if removed >= PIECE {
            // That they are gone need not be durable.
            let _ = sync_directory(path);
            removed = 0;
        }
    }
    fs::remove_dir(path)
}

/// Removes some of the files of a directory in which there is nothing else, and itself when it is empty. Returns whether there are
/// more.
///
/// # Errors
/// When one cannot be removed; others may be gone then.
pub(crate) fn remove_some(path: &Path) -> io::Result<bool> {
    let mut removed = 0;
    for entry in fs::read_dir(path)? {
        if removed >= PIECE {
            // That they are gone need not be durable.
            let _ = sync_directory(path);
            return Ok(true);
        }
        let entry = entry?;
        removed += entry.metadata().map_or(0, |metadata| metadata.len()).clamp(SMALL, PIECE);
        remove_file(&entry.path(), &|| ())?;
    }
    fs::remove_dir(path)?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_large_file_goes_piece_by_piece() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        for (bytes, pieces) in [(0, 1), (PIECE, 1), (PIECE + 1, 2), (3 * PIECE, 3), (3 * PIECE + 1, 4)] {
            File::create(&path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
            let (told, left) = (Cell::new(0), Cell::new(bytes + 1));
            let goes_on = || {
                told.set(told.get() + 1);
                let now = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                assert!(now < left.replace(now) && left.get() <= bytes, "it becomes shorter");
            };
            remove_file(&path, &goes_on).expect("it is there");
            assert_eq!((told.get(), path.exists()), (pieces, false), "{bytes}");
        }
        assert!(remove_file(&path, &|| ()).is_err());
    }

    /// It may be somebody's copy of a checkpoint.
    #[test]
    fn what_has_another_name_stays_whole_under_that() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, other) = (directory.path().join("files"), directory.path().join("other"));
        fs::create_dir(&path).expect("it is created");
        for name in ["a", "b", "c"] {
            File::create(path.join(name)).and_then(|file| file.set_len(2 * PIECE)).expect("a sparse file");
        }
        fs::hard_link(path.join("b"), &other).expect("the same file system");
        std::os::unix::fs::symlink(&path, directory.path().join("link")).expect("it is created");
        remove_directory(&directory.path().join("link"), &|| ()).expect("it is there");
        assert_eq!(fs::read_dir(&path).expect("it is there").count(), 3);
        fs::create_dir_all(path.join("d").join("e")).expect("it is created");
        remove_directory(&path, &|| ()).expect("it is there");
        assert!(!path.exists());
        assert_eq!(fs::metadata(&other).expect("it is there").len(), 2 * PIECE);
    }
}
