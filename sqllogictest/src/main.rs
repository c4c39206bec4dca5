//! Runs `.slt` files against the server at an URL, or records them from it.

use std::{path::PathBuf, process::ExitCode};

use carousel_sqllogictest::{record, suite};
use clap::Parser;

/// Runs sqllogictest files against a server that speaks the Postgres protocol.
#[derive(Parser)]
struct Options {
    /// The server, a postgres:// URL or a libpq connection string.
    #[arg(long)]
    url: String,
    /// Take the files for scripts of SQL statements and write each with the server's answers to a .slt file beside it.
    #[arg(long)]
    record: bool,
    /// Stop describing failures of a file after this many.
    #[arg(long, default_value_t = 20)]
    show: usize,
    /// Files to run.
    files: Vec<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let mut failed = 0;
    for file in &options.files {
        if options.record {
            let recorded = match std::fs::read_to_string(file) {
                Ok(script) => record::record(&options.url, &script).await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let written = recorded
                .and_then(|text| std::fs::write(file.with_extension("slt"), text).map_err(|e| e.to_string()));
            if let Err(error) = written {
                eprintln!("{}: {error}", file.display());
                failed += 1;
            }
            continue;
        }
        let outcome = suite::run_file(&options.url, file).await;
        eprintln!("{}: {} records, {} failed", file.display(), outcome.records, outcome.failures.len());
        for failure in outcome.failures.iter().take(options.show) {
            eprintln!("{failure}");
        }
        failed += outcome.failures.len();
    }
    ExitCode::from(u8::from(failed > 0))
}
