//! Running `.slt` files.
//!
//! The format is the sqllogictest crate's, with these conventions: the values of a row are separated by `|` as in
//! `psql -A` (so that blanks inside values are compared, too), NULL and the empty string are written `NULL` and
//! `(empty)`, and the type letters of a query are checked strictly (see [`crate::session::ResultType`]).
//!
//! The answers are PostgreSQL 15's. Where Carousel does not give them yet, the record is marked `skipif carousel` and
//! followed by one marked `onlyif carousel` with what it does instead.

use std::path::{Path, PathBuf};

use sqllogictest::{Record, Runner, strict_column_validator};

use crate::session::Session;

/// What stands between the values of a row.
pub const SEPARATOR: &str = "|";

/// The `.slt` files of a folder in the order of their names.
pub fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|e| e.path()))
        .filter(|path| path.as_ref().map_or(true, |p| p.extension().is_some_and(|e| e == "slt")))
        .collect::<Result<Vec<_>, _>>()?;
    files.sort();
    Ok(files)
}

/// What became of a file.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Statements and queries that ran.
    pub records: usize,
    /// One text for each record whose answer was not the expected one.
    pub failures: Vec<String>,
}

/// Runs every record of a file over fresh connections to `url`, going on after a failure. `labels` choose between
/// records marked `skipif` and `onlyif`.
pub async fn run_file(url: &str, file: &Path, labels: &[String]) -> Outcome {
    let mut outcome = Outcome { records: 0, failures: Vec::new() };
    let records = match sqllogictest::parse_file(file) {
        Ok(records) => records,
        Err(error) => {
            outcome.failures.push(error.to_string());
            return outcome;
        }
    };
    let mut runner = Runner::new(|| Session::connect(url));
    for label in labels {
        runner.add_label(label);
    }
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(|text| text.trim_end().to_owned());
    runner.with_validator(|normalizer, actual, expected| {
        let actual = actual.iter().map(|row| normalizer(&row.join(SEPARATOR)));
        actual.eq(expected.iter().map(normalizer))
    });
    for record in records {
        if matches!(record, Record::Halt { .. }) {
            break;
        }
        outcome.records += usize::from(matches!(record, Record::Statement { .. } | Record::Query { .. }));
        if let Err(error) = runner.run_async(record).await {
            outcome.failures.push(error.to_string());
        }
    }
    runner.shutdown_async().await;
    outcome
}
