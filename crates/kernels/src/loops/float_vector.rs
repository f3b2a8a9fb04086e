//! The registers of `float_tile`: one instruction set's f32, or pairs of bfloat16, as operations.

/// Rows and columns of a block that is transposed in registers.
pub const SQUARE: usize = 8;

/// One instruction set's register of `LANES` f32, as the operations the product needs.
pub trait Register<const LANES: usize>: Copy {
    /// Whether factors in bfloat16 are pairs, and the operations of pairs are there.
    const PAIRED: bool = false;
    type V: Copy;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn splat(self, value: f32) -> Self::V;
    fn add(self, left: Self::V, right: Self::V) -> Self::V;
    /// `a * b + acc`.
    fn fma(self, a: Self::V, b: Self::V, acc: Self::V) -> Self::V;
    fn store(self, values: Self::V, to: &mut [f32; LANES]);
    fn transpose(self, square: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE];

    /// `acc` and the product of two factors, or of both where they are pairs.
    #[inline(always)]
    fn dot(self, a: Self::V, b: Self::V, acc: Self::V) -> Self::V {
        self.fma(a, b, acc)
    }

    /// Pairs the lanes of two registers, the first register in the upper half.
    #[inline(always)]
    fn pair(self, first: Self::V, _second: Self::V) -> Self::V {
        first
    }

    /// All lanes of two registers in bfloat16, one after the other.
    #[inline(always)]
    fn round(self, low: Self::V, _high: Self::V) -> Self::V {
        low
    }

    /// Pairs the third and first of each four bfloat16, and the fourth and second.
    #[inline(always)]
    fn alternate(self, rounded: Self::V) -> Self::V {
        rounded
    }
}

/// A [`Register`] of closures, which have the features of the function they are written in.
#[derive(Clone, Copy)]
pub struct Closures<Load, Splat, Add, Fma, Store, Transpose> {
    pub load: Load,
    pub splat: Splat,
    pub add: Add,
    pub fma: Fma,
    pub store: Store,
    pub transpose: Transpose,
}

impl<const LANES: usize, V, Load, Splat, Add, Fma, Store, Transpose> Register<LANES>
    for Closures<Load, Splat, Add, Fma, Store, Transpose>
where
    V: Copy,
    Load: Fn(&[f32; LANES]) -> V + Copy,
    Splat: Fn(f32) -> V + Copy,
    Add: Fn(V, V) -> V + Copy,
    Fma: Fn(V, V, V) -> V + Copy,
    Store: Fn(V, &mut [f32; LANES]) + Copy,
    Transpose: Fn([[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] + Copy,
{
    type V = V;

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        (self.load)(from)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        (self.splat)(value)
    }

    #[inline(always)]
    fn add(self, left: V, right: V) -> V {
        (self.add)(left, right)
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, acc: V) -> V {
        (self.fma)(a, b, acc)
    }

    #[inline(always)]
    fn store(self, values: V, to: &mut [f32; LANES]) {
        (self.store)(values, to);
    }

    #[inline(always)]
    fn transpose(self, square: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] {
        (self.transpose)(square)
    }
}

/// A [`Register`] whose factors are pairs, made and multiplied by instructions of their own.
#[allow(dead_code, reason = "most instruction sets multiply f32 only")]
#[derive(Clone, Copy)]
pub struct OfPairs<R, Dot, Pair, Round, Alternate> {
    pub register: R,
    pub dot: Dot,
    pub pair: Pair,
    pub round: Round,
    pub alternate: Alternate,
}

impl<const LANES: usize, R, Dot, Pair, Round, Alternate> Register<LANES>
    for OfPairs<R, Dot, Pair, Round, Alternate>
where
    R: Register<LANES>,
    Dot: Fn(R::V, R::V, R::V) -> R::V + Copy,
    Pair: Fn(R::V, R::V) -> R::V + Copy,
    Round: Fn(R::V, R::V) -> R::V + Copy,
    Alternate: Fn(R::V) -> R::V + Copy,
{
    const PAIRED: bool = true;
    type V = R::V;

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> R::V {
        self.register.load(from)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> R::V {
        self.register.splat(value)
    }

    #[inline(always)]
    fn add(self, left: R::V, right: R::V) -> R::V {
        self.register.add(left, right)
    }

    #[inline(always)]
    fn fma(self, a: R::V, b: R::V, acc: R::V) -> R::V {
        self.register.fma(a, b, acc)
    }

    #[inline(always)]
    fn store(self, values: R::V, to: &mut [f32; LANES]) {
        self.register.store(values, to);
    }

    #[inline(always)]
    fn transpose(self, square: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] {
        self.register.transpose(square)
    }

    #[inline(always)]
    fn dot(self, a: R::V, b: R::V, acc: R::V) -> R::V {
        (self.dot)(a, b, acc)
    }

    #[inline(always)]
    fn pair(self, first: R::V, second: R::V) -> R::V {
        (self.pair)(first, second)
    }

    #[inline(always)]
    fn round(self, low: R::V, high: R::V) -> R::V {
        (self.round)(low, high)
    }

    #[inline(always)]
    fn alternate(self, rounded: R::V) -> R::V {
        (self.alternate)(rounded)
    }
}
