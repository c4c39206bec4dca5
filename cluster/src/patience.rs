//! How long an answer is waited for. What is asked for may be long, and links and disks slow: what is asked or sent again is in
//! their way, and only whoever is not there answers never.

use std::ops::RangeInclusive;

/// For one answer. Twice as long each time, unless what has been sent is known to be lost.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// At first and at most, in milliseconds.
    limits: RangeInclusive<u64>,
    patience_ms: u64,
    again_ms: u64,
}

impl Patience {
    /// For an answer to what is sent now.
    pub(crate) fn new(limits: RangeInclusive<u64>, now_ms: u64) -> Patience {
        let patience_ms = *limits.start();
        Patience { limits, patience_ms, again_ms: now_ms + patience_ms }
    }

    /// Whether the answer has been waited for long enough. Then it is waited for anew, for longer.
    pub(crate) fn ends(&mut self, now_ms: u64) -> bool {
        let ends = self.again_ms <= now_ms;
        if ends {
            self.patience_ms = (2 * self.patience_ms).min(*self.limits.end());
            self.again_ms = now_ms + self.patience_ms;
        }
        ends
    }

    /// What was sent, or the answer, may have been lost: it ends at once, and is what it was at first after that.
    pub(crate) fn end(&mut self) {
        self.patience_ms = self.limits.start() / 2;
        self.again_ms = 0;
    }

    /// Somebody else is asked now.
    pub(crate) fn renew(&mut self, now_ms: u64) {
        self.again_ms = now_ms + self.patience_ms;
    }
}
