//! Jina BERT v2: BERT's attention and norms, with scores that decrease with distance (ALiBi) and
//! products gated by GELU.

use std::sync::Arc;

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::bert::{self, Names};
use super::mlp::{Mlp, Up};
use super::sizes::Sizes;
use super::transformer::Transformer;
use super::view::{Bias, Sees, View};
use crate::keys::Keys;

const NAMES: Names =
    Names { up: "mlp.gated_layers", down: "mlp.wo", norm: "mlp.layernorm", mlp, ..bert::BERT };

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let types = keys.size_or("type_vocab_size", 2)?;
    let activation = match keys.word("feed_forward_type")?.as_deref() {
        Some("geglu") => FusedActivation::Gelu,
        Some("reglu") => FusedActivation::Relu,
        _ => return Err(keys.fault("feed_forward_type", "geglu or reglu")),
    };
    Ok(Sizes { types, activation, ..Sizes::read(keys)? })
}

pub(super) fn load(_: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let heads = sizes.heads.queries;
    let slopes = slopes(heads);
    let term = move |head: usize, distance: i64| -slopes[head] * distance.abs() as f32;
    let term = Arc::new(term);
    let view = View::plain(Sees::Biased(Bias { heads, term }));
    bert::transformer(sizes, &NAMES, None, view, &vb)
}

/// The slope of each head's scores: powers of `2^(-8 / n)` for `n` heads, a power of two; further
/// heads take every other power of twice as many heads.
fn slopes(heads: usize) -> Vec<f32> {
    let powers = |heads: usize| {
        let power = move |head: usize| (-8. * (head + 1) as f32 / heads as f32).exp2();
        (0..heads).map(power)
    };
    let first = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let rest = powers(2 * first).step_by(2).take(heads - first);
    powers(first).chain(rest).collect()
}

fn mlp(sizes: &Sizes, names: &Names, vb: &VarBuilder<'_>) -> Result<Mlp> {
    Ok(Mlp::Products {
        up: Up::Fused {
            both: sizes.linear(2 * sizes.inner, false, vb.pp(names.up))?,
            activation: sizes.activation,
            gate_first: true,
        },
        down: sizes.down(true, vb.pp(names.down))?,
    })
}
