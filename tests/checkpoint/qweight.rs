//! Folders by GPTQModel, AutoAWQ and AutoRound, see assets/reference/layout_gptq.py, layout_awq.py
//! and layout_auto_round.py, and files that lie in their manner.

use safetensors::Dtype::{F16, I32};

use super::fixtures::{
    self, Entry, Mlp, Raw, Sizes, difference, expected, groups_of, raw, replace, write_raw, zeros,
};
use crate::kit::*;

const FOLDERS: [&str; 5] = ["gptq", "gptq_v2", "awq", "auto_round", "auto_round_v2"];
/// The names of the 8-bit fixtures.
const BYTES: [&str; 1] = ["auto_round_8"];
const WEIGHTS: [&str; 3] = ["up.weight", "down.weight", "out.weight"];

fn fixture(name: &str) -> PathBuf {
    fixtures::fixture(&format!("layout_{name}"))
}

const SIZES: Sizes = &[
    ("up", 96, 128, true),
    ("down", 128, 64, false),
    ("out", 64, 32, true),
    ("head", 32, 3, true),
];

fn groups(model: &Mlp) -> Vec<Option<(Option<usize>, GroupScheme)>> {
    let groups = model.0.iter().map(groups_of);
    groups.map(|own| own.map(|config| (config.group_size, config.scheme))).collect()
}

/// candle's loaders get the library's floats, in its float16.
fn same_floats(path: &Path, expected: &HashMap<String, Tensor>) -> Result<()> {
    let vb = open(path)?;
    for name in WEIGHTS {
        let want = &expected[name];
        let float = vb.get(want.dims(), name)?.to_dtype(DType::F16)?;
        assert!(values(&float) == values(want), "{name}");
    }
    Ok(())
}

#[test]
fn folders_are_built_from_their_codes() -> Result<()> {
    let mut all: [Vec<Vec<u32>>; 2] = Default::default();
    for name in FOLDERS.into_iter().chain(BYTES) {
        let is_8 = BYTES.contains(&name);
        let folder = fixture(name);
        let expected = expected(&folder)?;
        same_floats(&folder, &expected)?;
        let (opened, model) = (Checkpoint::open(&folder)?, Mlp::open(&folder, SIZES)?);
        let (symmetric, affine) = (GroupScheme::Symmetric, GroupScheme::Affine);
        let of_down = (!is_8).then_some((Some(64), affine));
        let expected_groups = [Some((Some(32), symmetric)), of_down, Some((None, symmetric)), None];
        assert_eq!(groups(&model), expected_groups, "{name}");
        let xs = &expected["input"];
        let ys = model.forward(xs)?;
        let error = difference(&ys, &expected["output"].to_dtype(DType::F32)?)?;
        assert!(error < 0.02, "{name}: {error}");
        // Saved by the layers, and copied without a layer for the tensors.
        let (_dir, [float, saved, copied]) = paths(["float", "saved", "copied"]);
        checkpoint::save(&model, &opened, &saved)?;
        checkpoint::save(&(), &opened, &copied)?;
        for folder in [&saved, &copied] {
            assert_eq!(bits(&Mlp::open(folder, SIZES)?.forward(xs)?), bits(&ys), "{name}");
            same_floats(folder, &expected)?;
        }
        let [own, others] = [saved, copied].map(|folder| raw(&folder.join("model.safetensors")));
        let (own, others) = (own?, others?);
        // A layer's bias is f32 here.
        for (tensor, value) in own.iter().filter(|(name, _)| name.contains(".weight")) {
            assert_eq!(&others[tensor], value, "{name}: {tensor}");
        }
        assert!(others.contains_key("down.weight_zero_point") && !own.contains_key("up.qweight"));
        checkpoint::dequantize(&opened, &float, |_| {})?;
        same_floats(&float, &expected)?;
        all[usize::from(is_8)].push(bits(&ys));
    }
    for all in all {
        assert!(all.iter().all(|bits| *bits == all[0]));
    }
    Ok(())
}

/// GPTQModel packs codes of 8 bits as AutoRound does, and adds the group of each input.
#[test]
fn gptq_of_8_bits_has_the_numbers_of_gptqmodel() -> Result<()> {
    let dir = changed("auto_round_8", |tensors, config| {
        for (module, inputs, size) in [("up", 96, 32), ("down", 128, 64), ("out", 64, 64)] {
            let order = numbers(&[inputs as usize], (0..inputs).map(|input| input / size));
            tensors.insert(format!("{module}.g_idx"), order);
        }
        *config = json!({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq",
            "sym": true, "dynamic": {"+:down": {"sym": false}}});
    })?;
    let expected = expected(&fixture("auto_round_8"))?;
    same_floats(dir.path(), &expected)
}

/// A checkpoint of the tensors of a folder, changed, with an entry of `config.json`.
fn changed(folder: &str, change: impl FnOnce(&mut Raw, &mut Value)) -> Result<tempfile::TempDir> {
    let folder = fixture(folder);
    let mut tensors = raw(&folder.join("model.safetensors"))?;
    let mut config = read_json(folder.join("config.json"))?;
    change(&mut tensors, &mut config["quantization_config"]);
    let dir = tempfile::tempdir()?;
    write_raw(&tensors, None, &dir.path().join("model.safetensors"))?;
    fs::write(dir.path().join("config.json"), config.to_string())?;
    Ok(dir)
}

/// The error of such a checkpoint.
fn refused(folder: &str, change: impl FnOnce(&mut Raw, &mut Value)) -> Result<Fault> {
    Ok(fault(Checkpoint::open(changed(folder, change)?.path())))
}

/// The zero points of symmetric weights show whether these are stored less 1; other weights need
/// the version stated.
#[test]
fn versions_are_told_by_zero_points() -> Result<()> {
    for (folder, said) in [("gptq", "gptq_v2"), ("gptq_v2", "gptq")] {
        let expected = expected(&fixture(folder))?;
        let dir = changed(folder, |_, config| {
            config["checkpoint_format"] = json!(said);
            config["dynamic"] = Value::Null;
        })?;
        let checkpoint = Checkpoint::open(dir.path())?;
        for name in WEIGHTS {
            let floats = checkpoint.floats(name)?;
            let halves = floats.iter().map(|own| half::f16::from_f32(*own).to_f32());
            let same = halves.eq(values(&expected[name]));
            assert_eq!(same, name != "down.weight", "{folder}: {name}");
        }
        refused(folder, |_, config| *config = Value::Null)?.has("checkpoint_format").has("down");
    }
    // A module that is said not to be symmetric has the zero points of the file, also if all are 8.
    let [first, second] = [("gptq", 0x88), ("gptq_v2", 0x99)].map(|(folder, zeros)| {
        let dir = changed(folder, |tensors, _| {
            let zero_points = tensors.get_mut("down.qzeros");
            zero_points.into_iter().for_each(|(_, _, bytes)| bytes.fill(zeros));
        })?;
        anyhow::Ok(Checkpoint::open(dir.path())?.floats("down.weight")?)
    });
    assert_eq!(first?, second?);
    // GPTQ's scales also show it.
    refused("gptq", |tensors, config| {
        tensors.retain(|name, _| !name.ends_with("g_idx"));
        *config = Value::Null;
    })?
    .has("down.g_idx");
    // The greatest zero point.
    let dir = changed("awq", |tensors, _| {
        for (name, (_, _, bytes)) in tensors {
            if name.ends_with("qzeros") {
                bytes.fill(0xff);
            }
        }
    })?;
    let checkpoint = Checkpoint::open(dir.path())?;
    assert!(checkpoint.floats("up.weight")?.iter().all(|x| *x <= 0.));
    // AWQ has a single version.
    let dir = changed("awq", |_, config| *config = Value::Null)?;
    same_floats(dir.path(), &expected(&fixture("awq"))?)
}

fn numbers(shape: &[usize], numbers: impl IntoIterator<Item = i32>) -> Entry {
    let bytes = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
    (I32, shape.to_vec(), bytes)
}

/// Inputs in another order (`desc_act`) reach layers as floats, and stay so in a saved folder.
#[test]
fn inputs_in_another_order_are_dequantized() -> Result<()> {
    let group = |input: i32| (input * 7 % 96) / 32;
    let dir = changed("gptq", |tensors, _| {
        let order = numbers(&[96], (0..96).map(group));
        tensors.insert("up.g_idx".into(), order);
    })?;
    // The codes and scales in the file.
    let tensors = raw(&dir.path().join("model.safetensors"))?;
    let (words, scales) = (&tensors["up.qweight"].2, &tensors["up.scales"].2);
    let value = |n: usize, k: usize| {
        let word = words.as_chunks::<4>().0[k / 8 * 128 + n];
        let code = u32::from_le_bytes(word) >> (4 * (k % 8)) & 15;
        let scale = scales.as_chunks::<2>().0[group(k as i32) as usize * 128 + n];
        (code as f32 - 8.) * half::f16::from_le_bytes(scale).to_f32()
    };
    let expected: Vec<_> = (0..128 * 96).map(|i| value(i / 96, i % 96)).collect();
    let checkpoint = Checkpoint::open(dir.path())?;
    assert_eq!(checkpoint.floats("up.weight")?, expected);
    let model = Mlp::open(dir.path(), SIZES)?;
    assert_eq!(groups(&model)[0], None);
    assert_eq!(groups(&model)[2], Some((None, GroupScheme::Symmetric)));
    assert_eq!(values(model.0[0].weight()), expected);
    let saved = dir.path().join("saved");
    checkpoint::save(&model, &checkpoint, &saved)?;
    assert!(raw(&saved.join("model.safetensors"))?.contains_key("up.weight_g_idx"));
    assert_eq!(Checkpoint::open(&saved)?.floats("up.weight")?, expected);
    // The input order goes with its codes.
    let (mut model, int8) = (model, dir.path().join("int8"));
    save_quantized(&mut model, &all_int8(), &checkpoint, &int8)?;
    assert!(!raw(&int8.join("model.safetensors"))?.contains_key("up.weight_g_idx"));
    assert!(is_quantized(&Mlp::open(&int8, SIZES)?.0[0]));
    let float = dir.path().join("float");
    checkpoint::dequantize(&checkpoint, &float, |_| {})?;
    let float = raw(&float.join("model.safetensors"))?;
    assert!(!float.contains_key("up.weight_g_idx"));
    Ok(())
}

#[test]
fn files_that_lie_are_errors_that_name_their_tensors() -> Result<()> {
    type Case<'a> = (&'a str, Option<Entry>, &'a str);
    let halves = |shape: &[usize]| zeros(F16, shape);
    let zeros = |shape: &[usize]| zeros(I32, shape);
    let order = |change: fn(i32) -> i32| Some(numbers(&[96], (0..96).map(change)));
    let large = Some(numbers(&[2, 8], vec![-1; 16]));
    let groups = "[groups, out_features]";
    let cases: Vec<Case<'_>> = vec![
        ("gptq/up.g_idx", None, "no such tensor"),
        ("gptq/up.g_idx", order(|i| i / 32 - 1), "got -1 at index 0"),
        ("gptq/up.g_idx", order(|i| i / 24), "numbers of 3 groups"),
        ("gptq/up.g_idx", Some(numbers(&[95], 0..95)), "I32 [96]"),
        ("gptq/up.g_idx", Some(zeros(&[8, 12])), "I32 [96]"),
        ("gptq/up.g_idx", Some(halves(&[96])), "I32 [96]"),
        ("gptq/up.qzeros", None, "no such tensor"),
        ("gptq/up.qzeros", Some(zeros(&[3, 12])), "I32 [3, 16]"),
        ("gptq/down.qzeros", large, "got 16 at index 0"),
        ("gptq/up.qweight", Some(zeros(&[24, 128])), "I32 [192]"),
        ("gptq/up.qweight", Some(halves(&[12, 128])), "I32 [12, 128]"),
        ("gptq/up.scales", None, "up.scales"),
        ("gptq/up.scales", Some(halves(&[3])), groups),
        ("gptq/up.scales", Some(halves(&[0, 128])), groups),
        ("gptq/up.scales", Some(zeros(&[3, 128])), "a float dtype"),
        ("gptq/up.scales", Some(halves(&[3, 127])), "I32 [12, 127]"),
        ("awq/up.qzeros", None, "no such tensor"),
        ("awq/up.qzeros", Some(zeros(&[3, 32])), "I32 [3, 16]"),
        ("awq/up.qweight", Some(zeros(&[96, 32])), "I32 [96, 16]"),
        ("awq/up.qweight", Some(zeros(&[])), "I32 [0, 16]"),
        ("awq/up.qweight", Some(zeros(&[97, 16])), "of 97 inputs"),
        ("awq/up.qweight", Some(zeros(&[0, 16])), "of 0 inputs"),
        ("awq/up.scales", Some(halves(&[3, 128, 1])), groups),
        ("auto_round/up.scales", Some(halves(&[2, 128])), "I32 [2, 16]"),
    ];
    for (name, to, expected) in cases {
        let (folder, name) = name.split_once('/').expect("a folder");
        let (module, _) = name.split_once('.').expect("a module");
        refused(folder, |tensors, _| replace(tensors, name, to))?.has(expected).has(module);
    }
    let configs = r#"
gptq | {"bits": 3} | bits of GPTQ: expected 4 or 8, got 3
gptq | {"bits": 4, "checkpoint_format": 2} | expected a text, got 2
gptq | {"bits": 4, "checkpoint_format": ["gptq_v2"]} | expected a text
gptq | {"bits": 4, "sym": "false"} | sym of GPTQ: expected true or false
gptq | {"bits": 4, "sym": 0} | sym of GPTQ: expected true or false
awq | {"bits": 4, "version": 1} | expected a text, got 1
gptq | {"bits": 8, "dynamic": null} | codes of 8 bits
awq | {"bits": 8} | bits of AWQ: expected 4, got 8
awq | {"w_bit": 8, "bits": null} | got 8
gptq | {"bits": "4"} | got "4"
gptq | {"checkpoint_format": "marlin"} | marlin
gptq | {"is_marlin_format": true} | is_marlin_format
gptq | {"pack_dtype": "int64"} | pack_dtype
gptq | {"rotation": "hadamard"} | rotation
gptq | {"adapter": {"path": "a"}} | adapter
gptq | {"colour": {"a": [1]}} | colour
gptq | {"act_bits": 8} | act_bits
awq | {"version": "gemv"} | gemv
awq | {"version": null, "format": "gemv_fast"} | gemv_fast
awq | {"backend": "llm-awq"} | llm-awq
auto_round | {"group_size": 48, "extra_config": null} | groups of 48 of 128 inputs
gptq | {"quant_method": "auto-round", "packing_format": "auto_round:fp8_static"} | fp8_static
gptq | {"quant_method": "gptqx"} | awq, bitsandbytes, gptq
"#;
    for [folder, keys, expected] in rows(configs) {
        let changes: serde_json::Map<_, _> = serde_json::from_str(keys)?;
        refused(folder, |_, config| {
            changes.into_iter().for_each(|(key, value)| config[key] = value);
        })?
        .has(expected);
    }
    // The scales of an activation, which AutoAWQ stores in a separate module.
    refused("awq", |tensors, _| {
        tensors.insert("act.scales".into(), halves(&[96]));
    })?
    .has("act.scales");
    // Scales are read with a weight.
    let dir = changed("gptq", |tensors, _| {
        let mut nan = halves(&[3, 128]);
        nan.2[1] = 0x7e;
        tensors.insert("up.scales".into(), nan);
    })?;
    fault(Checkpoint::open(dir.path())?.floats("up.weight")).has("up.weight_scale").has("NaN");
    // A weight of that name is there already.
    refused("gptq", |tensors, _| {
        tensors.insert("up.weight".into(), halves(&[128, 96]));
    })?
    .has("up.weight");
    Ok(())
}
