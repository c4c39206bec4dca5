//! The limit of open files: every connection is one.

use super::failure::Failure;

/// Files and sockets besides those of sessions: logs, checkpoints, payloads, connections that are starting.
const OTHER_FILES: u64 = 512;

/// Raises this process's limit so that there is room for so many connections; `reason` is the option that asks for them.
///
/// # Errors
/// When the system does not let it be raised that far.
pub fn allow(connections: u32, reason: &str) -> Result<(), Failure> {
    let wanted = u64::from(connections) + OTHER_FILES;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a structure of our own.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= wanted {
        // Where there is no limit to be told, accepting a connection tells.
        return Ok(());
    }
    if limit.rlim_max < wanted {
        return Err(Failure::setup(format!(
            "{reason} needs {wanted} open files, but no more than {} are allowed here (ulimit -Hn)",
            limit.rlim_max
        )));
    }
    limit.rlim_cur = wanted;
    // SAFETY: reads a structure of our own.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Failure::setup(format!("cannot raise the limit of open files to {wanted}: {error}")));
    }
    Ok(())
}
