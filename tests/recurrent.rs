//! Recurrent layers and cells against torch 2.9.1, by the fixtures of `assets/reference`.
//!
//! The quantized projections are equal bit for bit, and so is everything without a sigmoid or tanh.
//! Elsewhere torch's functions and this library's differ in the last places, so states are compared
//! within [`STATE`]: the fixture's metadata shows that accurate sigmoids and tanhs differ from
//! torch's by up to 3.6e-7 in a sequence, and 2 units in the last place more by 8.6e-7.

mod common;

use std::collections::HashMap;

use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::nn::{self, Nonlinearity, RecurrentConfig};
use candle_dynquant::{Granularity, QConfig, QConfigSpec, Quantizable, quantize_dynamic};
use candle_nn::VarBuilder;
use common::fixture::{Fixture, difference, report};
use common::generator;
use serde_json::Value;

/// Greatest difference of a state or output.
const STATE: f32 = 1e-6;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A case of a fixture, with its tensors.
struct Case {
    json: Value,
    tensors: HashMap<String, Tensor>,
}

impl Case {
    fn new(json: &Value) -> Result<Self> {
        let recipes = json["tensors"].as_object().expect("tensors");
        let tensors = recipes.iter().map(|(name, recipe)| {
            let shape = sizes(&recipe["shape"]);
            let values = generator::tensor(&shape, recipe);
            Ok((name.clone(), Tensor::from_vec(values, shape, &Device::Cpu)?))
        });
        Ok(Self { json: json.clone(), tensors: tensors.collect::<Result<_>>()? })
    }

    fn name(&self) -> &str {
        self.json["name"].as_str().expect("a name")
    }

    fn kind(&self) -> &str {
        self.json["kind"].as_str().expect("a kind")
    }

    fn size(&self, key: &str) -> usize {
        self.json[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize
    }

    fn flag(&self, key: &str) -> bool {
        self.json[key].as_bool().unwrap_or_else(|| panic!("{key}"))
    }

    fn lengths(&self) -> Option<Vec<usize>> {
        self.json["lengths"].is_array().then(|| sizes(&self.json["lengths"]))
    }

    fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    fn vb(&self) -> VarBuilder<'static> {
        VarBuilder::from_tensors(self.tensors.clone(), DType::F32, &Device::Cpu)
    }

    fn config(&self) -> RecurrentConfig {
        RecurrentConfig {
            num_layers: self.size("num_layers"),
            bias: self.flag("bias"),
            batch_first: self.flag("batch_first"),
            bidirectional: self.flag("bidirectional"),
            proj_size: self.size("proj_size"),
        }
    }

    fn nonlinearity(&self) -> Nonlinearity {
        match self.json["nonlinearity"].as_str() {
            Some("relu") => Nonlinearity::Relu,
            _ => Nonlinearity::Tanh,
        }
    }

    fn qconfig(&self) -> QConfig {
        if self.flag("per_channel") { QConfig::per_channel() } else { QConfig::pytorch() }
    }

    /// How the results of a layer differ from torch's.
    fn faults(&self, layer: &Layer, fixture: &Fixture) -> Result<Vec<String>> {
        let (xs, h) = (self.tensor("x").expect("x"), self.tensor("h_0"));
        let (lengths, state) = (self.lengths(), self.state());
        let mut faults = Vec::new();
        for (key, got) in layer.run(xs, lengths.as_deref(), state.as_ref(), h)? {
            let expected = fixture.f32(&format!("{}.{key}", self.name()));
            let fault = beyond(&got, &expected, STATE)?;
            faults.extend(fault.map(|fault| format!("{key} {fault}")));
        }
        Ok(faults)
    }

    fn state(&self) -> Option<nn::LSTMState> {
        let (h, c) = (self.tensor("h_0")?, self.tensor("c_0")?);
        Some(nn::LSTMState::new(h.clone(), c.clone()))
    }
}

fn sizes(json: &Value) -> Vec<usize> {
    let sizes = json.as_array().expect("sizes");
    sizes.iter().map(|size| size.as_u64().expect("a size") as usize).collect()
}

/// Any recurrent layer or cell.
#[derive(Quantizable, Clone)]
enum Layer {
    Lstm(nn::LSTM),
    Gru(nn::GRU),
    Rnn(nn::RNN),
    LstmCell(nn::LSTMCell),
    GruCell(nn::GRUCell),
    RnnCell(nn::RNNCell),
}

impl Layer {
    fn load(case: &Case) -> Result<Self> {
        let (input, hidden) = (case.size("input_size"), case.size("hidden_size"));
        let (bias, act) = (case.flag("bias"), case.nonlinearity());
        Ok(match case.kind() {
            "LSTM" => Self::Lstm(nn::LSTM::new(input, hidden, case.config(), case.vb())?),
            "GRU" => Self::Gru(nn::GRU::new(input, hidden, case.config(), case.vb())?),
            "RNN" => Self::Rnn(nn::RNN::new(input, hidden, act, case.config(), case.vb())?),
            "LSTMCell" => Self::LstmCell(nn::LSTMCell::new(input, hidden, bias, case.vb())?),
            "GRUCell" => Self::GruCell(nn::GRUCell::new(input, hidden, bias, case.vb())?),
            "RNNCell" => Self::RnnCell(nn::RNNCell::new(input, hidden, bias, act, case.vb())?),
            kind => panic!("unknown kind {kind}"),
        })
    }

    /// Results under the fixture's names; a cell is called once on `xs`.
    fn run(
        &self,
        xs: &Tensor,
        lengths: Option<&[usize]>,
        state: Option<&nn::LSTMState>,
        h: Option<&Tensor>,
    ) -> Result<Vec<(&'static str, Tensor)>> {
        let with_h = |(ys, h): (Tensor, Tensor)| vec![("output", ys), ("h_n", h)];
        Ok(match (self, lengths) {
            (Self::Lstm(lstm), lengths) => {
                let (ys, state) = match lengths {
                    None => lstm.forward(xs, state)?,
                    Some(lengths) => lstm.forward_lengths(xs, lengths, state)?,
                };
                vec![("output", ys), ("h_n", state.h), ("c_n", state.c)]
            }
            (Self::Gru(gru), None) => with_h(gru.forward(xs, h)?),
            (Self::Gru(gru), Some(lengths)) => with_h(gru.forward_lengths(xs, lengths, h)?),
            (Self::Rnn(rnn), None) => with_h(rnn.forward(xs, h)?),
            (Self::Rnn(rnn), Some(lengths)) => with_h(rnn.forward_lengths(xs, lengths, h)?),
            (Self::LstmCell(cell), _) => {
                let state = cell.forward(xs, state)?;
                vec![("h_n", state.h), ("c_n", state.c)]
            }
            (Self::GruCell(cell), _) => vec![("h_n", cell.forward(xs, h)?)],
            (Self::RnnCell(cell), _) => vec![("h_n", cell.forward(xs, h)?)],
        })
    }
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// The difference of `got` beyond an absolute `bound`, if there is one.
fn beyond(got: &Tensor, expected: &[f32], bound: f32) -> Result<Option<String>> {
    let got = values(got)?;
    if got.len() != expected.len() {
        return Ok(Some(format!("{} elements, expected {}", got.len(), expected.len())));
    }
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // NaN is beyond any bound.
    let worst = worst.fold(0f32, |worst, d| if d <= worst { worst } else { d });
    let fault = worst.is_nan() || worst > bound;
    Ok(fault.then(|| format!("differs by {worst:e}")))
}

#[test]
fn float_layers_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_float");
    let cases = fixture.cases();
    assert!(cases.len() >= 80);
    let mut failures = Vec::new();
    for json in &cases {
        let case = Case::new(json)?;
        let layer = Layer::load(&case)?;
        failures.extend(
            case.faults(&layer, &fixture)?.into_iter().map(|fault| format!("{fault}: {json}")),
        );
    }
    report(&failures, cases.len());
    Ok(())
}

#[test]
fn quantized_layers_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_int8");
    let mut failures = Vec::new();
    let cases: Vec<_> = fixture.cases();
    let layers = cases.iter().filter(|case| case["steps"].is_null());
    let mut count = 0;
    for json in layers {
        count += 1;
        let case = Case::new(json)?;
        let mut layer = Layer::load(&case)?;
        quantize_dynamic(&mut layer, &QConfigSpec::default_kinds(case.qconfig()))?;
        failures.extend(
            case.faults(&layer, &fixture)?.into_iter().map(|fault| format!("{fault}: {json}")),
        );
    }
    assert!(count >= 80, "{count}");
    report(&failures, count);
    Ok(())
}

#[test]
fn quantized_cells_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_int8");
    let mut failures = Vec::new();
    let cases: Vec<_> = fixture.cases();
    let cells = cases.iter().filter(|case| !case["steps"].is_null());
    let mut count = 0;
    for json in cells {
        count += 1;
        let case = Case::new(json)?;
        let mut cell = Layer::load(&case)?;
        quantize_dynamic(&mut cell, &QConfigSpec::default_kinds(case.qconfig()))?;
        let (mut h, mut state) = (case.tensor("h_0").cloned(), case.state());
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for step in 0..case.size("steps") {
            let xs = case.tensor("x").expect("x").get(step)?;
            for (key, got) in cell.run(&xs, None, state.as_ref(), h.as_ref())? {
                match key {
                    "h_n" => hs.push(got),
                    _ => cs.push(got),
                }
            }
            h = hs.last().cloned();
            if let (Some(h), Some(c)) = (hs.last(), cs.last()) {
                state = Some(nn::LSTMState::new(h.clone(), c.clone()));
            }
        }
        let mut check = |key: &str, got: &[Tensor]| -> Result<()> {
            let got = Tensor::stack(got, 0)?;
            let expected = fixture.f32(&format!("{}.{key}", case.name()));
            // Without a transcendental function the bits are equal.
            let fault = match case.nonlinearity() {
                Nonlinearity::Relu => difference(&values(&got)?, &expected),
                Nonlinearity::Tanh => beyond(&got, &expected, STATE)?,
            };
            failures.extend(fault.map(|fault| format!("{key} {fault}: {json}")));
            Ok(())
        };
        check("output", &hs)?;
        if case.kind() == "LSTMCell" {
            check("cell", &cs)?;
        }
    }
    assert!(count >= 40, "{count}");
    report(&failures, count);
    Ok(())
}

/// The first step's projections, before any sigmoid or tanh: the same bits.
#[test]
fn quantized_projections_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_int8");
    let cases = fixture.cases();
    let mut failures = Vec::new();
    for json in &cases {
        let case = Case::new(json)?;
        let tail = if case.kind().ends_with("Cell") { "" } else { "_l0" };
        let projection = |name: &str| {
            let weight = case.tensor(&format!("weight_{name}{tail}")).expect("a weight");
            let bias = case.tensor(&format!("bias_{name}{tail}")).cloned();
            nn::Projection::new(weight.clone(), bias).quantize(&case.qconfig())
        };
        // One range for all steps of a layer, without padding; one for each call of a cell.
        let xs = case.tensor("x").expect("x");
        let xs = match (case.kind().ends_with("Cell"), case.flag("batch_first")) {
            (true, _) => xs.narrow(0, 0, 1)?,
            (false, true) => xs.transpose(0, 1)?.contiguous()?,
            (false, false) => xs.clone(),
        };
        let (steps, batch, _) = xs.dims3()?;
        let lengths = case.lengths().unwrap_or(vec![steps; batch]);
        let valid = (0..steps).flat_map(|t| (0..batch).map(move |b| (t, b)));
        let valid: Vec<_> = valid.filter(|(t, b)| *t < lengths[*b]).collect();
        let rows = valid.iter().map(|(t, b)| xs.get(*t)?.get(*b));
        let rows = Tensor::stack(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
        let first = valid.iter().filter(|(t, _)| *t == 0).count();
        let ih = projection("ih")?.forward(&rows)?.narrow(0, 0, first)?;

        let hidden = case.size("hidden_size");
        let h = match case.tensor("h_0") {
            None => Tensor::zeros((batch, hidden), DType::F32, &Device::Cpu)?,
            Some(h) if h.rank() == 3 => h.get(0)?,
            Some(h) => h.clone(),
        };
        let hh = projection("hh")?.forward(&h)?;
        for (key, got) in [("ih", ih), ("hh", hh)] {
            let expected = fixture.f32(&format!("{}.{key}", case.name()));
            let fault = difference(&values(&got)?, &expected);
            failures.extend(fault.map(|fault| format!("{key} {fault}: {json}")));
        }
    }
    report(&failures, 2 * cases.len());
    Ok(())
}

#[test]
fn per_row_rows_do_not_depend_on_their_batch_or_padding() -> Result<()> {
    let fixture = Fixture::open("recurrent_float");
    let spec = QConfigSpec::int8().min_params(0);
    let QConfig::Int8 { activation, .. } = QConfig::int8() else {
        unreachable!("codes");
    };
    assert_eq!(activation.granularity, Granularity::PerRow);
    let mut count = 0;
    for json in &fixture.cases() {
        let case = Case::new(json)?;
        let (Some(lengths), xs) = (case.lengths(), case.tensor("x").expect("x")) else {
            continue;
        };
        count += 1;
        let mut layer = Layer::load(&case)?;
        quantize_dynamic(&mut layer, &spec)?;
        let batch_axis = if case.flag("batch_first") { 0 } else { 1 };
        let together = layer.run(xs, Some(&lengths), None, None)?;
        for (sequence, length) in lengths.iter().enumerate() {
            let alone = xs.narrow(batch_axis, sequence, 1)?.narrow(1 - batch_axis, 0, *length)?;
            for ((key, alone), (_, together)) in
                layer.run(&alone, None, None, None)?.iter().zip(&together)
            {
                let together = match *key {
                    "output" => together.narrow(batch_axis, sequence, 1)?.narrow(
                        1 - batch_axis,
                        0,
                        *length,
                    )?,
                    _ => together.narrow(1, sequence, 1)?,
                };
                let fault = difference(&values(alone)?, &values(&together)?);
                assert_eq!(fault, None, "{key} of sequence {sequence}: {json}");
            }
        }
    }
    assert!(count >= 10, "{count}");
    Ok(())
}
