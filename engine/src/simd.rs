//! The loops over codes that a scan spends its time in, for the instruction set of the machine it runs on.
//!
//! Each loop is written once, plainly enough to be vectorised, and compiled for several instruction sets; which one
//! runs is decided at run time. Where the plain form vectorises badly there is an explicit one beside it.

/// A fixed-width code.
pub(crate) trait Code: Copy + Ord {
    /// From a code that fits.
    fn narrow(code: u64) -> Self;
    /// As a number.
    fn wide(self) -> u64;
    /// Whether the code is in `low..=low + span`, by one comparison.
    fn within(self, low: Self, span: Self) -> bool;
    /// Writes for each 64 codes a word whose bits tell which of them are in `low..=low + span`.
    fn mask(codes: &[Self], low: Self, span: Self, out: &mut [u64]);
}

#[inline(always)]
fn mask_portable<T: Code>(codes: &[T], low: T, span: T, out: &mut [u64]) {
    for (word, chunk) in out.iter_mut().zip(codes.chunks(64)) {
        let mut flags = [0u8; 64];
        for (flag, code) in flags.iter_mut().zip(chunk) {
            *flag = u8::from(code.within(low, span));
        }
        *word = crate::bits::pack(&flags);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Code, mask_portable};

    /// What the machine can do.
    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("popcnt")
    }

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt")
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn mask_avx2<T: Code>(codes: &[T], low: T, span: T, out: &mut [u64]) {
        mask_portable(codes, low, span, out);
    }

    macro_rules! mask_avx512 {
        ($name:ident, $ty:ty, $lanes:literal, $set:ident, $sub:ident, $compare:ident, $signed:ty) => {
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            pub(super) fn $name(codes: &[$ty], low: $ty, span: $ty, out: &mut [u64]) {
                let (lows, spans) = ($set(low as $signed), $set(span as $signed));
                let whole = codes.len() / 64;
                for (word, chunk) in out.iter_mut().zip(codes.chunks_exact(64)) {
                    let mut bits = 0u64;
                    for part in 0..64 / $lanes {
                        // SAFETY: a chunk has 64 codes, of which this reads `$lanes`, from `part * $lanes` on.
                        let lanes = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(part * $lanes).cast()) };
                        let inside = $compare($sub(lanes, lows), spans);
                        bits |= u64::from(inside) << (part * $lanes);
                    }
                    *word = bits;
                }
                if codes.len() > whole * 64 {
                    mask_portable(&codes[whole * 64..], low, span, &mut out[whole..]);
                }
            }
        };
    }

    mask_avx512!(mask_u8, u8, 64, _mm512_set1_epi8, _mm512_sub_epi8, _mm512_cmple_epu8_mask, i8);
    mask_avx512!(mask_u16, u16, 32, _mm512_set1_epi16, _mm512_sub_epi16, _mm512_cmple_epu16_mask, i16);
    mask_avx512!(mask_u32, u32, 16, _mm512_set1_epi32, _mm512_sub_epi32, _mm512_cmple_epu32_mask, i32);
    mask_avx512!(mask_u64, u64, 8, _mm512_set1_epi64, _mm512_sub_epi64, _mm512_cmple_epu64_mask, i64);
}

macro_rules! code {
    ($ty:ty, $avx512:ident) => {
        impl Code for $ty {
            #[inline(always)]
            fn narrow(code: u64) -> $ty {
                code as $ty
            }

            #[inline(always)]
            fn wide(self) -> u64 {
                u64::from(self)
            }

            #[inline(always)]
            fn within(self, low: $ty, span: $ty) -> bool {
                self.wrapping_sub(low) <= span
            }

            fn mask(codes: &[$ty], low: $ty, span: $ty, out: &mut [u64]) {
                #[cfg(target_arch = "x86_64")]
                {
                    if x86::has_avx512() {
                        // SAFETY: the machine has what the function is compiled for.
                        return unsafe { x86::$avx512(codes, low, span, out) };
                    }
                    if x86::has_avx2() {
                        // SAFETY: as above.
                        return unsafe { x86::mask_avx2(codes, low, span, out) };
                    }
                }
                mask_portable(codes, low, span, out);
            }
        }
    };
}

code!(u8, mask_u8);
code!(u16, mask_u16);
code!(u32, mask_u32);
code!(u64, mask_u64);

/// Compiles a loop for several instruction sets.
macro_rules! dispatched {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn plain($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt,bmi1,bmi2")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    plain($($arg),*)
                }
                #[target_feature(enable = "avx2,popcnt")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    plain($($arg),*)
                }
                if x86::has_avx512() && is_x86_feature_detected!("bmi2") {
                    // SAFETY: the machine has what the function is compiled for.
                    return unsafe { avx512($($arg),*) };
                }
                if x86::has_avx2() {
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            plain($($arg),*)
        }
    };
}

dispatched! {
    /// `words &= others`; returns how many bits are left.
    fn intersect(words: &mut [u64], others: &[u64]) -> usize {
        let mut left = 0;
        for (word, other) in words.iter_mut().zip(others) {
            *word &= other;
            left += word.count_ones() as usize;
        }
        left
    }
}

dispatched! {
    /// `words &= !others`
    fn subtract(words: &mut [u64], others: &[u64]) {
        for (word, other) in words.iter_mut().zip(others) {
            *word &= !other;
        }
    }
}

dispatched! {
    /// How many bits are set.
    fn count_ones(words: &[u64]) -> usize {
        words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

macro_rules! sum {
    ($name:ident, $ty:ty, $block:literal) => {
        dispatched! {
            /// The sum of codes.
            fn $name(codes: &[$ty]) -> u64 {
                // In blocks whose sum fits 32 bits, so that twice as many lanes work at once.
                codes.chunks($block).map(|block| {
                    u64::from(block.iter().map(|code| u32::from(*code)).fold(0u32, u32::wrapping_add))
                }).sum()
            }
        }
    };
}

sum!(sum_u8, u8, 65536);
sum!(sum_u16, u16, 32768);

dispatched! {
    /// The sum of codes.
    fn sum_u32(codes: &[u32]) -> u64 {
        codes.iter().map(|code| u64::from(*code)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks_are_plain<T: Code + std::fmt::Debug>(top: u64) {
        for len in [0usize, 1, 63, 64, 65, 200, 640] {
            let codes: Vec<T> =
                (0..len as u64).map(|i| T::narrow(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % top)).collect();
            for (low, high) in [(0, 0), (1, top / 2), (top / 3, top - 1), (0, top - 1), (3, 3)] {
                let (low, span) = (T::narrow(low), T::narrow(high - low));
                let mut plain = vec![7; len.div_ceil(64)];
                let mut chosen = vec![9; len.div_ceil(64)];
                mask_portable(&codes, low, span, &mut plain);
                T::mask(&codes, low, span, &mut chosen);
                assert_eq!(plain, chosen);
                for (row, code) in codes.iter().enumerate() {
                    assert_eq!(plain[row / 64] >> (row % 64) & 1 == 1, code.within(low, span));
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_masks() {
        masks_are_plain::<u8>(200);
        masks_are_plain::<u16>(60_000);
        masks_are_plain::<u32>(1 << 31);
        masks_are_plain::<u64>(u64::MAX);
    }

    #[test]
    fn sums_do_not_overflow() {
        assert_eq!(sum_u8(&vec![255; 200_001]), 255 * 200_001);
        assert_eq!(sum_u16(&vec![65_535; 200_001]), 65_535 * 200_001);
        assert_eq!(sum_u32(&vec![u32::MAX; 101]), u64::from(u32::MAX) * 101);
    }

    #[test]
    fn words_are_combined() {
        let mut words = vec![0b1111, u64::MAX, 0];
        assert_eq!(intersect(&mut words, &[0b0101, 1 << 63, 5]), 3);
        assert_eq!(words, [0b0101, 1 << 63, 0]);
        subtract(&mut words, &[1, 0, 0]);
        assert_eq!(count_ones(&words), 2);
    }
}
