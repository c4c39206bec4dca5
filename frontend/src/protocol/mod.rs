//! PostgreSQL's wire protocol, 3.0 and 3.2: what clients send, what they get, and how values look on the wire.

pub mod backend;
pub mod frames;
pub mod frontend;
pub mod numeric;
pub mod parameters;
pub mod rows;
pub mod startup;
pub mod types;

/// Bytes of a buffer that a connection keeps while it is idle. A larger one, which a long message or row has needed, is given
/// back when it is empty.
pub const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// How a value looks on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// PostgreSQL's text form.
    Text,
    /// The type's binary send and receive form.
    Binary,
}

impl Format {
    /// The protocol's code: 0 or 1.
    pub fn code(self) -> i16 {
        match self {
            Format::Text => 0,
            Format::Binary => 1,
        }
    }

    /// The formats of `count` values from the codes of a Bind message: none for all text, one for all, or one each.
    ///
    /// # Errors
    /// 08P01 when the number of codes fits none of these, 22023 for a code other than 0 and 1.
    pub fn expand(codes: &[i16], count: usize, what: &str) -> carousel_engine::error::Result<Vec<Format>> {
        use carousel_engine::{SqlError, SqlState};
        let one = |code: &i16| match code {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            other => Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("unsupported format code: {other}"),
            )),
        };
        match codes {
            [] => Ok(vec![Format::Text; count]),
            [code] => Ok(vec![one(code)?; count]),
            codes if codes.len() == count => codes.iter().map(one).collect(),
            codes => Err(SqlError::new(
                SqlState::PROTOCOL_VIOLATION,
                format!("bind message has {} {what} formats but {count} {what}s", codes.len()),
            )),
        }
    }
}
