//! How bytes and record batches are serialised.

use std::cell::{Cell, RefCell};

use ::bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// Appends a value in postcard's form to bytes.
///
/// # Errors
/// As the value's own `Serialize` fails.
pub fn append(value: &impl Serialize, bytes: Vec<u8>) -> postcard::Result<Vec<u8>> {
    postcard::serialize_with_flavor(value, Appending(bytes))
}

/// Most of what is written is one byte: that takes no call.
struct Appending(Vec<u8>);

impl postcard::ser_flavors::Flavor for Appending {
    type Output = Vec<u8>;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match bytes {
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Bytes from which on a copy of them is worth sparing.
const LARGE: usize = 512 << 10;

thread_local! {
    /// Large bytes while they are serialised: whoever puts a message together from parts does not copy them.
    static WHOLE: Cell<Option<Bytes>> = const { Cell::new(None) };
    /// What is being deserialised: large bytes stay where they are.
    static SOURCE: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// As [`append`]; but large [`mod@bytes`] are parts by themselves, between what comes before and behind them. Returns the
/// parts, and what is behind the last of them.
///
/// # Errors
/// As the value's own `Serialize` fails.
pub(crate) fn append_in_parts(
    value: &impl Serialize,
    bytes: Vec<u8>,
) -> postcard::Result<(Vec<Bytes>, Vec<u8>)> {
    postcard::serialize_with_flavor(value, InParts { parts: Vec::new(), rest: Appending(bytes) })
}

struct InParts {
    parts: Vec<Bytes>,
    rest: Appending,
}

impl postcard::ser_flavors::Flavor for InParts {
    type Output = (Vec<Bytes>, Vec<u8>);

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.rest.try_push(byte)
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        let is_it = |whole: &Bytes| std::ptr::eq(whole.as_ref(), bytes);
        if bytes.len() >= LARGE
            && let Some(whole) = WHOLE.take().filter(is_it)
        {
            self.parts.push(std::mem::take(&mut self.rest.0).into());
            self.parts.push(whole);
            return Ok(());
        }
        self.rest.try_extend(bytes)
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok((self.parts, self.rest.0))
    }
}

/// Takes a value that a message is, wholly. Its large [`mod@bytes`] are parts of the message, and not copied.
///
/// # Errors
/// When it is not such a value, or there is more.
pub(crate) fn take_whole<T: DeserializeOwned>(message: Bytes) -> postcard::Result<T> {
    SOURCE.replace(message.clone());
    let taken = postcard::take_from_bytes(&message);
    SOURCE.take();
    match taken? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::SerdeDeCustom),
    }
}

/// Bytes as one piece, not as a sequence of numbers.
pub(crate) mod bytes {
    use bytes::Bytes;
    use serde::{Deserializer, Serializer, de};

    use super::{LARGE, SOURCE, WHOLE};

    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        if bytes.len() < LARGE {
            return serializer.serialize_bytes(bytes);
        }
        WHOLE.set(Some(bytes.clone()));
        let outcome = serializer.serialize_bytes(bytes);
        WHOLE.set(None);
        outcome
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                let part = || {
                    SOURCE.with_borrow(|source| {
                        let whole = source.as_ptr_range();
                        let is_part =
                            whole.contains(&bytes.as_ptr()) && bytes.as_ptr_range().end <= whole.end;
                        is_part.then(|| source.slice_ref(bytes))
                    })
                };
                let part = if bytes.len() < LARGE { None } else { part() };
                Ok(part.unwrap_or_else(|| Bytes::copy_from_slice(bytes)))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes::from(bytes))
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

/// Bytes that need not be there, in one piece.
pub(super) mod some_bytes {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Piece(#[serde(with = "super::bytes")] Bytes);

    pub(crate) fn serialize<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Piece).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Piece>::deserialize(deserializer)?.map(|Piece(bytes)| bytes))
    }
}

/// A record batch as an Arrow IPC stream.
pub(super) mod batch {
    use arrow::record_batch::RecordBatch;
    use carousel_engine::ipc;
    use serde::{Deserializer, Serializer, de, ser};

    pub(crate) fn serialize<S: Serializer>(batch: &RecordBatch, serializer: S) -> Result<S::Ok, S::Error> {
        let stream = ipc::encode(std::slice::from_ref(batch)).map_err(ser::Error::custom)?;
        serializer.serialize_bytes(&stream)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RecordBatch, D::Error> {
        let stream = super::bytes::deserialize(deserializer)?;
        let mut batches = ipc::decode(&stream).map_err(de::Error::custom)?;
        match (batches.pop(), batches.is_empty()) {
            (Some(batch), true) => Ok(batch),
            _ => Err(de::Error::custom("a stream of one batch was expected")),
        }
    }
}
