//! The angles of rotary positions, as `config.json` describes them.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::keys::Keys;
use crate::tables;

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
        // As transformers has it: the older key goes first.
        let older = keys.get("rope_scaling").map(|_| "rope_scaling");
        let key = older.unwrap_or(PARAMETERS);
        let default = keys.positive("rope_theta")?.unwrap_or(default);
        match keys.get(key) {
            Some(found) => Self::described(keys, key, Some(found), default),
            None => Ok(Self::plain(default)),
        }
    }

    /// Of the layers of a kind, which has parameters of its own, or a key for its angle.
    pub fn of_kind(keys: &Keys, kind: &str, key: &str, default: f64) -> Result<Self> {
        match keys.get(PARAMETERS) {
            Some(found) => Self::described(keys, PARAMETERS, found.get(kind), default),
            None => Ok(Self::plain(keys.positive(key)?.unwrap_or(default))),
        }
    }

    fn plain(theta: f64) -> Self {
        let scaling = Scaling::None;
        Self { theta, scaling }
    }

    /// Reads the parameters under a key, all of which are known.
    fn described(keys: &Keys, key: &str, found: Option<&Value>, default: f64) -> Result<Self> {
        let found = found.and_then(Value::as_object);
        let found = found.ok_or_else(|| keys.fault(key, "an object for each kind of layers"))?;
        let found = keys.part(key, found, &tables::ROPE)?;
        Ok(Self {
            theta: found.positive("rope_theta")?.unwrap_or(default),
            scaling: Scaling::of(&found)?,
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
    fn of(found: &Keys) -> Result<Self> {
        let older = found.get("type").map(|_| "type");
        let newer = found.get("rope_type").map(|_| "rope_type");
        let key = newer.or(older).unwrap_or("rope_type");
        match (found.word(key)?.as_deref(), found.positive("factor")?) {
            (None | Some("default"), _) => Ok(Self::None),
            (Some("linear"), Some(factor)) => Ok(Self::Linear(factor)),
            (Some("ntk"), Some(factor)) => Ok(Self::Ntk(factor)),
            _ => Err(found.fault(key, "default, or linear or ntk with a factor above 0")),
        }
    }
}
