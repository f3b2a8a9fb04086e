//! Every instruction set against the oracle, at the seams of sizes and of codes.

mod attention;
mod blocks;
mod convert;
mod convolution;
mod inputs;
mod layout;
mod lookup;
// A panic, which each of them is for, ends a WebAssembly program.
#[cfg(not(target_family = "wasm"))]
mod operands;
mod packing;
mod pool;
mod products;
#[allow(dead_code, reason = "tests of the kernels use a part")]
mod random;
mod recurrences;
mod rows;

use crate::calls::linear::{linear, linear_each};
use crate::calls::pack::pack_codes;
use crate::isa::Isa;
use crate::loops::activation::{self, Activation};
use crate::loops::product::Product;
use crate::loops::rows::Extent;
use crate::packed::Packed;
use crate::qparams::activation::DynamicConfig;
use crate::reference::{self, Int8};
use random::Random;

/// How the codes of a case are drawn.
#[derive(Clone, Copy, Debug)]
enum Codes {
    Uniform,
    /// All the greatest code by all the same weight: the largest sums.
    Extreme(i8),
    /// The same two weights in turns.
    Pairs([i8; 2]),
    /// Weights around 0, few of them far from it, as most models have.
    Heaped,
    OneHot,
    Zero,
}

const PER_ROW: DynamicConfig = DynamicConfig::PER_ROW;

const PER_TENSOR: DynamicConfig = DynamicConfig { per_row: false, ..PER_ROW };

fn weights(codes: Codes, n: usize, k: usize, random: &mut Random) -> Vec<i8> {
    let code = |i: usize, random: &mut Random| match codes {
        Codes::Uniform => random.next() as i8,
        Codes::Extreme(weight) => weight,
        Codes::Pairs(pair) => pair[i % k.max(1) % 2],
        Codes::Heaped => (0..4).map(|_| random.next() as i8 >> 2).sum(),
        Codes::OneHot => i8::from(i % k.max(1) == i / k.max(1) % k.max(1)),
        Codes::Zero => 0,
    };
    (0..n * k).map(|i| code(i, random)).collect()
}

fn activations(codes: Codes, m: usize, k: usize, random: &mut Random) -> Vec<f32> {
    let value = |random: &mut Random| match codes {
        Codes::Uniform | Codes::Heaped | Codes::OneHot => random.float() * 3.,
        Codes::Extreme(_) | Codes::Pairs(_) => 2.55,
        Codes::Zero => 0.,
    };
    (0..m * k).map(|_| value(random)).collect()
}

/// int8 weights, `[n, k]`, of channels with scales, zero points and biases.
struct Int8Weights {
    k: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    zero_points: Vec<i32>,
    bias: Vec<f32>,
}

impl Int8Weights {
    fn new(codes: Codes, n: usize, k: usize, random: &mut Random) -> Self {
        Self {
            k,
            codes: weights(codes, n, k, random),
            scales: random.floats(n).iter().map(|x| x.abs() + 1e-3).collect(),
            zero_points: (0..n).map(|_| i32::from(random.next() as i8)).collect(),
            bias: random.floats(n),
        }
    }

    fn symmetric(mut self) -> Self {
        self.zero_points.fill(0);
        self
    }

    fn int8(&self) -> Int8<'_> {
        Int8::new(&self.codes, &self.scales, &self.zero_points)
    }

    fn packed(&self, isa: Isa, gates: usize, config: DynamicConfig) -> Packed {
        pack_codes(isa, self.k, gates, self.int8(), &self.bias, config)
    }

    /// Checks products by all instruction sets.
    fn check(&self, lhs: &[f32], m: usize, gates: usize, config: DynamicConfig, case: &str) {
        let expected = expected(lhs, m, self.int8(), &self.bias, config);
        let packed = |isa| {
            let packed = self.packed(isa, gates, config);
            assert_eq!(packed.codes(), self.codes, "{isa} {case}: unpack");
            packed
        };
        check_products(lhs, m, &expected, packed, case);
    }
}

/// Checks products by all instruction sets: alone, and at once with an activation function.
fn check_products(
    lhs: &[f32],
    m: usize,
    expected: &[f32],
    packed: impl Fn(Isa) -> Packed,
    case: &str,
) {
    let activation = [Activation::Relu, Activation::Gelu][m % 2];
    let mut activated = expected.to_vec();
    activation::apply::<f32>(activation, &mut activated);
    for isa in Isa::available() {
        let packed = packed(isa);
        let case =
            format!("{isa} {:?} {m} x {} x {}: {case}", packed.element(), packed.k(), packed.n());
        let product = of(lhs, m, &packed);
        same_bits(&linear(product), expected, &case);
        let [plain, got] = linear_each([product, Product::new(lhs, m, &packed, Some(activation))]);
        same_bits(&plain, expected, &format!("{case}, one of two"));
        same_bits(&got, &activated, &format!("{case}, {activation:?}"));
    }
}

/// The oracle's answer, ranges included.
fn expected(lhs: &[f32], m: usize, rhs: Int8<'_>, bias: &[f32], config: DynamicConfig) -> Vec<f32> {
    let k = lhs.len().checked_div(m).unwrap_or(0);
    let row = |i: usize| &lhs[i * k..(i + 1) * k];
    let finite = |i: &usize| row(*i).iter().all(|x| x.is_finite());
    let extent = |i: usize| {
        row(i).iter().fold(Extent::EMPTY, |r, &x| r.union(Extent { min: x, max: x, finite: true }))
    };
    let all = (0..m).filter(finite).map(extent).fold(Extent::EMPTY, Extent::union);
    let quantized: Vec<_> = (0..m)
        .map(|i| {
            let extent = if config.per_row { extent(i) } else { all };
            let qparams = config.qparams(extent.min, extent.max);
            reference::quantize_row(row(i), qparams, config.arithmetic)
        })
        .collect();
    reference::linear(&quantized, rhs, bias)
}

/// The cases of a test; under Miri, thousands of times as slow, those at these places, which reach
/// every `unsafe` block that all of them reach.
fn some<T>(cases: impl IntoIterator<Item = T>, places: &[usize]) -> impl Iterator<Item = T> {
    let cases = cases.into_iter().enumerate();
    let wanted = cases.filter(move |(place, _)| !cfg!(miri) || places.contains(place));
    wanted.map(|(_, case)| case)
}

/// A rayon pool of a number of threads, or the current thread where no thread can be started.
struct Pool(Option<rayon::ThreadPool>);

impl Pool {
    fn new(threads: usize) -> Self {
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        Self((!cfg!(target_family = "wasm")).then(|| pool().expect("a pool")))
    }

    fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.0 {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }
}

/// The operands of a product without an activation function.
fn of<'a>(lhs: &'a [f32], m: usize, rhs: &'a Packed) -> Product<'a, f32> {
    Product::new(lhs, m, rhs, None)
}

/// Asserts equal bits, or that both are NaN.
fn same_bits(got: &[f32], expected: &[f32], case: &str) {
    assert_eq!(got.len(), expected.len(), "{case}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same, "{case}: element {i}: got {a:e}, expected {b:e}");
    }
}
