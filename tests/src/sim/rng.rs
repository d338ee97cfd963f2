//! A small random number generator whose sequence never changes, so that a seed stays reproducible.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. `stream` separates the uses of one seed.
    #[must_use]
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ stream.wrapping_mul(0xaf25_1af3_b0f0_25b5))
    }

    /// Returns 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a number in `low..=high`.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Like [`Rng::range`].
    ///
    /// # Panics
    /// If `low > high`.
    pub fn range_u32(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.range(low.into(), high.into())).expect("not above high")
    }

    /// Like [`Rng::range`].
    ///
    /// # Panics
    /// If `low > high`.
    pub fn range_u8(&mut self, low: u8, high: u8) -> u8 {
        u8::try_from(self.range(low.into(), high.into())).expect("not above high")
    }

    /// Returns true with a probability of `per_mille` / 1000.
    pub const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns one of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).expect("below the length")]
    }
}

/// Returns `len` bytes, determined by `seed` and the message's `index`.
#[must_use]
pub fn payload(seed: u64, index: u64, len: u32) -> Vec<u8> {
    let mut rng = Rng::new(seed, index.wrapping_add(1 << 40));
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        bytes.extend(rng.next().to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}
