//! Drop-in replacements under candle_nn's names: each gives candle's result, for every dtype,
//! layout, shape and gradient.

mod common;

use candle_core::Result;
use candle_dynquant::ops;
use candle_nn::{LayerNormConfig, Module};
use common::toy::assert_walks;
use common::*;

const DTYPES: [(DType, f64); 4] =
    [(DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2), (DType::F64, 1e-12)];

/// A tensor as it is, as a transposed view, and as a part of a larger tensor.
fn layouts(xs: &Tensor) -> Result<Vec<Tensor>> {
    let mut all = vec![xs.clone()];
    if xs.rank() >= 2 {
        all.push(xs.t()?.contiguous()?.t()?);
    }
    let padded = xs.pad_with_zeros(D::Minus1, 3, 1)?;
    all.push(padded.narrow(D::Minus1, 3, xs.dim(D::Minus1)?)?);
    Ok(all)
}

fn f64s(xs: &Tensor) -> Result<Vec<f64>> {
    xs.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Checks values, shape and dtype; `bound` is relative to the largest value.
#[track_caller]
fn assert_close(case: &str, got: &Tensor, expected: &Tensor, bound: f64) {
    assert_eq!(got.dims(), expected.dims(), "{case}");
    let (got, expected) = (f64s(got).expect(case), f64s(expected).expect(case));
    let size = expected.iter().fold(1., |size: f64, x| size.max(x.abs()));
    for (got, expected) in got.iter().zip(&expected) {
        let close = (got - expected).abs() <= bound * size || (got.is_nan() && expected.is_nan());
        assert!(close, "{case}: {got}, expected {expected}");
    }
}

/// The norms of candle and ours, of the same parameters.
fn norms(weight: &Tensor, bias: &Tensor) -> Vec<(candle_nn::LayerNorm, nn::LayerNorm)> {
    let (w, b, eps) = (|| weight.clone(), || bias.clone(), 1e-5);
    vec![
        (candle_nn::LayerNorm::new(w(), b(), eps), nn::LayerNorm::new(w(), b(), eps)),
        (candle_nn::LayerNorm::new_no_bias(w(), eps), nn::LayerNorm::new_no_bias(w(), eps)),
        (candle_nn::LayerNorm::rms_norm(w(), eps), nn::LayerNorm::rms_norm(w(), eps)),
    ]
}

#[test]
fn norms_are_candle_s_in_every_dtype_and_layout() -> Result<()> {
    for shape in [&[7][..], &[3, 1], &[2, 31], &[2, 3, 32], &[3, 2, 2, 65], &[40, 300]] {
        let hidden = shape[shape.len() - 1];
        let (weight, bias) = (tensor(&[hidden], 2)?, tensor(&[hidden], 3)?);
        for (dtype, bound) in DTYPES {
            let cast = |t: &Tensor| t.to_dtype(dtype)?.to_dtype(DType::F64);
            let exact = norms(&cast(&weight)?, &cast(&bias)?);
            let typed = norms(&weight.to_dtype(dtype)?, &bias.to_dtype(dtype)?);
            for xs in layouts(&tensor(shape, 1)?.to_dtype(dtype)?)? {
                for ((exact, _), (candle, ours)) in exact.iter().zip(&typed) {
                    let case = format!("{shape:?} {:?} {dtype:?} {ours:?}", xs.stride());
                    let ys = ours.forward(&xs)?;
                    assert_eq!(ys.dtype(), dtype, "{case}");
                    // candle has no kernel for f64.
                    let wide = xs.to_dtype(DType::F64)?;
                    let expected = match exact.bias() {
                        None => exact.forward(&wide)?,
                        Some(b) => candle_nn::ops::layer_norm_slow(&wide, exact.weight(), b, 1e-5)?,
                    };
                    assert_close(&case, &ys, &expected, bound);
                    if let Ok(candle) = candle.forward(&xs) {
                        assert_close(&case, &ys, &candle, bound);
                    } else {
                        assert_eq!(dtype, DType::F64, "{case}");
                    }
                }
                let rms = nn::RmsNorm::new(weight.to_dtype(dtype)?, 1e-5);
                let same = rms.clone().into_inner().forward(&xs)?;
                assert_eq!(f64s(&rms.forward(&xs)?)?, f64s(&same)?);
                assert_eq!(f64s(&rms.forward_diff(&xs)?)?, f64s(&same)?);
            }
        }
    }
    Ok(())
}

#[test]
fn a_norm_of_a_sum_is_the_norm_of_it() -> Result<()> {
    let (weight, bias) = (tensor(&[32], 2)?, tensor(&[32], 3)?);
    for (dtype, bound) in DTYPES {
        let typed = norms(&weight.to_dtype(dtype)?, &bias.to_dtype(dtype)?);
        let [xs, ys] = [1, 5].map(|seed| tensor(&[2, 3, 32], seed)?.to_dtype(dtype));
        let (xs, ys) = (xs?, ys?);
        // The sum in the dtype of the operands rounds once more than the sum inside.
        let exact = (xs.to_dtype(DType::F64)? + ys.to_dtype(DType::F64)?)?;
        let weight = weight.to_dtype(dtype)?.to_dtype(DType::F64)?;
        let wide = norms(&weight, &bias.to_dtype(DType::F64)?);
        for (((_, ours), (_, wide)), xs) in typed.iter().zip(&wide).zip(layouts(&xs)?) {
            let case = format!("{dtype:?} {ours:?}");
            let got = ours.forward_add(&xs, &ys)?;
            assert_eq!(got.dtype(), dtype, "{case}");
            assert_close(&case, &got, &wide.forward(&exact)?, 4. * bound);
        }
    }
    let [xs, ys] = [tensor(&[2, 3, 32], 1)?, tensor(&[1, 3, 32], 5)?];
    for (_, ours) in norms(&weight, &bias) {
        // Shapes that broadcast, in either order.
        let expected = ours.forward(&xs.broadcast_add(&ys)?)?;
        assert_eq!(f64s(&ours.forward_add(&xs, &ys)?)?, f64s(&expected)?);
        assert_eq!(f64s(&ours.forward_add(&ys, &xs)?)?, f64s(&expected)?);
        assert!(ours.forward_add(&xs, &tensor(&[2, 2, 32], 5)?).is_err());
    }
    // Parameters that broadcast, as in candle's slow path.
    let odd = nn::LayerNorm::new_no_bias(tensor(&[3, 32], 2)?, 1e-5);
    let expected = odd.forward(&(&xs + &xs)?)?;
    assert_eq!(f64s(&odd.forward_add(&xs, &xs)?)?, f64s(&expected)?);
    // Gradients flow to both terms.
    let [a, b] = [Var::from_tensor(&xs)?, Var::from_tensor(&xs)?];
    let norm = nn::LayerNorm::new(weight, bias, 1e-5);
    let grads = norm.forward_add(&a, &b)?.sqr()?.sum_all()?.backward()?;
    assert!(grads.get(&a).is_some() && grads.get(&b).is_some());
    Ok(())
}

#[test]
fn an_rms_norm_of_a_sum_has_the_bits_of_both_steps() -> Result<()> {
    let bits = |xs: &Tensor| -> Result<Vec<u64>> {
        let values = f64s(xs)?;
        Ok(values.into_iter().map(f64::to_bits).collect())
    };
    for (dtype, _) in DTYPES {
        for hidden in [1, 31, 576] {
            let shape = [2, 3, hidden];
            let [xs, ys] = [1, 5].map(|seed| tensor(&shape, seed)?.to_dtype(dtype));
            let (xs, ys, weight) = (xs?, ys?, tensor(&[hidden], 2)?.to_dtype(dtype)?);
            let norm = nn::RmsNorm::new(weight.clone(), 1e-5);
            let expected = [norm.forward(&(&xs + &ys)?)?, (&xs + &ys)?];
            for xs in layouts(&xs)? {
                let of_layer = norm.forward_add(&xs, &ys)?;
                let of_function = ops::add_rms_norm(&xs, &ys, &weight, 1e-5)?;
                for (got, sum) in [of_layer, of_function] {
                    for (got, expected) in [got, sum].iter().zip(&expected) {
                        let case = format!("{dtype:?} {:?}", xs.layout());
                        assert_eq!((got.dtype(), got.dims()), (dtype, &shape[..]), "{case}");
                        assert_eq!(bits(got)?, bits(expected)?, "{case}");
                    }
                }
            }
        }
    }
    let [xs, ys] = [tensor(&[2, 3, 32], 1)?, tensor(&[1, 3, 32], 5)?];
    let norm = nn::RmsNorm::new(tensor(&[32], 2)?, 1e-5);
    let sum = xs.broadcast_add(&ys)?;
    for (got, of) in [norm.forward_add(&xs, &ys)?, norm.forward_add(&ys, &xs)?] {
        assert_eq!(bits(&of)?, bits(&sum)?);
        assert_eq!(bits(&got)?, bits(&norm.forward(&sum)?)?);
    }
    assert_fails(norm.forward_add(&xs, &tensor(&[2, 2, 32], 5)?), &["[2, 2, 32]"]);
    // A single factor, which candle's layer accepts.
    let one = nn::RmsNorm::new(tensor(&[1], 2)?, 1e-5);
    let (got, of) = one.forward_add(&xs, &xs)?;
    assert_eq!(bits(&of)?, bits(&(&xs + &xs)?)?);
    assert_eq!(bits(&got)?, bits(&one.forward(&of)?)?);
    // Gradients flow to both terms, from the norm and from the sum.
    let [a, b] = [Var::from_tensor(&xs)?, Var::from_tensor(&xs)?];
    let (got, of) = norm.forward_add(&a, &b)?;
    for output in [got, of] {
        let grads = output.sqr()?.sum_all()?.backward()?;
        assert!(grads.get(&a).is_some() && grads.get(&b).is_some());
    }
    Ok(())
}

#[test]
fn norms_of_nothing_and_of_other_shapes() -> Result<()> {
    for shape in [&[0, 4][..], &[3, 0], &[2, 0, 4]] {
        let hidden = shape[shape.len() - 1];
        let ones = ones(&[hidden]);
        for (_, ours) in norms(&ones, &ones) {
            assert_eq!(ours.forward(&tensor(shape, 1)?)?.dims(), shape);
        }
    }
    let xs = tensor(&[2, 3, 4], 1)?;
    // candle's slow way broadcasts.
    for weight in [tensor(&[1], 2)?, tensor(&[3, 4], 2)?] {
        let candle = candle_nn::LayerNorm::new_no_bias(weight.clone(), 1e-5).forward(&xs)?;
        let ours = nn::LayerNorm::new_no_bias(weight, 1e-5).forward(&xs)?;
        assert_eq!(f64s(&ours)?, f64s(&candle)?);
    }
    let long = tensor(&[5], 2)?;
    for (candle, ours) in norms(&long, &long) {
        assert!(candle.forward(&xs).is_err() && ours.forward(&xs).is_err());
        assert!(ours.forward(&xs.sum_all()?).is_err(), "rank 0");
    }
    let ids = xs.to_dtype(DType::U32)?;
    assert_fails(nn::RmsNorm::new(ones(&[4]), 1e-5).forward(&ids), &["rms_norm", "U32"]);
    Ok(())
}

#[test]
fn norms_load_candle_s_keys_and_name_themselves() -> Result<()> {
    for names in [["weight", "bias"], ["gamma", "beta"]] {
        let named = |i: usize| Ok((format!("norm.{}", names[i]), tensor(&[4], i as u64)?));
        let vb = weights([0, 1].into_iter().map(named).collect::<Result<Vec<_>>>()?);
        let candle = candle_nn::layer_norm(4, 1e-12, vb.pp("norm"))?;
        let ours = nn::layer_norm(4, 1e-12, vb.pp("norm"))?;
        assert_eq!(f64s(ours.weight())?, f64s(candle.weight())?);
        assert_eq!(f64s(ours.bias().expect("a bias"))?, f64s(candle.bias().expect("a bias"))?);
        assert_eq!((ours.eps(), ours.remove_mean()), (1e-12, true));
        let no_bias = nn::layer_norm_no_bias(4, 1e-6, vb.pp("norm"))?;
        assert_eq!((no_bias.bias().is_none(), no_bias.eps()), (true, 1e-6));
        let rms = nn::rms_norm(4, 1e-6, vb.pp("norm"))?;
        assert_eq!((rms.eps(), f64s(rms.weight())?), (1e-6, f64s(candle.weight())?));
        assert!(!rms.clone().into_inner().remove_mean());
        assert_fails(rms.forward(&Tensor::ones((2, 4), DType::U8, CPU)?), &["norm: "]);
        assert!(nn::layer_norm(5, 1e-5, vb.pp("norm")).is_err(), "another size");
        assert!(nn::layer_norm(4, 1e-5, vb.pp("other")).is_err(), "missing");
    }
    let config = LayerNormConfig { eps: 0.5, remove_mean: false, affine: false };
    let ours = nn::layer_norm(4, config, variables())?;
    assert_eq!((ours.eps(), ours.remove_mean(), ours.bias().is_some()), (0.5, false, false));
    assert_eq!(f64s(ours.weight())?, [1.; 4], "new parameters");
    assert!(nn::layer_norm(1 << 62, 1e-5, VarBuilder::zeros(DType::F32, CPU)).is_err());
    Ok(())
}

/// Gradients of `sum(f(xs)^2)` by the variables.
fn gradients(ys: &Tensor, by: &[&Var]) -> Result<Vec<Tensor>> {
    let gradients = ys.sqr()?.sum_all()?.backward()?;
    let of = |var: &&Var| gradients.get(var).expect("a gradient").clone();
    Ok(by.iter().map(of).collect())
}

#[test]
fn gradients_are_those_of_candle_s_operations() -> Result<()> {
    let xs = Var::from_tensor(&tensor(&[3, 2, 6], 1)?)?;
    let (weight, bias) =
        (Var::from_tensor(&tensor(&[6], 2)?)?, Var::from_tensor(&tensor(&[6], 3)?)?);
    let compare = |case: &str, ours: Tensor, candle: Tensor, by: &[&Var]| -> Result<()> {
        for (ours, candle) in gradients(&ours, by)?.iter().zip(&gradients(&candle, by)?) {
            assert_close(case, ours, candle, 1e-5);
        }
        Ok(())
    };
    let layer = nn::LayerNorm::new(weight.as_tensor().clone(), bias.as_tensor().clone(), 1e-5);
    let slow = candle_nn::ops::layer_norm_slow(&xs, &weight, &bias, 1e-5)?;
    compare("layer norm", layer.forward(&xs)?, slow, &[&xs, &weight, &bias])?;
    let layer = nn::RmsNorm::new(weight.as_tensor().clone(), 1e-5);
    let slow = candle_nn::ops::rms_norm_slow(&xs, &weight, 1e-5)?;
    compare("rms norm", layer.forward(&xs)?, slow, &[&xs, &weight])?;
    for dim in 0..3 {
        let candle = candle_nn::ops::softmax(&xs, dim)?;
        compare("softmax", ops::softmax(&xs, dim)?, candle, &[&xs])?;
    }
    let indexes = Tensor::new(&[[[2u32], [0]]], CPU)?.expand((3, 2, 1))?;
    let candle = xs.gather(&indexes.contiguous()?, 2)?;
    compare("gather", ops::gather(&xs, &indexes, 2)?, candle, &[&xs])?;
    for act in activations() {
        let candle = candle_nn::Activation::from(act).forward(&xs)?;
        compare(&format!("{act:?}"), act.forward(&xs)?, candle, &[&xs])?;
    }
    Ok(())
}

#[test]
fn elements_are_looked_up_as_candle_does() -> Result<()> {
    let types = [DType::F32, DType::F16, DType::F64, DType::I64];
    for shape in [&[5][..], &[3, 7], &[2, 3, 8], &[2, 90, 400]] {
        for xs in types.map(|dtype| (tensor(shape, 1)? * 9.)?.to_dtype(dtype)) {
            let xs = xs?;
            for (dim, &size) in shape.iter().enumerate() {
                let mut dims = shape.to_vec();
                dims[dim] = 2 * size + 1;
                let values = (0..dims.iter().product()).map(|i| (i * 7 % size.min(200)) as u32);
                let all = Tensor::from_iter(values, CPU)?.reshape(dims)?;
                for dtype in [DType::U8, DType::U32, DType::I64] {
                    let mut views = layouts(&all.to_dtype(dtype)?)?;
                    let first = views[0].narrow(0, 0, 1)?;
                    views.push(first.expand(views[0].dims())?);
                    for indexes in views {
                        let candle = xs.gather(&indexes.contiguous()?, dim)?;
                        for xs in layouts(&xs)? {
                            let ys = ops::gather(&xs, &indexes, dim)?;
                            let case = format!("{shape:?} {dim} {:?} {dtype:?}", xs.dtype());
                            assert_eq!(ys.dtype(), xs.dtype(), "{case}");
                            assert_close(&case, &ys, &candle, 0.);
                        }
                    }
                }
            }
        }
    }
    let xs = tensor(&[2, 3], 1)?;
    // As by candle, or with its error.
    let looked_up = |indexes: &Tensor| match (ops::gather(&xs, indexes, 1), xs.gather(indexes, 1)) {
        (Ok(ours), Ok(candle)) => {
            assert_close("an index", &ours, &candle, 0.);
            true
        }
        results => {
            let [ours, candle] = [results.0, results.1].map(|ys| ys.unwrap_err().to_string());
            assert_eq!(ours.lines().next(), candle.lines().next());
            false
        }
    };
    // candle's index of nothing, which gives 0.
    assert!(looked_up(&Tensor::new(&[[0, u32::MAX], [2, 1]], CPU)?));
    assert!(looked_up(&Tensor::new(&[[0u32, 2]], CPU)?), "fewer rows");
    assert!(!looked_up(&Tensor::new(&[[0u32, 3], [2, 1]], CPU)?), "too large");
    assert!(!looked_up(&Tensor::new(&[[0i64, -1], [2, 1]], CPU)?), "negative");
    let too_large = Tensor::new(&[[0u32, 3], [3, 1]], CPU)?;
    assert!(ops::gather(&xs, &too_large, 1).is_err(), "in every row");
    assert!(!looked_up(&Tensor::new(&[0u32], CPU)?), "another rank");
    assert!(!looked_up(&Tensor::new(&[[0f32], [1.]], CPU)?), "no index");
    assert!(ops::gather(&xs, &xs, 2).is_err(), "no such dimension");
    for shape in [&[xs.dim(0)? + 1, 0][..], &[0]] {
        let none = Tensor::zeros(shape, DType::U32, CPU)?;
        assert!(ops::gather(&xs, &none, 1).is_err(), "{shape:?}");
    }
    Ok(())
}

fn activations() -> Vec<nn::Activation> {
    use nn::Activation::*;
    let smooth = [Gelu, NewGelu, GeluPytorchTanh, Silu, Sigmoid, Swiglu, Swish, Mish];
    let pieces = [Relu, Relu2, Relu6, HardSigmoid, HardSwish, Elu(0.7), LeakyRelu(0.1)];
    [&smooth[..], &pieces].concat()
}

#[test]
fn activations_are_candle_s() -> Result<()> {
    for act in activations() {
        let candle = candle_nn::Activation::from(act);
        assert_eq!(nn::Activation::from(candle), act);
        assert_eq!(format!("{act:?}"), format!("{candle:?}"));
        let [ours, theirs] = [serde_json::to_string(&act), serde_json::to_string(&candle)];
        assert_eq!(ours.unwrap(), theirs.unwrap());
        for shape in [&[2][..], &[3, 34], &[2, 3, 8]] {
            for (dtype, bound) in DTYPES {
                let all = tensor(shape, 1)?.to_dtype(dtype)?;
                for xs in layouts(&all)? {
                    let ys = act.forward(&xs)?;
                    assert_eq!(ys.dtype(), dtype);
                    let case = format!("{act:?} {shape:?} {dtype:?}");
                    assert_close(&case, &ys, &candle.forward(&xs)?, bound);
                }
            }
        }
    }
    for word in "gelu gelu_new newgelu relu relu2 silu swish gelu_pytorch_tanh".split(' ') {
        let [text, unknown] = [format!("{word:?}"), format!("{:?}", word.to_uppercase())];
        let ours: nn::Activation = serde_json::from_str(&text).expect(word);
        let candle: candle_nn::Activation = serde_json::from_str(&text).expect(word);
        assert_eq!(ours, candle.into());
        assert!(serde_json::from_str::<nn::Activation>(&unknown).is_err());
    }
    assert_eq!(nn::Activation::default(), nn::Activation::Gelu);
    Ok(())
}

#[test]
fn functions_are_candle_s_in_every_dimension() -> Result<()> {
    for shape in [&[5][..], &[4, 33], &[2, 3, 6], &[2, 1, 3, 4]] {
        for (dtype, bound) in DTYPES {
            for xs in layouts(&tensor(shape, 1)?.to_dtype(dtype)?)? {
                for dim in 0..shape.len() {
                    let case = format!("{shape:?} {:?} {dtype:?} {dim}", xs.stride());
                    let candle = candle_nn::ops::softmax(&xs, dim)?;
                    assert_close(&case, &ops::softmax(&xs, dim)?, &candle, bound);
                }
            }
        }
    }
    let xs = tensor(&[3, 8], 1)?;
    assert_close("silu", &ops::silu(&xs)?, &candle_nn::ops::silu(&xs)?, 1e-6);
    assert_close("swiglu", &ops::swiglu(&xs)?, &candle_nn::ops::swiglu(&xs)?, 1e-6);
    let (gates, factors) = (xs.narrow(1, 0, 4)?, xs.narrow(1, 4, 4)?);
    let ys = ops::activate_mul(&gates, &factors, FusedActivation::Silu)?;
    assert_close("activate_mul", &ys, &ops::swiglu(&xs)?, 0.);
    let mixed = ops::activate_mul(&xs, &factors, FusedActivation::Silu);
    assert_fails(mixed, &["expected [3, 8], got [3, 4]"]);
    let error = ops::activate_mul(&gates, &factors.to_dtype(DType::F16)?, FusedActivation::Silu);
    assert!(error.unwrap_err().to_string().contains("expected F32, got F16"));
    assert_close("gelu_erf", &ops::gelu_erf(&xs)?, &xs.gelu_erf()?, 1e-6);
    // candle's arguments: references and f32.
    let (weight, bias) = (tensor(&[8], 2)?, tensor(&[8], 3)?);
    let candle = candle_nn::ops::layer_norm(&xs, &weight, &bias, 1e-5f32)?;
    assert_close("layer norm", &ops::layer_norm(&xs, &weight, &bias, 1e-5f32)?, &candle, 1e-6);
    let candle = candle_nn::ops::rms_norm(&xs, &weight, 1e-5f32)?;
    assert_close("rms norm", &ops::rms_norm(&xs, &weight, 1e-5f32)?, &candle, 1e-6);
    assert_eq!(ops::softmax(&tensor(&[2, 0, 3], 1)?, 1)?.dims(), [2, 0, 3]);
    assert!(ops::softmax(&xs, 2).is_err(), "no such dimension");
    assert!(ops::softmax(&xs.to_dtype(DType::I64)?, 0).is_err(), "no float");
    for odd in [tensor(&[2, 3], 1)?, xs.sum_all()?] {
        assert!(ops::swiglu(&odd).unwrap_err().to_string().contains("[.., 2 n]"));
    }
    Ok(())
}

#[test]
fn rotary_embeddings_are_candle_s_bit_for_bit() -> Result<()> {
    let xs = tensor(&[2, 6, 5, 14], 1)?;
    // Too many positions, and positions per sequence.
    for shape in [&[9, 7][..], &[2, 6, 7]] {
        let (cos, sin) = (tensor(shape, 2)?, tensor(shape, 3)?);
        let bits = |ys: Tensor| ys.flatten_all()?.to_vec1::<f32>();
        let candle = candle_nn::rotary_emb::rope_thd(&xs, &cos, &sin)?;
        assert_eq!(bits(ops::rope_thd(&xs, &cos, &sin)?)?, bits(candle.clone())?);
        // A view whose heads are not side by side.
        let heads = xs.transpose(1, 2)?;
        let ys = ops::rope(&heads, &cos, &sin)?;
        assert_eq!(bits(ys.transpose(1, 2)?.contiguous()?)?, bits(candle)?);
    }
    let (cos, sin) = (tensor(&[6, 7], 2)?, tensor(&[6, 7], 3)?);
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let [xs, cos, sin] = [&xs, &cos, &sin].map(|it| it.to_dtype(dtype));
        let (xs, cos, sin) = (xs?, cos?, sin?);
        let candle = candle_nn::rotary_emb::rope_thd(&xs, &cos, &sin)?;
        let bound = if dtype == DType::F64 { 0. } else { 2e-2 };
        assert_close("rope_thd", &ops::rope_thd(&xs, &cos, &sin)?, &candle, bound);
    }
    for (cos, sin) in [
        (tensor(&[5, 7], 2)?, sin.clone()),
        (cos.clone(), tensor(&[6, 6], 2)?),
        (cos.clone(), tensor(&[9, 7], 2)?),
        (tensor(&[6, 6], 2)?, tensor(&[6, 6], 3)?),
        (cos.flatten_all()?, sin.flatten_all()?),
        (cos.unsqueeze(0)?, sin.unsqueeze(0)?),
    ] {
        assert_fails(ops::rope_thd(&xs, &cos, &sin), &["shape mismatch in rope_thd: expected ["]);
    }
    let odd = xs.narrow(3, 0, 13)?;
    let halves = tensor(&[6, 6], 2)?;
    assert!(ops::rope_thd(&odd, &halves, &halves).is_err(), "no pairs");
    let none = zeros(&[0, 1 << 20, 1 << 20, 14]);
    assert!(ops::rope(&none, &cos, &sin).is_err(), "not 2^20 positions");
    Ok(())
}

#[test]
fn sequential_is_candle_s_and_is_walked() -> Result<()> {
    let weight = tensor(&[4, 4], 1)?;
    let offset = tensor(&[4], 2)?;
    let captured = offset.clone();
    let mut ours = nn::seq()
        .add(nn::Linear::new(weight.clone(), None))
        .add(candle_nn::Activation::Relu)
        .add_fn(|xs| xs * 2.)
        .add_fn(move |xs| xs.broadcast_add(&captured))
        .add(nn::seq().add(nn::Linear::new(weight.clone(), None)));
    let candle = candle_nn::seq()
        .add(candle_nn::Linear::new(weight.clone(), None))
        .add(candle_nn::Activation::Relu)
        .add_fn(|xs| xs * 2.)
        .add_fn(move |xs| xs.broadcast_add(&offset))
        .add(candle_nn::Linear::new(weight, None));
    assert_eq!((ours.len(), ours.is_empty(), nn::seq().is_empty()), (5, false, true));
    let xs = tensor(&[3, 4], 3)?;
    assert_close("forward", &ours.forward(&xs)?, &candle.forward(&xs)?, 1e-6);
    for (ours, candle) in ours.forward_all(&xs)?.iter().zip(&candle.forward_all(&xs)?) {
        assert_close("forward_all", ours, candle, 1e-6);
    }
    assert_close("nothing", &nn::seq().forward(&xs)?, &xs, 0.);
    // A closure may hold a layer if it captures anything.
    let closure = "3 ? drop_in::sequential_is_candle_s_and_is_walked::{{closure}}";
    assert_walks("seq", &mut ours, "0: Linear, 4.0: Linear", &[closure]);
    Ok(())
}

#[test]
fn embeddings_by_with_tracing_s_name() -> Result<()> {
    let table = tensor(&[5, 3], 1)?;
    let layer = nn::Embedding::from_weights(table.clone())?;
    let ids = Tensor::new(&[4u32, 0], CPU)?;
    let candle = candle_nn::Embedding::new(table, 3);
    assert_close("from_weights", &layer.forward(&ids)?, &candle.forward(&ids)?, 0.);
    assert_fails(nn::Embedding::from_weights(tensor(&[5], 1)?), &["[rows, hidden_size]", "[5]"]);
    Ok(())
}
