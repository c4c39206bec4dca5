//! The `carousel` binary as its users meet it: options, messages, exit codes, and a server's life and death.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// The binary without the settings of whoever runs the tests.
fn carousel(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_carousel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CAROUSEL_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    carousel(arguments).output().expect("the binary runs")
}

/// The one line on stderr of a command that could not begin.
fn refusal(command: &mut Command) -> String {
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{command:?} printed something");
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("carousel: "), "{command:?}: {stderr}");
    lines[0].to_owned()
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("there is room for temporary files")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

#[test]
fn an_unusable_option_is_one_line_and_exit_code_2() {
    for (arguments, part) in [
        (&["start", "--routers", "0"][..], "--routers"),
        (&["start", "--routers", "many"], "--routers"),
        (&["start", "--storage", "0"], "--storage"),
        (&["start", "--storage", "-1"], "--storage"),
        (&["start", "--replication-factor", "0"], "--replication-factor"),
        (&["start", "--storage", "2", "--replication-factor", "3"], "--replication-factor 3"),
        (&["start", "--threads", "0"], "--threads"),
        (&["start", "--storage", "2", "--threads", "3"], "--threads 3"),
        (&["start", "--memory-limit", "4 apples"], "4 apples"),
        (&["start", "--memory-limit", "0"], "--memory-limit"),
        (&["start", "--durability", "paper"], "paper"),
        (&["start", "--demo-rows", "0"], "--demo-rows"),
        (&["start", "--listen", "0.0.0.0:5433"], "loopback"),
        (&["start", "--listen", "[::]:5433"], "loopback"),
        (&["start", "--listen", "here"], "--listen"),
        (&["start", "--listen", "127.0.0.1:70000"], "--listen"),
        (&["start", "--log", "a=b=c"], "--log"),
        (&["start", "--data-dir", ""], "--data-dir"),
        (&["start", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["start", "--no-such-option"], "--no-such-option"),
        (&["stop"], "stop"),
        (&["load", "ticket", "--rows", "0"], "--rows"),
        (&["load", "ticket", "--rows", "5", "--url", "nonsense"], "nonsense"),
        (&["load", "csv", "/nonexistent.csv", "--table", "t"], "/nonexistent.csv"),
        (&["load", "csv", "/", "--table", "t"], "directory"),
        (&["load", "csv", "f", "--table", "t", "--delimiter", "ab"], "--delimiter"),
        (&["load", "csv", "f"], "--table"),
        (&["load", "parquet", "/nonexistent.parquet", "--table", "t"], "/nonexistent.parquet"),
        (&["bench", "select", "--clients", "0"], "--clients"),
    ] {
        let line = refusal(&mut carousel(arguments));
        assert!(line.contains(part), "{arguments:?}: {line}");
    }
}

#[test]
fn a_mistake_in_the_file_is_one_line_and_exit_code_2() {
    let directory = scratch();
    let file = directory.path().join("carousel.toml");
    for (text, part) in [
        ("routrs = 3\n", "routrs"),
        ("routers = \"three\"\n", "routers"),
        ("routers = 0\n", "routers"),
        ("memory-limit = \"much\"\n", "much"),
        ("routers 3\n", "line 1"),
        ("listen = \"0.0.0.0:1\"\n", "loopback"),
    ] {
        std::fs::write(&file, text).unwrap();
        let line = refusal(&mut carousel(&["start", "--config", path(&file)]));
        assert!(line.contains(part), "{text}: {line}");
    }
}

#[test]
fn flags_override_variables_which_override_the_file() {
    let directory = scratch();
    let file = directory.path().join("carousel.toml");
    std::fs::write(&file, "replication-factor = 7\nstorage = 2\n").unwrap();
    // A factor that is too high is told, so the message shows which one was taken.
    let taken = |variable: Option<&str>, flag: &[&str]| {
        let mut command = carousel(&["start"]);
        command.args(flag).env("CAROUSEL_CONFIG", &file);
        if let Some(value) = variable {
            command.env("CAROUSEL_REPLICATION_FACTOR", value);
        }
        refusal(&mut command)
    };
    assert!(taken(None, &[]).contains("--replication-factor 7"));
    assert!(taken(Some("8"), &[]).contains("--replication-factor 8"));
    assert!(taken(Some("8"), &["--replication-factor", "9"]).contains("--replication-factor 9"));
    assert!(taken(Some("x"), &[]).contains("--replication-factor"));
}

#[test]
fn help_documents_every_option() {
    let output = run(&["start", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    for option in [
        "listen",
        "data-dir",
        "routers",
        "storage",
        "replication-factor",
        "threads",
        "memory-limit",
        "durability",
        "demo",
        "demo-rows",
        "log",
        "config",
    ] {
        let variable = format!("CAROUSEL_{}", option.replace('-', "_").to_uppercase());
        assert!(help.contains(&format!("--{option}")) && help.contains(&variable), "{option}");
    }
    for default in ["127.0.0.1:5433", "./carousel-data", "60%", "disk"] {
        assert!(help.contains(default), "{default}");
    }
    assert_eq!(run(&["--version"]).status.code(), Some(0));
}

#[test]
fn generated_rows_go_to_standard_output() {
    let output = run(&["generate", "ticket", "--rows", "5000", "--header"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 5001);
    assert!(text.lines().all(|line| line.split(',').count() == 47));
    assert!(text.starts_with("rloc,passenger,segment,"));
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let line = refusal(&mut carousel(&["load", "ticket", "--rows", "5", "--port", &port]));
    assert!(line.contains("cannot connect to 127.0.0.1"), "{line}");
}

#[test]
fn a_taken_port_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = scratch();
    let data = directory.path().join("data");
    let address = taken.local_addr().unwrap().to_string();
    let line = refusal(&mut carousel(&["start", "--listen", &address, "--data-dir", path(&data)]));
    assert!(line.contains(&address) && line.contains("in use"), "{line}");
    assert!(!data.exists(), "the data directory was touched");
}

#[test]
fn an_unusable_data_directory_is_told() {
    let directory = scratch();
    let file = directory.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    for data in [file.clone(), file.join("below")] {
        let line = refusal(&mut carousel(&["start", "--listen", "127.0.0.1:0", "--data-dir", path(&data)]));
        assert!(line.contains(path(&file)), "{line}");
    }
}
