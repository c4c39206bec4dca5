//! `carousel start`.

use std::{net::SocketAddr, process};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_postgres::{SimpleQueryMessage, error::SqlState};

use super::{
    config::Settings,
    failure::{Failure, print},
    observe::serve_metrics,
    progress::{Progress, Unit},
    server::Server,
};
use crate::{
    load::{TicketArgs, connect, create_ticket, load_ticket, reason},
    ticket::TABLE,
};

/// The signals that stop a server.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Begins to listen for them.
    pub(crate) fn new() -> Result<StopSignals, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::setup(format!("cannot listen for signals: {error}")))
        };
        Ok(StopSignals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for one of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs a server until Ctrl-C or SIGTERM; a second one ends the process at once.
///
/// # Errors
/// A setup failure when the server cannot start, a job's when the demo cannot be loaded or the stop is not clean.
pub async fn start(settings: Settings) -> Result<(), Failure> {
    let mut signals = StopSignals::new()?;
    if let Some(address) = settings.metrics_listen {
        serve_metrics(address)?;
    }
    let server = tokio::select! {
        server = Server::start(&settings) => server?,
        // Whatever has been started ends like in a crash, which loses nothing; a checkpoint that is being read is not waited for.
        () = signals.next() => process::exit(0),
    };
    let served = tokio::select! {
        result = serve(&server, &settings) => result,
        // What still runs would let statements wait for ever.
        reason = server.failure() => Err(Failure::job(reason)),
        () = signals.next() => Ok(()),
    };
    tokio::spawn(async move {
        signals.next().await;
        eprintln!("carousel: stopped at once; the next start replays the log");
        process::exit(1);
    });
    let stopped = server.stop().await;
    served.and(stopped)
}

/// Fills the demo's table, tells where to connect, and goes on for ever.
async fn serve(server: &Server, settings: &Settings) -> Result<(), Failure> {
    if let Some(rows) = settings.demo_rows {
        fill_demo(server, rows).await?;
    }
    tell(server.address(), settings)?;
    std::future::pending().await
}

fn tell(address: SocketAddr, settings: &Settings) -> Result<(), Failure> {
    let data_dir = std::fs::canonicalize(&settings.data_dir).unwrap_or_else(|_| settings.data_dir.clone());
    let text = format!(
        "Carousel is listening on {address}\nData directory: {}\nConnect with: psql -h {} -p {}\n",
        data_dir.display(),
        address.ip(),
        address.port()
    );
    print(&text)
}

async fn fill_demo(server: &Server, rows: u64) -> Result<(), Failure> {
    let client = connect(&server.config()).await?;
    match client.simple_query(&format!("SELECT rloc FROM {TABLE} LIMIT 1")).await {
        Ok(found) if found.iter().any(|message| matches!(message, SimpleQueryMessage::Row(_))) => {
            eprintln!("{TABLE}: has rows already");
            return Ok(());
        }
        Ok(_) => {}
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            create_ticket(&client, true).await?
        }
        Err(error) => return Err(Failure::job(format!("cannot look at {TABLE}: {}", reason(&error)))),
    }
    let progress = Progress::new(format!("loading {TABLE}"), Unit::Rows, Some(rows));
    load_ticket(&client, &TicketArgs { rows, seed: 0 }, progress).await
}
