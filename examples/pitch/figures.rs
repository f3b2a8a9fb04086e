//! Prints notes and figures of the float model beside the quantized model.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use candle_core::Tensor;
use candle_dynquant::Report;
use candle_dynquant_support::table::{Table, percent};
use serde::Serialize;

use crate::network::BINS;
use crate::sound::{HOP, Sound};

/// The figures of one model.
#[derive(Serialize)]
struct Side {
    /// Frames whose pitch is within 50 cents of what is played; none of a file.
    accuracy: Option<f64>,
    ms: f64,
    weight_bytes: usize,
    /// The pitch of each frame, in half tones above C2.
    #[serde(skip)]
    half_tones: Vec<f64>,
}

/// All figures.
#[derive(Serialize)]
pub struct Figures {
    model: String,
    preset: String,
    isa: String,
    threads: usize,
    frames: usize,
    float: Side,
    quantized: Side,
    /// The time of candle's layers.
    candle_ms: f64,
    /// The share of frames with the same note as in float.
    same_note: f64,
}

impl Figures {
    pub fn new(
        sound: &Sound,
        preset: String,
        report: &Report,
        [float, quantized]: [Tensor; 2],
        [candle_time, float_time, quantized_time]: [Duration; 3],
    ) -> Result<Self> {
        let played = sound.half_tones();
        let side = |logits: Tensor, time: Duration, weight_bytes| -> Result<Side> {
            let half_tones = half_tones(&logits)?;
            let known = played.iter().zip(&half_tones);
            let known = known.filter_map(|(played, got)| Some((*played)? - got));
            let (near, all) = known.fold((0, 0), |(near, all), error| {
                (near + usize::from(error.abs() < 0.5), all + 1)
            });
            Ok(Side {
                accuracy: (all > 0).then(|| f64::from(near as u32) / f64::from(all)),
                ms: 1e3 * time.as_secs_f64(),
                weight_bytes,
                half_tones,
            })
        };
        let float = side(float, float_time, report.bytes_before())?;
        let quantized = side(quantized, quantized_time, report.bytes_after())?;
        let frames = float.half_tones.len();
        let notes = float.half_tones.iter().zip(&quantized.half_tones);
        let same = notes.filter(|(a, b)| a.round() == b.round()).count();
        Ok(Self {
            model: "assets/pitch".to_owned(),
            preset,
            isa: report.isa.clone(),
            threads: candle_core::utils::get_num_threads(),
            frames,
            float,
            quantized,
            candle_ms: 1e3 * candle_time.as_secs_f64(),
            same_note: same as f64 / frames as f64,
        })
    }

    /// A header, the notes that the quantized model hears, then the figures.
    pub fn text(&self, sound: &Sound, report: &Report) -> String {
        let (float, quantized) = (&self.float, &self.quantized);
        let mut table = Table::with_header();
        let accuracy = |side: &Side| side.accuracy.map_or_else(String::new, percent);
        table.row("within 50 cents", accuracy(float), accuracy(quantized));
        table.row("same note as float", "", percent(self.same_note));
        let ms = |ms: f64| format!("{ms:.2} ms");
        table.row("time of all frames", ms(float.ms), ms(quantized.ms));
        table.row("time of candle's layers", ms(self.candle_ms), "");
        let bytes = |side: &Side| format!("{} KB", side.weight_bytes / 1000);
        table.row("weights of swapped layers", bytes(float), bytes(quantized));
        format!(
            "{}: {} frames of 64 ms\n{} of {} layers swapped ({})\n\n{}\n{}",
            sound.name,
            self.frames,
            report.swapped().count(),
            report.layers.len(),
            self.preset,
            picture(&quantized.half_tones),
            table.finish(&format!(
                "speedup over candle {:.2}, in float {:.2}; threads {}, instruction set {}",
                self.candle_ms / quantized.ms,
                self.candle_ms / float.ms,
                self.threads,
                self.isa,
            )),
        )
    }
}

/// The mean of the pitches about the most likely one of each frame, weighted, in half tones.
fn half_tones(logits: &Tensor) -> Result<Vec<f64>> {
    let half_tone = |logits: Vec<f32>| {
        let likelier = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]);
        let best = (0..BINS).max_by(likelier).unwrap_or_default();
        let near = best.saturating_sub(3)..BINS.min(best + 4);
        let weights = near.map(|bin| (bin, 1. / (1. + f64::from(-logits[bin]).exp())));
        let (sum, total) = weights.fold((0., 0.), |(sum, total), (bin, weight)| {
            (sum + weight * bin as f64, total + weight)
        });
        sum / total / 2.
    };
    Ok(logits.to_vec2()?.into_iter().map(half_tone).collect())
}

/// Columns of the picture.
const COLUMNS: usize = 72;

/// A row for each half tone, the highest first, and a column for some frames.
fn picture(half_tones: &[f64]) -> String {
    const NAMES: [&str; 12] = ["C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"];
    let columns = COLUMNS.min(half_tones.len());
    let note = |column: usize| {
        let frames = column * half_tones.len() / columns..(column + 1) * half_tones.len() / columns;
        let mut notes = half_tones[frames].to_vec();
        notes.sort_by(f64::total_cmp);
        notes[notes.len() / 2].round() as usize
    };
    let notes: Vec<usize> = (0..columns).map(note).collect();
    let [lowest, highest] = [notes.iter().min(), notes.iter().max()];
    let mut out = String::new();
    for row in (lowest.copied().unwrap_or(0)..=highest.copied().unwrap_or(0)).rev() {
        let line: String = notes.iter().map(|n| if *n == row { '█' } else { ' ' }).collect();
        let name = format!("{}{}", NAMES[row % 12], row / 12 + 2);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<4}{}", line.trim_end());
    }
    let seconds = half_tones.len() as f64 * HOP as f64 / 16_000.;
    let _ = writeln!(out, "    0{:>width$.1} s", seconds, width = columns - 3);
    out
}
