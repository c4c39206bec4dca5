//! Frames: what a connection consists of.
//!
//! ```text
//!   length  4 bytes   of what follows
//!   kind    1 byte
//!   number  4 bytes   of the frame on its connection: 0, 1, 2, …
//!   first   8 bytes   number of the frame's first message in its session and lane, counted from 1
//!   taken   8 bytes   all messages of the other direction up to here have been taken
//!   sum     4 bytes   CRC-32 of the content
//!   check   4 bytes   CRC-32 of kind to sum
//!   content           messages one behind the other, or a piece of one that is larger than a frame
//! ```
//!
//! A frame that is damaged, that comes twice, that is missing or that comes in another's place is told by its sums and
//! its number.

use std::io;

use bytes::{Buf, BufMut, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec, LengthDelimitedCodecError};

/// Most bytes of a frame's content. Larger messages travel in pieces.
pub(super) const CONTENT: usize = 1 << 20;
const HEADER: usize = 29;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whole messages.
    Messages = 1,
    /// A piece of a message, with more to come.
    Piece = 2,
    /// The last piece of a message.
    LastPiece = 3,
    /// A sign of life, and what has been taken.
    Alive = 4,
    /// Who wants to talk to whom, or the answer to it.
    Greeting = 5,
}

/// A frame as it arrived.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) first: u64,
    pub(super) taken: u64,
    pub(super) content: Bytes,
}

/// Content that is ready to be sent, once or again.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) kind: Kind,
    pub(super) first: u64,
    /// Number of the last message that ends in this frame or before.
    pub(super) last: u64,
    pub(super) bytes: Bytes,
    sum: u32,
}

impl Content {
    pub(super) fn new(kind: Kind, first: u64, last: u64, bytes: impl Into<Bytes>) -> Content {
        let bytes = bytes.into();
        Content { kind, first, last, sum: crc32fast::hash(&bytes), bytes }
    }

    pub(super) fn alive() -> Content {
        Content::new(Kind::Alive, 0, 0, Bytes::new())
    }
}

/// Why a connection cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the connection was closed")]
    Closed,
    #[error("it speaks TLS, this process does not")]
    Tls,
    #[error("it does not speak Carousel's protocol")]
    Foreign,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("a corrupted frame: {0}")]
    Corrupted(&'static str),
    #[error("frame {found} arrived where frame {expected} was due: a replayed or lost frame")]
    Number { found: u32, expected: u32 },
}

/// The receiving side of a connection.
pub(super) struct FrameReader<R> {
    frames: FramedRead<R, LengthDelimitedCodec>,
    number: u32,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(reader: R) -> Self {
        let codec = LengthDelimitedCodec::builder().max_frame_length(HEADER + CONTENT).new_codec();
        FrameReader { frames: FramedRead::with_capacity(reader, codec, 64 << 10), number: 0 }
    }

    /// Bytes of the next frame, and of those behind it, that have come.
    pub(super) fn buffered(&self) -> usize {
        self.frames.read_buffer().len()
    }

    /// The next frame. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Frame, FrameError> {
        let mut bytes = match futures::StreamExt::next(&mut self.frames).await {
            None => return Err(FrameError::Closed),
            Some(bytes) => bytes.map_err(|error| self.failure(error))?.freeze(),
        };
        if bytes.len() < HEADER {
            return Err(FrameError::Corrupted("it is too short"));
        }
        let check = crc32fast::hash(&bytes[..HEADER - 4]);
        let kind = match bytes.get_u8() {
            1 => Kind::Messages,
            2 => Kind::Piece,
            3 => Kind::LastPiece,
            4 => Kind::Alive,
            5 => Kind::Greeting,
            _ => return Err(FrameError::Corrupted("it is of no known kind")),
        };
        let (found, first, taken) = (bytes.get_u32(), bytes.get_u64(), bytes.get_u64());
        let sum = bytes.get_u32();
        if bytes.get_u32() != check {
            return Err(FrameError::Corrupted("the checksum of its header is wrong"));
        }
        if crc32fast::hash(&bytes) != sum {
            return Err(FrameError::Corrupted("the checksum of its content is wrong"));
        }
        let expected = self.number;
        if found != expected {
            return Err(FrameError::Number { found, expected });
        }
        self.number = expected.wrapping_add(1);
        Ok(Frame { kind, first, taken, content: bytes })
    }

    fn failure(&self, error: io::Error) -> FrameError {
        let is_too_long = error.get_ref().is_some_and(|error| error.is::<LengthDelimitedCodecError>());
        match &self.frames.read_buffer()[..] {
            // So begin an alert and a handshake of TLS.
            [0x15 | 0x16, 3, ..] if is_too_long && self.number == 0 => FrameError::Tls,
            _ if is_too_long && self.number == 0 => FrameError::Foreign,
            _ if is_too_long => FrameError::Corrupted("it is too long"),
            // With TLS, one side is to tell the other that it closes the connection; who ends or dies does not.
            _ if error.kind() == io::ErrorKind::UnexpectedEof => FrameError::Closed,
            _ => FrameError::Io(error),
        }
    }
}

/// The sending side of a connection.
pub(super) struct FrameWriter<W> {
    writer: tokio::io::BufWriter<W>,
    number: u32,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(super) fn new(writer: W) -> Self {
        FrameWriter { writer: tokio::io::BufWriter::with_capacity(64 << 10, writer), number: 0 }
    }

    /// Writes a frame; it is under way only after a [`FrameWriter::flush`].
    pub(super) async fn write(&mut self, content: &Content, taken: u64) -> io::Result<()> {
        let mut header = Vec::with_capacity(4 + HEADER);
        header.put_u32((HEADER + content.bytes.len()) as u32);
        header.put_u8(content.kind as u8);
        header.put_u32(self.number);
        header.put_u64(content.first);
        header.put_u64(taken);
        header.put_u32(content.sum);
        header.put_u32(crc32fast::hash(&header[4..]));
        self.number = self.number.wrapping_add(1);
        self.writer.write_all(&header).await?;
        self.writer.write_all(&content.bytes).await
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().await
    }
}
