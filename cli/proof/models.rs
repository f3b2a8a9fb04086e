/// A small model of this name, quantized where `on` says so: its output, and what was swapped.
pub fn run(name: &str, vb: VarBuilder<'static>, on: bool) -> anyhow::Result<(Tensor, Counts)> {
    let ids = Tensor::from_vec(
        (0..48u32).map(|i| i * 7 % 100).collect::<Vec<_>>(),
        (2, 24),
        &Device::Cpu,
    )?;
    let one = ids.i(..1)?;
    Ok(match name {
        "bert" => {
            let config = models::bert::Config {
                vocab_size: 100,
                hidden_size: 64,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                intermediate_size: 128,
                ..Default::default()
            };
            let mut model = models::bert::BertForMaskedLM::load(vb, &config)?;
            let counts = quantize!(model, on);
            (
                model.forward(&ids, &ids.zeros_like()?, Some(&mask(2, 24)?))?,
                counts,
            )
        }
        "distilbert" => {
            let config = serde_json::from_str(
                r#"{"vocab_size":100,"dim":64,"n_layers":2,"n_heads":4,"hidden_dim":128,"activation":"gelu","max_position_embeddings":64,"initializer_range":0.02,"pad_token_id":0,"model_type":"distilbert"}"#,
            )?;
            let mut model = models::distilbert::DistilBertForMaskedLM::load(vb, &config)?;
            let counts = quantize!(model, on);
            let mask = mask(2, 24)?.ne(1u32)?.reshape((2, 1, 1, 24))?;
            (model.forward(&ids, &mask)?, counts)
        }
        "xlm_roberta" => {
            let config = serde_json::from_str(
                r#"{"hidden_size":64,"layer_norm_eps":1e-5,"attention_probs_dropout_prob":0.0,"hidden_dropout_prob":0.0,"num_attention_heads":4,"position_embedding_type":"absolute","intermediate_size":128,"hidden_act":"gelu","num_hidden_layers":2,"vocab_size":100,"max_position_embeddings":64,"type_vocab_size":2,"pad_token_id":1}"#,
            )?;
            let mut model = models::xlm_roberta::XLMRobertaForMaskedLM::new(&config, vb)?;
            let counts = quantize!(model, on);
            (
                model.forward(&ids, &mask(2, 24)?, &ids.zeros_like()?, None, None, None)?,
                counts,
            )
        }
        "modernbert" => {
            let config = serde_json::from_str(
                r#"{"vocab_size":100,"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":128,"max_position_embeddings":64,"layer_norm_eps":1e-5,"pad_token_id":0,"global_attn_every_n_layers":3,"global_rope_theta":160000.0,"local_attention":16,"local_rope_theta":10000.0}"#,
            )?;
            let mut model = models::modernbert::ModernBertForMaskedLM::load(vb, &config)?;
            let counts = quantize!(model, on);
            (model.forward(&ids, &mask(2, 24)?)?, counts)
        }
        "t5" => {
            let config = serde_json::from_str(
                r#"{"vocab_size":100,"d_model":64,"d_kv":16,"d_ff":128,"num_layers":2,"num_heads":4,"relative_attention_num_buckets":8,"dropout_rate":0.0,"layer_norm_epsilon":1e-6,"initializer_factor":1.0,"feed_forward_proj":"relu","is_encoder_decoder":true,"pad_token_id":0,"eos_token_id":1,"decoder_start_token_id":0,"use_cache":false}"#,
            )?;
            let mut model = models::t5::T5ForConditionalGeneration::load(vb, &config)?;
            let counts = quantize!(model, on);
            (
                model.forward(&ids, &ids.i((.., ..6))?.contiguous()?)?,
                counts,
            )
        }
        "marian" => {
            let config = serde_json::from_str(
                r#"{"vocab_size":100,"max_position_embeddings":64,"encoder_layers":2,"encoder_ffn_dim":128,"encoder_attention_heads":4,"decoder_layers":2,"decoder_ffn_dim":128,"decoder_attention_heads":4,"use_cache":true,"is_encoder_decoder":true,"activation_function":"silu","d_model":64,"decoder_start_token_id":0,"scale_embedding":true,"pad_token_id":0,"eos_token_id":1,"forced_eos_token_id":1,"share_encoder_decoder_embeddings":true}"#,
            )?;
            let mut model = models::marian::MTModel::new(&config, vb)?;
            let counts = quantize!(model, on);
            let xs = model.encoder().forward(&ids, 0)?;
            (
                model.decode(&ids.i((.., ..6))?.contiguous()?, &xs, 0)?,
                counts,
            )
        }
        "whisper" => {
            let config: models::whisper::Config = serde_json::from_str(
                r#"{"num_mel_bins":16,"max_source_positions":32,"d_model":64,"encoder_attention_heads":4,"encoder_layers":2,"vocab_size":100,"max_target_positions":32,"decoder_attention_heads":4,"decoder_layers":2}"#,
            )?;
            let mut model = models::whisper::model::Whisper::load(&vb, config)?;
            let counts = quantize!(model, on);
            let mel = values("mel", &[1, 16, 64])?;
            let xs = model.encoder.forward(&mel, true)?;
            let ys = model.decoder.forward(&one, &xs, true)?;
            (model.decoder.final_linear(&ys)?, counts)
        }
        "vit" => {
            let config = serde_json::from_str(
                r#"{"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":128,"hidden_act":"gelu","layer_norm_eps":1e-5,"image_size":32,"patch_size":8,"num_channels":3,"qkv_bias":true}"#,
            )?;
            let mut model = models::vit::Model::new(&config, 10, vb)?;
            let counts = quantize!(model, on);
            (model.forward(&values("image", &[2, 3, 32, 32])?)?, counts)
        }
        "clip/text_model" => {
            let config = models::clip::text_model::ClipTextConfig {
                vocab_size: 100,
                embed_dim: 64,
                activation: models::clip::text_model::Activation::QuickGelu,
                intermediate_size: 128,
                max_position_embeddings: 64,
                pad_with: None,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                projection_dim: 64,
            };
            let mut model = models::clip::text_model::ClipTextTransformer::new(vb, &config)?;
            let counts = quantize!(model, on);
            (model.forward_with_mask(&ids, 24)?, counts)
        }
        "llama" => {
            let config = models::llama::Config {
                hidden_size: 64,
                intermediate_size: 128,
                vocab_size: 100,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                num_key_value_heads: 2,
                use_flash_attn: false,
                rms_norm_eps: 1e-5,
                rope_theta: 10000.,
                bos_token_id: None,
                eos_token_id: None,
                rope_scaling: None,
                max_position_embeddings: 64,
                tie_word_embeddings: false,
            };
            let mut cache = models::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
            let mut model = models::llama::Llama::load(vb, &config)?;
            let counts = quantize!(model, on);
            let first = model.forward(&ids, 0, &mut cache)?;
            let next = model.forward(&ids.i((.., ..1))?.contiguous()?, 24, &mut cache)?;
            (Tensor::cat(&[first, next], 0)?, counts)
        }
        "qwen2" => {
            let config = serde_json::from_str(
                r#"{"vocab_size":100,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":64,"sliding_window":64,"max_window_layers":2,"tie_word_embeddings":true,"rope_theta":10000.0,"rms_norm_eps":1e-6,"use_sliding_window":false,"hidden_act":"silu"}"#,
            )?;
            let mut model = models::qwen2::ModelForCausalLM::new(&config, vb)?;
            let counts = quantize!(model, on);
            let first = model.forward(&ids, 0)?;
            let next = model.forward(&ids.i((.., ..1))?.contiguous()?, 24)?;
            (Tensor::cat(&[first, next], 0)?, counts)
        }
        "phi" => {
            let config = serde_json::from_str(
                r#"{"vocab_size":100,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":null,"hidden_act":"gelu_new","max_position_embeddings":64,"layer_norm_eps":1e-5,"tie_word_embeddings":false,"rope_theta":10000.0,"partial_rotary_factor":0.5,"qk_layernorm":false}"#,
            )?;
            let mut model = models::phi::Model::new(&config, vb)?;
            let counts = quantize!(model, on);
            (model.forward(&ids)?, counts)
        }
        _ => anyhow::bail!("no model {name}"),
    })
}
