//! One client's connection: messages in, bytes out, and what interrupts a session.

use std::time::Instant;

use bytes::BytesMut;
use carousel_engine::{SqlError, SqlState, error::Result};
use tokio::{
    io::AsyncWriteExt,
    net::tcp::OwnedWriteHalf,
    sync::{mpsc, watch},
};

use crate::protocol::{
    KEPT_BUFFER_BYTES,
    backend::Output,
    frames::{Frame, Incoming},
};

/// Bytes of output after which they are sent before more is made.
pub const OUTPUT_ENOUGH_BYTES: usize = 64 << 10;

/// How a piece of a session's work ends before its time.
#[derive(Debug)]
pub enum Failed {
    /// The statement fails with this error; the session goes on.
    Statement(SqlError),
    /// The session ends; the client is told why, if it is still there.
    Session(Option<SqlError>),
}

impl From<SqlError> for Failed {
    fn from(error: SqlError) -> Failed {
        Failed::Statement(error)
    }
}

impl Failed {
    /// The client has gone.
    pub const GONE: Failed = Failed::Session(None);
}

/// What others have to say to a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signals {
    /// Stop the running statement.
    cancel: bool,
    /// The client has gone, or asked to end.
    gone: bool,
    /// The server stops.
    shutdown: bool,
}

/// Where others interrupt a session.
#[derive(Clone, Debug)]
pub struct Interrupter(watch::Sender<Signals>);

impl Interrupter {
    /// A way to interrupt, and to notice it.
    pub fn new() -> (Interrupter, Interrupts) {
        let (sender, receiver) = watch::channel(Signals::default());
        (
            Interrupter(sender.clone()),
            Interrupts { signals: receiver, sender, stoppable: false, deadline: None },
        )
    }

    /// Stops the running statement, if there is one.
    pub fn cancel(&self) {
        self.0.send_modify(|s| s.cancel = true);
    }

    /// The client has gone.
    pub fn gone(&self) {
        self.0.send_modify(|s| s.gone = true);
    }

    /// The server stops.
    pub fn shutdown(&self) {
        self.0.send_modify(|s| s.shutdown = true);
    }
}

/// What a session notices of others.
#[derive(Clone, Debug)]
pub struct Interrupts {
    signals: watch::Receiver<Signals>,
    sender: watch::Sender<Signals>,
    /// Whether a statement runs that can be stopped.
    stoppable: bool,
    deadline: Option<Instant>,
}

impl Interrupts {
    /// A statement begins: requests to cancel an earlier one are forgotten. It may run up to `deadline`.
    pub fn begin_statement(&mut self, deadline: Option<Instant>) {
        // Nobody needs to be woken for it.
        self.sender.send_if_modified(|s| {
            s.cancel = false;
            false
        });
        self.go_on(deadline);
    }

    /// The next statement of the same text begins; a request to cancel the text stands.
    pub fn go_on(&mut self, deadline: Option<Instant>) {
        self.stoppable = true;
        self.deadline = deadline;
    }

    /// The statement has ended, or has done what cannot be undone: only the end of the session can stop it.
    pub fn end_statement(&mut self) {
        self.stoppable = false;
        self.deadline = None;
    }

    /// Whether the running statement must stop, after what was computed without looking.
    ///
    /// # Errors
    /// How it must.
    pub async fn check(&mut self) -> Result<(), Failed> {
        self.guard(std::future::ready(())).await
    }

    /// Waits until the running statement must stop, and says how.
    pub async fn statement(&mut self) -> Failed {
        let (stoppable, deadline) = (self.stoppable, self.deadline);
        let interrupted = self.signals.wait_for(|s| (s.cancel && stoppable) || s.gone || s.shutdown);
        let signals = match deadline {
            None => interrupted.await,
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), interrupted).await {
                Ok(signals) => signals,
                Err(_) => return canceled("canceling statement due to statement timeout"),
            },
        };
        match signals.map(|s| *s) {
            Ok(Signals { gone: true, .. }) | Err(_) => Failed::GONE,
            Ok(Signals { shutdown: true, .. }) => shutting_down(),
            Ok(_) => canceled("canceling statement due to user request"),
        }
    }

    /// Waits until the session must end, and says how.
    pub async fn session(&mut self) -> Failed {
        match self.signals.wait_for(|s| s.gone || s.shutdown).await.map(|s| *s) {
            Ok(Signals { shutdown: true, gone: false, .. }) => shutting_down(),
            _ => Failed::GONE,
        }
    }

    /// Does a part of a statement's work unless the statement must stop.
    ///
    /// # Errors
    /// Why it must stop.
    pub async fn guard<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failed> {
        tokio::select! {
            biased;
            failed = self.statement() => Err(failed),
            result = work => Ok(result),
        }
    }
}

fn canceled(message: &str) -> Failed {
    SqlError::new(SqlState::QUERY_CANCELED, message).into()
}

fn shutting_down() -> Failed {
    let error =
        SqlError::new(SqlState::ADMIN_SHUTDOWN, "terminating connection due to administrator command");
    Failed::Session(Some(error))
}

/// A client's connection as its session sees it.
#[derive(Debug)]
pub struct Connection {
    writer: OwnedWriteHalf,
    inbox: mpsc::UnboundedReceiver<Incoming>,
    /// What is to be sent next.
    pub output: Output,
    /// What others have to say.
    pub interrupts: Interrupts,
}

impl Connection {
    /// A connection whose messages come from `inbox`.
    pub fn new(
        writer: OwnedWriteHalf,
        inbox: mpsc::UnboundedReceiver<Incoming>,
        output: Output,
        interrupts: Interrupts,
    ) -> Connection {
        Connection { writer, inbox, output, interrupts }
    }

    /// The next message, while no statement runs.
    ///
    /// # Errors
    /// When the session must end.
    pub async fn next_message(&mut self) -> Result<Frame, Failed> {
        let incoming = tokio::select! {
            biased;
            failed = self.interrupts.session() => return Err(failed),
            incoming = self.inbox.recv() => incoming,
        };
        taken(incoming)
    }

    /// The next message, while a statement waits for it (COPY FROM STDIN).
    ///
    /// # Errors
    /// When the statement must stop.
    pub async fn next_message_of_statement(&mut self) -> Result<Frame, Failed> {
        let incoming = tokio::select! {
            biased;
            failed = self.interrupts.statement() => return Err(failed),
            incoming = self.inbox.recv() => incoming,
        };
        taken(incoming)
    }

    /// Sends what there is to send; only the end of the session interrupts it.
    ///
    /// # Errors
    /// When the session must end.
    pub async fn flush(&mut self) -> Result<(), Failed> {
        while !self.output.bytes.is_empty() {
            tokio::select! {
                biased;
                failed = self.interrupts.session() => return Err(failed),
                written = self.writer.write_buf(&mut self.output.bytes) => match written {
                    Ok(0) | Err(_) => return Err(Failed::GONE),
                    Ok(_) => {}
                }
            }
        }
        if self.output.bytes.try_reclaim(KEPT_BUFFER_BYTES + 1) {
            self.output.bytes = BytesMut::new();
        }
        Ok(())
    }

    /// Sends what there is to send, if that is enough to be worth it, as a part of a statement that can be stopped. A
    /// client that reads slowly makes its statement wait here, and only its own.
    ///
    /// # Errors
    /// When the statement must stop; what has not been sent stays to be sent.
    pub async fn flush_if_enough(&mut self) -> Result<(), Failed> {
        while self.output.bytes.len() >= OUTPUT_ENOUGH_BYTES {
            tokio::select! {
                biased;
                failed = self.interrupts.statement() => return Err(failed),
                written = self.writer.write_buf(&mut self.output.bytes) => match written {
                    Ok(0) | Err(_) => return Err(Failed::GONE),
                    Ok(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Sends last words without waiting for a client that does not read.
    pub async fn finish(mut self, patience: std::time::Duration) {
        let last = async {
            while !self.output.bytes.is_empty() {
                match self.writer.write_buf(&mut self.output.bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
            // The client may have gone before.
            let _ = self.writer.shutdown().await;
        };
        let _ = tokio::time::timeout(patience, last).await;
    }
}

fn taken(incoming: Option<Incoming>) -> Result<Frame, Failed> {
    match incoming {
        Some(Incoming::Frame(frame)) => Ok(frame),
        Some(Incoming::Broken(error)) => Err(Failed::Session(Some(error))),
        None => Err(Failed::GONE),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::AsyncReadExt,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[tokio::test]
    async fn the_room_of_a_long_row_is_given_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let (_, inbox) = mpsc::unbounded_channel();
        let (_interrupter, interrupts) = Interrupter::new();
        let mut connection = Connection::new(socket.into_split().1, inbox, Output::default(), interrupts);
        for (bytes, kept) in [(1000, true), (4 << 20, false)] {
            connection.output.bytes.resize(bytes, b'x');
            let mut received = vec![0; bytes];
            let (sent, read) = tokio::join!(connection.flush(), client.read_exact(&mut received));
            assert!(sent.is_ok() && read.is_ok());
            assert_eq!(connection.output.bytes.try_reclaim(1000), kept, "{bytes} bytes");
        }
    }
}
