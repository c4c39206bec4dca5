//! Readers that go away, that change their mind and that do not read: each of them concerns nobody but itself.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use super::{Server, scratch};

/// A test that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rows whose text is larger than what sockets and windows hold.
const ROWS: usize = 60_000;

/// A server with many rows in the table ticket, and where it serves its metrics.
struct Scene {
    server: Server,
    metrics: String,
}

impl Scene {
    fn start(directory: &Path) -> Scene {
        let metrics = carousel_cluster::transport::free_addresses(1).unwrap().remove(0);
        let rows = format!("--demo-rows={ROWS}");
        let options = [
            "--demo",
            rows.as_str(),
            "--storage",
            "1",
            "--threads",
            "2",
            "--metrics-listen",
            metrics.as_str(),
        ];
        let server = Server::start(&directory.join("data"), &options);
        assert_eq!(server.rows("SELECT count(*) FROM ticket"), [ROWS.to_string()]);
        Scene { server, metrics }
    }

    /// Operations that are on the scan, or wait for their readers.
    fn riders(&self) -> f64 {
        let mut stream = TcpStream::connect(&self.metrics).expect("metrics are served");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let riders = text.lines().filter(|line| line.starts_with("carousel_scan_riders"));
        let counts: Vec<f64> = riders.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
        assert!(!counts.is_empty(), "no riders in:\n{text}");
        counts.iter().sum()
    }

    /// Waits for reads on the scan, or for there to be none.
    fn wait_for_riders(&self, some: bool) {
        let begun = std::time::Instant::now();
        while (self.riders() > 0.0) != some {
            assert!(begun.elapsed() < PATIENCE, "riders: {}", self.riders());
        }
    }

    fn reader(&self) -> Reader {
        Reader::start(self.server.port)
    }

    /// Bytes that the server has in memory.
    #[cfg(target_os = "linux")]
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("its memory");
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kilobytes * 1024
    }
}

/// A connection without a driver, which reads when it is told to.
struct Reader {
    socket: TcpStream,
    port: u16,
    /// What a request to cancel its statement says.
    key: Vec<u8>,
}

impl Reader {
    fn start(port: u16) -> Reader {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = Reader { socket, port, key: Vec::new() };
        reader.send(&[&[0, 3, 0, 0][..], b"user\0reader\0\0"].concat());
        loop {
            match reader.next() {
                (b'K', body) => reader.key = body,
                (b'Z', _) => return reader,
                _ => {}
            }
        }
    }

    /// Sends a packet with its length in front.
    fn send(&mut self, body: &[u8]) {
        let length = (body.len() as u32 + 4).to_be_bytes();
        self.socket.write_all(&[&length[..], body].concat()).unwrap();
    }

    fn ask(&mut self, sql: &str) {
        self.socket.write_all(b"Q").unwrap();
        self.send(format!("{sql}\0").as_bytes());
    }

    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 5];
        self.socket.read_exact(&mut head).expect("a message of the server");
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        self.socket.read_exact(&mut body).expect("a whole message");
        (head[0], body)
    }

    /// Asks for everything and reads one row of it.
    fn begin(&mut self) {
        self.ask("SELECT * FROM ticket");
        assert_eq!(self.next().0, b'T');
        assert_eq!(self.next().0, b'D');
    }

    /// Counts the rows up to the end, and gives the SQLSTATE if it is an error.
    fn finish(&mut self) -> (usize, Option<String>) {
        let (mut rows, mut error) = (0, None);
        loop {
            match self.next() {
                (b'D', _) => rows += 1,
                (b'E', body) => {
                    let code = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&b'C'));
                    error = code.map(|code| String::from_utf8_lossy(&code[1..]).into_owned());
                }
                (b'Z', _) => return (rows, error),
                _ => {}
            }
        }
    }

    fn cancel(&self) {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let body = [&80_877_102_u32.to_be_bytes()[..], &self.key].concat();
        let length = (body.len() as u32 + 4).to_be_bytes();
        socket.write_all(&[&length[..], &body].concat()).unwrap();
        // The server closes the connection when it has done what it was asked.
        assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn the_read_of_a_connection_that_is_gone_ends() {
    let directory = scratch();
    let scene = Scene::start(directory.path());
    let mut reader = scene.reader();
    reader.begin();
    scene.wait_for_riders(true);
    drop(reader);
    scene.wait_for_riders(false);
    assert_eq!(scene.server.stop(libc::SIGTERM), Some(0));
}

#[test]
fn a_statement_is_cancelled_in_mid_scan() {
    let directory = scratch();
    let scene = Scene::start(directory.path());
    let mut reader = scene.reader();
    reader.begin();
    scene.wait_for_riders(true);
    reader.cancel();
    let (rows, error) = reader.finish();
    assert_eq!(error.as_deref(), Some("57014"));
    assert!(rows < ROWS - 1, "{rows} rows");
    scene.wait_for_riders(false);
    // The session goes on.
    reader.ask("SELECT * FROM ticket");
    assert_eq!(reader.finish(), (ROWS, None));
    assert_eq!(scene.server.stop(libc::SIGTERM), Some(0));
}

#[test]
fn readers_that_do_not_read_slow_only_themselves() {
    let directory = scratch();
    let scene = Scene::start(directory.path());
    scene.server.query("CREATE TABLE note (id integer PRIMARY KEY, body text)");
    #[cfg(target_os = "linux")]
    let before = scene.resident();
    let mut readers: Vec<Reader> = (0..16).map(|_| scene.reader()).collect();
    for reader in &mut readers {
        reader.begin();
    }
    scene.wait_for_riders(true);
    for id in 0..50 {
        scene.server.query(&format!("INSERT INTO note VALUES ({id}, 'x')"));
    }
    assert_eq!(scene.server.rows("SELECT count(*) FROM note"), ["50"]);
    assert_eq!(scene.server.rows("SELECT count(*) FROM ticket"), [ROWS.to_string()]);
    assert!(scene.riders() > 0.0, "they still wait");
    #[cfg(target_os = "linux")]
    {
        // All of them together would have more than 16 times 20 MB.
        let grown = scene.resident().saturating_sub(before);
        assert!(grown < 160 << 20, "{grown} bytes more");
    }
    // Who reads on gets everything as it was when it asked.
    assert_eq!(readers[0].finish(), (ROWS - 1, None));
    // The others hang, and do not keep the server from ending.
    assert_eq!(scene.server.stop(libc::SIGTERM), Some(0));
}
