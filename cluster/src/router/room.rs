//! Whether the disks of the routers' logs have room. While a quorum of the routers that live have some, writes go on, and a
//! router whose disk is full stops alone. Before too few are left, clients hear of it: they refuse what would change
//! something, as it would otherwise wait until somebody makes room, and the routers can say so no more.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{message::ProcessId, wal::free_bytes};

/// How often a router looks, in milliseconds.
pub(super) const LOOK_MS: u64 = 1_000;
/// What a router has said that has not said anything since for so long counts no more.
const HEARD_MS: u64 = 4 * LOOK_MS;

/// The disk of a router's log.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// A directory on it.
    pub(super) directory: PathBuf,
    /// It has room as long as so many bytes are free.
    pub(super) reserve_bytes: u64,
}

impl Disk {
    /// Whether it has room. One that does not tell has some.
    ///
    /// # Errors
    /// When the directory is not there any more: what is written to files in it that are open is lost with the process.
    pub(super) fn has_room(&self) -> Result<bool, String> {
        match free_bytes(&self.directory) {
            Ok(free) => Ok(free >= self.reserve_bytes),
            Err(rustix::io::Errno::NOENT) => Err(format!("{} has been removed", self.directory.display())),
            Err(_) => Ok(true),
        }
    }
}

/// What one leader has heard.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// Whether a router's disk has room, and when it said so.
    heard: BTreeMap<ProcessId, (bool, u64)>,
    is_short: bool,
}

impl Rooms {
    /// A router says whether its disk has room; whether that is news.
    pub(super) fn hear(&mut self, router: ProcessId, has_room: bool, now_ms: u64) -> bool {
        let before = self.heard.insert(router, (has_room, now_ms));
        before.map_or(!has_room, |(before, _)| before != has_room)
    }

    /// Whether too few routers have room, and whether that has changed. Of whom nothing is known yet, or any more, it is not
    /// known whether it lives: it counts for neither side, but somebody has to be short of room.
    pub(super) fn look(&mut self, voters: &[ProcessId], now_ms: u64) -> (bool, bool) {
        let fresh = |router: &&ProcessId| {
            let heard = self.heard.get(*router).filter(|(_, at_ms)| now_ms.saturating_sub(*at_ms) < HEARD_MS);
            heard.map(|(has_room, _)| *has_room)
        };
        let known: Vec<bool> = voters.iter().filter_map(|voter| fresh(&voter)).collect();
        let with_room = known.iter().filter(|has_room| **has_room).count();
        let is_short = with_room < known.len() && 2 * with_room <= voters.len();
        let before = std::mem::replace(&mut self.is_short, is_short);
        (is_short, is_short != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_needs_room() {
        let voters = [1, 2, 3].map(ProcessId::router);
        let mut rooms = Rooms::default();
        assert_eq!(rooms.look(&voters, 0), (false, false));
        let mut hear = |has_room: [Option<bool>; 3], now_ms, (is_short, changed)| {
            for (router, has_room) in voters.iter().zip(has_room) {
                if let Some(has_room) = has_room {
                    rooms.hear(*router, has_room, now_ms);
                }
            }
            assert_eq!(rooms.look(&voters, now_ms), (is_short, changed), "{has_room:?}");
        };
        hear([Some(false), Some(true), Some(true)], 10, (false, false));
        hear([Some(false), Some(false), Some(true)], 1_000, (true, true));
        hear([None, None, None], 1_500, (true, false));
        hear([None, Some(true), None], 2_000, (false, true));
        // The last one dies: the two that are left are needed.
        hear([Some(false), Some(true), None], 5_000, (true, true));
        hear([Some(true), Some(true), None], 6_000, (false, true));
        // Nobody says anything: nothing is known.
        hear([None, None, None], 60_000, (false, false));
        let news = [false, false, true].map(|has_room| rooms.hear(voters[0], has_room, 61_000));
        assert_eq!(news, [true, false, true]);
    }
}
