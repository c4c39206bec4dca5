//! Files that are written from their beginning to their end and not read again for a long time, past the operating
//! system's cache where the file system allows that.
//!
//! What goes through the cache is copied into pages that have to be found, and takes the place of what is needed again.
//! Past it, only whole blocks can be written, from memory that is aligned: so a file's last, partial block is written when it
//! is complete, or with what is behind it cut off.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The unit of addresses, offsets and lengths; that of any disk divides it.
const BLOCK: usize = 4096;
/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;

/// The end of a file that is not open: how many bytes have been written to it, in whole blocks, and what is behind them.
#[derive(Debug, Default)]
pub(crate) struct End {
    written: u64,
    rest: Vec<u8>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Direct {
    path: PathBuf,
    file: File,
    /// Whether it is written past the cache.
    is_direct: bool,
    /// Bytes in the file, in whole blocks.
    written: u64,
    /// Its aligned part begins here, and has so many bytes that are not in the file.
    memory: Vec<u8>,
    begin: usize,
    filled: usize,
}

impl Direct {
    /// Opens a file, which is created when it is not there, to write on behind its `end`.
    ///
    /// # Errors
    /// When that is not possible.
    pub(crate) fn open(path: &Path, end: End) -> io::Result<Direct> {
        let direct = open(path, true);
        let (file, is_direct) = match direct {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => (open(path, false)?, false),
            other => (other?, true),
        };
        let memory = vec![0; BUFFER + BLOCK];
        let begin = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        let End { written, rest } = end;
        let mut opened =
            Direct { path: path.to_path_buf(), file, is_direct, written, memory, begin, filled: 0 };
        opened.write_all(&rest)?;
        Ok(opened)
    }

    /// Writes on.
    ///
    /// # Errors
    /// When the file cannot be written; it is of no use any more.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER - self.filled));
            let at = self.begin + self.filled;
            self.memory[at..at + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == BUFFER {
                self.write_blocks(BUFFER)?;
            }
        }
        Ok(())
    }

    /// Makes what is in the file durable.
    ///
    /// # Errors
    /// When that is not possible.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Closes the file; others can be written before it is opened again.
    ///
    /// # Errors
    /// When what was written last cannot be.
    pub(crate) fn close(mut self) -> io::Result<End> {
        self.write_blocks(self.filled - self.filled % BLOCK)?;
        let rest = self.memory[self.begin..self.begin + self.filled].to_vec();
        Ok(End { written: self.written, rest })
    }

    /// Ends the file and makes it durable.
    ///
    /// # Errors
    /// When that is not possible.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let length = self.written + self.filled as u64;
        let padded = self.filled.next_multiple_of(BLOCK);
        self.memory[self.begin + self.filled..self.begin + padded].fill(0);
        self.filled = padded;
        self.write_blocks(padded)?;
        self.file.set_len(length)?;
        self.file.sync_all()
    }

    /// Writes so many bytes of memory, whole blocks, and moves the rest to the front.
    fn write_blocks(&mut self, bytes: usize) -> io::Result<()> {
        let blocks = self.begin..self.begin + bytes;
        let written = self.file.write_all_at(&self.memory[blocks.clone()], self.written);
        match written {
            Err(error) if self.is_direct && error.kind() == io::ErrorKind::InvalidInput => {
                // There are file systems that notice only now that they cannot, or have larger blocks.
                (self.file, self.is_direct) = (open(&self.path, false)?, false);
                self.file.write_all_at(&self.memory[blocks], self.written)?;
            }
            other => other?,
        }
        self.memory.copy_within(self.begin + bytes..self.begin + self.filled, self.begin);
        self.written += bytes as u64;
        self.filled -= bytes;
        Ok(())
    }
}

fn open(path: &Path, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    #[cfg(target_os = "linux")]
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options.open(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes pieces one behind the other, closing the file now and then.
    fn write(path: &Path, pieces: &[(Vec<u8>, bool)]) -> Vec<u8> {
        let mut file = Direct::open(path, End::default()).expect("it can be created");
        for (piece, close) in pieces {
            file.write_all(piece).expect("it can be written");
            if *close {
                let end = file.close().expect("it can be written");
                assert!(end.rest.len() < BLOCK);
                file = Direct::open(path, end).expect("it is there");
            }
        }
        file.finish().expect("it can be written");
        std::fs::read(path).expect("it is there")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// On a disk, and in memory, where nothing can be written past the cache.
        #[test]
        fn a_file_has_what_was_written(
            pieces in prop::collection::vec((0..3 * BLOCK, any::<u8>(), any::<bool>()), 0..8),
            large in prop::option::of(BUFFER - 2 * BLOCK..2 * BUFFER + 2),
        ) {
            let mut pieces: Vec<(Vec<u8>, bool)> =
                pieces.into_iter().map(|(length, byte, close)| (vec![byte; length], close)).collect();
            pieces.extend(large.map(|length| ((0..length).map(|i| (i / 7) as u8).collect(), false)));
            let wanted: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece.clone()).collect();
            let memory = Path::new("/dev/shm");
            let in_memory = memory.is_dir().then(|| tempfile::tempdir_in(memory).expect("a directory"));
            for directory in [Some(tempfile::tempdir().expect("a directory")), in_memory].into_iter().flatten() {
                prop_assert!(write(&directory.path().join("file"), &pieces) == wanted);
            }
        }
    }
}
