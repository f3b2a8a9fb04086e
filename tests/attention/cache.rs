//! A cache of keys and values gives the bits of the function on all of them at once.

use candle_core::Result;
use candle_dynquant::nn::KvCache;

use crate::common::tensor;
use crate::functions::heads;
use crate::kit::*;

const PRECISIONS: [Precision; 3] = [Precision::Float32, Precision::BFloat16, Precision::Int8];

/// Batch, heads, heads of keys, head dimension, value dimension.
const SIZES: [[usize; 5]; 4] =
    [[1, 1, 1, 1, 1], [2, 6, 2, 33, 18], [3, 4, 4, 64, 64], [1, 8, 1, 5, 130]];

#[test]
fn codes_take_the_room_that_a_cache_was_made_for_at_once() -> Result<()> {
    for precision in PRECISIONS {
        let mut cache = KvCache::with_capacity(precision, 200);
        let mut grown = KvCache::new(precision);
        assert_eq!((cache.bytes(), cache.capacity()), (0, 0));
        let (k, v) = (heads([2, 2, 230, 16], 2)?, heads([2, 2, 230, 16], 3)?);
        let mut capacities = Vec::new();
        for (start, rows) in [(0, 3), (3, 197), (200, 30)] {
            for cache in [&mut cache, &mut grown] {
                cache.append(&k.narrow(2, start, rows)?, &v.narrow(2, start, rows)?)?;
            }
            capacities.push(cache.capacity());
        }
        let expected = match precision {
            Precision::Int8 => [256; 3],
            _ => [128, 256, 256], // pages
        };
        assert_eq!(capacities, expected, "{precision}");
        let q = heads([2, 4, 1, 16], 1)?;
        let [own, other] = [&cache, &grown].map(|cache| cache.attend(&q, None, 0.2));
        assert_eq!(bits(&own?), bits(&other?), "{precision}");
        // Of more than there can be, codes take the most; pages come with their rows.
        let mut endless = KvCache::with_capacity(precision, usize::MAX);
        endless.append(&k, &v)?;
        let most = match precision {
            Precision::Int8 => 65_536,
            _ => 256,
        };
        assert_eq!(endless.capacity(), most, "{precision}");
    }
    Ok(())
}

#[test]
fn it_gives_the_bits_of_the_function_on_all_keys() -> Result<()> {
    for ([batch, count, kv, dim, value_dim], precision) in
        SIZES.into_iter().flat_map(|sizes| PRECISIONS.map(|p| (sizes, p)))
    {
        let rows = 300;
        let k = heads([batch, kv, rows, dim], 2)?;
        let v = heads([batch, kv, rows, value_dim], 3)?;
        let mut cache = KvCache::new(precision);
        let mut len = 0;
        for step in [1, 3, 70, 1, 64, 129, 0, 32] {
            let new = |t: &Tensor| t.narrow(2, len, step);
            cache.append(&new(&k)?, &new(&v)?)?;
            len += step;
            assert_eq!((cache.len(), cache.is_empty()), (len, false));
            assert!(cache.capacity() >= len && cache.capacity() < 2 * len + 128);
            for queries in [1, 7] {
                let q = heads([batch, count, queries, dim], 1)?;
                let keys_mask = tensor(&[queries, len], 4)?;
                let excluded = keys_mask.gt(2.)?;
                for mask in
                    [Mask::All, Mask::Causal, Mask::Add(&keys_mask), Mask::Exclude(&excluded)]
                {
                    let (k, v) = (k.narrow(2, 0, len)?, v.narrow(2, 0, len)?);
                    let expected =
                        ops::scaled_dot_product_attention_with(&q, &k, &v, mask, 0.2, precision)?;
                    let got = cache.attend(&q, mask, 0.2)?;
                    let case = format!("{precision} {:?} {len} keys {mask:?}", q.dims());
                    assert_eq!(bits(&got), bits(&expected), "{case}");
                }
            }
        }
        assert_eq!(len, rows);
    }
    Ok(())
}

#[test]
fn rows_that_were_taken_back_leave_nothing() -> Result<()> {
    let q = heads([2, 4, 3, 9], 1)?;
    let (k, v) = (heads([2, 2, 90, 9], 2)?, heads([2, 2, 90, 9], 3)?);
    let poison = Tensor::full(f32::NAN, (2, 2, 41, 9), &Device::Cpu)?;
    for precision in PRECISIONS {
        let mut cache = KvCache::new(precision);
        cache.append(&k.narrow(2, 0, 31)?, &v.narrow(2, 0, 31)?)?;
        cache.append(&poison, &poison)?;
        cache.truncate(100);
        assert_eq!(cache.len(), 72);
        cache.truncate(31);
        let short = cache.clone();
        cache.append(&k.narrow(2, 31, 59)?, &v.narrow(2, 31, 59)?)?;
        let all = |keys| -> Result<Vec<u32>> {
            let (k, v) = (k.narrow(2, 0, keys)?, v.narrow(2, 0, keys)?);
            let ys = ops::scaled_dot_product_attention_with(&q, &k, &v, None, 0.3, precision)?;
            Ok(bits(&ys))
        };
        assert_eq!(bits(&cache.attend(&q, None, 0.3)?), all(90)?, "{precision}");
        assert_eq!(bits(&short.attend(&q, None, 0.3)?), all(31)?, "{precision}");
        // Without rows the sizes stay until a reset.
        cache.truncate(0);
        let nothing = cache.attend(&q, Mask::Causal, 0.3)?;
        assert!(cache.is_empty() && bits(&nothing).iter().all(|bits| *bits == 0));
        let other = heads([1, 3, 2, 5], 5)?;
        assert!(cache.append(&other, &other).is_err());
        cache.reset();
        assert_eq!((cache.bytes(), cache.capacity()), (0, 0));
        cache.append(&other, &other)?;
        assert_eq!(cache.len(), 2);
    }
    Ok(())
}

#[test]
fn clones_share_pages_and_change_no_other() -> Result<()> {
    let q = heads([2, 4, 3, 9], 1)?;
    let (k, v) = (heads([2, 2, 700, 9], 2)?, heads([2, 2, 700, 9], 3)?);
    let part = |t: &Tensor, start: usize, rows: usize| t.narrow(2, start, rows);
    for precision in PRECISIONS {
        let mut first = KvCache::new(precision);
        first.append(&part(&k, 0, 300)?, &part(&v, 0, 300)?)?;
        let before = bits(&first.attend(&q, None, 0.3)?);
        // Prefixes at, before and behind the ends of pages, each continued by other rows.
        for len in [0, 1, 127, 128, 129, 255, 256, 300] {
            let mut other = first.clone();
            other.truncate(len);
            let rows = [(350, 5), (400, 150)];
            for (start, rows) in rows {
                other.append(&part(&k, start, rows)?, &part(&v, start, rows)?)?;
            }
            let join = |t: &Tensor| {
                let rows = rows.map(|(start, rows)| part(t, start, rows));
                let [a, b] = rows;
                Tensor::cat(&[part(t, 0, len)?, a?, b?], 2)
            };
            let expected = ops::scaled_dot_product_attention_with(
                &q,
                &join(&k)?,
                &join(&v)?,
                None,
                0.3,
                precision,
            )?;
            let case = format!("{precision} {len}");
            assert_eq!(bits(&other.attend(&q, None, 0.3)?), bits(&expected), "{case}");
            assert_eq!(bits(&first.attend(&q, None, 0.3)?), before, "{case}");
        }
        // The original is continued while a clone exists.
        let clone = first.clone();
        first.append(&part(&k, 300, 10)?, &part(&v, 300, 10)?)?;
        assert_eq!(bits(&clone.attend(&q, None, 0.3)?), before, "{precision}");
        assert_eq!((clone.len(), first.len()), (300, 310));
    }
    Ok(())
}

#[test]
fn memory_is_rows_scales_and_headroom() -> Result<()> {
    let (heads_of, dim) = (4, 64);
    let row = tensor(&[1, heads_of, 1, dim], 1)?;
    let bytes = |precision| -> Result<usize> {
        let mut cache = KvCache::new(precision);
        for _ in 0..1000 {
            cache.append(&row, &row)?;
        }
        assert_eq!(cache.capacity(), 1024);
        Ok(cache.bytes())
    };
    let floats = 2 * heads_of * 1024 * dim * 4;
    assert_eq!(bytes(Precision::Float32)?, floats);
    assert_eq!(bytes(Precision::BFloat16)?, floats / 2);
    let codes = bytes(Precision::Int8)?;
    assert!(codes < floats * 10 / 32 && codes > floats / 4, "{codes} of {floats}");
    Ok(())
}

#[test]
fn halves_are_the_f32_that_they_are() -> Result<()> {
    for (precision, dtype) in
        PRECISIONS.into_iter().flat_map(|p| [DType::F16, DType::BF16].map(|dtype| (p, dtype)))
    {
        let [q, k, v] = [1, 2, 3].map(|seed| heads([1, 2, 20, 8], seed).unwrap());
        let [q, k, v] = each([&q, &k, &v], |t| t.to_dtype(dtype))?;
        let mut cache = KvCache::new(precision);
        cache.append(&k, &v)?;
        let got = cache.attend(&q, None, 0.3)?;
        let expected = ops::scaled_dot_product_attention_with(&q, &k, &v, None, 0.3, precision)?;
        assert_eq!(got.dtype(), dtype);
        assert_eq!(bits(&got), bits(&expected), "{precision} {dtype:?}");
    }
    Ok(())
}

#[test]
fn mistakes_are_told_and_leave_the_cache_as_it_was() -> Result<()> {
    let (q, k) = (heads([2, 4, 3, 8], 1)?, heads([2, 2, 5, 8], 2)?);
    for precision in PRECISIONS {
        let mut cache = KvCache::new(precision);
        fault(cache.attend(&q, None, 0.3)).has("expected one to which keys");
        let flat = tensor(&[5, 8], 1)?;
        let wrong = |cache: &mut KvCache, k: &Tensor, v: &Tensor, words: &[&str]| -> Result<()> {
            let before = (cache.len(), cache.capacity(), cache.bytes());
            let answer = (!cache.is_empty()).then(|| cache.attend(&q, None, 0.3));
            fault(cache.append(k, v)).has_all(words).has_all(&["KvCache", "expected", "got"]);
            assert_eq!((cache.len(), cache.capacity(), cache.bytes()), before);
            if let Some(answer) = answer {
                assert_eq!(bits(&cache.attend(&q, None, 0.3)?), bits(&answer?));
            }
            Ok(())
        };
        wrong(&mut cache, &flat, &flat, &["[batch, kv_heads, rows, head_dim]", "[5, 8]"])?;
        wrong(&mut cache, &k, &flat, &["v of [2, 2, 5, value_dim]", "[5, 8]"])?;
        wrong(&mut cache, &k, &k.narrow(2, 0, 4)?, &["[2, 2, 4, 8]"])?;
        cache.append(&k, &k)?;
        let (batch, one, short) = (k.narrow(0, 0, 1)?, k.narrow(1, 0, 1)?, k.narrow(3, 0, 7)?);
        let (double, ints) = (k.to_dtype(DType::F64)?, k.to_dtype(DType::U8)?);
        let rows = "k of [2, 2, rows, 8]";
        wrong(&mut cache, &batch, &batch, &[rows, "[1, 2, 5, 8]"])?;
        wrong(&mut cache, &one, &one, &[rows, "[2, 1, 5, 8]"])?;
        wrong(&mut cache, &short, &k, &[rows, "[2, 2, 5, 7]"])?;
        wrong(&mut cache, &k, &short, &["v of [2, 2, 5, 8]", "[2, 2, 5, 7]"])?;
        wrong(&mut cache, &double, &k, &["f32, f16 or bf16", "F64"])?;
        wrong(&mut cache, &k, &double, &["f32, f16 or bf16", "F64"])?;
        wrong(&mut cache, &k, &ints, &["U8"])?;

        for (q, expected) in [
            (&q.narrow(0, 0, 1)?, "[1, 4, 3, 8]"),
            (&q.narrow(1, 0, 3)?, "[2, 3, 3, 8]"),
            (&q.narrow(3, 0, 7)?, "[2, 4, 3, 7]"),
            (&q.to_dtype(DType::F64)?, "F64"),
            (&flat, "[5, 8]"),
        ] {
            fault(cache.attend(q, None, 0.3)).has(expected).has("KvCache");
        }
        let mask = Tensor::zeros((3, 4), DType::F32, &Device::Cpu)?;
        fault(cache.attend(&q, &mask, 0.3)).has("broadcasts to [2, 4, 3, 5]");
    }
    Ok(())
}

#[test]
fn codes_have_room_for_as_many_keys_as_a_sum_has() -> Result<()> {
    let key = Tensor::ones((1, 1, 1, 1), DType::F32, &Device::Cpu)?;
    let mut cache = KvCache::new(Precision::Int8);
    let many = key.broadcast_as((1, 1, 65_535, 1))?;
    cache.append(&many, &many)?;
    cache.append(&key, &key)?;
    assert_eq!((cache.len(), cache.capacity()), (65_536, 65_536));
    fault(cache.append(&key, &key)).has_all(&["at most 65536", "the 65536 before", "8 bits"]);
    let wide = key.broadcast_as((1, 1, 1, 65_537))?;
    fault(KvCache::new(Precision::Int8).append(&wide, &wide)).has("[1, 1, 1, 65537]");
    // Sizes that memory cannot hold are an error as well.
    let all = key.broadcast_as((1, 1, 1 << 62, 1))?;
    for precision in PRECISIONS {
        assert!(KvCache::new(precision).append(&all, &all).is_err());
    }
    Ok(())
}

#[test]
fn empty_rows_are_rows() -> Result<()> {
    for precision in PRECISIONS {
        for shape in [[0, 2, 3, 4], [1, 0, 3, 4], [1, 2, 3, 0]] {
            let rows = Tensor::zeros(&shape[..], DType::F32, &Device::Cpu)?;
            let mut cache = KvCache::new(precision);
            cache.append(&rows, &rows)?;
            cache.append(&rows, &rows)?;
            assert_eq!(cache.len(), 6, "{precision} {shape:?}");
            let got = cache.attend(&rows, None, 0.3)?;
            assert_eq!(got.dims(), shape, "{precision}");
        }
    }
    Ok(())
}

/// A gradient that would be left out is an error.
#[test]
fn a_backward_pass_through_a_cache_is_an_error() -> Result<()> {
    let q = Var::from_tensor(&heads([1, 2, 3, 8], 1)?)?;
    let mut cache = KvCache::new(Precision::Float32);
    cache.append(&heads([1, 2, 3, 8], 2)?, &heads([1, 2, 3, 8], 3)?)?;
    let ys = cache.attend(&q, None, 0.3)?;
    assert!(ys.sum_all()?.backward().is_err());
    Ok(())
}

/// A layer of a decoder.
#[derive(Quantizable, Clone)]
struct Decoder {
    query: nn::Linear,
    attention: nn::Attention,
    cache: KvCache,
}

impl Decoder {
    fn forward(&mut self, xs: &Tensor) -> Result<Tensor> {
        use candle_core::Module;
        let (batch, seq, _) = xs.dims3()?;
        let split = |xs: &Tensor| xs.reshape((batch, seq, 2, 8))?.transpose(1, 2);
        let q = split(&self.query.forward(xs)?)?;
        self.cache.append(&split(xs)?, &split(xs)?)?;
        self.attention.forward_cached(&q, &self.cache, Mask::Causal)
    }
}

#[test]
fn a_decoder_keeps_its_cache_beside_its_attention() -> candle_dynquant::Result<()> {
    let weight = tensor(&[16, 16], 1)?;
    let attention = nn::Attention::new(0.3);
    let mut float =
        Decoder { query: nn::Linear::new(weight, None), cache: attention.cache(), attention };
    let xs = tensor(&[1, 12, 16], 2)?;
    let mut int8 = float.clone();
    let spec = QConfigSpec::new().kind(LayerKind::Attention, Precision::Int8);
    let report = quantize_dynamic(&mut int8, &spec)?;
    assert!(report.hidden.is_empty() && report.opaque.is_empty(), "{report}");
    fault(int8.forward(&xs)).has_all(&["one in int8", "float32", "Attention::cache"]);
    int8.cache = int8.attention.cache();
    // Reading token by token gives the bits of reading all at once.
    let mut alone = int8.clone();
    let all = int8.forward(&xs)?;
    for i in 0..12 {
        let one = alone.forward(&xs.narrow(1, i, 1)?)?;
        assert_eq!(bits(&one), bits(&all.narrow(2, i, 1)?), "{i}");
    }
    // Both are measured, through their caches.
    float.cache.reset();
    let mut measured = int8.clone();
    measured.cache.reset();
    let inspection =
        inspect::inspect(&mut float, &mut measured, |model| model.clone().forward(&xs))?;
    let of_attention = &inspection.layers[1];
    let output = of_attention.output.expect("an output").sqnr_db();
    assert!((25. ..80.).contains(&output), "{inspection}");
    assert_eq!(of_attention.along, of_attention.output);
    Ok(())
}
