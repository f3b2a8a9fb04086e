//! Weights that are small, all or in single channels: `int8` has a scale for them, down to the
//! smallest that f32 can invert, and half precision reports its losses.

mod common;

use std::collections::HashMap;

use candle_dynquant::Result;
use common::*;

/// Down to where a product of two values of the range of 1 is subnormal.
const MAGNITUDES: [f64; 7] = [1e-4, 1e-6, 1e-7, 1e-8, 1e-20, 1e-30, 1e-34];

fn scaled(shape: &[usize], seed: u64, magnitude: f64) -> Result<Tensor> {
    Ok((tensor(shape, seed)?.to_dtype(DType::F64)? * magnitude)?.to_dtype(DType::F32)?)
}

#[derive(Quantizable, Clone)]
struct Model {
    embed: nn::Embedding,
    lstm: nn::LSTM,
    gru: nn::GRU,
    head: nn::Linear,
}

/// A model whose weights have that magnitude, or channels `single` of each, and no bias.
fn tensors(magnitude: f64, single: Option<usize>) -> Result<HashMap<String, Tensor>> {
    let mut shapes =
        vec![("embed.weight".to_owned(), vec![40, 32]), ("head.weight".into(), vec![24, 32])];
    for (name, rows) in [("lstm", 128), ("gru", 96)] {
        for part in ["ih", "hh"] {
            shapes.push((format!("{name}.weight_{part}_l0"), vec![rows, 32]));
            shapes.push((format!("{name}.bias_{part}_l0"), vec![rows]));
        }
    }
    let mut tensors = HashMap::new();
    for (seed, (name, shape)) in (0..).zip(shapes) {
        let whole = scaled(&shape, seed, if shape.len() == 1 { 0. } else { magnitude })?;
        let tensor = match (single, &shape[..]) {
            (Some(channel), [rows, _]) => {
                let good = scaled(&shape, seed, 0.1)?;
                let after = good.narrow(0, channel + 1, rows - channel - 1)?;
                let before = good.narrow(0, 0, channel)?;
                Tensor::cat(&[&before, &whole.narrow(0, channel, 1)?, &after], 0)?
            }
            _ => whole,
        };
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

impl Model {
    fn load(vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            embed: nn::embedding(40, 32, vb.pp("embed"))?,
            lstm: nn::LSTM::new(32, 32, Default::default(), vb.pp("lstm"))?,
            gru: nn::GRU::new(32, 32, Default::default(), vb.pp("gru"))?,
            head: nn::linear_no_bias(32, 24, vb.pp("head"))?,
        })
    }

    fn of(tensors: &HashMap<String, Tensor>) -> Result<Self> {
        Self::load(&weights(tensors.clone()))
    }

    /// The output of each layer for inputs of the range of 1.
    fn outputs(&self) -> Result<[(&'static str, Tensor); 4]> {
        let ids = Tensor::arange(0u32, 40, CPU)?;
        let xs = scaled(&[2, 5, 32], 77, 0.25)?;
        Ok([
            ("embed", self.embed.forward(&ids)?),
            ("lstm", self.lstm.forward(&xs, None)?.0),
            ("gru", self.gru.forward(&xs, None)?.0),
            ("head", self.head.forward(&xs)?),
        ])
    }
}

fn int8() -> QConfigSpec {
    all_int8().embeddings()
}

#[test]
fn int8_keeps_weights_of_any_magnitude() -> Result<()> {
    for magnitude in MAGNITUDES {
        let float = Model::of(&tensors(magnitude, None)?)?;
        let mut model = float.clone();
        quantize_dynamic(&mut model, &int8())?;
        for ((name, expected), (_, got)) in float.outputs()?.iter().zip(model.outputs()?) {
            let sqnr = sqnr(expected, &got);
            assert!(sqnr >= 36., "{name} of {magnitude:e}: {sqnr} dB");
        }
    }
    Ok(())
}

#[test]
fn int8_keeps_a_small_channel_beside_large_ones() -> Result<()> {
    for magnitude in MAGNITUDES {
        let float = tensors(magnitude, Some(3))?;
        let mut model = Model::of(&float)?;
        quantize_dynamic(&mut model, &int8())?;
        let weights = [
            ("embed.weight", model.embed.embeddings().clone()),
            ("head.weight", model.head.weight().clone()),
        ];
        for (name, weight) in weights {
            let row = |weight: &Tensor| weight.narrow(0, 3, 1);
            let sqnr = sqnr(&row(&float[name])?, &row(&weight)?);
            assert!(sqnr >= 40., "{name} of {magnitude:e}: {sqnr} dB");
        }
    }
    Ok(())
}

/// A float layer's products are subnormal below about 1e-38; until then the product of the two
/// scales has enough bits.
#[test]
fn int8_keeps_small_activations_with_small_weights() -> Result<()> {
    for (inputs, weights) in [(1e-7, 1.), (1e-30, 1.), (1e-10, 1e-20), (1e-36, 1.), (1e-18, 1e-18)]
    {
        let xs = scaled(&[7, 64], 3, inputs)?;
        let float = nn::Linear::new(scaled(&[20, 64], 4, weights)?, None);
        let mut layer = float.clone();
        quantize(&mut layer);
        let sqnr = sqnr(&float.forward(&xs)?, &layer.forward(&xs)?);
        assert!(sqnr >= 36., "{inputs:e} by {weights:e}: {sqnr} dB");
    }
    Ok(())
}

#[test]
fn presets_of_others_keep_their_minimum_scale() -> Result<()> {
    let weight = scaled(&[20, 64], 4, 1e-8)?;
    for (preset, least) in [("default", f32::EPSILON), ("per_channel", f32::EPSILON)] {
        let mut layer = nn::Linear::new(weight.clone(), None);
        quantize_dynamic(&mut layer, &QConfigSpec::preset(preset)?)?;
        let scales = layer.projection().qweight().expect("quantized").scales();
        assert!(scales.iter().all(|scale| *scale == least), "{preset}: {scales:?}");
    }
    let table = QConfig::table();
    assert_ne!(table, table.clone().eps(f32::MIN_POSITIVE));
    // ONNX Runtime has no scale for these.
    let mut layer = nn::Linear::new(weight, None);
    quantize_dynamic(&mut layer, &QConfigSpec::onnxruntime())?;
    assert!(layer.projection().qweight().expect("quantized").scales()[0] < 1e-9);
    Ok(())
}

#[test]
fn channels_of_zeros_and_of_subnormals_have_the_minimum_scale() -> Result<()> {
    let rows = [[0f32, 0.], [1e-40, -3e-39], [1e-38, 3e-38], [0.5, -1.]];
    let weight = Tensor::new(&rows, CPU)?;
    let mut layer = nn::Linear::new(weight, Some(ones(&[4])));
    quantize(&mut layer);
    let qweight = layer.projection().qweight().expect("quantized");
    assert_eq!(qweight.scales()[..3], [f32::MIN_POSITIVE; 3]);
    assert_eq!(qweight.codes(), [0, 0, 0, 0, 1, 3, 64, -127]);
    let ys = layer.forward(&Tensor::new(&[[2f32, -1.]], CPU)?)?;
    assert_eq!(ys.to_vec2::<f32>()?[0][..3], [1.; 3]);
    Ok(())
}

#[test]
fn small_scales_are_saved_and_loaded() -> Result<()> {
    let dir = tempfile::tempdir().expect("a folder");
    let (float, saved) = (dir.path().join("f.safetensors"), dir.path().join("q.safetensors"));
    for single in [None, Some(3)] {
        let tensors = tensors(1e-34, single)?;
        candle_core::safetensors::save(&tensors, &float)?;
        let source = Checkpoint::open(&float)?;

        let mut model = Model::load(&source.var_builder(DType::F32, CPU))?;
        quantize_dynamic(&mut model, &int8())?;
        checkpoint::save(&model, &source, &saved)?;
        let vb = Checkpoint::open(&saved)?.var_builder(DType::F32, CPU);
        let loaded = Model::load(&vb)?;
        for ((name, expected), (_, got)) in model.outputs()?.iter().zip(loaded.outputs()?) {
            assert_eq!(bits(expected), bits(&got), "{name}");
            assert!(values(&got).iter().any(|x| *x != 0.), "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_spec_may_name_the_minimum_scale() -> Result<()> {
    let eps = |eps: f32| QConfigSpec::new().name("head", QConfig::per_channel().eps(eps));
    for spec in [eps(f32::MIN_POSITIVE), eps(1e-20), int8(), int8().name("head", None)] {
        assert_eq!(QConfigSpec::from_yaml(&spec.to_yaml()?)?, spec);
        assert_eq!(QConfigSpec::from_json(&spec.to_json()?)?, spec);
    }
    assert_eq!(int8().to_yaml()?, "preset: int8\nembeddings: true\nmin_params: 0\n");
    Ok(())
}

#[test]
fn half_precision_counts_the_weights_of_channels_below_its_range() -> Result<()> {
    let rows = [[1e-6f32, 0., -3e-8], [1e-6, 1., 1e-9], [6.2e-5, 0., 0.], [0., 0., 0.]];
    let weight = Tensor::new(&rows, CPU)?;
    let mut model = vec![nn::Linear::new(weight.clone(), None)];
    let report = quantize_dynamic(&mut model, &QConfigSpec::float16())?;
    assert_eq!((report.layers[0].underflowed, report.layers[0].saturated), (2, 0));
    let note =
        "0: 2 weights in channels below the float16 range, 6.1e-5, lost precision or became 0";
    assert!(report.to_string().lines().any(|line| line == note), "{report}");

    let mut table = vec![nn::Embedding::new(weight, 3)];
    let spec = QConfigSpec::new().name("0", QConfig::float16());
    let report = quantize_dynamic(&mut table, &spec)?;
    assert_eq!(report.layers[0].underflowed, 2);

    let weight = Tensor::new(&[[1e-39f32, 0.], [1., 1e-39]], CPU)?;
    let mut model = nn::Linear::new(weight, None);
    let report = quantize_dynamic(&mut model, &QConfigSpec::bfloat16())?;
    assert_eq!(report.layers[0].underflowed, 1);
    let note = "1 weight in channels below the bfloat16 range, 1.2e-38, lost precision or became 0";
    assert!(report.to_string().contains(note), "{report}");
    Ok(())
}
