//! Runs `.slt` files against the server at an URL, or records them from it.

use std::{path::PathBuf, process::ExitCode};

use carousel_sqllogictest::{
    oracle::check::{self, run_sequence},
    record, session, suite,
};
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
    /// A label for `skipif` and `onlyif`, such as carousel; may be given several times.
    #[arg(long)]
    label: Vec<String>,
    /// Stop describing failures of a file after this many.
    #[arg(long, default_value_t = 20)]
    show: usize,
    /// Send this many generated sequences of statements instead, and compare with the row-by-row evaluator.
    #[arg(long, default_value_t = 0)]
    generate: u64,
    /// First seed of the generated sequences.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Statements of a generated sequence.
    #[arg(long, default_value_t = 60)]
    statements: usize,
    /// Let generated tables have a partitioning clause, which PostgreSQL does not know in this form.
    #[arg(long)]
    partitioning: bool,
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
        let outcome = suite::run_file(&options.url, file, &options.label).await;
        eprintln!("{}: {} records, {} failed", file.display(), outcome.records, outcome.failures.len());
        for failure in outcome.failures.iter().take(options.show) {
            eprintln!("{failure}");
        }
        failed += outcome.failures.len();
    }
    failed += generated(&options).await;
    ExitCode::from(u8::from(failed > 0))
}

/// Runs the generated sequences and gives the number of those that failed.
async fn generated(options: &Options) -> usize {
    let mut failed = 0;
    let checked = check::Options { statements: options.statements, partitioning: options.partitioning };
    for seed in options.seed..options.seed.saturating_add(options.generate) {
        let outcome = match session::connect(&options.url).await {
            Ok((client, _)) => run_sequence(&client, seed, checked).await,
            Err(error) => Err(error.to_string()),
        };
        if let Err(failure) = outcome {
            failed += 1;
            if failed <= options.show {
                eprintln!("{failure}\n");
            }
        }
    }
    if options.generate > 0 {
        eprintln!("{} sequences, {failed} failed", options.generate);
    }
    failed
}
