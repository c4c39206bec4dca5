//! What a statement takes from outside the database: time, identifiers, randomness. Asked before a message is
//! submitted, so that every replica computes the same (DESIGN, decision 2).

use carousel_cluster::client::Client;
use carousel_engine::{SqlError, error::Result};
use carousel_planner::IdSource;

/// Microseconds since 1970-01-01 UTC.
#[allow(
    clippy::disallowed_methods,
    reason = "the session is the shell that reads the clock for its statements"
)]
pub fn now_micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

/// Identifiers and random values for one statement.
pub struct Ids<'a> {
    client: &'a Client,
    block: u64,
    next: i64,
    left: u64,
    failure: Option<SqlError>,
}

impl<'a> Ids<'a> {
    /// A source that asks the client for `block` row identifiers at a time.
    pub fn new(client: &'a Client, block: u64) -> Ids<'a> {
        Ids { client, block, next: 0, left: 0, failure: None }
    }

    /// Whether every row identifier could be given.
    ///
    /// # Errors
    /// 54000 when there are no more: what was made with this source must not be used.
    pub fn check(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl IdSource for Ids<'_> {
    fn row_id(&mut self) -> i64 {
        if self.left == 0 {
            match self.client.reserve_row_ids(self.block) {
                Ok(first) => (self.next, self.left) = (first, self.block),
                Err(error) => {
                    self.failure = Some(error);
                    return 0;
                }
            }
        }
        let id = self.next;
        self.next += 1;
        self.left -= 1;
        id
    }

    fn uuid(&mut self) -> [u8; 16] {
        let mut bytes: [u8; 16] = rand::random();
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        bytes
    }

    fn random(&mut self) -> f64 {
        rand::random()
    }
}
