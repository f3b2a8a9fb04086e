//! The names of the parts of a model.

pub struct Names {
    /// The last norm.
    pub norm: &'static str,
    pub input_norm: &'static str,
    pub post_norm: &'static str,
    /// The names in `self_attn`.
    pub output: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    /// The MLP, and its gate, up and down projections.
    pub mlp: [&'static str; 4],
}

pub const USUAL: Names = Names {
    norm: "norm",
    input_norm: "input_layernorm",
    post_norm: "post_attention_layernorm",
    output: "o_proj",
    q_norm: "q_norm",
    k_norm: "k_norm",
    mlp: ["mlp", "gate_proj", "up_proj", "down_proj"],
};

pub const LFM2: Names = Names {
    norm: "embedding_norm",
    input_norm: "operator_norm",
    post_norm: "ffn_norm",
    output: "out_proj",
    q_norm: "q_layernorm",
    k_norm: "k_layernorm",
    mlp: ["feed_forward", "w1", "w3", "w2"],
};
