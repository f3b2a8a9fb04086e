//! Recurrent layers in use: candle's interface, dtypes, empty input, mistakes.

mod common;

use candle_core::{DType, Device, Tensor};
use candle_dynquant::nn::{self, LSTMState, Nonlinearity, RecurrentConfig};
use candle_dynquant::{LayerKind, QConfigSpec, Quantizable, quantize_dynamic};
use candle_nn::{RNN as _, VarBuilder, VarMap};
use common::fixture::difference;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn randn(shape: &[usize]) -> Result<Tensor> {
    Ok(match shape.iter().product() {
        0 => Tensor::zeros(shape, DType::F32, &Device::Cpu)?,
        _ => Tensor::randn(0f32, 1., shape, &Device::Cpu)?,
    })
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).and_then(|t| t.flatten_all());
    tensor.and_then(|t| t.to_vec1()).expect("values")
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.dims(), b.dims());
    let worst = values(a).iter().zip(values(b)).fold(0f32, |w, (a, b)| w.max((a - b).abs()));
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn states_of_every_step_are_those_of_shorter_inputs_with_a_projection() -> Result<()> {
    let config = RecurrentConfig { proj_size: 4, batch_first: true, ..RecurrentConfig::default() };
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let mut lstm = nn::LSTM::new(7, 9, config, vb)?;
    quantize_dynamic(&mut lstm, &QConfigSpec::int8().min_params(0))?;
    let xs = randn(&[2, 5, 7])?;
    for (step, state) in lstm.seq_init(&xs, &zeros(2)?)?.iter().enumerate() {
        let (_, shorter) = lstm.forward(&xs.narrow(1, 0, step + 1)?, None)?;
        assert_eq!(values(&state.h), values(&shorter.h), "{step}");
        assert_eq!(values(&state.c), values(&shorter.c), "{step}");
    }
    return Ok(());

    fn zeros(batch: usize) -> Result<LSTMState> {
        Ok(LSTMState::new(randn(&[batch, 4])?.zeros_like()?, randn(&[batch, 9])?.zeros_like()?))
    }
}

#[test]
fn candle_rnn_equals_candle() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let xs = randn(&[2, 5, 7])?;

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

    let config = nn::LSTMConfig {
        layer_idx: 1,
        direction: candle_nn::rnn::Direction::Backward,
        ..nn::LSTMConfig::default_no_bias()
    };
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
    fn load(vb: VarBuilder<'_>, config: RecurrentConfig) -> Result<Self> {
        let act = Nonlinearity::Tanh;
        Ok(Self {
            lstm: nn::LSTM::new(7, 9, config, vb.pp("lstm"))?,
            gru: nn::GRU::new(7, 9, config, vb.pp("gru"))?,
            rnn: nn::RNN::new(7, 9, act, config, vb.pp("rnn"))?,
            lstm_cell: nn::LSTMCell::new(7, 9, config.bias, vb.pp("lstm_cell"))?,
            gru_cell: nn::GRUCell::new(7, 9, config.bias, vb.pp("gru_cell"))?,
            rnn_cell: nn::RNNCell::new(7, 9, config.bias, act, vb.pp("rnn_cell"))?,
        })
    }

    fn random(config: RecurrentConfig) -> Result<Self> {
        let vars = VarMap::new();
        Self::load(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu), config)
    }
}

#[test]
fn all_kinds_are_swapped_by_int8_and_pytorchs_six_by_default() -> Result<()> {
    let config = RecurrentConfig { bidirectional: true, num_layers: 2, ..Default::default() };
    let float = All::random(config)?;
    let report = quantize_dynamic(&mut float.clone(), &QConfigSpec::int8().min_params(0))?;
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
    for (bias, quantize) in [(true, false), (false, false), (true, true), (false, true)] {
        let config = RecurrentConfig { bias, ..Default::default() };
        let mut all = All::random(config)?;
        if quantize {
            quantize_dynamic(&mut all, &QConfigSpec::int8().min_params(0))?;
        }
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let xs = randn(&[4, 2, 7])?.to_dtype(dtype)?;
            let (ys, state) = all.lstm.forward(&xs, None)?;
            let (wide, _) = all.lstm.forward(&xs.to_dtype(DType::F32)?, None)?;
            assert_eq!((ys.dtype(), state.h.dtype(), state.c.dtype()), (dtype, dtype, dtype));
            assert_eq!(difference(&values(&ys), &values(&wide.to_dtype(dtype)?)), None);
            // A state of another dtype is taken as well.
            all.lstm.forward(&xs.to_dtype(DType::F32)?, Some(&state))?;
            assert_eq!(all.gru_cell.forward(&xs.get(0)?, None)?.dtype(), dtype);
        }
        // Without steps the state is unchanged; without sequences the results are empty.
        let h = randn(&[1, 2, 9])?;
        let (ys, last) = all.gru.forward(&randn(&[0, 2, 7])?, Some(&h))?;
        assert_eq!((ys.dims(), values(&last)), (&[0, 2, 9][..], values(&h)));
        let (ys, last) = all.rnn.forward(&randn(&[3, 0, 7])?, None)?;
        assert_eq!((ys.dims(), last.dims()), (&[3, 0, 9][..], &[1, 0, 9][..]));
        let xs = randn(&[3, 2, 7])?;
        let (ys, last) = all.gru.forward_lengths(&xs, &[0, 3], Some(&h))?;
        assert_eq!(values(&last.get(0)?.get(0)?), values(&h.get(0)?.get(0)?));
        assert!(values(&ys).chunks(9).step_by(2).all(|row| row.iter().all(|y| *y == 0.)));
        assert_eq!(all.lstm_cell.forward(&randn(&[0, 7])?, None)?.c.dims(), [0, 9]);
    }
    Ok(())
}

#[test]
fn non_contiguous_input_equals_contiguous() -> Result<()> {
    let mut all = All::random(Default::default())?;
    quantize_dynamic(&mut all, &QConfigSpec::int8().min_params(0))?;
    let xs = randn(&[2, 5, 7])?.transpose(0, 1)?;
    let (a, _) = all.lstm.forward(&xs, None)?;
    let (b, _) = all.lstm.forward(&xs.contiguous()?, None)?;
    assert_eq!(difference(&values(&a), &values(&b)), None);
    Ok(())
}

#[test]
fn a_sequence_that_is_not_finite_touches_no_other() -> Result<()> {
    for spec in [QConfigSpec::int8().min_params(0), QConfigSpec::pytorch()] {
        let mut all = All::random(Default::default())?;
        quantize_dynamic(&mut all, &spec)?;
        let clean = randn(&[4, 3, 7])?;
        let mut data = values(&clean);
        data[7] = f32::NAN; // sequence 1 at step 0
        let xs = Tensor::from_vec(data, (4, 3, 7), &Device::Cpu)?;
        let (ys, _) = all.lstm.forward(&xs, None)?;
        for (index, row) in values(&ys).chunks(9).enumerate() {
            assert_eq!(row.iter().all(|y| y.is_nan()), index % 3 == 1, "row {index}");
            assert_eq!(row.iter().any(|y| y.is_nan()), index % 3 == 1, "row {index}");
        }
    }
    Ok(())
}

/// Checks that an error names all of `words`.
fn fails<T>(result: std::result::Result<T, impl std::fmt::Display>, words: &[&str]) {
    let message = match result {
        Ok(_) => panic!("must fail with {words:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(message.contains(word), "{word} in {message}");
    }
}

#[test]
fn mistakes_are_errors_that_name_the_layer() -> Result<()> {
    let float = All::random(Default::default())?;
    let mut int8 = float.clone();
    quantize_dynamic(&mut int8, &QConfigSpec::int8().min_params(0))?;
    for all in [&float, &int8] {
        fails(
            all.lstm.forward(&randn(&[3, 2, 8])?, None),
            &["lstm", "[steps, batch, 7]", "[3, 2, 8]"],
        );
        fails(all.lstm.forward(&randn(&[7])?, None), &["lstm", "[steps, 7]", "[7]"]);
        fails(all.gru_cell.forward(&randn(&[2, 3, 7])?, None), &["gru_cell", "[batch, 7]"]);
        let ints = Tensor::zeros((3, 2, 7), DType::U32, &Device::Cpu)?;
        fails(all.gru.forward(&ints, None), &["gru", "f32, f16, bf16 or f64", "U32"]);

        let xs = randn(&[3, 2, 7])?;
        let state = LSTMState::new(randn(&[1, 2, 9])?, randn(&[1, 3, 9])?);
        fails(all.lstm.forward(&xs, Some(&state)), &["lstm", "state c", "[1, 2, 9]", "[1, 3, 9]"]);
        fails(
            all.gru.forward(&xs, Some(&randn(&[2, 9])?)),
            &["gru", "state h", "[1, 2, 9]", "[2, 9]"],
        );
        fails(all.rnn_cell.forward(&xs.get(0)?, Some(&randn(&[9])?)), &["rnn_cell", "[2, 9]"]);
        fails(
            all.gru.forward_lengths(&xs, &[3], None),
            &["gru", "lengths", "2 sequences", "1 lengths"],
        );
        fails(
            all.gru.forward_lengths(&xs, &[3, 4], None),
            &["gru", "at most the 3", "4 for sequence 1"],
        );
    }

    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let with = |change: fn(&mut RecurrentConfig)| {
        let mut config = RecurrentConfig::default();
        change(&mut config);
        config
    };
    fails(
        nn::GRU::new(7, 9, with(|c| c.num_layers = 0), vb.clone()),
        &["num_layers", "at least 1"],
    );
    fails(
        nn::GRU::new(7, 9, with(|c| c.proj_size = 3), vb.pp("decoder")),
        &["decoder: ", "proj_size", "LSTM", "3"],
    );
    fails(nn::LSTM::new(7, 9, with(|c| c.proj_size = 9), vb.clone()), &["proj_size", "less than"]);
    // candle's interface has no sequence without a batch, whatever the state.
    let (xs, h) = (randn(&[5, 7])?, randn(&[9])?);
    let named = ["one", "[batch, steps, 7]", "[5, 7]"];
    let one = nn::LSTM::new(7, 9, Default::default(), vb.pp("one"))?;
    fails(one.seq_init(&xs, &LSTMState::new(h.clone(), h.clone())), &named);
    let one = nn::GRU::new(7, 9, Default::default(), vb.pp("one_gru"))?;
    fails(one.seq_init(&xs, &nn::GRUState { h }), &named);
    let two = nn::LSTM::new(7, 9, with(|c| c.num_layers = 2), vb.pp("two"))?;
    fails(two.zero_state(1), &["two", "one layer in one direction"]);

    // A checkpoint without the reverse direction, and a checkpoint with a wrong shape.
    let tensors = vars
        .data()
        .lock()
        .expect("vars")
        .iter()
        .map(|(k, v)| (k.clone(), v.as_tensor().clone()))
        .collect();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let both = with(|c| c.bidirectional = true);
    fails(nn::LSTM::new(7, 9, both, vb.pp("two")), &["two.weight_ih_l0_reverse"]);
    fails(
        nn::LSTM::new(8, 9, Default::default(), vb.pp("two")),
        &["two.weight_ih_l0", "[36, 8]", "[36, 7]"],
    );
    Ok(())
}

#[test]
fn a_weight_that_is_not_finite_is_named() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let lstm = nn::LSTM::new(7, 9, Default::default(), vb.pp("lstm"))?;
    let bad = Tensor::full(f32::INFINITY, (36, 9), &Device::Cpu)?;
    vars.data().lock().expect("vars")["lstm.weight_hh_l0"].set(&bad)?;
    let error = quantize_dynamic(&mut vec![lstm], &QConfigSpec::int8().min_params(0)).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("0.weight_hh_l0: ") && message.contains("inf"), "{message}");
    // A chain of sources, as anyhow prints it, does not repeat the message.
    assert!(std::error::Error::source(&error).is_none());
    Ok(())
}

#[test]
fn a_size_beyond_all_memory_is_an_error() {
    let vars = VarMap::new();
    let vb = || VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let huge = usize::MAX / 2;
    let errors = [
        nn::LSTM::new(1, huge, Default::default(), vb()).err(),
        nn::GRU::new(1, huge, Default::default(), vb()).err(),
        nn::LSTMCell::new(1, huge, true, vb()).err(),
        nn::GRUCell::new(1, huge, true, vb()).err(),
    ];
    for error in errors {
        let error = error.expect("an error").to_string();
        assert!(
            error.contains("weight: expected at most") && error.contains(&huge.to_string()),
            "{error}"
        );
    }
}

#[test]
fn a_cell_names_the_input_that_it_takes() -> Result<()> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let mut cell = nn::LSTMCell::new(5, 4, true, vb)?;
    for _ in ["float", "int8"] {
        for (shape, good) in [
            (&[5][..], true),
            (&[2, 5], true),
            (&[4], false),
            (&[2, 4], false),
            (&[2, 1, 5], false),
        ] {
            match cell.forward(&randn(shape)?, None) {
                Ok(_) => assert!(good, "{shape:?}"),
                Err(error) => {
                    let error = error.to_string();
                    let expected = format!("expected [batch, 5] or [5], got {shape:?}");
                    assert!(!good && error.contains(&expected), "{error}");
                }
            }
        }
        quantize_dynamic(&mut cell, &QConfigSpec::int8().min_params(0))?;
    }
    Ok(())
}

#[test]
fn new_parameters_are_drawn_as_pytorch_draws_them() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    nn::LSTM::new(8, 25, RecurrentConfig::default(), vb)?;
    // All uniform up to 1 / sqrt(25).
    let data = vars.data().lock().expect("no panic");
    for (name, var) in data.iter() {
        let greatest = values(var).into_iter().fold(0f32, |max, x| max.max(x.abs()));
        assert!((0.15..=0.2).contains(&greatest), "{name}: {greatest}");
    }
    Ok(())
}

#[test]
fn a_layer_names_the_input_that_it_takes() -> Result<()> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let mut layer = nn::LSTM::new(5, 4, RecurrentConfig::default(), vb)?;
    for _ in ["float", "int8"] {
        for shape in [&[3, 2, 4][..], &[3, 4], &[5], &[1, 3, 2, 5]] {
            let error = layer.forward(&randn(shape)?, None).map(drop).unwrap_err();
            let error = error.to_string();
            let named = error.contains(", 5] or [steps, 5], got ");
            assert!(named && error.contains(&format!("{shape:?}")), "{error}");
        }
        quantize_dynamic(&mut layer, &QConfigSpec::int8().min_params(0))?;
    }
    Ok(())
}
