//! Each architecture against transformers and sentence-transformers, with the folders that
//! `assets/reference/encoders.py` writes, float and quantized.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_dynquant::QConfigSpec;
use dynquant_embed::{
    Classifier, Embedder, Encoder, Head, Input, Options, Preset, Reranker, SparseEmbedder,
    SparseVector, Task,
};
use serde::Deserialize;

use crate::common::{
    check, check_int8, copied, edited, fault, float, folder, quantized, quantized_by, read, refused,
};

mod common;

const CONFIG: &str = "config.json";
const EMBEDDERS: [&str; 19] = [
    "bert",
    "xlm-roberta",
    "distilbert",
    "mpnet",
    "modernbert",
    "nomic",
    "gte",
    "jina",
    "qwen3",
    "gemma3",
    "lower-case",
    "electra",
    "albert",
    "deberta",
    "t5",
    "t5-relu",
    "eurobert",
    "jina-v3",
    "nomic-moe",
];
const CLASSIFIERS: [&str; 9] = [
    "classes-roberta",
    "classes-distilbert",
    "classes-modernbert",
    "classes-qwen3",
    "classes-gte",
    "classes-electra",
    "classes-albert",
    "classes-deberta",
    "classes-eurobert",
];
const RERANKERS: [&str; 6] = [
    "reranker",
    "reranker-xlm-roberta",
    "reranker-qwen3",
    "reranker-types",
    "reranker-modules",
    "reranker-deberta",
];

/// The expected values that `assets/reference/encoders.py` writes for a folder.
#[derive(Deserialize)]
struct Expected {
    texts: Vec<String>,
    #[serde(default)]
    vectors: Vec<Vec<f32>>,
    #[serde(default)]
    questions: Vec<String>,
    #[serde(default)]
    queries: Vec<Vec<f32>>,
    #[serde(default)]
    documents: Vec<Vec<f32>>,
    #[serde(default)]
    logits: Vec<Vec<f32>>,
    /// The vectors by the adapters and prompts of tasks.
    #[serde(default)]
    tasks: BTreeMap<String, Vec<Vec<f32>>>,
    #[serde(default)]
    query: String,
    #[serde(default)]
    scores: Vec<f32>,
}

fn expected(name: &str) -> Result<Expected> {
    read(name, "expected.json")
}

#[test]
fn vectors_equal_those_of_sentence_transformers() -> Result<()> {
    for name in EMBEDDERS {
        let expected = expected(name)?;
        let embedder = Embedder::open_with(folder(name), float()).context(name)?;
        assert_eq!(embedder.dimensions(), expected.vectors[0].len(), "{name}");
        assert_eq!(embedder.encoder().config.notes, [""; 0], "{name}");
        check(name, &embedder.embed(&expected.texts)?, &expected.vectors)?;
        if !expected.queries.is_empty() {
            check(name, &embedder.embed_queries(&expected.questions)?, &expected.queries)?;
            check(name, &embedder.embed_documents(&expected.texts)?, &expected.documents)?;
        }
    }
    Ok(())
}

/// Models in int8, which are near float, and from a folder that was quantized before: together, in
/// other batches, alone.
#[test]
fn bits_do_not_depend_on_the_batch_nor_on_when_weights_were_quantized() -> Result<()> {
    for name in EMBEDDERS {
        let Expected { texts, vectors, .. } = expected(name)?;
        let embedder = Embedder::open(folder(name))?;
        assert!(!embedder.encoder().model.is_one_by_one(), "{name}");
        let together = embedder.embed(&texts)?;
        check_int8(name, &vectors, &together)?;
        for size in [1, 3] {
            let options = Options::new().batch_size(size);
            let other = Embedder::open_with(folder(name), options)?.embed(&texts)?;
            assert_eq!(other, together, "{name}, batches of {size}");
        }
        let (_dir, out) = quantized(name)?;
        let quantized = Embedder::open(&out).context(name)?;
        assert_eq!(quantized.encoder().dtype, "quantized", "{name}");
        let again = quantized.embed(&texts)?;
        // Files keep experts in float whose rows are inputs.
        if name == "nomic-moe" {
            check_int8(name, &vectors, &again)?;
        } else {
            assert_eq!(again, together, "{name}, quantized before");
        }
    }
    Ok(())
}

/// A model for each task, whose adapters are added to its weights, and the model without them.
#[test]
fn adapters_are_those_of_the_task() -> Result<()> {
    let name = "jina-v3-lora";
    let expected = expected(name)?;
    let texts = &expected.texts;
    let float = Embedder::open_with(folder(name), float())?;
    assert_eq!(float.encoder().config.notes, [""; 0]);
    check(name, &float.embed(texts)?, &expected.vectors)?;
    assert_eq!(expected.tasks.len(), 2);
    for (task, expected) in &expected.tasks {
        let open = |options: Options| Embedder::open_with(folder(name), options.task(task));
        check(task, &open(common::float())?.embed(texts)?, expected)?;
        let int8 = open(Options::new())?;
        let together = int8.embed_documents(texts)?;
        check_int8(task, expected, &together)?;
        let alone = open(Options::new().batch_size(1))?;
        assert_eq!(alone.embed_queries(texts)?, together, "{task}");
    }
    refused(quantized(name), "`name.weight`");
    // Without the file of prompts, those of config.json.
    let dir = copied(&folder(name))?;
    fs::remove_file(dir.path().join("config_sentence_transformers.json"))?;
    let task = "retrieval.query";
    let vectors = Embedder::open_with(dir.path(), common::float().task(task))?.embed(texts)?;
    check(task, &vectors, &expected.tasks[task])
}

#[test]
#[rustfmt::skip]
fn mistakes_in_adapters_are_named() -> Result<()> {
    let (config, weights) = (CONFIG, "model.safetensors");
    for (file, from, to, task, expected) in [
        (config, "rank", "rank", "separation", "expected a list with the task \"separation\""),
        (config, "\"lora_rank\": 2", "\"lora_rank\": 3", "", "lora_A"),
        (config, "\"lora_rank\": 2", "\"lora_rank\": 0", "", "a positive integer"),
        (config, "\"lora_alpha\": 3.0", "\"lora_alpha\": \"\"", "", "a number above 0"),
        (config, "[\"retrieval.query\", ", "[", "", "lora_A"),
        (config, "[\"retrieval.query\", ", "[7, ", "", "a list of tasks"),
        (config, "lora_adaptations", "adaptations", "", "with lora_adaptations in config.json"),
        (config, "\"load_trained_adapters\": true", "\"load_trained_adapters\": false", "", "load_trained"),
        (config, "\"truncate_dim\": null", "\"truncate_dim\": 16", "", "truncate_dim"),
        (config, "{\"retrieval.query\": \"query the \"", "{\"retrieval.query\": 7", "", "the prompt of each task"),
        (config, "rotary_emb_base", "rotary_base", "", "\"rotary_emb_base\": expected a number"),
        (config, "\"rotary\"", "\"absolute\"", "", "position_embeddings"),
        (weights, "fc1.parametrizations.weight.0.lora_A", "fc1.parametrizations.weight.1.lora_A", "", "fc1.parametrizations.weight.0.lora_A"),
        (weights, "fc2.parametrizations.weight.original", "fc2.parametrizations.weight.originel", "", "fc2.weight"),
        ("modules.json", "custom_st.Transformer", "custom_xy.Transformer", "", "custom_xy.Transformer"),
        ("modules.json", "[\"task\"]", "[\"mask\"]", "", "key \"kwargs\""),
    ] {
        let dir = edited("jina-v3-lora", file, [from, to])?;
        let options = if task.is_empty() { float() } else { float().task(task) };
        refused(Embedder::open_with(dir.path(), options), expected);
    }
    let expected = "a list with the task \"separation\", got no such key";
    refused(Embedder::open_with(folder("jina-v3"), float().task("separation")), expected);
    Ok(())
}

/// Sums of attention in 8 bits have at most 65,536 terms, so longer texts are refused.
#[test]
fn the_tokens_of_attention_in_int8_are_limited() -> Result<()> {
    let (_dir, out) = quantized("qwen3")?;
    fs::write(out.join("sentence_bert_config.json"), r#"{"max_seq_length": 70000}"#)?;
    assert_eq!(Encoder::open(&out, None)?.tokenizer.max_tokens(), 70_000);

    // The attributes that a save of a model with such attention writes.
    let weights = fs::read(out.join("model.safetensors"))?;
    let (length, rest) = weights.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into()?) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header)?;
    let record = &mut header["__metadata__"]["candle_dynquant"];
    let mut precisions: serde_json::Value =
        serde_json::from_str(record.as_str().context("a record")?)?;
    precisions["version"] = 3.into();
    precisions["attention"]["layers.0.self_attn.attention"] = "int8".into();
    *record = precisions.to_string().into();
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(out.join("model.safetensors"), [&length, header.as_bytes(), data].concat())?;
    let encoder = Encoder::open(&out, None)?;
    assert_eq!((encoder.config.max_tokens, encoder.tokenizer.max_tokens()), (65_536, 65_536));
    Ok(())
}

/// The first numbers that sentence-transformers 6.2 computes: padding in a text has the position of
/// its own, and a prompt that is cut leaves the last token to the pooling.
#[test]
fn padding_and_long_prompts_are_pooled_as_sentence_transformers_does() -> Result<()> {
    for (name, padded, cut) in [
        ("xlm-roberta", [-0.262_569_4, -0.349_988_34], [-0.035_813_65, -0.285_057_3]),
        ("mpnet", [-0.008_791_578, 0.052_143_34], [-0.225_464_2, -0.094_324_56]),
    ] {
        let embedder = Embedder::open_with(folder(name), float())?;
        let vectors = embedder.embed(&["bread <pad> the river"])?;
        check(name, &[vectors[0][..2].to_vec()], &[padded.to_vec()])?;
        let embedder = Embedder::open_with(folder(name), float().max_tokens(4))?;
        let vectors = embedder.embed_documents(&["river"])?;
        check(name, &[vectors[0][..2].to_vec()], &[cut.to_vec()])?;
    }
    Ok(())
}

#[test]
fn keys_mean_what_transformers_takes_them_for() -> Result<()> {
    // MPNet's padding is fixed.
    let embed = |pad| -> Result<Vec<Vec<f32>>> {
        let dir = edited("mpnet", CONFIG, ["\"pad_token_id\": 1", pad])?;
        Embedder::open_with(dir.path(), float())?.embed(&["bread"])
    };
    assert_eq!(embed("\"pad_token_id\": 0")?, embed("\"pad_token_id\": 1")?);
    let dir = edited("classes-modernbert", CONFIG, ["ForSequence", "ForToken"])?;
    refused(Classifier::open(dir), "got one of tokens: see TokenClassifier");
    let problem = "\"problem_type\": \"regression\", \"model_type\"";
    let dir = edited("classes-roberta", CONFIG, ["\"model_type\"", problem])?;
    refused(Classifier::open(dir), "key \"problem_type\"");
    Ok(())
}

/// Sizes that no model has, and what is not known.
#[test]
#[rustfmt::skip]
fn mistakes_in_the_architectures_are_named() -> Result<()> {
    for (name, from, to, expected) in [
        ("albert", "\"num_hidden_layers\": 5", "\"num_hidden_layers\": 5000", "at most 1000"),
        ("albert", "\"embedding_size\": 32", "\"embedding_size\": 0", "a positive integer"),
        ("albert", "\"num_hidden_groups\": 2", "\"num_hidden_groups\": 1", "tensor \"encoder.albert"),
        ("albert", "\"inner_group_num\": 2", "\"inner_group_num\": 3", "albert_layers.2"),
        ("electra", "\"embedding_size\": 32", "\"embedding_size\": 48", "position_embeddings"),
        ("deberta", "\"position_buckets\": 8", "\"position_buckets\": 1", "2 or more"),
        ("deberta", "\"position_buckets\": 8", "\"position_buckets\": 2147483647", "2 or more"),
        ("deberta", "\"position_buckets\": 8", "\"position_buckets\": -1", "rel_embeddings"),
        ("deberta", "\"position_buckets\": 8", "\"position_buckets\": \"8\"", "a positive integer"),
        ("deberta", "\"max_relative_positions\": 40", "\"max_relative_positions\": 5", "2 or more"),
        ("deberta", "\"c2p\"", "\"p2p\"", "c2p, p2c or both"),
        ("deberta", "[\"p2c\", \"c2p\"]", "7", "words"),
        ("deberta", "\"layer_norm\"", "\"rms_norm\"", "norm_rel_ebd"),
        ("deberta", "\"share_att_key\": true", "\"share_att_key\": false", "pos_key_proj"),
        ("deberta", "\"legacy\": true", "\"conv_kernel_size\": 3", "conv_kernel_size"),
        ("deberta", "\"pooler_hidden_size\": 32", "\"embedding_size\": 16", "hidden_size 32"),
        ("deberta", "\"relative_attention\": true", "\"relative_attention\": false", "tensor \"encoder."),
        ("t5", "\"relative_attention_num_buckets\": 8", "\"relative_attention_num_buckets\": 1", "4 or more"),
        ("t5", "\"relative_attention_max_distance\": 40", "\"relative_attention_max_distance\": 2", "4 or more"),
        ("t5", "gated-gelu", "gated-tanh", "dense_act_fn"),
        ("t5", "\"is_gated_act\": true", "\"is_gated_act\": false", "expected true"),
        ("t5", "\"is_decoder\": false", "\"is_decoder\": true", "is_decoder"),
        ("t5", "\"d_model\": 32", "\"hidden_size\": 48, \"d_model\": 32", "expected 32, as"),
        ("mpnet", "\"relative_attention_num_buckets\": 32", "\"relative_attention_num_buckets\": 1", "4 or more"),
        ("distilbert", "\"n_layers\"", "\"num_hidden_layers\": 1, \"n_layers\"", "key \"num_hidden_layers\": expected 2"),
        ("qwen3", "\"model_type\"", "\"is_causal\": false, \"model_type\"", "key \"is_causal\": expected true"),
        ("nomic", "\"n_embd\"", "\"hidden_size\"", "key \"rotary_emb_base\": expected rope_parameters beside the keys of BERT"),
        ("nomic-moe", "\"moe_top_k\": 2", "\"moe_top_k\": 5", "at most 4"),
        ("nomic-moe", "\"moe_top_k\": 2", "\"moe_top_k\": 0", "a positive integer"),
        ("nomic-moe", "\"num_experts\": 4", "\"num_experts\": 5", "experts.mlp.w1"),
        ("nomic-moe", "\"num_experts\": 4", "\"num_experts\": 2147483647", "the bytes of the weights"),
        ("nomic-moe", "\"moe_every_n_layers\": 2", "\"moe_every_n_layers\": 3", "moe_every_n_layers"),
        ("nomic-moe", "\"moe_every_n_layers\": 2", "\"moe_every_n_layers\": 0", "mlp.fc1"),
        ("nomic-moe", "expert_weights\": false", "expert_weights\": true", "expected false, got true"),
        ("nomic-moe", "choice_router\": false", "choice_router\": true", "expected false, got true"),
        ("nomic-moe", "num_shared_experts\": 0", "num_shared_experts\": 1", "expected 0, got 1"),
        ("nomic-moe", "\"gelu\"", "\"swiglu\"", "expected \"gelu\", got"),
        ("classes-eurobert", "\"late\"", "\"max\"", "late, mean or bos"),
        ("eurobert", "\"head_dim\": 16", "\"head_dim\": 0", "a positive integer"),
    ] {
        refused(Embedder::open_with(edited(name, CONFIG, [from, to])?, float()), expected);
    }
    Ok(())
}

/// Classes that make the spaces before words do so by `tokenizer_config.json`.
#[test]
fn spaces_before_texts_are_those_of_both_files() -> Result<()> {
    let dir = copied(&folder("classes-roberta"))?;
    let dir = dir.path();
    let path = dir.join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    tokenizer["model"]["type"] = "BPE".into();
    tokenizer["model"]["merges"] = serde_json::json!([]);
    tokenizer["pre_tokenizer"] = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
    });
    fs::write(path, tokenizer.to_string())?;
    for (space, opens) in [(true, true), (false, false)] {
        let text =
            format!("{{\"tokenizer_class\": \"RobertaTokenizer\", \"add_prefix_space\": {space}}}");
        fs::write(dir.join("tokenizer_config.json"), text)?;
        let error = Classifier::open(dir).err().map(|e| format!("{e:#}"));
        assert_eq!(error.is_none(), opens, "{error:?}");
        let expected = "key \"add_prefix_space\": expected true, as in";
        assert!(error.is_none_or(|error| error.contains(expected)));
    }
    Ok(())
}

/// Classes that make the normalizer do so by `tokenizer_config.json`, which must say the same.
#[test]
fn parts_of_a_tokenizer_are_those_of_both_files() -> Result<()> {
    let dir = copied(&folder("deberta"))?;
    let dir = dir.path();
    let path = dir.join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    let words = tokenizer["model"]["vocab"].take();
    let words = words.as_object().context("a vocabulary")?.iter();
    let mut words: Vec<_> = words.map(|(word, id)| (id.as_u64(), word)).collect();
    words.sort();
    let words: Vec<_> = words.into_iter().map(|(_, word)| (word, -1.)).collect();
    tokenizer["model"] = serde_json::json!({"type": "Unigram", "unk_id": 3, "vocab": words});
    fs::write(path, tokenizer.to_string())?;
    // Tokens are named in any order.
    fs::write(dir.join("added_tokens.json"), r#"{"<pad>": 1}"#)?;
    for (keys, expected) in [
        (r#""do_lower_case": true"#, ""),
        (r#""do_lower_case": false"#, "\"do_lower_case\": expected Lowercase"),
        (r#""do_lower_case": true, "split_by_punct": true"#, "expected none, as in"),
        (r#""do_lower_case": true, "cls_token": "</s>""#, "\"cls_token\""),
    ] {
        let text = format!("{{\"tokenizer_class\": \"DebertaV2TokenizerFast\", {keys}}}");
        fs::write(dir.join("tokenizer_config.json"), text)?;
        let error = fault(Embedder::open(dir));
        assert!(
            error.contains(expected) && error.is_empty() == expected.is_empty(),
            "{keys}: {error}"
        );
    }
    let dir = copied(&folder("classes-modernbert"))?;
    let dir = dir.path();
    fs::write(dir.join("added_tokens.json"), r#"{"<pad>": 1}"#)?;
    Embedder::open(dir)?;
    Ok(())
}

/// Tables of words alone, from the folder itself and from one in it.
#[test]
fn static_embeddings_equal_those_of_sentence_transformers() -> Result<()> {
    for name in ["static", "model2vec"] {
        let expected = expected(name)?;
        let embedder = Embedder::open_with(folder(name), float()).context(name)?;
        check(name, &embedder.embed(&expected.texts)?, &expected.vectors)?;
        let (questions, texts) = (&expected.questions, &expected.texts);
        check(name, &embedder.embed_queries(questions)?, &expected.queries)?;
        check(name, &embedder.embed_documents(texts)?, &expected.documents)?;
        assert_eq!(embedder.is_normalized(), name == "model2vec");
        refused(embedder.embed(&["bread", ""]), "text 1: expected at least 1 token, got 0");

        let together = embedder.embed(texts)?;
        assert_eq!(Embedder::open(folder(name))?.embed(texts)?, together, "{name}");
        for (text, vector) in texts.iter().zip(&together) {
            let alone = embedder.embed(&[text])?;
            assert_eq!(alone, std::slice::from_ref(vector), "{name}");
        }
        let spec = QConfigSpec::int8().embeddings();
        let Ok((_dir, out)) = quantized_by(&folder(name), &spec) else {
            assert_eq!(name, "model2vec", "whose table is not named as a weight");
            continue;
        };
        check_int8(name, &expected.vectors, &Embedder::open(&out)?.embed(texts)?)?;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
    let inner = dir.join("0_StaticEmbedding");
    fs::create_dir_all(&inner)?;
    for file in ["model.safetensors", "tokenizer.json"] {
        fs::copy(folder("static").join(file), inner.join(file))?;
    }
    let mut modules = fs::read_to_string(folder("static").join("modules.json"))?;
    modules = modules.replace("\"path\": \"\"", "\"path\": \"0_StaticEmbedding\"");
    fs::write(dir.join("modules.json"), modules)?;
    // The tokenizer's truncation is sentence-transformers' limit.
    let path = inner.join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    tokenizer["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0
    });
    fs::write(&path, tokenizer.to_string())?;
    let vectors = |texts: &[&str]| Embedder::open_with(&dir, float())?.embed(texts);
    assert_eq!(vectors(&["the river runs to"])?, vectors(&["the river runs"])?);
    fs::write(path, tokenizer.to_string().replace("Right", "Left"))?;
    refused(vectors(&["bread"]), "expected truncation on the right");
    fs::copy(folder("bert").join("model.safetensors"), inner.join("model.safetensors"))?;
    refused(vectors(&["bread"]), "expected a matrix \"embedding.weight\"");
    Ok(())
}

#[test]
fn sparse_vectors_equal_those_of_sentence_transformers() -> Result<()> {
    for name in ["splade", "splade-distilbert", "splade-roberta", "splade-modernbert"] {
        let expected = expected(name)?;
        let (texts, questions) = (&expected.texts, &expected.questions);
        let sparse = |rows: &[Vec<f32>]| -> Vec<SparseVector> {
            (rows.iter().map(|row| SparseVector::from_dense(row))).collect()
        };
        let dense = |vectors: &[SparseVector]| -> Vec<Vec<f32>> {
            let widened = |vector: &SparseVector| {
                let mut all = vec![0.; 112];
                let pairs = vector.ids.iter().zip(&vector.weights);
                pairs.for_each(|(id, weight)| all[*id as usize] = *weight);
                all
            };
            vectors.iter().map(widened).collect()
        };
        assert_eq!(dense(&sparse(&expected.vectors)), expected.vectors);
        let model = SparseEmbedder::open_with(folder(name), float()).context(name)?;
        check(name, &dense(&model.embed(texts)?), &expected.vectors)?;
        check(name, &dense(&model.embed_queries(questions)?), &expected.queries)?;
        check(name, &dense(&model.embed_documents(texts)?), &expected.documents)?;
        let int8 = SparseEmbedder::open(folder(name))?;
        assert!(!int8.encoder().model.is_one_by_one(), "{name}");
        let together = int8.embed(texts)?;
        check_int8(name, &expected.vectors, &dense(&together))?;
        for (text, vector) in texts.iter().zip(&together) {
            assert_eq!(int8.embed(&[text])?, std::slice::from_ref(vector), "{name}");
        }
        let equalized = SparseEmbedder::open_with(folder(name), float().equalize(texts))?;
        check(name, &dense(&equalized.embed(texts)?), &expected.vectors)?;
    }
    Ok(())
}

#[test]
#[rustfmt::skip]
fn mistakes_in_sparse_folders_are_named() -> Result<()> {
    let dir = copied(&folder("splade"))?;
    let dir = dir.path();
    fs::create_dir_all(dir.join("1_SpladePooling"))?;
    let files = ["modules.json", "sentence_bert_config.json", "1_SpladePooling/config.json", "config.json"];
    for (file, from, to, expected) in [
        (0, "", "", ""),
        (2, "\"max\"", "\"mean\"", "expected max or sum"),
        (2, "\"relu\"", "\"gelu\"", "expected relu or log1p_relu"),
        (2, "{", "{\"top_k\": 1, ", "no such key"),
        (1, "fill-mask", "feature-extraction", "expected last_hidden_state"),
        (0, "splade_pooling.SpladePooling", "pooling.Pooling", "no other pooling with it"),
        (0, "}]", "}, {\"type\": \"Normalize\", \"path\": \"2\"}]", "nothing behind SpladePooling"),
        (3, "\"bert\"", "\"gte\"", "expected the weights"),
        (3, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "cls.predictions.decoder.weight"),
        (3, "\"hidden_act\": \"gelu\"", "\"hidden_act\": \"elu\"", "gelu"),
    ] {
        for name in files {
            fs::copy(folder("splade").join(name), dir.join(name))?;
        }
        let text = fs::read_to_string(dir.join(files[file]))?;
        ensure!(text.contains(from), "{text}");
        fs::write(dir.join(files[file]), text.replace(from, to))?;
        let error = fault(SparseEmbedder::open_with(dir, float()));
        assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{to}: {error}");
    }
    refused(SparseEmbedder::open(folder("bert")), "expected a model of sparse vectors");
    Ok(())
}

/// The float model computes the same, and its norms move: int8 has other bits.
#[test]
fn models_are_equalized_by_texts_of_their_own() -> Result<()> {
    for name in EMBEDDERS {
        let expected = expected(name)?;
        let vectors = |options: Options| -> Result<Vec<Vec<f32>>> {
            Embedder::open_with(folder(name), options)?.embed(&expected.texts)
        };
        let equalized = || Options::new().equalize(&expected.texts);
        let float = vectors(equalized().preset(Preset::NONE)).context(name)?;
        check(name, &float, &expected.vectors)?;
        let int8 = vectors(equalized())?;
        assert_ne!(int8, vectors(Options::new())?, "{name}");
        check_int8(name, &expected.vectors, &int8)?;
    }
    for name in CLASSIFIERS {
        let reranker = expected(name)?;
        let options = Options::new().equalize(&reranker.texts);
        Embedder::open_with(folder(name), options).context(name)?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_equalized_is_named() -> Result<()> {
    let open = |dir: &Path, texts: &[&str]| {
        let options = Options::new().equalize(texts.iter().copied());
        Embedder::open_with(dir, options)
    };
    let expected = "equalize: expected texts of the kind that the model is for, got none";
    refused(open(&folder("bert"), &[]), expected);
    let (_dir, out) = quantized("bert")?;
    let expected = "expected float weights to equalize, got quantized ones";
    refused(open(&out, &["a text"]), expected);
    Ok(())
}

#[test]
fn logits_equal_those_of_transformers() -> Result<()> {
    for name in CLASSIFIERS {
        let expected = expected(name)?;
        let logits = |preset| -> Result<Vec<Vec<f32>>> {
            let encoder = Encoder::open(&folder(name), Some(preset))?;
            let encode = |text: &String| encoder.tokenizer.encode(Input::Text(text), None);
            let tokens = expected.texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
            let head = Head::Classes;
            let tasks: Vec<_> = tokens.iter().map(|tokens| Task { tokens, head }).collect();
            let together = encoder.model.answer(&tasks)?;
            for (task, answer) in tasks.iter().zip(&together) {
                assert_eq!(encoder.model.answer(&[*task])?, std::slice::from_ref(answer), "{name}");
            }
            Ok(together)
        };
        check(name, &logits(Preset::NONE)?, &expected.logits)?;
        check_int8(name, &expected.logits, &logits(Preset::default())?)?;
    }
    Ok(())
}

#[test]
fn scores_equal_those_of_a_cross_encoder() -> Result<()> {
    for name in RERANKERS {
        let expected = expected(name)?;
        let (query, texts) = (&expected.query, &expected.texts);
        let reranker = Reranker::open_with(folder(name), float())?;
        let scores = reranker.scores(query, texts)?;
        check(name, &[scores], std::slice::from_ref(&expected.scores))?;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by(|a, b| expected.scores[*b].total_cmp(&expected.scores[*a]));
        let ranked = reranker.rank(query, texts)?;
        let ranked: Vec<usize> = ranked.into_iter().map(|(index, _)| index).collect();
        assert_eq!(ranked, order, "{name}");
        // The head of one class is too small to be quantized, and takes one text at a time.
        let int8 = Reranker::open(folder(name))?;
        assert!(!int8.encoder().model.is_one_by_one(), "{name}");
        let together = int8.scores(query, texts)?;
        for (text, score) in texts.iter().zip(together) {
            assert_eq!(int8.scores(query, &[text])?, [score], "{name}");
        }
    }
    Ok(())
}
