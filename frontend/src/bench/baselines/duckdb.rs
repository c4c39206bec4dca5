//! DuckDB: its Python package, driven by a script of ours in a process of its own.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;

use crate::{
    bench::{
        measured::{Turn, patience},
        sql::{Hand, Question, Questions},
    },
    cli::Failure,
    ticket::arrow_schema,
};

const SCRIPT: &str = include_str!("duckdb_clients.py");

/// A DuckDB with the Ticket table in memory.
pub struct DuckDb {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// DuckDB's version.
    pub version: String,
}

fn failed(reason: impl std::fmt::Display) -> Failure {
    Failure::job(format!("DuckDB: {reason}"))
}

impl Drop for DuckDb {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to be done.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl DuckDb {
    /// Whether this Python has the package; says why not.
    ///
    /// # Errors
    /// What Python says.
    pub fn find(python: &Path) -> Result<(), String> {
        let output = Command::new(python)
            .args(["-c", "import duckdb"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run {}: {error}", python.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(()),
            false => Err(said.lines().last().unwrap_or("the package duckdb cannot be imported").to_owned()),
        }
    }

    /// Starts a process and gives it the rows, by way of a Parquet file.
    ///
    /// # Errors
    /// What DuckDB or the system says.
    pub fn start(
        python: &Path,
        batches: &[RecordBatch],
        questions: &Questions,
        threads: u32,
    ) -> Result<DuckDb, Failure> {
        let file = tempfile::NamedTempFile::with_suffix(".parquet").map_err(failed)?;
        let mut writer = ArrowWriter::try_new(file.as_file(), arrow_schema(), None).map_err(failed)?;
        for batch in batches {
            writer.write(batch).map_err(failed)?;
        }
        writer.close().map_err(failed)?;
        let mut process = Command::new(python)
            .args(["-c", SCRIPT])
            .arg(file.path())
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(failed("it has no pipes"));
        };
        let mut duckdb = DuckDb { process, input, output: BufReader::new(output), version: String::new() };
        let greeting = duckdb.line()?;
        let (version, rows) = greeting.split_once(' ').unwrap_or_default();
        let expected: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if rows != expected.to_string() {
            return Err(failed(format!("it has {rows} rows instead of {expected}")));
        }
        version.clone_into(&mut duckdb.version);
        let mut command = format!("questions {}\n", questions.all().len());
        for Question { sql, parameters, answer, .. } in questions.all() {
            command.push_str(&format!("{}\t{sql}", answer.len()));
            for parameter in parameters {
                command.push('\t');
                command.push_str(parameter);
            }
            command.push('\n');
        }
        duckdb.tell(&command)?;
        duckdb.line()?;
        Ok(duckdb)
    }

    /// The answer to a question, by its place.
    ///
    /// # Errors
    /// DuckDB's.
    pub fn answer(&mut self, place: usize) -> Result<Vec<String>, Failure> {
        self.tell(&format!("answer {place}\n"))?;
        let rows: usize = self.line()?.parse().map_err(failed)?;
        let mut answer = (0..rows).map(|_| self.line()).collect::<Result<Vec<_>, _>>()?;
        answer.sort_unstable();
        Ok(answer)
    }

    /// Lets clients ask for a while.
    ///
    /// # Errors
    /// DuckDB's.
    pub fn turn(&mut self, hands: &[Hand], duration: Duration) -> Result<Turn, Failure> {
        let (seconds, more) = (duration.as_secs_f64(), patience(duration).as_secs_f64());
        let mut command = format!("turn {seconds},{more},{}\n", hands.len());
        for hand in hands {
            let places: Vec<usize> = hand.questions().collect();
            let steps = hand.cycle().map(|step| places[hand.pick(step)].to_string());
            command.push_str(&steps.collect::<Vec<_>>().join(" "));
            command.push('\n');
        }
        self.tell(&command)?;
        let elapsed = self.line()?;
        if let Some(error) = elapsed.strip_prefix("error ") {
            return Err(failed(error));
        }
        let elapsed = Duration::from_secs_f64(elapsed.parse().map_err(failed)?);
        let mut latencies = || {
            let micros = self.line()?;
            let latencies = micros.split_whitespace().map(|micros| micros.parse().map(Duration::from_micros));
            latencies.collect::<Result<Vec<_>, _>>().map_err(failed)
        };
        Ok(Turn { latencies: latencies()?, cancelled: latencies()?, elapsed, ..Turn::default() })
    }

    fn tell(&mut self, command: &str) -> Result<(), Failure> {
        self.input.write_all(command.as_bytes()).and_then(|()| self.input.flush()).map_err(failed)
    }

    /// The next line of its output. What it has to say of an error is on the user's terminal already.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line).map_err(failed)? {
            0 => Err(failed("its process has ended")),
            _ => {
                line.truncate(line.trim_end_matches('\n').len());
                Ok(line)
            }
        }
    }
}
