//! The key ranges of a shard: it holds its share of each of these *pieces*, and every segment belongs to one.
//!
//! Operations name primary ranges, and those change while the rows stay where they are. A primary range is one piece or
//! several side by side: where ranges are joined nothing moves, and where one is split its pieces are cut
//! ([`crate::recut`]). A piece that is held no more stays, for reads of the prefix before that, until nobody can ask for
//! them. What a checkpoint has kept of a range as it was at one `Ts` is a piece that answers reads as of then, and may lie
//! beside what is held of the range.

use crate::{
    operation::{OrderedOperation, Ts},
    position::{KeyRange, Position, covers},
};

/// A piece that no row belongs to: its place can be taken by another.
const VACANT: Ts = Ts::ZERO;

/// One key range of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: KeyRange,
    /// Prefixes before this cannot be read here.
    pub(crate) since: Ts,
    /// It is held no more, or was restored only for those who are still to receive it: later prefixes cannot be read here,
    /// and nothing is written.
    pub(crate) until: Option<Ts>,
    /// When it got its bounds.
    pub(crate) cut: Ts,
    /// The latest prefix that an operation asks for that has been admitted: writes come behind it.
    pub(crate) reached: Ts,
}

impl Piece {
    /// A piece that is held.
    pub(crate) fn new(range: KeyRange, since: Ts) -> Piece {
        Piece { range, since, until: None, cut: since, reached: Ts::ZERO }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.until.is_none()
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.until == Some(VACANT)
    }

    pub(crate) fn vacate(&mut self) {
        self.until = Some(VACANT);
    }

    /// Whether the rows that an operation at this time sees are here.
    pub(crate) fn has(&self, time: Ts) -> bool {
        self.since <= time && self.until.is_none_or(|until| time <= until)
    }

    pub(crate) fn lies_in(&self, range: &KeyRange) -> bool {
        range.first <= self.range.first && self.range.last <= range.last
    }
}

/// Which of an operation's ranges each piece belongs to; `None` when the pieces do not make up its ranges.
pub(crate) fn places(pieces: &[Piece], ordered: &OrderedOperation) -> Option<Vec<Option<usize>>> {
    let is_write = ordered.operation.kind.is_write();
    let time = if is_write { ordered.ts } else { ordered.read_ts };
    let mut exact = 0;
    let places: Vec<Option<usize>> = pieces
        .iter()
        .map(|piece| {
            let found = ordered.ranges.iter().position(|range| piece.lies_in(range))?;
            if !piece.has(time) || piece.is_vacant() {
                return None;
            }
            exact += usize::from(piece.range == ordered.ranges[found]);
            Some(found)
        })
        .collect();
    if exact < ordered.ranges.len() {
        let found = pieces.iter().zip(&places).filter(|(_, place)| place.is_some());
        let mut found: Vec<KeyRange> = found.map(|(piece, _)| piece.range).collect();
        found.sort_unstable();
        if !covers(&found, &ordered.ranges) {
            return None;
        }
    }
    Some(places)
}

/// The held piece that contains a position; `hint` is looked at first.
pub(crate) fn held_at(pieces: &[Piece], position: Position, hint: usize) -> Option<usize> {
    let contains = |piece: &Piece| piece.is_held() && piece.range.contains(position);
    if pieces.get(hint).is_some_and(contains) {
        return Some(hint);
    }
    pieces.iter().position(contains)
}
