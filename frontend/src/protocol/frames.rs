//! Cutting the byte stream of a client into messages, within bounds.
//!
//! A task of its own reads from the socket, also while a statement runs: that is how a client that vanishes in
//! mid-query is noticed, at the latest some seconds after the end of what it sent. What it has read and nobody has
//! handled yet is bounded by a budget of bytes; beyond it the reader stops reading, and TCP slows the client down. A single
//! longer message takes its room of the memory that all sessions share.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use carousel_engine::{SqlError, SqlState};
use carousel_planner::{MemoryBudget, Reservation};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

use super::{KEPT_BUFFER_BYTES, frontend};

/// Bytes of unhandled messages of one connection, a single longer message apart.
const INBOX_BUDGET_BYTES: usize = 1 << 20;
/// The most that one message costs of the budget. The session holds a message while it waits for more (a COPY statement
/// for its data), so two of the longest must find room.
const MOST_OF_BUDGET_BYTES: usize = INBOX_BUDGET_BYTES / 2;
/// What a message costs of the budget besides its bytes.
const FRAME_OVERHEAD_BYTES: usize = 64;
/// How much is read from a socket at once.
const READ_CHUNK_BYTES: usize = 64 << 10;

/// A client that has ended its stream may still wait for answers, or have gone: when none of its messages has been taken
/// for so long it counts as gone.
const LAST_MESSAGE_TIME: Duration = Duration::from_secs(10);

/// A message whose body has not been looked at.
#[derive(Debug)]
pub struct Frame {
    /// Type byte.
    pub kind: u8,
    /// Body, without type and length.
    pub body: Bytes,
    _budget: OwnedSemaphorePermit,
    /// Room for a long body.
    _room: Option<Reservation>,
}

impl Frame {
    /// The body, which from now on does not count against the budget: a message is never kept waiting for one that is
    /// being handled, however long that takes.
    pub fn into_body(self) -> Bytes {
        self.body
    }
}

/// What the reader hands on.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Frame(Frame),
    /// The stream cannot be cut into messages any more: tell the client and close.
    Broken(SqlError),
}

/// Reads messages until the stream ends (`true`: the client has gone) or breaks, or nobody takes them any more. Behind the last
/// message the inbox ends.
///
/// `received` holds bytes that came after the startup packet. A message longer than `limit` bytes breaks the stream;
/// memory for a message grows with what really arrives, never with what its length field claims, and a message for which there
/// is too little left of `memory` (53200) breaks the stream, too.
pub async fn read_frames<R: AsyncRead + Unpin>(
    socket: &mut R,
    mut received: BytesMut,
    limit: usize,
    memory: &MemoryBudget,
    inbox: mpsc::UnboundedSender<Incoming>,
) -> bool {
    let budget = Arc::new(Semaphore::new(INBOX_BUDGET_BYTES));
    let (mut has_grown, mut has_been_cut) = (false, false);
    // Of the long message that is arriving.
    let mut room: Option<Reservation> = None;
    loop {
        match cut(&mut received, limit) {
            Ok(Some((kind, body))) => {
                let cost = (body.len() + FRAME_OVERHEAD_BYTES).min(MOST_OF_BUDGET_BYTES) as u32;
                let Ok(permit) = budget.clone().acquire_many_owned(cost).await else { return false };
                // Only a long one has taken any.
                let room = room.take_if(|_| body.len() > INBOX_BUDGET_BYTES);
                has_been_cut = true;
                let frame = Frame { kind, body, _budget: permit, _room: room };
                if inbox.send(Incoming::Frame(frame)).is_err() {
                    return false;
                }
            }
            Ok(None) => {
                // What is left of its room would keep all of it, also what the messages took that were cut off it.
                if received.len() <= KEPT_BUFFER_BYTES && has_been_cut && std::mem::take(&mut has_grown) {
                    received = BytesMut::from(&received[..]);
                    room = None;
                }
                has_been_cut = false;
                received.reserve(READ_CHUNK_BYTES);
                has_grown |= received.capacity() > KEPT_BUFFER_BYTES;
                if received.capacity() > INBOX_BUDGET_BYTES {
                    let room = room.get_or_insert_with(|| memory.reservation());
                    if let Err(error) = room.resize(received.capacity()) {
                        let error = SqlError::new(error.code, "out of memory for a long message")
                            .with_hint("Send fewer rows in a statement, or use COPY with shorter messages.");
                        let _ = inbox.send(Incoming::Broken(error));
                        return false;
                    }
                }
                match socket.read_buf(&mut received).await {
                    Ok(0) => {
                        // It sends nothing more. What has come is done, and answered to a client that still reads.
                        drop(inbox);
                        loop {
                            let before = budget.available_permits();
                            tokio::time::sleep(LAST_MESSAGE_TIME).await;
                            if budget.available_permits() == before {
                                return true;
                            }
                        }
                    }
                    Err(_) => return true,
                    Ok(_) => {}
                }
            }
            Err(error) => {
                // Whoever takes messages may have gone: then there is nobody to tell.
                let _ = inbox.send(Incoming::Broken(error));
                return false;
            }
        }
    }
}

/// Cuts the next message off the front of `received`, or `None` when it has not arrived in full.
fn cut(received: &mut BytesMut, limit: usize) -> Result<Option<(u8, Bytes)>, SqlError> {
    let Some(&kind) = received.first() else { return Ok(None) };
    if !frontend::is_known(kind) {
        return Err(frontend::unknown(kind));
    }
    let Some(length) = received.get(1..5) else { return Ok(None) };
    let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    let body = usize::try_from(length)
        .ok()
        .and_then(|l| l.checked_sub(4))
        .ok_or_else(|| SqlError::new(SqlState::PROTOCOL_VIOLATION, "invalid message length"))?;
    if body > limit {
        return Err(SqlError::new(SqlState::PROTOCOL_VIOLATION, "invalid message length")
            .with_detail(format!("A message of {body} bytes exceeds the limit of {limit} bytes.")));
    }
    if received.len() < 5 + body {
        return Ok(None);
    }
    received.advance(5);
    Ok(Some((kind, received.split_to(body).freeze())))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn a_claimed_length_is_checked_before_anything_arrives() {
        let mut received = BytesMut::from(&b"Q\x40\x00\x00\x00"[..]);
        assert_eq!(cut(&mut received, 1 << 20).unwrap_err().code, SqlState::PROTOCOL_VIOLATION);
        let mut received = BytesMut::from(&b"Q\x00\x00\x00\x03"[..]);
        assert!(cut(&mut received, 1 << 20).is_err());
        let mut received = BytesMut::from(&b"Q\xff\xff\xff\xff"[..]);
        assert!(cut(&mut received, 1 << 20).is_err());
    }

    #[test]
    fn a_message_may_arrive_in_pieces() {
        let whole = b"Q\0\0\0\x06a\0";
        for split in 0..whole.len() {
            let mut received = BytesMut::from(&whole[..split]);
            assert!(cut(&mut received, 100).unwrap().is_none());
            received.extend_from_slice(&whole[split..]);
            assert_eq!(cut(&mut received, 100).unwrap().unwrap(), (b'Q', Bytes::from_static(b"a\0")));
        }
    }

    fn message(length: usize) -> Vec<u8> {
        let mut message = vec![b'd'];
        message.extend((length as u32 + 4).to_be_bytes());
        message.resize(5 + length, b'x');
        message
    }

    #[tokio::test]
    async fn the_room_of_a_long_message_is_given_back() {
        let (mut client, mut socket) = tokio::io::duplex(READ_CHUNK_BYTES);
        let (sender, mut inbox) = mpsc::unbounded_channel();
        let memory = MemoryBudget::default();
        tokio::spawn(
            async move { read_frames(&mut socket, BytesMut::new(), 64 << 20, &memory, sender).await },
        );
        client.write_all(&message(3 << 20)).await.unwrap();
        let Some(Incoming::Frame(frame)) = inbox.recv().await else { panic!("a message") };
        // The reader waits for the next one and keeps nothing of it.
        let given_back = async {
            while !frame.body.is_unique() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), given_back).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn long_messages_take_of_the_memory_that_all_share() {
        let memory = MemoryBudget::limited(6 << 20);
        let sent = message(3 << 20);
        let receive = async |mut sent: &[u8]| {
            let (sender, mut inbox) = mpsc::unbounded_channel();
            let ended = read_frames(&mut sent, BytesMut::new(), 64 << 20, &memory, sender);
            let mut all = Vec::new();
            tokio::join!(ended, async {
                while let Some(incoming) = inbox.recv().await {
                    all.push(incoming);
                }
            });
            all
        };
        // A buffer may have twice the room of what is in it.
        let held = receive(&sent).await;
        assert!(matches!(held[..], [Incoming::Frame(_)]));
        let second = receive(&sent).await;
        let [Incoming::Broken(error)] = &second[..] else { panic!("{second:?}") };
        assert_eq!(error.code, SqlState::OUT_OF_MEMORY);
        // Short ones need none, and what has been handled gives its room back.
        assert!(matches!(receive(&message(10)).await[..], [Incoming::Frame(_)]));
        drop(held);
        let again = receive(&sent).await;
        assert!(matches!(again[..], [Incoming::Frame(_)]));
    }

    /// What is left of a long message's room is nobody's.
    #[tokio::test(start_paused = true)]
    async fn short_messages_behind_a_long_one_take_no_memory() {
        let memory = MemoryBudget::limited(10 << 20);
        let mut sent = message((2 << 20) + 10);
        (0..20_000).for_each(|_| sent.extend(message(100)));
        let (sender, mut inbox) = mpsc::unbounded_channel();
        let mut sent = &sent[..];
        let reading = read_frames(&mut sent, BytesMut::new(), 64 << 20, &memory, sender);
        let taking = async {
            let first = inbox.recv().await;
            let mut count = 0;
            // So many wait.
            let mut waiting = std::collections::VecDeque::new();
            while let Some(incoming) = inbox.recv().await {
                let Incoming::Frame(frame) = incoming else { panic!("{incoming:?}") };
                waiting.push_back(frame);
                count += 1;
                if waiting.len() > 1000 {
                    waiting.pop_front();
                }
            }
            assert_eq!(count, 20_000);
            drop(first);
        };
        tokio::join!(reading, taking);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_message_arrives_while_another_is_held() {
        let sent = [message(10), message(INBOX_BUDGET_BYTES * 2)].concat();
        let (sender, mut inbox) = mpsc::unbounded_channel();
        let reader = tokio::spawn(async move {
            let memory = MemoryBudget::default();
            read_frames(&mut &sent[..], BytesMut::new(), 64 << 20, &memory, sender).await
        });
        let held = inbox.recv().await;
        assert!(matches!(held, Some(Incoming::Frame(Frame { ref body, .. })) if body.len() == 10));
        let long = inbox.recv().await;
        assert!(
            matches!(long, Some(Incoming::Frame(Frame { ref body, .. })) if body.len() == INBOX_BUDGET_BYTES * 2)
        );
        // Also while what it has sent is still worked on.
        assert!(reader.await.unwrap(), "the client went after its last message");
        drop((held, long));
    }
}
