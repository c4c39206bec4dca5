//! The settings of `carousel start`: from flags, else from `CAROUSEL_…` variables, else from a TOML file, else defaults.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use carousel_cluster::embedded::storage_of;
use clap::{Args, ValueEnum, builder::BoolishValueParser};
use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
};
use serde::{Deserialize, Serialize};

use super::{
    failure::{Failure, one_line},
    observe::{LogFormat, ObserveArgs, metrics_address},
    serving::{self, ServingArgs},
    size::{MemorySize, log_reserve},
};

/// Most processes of a kind, and most threads: beyond this a number is a slip of the pen.
const MOST_ROUTERS: u32 = 31;
const MOST_STORAGE: u32 = 256;
pub(super) const MOST_THREADS: u32 = 1024;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Acknowledged means on disk, at a quorum of the routers
    Disk,
    /// The log is kept in memory: all that has been written is lost when the routers end, and the cluster has to begin anew
    /// with empty data directories. A single router that has ended has to be replaced
    Memory,
}

/// Options of `carousel start`. What is not given is looked up in the file and then has its default.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StartArgs {
    /// How SQL is served.
    #[command(flatten)]
    #[serde(flatten)]
    pub serving: ServingArgs,

    /// Directory that holds the data; created when it does not exist [default: ./carousel-data]
    #[arg(long, value_name = "DIR", env = "CAROUSEL_DATA_DIR", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,

    /// Router processes, which order and log all messages; an odd number makes sense [default: 1]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_ROUTERS",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routers: Option<u32>,

    /// Storage processes, which hold the rows [default: as many as the data directory was created with; of a new one, one
    /// for each core, at least 2]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_STORAGE",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<u32>,

    /// How many storage processes hold each row; copies inside one process protect nothing [default: 1]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_REPLICATION_FACTOR",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_factor: Option<u32>,

    /// Scan threads of all storage processes together, as many for each [default: one for each core, at least one for
    /// each storage process]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_THREADS",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,

    /// Most memory for rows: 4GiB, 512MB, or a share of the machine's memory such as 60%. Writes beyond it are refused
    /// [default: 60%]
    #[arg(long, value_name = "SIZE", env = "CAROUSEL_MEMORY_LIMIT", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MemorySize>,

    /// When a write counts as done [default: disk]
    #[arg(long, value_enum, env = "CAROUSEL_DURABILITY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,

    /// Bytes that are to be free on the disk of the log, such as 1GiB. When too few routers have so much left, writes are
    /// refused until they have [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "CAROUSEL_LOG_RESERVE", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_reserve: Option<MemorySize>,

    /// Create the table `ticket` and fill it, unless it has rows already
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), env = "CAROUSEL_DEMO", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demo: Option<bool>,

    /// Rows of the demo's table [default: 100000]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "CAROUSEL_DEMO_ROWS",
        hide_env_values = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demo_rows: Option<u64>,

    /// What it tells about itself.
    #[command(flatten)]
    #[serde(flatten)]
    pub observe: ObserveArgs,

    /// TOML file with any of these options, named as here without the dashes in front: data-dir = "/srv/carousel"
    #[arg(long, value_name = "FILE", env = "CAROUSEL_CONFIG", hide_env_values = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// What the file may hold, and what the layers together give.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Layers {
    listen: String,
    trust_clients: bool,
    data_dir: PathBuf,
    routers: u32,
    storage: Option<u32>,
    replication_factor: u32,
    threads: Option<u32>,
    memory_limit: MemorySize,
    max_connections: u32,
    max_sql_memory: Option<MemorySize>,
    durability: Durability,
    log_reserve: Option<MemorySize>,
    demo: bool,
    demo_rows: u64,
    log: Option<String>,
    log_format: LogFormat,
    metrics_listen: Option<String>,
}

impl Default for Layers {
    fn default() -> Self {
        Layers {
            listen: serving::DEFAULT_LISTEN.to_owned(),
            trust_clients: false,
            data_dir: PathBuf::from("./carousel-data"),
            routers: 1,
            storage: None,
            replication_factor: 1,
            threads: None,
            memory_limit: MemorySize::Percent(60),
            max_connections: serving::DEFAULT_MAX_CONNECTIONS,
            max_sql_memory: None,
            durability: Durability::Disk,
            log_reserve: None,
            demo: false,
            demo_rows: 100_000,
            log: None,
            log_format: LogFormat::Text,
            metrics_listen: None,
        }
    }
}

/// Settings that fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where the data is.
    pub data_dir: PathBuf,
    /// Router processes.
    pub routers: u32,
    /// Storage processes.
    pub storage: u32,
    /// Copies of each row.
    pub replication_factor: u32,
    /// Scan threads of each storage process.
    pub threads_per_storage: u32,
    /// Most bytes for rows.
    pub memory_limit: Option<u64>,
    /// Most sessions at a time.
    pub max_connections: u32,
    /// Most bytes for what statements hold on the way.
    pub max_sql_memory: Option<u64>,
    /// When a write counts as done.
    pub durability: Durability,
    /// Bytes that are to be free on the disk of the log.
    pub log_reserve: u64,
    /// Rows of the demo's table, if it is wanted.
    pub demo_rows: Option<u64>,
    /// What to log.
    pub log: Option<String>,
    /// How to log.
    pub log_format: LogFormat,
    /// Where metrics are served.
    pub metrics_listen: Option<SocketAddr>,
}

impl Settings {
    /// Puts the layers together and checks the result for a machine with `cores` cores. Flags and variables have been
    /// put together by the command line's parser.
    ///
    /// # Errors
    /// A setup failure that names the option and what is wrong with it.
    pub fn resolve(args: &StartArgs, cores: u32) -> Result<Settings, Failure> {
        let mut figment = Figment::from(Serialized::defaults(Layers::default()));
        if let Some(path) = &args.config {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::setup(format!("cannot read {}: {error}", path.display())))?;
            // Checked alone first: an error is then the file's and can say so.
            let file = Figment::from(Serialized::defaults(Layers::default())).merge(Toml::string(&text));
            file.extract::<Layers>().map_err(|error| file_error(path, &error))?;
            figment = figment.merge(Toml::string(&text));
        }
        let layers: Layers = figment.merge(Serialized::defaults(args)).extract().map_err(Failure::setup)?;
        layers.check(cores)
    }
}

pub(super) fn file_error(path: &Path, error: &figment::Error) -> Failure {
    // One mistake at a time, without figment's profile names. A syntax error comes with a drawing of the place, of
    // which only the words fit on a line.
    let kind = error.kind.to_string();
    let words = kind
        .lines()
        .filter(|line| !line.trim_start().starts_with('|') && !line.contains(" | "))
        .collect::<Vec<_>>()
        .join("\n");
    let key = match error.path.join(".") {
        key if key.is_empty() => String::new(),
        key => format!("{key}: "),
    };
    Failure::setup(format!("{}: {key}{}", path.display(), one_line(&words)))
}

pub(super) fn within(option: &str, value: u32, most: u32) -> Result<u32, Failure> {
    match value {
        0 => Err(Failure::setup(format!("--{option} must be at least 1"))),
        value if value > most => {
            Err(Failure::setup(format!("--{option} {value} is more than the limit of {most}")))
        }
        value => Ok(value),
    }
}

impl Layers {
    fn check(self, cores: u32) -> Result<Settings, Failure> {
        let routers = within("routers", self.routers, MOST_ROUTERS)?;
        // The number belongs to the directory, which may have come from a machine with other cores.
        let storage = self.storage.or_else(|| storage_of(&self.data_dir));
        let storage = within("storage", storage.unwrap_or(cores.clamp(2, MOST_STORAGE)), MOST_STORAGE)?;
        let replication_factor = within("replication-factor", self.replication_factor, MOST_STORAGE)?;
        if replication_factor > storage {
            return Err(Failure::setup(format!(
                "--replication-factor {replication_factor} needs as many storage processes, but --storage is {storage}"
            )));
        }
        let threads_per_storage = match self.threads {
            None => (cores / storage).max(1),
            Some(threads) => {
                let threads = within("threads", threads, MOST_THREADS)?;
                if threads % storage != 0 {
                    return Err(Failure::setup(format!(
                        "--threads {threads} cannot be shared evenly by {storage} storage processes; \
                         give a multiple of {storage}"
                    )));
                }
                threads / storage
            }
        };
        if self.demo_rows == 0 || self.demo_rows > crate::ticket::MAX_ROWS {
            return Err(Failure::setup(format!(
                "--demo-rows must be between 1 and {}",
                crate::ticket::MAX_ROWS
            )));
        }
        if self.data_dir.as_os_str().is_empty() {
            return Err(Failure::setup("--data-dir is empty"));
        }
        let memory_limit = self.memory_limit.bytes();
        Ok(Settings {
            listen: serving::listen_address(&self.listen, self.trust_clients)?,
            data_dir: self.data_dir,
            routers,
            storage,
            replication_factor,
            threads_per_storage,
            memory_limit,
            max_connections: serving::max_connections(self.max_connections)?,
            max_sql_memory: serving::max_sql_memory_beside(self.max_sql_memory, memory_limit),
            durability: self.durability,
            log_reserve: log_reserve(self.log_reserve)?,
            demo_rows: self.demo.then_some(self.demo_rows),
            log: self.log,
            log_format: self.log_format,
            metrics_listen: self.metrics_listen.as_deref().map(metrics_address).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: StartArgs,
    }

    fn args(flags: &[&str]) -> StartArgs {
        Command::try_parse_from(std::iter::once(&"start").chain(flags))
            .expect("the flags are well formed")
            .args
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn resolve_with(text: &str, flags: &[&str]) -> Result<Settings, Failure> {
        let file = file(text);
        let mut args = args(flags);
        args.config = Some(file.path().to_owned());
        Settings::resolve(&args, 4)
    }

    #[test]
    fn defaults_follow_the_machine() {
        let settings = Settings::resolve(&StartArgs::default(), 6).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:5433".parse().unwrap());
        assert_eq!(settings.data_dir, PathBuf::from("./carousel-data"));
        assert_eq!((settings.routers, settings.storage, settings.replication_factor), (1, 6, 1));
        assert_eq!((settings.threads_per_storage, settings.demo_rows), (1, None));
        assert_eq!(settings.durability, Durability::Disk);
        let small = Settings::resolve(&StartArgs::default(), 1).unwrap();
        assert_eq!((small.storage, small.threads_per_storage), (2, 1));
        let few = Settings::resolve(&args(&["--storage", "2"]), 8).unwrap();
        assert_eq!((few.storage, few.threads_per_storage), (2, 4));
    }

    #[test]
    fn a_data_directory_keeps_its_number_of_storage_processes() {
        let directory = tempfile::tempdir().unwrap();
        let data = ["--data-dir", directory.path().to_str().unwrap()];
        let storage = |flags: &[&str]| {
            let settings = Settings::resolve(&args(&[&data[..], flags].concat()), 8).unwrap();
            (settings.storage, settings.threads_per_storage)
        };
        assert_eq!(storage(&[]), (8, 1));
        let manifest = "format 1\n1 routers, 3 storage processes, replication factor 1, durability disk\n";
        std::fs::write(directory.path().join("CAROUSEL"), manifest).unwrap();
        assert_eq!(storage(&[]), (3, 2));
        assert_eq!(storage(&["--storage", "4"]), (4, 2), "what is said is compared with it later");
    }

    #[test]
    fn flags_override_the_file_which_overrides_defaults() {
        let text =
            "routers = 3\nstorage = 5\ndata-dir = \"/a\"\nmemory-limit = \"2GiB\"\ndurability = \"memory\"\n";
        let settings = resolve_with(text, &["--storage", "4", "--data-dir=/b"]).unwrap();
        assert_eq!((settings.routers, settings.storage), (3, 4));
        assert_eq!(settings.data_dir, PathBuf::from("/b"));
        assert_eq!((settings.memory_limit, settings.durability), (Some(2 << 30), Durability::Memory));
        assert_eq!(settings.max_sql_memory, Some(512 << 20));
        let settings = resolve_with(text, &["--max-sql-memory", "64MiB"]).unwrap();
        assert_eq!(settings.max_sql_memory, Some(64 << 20));
        assert_eq!(settings.replication_factor, 1);
    }

    #[test]
    fn the_demo_can_be_switched_off_again() {
        assert_eq!(resolve_with("demo = true", &[]).unwrap().demo_rows, Some(100_000));
        assert_eq!(resolve_with("demo = true", &["--demo=false"]).unwrap().demo_rows, None);
        assert_eq!(resolve_with("demo-rows = 7", &["--demo"]).unwrap().demo_rows, Some(7));
    }

    #[test]
    fn other_hosts_are_served_when_they_are_trusted() {
        let settings = resolve_with("trust-clients = true", &["--listen", "0.0.0.0:5433"]).unwrap();
        assert_eq!(settings.listen.to_string(), "0.0.0.0:5433");
        let both = ["--listen", "0.0.0.0:5433", "--trust-clients=false"];
        assert!(resolve_with("trust-clients = true", &both).is_err());
    }

    #[test]
    fn metrics_are_served_at_a_host_by_its_name() {
        let settings = Settings::resolve(&args(&["--metrics-listen", "localhost:9187"]), 4).unwrap();
        let address = settings.metrics_listen.expect("it is said");
        assert!(address.ip().is_loopback() && address.port() == 9187, "{address}");
    }

    #[test]
    fn a_mistake_in_the_file_is_named_on_one_line() {
        for (text, part) in [
            ("routrs = 3", "routrs"),
            ("routers = \"three\"", "routers"),
            ("routers = -1", "routers"),
            ("memory-limit = \"4 apples\"", "4 apples"),
            ("durability = \"paper\"", "paper"),
            ("routers 3", "line 1"),
            ("[server]\nrouters = 3", "server"),
        ] {
            let message = resolve_with(text, &[]).unwrap_err().to_string();
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }

    #[test]
    fn unusable_options_are_refused() {
        for (flags, part) in [
            (&["--routers", "0"][..], "--routers"),
            (&["--storage", "0"], "--storage"),
            (&["--storage", "1000000"], "--storage"),
            (&["--replication-factor", "0"], "--replication-factor"),
            (&["--replication-factor", "3", "--storage", "2"], "--replication-factor 3"),
            (&["--threads", "3", "--storage", "2"], "--threads 3"),
            (&["--threads", "0"], "--threads"),
            (&["--max-connections", "0"], "--max-connections"),
            (&["--demo", "--demo-rows", "0"], "--demo-rows"),
            (&["--listen", "0.0.0.0:5433"], "loopback"),
            (&["--listen", "127.0.0.1"], "--listen"),
            (&["--listen", "127.0.0.1:99999"], "--listen"),
            (&["--metrics-listen", "127.0.0.1"], "cannot serve metrics on '127.0.0.1'"),
            (&["--config", "/nonexistent/carousel.toml"], "/nonexistent/carousel.toml"),
        ] {
            let failure = Settings::resolve(&args(flags), 4).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains(part), "{flags:?}: {failure}");
        }
        for flags in [["--memory-limit", "much"], ["--durability", "paper"], ["--routers", "x"]] {
            assert!(Command::try_parse_from(["start", flags[0], flags[1]]).is_err());
        }
    }

    #[test]
    fn every_option_is_documented() {
        use clap::CommandFactory;
        for argument in Command::command().get_arguments().filter(|a| a.get_id() != "help") {
            assert!(argument.get_help().is_some(), "{} has no help", argument.get_id());
            assert!(argument.get_env().is_some(), "{} has no variable", argument.get_id());
        }
    }
}
