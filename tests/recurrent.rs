//! Recurrent layers and cells: against torch 2.9.1, by the fixtures of `assets/reference`, and in use:
//! candle's interface, dtypes, empty input, mistakes.
//!
//! The quantized projections are equal bit for bit, and so is everything without a sigmoid or tanh.
//! Elsewhere torch's functions and this library's differ in the last places, so states are compared
//! within [`STATE`]: the fixture's metadata shows that accurate sigmoids and tanhs differ from
//! torch's by up to 3.6e-7 in a sequence, and 2 units in the last place more by 8.6e-7.

mod common;

use std::collections::HashMap;

use candle_dynquant::nn::{LSTMState, Nonlinearity, RecurrentConfig};
use candle_nn::RNN as _;
use common::fixture::{Failures, Fixture, size, sizes};
use common::generator::made;
use common::recurrent::Recurrent;
use common::*;
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
    fn new(json: &Value) -> Self {
        let recipes = json["tensors"].as_object().expect("tensors").iter();
        let tensors = recipes
            .map(|(name, recipe)| (name.clone(), made(&sizes(&recipe["shape"]), recipe)))
            .collect();
        Self { json: json.clone(), tensors }
    }

    fn name(&self) -> &str {
        self.json["name"].as_str().expect("a name")
    }

    fn kind(&self) -> &str {
        self.json["kind"].as_str().expect("a kind")
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

    fn xs(&self) -> &Tensor {
        &self.tensors["x"]
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

    fn load(&self) -> Result<Recurrent> {
        let mut config = RecurrentConfig { bias: self.flag("bias"), ..Default::default() };
        if !self.kind().ends_with("Cell") {
            config.num_layers = size(&self.json["num_layers"]);
            config.batch_first = self.flag("batch_first");
            config.bidirectional = self.flag("bidirectional");
            config.proj_size = size(&self.json["proj_size"]);
        }
        let sizes = ["input_size", "hidden_size"].map(|key| size(&self.json[key]));
        let vb = weights(self.tensors.clone());
        Ok(Recurrent::new(self.kind(), sizes, self.nonlinearity(), config, vb)?)
    }

    fn load_quantized(&self) -> Result<Recurrent> {
        let mut layer = self.load()?;
        quantize_dynamic(&mut layer, &QConfigSpec::default_kinds(self.qconfig()))?;
        Ok(layer)
    }

    /// Compares the results of a layer with torch's.
    fn compare(&self, layer: &Recurrent, fixture: &Fixture, failures: &mut Failures) -> Result<()> {
        let (lengths, h, c) = (self.lengths(), self.tensor("h_0"), self.tensor("c_0"));
        for (key, got) in layer.run(self.xs(), lengths.as_deref(), h, c)? {
            let expected = fixture.f32(&format!("{}.{key}", self.name()));
            compare_within(failures, format!("{key}: {}", self.json), &got, &expected, STATE);
        }
        Ok(())
    }
}

/// Compares within an absolute `bound`.
fn compare_within(
    failures: &mut Failures,
    case: String,
    got: &Tensor,
    expected: &[f32],
    bound: f32,
) {
    let got = values(got);
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // NaN is beyond any bound.
    let worst = worst.fold(0f32, |worst, d| if d <= worst { worst } else { d });
    let is_same = got.len() == expected.len() && worst <= bound;
    failures.check(is_same, format_args!("{case} differs by {worst:e}"));
}

#[test]
fn float_layers_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_float");
    let cases = fixture.cases();
    assert!(cases.len() >= 80);
    let mut failures = Failures::default();
    for case in cases.iter().map(Case::new) {
        case.compare(&case.load()?, &fixture, &mut failures)?;
    }
    failures.report(cases.len());
    Ok(())
}

#[test]
fn quantized_layers_and_cells_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_int8");
    let mut failures = Failures::default();
    let cases = fixture.cases();
    let [mut layers, mut cells] = [0; 2];
    for case in cases.iter().map(Case::new) {
        let layer = case.load_quantized()?;
        if case.json["steps"].is_null() {
            layers += 1;
            case.compare(&layer, &fixture, &mut failures)?;
            continue;
        }
        cells += 1;
        let (mut h, mut c) = (case.tensor("h_0").cloned(), case.tensor("c_0").cloned());
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for step in 0..size(&case.json["steps"]) {
            for (key, got) in layer.run(&case.xs().get(step)?, None, h.as_ref(), c.as_ref())? {
                if key == "h_n" { hs.push(got) } else { cs.push(got) }
            }
            (h, c) = (hs.last().cloned(), cs.last().cloned());
        }
        assert_eq!(cs.is_empty(), case.kind() != "LSTMCell");
        for (key, got) in [("output", hs), ("cell", cs)].iter().filter(|(_, got)| !got.is_empty()) {
            let got = Tensor::stack(got, 0)?;
            let expected = fixture.f32(&format!("{}.{key}", case.name()));
            let what = format!("{key}: {}", case.json);
            // Without a transcendental function the bits are equal.
            match case.nonlinearity() {
                Nonlinearity::Relu => failures.compare(what, &values(&got), &expected),
                Nonlinearity::Tanh => compare_within(&mut failures, what, &got, &expected, STATE),
            }
        }
    }
    assert!(layers >= 80 && cells >= 40, "{layers} {cells}");
    failures.report(cases.len());
    Ok(())
}

/// The first step's projections, before any sigmoid or tanh: the same bits.
#[test]
fn quantized_projections_equal_torch() -> Result<()> {
    let fixture = Fixture::open("recurrent_int8");
    let cases = fixture.cases();
    let mut failures = Failures::default();
    for case in cases.iter().map(Case::new) {
        let tail = if case.kind().ends_with("Cell") { "" } else { "_l0" };
        let projection = |name: &str| {
            let weight = case.tensor(&format!("weight_{name}{tail}")).expect("a weight");
            let bias = case.tensor(&format!("bias_{name}{tail}")).cloned();
            nn::Projection::new(weight.clone(), bias).quantize(&case.qconfig())
        };
        // One range for all steps of a layer, without padding; one for each call of a cell.
        let xs = match (tail, case.flag("batch_first")) {
            ("", _) => case.xs().narrow(0, 0, 1)?,
            (_, true) => case.xs().transpose(0, 1)?.contiguous()?,
            (_, false) => case.xs().clone(),
        };
        let (steps, batch, _) = xs.dims3()?;
        let lengths = case.lengths().unwrap_or(vec![steps; batch]);
        let valid = (0..steps).flat_map(|t| (0..batch).map(move |b| (t, b)));
        let valid: Vec<_> = valid.filter(|(t, b)| *t < lengths[*b]).collect();
        let rows = valid.iter().map(|(t, b)| xs.get(*t)?.get(*b));
        let rows = Tensor::stack(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
        let first = valid.iter().filter(|(t, _)| *t == 0).count();
        let ih = projection("ih")?.forward(&rows)?.narrow(0, 0, first)?;
        let h = match case.tensor("h_0") {
            None => zeros(&[batch, size(&case.json["hidden_size"])]),
            Some(h) if h.rank() == 3 => h.get(0)?,
            Some(h) => h.clone(),
        };
        for (key, got) in [("ih", ih), ("hh", projection("hh")?.forward(&h)?)] {
            let expected = fixture.f32(&format!("{}.{key}", case.name()));
            failures.compare(format_args!("{key}: {}", case.json), &values(&got), &expected);
        }
    }
    failures.report(2 * cases.len());
    Ok(())
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.dims(), b.dims());
    let worst = values(a).iter().zip(values(b)).fold(0f32, |w, (a, b)| w.max((a - b).abs()));
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn states_of_every_step_are_those_of_shorter_inputs_with_a_projection() -> Result<()> {
    let config = RecurrentConfig { proj_size: 4, batch_first: true, ..RecurrentConfig::default() };
    let mut lstm = nn::LSTM::new(7, 9, config, variables())?;
    quantize(&mut lstm);
    let xs = randn(&[2, 5, 7]);
    let start = LSTMState::new(zeros(&[2, 4]), zeros(&[2, 9]));
    for (step, state) in lstm.seq_init(&xs, &start)?.iter().enumerate() {
        let (_, shorter) = lstm.forward(&xs.narrow(1, 0, step + 1)?, None)?;
        assert_eq!(values(&state.h), values(&shorter.h), "{step}");
        assert_eq!(values(&state.c), values(&shorter.c), "{step}");
    }
    Ok(())
}

#[test]
fn candle_rnn_equals_candle() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let xs = randn(&[2, 5, 7]);

    let candle = candle_nn::lstm(7, 9, Default::default(), vb.pp("lstm"))?;
    let ours = nn::lstm(7, 9, Default::default(), vb.pp("lstm"))?;
    let (candle_states, states) = (candle.seq(&xs)?, ours.seq(&xs)?);
    for (candle, ours) in candle_states.iter().zip(&states) {
        close(&ours.h, &candle.h);
        close(&ours.c, &candle.c);
    }
    close(&ours.states_to_tensor(&states)?, &candle.states_to_tensor(&candle_states)?);
    let step = ours.step(&xs.narrow(1, 0, 1)?.squeeze(1)?, &ours.zero_state(2)?)?;
    close(&step.h, &states[0].h);

    let candle = candle_nn::gru(7, 9, Default::default(), vb.pp("gru"))?;
    let ours = nn::gru(7, 9, Default::default(), vb.pp("gru"))?;
    let (candle_states, states) = (candle.seq(&xs)?, ours.seq(&xs)?);
    for (candle, ours) in candle_states.iter().zip(&states) {
        close(&ours.h, &candle.h);
    }
    // candle's has the shape [2, 5 * 9].
    assert_eq!(ours.states_to_tensor(&states)?.dims(), [2, 5, 9]);

    let mut config = nn::LSTMConfig::default_no_bias();
    config.layer_idx = 1;
    config.direction = candle_nn::rnn::Direction::Backward;
    nn::lstm(7, 9, config, vb.pp("named"))?;
    let data = vars.data().lock().expect("vars");
    assert!(data.contains_key("named.weight_ih_l1_reverse"));
    assert!(!data.contains_key("named.bias_ih_l1_reverse"));
    Ok(())
}

#[derive(Quantizable, Clone)]
struct All {
    lstm: nn::LSTM,
    gru: nn::GRU,
    rnn: nn::RNN,
    lstm_cell: nn::LSTMCell,
    gru_cell: nn::GRUCell,
    rnn_cell: nn::RNNCell,
}

impl All {
    fn random(config: RecurrentConfig) -> Result<Self> {
        let (act, vb) = (Nonlinearity::Tanh, variables());
        Ok(Self {
            lstm: nn::LSTM::new(7, 9, config, vb.pp("lstm"))?,
            gru: nn::GRU::new(7, 9, config, vb.pp("gru"))?,
            rnn: nn::RNN::new(7, 9, act, config, vb.pp("rnn"))?,
            lstm_cell: nn::LSTMCell::new(7, 9, config.bias, vb.pp("lstm_cell"))?,
            gru_cell: nn::GRUCell::new(7, 9, config.bias, vb.pp("gru_cell"))?,
            rnn_cell: nn::RNNCell::new(7, 9, config.bias, act, vb.pp("rnn_cell"))?,
        })
    }
}

#[test]
fn all_kinds_are_swapped_by_int8_and_pytorchs_six_by_default() -> Result<()> {
    let config = RecurrentConfig { bidirectional: true, num_layers: 2, ..Default::default() };
    let float = All::random(config)?;
    let report = quantize(&mut float.clone());
    assert_eq!(report.swapped().count(), 6);
    assert_eq!(report.layers[0].kind, LayerKind::LSTM);
    // 2 layers in 2 directions of 4 * 9 gates.
    assert_eq!(report.layers[0].parameters, 2 * 36 * (7 + 9) + 2 * 36 * (18 + 9));
    let report = quantize_dynamic(&mut float.clone(), &QConfigSpec::pytorch())?;
    let left: Vec<_> = report.left().map(|layer| layer.kind.clone()).collect();
    assert_eq!(left, [LayerKind::RNN]);
    Ok(())
}

#[test]
fn every_dtype_and_empty_input() -> Result<()> {
    for (bias, is_quantized) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut all = All::random(RecurrentConfig { bias, ..Default::default() })?;
        if is_quantized {
            quantize(&mut all);
        }
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let xs = randn(&[4, 2, 7]).to_dtype(dtype)?;
            let (ys, state) = all.lstm.forward(&xs, None)?;
            let (wide, _) = all.lstm.forward(&xs.to_dtype(DType::F32)?, None)?;
            assert_eq!((ys.dtype(), state.h.dtype(), state.c.dtype()), (dtype, dtype, dtype));
            assert_same(&ys, &wide.to_dtype(dtype)?, "another dtype");
            // A state of another dtype is taken as well.
            all.lstm.forward(&xs.to_dtype(DType::F32)?, Some(&state))?;
            assert_eq!(all.gru_cell.forward(&xs.get(0)?, None)?.dtype(), dtype);
        }
        // Without steps the state is unchanged; without sequences the results are empty.
        let h = randn(&[1, 2, 9]);
        let (ys, last) = all.gru.forward(&randn(&[0, 2, 7]), Some(&h))?;
        assert_eq!((ys.dims(), values(&last)), (&[0, 2, 9][..], values(&h)));
        let (ys, last) = all.rnn.forward(&randn(&[3, 0, 7]), None)?;
        assert_eq!((ys.dims(), last.dims()), (&[3, 0, 9][..], &[1, 0, 9][..]));
        let (ys, last) = all.gru.forward_lengths(&randn(&[3, 2, 7]), &[0, 3], Some(&h))?;
        assert_eq!(values(&last.get(0)?.get(0)?), values(&h.get(0)?.get(0)?));
        assert!(values(&ys).chunks(9).step_by(2).all(|row| row.iter().all(|y| *y == 0.)));
        assert_eq!(all.lstm_cell.forward(&randn(&[0, 7]), None)?.c.dims(), [0, 9]);
    }
    Ok(())
}

#[test]
fn a_sequence_that_is_not_finite_touches_no_other() -> Result<()> {
    for spec in [all_int8(), QConfigSpec::pytorch()] {
        let mut all = All::random(Default::default())?;
        quantize_dynamic(&mut all, &spec)?;
        let mut data = values(&randn(&[4, 3, 7]));
        data[7] = f32::NAN; // sequence 1 at step 0
        let (ys, _) = all.lstm.forward(&Tensor::from_vec(data, (4, 3, 7), CPU)?, None)?;
        for (index, row) in values(&ys).chunks(9).enumerate() {
            assert_eq!(row.iter().all(|y| y.is_nan()), index % 3 == 1, "row {index}");
            assert_eq!(row.iter().any(|y| y.is_nan()), index % 3 == 1, "row {index}");
        }
    }
    Ok(())
}

#[test]
fn mistakes_are_errors_that_name_the_layer() -> Result<()> {
    let float = All::random(Default::default())?;
    let mut int8 = float.clone();
    quantize(&mut int8);
    for All { lstm, gru, lstm_cell, gru_cell, rnn_cell, .. } in [&float, &int8] {
        for shape in [&[3, 2, 8][..], &[3, 8], &[7], &[1, 3, 2, 7]] {
            let named = ["lstm: ", ", 7] or [steps, 7], got ", &format!("{shape:?}")];
            assert_fails(lstm.forward(&randn(shape), None), &named);
        }
        for (shape, is_good) in [
            (&[7][..], true),
            (&[2, 7], true),
            (&[9], false),
            (&[2, 9], false),
            (&[2, 1, 7], false),
        ] {
            let result = lstm_cell.forward(&randn(shape), None);
            if is_good {
                result?;
            } else {
                let expected = format!("expected [batch, 7] or [7], got {shape:?}");
                assert_fails(result, &["lstm_cell", &expected]);
            }
        }
        let xs = randn(&[3, 2, 7]);
        assert_fails(gru_cell.forward(&xs, None), &["gru_cell", "[batch, 7]"]);
        let ints = Tensor::zeros((3, 2, 7), DType::U32, CPU)?;
        assert_fails(gru.forward(&ints, None), &["gru", "f32, f16, bf16 or f64", "U32"]);
        let state = LSTMState::new(randn(&[1, 2, 9]), randn(&[1, 3, 9]));
        let named = ["lstm", "state c", "[1, 2, 9]", "[1, 3, 9]"];
        assert_fails(lstm.forward(&xs, Some(&state)), &named);
        let state = randn(&[2, 9]);
        assert_fails(gru.forward(&xs, Some(&state)), &["gru", "state h", "[1, 2, 9]", "[2, 9]"]);
        assert_fails(rnn_cell.forward(&xs.get(0)?, Some(&randn(&[9]))), &["rnn_cell", "[2, 9]"]);
        let of_lengths = |lengths: &[usize]| gru.forward_lengths(&xs, lengths, None);
        assert_fails(of_lengths(&[3]), &["gru", "lengths", "2 sequences", "1 lengths"]);
        assert_fails(of_lengths(&[3, 4]), &["gru", "at most the 3", "4 for sequence 1"]);
    }

    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let with = |change: fn(&mut RecurrentConfig)| {
        let mut config = RecurrentConfig::default();
        change(&mut config);
        config
    };
    let none = nn::GRU::new(7, 9, with(|c| c.num_layers = 0), vb.clone());
    assert_fails(none, &["num_layers", "at least 1"]);
    let projected = nn::GRU::new(7, 9, with(|c| c.proj_size = 3), vb.pp("decoder"));
    assert_fails(projected, &["decoder: ", "proj_size", "LSTM", "3"]);
    let projected = nn::LSTM::new(7, 9, with(|c| c.proj_size = 9), vb.clone());
    assert_fails(projected, &["proj_size", "less than"]);
    // candle's interface has no sequence without a batch, whatever the state.
    let (xs, h) = (randn(&[5, 7]), randn(&[9]));
    let named = ["one", "[batch, steps, 7]", "[5, 7]"];
    let one = nn::LSTM::new(7, 9, Default::default(), vb.pp("one"))?;
    assert_fails(one.seq_init(&xs, &LSTMState::new(h.clone(), h.clone())), &named);
    let one = nn::GRU::new(7, 9, Default::default(), vb.pp("one_gru"))?;
    assert_fails(one.seq_init(&xs, &nn::GRUState { h }), &named);
    let two = nn::LSTM::new(7, 9, with(|c| c.num_layers = 2), vb.pp("two"))?;
    assert_fails(two.zero_state(1), &["two", "one layer in one direction"]);

    // A checkpoint without the reverse direction, and a checkpoint with a wrong shape.
    let data = vars.data().lock().expect("vars");
    let vb = weights(data.iter().map(|(name, var)| (name, var.as_tensor().clone())));
    let both = nn::LSTM::new(7, 9, with(|c| c.bidirectional = true), vb.pp("two"));
    assert_fails(both, &["two.weight_ih_l0_reverse"]);
    let wide = nn::LSTM::new(8, 9, Default::default(), vb.pp("two"));
    assert_fails(wide, &["two.weight_ih_l0", "[36, 8]", "[36, 7]"]);
    Ok(())
}

#[test]
fn a_weight_that_is_not_finite_is_named() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let lstm = nn::LSTM::new(7, 9, Default::default(), vb.pp("lstm"))?;
    let bad = Tensor::full(f32::INFINITY, (36, 9), CPU)?;
    vars.data().lock().expect("vars")["lstm.weight_hh_l0"].set(&bad)?;
    let error = quantize_dynamic(&mut vec![lstm], &all_int8()).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("0.weight_hh_l0: ") && message.contains("inf"), "{message}");
    // A chain of sources, as anyhow prints it, does not repeat the message.
    assert!(std::error::Error::source(&error).is_none());
    Ok(())
}

#[test]
fn a_size_beyond_all_memory_is_an_error() {
    let huge = usize::MAX / 2;
    for kind in ["LSTM", "GRU", "LSTMCell", "GRUCell"] {
        let act = Nonlinearity::Tanh;
        let layer = Recurrent::new(kind, [1, huge], act, Default::default(), variables());
        assert_fails(layer, &["weight: expected at most", &huge.to_string()]);
    }
}

#[test]
fn new_parameters_are_drawn_as_pytorch_draws_them() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    nn::LSTM::new(8, 25, RecurrentConfig::default(), vb)?;
    // All uniform up to 1 / sqrt(25).
    for (name, var) in vars.data().lock().expect("no panic").iter() {
        let greatest = values(var).into_iter().fold(0f32, |max, x| max.max(x.abs()));
        assert!((0.15..=0.2).contains(&greatest), "{name}: {greatest}");
    }
    Ok(())
}
