//! Folders of decoders as transformers writes them: each key and tensor is used, known to be
//! harmless, or reported.

mod common;

use std::collections::HashMap;

use anyhow::{Context, Result};
use candle_dynquant_decoder::{
    Config, Decoder, Folder, Message, Template, Texts, ToolFormat, Variables,
};
use candle_dynquant_support::repository;
use common::*;
use serde_json::{Value, json};

/// A file of this repository as text.
fn text_of(path: &str) -> Result<String> {
    Ok(std::fs::read_to_string(repository().join(path))?)
}

fn tensors_of(path: &std::path::Path) -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(path, CPU)?)
}

/// Missing keys, and keys that transformers prefers to others.
#[test]
fn a_config_has_the_defaults_of_transformers() -> Result<()> {
    let base = r#""vocab_size": 8, "hidden_size": 512, "intermediate_size": 8, "num_hidden_layers": 6,
        "num_attention_heads": 32, "max_position_embeddings": 8"#;
    let read = |keys: &str| {
        let text = format!("{{{base}, {keys}}}");
        Config::parse_file("config.json", text.into())
    };
    // The windows of the first and the last layer, the bases of their angles, the heads of keys.
    #[rustfmt::skip]
    let cases = [
        (r#""model_type": "llama""#, [None, None], [1e4, 1e4], 32),
        (r#""model_type": "mistral""#, [Some(4096); 2], [1e4, 1e4], 8),
        (r#""model_type": "mistral", "sliding_window": null"#, [None, None], [1e4, 1e4], 8),
        (r#""model_type": "qwen2""#, [None, None], [1e4, 1e4], 32),
        (r#""model_type": "qwen3", "use_sliding_window": true, "max_window_layers": 5"#,
            [None, Some(4096)], [1e4, 1e4], 32),
        (r#""model_type": "gemma3_text""#, [Some(4096), None], [1e4, 1e6], 4),
        (r#""model_type": "llama", "rope_scaling": {"rope_type": "default", "type": "default"},
            "rope_theta": 5e5, "rope_parameters": {"rope_theta": 7.0}"#, [None, None], [5e5, 5e5], 32),
        (r#""model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_theta": 2e6}}"#,
            [Some(4096), None], [1e4, 2e6], 4),
    ];
    for (keys, windows, bases, kv) in cases {
        let config = read(keys)?;
        let layers = [0, 5];
        assert_eq!(layers.map(|layer| config.window(layer)), windows, "{keys}");
        for (layer, base) in layers.into_iter().zip(bases) {
            let expected = f64::powf(base, -2. / config.head_dim() as f64) as f32;
            assert_eq!(config.frequencies(layer)?[1], expected, "{keys}, {layer}");
        }
        assert_eq!(config.kv_heads(), kv, "{keys}");
    }
    // Longer texts have other angles, which are not computed.
    let phi = read(
        r#""model_type": "phi3", "original_max_position_embeddings": 4,
            "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": []}"#,
    )?;
    assert_eq!(phi.max_position_embeddings, 4);
    // The keys of LFM2-1.2B's file.
    let lfm2 = read(
        r#""model_type": "lfm2", "block_auto_adjust_ff_dim": true, "block_dim": 2048, "block_ff_dim": 12288,
            "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256,
            "block_norm_eps": 1e-05, "block_use_swiglu": true, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048,
            "conv_use_xavier_init": true, "full_attn_idxs": [2, 5], "norm_eps": 1e-05, "num_heads": 32,
            "rope_theta": 1000000.0, "use_pos_enc": true"#,
    )?;
    assert_eq!((lfm2.intermediate_size(), &*lfm2.notes), (8192, &[] as &[String]));
    let convolutions: Vec<usize> = (0..6).filter(|layer| lfm2.has_convolution(*layer)).collect();
    assert_eq!(convolutions, [0, 1, 3, 4]);
    let colour = read(r#""model_type": "llama", "colour": 1, "top_k": 5"#)?;
    assert_eq!(colour.notes, ["colour"]);
    #[rustfmt::skip]
    let refused = [
        (r#""model_type": "qwen2", "is_causal": false"#, "is_causal"),
        (r#""model_type": "mistral", "layer_types": ["full_attention"]"#, "layer_types"),
        (r#""model_type": "llama", "sliding_window": 8"#, "sliding_window"),
        // transformers attends to no token then.
        (r#""model_type": "mistral", "sliding_window": 0"#, "sliding_window"),
        (r#""model_type": "qwen3", "use_sliding_window": true, "sliding_window": 0, "max_window_layers": 0"#,
            "sliding_window"),
        (r#""model_type": "llama", "attention_chunk_size": 8"#, "attention_chunk_size"),
        (r#""model_type": "llama", "rope_parameters": {"full_attention": {"rope_theta": 2e6}}"#, "rope_parameters"),
        (r#""model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"full_attention": {"rope_theta": 2e6}}"#, "rope_scaling"),
        (r#""model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 2.0,
            "low_freq_factor": 4.0, "high_freq_factor": 1.0}"#, "high_freq_factor"),
        (r#""model_type": "gemma3_text", "sliding_window_pattern": 0"#, "sliding_window_pattern"),
    ];
    for (keys, name) in refused {
        assert_chain(read(keys), &[name]);
    }
    Ok(())
}

/// The small Llama with other files beside it.
fn folder(files: &[(&str, &str)]) -> Result<(tempfile::TempDir, Result<Folder>)> {
    let dir = tempfile::tempdir()?;
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let path = repository().join("assets/decoder").join(file);
        std::fs::copy(path, dir.path().join(file))?;
    }
    for (file, text) in files {
        std::fs::write(dir.path().join(file), text)?;
    }
    let folder = Folder::open(dir.path(), None);
    Ok((dir, folder))
}

fn opened(files: &[(&str, &str)]) -> Result<Folder> {
    folder(files)?.1
}

#[test]
fn the_keys_that_transformers_writes_are_known() -> Result<()> {
    let text = text_of("assets/reference/decoder_keys.json")?;
    let files: serde_json::Value = serde_json::from_str(&text)?;
    let configs = files["configs"].as_array().context("no configs")?;
    assert_eq!(configs.len(), 14);
    for config in configs {
        let config = Config::parse_file("config.json", config.to_string().into())?;
        assert!(config.notes.is_empty(), "{:?}", config.notes);
    }
    let [generation, settings] = ["generation_config.json", "tokenizer_config.json"];
    let [of_generation, of_tokenizer] = [generation, settings].map(|name| files[name].to_string());
    let keys =
        [(generation, &*of_generation), (settings, &of_tokenizer), ("tokenizer.json", WORDS)];
    assert_eq!(opened(&keys)?.notes, [""; 0]);

    let asked = r#"{"colour": 1, "num_beams": 4, "stop_strings": ["a"], "do_sample": true,
        "temperature": 0.6, "top_k": 20, "eos_token_id": [7, 9]}"#;
    let asked_for = opened(&[(generation, asked)])?;
    // The union of both files.
    assert_eq!(asked_for.ends, [0, 7, 9]);
    let drawn = asked_for.sampling.context("no sampling")?;
    assert_eq!((drawn.temperature, drawn.top_k, drawn.top_p), (0.6, 20, 1.));
    assert_eq!(asked_for.notes.len(), 3);
    for (note, key) in asked_for.notes.iter().zip(["colour", "num_beams", "stop_strings"]) {
        assert_parts(note, &[key]);
    }
    let greedy = r#"{"do_sample": false, "temperature": 0.6, "repetition_penalty": 1.1}"#;
    let drawn = opened(&[(generation, greedy)])?.sampling.context("no sampling")?;
    assert_eq!((drawn.temperature, drawn.repetition_penalty), (0., 1.1));
    // Without that file, transformers takes the settings of config.json.
    let config = text_of("assets/decoder/config.json")?;
    let config =
        config.replacen('{', r#"{"do_sample": true, "temperature": 0.3, "num_beams": 2,"#, 1);
    let of_config = opened(&[("config.json", &config)])?;
    assert_eq!(of_config.sampling.context("no sampling")?.temperature, 0.3);
    assert!(matches!(&of_config.notes[..], [note] if note.contains("num_beams")));
    let of_both = opened(&[("config.json", &config), (generation, "{}")])?;
    assert_eq!(of_both.sampling.context("no sampling")?.temperature, 0.);
    assert!(opened(&[])?.sampling.is_none());
    for (text, expected) in [
        (r#"{"eos_token_id": "x"}"#, generation),
        (r#"{"top_p": 2.0}"#, "\"top_p\""),
        (r#"{"top_p": 1.0, "top_p": 0.5}"#, "\"top_p\" twice"),
    ] {
        assert_chain(opened(&[(generation, text)]), &[expected]);
    }
    Ok(())
}

#[test]
fn each_tensor_is_read_or_named() -> Result<()> {
    let ids = Tensor::new(&[[5u32, 6]], CPU)?;
    let scores = |model: &Decoder| -> Result<Vec<f32>> {
        Ok(values(&model.next(&ids, &mut model.cache())?))
    };
    #[rustfmt::skip]
    let cases = [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", &[16][..], false),
        ("model.layers.0.self_attn.q_norm.weight", &[32], true),
        ("model.layers.0.self_attn.q_proj.bias", &[192], true),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", &[8, 192], true),
        ("model.layers.4.input_layernorm.weight", &[192], true),
        ("model.layers.1.mlp.up_proj.bias", &[512], true),
        ("model.layers.0.mlp.gate_proj.weight_g", &[512, 1], true),
        ("model.layers.00.input_layernorm.weight", &[192], true),
        ("model.norm.scales", &[192], true),
        ("score.weight", &[2, 192], true),
        ("lm_head.weight", &[1024, 192], false),
    ];
    for (name, shape, is_fault) in cases {
        let (dir, opened) = folder(&[])?;
        let plain = scores(&opened?.load()?)?;
        let path = dir.path().join("model.safetensors");
        let mut tensors = tensors_of(&path)?;
        tensors.insert(name.to_owned(), Tensor::full(0.25f32, shape, CPU)?);
        candle_core::safetensors::save(&tensors, &path)?;
        match Folder::open(dir.path(), None) {
            Err(error) => assert!(is_fault && format!("{error:#}").contains(name), "{error:#}"),
            // A head that differs is used, although config.json says that it is tied.
            Ok(opened) => {
                let is_head = name == "lm_head.weight";
                assert_eq!(scores(&opened.load()?)? != plain, is_head, "{name}");
                assert!(!is_fault, "{name}");
            }
        }
    }
    Ok(())
}

/// Each tensor of a mixture of experts is read or named, in each of its layouts.
#[test]
fn each_tensor_of_experts_is_read_or_named() -> Result<()> {
    let fixtures = repository().join("assets/reference/decoders");
    let open = |name: &str, extra: &str, shape: &[usize]| -> Result<()> {
        let dir = tempfile::tempdir()?;
        let file = |name: &str| dir.path().join(name);
        std::fs::copy(fixtures.join(format!("{name}.json")), file("config.json"))?;
        std::fs::write(file("tokenizer.json"), WORDS)?;
        let mut tensors = tensors_of(&fixtures.join(format!("{name}.safetensors")))?;
        tensors.retain(|name, _| !["ids", "logits"].contains(&&**name));
        if !extra.is_empty() {
            tensors.insert(extra.into(), ones(shape));
        }
        candle_core::safetensors::save(&tensors, file("model.safetensors"))?;
        Folder::open(dir.path(), None)?.load().map(drop)
    };
    for (name, extra) in [
        ("qwen3_moe", "model.layers.0.mlp.experts.6.gate_proj.weight"),
        ("qwen3_moe", "model.layers.0.mlp.experts.05.gate_proj.weight"),
        ("qwen3_moe", "model.layers.0.mlp.experts.0.gate_proj.bias"),
        ("qwen3_moe", "model.layers.0.mlp.gate_proj.weight"),
        ("qwen3_moe", "model.layers.0.mlp.shared_expert.gate_proj.weight"),
        // This layer has no experts.
        ("qwen3_moe", "model.layers.1.mlp.gate.weight"),
        ("qwen3_moe", "model.layers.1.mlp.experts.0.gate_proj.weight"),
        ("mixtral", "model.layers.0.mlp.gate.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.0.w4.weight"),
        ("olmoe", "model.layers.0.mlp.gate.e_score_correction_bias"),
        ("granite_moe", "model.layers.0.block_sparse_moe.experts.0.input_linear.weight"),
        ("granite_moe", "model.layers.0.shared_mlp.input_linear.weight"),
    ] {
        open(name, "", &[])?;
        assert_chain(open(name, extra, &[4, 4]), &[extra]);
    }
    Ok(())
}

/// A quantized model that was saved has the scores of the model in memory.
#[test]
fn quantized_experts_are_saved_and_loaded() -> Result<()> {
    let fixtures = repository().join("assets/reference/decoders");
    let ids = Tensor::new(&[[5u32, 6, 7, 8]], CPU)?;
    for name in ["qwen3_moe", "mixtral", "olmoe", "granite_moe"] {
        let dir = tempfile::tempdir()?;
        let config = Config::read(&fixtures.join(format!("{name}.json")))?;
        let source = Checkpoint::open(fixtures.join(format!("{name}.safetensors")))?;
        let vb = source.var_builder(DType::F32, CPU);
        let mut model = Decoder::load(&config, vb)?;
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
        let expected = model.all(&ids, &mut model.cache())?;
        let saved = dir.path().join("model.safetensors");
        checkpoint::save(&model, &source, &saved)?;
        let vb = Checkpoint::open(&saved)?.var_builder(DType::F32, CPU);
        let model = Decoder::load(&config, vb)?;
        assert!(model.has_independent_rows()?, "{name}");
        let got = model.all(&ids, &mut model.cache())?;
        assert_eq!(values(&got), values(&expected), "{name}");
    }
    Ok(())
}

#[test]
fn numbers_of_experts_are_checked() -> Result<()> {
    let config: Value =
        serde_json::from_str(&text_of("assets/reference/decoders/qwen3_moe.json")?)?;
    for (key, value) in [
        ("num_experts_per_tok", 0),
        ("num_experts_per_tok", 7),
        ("num_local_experts", 0),
        ("num_experts", 5),
        ("moe_intermediate_size", 0),
        ("decoder_sparse_step", 0),
    ] {
        let mut config = config.clone();
        config[key] = value.into();
        let error = assert_chain(Config::parse_file("config.json", config.to_string().into()), &[]);
        assert!(error.contains("expert") || error.contains(key), "{error}");
    }
    Ok(())
}

/// A tokenizer of words with the special tokens `<s>` and `</s>`, which its vocabulary has as well.
const WORDS: &str = r#"{"added_tokens": [
    {"id": 1, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false},
    {"id": 2, "content": "</s>", "special": false, "single_word": false, "lstrip": false,
        "rstrip": true, "normalized": false},
    {"id": 4, "content": "<x>", "special": false, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false},
    {"id": 6, "content": "<y>", "special": false, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false}],
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "unk_token": "<unk>",
    "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "<x>": 4, "b": 5}}}"#;

const NAMED: &str = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;

/// The texts of a folder with these files.
fn texts(tokenizer: &str, template: &str, config: &str) -> Result<Texts> {
    let files = [
        ("tokenizer.json", tokenizer),
        ("chat_template.jinja", template),
        ("tokenizer_config.json", config),
    ];
    Ok(opened(&files)?.texts)
}

/// The names of the first and the last token of the small Llama, whose tokenizer is of bytes.
const ENDED: &str = r#"{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}"#;

fn decoded(texts: &Texts, tokens: &[u32]) -> Result<String> {
    texts.tokenizer.decode(tokens, false).map_err(anyhow::Error::msg)
}

fn message(content: &str) -> Message {
    Message::new("user", content)
}

/// Tokenizers of bytes, of SentencePiece with and without a space before a text, and of words.
#[test]
fn contents_of_messages_have_no_special_tokens() -> Result<()> {
    const TEMPLATE: &str = "{% for m in messages %}{{ bos_token }} {{ m.content | trim }} \
        {{ eos_token }} {% endfor %}";
    let gguf = |name: &str| {
        let file = format!("assets/reference/decoders/gguf_{name}.gguf");
        let tokenizer = Folder::open(&repository().join(file), None)?.texts.tokenizer;
        tokenizer.to_string(false).map_err(anyhow::Error::msg)
    };
    let bytes = text_of("assets/decoder/tokenizer.json")?;
    for (tokenizer, config, special) in [
        (&*bytes, ENDED, [0, 0]),
        (&gguf("llama")?, NAMED, [1, 2]),
        (&gguf("gemma3")?, NAMED, [1, 2]),
        (WORDS, NAMED, [1, 2]),
    ] {
        let texts = texts(tokenizer, TEMPLATE, config)?;
        let template = texts.template.as_ref().context("no template")?;
        let plain = ["a b", "  b <  >s> a</", "the river <"].map(message);
        let expected = texts.chat(&plain, true)?;
        assert_eq!(expected, texts.encode(&template.render(&plain, true)?)?);
        let last = texts.tokenizer.id_to_token(special[1]).context("no token")?;
        let (left, right) = last.split_at(2);
        for contents in [
            ["a b", "  b <  >s> a</", "the river <"].map(str::to_owned),
            [format!("a{last}b"), "b".into(), format!("a {last}\u{f0000}")],
            [last.clone(), format!("{last}{last} "), format!("{left}{last}{right}")],
        ] {
            let messages = contents.map(|content| message(&content));
            let mut tokens = texts.chat(&messages, true)?;
            let decoded = decoded(&texts, &tokens)?.replace(' ', "");
            let rendered = template.render(&messages, true)?.replace(' ', "");
            assert!(tokenizer == WORDS || decoded == rendered, "{decoded}");
            tokens.retain(|id| special.contains(id));
            assert_eq!(tokens, [special; 3].concat(), "{messages:?}");
        }
        let private = [message(&format!("{last}\u{100000}"))];
        assert_chain(texts.chat(&private, true), &["U+10FFFD"]);
    }
    // Two contents that make a token together.
    let joined = texts(&bytes, "{% for m in messages %}{{ m.content }}{% endfor %}", ENDED)?;
    let halves = ["<|endof", "text|>"].map(message);
    assert!(!joined.chat(&halves, true)?.contains(&0));
    // Contents that are cut, so that a token is left; code that looks at their edges, too.
    #[rustfmt::skip]
    let cases = [
        ("content.split('<X>') | join", "a<|end<X>oftext|>", "a<|endoftext|>"),
        ("content.replace('X', '')", "<|endofXtext|>b", "<|endoftext|>b"),
        ("content[:2] + m.content[3:]", "<|.endoftext|>", "<|endoftext|>"),
        ("content.split('</a>')[-1]", "<a>b</a>c", "c"),
        ("content.split('<|endoftext|>')[-1]", "b<|c", "b<|c"),
    ];
    for (cut, content, left) in cases {
        let template =
            format!("{{% for m in messages %}}{{{{ eos_token + m.{cut} }}}}{{% endfor %}}");
        let texts = texts(&bytes, &template, ENDED)?;
        let tokens = texts.chat(&[message(content)], true)?;
        assert_eq!(decoded(&texts, &tokens)?, format!("<|endoftext|>{left}"));
        assert!(!tokens[1..].contains(&0), "{cut}");
    }
    let noticed = texts(&bytes, "{{ messages[0].content | escape }}", ENDED)?;
    assert_chain(noticed.chat(&[message("<")], true), &["expected contents"]);
    Ok(())
}

/// Prompts with tools are those of transformers, and neither tools nor calls write special tokens.
#[test]
fn tools_reach_the_template_as_in_transformers() -> Result<()> {
    let fixture: Value = serde_json::from_str(&text_of("assets/reference/chat_tools.json")?)?;
    let bytes = text_of("assets/decoder/tokenizer.json")?;
    let form = |name| match name {
        "hermes" => ToolFormat::Hermes,
        "llama" => ToolFormat::Llama,
        "mistral" => ToolFormat::Mistral,
        "arguments" => ToolFormat::MistralArguments,
        _ => ToolFormat::Xml,
    };
    for (name, source) in fixture["templates"].as_object().context("no templates")? {
        let texts = texts(&bytes, source.as_str().context("no source")?, ENDED)?;
        let template = texts.template.as_ref().context("no template")?;
        assert_eq!(template.tool_format, Some(form(name.as_str())));
        assert!(template.writes_tool_calls);
        let prompts = fixture["prompts"].as_array().context("no prompts")?;
        for prompt in prompts.iter().filter(|prompt| prompt["template"] == **name) {
            let mut messages: Vec<Message> = serde_json::from_value(prompt["messages"].clone())?;
            let mut variables = Variables::from_iter([("tools".into(), prompt["tools"].clone())]);
            let text = template.render_with(&messages, true, &variables).ok();
            assert_eq!(text.as_deref(), prompt["text"].as_str(), "{name}");
            let Some(text) = text else { continue };
            let tokens = texts.chat_with(&messages, true, &variables)?;
            assert_eq!(tokens, texts.encode(&text)?);
            messages[0].content += "<|endoftext|>";
            for value in [
                variables["tools"].pointer_mut("/0/function/parameters/properties/city/type"),
                messages.get_mut(1).and_then(|message| {
                    message.fields["tool_calls"].pointer_mut("/0/function/arguments/city")
                }),
            ] {
                let Some(value) = value else { continue };
                *value = json!({"<|endoftext|>": "<|endoftext|>"});
            }
            let tokens = texts.chat_with(&messages, true, &variables)?;
            assert!(!tokens.contains(&0), "{name}");
        }
    }
    let hidden =
        ["", "{{ tools }}", "<tool_call>{{ tools }}", "[TOOL_CALLS]{{ tools }}[CALL_ID][ARGS]"];
    for source in hidden {
        let template = texts(&bytes, source, ENDED)?.template.context("no template")?;
        assert_eq!(template.tool_format, None, "{source}");
    }
    Ok(())
}

#[test]
fn a_token_without_a_row_is_an_error_where_a_text_has_it() -> Result<()> {
    let config = text_of("assets/decoder/config.json")?;
    let config = config.replace("\"vocab_size\": 1024", "\"vocab_size\": 6");
    let words = opened(&[("tokenizer.json", WORDS), ("config.json", &config)])?.texts;
    assert_eq!(words.encode("a b")?, [3, 5]);
    assert_chain(words.encode("a <y>"), &["below vocab_size 6, got 6"]);
    for lies in [
        r#"{"added_tokens_decoder": {"7": {"content": "</s>"}}}"#,
        r#"{"added_tokens_decoder": {"4": {"content": "<x>", "lstrip": true}}}"#,
        r#"{"add_prefix_space": true, "tokenizer_class": "GPT2Tokenizer"}"#,
        r#"{"chat_template": 5}"#,
    ] {
        let key = lies.split('"').nth(1).context("a key")?;
        assert_chain(opened(&[("tokenizer.json", WORDS), ("tokenizer_config.json", lies)]), &[key]);
    }
    Ok(())
}

/// Equals transformers, which adds special tokens that `tokenizer.json` has as words only.
#[test]
fn special_tokens_of_the_settings_are_matched_as_a_whole() -> Result<()> {
    const TEMPLATE: &str = "{{ image_token }} {{ messages[0].content }}";
    for settings in [
        r#"{"eos_token": "b"}"#,
        r#"{"pad_token": {"content": "b", "lstrip": false}}"#,
        r#"{"additional_special_tokens": ["b"]}"#,
        r#"{"extra_special_tokens": {"image_token": "b"}}"#,
        r#"{"added_tokens_decoder": {"5": {"content": "b", "special": true}}}"#,
    ] {
        let texts = texts(WORDS, TEMPLATE, settings)?;
        assert_eq!(texts.encode("abb")?, [3, 5, 5], "{settings}");
        let is_named = settings.contains("image_token");
        let expected: &[u32] = if is_named { &[5, 3] } else { &[3] };
        assert_eq!(texts.chat(&[message("a")], true)?, expected, "{settings}");
    }
    assert_eq!(texts(WORDS, TEMPLATE, "{}")?.encode("abb")?, [0]);
    Ok(())
}

/// Equals transformers 5.24, which makes that class without the normalizer of `tokenizer.json`.
#[test]
fn the_tokenizer_of_qwen2_composes_characters() -> Result<()> {
    const QWEN: &str = r#"{"tokenizer_class": "Qwen2Tokenizer"}"#;
    let tokenizer = WORDS.replace("\"a\": 3", "\"\u{e9}\": 3");
    let ids = |settings| texts(&tokenizer, "", settings)?.encode("e\u{301} b");
    assert_eq!(ids("{}")?, [0, 5]);
    assert_eq!(ids(QWEN)?, [3, 5]);
    Ok(())
}

#[test]
fn values_of_templates_are_written_as_python_does() -> Result<()> {
    #[rustfmt::skip]
    let cases = [
        ("{% if tools is not none %}[TOOLS]{% endif %}{{ tools is defined }}{{ documents }}", "TrueNone"),
        ("{{ ['a', \"it's\", none, 1, {'b': true}] }}", r#"['a', "it's", None, 1, {'b': True}]"#),
        ("{{ messages }}", r#"[{'role': 'user', 'content': '"é\x01\n'}]"#),
        ("{% if true %}\r\na\r\n{% endif %}\rb", "a\nb"),
        ("{{ messages | tojson }}", r#"[{"role": "user", "content": "\"é\u0001\n"}]"#),
        ("{{ none is iterable }}{{ 'a' is iterable }}{{ nothing is iterable }}{{ 1 is iterable }}", "FalseTrueTrueFalse"),
        ("{{ 'a' is sequence }}{{ {} is sequence }}{{ (1, 2) is sequence }}{{ none is sequence }}", "TrueTrueTrueFalse"),
        ("{{ {'b': [1, 2.0, true, none], 'a': {}} | tojson }}", r#"{"b": [1, 2.0, true, null], "a": {}}"#),
        ("{{ {'b': 1, 'a': []} | tojson(separators=(',', ':')) }}", r#"{"b":1,"a":[]}"#),
        ("{{ 1.0 }} {{ 1e-5 }} {{ [1e16, 0.0001, -2.5e300] }}", "1.0 1e-05 [1e+16, 0.0001, -2.5e+300]"),
        ("{{ 1e-5 | tojson }} {{ 1e20 | string }} {{ [true, none, 1e-7, 'a'] | join('-') }}", "1e-05 1e+20 True-None-1e-07-a"),
        ("{{ 'abc' | join('-') }}{{ ['a', ['b']] | string }}", "a-b-c['a', ['b']]"),
        ("{{ (1, 'a') }} {{ (1,) }} {{ () }} {{ [(1, (2, 3))] }} {{ 'a' ~ (1, ')') }}",
            "(1, 'a') (1,) () [(1, (2, 3))] a(1, ')')"),
        ("{# ( {{ #}{{ ('a', 'b')[1] }}{{ 'a' in ('a', 'b') }}{{ (1, 2) | tojson }}{{ (1 + 2) * 3 }}", "bTrue[1, 2]9"),
        ("{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% set x, y = (3, 4) %}{{ x + y }}", "127"),
        ("{{ -7 % 3 }} {{ -7 // 2 }} {{ 7%3 }} {%- if 1 %} a{% endif %}", "2 -4 1 a"),
        ("{{ {'b': [1, 2]} | tojson(indent=2) }}", "{\n  \"b\": [\n    1,\n    2\n  ]\n}"),
    ];
    let render = |source: &str| {
        let template = Template::new(source, String::new(), String::new())?;
        template.render(&[message("\"é\u{1}\n")], true)
    };
    for (source, expected) in cases {
        assert_eq!(render(source)?, expected, "{source}");
    }
    for divided in ["7 % -3", "7 // -2", "'%s' % ('a', 3)", "-7.5 % 2.5", "5 % 0"] {
        assert_chain(render(&format!("{{{{ {divided} }}}}")), &["%"]);
    }
    Ok(())
}
