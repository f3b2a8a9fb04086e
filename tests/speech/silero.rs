//! The voice detector Silero VAD: a spectrum, four convolutions and an LSTM, 32 ms of sound at a time.
//!
//! Needs its weights, 1.2 MB:
//!
//!     scripts/fetch_silero.sh DIR
//!     DYNQUANT_SILERO=DIR cargo test --release --test speech silero
//!
//! Without the variable the tests print a note and pass. `assets/reference/silero.py` computes the
//! expected probabilities.

use anyhow::ensure;
use candle_nn::ops::sigmoid;

use super::reference::{Tensors, largest_difference};
use crate::kit::*;

/// The samples of a window, and those before it that are read again.
const WINDOW: usize = 512;
const CONTEXT: usize = 64;

/// The distance from 0.5 below which a probability is either decision.
const TIE: f32 = 0.02;

#[derive(Quantizable, Clone)]
struct Silero {
    /// The real parts of 129 frequencies, then the imaginary ones.
    stft: nn::Conv1d,
    encoder: Vec<nn::Conv1d>,
    cell: nn::LSTMCell,
    head: nn::Conv1d,
}

impl Silero {
    fn new(vb: nn::VarBuilder<'_>) -> Result<Self> {
        let config = |padding, stride| nn::Conv1dConfig { padding, stride, ..Default::default() };
        let sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)];
        let encoder = sizes.iter().enumerate().map(|(i, &(from, to, stride))| {
            let vb = vb.pp(format!("encoder.{i}.reparam_conv"));
            nn::conv1d(from, to, 3, config(1, stride), vb)
        });
        let basis = vb.get((258, 1, 256), "stft.forward_basis_buffer")?;
        let decoder = vb.pp("decoder");
        Ok(Self {
            stft: nn::Conv1d::new(basis, None, config(0, 128)),
            encoder: encoder.collect::<candle_core::Result<_>>()?,
            cell: nn::LSTMCell::new(128, 128, true, decoder.pp("rnn"))?,
            head: nn::conv1d(128, 1, 1, config(0, 1), decoder.pp("decoder.2"))?,
        })
    }

    /// The probability of speech in windows `[batch, CONTEXT + WINDOW]`, and the next state.
    fn step(
        &self,
        windows: &Tensor,
        state: Option<&nn::LSTMState>,
    ) -> Result<(Tensor, nn::LSTMState)> {
        // Reflected at the end, without the last sample itself.
        let last = windows.dim(1)? as u32 - 1;
        let mirrored: Vec<u32> = (1..=64).map(|i| last - i).collect();
        let mirrored = windows.index_select(&Tensor::new(mirrored, windows.device())?, 1)?;
        let xs = Tensor::cat(&[windows, &mirrored], 1)?.unsqueeze(1)?;
        let parts = self.stft.forward(&xs)?.sqr()?.chunk(2, 1)?;
        let mut xs = (&parts[0] + &parts[1])?.sqrt()?;
        for conv in &self.encoder {
            xs = conv.forward(&xs)?.relu()?;
        }
        let state = self.cell.forward(&xs.squeeze(2)?, state)?;
        let logits = self.head.forward(&state.h.relu()?.unsqueeze(2)?)?;
        Ok((sigmoid(&logits.flatten_from(1)?)?, state))
    }

    /// The probabilities of all windows of signals `[batch, samples]`, `[batch, windows]`.
    fn forward(&self, signals: &Tensor) -> Result<Tensor> {
        let padded = signals.pad_with_zeros(1, CONTEXT, 0)?;
        let (mut state, mut probabilities) = (None, Vec::new());
        for start in (0..signals.dim(1)?).step_by(WINDOW) {
            let window = padded.narrow(1, start, CONTEXT + WINDOW)?.contiguous()?;
            let (probability, next) = self.step(&window, state.as_ref())?;
            probabilities.push(probability);
            state = Some(next);
        }
        Ok(Tensor::cat(&probabilities, D::Minus1)?)
    }
}

struct Setup {
    model: Silero,
    signals: Tensor,
    expected: Tensor,
}

impl Setup {
    /// Loads the model; prints how to get it and returns `None` if it is missing.
    fn new() -> Result<Option<Self>> {
        let Some(dir) = model_folder("DYNQUANT_SILERO", "fetch_silero.sh") else { return Ok(None) };
        let weights = Checkpoint::open(dir.join("model.safetensors"))?;
        let reference = Tensors::read(&dir.join("reference.safetensors"))?;
        Ok(Some(Self {
            model: Silero::new(vb_of(&weights).pp("model"))?,
            signals: reference.get("signals")?,
            expected: reference.get("probabilities")?,
        }))
    }

    fn quantized(&self, spec: &QConfigSpec, swapped: usize) -> Result<Silero> {
        let mut model = self.model.clone();
        let report = quantize_dynamic(&mut model, spec)?;
        assert_eq!(report.swapped().count(), swapped, "{report}");
        Ok(model)
    }

    /// All in int8 but the spectrum, which has one input channel, and the head of 128 weights.
    fn int8(&self) -> Result<Silero> {
        self.quantized(&QConfigSpec::int8(), 5)
    }

    /// The SQNR of probabilities, and the pairs of float and quantized ones that decide otherwise.
    fn compare(&self, model: &Silero) -> Result<(f64, Vec<[f32; 2]>)> {
        let got = model.forward(&self.signals)?;
        let [float, quantized] =
            [&self.expected, &got].map(|t| t.flatten_all().and_then(|t| t.to_vec1::<f32>()));
        let pairs = float?.into_iter().zip(quantized?);
        let differ = pairs.filter(|(float, quantized)| (*float > 0.5) != (*quantized > 0.5));
        let differ = differ.map(<[f32; 2]>::from).collect();
        Ok((decibels(&self.expected, &got)?, differ))
    }
}

#[test]
fn float_probabilities_are_those_of_the_reference() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let got = setup.model.forward(&setup.signals)?;
    let difference = largest_difference(&got, &setup.expected)?;
    println!("largest difference {difference:.2e}");
    assert!(difference <= 1e-4, "differs by {difference:e}");
    Ok(())
}

#[test]
fn int8_is_close_to_the_reference() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let (db, differ) = setup.compare(&setup.int8()?)?;
    println!("{db:.2} dB, decisions that differ: {differ:.4?}");
    assert!((35. ..f64::INFINITY).contains(&db), "{db} dB");
    Ok(())
}

/// Decisions are the float ones, but for ties, if the two convolutions that cost most stay float.
#[test]
fn most_in_int8_decides_as_the_reference() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let spec = QConfigSpec::int8().name("encoder.2", None).name("encoder.3", None);
    let (db, differ) = setup.compare(&setup.quantized(&spec, 3)?)?;
    println!("{db:.2} dB, decisions that differ: {differ:.4?}");
    assert!((40. ..f64::INFINITY).contains(&db), "{db} dB");
    for [float, quantized] in differ {
        let is_tie = (float - 0.5).abs() < TIE;
        assert!(is_tie, "{quantized}, float {float}");
    }
    Ok(())
}

/// A signal's answers do not depend on the signals beside it, to the last bit.
#[test]
fn int8_signals_do_not_depend_on_their_batch() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let model = setup.int8()?;
    let batch = model.forward(&setup.signals)?;
    for signal in 0..batch.dim(0)? {
        let alone = model.forward(&setup.signals.narrow(0, signal, 1)?)?;
        let same = bits(&alone) == bits(&batch.narrow(0, signal, 1)?);
        ensure!(same, "signal {signal} depends on its batch");
    }
    Ok(())
}
