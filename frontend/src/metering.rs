//! What a front end tells about itself in numbers, by the `metrics` facade: whoever runs the process chooses where the
//! numbers go.

use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

/// The name of the statements' durations.
const STATEMENT_SECONDS: &str = "carousel_frontend_statement_seconds";

/// The first words of command tags that are told apart; all others are `other`.
const KINDS: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "COPY"];

/// Says what all numbers of a process mean, to whoever takes them.
pub fn describe() {
    carousel_cluster::metering::describe();
    describe_histogram!(
        STATEMENT_SECONDS,
        "Seconds from the receipt of a statement to its answer, by its kind"
    );
    describe_counter!("carousel_frontend_failed_statements_total", "Statements that have failed");
    describe_gauge!("carousel_frontend_sessions", "Sessions of clients");
}

/// A front end's numbers.
pub struct Meter {
    seconds: [Histogram; KINDS.len()],
    other_seconds: Histogram,
    failed: Counter,
    sessions: Gauge,
}

impl Meter {
    /// Numbers that begin at zero.
    pub fn new() -> Meter {
        let seconds = |kind: &str| histogram!(STATEMENT_SECONDS, "kind" => kind.to_ascii_lowercase());
        Meter {
            seconds: KINDS.map(seconds),
            other_seconds: seconds("other"),
            failed: counter!("carousel_frontend_failed_statements_total"),
            sessions: gauge!("carousel_frontend_sessions"),
        }
    }

    /// A statement has been answered, with this command tag and after so long.
    pub fn answered(&self, tag: &str, time: Duration) {
        let kind = tag.split(' ').next().unwrap_or_default();
        let seconds = KINDS.iter().position(|known| *known == kind).map(|place| &self.seconds[place]);
        seconds.unwrap_or(&self.other_seconds).record(time.as_secs_f64());
    }

    /// A statement has failed.
    pub fn failed(&self) {
        self.failed.increment(1);
    }

    /// A session begins; it has ended when what is returned is dropped.
    pub fn session(&self) -> impl Drop + use<> {
        struct Running(Gauge);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.decrement(1.0);
            }
        }
        self.sessions.increment(1.0);
        Running(self.sessions.clone())
    }
}
