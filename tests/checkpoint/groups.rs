//! Weights in groups: a folder that compressed-tensors wrote, see
//! assets/reference/pack_quantized.py, and files that lie.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::checkpoint::Plan;
use candle_dynquant::{
    Checkpoint, GroupConfig, GroupScheme, QConfig, QConfigSpec, QWeight, checkpoint, nn,
    quantize_dynamic,
};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference/pack_quantized")
}

/// The greatest difference relative to the greatest element.
pub fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let max = |tensor: &Tensor| tensor.abs()?.max_all()?.to_scalar::<f32>();
    Ok(max(&(a - b)?)? / max(b)?)
}

#[test]
fn packed_linears_are_built_from_their_codes() -> Result<()> {
    let expected = folder().join("expected.safetensors");
    let expected = candle_core::safetensors::load(expected, &Device::Cpu)?;
    let checkpoint = Checkpoint::open(folder())?;
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let up = nn::linear(96, 128, vb.pp("up"))?;
    let down = nn::linear_no_bias(128, 37, vb.pp("down"))?;
    let out = nn::linear(37, 10, vb.pp("out"))?;
    let head = nn::linear(10, 3, vb.pp("head"))?;
    let symmetric = GroupScheme::Symmetric;
    for (name, layer, size, scheme) in [
        ("up", &up, Some(32), symmetric),
        ("down", &down, Some(64), GroupScheme::Affine),
        ("out", &out, None, symmetric),
    ] {
        let groups = layer.projection().qweight().and_then(QWeight::groups);
        let groups = groups.map(|groups| (groups.group_size, groups.scheme));
        assert_eq!(groups, Some((size, scheme)), "{name}");
        // Layers round the scales, which are f32 here, to float16; other readers get them
        // unchanged.
        let weight = &expected[&format!("{name}.weight")];
        let error = difference(layer.weight(), weight)?;
        assert!(error < 2f32.powi(-11), "{name}: {error}");
        let float = candle_nn::linear_no_bias(weight.dim(1)?, weight.dim(0)?, vb.pp(name))?;
        assert_eq!(difference(float.weight(), weight)?, 0., "{name}");
    }
    assert!(head.projection().qweight().is_none());
    let ys = up.forward(&expected["input"])?.relu()?;
    let ys = head.forward(&out.forward(&down.forward(&ys)?)?)?;
    let error = difference(&ys, &expected["output"])?;
    assert!(error < 0.01, "{error}");
    Ok(())
}

#[derive(candle_dynquant::Quantizable)]
struct Tied {
    table: nn::Embedding,
    head: nn::Linear,
}

impl Tied {
    fn open(path: &Path) -> Result<Self> {
        let vb = Checkpoint::open(path)?.var_builder(DType::F32, &Device::Cpu);
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
    let dir = tempfile::tempdir()?;
    let (float, out) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let table = Tensor::randn(0f32, 1., (70, 64), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("table.weight", table)]), &float)?;
    let bits = [false, true].map(|per_row| -> Result<_> {
        let mut groups = GroupConfig::INT4;
        groups.per_row = per_row;
        let mut model = Tied::open(&float)?;
        let spec = QConfigSpec::all_kinds(QConfig::Groups(groups));
        quantize_dynamic(&mut model, &spec)?;
        checkpoint::save(&model, &Checkpoint::open(&float)?, &out)?;
        let bits = model.bits()?;
        assert_eq!(Tied::open(&out)?.bits()?, bits, "{per_row}");
        Ok(bits)
    });
    let [per_group, per_row] = bits;
    assert_ne!(per_group?, per_row?);
    Ok(())
}

#[test]
fn activations_are_per_row_where_the_folder_says_per_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::copy(folder().join("model.safetensors"), dir.path().join("model.safetensors"))?;
    let config = fs::read(folder().join("config.json"))?;
    let mut config: serde_json::Value = serde_json::from_slice(&config)?;
    let groups = config["quantization_config"]["config_groups"].as_object_mut();
    for group in groups.into_iter().flat_map(|groups| groups.values_mut()) {
        group["input_activations"] = serde_json::json!({
            "num_bits": 8, "type": "int", "symmetric": true, "dynamic": true, "strategy": "token",
        });
    }
    fs::write(dir.path().join("config.json"), config.to_string())?;
    for (folder, expected) in [(folder(), false), (dir.path().to_owned(), true)] {
        let vb = Checkpoint::open(folder)?.var_builder(DType::F32, &Device::Cpu);
        let up = nn::linear(96, 128, vb.pp("up"))?;
        let groups = up.projection().qweight().and_then(QWeight::groups);
        assert_eq!(groups.map(|groups| groups.per_row), Some(expected));
    }
    Ok(())
}

/// The tensors of a file, by name: dtype, shape, bytes.
pub type Raw = HashMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>;

pub fn write(tensors: &Raw, metadata: Option<HashMap<String, String>>, path: &Path) -> Result<()> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    Ok(safetensors::serialize_to_file(views, metadata, path)?)
}

pub fn raw(path: &Path) -> Result<Raw> {
    let bytes = fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let tensors = file.iter().map(|(name, view)| {
        let entry = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        (name.to_owned(), entry)
    });
    Ok(tensors.collect())
}

#[test]
fn packed_tensors_that_lie_are_errors_that_name_them() -> Result<()> {
    use safetensors::Dtype::{F32, I8, I32, I64};
    let sizes = |sizes: [i64; 2]| sizes.map(i64::to_le_bytes).concat();
    let zeros = |dtype: safetensors::Dtype, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (dtype, shape.to_vec(), vec![0; bytes])
    };
    type Change<'a> = (&'a str, Option<(safetensors::Dtype, Vec<usize>, Vec<u8>)>, &'a str);
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
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.safetensors");
    let whole = raw(&folder().join("model.safetensors"))?;
    for (name, to, expected) in changes {
        let mut tensors = whole.clone();
        match to {
            Some(to) => tensors.insert(name.into(), to),
            None => tensors.remove(name),
        };
        write(&tensors, None, &path)?;
        let read = || {
            let checkpoint = Checkpoint::open(&path)?;
            for tensor in checkpoint.tensors().filter(|tensor| tensor.quantized) {
                checkpoint.floats(&tensor.name)?;
            }
            Ok::<_, candle_dynquant::Error>(())
        };
        let error = read().expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
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
        write(&tensors, None, &path)?;
        let error = Checkpoint::open(&path).expect_err("a lie").to_string();
        let names = error.contains("up.weight_g_idx") && error.contains(expected);
        assert!(names, "{error}");
    }
    Ok(())
}

/// Groups whose size is not a multiple of 32 reach layers as floats.
#[test]
fn groups_of_other_sizes_are_dequantized() -> Result<()> {
    use safetensors::Dtype::{F32, I32, I64};
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.safetensors");
    let scales: Vec<_> = [1f32, 2., 4., 8.].iter().flat_map(|x| x.to_le_bytes()).collect();
    let codes = 0x7654_3210u32.to_le_bytes().repeat(8);
    let tensors = HashMap::from([
        ("a.weight_packed".to_owned(), (I32, vec![2, 4], codes)),
        ("a.weight_scale".to_owned(), (F32, vec![2, 2], scales)),
        ("a.weight_shape".to_owned(), (I64, vec![2], [2i64, 32].map(i64::to_le_bytes).concat())),
    ]);
    write(&tensors, None, &path)?;
    let checkpoint = Checkpoint::open(&path)?;
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let linear = nn::linear_no_bias(32, 2, vb.pp("a"))?;
    assert!(linear.projection().qweight().is_none());
    let values = linear.weight().to_vec2::<f32>()?;
    assert_eq!((values[0][1], values[0][17], values[1][31]), (-7., -14., -8.));
    Ok(())
}

/// A row of up to 4 inputs is one number of 4 bits as of 8: the configuration tells which.
#[test]
fn bits_of_short_rows_are_told_by_the_configuration() -> Result<()> {
    use safetensors::Dtype::{F32, I32, I64};
    let dir = tempfile::tempdir()?;
    let shape = [1i64, 4].map(i64::to_le_bytes).concat();
    let tensors = HashMap::from([
        ("a.weight_packed".into(), (I32, vec![1, 1], vec![0, 129, 255, 7])),
        ("a.weight_scale".into(), (F32, vec![1, 1], 1f32.to_le_bytes().to_vec())),
        ("a.weight_shape".into(), (I64, vec![2], shape)),
    ]);
    write(&tensors, None, &dir.path().join("model.safetensors"))?;
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
    let dir = tempfile::tempdir()?;
    let [float, out, converted] = ["a", "b", "c"].map(|name| dir.path().join(name));
    let mut affine = GroupConfig::INT4;
    affine.scheme = GroupScheme::Affine;
    let load = |source: &Checkpoint| {
        let vb = source.var_builder(DType::F32, &Device::Cpu);
        nn::linear_no_bias(70, 40, vb.pp("a")).map(|layer| vec![layer])
    };
    let ys = |layers: &[nn::Linear], xs: &Tensor| -> Result<Vec<f32>> {
        Ok(layers[0].forward(xs)?.flatten_all()?.to_vec1()?)
    };
    let powers = [-40, -38, -37, -20, -9, -5, -3, -2, 0, 3, 4, 5, 9, 36];
    let all = [GroupConfig::INT4, affine, GroupConfig::INT8];
    let cases = powers.iter().flat_map(|power| all.map(|groups| (*power, groups)));
    for (power, groups, is_plain) in cases.flat_map(|(p, g)| [(p, g, true), (p, g, false)]) {
        // Groups of one channel differ too.
        let small = |i: usize| [1., 1e-2, 1e-5, 0.][(i / 70 + i % 70 / 32) % 4];
        let weight = Tensor::randn(0f32, 1., (40, 70), &Device::Cpu)?.clamp(-3f32, 3.)?;
        let weight = weight.flatten_all()?.to_vec1::<f32>()?.into_iter().enumerate();
        let weight = weight.map(|(i, x)| {
            let factor = if is_plain { 1. } else { small(i) };
            x * 3. * 10f32.powi(power) * factor
        });
        let weight = Tensor::from_vec(weight.collect(), (40, 70), &Device::Cpu)?;
        candle_core::safetensors::save(&HashMap::from([("a.weight", weight)]), &float)?;
        let case = format!("{groups} 1e{power} {is_plain}");
        let spec = QConfigSpec::all_kinds(QConfig::Groups(groups));
        let source = Checkpoint::open(&float)?;
        let before = load(&source)?;
        let mut linear = before.clone();
        quantize_dynamic(&mut linear, &spec)?;
        let error = linear[0].projection().weight_error(before[0].projection())?;
        assert!(!is_plain || power < -36 || error.sqnr_db() > 18., "{case}: {error:?}");
        checkpoint::save(&linear, &source, &out)?;
        let plan = Plan::new(&source, &spec, &[], &[])?;
        checkpoint::quantize(&source, &plan, &converted, |_| ())?;
        assert!(fs::read(&out)? == fs::read(&converted)?, "{case}");
        let is_f16 = raw(&out)?["a.weight_scale"].0 == safetensors::Dtype::F16;
        assert!(is_f16 || !is_plain || !(-2..=3).contains(&power), "{case}");
        let again = load(&Checkpoint::open(&out)?)?;
        for of_xs in [-36, -32, 0, 32, 36] {
            let xs = (Tensor::randn(0f32, 1., (3, 70), &Device::Cpu)? * 10f64.powi(of_xs))?;
            let (own, loaded) = (ys(&linear, &xs)?, ys(&again, &xs)?);
            let bits = |ys: &[f32]| ys.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&own), bits(&loaded), "{case} 1e{of_xs}");
            let is_finite = |ys: &[f32]| ys.iter().all(|y| y.abs() < 1e37);
            let is_lost = is_finite(&ys(&before, &xs)?) && !is_finite(&own);
            assert!(!is_lost, "{case} 1e{of_xs}: {own:?}");
        }
    }
    Ok(())
}

#[test]
fn bytes_are_those_of_the_file() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (float, out) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let weight = Tensor::randn(0f32, 1., (37, 200), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("a.weight", weight)]), &float)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let linear = nn::linear_no_bias(200, 37, vb.pp("a"))?;
    for (group_size, scheme) in [
        (Some(32), GroupScheme::Symmetric),
        (Some(64), GroupScheme::Affine),
        (None, GroupScheme::Affine),
    ] {
        for mut groups in [GroupConfig::INT4, GroupConfig::INT8] {
            (groups.group_size, groups.scheme) = (group_size, scheme);
            let mut model = vec![linear.clone()];
            let qconfig = QConfig::Groups(groups);
            let spec = candle_dynquant::QConfigSpec::all_kinds(qconfig);
            let report = quantize_dynamic(&mut model, &spec);
            if groups.dtype == candle_dynquant::IntType::Int8 && scheme != GroupScheme::Symmetric {
                let error = report.expect_err("no such format").to_string();
                assert!(error.contains("symmetric groups of int8"), "{error}");
                continue;
            }
            report?;
            checkpoint::save(&model, &source, &out)?;
            let tensors = raw(&out)?;
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
    use safetensors::Dtype::{F32, I32};
    let dir = tempfile::tempdir()?;
    let [float, out] = ["a.safetensors", "b.safetensors"].map(|name| dir.path().join(name));
    let weight = Tensor::randn(0f32, 1., (8, 64), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("a.weight", weight)]), &float)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut model = vec![nn::linear_no_bias(64, 8, vb.pp("a"))?];
    let spec = candle_dynquant::QConfigSpec::all_kinds(QConfig::Groups(GroupConfig::INT8));
    quantize_dynamic(&mut model, &spec)?;
    checkpoint::save(&model, &source, &out)?;
    let whole = raw(&out)?;
    let bytes = fs::read(&out)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    let metadata = metadata.metadata().clone();
    let zeros = |dtype, shape: &[usize]| {
        (dtype, shape.to_vec(), vec![0; 4 * shape.iter().product::<usize>()])
    };
    for (name, to, expected) in [
        ("a.weight_scale", None, "a.weight_scale"),
        ("a.weight_scale", Some(zeros(F32, &[8, 3])), "a.weight_scale"),
        ("a.weight_scale", Some(zeros(I32, &[8, 2])), "a float dtype"),
        ("a.weight_g_idx", Some(zeros(I32, &[64])), "a.weight_g_idx"),
    ] {
        let mut tensors = whole.clone();
        match to {
            Some(to) => tensors.insert(name.into(), to),
            None => tensors.remove(name),
        };
        write(&tensors, metadata.clone(), &out)?;
        let error = Checkpoint::open(&out).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    Ok(())
}

/// Experts in one tensor are packed one by one, beside it: packed weights are matrices.
#[test]
fn experts_in_one_tensor_keep_their_bits() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (float, out) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let experts = Tensor::randn(0f32, 1., (3, 64, 96), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("experts", experts)]), &float)?;
    let load = |path: &Path| -> Result<(Checkpoint, Vec<nn::Linear>)> {
        let checkpoint = Checkpoint::open(path)?;
        let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
        let experts = vb.get((3, 64, 96), "experts")?;
        let experts = (0..3).map(|i| Ok(nn::Linear::new(experts.get(i)?, None)));
        let experts = experts.collect::<Result<_>>()?;
        Ok((checkpoint, experts))
    };
    let xs = Tensor::randn(0f32, 1., (2, 96), &Device::Cpu)?;
    for spec in [QConfigSpec::int4(), QConfigSpec::int8_groups()] {
        let (source, mut model) = load(&float)?;
        quantize_dynamic(&mut model, &spec)?;
        checkpoint::save(&model, &source, &out)?;
        let (_, again) = load(&out)?;
        for (a, b) in model.iter().zip(&again) {
            assert!(b.projection().qweight().is_some());
            let [a, b] = [a, b].map(|linear| linear.forward(&xs)?.to_vec2::<f32>());
            assert_eq!(a?, b?);
        }
    }
    let source = Checkpoint::open(&float)?;
    let names = ["experts".to_owned()];
    let plan = Plan::new(&source, &QConfigSpec::int4(), &names, &[])?;
    let error = checkpoint::quantize(&source, &plan, &out, |_| ()).expect_err("no matrix");
    assert!(error.to_string().contains("8 bits, for a tensor of several layers"), "{error}");
    let plan = Plan::new(&source, &QConfigSpec::int8_groups(), &names, &[])?;
    checkpoint::quantize(&source, &plan, &out, |_| ())?;
    let (_, again) = load(&out)?;
    assert!(again.iter().all(|linear| linear.projection().qweight().is_some()));
    Ok(())
}
