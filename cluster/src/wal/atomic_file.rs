//! Small files that are replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Replaces the file at `path` with `content` such that after a crash it holds either the old or the new content.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_text(path, &[&crc32fast::hash(content).to_le_bytes(), content].concat())
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
