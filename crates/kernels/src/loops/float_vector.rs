//! The registers of `float_tile`: one instruction set's f32, or pairs of bfloat16, as operations.

/// Rows and columns of a block that is transposed in registers.
pub const SQUARE: usize = 8;

type Square = [[f32; SQUARE]; SQUARE];

/// The registers of an instruction set, of `LANES` f32, as the operations the product needs.
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
    fn transpose(self, square: Square) -> Square;

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

/// Methods of a struct that call its fields of the same names, or the methods of a field.
macro_rules! forward {
    ($($name:ident($($x:ident: $type:ty),*) $(-> $out:ty)?;)*) => {$(
        #[inline(always)]
        fn $name(self, $($x: $type),*) $(-> $out)? {
            (self.$name)($($x),*)
        }
    )*};
    (to $field:ident: $($name:ident($($x:ident: $type:ty),*) $(-> $out:ty)?;)*) => {$(
        #[inline(always)]
        fn $name(self, $($x: $type),*) $(-> $out)? {
            self.$field.$name($($x),*)
        }
    )*};
}
pub(super) use forward;

/// A [`Register`] of closures, which have the features of the function they are written in.
#[derive(Clone, Copy)]
pub struct RegisterClosures<Load, Splat, Add, Fma, Store, Transpose> {
    pub load: Load,
    pub splat: Splat,
    pub add: Add,
    pub fma: Fma,
    pub store: Store,
    pub transpose: Transpose,
}

impl<const LANES: usize, V, Load, Splat, Add, Fma, Store, Transpose> Register<LANES>
    for RegisterClosures<Load, Splat, Add, Fma, Store, Transpose>
where
    V: Copy,
    Load: Fn(&[f32; LANES]) -> V + Copy,
    Splat: Fn(f32) -> V + Copy,
    Add: Fn(V, V) -> V + Copy,
    Fma: Fn(V, V, V) -> V + Copy,
    Store: Fn(V, &mut [f32; LANES]) + Copy,
    Transpose: Fn(Square) -> Square + Copy,
{
    type V = V;

    forward! {
        load(from: &[f32; LANES]) -> V;
        splat(value: f32) -> V;
        add(left: V, right: V) -> V;
        fma(a: V, b: V, acc: V) -> V;
        store(values: V, to: &mut [f32; LANES]);
        transpose(square: Square) -> Square;
    }
}

/// A [`Register`] whose factors are pairs, with operations that make and multiply pairs.
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

    forward! {
        to register:
        load(from: &[f32; LANES]) -> R::V;
        splat(value: f32) -> R::V;
        add(left: R::V, right: R::V) -> R::V;
        fma(a: R::V, b: R::V, acc: R::V) -> R::V;
        store(values: R::V, to: &mut [f32; LANES]);
        transpose(square: Square) -> Square;
    }

    forward! {
        dot(a: R::V, b: R::V, acc: R::V) -> R::V;
        pair(first: R::V, second: R::V) -> R::V;
        round(low: R::V, high: R::V) -> R::V;
        alternate(rounded: R::V) -> R::V;
    }
}
