//! The families of architectures.

use serde::Deserialize;

/// The models of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// The family of Llama, TinyLlama and SmolLM.
    Llama,
    /// Every layer attends to a window of tokens, if the size is given.
    Mistral,
    /// Queries, keys and values have a bias.
    Qwen2,
    /// Queries and keys are normalized.
    Qwen3,
    /// Norms before and after each part, windows of attention, a scaled embedding.
    #[serde(rename = "gemma3_text")]
    Gemma3,
    /// Some layers do not rotate queries and keys.
    SmolLm3,
    /// Scales of embeddings, attention, residuals and scores.
    Granite,
    /// Phi-3 and Phi-4-mini: joined projections, rotary embeddings of a part of each head. Positions
    /// behind the first training's have other angles, which are not computed.
    Phi3,
    /// Qwen3 with mixtures of experts.
    #[serde(rename = "qwen3_moe")]
    Qwen3Moe,
    /// Mistral with mixtures of experts.
    Mixtral,
    /// Mixtures of experts; queries and keys are normalized, all heads together.
    Olmoe,
    /// Granite with mixtures of experts, whose matrices are stacked.
    GraniteMoe,
    /// Granite 4: its dense form, with two matrices of an MLP joined.
    GraniteMoeHybrid,
    /// Some layers have a short convolution in the place of attention.
    Lfm2,
}
