//! The angles of rotary positions, as `config.json` describes them.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::keys::Keys;

/// Rotary positions of some layers.
pub(crate) struct Rope {
    theta: f64,
    scaling: Scaling,
}

/// How positions beyond the trained ones become angles.
enum Scaling {
    None,
    /// All angles are divided by the factor.
    Linear(f64),
    /// The longer a wave, the more is it stretched, the longest ones by the factor twice.
    Ntk(f64),
}

const PARAMETERS: &str = "rope_parameters";

impl Rope {
    /// Of all layers.
    pub fn of(keys: &Keys, default: f64) -> Result<Self> {
        let (key, found) = match keys.get(PARAMETERS) {
            Some(found) => (PARAMETERS, Some(found)),
            None => ("rope_scaling", keys.get("rope_scaling")),
        };
        let theta = found.and_then(|found| found.get("rope_theta")?.as_f64());
        let theta = match theta {
            Some(theta) => theta,
            None => keys.positive("rope_theta")?.unwrap_or(default),
        };
        let scaling = found.map_or(Ok(Scaling::None), |found| Scaling::of(keys, key, found));
        let scaling = scaling?;
        Ok(Self { theta, scaling })
    }

    /// Of the layers of a kind, which has parameters of its own, or a key for its angle.
    pub fn of_kind(keys: &Keys, kind: &str, key: &str, default: f64) -> Result<Self> {
        let own = keys.get(PARAMETERS).and_then(|found| found.get(kind));
        let Some(own) = own.filter(|own| own.is_object()) else {
            let theta = keys.positive(key)?.unwrap_or(default);
            let scaling = Scaling::None;
            return Ok(Self { theta, scaling });
        };
        let theta = own.get("rope_theta").and_then(Value::as_f64);
        Ok(Self {
            theta: theta.unwrap_or(default),
            scaling: Scaling::of(keys, PARAMETERS, own)?,
        })
    }

    /// The angle by which one position turns each pair of `dim` numbers.
    pub fn frequencies(&self, dim: usize) -> Result<Vec<f32>> {
        ensure!(
            dim.is_multiple_of(2),
            "rotary positions: expected heads of an even size, got {dim}"
        );
        let power = |i: usize, theta: f64| theta.powf(-2. * i as f64 / dim as f64);
        let of = |i| match self.scaling {
            Scaling::None => power(i, self.theta),
            Scaling::Linear(factor) => power(i, self.theta) / factor,
            Scaling::Ntk(factor) => power(i, self.theta * factor) / factor.powf(2. / dim as f64),
        };
        Ok((0..dim / 2).map(|i| of(i) as f32).collect())
    }
}

impl Scaling {
    fn of(keys: &Keys, key: &str, found: &Value) -> Result<Self> {
        let kind = found.get("rope_type").or(found.get("type"));
        let kind = kind.filter(|kind| !kind.is_null());
        let factor = found.get("factor").and_then(Value::as_f64);
        match (kind.map(Value::as_str), factor) {
            (None | Some(Some("default")), _) => Ok(Self::None),
            (Some(Some("linear")), Some(factor)) if factor > 0. => Ok(Self::Linear(factor)),
            (Some(Some("ntk")), Some(factor)) if factor > 0. => Ok(Self::Ntk(factor)),
            _ => Err(keys.fault(
                key,
                "rope_type default, or linear or ntk with a factor above 0",
            )),
        }
    }
}
