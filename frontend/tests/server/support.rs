//! A server for one test, and a client that speaks the protocol byte by byte.

use std::net::SocketAddr;

use carousel_cluster::embedded::{Cluster, EmbeddedOptions};
use carousel_frontend::{FrontEnd, Handle, Options};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::{Client, NoTls, error::DbError};

/// So that a test that waits for what never comes fails.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A cluster in a directory of its own, and its front end.
pub struct Server {
    pub handle: Handle,
    cluster: Cluster,
    _directory: tempfile::TempDir,
}

impl Server {
    pub async fn start() -> Server {
        Server::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Options)) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let mut embedded = EmbeddedOptions::new(directory.path());
        embedded.storage = 2;
        let cluster = Cluster::start(embedded).await.unwrap();
        let mut options = Options::new("127.0.0.1:0".parse().unwrap());
        change(&mut options);
        let handle = FrontEnd::start(options, cluster.client()).await.unwrap();
        Server { handle, cluster, _directory: directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(self.address().port()).user("tester").dbname("anything");
        config
    }

    pub async fn connect(&self) -> Client {
        connect(&self.config()).await
    }

    pub async fn raw(&self) -> Raw {
        let mut raw = Raw::open(self.address()).await;
        raw.start().await;
        raw
    }
}

pub async fn connect(config: &tokio_postgres::Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The server's error in a client's error.
pub fn db_error(error: tokio_postgres::Error) -> DbError {
    error.as_db_error().unwrap_or_else(|| panic!("no error of the server: {error}")).clone()
}

pub fn code(error: tokio_postgres::Error) -> String {
    db_error(error).code().code().to_owned()
}

/// The rows of a simple query as text.
pub async fn rows(client: &Client, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages = client.simple_query(sql).await.unwrap();
    let rows = messages.into_iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    rows.map(|row| (0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()).collect()
}

/// The only value of a simple query.
pub async fn value(client: &Client, sql: &str) -> String {
    rows(client, sql).await[0][0].clone().unwrap()
}

/// Rows of the table that [`make_long_table`] makes.
pub const LONG: usize = 20_000;

/// A table `t` of so many rows of a kilobyte: more than there is room for on the way to somebody who does not read.
pub async fn make_long_table(client: &Client) {
    client.batch_execute("create table t (a int, b text)").await.unwrap();
    let rows: Vec<String> = (0..LONG).map(|n| format!("({n}, repeat('x', 1000))")).collect();
    client.batch_execute(&format!("insert into t values {}", rows.join(","))).await.unwrap();
}

/// A connection without a driver.
pub struct Raw {
    pub socket: TcpStream,
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: char,
    pub body: Vec<u8>,
}

impl Message {
    /// A field of an error.
    pub fn field(&self, kind: u8) -> String {
        let field = self.body.split(|b| *b == 0).find(|field| field.first() == Some(&kind));
        String::from_utf8_lossy(&field.unwrap_or_else(|| panic!("no field {}", char::from(kind)))[1..]).into()
    }
}

impl Raw {
    pub async fn open(address: SocketAddr) -> Raw {
        Raw { socket: TcpStream::connect(address).await.unwrap() }
    }

    /// Starts a session and waits until it is ready.
    pub async fn start(&mut self) -> Vec<Message> {
        self.startup(0x30000, b"user\0raw\0\0").await;
        self.until('Z').await
    }

    pub async fn startup(&mut self, version: u32, parameters: &[u8]) {
        let mut packet = (8 + parameters.len() as u32).to_be_bytes().to_vec();
        packet.extend_from_slice(&version.to_be_bytes());
        packet.extend_from_slice(parameters);
        self.write(&packet).await;
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    pub async fn send(&mut self, kind: char, body: &[u8]) {
        let mut message = vec![kind as u8];
        message.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        message.extend_from_slice(body);
        self.write(&message).await;
    }

    /// The next message; `None` when the server has closed the connection.
    pub async fn next(&mut self) -> Option<Message> {
        tokio::time::timeout(PATIENCE, self.read_message()).await.expect("the server says nothing")
    }

    async fn read_message(&mut self) -> Option<Message> {
        let mut head = [0; 5];
        self.socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        self.socket.read_exact(&mut body).await.ok()?;
        Some(Message { kind: char::from(head[0]), body })
    }

    /// The messages up to one of this type.
    pub async fn until(&mut self, kind: char) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let message = self.next().await.unwrap_or_else(|| panic!("closed before {kind}: {messages:?}"));
            messages.push(message);
            if messages.last().is_some_and(|m| m.kind == kind) {
                return messages;
            }
        }
    }

    /// The error that ends the connection.
    pub async fn last_words(&mut self) -> Message {
        let error = self.next().await.expect("an error before the connection ends");
        assert_eq!(error.kind, 'E');
        assert_eq!(self.next().await, None);
        error
    }

    pub async fn query(&mut self, sql: &str) -> Vec<Message> {
        self.send('Q', format!("{sql}\0").as_bytes()).await;
        self.until('Z').await
    }
}

/// The types of messages, as a word.
pub fn kinds(messages: &[Message]) -> String {
    messages.iter().map(|m| m.kind).collect()
}
