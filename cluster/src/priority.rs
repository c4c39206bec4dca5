//! What comes first when there is more to do than processors: routers, network and sessions, then scans, then what makes room for
//! them, checkpoints and what is copied in bulk. They are what others wait for, in this order.
//!
//! A thread that is waited for should not wait for one of lower priority, which may have no time for long. So they share no lock
//! that is held while somebody is woken: who is woken interrupts who has woken it, at once. The standard library's channels
//! hold one then, so several threads send through tokio's, which hold none. Still, a block whose rows are needed at once is
//! waited for while it is being unpacked.

/// The nice value of scan threads: a third of what a thread has that orders messages. Those are ordered as soon as others
/// before them are, which takes all the time that there is, however few they are; with a smaller share scans would wait long
/// for some of it, and whoever has asked for their answers with them.
pub const SCAN: i32 = 5;

/// The nice value of threads that encode columns for scan threads: a third of what those have.
pub(crate) const ENCODE: i32 = 10;

/// The nice value of threads that write checkpoints: a third of what a scan thread has.
pub(crate) const CHECKPOINT: i32 = 10;

/// The nice value of threads that carry rows from one storage process to another: a twentieth of what a scan thread has. They
/// take what others leave; when others leave nothing, rows still move.
pub(crate) const BULK: i32 = 19;

/// Gives this thread a nice value above 0, where a thread can have one of its own.
pub fn lower(nice: i32) {
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
