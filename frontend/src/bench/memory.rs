//! Memory that ticket rows take in a replica.

use std::time::Duration;

use clap::Args;

use super::{
    report::{Report, ReportArgs},
    target::TargetArgs,
};
use crate::{
    cli::{
        Failure,
        progress::{Progress, Unit, thousands},
        server::Server,
    },
    load::{TicketArgs, connect, create_ticket, load_ticket},
    ticket::TABLE,
};

/// Options of `carousel bench memory`.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// Rows to hold
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=crate::ticket::MAX_ROWS))]
    rows: u64,

    /// Seed of the rows
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    report: ReportArgs,
}

impl MemoryArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        // One storage process: what it holds is one replica of the whole table.
        let target = TargetArgs { url: None, storage: Some(1), threads: None }.open().await?;
        let client = connect(&target.config).await?;
        create_ticket(&client, true).await?;
        let before = resident_bytes();
        let ticket = TicketArgs { rows: self.rows, seed: self.seed };
        load_ticket(&client, &ticket, Progress::new(format!("loading {TABLE}"), Unit::Rows, Some(self.rows)))
            .await?;
        let Some(server) = &target.server else {
            return Err(Failure::job("the server is not in this process"));
        };
        let used = settled(server).await;
        let after = resident_bytes();
        let mut report = Report::new(
            "Memory of a replica of the table ticket",
            &["measure", "bytes", "MB", "bytes a row"],
        );
        report.fact("rows", thousands(self.rows));
        report.fact("Carousel", &target.description);
        let mut row = |name: &str, bytes: u64| {
            report.row(vec![
                name.to_owned(),
                thousands(bytes),
                format!("{:.1}", bytes as f64 / 1e6),
                format!("{:.1}", bytes as f64 / self.rows as f64),
            ]);
        };
        row("told by the storage process", used);
        if let (Some(before), Some(after)) = (before, after) {
            row("growth of the process's resident memory", after.saturating_sub(before));
        }
        report.remark(
            "The growth also has what loading left behind: buffers, the log's cache, memory that the allocator keeps.",
        );
        report.publish(&self.report)?;
        drop(client);
        target.close().await
    }
}

/// What the storage process tells about its memory, once it tells the same twice.
async fn settled(server: &Server) -> u64 {
    let mut told = server.memory_used();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let again = server.memory_used();
        if again == told && told > 0 {
            break;
        }
        told = again;
    }
    told
}

/// Resident memory of this process, where the system tells it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}
