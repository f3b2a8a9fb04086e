//! The angles of rotary positions as described by `config.json`.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::keys::Keys;
use crate::tables;

pub(crate) struct Rope {
    theta: f64,
    scaling: Scaling,
}

/// The mapping of positions beyond the trained length to angles.
enum Scaling {
    None,
    /// Divides all angles by the factor.
    Linear(f64),
    /// Stretches longer waves more, the longest by the square of the factor.
    Ntk(f64),
}

const PARAMETERS: &str = "rope_parameters";

impl Rope {
    /// The rotary positions of all layers.
    pub fn read(keys: &Keys, default: f64) -> Result<Self> {
        // The order of transformers: the older key comes first.
        let older = keys.get("rope_scaling").map(|_| "rope_scaling");
        let key = older.unwrap_or(PARAMETERS);
        let default = keys.positive("rope_theta")?.unwrap_or(default);
        match keys.get(key) {
            Some(found) => Self::described(keys, key, Some(found), default),
            None => Ok(Self::plain(default)),
        }
    }

    /// The rotary positions of a kind of layers, with separate parameters, or a key for its angle.
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

    /// Reads the parameters under a key, which must all be known.
    fn described(keys: &Keys, key: &str, found: Option<&Value>, default: f64) -> Result<Self> {
        let found = found.and_then(Value::as_object);
        let found = found.ok_or_else(|| keys.fault(key, "an object for each kind of layers"))?;
        let found = keys.part(key, found, &tables::ROPE)?;
        Ok(Self {
            theta: found.positive("rope_theta")?.unwrap_or(default),
            scaling: Scaling::read(&found)?,
        })
    }

    /// The angles by which one position rotates each pair of `dim` numbers.
    pub fn frequencies(&self, dim: usize) -> Result<Vec<f32>> {
        ensure!(
            dim.is_multiple_of(2),
            "rotary positions: expected heads of an even size, got {dim}"
        );
        let power = |i: usize, theta: f64| theta.powf(-2. * i as f64 / dim as f64);
        let angle = |i| match self.scaling {
            Scaling::None => power(i, self.theta),
            Scaling::Linear(factor) => power(i, self.theta) / factor,
            Scaling::Ntk(factor) => power(i, self.theta * factor) / factor.powf(2. / dim as f64),
        };
        Ok((0..dim / 2).map(|i| angle(i) as f32).collect())
    }
}

impl Scaling {
    fn read(found: &Keys) -> Result<Self> {
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
