//! The decoder of the example `generate` against transformers, and against itself under any load.

mod common;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_dynquant::ops::Precision;
use candle_dynquant_decoder::sampling::{LogProbs, Random, Sampling};
use candle_dynquant_decoder::{Config, Decoder, Folder, Message, Part, Scores, Template};
use candle_dynquant_support::{DECODERS as FAMILIES, repository};
use common::*;
use serde::Deserialize;

struct Fixture {
    model: Decoder,
    ids: Tensor,
    logits: Tensor,
}

impl Fixture {
    fn load(name: &str) -> Result<Self> {
        let config = Config::read(&reference(&format!("{name}.json")))?;
        let file = reference(&format!("{name}.safetensors"));
        let mut tensors: HashMap<_, _> = candle_core::safetensors::load(file, CPU)?;
        let mut take = |name: &str| tensors.remove(name).context("no such tensor");
        let (ids, logits) = (take("ids")?.to_dtype(DType::U32)?, take("logits")?);
        Ok(Self { model: Decoder::load(&config, weights(tensors))?, ids, logits })
    }
}

fn reference(name: &str) -> PathBuf {
    repository().join("assets/reference/decoders").join(name)
}

/// A decoder of a family by a preset, and the tokens of its fixture.
fn quantized(name: &str, preset: &str, attention: Precision) -> Result<(Decoder, Tensor)> {
    let Fixture { mut model, ids, .. } = Fixture::load(name)?;
    let spec = QConfigSpec::preset(preset)?.min_params(0);
    quantize_dynamic(&mut model, &spec.kind(LayerKind::Attention, attention))?;
    Ok((model, ids))
}

/// Each family by each preset, with attention in f32 and in 8 bits.
fn each_quantized(presets: &[&str], check: fn(&str, Decoder, Tensor) -> Result<()>) -> Result<()> {
    for (name, preset) in FAMILIES.iter().flat_map(|name| presets.iter().map(move |it| (name, it)))
    {
        for attention in [Precision::Float32, Precision::Int8] {
            let (model, ids) = quantized(name, preset, attention)?;
            check(&format!("{name}, {preset}, {attention}"), model, ids)?;
        }
    }
    Ok(())
}

/// A row of tokens that no fixture has.
fn other(count: usize) -> Result<Tensor> {
    Ok(Tensor::arange(3u32, 3 + count as u32, CPU)?.unsqueeze(0)?)
}

#[test]
fn logits_are_those_of_transformers() -> Result<()> {
    for name in FAMILIES {
        let Fixture { model, ids, logits } = Fixture::load(name)?;
        let got = model.all(&ids, &mut model.cache())?.squeeze(0)?;
        let difference = (got - &logits)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference < 3e-5, "{name}: {difference:e}");
    }
    Ok(())
}

/// A token's scores do not depend on the tokens read with it, nor on other sequences.
#[test]
fn scores_have_the_same_bits_alone_and_in_a_batch() -> Result<()> {
    each_quantized(&["int8", "int4", "int8_groups"], |what, model, ids| {
        let other = other(ids.dim(1)?)?;
        let both = Tensor::cat(&[&other, &ids, &other], 0)?;
        let whole = model.next(&both, &mut model.cache())?.narrow(0, 1, 1)?;
        let mut cache = model.cache();
        let mut alone = model.next(&ids.narrow(1, 0, 9)?, &mut cache)?;
        for token in 9..ids.dim(1)? {
            alone = model.next(&ids.narrow(1, token, 1)?, &mut cache)?;
        }
        assert_eq!(bits(&alone), bits(&whole), "{what}");
        assert_eq!(cache.len(), ids.dim(1)?, "{what}");
        Ok(())
    })
}

/// Sequences join at different times, each read in different parts, in common steps.
#[test]
fn sequences_of_one_step_have_the_bits_of_each_alone() -> Result<()> {
    each_quantized(&["int8", "int4"], |what, model, ids| {
        let count = ids.dim(1)?;
        // The other two form separate batches.
        let other = other(count)?;
        let sequences =
            [ids.clone(), other.clone(), Tensor::cat(&[&other, &ids], 0)?.contiguous()?];
        let mut caches = [0, 1, 100].map(|tokens| model.cache_for(tokens));
        let (mut last, mut step) = ([None, None, None], 0);
        while caches.iter().any(|cache| cache.len() < count) {
            let sizes = [1, 5, 7].map(|size| size + step % 2);
            let (mut parts, mut whose) = (Vec::new(), Vec::new());
            let mut tokens = Vec::new();
            for (i, ids) in sequences.iter().enumerate().filter(|(i, _)| *i <= step) {
                let start = caches[i].len();
                let size = sizes[i].min(count - start);
                tokens.push((size > 0).then(|| ids.narrow(1, start, size)).transpose()?);
            }
            for (i, (cache, tokens)) in caches.iter_mut().zip(&tokens).enumerate() {
                let Some(tokens) = tokens else { continue };
                let is_last = cache.len() + tokens.dim(1)? == count;
                let scores = [Scores::None, Scores::Last][usize::from(is_last)];
                whose.extend(is_last.then_some((i, tokens.dim(0)?)));
                parts.push(Part { tokens, cache, scores });
            }
            let scores = model.step(&mut parts)?;
            let mut start = 0;
            for (i, rows) in whose {
                last[i] = Some(bits(&scores.narrow(0, start, rows)?));
                start += rows;
            }
            assert_eq!(scores.dim(0)?, start);
            step += 1;
        }
        for (ids, last) in sequences.iter().zip(last) {
            let alone = model.all(ids, &mut model.cache())?.narrow(1, count - 1, 1)?;
            assert_eq!(Some(bits(&alone)), last, "{what}");
        }
        Ok(())
    })
}

#[test]
fn the_built_in_model_answers_in_every_precision() -> Result<()> {
    let folder = Folder::open(&repository().join("assets/decoder"), None)?;
    let ids = folder.texts.encode("And God said, Let there be")?;
    let ids = Tensor::new(&ids[..], CPU)?.unsqueeze(0)?;
    let float = folder.load()?;
    let expected = float.next(&ids, &mut float.cache())?;
    for (preset, least) in [("int8", 25.), ("int8_groups", 30.), ("int4", 8.), ("float16", 60.)] {
        let mut model = float.clone();
        quantize_dynamic(&mut model, &QConfigSpec::preset(preset)?)?;
        assert_near(&expected, &model.next(&ids, &mut model.cache())?, least);
    }
    Ok(())
}

/// A long prompt, read in several steps, has the scores of one step.
#[test]
fn a_long_prompt_has_the_bits_of_one_step() -> Result<()> {
    let folder = Folder::open(&repository().join("assets/decoder"), None)?;
    let mut model = folder.load()?;
    quantize_dynamic(&mut model, &QConfigSpec::int8().attention())?;
    let text = std::fs::read_to_string(repository().join("assets/lstm/heldout.txt"))?;
    let ids = folder.texts.encode(&text[..6_000])?;
    for (batch, tokens) in [(1, 512), (1, 1_100), (3, 400), (600, 2)] {
        let ids: Vec<_> = ids.iter().copied().cycle().take(batch * tokens).collect();
        let ids = Tensor::from_vec(ids, (batch, tokens), CPU)?;
        let mut cache = model.cache();
        let next = model.next(&ids, &mut cache)?;
        assert_eq!(cache.len(), tokens);
        let mut cache = model.cache();
        let part = Part { tokens: &ids, cache: &mut cache, scores: Scores::Last };
        let one = model.step(&mut [part])?;
        assert_eq!(bits(&next), bits(&one), "{batch} x {tokens}");
    }
    Ok(())
}

#[test]
fn a_config_that_no_decoder_has_is_named() {
    let base = r#""vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 8"#;
    #[rustfmt::skip]
    let cases = [
        (r#""model_type": "gpt2""#, "gpt2"),
        (r#""model_type": "llama", "num_key_value_heads": 3"#, "num_key_value_heads"),
        (r#""model_type": "llama", "head_dim": 7"#, "head_dim"),
        (r#""model_type": "llama", "hidden_act": "gelu""#, "hidden_act"),
        (r#""model_type": "llama", "mlp_bias": true"#, "mlp_bias"),
        (r#""model_type": "llama", "rope_scaling": {"rope_type": "yarn"}"#, "yarn"),
        (r#""model_type": "qwen3", "layer_types": []"#, "layer_types"),
        (r#""model_type": "qwen3", "layer_types": ["chunked_attention"]"#, "chunked_attention"),
        (r#""model_type": "llama", "rope_theta": -1"#, "rotary"),
        (r#""model_type": "lfm2_moe""#, "lfm2_moe"),
        (r#""model_type": "lfm2", "layer_types": ["mamba"]"#, "layer_types"),
        (r#""model_type": "lfm2", "conv_L_cache": 0"#, "conv_L_cache"),
        (r#""model_type": "llama", "layer_types": ["conv"]"#, "layer_types"),
        (r#""model_type": "granite", "logits_scaling": 0"#, "\"logits_scaling\": expected a number from 1e-6"),
        (r#""model_type": "granite", "logits_scaling": 1e-300"#, "\"logits_scaling\""),
        (r#""model_type": "granite", "residual_multiplier": 1e308"#, "\"residual_multiplier\""),
        (r#""model_type": "granite", "attention_multiplier": -1"#, "\"attention_multiplier\""),
        (r#""model_type": "llama", "rms_norm_eps": -1"#, "\"rms_norm_eps\""),
        (r#""model_type": "llama", "rope_theta": 1e-300"#, "rotary embeddings"),
        (r#""model_type": "phi3", "original_max_position_embeddings": 1, "rope_scaling":
            {"type": "longrope", "short_factor": [1, 1], "long_factor": [1, 1]}"#, "original_max_position_embeddings"),
        (r#""model_type": "phi3", "rope_parameters": {"rope_type": "longrope", "short_factor": [1, 1],
            "original_max_position_embeddings": 4, "attention_factor": 0}"#, "\"attention_factor\""),
        (r#""model_type": "phi3", "attention_bias": true"#, "attention_bias"),
        (r#""model_type": "phi3", "partial_rotary_factor": 0.3"#, "partial_rotary_factor"),
        (r#""model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1, 2]}"#,
            "2 numbers in \"short_factor\", got 1"),
        (r#""model_type": "phi3", "rope_scaling": {"type": "yarn"}"#, "yarn"),
        (r#""model_type": "smollm3", "no_rope_layers": [1, 0]"#, "no_rope_layers"),
        (r#""model_type": "granitemoehybrid""#, "layer_types"),
        (r#""model_type": "granitemoehybrid", "layer_types": ["linear_attention"]"#, "layer_types"),
        (r#""model_type": "granitemoehybrid", "layer_types": ["attention"], "num_local_experts": 8"#, "num_local_experts"),
        (r#""model_type": "granitemoehybrid", "layer_types": ["attention"], "position_embedding_type": "alibi""#,
            "position_embedding_type"),
        (r#""model_type": "llama", "colour": {"a": 1, "a": 1}"#, "key \"a\" twice"),
        (r#""model_type": "llama", "vocab_size": 8"#, "key \"vocab_size\" twice"),
        (r#""model_type": "llama", "pretraining_tp": 2"#, "\"pretraining_tp\": expected null or 1, got 2"),
        (r#""model_type": "llama", "per_layer_config": {}"#, "per_layer_config"),
        (r#""model_type": "llama", "partial_rotary_factor": 0.5"#, "\"partial_rotary_factor\""),
        (r#""model_type": "llama", "rope_parameters": {"partial_rotary_factor": 0.5}"#, "rotary_factor"),
        (r#""model_type": "llama", "rope_scaling": {"type": "linear"}"#, "a number \"factor\""),
        (r#""model_type": "llama", "rope_scaling": {"type": "llama3", "factor": 8}"#, "\"low_freq_factor\""),
        (r#""model_type": "qwen2", "use_mrope": true"#, "\"use_mrope\""),
        (r#""model_type": "qwen2", "rope_scaling": {"mrope_section": [1]}"#, "\"mrope_section\" is not computed"),
        (r#""model_type": "gemma3_text", "attn_logit_softcapping": 50.0"#, "\"attn_logit_softcapping\""),
        (r#""model_type": "gemma3_text", "use_bidirectional_attention": true"#, "bidirectional"),
        (r#""model_type": "gemma3_text", "hidden_activation": "relu""#, "hidden_activation"),
        (r#""model_type": "gemma3_text", "sliding_window": null"#, "sliding_window"),
        (r#""model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}"#, "full_attention and"),
    ];
    for (keys, expected) in cases {
        // The default of some families does not divide the heads.
        let heads = r#""num_key_value_heads": 2, "#;
        let heads = Some(heads).filter(|_| !keys.contains("value_heads"));
        let text = format!("{{{base}, {}{keys}}}", heads.unwrap_or_default()).into();
        assert_chain(Config::parse_file("config.json", text), &[expected]);
    }
}

#[test]
fn draws_keep_to_what_they_are_asked_for() {
    let scores = [2f32, 1.9, 0., -1.];
    let drawn_after = |written: &[u32], sampling: Sampling| {
        let mut random = Random::new(1);
        let drawn =
            (0..500).map(|_| sampling.draw(&mut scores.clone(), &[0], written, &mut random));
        BTreeSet::from_iter(drawn).into_iter().collect::<Vec<_>>()
    };
    let drawn = |sampling| drawn_after(&[], sampling);
    let sampling = Sampling { temperature: 1., ..Sampling::default() };
    assert_eq!(drawn(Sampling::default()), [0]);
    assert_eq!(drawn(sampling), [0, 1, 2, 3]);
    assert_eq!(drawn(Sampling { top_k: 2, ..sampling }), [0, 1]);
    assert_eq!(drawn(Sampling { top_p: 0.5, ..sampling }), [0, 1]);
    assert_eq!(drawn(Sampling { top_p: 0.4, ..sampling }), [0]);
    assert_eq!(drawn(Sampling { min_p: 0.1, ..sampling }), [0, 1, 2]);
    let default = Sampling::default();
    let repetition_penalty = 2.;
    let penalized = Sampling { repetition_penalty, ..default };
    assert_eq!(drawn(penalized), [1]);
    assert_eq!(drawn_after(&[1], penalized), [0]);
    // Tokens of the prompt do not count; generated tokens count as often as they occur.
    for (written, presence_penalty, frequency_penalty, expected) in [
        (&[][..], 0.2, 0.2, 0),
        (&[1, 1], -0.2, 0.06, 0),
        (&[1, 1], -0.23, 0.06, 1),
        (&[0], 0.2, 0., 1),
        (&[0, 0, 1], 0., 0.2, 1),
    ] {
        let penalized = Sampling { presence_penalty, frequency_penalty, ..default };
        assert_eq!(drawn_after(written, penalized), [expected], "{written:?}");
    }
}

/// A large vocabulary is sorted in parts.
#[test]
fn log_probabilities_and_draws_are_by_rank() {
    let mut random = Random::new(3);
    let scores: Vec<f32> = (0..5000).map(|_| random.uniform() as f32).collect();
    let mut order: Vec<u32> = (0..5000).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
    let log = LogProbs::new(&scores, 17, 1000);
    let tokens: Vec<u32> = log.top.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, order[..1000]);
    let sum: f64 = scores.iter().map(|x| f64::from(*x).exp()).sum();
    assert!((log.of_token - (f64::from(scores[17]) - sum.ln())).abs() < 1e-12);
    for top_k in [1, 64, 65, 900] {
        let sampling = Sampling { temperature: 1., top_k, ..Sampling::default() };
        let draws = (0..2000).map(|_| sampling.draw(&mut scores.clone(), &[], &[], &mut random));
        let drawn: BTreeSet<u32> = draws.collect();
        assert!(drawn.iter().all(|token| order[..top_k].contains(token)));
        assert!(drawn.len() > top_k / 2, "{top_k}: {}", drawn.len());
    }
}

#[test]
fn a_chat_template_is_rendered_as_transformers_does() -> Result<()> {
    let source = "{% for message in messages %}\n    {%- if loop.first and message['role'] != \
        'system' %}{{ '<s>' }}{% endif %}\n{{ message['role'].strip() + ': ' + message['content'] \
        }}\n{% endfor %}\n{% if add_generation_prompt %}\nassistant:{{ eos_token }}{% endif %}";
    let of = |source: &str| Template::new(source, String::new(), "</s>".into());
    let template = of(source)?;
    let messages = [Message::new("user", "hi")];
    assert_eq!(template.render(&messages, false)?, "<s>user: hi\n");
    assert_eq!(template.render(&messages, true)?, "<s>user: hi\nassistant:</s>");
    let marked = "{% for message in messages %}{%- if loop.index > 1 %}{% break %}{% endif -%}\n\
        {%- generation -%} {{ message.content }} {% endgeneration %}{% endfor %}!";
    assert_eq!(of(marked)?.render(&[&messages[..], &messages].concat(), false)?, "hi !");
    assert!(of("{{ strftime_now('%Y') }}")?.render(&[], false)?.parse::<u32>()? >= 2026);
    assert!(of("{{ strftime_now('%!') }}")?.render(&[], false).is_err());
    assert!(of("{% for %}").is_err());
    assert_chain(of("{{ raise_exception('no') }}")?.render(&[], true), &["no"]);
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_chain(of(endless)?.render(&messages, true), &["out of fuel"]);
    Ok(())
}

#[test]
fn the_template_of_a_folder_is_a_file_or_a_key() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("tokenizer_config.json");
    for (text, expected) in [
        ("{}", None),
        (r#"{"chat_template": "one"}"#, Some("one")),
        (
            r#"{"chat_template": [
                {"name": "rag", "template": "two"},
                {"name": "default", "template": "three"}
            ]}"#,
            Some("three"),
        ),
        (r#"{"chat_template": [{"name": "rag", "template": "two"}]}"#, None),
    ] {
        std::fs::write(&config, text)?;
        assert_eq!(Template::source(dir.path())?.as_deref(), expected);
    }
    std::fs::write(dir.path().join("chat_template.jinja"), "own")?;
    assert_eq!(Template::source(dir.path())?.as_deref(), Some("own"));
    Ok(())
}

/// Results of the real libraries, by `assets/reference/gguf_decoders.py`.
#[derive(Deserialize)]
struct GgufFixture {
    texts: Vec<Tokenized>,
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct Tokenized {
    text: String,
    ids: Vec<u32>,
}

/// Files of llama.cpp's converter: the tokens of sentencepiece, and transformers' scores with the
/// frequencies that the file has factors of, with windows, and with norms beyond 1.
#[test]
fn a_gguf_file_has_the_tokens_and_scores_of_its_model() -> Result<()> {
    for name in
        "llama gemma3 biases smollm3 granite qwen3moe mixtral olmoe granitemoe lfm2 phi3".split(' ')
    {
        let path = reference(&format!("gguf_{name}.gguf"));
        let expected = std::fs::read_to_string(path.with_extension("json"))?;
        let GgufFixture { texts, logits } = serde_json::from_str(&expected)?;
        let folder = Folder::open(&path, None)?;
        for Tokenized { text, ids } in &texts {
            assert_eq!(folder.texts.prompt(text)?, *ids, "{text:?}");
            assert_eq!(folder.texts.encode(text)?, ids[1..], "{text:?}");
            let back = folder.texts.tokenizer.decode(ids, true);
            let back = back.map_err(|e| anyhow::anyhow!("{e}"))?;
            assert_eq!(back, text.replace('\u{2581}', " "));
        }
        let model = folder.load()?;
        let ids = Tensor::new(&*texts[0].ids, CPU)?.unsqueeze(0)?;
        let got = model.next(&ids, &mut model.cache())?.flatten_all()?;
        for (got, expected) in got.to_vec1::<f32>()?.iter().zip(logits) {
            let error = (got - expected).abs();
            assert!(error < 5e-5, "{name}: {got}, expected {expected}");
        }
    }
    Ok(())
}

type Change<'a> = (&'a str, Option<Value>);

/// Writes a fixture with other values of some keys, and additional tensors.
fn rewrite(name: &str, changes: &[Change<'_>], extra: &[&str], path: &Path) -> Result<()> {
    let mut file = std::fs::File::open(reference(&format!("gguf_{name}.gguf")))?;
    let mut content = Content::read(&mut file)?;
    for (key, value) in changes {
        match value {
            Some(value) => drop(content.metadata.insert((*key).into(), value.clone())),
            None => drop(content.metadata.remove(*key)),
        }
    }
    let names = content.tensor_infos.keys();
    let tensors = names.map(|name| Ok((name, content.tensor(&mut file, name, CPU)?)));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let tensor = QTensor::quantize(&zeros(&[8]), GgmlDType::F32)?;
    let tensors = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let more = extra.iter().map(|name| (*name, &tensor));
    let tensors: Vec<_> = tensors.chain(more).collect();
    let metadata = content.metadata.iter();
    let metadata: Vec<_> = metadata.map(|(key, value)| (key.as_str(), value)).collect();
    Ok(gguf_file::write(&mut std::fs::File::create(path)?, &metadata, &tensors)?)
}

/// Every key that gguf 0.19 knows, by `assets/reference/gguf_tables.py`, and others.
#[test]
fn each_key_of_a_gguf_file_is_known_or_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    let fixture = std::fs::read_to_string(reference("gguf_keys.json"))?;
    let fixture: serde_json::Value = serde_json::from_str(&fixture)?;
    let keys = fixture["keys"].as_array().context("keys")?;
    assert!(keys.len() > 150);
    let others = ["own.key", "{arch}.own_key", "tokenizer.ggml.own_key", "general.own_key"];
    let mut refused = Vec::new();
    for key in keys.iter().filter_map(|key| key.as_str()).chain(others) {
        let name = key.replace("{arch}", "llama");
        rewrite("llama", &[(&name, Some(Value::F32(0.5)))], &[], &path)?;
        match Folder::open(&path, None) {
            Err(error) => {
                assert!(format!("{error:#}").contains(&name), "{key}: {error:#}");
                refused.push(key);
            }
            Ok(folder) => {
                let is_other = others.contains(&key);
                assert_eq!(folder.notes.len(), usize::from(is_other), "{key}: {:?}", folder.notes);
                assert!(folder.notes.iter().all(|note| note.contains(key)));
            }
        }
    }
    for key in ["{arch}.attention.scale", "{arch}.expert_count", "tokenizer.ggml.own_key"] {
        assert!(refused.contains(&key), "{key}");
    }
    // Tensors by gguf's names: those of a llama, and others, also of a missing layer.
    let llama = reference("gguf_llama.gguf");
    let known = Content::read(&mut std::fs::File::open(llama)?)?.tensor_infos;
    let tensors = fixture["tensors"]["llama"].as_array().context("names")?;
    let tensors = tensors.iter().filter_map(|name| Some(format!("{}.weight", name.as_str()?)));
    // `.scale` and `.input_scale` are llama.cpp's names beside weights of NVFP4.
    let more = ["blk.9.attn_q.bias", "blk.00.attn_q.bias", "blk.0.attn_q_norm.weight", "a.bias"];
    let scales = ["blk.0.ffn_up.input_scale", "blk.0.ffn_up.scale", "blk.0.ffn_up.scales"];
    let all = tensors.chain(more.into_iter().chain(scales).map(str::to_owned));
    let all = all.chain(["a.position_ids".to_owned()]);
    for name in all.filter(|name| !known.contains_key(name) && name != "output.weight") {
        rewrite("llama", &[], &[&name], &path)?;
        let error = Folder::open(&path, None).err().map(|error| error.to_string());
        let is_fine = name == "blk.0.attn_rot_embd.weight";
        assert_eq!(error.is_none(), is_fine, "{name}: {error:?}");
    }
    let general = refused.iter().filter(|key| key.starts_with("general.")).count();
    assert_eq!(general, 4, "{refused:?}");
    Ok(())
}

/// The chats of llama.cpp: a single first token, by the template or the file; and its end tokens.
#[test]
fn a_gguf_chat_begins_once_and_ends_by_keys_and_names() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    let (template, adds) = ("tokenizer.chat_template", "tokenizer.ggml.add_bos_token");
    let text = |text: &str| Some(Value::String(text.into()));
    let of_bpe = |cut: &str| {
        let merges = ("tokenizer.ggml.merges", Some(Value::Array(Vec::new())));
        vec![("tokenizer.ggml.model", text("gpt2")), ("tokenizer.ggml.pre", text(cut)), merges]
    };
    for (source, flag, more, expected) in [
        ("{{ bos_token }}x", None, vec![], "<s>x"),
        ("x", None, vec![], "<s>x"),
        ("<s>x", None, vec![], "<s>x"),
        ("x", Some(false), vec![], "x"),
        ("{{ bos_token }}x", Some(false), vec![], "<s>x"),
        ("x", None, vec![("tokenizer.ggml.bos_token_id", None)], "<s>x"),
        ("x", None, of_bpe("gpt-2"), "x"),
        ("x", Some(true), of_bpe("gpt-2"), "<s>x"),
        ("x", None, of_bpe("llama-bpe"), "<s>x"),
        ("x", None, of_bpe("lfm2"), "<s>x"),
        ("x", None, of_bpe("smaug-bpe"), "x"),
    ] {
        let mut changes = vec![(template, text(source)), (adds, flag.map(Value::Bool))];
        changes.extend(more);
        rewrite("llama", &changes, &[], &path)?;
        let texts = Folder::open(&path, None)?.texts;
        let text = texts.template.context("a template")?.render(&[], true)?;
        assert_eq!(text, expected, "{changes:?}");
        let begins = texts.tokenizer.encode("x", true).map_err(anyhow::Error::msg)?;
        let is_first = begins.get_ids().first() == Some(&1);
        assert_eq!(is_first, flag.unwrap_or(expected == "<s>x"), "{changes:?}");
    }
    let llama = reference("gguf_llama.gguf");
    let content = Content::read(&mut std::fs::File::open(llama)?)?;
    let mut tokens = content.metadata["tokenizer.ggml.tokens"].to_vec()?.clone();
    for (id, name) in ["<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>"].iter().enumerate() {
        tokens[470 + id] = Value::String((*name).into());
    }
    let eot = ("tokenizer.ggml.eot_token_id", Some(Value::U32(474)));
    let tokens = ("tokenizer.ggml.tokens", Some(Value::Array(tokens)));
    rewrite("llama", &[tokens, eot], &[], &path)?;
    let folder = Folder::open(&path, None)?;
    assert_eq!(folder.config.eos_token_id.as_slice(), [2, 474, 2, 470, 471, 472, 473]);
    assert_eq!(folder.texts.encode("<|im_end|>")?, [470]);
    // Only o200k_base cuts before a capital letter, where no merge reaches.
    let array = |texts: &[&str]| {
        Value::Array(texts.iter().map(|one| Value::String((*one).into())).collect())
    };
    let mut tokens: Vec<_> = (0..480).map(|id| format!("<{id}>")).collect();
    tokens.splice(470..473, ["a", "B", "aB"].map(str::to_owned));
    let tokens = array(&tokens.iter().map(String::as_str).collect::<Vec<_>>());
    for (cut, expected) in
        [("lfm2", &[472][..]), ("smaug-bpe", &[472]), ("olmo", &[472]), ("gpt-4o", &[470, 471])]
    {
        let mut changes = of_bpe(cut);
        changes[2].1 = Some(array(&["a B"]));
        changes.push(("tokenizer.ggml.tokens", Some(tokens.clone())));
        rewrite("llama", &changes, &[], &path)?;
        assert_eq!(Folder::open(&path, None)?.texts.encode("aB")?, expected, "{cut}");
    }
    Ok(())
}

/// Each case changes one key of the metadata; the error names the key or the expected value.
#[test]
fn a_gguf_file_that_lies_is_a_named_error() -> Result<()> {
    use Value::{Array, Bool, F32, String as Text, U32};
    let text = |text: &str| Some(Text(text.into()));
    let all = |value: Value| Some(Array(vec![value; 480]));
    let joined = (0..479).map(|i| Text(format!("<{i}>"))).chain(text("xy")).collect();
    let [model, scores, tokens, types] = ["model", "scores", "tokens", "token_type"];
    let (first, adds) = ("bos_token_id", "add_bos_token");
    let families = "llama, qwen2, qwen3, smollm3, granite, gemma3";
    let one = Some(Array(vec![F32(1.)]));
    let of_tokenizer = [
        (model, text("t5"), "pass its tokenizer.json"),
        (model, text("gpt2"), "\"tokenizer.ggml.pre\""),
        (scores, None, "\"tokenizer.ggml.scores\""),
        (scores, one, "expected 480, one for each token, got 1"),
        (scores, all(F32(1.)), "different scores"),
        (tokens, Some(Array(joined)), "none for one of \"xy\""),
        (scores, all(Bool(true)), "tokenizer.ggml.scores"),
        (tokens, all(Text("a".repeat(257))), "at most 256 bytes, got one of 257"),
        (types, all(Bool(true)), "tokenizer.ggml.token_type"),
        (first, Some(U32(480)), "a token below 480, got 480"),
        (adds, text("yes"), "tokenizer.ggml.add_bos_token"),
    ];
    let of_tokenizer = of_tokenizer
        .map(|(key, value, expected)| ("llama", format!("tokenizer.ggml.{key}"), value, expected));
    let sizes = "rotary embeddings: expected 8, got 4";
    let others = [
        ("llama", "general.architecture", text("mamba"), families),
        ("llama", "llama.attention.key_length", Some(U32(16)), sizes),
        ("gemma3", "gemma3.rope.scaling.type", text("yarn"), "none or linear, got \"yarn\""),
        ("gemma3", "gemma3.rope.scaling.factor", None, "gemma3.rope.scaling.factor"),
        ("gemma3", "gemma3.rope.scaling.factor", Some(F32(0.)), "numbers above 0"),
    ];
    let others = others.map(|(name, key, value, expected)| (name, key.to_owned(), value, expected));
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    for (name, key, value, expected) in of_tokenizer.into_iter().chain(others) {
        rewrite(name, &[(&key, value)], &[], &path)?;
        assert_chain(Folder::open(&path, None), &[expected, "model.gguf"]);
    }
    Ok(())
}
