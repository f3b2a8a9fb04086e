//! An instruction set's registers, as the loop nest of products uses them.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::activation::Activation;
use super::float_vector::{Register, forward};
use super::product::{Group, Pair, Row};
use crate::packed::Channels;

/// The memory of a register of results.
pub type Lanes<const LANES: usize> = [MaybeUninit<f32>; LANES];

/// The registers of an instruction set, of `LANES` sums, as the operations the loop nest needs.
///
/// `BYTES` are the weights of one group of inputs in each lane. `Acc` is a register of sums, `A`
/// a group of activations in every lane, `B` a register of weights; `A` and `B` may be held in
/// any form that makes `dot` cheap.
pub trait Vector<const LANES: usize, const BYTES: usize>: Copy {
    /// Whether activations are [split](super::split).
    const SPLIT: bool = false;
    /// Activations that are multiplied in one step.
    type Group: Group;
    type Acc: Copy;
    type A: Copy;
    type B: Copy;
    /// The value that a sum begins with: in i32 `-zero_point_a * sum_w - zero_point_w * sum_a`,
    /// which makes it the sum over `(a - zero_point_a) * (w - zero_point_w)`; in f32 0.
    fn start(self, row: Row, channels: Channels<'_, LANES>) -> Self::Acc;
    fn load(self, weights: &[u8; BYTES]) -> Self::B;
    fn splat(self, group: Self::Group) -> Self::A;
    /// `acc` plus the sum of a group's products in each lane: exact in i32, or in f32 one `fma` a
    /// product.
    fn dot(self, acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc;
    fn add(self, left: Self::Acc, right: Self::Acc) -> Self::Acc;
    /// `acc` after a block of groups with these sums, where they have [blocks](Group::BLOCK).
    /// Unchanged sums need not be stored: stores of zeros took 5 % of a product.
    fn fold(self, acc: Self::Acc, block: Self::Acc) -> Self::Acc;
    /// Writes `fma(acc as f32, scale_a * scale_w, bias)` of each lane.
    fn finish(
        self,
        acc: Self::Acc,
        row: Row,
        channels: Channels<'_, LANES>,
        out: &mut Lanes<LANES>,
    );
    /// Applies an activation function, out of line: inlined, six of them would crowd the loop.
    fn activate(self, activation: Activation, xs: &mut [f32]);
}

/// A [`Vector`] of closures: written inside a function that has an instruction set's features,
/// they have them too, so that intrinsics need `unsafe` only for pointers.
///
/// `G` is the group.
#[derive(Clone, Copy)]
pub struct Closures<G, Start, Load, Splat, Dot, Add, Fold, Finish, Activate> {
    pub start: Start,
    pub load: Load,
    pub splat: Splat,
    pub dot: Dot,
    pub add: Add,
    pub fold: Fold,
    pub finish: Finish,
    pub activate: Activate,
    pub group: PhantomData<G>,
}

impl<
    const LANES: usize,
    const BYTES: usize,
    G,
    Acc,
    A,
    B,
    Start,
    Load,
    Splat,
    Dot,
    Add,
    Fold,
    Finish,
    Activate,
> Vector<LANES, BYTES> for Closures<G, Start, Load, Splat, Dot, Add, Fold, Finish, Activate>
where
    G: Group,
    Acc: Copy,
    A: Copy,
    B: Copy,
    Start: Fn(Row, Channels<'_, LANES>) -> Acc + Copy,
    Load: Fn(&[u8; BYTES]) -> B + Copy,
    Splat: Fn(G) -> A + Copy,
    Dot: Fn(Acc, A, B) -> Acc + Copy,
    Add: Fn(Acc, Acc) -> Acc + Copy,
    Fold: Fn(Acc, Acc) -> Acc + Copy,
    Finish: Fn(Acc, Row, Channels<'_, LANES>, &mut Lanes<LANES>) + Copy,
    Activate: Fn(Activation, &mut [f32]) + Copy,
{
    type Group = G;
    type Acc = Acc;
    type A = A;
    type B = B;

    forward! {
        start(row: Row, channels: Channels<'_, LANES>) -> Acc;
        load(weights: &[u8; BYTES]) -> B;
        splat(group: G) -> A;
        dot(acc: Acc, a: A, b: B) -> Acc;
        add(left: Acc, right: Acc) -> Acc;
        fold(acc: Acc, block: Acc) -> Acc;
        finish(acc: Acc, row: Row, channels: Channels<'_, LANES>, out: &mut Lanes<LANES>);
        activate(activation: Activation, xs: &mut [f32]);
    }
}

/// A [`Vector`] whose activations are [split](super::split), so that sums begin with another value.
#[allow(dead_code, reason = "most instruction sets add up four products at once")]
#[derive(Clone, Copy)]
pub struct Split<V, Start> {
    pub vector: V,
    pub start: Start,
}

impl<const LANES: usize, const BYTES: usize, V, Start> Vector<LANES, BYTES> for Split<V, Start>
where
    V: Vector<LANES, BYTES>,
    Start: Fn(Row, Channels<'_, LANES>) -> V::Acc + Copy,
{
    const SPLIT: bool = true;
    type Group = V::Group;
    type Acc = V::Acc;
    type A = V::A;
    type B = V::B;

    forward! {
        start(row: Row, channels: Channels<'_, LANES>) -> V::Acc;
    }

    forward! {
        to vector:
        load(weights: &[u8; BYTES]) -> V::B;
        splat(group: V::Group) -> V::A;
        dot(acc: V::Acc, a: V::A, b: V::B) -> V::Acc;
        add(left: V::Acc, right: V::Acc) -> V::Acc;
        fold(acc: V::Acc, block: V::Acc) -> V::Acc;
        finish(acc: V::Acc, row: Row, channels: Channels<'_, LANES>, out: &mut Lanes<LANES>);
        activate(activation: Activation, xs: &mut [f32]);
    }
}

/// A [`Vector`] of float16 weights, which become f32, and are multiplied by f32.
#[derive(Clone, Copy)]
pub struct HalfVector<R, Load, Activate> {
    pub register: R,
    pub load: Load,
    pub activate: Activate,
}

impl<const LANES: usize, const BYTES: usize, R, Load, Activate> Vector<LANES, BYTES>
    for HalfVector<R, Load, Activate>
where
    R: Register<LANES>,
    Load: Fn(&[u8; BYTES]) -> R::V + Copy,
    Activate: Fn(Activation, &mut [f32]) + Copy,
{
    type Group = f32;
    type Acc = R::V;
    type A = R::V;
    type B = R::V;

    forward! {
        load(weights: &[u8; BYTES]) -> R::V;
        activate(activation: Activation, xs: &mut [f32]);
    }

    #[inline(always)]
    fn start(self, _: Row, _: Channels<'_, LANES>) -> R::V {
        self.register.splat(0.)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> R::V {
        self.register.splat(x)
    }

    #[inline(always)]
    fn dot(self, acc: R::V, x: R::V, weights: R::V) -> R::V {
        self.register.fma(x, weights, acc)
    }

    #[inline(always)]
    fn add(self, left: R::V, right: R::V) -> R::V {
        self.register.add(left, right)
    }

    #[inline(always)]
    fn fold(self, acc: R::V, _: R::V) -> R::V {
        acc
    }

    #[inline(always)]
    fn finish(self, acc: R::V, _: Row, channels: Channels<'_, LANES>, out: &mut Lanes<LANES>) {
        put_with_bias(acc, channels, out, self.register);
    }
}

/// A [`Vector`] of bfloat16 weights: the even and the odd inputs of pairs, as f32.
#[derive(Clone, Copy)]
pub struct PairVector<R, Load, Splat, Activate> {
    pub register: R,
    pub load: Load,
    pub splat: Splat,
    pub activate: Activate,
}

impl<const LANES: usize, const BYTES: usize, R, Load, Splat, Activate> Vector<LANES, BYTES>
    for PairVector<R, Load, Splat, Activate>
where
    R: Register<LANES>,
    Load: Fn(&[u8; BYTES]) -> [R::V; 2] + Copy,
    Splat: Fn(Pair) -> [R::V; 2] + Copy,
    Activate: Fn(Activation, &mut [f32]) + Copy,
{
    type Group = Pair;
    /// The sums of even and of odd inputs of a block, or what blocks gave and 0.
    type Acc = [R::V; 2];
    type A = [R::V; 2];
    type B = [R::V; 2];

    forward! {
        load(weights: &[u8; BYTES]) -> [R::V; 2];
        splat(pair: Pair) -> [R::V; 2];
        activate(activation: Activation, xs: &mut [f32]);
    }

    #[inline(always)]
    fn start(self, _: Row, _: Channels<'_, LANES>) -> [R::V; 2] {
        [self.register.splat(0.); 2]
    }

    #[inline(always)]
    fn dot(self, acc: [R::V; 2], a: [R::V; 2], b: [R::V; 2]) -> [R::V; 2] {
        let fma = |side: usize| self.register.fma(a[side], b[side], acc[side]);
        [fma(0), fma(1)]
    }

    #[inline(always)]
    fn add(self, left: [R::V; 2], _: [R::V; 2]) -> [R::V; 2] {
        left
    }

    #[inline(always)]
    fn fold(self, [sum, rest]: [R::V; 2], [even, odd]: [R::V; 2]) -> [R::V; 2] {
        [self.register.add(sum, self.register.add(even, odd)), rest]
    }

    #[inline(always)]
    fn finish(
        self,
        [sum, _]: [R::V; 2],
        _: Row,
        channels: Channels<'_, LANES>,
        out: &mut Lanes<LANES>,
    ) {
        put_with_bias(sum, channels, out, self.register);
    }
}

/// Writes sums of floats, plus the bias.
#[inline(always)]
fn put_with_bias<const LANES: usize, R: Register<LANES>>(
    sum: R::V,
    channels: Channels<'_, LANES>,
    out: &mut Lanes<LANES>,
    register: R,
) {
    let mut values = [0.; LANES];
    register.store(register.add(sum, register.load(channels.bias)), &mut values);
    *out = values.map(MaybeUninit::new);
}
