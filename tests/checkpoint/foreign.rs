//! Files in the layout of compressed-tensors: shapes of scales, and what their configuration says.

use super::fixtures::difference;
use super::text::{f32s, tensors, written};
use crate::kit::*;

#[test]
fn scales_and_zero_points_of_every_shape_are_read() -> Result<()> {
    use QScheme::{PerChannelAffine as RowsAffine, PerChannelSymmetric as Rows};
    use QScheme::{PerTensorAffine as WholeAffine, PerTensorSymmetric as Whole};
    let (_dir, [path]) = paths(["a.safetensors"]);
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
        fs::write(&path, tensors(&all, Value::Null))?;
        let vb = open(&path)?;
        let ours = nn::linear_no_bias(4, rows, vb.pp("a"))?;
        let got = ours.projection().qweight().and_then(|weight| weight.qscheme());
        assert_eq!(got, qscheme, "{case}");
        let candles = candle_nn::linear_no_bias(4, rows, vb.pp("a"))?;
        for weight in [ours.weight(), candles.weight()] {
            assert_eq!(weight.get(0)?.to_vec1::<f32>()?, first, "{case}");
        }
    }
    // The scale of a group is not finite.
    for scale in ["NaN", "inf"] {
        let file = format!("a.weight I8 [2,4] 8*1; a.weight_scale F32 [2,2] 1 1 {scale} 1");
        fs::write(&path, written(&file, Value::Null))?;
        fault(candle_nn::linear_no_bias(4, 2, open(&path)?.pp("a"))).has("expected finite numbers");
    }
    Ok(())
}

/// A config's activations apply to the layers that it names.
#[test]
fn activations_are_those_of_the_group_that_names_a_layer() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let layer = |name| format!("{name}.weight I8 [4,3] 12*1; {name}.weight_scale F32 [4,1] 4*0.5");
    let file = written(&["a", "b", "model.c", "d"].map(layer).join("; "), Value::Null);
    fs::write(dir.path().join("model.safetensors"), file)?;
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
    fs::write(dir.path().join("config.json"), config.to_string())?;
    let vb = open(dir.path())?;
    // The first row alone shows whether rows share a scale.
    let both = Tensor::new(&[[0.3f32, -0.7, 0.9], [90., 5., -90.]], &Device::Cpu)?;
    let row = both.narrow(0, 0, 1)?;
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
    let (dir, [saved]) = paths(["saved"]);
    let activations = json!({"num_bits": 8, "type": "int", "dynamic": false, "strategy": "tensor"});
    let group = json!({"targets": ["Linear"], "input_activations": activations});
    let entry = json!({"quant_method": "compressed-tensors", "config_groups": {"a": group}});
    let config = json!({"quantization_config": entry}).to_string();
    fs::write(dir.path().join("config.json"), config)?;
    let write = |other: &str| {
        let weight =
            "a.weight I8 [2,3] 6*1; a.weight_scale F32 [2,1] 2*0.5; a.input_scale F32 [1] 7";
        let file = written(&format!("{weight}; {other} F32 [1] 1"), Value::Null);
        fs::write(dir.path().join("model.safetensors"), file)
    };
    write("a.bias")?;
    let source = Checkpoint::open(dir.path())?;
    let [note] = source.notes() else { panic!("{:?}", source.notes()) };
    assert!(note.contains("a.input_scale"), "{note}");
    let layer = nn::linear_no_bias(3, 2, vb_of(&source).pp("a"))?;
    assert!(is_quantized(&layer));
    checkpoint::save(&layer, &source, &saved)?;
    let saved = Checkpoint::open(&saved)?;
    assert!(saved.tensors().all(|tensor| tensor.name != "a.input_scale"));
    assert!(saved.notes().is_empty());
    let others = "a.pre_quant_scale a.weight_global_scale a.weight_g_idx a.weight_minimum \
                  a.weight_zero_point_unsigned";
    for other in others.split(' ') {
        write(other)?;
        fault(Checkpoint::open(dir.path())).has(other);
    }
    // Nothing is quantized, though the groups say so.
    let file = written("a.weight F32 [2,3] 6*1", Value::Null);
    fs::write(dir.path().join("model.safetensors"), file)?;
    fault(Checkpoint::open(dir.path())).has("expected quantized weights");
    Ok(())
}
