//! The tensors of a decoder's checkpoint: each belongs to a layer, or is refused by name.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Result, ensure};
use candle_dynquant::Checkpoint;
use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{Harmless, Used};

use crate::config::Config;
use crate::family::Family;

/// Tensors of a folder outside the layers.
#[rustfmt::skip]
const TENSORS: Table = Table(&[
    (&["*rotary_emb.inv_freq", "*position_ids"], Harmless("computed from config.json")),
]);

/// The tensors beside a quantized weight of a folder, in the layouts of quantization tools.
#[rustfmt::skip]
const QUANTIZED: Table = Table(&[
    (&["weight_*", "_weight_*", "weight.*", "qweight", "qzeros", "scales", "g_idx", "SCB"], Used),
    (&["input_*", "output_scale"], Harmless("activations have scales of their rows")),
]);

/// The tensors that a GGUF file's blocks are read as, beside the weight.
const BLOCKS: Table = Table(&[(&["weight_scale", "weight_zero_point", "weight_minimum"], Used)]);

/// The tensor of Llama 3's scaling in GGUF: a wavelength factor for each pair of a head's inputs.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The factors of Phi-3 for texts within the first training's positions.
pub const SHORT_FACTORS: &str = "rope_factors_short.weight";
const HEAD: &str = "lm_head.weight";
const TABLE: &str = "model.embed_tokens.weight";

/// Checks the tensors of a checkpoint.
///
/// # Errors
/// When the model does not use a tensor.
pub fn check(path: &Path, config: &Config, checkpoint: &Checkpoint) -> Result<()> {
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let quantized = tensors.iter().filter(|tensor| tensor.quantized);
    let quantized = quantized.filter_map(|tensor| tensor.name.strip_suffix(".weight"));
    let quantized: HashSet<&str> = quantized.collect();
    let names = tensors.iter().map(|tensor| &*tensor.name);
    let mut others = names.filter(|name| config.is_gguf || TENSORS.treatment(name).is_none());
    let extra = others.find(|name| !is_read(config, name, &quantized) && !is_of_gguf(config, name));
    ensure!(
        extra.is_none(),
        "{}: tensor {:?}: expected one of a {:?} of {} layers, as {} describes it",
        path.display(),
        extra.unwrap_or_default(),
        config.model_type,
        config.num_hidden_layers,
        if config.is_gguf { "the metadata" } else { "config.json" },
    );
    Ok(())
}

/// Whether the files of a model with a tied head contain another head, as transformers decides.
pub fn has_other_head(checkpoint: &Checkpoint) -> Result<bool> {
    let find = |name| checkpoint.tensors().find(|tensor| tensor.name == name);
    Ok(match (find(HEAD), find(TABLE)) {
        (None, _) => false,
        (Some(head), Some(table)) if head.shape == table.shape && head.dtype == table.dtype => {
            checkpoint.floats(HEAD)? != checkpoint.floats(TABLE)?
        }
        _ => true,
    })
}

/// The number, below `count`, at the start of a name after `prefix`, and what follows it.
fn numbered<'a>(name: &'a str, prefix: &str, count: usize) -> Option<(usize, &'a str)> {
    let (text, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let number = text.parse().ok().filter(|n: &usize| n.to_string() == text);
    Some((number.filter(|n| *n < count)?, rest))
}

/// Whether a tensor of a GGUF file has factors of wavelengths, of which those of positions that a text
/// may not have are left out, or frequencies, which are computed.
fn is_of_gguf(config: &Config, tensor: &str) -> bool {
    let of_layer = numbered(tensor, "blk.", config.num_hidden_layers);
    let is_known = match config.model_type {
        Family::Llama | Family::Mixtral => tensor == ROPE_FACTORS,
        Family::Phi3 => [SHORT_FACTORS, "rope_factors_long.weight"].contains(&tensor),
        _ => false,
    };
    config.is_gguf && (is_known || of_layer.is_some_and(|(_, name)| name == "attn_rot_embd.weight"))
}

/// Whether the model loads a tensor; `quantized` are the modules with a quantized weight.
#[rustfmt::skip]
fn is_read(config: &Config, tensor: &str, quantized: &HashSet<&str>) -> bool {
    // In GGUF any product of these may have a bias.
    let gguf = config.is_gguf;
    let beside = if gguf { BLOCKS } else { QUANTIZED };
    let (qkv, out, mlp) = (config.has_bias() || gguf, config.attention_bias || gguf, config.mlp_bias || gguf);
    let (normal, gemma) = (config.has_qk_norm(), config.is_gemma());
    let (shared, joined) = (config.has_joined_mlp(), config.has_joined_projections());
    let layer = numbered(tensor, "model.layers.", config.num_hidden_layers);
    let mixture = layer.is_some_and(|(layer, _)| config.has_experts(layer));
    let (plain, stacked) = (!shared && !joined && !mixture, config.has_stacked_experts());
    let convolves = layer.is_some_and(|(layer, _)| config.has_convolution(layer));
    let (attends, bias, names) = (!convolves, config.conv_bias, config.names());
    let [attention, feed_forward] = ["self_attn", names.mlp[0]].map(|module| move |name| format!("{module}.{name}"));
    let (norm, output) = (format!("model.{}", names.norm), attention(names.output));
    let [q_norm, k_norm] = [names.q_norm, names.k_norm].map(&attention);
    let [one, two, three] = [names.mlp[1], names.mlp[2], names.mlp[3]].map(feed_forward);
    let [module, router, gate, up, down] = config.expert_names();
    let of_mixture = |name| mixture.then(|| str::strip_prefix(name, module)?.strip_prefix('.')).flatten();
    // The name in its layer; whether such layers exist, and whether they have a bias.
    let (name, layers) = match layer.map(|(_, name)| (name, of_mixture(name))) {
        None => (tensor, vec![("lm_head", true, false), ("model.embed_tokens", true, false), (&norm, true, false)]),
        Some((_, Some(name))) => match numbered(name, "experts.", config.experts()) {
            Some((_, name)) => (name, [gate, up, down].map(|name| (name, !stacked, false)).to_vec()),
            None => (name, vec![(router, true, false), (gate, stacked, false), (down, stacked, false)]),
        },
        Some((name, None)) => (name, vec![
            ("self_attn.q_proj", attends && !joined, qkv), ("self_attn.k_proj", attends && !joined, qkv),
            ("self_attn.v_proj", attends && !joined, qkv), ("self_attn.qkv_proj", joined, false),
            (&output, attends, out), (&q_norm, attends && normal, false), (&k_norm, attends && normal, false),
            ("conv.conv", convolves, bias), ("conv.in_proj", convolves, bias), ("conv.out_proj", convolves, bias),
            (&one, plain, mlp), (&two, plain, mlp), (&three, plain || joined, mlp), ("mlp.gate_up_proj", joined, false),
            ("shared_mlp.input_linear", shared, false), ("shared_mlp.output_linear", shared, false),
            (names.input_norm, true, false), (names.post_norm, true, false),
            ("pre_feedforward_layernorm", gemma, false), ("post_feedforward_layernorm", gemma, false),
        ]),
    };
    layers.iter().any(|(layer, is_there, has_bias)| {
        let part = name.strip_prefix(layer).and_then(|rest| rest.strip_prefix('.'));
        let is_part = |part: &str| {
            let module = tensor.strip_suffix(part);
            let module = module.and_then(|module| module.strip_suffix('.'));
            part == "weight"
                || (*has_bias && part == "bias")
                || (module.is_some_and(|module| quantized.contains(module))
                    && beside.treatment(part).is_some())
        };
        *is_there && part.is_some_and(is_part)
    })
}
