//! Weights in groups: a folder that compressed-tensors wrote, see
//! assets/reference/pack_quantized.py, and files that lie.

use safetensors::Dtype::{F16, F32, I8, I32, I64};
use safetensors::SafeTensors;

use super::fixtures::{
    Entry, Mlp, Sizes, difference, expected, fixture, groups_of, raw, replace, write_raw, zeros,
};
use crate::kit::*;

const FOLDER: &str = "pack_quantized";
const SIZES: Sizes = &[
    ("up", 96, 128, true),
    ("down", 128, 37, false),
    ("out", 37, 10, true),
    ("head", 10, 3, true),
];

#[test]
fn packed_linears_are_built_from_their_codes() -> Result<()> {
    let folder = fixture(FOLDER);
    let (expected, vb, model) = (expected(&folder)?, open(&folder)?, Mlp::open(&folder, SIZES)?);
    let symmetric = GroupScheme::Symmetric;
    let groups = [(Some(32), symmetric), (Some(64), GroupScheme::Affine), (None, symmetric)];
    for ((name, k, n, _), (layer, own)) in SIZES.iter().zip(model.0.iter().zip(groups)) {
        let groups = groups_of(layer).map(|groups| (groups.group_size, groups.scheme));
        assert_eq!(groups, Some(own), "{name}");
        // Layers round the scales, which are f32 here, to float16; other readers get them
        // unchanged.
        let weight = &expected[&format!("{name}.weight")];
        let error = difference(layer.weight(), weight)?;
        assert!(error < 2f32.powi(-11), "{name}: {error}");
        let float = candle_nn::linear_no_bias(*k, *n, vb.pp(name))?;
        assert_eq!(difference(float.weight(), weight)?, 0., "{name}");
    }
    assert!(!is_quantized(&model.0[3]));
    let error = difference(&model.forward(&expected["input"])?, &expected["output"])?;
    assert!(error < 0.01, "{error}");
    Ok(())
}

#[derive(Quantizable)]
struct Tied {
    table: nn::Embedding,
    head: nn::Linear,
}

impl Tied {
    fn load(vb: &VarBuilder<'_>) -> Result<Self> {
        let table = nn::embedding(70, 64, vb.pp("table"))?;
        let head = nn::Linear::tied(&table, None);
        Ok(Self { table, head })
    }

    fn bits(&self) -> Result<Vec<Vec<f32>>> {
        let xs = self.table.forward(&Tensor::new(&[3u32, 69], &Device::Cpu)?)?;
        Ok(self.head.forward(&xs)?.to_vec2()?)
    }
}

#[test]
fn a_tied_head_keeps_its_activations_per_row() -> Result<()> {
    let source = Source::random([("table.weight", &[70, 64])])?;
    let [per_group, per_row] = [false, true].map(|per_row| -> Result<_> {
        let mut groups = GroupConfig::INT4;
        groups.per_row = per_row;
        let mut model = Tied::load(&source.vb)?;
        source.quantize(&mut model, &QConfigSpec::all_kinds(QConfig::Groups(groups)))?;
        let bits = model.bits()?;
        assert_eq!(Tied::load(&source.saved_vb()?)?.bits()?, bits, "{per_row}");
        Ok(bits)
    });
    assert_ne!(per_group?, per_row?);
    Ok(())
}

#[test]
fn activations_are_per_row_where_the_folder_says_per_token() -> Result<()> {
    let (dir, folder) = (tempfile::tempdir()?, fixture(FOLDER));
    fs::copy(folder.join("model.safetensors"), dir.path().join("model.safetensors"))?;
    let mut config = read_json(folder.join("config.json"))?;
    let groups = config["quantization_config"]["config_groups"].as_object_mut();
    for group in groups.into_iter().flat_map(|groups| groups.values_mut()) {
        group["input_activations"] = json!({
            "num_bits": 8, "type": "int", "symmetric": true, "dynamic": true, "strategy": "token",
        });
    }
    fs::write(dir.path().join("config.json"), config.to_string())?;
    for (folder, expected) in [(&*folder, false), (dir.path(), true)] {
        let up = nn::linear(96, 128, open(folder)?.pp("up"))?;
        assert_eq!(groups_of(&up).map(|groups| groups.per_row), Some(expected));
    }
    Ok(())
}

#[test]
fn packed_tensors_that_lie_are_errors_that_name_them() -> Result<()> {
    let sizes = |sizes: [i64; 2]| sizes.map(i64::to_le_bytes).concat();
    type Change<'a> = (&'a str, Option<Entry>, &'a str);
    let mut nan = zeros(F32, &[128, 3]);
    nan.2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let shape = |own| Some((I64, vec![2], sizes(own)));
    let some = |dtype, shape: &[usize]| Some(zeros(dtype, shape));
    let changes: [Change<'_>; 13] = [
        ("up.weight_shape", some(F32, &[2]), "I64 [2]"),
        ("up.weight_shape", None, "the shape of a packed weight"),
        ("up.weight_shape", shape([128, 97]), "[128, 13]"),
        ("up.weight_shape", shape([-1, 96]), "in_features"),
        ("up.weight_shape", shape([i64::MAX; 2]), "out_features"),
        ("up.weight_shape", some(I32, &[3]), "I64 [2]"),
        ("up.weight_packed", some(I32, &[128, 18]), "I32 [128, 12]"),
        ("up.weight_packed", some(I64, &[128, 12]), "I32 [128, 12]"),
        ("up.weight_scale", None, "up.weight_scale"),
        ("up.weight_scale", some(F32, &[128, 5]), "equally many"),
        ("up.weight_scale", some(I8, &[128, 3]), "a float dtype"),
        ("up.weight_scale", Some(nan), "NaN"),
        ("down.weight_zero_point", some(I32, &[37, 2]), "I32 [5, 2]"),
    ];
    let (_dir, [path]) = paths(["a.safetensors"]);
    let whole = raw(&fixture(FOLDER).join("model.safetensors"))?;
    for (name, to, expected) in changes {
        let mut tensors = whole.clone();
        replace(&mut tensors, name, to);
        write_raw(&tensors, None, &path)?;
        let read = || {
            let checkpoint = Checkpoint::open(&path)?;
            for tensor in checkpoint.tensors().filter(|tensor| tensor.quantized) {
                checkpoint.floats(&tensor.name)?;
            }
            Ok::<_, candle_dynquant::Error>(())
        };
        fault(read()).has(expected);
    }
    let order = |numbers: [i32; 96]| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        (I32, vec![96], bytes.collect::<Vec<u8>>())
    };
    for (order, expected) in [
        (zeros(I32, &[95]), "I32 [96]"),
        (zeros(I64, &[96]), "I32 [96]"),
        (order([3; 96]), "got 3 at index 0"),
        (order([-1; 96]), "got -1 at index 0"),
    ] {
        let mut tensors = whole.clone();
        tensors.insert("up.weight_g_idx".into(), order);
        write_raw(&tensors, None, &path)?;
        fault(Checkpoint::open(&path)).has("up.weight_g_idx").has(expected);
    }
    Ok(())
}

/// Groups whose size is not a multiple of 32 reach layers as floats.
#[test]
fn groups_of_other_sizes_are_dequantized() -> Result<()> {
    let (_dir, [path]) = paths(["a.safetensors"]);
    let scales: Vec<_> = [1f32, 2., 4., 8.].iter().flat_map(|x| x.to_le_bytes()).collect();
    let codes = 0x7654_3210u32.to_le_bytes().repeat(8);
    let tensors = HashMap::from([
        ("a.weight_packed".to_owned(), (I32, vec![2, 4], codes)),
        ("a.weight_scale".to_owned(), (F32, vec![2, 2], scales)),
        ("a.weight_shape".to_owned(), (I64, vec![2], [2i64, 32].map(i64::to_le_bytes).concat())),
    ]);
    write_raw(&tensors, None, &path)?;
    let linear = nn::linear_no_bias(32, 2, open(&path)?.pp("a"))?;
    assert!(!is_quantized(&linear));
    let values = linear.weight().to_vec2::<f32>()?;
    assert_eq!((values[0][1], values[0][17], values[1][31]), (-7., -14., -8.));
    Ok(())
}

/// A row of up to 4 inputs is one number of 4 bits as of 8: the configuration tells which.
#[test]
fn bits_of_short_rows_are_told_by_the_configuration() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let shape = [1i64, 4].map(i64::to_le_bytes).concat();
    let tensors = HashMap::from([
        ("a.weight_packed".into(), (I32, vec![1, 1], vec![0, 129, 255, 7])),
        ("a.weight_scale".into(), (F32, vec![1, 1], 1f32.to_le_bytes().to_vec())),
        ("a.weight_shape".into(), (I64, vec![2], shape)),
    ]);
    write_raw(&tensors, None, &dir.path().join("model.safetensors"))?;
    for (bits, expected) in [(8, [-128., 1., 127., -121.]), (4, [-8., -8., -7., 0.])] {
        let group = format!(r#"{{"targets": ["Linear"], "weights": {{"num_bits": {bits}}}}}"#);
        let config = format!(r#"{{"quantization_config": {{"config_groups": {{"a": {group}}}}}}}"#);
        fs::write(dir.path().join("config.json"), config)?;
        assert_eq!(Checkpoint::open(dir.path())?.floats("a.weight")?, expected, "{bits}");
    }
    Ok(())
}

/// The factor of a channel matches its stored scales, whatever their magnitudes, and lets no sum
/// overflow that is finite in float.
#[test]
fn small_and_large_weights_stay_as_they_are() -> Result<()> {
    let mut affine = GroupConfig::INT4;
    affine.scheme = GroupScheme::Affine;
    let load =
        |vb: &VarBuilder<'_>| nn::linear_no_bias(70, 40, vb.pp("a")).map(|layer| vec![layer]);
    let powers = [-40, -38, -37, -20, -9, -5, -3, -2, 0, 3, 4, 5, 9, 36];
    let all = [GroupConfig::INT4, affine, GroupConfig::INT8];
    let cases = powers.iter().flat_map(|power| all.map(|groups| (*power, groups)));
    for (power, groups, is_plain) in cases.flat_map(|(p, g)| [(p, g, true), (p, g, false)]) {
        // Groups of one channel differ too.
        let small = |i: usize| [1., 1e-2, 1e-5, 0.][(i / 70 + i % 70 / 32) % 4];
        let weight = values(&random(&[40, 70]).clamp(-3f32, 3.)?).into_iter().enumerate();
        let weight = weight.map(|(i, x)| {
            let factor = if is_plain { 1. } else { small(i) };
            x * 3. * 10f32.powi(power) * factor
        });
        let weight = Tensor::from_vec(weight.collect(), (40, 70), &Device::Cpu)?;
        let source = Source::of([("a.weight", weight)])?;
        let case = format!("{groups} 1e{power} {is_plain}");
        let spec = QConfigSpec::all_kinds(QConfig::Groups(groups));
        let before = load(&source.vb)?;
        let mut linear = before.clone();
        source.quantize(&mut linear, &spec)?;
        let error = linear[0].projection().weight_error(before[0].projection())?;
        assert!(!is_plain || power < -36 || error.sqnr_db() > 18., "{case}: {error:?}");
        let converted = source.beside("converted");
        convert(&source.checkpoint, &spec, &converted)?;
        assert!(fs::read(&source.out)? == fs::read(&converted)?, "{case}");
        let is_f16 = raw(&source.out)?["a.weight_scale"].0 == F16;
        assert!(is_f16 || !is_plain || !(-2..=3).contains(&power), "{case}");
        let again = load(&source.saved_vb()?)?;
        for of_xs in [-36, -32, 0, 32, 36] {
            let xs = (random(&[3, 70]) * 10f64.powi(of_xs))?;
            let ys = |layers: &[nn::Linear]| layers[0].forward(&xs);
            let own = ys(&linear)?;
            assert_eq!(bits(&own), bits(&ys(&again)?), "{case} 1e{of_xs}");
            let is_finite = |ys: &Tensor| values(ys).iter().all(|y| y.abs() < 1e37);
            let is_lost = is_finite(&ys(&before)?) && !is_finite(&own);
            assert!(!is_lost, "{case} 1e{of_xs}: {own:?}");
        }
    }
    Ok(())
}

#[test]
fn bytes_are_those_of_the_file() -> Result<()> {
    let source = Source::random([("a.weight", &[37, 200])])?;
    let linear = nn::linear_no_bias(200, 37, source.vb.pp("a"))?;
    for (group_size, scheme) in [
        (Some(32), GroupScheme::Symmetric),
        (Some(64), GroupScheme::Affine),
        (None, GroupScheme::Affine),
    ] {
        for mut groups in [GroupConfig::INT4, GroupConfig::INT8] {
            (groups.group_size, groups.scheme) = (group_size, scheme);
            let spec = QConfigSpec::all_kinds(QConfig::Groups(groups));
            let saved = source.quantize(&mut vec![linear.clone()], &spec);
            if groups.dtype == IntType::Int8 && scheme != GroupScheme::Symmetric {
                fault(saved).has("symmetric groups of int8");
                continue;
            }
            saved?;
            let tensors = raw(&source.out)?;
            let bytes = tensors.iter().filter(|(name, _)| !name.ends_with("_shape"));
            let bytes: usize = bytes.map(|(_, (_, _, bytes))| bytes.len()).sum();
            assert_eq!(bytes, groups.bytes([37, 200]), "{groups}");
        }
    }
    Ok(())
}

/// A file written here records what its tensors are.
#[test]
fn groups_that_are_not_those_of_the_record_are_refused() -> Result<()> {
    let source = Source::random([("a.weight", &[8, 64])])?;
    let mut model = vec![nn::linear_no_bias(64, 8, source.vb.pp("a"))?];
    let spec = QConfigSpec::all_kinds(QConfig::Groups(GroupConfig::INT8));
    source.quantize(&mut model, &spec)?;
    let (whole, bytes) = (raw(&source.out)?, fs::read(&source.out)?);
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    for (name, to, expected) in [
        ("a.weight_scale", None, "a.weight_scale"),
        ("a.weight_scale", Some(zeros(F32, &[8, 3])), "a.weight_scale"),
        ("a.weight_scale", Some(zeros(I32, &[8, 2])), "a float dtype"),
        ("a.weight_g_idx", Some(zeros(I32, &[64])), "a.weight_g_idx"),
    ] {
        let mut tensors = whole.clone();
        replace(&mut tensors, name, to);
        write_raw(&tensors, metadata.metadata().clone(), &source.out)?;
        fault(source.saved()).has(expected);
    }
    Ok(())
}

/// Experts in one tensor are packed one by one, beside it: packed weights are matrices.
#[test]
fn experts_in_one_tensor_keep_their_bits() -> Result<()> {
    let source = Source::random([("experts", &[3, 64, 96])])?;
    let load = |vb: &VarBuilder<'_>| -> Result<Vec<nn::Linear>> {
        let experts = vb.get((3, 64, 96), "experts")?;
        (0..3).map(|i| Ok(nn::Linear::new(experts.get(i)?, None))).collect()
    };
    let xs = random(&[2, 96]);
    for spec in [QConfigSpec::int4(), QConfigSpec::int8_groups()] {
        let mut model = load(&source.vb)?;
        source.quantize(&mut model, &spec)?;
        for (a, b) in model.iter().zip(&load(&source.saved_vb()?)?) {
            assert!(is_quantized(b));
            assert_eq!(values(&a.forward(&xs)?), values(&b.forward(&xs)?));
        }
    }
    let names = ["experts"];
    fault(source.convert(&QConfigSpec::int4(), &names))
        .has("8 bits, for a tensor of several layers");
    source.convert(&QConfigSpec::int8_groups(), &names)?;
    assert!(load(&source.saved_vb()?)?.iter().all(is_quantized));
    Ok(())
}
