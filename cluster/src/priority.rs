//! What comes first when there is more to do than processors: routers, network and sessions, then scans, then what is copied
//! in bulk. They are what others wait for, in this order.

/// The nice value of scan threads and of those that write checkpoints: when everything else is busy they have a tenth of a
/// core, and so many operations ride in each revolution that this goes far.
pub(crate) const SCAN: i32 = 10;

/// The nice value of threads that carry rows from one storage process to another: an eighth of what a scan thread has. They
/// take what others leave; when others leave nothing, rows still move.
pub(crate) const BULK: i32 = 19;

/// Gives this thread a nice value above 0, where a thread can have one of its own.
pub(crate) fn lower(nice: i32) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: both calls take and return plain numbers. On Linux the nice value belongs to the thread.
        let failed = unsafe {
            let thread = libc::gettid();
            libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) != 0
        };
        if failed {
            tracing::debug!("the priority of a thread cannot be lowered");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}
