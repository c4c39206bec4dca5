//! How much room storage processes need for what they are to hold, as far as a client process has heard.

use std::collections::BTreeMap;

use super::Heard;
use crate::{config::Config, message::ProcessId};

/// Bytes that one copy of all rows takes.
pub fn bytes_of_a_copy(config: &Config, heard: &BTreeMap<ProcessId, Heard>) -> u64 {
    let told = config.live_storage().filter_map(|process| Some((process, heard.get(&process)?.used)));
    let (used, copies) =
        told.fold((0, 0.0), |(used, copies), (process, more)| (used + more, copies + share(config, process)));
    // Nobody tells of what nobody holds.
    (used as f64 / f64::max(copies, f64::MIN_POSITIVE)) as u64
}

/// Bytes of it that a process is to hold, if rows are spread evenly.
pub fn bytes_to_hold(config: &Config, process: ProcessId, of_a_copy: u64) -> u64 {
    (share(config, process) * of_a_copy as f64) as u64
}

/// The part of all positions that a process holds.
fn share(config: &Config, process: ProcessId) -> f64 {
    let held = config.held(process).into_iter();
    let positions: u128 = held.map(|range| u128::from(range.last - range.first) + 1).sum();
    positions as f64 / 2f64.powi(64)
}

/// Whether another process may take as much as one is to hold.
pub(crate) fn has_room(
    config: &Config,
    heard: &BTreeMap<ProcessId, Heard>,
    process: ProcessId,
    by: ProcessId,
) -> bool {
    let limit = heard.get(&by).and_then(|heard| heard.limit);
    limit.is_none_or(|limit| bytes_to_hold(config, process, bytes_of_a_copy(config, heard)) <= limit)
}
