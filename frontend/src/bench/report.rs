//! What a benchmark found: a table with the facts it depends on, for people, as Markdown and as csv.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use crate::cli::{Failure, machine_memory, print, progress::thousands};

/// Where a report goes besides standard output.
#[derive(Args, Clone, Debug, Default)]
pub struct ReportArgs {
    /// Also write the report as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// Also write the report's table as csv
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Where a benchmark's reports and plots go besides standard output.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Also write the reports (Markdown and csv) and their plots (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

impl OutputArgs {
    /// Creates the directory, before anything is measured in vain.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(&self) -> Result<(), Failure> {
        let Some(directory) = &self.output else { return Ok(()) };
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::setup(format!("{}: {error}", directory.display())))
    }

    /// The files of a report.
    pub fn report(&self, name: &str) -> ReportArgs {
        let file = |ending: &str| Some(self.output.as_ref()?.join(format!("{name}.{ending}")));
        ReportArgs { markdown: file("md"), csv: file("csv") }
    }

    /// Makes and writes one more file, such as a plot, if files are wanted.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn write(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<String, Box<dyn Error>>,
    ) -> Result<(), Failure> {
        let Some(directory) = &self.output else { return Ok(()) };
        let text = make().map_err(|error| Failure::job(format!("cannot make {name}: {error}")))?;
        write(&directory.join(name), text)
    }
}

fn write(path: &Path, text: String) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::job(format!("cannot write {}: {error}", path.display())))
}

/// A report.
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    facts: Vec<(String, String)>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    remarks: Vec<String>,
}

impl Report {
    /// An empty table with these columns. The machine is the first fact.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Report {
        Report {
            title: title.into(),
            facts: vec![("machine".to_owned(), machine())],
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Adds something the numbers depend on.
    pub fn fact(&mut self, name: &str, value: impl std::fmt::Display) {
        self.facts.push((name.to_owned(), value.to_string()));
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has not a field for each column.
    pub fn row(&mut self, fields: Vec<String>) {
        assert_eq!(fields.len(), self.columns.len(), "a row has a field for each column");
        self.rows.push(fields);
    }

    /// Adds a sentence below the table.
    pub fn remark(&mut self, sentence: impl Into<String>) {
        self.remarks.push(sentence.into());
    }

    /// Prints the report, and writes it to the files that were asked for.
    ///
    /// # Errors
    /// When one of them cannot be written.
    pub fn publish(&self, to: &ReportArgs) -> Result<(), Failure> {
        print(&self.text())?;
        if let Some(path) = &to.markdown {
            write(path, self.markdown())?;
        }
        if let Some(path) = &to.csv {
            write(path, self.csv())?;
        }
        Ok(())
    }

    fn widths(&self) -> Vec<usize> {
        let width = |text: &String| text.chars().count();
        (0..self.columns.len())
            .map(|i| {
                self.rows.iter().map(|row| width(&row[i])).chain([width(&self.columns[i])]).max().unwrap_or(0)
            })
            .collect()
    }

    /// For a terminal: names to the left, numbers to the right.
    fn text(&self) -> String {
        let widths = self.widths();
        let line = |fields: &[String]| {
            let padded: Vec<String> = fields
                .iter()
                .zip(&widths)
                .enumerate()
                .map(
                    |(i, (field, &width))| {
                        if i == 0 { format!("{field:<width$}") } else { format!("{field:>width$}") }
                    },
                )
                .collect();
            format!("{}\n", padded.join("  ").trim_end())
        };
        let mut out = format!("{}\n", self.title);
        for (name, value) in &self.facts {
            out.push_str(&format!("  {name}: {value}\n"));
        }
        out.push('\n');
        out.push_str(&line(&self.columns));
        out.push_str(&line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>()));
        for row in &self.rows {
            out.push_str(&line(row));
        }
        if !self.remarks.is_empty() {
            out.push('\n');
        }
        for remark in &self.remarks {
            out.push_str(&format!("{remark}\n"));
        }
        out
    }

    fn markdown(&self) -> String {
        let line = |fields: &[String]| {
            let escaped: Vec<String> = fields.iter().map(|field| field.replace('|', "\\|")).collect();
            format!("| {} |\n", escaped.join(" | "))
        };
        let mut out = format!("## {}\n\n", self.title);
        for (name, value) in &self.facts {
            out.push_str(&format!("- {name}: {value}\n"));
        }
        out.push('\n');
        out.push_str(&line(&self.columns));
        let rule = self.columns.iter().enumerate().map(|(i, _)| if i == 0 { "---" } else { "---:" });
        out.push_str(&format!("|{}|\n", rule.collect::<Vec<_>>().join("|")));
        for row in &self.rows {
            out.push_str(&line(row));
        }
        for remark in &self.remarks {
            out.push_str(&format!("\n{remark}\n"));
        }
        out
    }

    fn csv(&self) -> String {
        let field = |text: &String| {
            if text.contains([',', '"', '\n']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.clone()
            }
        };
        let mut out = String::new();
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            out.push_str(&row.iter().map(field).collect::<Vec<_>>().join(","));
            out.push('\n');
        }
        out
    }
}

/// Samples of a duration.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Adds samples.
    pub fn extend(&mut self, samples: impl IntoIterator<Item = Duration>) {
        self.0.extend(samples);
    }

    /// The sample that `percent` of all do not exceed (nearest rank); zero when there is none.
    pub fn percentile(&mut self, percent: usize) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

/// The median; the mean of the two in the middle when their number is even, 0 when there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// A duration in milliseconds.
pub fn milliseconds(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

/// A number with so many decimal places; without any from 1,000 on.
pub fn number(number: f64, places: usize) -> String {
    if number < 1_000.0 { format!("{number:.places$}") } else { thousands(number as u64) }
}

/// How many times `numerator` is `denominator`.
pub fn ratio(numerator: f64, denominator: f64) -> String {
    if denominator > 0.0 { format!("{:.2}x", numerator / denominator) } else { "-".to_owned() }
}

/// The processor, its cores and the memory.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let model = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = machine_memory()
        .map_or(String::new(), |bytes| format!(", {:.0} GiB memory", bytes as f64 / 2_f64.powi(30)));
    let build = if cfg!(debug_assertions) { ", NOT a release build" } else { "" };
    format!("{model}, {cores} cores{memory}, {}{build}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(50), Duration::ZERO);
        latencies.extend((1..=200).rev().map(Duration::from_millis));
        assert_eq!(latencies.percentile(50), Duration::from_millis(100));
        assert_eq!(latencies.percentile(99), Duration::from_millis(198));
        assert_eq!(latencies.percentile(100), Duration::from_millis(200));
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn a_report_has_three_forms() {
        let mut report = Report::new("title", &["system", "rate"]);
        report.facts = vec![("rows".to_owned(), "7".to_owned())];
        report.row(vec!["a, b".to_owned(), "10".to_owned()]);
        report.remark("done");
        assert_eq!(report.text(), "title\n  rows: 7\n\nsystem  rate\n------  ----\na, b      10\n\ndone\n");
        assert_eq!(
            report.markdown(),
            "## title\n\n- rows: 7\n\n| system | rate |\n|---|---:|\n| a, b | 10 |\n\ndone\n"
        );
        assert_eq!(report.csv(), "system,rate\n\"a, b\",10\n");
    }
}
