//! `carousel bench`: how fast Carousel is, beside what else could do the job, in the same run and on the same rows.
//!
//! A benchmark prints ratios, medians and percentiles with everything they depend on; it never passes or fails for a
//! time. It does fail for a wrong answer: answers are checked against an evaluator that shares no code with Carousel.

mod baselines;
mod copy;
mod memory;
mod report;
mod scan;
mod select;
mod target;
mod workload;

use clap::Subcommand;

use crate::cli::Failure;

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// COPY of ticket rows as csv, beside PostgreSQL with its defaults
    Copy(copy::CopyArgs),
    /// Memory that ticket rows take in a replica
    Memory(memory::MemoryArgs),
    /// The engine alone: thousands of operations that share a scan, without SQL, routers and network
    Scan(scan::ScanArgs),
    /// Selective SELECTs with 2 to 5 equalities on random columns, beside DataFusion over the same rows in memory
    Select(select::SelectArgs),
}

impl BenchCommand {
    /// Measures.
    ///
    /// # Errors
    /// When a server cannot be started or reached, or an answer is wrong.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            BenchCommand::Copy(args) => args.run().await,
            BenchCommand::Memory(args) => args.run().await,
            BenchCommand::Scan(args) => args.run().await,
            BenchCommand::Select(args) => args.run().await,
        }
    }
}
