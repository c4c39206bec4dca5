//! Time that passes also while the machine is suspended. [`Instant`]s stand still then: a lease that is counted by them ends
//! too late for whoever waits on another machine until it has run out.

use std::time::Duration;

use tokio::time::Instant;

/// On Linux `CLOCK_MONOTONIC` stands still while the machine is suspended, elsewhere it does not.
#[cfg(target_os = "linux")]
const GOES_ON: libc::clockid_t = libc::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const GOES_ON: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// The two clocks are not read at one moment: what they differ by in less time is no suspension.
const SHORTEST: Duration = Duration::from_millis(5);

/// Tells the time since it began.
#[derive(Debug)]
pub(crate) struct Clock {
    begun: Instant,
    /// How long the machine had been suspended before.
    before: Duration,
    /// How long it has been since.
    suspended: Duration,
    /// When that was last noticed.
    resumed: Option<Instant>,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn begin() -> Clock {
        Clock { begun: Instant::now(), before: suspended(), suspended: Duration::ZERO, resumed: None }
    }

    /// The present time, in milliseconds.
    pub(crate) fn now_ms(&mut self) -> u64 {
        self.read(suspended(), Instant::now())
    }

    fn read(&mut self, suspended: Duration, at: Instant) -> u64 {
        let suspended = suspended.saturating_sub(self.before);
        if suspended >= self.suspended + SHORTEST {
            (self.suspended, self.resumed) = (suspended, Some(at));
        }
        self.since(at)
    }

    /// An earlier time, in milliseconds; `None` when the machine may have been suspended between then and the last look at the
    /// clock: how long ago it is nobody knows.
    pub(crate) fn ms(&self, at: Instant) -> Option<u64> {
        self.resumed.is_none_or(|resumed| at >= resumed).then(|| self.since(at))
    }

    fn since(&self, at: Instant) -> u64 {
        (at.saturating_duration_since(self.begun) + self.suspended).as_millis() as u64
    }
}

/// How long the machine has been suspended since it was started.
fn suspended() -> Duration {
    // In this order: what comes between makes it shorter, and is not taken for a suspension.
    let [goes_on, stands_still] = [GOES_ON, libc::CLOCK_MONOTONIC].map(|clock| {
        let mut told = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes to nothing but what it is given. Without such a clock nothing is written.
        unsafe { libc::clock_gettime(clock, &raw mut told) };
        let [seconds, nanos] = [told.tv_sec, told.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
        Duration::from_secs(seconds) + Duration::from_nanos(nanos)
    });
    goes_on.saturating_sub(stands_still)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_machine_does_not_stop_it() {
        let mut clock = Clock::begin();
        let (begun, before) = (clock.begun, clock.before);
        let at = |ms| begun + Duration::from_millis(ms);
        let mut read = |suspended_ms, ms| clock.read(before + Duration::from_millis(suspended_ms), at(ms));
        assert_eq!((read(0, 1_000), read(0, 1_100)), (1_000, 1_100));
        assert_eq!(read(60_000, 1_110), 61_110);
        assert_eq!(read(60_000, 1_300), 61_300);
        // Whether that was before the machine was suspended or behind it cannot be told.
        assert_eq!((clock.ms(at(1_100)), clock.ms(at(1_105))), (None, None));
        assert_eq!((clock.ms(at(1_110)), clock.ms(at(1_200))), (Some(61_110), Some(61_200)));
    }

    #[test]
    fn while_the_machine_runs_it_goes_like_any_other() {
        let mut clock = Clock::begin();
        let at = Instant::now();
        let now_ms = clock.now_ms();
        assert!(clock.ms(at).is_some_and(|ms| ms <= now_ms), "{clock:?}");
    }
}
