//! The state of a session's transaction block. A block only reads, and sees one snapshot.

use carousel_cluster::client::Pin;

use super::ids::now_micros;

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Outside of a block: every statement is its own transaction.
    Idle,
    /// Inside a block.
    Open,
    /// Inside a block in which a statement failed.
    Failed,
}

/// A session's transaction.
#[derive(Debug)]
pub struct Transaction {
    state: State,
    /// When the transaction began.
    timestamp: i64,
    /// Outside of a block: whether a statement has begun since the last answer ended.
    begun: bool,
    /// Several statements came in one text, which are a block as far as settings are concerned.
    pub several: bool,
    /// The snapshot of the block, from its first read on.
    pub pin: Option<Pin>,
    /// A write was executed since the implicit transaction of the extended protocol began.
    pub has_written: bool,
}

impl Transaction {
    /// Outside of a block.
    pub fn new() -> Transaction {
        Transaction {
            state: State::Idle,
            timestamp: now_micros(),
            begun: false,
            several: false,
            pin: None,
            has_written: false,
        }
    }

    /// Where the session is.
    pub fn state(&self) -> State {
        self.state
    }

    /// What `now()` gives: when the transaction began.
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }

    /// Outside of a block, a transaction begins with the first statement after the end of an answer.
    pub fn begin_implicit(&mut self) {
        if self.state == State::Idle && !self.begun {
            self.timestamp = now_micros();
            self.begun = true;
        }
    }

    /// An answer has ended, and with it, outside of a block, the transaction.
    pub fn end_implicit(&mut self) {
        if self.state == State::Idle {
            self.begun = false;
            self.has_written = false;
        }
    }

    /// Whether SET LOCAL and SET TRANSACTION make sense.
    pub fn is_block(&self) -> bool {
        self.state != State::Idle || self.several
    }

    /// A block begins.
    pub fn begin(&mut self) {
        self.state = State::Open;
    }

    /// A statement failed.
    pub fn fail(&mut self) {
        if self.state == State::Open {
            self.state = State::Failed;
            self.pin = None;
        }
    }

    /// The block ends.
    pub fn end(&mut self) {
        self.state = State::Idle;
        self.pin = None;
    }
}
