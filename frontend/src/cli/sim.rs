//! `carousel sim`: the whole cluster on one thread from a seed, many times over.

use std::{
    io::{self, Write},
    ops::Range,
    sync::{Mutex, PoisonError},
};

use carousel_cluster::sim::{Failure as Failed, Options, Report, run_seeds};
use clap::Args;

use super::{
    Failure, cores,
    progress::{Progress, Unit},
};

/// What is simulated.
#[derive(Args, Debug)]
pub struct SimArgs {
    /// How many seeds to run, each a cluster of its own
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Print everything that happened in runs that fail, or that went well when there is one seed only
    #[arg(long)]
    trace: bool,
    /// Statements and other operations in each run
    #[arg(long, value_name = "N", default_value_t = Options::default().operations)]
    operations: usize,
    /// Faults in each run
    #[arg(long, value_name = "N", default_value_t = Options::default().faults)]
    faults: usize,
    /// Runs at a time [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
}

impl SimArgs {
    /// Runs the seeds; fails when one of them does.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let seeds = self.range()?;
        let options = Options {
            operations: self.operations,
            faults: self.faults,
            trace: self.trace,
            ..Options::default()
        };
        let threads = self.threads.unwrap_or_else(cores);
        let progress = Mutex::new(Progress::new("simulating", Unit::Seeds, Some(self.seeds)));
        let (report, failures) = run_seeds(seeds, options, threads as usize, |_, outcome| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Ok(report) if self.seeds == 1 => progress.suspend(|| self.tell_trace(&report.trace)),
                Ok(_) => {}
                Err(failed) => progress.suspend(|| self.tell(failed)),
            }
            progress.advance(1);
        });
        let elapsed = progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
        self.summarise(&report, elapsed);
        match failures.len() {
            0 => Ok(()),
            failed => Err(Failure::job(format!("{failed} of {} seeds fail", self.seeds))),
        }
    }

    fn range(&self) -> Result<Range<u64>, Failure> {
        let end = self.seed.checked_add(self.seeds);
        end.map(|end| self.seed..end).ok_or_else(|| Failure::setup("there are no seeds beyond 2^64"))
    }

    /// Tells of a seed that fails, and how to see it again.
    fn tell(&self, failed: &Failed) {
        self.tell_trace(&failed.trace);
        let mut again = format!("carousel sim --seed {} --seeds 1 --trace", failed.seed);
        let usual = Options::default();
        for (name, value, usual) in
            [("operations", self.operations, usual.operations), ("faults", self.faults, usual.faults)]
        {
            if value != usual {
                again.push_str(&format!(" --{name} {value}"));
            }
        }
        tell(&format!("{failed}\n    {again}"));
    }

    fn tell_trace(&self, trace: &[String]) {
        if self.trace {
            trace.iter().for_each(|line| tell(line));
        }
    }

    fn summarise(&self, report: &Report, elapsed: std::time::Duration) {
        let [operations, faults, reconfigurations] = report.fewest.unwrap_or_default();
        tell(&format!(
            "{} seeds in {:.1} s; those that went well (each with {operations} operations, {faults} faults and \
             {reconfigurations} reconfigurations or more): {} operations, {} answers, {} ordered messages, {} faults, \
             {} reconfigurations ({} suspicions, {} for full disks, and {} changes by super processes; {} gave rows up), {} changes of the routers, \
             {} checkpoints, {} events, {} s of simulated time; hash of their traces {:016x}",
            self.seeds,
            elapsed.as_secs_f64(),
            report.operations,
            report.answers,
            report.messages,
            report.faults,
            report.reconfigurations,
            report.suspicions,
            report.full_disks,
            report.healings,
            report.losses,
            report.router_changes,
            report.checkpoints,
            report.events,
            report.virtual_us / 1_000_000,
            report.trace_hash,
        ));
    }
}

/// A line on stdout. Whoever reads may stop reading.
fn tell(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}
