//! Sounds: a melody that is played here, or a file.

use std::f64::consts::TAU;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};

/// Samples a second.
const RATE: usize = 16_000;
/// Samples of a frame, and from a frame to the next.
const FRAME: usize = 1024;
pub const HOP: usize = 160;

/// Half tones above C2, which is the lowest pitch: the Ode to Joy.
const NOTES: [i32; 15] = [28, 28, 29, 31, 31, 29, 28, 26, 24, 24, 26, 28, 28, 26, 26];
/// Their lengths in quarters.
const LENGTHS: [f64; 15] = [1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.5, 0.5, 2.];
/// Seconds of a quarter.
const QUARTER: f64 = 0.36;
/// The frequency of C2.
const LOWEST: f64 = 65.406;

pub struct Sound {
    pub name: String,
    samples: Vec<f32>,
    /// The half tone above C2 that is played at each sample; none of a file.
    half_tones: Vec<f64>,
}

impl Sound {
    /// The Ode to Joy by a voice of ten harmonics with vibrato, in noise.
    pub fn melody() -> Self {
        let (mut samples, mut half_tones) = (Vec::new(), Vec::new());
        let (mut phase, mut noise) = (0f64, 1u64);
        for (note, quarters) in NOTES.into_iter().zip(LENGTHS) {
            let count = (quarters * QUARTER * RATE as f64) as usize;
            for i in 0..count {
                let time = i as f64 / RATE as f64;
                let half_tone = f64::from(note) + 0.2 * (TAU * 5.5 * time).sin();
                phase += LOWEST * 2f64.powf(half_tone / 12.) / RATE as f64;
                let harmonic = |h: f64| (TAU * phase * h).sin() / h;
                let tone: f64 = (1..=10).map(|h| harmonic(f64::from(h))).sum();
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let noise = (noise >> 40) as f64 / (1u64 << 24) as f64 - 0.5;
                samples.push((tone * (-1.5 * time).exp() + 0.2 * noise) as f32);
                half_tones.push(half_tone);
            }
        }
        Self { name: format!("a melody of {} notes", NOTES.len()), samples, half_tones }
    }

    /// A WAV file of one channel at 16 kHz.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let read = || -> Result<Self> {
            let mut reader = hound::WavReader::open(path)?;
            let spec = reader.spec();
            ensure!(
                spec.channels == 1 && spec.sample_rate as usize == RATE,
                "expected one channel at {RATE} samples a second, got {} at {}",
                spec.channels,
                spec.sample_rate
            );
            let samples: Vec<f32> = match spec.sample_format {
                hound::SampleFormat::Float => reader.samples().collect::<Result<_, _>>()?,
                hound::SampleFormat::Int => {
                    let samples = reader.samples::<i32>();
                    samples.map(|sample| Ok(sample? as f32)).collect::<Result<_>>()?
                }
            };
            ensure!(
                samples.len() >= FRAME && samples.iter().all(|sample| sample.is_finite()),
                "expected at least {FRAME} finite samples, got {} samples",
                samples.len()
            );
            Ok(Self { name: name.clone(), samples, half_tones: Vec::new() })
        };
        read().with_context(|| format!("--wav {name}"))
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        (0..=self.samples.len() - FRAME).step_by(HOP)
    }

    /// The frames `[frames, 1024]`, each less its mean and divided by its deviation.
    pub fn frames(&self) -> Result<Tensor> {
        let mut frames = Vec::new();
        for start in self.starts() {
            let frame = &self.samples[start..start + FRAME];
            let mean = frame.iter().sum::<f32>() / FRAME as f32;
            let variance = frame.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / FRAME as f32;
            let deviation = variance.sqrt().max(1e-8);
            frames.extend(frame.iter().map(|x| (x - mean) / deviation));
        }
        Ok(Tensor::from_vec(frames, (self.starts().count(), FRAME), &Device::Cpu)?)
    }

    /// The half tone that is played in the middle of each frame; `None` where a frame has two notes,
    /// or where it is not known.
    pub fn half_tones(&self) -> Vec<Option<f64>> {
        let played = |start: usize| {
            let frame = self.half_tones.get(start..start + FRAME)?;
            let is_one = (frame[0] - frame[FRAME - 1]).abs() < 0.6;
            is_one.then_some(frame[FRAME / 2])
        };
        self.starts().map(played).collect()
    }
}
