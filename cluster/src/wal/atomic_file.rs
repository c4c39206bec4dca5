//! Small files that are replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use super::is_full;

/// Replaces the file at `path` with `content` such that after a crash it holds either the old or the new content.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_text(path, &[&crc32fast::hash(content).to_le_bytes(), content].concat())
}

/// Bytes that a disk writes at once or not at all.
const SECTOR: usize = 512;

/// As [`replace`], and where there is no room, over what an earlier call has left there. Zeros behind the content make it a sector,
/// which it may be decoded with.
pub(crate) fn replace_without_room(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut padded = content.to_vec();
    padded.resize(padded.len().max(SECTOR - 4), 0);
    let bytes = [&crc32fast::hash(&padded).to_le_bytes(), &padded[..]].concat();
    let is_sector = |path: &Path| fs::metadata(path).is_ok_and(|there| there.len() == SECTOR as u64);
    replace_text(path, &bytes).or_else(|error| match is_full(&error) && is_sector(path) {
        true => overwrite(path, &bytes).map_err(|_| error),
        false => Err(error),
    })
}

/// Durably writes something over all that a file holds, of which a sector is written at once or not at all.
///
/// # Errors
/// As the file system says, and when it is longer than a sector or shorter than what the file holds.
pub(crate) fn overwrite(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    if file.metadata()?.len() > content.len() as u64 || content.len() > SECTOR {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(content)?;
    file.sync_all()
}

/// Durably replaces the file at `path` with `content`, without a checksum, for what people may want to read.
///
/// # Errors
/// As the file system says.
pub fn replace_text(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        // Where there is no room, others may need what it took.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// The content that [`replace`] wrote; `None` when there is no such file, an error when it is damaged.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    let checksum = *bytes.first_chunk::<4>().ok_or_else(damaged)?;
    let content = bytes.split_off(4);
    if crc32fast::hash(&content) != u32::from_le_bytes(checksum) {
        return Err(damaged());
    }
    Ok(Some(content))
}

/// Creates a directory and those above it, durably, as far as they are not there.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
    fs::create_dir_all(path)?;
    let above =
        |made: &Path| made.parent().filter(|above| !above.as_os_str().is_empty()).map(Path::to_path_buf);
    missing.into_iter().try_for_each(|made| sync_directory(&above(made).unwrap_or_else(|| ".".into())))
}

/// Makes the creation, renaming and removal of files in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_over_a_file_is_as_long() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let content = |byte: u8, length: usize| vec![byte; length];
        for length in [0, 1, SECTOR - 4] {
            replace_without_room(&path, &content(1, length)).expect("there is room");
            let read = read(&path).expect("it is whole").expect("it is there");
            assert_eq!((read.len(), &read[..length]), (SECTOR - 4, &content(1, length)[..]));
        }
        overwrite(&path, &content(2, SECTOR)).expect("it is as long");
        assert_eq!(fs::read(&path).expect("it is there"), content(2, SECTOR));
        for length in [SECTOR - 1, SECTOR + 1] {
            overwrite(&path, &content(3, length)).expect_err("it would be neither this nor that");
        }
        replace_without_room(&path, &content(4, SECTOR)).expect("there is room");
        assert_eq!(read(&path).expect("it is whole"), Some(content(4, SECTOR)));
    }
}
