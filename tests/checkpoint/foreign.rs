//! A folder that compressed-tensors wrote: see assets/reference/int_quantized.py.

use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::{Checkpoint, QScheme, checkpoint, nn};
use serde_json::{Value, json};

use super::text::{f32s, tensors, written};

fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

#[test]
fn int8_linears_are_built_from_their_codes() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference/int_quantized");
    let expected = folder.join("expected.safetensors");
    let expected = candle_core::safetensors::load(expected, &Device::Cpu)?;
    let checkpoint = Checkpoint::open(&folder)?;
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let up = nn::linear(24, 40, vb.pp("up"))?;
    let down = nn::linear_no_bias(40, 10, vb.pp("down"))?;
    let head = nn::linear(10, 3, vb.pp("head"))?;
    for (name, layer) in [("up", &up), ("down", &down)] {
        assert!(layer.projection().qweight().is_some(), "{name}");
        let weight = &expected[&format!("{name}.weight")];
        assert_eq!(difference(layer.weight(), weight)?, 0., "{name}");
        let float = candle_nn::linear_no_bias(weight.dim(1)?, weight.dim(0)?, vb.pp(name))?;
        assert_eq!(difference(float.weight(), weight)?, 0., "{name}");
    }
    assert!(down.projection().qweight().is_some_and(|w| w.zero_points().iter().any(|z| *z != 0)));
    assert!(head.projection().qweight().is_none());
    let ys = head.forward(&down.forward(&up.forward(&expected["input"])?.relu()?)?)?;
    // The activations' rounding: theirs have 8 bits for both signs.
    let error = difference(&ys, &expected["output"])?;
    let most = expected["output"].abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(error < 0.02 * most, "{error} of {most}");
    Ok(())
}

#[test]
fn scales_and_zero_points_of_every_shape_are_read() -> Result<()> {
    use QScheme::{PerChannelAffine as RowsAffine, PerChannelSymmetric as Rows};
    use QScheme::{PerTensorAffine as WholeAffine, PerTensorSymmetric as Whole};
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.safetensors");
    let (two, mixed, four): (_, _, &[i8]) = ([2.; 4], [2., 2., -3., -3.], &[7, 8, 9, 1]);
    let of_four = [7., 8., 9., 1.];
    // Rows, scales, zero points, and of the first row the scales and zero points.
    type Row = [f32; 4];
    type Case<'a> = (usize, Value, &'a [i8], Option<QScheme>, Row, Row);
    let cases: [Case<'_>; 10] = [
        (2, json!([]), &[], Some(Whole), two, [0.; 4]),
        (2, json!([1]), &[], Some(Whole), two, [0.; 4]),
        (2, json!([1, 1]), &[-3], Some(WholeAffine), two, [-3.; 4]),
        (2, json!([2]), &[], Some(Rows), two, [0.; 4]),
        (2, json!([2, 1]), &[5, 6], Some(RowsAffine), two, [5.; 4]),
        // A single row is the same under either name.
        (1, json!([1, 1]), &[], Some(Rows), two, [0.; 4]),
        (1, json!([1]), &[-3], Some(RowsAffine), two, [-3.; 4]),
        // Groups of inputs become floats, some with negative scales.
        (2, json!([2, 2]), &[], None, mixed, [0.; 4]),
        (2, json!([2, 2]), four, None, mixed, [7., 7., 8., 8.]),
        (1, json!([1, 4]), four, None, [2., -3., 4., -5.], of_four),
    ];
    for (rows, shape, zeros, qscheme, scales, of_first) in cases {
        // Codes 1 to 4 in each row.
        let value = |i: usize| ((i + 1) as f32 - of_first[i]) * scales[i];
        let first: Vec<f32> = (0..4).map(value).collect();
        let case = format!("{rows} x 4, scales {shape}, zero points {zeros:?}");
        let codes: Vec<u8> = [1, 2, 3, 4].repeat(rows);
        let sizes = shape.as_array().into_iter().flatten();
        let count = sizes.map(|n| n.as_u64().unwrap_or(0)).product::<u64>();
        let is_group = u64::from(qscheme.is_none());
        let sign = |i: u64| 1. - 2. * (is_group * i % 2) as f32;
        let scales: Vec<f32> = (0..count).map(|i| sign(i) * (i + 2) as f32).collect();
        let (scales, zeros) = (f32s(&scales), zeros.iter().map(|z| z.cast_unsigned()));
        let zeros: Vec<u8> = zeros.collect();
        let mut all = vec![
            ("a.weight", "I8", json!([rows, 4]), &codes[..]),
            ("a.weight_scale", "F32", shape.clone(), &scales[..]),
        ];
        if !zeros.is_empty() {
            all.push(("a.weight_zero_point", "I8", shape, &zeros[..]));
        }
        std::fs::write(&path, tensors(&all, serde_json::Value::Null))?;
        let vb = Checkpoint::open(&path)?.var_builder(DType::F32, &Device::Cpu);
        let ours = nn::linear_no_bias(4, rows, vb.pp("a"))?;
        let got = ours.projection().qweight().and_then(|weight| weight.qscheme());
        assert_eq!(got, qscheme, "{case}");
        let candles = candle_nn::linear_no_bias(4, rows, vb.pp("a"))?;
        for weight in [ours.weight(), candles.weight()] {
            assert_eq!(weight.get(0)?.to_vec1::<f32>()?, first, "{case}");
        }
    }
    // The scale of a group is not finite.
    for scale in [f32::NAN, f32::INFINITY] {
        let scales = f32s(&[1., 1., scale, 1.]);
        let all = [
            ("a.weight", "I8", json!([2, 4]), &[1; 8][..]),
            ("a.weight_scale", "F32", json!([2, 2]), &scales[..]),
        ];
        std::fs::write(&path, tensors(&all, serde_json::Value::Null))?;
        let vb = Checkpoint::open(&path)?.var_builder(DType::F32, &Device::Cpu);
        let error = candle_nn::linear_no_bias(4, 2, vb.pp("a")).unwrap_err().to_string();
        assert!(error.contains("expected finite numbers"), "{scale}: {error}");
    }
    Ok(())
}

/// A config's activations apply to the layers that it names.
#[test]
fn activations_are_those_of_the_group_that_names_a_layer() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let scales = f32s(&[0.5; 4]);
    let mut all = Vec::new();
    let names = ["a", "b", "model.c", "d"];
    let names: Vec<[String; 2]> = names
        .iter()
        .map(|name| [format!("{name}.weight"), format!("{name}.weight_scale")])
        .collect();
    for [weight, scale] in &names {
        all.push((&**weight, "I8", json!([4, 3]), &[1u8; 12][..]));
        all.push((&**scale, "F32", json!([4, 1]), &scales[..]));
    }
    std::fs::write(dir.path().join("model.safetensors"), tensors(&all, serde_json::Value::Null))?;
    let group = |targets: Value, strategy: &str| {
        let activations =
            json!({"num_bits": 8, "type": "int", "dynamic": true, "strategy": strategy});
        json!({"targets": targets, "input_activations": activations})
    };
    let config = json!({"quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": group(json!(["b"]), "token"),
            "group_1": group(json!(["a", r"re:.*\.c"]), "tensor"),
            "group_2": group(json!(["Linear"]), "tensor"),
        },
    }});
    std::fs::write(dir.path().join("config.json"), config.to_string())?;
    let vb = Checkpoint::open(dir.path())?.var_builder(DType::F32, &Device::Cpu);
    // The first row alone shows whether rows share a scale.
    let (row, large) = ([[0.3f32, -0.7, 0.9]], [[0.3f32, -0.7, 0.9], [90., 5., -90.]]);
    let [row, both] = [Tensor::new(&row, &Device::Cpu)?, Tensor::new(&large, &Device::Cpu)?];
    for (name, per_row) in [("a", false), ("b", true), ("model.c", false), ("d", false)] {
        let layer = nn::linear_no_bias(3, 4, vb.pp(name))?;
        let alone = layer.forward(&row)?.get(0)?;
        let same = difference(&alone, &layer.forward(&both)?.get(0)?)? == 0.;
        assert_eq!(same, per_row, "{name}");
    }
    Ok(())
}

/// Static scales of activations are replaced by scales per row, with a note; any other tensor of a
/// module is an error, such as the factors of a smoothed activation.
#[test]
fn static_scales_of_activations_are_left_out_and_that_is_said() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let activations = json!({"num_bits": 8, "type": "int", "dynamic": false, "strategy": "tensor"});
    let group = json!({"targets": ["Linear"], "input_activations": activations});
    let entry = json!({"quant_method": "compressed-tensors", "config_groups": {"a": group}});
    let config = json!({"quantization_config": entry}).to_string();
    std::fs::write(dir.path().join("config.json"), config)?;
    let write = |other: &str| {
        let weight =
            "a.weight I8 [2,3] 6*1; a.weight_scale F32 [2,1] 2*0.5; a.input_scale F32 [1] 7";
        let file = written(&format!("{weight}; {other} F32 [1] 1"), Value::Null);
        std::fs::write(dir.path().join("model.safetensors"), file)
    };
    write("a.bias")?;
    let source = Checkpoint::open(dir.path())?;
    let [note] = source.notes() else { panic!("{:?}", source.notes()) };
    assert!(note.contains("a.input_scale"), "{note}");
    let layer = nn::linear_no_bias(3, 2, source.var_builder(DType::F32, &Device::Cpu).pp("a"))?;
    assert!(layer.projection().qweight().is_some());
    let saved = dir.path().join("saved");
    checkpoint::save(&layer, &source, &saved)?;
    let saved = Checkpoint::open(&saved)?;
    assert!(saved.tensors().all(|tensor| tensor.name != "a.input_scale"));
    assert!(saved.notes().is_empty());
    for other in [
        "a.pre_quant_scale",
        "a.weight_global_scale",
        "a.weight_g_idx",
        "a.weight_minimum",
        "a.weight_zero_point_unsigned",
    ] {
        write(other)?;
        let error = Checkpoint::open(dir.path()).expect_err(other).to_string();
        assert!(error.contains(other), "{error}");
    }
    // Nothing is quantized, though the groups say so.
    let file = written("a.weight F32 [2,3] 6*1", Value::Null);
    std::fs::write(dir.path().join("model.safetensors"), file)?;
    let error = Checkpoint::open(dir.path()).expect_err("floats").to_string();
    assert!(error.contains("expected quantized weights"), "{error}");
    Ok(())
}
