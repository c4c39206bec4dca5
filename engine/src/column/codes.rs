//! Codes as narrow as they can be.

use serde::{Deserialize, Serialize};

use crate::{
    ahead::fetch_at,
    bits::{Bits, Picked, for_bits},
    block::numbers,
    simd::{largest_u8, largest_u16, largest_u32, largest_u64},
};

/// Codes of an encoded column.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Codes {
    /// Every code is 0.
    Constant,
    Bit(Bits),
    U8(#[serde(with = "numbers")] Vec<u8>),
    U16(#[serde(with = "numbers")] Vec<u16>),
    U32(#[serde(with = "numbers")] Vec<u32>),
    U64(#[serde(with = "numbers")] Vec<u64>),
}

/// Makes room for that many more.
fn make_room<T>(codes: &mut Vec<T>, more: usize) {
    if codes.capacity() - codes.len() < more {
        codes.reserve_exact(spare(codes.len()).max(more));
    }
}

/// Room for more behind so many codes: doubling would leave half of a full segment's memory unused.
fn spare(codes: usize) -> usize {
    1024.max(codes / 16)
}

/// Codes with room for more. Wherever they are made there is some, or the first write of a row would copy all columns of its
/// segment.
pub(crate) fn with_room<T>(codes: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut all = room_for(codes.len());
    all.extend(codes);
    all
}

fn room_for<T>(codes: usize) -> Vec<T> {
    Vec::with_capacity(codes + spare(codes))
}

impl Codes {
    pub(super) fn narrow(codes: &[u64], max: u64) -> Codes {
        match max {
            0 => Codes::Constant,
            1 => {
                let mut bits = Bits::zeros(codes.len());
                codes.iter().enumerate().filter(|(_, code)| **code == 1).for_each(|(row, _)| bits.set(row));
                Codes::Bit(bits)
            }
            2..=0xff => Codes::U8(with_room(codes.iter().map(|code| *code as u8))),
            0x100..=0xffff => Codes::U16(with_room(codes.iter().map(|code| *code as u16))),
            0x1_0000..=0xffff_ffff => Codes::U32(with_room(codes.iter().map(|code| *code as u32))),
            _ => Codes::U64(with_room(codes.iter().copied())),
        }
    }

    #[inline]
    pub(crate) fn get(&self, row: usize) -> u64 {
        match self {
            Codes::Constant => 0,
            Codes::Bit(bits) => u64::from(bits.get(row)),
            Codes::U8(codes) => u64::from(codes[row]),
            Codes::U16(codes) => u64::from(codes[row]),
            Codes::U32(codes) => u64::from(codes[row]),
            Codes::U64(codes) => codes[row],
        }
    }

    /// Bytes that a pass over them reads for each row, rounded up.
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            Codes::Constant | Codes::Bit(_) | Codes::U8(_) => 1,
            Codes::U16(_) => 2,
            Codes::U32(_) => 4,
            Codes::U64(_) => 8,
        }
    }

    /// Calls `f` with the codes of the rows whose bits are set. The kind of the codes is asked for once, not for each row.
    pub(super) fn for_rows(&self, words: &[u64], mut f: impl FnMut(u64)) {
        match self {
            Codes::U8(codes) => for_bits(words, |row| f(u64::from(codes[row as usize]))),
            Codes::U16(codes) => for_bits(words, |row| f(u64::from(codes[row as usize]))),
            Codes::U32(codes) => for_bits(words, |row| f(u64::from(codes[row as usize]))),
            codes => for_bits(words, |row| f(codes.get(row as usize))),
        }
    }

    /// As [`for_rows`](Codes::for_rows), of the rows of a list.
    #[inline]
    pub(crate) fn for_listed(&self, rows: &[u32], mut f: impl FnMut(u64)) {
        match self {
            Codes::Constant => rows.iter().for_each(|_| f(0)),
            Codes::Bit(bits) => rows.iter().for_each(|row| f(u64::from(bits.get(*row as usize)))),
            Codes::U8(codes) => rows.iter().for_each(|row| f(u64::from(codes[*row as usize]))),
            Codes::U16(codes) => rows.iter().for_each(|row| f(u64::from(codes[*row as usize]))),
            Codes::U32(codes) => rows.iter().for_each(|row| f(u64::from(codes[*row as usize]))),
            Codes::U64(codes) => rows.iter().for_each(|row| f(codes[*row as usize])),
        }
    }

    /// Begins to fetch the code of a row into the cache.
    #[inline]
    pub(super) fn fetch(&self, row: usize) {
        match self {
            Codes::Constant => {}
            Codes::Bit(bits) => bits.fetch(row),
            Codes::U8(codes) => fetch_at(codes, row),
            Codes::U16(codes) => fetch_at(codes, row),
            Codes::U32(codes) => fetch_at(codes, row),
            Codes::U64(codes) => fetch_at(codes, row),
        }
    }

    /// Adds a code behind `rows` others; the codes become wider if it does not fit.
    pub(super) fn push(&mut self, code: u64, rows: usize) {
        fn add<T>(codes: &mut Vec<T>, code: T) {
            make_room(codes, 1);
            codes.push(code);
        }
        let fits = match self {
            Codes::Constant => code == 0,
            Codes::Bit(_) => code <= 1,
            Codes::U8(_) => code <= 0xff,
            Codes::U16(_) => code <= 0xffff,
            Codes::U32(_) => code <= 0xffff_ffff,
            Codes::U64(_) => true,
        };
        if !fits {
            let wide: Vec<u64> = (0..rows).map(|row| self.get(row)).collect();
            *self = Codes::narrow(&wide, code);
        }
        match self {
            Codes::Constant => {}
            Codes::Bit(bits) => {
                bits.resize(rows + 1);
                if code == 1 {
                    bits.set(rows);
                }
            }
            Codes::U8(codes) => add(codes, code as u8),
            Codes::U16(codes) => add(codes, code as u16),
            Codes::U32(codes) => add(codes, code as u32),
            Codes::U64(codes) => add(codes, code),
        }
    }

    /// Adds the codes of some of the `before` rows once more.
    pub(super) fn repeat(&mut self, rows: &[u32], before: usize) {
        fn add<T: Copy>(codes: &mut Vec<T>, rows: &[u32]) {
            make_room(codes, rows.len());
            rows.iter().for_each(|row| codes.push(codes[*row as usize]));
        }
        match self {
            Codes::Constant => {}
            Codes::Bit(bits) => bits.repeat(rows, before),
            Codes::U8(codes) => add(codes, rows),
            Codes::U16(codes) => add(codes, rows),
            Codes::U32(codes) => add(codes, rows),
            Codes::U64(codes) => add(codes, rows),
        }
    }

    /// The codes of some rows.
    pub(super) fn gather(&self, picked: &Picked) -> Codes {
        fn take<T: Copy>(codes: &[T], picked: &Picked) -> Vec<T> {
            let rows = picked.rows;
            let Some(runs) = picked.runs() else {
                return with_room(rows.iter().map(|row| codes[*row as usize]));
            };
            let mut all = room_for(rows.len());
            runs.iter().for_each(|run| all.extend_from_slice(&codes[run.clone()]));
            all
        }
        match self {
            Codes::Constant => Codes::Constant,
            Codes::Bit(bits) => Codes::Bit(bits.gather(picked)),
            Codes::U8(codes) => Codes::U8(take(codes, picked)),
            Codes::U16(codes) => Codes::U16(take(codes, picked)),
            Codes::U32(codes) => Codes::U32(take(codes, picked)),
            Codes::U64(codes) => Codes::U64(take(codes, picked)),
        }
    }

    /// The codes of some rows, as wide as can be.
    pub(super) fn widened(&self, rows: &[u32]) -> Vec<u64> {
        let mut codes = Vec::with_capacity(rows.len());
        self.for_listed(rows, |code| codes.push(code));
        codes
    }

    /// The largest code; 0 without rows.
    pub(crate) fn largest(&self) -> u64 {
        match self {
            Codes::Constant => 0,
            Codes::Bit(bits) => u64::from(bits.words().iter().any(|word| *word != 0)),
            Codes::U8(codes) => u64::from(largest_u8(codes)),
            Codes::U16(codes) => u64::from(largest_u16(codes)),
            Codes::U32(codes) => u64::from(largest_u32(codes)),
            Codes::U64(codes) => largest_u64(codes),
        }
    }

    /// Calls `f` with the code of each of so many rows.
    pub(crate) fn for_each(&self, rows: usize, mut f: impl FnMut(u64)) {
        match self {
            Codes::Constant | Codes::Bit(_) => (0..rows).for_each(|row| f(self.get(row))),
            Codes::U8(codes) => codes.iter().for_each(|code| f(u64::from(*code))),
            Codes::U16(codes) => codes.iter().for_each(|code| f(u64::from(*code))),
            Codes::U32(codes) => codes.iter().for_each(|code| f(u64::from(*code))),
            Codes::U64(codes) => codes.iter().for_each(|code| f(*code)),
        }
    }

    /// Calls `f` with something of each row from `first` on, and its code.
    pub(crate) fn zip<T>(&self, first: usize, rows: &mut [T], mut f: impl FnMut(&mut T, u64)) {
        fn zip<T, C: Copy + Into<u64>>(codes: &[C], rows: &mut [T], mut f: impl FnMut(&mut T, u64)) {
            rows.iter_mut().zip(codes).for_each(|(row, code)| f(row, (*code).into()));
        }
        match self {
            Codes::Constant | Codes::Bit(_) => {
                rows.iter_mut().zip(first..).for_each(|(row, at)| f(row, self.get(at)));
            }
            Codes::U8(codes) => zip(&codes[first..], rows, f),
            Codes::U16(codes) => zip(&codes[first..], rows, f),
            Codes::U32(codes) => zip(&codes[first..], rows, f),
            Codes::U64(codes) => zip(&codes[first..], rows, f),
        }
    }

    /// Whether there is a code for each of so many rows, no more and no less.
    pub(super) fn is_of(&self, rows: usize) -> bool {
        match self {
            Codes::Constant => true,
            Codes::Bit(bits) => bits.is_of(rows),
            Codes::U8(codes) => codes.len() == rows,
            Codes::U16(codes) => codes.len() == rows,
            Codes::U32(codes) => codes.len() == rows,
            Codes::U64(codes) => codes.len() == rows,
        }
    }

    pub(super) fn size(&self) -> usize {
        match self {
            Codes::Constant => 0,
            Codes::Bit(bits) => bits.size(),
            Codes::U8(codes) => codes.len(),
            Codes::U16(codes) => codes.len() * 2,
            Codes::U32(codes) => codes.len() * 4,
            Codes::U64(codes) => codes.len() * 8,
        }
    }
}
