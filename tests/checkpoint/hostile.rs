//! Files that lie: each is read or is a typed error.

use candle_dynquant::Error;

use super::model::{Model, saved};
use super::text::{file, first_line, tensors, written};
use crate::kit::*;

/// Opens a checkpoint and reads every tensor as float and as bits.
fn read(path: &Path) -> Result<(), Error> {
    let checkpoint = Checkpoint::open(path)?;
    let vb = vb_of(&checkpoint);
    for tensor in checkpoint.tensors() {
        for dtype in [DType::F32, DType::U8] {
            vb.get_unchecked_dtype(&tensor.name, dtype)?;
        }
    }
    Ok(())
}

/// Each file is refused by an error that says so, names the file and is short.
fn each_is_refused<'a>(cases: impl IntoIterator<Item = (&'a str, Vec<u8>, &'a str)>) {
    let (_dir, [path]) = paths(["a.safetensors"]);
    for (name, bytes, expected) in cases {
        fs::write(&path, &bytes).expect("writes");
        let error = first_line(read(&path).expect_err(name));
        let named = error.contains("a.safetensors") && error.len() < 1_000;
        assert!(named && error.contains(expected), "{name}: {error}");
    }
}

/// A quantized file of the model, and the length of its header.
fn sample() -> Result<(Vec<u8>, usize)> {
    let whole = fs::read(saved(&all_int8().embeddings())?.out)?;
    let header = 8 + u64::from_le_bytes(whole[..8].try_into()?) as usize;
    Ok((whole, header))
}

#[test]
fn a_file_that_is_cut_short_is_refused() -> Result<()> {
    let (whole, header) = sample()?;
    let (_dir, [path]) = paths(["a.safetensors"]);
    let body = (header..whole.len()).step_by(1 + (whole.len() - header) / 300);
    for length in (0..header).chain(body).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..length])?;
        assert!(Checkpoint::open(&path).is_err(), "{length} of {} bytes", whole.len());
    }
    // A file that is longer than its header says.
    fs::write(&path, [&whole[..], b"x"].concat())?;
    assert!(Checkpoint::open(&path).is_err());
    fs::write(&path, &whole)?;
    Ok(read(&path)?)
}

#[test]
fn a_file_with_a_changed_header_is_read_or_refused() -> Result<()> {
    let (whole, header) = sample()?;
    let (_dir, [path]) = paths(["a.safetensors"]);
    let mut state = 7u64;
    for at in (0..header).step_by(3) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut changed = whole.clone();
        changed[at] ^= 1 << (state >> 61);
        fs::write(&path, &changed)?;
        if let Ok(vb) = open(&path) {
            let _ = Model::load(vb);
            let _ = read(&path);
        }
    }
    Ok(())
}

#[test]
fn a_file_that_is_cut_short_after_it_was_opened_is_an_error() -> Result<()> {
    let (whole, _) = sample()?;
    let (_dir, [path]) = paths(["a.safetensors"]);
    fs::write(&path, &whole)?;
    let checkpoint = Checkpoint::open(&path)?;
    fs::File::options().write(true).open(&path)?.set_len(whole.len() as u64 / 2)?;
    let error = Model::load(vb_of(&checkpoint)).map_err(|error| format!("{error:#}"));
    fault(error).has("cannot read the tensors").has("a.safetensors");
    Ok(())
}

#[test]
fn a_header_has_a_limit_also_where_the_file_has_as_many_bytes() -> Result<()> {
    let (_dir, [path]) = paths(["a.safetensors"]);
    for (length, expected) in [(100_000_001u64, "at most 100000000 bytes"), (100_000_000, "JSON")] {
        fs::write(&path, length.to_le_bytes())?;
        // No bytes on the disk stand for the rest.
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        file.set_len(8 + length)?;
        fault(Checkpoint::open(&path)).has(expected);
    }
    Ok(())
}

/// A name, the header, the bytes after it, and a part of the error.
const HEADERS: &str = r#"
a list | [] | 0 | an object of tensors
text behind | {} x | 0 | trailing
offsets that lie | {"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}} | 4 | 8 bytes
offsets turned round | {"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}} | 4 | 4 bytes
offsets beyond the file | {"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} | 4 | within 4 bytes
negative offsets | {"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}} | 4 | integer
offsets that wrap | {"a":{"dtype":"U8","shape":[8],"data_offsets":[18446744073709551615,7]}} | 4 | 8 bytes
a shape that wraps | {"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}} | 0 | memory
a shape that wraps beside 0 | {"a":{"dtype":"F32","shape":[4294967296,0,4294967296],"data_offsets":[0,0]}} | 0 | memory
a huge tensor | {"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}} | 1 | within 1 bytes
an unknown dtype | {"a":{"dtype":"Q3","shape":[1],"data_offsets":[0,1]}} | 1 | Q3
half a byte | {"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}} | 1 | whole bytes
an unknown key | {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"b":1}} | 1 | unknown field
a missing key | {"a":{"dtype":"U8","shape":[1]}} | 1 | data_offsets
one name twice | {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}} | 2 | twice
overlapping | {"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}} | 3 | offset 2
a gap | {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}} | 3 | offset 1
a gap at the end | {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} | 3 | 3 bytes
metadata of numbers | {"__metadata__":{"a":1}} | 0 | string
"#;

#[test]
fn headers_that_lie_are_refused() {
    let length = |length: u64, rest: &[u8]| [&length.to_le_bytes()[..], rest].concat();
    let text = |header: &str| file(header.as_bytes(), b"x");
    let ones = "1,".repeat(40);
    let dimensions = format!(r#"{{"a":{{"dtype":"U8","shape":[{ones}1],"data_offsets":[0,1]}}}}"#);
    let deep = format!(r#"{{"a":{}"#, "[".repeat(200_000));
    let deep_metadata = format!(r#"{{"__metadata__":{}"#, r#"{"a":"#.repeat(200_000));
    let many = "length 33, expected at most 32 sizes";
    let small = "at most 20 bytes, in a file of 28";
    each_is_refused([
        ("empty", vec![], "8 bytes"),
        ("length alone", vec![0; 8], "JSON"),
        ("length beyond the file", length(u64::MAX, b"{}"), "at most"),
        ("length beyond all", length(100_000_001, b""), "at most"),
        ("length beyond a small file", length(21, &[b' '; 20]), small),
        ("no UTF-8", file(&[0xff, 0xfe], b""), "JSON"),
        ("many dimensions", text(&dimensions), many),
        ("deep JSON", text(&deep), "JSON"),
        ("deep metadata", text(&deep_metadata), "JSON"),
    ]);
    each_is_refused(rows(HEADERS).map(|[name, header, body, expected]| {
        let body = vec![0; body.parse().expect("a number")];
        (name, file(header.as_bytes(), &body), expected)
    }));
}

/// A name, tensors, and a part of the error.
const TENSORS: &str = "
codes without scale | CODES | a.weight_scale
scale without codes | SCALES | no such tensor
scale beside floats | a.weight F32 [1,1] 0; SCALES | expected I8
scale of integers | CODES; a.weight_scale I32 [2,1] 1 2 | float dtype
too many scales | CODES; a.weight_scale F32 [3,1] 3*1 | [2, 1]
no scales | CODES; a.weight_scale F32 [0,1] | [2, 1]
scale 0 | CODES; a.weight_scale F32 [2,1] 1 0 | finite positive
scale -1 | CODES; a.weight_scale F32 [2,1] -1 1 | finite positive
scale NaN | CODES; a.weight_scale F32 [2,1] 1 NaN | finite positive
scale infinite | CODES; a.weight_scale F32 [2,1] 1 inf | finite positive
group scale NaN | CODES; a.weight_scale F32 [2,3] 5*1 NaN | finite numbers
groups of nothing | CODES; a.weight_scale F32 [2,2] 4*1 | groups
codes of rank 3 | a.weight I8 [1,2,3] 6*0; SCALES | [out_features, in_features]
codes of rank 1 | a.weight I8 [6] 6*0; a.weight_scale F32 [1] 1 | [.., out_features, in_features]
too many scales with zero points | CODES; a.weight_scale F32 [3,1] 3*1; a.weight_zero_point I8 [3,1] 3*0 | [2, 1]
too few zero points | CODES; SCALES; a.weight_zero_point I8 [1,1] 0 | [2, 1], as the scales
float zero points | CODES; SCALES; a.weight_zero_point F32 [2,1] 1 2 | I8
";

/// A name, the record of formats, and a part of the error.
const RECORDS: &str = r#"
version 2 | {"version": 2, "new": "things"} | version
no version | {"formats": [], "weights": {}} | version
version of text | {"version": "1"} | candle_dynquant
an unknown key | {"version": 1, "formats": [], "weights": {}, "x": 1} | unknown field
an unknown format | {"version": 1, "formats": [], "weights": {"a.weight": 0}} | format 0 of 0
an unknown weight | {"version": 1, "formats": [{"codes": {"dtype": "qint8", "qscheme": "per_channel_symmetric"}, "activation": ROW}], "weights": {"b.weight": 0}} | b.weight
an unknown qscheme | {"version": 1, "formats": [{"codes": {"dtype": "qint8", "qscheme": "x"}}], "weights": {}} | qscheme
float activations | {"version": 1, "formats": [{"codes": {"dtype": "qint8", "qscheme": "per_channel_symmetric"}, "activation": "float"}], "weights": {"a.weight": 0}} | dynamic activations
missing zero points | {"version": 1, "formats": [{"codes": {"dtype": "quint8", "qscheme": "per_channel_affine"}, "activation": ROW}], "weights": {"a.weight": 0}} | a.weight_zero_point
one scale for all | {"version": 1, "formats": [{"codes": {"dtype": "qint8", "qscheme": "per_tensor_symmetric"}, "activation": ROW}], "weights": {"a.weight": 0}} | 1 elements
halves that are codes | {"version": 1, "formats": [{"activation": "float"}], "weights": {"a.weight": 0}} | F16
"#;

/// Codes with their scales.
const CODES: &str = "a.weight I8 [2,3] 6*0";
const SCALES: &str = "a.weight_scale F32 [2,1] 1 2";

fn codes_with(metadata: Value) -> Vec<u8> {
    written(&format!("{CODES}; {SCALES}"), metadata)
}

#[test]
fn tensors_that_do_not_fit_together_are_refused() {
    each_is_refused(rows(TENSORS).map(|[name, tensors, expected]| {
        let tensors = tensors.replace("CODES", CODES).replace("SCALES", SCALES);
        (name, written(&tensors, Value::Null), expected)
    }));
    each_is_refused(rows(RECORDS).map(|[name, record, expected]| {
        let record = record.replace("ROW", r#"{"granularity": "per_row"}"#);
        let metadata = json!({"candle_dynquant": record});
        (name, codes_with(metadata), expected)
    }));
    // Beside a weight that the metadata describes.
    let record = r#"{"version": 1, "formats": [{"codes": {"dtype": "qint8", "qscheme": "per_channel_symmetric"}, "activation": {"granularity": "per_row"}}], "weights": {"a.weight": 0}}"#;
    let beside = |tensors: &str| {
        let tensors = format!("a.weight I8 [2,3] 6*1; {tensors}");
        written(&tensors, json!({"candle_dynquant": record}))
    };
    let scales = "a.weight_scale F32 [2,1] 2*0.5";
    let order = beside(&format!("{scales}; a.weight_g_idx F32 [1] 0"));
    let across = beside("a.weight_scale F32 [1,2] 2*0.5");
    each_is_refused([
        ("an order of inputs", order, "a.weight_g_idx"),
        ("scales in one row", across, "2 elements, 1 in a row"),
    ]);
}

#[test]
fn rows_that_no_byte_stands_for_are_refused() -> Result<()> {
    let (_dir, [path, out]) = paths(["a.safetensors", "out.safetensors"]);
    let cases = [
        ([1u64 << 33, 0], Some("rows without columns")),
        ([1 << 62, 0], Some("rows without columns")),
        ([0, 1 << 33], None),
        ([0, 1 << 62], Some("elements")),
    ];
    for (shape, expected) in cases {
        let lies = tensors(&[("a.weight", "F32", json!(shape), &[])], Value::Null);
        fs::write(&path, lies)?;
        let source = Checkpoint::open(&path)?;
        for (preset, kind) in QConfig::PRESETS
            .into_iter()
            .flat_map(|preset| [LayerKind::Linear, LayerKind::Embedding].map(|kind| (preset, kind)))
        {
            let qconfig = QConfig::preset(preset)?;
            if kind == LayerKind::Linear && preset == "table" {
                continue;
            }
            let tables = match kind {
                LayerKind::Embedding => &["a".to_owned()][..],
                _ => &[],
            };
            let spec = QConfigSpec::new().kind(kind, qconfig);
            let plan = Plan::new(&source, &spec, &[], tables);
            let written = plan.and_then(|plan| plan.write(&source, &out, |_| ()));
            let Some(expected) = expected else {
                written?;
                fs::remove_file(&out)?;
                continue;
            };
            fault(written).has("at most").has(expected).has("a.weight");
            assert!(!out.exists(), "{preset}");
        }
    }
    Ok(())
}

/// A quantized embedding's rows have the dtype of the `VarBuilder`, so this has to be a float.
#[test]
fn a_var_builder_of_another_dtype_than_floats_is_refused() -> Result<()> {
    let (_dir, [path]) = paths(["a.safetensors"]);
    fs::write(&path, codes_with(Value::Null))?;
    let checkpoint = Checkpoint::open(&path)?;
    for dtype in [DType::U8, DType::I64, DType::F8E4M3, DType::F6E2M3] {
        let vb = checkpoint.var_builder(dtype, &Device::Cpu);
        let expected = format!(
            "a.weight: unsupported dtype in load: expected f32, f16, bf16 or f64, got {dtype:?}"
        );
        fault(nn::embedding(2, 3, vb.pp("a"))).has(&expected);
        fault(nn::linear_no_bias(3, 2, vb.pp("a"))).has(&expected);
    }
    Ok(())
}

/// The error that a layer returns names the weight.
#[test]
fn a_layer_names_the_weight_at_fault() -> Result<()> {
    let (_dir, [path]) = paths(["a.safetensors"]);
    let scales = "a.weight_scale F32 [2,1] 1 NaN";
    fs::write(&path, written(&format!("{CODES}; {scales}"), Value::Null))?;
    let vb = open(&path)?;
    fault(nn::linear_no_bias(3, 2, vb.pp("a")))
        .has("a.weight: invalid scale")
        .has("NaN at index 1");
    fault(nn::linear_no_bias(2, 2, vb.pp("a"))).has("expected [2, 2], got [2, 3]");
    Ok(())
}

#[test]
fn folders_that_lie_are_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (path, index) = (dir.path(), dir.path().join("model.safetensors.index.json"));
    let error = |path: &Path| fault(read(path));
    error(path).has("got none");
    error(&path.join("nothing")).has("cannot open");
    let one = written("a U8 [1] 0", Value::Null);
    fs::write(path.join("a.safetensors"), &one)?;
    read(path)?;
    fs::write(path.join("b.safetensors"), &one)?;
    error(path).has("a.safetensors, b.safetensors");
    let cases = [
        (json!({}), "weight_map"),
        (json!({"weight_map": {}}), "no tensors"),
        (json!({"weight_map": {"a": "../a.safetensors"}}), "file name without a folder"),
        (json!({"weight_map": {"a": "/etc/passwd"}}), "file name without a folder"),
        (json!({"weight_map": {"a": ".."}}), "file name without a folder"),
        (json!({"weight_map": {"a": "a".repeat(256)}}), "file name without a folder"),
        (json!({"weight_map": {"a": "c.safetensors"}}), "c.safetensors: cannot open"),
        (json!({"weight_map": {"b": "a.safetensors"}}), "as the index says"),
        (json!({"weight_map": {"a": 1}}), "string"),
    ];
    for (json, expected) in cases {
        fs::write(&index, json.to_string())?;
        error(path).has(expected);
        error(&index).has(expected);
    }
    fs::write(&index, r#"{"weight_map": {"a": "a.safetensors", "a": "b.safetensors"}}"#)?;
    error(path).has("twice");
    fs::write(&index, json!({"weight_map": {"a": "a.safetensors"}}).to_string())?;
    read(path)?;
    let config = |entry: Value| json!({"quantization_config": entry}).to_string();
    let group = |key: &str, value: Value| {
        let mut activations =
            json!({"num_bits": 8, "type": "int", "dynamic": true, "strategy": "token"});
        activations[key] = value;
        json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": activations}}})
    };
    let targets = |own: Vec<&str>| config(json!({"config_groups": {"a": {"targets": own}}}));
    let regexes = vec![r"re:\w"; 1_000];
    let long = format!("re:{}", "a".repeat(20_000));
    let cases = [
        ("{".repeat(100_000), "object"),
        (config(group("num_bits", json!(4))), "4 bits"),
        (config(group("type", json!("float"))), "float"),
        (config(group("dynamic", json!("local"))), "activations.dynamic"),
        (config(group("group_size", json!(128))), "group_size"),
        (config(group("strategy", json!("block"))), "block"),
        (targets(regexes), "number of regexes"),
        (targets(vec![&long]), "bytes"),
        (" ".repeat(5 << 20), "at most"),
    ];
    let texts = r#"
[] | object
{"quantization_config": {"quant_method": "hqq"}} | hqq
{"a": 1, "a": 1} | "a" twice
{"b": [{"hidden_size": 1, "hidden_size": NaN}]} | twice
{"llm_config": {"a": {"quantization_config": {"quant_method": "hqq"}}}} | hqq
{"compression_config": {}, "text_config": {"quantization_config": {"quant_method": "awq"}}} | compression_config and text_config.quantization_config
"#;
    let texts = rows(texts).map(|[json, expected]| (json.to_owned(), expected));
    let entries = r#"
hqq | {"quant_method": "hqq"}
float-quantized | {"quant_method": "compressed-tensors", "format": "float-quantized"}
regex | {"config_groups": {"a": {"targets": ["re:("]}}}
regex | {"config_groups": {"a": {"targets": ["re:(a{1000}){1000}"]}}}
kv_cache_scheme | {"kv_cache_scheme": {"num_bits": 8}}
transform_config | {"transform_config": {"a": 1}}
sparsity_config.format | {"sparsity_config": {"format": "sparse-bitmask"}}
config_groups.a.b.output_activations | {"config_groups": {"a.b": {"output_activations": {"num_bits": 8}}}}
config_groups.a.weights.strategy | {"config_groups": {"a": {"weights": {"strategy": "block"}}}}
"bits": a key that is known | {"bits": 8}
"#;
    let nested = |[expected, entry]: [&'static str; 2]| {
        let entry = format!(r#"{{"text_config": {{"quantization_config": {entry}}}}}"#);
        (entry, expected)
    };
    for (json, expected) in cases.into_iter().chain(texts).chain(rows(entries).map(nested)) {
        fs::write(path.join("config.json"), &json)?;
        error(path).has(expected).has("config.json").short();
    }
    let whole = |format: &str| {
        let mut entry = group("dynamic", json!(true));
        entry["format"] = format.into();
        config(entry)
    };
    fs::write(path.join("config.json"), whole("int-quantized"))?;
    error(path).has("config.json: expected quantized weights");
    for good in [config(Value::Null), whole("dense"), "{}".to_owned()] {
        fs::write(path.join("config.json"), good)?;
        read(path)?;
    }
    fs::write(path.join("hf_quant_config.json"), "{}")?;
    error(path).has("hf_quant_config.json").has("modelopt");
    Ok(())
}

#[test]
fn files_that_disagree_on_a_weight_are_refused() -> Result<()> {
    let (dir, [first, second]) = paths(["1.safetensors", "2.safetensors"]);
    let record = |granularity: &str| {
        let codes = json!({"dtype": "qint8", "qscheme": "per_channel_symmetric"});
        let format = json!({"codes": codes, "activation": {"granularity": granularity}});
        let record = json!({"version": 1, "formats": [format], "weights": {"a.weight": 0}});
        json!({"candle_dynquant": record.to_string()})
    };
    let other = |granularity| written("b F32 [1] 1", record(granularity));
    let map = json!({"a.weight": "1.safetensors", "a.weight_scale": "1.safetensors", "b": "2.safetensors"});
    let index = json!({"weight_map": map}).to_string();
    fs::write(dir.path().join("model.safetensors.index.json"), index)?;
    fs::write(first, codes_with(record("per_row")))?;
    fs::write(&second, other("per_row"))?;
    read(dir.path())?;
    fs::write(&second, other("per_tensor"))?;
    let expected = "2.safetensors: tensor \"a.weight\": expected one format in the metadata of all files, got two";
    fault(read(dir.path())).ends(expected);
    Ok(())
}
