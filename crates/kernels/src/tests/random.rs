//! Test data: numbers that look random and depend on nothing but a seed.

/// The generator splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// In [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.
    }

    /// So many floats, each in [-1, 1).
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Values in [-1, 1) that depend on nothing but their number and the seed.
pub fn values(count: usize, seed: u64) -> Vec<f32> {
    let value = |i: usize| {
        let mixed = (i as u64 + 1 + seed * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        mixed as f32 / (1u64 << 23) as f32 - 1.
    };
    (0..count).map(value).collect()
}
