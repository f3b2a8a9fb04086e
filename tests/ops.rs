//! `ops`: every operation against candle's in f64, over shapes, dtypes, layouts, mistakes.

mod common;

use std::fmt::Display;

use candle_core::Result;
use candle_dynquant::ops;
use common::*;

/// Checks that no element differs by more than `bound`; NaN counts as equal to NaN.
#[track_caller]
fn assert_close(got: &Tensor, expected: &Tensor, bound: f64, case: impl Display) {
    assert_eq!(got.dims(), expected.dims(), "{case}");
    let values = |t: &Tensor| {
        t.to_dtype(DType::F64).and_then(|t| t.flatten_all()?.to_vec1::<f64>()).expect("floats")
    };
    for (a, b) in values(got).into_iter().zip(values(expected)) {
        let is_close = (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound;
        assert!(is_close, "{case}: {a}, expected {b}");
    }
}

fn f64s(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(DType::F64)
}

#[test]
fn activations_are_those_of_f64_for_any_shape() -> Result<()> {
    use FusedActivation::*;
    for activation in [Relu, Gelu, GeluTanh, QuickGelu, Silu, Tanh, Sigmoid, Elu] {
        let shapes: [&[usize]; 7] = [&[], &[0], &[1], &[15, 3], &[2, 0, 3], &[70, 513], &[3, 5, 7]];
        for shape in shapes {
            let xs = tensor(shape, 1)?;
            let got = ops::activate(&xs, activation)?;
            // f64 uses candle's implementation.
            let expected = ops::activate(&f64s(&xs)?, activation)?;
            assert_eq!((got.dtype(), expected.dtype()), (DType::F32, DType::F64));
            assert_close(&got, &expected, 6e-7, format_args!("{activation:?} {shape:?}"));
        }
        let xs = tensor(&[6, 40], 2)?;
        let transposed = activation.forward(&xs.t()?)?;
        assert_eq!(bits(&transposed.t()?), bits(&activation.forward(&xs)?));
        let narrowed = activation.forward(&xs.i((2..5, 3..20))?)?;
        let expected = activation.forward(&xs)?.i((2..5, 3..20))?;
        assert_eq!(bits(&narrowed), bits(&expected));
    }
    let xs = tensor(&[40], 3)?;
    let named = [
        (ops::relu(&xs)?, xs.relu()?),
        (ops::gelu(&xs)?, xs.gelu_erf()?),
        (ops::gelu_tanh(&xs)?, xs.gelu()?),
        (ops::silu(&xs)?, xs.silu()?),
        (ops::tanh(&xs)?, xs.tanh()?),
        (ops::sigmoid(&xs)?, candle_nn::ops::sigmoid(&xs)?),
    ];
    for (got, candle) in named {
        assert_close(&got, &candle, 1e-6, "");
    }
    Ok(())
}

#[test]
fn activations_by_candle_s_names() {
    use candle_nn::Activation as Candle;
    let xs = tensor(&[50], 4).unwrap();
    for (candle, expected) in [
        (Candle::Gelu, FusedActivation::Gelu),
        (Candle::NewGelu, FusedActivation::GeluTanh),
        (Candle::GeluPytorchTanh, FusedActivation::GeluTanh),
        (Candle::Relu, FusedActivation::Relu),
        (Candle::Silu, FusedActivation::Silu),
        (Candle::Swish, FusedActivation::Silu),
        (Candle::Sigmoid, FusedActivation::Sigmoid),
        (Candle::Elu(1.), FusedActivation::Elu),
    ] {
        assert_eq!(FusedActivation::try_from(candle).unwrap(), expected);
        let (got, own) = (expected.forward(&xs).unwrap(), candle.forward(&xs).unwrap());
        assert_close(&got, &own, 1e-6, format_args!("{candle:?}"));
    }
    assert_fails(FusedActivation::try_from(Candle::Mish), &["gelu_tanh", "Mish"]);
}

#[test]
fn images_are_pooled_and_upsampled_as_by_candle() -> Result<()> {
    let xs = tensor(&[2, 3, 11, 14], 1)?;
    let strided = tensor(&[2, 11, 14, 3], 1)?.permute((0, 3, 1, 2))?;
    for xs in [&xs, &strided, &xs.to_dtype(DType::F16)?, &f64s(&xs)?] {
        for (kernel, stride) in [((3, 3), (2, 2)), ((5, 2), (1, 3)), ((11, 14), (1, 1))] {
            let got = ops::max_pool2d_with_stride(xs, kernel, stride)?;
            assert_eq!(got.dtype(), xs.dtype());
            assert_close(&got, &xs.max_pool2d_with_stride(kernel, stride)?, 0., "pooled");
        }
        assert_close(&ops::max_pool2d(xs, 2)?, &xs.max_pool2d(2)?, 0., "pooled by 2");
        for (height, width) in [(22, 28), (33, 15), (5, 40), (1, 1), (0, 3)] {
            let got = ops::upsample_nearest2d(xs, height, width)?;
            assert_eq!(got.dtype(), xs.dtype());
            assert_close(&got, &xs.upsample_nearest2d(height, width)?, 0., "upsampled");
        }
        let scaled = (xs * 3.)?;
        let got = ops::elu(&scaled, 0.7)?;
        assert_close(&got, &scaled.elu(0.7)?, 1e-6, "");
    }
    for (kernel, stride) in [((12, 3), (1, 1)), ((0, 3), (1, 1)), ((3, 3), (1, 0))] {
        assert_fails(ops::max_pool2d_with_stride(&xs, kernel, stride), &["at least one window"]);
    }
    assert!(ops::max_pool2d(&xs.get(0)?, 2).is_err());
    assert!(ops::upsample_nearest2d(&xs.get(0)?, 2, 2).is_err());
    assert!(ops::upsample_nearest2d(&xs, usize::MAX, 2).is_err());
    let none = ops::upsample_nearest2d(&xs, 1 << 40, 0)?;
    assert_eq!(none.dims(), [2, 3, 1 << 40, 0]);
    Ok(())
}

#[test]
fn layer_norms_are_those_of_f64_for_any_shape() -> Result<()> {
    let shapes: [&[usize]; 8] =
        [&[1], &[7], &[0, 4], &[3, 0], &[2, 3, 31], &[5, 32], &[2, 2, 2, 33], &[130, 768]];
    for shape in shapes {
        let hidden = shape[shape.len() - 1];
        let (xs, residual) = (tensor(shape, 1)?, tensor(shape, 2)?);
        let (weight, bias) = (tensor(&[hidden], 3)?, tensor(&[hidden], 4)?);
        for bias in [None, Some(&bias)] {
            let bias64 = bias.map(f64s).transpose()?;
            let weight64 = f64s(&weight)?;
            let got = ops::layer_norm(&xs, &weight, bias, 1e-5)?;
            let expected = ops::layer_norm(&f64s(&xs)?, &weight64, bias64.as_ref(), 1e-5)?;
            assert_close(&got, &expected, 1e-5, format_args!("{shape:?}"));

            let got = ops::add_layer_norm(&xs, &residual, &weight, bias, 1e-5)?;
            let (xs64, residual64) = (f64s(&xs)?, f64s(&residual)?);
            let expected =
                ops::add_layer_norm(&xs64, &residual64, &weight64, bias64.as_ref(), 1e-5)?;
            assert_close(&got, &expected, 1e-5, format_args!("{shape:?}"));
            // The sum rounds alike in both.
            let apart = ops::layer_norm(&(&xs + &residual)?, &weight, bias, 1e-5)?;
            assert_eq!(bits(&got), bits(&apart), "{shape:?}");
        }
    }
    // Views of all operands.
    let (xs, weight) = (tensor(&[40, 6], 1)?, tensor(&[40, 2], 2)?);
    let (view, column) = (xs.t()?, weight.i((.., 1))?);
    let got = ops::add_layer_norm(&view, &view, &column, Some(&column), 1e-5)?;
    let (xs, column) = (view.contiguous()?, column.contiguous()?);
    let expected = ops::add_layer_norm(&xs, &xs, &column, Some(&column), 1e-5)?;
    assert_eq!(bits(&got), bits(&expected));
    // candle's layer agrees.
    let layer = candle_nn::LayerNorm::new(column.clone(), column.clone(), 1e-5);
    let got = ops::layer_norm(&xs, layer.weight(), layer.bias(), layer.eps())?;
    assert_close(&got, &layer.forward(&xs)?, 1e-5, "");
    Ok(())
}

#[test]
fn softmax_is_that_of_f64_for_any_shape() -> Result<()> {
    let shapes: [&[usize]; 6] = [&[1], &[7], &[0, 4], &[3, 0], &[2, 3, 33], &[300, 128]];
    for shape in shapes {
        let xs = (tensor(shape, 1)? * 5.)?;
        let (got, expected) = (ops::softmax_last_dim(&xs)?, ops::softmax_last_dim(&f64s(&xs)?)?);
        assert_close(&got, &expected, 4e-7, format_args!("{shape:?}"));
    }
    let xs = tensor(&[8, 40], 1)?.t()?;
    let expected = ops::softmax_last_dim(&xs.contiguous()?)?;
    assert_eq!(bits(&ops::softmax_last_dim(&xs)?), bits(&expected));
    assert_eq!(bits(&ops::softmax(&xs, D::Minus1)?), bits(&expected));
    let excluded = Tensor::full(f32::NEG_INFINITY, (1, 3), CPU)?;
    assert!(values(&ops::softmax_last_dim(&excluded)?).iter().all(|x| x.is_nan()));
    Ok(())
}

/// Views `[batch, heads, seq, dim]` of a projection's output.
fn heads(shape: [usize; 4], seed: u64) -> Result<Tensor> {
    let [batch, heads, seq, dim] = shape;
    tensor(&[batch, seq, heads, dim], seed)?.transpose(1, 2)
}

#[test]
fn attention_is_that_of_f64_for_any_shape_and_mask() -> Result<()> {
    for (batch, count, queries, keys, head_dim, value_dim) in [
        (1, 1, 1, 1, 1, 1),
        (2, 3, 5, 7, 8, 8),
        (1, 12, 33, 33, 64, 64),
        (3, 2, 100, 130, 32, 32),
        (1, 1, 200, 20, 10, 3),
        (1, 2, 1, 300, 16, 24),
        (0, 2, 3, 3, 4, 4),
        (1, 0, 3, 3, 4, 4),
        (1, 2, 0, 3, 4, 4),
        (1, 2, 3, 0, 4, 4),
        (1, 2, 3, 3, 0, 4),
        (1, 2, 3, 3, 4, 0),
    ] {
        let q = heads([batch, count, queries, head_dim], 1)?;
        let k = heads([batch, count, keys, head_dim], 2)?;
        let v = heads([batch, count, keys, value_dim], 3)?;
        let scale = 0.3 / (head_dim.max(1) as f32).sqrt();
        let causal = Tensor::tril2(keys.max(queries), DType::F32, CPU)?;
        let causal = ((1. - causal)? * -1e9)?.i((..queries, ..keys))?;
        let masks = [
            None,
            Some(tensor(&[batch, 1, 1, keys], 4)?),
            Some(tensor(&[keys], 5)?),
            Some(tensor(&[queries, 1], 6)?),
            Some(causal),
            Some(tensor(&[batch, count, keys, queries], 7)?.transpose(2, 3)?),
            Some(Tensor::full(f32::NEG_INFINITY, (queries, keys), CPU)?),
        ];
        for mask in masks {
            let run = |cast: fn(&Tensor) -> Result<Tensor>| {
                let mask = mask.as_ref().map(cast).transpose()?;
                let [q, k, v] = [&q, &k, &v].map(cast);
                ops::scaled_dot_product_attention(&q?, &k?, &v?, mask.as_ref(), scale)
            };
            let got = run(|t| Ok(t.clone()))?;
            assert_eq!(got.dims(), [batch, count, queries, value_dim]);
            if head_dim > 0 {
                assert_close(&got, &run(f64s)?, 2e-5, format_args!("{:?}", got.dims()));
            }
            assert!(got.transpose(1, 2)?.is_contiguous());
            // Any layout gives the same.
            assert_eq!(bits(&run(Tensor::contiguous)?), bits(&got));
            let last_strided = |t: &Tensor| match t.rank() {
                1 => Ok(t.clone()),
                _ => t.t()?.contiguous()?.t(),
            };
            assert_eq!(bits(&run(last_strided)?), bits(&got));
        }
    }
    Ok(())
}

#[test]
fn keys_that_are_masked_leave_no_trace() -> Result<()> {
    let (keys, padded) = (70, 200);
    let [q, k, v] = [1, 2, 3].map(|seed| heads([2, 3, padded, 16], seed));
    let (q, k, v) = (q?, k?, v?);
    let short = |t: &Tensor| t.narrow(2, 0, keys);
    let expected =
        ops::scaled_dot_product_attention(&short(&q)?, &short(&k)?, &short(&v)?, None, 0.2)?;
    for excluded in [f32::NEG_INFINITY, f32::MIN] {
        let mask = Tensor::zeros((1, keys), DType::F32, CPU)?;
        let rest = Tensor::full(excluded, (1, padded - keys), CPU)?;
        let mask = Tensor::cat(&[mask, rest], 1)?;
        let got = ops::scaled_dot_product_attention(&q, &k, &v, Some(&mask), 0.2)?;
        assert_eq!(bits(&short(&got)?), bits(&expected), "{excluded}");
    }
    let nothing = Tensor::full(f32::NEG_INFINITY, (padded, padded), CPU)?;
    let got = ops::scaled_dot_product_attention(&q, &k, &v, Some(&nothing), 0.2)?;
    assert_eq!(got.abs()?.max_all()?.to_scalar::<f32>()?, 0.);
    Ok(())
}

#[test]
fn a_sequence_does_not_depend_on_its_batch() -> Result<()> {
    let [q, k, v] = [1, 2, 3].map(|seed| heads([5, 2, 90, 32], seed));
    let (q, k, v) = (q?, k?, v?);
    let all = ops::scaled_dot_product_attention(&q, &k, &v, None, 0.2)?;
    for i in 0..5 {
        let one = |t: &Tensor| t.narrow(0, i, 1);
        let alone = ops::scaled_dot_product_attention(&one(&q)?, &one(&k)?, &one(&v)?, None, 0.2)?;
        assert_eq!(bits(&one(&all)?), bits(&alone));
    }
    Ok(())
}

#[test]
fn half_precision_comes_back_as_it_came() -> Result<()> {
    for (dtype, bound) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let xs = heads([1, 2, 20, 16], 1)?.to_dtype(dtype)?;
        let weight = tensor(&[16], 2)?.to_dtype(dtype)?;
        let exact = f64s(&xs)?;
        let pairs = [
            (ops::gelu(&xs)?, ops::gelu(&exact)?),
            (ops::softmax_last_dim(&xs)?, ops::softmax_last_dim(&exact)?),
            (
                ops::add_layer_norm(&xs, &xs, &weight, Some(&weight), 1e-5)?,
                ops::add_layer_norm(&exact, &exact, &f64s(&weight)?, Some(&f64s(&weight)?), 1e-5)?,
            ),
            (
                ops::scaled_dot_product_attention(&xs, &xs, &xs, None, 0.2)?,
                ops::scaled_dot_product_attention(&exact, &exact, &exact, None, 0.2)?,
            ),
        ];
        for (got, exact) in pairs {
            assert_eq!(got.dtype(), dtype);
            let size = exact.abs()?.max_all()?.to_scalar::<f64>()?;
            assert_close(&got, &exact, bound * size, "");
        }
    }
    Ok(())
}

#[test]
fn mistakes_are_errors_that_say_what_is_expected() -> Result<()> {
    let xs = tensor(&[2, 3, 4], 1)?;
    let (weight, ids) = (tensor(&[4], 2)?, xs.to_dtype(DType::U32)?);
    assert_fails(ops::gelu(&ids), &["gelu", "f32", "U32"]);
    assert_fails(ops::softmax_last_dim(&ids), &["softmax_last_dim", "U32"]);
    let scalar = xs.sum_all()?;
    assert_fails(ops::softmax_last_dim(&scalar), &["softmax_last_dim", "[.., n]", "[]"]);
    assert_fails(ops::layer_norm(&scalar, &weight, None, 0.), &["layer_norm", "[.., hidden]"]);
    let long = tensor(&[5], 1)?;
    assert_fails(ops::layer_norm(&xs, &long, None, 0.), &["layer_norm", "[4]", "[5]"]);
    assert_fails(ops::layer_norm(&xs, &weight, Some(&long), 0.), &["layer_norm", "[4]", "[5]"]);
    assert_fails(ops::layer_norm(&xs, &ids.i((0, 0))?, None, 0.), &["layer_norm", "U32"]);
    let add = |residual| ops::add_layer_norm(&xs, residual, &weight, None, 0.);
    assert_fails(add(&xs.i(0)?), &["add_layer_norm", "[2, 3, 4]", "[3, 4]"]);
    let (low, add) = (xs.i(0)?, |residual: &Tensor, weight: &Tensor| {
        ops::add_rms_norm(&xs, residual, weight, 0.).map(|(ys, _)| ys)
    });
    assert_fails(add(&low, &weight), &["add_rms_norm", "[2, 3, 4]", "[3, 4]"]);
    assert_fails(add(&xs, &long), &["add_rms_norm", "[4]", "[5]"]);
    assert_fails(add(&ids, &weight), &["add_rms_norm", "U32"]);

    let q = heads([2, 3, 4, 5], 1)?;
    let attend = |q, k, v, mask| ops::scaled_dot_product_attention(q, k, v, mask, 1.);
    let op = "scaled_dot_product_attention";
    assert_fails(attend(&xs, &q, &q, None), &[op, "q of [batch", "[2, 3, 4]"]);
    assert_fails(attend(&q, &xs, &q, None), &[op, "k of [2, 3, keys, 5]", "[2, 3, 4]"]);
    let other = heads([2, 2, 4, 5], 1)?;
    assert_fails(attend(&q, &other, &other, None), &[op, "k of [2, 3, keys, 5]", "[2, 2, 4, 5]"]);
    let one = heads([2, 1, 4, 5], 1)?;
    let error = assert_fails(attend(&one, &other, &other, None), &["[2, 1, keys, 5]"]);
    assert!(!error.contains("divisor"), "{error}");
    // In 8 bits, the number of keys is bounded by sums in i32.
    let many = |keys| {
        let (q, k) = (heads([1, 1, 1, 1], 1)?, heads([1, 1, keys, 1], 2)?);
        let precision = ops::Precision::Int8;
        ops::scaled_dot_product_attention_with(&q, &k, &k, None, 1., precision)
    };
    assert_eq!(many(1 << 16)?.dims(), [1, 1, 1, 1]);
    assert_fails(many((1 << 16) + 1), &[op, "at most 65536 keys and inputs"]);
    assert_fails(attend(&q, &q, &other, None), &[op, "v of [2, 3, 4, value_dim]", "[2, 2, 4, 5]"]);
    assert_fails(attend(&q, &q, &scalar, None), &[op, "v of", "[]"]);
    assert_fails(attend(&q, &scalar, &q, None), &[op, "k of", "[]"]);
    assert_fails(attend(&q, &q, &q, Some(&long)), &[op, "a mask", "[2, 3, 4, 4]", "[5]"]);
    assert_fails(attend(&q, &q, &q, Some(&ids.i((0, 0))?)), &[op, "U32"]);
    assert_eq!(q.dim(D::Minus1)?, 5);
    Ok(())
}
