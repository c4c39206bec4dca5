//! The command line: `carousel start`, `router`, `storage`, `frontend`, `ctl`, `load`, `generate`, `bench`, `sim`.

pub mod config;
mod ctl;
mod failure;
mod member;
pub mod memory;
mod observe;
pub mod open_files;
pub mod progress;
mod role;
pub mod server;
pub mod serving;
mod sim;
mod size;
mod start;

use std::{ffi::OsString, process::ExitCode};

use clap::{
    ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind, parser::ValueSource,
};

pub use failure::{Failure, one_line, print};
pub use size::{MemorySize, machine_memory};
pub(crate) use start::StopSignals;

use member::Role;
use observe::{LogFormat, log_to_stderr};

use crate::{
    bench::BenchCommand,
    load::{GenerateCommand, LoadCommand},
};

/// PostgreSQL-compatible, elastic, highly available, in-memory store for operational business intelligence.
#[derive(Parser, Debug)]
#[command(name = "carousel", version, max_term_width = 100, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a server: routers, storage processes and a front end in one process
    ///
    /// Each option can also be given by an environment variable or in a TOML file. A flag overrides the variable, which
    /// overrides the file, which overrides the default.
    Start(config::StartArgs),
    /// Run a router of a cluster of separate processes, and a super process beside it
    ///
    /// Each option can also be given by an environment variable or in a TOML file, as with `start`. All processes are
    /// given the same description of the cluster, by a file, by flags, or by one of them that runs already.
    Router(member::RouterArgs),
    /// Run a storage process of a cluster of separate processes
    ///
    /// Each option can also be given by an environment variable or in a TOML file, as with `start`. All processes are
    /// given the same description of the cluster, by a file, by flags, or by one of them that runs already.
    Storage(member::StorageArgs),
    /// Run a front end of a cluster of separate processes: what SQL clients connect to
    ///
    /// Each option can also be given by an environment variable or in a TOML file, as with `start`. All processes are
    /// given the same description of the cluster, by a file, by flags, or by one of them that runs already. Each front
    /// end needs a number of its own, and keeps it.
    Frontend(member::FrontendArgs),
    /// Look at the cluster of a running server, and change its ring
    Ctl(ctl::CtlArgs),
    /// Fill a table of a running server
    #[command(subcommand)]
    Load(LoadCommand),
    /// Print generated rows
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Measure Carousel beside other systems, in the same run and on the same rows
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Simulate whole clusters, each on one thread from a seed, with faults, and check everything they answer
    ///
    /// Equal seeds give equal runs. Exits with 1 when a seed fails, after printing what went wrong and how to replay it.
    Sim(sim::SimArgs),
}

/// What the binary does: parses the command line, runs the command, and tells on one line of stderr why it failed.
///
/// The exit code is 0 for success, 1 for a job that failed, and 2 for one that could not begin.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("carousel: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Options that stand in the place of one another: a process's description, and a server.
const ALTERNATIVES: [&str; 5] = ["cluster", "join", "url", "host", "port"];

/// Reads the command line and the variables. To the parser a flag and the variable of another option contradict each other as
/// two flags do; but a flag overrides the variables, also that of what stands in its option's place.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = match Cli::command().try_get_matches_from(&arguments) {
        Err(error) if error.kind() == ErrorKind::ArgumentConflict => {
            let matches = without_variables(Cli::command()).try_get_matches_from(&arguments)?;
            // Otherwise the variables contradict one another.
            if !has_flag(&matches) {
                return Err(error);
            }
            matches
        }
        parsed => parsed?,
    };
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))
}

/// The command and those below it, deaf to the variables of the alternatives.
fn without_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match ALTERNATIVES.contains(&argument.get_id().as_str()) {
        true => argument.env(None::<&'static str>),
        false => argument,
    });
    command.mut_subcommands(without_variables)
}

/// Whether one of the alternatives is given by a flag.
fn has_flag(matches: &ArgMatches) -> bool {
    let is_flag = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    matches.ids().any(|id| ALTERNATIVES.contains(&id.as_str()) && is_flag(id.as_str()))
        || matches.subcommand().is_some_and(|(_, below)| has_flag(below))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Start(args) => {
            let settings = config::Settings::resolve(&args, cores())?;
            log_to_stderr(settings.log.as_deref(), settings.log_format)?;
            on_workers(&runtime(cores())?, start::start(settings))
        }
        Command::Router(args) => run_role(Role::Router(args)),
        Command::Storage(args) => run_role(Role::Storage(args)),
        Command::Frontend(args) => run_role(Role::Frontend(args)),
        Command::Ctl(ctl) => {
            log_to_stderr(None, LogFormat::Text)?;
            end_of(ctl.run())
        }
        Command::Load(load) => {
            log_to_stderr(None, LogFormat::Text)?;
            runtime(cores())?.block_on(load.run())
        }
        Command::Generate(generate) => generate.run(),
        Command::Bench(bench) => {
            log_to_stderr(None, LogFormat::Text)?;
            end_of(bench.run())
        }
        Command::Sim(sim) => sim.run(),
    }
}

/// Runs a job that may give up what it has begun: what blocks a thread meanwhile is not waited for.
fn end_of(job: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime(cores())?;
    let ended = runtime.block_on(job);
    runtime.shutdown_background();
    ended
}

fn run_role(role: Role) -> Result<(), Failure> {
    let log = role.log()?;
    log_to_stderr(log.filter.as_deref(), log.format)?;
    let workers = match role {
        // The others are for the scans and for the log. A message that wakes a second worker costs more than it gains.
        Role::Router(_) | Role::Storage(_) => (cores() / 2).max(1),
        Role::Frontend(_) => cores(),
    };
    on_workers(&runtime(workers)?, role::run(role, cores()))
}

/// Runs a server among the workers: this thread would be woken for much of what it follows, and they are awake.
fn on_workers(
    runtime: &tokio::runtime::Runtime,
    server: impl Future<Output = Result<(), Failure>> + Send + 'static,
) -> Result<(), Failure> {
    match runtime.block_on(runtime.spawn(server)) {
        Ok(ended) => ended,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Help goes out whole; a mistake becomes one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Whoever reads may stop reading.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        _ => {
            let text = error.render().to_string();
            let mistake = text.split("\n\n").next().unwrap_or_default();
            let mistake = one_line(mistake.strip_prefix("error: ").unwrap_or(mistake));
            eprintln!("carousel: {mistake} (--help tells more)");
            ExitCode::from(2)
        }
    }
}

/// Cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// The stack of a thread that serves connections, on which statements are planned that are not known to be deep.
const STACK: usize = 16 << 20;

/// The runtime for connections and messages. Scan threads are not its business.
fn runtime(workers: u32) -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(workers as usize)
        .thread_name("carousel")
        // Only what is used of it takes memory.
        .thread_stack_size(STACK)
        .build()
        .map_err(|error| Failure::setup(format!("cannot start threads: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_command(command: &clap::Command, visit: &mut impl FnMut(&clap::Command)) {
        visit(command);
        for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
            every_command(subcommand, visit);
        }
    }

    #[test]
    fn every_option_of_a_process_has_a_variable() {
        let cli = Cli::command();
        for role in ["router", "storage", "frontend"] {
            let command = cli.find_subcommand(role).expect("there is such a process");
            for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
                assert!(argument.get_env().is_some(), "{} of {role} has no variable", argument.get_id());
            }
        }
    }

    #[test]
    fn everything_is_documented() {
        Cli::command().debug_assert();
        every_command(&Cli::command(), &mut |command| {
            assert!(command.get_about().is_some(), "{} has no description", command.get_name());
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} of {} has no help",
                    argument.get_id(),
                    command.get_name()
                );
            }
        });
    }
}
