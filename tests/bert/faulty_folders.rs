//! The example's folder reader against faulty folders: each of its errors is raised.

use std::collections::BTreeMap;

use candle_dynquant_support::bert::{Folder, texts};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use crate::kit::*;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Dtypes and shapes of the tensors of a synthetic checkpoint.
type Entries = BTreeMap<String, (Dtype, Vec<usize>)>;

/// A BERT with one layer, sizes 8 and 16, 9 words, 12 positions, 3 classes.
fn config() -> Value {
    json!({
        "model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 12,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        "id2label": {"0": "red", "1": "green", "2": "blue"},
    })
}

fn tokenizer() -> Value {
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e"];
    let vocab: BTreeMap<_, _> = words.iter().zip(0..).collect();
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null,
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "decoder": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    })
}

/// The encoder's tensors below `prefix`.
fn encoder(prefix: &str) -> Entries {
    let mut entries = Entries::new();
    let mut add = |name: &str, shape: &[usize]| {
        entries.insert(format!("{prefix}{name}"), (Dtype::F32, shape.to_vec()));
    };
    for (name, rows) in [("word", 9), ("position", 12), ("token_type", 2)] {
        add(&format!("embeddings.{name}_embeddings.weight"), &[rows, 8]);
    }
    for (name, out, size) in [
        ("attention.self.query", 8, 8),
        ("attention.self.key", 8, 8),
        ("attention.self.value", 8, 8),
        ("attention.output.dense", 8, 8),
        ("intermediate.dense", 16, 8),
        ("output.dense", 8, 16),
    ] {
        add(&format!("encoder.layer.0.{name}.weight"), &[out, size]);
        add(&format!("encoder.layer.0.{name}.bias"), &[out]);
    }
    for norm in ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"] {
        add(&format!("{norm}.LayerNorm.weight"), &[8]);
        add(&format!("{norm}.LayerNorm.bias"), &[8]);
    }
    entries
}

fn linear(entries: &mut Entries, name: &str, out: usize, size: usize) {
    entries.insert(format!("{name}.weight"), (Dtype::F32, vec![out, size]));
    entries.insert(format!("{name}.bias"), (Dtype::F32, vec![out]));
}

/// The tensors of a classifier under transformers' names.
fn classifier() -> Entries {
    let mut entries = encoder("bert.");
    linear(&mut entries, "bert.pooler.dense", 8, 8);
    linear(&mut entries, "classifier", 3, 8);
    entries
}

fn write_tensors(path: &Path, entries: &Entries) -> Result<()> {
    let zeros = vec![0; 1 << 12];
    let views = entries.iter().map(|(name, (dtype, shape))| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Ok((name, TensorView::new(*dtype, shape.clone(), &zeros[..bytes])?))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    Ok(fs::write(path, safetensors::serialize(views, None)?)?)
}

/// A folder on disk that a test damages.
struct Sample(TempDir);

impl Sample {
    fn new(entries: &Entries) -> Result<Self> {
        let sample = Self(tempfile::tempdir()?);
        sample.write("config.json", config().to_string())?;
        sample.write("tokenizer.json", tokenizer().to_string())?;
        write_tensors(&sample.0.path().join(WEIGHTS), entries)?;
        Ok(sample)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        Ok(fs::write(self.0.path().join(name), content)?)
    }

    /// Reads the folder, which must fail with a message that has all of `parts`.
    fn refuses(&self, parts: &[&str]) -> Result<()> {
        refuses(Folder::read(self.0.path()), parts)
    }
}

fn refuses<T>(result: Result<T>, parts: &[&str]) -> Result<()> {
    let Err(error) = result else {
        anyhow::bail!("expected an error with {parts:?}, got none");
    };
    let message = format!("{error:#}");
    for part in parts {
        anyhow::ensure!(message.contains(part), "expected {part:?} in {message:?}");
    }
    Ok(())
}

/// A folder whose config.json has one key changed, or removed if the value is null.
fn with_config(key: &str, value: Value) -> Result<Sample> {
    let sample = Sample::new(&classifier())?;
    let mut config = config();
    match value {
        Value::Null => drop(config.as_object_mut().map(|map| map.remove(key))),
        value => config[key] = value,
    }
    sample.write("config.json", config.to_string())?;
    Ok(sample)
}

#[test]
fn good_folders_are_read() -> Result<()> {
    let folder = Folder::read(Sample::new(&classifier())?.0.path())?;
    assert!(folder.model.is_classifier());
    assert_eq!(folder.config.labels, ["red", "green", "blue"]);
    let elements = |entries: &Entries| -> usize {
        entries.values().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    };
    assert_eq!(folder.bytes, 4 * elements(&classifier()));

    // Without a prefix and heads; with other float dtypes and known unused tensors.
    let mut entries = encoder("");
    let dtypes = [Dtype::F16, Dtype::BF16, Dtype::F64];
    entries.values_mut().zip(dtypes).for_each(|(entry, dtype)| entry.0 = dtype);
    let bytes = 4 * elements(&entries);
    entries.insert("embeddings.position_ids".into(), (Dtype::I64, vec![1, 12]));
    linear(&mut entries, "cls.predictions.decoder", 9, 8);
    let folder = Folder::read(Sample::new(&entries)?.0.path())?;
    assert!(!folder.model.is_classifier());
    assert_eq!(folder.bytes, bytes);

    // Norms under the names of the first BERT.
    let rename = |key: String| {
        key.replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta")
    };
    let old = classifier().into_iter().map(|(key, entry)| (rename(key), entry)).collect();
    Folder::read(Sample::new(&old)?.0.path())?;
    Ok(())
}

#[test]
fn missing_folder_and_files() -> Result<()> {
    let nowhere = Path::new("no/such/folder");
    refuses(Folder::read(nowhere), &["no/such/folder", "expected a folder", "no such folder"])?;
    let sample = Sample::new(&classifier())?;
    refuses(
        Folder::read(&sample.0.path().join(WEIGHTS)),
        &[WEIGHTS, "expected a folder", "got a file"],
    )?;
    for name in ["config.json", "tokenizer.json"] {
        let sample = Sample::new(&classifier())?;
        fs::remove_file(sample.0.path().join(name))?;
        sample.refuses(&[name, "expected", "No such file"])?;
    }
    fs::remove_file(sample.0.path().join(WEIGHTS))?;
    sample.refuses(&[sample.0.path().to_str().unwrap_or("?"), WEIGHTS, INDEX, "got neither"])
}

#[test]
fn malformed_config() -> Result<()> {
    let sample = Sample::new(&classifier())?;
    sample.write("config.json", "{\"model_type\": ")?;
    sample.refuses(&["config.json", "expected a JSON object", "EOF"])?;
    sample.write("config.json", "[1]")?;
    sample.refuses(&["config.json", "expected a JSON object", "sequence"])?;
    sample.write("config.json", [0xff, 0xfe])?;
    sample.refuses(&["config.json", "expected a readable text file", "UTF-8"])?;

    let too_long = " ".repeat((4 << 20) + 1);
    for name in ["config.json", INDEX] {
        let sample = Sample::new(&classifier())?;
        fs::remove_file(sample.0.path().join("model.safetensors"))?;
        sample.write(name, &too_long)?;
        sample.refuses(&[name, "expected at most 4194304 bytes, got more"])?;
    }

    let id2label = "an object that names the classes";
    for (key, value, expected, got) in [
        ("model_type", json!("gpt2"), "\"bert\"", "\"gpt2\""),
        ("model_type", Value::Null, "\"bert\"", "no such key"),
        ("position_embedding_type", json!("relative_key"), "\"absolute\"", "\"relative_key\""),
        ("is_decoder", json!(true), "false", "true"),
        ("hidden_size", Value::Null, "a positive integer", "no such key"),
        ("vocab_size", json!("many"), "a positive integer", "\"many\""),
        ("num_hidden_layers", json!(0), "a positive integer", "0"),
        ("intermediate_size", json!(-3), "a positive integer", "-3"),
        ("max_position_embeddings", json!(1.5), "a positive integer", "1.5"),
        ("type_vocab_size", json!(4294967296u64), "below 2^31", "4294967296"),
        ("num_attention_heads", json!(3), "a divisor of hidden_size 8", "3"),
        ("layer_norm_eps", json!("small"), "a number", "\"small\""),
        ("layer_norm_eps", json!(-1.), "0 or more", "-1"),
        ("hidden_act", json!("swish"), "gelu, gelu_new, gelu_pytorch_tanh or relu", "\"swish\""),
        ("hidden_act", json!(1), "the name of an activation function", "1"),
        ("pad_token_id", json!(-1), "a token id", "-1"),
        ("pad_token_id", json!(9), "less than vocab_size 9", "9"),
        ("id2label", json!(["red"]), id2label, "[\"red\"]"),
        ("id2label", json!({"1": "green"}), "each of the numbers 0 to 0 once", "\"1\""),
        ("id2label", json!({"0": 7}), id2label, "{\"0\":7}"),
    ] {
        let got = format!("got {got}");
        let quoted = format!("key {key:?}");
        with_config(key, value)?.refuses(&["config.json", &quoted, expected, &got])?;
    }
    Ok(())
}

#[test]
fn a_score_is_no_class() -> Result<()> {
    let sample = with_config("id2label", json!({"0": "score"}))?;
    let mut entries = classifier();
    linear(&mut entries, "classifier", 1, 8);
    write_tensors(&sample.0.path().join(WEIGHTS), &entries)?;
    sample.refuses(&["config.json", "\"id2label\"", "at least 2 classes", "got 1"])
}

#[test]
fn malformed_tokenizer() -> Result<()> {
    let sample = Sample::new(&classifier())?;
    sample.write("tokenizer.json", "{}")?;
    sample.refuses(&["tokenizer.json", "expected a tokenizer, got"])?;
    let mut large = tokenizer();
    large["model"]["vocab"]["zebra"] = json!(9);
    sample.write("tokenizer.json", large.to_string())?;
    sample.refuses(&["tokenizer.json", "below vocab_size 9", "got id 9"])?;
    let mut none = tokenizer();
    none["model"]["vocab"] = json!({});
    sample.write("tokenizer.json", none.to_string())?;
    sample.refuses(&["tokenizer.json", "below vocab_size 9", "got no tokens"])
}

#[test]
fn files_that_are_no_safetensors() -> Result<()> {
    let sample = Sample::new(&classifier())?;
    let whole = fs::read(sample.0.path().join(WEIGHTS))?;
    let truncated = [0, 4, 8, 100, whole.len() / 2, whole.len() - 1].map(|n| whole[..n].to_vec());
    for bytes in truncated.into_iter().chain([vec![b'x'; 64], vec![0xff; 64]]) {
        sample.write(WEIGHTS, &bytes)?;
        let got = format!("got {} bytes that are none", bytes.len());
        sample.refuses(&[WEIGHTS, "expected a complete safetensors file", &got])?;
    }
    // A folder in the file's place.
    fs::remove_file(sample.0.path().join(WEIGHTS))?;
    fs::create_dir(sample.0.path().join(WEIGHTS))?;
    sample.refuses(&[WEIGHTS, "expected a readable file", "expected a regular file, got a folder"])
}

#[test]
fn missing_tensors() -> Result<()> {
    // Each tensor in turn; the classifier is required only if config.json promises it.
    for key in classifier().keys().filter(|key| *key != "classifier.weight") {
        let mut entries = classifier();
        entries.remove(key);
        let sample = Sample::new(&entries)?;
        sample.refuses(&[WEIGHTS, &format!("expected tensor {key:?}"), "got no such tensor"])?;
    }
    let sample = with_config("architectures", json!(["BertForSequenceClassification"]))?;
    let mut entries = classifier();
    entries.retain(|key, _| !key.starts_with("classifier"));
    write_tensors(&sample.0.path().join(WEIGHTS), &entries)?;
    sample.refuses(&[WEIGHTS, "expected tensor \"classifier.weight\"", "got no such tensor"])
}

#[test]
fn extra_tensors() -> Result<()> {
    let mut entries = classifier();
    linear(&mut entries, "bert.encoder.layer.1.output.dense", 8, 16);
    let extra = "\"bert.encoder.layer.1.output.dense.bias\", ..";
    let [only, more] = ["expected only tensors of a BERT", "got 2 more"];
    Sample::new(&entries)?.refuses(&[WEIGHTS, only, more, extra])?;
    let mut entries = classifier();
    entries.insert("qa_outputs.bias".into(), (Dtype::F32, vec![2]));
    Sample::new(&entries)?.refuses(&[WEIGHTS, "expected only", "got 1 more: \"qa_outputs.bias\""])
}

#[test]
fn wrong_shapes() -> Result<()> {
    // Each tensor in turn with an extra row.
    for (key, (_, shape)) in classifier() {
        let mut entries = classifier();
        let wrong = &mut entries.get_mut(&key).expect("it").1;
        wrong[0] += 1;
        let (expected, got) = (format!("expected shape {shape:?}"), format!("got {wrong:?}"));
        Sample::new(&entries)?.refuses(&[WEIGHTS, &format!("{key:?}"), &expected, &got])?;
    }
    Ok(())
}

#[test]
fn unsupported_dtypes() -> Result<()> {
    for dtype in [Dtype::I8, Dtype::U8, Dtype::I32, Dtype::I64, Dtype::BOOL, Dtype::F8_E4M3] {
        let key = "bert.encoder.layer.0.attention.self.query.weight";
        let mut entries = classifier();
        entries.insert(key.into(), (dtype, vec![8, 8]));
        let got = format!("got {dtype:?}");
        Sample::new(&entries)?.refuses(&[WEIGHTS, key, "expected f64, f32, f16 or bf16", &got])?;
    }
    Ok(())
}

/// Writes the classifier as two shards and an index; the heads are in the second.
fn sharded(sample: &Sample) -> Result<Value> {
    let is_head = |key: &str| key.contains("pooler") || key.starts_with("classifier");
    let (heads, body): (Entries, Entries) =
        classifier().into_iter().partition(|(key, _)| is_head(key));
    let dir = sample.0.path();
    write_tensors(&dir.join("one.safetensors"), &body)?;
    write_tensors(&dir.join("two.safetensors"), &heads)?;
    let file = |key: &str| {
        if is_head(key) { "two.safetensors" } else { "one.safetensors" }
    };
    let map: BTreeMap<_, _> = classifier().keys().map(|key| (key.clone(), file(key))).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::remove_file(dir.join(WEIGHTS))?;
    sample.write(INDEX, index.to_string())?;
    Ok(index)
}

#[test]
fn sharded_files() -> Result<()> {
    let sample = Sample::new(&classifier())?;
    let index = sharded(&sample)?;
    assert!(Folder::read(sample.0.path())?.model.is_classifier());

    for (json, got) in [
        ("{", "EOF"),
        ("{}", "missing field `weight_map`"),
        ("{\"weight_map\": {\"a\": 1}}", "integer `1`"),
    ] {
        sample.write(INDEX, json)?;
        sample.refuses(&[INDEX, "\"weight_map\" from tensors to files", got])?;
    }
    sample.write(INDEX, "{\"weight_map\": {}}")?;
    sample.refuses(&[INDEX, "expected tensors in \"weight_map\"", "got none"])?;

    let place_bias = |file: &str| {
        let mut index = index.clone();
        index["weight_map"]["classifier.bias"] = json!(file);
        sample.write(INDEX, index.to_string())
    };
    let bias = "\"classifier.bias\"";
    for file in ["../one.safetensors", "/one.safetensors", "", ".."] {
        place_bias(file)?;
        let quoted = format!("{file:?}");
        sample.refuses(&[INDEX, bias, "expected a file name without a folder", &quoted])?;
    }
    place_bias("one.safetensors")?;
    let expected = format!("expected tensor {bias}");
    sample.refuses(&["one.safetensors", &expected, INDEX, "got no such tensor"])?;
    place_bias("three.safetensors")?;
    sample.refuses(&[INDEX, "expected the shard", "three.safetensors", "no such file"])?;

    sample.write(INDEX, index.to_string())?;
    fs::remove_file(sample.0.path().join("two.safetensors"))?;
    sample.refuses(&[INDEX, "expected the shard", "two.safetensors", "no such file"])
}

#[test]
fn texts_and_labels() -> Result<()> {
    let sample = Sample::new(&classifier())?;
    let labels = ["red".to_owned(), "green".to_owned()];
    let path = sample.0.path().join("texts");
    refuses(texts::read(&path, &labels, false), &["texts", "expected a readable text file"])?;
    for blank in ["", "\n \n\t\n"] {
        fs::write(&path, blank)?;
        refuses(
            texts::read(&path, &labels, false),
            &["texts", "expected at least one text", "got none"],
        )?;
    }
    fs::write(&path, "green\ta b\n\nblue\ta\n c\n")?;
    let texts = texts::read(&path, &labels, false)?;
    let pairs: Vec<_> = texts.iter().map(|t| (t.text.as_str(), t.label)).collect();
    assert_eq!(pairs, [("a b", Some(1)), ("blue\ta", None), (" c", None)]);
    refuses(texts::read(&path, &labels, true), &["texts", "line 3", "expected a label", "blue"])
}

/// Each file of a folder as a fifo without a writer; a fifo of texts has a writer.
#[cfg(unix)]
#[test]
fn only_texts_may_be_a_pipe() -> Result<()> {
    let fifo = |path: &Path| {
        let _ = fs::remove_file(path);
        let status = std::process::Command::new("mkfifo").arg(path).status();
        assert!(status.expect("mkfifo").success());
    };
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        let sample = Sample::new(&classifier())?;
        fifo(&sample.0.path().join(name));
        sample.refuses(&[name, "expected a regular file, got a fifo"])?;
    }
    let sample = Sample::new(&classifier())?;
    let path = sample.0.path().join("texts");
    fifo(&path);
    let writer = std::thread::spawn({
        let path = path.clone();
        move || fs::write(path, "red\ta b\n")
    });
    let texts = texts::read(&path, &["red".to_owned()], true)?;
    assert_eq!((texts.len(), texts[0].label), (1, Some(0)));
    writer.join().expect("no panic")?;
    Ok(())
}

#[test]
fn lengths_and_batches() -> Result<()> {
    let folder = Folder::read(Sample::new(&classifier())?.0.path())?;
    let tokenize = |texts: &[&str], seq_len| {
        texts::tokenize(&folder.tokenizer, &folder.config, texts, seq_len)
    };

    // The file's truncation to 4 tokens is ignored; 12 positions are the limit.
    let long = "a b c d e a b c d e";
    assert_eq!(tokenize(&[long], None)?[0].len(), 12);
    let longer = "a b c d e a b c d e a";
    refuses(
        tokenize(&["a", longer], None),
        &["text 2", "expected 1 to 12 tokens", "got 13", "--seq-len"],
    )?;
    assert_eq!(tokenize(&[longer], Some(5))?, [[2, 4, 5, 6, 3]]);
    for seq_len in [0, 1, 2, 13] {
        refuses(
            tokenize(&["a"], Some(seq_len)),
            &["--seq-len", "expected 3 to 12", &format!("got {seq_len}")],
        )?;
    }

    let tokens = tokenize(&["a", "b c", "d"], None)?;
    let batches = texts::batches(&tokens, 2, 0)?;
    assert_eq!(batches[0].ids.to_vec2::<u32>()?, [[2, 4, 3, 0], [2, 5, 6, 3]]);
    assert_eq!(batches[0].mask.to_vec2::<f32>()?, [[1., 1., 1., 0.], [1., 1., 1., 1.]]);
    assert_eq!(batches[1].ids.to_vec2::<u32>()?, [[2, 7, 3]]);
    assert_eq!(batches.len(), 2);
    refuses(texts::pad_to(&tokens, 3, 0), &["expected at most 3 tokens", "got 4"])
}
