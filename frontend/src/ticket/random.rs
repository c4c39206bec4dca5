//! Random numbers that stay the same for ever.
//!
//! The rows of a seed are a promise: benchmarks of different days compare them. So the generator and the
//! distributions are written out here, in whole numbers, rather than taken from a library whose streams may change.

/// A stream of pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// A bijection of 64-bit numbers that leaves no visible pattern (the finalizer of SplitMix64).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    /// The stream with this number under this seed.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: i32, high: i32) -> i32 {
        low + self.below((high - low + 1) as u32) as i32
    }

    /// True `count` times in ten thousand.
    pub fn per_myriad(&mut self, count: u32) -> bool {
        self.below(10_000) < count
    }

    /// One element of a slice, all alike.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u32) as usize]
    }
}

/// A discrete distribution that is sampled in constant time (Walker's alias method).
#[derive(Clone, Debug)]
pub struct Weighted {
    /// For each outcome the share of its slot that is its own, in 2^32nds, and who has the rest.
    slots: Vec<(u32, u32)>,
}

impl Weighted {
    /// Outcome `i` with a probability proportional to `weights[i]`.
    ///
    /// # Panics
    /// When there is no positive weight.
    pub fn new(weights: &[u64]) -> Weighted {
        let count = weights.len() as u128;
        let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
        assert!(total > 0, "a distribution needs a positive weight");
        // Every slot holds `total` units; outcome i has `weights[i] * count` units to place.
        let mut units: Vec<u128> = weights.iter().map(|w| u128::from(*w) * count).collect();
        let mut slots = vec![(u32::MAX, 0); weights.len()];
        for (i, slot) in slots.iter_mut().enumerate() {
            slot.1 = i as u32;
        }
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|i| units[*i] < total);
        while let (Some(poor), Some(rich)) = (small.pop(), large.pop()) {
            slots[poor] = (((units[poor] << 32) / total) as u32, rich as u32);
            units[rich] -= total - units[poor];
            if units[rich] < total { small.push(rich) } else { large.push(rich) }
        }
        Weighted { slots }
    }

    /// Ranks `0..count` with weights 1, 1/2, 1/3, … (Zipf's law).
    pub fn zipf(count: u32) -> Weighted {
        Weighted::new(&(1..=u64::from(count)).map(|rank| 1_000_000_000 / rank).collect::<Vec<_>>())
    }

    /// An outcome.
    pub fn sample(&self, random: &mut Random) -> usize {
        let bits = random.next();
        let slot = (((bits >> 32) * self.slots.len() as u64) >> 32) as usize;
        let (own, other) = self.slots[slot];
        if (bits as u32) < own { slot } else { other as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut random = Random::new(1, 2);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        let mut again = Random::new(1, 2);
        assert_eq!(first, (0..3).map(|_| again.next()).collect::<Vec<_>>());
        assert_ne!(first[0], Random::new(1, 3).next());
        assert_ne!(first[0], Random::new(2, 2).next());
    }

    #[test]
    fn outcomes_are_as_frequent_as_their_weights() {
        let weights = [50, 30, 15, 4, 1, 0];
        let weighted = Weighted::new(&weights);
        let mut random = Random::new(7, 0);
        let mut counts = [0_u64; 6];
        for _ in 0..100_000 {
            counts[weighted.sample(&mut random)] += 1;
        }
        for (count, weight) in counts.iter().zip(weights) {
            assert!(count.abs_diff(weight * 1000) <= 20 + weight * 40, "{counts:?}");
        }
        assert_eq!(counts[5], 0);
    }

    #[test]
    fn below_reaches_both_ends() {
        let mut random = Random::new(0, 0);
        let seen: std::collections::BTreeSet<u32> = (0..1000).map(|_| random.below(5)).collect();
        assert_eq!(seen, (0..5).collect());
    }
}
