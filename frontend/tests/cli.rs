//! The `carousel` binary as its users meet it: options, messages, exit codes, and a server's life and death.

mod processes;
mod readers;

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

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

fn signal(process: &Child, signal: i32) {
    let id = i32::try_from(process.id()).unwrap();
    // SAFETY: sends a signal to a child that has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
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
        (&["frontend", "--max-sql-memory", "much"], "much"),
        (&["start", "--max-connections", "0"], "--max-connections"),
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
        (&["bench", "sql", "--clients", "0"], "--clients"),
        (&["bench", "order", "--replication-factor", "5"], "--replication-factor"),
        (&["bench", "failover", "--replication-factor", "5"], "--replication-factor"),
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
        "max-connections",
        "max-sql-memory",
        "durability",
        "log-reserve",
        "demo",
        "demo-rows",
        "log",
        "log-format",
        "metrics-listen",
        "config",
    ] {
        let variable = format!("CAROUSEL_{}", option.replace('-', "_").to_uppercase());
        assert!(help.contains(&format!("--{option}")) && help.contains(&variable), "{option}");
    }
    for default in ["127.0.0.1:5433", "./carousel-data", "60%", "disk", "256MiB"] {
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
    // A flag overrides the variable of what stands in its place.
    let elsewhere = "postgres://127.0.0.1:1/anything";
    let load = ["load", "ticket", "--rows", "5", "--port", &port];
    for command in [&load[..], &["ctl", "--port", &port, "ring"]] {
        let line = refusal(carousel(command).env("CAROUSEL_URL", elsewhere));
        assert!(line.contains(&format!("cannot connect to 127.0.0.1:{port}")), "{line}");
    }
    let line = refusal(carousel(&load).args(["--url", elsewhere]));
    assert!(line.contains("cannot be used with"), "{line}");
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
fn connections_need_open_files() {
    let directory = scratch();
    let binary = env!("CARGO_BIN_EXE_carousel");
    let data = path(directory.path());
    let mut shell = Command::new("sh");
    let script =
        "ulimit -n 600; exec \"$0\" start --listen 127.0.0.1:0 --data-dir \"$1\" --max-connections 200";
    let line = refusal(shell.args(["-c", script, binary, data]).stdin(Stdio::null()));
    assert!(line.contains("--max-connections 200 needs 712 open files"), "{line}");
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

/// A running server.
struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    /// Starts a server on a directory and waits until it has printed where to connect.
    fn start(data: &Path, options: &[&str]) -> Server {
        let mut command = carousel(&["start", "--listen", "127.0.0.1:0", "--data-dir", path(data)]);
        command.args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let mut output = BufReader::new(process.stdout.take().expect("the output is piped"));
        let mut printed = String::new();
        let port = loop {
            let mut line = String::new();
            if output.read_line(&mut line).expect("the output is text") == 0 {
                let mut stderr = String::new();
                process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("the server ended: {printed}{stderr}");
            }
            printed.push_str(&line);
            if let Some((_, port)) = line.split_once("psql -h 127.0.0.1 -p ") {
                break port.trim().parse().expect("the line ends with a port");
            }
        };
        assert!(printed.contains(&format!("127.0.0.1:{port}")), "{printed}");
        let data = data.canonicalize().unwrap();
        assert!(printed.contains(path(&data)), "{printed}");
        // Nobody reads stderr from here on; a full pipe must not stop the server.
        let mut stderr = process.stderr.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Server { process, output, port }
    }

    fn signal(&self, signal: i32) {
        self::signal(&self.process, signal);
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Stops it with a signal; gives its exit code.
    fn stop(mut self, signal: i32) -> Option<i32> {
        self.signal(signal);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        self.process.wait().unwrap().code()
    }

    fn url(&self) -> String {
        format!("postgres://anybody@127.0.0.1:{}/anything", self.port)
    }

    async fn connect(&self) -> Client {
        let (client, connection) =
            tokio_postgres::connect(&self.url(), NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client
    }

    fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = self.connect().await;
            let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            let rows = messages.iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => {
                    Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
                }
                _ => None,
            });
            rows.collect()
        })
    }

    /// Rows in the order of their text, fields separated by bars.
    fn rows(&self, sql: &str) -> Vec<String> {
        let text = |field: Option<String>| field.unwrap_or_else(|| "NULL".to_owned());
        let line = |row: Vec<Option<String>>| row.into_iter().map(text).collect::<Vec<_>>().join("|");
        let mut rows: Vec<String> = self.query(sql).into_iter().map(line).collect();
        rows.sort_unstable();
        rows
    }

    fn load(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = carousel(&["load"]).args(arguments).args(["--url", &self.url()]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind; one that stopped the server has nothing left to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_was_loaded_survives_a_kill_and_a_stop() {
    let directory = scratch();
    let data = directory.path().join("data");
    let server = Server::start(&data, &["--demo", "--demo-rows=5000"]);
    let loaded = server.rows("SELECT * FROM ticket");
    assert_eq!(loaded.len(), 5000);
    server.query("CREATE TABLE note (id integer PRIMARY KEY, body text)");
    server.query("INSERT INTO note VALUES (1, 'one'), (2, NULL)");
    server.kill();

    let server = Server::start(&data, &["--demo", "--demo-rows=7000"]);
    assert!(server.rows("SELECT * FROM ticket") == loaded, "the demo fills a table only once");
    assert_eq!(server.rows("SELECT id, body FROM note"), ["1|one", "2|NULL"]);
    server.query("UPDATE note SET body = 'two' WHERE id = 2");
    assert_eq!(server.stop(libc::SIGTERM), Some(0));

    let server = Server::start(&data, &[]);
    assert!(server.rows("SELECT * FROM ticket") == loaded);
    assert_eq!(server.rows("SELECT id, body FROM note"), ["1|one", "2|two"]);
    assert_eq!(server.stop(libc::SIGINT), Some(0));
}

#[test]
fn a_data_directory_has_one_owner_and_one_version() {
    let directory = scratch();
    let data = directory.path().join("data");
    let server = Server::start(&data, &[]);
    let again = &["start", "--listen", "127.0.0.1:0", "--data-dir", path(&data)];
    let line = refusal(&mut carousel(again));
    assert!(line.contains("in use"), "{line}");
    assert_eq!(server.stop(libc::SIGTERM), Some(0));
    let line = refusal(carousel(again).args(["--storage", "7"]));
    assert!(line.contains('7'), "{line}");
}

#[test]
fn a_data_directory_keeps_its_number_of_storage_processes() {
    let directory = scratch();
    let data = directory.path().join("data");
    assert_eq!(Server::start(&data, &["--storage", "5"]).stop(libc::SIGTERM), Some(0));
    // Whatever the machine's cores would give.
    let server = Server::start(&data, &[]);
    assert_eq!(server.rows("SELECT count(*) FROM carousel.storage"), ["5"]);
    assert_eq!(server.stop(libc::SIGTERM), Some(0));
}

#[test]
fn files_are_loaded_or_their_mistakes_named() {
    let directory = scratch();
    let server = Server::start(&directory.path().join("data"), &[]);

    let (code, message) = server.load(&["ticket", "--rows", "10"]);
    assert!(code == Some(1) && message.contains("--create"), "{message}");
    let (code, message) = server.load(&["ticket", "--rows", "10", "--create", "--seed", "3"]);
    assert!(code == Some(0) && message.contains("10 rows"), "{message}");
    assert_eq!(server.rows("SELECT rloc FROM ticket").len(), 10);

    server.query("CREATE TABLE pair (a integer PRIMARY KEY, b text)");
    let file = directory.path().join("pair.csv");
    std::fs::write(&file, "a,b\n1,x\n2,\"y\nz\"\nthree,w\n").unwrap();
    let (code, message) = server.load(&["csv", path(&file), "--table", "pair", "--header"]);
    let last = message.lines().last().unwrap_or_default();
    // The quoted line break counts: the mistake is in the file's fifth line.
    assert!(code == Some(1) && last.contains("line 5, column a") && last.contains("three"), "{message}");
    assert!(server.rows("SELECT a FROM pair").is_empty(), "a bad row loads nothing");

    std::fs::write(&file, "1;x\n2;NA\n").unwrap();
    let options = ["--delimiter", ";", "--null", "NA"];
    let (code, message) = server.load(&[&["csv", path(&file), "--table", "pair"][..], &options].concat());
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(server.rows("SELECT a, b FROM pair"), ["1|x", "2|NULL"]);

    let mut piped = carousel(&["load", "csv", "-", "--table", "pair", "--url", &server.url()]);
    let mut piped = piped.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"3,z\n").unwrap();
    assert!(piped.wait().unwrap().success());
    assert_eq!(server.rows("SELECT b FROM pair WHERE a = 3"), ["z"]);

    let (code, message) = server.load(&["csv", path(&file), "--table", "nothing"]);
    assert!(code == Some(1) && message.contains("\"nothing\" does not exist"), "{message}");

    let parquet = directory.path().join("pair.parquet");
    write_parquet(&parquet);
    let (code, message) = server.load(&["parquet", path(&parquet), "--table", "pair"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(server.rows("SELECT a, b FROM pair WHERE a >= 10"), ["10|a\tb\\", "11|NULL"]);
    let (code, message) = server.load(&["parquet", path(&parquet), "--table", "pair"]);
    assert!(code == Some(1) && message.contains("already exists"), "{message}");
    let (code, message) = server.load(&["parquet", path(&parquet), "--table", "ticket"]);
    assert!(code == Some(1) && message.contains("column \"a\""), "{message}");
    let (code, message) = server.load(&["parquet", path(&parquet), "--table", "nothing"]);
    assert!(code == Some(1) && message.contains("no table \"nothing\""), "{message}");
}

fn write_parquet(file: &Path) {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use std::sync::Arc;
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![10, 11]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a\tb\\"), None]));
    let batch = RecordBatch::try_from_iter([("a", numbers), ("b", texts)]).unwrap();
    let file = std::fs::File::create(file).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn the_whole_stack_is_measured_beside_others() {
    let directory = scratch();
    let options =
        ["--rows", "1000", "--questions", "40", "--seconds", "1", "--rounds", "1", "--clients", "1,40"];
    let output = carousel(&["bench", "sql", "--mix", "mixed", "--systems", "carousel,snapshot,datafusion"])
        .args(options)
        .args(["--output", path(directory.path())])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let csv = std::fs::read_to_string(directory.path().join("sql.csv")).unwrap();
    let points: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').take(2).collect()).collect();
    assert_eq!(points.len(), 6, "{csv}");
    assert!(csv.contains("\nCarousel,40,"), "{csv}");
    let markdown = std::fs::read_to_string(directory.path().join("sql.md")).unwrap();
    assert!(markdown.contains("- rows: 1,000\n") && markdown.contains("| DataFusion"), "{markdown}");
    assert!(std::fs::read_to_string(directory.path().join("sql.svg")).unwrap().contains("DataFusion"));
}

#[test]
fn the_engine_is_measured_beside_a_baseline() {
    let directory = scratch();
    let output = carousel(&["bench", "scan", "--rows", "1000", "--questions", "40", "--rounds", "1"])
        .args(["--seconds", "0.1", "--riding", "1,8", "--baseline-clients", "1", "--update-each", "1"])
        // Whatever Python has it: DuckDB is left out.
        .args(["--python", "/nonexistent", "--output", path(directory.path())])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let file = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let csv = file("scan.csv");
    let lines = |start: &str| csv.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        (lines("selective SELECTs,Carousel,"), lines("selective SELECTs,DataFusion")),
        (2, 1),
        "{csv}"
    );
    let markdown = file("scan.md");
    assert!(markdown.contains("- DuckDB: not measured: cannot run /nonexistent"), "{markdown}");
    let targets = file("scan-targets.csv");
    assert!(targets.contains("\"reads a second, 1,024 riding\",not measured,"), "{targets}");
    assert!(targets.contains("\nbytes a row,"), "{targets}");
    assert!(file("scan.svg").contains("Carousel: beside updates"));
}

#[test]
fn clusters_are_simulated_from_seeds() {
    let simulate = |arguments: &[&str]| {
        let output = run(&[&["sim"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let summary = simulate(&["--operations", "60", "--faults", "3", "--seed", "7", "--seeds", "3"]);
    assert!(
        summary.starts_with("3 seeds in ") && summary.contains(" reconfigurations or more): "),
        "{summary}"
    );
    // The same seed gives the same trace, in other processes, too, whose hash tables have other orders.
    let hash = || {
        let summary = simulate(&["--operations", "500", "--faults", "16", "--seeds", "200"]);
        summary.trim_end().rsplit_once("hash of their traces ").expect(&summary).1.to_owned()
    };
    assert_eq!(hash(), hash());
    let trace = || {
        let text =
            simulate(&["--operations", "60", "--faults", "3", "--seed", "8", "--seeds", "1", "--trace"]);
        text.lines().filter(|line| !line.starts_with("1 seeds in ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = trace();
    assert!(first.len() > 100, "{first:?}");
    assert_eq!(first, trace());
}

#[test]
fn ordering_is_measured_over_separate_processes() {
    let directory = scratch();
    let output = carousel(&["bench", "order", "--no-etcd", "--clients", "64", "--keys", "500"])
        .args(["--seconds", "1", "--rounds", "1", "--writes-only", "--output", path(directory.path())])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let csv = std::fs::read_to_string(directory.path().join("order.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.starts_with("\"Carousel, durability ")).count(), 2, "{csv}");
}

#[test]
fn processes_are_killed_under_load_and_no_read_fails() {
    let directory = scratch();
    let output = carousel(&["bench", "failover", "--kills", "2", "--storage-kills", "1", "--writes", "200"])
        .args(["--readers", "2", "--keys", "2000", "--suspect-after-ms", "500"])
        .args(["--output", path(directory.path())])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let markdown = std::fs::read_to_string(directory.path().join("failover.md")).unwrap();
    assert!(
        markdown.contains("| lead router | 2 |") && markdown.contains("; 0 of them failed."),
        "{markdown}"
    );
}

/// The lines that `carousel ctl` prints for a running server.
fn ctl(server: &Server, arguments: &[&str]) -> Vec<String> {
    let url = server.url();
    let output = run(&[&["ctl", "--url", &url], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn notices_are_told_in_full() {
    // A server that says what one waits for while a statement runs.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let message = |kind: u8, body: &[u8]| {
        let mut message = vec![kind];
        message.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        message.extend(body);
        message
    };
    let ready = message(b'Z', b"I");
    let greeting = [message(b'R', &[0; 4]), ready.clone()].concat();
    let notice = message(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mwait\0Dfor r5\0Hstart it\0\0");
    let answer = [notice, message(b'C', b"ALTER CLUSTER\0"), ready].concat();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Only the first message of a client begins with its length.
        for (kind, answer) in [(0, greeting), (1, answer)] {
            let mut head = vec![0; kind + 4];
            stream.read_exact(&mut head).unwrap();
            let length = u32::from_be_bytes(head[kind..].try_into().unwrap());
            stream.read_exact(&mut vec![0; length as usize - 4]).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    let output = run(&["ctl", "--port", &port, "expand"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), "NOTICE: wait DETAIL: for r5 HINT: start it\n"));
    server.join().unwrap();
}

#[test]
fn writes_are_refused_before_the_disk_of_the_log_is_full() {
    let directory = scratch();
    let data = directory.path().join("data");
    let server = Server::start(&data, &[]);
    server.query("CREATE TABLE t (id bigint PRIMARY KEY)");
    server.query("INSERT INTO t VALUES (0)");
    assert_eq!(server.stop(libc::SIGTERM), Some(0));
    let refusal = refusal(&mut carousel(&["start", "--log-reserve", "5%", "--data-dir", path(&data)]));
    assert!(refusal.contains("--log-reserve"), "{refusal}");

    // As if there were less room than that.
    let server = Server::start(&data, &["--log-reserve", "900000TiB"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let inserted = runtime.block_on(async {
        let client = server.connect().await;
        // It is looked for once a second.
        let mut inserted = 0;
        let error = loop {
            match client.simple_query(&format!("INSERT INTO t VALUES ({})", inserted + 1)).await {
                Ok(_) => inserted += 1,
                Err(error) => break error,
            }
        };
        let error = error.as_db_error().expect("the server says so").clone();
        assert_eq!(error.code().code(), "53100", "{error:?}");
        let table = client.simple_query("CREATE TABLE u (id bigint)").await.expect_err("it is a write, too");
        assert_eq!(table.code().map(|code| code.code()), Some("53100"));
        inserted
    });
    assert_eq!(server.rows("SELECT count(*) FROM t"), [format!("{}", inserted + 1)]);
    assert_eq!(server.stop(libc::SIGTERM), Some(0));

    let server = Server::start(&data, &[]);
    server.query("DELETE FROM t WHERE id > 0");
    assert_eq!(server.rows("SELECT id FROM t"), ["0"]);
}

#[test]
fn the_ring_of_a_running_server_is_changed_by_ctl() {
    let directory = scratch();
    let data = directory.path().join("data");
    let options = ["--storage", "2", "--threads", "2"];
    let server = Server::start(&data, &options);
    server.query("CREATE TABLE t (id bigint PRIMARY KEY, n integer)");
    let values: Vec<String> = (0..2_000).map(|id| format!("({id}, {})", id % 7)).collect();
    server.query(&format!("INSERT INTO t VALUES {}", values.join(", ")));
    let rows = server.rows("SELECT id, n FROM t");
    let on_the_ring = |server: &Server| {
        let lines = ctl(server, &["ring"]);
        lines[1..].iter().map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(on_the_ring(&server), ["s1", "s2"]);
    // A process is started for it.
    assert_eq!(ctl(&server, &["expand"]), [""; 0]);
    assert!(on_the_ring(&server).contains(&"s3".to_owned()));
    ctl(&server, &["contract", "s1"]);
    assert!(!on_the_ring(&server).contains(&"s1".to_owned()));
    assert_eq!(server.rows("SELECT id, n FROM t"), rows);
    let moving = "SELECT count(*) FROM carousel.migrations";
    while server.rows(moving) != ["0"] {}
    assert_eq!(ctl(&server, &["storage"]).iter().filter(|line| line.contains("active")).count(), 2);
    let refused = run(&["ctl", "--url", &server.url(), "contract", "s9"]);
    assert_eq!((refused.status.code(), &refused.stdout[..]), (Some(1), &b""[..]));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("s9"));
    server.kill();
    let server = Server::start(&data, &options);
    assert!(!on_the_ring(&server).contains(&"s1".to_owned()));
    assert_eq!(server.rows("SELECT id, n FROM t"), rows);
    assert_eq!(server.stop(libc::SIGTERM), Some(0));
}

#[test]
fn ctl_waits_no_longer_than_it_may() {
    // It takes connections and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let output = run(&["ctl", "--port", &port, "--timeout", "1", "ring"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "carousel: no answer within 1 s\n");
}

#[test]
fn a_benchmark_that_is_stopped_ends_its_processes() {
    let directory = scratch();
    let path = directory.path().to_str().unwrap();
    let started = |what: &str| {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let commands = all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        let commands = commands.map(|command| String::from_utf8_lossy(&command).into_owned());
        commands.filter(|command| command.contains(path) && command.contains(what)).count()
    };
    let mut bench = carousel(&["bench", "order", "--no-etcd", "--seconds", "60"])
        .env("TMPDIR", path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while started("storage") == 0 {
        assert_eq!(bench.try_wait().unwrap(), None);
    }
    signal(&bench, libc::SIGTERM);
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(started(""), 0);
}

#[test]
fn the_ring_changes_under_load_and_no_statement_fails() {
    let directory = scratch();
    let output = carousel(&["bench", "elastic", "--rows", "20000", "--seconds", "1", "--reads", "50"])
        .args(["--writes", "20", "--clients", "4", "--routers", "1", "--storage", "3", "--rounds", "2"])
        .args(["--output", path(directory.path())])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let markdown = std::fs::read_to_string(directory.path().join("elastic.md")).unwrap();
    assert!(markdown.contains(" statements, 0 of them failed."), "{markdown}");
    let csv = std::fs::read_to_string(directory.path().join("elastic.csv")).unwrap();
    for change in ["expand", "rebalance", "replace", "contract"] {
        assert_eq!(csv.lines().filter(|line| line.starts_with(change)).count(), 2, "{csv}");
    }
    let trace = std::fs::read_to_string(directory.path().join("trace.svg")).unwrap();
    assert!(trace.contains("contract"), "{trace}");
}
