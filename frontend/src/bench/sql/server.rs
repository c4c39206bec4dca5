//! The Carousel that is measured: `carousel start` in a process of its own, so that it shares nothing with its clients.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio_postgres::Config;

use crate::cli::Failure;

/// A server in a process of its own, on a temporary directory; it ends when this is dropped.
pub struct ServerProcess {
    process: Child,
    /// How to connect.
    pub config: Config,
    _directory: TempDir,
}

fn failed(reason: impl std::fmt::Display) -> Failure {
    Failure::job(format!("cannot start Carousel: {reason}"))
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // What it holds is of no use to anybody any more. It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl ServerProcess {
    /// Starts a server with these options; returns when it listens.
    ///
    /// # Errors
    /// When it does not start; it has told why on stderr.
    pub fn start(options: &[String]) -> Result<ServerProcess, Failure> {
        let directory = tempfile::tempdir().map_err(failed)?;
        let mut process = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["start", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut first = String::new();
        if let Some(output) = process.stdout.take() {
            // The pipe stays open until the process ends: it says nothing more after its greeting.
            BufReader::new(output).read_line(&mut first).map_err(failed)?;
        }
        let port = first.trim_end().rsplit(':').next().and_then(|port| port.parse().ok());
        let mut server = ServerProcess { process, config: Config::new(), _directory: directory };
        let Some(port) = port else {
            let status = server.process.wait().map_err(failed)?;
            return Err(failed(format!("it has ended: {status}")));
        };
        server.config.host("127.0.0.1").port(port).user("carousel").dbname("carousel");
        Ok(server)
    }

    /// Its number among the processes.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}
