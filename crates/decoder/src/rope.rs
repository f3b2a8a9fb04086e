//! Rotary embeddings beyond the trained length.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The mapping of positions beyond the trained length to angles.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Rope {
    pub rope_type: Option<String>,
    /// The older name of the type; newer versions of transformers write both.
    pub r#type: Option<String>,
    pub rope_theta: Option<f64>,
    pub factor: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<usize>,
    // Keys of Phi-3.
    pub partial_rotary_factor: Option<f64>,
    pub short_factor: Option<Vec<f64>>,
    pub attention_factor: Option<f64>,
}

impl Rope {
    pub fn kind(&self) -> &str {
        let kind = self.rope_type.as_ref().or(self.r#type.as_ref());
        kind.map_or("default", String::as_str)
    }

    /// The angles of a position for each pair of a head's inputs from the `plain` ones, in a model of
    /// so many `positions`; only `is_phi` has factors of its own.
    ///
    /// # Errors
    /// When the type is not known, or lacks a number.
    pub fn scaled(
        &self,
        plain: impl ExactSizeIterator<Item = f64>,
        positions: usize,
        is_phi: bool,
    ) -> Result<Vec<f64>> {
        let stated = |key: &str, value: Option<f64>| {
            value.with_context(|| {
                format!("key \"rope_scaling\": expected a number {key:?}, got none")
            })
        };
        let factor = || stated("factor", self.factor);
        Ok(match self.kind() {
            "default" => plain.collect(),
            "linear" => {
                let factor = factor()?;
                plain.map(|f| f / factor).collect()
            }
            "llama3" => {
                let low = stated("low_freq_factor", self.low_freq_factor)?;
                let high = stated("high_freq_factor", self.high_freq_factor)?;
                ensure!(
                    low <= high,
                    "key \"rope_scaling\": expected a high_freq_factor from low_freq_factor {low} on, got {high}"
                );
                let context = self.original_max_position_embeddings;
                let context = context.unwrap_or(positions) as f64;
                let factor = factor()?;
                plain.map(|f| llama3(f, factor, [low, high], context)).collect()
            }
            "longrope" if is_phi => {
                let factors = self.short_factor.as_deref().unwrap_or_default();
                ensure!(
                    factors.len() == plain.len(),
                    "key \"rope_scaling\": expected {} numbers in \"short_factor\", got {}",
                    plain.len(),
                    factors.len(),
                );
                plain.zip(factors).map(|(f, by)| f / by).collect()
            }
            other => bail!(
                "key \"rope_scaling\": expected rope_type default, linear or llama3, got {other:?}"
            ),
        })
    }
}

/// The frequency after Llama 3's scaling: long waves are slowed down, short waves are kept, with a
/// slope in between.
fn llama3(frequency: f64, factor: f64, [low, high]: [f64; 2], context: f64) -> f64 {
    let turns = context * frequency / std::f64::consts::TAU;
    let share = ((turns - low) / (high - low)).clamp(0., 1.);
    frequency * (share + (1. - share) / factor)
}
