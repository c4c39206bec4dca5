//! The directory of an operating system process: who may use it, and what it was created for.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::Path,
};

use crate::{
    embedded::StartError,
    message::{Incarnation, ProcessId},
    removal::remove_directory,
    wal::{is_full, make_directory, overwrite, replace_text, sync_directory},
};

/// Format of the data directory, and so of the routers' logs and snapshots in it. Checkpoints have one of their own, too.
pub(crate) const FORMAT: u32 = 18;
const MANIFEST: &str = "CAROUSEL";
const NEW_MANIFEST: &str = "CAROUSEL.new";
const LOCK: &str = "LOCK";
const NUMBER: &str = "number";
const STARTS: &str = "starts";

/// Creates the data directory or checks that it is ours; returns its lock.
///
/// `shape` is what it is created for, on one line. With `forget`, what an earlier start has left in it is removed.
pub(crate) fn lay_out(dir: &Path, shape: &str, forget: bool) -> Result<File, StartError> {
    let unusable = |path: &Path| {
        let path = path.to_path_buf();
        move |source: io::Error| StartError::DataDir { path, source }
    };
    make_directory(dir).map_err(unusable(dir))?;
    let path = dir.join(LOCK);
    let lock = File::create(&path).map_err(unusable(&path))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => StartError::Locked { path: dir.to_path_buf() },
        TryLockError::Error(source) => StartError::DataDir { path: path.clone(), source },
    })?;
    let path = dir.join(MANIFEST);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let format = text.lines().next().and_then(|line| line.strip_prefix("format "));
            let found = text.lines().nth(1);
            let (Some(format), Some(found)) = (format, found) else {
                return Err(StartError::Damaged { path, reason: "it has no format and shape".into() });
            };
            if format.parse() != Ok(FORMAT) {
                let (path, found) = (dir.to_path_buf(), format.to_string());
                return Err(StartError::Format { path, found, expected: FORMAT });
            }
            if found != shape {
                let (found, asked) = (found.to_string(), shape.to_string());
                return Err(StartError::Shape { path: dir.to_path_buf(), found, asked });
            }
            if forget {
                // Checkpoints without the m-seq that goes on from them are of no use.
                let storage = dir.join("storage");
                if storage.exists() {
                    tracing::warn!(
                        directory = %dir.display(),
                        "durability is memory: what the cluster had before is gone, and it starts empty"
                    );
                    remove_directory(&storage, &|| ()).map_err(unusable(&storage))?;
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let foreign = fs::read_dir(dir).map_err(unusable(dir))?.filter_map(Result::ok);
            let foreign =
                foreign.map(|entry| entry.file_name()).find(|name| name != LOCK && name != NEW_MANIFEST);
            if let Some(name) = foreign {
                let reason = format!("it has no file {MANIFEST} but other contents ({})", name.display());
                return Err(StartError::Damaged { path: dir.to_path_buf(), reason });
            }
            let new = dir.join(NEW_MANIFEST);
            let create = || {
                let mut file = File::create(&new)?;
                file.write_all(format!("format {FORMAT}\n{shape}\n").as_bytes())?;
                file.sync_all()?;
                fs::rename(&new, &path)?;
                sync_directory(dir)
            };
            create().map_err(unusable(&path))?;
        }
        Err(source) => return Err(StartError::DataDir { path, source }),
    }
    Ok(lock)
}

/// The number of the router that a directory was created for, if it was for one of several processes.
pub fn router_of(dir: &Path) -> Option<u32> {
    let text = fs::read_to_string(dir.join(MANIFEST)).ok()?;
    let router = text.lines().nth(1)?.strip_prefix("process r")?;
    router.split_whitespace().next()?.parse().ok()
}

/// How many storage processes a directory was created for, if it was for a whole cluster in one process.
pub fn storage_of(dir: &Path) -> Option<u32> {
    let text = fs::read_to_string(dir.join(MANIFEST)).ok()?;
    let (storage, _) = text.lines().nth(1)?.split_once(" storage processes, ")?;
    let (routers, storage) = storage.split_once(" routers, ")?;
    // Of one process of several the line begins with who it is.
    routers.parse::<u32>().ok().and(storage.parse().ok())
}

/// The number in a file, if there is one.
fn read_number(path: &Path) -> io::Result<Option<u64>> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let damaged = |error| {
                let name = path.file_name().unwrap_or_default().display();
                io::Error::new(io::ErrorKind::InvalidData, format!("its file {name} is damaged: {error}"))
            };
            text.trim().parse().map(Some).map_err(damaged)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of a directory, by which it can be told from one that was lost: drawn when it is asked for the first time.
///
/// # Errors
/// When its file cannot be read or written, or does not hold a number.
pub(crate) fn directory_number(dir: &Path) -> io::Result<u64> {
    let path = dir.join(NUMBER);
    if let Some(number) = read_number(&path)? {
        return Ok(number);
    }
    let number = rand::random();
    write_number(&path, number)?;
    Ok(number)
}

/// Whether a router's log is the one that it has begun, which may be on a volume of its own, and no copy from before its last
/// start: the number of its directory, and how often it has been begun with, are noted in the data directory. A router that has
/// none yet begins it. Counts a start.
///
/// # Errors
/// When the numbers cannot be read or written.
pub(crate) fn has_log(dir: &Path, router: ProcessId, log: &Path) -> io::Result<bool> {
    let path = dir.join(format!("log-{router}"));
    let (noted, counted) = (dir.join(format!("log-{router}-{STARTS}")), log.join(STARTS));
    match read_number(&path)? {
        Some(begun) if read_number(&log.join(NUMBER))? != Some(begun) => return Ok(false),
        Some(_) => {}
        // Whoever finds the note finds the directory.
        None => {
            make_directory(log)?;
            let number = directory_number(log)?;
            write_number(&noted, 0)?;
            write_number(&path, number)?;
        }
    }
    if read_number(&counted)?.unwrap_or(0) < read_number(&noted)?.unwrap_or(0) {
        return Ok(false);
    }
    // Killed between the two, it finds the log ahead.
    let start = next_incarnation(&counted)?;
    write_number(&noted, start)?;
    Ok(true)
}

/// Counts an incarnation in a file, durably, and returns it.
///
/// # Errors
/// When the file cannot be read or written, or does not hold a number.
pub(crate) fn next_incarnation(path: &Path) -> io::Result<Incarnation> {
    let last = read_number(path)?.unwrap_or(0);
    write_number(path, last + 1)?;
    Ok(last + 1)
}

/// Notes a number in a file, durably.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write_number(path: &Path, number: u64) -> io::Result<()> {
    match replace_text(path, format!("{number}\n").as_bytes()) {
        // Whoever starts may have room to give back, and has to count its start before.
        Err(error) if is_full(&error) => write_over(path, number).map_err(|_| error),
        written => written,
    }
}

/// Notes a number in the place of the one that a file holds: that takes no room, and what fits into a sector is written at once or
/// not at all.
fn write_over(path: &Path, number: u64) -> io::Result<()> {
    let width = usize::try_from(fs::metadata(path)?.len()).unwrap_or(0).clamp(1, 64) - 1;
    overwrite(path, format!("{number:0width$}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::{EmbeddedOptions, shape};

    #[test]
    fn a_directory_tells_how_many_storage_processes_it_was_created_for() {
        let dir = tempfile::tempdir().unwrap();
        let (whole, single) = (dir.path().join("whole"), dir.path().join("single"));
        assert_eq!(storage_of(&whole), None, "it does not exist");
        let options = EmbeddedOptions { routers: 3, storage: 12, ..EmbeddedOptions::new(&whole) };
        drop(lay_out(&whole, &shape(&options), false).unwrap());
        assert_eq!((storage_of(&whole), router_of(&whole)), (Some(12), None));
        let shape = format!("process r4 of cluster \"c\", {}", shape(&options));
        drop(lay_out(&single, &shape, false).unwrap());
        assert_eq!((storage_of(&single), router_of(&single)), (None, Some(4)));
    }

    #[test]
    fn a_number_is_written_over_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        assert!(write_over(&path, 1).is_err(), "there is none");
        write_number(&path, 9).unwrap();
        for number in [10, 7, u64::MAX, 0, 12] {
            write_over(&path, number).unwrap();
            assert_eq!(read_number(&path).unwrap(), Some(number));
        }
    }

    #[test]
    fn a_log_is_known_by_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, r1) = (dir.path(), ProcessId::router(1));
        let logs = dir.join("routers");
        let log = logs.join("r1");
        // Also one that an earlier release has begun.
        fs::create_dir_all(&log).unwrap();
        for _ in 0..2 {
            assert!(has_log(dir, r1, &log).unwrap());
        }
        fs::rename(&logs, dir.join("away")).unwrap();
        assert!(!has_log(dir, r1, &log).unwrap());
        assert!(!logs.exists(), "nothing is begun in its place");
        // What a volume is mounted on, and the log of another router.
        fs::create_dir_all(&log).unwrap();
        assert!(!has_log(dir, r1, &log).unwrap());
        directory_number(&log).unwrap();
        assert!(!has_log(dir, r1, &log).unwrap());
        fs::remove_dir_all(&logs).unwrap();
        fs::rename(dir.join("away"), &logs).unwrap();
        assert!(has_log(dir, r1, &log).unwrap());
        // An old copy, however often it is tried.
        let old = read_number(&log.join(STARTS)).unwrap().unwrap();
        assert!(has_log(dir, r1, &log).unwrap());
        let new = read_number(&log.join(STARTS)).unwrap().unwrap();
        write_number(&log.join(STARTS), old).unwrap();
        for _ in 0..3 {
            assert!(!has_log(dir, r1, &log).unwrap());
        }
        write_number(&log.join(STARTS), new).unwrap();
        assert!(has_log(dir, r1, &log).unwrap());
        // It was killed when it had counted in the log.
        next_incarnation(&log.join(STARTS)).unwrap();
        assert!(has_log(dir, r1, &log).unwrap());
    }
}
