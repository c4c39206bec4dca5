//! How often values occur: what the index chooses by.

use super::Codes;
use crate::bits::Bits;

/// How often the codes of a column occur: what the index chooses by.
#[derive(Debug, Default)]
pub(crate) struct Frequency {
    /// Of a narrow column the rows of each code, NULLs left out; about so many when it has been divided.
    exact: Vec<u32>,
    /// Of a wide one the codes that stand out, ascending, with about their rows.
    heavy: Vec<(u64, u32)>,
    /// Rows of each other code.
    rest: f64,
}

impl Frequency {
    /// Codes up to which each is counted.
    const EXACT: u64 = 1024;
    /// Rows that are looked at in a wide column, and how often a code must be met to stand out.
    const SAMPLE: usize = 2048;
    const OFTEN: usize = 6;

    pub(super) fn new(codes: &Codes, max_code: u64, rows: usize, nulls: Option<&Bits>) -> Frequency {
        let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.get(row));
        if max_code < Frequency::EXACT {
            let mut exact = vec![0; max_code as usize + 1];
            match codes {
                Codes::Constant => exact[0] = rows as u32,
                Codes::Bit(bits) => {
                    let ones = bits.count() as u32;
                    exact[0] = rows as u32 - ones;
                    if let Some(count) = exact.get_mut(1) {
                        *count = ones;
                    }
                }
                Codes::U8(codes) => {
                    exact.iter_mut().zip(counts(codes)).for_each(|(exact, count)| *exact = count)
                }
                codes => codes.for_each(rows, |code| exact[code as usize] += 1),
            }
            // A NULL has the first code.
            exact[0] -= nulls.map_or(0, Bits::count) as u32;
            return Frequency { exact, ..Frequency::default() };
        }
        let stride = (rows / Frequency::SAMPLE).max(1);
        let mut sample: Vec<u64> =
            (0..rows).step_by(stride).filter(|row| !is_null(*row)).map(|row| codes.get(row)).collect();
        sample.sort_unstable();
        let mut heavy = Vec::new();
        let mut light = 0;
        for same in sample.chunk_by(|a, b| a == b) {
            if same.len() >= Frequency::OFTEN {
                heavy.push((same[0], (same.len() * stride) as u32));
            } else {
                light += same.len() * stride;
            }
        }
        Frequency { exact: Vec::new(), heavy, rest: light as f64 / (max_code as f64 + 1.0) }
    }

    /// Of some rows, of so many, if they are as the others.
    pub(super) fn of_part(&self, rows: usize, of: usize) -> Frequency {
        let share = rows as f64 / of.max(1) as f64;
        let part = |count: u32| (f64::from(count) * share).ceil() as u32;
        Frequency {
            exact: self.exact.iter().copied().map(part).collect(),
            heavy: self.heavy.iter().map(|(code, count)| (*code, part(*count))).collect(),
            rest: self.rest * share,
        }
    }

    /// Whether each row counts.
    pub(super) fn is_exact(&self) -> bool {
        !self.exact.is_empty()
    }

    /// Another row has this code.
    pub(super) fn add(&mut self, code: u64) {
        if let Some(count) = self.exact.get_mut(code as usize) {
            *count += 1;
        }
    }

    /// About how many rows a code has, if that is the same for all of them.
    pub(crate) fn of_any(&self) -> Option<f64> {
        (self.exact.is_empty() && self.heavy.is_empty()).then_some(self.rest)
    }

    /// About how many rows have one of these codes.
    pub(crate) fn estimate(&self, low: u64, high: u64) -> usize {
        if !self.exact.is_empty() {
            let high = (high as usize).min(self.exact.len() - 1);
            return self
                .exact
                .get(low as usize..=high)
                .map_or(0, |counts| counts.iter().sum::<u32>() as usize);
        }
        let first = self.heavy.partition_point(|(code, _)| *code < low);
        let heavy: u32 =
            self.heavy[first..].iter().take_while(|(code, _)| *code <= high).map(|(_, n)| n).sum();
        heavy as usize + (((high - low) as f64 + 1.0) * self.rest).ceil() as usize
    }

    pub(super) fn size(&self) -> usize {
        self.exact.len() * 4 + self.heavy.len() * 12
    }
}

/// How often each byte occurs. Four are counted at a time, each in a table of its own: where most are the same, each addition
/// would wait for the last.
fn counts(bytes: &[u8]) -> [u32; 1 << u8::BITS] {
    let mut tables = [[0; 1 << u8::BITS]; 4];
    let (fours, rest) = bytes.as_chunks::<4>();
    for four in fours.iter().map(|four| &four[..]).chain([rest]) {
        four.iter().zip(&mut tables).for_each(|(byte, table)| table[usize::from(*byte)] += 1);
    }
    let [mut all, others @ ..] = tables;
    for table in others {
        all.iter_mut().zip(table).for_each(|(all, count)| *all += count);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_counted() {
        for rows in [0u64, 1, 3, 4, 6, 1025] {
            let codes: Vec<u8> = (0..rows).map(|row| [0, 0, 255, 7][row as usize * 5 / 3 % 4]).collect();
            let frequency = Frequency::new(&Codes::U8(codes.clone()), 255, rows as usize, None);
            for code in 0..=u8::MAX {
                let count = codes.iter().filter(|other| **other == code).count();
                assert_eq!(frequency.estimate(code.into(), code.into()), count);
            }
        }
    }
}
