//! Gradients: float recurrent layers have candle's, on all of their options; a backward pass
//! through a quantized layer is an error.

mod common;

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_dynquant::{Result, ops};
use candle_nn::RNN as _;
use common::recurrent::Recurrent;
use common::*;

fn f64s(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f64, name: &str) -> Result<()> {
    assert_eq!(got.dims(), expected.dims(), "{name}");
    for (got, expected) in f64s(got)?.into_iter().zip(f64s(expected)?) {
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
fn named(vars: &VarMap) -> BTreeMap<String, Var> {
    let data = vars.data().lock().expect("not poisoned");
    data.iter().map(|(name, var)| (name.clone(), var.clone())).collect()
}

/// The sum of squares of all states, weighted by step.
fn loss<'a>(states: impl Iterator<Item = &'a Tensor>) -> candle_core::Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F32, CPU)?;
    for (step, h) in states.enumerate() {
        sum = (sum + (h.sqr()?.sum_all()? * (step + 1) as f64)?)?;
    }
    Ok(sum)
}

#[test]
fn gradients_of_lstm_and_gru_are_candles() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let xs = Var::from_tensor(&randn(&[2, 5, 4]))?;
    let ours = nn::lstm(4, 3, Default::default(), vb.pp("lstm"))?.seq(&xs)?;
    let theirs = candle_nn::lstm(4, 3, Default::default(), vb.pp("lstm"))?.seq(&xs)?;
    let lstm = [
        loss(ours.iter().flat_map(|s| [s.h(), s.c()]))?,
        loss(theirs.iter().flat_map(|s| [s.h(), s.c()]))?,
    ];
    let ours = nn::gru(4, 3, Default::default(), vb.pp("gru"))?.seq(&xs)?;
    let theirs = candle_nn::gru(4, 3, Default::default(), vb.pp("gru"))?.seq(&xs)?;
    let gru = [loss(ours.iter().map(|s| &s.h))?, loss(theirs.iter().map(|s| &s.h))?];
    for (kind, [ours, theirs]) in [("lstm", lstm), ("gru", gru)] {
        assert_close(&ours, &theirs, 1e-5, kind)?;
        let (ours, theirs) = (ours.backward()?, theirs.backward()?);
        let of_kind = named(&vars).into_iter();
        let of_kind: Vec<_> = of_kind.filter(|(name, _)| name.starts_with(kind)).collect();
        assert_eq!(of_kind.len(), 4, "{kind}");
        for (name, var) in of_kind.into_iter().chain([("xs".to_owned(), xs.clone())]) {
            let (ours, theirs) = (gradient(&ours, &var, &name), gradient(&theirs, &var, &name));
            assert_close(ours, theirs, 1e-5, &name)?;
        }
    }
    Ok(())
}

/// A sum over all results in which each element has another weight.
fn weighted(results: &[(&str, Tensor)]) -> Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F64, CPU)?;
    for (i, (_, result)) in results.iter().enumerate() {
        let weights = (0..result.elem_count()).map(|at| ((at * 7 + i) % 11) as f64 - 4.);
        let weights = Tensor::from_iter(weights, CPU)?.reshape(result.dims())?;
        sum = (sum + (result.to_dtype(DType::F64)? * weights)?.sum_all()?)?;
    }
    Ok(sum)
}

/// The gradient of each variable against differences of the loss, and the results against the
/// kernels, which compute layers without gradients.
fn check(kind: &str, config: nn::RecurrentConfig, lengths: Option<&[usize]>) -> Result<()> {
    let of = format!("{kind} {config:?} {lengths:?}");
    let layer = |vb| Recurrent::new(kind, [3, 4], nn::Nonlinearity::Tanh, config, vb);
    let vars = VarMap::new();
    let tracked = layer(VarBuilder::from_varmap(&vars, DType::F64, CPU))?;
    let shape = if config.batch_first { (2, 3, 3) } else { (3, 2, 3) };
    let xs = Var::randn(0f64, 1., shape, CPU)?;
    let run = |layer: &Recurrent, xs: &Tensor| layer.run(xs, lengths, None, None);
    let results = run(&tracked, &xs)?;

    let constants = named(&vars).into_iter();
    let constants = constants.map(|(name, var)| Ok((name, var.detach().to_dtype(DType::F32)?)));
    let kernels = layer(weights(constants.collect::<Result<Vec<_>>>()?))?;
    for ((_, got), (_, expected)) in results.iter().zip(run(&kernels, &xs.detach())?) {
        assert_close(got, &expected, 1e-5, &of)?;
    }

    let gradients = weighted(&results)?.backward()?;
    for (name, var) in named(&vars).into_iter().chain([("xs".to_owned(), xs.clone())]) {
        let (of, step) = (format!("{of}, {name}"), 1e-5);
        let gradient = f64s(gradient(&gradients, &var, &of))?;
        let original = var.as_tensor().copy()?;
        // A few elements of each.
        for at in (0..gradient.len()).step_by(gradient.len().div_ceil(5)) {
            let mut sides = [0.; 2];
            for (side, sign) in sides.iter_mut().zip([1., -1.]) {
                let mut moved = f64s(&original)?;
                moved[at] += sign * step;
                var.set(&Tensor::from_vec(moved, original.dims(), CPU)?)?;
                *side = weighted(&run(&tracked, &xs)?)?.to_scalar()?;
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
    for kind in ["LSTM", "GRU", "RNN"] {
        for config in [plain, deep, batch_first] {
            check(kind, config, None)?;
            check(kind, config, Some(&[1, 3]))?;
            check(kind, config, Some(&[2, 0]))?;
        }
    }
    check("LSTM", projected, None)?;
    check("LSTM", projected, Some(&[1, 3]))
}

#[test]
fn padding_has_no_part_in_a_gradient() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let lstm = nn::LSTM::new(3, 4, Default::default(), vb)?;
    let mut values = vec![0.5f32; 3 * 2 * 3];
    // The last step of the second sequence, which has two.
    values[2 * 2 * 3 + 3..].fill(f32::NAN);
    let xs = Var::from_vec(values, (3, 2, 3), CPU)?;
    let (ys, state) = lstm.forward_lengths(&xs, &[3, 2], None)?;
    let loss = (ys.sum_all()? + state.c.sum_all()?)?;
    let gradients = loss.backward()?;
    for (name, var) in named(&vars).into_iter().chain([("xs".to_owned(), xs)]) {
        let gradient = f64s(gradient(&gradients, &var, &name))?;
        assert!(gradient.iter().all(|value| value.is_finite()), "{name}");
    }
    Ok(())
}

#[test]
fn cells_have_the_gradients_of_one_step() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let xs = Var::from_tensor(&randn(&[2, 3]))?;
    let state = Var::from_tensor(&randn(&[2, 4]))?;
    let lstm_cell = nn::LSTMCell::new(3, 4, true, vb.pp("lstm"))?;
    let gru_cell = nn::GRUCell::new(3, 4, true, vb.pp("gru"))?;
    // The layers of the same weights.
    let of_layers = named(&vars).into_iter();
    let of_layers = of_layers.map(|(name, var)| (format!("{name}_l0"), var.as_tensor().clone()));
    let vb = weights(of_layers);
    let lstm = nn::LSTM::new(3, 4, Default::default(), vb.pp("lstm"))?;
    let gru = nn::GRU::new(3, 4, Default::default(), vb.pp("gru"))?;
    let h = state.as_tensor();
    let start = nn::LSTMState::new(h.clone(), h.clone());
    let states = [lstm_cell.forward(&xs, Some(&start))?, lstm.step(&xs, &start)?];
    let of_lstm = states.map(|state| loss([&state.h, &state.c].into_iter()));
    let states =
        [gru_cell.forward(&xs, Some(h))?, gru.step(&xs, &nn::GRUState { h: h.clone() })?.h];
    let of_gru = states.map(|h| loss([&h].into_iter()));
    for [ours, theirs] in [of_lstm, of_gru] {
        let (ours, theirs) = (ours?.backward()?, theirs?.backward()?);
        for (name, var) in [("xs", &xs), ("state", &state)] {
            assert_close(gradient(&ours, var, name), gradient(&theirs, var, name), 1e-5, name)?;
        }
    }
    Ok(())
}

/// The gradients of the squares of all elements.
fn gradients(ys: &Tensor) -> candle_core::Result<GradStore> {
    ys.sqr()?.sum_all()?.backward()
}

/// Gradients flow to whichever of input and weights they are tracked of.
#[test]
fn a_recurrent_layer_is_candle_s_where_anything_is_tracked() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let xs = Var::randn(0f32, 1., (5, 2, 3), CPU)?;
    let of_weights = nn::LSTM::new(3, 4, Default::default(), vb.clone())?;
    let all = gradients(&of_weights.forward(&xs.as_detached_tensor(), None)?.0)?;
    assert!(vars.all_vars().iter().all(|var| all.get(var).is_some()));
    let with = |tracked: &str| {
        let tensors = named(&vars).into_iter().map(|(name, var)| {
            let is_tracked = name.starts_with(tracked);
            (name, if is_tracked { var.as_tensor().clone() } else { var.as_detached_tensor() })
        });
        nn::LSTM::new(3, 4, Default::default(), weights(tensors))
    };
    for kind in ["weight", "bias"] {
        let all = gradients(&with(kind)?.forward(&xs.as_detached_tensor(), None)?.0)?;
        assert!(all.get(&named(&vars)[&format!("{kind}_ih_l0")]).is_some(), "{kind}");
    }
    let (ys, _) = with("none")?.forward(&xs, None)?;
    assert!(gradients(&ys)?.get(&xs).is_some());
    Ok(())
}

#[test]
fn states_have_the_rank_of_the_input() -> Result<()> {
    let vb = variables();
    let lstm = nn::LSTM::new(3, 4, Default::default(), vb)?;
    for (shape, of_state) in [(&[5, 3][..], &[1, 4][..]), (&[5, 1, 3], &[1, 1, 4])] {
        let xs = Var::randn(0f32, 1., shape, CPU)?;
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
    let vb = variables();
    let xs = Var::randn(0f32, 1., (5, 2, 3), CPU)?;
    for spec in [all_int8(), QConfigSpec::float16(), QConfigSpec::bfloat16()] {
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
            assert_eq!(f64s(tracked)?, f64s(plain)?);
            assert_fails(gradients(tracked), &["quantized by candle-dynquant"]);
        }
    }
    Ok(())
}

#[test]
fn gradients_reach_a_mask_that_is_added_in_any_dtype() -> Result<()> {
    let xs = randn(&[1, 2, 3, 4]);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mask = Var::from_tensor(&randn(&[1, 1, 3, 3]).to_dtype(dtype)?)?;
        let added = ops::Mask::Add(&mask);
        let ys = ops::scaled_dot_product_attention(&xs, &xs, &xs, added, 0.5)?;
        let gradients = ys.sqr()?.backward()?;
        let sum = gradient(&gradients, &mask, "mask").to_dtype(DType::F32)?;
        assert!(sum.abs()?.sum_all()?.to_scalar::<f32>()? > 0., "{dtype:?}");
    }
    Ok(())
}
