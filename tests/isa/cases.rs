//! A computation for each function of `ops` and each layer of `nn`, and its bits.
//!
//! A test fails for an export that has neither a case nor a reason to be exempt.

use std::collections::{BTreeSet, HashMap};

use candle_core::{D, DType, Module, Result, Tensor};
use candle_dynquant::ops::{self, Mask, Precision};
use candle_dynquant::{
    GroupConfig, Layer, QConfig, QConfigSpec, Quantizable, nn, quantize_dynamic,
};
use candle_nn::{RNN, VarBuilder};

use crate::common::{CPU, tensor};

/// Names of a case, the checksum of its results on every instruction set, and how they are
/// computed.
type Case = (&'static str, &'static str, fn() -> Result<Vec<Tensor>>);

pub const CASES: &[Case] = &[
    ("ops::activate", "930f71d5d6a1cad5", || {
        use candle_dynquant::FusedActivation::*;
        each_of(&[Relu, Gelu, GeluTanh, Silu, Tanh, Sigmoid], |it, xs| ops::activate(xs, it))
    }),
    ("ops::gelu", "6f91ebfacf34a718", || each_dtype(ops::gelu)),
    ("ops::gelu_erf", "6f91ebfacf34a718", || each_dtype(ops::gelu_erf)),
    ("ops::gelu_tanh", "aff6c74bb479e8af", || each_dtype(ops::gelu_tanh)),
    ("ops::elu", "c9e636b35e9f17a6", || each_dtype(|xs| ops::elu(xs, 1.))),
    (
        "ops::max_pool2d ops::max_pool2d_with_stride ops::upsample_nearest2d",
        "bc321c9de98d8b51",
        || {
            let xs = tensor(&[2, 3, 11, 14], 1)?;
            Ok(vec![
                ops::max_pool2d(&xs, 2)?,
                ops::max_pool2d_with_stride(&xs, 3, 2)?,
                ops::upsample_nearest2d(&xs, 22, 28)?,
            ])
        },
    ),
    ("ops::relu", "b1e9080f72cf7eed", || each_dtype(ops::relu)),
    ("ops::sigmoid", "6a9c33ef8602eb9b", || each_dtype(ops::sigmoid)),
    ("ops::silu", "990450280af5945f", || each_dtype(ops::silu)),
    ("ops::swiglu", "5201ff669f6c1354", || each_dtype(ops::swiglu)),
    ("ops::activate_mul", "1fdc661699ca870e", || {
        use candle_dynquant::FusedActivation::{GeluTanh, Silu};
        let multiplied = |it, xs: &Tensor| ops::activate_mul(xs, &xs.affine(0.5, 1.)?, it);
        each_of(&[Silu, GeluTanh], multiplied)
    }),
    ("ops::rope ops::rope_thd", "fedce1c419a65263", || {
        let xs = tensor(&[2, 3, 5, 14], 1)?;
        let (cos, sin) = (tensor(&[9, 7], 2)?, tensor(&[9, 7], 3)?);
        Ok(vec![ops::rope(&xs, &cos, &sin)?, ops::rope_thd(&xs, &cos, &sin)?])
    }),
    ("ops::tanh", "d1d5b8987efae8c2", || each_dtype(ops::tanh)),
    ("ops::softmax", "52a8b0a51ec76a14", || each_dtype(|xs| ops::softmax(xs, D::Minus1))),
    ("ops::softmax_last_dim", "52a8b0a51ec76a14", || each_dtype(ops::softmax_last_dim)),
    ("ops::layer_norm", "3b87f15caee59d25", || {
        let (weight, bias) = (tensor(&[COLUMNS], 2)?, tensor(&[COLUMNS], 3)?);
        let plain = each_dtype(|xs| ops::layer_norm(xs, &weight, None, 1e-5))?;
        let biased = each_dtype(|xs| ops::layer_norm(xs, &weight, &bias, 1e-5))?;
        Ok([plain, biased].concat())
    }),
    ("ops::add_layer_norm", "d68dfc629c1e1a57", || {
        let (weight, bias) = (tensor(&[COLUMNS], 2)?, tensor(&[COLUMNS], 3)?);
        let residual = tensor(&[ROWS, COLUMNS], 4)?;
        each_dtype(|xs| ops::add_layer_norm(xs, &residual, &weight, &bias, 1e-5))
    }),
    ("ops::rms_norm", "d0f19b82b056bb0b", || {
        let weight = tensor(&[COLUMNS], 2)?;
        each_dtype(|xs| ops::rms_norm(xs, &weight, 1e-5))
    }),
    ("ops::add_rms_norm", "98dc02c857a498ee", || {
        let weight = tensor(&[COLUMNS], 2)?;
        let residual = tensor(&[ROWS, COLUMNS], 4)?;
        let sum = |xs: &Tensor| {
            let (ys, sum) = ops::add_rms_norm(xs, &residual.to_dtype(xs.dtype())?, &weight, 1e-5)?;
            Tensor::cat(&[ys, sum], 0)
        };
        each_dtype(sum)
    }),
    ("ops::gather", "4b4731f36b874b96", || {
        let indexes = (0..ROWS * 40).map(|i| (i * 7 % COLUMNS) as u32);
        let indexes = Tensor::from_iter(indexes, CPU)?.reshape((ROWS, 40))?;
        Ok(vec![ops::gather(&tensor(&[ROWS, COLUMNS], 1)?, &indexes, 1)?])
    }),
    ("ops::scaled_dot_product_attention ops::Mask", "e8e8ca60f1a296a0", || {
        attention(Precision::Float32)
    }),
    ("ops::scaled_dot_product_attention_with", "b3ac5edb5d1bda7b", || {
        attention(Precision::BFloat16)
    }),
    ("ops::Precision", "b95b462a5722628b", || attention(Precision::Int8)),
    ("nn::Attention", "4b26670a919d4bbe", || {
        let layer = nn::Attention::new(0.2);
        let (q, k) = (tensor(&[2, 4, 70, 33], 1)?, tensor(&[2, 2, 200, 33], 2)?);
        let mut ys = vec![layer.forward(&q, &k, &k, Mask::Causal)?];
        for qconfig in [QConfig::bfloat16(), QConfig::int8()] {
            let layer = layer.quantize(&qconfig)?;
            ys.push(layer.forward(&q, &k, &k, Mask::Causal)?);
        }
        Ok(ys)
    }),
    ("nn::KvCache", "ad2822891e63c6e0", || {
        let rows = |heads, rows, columns, seed| tensor(&[2, heads, rows, columns], seed);
        let mut ys = Vec::new();
        for precision in [Precision::Float32, Precision::BFloat16, Precision::Int8] {
            let mut cache = nn::KvCache::new(precision);
            for (seed, step) in [(1, 70), (2, 1), (3, 1), (4, 130)] {
                cache.append(&rows(2, step, 33, seed)?, &rows(2, step, 18, seed + 9)?)?;
                cache.truncate(150);
                for queries in [1, 5] {
                    let q = rows(4, queries, 33, seed)?;
                    ys.push(cache.attend(&q, Mask::Causal, 0.2)?);
                }
            }
        }
        Ok(ys)
    }),
    ("nn::Activation", "22438bd837e1c243", || {
        use nn::Activation::*;
        let all = [Gelu, NewGelu, Relu, Relu2, Silu, Sigmoid, Swiglu, Swish, GeluPytorchTanh];
        each_of(&all, |it, xs| it.forward(xs))
    }),
    ("nn::LayerNorm nn::layer_norm nn::layer_norm_no_bias", "23e232d04fcc8727", || {
        let vb = of_tensors(&[("weight", &[COLUMNS]), ("bias", &[COLUMNS])])?;
        let plain = nn::layer_norm_no_bias(COLUMNS, 1e-5, vb.clone())?;
        let biased = nn::layer_norm(COLUMNS, 1e-5, vb)?;
        let residual = tensor(&[ROWS, COLUMNS], 4)?;
        let ys = [
            each_dtype(|xs| plain.forward(xs))?,
            each_dtype(|xs| biased.forward(xs))?,
            vec![biased.forward_add(&tensor(&[ROWS, COLUMNS], 1)?, &residual)?],
        ];
        Ok(ys.concat())
    }),
    ("nn::RmsNorm nn::rms_norm", "23be45102d4a5262", || {
        let norm = nn::rms_norm(COLUMNS, 1e-5, of_tensors(&[("weight", &[COLUMNS])])?)?;
        let ys = norm.forward_diff(&tensor(&[ROWS, COLUMNS], 1)?)?;
        let (sum_ys, sum) = norm.forward_add(&ys, &tensor(&[ROWS, COLUMNS], 4)?)?;
        Ok([each_dtype(|xs| norm.forward(xs))?, vec![ys, sum_ys, sum]].concat())
    }),
    (
        "nn::Linear nn::linear nn::linear_b nn::linear_no_bias nn::Projection",
        "d4e320ddeff8f6d0",
        || {
            let vb = of_tensors(&[("weight", &[131, COLUMNS]), ("bias", &[131])])?;
            let biased = nn::linear_b(COLUMNS, 131, true, vb.clone())?;
            let layers = (
                nn::linear(COLUMNS, 131, vb.clone())?,
                biased.with_activation(candle_dynquant::FusedActivation::Gelu),
                nn::linear_no_bias(COLUMNS, 131, vb)?,
            );
            // One row, a few rows and many.
            let xs = [1, 5, 40].map(|rows| integers(&[rows, COLUMNS]));
            let xs = xs.into_iter().collect::<Result<Vec<_>>>()?;
            each_qconfig(layers, |(plain, activated, without_bias)| {
                let mut ys = Vec::new();
                for xs in &xs {
                    ys.push(plain.forward(xs)?);
                    ys.push(activated.projection().forward(xs)?);
                    ys.extend(nn::Linear::forward_each([plain, without_bias], xs)?);
                }
                Ok(ys)
            })
        },
    ),
    (
        "nn::Conv1d nn::Conv2d nn::conv1d nn::conv1d_no_bias nn::conv2d nn::conv2d_no_bias \
         nn::ConvTranspose1d nn::conv_transpose1d nn::conv_transpose1d_no_bias",
        "05ede9e2de0fffd0",
        || {
            let vb = of_tensors(&[("weight", &[67, 20, 3]), ("bias", &[67])])?;
            let config = candle_nn::Conv1dConfig { padding: 2, dilation: 2, ..Default::default() };
            let signals = nn::conv1d(20, 67, 3, config, vb.clone())?;
            let signals_no_bias = nn::conv1d_no_bias(20, 67, 3, config, vb)?;
            let vb = of_tensors(&[("weight", &[40, 16, 2, 2]), ("bias", &[40])])?;
            let images = nn::conv2d(16, 40, 2, Default::default(), vb.clone())?;
            let images_no_bias = nn::conv2d_no_bias(16, 40, 2, Default::default(), vb)?;
            let vb = of_tensors(&[("weight", &[20, 33, 4]), ("bias", &[33])])?;
            let back = nn::conv_transpose1d(20, 33, 4, Default::default(), vb.clone())?;
            let back_no_bias = nn::conv_transpose1d_no_bias(20, 33, 4, Default::default(), vb)?;
            let (signal, image) = (tensor(&[2, 20, 50], 5)?, tensor(&[2, 16, 9, 7], 6)?);
            let mut ys = Vec::new();
            for qconfig in [QConfig::int8(), QConfig::pytorch()] {
                ys.push(signals.quantize(&qconfig)?.forward(&signal)?);
                ys.push(signals_no_bias.quantize(&qconfig)?.forward(&signal)?);
                ys.push(back.quantize(&qconfig)?.forward(&signal)?);
                ys.push(back_no_bias.quantize(&qconfig)?.forward(&signal)?);
                ys.push(images.quantize(&qconfig)?.forward(&image)?);
                ys.push(images_no_bias.quantize(&qconfig)?.forward(&image)?);
            }
            Ok(ys)
        },
    ),
    ("nn::Embedding nn::embedding", "664a97f1ecbc891d", || {
        let table = nn::embedding(50, 131, of_tensors(&[("weight", &[50, 131])])?)?;
        let indexes = Tensor::from_iter((0..70u32).map(|i| i * 7 % 50), CPU)?;
        let mut ys = vec![table.forward(&indexes)?];
        for qconfig in [QConfig::table(), QConfig::float16()] {
            ys.push(table.quantize(&qconfig)?.forward(&indexes)?);
        }
        // The rows of an output projection.
        let tied = nn::Linear::tied(&table, None);
        each_qconfig((tied, table), |(_, table)| Ok(vec![table.forward(&indexes)?]))
            .map(|tied| [ys, tied].concat())
    }),
    ("nn::Sequential nn::seq", "fb8707f620d32880", || {
        let linear = || {
            let vb = of_tensors(&[("weight", &[COLUMNS, COLUMNS]), ("bias", &[COLUMNS])])?;
            nn::linear(COLUMNS, COLUMNS, vb)
        };
        let layers = || Ok(nn::seq().add(linear()?).add(nn::Activation::Relu).add(linear()?));
        let xs = integers(&[ROWS, COLUMNS])?;
        each_made(layers, |layers| layers.forward_all(&xs))
    }),
    ("nn::LSTM nn::lstm", "fc720c47c8a5e5c1", || {
        let layer = nn::LSTM::new(INPUTS, HIDDEN, BOTH, recurrent(4)?)?;
        let single = nn::lstm(INPUTS, HIDDEN, Default::default(), recurrent(4)?)?;
        let xs = integers(&[4, 9, INPUTS])?;
        each_qconfig((layer, single), |(layer, single)| {
            let (ys, state) = layer.forward(&xs, None)?;
            let (of_lengths, _) = layer.forward_lengths(&xs, &lengths(), Some(&state))?;
            let states = single.states_to_tensor(&single.seq(&xs)?)?;
            Ok(vec![ys, state.h, state.c, of_lengths, states])
        })
    }),
    ("nn::GRU nn::gru", "f66fcc8f8cfbc781", || {
        let layer = nn::GRU::new(INPUTS, HIDDEN, BOTH, recurrent(3)?)?;
        let single = nn::gru(INPUTS, HIDDEN, Default::default(), recurrent(3)?)?;
        let xs = integers(&[4, 9, INPUTS])?;
        each_qconfig((layer, single), |(layer, single)| {
            let (ys, h) = layer.forward(&xs, None)?;
            let (of_lengths, _) = layer.forward_lengths(&xs, &lengths(), Some(&h))?;
            let states = single.states_to_tensor(&single.seq(&xs)?)?;
            Ok(vec![ys, h, of_lengths, states])
        })
    }),
    ("nn::RNN", "f6dde8e2fbf95988", || {
        let layer = |of| {
            let layer = nn::RNN::new(INPUTS, HIDDEN, of, BOTH, recurrent(1)?);
            layer.map_err(candle_core::Error::wrap)
        };
        let (tanh, relu) = (layer(nn::Nonlinearity::Tanh)?, layer(nn::Nonlinearity::Relu)?);
        let xs = integers(&[4, 9, INPUTS])?;
        each_qconfig((tanh, relu), |(tanh, relu)| {
            let (ys, h) = tanh.forward(&xs, None)?;
            Ok(vec![ys, h, relu.forward_lengths(&xs, &lengths(), None)?.0])
        })
    }),
    ("nn::LSTMCell nn::GRUCell nn::RNNCell", "9ac1bf2ba76e59de", || {
        let relu = nn::Nonlinearity::Relu;
        let cells = (
            nn::LSTMCell::new(INPUTS, HIDDEN, true, recurrent(4)?)?,
            nn::GRUCell::new(INPUTS, HIDDEN, true, recurrent(3)?)?,
            nn::RNNCell::new(INPUTS, HIDDEN, true, relu, recurrent(1)?)?,
        );
        let xs = integers(&[5, INPUTS])?;
        each_qconfig(cells, |(lstm, gru, rnn)| {
            let state = lstm.forward(&xs, None)?;
            let state = lstm.forward(&xs, Some(&state))?;
            let gru = gru.forward(&xs, Some(&gru.forward(&xs, None)?))?;
            let rnn = rnn.forward(&xs, Some(&rnn.forward(&xs, None)?))?;
            Ok(vec![state.h, state.c, gru, rnn])
        })
    }),
    ("nn::Experts nn::experts nn::Expert nn::Router nn::router", "8d14b48383828cb3", || {
        let weights = of_tensors(&[
            ("weight", &[6, INPUTS]),
            ("gate_proj.weight", &[HIDDEN, INPUTS]),
            ("up_proj.weight", &[HIDDEN, INPUTS]),
            ("down_proj.weight", &[INPUTS, HIDDEN]),
        ])?;
        // All experts have the same weights.
        let weights = weights.rename_f(|name| match name.split_once('.') {
            Some((_, rest)) => rest.to_owned(),
            None => name.to_owned(),
        });
        let xs = (tensor(&[ROWS, INPUTS], 3)? * 0.1)?;
        let router = nn::router(INPUTS, 6, weights.clone())?;
        let (chosen, shares) = router.choose(&xs, 2, false)?;
        let (_, normalized) = router.choose(&xs, 2, true)?;
        let fractions = nn::Router::new((integers(&[6, INPUTS])? / 7.)?);
        let mut ys = vec![fractions.forward(&xs)?, shares.clone(), normalized];
        let experts = nn::experts(6, INPUTS, HIDDEN, weights)?;
        let each =
            each_qconfig(experts, |experts| Ok(vec![experts.forward(&xs, &chosen, &shares)?]))?;
        // Float products are candle's.
        ys.extend(each.into_iter().skip(1));
        Ok(ys)
    }),
];

/// Exports that compute nothing, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("nn::ops", "the module, whose functions have cases"),
    ("nn::Conv", "its aliases have cases"),
    ("nn::Recurrent", "its aliases have cases"),
    ("nn::RecurrentCell", "its aliases have cases"),
    ("nn::GRUConfig", "candle's configuration"),
    ("nn::LSTMConfig", "candle's configuration"),
    ("nn::RecurrentConfig", "a configuration"),
    ("nn::Nonlinearity", "a configuration of RNN"),
    ("nn::Func", "a closure of the caller's"),
    ("nn::FuncT", "a closure of the caller's"),
    ("nn::func", "a closure of the caller's"),
    ("nn::func_t", "a closure of the caller's"),
    ("nn::GRUState", "tensors"),
    ("nn::LSTMState", "tensors"),
];

const ROWS: usize = 37;
const COLUMNS: usize = 150;
const INPUTS: usize = 70;
const HIDDEN: usize = 67;

const BOTH: nn::RecurrentConfig = nn::RecurrentConfig {
    num_layers: 1,
    bias: true,
    batch_first: false,
    bidirectional: true,
    proj_size: 0,
};

/// The results of f32, float16 and bfloat16.
fn each_dtype(op: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let xs = tensor(&[ROWS, COLUMNS], 1)?;
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    let ys = dtypes.map(|dtype| op(&xs.to_dtype(dtype)?));
    ys.into_iter().collect()
}

/// The results of each activation function by [`each_dtype`].
fn each_of<A: Copy>(all: &[A], op: impl Fn(A, &Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let each = all.iter().map(|activation| each_dtype(|xs| op(*activation, xs)));
    Ok(each.collect::<Result<Vec<_>>>()?.concat())
}

/// Small integers: float products are exact, also where each is rounded.
fn integers(shape: &[usize]) -> Result<Tensor> {
    tensor(shape, 5)?.round()
}

fn of_tensors(shapes: &[(&str, &[usize])]) -> Result<VarBuilder<'static>> {
    let named = |(name, shape): &(&str, &[usize])| Ok(((*name).to_owned(), integers(shape)?));
    let tensors = shapes.iter().map(named).collect::<Result<HashMap<_, _>>>()?;
    Ok(VarBuilder::from_tensors(tensors, DType::F32, CPU))
}

/// The weights of layers and cells. Each gate of a unit reads one unit of the state, so float
/// products have a single nonzero term.
fn recurrent(gates: usize) -> Result<VarBuilder<'static>> {
    let mut tensors = HashMap::new();
    let rows = gates * HIDDEN;
    let one_hot = |i: usize| {
        if i % HIDDEN == i / HIDDEN * 5 % HIDDEN { 0.5f32 } else { 0. }
    };
    let hh = Tensor::from_iter((0..rows * HIDDEN).map(one_hot), CPU)?;
    let (ih, hh) = ((integers(&[rows, INPUTS])? / 16.)?, hh.reshape((rows, HIDDEN))?);
    let bias = (integers(&[rows])? / 8.)?;
    for suffix in ["", "_l0", "_l0_reverse"] {
        let own = [("weight_ih", &ih), ("weight_hh", &hh), ("bias_ih", &bias), ("bias_hh", &bias)];
        tensors.extend(own.map(|(name, tensor)| (format!("{name}{suffix}"), tensor.clone())));
    }
    Ok(VarBuilder::from_tensors(tensors, DType::F32, CPU))
}

/// The lengths of the 9 sequences of a batch.
fn lengths() -> Vec<usize> {
    (0..9).map(|sequence| sequence % 5).collect()
}

/// [`each_made`] of clones.
fn each_qconfig<L: Quantizable + Clone, F>(layer: L, run: F) -> Result<Vec<Tensor>>
where
    F: Fn(&L) -> Result<Vec<Tensor>>,
{
    each_made(|| Ok(layer.clone()), run)
}

/// The results of a layer, float and by every way to quantize its factors.
fn each_made<L: Quantizable>(
    make: impl Fn() -> Result<L>,
    run: impl Fn(&L) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let mut ys = run(&make()?)?;
    let mut per_row = GroupConfig::INT4;
    per_row.per_row = true;
    for qconfig in [
        QConfig::pytorch(),
        QConfig::per_channel(),
        QConfig::int8(),
        QConfig::float16(),
        QConfig::bfloat16(),
        QConfig::int4(),
        QConfig::int8_groups(),
        QConfig::Groups(per_row),
        QConfig::onnxruntime(Default::default()),
    ] {
        let mut layer = make()?;
        let spec = QConfigSpec::all_kinds(qconfig);
        quantize_dynamic(&mut layer, &spec).map_err(candle_core::Error::wrap)?;
        ys.extend(run(&layer)?);
    }
    Ok(ys)
}

/// Attention with every kind of mask, for one query and for several blocks.
fn attention(precision: Precision) -> Result<Vec<Tensor>> {
    let mut ys = Vec::new();
    for (queries, keys) in [(1, 140), (70, 200), (5, 9)] {
        let heads = |heads, rows, columns, seed| tensor(&[2, heads, rows, columns], seed);
        let (q, k) = (heads(4, queries, 33, 1)?, heads(2, keys, 33, 2)?);
        let v = heads(2, keys, 18, 3)?;
        let own = tensor(&[queries, keys], 4)?;
        let (excluded, padding) = (own.gt(2.)?, tensor(&[2, 1, 1, keys], 5)?.gt(2.)?);
        for mask in [
            Mask::All,
            Mask::Causal,
            Mask::Add(&own),
            Mask::Exclude(&excluded),
            Mask::Include(&excluded),
            Mask::Exclude(&padding),
        ] {
            let attended = match precision {
                Precision::Float32 => ops::scaled_dot_product_attention(&q, &k, &v, mask, 0.2)?,
                _ => ops::scaled_dot_product_attention_with(&q, &k, &v, mask, 0.2, precision)?,
            };
            ys.push(attended);
        }
    }
    Ok(ys)
}

/// A checksum over the bits of each element; all NaNs count as equal.
pub fn checksum(tensors: &[Tensor]) -> Result<String> {
    let mut sum = 0u64;
    for tensor in tensors {
        for x in tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()? {
            let bits = if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
            sum = sum.rotate_left(5) ^ u64::from(bits);
        }
    }
    Ok(format!("{sum:016x}"))
}

/// The first name of each case and the checksum of its results.
pub fn checksums() -> Result<Vec<(&'static str, String)>> {
    let of = |(names, _, run): &Case| Ok((first(names), checksum(&run()?)?));
    CASES.iter().map(of).collect()
}

pub fn first(names: &'static str) -> &'static str {
    names.split(' ').next().unwrap_or_default()
}

/// The names that a module exports, without candle_nn's.
fn exported(module: &str, source: &str) -> BTreeSet<String> {
    let code: Vec<_> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join(" ");
    let uses = code.split(';').filter_map(|statement| statement.split_once("pub use "));
    let uses = uses.map(|(_, path)| path).filter(|path| !path.starts_with("candle_nn"));
    let names = uses.flat_map(|path| {
        let (_, names) =
            path.split_once('{').or_else(|| path.rsplit_once("::")).unwrap_or(("", path));
        names.trim_end_matches(['}', ' ']).split(',').map(str::trim)
    });
    names.filter(|name| !name.is_empty()).map(|name| format!("{module}::{name}")).collect()
}

#[test]
fn every_function_and_layer_has_a_case() {
    let mut all = exported("ops", include_str!("../../src/ops/mod.rs"));
    all.extend(exported("nn", include_str!("../../src/nn/mod.rs")));
    assert!(all.len() > 50 && all.contains("nn::LSTM") && all.contains("ops::gelu"), "{all:?}");
    let cases = CASES.iter().flat_map(|(names, ..)| names.split(' '));
    let exempt = EXEMPT.iter().map(|(name, _)| *name);
    let known: BTreeSet<_> = cases.chain(exempt).map(str::to_owned).collect();
    let missing: Vec<_> = all.difference(&known).collect();
    assert!(missing.is_empty(), "without a case in tests/isa/cases.rs: {missing:?}");
    let gone: Vec<_> = known.difference(&all).collect();
    assert!(gone.is_empty(), "cases of what is not exported: {gone:?}");
}
