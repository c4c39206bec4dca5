//! `carousel load` and `carousel generate`: filling tables of a running server, and files for other servers.

mod connection;
mod copy;
mod csv;
mod parquet;
mod ticket;

use clap::Subcommand;

pub use connection::{ConnectArgs, connect, reason};
pub use copy::{Chunk, copy, quote_identifier, quote_literal};
pub use ticket::{TicketArgs, create_ticket, load_ticket};

use crate::cli::Failure;

/// What to load.
#[derive(Subcommand, Debug)]
pub enum LoadCommand {
    /// Fill the table `ticket`: one made-up row for every passenger on a plane, 47 columns, the same rows for the same
    /// seed
    Ticket(ticket::LoadTicketArgs),
    /// Load a csv file into an existing table
    Csv(csv::CsvArgs),
    /// Load a Parquet file into an existing table; columns go by name
    Parquet(parquet::ParquetArgs),
}

impl LoadCommand {
    /// Does it.
    ///
    /// # Errors
    /// See the variants; whatever fails, the table is as it was.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            LoadCommand::Ticket(args) => args.run().await,
            LoadCommand::Csv(args) => args.run().await,
            LoadCommand::Parquet(args) => args.run().await,
        }
    }
}

/// What to generate.
#[derive(Subcommand, Debug)]
pub enum GenerateCommand {
    /// Print rows of the table `ticket` as csv on standard output
    Ticket(ticket::GenerateTicketArgs),
}

impl GenerateCommand {
    /// Does it.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            GenerateCommand::Ticket(args) => args.run(),
        }
    }
}
