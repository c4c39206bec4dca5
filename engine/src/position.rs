//! Positions on the ring (Crescando/RB paper, section 6.2).

use serde::{Deserialize, Serialize};

/// A position on the ring.
pub type Position = u64;

/// A non-empty range of ring positions, both ends included, that does not wrap around. A primary partition that wraps
/// around position 0 is two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyRange {
    /// First position in the range.
    pub first: Position,
    /// Last position in the range.
    pub last: Position,
}

impl KeyRange {
    /// The whole ring.
    pub const FULL: KeyRange = KeyRange { first: 0, last: u64::MAX };

    /// A range from `first` to `last`, both included.
    ///
    /// # Panics
    /// When `first > last`.
    pub fn new(first: Position, last: Position) -> KeyRange {
        assert!(first <= last, "a key range must not be empty");
        KeyRange { first, last }
    }

    /// A single position.
    pub fn point(position: Position) -> KeyRange {
        KeyRange { first: position, last: position }
    }

    /// Whether the position lies in the range.
    pub fn contains(&self, position: Position) -> bool {
        self.first <= position && position <= self.last
    }

    /// Whether the two ranges share a position.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl std::fmt::Display for KeyRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{:016x}, {:016x}]", self.first, self.last)
    }
}
