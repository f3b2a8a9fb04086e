//! Our side of `run.sh`: loads a case, computes its outputs, and times its contenders when asked.
//!
//! One JSON object a line on standard input, one on standard output:
//! `{"op": "isa"}`, `{"op": "load", "case": .., "file": .., "out": ..}` and
//! `{"op": "time", "contender": .., "calls": ..}`.
#![allow(missing_docs)]

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::nn::{self, Nonlinearity, RecurrentConfig};
use candle_dynquant::{QConfigSpec, Quantizable, kernels::Isa, quantize_dynamic};
use candle_nn::{RNN as _, VarBuilder};
use serde_json::{Value, json};

/// Something that is timed: a whole call.
type Contender = Box<dyn Fn() -> Result<Tensor>>;

fn main() -> Result<()> {
    let mut contenders = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = answer(&request, &mut contenders);
        let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}

fn answer(request: &Value, contenders: &mut HashMap<&'static str, Contender>) -> Result<Value> {
    let text = |key: &str| {
        request[key]
            .as_str()
            .with_context(|| format!("{key} is missing"))
    };
    match text("op")? {
        "isa" => Ok(json!({ "isa": Isa::active()?.to_string() })),
        "load" => {
            let tensors = candle_core::safetensors::load(text("file")?, &Device::Cpu)?;
            let case = &request["case"];
            let (made, default) = match case["group"].as_str() {
                Some("linear") => linear(tensors)?,
                Some("recurrent") => recurrent(case, tensors)?,
                group => bail!("unknown group {group:?}"),
            };
            let int8 = made["ours"]()?;
            let outputs = HashMap::from([("int8", int8), ("default", default)]);
            candle_core::safetensors::save(&outputs, text("out")?)?;
            let mut names: Vec<_> = made.keys().copied().collect();
            names.sort_by_key(|name| *name != "ours");
            *contenders = made;
            Ok(json!({ "contenders": names }))
        }
        "time" => {
            let contender = contenders
                .get(text("contender")?)
                .context("no such contender")?;
            let calls = request["calls"].as_u64().context("calls is missing")?;
            let start = Instant::now();
            for _ in 0..calls {
                std::hint::black_box(contender()?);
            }
            Ok(json!({ "us": 1e6 * start.elapsed().as_secs_f64() / calls as f64 }))
        }
        op => bail!("unknown op {op}"),
    }
}

/// `layer` quantized by `spec`.
fn quantized<L: Quantizable + Clone>(layer: &L, spec: QConfigSpec) -> Result<L> {
    let mut layer = layer.clone();
    quantize_dynamic(&mut layer, &spec)?;
    Ok(layer)
}

/// The contenders of a case, and the output with PyTorch's preset.
type Case = (HashMap<&'static str, Contender>, Tensor);

fn linear(mut tensors: HashMap<String, Tensor>) -> Result<Case> {
    let xs = tensors.remove("xs").context("xs")?;
    let weight = tensors.remove("weight").context("weight")?;
    let candle = candle_nn::Linear::new(weight.clone(), tensors.remove("bias"));
    let q8_0 = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
    let float = nn::Linear::from(candle.clone());
    let default = quantized(&float, QConfigSpec::default())?.forward(&xs)?;
    let ours = quantized(&float, QConfigSpec::int8())?;
    let module = |module: Box<dyn Module>, xs: &Tensor| -> Contender {
        let xs = xs.clone();
        Box::new(move || Ok(module.forward(&xs)?))
    };
    let contenders = HashMap::from([
        ("ours", module(Box::new(ours), &xs)),
        ("candle f32", module(Box::new(candle), &xs)),
        ("candle Q8_0", module(Box::new(q8_0), &xs)),
    ]);
    Ok((contenders, default))
}

fn recurrent(case: &Value, mut tensors: HashMap<String, Tensor>) -> Result<Case> {
    let size = |key: &str| {
        case[key]
            .as_u64()
            .map(|size| size as usize)
            .with_context(|| key.to_owned())
    };
    let (input, hidden) = (size("input")?, size("hidden")?);
    let config = RecurrentConfig {
        num_layers: size("layers")?,
        bidirectional: case["bidirectional"].as_bool().context("bidirectional")?,
        ..Default::default()
    };
    let xs = tensors.remove("xs").context("xs")?;
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
    let default = quantized(&float, QConfigSpec::default())?.run(&xs)?;
    let ours = quantized(&float, QConfigSpec::int8())?;
    let mut contenders: HashMap<&'static str, Contender> = HashMap::new();
    let batch_first = xs.transpose(0, 1)?.contiguous()?;
    contenders.insert("ours", Box::new(move || ours.run(&xs)));
    // candle has one layer in one direction, batch first.
    if config.num_layers == 1 && !config.bidirectional {
        match &float {
            Recurrent::Lstm(_) => {
                let candle = candle_nn::lstm(input, hidden, Default::default(), vb)?;
                let run = move || Ok(candle.states_to_tensor(&candle.seq(&batch_first)?)?);
                contenders.insert("candle f32", Box::new(run));
            }
            Recurrent::Gru(_) => {
                let candle = candle_nn::gru(input, hidden, Default::default(), vb)?;
                let run = move || Ok(candle.states_to_tensor(&candle.seq(&batch_first)?)?);
                contenders.insert("candle f32", Box::new(run));
            }
            _ => {}
        }
    }
    Ok((contenders, default))
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
        let cell = |step: &mut dyn FnMut(&Tensor) -> Result<Tensor>| -> Result<Tensor> {
            let steps = (0..xs.dim(0)?).map(|t| step(&xs.get(t)?));
            Ok(Tensor::stack(&steps.collect::<Result<Vec<_>>>()?, 0)?)
        };
        match self {
            Self::Lstm(lstm) => Ok(lstm.forward(xs, None)?.0),
            Self::Gru(gru) => Ok(gru.forward(xs, None)?.0),
            Self::LstmCell(lstm) => {
                let mut state = None;
                cell(&mut |x| {
                    let next = lstm.forward(x, state.as_ref())?;
                    let h = next.h.clone();
                    state = Some(next);
                    Ok(h)
                })
            }
            Self::GruCell(gru) => {
                let mut h = None;
                cell(&mut |x| {
                    let next = gru.forward(x, h.as_ref())?;
                    h = Some(next.clone());
                    Ok(next)
                })
            }
            Self::RnnCell(rnn) => {
                let mut h = None;
                cell(&mut |x| {
                    let next = rnn.forward(x, h.as_ref())?;
                    h = Some(next.clone());
                    Ok(next)
                })
            }
        }
    }
}
