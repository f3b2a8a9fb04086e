//! Gradients: float recurrent layers have candle's, on all of their options; a backward pass
//! through a quantized layer is an error.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_dynquant::{QConfigSpec, Quantizable, Result, nn, ops, quantize_dynamic};
use candle_nn::{RNN as _, VarBuilder, VarMap};

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f64, name: &str) -> Result<()> {
    assert_eq!(got.dims(), expected.dims(), "{name}");
    for (got, expected) in values(got)?.into_iter().zip(values(expected)?) {
        let bound = tolerance * (1. + expected.abs());
        assert!((got - expected).abs() <= bound, "{name}: {got}, expected {expected}");
    }
    Ok(())
}

fn gradient<'a>(gradients: &'a GradStore, of: &Tensor, name: &str) -> &'a Tensor {
    let gradient = gradients.get(of);
    gradient.unwrap_or_else(|| panic!("{name} has no gradient"))
}

/// All variables by name, in order.
fn variables(vars: &VarMap) -> Vec<(String, Var)> {
    let data = vars.data().lock().expect("not poisoned");
    let mut all: Vec<_> = data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// The sum of squares of all states, weighted by step.
fn loss<'a>(states: impl Iterator<Item = &'a Tensor>) -> candle_core::Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F32, &Device::Cpu)?;
    for (step, h) in states.enumerate() {
        sum = (sum + (h.sqr()?.sum_all()? * (step + 1) as f64)?)?;
    }
    Ok(sum)
}

#[test]
fn gradients_of_lstm_and_gru_are_candles() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let xs = Var::randn(0f32, 1., (2, 5, 4), &Device::Cpu)?;
    let (inputs, hidden) = (4, 3);
    let ours = nn::lstm(inputs, hidden, Default::default(), vb.pp("lstm"))?;
    let theirs = candle_nn::lstm(inputs, hidden, Default::default(), vb.pp("lstm"))?;
    let (ours, theirs) = (ours.seq(&xs)?, theirs.seq(&xs)?);
    let lstm = [
        loss(ours.iter().flat_map(|s| [s.h(), s.c()]))?,
        loss(theirs.iter().flat_map(|s| [s.h(), s.c()]))?,
    ];
    let ours = nn::gru(inputs, hidden, Default::default(), vb.pp("gru"))?;
    let theirs = candle_nn::gru(inputs, hidden, Default::default(), vb.pp("gru"))?;
    let (ours, theirs) = (ours.seq(&xs)?, theirs.seq(&xs)?);
    let gru = [loss(ours.iter().map(|s| &s.h))?, loss(theirs.iter().map(|s| &s.h))?];
    for (kind, [ours, theirs]) in [("lstm", lstm), ("gru", gru)] {
        assert_close(&ours, &theirs, 1e-5, kind)?;
        let (ours, theirs) = (ours.backward()?, theirs.backward()?);
        let of_kind = variables(&vars).into_iter();
        let of_kind: Vec<_> = of_kind.filter(|(name, _)| name.starts_with(kind)).collect();
        assert_eq!(of_kind.len(), 4, "{kind}");
        for (name, var) in of_kind.into_iter().chain([("xs".to_owned(), xs.clone())]) {
            let (ours, theirs) = (gradient(&ours, &var, &name), gradient(&theirs, &var, &name));
            assert_close(ours, theirs, 1e-5, &name)?;
        }
    }
    Ok(())
}

/// A recurrent layer of any kind: output and states of an input, which may have lengths.
type Forward = Box<dyn Fn(&Tensor, Option<&[usize]>) -> Result<Vec<Tensor>>>;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lstm,
    Gru,
    Rnn,
}

fn layer(kind: Kind, config: nn::RecurrentConfig, vb: VarBuilder<'_>) -> Result<Forward> {
    let (inputs, hidden) = (3, 4);
    Ok(match kind {
        Kind::Lstm => {
            let layer = nn::LSTM::new(inputs, hidden, config, vb)?;
            Box::new(move |xs, lengths| {
                let (ys, state) = match lengths {
                    None => layer.forward(xs, None)?,
                    Some(lengths) => layer.forward_lengths(xs, lengths, None)?,
                };
                Ok(vec![ys, state.h, state.c])
            })
        }
        Kind::Gru => {
            let layer = nn::GRU::new(inputs, hidden, config, vb)?;
            Box::new(move |xs, lengths| {
                let (ys, h) = match lengths {
                    None => layer.forward(xs, None)?,
                    Some(lengths) => layer.forward_lengths(xs, lengths, None)?,
                };
                Ok(vec![ys, h])
            })
        }
        Kind::Rnn => {
            let layer = nn::RNN::new(inputs, hidden, nn::Nonlinearity::Tanh, config, vb)?;
            Box::new(move |xs, lengths| {
                let (ys, h) = match lengths {
                    None => layer.forward(xs, None)?,
                    Some(lengths) => layer.forward_lengths(xs, lengths, None)?,
                };
                Ok(vec![ys, h])
            })
        }
    })
}

/// A sum over all results in which each element has another weight.
fn weighted(results: &[Tensor]) -> Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F64, &Device::Cpu)?;
    for (i, result) in results.iter().enumerate() {
        let count = result.elem_count();
        let weights: Vec<_> = (0..count).map(|at| ((at * 7 + i) % 11) as f64 - 4.).collect();
        let weights = Tensor::from_vec(weights, result.dims(), &Device::Cpu)?;
        sum = (sum + (result.to_dtype(DType::F64)? * weights)?.sum_all()?)?;
    }
    Ok(sum)
}

/// The gradient of each variable against differences of the loss, and the results against the
/// kernels, which compute layers without gradients.
fn check(kind: Kind, config: nn::RecurrentConfig, lengths: Option<&[usize]>) -> Result<()> {
    let of = format!("{kind:?} {config:?} {lengths:?}");
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F64, &Device::Cpu);
    let layer_of = layer(kind, config, vb)?;
    let shape = if config.batch_first { (2, 3, 3) } else { (3, 2, 3) };
    let xs = Var::randn(0f64, 1., shape, &Device::Cpu)?;
    let results = layer_of(&xs, lengths)?;

    let constants = variables(&vars).into_iter();
    let constants = constants.map(|(name, var)| Ok((name, var.detach().to_dtype(DType::F32)?)));
    let constants = constants.collect::<Result<_>>()?;
    let vb = VarBuilder::from_tensors(constants, DType::F32, &Device::Cpu);
    let kernels = layer(kind, config, vb)?(&xs.detach(), lengths)?;
    for (got, expected) in results.iter().zip(&kernels) {
        assert_close(got, expected, 1e-5, &of)?;
    }

    let gradients = weighted(&results)?.backward()?;
    for (name, var) in variables(&vars).into_iter().chain([("xs".to_owned(), xs.clone())]) {
        let (of, step) = (format!("{of}, {name}"), 1e-5);
        let gradient = values(gradient(&gradients, &var, &of))?;
        let original = var.as_tensor().copy()?;
        // A few elements of each.
        for at in (0..gradient.len()).step_by(gradient.len().div_ceil(5)) {
            let mut sides = [0.; 2];
            for (side, sign) in sides.iter_mut().zip([1., -1.]) {
                let mut moved = values(&original)?;
                moved[at] += sign * step;
                var.set(&Tensor::from_vec(moved, original.dims(), &Device::Cpu)?)?;
                *side = weighted(&layer_of(&xs, lengths)?)?.to_scalar()?;
            }
            var.set(&original)?;
            let slope = (sides[0] - sides[1]) / (2. * step);
            let error = (gradient[at] - slope).abs();
            assert!(error <= 1e-6 * (1. + slope.abs()), "{of}: {} {slope}", gradient[at]);
        }
    }
    Ok(())
}

#[test]
fn gradients_are_the_slopes_of_every_option() -> Result<()> {
    let plain = nn::RecurrentConfig::default();
    let deep = nn::RecurrentConfig { num_layers: 2, bidirectional: true, ..plain };
    let batch_first = nn::RecurrentConfig { batch_first: true, bias: false, ..plain };
    let projected = nn::RecurrentConfig { proj_size: 2, ..deep };
    for kind in [Kind::Lstm, Kind::Gru, Kind::Rnn] {
        for config in [plain, deep, batch_first] {
            check(kind, config, None)?;
            check(kind, config, Some(&[1, 3]))?;
            check(kind, config, Some(&[2, 0]))?;
        }
    }
    check(Kind::Lstm, projected, None)?;
    check(Kind::Lstm, projected, Some(&[1, 3]))
}

#[test]
fn padding_has_no_part_in_a_gradient() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let lstm = nn::LSTM::new(3, 4, Default::default(), vb)?;
    let mut values = vec![0.5f32; 3 * 2 * 3];
    // The last step of the second sequence, which has two.
    values[2 * 2 * 3 + 3..].fill(f32::NAN);
    let xs = Var::from_vec(values, (3, 2, 3), &Device::Cpu)?;
    let (ys, state) = lstm.forward_lengths(&xs, &[3, 2], None)?;
    let loss = (ys.sum_all()? + state.c.sum_all()?)?;
    let gradients = loss.backward()?;
    for (name, var) in variables(&vars).into_iter().chain([("xs".to_owned(), xs)]) {
        let gradient = self::values(gradient(&gradients, &var, &name))?;
        assert!(gradient.iter().all(|value| value.is_finite()), "{name}");
    }
    Ok(())
}

#[test]
fn cells_have_the_gradients_of_one_step() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let xs = Var::randn(0f32, 1., (2, 3), &Device::Cpu)?;
    let state = Var::randn(0f32, 1., (2, 4), &Device::Cpu)?;
    let steps = |name: &str| {
        let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
        let of_cell = names.map(|part| (format!("{name}.{part}_l0"), format!("{name}.{part}")));
        let data = vars.data().lock().expect("not poisoned");
        let tensor = |(to, from): (String, String)| (to, data[&from].as_tensor().clone());
        of_cell.map(tensor).into_iter().collect()
    };
    let lstm = nn::LSTMCell::new(3, 4, true, vb.pp("lstm"))?;
    let layer = VarBuilder::from_tensors(steps("lstm"), DType::F32, &Device::Cpu);
    let layer = nn::LSTM::new(3, 4, Default::default(), layer.pp("lstm"))?;
    let start = nn::LSTMState::new(state.as_tensor().clone(), state.as_tensor().clone());
    let ours = lstm.forward(&xs, Some(&start))?;
    let theirs = layer.step(&xs, &start)?;
    let losses = [loss([&ours.h, &ours.c].into_iter())?, loss([&theirs.h, &theirs.c].into_iter())?];
    let gru = nn::GRUCell::new(3, 4, true, vb.pp("gru"))?;
    let layer = VarBuilder::from_tensors(steps("gru"), DType::F32, &Device::Cpu);
    let layer = nn::GRU::new(3, 4, Default::default(), layer.pp("gru"))?;
    let ours = gru.forward(&xs, Some(state.as_tensor()))?;
    let start = nn::GRUState { h: state.as_tensor().clone() };
    let theirs = layer.step(&xs, &start)?.h;
    for [ours, theirs] in [losses, [loss([&ours].into_iter())?, loss([&theirs].into_iter())?]] {
        let (ours, theirs) = (ours.backward()?, theirs.backward()?);
        for (name, var) in [("xs", &xs), ("state", &state)] {
            assert_close(gradient(&ours, var, name), gradient(&theirs, var, name), 1e-5, name)?;
        }
    }
    Ok(())
}

/// The message of a backward pass through `ys`.
fn refused(ys: &Tensor) -> Result<String> {
    let gradients = ys.sqr()?.sum_all()?.backward();
    Ok(gradients.expect_err("no gradient").to_string())
}

/// Gradients flow to whichever of input and weights they are tracked of.
#[test]
fn a_recurrent_layer_is_candle_s_where_anything_is_tracked() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let xs = Var::randn(0f32, 1., (5, 2, 3), &Device::Cpu)?;
    let of_weights = nn::LSTM::new(3, 4, Default::default(), vb.clone())?;
    let (ys, _) = of_weights.forward(&xs.as_detached_tensor(), None)?;
    let gradients = ys.sqr()?.sum_all()?.backward()?;
    for var in vars.all_vars() {
        assert!(gradients.get(&var).is_some());
    }
    let names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    let data = vars.data().lock().expect("variables");
    for kind in ["weight", "bias"] {
        let some = names.map(|name| {
            let of_kind = name.starts_with(kind);
            let tensor = of_kind.then(|| data[name].as_tensor().clone());
            (name.to_owned(), tensor.unwrap_or_else(|| data[name].as_detached_tensor()))
        });
        let some = VarBuilder::from_tensors(some.into(), DType::F32, &Device::Cpu);
        let layer = nn::LSTM::new(3, 4, Default::default(), some)?;
        let (ys, _) = layer.forward(&xs.as_detached_tensor(), None)?;
        let gradients = ys.sqr()?.sum_all()?.backward()?;
        assert!(gradients.get(&data[&format!("{kind}_ih_l0")]).is_some(), "{kind}");
    }
    let plain = names.map(|name| (name.to_owned(), data[name].as_detached_tensor()));
    let plain = VarBuilder::from_tensors(plain.into(), DType::F32, &Device::Cpu);
    let of_input = nn::LSTM::new(3, 4, Default::default(), plain)?;
    let (ys, _) = of_input.forward(&xs, None)?;
    assert!(ys.sqr()?.sum_all()?.backward()?.get(&xs).is_some());
    Ok(())
}

#[test]
fn states_have_the_rank_of_the_input() -> Result<()> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let lstm = nn::LSTM::new(3, 4, Default::default(), vb)?;
    for (shape, of_state) in [(&[5, 3][..], &[1, 4][..]), (&[5, 1, 3], &[1, 1, 4])] {
        let xs = Var::randn(0f32, 1., shape, &Device::Cpu)?;
        for xs in [xs.as_tensor().clone(), xs.as_detached_tensor()] {
            let (ys, state) = lstm.forward(&xs, None)?;
            assert_eq!(ys.rank(), shape.len());
            assert_eq!((state.h.dims(), state.c.dims()), (of_state, of_state));
        }
    }
    Ok(())
}

#[test]
fn a_backward_pass_through_a_quantized_layer_is_an_error() -> Result<()> {
    fn quantized<L: Quantizable>(mut layer: L, spec: &QConfigSpec) -> Result<L> {
        assert_eq!(quantize_dynamic(&mut layer, spec)?.swapped().count(), 1);
        Ok(layer)
    }
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let xs = Var::randn(0f32, 1., (5, 2, 3), &Device::Cpu)?;
    for spec in [QConfigSpec::int8().min_params(0), QConfigSpec::float16(), QConfigSpec::bfloat16()]
    {
        let linear = quantized(nn::linear(3, 4, vb.pp("linear"))?, &spec)?;
        let lstm = nn::LSTM::new(3, 4, Default::default(), vb.pp("lstm"))?;
        let lstm = quantized(lstm, &spec)?;
        let cell = quantized(nn::GRUCell::new(3, 4, true, vb.pp("cell"))?, &spec)?;
        let (ys, state) = lstm.forward(&xs, None)?;
        let [each] = nn::Linear::forward_each([&linear], &xs)?;
        let row = xs.get(0)?;
        let results = [
            (linear.forward(&xs)?, linear.forward(&xs.detach())?),
            (each, linear.forward(&xs.detach())?),
            (ys, lstm.forward(&xs.detach(), None)?.0),
            (state.c, lstm.forward(&xs.detach(), None)?.1.c),
            (cell.forward(&row, None)?, cell.forward(&row.detach(), None)?),
        ];
        for (tracked, plain) in &results {
            assert!(!plain.track_op());
            assert_eq!(values(tracked)?, values(plain)?);
            let message = refused(tracked)?;
            assert!(message.contains("quantized by candle-dynquant"), "{message}");
        }
    }
    Ok(())
}

#[test]
fn gradients_flow_through_gather() -> Result<()> {
    let xs = Var::randn(0f32, 1., (3, 6), &Device::Cpu)?;
    let indexes = Tensor::new(&[[0u32, 5, 5], [1, 2, 3], [4, 4, 4]], &Device::Cpu)?;
    let [ours, theirs] = [ops::gather(&xs, &indexes, 1)?, xs.gather(&indexes, 1)?];
    let [ours, theirs] = [ours.sqr()?.backward()?, theirs.sqr()?.backward()?];
    let expected = gradient(&theirs, &xs, "candle");
    assert_close(gradient(&ours, &xs, "gather"), expected, 0., "gather")
}

#[test]
fn gradients_reach_a_mask_that_is_added_in_any_dtype() -> Result<()> {
    let xs = Tensor::randn(0f32, 1., (1, 2, 3, 4), &Device::Cpu)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mask = Tensor::randn(0f32, 1., (1, 1, 3, 3), &Device::Cpu)?;
        let mask = Var::from_tensor(&mask.to_dtype(dtype)?)?;
        let added = ops::Mask::Add(&mask);
        let ys = ops::scaled_dot_product_attention(&xs, &xs, &xs, added, 0.5)?;
        let gradients = ys.sqr()?.backward()?;
        let sum = gradient(&gradients, &mask, "mask").to_dtype(DType::F32)?;
        assert!(sum.abs()?.sum_all()?.to_scalar::<f32>()? > 0., "{dtype:?}");
    }
    Ok(())
}
