//! What PostgreSQL 15 answers to the same statements.
//!
//! `statements.recorded` holds what PostgreSQL 15 printed over empty tables: columns, rows, and errors with SQLSTATE,
//! position, detail and hint. `deviations` holds the statements for which Carousel answers otherwise, with its answer.

use std::{collections::BTreeMap, path::Path};

use crate::support::{catalog, outcome};

type Outcomes = Vec<(String, Vec<String>)>;

/// Statements with the indented lines behind them.
fn read(name: &str) -> Outcomes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/statements").join(name);
    let text = std::fs::read_to_string(&path).expect("a file of the repository");
    let mut outcomes: Outcomes = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with("--")) {
        match (line.strip_prefix("    "), outcomes.last_mut()) {
            (Some(outcome), Some((_, lines))) => lines.push(outcome.trim_end().to_owned()),
            _ => outcomes.push((line.to_owned(), Vec::new())),
        }
    }
    outcomes
}

#[test]
fn statements_lead_to_what_postgresql_answers() {
    let schema =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/statements/schema.sql"));
    let catalog = catalog(&schema.expect("a file of the repository"));
    let mut deviations: BTreeMap<String, Vec<String>> = read("deviations").into_iter().collect();
    let mut wrong = String::new();
    for (sql, recorded) in read("statements.recorded") {
        let found: Vec<String> =
            outcome(&catalog, &sql).iter().map(|line| line.trim_end().to_owned()).collect();
        let expected = deviations.remove(&sql).unwrap_or(recorded);
        // An error while it runs comes after the columns; rows of tables are not the planner's.
        let fails = expected.iter().any(|line| line.starts_with("error"));
        let asks = !found.iter().any(|line| line.starts_with("row: "));
        let is_hidden =
            |line: &String| (fails && line.starts_with("columns: ")) || (asks && line.starts_with("row: "));
        let expected: Vec<String> = expected.into_iter().filter(|line| !is_hidden(line)).collect();
        if found != expected {
            wrong.push_str(&format!("{sql}\n  expected {expected:#?}\n  found {found:#?}\n"));
        }
    }
    wrong.extend(deviations.keys().map(|sql| format!("no such statement: {sql}\n")));
    assert!(wrong.is_empty(), "{wrong}");
}
