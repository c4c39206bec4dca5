//! Writing rows as COPY TO does.

use arrow::record_batch::RecordBatch;
use bytes::{BufMut, BytesMut};
use carousel_engine::{Type, error::Result, text::TextWriter};
use carousel_planner::copy::{CopyFormat, CopyHeader, CopyOptions};

use crate::protocol::rows::Column;

/// Makes CopyData messages, one for each row.
pub struct CopyWriter {
    options: CopyOptions,
    types: Vec<Type>,
    writer: TextWriter,
    scratch: String,
    line: Vec<u8>,
}

impl CopyWriter {
    /// A writer of rows of these types.
    pub fn new(options: CopyOptions, types: Vec<Type>, writer: TextWriter) -> CopyWriter {
        CopyWriter { options, types, writer, scratch: String::new(), line: Vec::new() }
    }

    /// Appends the header line, if the options ask for one.
    pub fn header<'a>(&mut self, names: impl ExactSizeIterator<Item = &'a str>, out: &mut BytesMut) {
        if self.options.header == CopyHeader::None {
            return;
        }
        let alone = names.len() == 1;
        self.line.clear();
        for (i, name) in names.enumerate() {
            if i > 0 {
                self.line.push(self.options.delimiter);
            }
            write_field(&self.options, Some(name), false, alone, &mut self.line);
        }
        self.end_line(out);
    }

    /// Appends the rows of a batch from `first` on until `out` holds at least `enough` bytes; gives the number of rows
    /// written.
    ///
    /// # Errors
    /// XX000 when the batch's columns are not of the writer's types.
    pub fn rows(
        &mut self,
        batch: &RecordBatch,
        first: usize,
        enough: usize,
        out: &mut BytesMut,
    ) -> Result<usize> {
        let columns = batch
            .columns()
            .iter()
            .zip(&self.types)
            .map(|(array, ty)| Column::new(array.as_ref(), ty, self.writer))
            .collect::<Result<Vec<_>>>()?;
        for row in first..batch.num_rows() {
            if out.len() >= enough {
                return Ok(row - first);
            }
            self.line.clear();
            for (i, column) in columns.iter().enumerate() {
                if i > 0 {
                    self.line.push(self.options.delimiter);
                }
                let text = (!column.is_null(row)).then(|| column.text(row, &mut self.scratch));
                let force = self.options.force_quote.contains(i);
                write_field(&self.options, text, force, columns.len() == 1, &mut self.line);
            }
            self.end_line(out);
        }
        Ok(batch.num_rows() - first)
    }

    fn end_line(&mut self, out: &mut BytesMut) {
        self.line.push(b'\n');
        out.put_u8(b'd');
        out.put_u32(self.line.len() as u32 + 4);
        out.put_slice(&self.line);
    }
}

/// Appends one field; `None` is NULL. `alone` when the row has no other field.
pub fn write_field(
    options: &CopyOptions,
    text: Option<&str>,
    force_quote: bool,
    alone: bool,
    out: &mut Vec<u8>,
) {
    let Some(text) = text else {
        out.extend_from_slice(options.null.as_bytes());
        return;
    };
    match options.format {
        CopyFormat::Text => write_text(options, text, out),
        CopyFormat::Csv => write_csv(options, text, force_quote, alone, out),
    }
}

fn write_text(options: &CopyOptions, text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        let escaped = match byte {
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            b'\\' => b'\\',
            byte if byte == options.delimiter => byte,
            byte => {
                out.push(byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', escaped]);
    }
}

fn write_csv(options: &CopyOptions, text: &str, force_quote: bool, alone: bool, out: &mut Vec<u8>) {
    let means_something =
        |byte: u8| byte == options.delimiter || byte == options.quote || byte == b'\n' || byte == b'\r';
    let quoted =
        force_quote || text == options.null || (alone && text == "\\.") || text.bytes().any(means_something);
    if !quoted {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(options.quote);
    for byte in text.bytes() {
        if byte == options.quote || byte == options.escape {
            out.push(options.escape);
        }
        out.push(byte);
    }
    out.push(options.quote);
}
