//! One lane of a session: numbered messages each way, kept until the other side has taken them, so that a new
//! connection goes on where the last one broke.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use carousel_engine::buffers::Buffers;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, mpsc},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::frame::{CONTENT, Content, Frame, FrameError, FrameReader, FrameWriter, Kind};
use crate::{
    message::ProcessId,
    metering::LaneMeter,
    network::{Envelope, Lane, Network},
    wire::{Wire, form},
};

/// Bytes under way that the other side has not taken.
const WINDOW: usize = 16 << 20;
/// After so many bytes the sender is told that they have been taken.
const TELL: u64 = (WINDOW / 8) as u64;
/// Longest message. Its pieces are put together in memory. A row of several values of the longest kind can be sent.
const MESSAGE: usize = 4 << 30;
/// Room that a frame has at first.
const FRAME: usize = 1 << 10;
/// Messages that are packed together.
const BATCH: usize = 1024;
/// A sign of life is given this often.
const ALIVE: Duration = Duration::from_millis(500);
/// Memory for large messages is kept for the next one this long.
const KEPT_READY: Duration = Duration::from_secs(1);
/// A connection without any sign of life for this long is given up: the other side hangs, or its host is gone.
const SILENCE: Duration = Duration::from_secs(2);

/// The receiving half of a connection's socket.
pub(super) type Reading = FrameReader<Box<dyn AsyncRead + Send + Unpin>>;
/// The sending half.
pub(super) type Writing = FrameWriter<Box<dyn AsyncWrite + Send + Unpin>>;

/// Why a connection, or with it the session, has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// Another connection can go on.
    #[error("{0}")]
    Connection(#[from] FrameError),
    /// The other side broke the protocol; another connection can go on.
    #[error("{0}")]
    Protocol(String),
    /// The process of this side has gone, or the session was replaced.
    #[error("this side has ended it")]
    Over,
    /// A message cannot be sent.
    #[error("a message cannot be sent: {0}")]
    Unsendable(String),
}

#[derive(Default)]
struct Outgoing {
    /// Sent, or about to be, and not known to be taken.
    kept: VecDeque<Content>,
    bytes: usize,
    /// Number of the last message that was packed.
    last: u64,
}

/// What of a lane outlives its connections.
pub(super) struct LaneState {
    local: ProcessId,
    remote: ProcessId,
    lane: Lane,
    network: Network,
    outgoing: Mutex<Outgoing>,
    /// Number of the last message that was handed on to the local process.
    taken: AtomicU64,
    room: Notify,
    tell: Notify,
    meter: LaneMeter,
}

impl Drop for LaneState {
    /// What was not taken never will be.
    fn drop(&mut self) {
        self.meter.untaken(0);
    }
}

impl LaneState {
    pub(super) fn new(network: &Network, local: ProcessId, remote: ProcessId, lane: Lane) -> LaneState {
        LaneState {
            local,
            remote,
            lane,
            network: network.clone(),
            outgoing: Mutex::default(),
            taken: AtomicU64::new(0),
            room: Notify::new(),
            tell: Notify::new(),
            meter: LaneMeter::new(local, remote, lane),
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Grows with each message that has come through, in either direction.
    pub(super) fn progress(&self) -> u64 {
        let outgoing = self.outgoing.lock();
        let acknowledged = outgoing.kept.front().map_or(outgoing.last, |content| content.last - 1);
        acknowledged + self.taken()
    }

    fn has_room(&self) -> bool {
        self.outgoing.lock().bytes < WINDOW
    }

    /// The other side has taken all messages up to `taken`.
    fn acknowledge(&self, taken: u64) -> Result<(), End> {
        let mut outgoing = self.outgoing.lock();
        if taken > outgoing.last {
            let last = outgoing.last;
            return Err(End::Protocol(format!("it has taken message {taken}, but {last} was the last one")));
        }
        while outgoing.kept.front().is_some_and(|content| content.last <= taken) {
            let bytes = outgoing.kept.pop_front().map_or(0, |content| content.bytes.len());
            outgoing.bytes -= bytes;
        }
        self.meter.untaken(outgoing.bytes);
        drop(outgoing);
        self.room.notify_one();
        Ok(())
    }

    /// Packs messages into frames and keeps them.
    fn pack(&self, messages: &mut Vec<Envelope>) -> Result<Vec<Content>, End> {
        let mut outgoing = self.outgoing.lock();
        let count = messages.len();
        let mut packed = Vec::new();
        let mut first = outgoing.last + 1;
        let mut frame = Vec::with_capacity(FRAME);
        for (_, wire) in messages.drain(..) {
            let begin = frame.len();
            let (mut parts, rest) =
                form::append_in_parts(&wire, frame).map_err(|error| End::Unsendable(error.to_string()))?;
            let bytes = parts.iter().map(Bytes::len).sum::<usize>() + rest.len() - begin;
            if bytes > MESSAGE {
                return Err(End::Unsendable(format!("it has {bytes} bytes, more than {MESSAGE}")));
            }
            if parts.is_empty() {
                frame = rest;
                if begin > 0 && frame.len() > CONTENT {
                    let next = frame.split_off(begin);
                    packed.push(Content::new(Kind::Messages, first, outgoing.last, frame));
                    (first, frame) = (outgoing.last + 1, next);
                }
                outgoing.last += 1;
                if frame.len() <= CONTENT {
                    continue;
                }
                parts.push(frame.into());
            } else {
                let before = parts[0].split_to(begin);
                if begin > 0 {
                    packed.push(Content::new(Kind::Messages, first, outgoing.last, before));
                    first = outgoing.last + 1;
                }
                outgoing.last += 1;
                parts.push(rest.into());
            }
            let piece = |part: &Bytes, begin: usize| part.slice(begin..part.len().min(begin + CONTENT));
            let pieces_of = |part: &Bytes| {
                (0..part.len()).step_by(CONTENT).map(|begin| piece(part, begin)).collect::<Vec<_>>()
            };
            let mut pieces = parts.iter().flat_map(pieces_of).peekable();
            while let Some(piece) = pieces.next() {
                let kind = if pieces.peek().is_none() { Kind::LastPiece } else { Kind::Piece };
                // A message is taken as a whole.
                packed.push(Content::new(kind, first, outgoing.last, piece));
            }
            (first, frame) = (outgoing.last + 1, Vec::with_capacity(FRAME));
        }
        if !frame.is_empty() {
            packed.push(Content::new(Kind::Messages, first, outgoing.last, frame));
        }
        let bytes: usize = packed.iter().map(|content| content.bytes.len()).sum();
        outgoing.bytes += bytes;
        outgoing.kept.extend(packed.iter().cloned());
        self.meter.sent(count, bytes, outgoing.bytes);
        Ok(packed)
    }

    /// Runs one connection to its end. `taken` is what the other side has taken when the connection begins.
    pub(super) async fn serve(
        &self,
        reading: Reading,
        writing: Writing,
        taken: u64,
        mailbox: &mut mpsc::Receiver<Envelope>,
    ) -> End {
        if let Err(end) = self.acknowledge(taken) {
            return end;
        }
        tokio::select! {
            end = self.write(writing, mailbox) => end,
            end = self.read(reading) => end,
        }
    }

    async fn write(&self, mut writing: Writing, mailbox: &mut mpsc::Receiver<Envelope>) -> End {
        let end = self.write_on(&mut writing, mailbox).await;
        end.err().unwrap_or(End::Over)
    }

    async fn write_on(
        &self,
        writing: &mut Writing,
        mailbox: &mut mpsc::Receiver<Envelope>,
    ) -> Result<(), End> {
        let again: Vec<Content> = self.outgoing.lock().kept.iter().cloned().collect();
        self.send(writing, &again).await?;
        let mut alive = interval(ALIVE);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut messages = Vec::new();
        loop {
            let has_room = self.has_room();
            tokio::select! {
                biased;
                () = self.tell.notified() => self.send(writing, &[Content::alive()]).await?,
                count = mailbox.recv_many(&mut messages, BATCH), if has_room => {
                    if count == 0 {
                        return Err(End::Over);
                    }
                    // Kept before anything else can happen to the connection.
                    let packed = self.pack(&mut messages)?;
                    self.send(writing, &packed).await?;
                }
                () = self.room.notified(), if !has_room => {}
                _ = alive.tick() => self.send(writing, &[Content::alive()]).await?,
            }
        }
    }

    async fn send(&self, writing: &mut Writing, contents: &[Content]) -> Result<(), End> {
        let sent = async {
            for content in contents {
                writing.write(content, self.taken()).await?;
            }
            writing.flush().await
        };
        sent.await.map_err(|error| End::Connection(error.into()))
    }

    async fn read(&self, mut reading: Reading) -> End {
        match self.read_on(&mut reading).await {
            Err(end) => end,
            Ok(never) => match never {},
        }
    }

    async fn read_on(&self, reading: &mut Reading) -> Result<std::convert::Infallible, End> {
        // Number of the last message of the frame before, if there was one on this connection.
        let mut end: Option<u64> = None;
        let mut pieces = Vec::new();
        let mut buffers = Buffers::default();
        let mut last_large = Instant::now();
        let mut untold = 0;
        loop {
            let frame = next_frame(reading).await?;
            self.acknowledge(frame.taken)?;
            if frame.kind == Kind::Alive {
                if pieces.is_empty() && last_large.elapsed() > KEPT_READY {
                    buffers.forget();
                }
                continue;
            }
            let due = end.map_or(self.taken(), |end| end) + 1;
            if !may_begin(frame.first, due, end.is_some()) {
                let first = frame.first;
                return Err(End::Protocol(format!("message {first} arrived where {due} was due")));
            }
            let mut number = frame.first;
            match frame.kind {
                Kind::Messages => {
                    let mut rest = &frame.content[..];
                    while !rest.is_empty() {
                        let (wire, behind) = decode(rest)?;
                        rest = behind;
                        self.take(number, wire).await?;
                        number += 1;
                    }
                    end = Some(number - 1);
                }
                Kind::Piece | Kind::LastPiece => {
                    if pieces.len() + frame.content.len() > MESSAGE {
                        return Err(End::Protocol(format!("a message of more than {MESSAGE} bytes")));
                    }
                    if pieces.is_empty() {
                        // What follows may be as large as a block of rows, however small the first piece is.
                        pieces = buffers.take(CONTENT);
                    }
                    pieces.extend_from_slice(&frame.content);
                    last_large = Instant::now();
                    if frame.kind == Kind::LastPiece {
                        let message = buffers.lend(std::mem::take(&mut pieces));
                        let wire = form::take_whole(message).map_err(unreadable)?;
                        self.take(number, wire).await?;
                        end = Some(number);
                    }
                }
                Kind::Alive | Kind::Greeting => {
                    return Err(End::Protocol("a greeting in the middle of a connection".into()));
                }
            }
            self.meter.received(frame.content.len());
            untold += frame.content.len() as u64;
            if untold >= TELL {
                untold = 0;
                self.tell.notify_one();
            }
        }
    }

    /// Hands a message on, waiting for room, unless that has been done before.
    async fn take(&self, number: u64, wire: Wire) -> Result<(), End> {
        if number <= self.taken() {
            return Ok(());
        }
        if wire.lane() != self.lane {
            return Err(End::Protocol("a message on another lane than its own".into()));
        }
        if !wire.is_for(self.remote.kind, self.local.kind) {
            return Err(End::Protocol(format!("a message that no {:?} process sends", self.remote.kind)));
        }
        self.network.deliver(self.remote, self.local, wire).await.map_err(|_| End::Over)?;
        self.taken.store(number, Ordering::Release);
        self.meter.took();
        Ok(())
    }
}

/// The next frame, which may come slowly: only when nothing at all is heard for a while, the other side is taken to hang.
async fn next_frame<R: AsyncRead + Unpin>(reading: &mut FrameReader<R>) -> Result<Frame, End> {
    loop {
        let before = reading.buffered();
        match timeout(SILENCE, reading.next()).await {
            Ok(frame) => return Ok(frame?),
            Err(_) if reading.buffered() > before => {}
            Err(_) => return Err(End::Protocol(format!("nothing was heard for {} s", SILENCE.as_secs()))),
        }
    }
}

fn decode(bytes: &[u8]) -> Result<(Wire, &[u8]), End> {
    postcard::take_from_bytes(bytes).map_err(unreadable)
}

fn unreadable(error: postcard::Error) -> End {
    End::Protocol(format!("a message cannot be read: {error}"))
}

/// Until when a session without a connection on one of its lanes is kept.
pub(super) fn given_up_at() -> Instant {
    Instant::now() + SILENCE
}

/// Whether a frame of messages may begin with the one of this number. Behind another frame of the connection it is the one that is
/// due; the first may begin earlier: what was under way when the last connection broke comes again, and not all of it is needed.
/// Numbers begin with 1.
fn may_begin(first: u64, due: u64, follows: bool) -> bool {
    first == due || (1..due).contains(&first) && !follows
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn frames_begin_where_the_last_ended() {
        assert!(may_begin(1, 1, false) && may_begin(1, 1, true));
        assert!(may_begin(3, 7, false) && !may_begin(3, 7, true));
        for follows in [false, true] {
            assert!(!may_begin(8, 7, follows) && !may_begin(0, 1, follows) && !may_begin(0, 7, follows));
        }
    }

    /// A frame of a megabyte takes longer than silence may last where many connections share a slow link.
    #[tokio::test(start_paused = true)]
    async fn a_frame_that_comes_slowly_is_not_silence() {
        let mut sent = Vec::new();
        let content = Content::new(Kind::Piece, 1, 1, vec![7; CONTENT]);
        let mut writing = FrameWriter::new(&mut sent);
        writing.write(&content, 0).await.expect("it is written");
        writing.flush().await.expect("it is written");
        let (mut slow, there) = duplex(1 << 10);
        let link = tokio::spawn(async move {
            for piece in sent.chunks(CONTENT / 16) {
                slow.write_all(piece).await.expect("somebody reads");
                tokio::time::sleep(SILENCE / 2).await;
            }
            slow
        });
        let mut reading = FrameReader::new(there);
        let frame = next_frame(&mut reading).await.expect("a frame");
        assert_eq!(frame.content, content.bytes);
        let begun = Instant::now();
        let hangs = next_frame(&mut reading).await;
        assert!(matches!(hangs, Err(End::Protocol(_))) && begun.elapsed() < 2 * SILENCE);
        drop(link.await);
    }
}
