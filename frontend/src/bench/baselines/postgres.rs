//! PostgreSQL with its defaults: a server of our own in a temporary directory, or one that is given.

use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio_postgres::{Config, SimpleQueryMessage};

use crate::{
    cli::Failure,
    load::{connect, reason},
};

/// How long a new server may take to answer.
const START_SECONDS: u64 = 60;

/// A PostgreSQL server.
pub struct Postgres {
    /// How to connect.
    pub config: Config,
    /// Present when the server is ours; dropping it ends the server.
    _own: Option<OwnServer>,
}

struct OwnServer {
    process: Child,
    directory: TempDir,
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let Ok(id) = i32::try_from(self.process.id()) {
            // SAFETY: sends a signal to a child that has not been waited for, so the number is still its own.
            unsafe { libc::kill(id, libc::SIGINT) };
        }
        // There is nobody left to tell.
        let _ = self.process.wait();
    }
}

impl Postgres {
    /// The server at this URL.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn given(url: &str) -> Result<Postgres, Failure> {
        let config = url
            .parse()
            .map_err(|error| Failure::setup(format!("'{url}' is not a connection string: {error}")))?;
        Ok(Postgres { config, _own: None })
    }

    /// `PostgreSQL` and its version.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn version(&self) -> Result<String, Failure> {
        let client = connect(&self.config).await?;
        let messages = client
            .simple_query("SHOW server_version")
            .await
            .map_err(|error| Failure::job(format!("PostgreSQL: {}", reason(&error))))?;
        let version = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let number = version.and_then(|text| text.split_whitespace().next()).unwrap_or_default();
        Ok(format!("PostgreSQL {number}"))
    }

    /// The folder of PostgreSQL's programs, if it is installed.
    pub fn find() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut packaged: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path().join("bin"))
            .collect();
        packaged.sort();
        std::env::split_paths(&path)
            .chain(packaged.into_iter().rev())
            .find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
    }

    /// Creates a database cluster in a temporary directory and starts a server on it, with all defaults except
    /// `settings` (`name=value`). As root, which PostgreSQL refuses to run as, it is run by an unprivileged user.
    ///
    /// # Errors
    /// What PostgreSQL says.
    pub async fn start(programs: &Path, settings: &[String]) -> Result<Postgres, Failure> {
        let failed =
            |what: &str, error: &dyn std::fmt::Display| Failure::job(format!("PostgreSQL: {what}: {error}"));
        let directory = tempfile::tempdir().map_err(|error| failed("no temporary directory", &error))?;
        let data = directory.path().join("data");
        std::fs::create_dir(&data).map_err(|error| failed("no data directory", &error))?;
        let user = unprivileged_user();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(&data, Some(uid), Some(gid))
                .and_then(|()| {
                    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))
                })
                .map_err(|error| failed("cannot hand the data directory over", &error))?;
        }
        let command = |program: &str| {
            let mut command = Command::new(programs.join(program));
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
            command
        };
        let created = command("initdb")
            .args(["--username=carousel", "--auth=trust", "--encoding=UTF8", "-D"])
            .arg(&data)
            .output()
            .map_err(|error| failed("cannot run initdb", &error))?;
        if !created.status.success() {
            return Err(failed("initdb", &String::from_utf8_lossy(&created.stderr)));
        }
        let port = free_port().map_err(|error| failed("no free port", &error))?;
        let log_path = directory.path().join("log");
        let log = std::fs::File::create(&log_path).map_err(|error| failed("no log", &error))?;
        let process = command("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={port}"), "-c"])
            .arg(format!("unix_socket_directories={}", data.display()))
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| failed("cannot run postgres", &error))?;
        let mut own = OwnServer { process, directory };
        let mut config = Config::new();
        config.host("127.0.0.1").port(port).user("carousel").dbname("postgres");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(START_SECONDS);
        while config.connect(tokio_postgres::NoTls).await.is_err() {
            let ended = own.process.try_wait().map_err(|error| failed("lost", &error))?;
            if ended.is_some() || tokio::time::Instant::now() > deadline {
                let log = std::fs::read_to_string(own.directory.path().join("log")).unwrap_or_default();
                return Err(failed("did not start", &log));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Postgres { config, _own: Some(own) })
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// User and group to run as, when this process is root.
fn unprivileged_user() -> Option<(u32, u32)> {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let find = |name: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let found = fields.next() == Some(name);
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            found.then_some((uid, gid))
        })
    };
    find("postgres").or_else(|| find("nobody")).or(Some((65_534, 65_534)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_server_is_taken_as_it_is() {
        let given = Postgres::given("postgres://me@localhost:7/db").unwrap();
        assert_eq!(given.config.get_ports(), [7]);
        assert!(Postgres::given("not a url").is_err());
    }
}
