//! The content hash of a range (DESIGN, decision 3): an order-independent sum over the visible rows of a strong hash
//! of each. It says nothing about versions, codes or layout, so replicas of a range can be compared at any ordered
//! `Ts`.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::{
    bits::for_bits,
    column::{Codes, Domain, EncodedColumn, Physical, SegmentColumn, physical},
    schema::Column,
    simd::add_hashes,
};

/// Rows to whose sums one column after the other is added: they stay in the nearest cache meanwhile.
const ROWS_TOGETHER: usize = 1024;

/// The sums of the hashes of the cells of some rows of a segment, as far as its columns have been added. Values are taken as
/// they are stored: `1.0` and `1.00` differ.
///
/// The hash of a row is that of the sum of its cells' hashes, each of which says which column it is in: so the segment is
/// walked column by column, and a value that many rows have is hashed once. The cells' hashes have 64 bits, which is how likely
/// it is that two rows are taken for equal; those of rows, of which there are many, have 128.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// Columns that have been added.
    columns: usize,
    /// What each row has besides.
    of_all: u64,
    of_row: Vec<u64>,
    /// The rows, if they do not ascend where they come from.
    sorted: Option<Vec<u32>>,
}

impl Sums {
    pub(crate) fn new(rows: &[u32]) -> Sums {
        let sorted = (!rows.is_sorted()).then(|| {
            let mut sorted = rows.to_vec();
            sorted.sort_unstable();
            sorted
        });
        Sums { sorted, ..Sums::of_all(rows.len()) }
    }

    /// Of all rows of columns that have so many.
    pub(crate) fn of_all(rows: usize) -> Sums {
        Sums { columns: 0, of_all: 0, of_row: vec![0; rows], sorted: None }
    }

    /// How many columns have been added.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the next columns, which have these rows and no others.
    pub(crate) fn add_all<'a>(
        &mut self,
        columns: impl IntoIterator<Item = &'a EncodedColumn>,
        definitions: &[Column],
    ) {
        let mut added = Vec::new();
        for base in columns {
            added.extend(self.next(definitions).begin(self, base));
            self.columns += 1;
        }
        for (number, sums) in self.of_row.chunks_mut(ROWS_TOGETHER).enumerate() {
            added.iter().for_each(|column| column.add_to(sums, number * ROWS_TOGETHER));
        }
    }

    fn next(&self, definitions: &[Column]) -> Cells {
        Cells { physical: physical(&definitions[self.columns].ty), seed: self.columns as u64 }
    }

    /// Adds as many of the columns that have not been added as have so many cells, but at least one, and tells how many cells
    /// it was. The rows are the same each time.
    pub(crate) fn add(
        &mut self,
        columns: &[SegmentColumn],
        definitions: &[Column],
        rows: &[u32],
        cells: usize,
    ) -> usize {
        let sorted = self.sorted.take();
        let ascending = sorted.as_deref().unwrap_or(rows);
        let of_all = |column: &SegmentColumn| column.base_rows == rows.len() && column.rows() == rows.len();
        let most = (cells / rows.len().max(1)).max(1);
        let end = columns.len().min(self.columns + most);
        let begin = self.columns;
        while self.columns < end {
            let next = &columns[self.columns..end];
            let whole =
                next.iter().take_while(|column| of_all(column)).filter_map(|column| column.base.as_ref());
            match whole.clone().next() {
                Some(_) => self.add_all(whole, definitions),
                None => {
                    self.next(definitions).add(self, &next[0], ascending);
                    self.columns += 1;
                }
            }
        }
        self.sorted = sorted;
        (end - begin) * rows.len()
    }

    /// The sum of the rows' hashes.
    pub(crate) fn finish(&self) -> u128 {
        let hash = |cells: &u64| xxh3_128(&cells.wrapping_add(self.of_all).to_le_bytes());
        self.of_row.iter().fold(0, |sum, cells| sum.wrapping_add(hash(cells)))
    }
}

/// The cells of a column.
struct Cells {
    physical: Physical,
    /// Says which column it is.
    seed: u64,
}

impl Cells {
    fn null(&self) -> u64 {
        xxh3_64_with_seed(&[], !self.seed)
    }

    fn int(&self, value: i64) -> u64 {
        xxh3_64_with_seed(&value.to_le_bytes(), self.seed)
    }

    fn wide(&self, value: i128) -> u64 {
        xxh3_64_with_seed(&value.to_le_bytes(), self.seed)
    }

    fn bytes(&self, value: &[u8]) -> u64 {
        xxh3_64_with_seed(value, self.seed)
    }

    fn code(&self, base: &EncodedColumn, code: u64) -> u64 {
        match self.physical {
            Physical::Int => self.int(base.int_of(code)),
            Physical::Wide => self.wide(base.wide_of(code)),
            Physical::Bytes => self.bytes(base.bytes_of(code)),
        }
    }

    /// Adds the hash of the cell of each row; the rows ascend.
    fn add(&self, sums: &mut Sums, column: &SegmentColumn, rows: &[u32]) {
        let encoded = rows.partition_point(|row| (*row as usize) < column.base_rows);
        let (encoded, plain) = rows.split_at(encoded);
        let (sums, later) = sums.of_row.split_at_mut(encoded.len());
        for (sum, row) in later.iter_mut().zip(plain) {
            let row = *row as usize;
            *sum = sum.wrapping_add(match self.physical {
                _ if column.is_null(row) => self.null(),
                Physical::Int => self.int(column.int(row)),
                Physical::Wide => self.wide(column.wide(row)),
                Physical::Bytes => self.bytes(column.bytes(row)),
            });
        }
        for (sum, row) in sums.iter_mut().zip(encoded) {
            let Some(base) = &column.base else { return };
            let row = *row as usize;
            let cell = if base.is_null(row) { self.null() } else { self.code(base, base.codes.get(row)) };
            *sum = sum.wrapping_add(cell);
        }
    }

    /// Adds what most rows have, once for all of them, and what few have besides. What is left is to be added row by row.
    fn begin<'a>(self, sums: &mut Sums, base: &'a EncodedColumn) -> Option<Rest<'a>> {
        let rows = sums.of_row.len();
        let add = |sum: &mut u64, hash: u64| *sum = sum.wrapping_add(hash);
        if base.all_null {
            add(&mut sums.of_all, self.null());
            return None;
        }
        if let Some(nulls) = &base.nulls {
            // A NULL has a code like any other cell: what that stands for is added in its place.
            let null = self.null();
            for_bits(nulls.words(), |row| {
                let added = self.code(base, base.codes.get(row as usize));
                add(&mut sums.of_row[row as usize], null.wrapping_sub(added));
            });
        }
        // The hash of what each code stands for, where that costs less than to hash what each row has: a table that does
        // not fit into the cache costs more than to hash a number.
        let rows_of_code = if self.physical == Physical::Bytes { 1 } else { 16 };
        match &base.codes {
            Codes::Constant => add(&mut sums.of_all, self.code(base, 0)),
            Codes::Bit(bits) => {
                let most = self.code(base, 0);
                let others = self.code(base, 1).wrapping_sub(most);
                add(&mut sums.of_all, most);
                for_bits(bits.words(), |row| add(&mut sums.of_row[row as usize], others));
            }
            codes => {
                let largest = codes.largest();
                if largest >= rows as u64 / rows_of_code {
                    return Some(Rest::Values(self, base, largest));
                }
                let mut of_code: Vec<u64> = (0..=largest).map(|code| self.code(base, code)).collect();
                if let Codes::U8(codes) = codes {
                    of_code.resize(1 << u8::BITS, 0);
                    let of_code = of_code.try_into().expect("it has a hash for each byte");
                    return Some(Rest::Bytes(codes, of_code));
                }
                return Some(Rest::Codes(codes, of_code));
            }
        }
        None
    }
}

/// What is to be added of a column for each row.
enum Rest<'a> {
    /// Codes of a byte, and the hashes of what they stand for: none is looked for where there is none.
    Bytes(&'a [u8], Box<[u64; 1 << u8::BITS]>),
    /// Other codes, and the hashes of what they stand for.
    Codes(&'a Codes, Vec<u64>),
    /// The hashes of what the codes, of which this is the largest, stand for.
    Values(Cells, &'a EncodedColumn, u64),
}

impl Rest<'_> {
    /// Adds it for the rows from `first` on, which are at most [`ROWS_TOGETHER`].
    fn add_to(&self, sums: &mut [u64], first: usize) {
        let add = |sum: &mut u64, hash: u64| *sum = sum.wrapping_add(hash);
        match self {
            Rest::Bytes(codes, of_code) => {
                let codes = &codes[first..];
                sums.iter_mut().zip(codes).for_each(|(sum, code)| add(sum, of_code[usize::from(*code)]));
            }
            Rest::Codes(codes, of_code) => {
                codes.zip(first, sums, |sum, code| add(sum, of_code[code as usize]));
            }
            Rest::Values(cells, base, largest) => match cells.physical {
                Physical::Int => {
                    let numbers = &mut [0; ROWS_TOGETHER][..sums.len()];
                    let (base_value, scale) = match &*base.domain {
                        Domain::Linear { base: value, scale } if *largest < base.sorted => {
                            base.codes.zip(first, numbers, |number, code| *number = code);
                            (*value as u64, *scale)
                        }
                        _ => {
                            base.codes.zip(first, numbers, |number, code| *number = base.int_of(code) as u64);
                            (0, 1)
                        }
                    };
                    add_hashes(sums, numbers, base_value, scale, cells.seed);
                }
                Physical::Wide => {
                    base.codes.zip(first, sums, |sum, code| add(sum, cells.wide(base.wide_of(code))))
                }
                Physical::Bytes => {
                    base.codes.zip(first, sums, |sum, code| add(sum, cells.bytes(base.bytes_of(code))));
                }
            },
        }
    }
}
