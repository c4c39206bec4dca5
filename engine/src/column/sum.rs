//! Sums of encoded columns, from their codes.

use super::{Codes, Domain, EncodedColumn};
use crate::{bits::Bits, simd};

impl EncodedColumn {
    /// How many of these rows, which are among the first `rows`, are not NULL, and their sum: of whole numbers, or of decimals
    /// without their point. `None` when there may be a NaN among them.
    pub(crate) fn sum(&self, rows: usize, mask: &Bits) -> Option<(u64, i128)> {
        let mut words = mask.words().to_vec();
        if self.all_null {
            return Some((0, 0));
        }
        if let Some(nulls) = &self.nulls {
            simd::subtract(&mut words, nulls.words());
        }
        let count = simd::count_ones(&words) as u64;
        let is_nan = |value: i64| value == i64::MAX;
        match &*self.domain {
            Domain::Linear { base, scale } if self.extra.len == 0 => {
                if self.sorted > 0 && is_nan(self.int_of(self.sorted - 1)) {
                    return None;
                }
                let codes: u128 = match &self.codes {
                    Codes::Constant => 0,
                    Codes::Bit(bits) => simd::intersect(&mut words, bits.words()) as u128,
                    // The code of a NULL is 0.
                    Codes::U8(codes) if mask.count() == rows => u128::from(simd::sum_u8(&codes[..rows])),
                    Codes::U16(codes) if mask.count() == rows => u128::from(simd::sum_u16(&codes[..rows])),
                    Codes::U32(codes) if mask.count() == rows => u128::from(simd::sum_u32(&codes[..rows])),
                    codes => {
                        let mut sum = 0;
                        codes.for_rows(&words, |code| sum += u128::from(code));
                        sum
                    }
                };
                let sum = i128::from(*base) * i128::from(count) + (*scale as i128) * codes as i128;
                Some((count, sum))
            }
            Domain::Linear { .. } | Domain::Ints(_) => {
                let (mut sum, mut has_nan) = (0, false);
                self.codes.for_rows(&words, |code| {
                    let value = self.int_of(code);
                    has_nan |= is_nan(value);
                    sum += i128::from(value);
                });
                (!has_nan).then_some((count, sum))
            }
            _ => None,
        }
    }
}
