//! Layouts of other libraries: the fixtures that they wrote, and malformed files in these layouts.

use super::fixtures::{Mlp, Sizes, difference, expected, fixture, groups_of};
use super::text::{self, f32s, first_line, written};
use crate::kit::*;

const SIZES: Sizes = &[("up", 24, 40, true), ("down", 40, 10, false), ("head", 10, 3, true)];

/// Which of `up` and `down` are int8.
fn int8(model: &Mlp) -> [bool; 2] {
    [0, 1].map(|i| is_quantized(&model.0[i]))
}

/// Checks that the weights equal the library's up to `rounding` of the largest, also in candle's
/// layers, that a saved copy in the layout of compressed-tensors has the same bits, and that the
/// answer is at most `error` from the tensor `output`.
fn check(
    folder: &Path,
    is_int8: [bool; 2],
    rounding: f32,
    (output, error): (&str, f32),
) -> Result<()> {
    let expected = expected(folder)?;
    let opened = Checkpoint::open(folder)?;
    let model = Mlp::open(folder, SIZES)?;
    assert_eq!(int8(&model), is_int8);
    let vb = vb_of(&opened);
    for (name, layer) in ["up", "down"].into_iter().zip(&model.0) {
        let weight = &expected[&format!("{name}.weight")];
        let (n, k) = weight.dims2()?;
        let theirs = candle_nn::linear_no_bias(k, n, vb.pp(name))?;
        for got in [layer.weight(), theirs.weight()] {
            assert!(difference(got, weight)? <= rounding, "{name}");
        }
    }
    let names: Vec<String> = opened.tensors().map(|tensor| tensor.name).collect();
    let rest = names.iter().filter(|name| !name.contains("weight_zero_point"));
    let all = "down.weight down.weight_scale head.bias head.weight up.bias up.weight \
               up.weight_scale";
    assert!(rest.eq(all.split(' ')), "{names:?}");
    let (_dir, [saved, copied, float]) = paths(["saved", "copied", "float"]);
    checkpoint::save(&model, &opened, &saved)?;
    let again = Mlp::open(&saved, SIZES)?;
    assert_eq!(int8(&again), is_int8);
    let bytes = fs::read(saved.join("model.safetensors"))?;
    let header = String::from_utf8_lossy(&bytes[..bytes.len().min(8_000)]);
    assert!(!header.contains("tensor_names"), "torchao's description");
    let ys = model.forward(&expected["input"])?;
    assert_eq!(bits(&again.forward(&expected["input"])?), bits(&ys));
    assert!(difference(&ys, &expected[output])? < error);
    // Also where no layer replaces the tensors, and as floats.
    checkpoint::save(&(), &opened, &copied)?;
    assert_eq!(bits(&Mlp::open(&copied, SIZES)?.forward(&expected["input"])?), bits(&ys));
    checkpoint::dequantize(&opened, &float, |_| {})?;
    let float = candle_core::safetensors::load(float.join("model.safetensors"), &Device::Cpu)?;
    assert_eq!(float.len(), 5);
    for (name, layer) in ["up", "down"].into_iter().zip(&model.0) {
        let weight = &float[&format!("{name}.weight")];
        assert_eq!(difference(weight, layer.weight())?, 0., "{name}");
    }
    Ok(())
}

/// The activations' rounding: theirs have 8 bits for both signs.
#[test]
fn compressed_tensors() -> Result<()> {
    let folder = fixture("int_quantized");
    let down = nn::linear_no_bias(40, 10, open(&folder)?.pp("down"))?;
    let zero_points = down.projection().qweight().expect("codes").zero_points();
    assert!(zero_points.iter().any(|zero| *zero != 0));
    check(&folder, [true; 2], 0., ("output", 0.02))
}

#[test]
fn bitsandbytes() -> Result<()> {
    let folder = fixture("layout_bitsandbytes");
    // The library multiplies by the largest magnitude before it divides.
    check(&folder, [false; 2], 2e-7, ("output", 0.02))?;
    // Without outliers all products are int8.
    let dir = tempfile::tempdir()?;
    for name in ["model.safetensors", "expected.safetensors"] {
        fs::copy(folder.join(name), dir.path().join(name))?;
    }
    let mut config = read_json(folder.join("config.json"))?;
    config["quantization_config"]["llm_int8_threshold"] = json!(0.0);
    fs::write(dir.path().join("config.json"), config.to_string())?;
    check(dir.path(), [true; 2], 2e-7, ("output_int8", 0.05))
}

#[test]
fn quanto() -> Result<()> {
    check(&fixture("layout_quanto"), [false; 2], 0., ("output", 1e-5))
}

/// Activations have 8 bits for both signs there.
#[test]
fn torchao() -> Result<()> {
    check(&fixture("layout_torchao"), [true, false], 0., ("output", 0.02))
}

#[test]
fn torchao_intx() -> Result<()> {
    check(&fixture("layout_torchao_intx"), [true, false], 0., ("output", 0.02))
}

/// Each Linear answers as torchao's on the same inputs, up to the rounding of activations: they are
/// symmetric here, affine in torchao.
#[test]
fn torchao_int4() -> Result<()> {
    let folder = fixture("layout_torchao_int4");
    let own = expected(&folder)?;
    let (_dir, [copied]) = paths(["copied"]);
    checkpoint::save(&(), &Checkpoint::open(&folder)?, &copied)?;
    let (opened, copied) = (open(&folder)?, open(&copied)?);
    for (name, xs, group_size) in [
        ("up", own["input"].clone(), Some(32)),
        ("down", own["up.output"].relu()?, Some(64)),
        ("out", own["down.output"].clone(), None),
    ] {
        let weight = &own[&format!("{name}.weight")];
        let (n, k) = weight.dims2()?;
        let layer = |vb: &VarBuilder<'_>| nn::linear_b(k, n, name != "down", vb.pp(name));
        let (layer, copy) = (layer(&opened)?, layer(&copied)?);
        let mut groups = GroupConfig::INT4;
        (groups.group_size, groups.per_row) = (group_size, true);
        assert_eq!([&layer, &copy].map(groups_of), [Some(groups); 2], "{name}");
        assert!(difference(layer.weight(), weight)? < 2f32.powi(-11), "{name}");

        let ys = layer.forward(&xs)?;
        assert_eq!(values(&copy.forward(&xs)?), values(&ys));
        let weights = weight.abs()?.sum(1)?.to_vec1::<f32>()?;
        let products = xs.abs()?.matmul(&weight.abs()?.t()?)?.to_vec2::<f32>()?;
        let output = &own[&format!("{name}.output")];
        for ((row, xs), (output, products)) in (ys.to_vec2::<f32>()?.iter())
            .zip(xs.to_vec2::<f32>()?)
            .zip(output.to_vec2::<f32>()?.iter().zip(&products))
        {
            let [min, max] = (xs.iter()).fold([0f32; 2], |[a, b], x| [a.min(*x), b.max(*x)]);
            // A step of theirs, whose zero point is rounded, and half of ours; scales in float16.
            let off = (max - min) / 255. + max.max(-min) / 254.;
            for (i, (got, expected)) in row.iter().zip(output).enumerate() {
                let bound = weights[i] * off + products[i] / 2048.;
                assert!((got - expected).abs() <= bound, "{name}: {got} {expected}");
            }
        }
        assert!(difference(&ys, output)? < 0.02);
    }
    Ok(())
}

/// `scripts/convert_pytorch.py`: each layer answers as PyTorch's on the same inputs.
#[test]
fn pytorch() -> Result<()> {
    let folder = fixture("layout_pytorch");
    let own = expected(&folder)?;
    let vb = open(folder.join("model.safetensors"))?;
    let deep = nn::RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
    let table = nn::embedding(11, 8, vb.pp("table"))?;
    let lstm = nn::LSTM::new(8, 6, deep, vb.pp("lstm"))?;
    let gru = nn::GRU::new(12, 5, Default::default(), vb.pp("gru"))?;
    let cell = nn::LSTMCell::new(5, 7, true, vb.pp("cell"))?;
    let up = nn::linear(7, 20, vb.pp("up"))?;
    let small = nn::linear(20, 9, vb.pp("small"))?;
    let down = nn::linear_no_bias(9, 4, vb.pp("down"))?;
    assert!(table.qtable().is_some());
    assert!([&up, &small, &down].into_iter().all(is_quantized));
    let last = own["gru"].get(own["gru"].dim(0)? - 1)?;
    let answers = [
        ("table", table.forward(&own["ids"])?, 1e-6),
        ("lstm", lstm.forward(&own["table"], None)?.0, 1e-5),
        ("gru", gru.forward(&own["lstm"], None)?.0, 1e-5),
        ("cell", cell.forward(&last, None)?.h, 1e-5),
        ("up", up.forward(&own["cell"])?, 0.),
        ("small", small.forward(&own["norm"])?, 1e-6),
        ("down", down.forward(&own["small"])?, 0.),
    ];
    for (name, got, rounding) in answers {
        let error = difference(&got, &own[name])?;
        assert!(error <= rounding, "{name}: {error:e}");
    }
    Ok(())
}

/// Loads the layer `a` of a folder, which is an error.
fn each_is_refused<'a>(cases: impl IntoIterator<Item = (&'a str, Vec<u8>, Value, &'a str)>) {
    for (name, bytes, config, expected) in cases {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("model.safetensors"), bytes).expect("writes");
        let json = json!({ "quantization_config": config });
        fs::write(dir.path().join("config.json"), json.to_string()).expect("writes");
        let load = || {
            let layer = nn::linear_no_bias(3, 2, open(dir.path())?.pp("a"));
            layer.map_err(candle_dynquant::Error::from)
        };
        let error = first_line(load().expect_err(name));
        assert!(error.contains(expected) && error.len() < 1_000, "{name}: {error}");
    }
}

/// Refuses each row of a table: a name, tensors with words for some, a part of the error.
fn each_row_is_refused(table: &str, words: &[(&str, &str)]) {
    each_is_refused(rows(table).map(|[name, tensors, expected]| {
        let replaced = |text: String, (word, tensor): &(&str, &str)| text.replace(word, tensor);
        let tensors = words.iter().fold(tensors.to_owned(), replaced);
        (name, written(&tensors, json!({})), Value::Null, expected)
    }));
}

#[test]
fn hostile_files_of_bitsandbytes() {
    let (codes, factors) = ("a.weight I8 [2,3] 6*1", "a.SCB F32 [2] 127 254");
    let right = written(&format!("{codes}; {factors}"), json!({}));
    let config = |key: &str, value: Value| {
        let mut config = json!({"load_in_8bit": true});
        config[key] = value;
        config
    };
    let (four, text) =
        (config("load_in_4bit", json!(true)), config("llm_int8_threshold", json!("6")));
    each_is_refused([
        ("4 bits", right.clone(), four, "load_in_4bit"),
        ("a threshold of text", right, text, "bitsandbytes"),
    ]);
    let table = "
codes of 4 bits | a.weight U8 [3,1] 3*0; a.weight.quant_state.bitsandbytes__nf4 U8 [2] 2*0 | 4-bit codes
an order of GPUs | CODES; FACTORS; a.weight_format U8 [] 2 | a.weight_format
two orders | CODES; FACTORS; a.weight_format U8 [2] 0 0 | a.weight_format
an order of no bytes | CODES; FACTORS; a.weight_format U8 [0] | a.weight_format
SCB without codes | FACTORS | a.weight
float codes | a.weight F32 [2,3] 6*0; FACTORS | I8, beside
half SCB | CODES; a.SCB F16 [2] 4*0 | F32 [2]
one SCB for all | CODES; a.SCB F32 [1] 127 | F32 [2]
scales twice | CODES; FACTORS; a.weight_scale F32 [2] 127 254 | one tensor of that name
SCB of 0 | CODES; a.SCB F32 [2] 127 0 | scale
negative SCB | CODES; a.SCB F32 [2] -1 1 | scale
SCB of NaN | CODES; a.SCB F32 [2] 1 NaN | scale
";
    each_row_is_refused(table, &[("CODES", codes), ("FACTORS", factors)]);
}

#[test]
fn hostile_files_of_quanto() {
    let (codes, scales) = ("a.weight._data I8 [2,3] 6*1", "a.weight._scale F32 [2,1] 1 2");
    let right = format!("{codes}; {scales}; a.input_scale F32 [] 1");
    let right = written(&right, json!({}));
    let config = |key: &str, value: &str| json!({"quant_method": "quanto", key: value});
    let (int4, int8) = (config("weights", "int4"), config("activations", "int8"));
    each_is_refused([
        ("int4", right.clone(), int4, "expected int8, got \"int4\""),
        ("int8 activations", right, int8, "expected none, got \"int8\""),
    ]);
    let table = "
a static scale | CODES; SCALES; a.input_scale F32 [] 0.5 | a.input_scale
static scales | CODES; SCALES; a.output_scale F32 [2] 1 2 | a.output_scale
a static scale of no bytes | CODES; SCALES; a.output_scale F32 [0] | a.output_scale
a shift | CODES; SCALES; a.weight._shift F32 [2,1] 1 2 | a shift
packed | a.weight._data._data U8 [2,3] 6*0; SCALES | fewer bits
float8 | a.weight._data F8_E4M3 [2,3] 6*0; SCALES | F8_E4M3
codes without scales | CODES | a.weight._scale
scales without codes | SCALES | codes, beside
scales of columns | CODES; a.weight._scale F32 [1,3] 3*0 | a.weight._scale
scales of integers | CODES; a.weight._scale I32 [2,1] 2*0 | a float dtype
three dimensions | a.weight._data I8 [2,3,1] 6*0; SCALES | [out_features, in_features]
a weight twice | CODES; SCALES; a.weight F32 [2,3] 6*0 | one tensor of that name
a scale of 0 | CODES; a.weight._scale F32 [2,1] 2*0 | scale
";
    each_row_is_refused(table, &[("CODES", codes), ("SCALES", scales)]);
}

#[test]
fn activations_of_torchao_are_per_row_or_per_tensor() -> Result<()> {
    let tensors = "a._weight_qdata I8 [2,3] 6*1; a._weight_scale F32 [2,1] 1 2";
    for (name, granularity) in
        [("PerRow", Granularity::PerRow), ("PerTensor", Granularity::PerTensor)]
    {
        let settings = json!({"_data": {
            "granularity": {"_type": name, "_data": {"dim": -1}},
            "mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
        }});
        let metadata = described(json!({"_data": {"act_quant_kwargs": settings}}));
        let (_dir, [path]) = paths(["a.safetensors"]);
        fs::write(&path, written(tensors, metadata))?;
        let layer = nn::linear_no_bias(3, 2, open(&path)?.pp("a"))?;
        let weight = layer.projection().qweight().expect("codes");
        let activation = weight.activation().map(|config| config.granularity);
        assert_eq!(activation, Some(granularity), "{name}");
    }
    Ok(())
}

/// The metadata of an Int8Tensor with these changes; nested keys are changed one by one.
fn described(changes: Value) -> Value {
    let mut described = json!({
        "_type": "Int8Tensor", "_data": {"block_size": [1, 3], "act_quant_kwargs": null},
        "_tensor_data_names": ["qdata", "scale"],
    });
    for (key, value) in changes.as_object().expect("changes") {
        match value {
            Value::Object(inner) => {
                inner.iter().for_each(|(name, value)| described[key][name] = value.clone())
            }
            value => described[key] = value.clone(),
        }
    }
    json!({"tensor_names": "[\"a.weight\"]", "a.weight": described.to_string()})
}

#[test]
fn hostile_files_of_torchao() {
    let (codes, scales) = ("a._weight_qdata I8 [2,3] 6*1", "a._weight_scale F32 [2,1] 1 2");
    let both = format!("{codes}; {scales}");
    let deep = json!({"tensor_names": "[\"a.weight\"]", "a.weight": "{".repeat(100_000)});
    each_is_refused(
        [
            ("no description", deep, "metadata of torchao"),
            ("no metadata", json!({}), "beside codes"),
            ("names of no list", json!({"tensor_names": "7"}), "beside codes"),
        ]
        .map(|(name, metadata, expected)| (name, written(&both, metadata), Value::Null, expected)),
    );
    let table = r#"
blocks of nothing | a._weight_qdata I8 [0,3]; a._weight_scale F32 [0,1] | {"_data": {"block_size": [0, 3]}} | blocks [0, 3] of [0, 3]
codes of 8 bits where 4 are said | a._weight_qdata I8 [2,3] 1 2 3 4 5 8; SCALES | {"_type": "IntxUnpackedToInt8Tensor", "_data": {"target_dtype": {"_type": "torch.dtype", "_data": "int4"}}} | code of 4 bits: expected -8 to 7, got 8
another type | CODES; SCALES | {"_type": "Int4Tensor"} | Int4Tensor
static activations of unpacked codes | CODES; SCALES | {"_type": "IntxUnpackedToInt8Tensor", "_data": {"activation_quantization": "int8_sym_static"}} | int8_sym_static
static activations | CODES; SCALES | {"_tensor_data_names": ["qdata", "scale", "act_quant_scale"]} | act_quant_scale
activations of groups | CODES; SCALES | {"_data": {"act_quant_kwargs": {"_data": {"granularity": {"_type": "PerGroup"}}}}} | PerGroup
activations of nothing | CODES; SCALES | {"_data": {"act_quant_kwargs": {"_data": {}}}} | PerRow or PerTensor
activations of floats | CODES; SCALES | {"_data": {"act_quant_kwargs": {"_data": {"float8_dtype": null}}}} | float8_dtype
clipped activations | CODES; SCALES | {"_data": {"act_quant_kwargs": {"_data": {"granularity": {"_type": "PerRow"}, "hp_value_ub": 3.0}}}} | hp_value_ub
an unknown key | CODES; SCALES | {"_data": {"transform": "hadamard"}} | transform
an unknown key beside the data | CODES; SCALES | {"_rotation": 1} | _rotation
blocks of 0 | CODES; SCALES | {"_data": {"block_size": [0, 3]}} | a._weight_scale
other blocks | CODES; SCALES | {"_data": {"block_size": [2, 3]}} | a._weight_scale
blocks of three dimensions | CODES; SCALES | {"_data": {"block_size": [1, 3, 1]}} | a._weight_scale
blocks of text | CODES; SCALES | {"_data": {"block_size": "1"}} | metadata of torchao
codes without scales | CODES | {} | a._weight_scale
scales without codes | SCALES | {} | a._weight_qdata
a missing zero point | CODES; SCALES | {"_tensor_data_names": ["qdata", "scale", "zero_point"]} | a._weight_zero_point
float codes | a._weight_qdata F8_E4M3 [2,3] 6*0; SCALES | {} | a._weight_qdata
scales of NaN | CODES; a._weight_scale F32 [2,1] NaN 1 | {} | scale
"#;
    each_is_refused(rows(table).map(|[name, tensors, changes, expected]| {
        let tensors = tensors.replace("CODES", codes).replace("SCALES", scales);
        let metadata = described(serde_json::from_str(changes).expect(changes));
        (name, written(&tensors, metadata), Value::Null, expected)
    }));
}

/// A group's scale belongs to some of the inputs, so layers get floats.
#[test]
fn groups_of_torchao_are_dequantized() -> Result<()> {
    let tensors = "a._weight_qdata I8 [2,4] 8*1; a._weight_scale F32 [2,2] 1 2 3 4";
    let metadata = described(json!({"_data": {"block_size": [1, 2]}}));
    let (_dir, [path]) = paths(["a.safetensors"]);
    fs::write(&path, written(tensors, metadata))?;
    let layer = nn::linear_no_bias(4, 2, open(&path)?.pp("a"))?;
    let weight = layer.weight().to_vec2::<f32>()?;
    assert_eq!(weight, [[1., 1., 2., 2.], [3., 3., 4., 4.]]);
    Ok(())
}

/// Also in a copy, where no layer replaces the tensors.
#[test]
fn zero_points_of_torchao_are_kept_where_there_are_some() -> Result<()> {
    let codes: Vec<u8> = (0..128).map(|i| (i % 16 - 8) as u8).collect();
    let scales = f32s(&[0.5, 1., 2., 4.]);
    let described = json!({
        "_type": "IntxUnpackedToInt8Tensor",
        "_data": {
            "target_dtype": {"_type": "torch.dtype", "_data": "int4"}, "block_size": [1, 32],
            "activation_quantization": null,
        },
        "_tensor_data_names": ["qdata", "scale", "zero_point"],
    });
    let (_dir, [path, copy]) = paths(["a.safetensors", "b.safetensors"]);
    for (zeros, scheme) in
        [([0i8; 4], GroupScheme::Symmetric), ([0, -8, 7, 3], GroupScheme::Affine)]
    {
        let zero_points = zeros.map(i8::cast_unsigned);
        let tensors = [
            ("a._weight_qdata", "I8", json!([2, 64]), &codes[..]),
            ("a._weight_scale", "F32", json!([2, 2]), &scales),
            ("a._weight_zero_point", "I8", json!([2, 2]), &zero_points),
        ];
        let metadata = json!({"tensor_names": "[\"a.weight\"]", "a.weight": described.to_string()});
        fs::write(&path, text::tensors(&tensors, metadata))?;
        checkpoint::save(&(), &Checkpoint::open(&path)?, &copy)?;
        for path in [&path, &copy] {
            let layer = nn::linear_no_bias(64, 2, open(path)?.pp("a"))?;
            let mut groups = GroupConfig::INT4;
            groups.scheme = scheme;
            assert_eq!(groups_of(&layer), Some(groups), "{}", path.display());
            let expected = (0..128).map(|i| {
                let group = i / 32;
                let step = [0.5, 1., 2., 4.][group];
                step * (f32::from(codes[i].cast_signed()) - f32::from(zeros[group]))
            });
            let weight = values(layer.weight());
            assert_eq!(weight, expected.collect::<Vec<_>>());
        }
    }
    Ok(())
}
