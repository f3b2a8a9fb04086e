use candle_core::{DType, Device, IndexOp, Module, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;

use super::{Found, Then, config, run};
use crate::random::values;
use crate::size::Size;
use crate::turns::Run;

/// Quantizes a loaded model as `then` says: how to run it, and its layers.
macro_rules! built {
    ($model:expr, $then:expr, $run:expr) => {{
        let found = quantize!($model, $then);
        (run($run), found)
    }};
}

/// Builds the model of this name and size and applies `then`: returns how to run it, and its
/// layers.
pub fn build(
    name: &str,
    size: &Size,
    vb: VarBuilder<'static>,
    then: Then<'_>,
) -> anyhow::Result<(Run<'static>, Option<Found>)> {
    let &Size { hidden, heads, inner, layers, vocab, batch, len, .. } = size;
    let positions = len + 8;
    let ids = size.ids(len)?;
    let (next, few) = (ids.i((.., ..1))?.contiguous()?, ids.i((.., ..size.few()))?.contiguous()?);
    let types = ids.zeros_like()?;
    let mask = size.mask()?;
    let is_small = size.is_small();
    Ok(match name {
        "bert" => {
            let config = models::bert::Config {
                vocab_size: vocab,
                hidden_size: hidden,
                num_hidden_layers: layers,
                num_attention_heads: heads,
                intermediate_size: inner,
                max_position_embeddings: 512,
                ..Default::default()
            };
            if is_small {
                let mut model = models::bert::BertForMaskedLM::load(vb, &config)?;
                built!(model, then, move || model.forward(&ids, &types, Some(&mask)))
            } else {
                let mut model = models::bert::BertModel::load(vb, &config)?;
                built!(model, then, move || model.forward(&ids, &types, Some(&mask)))
            }
        }
        "distilbert" => {
            let config = config(json!({
                "vocab_size": vocab, "dim": hidden, "n_layers": layers, "n_heads": heads,
                "hidden_dim": inner, "activation": "gelu", "max_position_embeddings": positions,
                "initializer_range": 0.02, "pad_token_id": 0, "model_type": "distilbert",
            }))?;
            let mut model = models::distilbert::DistilBertForMaskedLM::load(vb, &config)?;
            let mask = mask.ne(1u32)?.reshape((batch, 1, 1, len))?;
            built!(model, then, move || model.forward(&ids, &mask))
        }
        "xlm_roberta" => {
            let config = config(json!({
                "hidden_size": hidden, "layer_norm_eps": 1e-5, "attention_probs_dropout_prob": 0.0,
                "hidden_dropout_prob": 0.0, "num_attention_heads": heads,
                "position_embedding_type": "absolute", "intermediate_size": inner,
                "hidden_act": "gelu", "num_hidden_layers": layers, "vocab_size": vocab,
                "max_position_embeddings": positions, "type_vocab_size": 2, "pad_token_id": 1,
            }))?;
            let mut model = models::xlm_roberta::XLMRobertaForMaskedLM::new(&config, vb)?;
            built!(model, then, move || model.forward(&ids, &mask, &types, None, None, None))
        }
        "modernbert" => {
            let config = config(json!({
                "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
                "num_attention_heads": heads, "intermediate_size": inner,
                "max_position_embeddings": positions, "layer_norm_eps": 1e-5, "pad_token_id": 0,
                "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
                "local_attention": 16, "local_rope_theta": 10000.0,
            }))?;
            let mut model = models::modernbert::ModernBertForMaskedLM::load(vb, &config)?;
            built!(model, then, move || model.forward(&ids, &mask))
        }
        "debertav2" => {
            let config = config(json!({
                "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
                "num_attention_heads": heads, "intermediate_size": inner, "hidden_act": "gelu",
                "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                "max_position_embeddings": 512, "type_vocab_size": 0, "initializer_range": 0.02,
                "layer_norm_eps": 1e-7, "relative_attention": true, "max_relative_positions": -1,
                "pad_token_id": 0, "position_biased_input": false, "pos_att_type": "p2c|c2p",
                "position_buckets": 256, "share_att_key": true, "norm_rel_ebd": "layer_norm",
                "id2label": {"0": "no", "1": "yes"}, "pooler_dropout": 0.0,
                "pooler_hidden_act": "gelu", "pooler_hidden_size": hidden,
            }))?;
            let mut model =
                models::debertav2::DebertaV2SeqClassificationModel::load(vb, &config, None)?;
            let found = quantize!(model, then);
            (run(move || model.forward(&ids, None, Some(mask.clone()))), found)
        }
        "t5" => {
            let config = config(json!({
                "vocab_size": vocab, "d_model": hidden, "d_kv": hidden / heads, "d_ff": inner,
                "num_layers": layers, "num_heads": heads, "relative_attention_num_buckets": 8,
                "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
                "feed_forward_proj": "relu", "is_encoder_decoder": true, "pad_token_id": 0,
                "eos_token_id": 1, "decoder_start_token_id": 0, "use_cache": false,
            }))?;
            let mut model = models::t5::T5ForConditionalGeneration::load(vb, &config)?;
            built!(model, then, move || model.forward(&ids, &few))
        }
        "marian" => {
            let config = config(json!({
                "vocab_size": vocab, "max_position_embeddings": positions,
                "encoder_layers": layers, "encoder_ffn_dim": inner,
                "encoder_attention_heads": heads, "decoder_layers": layers,
                "decoder_ffn_dim": inner, "decoder_attention_heads": heads, "use_cache": true,
                "is_encoder_decoder": true, "activation_function": "silu", "d_model": hidden,
                "decoder_start_token_id": 0, "scale_embedding": true, "pad_token_id": 0,
                "eos_token_id": 1, "forced_eos_token_id": 1,
                "share_encoder_decoder_embeddings": true,
            }))?;
            let mut model = models::marian::MTModel::new(&config, vb)?;
            built!(model, then, move || {
                model.reset_kv_cache();
                let xs = model.encoder().forward(&ids, 0)?;
                model.decode(&few, &xs, 0)
            })
        }
        "whisper" => {
            let frames = if is_small { 32 } else { 1500 };
            let config: models::whisper::Config = config(json!({
                "num_mel_bins": 80, "max_source_positions": frames, "d_model": hidden,
                "encoder_attention_heads": heads, "encoder_layers": size.whisper_layers(),
                "vocab_size": vocab, "max_target_positions": positions,
                "decoder_attention_heads": heads, "decoder_layers": size.whisper_layers(),
            }))?;
            let mut model = models::whisper::model::Whisper::load(&vb, config)?;
            let mel = values("mel", &[batch, 80, 2 * frames])?;
            built!(model, then, move || {
                let xs = model.encoder.forward(&mel, true)?;
                let ys = model.decoder.forward(&few, &xs, true)?;
                model.decoder.final_linear(&ys)
            })
        }
        "vit" => {
            let side = if is_small { 32 } else { 224 };
            let config = config(json!({
                "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "intermediate_size": inner, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
                "image_size": side, "patch_size": side / 8, "num_channels": 3, "qkv_bias": true,
            }))?;
            let mut model = models::vit::Model::new(&config, 10, vb)?;
            let image = values("image", &[batch, 3, side, side])?;
            built!(model, then, move || model.forward(&image))
        }
        "dinov2" => {
            let side = if is_small { 84 } else { 154 };
            let mut model = models::dinov2::DinoVisionTransformer::new(vb, layers, hidden, heads)?;
            let image = values("image", &[1, 3, side, side])?;
            built!(model, then, move || model.forward(&image))
        }
        "clip/text_model" => {
            let config = models::clip::text_model::ClipTextConfig {
                vocab_size: vocab,
                embed_dim: hidden,
                activation: models::clip::text_model::Activation::QuickGelu,
                intermediate_size: inner,
                max_position_embeddings: positions,
                pad_with: None,
                num_hidden_layers: layers,
                num_attention_heads: heads,
                projection_dim: hidden,
            };
            let mut model = models::clip::text_model::ClipTextTransformer::new(vb, &config)?;
            built!(model, then, move || model.forward_with_mask(&ids, len))
        }
        "openclip/text_model" => {
            let config = models::openclip::text_model::Config {
                vocab_size: vocab,
                embed_dim: hidden,
                intermediate_size: inner,
                max_position_embeddings: positions,
                pad_with: None,
                num_hidden_layers: layers,
                num_attention_heads: heads,
                projection_dim: hidden,
            };
            let new = models::openclip::text_model::OpenClipTextTransformer::new;
            let mut model = new(vb, &config)?;
            built!(model, then, move || model.forward(&ids))
        }
        "siglip" => {
            let config = config(json!({
                "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
                "num_attention_heads": heads, "num_channels": 3, "image_size": 32, "patch_size": 8,
                "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
            }))?;
            let mut model = models::siglip::VisionModel::new(&config, true, vb)?;
            let image = values("image", &[batch, 3, 32, 32])?;
            built!(model, then, move || model.forward(&image))
        }
        "clip/vision_model" => {
            let config = models::clip::vision_model::ClipVisionConfig {
                embed_dim: hidden,
                activation: models::clip::text_model::Activation::QuickGelu,
                intermediate_size: inner,
                num_hidden_layers: layers,
                num_attention_heads: heads,
                projection_dim: hidden,
                num_channels: 3,
                image_size: 32,
                patch_size: 8,
            };
            let mut model = models::clip::vision_model::ClipVisionTransformer::new(vb, &config)?;
            let image = values("image", &[batch, 3, 32, 32])?;
            built!(model, then, move || model.forward(&image))
        }
        "segment_anything/image_encoder" => {
            let (side, patch) = if is_small { (64, 8) } else { (256, 16) };
            let mut model = models::segment_anything::image_encoder::ImageEncoderViT::new(
                side,
                patch,
                3,
                hidden,
                layers,
                heads,
                64,
                true,
                true,
                true,
                4,
                &[1],
                vb,
            )?;
            let image = values("image", &[1, 3, side, side])?;
            built!(model, then, move || model.forward(&image))
        }
        "depth_anything_v2" => {
            // Patches of 14 pixels, four layers whose outputs are read.
            let patches = if is_small { 4 } else { 11 };
            let features = if is_small { 32 } else { 64 };
            let channels = [features / 2, features, 2 * features, 4 * features];
            let config = models::depth_anything_v2::DepthAnythingV2Config::new(
                channels,
                hidden,
                features,
                false,
                false,
                vec![0, 1, 2, 3],
                14 * patches,
                patches,
            );
            let new = models::dinov2::DinoVisionTransformer::new;
            let dino = new(vb.pp("pretrained"), layers.max(4), hidden, heads)?;
            let new = models::depth_anything_v2::DepthAnythingV2::new;
            let mut model = new(dino.into(), config, vb)?;
            let image = values("image", &[1, 3, 14 * patches, 14 * patches])?;
            built!(model, then, move || model.forward(&image))
        }
        "efficientnet" => {
            let blocks = models::efficientnet::MBConvConfig::b0();
            let mut model = models::efficientnet::EfficientNet::new(vb, blocks, 10)?;
            let image = values("image", &[1, 3, size.side(), size.side()])?;
            built!(model, then, move || model.forward(&image))
        }
        "segformer" => {
            let config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [1, 1, 1, 1],
                "sr_ratios": [8, 4, 2, 1], "hidden_sizes": [32, 64, 64, 128], "patch_sizes": [7, 3, 3, 3],
                "strides": [4, 2, 2, 2], "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2],
                "hidden_act": "gelu", "layer_norm_eps": 1e-6, "decoder_hidden_size": 4 * hidden,
            }))?;
            let mut model = models::segformer::SemanticSegmentationModel::new(&config, 10, vb)?;
            let image = values("image", &[1, 3, size.side(), size.side()])?;
            built!(model, then, move || model.forward(&image))
        }
        "segment_anything/tiny_vit" => {
            // Made for 1024 pixels and an end of 320, 448 or 576 channels.
            let (dims, heads, windows) = ([16, 32, 32, 320], [1, 2, 2, 10], [7, 7, 14, 7]);
            let new = models::segment_anything::tiny_vit::TinyViT::new;
            let mut model = new(&dims, &[1; 4], &heads, &windows, 10, vb)?;
            let image = values("image", &[1, 3, 1024, 1024])?;
            built!(model, then, move || model.forward(&image))
        }
        "wuerstchen/paella_vq" => {
            let mut model = models::wuerstchen::paella_vq::PaellaVQ::new(vb)?;
            let image = values("image", &[1, 3, size.side(), size.side()])?;
            built!(model, then, move || model.forward(&image))
        }
        "resnet" | "convnext" | "repvgg" | "mobileone" => {
            let mut model = match name {
                "resnet" => models::resnet::resnet18(10, vb),
                "convnext" => models::convnext::convnext(&models::convnext::Config::atto(), 10, vb),
                "repvgg" => models::repvgg::repvgg(&models::repvgg::Config::a0(), 10, vb),
                _ => models::mobileone::mobileone(&models::mobileone::Config::s0(), 10, vb),
            }?;
            let image = values("image", &[1, 3, size.side(), size.side()])?;
            built!(model, then, move || model.forward(&image))
        }
        "mimi/transformer" => {
            use models::mimi::{NormType, transformer};
            let config = transformer::Config {
                d_model: hidden,
                num_heads: heads,
                num_layers: layers,
                causal: true,
                norm_first: true,
                bias_ff: false,
                bias_attn: false,
                layer_scale: None,
                positional_embedding: transformer::PositionalEmbedding::Rope,
                use_conv_block: false,
                cross_attention: true,
                conv_kernel_size: 3,
                use_conv_bias: true,
                gating: None,
                norm: NormType::LayerNorm,
                context: positions,
                max_period: 10000,
                max_seq_len: positions,
                kv_repeat: 1,
                dim_feedforward: inner,
                conv_layout: true,
            };
            let mut model = transformer::StreamingTransformer::new(&config, vb)?;
            // The state is from before each call.
            let xs = values("frames", &[batch, len, hidden])?;
            let source = values("source", &[batch, size.few(), hidden])?;
            built!(model, then, move || model.clone().forward_ca(&xs, Some(&source)))
        }
        "llama" | "tied_llama" => {
            let config = models::llama::Config {
                hidden_size: hidden,
                intermediate_size: inner,
                vocab_size: vocab,
                num_hidden_layers: layers,
                num_attention_heads: heads,
                num_key_value_heads: heads / 2,
                use_flash_attn: false,
                rms_norm_eps: 1e-5,
                rope_theta: 10000.,
                bos_token_id: None,
                eos_token_id: None,
                rope_scaling: None,
                max_position_embeddings: positions,
                tie_word_embeddings: name == "tied_llama",
            };
            let mut model = models::llama::Llama::load(vb, &config)?;
            built!(model, then, move || {
                let mut cache = models::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
                let first = model.forward(&ids, 0, &mut cache)?;
                if is_small {
                    Tensor::cat(&[first, model.forward(&next, len, &mut cache)?], 0)
                } else {
                    Ok(first)
                }
            })
        }
        "qwen2" => {
            let config = config(json!({
                "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
                "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": heads / 2, "max_position_embeddings": positions,
                "sliding_window": positions, "max_window_layers": layers,
                "tie_word_embeddings": true, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
                "use_sliding_window": false, "hidden_act": "silu",
            }))?;
            let mut model = models::qwen2::ModelForCausalLM::new(&config, vb)?;
            built!(model, then, move || {
                model.clear_kv_cache();
                let first = model.forward(&ids, 0)?;
                if is_small {
                    Tensor::cat(&[first, model.forward(&next, len)?], 0)
                } else {
                    Ok(first)
                }
            })
        }
        "mixtral" => {
            let config = config(json!({
                "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner / 2,
                "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": heads / 2, "hidden_act": "silu",
                "max_position_embeddings": positions, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                "sliding_window": positions, "num_experts_per_tok": 2, "num_local_experts": 4,
                "use_flash_attn": false,
            }))?;
            let mut model = models::mixtral::Model::new(&config, vb)?;
            // A clone has an empty cache.
            built!(model, then, move || model.clone().forward(&ids, 0))
        }
        "phi" => {
            let config = config(json!({
                "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
                "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": null, "hidden_act": "gelu_new",
                "max_position_embeddings": positions, "layer_norm_eps": 1e-5,
                "tie_word_embeddings": false, "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5, "qk_layernorm": false,
            }))?;
            let mut model = models::phi::Model::new(&config, vb)?;
            built!(model, then, move || {
                model.clear_kv_cache();
                model.forward(&ids)
            })
        }
        "mimi/encodec" => {
            let mut config = models::mimi::encodec::Config::v0_1(Some(4));
            if is_small {
                config.seanet.dimension = hidden;
                config.seanet.n_filters = 16;
                config.seanet.ratios = vec![4, 2];
                config.transformer.d_model = hidden;
                config.transformer.num_heads = heads;
                config.transformer.num_layers = layers;
                config.transformer.dim_feedforward = inner;
                // Two frames of the encoder are one of the codes.
                config.frame_rate = config.sample_rate / 16.;
                config.quantizer_bins = 64;
                config.quantizer_dim = 32;
            }
            let mut model = models::mimi::encodec::Encodec::new(config, vb)?;
            let audio = values("audio", &[1, 1, if is_small { 512 } else { 24_000 }])?;
            let codes = (0..4 * len as u32).map(|i| i * 7 % 64).collect::<Vec<_>>();
            let codes = Tensor::from_vec(codes, (1, 4, len), &Device::Cpu)?;
            built!(model, then, move || {
                model.reset_state();
                let hidden = model.encode_pre_quantize(&audio)?;
                let sound = model.decode(&codes)?;
                Tensor::cat(&[hidden.flatten_all()?, sound.flatten_all()?], 0)
            })
        }
        "snac" => {
            let (channels, rates) = if is_small { (16, [2, 4]) } else { (96, [4, 8]) };
            let config = config(json!({
                "sampling_rate": 24_000, "encoder_dim": channels, "encoder_rates": rates,
                "decoder_dim": 4 * channels, "decoder_rates": [rates[1], rates[0]],
                "attn_window_size": null, "codebook_size": 64, "codebook_dim": 8,
                "vq_strides": [2, 1], "noise": false, "depthwise": false,
            }))?;
            let mut model = models::snac::Model::new(&config, vb)?;
            let codes = |len: usize| {
                let codes = (0..len as u32).map(|i| i * 7 % 64).collect::<Vec<_>>();
                Tensor::from_vec(codes, (1, len), &Device::Cpu)
            };
            let (half, codes) = (codes(len / 2)?, codes(len)?);
            built!(model, then, move || model.decode(&[&half, &codes]))
        }
        "dac" => {
            let (channels, rates) = if is_small { (16, [2, 4]) } else { (64, [2, 4]) };
            let new = models::dac::Encoder::new;
            let encoder = new(channels, &rates, 4 * channels, vb.pp("encoder"))?;
            let new = models::dac::Decoder::new;
            let rates = [rates[1], rates[0]];
            let decoder = new(4 * channels, 4 * channels, &rates, 1, vb.pp("decoder"))?;
            let mut both = (encoder, decoder);
            let audio = values("audio", &[1, 1, if is_small { 256 } else { 16_000 }])?;
            built!(both, then, move || {
                let hidden = both.0.forward(&audio)?;
                let sound = both.1.forward(&hidden)?;
                Tensor::cat(&[hidden.flatten_all()?, sound.flatten_all()?], 0)
            })
        }
        "encodec" => {
            let config = models::encodec::Config {
                num_filters: if is_small { 16 } else { 32 },
                ..Default::default()
            };
            let encoder = models::encodec::Encoder::new(&config, vb.pp("encoder"))?;
            let decoder = models::encodec::Decoder::new(&config, vb.pp("decoder"))?;
            let mut both = (encoder, decoder);
            let samples = 320 * if is_small { 8 } else { 75 };
            let audio = values("audio", &[1, 1, samples])?;
            // The values between the two are indices of a codebook, which do not measure noise.
            built!(both, then, move || {
                let hidden = both.0.forward(&audio)?;
                let sound = both.1.forward(&hidden)?;
                Tensor::cat(&[hidden.flatten_all()?, sound.flatten_all()?], 0)
            })
        }
        _ => anyhow::bail!("no model {name}"),
    })
}
