//! Decoding of the messages that a client sends once it is connected.
//!
//! pgwire's decoder is made for well-formed input: it reads past the end of a body that is too short (a panic) and
//! replaces bytes that are not UTF-8. What a client sends decides what is stored, so this one is strict instead; the
//! messages that go to clients use pgwire's types.

use bytes::Bytes;
use carousel_engine::{SqlError, SqlState, error::Result};

/// What a Describe or Close message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

/// A message from a connected client. The unnamed statement and portal have empty names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendMessage {
    /// Simple query: any number of statements.
    Query(String),
    /// Prepare a statement.
    Parse {
        /// Statement name.
        name: String,
        /// One statement.
        query: String,
        /// Type OIDs of the first parameters; 0 for unspecified.
        types: Vec<u32>,
    },
    /// Make a portal of a prepared statement.
    Bind {
        /// Portal name.
        portal: String,
        /// Statement name.
        statement: String,
        /// Format codes of the parameters: none, one for all, or one each.
        parameter_formats: Vec<i16>,
        /// Parameter values; `None` is NULL.
        parameters: Vec<Option<Bytes>>,
        /// Format codes of the result columns: none, one for all, or one each.
        result_formats: Vec<i16>,
    },
    /// Describe a statement or portal.
    Describe {
        /// Which kind.
        target: Target,
        /// Its name.
        name: String,
    },
    /// Forget a statement or portal.
    Close {
        /// Which kind.
        target: Target,
        /// Its name.
        name: String,
    },
    /// Run a portal.
    Execute {
        /// Portal name.
        portal: String,
        /// Rows wanted; 0 or less for all.
        max_rows: i32,
    },
    /// Send what is buffered.
    Flush,
    /// End of a run of extended-protocol messages.
    Sync,
    /// The client leaves.
    Terminate,
    /// A piece of COPY data.
    CopyData(Bytes),
    /// End of COPY data.
    CopyDone,
    /// The client gives up a COPY, and why.
    CopyFail(String),
}

/// Whether the protocol knows messages of this type from a client.
pub fn is_known(kind: u8) -> bool {
    matches!(
        kind,
        b'Q' | b'P' | b'B' | b'D' | b'C' | b'E' | b'H' | b'S' | b'X' | b'd' | b'c' | b'f' | b'p' | b'F'
    )
}

/// Whether an error in a message of this type makes the server skip messages up to the next Sync.
pub fn is_extended(kind: u8) -> bool {
    matches!(kind, b'P' | b'B' | b'D' | b'C' | b'E' | b'H')
}

/// Decodes the body of a message.
///
/// # Errors
/// 08P01 when the body has another shape than the type demands, 22021 for text that is not UTF-8, 0A000 for the
/// function call protocol.
pub fn decode(kind: u8, body: Bytes) -> Result<FrontendMessage> {
    let mut body = Body(body);
    let message = match kind {
        b'Q' => FrontendMessage::Query(body.string()?),
        b'P' => {
            let (name, query) = (body.string()?, body.string()?);
            let count = body.u16()?;
            let types = (0..count).map(|_| body.u32()).collect::<Result<_>>()?;
            FrontendMessage::Parse { name, query, types }
        }
        b'B' => {
            let (portal, statement) = (body.string()?, body.string()?);
            let parameter_formats = body.formats()?;
            let count = body.u16()?;
            let parameters = (0..count).map(|_| body.parameter()).collect::<Result<_>>()?;
            let result_formats = body.formats()?;
            FrontendMessage::Bind { portal, statement, parameter_formats, parameters, result_formats }
        }
        b'D' => FrontendMessage::Describe { target: body.target("DESCRIBE")?, name: body.string()? },
        b'C' => FrontendMessage::Close { target: body.target("CLOSE")?, name: body.string()? },
        b'E' => FrontendMessage::Execute { portal: body.string()?, max_rows: body.u32()? as i32 },
        b'H' => FrontendMessage::Flush,
        b'S' => FrontendMessage::Sync,
        b'X' => FrontendMessage::Terminate,
        b'd' => return Ok(FrontendMessage::CopyData(body.0)),
        b'c' => FrontendMessage::CopyDone,
        b'f' => FrontendMessage::CopyFail(body.string()?),
        b'F' => return Err(SqlError::unsupported("the function call protocol")),
        b'p' => {
            return Err(SqlError::new(
                SqlState::PROTOCOL_VIOLATION,
                "unexpected password message: no password was asked for",
            ));
        }
        other => return Err(unknown(other)),
    };
    if body.0.is_empty() { Ok(message) } else { Err(malformed()) }
}

/// The error for a message type that the protocol does not know.
pub fn unknown(kind: u8) -> SqlError {
    SqlError::new(SqlState::PROTOCOL_VIOLATION, format!("invalid frontend message type {kind}"))
}

fn malformed() -> SqlError {
    SqlError::new(SqlState::PROTOCOL_VIOLATION, "invalid message format")
}

fn insufficient() -> SqlError {
    SqlError::new(SqlState::PROTOCOL_VIOLATION, "insufficient data left in message")
}

/// Text of a client, which must be UTF-8.
///
/// # Errors
/// 22021 naming the first bytes that are not.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| {
        let rest = &bytes[e.valid_up_to()..];
        // PostgreSQL shows as many bytes as the first one announces.
        let announced = match rest.first() {
            Some(0xc0..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf7) => 4,
            _ => 1,
        };
        let shown: Vec<String> = rest.iter().take(announced).map(|b| format!("0x{b:02x}")).collect();
        SqlError::new(
            SqlState::BAD_ENCODING,
            format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" ")),
        )
    })
}

struct Body(Bytes);

impl Body {
    fn take(&mut self, count: usize) -> Result<Bytes> {
        if count > self.0.len() { Err(insufficient()) } else { Ok(self.0.split_to(count)) }
    }

    fn u16(&mut self) -> Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn string(&mut self) -> Result<String> {
        let end = self
            .0
            .iter()
            .position(|b| *b == 0)
            .ok_or_else(|| SqlError::new(SqlState::PROTOCOL_VIOLATION, "invalid string in message"))?;
        let bytes = self.0.split_to(end);
        self.take(1)?;
        Ok(utf8(&bytes)?.to_owned())
    }

    fn formats(&mut self) -> Result<Vec<i16>> {
        let count = self.u16()?;
        (0..count).map(|_| Ok(self.u16()? as i16)).collect()
    }

    fn parameter(&mut self) -> Result<Option<Bytes>> {
        match self.u32()? as i32 {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| insufficient())?;
                Ok(Some(self.take(length)?))
            }
        }
    }

    fn target(&mut self, message: &str) -> Result<Target> {
        match self.take(1)?[0] {
            b'S' => Ok(Target::Statement),
            b'P' => Ok(Target::Portal),
            other => Err(SqlError::new(
                SqlState::PROTOCOL_VIOLATION,
                format!("invalid {message} message subtype {other}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_is_decoded() {
        let body = b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x02ab\xff\xff\xff\xff\0\x01\0\0";
        assert_eq!(
            decode(b'B', Bytes::from_static(body)).unwrap(),
            FrontendMessage::Bind {
                portal: "p".into(),
                statement: "s".into(),
                parameter_formats: vec![1],
                parameters: vec![Some(Bytes::from_static(b"ab")), None],
                result_formats: vec![0],
            }
        );
    }

    #[test]
    fn text_must_be_utf8() {
        let error = decode(b'Q', Bytes::from_static(b"select '\xff'\0")).unwrap_err();
        assert_eq!(error.code, SqlState::BAD_ENCODING);
        assert_eq!(error.message, "invalid byte sequence for encoding \"UTF8\": 0xff");
    }

    proptest::proptest! {
        /// Whatever the body, decoding ends with a message or an error.
        #[test]
        fn no_body_makes_it_panic(kind: u8, body: Vec<u8>) {
            let _ = decode(kind, Bytes::from(body));
        }
    }
}
