//! The load generator: many connections on few threads, which do as little as possible for each statement.
//!
//! A statement is a Bind, an Execute and a Sync of a statement that was prepared, encoded beforehand; of an answer, the
//! messages are counted. Connections belong to a runtime of their own, so that nothing else in this process keeps them
//! waiting.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt, stream};
use postgres_protocol::{
    IsNull,
    message::{
        backend::{self, Header},
        frontend,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
};

use super::question::{Hand, Questions, line};
use crate::{bench::measured::Turn, cli::Failure};

/// Connections that are made at the same time.
const CONNECTING: usize = 32;
/// Bytes of an answer that are read at once.
const READ_BYTES: usize = 8 << 10;
/// How long a server may take to end its sessions.
const LEAVING: Duration = Duration::from_secs(60);

/// Where to connect, and as whom.
#[derive(Clone, Debug)]
pub struct Address {
    /// Name of the system, for errors.
    pub system: String,
    /// Address of the server.
    pub socket: SocketAddr,
    /// Startup parameters: user, database, options.
    pub startup: Vec<(String, String)>,
}

/// Clients that have connected and prepared their statements.
pub struct Clients {
    threads: Vec<Worker>,
}

struct Worker {
    runtime: Runtime,
    clients: Vec<Client>,
}

struct Client {
    connection: Connection,
    hand: Hand,
    statements: Vec<Statement>,
}

/// A prepared statement as it is sent.
struct Statement {
    message: Bytes,
    rows: usize,
}

impl Clients {
    /// Connects a client for each hand, spread over `threads` threads, and prepares its questions.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn connect(
        address: &Address,
        questions: &Questions,
        hands: Vec<Hand>,
        threads: usize,
    ) -> Result<Clients, Failure> {
        let mut shares: Vec<Vec<Hand>> = vec![Vec::new(); threads.clamp(1, hands.len().max(1))];
        let count = shares.len();
        for (index, hand) in hands.into_iter().enumerate() {
            shares[index % count].push(hand);
        }
        let threads = shares
            .into_iter()
            .map(|share| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| Failure::setup(format!("cannot start a runtime: {error}")))?;
                let clients = runtime.block_on(async {
                    let clients: Vec<_> = stream::iter(share)
                        .map(|hand| Client::start(address, questions, hand))
                        .buffer_unordered(CONNECTING)
                        .collect()
                        .await;
                    clients.into_iter().collect::<Result<Vec<_>, _>>()
                })?;
                Ok(Worker { runtime, clients })
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        Ok(Clients { threads })
    }

    /// Lets every client ask one question after the other for `duration`; the last answers are waited for, within
    /// [`patience`](crate::bench::measured::patience). The number of rows of every answer is checked.
    ///
    /// # Errors
    /// An error of the server, or a wrong answer.
    pub fn turn(&mut self, duration: Duration) -> Result<Turn, Failure> {
        let started = Instant::now();
        let turns: Vec<Result<Turn, Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .threads
                .iter_mut()
                .map(|worker| {
                    scope.spawn(move || {
                        let before = thread_cpu();
                        let asking = ask(started, duration, &mut worker.clients);
                        let turn = worker.runtime.block_on(asking)?;
                        Ok(Turn { clients_cpu: thread_cpu().saturating_sub(before), ..turn })
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
        });
        let mut all = Turn { elapsed: started.elapsed(), ..Turn::default() };
        for turn in turns {
            all.add(turn?);
        }
        Ok(all)
    }

    /// Disconnects, and waits until the server has ended the sessions: what it still does for statements that were
    /// cancelled would slow down whoever has the next turn.
    pub fn leave(self) {
        for Worker { runtime, clients } in self.threads {
            let leaving = stream::iter(clients).for_each_concurrent(None, |client| client.connection.close());
            // A server that does not end them has been waited for long enough.
            let _ = runtime.block_on(async { tokio::time::timeout(LEAVING, leaving).await });
        }
    }
}

/// Asks each question once; gives the answers, see [`line()`], sorted.
///
/// # Errors
/// When the server refuses.
pub fn answers(
    address: &Address,
    questions: &[&super::question::Question],
) -> Result<Vec<Vec<String>>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup(format!("cannot start a runtime: {error}")))?;
    runtime.block_on(async {
        let mut connection = Connection::open(Arc::new(address.clone())).await?;
        let mut answers = Vec::with_capacity(questions.len());
        for question in questions {
            let mut message = BytesMut::new();
            let whole = connection.parse("", &question.sql, &mut message);
            whole.and_then(|()| connection.bind("", &question.parameters, &mut message))?;
            let mut answer = Vec::new();
            connection.ask(&message, |row| answer.push(fields(row))).await?;
            answer.sort_unstable();
            answers.push(answer);
        }
        Ok(answers)
    })
}

/// The fields of the body of a DataRow.
fn fields(mut body: &[u8]) -> String {
    let count = body.get_i16();
    line((0..count).map(|_| match usize::try_from(body.get_i32()) {
        Ok(length) => {
            let (field, rest) = body.split_at(length);
            body = rest;
            String::from_utf8_lossy(field).into_owned()
        }
        // NULL.
        Err(_) => String::new(),
    }))
}

/// Each client is a task of its own: thousands of them in one would all be looked at when one can go on.
async fn ask(started: Instant, duration: Duration, clients: &mut Vec<Client>) -> Result<Turn, Failure> {
    let mut tasks = JoinSet::new();
    for mut client in clients.drain(..) {
        tasks.spawn(async move { client.ask(started, duration).await.map(|turn| (client, turn)) });
    }
    let mut all = Turn::default();
    while let Some(ended) = tasks.join_next().await {
        let (client, turn) = ended.map_err(|error| Failure::job(format!("a client failed: {error}")))??;
        clients.push(client);
        all.add(turn);
    }
    Ok(all)
}

impl Client {
    async fn start(address: &Address, questions: &Questions, hand: Hand) -> Result<Client, Failure> {
        let mut connection = Connection::open(Arc::new(address.clone())).await?;
        let mut statements = Vec::new();
        let mut prepare = BytesMut::new();
        for (index, place) in hand.questions().enumerate() {
            let question = &questions.all()[place];
            let name = format!("q{index}");
            connection.parse(&name, &question.sql, &mut prepare)?;
            let mut message = BytesMut::new();
            connection.bind(&name, &question.parameters, &mut message)?;
            statements.push(Statement { message: message.freeze(), rows: question.answer.len() });
        }
        frontend::sync(&mut prepare);
        connection.ask(&prepare, |_| {}).await?;
        Ok(Client { connection, hand, statements })
    }

    async fn ask(&mut self, started: Instant, duration: Duration) -> Result<Turn, Failure> {
        let mut asking = self.hand.ask(started, duration);
        while let Some(place) = asking.next() {
            let statement = &self.statements[place];
            let mut rows = 0;
            let answer = self.connection.ask(&statement.message, |_| rows += 1);
            let Some(answered) = asking.wait(answer).await else { break };
            answered?;
            if rows != statement.rows {
                let wanted = statement.rows;
                return Err(self.connection.failed(format!("{rows} rows instead of {wanted}")));
            }
        }
        Ok(asking.turn)
    }
}

/// A connection of the Postgres protocol.
struct Connection {
    address: Arc<Address>,
    socket: TcpStream,
    received: BytesMut,
}

impl Connection {
    async fn open(address: Arc<Address>) -> Result<Connection, Failure> {
        let socket = TcpStream::connect(address.socket).await;
        let socket = socket.map_err(|error| {
            Failure::job(format!("{}: cannot connect to {}: {error}", address.system, address.socket))
        })?;
        // Only a delay is at stake.
        let _ = socket.set_nodelay(true);
        let mut connection = Connection { address, socket, received: BytesMut::new() };
        let mut message = BytesMut::new();
        let startup: Vec<(&str, &str)> =
            connection.address.startup.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        frontend::startup_message(startup, &mut message).map_err(|error| connection.failed(error))?;
        connection.ask(&message, |_| {}).await?;
        Ok(connection)
    }

    /// Tells the server that nothing more comes, and waits until it has nothing more to say either.
    async fn close(mut self) {
        // An error is an end as well.
        let _ = self.socket.shutdown().await;
        while self.socket.read_buf(&mut self.received).await.is_ok_and(|bytes| bytes > 0) {
            self.received.clear();
        }
    }

    fn failed(&self, reason: impl std::fmt::Display) -> Failure {
        Failure::job(format!("{}: {reason}", self.address.system))
    }

    /// A Parse.
    fn parse(&self, name: &str, sql: &str, out: &mut BytesMut) -> Result<(), Failure> {
        frontend::parse(name, sql, [], out).map_err(|error| self.failed(error))
    }

    /// A Bind with parameters as text, an Execute and a Sync.
    fn bind(&self, statement: &str, parameters: &[String], out: &mut BytesMut) -> Result<(), Failure> {
        let text = |parameter: &String, out: &mut BytesMut| {
            out.extend_from_slice(parameter.as_bytes());
            Ok(IsNull::No)
        };
        frontend::bind("", statement, [], parameters, text, [], out)
            .map_err(|_| self.failed("a parameter is too long"))?;
        frontend::execute("", 0, out).map_err(|error| self.failed(error))?;
        frontend::sync(out);
        Ok(())
    }

    /// Sends, and takes messages until the server is ready for more. `row` sees the body of every row.
    async fn ask(&mut self, message: &[u8], mut row: impl FnMut(&[u8])) -> Result<(), Failure> {
        let sent = self.socket.write_all(message).await;
        sent.map_err(|error| self.failed(error))?;
        loop {
            while let Some(header) = Header::parse(&self.received).map_err(|error| self.failed(error))? {
                let length = header.len() as usize + 1;
                if self.received.len() < length {
                    break;
                }
                match header.tag() {
                    backend::DATA_ROW_TAG => row(&self.received[5..length]),
                    backend::ERROR_RESPONSE_TAG => return Err(self.failed(error(&self.received[5..length]))),
                    backend::AUTHENTICATION_TAG if self.received[5..length] != [0; 4] => {
                        return Err(self.failed("it asks for a password"));
                    }
                    backend::READY_FOR_QUERY_TAG => {
                        self.received.advance(length);
                        return Ok(());
                    }
                    _ => {}
                }
                self.received.advance(length);
            }
            self.received.reserve(READ_BYTES);
            match self.socket.read_buf(&mut self.received).await {
                Ok(0) => return Err(self.failed("the server has closed the connection")),
                Ok(_) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }
}

/// The words of an ErrorResponse.
fn error(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let wanted: Vec<_> = fields
        .filter(|(kind, _)| matches!(kind, b'C' | b'M' | b'D'))
        .map(|(_, text)| String::from_utf8_lossy(text))
        .collect();
    wanted.join(" ")
}

/// Time of a processor that this thread has taken.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a structure of our own.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    if told == 0 { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) } else { Duration::ZERO }
}
