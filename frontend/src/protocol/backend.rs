//! Encoding of the messages that a client gets, rows apart.

use bytes::BytesMut;
use carousel_engine::{SqlError, SqlState, Type};
use carousel_planner::OutputColumn;
use pgwire::messages::{
    Message,
    copy::{CopyDone, CopyInResponse, CopyOutResponse},
    data::{FieldDescription, NoData, ParameterDescription, RowDescription},
    extendedquery::{BindComplete, CloseComplete, ParseComplete, PortalSuspended},
    response::{
        CommandComplete, EmptyQueryResponse, ErrorResponse, NoticeResponse, ReadyForQuery, TransactionStatus,
    },
    startup::{Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey},
};

use super::{Format, types};

/// What an error says when a prepared statement's result is not any more what it was.
pub const CACHED_PLAN_CHANGED: &str = "cached plan must not change result type";

/// How bad it is, in PostgreSQL's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The connection ends.
    Fatal,
    /// The statement failed.
    Error,
    /// Something the user should know.
    Warning,
    /// Something the user may like to know.
    Notice,
}

impl Severity {
    fn text(self) -> &'static str {
        match self {
            Severity::Fatal => "FATAL",
            Severity::Error => "ERROR",
            Severity::Warning => "WARNING",
            Severity::Notice => "NOTICE",
        }
    }

    /// Whether a client that set `client_min_messages` to this level wants to hear it.
    pub fn is_shown_at(self, minimum: &str) -> bool {
        match self {
            Severity::Fatal | Severity::Error => true,
            Severity::Warning => minimum != "error",
            Severity::Notice => !matches!(minimum, "error" | "warning"),
        }
    }
}

/// Messages that were encoded and not yet sent.
#[derive(Debug, Default)]
pub struct Output {
    /// The bytes, in order.
    pub bytes: BytesMut,
}

impl Output {
    fn put(&mut self, message: impl Message) {
        // Encoding fails only for a message beyond the protocol's limit for its type; half a message must not stay.
        let start = self.bytes.len();
        if let Err(error) = message.encode(&mut self.bytes) {
            self.bytes.truncate(start);
            tracing::error!(%error, "a message to a client was left out");
        }
    }

    /// Trust: no password is asked for.
    pub fn authentication_ok(&mut self) {
        self.put(Authentication::Ok);
    }

    /// The newest minor version of protocol 3 that both speak, and the protocol options that the server does not know.
    pub fn negotiate_protocol_version(&mut self, minor: u16, unknown_options: Vec<String>) {
        let version = (3 << 16) | i32::from(minor);
        self.put(NegotiateProtocolVersion::new(version, unknown_options));
    }

    /// The value of a setting that drivers follow.
    pub fn parameter_status(&mut self, name: &str, value: &str) {
        self.put(ParameterStatus::new(name.to_owned(), value.to_owned()));
    }

    /// What a cancel request for this session must show.
    pub fn backend_key_data(&mut self, process: i32, secret: &[u8]) {
        let secret = bytes::Bytes::copy_from_slice(secret);
        self.put(BackendKeyData::new(process, SecretKey::Bytes(secret)));
    }

    /// The next statement may come.
    pub fn ready_for_query(&mut self, status: TransactionStatus) {
        self.put(ReadyForQuery::new(status));
    }

    /// A statement is done.
    pub fn command_complete(&mut self, tag: String) {
        self.put(CommandComplete::new(tag));
    }

    /// There was no statement in the text.
    pub fn empty_query(&mut self) {
        self.put(EmptyQueryResponse::new());
    }

    /// A Parse message is done.
    pub fn parse_complete(&mut self) {
        self.put(ParseComplete::new());
    }

    /// A Bind message is done.
    pub fn bind_complete(&mut self) {
        self.put(BindComplete::new());
    }

    /// A Close message is done.
    pub fn close_complete(&mut self) {
        self.put(CloseComplete::new());
    }

    /// The portal has more rows than were asked for.
    pub fn portal_suspended(&mut self) {
        self.put(PortalSuspended::new());
    }

    /// The statement returns no rows.
    pub fn no_data(&mut self) {
        self.put(NoData::new());
    }

    /// The types of a prepared statement's parameters.
    pub fn parameter_description(&mut self, parameters: &[Type]) {
        self.put(ParameterDescription::new(parameters.iter().map(types::oid).collect()));
    }

    /// The columns of a result; all text when there are no formats.
    pub fn row_description(&mut self, columns: &[OutputColumn], formats: &[Format]) {
        let fields = columns.iter().enumerate().map(|(i, column)| {
            let (table, attribute) = match column.origin {
                // A table's identity is a 64-bit Ts, an OID has 32 bits; drivers only compare it.
                Some((table, index)) => (table.0 as u32 as i32, index as i16 + 1),
                None => (0, 0),
            };
            FieldDescription::new(
                column.name.clone(),
                table,
                attribute,
                types::oid(&column.ty),
                types::size(&column.ty),
                types::modifier(&column.ty),
                formats.get(i).copied().unwrap_or(Format::Text).code(),
            )
        });
        self.put(RowDescription::new(fields.collect()));
    }

    /// Please send COPY data of so many columns, as text.
    pub fn copy_in(&mut self, columns: usize) {
        self.put(CopyInResponse::new(0, columns as i16, vec![0; columns]));
    }

    /// COPY data of so many columns follows, as text.
    pub fn copy_out(&mut self, columns: usize) {
        self.put(CopyOutResponse::new(0, columns as i16, vec![0; columns]));
    }

    /// The COPY data is complete.
    pub fn copy_done(&mut self) {
        self.put(CopyDone::new());
    }

    /// An error or, with a lower severity, a notice.
    pub fn report(&mut self, severity: Severity, error: &SqlError) {
        let mut fields = vec![(b'S', severity.text().to_owned()), (b'V', severity.text().to_owned())];
        // A notice that is no error has PostgreSQL's code for success or a warning.
        let code = match severity {
            Severity::Warning if error.code == SqlState::SUCCESS => "01000",
            _ => error.code.as_str(),
        };
        fields.push((b'C', code.to_owned()));
        fields.push((b'M', error.message.clone()));
        let mut optional = |kind: u8, value: Option<String>| {
            if let Some(value) = value {
                fields.push((kind, value));
            }
        };
        optional(b'D', error.detail.clone());
        optional(b'H', error.hint.clone());
        optional(b'P', error.position.map(|p| p.to_string()));
        optional(b'W', error.context.clone());
        // By the names of these functions of PostgreSQL's drivers know that to prepare the statement again helps.
        let routine = match error.code {
            _ if error.message == CACHED_PLAN_CHANGED => Some("RevalidateCachedQuery"),
            SqlState::UNDEFINED_STATEMENT => Some("FetchPreparedStatement"),
            _ => None,
        };
        optional(b'R', routine.map(str::to_owned));
        // As PostgreSQL does, an error that is about a table names its schema too.
        optional(b's', error.table.as_ref().map(|_| "public".to_owned()));
        optional(b't', error.table.clone());
        optional(b'c', error.column.clone());
        optional(b'n', error.constraint.clone());
        for (_, text) in &mut fields {
            // A zero byte would end the field; it can come from a bytea or a client's text.
            if text.contains('\0') {
                *text = text.replace('\0', "\u{fffd}");
            }
        }
        match severity {
            Severity::Fatal | Severity::Error => self.put(ErrorResponse::new(fields)),
            Severity::Warning | Severity::Notice => self.put(NoticeResponse::new(fields)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_its_fields() {
        let mut output = Output::default();
        let error = SqlError::new(SqlState::UNIQUE_VIOLATION, "m").with_detail("d").with_hint("h").at(7);
        output.report(Severity::Error, &error);
        assert_eq!(&output.bytes[..1], b"E");
        assert_eq!(&output.bytes[5..], b"SERROR\0VERROR\0C23505\0Mm\0Dd\0Hh\0P7\0\0");
        assert_eq!(output.bytes[1..5], (output.bytes.len() as u32 - 1).to_be_bytes());
    }
}
