//! An operation on its way: routers carry it without looking at it.
//!
//! To order and route a message, a router needs its identity, its key ranges and whether it writes. The operation
//! itself is serialised once, by the process that submits it, and from there on copied as bytes, into the log, into the
//! calls of the consensus and onto the delivery streams, until a storage process opens it. Inside one operating system
//! process, where messages are shared, it is not serialised but for the log.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use carousel_engine::{
    SqlError, SqlState,
    operation::{InsertRows, Operation, OperationKind},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use crate::wire::form;

/// Bytes of an operation that concerns one row; most take few more.
const POINT: usize = 64;
/// Bytes of the longest operation, or change of the catalog, that can be ordered.
pub(crate) const MOST: usize = 256 << 20;

/// An operation, open or sealed. Cheap to clone.
#[derive(Clone)]
pub struct Parcel {
    is_write: bool,
    /// At least one of the two is there.
    opened: OnceLock<Arc<Operation>>,
    sealed: OnceLock<Bytes>,
}

impl From<Arc<Operation>> for Parcel {
    fn from(operation: Arc<Operation>) -> Parcel {
        Parcel { is_write: operation.kind.is_write(), opened: operation.into(), sealed: OnceLock::new() }
    }
}

impl From<Operation> for Parcel {
    fn from(operation: Operation) -> Parcel {
        Arc::new(operation).into()
    }
}

impl Parcel {
    /// Whether the operation may change rows.
    pub fn is_write(&self) -> bool {
        self.is_write
    }

    /// The operation.
    ///
    /// # Errors
    /// 0A000 when it is not what it says from outside, or nonsense: the same for whoever opens it.
    pub fn open(&self) -> Result<&Arc<Operation>, SqlError> {
        if let Some(operation) = self.opened.get() {
            return Ok(operation);
        }
        let sealed = self.sealed.get().map_or(&[][..], |bytes| bytes);
        let operation: Operation = postcard::from_bytes(sealed)
            .map_err(|error| unreadable(format!("an operation cannot be read: {error}")))?;
        if operation.kind.is_write() != self.is_write {
            return Err(unreadable("a write travels as a read, or a read as a write".into()));
        }
        Ok(self.opened.get_or_init(|| Arc::new(operation)))
    }

    /// The operation, to be changed before it is submitted.
    ///
    /// # Errors
    /// As [`Parcel::open`].
    pub fn open_mut(&mut self) -> Result<&mut Operation, SqlError> {
        self.open()?;
        self.sealed = OnceLock::new();
        match self.opened.get_mut() {
            Some(operation) => Ok(Arc::make_mut(operation)),
            None => Err(SqlError::internal("an operation that was opened is not there")),
        }
    }

    /// Serialises the operation and forgets it otherwise. Who has made it does that best: to serialise it, and to free what it
    /// consists of, costs others more.
    ///
    /// # Errors
    /// As [`Parcel::seal`].
    pub fn close(&mut self) -> Result<(), SqlError> {
        self.seal()?;
        self.opened = OnceLock::new();
        Ok(())
    }

    /// Serialises the operation, unless that has been done. What it weighs is known then.
    ///
    /// # Errors
    /// 54000 when it is too long to be ordered, XX000 when it cannot be serialised.
    pub fn seal(&self) -> Result<(), SqlError> {
        let unwritable = |error| SqlError::internal(format!("an operation cannot be serialised: {error}"));
        check_length(self.sealed().map_err(unwritable)?.len())
    }

    /// About how many bytes it takes.
    pub fn weight(&self) -> usize {
        if let Some(sealed) = self.sealed.get() {
            return sealed.len();
        }
        match self.opened.get().map(|operation| &operation.kind) {
            Some(OperationKind::Insert(insert)) => match &insert.rows {
                InsertRows::Inline(batch) => batch.rows.get_array_memory_size() + 16 * batch.positions.len(),
                InsertRows::Staged(_) => 64,
            },
            _ => 512,
        }
    }

    fn sealed(&self) -> Result<&Bytes, postcard::Error> {
        if let (None, Some(operation)) = (self.sealed.get(), self.opened.get()) {
            // In one piece, without room behind.
            let bytes = form::append(operation, Vec::with_capacity(POINT))?.into_boxed_slice().into();
            // Somebody else may have been faster, with the same.
            let _ = self.sealed.set(bytes);
        }
        self.sealed.get().ok_or(postcard::Error::SerdeSerCustom)
    }
}

/// Whether something of so many bytes can be ordered: routers put it into one record of their logs, with a few others.
///
/// # Errors
/// 54000 when it is too long.
pub(crate) fn check_length(bytes: usize) -> Result<(), SqlError> {
    if bytes <= MOST {
        return Ok(());
    }
    let error = SqlError::new(SqlState::LIMIT_EXCEEDED, "the statement is too long");
    Err(error.with_detail(format!(
        "With the values in it, and those that follow from it alone, it takes {bytes} bytes, and may take {MOST}."
    )))
}

/// As the operation, whether it was opened before or not.
impl std::fmt::Debug for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.open() {
            Ok(operation) => operation.fmt(f),
            Err(error) => write!(f, "{error}"),
        }
    }
}

/// What a message says is its own fault, not that of the process that reads it.
fn unreadable(message: String) -> SqlError {
    SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message)
}

/// As it is serialised.
#[derive(Serialize)]
struct Sealed<'a> {
    is_write: bool,
    #[serde(serialize_with = "form::bytes::serialize")]
    operation: &'a Bytes,
}

/// As it is read.
#[derive(Deserialize)]
struct Carried {
    is_write: bool,
    #[serde(deserialize_with = "form::bytes::deserialize")]
    operation: Bytes,
}

impl Serialize for Parcel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let operation = self.sealed().map_err(ser::Error::custom)?;
        Sealed { is_write: self.is_write, operation }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Parcel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parcel, D::Error> {
        let Carried { is_write, operation } = Carried::deserialize(deserializer)?;
        Ok(Parcel { is_write, opened: OnceLock::new(), sealed: operation.into() })
    }
}

#[cfg(test)]
mod tests {
    use carousel_engine::{TableId, expr::EvalContext};

    use super::*;

    fn truncate(table: u64) -> Operation {
        Operation { table: TableId(table), context: EvalContext::default(), kind: OperationKind::Truncate }
    }

    #[test]
    fn what_was_sealed_is_what_is_opened_and_is_passed_on_unopened() {
        let bytes = postcard::to_stdvec(&Parcel::from(truncate(7))).expect("it can be sealed");
        let carried: Parcel = postcard::from_bytes(&bytes).expect("it can be carried");
        assert!(carried.is_write() && carried.opened.get().is_none());
        assert_eq!(postcard::to_stdvec(&carried).expect("it can be passed on"), bytes);
        assert!(carried.opened.get().is_none(), "nobody has looked at it");
        assert_eq!(format!("{carried:?}"), format!("{:?}", truncate(7)));
        assert_eq!(carried.open().expect("it is an operation").table, TableId(7));
    }

    #[test]
    fn what_is_sealed_weighs_what_it_takes_and_too_much_is_refused() {
        let parcel = Parcel::from(truncate(7));
        parcel.seal().expect("it can be serialised");
        assert!(parcel.opened.get().is_some());
        assert_eq!(parcel.weight(), parcel.sealed.get().expect("it is sealed").len());
        check_length(MOST).expect("it can be ordered");
        assert_eq!(check_length(MOST + 1).expect_err("it is too long").code, SqlState::LIMIT_EXCEEDED);
    }

    #[test]
    fn what_is_closed_can_be_opened_again() {
        let mut parcel = Parcel::from(truncate(7));
        parcel.close().expect("it can be serialised");
        assert!(parcel.opened.get().is_none());
        assert_eq!(parcel.open().expect("it is an operation").table, TableId(7));
    }

    #[test]
    fn what_is_changed_is_sealed_anew() {
        let mut parcel = Parcel::from(truncate(7));
        postcard::to_stdvec(&parcel).expect("it can be sealed");
        parcel.open_mut().expect("it is open").table = TableId(8);
        let bytes = postcard::to_stdvec(&parcel).expect("it can be sealed again");
        let carried: Parcel = postcard::from_bytes(&bytes).expect("it can be carried");
        assert_eq!(carried.open().expect("it is an operation").table, TableId(8));
    }

    #[test]
    fn a_parcel_that_lies_or_is_damaged_is_an_error_for_everybody() {
        let sealed = |is_write, operation: Vec<u8>| {
            let bytes =
                postcard::to_stdvec(&Sealed { is_write, operation: &operation.into() }).expect("bytes");
            postcard::from_bytes::<Parcel>(&bytes).expect("it can be carried")
        };
        let good = postcard::to_stdvec(&truncate(7)).expect("bytes");
        for parcel in
            [sealed(false, good.clone()), sealed(true, good[..2].to_vec()), sealed(true, Vec::new())]
        {
            let error = parcel.open().expect_err("it is nothing to execute");
            assert!(error.is_deterministic(), "{error}");
        }
    }
}
