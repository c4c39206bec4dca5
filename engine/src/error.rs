//! Errors as PostgreSQL words them.

use serde::{Deserialize, Serialize};

/// A five-character SQLSTATE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    /// The code as text, for example `"22003"`.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl std::fmt::Debug for SqlState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! sql_states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState { $($(#[$doc])* pub const $name: SqlState = SqlState(*$code);)* }
    };
}

sql_states! {
    /// successful_completion
    SUCCESS = b"00000";
    /// sql_statement_not_yet_complete
    STATEMENT_INCOMPLETE = b"03000";
    /// connection_failure
    CONNECTION_FAILURE = b"08006";
    /// transaction_resolution_unknown
    OUTCOME_UNKNOWN = b"08007";
    /// protocol_violation
    PROTOCOL_VIOLATION = b"08P01";
    /// feature_not_supported
    FEATURE_NOT_SUPPORTED = b"0A000";
    /// cardinality_violation
    CARDINALITY_VIOLATION = b"21000";
    /// string_data_right_truncation
    STRING_TOO_LONG = b"22001";
    /// numeric_value_out_of_range
    OUT_OF_RANGE = b"22003";
    /// datetime_field_overflow
    DATETIME_OVERFLOW = b"22008";
    /// invalid_datetime_format
    INVALID_DATETIME = b"22007";
    /// division_by_zero
    DIVISION_BY_ZERO = b"22012";
    /// invalid_parameter_value
    INVALID_PARAMETER_VALUE = b"22023";
    /// invalid_escape_sequence
    INVALID_ESCAPE = b"22025";
    /// invalid_text_representation
    INVALID_TEXT = b"22P02";
    /// invalid_binary_representation
    INVALID_BINARY = b"22P03";
    /// bad_copy_file_format
    BAD_COPY = b"22P04";
    /// character_not_in_repertoire
    BAD_ENCODING = b"22021";
    /// not_null_violation
    NOT_NULL_VIOLATION = b"23502";
    /// unique_violation
    UNIQUE_VIOLATION = b"23505";
    /// active_sql_transaction
    ACTIVE_TRANSACTION = b"25001";
    /// no_active_sql_transaction
    NO_ACTIVE_TRANSACTION = b"25P01";
    /// in_failed_sql_transaction
    IN_FAILED_TRANSACTION = b"25P02";
    /// invalid_sql_statement_name
    UNDEFINED_STATEMENT = b"26000";
    /// invalid_cursor_name
    UNDEFINED_CURSOR = b"34000";
    /// invalid_catalog_name
    UNDEFINED_DATABASE = b"3D000";
    /// invalid_schema_name
    UNDEFINED_SCHEMA = b"3F000";
    /// serialization_failure
    SERIALIZATION_FAILURE = b"40001";
    /// syntax_error
    SYNTAX_ERROR = b"42601";
    /// duplicate_column
    DUPLICATE_COLUMN = b"42701";
    /// ambiguous_column
    AMBIGUOUS_COLUMN = b"42702";
    /// undefined_column
    UNDEFINED_COLUMN = b"42703";
    /// undefined_object
    UNDEFINED_OBJECT = b"42704";
    /// duplicate_alias
    DUPLICATE_ALIAS = b"42712";
    /// ambiguous_function
    AMBIGUOUS_FUNCTION = b"42725";
    /// grouping_error
    GROUPING_ERROR = b"42803";
    /// datatype_mismatch
    DATATYPE_MISMATCH = b"42804";
    /// cannot_coerce
    CANNOT_COERCE = b"42846";
    /// undefined_function
    UNDEFINED_FUNCTION = b"42883";
    /// undefined_table
    UNDEFINED_TABLE = b"42P01";
    /// undefined_parameter
    UNDEFINED_PARAMETER = b"42P02";
    /// duplicate_prepared_statement
    DUPLICATE_STATEMENT = b"42P05";
    /// duplicate_table
    DUPLICATE_TABLE = b"42P07";
    /// invalid_column_reference
    INVALID_COLUMN_REFERENCE = b"42P10";
    /// invalid_table_definition
    INVALID_TABLE_DEFINITION = b"42P16";
    /// indeterminate_datatype
    INDETERMINATE_TYPE = b"42P18";
    /// insufficient_resources
    INSUFFICIENT_RESOURCES = b"53000";
    /// disk_full
    DISK_FULL = b"53100";
    /// out_of_memory
    OUT_OF_MEMORY = b"53200";
    /// too_many_connections
    TOO_MANY_CONNECTIONS = b"53300";
    /// program_limit_exceeded
    LIMIT_EXCEEDED = b"54000";
    /// statement_too_complex
    TOO_COMPLEX = b"54001";
    /// query_canceled
    QUERY_CANCELED = b"57014";
    /// admin_shutdown
    ADMIN_SHUTDOWN = b"57P01";
    /// cannot_connect_now: also a range without an unsuspected replica
    UNAVAILABLE = b"57P03";
    /// internal_error
    INTERNAL = b"XX000";
    /// data_corrupted
    DATA_CORRUPTED = b"XX001";
    /// An array that takes no more rows: for the engine itself, which then takes fewer.
    BATCH_FULL = b"XXC01";
}

/// An error with everything that psql shows of it, its [`Report`]. It takes one word, so that what is rarely an error stays
/// small.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.message)]
pub struct SqlError(Box<Report>);

/// What an [`SqlError`] tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// SQLSTATE.
    pub code: SqlState,
    /// Primary message, in PostgreSQL's words.
    pub message: String,
    /// DETAIL line.
    pub detail: Option<String>,
    /// HINT line.
    pub hint: Option<String>,
    /// CONTEXT line, for example `COPY t, line 3, column a: "x"`.
    pub context: Option<String>,
    /// 1-based character (not byte) position in the statement's text.
    pub position: Option<u32>,
    /// Table the error is about.
    pub table: Option<String>,
    /// Column the error is about.
    pub column: Option<String>,
    /// Constraint the error is about.
    pub constraint: Option<String>,
    /// Ordinal of the row the error is about, among those that the statement inserts: COPY names its line.
    pub ordinal: Option<u64>,
    /// Whether every replica fails so, though the code does not say it. Known within a process only.
    #[serde(skip)]
    is_everywhere: bool,
}

impl std::ops::Deref for SqlError {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.0
    }
}

impl std::ops::DerefMut for SqlError {
    fn deref_mut(&mut self) -> &mut Report {
        &mut self.0
    }
}

impl std::fmt::Debug for SqlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl SqlError {
    /// An error with a code and a message only.
    pub fn new(code: SqlState, message: impl Into<String>) -> Self {
        SqlError(Box::new(Report {
            code,
            message: message.into(),
            detail: None,
            hint: None,
            context: None,
            position: None,
            table: None,
            column: None,
            constraint: None,
            ordinal: None,
            is_everywhere: false,
        }))
    }

    /// What it tells, to be taken apart.
    pub fn into_report(self) -> Report {
        *self.0
    }

    /// 0A000: a clause or feature that Carousel does not have, by name.
    pub fn unsupported(what: impl std::fmt::Display) -> Self {
        SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
    }

    /// XX000: a broken promise inside Carousel.
    pub fn internal(message: impl Into<String>) -> Self {
        SqlError::new(SqlState::INTERNAL, message)
    }

    /// An array of several rows that would be too large; no client ever sees it.
    pub(crate) fn batch_full() -> Self {
        SqlError::new(SqlState::BATCH_FULL, "too many bytes for one batch")
    }

    /// Whether it says only that fewer rows must be asked for at once.
    pub fn is_batch_full(&self) -> bool {
        self.code == SqlState::BATCH_FULL
    }

    /// Puts another primary message in the place of this one.
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Adds the DETAIL line.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the HINT line.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the CONTEXT line.
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Adds the ordinal of the inserted row that the error is about.
    pub fn about_row(mut self, ordinal: u64) -> Self {
        self.ordinal = Some(ordinal);
        self
    }

    /// Adds the 1-based character position in the statement.
    pub fn at(mut self, position: u32) -> Self {
        self.position = Some(position);
        self
    }

    /// Takes the position away: what the error is about does not stand in the statement.
    pub fn without_position(mut self) -> Self {
        self.position = None;
        self
    }

    /// Whether every replica that executes the same message at the same `Ts` fails in the same way. An error for
    /// which this is false must stop the replica that meets it, never be taken for the outcome of a message.
    pub fn is_deterministic(&self) -> bool {
        self.is_everywhere || !matches!(&self.code.0[..2], b"53" | b"57" | b"58" | b"XX" | b"08")
    }

    /// A broken promise that follows from the message and the rows alone: every replica finds it.
    pub(crate) fn everywhere(mut self) -> Self {
        self.is_everywhere |= self.code == SqlState::INTERNAL;
        self
    }

    /// What a write that cannot fail has met: it may have taken effect in part.
    pub(crate) fn unexpected(self) -> Self {
        SqlError::internal(format!("what cannot fail has failed: {self}"))
    }

    /// Whether the same statement, sent again unchanged, may succeed.
    pub fn may_retry(&self) -> bool {
        matches!(&self.code.0[..2], b"40" | b"53" | b"57" | b"08")
    }
}

/// Result with a [`SqlError`].
pub type Result<T, E = SqlError> = std::result::Result<T, E>;
