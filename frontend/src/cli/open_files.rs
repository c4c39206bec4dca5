//! The limit of open files: every connection is one.

use super::failure::Failure;

/// Files and sockets besides those of sessions: logs, checkpoints, payloads, connections that are starting.
const OTHER_FILES: u64 = 512;

/// Raises this process's limit as far as the system lets it: a long log has many files, too. Returns how many may be open;
/// nothing where that cannot be told.
pub fn allow_most() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a structure of our own.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return None;
    }
    let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: reads a structure of our own.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &most) } == 0;
    Some(if is_raised { most.rlim_cur } else { limit.rlim_cur })
}

/// Raises it so that there is room for so many connections; `reason` is the option that asks for them.
///
/// # Errors
/// When the system does not let it be raised that far.
pub fn allow(connections: u32, reason: &str) -> Result<(), Failure> {
    let wanted = u64::from(connections) + OTHER_FILES;
    match allow_most() {
        Some(most) if most < wanted => Err(Failure::setup(format!(
            "{reason} needs {wanted} open files, but no more than {most} are allowed here (ulimit -Hn)"
        ))),
        // Where there is no limit to be told, accepting a connection tells.
        _ => Ok(()),
    }
}
