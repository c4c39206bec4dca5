//! Positions on the ring (Crescando/RB paper, section 6.2).

use arrow::{array::ArrayRef, record_batch::RecordBatch};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    array::arrow_cell_to_value,
    expr::{CompareOp, Expr},
    key::{Blanks, float_bits, prefix_bits, write_cell, write_value},
    numeric::Numeric,
    schema::{Column, Partitioning},
    types::Type,
    value::{Value, compare},
};

/// A position on the ring.
pub type Position = u64;

/// A non-empty range of ring positions, both ends included, that does not wrap around. A primary partition that wraps
/// around position 0 is two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyRange {
    /// First position in the range.
    pub first: Position,
    /// Last position in the range.
    pub last: Position,
}

/// As 16 bytes: positions are mostly hashes, of which no form of variable length spares anything.
impl Serialize for KeyRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let both = u128::from(self.first) << 64 | u128::from(self.last);
        serializer.serialize_bytes(&both.to_be_bytes())
    }
}

impl<'de> Deserialize<'de> for KeyRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeyRange, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = KeyRange;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the 16 bytes of a key range")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<KeyRange, E> {
                let both = bytes.try_into().map(u128::from_be_bytes);
                let both = both.map_err(|_| E::invalid_length(bytes.len(), &self))?;
                let range = KeyRange { first: (both >> 64) as u64, last: both as u64 };
                if range.first > range.last {
                    return Err(E::custom("a key range is empty"));
                }
                Ok(range)
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
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

    /// The least range that has all positions of both.
    pub(crate) fn hull(self, other: KeyRange) -> KeyRange {
        KeyRange { first: self.first.min(other.first), last: self.last.max(other.last) }
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

/// Sorted, disjoint ranges that cover the same positions; neighbours that touch are joined.
pub fn normalise(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort_unstable();
    let mut joined: Vec<KeyRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.last == u64::MAX || range.first <= last.last + 1 => {
                last.last = last.last.max(range.last);
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The positions that two lists of sorted, disjoint ranges share, in the same form.
pub fn intersect(left: &[KeyRange], right: &[KeyRange]) -> Vec<KeyRange> {
    let (mut i, mut j) = (0, 0);
    let mut shared = Vec::new();
    while i < left.len() && j < right.len() {
        let (a, b) = (left[i], right[j]);
        if a.overlaps(&b) {
            shared.push(KeyRange::new(a.first.max(b.first), a.last.min(b.last)));
        }
        if a.last < b.last {
            i += 1;
        } else {
            j += 1;
        }
    }
    shared
}

/// Whether every position of `inner` lies in `outer`; both sorted and disjoint.
pub fn covers(outer: &[KeyRange], inner: &[KeyRange]) -> bool {
    let outer = normalise(outer.to_vec());
    inner.iter().all(|range| {
        let next = outer.partition_point(|o| o.last < range.first);
        outer.get(next).is_some_and(|o| o.first <= range.first && range.last <= o.last)
    })
}

/// Where ranges begin, and where what lies behind each of them begins; ascending, each once.
pub fn boundaries<'a>(ranges: impl IntoIterator<Item = &'a KeyRange>) -> Vec<Position> {
    let both = |range: &KeyRange| [Some(range.first), range.last.checked_add(1)];
    let mut boundaries: Vec<Position> = ranges.into_iter().flat_map(both).flatten().collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    boundaries
}

/// The parts of a range that begin at its beginning and at boundaries (ascending).
pub fn cut(range: KeyRange, boundaries: &[Position]) -> Vec<KeyRange> {
    let mut parts = Vec::new();
    let mut first = range.first;
    for boundary in boundaries.iter().copied() {
        if first < boundary && boundary <= range.last {
            parts.push(KeyRange::new(first, boundary - 1));
            first = boundary;
        }
    }
    parts.push(KeyRange::new(first, range.last));
    parts
}

/// The most combinations of key constants that are looked up one by one; beyond, the whole ring is asked, or what lies between
/// the first and the last of a range.
const POINTS: usize = 1024;

/// Seed of the ring hash; other hashes over keys use other seeds, so that their bits are independent.
const RING_SEED: u64 = 0x7269_6e67;

impl Partitioning {
    /// The ring position of a row whose partitioning columns hold these values (in the order of
    /// [`Partitioning::columns`]). Equal values have equal positions, whatever their scale or blank padding.
    pub fn position(&self, key: &[Value]) -> Position {
        match self {
            Partitioning::Hash { .. } => {
                let mut bytes = Vec::with_capacity(32);
                for value in key {
                    write_value(&mut bytes, value);
                }
                xxh3_64_with_seed(&bytes, RING_SEED)
            }
            Partitioning::Range { splits, .. } => {
                key.first().map_or(u64::MAX, |value| range_position(value, splits))
            }
        }
    }

    /// The ring position of each row of a batch of whole rows with these column types.
    pub fn positions(&self, columns: &[Column], rows: &RecordBatch) -> Vec<Position> {
        let key: Vec<ArrayRef> = self.columns().iter().map(|column| rows.column(*column).clone()).collect();
        self.positions_of(columns, rows.num_rows(), &key)
    }

    /// As [`positions`](Partitioning::positions), of rows with these cells in the partitioning columns.
    pub(crate) fn positions_of(&self, columns: &[Column], rows: usize, key: &[ArrayRef]) -> Vec<Position> {
        match self {
            Partitioning::Hash { columns: indices } => {
                let key: Vec<(&ArrayRef, &Type)> =
                    key.iter().zip(indices.iter().map(|index| &columns[*index].ty)).collect();
                let mut bytes = Vec::with_capacity(64);
                (0..rows)
                    .map(|row| {
                        bytes.clear();
                        for (array, ty) in &key {
                            write_cell(&mut bytes, array.as_ref(), row, ty, Blanks::Trimmed);
                        }
                        hash_position(&bytes)
                    })
                    .collect()
            }
            Partitioning::Range { column, splits } => {
                let array = &key[0];
                (0..rows)
                    .map(|row| {
                        range_position(
                            &arrow_cell_to_value(array.as_ref(), row, &columns[*column].ty),
                            splits,
                        )
                    })
                    .collect()
            }
        }
    }
}

/// The position of a row by its partitioning columns in their canonical form.
pub(crate) fn hash_position(key: &[u8]) -> Position {
    xxh3_64_with_seed(key, RING_SEED)
}

/// The order-preserving position of a value. NULL sorts last.
fn range_position(value: &Value, splits: &[Value]) -> Position {
    let bits = order_bits(value);
    if splits.is_empty() {
        return bits;
    }
    let below = splits.partition_point(|split| compare_trimmed(split, value).is_le()) as u128;
    let shares = splits.len() as u128 + 1;
    let first = (below << 64) / shares;
    let last = (((below + 1) << 64) / shares) - 1;
    (first + ((u128::from(bits) * (last - first + 1)) >> 64)) as u64
}

fn compare_trimmed(a: &Value, b: &Value) -> std::cmp::Ordering {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            a.trim_end_matches(' ').as_bytes().cmp(b.trim_end_matches(' ').as_bytes())
        }
        (Value::Null, Value::Null) => std::cmp::Ordering::Equal,
        (Value::Null, _) => std::cmp::Ordering::Greater,
        (_, Value::Null) => std::cmp::Ordering::Less,
        _ => compare(a, b),
    }
}

/// 64 bits in the value's own order; types narrower than the ring are spread over it.
fn order_bits(value: &Value) -> u64 {
    const SIGN: u64 = 1 << 63;
    match value {
        Value::Null => u64::MAX,
        Value::Bool(v) => u64::from(*v) << 63,
        Value::Int2(v) => ((i64::from(*v) << 48) as u64) ^ SIGN,
        Value::Int4(v) | Value::Date(v) => ((i64::from(*v) << 32) as u64) ^ SIGN,
        Value::Int8(v) | Value::Timestamp(v) | Value::TimestampTz(v) => (*v as u64) ^ SIGN,
        // Microseconds of a day need 37 bits.
        Value::Time(v) => (*v as u64) << 27,
        Value::Float4(v) => float_bits(f64::from(*v)),
        Value::Float8(v) => float_bits(*v),
        Value::Numeric(Numeric::NaN) => u64::MAX,
        Value::Numeric(Numeric::Finite(v)) => float_bits(v.to_string().parse().unwrap_or(f64::INFINITY)),
        Value::Text(text) => prefix_bits(text.trim_end_matches(' ').as_bytes()),
        Value::Bytea(bytes) => prefix_bits(bytes),
        Value::Uuid(bytes) => prefix_bits(bytes),
        Value::Interval(_) => 0,
    }
}

/// Positions from which the rows with values of at least `value` begin. Strings need care: their positions ignore
/// trailing blanks, and a blank sorts above control characters.
fn lower_position(value: &Value, splits: &[Value]) -> Position {
    match value {
        Value::Text(text) => {
            let plain = text.bytes().position(|byte| byte < b' ').unwrap_or(text.len());
            range_position(&Value::text(&text[..plain]), splits)
        }
        other => range_position(other, splits),
    }
}

/// Positions up to which the rows with values of at most `value` come. Behind blanks there may be control characters instead
/// of some of them.
fn upper_position(value: &Value, splits: &[Value]) -> Position {
    match value {
        Value::Text(text) if text.ends_with(' ') => {
            range_position(&Value::text(format!("{}!", text.trim_end_matches(' '))), splits)
        }
        other => range_position(other, splits),
    }
}

/// The key ranges in which rows can be for which the predicate is true: sorted and disjoint, empty when it is
/// contradictory, the whole ring when it does not fix the partitioning key.
pub fn ranges_of_predicate(partitioning: &Partitioning, predicate: &[Expr]) -> Vec<KeyRange> {
    match partitioning {
        Partitioning::Hash { columns } => {
            let mut keys: Vec<Vec<Value>> = vec![Vec::new()];
            for &column in columns {
                let Some(values) = constants_of(column, predicate) else { return vec![KeyRange::FULL] };
                if keys.len().saturating_mul(values.len()) > POINTS {
                    return vec![KeyRange::FULL];
                }
                keys = keys
                    .iter()
                    .flat_map(|key| {
                        values.iter().map(move |value| {
                            let mut key = key.clone();
                            key.push(value.clone());
                            key
                        })
                    })
                    .collect();
            }
            normalise(keys.iter().map(|key| KeyRange::point(partitioning.position(key))).collect())
        }
        Partitioning::Range { column, splits } => {
            if let Some(values) = constants_of(*column, predicate) {
                let points = values.iter().map(|value| KeyRange::point(range_position(value, splits)));
                let points = normalise(points.collect());
                return match points.as_slice() {
                    [first, .., last] if points.len() > POINTS => vec![KeyRange::new(first.first, last.last)],
                    _ => points,
                };
            }
            let (mut first, mut last) = (0, u64::MAX);
            for conjunct in predicate {
                let Some((op, constant)) = comparison_with_constant(*column, conjunct) else { continue };
                match (op, constant) {
                    (_, Value::Null) => return Vec::new(),
                    (CompareOp::Lt | CompareOp::Le, value) => {
                        last = last.min(upper_position(value, splits));
                    }
                    (CompareOp::Gt | CompareOp::Ge, value) => {
                        first = first.max(lower_position(value, splits))
                    }
                    _ => {}
                }
            }
            if first <= last { vec![KeyRange::new(first, last)] } else { Vec::new() }
        }
    }
}

/// `column op constant`, whichever side the column stands on.
pub(crate) fn comparison_with_constant(column: usize, conjunct: &Expr) -> Option<(CompareOp, &Value)> {
    let Expr::Compare { op, left, right } = conjunct else { return None };
    match (left.as_ref(), right.as_ref()) {
        (Expr::Column { index, .. }, Expr::Literal { value, .. }) if *index == column => Some((*op, value)),
        (Expr::Literal { value, .. }, Expr::Column { index, .. }) if *index == column => {
            Some((op.swapped(), value))
        }
        _ => None,
    }
}

/// The distinct constants that the predicate allows for a column by `=` and `IN`, or `None` when it allows others.
pub(crate) fn constants_of(column: usize, predicate: &[Expr]) -> Option<Vec<Value>> {
    let mut allowed: Option<Vec<Value>> = None;
    for conjunct in predicate {
        let mut values: Vec<Value> = match conjunct {
            Expr::InList { expr, list, negated: false } => {
                if !matches!(expr.as_ref(), Expr::Column { index, .. } if *index == column) {
                    continue;
                }
                let constants: Option<Vec<Value>> = list
                    .iter()
                    .map(|member| match member {
                        Expr::Literal { value, .. } => Some(value.clone()),
                        _ => None,
                    })
                    .collect();
                let Some(constants) = constants else { continue };
                constants
            }
            _ => match comparison_with_constant(column, conjunct) {
                Some((CompareOp::Eq, value)) => vec![value.clone()],
                _ => continue,
            },
        };
        // Nothing equals NULL.
        values.retain(|value| !value.is_null());
        values.sort_by(compare);
        values.dedup_by(|a, b| compare(a, b).is_eq());
        match &mut allowed {
            None => allowed = Some(values),
            Some(earlier) => {
                earlier.retain(|value| values.iter().any(|other| compare_trimmed(value, other).is_eq()));
            }
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Type;

    fn hash() -> Partitioning {
        Partitioning::Hash { columns: vec![0, 1] }
    }

    fn compare_with(op: CompareOp, column: usize, value: Value, ty: Type) -> Expr {
        Expr::Compare {
            op,
            left: Box::new(Expr::column(column, ty.clone())),
            right: Box::new(Expr::literal(value, ty)),
        }
    }

    fn number(text: &str) -> Value {
        Value::Numeric(Numeric::parse(text).expect("a number"))
    }

    #[test]
    fn equal_keys_have_one_position() {
        let position = |a: Value, b: Value| hash().position(&[a, b]);
        assert_eq!(position(number("1.0"), Value::text("a")), position(number("1.00"), Value::text("a  ")));
        assert_eq!(position(Value::Float8(0.0), Value::Null), position(Value::Float8(-0.0), Value::Null));
        assert_ne!(position(number("1.0"), Value::text("ab")), position(number("1.0"), Value::text("ac")));
        assert_ne!(
            position(Value::text("a"), Value::text("bc")),
            position(Value::text("ab"), Value::text("c"))
        );
    }

    #[test]
    fn range_positions_keep_the_order() {
        let by = |splits: Vec<Value>| Partitioning::Range { column: 0, splits };
        let ordered = |partitioning: &Partitioning, values: &[Value]| {
            let positions: Vec<Position> =
                values.iter().map(|value| partitioning.position(std::slice::from_ref(value))).collect();
            assert!(positions.is_sorted(), "{values:?}: {positions:?}");
        };
        let numbers: Vec<Value> = [i64::MIN, -5, -1, 0, 3, 4, 90, i64::MAX].map(Value::Int8).to_vec();
        ordered(&by(vec![]), &numbers);
        ordered(&by(vec![Value::Int8(0), Value::Int8(4)]), &numbers);
        let split = by(vec![Value::Int8(0), Value::Int8(4)]);
        let third = u64::MAX / 3;
        assert!(split.position(&[Value::Int8(-1)]) <= third);
        assert!(
            split.position(&[Value::Int8(0)]) > third && split.position(&[Value::Int8(3)]) < 2 * third + 1
        );
        assert!(split.position(&[Value::Int8(4)]) > 2 * third);
        let floats = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-300, 2.0, f64::INFINITY, f64::NAN];
        ordered(&by(vec![]), &floats.map(Value::Float8));
        ordered(&by(vec![]), &["-1e30", "-2", "0", "0.5", "7", "1e40", "NaN"].map(number));
        ordered(&by(vec![]), &["", "a", "ab", "abcdefgh", "abcdefghi", "b", "é"].map(Value::text));
    }

    #[test]
    fn predicates_become_ranges() {
        let a = |value| compare_with(CompareOp::Eq, 0, Value::Int4(value), Type::Int4);
        let b = Expr::InList {
            expr: Box::new(Expr::column(1, Type::Text)),
            list: ["x", "y", "x"].map(|text| Expr::literal(Value::text(text), Type::Text)).to_vec(),
            negated: false,
        };
        let point = |text| KeyRange::point(hash().position(&[Value::Int4(1), Value::text(text)]));
        assert_eq!(ranges_of_predicate(&hash(), &[a(1), b.clone()]), normalise(vec![point("x"), point("y")]));
        assert_eq!(ranges_of_predicate(&hash(), &[a(1), a(2), b.clone()]), vec![]);
        assert_eq!(ranges_of_predicate(&hash(), &[b]), vec![KeyRange::FULL]);

        let by = Partitioning::Range { column: 0, splits: vec![] };
        let int = |op, value| compare_with(op, 0, Value::Int8(value), Type::Int8);
        let at = |value| by.position(&[Value::Int8(value)]);
        let between = [int(CompareOp::Ge, 5), int(CompareOp::Le, 9)];
        assert_eq!(ranges_of_predicate(&by, &between), vec![KeyRange::new(at(5), at(9))]);
        assert_eq!(ranges_of_predicate(&by, &[int(CompareOp::Gt, 9), int(CompareOp::Lt, 5)]), vec![]);
        let never = compare_with(CompareOp::Lt, 0, Value::Null, Type::Int8);
        assert_eq!(ranges_of_predicate(&by, &[never]), vec![]);
        let among = |count: i64| Expr::InList {
            expr: Box::new(Expr::column(0, Type::Int8)),
            list: (0..count).map(|value| Expr::literal(Value::Int8(2 * value), Type::Int8)).collect(),
            negated: false,
        };
        assert_eq!(ranges_of_predicate(&by, &[among(1024)]).len(), 1024);
        assert_eq!(ranges_of_predicate(&by, &[among(1025)]), vec![KeyRange::new(at(0), at(2048))]);
    }

    /// What ignoring blanks does to the order of strings must not hide rows from a bound.
    #[test]
    fn a_bound_covers_every_string_beyond_it() {
        let strings =
            ["", " ", "a", "a ", "a  b", "a \u{1}", "a\u{1}", "a\u{1} ", "a\u{2}", "a!", "b", "\u{1}"];
        for splits in [vec![], vec!["a", "a\u{2}"], vec!["\u{1}"], vec!["a "]] {
            let by = Partitioning::Range {
                column: 0,
                splits: splits.iter().map(|text| Value::text(*text)).collect(),
            };
            for (op, bound) in
                [CompareOp::Ge, CompareOp::Le].into_iter().flat_map(|op| strings.map(|to| (op, to)))
            {
                let predicate = [compare_with(op, 0, Value::text(bound), Type::Text)];
                let ranges = ranges_of_predicate(&by, &predicate);
                let qualifies =
                    |text: &&str| if op == CompareOp::Ge { **text >= *bound } else { **text <= *bound };
                for text in strings.iter().filter(|text| qualifies(text)) {
                    let position = by.position(&[Value::text(*text)]);
                    assert!(ranges.iter().any(|range| range.contains(position)), "{text:?} {op:?} {bound:?}");
                }
            }
        }
    }

    #[test]
    fn sets_of_ranges() {
        let range = KeyRange::new;
        let set = normalise(vec![range(10, 20), range(0, 4), range(5, 6), range(18, 30)]);
        assert_eq!(set, vec![range(0, 6), range(10, 30)]);
        assert_eq!(normalise(vec![KeyRange::FULL, range(3, u64::MAX)]), vec![KeyRange::FULL]);
        assert_eq!(
            intersect(&set, &[range(4, 12), range(30, 40)]),
            vec![range(4, 6), range(10, 12), range(30, 30)]
        );
        assert!(covers(&set, &[range(1, 2), range(11, 30)]) && !covers(&set, &[range(6, 7)]));
        assert!(covers(&[range(0, 9), range(10, 20)], &[range(5, 15)]));
    }
}
