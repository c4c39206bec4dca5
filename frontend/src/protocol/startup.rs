//! The first packet of a connection, which has no type byte: startup, a wish for encryption, or a cancel request.

use std::collections::BTreeMap;

use bytes::{Buf, BytesMut};
use carousel_engine::{SqlError, SqlState};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::frontend::utf8;

/// Longest packet before a session exists, PostgreSQL's limit.
const MAX_PACKET_BYTES: usize = 10_000;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// Greatest minor version of protocol 3 that the server speaks.
pub const LATEST_MINOR: u16 = 2;

/// A first packet.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstPacket {
    /// May we use TLS or GSSAPI encryption?
    Encryption,
    /// Stop what that other session is doing.
    Cancel {
        /// The other session's process number.
        process: i32,
        /// What it was told to prove it by.
        secret: Vec<u8>,
    },
    /// Start a session.
    Startup(Startup),
}

/// A startup packet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// Requested minor version of protocol 3.
    pub minor: u16,
    /// Parameters by name.
    pub parameters: BTreeMap<String, String>,
}

impl Startup {
    /// Protocol options that the client asked for; the server has none.
    pub fn protocol_options(&self) -> Vec<String> {
        self.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect()
    }

    /// Minor version that both sides speak.
    pub fn agreed_minor(&self) -> u16 {
        // 3.1 was never used; PostgreSQL takes it for 3.0.
        match self.minor {
            0 | 1 => 0,
            _ => LATEST_MINOR,
        }
    }
}

/// Reads the next first packet; `None` when the client leaves before it is complete. `received` keeps what comes
/// after it.
///
/// # Errors
/// 08P01 for a packet that is none, 0A000 for another major version. The connection cannot go on.
pub async fn read_first_packet<R: AsyncRead + Unpin>(
    socket: &mut R,
    received: &mut BytesMut,
) -> Result<Option<FirstPacket>, SqlError> {
    loop {
        if let Some(packet) = cut(received)? {
            return Ok(Some(packet));
        }
        match socket.read_buf(received).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) => {}
        }
    }
}

fn cut(received: &mut BytesMut) -> Result<Option<FirstPacket>, SqlError> {
    let Some(length) = received.get(..4) else { return Ok(None) };
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
    if !(8..=MAX_PACKET_BYTES).contains(&length) {
        return Err(violation("invalid length of startup packet"));
    }
    if received.len() < length {
        return Ok(None);
    }
    let mut packet = received.split_to(length);
    packet.advance(4);
    parse(packet.get_u32(), &packet).map(Some)
}

fn parse(code: u32, body: &[u8]) -> Result<FirstPacket, SqlError> {
    match code {
        SSL_REQUEST | GSS_REQUEST if body.is_empty() => Ok(FirstPacket::Encryption),
        CANCEL_REQUEST => match body.split_first_chunk::<4>() {
            Some((process, secret)) if !secret.is_empty() => {
                Ok(FirstPacket::Cancel { process: i32::from_be_bytes(*process), secret: secret.to_vec() })
            }
            _ => Err(violation("invalid length of query cancel packet")),
        },
        version if version >> 16 == 3 => {
            Ok(FirstPacket::Startup(Startup { minor: version as u16, parameters: parameters(body)? }))
        }
        version => Err(SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!(
                "unsupported frontend protocol {}.{}: server supports 3.0 to 3.{LATEST_MINOR}",
                version >> 16,
                version as u16
            ),
        )),
    }
}

fn parameters(body: &[u8]) -> Result<BTreeMap<String, String>, SqlError> {
    let invalid = || violation("invalid startup packet layout: expected terminator as last byte");
    let mut strings = body.strip_suffix(b"\0").ok_or_else(invalid)?;
    let mut next = || -> Result<Option<String>, SqlError> {
        if strings.is_empty() {
            return Ok(None);
        }
        let end = strings.iter().position(|b| *b == 0).ok_or_else(invalid)?;
        let text = utf8(&strings[..end])?.to_owned();
        strings = &strings[end + 1..];
        Ok(Some(text))
    };
    let mut parameters = BTreeMap::new();
    while let Some(name) = next()? {
        let value = next()?.ok_or_else(invalid)?;
        parameters.insert(name, value);
    }
    Ok(parameters)
}

fn violation(message: &str) -> SqlError {
    SqlError::new(SqlState::PROTOCOL_VIOLATION, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_parameters_are_read() {
        let mut packet = BytesMut::from(&b"\0\0\0\x19\0\x03\0\0user\0me\0opt\0\0\0\0"[..]);
        packet[3] = packet.len() as u8;
        assert_eq!(parse(0x30000, b"user\0me\0opt\0\0\0").unwrap(), {
            let parameters = [("user", "me"), ("opt", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
            FirstPacket::Startup(Startup { minor: 0, parameters: parameters.into() })
        });
    }

    #[test]
    fn lengths_are_bounded() {
        for length in [0u32, 7, 10_001, 1 << 30, u32::MAX] {
            assert!(cut(&mut BytesMut::from(&length.to_be_bytes()[..])).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_packet_makes_it_panic(bytes: Vec<u8>, code: u32) {
            let _ = parse(code, &bytes);
            let _ = parse(0x30002, &bytes);
            let _ = cut(&mut BytesMut::from(&bytes[..]));
        }
    }
}
