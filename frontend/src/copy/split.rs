//! Cutting COPY data into rows of fields.
//!
//! One pass over the bytes finds the ends of fields and of the row together. The pass can stop at any byte and go on
//! when more has arrived, so a row may be spread over any number of messages. Fields are slices of the row wherever
//! they need no decoding.

use carousel_engine::{SqlError, SqlState, error::Result};
use carousel_planner::copy::{CopyFormat, CopyOptions};

use crate::protocol::frontend::utf8;

/// Fields of a row that are kept: more than a table can have columns. A row with more of them is refused, however many it has.
const KEPT_FIELDS: usize = 2048;

/// How lines end; decided by the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Unknown,
    Newline,
    CarriageReturn,
    Both,
}

/// Where a field is and what it needs.
#[derive(Clone, Copy, Debug)]
struct RawField {
    start: usize,
    end: usize,
    /// Text: has a backslash. Csv: has a quote.
    special: bool,
    /// Csv: nothing but one quoted part without an escape.
    plainly_quoted: bool,
}

/// A field of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its text after decoding; for a field that equals the NULL string, that string.
    pub text: &'a str,
    /// Whether the field, before decoding, is the NULL string.
    pub is_null_string: bool,
    /// Csv: whether any of it was quoted.
    pub quoted: bool,
}

/// A splitter of COPY data.
#[derive(Debug)]
pub struct Splitter {
    format: CopyFormat,
    delimiter: u8,
    quote: u8,
    escape: u8,
    null: String,
    /// Bytes that mean something; the others are skipped quickly.
    special: [bool; 256],
    buffer: Vec<u8>,
    /// Start of the current row in `buffer`.
    row_start: usize,
    /// Next byte to look at.
    at: usize,
    /// Start of the current field.
    field_start: usize,
    /// The fields that have ended, and how many that are with those that are not kept.
    fields: Vec<RawField>,
    ended_fields: usize,
    field_special: bool,
    in_quotes: bool,
    /// Where the field's only quoted part ended, when it began at the field's start.
    quote_end: Option<usize>,
    /// The field has quotes or escapes beyond one quoted part.
    intricate: bool,
    line_end: LineEnd,
    /// Number of the line that the row ends in, counted from 1.
    line: u64,
    input_ended: bool,
    finished: bool,
    longest_row: usize,
    /// Decoded fields of the current row, one after the other.
    decoded: String,
    /// The current row's fields: in the row or in `decoded`; and their number with those that are not kept.
    row: Vec<RowField>,
    field_count: usize,
    /// Where the current row's content ends, when it is known.
    content_end: Option<usize>,
    /// Where the row after the current one begins.
    next_row: usize,
}

#[derive(Clone, Copy, Debug)]
struct RowField {
    start: usize,
    end: usize,
    decoded: bool,
    is_null_string: bool,
    quoted: bool,
}

impl Splitter {
    /// A splitter for data written with these options; a row longer than `longest_row` bytes is refused.
    pub fn new(options: &CopyOptions, longest_row: usize) -> Splitter {
        let mut special = [false; 256];
        for byte in [b'\n', b'\r', 0, options.delimiter] {
            special[usize::from(byte)] = true;
        }
        match options.format {
            CopyFormat::Text => special[usize::from(b'\\')] = true,
            CopyFormat::Csv => {
                special[usize::from(options.quote)] = true;
                special[usize::from(options.escape)] = true;
            }
        }
        Splitter {
            format: options.format,
            delimiter: options.delimiter,
            quote: options.quote,
            escape: options.escape,
            null: options.null.clone(),
            special,
            buffer: Vec::new(),
            row_start: 0,
            at: 0,
            field_start: 0,
            fields: Vec::new(),
            ended_fields: 0,
            field_special: false,
            in_quotes: false,
            quote_end: None,
            intricate: false,
            line_end: LineEnd::Unknown,
            line: 0,
            input_ended: false,
            finished: false,
            longest_row,
            decoded: String::new(),
            row: Vec::new(),
            field_count: 0,
            content_end: None,
            next_row: 0,
        }
    }

    /// Takes more data.
    pub fn feed(&mut self, data: &[u8]) {
        if self.finished {
            return;
        }
        // What has been handed out is not needed any more.
        self.leave_row();
        self.buffer.drain(..self.row_start);
        self.at -= self.row_start;
        self.field_start -= self.row_start;
        for field in &mut self.fields {
            field.start -= self.row_start;
            field.end -= self.row_start;
        }
        self.quote_end = self.quote_end.map(|end| end - self.row_start);
        self.next_row -= self.row_start;
        self.row_start = 0;
        self.buffer.extend_from_slice(data);
    }

    /// No more data will come.
    pub fn end_input(&mut self) {
        self.input_ended = true;
    }

    /// Number of the current row's last line, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Number of fields of the current row.
    pub fn field_count(&self) -> usize {
        self.field_count
    }

    /// A field of the current row, of those that a table can have columns for.
    pub fn field(&self, index: usize) -> Field<'_> {
        let field = &self.row[index];
        let text = if field.decoded {
            &self.decoded[field.start..field.end]
        } else {
            // The whole row was checked, and fields end at ASCII bytes.
            std::str::from_utf8(&self.buffer[field.start..field.end]).unwrap_or_default()
        };
        Field { text, is_null_string: field.is_null_string, quoted: field.quoted }
    }

    /// The current row as it was written, for error messages: valid until more data is taken, `None` when it was not
    /// read to its end.
    pub fn row_text(&self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.buffer[self.row_start..self.content_end?]).into_owned())
    }

    fn leave_row(&mut self) {
        self.row_start = self.row_start.max(self.next_row);
        self.content_end = None;
        self.row.clear();
        self.field_count = 0;
        self.decoded.clear();
    }

    /// Moves to the next row; `false` when more data is needed or the data has ended.
    ///
    /// # Errors
    /// 22P04 for data that is not of the format, 22021 for text that is not UTF-8, 54000 for an overlong row. The
    /// splitter is of no more use.
    pub fn next_row(&mut self) -> Result<bool> {
        self.leave_row();
        if self.finished {
            return Ok(false);
        }
        let Some((content_end, next)) = self.scan()? else {
            if self.buffer.len() - self.row_start > self.longest_row {
                return Err(SqlError::new(
                    SqlState::LIMIT_EXCEEDED,
                    format!("a row of COPY data is longer than {} bytes", self.longest_row),
                ));
            }
            return Ok(false);
        };
        self.line += 1;
        self.next_row = next;
        self.decode(content_end)?;
        self.content_end = Some(content_end);
        self.fields.clear();
        self.field_count = std::mem::take(&mut self.ended_fields);
        self.at = next;
        self.begin_field(next);
        Ok(true)
    }

    fn begin_field(&mut self, at: usize) {
        self.field_start = at;
        self.field_special = false;
        self.quote_end = None;
        self.intricate = false;
    }

    fn end_field(&mut self, end: usize) {
        let plainly_quoted = self.quote_end == Some(end) && !self.intricate;
        self.ended_fields += 1;
        if self.fields.len() < KEPT_FIELDS {
            self.fields.push(RawField {
                start: self.field_start,
                end,
                special: self.field_special,
                plainly_quoted,
            });
        }
        self.begin_field(end + 1);
    }

    /// Finds the end of the row: where its content ends and where the next row begins.
    fn scan(&mut self) -> Result<Option<(usize, usize)>> {
        loop {
            let rest = &self.buffer[self.at..];
            match rest.iter().position(|b| self.special[usize::from(*b)]) {
                Some(skipped) => self.at += skipped,
                None => {
                    self.at = self.buffer.len();
                    return self.at_end();
                }
            }
            let byte = self.buffer[self.at];
            if byte == 0 {
                self.line += 1;
                return Err(SqlError::new(
                    SqlState::BAD_ENCODING,
                    "invalid byte sequence for encoding \"UTF8\": 0x00",
                ));
            }
            let step = match self.format {
                CopyFormat::Text => self.text_byte(byte)?,
                CopyFormat::Csv => self.csv_byte(byte)?,
            };
            match step {
                Step::Next(bytes) => self.at += bytes,
                Step::NeedMore => return self.at_end(),
                Step::RowEnd { content, next } => {
                    self.end_field(content);
                    return Ok(Some((content, next)));
                }
                Step::Marker { content } => {
                    self.finished = true;
                    if content == self.row_start {
                        return Ok(None);
                    }
                    self.end_field(content);
                    return Ok(Some((content, self.buffer.len())));
                }
            }
        }
    }

    /// All bytes have been looked at: a row only if no more will come.
    fn at_end(&mut self) -> Result<Option<(usize, usize)>> {
        if !self.input_ended {
            return Ok(None);
        }
        self.finished = true;
        let end = self.buffer.len();
        if self.in_quotes {
            self.line += 1;
            self.content_end = Some(end);
            return Err(SqlError::new(SqlState::BAD_COPY, "unterminated CSV quoted field"));
        }
        if end == self.row_start {
            return Ok(None);
        }
        self.end_field(end);
        Ok(Some((end, end)))
    }

    /// The byte `ahead` of the current one; `Err` when it has not arrived, `Ok(None)` when the data ends before it.
    fn peek(&self, ahead: usize) -> std::result::Result<Option<u8>, ()> {
        match self.buffer.get(self.at + ahead) {
            Some(byte) => Ok(Some(*byte)),
            None if self.input_ended => Ok(None),
            None => Err(()),
        }
    }

    fn text_byte(&mut self, byte: u8) -> Result<Step> {
        if byte == self.delimiter {
            let at = self.at;
            self.end_field(at);
            return Ok(Step::Next(1));
        }
        match byte {
            b'\n' | b'\r' => self.line_break(byte),
            b'\\' => match self.peek(1) {
                Err(()) => Ok(Step::NeedMore),
                Ok(Some(b'.')) => self.end_marker(),
                Ok(next) => {
                    self.field_special = true;
                    if matches!(next, Some(b'\n')) {
                        self.line += 1;
                    }
                    Ok(Step::Next(1 + usize::from(next.is_some())))
                }
            },
            _ => Ok(Step::Next(1)),
        }
    }

    fn csv_byte(&mut self, byte: u8) -> Result<Step> {
        if self.in_quotes {
            if byte == self.escape {
                match self.peek(1) {
                    Err(()) => return Ok(Step::NeedMore),
                    Ok(Some(next)) if next == self.quote || next == self.escape => {
                        self.intricate = true;
                        return Ok(Step::Next(2));
                    }
                    Ok(_) => {}
                }
            }
            if byte == self.quote {
                self.in_quotes = false;
                self.quote_end = Some(self.at + 1);
            } else if byte == if self.line_end == LineEnd::CarriageReturn { b'\r' } else { b'\n' } {
                self.line += 1;
            }
            return Ok(Step::Next(1));
        }
        if byte == self.quote {
            self.intricate |= self.at != self.field_start;
            self.field_special = true;
            self.in_quotes = true;
            return Ok(Step::Next(1));
        }
        if byte == self.delimiter {
            let at = self.at;
            self.end_field(at);
            return Ok(Step::Next(1));
        }
        match byte {
            b'\n' | b'\r' => self.line_break(byte),
            _ => Ok(Step::Next(1)),
        }
    }

    fn line_break(&mut self, byte: u8) -> Result<Step> {
        let csv = self.format == CopyFormat::Csv;
        // In csv, the marker is the only content of its line; elsewhere it is data.
        let step = |splitter: &Splitter, length: usize| {
            let content = splitter.at;
            if csv && &splitter.buffer[splitter.row_start..content] == b"\\." {
                Step::Marker { content: splitter.row_start }
            } else {
                Step::RowEnd { content, next: content + length }
            }
        };
        if byte == b'\n' {
            return match self.line_end {
                LineEnd::Unknown | LineEnd::Newline => {
                    self.line_end = LineEnd::Newline;
                    Ok(step(self, 1))
                }
                LineEnd::CarriageReturn | LineEnd::Both => Err(self.stray("newline", "\\n", csv)),
            };
        }
        match self.line_end {
            LineEnd::Newline => Err(self.stray("carriage return", "\\r", csv)),
            LineEnd::CarriageReturn => Ok(step(self, 1)),
            LineEnd::Unknown | LineEnd::Both => match self.peek(1) {
                Err(()) => Ok(Step::NeedMore),
                Ok(Some(b'\n')) => {
                    self.line_end = LineEnd::Both;
                    Ok(step(self, 2))
                }
                Ok(_) if self.line_end == LineEnd::Both => Err(self.stray("carriage return", "\\r", csv)),
                Ok(_) => {
                    self.line_end = LineEnd::CarriageReturn;
                    Ok(step(self, 1))
                }
            },
        }
    }

    /// `\.` in text format, which must be followed by the end of the line.
    fn end_marker(&mut self) -> Result<Step> {
        let marker = Step::Marker { content: self.at };
        match self.peek(2) {
            Err(()) => Ok(Step::NeedMore),
            Ok(None | Some(b'\n' | b'\r')) => Ok(marker),
            Ok(Some(_)) => {
                self.line += 1;
                Err(SqlError::new(SqlState::BAD_COPY, "end-of-copy marker corrupt"))
            }
        }
    }

    fn stray(&mut self, what: &str, written: &str, csv: bool) -> SqlError {
        self.line += 1;
        if csv {
            SqlError::new(SqlState::BAD_COPY, format!("unquoted {what} found in data"))
                .with_hint(format!("Use quoted CSV field to represent {what}."))
        } else {
            SqlError::new(SqlState::BAD_COPY, format!("literal {what} found in data"))
                .with_hint(format!("Use \"{written}\" to represent {what}."))
        }
    }

    fn decode(&mut self, content_end: usize) -> Result<()> {
        utf8(&self.buffer[self.row_start..content_end])?;
        let fields = std::mem::take(&mut self.fields);
        let outcome = fields.iter().try_for_each(|field| self.decode_field(field));
        self.fields = fields;
        outcome
    }

    fn decode_field(&mut self, field: &RawField) -> Result<()> {
        let raw = &self.buffer[field.start..field.end];
        let csv = self.format == CopyFormat::Csv;
        let quoted = csv && field.special;
        let mut row = RowField {
            start: field.start,
            end: field.end,
            decoded: false,
            is_null_string: !quoted && raw == self.null.as_bytes(),
            quoted,
        };
        if field.special && !row.is_null_string {
            if field.plainly_quoted {
                (row.start, row.end) = (field.start + 1, field.end - 1);
            } else {
                row.decoded = true;
                row.start = self.decoded.len();
                if csv {
                    decode_csv(raw, self.quote, self.escape, &mut self.decoded)?;
                } else {
                    decode_text(raw, &mut self.decoded)?;
                }
                row.end = self.decoded.len();
            }
        }
        if quoted {
            // FORCE_NULL looks at what was inside the quotes.
            let inside = if row.decoded {
                &self.decoded.as_bytes()[row.start..row.end]
            } else {
                &self.buffer[row.start..row.end]
            };
            row.is_null_string = inside == self.null.as_bytes();
        }
        self.row.push(row);
        Ok(())
    }
}

enum Step {
    Next(usize),
    NeedMore,
    RowEnd { content: usize, next: usize },
    Marker { content: usize },
}

fn decode_csv(raw: &[u8], quote: u8, escape: u8, out: &mut String) -> Result<()> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut in_quotes = false;
    let mut rest = raw.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if !in_quotes {
            if byte == quote {
                in_quotes = true;
            } else {
                bytes.push(byte);
            }
            continue;
        }
        if byte == escape && rest.peek().is_some_and(|next| *next == quote || *next == escape) {
            bytes.extend(rest.next());
        } else if byte == quote {
            in_quotes = false;
        } else {
            bytes.push(byte);
        }
    }
    out.push_str(utf8(&bytes)?);
    Ok(())
}

fn decode_text(raw: &[u8], out: &mut String) -> Result<()> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let Some(escaped) = rest.next() else { break };
        let value = match escaped {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'0'..=b'7' => {
                let mut value = u32::from(escaped - b'0');
                for _ in 0..2 {
                    let Some(digit) = rest.next_if(|b| (b'0'..=b'7').contains(b)) else { break };
                    value = value * 8 + u32::from(digit - b'0');
                }
                value as u8
            }
            b'x' => {
                let mut value = None;
                for _ in 0..2 {
                    let Some(digit) = rest.next_if(u8::is_ascii_hexdigit) else { break };
                    let digit = char::from(digit).to_digit(16).unwrap_or(0) as u8;
                    value = Some(value.unwrap_or(0u8) * 16 + digit);
                }
                value.unwrap_or(b'x')
            }
            other => other,
        };
        if value == 0 {
            return Err(SqlError::new(
                SqlState::BAD_ENCODING,
                "invalid byte sequence for encoding \"UTF8\": 0x00",
            ));
        }
        bytes.push(value);
    }
    out.push_str(utf8(&bytes)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use carousel_planner::copy::{CopyColumns, CopyHeader};
    use proptest::prelude::*;

    use super::*;

    fn options(format: CopyFormat) -> CopyOptions {
        let csv = format == CopyFormat::Csv;
        CopyOptions {
            format,
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { "" } else { "\\N" }.into(),
            header: CopyHeader::None,
            quote: b'"',
            escape: b'"',
            force_quote: CopyColumns::Some(Vec::new()),
            force_not_null: CopyColumns::Some(Vec::new()),
            force_null: CopyColumns::Some(Vec::new()),
        }
    }

    type Rows = Vec<Vec<Option<String>>>;

    /// Feeds the pieces; `None` stands for an unquoted NULL string.
    fn split<'a>(options: &CopyOptions, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Rows> {
        let mut splitter = Splitter::new(options, 1 << 20);
        let mut rows = Vec::new();
        let mut drain = |splitter: &mut Splitter| -> Result<()> {
            while splitter.next_row()? {
                let fields = (0..splitter.field_count()).map(|i| {
                    let field = splitter.field(i);
                    (!field.is_null_string || field.quoted).then(|| field.text.to_owned())
                });
                rows.push(fields.collect());
            }
            Ok(())
        };
        for piece in pieces {
            splitter.feed(piece);
            drain(&mut splitter)?;
        }
        splitter.end_input();
        drain(&mut splitter)?;
        Ok(rows)
    }

    fn strings(rows: &[&[Option<&str>]]) -> Rows {
        rows.iter().map(|row| row.iter().map(|f| f.map(str::to_owned)).collect()).collect()
    }

    #[test]
    fn text_escapes_and_nulls() {
        let data = b"a\tb\t\\N\n\\x41\\101\\t\t\\\\N\t\\\nx\n\\.\nignored\n";
        assert_eq!(
            split(&options(CopyFormat::Text), [&data[..]]).unwrap(),
            strings(&[&[Some("a"), Some("b"), None], &[Some("AA\t"), Some("\\N"), Some("\nx")]])
        );
    }

    #[test]
    fn csv_quotes_and_line_ends() {
        let data = b"a,\"b \"\"q\"\"\",\"\",\r\n\"x\ny\",p\"q,r\"s,2,\"\\.\"\r\n\\.\r\n";
        assert_eq!(
            split(&options(CopyFormat::Csv), [&data[..]]).unwrap(),
            strings(&[
                &[Some("a"), Some("b \"q\""), Some(""), None],
                &[Some("x\ny"), Some("pq,rs"), Some("2"), Some("\\.")],
            ])
        );
    }

    #[test]
    fn a_csv_marker_without_a_line_end_is_data() {
        let rows = split(&options(CopyFormat::Csv), [&b"x\n\\."[..]]).unwrap();
        assert_eq!(rows, strings(&[&[Some("x")], &[Some("\\.")]]));
    }

    #[test]
    fn more_fields_than_a_table_has_columns_are_counted_and_not_kept() {
        let mut splitter = Splitter::new(&options(CopyFormat::Text), 1 << 20);
        let tabs = "\t".repeat(100_000);
        splitter.feed(format!("a{tabs}\nb\n").as_bytes());
        assert!(splitter.next_row().unwrap());
        assert_eq!((splitter.field_count(), splitter.row.len()), (100_001, KEPT_FIELDS));
        assert!(splitter.next_row().unwrap());
        assert_eq!((splitter.field_count(), splitter.field(0).text), (1, "b"));
    }

    #[test]
    fn stray_line_ends_are_errors() {
        let error = split(&options(CopyFormat::Text), [&b"a\nb\r\n"[..]]).unwrap_err();
        assert_eq!(error.message, "literal carriage return found in data");
        let error = split(&options(CopyFormat::Csv), [&b"a\r\nb\n"[..]]).unwrap_err();
        assert_eq!(error.message, "unquoted newline found in data");
        let error = split(&options(CopyFormat::Csv), [&b"a,\"b\n"[..]]).unwrap_err();
        assert_eq!(error.message, "unterminated CSV quoted field");
        let error = split(&options(CopyFormat::Text), [&b"\\.x\n"[..]]).unwrap_err();
        assert_eq!(error.message, "end-of-copy marker corrupt");
    }

    proptest! {
        /// However the data is cut into messages, the rows are the same.
        #[test]
        fn pieces_do_not_matter(
            data in proptest::collection::vec(prop::sample::select(b"ab,\"\\\n\r\t.N".to_vec()), 0..40),
            csv: bool,
            backslash: bool,
        ) {
            let mut options = options(if csv { CopyFormat::Csv } else { CopyFormat::Text });
            if backslash {
                options.escape = b'\\';
            }
            let whole = split(&options, [&data[..]]);
            let single = split(&options, data.chunks(1));
            prop_assert_eq!(whole, single);
        }

        /// What COPY TO writes is read back as it was.
        #[test]
        fn written_rows_are_read_back(
            rows in proptest::collection::vec(
                proptest::collection::vec(proptest::option::of("[a\\\\,\"\n\r\t.Nü]{0,6}"), 3), 0..8),
            csv: bool,
        ) {
            let options = options(if csv { CopyFormat::Csv } else { CopyFormat::Text });
            let mut data = Vec::new();
            for row in &rows {
                for (i, field) in row.iter().enumerate() {
                    if i > 0 {
                        data.push(options.delimiter);
                    }
                    crate::copy::output::write_field(&options, field.as_deref(), false, false, &mut data);
                }
                data.push(b'\n');
            }
            prop_assert_eq!(split(&options, [&data[..]]).unwrap(), rows);
        }
    }
}
