//! Progress of a long job on stderr: a bar on a terminal, plain lines elsewhere.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Rows.
    Rows,
    /// Bytes.
    Bytes,
    /// Runs of the simulator.
    Seeds,
}

/// A job's progress.
#[derive(Debug)]
pub struct Progress {
    what: String,
    unit: Unit,
    total: Option<u64>,
    done: u64,
    /// Tenths of the total that have been told.
    told: u64,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins a job called `what` ("loading ticket") with so much to do, if that is known.
    pub fn new(what: impl Into<String>, unit: Unit, total: Option<u64>) -> Progress {
        let what = what.into();
        let bar = match total {
            Some(total) => ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()),
            None => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
        };
        let bar = (!bar.is_hidden()).then(|| {
            let counts = match unit {
                Unit::Rows => "{human_pos}/{human_len} rows, {per_sec}, {eta} left",
                Unit::Seeds => "{human_pos}/{human_len} seeds, {per_sec}, {eta} left",
                Unit::Bytes => "{binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
            };
            let template = match total {
                Some(_) => format!("{{msg}} [{{bar:32}}] {{percent:>3}}% {counts}"),
                None => "{msg} {spinner} {binary_bytes}, {binary_bytes_per_sec}".to_owned(),
            };
            if let Ok(style) = ProgressStyle::with_template(&template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(what.clone());
            bar
        });
        Progress { what, unit, total, done: 0, told: 0, started: Instant::now(), bar }
    }

    /// So much more has been done.
    pub fn advance(&mut self, more: u64) {
        self.done += more;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        } else if let Some(total) = self.total.filter(|total| *total > 0) {
            let tenths = self.done * 10 / total;
            if tenths > self.told {
                self.told = tenths;
                let unit = match self.unit {
                    Unit::Rows => "rows",
                    Unit::Bytes => "bytes",
                    Unit::Seeds => "seeds",
                };
                eprintln!("{}: {}% ({} of {total} {unit})", self.what, tenths * 10, self.done);
            }
        }
    }

    /// Does something while the bar is away, so that it can print.
    pub fn suspend(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Ends the job; the bar goes away.
    pub fn finish(self) -> std::time::Duration {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // A job that failed leaves no half-drawn bar in front of its message.
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A count with thousands separated, for people.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The line that tells how fast rows were loaded.
pub fn summary(rows: u64, elapsed: std::time::Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = if seconds > 0.0 { (rows as f64 / seconds) as u64 } else { rows };
    format!("{} rows in {seconds:.2} s, {} rows/s", thousands(rows), thousands(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_readable() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
        assert_eq!(summary(3000, std::time::Duration::from_secs(2)), "3,000 rows in 2.00 s, 1,500 rows/s");
    }
}
