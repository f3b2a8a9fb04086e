//! Linear layers, embeddings and operations, each by itself.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_dynquant::qparams;
use candle_dynquant::{
    Arithmetic, DynamicConfig, Granularity, HalfType, Layer, QConfig, QDType, nn, ops,
};
use candle_dynquant_kernels::reference::{self, Int8};
use proptest::prelude::*;

use super::cases;
use super::qconfigs::qconfig;
use super::values::{Values, View, bits, copied, dtype, floats, size};

/// The result of a quantized projection by the oracle.
fn expected(layer: &nn::Linear, xs: &[f32], rows: usize, config: DynamicConfig) -> Vec<f32> {
    let weight = layer.projection().qweight().expect("quantized");
    let [n, k] = weight.shape();
    let moved = match weight.dtype() {
        Some(QDType::QUInt8) => 128,
        _ => 0,
    };
    let codes = weight.codes().into_iter().map(|code| (code - moved) as i8);
    let codes: Vec<i8> = codes.collect();
    let each = |i: usize, count: usize| if count == 1 { 0 } else { i };
    let (scales, zero_points) = (weight.scales(), weight.zero_points());
    let zero = |i| zero_points[each(i, zero_points.len())] - moved;
    let int8 = Int8 {
        codes: &codes,
        scales: &(0..n).map(|i| scales[each(i, scales.len())]).collect::<Vec<_>>(),
        zero_points: &(0..n).map(zero).collect::<Vec<_>>(),
    };
    let calculate = match (config.arithmetic, config.granularity) {
        (Arithmetic::OnnxRuntime, _) => qparams::onnxruntime_activation,
        (_, Granularity::PerTensor) => qparams::per_tensor_activation,
        _ => qparams::per_row_activation,
    };
    let row = |i: usize| &xs[i * k..(i + 1) * k];
    let params = |rows: &[usize]| {
        let rows = rows.iter().map(|i| row(*i));
        let finite = rows.filter(|row| row.iter().all(|x| x.is_finite())).flatten();
        let (min, max) = finite
            .fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), x| (min.min(*x), max.max(*x)));
        calculate(min, max, config.reduce_range)
    };
    let all: Vec<usize> = (0..rows).collect();
    let quantized: Vec<_> = (0..rows)
        .map(|i| {
            let params = match config.granularity {
                Granularity::PerTensor => params(&all),
                _ => params(&[i]),
            };
            reference::quantize_row(row(i), params, config.arithmetic)
        })
        .collect();
    let bias = layer.bias().map_or(vec![0.; n], floats);
    reference::linear(&quantized, int8, &bias)
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn linear_equals_the_oracle_however_its_input_lies(
        (m, k, n) in (size(), size(), size()),
        (of_weight, of_input, of_bias) in (Values::finite(), Values::any(), Values::any()),
        (view, weight_view, dtype) in (View::any(), View::any(), dtype()),
        (qconfig, bias, seed) in (qconfig(), any::<bool>(), any::<u64>()),
    ) {
        let weight = weight_view.of(&of_weight.tensor(&[n, k], seed)?)?;
        let bias = bias.then(|| of_bias.tensor(&[n], seed ^ 1)).transpose()?;
        let float = nn::Linear::new(weight, bias);
        // A non-finite bias is refused, and so is an unsupported configuration.
        let layer = match float.quantize(&qconfig) {
            Ok(layer) => layer,
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                return Ok(());
            }
        };
        let xs = view.of(&of_input.tensor(&[m, k], seed ^ 2)?.to_dtype(dtype)?)?;
        let ys = layer.forward(&xs)?;
        prop_assert_eq!((ys.dims(), ys.dtype()), (&[m, n][..], dtype));
        let plain = floats(&xs);
        let expected = match qconfig {
            QConfig::Int8 { activation, .. } => expected(&layer, &plain, m, activation),
            halves => {
                let qweight = layer.projection().qweight().expect("quantized");
                let bias = layer.bias().map_or(vec![0.; n], floats);
                if halves == QConfig::Half(HalfType::BFloat16) { reference::linear_bf16(&plain, m, &qweight.bfloats(), &bias) } else { reference::linear_f16(&plain, m, &qweight.halves(), &bias) }
            }
        };
        let expected = Tensor::from_vec(expected, (m, n), &Device::Cpu)?.to_dtype(dtype)?;
        prop_assert_eq!(bits(&ys), bits(&expected));
        for ys in nn::Linear::forward_each([&layer, &layer], &xs)? {
            prop_assert_eq!(bits(&ys), bits(&expected));
        }
    }

    /// Each activation is off by at most a step, each weight by its code's error.
    #[test]
    fn linear_is_near_float(
        (m, k, n) in (1..5usize, size(), 1..20usize),
        (of_weight, of_input) in (Values::finite(), Values::finite()),
        (per_row, seed) in (any::<bool>(), any::<u64>()),
    ) {
        let qconfig = if per_row { QConfig::int8() } else { QConfig::pytorch() };
        let float = nn::Linear::new(of_weight.tensor(&[n, k], seed)?, None);
        let layer = float.quantize(&qconfig)?;
        let xs = of_input.tensor(&[m, k], seed ^ 2)?;
        let (got, xs) = (floats(&layer.forward(&xs)?), floats(&xs));
        let (weight, dequantized) = (floats(float.weight()), floats(layer.weight()));
        for row in 0..m {
            let all = if per_row { &xs[row * k..][..k] } else { &xs[..] };
            let min = all.iter().copied().fold(f32::INFINITY, f32::min);
            let max = all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let step = f64::from(if per_row { qparams::per_row_activation(min, max, false).scale } else { qparams::per_tensor_activation(min, max, true).scale });
            for channel in 0..n {
                let (mut exact, mut bound) = (0., 0.);
                for i in 0..k {
                    let x = f64::from(xs[row * k + i]);
                    let w = f64::from(weight[channel * k + i]);
                    let q = f64::from(dequantized[channel * k + i]);
                    exact += x * w;
                    bound += x.abs() * (w - q).abs() + 1.01 * step * q.abs();
                    bound += (x * w).abs() * 1e-6;
                }
                let got = f64::from(got[row * n + channel]);
                // Beyond the range of f32 no result is near, and below its smallest number there
                // are no steps.
                if exact.abs() + bound < f64::from(f32::MAX) {
                    let error = (got - exact).abs();
                    prop_assert!(error <= bound + 1e-34, "{got}, expected {exact} +- {bound}");
                }
            }
        }
    }

    #[test]
    fn embeddings_read_what_their_rows_stand_for(
        (rows, k) in (1..40usize, size()),
        (values, dtype) in (Values::finite(), dtype()),
        (seed, float16, view) in (any::<u64>(), any::<bool>(), View::any()),
        indexes in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let table = values.tensor(&[rows, k], seed)?.to_dtype(dtype)?;
        let layer = nn::Embedding::new(table.clone(), k);
        let qconfig = if float16 { QConfig::float16() } else { QConfig::table() };
        // f16 has no huge numbers, bf16 rounds them.
        let Ok(layer) = layer.quantize(&qconfig) else { return Ok(()) };
        let indexes: Vec<u32> = indexes.iter().map(|index| index.index(rows) as u32).collect();
        let count = indexes.len();
        let indexes = view.of(&Tensor::from_vec(indexes, (count, 1), &Device::Cpu)?)?;
        let ys = layer.forward(&indexes)?;
        prop_assert_eq!((ys.dims(), ys.dtype()), (&[count, 1, k][..], dtype));
        let flat = indexes.flatten_all()?.contiguous()?;
        let expected = match count * k {
            0 => Vec::new(),
            _ => bits(&layer.embeddings().index_select(&flat, 0)?),
        };
        prop_assert_eq!(bits(&ys), expected);
    }

    #[test]
    fn operations_do_not_see_how_their_operands_lie(
        (batch, rows, k) in (0..3usize, size(), size()),
        (values, view, dtype) in (Values::any(), View::any(), dtype()),
        seed in any::<u64>(),
    ) {
        let xs = view.of(&values.tensor(&[batch, rows, k], seed)?.to_dtype(dtype)?)?;
        let plain = copied(&xs)?.to_dtype(dtype)?;
        let weight = Values::Ordinary.tensor(&[k], seed ^ 3)?.to_dtype(dtype)?;
        type Op<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
        let all: [Op<'_>; 5] = [
            &ops::softmax_last_dim,
            &ops::gelu,
            &ops::silu,
            &|xs| ops::layer_norm(xs, &weight, None, 1e-5),
            &|xs| {
                let heads = xs.unsqueeze(1)?;
                ops::scaled_dot_product_attention(&heads, &heads, &heads, None, 0.3)
            },
        ];
        for op in all {
            prop_assert_eq!(bits(&op(&xs)?), bits(&op(&plain)?));
        }
    }
}

/// Found by the property of embeddings: a row in bf16 was rounded by way of f64.
#[test]
fn embeddings_round_to_bf16_once() -> Result<()> {
    let table = Values::Huge.tensor(&[23, 17], 13553501165560598086)?;
    let layer = nn::Embedding::new(table.to_dtype(DType::BF16)?, 17);
    let layer = layer.quantize(&QConfig::table())?;
    let ys = layer.forward(&Tensor::arange(0u32, 23, &Device::Cpu)?)?;
    assert_eq!(bits(&ys), bits(layer.embeddings()));
    Ok(())
}
