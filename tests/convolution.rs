//! Convolutions: candle's but for rounding in float, near them in int8, and the same bits wherever a
//! window stands.

mod common;

use std::collections::HashMap;

use candle_core::{ModuleT, Result};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};
use common::*;

type TestResult = std::result::Result<(), Box<dyn std::error::Error>>;

fn signals(padding: usize, stride: usize, dilation: usize) -> Conv1dConfig {
    Conv1dConfig { padding, stride, dilation, ..Default::default() }
}

fn images(padding: usize, stride: usize, dilation: usize) -> Conv2dConfig {
    Conv2dConfig { padding, stride, dilation, ..Default::default() }
}

/// Layers of both kinds, with an input of each.
fn layers() -> Result<Vec<(nn::Conv1d, Tensor)>> {
    let case = |[batch, from, to, taps, length]: [usize; 5], config| {
        let weight = (tensor(&[to, from, taps], 1)? * 0.1)?;
        let layer = nn::Conv1d::new(weight, Some(tensor(&[to], 2)?), config);
        Ok((layer, tensor(&[batch, from, length], 3)?))
    };
    [
        case([1, 16, 20, 3, 40], signals(1, 1, 1)),
        case([2, 64, 64, 7, 90], signals(3, 1, 1)),
        case([3, 40, 33, 4, 31], signals(2, 2, 1)),
        case([2, 24, 70, 5, 64], signals(0, 3, 2)),
        case([1, 128, 5, 1, 17], signals(0, 1, 1)),
    ]
    .into_iter()
    .collect()
}

fn int8<L: Layer>(layer: &L) -> candle_dynquant::Result<L> {
    layer.quantize(&QConfig::int8())
}

fn grouped(groups: usize, stride: usize) -> Conv2dConfig {
    Conv2dConfig { groups, ..images(1, stride, 1) }
}

#[test]
fn float_layers_are_candles_but_for_rounding() -> TestResult {
    for (layer, xs) in layers()? {
        let (weight, bias) = (layer.weight().clone(), layer.bias().cloned());
        let candle = candle_nn::Conv1d::new(weight, bias, *layer.config());
        assert_near(&candle.forward(&xs)?, &layer.forward(&xs)?, 120.);
        let strided = xs.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        assert_eq!(bits(&layer.forward(&strided)?), bits(&layer.forward(&xs)?));
        assert_eq!(layer.forward(&xs.to_dtype(DType::BF16)?)?.dtype(), DType::BF16);
    }
    for (weight, groups, stride) in
        [([12, 2, 3, 3], 4, 2), ([8, 1, 3, 2], 8, 1), ([60, 8, 3, 3], 1, 1)]
    {
        let bias = tensor(&weight[..1], 5)?;
        let config = grouped(groups, stride);
        let candle = candle_nn::Conv2d::new(tensor(&weight, 4)?, Some(bias), config);
        let xs = tensor(&[2, 8, 9, 11], 6)?;
        let layer = nn::Conv2d::from(candle.clone()).with_activation(FusedActivation::Relu);
        assert_near(&candle.forward(&xs)?.relu()?, &layer.forward(&xs)?, 120.);
    }
    // Gradients flow through candle's operations.
    let weight = Var::from_tensor(&tensor(&[12, 8, 3], 1)?)?;
    let layer = nn::Conv1d::new(weight.as_tensor().clone(), None, signals(1, 1, 1));
    let gradients = layer.forward(&tensor(&[1, 8, 20], 2)?)?.sqr()?.sum_all()?.backward()?;
    assert!(gradients.get(&weight).is_some());
    Ok(())
}

/// A residual is added before the activation function, whatever computes the convolution.
#[test]
fn residuals_are_added_before_the_activation_function() -> TestResult {
    let weight = tensor(&[36, 32, 3], 1)?;
    let tracked = Var::from_tensor(&weight)?;
    let float = nn::Conv1d::new(weight.clone(), Some(tensor(&[36], 2)?), signals(1, 1, 1));
    let by_candle = nn::Conv1d::new(tracked.as_tensor().clone(), None, signals(1, 1, 1));
    let xs = tensor(&[2, 32, 50], 3)?;
    let residual = tensor(&[2, 50, 36], 4)?.transpose(1, 2)?;
    for layer in [int8(&float)?, float, by_candle] {
        let expected = (layer.forward(&xs)? + &residual)?;
        let got = layer.forward_add(&xs, &residual)?;
        assert_near(&expected, &got, 120.);
        let layer = layer.with_activation(FusedActivation::Relu);
        assert_eq!(bits(&layer.forward_add(&xs, &residual)?), bits(&got.relu()?));
        let half = xs.to_dtype(DType::F16)?;
        assert_eq!(layer.forward_add(&half, &residual)?.dtype(), DType::F16);
        let wrong = layer.forward_add(&xs, &residual.narrow(2, 0, 49)?);
        assert_fails(wrong, &["residual: expected [2, 36, 50]"]);
    }
    let tracked = Var::from_tensor(&residual.contiguous()?)?;
    let quantized = int8(&nn::Conv1d::new(weight, None, signals(1, 1, 1)))?;
    let ys = quantized.forward_add(&xs, tracked.as_tensor())?;
    assert!(ys.sum_all()?.backward().is_err(), "a gradient in silence");
    let weight = tensor(&[32, 36, 4], 1)?;
    let float = nn::ConvTranspose1d::new(weight, None, ConvTranspose1dConfig::default());
    let residual = tensor(&[2, 36, 53], 4)?;
    for layer in [int8(&float)?, float] {
        let got = layer.forward_add(&xs, &residual)?;
        assert_near(&(layer.forward(&xs)? + &residual)?, &got, 120.);
        let layer = layer.with_activation(FusedActivation::Relu);
        assert_eq!(bits(&layer.forward_add(&xs, &residual)?), bits(&got.relu()?));
    }
    Ok(())
}

#[test]
fn groups_are_convolutions_of_their_channels() -> TestResult {
    let (weight, bias) = (tensor(&[48, 20, 3, 3], 1)?, tensor(&[48], 2)?);
    let xs = tensor(&[2, 40, 9, 8], 3)?;
    let layer = nn::Conv2d::new(weight.clone(), Some(bias.clone()), grouped(2, 2));
    let quantized = int8(&layer)?;
    let ys = quantized.forward(&xs)?;
    let alone = (0..2).map(|group| {
        let (weight, bias) = (weight.narrow(0, group * 24, 24)?, bias.narrow(0, group * 24, 24)?);
        let of_group = int8(&nn::Conv2d::new(weight, Some(bias), images(1, 2, 1)))?;
        Ok(of_group.forward(&xs.narrow(1, group * 20, 20)?)?)
    });
    let alone = Tensor::cat(&alone.collect::<candle_dynquant::Result<Vec<_>>>()?, 1)?;
    assert_eq!(bits(&ys), bits(&alone));
    assert_near(&layer.forward(&xs)?, &ys, 35.);
    assert_near(&weight, quantized.weight(), 40.);
    let config = ConvTranspose1dConfig { padding: 1, stride: 2, groups: 2, ..Default::default() };
    let (weight, bias) = (tensor(&[32, 24, 4], 1)?, tensor(&[48], 2)?);
    let candle = candle_nn::ConvTranspose1d::new(weight.clone(), Some(bias), config);
    let layer = nn::ConvTranspose1d::from(candle.clone());
    let xs = tensor(&[1, 32, 10], 3)?;
    let float = layer.forward(&xs)?;
    assert_near(&candle.forward(&xs)?, &float, 120.);
    let quantized = int8(&layer)?;
    assert_near(&float, &quantized.forward(&xs)?, 35.);
    assert_near(&weight, quantized.weight(), 40.);
    Ok(())
}

#[test]
fn int8_layers_are_near_float_ones() -> TestResult {
    for (layer, xs) in layers()? {
        let float = layer.forward(&xs)?;
        let quantized = int8(&layer)?;
        let ys = quantized.forward(&xs)?;
        assert_near(&float, &ys, 35.);
        assert_near(layer.weight(), quantized.weight(), 40.);
        for dtype in [DType::F16, DType::BF16, DType::F64] {
            let halves = quantized.forward(&xs.to_dtype(dtype)?)?;
            assert_eq!(halves.dtype(), dtype);
            assert_near(&float, &halves.to_dtype(DType::F32)?, 33.);
        }
        let strided = xs.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        assert_eq!(bits(&quantized.forward(&strided)?), bits(&ys));
        let relu = layer.with_activation(FusedActivation::Relu);
        assert_eq!(bits(&int8(&relu)?.forward(&xs)?), bits(&ys.relu()?));
    }
    for ([height, width], config) in [
        ([3, 3], images(1, 1, 1)),
        ([2, 5], images(2, 2, 1)),
        ([3, 1], images(0, 1, 3)),
        ([1, 1], images(0, 2, 1)),
    ] {
        let weight = (tensor(&[33, 20, height, width], 7)? * 0.1)?;
        let layer = nn::Conv2d::new(weight, Some(tensor(&[33], 8)?), config);
        let xs = tensor(&[2, 20, 12, 15], 9)?;
        assert_near(&layer.forward(&xs)?, &int8(&layer)?.forward(&xs)?, 38.);
    }
    Ok(())
}

/// Input channels, output channels, taps, length and configuration.
fn transposed() -> Result<Vec<(nn::ConvTranspose1d, Tensor)>> {
    let case = |[from, to, taps, length]: [usize; 4], numbers: [usize; 4]| {
        let [padding, output_padding, stride, dilation] = numbers;
        let config = ConvTranspose1dConfig { padding, output_padding, stride, dilation, groups: 1 };
        let weight = (tensor(&[from, to, taps], 1)? * 0.1)?;
        let layer = nn::ConvTranspose1d::new(weight, Some(tensor(&[to], 2)?), config);
        Ok((layer, tensor(&[2, from, length], 3)?))
    };
    [
        case([32, 24, 8, 30], [2, 0, 4, 1]),
        case([16, 5, 3, 40], [0, 1, 2, 1]),
        case([40, 33, 4, 17], [3, 0, 1, 2]),
        case([20, 7, 2, 9], [0, 2, 5, 1]),
        case([64, 64, 1, 7], [0, 0, 3, 1]),
    ]
    .into_iter()
    .collect()
}

#[test]
fn transposed_layers_are_candles_or_near_them_in_int8() -> TestResult {
    for (layer, xs) in transposed()? {
        let (weight, bias) = (layer.weight().clone(), layer.bias().cloned());
        let candle = candle_nn::ConvTranspose1d::new(weight, bias, *layer.config());
        // Of a batch, candle's is wrong without padding.
        let samples = (0..2).map(|i| candle.forward(&xs.narrow(0, i, 1)?));
        let float = Tensor::cat(&samples.collect::<Result<Vec<_>>>()?, 0)?;
        assert_near(&float, &layer.forward(&xs)?, 120.);
        let quantized = int8(&layer)?;
        let ys = quantized.forward(&xs)?;
        assert_near(&float, &ys, 35.);
        assert_near(layer.weight(), quantized.weight(), 40.);
        let alone = quantized.forward(&xs.narrow(0, 1, 1)?)?;
        assert_eq!(bits(&alone), bits(&ys.narrow(0, 1, 1)?));
        let relu = layer.with_activation(FusedActivation::Relu);
        assert_eq!(bits(&int8(&relu)?.forward(&xs)?), bits(&ys.relu()?));
    }
    Ok(())
}

/// Outputs are the same in a batch, in a longer signal, and in chunks that keep what is read again.
#[test]
fn an_output_depends_on_its_window_only() -> TestResult {
    let weight = tensor(&[40, 32, 5], 1)?;
    let layer = int8(&nn::Conv1d::new(weight, None, signals(0, 2, 2)))?;
    let xs = tensor(&[3, 32, 101], 2)?;
    let all = layer.forward(&xs)?;
    let alone = layer.forward(&xs.narrow(0, 1, 1)?)?;
    assert_eq!(bits(&alone), bits(&all.narrow(0, 1, 1)?));
    let part = layer.forward(&xs.narrow(2, 20, 41)?)?;
    assert_eq!(bits(&part), bits(&all.narrow(2, 10, part.dims()[2])?));
    let mut chunks = Vec::new();
    for first in (0..=92).step_by(4) {
        // Two outputs a chunk: eight positions of the chunk before are kept.
        let length = 11.min(101 - first);
        chunks.push(layer.forward(&xs.narrow(2, first, length)?)?);
    }
    let streamed = Tensor::cat(&chunks, 2)?.narrow(2, 0, all.dims()[2])?;
    assert_eq!(bits(&streamed), bits(&all));
    Ok(())
}

#[test]
fn padding_and_poison_touch_their_windows_only() -> TestResult {
    let layer = int8(&nn::Conv1d::new(tensor(&[8, 16, 3], 1)?, None, signals(1, 1, 1)))?;
    let xs = tensor(&[1, 16, 20], 2)?;
    let clean = layer.forward(&xs)?.to_vec3::<f32>()?;
    let mut poisoned = xs.flatten_all()?.to_vec1::<f32>()?;
    poisoned[3 * 20 + 10] = f32::NAN;
    let poisoned = layer.forward(&Tensor::from_vec(poisoned, (1, 16, 20), CPU)?)?;
    for (before, after) in clean[0].iter().zip(&poisoned.to_vec3::<f32>()?[0]) {
        for (i, (before, after)) in before.iter().zip(after).enumerate() {
            match i {
                9..=11 => assert!(after.is_nan(), "{i}"),
                _ => assert_eq!(before.to_bits(), after.to_bits(), "{i}"),
            }
        }
    }
    // A window of padding alone has the bias.
    let bias = tensor(&[8], 3)?;
    let config = signals(5, 1, 1);
    let layer = int8(&nn::Conv1d::new(tensor(&[8, 16, 3], 1)?, Some(bias.clone()), config))?;
    let ys = layer.forward(&xs)?;
    assert_eq!(bits(&ys.narrow(2, 0, 1)?), bits(&bias));
    Ok(())
}

#[derive(Quantizable)]
struct Net {
    stem: nn::Conv2d,
    body: nn::Conv2d,
    depthwise: nn::Conv2d,
    grouped: nn::Conv1d,
    head: nn::Linear,
}

fn net() -> Result<Net> {
    let in_groups = Conv1dConfig { groups: 2, ..signals(1, 1, 1) };
    Ok(Net {
        stem: nn::Conv2d::new(tensor(&[32, 3, 7, 7], 1)?, None, images(3, 2, 1)),
        body: nn::Conv2d::new(tensor(&[32, 32, 3, 3], 2)?, None, images(1, 1, 1)),
        depthwise: nn::Conv2d::new(tensor(&[32, 1, 3, 3], 3)?, None, grouped(32, 1)),
        grouped: nn::Conv1d::new(tensor(&[128, 32, 3], 4)?, None, in_groups),
        head: nn::Linear::new(tensor(&[40, 32], 5)?, None),
    })
}

#[test]
fn a_preset_takes_those_that_gain_and_says_why_others_stay() -> TestResult {
    let quantized = |spec: &QConfigSpec, expected: &[&str]| -> Result<String> {
        let report = quantize_dynamic(&mut net()?, spec)?;
        assert_eq!(swapped(&report), expected, "{report}");
        Ok(report.to_string())
    };
    let text = quantized(&QConfigSpec::int8(), &["body", "grouped", "head"])?;
    for channels in [3, 1] {
        let reason =
            format!("left: a convolution of {channels} input channels of a group, fewer than 32");
        assert_parts(&text, &[&reason]);
    }
    // As PyTorch, and where a rule says so.
    quantized(&QConfigSpec::pytorch(), &["head"])?;
    // As ONNX Runtime.
    let all = ["stem", "body", "depthwise", "grouped", "head"];
    quantized(&QConfigSpec::onnxruntime(), &all)?;
    quantized(&QConfigSpec::int8().exclude(LayerKind::Conv2d), &["grouped", "head"])?;
    quantized(&QConfigSpec::new().name("stem", QConfig::int8()), &["stem"])?;
    // A rule for the whole model is one for its matrices.
    let text = quantized(&QConfigSpec::new().name("", QConfig::float16()), &["head"])?;
    assert_parts(&text, &["left: a convolution of int8 or float, not"]);
    let half = QConfigSpec::int8().name("body", QConfig::float16());
    assert_fails(quantize_dynamic(&mut net()?, &half), &["int8 with dynamic activations"]);
    Ok(())
}

#[test]
fn a_batch_norm_is_folded_in() -> TestResult {
    let vector = |seed| tensor(&[6], seed);
    let (mean, var) = (vector(1)?, vector(2)?.abs()?);
    let norm = candle_nn::BatchNorm::new(6, mean, var, vector(3)?, vector(4)?, 1e-5)?;
    for (bias, config) in [(None, images(1, 1, 1)), (Some(vector(5)?), grouped(2, 1))] {
        let layer = nn::Conv2d::new(tensor(&[6, 4 / config.groups, 3, 3], 6)?, bias, config);
        let xs = tensor(&[2, 4, 5, 5], 7)?;
        let expected = norm.forward_t(&layer.forward(&xs)?, false)?;
        let folded = layer.absorb_bn(&norm)?;
        let got = folded.forward(&xs)?;
        assert_near(&expected, &got, 120.);
        assert!(!got.track_op(), "candle's time");
        let twice = folded.absorb_bn(&norm)?.forward(&xs)?;
        assert_near(&norm.forward_t(&expected, false)?, &twice, 120.);
        // Before or after, by a scale for each channel or for all.
        for preset in [QConfig::int8(), QConfig::onnxruntime(Default::default())] {
            let got = folded.quantize(&preset)?.forward(&xs)?;
            assert_near(&expected, &got, 30.);
            let relu = layer.clone().with_activation(FusedActivation::Relu);
            assert_fails(relu.absorb_bn(&norm), &["activation function, got Relu"]);
            let quantized = layer.quantize(&preset)?.absorb_bn(&norm)?;
            assert_eq!(bits(&quantized.forward(&xs)?), bits(&got));
        }
        let layer = nn::Conv2d::new(tensor(&[8, 4 / config.groups, 3, 3], 6)?, None, config);
        for layer in [int8(&layer)?, layer] {
            assert_fails(layer.absorb_bn(&norm), &["batch norm", "[6]"]);
        }
    }
    let config = ConvTranspose1dConfig { groups: 2, ..Default::default() };
    let up = nn::ConvTranspose1d::new(tensor(&[4, 3, 3], 6)?, Some(vector(5)?), config);
    let xs = tensor(&[2, 4, 5], 7)?;
    let expected = norm.forward_t(&up.forward(&xs)?, false)?;
    for layer in [up.absorb_bn(&norm)?, int8(&up)?.absorb_bn(&norm)?] {
        assert_near(&expected, &layer.forward(&xs)?, 35.);
    }
    Ok(())
}

/// A folded weight or bias may be beyond the layer's dtype though no factor is.
#[test]
fn a_folded_layer_beyond_its_dtype_is_refused() -> TestResult {
    let vector = |values: [f32; 2]| Tensor::new(&values, CPU);

    for (dtype, value, factor, bias, name) in [
        (DType::F32, 3., 3e38, 0., "weight"),
        (DType::BF16, 3., 3e38, 0., "weight"),
        (DType::F16, 1e3, 1e3, 0., "weight"),
        (DType::F16, 1., 1., 1e5, "bias"),
    ] {
        let weight = Tensor::full(value, (2, 3, 2), CPU)?.to_dtype(dtype)?;
        let layer = nn::Conv1d::new(weight, None, Default::default());
        let (factors, terms) = (vector([1., factor])?, vector([0., bias])?);
        let norm = candle_nn::BatchNorm::new(2, zeros(&[2]), ones(&[2]), factors, terms, 0.)?;
        let error = assert_fails(layer.absorb_bn(&norm), &[]);
        let expected =
            format!("Conv1d: non-finite folded {name}: expected finite numbers, got inf");
        assert!(error.starts_with(&expected), "{error}");
    }
    Ok(())
}

/// Each fault is named with its tensor and channel, of a float layer and of a quantized one.
#[test]
fn a_batch_norm_that_cannot_be_folded_is_refused() -> TestResult {
    let vector = |value: f32| Tensor::new(&[1., 1., value, 1., 1., 1.], CPU);
    let norm = |[mean, var, weight, bias]: [f32; 4], eps| {
        let [mean, var, weight, bias] = [mean, var, weight, bias].map(vector);
        candle_nn::BatchNorm::new(6, mean?, var?, weight?, bias?, eps)
    };
    let good = norm([1.; 4], 1e-5)?;
    let error = |layer: &nn::Conv2d, norm: &candle_nn::BatchNorm, parts: &[&str]| -> String {
        let before = bits(layer.weight());
        let error = assert_fails(layer.absorb_bn(norm), parts);
        assert_eq!(bits(layer.weight()), before);
        // Without candle's backtrace.
        error.lines().take(1).collect()
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let layer = nn::Conv2d::new(tensor(&[6, 4, 3, 3], 6)?, None, images(1, 1, 1));
    for layer in [int8(&layer)?, layer] {
        for (at, name) in ["running_mean", "running_var", "weight", "bias"].into_iter().enumerate()
        {
            for value in [nan, inf, -inf] {
                let mut values = [1.; 4];
                values[at] = value;
                let got = format!("expected finite numbers, got {value} at index 2");
                let expected = format!("Conv2d: non-finite {name} of the batch norm: {got}");
                assert_eq!(error(&layer, &norm(values, 1e-5)?, &[]), expected);
            }
        }
        for (values, eps, part, end) in [
            ([1., -1., 1., 1.], 1e-5, "running_var of the batch norm", "got -1 at index 2"),
            ([1., 0., 1., 1.], 0., "running_var of the batch norm", "got 0 at index 2"),
            ([1., 1., 1., 1.], f64::NAN, "running_var of the batch norm", "got 1 at index 0"),
            ([1., 1e-30, 1e30, 1.], 0., "factor of the batch norm", "got inf at index 2"),
            ([1e30, 1., 1e30, 1.], 0., "folded bias", "got -inf at index 2"),
        ] {
            let error = error(&layer, &norm(values, eps)?, &[part]);
            assert!(error.ends_with(end), "{error}");
        }
    }
    let weight = tensor(&[6, 4, 3, 3], 6)?;
    let biased = |bias: Tensor| nn::Conv2d::new(weight.clone(), Some(bias), images(1, 1, 1));
    for shape in [&[5][..], &[1], &[1, 6], &[]] {
        let expected = format!("Conv2d: shape mismatch in bias: expected [6], got {shape:?}");
        assert_eq!(error(&biased(tensor(shape, 1)?), &good, &[]), expected);
    }
    let parts = ["non-finite bias: expected finite numbers, got NaN at index 2"];
    error(&biased(vector(nan)?), &good, &parts);
    for groups in [0, 4] {
        let layer = nn::Conv2d::new(tensor(&[6, 1, 3, 3], 6)?, None, grouped(groups, 1));
        let expected = "Conv2d: invalid groups: expected a number that divides 6 channels, got ";
        assert_eq!(error(&layer, &good, &[]), format!("{expected}{groups}"));
    }
    for shape in [&[6, 4][..], &[], &[6, 4, 0, 3]] {
        let layer = nn::Conv2d::new(tensor(shape, 6)?, None, images(1, 1, 1));
        error(&layer, &good, &["shape mismatch in weight"]);
    }
    Ok(())
}

#[test]
fn what_is_saved_is_loaded_with_the_same_bits() -> TestResult {
    let folder = tempfile::tempdir()?;
    let [source, saved] = ["float", "int8"].map(|name| folder.path().join(name));
    std::fs::create_dir(&source)?;
    let tensors = HashMap::from([
        ("conv.weight", tensor(&[24, 20, 3], 1)?),
        ("conv.bias", tensor(&[24], 2)?),
        ("patch.weight", tensor(&[40, 16, 2, 2], 3)?),
        ("up.weight", tensor(&[24, 18, 4], 6)?),
        ("stem.weight", tensor(&[16, 3, 5, 4], 6)?),
        ("groups.weight", tensor(&[48, 18, 2], 7)?),
        ("ups.weight", tensor(&[36, 20, 3], 7)?),
        ("norm.weight", tensor(&[40], 8)?),
        ("norm.bias", tensor(&[40], 9)?),
        ("norm.running_mean", tensor(&[40], 10)?),
        ("norm.running_var", tensor(&[40], 11)?.abs()?),
    ]);
    candle_core::safetensors::save(&tensors, source.join("model.safetensors"))?;
    #[derive(Quantizable)]
    struct Two {
        conv: nn::Conv1d,
        patch: nn::Conv2d,
        up: nn::ConvTranspose1d,
        stem: nn::Conv2d,
        groups: nn::Conv1d,
        ups: nn::ConvTranspose1d,
    }
    let in_groups = Conv1dConfig { groups: 2, ..Default::default() };
    let ups_in_groups = ConvTranspose1dConfig { groups: 2, ..Default::default() };
    let load = |vb: VarBuilder<'_>| -> Result<Two> {
        let norm = candle_nn::batch_norm(40, 1e-5, vb.pp("norm"))?;
        let patch = nn::conv2d_no_bias(16, 40, 2, images(0, 2, 1), vb.pp("patch"))?;
        Ok(Two {
            conv: nn::conv1d(20, 24, 3, signals(1, 1, 1), vb.pp("conv"))?,
            patch: patch.absorb_bn(&norm)?,
            up: nn::conv_transpose1d_no_bias(24, 18, 4, Default::default(), vb.pp("up"))?,
            stem: nn::Conv2d::new(vb.get((16, 3, 5, 4), "stem.weight")?, None, images(0, 1, 1)),
            groups: nn::conv1d_no_bias(36, 48, 2, in_groups, vb.pp("groups"))?,
            ups: nn::conv_transpose1d_no_bias(36, 40, 3, ups_in_groups, vb.pp("ups"))?,
        })
    };
    // Of tensors that were read before.
    let by_hand = |vb: VarBuilder<'_>| -> Result<Two> {
        let (weight, bias) = (vb.get((24, 20, 3), "conv.weight")?, vb.get(24, "conv.bias")?);
        let patch = vb.get((40, 16, 2, 2), "patch.weight")?;
        let norm = candle_nn::batch_norm(40, 1e-5, vb.pp("norm"))?;
        Ok(Two {
            conv: nn::Conv1d::new(weight, Some(bias), signals(1, 1, 1)),
            patch: nn::Conv2d::new(patch, None, images(0, 2, 1)).absorb_bn(&norm)?,
            ..load(vb)?
        })
    };
    let named = ["conv", "patch", "up", "groups", "ups"].into_iter();
    let spec = named.fold(QConfigSpec::new(), |spec, name| spec.name(name, QConfig::int8()));
    let float = Checkpoint::open(&source)?;
    let mut model = load(float.var_builder(DType::F32, CPU))?;
    assert_eq!(quantize_dynamic(&mut model, &spec)?.swapped().count(), 5);
    checkpoint::save(&model, &float, &saved)?;
    let again = Checkpoint::open(&saved)?;
    let loaded = load(again.var_builder(DType::F32, CPU))?;
    let loaded_by_hand = by_hand(again.var_builder(DType::F32, CPU))?;
    // As floats, for layers of candle's.
    let floats = again.var_builder(DType::F32, CPU);
    let patch = floats.get((40, 16, 2, 2), "patch.weight")?;
    let without_norm = nn::Conv2d::new(tensor(&[40, 16, 2, 2], 3)?, None, images(0, 2, 1));
    let (xs, image, signal) =
        (tensor(&[2, 20, 30], 4)?, tensor(&[1, 16, 8, 6], 5)?, tensor(&[1, 36, 20], 8)?);
    let ys = model.conv.forward(&xs)?;
    for (name, ours, expected) in [
        ("conv", loaded.conv.forward(&xs)?, ys.clone()),
        ("patch", loaded.patch.forward(&image)?, model.patch.forward(&image)?),
        ("by hand", loaded_by_hand.patch.forward(&image)?, model.patch.forward(&image)?),
        ("up", loaded.up.forward(&ys)?, model.up.forward(&ys)?),
        ("groups", loaded.groups.forward(&signal)?, model.groups.forward(&signal)?),
        ("ups", loaded.ups.forward(&signal)?, model.ups.forward(&signal)?),
        ("patch.weight", patch, int8(&without_norm)?.weight().clone()),
        ("up.weight", floats.get((24, 18, 4), "up.weight")?, model.up.weight().clone()),
        ("groups.weight", floats.get((48, 18, 2), "groups.weight")?, model.groups.weight().clone()),
        ("ups.weight", floats.get((36, 20, 3), "ups.weight")?, model.ups.weight().clone()),
    ] {
        assert_eq!(bits(&ours), bits(&expected), "{name}");
    }
    let up = floats.get((24, 18, 4), "up.weight")?;
    let up = nn::ConvTranspose1d::new(up, None, Default::default());
    assert!(floats.get((18, 24, 4), "up.weight").is_err());
    let layers: [&dyn Layer; 4] = [&up, &loaded.conv, &loaded.ups, &loaded_by_hand.patch];
    assert!(layers.iter().all(|layer| layer.weight_infos()[0].quantized));
    let error = nn::conv1d_no_bias(18, 48, 2, Default::default(), floats.pp("groups"));
    assert_fails(error, &["[1, 2, 48, 18]", "[2, 2, 24, 18]"]);
    let mut model = by_hand(float.var_builder(DType::F32, CPU))?;
    quantize_dynamic(&mut model, &spec)?;
    let saved_by_hand = folder.path().join("by_hand");
    checkpoint::save(&model, &float, &saved_by_hand)?;
    // Saved again from the quantized files.
    let [twice, thrice] = ["twice", "thrice"].map(|name| folder.path().join(name));
    checkpoint::save(&loaded, &again, &twice)?;
    checkpoint::save(&loaded_by_hand, &again, &thrice)?;
    let bytes = |folder: &std::path::Path| std::fs::read(folder.join("model.safetensors"));
    for other in [saved_by_hand, twice, thrice] {
        assert_eq!(bytes(&saved)?, bytes(&other)?);
    }
    Ok(())
}

/// A codec's weight: gains times a normalized tensor.
fn normed(inputs: usize, vb: VarBuilder<'_>) -> Result<nn::Conv1d> {
    let gains = vb.get((24, 1, 1), "weight_g")?;
    let weight = vb.get((24, 20, 3), "weight_v")?.narrow(1, 0, inputs)?;
    let norm = weight.sqr()?.sum_keepdim((1, 2))?.sqrt()?;
    let weight = weight.broadcast_mul(&gains)?.broadcast_div(&norm)?;
    nn::Conv1d::computed(weight, Some(vb.get(24, "bias")?), signals(1, 1, 1), vb.clone())
}

#[test]
fn a_computed_weight_is_saved_by_its_name() -> TestResult {
    let folder = tempfile::tempdir()?;
    let [source, saved] = ["float.safetensors", "int8"].map(|name| folder.path().join(name));
    let tensors = HashMap::from([
        ("conv.weight_g", tensor(&[24, 1, 1], 1)?),
        ("conv.weight_v", tensor(&[24, 20, 3], 2)?),
        ("conv.bias", tensor(&[24], 3)?),
    ]);
    candle_core::safetensors::save(&tensors, &source)?;
    let float = Checkpoint::open(&source)?;
    let load = |checkpoint: &Checkpoint, inputs| {
        let vb = checkpoint.var_builder(DType::F32, CPU);
        normed(inputs, vb.pp("conv"))
    };
    let mut layer = load(&float, 20)?;
    quantize_dynamic(&mut layer, &QConfigSpec::new().name("", QConfig::int8()))?;
    assert_eq!(layer.kernel_size(), [3]);
    checkpoint::save(&layer, &float, &saved)?;
    let again = Checkpoint::open(&saved)?;
    let loaded = load(&again, 20)?;
    assert!(loaded.weight_infos()[0].quantized);
    let xs = tensor(&[2, 20, 30], 4)?;
    assert_eq!(bits(&loaded.forward(&xs)?), bits(&layer.forward(&xs)?));
    // The codes are of another shape.
    assert_fails(load(&again, 10), &["conv", "[1, 3, 24, 10]"]);
    Ok(())
}

#[test]
fn hostile_shapes_are_errors_that_name_them() -> TestResult {
    let refused = |layer: &nn::Conv1d, shape: &[usize], part: &str| {
        assert_fails(layer.forward(&zeros(shape)), &[part]);
    };
    let layer = |config: Conv1dConfig| -> candle_dynquant::Result<[nn::Conv1d; 2]> {
        let float = nn::Conv1d::new(tensor(&[8, 16, 3], 1)?, None, config);
        Ok([int8(&float)?, float])
    };
    for config in
        [signals(0, 1, 10), signals(0, 1, usize::MAX), signals(usize::MAX, 1, 1), signals(0, 0, 1)]
    {
        for layer in layer(config)? {
            refused(&layer, &[1, 16, 9], "at least one window of [3]");
        }
    }
    for layer in layer(signals(1 << 40, 1, 1))? {
        refused(&layer, &[1, 16, 9], "shape mismatch");
    }
    // Few outputs of padding that no memory holds.
    let [quantized, _] = layer(signals(1 << 40, 1 << 40, 1))?;
    refused(&quantized, &[1, 16, 9], "shape mismatch");
    // One window, whatever the next one's place.
    for layer in layer(signals(3, usize::MAX, 1))? {
        assert_eq!(layer.forward(&tensor(&[1, 16, 9], 1)?)?.dims(), [1, 8, 1]);
    }
    let [_, float] = layer(signals(1 << 28, 1 << 28, 1 << 28))?;
    assert_eq!(float.forward(&tensor(&[1, 16, 9], 1)?)?.dims(), [1, 8, 1]);
    for stride in [0, usize::MAX] {
        let config = ConvTranspose1dConfig { padding: 2, stride, ..Default::default() };
        let float = nn::ConvTranspose1d::new(tensor(&[16, 8, 3], 1)?, None, config);
        for layer in [int8(&float)?, float] {
            assert!(layer.forward(&tensor(&[1, 16, 9], 1)?).is_err());
        }
    }
    for layer in layer(signals(0, 1, 1))? {
        for shape in [&[16, 9][..], &[1, 15, 9], &[1, 16, 2], &[1, 16, 9, 9], &[]] {
            refused(&layer, shape, "expected [batch, 16, length]");
        }
        assert_eq!(layer.forward(&zeros(&[0, 16, 9]))?.dims(), [0, 8, 7]);
    }
    for (shape, bias, part) in [
        (&[8, 16, 3][..], 7, "expected [8], got [7]"),
        (&[8, 0, 3], 8, "at least one of each dimension"),
        (&[8, 16, 0], 8, "at least one of each dimension"),
        (&[8, 16], 8, "expected [out_channels, in_channels / groups, kernel]"),
        (&[], 8, "expected [out_channels, in_channels / groups, kernel]"),
        (&[8, 16, 3, 3], 8, "expected [out_channels, in_channels / groups, kernel]"),
    ] {
        let bias = tensor(&[bias], 1)?;
        let layer = nn::Conv1d::new(tensor(shape, 1)?, Some(bias), signals(0, 1, 1));
        assert_fails(int8(&layer), &[part]);
        // Float, too, without a panic.
        let _ = layer.forward(&tensor(&[1, 16, 9], 1)?);
    }
    let mut values = vec![1f32; 8 * 16 * 3];
    values[100] = f32::NAN;
    let weight = Tensor::from_vec(values, (8, 16, 3), CPU)?;
    let nan = nn::Conv1d::new(weight, None, signals(0, 1, 1));
    assert_kind(int8(&nan), ErrorKind::NonFinite, &[]);
    let vb = VarBuilder::zeros(DType::F32, CPU);
    for groups in [0, 3] {
        let config = Conv1dConfig { groups, ..Default::default() };
        assert_fails(nn::conv1d(16, 8, 3, config, vb.pp("a")), &["divides 16 input channels"]);
    }
    Ok(())
}
