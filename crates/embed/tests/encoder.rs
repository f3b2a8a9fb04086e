//! The encoder as programs use it: the embedded model, folders, tokens, and the bits of answers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::QConfigSpec;
use candle_dynquant_support::rows;
use dynquant_embed::{
    Direction, Encoder, Head, Input, ModelOptions, Preset, Task, Tokenizer, Tokens, TokensError,
};
use tempfile::TempDir;

use crate::common::{copied, edited_at, quantized_by, refused};

mod common;

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/bert")
}

/// A copy of `assets/bert`.
fn copy() -> Result<TempDir> {
    copied(&assets())
}

/// The texts of assets/bert/heldout.tsv with the numbers of their classes.
fn heldout(labels: &[String]) -> Result<Vec<(usize, String)>> {
    let lines = fs::read_to_string(assets().join("heldout.tsv"))?;
    let parse = |line: &str| {
        let (label, text) = line.split_once('\t').context("a tab")?;
        let label = labels.iter().position(|known| known == label);
        Ok((label.context("a label")?, text.to_owned()))
    };
    lines.lines().map(parse).collect()
}

fn tokens(tokenizer: &Tokenizer, texts: &[(usize, String)]) -> Result<Vec<Tokens>> {
    let encode = |(_, text): &(usize, String)| Ok(tokenizer.encode(Input::Text(text), None)?);
    texts.iter().map(encode).collect()
}

fn answer(encoder: &Encoder, tokens: &Tokens, head: Head) -> Result<Vec<f32>> {
    Ok(encoder.model.answer(&[Task { tokens, head }])?.concat())
}

fn bits(answer: &[f32]) -> Vec<u32> {
    answer.iter().map(|x| x.to_bits()).collect()
}

/// Checks that every text has the same bits with both heads, in batches and alone.
fn check_bits(encoder: &Encoder, count: usize) -> Result<()> {
    let texts = heldout(&encoder.config.labels)?;
    let tokens = tokens(&encoder.tokenizer, &texts[..count])?;
    let tasks: Vec<Task<'_>> = (tokens.iter().enumerate())
        .map(|(index, tokens)| Task { tokens, head: [Head::Embedding, Head::Classes][index % 2] })
        .collect();
    let mut together = Vec::new();
    for size in [count, 7, 1] {
        let batches = tasks.chunks(size).map(|batch| encoder.model.answer(batch));
        let answers: Vec<_> = batches.collect::<Result<Vec<_>>>()?.concat();
        together.push(answers.iter().map(|answer| bits(answer)).collect::<Vec<_>>());
    }
    ensure!(together[0] == together[2], "{count} texts together and alone");
    ensure!(together[1] == together[2], "7 texts together and alone");
    Ok(())
}

#[test]
fn the_embedded_model_has_the_accuracy_of_the_example() -> Result<()> {
    let encoder = Encoder::embedded(Preset::default())?;
    let texts = heldout(&encoder.config.labels)?;
    let tokens = tokens(&encoder.tokenizer, &texts)?;
    let mut right = 0;
    for (texts, tokens) in texts.chunks(64).zip(tokens.chunks(64)) {
        let head = Head::Classes;
        let tasks: Vec<_> = tokens.iter().map(|tokens| Task { tokens, head }).collect();
        for ((label, _), logits) in texts.iter().zip(encoder.model.answer(&tasks)?) {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            right += usize::from(best == Some(*label));
        }
    }
    // The accuracy is 79.35 % of 3,201.
    assert_eq!(right, 2540);
    Ok(())
}

#[test]
fn bits_do_not_depend_on_the_batch() -> Result<()> {
    for preset in Preset::all() {
        let encoder = Encoder::embedded(preset)?;
        // Their activations share a scale.
        let shares = ["pytorch", "per_channel", "onnxruntime"];
        let is_one_by_one = shares.contains(&&*preset.to_string());
        assert_eq!(encoder.model.is_one_by_one(), is_one_by_one, "{preset}");
        check_bits(&encoder, 100).with_context(|| preset.to_string())?;
    }
    Ok(())
}

#[test]
fn folders_float_and_quantized_answer_as_the_embedded_model() -> Result<()> {
    let embedded = Encoder::embedded(Preset::default())?;
    let float = Encoder::open(copy()?.path(), None)?;
    assert_eq!(float.dtype, "int8");

    let (_dir, dir) = quantized_by(&assets(), &QConfigSpec::int8())?;
    let quantized = Encoder::open(&dir, None)?;
    assert_eq!(quantized.dtype, "quantized");
    assert!(!quantized.model.is_one_by_one());
    let read = |name| fs::read(dir.join(name));
    let (config, tokenizer) =
        (fs::read_to_string(dir.join("config.json"))?, read("tokenizer.json")?);
    let weights = read("model.safetensors")?;
    let from_bytes = Encoder::from_bytes("page", &config, &tokenizer, weights)?;
    assert_eq!(from_bytes.dtype, "quantized");

    let tokens = embedded.tokenizer.encode(Input::Text("Terminal text editor"), None)?;
    for head in [Head::Embedding, Head::Classes] {
        let expected = bits(&answer(&embedded, &tokens, head)?);
        for encoder in [&float, &quantized, &from_bytes] {
            assert_eq!(bits(&answer(encoder, &tokens, head)?), expected);
        }
    }

    let expected = "expected float weights for the preset int8, got quantized ones";
    refused(Encoder::open(&dir, Some(Preset::default())), expected);
    Ok(())
}

/// With PyTorch's preset the rows of a call share a scale.
#[test]
fn weights_in_which_texts_influence_each_other_are_computed_one_by_one() -> Result<()> {
    let (_dir, dir) = quantized_by(&assets(), &QConfigSpec::preset("default")?)?;
    let encoder = Encoder::open(&dir, None)?;
    assert!(encoder.model.is_one_by_one());
    check_bits(&encoder, 30)
}

#[test]
fn texts_are_cut_on_request_only() -> Result<()> {
    let mut encoder = Encoder::embedded(Preset::default())?;
    let tokenizer = &mut encoder.tokenizer;
    let words = "one two three four five six seven eight nine ten";
    let whole = tokenizer.encode(Input::Text(words), None)?;
    tokenizer.limit(6)?;
    assert_eq!(tokenizer.max_tokens(), 6);
    let fault = tokenizer.encode(Input::Text(words), None).err().map(|e| e.to_string());
    let expected = format!("expected at most 6 tokens, got {}", whole.len());
    assert_eq!(fault, Some(expected));

    let (ids, end) = (whole.ids(), whole.len());
    let right = tokenizer.encode(Input::Text(words), Some(Direction::Right))?;
    assert_eq!(right.ids(), [&ids[..5], &ids[end - 1..]].concat());
    let left = tokenizer.encode(Input::Text(words), Some(Direction::Left))?;
    assert_eq!(left.ids(), [&ids[..1], &ids[end - 5..]].concat());
    let given = tokenizer.encode(Input::Ids(ids), Some(Direction::Left))?;
    assert_eq!(given.ids(), &ids[end - 6..]);
    assert!(tokenizer.limit(3).is_err());

    // The longer text of a pair is cut.
    tokenizer.limit(9)?;
    let pair = Input::Pair("one two", words);
    let (whole, cut) = (
        tokenizer.encode(Input::Ids(ids), Some(Direction::Right))?,
        tokenizer.encode(pair, Some(Direction::Right))?,
    );
    assert_eq!((whole.len(), cut.len()), (9, 9));
    assert_eq!(cut.ids()[..3], ids[..3]);
    assert_eq!(cut.ids()[4..8], ids[1..5]);
    let type_1 = tokenizer.encode(Input::Ids(cut.ids()), None)?;
    assert_ne!(cut, type_1);
    Ok(())
}

#[test]
fn ids_are_checked_and_taken_as_they_are() -> Result<()> {
    let encoder = Encoder::embedded(Preset::default())?;
    let tokenizer = &encoder.tokenizer;
    let text = tokenizer.encode(Input::Text("a text editor"), None)?;
    assert_eq!(tokenizer.encode(Input::Ids(text.ids()), None)?, text);
    assert!(matches!(
        tokenizer.encode(Input::Ids(&[2, 4800, 3]), None),
        Err(TokensError::UnknownId { vocab_size: 4800, got: 4800 })
    ));
    assert!(matches!(tokenizer.encode(Input::Ids(&[]), None), Err(TokensError::Empty)));
    assert!(matches!(
        tokenizer.encode(Input::Ids(&[5; 65]), None),
        Err(TokensError::TooLong { limit: 64, got: 65 })
    ));
    Ok(())
}

#[test]
fn the_second_text_of_a_pair_has_another_type() -> Result<()> {
    let encoder = Encoder::embedded(Preset::default())?;
    let pair = encoder.tokenizer.encode(Input::Pair("a text", "an editor"), None)?;
    let single = encoder.tokenizer.encode(Input::Ids(pair.ids()), None)?;
    assert_ne!(pair, single);
    let task = |tokens| Task { tokens, head: Head::Classes };
    let answers = encoder.model.answer(&[task(&pair), task(&single)])?;
    assert_ne!(answers[0], answers[1]);
    Ok(())
}

#[test]
fn faults_of_a_folder_are_named() -> Result<()> {
    let table = r#"
"model_type": "bert" | "model_type": "funnel" | key "model_type": expected one of bert, roberta, xlm-roberta, camembert, electra, albert, deberta-v2, distilbert, mpnet, modernbert, nomic_bert, new, gte, t5, eurobert, qwen3, gemma3_text, clip, siglip, jina_embeddings_v3, got "funnel"
"hidden_size": 128 | "hidden_size": -1 | key "hidden_size": expected a positive integer below 2^31, got -1
"num_attention_heads": 4 | "num_attention_heads": 3 | expected a divisor of hidden_size 128, got 3
"hidden_act": "gelu" | "hidden_act": "mish" | expected gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu or silu, got "mish"
"34": "x11" | "36": "x11" | key "id2label": expected each of the numbers 0 to 34 once, got "36"
"vocab_size": 4800 | "vocab_size": 4000 | expected token ids below vocab_size 4000 of config.json, got 4799
"intermediate_size": 512 | "intermediate_size": 511 | intermediate.dense
"num_hidden_layers": 4 | "num_hidden_layers": 5 | layer.4
"use_cache": true | "is_causal": true | key "is_causal": expected false, got true
"use_cache": true | "transformers_weights": "other.safetensors" | key "transformers_weights": expected null
"use_cache": true | "fusion_config": {"norm": true} | key "fusion_config": expected null
"#;
    for [from, to, expected] in rows(table) {
        let dir = edited_at(&assets(), "config.json", [from, to])?;
        let error = refused(Encoder::open(dir.path(), None), expected);
        assert!(error.contains(&dir.path().display().to_string()), "{to}: {error}");
    }
    refused(Encoder::open(&assets().join("none"), None), "got no such folder");
    Ok(())
}

#[test]
fn sentence_transformers_files_are_read() -> Result<()> {
    let copy = copy()?;
    let dir = copy.path();
    fs::create_dir_all(dir.join("1_Pooling"))?;
    let pooling = |cls, mean| {
        let text =
            format!("{{\"pooling_mode_cls_token\": {cls}, \"pooling_mode_mean_tokens\": {mean}}}");
        fs::write(dir.join("1_Pooling/config.json"), text)
    };
    let embed = |encoder: &Encoder| {
        let tokens = encoder.tokenizer.encode(Input::Text("a text"), None)?;
        answer(encoder, &tokens, Head::Embedding)
    };
    fs::write(dir.join("sentence_bert_config.json"), "{\"max_seq_length\": 32}")?;
    pooling(false, true)?;
    let mean = Encoder::open(dir, None)?;
    assert_eq!(mean.tokenizer.max_tokens(), 32);
    assert_eq!(embed(&mean)?, embed(&Encoder::embedded(Preset::default())?)?);
    pooling(true, false)?;
    assert_ne!(embed(&Encoder::open(dir, None)?)?, embed(&mean)?);
    pooling(false, false)?;
    assert!(Encoder::open(dir, None).is_err());
    // The form of release 6; modes that would be ignored are refused.
    let write = |text: &str| fs::write(dir.join("1_Pooling/config.json"), text);
    write(r#"{"embedding_dimension": 128, "pooling_mode": "mean", "include_prompt": true}"#)?;
    assert_eq!(embed(&Encoder::open(dir, None)?)?, embed(&mean)?);
    // Several modes are concatenated.
    write(r#"{"pooling_mode": ["mean", "lasttoken"]}"#)?;
    let both = Encoder::open(dir, None)?;
    assert_eq!(both.config.pooling.to_string(), "mean, lasttoken");
    assert_eq!(embed(&both)?.len(), 256);
    assert_eq!(embed(&both)?[..128], embed(&mean)?);
    for (text, got) in [
        (r#"{"pooling_mode": "first"}"#, "first"),
        (r#"{"pooling_mode": ["cls", 3]}"#, "cls"),
        (r#"{"pooling_mode": []}"#, "[]"),
        (
            r#"{"pooling_mode_mean_tokens": true, "pooling_mode_best_tokens": true}"#,
            "pooling_mode_best_tokens",
        ),
    ] {
        write(text)?;
        assert!(refused(Encoder::open(dir, None), got).contains("pooling_mode"), "{text}");
    }
    pooling(true, false)?;
    fs::write(dir.join("sentence_bert_config.json"), "{\"max_seq_length\": 65}")?;
    let expected = "expected 1 to 64 (max_position_embeddings), got 65";
    refused(Encoder::open(dir, None), expected);
    Ok(())
}

/// Tokens that other files name are found in texts, as transformers does; what `tokenizer.json`
/// does not know, or has elsewhere, is refused.
#[test]
fn tokens_of_other_files_are_used_or_refused() -> Result<()> {
    let copy = copy()?;
    let dir = copy.path();
    let ids = || -> Result<Vec<u32>> {
        let text = Input::Text("aneditor [MASK]x");
        Ok(Encoder::open(dir, None)?.tokenizer.encode(text, None)?.ids().to_vec())
    };
    let plain = ids()?;
    for (file, text) in [
        ("tokenizer_config.json", r#"{"extra_special_tokens": {"image": "editor"}}"#),
        ("special_tokens_map.json", r#"{"additional_special_tokens": [{"content": "editor"}]}"#),
        ("added_tokens.json", r#"{"editor": 7}"#),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"4": {"content": "[MASK]", "special": true, "lstrip": false,
                "rstrip": false, "single_word": true, "normalized": false}}}"#,
        ),
    ] {
        fs::write(dir.join(file), text)?;
        assert_ne!(ids()?, plain, "{file}: {text}");
        fs::remove_file(dir.join(file))?;
    }
    let table = r#"
tokenizer_config.json | {"mask_token": "[X1]"} | key "mask_token": expected a token of
tokenizer_config.json | {"cls_token": "[MASK]"} | key "cls_token": expected "[CLS]", as in
special_tokens_map.json | {"sep_token": {"content": "[PAD]"}} | key "sep_token": expected "[SEP]", as in
tokenizer_config.json | {"unk_token": "[PAD]"} | key "unk_token": expected "[UNK]", as in
tokenizer_config.json | {"pad_token": {"content": 3}} | key "pad_token": expected a token
tokenizer_config.json | {"tokenizer_class": "RobertaTokenizerFast"} | expected BPE, the model of tokenizer_class "RobertaTokenizer"
added_tokens.json | {"[X1]": 4800} | added_tokens.json: expected a token of
modules.json | [{"type": "sentence_transformers.models.Transformer"}] | got no second module
"#;
    for [file, text, expected] in rows(table) {
        fs::write(dir.join(file), text)?;
        assert!(refused(Encoder::open(dir, None), expected).contains(file), "{text}");
        fs::remove_file(dir.join(file))?;
    }
    Ok(())
}

#[test]
fn tokens_have_their_bytes() -> Result<()> {
    let tokenizer = Encoder::embedded(Preset::default())?.tokenizer;
    let text = " Größe,\r\n editors ";
    let spans = tokenizer.spans(text)?;
    let tokens = tokenizer.encode(Input::Text(text), None)?;
    assert_eq!(spans.len() + 2, tokens.len());
    let parts: Vec<&str> = spans.into_iter().map(|span| &text[span]).collect();
    assert_eq!(parts.concat(), "Größe,editors");
    assert!(tokenizer.spans(" \n")?.is_empty());
    Ok(())
}

#[test]
fn the_digest_is_that_of_the_files_that_decide() -> Result<()> {
    let digest = |dir: &Path| {
        let model = Some(dir.to_owned());
        let options = ModelOptions { model, ..Default::default() };
        options.digest()
    };
    let copy = copy()?;
    let dir = copy.path();
    let first = digest(dir)?;
    assert_eq!(digest(copied(dir)?.path())?, first);
    assert_ne!(ModelOptions::default().digest()?, first);
    fs::write(dir.join("README.md"), "Not a part of the model.")?;
    assert_eq!(digest(dir)?, first);
    fs::create_dir_all(dir.join("1_Pooling"))?;
    let mut seen = vec![first];
    for file in ["1_Pooling/config.json", "config.json", "tokenizer.json", "model.safetensors"] {
        let mut bytes = fs::read(dir.join(file)).unwrap_or_default();
        bytes.push(b'\n');
        fs::write(dir.join(file), bytes)?;
        let digest = digest(dir)?;
        assert!(!seen.contains(&digest), "{file}");
        seen.push(digest);
    }
    assert!(digest(&dir.join("none")).is_err());
    Ok(())
}

#[test]
fn files_as_python_and_editors_write_them_are_read() -> Result<()> {
    let copy = copy()?;
    let dir = copy.path();
    let mark = |file: &str, change: fn(String) -> String| -> Result<()> {
        let text = fs::read_to_string(dir.join(file))?;
        fs::write(dir.join(file), format!("\u{feff}{}", change(text)))?;
        Ok(())
    };
    mark("config.json", |text| text.replacen('{', "{\"a\": [NaN, Infinity, -Infinity],", 1))?;
    mark("tokenizer.json", |text| text)?;
    fs::create_dir_all(dir.join("1_Pooling"))?;
    fs::write(
        dir.join("1_Pooling/config.json"),
        r#"{"pooling_mode_cls_token": true, "embedding_dimension": 128}"#,
    )?;
    fs::write(dir.join("sentence_bert_config.json"), "\u{feff}{\"max_seq_length\": 7}")?;
    let encoder = Encoder::open(dir, Some(Preset::NONE))?;
    assert_eq!(encoder.config.max_tokens, 7);
    let note = format!("{}/config.json: key \"a\" is not read", dir.display());
    assert!(encoder.config.notes.contains(&note));
    // A numeric key accepts no other value.
    mark("config.json", |text| {
        text.replacen("\"hidden_size\": ", "\"hidden_size\": NaN, \"b\": ", 1)
    })?;
    refused(Encoder::open(dir, None), "config.json");
    Ok(())
}

/// Dense layers after the pooling, as sentence-transformers computes them, are kept beside the
/// quantized model.
#[test]
fn dense_layers_of_the_folder_are_applied() -> Result<()> {
    let copy = copy()?;
    let dir = copy.path();
    let (_plain, plain) = quantized_by(dir, &QConfigSpec::int8())?;
    let modules = r#"[
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
    ]"#;
    fs::write(dir.join("modules.json"), modules)?;
    fs::create_dir(dir.join("1_Pooling"))?;
    fs::write(dir.join("1_Pooling/config.json"), r#"{"pooling_mode": "mean"}"#)?;
    let dense = dir.join("2_Dense");
    fs::create_dir(&dense)?;
    let config = |inputs: usize, activation: &str| {
        format!(
            r#"{{"in_features": {inputs}, "out_features": 5, "bias": true,
                "activation_function": "torch.nn.modules.activation.{activation}"}}"#
        )
    };
    fs::write(dense.join("config.json"), config(128, "Tanh"))?;
    let weight: Vec<f32> = (0..5 * 128).map(|i| (i * 37 % 101) as f32 / 101. - 0.5).collect();
    let bias = [0.1f32, -0.2, 0.3, -0.4, 0.5];
    let tensors = HashMap::from([
        ("linear.weight", Tensor::from_slice(&weight, (5, 128), &Device::Cpu)?),
        ("linear.bias", Tensor::from_slice(&bias, 5, &Device::Cpu)?),
    ]);
    candle_core::safetensors::save(&tensors, dense.join("model.safetensors"))?;
    let (_quantized, quantized_dir) = quantized_by(dir, &QConfigSpec::int8())?;

    let [plain, projected] = [&plain, &quantized_dir].map(|dir| Encoder::open(dir, None));
    let (plain, projected) = (plain?, projected?);
    assert_eq!((plain.config.embedding_size, projected.config.embedding_size), (128, 5));
    let texts = heldout(&plain.config.labels)?;
    let tokens = tokens(&plain.tokenizer, &texts[..9])?;
    let tasks: Vec<_> =
        tokens.iter().map(|tokens| Task { tokens, head: Head::Embedding }).collect();
    let answers = plain.model.answer(&tasks)?.into_iter().zip(projected.model.answer(&tasks)?);
    for (embedding, answer) in answers {
        assert_eq!(answer.len(), 5);
        for ((row, bias), answer) in weight.chunks(128).zip(bias).zip(answer) {
            let sum: f32 = row.iter().zip(&embedding).map(|(a, b)| a * b).sum();
            let expected = (sum + bias).tanh();
            assert!((answer - expected).abs() < 1e-5, "{answer} {expected}");
        }
    }
    check_bits(&projected, 40)?;

    for (text, expected) in [
        (config(64, "Tanh"), "\"in_features\": expected 128"),
        (config(128, "Softplus"), "activation.Softplus\""),
    ] {
        fs::write(quantized_dir.join("2_Dense/config.json"), text)?;
        refused(Encoder::open(&quantized_dir, None), expected);
    }
    for (from, to, expected) in [
        ("models.Dense", "models.WeightedLayerPooling", "got \"WeightedLayerPooling\""),
        ("\"2_Dense\"", "\"../2_Dense\"", "expected the name of a folder"),
        ("\"2_Dense\"", "\"4_Dense\"", "4_Dense/config.json"),
        ("\"1_Pooling\"", "\"5_Pooling\"", "5_Pooling/config.json"),
    ] {
        fs::write(quantized_dir.join("modules.json"), modules.replace(from, to))?;
        refused(Encoder::open(&quantized_dir, None), expected);
    }
    Ok(())
}
