//! The limits of the machine: int8 products and f32 multiply-adds on registers alone, and memory
//! reads, on several threads at once.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::protocol::{size, text};

/// The duration and number of measurements of a thread, so that a disturbance does not lower the
/// limit.
const DURATION: Duration = Duration::from_millis(3);
const TRIES: usize = 5;

const MEGABYTE: usize = 1 << 20;

/// The bytes between a read and its prefetch, if prefetching is on: the hardware's prefetchers do
/// not always reach a cache's speed.
const AHEAD: usize = 4_096;

/// Answers `{"op": "peak", "kind": "int8" | "f32" | "read", "threads": .., "bytes": ..}` with
/// operations (two for a multiply-add) or bytes per second and the instructions used; with null if
/// the machine lacks the instructions.
pub fn answer(request: &Value) -> Result<Value> {
    let threads = size(request, "threads")?;
    let block = match text(request, "kind")? {
        "int8" => instances::int8(),
        "f32" => instances::f32(),
        "read" => {
            let lines = size(request, "bytes")?.div_ceil(threads).div_ceil(LINE * 8);
            // Reading the clock takes as long as some kilobytes.
            let passes = MEGABYTE.div_ceil(lines * LINE * 8);
            let read = |ahead| {
                let data = vec![[1u64; LINE]; lines];
                move || {
                    for _ in 0..passes {
                        black_box(instances::read(black_box(&data), ahead));
                    }
                }
            };
            let bytes = passes * lines * LINE * 8;
            let [alone, ahead] = [None, Some(AHEAD)].map(|ahead| rate(threads, || read(ahead)));
            return Ok(json!({ "rate": bytes as f64 * alone.max(ahead), "with": "reads" }));
        }
        kind => bail!("unknown kind {kind}"),
    };
    Ok(block.map_or(Value::Null, |block| {
        let rate = block.operations as f64 * rate(threads, || block.run);
        json!({ "rate": rate, "with": block.name })
    }))
}

/// Instructions on registers that do `operations` operations.
struct Block {
    name: &'static str,
    operations: u64,
    run: fn(),
}

/// The best number of calls per second, over all of `threads` threads started together, of the
/// function that `work` returns for each.
fn rate<W: FnMut()>(threads: usize, work: impl Fn() -> W + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let measure = || {
        let mut work = work();
        work();
        [(); TRIES].map(|()| {
            barrier.wait();
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < DURATION {
                work();
                count += 1;
            }
            f64::from(count) / start.elapsed().as_secs_f64()
        })
    };
    let mut together = [0.; TRIES];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        for worker in workers {
            let rates = worker.join().expect("no panic");
            together.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate);
        }
    });
    together.into_iter().fold(0., f64::max)
}

/// Numbers that are read at once: eight registers of AVX-512.
const LINE: usize = 64;

/// Folds all numbers of `data` into one, with prefetches `ahead` bytes before the reads.
#[inline(always)]
fn fold(data: &[[u64; LINE]], ahead: Option<usize>) -> u64 {
    let mut folded = [0; LINE];
    for line in data {
        if let Some(ahead) = ahead {
            instances::fetch(line, ahead);
        }
        for (sum, number) in folded.iter_mut().zip(line) {
            *sum ^= number;
        }
    }
    folded.iter().fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
mod instances {
    use std::arch::is_x86_feature_detected as has;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{Block, LINE, fold};

    const REPEATS: u64 = 1000;

    /// A loop over sums in registers, each updated by a separate instruction: enough sums to hide
    /// an instruction's latency, few enough to stay in registers. `None` without its features.
    macro_rules! block {
        ($name:ident $shown:literal [$($feature:tt)*] $sums:literal x $lanes:literal, $zero:expr, $step:expr) => {
            fn $name() -> Option<Block> {
                $(#[target_feature(enable = $feature)])*
                fn run() {
                    let mut sums = black_box([$zero; $sums]);
                    let (a, b) = black_box(($zero, $zero));
                    for _ in 0..REPEATS {
                        for sum in &mut sums {
                            *sum = $step(*sum, a, b);
                        }
                    }
                    black_box(sums);
                }

                fn call() {
                    // SAFETY: a block is built only if the machine has the features.
                    unsafe { run() }
                }

                let has_all = $(has!($feature))&&*;
                let operations = 2 * $sums * $lanes * REPEATS;
                has_all.then_some(Block { name: $shown, operations, run: call })
            }
        };
    }

    block!(avx512_vnni "AVX512-VNNI" ["avx512f" "avx512vnni"] 24 x 64, _mm512_setzero_si512(), _mm512_dpbusd_epi32);
    block!(avx_vnni "AVX-VNNI" ["avx2" "avxvnni"] 12 x 32, _mm256_setzero_si256(), _mm256_dpbusd_avx_epi32);
    // Bytes are widened to i16. A sum is an operand of its product, otherwise the compiler would
    // compute one product for all.
    block!(madd "AVX2" ["avx2"] 12 x 16, _mm256_setzero_si256(), |sum, _, b| {
        _mm256_add_epi32(sum, _mm256_madd_epi16(sum, b))
    });
    block!(madd_512 "AVX-512" ["avx512f" "avx512bw"] 24 x 32, _mm512_setzero_si512(), |sum, _, b| {
        _mm512_add_epi32(sum, _mm512_madd_epi16(sum, b))
    });
    block!(avx512 "AVX-512" ["avx512f"] 24 x 16, _mm512_setzero_ps(), |sum, a, b| _mm512_fmadd_ps(a, b, sum));
    block!(fma "FMA" ["avx2" "fma"] 12 x 8, _mm256_setzero_ps(), |sum, a, b| _mm256_fmadd_ps(a, b, sum));

    /// Products of tiles, four sums at once.
    mod amx {
        use std::arch::asm;

        use super::REPEATS;

        const SUMS: u64 = 4;
        pub const OPERATIONS: u64 = 2 * SUMS * 16 * 16 * 64 * REPEATS;

        /// Eight tiles of 16 rows of 64 bytes, in the layout of `ldtilecfg`.
        #[repr(align(64))]
        struct Configuration([u8; 64]);

        static CONFIGURATION: Configuration = {
            let mut bytes = [0; 64];
            bytes[0] = 1;
            let mut tile = 0;
            while tile < 8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = 16;
                tile += 1;
            }
            Configuration(bytes)
        };

        pub fn call() {
            // SAFETY: a block is built only if the library found tiles and was permitted to use
            // them; they are released at the end.
            unsafe {
                asm!(
                    "ldtilecfg [{configuration}]",
                    "2:",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tdpbusd tmm1, tmm4, tmm7",
                    "tdpbusd tmm2, tmm5, tmm6",
                    "tdpbusd tmm3, tmm5, tmm7",
                    "dec {repeats}",
                    "jnz 2b",
                    "tilerelease",
                    configuration = in(reg) CONFIGURATION.0.as_ptr(),
                    repeats = inout(reg) REPEATS => _,
                    options(nostack, readonly),
                );
            }
        }
    }

    pub fn int8() -> Option<Block> {
        let available = candle_dynquant::Isa::available();
        let amx = available.iter().any(|isa| isa.name() == "amx_int8");
        let amx = amx.then_some(Block { name: "AMX", operations: amx::OPERATIONS, run: amx::call });
        amx.or_else(avx512_vnni).or_else(madd_512).or_else(avx_vnni).or_else(madd)
    }

    pub fn f32() -> Option<Block> {
        avx512().or_else(fma)
    }

    /// Prefetches to L1 the bytes of `line`, `ahead` bytes after its start.
    #[inline(always)]
    pub fn fetch(line: &[u64; LINE], ahead: usize) {
        for offset in (0..size_of_val(line)).step_by(64) {
            let address = line.as_ptr().wrapping_byte_add(ahead + offset);
            // SAFETY: a prefetch reads nothing, at any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
    }

    #[target_feature(enable = "avx512f")]
    fn read_avx512(data: &[[u64; LINE]], ahead: Option<usize>) -> u64 {
        fold(data, ahead)
    }

    #[target_feature(enable = "avx2")]
    fn read_avx2(data: &[[u64; LINE]], ahead: Option<usize>) -> u64 {
        fold(data, ahead)
    }

    pub fn read(data: &[[u64; LINE]], ahead: Option<usize>) -> u64 {
        if has!("avx512f") {
            // SAFETY: the machine has AVX-512.
            unsafe { read_avx512(data, ahead) }
        } else if has!("avx2") {
            // SAFETY: the machine has AVX2.
            unsafe { read_avx2(data, ahead) }
        } else {
            fold(data, ahead)
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instances {
    use super::{Block, LINE, fold};

    pub fn int8() -> Option<Block> {
        None
    }

    pub fn f32() -> Option<Block> {
        None
    }

    pub fn fetch(_: &[u64; LINE], _: usize) {}

    pub fn read(data: &[[u64; LINE]], ahead: Option<usize>) -> u64 {
        fold(data, ahead)
    }
}
