//! The Ticket table, into a server or onto standard output.

use std::io::{BufWriter, Write};

use bytes::Bytes;
use clap::Args;
use futures::stream;
use tokio_postgres::{Client, error::SqlState};

use super::{
    connection::{ConnectArgs, reason},
    copy::{Chunk, copy},
};
use crate::{
    cli::{
        Failure,
        progress::{Progress, Unit, summary},
    },
    ticket::{BLOCK_ROWS, COLUMNS, CsvStream, MAX_ROWS, TABLE, create_table},
};

/// Which rows.
#[derive(Args, Clone, Debug)]
pub struct TicketArgs {
    /// How many rows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ROWS))]
    pub rows: u64,

    /// Seed: the same seed gives the same rows, for ever and with any number of threads
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

/// Options of `carousel load ticket`.
#[derive(Args, Debug)]
pub struct LoadTicketArgs {
    #[command(flatten)]
    ticket: TicketArgs,

    /// Create the table first; it must not exist
    #[arg(long)]
    create: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

impl LoadTicketArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let client = self.connect.connect().await?;
        if self.create {
            create_ticket(&client, true).await?;
        }
        let progress = Progress::new(format!("loading {TABLE}"), Unit::Rows, Some(self.ticket.rows));
        load_ticket(&client, &self.ticket, progress).await
    }
}

/// Creates the table.
///
/// # Errors
/// When it exists, or the server cannot create it.
pub async fn create_ticket(client: &Client, partitioned: bool) -> Result<(), Failure> {
    client
        .batch_execute(&create_table(partitioned))
        .await
        .map_err(|error| Failure::job(format!("cannot create table {TABLE}: {}", reason(&error))))
}

/// Loads rows into the table and tells how fast it was.
///
/// # Errors
/// When there is no such table, or the server refuses the rows; nothing is loaded then.
pub async fn load_ticket(
    client: &Client,
    ticket: &TicketArgs,
    mut progress: Progress,
) -> Result<(), Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = CsvStream::new(ticket.seed, ticket.rows, threads);
    let chunks = stream::unfold(rows, |mut rows| async move {
        let (csv, count) = rows.next().await?;
        Some((Ok(Chunk { bytes: Bytes::from(csv), progress: count }), rows))
    });
    let statement = format!("COPY {TABLE} FROM STDIN (FORMAT csv)");
    let loaded = copy(client, &statement, chunks, |rows| progress.advance(rows), explain).await?;
    let elapsed = progress.finish();
    eprintln!("{TABLE}: {}", summary(loaded, elapsed));
    Ok(())
}

fn explain(error: &tokio_postgres::Error) -> Failure {
    if error.code() == Some(&SqlState::UNDEFINED_TABLE) {
        return Failure::job(format!("there is no table {TABLE}; --create creates it"));
    }
    Failure::job(format!("cannot load {TABLE}: {}", reason(error)))
}

/// Options of `carousel generate ticket`.
#[derive(Args, Debug)]
pub struct GenerateTicketArgs {
    #[command(flatten)]
    ticket: TicketArgs,

    /// Print the columns' names first
    #[arg(long)]
    header: bool,

    /// Print the CREATE TABLE statement instead of rows, as PostgreSQL understands it
    #[arg(long)]
    ddl: bool,
}

impl GenerateTicketArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(BLOCK_ROWS * 400, std::io::stdout().lock());
        let written = self.write(&mut out).and_then(|()| out.flush());
        match written {
            // Whoever read has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|error| Failure::job(format!("cannot write to standard output: {error}"))),
        }
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        if self.ddl {
            return writeln!(out, "{};", create_table(false));
        }
        if self.header {
            writeln!(out, "{}", COLUMNS.map(|column| column.0).join(","))?;
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut rows = CsvStream::new(self.ticket.seed, self.ticket.rows, threads);
        while let Some((csv, _)) = rows.blocking_next() {
            out.write_all(&csv)?;
        }
        Ok(())
    }
}
