//! Blocks: rows in the form in which segments hold them, for a process that is to receive them (paper, section 6.4).
//!
//! A block has rows of one table that one shard of its sender found in one segment: for each column, narrow codes and
//! what they stand for. To make one and to take one costs little more than to copy it, whereas rows in full would have
//! to be encoded again. A shard that has the same place among as many shards takes a block as a segment of its own.

use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

use crate::{
    column::{EncodedColumn, SegmentColumn},
    error::{Result, SqlError},
    schema::Column,
};

/// A block of more than one row takes about so many bytes at most: it is sent, and kept until it has arrived, as a whole.
pub(crate) const BLOCK_BYTES: usize = 16 << 20;

/// More rows than any block has: where all cells of a column are alike, rows cost nothing there, but they do where they come.
const MOST_ROWS: usize = 1 << 26;

/// What a block begins with; its columns follow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Header {
    /// The shard that the rows belong to, of so many.
    shard: (u32, u32),
    rows: usize,
    /// So many more rows of the table are about to come from the shard, in other blocks.
    follow: usize,
    columns: usize,
}

/// How much a block is of what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The sender's shard that the rows come from.
    pub shard: u32,
    /// Rows in the block.
    pub rows: u64,
    /// So many more rows of the table are about to come from the shard, in other blocks.
    pub follow: u64,
}

/// Reads the head of a block; nothing if it is none.
pub fn extent(block: &[u8]) -> Option<Extent> {
    let (Header { shard: (shard, _), rows, follow, .. }, _) = postcard::take_from_bytes(block).ok()?;
    Some(Extent { shard, rows: rows as u64, follow: follow as u64 })
}

/// A block that is being written.
#[derive(Debug)]
pub(crate) struct Writing {
    bytes: Vec<u8>,
}

impl Writing {
    /// Rows of a shard, of so many, which others follow, in an empty buffer.
    pub(crate) fn new(
        shard: (u32, u32),
        rows: usize,
        follow: usize,
        columns: usize,
        buffer: Vec<u8>,
    ) -> Result<Writing> {
        let mut writing = Writing { bytes: buffer };
        writing.append(&Header { shard, rows, follow, columns })?;
        Ok(writing)
    }

    fn append(&mut self, value: &impl Serialize) -> Result<()> {
        let bytes = postcard::to_extend(value, std::mem::take(&mut self.bytes));
        self.bytes = bytes.map_err(|error| SqlError::internal(error.to_string()))?;
        Ok(())
    }

    /// Adds the next column.
    pub(crate) fn add(&mut self, column: &EncodedColumn) -> Result<()> {
        self.append(column)
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A block that is being read.
#[derive(Debug)]
pub(crate) struct Reading {
    header: Header,
    /// What is left of it.
    rest: Bytes,
    /// What has been read.
    columns: Vec<SegmentColumn>,
}

impl Reading {
    /// # Errors
    /// When this is no block.
    pub(crate) fn new(mut rest: Bytes) -> Result<Reading> {
        let header = take(&mut rest)?;
        Ok(Reading { header, rest, columns: Vec::new() })
    }

    /// The shard that the rows belong to, of so many.
    pub(crate) fn shard(&self) -> (u32, u32) {
        self.header.shard
    }

    pub(crate) fn rows(&self) -> usize {
        self.header.rows
    }

    /// How many more rows are about to come behind it, or more.
    pub(crate) fn follow(&self) -> usize {
        self.header.follow
    }

    /// Reads the next column; says whether there was one.
    ///
    /// # Errors
    /// When these are not rows of a table with such columns.
    pub(crate) fn next(&mut self, columns: &[Column]) -> Result<bool> {
        let Header { rows, columns: count, .. } = self.header;
        if count != columns.len() || rows > MOST_ROWS {
            return Err(unreadable("it has other columns than the table".into()));
        }
        let Some(column) = columns.get(self.columns.len()) else {
            return match self.rest.is_empty() {
                true => Ok(false),
                false => Err(unreadable("it is longer than its columns".into())),
            };
        };
        let found: EncodedColumn = take(&mut self.rest)?;
        let admitted = found.admit(&column.ty, rows);
        let base = admitted
            .ok_or_else(|| unreadable(format!("column \"{}\" is not what it must be", column.name)))?;
        self.columns.push(SegmentColumn::of(base, rows, &column.ty));
        Ok(true)
    }

    /// What has been read.
    pub(crate) fn take_columns(&mut self) -> Vec<SegmentColumn> {
        std::mem::take(&mut self.columns)
    }
}

/// Reads what some bytes begin with.
fn take<T: for<'de> Deserialize<'de>>(bytes: &mut Bytes) -> Result<T> {
    let read = postcard::take_from_bytes(bytes);
    let (value, rest) = read.map_err(|error| unreadable(error.to_string()))?;
    let read = bytes.len() - rest.len();
    bytes.advance(read);
    Ok(value)
}

fn unreadable(reason: String) -> SqlError {
    SqlError::internal(format!("a block of rows cannot be read: {reason}"))
}

/// What is shared here, and travels as what it is.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        shared: &Arc<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        T::serialize(shared, serializer)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }

    pub(crate) mod optional {
        use super::{Arc, Deserialize, Deserializer, Serialize, Serializer};

        pub(crate) fn serialize<T: Serialize, S: Serializer>(
            shared: &Option<Arc<T>>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(serializer)
        }

        pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Arc<T>>, D::Error> {
            Ok(Option::deserialize(deserializer)?.map(Arc::new))
        }
    }
}

/// Numbers as one piece of bytes, in little-endian order.
pub(crate) mod numbers {
    use std::{fmt, marker::PhantomData};

    use arrow::datatypes::{ArrowNativeType, ToByteSlice};
    use serde::{Deserializer, Serializer, de};

    use crate::column::with_room;

    /// These may be the codes of a segment.
    const MANY: usize = 4096;

    pub(crate) trait Number: ArrowNativeType {
        const BYTES: usize;
        fn write(&self, bytes: &mut [u8]);
        fn read(bytes: &[u8]) -> Self;
    }

    macro_rules! numbers {
        ($($number:ty),*) => {$(
            impl Number for $number {
                const BYTES: usize = size_of::<$number>();

                fn write(&self, bytes: &mut [u8]) {
                    bytes.copy_from_slice(&self.to_le_bytes());
                }

                fn read(bytes: &[u8]) -> Self {
                    // Whoever calls gives as many bytes as it takes.
                    <$number>::from_le_bytes(bytes.try_into().unwrap_or_default())
                }
            }
        )*};
    }

    numbers!(u8, u16, u32, u64, i64, i128);

    pub(crate) fn serialize<N: Number, S: Serializer>(
        numbers: &[N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if cfg!(target_endian = "little") {
            return serializer.serialize_bytes(numbers.to_byte_slice());
        }
        let mut bytes = vec![0; numbers.len() * N::BYTES];
        bytes.chunks_exact_mut(N::BYTES).zip(numbers).for_each(|(bytes, number)| number.write(bytes));
        serializer.serialize_bytes(&bytes)
    }

    pub(crate) fn deserialize<'de, N: Number, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<N>, D::Error> {
        struct Visitor<N>(PhantomData<N>);
        impl<N: Number> de::Visitor<'_> for Visitor<N> {
            type Value = Vec<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "numbers of {} bytes", N::BYTES)
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<N>, E> {
                if !bytes.len().is_multiple_of(N::BYTES) {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                let read = bytes.chunks_exact(N::BYTES).map(N::read);
                Ok(if read.len() < MANY { read.collect() } else { with_room(read) })
            }
        }
        deserializer.deserialize_bytes(Visitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{array::values_to_array, column::Take, types::Type, value::Value};

    /// Where all rows are alike they take no room in a block, but they do where they come.
    #[test]
    fn a_block_has_not_more_rows_than_fit_into_memory() {
        let ty = Type::Int4;
        let columns = [Column { name: "a".into(), ty: ty.clone(), not_null: false, default: None }];
        let mut column = SegmentColumn::new(&ty);
        let cells = values_to_array(&[Value::Int4(7)], &ty).expect("values of the type");
        column.delta.append(cells.as_ref(), &ty, Take::All(1));
        column.encode(&ty, &[0]);
        let column = column.base.as_ref().expect("it has been encoded");
        let read = |rows: usize| {
            let mut writing = Writing::new((0, 1), rows, 0, 1, Vec::new()).expect("it is written");
            writing.add(column).expect("it is written");
            Reading::new(writing.finish().into()).expect("it has a head").next(&columns)
        };
        assert!(read(1).is_ok() && read(MOST_ROWS).is_ok());
        assert!(read(MOST_ROWS + 1).is_err());
    }
}
