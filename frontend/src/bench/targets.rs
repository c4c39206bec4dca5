//! What a benchmark is to reach, beside what was measured.

use super::report::{Report, ReportArgs, number, ratio};
use crate::cli::Failure;

/// A table of targets.
pub struct Targets(Report);

impl Targets {
    /// No targets yet.
    pub fn new(title: &str) -> Targets {
        Targets(Report::new(title, &["what", "measured", "wanted", "measured to wanted", "reached"]))
    }

    /// Something of which more is better. `measured` is `None` when this run has not measured it.
    pub fn at_least(&mut self, what: impl Into<String>, measured: Option<f64>, wanted: f64) {
        self.row(what.into(), measured, ("at least", wanted), |measured| measured >= wanted);
    }

    /// Something of which less is better.
    pub fn at_most(&mut self, what: impl Into<String>, measured: Option<f64>, wanted: f64) {
        self.row(what.into(), measured, ("at most", wanted), |measured| measured <= wanted);
    }

    fn row(
        &mut self,
        what: String,
        measured: Option<f64>,
        (bound, wanted): (&str, f64),
        is_reached: impl FnOnce(f64) -> bool,
    ) {
        let [measured, to_wanted, reached] = match measured {
            Some(measured) => {
                let reached = if is_reached(measured) { "yes" } else { "no" };
                [number(measured, 3), ratio(measured, wanted), reached.to_owned()]
            }
            None => ["not measured", "-", "-"].map(str::to_owned),
        };
        self.0.row(vec![what, measured, format!("{bound} {}", number(wanted, 1)), to_wanted, reached]);
    }

    /// Prints the table, and writes it to the files that were asked for.
    ///
    /// # Errors
    /// When one of them cannot be written.
    pub fn publish(&self, to: &ReportArgs) -> Result<(), Failure> {
        self.0.publish(to)
    }
}
