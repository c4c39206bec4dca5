//! A csv file, sent to the server as it is: the server parses it, so its line numbers are the file's.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use clap::Args;
use futures::stream;
use tokio::io::AsyncReadExt;

use super::{
    connection::ConnectArgs,
    copy::{Chunk, copy, explain_file, quote_identifier, quote_literal},
};
use crate::cli::{
    Failure,
    progress::{Progress, Unit, summary},
};

/// Bytes read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Options of `carousel load csv`.
#[derive(Args, Debug)]
pub struct CsvArgs {
    /// The file; - is standard input
    file: PathBuf,

    /// The table, by its exact name
    #[arg(long, value_name = "TABLE")]
    table: String,

    /// Columns that the file has, in its order; all of the table's unless given
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    columns: Vec<String>,

    /// The first line holds names and is skipped
    #[arg(long)]
    header: bool,

    /// What separates fields: one character, or \t
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = one_character)]
    delimiter: char,

    /// The character around fields that contain special characters
    #[arg(long, value_name = "CHAR", default_value = "\"", value_parser = one_character)]
    quote: char,

    /// The character in front of a quote inside quotes [default: the quote]
    #[arg(long, value_name = "CHAR", value_parser = one_character)]
    escape: Option<char>,

    /// What stands for NULL when it is not in quotes [default: an empty field]
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    null: String,

    #[command(flatten)]
    connect: ConnectArgs,
}

fn one_character(text: &str) -> Result<char, String> {
    let text = if text == "\\t" { "\t" } else { text };
    match text.as_bytes() {
        [byte] if byte.is_ascii() && *byte != b'\n' && *byte != b'\r' => Ok(*byte as char),
        _ => Err("must be one single-byte character".to_owned()),
    }
}

/// Standard input as a file of its own, which is read without a lock and without a buffer in between.
fn standard_input() -> std::io::Result<std::fs::File> {
    Ok(std::io::stdin().as_fd().try_clone_to_owned()?.into())
}

impl CsvArgs {
    fn statement(&self) -> String {
        let mut sql = format!("COPY {}", quote_identifier(&self.table));
        if !self.columns.is_empty() {
            let names: Vec<String> = self.columns.iter().map(|name| quote_identifier(name.trim())).collect();
            sql.push_str(&format!(" ({})", names.join(", ")));
        }
        sql.push_str(" FROM STDIN (FORMAT csv");
        let mut option = |name: &str, value: String| sql.push_str(&format!(", {name} {value}"));
        if self.header {
            option("HEADER", "true".to_owned());
        }
        if self.delimiter != ',' {
            option("DELIMITER", quote_literal(&self.delimiter.to_string()));
        }
        if self.quote != '"' {
            option("QUOTE", quote_literal(&self.quote.to_string()));
        }
        if let Some(escape) = self.escape {
            option("ESCAPE", quote_literal(&escape.to_string()));
        }
        if !self.null.is_empty() {
            option("NULL", quote_literal(&self.null));
        }
        sql.push(')');
        sql
    }

    pub(super) async fn run(self) -> Result<(), Failure> {
        let name = if self.file == Path::new("-") {
            "standard input".to_owned()
        } else {
            self.file.display().to_string()
        };
        let cannot_read = |error: std::io::Error| format!("cannot read {name}: {error}");
        let file =
            if self.file == Path::new("-") { standard_input() } else { std::fs::File::open(&self.file) };
        let file = file.map_err(|error| Failure::setup(cannot_read(error)))?;
        let metadata = file.metadata().map_err(|error| Failure::setup(cannot_read(error)))?;
        if metadata.is_dir() {
            return Err(Failure::setup(format!("cannot read {name}: it is a directory")));
        }
        let size = metadata.is_file().then_some(metadata.len());
        let input = tokio::fs::File::from_std(file);
        let client = self.connect.connect().await?;
        let mut progress = Progress::new(format!("loading {}", self.table), Unit::Bytes, size);
        let chunks = stream::try_unfold(input, |mut input| {
            let cannot_read = &cannot_read;
            async move {
                let mut buffer = bytes::BytesMut::with_capacity(CHUNK_BYTES);
                let count =
                    input.read_buf(&mut buffer).await.map_err(|error| Failure::job(cannot_read(error)))?;
                let chunk = Chunk { bytes: buffer.freeze(), progress: count as u64 };
                Ok((count > 0).then_some((chunk, input)))
            }
        });
        let explain = |error: &tokio_postgres::Error| explain_file(&name, error, "line");
        let rows = copy(&client, &self.statement(), chunks, |bytes| progress.advance(bytes), explain).await?;
        let elapsed = progress.finish();
        eprintln!("{}: {}", self.table, summary(rows, elapsed));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: CsvArgs,
    }

    fn statement(flags: &[&str]) -> String {
        let line = ["csv", "f.csv", "--table", "t"].iter().chain(flags);
        Command::try_parse_from(line).expect("the flags are well formed").args.statement()
    }

    #[test]
    fn options_become_a_statement() {
        assert_eq!(statement(&[]), "COPY \"t\" FROM STDIN (FORMAT csv)");
        assert_eq!(
            statement(&["--header", "--delimiter", "\\t", "--null", "NA", "--columns", "a,B"]),
            "COPY \"t\" (\"a\", \"B\") FROM STDIN (FORMAT csv, HEADER true, DELIMITER '\t', NULL 'NA')"
        );
        assert_eq!(
            statement(&["--quote", "'", "--escape", "\\"]),
            "COPY \"t\" FROM STDIN (FORMAT csv, QUOTE '''', ESCAPE E'\\\\')"
        );
    }

    #[test]
    fn separators_are_single_characters() {
        for text in ["", "ab", "é", "\n"] {
            assert!(one_character(text).is_err(), "{text:?}");
        }
    }
}
