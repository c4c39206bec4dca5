//! Columns of several segments as one ([`crate::joining`]): their domains are put together and their codes translated, which takes
//! a fraction of the time that it would take to encode all values anew.
//!
//! ```text
//!   lines          from the least value to the greatest, in steps of the greatest common divisor
//!   dictionaries   merged: each is sorted; what was added beyond it takes its place among the others
//! ```

use super::{
    Domain, EncodedColumn, Offsets, SegmentColumn,
    encode::{CODES_BEHIND, greatest_common_divisor, most_entries},
};
use crate::{bits::Bits, types::Type};

/// What has become of the codes of a part.
enum Translation {
    /// No row has a value.
    Nothing,
    /// `first + factor * code`, both of which wrap.
    Line { first: u64, factor: u64 },
    /// By code; of one that no row has it is any.
    Places(Vec<u32>),
}

/// The codes of a part that rows with a value have.
struct Used {
    low: u64,
    high: u64,
}

impl SegmentColumn {
    /// All rows of these columns, one behind the other and all of them encoded.
    pub(crate) fn joined(ty: &Type, parts: &mut [SegmentColumn]) -> SegmentColumn {
        parts.iter_mut().for_each(|part| part.absorb_known(ty));
        let rows = parts.iter().map(SegmentColumn::rows).sum();
        let bases: Option<Vec<(&EncodedColumn, usize)>> = parts
            .iter()
            .filter(|part| part.rows() > 0)
            .map(|part| Some((part.base.as_ref().filter(|_| part.delta.len == 0)?, part.base_rows)))
            .collect();
        let joined = bases.and_then(|bases| join(ty, &bases, rows));
        let mut base = joined.unwrap_or_else(|| {
            let of_part = |part: usize| (0..parts[part].rows()).map(move |row| (part, row));
            let cells: Vec<(usize, usize)> = (0..parts.len()).flat_map(of_part).collect();
            EncodedColumn::encode(ty, rows, |row| (&parts[cells[row].0], cells[row].1))
        });
        // What has been asked of one of them is asked of all.
        let asked = parts.iter().filter_map(|part| part.base.as_ref()).max_by_key(|base| base.made_of);
        base.by_code = asked.map_or_else(Default::default, |base| base.by_code.anew());
        SegmentColumn::of(base, rows, ty)
    }
}

/// `None` where it is better to encode the values.
fn join(ty: &Type, parts: &[(&EncodedColumn, usize)], rows: usize) -> Option<EncodedColumn> {
    let (domain, translations, max) = match parts.iter().find(|(part, _)| !part.all_null)?.0.domain.as_ref() {
        Domain::Linear { .. } => join_lines(parts)?,
        _ => join_dictionaries(parts, rows)?,
    };
    let mut codes: Vec<u64> = Vec::with_capacity(rows);
    let mut nulls = Bits::zeros(rows);
    for ((part, rows), translation) in parts.iter().zip(translations) {
        let begin = codes.len();
        match translation {
            Translation::Nothing => codes.resize(begin + rows, 0),
            Translation::Line { first, factor } => {
                let translated = |code: u64| first.wrapping_add(factor.wrapping_mul(code));
                part.codes.for_each(*rows, |code| codes.push(translated(code)));
            }
            Translation::Places(places) => {
                part.codes.for_each(*rows, |code| codes.push(u64::from(places[code as usize])))
            }
        }
        match &part.nulls {
            _ if part.all_null => (begin..begin + rows).for_each(|row| nulls.set(row)),
            Some(of_part) => of_part.iter().map(|row| begin + row as usize).for_each(|row| {
                // A NULL has the first code.
                codes[row] = 0;
                nulls.set(row);
            }),
            None => {}
        }
    }
    Some(EncodedColumn::made(ty, &codes, domain, max, nulls))
}

/// The codes that rows of a part with a value have, if there are such rows.
fn used(part: &EncodedColumn, rows: usize) -> Option<Used> {
    let mut used = Used { low: u64::MAX, high: 0 };
    if part.all_null {
        return None;
    }
    let mut note = |code: u64| (used.low, used.high) = (used.low.min(code), used.high.max(code));
    match &part.nulls {
        None => part.codes.for_each(rows, note),
        Some(nulls) => {
            let values = (0..rows).filter(|row| !nulls.get(*row));
            values.for_each(|row| note(part.codes.get(row)));
        }
    }
    Some(used).filter(|used| used.low <= used.high)
}

fn join_lines(parts: &[(&EncodedColumn, usize)]) -> Option<(Domain, Vec<Translation>, u64)> {
    let used: Vec<Option<Used>> = parts.iter().map(|(part, rows)| used(part, *rows)).collect();
    let mut ends: Option<(i64, i64)> = None;
    for ((part, _), used) in parts.iter().zip(&used) {
        let Some(used) = used else { continue };
        if !matches!(*part.domain, Domain::Linear { .. }) || part.extra.len > 0 {
            return None;
        }
        let (low, high) = (part.int_of(used.low), part.int_of(used.high));
        ends = Some(ends.map_or((low, high), |(least, most)| (least.min(low), most.max(high))));
    }
    let (base, most) = ends?;
    let distance = |value: i64| value.wrapping_sub(base) as u64;
    let of_parts = || parts.iter().zip(&used).filter_map(|((part, _), used)| Some((*part, used.as_ref()?)));
    let mut divisor = 0;
    for (part, used) in of_parts() {
        divisor = greatest_common_divisor(divisor, distance(part.int_of(used.low)));
        if let (Domain::Linear { scale, .. }, true) = (&*part.domain, used.low < used.high) {
            divisor = greatest_common_divisor(divisor, *scale);
        }
    }
    // What comes between few codes had better have one.
    let scale = if distance(most) > 0xff { divisor } else { 1 };
    let max = distance(most) / scale;
    let widest = of_parts().map(|(_, used)| used.high - used.low).max().unwrap_or(0);
    // They lie far from each other: a dictionary may be smaller.
    if max > 0xffff && (widest <= 0xffff || max > 0xffff_ffff && widest <= 0xffff_ffff)
        || max > u64::MAX - CODES_BEHIND
    {
        return None;
    }
    let translation = |((part, _), used): (&(&EncodedColumn, usize), &Option<Used>)| {
        let (Some(used), Domain::Linear { scale: of_part, .. }) = (used, &*part.domain) else {
            return Translation::Nothing;
        };
        let factor = if used.low < used.high { of_part / scale } else { 0 };
        let first = (distance(part.int_of(used.low)) / scale).wrapping_sub(factor.wrapping_mul(used.low));
        Translation::Line { first, factor }
    };
    let translations = parts.iter().zip(&used).map(translation).collect();
    Some((Domain::Linear { base, scale }, translations, max))
}

fn join_dictionaries(
    parts: &[(&EncodedColumn, usize)],
    rows: usize,
) -> Option<(Domain, Vec<Translation>, u64)> {
    let first = parts.iter().find(|(part, _)| !part.all_null)?.0.domain.as_ref();
    let kind = std::mem::discriminant(first);
    let are_of_kind =
        parts.iter().all(|(part, _)| part.all_null || std::mem::discriminant(&*part.domain) == kind);
    if !are_of_kind {
        return None;
    }
    let used: Vec<Bits> = parts.iter().map(|(part, rows)| used_entries(part, *rows)).collect();
    let (domain, places, entries) = match first {
        Domain::Linear { .. } => return None,
        Domain::Ints(_) => {
            let (values, places) = merge(&used, |part, code| parts[part].0.int_of(code));
            if values.len() > most_entries(rows) {
                return None;
            }
            let entries = values.len();
            (Domain::Ints(values), places, entries)
        }
        Domain::Wides(_) => {
            let (values, places) = merge(&used, |part, code| parts[part].0.wide_of(code));
            let entries = values.len();
            (Domain::Wides(values), places, entries)
        }
        Domain::Bytes { .. } => {
            let (values, places) = merge(&used, |part, code| parts[part].0.bytes_of(code));
            let mut offsets = Offsets::with_capacity(values.len());
            let mut bytes = Vec::with_capacity(values.iter().map(|value| value.len()).sum());
            for value in &values {
                bytes.extend_from_slice(value);
                offsets.push(bytes.len());
            }
            (Domain::Bytes { offsets, bytes }, places, values.len())
        }
    };
    let translation = |(places, used): (Vec<u32>, &Bits)| match used.count() {
        0 => Translation::Nothing,
        _ => Translation::Places(places),
    };
    let translations = places.into_iter().zip(&used).map(translation).collect();
    Some((domain, translations, (entries as u64).saturating_sub(1)))
}

/// The entries of a part's dictionary, and of what was added beyond it, that rows with a value have.
fn used_entries(part: &EncodedColumn, rows: usize) -> Bits {
    let codes = if part.all_null { 0 } else { part.sorted as usize + part.extra.len };
    let mut used = Bits::zeros(codes.max(1));
    match &part.nulls {
        _ if part.all_null => {}
        None => part.codes.for_each(rows, |code| used.set(code as usize)),
        Some(nulls) => {
            let values = (0..rows).filter(|row| !nulls.get(*row));
            values.for_each(|row| used.set(part.codes.get(row) as usize));
        }
    }
    used
}

/// The values of these codes of several parts in order, each once, and by part and code which of them each is.
fn merge<K: Ord>(used: &[Bits], value: impl Fn(usize, u64) -> K) -> (Vec<K>, Vec<Vec<u32>>) {
    let mut places: Vec<Vec<u32>> = used.iter().map(|codes| vec![0; codes.size() * 8]).collect();
    let of_part = |(part, codes): (usize, &'_ Bits)| -> Vec<(K, usize, u32)> {
        codes.iter().map(|code| (value(part, u64::from(code)), part, code)).collect()
    };
    let mut entries: Vec<(K, usize, u32)> = used.iter().enumerate().flat_map(of_part).collect();
    // It finds what is in order already: the dictionary of each part.
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let mut values: Vec<K> = Vec::with_capacity(entries.len());
    for (value, part, code) in entries {
        if values.last() != Some(&value) {
            values.push(value);
        }
        places[part][code as usize] = values.len() as u32 - 1;
    }
    (values, places)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        array::{arrow_cell_to_value, values_to_array},
        bits::{Picked, Ranks},
        column::Take,
        numeric::Numeric,
        value::Value,
    };

    /// Numbers of one kind: few or many, near to each other or not.
    fn numbers() -> impl Strategy<Value = Vec<Option<i64>>> {
        let number = prop_oneof![
            Just((0..5i64).boxed()),
            Just((0..1000i64).boxed()),
            Just((0..1000i64).prop_map(|number| number * 300 + 7).boxed()),
            Just((0..40i64).prop_map(|number| number * number * 1_000_003).boxed()),
            Just((7..8i64).boxed()),
            Just(any::<i64>().boxed()),
        ];
        let weight = prop_oneof![Just(0.99), Just(0.8), Just(0.01)];
        (number, weight).prop_flat_map(|(number, weight)| {
            prop::collection::vec(prop::option::weighted(weight, number), 0..60)
        })
    }

    fn value(ty: &Type, number: Option<i64>) -> Value {
        let Some(number) = number else { return Value::Null };
        match ty {
            Type::Int8 => Value::Int8(number),
            Type::Numeric(_) => Value::Numeric(Numeric::new(number, 0)),
            _ => Value::text(format!("{number}").repeat(number.unsigned_abs() as usize % 3 + 1)),
        }
    }

    /// Some rows of a column that has been encoded, to which others have been added then.
    fn part(
        ty: &Type,
        (first, later, picks): &(Vec<Value>, Vec<Value>, Vec<bool>),
    ) -> (SegmentColumn, Vec<Value>) {
        let mut column = SegmentColumn::new(ty);
        let append = |column: &mut SegmentColumn, values: &[Value]| {
            let array = values_to_array(values, ty).expect("values of the type");
            column.delta.append(array.as_ref(), ty, Take::All(values.len()));
        };
        append(&mut column, first);
        column.encode(ty, &(0..first.len() as u32).collect::<Vec<u32>>());
        append(&mut column, later);
        let values = [&first[..], later].concat();
        let rows: Vec<u32> = (0..values.len()).filter(|row| picks[*row]).map(|row| row as u32).collect();
        let ranks = Ranks::default();
        let of_rows = rows.iter().map(|row| values[*row as usize].clone()).collect();
        (column.divided(ty, &Picked::new(&rows, &ranks)), of_rows)
    }

    proptest! {
        #[test]
        fn what_is_joined_has_all_rows_and_no_more_than_they_need(
            ty in prop::sample::select(vec![Type::Int8, Type::Text, Type::Numeric(Some((30, 0)))]),
            parts in prop::collection::vec(
                (numbers(), numbers(), prop::collection::vec(prop::bool::weighted(0.7), 120)), 1..5),
        ) {
            let of_type = |numbers: &[Option<i64>]| -> Vec<Value> {
                numbers.iter().map(|number| value(&ty, *number)).collect()
            };
            let parts = parts.iter().map(|(first, later, picks)| (of_type(first), of_type(later), picks.clone()));
            let (mut columns, values): (Vec<_>, Vec<_>) = parts.map(|it| part(&ty, &it)).unzip();
            let values = values.concat();
            let joined = SegmentColumn::joined(&ty, &mut columns);
            prop_assert_eq!(joined.rows(), values.len());
            let rows: Vec<u32> = (0..values.len() as u32).collect();
            let found = joined.gather(&ty, &rows).expect("they fit into a batch");
            for (row, value) in values.iter().enumerate() {
                prop_assert_eq!(&arrow_cell_to_value(found.as_ref(), row, &ty), value);
            }
            // It is as if the values had been encoded anew, but for how wide the codes of whole numbers are.
            let base = joined.base.as_ref().expect("it is encoded");
            let ranks = Ranks::default();
            let anew = joined.extract(&ty, &Picked::new(&rows, &ranks));
            prop_assert_eq!(base.all_null, anew.all_null);
            prop_assert_eq!(base.is_in_order(&ty), anew.is_in_order(&ty));
            prop_assert_eq!(base.bytes_held(), anew.bytes_held());
            if !rows.is_empty() {
                // It can be sent and taken.
                let part = base.part(&ty, &Picked::new(&rows, &ranks));
                let bytes = postcard::to_allocvec(&part).expect("a column travels");
                let arrived: EncodedColumn = postcard::from_bytes(&bytes).expect("it is what was sent");
                prop_assert!(arrived.admit(&ty, rows.len()).is_some());
            }
        }
    }

    /// Lines that meet, and dictionaries, are not encoded anew; numbers far from each other are.
    #[test]
    fn codes_are_translated() {
        let ty = Type::Int8;
        let column = |numbers: &[i64]| {
            let values: Vec<Value> = numbers.iter().map(|number| Value::Int8(*number)).collect();
            let all = vec![true; values.len()];
            part(&ty, &(values, Vec::new(), all)).0
        };
        let is_joined = |parts: &[Vec<i64>]| {
            let parts: Vec<SegmentColumn> = parts.iter().map(|numbers| column(numbers)).collect();
            let bases: Vec<(&EncodedColumn, usize)> = parts
                .iter()
                .map(|part| (part.base.as_ref().expect("it is encoded"), part.base_rows))
                .collect();
            let rows = parts.iter().map(SegmentColumn::rows).sum();
            join(&ty, &bases, rows).map(|column| Domain::clone(&column.domain))
        };
        let line = |base: i64, scale: i64| (0..1000).map(|at| base + at * scale).collect::<Vec<i64>>();
        let joined = is_joined(&[line(5, 6), line(20_009, 4), vec![7]]);
        assert!(matches!(joined, Some(Domain::Linear { base: 5, scale: 2 })), "{joined:?}");
        assert!(is_joined(&[line(0, 1), line(1 << 40, 1)]).is_none());
        let few =
            |base: i64| line(base, 0).into_iter().chain([base + 7, base + (1 << 40)]).collect::<Vec<i64>>();
        let joined = is_joined(&[few(3), few(1)]);
        assert!(matches!(&joined, Some(Domain::Ints(values)) if values.is_sorted() && values.len() == 6));
        assert!(is_joined(&[few(3), line(0, 1)]).is_none(), "of a line and a dictionary");
    }
}
