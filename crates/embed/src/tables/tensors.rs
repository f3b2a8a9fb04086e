//! The tensors of a checkpoint that no layer loads. All others are refused by name.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::Harmless;

#[rustfmt::skip]
pub(crate) const TENSORS: Table = Table(&[
    (&["*position_ids", "*embeddings.token_type_ids", "*inv_freq"], Harmless("made of config.json")),
    (&["encoder.embed_tokens.*"], Harmless("the same as shared")),
    (&["*pooler.dense.*", "albert.pooler.*", "pooler.weight*", "pooler.bias"], Harmless("for classes of the first token")),
    (&["cls.*", "lm_head.*", "vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*",
       "head.dense.*", "head.norm.*", "decoder.*", "predictions.*", "sop_classifier.*",
       "generator_predictions.*", "generator_lm_head.*", "discriminator_predictions.*",
       "lm_predictions.*", "mask_predictions.*"], Harmless("guess words")),
    (&["logit_scale", "logit_bias"], Harmless("of scores, which callers compute")),
    (&["*embeddings.mask_token"], Harmless("for training")),
    (&["qa_outputs.*"], Harmless("find answers in a text")),
]);
