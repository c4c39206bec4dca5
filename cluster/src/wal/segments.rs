//! The files of the log: segments of framed records. Synchronous; [`super::Wal`] gives it a thread.
//!
//! A segment is named after the index of its first record. A frame is
//!
//! ```text
//!   length u32 | CRC-32 u32 | index u64 | synced u64 | payload          (little endian)
//! ```
//!
//! where the checksum covers all that follows it, and `synced` is the length to which this segment was known to be on
//! disk when the frame was written. The latter tells a torn tail from damage: after a crash, anything that was not
//! synced may be missing, also in the middle, but a readable frame whose `synced` lies behind the damaged place proves
//! that the damaged place had been on disk, and perhaps had been acknowledged. The former is cut, the latter is an error.
//! (Damage to the very last group of frames that was synced cannot be told from a torn tail.)
//!
//! A file beside them says which segment is the newest, so that segments that are missing at the end (somebody has removed them, or
//! restored a part of the directory) are not taken for what never was.
//!
//! Behind the last frame are zeros, which frames are written over: as long as a file does not grow, a sync has nothing to
//! tell the file system's journal, and takes half of the time. A segment begins as a spare file of zeros (see `spare`) if
//! there is one, and grows by some zeros at a time otherwise.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    WalError,
    atomic_file::{self, sync_directory},
    is_plenty_free,
    spare::{self, GoesOn, Spare},
};

const HEADER: usize = 24;
/// No single record is longer. A damaged length field is recognised by it.
const MAX_PAYLOAD: usize = 1 << 30;
/// A segment grows by as much at a time, unless a whole one is less: more makes single syncs slower.
const STEP_BYTES: u64 = 256 << 10;
/// The index of the first record of the newest segment, or of an older one: it is written when a segment has begun, and removed
/// before the newest is.
const NEWEST: &str = "newest";

/// Limits of the log.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A segment is closed once it is this long.
    pub segment_bytes: u64,
    /// The log refuses to grow beyond this (as it does when the disk is full).
    pub log_bytes: Option<u64>,
    /// So much is kept on the disk for what has to be written when nothing is free any more.
    pub ballast_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { segment_bytes: 64 << 20, log_bytes: None, ballast_bytes: 0 }
    }
}

/// Where a record lies; can be read without holding up the log.
pub(super) struct Place {
    pub(super) index: u64,
    file: Arc<File>,
    path: Arc<Path>,
    offset: u64,
    length: usize,
}

impl Place {
    pub(super) fn read(&self) -> Result<Bytes, WalError> {
        let mut frame = vec![0; self.length];
        self.file.read_exact_at(&mut frame, self.offset)?;
        match parse(&frame) {
            Some(parsed) if parsed.index == self.index => Ok(Bytes::from(frame).slice(HEADER..)),
            _ => Err(WalError::Damaged { path: self.path.to_path_buf(), offset: self.offset }),
        }
    }
}

/// A segment that is not part of the log any more.
pub(super) struct Purged {
    directory: PathBuf,
    path: Arc<Path>,
    file: Arc<File>,
    /// The length of the file.
    bytes: u64,
    /// It may become a spare.
    is_wanted: bool,
    /// There is no other.
    pub(super) was_last: bool,
}

impl Purged {
    /// Durably takes the file out of the log. It becomes a spare if one is wanted, nobody reads it any more, and there is plenty of
    /// room on the disk.
    pub(super) fn retire(self, goes_on: GoesOn<'_>) -> Result<Option<Spare>, WalError> {
        if self.was_last {
            forget_newest(&self.directory)?;
        }
        match Arc::try_unwrap(self.file) {
            Ok(file) if self.is_wanted && is_plenty_free(&self.path, self.bytes).unwrap_or(false) => {
                let path = self.path.with_extension(spare::EXTENSION);
                fs::rename(&self.path, &path)?;
                sync_directory(&self.directory)?;
                let wiped = Spare::wipe(path, file, self.bytes, goes_on);
                Ok(wiped.unwrap_or_else(|error| {
                    // It is nothing to the log that it has one spare less.
                    tracing::warn!(path = %self.path.display(), %error, "a segment cannot be wiped");
                    None
                }))
            }
            _ => {
                fs::remove_file(&self.path)?;
                sync_directory(&self.directory)?;
                Ok(None)
            }
        }
    }
}

struct Segment {
    first: u64,
    path: Arc<Path>,
    file: Arc<File>,
    /// Where each frame begins.
    offsets: Vec<u64>,
    /// Where the last frame ends.
    length: u64,
    synced: u64,
    /// The length of the file: zeros behind the last frame.
    reserved: u64,
}

impl Segment {
    fn end(&self) -> u64 {
        self.first + self.offsets.len() as u64
    }

    fn frame(&self, index: u64) -> Range<u64> {
        let i = (index - self.first) as usize;
        self.offsets[i]..self.offsets.get(i + 1).copied().unwrap_or(self.length)
    }
}

/// The log: records with consecutive indices.
pub(super) struct Segments {
    directory: PathBuf,
    limits: Limits,
    segments: VecDeque<Segment>,
    spares: Vec<Spare>,
}

struct Parsed {
    index: u64,
    synced: u64,
    length: usize,
}

fn parse(bytes: &[u8]) -> Option<Parsed> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let payload = word(0)? as usize;
    let length = HEADER + payload;
    if payload > MAX_PAYLOAD || bytes.len() < length || crc32fast::hash(&bytes[8..length]) != word(4)? {
        return None;
    }
    Some(Parsed { index: long(8)?, synced: long(16)?, length })
}

impl Segments {
    /// Opens the log in a directory, cutting a torn tail.
    pub(super) fn open(directory: &Path, limits: Limits) -> Result<Self, WalError> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == spare::EXTENSION) {
                // It may not have been wiped wholly.
                fs::remove_file(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "wal") {
                let name = path.file_stem().and_then(|stem| stem.to_str());
                let first = name.and_then(|name| name.parse::<u64>().ok());
                paths.push((first.ok_or_else(|| WalError::Damaged { path: path.clone(), offset: 0 })?, path));
            }
        }
        paths.sort();
        let newest = paths.last().map(|(first, _)| *first);
        let noted = atomic_file::read(&directory.join(NEWEST))?;
        let noted = noted.map(|bytes| {
            let bytes = bytes.try_into().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "newest"))?;
            Ok::<u64, io::Error>(u64::from_le_bytes(bytes))
        });
        if let Some(noted) = noted.transpose()?
            && newest.is_none_or(|newest| newest < noted)
        {
            return Err(WalError::Missing { path: segment_path(directory, noted) });
        }
        let mut segments: VecDeque<Segment> = VecDeque::new();
        let last = paths.len().saturating_sub(1);
        for (i, (first, path)) in paths.into_iter().enumerate() {
            if segments.back().is_some_and(|previous| previous.end() != first) {
                return Err(WalError::Damaged { path, offset: 0 });
            }
            segments.push_back(open_segment(first, &path, i == last)?);
        }
        sync_directory(directory)?;
        if let Some(newest) = newest {
            // On a full disk the older one stays.
            let _ = note_newest(directory, newest);
        }
        Ok(Segments { directory: directory.to_path_buf(), limits, segments, spares: Vec::new() })
    }

    /// Index of the first record and index after the last one; `None` when there is no record.
    pub(super) fn range(&self) -> Option<Range<u64>> {
        let range = self.segments.front()?.first..self.segments.back()?.end();
        (!range.is_empty()).then_some(range)
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// Writes records with consecutive indices behind the last one. They may be lost until [`Self::sync`]. Without room for all
    /// of them ([`WalError::Full`]) some may be there, and the others can be appended again.
    pub(super) fn append(&mut self, records: &[(u64, Bytes)]) -> Result<(), WalError> {
        let size: u64 = records.iter().map(|(_, payload)| (HEADER + payload.len()) as u64).sum();
        if self.limits.log_bytes.is_some_and(|limit| self.bytes() + size > limit) {
            return Err(WalError::Io(io::Error::new(
                io::ErrorKind::StorageFull,
                "the router's log has reached its size limit",
            )));
        }
        let mut rest = records;
        while let Some((first, _)) = rest.first() {
            let expected = self.segments.back().map(|segment| segment.end());
            if expected.is_some_and(|expected| expected != *first) {
                return Err(WalError::Gap { expected: expected.unwrap_or_default(), found: *first });
            }
            let limit = self.limits.segment_bytes;
            if self.segments.back().is_none_or(|segment| segment.length >= limit) {
                self.begin_segment(*first)?;
            }
            let segment = self.segments.back_mut().expect("a segment was just begun");
            let mut buffer = Vec::new();
            let mut offsets = Vec::new();
            let mut taken = 0;
            for (index, payload) in rest {
                let offset = segment.length + buffer.len() as u64;
                if taken > 0 && offset >= limit {
                    break;
                }
                let expected = segment.end() + taken as u64;
                if *index != expected {
                    return Err(WalError::Gap { expected, found: *index });
                }
                let length = u32::try_from(payload.len()).ok().filter(|l| *l as usize <= MAX_PAYLOAD);
                let length = length.ok_or(WalError::TooLong { bytes: payload.len() })?;
                let start = buffer.len();
                buffer.extend_from_slice(&length.to_le_bytes());
                buffer.extend_from_slice(&[0; 4]);
                buffer.extend_from_slice(&index.to_le_bytes());
                buffer.extend_from_slice(&segment.synced.to_le_bytes());
                buffer.extend_from_slice(payload);
                let checksum = crc32fast::hash(&buffer[start + 8..]);
                buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
                offsets.push(offset);
                taken += 1;
            }
            let end = segment.length + buffer.len() as u64;
            if end > segment.reserved {
                let reserved = end.next_multiple_of(STEP_BYTES.min(limit).max(1));
                buffer.resize((reserved - segment.length) as usize, 0);
            }
            segment.file.write_all_at(&buffer, segment.length).map_err(WalError::of_write)?;
            segment.reserved = segment.reserved.max(segment.length + buffer.len() as u64);
            segment.length = end;
            segment.offsets.extend(offsets);
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// Makes everything appended so far durable.
    pub(super) fn sync(&mut self) -> Result<(), WalError> {
        // All but the last segment were synced when the next one began.
        if let Some(segment) = self.segments.back_mut()
            && segment.synced < segment.length
        {
            segment.file.sync_data()?;
            segment.synced = segment.length;
        }
        Ok(())
    }

    /// What [`Self::sync`] would do, for a caller that does not want to hold up readers meanwhile: the file to sync
    /// and the length to report to [`Self::synced`] afterwards.
    pub(super) fn unsynced(&self) -> Option<(Arc<File>, u64)> {
        let segment = self.segments.back().filter(|segment| segment.synced < segment.length)?;
        Some((segment.file.clone(), segment.length))
    }

    /// The last segment is on disk up to this length.
    pub(super) fn synced(&mut self, length: u64) {
        if let Some(segment) = self.segments.back_mut() {
            assert!(length <= segment.length, "synced more than was written");
            segment.synced = length;
        }
    }

    fn begin_segment(&mut self, first: u64) -> Result<(), WalError> {
        self.sync()?;
        let path = segment_path(&self.directory, first);
        let (file, reserved) = match self.spares.pop().and_then(|spare| spare.become_segment(&path)) {
            Some(wiped) => wiped,
            None => {
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
                (file.map_err(WalError::of_write)?, 0)
            }
        };
        sync_directory(&self.directory)?;
        self.segments.push_back(Segment {
            first,
            path: path.into(),
            file: Arc::new(file),
            offsets: Vec::new(),
            length: 0,
            synced: 0,
            reserved,
        });
        // Whoever tries again behind an error goes on with the segment.
        note_newest(&self.directory, first).map_err(WalError::of_write)
    }

    /// Durably removes all records with index `from` or greater.
    pub(super) fn truncate(&mut self, from: u64) -> Result<(), WalError> {
        let removes = self.segments.back().is_some_and(|segment| segment.first >= from);
        if removes {
            forget_newest(&self.directory)?;
        }
        // From the back, so that a crash in between leaves a log without a hole.
        while let Some(segment) = self.segments.back()
            && segment.first >= from
        {
            fs::remove_file(&segment.path)?;
            sync_directory(&self.directory)?;
            self.segments.pop_back();
        }
        if let Some(segment) = self.segments.back_mut()
            && segment.end() > from
        {
            let length = segment.frame(from).start;
            segment.file.set_len(length)?;
            segment.offsets.truncate((from - segment.first) as usize);
            (segment.length, segment.reserved) = (length, length);
            segment.file.sync_data()?;
            segment.synced = length;
        }
        if let Some(segment) = self.segments.back().filter(|_| removes) {
            // On a full disk there is none until the next begins.
            let _ = note_newest(&self.directory, segment.first);
        }
        Ok(())
    }

    /// Removes the segments whose records all have index `to` or less. When no record is left, the log can begin
    /// again anywhere.
    pub(super) fn purge(&mut self, to: u64) -> Result<(), WalError> {
        while let Some(segment) = self.take_purged(to) {
            Purged { is_wanted: false, ..segment }.retire(&|_| false)?;
        }
        Ok(())
    }

    /// The first segment, if all of its records may go. It is to be removed before the next one is, so that no power loss leaves
    /// a gap.
    pub(super) fn take_purged(&mut self, to: u64) -> Option<Purged> {
        let segment = self.segments.pop_front_if(|segment| segment.end() <= to + 1)?;
        let was_last = self.segments.is_empty();
        // One that is much longer, for the sake of one long record, is too much to keep. And those that may go behind it do not
        // wait until it is wiped: they could be as many as come meanwhile.
        let lengths = self.limits.segment_bytes..=self.limits.segment_bytes.saturating_mul(2);
        let behind = self.segments.iter().take_while(|segment| segment.end() <= to + 1).count();
        let is_wanted =
            !was_last && self.spares.len() + behind < spare::MOST && lengths.contains(&segment.reserved);
        let Segment { path, file, reserved: bytes, .. } = segment;
        Some(Purged { directory: self.directory.clone(), path, file, bytes, is_wanted, was_last })
    }

    /// The first index of the last segment, if half of that is full and there is no spare: it is time to make one.
    pub(super) fn lacks_spare(&self) -> Option<u64> {
        let last = self.segments.back().filter(|_| self.spares.is_empty())?;
        (last.length > self.limits.segment_bytes / 2).then_some(last.first)
    }

    /// The path and the length of a spare that is made while the segment is written that begins with an index.
    pub(super) fn next_spare(&self, last: u64) -> (PathBuf, u64) {
        (self.directory.join(format!("after-{last:020}")), self.limits.segment_bytes)
    }

    /// Keeps a spare until a segment begins.
    pub(super) fn keep_spare(&mut self, spare: Spare) {
        self.spares.push(spare);
    }

    /// Gives back the room of the spares. Returns whether there was any.
    pub(super) fn let_spares_go(&mut self) -> bool {
        let removed = self.spares.drain(..).map(Spare::remove).filter(|had_some| *had_some);
        removed.count() > 0
    }

    /// Whether nothing is left when the records up to this index have gone.
    pub(super) fn ends_before(&self, to: u64) -> bool {
        self.segments.back().is_none_or(|segment| segment.end() <= to + 1)
    }

    /// Where the records of a range lie, as far as they exist; stops when `bytes` are exceeded, but not before the
    /// first record.
    pub(super) fn places(&self, range: Range<u64>, bytes: u64) -> Vec<Place> {
        let mut places = Vec::new();
        let mut taken = 0;
        let mut number = self.segments.partition_point(|segment| segment.end() <= range.start);
        let mut index = range.start;
        while let Some(segment) = self.segments.get(number)
            && index < range.end
            && index >= segment.first
            && (places.is_empty() || taken < bytes)
        {
            if index >= segment.end() {
                number += 1;
                continue;
            }
            let frame = segment.frame(index);
            let length = frame.end - frame.start;
            taken += length;
            places.push(Place {
                index,
                file: segment.file.clone(),
                path: segment.path.clone(),
                offset: frame.start,
                length: length as usize,
            });
            index += 1;
        }
        places
    }

    #[cfg(test)]
    pub(super) fn last_segment(&self) -> Option<(PathBuf, u64, u64)> {
        self.segments.back().map(|segment| (segment.path.to_path_buf(), segment.synced, segment.length))
    }
}

fn segment_path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:020}.wal"))
}

fn note_newest(directory: &Path, first: u64) -> io::Result<()> {
    atomic_file::replace(&directory.join(NEWEST), &first.to_le_bytes())
}

fn forget_newest(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NEWEST)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_directory(directory),
    }
}

fn open_segment(first: u64, path: &Path, last: bool) -> Result<Segment, WalError> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let bytes = fs::read(path)?;
    let mut offsets = Vec::new();
    let mut at = 0;
    let mut synced = 0;
    while at < bytes.len() {
        match parse(&bytes[at..]) {
            Some(frame) if frame.index == first + offsets.len() as u64 => {
                offsets.push(at as u64);
                synced = frame.synced;
                at += frame.length;
            }
            _ => break,
        }
    }
    let mut reserved = bytes.len();
    if bytes[at..].iter().any(|byte| *byte != 0) {
        let next = first + offsets.len() as u64;
        if !last || synced_behind(&bytes, at, next) {
            return Err(WalError::Damaged { path: path.to_path_buf(), offset: at as u64 });
        }
        tracing::warn!(path = %path.display(), kept = at, found = bytes.len(), "cut the log's torn tail");
        file.set_len(at as u64)?;
        reserved = at;
    }
    // What was found may have been written by a process that was killed before it could sync, or whose sync failed. Then
    // the cache has what the disk has not and takes it for written: another sync would succeed and do nothing. So what no
    // frame proves to be on disk is written again. Of the other segments all is: they were synced before the next one began.
    if last {
        let from = usize::try_from(synced).map_or(at, |synced| synced.min(at));
        file.write_all_at(&bytes[from..at], from as u64)?;
    }
    file.sync_all()?;
    let (length, reserved) = (at as u64, reserved as u64);
    Ok(Segment { first, path: path.into(), file: Arc::new(file), offsets, length, synced: length, reserved })
}

/// Whether a frame behind `damaged` proves that the damaged place had been synced.
fn synced_behind(bytes: &[u8], damaged: usize, next_index: u64) -> bool {
    (damaged + 1..bytes.len().saturating_sub(HEADER)).any(|at| {
        let synced = u64::from_le_bytes(bytes[at + 16..at + 24].try_into().expect("eight bytes"));
        let index = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("eight bytes"));
        // Cheap tests before the checksum.
        synced > damaged as u64
            && synced <= at as u64
            && index > next_index
            && index - next_index <= (bytes.len() / HEADER) as u64
            && parse(&bytes[at..]).is_some()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Append(Vec<u8>),
        Sync,
        /// Fractions of what there is.
        Truncate(u8),
        Purge(u8),
        Crash(u16),
        Reopen,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => proptest::collection::vec(0u8..60, 1..5).prop_map(Step::Append),
            4 => Just(Step::Sync),
            1 => any::<u8>().prop_map(Step::Truncate),
            1 => any::<u8>().prop_map(Step::Purge),
            2 => any::<u16>().prop_map(Step::Crash),
            1 => Just(Step::Reopen),
        ]
    }

    fn limits() -> Limits {
        Limits { segment_bytes: 200, ..Limits::default() }
    }

    fn contents(log: &Segments) -> Vec<(u64, Bytes)> {
        let Some(range) = log.range() else { return Vec::new() };
        let places = log.places(range, u64::MAX);
        places.iter().map(|place| (place.index, place.read().expect("readable"))).collect()
    }

    proptest! {
        /// What was synced survives every crash; of what was not, a prefix does.
        #[test]
        fn behaves_like_a_list(steps in proptest::collection::vec(step(), 1..60)) {
            let directory = tempfile::tempdir().expect("a directory");
            let mut log = Segments::open(directory.path(), limits()).expect("opens");
            let mut model: Vec<(u64, Bytes)> = Vec::new();
            let mut purged = 0;
            let mut synced = 0; // index of the last record that must survive
            let mut next = 1;
            let mut fill = 0u8;
            for step in steps {
                match step {
                    Step::Append(lengths) => {
                        let records: Vec<_> = lengths.iter().map(|length| {
                            fill = fill.wrapping_add(1);
                            let record = (next, Bytes::from(vec![fill; *length as usize]));
                            next += 1;
                            record
                        }).collect();
                        log.append(&records).expect("appends");
                        model.extend(records);
                    }
                    Step::Sync => {
                        log.sync().expect("syncs");
                        synced = next - 1;
                    }
                    Step::Truncate(fraction) => {
                        // What is purged was committed: Raft never truncates it.
                        let first = model.first().map_or(next, |(index, _)| *index).max(purged + 1);
                        let from = first + next.saturating_sub(first) * u64::from(fraction) / 256;
                        log.truncate(from).expect("truncates");
                        model.retain(|(index, _)| *index < from);
                        next = from;
                        synced = synced.min(next - 1);
                        if model.is_empty() {
                            log.purge(next).expect("purges");
                        }
                    }
                    Step::Purge(fraction) => {
                        let first = model.first().map_or(next, |(index, _)| *index);
                        let to = first + (synced + 1).saturating_sub(first) * u64::from(fraction) / 256;
                        let to = to.saturating_sub(1);
                        while let Some(segment) = log.take_purged(to) {
                            let spare = segment.retire(&|_| true).expect("retires");
                            spare.into_iter().for_each(|spare| log.keep_spare(spare));
                        }
                        purged = purged.max(to);
                    }
                    Step::Crash(at) => {
                        if let Some((path, kept, length)) = log.last_segment() {
                            let cut = kept + (length - kept) * u64::from(at) / u64::from(u16::MAX);
                            drop(log);
                            let file = OpenOptions::new().write(true).open(path).expect("opens");
                            let reserved = file.metadata().expect("it is there").len();
                            file.set_len(cut).expect("cuts");
                            if at % 2 == 0 {
                                // What had been reserved is durable already.
                                file.set_len(reserved).expect("grows");
                            }
                        } else {
                            drop(log);
                        }
                        log = Segments::open(directory.path(), limits()).expect("recovers");
                        let found = log.range().map_or(synced.max(purged), |range| range.end - 1);
                        prop_assert!(found >= synced || model.is_empty(), "lost {found}..{synced}");
                        model.retain(|(index, _)| *index <= found);
                        next = model.last().map_or(next.min(found + 1), |(index, _)| index + 1);
                        synced = next - 1;
                    }
                    Step::Reopen => {
                        drop(log);
                        log = Segments::open(directory.path(), limits()).expect("opens");
                        synced = next - 1;
                    }
                }
                let found = contents(&log);
                let visible = |records: &[(u64, Bytes)]| {
                    records.iter().filter(|(index, _)| *index > purged).cloned().collect::<Vec<_>>()
                };
                prop_assert_eq!(visible(&found), visible(&model));
            }
        }
    }

    fn write_groups(directory: &Path, groups: &[u64]) -> (PathBuf, Vec<u64>) {
        let mut log = Segments::open(directory, Limits::default()).expect("opens");
        let mut index = 1;
        let mut ends = vec![0];
        for group in groups {
            let records: Vec<_> = (index..index + group).map(|i| (i, Bytes::from(vec![7; 40]))).collect();
            log.append(&records).expect("appends");
            log.sync().expect("syncs");
            index += group;
            ends.push(log.last_segment().expect("a segment").2);
        }
        (log.last_segment().expect("a segment").0, ends)
    }

    fn damage(path: &Path, offset: u64) {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("reads");
        file.write_all_at(&[byte[0] ^ 0x40], offset).expect("writes");
    }

    #[test]
    fn damage_to_what_was_synced_is_an_error_and_a_torn_tail_is_cut() {
        for at in [0, 5, 20, 30] {
            let directory = tempfile::tempdir().expect("a directory");
            let (path, ends) = write_groups(directory.path(), &[2, 3, 4]);
            damage(&path, ends[1] + at);
            let opened = Segments::open(directory.path(), Limits::default());
            assert!(matches!(opened, Err(WalError::Damaged { .. })), "damage in the middle, at {at}");

            let directory = tempfile::tempdir().expect("a directory");
            let (path, ends) = write_groups(directory.path(), &[2, 3, 4]);
            // The last group was written in one go: of it, any part may be missing, with readable frames behind.
            damage(&path, ends[2] + at);
            let log = Segments::open(directory.path(), Limits::default()).expect("recovers");
            assert_eq!(log.range(), Some(1..6));
        }
    }

    /// A sync that failed cannot be had here; but when a file was written to, its time tells.
    #[test]
    fn what_no_frame_proves_to_be_synced_is_written_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let limits = Limits { segment_bytes: 500, ..Limits::default() };
        let mut log = Segments::open(directory.path(), limits.clone()).expect("opens");
        for index in 1..=20 {
            log.append(&[(index, Bytes::from(vec![index as u8; 40]))]).expect("appends");
            log.sync().expect("syncs");
        }
        log.append(&[(21, Bytes::from_static(b"not synced"))]).expect("appends");
        let before = contents(&log);
        drop(log);
        let paths: Vec<PathBuf> = fs::read_dir(directory.path())
            .expect("reads")
            .map(|entry| entry.expect("reads").path())
            .filter(|path| path.extension().is_some())
            .collect();
        let last = paths.iter().max().expect("a segment");
        let read = |path| (fs::read(path).expect("reads"), fs::metadata(path).expect("there").modified());
        let mut bytes = Vec::new();
        for path in &paths {
            let file = OpenOptions::new().write(true).open(path).expect("opens");
            file.set_modified(std::time::UNIX_EPOCH).expect("sets the time");
            bytes.push(read(path).0);
        }
        let log = Segments::open(directory.path(), limits).expect("opens");
        assert_eq!(contents(&log), before);
        for (path, bytes) in paths.iter().zip(bytes) {
            let (now, modified) = read(path);
            assert_eq!(now, bytes);
            let is_written = modified.expect("has a time") > std::time::UNIX_EPOCH;
            assert_eq!(is_written, path == last, "{}", path.display());
        }
        assert!(paths.len() > 2);
    }

    #[test]
    fn a_file_grows_some_records_at_a_time_and_ends_with_its_last_record() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut log = Segments::open(directory.path(), Limits::default()).expect("opens");
        let mut grew = 0;
        let mut length = 0;
        for index in 1..=1_000 {
            log.append(&[(index, Bytes::from(vec![7; 1_000]))]).expect("appends");
            let (path, ..) = log.last_segment().expect("a segment");
            let now = fs::metadata(path).expect("it is there").len();
            assert_eq!(now % STEP_BYTES, 0);
            grew += usize::from(now > std::mem::replace(&mut length, now));
        }
        assert_eq!(grew, 4);
        log.truncate(900).expect("truncates");
        let (path, _, end) = log.last_segment().expect("a segment");
        assert_eq!(
            fs::metadata(path).expect("it is there").len(),
            end,
            "nothing of what was truncated is left"
        );
        log.append(&[(900, Bytes::from(vec![8; 1_000]))]).expect("appends");
        drop(log);
        let log = Segments::open(directory.path(), Limits::default()).expect("opens");
        assert_eq!(log.range(), Some(1..901));
        assert_eq!(contents(&log).last(), Some(&(900, Bytes::from(vec![8; 1_000]))));
    }

    #[test]
    fn a_segment_that_nobody_reads_is_used_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut log = Segments::open(directory.path(), limits()).expect("opens");
        let append = |log: &mut Segments, indices: Range<u64>| {
            indices.for_each(|index| {
                log.append(&[(index, Bytes::from(vec![index as u8; 150]))]).expect("appends")
            });
            log.sync().expect("syncs");
        };
        let retire = |log: &mut Segments, to, goes_on: GoesOn<'_>| {
            let purged = log.take_purged(to).expect("it may go");
            let spare = purged.retire(goes_on).expect("retires");
            let is_kept = spare.is_some();
            spare.into_iter().for_each(|spare| log.keep_spare(spare));
            is_kept
        };
        // Two records each.
        append(&mut log, 1..14);
        assert_eq!(log.lacks_spare(), Some(13), "half of the last one is full");
        let read = log.places(3..4, u64::MAX);
        assert!(!retire(&mut log, 10, &|_| true), "as many as are kept are to go behind it");
        assert!(!retire(&mut log, 4, &|_| true), "somebody reads it");
        assert_eq!(read[0].read().expect("it can be read"), vec![3; 150]);
        assert!(!retire(&mut log, 6, &|_| false), "there is no time");
        assert!(retire(&mut log, 10, &|_| true));
        assert!(retire(&mut log, 10, &|_| true));
        assert!(retire(&mut log, 12, &|_| true));
        assert_eq!(log.lacks_spare(), None, "there are some");
        let spares =
            ["00000000000000000007.spare", "00000000000000000009.spare", "00000000000000000011.spare"];
        for name in spares {
            let wiped = fs::read(directory.path().join(name)).expect("it is there");
            assert!(wiped.len() == 400 && wiped.iter().all(|byte| *byte == 0));
        }
        let lengths = || {
            let paths =
                fs::read_dir(directory.path()).expect("reads").map(|entry| entry.expect("reads").path());
            let files = paths.filter(|path| path.extension().is_some());
            let mut files: Vec<(String, u64)> = files
                .map(|path| {
                    let length = fs::metadata(&path).expect("it is there").len();
                    (path.file_name().expect("a name").to_str().expect("text").to_owned(), length)
                })
                .collect();
            files.sort();
            files
        };
        let names: Vec<String> = lengths().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[..3], spares);
        assert_eq!(names[3..], ["00000000000000000013.wal"]);
        append(&mut log, 14..16);
        assert_eq!(lengths()[3], ("00000000000000000015.wal".into(), 400), "zeros that were there");
        // Somebody has tidied up.
        fs::remove_file(directory.path().join(spares[1])).expect("it is there");
        append(&mut log, 16..18);
        assert_eq!(lengths()[3], ("00000000000000000017.wal".into(), 200));
        assert!(retire(&mut log, 14, &|_| true));
        let before = contents(&log);
        assert_eq!(before.len(), 3);
        assert!(log.let_spares_go() && !log.let_spares_go());
        drop(log);
        let log = Segments::open(directory.path(), limits()).expect("opens");
        assert_eq!(contents(&log), before);
    }

    #[test]
    fn a_segment_that_is_missing_at_the_end_is_found_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || Segments::open(directory.path(), limits());
        let mut log = open().expect("opens");
        let append = |log: &mut Segments, indices: Range<u64>| {
            indices.for_each(|index| log.append(&[(index, Bytes::from(vec![7; 150]))]).expect("appends"));
            log.sync().expect("syncs");
        };
        append(&mut log, 1..11);
        let before = contents(&log);
        let (last, ..) = log.last_segment().expect("a segment");
        drop(log);
        let aside = directory.path().join("aside");
        fs::rename(&last, &aside).expect("it is there");
        let missing = open().err().expect("it is found out");
        assert!(matches!(missing, WalError::Missing { path } if path == last));
        fs::rename(&aside, &last).expect("it is there");
        let mut log = open().expect("opens");
        assert_eq!(contents(&log), before);
        // What is removed on purpose is not missing, whatever comes or does not come behind it.
        for (from, behind) in [(8, 8), (6, 9), (1, 1)] {
            log.truncate(from).expect("truncates");
            append(&mut log, from..behind);
            drop(log);
            log = open().expect("opens");
            assert_eq!(log.range(), (behind > 1).then_some(1..behind));
        }
        append(&mut log, 1..11);
        log.purge(10).expect("purges");
        drop(log);
        assert_eq!(open().expect("opens").range(), None);
    }

    #[test]
    fn a_full_log_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let limits = Limits { log_bytes: Some(100), ..Limits::default() };
        let mut log = Segments::open(directory.path(), limits).expect("opens");
        log.append(&[(1, Bytes::from(vec![0; 50]))]).expect("fits");
        let error = log.append(&[(2, Bytes::from(vec![0; 50]))]).expect_err("does not fit");
        assert!(matches!(error, WalError::Io(error) if error.kind() == io::ErrorKind::StorageFull));
        assert_eq!(log.range(), Some(1..2));
    }
}
