//! Attention as candle-transformers writes it: masks of every kind, shared keys, caches.

use candle_core::Result;

use crate::common::tensor;
use crate::kit::*;

/// Views `[batch, heads, seq, dim]` of a projection's output.
pub fn heads(shape: [usize; 4], seed: u64) -> Result<Tensor> {
    let [batch, heads, seq, dim] = shape;
    tensor(&[batch, seq, heads, dim], seed)?.transpose(1, 2)
}

/// candle-transformers' `repeat_kv`.
fn repeat_kv(xs: &Tensor, times: usize) -> Result<Tensor> {
    let (batch, heads, seq, dim) = xs.dims4()?;
    Tensor::cat(&vec![xs; times], 2)?.reshape((batch, heads * times, seq, dim))
}

/// candle-transformers' `masked_fill`.
fn masked_fill(scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let mask = mask.broadcast_as(scores.shape())?;
    let excluded = Tensor::new(f32::NEG_INFINITY, scores.device())?.to_dtype(scores.dtype())?;
    mask.where_cond(&excluded.broadcast_as(scores.shape())?, scores)
}

/// Attention as in candle-transformers' models, in f64.
fn expected(q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask<'_>, scale: f64) -> Result<Tensor> {
    let [q, k, v] = each([q, k, v], |t| t.to_dtype(DType::F64)?.contiguous())?;
    let times = q.dim(1)? / k.dim(1)?;
    let (k, v) = (repeat_kv(&k, times)?, repeat_kv(&v, times)?);
    let scores = (q.matmul(&k.t()?.contiguous()?)? * scale)?;
    let (queries, keys) = (q.dim(2)?, k.dim(2)?);
    let scores = match mask {
        Mask::Add(mask) => scores.broadcast_add(&mask.to_dtype(DType::F64)?)?,
        Mask::Exclude(mask) => masked_fill(&scores, mask)?,
        Mask::Include(mask) => masked_fill(&scores, &mask.eq(0u8)?)?,
        Mask::Causal => {
            let later = |q: usize| (0..keys).map(move |k| u8::from(k + queries > q + keys));
            let later: Vec<u8> = (0..queries).flat_map(later).collect();
            masked_fill(&scores, &Tensor::from_vec(later, (queries, keys), &Device::Cpu)?)?
        }
        _ => scores,
    };
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)
}

#[track_caller]
fn assert_close(case: &str, got: &Tensor, expected: &Tensor, bound: f64) {
    assert_eq!(got.dims(), expected.dims(), "{case}");
    let values = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let (got, expected) = (values(got).expect(case), values(expected).expect(case));
    for (got, expected) in got.iter().zip(&expected) {
        let close = (got - expected).abs() <= bound;
        assert!(close, "{case}: {got}, expected {expected}");
    }
}

/// Sizes: batch, heads, heads of keys, queries, keys.
const SIZES: [[usize; 5]; 9] = [
    [1, 1, 1, 1, 1],
    [2, 6, 2, 5, 5],
    [1, 4, 1, 33, 33],
    [3, 4, 4, 7, 20],
    [1, 8, 2, 1, 130],
    [2, 8, 2, 1, 17],
    [1, 6, 3, 70, 200],
    [2, 3, 1, 4, 129],
    [1, 2, 2, 130, 131],
];

#[test]
fn every_mask_in_every_shape_and_dtype() -> Result<()> {
    for [batch, count, kv, queries, keys] in SIZES {
        let q = heads([batch, count, queries, 8], 1)?;
        let (k, v) = (heads([batch, kv, keys, 8], 2)?, heads([batch, kv, keys, 6], 3)?);
        // The first key is never excluded, so that each query has a key.
        let excluded = |shape: &[usize]| -> Result<Tensor> {
            let mask = tensor(shape, 4)?.gt(1.)?;
            let seen = mask.narrow(D::Minus1, 0, 1)?.zeros_like()?;
            let rest = mask.narrow(D::Minus1, 1, keys - 1)?;
            Tensor::cat(&[seen, rest], D::Minus1)
        };
        let shapes: [&[usize]; 5] = [
            &[keys],
            &[queries, keys],
            &[batch, 1, 1, keys],
            &[1, count, queries, keys],
            &[batch, 1, queries, keys],
        ];
        let mut masks: Vec<Tensor> = Vec::new();
        for shape in shapes {
            masks.push(excluded(shape)?);
        }
        masks.push(masks[0].broadcast_as((batch, count, queries, keys))?);
        for (dtype, bound) in
            [(DType::F32, 2e-5), (DType::F16, 1e-2), (DType::BF16, 1e-1), (DType::F64, 1e-12)]
        {
            let [q, k, v] = each([&q, &k, &v], |t| t.to_dtype(dtype))?;
            let scale = 1. / 8f64.sqrt();
            let check = |mask: Mask<'_>| -> Result<()> {
                let got = ops::scaled_dot_product_attention(&q, &k, &v, mask, scale)?;
                assert_eq!(got.dtype(), dtype);
                let case = format!("{dtype:?} {:?} {:?} {mask:?}", q.dims(), k.dims());
                assert_close(&case, &got, &expected(&q, &k, &v, mask, scale)?, bound);
                Ok(())
            };
            check(Mask::All)?;
            if queries <= keys {
                check(Mask::Causal)?;
            }
            for mask in &masks {
                check(Mask::Exclude(mask))?;
                let added = (mask.to_dtype(dtype)? * -30.)?;
                check(Mask::Add(&added))?;
                check(Mask::Include(&mask.eq(0u8)?))?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_cache_of_keys_gives_what_all_at_once_gives() -> Result<()> {
    let (q, k, v) = (heads([2, 6, 40, 8], 1)?, heads([2, 2, 40, 8], 2)?, heads([2, 2, 40, 8], 3)?);
    let all = ops::scaled_dot_product_attention(&q, &k, &v, Mask::Causal, 0.3)?;
    let mut start = 0;
    for step in [1, 7, 1, 30, 1] {
        let now = |t: &Tensor, from, len| t.narrow(2, from, len)?.contiguous();
        let end = start + step;
        let (q, k, v) = (now(&q, start, step)?, now(&k, 0, end)?, now(&v, 0, end)?);
        let got = ops::scaled_dot_product_attention(&q, &k, &v, Mask::Causal, 0.3)?;
        assert_eq!(bits(&got), bits(&all.narrow(2, start, step)?), "{start}");
        start = end;
    }
    Ok(())
}

#[test]
fn later_keys_are_not_read() -> Result<()> {
    let (q, k, v) =
        (heads([1, 2, 300, 8], 1)?, heads([1, 2, 300, 8], 2)?, heads([1, 2, 300, 8], 3)?);
    let expected = ops::scaled_dot_product_attention(&q, &k, &v, Mask::Causal, 0.3)?;
    // A block of queries ends with the last query that attends to the keys before 256.
    let poison = Tensor::full(f32::NAN, (1, 2, 44, 8), &Device::Cpu)?;
    let v = Tensor::cat(&[&v.narrow(2, 0, 256)?, &poison], 2)?;
    let got = ops::scaled_dot_product_attention(&q, &k, &v, Mask::Causal, 0.3)?;
    assert_eq!(values(&got.i((.., .., ..128))?), values(&expected.i((.., .., ..128))?));
    Ok(())
}

/// A non-finite value at a key affects only queries that attend to it, on any number of threads,
/// for every dtype, and with gradients.
#[test]
fn what_is_not_finite_at_a_key_reaches_no_query_that_does_not_see_it() -> Result<()> {
    let shape = [1, 2, 128, 8];
    let (q, k, v) = (heads(shape, 1)?, heads(shape, 2)?, heads(shape, 3)?);
    let key = 40;
    let of_key = |xs: &Tensor, poison: f32| -> Result<Tensor> {
        let poison = Tensor::full(poison, (1, 2, 1, 8), &Device::Cpu)?;
        let (before, after) = (xs.narrow(2, 0, key)?, xs.narrow(2, key + 1, 127 - key)?);
        Tensor::cat(&[&before, &poison, &after], 2)
    };
    let later = |query: usize| (0..128).map(move |key| u8::from(key > query));
    let later: Vec<u8> = (0..128).flat_map(later).collect();
    let later = Tensor::from_vec(later, (128, 128), &Device::Cpu)?;
    let seen = later.eq(0u8)?;
    let zero = Tensor::zeros((128, 128), DType::F32, &Device::Cpu)?;
    let added = masked_fill(&zero, &later)?;
    let attend = |[q, k, v]: [&Tensor; 3], mask: Mask<'_>, precision| {
        ops::scaled_dot_product_attention_with(q, k, v, mask, 0.3, precision)
    };
    let bits = |ys: &Tensor, queries: std::ops::Range<usize>| -> Result<Vec<u64>> {
        let ys = ys.i((.., .., queries))?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        Ok(ys.into_iter().map(f64::to_bits).collect())
    };
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (poisoned_k, poisoned_v) = (of_key(&k, poison)?, of_key(&v, poison)?);
        for mask in [Mask::Causal, Mask::Exclude(&later), Mask::Include(&seen), Mask::Add(&added)] {
            for threads in [1, 2, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                pool.expect("a pool").install(|| -> Result<()> {
                    let check = |dtype: DType, tracks: bool, precision| -> Result<()> {
                        let of = |xs: &Tensor| -> Result<Tensor> {
                            let xs = xs.to_dtype(dtype)?;
                            if tracks {
                                Ok(Var::from_tensor(&xs)?.as_tensor().clone())
                            } else {
                                Ok(xs)
                            }
                        };
                        let (q, clean_k, clean_v) = (of(&q)?, of(&k)?, of(&v)?);
                        let clean = attend([&q, &clean_k, &clean_v], mask, precision)?;
                        for (k, v) in [(&poisoned_k, &v), (&k, &poisoned_v)] {
                            let ys = attend([&q, &of(k)?, &of(v)?], mask, precision)?;
                            let case = format!("{poison} {mask:?} {threads} {dtype:?} {tracks}");
                            assert_eq!(bits(&ys, 0..key)?, bits(&clean, 0..key)?, "{case}");
                            let with = ys.i((.., .., key..))?.to_dtype(DType::F64)?;
                            let with = with.flatten_all()?.to_vec1::<f64>()?;
                            let of_v = std::ptr::eq(v, &poisoned_v);
                            assert!(!of_v || with.iter().all(|y| !y.is_finite()), "{case}");
                            // The sum of weights and values with an infinity.
                            if of_v && !poison.is_nan() && precision != Precision::Int8 {
                                let is_poison = |y: &f64| *y == f64::from(poison);
                                assert!(with.iter().all(is_poison), "{case}");
                            }
                        }
                        Ok(())
                    };
                    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
                        check(dtype, false, Precision::Float32)?;
                    }
                    check(DType::F32, false, Precision::BFloat16)?;
                    check(DType::BF16, false, Precision::Int8)?;
                    check(DType::F32, false, Precision::Int8)?;
                    check(DType::F32, true, Precision::Float32)
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn more_queries_than_keys_and_queries_that_see_nothing() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let (q, k) = (heads([1, 1, 5, 4], 1)?, heads([1, 1, 3, 4], 2)?);
        let (q, k) = (q.to_dtype(dtype)?, k.to_dtype(dtype)?);
        let got = ops::scaled_dot_product_attention(&q, &k, &k, Mask::Causal, 0.3)?;
        let zeros = got.narrow(2, 0, 2)?.abs()?.max_all()?.to_dtype(DType::F32)?;
        assert_eq!(zeros.to_scalar::<f32>()?, 0., "the first two queries see no key");
        let one = got.i((0, 0, 2))?.to_dtype(DType::F64)?;
        assert_close("one key", &one, &k.i((0, 0, 0))?, 1e-6);
        let nothing = Tensor::ones((5, 3), DType::U8, &Device::Cpu)?;
        let got = ops::scaled_dot_product_attention(&q, &k, &k, Mask::Exclude(&nothing), 0.3)?;
        let size = got.abs()?.max_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        assert_eq!(size, 0.);
    }
    for shape in [[0, 4, 3, 5], [1, 4, 0, 5], [1, 4, 3, 0]] {
        let [batch, count, queries, keys] = shape;
        let (q, k) = (heads([batch, count, queries, 4], 1)?, heads([batch, 2, keys, 4], 2)?);
        let mask = Tensor::zeros((queries, keys), DType::U8, &Device::Cpu)?;
        for mask in [Mask::All, Mask::Causal, Mask::Exclude(&mask)] {
            let got = ops::scaled_dot_product_attention(&q, &k, &k, mask, 0.3)?;
            assert_eq!(got.dims(), [batch, count, queries, 4]);
        }
    }
    Ok(())
}

#[test]
fn gradients_flow_to_all_three() -> Result<()> {
    let q = Var::from_tensor(&tensor(&[1, 4, 3, 5], 1)?)?;
    let k = Var::from_tensor(&tensor(&[1, 2, 6, 5], 2)?)?;
    let v = Var::from_tensor(&tensor(&[1, 2, 6, 5], 3)?)?;
    for mask in [Mask::All, Mask::Causal] {
        let [ours, candle] = [
            ops::scaled_dot_product_attention(&q, &k, &v, mask, 0.3)?,
            expected(&q, &k, &v, mask, 0.3)?,
        ];
        let of = |ys: Tensor| ys.sqr()?.sum_all()?.backward();
        let (ours, candle) = (of(ours)?, of(candle)?);
        for var in [&q, &k, &v] {
            let [ours, candle] = [&ours, &candle].map(|g| g.get(var).expect("a gradient"));
            assert_close("gradient", ours, candle, 1e-3);
        }
    }
    Ok(())
}

#[test]
fn masks_that_do_not_say_what_they_mean_are_errors() -> Result<()> {
    let xs = heads([1, 4, 3, 4], 1)?;
    let mask = Tensor::zeros((3, 3), DType::U8, &Device::Cpu)?;
    let message = |mask: Mask<'_>, words: &[&str]| {
        let got = ops::scaled_dot_product_attention(&xs, &xs, &xs, mask, 0.3);
        fault(got).has_all(words);
    };
    message(Mask::from(&mask), &["Mask::Exclude", "Mask::Include", "U8"]);
    let float = mask.to_dtype(DType::F32)?;
    message(Mask::Exclude(&float), &["u8 mask", "F32"]);
    message(Mask::Include(&float), &["u8 mask", "F32"]);
    let wrong = Tensor::zeros(4, DType::U8, &Device::Cpu)?;
    message(Mask::Exclude(&wrong), &["broadcasts to [1, 4, 3, 3]", "[4]"]);
    let three = heads([1, 3, 3, 4], 1)?;
    let got = ops::scaled_dot_product_attention(&xs, &three, &three, None, 0.3);
    fault(got).has("a divisor of 4").has("[1, 3, 3, 4]");
    Ok(())
}

/// Factors of fewer bits: near the exact result, the same for a query in any batch, for views and
/// halves; f64 and gradients keep their precision.
#[test]
fn in_fewer_bits_a_query_is_near_and_alone() -> Result<()> {
    for (precision, bound) in [(Precision::BFloat16, 0.1), (Precision::Int8, 0.3)] {
        for sizes in SIZES {
            near_and_alone(sizes, precision, bound)?;
        }
    }
    Ok(())
}

fn near_and_alone(sizes: [usize; 5], precision: Precision, bound: f64) -> Result<()> {
    let [batch, count, kv, queries, keys] = sizes;
    let q = heads([batch, count, queries, 8], 1)?;
    let (k, v) = (heads([batch, kv, keys, 8], 2)?, heads([batch, kv, keys, 6], 3)?);
    let scale = 1. / 8f64.sqrt();
    let attend = |q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask<'_>| {
        ops::scaled_dot_product_attention_with(q, k, v, mask, scale, precision)
    };
    for mask in [Mask::All, Mask::Causal] {
        if queries > keys {
            continue;
        }
        let case = format!("{precision:?} {:?} {:?} {mask:?}", q.dims(), k.dims());
        let got = attend(&q, &k, &v, mask)?;
        let exact = expected(&q, &k, &v, mask, scale)?;
        assert_close(&case, &got, &exact, bound);
        let of_last = (batch - 1, queries - 1);
        let [q_last, k_last, v_last] = each([&q, &k, &v], |t| t.narrow(0, of_last.0, 1))?;
        let alone = attend(&q_last.narrow(2, of_last.1, 1)?, &k_last, &v_last, mask)?;
        let expected = got.i((of_last.0, .., of_last.1))?;
        assert_eq!(values(&alone), values(&expected), "{case}");
        // Halves are computed as f32.
        let halves = each([&q, &k, &v], |t| t.to_dtype(DType::F16))?;
        let [q, k, v] = each(halves.each_ref(), |t| t.to_dtype(DType::F32))?;
        let floats = attend(&q, &k, &v, mask)?.to_dtype(DType::F16)?;
        let [q, k, v] = halves;
        assert_eq!(values(&attend(&q, &k, &v, mask)?), values(&floats), "{case}");
    }
    let tracked = Var::from_tensor(&q)?;
    let exact = expected(&q, &k, &v, Mask::All, scale)?;
    assert_close("tracked", &attend(&tracked, &k, &v, Mask::All)?, &exact, 1e-5);
    let [q, k, v] = each([&q, &k, &v], |t| t.to_dtype(DType::F64))?;
    let exact = expected(&q, &k, &v, Mask::All, scale)?;
    assert_close("f64", &attend(&q, &k, &v, Mask::All)?, &exact, 1e-12);
    Ok(())
}

#[test]
fn sums_that_could_leave_an_i32_are_errors() -> Result<()> {
    let long = Tensor::zeros((1, 1, 1, 1), DType::F32, &Device::Cpu)?;
    let keys = long.broadcast_as((1, 1, 65_537, 1))?;
    let inputs = long.broadcast_as((1, 1, 1, 65_537))?;
    for (q, k) in [(&long, &keys), (&inputs, &inputs)] {
        let attend =
            |precision| ops::scaled_dot_product_attention_with(q, k, k, None, 1., precision);
        fault(attend(Precision::Int8)).has_all(&["at most 65536 keys", "8 bits", "65537"]);
        assert!(attend(Precision::Float32).is_ok());
    }
    Ok(())
}
