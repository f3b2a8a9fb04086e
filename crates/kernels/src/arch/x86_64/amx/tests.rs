//! The path is taken where it can be, and leaves the thread's tiles as it found them. Its results
//! are compared in `kernels::tests`, for all instruction sets.

use std::cell::Cell;

use half::f16;

use super::tiles::Configuration;
use crate::calls::attention::attention;
use crate::calls::linear::linear;
use crate::calls::pack::blocks::pack_block_codes;
use crate::calls::pack::pack_codes;
use crate::isa::{Isa, IsaKind, cpu};
use crate::loops::attention::{Attention, Precision};
use crate::loops::product::Product;
use crate::qparams::activation::DynamicConfig;
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS};
use crate::reference::{InBlocks, Int8};

thread_local! {
    static PARTS: Cell<usize> = const { Cell::new(0) };
}

/// A part is computed on this thread's tiles.
pub fn count_part() {
    PARTS.set(PARTS.get() + 1);
}

/// A product of `rows` rows, too small to be shared with other threads.
fn multiply(rows: usize) {
    let (n, k) = (40, 70);
    let (codes, scales, zero_points) = (vec![1; n * k], vec![1.; n], vec![0; n]);
    let rhs = Int8::new(&codes, &scales, &zero_points);
    let packed = pack_codes(Isa(IsaKind::AmxInt8), k, 1, rhs, &vec![0.; n], DynamicConfig::PER_ROW);
    // One scale a row: 1.
    let lhs = vec![255.; rows * k];
    let operands = Product::new(&lhs, rows, &packed, None);
    let expected = vec![255. * k as f32; rows * n];
    assert_eq!(linear(operands), expected);
}

/// [`multiply`] by weights in blocks of 4 bits.
fn multiply_blocks(rows: usize) {
    let (n, k) = (40, 64);
    let scale = BlockScale { scale: f16::ONE, offset: f16::ZERO };
    let rhs = InBlocks {
        format: Blocks::Int4,
        codes: &vec![15; n * k],
        scales: &vec![scale; n * k / INPUTS],
        factors: &vec![1.; n],
    };
    let packed = pack_block_codes(Isa(IsaKind::AmxInt8), k, 1, rhs, &vec![0.; n]);
    let lhs = vec![127.; rows * k];
    let operands = Product::new(&lhs, rows, &packed, None);
    let expected = vec![7. * 127. * k as f32; rows * n];
    assert_eq!(linear(operands), expected);
}

/// Attention of some queries and one key, too small to be shared with other threads.
fn attend(precision: Precision, queries: usize) {
    let one = [1., 2., 127.];
    let mut operands = Attention::one_head([&one; 3], one.len());
    operands.precision = precision;
    (operands.queries.q.rows, operands.queries.q.strides) = (queries, [0; 3]);
    let got = attention(Isa(IsaKind::AmxInt8), operands);
    let mut pairs = got.iter().zip(one.iter().cycle());
    assert_eq!(got.len(), 3 * queries);
    assert!(pairs.all(|(got, value)| (got - value).abs() < 1e-4), "{got:?}");
}

/// Whether there are tiles: of this CPU, or by the handler, which is installed.
fn available() -> bool {
    #[cfg(all(feature = "emulate-amx", target_os = "linux"))]
    assert!(super::emulation::install());
    cpu::amx_int8_or_emulated()
}

#[test]
#[cfg_attr(miri, ignore = "asks the CPU")]
fn products_of_several_rows_are_computed_on_tiles() {
    #[cfg(target_os = "linux")]
    {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let has = |flag: &str| cpu.split_whitespace().any(|word| word == flag);
        let all = ["amx_tile", "amx_int8", "avx512_bf16", "avx512_vnni"];
        assert!(available() || !all.iter().all(|flag| has(flag)));
    }
    if !available() {
        return;
    }
    assert_eq!(Isa::available().pop(), Some(Isa(IsaKind::AmxInt8)));
    // Without AVX512-VNNI the emulation multiplies blocks by portable code.
    let calls: [(fn(usize), _); 2] = [(multiply, true), (multiply_blocks, cpu::avx512_vnni())];
    for (rows, parts) in [(1, 0), (15, 0), (16, 1), (33, 1)] {
        for (multiply, on_tiles) in calls {
            PARTS.set(0);
            multiply(rows);
            assert_eq!(PARTS.get(), parts * usize::from(on_tiles), "{rows} rows");
        }
    }
}

#[test]
fn attention_of_fewer_bits_is_computed_on_tiles() {
    if !available() {
        return;
    }
    for (precision, queries, parts) in [
        (Precision::Float32, 16, 0),
        (Precision::BFloat16, 1, 1),
        // Both products.
        (Precision::Int8, 16, 2),
        (Precision::Int8, 15, 0),
    ] {
        PARTS.set(0);
        attend(precision, queries);
        assert_eq!(PARTS.get(), parts, "{precision:?} {queries}");
    }
}

#[test]
fn configurations_of_others_are_left_as_they_were() {
    if !available() {
        return;
    }
    // SAFETY: tiles are available; the configurations are of products, or of none.
    unsafe {
        for height in [3, 16] {
            let others = Configuration::of_products(height);
            others.load();
            multiply(20);
            multiply_blocks(20);
            attend(Precision::BFloat16, 1);
            attend(Precision::Int8, 20);
            assert_eq!(Configuration::current(), others);
        }
        Configuration::NONE.load();
        multiply(20);
        attend(Precision::BFloat16, 1);
        attend(Precision::Int8, 20);
        assert_eq!(Configuration::current(), Configuration::NONE);
    }
}
