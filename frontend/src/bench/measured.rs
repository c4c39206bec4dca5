//! What clients did, and what that says of the system they asked.

use std::time::Duration;

use super::report::{Latencies, median, milliseconds, number};

/// How long after a turn of so long the last answers are waited for; what is not answered by then is cancelled.
pub fn patience(duration: Duration) -> Duration {
    duration / 2
}

/// The rule of [`patience`] for readers of a report.
pub fn cancelled(duration: Duration) -> String {
    format!(
        "Nothing is asked after {} s, and what is not answered {} s later is cancelled: it counts among the percentiles \
         with the time it had taken, as does the first statement of a client that did not come to ask; those that \
         are lower bounds therefore are marked.",
        duration.as_secs_f64(),
        patience(duration).as_secs_f64()
    )
}

/// What clients did.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// Of each statement, from sending it to the end of its answer.
    pub latencies: Vec<Duration>,
    /// How long each of the statements had taken that were cancelled.
    pub cancelled: Vec<Duration>,
    /// From the first statement to the end of the last.
    pub elapsed: Duration,
    /// Time of a processor that the clients took themselves, where it is known.
    pub clients_cpu: Duration,
}

impl Turn {
    /// Adds what other clients did at the same time.
    pub fn add(&mut self, other: Turn) {
        self.latencies.extend(other.latencies);
        self.cancelled.extend(other.cancelled);
        self.clients_cpu += other.clients_cpu;
    }

    /// Statements that ended in a second.
    pub fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn clients_share(&self) -> f64 {
        self.clients_cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What a system is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carousel.
    Carousel,
    /// A baseline that looks at every row.
    Scanning,
    /// A baseline with an index on every column that is asked for.
    Indexed,
}

/// What a system did for so many clients: medians of the rounds.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its name.
    pub system: String,
    /// What it is compared as.
    pub kind: Kind,
    /// How many clients asked at the same time.
    pub clients: u32,
    /// Statements that ended in a second.
    pub per_second: f64,
    /// Half of the statements took no longer.
    pub p50: Duration,
    /// 90 % of the statements took no longer.
    pub p90: Duration,
    /// 99 % of the statements took no longer.
    pub p99: Duration,
    /// Statements that ended in all rounds.
    pub statements: usize,
    /// Statements that were cancelled.
    pub cancelled: usize,
    /// The share of a core that the clients took themselves at most.
    pub clients_share: f64,
    /// The shortest that a statement had taken that was cancelled.
    cancelled_after: Duration,
}

impl Measured {
    /// Sums up the rounds. A statement that was cancelled counts among the percentiles with the time that it had taken:
    /// they are lower bounds from the shortest of these on.
    pub fn new(system: &str, kind: Kind, clients: u32, turns: &[Turn]) -> Measured {
        let mut rounds: Vec<Latencies> = turns
            .iter()
            .map(|turn| {
                let mut latencies = Latencies::default();
                latencies.extend(turn.latencies.iter().chain(&turn.cancelled).copied());
                latencies
            })
            .collect();
        let mut percentile = |percent: usize| {
            let of_rounds: Vec<f64> =
                rounds.iter_mut().map(|round| round.percentile(percent).as_secs_f64()).collect();
            Duration::from_secs_f64(median(&of_rounds))
        };
        let cancelled = || turns.iter().flat_map(|turn| &turn.cancelled);
        Measured {
            system: system.to_owned(),
            kind,
            clients,
            per_second: median(&turns.iter().map(Turn::per_second).collect::<Vec<_>>()),
            p50: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
            statements: turns.iter().map(|turn| turn.latencies.len()).sum(),
            cancelled: cancelled().count(),
            clients_share: turns.iter().map(Turn::clients_share).fold(0.0, f64::max),
            cancelled_after: cancelled().min().copied().unwrap_or(Duration::MAX),
        }
    }

    /// For a report: clients, rate, p50, p90, p99.
    pub fn fields(&self) -> [String; 5] {
        let bound = |percentile: Duration| {
            let sign = if percentile < self.cancelled_after { "" } else { "> " };
            format!("{sign}{}", milliseconds(percentile))
        };
        let clients = number(self.clients.into(), 0);
        let [p50, p90, p99] = [self.p50, self.p90, self.p99].map(bound);
        [clients, number(self.per_second, 1), p50, p90, p99]
    }
}

/// The best rate of one kind of systems, at whatever number of clients; `None` when there is none.
pub fn best_rate<'a>(measured: impl IntoIterator<Item = &'a Measured>, kind: Kind) -> Option<f64> {
    measured.into_iter().filter(|point| point.kind == kind).map(|point| point.per_second).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_statements_make_percentiles_lower_bounds() {
        let seconds = |all: &[u64]| all.iter().copied().map(Duration::from_secs).collect();
        let elapsed = Duration::from_secs(10);
        let turn = Turn {
            latencies: seconds(&[1, 2, 3, 4, 5]),
            elapsed,
            cancelled: seconds(&[9]),
            ..Turn::default()
        };
        let measured = Measured::new("it", Kind::Indexed, 1024, &[turn]);
        assert_eq!(measured.fields(), ["1,024", "0.5", "3000.00 ms", "> 9000.00 ms", "> 9000.00 ms"]);
        assert_eq!((measured.statements, measured.cancelled), (5, 1));
        let nothing = Measured::new("it", Kind::Indexed, 1, &[Turn { elapsed, ..Turn::default() }]);
        assert_eq!(nothing.fields()[1..3], ["0.0", "0.00 ms"]);
    }
}
