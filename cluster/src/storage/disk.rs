//! How the disk of a storage process takes checkpoints and staged rows, as a pure function of what it was given and what came of
//! it when.

use serde::{Deserialize, Serialize};

/// What a process knows of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskState {
    /// It has taken a checkpoint in this life, and nothing has gone wrong since.
    Sound,
    /// It may be sound or not.
    #[default]
    Unproven,
    /// It takes no checkpoints.
    Failing,
    /// It has refused staged rows, and no checkpoint has been tried since: one makes room, or shows that the disk fails.
    Short,
}

/// See the module's head. Times are milliseconds of the process's clock.
#[derive(Debug)]
pub(crate) struct Disk {
    patience_ms: u64,
    now_ms: u64,
    /// About checkpoints.
    checkpoints: Owed,
    /// About staged rows: who waits for some makes no checkpoint meanwhile.
    rows: Owed,
    /// When a checkpoint failed for the first time since one was written, and for the last time.
    failed_ms: Option<(u64, u64)>,
    /// A checkpoint was written last.
    is_proven: bool,
    /// Staged rows were refused since a checkpoint was tried.
    is_short: bool,
}

/// Answers that are due.
#[derive(Debug, Default)]
struct Owed {
    answers: usize,
    /// When the last one came, or the first of those was asked for.
    since_ms: u64,
}

impl Owed {
    fn ask(&mut self, now_ms: u64) {
        if self.answers == 0 {
            self.since_ms = now_ms;
        }
        self.answers += 1;
    }

    fn answered(&mut self, now_ms: u64) {
        self.answers = self.answers.saturating_sub(1);
        self.since_ms = now_ms;
    }

    fn forgo(&mut self) {
        self.answers = self.answers.saturating_sub(1);
    }

    fn overdue_ms(&self, now_ms: u64) -> u64 {
        if self.answers > 0 { now_ms.saturating_sub(self.since_ms) } else { 0 }
    }
}

/// A disk that has taken nothing of what it was given for so long, or that fails again and again for so long, takes no
/// checkpoints: as long as that is so, the routers cannot cut their log.
pub(crate) const DISK_PATIENCE_MS: u64 = 30_000;

impl Disk {
    /// A disk that may hang or fail for so long.
    pub(crate) fn new(patience_ms: u64) -> Disk {
        Disk {
            patience_ms,
            now_ms: 0,
            checkpoints: Owed::default(),
            rows: Owed::default(),
            failed_ms: None,
            is_proven: false,
            is_short: false,
        }
    }

    /// Time has passed. When that was long, this process did not run, and what it has not heard of meanwhile means nothing.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.now_ms) > self.patience_ms / 2 {
            (self.checkpoints.since_ms, self.rows.since_ms) = (now_ms, now_ms);
        }
        self.now_ms = now_ms;
    }

    /// It was given something of a checkpoint, of which it tells when it is done.
    pub(crate) fn gave(&mut self) {
        self.checkpoints.ask(self.now_ms);
    }

    /// It is done with something of a checkpoint.
    pub(crate) fn took(&mut self) {
        self.checkpoints.answered(self.now_ms);
    }

    /// It has not done something of a checkpoint yet, but some of that.
    pub(crate) fn goes_on(&mut self) {
        self.checkpoints.since_ms = self.now_ms;
    }

    /// It was given staged rows, or asked for some.
    pub(crate) fn gave_rows(&mut self) {
        self.rows.ask(self.now_ms);
    }

    /// It has taken, given or refused staged rows.
    pub(crate) fn took_rows(&mut self) {
        self.rows.answered(self.now_ms);
    }

    /// Staged rows were taken back before it had come to them, which says nothing of it.
    pub(crate) fn took_back_rows(&mut self) {
        self.rows.forgo();
    }

    /// A checkpoint is written, or could not be.
    pub(crate) fn ended(&mut self, is_written: bool) {
        self.took();
        (self.is_proven, self.is_short) = (is_written, false);
        let now_ms = self.now_ms;
        self.failed_ms = (!is_written).then(|| (self.failed_ms.map_or(now_ms, |(first, _)| first), now_ms));
    }

    /// Staged rows could not be written. Returns whether they are the first since a checkpoint was tried.
    pub(crate) fn refused(&mut self) -> bool {
        !std::mem::replace(&mut self.is_short, true)
    }

    /// Whether it takes no checkpoints.
    pub(crate) fn fails(&self) -> bool {
        let failed = self.failed_ms.is_some_and(|(first, last)| last - first >= self.patience_ms);
        failed || self.hangs_for() >= self.patience_ms
    }

    fn hangs_for(&self) -> u64 {
        // Many of the latter share a sync.
        self.checkpoints.overdue_ms(self.now_ms).max(self.rows.overdue_ms(self.now_ms) / 2)
    }

    /// What is known of it. What ails several disks at once does not come to light everywhere at the same moment.
    pub(crate) fn state(&self) -> DiskState {
        match self.fails() {
            true => DiskState::Failing,
            false if self.is_short => DiskState::Short,
            false if self.is_proven && self.hangs_for() < self.patience_ms / 3 => DiskState::Sound,
            false => DiskState::Unproven,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(disk: &mut Disk, until_ms: u64) {
        for now_ms in (disk.now_ms..=until_ms).step_by(100) {
            disk.tick(now_ms);
        }
    }

    #[test]
    fn one_that_refuses_staged_rows_is_short_until_a_checkpoint_is_tried() {
        let mut disk = Disk::new(1_000);
        disk.ended(true);
        assert!(disk.refused() && !disk.refused());
        assert_eq!(disk.state(), DiskState::Short);
        disk.ended(false);
        assert_eq!(disk.state(), DiskState::Unproven);
        assert!(disk.refused());
        disk.ended(true);
        assert_eq!(disk.state(), DiskState::Sound);
        disk.refused();
        pass(&mut disk, 5_000);
        disk.gave();
        pass(&mut disk, 7_000);
        assert_eq!(disk.state(), DiskState::Failing);
    }

    #[test]
    fn one_that_hangs_fails_until_it_goes_on() {
        let mut disk = Disk::new(1_000);
        pass(&mut disk, 10_000);
        disk.gave();
        pass(&mut disk, 10_900);
        assert_eq!(disk.state(), DiskState::Unproven);
        disk.gave();
        disk.took();
        pass(&mut disk, 11_800);
        assert!(!disk.fails(), "it is slow");
        pass(&mut disk, 12_000);
        assert!(disk.fails());
        disk.ended(true);
        assert_eq!(disk.state(), DiskState::Sound);
        disk.gave();
        pass(&mut disk, 12_400);
        assert_eq!(disk.state(), DiskState::Unproven);
        disk.took();
        assert_eq!(disk.state(), DiskState::Sound);
        pass(&mut disk, 50_000);
        assert!(!disk.fails(), "nothing is due");
        disk.gave();
        for until_ms in (50_800..=58_000).step_by(800) {
            pass(&mut disk, until_ms);
            disk.goes_on();
        }
        assert!(!disk.fails(), "much of it has been done");
        pass(&mut disk, 58_500);
        disk.tick(70_000);
        assert!(!disk.fails(), "it was this process that stood still");
    }

    #[test]
    fn one_that_hangs_with_staged_rows_fails_too() {
        let mut disk = Disk::new(1_000);
        disk.gave_rows();
        disk.gave_rows();
        for until_ms in [1_900, 3_800] {
            pass(&mut disk, until_ms);
            assert!(!disk.fails(), "it is slow");
            disk.took_rows();
        }
        pass(&mut disk, 50_000);
        assert!(!disk.fails(), "nothing is due");
        disk.gave_rows();
        disk.gave();
        disk.ended(true);
        pass(&mut disk, 52_000);
        assert_eq!(disk.state(), DiskState::Failing, "whatever became of a checkpoint");
        disk.took_rows();
        assert_eq!(disk.state(), DiskState::Sound);
        disk.gave_rows();
        for until_ms in (52_500..=54_000).step_by(500) {
            disk.gave_rows();
            pass(&mut disk, until_ms);
            disk.took_back_rows();
        }
        assert!(disk.fails(), "whatever others give up");
    }

    #[test]
    fn one_that_is_full_fails_when_it_was_tried_again_for_long() {
        let mut disk = Disk::new(1_000);
        let mut end = |until_ms, is_written| {
            pass(&mut disk, until_ms);
            disk.gave();
            disk.ended(is_written);
            disk.fails()
        };
        assert!(!end(1_000, false));
        assert!(!end(1_900, false));
        assert!(!end(1_950, true));
        assert!(!end(3_000, false));
        assert!(!end(3_900, false));
        assert!(end(4_000, false));
        assert!(!end(9_000, true));
    }
}
