//! `carousel bench`: how fast Carousel is, beside what else could do the job, in the same run and on the same rows.
//!
//! A benchmark prints ratios, medians and percentiles with everything they depend on; it never passes or fails for a
//! time. It does fail for a wrong answer: answers are checked against an evaluator that shares no code with Carousel.

mod baselines;
mod chart;
mod copy;
mod draw;
mod elastic;
mod failover;
mod measured;
mod memory;
mod order;
mod processes;
mod report;
mod rows;
mod scan;
mod sql;
mod target;
mod targets;

use clap::Subcommand;

use crate::cli::{Failure, StopSignals};

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// COPY of ticket rows as csv, beside PostgreSQL with its defaults
    Copy(copy::CopyArgs),
    /// Separate processes whose ring changes under load: how fast rows are copied, what statements notice
    Elastic(elastic::ElasticArgs),
    /// Separate processes that are killed under load: how long writes stand still, which reads fail
    Failover(failover::FailoverArgs),
    /// Memory that ticket rows take in a replica
    Memory(memory::MemoryArgs),
    /// Small writes and reads through separate router and storage processes, beside a cluster of three etcds
    Order(order::OrderArgs),
    /// The engine alone: thousands of operations that share a scan, without SQL, routers and network
    Scan(scan::ScanArgs),
    /// The whole stack: selective SELECTs on random columns over many connections, beside DataFusion, DuckDB and
    /// PostgreSQL
    Sql(Box<sql::SqlArgs>),
}

impl BenchCommand {
    /// Measures.
    ///
    /// # Errors
    /// When a server cannot be started or reached, or an answer is wrong.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            BenchCommand::Copy(args) => args.run().await,
            BenchCommand::Elastic(args) => unless_stopped(args.run()).await,
            BenchCommand::Failover(args) => unless_stopped(args.run()).await,
            BenchCommand::Memory(args) => args.run().await,
            BenchCommand::Order(args) => unless_stopped(args.run()).await,
            BenchCommand::Scan(args) => args.run().await,
            BenchCommand::Sql(args) => args.run().await,
        }
    }
}

/// A benchmark that starts processes, which end with it where a signal stops it.
async fn unless_stopped(measuring: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let mut signals = StopSignals::new()?;
    tokio::select! {
        ended = measuring => ended,
        () = signals.next() => Err(Failure::job("stopped by a signal")),
    }
}
