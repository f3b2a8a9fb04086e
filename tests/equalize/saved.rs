//! Equalized models, saved and loaded.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::{
    Checkpoint, Equalization, QConfigSpec, Quantizable, checkpoint, equalize, nn, quantize_dynamic,
};
use candle_nn::VarBuilder;

use crate::{HIDDEN, bits, gain, random};

/// A norm of each kind: with a bias, read as a residual; without a bias; under PyTorch's old names.
#[derive(Quantizable, Clone)]
struct Model {
    norm: nn::LayerNorm,
    query: nn::Linear,
    post: nn::LayerNorm,
    rms: nn::RmsNorm,
    up: nn::Conv1d,
    old: nn::LayerNorm,
    head: nn::Linear,
}

impl Model {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let linear = |name| nn::linear(HIDDEN, HIDDEN, vb.pp(name));
        Ok(Self {
            norm: nn::layer_norm(HIDDEN, 1e-5, vb.pp("block.norm"))?,
            query: linear("block.query")?,
            post: nn::layer_norm_no_bias(HIDDEN, 1e-5, vb.pp("block.post"))?,
            rms: nn::rms_norm(HIDDEN, 1e-6, vb.pp("rms"))?,
            up: nn::conv1d(HIDDEN, HIDDEN, 1, Default::default(), vb.pp("up"))?,
            old: nn::layer_norm(HIDDEN, 1e-5, vb.pp("old"))?,
            head: linear("head")?,
        })
    }

    fn open(path: &Path, dtype: DType) -> Result<Self> {
        let vb = Checkpoint::open(path)?.var_builder(dtype, &Device::Cpu);
        Ok(Self::load(vb)?)
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let normal = self.norm.forward(xs)?;
        let xs = self.post.forward_add(&self.query.forward(&normal)?, &normal)?;
        let signal = self.rms.forward(&xs)?.t()?.unsqueeze(0)?;
        let xs = (&xs + self.up.forward(&signal)?.squeeze(0)?.t()?)?;
        self.head.forward(&self.old.forward(&xs)?)
    }

    fn equalize(&mut self) -> Result<()> {
        let dtype = self.query.weight().dtype();
        let xs = random(&[6, HIDDEN]).to_dtype(dtype)?;
        let report = equalize(self, &Equalization::default(), |model| model.forward(&xs))?;
        assert_eq!(report.pairs.len(), 3, "{report}");
        Ok(())
    }
}

fn write_float(path: &Path, dtype: DType) -> Result<()> {
    let mut tensors = HashMap::new();
    for norm in ["block.norm.weight", "block.post.weight", "rms.weight", "old.gamma"] {
        tensors.insert(norm.to_owned(), gain(HIDDEN).to_dtype(dtype)?);
    }
    for bias in ["block.norm.bias", "old.beta"] {
        tensors.insert(bias.to_owned(), random(&[HIDDEN]).to_dtype(dtype)?);
    }
    for layer in ["block.query", "up", "head"] {
        let shape = [HIDDEN, HIDDEN, 1];
        let shape = &shape[..if layer == "up" { 3 } else { 2 }];
        let weight = (random(shape) * 0.2)?.to_dtype(dtype)?;
        tensors.insert(format!("{layer}.weight"), weight);
        tensors.insert(format!("{layer}.bias"), random(&[HIDDEN]).to_dtype(dtype)?);
    }
    candle_core::safetensors::save(&tensors, path)?;
    Ok(())
}

/// A checkpoint, and its model equalized.
fn equalized(float: &Path) -> Result<(Checkpoint, Model)> {
    write_float(float, DType::F32)?;
    let mut model = Model::open(float, DType::F32)?;
    model.equalize()?;
    Ok((Checkpoint::open(float)?, model))
}

fn answer(model: &Model, xs: &Tensor) -> Result<Vec<u32>> {
    let ys = model.forward(&xs.to_dtype(model.norm.weight().dtype())?)?;
    Ok(bits(&ys.to_dtype(DType::F32)?))
}

/// The names of a file's tensors.
fn names(path: &Path) -> Result<Vec<String>> {
    Ok(Checkpoint::open(path)?.tensors().map(|t| t.name).collect())
}

#[test]
fn they_load_back_bit_for_bit_with_the_code_that_loads_the_float_model() -> Result<()> {
    let xs = random(&[9, HIDDEN]);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let dir = tempfile::tempdir()?;
        let [float, out, again] = ["float", "out", "again"]
            .map(|name| dir.path().join(name).with_extension("safetensors"));
        write_float(&float, dtype)?;
        for (file_dtype, spec) in [
            (DType::F32, Some(QConfigSpec::int8())),
            (dtype, Some(QConfigSpec::int8().exclude("up"))),
            (dtype, None),
        ] {
            let source = Checkpoint::open(&float)?;
            let mut model = Model::open(&float, file_dtype)?;
            model.equalize()?;
            if let Some(spec) = &spec {
                quantize_dynamic(&mut model, spec)?;
            }
            checkpoint::save(&model, &source, &out)?;
            let loaded = Model::open(&out, file_dtype)?;
            assert_eq!(answer(&loaded, &xs)?, answer(&model, &xs)?, "{dtype:?} {spec:?}");

            // The loaded model is saved unchanged, and equalized again.
            let saved = Checkpoint::open(&out)?;
            checkpoint::save(&loaded, &saved, &again)?;
            assert_eq!(names(&again)?, names(&out)?);
            let twice = Model::open(&again, file_dtype)?;
            assert_eq!(answer(&twice, &xs)?, answer(&model, &xs)?);
            if spec.is_none() {
                let mut twice = twice;
                twice.equalize()?;
                checkpoint::save(&twice, &saved, &again)?;
                assert_eq!(names(&again)?, names(&out)?);
                let loaded = Model::open(&again, file_dtype)?;
                assert_eq!(answer(&loaded, &xs)?, answer(&twice, &xs)?);
            }
        }
    }
    Ok(())
}

#[test]
fn a_loader_without_the_factors_of_a_residual_finds_no_weight() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float.safetensors", "out.safetensors"].map(|name| dir.path().join(name));
    let (source, model) = equalized(&float)?;
    checkpoint::save(&model, &source, &out)?;
    let norms: Vec<_> = names(&out)?
        .into_iter()
        .filter(|name| !["block.query", "up", "head"].iter().any(|layer| name.starts_with(layer)))
        .collect();
    assert_eq!(
        norms,
        [
            "block.norm.bias",
            "block.norm.weight",
            "block.post.equalized.residual_weight",
            "block.post.equalized.weight",
            "old.bias",
            "old.weight",
            "rms.weight"
        ]
    );
    let vb = Checkpoint::open(&out)?.var_builder(DType::F32, &Device::Cpu);
    let norm = |name| candle_nn::layer_norm_no_bias(HIDDEN, 1e-5, vb.pp(name));
    assert_eq!(bits(norm("rms")?.weight()), bits(model.rms.weight()));
    let error = norm("block.post").unwrap_err().to_string();
    assert!(error.contains("block.post.weight"), "{error}");
    // A builder that has every tensor has no factors.
    let zeros = VarBuilder::zeros(DType::F32, &Device::Cpu);
    assert!(nn::layer_norm(HIDDEN, 1e-5, zeros.pp("norm")).is_ok());
    // Factors of another norm.
    let error = nn::layer_norm_no_bias(HIDDEN + 1, 1e-5, vb.pp("block.post"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("block.post") && error.contains("[33]"), "{error}");
    Ok(())
}

#[test]
fn norms_that_have_no_tensor_or_share_one_are_errors() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float.safetensors", "out.safetensors"].map(|name| dir.path().join(name));
    let (source, model) = equalized(&float)?;
    let mut unnamed = model.clone();
    unnamed.norm = nn::LayerNorm::new(gain(HIDDEN), random(&[HIDDEN]), 1e-5);
    unnamed.equalize()?;
    let error = checkpoint::save(&unnamed, &source, &out).unwrap_err().to_string();
    assert!(error.contains("norm") && error.contains("\"norm.weight\""), "{error}");

    #[derive(Quantizable)]
    struct Two {
        first: Model,
        second: Model,
    }
    let second = Model::open(&float, DType::F32)?;
    let mut two = Two { first: model, second };
    let error = checkpoint::save(&two, &source, &out).unwrap_err().to_string();
    assert!(error.contains("second") && error.contains("two layers"), "{error}");
    two.second = two.first.clone();
    checkpoint::save(&two, &source, &out)?;
    assert!(out.exists());
    Ok(())
}

/// Two layers with one name, as in a model whose code loads a module twice.
#[test]
fn a_norm_that_the_source_has_otherwise_or_twice_is_an_error() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, other, out] =
        ["float", "other", "out"].map(|name| dir.path().join(name).with_extension("safetensors"));
    let (source, model) = equalized(&float)?;
    let twin = Model::open(&float, DType::F32)?;
    let save = |model: &(Model, Model), source: &Checkpoint| {
        let saved = checkpoint::save(model, source, &out);
        saved.map_err(|error| error.to_string())
    };
    // Equal norms count once; different norms conflict, whichever is folded.
    save(&(model.clone(), model.clone()), &source).expect("equal layers");
    for pair in [(model.clone(), twin.clone()), (twin.clone(), model.clone())] {
        let error = save(&pair, &source).unwrap_err();
        assert!(error.contains("block."), "{error}");
    }
    // Both are folded, with different gains.
    let original = candle_core::safetensors::load(&float, &Device::Cpu)?;
    let mut tensors = original.clone();
    let gain = (&original["block.norm.weight"] * 1.3)?;
    tensors.insert("block.norm.weight".to_owned(), gain);
    candle_core::safetensors::save(&tensors, &other)?;
    let mut gained = Model::open(&other, DType::F32)?;
    gained.equalize()?;
    let mut gained_norm = model.clone();
    gained_norm.norm = gained.norm.clone();
    let error = save(&(model.clone(), gained_norm), &source).unwrap_err();
    assert!(error.contains("block.norm"), "{error}");
    let error = save(&(model.clone(), gained), &source).unwrap_err();
    assert!(error.contains("block."), "{error}");
    let mut moved = model.clone();
    moved.equalize()?;
    let bias = (moved.old.bias().expect("a bias") + 1.)?;
    let weight = moved.old.weight().clone();
    moved.old = nn::LayerNorm::new(weight, bias, 1e-5);
    assert!(save(&(moved, model.clone()), &source).is_err());

    let mut tensors = candle_core::safetensors::load(&float, &Device::Cpu)?;
    for changed in [
        Tensor::ones(HIDDEN - 1, DType::F32, &Device::Cpu)?,
        Tensor::ones(HIDDEN, DType::U8, &Device::Cpu)?,
    ] {
        tensors.insert("block.norm.weight".to_owned(), changed);
        candle_core::safetensors::save(&tensors, &other)?;
        let error = checkpoint::save(&model, &Checkpoint::open(&other)?, &out).unwrap_err();
        let error = error.to_string();
        let named = error.contains("block.norm.weight") && error.contains("floats [32]");
        assert!(named, "{error}");
    }
    Ok(())
}

#[test]
fn a_norm_that_the_source_has_not_is_no_matter_until_it_is_folded() -> Result<()> {
    #[derive(Quantizable, Clone)]
    struct Own {
        norm: nn::LayerNorm,
        up: nn::Linear,
    }

    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    write_float(&float, DType::F32)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut model = Own {
        norm: nn::LayerNorm::new_no_bias(gain(HIDDEN), 1e-5),
        up: nn::linear(HIDDEN, HIDDEN, vb.pp("head"))?,
    };
    checkpoint::save(&model, &source, &out)?;
    let xs = random(&[6, HIDDEN]);
    equalize(&mut model, &Equalization::default(), |model| {
        model.up.forward(&model.norm.forward(&xs)?)
    })?;
    let error = checkpoint::save(&model, &source, &out).unwrap_err();
    assert!(error.to_string().contains("norm.weight"), "{error}");
    Ok(())
}

#[test]
fn factors_of_another_size_are_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    let (source, model) = equalized(&float)?;
    checkpoint::save(&model, &source, &out)?;
    let mut tensors = candle_core::safetensors::load(&out, &Device::Cpu)?;
    let factors = tensors.iter_mut().find(|(name, _)| name.contains("residual"));
    let (_, factors) = factors.expect("the factors of a residual");
    *factors = factors.narrow(0, 1, HIDDEN - 1)?.copy()?;
    candle_core::safetensors::save(&tensors, &out)?;
    let error = Model::open(&out, DType::F32).map(drop).unwrap_err().to_string();
    assert!(error.contains("layer_norm") && error.contains("expected [32], got [31]"), "{error}");
    Ok(())
}
