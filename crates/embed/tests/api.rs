//! The public API of the crate: vectors, prompts, cuts, progress, order, classes, and mistakes.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use candle_dynquant_support::rows;
use dynquant_embed::{Classifier, Embedder, Int8Vector, Options, Reranker};
use tempfile::TempDir;

use crate::common::{copied, edited, float, folder, refused};

mod common;

const TEXTS: [&str; 5] = ["a river", "the old city of snow and trees", "bread", "", "west to east"];

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn vectors_are_normalized_where_the_folder_says_so_and_after_a_cut() -> Result<()> {
    let normalized = Embedder::open(folder("bert"))?;
    assert!(normalized.is_normalized());
    for vector in normalized.embed(&TEXTS)? {
        assert!((length(&vector) - 1.).abs() < 1e-6);
    }
    let plain = Embedder::open(folder("modernbert"))?;
    assert!(!plain.is_normalized());
    let whole = plain.embed(&TEXTS)?;
    assert!(whole.iter().all(|vector| (length(vector) - 1.).abs() > 0.1));

    let cut = plain.cut_to(12)?;
    assert!(cut.is_normalized());
    assert_eq!(cut.dimensions(), 12);
    for (whole, cut) in whole.iter().zip(cut.embed(&TEXTS)?) {
        let expected = whole[..12].iter().map(|x| x / length(&whole[..12]));
        assert!(expected.zip(&cut).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(cut.len(), 12);
    }
    refused(cut.cut_to(33), "dimensions: expected 1 to 32, got 33");
    Ok(())
}

#[test]
fn prompts_stand_before_texts() -> Result<()> {
    let embedder = Embedder::open(folder("bert"))?;
    let behind = |prompt: &str| {
        let texts: Vec<String> = TEXTS.iter().map(|text| format!("{prompt}{text}")).collect();
        embedder.embed(&texts)
    };
    assert_eq!(embedder.embed_queries(&TEXTS)?, behind("query the ")?);
    assert_eq!(embedder.embed_documents(&TEXTS)?, behind("passage of a ")?);
    assert_eq!(embedder.embed_as("query", &TEXTS)?, behind("query the ")?);
    let (green, plain) = (behind("green ")?, behind("")?);
    let expected = "prompt: expected one of \"document\", \"query\", got \"title\"";
    refused(embedder.embed_as("title", &TEXTS), expected);

    let other = embedder.with_prompt("title", "green ");
    assert_eq!(other.embed_as("title", &TEXTS)?, green);
    assert_eq!(other.embed(&TEXTS)?, plain);

    let dir = copied(&folder("bert"))?;
    let path = dir.path().join("config_sentence_transformers.json");
    let write = |name: &str| {
        let prompts = format!(
            "{{\"default_prompt_name\": \"{name}\", \"prompts\": {{\"all\": \"green \"}}}}"
        );
        fs::write(&path, prompts)
    };
    write("all")?;
    let default = Embedder::open(&dir)?;
    assert_eq!(default.embed(&TEXTS)?, green);
    assert_eq!(default.embed_queries(&TEXTS)?, green);
    write("some")?;
    let expected = "\"default_prompt_name\": expected one of \"all\", got \"some\"";
    refused(Embedder::open(&dir), expected);
    Ok(())
}

#[test]
fn progress_reaches_the_number_of_texts_and_long_texts_are_cut() -> Result<()> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let calls = Arc::clone(&seen);
    let options = Options::new().batch_size(2).max_tokens(8).on_progress(move |done, all| {
        if let Ok(mut calls) = calls.lock() {
            calls.push((done, all));
        }
    });
    let embedder = Embedder::open_with(folder("bert"), options)?;
    embedder.embed(&TEXTS)?;
    assert_eq!(*seen.lock().map_err(|e| anyhow::anyhow!("{e}"))?, [(2, 5), (4, 5), (5, 5)]);
    let long = "the river runs to the harbour and the sea";
    let short = "the river runs to the harbour";
    assert_eq!(embedder.embed(&[long])?, embedder.embed(&[short])?);
    assert!(embedder.embed(&[] as &[&str])?.is_empty());
    Ok(())
}

#[test]
fn mistakes_of_options_are_named() -> Result<()> {
    let faults: [(Options, &str); 3] = [
        (Options::new().batch_size(0), "batch_size: expected 1 or more, got 0"),
        (Options::new().max_tokens(1000), "max_tokens: expected at most 152"),
        (Options::new().max_tokens(2), "expected a limit of 4 or more, got 2"),
    ];
    for (options, expected) in faults {
        refused(Embedder::open_with(folder("bert"), options), expected);
    }
    let expected = "expected a reranker, whose head has 1 class, got 3";
    refused(Reranker::open(folder("classes-gte")), expected);
    refused(Reranker::open(folder("bert")), "got 0");
    let dir = copied(&folder("bert"))?;
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path)?;
    let length = u64::from_le_bytes(bytes[..8].try_into()?) as usize;
    let (header, values) = bytes[8..].split_at(length);
    let header = String::from_utf8(header.to_vec())?.replace("\"F16\"", "\"I16\"");
    fs::write(&path, [&bytes[..8], header.as_bytes(), values].concat())?;
    refused(Embedder::open(&dir), "expected floats, got I16");
    let expected = "expected a classifier, got a model without a head";
    refused(Classifier::open(folder("bert")), expected);
    Ok(())
}

#[test]
fn what_no_model_here_computes_is_refused() -> Result<()> {
    let table = r#"
xlm-roberta | "is_decoder": false | "is_decoder": true | expected false
modernbert | "gelu" | "mish" | expected gelu
gemma3 | "use_bidirectional_attention": true | "a": 1 | expected true
nomic | "swiglu" | "geglu" | activation_function
nomic | "prenorm": false | "prenorm": true | expected false, got true
gte | "ntk" | "yarn" | rope_scaling
jina | "geglu" | "original" | feed_forward_type
qwen3 | "num_key_value_heads": 2 | "num_key_value_heads": 3 | a divisor
qwen3 | "head_dim": 16 | "head_dim": 15 | heads of an even size, got 15
mpnet | "max_position_embeddings": 154 | "max_position_embeddings": 2 | rows
bert | "hidden_act" | "hidden_act": "relu", "hidden_act" | "hidden_act" twice
bert | "num_hidden_layers": 2 | "num_hidden_layers": 1 | tensor "encoder.layer.1.
bert | "hidden_size" | "pruned_heads": {"0": [1]}, "hidden_size" | key "pruned_heads": expected {}, got {"0":[1]}
gemma3 | "attn_logit_softcapping": null | "attn_logit_softcapping": 50.0 | expected null, got 50.0
gemma3 | "attention_bias" | "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "attention_bias" | "rope_scaling": expected null
qwen3 | "rope_theta" | "partial_rotary_factor": 0.5, "rope_theta" | expected 1.0 or 1, got 0.5
qwen3 | "head_dim": 16 | "head_dim": 2147483646 | the bytes of the weights, got 2147483646
qwen3 | "num_hidden_layers": 2 | "num_hidden_layers": 2147483647 | the bytes of the weights, got 2147483647
qwen3 | "full_attention" | "sliding_attention" | key "layer_types": expected full_attention
1_Pooling/config.json of bert | 32 | 33 | key "embedding_dimension": expected the model's 32, got 33
1_Pooling/config.json of bert | "embedding_dimension" | "token_weights": 1, "embedding_dimension" | "token_weights": expected no such key
2_Dense/config.json of distilbert | "bias" | "use_residual": true, "bias" | cannot find tensor residual.weight
2_Dense/config.json of distilbert | "bias": true | "bias": false | tensor "linear.bias"
2_Dense/config.json of distilbert | torch.nn.modules.activation.Tanh | my.Tanh | got "my.Tanh"
4_Dense/config.json of reranker-modules | "scores" | "logits" | or scores of 1 number, got "logits"
modules.json of distilbert | 2_Dense | 1_Pooling | a separate folder for each module, got "1_Pooling"
modules.json of bert | base.modules.transformer.Transformer | modules.StaticEmbedding | behind Transformer and Pooling, got "Pooling"
modules.json of bert | sentence_transformers.base.modules.transformer | custom_st | got "custom_st.Transformer"
modules.json of bert | normalize.Normalize | sparse_encoder.modules.SparseAutoEncoder | got "SparseAutoEncoder"
modules.json of bert | base.modules.transformer.Transformer | SparseStaticEmbedding | got "SparseStaticEmbedding"
sentence_bert_config.json of lower-case | "max_seq_length": 20 | "max_seq_length": 3 | "max_seq_length": tokens of a text: expected a limit of 4
tokenizer_config.json of bert | "model_max_length": 152 | "model_max_length": 2 | "model_max_length": tokens of a text
sentence_bert_config.json of lower-case | "do_lower_case" | "query_length": 8, "do_lower_case" | with MultiVectorMask, got no such module
sentence_bert_config.json of lower-case | "do_lower_case" | "lowercase": true, "do_lower_case" | key "lowercase": expected no such key
sentence_bert_config.json of bert | last_hidden_state | pooler_output | method_output_name": expected "last_hidden_state"
sentence_bert_config.json of bert | feature-extraction | fill-mask | expected logits, got "last_hidden_state"
config_sentence_transformers.json of bert | "SentenceTransformer" | "SparseEncoder" | got "SparseEncoder"
config_sentence_transformers.json of lower-case | "truncate_dim": 16 | "truncate_dim": 0 | got 0
tokenizer_config.json of bert | "unk_token" | "truncation_side": "left", "unk_token" | expected "right", got "left"
"#;
    for [place, from, to, expected] in rows(table) {
        let (file, name) = place.split_once(" of ").unwrap_or(("config.json", place));
        let dir = edited_everywhere(name, file, [from, to])?;
        let error = refused(Embedder::open(&dir), expected);
        assert!(error.contains(&dir.path().display().to_string()), "{to}: {error}");
    }
    Ok(())
}

/// A copy of a fixture with another text wherever a file has one.
fn edited_everywhere(name: &str, file: &str, [from, to]: [&str; 2]) -> Result<TempDir> {
    let dir = copied(&folder(name))?;
    let path = dir.path().join(file);
    let text = fs::read_to_string(&path)?;
    anyhow::ensure!(text.contains(from), "{name}, {file}: {from}");
    fs::write(&path, text.replace(from, to))?;
    Ok(dir)
}

#[test]
fn a_score_may_be_the_logit_of_one_token() -> Result<()> {
    let dir = edited("reranker-qwen3", "1_LogitScore/config.json", ["75", "null"])?;
    let path = dir.path().join("config_sentence_transformers.json");
    let settings = r#"{"activation_fn": "torch.nn.modules.linear.Identity"}"#;
    fs::write(path, settings)?;
    let expected = fs::read_to_string(dir.path().join("expected.json"))?;
    let expected: serde_json::Value = serde_json::from_str(&expected)?;
    let texts: Vec<String> = serde_json::from_value(expected["texts"].clone())?;
    let logits: Vec<f32> = serde_json::from_value(expected["true_logits"].clone())?;
    let query = expected["query"].as_str().context("a query")?;
    let reranker = Reranker::open_with(&dir, float())?;
    for (score, logit) in reranker.scores(query, &texts)?.into_iter().zip(logits) {
        assert!((score - logit).abs() < 3e-4, "{score} {logit}");
    }
    Ok(())
}

/// A query is cut to the model's limit before it is combined with each text.
#[test]
fn a_long_query_has_the_scores_of_its_beginning() -> Result<()> {
    let reranker = Reranker::open(folder("reranker-qwen3"))?;
    let texts: Vec<String> = (0..256).map(|i| format!("{} bread", TEXTS[i % 5])).collect();
    let [long, beginning] = [200_000, 170].map(|words| "river snow".repeat(words));
    assert_eq!(reranker.scores(&long, &texts)?, reranker.scores(&beginning, &texts)?);
    Ok(())
}

#[test]
fn weights_that_are_no_numbers_name_their_folder() -> Result<()> {
    let dir = copied(&folder("reranker-modules"))?;
    let path = dir.path().join("2_Dense/model.safetensors");
    let mut weights = fs::read(&path)?;
    // A NaN in float16.
    let end = weights.len() - 2;
    weights.splice(end.., [0, 0x7e]);
    fs::write(path, weights)?;
    let expected = "the model: expected finite answers, got NaN";
    refused(Reranker::open(&dir), &format!("{}: {expected}", dir.path().display()));
    Ok(())
}

#[test]
fn faults_of_a_reranker_that_writes_texts_are_named() -> Result<()> {
    let table = r#"
1_LogitScore/config.json | 74 | "a" | key "true_token_id": expected a token id, got "a"
1_LogitScore/config.json | 75 | 112 | below vocab_size 112, got 112
1_LogitScore/config.json | causal_logits | scores | expected causal_logits, got "scores"
config.json | ForCausalLM | Model | a model that writes texts
config.json | "tie_word_embeddings": true | "a": 1 | lm_head.weight
modules.json | LogitScore" | Ranks" | or StaticEmbedding, got "Ranks"
chat_template.jinja | {%- if | {%- iff | expected a Jinja template
sentence_bert_config.json | flat | structured | got "structured"
sentence_bert_config.json | add_generation_prompt | tools | chat_template.tools": expected no such key
"#;
    for [file, from, to, expected] in rows(table) {
        let dir = edited_everywhere("reranker-qwen3", file, [from, to])?;
        let error = refused(Reranker::open(&dir), expected);
        assert!(error.contains(&dir.path().display().to_string()), "{to}: {error}");
    }
    let dir = copied(&folder("reranker-qwen3"))?;
    fs::remove_file(dir.path().join("chat_template.jinja"))?;
    refused(Reranker::open(&dir), "expected chat_template.jinja");

    // A template that refuses the messages fails the call.
    let refuses = "{{ raise_exception('no documents') if messages[-1].content == 'bread' }}";
    let begin = format!("{refuses}{{{{-");
    let dir = edited_everywhere("reranker-qwen3", "chat_template.jinja", ["{{-", &begin])?;
    let reranker = Reranker::open(&dir)?;
    assert_eq!(reranker.scores("bread", &["a river"])?.len(), 1);
    refused(reranker.scores("a city", &["bread"]), "no documents");
    Ok(())
}

#[test]
fn codes_of_8_bits_stand_for_the_vector() -> Result<()> {
    let vectors = Embedder::open(folder("gemma3"))?.embed(&TEXTS)?;
    let codes: Vec<Int8Vector> = vectors.iter().map(|vector| Int8Vector::of(vector)).collect();
    for (a, of_a) in vectors.iter().zip(&codes) {
        let far = a.iter().zip(of_a.to_f32()).map(|(x, y)| (x - y).abs());
        assert!(far.fold(0., f32::max) <= of_a.scale * 0.501);
        for (b, of_b) in vectors.iter().zip(&codes) {
            let dot: f32 = a.iter().zip(b).map(|(x, y)| x * y).sum();
            assert!((dot - of_a.dot(of_b)).abs() < 0.02, "{dot}");
        }
    }
    assert_eq!(Int8Vector::of(&[0., 0.]).codes, [0, 0]);
    Ok(())
}

#[test]
fn classes_have_probabilities() -> Result<()> {
    let classifier = Classifier::open_with(folder("classes-roberta"), float())?;
    for classes in classifier.classify(&TEXTS)? {
        let sum: f32 = classes.iter().map(|(_, probability)| probability).sum();
        assert!((sum - 1.).abs() < 1e-6);
        assert!(classes.is_sorted_by(|a, b| a.1 >= b.1));
    }
    let bert = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/bert");
    let sections = Classifier::open(bert)?;
    let classes = sections.classify(&["Terminal text editor"])?;
    assert_eq!(classes[0].len(), 35);
    assert_eq!(classes[0][0].0, "editors");
    Ok(())
}
