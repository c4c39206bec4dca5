//! The loops over codes that a scan spends its time in, for the instruction set of the machine it runs on.
//!
//! Each loop is written once, plainly enough to be vectorised, and compiled for several instruction sets; which one
//! runs is decided at run time. Where the plain form vectorises badly there is an explicit one beside it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Buckets that the codes of a column are put into when many tests are joined with it: by their upper 16 bits.
pub(crate) const BUCKETS: usize = 1 << 16;

/// A bit for each bucket.
pub(crate) type Buckets = [u64; BUCKETS / 64];

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
    /// Writes for each 64 codes a word with the bits of their buckets; `shift` takes the largest code to the last
    /// bucket.
    fn lookup(codes: &[Self], shift: u32, buckets: &Buckets, out: &mut [u64]);
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

    use super::mask_portable;

    /// What the machine can do.
    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && has_avx2()
    }

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
    }

    /// Loads the `index`th vector of a chunk of 64 codes.
    ///
    /// # Safety
    /// `index` is below the number of vectors that the codes fill.
    #[target_feature(enable = "avx2")]
    unsafe fn load<T>(chunk: &[T], index: usize) -> __m256i {
        // SAFETY: as promised.
        unsafe { _mm256_loadu_si256(chunk.as_ptr().cast::<__m256i>().add(index)) }
    }

    /// Compares 64 codes with an interval; one function for each width, since each packs its lanes in another way.
    macro_rules! mask_avx2 {
        ($name:ident, $ty:ty, $set:ident as $signed:ty, |$chunk:ident, $lows:ident, $spans:ident| $word:expr) => {
            #[target_feature(enable = "avx2")]
            pub(super) fn $name(codes: &[$ty], low: $ty, span: $ty, out: &mut [u64]) {
                let ($lows, $spans) = ($set(low as $signed), $set(span as $signed));
                let whole = codes.len() / 64;
                for (word, $chunk) in out.iter_mut().zip(codes.chunks_exact(64)) {
                    *word = $word;
                }
                if codes.len() > whole * 64 {
                    mask_portable(&codes[whole * 64..], low, span, &mut out[whole..]);
                }
            }
        };
    }

    mask_avx2!(mask_avx2_u8, u8, _mm256_set1_epi8 as i8, |chunk, lows, spans| {
        let half = |index: usize| {
            // SAFETY: 64 codes fill 2 vectors.
            let codes = _mm256_sub_epi8(unsafe { load(chunk, index) }, lows);
            let inside = _mm256_cmpeq_epi8(_mm256_min_epu8(codes, spans), codes);
            u64::from(_mm256_movemask_epi8(inside) as u32)
        };
        half(0) | half(1) << 32
    });

    mask_avx2!(mask_avx2_u16, u16, _mm256_set1_epi16 as i16, |chunk, lows, spans| {
        let inside = |index: usize| {
            // SAFETY: 64 codes fill 4 vectors.
            let codes = _mm256_sub_epi16(unsafe { load(chunk, index) }, lows);
            _mm256_cmpeq_epi16(_mm256_min_epu16(codes, spans), codes)
        };
        let half = |first: usize| {
            // Packing interleaves the halves of the two vectors.
            let packed = _mm256_packs_epi16(inside(first), inside(first + 1));
            u64::from(_mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed)) as u32)
        };
        half(0) | half(2) << 32
    });

    mask_avx2!(mask_avx2_u32, u32, _mm256_set1_epi32 as i32, |chunk, lows, spans| {
        let mut word = 0;
        for index in 0..8 {
            // SAFETY: 64 codes fill 8 vectors.
            let codes = _mm256_sub_epi32(unsafe { load(chunk, index) }, lows);
            let inside = _mm256_cmpeq_epi32(_mm256_min_epu32(codes, spans), codes);
            word |= u64::from(_mm256_movemask_ps(_mm256_castsi256_ps(inside)) as u32) << (index * 8);
        }
        word
    });

    mask_avx2!(mask_avx2_u64, u64, _mm256_set1_epi64x as i64, |chunk, lows, spans| {
        let sign = _mm256_set1_epi64x(i64::MIN);
        let spans = _mm256_xor_si256(spans, sign);
        let mut word = 0;
        for index in 0..16 {
            // SAFETY: 64 codes fill 16 vectors.
            let codes = _mm256_sub_epi64(unsafe { load(chunk, index) }, lows);
            // Only signed numbers can be compared.
            let outside = _mm256_cmpgt_epi64(_mm256_xor_si256(codes, sign), spans);
            let outside = _mm256_movemask_pd(_mm256_castsi256_pd(outside)) as u64;
            word |= (outside ^ 0b1111) << (index * 4);
        }
        word
    });

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

#[cfg(target_arch = "aarch64")]
mod neon {
    //! Every aarch64 machine has NEON: nothing is to be detected.

    use std::arch::aarch64::*;

    use super::mask_portable;

    /// One bit for each of 64 lanes that are all ones or all zeros.
    #[inline(always)]
    fn pack(lanes: [uint8x16_t; 4]) -> u64 {
        const PLACES: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: 16 bytes are read from an array of 16 bytes.
        let places = unsafe { vld1q_u8(PLACES.as_ptr()) };
        let [a, b, c, d] = lanes.map(|lanes| vandq_u8(lanes, places));
        let sums = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
        vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)))
    }

    /// Compares 64 codes with an interval. `$inside` gives the lanes of the `$index`th vector that are in it, `$bytes`
    /// 16 of them as bytes from such vectors.
    macro_rules! mask {
        ($name:ident, $ty:ty, $set:ident, $load:ident, $sub:ident, $compare:ident,
         |$inside:ident, $quarter:ident| $bytes:expr) => {
            pub(super) fn $name(codes: &[$ty], low: $ty, span: $ty, out: &mut [u64]) {
                const LANES: usize = 16 / size_of::<$ty>();
                let (lows, spans) = ($set(low), $set(span));
                let whole = codes.len() / 64;
                for (word, chunk) in out.iter_mut().zip(codes.chunks_exact(64)) {
                    let $inside = |index: usize| {
                        // SAFETY: a chunk has 64 codes, of which this reads `LANES`; callers name vectors inside it.
                        let codes = unsafe { $load(chunk.as_ptr().add(index * LANES)) };
                        $compare($sub(codes, lows), spans)
                    };
                    *word = pack([0, 1, 2, 3].map(|$quarter: usize| $bytes));
                }
                if codes.len() > whole * 64 {
                    mask_portable(&codes[whole * 64..], low, span, &mut out[whole..]);
                }
            }
        };
    }

    mask!(mask_u8, u8, vdupq_n_u8, vld1q_u8, vsubq_u8, vcleq_u8, |inside, quarter| inside(quarter));
    mask!(mask_u16, u16, vdupq_n_u16, vld1q_u16, vsubq_u16, vcleq_u16, |inside, quarter| {
        let half = |index: usize| vmovn_u16(inside(quarter * 2 + index));
        vcombine_u8(half(0), half(1))
    });
    mask!(mask_u32, u32, vdupq_n_u32, vld1q_u32, vsubq_u32, vcleq_u32, |inside, quarter| {
        let eight = |index: usize| {
            let four = |index: usize| vmovn_u32(inside(quarter * 4 + index));
            vmovn_u16(vcombine_u16(four(index), four(index + 1)))
        };
        vcombine_u8(eight(0), eight(2))
    });
    mask!(mask_u64, u64, vdupq_n_u64, vld1q_u64, vsubq_u64, vcleq_u64, |inside, quarter| {
        let eight = |index: usize| {
            let four = |index: usize| {
                let two = |index: usize| vmovn_u64(inside(quarter * 8 + index));
                vmovn_u32(vcombine_u32(two(index), two(index + 1)))
            };
            vmovn_u16(vcombine_u16(four(index), four(index + 2)))
        };
        vcombine_u8(eight(0), eight(4))
    });
}

macro_rules! code {
    ($ty:ty, $mask:ident, $avx2:ident, $lookup:ident) => {
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
                        return unsafe { x86::$mask(codes, low, span, out) };
                    }
                    if x86::has_avx2() {
                        // SAFETY: as above.
                        return unsafe { x86::$avx2(codes, low, span, out) };
                    }
                }
                #[cfg(target_arch = "aarch64")]
                return neon::$mask(codes, low, span, out);
                #[cfg(not(target_arch = "aarch64"))]
                mask_portable(codes, low, span, out);
            }

            fn lookup(codes: &[$ty], shift: u32, buckets: &Buckets, out: &mut [u64]) {
                $lookup(codes, shift, buckets, out)
            }
        }
    };
}

code!(u8, mask_u8, mask_avx2_u8, lookup_u8);
code!(u16, mask_u16, mask_avx2_u16, lookup_u16);
code!(u32, mask_u32, mask_avx2_u32, lookup_u32);
code!(u64, mask_u64, mask_avx2_u64, lookup_u64);

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
                #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    plain($($arg),*)
                }
                if x86::has_avx512() {
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
    /// Adds the hash of `base + scale * number` for each number: XXH3 of its 8 bytes, with a seed.
    fn add_hashes(sums: &mut [u64], numbers: &[u64], base: u64, scale: u64, seed: u64) {
        for (sum, number) in sums.iter_mut().zip(numbers) {
            let value = base.wrapping_add(scale.wrapping_mul(*number));
            *sum = sum.wrapping_add(xxh3_64_with_seed(&value.to_le_bytes(), seed));
        }
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

macro_rules! lookup {
    ($name:ident, $ty:ty) => {
        dispatched! {
            /// [`Code::lookup`]
            fn $name(codes: &[$ty], shift: u32, buckets: &Buckets, out: &mut [u64]) {
                // What is known to be zero costs nothing.
                let shift = if <$ty>::BITS <= BUCKETS.ilog2() { 0 } else { shift };
                for (word, chunk) in out.iter_mut().zip(codes.chunks(64)) {
                    let mut bits = 0;
                    for (eighth, codes) in chunk.chunks(8).enumerate() {
                        let mut byte = 0;
                        for (place, code) in codes.iter().enumerate() {
                            let bucket = (u64::from(*code) >> shift) as usize % BUCKETS;
                            byte |= (buckets[bucket / 64] >> (bucket % 64) & 1) << place;
                        }
                        bits |= byte << (eighth * 8);
                    }
                    *word = bits;
                }
            }
        }
    };
}

lookup!(lookup_u8, u8);
lookup!(lookup_u16, u16);
lookup!(lookup_u32, u32);
lookup!(lookup_u64, u64);

macro_rules! largest {
    ($name:ident, $ty:ty) => {
        dispatched! {
            /// The largest code; 0 without codes.
            fn $name(codes: &[$ty]) -> $ty {
                codes.iter().fold(0, |largest, code| largest.max(*code))
            }
        }
    };
}

largest!(largest_u8, u8);
largest!(largest_u16, u16);
largest!(largest_u32, u32);
largest!(largest_u64, u64);

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

    fn lookups_are_plain<T: Code + std::fmt::Debug>(top: u64, shift: u32) {
        let codes: Vec<T> =
            (0..200u64).map(|i| T::narrow(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % top)).collect();
        let mut buckets = [0; BUCKETS / 64];
        let bucket = |code: &T| (code.wide() >> shift) as usize;
        codes.iter().step_by(3).for_each(|code| buckets[bucket(code) / 64] |= 1 << (bucket(code) % 64));
        let mut found = vec![7; 4];
        T::lookup(&codes, shift, &buckets, &mut found);
        for (row, code) in codes.iter().enumerate() {
            let wanted = buckets[bucket(code) / 64] >> (bucket(code) % 64) & 1;
            assert_eq!(found[row / 64] >> (row % 64) & 1, wanted);
        }
        assert_eq!(found[3] >> 8, 0);
    }

    #[test]
    fn codes_are_looked_up_by_bucket() {
        lookups_are_plain::<u8>(200, 0);
        lookups_are_plain::<u16>(60_000, 0);
        lookups_are_plain::<u32>(1 << 31, 15);
        lookups_are_plain::<u64>(u64::MAX, 48);
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
    fn the_largest_code_is_found_wherever_it_is() {
        assert_eq!((largest_u8(&[]), largest_u64(&[])), (0, 0));
        for at in [0, 1, 99, 200] {
            let codes = |largest: u64| (0..201).map(move |row| if row == at { largest } else { row % 7 });
            assert_eq!(largest_u8(&codes(255).map(|code| code as u8).collect::<Vec<_>>()), 255);
            assert_eq!(largest_u16(&codes(65_535).map(|code| code as u16).collect::<Vec<_>>()), 65_535);
            assert_eq!(largest_u32(&codes(1 << 31).map(|code| code as u32).collect::<Vec<_>>()), 1 << 31);
            assert_eq!(largest_u64(&codes(1 << 63).collect::<Vec<_>>()), 1 << 63);
        }
    }

    #[test]
    fn hashes_of_many_numbers_are_those_of_each() {
        let numbers: Vec<u64> = (0..201).map(|row| row * row * 77).collect();
        for (base, scale, seed) in [(0, 1, 0), (7u64.wrapping_neg(), 3, 46), (5, u64::MAX / 3, u64::MAX)] {
            let mut sums: Vec<u64> = (0..201).map(|row| u64::MAX - row).collect();
            add_hashes(&mut sums, &numbers, base, scale, seed);
            for (row, (sum, number)) in sums.iter().zip(&numbers).enumerate() {
                let value = base.wrapping_add(scale.wrapping_mul(*number));
                let hash = xxh3_64_with_seed(&value.to_le_bytes(), seed);
                assert_eq!(*sum, hash.wrapping_add(u64::MAX - row as u64));
            }
        }
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
