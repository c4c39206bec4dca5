//! What clients did, and what that says of the system they asked.

use std::time::Duration;

use super::report::{Latencies, median};

/// What clients did.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// Of each statement, from sending it to the end of its answer.
    pub latencies: Vec<Duration>,
    /// From the first statement to the end of the last.
    pub elapsed: Duration,
    /// Time of a processor that the clients took themselves, where it is known.
    pub clients_cpu: Duration,
}

/// What a system did for so many clients: medians of the rounds.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its name.
    pub system: String,
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
}

impl Measured {
    /// Sums up the rounds.
    pub fn new(system: &str, clients: u32, turns: &[Turn]) -> Measured {
        let rates: Vec<f64> =
            turns.iter().map(|turn| turn.latencies.len() as f64 / turn.elapsed.as_secs_f64()).collect();
        let percentile = |percent: usize| {
            let of_rounds: Vec<f64> = turns
                .iter()
                .map(|turn| {
                    let mut latencies = Latencies::default();
                    latencies.extend(turn.latencies.iter().copied());
                    latencies.percentile(percent).as_secs_f64()
                })
                .collect();
            Duration::from_secs_f64(median(&of_rounds))
        };
        Measured {
            system: system.to_owned(),
            clients,
            per_second: median(&rates),
            p50: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
            statements: turns.iter().map(|turn| turn.latencies.len()).sum(),
        }
    }
}
