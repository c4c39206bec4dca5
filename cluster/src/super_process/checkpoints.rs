//! When a checkpoint is due: as the log grows, when it has not been empty for long, or when the routers' disks have no room for
//! more of it, or a storage process none for staged rows. A pure function of heartbeats.

use super::Heartbeat;
use crate::storage::disk::DiskState;

/// When checkpoints are made.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointPolicy {
    /// When this many bytes have been written since the last one, staged rows apart. Of these there may be as many, or as many
    /// as are held: a checkpoint writes all that is held, and a restart need not read more than twice as much …
    pub bytes: u64,
    /// … or, if there was any write, when this many milliseconds have passed.
    pub interval_ms: u64,
}

/// Chooses when to make a checkpoint.
#[derive(Debug)]
pub struct Checkpoints {
    policy: CheckpointPolicy,
    last_ms: u64,
    /// How long the next one has to wait while there is no room: longer after each that has made none.
    pause_ms: u64,
}

impl Checkpoints {
    /// After an order for a checkpoint, heartbeats may be from before it for this many milliseconds.
    const SETTLES_MS: u64 = 500;
    /// While there is no room, the first one has to wait for so long.
    const NO_ROOM_MS: u64 = 5_000;
    /// While a storage process has none for staged rows, it has to wait for so long.
    const SHORT_MS: u64 = 20_000;

    /// Counts the interval from `now_ms`.
    pub fn new(policy: CheckpointPolicy, now_ms: u64) -> Checkpoints {
        Checkpoints { policy, last_ms: now_ms, pause_ms: Checkpoints::NO_ROOM_MS }
    }

    /// A checkpoint has been ordered, while the routers had room for more of the log or not.
    pub fn ordered(&mut self, now_ms: u64, has_room: bool) {
        self.last_ms = now_ms;
        self.pause_ms = if has_room { Checkpoints::NO_ROOM_MS } else { 2 * self.pause_ms };
    }

    /// Whether a checkpoint is due, by the heartbeats of the live storage processes, and by whether the routers have room for
    /// more of the log.
    pub fn is_due(&self, now_ms: u64, live: &[Heartbeat], has_room: bool) -> bool {
        let is_short = live.iter().any(|heartbeat| heartbeat.disk == DiskState::Short);
        let pause_ms = if has_room { u64::MAX } else { self.pause_ms };
        let interval_ms = self.policy.interval_ms.min(pause_ms);
        let logged = live.iter().map(|heartbeat| heartbeat.logged).max().unwrap_or(0);
        let bytes = self.policy.bytes.max(1);
        let passed = now_ms.saturating_sub(self.last_ms);
        passed >= Checkpoints::SETTLES_MS
            && !live.iter().any(|heartbeat| heartbeat.checkpointing)
            && (logged >= bytes
                || live.iter().any(|heartbeat| heartbeat.staged >= bytes.max(heartbeat.used))
                || logged > 0 && passed >= interval_ms
                || is_short && passed >= Checkpoints::SHORT_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_or_time_make_a_checkpoint_due() {
        let mut checkpoints = Checkpoints::new(CheckpointPolicy { bytes: 100, interval_ms: 60_000 }, 0);
        let due = |checkpoints: &Checkpoints, now_ms, logged, checkpointing| {
            let live = [
                Heartbeat { logged, ..Heartbeat::default() },
                Heartbeat { checkpointing, ..Heartbeat::default() },
            ];
            checkpoints.is_due(now_ms, &live, true)
        };
        assert!(!due(&checkpoints, 1_000, 99, false));
        assert!(due(&checkpoints, 1_000, 100, false));
        assert!(!due(&checkpoints, 1_000, 100, true), "one is being made");
        assert!(!due(&checkpoints, 60_000, 0, false), "nothing was written");
        assert!(due(&checkpoints, 60_000, 1, false));
        checkpoints.ordered(1_000, true);
        assert!(!due(&checkpoints, 1_100, 100, false), "that may be from before the checkpoint");
        assert!(due(&checkpoints, 1_500, 100, false));
        assert!(!checkpoints.is_due(90_000, &[], true));
        let short = |checkpoints: &Checkpoints, now_ms, logged| {
            checkpoints.is_due(now_ms, &[Heartbeat { logged, ..Heartbeat::default() }], false)
        };
        assert!(!short(&checkpoints, 5_999, 1));
        assert!(short(&checkpoints, 6_000, 1), "the log can be cut behind it");
        assert!(!short(&checkpoints, 6_000, 0));
        checkpoints.ordered(6_000, false);
        assert!(!short(&checkpoints, 15_999, 1), "that has not helped");
        assert!(short(&checkpoints, 16_000, 1));
        checkpoints.ordered(1_000, true);
        let rows = |staged, used| {
            checkpoints.is_due(2_000, &[Heartbeat { staged, used, ..Heartbeat::default() }], true)
        };
        assert!(!rows(99, 0) && rows(100, 0));
        assert!(!rows(199, 200) && rows(200, 200), "it would write more than has come");
        let full = Heartbeat { disk: DiskState::Short, ..Heartbeat::default() };
        assert!(!checkpoints.is_due(20_999, &[full], true));
        assert!(checkpoints.is_due(21_000, &[full], true), "staged rows are removed behind it");
    }
}
