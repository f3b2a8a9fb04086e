//! This library's contenders in `run.sh`, and candle's: see `protocol`.
#![allow(missing_docs)]

mod decoder;
mod peak;
mod protocol;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::nn::{self, Nonlinearity, RecurrentConfig};
use candle_dynquant::{Isa, LayerKind, QConfig, QConfigSpec, Quantizable, ops, quantize_dynamic};
use candle_dynquant_support::bench::candle_attention::attention;
use candle_dynquant_support::bert::{Batch, Bert, Config};
use candle_nn::VarBuilder;
use candle_nn::attention::{AttnMask, flash_attn};
#[cfg(not(system_allocator))]
use mimalloc::MiMalloc;
use serde_json::{Value, json};

use protocol::{Case, Contender, Process, Tensors, contender, size, take, text};

/// Keeps the memory of large results for the next call; glibc's returns 32 MiB and more to the
/// system.
#[cfg(not(system_allocator))]
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<()> {
    protocol::serve(Ours::default())
}

/// The spec `int8()` and its alternatives. Weights of a reduced range use another instruction on
/// CPUs without VNNI.
fn specs() -> Result<Vec<(&'static str, QConfigSpec)>> {
    let mut specs = vec![("ours", QConfigSpec::int8()), ("our bfloat16", QConfigSpec::bfloat16())];
    if ["avx2", "avx512"].contains(&Isa::active()?.name()) {
        specs.push(("our reduce_range", QConfigSpec::int8_reduce_range()));
    }
    Ok(specs)
}

/// The attention that is a contender with `int8()`; in bfloat16 only where that is faster.
fn attentions() -> Result<Vec<(&'static str, ops::Precision)>> {
    let mut attentions = vec![("our int8 attention", ops::Precision::Int8)];
    if Isa::active()?.to_string() == "avx512_bf16" {
        attentions.push(("our bf16 attention", ops::Precision::BFloat16));
    }
    Ok(attentions)
}

#[derive(Default)]
struct Ours {
    /// The folder that was read last, and its model in float, by each of the specs, and by `int8()`
    /// with each of the attentions.
    bert: Option<(String, Arc<[Bert]>)>,
    /// The files that were read last, and their models.
    decoders: Option<(Value, decoder::Models)>,
}

impl Process for Ours {
    fn load(&mut self, case: &Value, tensors: Tensors) -> Result<Case> {
        match text(case, "group")? {
            "linear" | "concurrency" => linear(tensors),
            "int4" => int4(tensors),
            "bert" => self.bert(text(case, "folder")?, tensors),
            "conv" => convolution(case, tensors),
            "recurrent" => recurrent(case, tensors),
            "decoder" => self.decoder(case, tensors),
            "ops" => operation(case, tensors),
            group => bail!("unknown group {group}"),
        }
    }

    fn answer(&self, request: &Value) -> Result<Value> {
        match text(request, "op")? {
            "isa" => Ok(json!({ "isa": Isa::active()?.to_string() })),
            "peak" => peak::answer(request),
            "memory" => decoder::memory(request),
            op => bail!("unknown op {op}"),
        }
    }
}

impl Ours {
    fn decoder(&mut self, case: &Value, tensors: Tensors) -> Result<Case> {
        let files = &case["files"];
        self.decoders.take_if(|(read, _)| read != files);
        let (_, models) = match &mut self.decoders {
            Some(read) => read,
            none => none.insert((files.clone(), decoder::models(case)?)),
        };
        decoder::decoder(case, models, tensors)
    }

    fn bert(&mut self, folder: &str, mut tensors: Tensors) -> Result<Case> {
        if self.bert.as_ref().is_none_or(|(path, _)| path != folder) {
            let path = Path::new(folder);
            let config = Config::read(&path.join("config.json"))?;
            let weights =
                candle_core::safetensors::load(path.join("model.safetensors"), &Device::Cpu)?;
            let vb = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
            let float = Bert::load(&config, false, vb)?;
            let mut models = vec![float];
            for (_, spec) in specs()? {
                models.push(quantized(&models[0], spec)?);
            }
            for (_, precision) in attentions()? {
                let spec = QConfigSpec::new().kind(LayerKind::Attention, precision);
                models.push(quantized(&models[1], spec)?);
            }
            self.bert = Some((folder.to_owned(), models.into()));
        }
        let (_, models) = self.bert.as_ref().expect("was just read");
        let ids = take(&mut tensors, "ids")?;
        let mask = Tensor::ones(ids.shape(), DType::F32, &Device::Cpu)?;
        let batch = Batch { ids, mask };
        let float = models[0].hidden(&batch)?;
        let call = |model: usize| {
            let (models, batch) = (models.clone(), batch.clone());
            contender(move || Ok(models[model].hidden(&batch)?))
        };
        let names = specs()?.into_iter().map(|(name, _)| name);
        let names = names.chain(attentions()?.into_iter().map(|(name, _)| name));
        Ok(Case {
            contenders: (1..).zip(names).map(|(model, name)| (name, call(model))).collect(),
            outputs: vec![("float", float)],
        })
    }
}

/// `layer` quantized by `spec`.
fn quantized<L: Quantizable + Clone>(layer: &L, spec: QConfigSpec) -> Result<L> {
    let mut layer = layer.clone();
    quantize_dynamic(&mut layer, &spec)?;
    Ok(layer)
}

/// Something with a forward, called on `xs`.
fn module(module: impl Module + Send + Sync + 'static, xs: &Tensor) -> Contender {
    let xs = xs.clone();
    contender(move || Ok(module.forward(&xs)?))
}

fn linear(mut tensors: Tensors) -> Result<Case> {
    let (xs, weight) = (take(&mut tensors, "xs")?, take(&mut tensors, "weight")?);
    let candle = candle_nn::Linear::new(weight.clone(), tensors.remove("bias"));
    let float = nn::Linear::from(candle.clone());
    let default = quantized(&float, QConfigSpec::pytorch())?.forward(&xs)?;
    let mut contenders = vec![("candle f32", module(candle.clone(), &xs))];
    for (name, spec) in specs()? {
        contenders.push((name, module(quantized(&float, spec)?, &xs)));
    }
    let mut outputs = vec![("default", default)];
    if weight.dim(1)?.is_multiple_of(GgmlDType::Q8_0.block_size()) {
        let q8_0 = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
        let bias = candle.bias().context("bias")?;
        // The product is timed without the bias.
        outputs.push(("candle Q8_0", q8_0.forward(&xs)?.broadcast_add(bias)?));
        contenders.push(("candle Q8_0", module(q8_0, &xs)));
    }
    Ok(Case { contenders, outputs })
}

fn convolution(case: &Value, mut tensors: Tensors) -> Result<Case> {
    let (xs, weight) = (take(&mut tensors, "xs")?, take(&mut tensors, "weight")?);
    let (bias, padding) = (tensors.remove("bias"), size(case, "padding")?);
    let stride = size(case, "stride")?;
    if xs.rank() == 4 {
        let config = candle_nn::Conv2dConfig { padding, stride, ..Default::default() };
        let candle = candle_nn::Conv2d::new(weight, bias, config);
        return in_codes(nn::Conv2d::from(candle.clone()), candle, &xs);
    }
    let config = candle_nn::Conv1dConfig { padding, stride, ..Default::default() };
    let candle = candle_nn::Conv1d::new(weight, bias, config);
    in_codes(nn::Conv1d::from(candle.clone()), candle, &xs)
}

/// A layer in codes of 8 bits, and candle's. The rule has its exact name: few channels, too.
fn in_codes(
    layer: impl Quantizable + Module + Clone + Send + Sync + 'static,
    candle: impl Module + Send + Sync + 'static,
    xs: &Tensor,
) -> Result<Case> {
    let mut contenders = vec![("candle f32", module(candle, xs))];
    contenders.push(("our f32", module(layer.clone(), xs)));
    let mut specs = vec![("ours", QConfig::int8())];
    if ["avx2", "avx512"].contains(&Isa::active()?.name()) {
        specs.push(("our reduce_range", QConfig::int8().reduce_range()));
    }
    for (name, qconfig) in specs {
        let layer = quantized(&layer, QConfigSpec::new().name("", qconfig))?;
        contenders.push((name, module(layer, xs)));
    }
    Ok(Case { contenders, outputs: vec![("float", layer.forward(xs)?)] })
}

/// Weights of 4 bits in groups, and candle's products of the same bits, without their bias.
fn int4(mut tensors: Tensors) -> Result<Case> {
    let (xs, weight) = (take(&mut tensors, "xs")?, take(&mut tensors, "weight")?);
    let bias = take(&mut tensors, "bias")?;
    let float = nn::Linear::new(weight.clone(), Some(bias.clone()));
    let mut case = Case::default();
    for (name, spec) in [("ours", QConfigSpec::int4()), ("our int8", QConfigSpec::int8())] {
        let layer = quantized(&float, spec)?;
        case.contenders.push((name, module(layer, &xs)));
    }
    for (name, dtype) in [("candle Q4_0", GgmlDType::Q4_0), ("candle Q4_K", GgmlDType::Q4K)] {
        if weight.dim(1)?.is_multiple_of(dtype.block_size()) {
            let product = QMatMul::from_qtensor(QTensor::quantize(&weight, dtype)?)?;
            let output = product.forward(&xs)?.broadcast_add(&bias)?;
            case.outputs.push((name, output));
            case.contenders.push((name, module(product, &xs)));
        }
    }
    Ok(case)
}

/// The float operations of a BERT layer, in this library and in candle.
fn operation(case: &Value, mut tensors: Tensors) -> Result<Case> {
    let xs = take(&mut tensors, "xs")?;
    let ys = xs.clone();
    let contenders = match text(case, "op")? {
        "gelu" => vec![
            ("ours", contender(move || Ok(ops::gelu(&xs)?))),
            ("candle f32", contender(move || Ok(ys.gelu_erf()?))),
        ],
        "softmax" => {
            let candle = move || Ok(candle_nn::ops::softmax_last_dim(&ys)?);
            vec![
                ("ours", contender(move || Ok(ops::softmax_last_dim(&xs)?))),
                ("candle f32", contender(candle)),
            ]
        }
        "layer_norm" => {
            let (weight, bias) = (take(&mut tensors, "weight")?, take(&mut tensors, "bias")?);
            let candle = candle_nn::LayerNorm::new(weight.clone(), bias.clone(), 1e-12);
            let ours = move || Ok(ops::layer_norm(&xs, &weight, Some(&bias), 1e-12)?);
            vec![("ours", contender(ours)), ("candle f32", module(candle, &ys))]
        }
        "attention" => attention_of(&xs, size(case, "heads")?)?,
        op => bail!("unknown operation {op}"),
    };
    Ok(Case { contenders, outputs: vec![] })
}

/// Turns the output of three projections, `[3, batch, seq, heads * head_dim]`, into the input of
/// the next projection.
fn attention_of(xs: &Tensor, heads: usize) -> Result<Vec<(&'static str, Contender)>> {
    let (_, batch, seq, hidden) = xs.dims4()?;
    let apart = xs.reshape((3, batch, seq, heads, hidden / heads))?;
    let (q, k, v) = (apart.get(0)?, apart.get(1)?, apart.get(2)?);
    let scale = 1. / ((hidden / heads) as f32).sqrt();
    let merged = move |context: Tensor| -> Result<Tensor> {
        Ok(context.transpose(1, 2)?.reshape((batch, seq, hidden))?)
    };
    let mut contenders = Vec::new();
    // candle's flash attention takes a single sequence.
    if batch == 1 {
        let (q, k, v) = (q.clone(), k.clone(), v.clone());
        let call = move || {
            let mask = AttnMask::None;
            merged(flash_attn::<f32>(&q, &k, &v, scale, mask, None, None)?)
        };
        contenders.push(("candle flash f32", contender(call)));
    }
    let (q, k, v) = (q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?);
    let (a, b, c) = (q.clone(), k.clone(), v.clone());
    let candle = move || merged(attention(&a, &b, &c, None, scale)?);
    contenders.push(("candle f32", contender(candle)));
    let ours = [("ours", ops::Precision::Float32)].into_iter();
    for (name, precision) in ours.chain(attentions()?) {
        let (q, k, v) = (q.clone(), k.clone(), v.clone());
        let attention = ops::scaled_dot_product_attention_with;
        let call = move || merged(attention(&q, &k, &v, None, scale, precision)?);
        contenders.push((name, contender(call)));
    }
    Ok(contenders)
}

fn recurrent(case: &Value, mut tensors: Tensors) -> Result<Case> {
    let size = |key| size(case, key);
    let (input, hidden) = (size("input")?, size("hidden")?);
    let config = RecurrentConfig {
        num_layers: size("layers")?,
        bidirectional: case["bidirectional"].as_bool().context("bidirectional")?,
        ..Default::default()
    };
    let xs = take(&mut tensors, "xs")?;
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let float = match case["kind"].as_str() {
        Some("LSTM") => Recurrent::Lstm(nn::LSTM::new(input, hidden, config, vb.clone())?),
        Some("GRU") => Recurrent::Gru(nn::GRU::new(input, hidden, config, vb.clone())?),
        Some("LSTMCell") => {
            Recurrent::LstmCell(nn::LSTMCell::new(input, hidden, true, vb.clone())?)
        }
        Some("GRUCell") => Recurrent::GruCell(nn::GRUCell::new(input, hidden, true, vb.clone())?),
        Some("RNNCell") => {
            let act = Nonlinearity::Tanh;
            Recurrent::RnnCell(nn::RNNCell::new(input, hidden, true, act, vb.clone())?)
        }
        kind => bail!("unknown kind {kind:?}"),
    };
    let default = quantized(&float, QConfigSpec::pytorch())?.run(&xs)?;
    let batch_first = xs.transpose(0, 1)?.contiguous()?;
    let mut outputs = vec![("default", default)];
    let mut contenders = Vec::new();
    for (name, spec) in specs()? {
        let (layer, xs) = (quantized(&float, spec)?, xs.clone());
        contenders.push((name, contender(move || layer.run(&xs))));
    }
    // candle has one layer in one direction, batch first; a GRU's states are concatenated.
    let (batch, steps, _) = batch_first.dims3()?;
    let steps_first = |states: Tensor| {
        let states = states.reshape((batch, steps, hidden))?;
        states.transpose(0, 1)?.contiguous()
    };
    if config.num_layers == 1 && !config.bidirectional {
        let candle = match &float {
            Recurrent::Lstm(_) => {
                states(candle_nn::lstm(input, hidden, Default::default(), vb)?, batch_first)
            }
            Recurrent::Gru(_) => {
                states(candle_nn::gru(input, hidden, Default::default(), vb)?, batch_first)
            }
            _ => return Ok(Case { contenders, outputs }),
        };
        outputs.push(("candle f32", steps_first(candle()?)?));
        contenders.push(("candle f32", candle));
    }
    Ok(Case { contenders, outputs })
}

/// The states of candle's layer over a batch.
fn states(layer: impl candle_nn::RNN + Send + Sync + 'static, xs: Tensor) -> Contender {
    contender(move || Ok(layer.states_to_tensor(&layer.seq(&xs)?)?))
}

#[derive(Quantizable, Clone)]
enum Recurrent {
    Lstm(nn::LSTM),
    Gru(nn::GRU),
    LstmCell(nn::LSTMCell),
    GruCell(nn::GRUCell),
    RnnCell(nn::RNNCell),
}

impl Recurrent {
    /// The output over `[steps, batch, input]`; a cell is called once a step.
    fn run(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Lstm(lstm) => Ok(lstm.forward(xs, None)?.0),
            Self::Gru(gru) => Ok(gru.forward(xs, None)?.0),
            Self::LstmCell(lstm) => {
                each_step(xs, |x, state| lstm.forward(x, state), |state| state.h.clone())
            }
            Self::GruCell(gru) => each_step(xs, |x, h| gru.forward(x, h), Tensor::clone),
            Self::RnnCell(rnn) => each_step(xs, |x, h| rnn.forward(x, h), Tensor::clone),
        }
    }
}

/// The outputs of a cell, which `output` takes from its states.
fn each_step<S>(
    xs: &Tensor,
    step: impl Fn(&Tensor, Option<&S>) -> candle_dynquant::Result<S>,
    output: impl Fn(&S) -> Tensor,
) -> Result<Tensor> {
    let (mut state, mut outputs) = (None, Vec::new());
    for t in 0..xs.dim(0)? {
        let next = step(&xs.get(t)?, state.as_ref())?;
        outputs.push(output(&next));
        state = Some(next);
    }
    Ok(Tensor::stack(&outputs, 0)?)
}
